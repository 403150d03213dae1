"""The interface between the worker and its engine, and the thread that runs its steps.

Any thread may call `prepare`, which tokenizes and may be slow. Only the engine thread calls the
other methods. An engine reports records of `rose.engine_records`.
"""

import asyncio
import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rose.engine_records import SchedulerStats, StepOutput, Task
from rose.errors import InvalidParameter
from rose.protocol import JobSpec
from rose.protocol.announced_model import MODEL_FIELDS, AnnouncedModel
from rose.protocol.codec import most_numbers
from rose.protocol.jobs import EncodeOptions


@dataclass(frozen=True, slots=True)
class ModelInfo:
    name: str
    context_tokens: int
    max_bytes_per_token: int | None
    """the most bytes of prompt text that a token can stand for; None if that is not certain"""
    device: str
    dtype: str
    decoder: str = "none"
    """which decoder computes the model, and why not the compiled one"""
    fingerprint: str = ""
    """of weights and their format, tokenizer and dtype: workers with the same one may continue with
    each other's texts; empty if it is not known"""
    chat: bool = True
    """It takes chat messages: there is a chat template."""
    tool_format: str = ""
    """how its chat template writes calls of functions, such as "hermes"; "" if it does not, or in a
    way that is not known"""
    reasoning_format: str = ""
    """how it writes thoughts, such as "think"; "" as before"""
    template_variables: tuple[str, ...] = ()
    """what its chat template reads beside messages and tools, such as enable_thinking"""
    has_vocabulary: bool = False
    caches_prefixes: bool = True
    engine: str = "rose"
    """which engine serves it: a value of the setting"""
    adapters: tuple[str, ...] = ()
    """names of the LoRA adapters that a job may ask for; no whitespace in them"""
    task: Task = "generate"
    """the jobs that it takes"""
    dimensions: int | None = None
    """how many numbers its answer to an input has; None of a model that generates"""

    @property
    def announced(self) -> AnnouncedModel:
        """What is announced to submitters and operators."""
        return AnnouncedModel(**{name: getattr(self, name) for name in MODEL_FIELDS})


@dataclass(frozen=True, slots=True)
class Prepared:
    """A checked and tokenized job. Only the engine reads `handle`."""

    job_id: str
    prompt_tokens: int
    handle: Any
    prompt_ids: Sequence[int] = ()
    """of a job that asks for no more than that"""


class Engine(Protocol):
    @property
    def model(self) -> ModelInfo: ...

    @property
    def capacity(self) -> int:
        """How many jobs it decodes at once: the slots."""

    @property
    def has_work(self) -> bool: ...

    def vocabulary(self) -> Sequence[bytes] | None:
        """The bytes of each token by its id; empty for ids that stand for nothing. None if they
        are not known. Any thread calls it, and it may take its time."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        """Check and tokenize a job. An earlier worker has logged `generated_ids`.

        Raises:
            InvalidRequest: this model cannot run the job.
        """

    def add(self, prepared: Prepared) -> None:
        """No job of this id is in the engine."""

    def abort(self, job_id: str) -> None:
        """Free the slot of a job. Unknown ids are ignored, because the job may just have
        finished."""

    def step(self, only: str | None = None) -> list[StepOutput]:
        """Compute the next tokens of every job, or of `only` one while the others pause."""

    def stats(self) -> SchedulerStats: ...


class EncodingEngine(Engine, Protocol):
    """Of a model that embeds or scores."""

    def prepare(
        self, job: JobSpec, generated_ids: Sequence[int], inputs: bytes | None = None
    ) -> Prepared:
        """`inputs`: tokens that a child of the preparer has made of the job's texts."""


_TASKS = {"generate": "generates text", "embed": "embeds texts", "score": "scores texts"}


def check_task(job: JobSpec, model: ModelInfo) -> None:
    """A queue serves one model, so nobody else would take the job. Raises: InvalidParameter"""
    if job.task != model.task:
        raise InvalidParameter(
            f"{'prompt' if job.encode is None else 'encode'}: the queue's model, {model.name}, "
            f"{_TASKS[model.task]}, and this job asks for what {_TASKS[job.task]}: send it to the "
            "queue of such a model",
            param="encode",
        )


def check_dimensions(options: EncodeOptions, model: ModelInfo) -> int:
    """How many numbers each row has. Raises: InvalidParameter: not as many as the job asks for."""
    width = model.dimensions or 1
    if options.dimensions is not None and options.dimensions > width:
        raise InvalidParameter(
            f"dimensions: a vector of {model.name} has {width}, so not {options.dimensions}",
            param="dimensions",
        )
    return options.dimensions or width


def check_rows(rows: int, width: int) -> None:
    """Raises: InvalidParameter: one event does not hold them."""
    if rows * width > (most := most_numbers()):
        raise InvalidParameter(
            f"prompt: {rows} inputs with {width} numbers each do not fit into one event, which "
            f"holds those of {most // width}: send the others in another job",
            param="prompt",
        )


def check_no_adapter(job: JobSpec, model: ModelInfo) -> None:
    """For an engine without adapters. Raises: InvalidParameter"""
    if job.adapter:
        raise InvalidParameter(
            f"adapter: the engine {model.engine} has no LoRA adapters, so not {job.adapter!r} "
            "either: leave it out, or serve the queue by `rose worker --engine vllm`",
            param="adapter",
        )


log = logging.getLogger("rose.engine")


@dataclass(frozen=True, slots=True)
class StepReport:
    outputs: list[StepOutput]
    stats: SchedulerStats
    stepped: bool = True
    """False: there was no step. Jobs were aborted, and the gauges must show it."""
    added: int = 0
    """how many jobs had been added before: the outputs are of none that came later"""


@dataclass(frozen=True, slots=True)
class _Add:
    prepared: Prepared
    alone: bool


@dataclass(frozen=True, slots=True)
class _Abort:
    job_id: str


class EngineThread:
    """`ended` is done when the thread is, with the engine's exception if one ended it."""

    _on_report: Callable[[], None]

    def __init__(self, engine: Engine, *, max_reports: int, min_step_s: float) -> None:
        self._engine = engine
        self._max_reports = max_reports
        self._min_step_s = min_step_s
        self._commands: queue.SimpleQueue[_Add | _Abort | None] = queue.SimpleQueue()
        self._reports: deque[StepReport] = deque()
        self._has_room = threading.Condition()
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = self._loop.create_future()
        self._stopping = False
        self._alone: str | None = None
        self._sent = self._added = 0
        self._progress_at = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    def start(self, on_report: Callable[[], None]) -> None:
        """The event loop calls `on_report` when there are reports to take."""
        self._on_report = on_report
        self._thread.start()

    async def stop(self) -> None:
        """Finish the current step and end the thread. Requests stay in the engine.

        Waits for `ended` and not in a thread of its own, which would keep the process from ending
        while a step hangs.
        """
        self._stopping = True
        self._commands.put(None)
        with self._has_room:
            self._has_room.notify()
        await asyncio.wait([self.ended])

    def add(self, prepared: Prepared, *, alone: bool = False) -> int:
        """`alone`: the other jobs pause until this one has a token or has ended. Returns how many
        jobs were added up to this one."""
        self._sent += 1
        self._commands.put(_Add(prepared, alone))
        return self._sent

    def abort(self, job_id: str) -> None:
        self._commands.put(_Abort(job_id))

    @property
    def stalled_s(self) -> float:
        """How long the current step has taken; 0 if idle or waiting for room."""
        return max(0.0, time.monotonic() - self._progress_at)

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self.ended.done()

    def take_report(self) -> StepReport | None:
        """The oldest report. `on_report` is called again only after all have been taken."""
        with self._has_room:
            if not self._reports:
                return None
            self._has_room.notify()
            return self._reports.popleft()

    def _run(self) -> None:
        failure: BaseException | None = None
        try:
            while not self._stopping:
                aborted = self._obey(wait=not self._engine.has_work)
                self._progress_at = time.monotonic()
                if self._engine.has_work and not self._stopping:
                    outputs = self._engine.step(self._alone)
                    if self._alone is not None:
                        self._note_progress(outputs)
                    self._report(StepReport(outputs, self._engine.stats(), added=self._added))
                    self._slow_down()
                elif aborted:
                    self._report(StepReport([], self._engine.stats(), stepped=False))
        except BaseException as error:  # noqa: BLE001 - `ended` gives it to the event loop
            failure = error
        self._call_soon(self._on_report)
        self._call_soon(self._end, failure)

    def _note_progress(self, outputs: Sequence[StepOutput]) -> None:
        if any(output.request_id == self._alone for output in outputs):
            self._alone = None

    def _slow_down(self) -> None:
        left_s = self._progress_at + self._min_step_s - time.monotonic()
        if 0 < left_s <= self._min_step_s:
            time.sleep(left_s)

    def _end(self, failure: BaseException | None) -> None:
        if self.ended.done():
            return
        if failure is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(failure)

    def _obey(self, *, wait: bool) -> bool:
        """Carry out the commands that wait; with `wait`, idle until there is one.

        Returns whether a job was aborted.
        """
        aborted = False
        while True:
            if wait:
                self._progress_at = float("inf")  # idle: nothing can stall
            try:
                command = self._commands.get(block=wait)
            except queue.Empty:
                return aborted
            match command:
                case _Add(prepared, alone):
                    self._added += 1
                    self._engine.add(prepared)
                    if alone:
                        self._alone = prepared.job_id
                case _Abort(job_id):
                    aborted = True
                    self._engine.abort(job_id)
                    if self._alone == job_id:
                        self._alone = None
                case None:
                    return aborted
            wait = False

    def _report(self, report: StepReport) -> None:
        with self._has_room:
            if len(self._reports) >= self._max_reports:
                self._progress_at = float("inf")  # waiting for room is not stalling
                self._has_room.wait_for(
                    lambda: len(self._reports) < self._max_reports or self._stopping
                )
            self._reports.append(report)
            first = len(self._reports) == 1
        if first:
            self._call_soon(self._on_report)

    def _call_soon(self, callback: Callable[..., None], *args: object) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, *args)

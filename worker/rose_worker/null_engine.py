"""An engine without a model: it repeats the prompt, one token a step.

It shows what the queue itself costs, and gives tests a worker that starts at once. The token ids
are those of the prompt or the UTF-8 bytes of its text. Token i is `prompt[i % len(prompt)]`, so the
output depends neither on the other jobs of the batch nor on how often the job has moved.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from rose.engine_records import FinishReason, Numbers, SchedulerStats, StepOutput, float32
from rose.errors import InvalidParameter, PromptTooLong
from rose.protocol import JobSpec
from rose_worker.engine import ModelInfo, Prepared, check_dimensions, check_no_adapter, check_rows
from rose_worker.settings import WorkerSettings

#: Where no setting limits it.
_CONTEXT = 1 << 20
#: Tokens of a request for all that such a context holds, as a gateway sends one without a limit: a
#: million would never end.
_UNLIMITED = 8192


@dataclass(slots=True)
class _Echo:
    prompt: list[int]
    done: int
    length: int


class NullEngine:
    def __init__(self, settings: WorkerSettings) -> None:
        self.capacity = settings.max_batch_size
        self._context = settings.max_context or _CONTEXT
        # It echoes whatever the model is called; a name lets tests and trials have several.
        name = "null" if settings.model is None else f"null:{settings.model}"
        self.model = ModelInfo(
            name, self._context, 1, "cpu", "none", fingerprint=name, engine="null"
        )
        self._running: dict[str, _Echo] = {}
        self._step_sequences = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def vocabulary(self) -> None:
        """A token is any number."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:
        if job.sampling.logprobs or job.sampling.constraint is not None:
            raise InvalidParameter("the null engine has neither log-probabilities nor grammars")
        check_no_adapter(job, self.model)
        text = (
            job.prompt if isinstance(job.prompt, str) else "".join(m.content for m in job.messages)
        )
        prompt = list(job.token_ids or text.encode() or b"\0")
        room = self._context - len(prompt)
        if room < 1:
            raise PromptTooLong.of(len(prompt), self._context)
        wanted = job.sampling.max_new_tokens
        if wanted >= _CONTEXT == self._context:
            wanted = _UNLIMITED
        echo = _Echo(prompt, len(generated_ids), min(wanted, room))
        return Prepared(job.id, len(prompt), echo, prompt if job.prompt_only else ())

    def add(self, prepared: Prepared) -> None:
        if prepared.job_id in self._running:
            raise InvalidParameter(f"the id {prepared.job_id!r} is in use")
        self._running[prepared.job_id] = prepared.handle

    def abort(self, job_id: str) -> None:
        self._running.pop(job_id, None)

    def step(self, only: str | None = None) -> list[StepOutput]:
        stepped = {job_id: echo for job_id, echo in self._running.items() if only in (None, job_id)}
        self._step_sequences = len(stepped)
        outputs = [self._next(job_id, echo) for job_id, echo in stepped.items()]
        for output in outputs:
            if output.finish_reason is not None:
                del self._running[output.request_id]
        return outputs

    def _next(self, job_id: str, echo: _Echo) -> StepOutput:
        if echo.done >= echo.length:  # an earlier worker logged the last token and then died
            return StepOutput(job_id, echo.done, (), "", "length")
        token = echo.prompt[echo.done % len(echo.prompt)]
        echo.done += 1
        reason: FinishReason | None = "length" if echo.done == echo.length else None
        return StepOutput(job_id, echo.done - 1, (token,), f"{token} ", reason)

    def stats(self) -> SchedulerStats:
        return SchedulerStats(running=len(self._running), batch_size=self._step_sequences)


#: Numbers of a vector.
_WIDTH = 8


@dataclass(slots=True)
class _Encoding:
    pairs: list[tuple[bytes, bytes]]
    """the input, and what it is scored with"""
    width: int
    rows: list[bytes] = field(default_factory=list)


class NullEncoder:
    """An encoder without a model: an input a step of each job. A vector is a digest of the input's
    bytes, and a score the share of the query's words that the input has."""

    def __init__(self, settings: WorkerSettings) -> None:
        self.capacity = settings.max_batch_size
        self._task = settings.task or "embed"
        name = "null-encoder" if settings.model is None else f"null:{settings.model}"
        self.model = ModelInfo(
            name,
            settings.max_context or _CONTEXT,
            1,
            "cpu",
            "none",
            fingerprint=name,
            chat=False,
            engine="null",
            task=self._task,
            dimensions=_WIDTH if self._task == "embed" else 1,
        )
        self._running: dict[str, _Encoding] = {}
        self._batch_size = 0

    @property
    def has_work(self) -> bool:
        return bool(self._running)

    def vocabulary(self) -> None:
        """As of the null engine."""

    def prepare(self, job: JobSpec, generated_ids: Sequence[int]) -> Prepared:  # noqa: ARG002 - it has none
        options, most = job.encode, self.model.context_tokens
        assert options is not None  # noqa: S101 - by its task
        inputs = [
            one.encode() if isinstance(one, str) else repr(one).encode() for one in job.inputs
        ]
        for number, one in enumerate(inputs):
            if len(one) > most and not options.truncate:
                raise PromptTooLong.of(len(one), most)
            inputs[number] = one[:most]
        width = check_dimensions(options, self.model)
        check_rows(len(inputs), width)
        queries = [query.encode() for query in options.queries] or [b""]
        if len(queries) == 1:
            queries *= len(inputs)
        encoding = _Encoding(list(zip(inputs, queries, strict=True)), width)
        return Prepared(job.id, sum(map(len, inputs)), encoding)

    def add(self, prepared: Prepared) -> None:
        self._running[prepared.job_id] = prepared.handle

    def abort(self, job_id: str) -> None:
        self._running.pop(job_id, None)

    def step(self, only: str | None = None) -> list[StepOutput]:
        outputs, self._batch_size = [], 0
        for job_id, job in list(self._running.items()):
            if only in (None, job_id):
                self._batch_size += 1
                job.rows.append(self._row(*job.pairs[len(job.rows)], job.width))
                if len(job.rows) == len(job.pairs):
                    del self._running[job_id]
                    numbers = Numbers(job.width, b"".join(job.rows))
                    outputs.append(StepOutput(job_id, 0, (), "", "stop", numbers=numbers))
        return outputs

    def _row(self, text: bytes, query: bytes, width: int) -> bytes:
        if self._task == "score":
            words = set(query.split())
            return float32([len(words & set(text.split())) / max(1, len(words))])
        digest = hashlib.sha256(text).digest()
        return float32([byte / 256 for byte in digest[:width]])

    def stats(self) -> SchedulerStats:
        return SchedulerStats(running=len(self._running), batch_size=self._batch_size)

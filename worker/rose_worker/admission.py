"""Turns a claim into a job in a slot: decode it, take it, read its log, prepare it, start it.

A claim remembers which steps are done. If Redis becomes unreachable in between, admission
continues where it stopped and takes no job twice. A job that the engine refuses at the start
fails with an event for its caller. Whatever else cannot run becomes a dead letter with the
reason.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import cast

from rose.errors import (
    DeadlineExceeded,
    InvalidParameter,
    InvalidRequest,
    MalformedMessage,
    RoseError,
)
from rose.protocol import (
    FailedEvent,
    JobSpec,
    Partition,
    TokenEvent,
    decode_event,
    decode_job,
    partition_of,
    readable_job_id,
)
from rose.protocol.calls import Lease, NotTaken, OfOtherModel, Take, Taken
from rose.protocol.codec import MAX_PROMPT_IDS
from rose.transport import BROKER_ERRORS
from rose_worker.broker import Broker
from rose_worker.engine import EncodingEngine, Engine, EngineThread, Prepared, check_task
from rose_worker.jobs import Claim, DeadLetter, HeldJob, JobTable
from rose_worker.metrics import Metrics
from rose_worker.preparation import Preparation
from rose_worker.publisher import Publisher
from rose_worker.settings import WorkerSettings
from rose_worker.tasks import cancel_all

log = logging.getLogger("rose.admission")

#: Making a session of this many bytes of a job, or tokens, takes less time than waking a thread.
_MAX_INLINE = 2048

#: After an outage a preparation waits so long before its claim is tried again.
_PAUSE_S = 0.5


@dataclass(slots=True, eq=False)
class Admission:
    _settings: WorkerSettings
    _broker: Broker
    _engine: Engine
    _thread: EngineThread
    _table: JobTable
    _publisher: Publisher
    _metrics: Metrics
    _preparation: Preparation
    _beginning: dict[asyncio.Task[None], Partition] = field(default_factory=dict, init=False)
    """jobs that are prepared while intake goes on"""
    _broken: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _one_suspect: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def run(self) -> None:
        """Raises: what a preparation raises that is no fault of its job."""
        await self._broken.wait()
        for task in self._beginning:
            if task.done():
                task.result()

    async def settled(self) -> None:
        """Wait until nothing is prepared any more."""
        if self._beginning:
            await asyncio.wait(self._beginning)

    async def close(self) -> None:
        await cancel_all([*self._beginning])
        self._preparation.close()

    async def begin_alone(self, partition: Partition, suspect: Claim) -> None:
        """Start a suspect while every other job pauses. Only one suspect runs at a time.

        Raises: RedisError: call again.
        """
        async with self._one_suspect:
            if not self._table.replays_a_suspect:
                await self.begin(partition, [suspect], alone=True)

    async def begin(
        self, partition: Partition, claims: Sequence[Claim], *, alone: bool = False
    ) -> None:
        """Turn claims of a partition into jobs. What takes longer goes on afterwards, except for
        one that is begun alone.

        Raises: RedisError: call again with the claims that are left.
        """
        refused: dict[Claim, RoseError] = {}
        readable: list[tuple[Claim, JobSpec]] = []
        for claim in claims:
            try:
                readable.append((claim, _spec(claim)))
            except RoseError as error:
                refused[claim] = error
        begun, malformed = await self._take(partition, readable, alone)
        refused |= malformed
        tasks = []
        for claim, spec, taken in begun:
            if self._is_cheap(claim, spec, taken):
                result = self._session(spec, taken, [])
                if (refusal := self._start(claim, spec, taken, result, alone)) is not None:
                    refused[claim] = refusal
            else:
                tasks.append(self._begin_beside(claim, spec, taken, alone))
        if refused:
            await self._give_up(refused)
        if alone and tasks:
            await asyncio.wait(tasks)

    def _is_cheap(self, claim: Claim, spec: JobSpec, taken: Taken) -> bool:
        """Whether it takes less time than waking anybody, whatever the job says."""
        # Few texts are tokenized in less time than that: neither template nor grammar is run.
        encodes = spec.encode is not None
        plain = not self._preparation.needed or bool(spec.token_ids) or encodes
        small = claim.size <= _MAX_INLINE and not taken.logged
        return plain and small and spec.sampling.constraint is None

    def _begin_beside(
        self, claim: Claim, spec: JobSpec, taken: Taken, alone: bool
    ) -> asyncio.Task[None]:
        claim.preparing = True
        task = asyncio.create_task(self._prepare(claim, spec, taken, alone))
        self._beginning[task] = claim.entry.partition
        task.add_done_callback(self._prepared)
        return task

    def _prepared(self, task: asyncio.Task[None]) -> None:
        if task.cancelled() or task.exception() is None:
            del self._beginning[task]
        else:
            self._broken.set()

    async def _prepare(self, claim: Claim, spec: JobSpec, taken: Taken, alone: bool) -> None:
        try:
            log_events = (
                await self._broker.read_log(claim.entry.partition, spec.id) if taken.logged else []
            )
            result: Prepared | RoseError
            left_out: str | None = None
            try:
                prepared, left_out, inputs = await self._preparation.prepare(
                    spec, claim.entry.raw or b""
                )
            except (InvalidRequest, MalformedMessage) as error:
                result = error
            else:
                work = partial(self._session, prepared, taken, log_events, inputs)
                tokens = len(prepared.token_ids) if inputs is None else len(inputs) // 4
                few = 0 < tokens <= _MAX_INLINE and not log_events
                if few and spec.sampling.constraint is None:
                    result = work()
                else:
                    result = await asyncio.to_thread(work)
            if (refusal := self._start(claim, spec, taken, result, alone, left_out)) is not None:
                await self._give_up({claim: refusal})
        except BROKER_ERRORS as error:
            log.warning("job %s begins when Redis answers: %s", spec.id, error)
            await asyncio.sleep(_PAUSE_S)
        finally:
            claim.preparing = False
            self._table.changed()

    async def _take(
        self, partition: Partition, claims: Sequence[tuple[Claim, JobSpec]], alone: bool
    ) -> tuple[list[tuple[Claim, JobSpec, Taken]], dict[Claim, RoseError]]:
        """Returns the claims that were taken and those that cannot run."""
        refused: dict[Claim, RoseError] = {}
        untaken = [(claim, spec) for claim, spec in claims if claim.taken is None]
        outcomes = await self._broker.take(
            partition,
            [Take(claim.entry.key, spec.id, claim.take_id) for claim, spec in untaken],
            alone=alone,
        )
        for (claim, _), outcome in zip(untaken, outcomes, strict=True):
            match outcome:
                case Taken():
                    claim.taken, claim.logged = outcome, outcome.logged
                case NotTaken.SUSPECT:
                    claim.suspect = True
                case NotTaken.NOTHING_TO_DO:
                    self._table.drop_claim(claim)
                case OfOtherModel(logged):
                    claim.logged = logged
                    refused[claim] = _ModelChanged(
                        "another model has begun its text, and this queue serves "
                        f"{self._engine.model.name} now: retry it, so that it begins anew"
                    )
                case NotTaken.MALFORMED:
                    refused[claim] = MalformedMessage(
                        "somebody else has written into the job's state or its token log"
                    )
                case NotTaken.STATE_GONE:
                    refused[claim] = MalformedMessage(
                        "the job's state is gone, though not its token log: it was deleted, or "
                        "Redis has evicted it. Retry it, and it begins anew; Redis must have "
                        "maxmemory-policy noeviction"
                    )
        begun = [(claim, spec, claim.taken) for claim, spec in claims if claim.taken is not None]
        return begun, refused

    def _start(
        self,
        claim: Claim,
        spec: JobSpec,
        taken: Taken,
        result: Prepared | RoseError,
        alone: bool,
        left_out: str | None = None,
    ) -> RoseError | None:
        """Give a job to the engine, or end it. Returns why it is to be a dead letter, if it is."""
        if isinstance(result, InvalidRequest) and not taken.logged:
            if self._table.drop_claim(claim):
                self._fail(_held(claim, spec, taken, 0, alone=alone), taken, result)
        elif isinstance(result, RoseError):
            return result
        elif self._table.drop_claim(claim):
            held = _held(claim, spec, taken, result.prompt_tokens, alone=alone)
            held.left_out = left_out
            self._run(held, taken, result)
        return None

    def _session(
        self,
        spec: JobSpec,
        taken: Taken,
        log_events: Sequence[bytes],
        inputs: bytes | None = None,
    ) -> Prepared | RoseError:
        """What the engine runs: a job that continues after the last token in its log."""
        if taken.attempts > self._settings.max_attempts:
            return _CrashLoop(
                f"the leases of {taken.attempts - 1} takes in a row lapsed without a new token: "
                "their workers died, hung or lost Redis"
            )
        try:
            check_task(spec, self._engine.model)
            if spec.prompt_only and spec.token_ids:
                return _prompt_alone(spec)
            logged_ids = _logged_ids(log_events, taken.logged)
            if inputs is not None:
                return cast(EncodingEngine, self._engine).prepare(spec, logged_ids, inputs)
            return self._engine.prepare(spec, logged_ids)
        except (InvalidRequest, MalformedMessage) as error:
            return error
        except Exception as error:  # noqa: BLE001 - it costs one job, not the worker
            # The message of such an error may quote the prompt, so only its type is told.
            return MalformedMessage(
                f"the prompt cannot be prepared for this model ({type(error).__name__})"
            )

    def _run(self, job: HeldJob, taken: Taken, prepared: Prepared) -> None:
        self._hold(job)
        deadline_ms = job.spec.deadline_ms
        if taken.cancel_requested:
            self._publisher.cancel(job.spec.id)
        elif deadline_ms is not None and not self._set_deadline(job, deadline_ms, taken):
            self._miss_deadline(job.spec.id)
        elif job.spec.prompt_only:
            with_ids = job.spec.prompt_only == "ids"
            self._publisher.finish_prompt(job.spec.id, prepared.prompt_ids if with_ids else None)
        else:
            log.info(
                "job %s taken: %d prompt tokens, %d logged, epoch %d%s",
                job.spec.id,
                prepared.prompt_tokens,
                taken.logged,
                taken.epoch,
                ", alone: its last lease lapsed without a new token" if job.alone else "",
                extra={"job": job.spec.id},
            )
            # Last: the engine's thread waits for this one to have nothing more to do.
            job.added = self._thread.add(prepared, alone=job.alone)

    def _hold(self, job: HeldJob) -> None:
        """A failover may have forgotten that this worker has the job, and given it to it again."""
        if (earlier := self._table.get(job.spec.id)) is not None:
            self._publisher.lose(earlier, "taken again")
        self._table.add(job)
        self._metrics.observe_take(job)

    def _fail(self, job: HeldJob, taken: Taken, error: InvalidRequest) -> None:
        """End a job that only its caller can correct. It becomes no dead letter: the operator
        cannot fix it, and one careless caller would fill the list."""
        self._hold(job)
        # The message of a chat template may quote the prompt: log the code alone.
        log.warning("job %s is refused: %s", job.spec.id, error.code, extra={"job": job.spec.id})
        if taken.cancel_requested:
            self._publisher.cancel(job.spec.id)
        else:
            self._publisher.fail(job.spec.id, error)

    def _set_deadline(self, job: HeldJob, deadline_ms: int, taken: Taken) -> bool:
        """Start the timer of the deadline. False if it has passed already.

        Redis' clock decides, at submit and at take. `deadline_ms`, which the producer wrote
        by its own clock, counts for jobs that came without `submit`.
        """
        left_s = taken.seconds_until(taken.deadline_ms or deadline_ms)
        if left_s > 0:
            loop = asyncio.get_running_loop()
            job.deadline = loop.call_later(left_s, self._miss_deadline, job.spec.id)
        return left_s > 0

    def _miss_deadline(self, job_id: str) -> None:
        self._publisher.fail(job_id, DeadlineExceeded("its deadline has passed"))

    async def _give_up(self, refused: dict[Claim, RoseError]) -> None:
        letters = [
            DeadLetter(
                claim.entry,
                readable_job_id(claim.entry.raw or b""),
                FailedEvent.of(error, claim.logged),
            )
            for claim, error in refused.items()
        ]
        await self._broker.dead_letter(letters)
        for claim, letter in zip(refused, letters, strict=True):
            self._metrics.dead_letter(letter.event.code)
            # The message of a chat template may quote the prompt: log the code alone.
            log.warning(
                "entry %s (job %s) is a dead letter: %s",
                letter.entry.key.id,
                letter.job_id,
                letter.event.code,
                extra={"job": letter.job_id},
            )
            self._table.drop_claim(claim)


class _CrashLoop(RoseError):
    code = "crash_loop"


class _ModelChanged(RoseError):
    code = "model_changed"


def _spec(claim: Claim) -> JobSpec:
    """Raises: JobTooLarge, MalformedMessage, InvalidParameter"""
    spec = claim.spec = claim.spec or decode_job(claim.entry.raw or b"")
    here, there = claim.entry.partition.index, partition_of(spec.id)
    if here != there:
        raise InvalidParameter(
            f"id: {spec.id!r} is of partition {there}, where its subscriber listens, and it was "
            f"enqueued in partition {here}"
        )
    return spec


def _prompt_alone(spec: JobSpec) -> Prepared:
    """Of a job that asks for no more. Raises: InvalidParameter"""
    size = len(spec.token_ids)
    if spec.prompt_only == "ids" and size > MAX_PROMPT_IDS:
        raise InvalidParameter(
            f"prompt: it has {size} tokens, of which {MAX_PROMPT_IDS} at most can be named",
            param="prompt",
        )
    return Prepared(spec.id, size, None, spec.token_ids)


def _held(claim: Claim, spec: JobSpec, taken: Taken, prompt_tokens: int, *, alone: bool) -> HeldJob:
    entry = claim.entry
    waited_s = max(0.0, -taken.seconds_until(entry.key.enqueued_ms))
    return HeldJob(
        spec=spec,
        lease=Lease(entry.partition, entry.key, spec.id, taken.take_id),
        logged=taken.logged,
        prompt_tokens=prompt_tokens,
        enqueued_at=time.monotonic() - waited_s,
        resumed=taken.logged > 0 or taken.epoch > 1,
        epoch=taken.epoch,
        first_index=taken.logged,
        level=entry.level,
        placed=taken.placed,
        alone=alone,
    )


def _logged_ids(log_events: Sequence[bytes], logged: int) -> list[int]:
    """The token ids of a log.

    Raises: MalformedMessage: somebody else has written there.
    """
    ids: list[int] = []
    for raw in log_events:
        event = decode_event(raw)
        if not isinstance(event, TokenEvent) or event.index != len(ids):
            raise MalformedMessage(f"the token log goes wrong after {len(ids)} tokens")
        ids.extend(event.token_ids)
    if len(ids) != logged:
        raise MalformedMessage(f"the token log has {len(ids)} tokens, and the job's state {logged}")
    return ids

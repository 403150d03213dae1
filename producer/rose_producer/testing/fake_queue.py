"""A queue whose model a test plays."""

from __future__ import annotations

import asyncio
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from rose.errors import ConfigurationError, JobFailed, ResultTimeout
from rose.protocol import EntryKey, JobEntry, JobSpec, Partition, calls, decode_job
from rose.protocol.announced_model import AnnouncedModel
from rose.protocol.calls import Taken
from rose.transport import AsyncRedisClient
from rose_producer.async_client import AsyncClient
from rose_producer.client import Client
from rose_producer.settings import ProducerSettings
from rose_producer.testing.answers import Answer
from rose_producer.testing.open_job import TTL_S, OpenJob, Writer, new_worker, play

if TYPE_CHECKING:
    from rose_producer.settings import ProducerOptions

T = TypeVar("T")

MODEL = AnnouncedModel(name="fake", context_tokens=8192, tool_format="hermes", engine="fake")
DEFAULT = Answer("Once upon a time there was a test, and it passed.")

_AT_ONCE = 64
#: Between two looks for jobs, which cost little where there are no more entries than before, and
#: between two that do not rely on that.
_POLL_S, _CAREFUL_S = 0.005, 0.1
_ANNOUNCED_S = 5.0
_names = itertools.count(1)


class FakeQueue:
    """Jobs are taken at once, and answered beside each other: by the answers that were given, in
    order, and then always by the same text.

    `url`, `name`: what a client needs; `client()` makes one.
    """

    def __init__(self, url: str, name: str | None = None, model: AnnouncedModel = MODEL) -> None:
        """`url`: of a `FakeRedis`, or of a real one. `model`: what `Client.model` says."""
        self.url = url
        self.name = name or f"test-{os.getpid()}-{next(_names)}"
        self._model = model
        self._partition = Partition(self.name)
        self._jobs: list[JobSpec] = []
        self._answers: deque[Answer] = deque()
        self._otherwise: Callable[[JobSpec], Answer | str] = lambda _: DEFAULT
        self._by_hand = 0
        self._held = False
        self._taken: asyncio.Queue[Writer] = asyncio.Queue()
        self._open: list[Writer] = []
        self._fetched_at = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=self.name, daemon=True)
        self._serving: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._run(self._begin())
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._run(self._end())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def client(self, **options: Unpack[ProducerOptions]) -> Client:
        """To close by whoever asks: `with queue.client() as client`."""
        return Client(self._settings(options))

    def async_client(self, **options: Unpack[ProducerOptions]) -> AsyncClient:
        return AsyncClient(self._settings(options))

    @property
    def jobs(self) -> tuple[JobSpec, ...]:
        """Those that were taken so far, in order."""
        return tuple(self._jobs)

    def answers(self, *answers: Answer | str) -> None:
        """What the next jobs are answered, one each."""
        self._answers += map(_as_answer, answers)

    def answers_with(self, answer: Callable[[JobSpec], Answer | str]) -> None:
        """What all jobs are answered that have no answer of their own. It is called in another
        thread."""
        self._otherwise = answer

    def hold(self) -> None:
        """From now on jobs wait in the queue, except for those that are asked for by `take`."""
        self._held = True

    def resume(self) -> None:
        """No longer."""
        self._held = False

    def take(self, timeout_s: float = 30.0) -> OpenJob:
        """The next job that waits, to write its answer by hand.

        Raises:
            ResultTimeout: no job came in this time.
            ConfigurationError: jobs do not wait, so it may be answered already.
        """
        if not self._held:
            raise ConfigurationError(
                "jobs are answered at once: call hold() before the job is submitted, then take()"
            )
        return OpenJob(self._run(self._next(timeout_s)), self._run)

    def _settings(self, options: ProducerOptions) -> ProducerSettings:
        given: dict[str, Any] = {"redis_url": self.url, "queue": self.name, **options}
        return ProducerSettings(**given)

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _begin(self) -> None:
        self._redis = AsyncRedisClient(self._settings({}))
        self._worker = new_worker()
        await self._redis.run(calls.create_groups(self._partition))
        await self._announce()
        self._serving = asyncio.create_task(self._serve())

    async def _end(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._redis.aclose()
        if self._serving is not None and not self._serving.cancelled():
            self._serving.result()  # it ends by itself only with an error, and answers nothing then

    async def _announce(self) -> None:
        facts: dict[str, str | bytes | int] = {**self._model.facts, "partitions": 1}
        call = calls.announce(self._partition, self._worker, facts, mode="replace", slots=_AT_ONCE)
        await self._redis.run(call)
        self._announced_at = time.monotonic()

    async def _serve(self) -> None:
        playing = asyncio.TaskGroup()
        async with playing:
            while True:
                if time.monotonic() > self._announced_at + _ANNOUNCED_S:
                    await self._announce()
                wanted = _AT_ONCE if not self._held else min(self._by_hand, _AT_ONCE)
                writers = await self._fetch(wanted) if wanted and await self._may_have() else []
                self._open += writers
                for writer in writers:
                    self._jobs.append(writer.spec)
                    if self._by_hand:
                        self._by_hand -= 1
                        self._taken.put_nowait(writer)
                    else:
                        playing.create_task(self._play(writer))
                if not writers:
                    await asyncio.sleep(_POLL_S)

    async def _play(self, writer: Writer) -> None:
        if self._answers:
            answer = self._answers.popleft()
        else:
            answer = await asyncio.to_thread(self._otherwise_answer, writer.spec)
        await play(writer, answer)

    def _otherwise_answer(self, spec: JobSpec) -> Answer:
        try:
            return _as_answer(self._otherwise(spec))
        except Exception as error:  # noqa: BLE001 - a test's own code: whoever waits is told
            return Answer([], error=JobFailed(f"what answers_with was given raised {error!r:.200}"))

    async def _may_have(self) -> bool:
        """Whether there may be jobs that nobody has taken."""
        self._open = [writer for writer in self._open if not writer.ended]
        lengths = [("XLEN", stream) for stream in self._partition.all_streams]
        there = sum(await self._redis.exchange(lengths))
        is_due = time.monotonic() > self._fetched_at + _CAREFUL_S
        return is_due or there > len(self._open)

    async def _fetch(self, count: int) -> list[Writer]:
        self._fetched_at = time.monotonic()
        call = calls.fetch(self._partition, self._worker, count, ageing_ms=60_000)
        found, *_ = await self._redis.run(call)
        return [
            writer
            for stream, flat in found
            for entry, raw in zip(flat[::2], flat[1::2], strict=True)
            if (writer := await self._start(EntryKey(stream.decode(), entry.decode()), raw))
        ]

    async def _start(self, entry: EntryKey, raw: bytes) -> Writer | None:
        spec = decode_job(raw)
        take = calls.Take(entry, spec.id)
        call = calls.take(self._partition, [take], self._worker, ttl_s=TTL_S, mode="alone")
        (reply,) = await self._redis.run(call)
        taken = calls.taken(reply, take.take_id)
        if not isinstance(taken, Taken):
            return None
        return Writer(self._redis, self._partition, spec, JobEntry(entry, spec.id), taken)

    async def _next(self, timeout_s: float) -> Writer:
        self._by_hand += 1
        try:
            async with asyncio.timeout(timeout_s):
                return await self._taken.get()
        except TimeoutError:
            self._by_hand = max(0, self._by_hand - 1)
            raise ResultTimeout(f"no job came into queue {self.name} in {timeout_s:g} s") from None


def _as_answer(answer: Answer | str) -> Answer:
    return answer if isinstance(answer, Answer) else Answer(answer)

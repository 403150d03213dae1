"""Many workers, simulated; whose job is whose is decided by the product's scripts on a real Redis.

Time is simulated, for the scripts too: their `TIME` reads a key. A worker computes one prompt at a
time, and tokens of all its slots at once, at fixed speeds. It keeps prefixes in a cache of bounded
size, the latest used. Arrivals are Poisson, conversations have a drawn number of turns with pauses
between them, lengths are log-normal.
"""

import heapq
import random
import zlib
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import redis

from benchmarks.queue.stage import fresh_redis
from rose.protocol import EntryKey, JobSpec, Partition, Priority, calls, decode_job, encode_job
from rose.protocol.calls import Append, Call, Lease, QueueLimits, Submission, Taken
from rose.protocol.jobs import new_job_id
from rose.protocol.placement import chain_of
from rose_producer import FinishedEvent

_SLOTS = 32
_PREFILL_S, _TOKEN_S = 1 / 8000, 0.02
_CACHE_TOKENS = 400_000
_SYSTEM_TOKENS, _ANSWER_TOKENS = 1000, 165
_PAUSE_S = 8.0
_BEAT_S = 5.0
_CLOCK, _TIME = "rose:{sim:0}:clock", "redis.call('TIME')"


@dataclass(slots=True)
class Worker:
    name: str
    slowness: float = 1.0
    busy: int = 0
    prefill_until: float = 0.0
    cache: OrderedDict[int, int] = field(default_factory=OrderedDict)
    """tokens of the latest prompt and answer, by conversation"""
    held: int = 0
    has_system: bool = False

    def cached(self, conversation: int) -> int:
        return self.cache.get(conversation, _SYSTEM_TOKENS if self.has_system else 0)

    def keep(self, conversation: int, tokens: int) -> None:
        self.has_system = True
        self.held += tokens - self.cache.pop(conversation, 0)
        self.cache[conversation] = tokens
        while self.held > _CACHE_TOKENS:
            self.held -= self.cache.popitem(last=False)[1]


@dataclass(slots=True)
class Turn:
    conversation: int
    number: int
    turns: int
    messages: list[dict[str, str]]
    prompt: int
    answer: int
    came: float = 0.0


@dataclass(slots=True)
class Seen:
    first_token_s: list[float] = field(default_factory=list)
    prompt: int = 0
    cached: int = 0
    jobs: int = 0


class Simulation:
    """`how`: placed or unplaced, by the product; least (loaded) or hashed, as routers do. `load`:
    share of the slots that are busy, were prompts computed in no time. `slowness`: of one worker,
    to the others."""

    def __init__(
        self, server: redis.Redis, workers: int, jobs: int, how: str, load: float, slowness: float
    ) -> None:
        self._redis, self._how, self._jobs = server, how, jobs
        self._partition = Partition("sim")
        self._workers = {f"w{n}": Worker(f"w{n}") for n in range(workers)}
        self._workers["w0"].slowness = slowness
        self._draw = random.Random(f"{workers}")  # noqa: S311 - a workload, no secret
        self._events: list[tuple[float, int, str, Any]] = []
        self._numbers, self._now, self._shas = count(), 0.0, dict[str, str]()
        self._turns: dict[str, Turn] = {}
        self._leases: dict[str, Lease] = {}
        self._queues: dict[str, list[Turn]] = {name: [] for name in self._workers}
        self.seen = Seen()
        self._gap_s = _TOKEN_S * _ANSWER_TOKENS / (load * workers * _SLOTS)

    def run(self) -> Seen:
        self._at(0.0, "arrive", None)
        self._at(0.0, "beat", None)
        while self._events and self.seen.jobs < self._jobs:
            self._now, _, kind, what = heapq.heappop(self._events)
            getattr(self, f"_{kind}")(what)
        return self.seen

    def _at(self, time: float, kind: str, what: Any) -> None:
        heapq.heappush(self._events, (time, next(self._numbers), kind, what))

    @property
    def _by_product(self) -> bool:
        return self._how in ("placed", "unplaced")

    def _call(self, call: Call) -> Any:
        source = call.script.source
        sha = self._shas.get(source)
        if sha is None:
            simulated = source.replace(_TIME, f"redis.call('HMGET', '{_CLOCK}', 's', 'us')")
            sha = self._shas[source] = str(self._redis.script_load(simulated))
        seconds = 1_000_000 + self._now
        us = int(seconds % 1 * 1e6)
        with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.hset(_CLOCK, mapping={"s": int(seconds), "us": us})
            pipeline.evalsha(sha, len(call.keys), *call.keys, *call.args)
            return pipeline.execute()[1]

    # What happens

    def _beat(self, _: None) -> None:
        if self._by_product:
            facts: dict[str, str | bytes | int] = {"name": "m", "fingerprint": "f", "partitions": 1}
            for name in self._workers:
                placement = _SLOTS if self._how == "placed" else None
                self._call(
                    calls.announce(
                        *(self._partition, name, facts),
                        mode="keep",
                        slots=_SLOTS,
                        placement=placement,
                    )
                )
        self._at(self._now + _BEAT_S, "beat", None)

    def _arrive(self, _: None) -> None:
        """A conversation of five turns on average begins, and another one some time later."""
        number = next(self._numbers)
        system = {"role": "system", "content": "s" * 4 * _SYSTEM_TOKENS}
        turns = 1 + min(30, int(self._draw.expovariate(1 / 4)))
        self._say(Turn(number, 0, turns, [system], _SYSTEM_TOKENS, 0))
        self._at(self._now + self._draw.expovariate(1 / (5 * self._gap_s)), "arrive", None)

    def _say(self, turn: Turn) -> None:
        size = min(4000, int(self._draw.lognormvariate(5.0, 1.0)) + 8)
        text = f"{turn.conversation}/{turn.number} "
        turn.messages = [*turn.messages, {"role": "user", "content": text.ljust(4 * size, "x")}]
        turn.prompt, turn.came = turn.prompt + turn.answer + size, self._now
        turn.answer = min(2000, int(self._draw.lognormvariate(4.8, 0.8)) + 1)  # _ANSWER_TOKENS
        if self._by_product:
            self._submit(turn)
        elif self._how == "least":
            self._push(min(self._workers.values(), key=self._load), turn)
        else:
            key = zlib.crc32(str(turn.conversation).encode()) % len(self._workers)
            self._push(self._workers[f"w{key}"], turn)

    def _load(self, worker: Worker) -> int:
        return worker.busy + len(self._queues[worker.name])

    def _push(self, worker: Worker, turn: Turn) -> None:
        if worker.busy < _SLOTS:
            self._begin(worker, turn, "")
        else:
            self._queues[worker.name].append(turn)

    def _submit(self, turn: Turn) -> None:
        job = JobSpec.model_validate({"id": new_job_id(0), "prompt": turn.messages})
        self._turns[job.id] = turn
        chain = chain_of(job) if self._how == "placed" else ""
        one = Submission.of(job, encode_job(job), Priority.NORMAL, chain=chain)
        self._call(calls.submit(self._partition, [one], limits=QueueLimits()))
        self._somebody_fetches(None)

    def _somebody_fetches(self, _: None) -> None:
        """The listener: one of those that have a slot."""
        free = [worker for worker in self._workers.values() if worker.busy < _SLOTS]
        if free:
            self._fetch(self._draw.choice(free))

    def _fetch(self, worker: Worker) -> None:
        take_id = calls.new_take_id()
        speed = int(1 / (worker.slowness * _PREFILL_S))
        placement = f"2000 {speed}" if self._how == "placed" else ""
        call = calls.fetch(
            self._partition,
            worker.name,
            _SLOTS - worker.busy,
            ageing_ms=60_000,
            take_id=take_id,
            placement=placement,
        )
        streams, *_, outcomes, due_ms = self._call(call)
        entries = [
            (stream, entry, raw)
            for stream, flat in streams
            for entry, raw in zip(flat[::2], flat[1::2], strict=True)
        ]
        for (stream, entry, raw), outcome in zip(entries, outcomes, strict=True):
            assert isinstance(calls.taken(outcome, take_id), Taken)  # noqa: S101
            job_id = decode_job(raw).id
            key = EntryKey(stream.decode(), entry.decode())
            self._leases[job_id] = Lease(self._partition, key, job_id, take_id)
            self._begin(worker, self._turns.pop(job_id), job_id)
        if due_ms:
            self._at(self._now + due_ms / 1000 + 0.001, "somebody_fetches", None)
        self._wake()

    def _wake(self) -> None:
        """Those for whom something stands aside."""
        aside: Any = self._redis.zrange(
            self._partition.placing.replace(":workers", ":aside"), 0, -1
        )
        for name in {member.decode().split()[-1] for member in aside}:
            worker = self._workers[name]
            if self._redis.delete(self._partition.own_turn(name)) and worker.busy < _SLOTS:
                self._fetch(worker)

    def _begin(self, worker: Worker, turn: Turn, job_id: str) -> None:
        worker.busy += 1
        cached = min(worker.cached(turn.conversation), turn.prompt)
        start = max(self._now, worker.prefill_until)
        prefill_s, token_s = worker.slowness * _PREFILL_S, worker.slowness * _TOKEN_S
        worker.prefill_until = start + (turn.prompt - cached) * prefill_s
        worker.keep(turn.conversation, turn.prompt + turn.answer)
        seen = self.seen
        seen.jobs += 1
        seen.first_token_s.append(worker.prefill_until - turn.came)
        if turn.number:
            seen.prompt, seen.cached = seen.prompt + turn.prompt, seen.cached + cached
        self._at(worker.prefill_until + turn.answer * token_s, "end", (worker, turn, job_id))

    def _end(self, ended: tuple[Worker, Turn, str]) -> None:
        worker, turn, job_id = ended
        worker.busy -= 1
        if job_id:
            end = FinishedEvent(index=0, reason="eos", prompt_tokens=turn.prompt)
            item = Append(self._leases.pop(job_id), 0, end=end)
            self._call(calls.append(self._partition, [item], ttl_s=1))
            self._fetch(worker)
        elif queue := self._queues[worker.name]:
            self._begin(worker, queue.pop(0), "")
        turn.number += 1
        if turn.number < turn.turns:
            answer = {"role": "assistant", "content": f"{turn.number}".ljust(4 * turn.answer, "y")}
            turn.messages = [*turn.messages, answer]
            self._at(self._now + self._draw.expovariate(1 / _PAUSE_S), "say", turn)


def simulated(
    workers: int, jobs: int, how: str, load: float, slowness: float = 1.0
) -> tuple[Seen, float]:
    """What was seen, and Redis' microseconds for a job."""
    with fresh_redis() as broker, redis.Redis(port=broker.port, protocol=2) as server:
        partition = Partition("sim")
        for stream in partition.all_jobs:
            server.xgroup_create(stream, "workers", "0", mkstream=True)
        seen = Simulation(server, workers, jobs, how, load, slowness).run()
        spent = server.info("commandstats").get("cmdstat_evalsha", {"usec": 0})["usec"]
        return seen, spent / max(1, seen.jobs)

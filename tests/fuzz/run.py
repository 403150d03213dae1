"""Damaged messages through a real worker: none may kill it, and every one is accounted for.

    python -m tests.fuzz --messages 1000000

Each message ends as a dead letter with a code of ours, or, where it is a job after all, with one
terminal event. In between go good jobs, jobs whose token log somebody has written into, and noise
on the channels of jobs and of control.
"""

import random
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

import redis

from benchmarks.usage import resident_bytes
from rose.errors import RoseError
from rose.protocol import GROUP, JobSpec, Partition, Priority, decode_job, encode_job
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import Client
from tests.fuzz.ledger import Ledger, Sent
from tests.fuzz.listener import Listener
from tests.fuzz.messages import Fuzzer
from tests.fuzz.poison import Poisoner, ask_for

_BATCH = 1000
#: Messages that wait in Redis at most: they keep the worker busy and fit into memory.
_MAX_WAITING = 4000
_QUEUE = "fuzz"
_CONTEXT = 48
_GOOD = b"good"
_END_S = 60


@dataclass
class Report:
    seed: int
    messages: int = 0
    seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    listeners: dict[str, int] = field(default_factory=dict)
    worker_rss_mb: list[int] = field(default_factory=list)
    """at the start, the most, at the end"""
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"per_second": round(self.messages / self.seconds), "ok": self.ok}


def fuzz(messages: int, seed: int) -> Report:
    """Raises: ServiceDied, BrokerUnavailable: nothing could be started."""
    with (
        EmbeddedBroker(fake=False) as broker,
        WorkerProcess(
            "fuzzed",
            broker.url,
            queue=_QUEUE,
            engine="null",
            max_batch_size=256,
            max_context=_CONTEXT,
            result_ttl_s=60,
            log_level="error",
        ) as worker,
        Client(redis_url=broker.url, queue=_QUEUE) as client,
        redis.Redis(port=broker.port, protocol=2) as raw,
    ):
        worker.wait_ready()
        return _Run(messages, seed, worker, client, raw).run()


class _Run:
    def __init__(
        self, messages: int, seed: int, worker: WorkerProcess, client: Client, raw: redis.Redis
    ) -> None:
        self._left = messages
        self._random = random.Random(seed)
        self._fuzzer = Fuzzer(seed)
        self._worker = worker
        self._client = client
        self._redis = raw
        self._partition = Partition(_QUEUE)
        self._poisoner = Poisoner(seed, self._fuzzer, raw, self._partition)
        self._poisoned_jobs: list[str] = []
        self._ledger = Ledger(raw, self._partition)
        self._report = Report(seed, messages)
        self._rss: list[int] = []
        self._listener: Listener | None = None
        self._verdicts: Counter[str] = Counter()

    def run(self) -> Report:
        start = time.monotonic()
        pid = self._worker.pid or 0
        while self._left > 0 and self._worker.running:
            self._send(min(self._left, _BATCH))
            self._disturb()
            self._ledger.settle()
            self._ask()
            self._rss.append(round(resident_bytes(pid) / 2**20))
            self._wait(lambda: sum(self._lengths()) < _MAX_WAITING)
        self._wait(lambda: not self._ledger.open)
        self._report.seconds = time.monotonic() - start
        self._check_worker()
        return self._finished()

    def _wait(self, condition: Any) -> None:
        """Until it holds; gives up when nothing has ended for long."""
        deadline, before = time.monotonic() + _END_S, self._ledger.open
        while self._worker.running and not condition():
            self._ledger.settle()
            if self._ledger.open < before:
                deadline, before = time.monotonic() + _END_S, self._ledger.open
            if time.monotonic() > deadline:
                self._report.problems.append(f"{before} messages wait, and nothing happens")
                self._left = 0
                return
            time.sleep(0.005)

    # Sending

    def _send(self, count: int) -> None:
        self._left -= count
        batch = [self._message() for _ in range(count)]
        pipeline = self._redis.pipeline(transaction=False)
        streams = []
        for fields, _ in batch:
            streams.append(self._partition.jobs(self._random.choice(list(Priority))))
            pipeline.execute_command("XADD", streams[-1], "*", *fields)
        for stream, entry, (_, sent) in zip(streams, pipeline.execute(), batch, strict=True):
            self._ledger.sent(stream, entry.decode(), sent)

    def _message(self) -> tuple[list[bytes], Sent]:
        kind = self._random.randrange(100)
        if kind == 0:
            return self._poisoned()
        if kind < 3:
            return self._good()
        raw = self._fuzzer.job()
        fields = self._fuzzer.entry(raw)
        named = dict(zip(fields[::2], fields[1::2], strict=True))
        return fields, _expected(named.get(b"job", b""))

    def _good(self) -> tuple[list[bytes], Sent]:
        job = self._new_job()
        answer = (*_GOOD, _GOOD[0])
        return [b"job", encode_job(job)], Sent(b"", None, job.id, answer=answer)

    def _poisoned(self) -> tuple[list[bytes], Sent]:
        """A job in whose state or log somebody has written what no worker would."""
        job = self._new_job()
        self._poisoner.poison(job)
        self._poisoned_jobs.append(job.id)
        raw = encode_job(job)
        return [b"job", raw], Sent(raw, None, job.id, may_fail=True)

    def _new_job(self) -> JobSpec:
        job_id = f"0-good-{self._random.getrandbits(64):x}"
        return JobSpec.model_validate(
            {"id": job_id, "prompt": _GOOD.decode(), "sampling": {"max_new_tokens": 5}}
        )

    # Channels

    def _disturb(self) -> None:
        noise = [*(self._fuzzer.event() for _ in range(20)), *(self._fuzzer.noise(),) * 5]
        pipeline = self._redis.pipeline(transaction=False)
        for message in (*noise, self._fuzzer.job(), b"0-nobody", b""):
            pipeline.publish(self._partition.control, message)
        pipeline.execute()
        if self._listener is not None and self._listener.done:
            self._verdicts[self._listener.verdict()] += 1
            self._listener = None
        if self._listener is None:
            self._listener = Listener(self._client, self._redis)
        self._listener.disturb(noise)

    def _ask(self) -> None:
        """A subscriber of one of the poisoned jobs."""
        if self._poisoned_jobs:
            job_id = self._random.choice(self._poisoned_jobs)
            self._poisoned_jobs.clear()
            if (problem := ask_for(self._client, job_id)) is not None:
                self._report.problems.append(problem)

    # The end

    def _check_worker(self) -> None:
        problems = self._report.problems
        if not self._worker.running:
            problems.append(f"the worker died: {self._worker.log[-2000:]}")
            return
        if self._worker.http("/healthz") is None:
            problems.append("the worker is not healthy")
        refused = self._worker.metrics().get("rose_invalid_messages_total")
        if refused != self._ledger.letters:
            problems.append(f"{self._ledger.letters} dead letters, and the metric says {refused}")
        if self._listener is not None:
            self._verdicts[self._listener.verdict()] += 1
        held = [self._redis.xpending(s, GROUP)["pending"] for s in self._partition.all_jobs]
        if any(self._lengths()) or any(held):
            problems.append(f"left in the streams: {self._lengths()}, pending: {held}")
        load = int(self._redis.hget(self._partition.load, "tokens") or 0)
        if load:
            problems.append(f"{load} queued tokens are charged, and nothing is queued")

    def _finished(self) -> Report:
        report, rss = self._report, self._rss or [0]
        report.outcomes = dict(sorted(self._ledger.outcomes.items()))
        report.listeners = dict(self._verdicts)
        report.worker_rss_mb = [rss[0], max(rss), rss[-1]]
        report.problems += self._ledger.wrong
        report.problems += [
            f"a subscriber {verdict}" for verdict in self._verdicts if verdict not in _IN_ORDER
        ]
        accounted = sum(
            n for what, n in report.outcomes.items() if what.startswith(("dead", "job"))
        )
        if accounted != report.messages:
            report.problems.append(f"{accounted} of {report.messages} messages are accounted for")
        return report

    def _lengths(self) -> list[int]:
        return [self._redis.xlen(stream) for stream in self._partition.all_jobs]


_IN_ORDER = ("whole", "misled")


def _expected(raw: bytes) -> Sent:
    try:
        return Sent(raw, None, decode_job(raw).id, may_fail=True)
    except RoseError as error:
        return Sent(raw, error.code)

"""A run: one batch, and processes that die while it runs."""

import json
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
import redis
from openai import OpenAI
from pydantic import BaseModel, ConfigDict

from rose.protocol import GROUP, Partition, Priority
from rose.protocol.keys import BulkKeys
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess
from rose_gateway.batches.run import Checkpoint
from tests.chaos.batch.chat import Chat
from tests.chaos.batch.check import Rule, Snapshot, check_files, check_snapshots, says_text
from tests.chaos.batch.lines import Endpoint, draw
from tests.chaos.batch.vectors import MODEL, Vectors, encoder_in
from tests.chaos.findings import Finding

QUEUE, CHAT_QUEUE = "batch-chaos", "batch-chaos-chat"
_GATEWAYS, _WORKERS = 2, 3
_LEASE_S = 2.0
_SLOTS = 8
#: About what a runner has between two kills.
_LIFE_S = 6.0
_POLL_S = 0.05
#: Of the chat without a batch.
_ALONE_S = 10.0
#: Between two tokens of it.
_CHAT_STEP_S = 0.02
_ENDED = ("completed", "failed", "expired", "cancelled")


class BatchOptions(BaseModel):
    model_config = ConfigDict(frozen=True)

    seed: int
    endpoint: Endpoint = "/v1/completions"
    model: bool = False
    """embeddings: by a small encoder; otherwise they are digests"""
    chat: bool = False
    """There is a chat beside it, on a queue and a worker of its own."""
    lines: int = 20_000
    runner_kills: int = 20
    worker_kills: int = 20
    patience_s: float = 180.0
    """this long without a line that ends: nothing will come any more"""


@dataclass
class Outcome:
    snapshots: list[Snapshot] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    runner_kills: int = 0
    worker_kills: int = 0
    epoch: int = 0
    output_lines: int = 0
    error_lines: int = 0
    chat: dict[str, Any] = field(default_factory=dict)
    """what it was like, without the batch and beside it"""
    wall_s: float = 0.0


class BatchRun:
    def __init__(
        self, options: BatchOptions, folder: Path, on_snapshot: Callable[[Snapshot], None]
    ) -> None:
        self.options = options
        self.outcome = Outcome()
        self._folder = folder
        self._on_snapshot = on_snapshot
        self._encoder = encoder_in(folder) if options.model else None
        served = MODEL if options.model else "null-encoder"
        model = "null" if options.endpoint == "/v1/completions" else served
        self._lines = [
            draw(options.seed, n, options.endpoint, model) for n in range(1, options.lines + 1)
        ]
        self._wrong = sum(line.kind != "good" for line in self._lines)
        self._draw = random.Random(f"{options.seed}:kills")

    def run(self) -> Outcome:
        """Raises: ServiceDied: the processes do not start."""
        began = time.monotonic()
        with ExitStack() as stack:
            broker = stack.enter_context(EmbeddedBroker(fake=False))
            self._redis = stack.enter_context(redis.Redis(port=broker.port, protocol=2))
            self._workers = [
                stack.enter_context(WorkerProcess(f"w{i}", broker.url, **self._work))
                for i in range(_WORKERS)
            ]
            self._gateways = [
                stack.enter_context(
                    GatewayProcess(
                        f"g{i}",
                        broker.url,
                        queues=f"{QUEUE},{CHAT_QUEUE}",
                        storage=str(self._folder / "storage"),
                        batch_lease_s=_LEASE_S,
                    )
                )
                for i in range(_GATEWAYS)
            ]
            for process in (*self._workers, *self._gateways):
                process.wait_ready()
            with self._chat(broker.url) if self.options.chat else nullcontext():
                self._batch_id = self._create()
                batch = self._watch()
            self._check(batch)
        self.outcome.wall_s = time.monotonic() - began
        return self.outcome

    @contextmanager
    def _chat(self, url: str) -> Iterator[None]:
        """Beside the batch, with its own queue and a worker that nobody kills."""
        with (
            WorkerProcess(
                "chat",
                url,
                queue=CHAT_QUEUE,
                engine="null",
                model="chat",
                min_step_s=_CHAT_STEP_S,
            ) as worker,
            Chat(self._gateways, "null:chat", self.options.seed) as chat,
        ):
            worker.wait_ready()
            chat.start()
            time.sleep(_ALONE_S)
            self.outcome.chat["alone"] = chat.take()
            yield
            self.outcome.chat["beside the batch"] = chat.take()
        for text in chat.wrong:
            self._finds(Rule.ANSWERS, f"the chat beside it says {text!r}")

    @property
    def _work(self) -> dict[str, Any]:
        """Slow enough that each runner has some time before it is killed."""
        if self.options.endpoint == "/v1/completions":
            engine: dict[str, Any] = {"engine": "null"}
            steps = sum(line.tokens for line in self._lines) / (_WORKERS * _SLOTS)
        elif self._encoder is None:
            engine = {"engine": "null", "task": "embed"}
            steps = sum(len(line.texts) for line in self._lines) / (_WORKERS * _SLOTS)
        else:
            engine = {"engine": "rose", "model": str(self._encoder), "torch_threads": 1}
            steps = len(self._lines) / (_WORKERS * _SLOTS)
        kills = max(self.options.runner_kills, self.options.worker_kills)
        return {
            **engine,
            "queue": QUEUE,
            "lease_s": _LEASE_S,
            "max_batch_size": _SLOTS,
            "min_step_s": kills * _LIFE_S / steps,
        }

    def _create(self) -> str:
        source = self._folder / "in.jsonl"
        source.write_text("".join(line.raw + "\n" for line in self._lines))
        with self._client(self._gateways[0]) as client, source.open("rb") as file:
            uploaded = client.files.create(file=file, purpose="batch")
            batch = client.batches.create(
                input_file_id=uploaded.id,
                endpoint=self.options.endpoint,
                completion_window="24h",
            )
        return batch.id

    def _watch(self) -> dict[str, Any]:
        """Take snapshots, and kill whenever it is time, until it has ended."""
        runner_kills = self._schedule(self.options.runner_kills)
        worker_kills = self._schedule(self.options.worker_kills)
        moved, before, killed_epoch = time.monotonic(), -1, 0
        while True:
            batch, snapshot = self._snapshot()
            if snapshot is None:
                self._revive()
                time.sleep(_POLL_S)
                continue
            self.outcome.snapshots.append(snapshot)
            self._on_snapshot(snapshot)
            ended = snapshot.completed + snapshot.failed
            if ended != before:
                moved, before = time.monotonic(), ended
            if snapshot.status in _ENDED:
                return batch
            if time.monotonic() - moved > self.options.patience_s:
                return batch
            if worker_kills and ended >= worker_kills[0]:
                worker_kills.pop(0)
                self._kill_worker()
            if runner_kills and ended >= runner_kills[0]:
                epoch, killed = self._kill_runner(killed_epoch)
                if killed:
                    runner_kills.pop(0)
                    killed_epoch = epoch
            self._revive()
            time.sleep(_POLL_S)

    def _schedule(self, kills: int) -> list[int]:
        """After so many lines that have ended; the first at the very beginning."""
        points = sorted(self._draw.randrange(self.options.lines) for _ in range(kills - 1))
        return [0, *points] if kills else []

    def _snapshot(self) -> tuple[dict[str, Any], Snapshot | None]:
        """None: no gateway answers just now."""
        stored = self._stored()
        for gateway in self._draw.sample(self._gateways, len(self._gateways)):
            try:
                answer = httpx.get(f"{gateway.url}/batches/{self._batch_id}", timeout=30)
            except httpx.TransportError:
                continue
            if answer.status_code != 200:
                self._finds(Rule.ANSWERS, f"{answer.status_code} {answer.text[:300]}")
                continue
            batch = answer.json()
            counts = batch["request_counts"]
            snapshot = Snapshot(
                status=batch["status"],
                **counts,
                stored_before=stored,
                ended_after=self._ended_jobs(),
            )
            return batch, snapshot
        return {}, None

    def _stored(self) -> int:
        """Lines whose answers are stored."""
        raw = self._redis.get(BulkKeys.checkpoint(self._batch_id))
        return Checkpoint.decode(raw).lines if raw else 0

    @property
    def _stream(self) -> str:
        return Partition(QUEUE).jobs(Priority.LOW)

    def _ended_jobs(self) -> int:
        """The entry of a job goes in the moment in which it ends."""
        if not self._redis.exists(self._stream):
            return 0
        info = self._redis.xinfo_stream(self._stream)
        return int(info["entries-added"]) - int(info["length"])

    def _kill_worker(self) -> None:
        worker = self._draw.choice(self._workers)
        worker.kill()
        self.outcome.worker_kills += 1
        worker.start()

    def _kill_runner(self, killed_epoch: int) -> tuple[int, bool]:
        """SIGKILL whoever runs the batch, if that is another runner than the last one."""
        runner, epoch = self._redis.hmget(BulkKeys.batch(self._batch_id), "runner", "epoch")
        if runner is None or int(epoch) == killed_epoch:
            return killed_epoch, False
        pid = int(runner.decode().split("-")[-2])
        for gateway in self._gateways:
            if gateway.pid == pid and gateway.running:
                gateway.kill()
                self.outcome.runner_kills += 1
                gateway.start()
                return int(epoch), True
        return killed_epoch, False

    def _revive(self) -> None:
        """Who has ended by himself is a finding."""
        for process in (*self._workers, *self._gateways):
            if not process.running:
                self._finds(Rule.ENDS, f"{process.kind} {process.name}: {process.log[-300:]}")
                process.start()

    def _check(self, batch: dict[str, Any]) -> None:
        outcome = self.outcome
        outcome.findings += check_snapshots(outcome.snapshots, len(self._lines), self._wrong)
        known = self._redis.hmget(BulkKeys.batch(self._batch_id), "epoch", "failures")
        outcome.epoch, failures = (int(value or 0) for value in known)
        if batch.get("status") != "completed":
            self._finds(Rule.ENDS, f"the batch is {batch}")
            return
        output = list(self._content(batch["output_file_id"]))
        errors = list(self._content(batch["error_file_id"]))
        outcome.output_lines, outcome.error_lines = len(output), len(errors)
        says = says_text
        if self.options.endpoint == "/v1/embeddings":
            says = Vectors(self._lines, self._encoder).says
        outcome.findings += check_files(self._lines, output, errors, says)
        counts = batch["request_counts"]
        if (counts["completed"], counts["failed"]) != (len(output), len(errors)):
            self._finds(Rule.COUNTS, f"{counts} for {len(output)} and {len(errors)} lines")
        info = self._redis.xinfo_stream(self._stream)
        asked = len(self._lines) - self._wrong
        if info["entries-added"] != asked:
            self._finds(Rule.DOUBLED, f"{info['entries-added']} jobs for {asked} lines")
        if info["length"] or self._redis.xpending(self._stream, GROUP)["pending"]:
            self._finds(Rule.ENDS, f"{info['length']} entries are left in the queue")
        if failures:
            self._finds(Rule.ENDS, f"runners have failed {failures} times by themselves")
        # On a busy machine one may be silent for a lease, and lose the batch without a kill.
        if outcome.epoch <= outcome.runner_kills:
            self._finds(
                Rule.ENDS, f"{outcome.epoch} runners for {outcome.runner_kills} that were killed"
            )

    def _content(self, file_id: str | None) -> Iterator[Any]:
        if file_id is None:
            return
        gateway = self._gateways[0]
        gateway.wait_ready()
        with self._client(gateway) as client:
            for line in client.files.content(file_id).iter_lines():
                yield json.loads(line)

    def _client(self, gateway: GatewayProcess) -> OpenAI:
        return OpenAI(base_url=gateway.url, api_key="none")

    def _finds(self, rule: Rule, detail: str) -> None:
        self.outcome.findings.append(Finding(rule, detail))

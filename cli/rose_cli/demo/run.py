"""`rose demo`, its course: start, stream, kill, take over, compare, and read over HTTP."""

import asyncio
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Annotated

import typer

from rose.errors import ResultTimeout
from rose_cli.commands import ENGINE, GATEWAY, missing, require
from rose_cli.console import Console
from rose_cli.demo.http_check import HttpCheck, curl_lines, text_of
from rose_cli.demo.prompts import REQUESTS, title
from rose_cli.demo.state import DemoState, StreamRecord, WorkerView
from rose_cli.demo.view import LiveView, PlainView, View, result_table
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import GatewayProcess, WorkerProcess, leave_at_signals, two_workers
from rose_cli.options import AsJson
from rose_cli.output import print_json
from rose_producer import AsyncClient, AsyncJob, Result

_SLOTS = 7
_LEASE_S = 2.0
#: The built-in model is tiny: at full speed nobody could read along.
_SLOW_STEP_S = 0.03
_POLL_S = 0.1
#: For a demo that hangs; a busy machine may take minutes.
_LIMIT_S = 600.0
#: A worker is killed when each of its streams has come at least so far. At full speed a stream
#: takes a fraction of a second: the worker is killed sooner, and looked for all the time.
_KILL_AFTER_TOKENS = 30
_KILL_AFTER_TOKENS_AT_FULL_SPEED = 3
#: Where all streams have ended before that, as on a machine that stalls, they begin again.
_MAX_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Report:
    records: list[StreamRecord]
    undisturbed: list[Result]
    killed: str
    tokens: int
    seconds: float
    http: HttpCheck | None
    """None where the gateway is not installed"""

    @property
    def is_right(self) -> bool:
        pairs = zip(self.records, self.undisturbed, strict=True)
        whole = all(record.is_right(result) for record, result in pairs)
        return self.moved > 0 and whole and (self.http is None or not self.http.differing)

    @property
    def moved(self) -> int:
        return sum(record.moved_at is not None for record in self.records)


def demo(
    full_speed: Annotated[
        bool, typer.Option(help="As fast as the tiny model goes, too fast to read.")
    ] = False,
    fake_redis: Annotated[
        bool, typer.Option(help="Use the embedded stand-in though there is a redis-server.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Stay up until Ctrl-C.")] = False,
    as_json: AsJson = False,
) -> None:
    """See it at work: streams, a worker killed in mid-sentence, and no token lost or doubled."""
    require(*ENGINE)
    leave_at_signals()
    console = Console(quiet=as_json)
    view = _view(console, as_json=as_json)
    with staged(full_speed=full_speed, fake_redis=fake_redis) as stage:
        report = play(stage, view)
        if as_json:
            print_json(_as_json(report))
        else:
            show(report, console, keep=keep)
        if keep:
            with suppress(KeyboardInterrupt):
                signal.pause()
    if not report.is_right:
        sys.exit(1)


@dataclass(frozen=True, slots=True)
class Stage:
    """Processes that have been started."""

    broker: EmbeddedBroker
    workers: list[WorkerProcess]
    gateway: GatewayProcess | None
    slow: bool


@contextmanager
def staged(*, full_speed: bool = False, fake_redis: bool = False) -> Iterator[Stage]:
    """Raises: BrokerUnavailable"""
    with (
        EmbeddedBroker(fake=True if fake_redis else None) as broker,
        two_workers(
            broker.url,
            lease_s=_LEASE_S,
            reclaim_interval_s=0.25,
            max_batch_size=_SLOTS,
            min_step_s=0 if full_speed else _SLOW_STEP_S,
        ) as workers,
        ExitStack() as stack,
    ):
        gateway = None
        if not missing(*GATEWAY):
            gateway = stack.enter_context(GatewayProcess("gateway", broker.url))
        yield Stage(broker, workers, gateway, slow=not full_speed)


def play(stage: Stage, view: View) -> Report:
    """Raises: RoseError: a part of it did not start."""
    with view:
        view.note(f"broker: {stage.broker.kind}; starting two workers with the built-in model ...")
        if stage.slow:
            view.note(
                f"slow motion: a step takes {_SLOW_STEP_S * 1000:.0f} ms, so that you can read it "
                "(--full-speed: off)"
            )
        for process in (*stage.workers, *filter(None, [stage.gateway])):
            process.wait_ready(view.note)
        return asyncio.run(_Demo(stage, view).run())


def _view(console: Console, *, as_json: bool) -> View:
    if as_json:
        return View()
    return LiveView(console) if console.is_terminal else PlainView(console)


def show(report: Report, console: Console, *, keep: bool = False) -> None:
    """The comparison, stream by stream, the verdict, and the gateway's URL."""
    console.print("every stream, as its subscriber saw it, compared with an undisturbed run:")
    console.print(result_table(report.records, report.undisturbed, console.width))
    verdict = "no token missing, none doubled, every text the same."
    if report.moved == 0:
        verdict = "all ended before a worker could be killed in mid-sentence: nothing is shown."
    elif not report.is_right:
        verdict = "THE COMPARISON FAILED."
    style = "bold green" if report.is_right else "bold red"
    for line in (
        f"{report.killed} was killed in mid-sentence; {report.moved} streams moved to another "
        "worker.",
        f"{len(report.records)} streams, {report.tokens:,} tokens in {report.seconds:.1f} s:",
        verdict,
    ):
        console.print(line, style=style)
    if report.http is not None:
        for line in curl_lines(report.http, keep=keep):
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _as_json(report: Report) -> dict[str, object]:
    return {
        "ok": report.is_right,
        "killed": report.killed,
        "seconds": round(report.seconds, 3),
        "tokens": report.tokens,
        "gateway": report.http.url if report.http is not None else None,
        "streams": [
            {
                "prompt": record.title,
                "text": record.text,
                "tokens": len(record.indexes),
                "workers": record.workers,
                "moved_at": record.moved_at,
                "missing": record.missing,
                "doubled": record.doubled,
                "same_as_undisturbed": record.equals(result),
                "same_over_http": report.http is None or record.number not in report.http.differing,
            }
            for record, result in zip(report.records, report.undisturbed, strict=True)
        ],
    }


class _Demo:
    def __init__(self, stage: Stage, view: View) -> None:
        self._url = stage.broker.url
        self._workers = stage.workers
        self._gateway = stage.gateway
        self._view = view
        self._slow = stage.slow
        self._killed: WorkerProcess | None = None
        self._state = DemoState(
            _no_records(), [WorkerView(worker.name, capacity=_SLOTS) for worker in stage.workers]
        )

    async def run(self) -> Report:
        async with AsyncClient(redis_url=self._url) as client:
            for _ in range(_MAX_ROUNDS):
                began = time.monotonic()
                self._state.started, self._state.ended = began, False
                self._state.records = _no_records()
                jobs = await client.submit_many(REQUESTS)
                await self._stream(jobs)
                if self._killed is not None:
                    break
            seconds = time.monotonic() - began
            self._view.note("once more, undisturbed, to compare ...")
            again = await client.submit_many(REQUESTS)
            undisturbed = [await job.result(_LIMIT_S) for job in again]
            http = await self._read_over_http(jobs)
        tokens = sum(len(record.indexes) for record in self._state.records)
        killed = self._killed.name if self._killed else "nobody"
        return Report(self._state.records, undisturbed, killed, tokens, seconds, http)

    async def _read_over_http(self, jobs: Sequence[AsyncJob]) -> HttpCheck | None:
        """Compares the text of each stream with the one that the gateway gives."""
        if self._gateway is None:
            return None
        self._view.note("and once more over HTTP, from the gateway ...")
        texts = [await asyncio.to_thread(text_of, self._gateway, job.id) for job in jobs]
        pairs = zip(self._state.records, texts, strict=True)
        differing = frozenset(record.number for record, text in pairs if record.text != text)
        return HttpCheck(self._gateway.url, differing)

    async def _stream(self, jobs: Sequence[AsyncJob]) -> None:
        """Follow every job to its end, and kill a worker on the way."""
        pairs = list(zip(jobs, self._state.records, strict=True))
        followers = [asyncio.create_task(_follow(job, record)) for job, record in pairs]
        watcher = asyncio.create_task(self._watch(pairs))
        try:
            async with asyncio.timeout(_LIMIT_S):
                await asyncio.gather(*followers)
        except TimeoutError:
            raise ResultTimeout(f"the streams have not ended after {_LIMIT_S:g} s") from None
        finally:
            watcher.cancel()
            await asyncio.gather(watcher, return_exceptions=True)
        self._state.ended = True
        self._view.refresh(self._state)

    async def _watch(self, pairs: Sequence[tuple[AsyncJob, StreamRecord]]) -> None:
        while True:
            running = [(job, record) for job, record in pairs if not record.ended]
            statuses = await asyncio.gather(*(job.status() for job, _ in running))
            for (_, record), status in zip(running, statuses, strict=True):
                record.seen_on(status.worker)
            if self._killed is None and (victim := self._ripe_victim()) is not None:
                await self._kill(victim, running)
            if self._slow or self._killed is not None:
                await asyncio.to_thread(self._read_occupancy)
                self._view.refresh(self._state)
                await asyncio.sleep(_POLL_S)
            else:
                await asyncio.sleep(0)  # where nothing runs any more, nothing above gives way

    def _read_occupancy(self) -> None:
        for worker, shown in zip(self._workers, self._state.workers, strict=True):
            if shown.alive:
                shown.batch = int(worker.metrics().get("rose_batch_sequences", 0))

    def _streams_of(self, worker: WorkerProcess) -> list[StreamRecord]:
        return [
            record
            for record in self._state.records
            if record.workers[-1:] == [worker.name] and not record.ended
        ]

    def _ripe_victim(self) -> WorkerProcess | None:
        """A worker in the middle of at least two sentences."""
        least = _KILL_AFTER_TOKENS if self._slow else _KILL_AFTER_TOKENS_AT_FULL_SPEED
        for worker in self._workers:
            streams = self._streams_of(worker)
            far = all(len(record.indexes) >= least for record in streams)
            if far and sum(record.in_mid_sentence for record in streams) >= 2:
                return worker
        return None

    async def _kill(
        self, victim: WorkerProcess, running: Sequence[tuple[AsyncJob, StreamRecord]]
    ) -> None:
        orphans = await kill_at_work(victim, running)
        if not orphans:
            return
        self._killed = victim
        for record in orphans:
            record.moved_at = len(record.indexes)
        for shown in self._state.workers:
            if shown.name == victim.name:
                shown.killed_at_s = self._state.elapsed_s
        example = next(record for record in orphans if record.in_mid_sentence)
        self._view.note(
            f"SIGKILL to {victim.name} with {len(orphans)} streams in hand; "
            f"stream {example.number} stops at {example.text[-16:]!r}"
        )


async def kill_at_work(
    worker: WorkerProcess, running: Sequence[tuple[AsyncJob, StreamRecord]]
) -> list[StreamRecord]:
    """The streams that the killed worker had in hand; none if it lives on, because it has none in
    mid-sentence.

    `running`: as far as their subscribers know. They may be behind: the ends of all may be on their
    way. So the worker is frozen while its jobs are looked at.
    """
    worker.signal(signal.SIGSTOP)
    in_hand = list[StreamRecord]()
    for job, record in running:
        status = await job.status()
        if status.worker == worker.name and status.status == "running":
            in_hand.append(record)
    if not any(record.in_mid_sentence for record in in_hand):
        worker.signal(signal.SIGCONT)
        return []
    worker.kill()
    return in_hand


def _no_records() -> list[StreamRecord]:
    return [StreamRecord(i, title(request)) for i, request in enumerate(REQUESTS, 1)]


async def _follow(job: AsyncJob, record: StreamRecord) -> None:
    async for event in job.stream():
        record.add(event)
    # A stream that ends soon after it moved may end between two looks of the watcher.
    record.seen_on((await job.status()).worker)
    if len(record.workers) == 1:  # its end was on its way to Redis when its worker was killed
        record.moved_at = None

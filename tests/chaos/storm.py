"""One process whose clients nothing spares: threads, forks, the garbage collector and signals.

    python -m tests.chaos.storm [--seconds N] [--seed N] [--json]

Threads abandon streams of a blocking client in reference cycles. The main thread calls it while a
signal handler raises at random moments. Children are forked in between; they close what they have
inherited and use the client. Beside them tasks of an asyncio client are cancelled. No token may be
wrong, no part may stand still for longer than a minute, and nothing may be left open at the end.
"""

import argparse
import asyncio
import contextlib
import faulthandler
import gc
import os
import random
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import redis

from rose.protocol import Event, TokenEvent
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_cli.output import print_json, print_text
from rose_producer import AsyncClient, Client
from tests.support.echo import echoed

#: What the parts do, each of which a storm sees.
PARTS = {"whole", "interrupted", "undisturbed", "forked", "abandoned", "cancelled", "in asyncio"}

_THREADS = 3
_TASKS = 4
_STILL_S = 60.0
"""Longer than any call may take, on a machine that is very busy"""
_PATIENCE_S = 30.0
_FORK_EVERY = 20
_CHILD_S = 60
_TOKENS = 12
_INTERRUPT_AFTER_S = (0.0005, 0.002, 0.005, 0.01, 0.03, 0.3)
#: Collections come often, so that a finalizer runs in the middle of any line.
_COLLECT_EVERY = 50


class Interrupted(BaseException):
    """What the signal handler raises, as KeyboardInterrupt."""


@dataclass
class Tally:
    """What the parts have done, and what they have found wrong."""

    done: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=dict)
    """when each part came to the end of a round"""

    def round(self, part: str, what: str) -> None:
        self.done[what] += 1
        self.moved[part] = time.monotonic()

    def check(self, part: str, prompt: list[int], got: list[int]) -> None:
        if tuple(got) != echoed(prompt, len(got)) or len(got) > _TOKENS:
            self.violations.append(f"{part}: {got} after {prompt}")

    def check_whole(self, part: str, prompt: list[int], got: list[int]) -> None:
        self.check(part, prompt, got)
        if len(got) != _TOKENS:
            self.violations.append(f"{part}: {len(got)} tokens of {_TOKENS} after {prompt}")

    def standing_still(self) -> list[str]:
        now = time.monotonic()
        return [part for part, moved in self.moved.items() if now - moved > _STILL_S]


def ids_of(events: list[Event]) -> list[int]:
    return [i for event in events if isinstance(event, TokenEvent) for i in event.token_ids]


class Storm:
    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.tally = Tally()
        self.client = Client(redis_url=url)
        self._seed = seed
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        parts: list[tuple[str, Callable[[str, random.Random], None]]] = [
            (f"thread {number}", self._abandon) for number in range(_THREADS)
        ]
        for name, part in [*parts, ("tasks", self._cancel_tasks)]:
            self.tally.moved[name] = time.monotonic()
            rng = random.Random(f"{self._seed} {name}")
            thread = threading.Thread(target=part, args=(name, rng), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(_STILL_S)
            if thread.is_alive():
                self.tally.violations.append(f"{thread.name} does not end")
        self._threads.clear()

    def run(self, seconds: float) -> None:
        """The main thread's part, as long as nothing is wrong; longer where a part has done nothing
        yet."""
        rng = random.Random(f"{self._seed} main")
        end = time.monotonic() + seconds
        before = signal.signal(signal.SIGALRM, _interrupt)
        try:
            number = 0
            while not self.tally.violations and (
                time.monotonic() < end or not self.tally.done.keys() >= PARTS
            ):
                number += 1
                self._interrupted_round(rng, number)
                if number % _FORK_EVERY == 0:
                    self._fork(rng)
                if still := self.tally.standing_still():
                    faulthandler.dump_traceback(all_threads=True)
                    self.tally.violations.append(f"stands still: {', '.join(still)}")
        finally:
            signal.signal(signal.SIGALRM, before)

    def _interrupted_round(self, rng: random.Random, number: int) -> None:
        try:
            signal.setitimer(signal.ITIMER_REAL, rng.choice(_INTERRUPT_AFTER_S) * rng.random())
            try:
                self._whole_round(rng, number)
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Interrupted:
            self.tally.round("main", "interrupted")
        else:
            self.tally.round("main", "whole")
        self._whole_round(rng, -number)  # it is usable at once
        self.tally.round("main", "undisturbed")

    def _whole_round(self, rng: random.Random, number: int) -> None:
        prompt = [abs(number), rng.randrange(1000)]
        job = self.client.submit(prompt, max_new_tokens=_TOKENS)
        self.tally.check_whole("main", prompt, ids_of(list(job.stream())))
        self.tally.check_whole("main", prompt, list(job.result(_PATIENCE_S).token_ids))
        if job.status().tokens != _TOKENS:
            self.tally.violations.append("main: a finished job lacks tokens")
        job.delete()

    def _fork(self, rng: random.Random) -> None:
        prompt = [rng.randrange(1000)]
        job = self.client.submit(prompt, max_new_tokens=_TOKENS)
        stream = job.stream()
        got = [next(stream)]
        pid = os.fork()
        if pid == 0:
            os._exit(self._in_child(stream, rng))
        _, status = os.waitpid(pid, 0)
        if status:
            self.tally.violations.append(f"a child ended with status {status}")
        got += stream
        self.tally.check_whole("parent", prompt, ids_of(got))
        self.tally.round("main", "forked")

    def _in_child(self, stream: Any, rng: random.Random) -> int:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_CHILD_S)
        tally = self.tally
        tally.violations.clear()
        try:
            if rng.random() < 0.5:
                stream.close()
            prompt = [rng.randrange(1000), 7]
            job = self.client.submit(prompt, max_new_tokens=_TOKENS)
            tally.check_whole("child", prompt, ids_of(list(job.stream())))
            self.client.close()
        except Exception as error:  # noqa: BLE001 - its parent sees the status
            tally.violations.append(f"child: {error!r}")
        for violation in tally.violations:
            print_text(violation, file=sys.stderr)
        return bool(tally.violations)

    def _abandon(self, name: str, rng: random.Random) -> None:
        while not self._over.is_set():
            prompt = [rng.randrange(1000), 3]
            try:
                job = self.client.submit(prompt, max_new_tokens=_TOKENS)
                stream = job.stream()
                got = [next(stream) for _ in range(rng.randrange(1, 4))]
                self.tally.check(name, prompt, ids_of(got))
                cycle: list[Any] = [stream]
                cycle.append(cycle)  # nobody closes it but the collector
            except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
                self.tally.violations.append(f"{name}: {error!r}")
                return
            del stream, cycle
            self.tally.round(name, "abandoned")

    def _cancel_tasks(self, name: str, rng: random.Random) -> None:
        try:
            asyncio.run(self._tasks(name, rng))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is a finding
            self.tally.violations.append(f"{name}: {error!r}")

    async def _tasks(self, name: str, rng: random.Random) -> None:
        async with AsyncClient(redis_url=self.url) as client:

            async def one() -> None:
                prompt = [rng.randrange(1000), 5, 5]
                job = await client.submit(prompt, max_new_tokens=_TOKENS)
                events = [event async for event in job.stream()]
                self.tally.check_whole(name, prompt, ids_of(events))

            while not self._over.is_set():
                tasks = [asyncio.create_task(one()) for _ in range(_TASKS)]
                await asyncio.sleep(rng.choice(_INTERRUPT_AFTER_S) * rng.random() * 4)
                for task in tasks[: rng.randrange(_TASKS)]:
                    task.cancel()
                for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                    if isinstance(outcome, asyncio.CancelledError):
                        self.tally.round(name, "cancelled")
                    elif outcome is not None:
                        raise outcome
                    else:
                        self.tally.round(name, "in asyncio")


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise Interrupted


@contextlib.contextmanager
def _frequent_collections() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(_COLLECT_EVERY)
    try:
        yield
    finally:
        gc.set_threshold(*before)


@dataclass(frozen=True)
class Open:
    """What this process and its Redis hold open."""

    descriptors: int
    threads: int
    connections: int

    def exceeds(self, other: Self) -> bool:
        """The worker may have closed a connection meanwhile."""
        return (
            self.descriptors > other.descriptors
            or self.threads > other.threads
            or self.connections > other.connections
        )

    @classmethod
    def now(cls, redis_client: redis.Redis) -> Self:
        gc.collect()
        redis_client.ping()  # its own connection counts from the first time on
        return cls(
            len(list(Path("/proc/self/fd").iterdir())),
            threading.active_count(),
            len(redis_client.client_list()),
        )


def _left_open(redis_client: redis.Redis, before: Open) -> str | None:
    """Redis learns of a closed connection a little later."""
    end = time.monotonic() + _STILL_S
    while (now := Open.now(redis_client)).exceeds(before):
        if time.monotonic() > end:
            return f"open before: {before}, afterwards: {now}"
        time.sleep(0.1)
    return None


def storm(seconds: float, seed: int) -> Tally:
    with ExitStack() as stack:
        broker = stack.enter_context(EmbeddedBroker(fake=False))
        worker = stack.enter_context(
            WorkerProcess("storm", broker.url, engine="null", max_batch_size=64, min_step_s=0.002)
        )
        worker.wait_ready()
        redis_client = stack.enter_context(redis.Redis.from_url(broker.url))
        before = Open.now(redis_client)
        with _frequent_collections(), Storm(broker.url, seed) as made:
            made.run(seconds)
        made.client.close()
        if left := _left_open(redis_client, before):
            made.tally.violations.append(left)
        return made.tally


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.storm", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1200.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    tally = storm(args.seconds, args.seed)
    if args.json:
        print_json({"seed": args.seed, **tally.done, "violations": tally.violations})
    else:
        counts = ", ".join(f"{count} {what}" for what, count in tally.done.items())
        print_text(f"seed {args.seed}: {counts}")
        for violation in tally.violations:
            print_text(f"VIOLATION {violation}", file=sys.stderr)
    return bool(tally.violations)


if __name__ == "__main__":
    sys.exit(main())

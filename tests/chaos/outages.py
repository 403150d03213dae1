"""How long subscribers wait after each fault, and what a frozen node costs the rest of a cluster.

    python -m tests.chaos.outages [--rounds 3] [--only worker-killed,...] [--frozen-s 60]

Workers have the settings that they have by default (a lease of 10 s), and echo the prompt slowly.
"""

import argparse
import asyncio
import secrets
import signal
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise

from pydantic import SecretStr

from rose.protocol import Partition
from rose_cli.local.broker import EmbeddedBroker
from rose_cli.local.services import WorkerProcess
from rose_producer import AsyncClient, AsyncJob, ProducerSettings
from tests.support.bench import until
from tests.support.cluster import LocalCluster
from tests.support.proxy import Proxy
from tests.support.troubles import frozen

_STEP_S = 0.05
_JOBS = 16
_PARTITIONS = 6
#: A stream that goes on for so long after the fault is over.
_SETTLE_S = 1.0


@dataclass
class Stream:
    """A job without an end, and when each of its events came."""

    job: AsyncJob
    partition: int
    came: list[float]
    tokens: int = 0

    async def follow(self) -> None:
        async for event in self.job.stream():
            self.came.append(time.monotonic())
            self.tokens = event.cursor

    def gap_s(self, since: float) -> float:
        around = [at for at in self.came if at > since - 1]
        return max(later - earlier for earlier, later in pairwise(around))


@dataclass
class Stage:
    server: EmbeddedBroker
    proxy: Proxy
    victim: WorkerProcess

    async def freeze(self, for_s: float) -> None:
        with frozen(self.server.port):
            await asyncio.sleep(for_s)

    async def restart(self, for_s: float) -> None:
        await asyncio.to_thread(self.server.stop)
        await asyncio.sleep(for_s)
        await asyncio.to_thread(self.server.start)


async def _kill(stage: Stage) -> None:
    stage.victim.kill()


async def _stop(stage: Stage) -> None:
    stage.victim.signal(signal.SIGSTOP)


async def _cut_off(stage: Stage) -> None:
    stage.proxy.silence()


async def _drain(stage: Stage) -> None:
    stage.victim.signal(signal.SIGTERM)


#: By name: the fault, and whether it concerns the jobs of one worker only.
FAULTS: dict[str, tuple[Callable[[Stage], Awaitable[None]], bool]] = {
    "worker-killed": (_kill, True),
    "worker-stopped": (_stop, True),
    "worker-cut-off": (_cut_off, True),
    "worker-drained": (_drain, True),
    "redis-restarted-2s": (lambda stage: stage.restart(2), False),
    "redis-silent-2s": (lambda stage: stage.freeze(2), False),
    "redis-silent-8s": (lambda stage: stage.freeze(8), False),
    "redis-silent-30s": (lambda stage: stage.freeze(30), False),
}


@asynccontextmanager
async def streaming(url: str, partitions: int, jobs: Sequence[int]) -> AsyncIterator[list[Stream]]:
    """Streams in mid-sentence, each in the partition that `jobs` names."""
    settings = ProducerSettings(redis_url=SecretStr(url), partitions=partitions)
    async with AsyncClient(settings) as client:
        streams: list[Stream] = []
        for index in jobs:
            job_id = f"{index}-{secrets.token_hex(8)}"
            job = await client.submit("abc", max_new_tokens=1_000_000, job_id=job_id)
            streams.append(Stream(job, index, []))
        tasks = [asyncio.create_task(stream.follow()) for stream in streams]
        await until(lambda: all(stream.tokens > 20 for stream in streams))
        yield streams
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def measure(name: str) -> tuple[list[float], int]:
    """The gaps that the subscribers concerned have seen, and how many jobs moved."""
    fault, of_one_worker = FAULTS[name]
    half = _JOBS // 2
    with ExitStack() as stack:
        server = stack.enter_context(EmbeddedBroker(fake=False))
        proxy = stack.enter_context(Proxy(server.port))
        victim = await serving(stack, "victim", proxy.url, max_batch_size=half)
        async with streaming(server.url, 1, [0] * half) as concerned:
            await serving(stack, "other", server.url, max_batch_size=_JOBS)
            async with streaming(server.url, 1, [0] * half) as others:
                streams = [*concerned, *others]
                began = time.monotonic()
                await fault(Stage(server, proxy, victim))
                for stream in concerned if of_one_worker else ():
                    while (await stream.job.status()).worker == "victim":
                        await asyncio.sleep(_STEP_S)
                over = time.monotonic() + _SETTLE_S
                seen = concerned if of_one_worker else streams
                await until(lambda: all(stream.came[-1] > over for stream in seen))
                moved = [(await stream.job.status()).epoch > 1 for stream in streams]
                proxy.speak(lost=True)
                return [stream.gap_s(began) for stream in seen], sum(moved)


async def serving(stack: ExitStack, name: str, url: str, **more: float) -> WorkerProcess:
    """It is ready, and slow if not told otherwise."""
    given = {"engine": "null", "min_step_s": _STEP_S, "grace_s": 0, **more}
    worker = stack.enter_context(WorkerProcess(name, url, **given))  # type: ignore[arg-type]
    await asyncio.to_thread(worker.wait_ready)
    return worker


async def measure_frozen_node(frozen_s: float) -> None:
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalCluster())
        for name in ("one", "two"):
            await serving(stack, name, cluster.url, partitions=_PARTITIONS)
        homes = [cluster.node_of(Partition("default", index)) for index in range(_PARTITIONS)]
        node = homes[0]
        jobs = [index for index in range(_PARTITIONS) for _ in range(4)]
        async with streaming(cluster.url, _PARTITIONS, jobs) as streams:
            others = [stream for stream in streams if homes[stream.partition] is not node]

            async def tokens_per_s(for_s: float) -> float:
                before, began = sum(stream.tokens for stream in others), time.monotonic()
                await asyncio.sleep(for_s)
                return (sum(s.tokens for s in others) - before) / (time.monotonic() - began)

            before = await tokens_per_s(20)
            with cluster.frozen(node):
                beside = await tokens_per_s(frozen_s)
            longest_s = max(stream.gap_s(0) for stream in others)
            moved = sum([(await stream.job.status()).epoch > 1 for stream in others])
            print(
                f"node frozen for {frozen_s:g} s: {len(others)} of {len(streams)} jobs are on the "
                f"others: {before:.1f} tokens/s before, {beside:.1f} meanwhile "
                f"({beside / before:.3f}), longest gap {longest_s:.2f} s, {moved} moved",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default=",".join([*FAULTS, "node-frozen"]))
    parser.add_argument("--frozen-s", type=float, default=60.0)
    options = parser.parse_args()
    print("| fault | gaps | median s | longest s | jobs moved of all |")
    print("| --- | --- | --- | --- | --- |")
    for name in options.only.split(","):
        if name == "node-frozen":
            asyncio.run(measure_frozen_node(options.frozen_s))
            continue
        gaps: list[float] = []
        moved = 0
        for _ in range(options.rounds):
            some, went = asyncio.run(measure(name))
            gaps, moved = gaps + some, moved + went
        middle, longest = statistics.median(gaps), max(gaps)
        every = options.rounds * _JOBS
        figures = f"{len(gaps)} | {middle:.1f} | {longest:.1f} | {moved} of {every}"
        print(f"| {name} | {figures} |", flush=True)


if __name__ == "__main__":
    main()

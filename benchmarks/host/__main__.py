"""What the host adds to a step of a GPU, with a device that only sleeps in the place of one.

    python -m benchmarks.host [--only process,redis,single] [--rounds N] [--quick] [--json FILE]

The step times are those of an H200: 8 ms for 256 requests of Qwen3-0.6B, 1.2 ms for one. All else
is real: scheduler, detokeniser, worker, a durable Redis, and a client whose subscribers share one
process.
"""

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before torch, whose threads would wait for each other

import argparse
import asyncio
import gc
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from benchmarks.board import Board, at_least, at_most
from benchmarks.host.device import SimulatedDevice, SimulatedEngine
from benchmarks.queue.ours import open_client, start_worker
from benchmarks.queue.stage import fresh_redis
from benchmarks.report import environment
from benchmarks.runner import AsyncCase, Case, Runner, exit_on_sigterm, options
from benchmarks.usage import CpuMeter
from benchmarks.workload import random_prompt
from rose_producer import AsyncClient, AsyncJob, Request, TokenEvent
from roseinfer import OnlineScheduler, SamplingParams
from roseinfer.gpu.options import GpuOptions

BUSY = "share of time in which the device works"
CPU = "processor time, us a token"
RATE = "tokens/s"
ENGINE, SERVICE = "the engine in a process", "the service"
_CASES = ("process", "redis", "single")
_MAX_STEP_TOKENS = 8192
_PROMPT_TOKENS = 64
_TIMEOUT_S = 300
_MIN_BUSY = {"process": 0.97, "redis": 0.95, "single": 0.95}
_MAX_CPU_US = {"worker": 15, "Redis": 5, "client": 15}


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests at once, each with so many tokens, at so many seconds a step."""

    requests: int
    tokens: int
    step_s: float

    @property
    def title(self) -> str:
        return f"{self.requests} streams, {self.step_s * 1e3:g} ms a step"

    @property
    def device_s(self) -> float:
        """What the device takes from the first token of each to the last."""
        return (self.tokens - 1) * self.step_s

    @property
    def settings(self) -> dict[str, int]:
        return {"max_batch_size": self.requests, "kv_cache_tokens": self.cache_tokens}

    @property
    def cache_tokens(self) -> int:
        return self.requests * (_PROMPT_TOKENS + self.tokens + 32)


_MANY, _ONE = Load(256, 500, 0.008), Load(1, 2000, 0.0012)
_SCALES = {"full": 1, "quick": 4, "tiny": 25}
"""by how much shorter the answers are"""


@dataclass
class InProcess(Case):
    """The engine alone."""

    load: Load
    title: str = field(init=False)
    _engine: SimulatedEngine = field(init=False)

    def __post_init__(self) -> None:
        self.title = f"{self.load.title}, in a process"
        self._device = SimulatedDevice(self.load.step_s)
        self._engine = SimulatedEngine(
            simulated=self._device,
            kv_cache_tokens=self.load.cache_tokens,
            gpu=GpuOptions(max_batch_size=self.load.requests),
        )

    def round(self, board: Board, turn: int) -> None:
        gc.collect()
        gc.freeze()  # as a worker does
        scheduler = OnlineScheduler(
            self._engine, self.load.requests, _MAX_STEP_TOKENS, keep_finished=False, overlap=True
        )
        params = SamplingParams(max_new_tokens=self.load.tokens, ignore_eos=True)
        for prompt in _prompts(self.load, str(turn)):
            scheduler.add_request(prompt, params=params)
        busy_s, cpu, began = self._device.busy_s, time.process_time(), time.perf_counter()
        tokens = 0
        while scheduler.has_unfinished():
            tokens += sum(len(output.token_ids) for output in scheduler.step())
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        gc.unfreeze()
        busy = (self._device.busy_s - busy_s) / seconds
        board.add(ENGINE, {BUSY: busy, RATE: tokens / seconds, CPU: cpu / tokens * 1e6})

    def judge(self, board: Board) -> None:
        board.check_figure((BUSY, ENGINE), at_least(_MIN_BUSY["process"]))


@dataclass
class ThroughRedis(AsyncCase):
    """A worker, Redis, and a subscriber for each request."""

    load: Load
    min_busy: float
    max_cpu_us: Mapping[str, float]
    title: str = field(init=False)

    def __post_init__(self) -> None:
        self.title = f"{self.load.title}, through Redis"

    async def measure(self, board: Board, turn: int) -> None:
        load = self.load
        worker_of = {
            "program": ("benchmarks.host.worker", f"{load.step_s * 1e3:g}"),
            "engine": "rose",
            "max_step_tokens": _MAX_STEP_TOKENS,
            **load.settings,
        }
        with fresh_redis() as broker, start_worker(broker.url, **worker_of) as worker:
            worker.wait_ready()
            async with open_client(broker.url) as client:
                await self._run(client, replace(load, tokens=min(20, load.tokens)), f"warm/{turn}")
                meter = CpuMeter(worker=worker.pid, redis=broker.pid)
                times = await self._run(client, load, str(turn))
                used = meter.used_s()
        tokens, seconds = load.requests * load.tokens, max(times) - min(times)
        board.add(SERVICE, {BUSY: load.device_s / seconds, RATE: tokens / seconds})
        for name, cpu in used.items():
            board.add(name, {CPU: cpu / tokens * 1e6})

    def judge(self, board: Board) -> None:
        board.check_figure((BUSY, SERVICE), at_least(self.min_busy))
        for name, most in self.max_cpu_us.items():
            board.check_figure((CPU, name), at_most(most))

    async def _run(self, client: AsyncClient, load: Load, name: str) -> list[float]:
        """When events came."""
        sampling = {"max_new_tokens": load.tokens, "ignore_eos": True}
        jobs = await client.submit_many(
            [Request(prompt, sampling=sampling) for prompt in _prompts(load, name)]
        )
        return [one for times in await asyncio.gather(*map(_times, jobs)) for one in times]


async def _times(job: AsyncJob) -> list[float]:
    return [
        time.perf_counter()
        async for event in job.stream(timeout_s=_TIMEOUT_S)
        if isinstance(event, TokenEvent)
    ]


def _prompts(load: Load, name: str) -> list[list[int]]:
    return [random_prompt(_PROMPT_TOKENS, 1024, f"{name}/{n}") for n in range(load.requests)]


def build(name: str, scale: str) -> Case:
    load = _ONE if name == "single" else _MANY
    load = replace(load, tokens=load.tokens // _SCALES[scale])
    if scale == "tiny":
        load = replace(load, requests=min(load.requests, 8))
    if name == "process":
        return InProcess(load)
    return ThroughRedis(load, _MIN_BUSY[name], _MAX_CPU_US if name == "redis" else {})


def main() -> None:
    args = _arguments()
    facts = environment("benchmarks.host", ("torch", "redis", "hiredis"), {})
    tiny = args.scale == "tiny"
    runner = Runner(facts, args.rounds or 3, args.json, warm_up=False, judge=not tiny)
    for name in args.only:
        runner.measure(name, build(name, args.scale))


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.host", __doc__, _CASES)
    add = parser.add_argument
    add("--scale", choices=_SCALES, default="full", help="tiny proves that it runs, no more")
    add("--quick", action="store_const", dest="scale", const="quick", help="as --scale quick")
    return parser.parse_args()


if __name__ == "__main__":
    exit_on_sigterm()
    main()

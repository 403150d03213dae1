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
import os
import time
from dataclasses import dataclass, field, replace

from benchmarks.board import Board, at_least, at_most
from benchmarks.host.device import SimulatedDevice, SimulatedEngine
from benchmarks.queue.ours import open_client, start_worker
from benchmarks.queue.stage import fresh_redis
from benchmarks.report import environment
from benchmarks.runner import AsyncCase, Case, Runner, exit_on_sigterm, options
from benchmarks.usage import cpu_s
from benchmarks.workload import random_prompt
from rose_producer import AsyncClient, Request, TokenEvent
from roseinfer import OnlineScheduler, SamplingParams

BUSY = "share of time in which the device works"
CPU = "processor time, us a token"
RATE = "tokens/s"
_MAX_STEP_TOKENS = 8192
_PROMPT = 64
_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Load:
    """So many requests at once, each with so many tokens, at so many seconds a step."""

    requests: int
    tokens: int
    step_s: float

    @property
    def device_s(self) -> float:
        """What the device takes for all of it, prompts apart."""
        return self.tokens * self.step_s

    def settings(self) -> dict[str, int]:
        cache_tokens = self.requests * (_PROMPT + self.tokens + 32)
        return {"max_batch_size": self.requests, "kv_cache_tokens": cache_tokens}


_MANY, _ONE = Load(256, 500, 0.008), Load(1, 2000, 0.0012)


@dataclass
class InProcess(Case):
    """The engine alone."""

    load: Load
    title: str
    min_busy: float | None
    _engine: SimulatedEngine = field(init=False)

    def __post_init__(self) -> None:
        self._device = SimulatedDevice(self.load.step_s)
        self._engine = SimulatedEngine(simulated=self._device, **self.load.settings())
        gc.collect()
        gc.freeze()  # as a worker does

    def round(self, board: Board, turn: int) -> None:
        load = self.load
        scheduler = OnlineScheduler(
            self._engine, load.requests, _MAX_STEP_TOKENS, keep_finished=False, overlap=True
        )
        params = SamplingParams(max_new_tokens=load.tokens, ignore_eos=True)
        for number in range(load.requests):
            prompt = random_prompt(_PROMPT, self._engine.vocab_size, f"{turn}/{number}")
            scheduler.add_request(prompt, params=params)
        busy_before, cpu_before, began = (
            self._device.busy_s,
            time.process_time(),
            time.perf_counter(),
        )
        tokens = 0
        while scheduler.has_unfinished():
            tokens += sum(len(output.token_ids) for output in scheduler.step())
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu_before
        board.add(
            "the engine in a process",
            {
                BUSY: (self._device.busy_s - busy_before) / seconds,
                CPU: cpu / tokens * 1e6,
                RATE: tokens / seconds,
            },
        )

    def judge(self, board: Board) -> None:
        if self.min_busy is not None:
            board.check_figure((BUSY, "the engine in a process"), at_least(self.min_busy))


@dataclass
class ThroughRedis(AsyncCase):
    """A worker, Redis, and a subscriber for each request."""

    load: Load
    title: str
    min_busy: float
    most_us: dict[str, float]

    async def measure(self, board: Board, turn: int) -> None:
        load = self.load
        with (
            fresh_redis() as broker,
            start_worker(
                broker.url,
                program=("benchmarks.host.worker", f"{load.step_s * 1e3:g}"),
                engine="rose",
                max_step_tokens=_MAX_STEP_TOKENS,
                **load.settings(),
            ) as worker,
        ):
            worker.wait_ready()
            async with open_client(broker.url) as client:
                await self._run(client, f"warm/{turn}", 20)
                pids = {"worker": worker.pid, "Redis": broker.pid}
                before = {name: cpu_s(pid) for name, pid in pids.items() if pid is not None}
                client_before = time.process_time()
                times = await self._run(client, f"{turn}", load.tokens)
                used = {"client": time.process_time() - client_before}
                used |= {
                    name: cpu_s(pid) - before[name] for name, pid in pids.items() if pid is not None
                }
        tokens, seconds = load.requests * load.tokens, max(times) - min(times)
        board.add("the service", {BUSY: load.device_s / seconds, RATE: tokens / seconds})
        for name, cpu in used.items():
            board.add(name, {CPU: cpu / tokens * 1e6})

    def judge(self, board: Board) -> None:
        board.check_figure((BUSY, "the service"), at_least(self.min_busy))
        for name, most in self.most_us.items():
            board.check_figure((CPU, name), at_most(most))

    async def _run(self, client: AsyncClient, name: str, tokens: int) -> list[float]:
        """When tokens came."""
        sampling = {"max_new_tokens": tokens, "ignore_eos": True}
        jobs = await client.submit_many(
            [
                Request(
                    random_prompt(_PROMPT, 1024, f"{name}/{number}"), sampling=sampling
                )
                for number in range(self.load.requests)
            ]
        )
        times: list[float] = []

        async def read(number: int) -> None:
            async for event in jobs[number].stream(timeout_s=_TIMEOUT_S):
                if isinstance(event, TokenEvent):
                    times.append(time.perf_counter())

        await asyncio.gather(*map(read, range(len(jobs))))
        return times


def main() -> None:
    args = _arguments()
    factor = {"full": 1, "quick": 4, "tiny": 25}[args.scale]
    many, one = (replace(load, tokens=load.tokens // factor) for load in (_MANY, _ONE))
    if args.scale == "tiny":
        many = replace(many, requests=8)
    titles = {
        load: f"{load.requests} streams, {load.step_s * 1e3:g} ms a step" for load in (many, one)
    }
    runner = Runner(
        environment("benchmarks.host", ("torch", "redis", "hiredis"), {}),
        args.rounds or 3,
        args.json,
        warm_up=False,
        judge=args.scale != "tiny",
    )
    cases = {
        "process": lambda: InProcess(many, f"{titles[many]}, in a process", 0.97),
        "redis": lambda: ThroughRedis(
            many, f"{titles[many]}, through Redis", 0.95, {"worker": 15, "Redis": 5, "client": 15}
        ),
        "single": lambda: ThroughRedis(one, f"{titles[one]}, through Redis", 0.95, {}),
    }
    for name in args.only:
        runner.measure(name, cases[name]())


def _arguments() -> argparse.Namespace:
    parser = options("benchmarks.host", __doc__, ("process", "redis", "single"))
    add = parser.add_argument
    add(
        "--scale",
        choices=("full", "quick", "tiny"),
        default="full",
        help="tiny proves that it runs",
    )
    add("--quick", action="store_const", dest="scale", const="quick", help="as --scale quick")
    return parser.parse_args()


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    exit_on_sigterm()
    main()

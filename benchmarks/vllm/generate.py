"""The same requests by `LLM.generate`, and through the queue to a worker with the engine vllm."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Protocol

from benchmarks.board import Board, at_least
from benchmarks.engine.cases.service import through_redis
from benchmarks.engine.contenders.vllm import Vllm
from benchmarks.runner import Case, in_turn
from benchmarks.servers.contenders import Ours
from benchmarks.workload import Workload
from rose_producer import AsyncClient

MIN_RATIO = 0.95
#: Parameters of all requests, by what the case calls them. No seed: vLLM refuses one on a CPU.
KINDS: Mapping[str, Mapping[str, float]] = {
    "greedy": {},
    "sampled": {"temperature": 0.8, "top_p": 0.9},
}
PLAIN = "LLM.generate"
SAMPLING = "LLM.generate, our logits processor"
QUEUE = "through the queue"
_WARM_UP = (8, 8)  # requests, and tokens of each


class Contender(Protocol):
    name: str

    def rate(self, work: Workload, sampling: Mapping[str, float]) -> float:
        """Generated tokens per second."""


class Generate:
    """vLLM by itself, in a process of its own that is stopped between its turns."""

    def __init__(self, name: str, vllm: Vllm) -> None:
        self.name, self._vllm = name, vllm

    def rate(self, work: Workload, sampling: Mapping[str, float]) -> float:
        run = self._vllm.sample(work, sampling)
        run.check(work, self.name)
        return run.rate


class ThroughQueue:
    """Producer, redis-server, worker, and a streaming subscriber for every request."""

    name = QUEUE

    def __init__(self, ours: Ours) -> None:
        self._ours = ours

    def rate(self, work: Workload, sampling: Mapping[str, float]) -> float:
        self._ours.thaw()
        try:
            return asyncio.run(self._measure(work, sampling))
        finally:
            self._ours.freeze()

    async def _measure(self, work: Workload, sampling: Mapping[str, float]) -> float:
        async with AsyncClient(redis_url=self._ours.redis_url) as client:
            return await through_redis(client, work, sampling)


class Generation(Case):
    def __init__(
        self, contenders: Sequence[Contender], vocabulary: int, requests: int, max_tokens: int
    ) -> None:
        self.title = f"{requests} requests at once"
        self._contenders, self._vocabulary = contenders, vocabulary
        self._requests, self._max_tokens = requests, max_tokens

    def round(self, board: Board, turn: int) -> None:
        for number, (kind, sampling) in enumerate(KINDS.items()):
            seed = turn * len(KINDS) + number  # prompts that no prefix cache has
            work = Workload.draw(self._requests, self._vocabulary, seed, self._max_tokens)
            work = work.first(*_WARM_UP) if turn < 0 else work
            for contender in in_turn(self._contenders, turn):
                board.add(contender.name, {_metric(kind): contender.rate(work, sampling)})

    def judge(self, board: Board) -> None:
        for kind in KINDS:
            rows = (_metric(kind), QUEUE), (_metric(kind), PLAIN)
            board.check_ratio(f"{kind}: {QUEUE} to {PLAIN}", *rows, at_least(MIN_RATIO))


def _metric(kind: str) -> str:
    return f"{kind}, tokens/s"

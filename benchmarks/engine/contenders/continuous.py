"""transformers' own continuous batching. On CPU it takes so long that a round has a time limit."""

from __future__ import annotations

import time
from typing import Any

from transformers import ContinuousBatchingConfig, GenerationConfig

from benchmarks.engine.contenders import Run
from benchmarks.workload import Workload

_PAGE = 256
_STOP_S = 60


class Continuous:
    name = "transformers continuous batching"

    def __init__(
        self, model: Any, max_rounds: int | None, max_step_tokens: int, limit_s: float
    ) -> None:
        self._model = model
        self.max_rounds = max_rounds
        self._max_step_tokens = max_step_tokens
        self._limit_s = limit_s

    def run(self, work: Workload) -> Run:
        """Its set-up, which allocates a cache, does not count."""
        manager = self._model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                page_size=_PAGE,
                num_blocks=self._blocks(work),
                max_batch_tokens=self._max_step_tokens,
                max_requests_per_batch=len(work.prompts),
            ),
        )
        manager.warmup()
        manager.start()
        try:
            return self._collect(manager, work)
        finally:
            manager.stop(block=True, timeout=_STOP_S, hard_stop=True)
            manager.destroy()

    def _collect(self, manager: Any, work: Workload) -> Run:
        outputs: dict[str, list[int]] = {}
        unfinished = set()
        began = time.perf_counter()
        for prompt, count in zip(work.prompts, work.new_tokens, strict=True):
            name = manager.add_request(prompt, max_new_tokens=count, streaming=True)
            outputs[name] = []
            unfinished.add(name)
        while unfinished and time.perf_counter() - began < self._limit_s:
            result = manager.get_result(timeout=1)
            if result is None and not manager.is_running():
                raise RuntimeError("transformers' continuous batching ended unexpectedly")
            if result is None:
                continue
            if result.error is not None:
                raise RuntimeError(f"transformers' continuous batching failed: {result.error}")
            outputs[result.request_id] = list(result.generated_tokens)
            if result.is_finished():
                unfinished.discard(result.request_id)
        seconds = time.perf_counter() - began
        return Run(seconds, list(outputs.values()), complete=not unfinished)

    def _blocks(self, work: Workload) -> int:
        """As many pages as all requests need, and one spare for each."""
        sizes = [len(p) + n for p, n in zip(work.prompts, work.new_tokens, strict=True)]
        return sum(-(-size // _PAGE) + 1 for size in sizes)

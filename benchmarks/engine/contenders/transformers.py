"""transformers' own ways to run many requests, and one that users write over it."""

import math
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import ContinuousBatchingConfig, DynamicCache, GenerationConfig

from benchmarks.engine.contenders import Contender, Run
from benchmarks.workload import Workload

_PAGE = 256  # tokens, transformers' own default
_STOP_S = 60


@dataclass(frozen=True)
class Static(Contender):
    """`generate` over one static, left-padded batch.

    It runs until its longest answer is done; only tokens that were asked for count.
    """

    model: Any
    at_once: int | None = None
    """the most requests that there is memory for; else all of them"""
    limit_s: float = math.inf
    """of a round"""
    name = "transformers generate, static batch"

    def run(self, work: Workload) -> Run:
        count, seconds, outputs = len(work.prompts), 0.0, list[list[int]]()
        size = self.at_once or count
        for start in range(0, count, size):
            if seconds >= self.limit_s:
                break
            part = slice(start, start + size)
            batch = Workload(work.prompts[part], work.new_tokens[part])
            run = self._run(batch, self.limit_s - seconds)
            seconds += run.seconds
            outputs += map(list, run.outputs)
        outputs += [[]] * (count - len(outputs))
        return Run(seconds, outputs, complete=[*map(len, outputs)] == work.new_tokens)

    @torch.inference_mode()
    def _run(self, work: Workload, limit_s: float) -> Run:
        longest = max(len(prompt) for prompt in work.prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in work.prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work.prompts])
        ids, mask = ids.to(self.model.device), mask.to(self.model.device)
        most = max(work.new_tokens)
        began = time.perf_counter()
        made = self.model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=most,
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
            max_time=limit_s,
        )
        seconds = time.perf_counter() - began
        rows = made[:, longest:].tolist()
        return Run(seconds, [row[:n] for row, n in zip(rows, work.new_tokens, strict=True)])


@dataclass(frozen=True)
class Continuous(Contender):
    """Its own continuous batching. On CPU it takes so long that a round has a time limit."""

    model: Any
    max_step_tokens: int
    limit_s: float
    name = "transformers continuous batching"
    max_rounds = 1

    def run(self, work: Workload) -> Run:
        """Its set-up, which allocates a cache, does not count."""
        manager = self.model.init_continuous_batching(
            generation_config=GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0),
            continuous_batching_config=ContinuousBatchingConfig(
                num_blocks=self._blocks(work),
                max_batch_tokens=self.max_step_tokens,
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
        while unfinished and time.perf_counter() - began < self.limit_s:
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


@dataclass(slots=True)
class _Request:
    prompt: list[int]
    wanted: int
    output: list[int] = field(default_factory=list)
    #: Keys and values [H, L, D] of each layer.
    cache: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    @property
    def length(self) -> int:
        """Tokens in the cache."""
        return len(self.prompt) + len(self.output) - 1


@dataclass(frozen=True)
class Repadding(Contender):
    """Continuous batching as one writes it at first, over `past_key_values`.

    Each request keeps its own contiguous keys and values. A step pads those of every running
    request to the longest, layer by layer, copies them into one batch, calls the model with them,
    and appends the new key and value to each request's. Prompts are computed one at a time, when a
    slot is free.
    """

    model: Any
    max_batch_size: int
    name = "past_key_values, re-padded each step"
    max_rounds = 1  # far behind, and slow

    @torch.inference_mode()
    def run(self, work: Workload) -> Run:
        requests = [_Request(p, n) for p, n in zip(work.prompts, work.new_tokens, strict=True)]
        waiting, running = deque(requests), list[_Request]()
        began = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < self.max_batch_size:
                running.append(self._prefill(waiting.popleft()))
            self._decode(running)
            running = [r for r in running if len(r.output) < r.wanted]
        seconds = time.perf_counter() - began
        return Run(seconds, [request.output for request in requests])

    def _prefill(self, request: _Request) -> _Request:
        cache = DynamicCache()
        ids = torch.tensor([request.prompt])
        logits = self.model(ids, past_key_values=cache, logits_to_keep=1).logits
        request.output.append(int(logits[0, -1].argmax()))
        request.cache = [(layer.keys[0], layer.values[0]) for layer in cache.layers]
        return request

    def _decode(self, running: list[_Request]) -> None:
        """One more token for each that lacks one."""
        batch = [request for request in running if len(request.output) < request.wanted]
        if not batch:
            return
        lengths = [request.length for request in batch]
        cache = _padded(batch, max(lengths))
        logits = self.model(
            torch.tensor([[request.output[-1]] for request in batch]),
            attention_mask=_mask(lengths),
            position_ids=torch.tensor([[length] for length in lengths]),
            past_key_values=cache,
            logits_to_keep=1,
        ).logits
        for row, request in enumerate(batch):
            request.cache = [
                (
                    torch.cat([keys, layer.keys[row, :, -1:]], dim=1),
                    torch.cat([values, layer.values[row, :, -1:]], dim=1),
                )
                for (keys, values), layer in zip(request.cache, cache.layers, strict=True)
            ]
        for request, token in zip(batch, logits[:, -1].argmax(-1).tolist(), strict=True):
            request.output.append(token)


def _padded(batch: list[_Request], longest: int) -> DynamicCache:
    """The caches of all, padded on the left, as one."""
    cache = DynamicCache()
    for layer in range(len(batch[0].cache)):
        keys, values = (
            torch.stack([_left_pad(request.cache[layer][part], longest) for request in batch])
            for part in (0, 1)
        )
        cache.update(keys, values, layer)
    return cache


def _left_pad(numbers: Tensor, longest: int) -> Tensor:
    """[H, L, D] to [H, longest, D]."""
    return torch.nn.functional.pad(numbers, (0, 0, longest - numbers.shape[1], 0))


def _mask(lengths: list[int]) -> Tensor:
    """[B, longest + 1]: what each new token may attend to, itself included."""
    longest = max(lengths)
    return torch.tensor([[0] * (longest - n) + [1] * (n + 1) for n in lengths])

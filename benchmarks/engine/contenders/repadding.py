"""Continuous batching as one writes it at first, over transformers' `past_key_values`.

Each request keeps its own contiguous keys and values. A step pads those of every running request
to the longest, layer by layer, copies them into one batch, calls the model with them, and appends
the new key and value to each request's. Prompts are computed one at a time, when a slot is free.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from benchmarks.engine.contenders import Run
from benchmarks.workload import Workload


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


class Repadding:
    name = "past_key_values, re-padded each step"
    max_rounds = 1  # far behind, and slow

    def __init__(self, model: Any, max_batch_size: int) -> None:
        self._model = model
        self._max_batch_size = max_batch_size

    @torch.inference_mode()
    def run(self, work: Workload) -> Run:
        requests = [_Request(p, n) for p, n in zip(work.prompts, work.new_tokens, strict=True)]
        waiting, running = deque(requests), list[_Request]()
        began = time.perf_counter()
        while waiting or running:
            while waiting and len(running) < self._max_batch_size:
                running.append(self._prefill(waiting.popleft()))
            self._decode(running)
            running = [r for r in running if len(r.output) < r.wanted]
        seconds = time.perf_counter() - began
        return Run(seconds, [request.output for request in requests])

    def _prefill(self, request: _Request) -> _Request:
        cache = DynamicCache()
        ids = torch.tensor([request.prompt])
        logits = self._model(ids, past_key_values=cache, logits_to_keep=1).logits
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
        logits = self._model(
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

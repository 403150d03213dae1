"""transformers' `generate` over one static, left-padded batch.

It runs until its longest answer is done; only tokens that were asked for count.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks.engine.contenders import Run
from benchmarks.workload import Workload


class Static:
    name = "transformers generate, static batch"
    max_rounds = None

    def __init__(self, model: Any, at_once: int | None = None) -> None:
        """`at_once`: the most requests that there is memory for; else all of them."""
        self._model, self._at_once = model, at_once

    def run(self, work: Workload) -> Run:
        count = len(work.prompts)
        size = self._at_once or count
        runs = [
            self._run(Workload(work.prompts[i : i + size], work.new_tokens[i : i + size]))
            for i in range(0, count, size)
        ]
        return Run(sum(run.seconds for run in runs), [ids for run in runs for ids in run.outputs])

    @torch.inference_mode()
    def _run(self, work: Workload) -> Run:
        longest = max(len(prompt) for prompt in work.prompts)
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in work.prompts])
        mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in work.prompts])
        ids, mask = ids.to(self._model.device), mask.to(self._model.device)
        most = max(work.new_tokens)
        began = time.perf_counter()
        made = self._model.generate(
            ids,
            attention_mask=mask,
            min_new_tokens=most,
            max_new_tokens=most,
            do_sample=False,
            pad_token_id=0,
        )
        seconds = time.perf_counter() - began
        rows = made[:, longest:].tolist()
        return Run(seconds, [row[:n] for row, n in zip(rows, work.new_tokens, strict=True)])

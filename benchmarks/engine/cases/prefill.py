"""The products of a prefill, beside those of oneDNN in torch."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from benchmarks.board import Board, at_most
from benchmarks.engine.scale import Scale
from benchmarks.runner import Case, in_turn
from roseinfer.native.huge_pages import HugePages
from roseinfer.native.weights import PackedMatrix, spread

OURS, ONEDNN = "roseinfer", "oneDNN"
SAME = "oneDNN, float32 in and out"
"""Where the weights are bfloat16: the conversions that it would need in the engine."""
_MAX_RATIO = 1.1
_TURNS = 5
"""of both in a round: the median of each counts"""


class Product(NamedTuple):
    name: str
    outputs: int
    inputs: int
    prepared: bool = False
    """whether the activation before it writes what the product reads"""


def products(config: Any) -> list[Product]:
    """Of one layer. The head is none of them: only a prompt's last token needs logits."""
    hidden, heads = config.hidden_size, config.num_attention_heads
    kv_heads = getattr(config, "num_key_value_heads", heads)
    head_dim = getattr(config, "head_dim", None) or hidden // heads
    inner = getattr(config, "intermediate_size", None) or 4 * hidden
    gates = 2 if hasattr(config, "intermediate_size") else 1
    return [
        Product("qkv", (heads + 2 * kv_heads) * head_dim, hidden),
        Product("output", hidden, heads * head_dim),
        Product("gate and up" if gates == 2 else "up", gates * inner, hidden),
        Product("down", hidden, inner, prepared=True),
    ]


@dataclass
class Prefill(Case):
    """Ours reads float32, rounds it where the weights are bfloat16, and writes float32; what the
    activation leaves is rounded already. oneDNN reads and writes the weights' type, or as `SAME`
    what ours does."""

    title: str
    products: list[Product]
    dtype: torch.dtype
    scale: Scale

    def round(self, board: Board, turn: int) -> None:
        for product in self.products:
            weight = torch.randn(product.outputs, product.inputs).to(self.dtype)
            packed = PackedMatrix(weight)
            for rows in self.scale.prefill_rows:
                metric = _metric(product, rows)
                measured = _measure(packed, weight, rows, turn, prepared=product.prepared)
                for who, seconds in measured.items():
                    board.add(who, {metric: seconds * 1e3})

    def judge(self, board: Board) -> None:
        for product in self.products:
            for rows in self.scale.prefill_rows:
                metric = _metric(product, rows)
                for peer in (ONEDNN, SAME):
                    what = f"{product.name}, {rows:,} rows: {OURS} to {peer}"
                    board.check_ratio(what, (metric, OURS), (metric, peer), at_most(_MAX_RATIO))


def _metric(product: Product, rows: int) -> str:
    return f"{product.name}, {product.outputs} x {product.inputs}, {rows:,} rows, ms"


def _measure(
    packed: PackedMatrix, weight: torch.Tensor, rows: int, turn: int, *, prepared: bool
) -> dict[str, float]:
    """Seconds of a product by who computes it."""
    pages = HugePages()  # as the engine's own memory
    x = pages.place(torch.randn(rows, packed.inputs))
    out = pages.place(torch.empty(rows, packed.outputs))
    rows_apart = pages.place(torch.empty(rows, spread(x).stride(0)))[:, : packed.inputs]
    rounded = pages.place(x.to(weight.dtype))
    scratch = pages.place(packed.scratch(rows))
    theirs = pages.place(torch.empty(rows, packed.outputs, dtype=weight.dtype))

    def multiply() -> None:
        if not prepared:
            packed.prepare(rows_apart, scratch)
        packed.multiply_prepared(out, rows_apart, scratch)

    def ours() -> float:
        rows_apart.copy_(x)
        if prepared:
            packed.prepare(rows_apart, scratch)
        return _seconds(multiply)

    def onednn() -> float:
        return _seconds(lambda: torch.mm(rounded, weight.T, out=theirs))

    def onednn_converted() -> None:
        if not prepared:
            rounded.copy_(x)
        torch.mm(rounded, weight.T, out=theirs)
        out.copy_(theirs)

    measure = {OURS: ours, ONEDNN: onednn}
    if weight.dtype != x.dtype:
        measure[SAME] = lambda: _seconds(onednn_converted)
    seconds: dict[str, list[float]] = {who: [] for who in measure}
    for number in range(_TURNS):
        for who in in_turn(list(measure), turn + number):
            seconds[who].append(measure[who]())
    return {who: statistics.median(values) for who, values in seconds.items()}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

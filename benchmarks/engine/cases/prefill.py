"""The products of a prefill, beside those of oneDNN in torch."""

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
OURS_SAME, SAME = (f"{name}, float32 in and out" for name in (OURS, ONEDNN))
"""Where the weights are bfloat16: with the conversions that the step before would not make."""
_MAX_RATIO = 1.1
_TURNS = 5
"""of both in a round: the median of each counts"""


class Product(NamedTuple):
    name: str
    outputs: int
    inputs: int


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
        Product("down", hidden, inner),
    ]


@dataclass
class Prefill(Case):
    """Both get inputs in the form that their products read, as the step before would leave them;
    oneDNN writes the weights' type, ours float32. Or both read and write float32."""

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
                for who, seconds in _measure(packed, weight, rows, turn).items():
                    board.add(who, {metric: seconds * 1e3})

    def judge(self, board: Board) -> None:
        for product in self.products:
            for rows in self.scale.prefill_rows:
                metric = _metric(product, rows)
                for ours, peer in ((OURS, ONEDNN), (OURS_SAME, SAME)):
                    what = f"{product.name}, {rows:,} rows: {ours} to {peer}"
                    board.check_ratio(what, (metric, ours), (metric, peer), at_most(_MAX_RATIO))


def _metric(product: Product, rows: int) -> str:
    return f"{product.name}, {product.outputs} x {product.inputs}, {rows:,} rows, ms"


def _measure(packed: PackedMatrix, weight: torch.Tensor, rows: int, turn: int) -> dict[str, float]:
    """Seconds of a product by who computes it."""
    pages = HugePages()  # as the engine's own memory
    x = pages.place(torch.randn(rows, packed.inputs))
    out = pages.place(torch.empty(rows, packed.outputs))
    rows_apart = pages.place(torch.empty(rows, spread(x).stride(0)))[:, : packed.inputs]
    rounded = pages.place(x.to(weight.dtype))
    scratch = pages.place(packed.scratch(rows))
    theirs = pages.place(torch.empty(rows, packed.outputs, dtype=weight.dtype))

    def multiply() -> None:
        packed.multiply_prepared(out, rows_apart, scratch)

    def ours() -> float:
        rows_apart.copy_(x)
        packed.prepare(rows_apart, scratch)
        return _seconds(multiply)

    def convert_and_multiply() -> None:
        packed.prepare(rows_apart, scratch)
        multiply()

    def ours_converted() -> float:
        rows_apart.copy_(x)
        return _seconds(convert_and_multiply)

    def onednn() -> None:
        torch.mm(rounded, weight.T, out=theirs)

    def onednn_converted() -> None:
        rounded.copy_(x)
        onednn()
        out.copy_(theirs)

    measure: dict[str, Callable[[], float]] = {OURS: ours, ONEDNN: lambda: _seconds(onednn)}
    if weight.dtype != x.dtype:
        measure |= {OURS_SAME: ours_converted, SAME: lambda: _seconds(onednn_converted)}
    seconds: dict[str, list[float]] = {who: [] for who in measure}
    for number in range(_TURNS):
        for who in in_turn(list(measure), turn + number):
            seconds[who].append(measure[who]())
    return {who: statistics.median(values) for who, values in seconds.items()}


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began

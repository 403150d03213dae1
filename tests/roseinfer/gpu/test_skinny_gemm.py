"""Products of a few rows beside the same in float64."""

import itertools

import pytest

pytest.importorskip("triton")

import torch
from torch import Tensor

from roseinfer.gpu import skinny_gemm as skinny_gemm_module
from roseinfer.gpu.skinny_gemm import MAX_ROWS, Matrix, choose_tile, skinny_gemm
from roseinfer.model.families import Activation
from tests.roseinfer.gpu.attention_cases import DEVICE, TOLERANCE

BF16, FP16 = torch.bfloat16, torch.float16


def random(*shape: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return (torch.randn(*shape, generator=generator) * scale).to(DEVICE, dtype)


def close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    scale = float(expected.abs().max())
    assert float((found.double() - expected).abs().max()) <= TOLERANCE[dtype] * scale


@pytest.mark.parametrize("dtype", [torch.float32, FP16, BF16])
@pytest.mark.parametrize("rows", [1, 5, MAX_ROWS])
@pytest.mark.parametrize(("outputs", "inputs"), [(48, 128), (37, 200), (520, 24)])
def test_a_product_is_what_torch_computes(
    rows: int, outputs: int, inputs: int, dtype: torch.dtype
) -> None:
    x, weight = random(rows, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype)
    found = skinny_gemm(x, Matrix(weight))
    assert found.shape == (rows, outputs)
    assert found.dtype == dtype
    close(found, x.double() @ weight.double().T, dtype)


@pytest.mark.parametrize(
    ("activation", "gated"),
    [(None, False), *itertools.product(Activation, (False, True))],
)
@pytest.mark.parametrize("biased", [False, True])
def test_bias_activation_and_gate_are_part_of_a_product(
    gated: bool, activation: Activation | None, biased: bool
) -> None:
    # given
    x, weight = random(3, 136), random(2 * 40 if gated else 40, 136, scale=0.1)
    bias = random(len(weight)) if biased else None
    # when
    found = skinny_gemm(x, Matrix(weight, bias, activation, gated))
    # then
    expected = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    gates, others = expected.chunk(2, dim=1) if gated else (expected, torch.ones(1).double())
    if activation == Activation.SILU:
        expected = torch.nn.functional.silu(gates) * others.to(DEVICE)
    elif activation is not None:
        expected = torch.nn.functional.gelu(gates, approximate="tanh") * others.to(DEVICE)
    close(found, expected, torch.float32)


def test_a_sum_is_made_in_place_and_in_float32() -> None:
    x, weight = random(4, 64, dtype=BF16), random(50, 64, dtype=BF16)
    hidden = random(4, 50) * 1000
    expected = hidden.double() + x.double() @ weight.double().T
    assert skinny_gemm(x, Matrix(weight), add_to=hidden) is hidden
    close(hidden, expected, torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_product_keeps_most_multiprocessors_busy(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(skinny_gemm_module, "multiprocessors", lambda _: 132)
    weight = torch.empty(0, dtype=dtype)
    for outputs in (1024, 3072, 4096, 128256):
        tile = choose_tile(outputs, weight, gated=False)
        assert 2 * outputs / tile.outputs > 132
    few = choose_tile(64, weight, gated=False)
    assert few.outputs * few.inputs == tile.outputs * tile.inputs, "all read as much at a time"
    assert few.outputs < tile.outputs


def test_rows_may_lie_apart() -> None:
    wide, weight = random(3, 300), random(20, 100)
    found = skinny_gemm(wide[:, 100:200], Matrix(weight))
    close(found, wide[:, 100:200].double() @ weight.double().T, torch.float32)

"""Packed products give what float64 gives, whatever the build, the type and the number of rows."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from roseinfer import native
from roseinfer.native import library
from roseinfer.native.weights import PackedMatrix, concatenate

pytestmark = pytest.mark.skipif(
    not native.available(), reason="the installation could not compile the decoder"
)

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(params=["avx512_bf16", "avx512", "avx2", "portable"])
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each build that this processor can run."""
    usual = native.build_name()
    assert usual is not None
    if not _choose(request.param):
        pytest.skip(f"this processor has no {request.param}")
    yield request.param
    _choose(usual)


def _choose(name: str) -> bool:
    found = library.library()
    before = found.rose_current()
    for index in range(found.rose_builds()):
        if found.rose_choose(index) and native.build_name() == name:
            return True
    found.rose_choose(before)
    return False


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 2), (16, 64), (50, 258), (129, 600)])
def test_a_product_is_right_for_any_number_of_rows(
    build: str, dtype: torch.dtype, shape: tuple[int, int]
) -> None:
    weight, bias = random(*shape, dtype=dtype), random(shape[0], seed=1)
    packed = PackedMatrix(weight, bias)
    for rows in (1, 2, 3, 5, 6, 7, 12, 13, 31, 100, 200):
        x = random(rows, shape[1], seed=rows)
        read = x.to(dtype) if build == "avx512_bf16" else x  # it multiplies pairs of bfloat16
        expected = (read.double() @ weight.double().T + bias.double()).float()
        torch.testing.assert_close(packed.multiply(x), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_among_any_number_of_rows(build: str, dtype: torch.dtype) -> None:
    packed = PackedMatrix(random(100, 610, dtype=dtype))
    x = random(260, 610, seed=1)
    whole = packed.multiply(x)
    for rows in (1, 2, 4, 7, 12, 40, 97):
        assert torch.equal(packed.multiply(x[:rows]), whole[:rows]), rows


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_come_back_as_they_were(dtype: torch.dtype) -> None:
    one, other = random(24, 10, dtype=dtype), random(7, 10, dtype=dtype, seed=1)
    packed = concatenate([one, other], [None, random(7, seed=2)])
    assert torch.equal(packed.unpack(), torch.cat([one, other]))
    assert packed.bias is not None
    assert not packed.bias[:24].any()

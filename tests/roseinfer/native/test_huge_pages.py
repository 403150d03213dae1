"""Where packed weights lie."""

from __future__ import annotations

import gc
import mmap

import pytest
import torch

from roseinfer.native.huge_pages import HugePages


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bfloat16, torch.float32])
def test_what_is_placed_keeps_its_values_whatever_comes_behind_it(dtype: torch.dtype) -> None:
    pages = HugePages()
    sizes = [(3, 5), (1, 1), (1000, 7), (0, 4), (17, 33)]
    tensors = [torch.randn(size).mul(50).to(dtype) for size in sizes]

    placed = [pages.place(tensor) for tensor in tensors]

    for tensor, copy in zip(tensors, placed, strict=True):
        assert torch.equal(copy, tensor)
        assert copy.dtype == dtype
        assert copy.is_contiguous()


def test_one_larger_than_a_region_fits() -> None:
    large = torch.arange(20_000_000, dtype=torch.int32)
    pages = HugePages()

    small, placed = pages.place(large[:10]), pages.place(large)

    assert torch.equal(placed, large)
    assert torch.equal(small, large[:10])


def test_a_tensor_outlives_what_placed_it() -> None:
    placed = HugePages().place(torch.arange(100))
    gc.collect()

    assert torch.equal(placed, torch.arange(100))


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has such pages")
def test_each_begins_a_cache_line() -> None:
    pages = HugePages()

    placed = [pages.place(torch.zeros(count)) for count in (1, 3, 100)]

    assert [tensor.data_ptr() % 64 for tensor in placed] == [0, 0, 0]
    assert placed[0].data_ptr() % (2 << 20) == 0

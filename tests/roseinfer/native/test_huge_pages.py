"""Where packed weights lie."""

import gc
import mmap
from pathlib import Path

import pytest
import torch

from roseinfer.native.huge_pages import HugePages, ask_for_huge_pages


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


@pytest.mark.parametrize("count", [0, 10, 1 << 20, 3_000_000])
def test_a_tensor_that_is_to_lie_in_them_keeps_its_values(count: int) -> None:
    tensor = torch.zeros(count, dtype=torch.float32)
    ask_for_huge_pages(tensor)

    assert not tensor.any()


@pytest.mark.skipif(not hasattr(mmap, "MADV_HUGEPAGE"), reason="only Linux has such pages")
def test_they_are_asked_for_as_far_as_a_tensor_has_whole_ones() -> None:
    # given: a tensor that shares its first and its last page with others
    pages = 4 << 21
    tensor = torch.frombuffer(mmap.mmap(-1, pages), dtype=torch.uint8)[4096 : pages - 4096]

    ask_for_huge_pages(tensor)

    begin = -(-tensor.data_ptr() // (2 << 20)) * (2 << 20)
    assert _advised(begin)
    assert not _advised(tensor.data_ptr() - 4096)


def _advised(address: int) -> bool:
    """Whether huge pages were asked for where `address` is: the flag `hg` of its mapping."""
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        first = line.split(maxsplit=1)[0]
        if not first.endswith(":"):
            begin, end = (int(part, 16) for part in first.split("-"))
            inside = begin <= address < end
        elif inside and first == "VmFlags:":
            return "hg" in line.split()
    raise LookupError(f"nothing is mapped at {address:#x}")

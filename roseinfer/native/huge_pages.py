"""Memory for packed weights and what a step works with, in huge pages where Linux gives them.

A step reads all weights from end to end. In pages of 4 KiB two cores read 24 GB/s where huge pages
gave 40, or 37 and 43 where they asked ahead: the processor's prefetcher stops at the end of a page.
The KV cache is read in blocks of a few KiB that lie anywhere: each in a page
of its own would need an entry of its own in the processor's table of pages.
"""

import ctypes
import mmap
from contextlib import suppress
from functools import cache

import torch
from torch import Tensor

_PAGE = 2 << 20
_REGION = 32 * _PAGE
_LINE = 64


class HugePages:
    """Tensors one after the other, each from a cache line on.

    A region of memory lives as long as a tensor in it.
    """

    def __init__(self) -> None:
        self._rest = torch.empty(0, dtype=torch.uint8)

    def place(self, tensor: Tensor) -> Tensor:
        """A copy of `tensor`; where there are no huge pages, itself."""
        if not hasattr(mmap, "MADV_HUGEPAGE"):
            return tensor
        room = -(-tensor.nbytes // _LINE) * _LINE
        if room > len(self._rest):
            self._rest = _region(max(room, _REGION))
        placed, self._rest = self._rest[: tensor.nbytes], self._rest[room:]
        return placed.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def ask_for_huge_pages(tensor: Tensor) -> None:
    """For those parts of `tensor`, contiguous, that are written from now on."""
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    begin, end = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
    begin, end = -(-begin // _PAGE) * _PAGE, end // _PAGE * _PAGE  # no page that others use too
    if begin < end:
        # A kernel that refuses leaves all as it was.
        _libc().madvise(begin, end - begin, mmap.MADV_HUGEPAGE)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def _region(size: int) -> Tensor:
    """At least `size` bytes from a huge page on. What is not written takes no memory."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, -(-size // _PAGE) * _PAGE + _PAGE, flags=flags)
    with suppress(OSError):  # a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    region = torch.frombuffer(memory, dtype=torch.uint8)
    return region[-region.data_ptr() % _PAGE :]

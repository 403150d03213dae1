"""Facts about a device that kernel launches need."""

from contextlib import AbstractContextManager
from functools import cache

import torch
from torch import Tensor

_CPU_PROCESSORS = 4  # the interpreter's: enough to have several programs at all
_SMALLEST_SHARED_MEMORY = 99 * 1024  # of the GPUs that the kernels are for


def device_guard(tensor: Tensor) -> AbstractContextManager[None]:
    """Make the tensor's device the thread's current one: Triton launches there."""
    return torch.cuda.device_of(tensor)  # type: ignore[no-untyped-call]


@cache
def multiprocessors(device: torch.device) -> int:
    if device.type != "cuda":
        return _CPU_PROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


@cache
def shared_memory(device: torch.device) -> int:
    """Bytes that a program may have."""
    if device.type != "cuda":
        return _SMALLEST_SHARED_MEMORY
    properties = torch.cuda.get_device_properties(device)
    return int(getattr(properties, "shared_memory_per_block_optin", _SMALLEST_SHARED_MEMORY))


def next_power_of_2(count: int) -> int:
    """The next power of two."""
    return 1 << (count - 1).bit_length()


def cdiv(count: int, size: int) -> int:
    """Blocks of `size` that hold `count`."""
    return -(-count // size)

"""What the device can do, measured in the run: the rates that every share is taken of."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_REPEATS = 5


@dataclass(frozen=True, slots=True)
class Limits:
    """Bytes per second from memory, and floating-point operations per second in `dtype`."""

    memory: float
    compute: float


def measure_limits(device: torch.device, dtype: torch.dtype, elements: int, width: int) -> Limits:
    """The best of a sum over `elements` float32 numbers and of their copy, and of a product of two
    square matrices of `width`."""
    one, other = (torch.randn(width, width, device=device, dtype=dtype) for _ in range(2))
    product = 2 * width**3 / _best(device, lambda: one @ other)
    return Limits(_memory_rate(device, elements), product)


def read_rate(numbers: Tensor) -> float:
    """Bytes per second that a sum reads."""
    return numbers.nbytes / _best(numbers.device, numbers.sum)


def _memory_rate(device: torch.device, elements: int) -> float:
    numbers = torch.ones(elements, device=device)
    target = torch.empty_like(numbers)
    copying = 2 * numbers.nbytes / _best(device, lambda: target.copy_(numbers))
    return max(read_rate(numbers), copying)


def _best(device: torch.device, work: Callable[[], Tensor]) -> float:
    """Seconds of the fastest of some runs, each waited for."""
    times = []
    for _ in range(_REPEATS + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - began)
    return min(times[1:])


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)

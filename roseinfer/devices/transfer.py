"""Copies between host and device. Only `Download.wait` makes the host wait.

A copy from pageable memory makes the host wait for the device, and so does reading a value back.
So all numbers of the engine are copied here: to the device from pinned memory, and back by a copy
that records an event.
"""

from array import array
from collections.abc import Iterable, Sequence
from itertools import repeat

import torch
from torch import Tensor


def pinned(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor`, on the host, in pinned memory if `device` is a GPU.

    torch does not reuse pinned memory until the copies that read it are done.
    """
    return tensor.pin_memory() if device.type == "cuda" else tensor


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """`tensor`, which lies on the host, on `device`; the host does not wait for the copy."""
    return pinned(tensor, device).to(device, non_blocking=True)


def copy_to_device(tensor: Tensor, target: Tensor) -> None:
    """Overwrite the beginning of `target`, on a device, with `tensor`, which lies on the host."""
    target[: len(tensor)].copy_(pinned(tensor, target.device), non_blocking=True)


class IntegerBuffer:
    """Collects lists of integers so that they reach the device in a single copy."""

    def __init__(self) -> None:
        self._flat = array("q")

    def __len__(self) -> int:
        return len(self._flat)

    def add(self, values: Iterable[int]) -> slice:
        start = len(self._flat)
        self._flat.extend(values)
        return slice(start, len(self._flat))

    def pad(self, count: int) -> None:
        self._flat.extend(repeat(0, count))

    def on_host(self) -> Tensor:
        return torch.frombuffer(self._flat, dtype=torch.int64)

    def to(self, device: torch.device) -> Tensor:
        return to_device(self.on_host(), device)


class Download:
    """Tensors on their way to the host, from the moment this is made."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        device = tensors[0].device if tensors else torch.device("cpu")
        self._event: torch.cuda.Event | None = None
        if device.type != "cuda":
            self._copies = list(tensors)
            return
        self._copies = [torch.empty_like(t, device="cpu", pin_memory=True) for t in tensors]
        for copy, tensor in zip(self._copies, tensors, strict=True):
            copy.copy_(tensor, non_blocking=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(torch.cuda.current_stream(device))

    def wait(self) -> list[Tensor]:
        """The copies; this is the only place where the engine waits for the device."""
        if self._event is not None:
            self._event.synchronize()
        return self._copies

"""Sampling on a GPU, one kernel for the whole batch: see kernels/sampling.py."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from roseinfer.devices.transfer import to_device
from roseinfer.gpu.device import device_guard, next_power_of_2
from roseinfer.gpu.kernels.sampling import sample_kernel
from roseinfer.sessions.session import SamplingRequest

OPTIONS = {"num_warps": 16}
_MAX_BLOCK = 8192
# The low bits of a float32 that are zero because it came from a narrower type.
SHIFTS = {torch.float32: 0, torch.float16: 13, torch.bfloat16: 16}


class KernelRequest(NamedTuple):
    """Sample line `line` of the logits; the token id goes to `ids[target]`."""

    line: int
    target: int
    request: SamplingRequest


def sample_rows(values: Tensor, requests: Sequence[KernelRequest], ids: Tensor) -> None:
    """Sample lines of `values` [B, V] into `ids`, all on the device."""
    if not requests:
        return
    table = torch.frombuffer(_table(requests), dtype=torch.int64)
    values = values if values.stride(1) == 1 else values.contiguous()
    count = values.shape[1]
    with device_guard(values):
        sample_kernel[(len(requests),)](
            values,
            to_device(table, values.device),
            ids,
            values.stride(0),
            FIELDS=SamplingRequest.FIELDS,
            COUNT=count,
            SHIFT=SHIFTS[values.dtype],
            BLOCK=min(next_power_of_2(count), _MAX_BLOCK),
            **OPTIONS,
        )


def _table(requests: Sequence[KernelRequest]) -> bytearray:
    """As `sample_kernel` reads it."""
    table = bytearray().join([one.request.packed for one in requests])
    numbers, step = memoryview(table).cast("q"), SamplingRequest.FIELDS
    numbers[0::step] = memoryview(array("q", [one.line for one in requests]))
    numbers[1::step] = memoryview(array("q", [one.target for one in requests]))
    positions = array("q", [one.request.position for one in requests])
    numbers[SamplingRequest.POSITION :: step] = memoryview(positions)
    return table

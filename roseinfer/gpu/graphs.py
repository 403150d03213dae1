"""Decode steps as CUDA graphs: one launch instead of hundreds.

A graph replays the same kernels on the same memory, so each batch size needs its own. A step of
five sequences runs in the graph of eight: the other three have length 0 and write their keys and
values into the reserved block. All graphs read one static buffer, laid out anew for each size; a
step fills it by one copy and replays. Steps with prefill, and batches above the largest graph, run
eagerly.
"""

import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from roseinfer.devices.transfer import copy_to_device
from roseinfer.gpu.attention import Sequences
from roseinfer.gpu.batch import DeviceBatch, Layout, flatten
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.routes import FollowedRoutes
from roseinfer.model.runner import PackedRunner, Runner
from roseinfer.sessions.session import Chunk, DeviceTokens

_logger = logging.getLogger(__name__)


class Recorder(Protocol):
    """Captures work on a device."""

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        """Do `work` once to warm up, then capture it; returns a function that replays it."""

    def free_bytes(self) -> int:
        """Memory that is left on the device."""


def batch_sizes(largest: int) -> list[int]:
    """The sizes to capture: padding never adds more than a small share of rows."""
    steps = ((8, (1, 2, 4)), (64, range(8, 64, 8)), (256, range(64, 256, 16)))
    sizes = {size for _, some in steps for size in some if size < largest}
    return sorted(sizes | set(range(256, largest, 32)) | {largest})


class GraphedModel:
    """Runs `packed`, decode steps of up to the largest of `sizes` as graphs."""

    cache_padding = 1
    compacts = False
    runs_ahead = True
    batch_invariant = False

    def __init__(
        self,
        packed: PackedRunner,
        recorder: Recorder,
        sizes: Sequence[int],
        *,
        context: int,
        budget_bytes: int,
    ) -> None:
        """`packed` makes a DeviceBatch of a step. `bind` captures graphs, the largest first, until
        they have taken `budget_bytes`."""
        self._packed, self._recorder = packed, recorder
        self._wanted = sorted(sizes)
        self._context, self._budget = context, budget_bytes
        self._graphs: dict[int, _Graph] = {}
        self.sizes: list[int] = []

    @property
    def eager(self) -> Runner:
        return self._packed

    def bind(self, cache: KVCache) -> None:
        self._packed.bind(cache)
        self._graphs, self.sizes = {}, []
        buffers = _Buffers(cache, self._wanted[-1], self._context)
        started, free = time.perf_counter(), self._recorder.free_bytes()
        for number, size in enumerate(reversed(self._wanted), start=1):
            taken = free - self._recorder.free_bytes()
            if taken > self._budget:
                _logger.warning(
                    "CUDA graphs take %.2f GB, more than their budget: batches below %d are padded",
                    taken / 1e9,
                    self.sizes[0],
                )
                break
            _logger.info(
                "capturing CUDA graph %d of %d: batch of %d", number, len(self._wanted), size
            )
            self._graphs[size] = _Graph(self._packed, self._recorder, buffers, size)
            self.sizes.insert(0, size)
        _logger.info("captured %d in %.1f s", len(self.sizes), time.perf_counter() - started)

    def run(
        self,
        chunks: Sequence[Chunk],
        *,
        every_row: bool = False,
        device_tokens: DeviceTokens | None = None,
        routes: FollowedRoutes | None = None,  # noqa: ARG002 - never given on a GPU
    ) -> tuple[list[Chunk], Tensor]:
        size = self.fitting(chunks)
        if size is None or (
            device_tokens is not None and len(device_tokens.ids) > self._wanted[-1]
        ):
            return self._packed.run(chunks, every_row=every_row, device_tokens=device_tokens)
        return list(chunks), self._graphs[size].run(chunks, device_tokens)

    def fitting(self, chunks: Sequence[Chunk]) -> int | None:
        """The size of the graph that can run `chunks`; None if they are no decode step."""
        index = bisect_left(self.sizes, len(chunks))
        if index == len(self.sizes):
            return None
        for chunk in chunks:
            if chunk.count != 1 or not chunk.is_last:
                return None
        return self.sizes[index]


class _Buffers:
    """What every graph of a cache reads."""

    def __init__(self, cache: KVCache, largest: int, context: int) -> None:
        self.block_size, device = cache.block_size, cache.keys[0].device
        longest_table = min(-(-context // cache.block_size), cache.pool.total)
        integers = Layout(largest, largest, largest).tables_at + largest * longest_table
        self.flat = torch.zeros(integers, dtype=torch.int64, device=device)
        self.device_tokens = torch.zeros(largest, dtype=torch.int64, device=device)
        self.logits = torch.empty(0)
        self._largest = largest

    def keep(self, logits: Tensor) -> None:
        """The largest graph is recorded first, and its warm-up run shows the size of the logits."""
        if not self.logits.numel():
            self.logits = logits.new_empty(self._largest, logits.shape[1])
        self.logits[: len(logits)].copy_(logits)


class _Graph:
    """The decode step of `size` sequences."""

    def __init__(
        self, packed: PackedRunner, recorder: Recorder, buffers: _Buffers, size: int
    ) -> None:
        self._packed, self._buffers, self._size = packed, buffers, size
        split = Layout(size, size, size).split(buffers.flat)
        ids, positions, slots, logit_rows, starts, lengths, table_starts, tables = split
        sequences = Sequences(tables, table_starts, starts, lengths, size, 0, 0)
        self._batch = DeviceBatch(
            [], ids.unsqueeze(0), positions.unsqueeze(0), slots, logit_rows, sequences
        )
        self._fill((), None)
        self._replay = recorder.record(self._compute)

    def run(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> Tensor:
        """The logits of `chunks`; they stay right until the next step."""
        self._fill(chunks, device_tokens)
        self._replay()
        return self._buffers.logits[: self._size]

    def _fill(self, chunks: Sequence[Chunk], device_tokens: DeviceTokens | None) -> None:
        if device_tokens is not None:
            self._buffers.device_tokens[: len(device_tokens.ids)].copy_(device_tokens.ids)
        padding = self._size - len(chunks)
        integers, _ = flatten(chunks, self._buffers.block_size, device_tokens, padding)
        copy_to_device(integers.on_host(), self._buffers.flat)

    @torch.inference_mode()
    def _compute(self) -> None:
        """The captured work: it reads nothing but the buffers."""
        input_ids = DeviceTokens({}, self._buffers.device_tokens).fill(self._batch.input_ids)
        batch = replace(self._batch, input_ids=input_ids)
        logits = self._packed.compute(batch, batch.logit_rows)
        # Copied, so that the graphs' own logits may all lie in the same place of their pool.
        self._buffers.keep(logits)


class CudaRecorder:
    """Captures with torch's CUDA graphs, which share one pool of memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def record(self, work: Callable[[], None]) -> Callable[[], None]:
        with torch.cuda.device(self._device):
            # The warm-up run compiles kernels and lets libraries allocate memory, neither of which
            # can be captured. torch requires a side stream for it.
            side_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            main_stream = torch.cuda.current_stream(self._device)
            side_stream.wait_stream(main_stream)
            with torch.cuda.stream(side_stream):
                work()
            main_stream.wait_stream(side_stream)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool):
                work()
        return graph.replay

    def free_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self._device)[0])

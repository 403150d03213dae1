"""The size of the KV cache on a GPU: what weights, graphs and a measured step leave free."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from rose.errors import ConfigurationError
from rose.sampling import SamplingParams
from roseinfer.gpu.options import GRAPH_BYTES, GpuOptions
from roseinfer.kv_cache.cache import KVCache
from roseinfer.logits_processors.processor import LogitsProcessor
from roseinfer.model.runner import Runner
from roseinfer.sampling.sampler import SampledTokens
from roseinfer.sessions.session import Chunk, InferenceSession
from roseinfer.text.detokenizer import TextStream

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Memory:
    """A device's memory in bytes."""

    free: int
    total: int


class Meter(Protocol):
    """Reads a device's memory."""

    def now(self) -> Memory:
        """The memory now, after unused memory was returned to the device."""

    def restart(self) -> None:
        """Forget the peak."""

    def peak(self) -> int:
        """The most bytes in use since `restart`, above what was in use then."""


class CudaMeter:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0

    def now(self) -> Memory:
        torch.cuda.empty_cache()
        return Memory(*torch.cuda.mem_get_info(self._device))

    def restart(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)
        self._before = torch.cuda.memory_allocated(self._device)

    def peak(self) -> int:
        return torch.cuda.max_memory_allocated(self._device) - self._before


def cache_bytes(
    meter: Meter,
    runner: Runner,
    make_cache: Callable[[int], KVCache],
    options: GpuOptions,
    context: int,
) -> int:
    """Bytes for the KV cache: a share of the device, less the memory in use and that of a step.

    `make_cache` makes a cache of so many blocks. Raises ConfigurationError if nothing is left.
    """
    peak = profile(meter, runner, make_cache, options, context)
    runner.bind(make_cache(2))  # frees the cache of the profile
    memory = meter.now()
    used = memory.total - memory.free
    graphs = GRAPH_BYTES if options.cuda_graphs else 0
    left = int(memory.total * options.memory_utilization) - used - peak - graphs
    _logger.info(
        "GPU memory: %.2f GB, in use %.2f, a step %.2f, graphs %.2f: %.2f for the KV cache",
        memory.total / 1e9,
        used / 1e9,
        peak / 1e9,
        graphs / 1e9,
        left / 1e9,
    )
    if left <= 0:
        raise ConfigurationError(
            f"no GPU memory is left for the KV cache: of {memory.total / 1e9:.2f} GB "
            f"gpu_memory_utilization={options.memory_utilization:g} may be used, "
            f"{used / 1e9:.2f} are and a step takes {peak / 1e9:.2f}; raise it, or lower "
            "max_step_tokens or max_batch_size"
        )
    return left


def profile(
    meter: Meter,
    runner: Runner,
    make_cache: Callable[[int], KVCache],
    options: GpuOptions,
    context: int,
) -> int:
    """Bytes that the largest step needs: the most tokens, and every sequence sampled.

    `runner` is left with a cache for that step.
    """
    sequences = options.max_batch_size
    length = min(max(1, options.max_step_tokens // sequences), context - 1)
    blocks_each = -(-length // make_cache(1).block_size)
    cache = make_cache(1 + sequences * blocks_each)
    runner.bind(cache)
    sessions = [_session(length, penalised=number % 2 == 0) for number in range(sequences)]
    for session in sessions:
        session.blocks = cache.pool.allocate(blocks_each)
    chunks = [Chunk(session, length) for session in sessions]
    runner.run(chunks)  # compiles, and fills torch's own caches
    meter.restart()
    _, logits = runner.run(chunks)
    SampledTokens(chunks, logits).wait()
    return meter.peak()


def _session(length: int, *, penalised: bool) -> InferenceSession:
    """A session that samples with every filter, with or without a penalty."""
    params = SamplingParams(
        temperature=1.0,
        top_p=0.9,
        min_p=0.01,
        seed=0,
        logprobs=True,
        repetition_penalty=1.1 if penalised else 1.0,
    )
    prompt = [0] * length
    return InferenceSession(
        "profile",
        prompt,
        params,
        TextStream(None),
        logits_processor=LogitsProcessor(params, prompt) if penalised else None,
        context_length=length + 1,
    )

"""How large the KV cache is: as many tokens as were asked for, or a share of the free memory."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from rose.errors import ConfigurationError
from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.devices.main_memory import free_memory, total_memory
from roseinfer.execution.gpu_memory import CudaMeter, cache_bytes
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.cache import KVCache
from roseinfer.kv_cache.second_tier import SecondTierOptions
from roseinfer.model.attention_layers import AttentionLayers
from roseinfer.model.runner import Runner

_DEFAULT_CONTEXTS = 32
_MEMORY_SHARE = 0.25  # of free main memory


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How large the KV cache is: `tokens` None takes a share of the free memory."""

    block_size: int = 16
    tokens: int | None = None
    max_context: int | None = None
    second_tier: SecondTierOptions | None = None


def max_cached_tokens(
    loaded: LoadedModel, layers: AttentionLayers, context: int, options: CacheOptions
) -> int:
    """The most tokens that the KV cache will hold, where that is known before there is a runner;
    else `context`."""
    tokens, model = options.tokens, loaded.model
    if tokens is None and model.device.type == "cpu":
        tokens = _default_tokens(layers.compacted().bytes_per_token(model.dtype), context)
    if tokens is None:
        return context
    return (_num_blocks(tokens, options.block_size) - 1) * options.block_size


def make_cache(
    runner: Runner,
    loaded: LoadedModel,
    layers: AttentionLayers,
    context: int,
    options: CacheOptions,
    gpu: GpuOptions,
) -> KVCache:
    """A cache for `runner`; raises ConfigurationError where none fits."""
    device, dtype = loaded.model.device, loaded.model.dtype
    layers = layers.compacted() if runner.compacts else layers
    make: Callable[[int], KVCache] = partial(
        KVCache,
        layers.shapes,
        block_size=options.block_size,
        device=device,
        dtype=dtype,
        padding=runner.cache_padding,
        states=layers.states,
    )
    tokens, bytes_per_token = options.tokens, layers.bytes_per_token(dtype)
    if tokens is None and device.type == "cuda":
        size = cache_bytes(CudaMeter(device), runner.eager, make, gpu, context)
        tokens = size // bytes_per_token
    elif tokens is None:
        tokens = _default_tokens(bytes_per_token, context)
    elif device.type == "cpu":
        _check_fits(tokens, bytes_per_token)
    return make(_num_blocks(tokens, options.block_size))


def _num_blocks(tokens: int, block_size: int) -> int:
    """Blocks for `tokens` tokens, and the reserved one. Raises ConfigurationError."""
    if block_size < 1:
        raise ConfigurationError(f"block_size={block_size} must be at least 1")
    if tokens < 2:
        raise ConfigurationError(f"kv_cache_tokens={tokens} must be at least 2")
    return 1 + -(-tokens // block_size)


def _default_tokens(bytes_per_token: int, context: int) -> int:
    """32 full contexts, or as much of them as a fair share of main memory allows."""
    fits = int(free_memory() * _MEMORY_SHARE // bytes_per_token)
    return max(min(_DEFAULT_CONTEXTS * context, fits), 1)


def _check_fits(tokens: int, bytes_per_token: int) -> None:
    """Whether main memory could ever hold such a cache: it is taken page by page as it fills, and
    too large a one ends the process much later. Raises ConfigurationError."""
    total, wanted = total_memory(), tokens * bytes_per_token
    if total is not None and wanted > total:
        raise ConfigurationError(
            f"kv_cache_tokens={tokens} takes {_gib(wanted)} of memory, and there are {_gib(total)} "
            f"in all: at most {total // bytes_per_token} tokens could fit"
        )


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"

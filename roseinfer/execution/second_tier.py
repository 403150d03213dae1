"""Whether the prefix cache of an engine gets a second tier, and what its bits depend on."""

import hashlib
import logging
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

import torch

from roseinfer import native
from roseinfer.checkpoints.loading import LoadedModel
from roseinfer.kv_cache.cache import KVCache
from roseinfer.kv_cache.second_tier import SecondTier, SecondTierOptions

_logger = logging.getLogger(__name__)

#: Of the rotary tables that are the same for a position whatever the longest context is.
_FIXED_ROPE = {"default", "linear", "llama3", "yarn", "proportional"}


class ChosenTier(NamedTuple):
    """A second tier, and what it is or why there is none; "" where nobody asked for one."""

    tier: SecondTier | None
    description: str


def add_second_tier(
    cache: KVCache,
    loaded: LoadedModel,
    decoder: str,
    context: int,
    options: SecondTierOptions | None,
) -> ChosenTier:
    """Give `cache` the second tier that `options` ask for, where it can have one; the log says so.

    Raises ConfigurationError for a folder or files that are not the user's alone, or too few bytes.
    """
    if options is None:
        return ChosenTier(None, "")
    chosen = _chosen(cache, loaded, decoder, context, options)
    level = logging.WARNING if chosen.tier is None else logging.INFO
    _logger.log(level, "second tier of the prefix cache: %s", chosen.description)
    return chosen


def _chosen(
    cache: KVCache,
    loaded: LoadedModel,
    decoder: str,
    context: int,
    options: SecondTierOptions,
) -> ChosenTier:
    if cache.device.type != "cpu":
        return ChosenTier(
            None, f"off: the KV cache is on {cache.device}, and it needs one on a CPU"
        )
    if not loaded.fingerprint:
        return ChosenTier(None, "off: the model did not come from files, so nothing tells it apart")
    try:
        tier = cache.add_second_tier(options, _identity(cache, loaded, decoder, context))
    except OSError as error:
        return ChosenTier(None, f"off: {error}")
    tokens = f"{tier.capacity_tokens:,} tokens, {options.max_bytes / 2**30:,.2f} GiB"
    return ChosenTier(tier, f"on: up to {tokens} in {tier.folder}")


def _identity(cache: KVCache, loaded: LoadedModel, decoder: str, context: int) -> bytes:
    """Of all on which the bits of a block, and where they lie in it, depend."""
    config = loaded.model.config.to_dict()
    depends = (
        loaded.fingerprint,
        decoder,
        native.library_digest(),
        torch.__version__,
        torch.backends.cpu.get_cpu_capability(),
        version("transformers"),
        cache.block_size,
        *((str(t.dtype), tuple(t.shape[1:]), t.shape[0] // cache.num_blocks) for t in cache.keys),
        *((str(t.dtype), tuple(t.shape[1:])) for t in cache.values),
        *(
            (str(t.dtype), tuple(t.shape[1:]))
            for t in (*cache.inputs, *cache.sums)
            if t is not None
        ),
        context if set(_rope_types(config)) - _FIXED_ROPE else None,
    )
    return hashlib.sha256(repr(depends).encode()).digest()


def _rope_types(config: Any) -> Iterator[str]:
    """Of all layers, wherever the configuration has them."""
    if isinstance(config, dict):
        for name, value in config.items():
            if name == "rope_type" and isinstance(value, str):
                yield value
            else:
                yield from _rope_types(value)

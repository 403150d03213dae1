"""How much main memory a model will take: known from its configuration and the headers of its
files, before a weight is read."""

import copy
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from rose.errors import ConfigurationError
from rose.memory import gigabytes
from roseinfer.checkpoints.transformers_messages import quiet
from roseinfer.devices.main_memory import free_memory
from roseinfer.model.families import head_of, linears_of_layers
from roseinfer.model.limits import text_config
from roseinfer.model.linears import place_of
from roseinfer.model.quantization import FORMATS, FROM_FILE

_logger = logging.getLogger(__name__)

#: Bits of a number with its part of the scales, by those of its value: see `quantize_wide`.
_BITS = {8: 8.25, 4: 4.5}

#: Finds the bits of each number that weights="file" keeps, by the names of a model's parameters.
FindKept = Callable[[Any], Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class MemoryNeed:
    """Bytes that a model takes."""

    weights: int
    """in their final form"""
    largest: int
    """of what is beside them while they load: the largest matrix as it is read, and once more where
    it gets another form"""
    cache: int = 0
    """of a KV cache whose size was asked for"""

    @property
    def most(self) -> int:
        return self.weights + max(self.largest, self.cache)


def check_memory(
    config: Any,
    dtype: torch.dtype,
    weights: str | None,
    find_kept: FindKept | None,
    cache_tokens: int | None,
) -> None:
    """Say in one line what a model of this configuration will take.

    Raises ConfigurationError if there is not so much: says what would fit.
    """
    model = _without_numbers(config)
    if model is None:
        return  # the loader says why there is none
    kept = find_kept(model) if find_kept is not None and weights == FROM_FILE else {}
    cache = (cache_tokens or 0) * _bytes_per_token(text_config(model), dtype)
    need, free = memory_need(model, dtype, weights, kept, cache), free_memory()
    form = weights or str(dtype).removeprefix("torch.")
    described = (
        f"{gigabytes(need.weights)} for the weights ({form}), beside these "
        f"{gigabytes(need.largest)} while they load, and "
        + (
            f"up to {gigabytes(cache)} for a KV cache of {cache_tokens} tokens"
            if cache_tokens
            else "at most a quarter of the rest for the KV cache"
        )
    )
    if need.most <= free:
        _logger.info("memory: %s; %s are free", described, gigabytes(free))
        return
    raise ConfigurationError(
        f"the model needs {gigabytes(need.most)} of memory and {gigabytes(free)} are free: "
        f"{described}. {_advice(model, need, free)}"
    )


def memory_need(
    model: nn.Module,
    dtype: torch.dtype,
    weights: str | None = None,
    kept: Mapping[str, float] | None = None,
    cache: int = 0,
) -> MemoryNeed:
    """Of `model`, which needs no numbers."""
    names = {module: name for name, module in model.named_modules()}
    inside = {f"{names[owner]}.{name}" for owner, name in map(place_of, linears_of_layers(model))}
    head = head_of(model)
    in_head = None if head is None else getattr(*place_of(head))
    total, largest = 0.0, 0
    for name, parameter in model.named_parameters():
        bits: float = 8 * dtype.itemsize
        if parameter is in_head or name in inside:
            if weights in FORMATS:
                bits = _BITS[FORMATS[weights][parameter is in_head]]
            elif kept is not None:
                bits = kept.get(name, bits)
        total += parameter.numel() * bits / 8
        copies = 1 if bits == 8 * dtype.itemsize else 2
        largest = max(largest, copies * parameter.numel() * dtype.itemsize)
    return MemoryNeed(round(total), largest, cache)


def _without_numbers(config: Any) -> Any | None:
    try:
        with quiet(), torch.device("meta"):
            return AutoModelForCausalLM.from_config(copy.deepcopy(config), trust_remote_code=False)
    except Exception:  # noqa: BLE001 - whatever configurations raise that no model is made of
        return None


def _bytes_per_token(config: Any, dtype: torch.dtype) -> int:
    """What a token takes in the KV cache of a common family; nothing where heads are not known."""
    try:
        types = getattr(config, "layer_types", None) or ["attention"] * config.num_hidden_layers
        own = len(types) - (getattr(config, "num_kv_shared_layers", None) or 0)
        # Where layers differ, the configuration of all of them has no number of heads.
        elements = [
            _elements_per_token(layer)
            for layer, kind in zip(config.per_layer_config[:own], types[:own], strict=True)
            if "attention" in kind and "linear" not in kind
        ]
        return int(sum(elements) * dtype.itemsize)
    except (AttributeError, TypeError):  # none, as of Mamba's, or a list of them
        return 0


def _elements_per_token(config: Any) -> int:
    """In one layer."""
    if (rank := getattr(config, "kv_lora_rank", None)) is not None:
        return int(rank + getattr(config, "qk_rope_head_dim", 0))
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(2 * heads * size)


def _advice(model: Any, need: MemoryNeed, free: int) -> str:
    """What fits, the one with the most bits first."""
    rest = "a smaller model, or a machine (or limit of the container) with more memory"
    if need.weights + need.largest <= free:
        return f"Ask for a smaller KV cache (ROSE_KV_CACHE_TOKENS), or take {rest}"
    for form in FORMATS:
        less = memory_need(model, torch.bfloat16, form)
        if less.weights < need.weights and less.most <= free:
            return f"weights={form!r} takes {gigabytes(less.weights)}; or take {rest}"
    return f"Take {rest}"

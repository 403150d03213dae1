"""The choice of the attention implementation for a device."""

import importlib.util
import logging
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from rose.errors import ConfigurationError
from roseinfer.gpu.options import GpuOptions
from roseinfer.kv_cache.cache import KVCache
from roseinfer.model.attention import Attention, PagedAttention

_logger = logging.getLogger(__name__)


def choose_attention(options: GpuOptions, device: torch.device) -> str:
    """One of BACKENDS. Raises ConfigurationError for what cannot run here."""
    name = options.attention
    if name is None:
        name = "triton" if device.type == "cuda" and has_triton() else "sdpa"
        if device.type == "cuda" and name == "sdpa":
            _logger.warning("Triton is not installed: attention runs by torch's own, more slowly")
    if name == "triton":
        _check_triton(device)
    return name


def attention_of(name: str) -> Callable[[KVCache], Attention]:
    """The class of the attention called `name`; it is made for a KV cache."""
    if name == "triton":
        from roseinfer.gpu.triton_attention import TritonAttention

        return TritonAttention
    return PagedAttention


def _check_triton(device: torch.device) -> None:
    if not has_triton():
        raise ConfigurationError("attention='triton' needs the package triton: pip install triton")
    from roseinfer.gpu import kernels

    if device.type != "cuda" and not kernels.INTERPRETED:
        raise ConfigurationError(
            f"attention='triton' cannot run on {device.type}: choose 'sdpa', or set "
            "TRITON_INTERPRET=1 for Triton's interpreter, which is for tests"
        )


def can_draw(logits: Tensor) -> bool:
    """Whether the Triton kernel can sample from these logits."""
    return logits.device.type == "cuda" and has_triton()


@cache
def has_triton() -> bool:
    """Whether the kernels can be imported."""
    return importlib.util.find_spec("triton") is not None

"""The compiled kernels (kernels.cpp), where the installation could build them.

Built at install if there is a C++ compiler; everything works without them, more slowly: whoever
calls one asks `available` first and has a way in plain torch.
"""

from __future__ import annotations

import ctypes
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch  # first: the kernels then share its OpenMP threads
from torch import Tensor

_SWITCH = "ROSEINFER_KERNELS"


class _Attention(ctypes.Structure):
    """`struct Attention` of kernels.cpp, field by field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("query", "keys", "values")),
        *((name, ctypes.c_void_p) for name in ("tables", "positions", "out")),
        *((name, ctypes.c_int64) for name in ("rows", "kv_heads", "share", "key_dim", "value_dim")),
        *((name, ctypes.c_int64) for name in ("row_stride", "head_stride", "out_stride")),
        *((name, ctypes.c_int64) for name in ("table_stride", "block_size", "window")),
        ("scaling", ctypes.c_float),
    )


def _load() -> ctypes.CDLL | None:
    """The library beside this file; None if it was not built or ROSEINFER_KERNELS is 0."""
    if os.environ.get(_SWITCH) == "0":
        return None
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_kernels{suffix}")
        if path.is_file():
            library = ctypes.CDLL(str(path))
            library.rose_attend.argtypes = [ctypes.POINTER(_Attention)]
            library.rose_attend.restype = None
            pointer, count = ctypes.c_void_p, ctypes.c_int64
            library.rose_rms_norm.argtypes = [
                ctypes.c_int,
                pointer,
                pointer,
                pointer,
                count,
                count,
                ctypes.c_float,
            ]
            library.rose_rms_norm.restype = None
            return library
    return None


_library = _load()


def available() -> bool:
    return _library is not None


def can_attend(query: Tensor, keys: Tensor) -> bool:
    """Whether `attend` takes these.

    Only bfloat16: float32 promises the same bits whether a token came alone or in a chunk, and
    chunks go through torch's attention.
    """
    return (
        _library is not None
        and keys.device.type == "cpu"
        and keys.dtype == query.dtype == torch.bfloat16
        and query.stride(-1) == 1
    )


def attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    tables: Tensor,
    positions: Tensor,
    out: Tensor,
    *,
    block_size: int,
    scaling: float,
    window: int | None,
) -> None:
    """Attention of queries [T, Hq, D] over a paged cache, into `out` [T, Hq, Dv], each by itself.

    `keys` [slots, Hkv, D] and `values` [slots, Hkv, Dv] are contiguous, and so are `tables` [B, W],
    the T `positions` and each row of `out`. T is B, or any number of queries if B is 1. All on CPU.
    """
    assert _library is not None  # noqa: S101 - callers ask can_attend first
    rows, heads, key_dim = query.shape
    call = _Attention(
        query.data_ptr(),
        keys.data_ptr(),
        values.data_ptr(),
        tables.data_ptr(),
        positions.data_ptr(),
        out.data_ptr(),
        rows,
        keys.shape[1],
        heads // keys.shape[1],
        key_dim,
        values.shape[2],
        query.stride(0),
        query.stride(1),
        out.stride(0),
        tables.shape[1] if len(tables) > 1 else 0,
        block_size,
        window or 0,
        scaling,
    )
    _library.rose_attend(ctypes.byref(call))


def can_normalise(x: Tensor, weight: Tensor) -> bool:
    """Whether `rms_norm` takes these."""
    return (
        _library is not None
        and x.device.type == "cpu"
        and x.dtype == weight.dtype
        and x.dtype in (torch.float32, torch.bfloat16)
    )


def rms_norm(x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    """RMS norm over the last dimension of `x`, weighted by `weight`."""
    assert _library is not None  # noqa: S101 - callers ask can_normalise first
    x = x.contiguous()
    out = torch.empty_like(x)
    count = x.shape[-1]
    _library.rose_rms_norm(
        x.dtype == torch.float32,
        x.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.numel() // count,
        count,
        epsilon,
    )
    return out

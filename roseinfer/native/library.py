"""The compiled library, and its structures as types.h has them, field by field."""

from __future__ import annotations

import ctypes
import os
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch  # noqa: F401 - first: the library then shares its OpenMP threads

from rose.errors import ConfigurationError

_SWITCH = "ROSEINFER_NATIVE"

# Fixed in product.h and attention.h.
PANEL_WIDTH = 16
MAX_HEAD_DIM = 512


class Matrix(Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        *((name, c_int64) for name in ("outputs", "inputs", "is_bfloat")),
    )


class Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class Layer(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        *((name, Norm) for name in ("before_attention", "after_attention")),
        *((name, Norm) for name in ("before_mlp", "after_mlp", "query", "key")),
        *((name, c_void_p) for name in ("cosines", "sines", "keys", "values")),
        ("window", c_int64),
        ("scaling", c_float),
        ("softcap", c_float),
    )


class Model(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)),
        ("embedding", c_void_p),
        ("positions", c_void_p),
        ("head", Matrix),
        ("last", Norm),
        ("embedding_is_bfloat", c_int64),
        ("cache_is_bfloat", c_int64),
        *((name, c_int64) for name in ("count", "hidden", "heads", "kv_heads", "key_dim")),
        *((name, c_int64) for name in ("value_dim", "rotary", "inner")),
        *((name, c_int64) for name in ("gated", "activation", "block_size")),
        *((name, c_float) for name in ("epsilon", "embedding_scale", "logit_softcap")),
    )


class Step(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("ids", "first", "computed", "tables", "table_at")),
        *((name, c_void_p) for name in ("wanted", "logits", "scratch")),
        *((name, c_int64) for name in ("rows", "sequences", "logit_rows")),
    )


class Draw(Structure):
    _fields_ = (
        ("logits", c_void_p),
        ("top_k", c_int64),
        *((name, c_double) for name in ("top_p", "number")),
        *((name, c_float) for name in ("temperature", "min_p")),
        ("id", c_int64),
    )


def _load() -> ctypes.CDLL | None:
    """The library of this installation; None if it was not built or ROSEINFER_NATIVE is 0.

    ROSEINFER_NATIVE may also name a build, instead of the widest that the processor can run.
    """
    wanted = os.environ.get(_SWITCH, "")
    if wanted == "0":
        return None
    for suffix in reversed(EXTENSION_SUFFIXES):  # .abi3.so, as it is built, before any other
        path = Path(__file__).parent.with_name(f"_native{suffix}")
        if path.is_file():
            found = _declare(ctypes.CDLL(str(path)))
            if wanted:
                _choose(found, wanted)
            return found
    return None


def builds(found: ctypes.CDLL) -> dict[str, int]:
    """The numbers of the builds that this processor runs, by name."""
    before = found.rose_current()
    numbers = range(found.rose_builds())
    runs = {found.rose_build().decode(): n for n in numbers if found.rose_choose(n)}
    found.rose_choose(before)
    return runs


def _choose(found: ctypes.CDLL, name: str) -> None:
    runs = builds(found)
    if name not in runs:
        raise ConfigurationError(
            f"{_SWITCH}={name!r} is not possible: this processor runs {', '.join(runs)}; 0 turns "
            "the compiled decoder off"
        )
    found.rose_choose(runs[name])


def _declare(found: ctypes.CDLL) -> ctypes.CDLL:
    found.rose_build.restype = c_char_p
    found.rose_choose.argtypes = [c_int]
    found.rose_scratch.argtypes = [POINTER(Model), c_int64, c_int64]
    found.rose_scratch.restype = c_int64
    found.rose_decode.argtypes = [POINTER(Model), POINTER(Step)]
    found.rose_decode.restype = None
    found.rose_multiply.argtypes = [POINTER(Matrix), c_void_p, c_int64, c_void_p]
    found.rose_multiply.restype = None
    found.rose_draw.argtypes = [POINTER(Draw), c_int64, c_int64, c_void_p]
    found.rose_draw.restype = None
    return found


_library = _load()


def available() -> bool:
    return _library is not None


def library() -> ctypes.CDLL:
    """The library; callers ask `available` first."""
    if _library is None:
        raise RuntimeError("the compiled decoder is not part of this installation")
    return _library


def build_name() -> str | None:
    """The build in use: avx512_bf16, avx512, avx2 or portable; None without the library."""
    return None if _library is None else str(_library.rose_build().decode())

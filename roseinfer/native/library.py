"""The compiled library, and its structures as types.h has them, field by field."""

import ctypes
import logging
import os
import subprocess
from array import array
from collections.abc import Iterable, Sequence
from ctypes import POINTER, Structure, c_char_p, c_double, c_float, c_int, c_int64, c_void_p
from enum import IntEnum
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rose.errors import ConfigurationError
from roseinfer import _openmp
from roseinfer.native.compiler import cached_library
from roseinfer.sessions.session import SamplingRequest

log = logging.getLogger(__name__)

_SWITCH = "ROSEINFER_NATIVE"
#: In a released wheel. The library uses nothing of Python's C interface: one serves every version.
_RELEASED = Path(__file__).parents[1] / "_native.abi3.so"

# What `rose_decode` returns when it refused a step: see check.h.
FAULTS = {
    1: "its rows do not match its sequences",
    2: "a token id is outside the embedding",
    3: "a position is beyond the context",
    4: "a block table is too short",
    5: "a block number is outside the KV cache",
    6: "logits were asked for of a row that it does not have",
    7: "an expert that was to be taken does not exist, or logits of all rows were not asked for",
    8: "a slot for states does not exist, or states are to be written out of order",
}

# Fixed in simd.h, attention.h, experts.h and types.h.
PANEL_WIDTH = 16
MAX_HEAD_DIM = 576
MAX_EXPERTS = 1024
MAX_SUM_COLUMNS = 64


class WeightType(IntEnum):
    """As types.h numbers them."""

    FLOAT32 = 0
    BFLOAT16 = 1
    INT8 = 2
    INT4 = 3
    INT8_MINIMUM = 4
    INT4_MINIMUM = 5
    INT8_ZERO = 6
    INT4_ZERO = 7
    Q4_K = 8
    Q5_K = 9
    Q6_K = 10
    WIDE_INT8 = 11
    WIDE_INT4 = 12
    CODES = 13


class Matrix(Structure):
    _fields_ = (
        ("panels", c_void_p),
        ("bias", c_void_p),
        ("next", c_void_p),
        *((name, c_int64) for name in ("outputs", "inputs", "type")),
    )


class Norm(Structure):
    _fields_ = (("weight", c_void_p), ("bias", c_void_p))


class Experts(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("router", "shared_gate_up", "shared_down")),
        *((name, c_void_p) for name in ("bias", "scales")),
        ("router_norm", Norm),
        *((name, c_int64) for name in ("count", "chosen", "scoring", "groups", "chosen_groups")),
        *((name, c_int64) for name in ("compared", "normalizes", "gates_shared")),
        ("scale", c_float),
    )


class Mixer(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("input", "output")),
        ("norm", Norm),
        *((name, c_void_p) for name in ("taps", "bias", "decay", "step_bias", "skip")),
        ("multipliers", c_void_p),
        *((name, c_void_p) for name in ("inputs", "sums")),
        *((name, c_int64) for name in ("mixing", "channels", "kernel")),
        *((name, c_int64) for name in ("groups", "heads", "keys", "values", "normed")),
        ("gates_last", c_int64),
        *((name, c_float) for name in ("epsilon", "beta_scale", "least_step", "most_step")),
    )


class Latent(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("query", "keys", "values")),
        *((name, Norm) for name in ("query_norm", "norm")),
        ("epsilon", c_float),
    )


class DenseMlp(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("gate_up", "down")),
        *((name, Norm) for name in ("before", "after", "after_experts")),
    )


class Layer(Structure):
    _fields_ = (
        *((name, Matrix) for name in ("qkv", "output", "gate_up", "down")),
        *((name, Matrix) for name in ("input_gate", "input_output")),
        ("mixer", POINTER(Mixer)),
        ("latent", POINTER(Latent)),
        ("experts", POINTER(Experts)),
        ("dense", POINTER(DenseMlp)),
        *((name, Norm) for name in ("before_attention", "after_attention")),
        *((name, Norm) for name in ("before_mlp", "after_mlp", "query", "key")),
        *((name, Norm) for name in ("value", "after_input")),
        *((name, c_void_p) for name in ("cosines", "sines", "keys", "values")),
        ("window", c_int64),
        ("sinks", c_void_p),
        *((name, c_int64) for name in ("heads", "kv_heads", "key_dim", "value_dim", "rotary")),
        *((name, c_int64) for name in ("shares_kv", "values_are_keys", "bidirectional")),
        *((name, c_float) for name in ("scaling", "softcap")),
        *((name, c_float) for name in ("attention_scale", "mixer_scale", "mlp_scale", "scale")),
    )


class LayerInputs(Structure):
    _fields_ = (
        ("embedding", c_void_p),
        ("projection", Matrix),
        ("norm", Norm),
        ("width", c_int64),
        *((name, c_float) for name in ("embedding_scale", "projection_scale", "scale")),
    )


class DraftInputs(Structure):
    _fields_ = (("projection", Matrix), ("embedding", Norm), ("hidden", Norm))


class Model(Structure):
    _fields_ = (
        ("layers", POINTER(Layer)),
        ("inputs", POINTER(LayerInputs)),
        ("drafts", POINTER(DraftInputs)),
        ("embedding", c_void_p),
        ("positions", c_void_p),
        ("query_scales", c_void_p),
        ("head", Matrix),
        ("last", Norm),
        ("embedding_is_bfloat", c_int64),
        ("cache_is_bfloat", c_int64),
        *((name, c_int64) for name in ("embedding_rows", "context", "blocks", "slots")),
        *((name, c_int64) for name in ("count", "hidden", "inner")),
        *((name, c_int64) for name in ("gated", "activation", "block_size")),
        *((name, c_int64) for name in ("norms_rows", "norms_by_head", "norms_rotated")),
        *((name, c_int64) for name in ("rotates_neighbours", "norms_sums", "parallel")),
        *((name, c_int64) for name in ("gates_attention", "has_latents")),
        *((name, c_float) for name in ("epsilon", "embedding_scale", "logit_softcap")),
        *((name, c_float) for name in ("gate_limit", "gate_slope", "gate_scale")),
    )


class Step(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("ids", "first", "computed", "tables", "table_offsets")),
        *((name, c_void_p) for name in ("slots", "writes", "kept", "logit_indices")),
        *((name, c_void_p) for name in ("embedded", "before", "hidden", "logits", "scratch")),
        ("routes", c_void_p),
        ("agreed", POINTER(c_int64)),
        *((name, c_int64) for name in ("rows", "sequences", "kept_rows", "logit_rows")),
        ("table_entries", c_int64),
        *((name, c_int64) for name in ("written", "threads")),
    )


class SampleRequest(Structure):
    _fields_ = (
        ("logits", c_void_p),
        *((name, c_int64) for name in ("top_k", "seed", "position")),
        *((name, c_double) for name in ("top_p", "temperature", "min_p")),
    )


#: Where `SamplingRequest.packed` has its fields, by number.
_PACKED = {1: 2, 2: 3, 4: 6, 5: 5, 6: 7}


class Recurrence(Structure):
    _fields_ = (
        *((name, c_void_p) for name in ("query", "key", "value", "decay", "beta", "out", "sums")),
        *((name, c_void_p) for name in ("scratch", "starts", "ends", "slots", "writes")),
        *((name, c_int64) for name in ("key_stride", "value_stride", "decay_stride", "out_stride")),
        *((name, c_int64) for name in ("sequences", "groups", "heads", "keys", "values")),
        *((name, c_int64) for name in ("written", "threads", "delta")),
    )


class _Field(Structure):
    _fields_ = (("name", c_char_p), ("offset", c_int64), ("size", c_int64))


_SHARED = (
    *(Matrix, Norm, Experts, Mixer, Latent, DenseMlp, Layer, LayerInputs, DraftInputs),
    *(Model, Step),
    *(Recurrence, SampleRequest),
)


class Loaded(NamedTuple):
    """The library, or the reason why there is none."""

    library: ctypes.CDLL | None
    reason: str = ""


@cache
def load() -> Loaded:
    """The library, opened once; it is compiled where no release brought it.

    Where it cannot be, transformers' code computes the same tokens: a worker is slow, not wrong,
    and its log says why.

    Raises ConfigurationError if ROSEINFER_NATIVE names a build that cannot run here.
    """
    wanted = os.environ.get(_SWITCH, "")
    if wanted == "0":
        return Loaded(None, f"{_SWITCH}=0 turns the compiled decoder off")
    loaded = open_library(_RELEASED) if _RELEASED.is_file() else _open_compiled(wanted)
    if wanted in ("", "all"):
        return loaded
    if loaded.library is None:
        raise ConfigurationError(f"{_SWITCH}={wanted!r} is not possible: {loaded.reason}")
    _choose(loaded.library, wanted)
    return loaded


def _open_compiled(wanted: str) -> Loaded:
    def say() -> None:
        log.info("compiling the decoder for this processor, once: this takes a minute")

    try:
        return open_library(cached_library(wanted, say))
    except OSError as error:
        return Loaded(None, f"it cannot be compiled: {error}")
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines()
        return Loaded(None, f"it cannot be compiled: {said[-1] if said else error}")


def open_library(path: Path) -> Loaded:
    """The library at `path`, if it can be opened and was built from the sources beside this."""
    try:
        opened = _openmp.open_with_openmp(path)
    except OSError as error:
        return Loaded(None, f"it cannot be opened: {error}")
    difference = layout_difference(opened)
    if difference is not None:
        return Loaded(None, f"it was built from other sources ({difference}): install again")
    return Loaded(_declare(opened))


def layout_difference(opened: ctypes.CDLL) -> str | None:
    """The first field that the library and the structures here place differently."""
    try:
        opened.rose_layout.restype = POINTER(_Field)
    except AttributeError:
        return "it describes no layout"
    count = c_int64()
    fields = opened.rose_layout(ctypes.byref(count))[: count.value]
    theirs = {field.name.decode(): (field.offset, field.size) for field in fields}
    ours = _layout()
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            return f"{name}: {theirs.get(name)} there, {ours.get(name)} here"
    return None


def _layout() -> dict[str, tuple[int, int]]:
    """Offset and size of every structure and field, as layout.h lists them."""
    found: dict[str, tuple[int, int]] = {}
    for struct in _SHARED:
        found[struct.__name__] = (0, ctypes.sizeof(struct))
        for name, *_ in struct._fields_:
            field = getattr(struct, name)
            found[f"{struct.__name__}.{name}"] = (field.offset, field.size)
    return found


def builds(opened: ctypes.CDLL) -> dict[str, int]:
    """The numbers of the builds that this processor runs, by name."""
    before = opened.rose_current()
    numbers = range(opened.rose_builds())
    runs = {opened.rose_build().decode(): n for n in numbers if opened.rose_choose(n)}
    opened.rose_choose(before)
    return runs


def _choose(opened: ctypes.CDLL, name: str) -> None:
    runs = builds(opened)
    if name not in runs:
        raise ConfigurationError(
            f"{_SWITCH}={name!r} is not possible: this processor runs {', '.join(runs)}; 0 turns "
            "the compiled decoder off"
        )
    opened.rose_choose(runs[name])


def _declare(opened: ctypes.CDLL) -> ctypes.CDLL:
    opened.rose_build.restype = c_char_p
    opened.rose_choose.argtypes = [c_int]
    opened.rose_scratch.argtypes = [POINTER(Model), c_int64, c_int64, c_int64]
    opened.rose_scratch.restype = c_int64
    opened.rose_decode.argtypes = [POINTER(Model), POINTER(Step)]
    opened.rose_decode.restype = c_int
    rows = (c_void_p, c_int64, c_int64, c_void_p)
    opened.rose_prepare.argtypes = (POINTER(Matrix), *rows)
    opened.rose_prepare.restype = None
    opened.rose_multiply.argtypes = (POINTER(Matrix), *rows, c_void_p)
    opened.rose_multiply.restype = None
    opened.rose_sample.argtypes = [
        *(POINTER(SampleRequest), c_int64, c_int64),
        *(c_void_p, c_void_p, c_int64),
    ]
    opened.rose_sample.restype = None
    opened.rose_recur.argtypes = [POINTER(Recurrence)]
    opened.rose_recur.restype = None
    return opened


def available() -> bool:
    return load().library is not None


def missing_reason() -> str:
    """Why there is no library; empty if there is one."""
    return load().reason


def fault_of(model: Any) -> str:
    """Why the library cannot compute `model` whatever its layers are; empty if it may."""
    if not available():
        return missing_reason()
    if model.dtype not in (torch.float32, torch.bfloat16):
        return f"it computes in float32 and bfloat16, not in {model.dtype}"
    return ""


def library() -> ctypes.CDLL:
    """The library; callers ask `available` first."""
    loaded = load()
    if loaded.library is None:
        raise RuntimeError(f"there is no compiled decoder: {loaded.reason}")
    return loaded.library


def build_name() -> str | None:
    """The build in use, of those in library.cpp; None without the library."""
    loaded = load().library
    return None if loaded is None else str(loaded.rose_build().decode())


@cache
def library_digest() -> str | None:
    """Of the library's file: its builds may round differently than those of another."""
    loaded = load().library
    return None if loaded is None else sha256(Path(loaded._name).read_bytes()).hexdigest()


def address(values: "array[int]") -> int:
    """For a structure; valid as long as nothing is added."""
    return values.buffer_info()[0]


def can_sample(logits: Tensor) -> bool:
    """Whether the library can sample from such logits [B, V]."""
    return (
        available() and logits.is_cpu and logits.dtype == torch.float32 and logits.stride(-1) == 1
    )


def sample_rows(
    parts: Iterable[tuple[Tensor, Sequence[int]]], requests: Sequence[SamplingRequest]
) -> Tensor:
    """A token id [S] for each of `requests`, or NO_TOKEN. The semantics are those of
    `filters.filter_logits`; NaN counts as -inf.

    `parts` are logits [N, V] and the requests that each of their lines is for. Of several lines for
    one request the last counts. Raises ValueError where they do not fit.
    """
    addresses, vocabulary = array("q", bytes(8 * len(requests))), 0
    for values, targets in parts:
        lines, width = values.shape
        if not can_sample(values) or len(targets) > lines or width != (vocabulary or width):
            raise ValueError(
                f"logits must be float32 on CPU, a line of one length for each of {len(targets)} "
                f"requests: {values.dtype} {tuple(values.shape)}"
            )
        vocabulary = width
        address, step = values.data_ptr(), 4 * values.stride(0)
        for target in targets:
            addresses[target] = address
            address += step
    if 0 in addresses:
        raise ValueError(f"no logits for request {addresses.index(0)} of {len(requests)}")
    packed = memoryview(b"".join([request.packed for request in requests])).cast("q")
    fields = SamplingRequest.FIELDS
    table = bytearray(ctypes.sizeof(SampleRequest) * len(requests))
    numbers, width = memoryview(table).cast("q"), ctypes.sizeof(SampleRequest) // 8
    numbers[0::width] = memoryview(addresses)
    numbers[3::width] = memoryview(array("q", [request.position for request in requests]))
    for number, packed_at in _PACKED.items():
        numbers[number::width] = packed[packed_at::fields]
    ids = torch.empty(len(requests), dtype=torch.int64)
    # The library starts no more threads than it is told, whatever OpenMP's own default is.
    threads = torch.get_num_threads()
    draws = any(packed[SamplingRequest.DIVISOR :: fields].tolist())
    weights = torch.empty(threads if draws else 0, vocabulary)
    library().rose_sample(
        (SampleRequest * len(requests)).from_buffer(table),
        len(requests),
        vocabulary,
        weights.data_ptr(),
        ids.data_ptr(),
        threads,
    )
    return ids

"""Compiles the kernels for a GPU that need not be there, and prints what each takes of it.

    TRITON_INTERPRET=0 python -m tests.roseinfer.gpu.compiling [all]

One line a kernel: its name, its shape, bytes of shared memory. The interpreter runs what no
compiler would accept; this is the other half of the proof.
"""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roseinfer.gpu import kernels, launch
from roseinfer.gpu.launch import Pages

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_INTEGERS = {"tables", "table_starts", "query_starts", "lengths", "slots"}
_FEW = [
    ((torch.bfloat16, 128, 128), 4, 1, None),
    ((torch.bfloat16, 128, 128), 4, 16, 4096),
]


def main(everything: bool) -> None:
    shapes = [(torch.bfloat16, 192, 128), *itertools.product(_TYPES, (64, 80, 96, 128, 256))]
    pairs = [(s[0], s[1], s[-1]) for s in shapes]
    cases = list(itertools.product(pairs, (1, 3, 8), (1, 16), (None, 4096)))
    for shape, group, splits, window in cases if everything else _FEW:
        attend(*shape, group=group, splits=splits, window=window)
    for dtype, key_dim, value_dim in pairs if everything else [_FEW[0][0]]:
        write(dtype, key_dim, value_dim)
        reduce(dtype, value_dim)


def attend(
    dtype: torch.dtype, key_dim: int, value_dim: int, *, group: int, splits: int, window: int | None
) -> None:
    pages = Pages(torch.empty(1, 8, key_dim, dtype=dtype), torch.empty(1, 8, value_dim), 16)
    tile = launch._prefill_tile(pages, group) if splits == 1 else launch._decode_tile(pages, group)
    _compile(
        kernels.attend_kernel,
        dtype,
        {"KV_HEADS": 8, "GROUP": group, "PAGE": 16, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}
        | {"WINDOW": window or 0, "HAS_SOFTCAP": window is not None, "HAS_SINKS": group == 3}
        | {"SPLITS": splits, "WIDEN": False, "BLOCK_M": tile.rows, "BLOCK_N": tile.keys}
        | {"BLOCK_KD": launch._block(key_dim), "BLOCK_VD": launch._block(value_dim)},
    )


def write(dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    constants = {"KV_HEADS": 8, "KEY_DIM": key_dim, "VALUE_DIM": value_dim, "BLOCK_T": 16}
    blocks = {"BLOCK_KD": launch._block(key_dim), "BLOCK_VD": launch._block(value_dim)}
    _compile(kernels.write_kernel, dtype, constants | blocks)


def reduce(dtype: torch.dtype, value_dim: int) -> None:
    constants = {"HEADS": 32, "VALUE_DIM": value_dim, "SPLITS": 16, "BLOCK_H": 8}
    _compile(kernels.reduce_kernel, dtype, constants | {"BLOCK_VD": launch._block(value_dim)})


def _compile(kernel: Any, dtype: torch.dtype, constants: dict[str, Any]) -> None:
    signature = {name: _type(name, constants, _TYPES[dtype]) for name in kernel.arg_names}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("stride")
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=HOPPER, options=launch.OPTIONS)
    shared = compiled.metadata.shared
    print(kernel.fn.__name__, _TYPES[dtype], *constants.values(), "shared memory", shared)
    if shared > SHARED_MEMORY:
        raise SystemExit(f"{kernel.fn.__name__} needs {shared} bytes of shared memory")


def _type(name: str, constants: dict[str, Any], dtype: str) -> str:
    if name in constants:
        return "constexpr"
    if name in _INTEGERS:
        return "*i64"
    if name.startswith("partial") or name == "sinks":
        return "*fp32"
    if name in ("scaling", "softcap"):
        return "fp32"
    return "i32" if name in ("first", "tokens") or name.endswith("stride") else f"*{dtype}"


if __name__ == "__main__":
    main("all" in sys.argv[1:])

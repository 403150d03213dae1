"""Compiles the kernels for a GPU that need not be there, and prints what each takes of it.

    TRITON_INTERPRET=0 python -m tests.roseinfer.gpu.compiling [all]

One line a kernel: its name, its shape, bytes of shared memory, registers of a thread. The
interpreter runs what no compiler would accept; this is the other half of the proof. A kernel that
asks for more shared memory than there is fails, and in the types that a GPU serves in one that has
too few registers.
"""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tempfile
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from roseinfer.families import Activation
from roseinfer.gpu import attention, sampling, skinny_gemm
from roseinfer.gpu.attention import Pages
from roseinfer.gpu.device import next_power_of_2
from roseinfer.gpu.kernels.attention import attend_kernel, reduce_kernel, write_kernel
from roseinfer.gpu.kernels.layers import activate_kernel, norm_kernel, rope_kernel
from roseinfer.gpu.kernels.sampling import sample_kernel
from roseinfer.gpu.kernels.skinny_gemm import skinny_gemm_kernel

HOPPER = GPUTarget("cuda", 90, 32)
SHARED_MEMORY = 227 * 1024
_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_INTEGERS = {"tables", "table_starts", "query_starts", "lengths", "slots", "positions"}
_FLOATS = {"sinks", "hidden", "after", "norm", "norms", "cosines", "sines"}
_NUMBERS = {"scaling", "softcap", "epsilon"}
_COUNTS = {"first", "tokens", "rows"}
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
        for block in (1, 8):
            rope(dtype, key_dim, value_dim, block=block)
    for dtype in _TYPES if everything else [torch.bfloat16]:
        norms(dtype)
        sample(dtype)
        widest = skinny_gemm._MAX_BLOCK_BYTES // dtype.itemsize
        for block in (16, 32, widest) if everything else (widest,):
            products(dtype, block)
        for gated, activation in itertools.product((True, False), Activation):
            activate(dtype, gated=gated, activation=activation)


def attend(
    dtype: torch.dtype, key_dim: int, value_dim: int, *, group: int, splits: int, window: int | None
) -> None:
    pages = Pages(torch.empty(1, 8, key_dim, dtype=dtype), torch.empty(1, 8, value_dim), 16)
    tile = (
        attention._prefill_tile(pages, group)
        if splits == 1
        else attention._decode_tile(pages, group)
    )
    _compile(
        attend_kernel,
        dtype,
        {"KV_HEADS": 8, "GROUP": group, "PAGE": 16, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}
        | {"WINDOW": window or 0, "HAS_SOFTCAP": window is not None, "HAS_SINKS": group == 3}
        | {"SPLITS": splits, "WIDEN": False, "BLOCK_M": tile.rows, "BLOCK_N": tile.keys}
        | {"BLOCK_KD": attention._block(key_dim), "BLOCK_VD": attention._block(value_dim)},
    )


def write(dtype: torch.dtype, key_dim: int, value_dim: int) -> None:
    constants = {"KV_HEADS": 8, "KEY_DIM": key_dim, "VALUE_DIM": value_dim, "BLOCK_T": 16}
    blocks = {"BLOCK_KD": attention._block(key_dim), "BLOCK_VD": attention._block(value_dim)}
    _compile(write_kernel, dtype, constants | blocks)


def reduce(dtype: torch.dtype, value_dim: int) -> None:
    constants = {"HEADS": 32, "VALUE_DIM": value_dim, "SPLITS": attention._MAX_SPLITS}
    _compile(reduce_kernel, dtype, constants | {"BLOCK_VD": attention._block(value_dim)})


def rope(dtype: torch.dtype, key_dim: int, value_dim: int, *, block: int) -> None:
    constants = {"QUERIES": 32, "KV_HEADS": 8, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}
    flags = {"ROTARY": key_dim // 2, "HAS_NORMS": block == 1, "BLOCK_T": block}
    blocks = {"BLOCK_KD": next_power_of_2(key_dim), "BLOCK_VD": next_power_of_2(value_dim)}
    _compile(rope_kernel, dtype, constants | flags | blocks, num_warps=1 if block == 1 else 4)


def norms(dtype: torch.dtype) -> None:
    for hidden, after, bias in ((1024, True, False), (4096, False, True), (8192, False, False)):
        flags = {"HAS_DELTA": True, "HAS_AFTER": after, "HAS_NORM": True, "HAS_BIAS": bias}
        constants = {"HIDDEN": hidden, **flags, "BLOCK": hidden}
        floats = {"weight": "*fp32", "bias": "*fp32"}
        _compile(norm_kernel, dtype, constants, floats, num_warps=4 if hidden == 1024 else 8)


def products(dtype: torch.dtype, block: int) -> None:
    """Into a layer, out of it, and the gated pair."""
    shape = {"OUTPUTS": 4096, "INPUTS": 4096, "HAS_BIAS": True, "WIDEN": False}
    for norm, adds, gated in ((True, False, False), (False, True, False), (True, False, True)):
        flags = {"HAS_NORM": norm, "ADDS": adds, "GATED": gated, "ACTIVATION": 0 if gated else -1}
        inputs = skinny_gemm.inputs_of(block, norm)
        blocks = {"BLOCK_R": skinny_gemm.MAX_ROWS, "BLOCK_N": block, "BLOCK_K": inputs}
        floats = {name: "*fp32" for name, is_float in (("x", norm), ("out", adds)) if is_float}
        _compile(skinny_gemm_kernel, dtype, shape | flags | blocks, floats, **skinny_gemm.OPTIONS)


def activate(dtype: torch.dtype, *, gated: bool, activation: Activation) -> None:
    constants = {"INNER": 14336, "GATED": gated, "ACTIVATION": int(activation), "BLOCK": 1024}
    _compile(activate_kernel, dtype, constants)


def sample(dtype: torch.dtype) -> None:
    shape = {"FIELDS": 8, "COUNT": 128256, "SHIFT": sampling.SHIFTS[dtype]}
    others = {"requests": "*i64", "ids": "*i64"}
    block = {"BLOCK": sampling._MAX_BLOCK}
    _compile(sample_kernel, dtype, shape | block, others, **sampling.OPTIONS)


def _compile(
    kernel: Any,
    dtype: torch.dtype,
    constants: dict[str, Any],
    others: dict[str, str] | None = None,
    **options: int,
) -> None:
    signature = {name: _type(name, constants, _TYPES[dtype]) for name in kernel.arg_names}
    signature |= others or {}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("stride")
    }
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=HOPPER, options=options or attention.OPTIONS)
    shared, (registers, spilled) = compiled.metadata.shared, _registers(compiled.asm["cubin"])
    shape = " ".join(map(str, constants.values()))
    print(kernel.fn.__name__, _TYPES[dtype], shape, "shared", shared, "registers", registers)
    if shared > SHARED_MEMORY:
        raise SystemExit(f"{kernel.fn.__name__} needs {shared} bytes of shared memory")
    if spilled and dtype != torch.float32:
        raise SystemExit(f"{kernel.fn.__name__} has no registers for {spilled} bytes")


def _registers(binary: bytes) -> tuple[int, int]:
    """Registers of a thread, and bytes that found no room in them."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        tool = triton.knobs.nvidia.cuobjdump.path
        command = [tool, "--dump-resource-usage", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    [(registers, stack)] = re.findall(r"REG:(\d+) STACK:(\d+)", done.stdout)
    return int(registers), int(stack)


def _type(name: str, constants: dict[str, Any], dtype: str) -> str:
    if name in constants:
        return "constexpr"
    if name in _INTEGERS:
        return "*i64"
    if name.startswith("partial") or name in _FLOATS:
        return "*fp32"
    if name in _NUMBERS:
        return "fp32"
    return "i32" if name in _COUNTS or name.endswith("stride") else f"*{dtype}"


if __name__ == "__main__":
    main("all" in sys.argv[1:])

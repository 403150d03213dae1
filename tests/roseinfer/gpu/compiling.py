"""Compiles what the engine launches, for two GPUs that need not be there.

    TRITON_INTERPRET=0 python -m tests.roseinfer.gpu.compiling [all]

It prints one line a kernel: its name, its shape, bytes of shared memory, registers of a thread. The
interpreter runs what no compiler would accept; this is the other half of the proof. The engine's
own functions launch the kernels, and each launch is compiled instead. A kernel that asks for more
shared memory than there is fails, and in the types that a GPU serves one that has far too few
registers.
"""

import itertools
import re
import subprocess
import sys
import tempfile
from functools import partialmethod
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from roseinfer import SamplingParams
from roseinfer.gpu import attention, layers
from roseinfer.gpu import skinny_gemm as products_of_few_rows
from roseinfer.gpu.attention import AttentionParams, Pages, Sequences
from roseinfer.gpu.layers import Heads, apply_activation, apply_rope_and_store, residual_norm
from roseinfer.gpu.sampling import KernelRequest, sample_rows
from roseinfer.gpu.skinny_gemm import MAX_ROWS, Matrix, skinny_gemm
from roseinfer.model.families import Activation, NormPart
from roseinfer.sessions.session import SamplingRequest


class Device(NamedTuple):
    target: GPUTarget
    shared_memory: int
    """bytes, of a program"""
    multiprocessors: int


HOPPER = Device(GPUTarget("cuda", 90, 32), 227 * 1024, 132)
ADA = Device(GPUTarget("cuda", 89, 32), 99 * 1024, 128)  # as Ampere's for desktops
# Measured on an H200, the fastest tiles for prefill spill up to 168 bytes of a thread.
_FEW_BYTES = 192
_TYPES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
_KINDS = {**_TYPES, torch.int64: "i64"}
_KV_HEADS = 8
_NUMBERS = torch.zeros(64, dtype=torch.int64)  # slots, positions, lengths: whatever is asked for
_compiled: set[str] = set()


def main(everything: bool) -> None:
    for device in (HOPPER, ADA):
        print(device.target)
        launch_as_on(device)
        _compiled.clear()
        compile_all(everything)


def launch_as_on(device: Device) -> None:
    JITFunction.run = partialmethod(_compile, device)
    for module in (attention, layers, products_of_few_rows):
        vars(module)["multiprocessors"] = lambda _: device.multiprocessors
    vars(attention)["shared_memory"] = lambda _: device.shared_memory


def compile_all(everything: bool) -> None:
    shapes = [(torch.bfloat16, 128, 128)]
    if everything:
        shapes = [(dtype, d, d) for dtype, d in itertools.product(_TYPES, (64, 80, 96, 128, 256))]
        shapes.append((torch.bfloat16, 192, 128))
    for dtype, key_dim, value_dim in shapes:
        pages = Pages(_floats(1, 8, key_dim, dtype), _floats(1, 8, value_dim, dtype), 16)
        for group, window in itertools.product((1, 3, 8) if everything else (4,), (None, 4096)):
            attend(pages, group, window)
        for tokens in (1, 16):
            rope_and_store(pages, tokens)
    for dtype in _TYPES if everything else [torch.bfloat16]:
        norms(dtype)
        activations(dtype)
        for outputs in (64, 320, 4096) if everything else (4096,):
            products(dtype, outputs)
        greedy = SamplingRequest(SamplingParams(), 0)
        sample_rows(_floats(1, 128256, dtype), [KernelRequest(0, 0, greedy)], _NUMBERS)


def attend(pages: Pages, group: int, window: int | None) -> None:
    """Short and long prefill, decode of many sequences, and of one in many parts."""
    heads = _KV_HEADS * group
    sinks = _floats(heads) if group == 3 else None
    params = AttentionParams(0.1, window, None if window is None else 30.0, sinks)
    query = _floats(3, heads, pages.keys.shape[2], pages.keys.dtype)
    for decodes, longest, splits in ((0, 3, 1), (0, 8192, 1), (64, 0, 1), (1, 0, 32)):
        prefills = 1 if longest else 0
        sequences = Sequences(_NUMBERS, _NUMBERS, _NUMBERS, _NUMBERS, decodes, prefills, longest)
        attention.attend(pages, query, sequences, params, splits=splits)


def rope_and_store(pages: Pages, tokens: int) -> None:
    """A program for each token and the norms of heads, or shared ones; and the write alone."""
    key_dim, value_dim, dtype = pages.keys.shape[2], pages.values.shape[2], pages.keys.dtype
    norms = _floats(2, key_dim) if tokens == 1 else None
    angles = _floats(64, key_dim // 4)
    heads = Heads(32, norms, 1e-5, angles, angles)
    qkv = _floats(tokens, 32 * key_dim + _KV_HEADS * (key_dim + value_dim), dtype)
    apply_rope_and_store(qkv, heads, pages, _NUMBERS, _NUMBERS)
    keys = _floats(tokens, _KV_HEADS, key_dim, dtype)
    attention.write(pages, keys, _floats(tokens, _KV_HEADS, value_dim, dtype), _NUMBERS)


def norms(dtype: torch.dtype) -> None:
    for width, after, bias in ((1024, True, False), (4096, False, True), (8192, False, False)):
        norm = NormPart(_floats(width), 1e-5, _floats(width) if bias else None)
        branch = NormPart(_floats(width), 1e-5) if after else None
        hidden, delta = _floats(1, width), _floats(1, width, dtype)
        residual_norm(hidden, norm, dtype, delta=delta, after=branch)


def products(dtype: torch.dtype, outputs: int) -> None:
    """Into a layer, out of it, and the gated pair."""
    weight, bias = _floats(outputs, 4096, dtype), _floats(2 * outputs, dtype)
    x = _floats(MAX_ROWS, 4096, dtype)
    skinny_gemm(x, Matrix(weight, bias))
    skinny_gemm(x, Matrix(weight, bias), add_to=_floats(MAX_ROWS, outputs))
    skinny_gemm(x, Matrix(_floats(2 * outputs, 4096, dtype), bias, Activation.SILU, gated=True))


def activations(dtype: torch.dtype) -> None:
    for gated, activation in itertools.product((True, False), Activation):
        apply_activation(_floats(1, 14336 * (2 if gated else 1), dtype), gated, activation)


def _floats(*shape: Any) -> Tensor:
    """Of a shape, and a type after it if it is not float32; the values do not matter."""
    *sizes, last = shape
    if isinstance(last, torch.dtype):
        return torch.zeros(*sizes, dtype=last)
    return torch.zeros(*shape)


def _compile(
    kernel: Any, device: Device, *arguments: Any, grid: Any, warmup: bool, **keywords: Any
) -> None:
    """In the place of JITFunction.run: compile the launch for `device` and say what it takes."""
    values = dict(zip(kernel.arg_names, arguments, strict=False))
    constants = {p.name: keywords.pop(p.name) for p in kernel.params if p.is_constexpr}
    signature = {
        name: "constexpr" if name in constants else _type(values[name]) for name in kernel.arg_names
    }
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, (name, kind) in enumerate(signature.items())
        if kind.startswith("*") or name.endswith("stride")
    }
    key = f"{kernel.fn.__name__} {signature} {constants}"
    if key in _compiled:
        return
    _compiled.add(key)
    source = ASTSource(kernel, signature, constexprs=constants, attrs=aligned)
    compiled = triton.compile(source, target=device.target, options=keywords)
    shared, (registers, spilled) = compiled.metadata.shared, _registers(compiled.asm["cubin"])
    shape = " ".join(map(str, (*signature.values(), *constants.values())))
    shape = shape.replace("constexpr ", "")
    print(kernel.fn.__name__, shape, "shared", shared, "registers", registers)
    if shared > device.shared_memory:
        raise SystemExit(f"{kernel.fn.__name__} needs {shared} bytes of shared memory")
    if spilled > _FEW_BYTES and {"*fp16", "*bf16"} & set(signature.values()):
        raise SystemExit(f"{kernel.fn.__name__} has no registers for {spilled} bytes")


def _type(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"*{_KINDS[value.dtype]}"
    return "fp32" if isinstance(value, float) else "i32"


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


if __name__ == "__main__":
    main("all" in sys.argv[1:])

"""Functions that several kernels share."""

import triton
import triton.language as tl

from roseinfer.model.families import Activation

_SILU = tl.constexpr(int(Activation.SILU))


@triton.jit
def multiply(a, b, WIDEN: tl.constexpr):
    """WIDEN is for the interpreter, which has no bfloat16 products; it changes no result."""
    if WIDEN:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, input_precision="ieee")


@triton.jit
def activate(x, KIND: tl.constexpr):
    y = x
    if KIND != _SILU:
        # gelu in its tanh form: 1 + tanh(y) is 2 * sigmoid(2 * y)
        y = 1.5957691216 * (x + 0.044715 * x * x * x)
    fade = tl.exp(-tl.abs(y))  # never overflows
    return x * tl.where(y < 0, fade, 1.0) / (1.0 + fade)

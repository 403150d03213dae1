"""Products of a few rows with a matrix, and what goes before and after them, in one kernel.

A decode step of few sequences reads every weight once and does next to nothing with it, so it costs
what memory costs if nothing stands between one matrix and the next. The usual small kernels stand
there: each takes longer to start than to run. This one takes their work along:

    before   the RMS norm. Its factor is the same for a whole row, so the product is made of what is
             not yet divided, while the squares are summed up, and divided at the end.
    after    bias, activation, gate, and the sum with the residual stream.

    sums [BLOCK_R, BLOCK_N]  =  x [BLOCK_R, INPUTS]  times  weight [BLOCK_N of OUTPUTS, INPUTS]^T

A gated pair of matrices lies one behind the other, [2 * OUTPUTS, INPUTS], gates first; a program
makes both sums of its outputs.
"""

import triton
import triton.language as tl

from roseinfer.gpu.kernels.arithmetic import activate, multiply

_NONE = tl.constexpr(-1)


@triton.jit(do_not_specialize=["rows"])
def skinny_gemm_kernel(
    x,
    weight,
    bias,
    norm,
    out,
    rows,
    x_stride,
    out_stride,
    epsilon,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    ADDS: tl.constexpr,
    GATED: tl.constexpr,
    ACTIVATION: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """BLOCK_N outputs of all rows."""
    row = tl.arange(0, BLOCK_R)
    output = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    real, inside = row < rows, output < OUTPUTS
    # A large vocabulary times a wide model is more than 32 bits count.
    lines = weight + output.to(tl.int64)[None, :] * INPUTS
    sums = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    gates = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    squares = tl.zeros([BLOCK_R], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        deep = k < INPUTS
        taken = deep[:, None] & inside[None, :]
        a = tl.load(
            x + row[:, None] * x_stride + k[None, :], mask=real[:, None] & deep[None, :], other=0.0
        )
        if HAS_NORM:
            squares += tl.sum(a * a, 1)
            a = (a * tl.load(norm + k, mask=deep, other=0.0)[None, :]).to(weight.dtype.element_ty)
        if GATED:
            gates += multiply(a, tl.load(lines + k[:, None], mask=taken, other=0.0), WIDEN)
            others = lines + OUTPUTS * INPUTS
            sums += multiply(a, tl.load(others + k[:, None], mask=taken, other=0.0), WIDEN)
        else:
            sums += multiply(a, tl.load(lines + k[:, None], mask=taken, other=0.0), WIDEN)

    if HAS_NORM:
        by = tl.rsqrt(squares / INPUTS + epsilon)[:, None]
        sums *= by
        gates *= by
    if HAS_BIAS:
        if GATED:
            gates += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[None, :]
            sums += tl.load(bias + OUTPUTS + output, mask=inside, other=0.0).to(tl.float32)[None, :]
        else:
            sums += tl.load(bias + output, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        sums *= activate(gates, ACTIVATION)
    elif ACTIVATION != _NONE:
        sums = activate(sums, ACTIVATION)
    target = out + row[:, None] * out_stride + output[None, :]
    mask = real[:, None] & inside[None, :]
    if ADDS:
        sums += tl.load(target, mask=mask, other=0.0)
    tl.store(target, sums.to(out.dtype.element_ty), mask=mask)

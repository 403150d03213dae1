"""A GEMM for few rows, fused with the operations behind it.

A decode step of few sequences reads every weight once and computes little with it, so memory
bandwidth is its limit. Small kernels between the matrices cost more: each takes longer to launch
than to run. This kernel includes bias, activation, gate, and the addition to the residual stream.

    sums [BLOCK_R, BLOCK_N]  =  x [BLOCK_R, INPUTS]  times  weight [BLOCK_N of OUTPUTS, INPUTS]^T

A gated pair of matrices is stored as one, [2 * OUTPUTS, INPUTS], gates first. A program computes
both sums of its outputs.

The norm in front is a kernel of its own. Here every program would do it again, and values that
registers change on their way to the product cannot be loaded ahead: that halved the bandwidth.
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
    out,
    rows,
    x_stride,
    out_stride,
    OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
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
    # A large vocabulary times a wide model overflows 32 bits.
    weight_rows = weight + output.to(tl.int64)[None, :] * INPUTS
    sums = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    gates = tl.zeros([BLOCK_R, BLOCK_N], tl.float32)
    for start in range(0, INPUTS, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        deep = k < INPUTS
        taken = deep[:, None] & inside[None, :]
        a = tl.load(
            x + row[:, None] * x_stride + k[None, :], mask=real[:, None] & deep[None, :], other=0.0
        )
        if GATED:
            gates += multiply(a, tl.load(weight_rows + k[:, None], mask=taken, other=0.0), WIDEN)
            up_rows = weight_rows + OUTPUTS * INPUTS
            sums += multiply(a, tl.load(up_rows + k[:, None], mask=taken, other=0.0), WIDEN)
        else:
            sums += multiply(a, tl.load(weight_rows + k[:, None], mask=taken, other=0.0), WIDEN)

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

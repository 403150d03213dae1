"""Kernels between the matrix products: norms, rotary embedding and cache write, activations."""

import triton
import triton.language as tl

from roseinfer.gpu.kernels.arithmetic import activate


@triton.jit
def norm_kernel(
    hidden,
    delta,
    after,
    weight,
    bias,
    out,
    epsilon,
    HIDDEN: tl.constexpr,
    HAS_DELTA: tl.constexpr,
    HAS_AFTER: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One row of the residual stream: add a branch's `delta`, through its own norm if it has one,
    then apply the next norm."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < HIDDEN
    x = tl.load(hidden + row * HIDDEN + columns, mask=inside, other=0.0)
    if HAS_DELTA:
        d = tl.load(delta + row * HIDDEN + columns, mask=inside, other=0.0).to(tl.float32)
        if HAS_AFTER:
            d *= tl.rsqrt(tl.sum(d * d, 0) / HIDDEN + epsilon)
            d *= tl.load(after + columns, mask=inside, other=0.0)
        x += d
        tl.store(hidden + row * HIDDEN + columns, x, mask=inside)
    if HAS_NORM:
        if HAS_BIAS:
            x = tl.where(inside, x - tl.sum(x, 0) / HIDDEN, 0.0)
        x *= tl.rsqrt(tl.sum(x * x, 0) / HIDDEN + epsilon)
        x *= tl.load(weight + columns, mask=inside, other=0.0)
        if HAS_BIAS:
            x += tl.load(bias + columns, mask=inside, other=0.0)
        tl.store(out + row * HIDDEN + columns, x.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _rotated(
    source,
    norm,
    cosines,
    sines,
    position,
    inside,
    epsilon,
    KEY_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HAS_NORM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_KD: tl.constexpr,
):
    """One head of BLOCK_T tokens, at `source` [BLOCK_T, 1], after norm and rotation, float32."""
    HALF: tl.constexpr = ROTARY // 2
    dims = tl.arange(0, BLOCK_KD)
    real = dims < KEY_DIM
    x = tl.load(source + dims[None, :], mask=inside[:, None] & real[None, :], other=0.0)
    x = x.to(tl.float32)
    scale = tl.full([BLOCK_T], 1.0, tl.float32)
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(x * x, 1) / KEY_DIM + epsilon)
        x *= scale[:, None] * tl.load(norm + dims, mask=real, other=0.0)[None, :]
    if ROTARY > 0:
        rotated = dims < ROTARY
        partner = tl.where(dims < HALF, dims + HALF, dims - HALF)
        both = inside[:, None] & rotated[None, :]
        y = tl.load(source + partner[None, :], mask=both, other=0.0).to(tl.float32)
        if HAS_NORM:
            y *= scale[:, None] * tl.load(norm + partner, mask=rotated, other=0.0)[None, :]
        angle = position[:, None] * HALF + (dims % HALF)[None, :]
        sine = tl.load(sines + angle, mask=both, other=0.0)
        x *= tl.load(cosines + angle, mask=both, other=1.0)
        x += y * tl.where((dims < HALF)[None, :], -sine, sine)
    return x


@triton.jit
def _store(target, x, inside, DIM: tl.constexpr, BLOCK: tl.constexpr):
    """Rows of a head to `target` [BLOCK_T, 1]."""
    dims = tl.arange(0, BLOCK)
    mask = inside[:, None] & (dims < DIM)[None, :]
    tl.store(target + dims[None, :], x.to(target.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["tokens"])
def rope_kernel(
    qkv,
    query,
    key_cache,
    value_cache,
    slots,
    positions,
    norms,
    cosines,
    sines,
    tokens,
    qkv_stride,
    epsilon,
    QUERIES: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    ROTARY: tl.constexpr,
    HAS_NORMS: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_KD: tl.constexpr,
    BLOCK_VD: tl.constexpr,
):
    """One head of BLOCK_T tokens: queries first, then keys, then values."""
    row = (tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)).to(tl.int64)
    head = tl.program_id(1)
    inside = row < tokens
    slot = tl.load(slots + row, mask=inside, other=0)
    position = tl.load(positions + row, mask=inside, other=0)
    line = qkv + row[:, None] * qkv_stride
    if head < QUERIES + KV_HEADS:
        x = _rotated(
            line + head * KEY_DIM,
            norms + tl.where(head < QUERIES, 0, KEY_DIM),
            cosines,
            sines,
            position,
            inside,
            epsilon,
            KEY_DIM,
            ROTARY,
            HAS_NORMS,
            BLOCK_T,
            BLOCK_KD,
        )
        if head < QUERIES:
            target = query + (row[:, None] * QUERIES + head) * KEY_DIM
            _store(target, x, inside, KEY_DIM, BLOCK_KD)
        else:
            key_target = key_cache + (slot[:, None] * KV_HEADS + head - QUERIES) * KEY_DIM
            _store(key_target, x, inside, KEY_DIM, BLOCK_KD)
    else:
        number = head - QUERIES - KV_HEADS
        dims = tl.arange(0, BLOCK_VD)
        source = line + (QUERIES + KV_HEADS) * KEY_DIM + number * VALUE_DIM + dims[None, :]
        value = tl.load(source, mask=inside[:, None] & (dims < VALUE_DIM)[None, :], other=0.0)
        value_target = value_cache + (slot[:, None] * KV_HEADS + number) * VALUE_DIM
        _store(value_target, value, inside, VALUE_DIM, BLOCK_VD)


@triton.jit
def activate_kernel(
    x, out, INNER: tl.constexpr, GATED: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK: tl.constexpr
):
    """A block of one row: the activation, times the second half if the layer is gated."""
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < INNER
    source = x + row * INNER * (2 if GATED else 1) + columns
    y = activate(tl.load(source, mask=inside, other=0.0).to(tl.float32), ACTIVATION)
    if GATED:
        y *= tl.load(source + INNER, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + row * INNER + columns, y.to(out.dtype.element_ty), mask=inside)

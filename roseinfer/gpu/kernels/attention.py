"""Triton kernels over the paged KV cache: the write, the attention, and its reduction.

One attention kernel serves prefill and decode. A program has a tile of rows of one sequence and one
KV head, and walks over the keys that the tile may see, BLOCK_N at a time. The query heads that
share the KV head are folded into the rows, so a decode step with GROUP of them still fills a
matrix unit:

    row       0       1       2       3       4       5         GROUP = 3, two queries
    query     0       0       0       1       1       1
    head      3h      3h+1    3h+2    3h      3h+1    3h+2      of KV head h

With SPLITS > 1 (decode) a sequence's keys are cut into as many parts, each with a program of its
own; what they found is combined by `reduce_kernel`.

Head sizes that are no power of two are padded under masks. Softmax is in base 2.
"""

import triton
import triton.language as tl

from roseinfer.gpu.kernels.arithmetic import multiply

_LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["tokens"])
def write_kernel(
    keys,
    values,
    key_cache,
    value_cache,
    slots,
    tokens,
    key_token_stride,
    key_head_stride,
    value_token_stride,
    value_head_stride,
    KV_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_KD: tl.constexpr,
    BLOCK_VD: tl.constexpr,
):
    """Keys and values of BLOCK_T tokens, one head of them, into their slots of the cache."""
    rows = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    head = tl.program_id(1)
    inside = rows < tokens
    slot = tl.load(slots + rows, mask=inside, other=0)

    dims = tl.arange(0, BLOCK_KD)
    mask = inside[:, None] & (dims < KEY_DIM)[None, :]
    source = keys + rows[:, None] * key_token_stride + head * key_head_stride + dims[None, :]
    target = key_cache + (slot[:, None] * KV_HEADS + head) * KEY_DIM + dims[None, :]
    tl.store(target, tl.load(source, mask=mask).to(key_cache.dtype.element_ty), mask=mask)

    dims = tl.arange(0, BLOCK_VD)
    mask = inside[:, None] & (dims < VALUE_DIM)[None, :]
    source = values + rows[:, None] * value_token_stride + head * value_head_stride + dims[None, :]
    target = value_cache + (slot[:, None] * KV_HEADS + head) * VALUE_DIM + dims[None, :]
    tl.store(target, tl.load(source, mask=mask).to(value_cache.dtype.element_ty), mask=mask)


@triton.jit
def _key_range(
    past,
    count,
    tile,
    split,
    QUERIES: tl.constexpr,
    WINDOW: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The keys [begin, end) that any query of the tile may see, and of them those of this split."""
    end = past + tl.minimum(count, (tile + 1) * QUERIES)
    begin = end * 0
    if WINDOW > 0:
        begin = tl.maximum(past + tile * QUERIES - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    if SPLITS > 1:
        share = tl.cdiv(tl.cdiv(end - begin, SPLITS), BLOCK_N) * BLOCK_N
        begin += split * share
        end = tl.minimum(end, begin + share)
    return begin, end


@triton.jit
def _visible(position, key_position, WINDOW: tl.constexpr):
    """The causal mask, and a sliding window's: [queries, keys]."""
    visible = key_position[None, :] <= position[:, None]
    if WINDOW > 0:
        visible &= key_position[None, :] > position[:, None] - WINDOW
    return visible


@triton.jit
def _attend_block(
    q,
    max_score,
    total,
    values_sum,
    block,
    end,
    position,
    table,
    kv_head,
    key_cache,
    value_cache,
    scaling,
    softcap,
    KV_HEADS: tl.constexpr,
    PAGE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    WIDEN: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KD: tl.constexpr,
    BLOCK_VD: tl.constexpr,
):
    """The maxima, sums and weighted values after the keys from `block` on."""
    key_dims, value_dims = tl.arange(0, BLOCK_KD), tl.arange(0, BLOCK_VD)
    key_position = block + tl.arange(0, BLOCK_N)
    inside = key_position < end if MASKED else key_position >= 0
    page = tl.load(table + key_position // PAGE, mask=inside, other=0)
    slot = (page * PAGE + key_position % PAGE) * KV_HEADS + kv_head
    k = tl.load(
        key_cache + slot[None, :] * KEY_DIM + key_dims[:, None],
        mask=inside[None, :] & (key_dims < KEY_DIM)[:, None],
        other=0.0,
    )
    scores = multiply(q, k, WIDEN)
    factor = scaling * _LOG2E
    if HAS_SOFTCAP:
        scores = softcap * (2 * tl.sigmoid(2 * scaling / softcap * scores) - 1)  # tanh
        factor = _LOG2E
    if MASKED:
        visible = inside[None, :] & _visible(position, key_position, WINDOW)
        scores = tl.where(visible, scores, float("-inf"))
    new_max = tl.maximum(max_score, tl.max(scores, 1) * factor)
    # A row that has seen nothing yet: -inf - -inf would be nan.
    level = tl.where(new_max == float("-inf"), 0.0, new_max) if MASKED else new_max
    decay = tl.exp2(max_score - level)
    weights = tl.exp2(scores * factor - level[:, None])
    total = total * decay + tl.sum(weights, 1)
    v = tl.load(
        value_cache + slot[:, None] * VALUE_DIM + value_dims[None, :],
        mask=inside[:, None] & (value_dims < VALUE_DIM)[None, :],
        other=0.0,
    )
    values_sum = values_sum * decay[:, None]
    values_sum += multiply(weights.to(v.dtype), v, WIDEN)
    return new_max, total, values_sum


@triton.jit(do_not_specialize=["first"])
def attend_kernel(
    query,
    out,
    partial,
    partial_max,
    partial_sum,
    key_cache,
    value_cache,
    sinks,
    tables,
    table_starts,
    query_starts,
    lengths,
    first,
    scaling,
    softcap,
    query_token_stride,
    query_head_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PAGE: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    HAS_SOFTCAP: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    SPLITS: tl.constexpr,
    WIDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_KD: tl.constexpr,
    BLOCK_VD: tl.constexpr,
):
    """Attention of one tile of queries; WINDOW 0 is none.

    A sequence's queries are its last ones: of `lengths[s]` tokens those at rows
    [query_starts[s], query_starts[s + 1]). Its block table begins at `tables[table_starts[s]]`.
    """
    QUERIES: tl.constexpr = BLOCK_M // GROUP
    sequence = first + tl.program_id(0)
    kv_head = tl.program_id(1)
    if SPLITS == 1:
        tile = tl.program_id(2)
        split = 0
    else:
        tile = 0
        split = tl.program_id(2)
    start = tl.load(query_starts + sequence)
    count = tl.load(query_starts + sequence + 1) - start
    if tile * QUERIES >= count:
        return
    past = tl.load(lengths + sequence) - count
    table = tables + tl.load(table_starts + sequence)

    index = tl.arange(0, BLOCK_M)
    local = tile * QUERIES + index // GROUP
    head = kv_head * GROUP + index % GROUP
    real = (index < QUERIES * GROUP) & (local < count)
    position = past + local
    key_dims = tl.arange(0, BLOCK_KD)
    rows = query + (start + local)[:, None] * query_token_stride + head[:, None] * query_head_stride
    q = tl.load(
        rows + key_dims[None, :], mask=real[:, None] & (key_dims < KEY_DIM)[None, :], other=0.0
    ).to(key_cache.dtype.element_ty)

    begin, end = _key_range(past, count, tile, split, QUERIES, WINDOW, SPLITS, BLOCK_N)
    max_score = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    if HAS_SINKS:
        if split == 0:
            max_score = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * _LOG2E
            total = tl.full([BLOCK_M], 1.0, tl.float32)
    value_dims = tl.arange(0, BLOCK_VD)
    values_sum = tl.zeros([BLOCK_M, BLOCK_VD], tl.float32)
    masked_from = begin
    if SPLITS == 1 and WINDOW == 0:
        # What is before the tile's first query, all of its queries see.
        seen = tl.minimum(past + tile * QUERIES, end)
        masked_from += tl.maximum(seen - begin, 0) // BLOCK_N * BLOCK_N
        for block in range(begin, masked_from, BLOCK_N):
            max_score, total, values_sum = _attend_block(
                *(q, max_score, total, values_sum),
                *(block, end, position, table, kv_head),
                *(key_cache, value_cache, scaling, softcap),
                *(KV_HEADS, PAGE, KEY_DIM, VALUE_DIM, WINDOW, HAS_SOFTCAP, WIDEN),
                *(False, BLOCK_N, BLOCK_KD, BLOCK_VD),
            )
    for block in range(masked_from, end, BLOCK_N):
        max_score, total, values_sum = _attend_block(
            *(q, max_score, total, values_sum),
            *(block, end, position, table, kv_head),
            *(key_cache, value_cache, scaling, softcap),
            *(KV_HEADS, PAGE, KEY_DIM, VALUE_DIM, WINDOW, HAS_SOFTCAP, WIDEN),
            *(True, BLOCK_N, BLOCK_KD, BLOCK_VD),
        )

    mask = real[:, None] & (value_dims < VALUE_DIM)[None, :]
    heads = KV_HEADS * GROUP
    if SPLITS == 1:
        values_sum = values_sum / tl.where(total > 0, total, 1.0)[:, None]
        target = out + ((start + local) * heads + head)[:, None] * VALUE_DIM + value_dims[None, :]
        tl.store(target, values_sum.to(out.dtype.element_ty), mask=mask)
    else:
        index = (tl.program_id(0) * heads + head) * SPLITS + split
        tl.store(partial + index[:, None] * VALUE_DIM + value_dims[None, :], values_sum, mask=mask)
        tl.store(partial_max + index, max_score, mask=real)
        tl.store(partial_sum + index, total, mask=real)


@triton.jit
def reduce_kernel(
    out,
    partial,
    partial_max,
    partial_sum,
    query_starts,
    HEADS: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_VD: tl.constexpr,
):
    """Combine the splits of one query head of one decoding sequence, all loaded at once."""
    head = tl.program_id(1)
    row = tl.load(query_starts + tl.program_id(0))
    dims = tl.arange(0, BLOCK_VD)
    mask = dims < VALUE_DIM
    index = (tl.program_id(0) * HEADS + head) * SPLITS + tl.arange(0, SPLITS)
    max_scores = tl.load(partial_max + index)
    sums = tl.load(partial_sum + index)
    values_sum = tl.load(
        partial + index[:, None] * VALUE_DIM + dims[None, :], mask=mask[None, :], other=0.0
    )
    max_score = tl.max(max_scores, 0)
    weights = tl.exp2(max_scores - tl.where(max_score == float("-inf"), 0.0, max_score))
    total = tl.sum(weights * sums, 0)
    result = tl.sum(weights[:, None] * values_sum, 0) / tl.where(total > 0, total, 1.0)
    target = out + (row * HEADS + head) * VALUE_DIM + dims
    tl.store(target, result.to(out.dtype.element_ty), mask=mask)

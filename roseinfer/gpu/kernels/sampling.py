"""Samples a token for a row of logits: temperature, top-k, top-p and min-p without sorting.

The result is that of the compiled library and of sampling/sampler.py. Weights are
e^((x - largest) / T) in float32, their sums are float64, and the sampled id is the one at which the
cumulative weight passes a random share of the total. Filters keep the logits from a floor on. That
of min-p is the largest logit + T * log(min_p). A binary search finds that of top-k and top-p: float
bits, read as integers, have the order of the numbers ("rank"). Each step of the search is a pass
over the row, which lies in a near cache by then.
"""

import triton
import triton.language as tl

# As in sampling/random_numbers.py: splitmix64.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX2 = tl.constexpr(0x94D049BB133111EB)

_MIN_EXPONENT = tl.constexpr(-87.0)  # e^-87 of the largest weight counts as nothing
_MIN_RANK = tl.constexpr(-(2**31))
_NO_TOKEN = tl.constexpr(-1)  # what a row without a finite largest logit gets


@triton.jit
def _mix(bits):
    bits = (bits ^ (bits >> 30)) * _MIX1
    bits = (bits ^ (bits >> 27)) * _MIX2
    return bits ^ (bits >> 31)


@triton.jit
def _uniform(seed, position):
    """In [0, 1), of one seed and one position [1]."""
    golden = tl.full([1], _GOLDEN, tl.uint64)
    state = _mix(seed.to(tl.uint64) + golden) + (position.to(tl.uint64) + 1) * golden
    return (_mix(state) >> 11).to(tl.int64).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def _rank(x, SHIFT: tl.constexpr):
    """float32 as an integer of the same order, without the SHIFT low bits, which are zero.

    -0 and 0 have the same rank.
    """
    bits = tl.where(x == 0.0, 0, x.to(tl.int32, bitcast=True))
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def _rank_from(number, SHIFT: tl.constexpr):
    """The rank of the lowest value that is not below `number`, a float64 not above all of them."""
    nearest = number.to(tl.float32)
    rank = _rank(nearest, 0).to(tl.int64) + (nearest.to(tl.float64) < number).to(tl.int64)
    # The low bits of a narrower type's values are zeros, of negative ones' ranks ones.
    return tl.where(rank < 0, rank, rank + ((1 << SHIFT) - 1)) >> SHIFT


@triton.jit
def _row(values, offsets, COUNT: tl.constexpr):
    x = tl.load(values + offsets, mask=offsets < COUNT, other=float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))  # NaN


@triton.jit
def _weights(x, max_logit, inv_temp):
    x = (x - max_logit) * inv_temp
    return tl.where(x > _MIN_EXPONENT, tl.exp(x), 0.0)


@triton.jit
def _above(
    values,
    max_logit,
    inv_temp,
    rank,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The total weight, or the number, of the values that rank above `rank`."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, COUNT, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = _row(values, offsets, COUNT)
        above = (offsets < COUNT) & (_rank(x, SHIFT) > rank)
        if WEIGHTED:
            total += tl.where(above, _weights(x, max_logit, inv_temp), 0.0)
        else:
            total += tl.where(above, 1.0, 0.0)
    return tl.sum(total, 0)


@triton.jit
def _floor(
    values,
    max_logit,
    inv_temp,
    min_rank,
    limit,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHTED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The smallest rank from `min_rank` on above which less than `limit` lies."""
    low = min_rank - 1  # at least `limit` lies above it
    high = _rank(max_logit, SHIFT).to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        if _above(values, max_logit, inv_temp, middle, COUNT, SHIFT, WEIGHTED, BLOCK) < limit:
            high = middle
        else:
            low = middle
    return high


@triton.jit
def _kept(values, offsets, max_logit, inv_temp, min_rank, COUNT: tl.constexpr, SHIFT: tl.constexpr):
    """The weights of the values that pass every filter, float64; 0 for the others."""
    x = _row(values, offsets, COUNT)
    weights = _weights(x, max_logit, inv_temp)
    kept = (offsets < COUNT) & (_rank(x, SHIFT) >= min_rank)
    return tl.where(kept, weights, 0.0).to(tl.float64)


@triton.jit
def _pick(
    values,
    max_logit,
    inv_temp,
    min_rank,
    random,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The id at which the cumulative weight passes `random` times the total."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, COUNT, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        total += _kept(values, offsets, max_logit, inv_temp, min_rank, COUNT, SHIFT)
    wanted = random * tl.sum(total, 0)

    # The block in which it does, and the weight before that block.
    so_far = wanted * 0
    before = wanted * 0
    block = -1
    for start in range(0, COUNT, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        weights = _kept(values, offsets, max_logit, inv_temp, min_rank, COUNT, SHIFT)
        block_sum = tl.sum(weights, 0)
        # Rounding may lift `wanted` to the total: then the last block with any weight is right.
        if (so_far <= wanted) & (block_sum > 0):
            block = start
            before = so_far
        so_far += block_sum
    offsets = block + tl.arange(0, BLOCK)
    weights = _kept(values, offsets, max_logit, inv_temp, min_rank, COUNT, SHIFT)
    passed = (before + tl.cumsum(weights, 0) > wanted) & (weights > 0)
    first = tl.min(tl.where(passed, offsets, COUNT), 0)
    last = tl.max(tl.where(weights > 0, offsets, 0), 0)
    return tl.minimum(first, last)


@triton.jit
def _argmax(values, COUNT: tl.constexpr, BLOCK: tl.constexpr):
    """The largest logit, and its first id. NaN is never the largest."""
    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    argmax = tl.full([BLOCK], COUNT - 1, tl.int32)
    for start in range(0, COUNT, BLOCK):
        offsets = start + tl.arange(0, BLOCK)
        x = _row(values, offsets, COUNT)
        argmax = tl.where(x > largest, offsets, argmax)
        largest = tl.maximum(largest, x)
    max_logit = tl.max(largest, 0)
    return max_logit, tl.min(tl.where(largest == max_logit, argmax, COUNT - 1), 0)


@triton.jit
def _min_rank(
    values,
    max_logit,
    inv_temp,
    top_k,
    top_p,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The smallest rank that passes top-k and top-p."""
    min_rank = tl.full([], _MIN_RANK, tl.int64) >> SHIFT
    if (top_k > 0) & (top_k < COUNT):
        limit = top_k.to(tl.float64)
        min_rank = _floor(values, max_logit, inv_temp, min_rank, limit, COUNT, SHIFT, False, BLOCK)
    if top_p < 1:
        limit = top_p * _above(values, max_logit, inv_temp, min_rank - 1, COUNT, SHIFT, True, BLOCK)
        # COUNT values below this one together weigh less than 1 - top_p of the largest.
        negligible = max_logit - (tl.log(COUNT / (1 - top_p)) + 1).to(tl.float32) / inv_temp
        min_rank = tl.maximum(min_rank, _rank(negligible, SHIFT).to(tl.int64))
        min_rank = _floor(values, max_logit, inv_temp, min_rank, limit, COUNT, SHIFT, True, BLOCK)
    return min_rank


@triton.jit
def sample_kernel(
    values,
    requests,
    ids,
    stride,
    FIELDS: tl.constexpr,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One request: line, target, top_k, seed, position; float64: temperature, top_p, min_p."""
    request = requests + tl.program_id(0) * FIELDS
    values += tl.load(request) * stride
    target = tl.load(request + 1)
    top_k = tl.load(request + 2)
    temperature = tl.load(request + 5).to(tl.float64, bitcast=True)
    top_p = tl.load(request + 6).to(tl.float64, bitcast=True)
    min_p = tl.load(request + 7).to(tl.float64, bitcast=True)

    max_logit, chosen = _argmax(values, COUNT, BLOCK)
    finite = (max_logit > float("-inf")) & (max_logit < float("inf"))
    if (temperature > 0) & finite:
        inv_temp = (1.0 / temperature).to(tl.float32)
        min_rank = _min_rank(values, max_logit, inv_temp, top_k, top_p, COUNT, SHIFT, BLOCK)
        if min_p > 0:
            least = max_logit.to(tl.float64) + temperature * tl.log(min_p)
            min_rank = tl.maximum(min_rank, _rank_from(least, SHIFT))
        one = tl.arange(0, 1)
        random = _uniform(tl.load(request + 3 + one), tl.load(request + 4 + one))
        random = tl.sum(random, 0)
        chosen = _pick(values, max_logit, inv_temp, min_rank, random, COUNT, SHIFT, BLOCK)
    tl.store(ids + target, tl.where(finite, chosen.to(tl.int64), _NO_TOKEN))

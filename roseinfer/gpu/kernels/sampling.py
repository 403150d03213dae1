"""Draws a token for a row of logits: temperature, top-k, top-p and min-p without sorting.

It draws what native/drawing.h draws, and sampling.py with torch: weights are e^((x - largest) / T),
float32, and their sums float64; the id is the one at which the cumulative weight passes a number
that seed and position decide. What passes top-k and top-p are the logits from a floor on. The floor
is found by halving a range of the values' bits, read as integers in the order of the numbers; each
half costs a pass over the row, which by then lies in a near cache.
"""

import triton
import triton.language as tl

# As in sampling.py: splitmix64.
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15)
_MIX1 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX2 = tl.constexpr(0x94D049BB133111EB)

_FAINT = tl.constexpr(-87.0)  # nothing is left of what is e^87 times less likely than the largest
_LOWEST = tl.constexpr(-(2**31))


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
    """The bits of float32 in the order of the numbers, less the SHIFT last, which never differ.

    -0 and 0 are one number.
    """
    bits = tl.where(x == 0.0, 0, x.to(tl.int32, bitcast=True))
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits) >> SHIFT


@triton.jit
def _row(values, at, COUNT: tl.constexpr):
    return tl.load(values + at, mask=at < COUNT, other=float("-inf")).to(tl.float32)


@triton.jit
def _weigh(x, most, by):
    x = (x - most) * by
    return tl.where(x > _FAINT, tl.exp(x), 0.0)


@triton.jit
def _above(
    values,
    most,
    by,
    rank,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The weight, or the number, of what ranks above `rank`."""
    found = tl.zeros([BLOCK], tl.float64)
    for start in range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = _row(values, at, COUNT)
        above = (at < COUNT) & (_rank(x, SHIFT) > rank)
        if WEIGHED:
            found += tl.where(above, _weigh(x, most, by), 0.0)
        else:
            found += tl.where(above, 1.0, 0.0)
    return tl.sum(found, 0)


@triton.jit
def _floor(
    values,
    most,
    by,
    least,
    limit,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    WEIGHED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The least rank, not below `least`, above which less than `limit` lies."""
    low = least - 1  # above it there is no less
    high = _rank(most, SHIFT).to(tl.int64)
    while high - low > 1:
        middle = (low + high) >> 1
        if _above(values, most, by, middle, COUNT, SHIFT, WEIGHED, BLOCK) < limit:
            high = middle
        else:
            low = middle
    return high


@triton.jit
def _kept(values, at, most, by, least, min_p, COUNT: tl.constexpr, SHIFT: tl.constexpr):
    """The weights of what passes every filter, float64."""
    x = _row(values, at, COUNT)
    weights = _weigh(x, most, by)
    keeps = (at < COUNT) & (_rank(x, SHIFT) >= least) & (weights >= min_p)
    return tl.where(keeps, weights, 0.0).to(tl.float64)


@triton.jit
def _pick(
    values,
    most,
    by,
    least,
    min_p,
    number,
    COUNT: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The id at which the cumulative weight passes `number` times all of it."""
    total = tl.zeros([BLOCK], tl.float64)
    for start in range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        total += _kept(values, at, most, by, least, min_p, COUNT, SHIFT)
    wanted = number * tl.sum(total, 0)

    # The block where it does, and the weight before it.
    so_far = wanted * 0
    before = wanted * 0
    block = -1
    for start in range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        weights = _kept(values, at, most, by, least, min_p, COUNT, SHIFT)
        here = tl.sum(weights, 0)
        # Rounding may lift the wanted sum to the total: then the last that has any weight.
        if (so_far <= wanted) & (here > 0):
            block = start
            before = so_far
        so_far += here
    at = block + tl.arange(0, BLOCK)
    weights = _kept(values, at, most, by, least, min_p, COUNT, SHIFT)
    passed = (before + tl.cumsum(weights, 0) > wanted) & (weights > 0)
    first = tl.min(tl.where(passed, at, COUNT), 0)
    last = tl.max(tl.where(weights > 0, at, 0), 0)
    return tl.minimum(first, last)


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
    """One request: line, place, top_k, seed, position; float64: temperature, top_p, min_p."""
    request = requests + tl.program_id(0) * FIELDS
    values += tl.load(request) * stride
    place = tl.load(request + 1)
    top_k = tl.load(request + 2)
    temperature = tl.load(request + 5).to(tl.float64, bitcast=True)
    top_p = tl.load(request + 6).to(tl.float64, bitcast=True)
    min_p = tl.load(request + 7).to(tl.float64, bitcast=True).to(tl.float32)

    largest = tl.full([BLOCK], float("-inf"), tl.float32)
    where = tl.full([BLOCK], COUNT - 1, tl.int32)  # if a grammar allows nothing: any id will do
    for start in range(0, COUNT, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = _row(values, at, COUNT)
        where = tl.where(x > largest, at, where)
        largest = tl.maximum(largest, x)
    most = tl.max(largest, 0)
    chosen = tl.min(tl.where(largest == most, where, COUNT - 1), 0)

    if (temperature > 0) & (most > float("-inf")):
        by = (1.0 / temperature).to(tl.float32)
        least = tl.full([], _LOWEST, tl.int64) >> SHIFT
        if (top_k > 0) & (top_k < COUNT):
            limit = top_k.to(tl.float64)
            least = _floor(values, most, by, least, limit, COUNT, SHIFT, False, BLOCK)
        if top_p < 1:
            limit = top_p * _above(values, most, by, least - 1, COUNT, SHIFT, True, BLOCK)
            # All COUNT of them, if so faint, would not weigh 1 - top_p of the largest alone.
            faint = most - (tl.log(COUNT / (1 - top_p)) + 1).to(tl.float32) / by
            least = tl.maximum(least, _rank(faint, SHIFT).to(tl.int64))
            least = _floor(values, most, by, least, limit, COUNT, SHIFT, True, BLOCK)
        one = tl.arange(0, 1)
        number = _uniform(tl.load(request + 3 + one), tl.load(request + 4 + one))
        number = tl.sum(number, 0)
        chosen = _pick(values, most, by, least, min_p, number, COUNT, SHIFT, BLOCK)
    tl.store(ids + place, chosen.to(tl.int64))

// Wide panels of 4 bits that many rows share, in builds that multiply bytes without VNNI: taken apart once
// for all of them. A multiplication there is one instruction among several that serve it, so fewer of
// these is what counts: on a Zen 3 products of 32 and 96 rows take 0.79 and 0.69 of the time so.
//
// A panel lies group by group. Each of a group's arrays is [PANEL_WIDTH] times 4 bytes:
//
//     scales     float
//     origins    what sums of an output are counted from
//     factors    of 4 parts, each twice in 16 bits
//     weights    16 times 4 inputs in bytes, less 8
//
// Sums of 16 bits hold the products of a part. Activations are counted from -128: then the bytes without
// a sign are theirs, and what that adds to a sum depends on the output alone.

#if X86_LANES && !VNNI

struct WideParts {
    using Activations = WideActivations<4>;
    static constexpr int BITS = 8, PARTS = 1;
    static constexpr bool WIDENS = false;

    // Numbers of the arrays.
    static constexpr int SCALES = 0, ORIGINS = 1, FACTORS = 2, WEIGHTS = FACTORS + WIDE_GROUP_PARTS;
    static constexpr int PART_ARRAYS = PART / 4;
    static constexpr int GROUP_BYTES = (WEIGHTS + WIDE_GROUP / 4) * UNIT_BYTES;

    static constexpr std::int64_t groups(std::int64_t inputs) { return inputs / WIDE_GROUP; }
    static constexpr std::int64_t panel_bytes(std::int64_t inputs) {
        return groups(inputs) * GROUP_BYTES;
    }
};

static_assert(PART / 2 * 255 * 8 <= INT16_MAX);

// Adds to `totals` one group of P panels, which lie `panel` bytes apart, times that of R rows at `a`.
template <int R, int P>
INLINE void accumulate_group(WideParts, Accumulators<R, P> &totals, const char *first_panel,
                             std::int64_t group, std::int64_t panel, const WideActivations<4> *a) {
    using F = WideParts;
    constexpr int VECTORS = P * PANEL_VECTORS;
    const char *arrays = first_panel + group * F::GROUP_BYTES;
    const auto array_of = [&](int array, int v) {
        return load_whole(arrays + v / PANEL_VECTORS * panel + array * UNIT_BYTES +
                          v % PANEL_VECTORS * LANES * 4);
    };
    vint sums[R][VECTORS];
#pragma GCC unroll 4
    for (int part = 0; part < WIDE_GROUP_PARTS; ++part) {
        vshorts part_sums[R][VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < F::PART_ARRAYS; ++i) {
            const int array = part * F::PART_ARRAYS + i;
            vint weights[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) weights[v] = array_of(F::WEIGHTS + array, v);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const vint x = broadcast_four(a[r].from_minus_128 + 4 * array);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) {
                    const vshorts products = multiply_bytes(x, weights[v]);
                    part_sums[r][v] = i == 0 ? products : add(part_sums[r][v], products);
                }
            }
        }
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            const vint factors = array_of(F::FACTORS + part, v);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const vint before = part == 0 ? array_of(F::ORIGINS, v) : sums[r][v];
                sums[r][v] = add_part(before, part_sums[r][v], factors);
            }
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
        const vfloat scales = reinterpret_cast<vfloat>(array_of(F::SCALES, v));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
            totals.of[r][v] += to_float(sums[r][v]) * (scales * a[r].scale);
    }
}

// Of a group those outputs that lie in one vector, `lane` the first of them.
INLINE void take_apart(const char *group, int lane, char *arrays) {
    using F = WideFormat<4>;
    using W = WideParts;
    const auto set = [&](int array, vint numbers) {
        *reinterpret_cast<vint_unaligned *>(arrays + array * UNIT_BYTES + 4 * lane) = numbers;
    };
    set(W::SCALES, reinterpret_cast<vint>(load_scales(group + 2 * lane)));
    const vint factors = load_factors(group + F::SCALES_BYTES + 2 * lane);
    vint origins = {};
    for (int part = 0; part < WIDE_GROUP_PARTS; ++part) {
        vshorts sums = {};
        for (int i = 0; i < W::PART_ARRAYS; ++i) {
            const int array = part * W::PART_ARRAYS + i;
            const char *unit = group + F::HEADER_BYTES + array / 2 * UNIT_BYTES;
            const vint halves = bytes_of_step<F>(load_whole(unit + 4 * lane), array % 2);
            const vint weights = subtract_bytes(halves, 0x08080808 - vint{});
            set(W::WEIGHTS + array, weights);
            sums += multiply_bytes(0x01010101 - vint{}, weights);
        }
        const vint factor = factor_of_part(factors, part);
        set(W::FACTORS + part, factor);
        origins -= 128 * multiply_pairs(reinterpret_cast<vint>(sums), factor);
    }
    set(W::ORIGINS, origins);
}

INLINE void widen_panel(WideFormat<4>, const char *from, std::int64_t inputs, char *to) {
    using F = WideFormat<4>;
    const char *end = from + F::panel_bytes(inputs);
    for (; from < end; from += F::GROUP_BYTES, to += WideParts::GROUP_BYTES)
        for (int lane = 0; lane < PANEL_WIDTH; lane += LANES) take_apart(from, lane, to);
}

#endif

// Tiles of a product with weights of 8 and 4 bits: rows of rounded activations times panels. See
// quantized.h for how both lie.

// Panels at a time: as many sums as leave registers for what they are made of.
template <int R, class F>
constexpr int PANELS_AT_ONCE = F::PARTS == 2            ? (LANES == 16 && R <= 4 ? 2 : 1)
                               : R == 1                 ? 1
                               : R * PANEL_VECTORS <= 2 ? 4
                               : LANES == 16            ? 2
                                                        : 1;

// One row reads one panel after the other, so that what is asked for ahead reaches from each into the
// next; or it reads RUNS. The first cache has so few requests at a time that those ahead delay those
// that are due: on a Zen 4 a third of a plain read's speed. Into the second cache nothing is lost.
template <int R, int P>
constexpr bool PREFETCHES = R == 1 && P == 1 && LANES == 16;

// Intel's memory answers late: on an Emerald Rapids 4-bit products take 0.8 to 0.9 of the time with
// 4 KiB. For AMD's processors less was enough where it was measured.
template <class F>
INLINE void prefetch_for_one_row(const char *weights) {
    __builtin_prefetch(weights + (IS_INTEL ? 4096 : 256 * F::BITS), 0, 2);
}

#include "wide.h"

#include "wide_parts.h"

// Adds to `totals` one group of P panels, which lie `panel` bytes apart, times that of R rows at `a`.
template <int R, int P, int BITS, Origin ORIGIN, bool IS_K, bool WIDENED>
INLINE void accumulate_group(Format<BITS, ORIGIN, IS_K, WIDENED>, Accumulators<R, P> &totals,
                             const char *first_panel, std::int64_t group, std::int64_t panel,
                             const QuantizedGroup *a) {
    using F = Format<BITS, ORIGIN, IS_K, WIDENED>;
    const char *halves = first_panel + F::halves(group), *weights = first_panel + F::offset(group);
    constexpr int VECTORS = P * PANEL_VECTORS, PARTS = F::PARTS;
    // Where a vector has its part of the array of float16 numbers or bytes that has this number.
    const auto halves_of = [&](int v, int array) {
        return halves + v / PANEL_VECTORS * panel + 2 * (array * PANEL_WIDTH + v % PANEL_VECTORS * LANES);
    };
    const auto bytes_of = [&](int v, int array) {
        return weights + v / PANEL_VECTORS * panel + array * PANEL_WIDTH + v % PANEL_VECTORS * LANES;
    };
    const auto vector = [&](int v) {
        return weights + v / PANEL_VECTORS * panel + F::HEADER_BYTES +
               v % PANEL_VECTORS * LANES * 4;
    };
    if constexpr (PREFETCHES<R, P>)
#pragma GCC unroll 40
        for (int i = 0; i < F::GROUP_BYTES; i += 64) prefetch_for_one_row<F>(weights + i);
    // What the products of a group are added to: less what weights are counted from.
    const auto origin = [&](int r, int v, int part) -> GroupSum {
        const std::int32_t sum = PARTS == 1  ? a[r].sum
                                 : part == 1 ? a[r].upper_sum
                                             : a[r].sum - a[r].upper_sum;
        if constexpr (F::ORIGIN == Origin::Middle && PARTS == 1)
            return static_cast<Whole>(a[r].minus_8_sum) * (F::MIDDLE / 8) - GroupSum{};
        else if constexpr (F::ORIGIN == Origin::Zero)
            return load_bytes(bytes_of(v, 2)) * static_cast<Whole>(-sum);
        else if constexpr (F::ORIGIN != Origin::Minimum)
            return static_cast<Whole>(-F::MIDDLE * sum) - GroupSum{};
        else
            return GroupSum{};
    };
    // Sums of 16 bits leave no room for what weights are counted from.
    constexpr bool ORIGIN_LAST = !std::is_same_v<Sums<F>, GroupSum>;
    Sums<F> sums[PARTS][R][VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
            for (int part = 0; part < PARTS; ++part)
                if constexpr (ORIGIN_LAST)
                    sums[part][r][v] = Sums<F>{};
                else
                    sums[part][r][v] = origin(r, v, part);
#pragma GCC unroll 8
    for (int unit = 0; unit < BITS; ++unit) {
        vint bytes[VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v)
            bytes[v] = load_whole(vector(v) + unit * UNIT_BYTES);
#pragma GCC unroll 2
        for (int step = 0; step < STEPS<F>; ++step) {
            StepWeights step_weights[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                step_weights[v] = widen_weights(bytes_of_step<F>(bytes[v], step));
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const auto x = activations_of_step<F>(a[r], unit, step);
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) {
                    Sums<F> &sum = sums[unit * PARTS / BITS][r][v];
                    sum = dot(sum, step_weights[v], x);
                }
            }
        }
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
        vfloat scales = load_scales(halves_of(v, 0)), minimums = {};
        if constexpr (F::ORIGIN == Origin::Minimum) minimums = load_scales(halves_of(v, 1));
        if constexpr (F::IS_K && PARTS == 1) {
            scales *= to_float(load_bytes(bytes_of(v, 0)));
            minimums *= to_float(load_bytes(bytes_of(v, 1)));
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const auto products = [&](int part) {
                const GroupSum sum = whole(sums[part][r][v]);
                return ORIGIN_LAST ? sum + origin(r, v, part) : sum;
            };
            GroupSum sum = products(0);
            if constexpr (PARTS == 2)
                sum = sum * load_bytes<true>(bytes_of(v, 0)) +
                      products(1) * load_bytes<true>(bytes_of(v, 1));
            totals.of[r][v] += to_float(sum) * (scales * a[r].scale);
            if constexpr (F::ORIGIN == Origin::Minimum)
                totals.of[r][v] += minimums * (a[r].scale * a[r].sum);
        }
    }
}

// Weights to ask memory for while others are multiplied: `step` bytes with each group.
//
// On a Zen 5 they come into the first cache alone. A step reads them once, and they would displace all
// else, the scheduler's own code and data too, from the other caches: 32 requests with 4 bits make 2 to
// 4% more tokens/s so, most of it outside of the products. On a Zen 4 they make up to 13% less: lines
// that leave its first cache too soon come twice.
struct Ahead {
    const char *at, *end;
    std::int64_t step;

    void prefetch() {
        const char *stop = at + step < end ? at + step : end;
        for (; at < stop; at += 64)
            if (IS_ZEN_5)
                __builtin_prefetch(at, 0, 0);
            else
                __builtin_prefetch(at, 0, 2);
    }
};

// Panels [first, end), and where the first of them lies.
struct Panels {
    const char *at;
    std::int64_t first, end;
};

// R rows, a tile, times the first P panels.
template <int R, int P, class F>
static void quantized_tile(const Matrix &m, const typename F::Activations *a, const Panels &panels,
                           Rows c, Store mode, Ahead &ahead) {
    const std::int64_t panel = F::panel_bytes(m.inputs), first = panels.first;
    Accumulators<R, P> totals = {};
    for (int r = 0; R > 1 && r < R; ++r)  // its lines come while the products are computed
        for (int p = 0; p < P; ++p)
            __builtin_prefetch(c.at + r * c.stride + (first + p) * PANEL_WIDTH, 1);
    Ahead next = ahead;
    for (std::int64_t g = 0; g < F::groups(m.inputs); ++g) {
        if (R > 1) next.prefetch();
        accumulate_group(F{}, totals, panels.at, g, panel, a + g * R);
    }
    ahead = next;
    store_tile<R, P>(m, totals, first * PANEL_WIDTH, c, mode);
}

// One row reads RUNS runs of panels side by side: see multiply_runs. With AVX2 wide groups of 4 bits have
// no registers for four; a Zen 5 is faster with two, and without prefetching in them.
template <class F>
constexpr int RUNS = LANES == 16 || std::is_same_v<F, WideFormat<4>> ? 2 : 4;

// All panels, P at a time, then P / 2 and so on.
template <int R, int P, class F>
static void quantized_panels(const Matrix &m, const typename F::Activations *a, Panels panels,
                             Rows c, Store mode, Ahead &ahead) {
    for (; panels.first + P <= panels.end; panels.first += P) {
        quantized_tile<R, P, F>(m, a, panels, c, mode, ahead);
        panels.at += P * F::panel_bytes(m.inputs);
    }
    if constexpr (P > 1) quantized_panels<R, P / 2, F>(m, a, panels, c, mode, ahead);
}

// `rows` rows in tiles of R, then R / 2 and so on, times panels that stay in a near cache meanwhile.
template <class F, int R = QUANTIZED_ROWS>
static void quantized_block(const Matrix &m, const typename F::Activations *a, std::int64_t rows,
                            const Panels &panels, Rows c, Store mode, Ahead &ahead) {
    constexpr int P = PANELS_AT_ONCE<R, F>;
    for (; rows >= R; rows -= R, a += R * F::groups(m.inputs), c.at += R * c.stride)
        quantized_panels<R, P, F>(m, a, panels, c, mode, ahead);
    if constexpr (R > 1) quantized_block<F, R / 2>(m, a, rows, panels, c, mode, ahead);
}

// With many rows, panels of 4 bits are taken apart once for all of them, where there is room for
// them: in a near cache. Intel's cores take them apart where they multiply, AMD's beside it: measured
// on a Zen 5, 24 to 64 rows are 2 to 8% slower so, and 192 as fast.
constexpr std::int64_t WIDENED_PANELS = LANES == 16 ? 2 : 1, WIDENED_BYTES = 96 << 10;
#if X86_LANES == 16
const std::int64_t WIDENED_ROWS = (IS_INTEL ? 3 : 12) * QUANTIZED_ROWS;
#else
constexpr std::int64_t WIDENED_ROWS = INT64_MAX;
#endif

template <int BITS, Origin ORIGIN, bool IS_K, bool WIDENED>
INLINE std::int64_t widened_rows(Format<BITS, ORIGIN, IS_K, WIDENED>) {
    return WIDENED_ROWS;
}

template <class F>
INLINE bool is_widened(const Matrix &m, std::int64_t rows) {
    return F::WIDENS && rows >= widened_rows(F{}) &&
           WIDENED_PANELS * F::Widened::panel_bytes(m.inputs) <= WIDENED_BYTES;
}

template <Origin ORIGIN, bool IS_K>
INLINE void widen_panel(Format<4, ORIGIN, IS_K>, const char *from, std::int64_t inputs, char *to) {
    using F = Format<4, ORIGIN, IS_K>;
    using W = typename F::Widened;
    for (std::int64_t g = 0; g < F::groups(inputs); ++g) {
        if (F::IS_K && g % F::SUPER_GROUPS == 0)
            __builtin_memcpy(to + W::halves(g), from + F::halves(g), F::HALVES_BYTES);
        const char *group = from + F::offset(g);
        char *wide = to + W::offset(g);
        __builtin_memcpy(wide, group, F::NUMBERS_BYTES);
        for (int i = 0; i < 4 * UNIT_BYTES; i += 4 * LANES) {
            const vint bytes = load_whole(group + F::HEADER_BYTES + i);
            const int unit = i / UNIT_BYTES, in_unit = i % UNIT_BYTES;
            char *lower = wide + W::HEADER_BYTES + 2 * unit * UNIT_BYTES + in_unit;
            for (int half = 0; half < 2; ++half) {
                const vint values = (half ? bytes >> 4 : bytes) & 0x0F0F0F0F;
                *reinterpret_cast<vint_unaligned *>(lower + half * UNIT_BYTES) =
                    IS_CODED<F> ? decode(values) : values;
            }
        }
    }
}

// The same as `quantized_block`.
template <class F>
static void widened_block(const Matrix &m, const typename F::Activations *a, std::int64_t rows,
                          const Panels &panels, Rows c, Store mode, Ahead &ahead) {
    using W = typename F::Widened;
    alignas(64) char wide[WIDENED_BYTES];
    const char *from = panels.at;
    for (std::int64_t first = panels.first, end; first < panels.end; first = end) {
        end = std::min(first + WIDENED_PANELS, panels.end);
        for (std::int64_t p = first; p < end; ++p, from += F::panel_bytes(m.inputs))
            widen_panel(F{}, from, m.inputs, wide + (p - first) * W::panel_bytes(m.inputs));
        quantized_block<W>(m, a, rows, {wide, first, end}, c, mode, ahead);
    }
}

// Panels [first, end) in blocks. The processor's own prefetcher comes too late for the next block, so
// the tiles of one ask for it.
template <class F>
static void gemm_quantized(const Matrix &m, const typename F::Activations *a, std::int64_t rows,
                           std::int64_t first, std::int64_t end, Rows c, Store mode) {
    const std::int64_t groups = F::groups(m.inputs), panel = F::panel_bytes(m.inputs);
    const char *from = static_cast<const char *>(m.panels), *stop = from + end * panel;
    Ahead ahead = {};
    if constexpr (LANES >= 8) {
        if (rows == 1 && reads_quantized_runs())
            return multiply_runs<RUNS<F>>(
                m, first, end, c, mode, [&](auto &totals, std::int64_t p, std::int64_t run) {
                    for (std::int64_t g = 0; g < groups; ++g)
                        accumulate_group(F{}, totals, from + p * panel, g, run * panel, a + g);
                });
    }
    if (rows == 1)
        return quantized_block<F>(m, a, rows, {from + first * panel, first, end}, c, mode, ahead);
    const std::int64_t width = rows < QUANTIZED_ROWS ? 4 : 2, block = width * panel;
    const std::int64_t tiles = rows < QUANTIZED_ROWS ? 1 : rows / QUANTIZED_ROWS;
    const std::int64_t step = (block / (groups * tiles) + 63) / 64 * 64;
    const auto block_from = [&](std::int64_t p, std::int64_t bytes) -> Ahead {
        const char *at = from + p * panel;
        return {at < stop ? at : stop, at + block < stop ? at + block : stop, bytes};
    };
    ahead = block_from(first, block);
    ahead.prefetch();
    for (std::int64_t p = first; p < end; p += width) {
        ahead = block_from(p + width, step);
        const Panels panels = {from + p * panel, p, p + width < end ? p + width : end};
        if constexpr (F::WIDENS) {
            if (is_widened<F>(m, rows)) {
                widened_block<F>(m, a, rows, panels, c, mode, ahead);
                continue;
            }
        }
        quantized_block<F>(m, a, rows, panels, c, mode, ahead);
    }
}

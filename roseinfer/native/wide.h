// Wide groups: the form that weights of 8 and 4 bits get where they are made of others at load.
//
// WIDE_GROUP inputs of an output share a scale, and as many activations of a row share theirs. So few
// sums have to be scaled that AMX tiles pay: see amx_wide.h. A weight of 8 bits is scale * (q - 128),
// one of 4 bits scale * m * (q - 8): each PART inputs have a whole number m from 0 to 15 of their own.
// m * q fits a byte, so both forms multiply bytes, and their sums need no scale before the end of a
// group. A panel lies group by group, with the units of quantized.h:
//
//     scales    [PANEL_WIDTH] float16
//     factors   [PANEL_WIDTH] 4 times 4 bits, that of the first part lowest; for 4 bits only
//     weights   of 8 bits 16 units, of 4 bits 8 units
//
// Rounded activations lie in tiles of rows as in quantized.h, except where amx_wide.h reads them.

constexpr int WIDE_GROUP = 64, PART = 16, WIDE_GROUP_PARTS = WIDE_GROUP / PART;

// A group of a row of activations. Without VNNI those for weights of 8 and of 4 bits differ.
template <int BITS>
struct __attribute__((may_alias)) WideActivations {
    static constexpr bool AS_PAIRS = BITS == 8 && WITHOUT_VNNI, TWICE = BITS == 4 && WITHOUT_VNNI;

    float scale;
    std::int32_t minus_128_sum;
    std::int16_t minus_8_sums[WIDE_GROUP_PARTS];
    QuantizedValue values[!AS_PAIRS * WIDE_GROUP];
    std::int16_t pairs[AS_PAIRS * WIDE_GROUP];        // as in QuantizedGroup
    std::uint8_t from_minus_128[TWICE * WIDE_GROUP];  // the values, for wide_parts.h
};

static_assert(sizeof(WideActivations<8>) == sizeof(WideActivations<4>));
static_assert(sizeof(WideActivations<8>) <= sizeof(float) * WIDE_GROUP);  // see rose_prepare

// What factors make of weights of 4 bits, 128 + m * (q - 8), is one of 8 bits: many rows share that. Without
// VNNI their products would not fit into sums of 16 bits.
template <int BITS_>
struct WideFormat {
    using Activations = WideActivations<WITHOUT_VNNI ? BITS_ : 8>;
    using Widened = std::conditional_t<WITHOUT_VNNI, struct WideParts, WideFormat<8>>;
    static constexpr int BITS = BITS_, VALUE_BITS = BITS_, PARTS = 1;
    static constexpr bool FACTORS = BITS == 4, WIDENS = FACTORS && X86_LANES;
    static constexpr int SCALES_BYTES = 2 * PANEL_WIDTH;
    static constexpr int HEADER_BYTES = SCALES_BYTES + (FACTORS ? 2 * PANEL_WIDTH : 0);
    static constexpr int PART_UNITS = BITS / 2;
    static constexpr int GROUP_BYTES = HEADER_BYTES + WIDE_GROUP_PARTS * PART_UNITS * UNIT_BYTES;

    static constexpr std::int64_t groups(std::int64_t inputs) { return inputs / WIDE_GROUP; }
    static constexpr std::int64_t panel_bytes(std::int64_t inputs) {
        return groups(inputs) * GROUP_BYTES;
    }
};

// Calls `use` with the format of `m`, which is wide.
template <class Use>
INLINE auto with_wide_format(const Matrix &m, Use use) {
    return m.type == WIDE_INT8 ? use(WideFormat<8>{}) : use(WideFormat<4>{});
}

// Calls `use` with the format of `m`.
template <class Use>
INLINE auto with_format(const Matrix &m, Use use) {
    switch (m.type) {
        case INT8: return use(Format<8>{});
        case INT4: return use(Format<4>{});
        case INT8_MINIMUM: return use(Format<8, Origin::Minimum>{});
        case INT4_MINIMUM: return use(Format<4, Origin::Minimum>{});
        case INT8_ZERO: return use(Format<8, Origin::Zero>{});
        case INT4_ZERO: return use(Format<4, Origin::Zero>{});
        case Q4_K: return use(Format<4, Origin::Minimum, true>{});
        case Q5_K: return use(Format<8, Origin::Minimum, true>{});
        case Q6_K: return use(Format<8, Origin::Middle, true>{});
        case CODES: return use(Format<4, Origin::Code>{});
        default: return with_wide_format(m, use);
    }
}

INLINE bool is_wide(const Matrix &m) { return m.type == WIDE_INT8 || m.type == WIDE_INT4; }

// Rounds a group to `to` and returns its scale. `sums` [WIDE_GROUP_PARTS], unless null, gets those of
// the values.
INLINE float round_group(const float *from, QuantizedValue *to, std::int32_t *sums) {
    constexpr int VECTORS = GROUP / LANES, PART_VECTORS = PART / LANES;
    const Rounding rounding = rounding_of(from, WIDE_GROUP);
    for (int i = 0; i < WIDE_GROUP; i += GROUP) {
        vint rounded[VECTORS];
        for (int v = 0; v < VECTORS; ++v)
            rounded[v] = round_values(from + i + v * LANES, rounding);
        store_quantized(rounded, to + i);
        for (int part = 0; sums && part < GROUP / PART; ++part) {
            vint sum = {};
            for (int v = 0; v < PART_VECTORS; ++v) sum += rounded[part * PART_VECTORS + v];
            sums[i / PART + part] = reduce_sum(sum);
        }
    }
    return rounding.scale;
}

// One of `rows` rows, to where it lies among them from `to` on.
template <int BITS>
static void round_wide_row(WideFormat<BITS>, const float *from, std::int64_t inputs, std::int64_t row,
                           std::int64_t rows, void *to) {
    using Group = typename WideFormat<BITS>::Activations;
    const RowTile tile = tile_of(row, rows);
    const std::int64_t groups = WideFormat<BITS>::groups(inputs);
    Group *at = static_cast<Group *>(to) + tile.first * groups + row - tile.first;
    for (std::int64_t group = 0; group < groups; ++group, at += tile.rows) {
        std::int32_t sums[WIDE_GROUP_PARTS];
        QuantizedValue apart[WIDE_GROUP], *values = Group::AS_PAIRS ? apart : at->values;
        at->scale = round_group(from + group * WIDE_GROUP, values, sums);
        at->minus_128_sum = 0;
        for (int part = 0; part < WIDE_GROUP_PARTS; ++part) {
            at->minus_8_sums[part] = static_cast<std::int16_t>(-8 * sums[part]);
            at->minus_128_sum -= 128 * sums[part];
        }
        if constexpr (Group::AS_PAIRS)
            for (int i = 0; i < WIDE_GROUP; i += GROUP) store_pairs(values + i, at->pairs + i);
        if constexpr (Group::TWICE)
            for (int i = 0; i < WIDE_GROUP; ++i)
                at->from_minus_128[i] = static_cast<std::uint8_t>(values[i] + 128);
    }
}

// The factors of a group's parts in either half of each lane, the first part's lowest.
INLINE vint load_factors(const char *from) {
    const vfloat upper = load(reinterpret_cast<const bfloat *>(from));  // 16 bits of each lane
    const vbits bits = reinterpret_cast<vbits>(upper);
    return reinterpret_cast<vint>(bits | bits >> 16);
}

// That of one part, in either half of each lane.
INLINE vint factor_of_part(vint factors, int part) {
    return reinterpret_cast<vint>(reinterpret_cast<vushorts>(factors) >> 4 * part) & 0x000F000F;
}

// Those of two parts, the first one's in the lower halves.
INLINE vint factors_of_parts(vint factors, int part) {
    const vbits two = reinterpret_cast<vbits>(factors) >> 4 * part;
    return reinterpret_cast<vint>((two & 0x0F) | (two & 0xF0) << 12);
}

// Weights of 4 bits, in bytes, times the factor of their part: bytes too.
INLINE vint multiply_factor(vint bytes, vint factor) {
    return reinterpret_cast<vint>(reinterpret_cast<vushorts>(bytes) *
                                  reinterpret_cast<vushorts>(factor));
}

#if X86_LANES
INLINE vint add_products_of_pairs(vint sums, vint pairs, const std::int16_t *two) {
#if VNNI
    return dot_pairs(sums, pairs, broadcast_four(two));
#else
    return sums + multiply_pairs(pairs, broadcast_four(two));
#endif
}
#else
INLINE vfloat add_products_of_pairs(vfloat sums, vint pairs, const std::int16_t *two) {
    return sums + to_float(pairs & 0xFFFF) * static_cast<float>(two[0]) +
           to_float(pairs >> 16) * static_cast<float>(two[1]);
}
#endif

#if X86_LANES && !VNNI
// The products of a part in two sums of 16 bits, times its factor.
INLINE vint add_part(vint sums, vshorts part_sums, vint factor) {
    return add(sums, multiply_pairs(reinterpret_cast<vint>(part_sums), factor));
}
#endif

// Sums of one output of a row, where there are few: they could not be added to sooner than the
// addition before is done.
template <int R, int P>
constexpr int CHAINS = R * P * PANEL_VECTORS == 1 ? 4 : R * P * PANEL_VECTORS <= 4 ? 2 : 1;

// Adds to `totals` one group of P panels, which lie `panel` bytes apart, times that of R rows at `a`.
template <int R, int P, int BITS>
INLINE void accumulate_group(WideFormat<BITS>, Accumulators<R, P> &totals,
                             const char *weights, std::int64_t group, std::int64_t panel,
                             const typename WideFormat<BITS>::Activations *a) {
    using F = WideFormat<BITS>;
    constexpr int VECTORS = P * PANEL_VECTORS, UNITS = F::PART_UNITS;
    // Sums of 16 bits hold a part's products with 4 bits, but not with what factors make of them.
    constexpr bool PART_SUMS = WITHOUT_VNNI && BITS == 4;
    using PartSums = std::conditional_t<PART_SUMS, Sums<F>, GroupSum>;
    const char *at = weights + group * F::GROUP_BYTES;
    const auto vector = [&](int v, std::int64_t offset, int lane_bytes) {
        return at + offset + v / PANEL_VECTORS * panel + v % PANEL_VECTORS * LANES * lane_bytes;
    };
    const auto prefetch = [&](std::int64_t offset) {
        if constexpr (PREFETCHES<R, P>) prefetch_for_one_row<F>(at + offset);
    };
    prefetch(0), prefetch(F::HEADER_BYTES - 1);
    GroupSum sums[CHAINS<R, P>][R][VECTORS] = {};
    if constexpr (!F::FACTORS)
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                sums[0][r][v] = static_cast<Whole>(a[r].minus_128_sum) - GroupSum{};
    vint factors[VECTORS];
    if constexpr (F::FACTORS)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) {
            factors[v] = load_factors(vector(v, F::SCALES_BYTES, 2));
#pragma GCC unroll 2
            for (int part = 0; part < WIDE_GROUP_PARTS; part += 2) {
                const vint two = factors_of_parts(factors[v], part);
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    sums[0][r][v] =
                        add_products_of_pairs(sums[0][r][v], two, a[r].minus_8_sums + part);
            }
        }
#pragma GCC unroll 4
    for (int part = 0; part < WIDE_GROUP_PARTS; ++part) {
        PartSums part_sums[R][VECTORS] = {};
#pragma GCC unroll 4
        for (int unit = part * UNITS; unit < (part + 1) * UNITS; ++unit) {
            prefetch(F::HEADER_BYTES + unit * UNIT_BYTES);
            vint bytes[VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                bytes[v] = load_whole(vector(v, F::HEADER_BYTES + unit * UNIT_BYTES, 4));
#pragma GCC unroll 2
            for (int step = 0; step < STEPS<F>; ++step) {
                StepWeights step_weights[VECTORS];
#pragma GCC unroll 8
                for (int v = 0; v < VECTORS; ++v) {
                    vint values = bytes_of_step<F>(bytes[v], step);
                    if constexpr (F::FACTORS && !PART_SUMS)
                        values = multiply_factor(values, factor_of_part(factors[v], part));
                    step_weights[v] = widen_weights(values);
                }
                constexpr int CHAIN_COUNT = CHAINS<R, P>;
                auto &chain = sums[(unit * STEPS<F> + step) % CHAIN_COUNT];
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r) {
                    const auto x = activations_of_step<F>(a[r], unit, step);
#pragma GCC unroll 8
                    for (int v = 0; v < VECTORS; ++v)
                        if constexpr (PART_SUMS)
                            part_sums[r][v] = dot(part_sums[r][v], step_weights[v], x);
                        else
                            chain[r][v] = dot(chain[r][v], step_weights[v], x);
                }
            }
        }
        if constexpr (PART_SUMS)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
#pragma GCC unroll 8
                for (int r = 0; r < R; ++r)
                    sums[0][r][v] = add_part(sums[0][r][v], part_sums[r][v],
                                             factor_of_part(factors[v], part));
    }
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
        const vfloat scales = load_scales(vector(v, 0, 2));
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            GroupSum sum = sums[0][r][v];
#pragma GCC unroll 4
            for (int chain = 1; chain < CHAINS<R, P>; ++chain) sum += sums[chain][r][v];
            totals.of[r][v] += to_float(sum) * (scales * a[r].scale);
        }
    }
}

typedef std::uint8_t vbytes __attribute__((vector_size(4 * LANES)));

INLINE vint subtract_bytes(vint a, vint b) {
    return reinterpret_cast<vint>(reinterpret_cast<vbytes>(a) - reinterpret_cast<vbytes>(b));
}

// Factors make it pay to widen for fewer rows: 24 take 0.88 of the time on a Zen 4. Measured on an Emerald
// Rapids too. With AVX2 more rows are needed: 8 take 1.09 of it, 16 take 0.89.
template <int BITS>
INLINE std::int64_t widened_rows(WideFormat<BITS>) {
    return (WITHOUT_VNNI ? 4 : 2) * QUANTIZED_ROWS;
}

// The weights of a group as bytes [16 units]: SIGNED, or counted from 128.
template <bool SIGNED, int BITS>
INLINE void widen_group(WideFormat<BITS>, const char *group, char *to) {
    using F = WideFormat<BITS>;
    for (int lanes = 0; lanes < PANEL_WIDTH; lanes += LANES) {
        const vint middle = static_cast<std::int32_t>(0x80808080u) - vint{};
        vint factors, factor, origin = SIGNED ? middle : vint{};
        if constexpr (F::FACTORS) factors = load_factors(group + F::SCALES_BYTES + 2 * lanes);
#pragma GCC unroll 4
        for (int part = 0; part < WIDE_GROUP_PARTS; ++part) {
            if constexpr (F::FACTORS) {
                factor = factor_of_part(factors, part);
                origin = multiply_factor(0x08080808 - vint{}, factor);
                if constexpr (!SIGNED) origin = subtract_bytes(origin, middle);
            }
#pragma GCC unroll 4
            for (int unit = part * F::PART_UNITS; unit < (part + 1) * F::PART_UNITS; ++unit) {
                const vint bytes = load_whole(group + F::HEADER_BYTES + unit * UNIT_BYTES + 4 * lanes);
#pragma GCC unroll 2
                for (int step = 0; step < 8 / BITS; ++step) {
                    vint values = bytes;
                    if constexpr (F::FACTORS)
                        values = multiply_factor(bytes_of_step<F>(bytes, step), factor);
                    char *unit_to = to + (unit * 8 / BITS + step) * UNIT_BYTES + 4 * lanes;
                    *reinterpret_cast<vint_unaligned *>(unit_to) = subtract_bytes(values, origin);
                }
            }
        }
    }
}

#if VNNI
// A panel in the form that `WideFormat::Widened` describes.
INLINE void widen_panel(WideFormat<4> format, const char *from, std::int64_t inputs, char *to) {
    using F = WideFormat<4>;
    using W = F::Widened;
    const char *end = from + F::panel_bytes(inputs);
    for (; from < end; from += F::GROUP_BYTES, to += W::GROUP_BYTES) {
        __builtin_memcpy(to, from, F::SCALES_BYTES);
        widen_group<false>(format, from, to + W::HEADER_BYTES);
    }
}
#endif

// The weights of one output: an embedding that shares the head's panels.
template <int BITS>
static void unpack_quantized_row(WideFormat<BITS> format, const Matrix &m, std::int64_t output,
                                 float *to) {
    using F = WideFormat<BITS>;
    const std::int64_t column = output % PANEL_WIDTH;
    const char *group = static_cast<const char *>(m.panels) +
                        output / PANEL_WIDTH * F::panel_bytes(m.inputs);
    for (std::int64_t k = 0; k < m.inputs; k += WIDE_GROUP, group += F::GROUP_BYTES) {
        std::int8_t weights[WIDE_GROUP / 4][PANEL_WIDTH][4];
        widen_group<true>(format, group, reinterpret_cast<char *>(weights));
        const float scale = load_scales(group + 2 * (column / LANES * LANES))[column % LANES];
        for (int i = 0; i < WIDE_GROUP; ++i)
            to[k + i] = scale * static_cast<float>(weights[i / 4][column][i % 4]);
    }
}

// Weights of 8 and 4 bits, activations that fit them, and the product of four of each.
//
// GROUP inputs of an output share a scale. A weight is its scale times (q - origin), q unsigned, or
// its scale times q plus a minimum, or its scale times what the code q stands for: see Format. A panel lies group by group: a header, then units of
// 64 bytes that have some inputs of all PANEL_WIDTH outputs:
//
//     scales of a group   [PANEL_WIDTH] float16
//     minimums, if any    [PANEL_WIDTH] float16
//     origins, if any     [PANEL_WIDTH] bytes
//     8 bits   8 units    [PANEL_WIDTH][4 inputs]
//     4 bits   4 units    [PANEL_WIDTH][4 bytes]: the lower halves, then the upper halves
//
// K types have super-blocks of eight groups. In front of these lie scales, and minimums if any, of
// all eight. A group's header has the whole numbers that its own are multiples of:
//
//     of scales    [PARTS][PANEL_WIDTH] bytes; with two parts, signed and for half a group each
//     of minimums  [PANEL_WIDTH] bytes, if any
//
// Activations are rounded to 8 bits too, each GROUP of a row with a scale of its own. Products of a
// group are whole numbers, summed without rounding; the groups' sums are added in order as floats.
// So a row's result does not depend on the other rows of its batch here either.
//
// Rounded activations lie as products read them: in tiles of QUANTIZED_ROWS rows, the last rows in
// tiles of half as many, a quarter and so on. A tile lies group by group, each of them row by row.

constexpr int GROUP = 32;
constexpr int QUANTIZED_ROWS = LANES == 16 ? 8 : LANES == 8 ? 4 : 2;
constexpr int UNIT_BYTES = 4 * PANEL_WIDTH;

INLINE bool is_quantized(const Matrix &m) { return m.type >= INT8; }

// What a weight is counted from: the middle of the range, a minimum that is added, a value of q, or the
// middle of what codes stand for.
enum class Origin { Middle, Minimum, Zero, Code };

// Codes of 4 bits are floats with one bit of a fraction: 0, 0.5, 1, 1.5, 2, 3, 4, 6, then the same less
// than zero. Twice of that, and 12 more:
alignas(16) constexpr std::uint8_t CODED[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                                12, 11, 10, 9,  8,  6,  4,  0};

// A widened format is what `widen_panel` makes of one of 4 bits: 8 units a group, from a cache line on.
template <int BITS_, Origin ORIGIN_ = Origin::Middle, bool IS_K_ = false, bool WIDENED = false>
struct Format {
    using Activations = struct QuantizedGroup;
    using Widened = Format<8, ORIGIN_, IS_K_, true>;
    static constexpr int BITS = BITS_;
    static constexpr bool WIDENS = BITS == 4;
    static constexpr Origin ORIGIN = ORIGIN_;
    static constexpr int VALUE_BITS = ORIGIN == Origin::Code ? 8 : WIDENED ? 4 : BITS;
    static constexpr bool IS_K = IS_K_;
    static constexpr int MIDDLE = ORIGIN == Origin::Code ? 12 : WIDENED ? 8 : 1 << (BITS - 1);
    static constexpr int PARTS = IS_K && ORIGIN == Origin::Middle ? 2 : 1;
    static constexpr int HALVES_BYTES = (ORIGIN == Origin::Minimum ? 4 : 2) * PANEL_WIDTH;
    static constexpr int ORIGIN_BYTES = ORIGIN == Origin::Zero ? PANEL_WIDTH : 0;
    static constexpr int NUMBERS_BYTES = IS_K ? 2 * PANEL_WIDTH : HALVES_BYTES + ORIGIN_BYTES;
    static constexpr int HEADER_BYTES = WIDENED ? (NUMBERS_BYTES + 63) / 64 * 64 : NUMBERS_BYTES;
    static constexpr int GROUP_BYTES = HEADER_BYTES + BITS * UNIT_BYTES;
    static constexpr int SUPER_GROUPS = IS_K ? 8 : 1;
    static constexpr int SUPER_BYTES = (IS_K ? HALVES_BYTES : 0) + SUPER_GROUPS * GROUP_BYTES;

    // Where the float16 numbers of a group lie in a panel, and where the group does. Those of the
    // group behind the last one lie in the next panel.
    static constexpr std::int64_t halves(std::int64_t group) {
        return group / SUPER_GROUPS * SUPER_BYTES;
    }
    static constexpr std::int64_t offset(std::int64_t group) {
        return halves(group) + (IS_K ? HALVES_BYTES : 0) + group % SUPER_GROUPS * GROUP_BYTES;
    }

    static constexpr std::int64_t groups(std::int64_t inputs) { return inputs / GROUP; }
    static constexpr std::int64_t panel_bytes(std::int64_t inputs) {
        return halves(groups(inputs));
    }
};

typedef std::int16_t vshorts __attribute__((vector_size(4 * LANES)));
typedef std::uint16_t vushorts __attribute__((vector_size(4 * LANES)));
typedef std::int32_t vint_unaligned __attribute__((vector_size(4 * LANES), aligned(1), may_alias));

INLINE vint load_whole(const char *from) {
    return *reinterpret_cast<const vint_unaligned *>(from);
}

// How a build multiplies four bytes of each output with four activations:
//     VNNI        one instruction
//     pmaddubsw   weights of 4 bits, in sums of 16 bits, which the products of a group fit
//     pmaddwd     weights of 8 bits, as pairs of 16 bits: the even inputs, then the odd ones
//     floats      which hold these sums exactly
#if X86_LANES
using QuantizedValue = std::int8_t;
using GroupSum = vint;
using Whole = std::int32_t;
#else
using QuantizedValue = std::int16_t;
using GroupSum = vfloat;
using Whole = float;
#endif
constexpr bool WITHOUT_VNNI = X86_LANES && !VNNI;

// A group of a row of activations.
struct __attribute__((may_alias)) QuantizedGroup {
    float scale;
    std::int32_t sum, upper_sum;  // of the values, and of the upper half of them
    std::int32_t minus_8_sum;
    QuantizedValue values[GROUP];
    // For pmaddwd: of four values the first and the third, then the second and the fourth.
    std::int16_t pairs[WITHOUT_VNNI * GROUP];
};

struct RowTile {
    std::int64_t first, rows;
};

// The tile of `row` among `rows` rows.
INLINE RowTile tile_of(std::int64_t row, std::int64_t rows) {
    RowTile tile = {row / QUANTIZED_ROWS * QUANTIZED_ROWS, QUANTIZED_ROWS};
    while (tile.first + tile.rows > rows || row >= tile.first + tile.rows) {
        if (tile.first + tile.rows <= rows) tile.first += tile.rows;
        tile.rows /= 2;
    }
    return tile;
}

INLINE std::int32_t reduce_sum(vint v) {
#pragma GCC unroll 4
    for (std::uint32_t half = LANES / 2; half > 0; half /= 2) v += swap_lanes(v, half);
    return v[0];
}

// The largest of magnitudes, which are ordered as their bits are.
INLINE float reduce_max(vbits v) {
#pragma GCC unroll 4
    for (std::uint32_t half = LANES / 2; half > 0; half /= 2) {
        const vbits other = swap_lanes(v, half);
        v = v > other ? v : other;
    }
    return reinterpret_cast<vfloat>(v)[0];
}

// The values of a group, each of which fits.
INLINE void store_quantized(const vint (&whole)[GROUP / LANES], QuantizedValue *to) {
#if X86_LANES == 8  // seven instructions; the compiler makes dozens of it
    const __m256i lower = _mm256_packs_epi32((__m256i)whole[0], (__m256i)whole[1]);
    const __m256i upper = _mm256_packs_epi32((__m256i)whole[2], (__m256i)whole[3]);
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);  // packs works on halves
    const __m256i values =
        _mm256_permutevar8x32_epi32(_mm256_packs_epi16(lower, upper), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(to), values);
#else
    typedef QuantizedValue vvalues __attribute__((vector_size(sizeof(QuantizedValue) * LANES)));
    for (int v = 0; v < GROUP / LANES; ++v) {
#if X86_LANES == 16  // one instruction; the compiler makes dozens of it
        const vvalues values = reinterpret_cast<vvalues>(_mm512_cvtepi32_epi8((__m512i)whole[v]));
#else
        const vvalues values = __builtin_convertvector(whole[v], vvalues);
#endif
        __builtin_memcpy(to + v * LANES, &values, sizeof values);
    }
#endif
}

// The same as pairs of 16 bits.
INLINE void store_pairs(const QuantizedValue *from, std::int16_t *to) {
    for (int i = 0; i < GROUP; i += 4)
        for (int k = 0; k < 4; ++k) to[i + k % 2 * 2 + k / 2] = from[i + k];
}

// How activations that share a scale are rounded.
struct Rounding {
    float scale;
    vfloat inverse;
};

// Of `count` activations. What is no finite number counts as the largest.
INLINE Rounding rounding_of(const float *from, std::int64_t count) {
    vbits most = {};  // magnitudes
    for (std::int64_t i = 0; i < count; i += LANES) {
        const vbits magnitude = reinterpret_cast<vbits>(load(from + i)) & 0x7FFFFFFFu;
        most = magnitude > most ? magnitude : most;
    }
    const float largest = reduce_max(most);
    return {largest / 127.0f + (largest - largest),
            broadcast(largest > 1e-36f ? 127.0f / largest : 0.0f)};  // finite
}

INLINE vint round_values(const float *from, const Rounding &rounding) {
    const vfloat shifted = load(from) * rounding.inverse + 12582912.0f;  // see exp
    const vint whole = reinterpret_cast<vint>(reinterpret_cast<vbits>(shifted) - 0x4B400000u);
    return shifted == shifted ? whole : vint{};  // the scale says that it is none
}

INLINE void quantize_group(const float *from, QuantizedGroup &to) {
    constexpr int VECTORS = GROUP / LANES;
    const Rounding rounding = rounding_of(from, GROUP);
    vint lower_sum = {}, upper_sum = {}, rounded[VECTORS];
#pragma GCC unroll 8
    for (int v = 0; v < VECTORS; ++v) {
        rounded[v] = round_values(from + v * LANES, rounding);
        (v < VECTORS / 2 ? lower_sum : upper_sum) += rounded[v];
    }
    store_quantized(rounded, to.values);
    if constexpr (WITHOUT_VNNI) store_pairs(to.values, to.pairs);
    to.scale = rounding.scale;
    to.upper_sum = reduce_sum(upper_sum);
    to.sum = reduce_sum(lower_sum) + to.upper_sum;
    to.minus_8_sum = -8 * to.sum;
}

// One of `rows` rows, to where it lies among them from `to` on.
static void quantize_row(const float *from, std::int64_t inputs, std::int64_t row,
                         std::int64_t rows, void *to) {
    const RowTile tile = tile_of(row, rows);
    const std::int64_t groups = inputs / GROUP;
    QuantizedGroup *at =
        static_cast<QuantizedGroup *>(to) + tile.first * groups + row - tile.first;
    for (std::int64_t group = 0; group < groups; ++group)
        quantize_group(from + group * GROUP, at[group * tile.rows]);
}

INLINE vfloat load_scales(const char *from) {
#if X86_LANES == 16
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(from)));
#elif X86_LANES
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(from)));
#else
    const vhalf halves = *reinterpret_cast<const vhalf_unaligned *>(from);
    const vbits bits = __builtin_convertvector(halves, vbits);
    const vfloat magnitude = reinterpret_cast<vfloat>((bits & 0x7FFF) << 13) * 0x1p112f;
    return reinterpret_cast<vfloat>(reinterpret_cast<vbits>(magnitude) | (bits & 0x8000) << 16);
#endif
}

// PANEL_WIDTH bytes, of which a vector begins at `from`, as the sums of a group count.
template <bool SIGNED = false>
INLINE GroupSum load_bytes(const char *from) {
#if X86_LANES == 16
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i *>(from));
    return reinterpret_cast<vint>(SIGNED ? _mm512_cvtepi8_epi32(bytes)
                                         : _mm512_cvtepu8_epi32(bytes));
#elif X86_LANES
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i *>(from));
    return reinterpret_cast<vint>(SIGNED ? _mm256_cvtepi8_epi32(bytes)
                                         : _mm256_cvtepu8_epi32(bytes));
#else
    GroupSum numbers;
    for (int lane = 0; lane < LANES; ++lane)
        numbers[lane] = SIGNED ? static_cast<signed char>(from[lane])
                               : static_cast<unsigned char>(from[lane]);
    return numbers;
#endif
}

// What a unit has of an output, four bytes, is multiplied in one step, or in two: the halves of the
// bytes, or every other byte as a pair of 16 bits. Codes, which are halves, may become pairs too.
template <class F>
constexpr bool IN_PAIRS = WITHOUT_VNNI && F::VALUE_BITS == 8;
template <class F>
constexpr int PAIR_STEPS = IN_PAIRS<F> ? 2 : 1;
template <class F>
constexpr int STEPS = (8 / F::BITS) * PAIR_STEPS<F>;

template <class F>
constexpr bool IS_CODED = false;
template <>
constexpr bool IS_CODED<Format<4, Origin::Code>> = true;

// What codes in bytes stand for.
INLINE vint decode(vint codes) {
#if X86_LANES
    const __m128i coded = _mm_load_si128(reinterpret_cast<const __m128i *>(CODED));
#if X86_LANES == 16
    return (vint)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(coded), (__m512i)codes);
#else
    return (vint)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(coded), (__m256i)codes);
#endif
#else
    vint values = {};
    for (int lane = 0; lane < LANES; ++lane)
        for (int shift = 0; shift < 32; shift += 8)
            values[lane] |= CODED[codes[lane] >> shift & 15] << shift;
    return values;
#endif
}

// What a step multiplies of a unit, before it is brought to the form that `dot` takes.
template <class F>
INLINE vint bytes_of_step(vint bytes, int step) {
    if constexpr (F::BITS == 4)
        bytes = (step / PAIR_STEPS<F> ? bytes >> 4 : bytes) & 0x0F0F0F0F;
    if constexpr (IS_CODED<F>) bytes = decode(bytes);
    if constexpr (IN_PAIRS<F>)
        return step % 2 ? reinterpret_cast<vint>(reinterpret_cast<vushorts>(bytes) >> 8)
                        : bytes & 0x00FF00FF;
    return bytes;
}

// `dot` adds to the sums of a group the products of a step's weights with their activations: of each
// output four of both, in pairs two.
#if X86_LANES
// Four bytes of memory in each lane.
INLINE vint broadcast_four(const void *from) {
    std::int32_t four;
    __builtin_memcpy(&four, from, sizeof four);
    return four - vint{};
}

using StepWeights = vint;
using StepActivations = vint;

INLINE StepWeights widen_weights(vint bytes) { return bytes; }

template <class F, class Group>
INLINE StepActivations activations_of_step(const Group &group, int unit, int step) {
    if constexpr (IN_PAIRS<F>)
        return broadcast_four(group.pairs + 2 * (unit * STEPS<F> + step));
    else
        return broadcast_four(group.values + 4 * (unit * STEPS<F> + step));
}
#endif

#if VNNI
template <class>
using Sums = vint;

#if X86_LANES == 16
INLINE vint dot(vint sums, vint weights, vint activations) {
    return reinterpret_cast<vint>(
        _mm512_dpbusd_epi32((__m512i)sums, (__m512i)weights, (__m512i)activations));
}
INLINE vint dot_pairs(vint sums, vint a, vint b) {
    return reinterpret_cast<vint>(_mm512_dpwssd_epi32((__m512i)sums, (__m512i)a, (__m512i)b));
}
#else
INLINE vint dot(vint sums, vint weights, vint activations) {
    return reinterpret_cast<vint>(
        _mm256_dpbusd_avx_epi32((__m256i)sums, (__m256i)weights, (__m256i)activations));
}
INLINE vint dot_pairs(vint sums, vint a, vint b) {
    return reinterpret_cast<vint>(_mm256_dpwssd_avx_epi32((__m256i)sums, (__m256i)a, (__m256i)b));
}
#endif

INLINE vint whole(vint sums) { return sums; }
#elif X86_LANES
// Of 4 bits each lane of 16 has half of the products of a group.
static_assert(GROUP / 2 * 15 * 127 <= INT16_MAX);
template <class F>
using Sums = std::conditional_t<IN_PAIRS<F>, vint, vshorts>;

#if X86_LANES == 16
INLINE vshorts multiply_bytes(vint a, vint b) {
    return reinterpret_cast<vshorts>(_mm512_maddubs_epi16((__m512i)a, (__m512i)b));
}
INLINE vint multiply_pairs(vint a, vint b) {
    return reinterpret_cast<vint>(_mm512_madd_epi16((__m512i)a, (__m512i)b));
}
#else
INLINE vshorts multiply_bytes(vint a, vint b) {
    return reinterpret_cast<vshorts>(_mm256_maddubs_epi16((__m256i)a, (__m256i)b));
}
INLINE vint multiply_pairs(vint a, vint b) {
    return reinterpret_cast<vint>(_mm256_madd_epi16((__m256i)a, (__m256i)b));
}
#endif

// The compiler would add in another order, for which all products would have to wait in memory.
template <class V>
INLINE V add(V sums, V products) {
    sums += products;
    asm("" : "+v"(sums));
    return sums;
}

INLINE vshorts dot(vshorts sums, vint weights, vint activations) {
    return add(sums, multiply_bytes(weights, activations));
}
INLINE vint dot(vint sums, vint weights, vint activations) {
    return add(sums, multiply_pairs(weights, activations));
}

INLINE vint whole(vshorts sums) {
    return multiply_pairs(reinterpret_cast<vint>(sums), 0x00010001 - vint{});
}
INLINE vint whole(vint sums) { return sums; }
#else
struct StepWeights {
    vfloat of[4];
};
struct StepActivations {
    float of[4];
};
template <class>
using Sums = vfloat;

INLINE StepWeights widen_weights(vint bytes) {
    StepWeights weights;
    for (int i = 0; i < 4; ++i)
        weights.of[i] = __builtin_convertvector((bytes >> 8 * i) & 0xFF, vfloat);
    return weights;
}

template <class F, class Group>
INLINE StepActivations activations_of_step(const Group &group, int unit, int step) {
    StepActivations activations;
    for (int i = 0; i < 4; ++i) activations.of[i] = group.values[4 * (unit * STEPS<F> + step) + i];
    return activations;
}

INLINE vfloat dot(vfloat sums, const StepWeights &weights, const StepActivations &activations) {
    for (int i = 0; i < 4; ++i) sums += weights.of[i] * activations.of[i];
    return sums;
}

INLINE vfloat whole(vfloat sums) { return sums; }
#endif

INLINE vfloat to_float(vfloat value) { return value; }
INLINE vfloat to_float(vint value) { return __builtin_convertvector(value, vfloat); }

// The weights of one output: an embedding that shares the head's panels.
template <class F>
static void unpack_quantized_row(F, const Matrix &m, std::int64_t output, float *to) {
    constexpr int HALVES = 8 / F::BITS;
    const std::int64_t groups = m.inputs / GROUP, column = output % PANEL_WIDTH;
    const char *panel =
        static_cast<const char *>(m.panels) + output / PANEL_WIDTH * F::halves(groups);
    for (std::int64_t g = 0; g < groups; ++g, to += GROUP) {
        const char *group = panel + F::offset(g);
        const auto byte = [&](std::int64_t offset) {
            return static_cast<int>(static_cast<unsigned char>(group[offset]));
        };
        const auto half = [&](std::int64_t array) {
            const std::int64_t vector = array * PANEL_WIDTH + column / LANES * LANES;
            return load_scales(panel + F::halves(g) + 2 * vector)[column % LANES];
        };
        const auto scale_of = [&](int part) {
            if constexpr (F::PARTS == 2)
                return half(0) * static_cast<signed char>(byte(part * PANEL_WIDTH + column));
            return half(0) * (F::IS_K ? byte(column) : 1);
        };
        const float scales[2] = {scale_of(0), scale_of(F::PARTS - 1)};
        float minimum = 0.0f;
        if constexpr (F::ORIGIN == Origin::Minimum)
            minimum = half(1) * (F::IS_K ? byte(PANEL_WIDTH + column) : 1);
        const int origin = F::ORIGIN == Origin::Zero     ? byte(2 * PANEL_WIDTH + column)
                           : F::ORIGIN == Origin::Minimum ? 0
                                                          : F::MIDDLE;
        for (int i = 0; i < GROUP; ++i) {
            const int step = i / 4;
            const int four = byte(F::HEADER_BYTES + step / HALVES * UNIT_BYTES + column * 4 + i % 4);
            const int q = four >> (step % HALVES * F::BITS) & ((1 << F::BITS) - 1);
            const int value = IS_CODED<F> ? CODED[q] : q;
            to[i] = scales[i / (GROUP / 2)] * (value - origin) + minimum;
        }
    }
}

// Vectors as wide as this build's instruction set has them, and what is computed on them.
//
// Included once per instruction set, each time in a namespace of its own (see isa.h): the compiler
// makes each copy from the same source. Everything here is inlined into its callers.

#define INLINE static inline __attribute__((always_inline))

typedef float vfloat __attribute__((vector_size(4 * LANES)));
typedef std::int32_t vint __attribute__((vector_size(4 * LANES)));
typedef std::uint32_t vbits __attribute__((vector_size(4 * LANES)));
typedef std::uint16_t vhalf __attribute__((vector_size(2 * LANES)));
// The same in memory: at any address, and whatever type the memory was written as.
typedef float vfloat_unaligned __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::uint32_t vbits_unaligned
    __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef std::uint16_t vhalf_unaligned
    __attribute__((vector_size(2 * LANES), aligned(2), may_alias));
typedef bfloat bfloat_aliased __attribute__((may_alias));

// A panel is PANEL_WIDTH columns of a matrix; a PANEL_WIDTH of floats takes PANEL_VECTORS vectors.
constexpr int PANEL_WIDTH = 16;
constexpr int PANEL_VECTORS = PANEL_WIDTH / LANES;

INLINE vfloat load(const float *from) { return *reinterpret_cast<const vfloat_unaligned *>(from); }
INLINE void store(float *to, vfloat value) { *reinterpret_cast<vfloat_unaligned *>(to) = value; }

// bfloat16 is the upper half of a float32.
INLINE vfloat widen(vhalf half) {
#if X86_LANES == 16  // one instruction; the compiler makes five of it
    const vbits wide = reinterpret_cast<vbits>(_mm512_cvtepu16_epi32((__m256i)half));
#else
    const vbits wide = __builtin_convertvector(half, vbits);
#endif
    return reinterpret_cast<vfloat>(wide << 16);
}

INLINE vfloat load(const bfloat *from) {
    return widen(*reinterpret_cast<const vhalf_unaligned *>(from));
}

INLINE float widen(float value) { return value; }

INLINE float widen(bfloat value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float out;
    __builtin_memcpy(&out, &bits, sizeof out);
    return out;
}

INLINE void narrow(float value, float *to) { *to = value; }

INLINE void narrow(float value, bfloat *to) {  // to nearest, ties to even, as torch rounds
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    *to = static_cast<bfloat>(value != value ? 0x7FC0 : rounded);
}

#if PAIRS
// A float's place may hold a pair of bfloat16, which is then only moved and multiplied as such.
INLINE vfloat load_pairs(const bfloat *from) {
    return reinterpret_cast<vfloat>(*reinterpret_cast<const vbits_unaligned *>(from));
}

// Each lane of `sums` and the two products of its pairs.
INLINE vfloat dot_pairs(vfloat sums, vfloat a, vfloat b) {
    return _mm512_dpbf16_ps(sums, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
}

INLINE vhalf narrow(vfloat values) { return reinterpret_cast<vhalf>(_mm512_cvtneps_pbh(values)); }

INLINE void store_bfloat16(vfloat values, bfloat *to) {
    *reinterpret_cast<vhalf_unaligned *>(to) = narrow(values);
}

INLINE void round_to_pairs(float *row, std::int64_t count) {
    bfloat_aliased *to = reinterpret_cast<bfloat_aliased *>(row);
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES)
        store_bfloat16(load(row + i), reinterpret_cast<bfloat *>(row) + i);
    for (; i < count; ++i) {
        bfloat half;
        narrow(row[i], &half);
        to[i] = half;
    }
}
#else
INLINE void round_to_pairs(float *, std::int64_t) {}
#endif

INLINE vfloat broadcast(float value) { return value - vfloat{}; }
INLINE vfloat max(vfloat a, vfloat b) { return a > b ? a : b; }
INLINE vfloat min(vfloat a, vfloat b) { return a < b ? a : b; }

// All bits of the first `count` lanes.
INLINE vint first_lanes(std::int64_t count) {
    vbits lanes;
    for (int i = 0; i < LANES; ++i) lanes[i] = static_cast<std::uint32_t>(i);
    return lanes < static_cast<std::uint32_t>(count);
}

INLINE float reduce_sum(vfloat v) {
    float total = 0;
    for (int i = 0; i < LANES; ++i) total += v[i];
    return total;
}

// The lane that is `distance` away, a power of two, in each lane.
template <class V>
INLINE V swap_lanes(V v, std::uint32_t distance) {
    vbits lanes;
    for (int i = 0; i < LANES; ++i) lanes[i] = static_cast<std::uint32_t>(i);
    return __builtin_shuffle(v, lanes ^ distance);
}

INLINE float reduce_max(vfloat v) {
#pragma GCC unroll 4
    for (std::uint32_t half = LANES / 2; half > 0; half /= 2) v = max(v, swap_lanes(v, half));
    return v[0];
}

// e^x to about 2 ulp, flushed to e^-87 and e^88 outside: x = n ln 2 + r, and e^r from its Taylor
// series, |r| <= ln 2 / 2. Adding and subtracting 1.5 * 2^23 rounds to an integer.
INLINE vfloat exp(vfloat x) {
    x = min(max(x, broadcast(-87.0f)), broadcast(88.0f));
    const vfloat shifted = x * 1.44269504f + 12582912.0f;
    const vfloat n = shifted - 12582912.0f;
    const vfloat r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    vfloat e = broadcast(1.0f / 5040);
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const vbits power = (reinterpret_cast<vbits>(shifted) - 0x4B400000u + 127u) << 23;
    return e * reinterpret_cast<vfloat>(power);
}

#if PAIRS
// 2^x to 3e-6 of it: 2^floor(x) times a polynomial whose largest relative error is least.
INLINE vfloat power_of_two(vfloat x) {
    constexpr int FLOOR = 0x09;
    const vfloat rest = _mm512_reduce_ps(x, FLOOR);
    vfloat power = broadcast(0.0135341679f);
    power = power * rest + 0.0520114606f;
    power = power * rest + 0.241442757f;
    power = power * rest + 0.693003834f;
    power = power * rest + 1.00000259f;
    return _mm512_scalef_ps(power, x);
}
#endif

INLINE vfloat tanh(vfloat x) {  // hyperbolic
    return 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
}

// The error function to 2e-7: 7.1.26 of Abramowitz and Stegun.
INLINE vfloat erf(vfloat x) {
    const vfloat size = max(x, -x), t = 1.0f / (1.0f + 0.3275911f * size);
    vfloat sum = broadcast(1.061405429f);
    sum = sum * t - 1.453152027f;
    sum = sum * t + 1.421413741f;
    sum = sum * t - 0.284496736f;
    sum = sum * t + 0.254829592f;
    const vfloat positive = 1.0f - sum * t * exp(-size * size);
    return x < 0.0f ? -positive : positive;
}

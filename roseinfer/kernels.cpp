// What torch has no single operation for, on CPU. Plain C functions over raw memory: no torch and
// no Python headers, so it builds in seconds; kernels.py loads it, checks shapes, and has an answer
// for machines without it.
//
// Each row's result depends on that row alone, in a fixed order of operations, whatever the number
// of rows and threads.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
// One binary for any x86-64: the loader picks the widest vectors that the machine has.
#define WIDEST __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDEST
#endif

namespace {

using bfloat = std::uint16_t;

inline float widen(bfloat value) {
    const std::uint32_t bits = static_cast<std::uint32_t>(value) << 16;
    float out;
    std::memcpy(&out, &bits, sizeof out);
    return out;
}

inline float widen(float value) { return value; }

inline void narrow(float value, bfloat *to) {  // to nearest, ties to even, as torch rounds
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const std::uint32_t rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16;
    *to = static_cast<bfloat>(value != value ? 0x7FC0 : rounded);
}

inline void narrow(float value, float *to) { *to = value; }

// What follows is inlined into their caller's copies, and so use that copy's vectors.
#define INLINE inline __attribute__((always_inline))

INLINE float dot(const float *a, const bfloat *b, std::int64_t count) {
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += a[i] * widen(b[i]);
    return sum;
}

INLINE void add_scaled(float *to, const bfloat *from, float by, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) to[i] += by * widen(from[i]);
}

// e^x for x <= 0, to about 2 ulp: unlike std::exp, made of what vectorises. x = n ln 2 + r, and e^r
// from its Taylor series, |r| <= ln 2 / 2.
INLINE float exp_negative(float x) {
    x = std::max(x, -87.0f);
    const float n = std::nearbyint(x * 1.44269504f);
    const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float e = 1.0f / 5040;
    e = e * r + 1.0f / 720;
    e = e * r + 1.0f / 120;
    e = e * r + 1.0f / 24;
    e = e * r + 1.0f / 6;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const std::int32_t bits = (static_cast<std::int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return e * power;
}

INLINE void softmax(float *line, std::int64_t count) {
    float highest = line[0], total = 0;
    for (std::int64_t i = 1; i < count; ++i) highest = std::max(highest, line[i]);
    for (std::int64_t i = 0; i < count; ++i) line[i] = exp_negative(line[i] - highest);
    for (std::int64_t i = 0; i < count; ++i) total += line[i];
    for (std::int64_t i = 0; i < count; ++i) line[i] /= total;
}

// One row of an RMS norm. As the models do it: the mean in float32, the quotient rounded to the
// row's type before the weight is applied.
template <class T>
INLINE void norm_row(const T *from, const T *weight, T *to, std::int64_t count, float epsilon) {
    float sum = 0;
    for (std::int64_t i = 0; i < count; ++i) sum += widen(from[i]) * widen(from[i]);
    const float by = 1.0f / std::sqrt(sum / static_cast<float>(count) + epsilon);
    for (std::int64_t i = 0; i < count; ++i) {
        T scaled;
        narrow(widen(from[i]) * by, &scaled);
        narrow(widen(scaled) * widen(weight[i]), to + i);
    }
}

}  // namespace

extern "C" {

struct Attention {
    const bfloat *query;         // [rows, kv_heads * share, key_dim], row_stride and head_stride
    const bfloat *keys;          // [slots, kv_heads, key_dim]
    const bfloat *values;        // [slots, kv_heads, value_dim]
    const std::int64_t *tables;  // block numbers, rows table_stride apart
    const std::int64_t *positions;  // [rows], of the query in its sequence
    bfloat *out;                 // [rows, kv_heads * share, value_dim], rows out_stride apart
    std::int64_t rows, kv_heads, share, key_dim, value_dim;
    std::int64_t row_stride, head_stride, out_stride;
    std::int64_t table_stride, block_size;
    std::int64_t window;  // keys that a query sees, itself included; 0: all before it
    float scaling;
};

// One query row, KV heads [first, last): `scores` has room for [kv_heads * share, keys], `query`
// for [kv_heads * share, key_dim], `sum` for [kv_heads * share, value_dim].
//
// The loop over slots is the outer one: blocks are then read from end to end, as memory likes it.
INLINE void attend_heads(const Attention *a, std::int64_t row, std::int64_t first,
                         std::int64_t last, std::int64_t dk, std::int64_t dv, float *scores,
                         float *query, float *sum) {
    const std::int64_t end = a->positions[row] + 1, share = a->share;
    const std::int64_t begin = a->window ? std::max<std::int64_t>(0, end - a->window) : 0;
    const std::int64_t count = end - begin;
    const std::int64_t *table = a->tables + row * a->table_stride;
    for (std::int64_t h = first * share; h < last * share; ++h) {
        const bfloat *from = a->query + row * a->row_stride + h * a->head_stride;
        for (std::int64_t d = 0; d < dk; ++d) query[h * dk + d] = widen(from[d]) * a->scaling;
    }
    for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t slot = table[p / a->block_size] * a->block_size + p % a->block_size;
        const bfloat *keys = a->keys + slot * a->kv_heads * dk;
        __builtin_prefetch(keys + 4 * a->kv_heads * dk);
        for (std::int64_t kv = first; kv < last; ++kv)
            for (std::int64_t h = kv * share; h < (kv + 1) * share; ++h)
                scores[h * count + p - begin] = dot(query + h * dk, keys + kv * dk, dk);
    }
    for (std::int64_t h = first * share; h < last * share; ++h)
        softmax(scores + h * count, count);
    std::fill(sum + first * share * dv, sum + last * share * dv, 0.0f);
    for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t slot = table[p / a->block_size] * a->block_size + p % a->block_size;
        const bfloat *values = a->values + slot * a->kv_heads * dv;
        __builtin_prefetch(values + 4 * a->kv_heads * dv);
        for (std::int64_t kv = first; kv < last; ++kv)
            for (std::int64_t h = kv * share; h < (kv + 1) * share; ++h)
                add_scaled(sum + h * dv, values + kv * dv, scores[h * count + p - begin], dv);
    }
    bfloat *out = a->out + row * a->out_stride;
    for (std::int64_t i = first * share * dv; i < last * share * dv; ++i) narrow(sum[i], out + i);
}

// The usual head sizes as constants, for loops without remainders.
WIDEST void attend_row(const Attention *a, std::int64_t row, std::int64_t first, std::int64_t last,
                       float *scores, float *query, float *sum) {
    if (a->key_dim == 64 && a->value_dim == 64)
        attend_heads(a, row, first, last, 64, 64, scores, query, sum);
    else if (a->key_dim == 128 && a->value_dim == 128)
        attend_heads(a, row, first, last, 128, 128, scores, query, sum);
    else
        attend_heads(a, row, first, last, a->key_dim, a->value_dim, scores, query, sum);
}

// Attention of single queries over a paged cache: reads each needed key and value once.
void rose_attend(const Attention *a) {
    std::int64_t longest = 0;
    for (std::int64_t row = 0; row < a->rows; ++row)
        longest = std::max(longest, a->positions[row] + 1);
    // A few rows are split by head, so that every thread has work.
    const std::int64_t parts = a->rows >= 8 ? 1 : a->kv_heads, heads = a->kv_heads / parts;
    const std::int64_t items = a->rows * parts, all = a->kv_heads * a->share;
#pragma omp parallel if (items > 1)
    {
        std::vector<float> scores(static_cast<std::size_t>(all * longest));
        std::vector<float> query(static_cast<std::size_t>(all * a->key_dim));
        std::vector<float> sum(static_cast<std::size_t>(all * a->value_dim));
#pragma omp for schedule(dynamic)
        for (std::int64_t item = 0; item < items; ++item) {
            const std::int64_t first = item % parts * heads;
            attend_row(a, item / parts, first, first + heads, scores.data(), query.data(),
                       sum.data());
        }
    }
}

WIDEST static void norm_bfloat(const bfloat *from, const bfloat *weight, bfloat *to,
                               std::int64_t count, float epsilon) {
    norm_row(from, weight, to, count, epsilon);
}

WIDEST static void norm_float(const float *from, const float *weight, float *to,
                              std::int64_t count, float epsilon) {
    norm_row(from, weight, to, count, epsilon);
}

// RMS norm of `rows` contiguous rows of `count`, float32 or bfloat16.
void rose_rms_norm(int is_float, const void *from, const void *weight, void *to, std::int64_t rows,
                   std::int64_t count, float epsilon) {
#pragma omp parallel for if (rows * count > 65536)
    for (std::int64_t row = 0; row < rows; ++row) {
        const std::int64_t at = row * count;
        if (is_float)
            norm_float(static_cast<const float *>(from) + at, static_cast<const float *>(weight),
                       static_cast<float *>(to) + at, count, epsilon);
        else
            norm_bfloat(static_cast<const bfloat *>(from) + at,
                        static_cast<const bfloat *>(weight), static_cast<bfloat *>(to) + at,
                        count, epsilon);
    }
}

}  // extern "C"

// Tiles of a product: R rows of activations times P panels of weights, whose sums stay in registers.
//
// A matrix [outputs, inputs] lies in panels of PANEL_WIDTH outputs, each panel input by input, so
// that a product reads it from end to end. In bfloat16 two inputs lie together, as dot product
// instructions want them:
//
//     float32    panel [inputs][PANEL_WIDTH]
//     bfloat16   panel [inputs / 2][PANEL_WIDTH][2]
//
// Where the build has such instructions (PAIRS), `round_to_pairs` makes bfloat16 pairs of the
// activations too, in place: the first two inputs of a row lie where its first float was. With AMX
// activations are copied to tiles instead: see amx.h.

// Rows at a time: as many sums as there are registers for, with room for a panel's vectors.
constexpr int MICRO_ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 3;

template <int R, int P>
struct Accumulators {
    vfloat of[R][P * PANEL_VECTORS];
};

// The vectors of a panel's weights for one input. Of a bfloat16 pair, the first input's weights are
// the lower halves.
INLINE vfloat weights(const float *panel, std::int64_t k) { return load(panel + k * PANEL_WIDTH); }

INLINE vfloat weights(const bfloat *panel, std::int64_t k) {
    const bfloat *at = panel + k / 2 * (2 * PANEL_WIDTH);
    const vbits pair = *reinterpret_cast<const vbits_unaligned *>(at);
    return reinterpret_cast<vfloat>(k % 2 ? pair & 0xFFFF0000u : pair << 16);
}

// From one part of a panel to the next, in elements.
constexpr int vector_stride(const float *) { return LANES; }
constexpr int vector_stride(const bfloat *) { return 2 * LANES; }

// Where input `k` of a row of activations lies, in floats.
constexpr std::int64_t input_offset(const float *, std::int64_t k) { return k; }
constexpr std::int64_t input_offset(const bfloat *, std::int64_t k) { return PAIRS ? k / 2 : k; }

// What is read after these weights: P panels of bfloat16, `stride` bytes apart.
struct NextPanels {
    const char *at;
    std::int64_t stride;
};

// Asks memory for two inputs of P panels: of each, a line.
template <int P>
INLINE void prefetch_pairs(const NextPanels &ahead, std::int64_t k) {
#pragma GCC unroll 8
    for (int v = 0; v < P; ++v)
        __builtin_prefetch(ahead.at + v * ahead.stride + k * PANEL_WIDTH * sizeof(bfloat), 0, 2);
}

// Adds `a` [R, inputs], rows `stride` apart, times P panels that lie `panel` elements apart.
// PREFETCH: what is `ahead` is asked for meanwhile.
template <int R, int P, bool PREFETCH = false, class W>
INLINE void accumulate(Accumulators<R, P> &sums, const float *a, std::int64_t stride, const W *b,
                       std::int64_t panel, std::int64_t inputs, const NextPanels &ahead = {}) {
    for (std::int64_t k = 0; k < inputs; k += 2) {
        if constexpr (PREFETCH) prefetch_pairs<P>(ahead, k);
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            vfloat weight[P * PANEL_VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < P * PANEL_VECTORS; ++v)
                weight[v] = weights(
                    b + v / PANEL_VECTORS * panel + v % PANEL_VECTORS * vector_stride(b), k + i);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vfloat value = broadcast(a[r * stride + k + i]);
#pragma GCC unroll 8
                for (int v = 0; v < P * PANEL_VECTORS; ++v) sums.of[r][v] += value * weight[v];
            }
        }
    }
}

#if PAIRS
// The same place in R rows that lie `stride` floats apart. Three share a pointer: one for each would not
// fit into registers beside all else. Products of 256 rows take 0.94 of the time so, on a Zen 4; with
// few rows, and in builds without PAIRS, nothing is won.
template <int R>
class RowPointers {
  public:
    RowPointers(const float *first, std::int64_t stride) : stride(stride) {
        for (int i = 0; i < COUNT; ++i) pointers[i] = first + 3 * i * stride;
    }

    float at(int row) const { return pointers[row / 3][row % 3 * stride]; }

    void advance() {
#pragma GCC unroll 4
        for (int i = 0; i < COUNT; ++i) {
            ++pointers[i];
            asm("" : "+r"(pointers[i]));  // or the compiler counts an offset for each row
        }
    }

  private:
    static constexpr int COUNT = (R + 2) / 3;
    const float *pointers[COUNT];
    const std::int64_t stride;
};

template <int R, int P, bool PREFETCH = false>
INLINE void accumulate(Accumulators<R, P> &sums, const float *a, std::int64_t stride,
                       const bfloat *b, std::int64_t panel, std::int64_t inputs,
                       const NextPanels &ahead = {}) {
    RowPointers<R> rows(a, stride);
    for (std::int64_t k = 0; k < inputs; k += 2, rows.advance()) {
        if constexpr (PREFETCH) prefetch_pairs<P>(ahead, k);
        vfloat weight[P];
#pragma GCC unroll 8
        for (int v = 0; v < P; ++v) weight[v] = load_pairs(b + v * panel + k * PANEL_WIDTH);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const vfloat pair = broadcast(rows.at(r));
#pragma GCC unroll 8
            for (int v = 0; v < P; ++v) sums.of[r][v] = dot_pairs(sums.of[r][v], weight[v], pair);
        }
    }
}
#endif

// Whether a result replaces the output or is added to it.
enum class Store { Replace, Add };

struct Rows {
    float *at;
    std::int64_t stride;
};

// Of the outputs from `column` on; without one what changes no sum, not even the sign of a zero.
INLINE vfloat bias_of(const Matrix &m, std::int64_t column) {
    return m.bias ? load(m.bias + column) : broadcast(-0.0f);
}

// Adds the bias to `value`, the outputs from `column` on, and stores them.
INLINE void store_output(const Matrix &m, float *row, std::int64_t column, vfloat value,
                         Store mode) {
    value += bias_of(m, column);
    const std::int64_t count = m.outputs - column;
    float *to = row + column;
    if (count >= LANES)
        store(to, mode == Store::Add ? load(to) + value : value);
    else
        for (std::int64_t i = 0; i < count; ++i)
            to[i] = mode == Store::Add ? to[i] + value[i] : value[i];
}

// Stores the outputs from `column` on of R rows.
template <int R, int P>
INLINE void store_tile(const Matrix &m, const Accumulators<R, P> &sums, std::int64_t column, Rows c,
                       Store mode) {
    constexpr int VECTORS = P * PANEL_VECTORS;
    if (column + P * PANEL_WIDTH <= m.outputs) {
        vfloat bias[VECTORS];
        for (int v = 0; v < VECTORS; ++v) bias[v] = bias_of(m, column + v * LANES);
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) {
                float *to = c.at + r * c.stride + column + v * LANES;
                const vfloat sum = sums.of[r][v] + bias[v];
                store(to, mode == Store::Add ? load(to) + sum : sum);
            }
        return;
    }
    // By way of memory, for a loop: unrolled, all that a row's end may need would be there 24 times.
    float tile[R * VECTORS * LANES];
#pragma GCC unroll 32
    for (int i = 0; i < R * VECTORS; ++i)
        store(tile + i * LANES, sums.of[i / VECTORS][i % VECTORS]);
#pragma GCC unroll 1
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 1
        for (int v = 0; v < VECTORS; ++v)
            if (column + v * LANES < m.outputs)
                store_output(m, c.at + r * c.stride, column + v * LANES,
                             load(tile + (r * VECTORS + v) * LANES), mode);
}

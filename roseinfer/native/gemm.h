// Products with weights of 32 and 16 bits, in tiles: few rows straight from memory, many in blocks.

// How far ahead few rows ask memory for weights. Panels are so short that the processor's own
// prefetcher comes too late: it has to find each anew. At the end of one this reaches into the next.
constexpr int PREFETCH_BYTES = 2048;
template <class W>
constexpr bool prefetches_itself = LANES == 16 && sizeof(W) == sizeof(bfloat);

// R rows times P panels from `first` on. The sums of all rows fit into registers, so the packed
// weights are read once, straight from memory.
template <int R, int P, class W>
static void gemm_skinny_tile(const Matrix &m, const float *a, std::int64_t stride,
                             std::int64_t first, Rows c, Store mode) {
    const std::int64_t panel = m.inputs * PANEL_WIDTH;
    Accumulators<R, P> sums = {};
    const W *weights = static_cast<const W *>(m.panels) + first * panel;
    const NextPanels ahead = {reinterpret_cast<const char *>(weights) + PREFETCH_BYTES,
                              panel * static_cast<std::int64_t>(sizeof(W))};
    accumulate<R, P, prefetches_itself<W>>(sums, a, stride, weights, panel, m.inputs, ahead);
    store_tile<R, P>(m, sums, first * PANEL_WIDTH, c, mode);
}

template <class W, int R = MICRO_ROWS>
static void gemm_skinny(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                     std::int64_t first, std::int64_t panels, Rows c, Store mode) {
    if constexpr (R > 1) {
        if (rows < R) return gemm_skinny<W, R - 1>(m, a, stride, rows, first, panels, c, mode);
    } else if constexpr (LANES >= 8) {
        const std::int64_t panel = m.inputs * PANEL_WIDTH;
        const W *weights = static_cast<const W *>(m.panels);
        const auto add = [&](auto &sums, std::int64_t p, std::int64_t run) {
            accumulate(sums, a, stride, weights + p * panel, run * panel, m.inputs);
        };
        if (reads_runs_of_floats())
            return multiply_runs<LANES == 16 ? 2 : 4>(m, first, first + panels, c, mode, add);
    }
    // Few rows leave registers for more panels; several streams of loads use memory better than
    // one, where the processor's own prefetcher finds them.
    constexpr int P = prefetches_itself<W>                    ? 2
                      : R * PANEL_VECTORS <= 2                ? 4
                      : R * PANEL_VECTORS <= 4 || LANES == 16 ? 2
                                                              : 1;
    std::int64_t p = first;
    for (; p + P <= first + panels; p += P) gemm_skinny_tile<R, P, W>(m, a, stride, p, c, mode);
    if constexpr (P > 2) {
        for (; p + 2 <= first + panels; p += 2) gemm_skinny_tile<R, 2, W>(m, a, stride, p, c, mode);
    }
    if constexpr (P > 1) {
        for (; p < first + panels; ++p) gemm_skinny_tile<R, 1, W>(m, a, stride, p, c, mode);
    }
}

// For many rows, weights are taken in blocks of P panels times up to MAX_DEPTH inputs, which stay in
// a near cache while all rows are multiplied with them. Where a matrix has more inputs, partial sums
// wait in a buffer for the next block. Measured: pairs are as fast from the second cache as from the
// first, and most matrices then take one block; float32, also what was widened to it, is not.
constexpr int BLOCK_ROWS = 16 * MICRO_ROWS;
template <int P, class W>
constexpr int MAX_DEPTH = PAIRS && sizeof(W) == 2 ? 1024 : P == 1 ? 256 : sizeof(W) == 2 ? 192 : 128;

// A block of weights, its panels `panel_stride` elements apart. Builds without bfloat16 products
// widen it to float32, in a buffer.
template <class W>
struct WeightBlock {
    const W *weights;
    std::int64_t panel_stride;
};

template <int P>
INLINE WeightBlock<float> weight_block(const float *panels, std::int64_t panel_stride, std::int64_t,
                                       float *) {
    return {panels, panel_stride};
}

#if PAIRS
template <int P>
INLINE WeightBlock<bfloat> weight_block(const bfloat *panels, std::int64_t panel_stride,
                                        std::int64_t, float *) {
    return {panels, panel_stride};
}
#else
template <int P>
INLINE WeightBlock<float> weight_block(const bfloat *panels, std::int64_t panel_stride,
                                       std::int64_t count, float *buffer) {
    for (int p = 0; p < P; ++p) {
        const bfloat *panel = panels + p * panel_stride;
        float *to = buffer + p * count * PANEL_WIDTH;
        for (std::int64_t i = 0; i < count; i += 2)
#pragma GCC unroll 8
            for (int v = 0; v < 2 * PANEL_VECTORS; ++v)
                store(to + i * PANEL_WIDTH + v * LANES,
                      weights(panel + v % PANEL_VECTORS * vector_stride(panel),
                              i + v / PANEL_VECTORS));
    }
    return {buffer, count * PANEL_WIDTH};
}
#endif

// Where sums of a block of inputs come from and go to: rows of P panels in a buffer, or, behind the
// last inputs, the output.
struct BlockSums {
    float *buffer;  // [rows][P * PANEL_WIDTH]
    Rows c;
    std::int64_t column;
    Store mode;
    bool first, last;  // block of the inputs

    BlockSums from_row(std::int64_t row, int width) const {
        return {buffer + row * width, {c.at + row * c.stride, c.stride}, column, mode, first, last};
    }
};

template <int P, bool PREFETCH, class W, int R = MICRO_ROWS>
static void micro_kernel(const Matrix &m, const BlockSums &at, const float *a, std::int64_t stride,
                         std::int64_t rows, const WeightBlock<W> &block, std::int64_t depth,
                         const NextPanels &ahead) {
    if constexpr (R > 1) {
        if (rows < R)
            return micro_kernel<P, PREFETCH, W, R - 1>(m, at, a, stride, rows, block, depth, ahead);
    }
    constexpr int VECTORS = P * PANEL_VECTORS;
    Accumulators<R, P> sums = {};
    if (!at.first)
#pragma GCC unroll 32
        for (int i = 0; i < R * VECTORS; ++i)
            sums.of[i / VECTORS][i % VECTORS] = load(at.buffer + i * LANES);
    if (at.last)  // its lines come while the products are computed
        for (int r = 0; r < R; ++r)
            for (int v = 0; v < P; ++v)
                __builtin_prefetch(at.c.at + r * at.c.stride + at.column + v * PANEL_WIDTH, 1);
    accumulate<R, P, PREFETCH>(sums, a, stride, block.weights, block.panel_stride, depth, ahead);
    if (!at.last)
#pragma GCC unroll 32
        for (int i = 0; i < R * VECTORS; ++i)
            store(at.buffer + i * LANES, sums.of[i / VECTORS][i % VECTORS]);
    else
        store_tile<R, P>(m, sums, at.column, at.c, at.mode);
}

// Rows are split evenly: tiles of 6, 6 and 1 rows would waste most of the last one.
template <int P, class W>
static void gemm_blocked(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                      std::int64_t panel, Rows c, Store mode) {
    // The first rows prefetch the next block. Measured: the processor's own prefetcher is best for
    // float32, but too late for bfloat16, whose blocks are read in half the time.
    constexpr bool PREFETCH = sizeof(W) == 2;
    constexpr int ACROSS = P * PANEL_WIDTH, DEPTH = MAX_DEPTH<P, W>;
    float buffer[PAIRS ? 1 : DEPTH * ACROSS], sums[BLOCK_ROWS * ACROSS];
    const std::int64_t panel_stride = m.inputs * PANEL_WIDTH;
    const W *from = static_cast<const W *>(m.panels) + panel * panel_stride;
    const std::int64_t tiles = (rows + MICRO_ROWS - 1) / MICRO_ROWS;
    for (std::int64_t k = 0; k < m.inputs; k += DEPTH) {
        const bool last = k + DEPTH >= m.inputs;
        const std::int64_t depth = last ? m.inputs - k : DEPTH;
        const auto block = weight_block<P>(from + k * PANEL_WIDTH, panel_stride, depth, buffer);
        const W *next_block = last ? from + P * panel_stride : from + (k + depth) * PANEL_WIDTH;
        const NextPanels ahead = {reinterpret_cast<const char *>(next_block),
                                  panel_stride * static_cast<std::int64_t>(sizeof(W))};
        const float *inputs = a + input_offset(from, k);
        const BlockSums all = {sums, c, panel * PANEL_WIDTH, mode, k == 0, last};
        micro_kernel<P, PREFETCH>(m, all, inputs, stride, rows / tiles, block, depth, ahead);
        for (std::int64_t i = 1; i < tiles; ++i) {
            const std::int64_t row = rows * i / tiles, next = rows * (i + 1) / tiles;
            micro_kernel<P, false>(m, all.from_row(row, ACROSS), inputs + row * stride, stride,
                               next - row, block, depth, {});
        }
    }
}

template <class W>
static void gemm(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                  std::int64_t first, std::int64_t panels, Rows c, Store mode) {
    if (rows <= MICRO_ROWS) return gemm_skinny<W>(m, a, stride, rows, first, panels, c, mode);
    constexpr int P = LANES == 16 ? 2 : 1;
    std::int64_t p = first;
    for (; p + P <= first + panels; p += P) gemm_blocked<P, W>(m, a, stride, rows, p, c, mode);
    for (; p < first + panels; ++p) gemm_blocked<1, W>(m, a, stride, rows, p, c, mode);
}

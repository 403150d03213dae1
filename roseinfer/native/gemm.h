// Matrix multiplication: rows of activations times a packed weight matrix.
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
//
// Every output of every row is one sum over the inputs in their order, whatever the number of rows
// and threads: a row's result does not depend on the other rows of its batch.

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

#if X86_LANES == 16
static bool is_zen_5() {
    unsigned a, b, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d) &&
           (a >> 8 & 15) + (a >> 20 & 255) == 26;
}
const bool IS_ZEN_5 = is_zen_5();
#else
constexpr bool IS_ZEN_5 = false;
#endif

// Whether one row reads runs of panels. With AVX-512 this was measured on a Zen 5 alone: bfloat16 takes
// 0.88 to 0.94 of the time of two panels side by side, int4 0.90 to 1 of that of one that is prefetched.
INLINE bool reads_runs() { return LANES == 8 || IS_ZEN_5; }

// One row times panels [first, end): P runs of them side by side. The processor fetches ahead in each
// run, as far as it is long, and several keep more requests under way than one does: on a Zen 3 two
// threads read 18 GB/s from a run each, 24 from four. `add` adds to the sums of P panels that lie `run`
// apart what the row and panel `p` make, and those behind it.
template <int P, class Add>
static void multiply_runs(const Matrix &m, std::int64_t first, std::int64_t end, Rows c, Store mode,
                          Add add) {
    const std::int64_t run = (end - first) / P;
    for (std::int64_t p = first; p < first + run; ++p) {
        Accumulators<1, P> sums = {};
        add(sums, p, run);
#pragma GCC unroll 4
        for (int i = 0; i < P; ++i) {
            Accumulators<1, 1> panel;
#pragma GCC unroll 4
            for (int v = 0; v < PANEL_VECTORS; ++v)
                panel.of[0][v] = sums.of[0][i * PANEL_VECTORS + v];
            store_tile<1, 1>(m, panel, (p + i * run) * PANEL_WIDTH, c, mode);
        }
    }
    if constexpr (P > 1) multiply_runs<P / 2>(m, first + P * run, end, c, mode, add);
}

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
        if (reads_runs())
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

INLINE bool is_quantized(const Matrix &m) { return m.type >= INT8; }

#include "quantized.h"
#include "quantized_tiles.h"

constexpr int TILE_ROWS = 16;  // of AMX
constexpr int BYTE_TILE_PANELS = WIDE_GROUP / PANEL_WIDTH;  // whose outputs are rounded together

INLINE std::int64_t round_up_to_tiles(std::int64_t rows) {
    return (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

#if PAIRS
#include "amx.h"
#include "amx_wide.h"
#else
constexpr bool tiles = false;
INLINE bool uses_tiles(const Matrix &) { return false; }
INLINE bool uses_byte_tiles(const Matrix &, std::int64_t) { return false; }
INLINE void configure_tiles(std::int64_t) {}
INLINE void release_tiles() {}
INLINE void pack_tile_row(const float *, std::int64_t, std::int64_t, bfloat *) {}
INLINE void pack_byte_tile_row(const float *, std::int64_t, std::int64_t, void *) {}
static void matmul_tiles(const Matrix &, const bfloat *, std::int64_t, std::int64_t, std::int64_t,
                         std::int64_t, Rows, Store) {}
static void matmul_tiles_activated(const Model &, const Matrix &, const bfloat *, std::int64_t,
                                   std::int64_t, std::int64_t, std::int64_t, bfloat *) {}
static void matmul_byte_tiles(const Matrix &, const void *, std::int64_t, std::int64_t, std::int64_t,
                              std::int64_t, Rows, Store) {}
static void matmul_byte_tiles_activated(const Model &, const Matrix &, const void *, std::int64_t,
                                        std::int64_t, std::int64_t, std::int64_t, void *) {}
#endif

// Activations [rows, inputs], rows `stride` apart. `packed` has room for `packed_floats` more: for
// those products that read another layout.
struct Input {
    float *at;
    std::int64_t stride, rows;
    float *packed;

    bfloat *tiles() const { return reinterpret_cast<bfloat *>(packed); }
};

// Floats from one row of activations to the next: an odd number of cache lines. Rows a power of two
// apart would displace each other from the cache.
INLINE std::int64_t row_stride(std::int64_t count) {
    return ((count + PANEL_WIDTH - 1) / PANEL_WIDTH | 1) * PANEL_WIDTH;
}

INLINE std::int64_t packed_floats(std::int64_t rows, std::int64_t inputs) {
    const std::int64_t groups = WideFormat<8>::groups(inputs), tiled = round_up_to_tiles(rows);
    return std::max({
               tiles ? tiled * inputs * std::int64_t{sizeof(bfloat)} : 0,
               tiles ? tiled * groups * (WIDE_GROUP + std::int64_t{sizeof(float)}) : 0,
               rows * (inputs / GROUP) * std::int64_t{sizeof(QuantizedGroup)},
               rows * groups * std::int64_t{sizeof(WideActivations<8>)},
           }) /
           std::int64_t{sizeof(float)};
}

// Converts a row of activations to the form that products with `m` read.
INLINE void prepare_input(const Matrix &m, const Input &input, std::int64_t row) {
    float *at = input.at + row * input.stride;
    if (uses_tiles(m))
        pack_tile_row(at, m.inputs, row, input.tiles());
    else if (uses_byte_tiles(m, input.rows))
        pack_byte_tile_row(at, m.inputs, row, input.packed);
    else if (is_wide(m))
        with_wide_format(m, [&](auto format) {
            round_wide_row(format, at, m.inputs, row, input.rows, input.packed);
        });
    else if (is_quantized(m))
        quantize_row(at, m.inputs, row, input.rows, input.packed);
    else if (PAIRS && m.type == BFLOAT16)
        round_to_pairs(at, m.inputs);
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

// Rows [row, next) times panels [first, end), whatever the type of the weights.
static void multiply_panels(const Matrix &m, const Input &a, std::int64_t row, std::int64_t next,
                            std::int64_t first, std::int64_t end, Rows c, Store mode) {
    const std::int64_t rows = next - row, panels = end - first;
    const float *from = a.at + row * a.stride;
    const Rows to = {c.at + row * c.stride, c.stride};
    if (uses_byte_tiles(m, a.rows))
        return matmul_byte_tiles(m, a.packed, row, next, first, end, to, mode);
    if (m.type == FLOAT32) return gemm<float>(m, from, a.stride, rows, first, panels, to, mode);
    if (m.type == BFLOAT16) return gemm<bfloat>(m, from, a.stride, rows, first, panels, to, mode);
    with_format(m, [&](auto format) {
        using F = decltype(format);
        const auto *rounded = reinterpret_cast<const typename F::Activations *>(a.packed);
        gemm_quantized<F>(m, rounded + row * F::groups(m.inputs), rows, first, end, to, mode);
    });
}

// Panels that stay in the second cache while blocks of rows are multiplied with them on tiles.
constexpr std::int64_t NEAR_BYTES = 768 << 10;

// How a product is divided among threads: blocks of rows times groups of panels.
struct WorkSplit {
    std::int64_t rows, panels, group, groups, blocks, row_tile;
    bool tiled, byte_tiled;

    // With tiles, and of quantized weights, the next ones are prefetched within a group only, so
    // groups are as large as leaves several for every thread. One row is done so soon that to begin
    // a group counts: two for every thread.
    WorkSplit(const Matrix &m, std::int64_t rows, std::int64_t panels)
        : rows(rows), panels(panels), group(panels >= 64 ? 4 : 2), tiled(uses_tiles(m)),
          byte_tiled(uses_byte_tiles(m, rows)) {
        blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
        if (tiled) group = tiled_group(m);
        const std::int64_t blocks_of_two = panels / (2 * 3 * omp_get_num_threads());
        if (is_quantized(m)) group = blocks_of_two > 1 ? 2 * blocks_of_two : 2;
        if (byte_tiled) group = (group + BYTE_TILE_PANELS - 1) / BYTE_TILE_PANELS * BYTE_TILE_PANELS;
        const std::int64_t half = panels / (2 * omp_get_num_threads());
        if (rows == 1 && !tiled) group = half > 1 ? half : 1;
        groups = (panels + group - 1) / group;
        row_tile = on_tiles() ? TILE_ROWS : is_quantized(m) ? QUANTIZED_ROWS : 1;
    }

    // Two tiles of rows at a time go through the panels of a group, which stay in a near cache. So what
    // is written of a row lies side by side. Were each panel multiplied with all rows first, a line or
    // two would be written in each of as many pages.
    std::int64_t tiled_group(const Matrix &m) const {
        const std::int64_t pairs = blocks * panels / (2 * 6 * omp_get_num_threads());
        const std::int64_t near = NEAR_BYTES / (2 * m.inputs * PANEL_WIDTH * sizeof(bfloat));
        const std::int64_t most = rows <= 2 * TILE_ROWS || pairs < near ? pairs : near;
        return most > 1 ? 2 * most : 2;
    }

    bool on_tiles() const { return tiled || byte_tiled; }
    std::int64_t count() const { return blocks * groups; }
    std::int64_t first_panel(std::int64_t item) const {
        return (on_tiles() ? item / blocks : item % groups) * group;
    }
    std::int64_t end_panel(std::int64_t item) const {
        return std::min(first_panel(item) + group, panels);
    }
    std::int64_t first_row(std::int64_t item) const { return block_start(block_of(item)); }
    std::int64_t end_row(std::int64_t item) const {
        return std::min(block_start(block_of(item) + 1), rows);
    }

  private:
    // On tiles a group of panels meets all blocks of rows before the next one does: the panels are
    // more than the rows of a block, and a thread has them near already.
    std::int64_t block_of(std::int64_t item) const {
        return on_tiles() ? item % blocks : item / groups;
    }
    std::int64_t block_start(std::int64_t block) const {
        const std::int64_t row = rows * block / blocks;
        return row_tile == 1 ? row : (row + row_tile - 1) / row_tile * row_tile;
    }
};

// One matrix, without those that follow it.
static void matmul_alone(const Matrix &m, const Input &a, std::int64_t rows, Rows c, Store mode) {
    const WorkSplit split(m, rows, (m.outputs + PANEL_WIDTH - 1) / PANEL_WIDTH);
    if (split.on_tiles()) configure_tiles(rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < split.count(); ++item) {
        const std::int64_t row = split.first_row(item), next = split.end_row(item);
        const std::int64_t first = split.first_panel(item), end = split.end_panel(item);
        if (split.tiled)
            matmul_tiles(m, a.tiles(), row, next, first, end, c, mode);
        else
            multiply_panels(m, a, row, next, first, end, c, mode);
    }
    if (split.on_tiles()) release_tiles();
}

// c [rows, outputs] = a [rows, inputs] times the matrix; all rows of `a` went through
// `prepare_input`. Every thread of the team must call it; it ends with a barrier.
static void matmul(const Matrix &m, const Input &a, std::int64_t rows, Rows c, Store mode) {
    for (const Matrix *part = &m; part; c.at += part->outputs, part = part->next)
        matmul_alone(*part, a, rows, c, mode);
}

// On tiles only: the product after its activation, gated or not, as tiles [rows, inner] of what
// follows. Like `matmul` it ends with a barrier.
static void matmul_activated(const Model &model, const Matrix &m, const Input &a,
                              std::int64_t rows, float *to) {
    const WorkSplit split(m, rows, model.inner / PANEL_WIDTH);
    configure_tiles(rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < split.count(); ++item) {
        const std::int64_t row = split.first_row(item), next = split.end_row(item);
        const std::int64_t first = split.first_panel(item), end = split.end_panel(item);
        if (split.byte_tiled)
            matmul_byte_tiles_activated(model, m, a.packed, row, next, first, end, to);
        else
            matmul_tiles_activated(model, m, a.tiles(), row, next, first, end,
                                   reinterpret_cast<bfloat *>(to));
    }
    release_tiles();
}

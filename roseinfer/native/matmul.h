// Matrix multiplication: rows of activations times a packed weight matrix of any type, by all threads.
//
// Every output of every row is one sum over the inputs in their order, whatever the number of rows
// and threads: a row's result does not depend on the other rows of its batch.

constexpr int TILE_ROWS = 16;  // of AMX
constexpr int BYTE_TILE_PANELS = WIDE_GROUP / PANEL_WIDTH;  // whose outputs are rounded together

INLINE std::int64_t round_up_to_tiles(std::int64_t rows) {
    return (rows + TILE_ROWS - 1) / TILE_ROWS * TILE_ROWS;
}

// What goes on of what a matrix before an activation makes.
INLINE std::int64_t inner_of(const Model &model, const Matrix &m) {
    return m.outputs / (model.gated ? 2 : 1);
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

// Hands out scratch memory, each piece from a cache line on.
struct Bump {
    float *at;
    std::int64_t used;  // floats

    float *take(std::int64_t count) { return take_as<float>(count); }

    template <class T>
    T *take_as(std::int64_t count) {
        float *here = at + used;
        used += (count * std::int64_t{sizeof(T)} + 63) / 64 * 16;
        return reinterpret_cast<T *>(here);
    }
};

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
        if (most < 1) return 2;
        const std::int64_t groups = (panels + 2 * most - 1) / (2 * most);  // of the same size
        return ((panels + groups - 1) / groups + 1) / 2 * 2;
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

static void multiply_item(const Matrix &m, const Input &a, const WorkSplit &split, std::int64_t item,
                          Rows c, Store mode) {
    const std::int64_t row = split.first_row(item), next = split.end_row(item);
    const std::int64_t first = split.first_panel(item), end = split.end_panel(item);
    if (split.tiled)
        matmul_tiles(m, a.tiles(), row, next, first, end, c, mode);
    else
        multiply_panels(m, a, row, next, first, end, c, mode);
}

// One matrix, without those that follow it. Threads go on without waiting for each other.
static void start_matmul_alone(const Matrix &m, const Input &a, std::int64_t rows, Rows c,
                               Store mode) {
    const WorkSplit split(m, rows, (m.outputs + PANEL_WIDTH - 1) / PANEL_WIDTH);
    if (split.on_tiles()) configure_tiles(rows);
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t item = 0; item < split.count(); ++item)
        multiply_item(m, a, split, item, c, mode);
    if (split.on_tiles()) release_tiles();
}

// c [rows, outputs] = a [rows, inputs] times the matrix; all rows of `a` went through
// `prepare_input`. Every thread of the team must call it, and wait before it reads c or overwrites a.
static void start_matmul(const Matrix &m, const Input &a, std::int64_t rows, Rows c, Store mode) {
    for (const Matrix *part = &m; part; c.at += part->outputs, part = part->next)
        start_matmul_alone(*part, a, rows, c, mode);
}

// The same, ended by a barrier.
static void matmul(const Matrix &m, const Input &a, std::int64_t rows, Rows c, Store mode) {
    start_matmul(m, a, rows, c, mode);
#pragma omp barrier
}

// Whether what one product makes can stay in the form that the next one reads.
INLINE bool stays_on_tiles(const Matrix &m, const Matrix &next, std::int64_t rows) {
    return (uses_tiles(m) && uses_tiles(next)) ||
           (uses_byte_tiles(m, rows) && uses_byte_tiles(next, rows) && !m.next);
}

// If it `stays_on_tiles`: the product after its activation, gated or not, as tiles [rows, inner] of
// what follows. Like `start_matmul` it waits for no thread.
static void start_matmul_activated(const Model &model, const Matrix &m, const Input &a,
                                   std::int64_t rows, float *to) {
    const WorkSplit split(m, rows, inner_of(model, m) / PANEL_WIDTH);
    configure_tiles(rows);
#pragma omp for schedule(dynamic) nowait
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

INLINE std::int64_t panel_bytes(const Matrix &m) {
    if (is_quantized(m))
        return with_format(m, [&](auto format) { return format.panel_bytes(m.inputs); });
    const std::int64_t size = m.type == BFLOAT16 ? sizeof(bfloat) : sizeof(float);
    return m.inputs * PANEL_WIDTH * size;
}

// One of `parts` matrices whose outputs lie one after the other, each in whole panels.
INLINE Matrix part_of(const Matrix &m, std::int64_t part, std::int64_t parts) {
    const std::int64_t outputs = m.outputs / parts;
    Matrix one = m;
    one.panels = static_cast<const char *>(m.panels) + part * outputs / PANEL_WIDTH * panel_bytes(m);
    if (m.bias) one.bias += part * outputs;
    one.outputs = outputs;
    return one;
}

// Inputs of the parts of a matrix: those of part i are the `width` values from i * `step` on of each row.
// What is packed of them lies `packed_step` floats apart.
struct PartInputs {
    Input all;
    std::int64_t step, packed_step;

    Input of(std::int64_t part) const {
        return {all.at + part * step, all.stride, all.rows, all.packed + part * packed_step};
    }
};

INLINE std::int64_t part_packed_floats(std::int64_t rows, std::int64_t inputs) {
    return (packed_floats(rows, inputs) + 15) / 16 * 16;
}

// c [rows, part after part `c_step` apart] = the inputs of each of `parts` times that part. The inputs,
// which are used up, were not prepared. Ends with a barrier.
static void matmul_parts(const Matrix &m, std::int64_t parts, const PartInputs &a, std::int64_t rows,
                         Rows c, std::int64_t c_step) {
#pragma omp for
    for (std::int64_t item = 0; item < rows * parts; ++item)
        prepare_input(part_of(m, item % parts, parts), a.of(item % parts), item / parts);
    WorkSplit split(part_of(m, 0, parts), rows, m.outputs / parts / PANEL_WIDTH);
    split.group = split.panels, split.groups = 1;
    if (split.on_tiles()) configure_tiles(rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < parts * split.count(); ++item) {
        const std::int64_t part = item / split.count();
        multiply_item(part_of(m, part, parts), a.of(part), split, item % split.count(),
                      {c.at + part * c_step, c.stride}, Store::Replace);
    }
    if (split.on_tiles()) release_tiles();
}

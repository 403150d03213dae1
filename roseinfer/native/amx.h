// Products of bfloat16 pairs on AMX tiles: 16 rows of 64 bytes each.
//
//     left   4, 5   activations [16 rows][32 inputs], as `pack_tile_row` left them
//     right  6, 7   a panel's weights [16 pairs of inputs][PANEL_WIDTH][2]: just as they lie
//     sums   0 to 3 [16 rows][PANEL_WIDTH], float32: left 4 times right 6 and 7, then left 5
//
// Tiles of activations lie in the order in which they are read: all inputs of 16 rows, then those
// of the next 16. The last tile may have unused rows, whose results are not stored.

// Set by library.cpp if the processor has them and the kernel lets this process.
static bool tiles = false;

constexpr int TILE_DEPTH = 32;  // inputs
constexpr int CACHE_LINE = 64 / sizeof(bfloat);  // of memory

INLINE bool uses_tiles(const Matrix &m) {
    return tiles && m.type == BFLOAT16 && m.inputs % TILE_DEPTH == 0;
}

struct TileConfig {  // as the instruction wants it
    std::uint8_t palette, start, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "the instruction reads 64 bytes");

struct TileShape {
    std::int64_t rows, row_bytes;
};

// `shape_of` gives the shape of each tile. A thread's tiles are its own.
template <class ShapeOf>
INLINE void shape_tiles(const ShapeOf &shape_of) {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
        const TileShape shape = shape_of(i);
        config.rows[i] = static_cast<std::uint8_t>(shape.rows);
        config.row_bytes[i] = static_cast<std::uint16_t>(shape.row_bytes);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
}

// For products of `rows` rows.
INLINE void configure_tiles(std::int64_t rows) {
    shape_tiles([&](int i) -> TileShape {
        return {i < 6 && rows < TILE_ROWS ? rows : TILE_ROWS, 64};
    });
}

// Tiles in use would have to be saved at each switch to another process.
INLINE void release_tiles() { _tile_release(); }

// Where a row's input `k` lies among the tiles of a matrix's inputs.
INLINE bfloat *tile_address(bfloat *tiles, std::int64_t inputs, std::int64_t row, std::int64_t k) {
    return tiles + row / TILE_ROWS * TILE_ROWS * inputs +
           (k / TILE_DEPTH * TILE_ROWS + row % TILE_ROWS) * TILE_DEPTH + k % TILE_DEPTH;
}

// One row of activations, rounded, to its tiles: of each a cache line, stored as a whole.
INLINE void pack_tile_row(const float *from, std::int64_t inputs, std::int64_t row, bfloat *tiles) {
    static_assert(TILE_DEPTH == 2 * LANES, "a line is two vectors of floats");
    for (std::int64_t k = 0; k < inputs; k += TILE_DEPTH)
        store(reinterpret_cast<float *>(tile_address(tiles, inputs, row, k)),
              reinterpret_cast<vfloat>(_mm512_cvtne2ps_pbh(load(from + k + LANES), load(from + k))));
}

// What up to two tiles of rows and of columns add up to. Cache lines of its own: a tile's row is stored
// to one.
struct alignas(64) BlockOfSums {
    float of[2 * TILE_ROWS][2 * PANEL_WIDTH];
};

// LOWER: there are two tiles of rows.
template <bool LOWER>
INLINE void zero_sums() {
    _tile_zero(0);
    _tile_zero(1);
    if constexpr (LOWER) {
        _tile_zero(2);
        _tile_zero(3);
    }
}

// To PANEL_WIDTH floats of each row, or twice as many (both), rows `stride` apart.
template <bool LOWER>
INLINE void unload_sums(float *to, std::int64_t stride, bool both) {
    const std::int64_t row_bytes = stride * sizeof(float);
    float *lower = to + TILE_ROWS * stride;
    _tile_stored(0, to, row_bytes);
    if (LOWER) _tile_stored(2, lower, row_bytes);
    if (!both) return;
    _tile_stored(1, to + PANEL_WIDTH, row_bytes);
    if (LOWER) _tile_stored(3, lower + PANEL_WIDTH, row_bytes);
}

// What `unload_sums` stored.
template <bool LOWER>
INLINE void load_sums(const float *from, std::int64_t stride, bool both) {
    const std::int64_t row_bytes = stride * sizeof(float);
    const float *lower = from + TILE_ROWS * stride;
    _tile_loadd(0, from, row_bytes);
    if (LOWER) _tile_loadd(2, lower, row_bytes);
    if (!both) return;
    _tile_loadd(1, from + PANEL_WIDTH, row_bytes);
    if (LOWER) _tile_loadd(3, lower + PANEL_WIDTH, row_bytes);
}

// Up to two panels (left, right), which all rows of `tiles` are multiplied with; null for a missing
// second one. Unless null, these are brought to a near cache meanwhile: the panels at `prefetch`, the
// lines at `out` that the results go to, and from `next_rows` on `next_lines` for each TILE_DEPTH inputs.
struct TileOperands {
    const bfloat *tiles, *left, *right;
    const bfloat *prefetch[2] = {};
    const float *out = nullptr;
    std::int64_t out_stride = 0;
    const bfloat *next_rows = nullptr;
    std::int64_t next_lines = 0;
};

template <bool PASS>
INLINE void load_panels(const bfloat *left, const bfloat *right) {
    if constexpr (PASS) {
        _tile_stream_loadd(6, left, 64);
        if (right) _tile_stream_loadd(7, right, 64);
    } else {
        _tile_loadd(6, left, 64);
        if (right) _tile_loadd(7, right, 64);
    }
}

struct InputRange {
    std::int64_t first, end;
};

// The rows of two tiles, [row, next), times the panels: adds to the sums, which begin with the first
// inputs. `row` begins a tile. PASS: the panels pass by the first cache, in which the rows then stay.
// Measured: 0.75 of the time with 576 inputs, but 1.03 with one row, whose panels come from memory.
template <bool PASS>
INLINE void multiply_rows(const TileOperands &operands, std::int64_t inputs, InputRange range,
                          std::int64_t row, std::int64_t next, BlockOfSums &sums) {
    const bfloat *upper = operands.tiles + row * inputs,
                 *lower = row + TILE_ROWS < next ? upper + TILE_ROWS * inputs : nullptr;
    // A few at a time: the processor waits for few lines at once, those of the operands among them.
    const std::int64_t depth = range.end - range.first,
                       out_rows = operands.out && range.end == inputs ? next - row : 0,
                       out_rows_each = (out_rows * TILE_DEPTH + depth - 1) / depth;
    std::int64_t out_row = 0;
    const bfloat *next_rows =
        operands.next_rows + range.first / TILE_DEPTH * operands.next_lines * CACHE_LINE;
    if (range.first == 0)
        zero_sums<true>();
    else
        load_sums<true>(sums.of[0], 2 * PANEL_WIDTH, true);
    for (std::int64_t k = range.first; k < range.end; k += TILE_DEPTH) {
        for (const bfloat *prefetch : operands.prefetch)
            for (int i = 0; prefetch && i < TILE_DEPTH * PANEL_WIDTH; i += CACHE_LINE)
                __builtin_prefetch(prefetch + k * PANEL_WIDTH + i, 0, 2);
        for (int i = 0; i < out_rows_each && out_row < out_rows; ++i, ++out_row)
            for (int v = 0; v < 2; ++v)
                __builtin_prefetch(
                    operands.out + out_row * operands.out_stride + v * PANEL_WIDTH, 1);
        for (std::int64_t i = 0; i < operands.next_lines; ++i, next_rows += CACHE_LINE)
            __builtin_prefetch(next_rows, 0, 2);
        // All loads first: 0.97 of the time of loads between the products.
        const bfloat *right = operands.right;
        load_panels<PASS>(operands.left + k * PANEL_WIDTH, right ? right + k * PANEL_WIDTH : right);
        _tile_loadd(4, upper + k * TILE_ROWS, 64);
        if (lower) _tile_loadd(5, lower + k * TILE_ROWS, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (right) _tile_dpbf16ps(1, 4, 7);
        if (!lower) continue;
        _tile_dpbf16ps(2, 5, 6);
        if (right) _tile_dpbf16ps(3, 5, 7);
    }
    unload_sums<true>(sums.of[0], 2 * PANEL_WIDTH, true);
}

// The first cache has room for so many inputs of two tiles of rows. More are multiplied in parts: a part
// meets so many pairs of panels before the next part does.
constexpr std::int64_t NEAR_INPUTS = 576;
constexpr std::int64_t NEAR_PAIRS = 8;

// Rows [row, end) times panels, up to two at each of `steps`, which go through them two tiles of rows
// after two: the panels stay in a near cache. `panels_at(step, row)` gives the operands, without what
// is prefetched; `use(sums, row, next, step)` takes the sums of rows [row, next).
template <class PanelsAt, class Use>
INLINE void each_block_of_sums(std::int64_t inputs, std::int64_t row, std::int64_t end,
                               std::int64_t steps, const PanelsAt &panels_at, const Use &use) {
    const bool few = end - row <= 2 * TILE_ROWS;  // memory sets the pace: panels are read in order
    const std::int64_t first_row = row, lines = (2 * TILE_ROWS + steps - 1) / steps,
                       depth = inputs / TILE_DEPTH,
                       parts = few ? 1 : (inputs + NEAR_INPUTS - 1) / NEAR_INPUTS,
                       together = parts > 1 ? NEAR_PAIRS : 1;
    BlockOfSums sums[NEAR_PAIRS];
    const auto multiply = [&](std::int64_t next, std::int64_t step, std::int64_t part) {
        const InputRange range = {depth * part / parts * TILE_DEPTH,
                                  depth * (part + 1) / parts * TILE_DEPTH};
        TileOperands operands = panels_at(step, row);
        if (row == first_row && step + 1 < steps) {
            const TileOperands following = panels_at(step + 1, row);
            operands.prefetch[0] = following.left, operands.prefetch[1] = following.right;
        }
        if (next < end) {
            operands.next_rows = operands.tiles + (next + step * lines) * inputs;
            operands.next_lines = lines;
        }
        BlockOfSums &to = sums[step % together];
        if (few)
            multiply_rows<false>(operands, inputs, range, row, next, to);
        else
            multiply_rows<true>(operands, inputs, range, row, next, to);
    };
    for (std::int64_t next; row < end; row = next) {
        next = std::min(row + 2 * TILE_ROWS, end);
        for (std::int64_t first = 0; first < steps; first += together) {
            const std::int64_t stop = std::min(first + together, steps);
            for (std::int64_t part = 0; part < parts; ++part)
                for (std::int64_t step = first; step < stop; ++step) multiply(next, step, part);
            for (std::int64_t step = first; step < stop; ++step)
                use(sums[step % together], row, next, step);
        }
    }
}

// `rows` rows of sums to two panels' outputs, all of which there are.
template <Store MODE>
INLINE void store_both(const Matrix &m, const float (*sums)[2 * PANEL_WIDTH], std::int64_t column,
                       Rows c, std::int64_t rows) {
    const vfloat bias[] = {bias_of(m, column), bias_of(m, column + PANEL_WIDTH)};
    for (std::int64_t r = 0; r < rows; ++r)
        for (int v = 0; v < 2; ++v) {
            float *to = c.at + r * c.stride + column + v * PANEL_WIDTH;
            const vfloat sum = load(sums[r] + v * PANEL_WIDTH) + bias[v];
            store(to, MODE == Store::Add ? load(to) + sum : sum);
        }
}

// The same of one panel or two, of which the last may have fewer outputs.
static void store_sums(const Matrix &m, const float (*sums)[2 * PANEL_WIDTH], std::int64_t column,
                       int panels, Rows c, std::int64_t rows, Store mode) {
    if (panels == 2 && column + 2 * PANEL_WIDTH <= m.outputs) {
        if (mode == Store::Add) return store_both<Store::Add>(m, sums, column, c, rows);
        return store_both<Store::Replace>(m, sums, column, c, rows);
    }
    for (std::int64_t r = 0; r < rows; ++r)
        for (int v = 0; v < panels; ++v)
            if (column + v * PANEL_WIDTH < m.outputs)
                store_output(m, c.at + r * c.stride, column + v * PANEL_WIDTH,
                             load(sums[r] + v * PANEL_WIDTH), mode);
}

// Rows [row, next), which begin a tile, times panels [first, end).
static void matmul_tiles(const Matrix &m, const bfloat *tiles, std::int64_t row, std::int64_t next,
                         std::int64_t first, std::int64_t end, Rows c, Store mode) {
    const std::int64_t size = m.inputs * PANEL_WIDTH;
    const bfloat *panels = static_cast<const bfloat *>(m.panels);
    const auto panels_at = [&](std::int64_t step, std::int64_t row) {
        const std::int64_t panel = first + 2 * step;
        const bfloat *left = panels + panel * size;
        TileOperands operands = {tiles, left, panel + 1 < end ? left + size : nullptr};
        operands.out = c.at + row * c.stride + panel * PANEL_WIDTH, operands.out_stride = c.stride;
        return operands;
    };
    each_block_of_sums(
        m.inputs, row, next, (end - first + 1) / 2, panels_at,
        [&](const BlockOfSums &sums, std::int64_t row, std::int64_t next, std::int64_t step) {
            const std::int64_t panel = first + 2 * step;
            store_sums(m, sums.of, panel * PANEL_WIDTH, panel + 1 < end ? 2 : 1,
                       {c.at + row * c.stride, c.stride}, next - row, mode);
        });
}

// The same for a matrix whose outputs go through their activation, to tiles [rows, inner]. If it is
// gated, panel `panel` meets that of the other half.
static void matmul_tiles_activated(const Model &model, const Matrix &m, const bfloat *tiles,
                                   std::int64_t row, std::int64_t next, std::int64_t first,
                                   std::int64_t end, bfloat *to) {
    const std::int64_t size = m.inputs * PANEL_WIDTH, inner = inner_of(model, m),
                       panels_each = model.gated ? 1 : 2,
                       apart = model.gated ? inner / PANEL_WIDTH : 1;
    const bfloat *panels = static_cast<const bfloat *>(m.panels);
    const auto panels_at = [&](std::int64_t step, std::int64_t) {
        const bfloat *left = panels + (first + step * panels_each) * size;
        return TileOperands{tiles, left, left + apart * size};
    };
    const auto use = [&](const BlockOfSums &sums, std::int64_t row, std::int64_t next,
                         std::int64_t step) {
        const std::int64_t column = (first + step * panels_each) * PANEL_WIDTH;
        for (std::int64_t r = row; r < next; ++r) {
            const float *at = sums.of[r - row];
            vfloat a = load(at), b = load(at + PANEL_WIDTH);
            if (m.bias) a += load(m.bias + column), b += load(m.bias + column + apart * PANEL_WIDTH);
            if (model.gated) {
                store_bfloat16(open_gates(model, a, b), tile_address(to, inner, r, column));
                continue;
            }
            store_bfloat16(activation(a, model.activation), tile_address(to, inner, r, column));
            store_bfloat16(activation(b, model.activation),
                           tile_address(to, inner, r, column + PANEL_WIDTH));
        }
    };
    each_block_of_sums(m.inputs, row, next, (end - first) / panels_each, panels_at, use);
}

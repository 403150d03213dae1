// Products of bfloat16 pairs on AMX tiles: 16 rows of 64 bytes each.
//
//     left   4, 5   activations [16 rows][32 inputs], as `to_tiles` left them
//     right  6, 7   a panel's weights [16 pairs of inputs][WIDTH][2]: just as they lie
//     sums   0 to 3 [16 rows][WIDTH], float32: left 4 times right 6 and 7, then left 5
//
// Tiles of activations lie one after another, for 16 rows all inputs, then the next 16 rows, so that
// they are read from end to end. Of the last 16 rows some may be none: what comes out for them is
// left out.

// Set by library.cpp if the processor has them and the kernel lets this process.
static bool tiles = false;

constexpr int TILE = 16, DEEP = 32;  // rows, inputs
constexpr int LINE = 64 / sizeof(bfloat);  // of memory

INLINE bool on_tiles(const Matrix &m) { return tiles && m.is_bfloat && m.inputs % DEEP == 0; }

struct TileConfig {  // as the instruction wants it
    std::uint8_t palette, start, reserved[14];
    std::uint16_t row_bytes[16];
    std::uint8_t rows[16];
};
static_assert(sizeof(TileConfig) == 64, "the instruction reads 64 bytes");

// For products of `rows` rows. A thread's tiles are its own.
INLINE void set_tiles(std::int64_t rows) {
    TileConfig config = {};
    config.palette = 1;
    for (int i = 0; i < 8; ++i) {
        config.row_bytes[i] = 64;
        config.rows[i] = static_cast<std::uint8_t>(i < 6 && rows < TILE ? rows : TILE);
    }
    asm volatile("ldtilecfg %0" : : "m"(config));
}

// Tiles in use would have to be saved at each switch to another process.
INLINE void release_tiles() { _tile_release(); }

// Where a row's input `k` lies among the tiles of a matrix's inputs.
INLINE bfloat *tile_place(bfloat *tiles, std::int64_t inputs, std::int64_t row, std::int64_t k) {
    return tiles + row / TILE * TILE * inputs + (k / DEEP * TILE + row % TILE) * DEEP + k % DEEP;
}

INLINE void put_rounded(vfloat values, bfloat *to) {
    *reinterpret_cast<vhalf_at *>(to) = reinterpret_cast<vhalf>(_mm512_cvtneps_pbh(values));
}

// One row of activations, rounded, to its tiles.
INLINE void to_tiles(const float *from, std::int64_t inputs, std::int64_t row, bfloat *tiles) {
    for (std::int64_t k = 0; k < inputs; k += LANES)
        put_rounded(load(from + k), tile_place(tiles, inputs, row, k));
}

// Where up to two tiles of rows and two panels meet; without the second of either, null. Meanwhile
// other panels come to a near cache, from `ahead` on, unless that is null.
struct Corner {
    const bfloat *upper, *lower;
    const bfloat *left, *right;
    const bfloat *ahead[2];
};

// Sums [2 * TILE][2 * WIDTH].
INLINE void multiply_tiles(const Corner &corner, std::int64_t inputs, float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t k = 0; k < inputs; k += DEEP) {
        for (const bfloat *ahead : corner.ahead)
            for (int i = 0; ahead && i < DEEP * WIDTH; i += LINE)
                __builtin_prefetch(ahead + k * WIDTH + i, 0, 2);
        _tile_loadd(4, corner.upper + k * TILE, 64);
        _tile_loadd(6, corner.left + k * WIDTH, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (corner.right) {
            _tile_loadd(7, corner.right + k * WIDTH, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (corner.lower) {
            _tile_loadd(5, corner.lower + k * TILE, 64);
            _tile_dpbf16ps(2, 5, 6);
            if (corner.right) _tile_dpbf16ps(3, 5, 7);
        }
    }
    constexpr std::int64_t across = 2 * WIDTH * 4;
    _tile_stored(0, sums, across);
    _tile_stored(1, sums + WIDTH, across);
    _tile_stored(2, sums + TILE * 2 * WIDTH, across);
    _tile_stored(3, sums + TILE * 2 * WIDTH + WIDTH, across);
}

// Rows [row, next) times two panels: `use` gets each row's two sums. `row` begins a tile.
template <class Use>
INLINE void multiply_rows(const bfloat *tiles, std::int64_t inputs, std::int64_t row,
                          std::int64_t next, Corner corner, const Use &use) {
    float sums[2 * TILE * 2 * WIDTH];
    for (; row < next; row += 2 * TILE) {
        corner.upper = tiles + row * inputs;
        corner.lower = row + TILE < next ? corner.upper + TILE * inputs : nullptr;
        multiply_tiles(corner, inputs, sums);
        corner.ahead[0] = corner.ahead[1] = nullptr;
        const std::int64_t end = next < row + 2 * TILE ? next : row + 2 * TILE;
        for (std::int64_t r = row; r < end; ++r) {
            const float *at = sums + (r - row) * 2 * WIDTH;
            use(r, load(at), load(at + WIDTH));
        }
    }
}

// Rows [row, next) times `panel` and, if it is before `end`, the one after it.
static void multiply_on_tiles(const Matrix &m, const bfloat *tiles, std::int64_t row,
                              std::int64_t next, std::int64_t panel, std::int64_t end, Rows c,
                              Into into) {
    const bool both = panel + 1 < end;
    const std::int64_t size = m.inputs * WIDTH, column = panel * WIDTH;
    const bfloat *left = static_cast<const bfloat *>(m.panels) + panel * size;
    Corner corner = {nullptr, nullptr, left, both ? left + size : nullptr, {}};
    if (panel + 4 <= end) corner.ahead[0] = left + 2 * size, corner.ahead[1] = left + 3 * size;
    multiply_rows(tiles, m.inputs, row, next, corner, [&](std::int64_t r, vfloat a, vfloat b) {
        finish(m, c.at + r * c.stride, column, a, into);
        if (both && column + WIDTH < m.outputs)
            finish(m, c.at + r * c.stride, column + WIDTH, b, into);
    });
}

// The same for a matrix whose outputs go through their activation, to tiles [rows, inner]. If it is
// gated, panel `panel` meets that of the other half.
static void activate_on_tiles(const Model &model, const Matrix &m, const bfloat *tiles,
                              std::int64_t row, std::int64_t next, std::int64_t panel,
                              std::int64_t end, bfloat *to) {
    const std::int64_t size = m.inputs * WIDTH, inner = model.inner, step = model.gated ? 1 : 2;
    const std::int64_t apart = model.gated ? inner / WIDTH : 1, column = panel * WIDTH;
    const bfloat *left = static_cast<const bfloat *>(m.panels) + panel * size;
    Corner corner = {nullptr, nullptr, left, left + apart * size, {}};
    if (panel + step < end)
        for (int v = 0; v < 2; ++v) corner.ahead[v] = left + (step + v * apart) * size;
    multiply_rows(tiles, m.inputs, row, next, corner, [&](std::int64_t r, vfloat a, vfloat b) {
        if (m.bias) a += load(m.bias + column), b += load(m.bias + column + apart * WIDTH);
        a = activated(a, model.activation);
        if (model.gated) return put_rounded(a * b, tile_place(to, inner, r, column));
        put_rounded(a, tile_place(to, inner, r, column));
        put_rounded(activated(b, model.activation), tile_place(to, inner, r, column + WIDTH));
    });
}

// Products of bfloat16 pairs on AMX tiles: 16 rows of 64 bytes each.
//
//     left   4, 5   activations [16 rows][32 inputs], their pairs as `pair_up` left them
//     right  6, 7   a panel's weights [16 pairs of inputs][WIDTH][2]: just as they lie
//     sums   0 to 3 [16 rows][WIDTH], float32: left 4 times right 6 and 7, then left 5
//
// Whoever has fewer rows than a tile sets smaller tiles; otherwise the last one overlaps the one
// before, and what comes out twice is taken once.

// Set by library.cpp if the processor has them and the kernel lets this process.
static bool tiles = false;

constexpr int TILE = 16, DEEP = 32;  // rows, inputs

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

// Where up to two tiles of rows and two panels meet; without the second of either, null.
struct Corner {
    const float *upper, *lower;  // the first row of each
    const bfloat *left, *right;
};

// Sums [2 * TILE][2 * WIDTH].
INLINE void multiply_tiles(const Corner &corner, std::int64_t stride, std::int64_t inputs,
                           float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    const std::int64_t bytes = stride * 4;
    for (std::int64_t k = 0; k < inputs; k += DEEP) {
        _tile_loadd(4, corner.upper + k / 2, bytes);
        _tile_loadd(6, corner.left + k * WIDTH, 64);
        _tile_dpbf16ps(0, 4, 6);
        if (corner.right) {
            _tile_loadd(7, corner.right + k * WIDTH, 64);
            _tile_dpbf16ps(1, 4, 7);
        }
        if (corner.lower) {
            _tile_loadd(5, corner.lower + k / 2, bytes);
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

// `rows` rows times up to two panels, from `panel` on.
static void multiply_on_tiles(const Matrix &m, const float *a, std::int64_t stride,
                              std::int64_t rows, std::int64_t panel, bool alone, Rows c,
                              Into into) {
    float sums[2 * TILE * 2 * WIDTH];
    const bfloat *weights = static_cast<const bfloat *>(m.panels) + panel * m.inputs * WIDTH;
    Corner corner = {nullptr, nullptr, weights, alone ? nullptr : weights + m.inputs * WIDTH};
    const std::int64_t last = rows < TILE ? 0 : rows - TILE;  // no tile begins after it
    for (std::int64_t row = 0; row < rows; row += 2 * TILE) {
        const std::int64_t upper = row < last ? row : last;
        const std::int64_t lower = row + TILE < last ? row + TILE : last;
        corner.upper = a + upper * stride;
        corner.lower = row + TILE < rows ? a + lower * stride : nullptr;
        multiply_tiles(corner, stride, m.inputs, sums);
        const std::int64_t end = rows < row + 2 * TILE ? rows : row + 2 * TILE;
        for (std::int64_t r = row; r < end; ++r) {
            const std::int64_t at = r < row + TILE ? r - upper : TILE + r - lower;
            for (int v = 0; v < (alone ? 1 : 2); ++v) {
                const std::int64_t column = (panel + v) * WIDTH;
                if (column < m.outputs)
                    finish(m, c.at + r * c.stride, column,
                           load(sums + at * 2 * WIDTH + v * WIDTH), into);
            }
        }
    }
}

// Products of bfloat16 pairs on AMX tiles: 16 rows of 64 bytes each.
//
//     left   4, 5   activations [16 rows][32 inputs], as `to_tiles` left them
//     right  6, 7   a panel's weights [16 pairs of inputs][WIDTH][2]: just as they lie
//     sums   0 to 3 [16 rows][WIDTH], float32: left 4 times right 6 and 7, then left 5
//
// Tiles of activations lie one after another, for 16 rows all inputs, then the next 16 rows. Read
// row by row from where they are made, they would come from the second cache at a third of the
// speed (measured). Of the last 16 rows some may be none: what comes out for them is left out.

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

// One row of activations, rounded, to where it belongs among the tiles of a matrix's inputs.
INLINE void to_tiles(const float *from, std::int64_t inputs, std::int64_t row, bfloat *tiles) {
    bfloat *to = tiles + row / TILE * TILE * inputs + row % TILE * DEEP;
    for (std::int64_t k = 0; k < inputs; k += DEEP, to += TILE * DEEP)
        for (int i = 0; i < DEEP; i += LANES) {
            const vfloat values = load(from + k + i);
            *reinterpret_cast<vhalf_at *>(to + i) =
                reinterpret_cast<vhalf>(_mm512_cvtneps_pbh(values));
        }
}

// Where up to two tiles of rows and two panels meet; without the second of either, null. Meanwhile
// two panels come from `next` on, unless that is null.
struct Corner {
    const bfloat *upper, *lower;
    const bfloat *left, *right, *next;
};

// Sums [2 * TILE][2 * WIDTH].
INLINE void multiply_tiles(const Corner &corner, std::int64_t inputs, float *sums) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (std::int64_t k = 0; k < inputs; k += DEEP) {
        if (corner.next)
            for (int v = 0; v < 2; ++v)
                for (int i = 0; i < DEEP; ++i)
                    __builtin_prefetch(corner.next + (v * inputs + k + i) * WIDTH, 0, 2);
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

// Rows [row, next) times up to two panels, `panel` and the one after it if that is before `end_panel`;
// `row` begins a tile.
static void multiply_on_tiles(const Matrix &m, const bfloat *tiles, std::int64_t row,
                              std::int64_t next, std::int64_t panel, std::int64_t end_panel, Rows c,
                              Into into) {
    float sums[2 * TILE * 2 * WIDTH];
    const bool alone = panel + 1 == end_panel;
    const std::int64_t size = m.inputs * WIDTH;
    const bfloat *weights = static_cast<const bfloat *>(m.panels) + panel * size;
    Corner corner = {nullptr, nullptr, weights, alone ? nullptr : weights + size,
                     panel + 4 <= end_panel ? weights + 2 * size : nullptr};
    for (; row < next; row += 2 * TILE) {
        corner.upper = tiles + row * m.inputs;
        corner.lower = row + TILE < next ? corner.upper + TILE * m.inputs : nullptr;
        multiply_tiles(corner, m.inputs, sums);
        corner.next = nullptr;
        const std::int64_t end = next < row + 2 * TILE ? next : row + 2 * TILE;
        for (std::int64_t r = row; r < end; ++r) {
            const float *at = sums + (r - row) * 2 * WIDTH;
            for (int v = 0; v < (alone ? 1 : 2); ++v) {
                const std::int64_t column = (panel + v) * WIDTH;
                if (column < m.outputs)
                    finish(m, c.at + r * c.stride, column, load(at + v * WIDTH), into);
            }
        }
    }
}

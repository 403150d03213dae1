// Products of wide groups on AMX tiles: whole numbers in bytes.
//
//     left   4      a slice of 16 rows of activations [16 rows][SLICE]
//     right  6, 7   a slice of a panel's weights, signed [SLICE / 4][PANEL_WIDTH][4]
//     sums   0, 1   of a group [16 rows][PANEL_WIDTH], int32: left 4 times right 6 and 7
//
// The sums of a group are the same whole numbers as elsewhere, and so are the floats that they are
// scaled and added to: results have the same bits. They leave the tiles through memory; those of one
// group are scaled while the next group is multiplied.

// A group of 16 rows of activations. They lie group by group, then come the next 16 rows.
struct __attribute__((may_alias, aligned(64))) ByteTile {
    std::int8_t values[SLICES][TILE_ROWS][SLICE];
    float scales[TILE_ROWS];
};

// Fewer rows are multiplied faster without: the weights have to be made signed first.
constexpr std::int64_t BYTE_TILE_ROWS = 9;

INLINE bool uses_byte_tiles(const Matrix &m, std::int64_t rows) {
    return tiles && is_wide(m) && rows >= BYTE_TILE_ROWS;
}

// One row of activations, rounded, to its tiles.
INLINE void pack_byte_tile_row(const float *from, std::int64_t inputs, std::int64_t row, void *to) {
    ByteTile *tile =
        static_cast<ByteTile *>(to) + row / TILE_ROWS * WideFormat<8>::groups(inputs);
    for (std::int64_t k = 0; k < inputs; k += WIDE_GROUP, ++tile)
        tile->scales[row % TILE_ROWS] =
            round_slices(from + k, slices_at(k, inputs), tile->values[0][row % TILE_ROWS],
                         sizeof tile->values[0], nullptr);
}

// Two panels' weights and scales for up to BYTE_DEPTH inputs, which stay in the second cache while all
// rows are multiplied with them.
constexpr std::int64_t BYTE_DEPTH = 640;
struct alignas(64) SignedPanels {
    char weights[2][BYTE_DEPTH / SLICE][SLICE * PANEL_WIDTH];
    float scales[2][BYTE_DEPTH / WIDE_GROUP][PANEL_WIDTH];
};

// What 16 rows have of two panels' outputs. Where a matrix has more inputs, it waits for the next ones.
struct alignas(64) Totals {
    float of[TILE_ROWS][2 * PANEL_WIDTH];
};

template <int PANELS>
struct alignas(64) GroupSums {
    std::int32_t of[PANELS][TILE_ROWS][PANEL_WIDTH];
};

template <int BITS>
INLINE void sign_panel(WideFormat<BITS> format, const char *panel, std::int64_t k, std::int64_t end,
                       SignedPanels &to, int number, Ahead &ahead) {
    using F = WideFormat<BITS>;
    char *slices_to = to.weights[number][0];
    for (std::int64_t i = k; i < end; i += WIDE_GROUP) {
        const char *group = panel + F::offset(i / WIDE_GROUP);
        store(to.scales[number][(i - k) / WIDE_GROUP], load_scales(group));
        for (std::int64_t slice = 0; slice < slices_at(i, end); ++slice, slices_to += SLICE * PANEL_WIDTH) {
            ahead.prefetch();
            widen_slice<true>(format, group, slice, slices_to);
        }
    }
}

template <int PANELS>
INLINE void multiply_group(const ByteTile &a, const SignedPanels &b, std::int64_t first_slice,
                           std::int64_t slices, GroupSums<PANELS> &sums) {
    _tile_zero(0);
    _tile_zero(1);
    for (std::int64_t slice = 0; slice < slices; ++slice) {
        _tile_loadd(4, a.values[slice], SLICE);
        _tile_loadd(6, b.weights[0][first_slice + slice], 64);
        _tile_dpbssd(0, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_loadd(7, b.weights[1][first_slice + slice], 64);
            _tile_dpbssd(1, 4, 7);
        }
    }
    _tile_stored(0, sums.of[0], 64);
    if constexpr (PANELS == 2) _tile_stored(1, sums.of[1], 64);
}

template <int PANELS>
INLINE void scale_group(const ByteTile &a, const SignedPanels &b, std::int64_t group,
                        const GroupSums<PANELS> &sums, Totals &totals) {
    for (int p = 0; p < PANELS; ++p) {
        const vfloat scales = load(b.scales[p][group]);
#pragma GCC unroll 16
        for (int r = 0; r < TILE_ROWS; ++r) {
            const vint sum = *reinterpret_cast<const vint *>(sums.of[p][r]);
            float *total = totals.of[r] + p * PANEL_WIDTH;
            store(total, load(total) + to_float(sum) * (scales * a.scales[r]));
        }
    }
}

// 16 rows times the panels, all inputs that these have.
template <int PANELS>
INLINE void multiply_byte_tile(const ByteTile *a, const SignedPanels &b, std::int64_t inputs,
                               Totals &totals, Ahead &ahead) {
    const std::int64_t groups = WideFormat<8>::groups(inputs);
    GroupSums<PANELS> sums[2];
    for (std::int64_t g = 0; g <= groups; ++g) {
        ahead.prefetch();
        if (g < groups)
            multiply_group(a[g], b, g * SLICES, slices_at(g * WIDE_GROUP, inputs), sums[g % 2]);
        if (g > 0) scale_group(a[g - 1], b, g - 1, sums[(g - 1) % 2], totals);
    }
}

// `rows` rows, the first of them at `a`, times one or two panels from `panel` on.
template <int PANELS, int BITS>
static void byte_tiles_block(WideFormat<BITS> format, const Matrix &m, const ByteTile *a,
                             std::int64_t rows, std::int64_t panel, Rows c, Store mode, Ahead ahead) {
    using F = WideFormat<BITS>;
    Totals totals[BLOCK_ROWS / TILE_ROWS];
    __builtin_memset(totals, 0, (rows + TILE_ROWS - 1) / TILE_ROWS * sizeof *totals);
    SignedPanels signed_panels;
    const std::int64_t panel_bytes = F::panel_bytes(m.inputs);
    const char *from = static_cast<const char *>(m.panels) + panel * panel_bytes;
    for (std::int64_t k = 0; k < m.inputs; k += BYTE_DEPTH) {
        const std::int64_t end = k + BYTE_DEPTH < m.inputs ? k + BYTE_DEPTH : m.inputs;
        for (int p = 0; p < PANELS; ++p)
            sign_panel(format, from + p * panel_bytes, k, end, signed_panels, p, ahead);
        for (std::int64_t row = 0; row < rows; row += TILE_ROWS)
            multiply_byte_tile<PANELS>(
                a + row / TILE_ROWS * F::groups(m.inputs) + k / WIDE_GROUP, signed_panels, end - k,
                totals[row / TILE_ROWS], ahead);
    }
    store_sums(m, totals[0].of, panel * PANEL_WIDTH, PANELS, {c.at, c.stride}, rows, mode);
}

// All rows of a block, BLOCK_ROWS at most, times panels [first, end).
template <int BITS>
static void gemm_byte_tiles(WideFormat<BITS> format, const Matrix &m, const ByteTile *a,
                            std::int64_t rows, std::int64_t first, std::int64_t end, Rows c,
                            Store mode) {
    const std::int64_t panel_bytes = WideFormat<BITS>::panel_bytes(m.inputs);
    const char *from = static_cast<const char *>(m.panels), *stop = from + end * panel_bytes;
    const std::int64_t turns = (rows + TILE_ROWS - 1) / TILE_ROWS * WideFormat<BITS>::groups(m.inputs) +
                               2 * m.inputs / SLICE;
    const std::int64_t step = (2 * panel_bytes / turns + 63) / 64 * 64;
    for (std::int64_t panel = first; panel < end; panel += 2) {
        const char *next = from + (panel + 2) * panel_bytes;
        const Ahead ahead = {next < stop ? next : stop,
                             next + 2 * panel_bytes < stop ? next + 2 * panel_bytes : stop, step};
        if (panel + 1 < end)
            byte_tiles_block<2>(format, m, a, rows, panel, c, mode, ahead);
        else
            byte_tiles_block<1>(format, m, a, rows, panel, c, mode, ahead);
    }
}

// Products of wide groups on AMX tiles: whole numbers in bytes.
//
//     left   4      a group of 16 rows of activations [16 rows][WIDE_GROUP]
//     right  6, 7   a group of a panel's weights, signed [WIDE_GROUP / 4][PANEL_WIDTH][4]
//     sums   0 to 3 their products [16 rows][PANEL_WIDTH], int32: left 4 times right 6 and 7
//
// The sums of a group are the same whole numbers as elsewhere, and so are the floats that they are
// scaled and added to: results have the same bits. They leave the tiles through memory: while one
// group is multiplied, the sums of that before it are stored and those before these are scaled.

// A group of 16 rows of activations. They lie group by group, then come the next 16 rows.
struct __attribute__((may_alias, aligned(64))) ByteTile {
    std::int8_t values[TILE_ROWS][WIDE_GROUP];
    float scales[TILE_ROWS];
};

// Fewer rows are multiplied faster without: the weights have to be made signed first.
constexpr std::int64_t BYTE_TILE_ROWS = 9;

INLINE bool uses_byte_tiles(const Matrix &m, std::int64_t rows) {
    return tiles && is_wide(m) && rows >= BYTE_TILE_ROWS;
}

// One row of activations, rounded, to its tiles.
INLINE void pack_byte_tile_row(const float *from, std::int64_t inputs, std::int64_t row, void *to) {
    const std::int64_t groups = WideFormat<8>::groups(inputs);
    ByteTile *tile = static_cast<ByteTile *>(to) + row / TILE_ROWS * groups;
    for (std::int64_t group = 0; group < groups; ++group, ++tile)
        tile->scales[row % TILE_ROWS] =
            round_group(from + group * WIDE_GROUP, tile->values[row % TILE_ROWS], nullptr);
}

// Two panels' weights and scales of some groups, which stay in the first cache while all rows are
// multiplied with them.
constexpr std::int64_t SIGNED_GROUPS = 10;
struct alignas(64) SignedPanels {
    char weights[2][SIGNED_GROUPS][WIDE_GROUP * PANEL_WIDTH];
    float scales[2][SIGNED_GROUPS][PANEL_WIDTH];
};

// What 16 rows have of two panels' outputs. Where a matrix has more groups, it waits for the next ones.
struct alignas(64) Totals {
    float of[TILE_ROWS][2 * PANEL_WIDTH];
};

template <int PANELS>
struct alignas(64) GroupSums {
    std::int32_t of[PANELS][TILE_ROWS][PANEL_WIDTH];
};

// To the tiles of even groups, or to those of odd ones. The instructions name their tiles.
template <int PANELS, bool ODD>
INLINE void multiply_group(const ByteTile &a, const SignedPanels &b, std::int64_t group) {
    _tile_loadd(4, a.values, 64);
    _tile_loadd(6, b.weights[0][group], 64);
    if constexpr (PANELS == 2) _tile_loadd(7, b.weights[1][group], 64);
    if constexpr (ODD) {
        _tile_zero(2);
        _tile_dpbssd(2, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_zero(3);
            _tile_dpbssd(3, 4, 7);
        }
    } else {
        _tile_zero(0);
        _tile_dpbssd(0, 4, 6);
        if constexpr (PANELS == 2) {
            _tile_zero(1);
            _tile_dpbssd(1, 4, 7);
        }
    }
}

template <int PANELS, bool ODD>
INLINE void unload_group(GroupSums<PANELS> &sums) {
    if constexpr (ODD) {
        _tile_stored(2, sums.of[0], 64);
        if constexpr (PANELS == 2) _tile_stored(3, sums.of[1], 64);
    } else {
        _tile_stored(0, sums.of[0], 64);
        if constexpr (PANELS == 2) _tile_stored(1, sums.of[1], 64);
    }
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

// Two panels, the second of which may be missing, and what is read after them.
struct PanelPair {
    const char *panels[2];
    Ahead ahead[2];

    void prefetch() {
        for (Ahead &next : ahead) next.prefetch();
    }
};

// 16 rows times `groups` groups of the panels.
template <int PANELS>
INLINE void multiply_byte_tile(const ByteTile *a, const SignedPanels &b, std::int64_t groups,
                               Totals &totals, PanelPair &pair) {
    GroupSums<PANELS> sums[2];
    for (std::int64_t group = 0; group < groups + 2; ++group) {
        if (group < groups) {
            pair.prefetch();
            if (group % 2)
                multiply_group<PANELS, true>(a[group], b, group);
            else
                multiply_group<PANELS, false>(a[group], b, group);
        }
        if (group >= 2) scale_group(a[group - 2], b, group - 2, sums[group % 2], totals);
        if (group >= 1 && group <= groups) {
            if (group % 2)
                unload_group<PANELS, false>(sums[0]);
            else
                unload_group<PANELS, true>(sums[1]);
        }
    }
}

// All rows of a block, BLOCK_ROWS at most, times one or two panels.
template <int PANELS, int BITS>
static void multiply_pair(WideFormat<BITS> format, const ByteTile *a, std::int64_t row_tiles,
                          std::int64_t groups, PanelPair pair, Totals *totals) {
    __builtin_memset(totals, 0, row_tiles * sizeof *totals);
    SignedPanels signed_panels;
    for (std::int64_t first = 0; first < groups; first += SIGNED_GROUPS) {
        const std::int64_t count = std::min(groups - first, SIGNED_GROUPS);
        for (int p = 0; p < PANELS; ++p)
            for (std::int64_t group = 0; group < count; ++group) {
                const char *at = pair.panels[p] + (first + group) * WideFormat<BITS>::GROUP_BYTES;
                pair.prefetch();
                store(signed_panels.scales[p][group], load_scales(at));
                widen_group<true>(format, at, signed_panels.weights[p][group]);
            }
        for (std::int64_t tile = 0; tile < row_tiles; ++tile)
            multiply_byte_tile<PANELS>(a + tile * groups + first, signed_panels, count, totals[tile],
                                       pair);
    }
}

// The rows of a block and the panels that are multiplied with them.
template <int BITS>
struct ByteTileBlock {
    using F = WideFormat<BITS>;
    const Matrix &m;
    const ByteTile *a;
    std::int64_t rows, end;  // of the panels
    std::int64_t groups = F::groups(m.inputs), row_tiles = round_up_to_tiles(rows) / TILE_ROWS;

    const char *panel_at(std::int64_t panel) const {
        return static_cast<const char *>(m.panels) + panel * F::panel_bytes(m.inputs);
    }

    // Panel `panel` and the one `apart` behind it, `step` panels before the next ones.
    PanelPair pair(std::int64_t panel, std::int64_t apart, std::int64_t step) const {
        const std::int64_t turns = (row_tiles + 2) * groups, bytes = F::panel_bytes(m.inputs);
        const std::int64_t lines = ((bytes + turns - 1) / turns + 63) / 64 * 64;
        PanelPair pair = {};
        for (int p = 0; p < 2; ++p) {
            const std::int64_t next = panel + step;
            pair.panels[p] = panel_at(panel + p * apart);
            if (next < end)
                pair.ahead[p] = {panel_at(next + p * apart), panel_at(next + p * apart + 1), lines};
        }
        return pair;
    }
};

template <int BITS>
static void gemm_byte_tiles(WideFormat<BITS> format, const ByteTileBlock<BITS> &block,
                            std::int64_t first, Rows c, Store mode) {
    Totals totals[BLOCK_ROWS / TILE_ROWS];
    for (std::int64_t panel = first; panel < block.end; panel += 2) {
        const bool both = panel + 1 < block.end;
        const PanelPair pair = block.pair(panel, both ? 1 : 0, 2);
        if (both)
            multiply_pair<2>(format, block.a, block.row_tiles, block.groups, pair, totals);
        else
            multiply_pair<1>(format, block.a, block.row_tiles, block.groups, pair, totals);
        store_sums(block.m, totals[0].of, panel * PANEL_WIDTH, 1 + both, c, block.rows, mode);
    }
}

// The same for a matrix whose outputs go through their activation, rounded, to tiles [rows, inner] from
// the rows' own on. If it is gated, panel `panel` meets that of the other half.
template <int BITS>
static void gemm_byte_tiles_activated(WideFormat<BITS> format, const Model &model,
                                      const ByteTileBlock<BITS> &block, std::int64_t first,
                                      ByteTile *to) {
    const Matrix &m = block.m;
    const std::int64_t inner = inner_of(model, m), apart = model.gated ? inner / PANEL_WIDTH : 1,
                       step = model.gated ? 1 : 2;
    Totals totals[BLOCK_ROWS / TILE_ROWS];
    alignas(64) float activated[BLOCK_ROWS][WIDE_GROUP];
    for (std::int64_t panel = first; panel < block.end; panel += step) {
        multiply_pair<2>(format, block.a, block.row_tiles, block.groups,
                         block.pair(panel, apart, step), totals);
        const std::int64_t column = panel * PANEL_WIDTH, in_group = panel % BYTE_TILE_PANELS;
        for (std::int64_t r = 0; r < block.rows; ++r) {
            const float *sums = totals[r / TILE_ROWS].of[r % TILE_ROWS];
            float *at = activated[r] + in_group * PANEL_WIDTH;
            vfloat a = load(sums), b = load(sums + PANEL_WIDTH);
            if (m.bias)
                a += load(m.bias + column), b += load(m.bias + column + apart * PANEL_WIDTH);
            if (model.gated) {
                store(at, open_gates(model, a, b));
                continue;
            }
            store(at, activation(a, model.activation));
            store(at + PANEL_WIDTH, activation(b, model.activation));
        }
        if (in_group + step < BYTE_TILE_PANELS) continue;
        for (std::int64_t r = 0; r < block.rows; ++r) {
            ByteTile &tile =
                to[r / TILE_ROWS * WideFormat<8>::groups(inner) + panel / BYTE_TILE_PANELS];
            tile.scales[r % TILE_ROWS] =
                round_group(activated[r], tile.values[r % TILE_ROWS], nullptr);
        }
    }
}

// Rows [row, next), which begin a tile, times panels [first, end).
static void matmul_byte_tiles(const Matrix &m, const void *tiles, std::int64_t row, std::int64_t next,
                              std::int64_t first, std::int64_t end, Rows c, Store mode) {
    const ByteTile *a =
        static_cast<const ByteTile *>(tiles) + row / TILE_ROWS * WideFormat<8>::groups(m.inputs);
    with_wide_format(m, [&](auto format) {
        gemm_byte_tiles(format, {m, a, next - row, end}, first, c, mode);
    });
}

static void matmul_byte_tiles_activated(const Model &model, const Matrix &m, const void *tiles,
                                        std::int64_t row, std::int64_t next, std::int64_t first,
                                        std::int64_t end, void *to) {
    const std::int64_t tile = row / TILE_ROWS;
    const ByteTile *a = static_cast<const ByteTile *>(tiles) + tile * WideFormat<8>::groups(m.inputs);
    ByteTile *out =
        static_cast<ByteTile *>(to) + tile * WideFormat<8>::groups(inner_of(model, m));
    with_wide_format(m, [&](auto format) {
        gemm_byte_tiles_activated(format, model, {m, a, next - row, end}, first, out);
    });
}

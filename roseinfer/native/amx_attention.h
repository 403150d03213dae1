// Attention on AMX tiles, of queries in up to two tiles of rows:
//
//     sums     0 to 3  float32: of the upper rows 0 and 1, of the lower 2 and 3
//     scores   4       32 dimensions of the queries, as `pack_tile_row` left them
//              5       of PANEL_WIDTH keys [16 pairs][PANEL_WIDTH][2]
//     outputs  6       weights of PANEL_WIDTH keys
//              7       of their values [8 pairs][PANEL_WIDTH][2]

INLINE void configure_attention_tiles(std::int64_t rows) {
    const std::int64_t most = rows < TILE_ROWS ? rows : TILE_ROWS;
    shape_tiles([&](int i) -> TileShape {
        if (i == 5) return {TILE_DEPTH / 2, 64};
        if (i == 6) return {most, 2 * PANEL_WIDTH};
        if (i == 7) return {PANEL_WIDTH / 2, 64};
        return {most, 64};
    });
}

// Scores of up to 2 * TILE_ROWS queries (LOWER: more than half of them) against the keys of one panel or
// two (right: the second, or null).
template <bool LOWER>
INLINE void score_panels(const bfloat *queries, std::int64_t key_dim, const bfloat *left,
                         const bfloat *right, float *scores, std::int64_t score_stride) {
    zero_sums<LOWER>();
    for (std::int64_t k = 0; k < key_dim; k += TILE_DEPTH) {
        const bfloat *upper = queries + k * TILE_ROWS, *lower = upper + TILE_ROWS * key_dim;
        _tile_loadd(4, upper, 64);
        _tile_loadd(5, left + k * PANEL_WIDTH, 64);
        _tile_dpbf16ps(0, 4, 5);
        if (LOWER) {
            _tile_loadd(4, lower, 64);
            _tile_dpbf16ps(2, 4, 5);
        }
        if (!right) continue;
        _tile_loadd(5, right + k * PANEL_WIDTH, 64);
        if (LOWER) {
            _tile_dpbf16ps(3, 4, 5);
            _tile_loadd(4, upper, 64);
        }
        _tile_dpbf16ps(1, 4, 5);
    }
    unload_sums<LOWER>(scores, score_stride, right);
}

// Adds the weights of a block's panel `panel` times PANEL_WIDTH or twice as many of the values'
// dimensions (right: the second ones, or null).
template <bool LOWER>
INLINE void add_weighted(const BlockWeights &weights, std::int64_t panel, const bfloat *left,
                         const bfloat *right) {
    constexpr std::int64_t row_bytes = sizeof weights.of[0];
    const float *upper = weights.of[0] + panel * (PANEL_WIDTH / 2),
                *lower = upper + TILE_ROWS * BlockWeights::STRIDE;
    _tile_loadd(6, upper, row_bytes);
    _tile_loadd(7, left, 64);
    _tile_dpbf16ps(0, 6, 7);
    if (LOWER) {
        _tile_loadd(6, lower, row_bytes);
        _tile_dpbf16ps(2, 6, 7);
    }
    if (!right) return;
    _tile_loadd(7, right, 64);
    if (LOWER) {
        _tile_dpbf16ps(3, 6, 7);
        _tile_loadd(6, upper, row_bytes);
    }
    _tile_dpbf16ps(1, 6, 7);
}

// A tile of queries, as `pack_tile_row` left them, and a block of panels, of `panels`.
template <bool LOWER>
struct OnTiles {
    const bfloat *queries;

    void score(const KvPanels &kv, PanelRange block, std::int64_t panels, float *scores,
               std::int64_t score_stride) const {
        const Layer &layer = kv.layer;
        for (std::int64_t p = block.first; p < block.end; p += 2) {
            const bool both = p + 1 < block.end;
            if (!LOWER)  // with many queries most of it is near since those before
                for (std::int64_t i = p; i < p + 1 + both; ++i) {
                    if (i + 2 < panels) prefetch_panel(kv.keys(i + 2), layer.key_dim);
                    prefetch_panel(kv.values(i), layer.value_dim);
                }
            score_panels<LOWER>(queries, layer.key_dim, kv.keys(p), both ? kv.keys(p + 1) : nullptr,
                                scores + p * PANEL_WIDTH, score_stride);
        }
    }

    // Adds the values times the weights to `totals` [queries][value_dim], which begin with the first
    // block.
    void weigh(const MaskedValues &values, PanelRange block, const BlockWeights &weights,
               bool next_head_follows, float *totals) const {
        const Layer &layer = values.kv.layer;
        for (std::int64_t d = 0; d < layer.value_dim; d += 2 * PANEL_WIDTH) {
            const bool both = d + PANEL_WIDTH < layer.value_dim;
            if (block.first == 0)
                zero_sums<LOWER>();
            else
                load_sums<LOWER>(totals + d, layer.value_dim, both);
            for (std::int64_t p = block.first; p < block.end; ++p) {
                if (d == 0 && next_head_follows) prefetch_panel(values.kv.next_head(p), layer.key_dim);
                const bfloat *left = values.panel(p, d);
                add_weighted<LOWER>(weights, p - block.first, left,
                                    both ? left + PANEL_WIDTH * PANEL_WIDTH : nullptr);
            }
            unload_sums<LOWER>(totals + d, layer.value_dim, both);
        }
    }
};

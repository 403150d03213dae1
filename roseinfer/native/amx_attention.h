// Attention on AMX tiles, over a cache of bfloat16. Queries and weights are rounded to it too.
//
// Of a block and a head, the keys and values of PANEL_WIDTH positions lie together, in pairs as the
// right operands of tiles:
//
//     keys    [block_size / PANEL_WIDTH][key_dim / 2][PANEL_WIDTH positions][2 dimensions]
//     values  [block_size / PANEL_WIDTH][value_dim / PANEL_WIDTH][PANEL_WIDTH / 2][PANEL_WIDTH][2 positions]
//
// The tiles, of queries in up to two tiles of rows:
//
//     sums     0 to 3  float32: of the upper rows 0 and 1, of the lower 2 and 3
//     scores   4       32 dimensions of the queries, as `pack_tile_row` left them
//              5       of PANEL_WIDTH keys [16 pairs][PANEL_WIDTH][2]
//     outputs  6       weights of PANEL_WIDTH keys, as rows of scores have them
//              7       of their values [8 pairs][PANEL_WIDTH][2]
//
// A query's sums go over the dimensions, and the keys from a block's first on, in order.

constexpr int QUERY_ROWS = 2 * TILE_ROWS;

INLINE bool attends_on_tiles(const Model &m) {
    return tiles && m.cache_is_bfloat && m.key_dim % TILE_DEPTH == 0 &&
           m.value_dim % PANEL_WIDTH == 0 && m.block_size % PANEL_WIDTH == 0;
}

INLINE void configure_attention_tiles(std::int64_t rows) {
    const std::int64_t most = rows < TILE_ROWS ? rows : TILE_ROWS;
    shape_tiles([&](int i) -> TileShape {
        if (i == 5) return {TILE_DEPTH / 2, 64};
        if (i == 6) return {most, 2 * PANEL_WIDTH};
        if (i == 7) return {PANEL_WIDTH / 2, 64};
        return {most, 64};
    });
}

// A sequence's keys and values of one head, PANEL_WIDTH positions at a time, from the first block on.
struct KvPanels {
    const Model &m;
    const Layer &layer;
    const std::int64_t *table;
    std::int64_t head;

    bfloat *of(void *all, std::int64_t panel, std::int64_t dim) const {
        const std::int64_t position = panel * PANEL_WIDTH, block = table[position / m.block_size];
        return static_cast<bfloat *>(all) +
               ((block * m.kv_heads + head) * m.block_size + position % m.block_size) * dim;
    }
    bfloat *keys(std::int64_t panel) const { return of(layer.keys, panel, m.key_dim); }
    bfloat *values(std::int64_t panel) const { return of(layer.values, panel, m.value_dim); }
    bfloat *next_head(std::int64_t panel) const {
        return keys(panel) + m.block_size * m.key_dim;
    }
};

// Writes one token's key and value of a KV head to the cache.
INLINE void store_kv_for_tiles(const Model &m, const Layer &layer, const std::int64_t *table,
                               std::int64_t position, std::int64_t head, const float *key,
                               const float *value) {
    const std::int64_t place = position % PANEL_WIDTH;
    const KvPanels kv = {m, layer, table, head};
    bfloat *keys = kv.keys(position / PANEL_WIDTH) + 2 * place,
           *values = kv.values(position / PANEL_WIDTH) + place / 2 * (2 * PANEL_WIDTH) + place % 2;
    for (std::int64_t d = 0; d < m.key_dim; ++d)
        narrow(key[d], keys + d / 2 * (2 * PANEL_WIDTH) + d % 2);
    for (std::int64_t d = 0; d < m.value_dim; ++d)
        narrow(value[d], values + d / PANEL_WIDTH * (PANEL_WIDTH * PANEL_WIDTH) + d % PANEL_WIDTH * 2);
}

INLINE void prefetch_panel(const bfloat *from, std::int64_t dim) {
    for (std::int64_t i = 0; i < dim * PANEL_WIDTH; i += CACHE_LINE)
        __builtin_prefetch(from + i, 0, 2);
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
    const std::int64_t row_bytes = score_stride * sizeof(float);
    _tile_stored(0, scores, row_bytes);
    if (LOWER) _tile_stored(2, scores + TILE_ROWS * score_stride, row_bytes);
    if (!right) return;
    _tile_stored(1, scores + PANEL_WIDTH, row_bytes);
    if (LOWER) _tile_stored(3, scores + TILE_ROWS * score_stride + PANEL_WIDTH, row_bytes);
}

// Replaces scores [begin, end) of a row by e to their power, relative to the largest, rounded, from the
// row's begin on; the others of `count`, a multiple of PANEL_WIDTH, by 0. Returns the factor that makes
// 1 of their sum.
INLINE float softmax_rounded(float *row, std::int64_t begin, std::int64_t end, std::int64_t count,
                             float softcap) {
    bfloat_aliased *weights = reinterpret_cast<bfloat_aliased *>(row);
    vfloat sum = {};
    const std::int64_t next = each_exponential(row, begin, end, softcap, [&](std::int64_t i, vfloat e) {
        const vhalf rounded = reinterpret_cast<vhalf>(_mm512_cvtneps_pbh(e));
        *reinterpret_cast<vhalf_unaligned *>(weights + i) = rounded;
        sum += widen(rounded);
    });
    zero_outside(weights, begin, next, count);
    return 1.0f / reduce_sum(sum);
}

// Copies a panel of values, of which only the first `positions` count. What a block has behind them may
// be no number, and 0 times it would be none.
INLINE void mask_values(const bfloat *from, std::int64_t value_dim, std::int64_t positions,
                        bfloat *to) {
    for (std::int64_t i = 0; i < value_dim / 2; ++i) {
        const std::int64_t pair = i % (PANEL_WIDTH / 2) * 2;
        const vbits values = *reinterpret_cast<const vbits_unaligned *>(from + i * 2 * PANEL_WIDTH);
        const std::uint32_t mask = pair + 1 < positions ? ~0u : pair < positions ? 0xFFFFu : 0u;
        *reinterpret_cast<vbits_unaligned *>(to + i * 2 * PANEL_WIDTH) = values & mask;
    }
}

// Adds the rows of weights at `scores` of one panel, times PANEL_WIDTH or twice as many of the values'
// dimensions (right: the second ones, or null).
template <bool LOWER>
INLINE void add_weighted(const float *scores, std::int64_t score_stride, std::int64_t panel,
                         const bfloat *left, const bfloat *right) {
    const std::int64_t row_bytes = score_stride * sizeof(float);
    const char *upper = reinterpret_cast<const char *>(scores) + panel * 2 * PANEL_WIDTH;
    _tile_loadd(6, upper, row_bytes);
    _tile_loadd(7, left, 64);
    _tile_dpbf16ps(0, 6, 7);
    if (LOWER) {
        _tile_loadd(6, upper + TILE_ROWS * row_bytes, row_bytes);
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

// Scores of all queries against `panels` panels of keys.
template <bool LOWER>
INLINE void score_rows_on_tiles(const KvPanels &kv, const bfloat *queries, std::int64_t panels,
                                float *scores, std::int64_t score_stride) {
    const Model &m = kv.m;
    for (std::int64_t p = 0; p < panels; p += 2) {
        const bool both = p + 1 < panels;
        if (!LOWER)  // with many queries most of it is near since those before
            for (std::int64_t i = p; i < p + 1 + both; ++i) {
                if (i + 2 < panels) prefetch_panel(kv.keys(i + 2), m.key_dim);
                prefetch_panel(kv.values(i), m.value_dim);
            }
        score_panels<LOWER>(queries, m.key_dim, kv.keys(p), both ? kv.keys(p + 1) : nullptr,
                            scores + p * PANEL_WIDTH, score_stride);
    }
}

// Up to QUERY_ROWS queries; the keys that they see are counted from a first block on.
struct TiledQueries {
    std::int64_t count;
    QueryRow rows[QUERY_ROWS] = {};
    float factors[QUERY_ROWS];  // that make 1 of the weights' sums

    std::int64_t keys() const { return rows[count - 1].end; }
};

// The values of all keys times the weights of the queries, to their outputs.
template <bool LOWER>
INLINE void weigh_values_on_tiles(const KvPanels &kv, const TiledQueries &queries,
                                  bool next_head_follows, const float *scores,
                                  std::int64_t score_stride) {
    const Model &m = kv.m;
    const std::int64_t whole = queries.keys() / PANEL_WIDTH, rest = queries.keys() % PANEL_WIDTH;
    bfloat masked[PANEL_WIDTH * 512];  // library.py refuses larger heads
    if (rest) mask_values(kv.values(whole), m.value_dim, rest, masked);
    for (std::int64_t d = 0; d < m.value_dim; d += 2 * PANEL_WIDTH) {
        const bool both = d + PANEL_WIDTH < m.value_dim;
        zero_sums<LOWER>();
        for (std::int64_t p = 0; p < whole + (rest != 0); ++p) {
            if (d == 0 && next_head_follows) prefetch_panel(kv.next_head(p), m.key_dim);
            const bfloat *left = (p < whole ? kv.values(p) : masked) + d * PANEL_WIDTH;
            add_weighted<LOWER>(scores, score_stride, p, left,
                                both ? left + PANEL_WIDTH * PANEL_WIDTH : nullptr);
        }
        BlockOfSums sums;
        unload_sums<LOWER>(sums);
        for (std::int64_t r = 0; r < queries.count; ++r)
            for (int v = 0; v < 1 + both; ++v)
                store(queries.rows[r].out + d + v * PANEL_WIDTH,
                      load(sums.of[r] + v * PANEL_WIDTH) * queries.factors[r]);
    }
}

// `packed`: the queries as `pack_tile_row` left them.
template <bool LOWER>
INLINE void attend_rows_on_tiles(const KvPanels &kv, TiledQueries &queries, const bfloat *packed,
                                 bool next_head_follows, float *scores, std::int64_t score_stride) {
    const std::int64_t panels = (queries.keys() + PANEL_WIDTH - 1) / PANEL_WIDTH;
    score_rows_on_tiles<LOWER>(kv, packed, panels, scores, score_stride);
    for (std::int64_t r = 0; r < queries.count; ++r) {
        const QueryRow &row = queries.rows[r];
        queries.factors[r] = softmax_rounded(scores + r * score_stride, row.begin, row.end,
                                             panels * PANEL_WIDTH, kv.layer.softcap);
    }
    weigh_values_on_tiles<LOWER>(kv, queries, next_head_follows, scores, score_stride);
}

// The same as `attend_tile` of `count` queries.
static void attend_tile_on_tiles(const Model &m, const Layer &layer, const Step &step,
                                 const Tile &tile, std::int64_t count, const float *query,
                                 std::int64_t query_stride, float *out, std::int64_t out_stride,
                                 float *scores, std::int64_t score_stride) {
    alignas(64) bfloat packed[QUERY_ROWS * 512];
    TiledQueries queries;
    queries.count = count;
    for (std::int64_t r = 0; r < count; ++r) {
        queries.rows[r] =
            query_row(m, layer, step, tile, r, query, query_stride, out, out_stride);
        pack_tile_row(queries.rows[r].at, m.key_dim, r, packed);
    }
    const std::int64_t from = queries.rows[0].begin / m.block_size, start = from * m.block_size;
    for (std::int64_t r = 0; r < count; ++r)
        queries.rows[r].begin -= start, queries.rows[r].end -= start;
    const std::int64_t *table = step.tables + step.table_offsets[tile.sequence] + from;
    const KvPanels kv = {m, layer, table, tile.head};
    configure_attention_tiles(count);
    if (count > TILE_ROWS)
        attend_rows_on_tiles<true>(kv, queries, packed, tile.next_head_follows, scores,
                                   score_stride);
    else
        attend_rows_on_tiles<false>(kv, queries, packed, tile.next_head_follows, scores,
                                    score_stride);
    release_tiles();
}

// The cache as builds that multiply pairs of bfloat16 have it, and what attention on AMX tiles and on
// vectors have in common. Queries and weights are rounded to bfloat16 too.
//
// Of a block and a head, the keys and values of PANEL_WIDTH positions lie together, as such products
// want them:
//
//     keys    [block_size / PANEL_WIDTH][key_dim / 2][PANEL_WIDTH positions][2 dimensions]
//     values  [block_size / PANEL_WIDTH][value_dim / PANEL_WIDTH][PANEL_WIDTH / 2][PANEL_WIDTH][2 positions]

constexpr int TILED_QUERIES = 2 * TILE_ROWS;  // at a time, on AMX tiles

INLINE bool attends_in_pairs(const Model &m) {
    return m.cache_is_bfloat && m.key_dim % TILE_DEPTH == 0 && m.value_dim % PANEL_WIDTH == 0 &&
           m.block_size % PANEL_WIDTH == 0;
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
INLINE void store_kv_in_pairs(const Model &m, const Layer &layer, const std::int64_t *table,
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

// The values of `keys` keys, the last panel's masked.
struct MaskedValues {
    const KvPanels &kv;
    const std::int64_t whole, panels;
    bfloat last[PANEL_WIDTH * 512];  // library.py refuses larger heads

    MaskedValues(const KvPanels &kv, std::int64_t keys)
        : kv(kv), whole(keys / PANEL_WIDTH), panels((keys + PANEL_WIDTH - 1) / PANEL_WIDTH) {
        const std::int64_t rest = keys % PANEL_WIDTH;
        if (rest) mask_values(kv.values(whole), kv.m.value_dim, rest, last);
    }

    // From dimension `d` on.
    const bfloat *panel(std::int64_t p, std::int64_t d) const {
        return (p < whole ? kv.values(p) : last) + d * PANEL_WIDTH;
    }
};

// Queries of a tile; the keys that they see are counted from a first block on.
struct PairedQueries {
    std::int64_t count;
    QueryRow rows[TILED_QUERIES] = {};
    float factors[TILED_QUERIES];  // that make 1 of the weights' sums

    std::int64_t keys() const { return rows[count - 1].end; }
};

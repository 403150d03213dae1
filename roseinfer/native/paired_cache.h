// The cache as builds that multiply pairs of bfloat16 have it, and what attention on AMX tiles and on
// vectors have in common. Queries and weights are rounded to bfloat16 too.
//
// Of a block and a head, the keys and values of PANEL_WIDTH positions lie together, as such products
// want them:
//
//     keys    [block_size / PANEL_WIDTH][key_dim / 2][PANEL_WIDTH positions][2 dimensions]
//     values  [block_size / PANEL_WIDTH][value_dim / PANEL_WIDTH][PANEL_WIDTH / 2][PANEL_WIDTH][2 positions]

constexpr int TILED_QUERIES = 2 * TILE_ROWS;  // at a time, on AMX tiles

INLINE bool attends_in_pairs(const Model &m, const Layer &layer) {
    return m.cache_is_bfloat && layer.key_dim % TILE_DEPTH == 0 &&
           layer.value_dim % PANEL_WIDTH == 0 && m.block_size % PANEL_WIDTH == 0;
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
               ((block * layer.kv_heads + head) * m.block_size + position % m.block_size) * dim;
    }
    bfloat *keys(std::int64_t panel) const { return of(layer.keys, panel, layer.key_dim); }
    bfloat *values(std::int64_t panel) const { return of(layer.values, panel, layer.value_dim); }
    bfloat *next_head(std::int64_t panel) const {
        return keys(panel) + m.block_size * layer.key_dim;
    }
};

// Writes one token's key and value of a KV head to the cache.
INLINE void store_kv_in_pairs(const Model &m, const Layer &layer, const std::int64_t *table,
                              std::int64_t position, std::int64_t head, const float *key,
                              const float *value) {
    const std::int64_t panel = position / PANEL_WIDTH, place = position % PANEL_WIDTH;
    const KvPanels kv = {m, layer, table, head};
    bfloat *keys = kv.keys(panel) + 2 * place, *values = kv.values(panel) + place / 2 * 2 * PANEL_WIDTH;
    for (std::int64_t d = 0; d < layer.key_dim; d += LANES, keys += LANES * PANEL_WIDTH) {
        bfloat rounded[LANES];
        store_bfloat16(load(key + d), rounded);
        for (int i = 0; i < LANES; i += 2)
            __builtin_memcpy(keys + i * PANEL_WIDTH, rounded + i, 2 * sizeof(bfloat));
    }
    // The other position of a pair may be another thread's: it is not written.
    const __mmask32 halves = place % 2 ? 0xAAAAAAAA : 0x55555555;
    for (std::int64_t d = 0; d < layer.value_dim; d += LANES, values += LANES * PANEL_WIDTH) {
        const vbits wide = reinterpret_cast<vbits>(widen(narrow(load(value + d))));
        _mm512_mask_storeu_epi16(values, halves,
                                 reinterpret_cast<__m512i>(place % 2 ? wide : wide >> 16));
    }
}

INLINE void prefetch_panel(const bfloat *from, std::int64_t dim) {
    for (std::int64_t i = 0; i < dim * PANEL_WIDTH; i += CACHE_LINE)
        __builtin_prefetch(from + i, 0, 2);
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
    bfloat last[PANEL_WIDTH * MAX_HEAD_DIM];

    MaskedValues(const KvPanels &kv, std::int64_t keys)
        : kv(kv), whole(keys / PANEL_WIDTH), panels((keys + PANEL_WIDTH - 1) / PANEL_WIDTH) {
        const std::int64_t rest = keys % PANEL_WIDTH;
        if (rest) mask_values(kv.values(whole), kv.layer.value_dim, rest, last);
    }

    // From dimension `d` on.
    const bfloat *panel(std::int64_t p, std::int64_t d) const {
        return (p < whole ? kv.values(p) : last) + d * PANEL_WIDTH;
    }
};

// Panels whose scores become weights together: those of all queries stay in the first cache.
constexpr std::int64_t BLOCK_PANELS = 16;

struct PanelRange {
    std::int64_t first, end;
};

// Weights of a block's keys, as pairs. Rows lie an odd number of cache lines apart.
struct alignas(64) BlockWeights {
    float of[TILED_QUERIES][(BLOCK_PANELS + 2) * PANEL_WIDTH / 2];

    static constexpr std::int64_t STRIDE = sizeof of[0] / sizeof(float);
};

// Queries of a tile; the keys that they see are counted from a first block on. A softmax takes two
// turns over the blocks of their scores [count][score_stride]: all `find_highest`, then all `weigh`.
// Lanes keep their place among the keys, so that no sum depends on the tile.
struct PairedQueries {
    std::int64_t count;
    QueryRow rows[TILED_QUERIES] = {};
    vfloat highest[TILED_QUERIES];  // times log2(e) from the first `weigh` on
    vfloat sums[TILED_QUERIES];

    static constexpr float LOG2_E = 1.44269504f;

    std::int64_t keys() const { return rows[count - 1].end; }

    // Of all weights of a query, after the last `weigh`.
    float sum(std::int64_t r) const {
        const float own = reduce_sum(sums[r]), *sink = rows[r].sink;
        return sink ? own + power_of_two(*sink * LOG2_E - highest[r])[0] : own;
    }

    // Caps the block's scores on the way.
    void find_highest(PanelRange block, float *scores, std::int64_t score_stride, float softcap) {
        const vfloat low = broadcast(-INFINITY);
        for (std::int64_t r = 0; r < count; ++r, scores += score_stride) {
            vfloat most = block.first == 0 ? low : highest[r];
            each_vector(rows[r], block, [&](std::int64_t key, vint seen) {
                vfloat score = load(scores + key);
                if (softcap != 0.0f) {
                    score = tanh(score / softcap) * softcap;
                    store(scores + key, score);
                }
                most = max(most, seen ? score : low);
            });
            highest[r] = most;
        }
    }

    // e to the power of the block's scores, relative to the query's highest.
    void weigh(PanelRange block, const float *scores, std::int64_t score_stride,
               BlockWeights &weights) {
        for (std::int64_t r = 0; r < count; ++r, scores += score_stride) {
            if (block.first == 0)
                highest[r] = broadcast(reduce_max(highest[r]) * LOG2_E), sums[r] = vfloat{};
            const vfloat most = highest[r];
            vfloat sum = sums[r];
            bfloat *to = reinterpret_cast<bfloat *>(weights.of[r]) - block.first * PANEL_WIDTH;
            each_vector(rows[r], block, [&](std::int64_t key, vint seen) {
                const vfloat weight = power_of_two(load(scores + key) * LOG2_E - most);
                const vfloat counted = seen ? weight : vfloat{};
                sum += counted;
                store_bfloat16(counted, to + key);
            });
            sums[r] = sum;
        }
    }

  private:
    // Calls `use` with each LANES keys of the block, and which of them the query sees.
    template <class Use>
    void each_vector(const QueryRow &row, PanelRange block, const Use &use) {
        const std::int64_t first = block.first * PANEL_WIDTH, end = block.end * PANEL_WIDTH;
        const std::int64_t all = std::min(std::max(round_up(row.begin), first), end),
                           all_end = std::min(std::max(row.end / LANES * LANES, all), end);
        const auto seen = [&](std::int64_t key) {
            return first_lanes(std::max<std::int64_t>(row.end - key, 0)) &
                   ~first_lanes(std::max<std::int64_t>(row.begin - key, 0));
        };
        for (std::int64_t key = first; key < all; key += LANES) use(key, seen(key));
        for (std::int64_t key = all; key < all_end; key += LANES) use(key, vint{} == 0);
        for (std::int64_t key = all_end; key < end; key += LANES) use(key, seen(key));
    }
};

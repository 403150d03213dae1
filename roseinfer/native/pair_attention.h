// Attention over pairs: on AMX tiles where there are any, else with one instruction for two products of
// each lane. A query's sums go over the dimensions, and the keys from a block's first on, in order.

#include "amx_attention.h"

// Scores of R queries [key_dim / 2][R][2] against N panels of keys, from `first` on, of `panels`.
template <int R, int N>
INLINE void score_pairs(const KvPanels &kv, const float *queries, std::int64_t first,
                        std::int64_t panels, float *scores, std::int64_t score_stride) {
    const std::int64_t key_dim = kv.layer.key_dim,
                       values_each = 2 * PANEL_WIDTH * kv.layer.value_dim / key_dim;
    const bfloat *keys[N], *next[N], *values[N];
    for (int n = 0; n < N; ++n) {
        keys[n] = kv.keys(first + n);
        next[n] = first + n + N < panels ? kv.keys(first + n + N) : keys[n];
        values[n] = kv.values(first + n);
    }
    vfloat sums[R][N] = {};
    for (std::int64_t d = 0; d < key_dim; d += 2, queries += R) {
        vfloat key[N];
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) {
            __builtin_prefetch(next[n] + d * PANEL_WIDTH, 0, 3);
            prefetch(values[n] + d / 2 * values_each, values_each);
            key[n] = load_pairs(keys[n] + d * PANEL_WIDTH);
        }
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const vfloat pair = broadcast(queries[r]);
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sums[r][n] = dot_pairs(sums[r][n], key[n], pair);
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n)
            store(scores + r * score_stride + (first + n) * PANEL_WIDTH, sums[r][n]);
}

// Adds a block's values times the weights of R queries to `totals`: N * PANEL_WIDTH dimensions from `d`
// on. Rows of `totals`, which begin with the first block, lie `value_dim` apart.
template <int R, int N>
INLINE void weigh_pairs(const MaskedValues &values, PanelRange block, const BlockWeights &weights,
                        std::int64_t d, bool next_head_follows, float *totals) {
    const KvPanels &kv = values.kv;
    const std::int64_t value_dim = kv.layer.value_dim;
    vfloat sums[R][N] = {};
    if (block.first > 0)
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n) sums[r][n] = load(totals + r * value_dim + d + n * LANES);
    RowPointers<R> rows(weights.of[0], BlockWeights::STRIDE);
    for (std::int64_t p = block.first; p < block.end; ++p) {
        if (d == 0 && next_head_follows) prefetch_panel(kv.next_head(p), kv.layer.key_dim);
        const bfloat *from = values.panel(p, d);
        for (std::int64_t i = 0; i < PANEL_WIDTH / 2; ++i, rows.advance()) {
            vfloat value[N];
#pragma GCC unroll 4
            for (int n = 0; n < N; ++n)
                value[n] = load_pairs(from + (n * PANEL_WIDTH + 2 * i) * PANEL_WIDTH);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vfloat pair = broadcast(rows.at(r));
#pragma GCC unroll 4
                for (int n = 0; n < N; ++n) sums[r][n] = dot_pairs(sums[r][n], value[n], pair);
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) store(totals + r * value_dim + d + n * LANES, sums[r][n]);
}

// Panels that R queries are multiplied with at once: as many sums as there are registers for.
constexpr int panels_at_once(int queries) { return queries <= 3 ? 4 : 2; }

// The same as `OnTiles` of R queries, as `pack_query` left them.
template <int R>
struct InVectors {
    static constexpr int N = panels_at_once(R);
    const float *queries;

    void score(const KvPanels &kv, PanelRange block, std::int64_t panels, float *scores,
               std::int64_t score_stride) const {
        std::int64_t p = block.first;
        for (; p + N <= block.end; p += N)
            score_pairs<R, N>(kv, queries, p, panels, scores, score_stride);
        for (; p < block.end; ++p) score_pairs<R, 1>(kv, queries, p, panels, scores, score_stride);
    }

    void weigh(const MaskedValues &values, PanelRange block, const BlockWeights &weights,
               bool next_head_follows, float *totals) const {
        const std::int64_t value_dim = values.kv.layer.value_dim;
        std::int64_t d = 0;
        for (; d + N * PANEL_WIDTH <= value_dim; d += N * PANEL_WIDTH)
            weigh_pairs<R, N>(values, block, weights, d, next_head_follows, totals);
        for (; d < value_dim; d += PANEL_WIDTH)
            weigh_pairs<R, 1>(values, block, weights, d, next_head_follows, totals);
    }
};

// One of `count` queries, rounded, to [key_dim / 2][count][2].
INLINE void pack_query(const float *from, std::int64_t key_dim, std::int64_t count, float *to) {
    float row[MAX_HEAD_DIM];
    __builtin_memcpy(row, from, key_dim * sizeof(float));
    round_to_pairs(row, key_dim);
    for (std::int64_t pair = 0; pair < key_dim / 2; ++pair) to[pair * count] = row[pair];
}

template <class Products>
INLINE void attend_blocks(const Products &products, const KvPanels &kv, PairedQueries &queries,
                          bool next_head_follows, float *scores, std::int64_t score_stride) {
    const std::int64_t panels = (queries.keys() + PANEL_WIDTH - 1) / PANEL_WIDTH,
                       value_dim = kv.layer.value_dim;
    const auto each_block = [&](const auto &use) {
        for (std::int64_t p = 0; p < panels; p += BLOCK_PANELS)
            use(PanelRange{p, std::min(p + BLOCK_PANELS, panels)});
    };
    each_block([&](PanelRange block) {
        products.score(kv, block, panels, scores, score_stride);
        queries.find_highest(block, scores, score_stride, kv.layer.softcap);
    });
    const MaskedValues values(kv, queries.keys());
    BlockWeights weights;
    alignas(64) float totals[TILED_QUERIES * MAX_HEAD_DIM];
    each_block([&](PanelRange block) {
        queries.weigh(block, scores, score_stride, weights);
        products.weigh(values, block, weights, next_head_follows, totals);
    });
    for (std::int64_t r = 0; r < queries.count; ++r) {
        const float factor = 1.0f / queries.sum(r);
        for (std::int64_t d = 0; d < value_dim; d += LANES)
            store(queries.rows[r].out + d, load(totals + r * value_dim + d) * factor);
    }
}

// The same as `attend_tile` of `count` queries.
static void attend_tile_in_pairs(const Model &m, const Layer &layer, const Step &step,
                                 const Tile &tile, std::int64_t count, const float *query,
                                 std::int64_t query_stride, float *out, std::int64_t out_stride,
                                 float *scores, std::int64_t score_stride) {
    alignas(64) float pairs[TILED_QUERIES * MAX_HEAD_DIM / 2];
    bfloat *packed = reinterpret_cast<bfloat *>(pairs);
    PairedQueries queries;
    queries.count = count;
    for (std::int64_t r = 0; r < count; ++r) {
        queries.rows[r] = query_row(layer, step, tile, r, query, query_stride, out, out_stride);
        if (tiles)
            pack_tile_row(queries.rows[r].at, layer.key_dim, r, packed);
        else
            pack_query(queries.rows[r].at, layer.key_dim, count, pairs + r);
    }
    const std::int64_t from = queries.rows[0].begin / m.block_size, start = from * m.block_size;
    for (std::int64_t r = 0; r < count; ++r)
        queries.rows[r].begin -= start, queries.rows[r].end -= start;
    const std::int64_t *table = step.tables + step.table_offsets[tile.sequence] + from;
    const KvPanels kv = {m, layer, table, tile.head};
    const auto attend = [&](auto products) {
        attend_blocks(products, kv, queries, tile.next_head_follows, scores, score_stride);
    };
    if (!tiles)
        return with_constant(count, [&](auto rows) { attend(InVectors<rows.value>{pairs}); });
    configure_attention_tiles(count);
    if (count > TILE_ROWS)
        attend(OnTiles<true>{packed});
    else
        attend(OnTiles<false>{packed});
    release_tiles();
}

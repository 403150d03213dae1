// Attention over the paged cache.
//
// A layer's keys and values lie block by block, head by head, so that one head's are read from end
// to end: keys with the positions side by side, values with the dimensions side by side.
//
//     keys    [blocks][kv_heads][key_dim][padded_block_size]
//     values  [blocks][kv_heads][block_size][padded_value_dim]
//
// Both paddings are to multiples of PANEL_WIDTH. Builds with PAIRS keep another order: see
// paired_cache.h.
//
// The rows of a tile are queries of one KV head: for each new token, the heads that share it. Every
// score is one sum over the dimensions in order, every output one sum over the keys in order, so a
// query's result does not depend on its tile.

constexpr std::int64_t MAX_HEAD_DIM = 576;  // library.py refuses larger ones

INLINE std::int64_t round_up(std::int64_t count) {
    return (count + PANEL_WIDTH - 1) / PANEL_WIDTH * PANEL_WIDTH;
}

INLINE std::int64_t padded_block_size(const Model &m) { return round_up(m.block_size); }
INLINE std::int64_t padded_value_dim(const Layer &layer) { return round_up(layer.value_dim); }

template <class T>
INLINE T *keys_of(const Model &m, const Layer &layer, std::int64_t block, std::int64_t head) {
    return static_cast<T *>(layer.keys) +
           (block * layer.kv_heads + head) * layer.key_dim * padded_block_size(m);
}

template <class T>
INLINE T *values_of(const Model &m, const Layer &layer, std::int64_t block, std::int64_t head) {
    return static_cast<T *>(layer.values) +
           (block * layer.kv_heads + head) * m.block_size * padded_value_dim(layer);
}

// One tile: queries of KV head `head`, the first of them number `first` of its sequence (token by
// token, the heads that share a KV head one after the other).
struct Tile {
    std::int64_t sequence, head, first;
    bool next_head_follows;  // this thread attends for it then
};

// A query of a tile.
struct QueryRow {
    const float *at;
    float *out;
    std::int64_t begin, end;  // of the keys that it sees
    const float *sink;        // the score of a key without a value, or null
};

// Number `row` of the tile. `query` [rows, heads, key_dim] of the sequence's new tokens, rows
// `query_stride` apart; `out` [rows, heads, value_dim], rows `out_stride` apart.
INLINE QueryRow query_row(const Layer &layer, const Step &step, const Tile &tile, std::int64_t row,
                          const float *query, std::int64_t query_stride, float *out,
                          std::int64_t out_stride) {
    const std::int64_t group_size = layer.heads / layer.kv_heads,
                       token = (tile.first + row) / group_size,
                       head = tile.head * group_size + (tile.first + row) % group_size,
                       before = step.computed[tile.sequence], own = before + token + 1;
    std::int64_t end = own;
    if (layer.bidirectional) {
        end = before + step.first[tile.sequence + 1] - step.first[tile.sequence];
        if (layer.window) end = std::min(end, own - 1 + layer.window);
    }
    return {query + token * query_stride + head * layer.key_dim,
            out + token * out_stride + head * layer.value_dim,
            layer.window && own > layer.window ? own - layer.window : 0, end,
            layer.sinks ? layer.sinks + head : nullptr};
}

// The sequence of `row`; the search begins at `sequence`.
INLINE std::int64_t sequence_of(const Step &step, std::int64_t row, std::int64_t sequence) {
    while (row < step.first[sequence]) --sequence;
    while (row >= step.first[sequence + 1]) ++sequence;
    return sequence;
}

// The position of `row` in its sequence. The search begins at `sequence`, which becomes the row's.
INLINE std::int64_t position_of(const Step &step, std::int64_t row, std::int64_t &sequence) {
    sequence = sequence_of(step, row, sequence);
    return step.computed[sequence] + row - step.first[sequence];
}

#if PAIRS
#include "paired_cache.h"
#else
INLINE bool attends_in_pairs(const Model &, const Layer &) { return false; }
INLINE void store_kv_in_pairs(const Model &, const Layer &, const std::int64_t *, std::int64_t,
                              std::int64_t, const float *, const float *) {}
#endif

// What a query at `position` is multiplied by.
INLINE float query_scale(const Model &m, const Layer &layer, std::int64_t position) {
    return m.query_scales ? layer.scaling * m.query_scales[position] : layer.scaling;
}

// Writes one token's key and value of a KV head to the cache.
template <class T>
INLINE void store_kv(const Model &m, const Layer &layer, const std::int64_t *table,
                     std::int64_t position, std::int64_t head, const float *key,
                     const float *value) {
    const std::int64_t block = table[position / m.block_size], at = position % m.block_size;
    T *to = keys_of<T>(m, layer, block, head) + at;
    for (std::int64_t d = 0; d < layer.key_dim; ++d) narrow(key[d], to + d * padded_block_size(m));
    to = values_of<T>(m, layer, block, head) + at * padded_value_dim(layer);
    for (std::int64_t d = 0; d < layer.value_dim; ++d) narrow(value[d], to + d);
}

// Where the keys begin in a row of q, k and v: behind the queries, and gates if there are any.
INLINE std::int64_t keys_at(const Model &m, const Layer &layer) {
    return layer.heads * (layer.key_dim + (m.gates_attention ? layer.value_dim : 0));
}

// The norms of queries and keys that are over all heads of a row.
static void normalize_rows_of_heads(const Model &m, const Layer &layer, std::int64_t rows, float *qkv,
                                    std::int64_t stride) {
    const std::int64_t queries = layer.heads * layer.key_dim, keys = layer.kv_heads * layer.key_dim;
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) {
        float *query = qkv + row * stride, *key = query + keys_at(m, layer);
        normalize(layer.query, query, query, queries, m.epsilon);
        normalize(layer.key, key, key, keys, m.epsilon);
    }
}

INLINE void normalize_head(const Model &m, const Layer &layer, const Norm &norm, std::int64_t number,
                           float *head) {
    if (!norm.weight || m.norms_rows) return;
    const std::int64_t first = m.norms_by_head ? number * layer.key_dim : 0;
    const Norm own = {norm.weight + first, norm.bias ? norm.bias + first : nullptr};
    normalize(own, head, head, layer.key_dim, m.epsilon);
}

// Head `number` of a query or a key: its norm, if it has one, and the rotation by its position.
INLINE void rotate_head(const Model &m, const Layer &layer, const Norm &norm, std::int64_t number,
                        std::int64_t position, float *head) {
    if (!m.norms_rotated) normalize_head(m, layer, norm, number, head);
    if (layer.cosines)
        rotate(head, layer.cosines + position * (layer.rotary / 2),
               layer.sines + position * (layer.rotary / 2), layer.rotary, m.rotates_neighbours);
    if (m.norms_rotated) normalize_head(m, layer, norm, number, head);
}

// Writes one token's key and value of a KV head to the cache.
INLINE void store_any_kv(const Model &m, const Layer &layer, const std::int64_t *table,
                         std::int64_t position, std::int64_t head, const float *key,
                         const float *value) {
    if (attends_in_pairs(m, layer))
        store_kv_in_pairs(m, layer, table, position, head, key, value);
    else if (m.cache_is_bfloat)
        store_kv<bfloat>(m, layer, table, position, head, key, value);
    else
        store_kv<float>(m, layer, table, position, head, key, value);
}

// Of one row of q, k and v: rotates the queries that share KV head `head`, and its key, and stores
// key and value, if they are the layer's own.
INLINE void rotate_and_store(const Model &m, const Layer &layer, const std::int64_t *table,
                             std::int64_t position, std::int64_t head, float *qkv) {
    const std::int64_t group_size = layer.heads / layer.kv_heads;
    const float scale = query_scale(m, layer, position);
    for (std::int64_t h = head * group_size; h < (head + 1) * group_size; ++h) {
        float *query = qkv + h * layer.key_dim;
        rotate_head(m, layer, layer.query, h, position, query);
        for (std::int64_t d = 0; d < layer.key_dim; ++d) query[d] *= scale;
    }
    if (layer.shares_kv) return;
    float *keys = qkv + keys_at(m, layer), *key = keys + head * layer.key_dim;
    const float *value = keys + layer.kv_heads * layer.key_dim + head * layer.value_dim;
    float normal[MAX_HEAD_DIM];
    if (layer.value.weight) {
        normalize(layer.value, layer.values_are_keys ? key : value, normal, layer.value_dim, m.epsilon);
        value = normal;
    }
    rotate_head(m, layer, layer.key, head, position, key);
    store_any_kv(m, layer, table, position, head, key, value);
}

// The blocks of one KV head that a tile of queries sees, counted from its first one.
template <class T>
struct Blocks {
    const Model &m;
    const Layer &layer;
    const std::int64_t *table;
    std::int64_t head, count;
    bool next_head_follows;

    const T *keys(std::int64_t block) const { return keys_of<T>(m, layer, table[block], head); }
    const T *values(std::int64_t block) const { return values_of<T>(m, layer, table[block], head); }
    // Its keys in this block.
    const T *next_head(std::int64_t block) const {
        return keys(block) + layer.key_dim * padded_block_size(m);
    }
};

// Blocks lie anywhere, so the processor cannot guess the next one. It is asked for bit by bit, since
// only few lines can be on their way at once, and those behind them would keep the products waiting.
template <class T>
INLINE void prefetch(const T *from, std::int64_t count) {
    constexpr std::int64_t line = 64 / sizeof(T);
    for (std::int64_t i = 0; i < count; i += line) __builtin_prefetch(from + i, 0, 2);
}

// Panels of keys, or of the values' dimensions, that R queries are multiplied with at once. Each
// sum depends on its previous term, so with few queries more panels keep the arithmetic units busy.
constexpr int vectors_at_once(int queries) {
    if (LANES == 16) return queries <= 3 ? 4 : queries <= 6 ? 2 : 1;
    return LANES == 8 && queries <= 2 ? 2 : 1;
}

// Scores of R queries [R, key_dim] against N times PANEL_WIDTH keys, from panel `first` on; rows of
// scores lie `score_stride` apart. The padding of a block gets scores too, which those of the next
// block overwrite.
template <int R, int N, class T>
INLINE void score(const Blocks<T> &blocks, const float *query, std::int64_t first, float *scores,
                  std::int64_t score_stride) {
    const std::int64_t stride = padded_block_size(blocks.m), block_vectors = stride / PANEL_WIDTH;
    const std::int64_t value_count = blocks.m.block_size * padded_value_dim(blocks.layer),
                       values_each = value_count / blocks.layer.key_dim;
    const T *keys[N], *next[N], *values[N];
    for (int n = 0; n < N; ++n) {
        const std::int64_t block = (first + n) / block_vectors, part = (first + n) % block_vectors;
        const std::int64_t later = block + (N + block_vectors - 1) / block_vectors;
        keys[n] = blocks.keys(block) + part * PANEL_WIDTH;
        next[n] = later < blocks.count ? blocks.keys(later) + part * PANEL_WIDTH : keys[n];
        values[n] = blocks.values(block);
    }
    constexpr std::int64_t A_LINE = 64 / sizeof(T) / PANEL_WIDTH;  // dimensions of a panel
    vfloat sums[R][N * PANEL_VECTORS] = {};
    for (std::int64_t d = 0; d < blocks.layer.key_dim; ++d) {
        if (d % A_LINE == 0)
            for (int n = 0; n < N; ++n) {
                __builtin_prefetch(next[n] + d * stride, 0, 3);
                prefetch(values[n] + d * values_each, A_LINE * values_each);
            }
        vfloat key[N * PANEL_VECTORS];
#pragma GCC unroll 4
        for (int v = 0; v < N * PANEL_VECTORS; ++v)
            key[v] = load(keys[v / PANEL_VECTORS] + d * stride + v % PANEL_VECTORS * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const vfloat value = broadcast(query[r * blocks.layer.key_dim + d]);
#pragma GCC unroll 4
            for (int v = 0; v < N * PANEL_VECTORS; ++v) sums[r][v] += value * key[v];
        }
    }
    for (int n = 0; n < N; ++n) {
        float *to = scores + (first + n) / block_vectors * blocks.m.block_size +
                    (first + n) % block_vectors * PANEL_WIDTH;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < PANEL_VECTORS; ++v)
                store(to + r * score_stride + v * LANES, sums[r][n * PANEL_VECTORS + v]);
    }
}

template <int R, class T>
INLINE void score_blocks(const Blocks<T> &blocks, const float *query, float *scores,
                      std::int64_t score_stride) {
    constexpr int N = vectors_at_once(R);
    const std::int64_t block_vectors = padded_block_size(blocks.m) / PANEL_WIDTH,
                       vectors = blocks.count * block_vectors;
    for (std::int64_t v = 0; v < vectors; v += N) {
        if (v + N <= vectors)
            score<R, N>(blocks, query, v, scores, score_stride);
        else
            for (std::int64_t rest = v; rest < vectors; ++rest)
                score<R, 1>(blocks, query, rest, scores, score_stride);
    }
}

// Replaces scores [begin, end) of a row of `count` keys by their softmax, and the others by 0. The
// last vector may reach beyond `end`: into the padding of a row. `sink` is one more score, or null.
INLINE void softmax(float *row, std::int64_t begin, std::int64_t end, std::int64_t count,
                    float softcap, const float *sink) {
    if (softcap != 0.0f) apply_softcap(row + begin, end - begin, softcap);
    const std::int64_t last = begin + (end - begin - 1) / LANES * LANES, next = last + LANES;
    const vfloat rest = load(row + last), low = broadcast(-INFINITY);
    const vint inside = first_lanes(end - last);
    vfloat most = inside ? rest : low;
    for (std::int64_t i = begin; i < last; i += LANES) most = max(most, load(row + i));
    const float highest = reduce_max(most);
    vfloat sum = {};
    const auto weigh = [&](std::int64_t i, vfloat e) {
        store(row + i, e);
        sum += e;
    };
    for (std::int64_t i = begin; i < last; i += LANES) weigh(i, exp(load(row + i) - highest));
    weigh(last, inside ? exp(rest - highest) : vfloat{});
    const float scale =
        1.0f / (reduce_sum(sum) + (sink ? exp(broadcast(*sink - highest))[0] : 0.0f));
    for (std::int64_t i = begin; i < next; i += LANES) store(row + i, load(row + i) * scale);
    for (std::int64_t i = 0; i < begin; ++i) row[i] = 0;
    for (std::int64_t i = next; i < count; ++i) row[i] = 0;
}

// R rows of `count` weights, `score_stride` apart, times the values: dimensions from `d` on, as
// outputs [R][N * PANEL_WIDTH].
template <int R, int N, class T>
INLINE void weighted_values(const Blocks<T> &blocks, const float *weights,
                            std::int64_t score_stride, std::int64_t count, std::int64_t d,
                            float *outputs) {
    const std::int64_t width = padded_value_dim(blocks.layer), size = blocks.m.block_size;
    const std::int64_t keys_each = blocks.layer.key_dim * padded_block_size(blocks.m) / size;
    const bool prefetches = d == 0 && blocks.next_head_follows;
    vfloat sums[R][N * PANEL_VECTORS] = {};
    for (std::int64_t b = 0; b < blocks.count; ++b) {
        const T *values = blocks.values(b) + d;
        const std::int64_t left = count - b * size, some = left < size ? left : size;
        for (std::int64_t k = 0; k < some; ++k) {
            if (prefetches) prefetch(blocks.next_head(b) + k * keys_each, keys_each);
            vfloat value[N * PANEL_VECTORS];
#pragma GCC unroll 4
            for (int v = 0; v < N * PANEL_VECTORS; ++v)
                value[v] = load(values + k * width + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vfloat weight = broadcast(weights[r * score_stride + b * size + k]);
#pragma GCC unroll 4
                for (int v = 0; v < N * PANEL_VECTORS; ++v) sums[r][v] += weight * value[v];
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < N * PANEL_VECTORS; ++v)
            store(outputs + (r * N * PANEL_VECTORS + v) * LANES, sums[r][v]);
}

// `query` and `out` as in `query_row`; `scores` has room for R rows of the longest context.
template <int R, class T>
static void attend_tile(const Model &m, const Layer &layer, const Step &step, const Tile &tile,
                        const float *query, std::int64_t query_stride, float *out,
                        std::int64_t out_stride, float *scores, std::int64_t score_stride) {
    QueryRow rows[R];
    float gathered[R * MAX_HEAD_DIM];
    for (int r = 0; r < R; ++r) {
        rows[r] = query_row(layer, step, tile, r, query, query_stride, out, out_stride);
        for (std::int64_t d = 0; d < layer.key_dim; ++d) gathered[r * layer.key_dim + d] = rows[r].at[d];
    }
    // From the first block that any of them sees to the last key that one sees.
    const std::int64_t from = rows[0].begin / m.block_size, start = from * m.block_size;
    const std::int64_t count = rows[R - 1].end - start;
    const std::int64_t *table = step.tables + step.table_offsets[tile.sequence] + from;
    const Blocks<T> blocks = {m,         layer, table,
                              tile.head, (count - 1) / m.block_size + 1,
                              tile.next_head_follows};
    score_blocks<R>(blocks, gathered, scores, score_stride);
    for (int r = 0; r < R; ++r)
        softmax(scores + r * score_stride, rows[r].begin - start, rows[r].end - start, count,
                layer.softcap, rows[r].sink);
    constexpr int N = vectors_at_once(R);
    float outputs[R * N * PANEL_WIDTH];
    const auto store_outputs = [&](std::int64_t d, std::int64_t width) {
        const std::int64_t some = layer.value_dim - d < width ? layer.value_dim - d : width;
        for (int r = 0; r < R; ++r)
            for (std::int64_t i = 0; i < some; ++i) rows[r].out[d + i] = outputs[r * width + i];
    };
    std::int64_t d = 0;
    for (; d + (N - 1) * PANEL_WIDTH < layer.value_dim; d += N * PANEL_WIDTH) {
        weighted_values<R, N>(blocks, scores, score_stride, count, d, outputs);
        store_outputs(d, N * PANEL_WIDTH);
    }
    for (; N > 1 && d < layer.value_dim; d += PANEL_WIDTH) {
        weighted_values<R, 1>(blocks, scores, score_stride, count, d, outputs);
        store_outputs(d, PANEL_WIDTH);
    }
}

// Calls `use` with a constant of that value, 1 to MICRO_ROWS.
template <int R = MICRO_ROWS, class Use>
INLINE void with_constant(std::int64_t rows, const Use &use) {
    if constexpr (R > 1) {
        if (rows < R) return with_constant<R - 1>(rows, use);
    }
    use(std::integral_constant<int, R>{});
}

#if PAIRS
#include "pair_attention.h"
#else
constexpr int TILED_QUERIES = 0;
static void attend_tile_in_pairs(const Model &, const Layer &, const Step &, const Tile &,
                                 std::int64_t, const float *, std::int64_t, float *, std::int64_t,
                                 float *, std::int64_t) {}
#endif

// Queries of a tile.
INLINE std::int64_t query_rows(const Model &m, const Layer &layer) {
    return tiles && attends_in_pairs(m, layer) ? TILED_QUERIES : MICRO_ROWS;
}

INLINE std::int64_t tile_count(const Model &m, const Layer &layer, const Step &step,
                               std::int64_t sequence) {
    const std::int64_t tokens = step.first[sequence + 1] - step.first[sequence];
    const std::int64_t queries = tokens * (layer.heads / layer.kv_heads), each = query_rows(m, layer);
    return (queries + each - 1) / each;
}

// Whether each KV head of each sequence is one tile: then whoever attends rotates and stores too. What
// attends to latents was rotated before.
INLINE bool tiles_are_heads(const Model &m, const Layer &layer, const Step &step) {
    return step.rows == step.sequences && !layer.latent &&
           layer.heads / layer.kv_heads <= query_rows(m, layer);
}

// Whether one thread attends for all of a sequence: where each thread has several. It then knows
// which keys come next, and rounds the finished row for the product behind attention.
INLINE bool threads_take_sequences(const Model &m, const Layer &layer, const Step &step) {
    return tiles_are_heads(m, layer, step) && step.sequences >= 4 * omp_get_num_threads();
}

// What a thread needs to attend: `qkv` [rows, width], `out` [rows, heads, value_dim], and scores of
// its own.
struct AttentionBuffers {
    float *qkv;
    std::int64_t width;
    Input out;
    float *scores;
    std::int64_t score_stride;
};

INLINE void attend_queries(const Model &m, const Layer &layer, const Step &step, const Tile &tile,
                           std::int64_t queries, const AttentionBuffers &at) {
    const std::int64_t row = step.first[tile.sequence];
    const float *query = at.qkv + row * at.width;
    float *out = at.out.at + row * at.out.stride;
    if (attends_in_pairs(m, layer))
        return attend_tile_in_pairs(m, layer, step, tile, queries, query, at.width, out,
                                    at.out.stride, at.scores, at.score_stride);
    with_constant(queries, [&](auto rows) {
        const auto attend = m.cache_is_bfloat ? attend_tile<rows.value, bfloat>
                                              : attend_tile<rows.value, float>;
        attend(m, layer, step, tile, query, at.width, out, at.out.stride, at.scores,
               at.score_stride);
    });
}

// One KV head of a sequence that has one new token.
static void attend_head(const Model &m, const Layer &layer, const Step &step, const Tile &tile,
                        const AttentionBuffers &at) {
    const std::int64_t sequence = tile.sequence;
    rotate_and_store(m, layer, step.tables + step.table_offsets[sequence], step.computed[sequence],
                     tile.head, at.qkv + sequence * at.width);
    attend_queries(m, layer, step, tile, layer.heads / layer.kv_heads, at);
}

// Multiplies what attention made of a row by the row's gates.
INLINE void gate_attended(const Layer &layer, const AttentionBuffers &at, std::int64_t row) {
    const float *gates = at.qkv + row * at.width + layer.heads * layer.key_dim;
    float *attended = at.out.at + row * at.out.stride;
    const std::int64_t width = layer.heads * layer.value_dim;
    std::int64_t i = 0;
    for (; i + LANES <= width; i += LANES)
        store(attended + i, load(attended + i) * sigmoid(load(gates + i)));
    for (; i < width; ++i) attended[i] *= sigmoid(broadcast(gates[i]))[0];
}

// Sequences of one new token each, whose rows are then in the form that products with `next` read.
static void attend_sequences(const Model &m, const Layer &layer, const Step &step,
                             const Matrix &next, const AttentionBuffers &at) {
#pragma omp for schedule(dynamic)
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence) {
        for (std::int64_t head = 0; head < layer.kv_heads; ++head)
            attend_head(m, layer, step, {sequence, head, 0, head + 1 < layer.kv_heads}, at);
        if (m.gates_attention) gate_attended(layer, at, sequence);
        prepare_input(next, at.out, sequence);
    }
}

// Tiles of every query of the step.
static void attend_tiles(const Model &m, const Layer &layer, const Step &step,
                         const AttentionBuffers &at) {
    const bool rotates = tiles_are_heads(m, layer, step);
    std::int64_t items = 0;
    for (std::int64_t s = 0; s < step.sequences; ++s)
        items += tile_count(m, layer, step, s) * layer.kv_heads;
    std::int64_t sequence = 0, before = 0;  // of the sequence that has `item`; items before it
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < items; ++item) {
        // OpenMP 5 lets a runtime hand out items in any order, so the search goes both ways.
        while (item < before) before -= tile_count(m, layer, step, --sequence) * layer.kv_heads;
        while (item - before >= tile_count(m, layer, step, sequence) * layer.kv_heads)
            before += tile_count(m, layer, step, sequence++) * layer.kv_heads;
        // The tiles of one head follow each other: its keys and values are then still near.
        const std::int64_t tiles = tile_count(m, layer, step, sequence),
                           number = (item - before) % tiles;
        const std::int64_t queries =
            (step.first[sequence + 1] - step.first[sequence]) * (layer.heads / layer.kv_heads);
        const std::int64_t start = queries * number / tiles;
        const std::int64_t stop = queries * (number + 1) / tiles;
        const Tile tile = {sequence, (item - before) / tiles, start, false};
        if (rotates)
            attend_head(m, layer, step, tile, at);
        else
            attend_queries(m, layer, step, tile, stop - start, at);
    }
    if (!m.gates_attention) return;
#pragma omp for
    for (std::int64_t row = 0; row < step.rows; ++row) gate_attended(layer, at, row);
}

// Attention over the paged cache.
//
// A layer's keys and values lie block by block, head by head, so that a query head's keys are read
// from end to end: keys with the positions side by side, values with the dimensions side by side.
//
//     keys    [blocks][kv_heads][key_dim][room]       room: the block size, to a multiple of WIDTH
//     values  [blocks][kv_heads][block_size][width]   width: value_dim, to a multiple of WIDTH
//
// The rows of a tile are queries of one KV head: for each new token, the heads that share it. Every
// score is one sum over the dimensions in order, every output one sum over the keys in order, so a
// query's result does not depend on its tile.

INLINE std::int64_t whole(std::int64_t count) { return (count + WIDTH - 1) / WIDTH * WIDTH; }

INLINE std::int64_t block_room(const Model &m) { return whole(m.block_size); }
INLINE std::int64_t value_width(const Model &m) { return whole(m.value_dim); }

template <class T>
INLINE T *keys_of(const Model &m, const Layer &layer, std::int64_t block, std::int64_t head) {
    return static_cast<T *>(layer.keys) +
           (block * m.kv_heads + head) * m.key_dim * block_room(m);
}

template <class T>
INLINE T *values_of(const Model &m, const Layer &layer, std::int64_t block, std::int64_t head) {
    return static_cast<T *>(layer.values) +
           (block * m.kv_heads + head) * m.block_size * value_width(m);
}

// Writes one token's keys and values [kv_heads, dim] to the cache.
template <class T>
INLINE void remember(const Model &m, const Layer &layer, const std::int64_t *table,
                     std::int64_t position, const float *keys, const float *values) {
    const std::int64_t block = table[position / m.block_size], at = position % m.block_size;
    for (std::int64_t h = 0; h < m.kv_heads; ++h) {
        T *key = keys_of<T>(m, layer, block, h) + at;
        for (std::int64_t d = 0; d < m.key_dim; ++d)
            narrow(keys[h * m.key_dim + d], key + d * block_room(m));
        T *value = values_of<T>(m, layer, block, h) + at * value_width(m);
        for (std::int64_t d = 0; d < m.value_dim; ++d)
            narrow(values[h * m.value_dim + d], value + d);
    }
}

// Brings `count` values to a near cache.
template <class T>
INLINE void fetch(const T *from, std::int64_t count) {
    constexpr std::int64_t line = 64 / sizeof(T);
    for (std::int64_t i = 0; i < count; i += line) __builtin_prefetch(from + i, 0, 2);
}

// The blocks of one KV head that a tile of queries sees, counted from its first one.
template <class T>
struct Blocks {
    const Model &m;
    const Layer &layer;
    const std::int64_t *table;
    std::int64_t head, count;

    const T *keys(std::int64_t block) const { return keys_of<T>(m, layer, table[block], head); }
    const T *values(std::int64_t block) const { return values_of<T>(m, layer, table[block], head); }

    // Blocks lie anywhere, so the processor cannot guess the next one.
    void fetch_keys(std::int64_t block) const {
        if (block < count) fetch(keys(block), m.key_dim * block_room(m));
    }
    void fetch_values(std::int64_t block) const {
        fetch(values(block), m.block_size * value_width(m));
    }
};

// Vectors of keys, or of the values' dimensions, that R queries meet at a time: a sum waits for its
// last term, so where queries are few there must be other sums meanwhile.
constexpr int together(int queries) {
    if (LANES == 16) return queries <= 3 ? 4 : queries <= 6 ? 2 : 1;
    return LANES == 8 && queries <= 2 ? 2 : 1;
}

// R queries [R, key_dim] against N times WIDTH keys, from vector `first` on: scores, rows `room`
// apart. A block's room may be more than the block: what is too much, the next one overwrites.
template <int R, int N, class T>
INLINE void score(const Blocks<T> &blocks, const float *query, std::int64_t first, float *scores,
                  std::int64_t room) {
    const std::int64_t stride = block_room(blocks.m), each = stride / WIDTH;
    const T *keys[N];
    for (int n = 0; n < N; ++n)
        keys[n] = blocks.keys((first + n) / each) + (first + n) % each * WIDTH;
    vfloat sums[R][N * PARTS] = {};
    for (std::int64_t d = 0; d < blocks.m.key_dim; ++d) {
        vfloat key[N * PARTS];
#pragma GCC unroll 4
        for (int v = 0; v < N * PARTS; ++v)
            key[v] = load(keys[v / PARTS] + d * stride + v % PARTS * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const vfloat value = fill(query[r * blocks.m.key_dim + d]);
#pragma GCC unroll 4
            for (int v = 0; v < N * PARTS; ++v) sums[r][v] += value * key[v];
        }
    }
    for (int n = 0; n < N; ++n) {
        float *to = scores + (first + n) / each * blocks.m.block_size + (first + n) % each * WIDTH;
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; ++v)
                store(to + r * room + v * LANES, sums[r][n * PARTS + v]);
    }
}

template <int R, class T>
INLINE void score_all(const Blocks<T> &blocks, const float *query, float *scores,
                      std::int64_t room) {
    constexpr int N = together(R);
    const std::int64_t each = block_room(blocks.m) / WIDTH, vectors = blocks.count * each;
    for (std::int64_t v = 0; v < vectors; v += N) {
        for (std::int64_t b = v / each; b < (v + N) / each && b < blocks.count; ++b) {
            blocks.fetch_keys(b + N);
            blocks.fetch_values(b);
        }
        if (v + N <= vectors)
            score<R, N>(blocks, query, v, scores, room);
        else
            for (std::int64_t rest = v; rest < vectors; ++rest)
                score<R, 1>(blocks, query, rest, scores, room);
    }
}

// Turns scores [begin, end) of a row that covers `count` keys into weights; the others become 0.
INLINE void soften(float *row, std::int64_t begin, std::int64_t end, std::int64_t count,
                   float softcap) {
    if (softcap != 0.0f) cap(row + begin, end - begin, softcap);
    const std::int64_t vectors = begin + (end - begin) / LANES * LANES;
    vfloat most = fill(row[begin]);
    for (std::int64_t i = begin; i < vectors; i += LANES) most = larger(most, load(row + i));
    float highest = largest(most);
    for (std::int64_t i = vectors; i < end; ++i) highest = row[i] > highest ? row[i] : highest;
    vfloat lanes = {};
    for (std::int64_t i = begin; i < vectors; i += LANES) {
        const vfloat e = exponential(load(row + i) - highest);
        store(row + i, e);
        lanes += e;
    }
    float total = sum(lanes);
    for (std::int64_t i = vectors; i < end; ++i) {
        row[i] = exponential(fill(row[i] - highest))[0];
        total += row[i];
    }
    const float by = 1.0f / total;
    for (std::int64_t i = begin; i < end; ++i) row[i] *= by;
    for (std::int64_t i = 0; i < begin; ++i) row[i] = 0.0f;
    for (std::int64_t i = end; i < count; ++i) row[i] = 0.0f;
}

// R rows of weights, `room` apart, of `count` keys times their values: dimensions from `d` on, sums
// [R][N * WIDTH].
template <int R, int N, class T>
INLINE void blend(const Blocks<T> &blocks, const float *weights, std::int64_t room,
                  std::int64_t count, std::int64_t d, float *found) {
    const std::int64_t width = value_width(blocks.m), size = blocks.m.block_size;
    vfloat sums[R][N * PARTS] = {};
    for (std::int64_t b = 0; b < blocks.count; ++b) {
        const T *values = blocks.values(b) + d;
        const std::int64_t left = count - b * size, some = left < size ? left : size;
        for (std::int64_t k = 0; k < some; ++k) {
            vfloat value[N * PARTS];
#pragma GCC unroll 4
            for (int v = 0; v < N * PARTS; ++v) value[v] = load(values + k * width + v * LANES);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vfloat weight = fill(weights[r * room + b * size + k]);
#pragma GCC unroll 4
                for (int v = 0; v < N * PARTS; ++v) sums[r][v] += weight * value[v];
            }
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < N * PARTS; ++v) store(found + (r * N * PARTS + v) * LANES, sums[r][v]);
}

// One tile: queries of KV head `head`, the first of them number `first` of its sequence (token by
// token, the heads that share a KV head one after the other).
struct Tile {
    std::int64_t sequence, head, first;
};

// `query` [rows, heads, key_dim] of the sequence's new tokens, `row_stride` apart; `out`
// [rows, heads, value_dim]; `scores` has room for R rows of the longest context.
template <int R, class T>
static void attend_tile(const Model &m, const Layer &layer, const Step &step, const Tile &tile,
                        const float *query, std::int64_t row_stride, float *out, float *scores,
                        std::int64_t room) {
    const std::int64_t share = m.heads / m.kv_heads, computed = step.computed[tile.sequence];
    float *outs[R];
    std::int64_t begins[R], ends[R];
    float gathered[R * 512];  // library.py refuses larger heads
    for (int r = 0; r < R; ++r) {
        const std::int64_t token = (tile.first + r) / share;
        const std::int64_t head = tile.head * share + (tile.first + r) % share;
        const float *from = query + token * row_stride + head * m.key_dim;
        for (std::int64_t d = 0; d < m.key_dim; ++d) gathered[r * m.key_dim + d] = from[d];
        outs[r] = out + (token * m.heads + head) * m.value_dim;
        ends[r] = computed + token + 1;
        begins[r] = layer.window && ends[r] > layer.window ? ends[r] - layer.window : 0;
    }
    // From the first block that any of them sees to the last key that one sees.
    const std::int64_t from = begins[0] / m.block_size, start = from * m.block_size;
    const std::int64_t count = ends[R - 1] - start;
    const std::int64_t *table = step.tables + step.table_at[tile.sequence] + from;
    const Blocks<T> blocks = {m, layer, table, tile.head, (count - 1) / m.block_size + 1};
    score_all<R>(blocks, gathered, scores, room);
    for (int r = 0; r < R; ++r)
        soften(scores + r * room, begins[r] - start, ends[r] - start, count, layer.softcap);
    constexpr int N = together(R);
    float found[R * N * WIDTH];
    const auto put = [&](std::int64_t d, std::int64_t width) {
        const std::int64_t some = m.value_dim - d < width ? m.value_dim - d : width;
        for (int r = 0; r < R; ++r)
            for (std::int64_t i = 0; i < some; ++i) outs[r][d + i] = found[r * width + i];
    };
    std::int64_t d = 0;
    for (; d + (N - 1) * WIDTH < m.value_dim; d += N * WIDTH) {
        blend<R, N>(blocks, scores, room, count, d, found);
        put(d, N * WIDTH);
    }
    for (; N > 1 && d < m.value_dim; d += WIDTH) {
        blend<R, 1>(blocks, scores, room, count, d, found);
        put(d, WIDTH);
    }
}

template <class T, int R = ROWS>
INLINE void attend_rows(const Model &m, const Layer &layer, const Step &step, const Tile &tile,
                        std::int64_t rows, const float *query, std::int64_t row_stride, float *out,
                        float *scores, std::int64_t room) {
    if constexpr (R > 1) {
        if (rows < R)
            return attend_rows<T, R - 1>(m, layer, step, tile, rows, query, row_stride, out,
                                         scores, room);
    }
    attend_tile<R, T>(m, layer, step, tile, query, row_stride, out, scores, room);
}

INLINE std::int64_t tiles_of(const Model &m, const Step &step, std::int64_t sequence) {
    const std::int64_t tokens = step.first[sequence + 1] - step.first[sequence];
    return (tokens * (m.heads / m.kv_heads) + ROWS - 1) / ROWS;
}

// Attention of every query of the step; `qkv` [rows, width], `out` [rows, heads, value_dim].
// Every thread of the team must call it; it ends with a barrier.
static void attend(const Model &m, const Layer &layer, const Step &step, const float *qkv,
                   std::int64_t width, float *out, float *scores, std::int64_t room) {
    std::int64_t items = 0;
    for (std::int64_t s = 0; s < step.sequences; ++s) items += tiles_of(m, step, s) * m.kv_heads;
    std::int64_t sequence = 0, before = 0;  // of the sequence that has `item`; items before it
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < items; ++item) {
        // OpenMP 5 lets a runtime hand out items in any order, so the search goes both ways.
        while (item < before) before -= tiles_of(m, step, --sequence) * m.kv_heads;
        while (item - before >= tiles_of(m, step, sequence) * m.kv_heads)
            before += tiles_of(m, step, sequence++) * m.kv_heads;
        // The tiles of one head follow each other: its keys and values are then still near.
        const std::int64_t tiles = tiles_of(m, step, sequence), number = (item - before) % tiles;
        const std::int64_t first = step.first[sequence];
        const std::int64_t queries =
            (step.first[sequence + 1] - first) * (m.heads / m.kv_heads);
        const std::int64_t start = queries * number / tiles;
        const std::int64_t stop = queries * (number + 1) / tiles;
        const Tile tile = {sequence, (item - before) / tiles, start};
        const float *query = qkv + first * width;
        float *to = out + first * m.heads * m.value_dim;
        if (m.cache_is_bfloat)
            attend_rows<bfloat>(m, layer, step, tile, stop - start, query, width, to, scores, room);
        else
            attend_rows<float>(m, layer, step, tile, stop - start, query, width, to, scores, room);
    }
}

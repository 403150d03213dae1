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

// R queries [R, key_dim], `stride` apart, against WIDTH keys: their scores, rows `room` apart.
template <int R, class T>
INLINE void score(const float *query, std::int64_t stride, const T *keys, std::int64_t dims,
                  std::int64_t key_stride, float *scores, std::int64_t room) {
    vfloat sums[R][PARTS] = {};
    for (std::int64_t d = 0; d < dims; ++d) {
        vfloat key[PARTS];
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; ++v) key[v] = load(keys + d * key_stride + v * LANES);
#pragma GCC unroll 12
        for (int r = 0; r < R; ++r) {
            const vfloat value = fill(query[r * stride + d]);
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; ++v) sums[r][v] += value * key[v];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 4
        for (int v = 0; v < PARTS; ++v) store(scores + r * room + v * LANES, sums[r][v]);
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
    const std::int64_t *table = step.tables + step.table_at[tile.sequence];
    const std::int64_t width = value_width(m), key_stride = block_room(m);
    const float *queries[R];
    std::int64_t begins[R], ends[R];
    float gathered[R * 512];  // library.py refuses larger heads
    for (int r = 0; r < R; ++r) {
        const std::int64_t token = (tile.first + r) / share, head = (tile.first + r) % share;
        queries[r] = query + token * row_stride + (tile.head * share + head) * m.key_dim;
        for (std::int64_t d = 0; d < m.key_dim; ++d) gathered[r * m.key_dim + d] = queries[r][d];
        ends[r] = computed + token + 1;
        begins[r] = layer.window && ends[r] > layer.window ? ends[r] - layer.window : 0;
    }
    // From the first block that any of them sees to the last key that one sees.
    const std::int64_t from = begins[0] / m.block_size, start = from * m.block_size;
    const std::int64_t count = ends[R - 1] - start, blocks = (count - 1) / m.block_size + 1;
    for (std::int64_t b = 0; b < blocks; ++b) {
        // A block's room may be more than the block: what is too much, the next one overwrites.
        const T *keys = keys_of<T>(m, layer, table[from + b], tile.head);
        // Blocks lie anywhere, so the processor cannot guess the next one.
        if (b + 1 < blocks)
            fetch(keys_of<T>(m, layer, table[from + b + 1], tile.head), m.key_dim * key_stride);
        fetch(values_of<T>(m, layer, table[from + b], tile.head), m.block_size * width);
        for (std::int64_t i = 0; i < key_stride; i += WIDTH)
            score<R, T>(gathered, m.key_dim, keys + i, m.key_dim, key_stride,
                        scores + b * m.block_size + i, room);
    }
    for (int r = 0; r < R; ++r)
        soften(scores + r * room, begins[r] - start, ends[r] - start, count, layer.softcap);
    for (std::int64_t d = 0; d < m.value_dim; d += WIDTH) {
        vfloat sums[R][PARTS] = {};
        for (std::int64_t b = 0; b < blocks; ++b) {
            const T *values = values_of<T>(m, layer, table[from + b], tile.head) + d;
            const std::int64_t left = count - b * m.block_size;
            const std::int64_t some = left < m.block_size ? left : m.block_size;
            const float *weights = scores + b * m.block_size;
            for (std::int64_t k = 0; k < some; ++k) {
                vfloat value[PARTS];
#pragma GCC unroll 4
                for (int v = 0; v < PARTS; ++v) value[v] = load(values + k * width + v * LANES);
#pragma GCC unroll 12
                for (int r = 0; r < R; ++r) {
                    const vfloat weight = fill(weights[r * room + k]);
#pragma GCC unroll 4
                    for (int v = 0; v < PARTS; ++v) sums[r][v] += weight * value[v];
                }
            }
        }
        const std::int64_t some = m.value_dim - d < WIDTH ? m.value_dim - d : WIDTH;
        for (int r = 0; r < R; ++r) {
            const std::int64_t token = (tile.first + r) / share, head = (tile.first + r) % share;
            float *to = out + (token * m.heads + tile.head * share + head) * m.value_dim + d;
            float whole[WIDTH];
#pragma GCC unroll 4
            for (int v = 0; v < PARTS; ++v) store(whole + v * LANES, sums[r][v]);
            for (std::int64_t i = 0; i < some; ++i) to[i] = whole[i];
        }
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
    std::int64_t sequence = 0, before = 0;  // items come to a thread in ascending order
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < items; ++item) {
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

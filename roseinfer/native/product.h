// Products of a few rows with a packed matrix.
//
// A matrix [outputs, inputs] lies in panels of WIDTH outputs, each panel input by input, so that a
// product reads it from end to end. In bfloat16 two inputs lie together, which is also the order
// that dot product instructions want:
//
//     float32    panel [inputs][WIDTH]
//     bfloat16   panel [inputs / 2][WIDTH][2]
//
// Where the build has such instructions (PAIRS), activations for bfloat16 weights are pairs as well,
// rounded by `pair_up`: a row's first input and its second lie in its first float's place. With AMX
// they go elsewhere: see tiles.h.
//
// Every output of every row is one sum over the inputs in their order, whatever the number of rows
// and threads: a row's result does not depend on its company.

// Rows at a time: as many sums as there are registers for, with room for a panel's vectors.
constexpr int ROWS = LANES == 16 ? 12 : LANES == 8 ? 6 : 3;

template <int R, int P>
struct Sums {
    vfloat of[R][P * PARTS];
};

// The vectors of a panel's weights for one input. Of a bfloat16 pair, the first input's weights are
// the lower halves.
INLINE vfloat weights(const float *panel, std::int64_t k) { return load(panel + k * WIDTH); }

INLINE vfloat weights(const bfloat *panel, std::int64_t k) {
    const bfloat *at = panel + k / 2 * (2 * WIDTH);
    const vbits pair = *reinterpret_cast<const vbits_at *>(at);
    return reinterpret_cast<vfloat>(k % 2 ? pair & 0xFFFF0000u : pair << 16);
}

// From one part of a panel to the next, in elements.
constexpr int part(const float *) { return LANES; }
constexpr int part(const bfloat *) { return 2 * LANES; }

// Where input `k` of a row of activations lies, in floats.
constexpr std::int64_t place_of(const float *, std::int64_t k) { return k; }
constexpr std::int64_t place_of(const bfloat *, std::int64_t k) { return PAIRS ? k / 2 : k; }

// `a` [R, inputs], rows `stride` apart, times P panels that lie `panel` elements apart. Meanwhile
// memory is fetched from `ahead` on, FETCH bytes for each input.
template <int R, int P, int FETCH = 0, class W>
INLINE void accumulate(Sums<R, P> &sums, const float *a, std::int64_t stride, const W *b,
                       std::int64_t panel, std::int64_t inputs, const char *ahead = nullptr) {
    for (std::int64_t k = 0; k < inputs; k += 2)
#pragma GCC unroll 2
        for (int i = 0; i < 2; ++i) {
            if constexpr (FETCH > 0) __builtin_prefetch(ahead + (k + i) * FETCH, 0, 2);
            vfloat weight[P * PARTS];
#pragma GCC unroll 8
            for (int v = 0; v < P * PARTS; ++v)
                weight[v] = weights(b + v / PARTS * panel + v % PARTS * part(b), k + i);
#pragma GCC unroll 12
            for (int r = 0; r < R; ++r) {
                const vfloat value = fill(a[r * stride + k + i]);
#pragma GCC unroll 8
                for (int v = 0; v < P * PARTS; ++v) sums.of[r][v] += value * weight[v];
            }
        }
}

#if PAIRS
template <int R, int P, int FETCH = 0>
INLINE void accumulate(Sums<R, P> &sums, const float *a, std::int64_t stride, const bfloat *b,
                       std::int64_t panel, std::int64_t inputs, const char *ahead = nullptr) {
    for (std::int64_t k = 0; k < inputs; k += 2) {
        vfloat weight[P];
#pragma GCC unroll 8
        for (int v = 0; v < P; ++v) {
            if constexpr (FETCH > 0)
                __builtin_prefetch(ahead + v * panel * sizeof(bfloat) + k * FETCH, 0, 2);
            weight[v] = load_pairs(b + v * panel + k * WIDTH);
        }
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r) {
            const vfloat pair = fill(a[r * stride + k / 2]);
#pragma GCC unroll 8
            for (int v = 0; v < P; ++v) sums.of[r][v] = add_pairs(sums.of[r][v], weight[v], pair);
        }
    }
}
#endif

// What becomes of a product: it replaces what was there or is added to it.
enum class Into { Place, Sum };

struct Rows {
    float *at;
    std::int64_t stride;
};

// Adds bias and puts `value`, a part of the outputs from `column` on, where it belongs.
INLINE void finish(const Matrix &m, float *row, std::int64_t column, vfloat value, Into into) {
    if (m.bias) value += load(m.bias + column);
    const std::int64_t count = m.outputs - column;
    float *to = row + column;
    if (count >= LANES)
        store(to, into == Into::Sum ? load(to) + value : value);
    else
        for (std::int64_t i = 0; i < count; ++i)
            to[i] = into == Into::Sum ? to[i] + value[i] : value[i];
}

// R rows times P panels, from `first` on: for as few rows as fit into the registers, straight from
// the packed weights.
template <int R, int P, class W>
static void few(const Matrix &m, const float *a, std::int64_t stride, std::int64_t first, Rows c,
                Into into) {
    const std::int64_t panel = m.inputs * WIDTH;
    Sums<R, P> sums = {};
    const W *weights = static_cast<const W *>(m.panels) + first * panel;
    accumulate<R, P>(sums, a, stride, weights, panel, m.inputs);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int v = 0; v < P * PARTS; ++v) {
            const std::int64_t column = first * WIDTH + v * LANES;
            if (column < m.outputs) finish(m, c.at + r * c.stride, column, sums.of[r][v], into);
        }
}

template <class W, int R = ROWS>
static void few_rows(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                     std::int64_t first, std::int64_t panels, Rows c, Into into) {
    if constexpr (R > 1) {
        if (rows < R) return few_rows<W, R - 1>(m, a, stride, rows, first, panels, c, into);
    }
    // With few rows there are registers for more panels, and memory likes to be asked for several.
    constexpr int P = R * PARTS <= 2 ? 4 : R * PARTS <= 4 || LANES == 16 ? 2 : 1;
    std::int64_t p = first;
    for (; p + P <= first + panels; p += P) few<R, P, W>(m, a, stride, p, c, into);
    if constexpr (P > 2) {
        for (; p + 2 <= first + panels; p += 2) few<R, 2, W>(m, a, stride, p, c, into);
    }
    if constexpr (P > 1) {
        for (; p < first + panels; ++p) few<R, 1, W>(m, a, stride, p, c, into);
    }
}

// Many rows pass by a piece of a few panels, DEPTH inputs long, that lies in the nearest cache; their
// sums wait in `sums` until the next piece.
constexpr int BLOCK = 16 * ROWS;
template <int P, class W>
constexpr int DEPTH = P == 2 && sizeof(W) == 4 ? 128 : 256;

// A piece, as float32 where sums are made of that: it then moves to `room`. Panels lie `apart`.
template <class W>
struct Piece {
    const W *weights;
    std::int64_t apart;
};

INLINE Piece<float> piece(const float *panel, std::int64_t apart, std::int64_t, float *) {
    return {panel, apart};
}

#if PAIRS
INLINE Piece<bfloat> piece(const bfloat *panel, std::int64_t apart, std::int64_t, float *) {
    return {panel, apart};
}
#else
INLINE Piece<float> piece(const bfloat *panel, std::int64_t, std::int64_t count, float *room) {
    for (std::int64_t i = 0; i < count; i += 2)
#pragma GCC unroll 8
        for (int v = 0; v < 2 * PARTS; ++v)
            store(room + i * WIDTH + v * LANES,
                  weights(panel + v % PARTS * part(panel), i + v / PARTS));
    return {room, 0};
}
#endif

template <int P, int FETCH, class W, int R = ROWS>
static void pass(float *sums, const float *a, std::int64_t stride, std::int64_t rows,
                 const Piece<W> &piece, std::int64_t depth, const char *ahead) {
    if constexpr (R > 1) {
        if (rows < R) return pass<P, FETCH, W, R - 1>(sums, a, stride, rows, piece, depth, ahead);
    }
    constexpr int VECTORS = P * PARTS;
    Sums<R, P> here;
#pragma GCC unroll 32
    for (int i = 0; i < R * VECTORS; ++i) here.of[i / VECTORS][i % VECTORS] = load(sums + i * LANES);
    accumulate<R, P, FETCH>(here, a, stride, piece.weights, piece.apart, depth, ahead);
#pragma GCC unroll 32
    for (int i = 0; i < R * VECTORS; ++i) store(sums + i * LANES, here.of[i / VECTORS][i % VECTORS]);
}

// The tiles are of like size: six, six and one would waste most of the last.
template <int P, class W>
static void many_rows(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                      std::int64_t panel, Rows c, Into into) {
    // While the first rows pass, the next piece comes. Plain float32 comes best by the processor's
    // own guess (measured); bfloat16, half as wide, leaves that too little time.
    constexpr int FETCH = sizeof(W) == 2 ? WIDTH * sizeof(W) : 0, ACROSS = P * WIDTH;
    constexpr int MOST = DEPTH<P, W>;
    float room[PAIRS ? 1 : MOST * WIDTH], sums[BLOCK * ACROSS] = {};
    const std::int64_t apart = m.inputs * WIDTH;
    const W *from = static_cast<const W *>(m.panels) + panel * apart;
    const std::int64_t tiles = (rows + ROWS - 1) / ROWS, first = rows / tiles;
    for (std::int64_t k = 0; k < m.inputs; k += MOST) {
        const std::int64_t depth = m.inputs - k < MOST ? m.inputs - k : MOST;
        const auto here = piece(from + k * WIDTH, apart, depth, room);
        const char *ahead = reinterpret_cast<const char *>(from + (k + depth) * WIDTH);
        const float *inputs = a + place_of(from, k);
        pass<P, FETCH>(sums, inputs, stride, first, here, depth, ahead);
        for (std::int64_t i = 1; i < tiles; ++i) {
            const std::int64_t row = rows * i / tiles, next = rows * (i + 1) / tiles;
            pass<P, 0>(sums + row * ACROSS, inputs + row * stride, stride, next - row, here, depth,
                       nullptr);
        }
    }
    for (std::int64_t row = 0; row < rows; ++row)
        for (int v = 0; v < P * PARTS; ++v) {
            const std::int64_t column = panel * WIDTH + v * LANES;
            if (column < m.outputs)
                finish(m, c.at + row * c.stride, column, load(sums + row * ACROSS + v * LANES),
                       into);
        }
}

#if PAIRS
#include "tiles.h"
#else
constexpr bool tiles = false;
constexpr int TILE = 1;
INLINE bool on_tiles(const Matrix &) { return false; }
INLINE void set_tiles(std::int64_t) {}
INLINE void release_tiles() {}
INLINE void to_tiles(const float *, std::int64_t, std::int64_t, bfloat *) {}
static void multiply_on_tiles(const Matrix &, const bfloat *, std::int64_t, std::int64_t,
                              std::int64_t, std::int64_t, Rows, Into) {}
static void activate_on_tiles(const Model &, const Matrix &, const bfloat *, std::int64_t,
                              std::int64_t, std::int64_t, std::int64_t, bfloat *) {}
#endif

// Activations [rows, inputs], rows `stride` apart. `tiles` has room for as many in bfloat16, to a
// whole number of tiles.
struct Input {
    float *at;
    std::int64_t stride;
    bfloat *tiles;
};

INLINE std::int64_t whole_tiles(std::int64_t rows) { return (rows + TILE - 1) / TILE * TILE; }

// Makes of a row of activations what products with `m` read.
INLINE void prepare(const Matrix &m, const Input &input, std::int64_t row) {
    float *at = input.at + row * input.stride;
    if (on_tiles(m))
        to_tiles(at, m.inputs, row, input.tiles);
    else if (PAIRS && m.is_bfloat)
        pair_up(at, m.inputs);
}

template <class W>
static void strip(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                  std::int64_t first, std::int64_t panels, Rows c, Into into) {
    if (rows <= ROWS) return few_rows<W>(m, a, stride, rows, first, panels, c, into);
    constexpr int P = LANES == 16 && (PAIRS || sizeof(W) == 4) ? 2 : 1;
    std::int64_t p = first;
    for (; p + P <= first + panels; p += P) many_rows<P, W>(m, a, stride, rows, p, c, into);
    for (; p < first + panels; ++p) many_rows<1, W>(m, a, stride, rows, p, c, into);
}

// How a product is shared out among threads: blocks of rows times groups of panels.
struct Shares {
    std::int64_t rows, panels, group, groups, blocks;
    bool tiled;

    // On tiles, weights come ahead of their use within a group only, so groups are as large as
    // leaves every thread some.
    Shares(const Matrix &m, std::int64_t rows, std::int64_t panels)
        : rows(rows), panels(panels), group(panels >= 64 ? 4 : 2), tiled(on_tiles(m)) {
        const std::int64_t pairs = panels / (2 * 6 * omp_get_num_threads());
        if (tiled) group = pairs > 1 ? 2 * pairs : 2;
        groups = (panels + group - 1) / group;
        blocks = (rows + BLOCK - 1) / BLOCK;
    }

    std::int64_t count() const { return blocks * groups; }
    std::int64_t first_panel(std::int64_t item) const { return item % groups * group; }
    std::int64_t end_panel(std::int64_t item) const {
        const std::int64_t end = first_panel(item) + group;
        return end < panels ? end : panels;
    }
    std::int64_t first_row(std::int64_t item) const {
        const std::int64_t row = rows * (item / groups) / blocks;
        return tiled ? whole_tiles(row) : row;
    }
    std::int64_t end_row(std::int64_t item) const {
        const std::int64_t end = first_row(item + groups);  // of the block behind this one
        return end < rows ? end : rows;
    }
};

// c [rows, outputs] = a [rows, inputs] times the matrix; all rows of `a` went through `prepare`.
// Every thread of the team must call it; it ends with a barrier.
static void product(const Matrix &m, const Input &a, std::int64_t rows, Rows c, Into into) {
    const Shares shares(m, rows, (m.outputs + WIDTH - 1) / WIDTH);
    if (shares.tiled) set_tiles(rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < shares.count(); ++item) {
        const std::int64_t row = shares.first_row(item), next = shares.end_row(item);
        const std::int64_t first = shares.first_panel(item), end = shares.end_panel(item);
        if (shares.tiled) {
            for (std::int64_t p = first; p < end; p += 2)
                multiply_on_tiles(m, a.tiles, row, next, p, end, c, into);
            continue;
        }
        const float *from = a.at + row * a.stride;
        const Rows to = {c.at + row * c.stride, c.stride};
        if (m.is_bfloat)
            strip<bfloat>(m, from, a.stride, next - row, first, end - first, to, into);
        else
            strip<float>(m, from, a.stride, next - row, first, end - first, to, into);
    }
    if (shares.tiled) release_tiles();
}

// On tiles only: the product after its activation, gated or not, as tiles [rows, inner] of what
// follows. Like `product` it ends with a barrier.
static void product_activated(const Model &model, const Matrix &m, const Input &a,
                              std::int64_t rows, bfloat *to) {
    const Shares shares(m, rows, model.inner / WIDTH);
    set_tiles(rows);
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < shares.count(); ++item) {
        const std::int64_t row = shares.first_row(item), next = shares.end_row(item);
        const std::int64_t end = shares.end_panel(item);
        for (std::int64_t p = shares.first_panel(item); p < end; p += model.gated ? 1 : 2)
            activate_on_tiles(model, m, a.tiles, row, next, p, end, to);
    }
    release_tiles();
}

// Products of a few rows with a packed matrix.
//
// A matrix [outputs, inputs] lies in panels of WIDTH outputs, each panel input by input, so that a
// product reads it from end to end. In bfloat16 two inputs lie together, which is also the order
// that dot product instructions want:
//
//     float32    panel [inputs][WIDTH]
//     bfloat16   panel [inputs / 2][WIDTH][2]
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
    if constexpr (P > 1) {
        for (; p < first + panels; ++p) few<R, 1, W>(m, a, stride, p, c, into);
    }
}

// Many rows pass by a piece of one panel, DEPTH inputs long, that lies in the nearest cache as
// float32; their sums wait in `sums` until the next piece.
constexpr int DEPTH = 256, BLOCK = 16 * ROWS;

INLINE const float *piece(const float *panel, std::int64_t k, std::int64_t, float *) {
    return panel + k * WIDTH;
}

INLINE const float *piece(const bfloat *panel, std::int64_t k, std::int64_t count, float *room) {
    for (std::int64_t i = 0; i < count; i += 2)
#pragma GCC unroll 8
        for (int v = 0; v < 2 * PARTS; ++v)
            store(room + i * WIDTH + v * LANES,
                  weights(panel + v % PARTS * part(panel), k + i + v / PARTS));
    return room;
}

template <int FETCH, int R = ROWS>
static void pass(float *sums, const float *a, std::int64_t stride, std::int64_t rows,
                 const float *weights, std::int64_t depth, const char *ahead) {
    if constexpr (R > 1) {
        if (rows < R) return pass<FETCH, R - 1>(sums, a, stride, rows, weights, depth, ahead);
    }
    Sums<R, 1> here;
#pragma GCC unroll 24
    for (int i = 0; i < R * PARTS; ++i) here.of[i / PARTS][i % PARTS] = load(sums + i * LANES);
    accumulate<R, 1, FETCH>(here, a, stride, weights, 0, depth, ahead);
#pragma GCC unroll 24
    for (int i = 0; i < R * PARTS; ++i) store(sums + i * LANES, here.of[i / PARTS][i % PARTS]);
}

template <class W>
static void many_rows(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                      std::int64_t panel, Rows c, Into into) {
    // While the first rows pass, the next piece comes. Plain float32 comes best by the processor's
    // own guess (measured); bfloat16, half as wide, leaves that too little time.
    constexpr int FETCH = sizeof(W) == 2 ? WIDTH * sizeof(W) : 0;
    float room[DEPTH * WIDTH], sums[BLOCK * WIDTH] = {};
    const W *from = static_cast<const W *>(m.panels) + panel * m.inputs * WIDTH;
    // Tiles of like size: six, six and one would waste most of the last.
    const std::int64_t tiles = (rows + ROWS - 1) / ROWS, first = rows / tiles;
    for (std::int64_t k = 0; k < m.inputs; k += DEPTH) {
        const std::int64_t depth = m.inputs - k < DEPTH ? m.inputs - k : DEPTH;
        const float *weights = piece(from, k, depth, room);
        const char *ahead = reinterpret_cast<const char *>(from + (k + depth) * WIDTH);
        pass<FETCH>(sums, a + k, stride, first, weights, depth, ahead);
        for (std::int64_t i = 1; i < tiles; ++i) {
            const std::int64_t row = rows * i / tiles, next = rows * (i + 1) / tiles;
            pass<0>(sums + row * WIDTH, a + row * stride + k, stride, next - row, weights, depth,
                    nullptr);
        }
    }
    for (std::int64_t row = 0; row < rows; ++row)
        for (int v = 0; v < PARTS; ++v) {
            const std::int64_t column = panel * WIDTH + v * LANES;
            if (column < m.outputs)
                finish(m, c.at + row * c.stride, column, load(sums + row * WIDTH + v * LANES),
                       into);
        }
}

template <class W>
static void strip(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                  std::int64_t first, std::int64_t panels, Rows c, Into into) {
    if (rows <= ROWS) return few_rows<W>(m, a, stride, rows, first, panels, c, into);
    for (std::int64_t p = first; p < first + panels; ++p)
        many_rows<W>(m, a, stride, rows, p, c, into);
}

// c [rows, outputs] = a [rows, inputs] times the matrix. Every thread of the team must call it; it
// ends with a barrier.
static void product(const Matrix &m, const float *a, std::int64_t stride, std::int64_t rows,
                    Rows c, Into into) {
    const std::int64_t panels = (m.outputs + WIDTH - 1) / WIDTH;
    const std::int64_t group = panels >= 64 ? 4 : 2;
    const std::int64_t groups = (panels + group - 1) / group;
    const std::int64_t blocks = (rows + BLOCK - 1) / BLOCK;
#pragma omp for schedule(dynamic)
    for (std::int64_t item = 0; item < blocks * groups; ++item) {
        const std::int64_t block = item / groups, first = item % groups * group;
        const std::int64_t row = rows * block / blocks, next = rows * (block + 1) / blocks;
        const std::int64_t some = panels - first < group ? panels - first : group;
        const Rows to = {c.at + row * c.stride, c.stride};
        if (m.is_bfloat)
            strip<bfloat>(m, a + row * stride, stride, next - row, first, some, to, into);
        else
            strip<float>(m, a + row * stride, stride, next - row, first, some, to, into);
    }
}

// The recurrence of layers with a state, see model/state_layers.py: sums S [keys, values] of each head
// become decay * S + key (x) added, token by token. `added` is beta * value, or by the delta rule
// beta * (value - key * decay * S). A token's output is query * S.
//
// A thread takes some columns of a head's sums through all tokens of a sequence, in its cache. So the
// order of every sum is the same in any chunk.

constexpr int SUM_VECTORS = 4;
constexpr int SUM_COLUMNS = SUM_VECTORS * LANES;

// SUM_COLUMNS of a head's sums, rows `stride` floats apart.
struct Columns {
    float *at;
    std::int64_t stride;
};

// Rows of `width` floats from one place to another.
INLINE void copy_rows(Columns from, Columns to, std::int64_t rows, std::int64_t width) {
    for (std::int64_t row = 0; row < rows; ++row)
        __builtin_memcpy(to.at + row * to.stride, from.at + row * from.stride,
                         static_cast<std::size_t>(width) * sizeof(float));
}

// The columns `from`, before the token, become `to`, those behind it; both may be the same.
INLINE void recur_token(const Recurrence &r, std::int64_t row, std::int64_t head, std::int64_t first,
                        std::int64_t width, Columns from, Columns to) {
    const std::int64_t group = head / (r.heads / r.groups), column = head * r.values + first;
    const float *query = r.query + row * r.key_stride + group * r.keys,
                *key = r.key + row * r.key_stride + group * r.keys;
    const float decay = r.decay[row * r.decay_stride + head];
    const std::size_t size = static_cast<std::size_t>(width) * sizeof(float);
    float columns[SUM_COLUMNS] = {};
    __builtin_memcpy(columns, r.value + row * r.value_stride + column, size);
    vfloat added[SUM_VECTORS], out[SUM_VECTORS];
    for (int i = 0; i < SUM_VECTORS; ++i) added[i] = load(columns + i * LANES);
    if (r.beta) {
        const float beta = r.beta[row * r.decay_stride + head];
        vfloat known[SUM_VECTORS] = {};
        for (std::int64_t k = 0; r.delta && k < r.keys; ++k)
            for (int i = 0; i < SUM_VECTORS; ++i)
                known[i] += load(from.at + k * from.stride + i * LANES) * key[k];
        for (int i = 0; i < SUM_VECTORS; ++i) added[i] = (added[i] - known[i] * decay) * beta;
    }
    for (int i = 0; i < SUM_VECTORS; ++i) out[i] = vfloat{};
    for (std::int64_t k = 0; k < r.keys; ++k)
        for (int i = 0; i < SUM_VECTORS; ++i) {
            const vfloat sum =
                load(from.at + k * from.stride + i * LANES) * decay + added[i] * key[k];
            store(to.at + k * to.stride + i * LANES, sum);
            out[i] += sum * query[k];
        }
    for (int i = 0; i < SUM_VECTORS; ++i) store(columns + i * LANES, out[i]);
    __builtin_memcpy(r.out + row * r.out_stride + column, columns, size);
}

// `buffer` [keys, SUM_COLUMNS] holds the columns between tokens. Whole ones are read from the slot by
// the first token and written there by the last: a step of one token copies none.
INLINE void recur_columns(const Recurrence &r, std::int64_t sequence, std::int64_t head,
                          std::int64_t first, float *buffer) {
    const std::int64_t rest = r.values - first, width = rest < SUM_COLUMNS ? rest : SUM_COLUMNS;
    const auto columns_in = [&](std::int64_t slot) {
        return Columns{r.sums + (slot * r.heads + head) * r.keys * r.values + first, r.values};
    };
    const Columns own = {buffer, SUM_COLUMNS};
    const bool whole = width == SUM_COLUMNS;
    Columns now = columns_in(r.slots[sequence]);
    if (!whole) {
        std::fill(buffer, buffer + r.keys * SUM_COLUMNS, 0.0f);
        copy_rows(now, own, r.keys, width);
        now = own;
    }
    const StateWrite *write = r.writes, *end = r.writes + r.written;
    while (write < end && write->sequence < sequence) ++write;
    const std::int64_t start = r.starts[sequence], tokens = r.ends[sequence] - start;
    for (std::int64_t token = 0; token < tokens; ++token) {
        const auto is_written = [&] {
            return write < end && write->sequence == sequence && write->token == token;
        };
        Columns behind = own;
        if (whole && token + 1 == tokens && is_written()) behind = columns_in((write++)->slot);
        recur_token(r, start + token, head, first, width, now, behind);
        now = behind;
        for (; is_written(); ++write) copy_rows(now, columns_in(write->slot), r.keys, width);
    }
}

// All of it, by every thread of a team. They go on without waiting for each other.
static void start_recurrence(const Recurrence &r) {
    const std::int64_t parts = (r.values + SUM_COLUMNS - 1) / SUM_COLUMNS;
    const std::int64_t tasks = r.sequences * r.heads * parts;
    float *buffer = r.scratch + omp_get_thread_num() * r.keys * SUM_COLUMNS;
#pragma omp for schedule(dynamic) nowait
    for (std::int64_t task = 0; task < tasks; ++task)
        recur_columns(r, task / parts / r.heads, task / parts % r.heads, task % parts * SUM_COLUMNS,
                      buffer);
}

void recur(const Recurrence &r) {
#pragma omp parallel num_threads(static_cast<int>(r.threads))
    start_recurrence(r);
}

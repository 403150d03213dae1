// The recurrence of layers with a state, see model/state_layers.py: sums S [keys, values] of each head
// become decay * S + key (x) added, token by token. `added` is the value, or by the delta rule
// beta * (value - key * decay * S). A token's output is query * S.
//
// A thread takes some columns of a head's sums through all tokens of a sequence, in its cache. So the
// order of every sum is the same in any chunk.

constexpr int SUM_VECTORS = 4;
constexpr int SUM_COLUMNS = SUM_VECTORS * LANES;

// Rows of `width` floats from one place to another.
INLINE void copy_rows(const float *from, std::int64_t from_stride, float *to, std::int64_t to_stride,
                      std::int64_t rows, std::int64_t width) {
    for (std::int64_t row = 0; row < rows; ++row)
        __builtin_memcpy(to + row * to_stride, from + row * from_stride,
                         static_cast<std::size_t>(width) * sizeof(float));
}

// `own` [keys, SUM_COLUMNS] are the columns before the token, then behind it.
INLINE void recur_token(const Recurrence &r, std::int64_t row, std::int64_t first, std::int64_t width,
                        float *own) {
    const float *query = r.query + row * r.keys, *key = r.key + row * r.keys;
    const float decay = r.decay[row];
    float columns[SUM_COLUMNS] = {};
    copy_rows(r.value + row * r.values + first, 0, columns, 0, 1, width);
    vfloat added[SUM_VECTORS], out[SUM_VECTORS];
    for (int i = 0; i < SUM_VECTORS; ++i) added[i] = load(columns + i * LANES);
    if (r.beta) {
        vfloat known[SUM_VECTORS] = {};
        for (std::int64_t k = 0; k < r.keys; ++k)
            for (int i = 0; i < SUM_VECTORS; ++i)
                known[i] += load(own + k * SUM_COLUMNS + i * LANES) * key[k];
        for (int i = 0; i < SUM_VECTORS; ++i)
            added[i] = (added[i] - known[i] * decay) * r.beta[row];
    }
    for (int i = 0; i < SUM_VECTORS; ++i) out[i] = vfloat{};
    for (std::int64_t k = 0; k < r.keys; ++k)
        for (int i = 0; i < SUM_VECTORS; ++i) {
            float *at = own + k * SUM_COLUMNS + i * LANES;
            const vfloat sum = load(at) * decay + added[i] * key[k];
            store(at, sum);
            out[i] += sum * query[k];
        }
    for (int i = 0; i < SUM_VECTORS; ++i) store(columns + i * LANES, out[i]);
    copy_rows(columns, 0, r.out + row * r.values + first, 0, 1, width);
}

INLINE void recur_columns(const Recurrence &r, std::int64_t sequence, std::int64_t head,
                          std::int64_t first, float *own) {
    const std::int64_t rest = r.values - first, width = rest < SUM_COLUMNS ? rest : SUM_COLUMNS;
    const std::int64_t head_size = r.keys * r.values, offset = head * head_size + first;
    for (std::int64_t i = 0; i < r.keys * SUM_COLUMNS; ++i) own[i] = 0;
    copy_rows(r.sums + r.slots[sequence] * r.heads * head_size + offset, r.values, own, SUM_COLUMNS,
              r.keys, width);
    const StateWrite *write = r.writes, *end = r.writes + r.written;
    while (write < end && write->sequence < sequence) ++write;
    for (std::int64_t token = 0; token < r.lengths[sequence]; ++token) {
        recur_token(r, (r.starts[sequence] + token) * r.heads + head, first, width, own);
        for (; write < end && write->sequence == sequence && write->token == token; ++write)
            copy_rows(own, SUM_COLUMNS, r.sums + write->slot * r.heads * head_size + offset, r.values,
                      r.keys, width);
    }
}

void recur(const Recurrence &r) {
    const std::int64_t parts = (r.values + SUM_COLUMNS - 1) / SUM_COLUMNS;
    const std::int64_t tasks = r.sequences * r.heads * parts;
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(r.threads)) if (tasks > 1)
    for (std::int64_t task = 0; task < tasks; ++task)
        recur_columns(r, task / parts / r.heads, task / parts % r.heads, task % parts * SUM_COLUMNS,
                      r.scratch + omp_get_thread_num() * r.keys * SUM_COLUMNS);
}

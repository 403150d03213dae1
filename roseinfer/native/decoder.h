// The decoder of common families, a whole step in one call.
//
// One team of threads goes through all layers; a barrier ends each part. Activations are float32
// whatever the weights are. A build with PAIRS rounds them to bfloat16 before a product with such
// weights.

struct Scratch {
    float *hidden, *normal, *qkv, *attended, *inner, *scores;
    bfloat *tiles, *inner_tiles;
    std::int64_t qkv_width, score_stride, size;
    std::int64_t hidden_stride, attended_stride, inner_stride;  // of normal, attended and inner
};

INLINE Scratch layout_scratch(const Model &m, std::int64_t rows, std::int64_t longest,
                              std::int64_t threads, float *at) {
    Scratch s;
    const auto take = [&](std::int64_t count) {
        float *here = at + s.size;
        s.size += (count + 15) / 16 * 16;
        return here;
    };
    s.size = 0;
    s.qkv_width = (m.heads + m.kv_heads) * m.key_dim + m.kv_heads * m.value_dim;
    s.hidden_stride = row_stride(m.hidden);
    s.attended_stride = row_stride(m.heads * m.value_dim);
    s.inner_stride = row_stride(m.inner * (m.gated ? 2 : 1));
    s.score_stride = longest + m.block_size + 2 * PANEL_WIDTH;
    s.hidden = take(rows * m.hidden);
    s.normal = take(rows * s.hidden_stride);
    s.qkv = take(rows * s.qkv_width);
    s.attended = take(rows * s.attended_stride);
    s.inner = take(rows * s.inner_stride);
    s.scores = take(threads * MICRO_ROWS * s.score_stride);
    const std::int64_t attended = m.heads * m.value_dim;
    const std::int64_t widest = attended > m.hidden ? attended : m.hidden;
    const auto take_tiles = [&](std::int64_t inputs) {
        return reinterpret_cast<bfloat *>(take(tiles ? round_up_to_tiles(rows) * inputs / 2 : 0));
    };
    s.tiles = take_tiles(widest);
    s.inner_tiles = take_tiles(m.inner);
    return s;
}

// One weight of a packed matrix.
INLINE float packed_weight(const Matrix &m, std::int64_t output, std::int64_t input) {
    if (is_quantized(m))
        return with_format(m, [&](auto format) { return quantized_weight(format, m, output, input); });
    const std::int64_t panel = output / PANEL_WIDTH * m.inputs * PANEL_WIDTH,
                       column = output % PANEL_WIDTH;
    const std::int64_t pair = panel + (input / 2 * PANEL_WIDTH + column) * 2 + input % 2;
    const std::int64_t alone = panel + input * PANEL_WIDTH + column;
    return m.type == BFLOAT16 ? widen(static_cast<const bfloat *>(m.panels)[pair])
                              : static_cast<const float *>(m.panels)[alone];
}

INLINE void embed(const Model &m, std::int64_t id, std::int64_t position, float *to) {
    for (std::int64_t i = 0; i < m.hidden; ++i) {
        float value;
        if (!m.embedding) {
            value = packed_weight(m.head, id, i);
        } else {
            const std::int64_t at = id * m.hidden + i;
            value = m.embedding_is_bfloat ? widen(static_cast<const bfloat *>(m.embedding)[at])
                                          : static_cast<const float *>(m.embedding)[at];
        }
        to[i] = value * m.embedding_scale +
                (m.positions ? m.positions[position * m.hidden + i] : 0.0f);
    }
}

// The position of `row` in its sequence. The search begins at `sequence`, which becomes the row's.
INLINE std::int64_t position_of(const Step &step, std::int64_t row, std::int64_t &sequence) {
    while (row < step.first[sequence]) --sequence;
    while (row >= step.first[sequence + 1]) ++sequence;
    return step.computed[sequence] + row - step.first[sequence];
}

// Applies norms and rotation to one row of q, k and v, and stores k and v in the cache.
INLINE void rotate_and_store(const Model &m, const Layer &layer, const std::int64_t *table,
                  std::int64_t position, float *qkv) {
    for (std::int64_t h = 0; h < m.heads + m.kv_heads; ++h) {
        float *head = qkv + h * m.key_dim;
        const Norm &norm = h < m.heads ? layer.query : layer.key;
        if (norm.weight) normalize(norm, head, head, m.key_dim, m.epsilon);
        if (layer.cosines)
            rotate(head, layer.cosines + position * (m.rotary / 2),
                   layer.sines + position * (m.rotary / 2), m.rotary);
        if (h < m.heads)
            for (std::int64_t d = 0; d < m.key_dim; ++d) head[d] *= layer.scaling;
    }
    const float *keys = qkv + m.heads * m.key_dim, *values = keys + m.kv_heads * m.key_dim;
    if (m.cache_is_bfloat)
        store_kv<bfloat>(m, layer, table, position, keys, values);
    else
        store_kv<float>(m, layer, table, position, keys, values);
}

// Adds the product to the hidden states, through a norm if the family has one there.
static void add_projection(const Model &m, const Matrix &matrix, const Norm &after,
                           const Input &from, std::int64_t rows, const Scratch &s) {
    if (!after.weight) return matmul(matrix, from, rows, {s.hidden, m.hidden}, Store::Add);
    matmul(matrix, from, rows, {s.normal, s.hidden_stride}, Store::Replace);
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) {
        float *normal = s.normal + row * s.hidden_stride, *hidden = s.hidden + row * m.hidden;
        normalize(after, normal, normal, m.hidden, m.epsilon);
        for (std::int64_t i = 0; i < m.hidden; ++i) hidden[i] += normal[i];
    }
}

// The norm of each row, in the form that products with `next` read.
static void normalize_rows(const Model &m, const Norm &norm, const Matrix &next,
                           const Input &normal, std::int64_t rows, const Scratch &s) {
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) {
        float *to = normal.at + row * normal.stride;
        normalize(norm, s.hidden + row * m.hidden, to, m.hidden, m.epsilon);
        prepare_input(next, normal, row);
    }
}

static void prepare_inputs(const Matrix &next, const Input &from, std::int64_t rows) {
    if (!PAIRS && !is_quantized(next)) return;
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) prepare_input(next, from, row);
}

static void attention_layer(const Model &m, const Layer &layer, const Step &step,
                            const Scratch &s) {
    const Input normal = {s.normal, s.hidden_stride, s.tiles};
    normalize_rows(m, layer.before_attention, layer.qkv, normal, step.rows, s);
    matmul(layer.qkv, normal, step.rows, {s.qkv, s.qkv_width}, Store::Replace);
    std::int64_t sequence = 0;
#pragma omp for
    for (std::int64_t row = 0; row < step.rows; ++row) {
        const std::int64_t position = position_of(step, row, sequence);
        rotate_and_store(m, layer, step.tables + step.table_offsets[sequence], position,
                         s.qkv + row * s.qkv_width);
    }
    attend(m, layer, step, s.qkv, s.qkv_width, s.attended, s.attended_stride,
           s.scores + omp_get_thread_num() * MICRO_ROWS * s.score_stride, s.score_stride);
    const Input attended = {s.attended, s.attended_stride, s.tiles};
    prepare_inputs(layer.output, attended, step.rows);
    add_projection(m, layer.output, layer.after_attention, attended, step.rows, s);
}

static void mlp_layer(const Model &m, const Layer &layer, const Step &step, const Scratch &s) {
    const Input normal = {s.normal, s.hidden_stride, s.tiles};
    const Input inner = {s.inner, s.inner_stride, s.inner_tiles};
    normalize_rows(m, layer.before_mlp, layer.gate_up, normal, step.rows, s);
    if (uses_tiles(layer.gate_up) && uses_tiles(layer.down)) {
        matmul_activated(m, layer.gate_up, normal, step.rows, s.inner_tiles);
    } else {
        matmul(layer.gate_up, normal, step.rows, {s.inner, s.inner_stride}, Store::Replace);
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row) {
            activate_row(m, s.inner + row * s.inner_stride);
            prepare_input(layer.down, inner, row);
        }
    }
    add_projection(m, layer.down, layer.after_mlp, inner, step.rows, s);
}

static void compute_logits(const Model &m, const Step &step, const Scratch &s) {
    const Input normal = {s.normal, s.hidden_stride, s.tiles};
#pragma omp for
    for (std::int64_t i = 0; i < step.logit_rows; ++i) {
        const float *hidden = s.hidden + step.logit_indices[i] * m.hidden;
        normalize(m.last, hidden, normal.at + i * normal.stride, m.hidden, m.epsilon);
        prepare_input(m.head, normal, i);
    }
    const std::int64_t vocabulary = m.head.outputs;
    matmul(m.head, normal, step.logit_rows, {step.logits, vocabulary}, Store::Replace);
    if (m.logit_softcap != 0.0f) {
#pragma omp for
        for (std::int64_t i = 0; i < step.logit_rows; ++i)
            apply_softcap(step.logits + i * vocabulary, vocabulary, m.logit_softcap);
    }
}

static std::int64_t longest_context(const Step &step) {
    std::int64_t longest = 0;
    for (std::int64_t i = 0; i < step.sequences; ++i) {
        const std::int64_t end = step.computed[i] + step.first[i + 1] - step.first[i];
        longest = end > longest ? end : longest;
    }
    return longest;
}

// Floats of scratch that a step of `rows` rows, the longest context `longest`, needs.
std::int64_t scratch(const Model &m, std::int64_t rows, std::int64_t longest,
                     std::int64_t threads) {
    return layout_scratch(m, rows, longest, threads, nullptr).size;
}

void decode(const Model &m, const Step &step) {
    const Scratch s =
        layout_scratch(m, step.rows, longest_context(step), step.threads, step.scratch);
#pragma omp parallel num_threads(static_cast<int>(step.threads))
    {
        std::int64_t sequence = 0;
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row)
            embed(m, step.ids[row], position_of(step, row, sequence), s.hidden + row * m.hidden);
        for (std::int64_t i = 0; i < m.count; ++i) {
            attention_layer(m, m.layers[i], step, s);
            mlp_layer(m, m.layers[i], step, s);
        }
        if (step.logit_rows > 0) compute_logits(m, step, s);
    }
}

void multiply(const Matrix &m, float *a, std::int64_t stride, std::int64_t rows, float *c) {
    const std::int64_t size = uses_tiles(m) ? round_up_to_tiles(rows) * m.inputs : 0;
    bfloat *packed = new bfloat[size];
#pragma omp parallel
    {
        const Input input = {a, stride, packed};
        prepare_inputs(m, input, rows);
        matmul(m, input, rows, {c, m.outputs}, Store::Replace);
    }
    delete[] packed;
}

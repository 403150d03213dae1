// The decoder of common families, a whole step in one call.
//
// One team of threads goes through all layers; a barrier ends each part. Activations are float32
// whatever the weights are. A build with PAIRS rounds them to bfloat16 before a product with such
// weights.

struct Scratch {
    float *hidden, *normal, *qkv, *attended, *inner, *scores, *own;
    float *packed, *inner_packed, *own_packed, *experts;
    float *mixed, *sums;  // of layers with a state
    float *before;  // hidden states before attention, which MLPs read; `hidden` unless they do so
    std::int64_t qkv_width, score_stride, own_width, mixed_stride, size;
    std::int64_t hidden_stride, attended_stride, inner_stride;  // of normal, attended and inner
};

// So few rows each thread prepares for itself: while one did it for all, the others would wait.
constexpr std::int64_t OWN_ROWS = 2;

// Whether each thread prepares the rows of products with `next` itself, and where.
INLINE bool prepares_own(const Matrix &next, std::int64_t rows) {
    return rows <= OWN_ROWS && !uses_tiles(next);
}

INLINE Input own_input(const Scratch &s, std::int64_t rows) {
    const std::int64_t offset = omp_get_thread_num() * OWN_ROWS * s.own_width;
    return {s.own + offset, s.own_width, rows, s.own_packed + offset};
}

// The most that `count` says of a layer's mixer; of a model without any 0.
template <class Count>
static std::int64_t most_of_mixers(const Model &m, Count count) {
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (m.layers[i].mixer) most = std::max(most, count(*m.layers[i].mixer));
    return most;
}

INLINE Scratch layout_scratch(const Model &m, std::int64_t rows, std::int64_t longest,
                              std::int64_t threads, float *at) {
    Bump bump = {at, 0};
    Scratch s;
    s.qkv_width = std::max(keys_at(m) + m.kv_heads * (m.key_dim + m.value_dim),
                           most_of_mixers(m, projected_width));
    const std::int64_t attended =
        std::max(m.heads * m.value_dim, most_of_mixers(m, outputs_of));
    s.hidden_stride = row_stride(m.hidden);
    s.attended_stride = row_stride(attended);
    s.mixed_stride = row_stride(most_of_mixers(m, mixed_width));
    s.inner_stride = row_stride(m.inner * (m.gated ? 2 : 1));
    s.score_stride = row_stride(longest + m.block_size + 2 * PANEL_WIDTH);
    s.hidden = bump.take(rows * m.hidden);
    s.normal = bump.take(rows * s.hidden_stride);
    s.qkv = bump.take(rows * s.qkv_width);
    s.attended = bump.take(rows * s.attended_stride);
    s.inner = bump.take(rows * s.inner_stride);
    s.scores = bump.take(threads * query_rows(m) * s.score_stride);
    const std::int64_t widest = attended > m.hidden ? attended : m.hidden;
    s.own_width = round_up(m.inner > widest ? m.inner : widest);
    s.own = bump.take(threads * OWN_ROWS * s.own_width);
    s.own_packed = bump.take(threads * OWN_ROWS * s.own_width);
    s.packed = bump.take(packed_floats(rows, widest));
    s.inner_packed = bump.take(packed_floats(rows, m.inner));
    s.experts = bump.take(expert_floats(m, rows));
    const std::int64_t keys = most_of_mixers(m, [](const Mixer &x) { return x.keys; });
    s.mixed = bump.take(keys ? rows * s.mixed_stride : 0);
    s.sums = bump.take(threads * keys * SUM_COLUMNS);
    s.before = m.parallel ? bump.take(rows * m.hidden) : s.hidden;
    s.size = bump.used;
    return s;
}

// The weights of one output of a packed matrix.
static void unpack_row(const Matrix &m, std::int64_t output, float *to) {
    if (is_quantized(m))
        return with_format(m, [&](auto format) { unpack_quantized_row(format, m, output, to); });
    const std::int64_t panel = output / PANEL_WIDTH * m.inputs * PANEL_WIDTH,
                       column = output % PANEL_WIDTH;
    for (std::int64_t i = 0; i < m.inputs; ++i) {
        const std::int64_t pair = panel + (i / 2 * PANEL_WIDTH + column) * 2 + i % 2;
        const std::int64_t alone = panel + i * PANEL_WIDTH + column;
        to[i] = m.type == BFLOAT16 ? widen(static_cast<const bfloat *>(m.panels)[pair])
                                   : static_cast<const float *>(m.panels)[alone];
    }
}

INLINE void embed(const Model &m, std::int64_t id, std::int64_t position, float *to) {
    const std::int64_t row = id * m.hidden;
    if (!m.embedding)
        unpack_row(m.head, id, to);
    else
        for (std::int64_t i = 0; i < m.hidden; ++i)
            to[i] = m.embedding_is_bfloat ? widen(static_cast<const bfloat *>(m.embedding)[row + i])
                                          : static_cast<const float *>(m.embedding)[row + i];
    for (std::int64_t i = 0; i < m.hidden; ++i)
        to[i] = to[i] * m.embedding_scale +
                (m.positions ? m.positions[position * m.hidden + i] : 0.0f);
}

// The position of `row` in its sequence. The search begins at `sequence`, which becomes the row's.
INLINE std::int64_t position_of(const Step &step, std::int64_t row, std::int64_t &sequence) {
    sequence = sequence_of(step, row, sequence);
    return step.computed[sequence] + row - step.first[sequence];
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

// All rows: by this thread where each thread has `own` inputs, else the threads divide them.
template <class Prepare>
static void each_row(bool own, std::int64_t rows, Prepare prepare) {
    if (own) {
        for (std::int64_t row = 0; row < rows; ++row) prepare(row);
    } else {
#pragma omp for
        for (std::int64_t row = 0; row < rows; ++row) prepare(row);
    }
}

// The norms of `hidden` [rows, m.hidden], in the form that products with `next` read.
static Input normalize_rows(const Model &m, const Norm &norm, const Matrix &next, const float *hidden,
                            std::int64_t rows, const Scratch &s) {
    const bool own = prepares_own(next, rows);
    const Input normal =
        own ? own_input(s, rows) : Input{s.normal, s.hidden_stride, rows, s.packed};
    const auto prepare = [&](std::int64_t row) {
        normalize(norm, hidden + row * m.hidden, normal.at + row * normal.stride, m.hidden,
                  m.epsilon);
        prepare_input(next, normal, row);
    };
    each_row(own, rows, prepare);
    return normal;
}

static void prepare_inputs(const Matrix &next, const Input &from, std::int64_t rows) {
    if (!PAIRS && !is_quantized(next)) return;
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) prepare_input(next, from, row);
}

// What attention or a mixer made, in the form that products with `next` read.
static Input prepare_attended(const Matrix &next, std::int64_t rows, const Scratch &s) {
    const Input attended = {s.attended, s.attended_stride, rows, s.packed};
    if (!prepares_own(next, rows)) {
        prepare_inputs(next, attended, rows);
        return attended;
    }
    const Input own = own_input(s, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
        __builtin_memcpy(own.at + row * own.stride, s.attended + row * s.attended_stride,
                         next.inputs * sizeof(float));
        prepare_input(next, own, row);
    }
    return own;
}

// Only rows with logits go on: brings their hidden states, and what attention made for `next`, if
// anything, to the front.
static void keep_logit_rows(const Model &m, const Matrix &next, const Step &step, const Scratch &s) {
    const std::size_t hidden = m.hidden * sizeof(float), attended = next.inputs * sizeof(float);
#pragma omp single
    for (std::int64_t i = 0; i < step.logit_rows; ++i) {
        const std::int64_t row = step.logit_indices[i];  // they ascend: none is overwritten unread
        if (row == i) continue;
        __builtin_memcpy(s.hidden + i * m.hidden, s.hidden + row * m.hidden, hidden);
        if (m.parallel)
            __builtin_memcpy(s.before + i * m.hidden, s.before + row * m.hidden, hidden);
        __builtin_memcpy(s.attended + i * s.attended_stride, s.attended + row * s.attended_stride,
                         attended);
    }
}

// Attention of every query of the step, in the form that products with `layer.output` read. `rows` of
// them go on: all, or in the last layer those with logits.
static Input attend(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                    const Scratch &s) {
    float *scores = s.scores + omp_get_thread_num() * query_rows(m) * s.score_stride;
    const Input attended = {s.attended, s.attended_stride, step.rows, s.packed};
    const AttentionBuffers buffers = {s.qkv, s.qkv_width, attended, scores, s.score_stride};
    if (rows == step.rows && threads_take_sequences(m, step)) {
        attend_sequences(m, layer, step, layer.output, buffers);
        return attended;
    }
    attend_tiles(m, layer, step, buffers);
    if (rows < step.rows) keep_logit_rows(m, layer.output, step, s);
    return prepare_attended(layer.output, rows, s);
}

static void attention_layer(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                            const Scratch &s) {
    if (m.parallel)
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row)
            __builtin_memcpy(s.before + row * m.hidden, s.hidden + row * m.hidden,
                             m.hidden * sizeof(float));
    const Input normal = normalize_rows(m, layer.before_attention, layer.qkv, s.hidden, step.rows, s);
    matmul(layer.qkv, normal, step.rows, {s.qkv, s.qkv_width}, Store::Replace);
    if (m.norms_rows) normalize_rows_of_heads(m, layer, step.rows, s.qkv, s.qkv_width);
    if (!tiles_are_heads(m, step)) {
        std::int64_t sequence = 0;
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row) {
            const std::int64_t position = position_of(step, row, sequence);
            const std::int64_t *table = step.tables + step.table_offsets[sequence];
            for (std::int64_t head = 0; head < m.kv_heads; ++head)
                rotate_and_store(m, layer, table, position, head, s.qkv + row * s.qkv_width);
        }
    }
    const Input attended = attend(m, layer, step, rows, s);
    if (rows > 0) add_projection(m, layer.output, layer.after_attention, attended, rows, s);
}

static void state_layer(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                        const Scratch &s) {
    const Mixer &x = *layer.mixer;
    const Input normal = normalize_rows(m, layer.before_attention, x.input, s.hidden, step.rows, s);
    matmul(x.input, normal, step.rows, {s.qkv, s.qkv_width}, Store::Replace);
    const MixingBuffers buffers = {s.qkv,      s.qkv_width,       s.mixed, s.mixed_stride,
                                   s.attended, s.attended_stride, s.sums};
    if (m.cache_is_bfloat)
        mix<bfloat>(x, step, buffers);
    else
        mix<float>(x, step, buffers);
    if (rows < step.rows) keep_logit_rows(m, x.output, step, s);
    if (rows > 0)
        add_projection(m, x.output, layer.after_attention, prepare_attended(x.output, rows, s), rows, s);
}

// The activation of what `gate_up` made, in the form that products with `down` read.
static Input activate_rows(const Model &m, const Layer &layer, std::int64_t rows,
                           const Scratch &s) {
    const bool own = prepares_own(layer.down, rows);
    const Input inner =
        own ? own_input(s, rows) : Input{s.inner, s.inner_stride, rows, s.inner_packed};
    const auto prepare = [&](std::int64_t row) {
        activate_row(m, layer.down.inputs, s.inner + row * s.inner_stride, inner.at + row * inner.stride);
        prepare_input(layer.down, inner, row);
    };
    each_row(own, rows, prepare);
    return inner;
}

// `route` has the experts to take of all rows, or is null.
static void experts_layer(const Model &m, const Layer &layer, std::int64_t rows,
                          const std::int32_t *route, std::int64_t *agreed, const Scratch &s) {
    for (std::int64_t row = 0; row < rows; row += EXPERT_ROWS) {
        const std::int32_t *own = route ? route + row * layer.experts->chosen : nullptr;
        const ExpertRows part = {s.hidden + row * m.hidden, {s.normal, s.hidden_stride},
                                 std::min(rows - row, EXPERT_ROWS), own, agreed};
        compute_experts(m, layer, part, s.experts);
    }
}

static void mlp_layer(const Model &m, const Layer &layer, std::int64_t rows, const Scratch &s) {
    const Input normal = normalize_rows(m, layer.before_mlp, layer.gate_up, s.before, rows, s);
    Input inner = {s.inner, s.inner_stride, rows, s.inner_packed};
    if (stays_on_tiles(layer.gate_up, layer.down, rows)) {
        start_matmul_activated(m, layer.gate_up, normal, rows, inner.packed);
#pragma omp barrier
    } else {
        matmul(layer.gate_up, normal, rows, {s.inner, s.inner_stride}, Store::Replace);
        inner = activate_rows(m, layer, rows, s);
    }
    add_projection(m, layer.down, layer.after_mlp, inner, rows, s);
}

static void compute_logits(const Model &m, const Step &step, const Scratch &s) {
    const Input normal = normalize_rows(m, m.last, m.head, s.hidden, step.logit_rows, s);
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
    Placement placement(static_cast<int>(step.threads));
#pragma omp parallel num_threads(static_cast<int>(step.threads))
    {
        std::int64_t sequence = 0;
        const std::int32_t *route = step.routes;
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row)
            embed(m, step.ids[row], position_of(step, row, sequence), s.hidden + row * m.hidden);
        for (std::int64_t i = 0; i < m.count; ++i) {
            placement.settle(omp_get_thread_num());
            const std::int64_t rows = i + 1 < m.count ? step.rows : step.logit_rows;
            if (m.layers[i].mixer)
                state_layer(m, m.layers[i], step, rows, s);
            else if (m.layers[i].qkv.panels)
                attention_layer(m, m.layers[i], step, rows, s);
            else if (rows < step.rows)
                keep_logit_rows(m, m.layers[i].output, step, s);
            if (rows == 0 || !m.layers[i].down.panels) continue;
            const Experts *experts = m.layers[i].experts;
            if (experts)
                experts_layer(m, m.layers[i], rows, route, step.agreed, s);
            else
                mlp_layer(m, m.layers[i], rows, s);
            if (experts && route) route += rows * experts->chosen;
        }
        if (step.logit_rows > 0) compute_logits(m, step, s);
    }
}

void prepare(const Matrix &m, float *a, std::int64_t stride, std::int64_t rows, float *packed) {
#pragma omp parallel
    prepare_inputs(m, {a, stride, rows, packed}, rows);
}

void multiply(const Matrix &m, float *a, std::int64_t stride, std::int64_t rows, float *packed,
              float *c) {
#pragma omp parallel
    matmul(m, {a, stride, rows, packed}, rows, {c, m.outputs}, Store::Replace);
}

// Scratch memory of a step, and what brings rows in it to the form that products read.

struct Scratch {
    float *hidden, *normal, *qkv, *attended, *inner, *scores, *own;
    float *packed, *inner_packed, *own_packed, *experts;
    float *mixed, *sums;  // of layers with a state
    float *latents, *by_head, *by_head_packed;  // of layers with latents, see latents.h
    float *before;  // hidden states before attention, where another branch reads them too
    float *inputs, *dense;  // of layers: their own, and what MLPs beside experts make
    float *both;  // the halves of DraftInputs
    // Of the kept rows: see `kept_alone`.
    std::int64_t *rest_first, *rest_computed, *rest_tables;
    std::int64_t inputs_stride, both_stride;
    std::int64_t qkv_width, score_stride, own_width, mixed_stride, size;
    std::int64_t hidden_stride, attended_stride, inner_stride;  // of normal, attended and inner
    std::int64_t latents_stride, by_head_stride, by_head_packed_step;
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

// Whether attention of the layer has a mixer beside it.
INLINE bool attends_and_mixes(const Layer &layer) { return layer.mixer && layer.qkv.panels; }

// Whether what it reads is read by another branch, behind it.
INLINE bool keeps_before(const Model &m, const Layer &layer) {
    return m.parallel || attends_and_mixes(layer);
}

// The most that `count` says of a layer that attends; of a model without any 0.
template <class Count>
static std::int64_t most_of_attention(const Model &m, Count count) {
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (m.layers[i].qkv.panels) most = std::max(most, count(m.layers[i]));
    return most;
}

// The most that `count` says of a layer's mixer; of a model without any 0.
template <class Count>
static std::int64_t most_of_mixers(const Model &m, Count count) {
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (m.layers[i].mixer) most = std::max(most, count(*m.layers[i].mixer));
    return most;
}

// The most that `count` says of a layer with a latent; of a model without any 0.
template <class Count>
static std::int64_t most_of_latents(const Model &m, Count count) {
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (m.layers[i].latent) most = std::max(most, count(m.layers[i], *m.layers[i].latent));
    return most;
}

INLINE Scratch layout_scratch(const Model &m, std::int64_t rows, std::int64_t longest,
                              std::int64_t threads, float *at) {
    Bump bump = {at, 0};
    Scratch s;
    s.qkv_width = std::max(most_of_attention(m,
                                             [&](const Layer &layer) {
                                                 const std::int64_t kv = layer.key_dim + layer.value_dim;
                                                 return keys_at(m, layer) + layer.kv_heads * kv;
                                             }),
                           most_of_mixers(m, projected_width));
    const std::int64_t attended = std::max(
        most_of_attention(m, [](const Layer &layer) { return layer.heads * layer.value_dim; }),
        most_of_mixers(m, outputs_of));
    const std::int64_t query_inputs =
        most_of_latents(m, [](const Layer &, const Latent &x) { return x.query.inputs; });
    s.hidden_stride = row_stride(std::max(m.hidden, query_inputs));
    s.attended_stride = row_stride(attended);
    s.mixed_stride = row_stride(most_of_mixers(m, mixed_width));
    s.inner_stride = row_stride(m.inner * (m.gated ? 2 : 1));
    s.score_stride = row_stride(longest + m.block_size + 2 * PANEL_WIDTH);
    s.hidden = bump.take(rows * m.hidden);
    s.normal = bump.take(rows * s.hidden_stride);
    s.qkv = bump.take(rows * s.qkv_width);
    s.attended = bump.take(rows * s.attended_stride);
    s.inner = bump.take(rows * s.inner_stride);
    s.scores = bump.take(
        threads * s.score_stride *
        most_of_attention(m, [&](const Layer &layer) { return query_rows(m, layer); }));
    const std::int64_t widest = std::max({
        attended, m.hidden, query_inputs, m.drafts ? m.drafts->projection.inputs : 0,
        most_of_latents(m, [](const Layer &layer, const Latent &) { return layer.output.inputs; }),
    });
    s.own_width = round_up(m.inner > widest ? m.inner : widest);
    s.own = bump.take(threads * OWN_ROWS * s.own_width);
    s.own_packed = bump.take(threads * OWN_ROWS * s.own_width);
    s.packed = bump.take(packed_floats(rows, widest));
    s.inner_packed = bump.take(packed_floats(rows, m.inner));
    s.experts = bump.take(expert_floats(m, rows));
    const std::int64_t keys = most_of_mixers(m, [](const Mixer &x) { return x.keys; });
    s.mixed = bump.take(keys ? rows * s.mixed_stride : 0);
    s.sums = bump.take(threads * keys * SUM_COLUMNS);
    s.latents_stride = row_stride(
        most_of_latents(m, [](const Layer &layer, const Latent &) { return layer.qkv.outputs; }));
    s.by_head_stride = row_stride(most_of_latents(m, [](const Layer &, const Latent &x) {
        return std::max(x.query.outputs, x.values.outputs);
    }));
    s.by_head_packed_step = most_of_latents(m, [&](const Layer &, const Latent &x) {
        return part_packed_floats(rows, std::max(x.keys.inputs, x.values.inputs));
    });
    s.latents = bump.take(m.has_latents ? rows * s.latents_stride : 0);
    s.by_head = bump.take(m.has_latents ? rows * s.by_head_stride : 0);
    s.by_head_packed = bump.take(
        most_of_latents(m, [](const Layer &layer, const Latent &) { return layer.heads; }) *
        s.by_head_packed_step);
    bool keeps = false, is_beside = false, shares = false;
    for (std::int64_t i = 0; i < m.count; ++i) {
        keeps |= keeps_before(m, m.layers[i]);
        is_beside |= m.layers[i].dense != nullptr;
        shares |= m.layers[i].shares_kv != 0;
    }
    s.before = bump.take(keeps ? rows * m.hidden : 0);
    s.inputs_stride = row_stride(m.inputs ? m.inputs->projection.outputs : 0);
    s.inputs = bump.take(m.inputs ? rows * s.inputs_stride : 0);
    s.dense = bump.take(is_beside ? rows * m.hidden : 0);
    s.both_stride = row_stride(2 * m.hidden);
    s.both = bump.take(m.drafts ? rows * s.both_stride : 0);
    for (std::int64_t **array : {&s.rest_first, &s.rest_computed, &s.rest_tables})
        *array = bump.take_as<std::int64_t>(shares ? rows + 1 : 0);
    s.size = bump.used;
    return s;
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

// The norms of what `next` has as inputs, in the form that products with it read.
static Input normalize_rows(const Norm &norm, float epsilon, const Matrix &next, Rows from,
                            std::int64_t rows, const Scratch &s) {
    const bool own = prepares_own(next, rows);
    const Input normal =
        own ? own_input(s, rows) : Input{s.normal, s.hidden_stride, rows, s.packed};
    const auto prepare = [&](std::int64_t row) {
        normalize(norm, from.at + row * from.stride, normal.at + row * normal.stride, next.inputs,
                  epsilon);
        prepare_input(next, normal, row);
    };
    each_row(own, rows, prepare);
    return normal;
}

// Of hidden states [rows, m.hidden].
static Input normalize_rows(const Model &m, const Norm &norm, const Matrix &next, float *hidden,
                            std::int64_t rows, const Scratch &s) {
    return normalize_rows(norm, m.epsilon, next, {hidden, m.hidden}, rows, s);
}

static void prepare_inputs(const Matrix &next, const Input &from, std::int64_t rows) {
    if (!PAIRS && !is_quantized(next)) return;
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) prepare_input(next, from, row);
}

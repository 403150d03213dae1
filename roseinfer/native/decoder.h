// The decoder of common families, a whole step in one call.
//
// One team of threads goes through all layers; a barrier ends each part. Activations are float32
// whatever the weights are. A build with PAIRS rounds them to bfloat16 before a product with such
// weights.

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

// How a branch's product is added to the hidden states: through a norm if the family has one there,
// times `scale`. The sum is multiplied, too. With `norms_sums` the norm is of the sum alone.
struct Addition {
    const Norm &after;
    float scale, sum_scale;
};

static void add_projection(const Model &m, const Matrix &matrix, const Addition &addition,
                           const Input &from, std::int64_t rows, const Scratch &s) {
    const Norm &after = addition.after;
    const float scale = addition.scale, sum_scale = addition.sum_scale;
    if (m.norms_sums || (!after.weight && scale == 1.0f && sum_scale == 1.0f)) {
        matmul(matrix, from, rows, {s.hidden, m.hidden}, Store::Add);
        if (!m.norms_sums) return;
#pragma omp for
        for (std::int64_t row = 0; row < rows; ++row) {
            float *hidden = s.hidden + row * m.hidden;
            normalize(after, hidden, hidden, m.hidden, m.epsilon);
        }
        return;
    }
    matmul(matrix, from, rows, {s.normal, s.hidden_stride}, Store::Replace);
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row) {
        float *normal = s.normal + row * s.hidden_stride, *hidden = s.hidden + row * m.hidden;
        normalize(after, normal, normal, m.hidden, m.epsilon);
        for (std::int64_t i = 0; i < m.hidden; ++i)
            hidden[i] = (hidden[i] + scale * normal[i]) * sum_scale;
    }
}

// What attention or a mixer made, in the form that products with `next` read.
static Input prepare_attended(const Matrix &next, Rows from, std::int64_t rows, const Scratch &s) {
    const Input attended = {from.at, from.stride, rows, s.packed};
    if (!prepares_own(next, rows)) {
        prepare_inputs(next, attended, rows);
        return attended;
    }
    const Input own = own_input(s, rows);
    for (std::int64_t row = 0; row < rows; ++row) {
        __builtin_memcpy(own.at + row * own.stride, from.at + row * from.stride,
                         next.inputs * sizeof(float));
        prepare_input(next, own, row);
    }
    return own;
}

// Only kept rows go on: brings their hidden states, and the `count` values that attention made,
// to the front.
static void keep_rows(const Model &m, std::int64_t count, const Step &step, const Scratch &s) {
    const std::size_t hidden = m.hidden * sizeof(float), attended = count * sizeof(float);
#pragma omp single
    for (std::int64_t i = 0; i < step.kept_rows; ++i) {
        const std::int64_t row = step.kept[i];  // they ascend: none is overwritten unread
        if (row == i) continue;
        __builtin_memcpy(s.hidden + i * m.hidden, s.hidden + row * m.hidden, hidden);
        if (m.parallel)
            __builtin_memcpy(s.before + i * m.hidden, s.before + row * m.hidden, hidden);
        __builtin_memcpy(s.attended + i * s.attended_stride, s.attended + row * s.attended_stride,
                         attended);
    }
}

// Attention of every query of the step, in the form that products with `layer.output` read. `rows` of
// them go on: all, or in the last layer those that are kept.
static Input attend(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                    const Scratch &s) {
    float *scores = s.scores + omp_get_thread_num() * query_rows(m, layer) * s.score_stride;
    const Input attended = {s.attended, s.attended_stride, step.rows, s.packed};
    const AttentionBuffers buffers = {s.qkv, s.qkv_width, attended, scores, s.score_stride};
    if (rows == step.rows && threads_take_sequences(m, layer, step)) {
        attend_sequences(m, layer, step, layer.output, buffers);
        return attended;
    }
    attend_tiles(m, layer, step, buffers);
    if (rows < step.rows) keep_rows(m, layer.heads * layer.value_dim, step, s);
    const Rows made = layer.latent && rows > 0 ? expand_attended(layer, rows, s)
                                               : Rows{s.attended, s.attended_stride};
    return prepare_attended(layer.output, made, rows, s);
}

static void attention_layer(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                            const Scratch &s) {
    const Input normal =
        normalize_rows(m, layer.before_attention, layer.qkv,
                       keeps_before(m, layer) ? s.before : s.hidden, step.rows, s);
    if (layer.latent)
        absorb_queries(m, layer, step, normal, s);
    else
        matmul(layer.qkv, normal, step.rows, {s.qkv, s.qkv_width}, Store::Replace);
    if (m.norms_rows) normalize_rows_of_heads(m, layer, step.rows, s.qkv, s.qkv_width);
    if (!layer.latent && !tiles_are_heads(m, layer, step)) {
        std::int64_t sequence = 0;
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row) {
            const std::int64_t position = position_of(step, row, sequence);
            const std::int64_t *table = step.tables + step.table_offsets[sequence];
            for (std::int64_t head = 0; head < layer.kv_heads; ++head)
                rotate_and_store(m, layer, table, position, head, s.qkv + row * s.qkv_width);
        }
    }
    const Input attended = attend(m, layer, step, rows, s);
    if (rows > 0)
        add_projection(m, layer.output, {layer.after_attention, layer.attention_scale, 1.0f},
                       attended, rows, s);
}

static void state_layer(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                        const Scratch &s) {
    const Mixer &x = *layer.mixer;
    const Input normal = normalize_rows(m, layer.before_attention, x.input, s.hidden, step.rows, s);
    matmul(x.input, normal, step.rows, {s.qkv, s.qkv_width}, Store::Replace);
    if (x.multipliers)
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row) {
            float *projected = s.qkv + row * s.qkv_width;
            for (std::int64_t i = 0; i < projected_width(x); ++i) projected[i] *= x.multipliers[i];
        }
    const MixingBuffers buffers = {s.qkv,      s.qkv_width,       s.mixed, s.mixed_stride,
                                   s.attended, s.attended_stride, s.sums};
    if (m.cache_is_bfloat)
        mix<bfloat>(x, step, buffers);
    else
        mix<float>(x, step, buffers);
    if (rows < step.rows) keep_rows(m, x.output.inputs, step, s);
    if (rows > 0)
        add_projection(
            m, x.output, {layer.after_attention, layer.mixer_scale, 1.0f},
            prepare_attended(x.output, {s.attended, s.attended_stride}, rows, s), rows, s);
}

// What a layer does across tokens. Only `rows` go on.
static void mix_tokens(const Model &m, const Layer &layer, const Step &step, std::int64_t rows,
                       const Scratch &s) {
    if (keeps_before(m, layer))
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row)
            __builtin_memcpy(s.before + row * m.hidden, s.hidden + row * m.hidden,
                             m.hidden * sizeof(float));
    // Attention behind a mixer reads all rows once more.
    const std::int64_t mixed = attends_and_mixes(layer) ? step.rows : rows;
    if (layer.mixer) state_layer(m, layer, step, mixed, s);
    if (layer.qkv.panels) attention_layer(m, layer, step, mixed, s);
    if (rows < step.rows && (attends_and_mixes(layer) || (!layer.mixer && !layer.qkv.panels)))
        keep_rows(m, 0, step, s);
}

// The activation of what `gate_up` made, in the form that products with `down` read.
static Input activate_rows(const Model &m, const Matrix &down, std::int64_t rows, const Scratch &s) {
    const bool own = prepares_own(down, rows);
    const Input inner =
        own ? own_input(s, rows) : Input{s.inner, s.inner_stride, rows, s.inner_packed};
    const auto prepare = [&](std::int64_t row) {
        activate_row(m, down.inputs, s.inner + row * s.inner_stride, inner.at + row * inner.stride);
        prepare_input(down, inner, row);
    };
    each_row(own, rows, prepare);
    return inner;
}

// `route` has the experts to take of all rows, or is null.
static void experts_layer(const Model &m, const Layer &layer, std::int64_t rows,
                          const std::int32_t *route, std::int64_t *agreed, const Scratch &s) {
    for (std::int64_t row = 0; row < rows; row += EXPERT_ROWS) {
        const std::int32_t *own = route ? route + row * layer.experts->chosen : nullptr;
        const ExpertRows part = {s.hidden + row * m.hidden, s.dense + row * m.hidden,
                                 {s.normal, s.hidden_stride}, std::min(rows - row, EXPERT_ROWS),
                                 own, agreed};
        compute_experts(m, layer, part, s.experts);
    }
}

// What an MLP makes before `down`, in the form that products with that read.
static Input compute_inner(const Model &m, const Norm &before, const Matrix &gate_up,
                           const Matrix &down, std::int64_t rows, const Scratch &s) {
    const Input normal =
        normalize_rows(m, before, gate_up, m.parallel ? s.before : s.hidden, rows, s);
    if (stays_on_tiles(gate_up, down, rows)) {
        const Input inner = {s.inner, s.inner_stride, rows, s.inner_packed};
        start_matmul_activated(m, gate_up, normal, rows, inner.packed);
#pragma omp barrier
        return inner;
    }
    matmul(gate_up, normal, rows, {s.inner, s.inner_stride}, Store::Replace);
    return activate_rows(m, down, rows, s);
}

static void mlp_layer(const Model &m, const Layer &layer, std::int64_t rows, const Scratch &s) {
    const Input inner = compute_inner(m, layer.before_mlp, layer.gate_up, layer.down, rows, s);
    add_projection(m, layer.down, {layer.after_mlp, layer.mlp_scale, scale_behind_mlp(layer)}, inner,
                   rows, s);
}

// The MLP beside experts, whose sum both become: see `add_places`.
static void dense_layer(const Model &m, const DenseMlp &dense, std::int64_t rows, const Scratch &s) {
    const Input inner = compute_inner(m, dense.before, dense.gate_up, dense.down, rows, s);
    matmul(dense.down, inner, rows, {s.dense, m.hidden}, Store::Replace);
#pragma omp for
    for (std::int64_t row = 0; row < rows; ++row)
        normalize(dense.after, s.dense + row * m.hidden, s.dense + row * m.hidden, m.hidden,
                  m.epsilon);
}

// The inputs of all layers for every row of the step, of the hidden states that are still embeddings.
static void compute_inputs(const Model &m, const Step &step, const Scratch &s) {
    const LayerInputs &x = *m.inputs;
    const std::int64_t all = x.projection.outputs;
    const Input embedded = normalize_rows(m, Norm{}, x.projection, s.hidden, step.rows, s);
    matmul(x.projection, embedded, step.rows, {s.inputs, s.inputs_stride}, Store::Replace);
#pragma omp for
    for (std::int64_t row = 0; row < step.rows; ++row) {
        float *inputs = s.inputs + row * s.inputs_stride;
        const std::int64_t first = step.ids[row] * all;
        for (std::int64_t i = 0; i < all; ++i) inputs[i] *= x.projection_scale;
        for (std::int64_t at = 0; at < all; at += x.width)
            normalize(x.norm, inputs + at, inputs + at, x.width, m.epsilon);
        for (std::int64_t i = 0; i < all; ++i) {
            const float own = m.embedding_is_bfloat
                                  ? widen(static_cast<const bfloat *>(x.embedding)[first + i])
                                  : static_cast<const float *>(x.embedding)[first + i];
            inputs[i] = (inputs[i] + own * x.embedding_scale) * x.scale;
        }
    }
}

// Adds what layer `number` makes of its own inputs, which hidden states gate. `origins` are the rows
// of the step that the rows were, or null: the same.
static void input_layer(const Model &m, const Layer &layer, std::int64_t number,
                        const std::int64_t *origins, std::int64_t rows, const Scratch &s) {
    const std::int64_t width = m.inputs->width;
    const Input from = normalize_rows(m, Norm{}, layer.input_gate, s.hidden, rows, s);
    matmul(layer.input_gate, from, rows, {s.inner, s.inner_stride}, Store::Replace);
    const bool own = prepares_own(layer.input_output, rows);
    const Input gated =
        own ? own_input(s, rows) : Input{s.inner, s.inner_stride, rows, s.inner_packed};
    each_row(own, rows, [&](std::int64_t row) {
        const std::int64_t origin = origins ? origins[row] : row;
        const float *gates = s.inner + row * s.inner_stride,
                    *inputs = s.inputs + origin * s.inputs_stride + number * width;
        float *to = gated.at + row * gated.stride;
        std::int64_t i = 0;
        for (; i + LANES <= width; i += LANES)
            store(to + i, activation(load(gates + i), m.activation) * load(inputs + i));
        for (; i < width; ++i) to[i] = activation(broadcast(gates[i]), m.activation)[0] * inputs[i];
        prepare_input(layer.input_output, gated, row);
    });
    add_projection(m, layer.input_output, {layer.after_input, 1.0f, layer.scale}, gated, rows, s);
}

// What a model begins with that drafts: of embeddings, which lie in `s.normal`.
static void compute_draft_inputs(const Model &m, const Step &step, const Scratch &s) {
    const DraftInputs &x = *m.drafts;
    const bool own = prepares_own(x.projection, step.rows);
    const Input both = own ? own_input(s, step.rows) : Input{s.both, s.both_stride, step.rows, s.packed};
    each_row(own, step.rows, [&](std::int64_t row) {
        float *to = both.at + row * both.stride;
        normalize(x.embedding, s.normal + row * s.hidden_stride, to, m.hidden, m.epsilon);
        normalize(x.hidden, step.before + row * m.hidden, to + m.hidden, m.hidden, m.epsilon);
        prepare_input(x.projection, both, row);
    });
    matmul(x.projection, both, step.rows, {s.hidden, m.hidden}, Store::Replace);
}

// What the head would read of all kept rows; then those with logits come to the front.
static void give_hidden(const Model &m, const Step &step, const Scratch &s) {
#pragma omp for
    for (std::int64_t row = 0; row < step.kept_rows; ++row)
        normalize(m.last, s.hidden + row * m.hidden, step.hidden + row * m.hidden, m.hidden,
                  m.epsilon);
    if (!step.logit_indices) return;
#pragma omp single
    for (std::int64_t i = 0; i < step.logit_rows; ++i)
        if (const std::int64_t row = step.logit_indices[i]; row != i)
            __builtin_memcpy(s.hidden + i * m.hidden, s.hidden + row * m.hidden,
                             m.hidden * sizeof(float));
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

// The last layer that has to do with all rows of a step: those behind it attend to keys and values
// that others have stored.
INLINE std::int64_t last_of_all_rows(const Model &m) {
    std::int64_t last = m.count - 1;
    while (last > 0 && m.layers[last].shares_kv) --last;
    return last;
}

// A step of the kept rows alone, for layers that store nothing: rows one after the other are a
// sequence of it.
static Step kept_alone(const Step &step, const Scratch &s) {
    std::int64_t sequence = 0, count = 0;
    for (std::int64_t i = 0; i < step.kept_rows; ++i) {
        const std::int64_t row = step.kept[i], before = sequence;
        const std::int64_t position = position_of(step, row, sequence);
        if (i > 0 && sequence == before && row == step.kept[i - 1] + 1) continue;
        s.rest_first[count] = i, s.rest_computed[count] = position;
        s.rest_tables[count++] = step.table_offsets[sequence];
    }
    s.rest_first[count] = step.kept_rows;
    Step rest = step;
    rest.first = s.rest_first, rest.computed = s.rest_computed, rest.table_offsets = s.rest_tables;
    rest.rows = step.kept_rows, rest.sequences = count;
    return rest;
}

void decode(const Model &m, const Step &step) {
    const Scratch s =
        layout_scratch(m, step.rows, longest_context(step), step.threads, step.scratch);
    const std::int64_t last = last_of_all_rows(m);
    const Step rest = last + 1 < m.count ? kept_alone(step, s) : step;
    float *const embedded = m.drafts ? s.normal : s.hidden;
    const std::int64_t stride = m.drafts ? s.hidden_stride : m.hidden;
    Placement placement(static_cast<int>(step.threads));
#pragma omp parallel num_threads(static_cast<int>(step.threads))
    {
        std::int64_t sequence = 0;
        const std::int32_t *route = step.routes;
#pragma omp for
        for (std::int64_t row = 0; row < step.rows; ++row)
            if (step.embedded)
                __builtin_memcpy(embedded + row * stride, step.embedded + row * m.hidden,
                                 m.hidden * sizeof(float));
            else
                embed(m, step.ids[row], position_of(step, row, sequence), embedded + row * stride);
        if (m.drafts) compute_draft_inputs(m, step, s);
        if (m.inputs) compute_inputs(m, step, s);
        for (std::int64_t i = 0; i < m.count; ++i) {
            placement.settle(omp_get_thread_num());
            const Layer &layer = m.layers[i];
            const std::int64_t rows = i < last ? step.rows : step.kept_rows;
            if (rows == 0 && i > last) break;
            mix_tokens(m, layer, i > last ? rest : step, rows, s);
            if (rows == 0 || !layer.down.panels) continue;
            if (layer.dense) dense_layer(m, *layer.dense, rows, s);
            if (layer.experts)
                experts_layer(m, layer, rows, route, step.agreed, s);
            else
                mlp_layer(m, layer, rows, s);
            if (layer.experts && route) route += rows * layer.experts->chosen;
            if (layer.input_gate.panels)
                input_layer(m, layer, i, i < last ? nullptr : step.kept, rows, s);
        }
        if (step.hidden) give_hidden(m, step, s);
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

// Layers with latents: multi-head latent attention.
//
// A head's keys are a matrix of its own times the token's latent, and the same rotated values for all
// heads; its values are another matrix times the latent. Neither is ever computed. A score is a query
// times a matrix times a latent: each head's query is multiplied with its matrix first, and what
// attention makes of the latents afterwards. So all heads share one KV head, which the cache has
//
//     queries [heads][latent, rotary]    keys [latent, rotary]    values [latent]
//
// and a token takes a small part of the memory. A prompt has more to multiply this way, by
// (2 * latent + rotary) / (key_dim + value_dim) for each key: but its tokens would have other bits
// than those of a step that decodes.
//
// Rows of `s.latents` are what the first product makes: the queries, or what makes them, then latent
// and rotary.

// What the first product makes before the latent.
INLINE std::int64_t latent_at(const Model &m, const Layer &layer) {
    return layer.qkv.outputs - m.key_dim;
}

// Of a row whose heads have their products: a query's rotary values, or, behind the last head, the key.
INLINE void finish_head(const Model &m, const Layer &layer, std::int64_t position, std::int64_t head,
                        const float *rotary, float *to) {
    const float *angles[] = {layer.cosines + position * (m.rotary / 2),
                             layer.sines + position * (m.rotary / 2)};
    float *rotated = to + m.value_dim;
    __builtin_memcpy(rotated, rotary, m.rotary * sizeof(float));
    rotate(rotated, angles[0], angles[1], m.rotary, m.rotates_neighbours);
    if (head < m.heads) map_row(to, m.key_dim, [&](vfloat x) { return x * layer.scaling; });
}

// Queries, keys and values of all rows as attention reads them; the latter are stored. `normal` is what
// products with `layer.qkv` read.
static void absorb_queries(const Model &m, const Layer &layer, const Step &step, const Input &normal,
                           const Scratch &s) {
    const Latent &x = *layer.latent;
    matmul(layer.qkv, normal, step.rows, {s.latents, s.latents_stride}, Store::Replace);
    Rows queries = {s.latents, s.latents_stride};
    if (x.query.panels) {
        const Input input = normalize_rows(x.query_norm, x.epsilon, x.query, queries, step.rows, s);
        queries = {s.by_head, s.by_head_stride};
        matmul(x.query, input, step.rows, queries, Store::Replace);
    }
    const std::int64_t unrotated = x.keys.inputs, each = unrotated + m.rotary;
    const PartInputs inputs = {{queries.at, queries.stride, step.rows, s.by_head_packed}, each,
                               s.by_head_packed_step};
    matmul_parts(x.keys, m.heads, inputs, step.rows, {s.qkv, s.qkv_width}, m.key_dim);
    std::int64_t sequence = 0;
#pragma omp for
    for (std::int64_t item = 0; item < step.rows * (m.heads + 1); ++item) {
        const std::int64_t row = item / (m.heads + 1), head = item % (m.heads + 1);
        const std::int64_t position = position_of(step, row, sequence);
        float *to = s.qkv + row * s.qkv_width + head * m.key_dim;
        if (head < m.heads) {
            const float *query = queries.at + row * queries.stride + head * each;
            finish_head(m, layer, position, head, query + unrotated, to);
            continue;
        }
        const float *latent = s.latents + row * s.latents_stride + latent_at(m, layer);
        normalize(x.norm, latent, to, m.value_dim, x.epsilon);
        finish_head(m, layer, position, head, latent + m.value_dim, to);
        store_any_kv(m, layer, step.tables + step.table_offsets[sequence], position, 0, to, to);
    }
}

// What attention made of the latents becomes what it made of the values.
static Rows expand_attended(const Model &m, const Layer &layer, std::int64_t rows, const Scratch &s) {
    const PartInputs inputs = {{s.attended, s.attended_stride, rows, s.by_head_packed}, m.value_dim,
                               s.by_head_packed_step};
    const Rows expanded = {s.by_head, s.by_head_stride};
    matmul_parts(layer.latent->values, m.heads, inputs, rows, expanded,
                 layer.latent->values.outputs / m.heads);
    return expanded;
}

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
INLINE std::int64_t latent_at(const Layer &layer) {
    return layer.qkv.outputs - layer.key_dim;
}

// Of a row whose heads have their products: a query's rotary values, or, behind the last head, the key.
INLINE void finish_head(const Model &m, const Layer &layer, std::int64_t position, std::int64_t head,
                        const float *rotary, float *to) {
    const float *angles[] = {layer.cosines + position * (layer.rotary / 2),
                             layer.sines + position * (layer.rotary / 2)};
    float *rotated = to + layer.value_dim;
    __builtin_memcpy(rotated, rotary, layer.rotary * sizeof(float));
    rotate(rotated, angles[0], angles[1], layer.rotary, m.rotates_neighbours);
    if (head == layer.heads) return;
    const float scale = query_scale(m, layer, position);
    map_row(to, layer.key_dim, [&](vfloat x) { return x * scale; });
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
    const std::int64_t unrotated = x.keys.inputs, each = unrotated + layer.rotary;
    const PartInputs inputs = {{queries.at, queries.stride, step.rows, s.by_head_packed}, each,
                               s.by_head_packed_step};
    matmul_parts(x.keys, layer.heads, inputs, step.rows, {s.qkv, s.qkv_width}, layer.key_dim);
    std::int64_t sequence = 0;
#pragma omp for
    for (std::int64_t item = 0; item < step.rows * (layer.heads + 1); ++item) {
        const std::int64_t row = item / (layer.heads + 1), head = item % (layer.heads + 1);
        const std::int64_t position = position_of(step, row, sequence);
        float *to = s.qkv + row * s.qkv_width + head * layer.key_dim;
        if (head < layer.heads) {
            const float *query = queries.at + row * queries.stride + head * each;
            finish_head(m, layer, position, head, query + unrotated, to);
            continue;
        }
        const float *latent = s.latents + row * s.latents_stride + latent_at(layer);
        normalize(x.norm, latent, to, layer.value_dim, x.epsilon);
        finish_head(m, layer, position, head, latent + layer.value_dim, to);
        store_any_kv(m, layer, step.tables + step.table_offsets[sequence], position, 0, to, to);
    }
}

// What attention made of the latents becomes what it made of the values.
static Rows expand_attended(const Layer &layer, std::int64_t rows, const Scratch &s) {
    const PartInputs inputs = {{s.attended, s.attended_stride, rows, s.by_head_packed},
                               layer.value_dim, s.by_head_packed_step};
    const Rows expanded = {s.by_head, s.by_head_stride};
    matmul_parts(layer.latent->values, layer.heads, inputs, rows, expanded,
                 layer.latent->values.outputs / layer.heads);
    return expanded;
}

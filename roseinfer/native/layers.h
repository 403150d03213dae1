// Norms, rotation and activations. Each works on one row, in float32.

INLINE void normalize(const Norm &norm, const float *from, float *to, std::int64_t count,
                      float epsilon) {
    if (!norm.weight) {
        std::copy(from, from + count, to);
        return;
    }
    float mean = 0;
    const std::int64_t whole = count / LANES * LANES;
    if (norm.bias) {
        vfloat sums = {};
        for (std::int64_t i = 0; i < whole; i += LANES) sums += load(from + i);
        mean = reduce_sum(sums);
        for (std::int64_t i = whole; i < count; ++i) mean += from[i];
        mean /= static_cast<float>(count);
    }
    vfloat lanes = {};
    for (std::int64_t i = 0; i < whole; i += LANES) {
        const vfloat x = load(from + i) - mean;
        lanes += x * x;
    }
    float squares = reduce_sum(lanes);
    for (std::int64_t i = whole; i < count; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const float scale = 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = (from[i] - mean) * scale * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// Rotates a pair of values.
INLINE void rotate_pair(float &first, float &second, float cosine, float sine) {
    const float a = first, b = second;
    first = a * cosine - b * sine;
    second = b * cosine + a * sine;
}

// Rotates pairs of one head by its position's angles, in place: of the halves of `rotary` values, or
// neighbours.
INLINE void rotate(float *head, const float *cosines, const float *sines, std::int64_t rotary,
                   bool neighbours) {
    const std::int64_t half = rotary / 2;
    if (neighbours)
        for (std::int64_t i = 0; i < half; ++i)
            rotate_pair(head[2 * i], head[2 * i + 1], cosines[i], sines[i]);
    else
        for (std::int64_t i = 0; i < half; ++i)
            rotate_pair(head[i], head[i + half], cosines[i], sines[i]);
}

INLINE vfloat activation(vfloat x, std::int64_t type) {
    if (type == SILU) return x / (1.0f + exp(-x));
    if (type == RELU_SQUARED) return x < 0.0f ? vfloat{} : x * x;
    if (type == GELU) return 0.5f * x * (1.0f + erf(x * 0.7071067812f));
    return 0.5f * x * (1.0f + tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
}

INLINE vfloat sigmoid(vfloat x) { return 1.0f / (1.0f + exp(-x)); }

// Gates and what they multiply. Comparisons let pass what is no number.
INLINE vfloat open_gates(const Model &m, vfloat gates, vfloat others) {
    if (m.activation != CLAMPED) return activation(gates * m.gate_scale, m.activation) * others;
    const vfloat limit = broadcast(m.gate_limit);
    gates = gates > limit ? limit : gates;
    others = others > limit ? limit : others < -limit ? -limit : others;
    return (others + 1.0f) * gates * sigmoid(gates * m.gate_slope);
}

// Writes `inner` values, to the row itself or elsewhere: the activated gates times the others, or all
// activated.
INLINE void activate_row(const Model &m, std::int64_t inner, const float *row, float *to) {
    const auto activated = [&](vfloat x, vfloat other) {
        return m.gated ? open_gates(m, x, other) : activation(x, m.activation);
    };
    const float *others = m.gated ? row + inner : row;
    std::int64_t i = 0;
    for (; i + LANES <= inner; i += LANES) store(to + i, activated(load(row + i), load(others + i)));
    for (; i < inner; ++i) to[i] = activated(broadcast(row[i]), broadcast(others[i]))[0];
}

template <class Map>
INLINE void map_row(float *row, std::int64_t count, Map map) {
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(row + i, map(load(row + i)));
    for (; i < count; ++i) row[i] = map(broadcast(row[i]))[0];
}

INLINE void apply_softcap(float *row, std::int64_t count, float limit) {
    map_row(row, count, [&](vfloat x) { return tanh(x / limit) * limit; });
}

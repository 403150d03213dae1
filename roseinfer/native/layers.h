// The small parts between the products. Each works on one row, in float32.

INLINE void normalise(const Norm &norm, const float *from, float *to, std::int64_t count,
                      float epsilon) {
    float mean = 0;
    if (norm.bias) {
        for (std::int64_t i = 0; i < count; ++i) mean += from[i];
        mean /= static_cast<float>(count);
    }
    const std::int64_t whole = count / LANES * LANES;
    vfloat lanes = {};
    for (std::int64_t i = 0; i < whole; i += LANES) {
        const vfloat x = load(from + i) - mean;
        lanes += x * x;
    }
    float squares = sum(lanes);
    for (std::int64_t i = whole; i < count; ++i) squares += (from[i] - mean) * (from[i] - mean);
    const float by = 1.0f / std::sqrt(squares / static_cast<float>(count) + epsilon);
    for (std::int64_t i = 0; i < count; ++i)
        to[i] = (from[i] - mean) * by * norm.weight[i] + (norm.bias ? norm.bias[i] : 0.0f);
}

// Turns pairs (i, i + rotary / 2) of one head by its position's angles, in place.
INLINE void rotate(float *head, const float *cosines, const float *sines, std::int64_t rotary) {
    const std::int64_t half = rotary / 2;
    for (std::int64_t i = 0; i < half; ++i) {
        const float a = head[i], b = head[i + half];
        head[i] = a * cosines[i] - b * sines[i];
        head[i + half] = b * cosines[i] + a * sines[i];
    }
}

INLINE vfloat activated(vfloat x, std::int64_t kind) {
    if (kind == SILU) return x / (1.0f + exponential(-x));
    return 0.5f * x * (1.0f + tangent(0.7978845608f * (x + 0.044715f * x * x * x)));
}

// Into the first `inner` of the row: activation of the gate times the others, or of all of them.
INLINE void activate(const Model &m, float *row) {
    std::int64_t i = 0;
    for (; i + LANES <= m.inner; i += LANES) {
        vfloat x = activated(load(row + i), m.activation);
        if (m.gated) x *= load(row + m.inner + i);
        store(row + i, x);
    }
    for (; i < m.inner; ++i) {
        const float x = activated(fill(row[i]), m.activation)[0];
        row[i] = m.gated ? x * row[m.inner + i] : x;
    }
}

INLINE void cap(float *row, std::int64_t count, float by) {
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(row + i, tangent(load(row + i) / by) * by);
    for (; i < count; ++i) row[i] = tangent(fill(row[i]) / by)[0] * by;
}

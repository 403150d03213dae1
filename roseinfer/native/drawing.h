// Draws a token for each row of logits, as sampling.py does with torch: temperature, top-k, top-p and
// min-p, then the id at which the cumulative probability passes a number. Without a temperature, the
// first of the largest.
//
// Weights are e^((logit - largest) / temperature), float32; their sums are double. What passes top-k
// and top-p are the logits from a floor on, found without sorting: the values' bits, as integers in
// the same order, are counted (or weighed) by their first digit, then within one digit by the next.

// The bits of a float in the order of the numbers; -0 and 0 are one number.
INLINE std::uint32_t rank(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if (bits == 0x80000000u) bits = 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The least rank, not below `least`, of which what ranks above it has less than `limit`: in number,
// or with `weights` in weight. At least the highest.
static std::uint32_t floor_of(const float *logits, const float *weights, std::int64_t count,
                              std::uint32_t least, double limit) {
    constexpr struct {
        int shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    std::uint32_t prefix = 0, known = 0;
    double above = 0;
    for (const auto [shift, bits] : digits) {
        double found[2048] = {};
        bool any[2048] = {};
        for (std::int64_t i = 0; i < count; ++i) {
            const std::uint32_t r = rank(logits[i]);
            if ((r & known) != prefix || r < least) continue;
            const std::uint32_t digit = r >> shift & ((1u << bits) - 1);
            found[digit] += weights ? weights[i] : 1.0;
            any[digit] = true;
        }
        int digit = -1;
        for (int d = (1 << bits) - 1; d >= 0; --d) {
            if (!any[d]) continue;
            if (digit >= 0) {
                if (above + found[digit] >= limit) break;
                above += found[digit];
            }
            digit = d;
        }
        prefix |= static_cast<std::uint32_t>(digit) << shift;
        known |= ((1u << bits) - 1) << shift;
    }
    return prefix;
}

INLINE float largest_of(const float *values, std::int64_t count) {
    float most = values[0];
    std::int64_t i = 0;
    if (count >= LANES) {
        vfloat lanes = load(values);
        for (; i + LANES <= count; i += LANES) lanes = larger(lanes, load(values + i));
        most = largest(lanes);
    }
    for (; i < count; ++i) most = values[i] > most ? values[i] : most;
    return most;
}

INLINE std::int64_t first_of(const float *values, std::int64_t count, float wanted) {
    std::int64_t i = 0;
    while (i < count - 1 && values[i] != wanted) ++i;
    return i;
}

// Weights of all logits; nothing is left of what is e^87 times less likely than the most likely.
INLINE void weigh(const float *logits, std::int64_t count, float most, float by, float *weights) {
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vfloat x = (load(logits + i) - most) * by;
        store(weights + i, x > fill(-87.0f) ? exponential(x) : fill(0.0f));
    }
    for (; i < count; ++i) {
        const float x = (logits[i] - most) * by;
        weights[i] = x > -87.0f ? exponential(fill(x))[0] : 0.0f;
    }
}

INLINE std::int64_t draw_one(const Draw &draw, std::int64_t count, float *weights) {
    const float most = largest_of(draw.logits, count);
    if (!(most > -INFINITY)) return count - 1;  // a grammar allows nothing: any id will do
    if (draw.temperature == 0.0f) return first_of(draw.logits, count, most);
    weigh(draw.logits, count, most, 1.0f / draw.temperature, weights);
    std::uint32_t least = 0;
    if (draw.top_k > 0 && draw.top_k < count)
        least = floor_of(draw.logits, nullptr, count, 0, static_cast<double>(draw.top_k));
    if (draw.top_p < 1.0) {
        double total = 0;
        for (std::int64_t i = 0; i < count; ++i)
            if (rank(draw.logits[i]) >= least) total += weights[i];
        least = floor_of(draw.logits, weights, count, least, draw.top_p * total);
    }
    double total = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (rank(draw.logits[i]) < least || weights[i] < draw.min_p) weights[i] = 0.0f;
        total += weights[i];
    }
    // Rounding may lift the wanted sum to the total: then the last that can be drawn.
    const double wanted = draw.number * total;
    double sum = 0;
    std::int64_t last = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (weights[i] == 0.0f) continue;
        sum += weights[i];
        last = i;
        if (sum > wanted) break;
    }
    return last;
}

// `room` has `count` floats for each of `threads` threads; no more take part.
void draw(Draw *draws, std::int64_t number, std::int64_t count, float *room,
          std::int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(threads)) if (number > 1)
    for (std::int64_t i = 0; i < number; ++i)
        draws[i].id = draw_one(draws[i], count, room + omp_get_thread_num() * count);
}

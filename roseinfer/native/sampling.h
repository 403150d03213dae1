// Samples a token for each row of logits, as sampling/sampler.py does with torch: temperature, top-k, top-p
// and min-p, then the id at which the cumulative probability passes a uniform number, which is a
// function of seed and position. Temperature 0 takes the first of the largest logits. A row whose
// largest logit is not finite has no token. NaN counts as -inf.
//
// Weights are e^((logit - largest) / temperature), float32; their sums are double. Filters keep the
// logits from a floor on. That of min-p is the largest logit + temperature * log(min_p), which float32
// weights near 1 would not tell apart. The floor of top-k and top-p is found without sorting, as in a radix sort: values
// are counted (or their weights summed) by the first digit of their bits, then within one digit by
// the next.

// The bits of a float in the order of the numbers; -0 and 0 are one number, and NaN is below all.
INLINE std::uint32_t ordered_bits(float value) {
    std::uint32_t bits;
    __builtin_memcpy(&bits, &value, sizeof bits);
    if (bits == 0x80000000u) bits = 0;
    if (value != value) return 0;
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The lowest float that is not below `number`, which is not above all floats.
INLINE float at_least(double number) {
    const auto nearest = static_cast<float>(number);
    return nearest < number ? __builtin_nextafterf(nearest, INFINITY) : nearest;
}

// The lowest value, as ordered bits and not below `least`, for which the number of higher values
// (with `weights`, their sum of weights) is below `limit`. The highest value always passes.
static std::uint32_t filter_floor(const float *logits, const float *weights, std::int64_t count,
                              std::uint32_t least, double limit) {
    constexpr struct {
        int shift, bits;
    } digits[] = {{21, 11}, {10, 11}, {0, 10}};
    std::uint32_t prefix = 0, known = 0;
    double above = 0;
    for (const auto [shift, bits] : digits) {
        double digit_weights[2048] = {};
        bool occupied[2048] = {};
        for (std::int64_t i = 0; i < count; ++i) {
            const std::uint32_t r = ordered_bits(logits[i]);
            if ((r & known) != prefix || r < least) continue;
            const std::uint32_t digit = r >> shift & ((1u << bits) - 1);
            digit_weights[digit] += weights ? weights[i] : 1.0;
            occupied[digit] = true;
        }
        int digit = -1;
        for (int d = (1 << bits) - 1; d >= 0; --d) {
            if (!occupied[d]) continue;
            if (digit >= 0) {
                if (above + digit_weights[digit] >= limit) break;
                above += digit_weights[digit];
            }
            digit = d;
        }
        prefix |= static_cast<std::uint32_t>(digit) << shift;
        known |= ((1u << bits) - 1) << shift;
    }
    return prefix;
}

// -inf if there is no number. Several vectors at once: each maximum waits for the one before it, which
// stays where the next value is NaN.
INLINE float max_of(const float *values, std::int64_t count) {
    constexpr int VECTORS = 8, WIDTH = VECTORS * LANES;
    float highest = -INFINITY;
    std::int64_t i = 0;
    if (count >= WIDTH) {
        vfloat lanes[VECTORS];
        for (int v = 0; v < VECTORS; ++v) lanes[v] = broadcast(-INFINITY);
        for (; i + WIDTH <= count; i += WIDTH)
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) lanes[v] = max(load(values + i + v * LANES), lanes[v]);
        for (int v = 1; v < VECTORS; ++v) lanes[0] = max(lanes[0], lanes[v]);
        highest = reduce_max(lanes[0]);
    }
    for (; i < count; ++i) highest = values[i] > highest ? values[i] : highest;
    return highest;
}

struct Largest {
    float value;
    std::int64_t block;  // the first that has it
};

// One by one only the values of one block are looked at.
constexpr std::int64_t SEARCH_BLOCK = 1024;

INLINE Largest largest_of(const float *values, std::int64_t count) {
    Largest largest = {-INFINITY, 0};
    for (std::int64_t block = 0; block < count; block += SEARCH_BLOCK) {
        const std::int64_t left = count - block;
        const float highest = max_of(values + block, left < SEARCH_BLOCK ? left : SEARCH_BLOCK);
        if (highest > largest.value) largest = {highest, block};
    }
    return largest;
}

INLINE std::int64_t index_of(const float *values, std::int64_t count, const Largest &largest) {
    std::int64_t i = largest.block;
    while (i < count - 1 && values[i] != largest.value) ++i;
    return i;
}

// Weights of all logits; nothing is left of what is e^87 times less likely than the most likely.
INLINE void exp_weights(const float *logits, std::int64_t count, float highest, float scale,
                        float *weights) {
    std::int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const vfloat x = (load(logits + i) - highest) * scale;
        store(weights + i, x > broadcast(-87.0f) ? exp(x) : broadcast(0.0f));
    }
    for (; i < count; ++i) {
        const float x = (logits[i] - highest) * scale;
        weights[i] = x > -87.0f ? exp(broadcast(x))[0] : 0.0f;
    }
}

// splitmix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, 2014).
INLINE std::uint64_t mix(std::uint64_t bits) {
    bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9u;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EBu;
    return bits ^ bits >> 31;
}

// The number in [0, 1) of a seed and a position: the same as `uniform` in sampling/random_numbers.py.
INLINE double uniform(std::int64_t seed, std::int64_t position) {
    constexpr std::uint64_t GOLDEN = 0x9E3779B97F4A7C15u;
    const std::uint64_t state = mix(static_cast<std::uint64_t>(seed) + GOLDEN) +
                                (static_cast<std::uint64_t>(position) + 1) * GOLDEN;
    return static_cast<double>(mix(state) >> 11) * 0x1p-53;
}

constexpr std::int64_t NO_TOKEN = -1;

INLINE std::int64_t sample_row(const SampleRequest &request, std::int64_t count, float *weights) {
    const Largest largest = largest_of(request.logits, count);
    // A grammar allows nothing, or the model has overflowed.
    if (__builtin_fabsf(largest.value) == INFINITY) return NO_TOKEN;
    if (request.temperature == 0.0) return index_of(request.logits, count, largest);
    const auto scale = static_cast<float>(1.0 / request.temperature);
    exp_weights(request.logits, count, largest.value, scale, weights);
    std::uint32_t least = 0;
    if (request.top_k > 0 && request.top_k < count)
        least = filter_floor(request.logits, nullptr, count, 0, static_cast<double>(request.top_k));
    if (request.top_p < 1.0) {
        double total = 0;
        for (std::int64_t i = 0; i < count; ++i)
            if (ordered_bits(request.logits[i]) >= least) total += weights[i];
        least = filter_floor(request.logits, weights, count, least, request.top_p * total);
    }
    if (request.min_p > 0.0) {
        const double floor = largest.value + request.temperature * __builtin_log(request.min_p);
        const std::uint32_t bits = ordered_bits(at_least(floor));
        if (bits > least) least = bits;
    }
    double total = 0;
    for (std::int64_t i = 0; i < count; ++i) {
        if (ordered_bits(request.logits[i]) < least) weights[i] = 0.0f;
        total += weights[i];
    }
    // Rounding may lift the wanted sum to the total: then the last that can be drawn.
    const double wanted = uniform(request.seed, request.position) * total;
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

// `weights` has `vocabulary` floats for each of `threads` threads, of which no more take part, or
// nothing where no row is drawn.
void sample(const SampleRequest *requests, std::int64_t rows, std::int64_t vocabulary,
            float *weights, std::int64_t *ids, std::int64_t threads) {
#pragma omp parallel for schedule(dynamic) num_threads(static_cast<int>(threads)) if (rows > 1)
    for (std::int64_t row = 0; row < rows; ++row)
        ids[row] = sample_row(requests[row], vocabulary, weights + omp_get_thread_num() * vocabulary);
}

// Layers with a state, over a packed batch.
//
// A projection makes of a row what goes into the convolution and, in what order the kind has it,
//
//     SHORT_CONVOLUTION  factors [channels], gates [channels], channels
//     DELTA_RULE         channels, gates [heads * values], betas [heads], steps [heads]
//     STATE_SPACE        gates [heads * values], channels, steps [heads]
//
// The channels of a DELTA_RULE are queries [groups, keys], keys [groups, keys] and values [heads,
// values], those of a STATE_SPACE values, keys and queries. Each output is one sum over the inputs of its channel, the oldest first: those of earlier
// steps come from the sequence's slot, rounded as the cache has them, and so are the others. So a
// row's result does not depend on the chunk.

INLINE std::int64_t outputs_of(const Mixer &x) {
    return x.mixing == SHORT_CONVOLUTION ? x.channels : x.heads * x.values;
}
INLINE std::int64_t channels_at(const Mixer &x) {
    return x.mixing == SHORT_CONVOLUTION ? 2 * x.channels
           : x.mixing == STATE_SPACE     ? x.heads * x.values
                                         : 0;
}
INLINE std::int64_t gates_at(const Mixer &x) { return x.mixing == STATE_SPACE ? 0 : x.channels; }
INLINE std::int64_t betas_at(const Mixer &x) { return x.channels + x.heads * x.values; }
INLINE std::int64_t steps_at(const Mixer &x) {
    return betas_at(x) + (x.mixing == DELTA_RULE ? x.heads : 0);
}
INLINE std::int64_t projected_width(const Mixer &x) {
    return x.mixing == SHORT_CONVOLUTION ? 3 * x.channels : steps_at(x) + x.heads;
}
// Of the channels.
INLINE std::int64_t values_at(const Mixer &x) {
    return x.mixing == STATE_SPACE ? 0 : 2 * x.groups * x.keys;
}
INLINE std::int64_t keys_at(const Mixer &x) {
    return x.mixing == STATE_SPACE ? x.heads * x.values : x.groups * x.keys;
}
INLINE std::int64_t queries_at(const Mixer &x) {
    return x.mixing == STATE_SPACE ? keys_at(x) + x.groups * x.keys : 0;
}
// Behind the convolution: channels, decays [heads] and betas [heads].
INLINE std::int64_t mixed_width(const Mixer &x) { return x.channels + 2 * x.heads; }

// Where a step's rows are, and what the threads need.
struct MixingBuffers {
    const float *projected;
    std::int64_t projected_stride;
    float *mixed;  // for recurrences
    std::int64_t mixed_stride;
    float *out;
    std::int64_t out_stride;
    float *sums;  // [threads, keys, SUM_COLUMNS]
};

// One number, or as many as a vector has.
INLINE void read(const float *from, float &to) { to = *from; }
INLINE void read(const bfloat *from, float &to) { to = widen(*from); }
template <class T>
INLINE void read(const T *from, vfloat &to) {
    to = load(from);
}
INLINE void write(float *to, float value) { *to = value; }
INLINE void write(float *to, vfloat value) { store(to, value); }
// What was rounded already.
INLINE void write(bfloat *to, float value) { narrow(value, to); }
INLINE void write(bfloat *to, vfloat value) {
    *reinterpret_cast<vhalf_unaligned *>(to) =
        __builtin_convertvector(reinterpret_cast<vbits>(value) >> 16, vhalf);
}
INLINE float silu(float x) { return activation(broadcast(x), SILU)[0]; }
INLINE vfloat silu(vfloat x) { return activation(x, SILU); }

// As the cache keeps it, which `T` says.
INLINE void round_as(const float *, float &) {}
INLINE void round_as(const float *, vfloat &) {}
INLINE void round_as(const bfloat *, float &value) {
    bfloat half;
    narrow(value, &half);
    value = widen(half);
}
INLINE void round_as(const bfloat *, vfloat &value) {
    const vbits bits = reinterpret_cast<vbits>(value);
    const vbits rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000u;
    value = value == value ? reinterpret_cast<vfloat>(rounded) : value;
}

// Calls `use` with a vector, or for the last ones a float, and the number of the first it is for.
template <class Use>
INLINE void each_vector(std::int64_t first, std::int64_t end, const Use &use) {
    std::int64_t i = first;
    for (; i + LANES <= end; i += LANES) use(vfloat{}, i);
    for (; i < end; ++i) use(0.0f, i);
}

// The convolution of one sequence; tokens count from the step's first.
template <class T>
struct Convolution {
    const Mixer &x;
    const T *before;    // [kernel - 1, channels], inputs of the tokens before the step
    const float *rows;  // projected, `stride` floats apart
    std::int64_t stride;

    template <class V>
    V input(std::int64_t token, std::int64_t channel) const {
        V value;
        if (token < 0) {
            read(before + (x.kernel - 1 + token) * x.channels + channel, value);
            return value;
        }
        const float *row = rows + token * stride;
        read(row + channels_at(x) + channel, value);
        if (x.mixing == SHORT_CONVOLUTION) {
            V factor;
            read(row + channel, factor);
            value = value * factor;
        }
        round_as(before, value);
        return value;
    }

    template <class V>
    V output(std::int64_t token, std::int64_t channel) const {
        V sum = {}, tap;
        if (x.bias) read(x.bias + channel, sum);
        for (std::int64_t k = 0; k < x.kernel; ++k) {
            read(x.taps + k * x.channels + channel, tap);
            sum = sum + input<V>(token - x.kernel + 1 + k, channel) * tap;
        }
        return sum;
    }

    // The channels [first, end), activated.
    void activate(std::int64_t token, std::int64_t first, std::int64_t end, float *to) const {
        each_vector(first, end, [&](auto like, std::int64_t channel) {
            write(to + channel, silu(output<decltype(like)>(token, channel)));
        });
    }

    // The channels [first, end) times their gates.
    void gate(std::int64_t token, std::int64_t first, std::int64_t end, float *to) const {
        const float *gates = rows + token * stride + gates_at(x);
        each_vector(first, end, [&](auto like, std::int64_t channel) {
            decltype(like) factor;
            read(gates + channel, factor);
            write(to + channel, output<decltype(like)>(token, channel) * factor);
        });
    }

    // The state behind a token, which may be where the one before the step is.
    void keep(std::int64_t token, T *to) const {
        for (std::int64_t i = 0; i + 1 < x.kernel; ++i)
            each_vector(0, x.channels, [&](auto like, std::int64_t channel) {
                write(to + i * x.channels + channel,
                      input<decltype(like)>(token - x.kernel + 2 + i, channel));
            });
    }
};

template <class T>
INLINE T *inputs_in(const Mixer &x, std::int64_t slot) {
    return static_cast<T *>(x.inputs) + slot * (x.kernel - 1) * x.channels;
}

template <class T>
INLINE Convolution<T> convolution_of(const Mixer &x, const Step &step, std::int64_t sequence,
                                     const MixingBuffers &at) {
    return {x, inputs_in<T>(x, step.slots[sequence]),
            at.projected + step.first[sequence] * at.projected_stride, at.projected_stride};
}

// Divides a query or a key by its length, and multiplies it.
INLINE void normalize_length(float *head, std::int64_t count, float factor) {
    const std::int64_t whole = count / LANES * LANES;
    vfloat lanes = {};
    for (std::int64_t i = 0; i < whole; i += LANES) lanes += load(head + i) * load(head + i);
    float squares = reduce_sum(lanes);
    for (std::int64_t i = whole; i < count; ++i) squares += head[i] * head[i];
    const float scale = factor / std::sqrt(squares + 1e-6f);
    for (std::int64_t i = 0; i < count; ++i) head[i] *= scale;
}

// log(1 + e^x)
INLINE float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

// What the recurrence needs of one group of a row.
template <class T>
static void mix_group(const Convolution<T> &convolution, std::int64_t token, std::int64_t group,
                      float *mixed) {
    const Mixer &x = convolution.x;
    const std::int64_t heads = x.heads / x.groups, width = heads * x.values;
    const std::int64_t query = queries_at(x) + group * x.keys, key = keys_at(x) + group * x.keys,
                       value = values_at(x) + group * width;
    convolution.activate(token, query, query + x.keys, mixed);
    convolution.activate(token, key, key + x.keys, mixed);
    convolution.activate(token, value, value + width, mixed);
    const bool delta = x.mixing == DELTA_RULE;
    if (delta) {
        normalize_length(mixed + query, x.keys, 1.0f / std::sqrt(static_cast<float>(x.keys)));
        normalize_length(mixed + key, x.keys, 1.0f);
    }
    const float *row = convolution.rows + token * convolution.stride;
    float *decays = mixed + x.channels, *betas = decays + x.heads;
    for (std::int64_t head = group * heads; head < (group + 1) * heads; ++head) {
        float step = softplus(row[steps_at(x) + head] + x.step_bias[head]);
        step = step < x.least_step ? x.least_step : step > x.most_step ? x.most_step : step;
        decays[head] = std::exp(x.decay[head] * step);
        betas[head] =
            delta ? x.beta_scale * sigmoid(broadcast(row[betas_at(x) + head]))[0] : step;
    }
}

// Channels that a thread takes at once.
constexpr std::int64_t CHANNELS_AT_ONCE = 512;

template <class T>
static void convolve_rows(const Mixer &x, const Step &step, const MixingBuffers &at) {
    const bool is_short = x.mixing == SHORT_CONVOLUTION;
    const std::int64_t parts =
        is_short ? (x.channels + CHANNELS_AT_ONCE - 1) / CHANNELS_AT_ONCE : x.groups;
    std::int64_t sequence = 0;
#pragma omp for
    for (std::int64_t item = 0; item < step.rows * parts; ++item) {
        const std::int64_t row = item / parts, part = item % parts;
        sequence = sequence_of(step, row, sequence);
        const std::int64_t token = row - step.first[sequence];
        const Convolution<T> convolution = convolution_of<T>(x, step, sequence, at);
        if (is_short) {
            const std::int64_t first = part * CHANNELS_AT_ONCE;
            convolution.gate(token, first, std::min(first + CHANNELS_AT_ONCE, x.channels),
                             at.out + row * at.out_stride);
        } else {
            mix_group(convolution, token, part, at.mixed + row * at.mixed_stride);
        }
    }
}

// The inputs that convolutions need behind the tokens whose states are written. A sequence's own slot,
// which the others are made of too, is written last.
template <class T>
static void start_keeping_inputs(const Mixer &x, const Step &step, const MixingBuffers &at) {
#pragma omp for nowait
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence) {
        const Convolution<T> convolution = convolution_of<T>(x, step, sequence, at);
        for (const bool own : {false, true})
            for (const StateWrite *write = step.writes; write < step.writes + step.written; ++write)
                if (write->sequence == sequence && (write->slot == step.slots[sequence]) == own)
                    convolution.keep(write->token, inputs_in<T>(x, write->slot));
    }
}

// Multiplies `out` [count] by its gates.
INLINE void gate_outputs(const float *gates, std::int64_t count, float *out) {
    each_vector(0, count, [&](auto like, std::int64_t i) {
        decltype(like) value, gate;
        read(out + i, value);
        read(gates + i, gate);
        write(out + i, value * silu(gate));
    });
}

// The norms of what the recurrence made, if there are any, and the gates.
static void gate_heads(const Mixer &x, const Step &step, const MixingBuffers &at) {
    const std::int64_t width = x.heads * x.values, parts = width / x.normed;
#pragma omp for
    for (std::int64_t item = 0; item < step.rows * parts; ++item) {
        const std::int64_t row = item / parts, first = item % parts * x.normed;
        float *out = at.out + row * at.out_stride + first;
        const float *gates = at.projected + row * at.projected_stride + gates_at(x) + first;
        const float *values = at.mixed + row * at.mixed_stride + values_at(x) + first;
        for (std::int64_t i = 0; x.skip && i < x.normed; ++i)
            out[i] += x.skip[(first + i) / x.values] * values[i];
        if (!x.gates_last) gate_outputs(gates, x.normed, out);
        if (x.norm.weight)
            normalize({x.norm.weight + first, nullptr}, out, out, x.normed, x.epsilon);
        if (x.gates_last) gate_outputs(gates, x.normed, out);
    }
}

// Of projected rows what the layer's last product reads; the states behind them are written.
template <class T>
static void mix(const Mixer &x, const Step &step, const MixingBuffers &at) {
    convolve_rows<T>(x, step, at);
    start_keeping_inputs<T>(x, step, at);
    if (x.mixing != SHORT_CONVOLUTION) {
        const float *query = at.mixed + queries_at(x), *key = at.mixed + keys_at(x),
                    *value = at.mixed + values_at(x), *decays = at.mixed + x.channels;
        start_recurrence({query, key, value, decays, decays + x.heads, at.out, x.sums, at.sums,
                          step.first, step.first + 1, step.slots, step.writes, at.mixed_stride,
                          at.mixed_stride, at.mixed_stride, at.out_stride, step.sequences, x.groups,
                          x.heads, x.keys, x.values, step.written, step.threads,
                          x.mixing == DELTA_RULE});
    }
#pragma omp barrier
    if (x.mixing != SHORT_CONVOLUTION) gate_heads(x, step, at);
}

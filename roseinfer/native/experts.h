// Mixtures of experts: a router weighs MLPs for each row, and those with the highest scores compute it.
//
// Rows are brought together by expert, so that an expert's weights are read once for all of its rows.
// Each row of an expert is a place. Places lie expert by expert, those of an expert in the order of
// their rows:
//
//     row        0      1      2
//     experts    2, 0   1, 2   2, 0     the highest score first
//
//     expert     0        1      2
//     place      0, 1     2      3, 4, 5
//     its row    0, 2     1      0, 1, 2
//
// An expert that all tokens share is the last one, and has all rows. What a row's experts make is added
// in the order of their scores: so here too a row's result does not depend on the others of its batch.

constexpr std::int64_t MAX_EXPERTS = 1024;

// Rows at a time: what lies between takes some 20 KiB for each expert of a row.
constexpr std::int64_t EXPERT_ROWS = 1024;

INLINE bool has_shared(const Experts &x) { return x.shared_down.panels; }
INLINE std::int64_t experts_of_row(const Experts &x) { return x.chosen + has_shared(x); }
INLINE std::int64_t expert_count(const Experts &x) { return x.count + has_shared(x); }

struct ExpertScratch {
    float *logits;   // [rows, router's outputs]
    float *weights;  // [rows, experts of a row]
    float *placed;   // [places, hidden]: the norms of their rows, then what their experts make
    float *placed_packed, *inner, *inner_packed;
    std::int32_t *experts, *places;       // [rows, experts of a row]
    std::int32_t *row_of, *expert_of;     // [places]
    std::int64_t *first;                  // [experts + 1], the first place of each; the last: all
    std::int64_t *packed_at, *inner_packed_at;  // [experts], the first float of each
    std::int64_t logit_stride, stride, inner_stride, shared_inner_stride;
    std::int64_t size;
};

// Floats for the packed inputs of one expert.
INLINE std::int64_t expert_packed_floats(std::int64_t rows, std::int64_t inputs) {
    return (packed_floats(rows, inputs) + 15) / 16 * 16;
}

// The most that the packed inputs of `experts` take which have `places` together: each has tiles of its
// own.
INLINE std::int64_t most_packed_floats(std::int64_t places, std::int64_t experts,
                                       std::int64_t inputs) {
    const std::int64_t used = std::min(places, experts);
    return packed_floats(places + (TILE_ROWS - 1) * used, inputs) + 16 * used;
}

static ExpertScratch layout_experts(const Model &m, const Layer &layer, std::int64_t rows, float *at) {
    const Experts &x = *layer.experts;
    const std::int64_t each = experts_of_row(x), places = rows * each, chosen = rows * x.chosen,
                       shared = has_shared(x) ? rows : 0, inner = layer.down.inputs,
                       shared_inner = x.shared_down.inputs, halves = m.gated ? 2 : 1;
    Bump bump = {at, 0};
    ExpertScratch s;
    s.logit_stride = row_stride(x.router.outputs);
    s.stride = row_stride(m.hidden);
    s.inner_stride = row_stride(halves * inner);
    s.shared_inner_stride = row_stride(halves * shared_inner);
    s.logits = bump.take(rows * s.logit_stride);
    s.weights = bump.take(places);
    s.experts = bump.take_as<std::int32_t>(places);
    s.places = bump.take_as<std::int32_t>(places);
    s.row_of = bump.take_as<std::int32_t>(places);
    s.expert_of = bump.take_as<std::int32_t>(places);
    s.first = bump.take_as<std::int64_t>(expert_count(x) + 1);
    s.packed_at = bump.take_as<std::int64_t>(expert_count(x));
    s.inner_packed_at = bump.take_as<std::int64_t>(expert_count(x));
    s.placed = bump.take(places * s.stride);
    s.placed_packed = bump.take(most_packed_floats(places, expert_count(x), m.hidden));
    s.inner = bump.take(chosen * s.inner_stride + shared * s.shared_inner_stride);
    s.inner_packed = bump.take(most_packed_floats(chosen, x.count, inner) +
                               most_packed_floats(shared, 1, shared_inner));
    s.size = bump.used;
    return s;
}

// What a step of `rows` rows needs for any layer.
static std::int64_t expert_floats(const Model &m, std::int64_t rows) {
    std::int64_t most = 0;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (m.layers[i].experts)
            most = std::max(
                most, layout_experts(m, m.layers[i], std::min(rows, EXPERT_ROWS), nullptr).size);
    return most;
}

// Choosing

// The highest that is not taken. Of equal ones, and of those that are no numbers, the first: an index
// is always one of an expert.
INLINE std::int64_t highest(const float *ranks, const bool *taken, std::int64_t count) {
    std::int64_t best = -1;
    for (std::int64_t i = 0; i < count; ++i)
        if (!taken[i] && (best < 0 || ranks[i] > ranks[best])) best = i;
    return best;
}

// Takes all experts but those of the groups whose highest, or two highest, have the largest sums.
static void take_other_groups(const Experts &x, const float *ranks, bool *taken) {
    const std::int64_t size = x.count / x.groups;
    float sums[MAX_EXPERTS];
    bool stays[MAX_EXPERTS] = {}, two[MAX_EXPERTS];
    for (std::int64_t group = 0; group < x.groups; ++group) {
        const float *own = ranks + group * size;
        std::fill(two, two + size, false);
        const std::int64_t first = highest(own, two, size);
        two[first] = true;
        sums[group] = own[first] + (x.compared > 1 ? own[highest(own, two, size)] : 0.0f);
    }
    for (std::int64_t i = 0; i < x.chosen_groups; ++i) stays[highest(sums, stays, x.groups)] = true;
    for (std::int64_t i = 0; i < x.count; ++i) taken[i] = !stays[i / size];
}

// What the router makes of a row becomes scores, in place.
static void score_experts(const Experts &x, float *logits) {
    if (x.scoring == SIGMOID) return map_row(logits, x.count, sigmoid);
    float most = logits[0], sum = 0;
    for (std::int64_t i = 1; i < x.count; ++i) most = logits[i] > most ? logits[i] : most;
    map_row(logits, x.count, [&](vfloat v) { return exp(v - most); });
    for (std::int64_t i = 0; i < x.count; ++i) sum += logits[i];
    map_row(logits, x.count, [&](vfloat v) { return v / sum; });
}

// The experts of a row, the highest score first.
static void choose_experts(const Experts &x, const float *scores, std::int32_t *experts) {
    float ranks[MAX_EXPERTS];
    bool taken[MAX_EXPERTS] = {};
    for (std::int64_t i = 0; i < x.count; ++i) ranks[i] = scores[i] + (x.bias ? x.bias[i] : 0.0f);
    if (x.chosen_groups < x.groups) take_other_groups(x, ranks, taken);
    for (std::int64_t i = 0; i < x.chosen; ++i) {
        const std::int64_t expert = highest(ranks, taken, x.count);
        taken[expert] = true;
        experts[i] = static_cast<std::int32_t>(expert);
    }
}

// Scores so near to each other are a tie: rounding decides it.
constexpr float TIE = 0.1f;

// Takes the experts of `route` instead. Returns how many had been chosen, or were in a tie with one.
static std::int64_t follow_route(const Experts &x, const float *scores, const std::int32_t *route,
                                 std::int32_t *experts) {
    const auto rank = [&](std::int32_t expert) {
        return scores[expert] + (x.bias ? x.bias[expert] : 0.0f);
    };
    const float least = rank(experts[x.chosen - 1]);
    std::int64_t agreed = 0;
    for (std::int64_t i = 0; i < x.chosen; ++i) {
        const bool in_tie = rank(route[i]) + TIE * scores[route[i]] >= least;
        agreed += in_tie || std::find(experts, experts + x.chosen, route[i]) != experts + x.chosen;
    }
    std::copy(route, route + x.chosen, experts);
    return agreed;
}

// Their weights, and the shared expert with its own. `scores` has its gate behind the others.
static void weigh_experts(const Experts &x, const float *scores, std::int32_t *experts,
                          float *weights) {
    float sum = 0;
    for (std::int64_t i = 0; i < x.chosen; ++i) sum += scores[experts[i]];
    const float scale = x.normalizes ? x.scale / sum : x.scale;
    for (std::int64_t i = 0; i < x.chosen; ++i)
        weights[i] = scores[experts[i]] * scale * (x.scales ? x.scales[experts[i]] : 1.0f);
    if (!has_shared(x)) return;
    experts[x.chosen] = static_cast<std::int32_t>(x.count);
    weights[x.chosen] = x.gates_shared ? sigmoid(broadcast(scores[x.count]))[0] : 1.0f;
}

// Gives each expert of each row a place.
static void assign_places(const Model &m, const Layer &layer, std::int64_t rows,
                          const ExpertScratch &s) {
    const Experts &x = *layer.experts;
    const std::int64_t each = experts_of_row(x), places = rows * each, count = expert_count(x);
    std::fill(s.first, s.first + count + 1, 0);
    for (std::int64_t i = 0; i < places; ++i) ++s.first[s.experts[i]];
    std::int64_t end = 0, packed = 0, inner_packed = 0;
    for (std::int64_t expert = 0; expert < count; ++expert) {
        const std::int64_t own = s.first[expert];
        s.first[expert] = end, s.packed_at[expert] = packed, s.inner_packed_at[expert] = inner_packed;
        end += own;
        packed += expert_packed_floats(own, m.hidden);
        inner_packed += expert_packed_floats(own, layer.down.inputs);
    }
    s.first[count] = end;
    for (std::int64_t i = 0; i < places; ++i) {
        const std::int32_t expert = s.experts[i];
        const std::int64_t place = s.first[expert]++;
        s.places[i] = static_cast<std::int32_t>(place);
        s.row_of[place] = static_cast<std::int32_t>(i / each);
        s.expert_of[place] = expert;
    }
    for (std::int64_t expert = count; expert > 0; --expert) s.first[expert] = s.first[expert - 1];
    s.first[0] = 0;
}

// Computing

// An expert and its rows. What it makes of them replaces their norms.
struct Expert {
    Matrix gate_up, down;
    Input norms, inner;

    bool stays_on_tiles() const { return ISA::stays_on_tiles(gate_up, down, norms.rows); }
};

INLINE Expert expert_at(const Layer &layer, const ExpertScratch &s, std::int64_t number) {
    const Experts &x = *layer.experts;
    const bool shared = number == x.count;
    const std::int64_t first = s.first[number], rows = s.first[number + 1] - first,
                       stride = shared ? s.shared_inner_stride : s.inner_stride;
    const Matrix gate_up = shared ? x.shared_gate_up : part_of(layer.gate_up, number, x.count),
                 down = shared ? x.shared_down : part_of(layer.down, number, x.count);
    return {
        gate_up,
        down,
        {s.placed + first * s.stride, s.stride, rows, s.placed_packed + s.packed_at[number]},
        // Those of the experts before the shared one have their stride.
        {s.inner + first * s.inner_stride, stride, rows, s.inner_packed + s.inner_packed_at[number]},
    };
}

// Calls `start`, whose work the threads divide, for each expert that has rows; ends with a barrier.
template <class Start>
static void each_expert(const Layer &layer, const ExpertScratch &s, Start start) {
    for (std::int64_t i = 0; i < expert_count(*layer.experts); ++i)
        if (s.first[i + 1] > s.first[i]) start(expert_at(layer, s, i));
#pragma omp barrier
}

// Calls `use` with each place's expert and its row of that expert's; the threads divide them.
template <class Use>
static void each_place(const Layer &layer, std::int64_t rows, const ExpertScratch &s, Use use) {
#pragma omp for
    for (std::int64_t place = 0; place < rows * experts_of_row(*layer.experts); ++place) {
        const std::int64_t number = s.expert_of[place];
        use(expert_at(layer, s, number), place - s.first[number], place);
    }
}

// Some rows of a step: their hidden states [rows, m.hidden], what an MLP beside the experts made of
// them [rows, m.hidden], room for their norms, and the experts to take, or null.
struct ExpertRows {
    float *hidden;
    const float *beside;  // if the layer has such an MLP
    Rows norms;
    std::int64_t rows;
    const std::int32_t *route;
    std::int64_t *agreed;
};

// Chooses the experts of all rows, and brings the rows to their places.
static void place_rows(const Model &m, const Layer &layer, const ExpertRows &r,
                       const ExpertScratch &s) {
    const Experts &x = *layer.experts;
    const std::int64_t each = experts_of_row(x);
    const auto normalize_by = [&](const Norm &norm) {
#pragma omp for
        for (std::int64_t row = 0; row < r.rows; ++row)
            normalize(norm, r.hidden + row * m.hidden, r.norms.at + row * r.norms.stride, m.hidden,
                      m.epsilon);
    };
    normalize_by(x.router_norm.weight ? x.router_norm : layer.before_mlp);
    matmul(x.router, {r.norms.at, r.norms.stride, r.rows, nullptr}, r.rows,
           {s.logits, s.logit_stride}, Store::Replace);
    if (x.router_norm.weight) normalize_by(layer.before_mlp);
#pragma omp for
    for (std::int64_t row = 0; row < r.rows; ++row) {
        float *scores = s.logits + row * s.logit_stride;
        std::int32_t *experts = s.experts + row * each;
        score_experts(x, scores);
        choose_experts(x, scores, experts);
        if (r.route) {
            const std::int64_t agreed = follow_route(x, scores, r.route + row * x.chosen, experts);
#pragma omp atomic
            *r.agreed += agreed;
        }
        weigh_experts(x, scores, experts, s.weights + row * each);
    }
#pragma omp single
    assign_places(m, layer, r.rows, s);
    each_place(layer, r.rows, s, [&](const Expert &expert, std::int64_t row, std::int64_t place) {
        __builtin_memcpy(expert.norms.at + row * s.stride,
                         r.norms.at + s.row_of[place] * r.norms.stride, m.hidden * sizeof(float));
        prepare_input(expert.gate_up, expert.norms, row);
    });
}

// What the experts make of the rows in their places replaces these.
static void compute_places(const Model &m, const Layer &layer, std::int64_t rows,
                           const ExpertScratch &s) {
    each_expert(layer, s, [&](const Expert &expert) {
        const Input &inner = expert.inner;
        if (expert.stays_on_tiles())
            start_matmul_activated(m, expert.gate_up, expert.norms, inner.rows, inner.packed);
        else
            start_matmul(expert.gate_up, expert.norms, inner.rows, {inner.at, inner.stride},
                         Store::Replace);
    });
    each_place(layer, rows, s, [&](const Expert &expert, std::int64_t row, std::int64_t) {
        if (expert.stays_on_tiles()) return;
        float *at = expert.inner.at + row * expert.inner.stride;
        activate_row(m, expert.down.inputs, at, at);
        prepare_input(expert.down, expert.inner, row);
    });
    each_expert(layer, s, [&](const Expert &expert) {
        start_matmul(expert.down, expert.inner, expert.inner.rows, {expert.norms.at, s.stride},
                     Store::Replace);
    });
}

// Of the hidden states behind MLP or experts: that of the layer, unless another branch follows.
INLINE float scale_behind_mlp(const Layer &layer) {
    return layer.input_gate.panels ? 1.0f : layer.scale;
}

// Adds to the hidden states what the places have.
static void add_places(const Model &m, const Layer &layer, const ExpertRows &r,
                       const ExpertScratch &s) {
    const std::int64_t each = experts_of_row(*layer.experts);
#pragma omp for
    for (std::int64_t row = 0; row < r.rows; ++row) {
        float *sum = r.norms.at + row * r.norms.stride, *hidden = r.hidden + row * m.hidden;
        std::fill(sum, sum + m.hidden, 0.0f);
        for (std::int64_t i = row * each; i < (row + 1) * each; ++i) {
            const float *made = s.placed + s.places[i] * s.stride, weight = s.weights[i];
            for (std::int64_t k = 0; k < m.hidden; ++k) sum[k] += weight * made[k];
        }
        if (layer.dense) {
            normalize(layer.dense->after_experts, sum, sum, m.hidden, m.epsilon);
            for (std::int64_t k = 0; k < m.hidden; ++k) sum[k] += r.beside[row * m.hidden + k];
        }
        normalize(layer.after_mlp, sum, sum, m.hidden, m.epsilon);
        const float scale = scale_behind_mlp(layer);
        for (std::int64_t k = 0; k < m.hidden; ++k) hidden[k] = (hidden[k] + sum[k]) * scale;
    }
}

// `scratch` is as `layout_experts` wants it. Ends with a barrier.
static void compute_experts(const Model &m, const Layer &layer, const ExpertRows &r, float *scratch) {
    const ExpertScratch s = layout_experts(m, layer, r.rows, scratch);
    place_rows(m, layer, r, s);
    compute_places(m, layer, r.rows, s);
    add_places(m, layer, r, s);
}

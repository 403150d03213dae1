// What Python hands over: library.py repeats these field by field. All memory is Python's.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <omp.h>
#include <type_traits>

#if defined(__linux__) && defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ROSE_X86
#include <cpuid.h>
#if __GNUC__ >= 11  // the first that knows AMX and AVX-VNNI
#define ROSE_X86_GCC_11
#endif
#endif

namespace rose {

using bfloat = std::uint16_t;

// How a matrix keeps its weights. From INT8 on they are quantized: see Format in quantized.h and
// WideFormat in wide.h.
enum WeightType : std::int64_t {
    FLOAT32 = 0,
    BFLOAT16 = 1,
    INT8 = 2,
    INT4 = 3,
    INT8_MINIMUM = 4,
    INT4_MINIMUM = 5,
    INT8_ZERO = 6,
    INT4_ZERO = 7,
    Q4_K = 8,
    Q5_K = 9,
    Q6_K = 10,
    WIDE_INT8 = 11,
    WIDE_INT4 = 12,
    CODES = 13,
};

// Weights [outputs, inputs], packed: see tiles.h and quantized.h. `bias` [outputs] is padded to whole
// panels. The outputs of `next`, if any, follow: of quantized weights they may be of another type.
struct Matrix {
    const void *panels;
    const float *bias;
    const Matrix *next;
    std::int64_t outputs, inputs, type;
};

// Over the last dimension, with a bias a layer norm, without one an RMS norm. No weight: no norm.
struct Norm {
    const float *weight, *bias;
};

// How a router's outputs become scores.
enum Scoring : std::int64_t { SOFTMAX = 0, SIGMOID = 1 };

// A mixture of experts: each token's MLPs are `chosen` of `count`. The layer's gate_up and down have
// those of all, the outputs of one after those of another.
struct Experts {
    Matrix router;                       // float32; the shared expert's gate, if any, is its last output
    Matrix shared_gate_up, shared_down;  // of an expert that computes all tokens; no panels: none
    const float *bias;                   // [count], added to the scores that are compared, or null
    const float *scales;                 // [count], factors of the weights, or null
    Norm router_norm;                    // of what the router reads; no weight: the experts' own
    std::int64_t count, chosen, scoring;
    std::int64_t groups, chosen_groups;  // the experts that are chosen are of so many groups,
    std::int64_t compared;               // those whose highest so many, 1 or 2, have the largest sums
    std::int64_t normalizes, gates_shared;
    float scale;  // of the weights
};

// How a layer with a state mixes the tokens of a sequence.
enum Mixing : std::int64_t { SHORT_CONVOLUTION = 0, DELTA_RULE = 1, STATE_SPACE = 2 };

// A layer with a state: a convolution over the last `kernel` inputs of each channel, and behind it, but
// for a SHORT_CONVOLUTION, a recurrence: see states.h.
struct Mixer {
    Matrix input, output;
    Norm norm;                       // [heads * values], over `normed` of a row's outputs at a time
    const float *taps, *bias;        // [kernel, channels], the oldest input's first; [channels] or null
    const float *decay, *step_bias;  // [heads], of what a step's logarithm of a decay is made
    const float *skip;               // [heads], how much of its values a token's outputs have; or null
    const float *multipliers;        // of all outputs of `input`, or null
    void *inputs;                    // the states: [slots, kernel - 1, channels], as the cache has them,
    float *sums;                     // and [slots, heads, keys, values]
    std::int64_t mixing, channels, kernel;
    std::int64_t groups, heads, keys, values;  // as many heads as a group has share queries and keys
    std::int64_t normed, gates_last;  // or before the norm, if there is any
    float epsilon, beta_scale, least_step, most_step;
};

// Attention whose keys and values are made of one latent for each token, which the cache has instead:
// see latents.h.
struct Latent {
    Matrix query;  // makes the queries of the first of what `qkv` makes; no panels: those are the queries
    Matrix keys;   // [heads * latent, unrotated], what makes a head's keys, transposed
    Matrix values;  // [heads * values, latent], what makes a head's values
    Norm query_norm, norm;
    float epsilon;
};

// An MLP that computes all tokens beside the experts, with norms of its own.
struct DenseMlp {
    Matrix gate_up, down;
    Norm before, after, after_experts;
};

struct Layer {
    // gate_up: the gate's outputs, if any, then the others. No panels: no such branch.
    Matrix qkv, output, gate_up, down;
    Matrix input_gate, input_output;    // of the branch with the layer's own inputs, see LayerInputs
    const Mixer *mixer;                 // instead of attention or beside it, or null
    const Latent *latent;               // with attention, or null
    const Experts *experts;             // null: one MLP
    const DenseMlp *dense;              // with experts, or null
    Norm before_attention, after_attention, before_mlp, after_mlp, query, key, value, after_input;
    const float *cosines, *sines;  // [positions, rotary / 2], or null
    void *keys, *values;           // see attention.h
    std::int64_t window;           // keys that a query sees, itself included; 0: all before it
    const float *sinks;            // [heads], scores of a key without a value, or null
    std::int64_t heads, kv_heads, key_dim, value_dim, rotary;
    std::int64_t shares_kv;  // keys and values are those of a layer before it: qkv has queries only
    std::int64_t values_are_keys;  // but for norm and rotation: qkv has them once
    std::int64_t bidirectional;    // queries see later keys too, with a window as many as earlier ones
    float scaling, softcap;        // of the scores; 0: no cap
    float attention_scale, mixer_scale, mlp_scale;  // of what each branch adds
    float scale;                                    // of the hidden states behind all of them
};

// CLAMPED: SiLU with a slope of `gate_slope`, of gates up to `gate_limit`; what they multiply is in
// between, and one more.
enum Activation : std::int64_t { SILU = 0, GELU_TANH = 1, CLAMPED = 2, RELU_SQUARED = 3, GELU = 4 };

// Inputs that each layer has of its own for each token: made of the token's embedding and, without
// what is before it, of its id.
struct LayerInputs {
    const void *embedding;  // [vocabulary, layers * width], of the same type as the model's
    Matrix projection;      // [layers * width, hidden]
    Norm norm;              // [width], of what it makes for a layer
    std::int64_t width;
    float embedding_scale, projection_scale, scale;  // of the sum of both
};

// What a model begins with that drafts for another one: `projection` [hidden, 2 * hidden] of a token's
// embedding and of the other's hidden states behind the token before, each through a norm.
struct DraftInputs {
    Matrix projection;
    Norm embedding, hidden;
};

struct Model {
    const Layer *layers;
    const LayerInputs *inputs;  // or null
    const DraftInputs *drafts;  // or null
    const void *embedding;      // [vocabulary, hidden]; null: the head's weights serve
    const float *positions;     // [context, hidden] to be added, or null
    const float *query_scales;  // [context], factors of queries by their positions, or null
    Matrix head;
    Norm last;
    std::int64_t embedding_is_bfloat, cache_is_bfloat;
    // What ids, positions, tables and states may name; no slots: no layer has a state.
    std::int64_t embedding_rows, context, blocks, slots;
    std::int64_t count, hidden;
    std::int64_t inner;  // of the widest MLP, experts aside, or inputs of a layer
    std::int64_t gated, activation, block_size;
    std::int64_t norms_rows;  // norms of queries and keys are over all heads of a row, not over each
    std::int64_t norms_by_head;  // they are over each, which has weights of its own
    std::int64_t norms_rotated;  // they are behind the rotation
    std::int64_t rotates_neighbours;  // pairs of one angle are (0, 1), (2, 3) and so on, not halves
    std::int64_t norms_sums;  // norms behind a branch are of its sum with the hidden states
    std::int64_t parallel;            // MLPs read what attention read, not what it made of that
    std::int64_t gates_attention;  // what it makes is multiplied by gates, which follow the queries
    std::int64_t has_latents;      // all layers that attend have one
    float epsilon, embedding_scale, logit_softcap, gate_limit, gate_slope, gate_scale;
};

// The state of a sequence behind a token of it is written to a slot.
struct StateWrite {
    std::int64_t sequence, token, slot;
};

// One packed batch: `sequences` sequences with some new tokens each, side by side in `rows` rows.
struct Step {
    const std::int64_t *ids;       // [rows]
    const std::int64_t *first;     // [sequences + 1], the first row of each; the last: rows
    const std::int64_t *computed;  // [sequences], tokens before the new ones
    const std::int64_t *tables;    // block numbers, sequence after sequence
    const std::int64_t *table_offsets;  // [sequences], where each one's table begins
    const std::int64_t *slots;            // [sequences], where each one's state is, or null
    const StateWrite *writes;             // [written], by sequence and token
    const std::int64_t *kept;           // [kept_rows], the rows that leave the last layer, ascending
    const std::int64_t *logit_indices;  // [logit_rows], the kept ones with logits; null: all or none
    const float *embedded;         // [rows, hidden], what the first layer reads; null: the ids' embeddings
    const float *before;           // [rows, hidden], see DraftInputs
    float *hidden;                 // [kept_rows, hidden], what the head reads, or null
    float *logits;                 // [logit_rows, vocabulary]
    float *scratch;                // as much as rose_scratch says
    const std::int32_t *routes;    // [layers with experts][rows][chosen], the experts to take, or null
    std::int64_t *agreed;          // how many of these would have been chosen too: is added to it
    std::int64_t rows, sequences, kept_rows, logit_rows, table_entries, written;
    std::int64_t threads;  // at most; `scratch` was measured for as many
};

// One layer's recurrence over a packed batch, see recurrence.h.
struct Recurrence {
    const float *query, *key;   // [rows][groups, keys], rows `key_stride` floats apart
    const float *value;         // [rows][heads, values], rows `value_stride` apart
    const float *decay, *beta;  // [rows][heads], rows `decay_stride` apart; beta may be null
    float *out;                 // [rows][heads, values], rows `out_stride` apart
    float *sums;                // [slots, heads, keys, values]
    float *scratch;             // [threads, keys, 64]
    const std::int64_t *starts, *ends, *slots;  // [sequences]: rows, and where the state is
    const StateWrite *writes;                   // [written], by sequence and token
    std::int64_t key_stride, value_stride, decay_stride, out_stride;
    std::int64_t sequences, groups, heads, keys, values, written, threads;
    std::int64_t delta;  // what is added is by the delta rule, else beta times the value
};

// One row of logits to sample from; see sampling.h. top_k 0: all.
struct SampleRequest {
    const float *logits;
    std::int64_t top_k, seed, position;
    double top_p, temperature, min_p;  // temperature 0: the largest; else a normal float
};

}  // namespace rose

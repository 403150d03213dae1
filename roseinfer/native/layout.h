// Where the fields of the shared structures lie, for library.py to compare with its own: a library
// built from other sources must not be called.
#pragma once

#include <cstddef>

#include "types.h"

namespace rose {

struct Field {
    const char *name;
    std::int64_t offset, size;
};

#define WHOLE(type) {#type, 0, sizeof(type)}
#define FIELD(type, name) {#type "." #name, offsetof(type, name), sizeof(type::name)}

const Field layout[] = {
    WHOLE(Matrix),
    FIELD(Matrix, panels),
    FIELD(Matrix, bias),
    FIELD(Matrix, next),
    FIELD(Matrix, outputs),
    FIELD(Matrix, inputs),
    FIELD(Matrix, type),

    WHOLE(Norm),
    FIELD(Norm, weight),
    FIELD(Norm, bias),

    WHOLE(Experts),
    FIELD(Experts, router),
    FIELD(Experts, shared_gate_up),
    FIELD(Experts, shared_down),
    FIELD(Experts, bias),
    FIELD(Experts, count),
    FIELD(Experts, chosen),
    FIELD(Experts, scoring),
    FIELD(Experts, groups),
    FIELD(Experts, chosen_groups),
    FIELD(Experts, normalizes),
    FIELD(Experts, gates_shared),
    FIELD(Experts, scale),

    WHOLE(Layer),
    FIELD(Layer, qkv),
    FIELD(Layer, output),
    FIELD(Layer, gate_up),
    FIELD(Layer, down),
    FIELD(Layer, experts),
    FIELD(Layer, before_attention),
    FIELD(Layer, after_attention),
    FIELD(Layer, before_mlp),
    FIELD(Layer, after_mlp),
    FIELD(Layer, query),
    FIELD(Layer, key),
    FIELD(Layer, cosines),
    FIELD(Layer, sines),
    FIELD(Layer, keys),
    FIELD(Layer, values),
    FIELD(Layer, window),
    FIELD(Layer, sinks),
    FIELD(Layer, scaling),
    FIELD(Layer, softcap),

    WHOLE(Model),
    FIELD(Model, layers),
    FIELD(Model, embedding),
    FIELD(Model, positions),
    FIELD(Model, head),
    FIELD(Model, last),
    FIELD(Model, embedding_is_bfloat),
    FIELD(Model, cache_is_bfloat),
    FIELD(Model, embedding_rows),
    FIELD(Model, context),
    FIELD(Model, blocks),
    FIELD(Model, count),
    FIELD(Model, hidden),
    FIELD(Model, heads),
    FIELD(Model, kv_heads),
    FIELD(Model, key_dim),
    FIELD(Model, value_dim),
    FIELD(Model, rotary),
    FIELD(Model, inner),
    FIELD(Model, gated),
    FIELD(Model, activation),
    FIELD(Model, block_size),
    FIELD(Model, norms_rows),
    FIELD(Model, rotates_neighbours),
    FIELD(Model, parallel),
    FIELD(Model, epsilon),
    FIELD(Model, embedding_scale),
    FIELD(Model, logit_softcap),
    FIELD(Model, gate_limit),
    FIELD(Model, gate_slope),

    WHOLE(Step),
    FIELD(Step, ids),
    FIELD(Step, first),
    FIELD(Step, computed),
    FIELD(Step, tables),
    FIELD(Step, table_offsets),
    FIELD(Step, logit_indices),
    FIELD(Step, logits),
    FIELD(Step, scratch),
    FIELD(Step, routes),
    FIELD(Step, agreed),
    FIELD(Step, rows),
    FIELD(Step, sequences),
    FIELD(Step, logit_rows),
    FIELD(Step, table_entries),
    FIELD(Step, threads),

    WHOLE(Recurrence),
    FIELD(Recurrence, query),
    FIELD(Recurrence, key),
    FIELD(Recurrence, value),
    FIELD(Recurrence, decay),
    FIELD(Recurrence, beta),
    FIELD(Recurrence, out),
    FIELD(Recurrence, sums),
    FIELD(Recurrence, scratch),
    FIELD(Recurrence, starts),
    FIELD(Recurrence, lengths),
    FIELD(Recurrence, slots),
    FIELD(Recurrence, writes),
    FIELD(Recurrence, sequences),
    FIELD(Recurrence, heads),
    FIELD(Recurrence, keys),
    FIELD(Recurrence, values),
    FIELD(Recurrence, written),
    FIELD(Recurrence, threads),

    WHOLE(SampleRequest),
    FIELD(SampleRequest, logits),
    FIELD(SampleRequest, top_k),
    FIELD(SampleRequest, seed),
    FIELD(SampleRequest, position),
    FIELD(SampleRequest, top_p),
    FIELD(SampleRequest, temperature),
    FIELD(SampleRequest, min_p),
};

#undef WHOLE
#undef FIELD

}  // namespace rose

// Refuses a step that would read or write outside of what Python handed over. It costs one look at
// each id and each block number, once a step; the decoder then trusts them in every layer.
#pragma once

#include "types.h"

namespace rose {

// library.py repeats the numbers.
enum Fault : int { NONE = 0, BAD_ROWS, BAD_ID, BAD_POSITION, BAD_TABLE, BAD_BLOCK, BAD_LOGIT_ROW, BAD_ROUTE, BAD_STATE };

// Also false for negative ones.
inline bool is_below(std::int64_t value, std::int64_t limit) {
    return static_cast<std::uint64_t>(value) < static_cast<std::uint64_t>(limit);
}

inline bool ascend_below(const std::int64_t *rows, std::int64_t count, std::int64_t limit) {
    for (std::int64_t i = 0; i < count; ++i)
        if (!is_below(rows[i], limit) || (i > 0 && rows[i] <= rows[i - 1])) return false;
    return true;
}

inline Fault check_sequence(const Model &m, const Step &step, std::int64_t sequence) {
    const std::int64_t tokens = step.first[sequence + 1] - step.first[sequence];
    const std::int64_t computed = step.computed[sequence];
    if (tokens < 1) return BAD_ROWS;
    if (!is_below(computed, m.context) || tokens > m.context - computed) return BAD_POSITION;
    const std::int64_t blocks = (computed + tokens - 1) / m.block_size + 1;
    const std::int64_t begin = step.table_offsets[sequence];
    if (begin < 0 || begin > step.table_entries || blocks > step.table_entries - begin)
        return BAD_TABLE;
    for (std::int64_t b = begin; b < begin + blocks; ++b)
        if (!is_below(step.tables[b], m.blocks)) return BAD_BLOCK;
    return NONE;
}

inline Fault check_routes(const Model &m, const Step &step) {
    if (!step.routes) return NONE;
    if (step.kept_rows != step.rows) return BAD_ROUTE;
    const std::int32_t *route = step.routes;
    for (std::int64_t i = 0; i < m.count; ++i)
        if (const Experts *experts = m.layers[i].experts)
            for (const std::int32_t *end = route + step.rows * experts->chosen; route < end; ++route)
                if (!is_below(*route, experts->count)) return BAD_ROUTE;
    return NONE;
}

inline Fault check_states(const Model &m, const Step &step) {
    if (!m.slots) return NONE;
    for (std::int64_t i = 0; i < step.sequences; ++i)
        if (!is_below(step.slots[i], m.slots)) return BAD_STATE;
    for (std::int64_t i = 0; i < step.written; ++i) {
        const StateWrite &write = step.writes[i], &last = step.writes[i > 0 ? i - 1 : 0];
        if (!is_below(write.sequence, step.sequences) || !is_below(write.slot, m.slots) ||
            !is_below(write.token, step.first[write.sequence + 1] - step.first[write.sequence]) ||
            write.sequence < last.sequence ||
            (write.sequence == last.sequence && write.token < last.token))
            return BAD_STATE;
    }
    return NONE;
}

inline Fault check(const Model &m, const Step &step) {
    if (step.rows < 1 || step.sequences < 1 || step.threads < 1 || m.block_size < 1 ||
        step.first[0] != 0 || step.first[step.sequences] != step.rows || (m.drafts && !step.before))
        return BAD_ROWS;
    if (!step.embedded)
        for (std::int64_t row = 0; row < step.rows; ++row)
            if (!is_below(step.ids[row], m.embedding_rows)) return BAD_ID;
    for (std::int64_t sequence = 0; sequence < step.sequences; ++sequence)
        if (const Fault fault = check_sequence(m, step, sequence)) return fault;
    if (!ascend_below(step.kept, step.kept_rows, step.rows)) return BAD_LOGIT_ROW;
    if (step.logit_indices ? !ascend_below(step.logit_indices, step.logit_rows, step.kept_rows)
                           : step.logit_rows != step.kept_rows && step.logit_rows != 0)
        return BAD_LOGIT_ROW;
    if (const Fault fault = check_states(m, step)) return fault;
    return check_routes(m, step);
}

}  // namespace rose

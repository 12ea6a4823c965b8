#include "ir/memplan.h"

#include "core/mem.h"

#include <string.h>

bool qn_buffer_bytes(int64_t *out, const qn_plan_buffer *buffer,
                     const int64_t symbols[QN_SYM_COUNT]) {
    int64_t bytes;
    if (!qn_i64_mul(&bytes, buffer->rows.n, symbols[buffer->rows.sym]) ||
        !qn_i64_mul(&bytes, bytes, buffer->row_bytes) ||
        !qn_i64_add(&bytes, bytes, QN_BUFFER_ALIGN - 1))
        return false;
    *out = bytes / QN_BUFFER_ALIGN * QN_BUFFER_ALIGN;
    return true;
}

// The living buffers, by address.
typedef struct arena_map {
    const qn_plan *plan;
    const int64_t *symbols;
    int64_t *offsets;
    int32_t *living;
    int32_t n;
} arena_map;

static void drop_dead(arena_map *m, int32_t call) {
    int32_t kept = 0;
    for (int32_t i = 0; i < m->n; i++) {
        if (m->plan->buffers[m->living[i]].last >= call) m->living[kept++] = m->living[i];
    }
    m->n = kept;
}

// The lowest gap of at least `bytes`; *at is the place in `living`.
static bool find_gap(int64_t *offset, int32_t *at, const arena_map *m, int64_t bytes) {
    int64_t end = 0;
    for (*at = 0; *at < m->n; (*at)++) {
        const int32_t id = m->living[*at];
        int64_t size;
        if (m->offsets[id] - end >= bytes) break;
        if (!qn_buffer_bytes(&size, &m->plan->buffers[id], m->symbols)) return false;
        end = m->offsets[id] + size;
    }
    *offset = end;
    return true;
}

bool qn_memplan(qn_memplan_report *out, int64_t *offsets, int32_t *living, const qn_plan *plan,
                const int64_t symbols[QN_SYM_COUNT]) {
    arena_map m = {.plan = plan, .symbols = symbols, .offsets = offsets, .living = living};
    qn_memplan_report report = {0};
    for (size_t i = 0; i < plan->n_buffers; i++) {
        int64_t bytes, end;
        int32_t at;
        drop_dead(&m, plan->buffers[i].first);
        if (!qn_buffer_bytes(&bytes, &plan->buffers[i], symbols) ||
            !find_gap(&offsets[i], &at, &m, bytes) || !qn_i64_add(&end, offsets[i], bytes) ||
            !qn_i64_add(&report.total, report.total, bytes))
            return false;
        memmove(&living[at + 1], &living[at], (size_t)(m.n - at) * sizeof *living);
        living[at] = (int32_t)i;
        m.n++;
        if (end > report.peak) report.peak = end;
    }
    *out = report;
    return true;
}

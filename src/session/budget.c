#include "session/budget.h"

qn_status qn_budget_measure(int64_t *out, const qn_runner_opts *o, qn_err *err) {
    const qn_state_opts state = {.layout = o->engine->layout,
                                 .context = o->context,
                                 .step_rows = o->rows,
                                 .n_seqs = o->n_seqs,
                                 .kept_bytes = o->kept_bytes,
                                 .positions = o->positions};
    qn_state_size size;
    QN_TRY(qn_state_measure(&size, &state, err));
    *out = size.all;
    return QN_OK;
}

qn_status qn_budget_fit(qn_runner_opts *o, int64_t budget, qn_err *err) {
    int64_t low = o->context / QN_PAGE_ROWS, high = o->n_seqs * (low + 1), bytes;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        o->positions = middle * QN_PAGE_ROWS > o->context ? middle * QN_PAGE_ROWS : o->context;
        QN_TRY(qn_budget_measure(&bytes, o, err));
        if (bytes <= budget)
            low = middle;
        else
            high = middle - 1;
    }
    o->positions = low * QN_PAGE_ROWS > o->context ? low * QN_PAGE_ROWS : o->context;
    return QN_OK;
}

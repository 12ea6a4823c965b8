// Experts that are not all on the card. Once the router of an EXPERTS op has run, what it has
// chosen is read back, missing experts are brought from this process's memory (qn_pager), and the
// calls that multiply run for those that are there, one group after the other.
#include "backends/cuda/cuda_program.h"

#include "core/mem.h"

#include <string.h>

// Stages of the op between its router and the sum of its experts, which is what they read.
enum { FIRST_READING = 1, LAST_READING = 3, FIRST_MATRIX = 2 };

// --- binding -------------------------------------------------------------------------------------

static qn_status find_matrices(bool *is_paged, qn_cuda_paged *to, const qn_program_plan *from,
                               const qn_plan_call *call, qn_err *err) {
    const qn_pager *pager = from->pager;
    *is_paged = false;
    for (int k = 0; k < call->n_in; k++) {
        const qn_plan_arg *arg = &call->in[k];
        const unsigned char *const *places;
        int32_t layer;
        if (arg->place != QN_PLACE_PARAM) continue;
        const qn_plan_leaf *leaf = &from->plan->leaves[QN_PLACE_PARAM][arg->index];
        if (!pager->find(pager->arg, leaf->name, &layer, &places)) continue;
        if (call->op != QN_OP_EXPERTS)
            return QN_FAIL(err, UNSUPPORTED,
                           "%s reads weight %s, of which not all experts are there",
                           qn_op_get(call->op)->name, leaf->name);
        to->places[k - FIRST_MATRIX] = places;
        to->layer = layer;
        *is_paged = true;
    }
    return QN_OK;
}

qn_status qn_cuda_bind_experts(qn_cuda_program *x, qn_cuda_plan *p, const qn_program_plan *from,
                               qn_err *err) {
    const qn_plan *plan = from->plan;
    int64_t chosen = 1, bytes;
    if (!from->pager) return QN_OK;
    p->pager = from->pager;
    p->paged = qn_alloc(plan->n_calls, sizeof *p->paged);
    if (!p->paged) return QN_NOMEM(err, "plan");
    for (size_t i = 0; i < plan->n_calls; i++) {
        const qn_plan_call *call = &plan->calls[i];
        qn_cuda_paged *to = &p->paged[p->n_paged];
        bool is_paged;
        QN_TRY(find_matrices(&is_paged, to, from, call, err));
        if (!is_paged || call->stage != FIRST_READING) continue;
        to->first = i;
        to->end = i + 1 + LAST_READING - FIRST_READING;
        to->n_experts = call->in[1].width;
        x->most_experts = qn_max(x->most_experts, to->n_experts);
        chosen = qn_max(chosen, plan->buffers[call->temp[0].index].row_bytes);
        p->n_paged++;
    }
    if (!qn_i64_mul(&bytes, chosen, qn_max(x->max.rows, 1)))
        return QN_FAIL(err, LIMIT, "the choices of %lld rows overflow", (long long)x->max.rows);
    p->chosen = qn_alloc((size_t)bytes, 1);
    p->wanted = qn_alloc((size_t)x->most_experts + 1, 3 * sizeof *p->wanted);
    p->table = qn_alloc((size_t)x->most_experts + 1, QN_CUDA_MATRICES * sizeof *p->table);
    return p->chosen && p->wanted && p->table ? QN_OK : QN_NOMEM(err, "experts");
}

void qn_cuda_place_experts(const qn_cuda_program *x, qn_cuda_plan *p) {
    for (size_t i = 0; i < p->n_paged; i++) {
        // The router and the sum, too: they belong to the same op.
        for (size_t c = p->paged[i].first - 1; c <= p->paged[i].end; c++) {
            for (int k = 0; k < QN_CUDA_MATRICES; k++) {
                qn_cuda_operand *w = &p->calls[c].task.in[FIRST_MATRIX + k];
                w->parts /= p->paged[i].n_experts;
                w->is_tiled = w->is_weight && qn_cuda_is_tiled(w->type, w->parts, w->width);
                w->places = x->places + k * p->paged[i].n_experts;
            }
        }
    }
}

void qn_cuda_free_experts(qn_cuda_plan *p) {
    qn_free(p->paged);
    qn_free(p->chosen);
    qn_free(p->wanted);
    qn_free(p->table);
}

// --- running -------------------------------------------------------------------------------------

// What a step has chosen, when all that was launched is done.
static bool read_chosen(qn_cuda_program *x, const qn_cuda_task *task) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const qn_cuda_operand *ids = &task->temp[0];
    const size_t bytes = (size_t)(task->rows * ids->stride);
    return !d->error &&
           qn_cuda_check(d, d->api->get(d->stream, x->now->chosen, ids->data, bytes),
                         "reading what a router chose") &&
           qn_cuda_check(d, d->api->wait(d->stream), "waiting for a router");
}

// The experts that are wanted, ascending, and for how many rows each. Returns how many.
static int32_t list_chosen(const qn_cuda_plan *p, const qn_cuda_task *task, int64_t n_experts) {
    int32_t *wanted = p->wanted, *rows = wanted + n_experts, n = 0;
    memset(rows, 0, (size_t)n_experts * sizeof *rows);
    for (int64_t r = 0; r < task->rows; r++) {
        const int32_t *ids = (const int32_t *)(const void *)(p->chosen + r * task->temp[0].stride);
        for (int64_t k = 0; k < task->temp[0].width; k++)
            if (ids[k] >= 0 && ids[k] < n_experts) rows[ids[k]]++;
    }
    for (int32_t e = 0; e < n_experts; e++) {
        if (!rows[e]) continue;
        wanted[n] = e;
        rows[n++] = rows[e];
    }
    return n;
}

// The calls of an op for `n` experts that are there; other choices are left as they are.
static void launch_group(qn_cuda_program *x, const qn_cuda_paged *paged, const int32_t *experts,
                         int32_t n) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const qn_cuda_plan *p = x->now;
    const size_t entries = QN_CUDA_MATRICES * (size_t)paged->n_experts;
    memset(p->table, 0, entries * sizeof *p->table);
    for (int32_t i = 0; i < n; i++) {
        for (int k = 0; k < QN_CUDA_MATRICES; k++)
            p->table[k * paged->n_experts + experts[i]] = paged->places[k][experts[i]];
    }
    if (!d->error)
        (void)qn_cuda_check(d,
                            d->api->put(d->stream, x->places, p->table, entries * sizeof *p->table),
                            "telling where experts lie");
    for (size_t c = paged->first; c < paged->end; c++) qn_cuda_launch_call(x, c);
}

bool qn_cuda_end_experts(qn_cuda_program *x) {
    const qn_pager *pager = x->begun;
    x->begun = NULL;
    return !pager || pager->next(pager->arg, x->now->wanted) == 0;
}

// The last group of an op stays where it is until the card is waited for anyway: for the next op's
// router, or at the end.
bool qn_cuda_run_experts(qn_cuda_program *x, const qn_cuda_paged *paged) {
    qn_cuda_device *d = qn_cuda_card_of(x);
    const qn_cuda_plan *p = x->now;
    const qn_cuda_task *task = &p->calls[paged->first].task;
    if (task->rows == 0) return true;
    const bool is_read = read_chosen(x, task);
    if (!qn_cuda_end_experts(x) || !is_read) return false;
    int32_t left = list_chosen(p, task, paged->n_experts), n;
    int32_t *given = p->wanted + 2 * paged->n_experts;
    p->pager->begin(p->pager->arg, paged->layer, p->wanted, p->wanted + paged->n_experts, left);
    while ((n = p->pager->next(p->pager->arg, given)) > 0) {
        launch_group(x, paged, given, n);
        left -= n;
        if (left == 0) {
            x->begun = p->pager;
            return true;
        }
        if (!d->error) (void)qn_cuda_check(d, d->api->wait(d->stream), "computing experts");
    }
    return n == 0;
}

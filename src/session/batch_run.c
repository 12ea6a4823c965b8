// A step of a batch: rows that were removed or missed their deadline end, queued ones begin while
// there is room, and all active ones are computed. Where that needs more room than there is, the
// youngest is preempted: it keeps its tokens and continues after prefilling them again. Results do
// not depend on chunking, so its next token is the same.
//
// Where the runner has lanes (qn_runner_begin), each call begins a step of a share of the rows, and
// brings back the one that began longest ago once all lanes are in use. Rows take turns, and one
// that is under way is left alone: it does not end, leave, or give room before its step has ended.
#include "session/batch_int.h"

#include "core/mem.h"
#include "core/stop_flag.h"

#include <string.h>

// --- lists ---------------------------------------------------------------------------------------

static void insert(qn_batch_row **list, qn_batch_row *row) {
    while (*list && (*list)->id < row->id) list = &(*list)->next;
    row->next = *list;
    *list = row;
}

static void unlink_row(qn_batch_row **list, const qn_batch_row *row) {
    while (*list != row) list = &(*list)->next;
    *list = row->next;
}

// --- ending --------------------------------------------------------------------------------------

// Takes the row out of the batch; its id is invalid afterwards.
static void forget(qn_batch_row *row) {
    qn_batch *b = row->batch;
    pthread_mutex_lock(&b->lock);
    if (row->before)
        row->before->after = row->after;
    else
        b->all = row->after;
    if (row->after) row->after->before = row->before;
    b->n_rows--;
    pthread_mutex_unlock(&b->lock);
}

// Hands over the result, and leaves the state to the prefix cache.
static void finish(qn_batch_row *row) {
    qn_batch *b = row->batch;
    qn_generation *g = row->generation;
    b->n_ended++;
    b->n_failed += g->result.reason == QN_REASON_FAILED;
    b->n_reused += g->is_begun ? g->result.n_reused : 0;
    if (!row->is_borrowed && g->result.reason != QN_REASON_FAILED && row->session->seq)
        qn_session_remember(row->session);
    if (row->err) *row->err = g->err;
    if (row->result) {
        *row->result = g->result;
        g->result = QN_INIT(qn_result);
    }
    forget(row);
    qn_batch_row_destroy(row);
}

static bool is_stopped(const qn_generation *g) {
    return qn_stop_is_wanted(g->opts.stop) || qn_stop_is_wanted(g->session->stop);
}

// Drops rows of a list that were removed or stopped, have ended, or are past their deadline, but
// not those under way; returns how many.
static int64_t sweep(qn_batch_row **list, int64_t now) {
    int64_t n = 0;
    while (*list) {
        qn_batch_row *row = *list;
        qn_generation *g = row->generation;
        const bool is_removed = atomic_load(&row->is_removed);
        if (g->is_under_way) {
            list = &row->next;
            continue;
        }
        if (!is_removed && qn_generation_is_active(g) && row->deadline && now >= row->deadline)
            qn_generation_stop(g, QN_REASON_DEADLINE);
        if (!is_removed && qn_generation_is_active(g) && is_stopped(g))
            qn_generation_stop(g, QN_REASON_STOPPED);
        if (!is_removed && qn_generation_is_active(g)) {
            list = &row->next;
            continue;
        }
        *list = row->next;
        finish(row);
        n++;
    }
    return n;
}

// --- beginning -----------------------------------------------------------------------------------

static int64_t pages_for(size_t rows) { return (int64_t)(rows + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS; }

// Whether the history of a row is still its prompt, so that it can start from another's prefill.
static bool is_at_prompt(const qn_batch_row *row) {
    const qn_generation *g = row->generation;
    return g->result.n_tokens == 0 && g->result.n_shifts == 0 && !qn_generation_shows_prompt(g);
}

static bool can_take_prefilled(const qn_batch_row *row) {
    return row->prompt && row->prompt->prefilled && is_at_prompt(row);
}

// Pages that a row will need soon, besides those that it has: for its history, and one to grow.
static int64_t pages_wanted(const qn_session *s) {
    const int64_t max = pages_for((size_t)s->context), soon = pages_for(s->n_tokens + 1) + 1;
    return (soon < max ? soon : max) - pages_for(s->seq ? (size_t)qn_seq_end(s->seq) : 0);
}

// Whether there are pages for the row's history, besides those that the active rows will need. A
// row alone always begins.
static bool has_room(const qn_batch *b, const qn_batch_row *row) {
    if (b->n_active == 0 || !b->shared) return true;
    int64_t need = can_take_prefilled(row) ? 1 : pages_wanted(row->session);
    for (const qn_batch_row *other = b->active; other; other = other->next)
        need += pages_wanted(other->session);
    return need <= qn_state_free_pages(qn_runner_state(b->shared->runner));
}

// Takes a place in the runner, with the prefilled prompt where there is one.
static qn_status take_place(qn_batch_row *row, qn_err *err) {
    qn_batch_prompt *prompt = row->prompt;
    const int64_t others = prompt ? prompt->n_waiting - !row->has_begun : 0;
    if (can_take_prefilled(row))
        QN_TRY(qn_session_take_state(row->session, prompt->prefilled, others == 0, err));
    else
        QN_TRY(qn_session_enter(row->session, err));
    const qn_generation *g = row->generation;
    const bool prefills =
        others > 0 && !prompt->prefilled && g->result.n_tokens == 0 && !g->opts.naive;
    if (prefills) prompt->prefiller = row;
    row->generation->leaves_logits = prefills;
    if (prompt) prompt->n_waiting = others;
    row->has_begun = true;
    if (prompt && others == 0) { // moved to this row, or needed by nobody
        qn_session_destroy(prompt->prefilled);
        prompt->prefilled = NULL;
    }
    return QN_OK;
}

// Where the draft model's runner has no place, the row goes without drafts.
static qn_status begin_row(qn_batch_row *row, qn_err *err) {
    QN_TRY(take_place(row, err));
    const qn_status status = row->draft ? qn_session_enter(row->draft, err) : QN_OK;
    return status == QN_LIMIT ? QN_OK : status;
}

// Drops a prompt that was prefilled for queued rows: they prefill it again.
static bool drop_prefilled(qn_batch *b) {
    for (const qn_batch_row *row = b->queue; row; row = row->next) {
        qn_batch_prompt *prompt = row->prompt;
        if (!prompt || !prompt->prefilled) continue;
        qn_session_destroy(prompt->prefilled);
        prompt->prefilled = NULL;
        return true;
    }
    return false;
}

// Rows begin in order while there are places and pages; none overtakes one that waits for those. A
// row that is alone and cannot begin fails.
static void admit(qn_batch *b) {
    qn_batch_row **link = &b->queue;
    while (*link && b->n_active < b->max_rows) {
        qn_batch_row *row = *link;
        qn_generation *g = row->generation;
        if (row->prompt && row->prompt->prefiller) { // will prefill for this one
            link = &row->next;
            continue;
        }
        if (!has_room(b, row)) return;
        const qn_status status = begin_row(row, &g->err);
        if (status == QN_LIMIT && (b->n_active > 0 || drop_prefilled(b))) {
            if (b->n_active > 0) return;
            continue;
        }
        *link = row->next;
        if (status) {
            qn_generation_fail(g, status);
            finish(row);
            continue;
        }
        insert(&b->active, row);
        b->n_active++;
    }
}

// --- preemption ----------------------------------------------------------------------------------

static bool preempt(qn_batch *b) {
    if (drop_prefilled(b)) return true;
    if (b->n_active < 2) return false;
    qn_batch_row *row = b->active;
    while (row->next) row = row->next;
    unlink_row(&b->active, row);
    b->n_active--;
    b->n_preemptions++;
    row->generation->result.n_preemptions++;
    if (row->prompt && row->prompt->prefiller == row) row->prompt->prefiller = NULL;
    qn_session_remember(row->session); // until somebody needs the memory
    qn_session_leave(row->session);
    qn_drafter_reset(&row->generation->drafter);
    if (row->draft) qn_session_leave(row->draft);
    insert(&b->queue, row);
    return true;
}

// --- the step ------------------------------------------------------------------------------------

// Keeps a prompt that was prefilled to its end for the rows that share it. Without memory for that
// they prefill it themselves.
static void keep_prefilled(qn_batch *b) {
    for (qn_batch_row *row = b->active; row; row = row->next) {
        qn_batch_prompt *prompt = row->prompt;
        if (!prompt || prompt->prefiller != row || row->generation->leaves_logits) continue;
        prompt->prefiller = NULL;
        if (!prompt->n_waiting || !row->session->has_logits) continue;
        qn_err ignored;
        qn_session *prefilled = NULL;
        if (qn_session_prepare(&prefilled, &b->like, b->shared, row->session->n_tokens, &ignored))
            continue;
        qn_session_choose_adapter(prefilled, row->session->adapter);
        qn_session_set_tokens(prefilled, 0, row->session->tokens, row->session->n_tokens);
        if (qn_session_take_state(prefilled, row->session, false, &ignored))
            qn_session_destroy(prefilled);
        else
            prompt->prefilled = prefilled;
    }
}

static int count_lanes(const qn_batch *b) { return b->shared ? b->shared->n_flights : 1; }

// The step that began longest ago comes back, and what has ended by then (0: without deadlines)
// leaves. If it failed, nothing is known of those after it.
static qn_status land(qn_batch *b, int64_t now, qn_err *err) {
    qn_flight *flight = b->under_way[0];
    b->n_under_way--;
    memmove(b->under_way, b->under_way + 1, (size_t)b->n_under_way * sizeof *b->under_way);
    const qn_status status = qn_generations_end(b->shared, flight, err);
    if (status) qn_batch_drop_steps(b);
    keep_prefilled(b);
    b->n_active -= sweep(&b->active, now);
    return status;
}

void qn_batch_drop_steps(qn_batch *b) {
    for (int i = 0; i < b->n_under_way; i++) qn_generations_drop(b->shared, b->under_way[i]);
    b->n_under_way = 0;
}

static int64_t count_free(const qn_batch *b) {
    int64_t n = 0;
    for (const qn_batch_row *row = b->active; row; row = row->next)
        n += !row->generation->is_under_way;
    return n;
}

static int64_t divide_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

// How many rows the next step has: the free ones are shared among the free lanes, but none gets more
// than its share of all rows, so that groups become equal again after rows have ended.
static int64_t count_share(const qn_batch *b) {
    const int lanes = count_lanes(b), n_free = lanes - b->n_under_way;
    return qn_min(divide_up(b->n_active, lanes), divide_up(count_free(b), n_free));
}

static bool writes(const qn_generation *g) { return g->result.n_tokens > 0; }

// Whether rows that write wait for a later step than this one of n rows.
static bool has_company(const qn_batch *b, size_t n) {
    int64_t n_writing = 0;
    for (const qn_batch_row *row = b->active; row; row = row->next)
        n_writing += writes(row->generation);
    for (size_t i = 0; i < n; i++) n_writing -= writes(b->gens[i]);
    return n_writing > 0;
}

// Those after the rows that began last, then those before them.
static size_t choose(qn_batch *b) {
    const int lanes = count_lanes(b);
    const size_t max = (size_t)count_share(b);
    const uint64_t last = lanes > 1 ? b->last_begun : 0;
    size_t n = 0;
    for (int before = 0; before < 2; before++) {
        for (qn_batch_row *row = b->active; row && n < max; row = row->next) {
            if (row->generation->is_under_way || (row->id <= last) != before) continue;
            b->gens[n++] = row->generation;
            b->last_begun = row->id;
        }
    }
    return n;
}

static qn_status land_all(qn_batch *b, int64_t now, qn_err *err) {
    while (b->n_under_way) QN_TRY(land(b, now, err));
    return QN_OK;
}

// Begins a step. Where it has no room, those under way come back first, which may end some rows;
// then the youngest are preempted.
static qn_status begin(bool *has_begun, qn_batch *b, int64_t now, qn_err *err) {
    qn_flight *flight = NULL;
    for (;;) {
        const size_t n = choose(b);
        if (n == 0) return QN_OK;
        if (b->shared) b->shared->has_company = has_company(b, n);
        const qn_status status = qn_generations_begin(&flight, b->gens, n, b->prompt_rows, err);
        *has_begun = !status && flight;
        if (*has_begun) b->under_way[b->n_under_way++] = flight;
        if (status != QN_LIMIT) return status;
        if (b->n_under_way)
            QN_TRY(land_all(b, now, err));
        else if (!preempt(b))
            break;
    }
    qn_generation *g = b->active->generation; // alone, and still without room
    if (err) g->err = *err;
    qn_generation_fail(g, QN_LIMIT);
    return QN_OK;
}

// A step comes back at once where no other can begin beside it; and one does where none has begun.
static bool must_land(const qn_batch *b, bool has_begun) {
    const bool is_alone = b->n_under_way == 1 && (count_lanes(b) == 1 || count_free(b) == 0);
    return b->n_under_way > 0 && (is_alone || !has_begun);
}

static qn_status compute(qn_batch *b, int64_t now, qn_err *err) {
    bool has_begun = false;
    if (b->n_under_way == count_lanes(b)) QN_TRY(land(b, now, err));
    admit(b);
    QN_TRY(begin(&has_begun, b, now, err));
    return must_land(b, has_begun) ? land(b, 0, err) : QN_OK;
}

qn_status qn_batch_run(qn_batch *b, qn_err *err) {
    const int64_t now = b->clock();
    qn_err own; // a row that fails gets a copy
    if (qn_stop_is_wanted(b->like.stop) && land_all(b, now, NULL))
        b->n_under_way = 0; // told by the next
    sweep(&b->queue, now);
    b->n_active -= sweep(&b->active, now);
    const qn_status status = compute(b, now, err ? err : &own);
    sweep(&b->queue, 0);
    b->n_active -= sweep(&b->active, 0);
    return status;
}

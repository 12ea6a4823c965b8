// A step of a batch: rows that were removed or are late go, waiting ones begin while there is room,
// all that have begun are computed, and where that needs more room than there is, the youngest
// gives way. It keeps its tokens, and goes on when it has computed them again: results are the same
// for any chunking, so its next token is the one that it would have been.
#include "session/batch_int.h"

#include "core/stop_flag.h"

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

// Takes the row out of the batch; its id means nothing any more.
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

// What a row leaves: its result, and its state for later prompts that begin with it.
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

// Ends rows of a list that were removed or stopped, have ended, or whose time is over; returns how
// many went.
static int64_t sweep(qn_batch_row **list, int64_t now) {
    int64_t n = 0;
    while (*list) {
        qn_batch_row *row = *list;
        qn_generation *g = row->generation;
        const bool is_removed = atomic_load(&row->is_removed);
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

// Whether the history of a row is still its prompt, so that it can begin with what another has
// read.
static bool is_at_prompt(const qn_batch_row *row) {
    const qn_generation *g = row->generation;
    return g->result.n_tokens == 0 && g->result.n_shifts == 0 && !qn_generation_shows_prompt(g);
}

static bool can_take_read(const qn_batch_row *row) {
    return row->prompt && row->prompt->read && is_at_prompt(row);
}

// Pages that a row will hold soon, besides those that it has: for its history, and one to grow.
static int64_t pages_wanted(const qn_session *s) {
    const int64_t most = pages_for((size_t)s->context), soon = pages_for(s->n_tokens + 1) + 1;
    return (soon < most ? soon : most) - pages_for(qn_session_cached(s));
}

// Whether there are pages for the row's history, besides those that others will need for theirs. A
// row alone always begins.
static bool has_room(const qn_batch *b, const qn_batch_row *row) {
    if (b->n_active == 0 || !b->shared) return true;
    int64_t need = can_take_read(row) ? 1 : pages_wanted(row->session);
    for (const qn_batch_row *other = b->active; other; other = other->next)
        need += pages_wanted(other->session);
    return need <= qn_state_free_pages(qn_runner_state(b->shared->runner));
}

// Takes a place in the runner, with what was read of the prompt or nothing.
static qn_status take_place(qn_batch_row *row, qn_err *err) {
    qn_batch_prompt *prompt = row->prompt;
    const int64_t others = prompt ? prompt->n_waiting - !row->has_begun : 0;
    if (can_take_read(row))
        QN_TRY(qn_session_take_state(row->session, prompt->read, others == 0, err));
    else
        QN_TRY(qn_session_enter(row->session, err));
    const qn_generation *g = row->generation;
    const bool reads = others > 0 && !prompt->read && g->result.n_tokens == 0 && !g->opts.naive;
    if (reads) prompt->reader = row;
    row->generation->leaves_scores = reads;
    if (prompt) prompt->n_waiting = others;
    row->has_begun = true;
    if (prompt && others == 0) { // taken over, or of no more use
        qn_session_destroy(prompt->read);
        prompt->read = NULL;
    }
    return QN_OK;
}

// A row without a place for its draft model goes without.
static qn_status begin_row(qn_batch_row *row, qn_err *err) {
    QN_TRY(take_place(row, err));
    const qn_status status = row->draft ? qn_session_enter(row->draft, err) : QN_OK;
    return status == QN_LIMIT ? QN_OK : status;
}

// Gives up a prompt that was read for rows that are still to begin: they read it again.
static bool drop_read(qn_batch *b) {
    for (const qn_batch_row *row = b->queue; row; row = row->next) {
        qn_batch_prompt *prompt = row->prompt;
        if (!prompt || !prompt->read) continue;
        qn_session_destroy(prompt->read);
        prompt->read = NULL;
        return true;
    }
    return false;
}

// Rows begin in their order, while there are places and pages; nobody overtakes one that waits for
// those. A row that is alone and cannot begin has failed.
static void admit(qn_batch *b) {
    qn_batch_row **link = &b->queue;
    while (*link && b->n_active < b->most_rows) {
        qn_batch_row *row = *link;
        qn_generation *g = row->generation;
        if (row->prompt && row->prompt->reader) { // reads for this one
            link = &row->next;
            continue;
        }
        if (!has_room(b, row)) return;
        const qn_status status = begin_row(row, &g->err);
        if (status == QN_LIMIT && (b->n_active > 0 || drop_read(b))) {
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

// --- giving way ----------------------------------------------------------------------------------

static bool preempt(qn_batch *b) {
    if (drop_read(b)) return true;
    if (b->n_active < 2) return false;
    qn_batch_row *row = b->active;
    while (row->next) row = row->next;
    unlink_row(&b->active, row);
    b->n_active--;
    b->n_preemptions++;
    row->generation->result.n_preemptions++;
    if (row->prompt && row->prompt->reader == row) row->prompt->reader = NULL;
    qn_session_remember(row->session); // as long as nobody needs the memory
    qn_session_leave(row->session);
    qn_guesser_reset(&row->generation->guesser);
    if (row->draft) qn_session_leave(row->draft);
    insert(&b->queue, row);
    return true;
}

// --- the step ------------------------------------------------------------------------------------

// A prompt that was read to its end is kept for the rows that begin with it. Without memory for
// that they read it themselves.
static void keep_read(qn_batch *b) {
    for (qn_batch_row *row = b->active; row; row = row->next) {
        qn_batch_prompt *prompt = row->prompt;
        if (!prompt || prompt->reader != row || row->generation->leaves_scores) continue;
        prompt->reader = NULL;
        if (!prompt->n_waiting || !row->session->has_logits) continue;
        qn_err ignored;
        qn_session *read = NULL;
        if (qn_session_prepare(&read, &b->like, b->shared, row->session->n_tokens, &ignored))
            continue;
        qn_session_choose_adapter(read, row->session->adapter);
        qn_session_set_tokens(read, 0, row->session->tokens, row->session->n_tokens);
        if (qn_session_take_state(read, row->session, false, &ignored))
            qn_session_destroy(read);
        else
            prompt->read = read;
    }
}

// One step of all rows that have begun, as many as there is room for.
static qn_status compute(qn_batch *b, qn_err *err) {
    qn_status status = QN_OK;
    do {
        size_t n = 0;
        for (qn_batch_row *row = b->active; row; row = row->next) b->gens[n++] = row->generation;
        if (n == 0) return QN_OK;
        status = qn_generations_step(b->gens, n, b->prompt_rows, err);
    } while (status == QN_LIMIT && preempt(b));
    if (status != QN_LIMIT) return status;
    qn_generation *g = b->active->generation; // alone, and without room: nobody can make any
    if (err) g->err = *err;
    qn_generation_fail(g, status);
    return QN_OK;
}

qn_status qn_batch_run(qn_batch *b, qn_err *err) {
    const int64_t now = b->clock();
    qn_err own; // rows that fail need one
    sweep(&b->queue, now);
    b->n_active -= sweep(&b->active, now);
    admit(b);
    const qn_status status = compute(b, err ? err : &own);
    keep_read(b);
    sweep(&b->queue, 0);
    b->n_active -= sweep(&b->active, 0);
    return status;
}

// Many prompts at once: rows start while there is place, in order, and make place when they end.
#include "session/generate_int.h"

#include "core/mem.h"

#include <string.h>

// A row that is being computed.
typedef struct batch_row {
    size_t result; // its number
    qn_session *session, *draft;
    qn_generation *generation; // NULL: this place is free
} batch_row;

typedef struct batch {
    qn_session *like; // whose state is shared
    const qn_prompt *prompts;
    qn_result *results;
    size_t n_results;
    batch_row rows[QN_MOST_FAMILY];
    size_t n_rows;
    // The next row to start: completion `completion` of prompt `prompt`, result `next`.
    size_t prompt, next;
    uint32_t completion;
    qn_session *read; // has read that prompt, and nothing else; NULL: none
    qn_event_fn *fn;
    void *arg;
} batch;

static uint32_t completions_of(const qn_prompt *prompt) {
    return prompt->completions ? prompt->completions : 1;
}

// --- starting ------------------------------------------------------------------------------------

// A session that has the next row's prompt for its history, and state as far as it is computed.
// Status LIMIT: there is no place now.
static qn_status open_session(qn_session **out, batch *b, qn_err *err) {
    const qn_prompt *p = &b->prompts[b->prompt];
    if (b->read && b->completion + 1 == completions_of(p)) { // nobody needs it after this row
        *out = b->read;
        b->read = NULL;
        return QN_OK;
    }
    if (b->read) return qn_session_fork(out, b->read, err);
    qn_session *s = NULL;
    QN_TRY(qn_session_attach(&s, b->like, b->like->shared, err));
    const qn_status status = qn_session_set_prompt(s, p->ids, p->n, err);
    if (status)
        qn_session_destroy(s);
    else
        *out = s;
    return status;
}

static void close_row(batch_row *row) {
    qn_generation_destroy(row->generation);
    qn_session_destroy(row->session);
    qn_session_destroy(row->draft);
    *row = (batch_row){0};
}

// Reads the prompt for all completions, and keeps a session that has done no more than that; where
// there is no place for it, each completion reads for itself.
static qn_status read_for_all(batch *b, batch_row *row, qn_err *err) {
    const qn_listener to = {.fn = b->fn, .arg = b->arg, .row = row->result};
    if (completions_of(&b->prompts[b->prompt]) < 2 || b->completion > 0) return QN_OK;
    QN_TRY(qn_generation_read(row->generation, &to, err));
    const qn_status status = qn_session_fork(&b->read, row->session, err);
    return status == QN_LIMIT ? QN_OK : status;
}

static qn_status start_parts(batch *b, batch_row *row, qn_err *err) {
    const qn_prompt *p = &b->prompts[b->prompt];
    qn_generate_opts opts = {0};
    if (p->opts) opts = *p->opts;
    QN_TRY(open_session(&row->session, b, err));
    if (opts.draft) { // without a place for a draft, the row goes without
        const qn_status status =
            qn_session_attach(&row->draft, opts.draft, opts.draft->shared, err);
        if (status && status != QN_LIMIT) return status;
        opts.draft = row->draft;
    }
    opts.sample.completion += b->completion;
    opts.prompt_logprobs &= b->completion == 0;
    QN_TRY(qn_generation_create(&row->generation, row->session, &opts, err));
    return read_for_all(b, row, err);
}

// Starts the next row; *is_full: there is no place for it.
static qn_status start_row(bool *is_full, batch *b, qn_err *err) {
    batch_row row = {.result = b->next};
    const size_t prompt = b->prompt;
    const qn_status status = start_parts(b, &row, err);
    if (status) {
        const bool has_session = row.session != NULL;
        close_row(&row);
        *is_full = status == QN_LIMIT && !has_session && b->n_rows > 0;
        return *is_full ? QN_OK : qn_err_prefix(err, status, "prompt %zu", prompt);
    }
    b->rows[b->n_rows++] = row;
    b->next++;
    if (++b->completion < completions_of(&b->prompts[b->prompt])) return QN_OK;
    qn_session_destroy(b->read);
    b->read = NULL;
    b->completion = 0;
    b->prompt++;
    return QN_OK;
}

// --- the loop ------------------------------------------------------------------------------------

// Events of a step carry the place of a row; listeners want the number of its result.
static bool pass_on(void *arg, const qn_event *event) {
    const batch *b = arg;
    qn_event renamed = *event;
    renamed.row = b->rows[event->row].result;
    return b->fn(b->arg, &renamed);
}

// Takes the results of rows that have ended.
static void collect(batch *b) {
    size_t kept = 0;
    for (size_t i = 0; i < b->n_rows; i++) {
        batch_row *row = &b->rows[i];
        if (qn_generation_is_active(row->generation)) {
            b->rows[kept++] = *row;
            continue;
        }
        b->results[row->result] = row->generation->result;
        row->generation->result = (qn_result){0};
        close_row(row);
    }
    b->n_rows = kept;
}

static qn_status run_batch(batch *b, qn_err *err) {
    while (b->next < b->n_results || b->n_rows) {
        bool is_full = false;
        while (!is_full && b->next < b->n_results && b->n_rows < QN_MOST_FAMILY)
            QN_TRY(start_row(&is_full, b, err));
        qn_generation *gens[QN_MOST_FAMILY];
        for (size_t i = 0; i < b->n_rows; i++) gens[i] = b->rows[i].generation;
        QN_TRY(qn_generations_step(NULL, gens, b->n_rows, b->fn ? pass_on : NULL, b, err));
        collect(b);
    }
    return QN_OK;
}

static qn_status check_batch(const qn_session *session, const qn_prompt *prompts, size_t n_prompts,
                             size_t n_results, qn_err *err) {
    size_t n = 0;
    if (n_prompts == 0) return QN_FAIL(err, ARGUMENT, "a batch of 0 prompts");
    for (size_t i = 0; i < n_prompts; i++) {
        const qn_status status = qn_engine_check_ids(session->engine, prompts[i].ids, prompts[i].n,
                                                     session->context, err);
        if (status) return qn_err_prefix(err, status, "prompt %zu", i);
        if (!qn_size_add(&n, n, completions_of(&prompts[i]))) return QN_NOMEM(err, "batch");
    }
    if (n != n_results)
        return QN_FAIL(err, ARGUMENT, "%zu results for %zu prompts with %zu completions", n_results,
                       n_prompts, n);
    return QN_OK;
}

qn_status qn_generate_batch(qn_result *results, size_t n_results, qn_session *session,
                            const qn_prompt *prompts, size_t n_prompts, qn_event_fn *fn, void *arg,
                            qn_err *err) {
    QN_NEED(results, err);
    QN_NEED(session, err);
    QN_NEED(prompts, err);
    QN_TRY(check_batch(session, prompts, n_prompts, n_results, err));
    batch b = {.like = session, .prompts = prompts, .n_results = n_results, .fn = fn, .arg = arg};
    b.results = qn_alloc(n_results, sizeof *b.results);
    if (!b.results) return QN_NOMEM(err, "batch");
    const qn_status status = run_batch(&b, err);
    if (status) {
        for (size_t i = 0; i < b.n_rows; i++) close_row(&b.rows[i]);
        for (size_t i = 0; i < n_results; i++) qn_result_deinit(&b.results[i]);
    } else {
        memcpy(results, b.results, n_results * sizeof *results);
    }
    qn_session_destroy(b.read);
    qn_free(b.results);
    return status;
}

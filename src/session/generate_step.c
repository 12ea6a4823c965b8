// qn_generation: one step of several. Guessed tokens are computed behind the last one in the same
// step; then tokens are chosen in order, each by the scores after the tokens before it, as long as
// they are the guessed ones. So a guess decides how many tokens a step gives, and never which.
#include "session/generate_int.h"

// --- choosing ------------------------------------------------------------------------------------

// The tokens that may come next whatever the grammar says; NULL: all.
static const uint32_t *known_mask(const qn_generation *g) {
    const bool is_early = (int64_t)g->result.n_tokens < g->opts.min_tokens;
    return is_early ? g->early : g->endless;
}

// The same with the grammar. *is_over: nothing is left, for the text is complete and may not end by
// a token.
static qn_status find_allowed(const uint32_t **out, bool *is_over, qn_generation *g, qn_err *err) {
    const size_t n = ((size_t)g->session->engine->model->hparams->vocab + 31) / 32;
    const uint32_t *known = known_mask(g), *fits;
    *is_over = false;
    *out = known;
    if (!g->matcher) return QN_OK;
    QN_TRY(qn_matcher_mask(&fits, g->matcher, err));
    *out = fits;
    if (!known) return QN_OK;
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= g->both[i] = known[i] & fits[i];
    *out = g->both;
    *is_over = any == 0;
    return QN_OK;
}

// What a choice needs of a row of scores (qn_segment.top): the best where nothing else counts.
static int64_t wanted_top(const qn_generation *g) {
    const bool is_plain = !g->matcher && !g->early && !g->endless && !g->opts.logprobs;
    return is_plain ? qn_sampler_top(g->sampler) : QN_TOP_ALL;
}

// Chooses a token by these scores, and says whether it is `guess` (-1: none was made).
static qn_status choose_and_take(bool *is_right, qn_generation *g, const qn_scores *scores,
                                 int32_t guess, const qn_listener *to, qn_err *err) {
    qn_session *s = g->session;
    qn_sampler_in in = qn_session_sampler_in(s);
    qn_sampler_memory memory = s->memory.sampler; // a token that ends the answer is not remembered
    const size_t before = s->n_tokens;
    in.memory = &memory;
    in.logits = scores->all;
    in.best = scores->n_best ? scores->best : NULL;
    in.n_best = scores->n_best;
    int32_t token;
    bool is_over;
    *is_right = false;
    QN_TRY(find_allowed(&in.allowed, &is_over, g, err));
    if (is_over) return qn_generation_end(g, QN_REASON_END, to, err);
    QN_TRY(qn_sampler_choose(&token, g->sampler, &in, err));
    *is_right = token == guess;
    const qn_status status = qn_generation_take(g, token, scores->all, *is_right, to, err);
    if (s->n_tokens > before) s->memory.sampler = memory;
    return status;
}

static qn_status step_naive(qn_generation *g, const qn_listener *to, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits logits;
    bool is_right;
    QN_TRY(qn_engine_run(&logits, s->engine, s->tokens, (int64_t)s->n_tokens,
                         &(qn_logits_opts){.naive = true}, err));
    g->result.n_steps++;
    const qn_scores scores = {.all = logits.logits};
    const qn_status status = choose_and_take(&is_right, g, &scores, -1, to, err);
    qn_logits_deinit(&logits);
    return status;
}

// --- the rows of a step --------------------------------------------------------------------------

// Rows that are computed together: first those that want their next token, then those that read
// their prompt.
typedef struct rows {
    qn_runner *runner;
    qn_step_costs *costs;
    qn_generation *gens[QN_MOST_FAMILY];
    qn_listener to[QN_MOST_FAMILY];
    qn_segment segments[QN_MOST_FAMILY];
    int64_t n, n_decoding;
    int64_t chunk, most; // rows that a step can have, in all and with scores
} rows;

// Tokens that can be guessed for a row: what is guessed fits in context and answer, and leaves one
// token to be chosen behind it.
static int32_t most_guesses(const qn_generation *g, int64_t spare) {
    const int64_t room = g->session->context - (int64_t)g->session->n_tokens - 1;
    const int64_t wanted = g->opts.max_tokens - (int64_t)g->result.n_tokens - 1;
    int64_t most = g->opts.draft_most;
    if (most > room) most = room;
    if (g->opts.max_tokens > 0 && most > wanted) most = wanted;
    if (most > spare) most = spare;
    return (int32_t)most;
}

// Asks for guesses, row by row, while the step has place for them.
static qn_status guess(rows *r, qn_err *err) {
    int64_t n_rows = r->n_decoding;
    for (int64_t i = 0; i < r->n_decoding; i++) {
        qn_generation *g = r->gens[i];
        const int64_t n_reading = r->n - r->n_decoding;
        const int32_t most = most_guesses(g, (r->most - n_reading - n_rows) / (r->n_decoding - i));
        g->guesser.n = 0;
        if (most < 1) continue;
        const qn_guess_want want = {.session = g->session,
                                    .allowed = known_mask(g),
                                    .least =
                                        g->opts.draft_least < most ? g->opts.draft_least : most,
                                    .most = most,
                                    .rows = n_rows};
        const qn_status status = qn_guesser_guess(&g->guesser, &want, err);
        if (status) return qn_err_prefix(err, status, "row %zu", r->to[i].row);
        n_rows += g->guesser.n;
    }
    return QN_OK;
}

// The last token and the guesses; guesses stand behind the history in the session's own array, and
// are no part of it yet.
static qn_segment decoding_segment(qn_generation *g) {
    qn_session *s = g->session;
    const qn_guesser *guesser = &g->guesser;
    for (int32_t k = 0; k < guesser->n; k++)
        s->tokens[s->n_tokens + (size_t)k] = guesser->tokens[k];
    return (qn_segment){.seq = s->seq,
                        .ids = s->tokens + s->n_tokens - 1,
                        .rows = 1 + guesser->n,
                        .uncertain = guesser->n,
                        .outs = 1 + guesser->n,
                        .top = wanted_top(g)};
}

static qn_segment reading_segment(qn_generation *g, int64_t most) {
    qn_session *s = g->session;
    const size_t cached = qn_session_cached(s);
    const int64_t n = qn_generation_next_rows(g, most);
    g->guesser.n = 0;
    return (qn_segment){.seq = s->seq,
                        .ids = s->tokens + cached,
                        .rows = n,
                        .outs = cached + (size_t)n == s->n_tokens,
                        .top = wanted_top(g)};
}

// Returns the rows of the step; rows that read and find no place in it are left out.
static int64_t fill_segments(rows *r) {
    int64_t n_rows = 0, n = 0;
    for (; n < r->n && n_rows < r->chunk; n++) {
        qn_generation *g = r->gens[n];
        r->segments[n] =
            n < r->n_decoding ? decoding_segment(g) : reading_segment(g, r->chunk - n_rows);
        g->session->has_logits = false;
        g->session->best.n = 0;
        n_rows += r->segments[n].rows;
    }
    r->n = n;
    return n_rows;
}

// Chooses by the scores of rows [row, row + 1 + guesses) of the step.
static qn_status take_rows(qn_generation *g, int64_t row, const qn_listener *to, qn_err *err) {
    qn_guesser *guesser = &g->guesser;
    const int32_t n = guesser->n;
    int32_t accepted = 0;
    bool is_right = true;
    g->result.n_guessed += n;
    for (int32_t k = 0; k <= n && is_right && qn_generation_is_active(g); k++) {
        qn_scores scores;
        QN_TRY(qn_scores_find(&scores, g->session, row + k, wanted_top(g), err));
        const int32_t expected = k < n ? guesser->tokens[k] : -1;
        QN_TRY(choose_and_take(&is_right, g, &scores, expected, to, err));
        accepted += is_right;
    }
    g->result.n_accepted += accepted;
    qn_guesser_judge(guesser, g->session, accepted);
    return QN_OK;
}

// State beyond the history is forgotten; a row that goes on has its last token to compute.
static void cut_back(qn_generation *g) {
    qn_session *s = g->session;
    const size_t want = s->n_tokens - qn_generation_is_active(g);
    if (qn_session_cached(s) > want) (void)qn_seq_truncate(s->seq, (int64_t)want);
}

static qn_status take_segment(rows *r, int64_t i, int64_t row, qn_err *err) {
    qn_generation *g = r->gens[i];
    const qn_segment *segment = &r->segments[i];
    if (i >= r->n_decoding)
        QN_TRY(qn_generation_has_read(g, segment->rows, err));
    else
        g->result.n_steps++;
    return segment->outs ? take_rows(g, row, &r->to[i], err) : QN_OK;
}

static qn_status run(rows *r, qn_err *err) {
    if (r->n == 0) return QN_OK;
    QN_TRY(guess(r, err));
    const int64_t n_rows = fill_segments(r), began = qn_clock();
    QN_TRY(qn_runner_step(r->runner, r->segments, r->n, err));
    if (r->n == r->n_decoding) qn_step_costs_add(r->costs, n_rows, qn_clock() - began);
    qn_status status = QN_OK;
    for (int64_t i = 0, row = 0; i < r->n; row += r->segments[i++].outs) {
        if (!status) {
            status = take_segment(r, i, row, err);
            if (status) (void)qn_err_prefix(err, status, "row %zu", r->to[i].row);
        }
        cut_back(r->gens[i]); // after an error, too: rows can be stepped again
    }
    r->n = r->n_decoding = 0;
    return status;
}

// --- the step ------------------------------------------------------------------------------------

static qn_status check_drafts(qn_generation *const *gens, size_t n, qn_err *err) {
    for (size_t i = 0; i < n; i++) {
        const qn_session *draft = gens[i]->guesser.model.session;
        for (size_t j = 0; draft && j < n; j++) {
            if (draft == gens[j]->session || (j < i && draft == gens[j]->guesser.model.session))
                return QN_FAIL(err, ARGUMENT, "row %zu: its draft session is used by row %zu", i,
                               j);
        }
    }
    return QN_OK;
}

static qn_status check_rows(qn_generation *const *gens, size_t n, qn_err *err) {
    if (n < 1 || n > QN_MOST_FAMILY)
        return QN_FAIL(err, ARGUMENT, "a step of %zu rows, want 1 to %d", n, QN_MOST_FAMILY);
    for (size_t i = 0; i < n; i++) {
        const qn_session *s = gens[i]->session;
        if (s->shared != gens[0]->session->shared)
            return QN_FAIL(err, ARGUMENT, "row %zu does not share the state of row 0", i);
        for (size_t j = 0; j < i; j++) {
            if (s == gens[j]->session)
                return QN_FAIL(err, ARGUMENT, "rows %zu and %zu are of the same session", j, i);
        }
        if (qn_generation_is_active(gens[i]) && s->n_tokens != gens[i]->n_history)
            return QN_FAIL(err, STATE,
                           "row %zu: the session has %zu tokens, the generation left %zu", i,
                           s->n_tokens, gens[i]->n_history);
    }
    return check_drafts(gens, n, err);
}

static void add_row(rows *r, qn_generation *g, const qn_listener *to) {
    r->gens[r->n] = g;
    r->to[r->n++] = *to;
}

// A row that has its scores gets its token; one that wants its next is added to the step;
// *is_reading: its prompt is to be read.
static qn_status begin_row(bool *is_reading, rows *r, qn_generation *g, const qn_listener *to,
                           qn_err *err) {
    qn_session *s = g->session;
    bool is_right;
    *is_reading = false;
    if (!g->is_begun && g->opts.prompt_logprobs) QN_TRY(qn_generation_read(g, to, err));
    if (qn_generation_is_active(g)) QN_TRY(qn_generation_make_room(g, to, err));
    if (!qn_generation_is_active(g)) return QN_OK;
    if (g->opts.naive) return step_naive(g, to, err);
    QN_TRY(qn_session_settle(s, err));
    const size_t cached = qn_session_cached(s);
    *is_reading = cached + 1 < s->n_tokens;
    if (*is_reading) return QN_OK;
    qn_generation_begin(g);
    const qn_scores scores = {.all = s->logits};
    if (cached == s->n_tokens) return choose_and_take(&is_right, g, &scores, -1, to, err);
    add_row(r, g, to);
    r->n_decoding++;
    return QN_OK;
}

// Rows that read are added in their order, but for those that do better to wait.
static void add_reading(rows *r, qn_generation *const *gens, const bool *is_reading, size_t n,
                        const qn_listener *to) {
    for (size_t i = 0; i < n && r->n < r->most; i++) {
        bool waits = false;
        for (int64_t k = r->n_decoding; k < r->n; k++)
            waits |= is_reading[i] && qn_generation_should_wait(gens[i], r->gens[k]);
        if (!is_reading[i] || waits) continue;
        qn_generation_begin(gens[i]);
        const qn_listener own = {.fn = to->fn, .arg = to->arg, .row = i};
        add_row(r, gens[i], &own);
    }
}

qn_status qn_generations_step(size_t *n_active, qn_generation *const *gens, size_t n,
                              qn_event_fn *fn, void *arg, qn_err *err) {
    QN_NEED(gens, err);
    QN_TRY(check_rows(gens, n, err));
    const qn_session *first = gens[0]->session;
    rows r = {.chunk = first->chunk,
              .most = first->chunk < QN_MOST_FAMILY ? first->chunk : QN_MOST_FAMILY};
    if (first->shared) r.runner = first->shared->runner;
    if (first->shared) r.costs = &first->shared->costs;
    qn_listener to = {.fn = fn, .arg = arg};
    bool is_reading[QN_MOST_FAMILY] = {0};
    for (size_t i = 0; i < n; i++) {
        to.row = i;
        if (!qn_generation_is_active(gens[i])) continue;
        const qn_status status = begin_row(&is_reading[i], &r, gens[i], &to, err);
        if (status) return qn_err_prefix(err, status, "row %zu", i);
        if (r.n == r.most) QN_TRY(run(&r, err));
    }
    add_reading(&r, gens, is_reading, n, &to);
    QN_TRY(run(&r, err));
    if (!n_active) return QN_OK;
    *n_active = 0;
    for (size_t i = 0; i < n; i++) *n_active += qn_generation_is_active(gens[i]);
    return QN_OK;
}

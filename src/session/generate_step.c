// qn_generation: one step of several. Guessed tokens are computed behind the last one in the same
// step; then tokens are chosen in order, each by the scores after the tokens before it, as long as
// they are the guessed ones. So a guess decides how many tokens a step gives, and never which.
#include "session/generate_int.h"

// --- choosing ------------------------------------------------------------------------------------

// The tokens that may come next whatever the grammar says.
static const qn_mask *known_mask(const qn_generation *g) {
    const bool is_early = (int64_t)g->result.n_tokens < g->opts.min_tokens;
    return is_early ? &g->early : &g->endless;
}

// The same with the grammar. *is_over: nothing is left, for the text is complete and may not end by
// a token.
static qn_status find_allowed(const uint32_t **out, bool *is_over, qn_generation *g, qn_err *err) {
    const size_t n = ((size_t)g->session->engine->model->hparams->vocab + 31) / 32;
    const uint32_t *known = known_mask(g)->bits, *fits;
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

// What is needed of a row of scores (qn_segment.top): the best where nothing else counts.
static int64_t wanted_top(const qn_generation *g) {
    const bool is_plain =
        !g->matcher && !g->opts.logprobs && !g->leaves_scores && !qn_generation_shows_prompt(g);
    const int64_t top = is_plain ? qn_sampler_top(g->sampler) : QN_TOP_ALL;
    if (top == QN_TOP_ALL) return QN_TOP_ALL;
    const int64_t with_excluded = top + known_mask(g)->n_excluded;
    return with_excluded <= QN_HEAD_TOP ? with_excluded : QN_TOP_ALL;
}

// Chooses a token by these scores, and says whether it is `guess` (-1: none was made).
static qn_status choose_and_take(bool *is_right, qn_generation *g, const qn_scores *scores,
                                 int32_t guess, qn_err *err) {
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
    if (is_over) return qn_generation_end(g, QN_REASON_END, err);
    QN_TRY(qn_sampler_choose(&token, g->sampler, &in, err));
    *is_right = token == guess;
    const qn_status status = qn_generation_take(g, token, scores->all, *is_right, err);
    if (s->n_tokens > before) s->memory.sampler = memory;
    return status;
}

static qn_status step_naive(qn_generation *g, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits logits;
    bool is_right;
    QN_TRY(qn_engine_run(&logits, s->engine, s->tokens, (int64_t)s->n_tokens,
                         &QN_INIT(qn_logits_opts, .naive = true, .adapter = qn_session_adapter(s)),
                         err));
    g->result.n_steps++;
    const qn_scores scores = {.all = logits.logits};
    const qn_status status = choose_and_take(&is_right, g, &scores, -1, err);
    qn_logits_deinit(&logits);
    return status;
}

// --- the rows of a step --------------------------------------------------------------------------

// Rows that are computed together, in the arrays of `shared`: first those that want their next
// token, then those that read their prompt.
typedef struct rows {
    qn_shared *shared;
    int64_t n, n_decoding;
    int64_t chunk, most; // rows that a step can have, in all and with scores
    int64_t prompt_rows; // of those that read, beside others; 0: no limit
    bool has_company;    // rows got their next token in this step or one just before it
} rows;

// Tokens that can be guessed for a row: what is guessed fits in context and answer, and leaves one
// token to be chosen behind it.
static int32_t most_guesses(const qn_generation *g, int64_t spare) {
    const int64_t room = g->session->context - (int64_t)g->session->n_tokens - 1;
    const int64_t wanted = g->opts.max_tokens - (int64_t)g->result.n_tokens - 1;
    int64_t most = g->opts.draft_max;
    if (most > room) most = room;
    if (g->opts.max_tokens > 0 && most > wanted) most = wanted;
    if (most > spare) most = spare;
    return (int32_t)most;
}

// Asks for guesses, row by row, while the step has place for them. A row whose guessing fails ends.
static void guess(rows *r) {
    int64_t n_rows = r->n_decoding;
    const int64_t n_reading = r->n - r->n_decoding;
    for (int64_t i = 0; i < r->n_decoding; i++) {
        qn_generation *g = r->shared->gens[i];
        const int32_t most = most_guesses(g, (r->most - n_reading - n_rows) / (r->n_decoding - i));
        g->guesser.n = 0;
        if (most < 1) continue;
        const qn_guess_want want = {.session = g->session,
                                    .allowed = known_mask(g)->bits,
                                    .least = g->opts.draft_min < most ? g->opts.draft_min : most,
                                    .most = most,
                                    .rows = n_rows};
        const qn_status status = qn_guesser_guess(&g->guesser, &want, &g->err);
        if (status) qn_generation_fail(g, status);
        n_rows += g->guesser.n;
    }
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

// The next rows of a prompt: `most` of them, `outs` with scores.
static qn_segment reading_segment(qn_generation *g, int64_t most, int64_t outs) {
    qn_session *s = g->session;
    const size_t cached = qn_session_cached(s);
    const bool shows = qn_generation_shows_prompt(g);
    const int64_t n = qn_session_next_rows(s, s->n_tokens, shows && outs < most ? outs : most);
    g->guesser.n = 0;
    return (qn_segment){.seq = s->seq,
                        .ids = s->tokens + cached,
                        .rows = n,
                        .outs = shows ? n : cached + (size_t)n == s->n_tokens,
                        .top = wanted_top(g)};
}

// Returns the rows of the step; rows that read and find no place in it, or have ended, are left
// out.
static int64_t fill_segments(rows *r) {
    qn_shared *shared = r->shared;
    int64_t n_rows = 0, n_outs = 0, n = 0, n_decoding = 0, left = r->chunk;
    for (int64_t i = 0; i < r->n && left > 0 && n_outs < r->most; i++) {
        qn_generation *g = shared->gens[i];
        if (i == r->n_decoding && r->has_company && r->prompt_rows && left > r->prompt_rows)
            left = r->prompt_rows;
        if (!qn_generation_is_active(g)) continue;
        const int64_t others = r->n - 1 - i; // may want the scores of one row each
        const int64_t outs = r->most - n_outs - others;
        const bool is_decoding = i < r->n_decoding;
        shared->segments[n] =
            is_decoding ? decoding_segment(g) : reading_segment(g, left, outs > 1 ? outs : 1);
        shared->sessions[n] = g->session;
        shared->gens[n] = g;
        n_decoding += is_decoding;
        r->has_company |= is_decoding;
        n_rows += shared->segments[n].rows;
        n_outs += shared->segments[n].outs;
        left -= shared->segments[n++].rows;
    }
    r->n = n;
    r->n_decoding = n_decoding;
    return n_rows;
}

// Chooses by the scores of rows [row, row + 1 + guesses) of the step; `top` as the segment has it.
static qn_status take_rows(qn_generation *g, int64_t row, int64_t top, qn_err *err) {
    qn_guesser *guesser = &g->guesser;
    const int32_t n = guesser->n;
    int32_t accepted = 0;
    bool is_right = true;
    g->result.n_drafted += n;
    for (int32_t k = 0; k <= n && is_right && qn_generation_is_active(g); k++) {
        qn_scores scores;
        QN_TRY(qn_scores_find(&scores, g->session, row + k, top, err));
        const int32_t expected = k < n ? guesser->tokens[k] : -1;
        QN_TRY(choose_and_take(&is_right, g, &scores, expected, err));
        accepted += is_right;
    }
    g->result.n_accepted += accepted;
    qn_guesser_judge(guesser, g->session, accepted);
    return QN_OK;
}

// State beyond the history is forgotten; a row that goes on has its last token to compute, or its
// scores.
static void cut_back(qn_generation *g) {
    qn_session *s = g->session;
    const size_t want = s->n_tokens - (qn_generation_is_active(g) && !s->has_logits);
    if (qn_session_cached(s) > want) (void)qn_seq_truncate(s->seq, (int64_t)want);
}

// The end of a prompt whose scores are wanted by more than this row's next choice.
static qn_status take_prompt(qn_generation *g, const qn_segment *segment, int64_t row,
                             qn_err *err) {
    const bool is_end = qn_session_cached(g->session) == g->session->n_tokens;
    if (is_end) {
        QN_TRY(qn_session_take(g->session, row + segment->outs - 1, QN_TOP_ALL, err));
        g->leaves_scores = false;
    }
    if (qn_generation_shows_prompt(g)) QN_TRY(qn_generation_show_rows(g, row, segment->outs, err));
    return QN_OK;
}

static qn_status take_segment(qn_generation *g, const qn_segment *segment, int64_t row,
                              bool is_decoding, qn_err *err) {
    if (segment->uncertain == 0) QN_TRY(qn_session_has_read(g->session, segment->rows, err));
    g->result.n_steps += is_decoding;
    if (g->leaves_scores || qn_generation_shows_prompt(g)) return take_prompt(g, segment, row, err);
    return segment->outs ? take_rows(g, row, segment->top, err) : QN_OK;
}

static qn_status run(rows *r, qn_err *err) {
    if (r->n == 0) return QN_OK;
    qn_shared *shared = r->shared;
    guess(r);
    const int64_t n_rows = fill_segments(r), began = qn_clock();
    if (r->n) QN_TRY(qn_session_run(shared, shared->sessions, shared->segments, r->n, err));
    if (r->n && r->n == r->n_decoding)
        qn_step_costs_add(&shared->costs, n_rows, qn_clock() - began);
    for (int64_t i = 0, row = 0; i < r->n; row += shared->segments[i++].outs) {
        qn_generation *g = shared->gens[i];
        const qn_status status =
            take_segment(g, &shared->segments[i], row, i < r->n_decoding, &g->err);
        if (status) qn_generation_fail(g, status);
        cut_back(g); // after an error, too: its session goes on
    }
    r->n = r->n_decoding = 0;
    return QN_OK;
}

// --- the step ------------------------------------------------------------------------------------

// A row that has its scores gets its token; one that wants its next is added to the step, one whose
// prompt is to be read waits for those (is_reading).
static qn_status begin_row(rows *r, qn_generation *g, qn_err *err) {
    qn_session *s = g->session;
    bool is_right;
    if (s->n_tokens != g->n_history)
        return QN_FAIL(err, STATE, "the session has %zu tokens, the generation left %zu",
                       s->n_tokens, g->n_history);
    if (g->opts.naive && qn_generation_shows_prompt(g)) QN_TRY(qn_generation_show_naive(g, err));
    g->is_reading = qn_generation_is_active(g) && qn_generation_shows_prompt(g);
    if (g->is_reading) return QN_OK;
    if (qn_generation_is_active(g)) QN_TRY(qn_generation_make_room(g, err));
    if (!qn_generation_is_active(g)) return QN_OK;
    if (g->opts.naive) return step_naive(g, err);
    QN_TRY(qn_session_settle(s, QN_TOP_ALL, err));
    const size_t cached = qn_session_cached(s);
    g->is_reading =
        cached + 1 < s->n_tokens || (cached < s->n_tokens && (s->reads_to || g->leaves_scores));
    if (g->is_reading) return QN_OK;
    qn_generation_begin(g);
    const qn_scores scores = {.all = s->logits};
    if (cached < s->n_tokens) {
        r->shared->gens[r->n++] = g;
        r->n_decoding++;
        return QN_OK;
    }
    return choose_and_take(&is_right, g, &scores, -1, err);
}

// Rows that read are added in their order, but for those that do better to wait.
static void add_reading(rows *r, qn_generation *const *gens, size_t n) {
    for (size_t i = 0; i < n && r->n < r->most; i++) {
        qn_generation *g = gens[i];
        bool waits = false;
        if (!g->is_reading || !qn_generation_is_active(g)) continue;
        for (int64_t k = r->n_decoding; k < r->n; k++)
            waits |= qn_generation_should_wait(g, r->shared->gens[k]);
        if (waits) continue;
        qn_generation_begin(g);
        r->shared->gens[r->n++] = g;
    }
}

qn_status qn_generations_step(qn_generation *const *gens, size_t n, int64_t prompt_rows,
                              qn_err *err) {
    const qn_session *first = gens[0]->session;
    rows r = {.shared = first->shared, .chunk = first->chunk, .prompt_rows = prompt_rows};
    if (r.shared) r.most = r.chunk < r.shared->outs ? r.chunk : r.shared->outs;
    for (size_t i = 0; i < n; i++) {
        gens[i]->is_reading = false;
        if (!qn_generation_is_active(gens[i])) continue;
        const qn_status status = begin_row(&r, gens[i], &gens[i]->err);
        if (status) qn_generation_fail(gens[i], status);
        if (r.n > 0 && r.n == r.most) QN_TRY(run(&r, err));
    }
    if (!r.shared) return QN_OK;
    add_reading(&r, gens, n);
    return run(&r, err);
}

// qn_generation: one step of several. Drafted tokens are computed after the last one in the same
// step; then tokens are chosen in order, each by the logits after the tokens before it, as long as
// they equal the drafted ones. So a draft decides how many tokens a step yields, never which.
#include "session/generate_int.h"

#include "core/mem.h"

// --- choosing ------------------------------------------------------------------------------------

// The tokens that may come next, without the grammar.
static const qn_mask *base_mask(const qn_generation *g) {
    const bool is_early = (int64_t)g->result.n_tokens < g->opts.min_tokens;
    return is_early ? &g->early : &g->endless;
}

// Grammars know nothing of end tokens that are excluded. *is_over: no token is left, because the
// text is complete and may not end by a token.
static qn_status find_allowed(const uint32_t **out, bool *is_over, qn_generation *g, qn_err *err) {
    const size_t n = ((size_t)g->session->engine->model->hparams->vocab + 31) / 32;
    const uint32_t *base = base_mask(g)->bits, *fits;
    *is_over = false;
    *out = base;
    if (!g->matcher) return QN_OK;
    QN_TRY(qn_matcher_mask(&fits, g->matcher, err));
    if (!fits) return QN_OK;
    *out = fits;
    if (!base) return QN_OK;
    uint32_t any = 0;
    for (size_t i = 0; i < n; i++) any |= g->both[i] = base[i] & fits[i];
    *out = g->both;
    *is_over = any == 0;
    return QN_OK;
}

// How many logits of a row a choice needs (qn_segment.top).
static int64_t wanted_top(const qn_generation *g) {
    const bool is_plain = !g->matcher && !g->opts.logprobs && !g->leaves_logits &&
                          !g->opts.logits_fn && !qn_generation_shows_prompt(g);
    const int64_t top = is_plain ? qn_chooser_top(g->chooser) : QN_TOP_ALL;
    if (top == QN_TOP_ALL) return QN_TOP_ALL;
    const int64_t with_excluded = top + base_mask(g)->n_excluded;
    return with_excluded <= QN_HEAD_TOP ? with_excluded : QN_TOP_ALL;
}

// Shows the logits to the caller.
static bool show_logits(void *arg, float *logits) {
    const qn_generation *g = arg;
    const qn_session *s = g->session;
    const qn_next_logits next =
        QN_INIT(qn_next_logits, .id = g->to.id, .row = g->to.row, .logits = logits,
                .n_vocab = s->engine->model->hparams->vocab, .tokens = s->tokens,
                .n_tokens = s->n_tokens, .n_prompt = s->memory.n_prompt);
    return g->opts.logits_fn(g->opts.logits_arg, &next);
}

// Chooses a token by these logits; *is_right: it is the drafted one (-1: none was drafted).
static qn_status choose_and_take(bool *is_right, qn_generation *g, const qn_row_logits *logits,
                                 int32_t drafted, qn_err *err) {
    qn_session *s = g->session;
    qn_chooser_in in = qn_session_chooser_in(s);
    qn_chooser_memory memory = s->memory.chooser; // a token that ends the answer is not remembered
    const size_t before = s->n_tokens;
    in.memory = &memory;
    in.logits = logits->all;
    in.top = logits->n_top ? logits->top : NULL;
    in.n_top = logits->n_top;
    if (g->opts.logits_fn) in.change = show_logits;
    in.change_arg = g;
    int32_t token;
    bool is_over;
    *is_right = false;
    QN_TRY(find_allowed(&in.allowed, &is_over, g, err));
    if (is_over) return qn_generation_end(g, QN_REASON_END, err);
    qn_status status = qn_chooser_choose(&token, g->chooser, &in, err);
    if (status == QN_STOPPED) return qn_generation_end(g, QN_REASON_CALLER, err);
    if (status) return status;
    *is_right = token == drafted;
    status = qn_generation_take(g, token, logits->all, *is_right, err);
    if (s->n_tokens > before) s->memory.chooser = memory;
    return status;
}

static qn_status step_naive(qn_generation *g, qn_err *err) {
    const qn_session *s = g->session;
    qn_logits all;
    bool is_right;
    const qn_run_input input = qn_session_input(s);
    QN_TRY(qn_engine_run(&all, s->engine, &input,
                         &QN_INIT(qn_logits_opts, .naive = true, .adapter = qn_session_adapter(s)),
                         err));
    g->result.n_steps++;
    const qn_row_logits logits = {.all = all.logits};
    const qn_status status = choose_and_take(&is_right, g, &logits, -1, err);
    qn_logits_deinit(&all);
    return status;
}

// --- the rows of a step --------------------------------------------------------------------------

// Rows that are computed together.
typedef struct rows {
    qn_shared *shared;
    qn_flight *flight;       // NULL: of a reference engine
    int64_t chunk, max_outs; // max rows of a step, in all and with logits
    int64_t prompt_rows;     // max rows of prefill beside decoding ones; 0: no limit; -1: a share
    int64_t n_beside;        // rows that decode in the steps under way
    bool has_decoded;        // some row decodes in this step, in the one before it, or beside it
} rows;

// Max tokens to draft for a row: they fit in context and answer, and leave room for the one token
// that is chosen after them.
static int32_t max_draft(const qn_generation *g, int64_t spare) {
    const int64_t room = g->session->context - (int64_t)g->session->n_tokens - 1;
    const int64_t wanted = g->opts.max_tokens - (int64_t)g->result.n_tokens - 1;
    int64_t max = g->opts.draft_max;
    if (max > room) max = room;
    if (g->opts.max_tokens > 0 && max > wanted) max = wanted;
    if (max > spare) max = spare;
    return (int32_t)max;
}

// The rows whose drafts come from the prediction head, all of them together.
static void draft_by_heads(const rows *r) {
    qn_head_want *wants = r->shared->heads;
    int64_t n = 0;
    for (int64_t i = 0; i < r->flight->n_decoding; i++) {
        qn_generation *g = r->flight->gens[i];
        if (!g->drafter.by_head) continue;
        wants[n++] = (qn_head_want){.drafter = &g->drafter,
                                    .session = g->session,
                                    .allowed = base_mask(g)->bits,
                                    .n_excluded = base_mask(g)->n_excluded};
    }
    if (n) qn_drafters_run_heads(r->shared, wants, n);
}

// Drafts row by row while the step has room. A row whose drafting fails ends.
static void draft(rows *r) {
    const qn_flight *f = r->flight;
    int64_t n_rows = f->n_decoding;
    const int64_t n_prefilling = f->n - f->n_decoding;
    for (int64_t i = 0; i < f->n_decoding; i++) {
        qn_generation *g = f->gens[i];
        const int32_t max =
            max_draft(g, (r->max_outs - n_prefilling - n_rows) / (f->n_decoding - i));
        g->drafter.n = g->drafter.by_head = 0;
        if (max < 1) continue;
        const qn_draft_want want = {.session = g->session,
                                    .allowed = base_mask(g)->bits,
                                    .min = g->opts.draft_min < max ? g->opts.draft_min : max,
                                    .max = max,
                                    .rows = n_rows};
        const qn_status status = qn_drafter_propose(&g->drafter, &want, &g->err);
        if (status) qn_generation_fail(g, status);
        n_rows += g->drafter.n + g->drafter.by_head;
    }
    draft_by_heads(r);
}

// The last token and the draft, which lies after the history in the session's array and is not part
// of it yet.
static qn_segment decode_segment(qn_generation *g) {
    qn_session *s = g->session;
    const qn_drafter *drafter = &g->drafter;
    for (int32_t k = 0; k < drafter->n; k++)
        s->tokens[s->n_tokens + (size_t)k] = drafter->tokens[k];
    return (qn_segment){.seq = s->seq,
                        .ids = s->tokens + s->n_tokens - 1,
                        .rows = 1 + drafter->n,
                        .uncertain = drafter->n,
                        .outs = 1 + drafter->n,
                        .top = wanted_top(g),
                        .media = &s->media};
}

// The next rows of a prompt: at most `max`, `outs` of them with logits.
static qn_segment prefill_segment(qn_generation *g, int64_t max, int64_t outs) {
    qn_session *s = g->session;
    const size_t cached = qn_session_cached(s);
    const bool shows = qn_generation_shows_prompt(g);
    const int64_t n = qn_session_next_rows(s, s->n_tokens, shows && outs < max ? outs : max);
    g->drafter.n = 0;
    return (qn_segment){.seq = s->seq,
                        .ids = s->tokens + cached,
                        .rows = n,
                        .outs = shows ? n : cached + (size_t)n == s->n_tokens,
                        .top = wanted_top(g),
                        .media = &s->media};
}

// Max rows of prompts beside those that decode.
static int64_t limit_prompts(const rows *r, int64_t n_decoding, int64_t left) {
    const qn_shared *shared = r->shared;
    if (!r->has_decoded || r->prompt_rows == 0) return left;
    if (r->prompt_rows > 0) return qn_min(left, r->prompt_rows);
    if (n_decoding == 0) n_decoding = qn_max(r->n_beside, 1);
    return qn_prompt_share_rows(&shared->share, qn_step_costs_get(&shared->costs, n_decoding),
                                n_decoding, left);
}

// Rows that a prompt may have: short ones all that they need, the others equal shares of the rest.
static int64_t fair_rows(const rows *r, int64_t from, int64_t left) {
    int64_t n = 0, share = left;
    for (int64_t before = -1; before != n;) { // each round takes out those that need less
        int64_t rest = left, n_long = 0;
        before = n;
        n = 0;
        for (int64_t i = from; i < r->flight->n; i++) {
            const qn_session *s = r->flight->gens[i]->session;
            const int64_t need = (int64_t)(s->n_tokens - qn_session_cached(s));
            const bool is_short = i > from && need < share;
            rest -= is_short ? need : 0;
            n_long += !is_short;
            n += is_short;
        }
        share = qn_max(1, rest / n_long);
    }
    return share;
}

// Counts the rows of the step; prompts that find no place in it, and rows that have ended, are left
// out.
static void fill_segments(rows *r) {
    qn_flight *f = r->flight;
    int64_t n_outs = 0, n = 0, n_decoding = 0, left = r->chunk;
    f->n_rows = 0;
    for (int64_t i = 0; i < f->n && left > 0 && n_outs < r->max_outs; i++) {
        qn_generation *g = f->gens[i];
        if (i == f->n_decoding) left = limit_prompts(r, f->n_rows, left);
        if (!qn_generation_is_active(g)) continue;
        const int64_t others = f->n - 1 - i; // may want the logits of one row each
        const int64_t outs = r->max_outs - n_outs - others;
        const bool is_decoding = i < f->n_decoding;
        f->segments[n] = is_decoding
                             ? decode_segment(g)
                             : prefill_segment(g, fair_rows(r, i, left), outs > 1 ? outs : 1);
        f->sessions[n] = g->session;
        f->gens[n] = g;
        n_decoding += is_decoding;
        r->has_decoded |= is_decoding;
        f->n_rows += f->segments[n].rows;
        n_outs += f->segments[n].outs;
        left -= f->segments[n++].rows;
    }
    f->n = n;
    f->n_decoding = n_decoding;
}

// Chooses by the logits of rows [row, row + 1 + drafted) of the step; `top` as the segment has it.
static qn_status take_rows(qn_generation *g, int64_t row, int64_t top, qn_err *err) {
    qn_drafter *drafter = &g->drafter;
    const int32_t n = drafter->n;
    const size_t cached = qn_session_cached(g->session);
    int32_t accepted = 0;
    bool is_right = true;
    g->result.n_drafted += n;
    for (int32_t k = 0; k <= n && is_right && qn_generation_is_active(g); k++) {
        qn_row_logits logits;
        QN_TRY(qn_row_logits_find(&logits, g->session, row + k, top, err));
        const int32_t expected = k < n ? drafter->tokens[k] : -1;
        QN_TRY(choose_and_take(&is_right, g, &logits, expected, err));
        accepted += is_right;
    }
    // Of the last token that stays: the one before that which was chosen last.
    qn_session_keep_last(g->session, row + accepted, cached - (size_t)(n - accepted));
    g->result.n_accepted += accepted;
    qn_drafter_judge(drafter, g->session, accepted);
    return QN_OK;
}

// Rolls back state past the history; an active row has its last token still to compute, or its
// logits.
static void roll_back(qn_generation *g) {
    qn_session *s = g->session;
    const size_t want = s->n_tokens - (qn_generation_is_active(g) && !s->has_logits);
    if (qn_session_cached(s) > want) (void)qn_seq_truncate(s->seq, (int64_t)want);
}

// Rows of a prompt whose logits are wanted for more than this row's next choice.
static qn_status take_prompt(qn_generation *g, const qn_segment *segment, int64_t row,
                             qn_err *err) {
    const bool is_end = qn_session_cached(g->session) == g->session->n_tokens;
    if (is_end) {
        QN_TRY(qn_session_take(g->session, row + segment->outs - 1, QN_TOP_ALL, err));
        g->leaves_logits = false;
    }
    if (qn_generation_shows_prompt(g)) QN_TRY(qn_generation_show_rows(g, row, segment->outs, err));
    return QN_OK;
}

static qn_status take_segment(qn_generation *g, const qn_segment *segment, int64_t row,
                              bool is_decoding, qn_err *err) {
    if (segment->uncertain == 0) QN_TRY(qn_session_prefilled(g->session, segment->rows, err));
    g->result.n_steps += is_decoding;
    qn_generation_tell_progress(g);
    if (!qn_generation_is_active(g)) return QN_OK;
    if (g->leaves_logits || qn_generation_shows_prompt(g)) return take_prompt(g, segment, row, err);
    return segment->outs ? take_rows(g, row, segment->top, err) : QN_OK;
}

// Of steps that follow each other through the ranks, each takes the time since the one before.
static void note_time(qn_shared *shared, const qn_flight *f) {
    const int64_t now = qn_clock(), ns = now - qn_max(f->began, shared->ended);
    int64_t n_decoding = 0;
    for (int64_t i = 0; i < f->n_decoding; i++) n_decoding += f->segments[i].rows;
    if (f->n_rows == n_decoding)
        qn_step_costs_add(&shared->costs, f->n_rows, ns);
    else if (n_decoding)
        qn_prompt_share_add(&shared->share, f->n_rows - n_decoding, ns,
                            qn_step_costs_get(&shared->costs, n_decoding));
    shared->ended = now;
}

// *out: NULL where no rows are left.
static qn_status begin(qn_flight **out, rows *r, qn_err *err) {
    qn_flight *f = r->flight;
    if (f->n == 0) return QN_OK;
    draft(r);
    fill_segments(r);
    f->began = qn_clock();
    if (f->n == 0) return QN_OK;
    QN_TRY(qn_session_begin(r->shared, f, err));
    for (int64_t i = 0; i < f->n; i++) f->gens[i]->is_under_way = true;
    *out = f;
    return QN_OK;
}

static qn_status end(qn_shared *shared, qn_flight *f, qn_err *err) {
    for (int64_t i = 0; i < f->n; i++) f->gens[i]->is_under_way = false;
    return qn_session_end(shared, f, err);
}

qn_status qn_generations_end(qn_shared *shared, qn_flight *f, qn_err *err) {
    QN_TRY(end(shared, f, err));
    note_time(shared, f);
    for (int64_t i = 0, row = 0; i < f->n; row += f->segments[i++].outs) {
        qn_generation *g = f->gens[i];
        const qn_status status = take_segment(g, &f->segments[i], row, i < f->n_decoding, &g->err);
        if (status) qn_generation_fail(g, status);
        roll_back(g); // after an error too: the session stays usable
    }
    return QN_OK;
}

void qn_generations_drop(qn_shared *shared, qn_flight *f) {
    qn_err ignored; // told by the step that failed
    if (end(shared, f, &ignored)) return;
    for (int64_t i = 0; i < f->n; i++) roll_back(f->gens[i]); // drafts
}

// --- the step ------------------------------------------------------------------------------------

// A row that has its logits gets its token; one with a token to compute is added to the step; one
// with a prompt to prefill is added after those (is_prefilling).
static qn_status begin_row(rows *r, qn_generation *g, qn_err *err) {
    qn_session *s = g->session;
    bool is_right;
    if (s->n_tokens != g->n_history)
        return QN_FAIL(err, STATE, "the session has %zu tokens, the generation left %zu",
                       s->n_tokens, g->n_history);
    if (g->opts.naive && qn_generation_shows_prompt(g)) QN_TRY(qn_generation_show_naive(g, err));
    g->is_prefilling = qn_generation_is_active(g) && qn_generation_shows_prompt(g);
    if (g->is_prefilling) return QN_OK;
    if (qn_generation_is_active(g)) QN_TRY(qn_generation_make_room(g, err));
    if (!qn_generation_is_active(g)) return QN_OK;
    if (g->opts.naive) return step_naive(g, err);
    QN_TRY(qn_session_settle(s, QN_TOP_ALL, err));
    const size_t cached = qn_session_cached(s);
    g->is_prefilling =
        cached + 1 < s->n_tokens || (cached < s->n_tokens && (s->prefill_end || g->leaves_logits));
    if (g->is_prefilling) return QN_OK;
    qn_generation_begin(g);
    if (!qn_generation_is_active(g)) return QN_OK;
    const qn_row_logits logits = {.all = s->logits};
    if (cached < s->n_tokens) {
        r->flight->gens[r->flight->n++] = g;
        r->flight->n_decoding++;
        return QN_OK;
    }
    return choose_and_take(&is_right, g, &logits, -1, err);
}

// Whether a prompt in this step or one under way will give the row its beginning.
static bool should_wait(const rows *r, const qn_generation *g) {
    for (int i = 0; i < r->shared->n_flights; i++) {
        const qn_flight *f = &r->shared->flights[i];
        if (f != r->flight && !f->is_under_way) continue;
        for (int64_t k = f->n_decoding; k < f->n; k++) {
            if (qn_generation_should_wait(g, f->gens[k])) return true;
        }
    }
    return false;
}

// Adds prefilling rows in order, except those that should wait for another.
static void add_prefilling(rows *r, qn_generation *const *gens, size_t n) {
    qn_flight *f = r->flight;
    for (size_t i = 0; i < n && f->n < r->max_outs; i++) {
        qn_generation *g = gens[i];
        if (!g->is_prefilling || !qn_generation_is_active(g) || should_wait(r, g)) continue;
        qn_generation_begin(g);
        f->gens[f->n++] = g;
    }
}

static void clear(qn_flight *f) { f->n = f->n_decoding = 0; }

static qn_status init_rows(rows *r, qn_generation *const *gens, int64_t prompt_rows, qn_err *err) {
    const qn_session *first = gens[0]->session;
    qn_shared *shared = first->shared;
    *r = (rows){.shared = shared, .chunk = first->chunk, .prompt_rows = prompt_rows};
    if (!shared) return QN_OK;
    r->max_outs = qn_min(r->chunk, shared->outs);
    for (int i = shared->n_flights - 1; i >= 0; i--) {
        qn_flight *f = &shared->flights[i];
        if (f->is_under_way)
            r->n_beside = qn_max(r->n_beside, f->n_decoding);
        else
            r->flight = f;
    }
    if (!r->flight)
        return QN_FAIL(err, STATE, "all %d steps of a batch are under way", shared->n_flights);
    r->has_decoded = r->n_beside > 0 || shared->has_company;
    clear(r->flight);
    return QN_OK;
}

qn_status qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                               int64_t prompt_rows, qn_err *err) {
    rows r;
    *out = NULL;
    QN_TRY(init_rows(&r, gens, prompt_rows, err));
    for (size_t i = 0; i < n; i++) {
        gens[i]->is_prefilling = false;
        if (!qn_generation_is_active(gens[i])) continue;
        const qn_status status = begin_row(&r, gens[i], &gens[i]->err);
        if (status) qn_generation_fail(gens[i], status);
        if (!r.flight || r.flight->n < r.max_outs) continue;
        QN_TRY(begin(out, &r, err)); // it is full
        if (*out) QN_TRY(qn_generations_end(r.shared, *out, err));
        *out = NULL;
        clear(r.flight);
    }
    if (!r.shared) return QN_OK;
    add_prefilling(&r, gens, n);
    return begin(out, &r, err);
}

qn_status qn_generations_step(qn_generation *const *gens, size_t n, int64_t prompt_rows,
                              qn_err *err) {
    qn_flight *f;
    QN_TRY(qn_generations_begin(&f, gens, n, prompt_rows, err));
    return f ? qn_generations_end(gens[0]->session->shared, f, err) : QN_OK;
}

// qn_generation: options and life.
#include "session/generate_int.h"

#include "core/mem.h"
#include "core/structs.h"
#include "gen/grammar/grammar_int.h"

#include <string.h>

enum {
    DEFAULT_DRAFT = 8, // a limit: how many are drafted follows from costs (gen/draft.h); not tuned
    MAX_RESERVED = 4096, // tokens: 48 KiB with their text; longer answers grow. Not tuned
    TEXT_PER_TOKEN = 8   // bytes
};

const char *qn_reason_name(qn_reason reason) {
    static const char *const names[] = {
        [QN_REASON_NONE] = "none",     [QN_REASON_END] = "end",
        [QN_REASON_STOP] = "stop",     [QN_REASON_LENGTH] = "length",
        [QN_REASON_CALLER] = "caller", [QN_REASON_DEADLINE] = "deadline",
        [QN_REASON_FAILED] = "failed", [QN_REASON_STOPPED] = "stopped"};
    const size_t n = sizeof names / sizeof names[0];
    return (size_t)reason < n ? names[reason] : "unknown";
}

void qn_result_deinit(qn_result *result) {
    if (!result || QN_RESULT_CHECK(qn_result, result, NULL)) return;
    qn_free(result->tokens);
    qn_free(result->text);
    qn_free(result->message);
    QN_RESULT_CLEAR(qn_result, result);
}

// --- options -------------------------------------------------------------------------------------

static qn_status check_range(const char *name, int64_t value, int64_t min, int64_t max,
                             qn_err *err) {
    if (value >= min && value <= max) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s %lld, want %lld to %lld", name, (long long)value,
                   (long long)min, (long long)max);
}

static qn_status check_shift(const qn_session *s, const qn_generate_opts *o, qn_err *err) {
    if (!o->shift) return QN_OK;
    if (qn_engine_is_recurrent(s->engine))
        return QN_FAIL(err, UNSUPPORTED,
                       "context shift: %s has recurrent layers, whose state cannot forget",
                       s->engine->model->family->arch);
    if (s->media.n)
        return QN_FAIL(err, UNSUPPORTED,
                       "context shift: the history has %zu images, whose positions cannot move",
                       s->media.n);
    if (s->media.given)
        return QN_FAIL(err, UNSUPPORTED,
                       "context shift: %lld tokens of the history were given rows or positions",
                       (long long)s->media.n_given);
    return check_range("keep", o->keep, 0, s->context - 2, err);
}

static qn_status check_stop_tokens(const qn_generate_opts *o, int64_t vocab, qn_err *err) {
    if (o->n_stop_tokens && !o->stop_tokens)
        return QN_FAIL(err, ARGUMENT, "%zu stop tokens, but the list is NULL", o->n_stop_tokens);
    if (o->n_stop_tokens > QN_MAX_STOPS)
        return QN_FAIL(err, LIMIT, "%zu stop tokens, at most %d", o->n_stop_tokens, QN_MAX_STOPS);
    for (size_t i = 0; i < o->n_stop_tokens; i++)
        QN_TRY(check_range("stop token", o->stop_tokens[i], 0, vocab - 1, err));
    return QN_OK;
}

static qn_status check_opts(const qn_session *s, const qn_generate_opts *o, qn_err *err) {
    const int64_t vocab = s->engine->model->hparams->vocab;
    QN_TRY(check_range("min_tokens", o->min_tokens, 0, INT64_MAX, err));
    QN_TRY(check_range("max_tokens", o->max_tokens, -1, INT64_MAX, err));
    QN_TRY(check_range("n_top", o->n_top, 0, QN_MAX_TOP, err));
    QN_TRY(check_range("draft_max", o->draft_max, 0, QN_MAX_DRAFT, err));
    QN_TRY(check_range("draft_min", o->draft_min, 0, o->draft_max ? o->draft_max : DEFAULT_DRAFT,
                       err));
    QN_TRY(check_shift(s, o, err));
    if (o->flags & ~(uint64_t)QN_GENERATE_SHOW_END)
        return QN_FAIL(err, ARGUMENT, "flags %#llx, want %#x at most", (unsigned long long)o->flags,
                       (unsigned)QN_GENERATE_SHOW_END);
    if (o->max_tokens > 0 && o->min_tokens > o->max_tokens)
        return QN_FAIL(err, ARGUMENT, "min_tokens %lld, max_tokens %lld", (long long)o->min_tokens,
                       (long long)o->max_tokens);
    QN_TRY(check_stop_tokens(o, vocab, err));
    if (o->n_stops && !s->engine->tokenizer)
        return QN_FAIL(err, UNSUPPORTED, "%zu stop strings, the model has no tokenizer",
                       o->n_stops);
    if (s->n_tokens == 0)
        return QN_FAIL(err, STATE, "no history: a prompt comes first (qn_session_set_prompt)");
    return o->naive ? QN_OK : qn_session_need_plans(s, err);
}

// --- life ----------------------------------------------------------------------------------------

static void forbid(uint32_t *mask, int32_t token) { mask[token / 32] &= ~(1u << token % 32); }

// All tokens of the vocabulary except those that end an answer.
static qn_status make_mask(qn_mask *out, const qn_generation *g, bool has_stops, qn_err *err) {
    const int64_t vocab = g->session->engine->model->hparams->vocab;
    const size_t n = ((size_t)vocab + 31) / 32;
    uint32_t *mask = qn_alloc(n, sizeof *mask);
    if (!mask) return QN_NOMEM(err, "mask");
    memset(mask, 0xff, n * sizeof *mask);
    if (vocab % 32) mask[n - 1] = (1u << vocab % 32) - 1;
    for (int32_t id = 0; g->tokenizer && id < vocab; id++) {
        if (qn_tokenizer_is_end(g->tokenizer, id)) forbid(mask, id);
    }
    for (size_t i = 0; has_stops && i < g->opts.n_stop_tokens; i++) forbid(mask, g->stop_tokens[i]);
    int64_t n_left = 0;
    for (size_t i = 0; i < n; i++) n_left += __builtin_popcount(mask[i]);
    *out = (qn_mask){.bits = mask, .n_excluded = vocab - n_left};
    return QN_OK;
}

static qn_status init_grammar(qn_generation *g, qn_err *err) {
    const int64_t vocab = g->session->engine->model->hparams->vocab;
    const int32_t n_tokens = g->tokenizer ? qn_tokenizer_own_info(g->tokenizer)->n_tokens : 0;
    if (g->opts.grammar->bytes.n_tokens != n_tokens)
        return QN_FAIL(err, ARGUMENT, "the grammar is for %d tokens, the model's tokenizer has %d",
                       g->opts.grammar->bytes.n_tokens, n_tokens);
    g->grammar = qn_grammar_hold(g->opts.grammar);
    QN_TRY(qn_matcher_create(&g->matcher, g->grammar, vocab, err));
    g->both = qn_alloc(((size_t)vocab + 31) / 32, sizeof *g->both);
    return g->both ? QN_OK : QN_NOMEM(err, "mask");
}

// Room for an answer of usual length; a longer one grows.
static bool reserve(qn_generation *g) {
    const int64_t room = g->session->context - g->result.n_prompt, wanted = g->opts.max_tokens;
    int64_t n = wanted < 0 ? 0 : wanted > 0 && wanted < room ? wanted : room;
    if (n > MAX_RESERVED) n = MAX_RESERVED;
    qn_result *r = &g->result;
    g->cap_tokens = (size_t)n;
    g->cap_text = TEXT_PER_TOKEN * (size_t)n + 1;
    r->tokens = qn_alloc(g->cap_tokens, sizeof *r->tokens);
    r->text = qn_alloc(g->cap_text, 1);
    return r->tokens && r->text;
}

static qn_status copy_stop_tokens(qn_generation *g, qn_err *err) {
    const size_t n = g->opts.n_stop_tokens;
    g->stop_tokens = qn_alloc(n, sizeof *g->stop_tokens);
    if (!g->stop_tokens) return QN_NOMEM(err, "stop tokens");
    if (n) memcpy(g->stop_tokens, g->opts.stop_tokens, n * sizeof *g->stop_tokens);
    return QN_OK;
}

static qn_status init_parts(qn_generation *g, qn_err *err) {
    const qn_generate_opts *o = &g->opts;
    g->tokenizer = g->session->engine->tokenizer;
    QN_TRY(qn_session_create_chooser(&g->chooser, g->session, err));
    QN_TRY(qn_chooser_set(g->chooser, o->sample, err));
    QN_TRY(copy_stop_tokens(g, err));
    if (g->tokenizer) QN_TRY(qn_decoder_create(&g->decoder, g->tokenizer, err));
    if (o->n_stops) QN_TRY(qn_stops_create(&g->stops, o->stops, o->n_stops, err));
    if (o->ignore_end) QN_TRY(make_mask(&g->endless, g, false, err));
    if (o->min_tokens) QN_TRY(make_mask(&g->early, g, true, err));
    if (o->grammar) QN_TRY(init_grammar(g, err));
    if (!o->naive) QN_TRY(qn_drafter_init(&g->drafter, g->session, o, err));
    g->top = qn_alloc((size_t)o->n_top, sizeof *g->top);
    return g->top && reserve(g) ? QN_OK : QN_NOMEM(err, "answer");
}

qn_status qn_generation_create(qn_generation **out, qn_session *session,
                               const qn_generate_opts *opts, qn_err *err) {
    qn_generate_opts o;
    qn_sample_opts sample;
    QN_TRY(QN_OPTS_READ(qn_generate_opts, &o, opts, err));
    QN_TRY(QN_OPTS_READ(qn_sample_opts, &sample, o.sample, err));
    QN_TRY(check_opts(session, &o, err));
    qn_generation *g = qn_alloc(1, sizeof *g);
    if (!g) return QN_NOMEM(err, "generation");
    g->session = session;
    g->opts = o;
    g->opts.sample = &sample; // for this call; the samplers have copies
    if (!g->opts.draft_max) g->opts.draft_max = DEFAULT_DRAFT;
    g->n_history = session->n_tokens;
    g->n_shown = 1;
    g->result = QN_INIT(qn_result, .stop_token = -1, .stop = -1, .n_prompt = (int64_t)g->n_history);
    const qn_status status = init_parts(g, err);
    g->opts.sample = NULL;
    if (status)
        qn_generation_destroy(g);
    else
        *out = g;
    return status;
}

void qn_generation_destroy(qn_generation *g) {
    if (!g) return;
    qn_result_deinit(&g->result);
    qn_drafter_deinit(&g->drafter);
    qn_chooser_destroy(g->chooser);
    qn_stops_destroy(g->stops);
    qn_matcher_destroy(g->matcher);
    qn_grammar_destroy((qn_grammar *)g->grammar);
    qn_free(g->stop_tokens);
    qn_free(g->endless.bits);
    qn_free(g->early.bits);
    qn_free(g->both);
    qn_free(g->top);
    qn_decoder_destroy(g->decoder);
    qn_free(g);
}

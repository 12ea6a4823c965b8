// qn_generation: options, life, and the loop over one. See quern.h for the contracts.
#include "api/generate_int.h"

#include "core/mem.h"

#include <string.h>

const char *qn_reason_name(qn_reason reason) {
    static const char *const names[] = {[QN_REASON_NONE] = "none",
                                        [QN_REASON_END] = "end",
                                        [QN_REASON_STOP] = "stop",
                                        [QN_REASON_LENGTH] = "length",
                                        [QN_REASON_CALLER] = "caller"};
    const size_t n = sizeof names / sizeof names[0];
    return (size_t)reason < n ? names[reason] : "unknown";
}

void qn_result_deinit(qn_result *result) {
    qn_free(result->tokens);
    qn_free(result->text);
    *result = (qn_result){0};
}

// --- options -------------------------------------------------------------------------------------

static qn_status check_range(const char *name, int64_t value, int64_t least, int64_t most,
                             qn_err *err) {
    if (value >= least && value <= most) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s %lld, want %lld to %lld", name, (long long)value,
                   (long long)least, (long long)most);
}

static qn_status check_opts(const qn_session *s, const qn_generate_opts *o, qn_err *err) {
    const int64_t vocab = s->engine->model->hparams->vocab;
    QN_TRY(check_range("min_tokens", o->min_tokens, 0, INT64_MAX, err));
    QN_TRY(check_range("max_tokens", o->max_tokens, -1, INT64_MAX, err));
    QN_TRY(check_range("n_top", o->n_top, 0, QN_MOST_TOP, err));
    QN_TRY(check_range("draft_most", o->draft_most, 0, QN_MOST_DRAFT, err));
    QN_TRY(check_range("draft_least", o->draft_least, 0, QN_MOST_DRAFT, err));
    QN_TRY(check_range("keep", o->keep, 0, s->context - 1, err));
    if (o->max_tokens > 0 && o->min_tokens > o->max_tokens)
        return QN_FAIL(err, ARGUMENT, "min_tokens %lld, max_tokens %lld", (long long)o->min_tokens,
                       (long long)o->max_tokens);
    for (size_t i = 0; i < o->n_stop_tokens; i++)
        QN_TRY(check_range("stop token", o->stop_tokens[i], 0, vocab - 1, err));
    if (s->n_tokens == 0)
        return QN_FAIL(err, STATE, "no history: call qn_session_set_prompt first");
    return o->naive ? QN_OK : qn_session_need_plans(s, err);
}

// --- life ----------------------------------------------------------------------------------------

static qn_status init_parts(qn_generation *g, qn_err *err) {
    const qn_engine *engine = g->session->engine;
    g->tokenizer = engine->tokenizer;
    QN_TRY(qn_sampler_create(&g->sampler, g->tokenizer, engine->model->hparams->vocab, err));
    QN_TRY(qn_sampler_set(g->sampler, &g->opts.sample, err));
    if (g->tokenizer) QN_TRY(qn_decoder_create(&g->decoder, g->tokenizer, err));
    g->result.text = qn_alloc(1, 1);
    return g->result.text ? QN_OK : QN_NOMEM(err, "answer");
}

qn_status qn_generation_create(qn_generation **out, qn_session *session,
                               const qn_generate_opts *opts, qn_err *err) {
    const qn_generate_opts defaults = {0};
    QN_TRY(check_opts(session, opts ? opts : &defaults, err));
    qn_generation *g = qn_alloc(1, sizeof *g);
    if (!g) return QN_NOMEM(err, "generation");
    g->session = session;
    g->opts = opts ? *opts : defaults;
    g->n_history = g->n_prompt = session->n_tokens;
    g->result = (qn_result){.stop_token = -1, .stop = -1, .n_prompt = (int64_t)g->n_prompt};
    const qn_status status = init_parts(g, err);
    if (status)
        qn_generation_destroy(g);
    else
        *out = g;
    return status;
}

void qn_generation_destroy(qn_generation *g) {
    if (!g) return;
    qn_result_deinit(&g->result);
    qn_sampler_destroy(g->sampler);
    qn_decoder_destroy(g->decoder);
    qn_free(g);
}

const qn_result *qn_generation_result(const qn_generation *g) { return &g->result; }

qn_status qn_generate(qn_result *result, qn_session *session, const qn_generate_opts *opts,
                      qn_event_fn *fn, void *arg, qn_err *err) {
    qn_generation *g = NULL;
    QN_TRY(qn_generation_create(&g, session, opts, err));
    qn_status status = QN_OK;
    while (qn_generation_is_active(g))
        QN_TRY_TO(done, qn_generations_step(NULL, &g, 1, fn, arg, err));
    if (result) {
        *result = g->result;
        g->result = (qn_result){0};
    }

done:
    qn_generation_destroy(g);
    return status;
}

// qn_generation: from a chosen token to history, text, stops and events.
#include "session/generate_int.h"

#include "core/mem.h"
#include "gen/logits.h"
#include "gen/logprobs.h"

#include <string.h>

// --- events --------------------------------------------------------------------------------------

static bool emit(const qn_generation *g, qn_event *event) {
    if (!g->to.fn) return true;
    event->id = g->to.id;
    event->row = g->to.row;
    return g->to.fn(g->to.arg, event);
}

// Adds the text from what was emitted up to `end` to an event.
static void show(qn_generation *g, qn_event *event, size_t end) {
    event->text = g->result.text + g->shown;
    event->text_size = end - g->shown;
    g->shown = end;
}

static void add_logprobs(qn_generation *g, qn_event *event, const float *logits) {
    const int64_t vocab = g->session->engine->model->hparams->vocab;
    int64_t n_top = 0;
    event->logprob = qn_logprobs_get(&n_top, g->top, g->opts.n_top, logits, vocab, event->token);
    event->top = g->top;
    event->n_top = (size_t)n_top;
}

qn_status qn_generation_show_prompt(qn_generation *g, size_t at, const float *logits, qn_err *err) {
    qn_event event = QN_INIT(qn_event, .token = g->session->tokens[at], .position = (int64_t)at,
                             .is_prompt = true, .text = "");
    QN_TRY(qn_logits_check(logits, g->session->engine->model->hparams->vocab, err));
    add_logprobs(g, &event, logits);
    g->n_shown = at + 1;
    return emit(g, &event) ? QN_OK : qn_generation_end(g, QN_REASON_CALLER, err);
}

// --- text ----------------------------------------------------------------------------------------

static qn_status add_text(qn_generation *g, const char *text, size_t size, qn_err *err) {
    qn_result *r = &g->result;
    if (!qn_grow((void **)&r->text, &g->cap_text, r->text_size + size + 1, 1))
        return QN_NOMEM(err, "answer");
    memcpy(r->text + r->text_size, text, size);
    r->text_size += size;
    r->text[r->text_size] = '\0';
    return QN_OK;
}

static qn_status add_token(qn_generation *g, int32_t token, qn_err *err) {
    qn_result *r = &g->result;
    if (!qn_grow((void **)&r->tokens, &g->cap_tokens, r->n_tokens + 1, sizeof *r->tokens))
        return QN_NOMEM(err, "answer");
    r->tokens[r->n_tokens++] = token;
    qn_session_set_tokens(g->session, g->session->n_tokens, &token, 1);
    g->n_history = g->session->n_tokens;
    if (!g->decoder) return QN_OK;
    const char *text;
    size_t size;
    QN_TRY(qn_decoder_next(&text, &size, g->decoder, token, err));
    return size ? add_text(g, text, size, err) : QN_OK;
}

// What the decoder has kept back.
static qn_status flush_text(qn_generation *g, qn_err *err) {
    const char *text;
    size_t size;
    if (!g->decoder) return QN_OK;
    QN_TRY(qn_decoder_finish(&text, &size, g->decoder, err));
    return size ? add_text(g, text, size, err) : QN_OK;
}

// Looks for stop strings in the text from `from` on; returns how much of the text can be shown.
static size_t find_stop(qn_generation *g, size_t from) {
    qn_result *r = &g->result;
    if (!g->stops) return r->text_size;
    if ((int64_t)r->n_tokens < g->opts.min_tokens) { // too early to stop: only look at later text
        g->stop_from = r->text_size;
        return r->text_size;
    }
    qn_stop_feed(&g->stop_state, g->stops, r->text + from, r->text_size - from);
    const size_t safe = g->stop_from + g->stop_state.safe;
    if (g->stop_state.is_met) {
        r->stop = (int64_t)g->stop_state.which;
        r->text_size = safe;
        r->text[safe] = '\0';
    }
    return safe;
}

// The last event, unless the caller asked for no more.
static void emit_end(qn_generation *g, qn_reason reason) {
    g->result.reason = reason;
    qn_event event =
        QN_INIT(qn_event, .token = -1, .position = qn_generation_position(g), .reason = reason,
                .err = reason == QN_REASON_FAILED ? &g->err : NULL, .result = &g->result);
    show(g, &event, g->result.text_size);
    if (reason != QN_REASON_CALLER) (void)emit(g, &event);
}

qn_status qn_generation_end(qn_generation *g, qn_reason reason, qn_err *err) {
    if (g->result.stop < 0) QN_TRY(flush_text(g, err)); // after a stop string nothing is added
    emit_end(g, reason);
    return QN_OK;
}

void qn_generation_fail(qn_generation *g, qn_status status) {
    if (!qn_generation_is_active(g)) return;
    const size_t size = strlen(g->err.message) + 1;
    g->result.status = status;
    g->result.message = qn_alloc(size, 1); // without memory, the status alone
    if (g->result.message) memcpy(g->result.message, g->err.message, size);
    emit_end(g, QN_REASON_FAILED);
}

void qn_generation_stop(qn_generation *g, qn_reason reason) {
    const qn_status status = qn_generation_end(g, reason, &g->err);
    if (status) qn_generation_fail(g, status);
}

// --- tokens --------------------------------------------------------------------------------------

static bool is_stop_token(const qn_generation *g, int32_t token) {
    for (size_t i = 0; i < g->opts.n_stop_tokens; i++) {
        if (g->stop_tokens[i] == token) return true;
    }
    return false;
}

// Whether a token ends the answer, and how; NONE: it belongs to it.
static qn_reason find_ending(const qn_generation *g, int32_t token) {
    if (is_stop_token(g, token)) return QN_REASON_STOP;
    return g->tokenizer && qn_tokenizer_is_end(g->tokenizer, token) ? QN_REASON_END
                                                                    : QN_REASON_NONE;
}

// Whether the answer ends after the token that was added, and why.
static qn_reason find_limit(const qn_generation *g) {
    const qn_result *r = &g->result;
    if (r->stop >= 0) return QN_REASON_STOP;
    if (g->matcher && qn_matcher_is_done(g->matcher)) return QN_REASON_END;
    const bool is_long = g->opts.max_tokens > 0 && (int64_t)r->n_tokens >= g->opts.max_tokens;
    return is_long ? QN_REASON_LENGTH : QN_REASON_NONE;
}

// The token that ends the answer, as its last one.
static qn_status show_ending(qn_generation *g, int32_t token, const float *logits, bool is_drafted,
                             qn_reason reason, qn_err *err) {
    qn_event event = QN_INIT(qn_event, .token = token, .is_drafted = is_drafted,
                             .position = qn_generation_position(g));
    size_t size;
    if (g->opts.logprobs) add_logprobs(g, &event, logits);
    QN_TRY(flush_text(g, err));
    const size_t before = g->result.text_size;
    QN_TRY(add_token(g, token, err));
    QN_TRY(flush_text(g, err));
    if (g->tokenizer && g->result.text_size == before) { // a control token
        const char *text = qn_tokenizer_piece(g->tokenizer, token, &size);
        if (text) QN_TRY(add_text(g, text, size, err));
    }
    show(g, &event, g->result.text_size);
    return qn_generation_end(g, emit(g, &event) ? reason : QN_REASON_CALLER, err);
}

qn_status qn_generation_take(qn_generation *g, int32_t token, const float *logits, bool is_drafted,
                             qn_err *err) {
    qn_reason reason = find_ending(g, token);
    if (reason) {
        g->result.stop_token = token;
        if (g->opts.flags & QN_GENERATE_SHOW_END)
            return show_ending(g, token, logits, is_drafted, reason, err);
        return qn_generation_end(g, reason, err);
    }
    qn_event event = QN_INIT(qn_event, .token = token, .is_drafted = is_drafted,
                             .position = qn_generation_position(g));
    if (g->opts.logprobs) add_logprobs(g, &event, logits);
    const size_t before = g->result.text_size;
    if (g->matcher) QN_TRY(qn_matcher_accept(g->matcher, token, err));
    QN_TRY(add_token(g, token, err));
    show(g, &event, find_stop(g, before));
    if (!emit(g, &event)) return qn_generation_end(g, QN_REASON_CALLER, err);
    reason = find_limit(g);
    return reason ? qn_generation_end(g, reason, err) : QN_OK;
}

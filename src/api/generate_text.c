// qn_generation: what becomes of a chosen token: history, text, stops, events.
#include "api/generate_int.h"

#include "core/mem.h"

#include <string.h>

// --- events --------------------------------------------------------------------------------------

static bool tell(const qn_listener *to, qn_event *event) {
    if (!to->fn) return true;
    event->row = to->row;
    return to->fn(to->arg, event);
}

// The text from what was shown up to `end`.
static void show(qn_generation *g, qn_event *event, size_t end) {
    event->text = g->result.text + g->shown;
    event->size = end - g->shown;
    g->shown = end;
}

// --- text ----------------------------------------------------------------------------------------

static qn_status add_text(qn_generation *g, const char *text, size_t size, qn_err *err) {
    qn_result *r = &g->result;
    if (!qn_grow((void **)&r->text, &g->cap_text, r->size + size + 1, 1))
        return QN_NOMEM(err, "answer");
    memcpy(r->text + r->size, text, size);
    r->size += size;
    r->text[r->size] = '\0';
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

qn_status qn_generation_end(qn_generation *g, qn_reason reason, const qn_listener *to,
                            qn_err *err) {
    if (g->decoder && g->result.stop < 0) { // a stop string ends the text where it begins
        const char *text;
        size_t size;
        QN_TRY(qn_decoder_finish(&text, &size, g->decoder, err));
        if (size) QN_TRY(add_text(g, text, size, err));
    }
    g->result.reason = reason;
    qn_event event = {
        .token = -1, .position = g->shifted + (int64_t)g->n_history, .reason = reason};
    show(g, &event, g->result.size);
    if (reason != QN_REASON_CALLER) (void)tell(to, &event);
    return QN_OK;
}

// --- tokens --------------------------------------------------------------------------------------

static bool is_stop_token(const qn_generation *g, int32_t token) {
    for (size_t i = 0; i < g->opts.n_stop_tokens; i++) {
        if (g->opts.stop_tokens[i] == token) return true;
    }
    return false;
}

// Whether a token ends the answer, and how; NONE: it belongs to it.
static qn_reason ending(const qn_generation *g, int32_t token) {
    if (is_stop_token(g, token)) return QN_REASON_STOP;
    const bool is_end = g->tokenizer && qn_tokenizer_is_end(g->tokenizer, token);
    return is_end && !g->opts.ignore_end ? QN_REASON_END : QN_REASON_NONE;
}

qn_status qn_generation_take(qn_generation *g, int32_t token, const float *scores, bool is_guessed,
                             const qn_listener *to, qn_err *err) {
    (void)scores;
    qn_result *r = &g->result;
    const qn_reason reason = ending(g, token);
    if (reason) {
        r->stop_token = token;
        return qn_generation_end(g, reason, to, err);
    }
    qn_event event = {
        .token = token, .is_guessed = is_guessed, .position = g->shifted + (int64_t)g->n_history};
    QN_TRY(add_token(g, token, err));
    show(g, &event, r->size);
    if (!tell(to, &event)) return qn_generation_end(g, QN_REASON_CALLER, to, err);
    if (g->opts.max_tokens > 0 && (int64_t)r->n_tokens >= g->opts.max_tokens)
        return qn_generation_end(g, QN_REASON_LENGTH, to, err);
    return QN_OK;
}

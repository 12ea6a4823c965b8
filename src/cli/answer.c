#include "cli/answer.h"

#include "cli/out.h"
#include "cli/markdown.h"
#include "cli/terminal.h"

#include "core/json.h"

#include <string.h>

typedef struct work {
    const qn_answer_opts *opts;
    qn_answer answer;
    qn_line_wrap wrap;
    qn_markdown markdown;
    size_t n_text, n_reasoning; // bytes of the answer already reported by an event
    size_t n_calls;
    bool is_dim;
    bool has_shown; // anything at all
    bool is_reading;
    double start;
    qn_status status; // of what happened in a callback
    qn_err *err;
} work;

// --- parts ---------------------------------------------------------------------------------------

// Reasoning, text and calls each begin a line. What is dimmed has no other looks.
static void set_dim(work *w, bool is_dim) {
    if (w->is_dim == is_dim) return;
    qn_markdown_end(&w->markdown);
    qn_markdown_init(&w->markdown, &w->wrap, !is_dim && !w->opts->is_plain);
    if (w->has_shown) qn_wrap_end_line(&w->wrap);
    if (w->has_shown && !is_dim) putchar('\n');
    qn_wrap_dim(&w->wrap, is_dim);
    w->is_dim = is_dim;
}

// A call is shown with its arguments; elsewhere than on a terminal, as the model wrote it.
static void show_call(work *w, const qn_chat_event *event) {
    const bool is_written = event->kind == QN_CHAT_CALL;
    if (is_written == w->wrap.is_terminal) return;
    qn_markdown_end(&w->markdown);
    qn_wrap_end_line(&w->wrap);
    if (is_written) {
        qn_wrap_add(&w->wrap, event->text, event->text_size);
        qn_wrap_end_line(&w->wrap);
        return;
    }
    qn_wrap_dim(&w->wrap, true);
    qn_wrap_add(&w->wrap, "[tool call ", 11);
    qn_wrap_add(&w->wrap, event->name, strlen(event->name));
    qn_wrap_add(&w->wrap, " ", 1);
    qn_wrap_add(&w->wrap, event->text, event->text_size);
    qn_wrap_add(&w->wrap, ", not executed]", 15);
    qn_wrap_end_line(&w->wrap);
    qn_wrap_dim(&w->wrap, false);
}

// A qn_chat_fn.
static bool show(void *arg, const qn_chat_event *event) {
    work *w = arg;
    const bool is_reasoning = event->kind == QN_CHAT_REASONING;
    if (w->opts->json || (is_reasoning && !w->wrap.is_terminal)) return true;
    set_dim(w, is_reasoning);
    if (is_reasoning || event->kind == QN_CHAT_TEXT)
        qn_markdown_add(&w->markdown, event->text, event->text_size);
    else
        show_call(w, event);
    w->has_shown = true;
    return true;
}

// --- events --------------------------------------------------------------------------------------

static json_t *token_json(const work *w, int32_t id) {
    size_t size = 0;
    const char *piece = qn_tokenizer_piece(w->opts->tokenizer, id, &size);
    return qn_json_string(piece ? piece : "", size);
}

static json_t *logprob_json(const work *w, const qn_token_logprob *one) {
    return json_pack("{s:o, s:i, s:o}", "token", token_json(w, one->token), "id", (int)one->token,
                     "logprob", qn_json_real((double)one->logprob));
}

// What was added since the last event.
static json_t *new_text(const char *all, size_t size, size_t *n_told) {
    json_t *text = qn_json_string(all + *n_told, size - *n_told);
    *n_told = size;
    return text;
}

static void add_texts(json_t **event, work *w) {
    qn_message m = QN_INIT(qn_message);
    if (qn_chat_reply_get_message(&m, w->answer.reply, NULL)) return; // which it never does
    qn_json_put(event, "text", new_text(m.text, m.text_size, &w->n_text));
    if (m.reasoning_size > w->n_reasoning)
        qn_json_put(event, "reasoning", new_text(m.reasoning, m.reasoning_size, &w->n_reasoning));
}

static void add_logprobs(json_t **event, const work *w, const qn_event *from) {
    if (!w->opts->generate.logprobs) return;
    qn_json_put(event, "logprob", qn_json_real((double)from->logprob));
    if (from->n_top == 0) return;
    json_t *top = json_array();
    for (size_t i = 0; i < from->n_top; i++) qn_json_push(&top, logprob_json(w, &from->top[i]));
    qn_json_put(event, "top", top);
}

static qn_status print_calls(work *w, qn_err *err) {
    qn_message m = QN_INIT(qn_message);
    QN_TRY(qn_chat_reply_get_message(&m, w->answer.reply, err));
    for (; w->n_calls < m.n_calls; w->n_calls++) {
        const qn_tool_call *call = &m.calls[w->n_calls];
        json_t *arguments = NULL;
        QN_TRY(qn_json_parse(&arguments, call->arguments, strlen(call->arguments), false,
                             "a tool call", err));
        json_t *event =
            json_pack("{s:{s:s, s:o}}", "tool_call", "name", call->name, "arguments", arguments);
        QN_TRY(qn_stdout_json(event, 0, err));
    }
    return QN_OK;
}

static qn_status print_token(work *w, const qn_event *from, qn_err *err) {
    json_t *event =
        json_pack("{s:o, s:i}", "token", token_json(w, from->token), "id", (int)from->token);
    add_logprobs(&event, w, from);
    if (from->is_drafted) qn_json_put(&event, "drafted", json_true());
    add_texts(&event, w);
    QN_TRY(qn_stdout_json(event, 0, err));
    return print_calls(w, err);
}

static qn_status print_end(work *w, qn_err *err) {
    const qn_answer *a = &w->answer;
    QN_TRY(print_calls(w, err));
    json_t *event = json_pack("{s:b, s:s, s:b}", "done", 1, "reason", a->reason, "context_full",
                              (int)a->is_full);
    add_texts(&event, w);
    json_t *figures = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f, s:f}", "prompt_tokens", (json_int_t)a->n_prompt,
        "reused_tokens", (json_int_t)a->n_reused, "tokens", (json_int_t)a->n_tokens,
        "drafted_tokens", (json_int_t)a->n_drafted, "accepted_tokens", (json_int_t)a->n_accepted,
        "seconds", a->seconds, "prompt_seconds", a->prompt_seconds, "prompt_tokens_per_second",
        qn_answer_prompt_speed(a), "tokens_per_second", qn_answer_speed(a));
    const bool is_whole = json_object_update(event, figures) == 0;
    json_decref(figures);
    if (is_whole) return qn_stdout_json(event, 0, err);
    json_decref(event);
    return QN_NOMEM(err, "an event");
}

// --- the loop ------------------------------------------------------------------------------------

static void begin_reading(work *w) {
    qn_print_waiting("reading ..."); // how much of it is cached is not known yet
    w->is_reading = true;
    w->start = qn_now();
    if (w->opts->reading) // a bar that would go at once is not drawn
        *w->opts->reading = (qn_progress){
            .what = "reading", .unit = "tokens", .start = w->start, .shown = w->start, .from = -1};
}

static void end_reading(work *w) {
    if (!w->is_reading) return;
    w->is_reading = false;
    w->answer.prompt_seconds = qn_now() - w->start;
    qn_print_waited();
    if (w->opts->reading) qn_progress_end(w->opts->reading);
}

// A qn_event_fn. The last event, which has no token, is reported with the end of the answer.
static bool take_event(void *arg, const qn_event *event) {
    work *w = arg;
    end_reading(w);
    w->status = qn_chat_reply_feed(NULL, w->answer.reply, event, show, w, w->err);
    if (w->status || event->token < 0) return !w->status;
    w->status = w->opts->json ? print_token(w, event, w->err) : qn_stdout_check(w->err);
    return !w->status && !qn_stop_is_wanted();
}

static void take_result(work *w, const qn_result *result) {
    qn_answer *a = &w->answer;
    a->seconds = qn_now() - w->start;
    a->reason = result->reason == QN_REASON_CALLER ? "interrupted" : qn_reason_name(result->reason);
    size_t n;
    qn_session_tokens(w->opts->session, &n);
    a->is_full =
        result->reason == QN_REASON_LENGTH && (int64_t)n >= qn_session_context(w->opts->session);
    a->n_prompt = result->n_prompt;
    a->n_reused = result->n_reused;
    a->n_tokens = (int64_t)result->n_tokens + (result->stop_token >= 0);
    a->n_drafted = result->n_drafted;
    a->n_accepted = result->n_accepted;
    a->n_shifts = result->n_shifts;
}

static qn_status finish(work *w, qn_err *err) {
    QN_TRY(qn_chat_reply_finish(w->answer.reply, show, w, err));
    if (w->opts->json) return print_end(w, err);
    qn_markdown_end(&w->markdown);
    if (w->is_dim) qn_wrap_dim(&w->wrap, false);
    if (!w->has_shown) putchar('\n');
    qn_wrap_end_line(&w->wrap);
    return qn_stdout_check(err);
}

static qn_status run(work *w, qn_err *err) {
    const qn_answer_opts *opts = w->opts;
    qn_result result = QN_INIT(qn_result);
    QN_TRY(qn_chat_reply_create(&w->answer.reply, opts->turn, err));
    begin_reading(w);
    const qn_status status =
        qn_generate(&result, opts->session, &opts->generate, take_event, w, err);
    end_reading(w);
    if (!status) take_result(w, &result);
    qn_result_deinit(&result);
    if (w->status) return w->status;
    return status ? status : finish(w, err);
}

double qn_answer_speed(const qn_answer *a) {
    const double seconds = a->n_tokens > 1 ? a->seconds - a->prompt_seconds : a->seconds;
    const int64_t n = a->n_tokens > 1 ? a->n_tokens - 1 : a->n_tokens;
    return seconds > 0 ? (double)n / seconds : 0;
}

double qn_answer_prompt_speed(const qn_answer *a) {
    return a->prompt_seconds > 0 ? (double)(a->n_prompt - a->n_reused) / a->prompt_seconds : 0;
}

qn_status qn_answer_run(qn_answer *out, const qn_answer_opts *opts, qn_err *err) {
    work w = {.opts = opts, .err = err};
    qn_wrap_init(&w.wrap, stdout);
    w.wrap.is_free = opts->no_wrap;
    if (opts->no_wrap) w.wrap.width = 0;
    qn_markdown_init(&w.markdown, &w.wrap, !opts->is_plain);
    const qn_status status = run(&w, err);
    if (status) {
        if (!opts->json) qn_markdown_end(&w.markdown); // what was held is part of the answer
        qn_answer_deinit(&w.answer);
        return status;
    }
    *out = w.answer;
    return QN_OK;
}

void qn_answer_deinit(qn_answer *answer) {
    qn_chat_reply_destroy(answer->reply);
    *answer = (qn_answer){0};
}

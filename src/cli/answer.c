#include "cli/answer.h"

#include "cli/out.h"
#include "cli/terminal.h"

#include <string.h>

typedef struct work {
    const qn_answer_opts *opts;
    qn_decoder *decoder;
    qn_answer answer;
    size_t n_shown; // bytes of the text; the rest may turn out to begin a stop text
} work;

// --- stop texts ----------------------------------------------------------------------------------

// Where `part` begins in text[from ..]; size if nowhere.
static size_t find_text(const qn_buf *text, size_t from, const char *part) {
    const size_t n = strlen(part);
    for (size_t i = from; i + n <= text->size; i++) {
        if (memcmp(text->data + i, part, n) == 0) return i;
    }
    return text->size;
}

static size_t find_stop(const work *w) {
    const qn_buf *text = &w->answer.text;
    size_t first = text->size;
    for (size_t i = 0; i < w->opts->stops.n; i++) {
        const size_t at = find_text(text, w->n_shown, w->opts->stops.items[i]);
        if (at < first) first = at;
    }
    return first;
}

// Where the longest end of the text begins that a stop text could go on from.
static size_t find_held(const work *w) {
    const qn_buf *text = &w->answer.text;
    for (size_t at = w->n_shown; at < text->size; at++) {
        for (size_t i = 0; i < w->opts->stops.n; i++) {
            const char *stop = w->opts->stops.items[i];
            const size_t n = text->size - at;
            if (n < strlen(stop) && memcmp(text->data + at, stop, n) == 0) return at;
        }
    }
    return text->size;
}

// --- printing ------------------------------------------------------------------------------------

static qn_status print_event(work *w, int32_t id, const char *text, size_t size, qn_err *err) {
    size_t piece_size = 0;
    const char *piece = qn_tokenizer_piece(w->opts->tokenizer, id, &piece_size);
    json_t *event =
        json_pack("{s:o, s:i, s:o}", "token", qn_json_text(piece ? piece : "", piece_size), "id",
                  (int)id, "text", qn_json_text(text, size));
    return qn_stdout_json(event, 0, err);
}

static qn_status print_end(work *w, const char *text, size_t size, qn_err *err) {
    const qn_answer *a = &w->answer;
    json_t *event = json_pack(
        "{s:b, s:s, s:o, s:I, s:I, s:I, s:f, s:f, s:f}", "done", 1, "reason", a->reason, "text",
        qn_json_text(text, size), "prompt_tokens", (json_int_t)a->n_prompt, "reused_tokens",
        (json_int_t)a->n_reused, "tokens", (json_int_t)a->n_tokens, "seconds", a->seconds,
        "prompt_seconds", a->prompt_seconds, "tokens_per_second", qn_answer_speed(a));
    return qn_stdout_json(event, 0, err);
}

// Shows the text up to byte `end`. In JSON the event belongs to token `id`, or ends the answer
// when there is none (-1).
static qn_status show(work *w, size_t end, int32_t id, qn_err *err) {
    const qn_buf *buf = &w->answer.text;
    const char *text = buf->data ? buf->data + w->n_shown : "";
    const size_t size = end - w->n_shown;
    w->n_shown = end;
    if (w->opts->json)
        return id < 0 ? print_end(w, text, size, err) : print_event(w, id, text, size, err);
    qn_print_text(stdout, text, size);
    const bool lacks_newline = buf->size == 0 || buf->data[end - (end > 0)] != '\n';
    if (id < 0 && lacks_newline) putchar('\n');
    return qn_stdout_check(err);
}

// --- tokens --------------------------------------------------------------------------------------

// Takes decoded text in; *is_stop when a stop text came, which is then cut off.
static qn_status take_text(work *w, const char *text, size_t size, bool *is_stop, qn_err *err) {
    qn_buf *all = &w->answer.text;
    qn_buf_add(all, text, size);
    if (all->failed) return QN_NOMEM(err, "the answer");
    const size_t stop = find_stop(w);
    *is_stop = stop < all->size;
    if (*is_stop) {
        all->size = stop;
        all->data[stop] = 0;
    }
    return QN_OK;
}

static qn_status next_token(int32_t *id, const qn_answer_opts *opts, qn_err *err) {
    return opts->naive ? qn_session_step_naive(id, opts->session, &opts->sample, err)
                       : qn_session_step(id, opts->session, &opts->sample, err);
}

static void begin_reading(work *w) {
    const long long n = (long long)w->answer.n_prompt;
    qn_print_waiting("reading %lld token%s ...", n, n == 1 ? "" : "s");
    if (w->opts->reading)
        *w->opts->reading =
            (qn_progress){.what = "reading", .unit = "tokens", .start = qn_now(), .from = -1};
}

static void end_reading(work *w) {
    qn_print_waited();
    if (w->opts->reading) qn_progress_end(w->opts->reading);
}

// One more token; a reason in the answer means that it was the last.
static qn_status step(work *w, qn_err *err) {
    const qn_answer_opts *opts = w->opts;
    qn_answer *a = &w->answer;
    int32_t id;
    const char *text;
    size_t size;
    bool is_stop;
    if (a->n_tokens == 0) begin_reading(w);
    const qn_status status = next_token(&id, opts, err);
    if (a->n_tokens == 0) end_reading(w);
    if (status) return status;
    a->n_tokens++;
    if (qn_tokenizer_is_end(opts->tokenizer, id)) {
        a->reason = "end";
        return QN_OK;
    }
    QN_TRY(qn_decoder_next(&text, &size, w->decoder, id, err));
    QN_TRY(take_text(w, text, size, &is_stop, err));
    if (is_stop)
        a->reason = "stop";
    else if (opts->most && a->n_tokens >= opts->most)
        a->reason = "length";
    else if (a->n_prompt + a->n_tokens >= opts->context)
        a->reason = "context";
    else if (qn_interrupt_take())
        a->reason = "interrupted";
    return show(w, is_stop ? a->text.size : find_held(w), id, err);
}

static qn_status run(work *w, qn_err *err) {
    qn_answer *a = &w->answer;
    size_t n_prompt;
    qn_session_tokens(w->opts->session, &n_prompt);
    a->n_prompt = (int64_t)n_prompt;
    if (a->n_prompt >= w->opts->context)
        return QN_FAIL(err, LIMIT, "the prompt has %lld tokens, the context %lld",
                       (long long)a->n_prompt, (long long)w->opts->context);
    QN_TRY(qn_decoder_create(&w->decoder, w->opts->tokenizer, err));
    const double start = qn_now();
    const int64_t reused = qn_session_get_counts(w->opts->session).reused;
    while (!a->reason) {
        QN_TRY(step(w, err));
        if (a->n_tokens == 1) a->prompt_seconds = qn_now() - start;
    }
    a->seconds = qn_now() - start;
    a->n_reused = qn_session_get_counts(w->opts->session).reused - reused;
    if (strcmp(a->reason, "stop") != 0) {
        const char *text;
        size_t size;
        bool is_stop;
        QN_TRY(qn_decoder_finish(&text, &size, w->decoder, err));
        QN_TRY(take_text(w, text, size, &is_stop, err));
        if (is_stop) a->reason = "stop";
    }
    return show(w, a->text.size, -1, err);
}

double qn_answer_speed(const qn_answer *a) {
    const double seconds = a->n_tokens > 1 ? a->seconds - a->prompt_seconds : a->seconds;
    const int64_t n = a->n_tokens > 1 ? a->n_tokens - 1 : a->n_tokens;
    return seconds > 0 ? (double)n / seconds : 0;
}

qn_status qn_answer_run(qn_answer *out, const qn_answer_opts *opts, qn_err *err) {
    work w = {.opts = opts};
    const qn_status status = run(&w, err);
    qn_decoder_destroy(w.decoder);
    if (status)
        qn_answer_deinit(&w.answer);
    else
        *out = w.answer;
    return status;
}

void qn_answer_deinit(qn_answer *answer) {
    qn_buf_deinit(&answer->text);
    *answer = (qn_answer){0};
}

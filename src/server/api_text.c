// OpenAI's /v1/completions, with the log-probabilities of its first years: of prompts, too, which
// is what evaluations are made of.
#include "server/api.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

enum { USUAL_TOKENS = 16 }; // OpenAI's

// --- reading -------------------------------------------------------------------------------------

// A number of most likely tokens; true is none but the token itself.
static qn_status read_logprobs(qn_ask *ask, qn_problem *p) {
    if (!ask->logprobs || json_is_false(ask->logprobs)) return QN_OK;
    const json_int_t n = json_integer_value(ask->logprobs);
    if (n < 0 || n > QN_MAX_TOP)
        return QN_REFUSE(p, 400, "logprobs", "'logprobs' is %lld, want 0 to %d", (long long)n,
                         QN_MAX_TOP);
    ask->wants_logprobs = true;
    ask->n_top = (int32_t)n;
    return QN_OK;
}

static qn_status prepare(qn_ask *ask, qn_problem *p) {
    QN_TRY(qn_openai_prepare(ask, p));
    if (!ask->prompt) return QN_REFUSE(p, 400, "prompt", "the request has no 'prompt'");
    if (ask->best_of && ask->best_of != ask->n)
        return QN_REFUSE(p, 400, "best_of", "'best_of' is %lld and 'n' is %lld, want the same",
                         (long long)ask->best_of, (long long)ask->n);
    if (!QN_GIVEN(ask, max_tokens)) ask->max_tokens = USUAL_TOKENS;
    return read_logprobs(ask, p);
}

// --- places in the text --------------------------------------------------------------------------

// Characters (code points) of text that is UTF-8.
static int64_t count_chars(const char *text, size_t size) {
    int64_t n = 0;
    for (size_t i = 0; i < size; i++) n += (text[i] & 0xc0) != 0x80;
    return n;
}

// A walk through a prompt's text, token by token.
typedef struct walk {
    const char *text;
    size_t size, at; // bytes; of them, those before the next token
    int64_t chars;   // that begin before `at`
} walk;

static bool is_next(const walk *w, const char *bytes, size_t n) {
    return n <= w->size - w->at && memcmp(w->text + w->at, bytes, n) == 0;
}

// Where the token begins, in characters. A token that is not in the text, such as one that the
// model expects at the beginning, takes no place; bytes that are not text show as U+FFFD.
static int64_t walk_on(walk *w, const char *bytes, size_t n) {
    static const char broken[] = "\xef\xbf\xbd";
    const bool is_inside = w->at < w->size && (w->text[w->at] & 0xc0) == 0x80;
    const int64_t begin = w->chars - is_inside;
    const size_t space = n > 0 && *bytes == ' ' && !is_next(w, bytes, n); // lost at the beginning
    size_t taken = 0;
    if (is_next(w, bytes + space, n - space))
        taken = n - space;
    else if (!qn_utf8_valid(bytes, n) && is_next(w, broken, sizeof broken - 1))
        taken = sizeof broken - 1;
    w->chars += count_chars(w->text + w->at, taken);
    w->at += taken;
    return begin;
}

// The same for the next token of an answer, whose text comes from a decoder of this kind.
static bool place_next(int64_t *begin, qn_choice *c, int32_t token) {
    const char *text;
    size_t size;
    *begin = c->n_chars;
    if (!c->decoder && qn_decoder_create(&c->decoder, c->job->model->tokenizer, NULL)) return false;
    if (qn_decoder_next(&text, &size, c->decoder, token, NULL)) return false;
    c->n_chars += count_chars(text, size);
    return true;
}

// --- log-probabilities ---------------------------------------------------------------------------

// The lists that are told. A NULL one: memory was short.
typedef struct lists {
    const qn_job *job;
    json_t *tokens, *logprobs, *top, *offsets;
    qn_buf text; // of a token
} lists;

static void lists_init(lists *l, const qn_job *job) {
    *l = (lists){.job = job,
                 .tokens = json_array(),
                 .logprobs = json_array(),
                 .top = json_array(),
                 .offsets = json_array()};
}

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"}
static json_t *lists_take(lists *l) {
    json_t *o = json_object();
    qn_json_put(&o, "tokens", l->tokens);
    qn_json_put(&o, "token_logprobs", l->logprobs);
    qn_json_put(&o, "top_logprobs", l->top);
    qn_json_put(&o, "text_offset", l->offsets);
    qn_buf_deinit(&l->text);
    return o;
}

// A token as it is told, in l->text: bytes that are no text as "bytes:\xe2\x80". NULL: no memory.
static const char *spell(lists *l, int32_t token) {
    char *bytes = NULL;
    size_t n = 0;
    qn_buf_clear(&l->text);
    if (qn_tokenizer_bytes(&bytes, &n, l->job->model->tokenizer, token, NULL)) return NULL;
    if (qn_utf8_valid(bytes, n) && !memchr(bytes, 0, n)) {
        qn_buf_add(&l->text, bytes, n);
    } else {
        qn_buf_text(&l->text, "bytes:");
        for (size_t i = 0; i < n; i++)
            qn_buf_printf(&l->text, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
    }
    qn_free(bytes);
    if (l->text.failed) return NULL;
    return l->text.data && l->text.size ? l->text.data : "";
}

// Puts one of the most likely tokens into *best; takes `logprob`. Of one spelling the first stays.
static void put_best(json_t **best, lists *l, int32_t token, json_t *logprob) {
    const char *name = spell(l, token);
    if (name && logprob && *best && json_object_get(*best, name))
        json_decref(logprob);
    else if (name)
        qn_json_put(best, name, logprob);
    else
        json_decref(logprob), json_decref(*best), *best = NULL;
}

// Takes `logprob` and `best`.
static void add_token(lists *l, int32_t token, json_t *logprob, json_t *best, int64_t offset) {
    const char *text = spell(l, token);
    qn_json_push(&l->tokens, text ? qn_json_string(text, strlen(text)) : NULL);
    qn_json_push(&l->logprobs, logprob);
    qn_json_push(&l->top, best);
    qn_json_push(&l->offsets, json_integer(offset));
}

// The first token of a prompt has no log-probability.
static void add_prompt(lists *l, const qn_job_row *row) {
    const size_t stride = 1 + (size_t)l->job->ask.n_top;
    walk w = {.text = row->text, .size = row->text_size};
    for (size_t i = 0; row->logprobs && i < row->n_ids; i++) {
        const qn_token_logprob *own = row->logprobs + i * stride;
        json_t *best = i ? json_object() : json_null();
        char *bytes = NULL;
        size_t n = 0;
        for (size_t k = 1; i && k < stride && own[k].token >= 0; k++)
            put_best(&best, l, own[k].token, qn_logprob_json(own[k].logprob));
        if (i) put_best(&best, l, own->token, qn_logprob_json(own->logprob));
        if (qn_tokenizer_bytes(&bytes, &n, l->job->model->tokenizer, own->token, NULL)) {
            json_decref(best);
            best = NULL;
        }
        const int64_t offset = bytes ? walk_on(&w, bytes, n) : 0;
        qn_free(bytes);
        add_token(l, own->token, i ? qn_logprob_json(own->logprob) : json_null(), best, offset);
    }
}

// Those that were not told yet; `max` is the last place that a token can have.
static void add_answer(lists *l, qn_choice *c, int64_t max) {
    const size_t stride = 1 + (size_t)l->job->ask.n_top;
    for (size_t i = c->n_told; i < c->n_entries; i++) {
        const qn_token_logprob *own = qn_choice_entry(c, i);
        json_t *best = json_object();
        int64_t offset = 0;
        for (size_t k = 1; k < stride && own[k].token >= 0; k++)
            put_best(&best, l, own[k].token, qn_logprob_json(own[k].logprob));
        put_best(&best, l, own->token, qn_logprob_json(own->logprob));
        if (!place_next(&offset, c, own->token)) {
            json_decref(best);
            best = NULL;
        }
        add_token(l, own->token, qn_logprob_json(own->logprob), best, offset < max ? offset : max);
    }
    qn_choice_tell(c);
}

// --- streams -------------------------------------------------------------------------------------

// Takes `logprobs`; NULL: no memory.
static json_t *choice_json(const qn_choice *c, const char *text, size_t size, json_t *logprobs,
                           const char *finish) {
    json_t *o = json_object();
    qn_json_put(&o, "index", json_integer((json_int_t)c->index));
    qn_json_put(&o, "text", qn_json_string(text ? text : "", size));
    qn_json_put(&o, "logprobs", logprobs);
    qn_json_put(&o, "finish_reason", finish ? json_string(finish) : json_null());
    return o;
}

// A chunk; takes `choice`.
static json_t *chunk_of(const qn_job *job, json_t *choice) {
    json_t *o = qn_openai_head(job, "text_completion"), *choices = json_array();
    qn_json_push(&choices, choice);
    qn_json_put(&o, "choices", choices);
    if (job->ask.usage_always) qn_json_put(&o, "usage", qn_openai_usage(job));
    if (job->ask.timings_per_token) qn_json_put(&o, "timings", qn_job_timings(job));
    return o;
}

static bool begin(qn_job *job) {
    (void)job;
    return true;
}

// The prompt comes before the answer, once its log-probabilities are known.
static bool send_echo(qn_job *job, qn_choice *c) {
    const qn_job_row *row = qn_choice_row(c);
    json_t *logprobs = NULL;
    if (!job->ask.echo || c->is_echoed) return true;
    c->is_echoed = true;
    c->n_chars = count_chars(row->text, row->text_size);
    if (job->ask.wants_logprobs) {
        lists l;
        lists_init(&l, job);
        add_prompt(&l, row);
        logprobs = lists_take(&l);
    } else {
        logprobs = json_null();
    }
    json_t *choice = choice_json(c, row->text, row->text_size, logprobs, NULL);
    return qn_job_send_event(job, NULL, chunk_of(job, choice));
}

// Log-probabilities of the tokens that were not told yet, or null.
static json_t *next_logprobs(qn_job *job, qn_choice *c) {
    lists l;
    if (!qn_choice_has_untold(c)) return json_null();
    lists_init(&l, job);
    add_answer(&l, c, INT64_MAX);
    return lists_take(&l);
}

static bool piece(qn_job *job, qn_choice *c, const qn_job_piece *piece) {
    if (!send_echo(job, c)) return false;
    json_t *choice = choice_json(c, piece->text, piece->size, next_logprobs(job, c), NULL);
    return qn_job_send_event(job, NULL, chunk_of(job, choice));
}

static bool progress(qn_job *job, qn_choice *c, int64_t done, int64_t total) {
    json_t *o = chunk_of(job, choice_json(c, "", 0, json_null(), NULL));
    qn_json_put(&o, "prompt_progress", qn_choice_progress(c, done, total));
    return qn_job_send_event(job, NULL, o);
}

static bool finish(qn_job *job, qn_choice *c) {
    if (!send_echo(job, c)) return false;
    json_t *o = chunk_of(job, choice_json(c, "", 0, next_logprobs(job, c), qn_choice_finish(c)));
    qn_json_put(&o, "seed", json_integer((json_int_t)job->ask.seed));
    return qn_job_send_event(job, NULL, o);
}

static bool end(qn_job *job) { return qn_openai_end(job, "text_completion"); }

// --- whole answers -------------------------------------------------------------------------------

static json_t *whole_logprobs(qn_job *job, qn_choice *c) {
    const qn_job_row *row = qn_choice_row(c);
    lists l;
    if (!job->ask.wants_logprobs) return json_null();
    lists_init(&l, job);
    c->n_chars = job->ask.echo ? count_chars(row->text, row->text_size) : 0;
    const int64_t max = c->n_chars + count_chars(c->text.data, c->text.size);
    if (job->ask.echo) add_prompt(&l, row);
    add_answer(&l, c, max);
    return lists_take(&l);
}

static json_t *whole_choice(qn_job *job, qn_choice *c) {
    const qn_job_row *row = qn_choice_row(c);
    qn_buf text = {0};
    if (job->ask.echo) qn_buf_add(&text, row->text, row->text_size);
    if (c->text.size) qn_buf_add(&text, c->text.data, c->text.size);
    json_t *o = text.failed ? NULL
                            : choice_json(c, text.data, text.size, whole_logprobs(job, c),
                                          qn_choice_finish(c));
    qn_buf_deinit(&text);
    return o;
}

static json_t *whole(qn_job *job) { return qn_openai_whole(job, "text_completion", whole_choice); }

static const qn_dialect dialect = {.stream_type = "text/event-stream",
                                   .ping = ": still here\n\n",
                                   .shows_end = true,
                                   .begin = begin,
                                   .piece = piece,
                                   .progress = progress,
                                   .finish = finish,
                                   .end = end,
                                   .fail = qn_openai_fail,
                                   .whole = whole};

void qn_api_text(qn_exchange *ex) {
    static const qn_job_plan plan = {QN_SET_TEXT, &dialect, "cmpl-", prepare, qn_job_prompts};
    qn_job_handle(ex, &plan);
}

#include "server/ask.h"

#include "core/mem.h"
#include "server/server_int.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum {
    MAX_TEXTS = 1024,           // stop strings, bans and breakers together
    MAX_TEXT_BYTES = 64 << 10,  // of these: each answer has an automaton of them
    MAX_BANS = 128,             // which every token is compared with
    MAX_BIASED_BYTES = 1 << 10, // of a text whose tokens are biased
};

// --- reading -------------------------------------------------------------------------------------

qn_status qn_ask_read(qn_ask *ask, qn_exchange *ex, uint32_t set, qn_problem *problem) {
    *ask = (qn_ask){.n = 1,
                    .parallel_calls = true,
                    .add_generation_prompt = true,
                    .cache_prompt = true,
                    .parse_special = true,
                    .max_tokens = -1,
                    .gone = ex->stop};
    // Values take more memory than their text: lists of numbers 16 times as much.
    const size_t memory = ((size_t)4 << 20) + 16 * ex->body.size;
    const qn_json_opts opts = {.what = "the request's body",
                               .any = true,
                               .memory = memory < QN_JSON_MEMORY ? memory : QN_JSON_MEMORY};
    qn_status status = qn_json_parse_as(&ask->body, ex->body.data ? ex->body.data : "",
                                        ex->body.size, &opts, &problem->err);
    qn_buf_deinit(&ex->body); // the answer may take long
    if (status) return qn_problem_take(problem, status, NULL);
    if (!json_is_object(ask->body))
        return QN_REFUSE(problem, 400, "", "the request's body is not a JSON object");
    qn_logger_prompt(&ex->server->logger, ex, ask->body);
    return qn_fields_read(ask, ask->body, set, ex, problem);
}

void qn_ask_deinit(qn_ask *ask) {
    json_decref(ask->body);
    json_decref(ask->made);
    *ask = (qn_ask){0};
}

const json_t *qn_ask_keep(qn_ask *ask, json_t *value) {
    if (!value) return NULL;
    if (!ask->made) ask->made = json_array();
    if (!ask->made) json_decref(value);
    if (!ask->made || json_array_append_new(ask->made, value) != 0) return NULL;
    return value;
}

// --- lists ---------------------------------------------------------------------------------------

// Texts of a string or a list of strings, appended to opts->texts.
static qn_status add_texts(qn_job_opts *o, size_t *n, const json_t *from, const char *name,
                           qn_problem *p) {
    const size_t many = json_is_string(from) ? 1 : json_array_size(from);
    if (*n + many > MAX_TEXTS)
        return QN_REFUSE(p, 400, name, "'%s' has %zu texts, at most %d are read", name, many,
                         MAX_TEXTS);
    if (!o->texts) o->texts = qn_alloc(MAX_TEXTS, sizeof *o->texts);
    if (!o->texts) return qn_problem_take(p, QN_NOMEM(&p->err, "a request"), name);
    size_t bytes = 0;
    for (size_t i = 0; i < many; i++) {
        const json_t *item = json_is_string(from) ? from : json_array_get(from, i);
        if (!json_is_string(item))
            return QN_REFUSE(p, 400, name, "'%s', item %zu is not a string", name, i);
        if (json_string_length(item) == 0)
            return QN_REFUSE(p, 400, name, "'%s', item %zu is empty", name, i);
        bytes += json_string_length(item);
        if (bytes > MAX_TEXT_BYTES)
            return QN_REFUSE(p, 400, name, "'%s' has more than %d bytes", name, MAX_TEXT_BYTES);
        o->texts[(*n)++] = json_string_value(item);
    }
    return QN_OK;
}

static qn_status set_texts(qn_job_opts *o, const qn_ask *ask, qn_problem *p) {
    size_t n = 0, from = 0;
    if (ask->stop) QN_TRY(add_texts(o, &n, ask->stop, "stop", p));
    o->generate.stops = o->texts;
    o->generate.n_stops = n;
    from = n;
    if (json_array_size(ask->bad_words) > MAX_BANS)
        return QN_REFUSE(p, 400, "bad_words", "'bad_words' has %zu texts, at most %d are read",
                         json_array_size(ask->bad_words), MAX_BANS);
    if (ask->bad_words) QN_TRY(add_texts(o, &n, ask->bad_words, "bad_words", p));
    o->sample.bans = n > from ? o->texts + from : NULL;
    o->sample.n_bans = n - from;
    from = n;
    if (ask->dry_breakers) QN_TRY(add_texts(o, &n, ask->dry_breakers, "dry_sequence_breakers", p));
    if (n == from) return QN_OK;
    o->sample.dry_breakers = o->texts + from;
    o->sample.n_dry_breakers = n - from;
    return QN_OK;
}

static qn_status set_stop_ids(qn_job_opts *o, const qn_ask *ask, qn_problem *p) {
    const size_t n = json_array_size(ask->stop_ids);
    if (n == 0) return QN_OK;
    if (n > MAX_TEXTS)
        return QN_REFUSE(p, 400, "stop_token_ids", "%zu ids, at most %d are read", n, MAX_TEXTS);
    o->stop_ids = qn_alloc(n, sizeof *o->stop_ids);
    if (!o->stop_ids) return qn_problem_take(p, QN_NOMEM(&p->err, "a request"), "stop_token_ids");
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(ask->stop_ids, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id > INT32_MAX)
            return QN_REFUSE(p, 400, "stop_token_ids", "item %zu is not a token id", i);
        o->stop_ids[i] = (int32_t)id;
    }
    o->generate.stop_tokens = o->stop_ids;
    o->generate.n_stop_tokens = n;
    return QN_OK;
}

// --- biases --------------------------------------------------------------------------------------

static qn_status read_bias(float *out, const json_t *value, qn_problem *p) {
    if (json_is_false(value)) {
        *out = -INFINITY;
        return QN_OK;
    }
    if (!json_is_number(value))
        return QN_REFUSE(p, 400, "logit_bias", "a bias is not a number, and not false");
    const double x = json_number_value(value);
    // OpenAI's -100 bans a token.
    if (!(x >= -1000 && x <= 1000))
        return QN_REFUSE(p, 400, "logit_bias", "a bias is %g, want -1000 to 1000", x);
    *out = x <= -100 ? -INFINITY : (float)x;
    return QN_OK;
}

static qn_status add_bias(qn_job_opts *o, size_t *cap, int64_t id, float bias, qn_problem *p) {
    if (id < 0 || id > INT32_MAX)
        return QN_REFUSE(p, 400, "logit_bias", "%lld is not a token id", (long long)id);
    void *items = o->biases;
    if (!qn_grow(&items, cap, o->sample.n_biases + 1, sizeof *o->biases))
        return qn_problem_take(p, QN_NOMEM(&p->err, "a request"), "logit_bias");
    o->biases = items;
    o->biases[o->sample.n_biases++] = (qn_bias){(int32_t)id, bias};
    return QN_OK;
}

// A text biases each of its tokens.
static qn_status add_text_bias(qn_job_opts *o, size_t *cap, const qn_served *model,
                               const char *name, float bias, qn_problem *p) {
    if (strlen(name) > MAX_BIASED_BYTES)
        return QN_REFUSE(p, 400, "logit_bias", "a text has %zu bytes, at most %d are read",
                         strlen(name), MAX_BIASED_BYTES);
    int32_t *ids = NULL;
    size_t n = 0;
    qn_status status = qn_tokenize(&ids, &n, model->tokenizer, name, strlen(name), NULL, &p->err);
    if (status) qn_problem_take(p, status, "logit_bias");
    for (size_t i = 0; i < n && !status; i++) status = add_bias(o, cap, ids[i], bias, p);
    qn_free(ids);
    return status;
}

// A key of an object, which cannot be a number: digits alone are an id.
static qn_status add_named_bias(qn_job_opts *o, size_t *cap, const qn_served *model,
                                const char *name, float bias, qn_problem *p) {
    const bool is_id = *name && !name[strspn(name, "0123456789")];
    if (is_id) return add_bias(o, cap, strtoll(name, NULL, 10), bias, p);
    return add_text_bias(o, cap, model, name, bias, p);
}

static qn_status add_pair(qn_job_opts *o, size_t *cap, const qn_served *model, const json_t *pair,
                          qn_problem *p) {
    const json_t *token = json_array_get(pair, 0);
    float bias;
    if (json_array_size(pair) != 2)
        return QN_REFUSE(p, 400, "logit_bias", "an item is not a list of a token and a bias");
    QN_TRY(read_bias(&bias, json_array_get(pair, 1), p));
    if (json_is_string(token))
        return add_text_bias(o, cap, model, json_string_value(token), bias, p);
    if (json_is_integer(token)) return add_bias(o, cap, json_integer_value(token), bias, p);
    return QN_REFUSE(p, 400, "logit_bias", "a token is neither an id nor a text");
}

static qn_status set_biases(qn_job_opts *o, const qn_ask *ask, const qn_served *model,
                            qn_problem *p) {
    size_t cap = 0;
    const char *name;
    json_t *value;
    for (size_t i = 0; i < json_array_size(ask->logit_bias); i++)
        QN_TRY(add_pair(o, &cap, model, json_array_get(ask->logit_bias, i), p));
    json_object_foreach((json_t *)(uintptr_t)ask->logit_bias, name, value) {
        float bias;
        QN_TRY(read_bias(&bias, value, p));
        QN_TRY(add_named_bias(o, &cap, model, name, bias, p));
    }
    o->sample.biases = o->biases;
    return QN_OK;
}

// --- grammars ------------------------------------------------------------------------------------

// The one form that a request asks for.
typedef struct form {
    const char *field;
    qn_grammar_kind kind;
    const json_t *json; // of a schema
    const char *text;   // of the others
    bool is_wanted;
} form;

static qn_status put_form(form *f, const char *field, qn_grammar_kind kind, const json_t *json,
                          const char *text, qn_problem *p) {
    if (f->is_wanted)
        return QN_REFUSE(p, 400, field, "'%s' and '%s' do not go together", f->field, field);
    *f = (form){field, kind, json, text, true};
    return QN_OK;
}

static qn_status find_response_format(form *f, const qn_ask *ask, qn_problem *p) {
    const json_t *format = ask->response_format, *schema;
    const char *type = json_string_value(json_object_get(format, "type"));
    if (!format) return QN_OK;
    if (!type) return QN_REFUSE(p, 400, "response_format", "'response_format' has no type");
    if (strcmp(type, "text") == 0) return QN_OK;
    schema = json_object_get(format, "schema");
    if (strcmp(type, "json_object") == 0)
        return schema ? put_form(f, "response_format", QN_GRAMMAR_SCHEMA, schema, NULL, p)
                      : put_form(f, "response_format", QN_GRAMMAR_JSON, NULL, "", p);
    if (strcmp(type, "json_schema") != 0)
        return QN_REFUSE(p, 400, "response_format",
                         "'response_format' is of type '%.40s', want text, json_object or "
                         "json_schema",
                         type);
    const json_t *wrapper = json_object_get(format, "json_schema");
    if (!wrapper) wrapper = schema ? schema : NULL;
    if (!wrapper)
        return QN_REFUSE(p, 400, "response_format", "'response_format' has no json_schema");
    return put_form(f, "response_format", QN_GRAMMAR_SCHEMA, wrapper, NULL, p);
}

// A list of texts as the schema of one of them... as a grammar, which has no quotes around it.
static qn_status put_choice(form *f, qn_ask *ask, const char *field, const json_t *choices,
                            qn_problem *p) {
    qn_buf text = {0};
    qn_buf_text(&text, "root ::= ");
    for (size_t i = 0; i < json_array_size(choices); i++) {
        const json_t *item = json_array_get(choices, i);
        if (!json_is_string(item)) {
            qn_buf_deinit(&text);
            return QN_REFUSE(p, 400, field, "'%s', item %zu is not a string", field, i);
        }
        if (i) qn_buf_text(&text, " | ");
        qn_json_write(&text, item, &qn_compact);
    }
    json_t *kept = text.failed ? NULL : json_stringn(text.data, text.size);
    qn_buf_deinit(&text);
    const json_t *rule = qn_ask_keep(ask, kept);
    if (!rule) return qn_problem_take(p, QN_NOMEM(&p->err, "a grammar"), field);
    return put_form(f, field, QN_GRAMMAR_GBNF, NULL, json_string_value(rule), p);
}

static qn_status find_structured(form *f, qn_ask *ask, qn_problem *p) {
    const json_t *s = ask->structured;
    const json_t *json = json_object_get(s, "json"), *choice = json_object_get(s, "choice");
    const char *regex = json_string_value(json_object_get(s, "regex"));
    const char *grammar = json_string_value(json_object_get(s, "grammar"));
    if (json) QN_TRY(put_form(f, "structured_outputs", QN_GRAMMAR_SCHEMA, json, NULL, p));
    if (regex) QN_TRY(put_form(f, "structured_outputs", QN_GRAMMAR_REGEX, NULL, regex, p));
    if (grammar) QN_TRY(put_form(f, "structured_outputs", QN_GRAMMAR_GBNF, NULL, grammar, p));
    if (choice) QN_TRY(put_choice(f, ask, "structured_outputs", choice, p));
    return QN_OK;
}

static qn_status find_form(form *f, qn_ask *ask, qn_problem *p) {
    QN_TRY(find_response_format(f, ask, p));
    if (ask->json_schema)
        QN_TRY(put_form(f, "json_schema", QN_GRAMMAR_SCHEMA, ask->json_schema, NULL, p));
    if (ask->guided_json)
        QN_TRY(put_form(f, "guided_json", QN_GRAMMAR_SCHEMA, ask->guided_json, NULL, p));
    if (ask->grammar && *ask->grammar)
        QN_TRY(put_form(f, "grammar", QN_GRAMMAR_GBNF, NULL, ask->grammar, p));
    if (ask->regex) QN_TRY(put_form(f, "regex", QN_GRAMMAR_REGEX, NULL, ask->regex, p));
    if (ask->guided_choice) QN_TRY(put_choice(f, ask, "guided_choice", ask->guided_choice, p));
    return find_structured(f, ask, p);
}

static qn_status set_grammar(qn_job_opts *o, qn_ask *ask, qn_served *model, qn_problem *p) {
    form f = {0};
    QN_TRY(find_form(&f, ask, p));
    if (!f.is_wanted) return QN_OK;
    qn_buf schema = {0};
    if (f.kind == QN_GRAMMAR_SCHEMA) {
        if (json_is_string(f.json))
            qn_buf_add(&schema, json_string_value(f.json), json_string_length(f.json));
        else
            qn_json_write(&schema, f.json, &qn_compact);
        if (schema.failed) {
            qn_buf_deinit(&schema);
            return qn_problem_take(p, QN_NOMEM(&p->err, "a schema"), f.field);
        }
        f.text = schema.data ? schema.data : "";
    }
    const qn_grammar_opts opts = QN_INIT(qn_grammar_opts, .stop = ask->gone);
    const qn_status status =
        qn_served_grammar(&o->grammar, model, f.kind, f.text, strlen(f.text), &opts, &p->err);
    qn_buf_deinit(&schema);
    if (status) (void)qn_problem_take(p, status, f.field);
    if (status == QN_STOPPED) p->retry_after = 1;
    if (status) return status;
    o->generate.grammar = o->grammar;
    o->form = f.field;
    return QN_OK;
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status set_order(qn_job_opts *o, const qn_ask *ask, qn_problem *p) {
    qn_buf text = {0};
    if (!ask->samplers) return QN_OK;
    if (json_is_string(ask->samplers)) qn_buf_text(&text, json_string_value(ask->samplers));
    for (size_t i = 0; i < json_array_size(ask->samplers); i++) {
        const char *name = json_string_value(json_array_get(ask->samplers, i));
        if (!name) {
            qn_buf_deinit(&text);
            return QN_REFUSE(p, 400, "samplers", "'samplers', item %zu is not a string", i);
        }
        qn_buf_printf(&text, "%s%s", i ? ";" : "", name);
    }
    if (qn_buf_take(&o->order, &text, &p->err)) return qn_problem_take(p, QN_MEMORY, "samplers");
    o->sample.order = o->order;
    return QN_OK;
}

// 53 bits, which every client can repeat as a JSON number.
static uint64_t draw_seed(void) {
    uint64_t seed = 0;
    if (getrandom(&seed, sizeof seed, 0) != sizeof seed) seed = (uint64_t)qn_clock_ns();
    return seed & (((uint64_t)1 << 53) - 1);
}

static qn_status set_sampling(qn_job_opts *o, qn_ask *ask, const qn_served *model, qn_problem *p) {
    o->sample = model->sample;
    qn_fields_merge(&o->sample, ask);
    if (o->sample.top_k < 0) o->sample.top_k = 0;
    if (o->sample.top_n_sigma < 0) o->sample.top_n_sigma = 0;
    if (o->sample.mirostat == 1)
        return QN_REFUSE(p, 400, "mirostat", "'mirostat' is 1, want 0 or 2");
    if (!QN_GIVEN(ask, sample.seed)) o->sample.seed = draw_seed();
    ask->seed = o->sample.seed;
    QN_TRY(set_biases(o, ask, model, p));
    QN_TRY(set_order(o, ask, p));
    const qn_status status = qn_sample_check(&o->sample, &p->err);
    return status ? qn_problem_take(p, status, NULL) : QN_OK;
}

qn_status qn_job_opts_init(qn_job_opts *out, qn_ask *ask, qn_served *model, qn_problem *problem) {
    *out = (qn_job_opts){.generate = model->server->opts.generate};
    qn_generate_opts *g = &out->generate;
    g->size = sizeof *g;
    QN_TRY(set_sampling(out, ask, model, problem));
    g->sample = &out->sample;
    if (ask->max_tokens >= 0) g->max_tokens = ask->max_tokens ? ask->max_tokens : -1;
    g->min_tokens = ask->min_tokens;
    g->ignore_end |= ask->ignore_eos;
    g->logprobs = ask->wants_logprobs;
    g->n_top = ask->n_top;
    g->draft = model->draft;
    QN_TRY(set_texts(out, ask, problem));
    QN_TRY(set_stop_ids(out, ask, problem));
    return set_grammar(out, ask, model, problem);
}

void qn_job_opts_deinit(qn_job_opts *opts) {
    qn_grammar_destroy(opts->grammar);
    qn_free(opts->texts);
    qn_free(opts->stop_ids);
    qn_free(opts->biases);
    qn_free(opts->order);
    *opts = (qn_job_opts){0};
}

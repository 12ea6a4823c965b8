// Ollama's /api/embed, and the older /api/embeddings.
#include "server/api_ollama.h"

#include "core/mem.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <math.h>
#include <string.h>

enum { MAX_TEXTS = 2048 };

// --- texts ---------------------------------------------------------------------------------------

typedef struct texts {
    qn_prompt *prompts; // (n) owned, with their ids
    size_t n;
    int64_t load_ns; // until the model was there
} texts;

static void deinit_texts(texts *t) {
    for (size_t i = 0; t->prompts && i < t->n; i++) qn_free((void *)(uintptr_t)t->prompts[i].ids);
    qn_free(t->prompts);
}

// The first tokens, and the one that ends texts if there was one.
static size_t cut(int32_t *ids, size_t n, size_t max, const qn_tokenizer *tokenizer) {
    if (n <= max) return n;
    if (qn_tokenizer_is_end(tokenizer, ids[n - 1])) ids[max - 1] = ids[n - 1];
    return max;
}

static qn_status add_text(qn_prompt *to, const json_t *text, const qn_served *m, bool truncates,
                          qn_problem *p) {
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .add_ends = true);
    int32_t *ids = NULL;
    size_t n = 0;
    if (!json_is_string(text))
        return QN_REFUSE(p, 400, "input", "'input' has an item that is not a text");
    const qn_status status = qn_tokenize(&ids, &n, m->tokenizer, json_string_value(text),
                                         json_string_length(text), &opts, &p->err);
    if (status) return qn_problem_take(p, status, "input");
    to->ids = ids;
    to->n = truncates ? cut(ids, n, (size_t)m->context, m->tokenizer) : n;
    if (to->n == 0) return QN_REFUSE(p, 400, "input", "a text has no tokens");
    if ((int64_t)to->n > m->context)
        return QN_REFUSE(p, 400, "input",
                         "a text has %zu tokens, which exceeds the available context size of %lld "
                         "tokens",
                         to->n, (long long)m->context);
    return QN_OK;
}

static qn_status make_texts(texts *out, const json_t *input, const qn_served *m, bool truncates,
                            qn_problem *p) {
    const bool is_one = json_is_string(input);
    out->n = is_one ? 1 : json_array_size(input);
    if (out->n > MAX_TEXTS)
        return QN_REFUSE(p, 400, "input", "%zu texts, at most %d are taken", out->n, MAX_TEXTS);
    out->prompts = qn_alloc(out->n, sizeof *out->prompts);
    if (!out->prompts) return qn_problem_take(p, QN_NOMEM(&p->err, "texts"), "input");
    for (size_t i = 0; i < out->n; i++)
        QN_TRY(
            add_text(&out->prompts[i], is_one ? input : json_array_get(input, i), m, truncates, p));
    return QN_OK;
}

// --- rows ----------------------------------------------------------------------------------------

// The first `width` numbers, scaled to a length of 1 if `is_scaled`.
static json_t *row_json(const float *row, int64_t width, bool is_scaled) {
    double sum = 0;
    for (int64_t i = 0; i < width; i++) sum += (double)row[i] * (double)row[i];
    const double scale = is_scaled && sum > 0 ? 1 / sqrt(sum) : 1;
    json_t *list = json_array();
    for (int64_t i = 0; i < width; i++) qn_json_push(&list, qn_json_real((double)row[i] * scale));
    return list;
}

static qn_status compute(qn_embeddings *out, const texts *t, qn_exchange *ex, const qn_served *m,
                         const qn_ask *ask, qn_problem *p) {
    const qn_embed_opts opts = QN_INIT(qn_embed_opts, .stop = ex->stop);
    const qn_status status = qn_engine_embed(out, m->engine, t->prompts, t->n, &opts, &p->err);
    if (status) return qn_problem_take(p, status, "input");
    if (ask->dimensions <= out->width) return QN_OK;
    return QN_REFUSE(p, 400, "dimensions", "'dimensions' is %lld, the model has %lld",
                     (long long)ask->dimensions, (long long)out->width);
}

static json_t *answer_json(const qn_exchange *ex, const qn_entry *entry, const texts *t,
                           const qn_embeddings *e, int64_t width) {
    json_t *o = json_object(), *rows = json_array();
    for (int64_t i = 0; i < e->n; i++)
        qn_json_push(&rows, row_json(e->rows + i * e->width, width, true));
    qn_json_put(&o, "model", json_string(entry->name));
    qn_json_put(&o, "embeddings", rows);
    qn_json_put(&o, "total_duration", json_integer(qn_clock_ns() - ex->started));
    qn_json_put(&o, "load_duration", json_integer(t->load_ns));
    qn_json_put(&o, "prompt_eval_count", json_integer(e->n_tokens));
    return o;
}

// --- handlers ------------------------------------------------------------------------------------

static qn_status embed(json_t **out, qn_exchange *ex, const qn_entry *entry, const qn_ask *ask,
                       bool is_old, qn_problem *p) {
    texts t = {.load_ns = qn_clock_ns() - ex->started};
    qn_embeddings e = QN_INIT(qn_embeddings);
    const json_t *input = is_old ? ask->prompt : ask->input;
    const bool truncates = ask->truncate || !QN_GIVEN(ask, truncate);
    if (!input) return QN_REFUSE(p, 400, is_old ? "prompt" : "input", "there is no text");
    qn_status status = make_texts(&t, input, entry->served, truncates, p);
    if (!status && t.n) status = compute(&e, &t, ex, entry->served, ask, p);
    const int64_t width = ask->dimensions ? ask->dimensions : e.width;
    if (!status && !is_old) *out = answer_json(ex, entry, &t, &e, width);
    if (!status && is_old) {
        json_t *o = json_object();
        qn_json_put(&o, "embedding", e.n ? row_json(e.rows, e.width, false) : json_array());
        *out = o;
    }
    qn_embeddings_deinit(&e);
    deinit_texts(&t);
    return status;
}

static void handle(qn_exchange *ex, bool is_old) {
    qn_problem problem = {0};
    qn_entry *entry = NULL;
    qn_ask ask;
    json_t *answer = NULL;
    qn_status status = qn_ask_read(&ask, ex, ex->route->set, &problem);
    if (!status) status = qn_entry_take(&entry, ex, ask.model, &problem);
    if (!status) status = embed(&answer, ex, entry, &ask, is_old, &problem);
    if (status)
        qn_problem_reply(ex, &problem);
    else
        qn_reply_json(ex, 200, answer);
    if (entry) qn_entry_leave(entry);
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}

void qn_api_ollama_embed(qn_exchange *ex) { handle(ex, false); }
void qn_api_ollama_embeddings(qn_exchange *ex) { handle(ex, true); }

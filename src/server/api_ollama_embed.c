// Ollama's /api/embed, and the older /api/embeddings.
#include "server/api_ollama.h"

#include "server/routes.h"
#include "server/server_int.h"

#include <stddef.h>

static json_t *row_json(const qn_embedded *e, size_t i) {
    json_t *list = json_array();
    for (int64_t k = 0; k < e->width; k++)
        qn_json_push(&list, qn_json_real((double)e->rows[(int64_t)i * e->width + k]));
    return list;
}

static json_t *answer_json(const qn_exchange *ex, const qn_entry *entry, const qn_embedded *e,
                           int64_t load_ns) {
    json_t *o = json_object(), *rows = json_array();
    for (size_t i = 0; i < e->n; i++) qn_json_push(&rows, row_json(e, i));
    qn_json_put(&o, "model", json_string(entry->name));
    qn_json_put(&o, "embeddings", rows);
    qn_json_put(&o, "total_duration", json_integer(qn_clock_ns() - ex->started));
    qn_json_put(&o, "load_duration", json_integer(load_ns));
    qn_json_put(&o, "prompt_eval_count", json_integer(e->n_tokens));
    return o;
}

// The older form has one text, and one embedding.
static json_t *old_json(const qn_embedded *e) {
    json_t *o = json_object();
    qn_json_put(&o, "embedding", row_json(e, 0));
    return o;
}

static qn_status prepare(qn_ask *ask, bool is_old, qn_problem *p) {
    if (!QN_GIVEN(ask, truncate)) ask->truncate = true;
    if (!is_old) return ask->input ? QN_OK : QN_REFUSE(p, 400, "input", "there is no 'input'");
    ask->input = ask->prompt;
    if (json_is_string(ask->prompt)) return QN_OK;
    return QN_REFUSE(p, 400, "prompt", "'prompt' is not a string");
}

static void handle(qn_exchange *ex, bool is_old) {
    qn_problem problem = {0};
    qn_entry *entry = NULL;
    qn_embedded e = {0};
    qn_ask ask;
    qn_status status = qn_ask_read(&ask, ex, ex->route->set, &problem);
    if (!status) status = prepare(&ask, is_old, &problem);
    if (!status) status = qn_entry_take(&entry, ex, ask.model, &problem);
    const int64_t load_ns = qn_clock_ns() - ex->started;
    if (!status) status = qn_embed_ask(&e, ex, &ask, entry->served, &problem);
    if (status)
        qn_problem_reply(ex, &problem);
    else
        qn_reply_json(ex, 200, is_old ? old_json(&e) : answer_json(ex, entry, &e, load_ns));
    qn_embedded_deinit(&e);
    if (entry) qn_entry_leave(entry);
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}

void qn_api_ollama_embed(qn_exchange *ex) { handle(ex, false); }
void qn_api_ollama_embeddings(qn_exchange *ex) { handle(ex, true); }

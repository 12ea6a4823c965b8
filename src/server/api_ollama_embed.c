// Ollama's /api/embed, and the older /api/embeddings.
#include "server/api_ollama.h"

#include "server/routes.h"
#include "server/server_int.h"

#include <stddef.h>

static void write_answer(qn_buf *to, const qn_embedded *e, const qn_ask *ask,
                         const qn_offer *entry) {
    json_t *name = json_string(entry->name);
    (void)ask;
    qn_buf_text(to, "{\"model\":");
    if (name) qn_json_write(to, name, &qn_compact);
    to->failed |= !name;
    json_decref(name);
    qn_buf_text(to, ",\"embeddings\":[");
    for (size_t i = 0; i < e->n && !to->failed; i++) {
        if (i) qn_buf_text(to, ",");
        qn_write_numbers(to, e->rows + (int64_t)i * e->width, e->width);
    }
    qn_buf_printf(to,
                  "],\"total_duration\":%lld,\"load_duration\":%lld,\"prompt_eval_count\":%lld}",
                  (long long)e->total_ns, (long long)e->load_ns, (long long)e->n_tokens);
}

// The older form has one text, and one embedding.
static void write_old(qn_buf *to, const qn_embedded *e, const qn_ask *ask, const qn_offer *entry) {
    (void)ask;
    (void)entry;
    qn_buf_text(to, "{\"embedding\":");
    qn_write_numbers(to, e->rows, e->width);
    qn_buf_text(to, "}");
}

static qn_status prepare(qn_ask *ask, qn_problem *p) {
    if (!QN_GIVEN(ask, truncate)) ask->truncate = true;
    return ask->input ? QN_OK : QN_REFUSE(p, 400, "input", "the request has no 'input'");
}

static qn_status prepare_old(qn_ask *ask, qn_problem *p) {
    if (!json_is_string(ask->prompt))
        return QN_REFUSE(p, 400, "prompt", "the request has no text as its 'prompt'");
    ask->input = ask->prompt;
    ask->truncate = true;
    return QN_OK;
}

void qn_api_ollama_embed(qn_exchange *ex) {
    static const qn_embed_plan plan = {QN_SET_EMBED, prepare, write_answer};
    qn_embed_handle(ex, &plan);
}

void qn_api_ollama_embeddings(qn_exchange *ex) {
    static const qn_embed_plan plan = {QN_SET_EMBED_OLD, prepare_old, write_old};
    qn_embed_handle(ex, &plan);
}

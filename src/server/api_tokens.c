// llama-server's helpers: texts and token ids, rendered conversations, rows as slots.
#include "server/api.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "server/messages.h"
#include "server/prompts.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <string.h>

// --- texts and tokens ----------------------------------------------------------------------------

// A handler that reads an ask, takes its model, and answers at once with what `make` gives.
static void answer(qn_exchange *ex, qn_status (*make)(json_t **out, const qn_ask *ask,
                                                      const qn_served *model, qn_problem *p)) {
    qn_problem problem = {0};
    qn_ask ask;
    qn_offer *entry = NULL;
    json_t *value = NULL;
    qn_status status = qn_ask_read(&ask, ex, QN_SET_TOKENS, &problem);
    if (!status) status = qn_offer_take(&entry, ex, ask.model, &problem);
    if (!status) status = make(&value, &ask, entry->served, &problem);
    if (status)
        qn_problem_reply(ex, &problem);
    else
        qn_reply_json(ex, 200, value);
    if (entry) qn_offer_leave(entry);
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}

// {"id", "piece"}: a text, or a list of bytes where they are none.
static json_t *piece_of(const qn_served *model, int32_t id) {
    char *bytes = NULL;
    size_t n = 0;
    if (qn_tokenizer_bytes(&bytes, &n, model->tokenizer, id, NULL)) return NULL;
    json_t *o = json_object(), *piece = NULL;
    if (qn_utf8_valid(bytes, n)) {
        piece = qn_json_string(bytes, n);
    } else {
        piece = json_array();
        for (size_t i = 0; i < n; i++) qn_json_push(&piece, json_integer((unsigned char)bytes[i]));
    }
    qn_free(bytes);
    qn_json_put(&o, "id", json_integer(id));
    qn_json_put(&o, "piece", piece);
    return o;
}

static qn_status make_tokens(json_t **out, const qn_ask *ask, const qn_served *model,
                             qn_problem *p) {
    const qn_tokenize_opts opts =
        QN_INIT(qn_tokenize_opts, .special = ask->parse_special, .add_ends = ask->add_special);
    int32_t *ids = NULL;
    size_t n = 0;
    if (!ask->content) return QN_REFUSE(p, 400, "content", "the request has no 'content'");
    const qn_status status =
        qn_tokenize(&ids, &n, model->tokenizer, ask->content, strlen(ask->content), &opts, &p->err);
    if (status) return qn_problem_take(p, status, "content");
    json_t *o = json_object(), *list = json_array();
    for (size_t i = 0; i < n && list; i++)
        qn_json_push(&list, ask->with_pieces ? piece_of(model, ids[i]) : json_integer(ids[i]));
    qn_free(ids);
    qn_json_put(&o, "tokens", list);
    *out = o;
    return QN_OK;
}

static qn_status make_content(json_t **out, const qn_ask *ask, const qn_served *model,
                              qn_problem *p) {
    const size_t n = json_array_size(ask->tokens);
    char *text = NULL;
    size_t size = 0;
    if (!ask->tokens) return QN_REFUSE(p, 400, "tokens", "the request has no 'tokens'");
    int32_t *ids = qn_alloc(n, sizeof *ids);
    if (!ids) return qn_problem_take(p, QN_NOMEM(&p->err, "tokens"), "tokens");
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        const json_t *item = json_array_get(ask->tokens, i);
        const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
        if (id < 0 || id >= model->info.n_vocab)
            status = QN_REFUSE(p, 400, "tokens", "'tokens', item %zu is not a token id below %lld",
                               i, (long long)model->info.n_vocab);
        else
            ids[i] = (int32_t)id;
    }
    if (!status) {
        status = qn_detokenize(&text, &size, model->tokenizer, ids, n, true, &p->err);
        if (status) (void)qn_problem_take(p, status, "tokens");
    }
    qn_free(ids);
    if (status) return status;
    json_t *o = json_object();
    qn_json_put(&o, "content", qn_json_string(text, size));
    qn_free(text);
    *out = o;
    return QN_OK;
}

void qn_api_tokenize(qn_exchange *ex) { answer(ex, make_tokens); }
void qn_api_detokenize(qn_exchange *ex) { answer(ex, make_content); }

// --- conversations -------------------------------------------------------------------------------

static json_t *rendered(qn_job *job) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    json_t *o = json_object();
    if (qn_chat_turn_get_info(&info, job->turn, NULL)) info.text_size = 0;
    qn_json_put(&o, "prompt", qn_json_string(info.text_size ? info.text : "", info.text_size));
    return o;
}

void qn_api_template(qn_exchange *ex) {
    static const qn_dialect dialect = {.whole = rendered};
    static const qn_job_plan plan = {QN_SET_CHAT, &dialect, "chatcmpl-", qn_chat_prepare,
                                     qn_job_count};
    qn_job_handle(ex, &plan);
}

// --- slots ---------------------------------------------------------------------------------------

// A row for each answer that can be computed at a time; the first ones are at work.
static json_t *slots_of(const qn_served *model) {
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    json_t *list = json_array();
    if (qn_batch_get_counts(&counts, model->batch, NULL)) counts.rows_all = 0;
    for (int64_t i = 0; i < counts.rows_all; i++) {
        json_t *o = json_object();
        qn_json_put(&o, "id", json_integer(i));
        qn_json_put(&o, "n_ctx", json_integer(model->context));
        qn_json_put(&o, "is_processing", json_boolean(i < counts.rows));
        qn_json_push(&list, o);
    }
    return list;
}

void qn_api_slots(qn_exchange *ex) {
    qn_offer *entry = NULL;
    qn_problem problem = {0};
    if (qn_offer_take(&entry, ex, ex->model, &problem)) {
        qn_problem_reply(ex, &problem);
    } else {
        qn_reply_json(ex, 200, slots_of(entry->served));
        qn_offer_leave(entry);
    }
    qn_exchange_leave(ex);
}

// llama-server's helpers: texts and token ids, rendered conversations, rows as slots.
#include "server/api.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "server/messages.h"
#include "server/prompts.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <string.h>

// --- texts and tokens ----------------------------------------------------------------------------

// What these routes take and give at once; a text of more is no prompt of any model.
enum { MAX_TEXT = 8 << 20, MAX_TOKENS = 1 << 20 };

// A handler that reads an ask, takes its model, and answers at once with what `make` writes.
static void answer(qn_exchange *ex, qn_status (*make)(qn_buf *out, const qn_ask *ask,
                                                      const qn_served *model, qn_problem *p)) {
    qn_problem problem = {0};
    qn_ask ask;
    qn_offer *entry = NULL;
    qn_buf body = {0};
    qn_status status = qn_ask_read(&ask, ex, QN_SET_TOKENS, &problem);
    if (!status) status = qn_offer_take(&entry, ex, ask.model, &problem);
    if (!status) status = make(&body, &ask, entry->served, &problem);
    if (!status && body.failed)
        status = qn_problem_take(&problem, QN_NOMEM(&problem.err, "an answer"), NULL);
    if (status)
        qn_problem_reply(ex, &problem);
    else
        qn_exchange_reply(ex, 200, "application/json", &body);
    qn_buf_deinit(&body);
    if (entry) qn_offer_leave(entry);
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}

static qn_status check_count(size_t n, const char *field, qn_problem *p) {
    if (n <= MAX_TOKENS) return QN_OK;
    return QN_REFUSE(p, 413, field, "'%s' is %zu tokens, at most %d are taken at once", field, n,
                     MAX_TOKENS);
}

static void write_string(qn_buf *to, const char *bytes, size_t n) {
    json_t *value = qn_json_string(bytes, n);
    if (value)
        qn_json_write(to, value, &qn_compact);
    else
        to->failed = true;
    json_decref(value);
}

// {"id", "piece"}: a text, or a list of bytes where they are none.
static void write_piece(qn_buf *to, const qn_served *model, int32_t id) {
    char *bytes = NULL;
    size_t n = 0;
    if (qn_tokenizer_bytes(&bytes, &n, model->tokenizer, id, NULL)) {
        to->failed = true;
        return;
    }
    qn_buf_printf(to, "{\"id\":%d,\"piece\":", id);
    if (qn_utf8_valid(bytes, n)) {
        write_string(to, bytes, n);
    } else {
        for (size_t i = 0; i < n; i++)
            qn_buf_printf(to, "%c%d", i ? ',' : '[', (unsigned char)bytes[i]);
        qn_buf_text(to, "]");
    }
    qn_buf_text(to, "}");
    qn_free(bytes);
}

// As text at once: JSON values would take many times its memory.
static void write_tokens(qn_buf *to, const int32_t *ids, size_t n, const qn_ask *ask,
                         const qn_served *model) {
    qn_buf_text(to, "{\"tokens\":[");
    for (size_t i = 0; i < n && !to->failed; i++) {
        if (i) qn_buf_text(to, ",");
        if (ask->with_pieces)
            write_piece(to, model, ids[i]);
        else
            qn_buf_printf(to, "%d", ids[i]);
    }
    qn_buf_text(to, "]}");
}

static qn_status make_tokens(qn_buf *out, const qn_ask *ask, const qn_served *model,
                             qn_problem *p) {
    const qn_tokenize_opts opts =
        QN_INIT(qn_tokenize_opts, .special = ask->parse_special, .add_ends = ask->add_special,
                .max_tokens = MAX_TOKENS, .stop = ask->gone);
    int32_t *ids = NULL;
    size_t n = 0;
    if (!ask->content) return QN_REFUSE(p, 400, "content", "the request has no 'content'");
    const size_t size = strlen(ask->content);
    if (size > MAX_TEXT)
        return QN_REFUSE(p, 413, "content", "'content' has %zu bytes, at most %d are taken at once",
                         size, MAX_TEXT);
    const qn_status status =
        qn_tokenize(&ids, &n, model->tokenizer, ask->content, size, &opts, &p->err);
    if (status == QN_LIMIT)
        return QN_REFUSE(p, 413, "content",
                         "'content' is at least %d tokens, at most %d are taken at once",
                         MAX_TOKENS + 1, MAX_TOKENS);
    if (status) return qn_problem_take(p, status, "content");
    write_tokens(out, ids, n, ask, model);
    qn_free(ids);
    return QN_OK;
}

static qn_status make_content(qn_buf *out, const qn_ask *ask, const qn_served *model,
                              qn_problem *p) {
    const size_t n = json_array_size(ask->tokens);
    char *text = NULL;
    size_t size = 0;
    if (!ask->tokens) return QN_REFUSE(p, 400, "tokens", "the request has no 'tokens'");
    QN_TRY(check_count(n, "tokens", p));
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
    qn_buf_text(out, "{\"content\":");
    write_string(out, text, size);
    qn_buf_text(out, "}");
    qn_free(text);
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

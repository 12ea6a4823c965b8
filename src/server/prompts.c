#include "server/prompts.h"

#include "core/buf.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

size_t qn_prompt_bound(int64_t context) {
    enum { MORE = 1 << 16 };
    return context > INT64_MAX - MORE ? SIZE_MAX : (size_t)context + MORE;
}

qn_status qn_refuse_overflow(qn_problem *p, const qn_overflow *o) {
    char what[48] = "the request";
    const int64_t context = o->context;
    const char *advice = context < o->model->context ? ", or ask for a larger num_ctx"
                         : context < o->model->info.context
                             ? ", or serve with a larger context (-c)"
                             : ": the model has no more";
    if (o->is_list) snprintf(what, sizeof what, "'%s', item %zu", o->field, o->i);
    (void)QN_REFUSE(p, 400, o->field,
                    "%s has %s%zu tokens, which exceeds the available context size of %lld tokens "
                    "(context_length_exceeded); shorten it%s",
                    what, o->is_least ? "at least " : "", o->n, (long long)context, advice);
    p->type = "exceed_context_size_error";
    p->code = "context_length_exceeded";
    p->n_prompt = (int64_t)o->n;
    p->n_context = o->context;
    return QN_LIMIT;
}

void qn_prompts_deinit(qn_prompts *prompts) {
    for (size_t i = 0; prompts->items && i < prompts->n; i++) {
        qn_free(prompts->items[i].ids);
        qn_free(prompts->items[i].text);
    }
    qn_free(prompts->items);
    *prompts = (qn_prompts){0};
}

// --- one prompt ----------------------------------------------------------------------------------

// A prompt while it is read: its parts are appended.
typedef struct reader {
    const qn_served *model;
    const qn_prompts_opts *opts;
    qn_problem *problem;
    bool is_list;
    size_t i;       // of a list
    char where[48]; // "'prompt'" or "'prompt', item 3"
    int32_t *ids;
    size_t n, cap;
    qn_buf text;
} reader;

static qn_status no_memory(reader *r) {
    return qn_problem_take(r->problem, QN_NOMEM(&r->problem->err, "a prompt"), r->opts->field);
}

static bool add_ids(reader *r, const int32_t *ids, size_t n) {
    void *items = r->ids;
    if (!qn_grow(&items, &r->cap, r->n + n, sizeof *r->ids)) return false;
    r->ids = items;
    if (n) memcpy(r->ids + r->n, ids, n * sizeof *ids);
    r->n += n;
    return true;
}

static qn_status add_text(reader *r, const json_t *from) {
    const int64_t context = r->opts->context;
    const size_t max = r->opts->cut ? (size_t)context : qn_prompt_bound(context);
    // Only the first part of a prompt has a beginning.
    const qn_tokenize_opts opts = QN_INIT(
        qn_tokenize_opts, .special = r->opts->special, .add_ends = r->n == 0,
        .max_tokens = max > r->n ? max - r->n : 1, .cut = r->opts->cut, .stop = r->opts->stop);
    int32_t *ids = NULL;
    size_t n = 0;
    const qn_status status = qn_tokenize(&ids, &n, r->model->tokenizer, json_string_value(from),
                                         json_string_length(from), &opts, &r->problem->err);
    if (status == QN_LIMIT)
        return qn_refuse_overflow(r->problem, &(qn_overflow){r->opts->field, r->is_list, r->i,
                                                             r->n + opts.max_tokens + 1, true,
                                                             context, r->model});
    if (status) return qn_problem_take(r->problem, status, r->opts->field);
    const bool is_added = add_ids(r, ids, n);
    qn_free(ids);
    if (r->opts->wants_text)
        qn_buf_add(&r->text, json_string_value(from), json_string_length(from));
    return is_added && !r->text.failed ? QN_OK : no_memory(r);
}

static qn_status add_id(reader *r, const json_t *item, size_t i) {
    const json_int_t id = json_is_integer(item) ? json_integer_value(item) : -1;
    if (id < 0 || id >= r->model->info.n_vocab)
        return QN_REFUSE(r->problem, 400, r->opts->field,
                         "%s, item %zu is not a token id below %lld", r->where, i,
                         (long long)r->model->info.n_vocab);
    const int32_t token = (int32_t)id;
    return add_ids(r, &token, 1) ? QN_OK : no_memory(r);
}

// The text of ids, which stand alone or between texts.
static qn_status add_spelling(reader *r, size_t from) {
    char *text = NULL;
    size_t size = 0;
    if (!r->opts->wants_text || from == r->n) return QN_OK;
    const qn_status status = qn_detokenize(&text, &size, r->model->tokenizer, r->ids + from,
                                           r->n - from, true, &r->problem->err);
    if (status) return qn_problem_take(r->problem, status, r->opts->field);
    qn_buf_add(&r->text, text, size);
    qn_free(text);
    return r->text.failed ? no_memory(r) : QN_OK;
}

// Texts and ids, one after the other.
static qn_status add_parts(reader *r, const json_t *list) {
    size_t from = 0; // the first id that is not spelled yet
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *item = json_array_get(list, i);
        if (json_is_string(item)) {
            QN_TRY(add_spelling(r, from));
            QN_TRY(add_text(r, item));
            from = r->n;
        } else {
            QN_TRY(add_id(r, item, i));
        }
    }
    return add_spelling(r, from);
}

static qn_status read_one(qn_asked_prompt *out, reader *r, const json_t *from) {
    if (json_is_string(from))
        QN_TRY(add_text(r, from));
    else if (json_is_array(from))
        QN_TRY(add_parts(r, from));
    else
        return QN_REFUSE(r->problem, 400, r->opts->field,
                         "%s is not a text, a list of token ids, or a list of either", r->where);
    if (r->n == 0) return QN_REFUSE(r->problem, 400, r->opts->field, "%s has no tokens", r->where);
    *out = (qn_asked_prompt){.ids = r->ids, .n = r->n, .text_size = r->text.size};
    r->ids = NULL;
    if (!r->opts->wants_text) return QN_OK;
    const qn_status status = qn_buf_take(&out->text, &r->text, &r->problem->err);
    return status ? qn_problem_take(r->problem, status, r->opts->field) : QN_OK;
}

// --- several -------------------------------------------------------------------------------------

// A list with ids among its items is one prompt; texts or lists alone are several.
static bool is_many(const json_t *from) {
    for (size_t i = 0; i < json_array_size(from); i++) {
        if (json_is_integer(json_array_get(from, i))) return false;
    }
    return json_array_size(from) > 0;
}

qn_status qn_prompts_read(qn_prompts *out, const json_t *from, const qn_served *model,
                          const qn_prompts_opts *opts, qn_problem *p) {
    *out = (qn_prompts){.is_list = is_many(from)};
    const size_t n = out->is_list ? json_array_size(from) : 1;
    if (!from) return QN_REFUSE(p, 400, opts->field, "the request has no '%s'", opts->field);
    if (n > opts->max)
        return QN_REFUSE(p, 400, opts->field, "'%s' has %zu items, at most %zu are taken",
                         opts->field, n, opts->max);
    out->items = qn_alloc(n, sizeof *out->items);
    if (!out->items) return qn_problem_take(p, QN_NOMEM(&p->err, "prompts"), opts->field);
    out->n = n;
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        reader r = {.model = model, .opts = opts, .problem = p, .is_list = out->is_list, .i = i};
        if (out->is_list)
            snprintf(r.where, sizeof r.where, "'%.16s', item %zu", opts->field, i);
        else
            snprintf(r.where, sizeof r.where, "'%.16s'", opts->field);
        status = read_one(&out->items[i], &r, out->is_list ? json_array_get(from, i) : from);
        qn_free(r.ids);
        qn_buf_deinit(&r.text);
    }
    return status;
}

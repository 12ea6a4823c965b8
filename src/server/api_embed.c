// OpenAI's /v1/embeddings.
//
// Embeddings are computed beside the steps of the model, on a thread of its own, a few texts at a
// time: then it is the next request's turn, and that of the answers, whose steps would have one
// thread alone meanwhile.
#include "server/api.h"

#include "core/buf.h"
#include "core/mem.h"
#include "core/real_text.h"
#include "server/prompts.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <math.h>
#include <string.h>

enum {
    MAX_INPUTS = 2048,     // OpenAI's
    MAX_NUMBERS = 1 << 23, // of an answer: about 100 MB of text
    MAX_BEGUN = 8,         // requests that have their numbers in memory
    GROUP_TOKENS = 512,    // that are computed before it is another's turn, or one text; not tuned
    DIGITS = 9             // that give back every float
};

// --- computing -----------------------------------------------------------------------------------

static qn_status read_pooling(qn_pooling *out, const qn_ask *ask, qn_problem *p) {
    static const char *const names[] = {
        [QN_POOLING_AUTO] = "", [QN_POOLING_MEAN] = "mean", [QN_POOLING_LAST] = "last"};
    *out = QN_POOLING_AUTO;
    if (!ask->pooling) return QN_OK;
    for (size_t i = 1; i < sizeof names / sizeof *names; i++) {
        *out = (qn_pooling)i;
        if (strcmp(names[i], ask->pooling) == 0) return QN_OK;
    }
    return QN_REFUSE(p, 400, "pooling", "'pooling' is '%.40s', want mean or last", ask->pooling);
}

// Texts that do not fit are cut or refused.
static qn_status check_inputs(qn_prompts *inputs, const qn_ask *ask, const qn_served *model,
                              qn_problem *p) {
    const int64_t width = model->info.width, context = model->context;
    if (ask->dimensions > width)
        return QN_REFUSE(p, 400, "dimensions", "'dimensions' is %lld, the model has %lld",
                         (long long)ask->dimensions, (long long)width);
    const int64_t each = ask->dimensions ? ask->dimensions : width;
    if ((int64_t)inputs->n > MAX_NUMBERS / each)
        return QN_REFUSE(p, 400, "input", "%zu embeddings of %lld numbers, at most %d numbers",
                         inputs->n, (long long)each, MAX_NUMBERS);
    for (size_t i = 0; i < inputs->n; i++) {
        qn_asked_prompt *input = &inputs->items[i];
        if (ask->truncate && (int64_t)input->n > context) input->n = (size_t)context;
        if ((int64_t)input->n > context)
            return qn_refuse_overflow(
                p, &(qn_overflow){"input", inputs->is_list, i, input->n, false, context, model});
    }
    return QN_OK;
}

// How many inputs from the first on take no more room together than `context` tokens, if each takes
// as much as the longest.
static size_t group_size(const qn_prompt *prompts, size_t n, int64_t context) {
    size_t longest = 0, k = 0;
    for (; k < n; k++) {
        if (prompts[k].n > longest) longest = prompts[k].n;
        if (k > 0 && longest > (size_t)context / (k + 1)) break;
    }
    return k;
}

// The first `n` numbers, scaled to a length of 1.
static void scale(float *row, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)row[i] * (double)row[i];
    const double length = sqrt(sum);
    for (int64_t i = 0; i < n && length > 0; i++) row[i] = (float)((double)row[i] / length);
}

// Moves the first numbers of each of n rows into place.
static void put_rows(float *to, const qn_embeddings *from, int64_t dimensions, bool is_cut) {
    for (int64_t i = 0; i < from->n; i++) {
        float *row = to + i * dimensions;
        memcpy(row, from->rows + i * from->width, (size_t)dimensions * sizeof *row);
        if (is_cut) scale(row, dimensions);
    }
}

// --- requests ------------------------------------------------------------------------------------

// A request on its way from the thread that read it to the one that computes.
typedef struct task {
    const qn_embed_plan *plan;
    qn_ask ask;
    qn_offer *entry;
    bool has_begun; // what follows is there
    qn_prompts inputs;
    qn_pooling pooling;
    qn_embedded embedded;
    size_t n_done; // of the inputs
} task;

// Reads the inputs, and makes room for the numbers.
static qn_status begin(task *t, const qn_exchange *ex, qn_problem *p) {
    qn_served *model = t->entry->served;
    const qn_prompts_opts opts = {.field = "input",
                                  .max = MAX_INPUTS,
                                  .context = model->context,
                                  .cut = t->ask.truncate,
                                  .stop = ex->stop};
    qn_embedded *e = &t->embedded;
    e->load_ns = qn_clock_ns() - ex->started;
    QN_TRY(qn_prompts_read(&t->inputs, t->ask.input, model, &opts, p));
    QN_TRY(check_inputs(&t->inputs, &t->ask, model, p));
    QN_TRY(read_pooling(&t->pooling, &t->ask, p));
    e->n = t->inputs.n;
    e->width = t->ask.dimensions ? t->ask.dimensions : model->info.width;
    e->rows = qn_alloc(e->n * (size_t)e->width, sizeof *e->rows);
    return e->rows ? QN_OK : qn_problem_take(p, QN_NOMEM(&p->err, "embeddings"), "input");
}

static qn_status check_time(const qn_exchange *ex, const task *t, qn_problem *p) {
    const int64_t max = ex->server->opts.timeout_ms;
    if (!max || qn_clock_ns() - ex->started <= max * 1000000) return QN_OK;
    (void)QN_REFUSE(p, 503, "", "%zu embeddings are done after %lld ms, the time limit", t->n_done,
                    (long long)max);
    return QN_LIMIT;
}

// The next few inputs.
static qn_status compute(task *t, const qn_exchange *ex, qn_problem *p) {
    const qn_served *model = t->entry->served;
    const qn_embed_opts opts = QN_INIT(qn_embed_opts, .normalize = t->ask.dimensions == 0,
                                       .pooling = t->pooling, .stop = ex->stop);
    const int64_t room = model->context < GROUP_TOKENS ? model->context : GROUP_TOKENS;
    qn_prompt prompts[GROUP_TOKENS];
    size_t n = 0;
    for (; n < GROUP_TOKENS && t->n_done + n < t->inputs.n; n++) {
        const qn_asked_prompt *from = &t->inputs.items[t->n_done + n];
        prompts[n] = (qn_prompt){from->ids, from->n, NULL};
    }
    n = group_size(prompts, n, room);
    qn_embeddings part = QN_INIT(qn_embeddings);
    const qn_status status = qn_engine_embed(&part, model->engine, prompts, n, &opts, &p->err);
    if (status) return qn_problem_take(p, status, "input");
    qn_embedded *e = &t->embedded;
    put_rows(e->rows + (int64_t)t->n_done * e->width, &part, e->width, t->ask.dimensions > 0);
    e->n_tokens += part.n_tokens;
    t->n_done += n;
    qn_embeddings_deinit(&part);
    return QN_OK;
}

// Releases the task and the exchange.
static void leave(qn_exchange *ex) {
    task *t = ex->task;
    ex->task = NULL;
    t->entry->served->n_embedding -= t->has_begun;
    qn_free(t->embedded.rows);
    qn_prompts_deinit(&t->inputs);
    qn_offer_leave(t->entry);
    qn_ask_deinit(&t->ask);
    qn_free(t);
    atomic_fetch_sub(&ex->server->n_jobs, 1);
    qn_exchange_leave(ex);
}

static void finish(qn_exchange *ex, qn_status status, qn_problem *p) {
    task *t = ex->task;
    qn_metrics *metrics = &t->entry->metrics;
    qn_buf body = {0};
    t->embedded.total_ns = qn_clock_ns() - ex->started;
    qn_metric_add(!t->has_begun ? &ex->server->n_refused
                  : status      ? &metrics->failed
                                : &metrics->answered,
                  1);
    qn_metric_add(&metrics->prompt_tokens, t->embedded.n_tokens);
    atomic_store(&ex->n_prompt, t->embedded.n_tokens);
    if (!status) t->plan->write(&body, &t->embedded, &t->ask, t->entry);
    if (body.failed) {
        qn_buf_deinit(&body);
        status = qn_problem_take(p, QN_NOMEM(&p->err, "embeddings"), NULL);
    }
    if (status)
        qn_problem_reply(ex, p);
    else
        qn_exchange_reply(ex, 200, "application/json", &body);
    leave(ex);
}

// On the embedder's thread: a part of the work, then it is the next one's turn.
static void run(qn_exchange *ex) {
    task *t = ex->task;
    qn_served *model = t->entry->served;
    qn_problem problem = {0};
    qn_status status = QN_OK;
    bool is_alone = false; // it has no place in the queue, and goes on
    do {
        status = check_time(ex, t, &problem);
        if (!status && !t->has_begun && (is_alone || model->n_embedding < MAX_BEGUN)) {
            status = begin(t, ex, &problem);
            t->has_begun = !status;
            model->n_embedding += t->has_begun;
            if (!status) qn_metric_add(&t->entry->metrics.requests, 1);
        }
        if (!status && t->has_begun) {
            status = compute(t, ex, &problem);
            if (!status && t->n_done < t->inputs.n) qn_served_let_step(model);
        }
        if (status || (t->has_begun && t->n_done == t->inputs.n)) {
            finish(ex, status, &problem);
            return;
        }
        is_alone = !qn_served_embed(model, run, ex);
    } while (is_alone);
}

// Takes the ask and the user of the entry, if it succeeds.
static qn_status hand_over(qn_exchange *ex, const qn_embed_plan *plan, qn_ask *ask, qn_offer *entry,
                           qn_problem *p) {
    task *t = qn_alloc(1, sizeof *t);
    if (!t) return qn_problem_take(p, QN_NOMEM(&p->err, "embeddings"), NULL);
    *t = (task){.plan = plan, .ask = *ask, .entry = entry};
    ex->task = t;
    atomic_fetch_add(&ex->server->n_jobs, 1);
    if (qn_served_embed(entry->served, run, ex)) {
        *ask = (qn_ask){0};
        return QN_OK;
    }
    ex->task = NULL;
    qn_free(t);
    atomic_fetch_sub(&ex->server->n_jobs, 1);
    (void)QN_REFUSE(p, 503, "", "too many embeddings wait already");
    p->retry_after = 1;
    return QN_LIMIT;
}

void qn_embed_handle(qn_exchange *ex, const qn_embed_plan *plan) {
    qn_problem problem = {0};
    qn_ask ask;
    qn_offer *entry = NULL;
    qn_status status = qn_ask_read(&ask, ex, plan->set, &problem);
    if (!status && plan->prepare) status = plan->prepare(&ask, &problem);
    if (!status) status = qn_offer_take(&entry, ex, ask.model, &problem);
    if (!status) status = hand_over(ex, plan, &ask, entry, &problem);
    qn_ask_deinit(&ask);
    if (!status) return; // the exchange is no longer ours
    if (entry) qn_offer_leave(entry);
    qn_problem_reply(ex, &problem);
    qn_exchange_leave(ex);
}

// --- writing -------------------------------------------------------------------------------------
// As text at once: a JSON value for each number would take ten times its memory.

void qn_write_numbers(qn_buf *to, const float *row, int64_t n) {
    char text[QN_REAL_TEXT];
    qn_buf_text(to, "[");
    for (int64_t i = 0; i < n; i++) {
        if (!qn_double_text(text, (double)row[i], DIGITS)) to->failed = true;
        qn_buf_printf(to, "%s%s", i ? "," : "", text);
    }
    qn_buf_text(to, "]");
}

// Base64 of the numbers as little-endian float32.
static void write_base64(qn_buf *to, const float *row, int64_t n) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t held = 0;
    size_t n_held = 0;
    qn_buf_text(to, "\"");
    for (int64_t i = 0; i < n * 4; i++) {
        uint32_t bits;
        memcpy(&bits, &row[i / 4], sizeof bits);
        held = held << 8 | (bits >> i % 4 * 8 & 0xff);
        if (++n_held < 3) continue;
        const char four[] = {letters[held >> 18 & 63], letters[held >> 12 & 63],
                             letters[held >> 6 & 63], letters[held & 63]};
        qn_buf_add(to, four, sizeof four);
        n_held = held = 0;
    }
    if (n_held == 1) qn_buf_printf(to, "%c%c==", letters[held >> 2 & 63], letters[held << 4 & 63]);
    if (n_held == 2)
        qn_buf_printf(to, "%c%c%c=", letters[held >> 10 & 63], letters[held >> 4 & 63],
                      letters[held << 2 & 63]);
    qn_buf_text(to, "\"");
}

static bool is_base64(const qn_ask *ask) {
    return ask->encoding && strcmp(ask->encoding, "base64") == 0;
}

static void write_answer(qn_buf *to, const qn_embedded *e, const qn_ask *ask,
                         const qn_offer *entry) {
    json_t *name = json_string(entry->name);
    qn_buf_text(to, "{\"object\":\"list\",\"data\":[");
    for (size_t i = 0; i < e->n && !to->failed; i++) {
        const float *row = e->rows + (int64_t)i * e->width;
        qn_buf_printf(to, "%s{\"object\":\"embedding\",\"index\":%zu,\"embedding\":", i ? "," : "",
                      i);
        (is_base64(ask) ? write_base64 : qn_write_numbers)(to, row, e->width);
        qn_buf_text(to, "}");
    }
    qn_buf_text(to, "],\"model\":");
    if (name) qn_json_write(to, name, &qn_compact);
    to->failed |= !name;
    json_decref(name);
    qn_buf_printf(to, ",\"usage\":{\"prompt_tokens\":%lld,\"total_tokens\":%lld}}",
                  (long long)e->n_tokens, (long long)e->n_tokens);
}

static qn_status prepare(qn_ask *ask, qn_problem *p) {
    if (!ask->input) return QN_REFUSE(p, 400, "input", "the request has no 'input'");
    if (!ask->encoding || is_base64(ask) || strcmp(ask->encoding, "float") == 0) return QN_OK;
    return QN_REFUSE(p, 400, "encoding_format",
                     "'encoding_format' is '%.40s', want float or base64", ask->encoding);
}

void qn_api_embed(qn_exchange *ex) {
    static const qn_embed_plan plan = {QN_SET_EMBED, prepare, write_answer};
    qn_embed_handle(ex, &plan);
}

#include "runtime/split_plan.h"

#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static double gib(int64_t bytes) { return (double)bytes / (1 << 30); }
static double ms(double seconds) { return seconds * 1e3; }

static const char *const names[] = {[QN_SPLIT_NONE] = "none",
                                    [QN_SPLIT_TENSORS] = "tensors",
                                    [QN_SPLIT_LAYERS] = "layers",
                                    [QN_SPLIT_AUTO] = "auto"};

// --- both ways -----------------------------------------------------------------------------------

static const qn_step_size one_token = {.rows = 1, .seqs = 1, .outs = 1};
static const qn_step_size prompt = {.rows = QN_SPLIT_PREFILL, .seqs = 1, .outs = 1};

// Fills the problem of a way if a rank lacks memory, with the one that lacks most.
static void check_memory(qn_split_way *way, const qn_split_plan *plan) {
    int64_t most = 0;
    for (int r = 0; r < plan->system.n; r++) {
        const int64_t need = qn_split_memory(&way->shares[r], plan->context);
        const int64_t has = plan->system.ranks[r].memory;
        if (has <= 0 || need - has <= most) continue;
        most = need - has;
        snprintf(way->problem, sizeof way->problem,
                 "rank %d needs %.2f GiB for its share and %lld positions, %.2f GiB of memory are "
                 "free",
                 r, gib(need), (long long)plan->context, gib(has));
    }
}

static void plan_tensors(qn_split_plan *plan, const qn_split_model *model) {
    const qn_split_system *s = &plan->system;
    for (int r = 0; r < s->n; r++) qn_split_tensor_share(&plan->shares[r], model, s->n, r);
    plan->tensors = (qn_split_way){.split = QN_SPLIT_TENSORS,
                                   .shares = plan->shares,
                                   .decode = qn_split_tensors(model, s, &one_token),
                                   .prefill = qn_split_tensors(model, s, &prompt)};
    check_memory(&plan->tensors, plan);
}

// Layers that cannot be divided are a problem of this way; what was typed wrong is an error.
static qn_status plan_layers(qn_split_plan *plan, const qn_split_model *model, const char *text,
                             qn_err *err) {
    const qn_split_system *s = &plan->system;
    qn_split_share *shares = plan->shares + s->n;
    qn_split_way *way = &plan->layers;
    qn_err why = {0};
    *way = (qn_split_way){.split = QN_SPLIT_LAYERS, .shares = shares};
    if (text) QN_TRY(qn_split_parse_shares(shares, text, s->n, model->n_layers, err));
    const qn_status status = text ? QN_OK : qn_split_divide(shares, model, s, plan->context, &why);
    if (status == QN_ARGUMENT || status == QN_LIMIT) {
        snprintf(way->problem, sizeof way->problem, "%.*s", QN_SPLIT_TEXT - 1, why.message);
        memset(shares, 0, (size_t)s->n * sizeof *shares);
        return QN_OK;
    }
    if (status) {
        if (err) *err = why;
        return status;
    }
    for (int r = 0; r < s->n; r++) qn_split_layer_share(&shares[r], model);
    way->decode = qn_split_layers(model, s, shares, &one_token, 1);
    way->prefill = qn_split_layers(model, s, shares, &prompt, qn_split_parts(prompt.rows, s->n));
    check_memory(way, plan);
    return QN_OK;
}

// --- the choice ----------------------------------------------------------------------------------

// Seconds for a token that is written and those that were read for it.
static double judge(const qn_split_way *way) {
    return way->decode.seconds + way->prefill.seconds * QN_SPLIT_READ_TOKENS / QN_SPLIT_PREFILL;
}

// Three digits, or all before the point.
typedef struct number_text {
    char text[24];
} number_text;
static const char *write_number(number_text *to, double x) {
    const int digits = x < 1 ? 3 : x < 10 ? 2 : x < 100 ? 1 : 0;
    snprintf(to->text, sizeof to->text, "%.*f", digits, x);
    return to->text;
}
#define TEXT(x) write_number(&(number_text){{0}}, x)

static void explain(qn_split_plan *plan) {
    const qn_split_way *best = qn_split_plan_chosen(plan), *other = qn_split_plan_other(plan);
    const char *name = names[best->split], *name_of_other = names[other->split];
    const bool writes_faster = best->decode.seconds <= other->decode.seconds;
    if (*other->problem)
        snprintf(plan->why, sizeof plan->why, "%s: by %s, %.200s", name, name_of_other,
                 other->problem);
    else if (writes_faster && best == &plan->layers)
        snprintf(
            plan->why, sizeof plan->why,
            "layers: by tensors, %.0f messages of %s us each would take %s ms a token, handing "
            "rows on takes %s ms",
            other->decode.messages, TEXT(other->decode.network / other->decode.messages * 1e6),
            TEXT(ms(other->decode.network)), TEXT(ms(best->decode.network)));
    else if (writes_faster)
        snprintf(plan->why, sizeof plan->why,
                 "tensors: a token takes %s ms, of which %s ms are messages; by layers, one rank "
                 "after the other, it takes %s ms",
                 TEXT(ms(best->decode.seconds)), TEXT(ms(best->decode.network)),
                 TEXT(ms(other->decode.seconds)));
    else
        snprintf(plan->why, sizeof plan->why,
                 "%s: a prompt of %d tokens takes %s ms, by %s %s ms, which counts more than %s "
                 "against %s ms a token",
                 name, QN_SPLIT_PREFILL, TEXT(ms(best->prefill.seconds)), name_of_other,
                 TEXT(ms(other->prefill.seconds)), TEXT(ms(best->decode.seconds)),
                 TEXT(ms(other->decode.seconds)));
}

static qn_status choose(qn_split_plan *plan, qn_split asked, qn_err *err) {
    const bool by_tensors = !*plan->tensors.problem, by_layers = !*plan->layers.problem;
    if (asked != QN_SPLIT_AUTO) {
        const qn_split_way *way = asked == QN_SPLIT_LAYERS ? &plan->layers : &plan->tensors;
        plan->split = asked;
        snprintf(plan->why, sizeof plan->why, "%s: asked for", names[asked]);
        return *way->problem ? QN_FAIL(err, MEMORY, "a split by %s over %d ranks: %s", names[asked],
                                       plan->system.n, way->problem)
                             : QN_OK;
    }
    if (!by_tensors && !by_layers)
        return QN_FAIL(err, MEMORY, "a split over %d ranks: by tensors, %s; by layers, %s",
                       plan->system.n, plan->tensors.problem, plan->layers.problem);
    const bool is_tensors =
        by_tensors && (!by_layers || judge(&plan->tensors) <= judge(&plan->layers));
    plan->split = is_tensors ? QN_SPLIT_TENSORS : QN_SPLIT_LAYERS;
    if (plan->system.n == 1)
        snprintf(plan->why, sizeof plan->why, "%s: there is one rank", names[plan->split]);
    else
        explain(plan);
    return QN_OK;
}

const qn_split_way *qn_split_plan_chosen(const qn_split_plan *plan) {
    return plan->split == QN_SPLIT_LAYERS ? &plan->layers : &plan->tensors;
}

const qn_split_way *qn_split_plan_other(const qn_split_plan *plan) {
    return plan->split == QN_SPLIT_LAYERS ? &plan->tensors : &plan->layers;
}

// --- making it -----------------------------------------------------------------------------------

static qn_status check(const qn_split_model *model, const qn_split_system *s,
                       const qn_split_plan_opts *o, qn_err *err) {
    if (s->n < 1 || s->n > QN_SPLIT_RANKS)
        return QN_FAIL(err, ARGUMENT, "%d ranks, want 1 to %d", s->n, QN_SPLIT_RANKS);
    if (o->split != QN_SPLIT_TENSORS && o->split != QN_SPLIT_LAYERS && o->split != QN_SPLIT_AUTO)
        return QN_FAIL(err, ARGUMENT, "split %d of %d", (int)o->split, QN_SPLIT_AUTO + 1);
    if (o->shares && o->split == QN_SPLIT_TENSORS)
        return QN_FAIL(err, ARGUMENT, "shares '%.80s' are of layers, the split is by tensors",
                       o->shares);
    if (o->split == QN_SPLIT_LAYERS && s->n > model->n_layers)
        return QN_FAIL(err, ARGUMENT, "%d ranks for a model of %lld layers", s->n,
                       (long long)model->n_layers);
    if (o->context < 0)
        return QN_FAIL(err, ARGUMENT, "a context of %lld positions", (long long)o->context);
    return qn_split_check_system(s, err);
}

static qn_status fill(qn_split_plan *plan, const qn_split_model *model, const qn_split_system *s,
                      const qn_split_plan_opts *o, qn_err *err) {
    plan->ranks = qn_alloc((size_t)s->n, sizeof *plan->ranks);
    plan->shares = qn_alloc((size_t)s->n, 2 * sizeof *plan->shares);
    if (!plan->ranks || !plan->shares) return QN_NOMEM(err, "plan of a split");
    memcpy(plan->ranks, s->ranks, (size_t)s->n * sizeof *plan->ranks);
    plan->system = (qn_split_system){.ranks = plan->ranks, .n = s->n, .link = s->link};
    plan->context = o->context;
    snprintf(plan->system_name, sizeof plan->system_name, "%.31s",
             o->system_name ? o->system_name : "");
    plan_tensors(plan, model);
    QN_TRY(plan_layers(plan, model, o->shares, err));
    return choose(plan, o->split, err);
}

qn_status qn_split_plan_create(qn_split_plan **out, const qn_split_model *model,
                               const qn_split_system *system, const qn_split_plan_opts *opts,
                               qn_err *err) {
    QN_TRY(check(model, system, opts, err));
    qn_split_plan *plan = qn_alloc(1, sizeof *plan);
    if (!plan) return QN_NOMEM(err, "plan of a split");
    const qn_status status = fill(plan, model, system, opts, err);
    if (status)
        qn_split_plan_destroy(plan);
    else
        *out = plan;
    return status;
}

void qn_split_plan_destroy(qn_split_plan *plan) {
    if (!plan) return;
    qn_free(plan->ranks);
    qn_free(plan->shares);
    qn_free(plan);
}

// --- as JSON -------------------------------------------------------------------------------------

static json_t *text_json(const char *text) { return qn_json_string(text, strlen(text)); }

static json_t *share_json(const qn_split_plan *plan, const qn_split_share *share, int r) {
    const qn_split_rank *rank = &plan->ranks[r];
    json_t *to = json_object(), *layers = json_array();
    qn_json_push(&layers, json_integer(share->first));
    qn_json_push(&layers, json_integer(share->end));
    qn_json_put(&to, "rank", json_integer(r));
    qn_json_put(&to, "layers", layers);
    qn_json_put(&to, "weights", json_integer(share->weights));
    qn_json_put(&to, "state_per_token", json_integer(share->state_row));
    qn_json_put(&to, "state_fixed", json_integer(share->state_fixed));
    qn_json_put(&to, "memory", json_integer(qn_split_memory(share, plan->context)));
    qn_json_put(&to, "free", rank->memory > 0 ? json_integer(rank->memory) : json_null());
    qn_json_put(&to, "threads", json_integer(rank->n_threads));
    qn_json_put(&to, "read_gbs", qn_json_real(rank->read_gbs));
    qn_json_put(&to, "int8_tops", qn_json_real(rank->int8_tops));
    return to;
}

static json_t *token_json(const qn_split_cost *decode) {
    json_t *to = json_object();
    qn_json_put(&to, "messages", json_integer((json_int_t)decode->messages));
    qn_json_put(&to, "bytes", json_integer((json_int_t)decode->bytes));
    qn_json_put(&to, "message_ms", qn_json_real(ms(decode->network)));
    return to;
}

static json_t *predicted_json(const qn_split_way *way) {
    json_t *to = json_object();
    qn_json_put(&to, "decode_tps", qn_json_real(1 / way->decode.seconds));
    qn_json_put(&to, "prefill_tps", qn_json_real(QN_SPLIT_PREFILL / way->prefill.seconds));
    return to;
}

// Layers that cannot be divided have no shares and no speeds.
static void put_way(json_t **to, const qn_split_plan *plan, const qn_split_way *way) {
    const bool is_divided = way->shares[0].end > 0;
    json_t *shares = json_array();
    for (int r = 0; r < plan->system.n && is_divided; r++)
        qn_json_push(&shares, share_json(plan, &way->shares[r], r));
    qn_json_put(to, "split", text_json(names[way->split]));
    qn_json_put(to, "problem", *way->problem ? text_json(way->problem) : json_null());
    qn_json_put(to, "shares", shares);
    qn_json_put(to, "per_token", is_divided ? token_json(&way->decode) : json_null());
    qn_json_put(to, "predicted", is_divided ? predicted_json(way) : json_null());
}

static json_t *link_json(const qn_split_link *link) {
    json_t *to = json_object();
    qn_json_put(&to, "latency_us", qn_json_real(link->latency_us));
    qn_json_put(&to, "message_us", qn_json_real(link->message_us));
    qn_json_put(&to, "gbs", qn_json_real(link->gbs));
    return to;
}

qn_status qn_split_plan_json(char **out, const qn_split_plan *plan, qn_err *err) {
    json_t *to = json_object(), *other = json_object();
    put_way(&to, plan, qn_split_plan_chosen(plan));
    put_way(&other, plan, qn_split_plan_other(plan));
    qn_json_put(&to, "ranks", json_integer(plan->system.n));
    qn_json_put(&to, "why", text_json(plan->why));
    qn_json_put(&to, "system", text_json(plan->system_name));
    qn_json_put(&to, "network", plan->system.n > 1 ? link_json(&plan->system.link) : json_null());
    qn_json_put(&to, "context", json_integer(plan->context));
    qn_json_put(&to, "other", other);
    const qn_json_form form = {.digits = 6};
    const qn_status status = qn_json_print(out, to, &form, "the plan of a split", err);
    json_decref(to);
    return status;
}

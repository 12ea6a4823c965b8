// What the server says of itself: models, health, properties, metrics.
#include "server/api.h"

#include "core/mem.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <string.h>

// --- models --------------------------------------------------------------------------------------

static json_t *model_meta(const qn_offer_info *info) {
    json_t *m = json_object();
    qn_json_put(&m, "loaded", json_boolean(info->is_open));
    qn_json_put(&m, "size", json_integer(info->file_bytes));
    if (*info->fault) qn_json_put(&m, "error", json_string(info->fault));
    if (!info->is_known) return m;
    qn_json_put(&m, "n_ctx", json_integer(info->context));
    qn_json_put(&m, "n_ctx_train", json_integer(info->trained_context));
    qn_json_put(&m, "n_vocab", json_integer(info->n_vocab));
    qn_json_put(&m, "n_embd", json_integer(info->width));
    qn_json_put(&m, "n_params", json_integer(info->n_parameters));
    qn_json_put(&m, "architecture", json_string(info->architecture));
    qn_json_put(&m, "quantization", json_string(info->facts.quantization));
    qn_json_put(&m, "vision", json_boolean(info->has_vision));
    return m;
}

// With the members that Anthropic's clients look for.
static json_t *model_json(const qn_offer_info *info) {
    json_t *m = json_object();
    qn_json_put(&m, "id", json_string(info->name));
    qn_json_put(&m, "object", json_string("model"));
    qn_json_put(&m, "type", json_string("model"));
    qn_json_put(&m, "display_name", json_string(info->name));
    qn_json_put(&m, "created", json_integer(info->modified));
    qn_json_put(&m, "owned_by", json_string("quern"));
    if (info->is_known) qn_json_put(&m, "max_model_len", json_integer(info->context));
    qn_json_put(&m, "meta", model_meta(info));
    return m;
}

// The same as Anthropic has it.
static json_t *anthropic_model(const qn_offer_info *info) {
    json_t *m = json_object();
    struct tm parts;
    char created[32];
    gmtime_r(&info->modified, &parts);
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", &parts);
    qn_json_put(&m, "type", json_string("model"));
    qn_json_put(&m, "id", json_string(info->name));
    qn_json_put(&m, "display_name", json_string(info->name));
    qn_json_put(&m, "created_at", json_string(created));
    if (info->is_known) qn_json_put(&m, "max_input_tokens", json_integer(info->context));
    return m;
}

static bool is_named(const char *name, const char *shown) {
    static const char latest[] = ":latest";
    const size_t n = strlen(name);
    return strncmp(name, shown, n) == 0 && (!shown[n] || strcmp(shown + n, latest) == 0);
}

void qn_api_model(qn_exchange *ex) {
    const char *name = strstr(ex->path, "/models/") + strlen("/models/");
    qn_offer_info info;
    qn_problem problem;
    qn_registry_refresh(&ex->server->registry);
    for (size_t i = 0; qn_registry_info(&info, &ex->server->registry, i); i++) {
        if (!is_named(info.name, name)) continue;
        qn_reply_json(ex, 200, ex->is_anthropic ? anthropic_model(&info) : model_json(&info));
        qn_exchange_leave(ex);
        return;
    }
    (void)QN_REFUSE(&problem, 404, "model", "there is no model '%.80s'; /v1/models lists them",
                    name);
    problem.code = "model_not_found";
    qn_problem_reply(ex, &problem);
    qn_exchange_leave(ex);
}

// {"data", "has_more", "first_id", "last_id"}; takes the list.
static json_t *anthropic_list(json_t *list) {
    json_t *o = json_object();
    const size_t n = json_array_size(list);
    json_t *first = json_object_get(json_array_get(list, 0), "id");
    json_t *last = json_object_get(json_array_get(list, n - 1), "id");
    qn_json_put(&o, "has_more", json_false());
    qn_json_put(&o, "first_id", first ? json_incref(first) : json_null());
    qn_json_put(&o, "last_id", last ? json_incref(last) : json_null());
    qn_json_put(&o, "data", list);
    return o;
}

static json_t *openai_list(json_t *list) {
    json_t *o = json_object();
    qn_json_put(&o, "object", json_string("list"));
    qn_json_put(&o, "has_more", json_false());
    qn_json_put(&o, "models", json_incref(list)); // where Codex looks
    qn_json_put(&o, "data", list);
    return o;
}

// Those that can be asked: what is wrong with others is in the log, and in /v1/models/NAME.
void qn_api_models(qn_exchange *ex) {
    json_t *list = json_array();
    qn_offer_info info;
    qn_registry_refresh(&ex->server->registry);
    for (size_t i = 0; qn_registry_info(&info, &ex->server->registry, i); i++) {
        if (*info.problem) continue;
        qn_json_push(&list, ex->is_anthropic ? anthropic_model(&info) : model_json(&info));
    }
    qn_reply_json(ex, 200, ex->is_anthropic ? anthropic_list(list) : openai_list(list));
    qn_exchange_leave(ex);
}

// --- health --------------------------------------------------------------------------------------

void qn_api_health(qn_exchange *ex) {
    if (qn_registry_is_well(&ex->server->registry)) {
        json_t *o = json_object();
        qn_json_put(&o, "status", json_string("ok"));
        qn_reply_json(ex, 200, o);
    } else {
        qn_problem problem;
        (void)QN_REFUSE(&problem, 503, "", "the steps of a model fail; the log says why");
        qn_problem_reply(ex, &problem);
    }
    qn_exchange_leave(ex);
}

void qn_api_version(qn_exchange *ex) {
    json_t *o = json_object();
    qn_json_put(&o, "version", json_string(qn_version()));
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

void qn_api_load(qn_exchange *ex) {
    json_t *o = json_object();
    qn_json_put(&o, "server_load", json_integer(atomic_load(&ex->server->n_jobs)));
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

// --- properties ----------------------------------------------------------------------------------

// The settings that count when a request does not say any.
static json_t *sampling_json(const qn_sample_opts *s) {
    json_t *o = json_object();
    qn_json_put(&o, "temperature", qn_json_real((double)s->temperature));
    qn_json_put(&o, "top_k", json_integer(s->top_k));
    qn_json_put(&o, "top_p", qn_json_real(s->top_p > 0 ? (double)s->top_p : 1));
    qn_json_put(&o, "min_p", qn_json_real((double)s->min_p));
    qn_json_put(&o, "repeat_penalty",
                qn_json_real(s->repeat_penalty > 0 ? (double)s->repeat_penalty : 1));
    qn_json_put(&o, "presence_penalty", qn_json_real((double)s->presence_penalty));
    qn_json_put(&o, "frequency_penalty", qn_json_real((double)s->frequency_penalty));
    return o;
}

// The spelling of a token; none: "".
static json_t *spelling_json(const qn_tokenizer *tokenizer, int32_t token) {
    char *bytes = NULL;
    size_t n = 0;
    if (token < 0) return json_string("");
    if (qn_tokenizer_bytes(&bytes, &n, tokenizer, token, NULL)) return NULL;
    json_t *text = qn_json_string(bytes, n);
    qn_free(bytes);
    return text;
}

// What is known of a model once it is open.
static void put_open(json_t **o, const qn_served *m) {
    qn_tokenizer_info ids = QN_INIT(qn_tokenizer_info);
    if (qn_tokenizer_get_info(&ids, m->tokenizer, NULL)) return; // which it never does
    qn_json_put(o, "bos_token", spelling_json(m->tokenizer, ids.bos));
    qn_json_put(o, "eos_token", spelling_json(m->tokenizer, ids.eos));
    const char *text = m->template ? qn_template_text(m->template) : "";
    qn_json_put(o, "chat_template", qn_json_string(text, strlen(text)));
}

static void put_abilities(json_t **o, const qn_offer_info *info) {
    json_t *modalities = json_object(), *caps = json_object();
    qn_json_put(&modalities, "vision", json_boolean(info->has_vision));
    qn_json_put(&modalities, "audio", json_false());
    qn_json_put(&caps, "tools", json_boolean(info->has_tools));
    qn_json_put(&caps, "thinking", json_boolean(info->has_thinking));
    qn_json_put(&caps, "supports_tools", json_boolean(info->has_tools));
    qn_json_put(o, "modalities", modalities);
    qn_json_put(o, "chat_template_caps", caps);
}

// `m` is NULL of a model that is not open: it is not opened for that.
static json_t *props_of(const qn_exchange *ex, const qn_offer_info *info, const qn_served *m) {
    const qn_server_opts *opts = &ex->server->opts;
    json_t *o = json_object(), *settings = json_object();
    qn_json_put(&settings, "n_ctx", json_integer(info->context));
    qn_json_put(&settings, "params", m ? sampling_json(&m->sample) : json_object());
    qn_json_put(&o, "default_generation_settings", settings);
    qn_json_put(&o, "total_slots", json_integer(opts->parallel ? opts->parallel : 64));
    qn_json_put(&o, "model_alias", json_string(info->name));
    qn_json_put(&o, "model_path", json_string(info->name));
    qn_json_put(&o, "model_ftype", json_string(info->facts.quantization));
    qn_json_put(&o, "loaded", json_boolean(info->is_open));
    put_abilities(&o, info);
    if (m) put_open(&o, m);
    qn_json_put(&o, "meta", model_meta(info));
    qn_json_put(&o, "n_ctx", json_integer(info->context));
    qn_json_put(&o, "endpoint_slots", json_true());
    qn_json_put(&o, "endpoint_props", json_false()); // nothing can be changed there
    qn_json_put(&o, "endpoint_metrics", json_boolean(opts->metrics));
    qn_json_put(&o, "build_info", json_sprintf("quern %s", qn_version()));
    qn_json_put(&o, "needs_key", json_boolean(qn_guard_has_keys(&ex->server->guard)));
    return o;
}

void qn_api_props(qn_exchange *ex) {
    qn_offer *entry = NULL;
    qn_offer_info info;
    qn_problem problem = {0};
    qn_status status = qn_registry_hold(&entry, &ex->server->registry, ex->model, &problem.err);
    if (status) {
        (void)qn_offer_refuse(&problem, status);
    } else {
        qn_offer_refresh(entry);
        qn_offer_get_info(&info, entry);
        if (!info.is_known && !info.is_open) {
            status = QN_FAIL(&problem.err, FORMAT, "the model '%.80s' cannot be opened: %s",
                             info.name, *info.fault ? info.fault : "its file cannot be read now");
            (void)qn_offer_refuse(&problem, status);
        }
    }
    if (status)
        qn_problem_reply(ex, &problem);
    else // one that is open stays open while it is held
        qn_reply_json(ex, 200, props_of(ex, &info, info.is_open ? entry->served : NULL));
    if (entry) qn_offer_leave(entry);
    qn_exchange_leave(ex);
}

// --- metrics -------------------------------------------------------------------------------------

void qn_api_metrics(qn_exchange *ex) {
    qn_server *s = ex->server;
    qn_buf text = {0};
    if (!s->opts.metrics) {
        qn_problem problem;
        (void)QN_REFUSE(&problem, 501, "",
                        "this server does not tell metrics; --metrics turns "
                        "them on");
        qn_problem_reply(ex, &problem);
        qn_exchange_leave(ex);
        return;
    }
    qn_model_metrics *models = NULL, all;
    size_t n = 0, n_open = 0;
    if (qn_registry_metrics(&models, &n, &all, &s->registry, NULL)) {
        qn_reply_json(ex, 503, NULL);
        qn_exchange_leave(ex);
        return;
    }
    for (size_t i = 0; i < n; i++) n_open += models[i].is_open;
    const qn_gauge gauges[] = {
        {"quern_requests_refused_total", "Requests that were refused.",
         (double)atomic_load(&s->n_refused)},
        {"quern_connections", "Open connections.", (double)qn_links_count(&s->links)},
        {"quern_models_open", "Models that are open.", (double)n_open},
    };
    qn_metrics_write(&text, models, n, &all, gauges, sizeof gauges / sizeof *gauges);
    qn_free(models);
    if (text.failed) {
        qn_buf_deinit(&text);
        qn_reply_json(ex, 503, NULL);
    } else {
        qn_exchange_reply(ex, 200, "text/plain; version=0.0.4; charset=utf-8", &text);
    }
    qn_exchange_leave(ex);
}

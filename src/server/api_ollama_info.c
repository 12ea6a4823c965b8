// Ollama's /api/tags, /api/show, /api/ps and /api/version, and its routes that change models.
#include "server/api_ollama.h"

#include "core/mem.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

// --- details -------------------------------------------------------------------------------------

// "7.6B", "596.05M", as Ollama has it.
static json_t *size_json(int64_t n) {
    static const struct {
        double unit;
        const char *format;
    } units[] = {{1e9, "%.1fB"}, {1e6, "%.2fM"}, {1e3, "%.2fK"}};
    char text[32];
    size_t i = 0;
    while (i < 2 && (double)n < units[i].unit) i++;
    snprintf(text, sizeof text, units[i].format, (double)n / units[i].unit);
    return json_string(text);
}

static json_t *details_json(const qn_offer_info *info) {
    json_t *o = json_object(), *families = json_array();
    qn_json_push(&families, json_string(info->architecture));
    qn_json_put(&o, "parent_model", json_string(""));
    qn_json_put(&o, "format", json_string(info->facts.format));
    qn_json_put(&o, "family", json_string(info->architecture));
    qn_json_put(&o, "families", families);
    qn_json_put(&o, "parameter_size", size_json(info->n_parameters));
    qn_json_put(&o, "quantization_level", json_string(info->facts.quantization));
    return o;
}

// 64 digits that change when the file does: of its path, size and time. Its content, which may be
// many gigabytes, is not read.
static json_t *digest_json(const qn_offer_info *info) {
    static const uint64_t prime = 0x100000001B3, start = 0xCBF29CE484222325;
    char text[1200], digits[65];
    snprintf(text, sizeof text, "%s %lld %lld", info->path, (long long)info->file_bytes,
             (long long)info->modified);
    uint64_t hash = start;
    for (int k = 0; k < 4; k++) {
        for (const char *c = text; *c; c++) hash = (hash ^ (unsigned char)*c) * prime;
        snprintf(digits + 16 * k, 17, "%016llx", (unsigned long long)hash);
    }
    return json_string(digits);
}

static json_t *model_json(const qn_offer_info *info) {
    json_t *o = json_object();
    qn_json_put(&o, "name", json_string(info->name));
    qn_json_put(&o, "model", json_string(info->name));
    qn_json_put(&o, "size", json_integer(info->file_bytes));
    qn_json_put(&o, "digest", digest_json(info));
    qn_json_put(&o, "details", details_json(info));
    return o;
}

// --- lists ---------------------------------------------------------------------------------------

void qn_api_ollama_tags(qn_exchange *ex) {
    json_t *list = json_array(), *o = json_object();
    qn_offer_info info;
    qn_registry_refresh(&ex->server->registry);
    for (size_t i = 0; qn_registry_info(&info, &ex->server->registry, i); i++) {
        if (*info.fault) continue; // there is no place to say why it cannot be used
        json_t *m = model_json(&info);
        qn_json_put(&m, "modified_at", qn_ollama_time(&(struct timespec){.tv_sec = info.modified}));
        qn_json_push(&list, m);
    }
    qn_json_put(&o, "models", list);
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

void qn_api_ollama_ps(qn_exchange *ex) {
    json_t *list = json_array(), *o = json_object();
    qn_offer_info info;
    for (size_t i = 0; qn_registry_info(&info, &ex->server->registry, i); i++) {
        if (!info.is_open) continue;
        json_t *m = model_json(&info);
        qn_json_put(&m, "size", json_integer(info.bytes)); // in memory
        qn_json_put(&m, "size_vram", json_integer(0));
        qn_json_put(&m, "context_length", json_integer(info.context));
        // Models stay open while memory lasts.
        qn_json_put(&m, "expires_at", json_string("9999-12-31T23:59:59Z"));
        qn_json_push(&list, m);
    }
    qn_json_put(&o, "models", list);
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

// --- one model -----------------------------------------------------------------------------------

static json_t *capabilities_json(const qn_offer_info *info) {
    const struct {
        const char *name;
        bool is_there;
    } all[] = {{"completion", true},
               {"tools", info->has_tools},
               {"thinking", info->has_thinking},
               {"vision", info->has_vision},
               {"embedding", true}};
    json_t *list = json_array();
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        if (all[i].is_there) qn_json_push(&list, json_string(all[i].name));
    }
    return list;
}

static void put_key(json_t **o, const char *architecture, const char *name, int64_t value) {
    char key[128];
    snprintf(key, sizeof key, "%s.%s", architecture, name);
    if (value) qn_json_put(o, key, json_integer(value));
}

// Sizes by the names of GGUF keys, over what the file's own keys say.
static void put_sizes(json_t **o, const qn_offer_info *info) {
    const qn_facts *f = &info->facts;
    const char *a = info->architecture;
    qn_json_put(o, "general.architecture", json_string(a));
    qn_json_put(o, "general.parameter_count", json_integer(f->n_parameters));
    put_key(o, a, "context_length", f->context); // the server's limit, if that is smaller
    put_key(o, a, "embedding_length", f->width);
    put_key(o, a, "block_count", f->n_layers);
    put_key(o, a, "feed_forward_length", f->ffn_width);
    put_key(o, a, "attention.head_count", f->n_heads);
    put_key(o, a, "attention.head_count_kv", f->n_kv_heads);
    put_key(o, a, "attention.key_length", f->head_size);
    put_key(o, a, "expert_count", f->n_experts);
    put_key(o, a, "vocab_size", f->n_vocab);
}

// The keys of a GGUF file without long lists; NULL: it is another file, or cannot be read now.
static json_t *keys_of(const qn_offer_info *info) {
    enum { LONGEST = 64 };
    const qn_json_opts opts = {.what = "keys"};
    qn_source *source = NULL;
    char *text = NULL;
    json_t *keys = NULL;
    if (strcmp(info->facts.format, "gguf") != 0) return NULL;
    if (qn_source_open(&source, info->path, NULL)) return NULL;
    if (qn_source_config(&text, source, LONGEST, NULL) ||
        qn_json_parse_as(&keys, text, strlen(text), &opts, NULL))
        keys = NULL; // the answer goes without them
    qn_free(text);
    qn_source_close(source);
    return keys;
}

static json_t *show_json(const qn_offer_info *info) {
    static const char template_key[] = "tokenizer.chat_template";
    json_t *o = json_object(), *keys = keys_of(info);
    json_t *text = json_incref(json_object_get(keys, template_key));
    if (text) json_object_del(keys, template_key);
    if (!keys) keys = json_object();
    put_sizes(&keys, info);
    qn_json_put(&o, "modified_at", qn_ollama_time(&(struct timespec){.tv_sec = info->modified}));
    qn_json_put(&o, "parameters", json_sprintf("num_ctx %lld", (long long)info->context));
    if (text) qn_json_put(&o, "template", text);
    qn_json_put(&o, "details", details_json(info));
    qn_json_put(&o, "model_info", keys);
    qn_json_put(&o, "capabilities", capabilities_json(info));
    return o;
}

static qn_status hold(qn_offer **out, qn_ask *ask, qn_exchange *ex, qn_problem *p) {
    QN_TRY(qn_ask_read(ask, ex, QN_SET_SHOW, p));
    const qn_status status = qn_registry_hold(out, &ex->server->registry, ask->model, &p->err);
    return status ? qn_offer_refuse(p, status) : QN_OK;
}

void qn_api_ollama_show(qn_exchange *ex) {
    qn_problem problem = {0};
    qn_offer *entry = NULL;
    qn_ask ask;
    qn_offer_info info;
    qn_status status = hold(&entry, &ask, ex, &problem);
    if (!status) {
        qn_offer_refresh(entry);
        qn_offer_get_info(&info, entry);
        if (!info.is_known)
            status = QN_REFUSE(&problem, 500, "model", "the model '%.80s' cannot be opened: %s",
                               info.name, info.fault);
    }
    if (status)
        qn_problem_reply(ex, &problem);
    else
        qn_reply_json(ex, 200, show_json(&info));
    if (entry) qn_offer_leave(entry);
    qn_ask_deinit(&ask);
    qn_exchange_leave(ex);
}

// --- the rest ------------------------------------------------------------------------------------

// Clients compare it with the first version that had what they need.
void qn_api_ollama_version(qn_exchange *ex) {
    json_t *o = json_object();
    qn_json_put(&o, "version", json_string("0.12.11"));
    qn_json_put(&o, "server", json_sprintf("quern %s", qn_version()));
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

void qn_api_ollama_refuse(qn_exchange *ex) {
    qn_problem problem;
    (void)QN_REFUSE(&problem, 501, "",
                    "%.80s is not done here: models are pulled on the server's machine ('quern "
                    "pull'), put into its folder (--models), or named when it is started",
                    ex->path);
    qn_problem_reply(ex, &problem);
    qn_exchange_leave(ex);
}

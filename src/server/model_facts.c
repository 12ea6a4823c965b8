#include "server/model_facts.h"

#include "core/mem.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>

// --- templates -----------------------------------------------------------------------------------

qn_status qn_template_choose(qn_template **out, char *why, size_t n, const qn_server *server,
                             const qn_engine *engine, qn_err *err) {
    const char *other = server->opts.template;
    qn_err own;
    *out = NULL;
    if (other) return qn_template_open(out, other, NULL, err);
    const qn_status status = qn_engine_template(out, engine, NULL, &own);
    if (status == QN_MEMORY) return QN_NOMEM(err, "a chat template");
    if (!status) return QN_OK;
    snprintf(why, n, "%.*s", (int)n - 1, own.message);
    const char *name = qn_template_find_builtin(qn_engine_tokenizer(engine));
    return name ? qn_template_create_builtin(out, name, err) : QN_OK;
}

qn_status qn_template_look(bool *has_thinking, bool *has_tools, const qn_template *chat_template,
                           const qn_tokenizer *tokenizer, qn_err *err) {
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"look_here\", "
                                "\"description\": \"\", \"parameters\": {\"type\": \"object\", "
                                "\"properties\": {}}}}]";
    qn_chat *chat = NULL;
    char *text = NULL;
    qn_reasoning_switch found = QN_SWITCH_NONE;
    if (!chat_template) return QN_OK;
    QN_TRY(qn_chat_create(&chat, err));
    const qn_message hello =
        QN_INIT(qn_message, .role = "user", .text = "Hello", .text_size = strlen("Hello"));
    qn_status status = qn_chat_add(chat, &hello, err);
    if (!status) status = qn_chat_find_switch(&found, chat, chat_template, tokenizer, NULL, err);
    if (!status) *has_thinking = found == QN_SWITCH_FOUND;
    if (!status) status = qn_chat_set_tools(chat, tools, sizeof tools - 1, NULL, err);
    if (!status && !qn_chat_render(&text, NULL, chat, chat_template, tokenizer, NULL, NULL))
        *has_tools = strstr(text, "look_here") != NULL;
    qn_free(text);
    qn_chat_destroy(chat);
    return status == QN_MEMORY ? status : QN_OK; // a template that refuses this knows neither
}

static qn_status read_template(qn_facts *f, const qn_server *server, const qn_engine *engine,
                               qn_err *err) {
    qn_template *chat_template = NULL;
    char why[256];
    QN_TRY(qn_template_choose(&chat_template, why, sizeof why, server, engine, err));
    const qn_status status = qn_template_look(&f->has_thinking, &f->has_tools, chat_template,
                                              qn_engine_tokenizer(engine), err);
    qn_template_destroy(chat_template);
    return status;
}

// --- files ---------------------------------------------------------------------------------------

// The type that most bytes of the tensors have.
static qn_status find_type(qn_facts *f, const qn_source *source, qn_err *err) {
    enum { MAX_TYPES = 64 };
    struct {
        char name[16];
        int64_t bytes;
    } types[MAX_TYPES] = {{"", 0}};
    size_t n = 0, best = 0;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        qn_tensor_info t = QN_INIT(qn_tensor_info);
        QN_TRY(qn_source_tensor_info(&t, source, i, err));
        size_t k = 0;
        while (k < n && strcmp(types[k].name, t.type) != 0) k++;
        if (k == MAX_TYPES) continue;
        if (k == n) snprintf(types[n++].name, sizeof types->name, "%.15s", t.type);
        types[k].bytes += t.bytes;
        if (types[k].bytes > types[best].bytes) best = k;
    }
    memcpy(f->quantization, types[best].name, sizeof f->quantization);
    return QN_OK;
}

// A checkpoint whose configuration describes a vision tower.
static qn_status find_vision(qn_facts *f, const qn_source *source, qn_err *err) {
    static const char part[] = "vision_config.";
    for (size_t i = 0; i < qn_source_n_keys(source) && !f->has_vision; i++) {
        qn_key_info key = QN_INIT(qn_key_info);
        QN_TRY(qn_source_key_info(&key, source, i, 1, err));
        f->has_vision = strncmp(key.name, part, sizeof part - 1) == 0;
        qn_free(key.value);
    }
    return QN_OK;
}

static qn_status read_source(qn_facts *f, const char *path, qn_err *err) {
    qn_source *source = NULL;
    QN_TRY(qn_source_open(&source, path, err));
    const bool is_gguf = strcmp(qn_source_format(source), "GGUF") == 0;
    f->file_bytes = qn_source_file_bytes(source);
    snprintf(f->format, sizeof f->format, "%s", is_gguf ? "gguf" : qn_source_format(source));
    qn_status status = find_type(f, source, err);
    if (!status && !is_gguf) status = find_vision(f, source, err);
    qn_source_close(source);
    return status;
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status read_engine(qn_facts *f, const qn_server *server, const qn_engine *engine,
                             const char *path, qn_err *err) {
    const qn_server_opts *o = &server->opts;
    qn_engine_info info = QN_INIT(qn_engine_info);
    qn_memory memory = QN_INIT(qn_memory);
    if (!qn_engine_tokenizer(engine))
        return QN_FAIL(err, UNSUPPORTED, "%s: the model has no tokenizer", path);
    QN_TRY(qn_engine_get_info(&info, engine, err));
    snprintf(f->architecture, sizeof f->architecture, "%s", info.architecture);
    f->n_parameters = info.n_parameters;
    f->n_vocab = info.n_vocab, f->n_layers = info.n_layers;
    f->width = info.width, f->ffn_width = info.ffn_width;
    f->n_heads = info.n_heads, f->n_kv_heads = info.n_kv_heads, f->head_size = info.head_size;
    f->n_experts = info.n_experts;
    f->trained_context = f->context = info.context;
    if (o->context && o->context < f->context) f->context = o->context;
    QN_TRY(qn_engine_memory(&memory, engine, f->context, o->chunk, err));
    f->weights = memory.weights;
    f->activations = memory.activations;
    f->row_state = memory.state;
    return read_template(f, server, engine, err);
}

qn_status qn_facts_read(qn_facts *out, const qn_server *server, const char *path, qn_err *err) {
    const qn_server_opts *o = &server->opts;
    qn_facts f = {0};
    qn_engine *engine = NULL;
    QN_TRY(read_source(&f, path, err));
    QN_TRY(o->peek(o->open_arg, &engine, path, err));
    const qn_status status = read_engine(&f, server, engine, path, err);
    qn_engine_close(engine);
    if (!status) *out = f;
    return status;
}

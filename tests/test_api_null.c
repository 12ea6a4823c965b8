// NULL where quern.h does not allow it: a status, not a crash. NULL where it does: fine.
#include "testing.h"

#include <stdio.h>

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

// Everything that calls need besides the pointer that is missing.
typedef struct things {
    qn_source *source;
    qn_engine *engine;
    const qn_tokenizer *tokenizer;
    qn_decoder *decoder;
    qn_template *template;
    qn_parts *parts;
    qn_chat *chat;
    qn_session *session;
    qn_snapshot *snapshot;
    qn_grammar *grammar;
    qn_batch *batch;
    qn_sampler *sampler;
    qn_chat_turn *turn;
    qn_chat_reply *reply;
} things;

static int make(void **state) {
    static things t;
    qn_err err;
    const int32_t ids[] = {1, 2, 3};
    const qn_status statuses[] = {
        qn_source_open(&t.source, DRAFT, &err),
        qn_engine_open(&t.engine, DRAFT, NULL, &err),
        qn_decoder_create(&t.decoder, t.tokenizer = qn_engine_tokenizer(t.engine), &err),
        qn_template_create(&t.template, "x", 1, &err),
        qn_parts_create(&t.parts, NULL, &err),
        qn_chat_create(&t.chat, &err),
        qn_session_create(&t.session, t.engine, &QN_INIT(qn_session_opts, .context = 64), &err),
        qn_session_set_prompt(t.session, ids, 3, &err),
        qn_session_checkpoint(&t.snapshot, t.session, &err),
        qn_grammar_create(&t.grammar, t.tokenizer, QN_GRAMMAR_REGEX, "a", 1, NULL, &err),
        qn_batch_create(&t.batch, t.engine, &QN_INIT(qn_batch_opts, .context = 64), &err),
        qn_sampler_create(&t.sampler, NULL, 4, NULL, &err),
        qn_chat_turn_create(&t.turn, t.chat, t.template, t.engine, 64, NULL, &err),
        qn_chat_reply_create(&t.reply, NULL, &err),
    };
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (statuses[i]) return -1;
    }
    *state = &t;
    return 0;
}

static int drop(void **state) {
    things *t = *state;
    qn_chat_reply_destroy(t->reply);
    qn_chat_turn_destroy(t->turn);
    qn_sampler_destroy(t->sampler);
    qn_batch_destroy(t->batch);
    qn_grammar_destroy(t->grammar);
    qn_snapshot_destroy(t->snapshot);
    qn_session_destroy(t->session);
    qn_chat_destroy(t->chat);
    qn_parts_destroy(t->parts);
    qn_template_destroy(t->template);
    qn_decoder_destroy(t->decoder);
    qn_engine_close(t->engine);
    qn_source_close(t->source);
    return 0;
}

// The functions that were called without a pointer, by name.
static struct {
    const char *names[256];
    size_t n;
} called;

static void note(const char *name) {
    if (called.n > 0 && strcmp(called.names[called.n - 1], name) == 0) return;
    assert_true(called.n < sizeof called.names / sizeof *called.names);
    called.names[called.n++] = name;
}

static bool was_called(const char *name, size_t size) {
    for (size_t i = 0; i < called.n; i++) {
        if (strlen(called.names[i]) == size && memcmp(called.names[i], name, size) == 0)
            return true;
    }
    return false;
}

// The call is refused, and the message names the function and the parameter.
#define REFUSES(function, parameter, ...)                                                          \
    do {                                                                                           \
        qn_err err = {0};                                                                          \
        note(#function);                                                                           \
        const qn_status status_ = function(__VA_ARGS__, &err);                                     \
        if (status_ != QN_ARGUMENT) fail_msg(#function ": status %d", (int)status_);               \
        if (!strstr(err.message, #function ": " parameter " is NULL"))                             \
            fail_msg("%s", err.message);                                                           \
        if (function(__VA_ARGS__, NULL) != QN_ARGUMENT) fail_msg(#function " without err");        \
    } while (0)
// The same, in words of its own.
#define REFUSES_TOO(function, ...)                                                                 \
    do {                                                                                           \
        qn_err err = {0};                                                                          \
        note(#function);                                                                           \
        assert_int_equal(function(__VA_ARGS__, &err), QN_ARGUMENT);                                \
        assert_true(*err.message);                                                                 \
    } while (0)

static void files_tokenizers_and_templates_refuse_null(void **state) {
    const things *t = *state;
    qn_source *source;
    qn_key_info key = QN_INIT(qn_key_info);
    qn_tensor_info tensor = QN_INIT(qn_tensor_info);
    qn_tokenizer_info info = QN_INIT(qn_tokenizer_info);
    qn_tokenizer *tokenizer;
    qn_template *template;
    qn_decoder *decoder;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    int32_t *ids;
    size_t n;
    char *text;
    const char *borrowed;
    REFUSES(qn_source_open, "out", NULL, DRAFT);
    REFUSES_TOO(qn_source_open, &source, NULL);
    REFUSES(qn_source_key_info, "out", NULL, t->source, 0, 0);
    REFUSES(qn_source_key_info, "source", &key, NULL, 0, 0);
    REFUSES(qn_source_tensor_info, "out", NULL, t->source, 0);
    REFUSES(qn_source_tensor_info, "source", &tensor, NULL, 0);
    REFUSES(qn_tokenizer_get_info, "out", NULL, t->tokenizer);
    REFUSES(qn_tokenizer_get_info, "tokenizer", &info, NULL);
    REFUSES(qn_tokenizer_open, "out", NULL, DRAFT);
    REFUSES_TOO(qn_tokenizer_open, &tokenizer, NULL);
    REFUSES(qn_tokenize, "ids", NULL, &n, t->tokenizer, "a", 1, NULL);
    REFUSES(qn_tokenize, "n", &ids, NULL, t->tokenizer, "a", 1, NULL);
    REFUSES_TOO(qn_tokenize, &ids, &n, NULL, "a", 1, NULL);
    REFUSES_TOO(qn_tokenize, &ids, &n, t->tokenizer, NULL, 1, NULL);
    REFUSES(qn_detokenize, "text", NULL, &n, t->tokenizer, NULL, 0, false);
    REFUSES(qn_detokenize, "size", &text, NULL, t->tokenizer, NULL, 0, false);
    REFUSES(qn_detokenize, "tokenizer", &text, &n, NULL, NULL, 0, false);
    REFUSES_TOO(qn_detokenize, &text, &n, t->tokenizer, NULL, 1, false);
    REFUSES(qn_tokenizer_bytes, "bytes", NULL, &n, t->tokenizer, 0);
    REFUSES(qn_tokenizer_bytes, "size", &text, NULL, t->tokenizer, 0);
    REFUSES(qn_tokenizer_bytes, "tokenizer", &text, &n, NULL, 0);
    REFUSES(qn_decoder_create, "out", NULL, t->tokenizer);
    REFUSES(qn_decoder_create, "tokenizer", &decoder, NULL);
    REFUSES(qn_decoder_next, "text", NULL, &n, t->decoder, 1);
    REFUSES(qn_decoder_next, "size", &borrowed, NULL, t->decoder, 1);
    REFUSES(qn_decoder_next, "decoder", &borrowed, &n, NULL, 1);
    REFUSES(qn_decoder_finish, "decoder", &borrowed, &n, NULL);
    REFUSES(qn_template_create, "out", NULL, "x", 1);
    REFUSES_TOO(qn_template_create, &template, NULL, 1);
    REFUSES(qn_template_open, "out", NULL, DRAFT, NULL);
    REFUSES_TOO(qn_template_open, &template, NULL, NULL);
    REFUSES(qn_template_render, "text", NULL, NULL, t->template, "{}", 2, NULL);
    REFUSES_TOO(qn_template_render, &text, NULL, NULL, "{}", 2, NULL);
    REFUSES(qn_template_render, "request", &text, NULL, t->template, NULL, 0, NULL);
    REFUSES(qn_chat_prompt_create, "out", NULL, t->template, t->tokenizer, "{}", 2, NULL);
    REFUSES(qn_chat_prompt_create, "tokenizer", &prompt, t->template, NULL, "{}", 2, NULL);
    REFUSES(qn_chat_prompt_create, "request", &prompt, t->template, t->tokenizer, NULL, 0, NULL);
    REFUSES_TOO(qn_chat_prompt_create, &prompt, NULL, t->tokenizer, "{}", 2, NULL);
    REFUSES(qn_parts_create, "out", NULL, NULL);
    REFUSES(qn_parts_feed, "parts", NULL, -1, "a", 1, NULL, NULL);
    REFUSES(qn_parts_feed, "fn", t->parts, -1, "a", 1, NULL, NULL);
    REFUSES(qn_parts_finish, "parts", NULL, NULL, NULL);
}

static void conversations_refuse_null(void **state) {
    const things *t = *state;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_message message = QN_INIT(qn_message, .role = "user");
    qn_parts_opts parts = QN_INIT(qn_parts_opts);
    qn_reasoning_switch found;
    qn_template *template;
    char *text;
    REFUSES(qn_template_create_builtin, "out", NULL, "chatml");
    REFUSES(qn_template_create_builtin, "name", &template, NULL);
    REFUSES_TOO(qn_chat_create, NULL);
    REFUSES_TOO(qn_stop_flag_create, NULL);
    REFUSES(qn_chat_add, "chat", NULL, &message);
    REFUSES(qn_chat_add, "message", t->chat, NULL);
    REFUSES(qn_chat_get, "out", NULL, t->chat, 0);
    REFUSES(qn_chat_get, "chat", &message, NULL, 0);
    REFUSES(qn_chat_truncate, "chat", NULL, 0);
    REFUSES(qn_chat_set_system, "chat", NULL, NULL);
    REFUSES(qn_chat_set_messages, "chat", NULL, "[]", 2, NULL);
    REFUSES(qn_chat_set_messages, "json", t->chat, NULL, 0, NULL);
    REFUSES(qn_chat_print_messages, "json", NULL, t->chat);
    REFUSES(qn_chat_print_messages, "chat", &text, NULL);
    REFUSES(qn_chat_set_tools, "chat", NULL, NULL, 0, NULL);
    REFUSES(qn_chat_set_image_opts, "chat", NULL, NULL);
    REFUSES(qn_chat_render, "text", NULL, NULL, t->chat, t->template, NULL, NULL);
    REFUSES(qn_chat_render, "chat", &text, NULL, NULL, t->template, NULL, NULL);
    REFUSES(qn_chat_render, "chat_template", &text, NULL, t->chat, NULL, NULL, NULL);
    REFUSES(qn_chat_make_prompt, "out", NULL, t->chat, t->template, t->tokenizer, NULL);
    REFUSES(qn_chat_make_prompt, "chat", &prompt, NULL, t->template, t->tokenizer, NULL);
    REFUSES(qn_chat_make_prompt, "chat_template", &prompt, t->chat, NULL, t->tokenizer, NULL);
    REFUSES(qn_chat_make_prompt, "tokenizer", &prompt, t->chat, t->template, NULL, NULL);
    REFUSES(qn_chat_find_switch, "out", NULL, t->chat, t->template, NULL, NULL);
    REFUSES(qn_chat_find_switch, "chat", &found, NULL, t->template, NULL, NULL);
    REFUSES(qn_chat_find_switch, "chat_template", &found, t->chat, NULL, NULL, NULL);
    REFUSES(qn_chat_get_parts_opts, "out", NULL, t->chat, NULL, &prompt);
    REFUSES(qn_chat_get_parts_opts, "chat", &parts, NULL, NULL, &prompt);
    REFUSES(qn_chat_get_parts_opts, "prompt", &parts, t->chat, NULL, NULL);
}

static void engines_refuse_null(void **state) {
    const things *t = *state;
    qn_engine *engine;
    qn_template *template;
    qn_memory memory = QN_INIT(qn_memory);
    qn_limits limits = QN_INIT(qn_limits);
    qn_logits logits = QN_INIT(qn_logits);
    qn_engine_info info = QN_INIT(qn_engine_info);
    qn_expert_stats experts = QN_INIT(qn_expert_stats);
    qn_sample_opts sample = QN_INIT(qn_sample_opts);
    qn_cost cost = QN_INIT(qn_cost);
    const qn_step_size step = QN_INIT(qn_step_size, .rows = 1);
    char *text;
    const int32_t ids[] = {1};
    REFUSES(qn_engine_open, "out", NULL, DRAFT, NULL);
    REFUSES_TOO(qn_engine_open, &engine, NULL, NULL);
    REFUSES(qn_engine_profile, "text", NULL, t->engine);
    REFUSES(qn_engine_profile, "engine", &text, NULL);
    REFUSES(qn_engine_expert_stats, "out", NULL, t->engine, -1);
    REFUSES(qn_engine_expert_stats, "engine", &experts, NULL, -1);
    REFUSES(qn_engine_expert_svg, "svg", NULL, t->engine);
    REFUSES(qn_engine_expert_svg, "engine", &text, NULL);
    REFUSES(qn_engine_template, "out", NULL, t->engine, NULL);
    REFUSES(qn_engine_template, "engine", &template, NULL, NULL);
    REFUSES(qn_engine_graph, "text", NULL, t->engine, NULL);
    REFUSES(qn_engine_graph, "engine", &text, NULL, NULL);
    REFUSES(qn_engine_report, "text", NULL, t->engine, QN_REPORT_FUSION);
    REFUSES(qn_engine_report, "engine", &text, NULL, QN_REPORT_FUSION);
    REFUSES(qn_device_get_info, "out", NULL, 0);
    REFUSES(qn_device_check, "name", NULL);
    REFUSES(qn_engine_memory, "out", NULL, t->engine, 0, 0);
    REFUSES(qn_engine_memory, "engine", &memory, NULL, 0, 0);
    REFUSES(qn_machine_limits, "out", NULL, 1);
    REFUSES(qn_device_limits, "out", NULL, "cpu", 1);
    REFUSES(qn_device_limits, "device", &limits, NULL, 1);
    REFUSES(qn_engine_logits, "out", NULL, t->engine, ids, 1, NULL);
    REFUSES(qn_engine_logits, "engine", &logits, NULL, ids, 1, NULL);
    REFUSES_TOO(qn_engine_logits, &logits, t->engine, NULL, 1, NULL);
    REFUSES(qn_engine_replay, "out", NULL, t->engine, "x", NULL);
    REFUSES(qn_engine_replay, "engine", &logits, NULL, "x", NULL);
    REFUSES(qn_engine_replay, "path", &logits, t->engine, NULL, NULL);
    REFUSES_TOO(qn_sample_check, &QN_INIT(qn_sample_opts, .temperature = -1));
    REFUSES(qn_engine_get_info, "out", NULL, t->engine);
    REFUSES(qn_engine_get_info, "engine", &info, NULL);
    REFUSES(qn_engine_sample_defaults, "out", NULL, t->engine);
    REFUSES(qn_engine_sample_defaults, "engine", &sample, NULL);
    REFUSES(qn_engine_cost, "out", NULL, t->engine, &step);
    REFUSES(qn_engine_cost, "engine", &cost, NULL, &step);
    REFUSES(qn_engine_cost, "step", &cost, t->engine, NULL);
}

static void images_refuse_null(void **state) {
    const things *t = *state;
    qn_image *image;
    qn_image_info info = QN_INIT(qn_image_info);
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    int64_t rows, columns;
    int32_t *ids;
    size_t n;
    const int32_t from[] = {1};
    REFUSES(qn_image_open, "out", NULL, "x", NULL);
    REFUSES(qn_image_open, "path", &image, NULL, NULL);
    REFUSES(qn_image_create, "out", NULL, "x", 1, NULL);
    REFUSES(qn_image_create, "data", &image, NULL, 1, NULL);
    REFUSES(qn_image_create_url, "out", NULL, "x", 1, NULL);
    REFUSES(qn_image_create_url, "url", &image, NULL, 1, NULL);
    REFUSES(qn_image_get_info, "image", &info, NULL);
    REFUSES_TOO(qn_image_get_info, NULL, NULL);
    REFUSES(qn_engine_measure_image, "rows", NULL, &columns, t->engine, NULL);
    REFUSES(qn_engine_measure_image, "columns", &rows, NULL, t->engine, NULL);
    REFUSES(qn_engine_measure_image, "engine", &rows, &columns, NULL, NULL);
    REFUSES(qn_engine_measure_image, "image", &rows, &columns, t->engine, NULL);
    REFUSES(qn_engine_expand_images, "ids", NULL, &n, NULL, t->engine, from, 1, NULL, 0);
    REFUSES(qn_engine_expand_images, "n", &ids, NULL, NULL, t->engine, from, 1, NULL, 0);
    REFUSES(qn_engine_expand_images, "engine", &ids, &n, NULL, NULL, from, 1, NULL, 0);
    REFUSES(qn_engine_expand_images, "from", &ids, &n, NULL, t->engine, NULL, 1, NULL, 0);
    REFUSES(qn_engine_expand_images, "images", &ids, &n, NULL, t->engine, from, 1, NULL, 1);
    REFUSES(qn_chat_prompt_expand, "prompt", NULL, t->engine);
    REFUSES(qn_chat_prompt_expand, "engine", &prompt, NULL);
}

static void sessions_refuse_null(void **state) {
    const things *t = *state;
    qn_session *session;
    qn_snapshot *snapshot;
    int32_t token;
    const float *logits;
    qn_session_counts counts = QN_INIT(qn_session_counts);
    const int32_t ids[] = {1};
    REFUSES(qn_session_create, "out", NULL, t->engine, NULL);
    REFUSES(qn_session_create, "engine", &session, NULL, NULL);
    REFUSES(qn_session_set_prompt, "session", NULL, ids, 1);
    REFUSES_TOO(qn_session_set_prompt, t->session, NULL, 1);
    REFUSES(qn_session_set_prompt_images, "session", NULL, ids, 1, NULL, 0);
    REFUSES(qn_session_set_prompt_images, "images", t->session, ids, 1, NULL, 1);
    REFUSES_TOO(qn_session_set_prompt_images, t->session, NULL, 1, NULL, 0);
    REFUSES(qn_session_get_counts, "out", NULL, t->session);
    REFUSES(qn_session_get_counts, "session", &counts, NULL);
    REFUSES(qn_session_mark, "session", NULL, 0);
    REFUSES_TOO(qn_session_step, NULL, t->session, NULL);
    REFUSES_TOO(qn_session_step, &token, NULL, NULL);
    REFUSES_TOO(qn_session_step_naive, NULL, t->session, NULL);
    REFUSES_TOO(qn_session_step_naive, &token, NULL, NULL);
    REFUSES_TOO(qn_session_prefill, NULL, t->session, ids, 1);
    REFUSES_TOO(qn_session_prefill, &logits, NULL, ids, 1);
    REFUSES_TOO(qn_session_feed, NULL, t->session, 1);
    REFUSES_TOO(qn_session_feed, &logits, NULL, 1);
    REFUSES_TOO(qn_session_predict, NULL, t->session, 1);
    REFUSES_TOO(qn_session_predict, &logits, NULL, 1);
    REFUSES_TOO(qn_session_commit, NULL, ids, 1);
    REFUSES_TOO(qn_session_commit, t->session, NULL, 1);
    REFUSES(qn_session_set_adapter, "session", NULL, 0);
    REFUSES(qn_session_truncate, "session", NULL, 0);
    REFUSES(qn_session_fork, "out", NULL, t->session);
    REFUSES(qn_session_fork, "session", &session, NULL);
    REFUSES(qn_session_checkpoint, "out", NULL, t->session);
    REFUSES(qn_session_checkpoint, "session", &snapshot, NULL);
    REFUSES(qn_session_restore, "session", NULL, t->snapshot);
    REFUSES(qn_session_restore, "snapshot", t->session, NULL);
}

static bool write_nothing(void *arg, const void *data, size_t n) {
    (void)arg, (void)data, (void)n;
    return true;
}

static int64_t read_nothing(void *arg, void *to, size_t n, int64_t at) {
    (void)arg, (void)to, (void)n, (void)at;
    return 0;
}

static void states_refuse_null(void **state) {
    const things *t = *state;
    void *data;
    size_t size;
    float x;
    qn_layer_info layer = QN_INIT(qn_layer_info);
    qn_state_info shape = QN_INIT(qn_state_info);
    qn_hidden_info hidden = QN_INIT(qn_hidden_info);
    REFUSES(qn_session_save, "session", NULL, write_nothing, NULL);
    REFUSES(qn_session_save, "fn", t->session, NULL, NULL);
    REFUSES(qn_session_load, "session", NULL, read_nothing, NULL, 0);
    REFUSES(qn_session_load, "fn", t->session, NULL, NULL, 0);
    REFUSES(qn_session_save_bytes, "data", NULL, &size, t->session);
    REFUSES(qn_session_save_bytes, "size", &data, NULL, t->session);
    REFUSES(qn_session_save_bytes, "session", &data, &size, NULL);
    REFUSES(qn_session_load_bytes, "session", NULL, "x", 1);
    REFUSES(qn_session_load_bytes, "data", t->session, NULL, 1);
    REFUSES(qn_session_layer_info, "out", NULL, t->session, 0);
    REFUSES(qn_session_layer_info, "session", &layer, NULL, 0);
    REFUSES(qn_session_read_kv, "session", &x, &x, NULL, 0, 0, 0, 0);
    REFUSES(qn_session_state_info, "out", NULL, t->session, 0, 0);
    REFUSES(qn_session_state_info, "session", &shape, NULL, 0, 0);
    REFUSES(qn_session_read_state, "to", NULL, t->session, 0, 0);
    REFUSES(qn_session_read_state, "session", &x, NULL, 0, 0);
    REFUSES(qn_session_hidden_info, "out", NULL, t->session);
    REFUSES(qn_session_hidden_info, "session", &hidden, NULL);
    REFUSES(qn_session_read_hidden, "to", NULL, t->session, 0, 0, 1);
    REFUSES(qn_session_read_hidden, "session", &x, NULL, 0, 0, 1);
}

static void given_files_refuse_null(void **state) {
    const things *t = *state;
    const qn_model_file file = {.name = "x", .data = "GGUF", .size = 4};
    qn_source *source;
    qn_engine *engine;
    char *json;
    float x;
    REFUSES(qn_source_open_files, "out", NULL, &file, 1);
    REFUSES(qn_source_open_files, "files", &source, NULL, 1);
    REFUSES(qn_engine_open_files, "out", NULL, &file, 1, NULL);
    REFUSES(qn_engine_open_files, "files", &engine, NULL, 1, NULL);
    REFUSES(qn_source_read_rows, "source", &x, NULL, 0, 0, 1);
    REFUSES(qn_source_read_rows, "to", NULL, t->source, 0, 0, 1);
    REFUSES(qn_source_config, "json", NULL, t->source, 0);
    REFUSES(qn_source_config, "source", &json, NULL, 0);
    REFUSES(qn_engine_config, "json", NULL, t->engine);
    REFUSES(qn_engine_config, "engine", &json, NULL);
    REFUSES(qn_engine_split, "json", NULL, t->engine);
    REFUSES(qn_engine_split, "engine", &json, NULL);
    REFUSES(qn_engine_check, "engine", NULL);
    REFUSES(qn_engine_follow, "engine", NULL);
}

static void generations_and_files_refuse_null(void **state) {
    const things *t = *state;
    qn_grammar *grammar;
    qn_batch *batch;
    qn_result result = QN_INIT(qn_result);
    qn_synth_size size = QN_INIT(qn_synth_size);
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    const qn_prompt prompt = {0};
    const qn_grammar_kind json = QN_GRAMMAR_JSON;
    REFUSES(qn_grammar_create, "out", NULL, t->tokenizer, json, "", 0, NULL);
    REFUSES(qn_grammar_create, "tokenizer", &grammar, NULL, json, "", 0, NULL);
    REFUSES(qn_grammar_create, "text", &grammar, t->tokenizer, json, NULL, 3, NULL);
    REFUSES(qn_grammar_create_like, "out", NULL, t->grammar, json, "", 0, NULL);
    REFUSES(qn_grammar_create_like, "other", &grammar, NULL, json, "", 0, NULL);
    REFUSES(qn_grammar_create_like, "text", &grammar, t->grammar, json, NULL, 3, NULL);
    REFUSES(qn_batch_create, "out", NULL, t->engine, NULL);
    REFUSES(qn_batch_create, "engine", &batch, NULL, NULL);
    REFUSES(qn_batch_add, "batch", NULL, NULL, (const int32_t[]){1}, 1, NULL, NULL, NULL);
    REFUSES(qn_batch_add, "ids", NULL, t->batch, NULL, 1, NULL, NULL, NULL);
    REFUSES(qn_batch_step, "batch", NULL, NULL);
    REFUSES(qn_batch_get_counts, "out", NULL, t->batch);
    REFUSES(qn_batch_get_counts, "batch", &counts, NULL);
    REFUSES(qn_generate, "session", &result, NULL, NULL, NULL, NULL);
    REFUSES(qn_generate_batch, "results", NULL, 1, t->session, &prompt, 1, NULL, NULL);
    REFUSES(qn_generate_batch, "session", &result, 1, NULL, &prompt, 1, NULL, NULL);
    REFUSES(qn_generate_batch, "prompts", &result, 1, t->session, NULL, 1, NULL, NULL);
    REFUSES_TOO(qn_quantize, NULL, "x", NULL);
    REFUSES_TOO(qn_quantize, DRAFT, "x", NULL);
    REFUSES_TOO(qn_quantize_check_type, NULL);
    REFUSES_TOO(qn_imatrix, NULL, "x", "x", NULL);
    REFUSES_TOO(qn_convert, NULL, "x", NULL);
    REFUSES_TOO(qn_convert, "x", NULL, NULL);
    REFUSES_TOO(qn_synth, NULL, "Q4_0", "x", NULL);
    REFUSES_TOO(qn_synth_measure, &size, NULL, "Q4_0");
    REFUSES_TOO(qn_synth_measure, NULL, "tiny-llama", "Q4_0");
}

static void samplers_answers_and_embeddings_refuse_null(void **state) {
    const things *t = *state;
    qn_sampler *sampler;
    qn_chat_turn *turn;
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    qn_message message = QN_INIT(qn_message);
    qn_embeddings embeddings = QN_INIT(qn_embeddings);
    qn_logits logits = QN_INIT(qn_logits);
    const qn_event event = QN_INIT(qn_event, .text_size = 3);
    const float row[4] = {0};
    const int32_t ids[] = {1};
    const char *const texts[] = {"a"};
    const qn_prompt prompt = {ids, 1, NULL}, without = {NULL, 1, NULL};
    int32_t token;
    void *data;
    size_t n;
    REFUSES(qn_sampler_create, "out", NULL, NULL, 4, NULL);
    REFUSES_TOO(qn_sampler_create, &sampler, NULL, 0, NULL);
    REFUSES(qn_sampler_set, "sampler", NULL, NULL);
    REFUSES(qn_sampler_choose, "token", NULL, t->sampler, row, 4);
    REFUSES(qn_sampler_choose, "sampler", &token, NULL, row, 4);
    REFUSES(qn_sampler_choose, "logits", &token, t->sampler, NULL, 4);
    REFUSES(qn_sampler_accept_prompt, "sampler", NULL, ids, 1);
    REFUSES(qn_sampler_accept_prompt, "ids", t->sampler, NULL, 1);
    REFUSES(qn_sampler_accept, "sampler", NULL, 1);
    REFUSES_TOO(qn_sampler_reset, NULL);
    REFUSES(qn_sampler_save, "data", NULL, &n, t->sampler);
    REFUSES(qn_sampler_save, "size", &data, NULL, t->sampler);
    REFUSES(qn_sampler_save, "sampler", &data, &n, NULL);
    REFUSES(qn_sampler_load, "sampler", NULL, row, 4);
    REFUSES(qn_sampler_load, "data", t->sampler, NULL, 4);
    REFUSES(qn_engine_embed, "out", NULL, t->engine, &prompt, 1, NULL);
    REFUSES(qn_engine_embed, "engine", &embeddings, NULL, &prompt, 1, NULL);
    REFUSES(qn_engine_embed, "prompts", &embeddings, t->engine, NULL, 1, NULL);
    REFUSES_TOO(qn_engine_embed, &embeddings, t->engine, &without, 1, NULL);
    REFUSES(qn_engine_embed_texts, "out", NULL, t->engine, texts, 1, NULL);
    REFUSES(qn_engine_embed_texts, "engine", &embeddings, NULL, texts, 1, NULL);
    REFUSES(qn_engine_embed_texts, "texts", &embeddings, t->engine, NULL, 1, NULL);
    REFUSES(qn_engine_logits_batch, "outs", NULL, t->engine, &prompt, 1, NULL);
    REFUSES(qn_engine_logits_batch, "engine", &logits, NULL, &prompt, 1, NULL);
    REFUSES(qn_engine_logits_batch, "prompts", &logits, t->engine, NULL, 1, NULL);
    REFUSES_TOO(qn_engine_logits_batch, &logits, t->engine, &without, 1, NULL);
    REFUSES(qn_session_set_prompt_given, "session", NULL, ids, 1, NULL);
    REFUSES_TOO(qn_session_set_prompt_given, t->session, NULL, 1, NULL);
    REFUSES(qn_session_feed_all, "out", NULL, t->session, ids, 1);
    REFUSES_TOO(qn_session_feed_all, &logits, NULL, ids, 1);
    REFUSES(qn_chat_turn_create, "out", NULL, t->chat, t->template, t->engine, 64, NULL);
    REFUSES(qn_chat_turn_create, "chat", &turn, NULL, t->template, t->engine, 64, NULL);
    REFUSES(qn_chat_turn_create, "chat_template", &turn, t->chat, NULL, t->engine, 64, NULL);
    REFUSES(qn_chat_turn_create, "engine", &turn, t->chat, t->template, NULL, 64, NULL);
    REFUSES(qn_chat_turn_get_info, "out", NULL, t->turn);
    REFUSES(qn_chat_turn_get_info, "turn", &info, NULL);
    REFUSES(qn_chat_reply_create, "out", NULL, t->turn);
    REFUSES(qn_chat_reply_feed, "reply", NULL, NULL, &event, NULL, NULL);
    REFUSES(qn_chat_reply_feed, "event", NULL, t->reply, NULL, NULL, NULL);
    REFUSES_TOO(qn_chat_reply_feed, NULL, t->reply, &event, NULL, NULL); // its text
    REFUSES(qn_chat_reply_finish, "reply", NULL, NULL, NULL);
    REFUSES(qn_chat_reply_get_message, "out", NULL, t->reply);
    REFUSES(qn_chat_reply_get_message, "reply", &message, NULL);
    REFUSES(qn_chat_answer, "chat", NULL, NULL, t->session, t->template, NULL, NULL, NULL);
    REFUSES(qn_chat_answer, "session", NULL, t->chat, NULL, t->template, NULL, NULL, NULL);
    REFUSES(qn_chat_answer, "chat_template", NULL, t->chat, t->session, NULL, NULL, NULL, NULL);
}

// What may be NULL by the rules at the top of quern.h, or by the words of a function.
static void null_is_fine_where_the_header_says_so(void **state) {
    const things *t = *state;
    qn_err err;
    int32_t *ids;
    char *text;
    size_t n;
    qn_template *template;
    qn_parts *parts;
    qn_grammar *grammar;
    qn_batch *batch;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    ASSERT_OK(qn_tokenize(&ids, &n, t->tokenizer, NULL, 0, NULL, NULL));
    qn_free(ids);
    ASSERT_OK(qn_detokenize(&text, &n, t->tokenizer, NULL, 0, false, NULL));
    qn_free(text);
    ASSERT_OK(qn_template_create(&template, NULL, 0, NULL));
    ASSERT_OK(qn_template_render(&text, NULL, template, "{\"messages\": []}", 16, NULL, NULL));
    qn_free(text);
    ASSERT_OK(qn_chat_prompt_create(&prompt, template, t->tokenizer, "{\"messages\": []}", 16, NULL,
                                    NULL));
    qn_chat_prompt_deinit(&prompt);
    qn_template_destroy(template);
    ASSERT_OK(qn_parts_create(&parts, NULL, NULL));
    qn_parts_destroy(parts);
    ASSERT_OK(qn_grammar_create(&grammar, t->tokenizer, QN_GRAMMAR_JSON, NULL, 0, NULL, NULL));
    qn_grammar_destroy(grammar);
    ASSERT_OK(qn_engine_graph(&text, t->engine, NULL, NULL));
    qn_free(text);
    ASSERT_OK(qn_sample_check(NULL, &err));
    ASSERT_OK(qn_session_commit(t->session, NULL, 0, &err));
    ASSERT_OK(qn_generate(NULL, t->session, &QN_INIT(qn_generate_opts, .max_tokens = 1), NULL, NULL,
                          NULL));
    ASSERT_OK(qn_batch_create(&batch, t->engine, NULL, NULL));
    ASSERT_OK(qn_batch_add(NULL, batch, (const int32_t[]){1}, 1, NULL, NULL, NULL, NULL));
    ASSERT_OK(qn_batch_step(NULL, batch, NULL));
    qn_batch_destroy(batch);
}

// Comes after the others: what quern.h declares and they did not call has no test.
static void every_function_with_a_status_was_asked(void **state) {
    (void)state;
    char line[256];
    size_t n_found = 0;
    FILE *header = fopen(MODELS "/../include/quern.h", "r");
    assert_non_null(header);
    while (fgets(line, sizeof line, header)) {
        const char *at = strstr(line, "qn_status qn_"), *name = at ? strchr(at, ' ') + 1 : "";
        const size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz_0123456789");
        if (name[n] != '(') continue; // not a declaration
        n_found++;
        if (!was_called(name, n)) fail_msg("nobody asks %.*s", (int)n, name);
    }
    fclose(header);
    assert_true(n_found >= 50);
}

static void nothing_can_be_released(void **state) {
    (void)state;
    qn_free(NULL);
    qn_source_close(NULL);
    qn_tokenizer_close(NULL);
    qn_decoder_destroy(NULL);
    qn_template_destroy(NULL);
    qn_chat_prompt_deinit(NULL);
    qn_parts_destroy(NULL);
    qn_chat_destroy(NULL);
    qn_stop_flag_destroy(NULL);
    qn_engine_close(NULL);
    qn_logits_deinit(NULL);
    qn_session_destroy(NULL);
    qn_snapshot_destroy(NULL);
    qn_grammar_destroy(NULL);
    qn_result_deinit(NULL);
    qn_batch_destroy(NULL);
    qn_sampler_destroy(NULL);
    qn_embeddings_deinit(NULL);
    qn_chat_turn_destroy(NULL);
    qn_chat_reply_destroy(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_tokenizers_and_templates_refuse_null),
        cmocka_unit_test(conversations_refuse_null),
        cmocka_unit_test(engines_refuse_null),
        cmocka_unit_test(images_refuse_null),
        cmocka_unit_test(sessions_refuse_null),
        cmocka_unit_test(states_refuse_null),
        cmocka_unit_test(given_files_refuse_null),
        cmocka_unit_test(generations_and_files_refuse_null),
        cmocka_unit_test(samplers_answers_and_embeddings_refuse_null),
        cmocka_unit_test(null_is_fine_where_the_header_says_so),
        cmocka_unit_test(every_function_with_a_status_was_asked),
        cmocka_unit_test(nothing_can_be_released),
    };
    return cmocka_run_group_tests_name("api_null", tests, make, drop);
}

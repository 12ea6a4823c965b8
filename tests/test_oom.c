// Memory that runs out, at every place where it can. The linker sends all allocations of the
// library through this file (--wrap, tests/CMakeLists.txt), jansson's are sent here at run time,
// and what PCRE2 allocates inside is failed at its calls. Each case runs with the first allocation
// failing, then the second, and so on until it succeeds: every failure must be QN_MEMORY, with a
// message, the result untouched, and nothing leaked.
#include "alloc_rig.h"
#include "testing.h"

#include "ir/text.h"
#include "make/importance.h"
#include "models/model.h"
#include "passes/passes.h"

#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <unistd.h>

char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);

char *__wrap_strdup(const char *text) { return must_fail() ? NULL : counted(__real_strdup(text)); }

char *__wrap_strndup(const char *text, size_t n) {
    return must_fail() ? NULL : counted(__real_strndup(text, n));
}

pcre2_code *__real_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE size, uint32_t options,
                                   int *error, PCRE2_SIZE *offset, pcre2_compile_context *context);
pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE size, uint32_t options,
                                   int *error, PCRE2_SIZE *offset, pcre2_compile_context *context);

pcre2_code *__wrap_pcre2_compile_8(PCRE2_SPTR pattern, PCRE2_SIZE size, uint32_t options,
                                   int *error, PCRE2_SIZE *offset, pcre2_compile_context *context) {
    if (!must_fail()) return __real_pcre2_compile_8(pattern, size, options, error, offset, context);
    *error = PCRE2_ERROR_HEAP_FAILED;
    *offset = 0;
    return NULL;
}

// --- cases ---------------------------------------------------------------------------------------

typedef qn_status attempt(const char *path, qn_err *err);

static qn_status open_source(const char *path, qn_err *err) {
    qn_source *const untouched = (qn_source *)(void *)&countdown;
    qn_source *source = untouched;
    const qn_status status = qn_source_open(&source, path, err);
    if (status)
        assert_ptr_equal(source, untouched);
    else
        qn_source_close(source);
    return status;
}

static qn_status show_keys(const char *path, qn_err *err) {
    qn_source *source;
    QN_TRY(qn_source_open(&source, path, err));
    qn_status status = QN_OK;
    for (size_t i = 0; !status && i < qn_source_n_keys(source); i++) {
        qn_key_info info = QN_INIT(qn_key_info);
        status = qn_source_key_info(&info, source, i, 4, err);
        if (!status) qn_free(info.value);
    }
    qn_source_close(source);
    return status;
}

static qn_status use_tokenizer(const qn_tokenizer *tokenizer, qn_err *err) {
    static const char text[] = "Two caf\xc3\xa9s, <|im_end|> 123 \xf0\x9f\x98\x80 ok.";
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    qn_decoder *decoder = NULL;
    int32_t *ids = NULL;
    char *back = NULL;
    const char *piece;
    size_t n = 0, size;
    qn_status status;
    QN_TRY_TO(done, qn_tokenize(&ids, &n, tokenizer, text, sizeof text - 1, &opts, err));
    QN_TRY_TO(done, qn_detokenize(&back, &size, tokenizer, ids, n, true, err));
    QN_TRY_TO(done, qn_decoder_create(&decoder, tokenizer, err));
    for (size_t i = 0; i < n; i++)
        QN_TRY_TO(done, qn_decoder_next(&piece, &size, decoder, ids[i], err));
    QN_TRY_TO(done, qn_decoder_finish(&piece, &size, decoder, err));
done:
    qn_decoder_destroy(decoder);
    qn_free(back);
    qn_free(ids);
    return status;
}

static qn_status open_tokenizer(const char *path, qn_err *err) {
    qn_tokenizer *const untouched = (qn_tokenizer *)(void *)&countdown;
    qn_tokenizer *tokenizer = untouched;
    qn_status status = qn_tokenizer_open(&tokenizer, path, err);
    if (status) {
        assert_ptr_equal(tokenizer, untouched);
        return status;
    }
    status = use_tokenizer(tokenizer, err);
    qn_tokenizer_close(tokenizer);
    return status;
}

// Every call that may allocate, once.
static qn_status use_parts(qn_session *session, qn_session **fork, qn_snapshot **snapshot,
                           qn_err *err) {
    const int32_t ids[] = {5, 6, 7};
    const qn_sample_opts warm = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 3);
    int32_t token;
    QN_TRY(qn_session_set_prompt(session, ids, 3, err));
    QN_TRY(qn_session_step(&token, session, &warm, err));
    QN_TRY(qn_session_step_naive(&token, session, &warm, err));
    QN_TRY(qn_session_fork(fork, session, err));
    QN_TRY(qn_session_checkpoint(snapshot, session, err));
    return qn_session_step(&token, *fork, &warm, err);
}

// Two prompts, one with two answers, and another session that drafts for them.
static qn_status use_generation(const qn_engine *engine, qn_session *session, qn_session *draft,
                                qn_err *err) {
    static const int32_t ids[] = {5, 6, 7};
    static const char *const stops[] = {"never in this answer"};
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = 4, .min_tokens = 2, .ignore_end = true, .n_top = 2,
                .logprobs = true, .stops = stops, .n_stops = qn_engine_tokenizer(engine) != NULL,
                .draft = draft, .draft_min = 2);
    const qn_prompt prompts[] = {
        {.ids = ids, .n = 3, .opts = &QN_INIT(qn_row_opts, .completions = 2, .generate = &opts)},
        {.ids = ids, .n = 2, .opts = &QN_INIT(qn_row_opts, .generate = &opts)}};
    qn_result results[] = {QN_INIT(qn_result), QN_INIT(qn_result), QN_INIT(qn_result)};
    QN_TRY(qn_generate_batch(results, 3, session, prompts, 2, NULL, NULL, err));
    qn_status status = QN_OK;
    for (int i = 0; i < 3; i++) {
        if (results[i].status) status = QN_FAIL(err, MEMORY, "row %d failed", i);
        if (results[i].status && results[i].status != QN_MEMORY) status = results[i].status;
        qn_result_deinit(&results[i]);
    }
    return status;
}

static qn_status use_session(const qn_engine *engine, qn_err *err) {
    qn_session *session, *fork = NULL;
    qn_snapshot *snapshot = NULL;
    QN_TRY(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 100), err));
    qn_status status = use_parts(session, &fork, &snapshot, err);
    if (!status) status = use_generation(engine, session, fork, err);
    qn_snapshot_destroy(snapshot);
    qn_session_destroy(fork);
    qn_session_destroy(session);
    return status;
}

static qn_status use_engine(const qn_engine *engine, qn_err *err) {
    const int32_t ids[] = {5, 6, 7, 8};
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true, .chunk = 3);
    qn_logits logits = QN_INIT(qn_logits);
    qn_memory memory = QN_INIT(qn_memory);
    char *text;
    QN_TRY(qn_engine_logits(&logits, engine, ids, 4, &opts, err));
    qn_logits_deinit(&logits);
    QN_TRY(qn_engine_memory(&memory, engine, 100, 0, err));
    for (int i = 0; i < 6; i++) {
        const qn_graph_opts graph = QN_INIT(qn_graph_opts, .stage = (qn_graph_stage)(i % 3),
                                            .form = (qn_graph_form)(i / 3), .rows = 1);
        QN_TRY(qn_engine_graph(&text, engine, &graph, err));
        qn_free(text);
    }
    QN_TRY(qn_engine_report(&text, engine, QN_REPORT_FUSION, err));
    qn_free(text);
    return use_session(engine, err);
}

static qn_status open_engine(const char *path, qn_err *err) {
    qn_engine *const untouched = (qn_engine *)(void *)&countdown;
    qn_engine *engine = untouched;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 2);
    qn_status status = qn_engine_open(&engine, path, &opts, err);
    if (status) {
        assert_ptr_equal(engine, untouched);
        return status;
    }
    // Short memory is no reason to go on without a tokenizer.
    assert_non_null(qn_engine_tokenizer(engine));
    status = use_engine(engine, err);
    qn_engine_close(engine);
    return status;
}

// An adapter, in two sets, for a small model.
static qn_status open_adapter(const char *path, qn_err *err) {
    static const int32_t ids[] = {1, 5, 2};
    qn_engine *const untouched = (qn_engine *)(void *)&countdown;
    qn_engine *engine = untouched;
    const qn_adapter list[] = {{.path = path, .scale = 1, .set = 1},
                               {.path = path, .scale = 2, .set = 2},
                               {.path = path, .scale = 1, .set = 2}};
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .adapters = list, .n_adapters = 3);
    qn_logits logits = QN_INIT(qn_logits);
    qn_status status =
        qn_engine_open(&engine, TEST_DATA "/../fuzz/corpus/engine/llama.gguf", &opts, err);
    if (status) {
        assert_ptr_equal(engine, untouched);
        return status;
    }
    status = qn_engine_logits(&logits, engine, ids, 3, &QN_INIT(qn_logits_opts, .adapter = 2), err);
    qn_logits_deinit(&logits);
    qn_engine_close(engine);
    return status;
}

static void count_parts(void *arg, const qn_part *part) { *(size_t *)arg += part->text_size; }

static qn_status use_answer(const qn_tokenizer *tokenizer, const char *prompt, qn_err *err) {
    static const char *const pieces[] = {
        "<think>a</think>b<tool", "_call>{\"name\": \"f\", \"arguments\": {\"a\": 0.1}}",
        "</tool_call><tool_call><function=f><parameter=a>\nb\n</parameter></function></tool_call>",
        "[TOOL_CALLS]f[ARGS]{}"};
    qn_parts *parts = NULL;
    size_t n = 0;
    const qn_parts_opts opts = QN_INIT(qn_parts_opts, .tokenizer = tokenizer, .prompt = prompt,
                                       .prompt_size = strlen(prompt));
    qn_status status = qn_parts_create(&parts, &opts, err);
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces && !status; i++)
        status = qn_parts_feed(parts, -1, pieces[i], strlen(pieces[i]), count_parts, &n, err);
    if (!status) status = qn_parts_finish(parts, count_parts, &n, err);
    qn_parts_destroy(parts);
    return status;
}

// The same by way of a conversation.
static qn_status use_conversation(const qn_template *template, const qn_tokenizer *tokenizer,
                                  qn_err *err) {
    static const char tools[] = "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]";
    const qn_tool_call call = {"f", "{\"a\": [1, 2]}"};
    const qn_message messages[] = {QN_INIT(qn_message, .role = "user", .text = "a", .text_size = 1),
                                   QN_INIT(qn_message, .role = "assistant", .text = "b",
                                           .text_size = 1, .reasoning = "c", .reasoning_size = 1,
                                           .calls = &call, .n_calls = 1)};
    const qn_chat_prompt_opts opts =
        QN_INIT(qn_chat_prompt_opts, .reasoning = QN_REASONING_ON, .kwargs = "{\"x\": 1}");
    qn_chat *chat = NULL;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_reasoning_switch found;
    char *json = NULL;
    qn_status status = QN_OK;
    QN_TRY(qn_chat_create(&chat, err));
    QN_TRY_TO(done, qn_chat_set_system(chat, "s", err));
    QN_TRY_TO(done, qn_chat_set_tools(chat, tools, strlen(tools), NULL, err));
    for (size_t i = 0; i < 2; i++) {
        QN_TRY_TO(done, qn_chat_add(chat, &messages[i], err));
        assert_int_equal(qn_chat_n_messages(chat), 2 + i);
    }
    QN_TRY_TO(done, qn_chat_print_messages(&json, chat, err));
    QN_TRY_TO(done, qn_chat_set_messages(chat, json, strlen(json), NULL, err));
    QN_TRY_TO(done, qn_chat_find_switch(&found, chat, template, tokenizer, &opts, err));
    status = qn_chat_make_prompt(&prompt, chat, template, tokenizer, &opts, err);

done:
    qn_free(json);
    qn_chat_prompt_deinit(&prompt);
    qn_chat_destroy(chat);
    return status;
}

// From messages to the parts of an answer.
static qn_status use_chat(const char *path, qn_err *err) {
    static const char request[] =
        "{\"messages\": [{\"role\": \"system\", \"content\": \"a\"}, {\"role\": \"user\", "
        "\"content\": \"<|im_end|> b\"}]}";
    qn_tokenizer *tokenizer = NULL;
    qn_template *template = NULL;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_status status = qn_tokenizer_open(&tokenizer, path, err);
    if (!status) status = qn_template_open(&template, path, NULL, err);
    if (!status)
        status = qn_chat_prompt_create(&prompt, template, tokenizer, request, strlen(request), NULL,
                                       err);
    if (!status) status = use_answer(tokenizer, prompt.text, err);
    if (!status) status = use_conversation(template, tokenizer, err);
    qn_chat_prompt_deinit(&prompt);
    qn_template_destroy(template);
    qn_tokenizer_close(tokenizer);
    return status;
}

// Fails the n-th allocation for n = 0, 1, 2, ...; the first hundreds one by one, then in growing
// steps, for a tokenizer makes thousands that are alike.
static void starve(attempt *try, const char *path) {
    qn_err err;
    for (long n = 0;; n += 1 + n / 200) {
        const long before = atomic_load(&n_living);
        memset(&err, 0, sizeof err);
        atomic_store(&n_requests, 0);
        atomic_store(&countdown, n);
        const qn_status status = try(path, &err);
        const bool failed_one = atomic_exchange(&countdown, -1) < 0;
        if (atomic_load(&n_living) != before)
            fail_msg("%s: %ld blocks leaked when allocation %ld failed", path,
                     atomic_load(&n_living) - before, n);
        if (!failed_one) {
            if (status) fail_msg("%s: %s, though no allocation failed", path, err.message);
            print_message("%s: %ld allocations\n", path, atomic_load(&n_requests));
            assert_true(n > 3);
            return;
        }
        if (status != QN_MEMORY && status != QN_OK)
            fail_msg("%s: allocation %ld failed and gave %s (%s), want MEMORY", path, n,
                     qn_status_name(status), err.message);
        if (status) assert_true(err.message[0]);
    }
}

#define CASE(name, try, path)                                                                      \
    static void name(void **state) {                                                               \
        (void)state;                                                                               \
        starve(try, TEST_DATA "/mini/" path);                                                      \
    }

CASE(source_gguf, open_source, "qwen3/qwen3-bf16.gguf")
CASE(source_folder, open_source, "qwen3")
CASE(source_file, open_source, "qwen3/model.safetensors")
CASE(keys_gguf, show_keys, "gemma/gemma-bf16.gguf")
CASE(keys_folder, show_keys, "gemma")
CASE(tokenizer_gguf_bpe, open_tokenizer, "qwen3/qwen3-bf16.gguf")
CASE(tokenizer_gguf_sentencepiece, open_tokenizer, "gemma/gemma-bf16.gguf")
CASE(tokenizer_json, open_tokenizer, "qwen3/tokenizer.json")
CASE(tokenizer_model, open_tokenizer, "gemma/tokenizer.model")
CASE(chat_folder, use_chat, "qwen3")
CASE(engine_llama, open_engine, "llama32/llama32-bf16.gguf")
CASE(engine_gemma3_folder, open_engine, "gemma3")
CASE(engine_qwen35moe, open_engine, "qwen35_moe/qwen35_moe-bf16.gguf")

// Of a model that is there, one rank's share through all passes, as text and back.
static const qn_model *shared_model; // of the case below

static qn_status share_model(const char *path, qn_err *err) {
    (void)path;
    qn_graph share = {0}, back = {0};
    qn_buf text = {0};
    qn_status status = QN_OK;
    const qn_pass_opts opts = {.rank = 1, .n_ranks = 3};
    QN_TRY(qn_passes_run(&share, &shared_model->graph_mtp, &opts, NULL, err));
    qn_graph_print(&text, &share);
    status = text.failed ? QN_NOMEM(err, "text") : QN_OK;
    if (!status) status = qn_graph_parse(&back, text.data, text.size, err);
    qn_graph_deinit(&share);
    qn_graph_deinit(&back);
    qn_buf_deinit(&text);
    return status;
}

static void share_of_a_model(void **state) {
    (void)state;
    qn_err err;
    qn_source *source;
    qn_model *model;
    ASSERT_OK(qn_source_open(&source, TEST_DATA "/mini/qwen35_moe", &err));
    ASSERT_OK(qn_model_create(&model, source, &err));
    assert_true(model->graph_mtp.n_nodes > 0);
    shared_model = model;
    starve(share_model, "a share");
    qn_model_destroy(model);
    qn_source_close(source);
}

// An importance file, and what it says of a weight.
static qn_status open_importance(const char *path, qn_err *err) {
    const qn_tensor weight = {
        .name = qn_str_of("blk.0.ffn_gate_exps.weight"), .n_dims = 3, .dims = {4, 8, 32}};
    qn_importance *importance = NULL;
    float *values = NULL;
    QN_TRY(qn_importance_open(&importance, path, err));
    const qn_status status = qn_importance_load(&values, importance, &weight, err);
    assert_true(status || values);
    qn_free(values);
    qn_importance_close(importance);
    return status;
}

static void importance_dat(void **state) {
    (void)state;
    starve(open_importance, TEST_DATA "/../fuzz/corpus/imatrix/small.dat");
}

static void adapter_gguf(void **state) {
    (void)state;
    starve(open_adapter, TEST_DATA "/../fuzz/corpus/adapter/llama.gguf");
}

// Writes a section of the fuzz target's seed as a file of its own.
static void put_section(const char *folder, const char *name, const char *from, size_t n) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(from, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

static void adapter_peft(void **state) {
    (void)state;
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char folder[] = "/tmp/quern-test-XXXXXX", seed[8192], path[256];
    assert_non_null(mkdtemp(folder));
    FILE *f = fopen(TEST_DATA "/../fuzz/corpus/adapter/peft", "rb");
    assert_non_null(f);
    const size_t n = fread(seed, 1, sizeof seed - 1, f);
    fclose(f);
    seed[n] = 0;
    const char *config = strstr(seed, names[0]), *weights = strstr(seed, names[1]);
    assert_true(config && weights);
    config += strlen(names[0]) + 1;
    put_section(folder, names[0], config, (size_t)(weights - strlen("\n===== ") - config));
    weights += strlen(names[1]) + 1;
    put_section(folder, names[1], weights, n - (size_t)(weights - seed));
    starve(open_adapter, folder);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        remove(path);
    }
    assert_int_equal(rmdir(folder), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(source_gguf),
        cmocka_unit_test(source_folder),
        cmocka_unit_test(source_file),
        cmocka_unit_test(keys_gguf),
        cmocka_unit_test(keys_folder),
        cmocka_unit_test(tokenizer_gguf_bpe),
        cmocka_unit_test(tokenizer_gguf_sentencepiece),
        cmocka_unit_test(tokenizer_json),
        cmocka_unit_test(tokenizer_model),
        cmocka_unit_test(chat_folder),
        cmocka_unit_test(engine_llama),
        cmocka_unit_test(engine_gemma3_folder),
        cmocka_unit_test(engine_qwen35moe),
        cmocka_unit_test(share_of_a_model),
        cmocka_unit_test(importance_dat),
        cmocka_unit_test(adapter_gguf),
        cmocka_unit_test(adapter_peft),
    };
    atomic_store(&countdown, -1);
    json_set_alloc_funcs(json_alloc, free); // `free` is the wrapped one here
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Structs of quern.h from callers that were compiled with another edition of it: the library goes
// by the size that they begin with. The layout itself is compared by layout_test.sh.
#include "testing.h"

#include "core/structs.h"

#include <stdio.h>

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"
#define PNG   TEST_DATA "/mini/qwen35_vl/image.png"

// --- two editions of a struct --------------------------------------------------------------------

typedef struct old {
    size_t size;
    int64_t a;
} old;
typedef struct new {
    size_t size;
    int64_t a, b, c;
}
new;
static const qn_struct kind = {"thing", sizeof(old), sizeof(new)};

// A field that the caller does not have yet is its default.
static void an_old_caller_gets_defaults(void **state) {
    (void)state;
    qn_err err;
    struct {
        old opts;
        int64_t after[2];
    } caller = {{sizeof(old), 7}, {8, 9}};
    new got = {1, 2, 3, 4};
    ASSERT_OK(qn_struct_read(&got, &caller.opts, &kind, &err));
    assert_int_equal(got.size, sizeof(new));
    assert_int_equal(got.a, 7);
    assert_int_equal(got.b, 0);
    assert_int_equal(got.c, 0);
    ASSERT_OK(qn_struct_read(&got, NULL, &kind, &err));
    assert_int_equal(got.size, sizeof(new));
    assert_int_equal(got.a, 0);
}

static void an_old_caller_is_written_no_further(void **state) {
    (void)state;
    struct {
        old result;
        int64_t after[2];
    } caller = {{sizeof(old), 7}, {8, 9}};
    const new from = {0, 1, 2, 3};
    assert_int_equal(qn_struct_check(&caller.result, &kind, NULL), QN_OK);
    qn_struct_write(&caller.result, &from, &kind);
    assert_int_equal(caller.result.size, sizeof(old));
    assert_int_equal(caller.result.a, 1);
    assert_int_equal(caller.after[0], 8);
    qn_struct_clear(&caller.result, &kind);
    assert_int_equal(caller.result.size, sizeof(old));
    assert_int_equal(caller.result.a, 0);
    assert_int_equal(caller.after[0], 8);
}

// A caller between the editions has a part of the new fields.
static void a_caller_in_between_has_a_part(void **state) {
    (void)state;
    qn_err err;
    new got, caller = {offsetof(new, c), 5, 6, 7};
    ASSERT_OK(qn_struct_read(&got, &caller, &kind, &err));
    assert_int_equal(got.b, 6);
    assert_int_equal(got.c, 0);
    qn_struct_write(&caller, &(new){0, 1, 2, 3}, &kind);
    assert_int_equal(caller.b, 2);
    assert_int_equal(caller.c, 7);
}

static void a_later_caller_may_say_nothing_new(void **state) {
    (void)state;
    qn_err err;
    struct {
        new opts;
        unsigned char later[16];
    } caller = {{sizeof caller, 1, 2, 3}, {0}};
    new got = {0};
    ASSERT_OK(qn_struct_read(&got, &caller, &kind, &err));
    assert_int_equal(got.c, 3);
    caller.later[15] = 1;
    got.a = 99;
    ASSERT_FAILS(qn_struct_read(&got, &caller, &kind, &err), QN_ARGUMENT,
                 "thing: byte 47 of 48 is set");
    ASSERT_FAILS(qn_struct_read(&got, &caller, &kind, &err), QN_ARGUMENT, "it has 32 bytes");
    assert_int_equal(got.a, 99);
    qn_struct_write(&caller, &(new){0, 4, 5, 6}, &kind);
    assert_int_equal(caller.opts.size, sizeof caller);
    assert_int_equal(caller.opts.c, 6);
    assert_int_equal(caller.later[15], 1);
}

static void a_wrong_size_is_named(void **state) {
    (void)state;
    qn_err err;
    new got = {0};
    const size_t sizes[] = {0, 1, sizeof(size_t), sizeof(old) - 1, 1 << 17, SIZE_MAX};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const new caller = {.size = sizes[i]};
        char want[64];
        snprintf(want, sizeof want, "thing: size %zu, want at least 16", sizes[i]);
        ASSERT_FAILS(qn_struct_read(&got, &caller, &kind, &err), QN_ARGUMENT, want);
        ASSERT_FAILS(qn_struct_check(&caller, &kind, &err), QN_ARGUMENT, want);
    }
    assert_int_equal(got.size, 0);
}

// --- every call ----------------------------------------------------------------------------------

// What the calls need.
static struct {
    qn_source *source;
    qn_engine *engine;
    const qn_tokenizer *tokenizer;
    qn_template *template;
    qn_chat *chat;
    qn_session *session;
    qn_batch *batch;
} t;
static const int32_t ids[] = {1, 2, 3};
static const char request[] = "{\"messages\": []}";

static int make(void **state) {
    (void)state;
    qn_err err;
    const qn_status statuses[] = {
        qn_source_open(&t.source, DRAFT, &err),
        qn_engine_open(&t.engine, DRAFT, NULL, &err),
        qn_template_create(&t.template, "x", 1, &err),
        qn_chat_create(&t.chat, &err),
        qn_chat_add(t.chat, &QN_INIT(qn_message, .role = "user"), &err),
        qn_session_create(&t.session, t.engine, &QN_INIT(qn_session_opts, .context = 64), &err),
        qn_session_set_prompt(t.session, ids, 3, &err),
        qn_batch_create(&t.batch, t.engine, &QN_INIT(qn_batch_opts, .context = 64), &err),
    };
    t.tokenizer = qn_engine_tokenizer(t.engine);
    for (size_t i = 0; i < sizeof statuses / sizeof *statuses; i++) {
        if (statuses[i]) return -1;
    }
    return 0;
}

static int drop(void **state) {
    (void)state;
    qn_batch_destroy(t.batch);
    qn_session_destroy(t.session);
    qn_chat_destroy(t.chat);
    qn_template_destroy(t.template);
    qn_engine_close(t.engine);
    qn_source_close(t.source);
    return 0;
}

// A call with options, and another where they are used by way of a pointer; what it makes is
// released.
#define CALL(name, ...)                                                                            \
    static qn_status name(const void *o, qn_err *err) { __VA_ARGS__ }
CALL(tokenize, int32_t *out = NULL; size_t n;
     const qn_status status = qn_tokenize(&out, &n, t.tokenizer, "a", 1, o, err); qn_free(out);
     return status;)
CALL(render, char *text = NULL;
     const qn_status status = qn_template_render(&text, NULL, t.template, request, strlen(request),
                                                 o, err);
     qn_free(text); return status;)
CALL(prompt, qn_chat_prompt p = QN_INIT(qn_chat_prompt);
     const qn_status status = qn_chat_prompt_create(&p, t.template, t.tokenizer, request,
                                                    strlen(request), o, err);
     qn_chat_prompt_deinit(&p); return status;)
CALL(message, return qn_chat_add(t.chat, o, err);)
CALL(render_chat, char *text = NULL;
     const qn_status status = qn_chat_render(&text, NULL, t.chat, t.template, NULL, o, err);
     qn_free(text); return status;)
CALL(prompt_chat, qn_chat_prompt p = QN_INIT(qn_chat_prompt);
     const qn_status status = qn_chat_make_prompt(&p, t.chat, t.template, t.tokenizer, o, err);
     qn_chat_prompt_deinit(&p); return status;)
CALL(find_switch, qn_reasoning_switch found;
     return qn_chat_find_switch(&found, t.chat, t.template, NULL, o, err);)
CALL(parts, qn_parts *p = NULL; const qn_status status = qn_parts_create(&p, o, err);
     qn_parts_destroy(p); return status;)
CALL(open_engine, qn_engine *e = NULL; const qn_status status = qn_engine_open(&e, DRAFT, o, err);
     qn_engine_close(e); return status;)
CALL(open_files, qn_engine *e = NULL; return qn_engine_open_files(&e, NULL, 0, o, err);)
CALL(graph, char *text = NULL; const qn_status status = qn_engine_graph(&text, t.engine, o, err);
     qn_free(text); return status;)
CALL(cost, qn_cost c = QN_INIT(qn_cost); return qn_engine_cost(&c, t.engine, o, err);)
CALL(logits, qn_logits l = QN_INIT(qn_logits);
     const qn_status status = qn_engine_logits(&l, t.engine, ids, 3, o, err); qn_logits_deinit(&l);
     return status;)
CALL(replay, qn_logits l = QN_INIT(qn_logits);
     return qn_engine_replay(&l, t.engine, "/nowhere", o, err);)
CALL(check, return qn_sample_check(o, err);)
CALL(step, int32_t token; qn_status status = qn_session_set_prompt(t.session, ids, 3, err);
     return status ? status : qn_session_step(&token, t.session, o, err);)
CALL(step_naive, int32_t token; qn_status status = qn_session_set_prompt(t.session, ids, 3, err);
     return status ? status : qn_session_step_naive(&token, t.session, o, err);)
CALL(create_session, qn_session *s = NULL;
     const qn_status status = qn_session_create(&s, t.engine, o, err); qn_session_destroy(s);
     return status;)
CALL(grammar, qn_grammar *g = NULL;
     const qn_status status = qn_grammar_create(&g, t.tokenizer, QN_GRAMMAR_REGEX, "a", 1, o, err);
     qn_grammar_destroy(g); return status;)
CALL(generate, qn_status status = qn_session_set_prompt(t.session, ids, 3, err);
     return status ? status : qn_generate(NULL, t.session, o, NULL, NULL, err);)
CALL(create_batch, qn_batch *b = NULL;
     const qn_status status = qn_batch_create(&b, t.engine, o, err); qn_batch_destroy(b);
     return status;)
CALL(add, return qn_batch_add(NULL, t.batch, ids, 3, o, NULL, NULL, err);)
CALL(add_generate, const qn_row_opts row = QN_INIT(qn_row_opts, .generate = o);
     return qn_batch_add(NULL, t.batch, ids, 3, &row, NULL, NULL, err);)
CALL(generate_sample,
     const qn_generate_opts g = QN_INIT(qn_generate_opts, .sample = o, .max_tokens = 1);
     return generate(&g, err);)
CALL(generate_batch, const qn_prompt p = {ids, 3, o}; qn_result r = QN_INIT(qn_result);
     const qn_status status = qn_generate_batch(&r, 1, t.session, &p, 1, NULL, NULL, err);
     qn_result_deinit(&r); return status;)
CALL(make_turn, qn_chat_turn *turn = NULL;
     const qn_status status = qn_chat_turn_create(&turn, t.chat, t.template, t.engine, 64, o, err);
     qn_chat_turn_destroy(turn); return status;)
CALL(create_sampler, qn_sampler *s = NULL;
     const qn_status status = qn_sampler_create(&s, t.tokenizer, 0, o, err); qn_sampler_destroy(s);
     return status;)
CALL(embed, qn_embeddings e = QN_INIT(qn_embeddings); const qn_prompt p = {ids, 3, NULL};
     const qn_status status = qn_engine_embed(&e, t.engine, &p, 1, o, err);
     qn_embeddings_deinit(&e); return status;)
CALL(embed_prompt, qn_embeddings e = QN_INIT(qn_embeddings); const qn_prompt p = {ids, 3, o};
     const qn_status status = qn_engine_embed(&e, t.engine, &p, 1, NULL, err);
     qn_embeddings_deinit(&e); return status;)
CALL(logits_batch, qn_logits l = QN_INIT(qn_logits); const qn_prompt p = {ids, 3, NULL};
     const qn_status status = qn_engine_logits_batch(&l, t.engine, &p, 1, o, err);
     qn_logits_deinit(&l); return status;)
CALL(set_given, return qn_session_set_prompt_given(t.session, ids, 3, o, err);)
CALL(quantize, return qn_quantize("/nowhere/a", "/nowhere/b", o, err);)
CALL(imatrix, return qn_imatrix("/nowhere/a", "/nowhere/b", "/nowhere/c", o, err);)
CALL(convert, return qn_convert("/nowhere/a", "/nowhere/b", o, err);)
CALL(open_image, qn_image *i = NULL; const qn_status status = qn_image_open(&i, PNG, o, err);
     qn_image_destroy(i); return status;)
CALL(create_image, qn_image *i = NULL; return qn_image_create(&i, "GIF89a", 6, o, err);)
CALL(create_image_url, qn_image *i = NULL; return qn_image_create_url(&i, "http:", 5, o, err);)
CALL(synth, return qn_synth("qwen3-0.6b", "Q8_0", "/nowhere/b", o, err);)
#undef CALL

static const struct option_call {
    const char *name; // of the struct
    size_t first, size;
    qn_status (*call)(const void *opts, qn_err *err);
} option_calls[] = {
#define ROW(type, call)                                                                            \
    { #type, type##_first_size, sizeof(type), call }
    ROW(qn_image_opts, open_image),
    ROW(qn_image_opts, create_image),
    ROW(qn_image_opts, create_image_url),
    ROW(qn_message, message),
    ROW(qn_chat_prompt_opts, render_chat),
    ROW(qn_chat_prompt_opts, prompt_chat),
    ROW(qn_chat_prompt_opts, find_switch),
    ROW(qn_tokenize_opts, tokenize),
    ROW(qn_template_opts, render),
    ROW(qn_template_opts, prompt),
    ROW(qn_parts_opts, parts),
    ROW(qn_engine_opts, open_engine),
    ROW(qn_engine_opts, open_files),
    ROW(qn_graph_opts, graph),
    ROW(qn_step_size, cost),
    ROW(qn_logits_opts, logits),
    ROW(qn_logits_opts, replay),
    ROW(qn_sample_opts, check),
    ROW(qn_sample_opts, step),
    ROW(qn_sample_opts, step_naive),
    ROW(qn_sample_opts, generate_sample),
    ROW(qn_session_opts, create_session),
    ROW(qn_grammar_opts, grammar),
    ROW(qn_generate_opts, generate),
    ROW(qn_generate_opts, add_generate),
    ROW(qn_batch_opts, create_batch),
    ROW(qn_row_opts, add),
    ROW(qn_row_opts, generate_batch),
    ROW(qn_chat_opts, make_turn),
    ROW(qn_sample_opts, create_sampler),
    ROW(qn_embed_opts, embed),
    ROW(qn_row_opts, embed_prompt),
    ROW(qn_logits_opts, logits_batch),
    ROW(qn_given, set_given),
    ROW(qn_quantize_opts, quantize),
    ROW(qn_imatrix_opts, imatrix),
    ROW(qn_convert_opts, convert),
    ROW(qn_synth_opts, synth),
#undef ROW
};
enum { N_OPTION_CALLS = sizeof option_calls / sizeof *option_calls, LATER = 24 };

static void every_call_goes_by_the_size_of_its_options(void **state) {
    (void)state;
    for (size_t i = 0; i < N_OPTION_CALLS; i++) {
        const struct option_call *c = &option_calls[i];
        qn_err err = {0};
        union {
            size_t size;
            unsigned char bytes[1024];
        } opts = {.bytes = {0}};
        char want[128];
        const size_t wrong[] = {0, c->first - 1};
        for (size_t k = 0; k < 2; k++) {
            opts.size = wrong[k];
            snprintf(want, sizeof want, "%s: size %zu, want at least %zu", c->name, wrong[k],
                     c->first);
            ASSERT_FAILS(c->call(&opts, &err), QN_ARGUMENT, want);
        }
        opts.size = c->size;
        const qn_status own = c->call(&opts, &err);
        if (own == QN_ARGUMENT && strstr(err.message, c->name)) fail_msg("%s", err.message);
        opts.size = c->size + LATER;
        assert_int_equal(c->call(&opts, &err), own);
        opts.bytes[c->size + LATER - 1] = 0x80;
        snprintf(want, sizeof want, "%s: byte %zu of %zu is set", c->name, c->size + LATER - 1,
                 c->size + LATER);
        ASSERT_FAILS(c->call(&opts, &err), QN_ARGUMENT, want);
    }
}

// --- results -------------------------------------------------------------------------------------

#define CALL(name, ...)                                                                            \
    static qn_status name(void *out, qn_err *err) { __VA_ARGS__ }
CALL(key_info, return qn_source_key_info(out, t.source, 0, 1, err);)
CALL(get_tensor, return qn_source_tensor_info(out, t.source, 0, err);)
CALL(get_tokenizer, return qn_tokenizer_get_info(out, t.tokenizer, err);)
CALL(make_prompt, return qn_chat_prompt_create(out, t.template, t.tokenizer, request,
                                               strlen(request), NULL, err);)
CALL(get_image, qn_image *i = NULL; qn_status status = qn_image_open(&i, PNG, NULL, err);
     if (!status) status = qn_image_get_info(out, i, err); qn_image_destroy(i); return status;)
CALL(get_message, return qn_chat_get(out, t.chat, 0, err);)
CALL(get_parts, qn_chat_prompt p = QN_INIT(qn_chat_prompt);
     return qn_chat_get_parts_opts(out, t.chat, t.tokenizer, &p, err);)
CALL(get_engine, return qn_engine_get_info(out, t.engine, err);)
CALL(get_experts, return qn_engine_expert_stats(out, t.engine, -1, err);)
CALL(get_device, return qn_device_get_info(out, 0, err);)
CALL(get_memory, return qn_engine_memory(out, t.engine, 64, 0, err);)
CALL(get_cost, return qn_engine_cost(out, t.engine, &QN_INIT(qn_step_size, .rows = 1), err);)
CALL(get_logits, return qn_engine_logits(out, t.engine, ids, 3, NULL, err);)
CALL(get_defaults, return qn_engine_sample_defaults(out, t.engine, err);)
CALL(get_session, return qn_session_get_counts(out, t.session, err);)
CALL(get_layer, return qn_session_layer_info(out, t.session, 0, err);)
// Of sessions of their own: with hidden rows, and of a model with recurrent layers.
CALL(get_hidden, qn_session *s = NULL;
     const qn_session_opts o = QN_INIT(qn_session_opts, .context = 64, .hidden = 1);
     qn_status status = qn_session_create(&s, t.engine, &o, err);
     if (!status) status = qn_session_hidden_info(out, s, err); qn_session_destroy(s);
     return status;)
CALL(get_state, qn_engine *e = NULL; qn_session *s = NULL;
     qn_status status = qn_engine_open(&e, TEST_DATA "/mini/qwen35", NULL, err);
     if (!status) status = qn_session_create(&s, e, &QN_INIT(qn_session_opts, .context = 64), err);
     if (!status) status = qn_session_state_info(out, s, 0, 0, err); qn_session_destroy(s);
     qn_engine_close(e); return status;)
CALL(get_batch, return qn_batch_get_counts(out, t.batch, err);)
CALL(get_result, qn_status status = qn_session_set_prompt(t.session, ids, 3, err);
     return status ? status
                   : qn_generate(out, t.session, &QN_INIT(qn_generate_opts, .max_tokens = 2), NULL,
                                 NULL, err);)
CALL(get_results, const qn_prompt p = {ids, 3, NULL};
     return qn_generate_batch(out, 1, t.session, &p, 1, NULL, NULL, err);)
CALL(get_turn, qn_chat_turn *turn = NULL;
     qn_status status = qn_chat_turn_create(&turn, t.chat, t.template, t.engine, 64, NULL, err);
     if (!status) status = qn_chat_turn_get_info(out, turn, err); qn_chat_turn_destroy(turn);
     return status;)
CALL(get_reply, qn_chat_reply *reply = NULL;
     qn_status status = qn_chat_reply_create(&reply, NULL, err);
     if (!status) status = qn_chat_reply_get_message(out, reply, err); qn_chat_reply_destroy(reply);
     return status;)
CALL(get_embeddings, const qn_prompt p = {ids, 3, NULL};
     return qn_engine_embed(out, t.engine, &p, 1, NULL, err);)
CALL(get_logits_batch, const qn_prompt p = {ids, 3, NULL};
     return qn_engine_logits_batch(out, t.engine, &p, 1, NULL, err);)
CALL(get_fed, const float *logits;
     const qn_status status = qn_session_prefill(&logits, t.session, ids, 3, err);
     return status ? status : qn_session_feed_all(out, t.session, ids, 2, err);)
CALL(get_synth, return qn_synth_measure(out, "qwen3-0.6b", "Q8_0", err);)
#undef CALL

static void free_key(void *out) { qn_free(((qn_key_info *)out)->value); }
static void free_prompt(void *out) { qn_chat_prompt_deinit(out); }
static void free_logits(void *out) { qn_logits_deinit(out); }
static void free_embeddings(void *out) { qn_embeddings_deinit(out); }
static void free_result(void *out) { qn_result_deinit(out); }

static const struct result_call {
    const char *name;
    size_t first, size;
    qn_status (*call)(void *out, qn_err *err);
    void (*free)(void *out); // NULL: nothing to release
} result_calls[] = {
#define ROW(type, call, free)                                                                      \
    { #type, type##_first_size, sizeof(type), call, free }
    ROW(qn_key_info, key_info, free_key),
    ROW(qn_tensor_info, get_tensor, NULL),
    ROW(qn_tokenizer_info, get_tokenizer, NULL),
    ROW(qn_chat_prompt, make_prompt, free_prompt),
    ROW(qn_image_info, get_image, NULL),
    ROW(qn_message, get_message, NULL),
    ROW(qn_parts_opts, get_parts, NULL),
    ROW(qn_engine_info, get_engine, NULL),
    ROW(qn_device_info, get_device, NULL),
    ROW(qn_expert_stats, get_experts, NULL),
    ROW(qn_memory, get_memory, NULL),
    ROW(qn_cost, get_cost, NULL),
    ROW(qn_logits, get_logits, free_logits),
    ROW(qn_sample_opts, get_defaults, NULL),
    ROW(qn_session_counts, get_session, NULL),
    ROW(qn_layer_info, get_layer, NULL),
    ROW(qn_hidden_info, get_hidden, NULL),
    ROW(qn_state_info, get_state, NULL),
    ROW(qn_batch_counts, get_batch, NULL),
    ROW(qn_result, get_result, free_result),
    ROW(qn_result, get_results, free_result),
    ROW(qn_chat_turn_info, get_turn, NULL),
    ROW(qn_message, get_reply, NULL),
    ROW(qn_embeddings, get_embeddings, free_embeddings),
    ROW(qn_logits, get_logits_batch, free_logits),
    ROW(qn_logits, get_fed, free_logits),
    ROW(qn_synth_size, get_synth, NULL),
#undef ROW
};
enum { N_RESULT_CALLS = sizeof result_calls / sizeof *result_calls, FILLER = 0x5a };

static bool is_filler(const unsigned char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (bytes[i] != FILLER) return false;
    }
    return true;
}

static void every_call_goes_by_the_size_of_its_result(void **state) {
    (void)state;
    for (size_t i = 0; i < N_RESULT_CALLS; i++) {
        const struct result_call *c = &result_calls[i];
        qn_err err = {0};
        union {
            size_t size;
            unsigned char bytes[1024];
        } out;
        char want[128];
        const size_t wrong[] = {0, c->first - 1}, word = sizeof(size_t);
        memset(&out, FILLER, sizeof out);
        for (size_t k = 0; k < 2; k++) {
            out.size = wrong[k];
            snprintf(want, sizeof want, "%s: size %zu, want at least %zu", c->name, wrong[k],
                     c->first);
            ASSERT_FAILS(c->call(&out, &err), QN_ARGUMENT, want);
            assert_true(is_filler(out.bytes + word, sizeof out - word));
            if (c->free && c->free != free_key) c->free(&out); // was never filled: no harm
            assert_true(is_filler(out.bytes + word, sizeof out - word));
        }
        for (size_t later = 0; later <= LATER; later += LATER) {
            out.size = c->size + later;
            ASSERT_OK(c->call(&out, &err));
            assert_int_equal(out.size, c->size + later);
            assert_false(is_filler(out.bytes + word, c->size - word));
            assert_true(is_filler(out.bytes + c->size, sizeof out - c->size));
            if (c->free) c->free(&out);
            assert_int_equal(out.size, c->size + later);
            assert_true(is_filler(out.bytes + c->size, sizeof out - c->size));
        }
    }
}

// Results side by side are as far apart as their size says, and all of one size.
static void results_of_a_batch_have_the_callers_stride(void **state) {
    (void)state;
    typedef struct later {
        qn_result result;
        int64_t more[3];
    } later;
    qn_err err;
    const qn_row_opts row = QN_INIT(
        qn_row_opts, .generate = &QN_INIT(qn_generate_opts, .max_tokens = 2, .ignore_end = true));
    const qn_prompt prompts[] = {{ids, 3, &row}, {ids, 2, &row}};
    later got[2] = {{{.size = sizeof *got}, {1, 2, 3}}, {{.size = sizeof *got}, {4, 5, 6}}};
    ASSERT_OK(qn_generate_batch(&got[0].result, 2, t.session, prompts, 2, NULL, NULL, &err));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(got[i].result.n_tokens, 2);
        assert_int_equal(got[i].result.n_prompt, 3 - i);
        assert_int_equal(got[i].more[0], 1 + 3 * i);
        qn_result_deinit(&got[i].result);
        assert_int_equal(got[i].result.size, sizeof *got);
    }
    got[1].result.size = sizeof(qn_result);
    char want[64];
    snprintf(want, sizeof want, "qn_result 1: size %zu, the first one's is %zu", sizeof(qn_result),
             sizeof *got);
    ASSERT_FAILS(qn_generate_batch(&got[0].result, 2, t.session, prompts, 2, NULL, NULL, &err),
                 QN_ARGUMENT, want);
}

// --- callbacks -----------------------------------------------------------------------------------

typedef struct seen {
    size_t event, result, trace, part, logits, chat; // sizes
} seen;

static bool see_event(void *arg, const qn_event *event) {
    seen *s = arg;
    s->event = event->size;
    if (event->result) s->result = event->result->size;
    return true;
}

static void see_trace(void *arg, const qn_trace_event *event) {
    ((seen *)arg)->trace = event->size;
}

static void see_part(void *arg, const qn_part *part) { ((seen *)arg)->part = part->size; }

static bool see_logits(void *arg, const qn_next_logits *next) {
    ((seen *)arg)->logits = next->size;
    return true;
}

static bool see_chat(void *arg, const qn_chat_event *event) {
    ((seen *)arg)->chat = event->size;
    return true;
}

static void callbacks_are_told_sizes(void **state) {
    (void)state;
    qn_err err;
    qn_session *session;
    qn_parts *p;
    seen s = {0};
    const qn_session_opts opts =
        QN_INIT(qn_session_opts, .context = 64, .trace = see_trace, .trace_arg = &s);
    ASSERT_OK(qn_session_create(&session, t.engine, &opts, &err));
    ASSERT_OK(qn_session_set_prompt(session, ids, 3, &err));
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = 2, .logits_fn = see_logits, .logits_arg = &s);
    ASSERT_OK(qn_generate(NULL, session, &generate, see_event, &s, &err));
    qn_chat *chat;
    ASSERT_OK(qn_chat_create(&chat, &err));
    ASSERT_OK(qn_chat_answer(NULL, chat, session, t.template,
                             &QN_INIT(qn_chat_opts, .generate = &generate), see_chat, &s, &err));
    qn_chat_destroy(chat);
    ASSERT_OK(qn_parts_create(&p, NULL, &err));
    ASSERT_OK(qn_parts_feed(p, -1, "text", 4, see_part, &s, &err));
    ASSERT_OK(qn_parts_finish(p, see_part, &s, &err));
    qn_parts_destroy(p);
    qn_session_destroy(session);
    assert_int_equal(s.event, sizeof(qn_event));
    assert_int_equal(s.result, sizeof(qn_result));
    assert_int_equal(s.trace, sizeof(qn_trace_event));
    assert_int_equal(s.part, sizeof(qn_part));
    assert_int_equal(s.logits, sizeof(qn_next_logits));
    assert_int_equal(s.chat, sizeof(qn_chat_event));
}

// Every struct of the table is asked for above, or filled by the library for a callback, or in a
// call that takes seconds (qn_limits).
static void every_struct_was_asked(void **state) {
    (void)state;
    static const char *const others[] = {"qn_part",        "qn_event",      "qn_trace_event",
                                         "qn_next_logits", "qn_chat_event", "qn_limits"};
    static const char *const all[] = {
#define QN_STRUCT(type, last) #type,
#include "core/structs.def"
#undef QN_STRUCT
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool is_there = false;
        for (size_t k = 0; k < N_OPTION_CALLS; k++)
            is_there |= strcmp(all[i], option_calls[k].name) == 0;
        for (size_t k = 0; k < N_RESULT_CALLS; k++)
            is_there |= strcmp(all[i], result_calls[k].name) == 0;
        for (size_t k = 0; k < sizeof others / sizeof *others; k++)
            is_there |= strcmp(all[i], others[k]) == 0;
        if (!is_there) fail_msg("nobody asks for %s", all[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_old_caller_gets_defaults),
        cmocka_unit_test(an_old_caller_is_written_no_further),
        cmocka_unit_test(a_caller_in_between_has_a_part),
        cmocka_unit_test(a_later_caller_may_say_nothing_new),
        cmocka_unit_test(a_wrong_size_is_named),
        cmocka_unit_test(every_call_goes_by_the_size_of_its_options),
        cmocka_unit_test(every_call_goes_by_the_size_of_its_result),
        cmocka_unit_test(results_of_a_batch_have_the_callers_stride),
        cmocka_unit_test(callbacks_are_told_sizes),
        cmocka_unit_test(every_struct_was_asked),
    };
    return cmocka_run_group_tests_name("api_abi", tests, make, drop);
}

// From a model to an answer, as far as a program would go: what the fuzz targets of whole models
// do.
#ifndef QN_TESTS_FUZZ_ANSWER_H
#define QN_TESTS_FUZZ_ANSWER_H

#include <quern.h>

#include <stdlib.h>
#include <string.h>

// A failure has words.
static inline bool fuzz_failed(qn_status status, const qn_err *err) {
    if (status && (err->status != status || !err->message[0])) abort();
    return status != QN_OK;
}

static inline void fuzz_use_text(const qn_engine *engine) {
    static const char text[] = "Hello <|im_end|> w\xc3\xb6rld 12";
    static const char request[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"low\"}]}";
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    qn_template *chat_template = NULL;
    qn_err err = {0};
    int32_t *ids = NULL;
    size_t n = 0, size = 0;
    char *back = NULL;
    if (!tokenizer) return;
    if (!fuzz_failed(qn_tokenize(&ids, &n, tokenizer, text, sizeof text - 1, &opts, &err), &err) &&
        !fuzz_failed(qn_detokenize(&back, &size, tokenizer, ids, n, true, &err), &err))
        qn_free(back);
    qn_free(ids);
    if (fuzz_failed(qn_engine_template(&chat_template, engine, NULL, &err), &err)) return;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    if (!fuzz_failed(qn_chat_prompt_create(&prompt, chat_template, tokenizer, request,
                                           sizeof request - 1, NULL, &err),
                     &err))
        qn_chat_prompt_deinit(&prompt);
    qn_template_destroy(chat_template);
}

static inline void fuzz_use_weights(qn_engine *engine) {
    static const int32_t ids[] = {1, 5, 2};
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 2);
    qn_err err = {0};
    qn_logits logits = QN_INIT(qn_logits);
    qn_session *session = NULL;
    qn_result result = QN_INIT(qn_result);
    if (!fuzz_failed(qn_engine_logits(&logits, engine, ids, 3, NULL, &err), &err))
        qn_logits_deinit(&logits);
    if (fuzz_failed(
            qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 16), &err),
            &err))
        return;
    if (!fuzz_failed(qn_session_set_prompt(session, ids, 3, &err), &err) &&
        !fuzz_failed(qn_generate(&result, session, &opts, NULL, NULL, &err), &err))
        qn_result_deinit(&result);
    qn_session_destroy(session);
}

static inline int fuzz_answer(const char *path, bool has_weights) {
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = !has_weights);
    qn_engine *engine = NULL;
    qn_err err = {0};
    char *graph = NULL;
    if (fuzz_failed(qn_engine_open(&engine, path, &opts, &err), &err)) return 0;
    fuzz_use_text(engine);
    if (!fuzz_failed(
            qn_engine_graph(&graph, engine, &QN_INIT(qn_graph_opts, .stage = QN_STAGE_LOW), &err),
            &err))
        qn_free(graph);
    if (has_weights) fuzz_use_weights(engine);
    qn_engine_close(engine);
    return 0;
}

#endif

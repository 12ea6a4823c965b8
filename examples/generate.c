// generate.c: the loop from prompts to answers. It asks a chat model several questions at once, each
// with two answers, and lets a smaller model guess ahead: the answers are the same without it.
//
//   cc generate.c $(pkg-config --cflags --libs quern) -o generate
//   ./generate model.gguf draft.gguf "What is 12 + 30?" "Tell me a story."
#include <quern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ANSWERS = 2, MOST_QUESTIONS = 8, MOST_PROMPT = 2048 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((call) != QN_OK) goto failed;                                                          \
    } while (0)

// A question as the bundled models expect it; qn_template does this for any model.
static qn_status read_question(qn_prompt *to, const qn_tokenizer *tokenizer, const char *question,
                               qn_err *err) {
    const qn_tokenize_opts special = QN_INIT(qn_tokenize_opts, .special = true);
    char text[MOST_PROMPT];
    int32_t *ids;
    const int size = snprintf(text, sizeof text,
                              "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n", question);
    if (size < 0 || (size_t)size >= sizeof text) {
        snprintf(err->message, sizeof err->message, "a question of %zu bytes, at most %d fit",
                 strlen(question), MOST_PROMPT);
        return QN_LIMIT;
    }
    const qn_status status =
        qn_tokenize(&ids, &to->n, tokenizer, text, strlen(text), &special, err);
    if (status == QN_OK) to->ids = ids;
    return status;
}

// Called for every token of every answer; event->text is what can be shown of it. Returning false
// would end that answer, and no other.
static bool count(void *arg, const qn_event *event) {
    int *n_tokens = arg;
    if (event->token >= 0) n_tokens[event->row]++;
    return true;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL, *draft_engine = NULL;
    qn_session *session = NULL, *draft = NULL;
    qn_prompt prompts[MOST_QUESTIONS] = {0};
    qn_result answers[MOST_QUESTIONS * ANSWERS];
    int n_tokens[MOST_QUESTIONS * ANSWERS] = {0}, status = 1;
    const int n = argc - 3;

    if (n < 1 || n > MOST_QUESTIONS) {
        fprintf(stderr, "usage: %s MODEL DRAFT QUESTION... (at most %d)\n", argv[0],
                MOST_QUESTIONS);
        return 2;
    }
    for (int i = 0; i < n * ANSWERS; i++) answers[i] = QN_INIT(qn_result);
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    CHECK(qn_engine_open(&draft_engine, argv[2], NULL, &err));
    CHECK(qn_session_create(&session, engine, NULL, &err));
    CHECK(qn_session_create(&draft, draft_engine, NULL, &err));

    const char *const stops[] = {"\n\n"};
    const qn_sample_opts sample =
        QN_INIT(qn_sample_opts, .temperature = 0.7f, .top_k = 40, .seed = 1);
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .sample = &sample, .max_tokens = 60, .stops = stops, .n_stops = 1,
                .draft = draft, .lookup = true);
    const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &opts, .completions = ANSWERS);
    for (int i = 0; i < n; i++) {
        prompts[i] = (qn_prompt){.opts = &row};
        CHECK(read_question(&prompts[i], qn_engine_tokenizer(engine), argv[3 + i], &err));
    }
    CHECK(qn_generate_batch(answers, (size_t)n * ANSWERS, session, prompts, (size_t)n, count,
                            n_tokens, &err));
    for (int i = 0; i < n * ANSWERS; i++) {
        if (i % ANSWERS == 0) printf("%s\n", argv[3 + i / ANSWERS]);
        printf("  %s [%d tokens, %s]\n", answers[i].text, n_tokens[i],
               qn_reason_name(answers[i].reason));
    }
    status = 0;
    goto done;

failed:
    fprintf(stderr, "%s: %s\n", argv[0], err.message);
done:
    for (int i = 0; i < n * ANSWERS; i++) qn_result_deinit(&answers[i]);
    for (int i = 0; i < n; i++) qn_free((void *)prompts[i].ids);
    qn_session_destroy(draft);
    qn_session_destroy(session);
    qn_engine_close(draft_engine);
    qn_engine_close(engine);
    return status;
}

// rows.c: a prompt of numbers. The embeddings of two texts are mixed, row by row, and given to the
// model in place of tokens: half of one, half of the other.
//
//   cc rows.c $(pkg-config --cflags --libs quern) -o rows
//   ./rows model.gguf "Once upon a time there was a cat" "Once upon a time there was a dog"
#include <quern.h>

#include <stdio.h>
#include <string.h>

enum { MOST_TOKENS = 24 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((status = (call)) != QN_OK) goto done;                                                 \
    } while (0)

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    int32_t *ids[2] = {NULL};
    size_t n[2];
    qn_logits hidden[2] = {QN_INIT(qn_logits), QN_INIT(qn_logits)};
    qn_result result = QN_INIT(qn_result);
    qn_status status;
    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL TEXT TEXT\n", argv[0]);
        return 2;
    }
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    CHECK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 256), &err));
    for (int i = 0; i < 2; i++)
        CHECK(qn_tokenize(&ids[i], &n[i], qn_engine_tokenizer(engine), argv[2 + i],
                          strlen(argv[2 + i]), &QN_INIT(qn_tokenize_opts, .add_ends = true), &err));
    // The first hidden states of a text are its embeddings. Both texts in one call.
    const qn_prompt prompts[2] = {{ids[0], n[0], NULL}, {ids[1], n[1], NULL}};
    CHECK(qn_engine_logits_batch(hidden, engine, prompts, 2,
                                 &QN_INIT(qn_logits_opts, .hidden = true), &err));
    const size_t rows = n[0] < n[1] ? n[0] : n[1];
    float *mixed = hidden[0].hidden;
    for (size_t i = 0; i < rows * (size_t)hidden[0].width; i++)
        mixed[i] = 0.5f * mixed[i] + 0.5f * hidden[1].hidden[i];
    const qn_given given = QN_INIT(qn_given, .rows = mixed, .n_rows = rows);
    CHECK(qn_session_set_prompt_given(session, ids[0], rows, &given, &err));
    CHECK(qn_generate(&result, session, &QN_INIT(qn_generate_opts, .max_tokens = MOST_TOKENS), NULL,
                      NULL, &err));
    printf("%s\n", result.text);
done:
    if (status != QN_OK) fprintf(stderr, "%s: %s\n", argv[0], err.message);
    qn_result_deinit(&result);
    for (int i = 0; i < 2; i++) {
        qn_logits_deinit(&hidden[i]);
        qn_free(ids[i]);
    }
    qn_session_destroy(session);
    qn_engine_close(engine);
    return status != QN_OK;
}

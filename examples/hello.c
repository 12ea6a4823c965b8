// hello.c: the whole of Quern's library in one small program. It opens a model, shows the five best
// next tokens after a prompt, then lets the model go on with the text.
//
//   cc hello.c $(pkg-config --cflags --libs quern) -o hello
//   ./hello model.gguf "Once upon a time"
//
// Where Quern is not in a folder of the system, PKG_CONFIG_PATH=PREFIX/lib/pkgconfig finds it for
// the first line, LD_LIBRARY_PATH=PREFIX/lib for the second.
#include <quern.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { BEST = 5, NEW_TOKENS = 16 };

// Every call that can fail returns a status and fills `err`; this is all there is to error
// handling.
#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((call) != QN_OK) goto failed;                                                          \
    } while (0)

// `scores` (n_vocab) is written over: a token that was printed is not found again.
static qn_status print_best(const qn_tokenizer *tokenizer, float *scores, int32_t n_vocab,
                            qn_err *err) {
    for (int i = 0; i < BEST && i < n_vocab; i++) {
        int32_t best = 0;
        for (int32_t id = 1; id < n_vocab; id++)
            if (scores[id] > scores[best]) best = id;

        char *text;
        size_t size;
        const qn_status status = qn_detokenize(&text, &size, tokenizer, &best, 1, true, err);
        if (status != QN_OK) return status;
        printf("%8.2f  '%s'\n", (double)scores[best], text);
        qn_free(text);
        scores[best] = -INFINITY;
    }
    return QN_OK;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_decoder *decoder = NULL;
    int32_t *ids = NULL; // (n)
    size_t n = 0;
    qn_logits scores = QN_INIT(qn_logits);
    int status = 1;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    if (!tokenizer) {
        fprintf(stderr, "%s has no tokenizer\n", argv[1]);
        goto done;
    }

    const qn_tokenize_opts ends = QN_INIT(qn_tokenize_opts, .add_ends = true);
    CHECK(qn_tokenize(&ids, &n, tokenizer, argv[2], strlen(argv[2]), &ends, &err));
    CHECK(qn_engine_logits(&scores, engine, ids, n, NULL, &err));
    CHECK(print_best(tokenizer, scores.logits, (int32_t)scores.n_vocab, &err));

    CHECK(qn_session_create(&session, engine, NULL, &err));
    CHECK(qn_session_set_prompt(session, ids, n, &err));
    CHECK(qn_decoder_create(&decoder, tokenizer, &err));
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts, .temperature = 0);
    const char *text; // belongs to the decoder, until its next call
    size_t size;
    printf("%s", argv[2]);
    for (int i = 0; i < NEW_TOKENS; i++) {
        int32_t id;
        CHECK(qn_session_step(&id, session, &greedy, &err));
        if (qn_tokenizer_is_end(tokenizer, id)) break;
        CHECK(qn_decoder_next(&text, &size, decoder, id, &err));
        fwrite(text, 1, size, stdout);
        fflush(stdout);
    }
    CHECK(qn_decoder_finish(&text, &size, decoder, &err));
    printf("%.*s\n", (int)size, text);
    status = 0;
    goto done;

failed:
    fprintf(stderr, "%s: %s\n", argv[0], err.message);
done:
    qn_decoder_destroy(decoder);
    qn_session_destroy(session);
    qn_logits_deinit(&scores);
    qn_free(ids);
    qn_engine_close(engine);
    return status;
}

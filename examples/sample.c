// sample.c: the parts of generation in a program's own hands. First a loop that chooses tokens with
// a sampler from logits that the program has, then an answer with hooks: one that forbids a letter,
// and one that drafts.
//
//   cc sample.c $(pkg-config --cflags --libs quern) -lm -o sample
//   ./sample model.gguf "Once upon a time"
#include <quern.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N_TOKENS = 20 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((status = (call)) != QN_OK) goto done;                                                 \
    } while (0)

// Tokens with this letter are never chosen.
typedef struct ban {
    const qn_tokenizer *tokenizer;
    char letter;
} ban;

static bool forbid(void *arg, const qn_next_logits *next) {
    const ban *b = arg;
    for (int32_t id = 0; id < next->n_vocab; id++) {
        size_t size = 0;
        const char *piece = qn_tokenizer_piece(b->tokenizer, id, &size);
        if (piece && memchr(piece, b->letter, size)) next->logits[id] = -INFINITY;
    }
    return true;
}

// Guesses that the last token comes again: rarely right, and never wrong in what is printed.
static int32_t guess(void *arg, int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    (void)arg, (void)max;
    to[0] = tokens[n - 1];
    return 1;
}

static qn_status choose_all(qn_session *session, qn_sampler *sampler, size_t n_vocab,
                            const int32_t *ids, size_t n, const qn_tokenizer *tokenizer,
                            qn_err *err) {
    const float *logits;
    qn_status status;
    qn_decoder *decoder = NULL;
    CHECK(qn_decoder_create(&decoder, tokenizer, err));
    CHECK(qn_sampler_accept_prompt(sampler, ids, n, err));
    CHECK(qn_session_prefill(&logits, session, ids, n, err));
    for (int i = 0; i < N_TOKENS; i++) {
        int32_t token;
        const char *text;
        size_t size;
        CHECK(qn_sampler_choose(&token, sampler, logits, n_vocab, err));
        CHECK(qn_sampler_accept(sampler, token, err));
        CHECK(qn_decoder_next(&text, &size, decoder, token, err));
        fwrite(text, 1, size, stdout);
        CHECK(qn_session_feed(&logits, session, token, err));
    }
    putchar('\n');
done:
    qn_decoder_destroy(decoder);
    return status;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_sampler *sampler = NULL;
    qn_result result = QN_INIT(qn_result);
    qn_engine_info info = QN_INIT(qn_engine_info);
    int32_t *ids = NULL;
    size_t n;
    qn_status status;
    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL TEXT\n", argv[0]);
        return 2;
    }
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    CHECK(qn_engine_get_info(&info, engine, &err));
    const qn_tokenizer *tokenizer = qn_engine_tokenizer(engine);
    const qn_sample_opts opts = QN_INIT(qn_sample_opts, .temperature = 0.7f, .seed = 1,
                                        .repeat_penalty = 1.1f, .flags = QN_SAMPLE_REPEAT_EACH);
    ban b = {tokenizer, 'e'};
    const qn_generate_opts generate =
        QN_INIT(qn_generate_opts, .max_tokens = N_TOKENS, .logits_fn = forbid, .logits_arg = &b,
                .draft_fn = guess, .draft_min = 1);
    CHECK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 256), &err));
    CHECK(qn_sampler_create(&sampler, tokenizer, info.n_vocab, &opts, &err));
    CHECK(qn_tokenize(&ids, &n, tokenizer, argv[2], strlen(argv[2]),
                      &QN_INIT(qn_tokenize_opts, .add_ends = true), &err));
    CHECK(choose_all(session, sampler, (size_t)info.n_vocab, ids, n, tokenizer, &err));
    CHECK(qn_session_set_prompt(session, ids, n, &err));
    CHECK(qn_generate(&result, session, &generate, NULL, NULL, &err));
    printf("without the letter e:%s\n", result.text);
done:
    if (status != QN_OK) fprintf(stderr, "%s: %s\n", argv[0], err.message);
    qn_free(ids);
    qn_result_deinit(&result);
    qn_sampler_destroy(sampler);
    qn_session_destroy(session);
    qn_engine_close(engine);
    return status != QN_OK;
}

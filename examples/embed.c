// embed.c: which of several texts is nearest to the first? Embeddings of all of them in one call,
// and the cosine of the angle between each and the first.
//
//   cc embed.c $(pkg-config --cflags --libs quern) -lm -o embed
//   ./embed model.gguf "a cat sleeps" "the cat is asleep" "stock prices fell"
#include <quern.h>

#include <stdio.h>

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_embeddings e = QN_INIT(qn_embeddings);
    const qn_embed_opts opts =
        QN_INIT(qn_embed_opts, .pooling = QN_POOLING_MEAN, .normalize = true);
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL TEXT...\n", argv[0]);
        return 2;
    }
    qn_status status = qn_engine_open(&engine, argv[1], NULL, &err);
    if (!status)
        status = qn_engine_embed_texts(&e, engine, (const char *const *)argv + 2, (size_t)argc - 2,
                                       &opts, &err);
    for (int64_t i = 0; !status && i < e.n; i++) {
        double cosine = 0; // of rows that have a length of 1
        for (int64_t k = 0; k < e.width; k++)
            cosine += (double)e.rows[k] * (double)e.rows[i * e.width + k];
        printf("%.3f  %s\n", cosine, argv[2 + i]);
    }
    if (status) fprintf(stderr, "%s: %s\n", argv[0], err.message);
    qn_embeddings_deinit(&e);
    qn_engine_close(engine);
    return status != QN_OK;
}

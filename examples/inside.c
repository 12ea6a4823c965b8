// inside.c: what a model is and what a session holds. It opens a model from memory, prints a part of
// its configuration and of a tensor, runs a prompt, and looks at keys and hidden rows.
//
//   cc inside.c $(pkg-config --cflags --libs quern) -o inside
//   ./inside model.gguf "Once upon a time"
#include <quern.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((call) != QN_OK) goto failed;                                                          \
    } while (0)

// A whole file in memory; a program would have it from elsewhere.
static void *read_all(const char *path, int64_t *size) {
    FILE *f = fopen(path, "rb");
    void *data = NULL;
    if (f && fseek(f, 0, SEEK_END) == 0 && (*size = ftell(f)) > 0) data = malloc((size_t)*size);
    if (data && (fseek(f, 0, SEEK_SET) != 0 || fread(data, 1, (size_t)*size, f) != (size_t)*size)) {
        free(data);
        data = NULL;
    }
    if (f) fclose(f);
    return data;
}

static qn_status show_source(const qn_model_file *file, qn_err *err) {
    qn_source *source = NULL;
    qn_tensor_info tensor = QN_INIT(qn_tensor_info);
    float *row = NULL;
    size_t i = 0;
    qn_status status = qn_source_open_files(&source, file, 1, err);
    if (status == QN_OK) status = qn_source_tensor_info(&tensor, source, i, err);
    while (status == QN_OK && strcmp(tensor.name, "token_embd.weight") != 0)
        status = qn_source_tensor_info(&tensor, source, ++i, err); // after the last: an error
    if (status == QN_OK) {
        row = malloc((size_t)tensor.dims[tensor.n_dims - 1] * sizeof *row);
        status = row ? qn_source_read_rows(row, source, i, 1, 1, err) : QN_MEMORY;
    }
    if (status == QN_OK)
        printf("%s (%s): row 1 begins with %.5f %.5f\n", tensor.name, tensor.type, (double)row[0],
               (double)row[1]);
    free(row);
    qn_source_close(source);
    return status;
}

static qn_status show_layer(qn_session *session, int64_t layer, qn_err *err) {
    qn_layer_info info = QN_INIT(qn_layer_info);
    qn_status status = qn_session_layer_info(&info, session, layer, err);
    if (status != QN_OK || info.n_heads == 0) return status;
    const int64_t last = (int64_t)qn_session_cached(session) - 1;
    float *key = malloc((size_t)info.key_size * sizeof *key);
    status = key ? qn_session_read_kv(key, NULL, session, layer, 0, last, 1, err) : QN_MEMORY;
    if (status == QN_OK)
        printf("layer %lld: %lld heads of %lld; the last key begins with %.4f\n", (long long)layer,
               (long long)info.n_heads, (long long)info.key_size, (double)key[0]);
    free(key);
    return status;
}

static qn_status show_hidden(const qn_session *session, qn_err *err) {
    qn_hidden_info info = QN_INIT(qn_hidden_info);
    qn_status status = qn_session_hidden_info(&info, session, err);
    if (status != QN_OK || info.n_rows == 0) return status;
    float *row = malloc((size_t)info.width * sizeof *row);
    status = row ? qn_session_read_hidden(row, session, info.n_hidden - 1,
                                          info.first + info.n_rows - 1, 1, err)
                 : QN_MEMORY;
    if (status == QN_OK)
        printf("the last of %lld hidden rows begins with %.4f\n", (long long)info.n_hidden,
               (double)row[0]);
    free(row);
    return status;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = 256, .hidden = 1);
    const float *logits;
    char *config = NULL;
    int32_t *ids = NULL;
    size_t n;
    int status = 1;

    if (argc != 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT\n", argv[0]);
        return 2;
    }
    qn_model_file file = {.name = "model.gguf"};
    void *data = read_all(argv[1], &file.size);
    file.data = data;
    if (!data) {
        fprintf(stderr, "cannot read %s\n", argv[1]);
        return 1;
    }
    CHECK(show_source(&file, &err));
    CHECK(qn_engine_open_files(&engine, &file, 1, NULL, &err));
    CHECK(qn_engine_config(&config, engine, &err));
    const char *found = strstr(config, "\"architecture\"");
    printf("%.*s\n", found ? (int)strcspn(found, ",") : 0, found ? found : "");
    CHECK(qn_session_create(&session, engine, &opts, &err));
    CHECK(qn_tokenize(&ids, &n, qn_engine_tokenizer(engine), argv[2], strlen(argv[2]), NULL, &err));
    CHECK(qn_session_prefill(&logits, session, ids, n, &err));
    CHECK(show_layer(session, 0, &err));
    CHECK(show_hidden(session, &err));
    status = 0;

failed:
    if (status) fprintf(stderr, "%s\n", err.message);
    qn_session_destroy(session);
    qn_engine_close(engine);
    qn_free(config);
    qn_free(ids);
    free(data);
    return status;
}

// state.c: a session to bytes and back. It answers a question, saves the session to a file, and
// goes on with it in another session on another device: the same tokens, without reading the prompt
// again.
//
//   cc state.c $(pkg-config --cflags --libs quern) -o state
//   ./state model.gguf saved.state "Once upon a time"
#include <quern.h>

#include <stdio.h>
#include <string.h>

enum { N_FIRST = 8, N_MORE = 12 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((call) != QN_OK) goto failed;                                                          \
    } while (0)

static bool write_file(void *arg, const void *data, size_t n) {
    return fwrite(data, 1, n, arg) == n;
}

static int64_t read_file(void *arg, void *to, size_t n, int64_t at) {
    if (fseek(arg, (long)at, SEEK_SET) != 0) return -1;
    return (int64_t)fread(to, 1, n, arg);
}

static qn_status save(qn_session *session, const char *path, qn_err *err) {
    FILE *f = fopen(path, "wb");
    if (!f) return QN_IO;
    const qn_status status = qn_session_save(session, write_file, f, err);
    return fclose(f) == 0 ? status : QN_IO;
}

static qn_status load(qn_session *session, const char *path, qn_err *err) {
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END) != 0) return QN_IO;
    const qn_status status = qn_session_load(session, read_file, f, ftell(f), err);
    fclose(f);
    return status;
}

static qn_status go_on(qn_session *session, int n, qn_err *err) {
    qn_result result = QN_INIT(qn_result);
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = n);
    const qn_status status = qn_generate(&result, session, &opts, NULL, NULL, err);
    if (status == QN_OK) printf("%s\n", result.text);
    qn_result_deinit(&result);
    return status;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL, *other = NULL;
    qn_session *session = NULL, *resumed = NULL;
    qn_session_counts counts = QN_INIT(qn_session_counts);
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = 256);
    const qn_engine_opts plain = QN_INIT(qn_engine_opts, .device = "ref");
    int32_t *ids = NULL;
    size_t n;
    int status = 1;

    if (argc != 4) {
        fprintf(stderr, "usage: %s MODEL FILE PROMPT\n", argv[0]);
        return 2;
    }
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    CHECK(qn_session_create(&session, engine, &opts, &err));
    CHECK(qn_tokenize(&ids, &n, qn_engine_tokenizer(engine), argv[3], strlen(argv[3]), NULL, &err));
    CHECK(qn_session_set_prompt(session, ids, n, &err));
    CHECK(go_on(session, N_FIRST, &err));
    CHECK(save(session, argv[2], &err));
    CHECK(go_on(session, N_MORE, &err));

    CHECK(qn_engine_open(&other, argv[1], &plain, &err));
    CHECK(qn_session_create(&resumed, other, &opts, &err));
    CHECK(load(resumed, argv[2], &err));
    CHECK(go_on(resumed, N_MORE, &err));
    CHECK(qn_session_get_counts(&counts, resumed, &err));
    printf("computed after loading: %lld tokens\n", (long long)counts.rows);
    status = 0;

failed:
    if (status) fprintf(stderr, "%s\n", err.message[0] ? err.message : "the file failed");
    qn_session_destroy(session);
    qn_session_destroy(resumed);
    qn_engine_close(engine);
    qn_engine_close(other);
    qn_free(ids);
    return status;
}

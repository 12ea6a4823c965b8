// Embeddings over HTTP: the library's numbers to the last bit, in all forms, within limits, and
// beside answers.
#include "serve_rig.h"

#include "core/mem.h"

#include <math.h>
#include <stdatomic.h>

static int64_t int_at(const json_t *value, const char *path) {
    const json_t *n = json_at(value, path);
    if (!json_is_integer(n)) fail_msg("there is no whole number at %s", path);
    return json_integer_value(n);
}

// --- what the library says -----------------------------------------------------------------------

static qn_engine *open_bundled(void) {
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(rig_open(NULL, &engine, NULL, MODELS "/quern-mini-Q8_0.gguf", &err));
    return engine;
}

// Release with qn_embeddings_deinit.
static qn_embeddings embed_texts(const qn_engine *engine, const char *const *texts, size_t n,
                                 qn_pooling pooling, bool normalize) {
    qn_err err;
    qn_embeddings out = QN_INIT(qn_embeddings);
    const qn_embed_opts opts = QN_INIT(qn_embed_opts, .pooling = pooling, .normalize = normalize);
    ASSERT_OK(qn_engine_embed_texts(&out, engine, texts, n, &opts, &err));
    return out;
}

// The first numbers, scaled to a length of 1.
static void cut(float *to, const float *row, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)row[i] * (double)row[i];
    for (int64_t i = 0; i < n; i++) to[i] = (float)((double)row[i] / sqrt(sum));
}

// --- what the server says ------------------------------------------------------------------------

static size_t value_of(char letter) {
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = strchr(letters, letter);
    assert_true(at && letter);
    return (size_t)(at - letters);
}

// Numbers of base64 text, least significant byte first.
static size_t read_base64(float *to, size_t max, const char *text) {
    uint32_t held = 0, bits = 0;
    size_t n_held = 0, n_bytes = 0;
    assert_int_equal(strlen(text) % 4, 0);
    for (; *text && *text != '='; text++) {
        held = held << 6 | (uint32_t)value_of(*text);
        n_held += 6;
        if (n_held < 8) continue;
        n_held -= 8;
        bits |= (held >> n_held & 0xff) << n_bytes % 4 * 8;
        if (++n_bytes % 4) continue;
        assert_true(n_bytes / 4 <= max);
        memcpy(&to[n_bytes / 4 - 1], &bits, sizeof bits);
        bits = 0;
    }
    assert_int_equal(n_bytes % 4, 0);
    return n_bytes / 4;
}

static void assert_row(const json_t *got, const float *want, int64_t width, const char *what) {
    float row[4096];
    size_t n = 0;
    if (json_is_string(got)) {
        n = read_base64(row, 4096, json_string_value(got));
    } else {
        for (; n < json_array_size(got); n++) {
            assert_true(json_is_number(json_array_get(got, n)) && n < 4096);
            row[n] = (float)json_number_value(json_array_get(got, n));
        }
    }
    assert_int_equal(n, width);
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&row[i], &want[i], sizeof *row) != 0)
            fail_msg("%s, number %zu: %.17g, want %.17g", what, i, (double)row[i], (double)want[i]);
    }
}

static void assert_answer(const json_t *a, const qn_embeddings *want, const char *what) {
    assert_string_equal(text_at(a, "object"), "list");
    assert_string_equal(text_at(a, "model"), "quern-mini-Q8_0");
    assert_int_equal(json_array_size(json_at(a, "data")), want->n);
    assert_int_equal(int_at(a, "usage.prompt_tokens"), want->n_tokens);
    assert_int_equal(int_at(a, "usage.total_tokens"), want->n_tokens);
    for (int64_t i = 0; i < want->n; i++) {
        const json_t *one = json_array_get(json_at(a, "data"), (size_t)i);
        assert_string_equal(text_at(one, "object"), "embedding");
        assert_int_equal(int_at(one, "index"), i);
        assert_row(json_at(one, "embedding"), want->rows + i * want->width, want->width, what);
    }
}

// --- tests ---------------------------------------------------------------------------------------

static void embeddings_are_the_librarys(void **state) {
    static const char *const texts[] = {"Hello world", "A lemon is yellow.", "<|im_start|>"};
    static const struct {
        const char *path, *body;
        size_t n;
        qn_pooling pooling;
    } cases[] = {
        {"/v1/embeddings", "{\"input\": \"Hello world\"}", 1, QN_POOLING_AUTO},
        {"/embeddings", "{\"input\": [\"Hello world\", \"A lemon is yellow.\"]}", 2,
         QN_POOLING_AUTO},
        {"/embedding", "{\"content\": [\"Hello world\", \"A lemon is yellow.\"]}", 2,
         QN_POOLING_AUTO},
        {"/v1/embeddings",
         "{\"input\": [\"Hello world\", \"A lemon is yellow.\", "
         "\"<|im_start|>\"], \"encoding_format\": \"base64\"}",
         3, QN_POOLING_AUTO},
        {"/v1/embeddings",
         "{\"input\": \"Hello world\", \"pooling\": \"last\", "
         "\"encoding_format\": \"float\"}",
         1, QN_POOLING_LAST},
        {"/v1/embeddings", "{\"input\": \"Hello world\", \"pooling\": \"mean\"}", 1,
         QN_POOLING_MEAN},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    qn_engine *engine = open_bundled();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_embeddings want = embed_texts(engine, texts, cases[i].n, cases[i].pooling, true);
        json_t *a = post_json(&rig, cases[i].path, cases[i].body, 200);
        assert_answer(a, &want, cases[i].body);
        json_decref(a);
        qn_embeddings_deinit(&want);
    }
    qn_engine_close(engine);
    serve_stop(&rig);
}

static void ids_are_taken_as_they_are(void **state) {
    static const int32_t first[] = {1222, 281, 93}, second[] = {44};
    const qn_prompt prompts[] = {{first, 3, NULL}, {second, 1, NULL}};
    serve_rig rig;
    qn_err err;
    (void)state;
    serve_start(&rig, NULL);
    qn_engine *engine = open_bundled();
    for (size_t n = 1; n <= 2; n++) {
        qn_embeddings want = QN_INIT(qn_embeddings);
        ASSERT_OK(qn_engine_embed(&want, engine, prompts, n,
                                  &QN_INIT(qn_embed_opts, .normalize = true), &err));
        json_t *a = post_json(
            &rig, "/v1/embeddings",
            n == 1 ? "{\"input\": [1222, 281, 93]}" : "{\"input\": [[1222, 281, 93], [44]]}", 200);
        assert_answer(a, &want, "ids");
        json_decref(a);
        qn_embeddings_deinit(&want);
    }
    qn_engine_close(engine);
    serve_stop(&rig);
}

static void dimensions_are_the_first_ones_scaled(void **state) {
    enum { N = 5 };
    static const char *const texts[] = {"A lemon is yellow."};
    serve_rig rig;
    float want[N];
    (void)state;
    serve_start(&rig, NULL);
    qn_engine *engine = open_bundled();
    qn_embeddings all = embed_texts(engine, texts, 1, QN_POOLING_AUTO, false);
    cut(want, all.rows, N);
    for (int form = 0; form < 2; form++) {
        json_t *a = post_json(&rig, "/v1/embeddings",
                              form ? "{\"input\": \"A lemon is yellow.\", \"dimensions\": 5}"
                                   : "{\"input\": \"A lemon is yellow.\", \"dimensions\": 5, "
                                     "\"encoding_format\": \"base64\"}",
                              200);
        assert_row(json_at(a, "data.0.embedding"), want, N, "dimensions");
        json_decref(a);
    }
    qn_embeddings_deinit(&all);
    qn_engine_close(engine);
    serve_stop(&rig);
}

// Inputs of all lengths in one request, which are computed in several groups.
static void many_inputs_are_each_their_own(void **state) {
    enum { N = 50 };
    serve_rig rig;
    qn_buf body = {0};
    char *texts[N];
    (void)state;
    serve_start(&rig, &(qn_server_opts){.context = 256});
    qn_buf_text(&body, "{\"input\": [");
    for (size_t i = 0; i < N; i++) {
        qn_buf text = {0};
        for (size_t k = 0; k <= i * 7 % 40; k++) qn_buf_printf(&text, "word %zu ", i + k);
        qn_buf_printf(&body, "%s\"%s\"", i ? ", " : "", text.data);
        texts[i] = text.data;
    }
    qn_buf_text(&body, "], \"encoding_format\": \"base64\"}");
    qn_engine *engine = open_bundled();
    qn_embeddings want = embed_texts(engine, (const char *const *)texts, N, QN_POOLING_AUTO, true);
    json_t *a = post_json(&rig, "/v1/embeddings", body.data, 200);
    assert_answer(a, &want, "many");
    json_decref(a);
    qn_embeddings_deinit(&want);
    for (size_t i = 0; i < N; i++) qn_free(texts[i]);
    qn_buf_deinit(&body);
    qn_engine_close(engine);
    serve_stop(&rig);
}

static void what_does_not_fit_is_refused_or_cut(void **state) {
    enum { CONTEXT = 16 };
    serve_rig rig;
    qn_err err;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.context = CONTEXT});
    static const char input[] = "\"input\": [\"a\", [44, 44, 44, 44, 44, 44, 44, 44, 44, 44, 44, "
                                "44, 44, 44, 44, 44, 44]]";
    char body[256];
    snprintf(body, sizeof body, "{%s}", input);
    json_t *a = post_json(&rig, "/v1/embeddings", body, 400);
    assert_string_equal(text_at(a, "error.type"), "exceed_context_size_error");
    assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
    assert_int_equal(int_at(a, "error.n_prompt_tokens"), CONTEXT + 1);
    assert_int_equal(int_at(a, "error.n_ctx"), CONTEXT);
    assert_non_null(strstr(text_at(a, "error.message"), "'input', item 1 has 17 tokens, which "
                                                        "exceeds the available context size"));
    json_decref(a);
    snprintf(body, sizeof body, "{%s, \"truncate\": true}", input);
    a = post_json(&rig, "/v1/embeddings", body, 200);
    qn_engine *engine = open_bundled();
    int32_t ids[CONTEXT];
    for (size_t i = 0; i < CONTEXT; i++) ids[i] = 44;
    const qn_prompt prompt = {ids, CONTEXT, NULL};
    qn_embeddings want = QN_INIT(qn_embeddings);
    ASSERT_OK(qn_engine_embed(&want, engine, &prompt, 1, &QN_INIT(qn_embed_opts, .normalize = true),
                              &err));
    assert_row(json_at(a, "data.1.embedding"), want.rows, want.width, "cut");
    json_decref(a);
    qn_embeddings_deinit(&want);
    qn_engine_close(engine);
    serve_stop(&rig);
}

static void wrong_requests_are_refused_by_name(void **state) {
    static const refused_case cases[] = {
        {"{}", "input", "no 'input'"},
        {"{\"input\": \"\"}", "input", "no tokens"},
        {"{\"input\": []}", "input", "no tokens"},
        {"{\"input\": [\"a\", 5.5]}", "input", "item 1 is not a text"},
        {"{\"input\": [[1], [99999999]]}", "input", "item 1, item 0 is not a token id"},
        {"{\"input\": \"a\", \"pooling\": \"max\"}", "pooling", "'max'"},
        {"{\"input\": \"a\", \"encoding_format\": \"hex\"}", "encoding_format", "'hex'"},
        {"{\"input\": \"a\", \"dimensions\": 0}", "dimensions", "0"},
        {"{\"input\": \"a\", \"dimensions\": 1000000}", "dimensions", "1000000"},
    };
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, NULL);
    assert_all_refused(&rig, "/v1/embeddings", cases, sizeof cases / sizeof *cases);
    qn_buf_text(&body, "{\"input\": [\"a\"");
    for (size_t i = 0; i < 2048; i++) qn_buf_text(&body, ", \"a\"");
    qn_buf_text(&body, "]}");
    json_t *a = post_json(&rig, "/v1/embeddings", body.data, 400);
    assert_non_null(strstr(text_at(a, "error.message"), "2049 items, at most 2048"));
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- beside others -------------------------------------------------------------------------------

typedef struct asker {
    const serve_rig *rig;
    const qn_embeddings *want;
    atomic_int n_done;
} asker;

static void *ask_again(void *arg) {
    asker *s = arg;
    for (size_t i = 0; i < 5; i++) {
        json_t *a = post_json(s->rig, "/v1/embeddings",
                              "{\"input\": [\"Hello world\", \"A lemon is yellow.\"]}", 200);
        assert_answer(a, s->want, "beside others");
        json_decref(a);
    }
    atomic_fetch_add(&s->n_done, 1);
    return NULL;
}

// Several at a time, while an answer is computed: all are what they are alone.
static void embeddings_and_answers_go_side_by_side(void **state) {
    enum { N = 4 };
    static const char *const texts[] = {"Hello world", "A lemon is yellow."};
    static const char story[] =
        "{\"prompt\": \"Once upon a time\", \"max_tokens\": 200, \"ignore_eos\": true}";
    serve_rig rig;
    pthread_t threads[N];
    (void)state;
    serve_start(&rig, NULL);
    qn_engine *engine = open_bundled();
    qn_embeddings want = embed_texts(engine, texts, 2, QN_POOLING_AUTO, true);
    json_t *alone = post_json(&rig, "/v1/completions", story, 200);
    asker s = {.rig = &rig, .want = &want};
    for (size_t i = 0; i < N; i++) assert_true(qn_thread_start(&threads[i], ask_again, &s));
    json_t *beside = post_json(&rig, "/v1/completions", story, 200);
    for (size_t i = 0; i < N; i++) pthread_join(threads[i], NULL);
    assert_int_equal(atomic_load(&s.n_done), N);
    assert_string_equal(text_at(alone, "choices.0.text"), text_at(beside, "choices.0.text"));
    json_decref(alone);
    json_decref(beside);
    qn_embeddings_deinit(&want);
    qn_engine_close(engine);
    serve_stop(&rig);
}

// Sends a request that would take minutes: two million tokens. Returns its connection.
static int send_long(const serve_rig *rig) {
    qn_buf body = {0}, request = {0};
    qn_buf_text(&body, "{\"input\": [");
    for (size_t i = 0; i < 2000; i++) {
        qn_buf_text(&body, i ? ", [1" : "[1");
        for (size_t k = 0; k < 1000; k++) qn_buf_text(&body, ", 44");
        qn_buf_text(&body, "]");
    }
    qn_buf_text(&body, "]}");
    qn_buf_printf(&request,
                  "POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
                  body.size);
    qn_buf_add(&request, body.data, body.size);
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&body);
    qn_buf_deinit(&request);
    return fd;
}

// Waits until that many requests are with the thread that computes.
static void wait_for(const serve_rig *rig, int64_t n) {
    static const struct timespec pause = {.tv_nsec = 1000000};
    while (atomic_load(&rig->server->n_jobs) < n) nanosleep(&pause, NULL);
}

// A client that goes away ends its embeddings: the next one's, which wait for them, come soon.
static void a_client_that_is_gone_ends_its_embeddings(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    const int fd = send_long(&rig);
    wait_for(&rig, 1);
    close(fd);
    json_t *a = post_json(&rig, "/v1/embeddings", "{\"input\": \"Hello world\"}", 200);
    json_decref(a);
    serve_stop(&rig);
}

// More requests than there are threads for them wait for embeddings; others are answered meanwhile,
// and the server stops without them.
static void embeddings_that_wait_hold_up_nobody(void **state) {
    enum { N = 6 };
    serve_rig rig;
    int fds[N];
    char byte;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.grace_ms = 1});
    for (size_t i = 0; i < N; i++) fds[i] = send_long(&rig);
    wait_for(&rig, N);
    json_t *a = post_json(&rig, "/v1/chat/completions",
                          "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
                          "lemon?\"}]}",
                          200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    json_decref(a);
    for (size_t i = 0; i < N; i++)
        assert_true(recv(fds[i], &byte, 1, MSG_DONTWAIT | MSG_PEEK) < 0); // no answer yet
    serve_stop(&rig);
    for (size_t i = 0; i < N; i++) close(fds[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embeddings_are_the_librarys),
        cmocka_unit_test(ids_are_taken_as_they_are),
        cmocka_unit_test(dimensions_are_the_first_ones_scaled),
        cmocka_unit_test(many_inputs_are_each_their_own),
        cmocka_unit_test(what_does_not_fit_is_refused_or_cut),
        cmocka_unit_test(wrong_requests_are_refused_by_name),
        cmocka_unit_test(embeddings_and_answers_go_side_by_side),
        cmocka_unit_test(a_client_that_is_gone_ends_its_embeddings),
        cmocka_unit_test(embeddings_that_wait_hold_up_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

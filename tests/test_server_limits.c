// What an attacker can take of the server: time for texts that no model reads, memory, connections.
#include "serve_rig.h"

#include "core/mem.h"

#include <arpa/inet.h>
#include <errno.h>

#define CHAT "/v1/chat/completions"

// --- long texts ----------------------------------------------------------------------------------

enum { CONTEXT = 2048, BOUND = CONTEXT + (1 << 16) }; // of the bundled model; tokens that are read

// A body with `n` times `unit` between its two halves, to be freed.
static char *long_body(const char *before, const char *unit, size_t n, const char *after) {
    qn_buf out = {0};
    char *text = NULL;
    qn_err err;
    qn_buf_text(&out, before);
    for (size_t i = 0; i < n; i++) qn_buf_text(&out, unit);
    qn_buf_text(&out, after);
    ASSERT_OK(qn_buf_take(&text, &out, &err));
    return text;
}

// A text that is far too long is refused by what is certain of its length, in the words that
// clients look for; one that is a little too long is counted.
static void the_length_of_a_long_text_is_not_counted(void **state) {
    static const struct {
        const char *path, *before, *after;
    } cases[] = {
        {CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "\"}]}"},
        {"/v1/responses", "{\"input\":\"", "\"}"},
        {"/v1/completions", "{\"prompt\":\"", "\"}"},
        {"/completion", "{\"prompt\":[1,2,\"", "\"]}"},
        {"/v1/embeddings", "{\"input\":\"", "\"}"},
    };
    static const char *const units[] = {" word", "a"};
    char want[128];
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    snprintf(want, sizeof want,
             "has at least %d tokens, which exceeds the available context size of %d tokens",
             BOUND + 1, CONTEXT);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t k = 0; k < 2; k++) {
            char *body =
                long_body(cases[i].before, units[k], k ? 8 << 20 : 1 << 18, cases[i].after);
            json_t *a = post_json(&rig, cases[i].path, body, 400);
            assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
            assert_says(a, want);
            assert_int_equal(json_integer_value(json_at(a, "error.n_prompt_tokens")), BOUND + 1);
            json_decref(a);
            qn_free(body);
        }
        char *body = long_body(cases[i].before, " word", 2 * CONTEXT, cases[i].after);
        json_t *a = post_json(&rig, cases[i].path, body, 400);
        assert_null(strstr(text_at(a, "error.message"), "at least"));
        assert_in_range(json_integer_value(json_at(a, "error.n_prompt_tokens")), 2 * CONTEXT,
                        BOUND);
        json_decref(a);
        qn_free(body);
    }
    serve_stop(&rig);
}

static void the_words_that_clients_look_for_stay(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    char *body = long_body("{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":\"",
                           " word", 1 << 18, "\"}]}");
    char want[128];
    snprintf(want, sizeof want, "prompt is too long: %d tokens > %d maximum", BOUND + 1, CONTEXT);
    json_t *a = post_json(&rig, "/v1/messages", body, 400);
    assert_says(a, want);
    json_decref(a);
    // Turns may be left out, but the question is too long by itself.
    body[strlen(body) - 1] = 0;
    char *other = long_body(body, ",\"leave_out\":true}", 1, "");
    a = post_json(&rig, CHAT, other, 400);
    assert_string_equal(text_at(a, "error.code"), "context_length_exceeded");
    json_decref(a);
    // What is only counted may have any length.
    body[strlen(body)] = '}';
    a = post_json(&rig, "/v1/messages/count_tokens", body, 200);
    assert_true(json_integer_value(json_at(a, "input_tokens")) > 1 << 18);
    json_decref(a);
    qn_free(other);
    qn_free(body);
    serve_stop(&rig);
}

// The first tokens are the same, however many follow.
static void embeddings_of_cut_texts_are_of_their_beginning(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    json_t *rows[2];
    for (size_t i = 0; i < 2; i++) {
        char *body =
            long_body("{\"truncate\":true,\"input\":\"", " word", i ? 1 << 18 : 3 * CONTEXT, "\"}");
        json_t *a = post_json(&rig, "/api/embed", body, 200);
        rows[i] = json_incref(json_at(a, "embeddings.0"));
        assert_int_equal(json_integer_value(json_at(a, "prompt_eval_count")), CONTEXT);
        json_decref(a);
        qn_free(body);
    }
    assert_true(json_equal(rows[0], rows[1]));
    json_decref(rows[0]);
    json_decref(rows[1]);
    serve_stop(&rig);
}

// --- memory --------------------------------------------------------------------------------------

static int64_t has_untaken(const serve_rig *rig) {
    return atomic_load(&rig->server->n_untaken) > 0;
}
static int64_t n_untaken(const serve_rig *rig) {
    return (int64_t)atomic_load(&rig->server->n_untaken);
}

static int send_body(const serve_rig *rig, const char *path, const char *body) {
    qn_buf request = {0};
    const int fd = serve_connect(rig);
    qn_buf_printf(&request,
                  "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  "Content-Length: %zu\r\n\r\n",
                  path, strlen(body));
    serve_send(fd, request.data, request.size);
    serve_send(fd, body, strlen(body));
    qn_buf_deinit(&request);
    return fd;
}

// A client that does not read holds what it asked for; others get no long answers then, but short
// ones, and long ones again once it is gone.
static void answers_that_nobody_takes_are_bounded(void **state) {
    enum { N_WORDS = 1 << 19 }; // far more bytes of an answer than sockets hold
    const qn_server_opts opts = {.limits = {.untaken = 16 << 20}};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    char *body = long_body("{\"with_pieces\":true,\"content\":\"", " word", N_WORDS, "\"}");
    const int fd = send_body(&rig, "/tokenize", body);
    serve_wait(&rig, has_untaken, 1);
    assert_true(n_untaken(&rig) > 8 << 20);
    http_answer a = http_post(&rig, "/tokenize", body);
    assert_int_equal(a.status, 503);
    assert_non_null(http_header(&a, "Retry-After"));
    assert_non_null(strstr(a.body.data, "16777216 bytes"));
    http_deinit(&a);
    json_decref(post_json(&rig, "/tokenize", "{\"content\":\"a word\"}", 200));
    close(fd);
    serve_wait(&rig, n_untaken, 0);
    a = http_post(&rig, "/tokenize", body);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    http_deinit(&a);
    serve_wait(&rig, n_untaken, 0);
    qn_free(body);
    serve_stop(&rig);
}

static qn_status open_eyes(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                           qn_err *err) {
    (void)arg;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 2,
                                        .mmproj = TEST_DATA "/mini/qwen35_vl/mmproj-bf16.gguf");
    QN_TRY(qn_engine_open(out, path, &opts, err));
    return sample ? qn_engine_sample_defaults(sample, *out, err) : QN_OK;
}

static int64_t n_pixels(const serve_rig *rig) {
    return (int64_t)atomic_load(&rig->server->n_pixels);
}

// Three requests with a picture of 32 x 32 pixels, where all together may have one byte fewer, and
// exactly as many.
static void pixels_of_all_requests_are_bounded(void **state) {
    enum { BYTES = 32 * 32 * 3 };
    static const char body[] =
        "{\"max_tokens\":4,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
        "\"image_url\":{\"url\":\"data:image/"
        "png;base64,iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQAAAABbAUdZ"
        "AAAADElEQVR42mNgGNwAAACgAAGO+7G0AAAAAElFTkSuQmCC\"}},{\"type\":\"text\","
        "\"text\":\"What is it?\"}]}]}";
    (void)state;
    for (int is_enough = 0; is_enough < 2; is_enough++) {
        const qn_server_opts opts = {.model = TEST_DATA "/mini/qwen35_vl/qwen35_vl-bf16.gguf",
                                     .template = TEST_DATA "/templates/Qwen3.5-4B.jinja",
                                     .open = open_eyes,
                                     .limits = {.pixels = BYTES - !is_enough}};
        serve_rig rig;
        serve_start(&rig, &opts);
        for (int i = 0; i < 3; i++) {
            http_answer a = http_post(&rig, CHAT, body);
            if (a.status != (is_enough ? 200 : 503)) fail_msg("%d: %s", a.status, a.body.data);
            assert_true((http_header(&a, "Retry-After") != NULL) == !is_enough);
            http_deinit(&a);
            serve_wait(&rig, n_pixels, 0);
        }
        json_decref(post_json(
            &rig, CHAT, "{\"max_tokens\":2,\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}",
            200));
        serve_stop(&rig);
    }
}

static int64_t n_trims(const serve_rig *rig) { return atomic_load(&rig->server->n_trims); }

// What a large request took is given back to the system; small ones leave nothing worth it.
static void memory_of_large_requests_goes_back(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    for (int i = 0; i < 3; i++)
        json_decref(post_json(&rig, "/tokenize", "{\"content\":\"a word\"}", 200));
    assert_int_equal(n_trims(&rig), 0);
    char *body = long_body("{\"prompt\":\"", " word", 1 << 19, "\"}");
    json_decref(post_json(&rig, "/completion", body, 400));
    serve_wait(&rig, n_trims, 1);
    qn_free(body);
    serve_stop(&rig);
}

// --- connections ---------------------------------------------------------------------------------

static bool is_closed(int fd) {
    char byte;
    const ssize_t n = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
    return n == 0 || (n < 0 && errno != EAGAIN);
}

static size_t count_closed(const int *fds, size_t n) {
    size_t n_closed = 0;
    for (size_t i = 0; i < n; i++) n_closed += is_closed(fds[i]);
    return n_closed;
}

// A connection from another address of this machine.
static int connect_from(const serve_rig *rig, const char *address) {
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)rig->port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(inet_pton(AF_INET, address, &from.sin_addr), 1);
    assert_int_equal(bind(fd, (const struct sockaddr *)&from, sizeof from), 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)&to, sizeof to), 0);
    return fd;
}

// On an address that others reach, one of them has half of all connections at most. On one that
// only this machine reaches, all clients have the same address.
static void one_address_does_not_get_all_connections(void **state) {
    enum { ALL = 64, MINE = ALL / 2, TRIED = MINE + 8 };
    static const char request[] =
        "GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    static const struct timespec pause = {.tv_nsec = 1000000};
    (void)state;
    for (int is_public = 0; is_public < 2; is_public++) {
        const qn_server_opts opts = {.host = is_public ? "0.0.0.0" : "127.0.0.1",
                                     .insecure = true,
                                     .limits = {.connections = ALL}};
        serve_rig rig;
        int fds[TRIED];
        serve_start(&rig, &opts);
        for (size_t i = 0; i < TRIED; i++) fds[i] = serve_connect(&rig);
        const size_t want = is_public ? TRIED - MINE : 0;
        serve_wait(&rig, serve_links, TRIED - (int64_t)want);
        while (count_closed(fds, TRIED) != want) nanosleep(&pause, NULL);
        const int other = connect_from(&rig, "127.0.0.2");
        serve_send(other, request, sizeof request - 1);
        http_answer a = http_read(other);
        assert_int_equal(a.status, 200);
        http_deinit(&a);
        close(other);
        for (size_t i = 0; i < TRIED; i++) close(fds[i]);
        serve_stop(&rig);
    }
}

// A body that never comes to its end, and is never silent for long: the HTTP library would wait.
static void slow_bodies_end(void **state) {
    static const char head[] =
        "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    static const char slow_head[] = "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nX-A: ";
    static const struct timespec pause = {.tv_nsec = 10000000};
    const qn_server_opts opts = {.limits = {.idle_ms = 1000}};
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    const int body = serve_connect(&rig), headers = serve_connect(&rig);
    serve_send(body, head, sizeof head - 1);
    serve_send(headers, slow_head, sizeof slow_head - 1);
    while (!is_closed(body) || !is_closed(headers)) { // the test's time limit ends what never comes
        (void)send(body, "a", 1, MSG_NOSIGNAL);
        (void)send(headers, "a", 1, MSG_NOSIGNAL);
        nanosleep(&pause, NULL);
    }
    serve_wait(&rig, serve_links, 0);
    close(body);
    close(headers);
    serve_stop(&rig);
}

// --- the end -------------------------------------------------------------------------------------

// What a stream says when the server is told twice to stop after its first byte.
static http_answer stopped_stream(const char *path, const char *body) {
    serve_rig rig;
    char byte;
    serve_start(&rig, NULL);
    const int fd = send_body(&rig, path, body);
    assert_int_equal(recv(fd, &byte, 1, MSG_PEEK), 1); // it has begun
    qn_server_stop(rig.server);
    serve_stop(&rig);
    http_answer a = http_read(fd);
    close(fd);
    return a;
}

static const char *end_of(const char *text) {
    enum { SHOWN = 400 };
    const size_t size = strlen(text);
    return text + (size > SHOWN ? size - SHOWN : 0);
}

// A server that is told twice to stop ends streams at once, and each says so in its dialect. A
// stream that came to its own end before that, on a busy machine, shows nothing: it is sent again.
static void streams_say_that_the_server_stops(void **state) {
    enum { TRIES = 50 };
    static const struct {
        const char *path, *body, *want, *ended;
    } cases[] = {
        {CHAT,
         "{\"stream\":true,\"ignore_eos\":true,\"n\":4,\"messages\":[{\"role\":\"user\","
         "\"content\":\"a\"}]}",
         "data: {\"error\":{", "data: [DONE]"},
        {"/v1/completions",
         "{\"stream\":true,\"ignore_eos\":true,\"n\":4,\"max_tokens\":1900,\"prompt\":\"a\"}",
         "data: {\"error\":{", "data: [DONE]"},
        {"/v1/messages",
         "{\"stream\":true,\"max_tokens\":1900,\"ignore_eos\":true,\"messages\":[{\"role\":"
         "\"user\",\"content\":\"a\"}]}",
         "event: error\ndata: {\"type\":\"error\"", "event: message_stop\n"},
        {"/v1/responses", "{\"stream\":true,\"ignore_eos\":true,\"input\":\"a\"}",
         "event: response.failed\n", "event: response.incomplete\n"},
        {"/api/chat",
         "{\"stream\":true,\"options\":{\"num_predict\":1900,\"ignore_eos\":true},\"messages\":[{"
         "\"role\":\"user\",\"content\":\"a\"}]}",
         "{\"error\":\"", "\"done\":true"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool has_ended = true;
        for (int try = 0; has_ended; try++) {
            http_answer a = stopped_stream(cases[i].path, cases[i].body);
            const char *text = a.body.data ? a.body.data : "";
            const bool has_said = strstr(text, cases[i].want);
            has_ended = !has_said && strstr(text, cases[i].ended) && try < TRIES;
            assert_int_equal(a.status, 200);
            if (!a.is_whole || (!has_said && !has_ended))
                fail_msg("%s, try %d: ...%s", cases[i].path, try, end_of(text));
            http_deinit(&a);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_length_of_a_long_text_is_not_counted),
        cmocka_unit_test(the_words_that_clients_look_for_stay),
        cmocka_unit_test(embeddings_of_cut_texts_are_of_their_beginning),
        cmocka_unit_test(answers_that_nobody_takes_are_bounded),
        cmocka_unit_test(pixels_of_all_requests_are_bounded),
        cmocka_unit_test(memory_of_large_requests_goes_back),
        cmocka_unit_test(one_address_does_not_get_all_connections),
        cmocka_unit_test(slow_bodies_end),
        cmocka_unit_test(streams_say_that_the_server_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

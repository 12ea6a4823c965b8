// Images that requests name by an address: fetched from hosts that are allowed, and nowhere else.
#include "serve_rig.h"

#include "core/file.h"

static const char mmproj_model[] = TEST_DATA "/mini/qwen35_vl/qwen35_vl-bf16.gguf";

// A model with eyes.
static qn_status open_vl(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                         qn_err *err) {
    (void)arg;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 2,
                                        .mmproj = TEST_DATA "/mini/qwen35_vl/mmproj-bf16.gguf");
    QN_TRY(qn_engine_open(out, path, &opts, err));
    return sample ? qn_engine_sample_defaults(sample, *out, err) : QN_OK;
}

// --- a server of pictures ------------------------------------------------------------------------

typedef struct pictures {
    int fd, port;
    pthread_t thread;
    const char *answer; // whole, with its head
    size_t size;
    int n_asked;
} pictures;

static void *serve_pictures(void *arg) {
    pictures *p = arg;
    for (int fd; (fd = accept(p->fd, NULL, NULL)) >= 0; close(fd)) {
        char request[2048];
        if (recv(fd, request, sizeof request, 0) > 0) p->n_asked++;
        serve_send(fd, p->answer, p->size);
    }
    return NULL;
}

static void start_pictures(pictures *p, const char *answer, size_t size) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    *p = (pictures){.fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    p->answer = answer;
    p->size = size;
    assert_int_equal(bind(p->fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(p->fd, 8), 0);
    assert_int_equal(getsockname(p->fd, (struct sockaddr *)&address, &length), 0);
    p->port = ntohs(address.sin_port);
    assert_true(qn_thread_start(&p->thread, serve_pictures, p));
}

static void stop_pictures(pictures *p) {
    shutdown(p->fd, SHUT_RDWR);
    pthread_join(p->thread, NULL);
    close(p->fd);
}

// A picture of the tests, with a head before it.
static qn_buf make_answer(const char *head) {
    qn_err err;
    char *data;
    size_t size;
    qn_buf all = {0};
    ASSERT_OK(qn_file_load(&data, &size, TEST_DATA "/mini/qwen35_vl/image.png", 1 << 20, &err));
    qn_buf_text(&all, head);
    qn_buf_add(&all, data, size);
    qn_free(data);
    return all;
}

static json_t *ask(const serve_rig *rig, const char *url, int status) {
    qn_buf body = {0};
    qn_buf_printf(
        &body,
        "{\"max_tokens\": 4, \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": "
        "\"image_url\", \"image_url\": {\"url\": \"%s\"}}, {\"type\": \"text\", "
        "\"text\": \"What is it?\"}]}]}",
        url);
    json_t *answer = post_json(rig, "/v1/chat/completions", body.data, status);
    qn_buf_deinit(&body);
    return answer;
}

static void refuse(const serve_rig *rig, const char *url, const char *part) {
    json_t *a = ask(rig, url, 400);
    assert_string_equal(text_at(a, "error.param"), "messages[0].content");
    assert_says(a, part);
    json_decref(a);
}

static void hosts_that_are_not_allowed_are_not_asked(void **state) {
    static const char answer[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    pictures p;
    serve_rig rig;
    char url[64];
    (void)state;
    start_pictures(&p, answer, sizeof answer - 1);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/a.png", p.port);
    serve_start(&rig, &(qn_server_opts){.model = mmproj_model, .open = open_vl});
    refuse(&rig, url, "--image-urls");
    refuse(&rig, "file:///etc/passwd", "--image-urls");
    refuse(&rig, "ftp://localhost/a.png", "--image-urls");
    serve_stop(&rig);
    static const char *const hosts[] = {"pictures.example.org"};
    serve_start(&rig, &(qn_server_opts){.model = mmproj_model,
                                        .template = TEST_DATA "/templates/Qwen3.5-4B.jinja",
                                        .open = open_vl,
                                        .image_hosts = hosts,
                                        .n_image_hosts = 1});
    refuse(&rig, url, "--image-urls");
    snprintf(url, sizeof url, "http://pictures.example.org@127.0.0.1:%d/", p.port);
    refuse(&rig, url, "not an address");
    snprintf(url, sizeof url, "http://127.0.0.1:%d\\\\@pictures.example.org/", p.port);
    json_t *a = ask(&rig, url, 400);
    json_decref(a);
    serve_stop(&rig);
    stop_pictures(&p);
    assert_int_equal(p.n_asked, 0);
}

static void images_of_allowed_hosts_are_read(void **state) {
    static const char *const hosts[] = {"127.0.0.1"};
    qn_buf answer = make_answer("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    pictures p;
    serve_rig rig;
    char url[64];
    (void)state;
    start_pictures(&p, answer.data, answer.size);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/a.png", p.port);
    serve_start(&rig, &(qn_server_opts){.model = mmproj_model,
                                        .template = TEST_DATA "/templates/Qwen3.5-4B.jinja",
                                        .open = open_vl,
                                        .image_hosts = hosts,
                                        .n_image_hosts = 1});
    json_t *a = ask(&rig, url, 200);
    assert_true(json_integer_value(json_at(a, "usage.prompt_tokens")) > 10);
    json_decref(a);
    assert_int_equal(p.n_asked, 1);
    serve_stop(&rig);
    stop_pictures(&p);
    qn_buf_deinit(&answer);
}

static void other_answers_are_refused(void **state) {
    static const char *const hosts[] = {"127.0.0.1"};
    static const struct {
        const char *answer, *part;
    } cases[] = {
        {"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n", "status 404"},
        {"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n",
         "status 302"},
        {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n", "cannot be fetched"},
        {"nonsense", "cannot be fetched"},
    };
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.model = mmproj_model,
                                        .template = TEST_DATA "/templates/Qwen3.5-4B.jinja",
                                        .open = open_vl,
                                        .image_hosts = hosts,
                                        .n_image_hosts = 1});
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pictures p;
        char url[64];
        start_pictures(&p, cases[i].answer, strlen(cases[i].answer));
        snprintf(url, sizeof url, "http://127.0.0.1:%d/a.png", p.port);
        refuse(&rig, url, cases[i].part);
        stop_pictures(&p);
    }
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hosts_that_are_not_allowed_are_not_asked),
        cmocka_unit_test(images_of_allowed_hosts_are_read),
        cmocka_unit_test(other_answers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

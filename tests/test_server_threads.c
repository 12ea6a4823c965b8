// Many threads at a time: full queues, and stops in the middle of everything.
#include "serve_rig.h"

#define CHAT "/v1/chat/completions"
static const char question[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a lemon?\"}], "
    "\"max_tokens\": 20}";
static const char story[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a "
                            "story.\"}], \"ignore_eos\": true, "
                            "\"max_tokens\": 200, \"stream\": true}";
static const char schema[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"A lemon as JSON.\"}], \"max_tokens\": 30, "
    "\"response_format\": {\"type\": \"json_object\"}, \"n\": 2}";

// One client of several, each a thread.
typedef struct client {
    const serve_rig *rig;
    const char *body;
    int n;                  // requests to make; 0: until the server is gone
    int n_right, n_refused; // whole answers, and refusals that say so
    int n_cut;              // connections that ended without one
    pthread_t thread;
} client;

// -1: the server is gone.
static int try_connect(const serve_rig *rig) {
    const struct sockaddr_in address = {.sin_family = AF_INET,
                                        .sin_port = htons((uint16_t)rig->port),
                                        .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) == 0) return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static void note(client *c, const http_answer *a) {
    const bool is_stream = strstr(c->body, "\"stream\"") != NULL;
    const bool is_end = !is_stream || (a->body.data && strstr(a->body.data, "data: [DONE]"));
    const bool is_answer = a->status == 200 && a->is_whole && is_end;
    c->n_right += is_answer;
    c->n_refused += a->status == 503 && a->is_whole && http_header(a, "Retry-After");
    c->n_cut += !a->is_whole;
}

static void *ask(void *arg) {
    client *c = arg;
    qn_buf request = {0};
    qn_buf_printf(&request,
                  "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  "Content-Length: %zu\r\n\r\n%s",
                  strlen(c->body), c->body);
    for (int i = 0; c->n == 0 || i < c->n; i++) {
        const int fd = try_connect(c->rig);
        if (fd < 0) break;
        serve_send(fd, request.data, request.size);
        http_answer a = http_read(fd);
        note(c, &a);
        http_deinit(&a);
        close(fd);
    }
    qn_buf_deinit(&request);
    return NULL;
}

static void start_clients(client *clients, size_t n, const serve_rig *rig, int n_requests) {
    const char *const bodies[] = {question, story, schema};
    for (size_t i = 0; i < n; i++) {
        clients[i] = (client){.rig = rig, .body = bodies[i % 3], .n = n_requests};
        assert_true(qn_thread_start(&clients[i].thread, ask, &clients[i]));
    }
}

static void join_clients(client *sum, client *clients, size_t n) {
    *sum = (client){0};
    for (size_t i = 0; i < n; i++) {
        pthread_join(clients[i].thread, NULL);
        sum->n_right += clients[i].n_right;
        sum->n_refused += clients[i].n_refused;
        sum->n_cut += clients[i].n_cut;
    }
}

enum { N_CLIENTS = 9 };

// Every request is answered, or refused with the advice to try again.
static void a_full_queue_refuses(void **state) {
    const qn_server_opts opts = {.limits = {.waiting = 1}, .queue = 2};
    client clients[N_CLIENTS], sum;
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    start_clients(clients, N_CLIENTS, &rig, 5);
    join_clients(&sum, clients, N_CLIENTS);
    assert_int_equal(sum.n_cut, 0);
    assert_int_equal(sum.n_right + sum.n_refused, N_CLIENTS * 5);
    assert_true(sum.n_right > 0);
    serve_wait(&rig, serve_rows, 0);
    serve_wait(&rig, serve_links, 0);
    serve_stop(&rig);
}

static int64_t has_jobs(const serve_rig *rig) { return serve_jobs(rig) > 0; }

static int64_t has_rows(const serve_rig *rig) { return serve_rows(rig) > 0; }

// A first stop lets answers end and be read: none is cut.
static void a_stop_lets_answers_end(void **state) {
    client clients[N_CLIENTS], sum;
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    start_clients(clients, N_CLIENTS, &rig, 1);
    serve_wait(&rig, has_rows, 1);
    qn_server_stop(rig.server);
    pthread_join(rig.thread, NULL);
    assert_int_equal(serve_jobs(&rig), 0);
    assert_int_equal(qn_links_busy(&rig.server->links), 0);
    qn_server_destroy(rig.server);
    join_clients(&sum, clients, N_CLIENTS);
    assert_true(sum.n_right > 0); // others may have come too late
}

// A second stop cuts them, whatever they are doing.
static void a_second_stop_cuts(void **state) {
    enum { N_ROUNDS = 12 };
    (void)state;
    for (int round = 0; round < N_ROUNDS; round++) {
        const qn_server_opts opts = {.limits = {.waiting = round % 2 ? 2 : 100}};
        client clients[N_CLIENTS], sum;
        serve_rig rig;
        serve_start(&rig, &opts);
        start_clients(clients, N_CLIENTS, &rig, 0);
        if (round % 3) serve_wait(&rig, has_jobs, 1);
        qn_server_stop(rig.server);
        serve_stop(&rig);
        join_clients(&sum, clients, N_CLIENTS);
    }
}

// A server that never ran, with requests.
static void a_server_may_end_before_it_runs(void **state) {
    client clients[N_CLIENTS], sum;
    serve_rig rig;
    (void)state;
    qn_err err;
    qn_server_opts opts = {.model = MODELS "/quern-mini-Q8_0.gguf",
                           .open = rig_open,
                           .peek = rig_peek,
                           .generate = QN_INIT(qn_generate_opts),
                           .quiet = true};
    ASSERT_OK(qn_server_create(&rig.server, &opts, &err));
    rig.port = qn_server_port(rig.server);
    start_clients(clients, N_CLIENTS, &rig, 0);
    serve_wait(&rig, has_jobs, 1);
    qn_server_destroy(rig.server);
    join_clients(&sum, clients, N_CLIENTS);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_full_queue_refuses),
        cmocka_unit_test(a_stop_lets_answers_end),
        cmocka_unit_test(a_second_stop_cuts),
        cmocka_unit_test(a_server_may_end_before_it_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

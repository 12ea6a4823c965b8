// quern serve as a process: what it gives up, its signals, and how it ends.
#include "cli_run.h"
#include "serve_rig.h"

#include <dirent.h>
#include <signal.h>
#include <sys/prctl.h>

#define CHAT "/v1/chat/completions"

typedef struct process {
    pid_t pid;
    FILE *out;
    serve_rig rig; // its port alone
} process;

// Starts the program with further arguments (NULL at the end), and reads its address.
static void start(process *p, const char *const *args) {
    const char *argv[24] = {QUERN, "serve", "--port", "0", "--quiet", "-t", "2"};
    size_t n = 7;
    int ends[2];
    char line[512];
    while (*args) argv[n++] = *args++;
    assert_int_equal(pipe(ends), 0);
    p->pid = fork();
    assert_true(p->pid >= 0);
    if (p->pid == 0) {
        // The leak checker of sanitizer builds needs what the program gives up.
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1);
        dup2(ends[1], STDOUT_FILENO);
        execv(QUERN, (char *const *)(uintptr_t)argv);
        _exit(127);
    }
    close(ends[1]);
    p->out = fdopen(ends[0], "r");
    p->rig = (serve_rig){0};
    while (!p->rig.port && fgets(line, sizeof line, p->out)) {
        const char *found = strstr(line, "127.0.0.1:");
        if (found) p->rig.port = atoi(found + strlen("127.0.0.1:"));
    }
    assert_true(p->rig.port > 0);
}

// Its exit code.
static int end(process *p) {
    int code;
    assert_int_equal(waitpid(p->pid, &code, 0), p->pid);
    fclose(p->out);
    return WIFEXITED(code) ? WEXITSTATUS(code) : 1000 + WTERMSIG(code);
}

static int stop(process *p) {
    assert_int_equal(kill(p->pid, SIGTERM), 0);
    return end(p);
}

// --- names ---------------------------------------------------------------------------------------

// The model is called by its file then.
static void a_model_is_served_by_its_name(void **state) {
    static const char *const args[] = {"bundled", NULL};
    char folder[] = "/tmp/quern-serve-XXXXXX", path[128];
    process p;
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/bundled-one.gguf", folder);
    assert_int_equal(symlink(MODELS "/quern-mini-Q8_0.gguf", path), 0);
    setenv("QUERN_MODELS", folder, 1);
    start(&p, args);
    unsetenv("QUERN_MODELS");
    json_t *a = post_json(&p.rig, CHAT,
                          "{\"model\": \"bundled-one\", \"messages\": [{\"role\": \"user\", "
                          "\"content\": \"What color is a lemon?\"}]}",
                          200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    json_decref(a);
    assert_int_equal(stop(&p), 0);
    unlink(path);
    rmdir(folder);
}

// --- privileges ----------------------------------------------------------------------------------

static void check_status(const char *path) {
    char *text = cli_load(path, NULL);
    if (!strstr(text, "NoNewPrivs:\t1\n") || !strstr(text, "Seccomp:\t2\n"))
        fail_msg("%s: %s", path, strstr(text, "NoNewPrivs"));
    free(text);
}

// All threads have given them up, and models are opened all the same.
static void privileges_are_given_up(void **state) {
    static const char *const args[] = {"--models", MODELS, NULL};
    char folder[64], path[512];
    int n = 0;
    process p;
    (void)state;
    if (prctl(PR_GET_SECCOMP, 0, 0, 0, 0) < 0) skip(); // as in qemu
    start(&p, args);
    json_t *a = post_json(&p.rig, CHAT,
                          "{\"model\": \"quern-mini-Q8_0\", \"messages\": [{\"role\": \"user\", "
                          "\"content\": \"What color is a lemon?\"}]}",
                          200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    json_decref(a);
    snprintf(folder, sizeof folder, "/proc/%d/task", (int)p.pid);
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *at; (at = readdir(dir)) != NULL;) {
        if (*at->d_name == '.') continue;
        snprintf(path, sizeof path, "%s/%.32s/status", folder, at->d_name);
        check_status(path);
        n++;
    }
    closedir(dir);
    assert_true(n > 4);
    assert_int_equal(stop(&p), 0);
}

// --- signals -------------------------------------------------------------------------------------

// Asks for a stream, and reads the beginning of it.
static int begin_stream(const process *p, int max_tokens) {
    qn_buf request = {0};
    char body[256], head[64];
    snprintf(
        body, sizeof body,
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}], \"stream\": "
        "true, \"ignore_eos\": true, \"max_tokens\": %d, \"n\": 8}",
        max_tokens);
    qn_buf_printf(&request,
                  "POST " CHAT " HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n"
                  "Connection: close\r\n\r\n%s",
                  strlen(body), body);
    const int fd = serve_connect(&p->rig);
    serve_send(fd, request.data, request.size);
    qn_buf_deinit(&request);
    assert_true(recv(fd, head, sizeof head, MSG_PEEK) > 0);
    return fd;
}

static void term_lets_streams_end(void **state) {
    static const char *const args[] = {NULL};
    process p;
    (void)state;
    start(&p, args);
    const int fd = begin_stream(&p, 100);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    http_answer a = http_read(fd);
    assert_int_equal(a.status, 200);
    assert_true(a.is_whole);
    assert_non_null(strstr(a.body.data, "data: [DONE]"));
    http_deinit(&a);
    close(fd);
    assert_int_equal(end(&p), 0);
}

// USR1 is the program's own way to end its thread of signals; from outside it changes nothing.
static void usr1_does_not_make_it_deaf(void **state) {
    static const char *const args[] = {NULL};
    process p;
    (void)state;
    start(&p, args);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(kill(p.pid, SIGUSR1), 0);
        http_answer a = http_get(&p.rig, "/health");
        assert_int_equal(a.status, 200);
        http_deinit(&a);
    }
    assert_int_equal(stop(&p), 0);
}

static void a_second_term_ends_them(void **state) {
    static const char *const args[] = {NULL};
    process p;
    (void)state;
    start(&p, args);
    const int fd = begin_stream(&p, 2000);
    assert_int_equal(kill(p.pid, SIGTERM), 0);
    while (kill(p.pid, SIGTERM) == 0) { // one that comes before the first is taken is the same one
        static const struct timespec pause = {.tv_nsec = 1000000};
        int code;
        const pid_t ended = waitpid(p.pid, &code, WNOHANG);
        if (ended == p.pid) {
            assert_true(WIFEXITED(code));
            assert_int_equal(WEXITSTATUS(code), 0);
            break;
        }
        nanosleep(&pause, NULL);
    }
    fclose(p.out);
    http_answer a = http_read(fd);
    assert_non_null(a.body.data);
    assert_null(strstr(a.body.data, "\"finish_reason\":\"length\""));
    assert_non_null(strstr(a.body.data, "data: {\"error\":")); // and it says why
    http_deinit(&a);
    close(fd);
}

static const char *shown;
static int64_t status_now(const serve_rig *rig) {
    http_answer a = http_with(rig, "GET", "/v1/models", shown, NULL);
    const int status = a.status;
    http_deinit(&a);
    return status;
}

static void hup_reads_the_keys_again(void **state) {
    const char *path = cli_path("keys");
    const char *const args[] = {"--api-key-file", path, NULL};
    process p;
    (void)state;
    cli_save(path, "old\n", 4);
    start(&p, args);
    shown = "X-Api-Key: old\r\n";
    assert_int_equal(status_now(&p.rig), 200);
    cli_save(path, "new\n", 4);
    assert_int_equal(kill(p.pid, SIGHUP), 0);
    serve_wait(&p.rig, status_now, 401);
    shown = "X-Api-Key: new\r\n";
    assert_int_equal(status_now(&p.rig), 200);
    assert_int_equal(stop(&p), 0);
}

// --- refusals ------------------------------------------------------------------------------------

static void what_is_not_safe_is_refused(void **state) {
    (void)state;
    cli_result r = CLI_RUN("serve", "--host", "0.0.0.0", "--port", "-1");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.err, "--api-key"));
    cli_free(&r);
    r = CLI_RUN("serve", "--tls-cert", "/nowhere/cert.pem", "--tls-key", "/nowhere/key.pem");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.err, "/nowhere/cert.pem"));
    cli_free(&r);
    r = CLI_RUN("serve", "--tls-cert", "/nowhere/cert.pem");
    assert_int_not_equal(r.code, 0);
    assert_non_null(strstr(r.err, "--tls-key"));
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_is_served_by_its_name),
        cmocka_unit_test(privileges_are_given_up),
        cmocka_unit_test(term_lets_streams_end),
        cmocka_unit_test(usr1_does_not_make_it_deaf),
        cmocka_unit_test(a_second_term_ends_them),
        cmocka_unit_test(hup_reads_the_keys_again),
        cmocka_unit_test(what_is_not_safe_is_refused),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

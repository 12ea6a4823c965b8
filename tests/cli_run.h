// Runs the program `quern` and keeps what it said. Header only; QUERN is the path of the program.
//
// Everything happens in a folder of its own, made by cli_setup and removed by cli_teardown.
#ifndef QN_TESTS_CLI_RUN_H
#define QN_TESTS_CLI_RUN_H

#include "testing.h"

#include "core/json.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MINI  TEST_DATA "/mini"
#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

enum { CLI_MOST_ARGS = 32, CLI_MOST_PATH = 512, CLI_KILLED = 1000 };

// What a run left behind; cli_free releases it.
typedef struct cli_result {
    int code; // exit code, or CLI_KILLED + signal
    char *out, *err;
    size_t out_size;
} cli_result;

typedef struct cli_input {
    const char *stdin_text; // NULL: nothing
    const char *stdout_to;  // a path instead of the result; "-": closed
    const char *program;    // NULL: quern
} cli_input;

static char cli_folder[] = "/tmp/quern-cli-XXXXXX";

static inline int cli_setup(void **state) {
    (void)state;
    if (!mkdtemp(cli_folder)) return -1;
    return setenv("XDG_STATE_HOME", cli_folder, 1); // the history of conversations
}

static inline int cli_teardown(void **state) {
    (void)state;
    char command[CLI_MOST_PATH];
    snprintf(command, sizeof command, "rm -rf '%s'", cli_folder);
    return system(command);
}

// A path in the test's own folder; one of a few rotating buffers.
static inline const char *cli_path(const char *name) {
    static char paths[8][CLI_MOST_PATH];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, CLI_MOST_PATH, "%s/%s", cli_folder, name);
    return path;
}

// A whole file with a NUL behind it; free() it.
static inline char *cli_load(const char *path, size_t *size) {
    FILE *f = fopen(path, "rb");
    if (!f) fail_msg("cannot open %s", path);
    size_t n = 0, cap = 4096;
    char *data = malloc(cap + 1);
    for (size_t got; (got = fread(data + n, 1, cap - n, f)) > 0;) {
        n += got;
        if (n == cap) data = realloc(data, (cap *= 2) + 1);
    }
    fclose(f);
    data[n] = 0;
    if (size) *size = n;
    return data;
}

static inline void cli_save(const char *path, const void *data, size_t size) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static inline void cli_redirect(int fd, const char *path, int flags) {
    close(fd);
    if (path && open(path, flags, 0600) != fd) _exit(99);
}

// `args` end in NULL.
static inline cli_result cli_run_with(const cli_input *input, const char *const *args) {
    const char *program = input->program ? input->program : QUERN;
    const char *argv[CLI_MOST_ARGS + 2] = {program};
    for (int i = 0; i < CLI_MOST_ARGS && args[i]; i++) argv[i + 1] = args[i];
    const char *in = input->stdin_text ? cli_path("stdin") : "/dev/null";
    if (input->stdin_text) cli_save(in, input->stdin_text, strlen(input->stdin_text));
    const char *out = input->stdout_to ? input->stdout_to : cli_path("stdout");
    const char *err = cli_path("stderr");
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_redirect(0, in, O_RDONLY);
        cli_redirect(2, err, O_WRONLY | O_CREAT | O_TRUNC);
        cli_redirect(1, strcmp(out, "-") == 0 ? NULL : out, O_WRONLY | O_CREAT | O_TRUNC);
        execvp(program, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    cli_result r = {.code =
                        WIFEXITED(status) ? WEXITSTATUS(status) : CLI_KILLED + WTERMSIG(status)};
    r.out = input->stdout_to ? strdup("") : cli_load(out, &r.out_size);
    r.err = cli_load(err, NULL);
    return r;
}

#define CLI_RUN(...) cli_run_with(&(cli_input){0}, (const char *[]){__VA_ARGS__, NULL})
#define CLI_RUN_IN(text, ...)                                                                      \
    cli_run_with(&(cli_input){.stdin_text = (text)}, (const char *[]){__VA_ARGS__, NULL})

static inline void cli_free(cli_result *r) {
    free(r->out);
    free(r->err);
    *r = (cli_result){0};
}

// The JSON that was printed; json_decref it.
static inline json_t *cli_json(const char *text) {
    json_error_t why;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &why);
    if (!json) fail_msg("no JSON: %s (line %d) in '%.200s'", why.text, why.line, text);
    return json;
}

// Done, and nothing on stderr.
static inline void cli_assert_done(const cli_result *r) {
    if (r->code != 0 || *r->err) fail_msg("exit code %d, stderr '%s'", r->code, r->err);
}

// Exit code `code`, nothing on stdout, and on stderr one line that begins with "quern: " and
// contains `part`.
static inline void cli_assert_fails(const cli_result *r, int code, const char *part) {
    const char *newline = strchr(r->err, '\n');
    if (r->code != code) fail_msg("exit code %d, want %d; stderr '%s'", r->code, code, r->err);
    if (*r->out) fail_msg("unexpected output '%.200s'", r->out);
    if (strncmp(r->err, "quern: ", 7) != 0 || !newline || newline[1])
        fail_msg("stderr is not one line: '%s'", r->err);
    if (!strstr(r->err, part)) fail_msg("stderr '%s' does not contain '%s'", r->err, part);
}

#endif

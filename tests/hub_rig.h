// Models by name, tested: folders of models that are the test's own, and a hub on loopback
// (hub_server.py). Header only.
#ifndef QN_TESTS_HUB_RIG_H
#define QN_TESTS_HUB_RIG_H

#include "cli_run.h"

#include <signal.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <time.h>

static char hub_models[CLI_MOST_PATH], hub_log[CLI_MOST_PATH];
static int hub_port, hub_store_port;
static pid_t hub_pid;

// A command of the shell, as printf has it.
QN_PRINTF(1, 2) static inline void hub_shell(const char *fmt, ...) {
    char command[4 * CLI_MOST_PATH];
    va_list args;
    va_start(args, fmt);
    assert_true(vsnprintf(command, sizeof command, fmt, args) < (int)sizeof command);
    va_end(args);
    if (system(command) != 0) fail_msg("failed: %s", command);
}

static inline bool hub_is_there(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

// Folders of every program, in the test's own, and nothing of the environment.
static inline int hub_setup(void **state) {
    static const char *const unset[] = {"HF_TOKEN",       "HF_HUB_CACHE", "XDG_DATA_HOME",
                                        "XDG_CACHE_HOME", "http_proxy",   "HTTP_PROXY",
                                        "ALL_PROXY",      "all_proxy"};
    if (cli_setup(state) != 0) return -1;
    for (size_t i = 0; i < sizeof unset / sizeof *unset; i++) unsetenv(unset[i]);
    snprintf(hub_models, sizeof hub_models, "%s", cli_path("models"));
    snprintf(hub_log, sizeof hub_log, "%s", cli_path("hub.log"));
    setenv("QUERN_MODELS", hub_models, 1);
    setenv("HF_HOME", cli_path("hf"), 1);
    setenv("LLAMA_CACHE", cli_path("llama"), 1);
    setenv("OLLAMA_MODELS", cli_path("ollama"), 1);
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1); // nobody
    return 0;
}

// Starts the hub; its repositories are the folders in "repos". False: there is no Python.
static inline bool hub_start(void) {
    int ends[2];
    char text[64] = "", endpoint[64];
    if (system("python3 -c 'import http.server' 2>/dev/null") != 0) return false;
    assert_int_equal(pipe(ends), 0);
    hub_pid = fork();
    assert_true(hub_pid >= 0);
    if (hub_pid == 0) {
        dup2(ends[1], 1);
        execlp("python3", "python3", TEST_DATA "/../hub_server.py", cli_path("repos"), hub_log,
               (char *)NULL);
        _exit(99);
    }
    close(ends[1]);
    FILE *from = fdopen(ends[0], "r");
    assert_non_null(from);
    assert_non_null(fgets(text, sizeof text, from));
    fclose(from);
    assert_int_equal(sscanf(text, "%d %d", &hub_port, &hub_store_port), 2);
    snprintf(endpoint, sizeof endpoint, "http://127.0.0.1:%d", hub_port);
    setenv("HF_ENDPOINT", endpoint, 1);
    return true;
}

static inline void hub_stop(void) {
    if (hub_pid <= 0) return;
    kill(hub_pid, SIGTERM);
    waitpid(hub_pid, NULL, 0);
    hub_pid = 0;
}

// What the hub was asked since the last call (free it).
static inline char *hub_take_log(void) {
    char *text = hub_is_there(hub_log) ? cli_load(hub_log, NULL) : strdup("");
    cli_save(hub_log, "", 0);
    return text;
}

// Done; notes on stderr are fine.
static inline void hub_assert_done(const cli_result *r) {
    if (r->code != 0) fail_msg("exit code %d, stderr '%s'", r->code, r->err);
}

static inline void hub_assert_says(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' does not contain '%s'", text, part);
}

// Failed, and the last line says why.
static inline void hub_assert_fails(const cli_result *r, const char *part) {
    if (r->code != 1) fail_msg("exit code %d, want 1; stderr '%s'", r->code, r->err);
    const size_t n = strlen(r->err);
    const char *last = r->err + (n ? n - 1 : 0);
    while (last > r->err && last[-1] != '\n') last--;
    hub_assert_says(last, part);
}

#endif

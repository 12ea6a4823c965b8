// Killed at any moment, every command that writes files leaves the old ones or the whole new ones,
// and at most a temporary one, which the next run removes. The program's argument is the number of
// kills of each command.
#include "cli_run.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>

enum { MOST_FILES = 8, MOST_ARGS = 10 };

static int n_kills = 3;

typedef struct command {
    const char *name;
    // Words; '@' stands for the folder. `before` makes the old files, `after` replaces them.
    const char *before[MOST_ARGS], *after[MOST_ARGS];
    const char *end; // NULL: every run writes the same bytes; else all of them end like this
} command;

typedef struct file {
    char name[256], *bytes;
    size_t size;
} file;

typedef struct files {
    file v[MOST_FILES];
    int n, n_temporary;
} files;

static char folder[CLI_MOST_PATH];

static files load_files(void) {
    files all = {0};
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *e; (e = readdir(dir));) {
        char path[2 * CLI_MOST_PATH];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
        if (strncmp(e->d_name, ".quern-", 7) == 0) {
            all.n_temporary++;
            continue;
        }
        assert_true(all.n < MOST_FILES);
        file *f = &all.v[all.n++];
        snprintf(f->name, sizeof f->name, "%s", e->d_name);
        snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
        f->bytes = cli_load(path, &f->size);
    }
    closedir(dir);
    return all;
}

static void free_files(files *all) {
    for (int i = 0; i < all->n; i++) free(all->v[i].bytes);
    *all = (files){0};
}

// The folder holds these, and nothing else.
static void put_files(const files *all) {
    char path[2 * CLI_MOST_PATH];
    files now = load_files();
    for (int i = 0; i < now.n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, now.v[i].name);
        assert_int_equal(unlink(path), 0);
    }
    free_files(&now);
    for (int i = 0; i < all->n; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, all->v[i].name);
        cli_save(path, all->v[i].bytes, all->v[i].size);
        assert_int_equal(chmod(path, 0600), 0); // as files of a cache folder are
    }
}

static bool has(const files *all, const file *f) {
    for (int i = 0; i < all->n; i++) {
        const file *g = &all->v[i];
        if (strcmp(f->name, g->name) == 0 && f->size == g->size &&
            memcmp(f->bytes, g->bytes, f->size) == 0)
            return true;
    }
    return false;
}

static bool is_whole(const command *c, const files *before, const files *after, const file *f) {
    if (has(before, f) || has(after, f)) return true;
    const size_t n = c->end ? strlen(c->end) : 0;
    return n && f->size > n && memcmp(f->bytes + f->size - n, c->end, n) == 0;
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

// Runs the command and kills it after a time; never if that is negative. Its exit code, -1: killed.
static int run_for(const char *const *words, int64_t microseconds) {
    char texts[MOST_ARGS][2 * CLI_MOST_PATH];
    const char *argv[MOST_ARGS + 2] = {QUERN};
    int status;
    for (int i = 0; words[i]; i++) {
        const char *at = strchr(words[i], '@');
        snprintf(texts[i], sizeof texts[i], "%s%s", at ? folder : words[i], at ? at + 1 : "");
        argv[i + 1] = texts[i];
    }
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_redirect(0, "/dev/null", O_RDONLY);
        cli_redirect(1, "/dev/null", O_WRONLY);
        cli_redirect(2, "/dev/null", O_WRONLY);
        execv(QUERN, (char *const *)(uintptr_t)argv);
        _exit(99);
    }
    if (microseconds >= 0) {
        nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
        kill(pid, SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void check_after_kill(const command *c, const files *before, const files *after, int *n_new,
                             int *n_left) {
    files got = load_files();
    int n_whole_new = 0;
    for (int k = 0; k < got.n; k++) {
        if (!is_whole(c, before, after, &got.v[k]))
            fail_msg("%s: %s has %zu bytes, neither the old nor the new file", c->name,
                     got.v[k].name, got.v[k].size);
        n_whole_new += has(after, &got.v[k]);
    }
    if (got.n < before->n) fail_msg("%s: %d files, had %d", c->name, got.n, before->n);
    assert_true(got.n_temporary <= 2);
    *n_new += n_whole_new == after->n;
    if (got.n_temporary > 0) { // the next run removes it
        ++*n_left;
        assert_int_equal(run_for(c->after, -1), 0);
        files next = load_files();
        assert_int_equal(next.n_temporary, 0);
        free_files(&next);
    }
    free_files(&got);
}

static void kill_often(const command *c, uint32_t seed) {
    snprintf(folder, sizeof folder, "%s", cli_path(c->name));
    assert_int_equal(mkdir(folder, 0700), 0);
    if (c->before[0]) assert_int_equal(run_for(c->before, -1), 0);
    files before = load_files();
    const int64_t start = now();
    assert_int_equal(run_for(c->after, -1), 0);
    const int64_t time = now() - start; // so that kills fall on all of it
    files after = load_files();
    assert_true(after.n > 0 && after.n_temporary == 0);
    int n_new = 0, n_left = 0;
    for (int i = 0; i < n_kills; i++) {
        put_files(&before);
        seed = seed * 1664525u + 1013904223u;
        const int code = run_for(c->after, time * (int64_t)(seed >> 16) / 40000);
        if (code > 0) fail_msg("%s failed: %d", c->name, code);
        check_after_kill(c, &before, &after, &n_new, &n_left);
    }
    print_message("%s: of %d killed %d had written everything, %d left a temporary file\n", c->name,
                  n_kills, n_new, n_left);
    free_files(&before);
    free_files(&after);
}

#define SMALL MINI "/qwen3/qwen3-bf16.gguf"
#define TEXT  TEST_DATA "/../CMakeLists.txt"

static const command commands[] = {
    {"convert",
     {"convert", MINI "/qwen35_vl", "@/o.gguf"},
     {"convert", MINI "/qwen35_vl", "@/o.gguf", "--type", "F32"},
     NULL},
    {"quantize",
     {"quantize", SMALL, "@/o.gguf", "Q8_0"},
     {"quantize", SMALL, "@/o.gguf", "Q4_K_M"},
     NULL},
    {"imatrix",
     {"imatrix", SMALL, TEXT, "-o", "@/o.gguf", "--chunks", "1"},
     {"imatrix", SMALL, TEXT, "-o", "@/o.gguf", "--chunks", "2"},
     NULL},
    {"synth",
     {"synth", "tiny-qwen3", "Q8_0", "@/o.gguf"},
     {"synth", "tiny-qwen3", "Q4_0", "@/o.gguf"},
     NULL},
    {"compile", {NULL}, {"compile", DRAFT, "-o", "@"}, NULL},
    {"logits",
     {"logits", DRAFT, "--ids", "1", "-o", "@/o.bin"},
     {"logits", DRAFT, "--ids", "2,3", "-o", "@/o.bin"},
     NULL},
    {"graph",
     {"graph", DRAFT, "--svg", "@/o.svg"},
     {"graph", DRAFT, "--stage", "mid", "--svg", "@/o.svg"},
     NULL},
    {"inspect",
     {"inspect", DRAFT, "--svg", "@/o.svg"},
     {"inspect", SMALL, "--svg", "@/o.svg"},
     NULL},
    {"session",
     {"run", DRAFT, "-p", "Hi", "-n", "2", "--session", "@/s.json"},
     {"run", DRAFT, "-p", "Hi", "-n", "5", "--session", "@/s.json"},
     "\n ]\n}\n"}, // between the two it has the question, without an answer
    {"trace",
     {"run", DRAFT, "-p", "Hi", "-n", "1", "--trace", "@/t.json"},
     {"run", DRAFT, "-p", "Hi", "-n", "3", "--trace", "@/t.json"},
     "]}\n"},
    {"bench",
     {"bench", DRAFT, "-p2", "-n1", "-r1", "--trace", "@/t.json"},
     {"bench", DRAFT, "-p3", "-n1", "-r1", "--trace", "@/t.json"},
     "]}\n"},
};

static void test_killed_commands(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        kill_often(&commands[i], (uint32_t)i + 1);
}

int main(int argc, char **argv) {
    if (argc > 1) n_kills = atoi(argv[1]);
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_killed_commands)};
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

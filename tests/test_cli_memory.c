// Memory runs out at any moment of any command: the result is right, or there is an error that says
// so; never another result, a crash, or a damaged file.
//
//   test_cli_memory              a sample of the allocations of each command
//   test_cli_memory --all [NAME] every allocation of those whose name matches (make test-memory)
//   test_cli_memory --list       the names
//
// The allocations are failed by tests/fail_alloc.c, which is preloaded.
#define _GNU_SOURCE // nftw
#include "cli_run.h"

#include <dirent.h>
#include <ftw.h>
#include <sys/stat.h>

#define QWEN3 MINI "/qwen3/qwen3-bf16.gguf"

enum {
    N_SAMPLES = 8, // allocations that fail, of each command
    MAX_TOLD = 20, // failures printed of each command
    MAX_FILES = 16 // in the test's folder
};

static bool is_all;

// A file that commands find.
typedef struct given_file {
    const char *name, *text;
} given_file;

static const given_file given[] = {
    {"tools.json", "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": "
                   "\"adds\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": "
                   "{\"type\": \"number\"}}}}}]"},
    {"chat.json", "{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}], \"now\": "
                  "\"2026-01-02T03:04:05\"}"},
    {"text.txt", "Once upon a time there was a small mill. It ground corn all day and all night.\n"
                 "One day a dragon came by, and the mill stood still. Then the miller laughed.\n"},
    {"tasks.jsonl", "{\"skill\": \"sums\", \"prompt\": \"What is 1 + 2?\", \"expected\": [\"3\"], "
                    "\"checker\": \"contains\"}\n"},
    {"config.toml", "temp = 0.5\nstop = [\"a\", \"b\"]\nlora = \"~/a\"\n[bench]\ndepth = [0, 512]\n"
                    "[tokenize]\njson = true\n"},
    {"list.gbnf", "root ::= \"- \" [a-z]+ \"\\n\" (\"- \" [a-z]+ \"\\n\")*\n"},
    {"list.jinja", "{% for m in messages %}{{ m.role | upper }}: {{ m.content | trim }}\n"
                   "{% endfor %}{% set ns = namespace(n=1) %}{{ ns.n + 1 }}{{ tools | tojson }}"},
};

typedef struct command {
    const char *name;
    const char *args[16];   // FOLDER at the beginning stands for the test's own folder
    const char *first[16];  // a command that runs before, with all its memory; none: nothing
    const char *stdin_name; // a given file; NULL: nothing
    bool numbers_vary;      // in what it prints: times and speeds
    bool has_config;        // "config.toml" is the user's file
    bool records;           // `first` keeps its steps in the file "steps"
} command;

static const command commands[] = {
    {"run", .args = {"run", QWEN3, "-p", "Hello there", "-n", "4", "-t", "1"}},
    {"run_json",
     .args = {"run", QWEN3, "-p", "Hi", "-n", "3", "--json", "--logprobs", "2", "-t", "1"},
     .numbers_vary = true},
    {"run_sampled", .args = {"run", QWEN3, "-p", "Hi", "-n", "4", "--temp", "0.9", "--top-k", "40",
                             "--dry-multiplier", "0.5", "--repeat-penalty", "1.1", "-t", "1"}},
    {"run_session_new",
     .args = {"run", QWEN3, "-p", "Hi", "-n", "3", "--session", "FOLDER/new.json", "-t", "1"}},
    {"run_session_kept",
     .first = {"run", QWEN3, "-p", "Hello", "-n", "3", "--session", "FOLDER/kept.json", "-t", "1"},
     .args = {"run", QWEN3, "-p", "And then?", "-n", "3", "--session", "FOLDER/kept.json", "-t",
              "1"}},
    {"run_cache_filled", .first = {"compile", QWEN3, "-o", "FOLDER/packed", "-t", "1"},
     .args = {"run", QWEN3, "-p", "Hi", "-n", "3", "--cache-dir", "FOLDER/packed", "-t", "1"}},
    {"run_cache_found", .first = {"compile", "FOLDER/beside/model.gguf", "-t", "1"},
     .args = {"run", "FOLDER/beside/model.gguf", "-p", "Hi", "-n", "3", "-t", "1"}},
    {"run_tools",
     .args = {"run", QWEN3, "-p", "Hi", "-n", "3", "--tools", "FOLDER/tools.json", "-t", "1"}},
    {"run_schema", .args = {"run", QWEN3, "-p", "Hi", "-n", "8", "-t", "1", "-j",
                            "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
                            "\"integer\"}, \"b\": {\"enum\": "
                            "[\"x\", 2, null]}}, \"required\": [\"a\", \"b\"]}"}},
    {"run_regex",
     .args = {"run", QWEN3, "-p", "Hi", "-n", "8", "--regex", "(ab|[0-9]+){2,5}", "-t", "1"}},
    {"run_gbnf", .args = {"run", QWEN3, "-p", "Hi", "-n", "8", "--grammar-file", "FOLDER/list.gbnf",
                          "-t", "1"}},
    {"run_draft",
     .args = {"run", QWEN3, "-p", "Hi", "-n", "4", "--draft", QWEN3, "--lookup", "-t", "1"}},
    {"run_raw_folder", .args = {"run", MINI "/qwen3", "-p", "Hi", "-n", "3", "--raw", "-t", "1"}},
    {"run_stdin", .args = {"run", QWEN3, "-n", "3", "-t", "1"}, .stdin_name = "text.txt"},
    {"run_threads", .args = {"run", QWEN3, "-p", "Hi", "-n", "3", "-t", "3"}},
    {"logits", .args = {"logits", QWEN3, "--ids", "1,2,3", "-t", "1"}},
    {"embed", .args = {"embed", QWEN3, "one", "two", "--normalize", "-t", "1"}},
    {"logits_folder", .args = {"logits", MINI "/gemma3", "-p", "Hello", "-t", "1"}},
    {"logits_hybrid",
     .args = {"logits", MINI "/qwen35", "--ids", "1,2,3", "--chunk", "2", "-t", "1"}},
    {"logits_experts", .args = {"logits", MINI "/qwen3_moe", "--ids", "1,2,3", "-t", "1"}},
    {"logits_ref", .args = {"logits", QWEN3, "--ids", "1,2,3", "--ref", "--all", "--hidden", "-o",
                            "FOLDER/out.safetensors", "-t", "1"}},
    {"logits_replay", .first = {"logits", QWEN3, "--ids", "1,2,3", "-t", "1"}, .records = true,
     .args = {"logits", QWEN3, "--replay", "FOLDER/steps", "-t", "1"}},
    {"tokenize_gguf", .args = {"tokenize", QWEN3, "--json", "Hello world 12"}},
    {"tokenize_json",
     .args = {"tokenize", MINI "/qwen3/tokenizer.json", "--special", "Hello <|im_end|> world"}},
    {"tokenize_folder", .args = {"tokenize", MINI "/gemma", "Hello world"}},
    {"detokenize", .args = {"detokenize", QWEN3, "60", "61", "300"}},
    {"template", .args = {"template", QWEN3}, .stdin_name = "chat.json"},
    {"template_file", .args = {"template", "FOLDER/list.jinja"}, .stdin_name = "chat.json"},
    {"inspect", .args = {"inspect", QWEN3, "--tensors", "--keys"}},
    {"inspect_memory", .args = {"inspect", QWEN3, "--memory"}, .numbers_vary = true},
    {"inspect_json", .args = {"inspect", MINI "/qwen35_moe", "--json", "--tensors", "--keys"}},
    {"inspect_memory_json", .args = {"inspect", MINI "/qwen35_moe", "--json", "--memory"},
     .numbers_vary = true},
    {"inspect_coverage", .args = {"inspect", QWEN3, "--coverage", "--fusions"}},
    {"graph", .args = {"graph", QWEN3}},
    {"graph_low", .args = {"graph", QWEN3, "--stage", "low", "-T", "4"}},
    {"graph_svg", .args = {"graph", QWEN3, "--stage", "mid", "--svg", "FOLDER/graph.svg"}},
    {"bench", .args = {"bench", QWEN3, "-p", "4", "-n", "2", "-r", "1", "--json", "-t", "1"},
     .numbers_vary = true},
    {"eval_ppl",
     .args = {"eval", QWEN3, "--ppl", "FOLDER/text.txt", "-c", "16", "--json", "-t", "1"}},
    {"eval_tasks",
     .args = {"eval", QWEN3, "--tasks", "FOLDER/tasks.jsonl", "-n", "3", "--json", "-t", "1"}},
    {"eval_against", .args = {"eval", QWEN3, "--ppl", "FOLDER/text.txt", "-c", "16", "--against",
                              QWEN3, "--json", "-t", "1"}},
    {"compile", .args = {"compile", QWEN3, "-o", "FOLDER/packed", "-t", "1"}, .numbers_vary = true},
    {"convert", .args = {"convert", MINI "/qwen3", "FOLDER/out.gguf"}, .numbers_vary = true},
    {"convert_tower", .args = {"convert", MINI "/qwen35_vl", "FOLDER/out.gguf", "--type", "Q8_0"},
     .numbers_vary = true},
    {"quantize", .args = {"quantize", QWEN3, "FOLDER/out.gguf", "Q4_0", "-t", "1"},
     .numbers_vary = true},
    {"imatrix", .args = {"imatrix", QWEN3, "FOLDER/text.txt", "-o", "FOLDER/out.gguf", "--chunks",
                         "1", "-t", "1"}},
    {"synth", .args = {"synth", "tiny-gemma3", "Q8_0", "FOLDER/out.gguf", "-t", "1"},
     .numbers_vary = true},
    {"list", .args = {"list"}},
    {"list_json", .args = {"list", "--json"}},
    {"show", .args = {"show", "o/own:q8_0"}},
    {"show_ollama", .args = {"show", "two:8b", "--json"}},
    {"tokenize_name", .args = {"tokenize", "own", "Hello world"}},
    {"help", .args = {"help", "run"}},
    {"help_config_run", .args = {"help", "run"}, .has_config = true},
    {"help_config_bench", .args = {"help", "bench"}, .has_config = true},
    {"help_config", .args = {"help", "config"}},
    {"help_manual", .args = {"help", "manual", "run"}},
    {"help_completion", .args = {"help", "completion", "zsh"}},
    {"tokenize_config", .args = {"tokenize", QWEN3, "Hello world"}, .has_config = true},
    {"version", .args = {"--version"}},
};

// --- the folder ----------------------------------------------------------------------------------

// A file that a command made or changed.
typedef struct made_file {
    char name[256]; // below the folder
    char *bytes;
    size_t size;
} made_file;

typedef struct made_files {
    size_t n;
    made_file files[MAX_FILES];
} made_files;

static void made_free(made_files *made) {
    for (size_t i = 0; i < made->n; i++) free(made->files[i].bytes);
    made->n = 0;
}

static const made_file *made_find(const made_files *made, const char *name) {
    for (size_t i = 0; i < made->n; i++)
        if (strcmp(made->files[i].name, name) == 0) return &made->files[i];
    return NULL;
}

static bool is_same_file(const made_file *a, const made_file *b) {
    return a && b && a->size == b->size && memcmp(a->bytes, b->bytes, a->size) == 0;
}

// Ours are the given ones, what cli_run.h keeps there, and a model with the cache folder beside it,
// which is only read, and is another one once it was removed and made again.
static bool is_ours(const char *name) {
    static const char *const ours[] = {"stdin", "stdout", "stderr", "count"};
    if (strncmp(name, "beside", 6) == 0) return true;
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (strcmp(name, ours[i]) == 0) return true;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++)
        if (strcmp(name, given[i].name) == 0) return true;
    return false;
}

static made_files *ftw_to; // nftw() has no argument for its callback

static int collect(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st, (void)at;
    const char *name = path + strlen(cli_folder) + 1;
    // The file that ties a cache folder to its place differs from folder to folder.
    if (kind != FTW_F || is_ours(name) || strcmp(name, "packed/origin") == 0) return 0;
    if (ftw_to->n == MAX_FILES) fail_msg("more than %d files in the folder", MAX_FILES);
    made_file *file = &ftw_to->files[ftw_to->n++];
    snprintf(file->name, sizeof file->name, "%s", name);
    file->bytes = cli_load(path, &file->size);
    return 0;
}

static void made_load(made_files *made) {
    made->n = 0;
    ftw_to = made;
    assert_int_equal(nftw(cli_folder, collect, 8, FTW_PHYS), 0);
}

static int drop(const char *path, const struct stat *st, int kind, struct FTW *at) {
    (void)st;
    if (at->level == 0 || is_ours(path + strlen(cli_folder) + 1)) return 0;
    return kind == FTW_DP ? rmdir(path) : unlink(path);
}

// Puts the folder back to what it was before the command.
static void made_reset(const made_files *before) {
    assert_int_equal(nftw(cli_folder, drop, 8, FTW_PHYS | FTW_DEPTH), 0);
    for (size_t i = 0; i < before->n; i++) {
        const char *name = before->files[i].name, *path = cli_path(name);
        if (strchr(name, '/')) (void)mkdir(cli_path("packed"), 0700); // it may be there
        cli_save(path, before->files[i].bytes, before->files[i].size);
    }
}

// --- one run -------------------------------------------------------------------------------------

// `from` (16): arguments, in which FOLDER stands for the test's own.
static cli_result run_in_folder(const char *const *from, const char *text) {
    char paths[16][CLI_MOST_PATH];
    const char *args[17] = {NULL};
    for (size_t i = 0; i < 16 && from[i]; i++) {
        const bool is_path = strncmp(from[i], "FOLDER/", 7) == 0;
        if (is_path) snprintf(paths[i], sizeof paths[i], "%.100s/%.300s", cli_folder, from[i] + 7);
        args[i] = is_path ? paths[i] : from[i];
    }
    return cli_run_with(&(cli_input){.stdin_text = text}, args);
}

// Runs the command while allocation `at` fails (0: none), and with `is_on` all after it.
static cli_result run_failing(const command *c, long at, bool is_on) {
    char number[32];
    char *text = c->stdin_name ? cli_load(cli_path(c->stdin_name), NULL) : NULL;
    snprintf(number, sizeof number, "%ld", at);
    setenv("LD_PRELOAD", FAIL_ALLOC, 1);
    setenv("FAIL_AT", number, 1);
    setenv("FAIL_COUNT", cli_path("count"), 1);
    if (is_on) setenv("FAIL_ON", "1", 1);
    if (c->has_config) setenv("QUERN_CONFIG", cli_path("config.toml"), 1);
    const cli_result r = run_in_folder(c->args, text);
    unsetenv("LD_PRELOAD");
    unsetenv("FAIL_ON"), unsetenv("QUERN_CONFIG");
    free(text);
    return r;
}

static long count_allocations(void) {
    char *text = cli_load(cli_path("count"), NULL);
    const long n = atol(text);
    free(text);
    return n;
}

// Numbers of any length become one letter.
static void hide_numbers(char *text) {
    char *to = text;
    for (const char *p = text; *p; p++) {
        const bool is_exponent = to > text && to[-1] == '#' && strncmp(p, "e-", 2) == 0;
        const bool is_number = is_exponent || strchr("0123456789.", *p) != NULL;
        p += is_exponent;
        if (is_number && to > text && to[-1] == '#') continue;
        *to++ = is_number ? '#' : *p;
    }
    *to = 0;
}

// The last line of a failed command's stderr.
static const char *last_line(const char *text) {
    const char *line = text;
    for (const char *p = text; *p; p++)
        if (*p == '\n' && p[1]) line = p + 1;
    return line;
}

typedef struct outcome {
    cli_result r;
    made_files made;
} outcome;

static void outcome_free(outcome *o) {
    cli_free(&o->r);
    made_free(&o->made);
}

static outcome run_once(const command *c, const made_files *before, long at, bool is_on) {
    outcome o;
    made_reset(before);
    o.r = run_failing(c, at, is_on);
    made_load(&o.made);
    if (c->numbers_vary) {
        hide_numbers(o.r.out);
        hide_numbers(o.r.err);
    }
    return o;
}

// What is wrong with the outcome; NULL: nothing.
static const char *judge_done(const outcome *o, const outcome *right) {
    if (strcmp(o->r.out, right->r.out) != 0) return "exit code 0, and another output";
    if (o->made.n != right->made.n) return "exit code 0, and another number of files";
    for (size_t i = 0; i < o->made.n; i++)
        if (!is_same_file(&o->made.files[i], made_find(&right->made, o->made.files[i].name)))
            return "exit code 0, and another file";
    if (strcmp(o->r.err, right->r.err) != 0 && !strstr(o->r.err, "memory"))
        return "exit code 0, and another message";
    return NULL;
}

static const char *judge_failed(const outcome *o, const outcome *right, const made_files *before) {
    const char *line = last_line(o->r.err);
    if (o->r.code != 1) return "an exit code that is not 1";
    if (strncmp(line, "quern: ", 7) != 0 || !strstr(line, "memory"))
        return "an error that does not speak of memory";
    if (strncmp(right->r.out, o->r.out, strlen(o->r.out)) != 0)
        return "an output that is not the beginning of the right one";
    for (size_t i = 0; i < o->made.n; i++) {
        const made_file *file = &o->made.files[i];
        if (!is_same_file(file, made_find(&right->made, file->name)) &&
            !is_same_file(file, made_find(before, file->name)))
            return "a file that is neither the old one nor the new one";
    }
    for (size_t i = 0; i < before->n; i++)
        if (!made_find(&o->made, before->files[i].name)) return "a file is gone";
    return NULL;
}

static bool is_wrong(const command *c, const outcome *right, const made_files *before, long at,
                     bool is_on, int n_told) {
    outcome o = run_once(c, before, at, is_on);
    const char *why = o.r.code == 0 ? judge_done(&o, right) : judge_failed(&o, right, before);
    if (why && n_told < MAX_TOLD)
        print_error(
            "%s, allocation %ld%s: %s (exit code %d)\n  stdout '%.120s'\n  stderr '%.200s'\n",
            c->name, at, is_on ? " and all after it" : "", why, o.r.code, o.r.out, o.r.err);
    outcome_free(&o);
    return why != NULL;
}

// --- the tests -----------------------------------------------------------------------------------

static void memory_runs_out(void **state) {
    const command *c = *state;
    made_files before = {0};
    if (c->first[0]) {
        if (c->records) setenv("QN_STEPS", cli_path("steps"), 1);
        cli_result r = run_in_folder(c->first, NULL);
        unsetenv("QN_STEPS");
        if (r.code != 0) fail_msg("exit code %d, '%s'", r.code, r.err);
        if (c->records) assert_non_null(strstr(r.err, "quern: note: steps are recorded in /"));
        cli_free(&r);
        made_load(&before);
    }
    outcome right = run_once(c, &before, 0, false);
    if (right.r.code != 0) fail_msg("exit code %d, '%s'", right.r.code, right.r.err);
    const long n = count_allocations();
    const long step = is_all || n < N_SAMPLES ? 1 : n / N_SAMPLES;
    int n_wrong = 0;
    // The places differ from command to command.
    for (long at = 1 + (is_all ? 0 : n % step); at <= n; at += step) {
        n_wrong += is_wrong(c, &right, &before, at, false, n_wrong);
        // All after it: sooner or later a failure, which is more often the same one.
        if (!is_all || at % 8 == 0) n_wrong += is_wrong(c, &right, &before, at, true, n_wrong);
    }
    if (is_all) print_message("%s: %ld allocations, %d wrong\n", c->name, n, n_wrong);
    made_reset(&(made_files){0});
    outcome_free(&right);
    made_free(&before);
    if (n_wrong) fail_msg("%d wrong outcomes", n_wrong);
}

// Models of every program, which are links to one.
static int make_models(void) {
    static const char *const steps[] = {
        "mkdir -p own/o/own hf/hub/models--o--hub/snapshots/a llama ollama/blobs "
        "ollama/manifests/registry.ollama.ai/library/two",
        "ln -s ../../../model.gguf own/o/own/own-Q8_0.gguf",
        "cp model.gguf hf/hub/models--o--hub/snapshots/a/hub-Q8_0.gguf",
        "cp model.gguf llama/o_x_x-Q8_0.gguf",
        "printf '{\"url\": \"https://huggingface.co/o/x/resolve/main/x-Q8_0.gguf\"}' > "
        "llama/o_x_x-Q8_0.gguf.json",
        "sum=$(sha256sum model.gguf | cut -c 1-64) && cp model.gguf ollama/blobs/sha256-$sum && "
        "printf '{\"layers\": [{\"mediaType\": \"application/vnd.ollama.image.model\", "
        "\"digest\": \"sha256:%s\", \"size\": %d}]}' $sum $(stat -c %s model.gguf) > "
        "ollama/manifests/registry.ollama.ai/library/two/8b",
    };
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        char line[2 * CLI_MOST_PATH];
        snprintf(line, sizeof line, "cd %s && %s", cli_path("beside"), steps[i]);
        if (system(line) != 0) return -1;
    }
    setenv("QUERN_MODELS", cli_path("beside/own"), 1);
    setenv("HF_HOME", cli_path("beside/hf"), 1);
    setenv("LLAMA_CACHE", cli_path("beside/llama"), 1);
    setenv("OLLAMA_MODELS", cli_path("beside/ollama"), 1);
    return 0;
}

static int make_given(void **state) {
    const int status = cli_setup(state);
    for (size_t i = 0; status == 0 && i < sizeof given / sizeof *given; i++)
        cli_save(cli_path(given[i].name), given[i].text, strlen(given[i].text));
    if (status) return status;
    size_t size;
    char *model = cli_load(QWEN3, &size);
    assert_int_equal(mkdir(cli_path("beside"), 0700), 0);
    cli_save(cli_path("beside/model.gguf"), model, size);
    free(model);
    return make_models();
}

int main(int argc, char **argv) {
    enum { N = sizeof commands / sizeof *commands };
    struct CMUnitTest tests[N];
    for (size_t i = 0; i < N; i++)
        tests[i] = (struct CMUnitTest){.name = commands[i].name,
                                       .test_func = memory_runs_out,
                                       .initial_state = (void *)(uintptr_t)&commands[i]};
    if (argc > 1 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < N; i++) puts(commands[i].name);
        return 0;
    }
    is_all = argc > 1 && strcmp(argv[1], "--all") == 0;
    if (is_all && argc > 2) cmocka_set_test_filter(argv[2]);
    return cmocka_run_group_tests_name("memory", tests, make_given, cli_teardown);
}

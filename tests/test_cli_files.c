// The command line: files that are written, and those that are left alone.
#include "cli_run.h"

#include <sys/stat.h>

static void assert_same_file(const char *path, const char *want, size_t want_size) {
    size_t size;
    char *data = cli_load(path, &size);
    assert_int_equal(size, want_size);
    assert_memory_equal(data, want, size);
    free(data);
}

// Every command that writes a file, with "?" for its name.
static const struct {
    const char *args[8], *kind;
} writers[] = {
    {{"graph", DRAFT, "--svg", "?"}, "SVG file"},
    {{"inspect", DRAFT, "--svg", "?"}, "SVG file"},
    {{"logits", DRAFT, "--ids", "1", "-o", "?"}, "file that 'quern logits' wrote"},
    {{"run", DRAFT, "-p", "Hi", "-n1", "--trace", "?"}, "trace that Quern wrote"},
    {{"bench", DRAFT, "-p2", "-n1", "-r1", "--trace", "?"}, "trace that Quern wrote"},
    {{"imatrix", DRAFT, "?words", "-o", "?"}, "GGUF file"},
    {{"synth", "tiny-llama", "Q4_0", "?"}, "GGUF file"},
    {{"quantize", DRAFT, "?", "Q4_0"}, "GGUF file"},
    {{"convert", MINI "/qwen3", "?"}, "GGUF file"},
};
enum { N_WRITERS = sizeof writers / sizeof *writers };

static cli_result write_to(int i, const char *path) {
    const char *args[8] = {NULL};
    for (int k = 0; k < 8 && writers[i].args[k]; k++) {
        const char *arg = writers[i].args[k];
        args[k] = strcmp(arg, "?") == 0 ? path : *arg == '?' ? cli_path(arg + 1) : arg;
    }
    return cli_run_with(&(cli_input){0}, args);
}

// A result replaces what is empty or of its own kind, and nothing else.
static void test_only_its_own_kind_is_replaced(void **state) {
    (void)state;
    static const char note[] = "remember the milk\n";
    static const char text[] = "Once upon a time there was a little mill in the valley.";
    cli_save(cli_path("words"), text, strlen(text));
    for (int i = 0; i < N_WRITERS; i++) {
        char *path = strdup(cli_path("result"));
        cli_save(path, note, strlen(note));
        cli_result refused = write_to(i, path);
        cli_assert_fails(&refused, 1, "exists and is not a");
        if (!strstr(refused.err, writers[i].kind) || !strstr(refused.err, path))
            fail_msg("%s", refused.err);
        assert_same_file(path, note, strlen(note));
        cli_save(path, "", 0);
        cli_result first = write_to(i, path), again = write_to(i, path);
        assert_int_equal(first.code, 0);
        assert_int_equal(again.code, 0);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_true(st.st_size > 0);
        cli_result folder = write_to(i, "/");
        cli_assert_fails(&folder, 1, "is a folder");
        cli_free(&refused), cli_free(&first), cli_free(&again), cli_free(&folder);
        remove(path);
        free(path);
    }
}

static void test_standard_output_is_no_file(void **state) {
    (void)state;
    cli_save(cli_path("words"), "words", 5);
    for (int i = 0; i < N_WRITERS; i++) {
        cli_result r = write_to(i, "-");
        cli_assert_fails(&r, 2, "'-', want the name of a file");
        cli_free(&r);
    }
}

static void copy(const char *from, const char *to) {
    size_t size;
    char *data = cli_load(from, &size);
    cli_save(to, data, size);
    free(data);
}

// The model that is being read is never replaced, also where the result would be of its kind.
static void test_the_model_is_left_alone(void **state) {
    (void)state;
    assert_int_equal(mkdir(cli_path("model"), 0700), 0);
    copy(MINI "/qwen3/config.json", cli_path("model/config.json"));
    copy(MINI "/qwen3/model.safetensors", cli_path("model/model.safetensors"));
    copy(MINI "/qwen3/tokenizer.json", cli_path("model/tokenizer.json"));
    char *gguf = strdup(cli_path("model.gguf")), *folder = strdup(cli_path("model")),
         *weights = strdup(cli_path("model/model.safetensors"));
    copy(DRAFT, gguf);
    cli_save(cli_path("words"), "words", 5);
    size_t gguf_size, weights_size;
    char *gguf_data = cli_load(gguf, &gguf_size), *data = cli_load(weights, &weights_size);
    cli_result runs[] = {
        CLI_RUN("graph", gguf, "--svg", gguf),
        CLI_RUN("inspect", gguf, "--svg", gguf),
        CLI_RUN("logits", folder, "--ids", "1", "-o", weights),
        CLI_RUN("run", gguf, "-p", "Hi", "-n1", "--trace", gguf),
        CLI_RUN("imatrix", gguf, cli_path("words"), "-o", gguf),
        CLI_RUN("quantize", gguf, gguf, "Q4_0"),
        CLI_RUN("convert", folder, weights),
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        assert_int_equal(runs[i].code, 1);
        cli_free(&runs[i]);
    }
    assert_same_file(gguf, gguf_data, gguf_size);
    assert_same_file(weights, data, weights_size);
    free(gguf), free(folder), free(weights), free(gguf_data), free(data);
}

// A vision tower is a second file beside the first, and looks where it goes too.
static void test_the_place_of_a_tower(void **state) {
    (void)state;
    static const char note[] = "not yours";
    char *tower = strdup(cli_path("mmproj-eyes.gguf")), *out = strdup(cli_path("eyes.gguf"));
    cli_save(tower, note, strlen(note));
    cli_result runs[] = {CLI_RUN("convert", MINI "/qwen35_vl", out),
                         CLI_RUN("quantize", MINI "/qwen35_vl", out, "Q8_0")};
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cli_assert_fails(&runs[i], 1, "mmproj-eyes.gguf: exists and is not a GGUF file");
        cli_free(&runs[i]);
    }
    assert_same_file(tower, note, strlen(note));
    assert_int_not_equal(access(out, F_OK), 0);
    free(tower), free(out);
}

// --- permissions ---------------------------------------------------------------------------------

static int mode_of(const char *path) {
    struct stat st;
    if (stat(path, &st) != 0) fail_msg("no %s", path);
    return (int)(st.st_mode & 07777);
}

// A conversation is its owner's alone; what anybody says of a file's permissions lasts.
static void test_permissions_of_outputs(void **state) {
    (void)state;
    static const char *const names[] = {"s.json", "g.svg",  "l.bin", "q.gguf",
                                        "t.json", "y.gguf", "i.gguf"};
    char *paths[7], *words = strdup(cli_path("permission-words"));
    cli_save(words, "Once upon a time there was a mill.", 34);
    for (size_t i = 0; i < 7; i++) paths[i] = strdup(cli_path(names[i]));
    const char *const commands[][10] = {
        {"run", DRAFT, "-p", "Hi", "-n", "1", "--session", paths[0]},
        {"graph", DRAFT, "--svg", paths[1]},
        {"logits", DRAFT, "--ids", "1", "-o", paths[2]},
        {"quantize", MINI "/qwen3/qwen3-bf16.gguf", paths[3], "Q8_0"},
        {"run", DRAFT, "-p", "Hi", "-n", "1", "--trace", paths[4]},
        {"synth", "tiny-qwen3", "Q4_0", paths[5]},
        {"imatrix", DRAFT, words, "-o", paths[6]}};
    const mode_t mask = umask(022);
    for (size_t i = 0; i < 7; i++) {
        cli_result first = cli_run_with(&(cli_input){0}, commands[i]);
        assert_int_equal(first.code, 0);
        assert_int_equal(mode_of(paths[i]), i == 0 ? 0600 : 0644);
        assert_int_equal(chmod(paths[i], i == 0 ? 0640 : 0600), 0);
        cli_result second = cli_run_with(&(cli_input){0}, commands[i]);
        assert_int_equal(second.code, 0);
        assert_int_equal(mode_of(paths[i]), i == 0 ? 0640 : 0600);
        cli_free(&first), cli_free(&second);
    }
    umask(mask);
    for (size_t i = 0; i < 7; i++) free(paths[i]);
    free(words);
}

// --- cache folders -------------------------------------------------------------------------------

// What 'compile' leaves beside a model is found without a word, unless it is not wanted.
static void test_the_folder_beside_a_model_is_used(void **state) {
    (void)state;
    assert_int_equal(mkdir(cli_path("home"), 0700), 0);
    char *model = strdup(cli_path("home/m.gguf")), *text = strdup(cli_path("home/text"));
    copy(DRAFT, model);
    cli_save(text, "Once upon a time there was a mill.", 34);
    cli_result plain = CLI_RUN("logits", model, "--ids", "1,2");
    cli_assert_done(&plain);
    assert_int_not_equal(access(cli_path("home/.quern-cache"), F_OK), 0); // none is made
    cli_result made = CLI_RUN("compile", model);
    cli_assert_done(&made);
    assert_non_null(strstr(made.out, "; 'quern run MODEL' uses them"));
    // Damaged packs show who looks at them; nobody writes there but 'compile'.
    char command[CLI_MOST_PATH];
    snprintf(command, sizeof command, "for f in '%s'/*.packs; do : > \"$f\"; done",
             cli_path("home/.quern-cache"));
    const char *const users[][8] = {{"logits", model, "--ids", "1,2"},
                                    {"run", model, "-p", "Hi", "-n", "1"},
                                    {"bench", model, "-p2", "-n1", "-r1"},
                                    {"eval", model, "--ppl", text}};
    for (size_t i = 0; i < sizeof users / sizeof *users; i++) {
        assert_int_equal(system(command), 0);
        cli_result unused = CLI_RUN(users[i][0], users[i][1], users[i][2],
                                    users[i][3] ? users[i][3] : "", "--cache-dir", "none");
        cli_result used = cli_run_with(&(cli_input){0}, users[i]);
        assert_int_equal(used.code, 0);
        if (!strstr(used.err, "home/.quern-cache/m.gguf")) fail_msg("'%s'", used.err);
        if (strstr(unused.err, ".quern-cache")) fail_msg("'%s'", unused.err);
        if (i == 0) assert_string_equal(used.out, plain.out);
        cli_free(&unused), cli_free(&used);
    }
    cli_result again = CLI_RUN("compile", model);
    assert_int_equal(again.code, 0);
    assert_non_null(strstr(again.out, "1 file, "));
    cli_free(&plain), cli_free(&made), cli_free(&again);
    free(model), free(text);
}

// A folder that came with a model is not used, and what it points to is left alone.
static void test_a_folder_that_came_with_a_model(void **state) {
    (void)state;
    char command[4 * CLI_MOST_PATH], *notes = strdup(cli_path("notes.txt"));
    assert_int_equal(mkdir(cli_path("sender"), 0700), 0);
    char *model = strdup(cli_path("sender/m.gguf")), *got = strdup(cli_path("got/m.gguf"));
    copy(DRAFT, model);
    cli_result made = CLI_RUN("compile", model);
    cli_assert_done(&made);
    cli_save(notes, "my notes", 8);
    assert_int_equal(chmod(notes, 0600), 0);
    snprintf(command, sizeof command,
             "cd '%s/sender/.quern-cache' && for f in *; do ln -sf ../../notes.txt $f; done && "
             "cd ../.. && tar cf - -C sender . | (mkdir got && tar xf - -C got)",
             cli_folder);
    assert_int_equal(system(command), 0);
    cli_result r = CLI_RUN("run", got, "-p", "Hi", "-n", "1"),
               plain = CLI_RUN("run", got, "-p", "Hi", "-n", "1", "--cache-dir", "none");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.out, plain.out);
    if (!strstr(r.err, "got/.quern-cache is not used: ")) fail_msg("'%s'", r.err);
    assert_same_file(notes, "my notes", 8);
    assert_int_equal(mode_of(notes), 0600);
    cli_result mine = CLI_RUN("compile", got); // whoever compiles has a folder of files
    assert_int_equal(mine.code, 0);
    assert_same_file(notes, "my notes", 8);
    cli_result used = CLI_RUN("run", got, "-p", "Hi", "-n", "1");
    cli_assert_done(&used);
    cli_free(&made), cli_free(&r), cli_free(&plain), cli_free(&mine), cli_free(&used);
    free(notes), free(model), free(got);
}

// The disk is full after 64 KiB.
static void test_compile_on_a_full_disk(void **state) {
    (void)state;
    char *folder = strdup(cli_path("full"));
    const cli_input input = {.program = "/bin/sh"};
    char command[2 * CLI_MOST_PATH];
    snprintf(command, sizeof command, "ulimit -f 128; exec '%s' compile '%s' -o '%s'", QUERN, DRAFT,
             folder);
    cli_result r = cli_run_with(&input, (const char *[]){"-c", command, NULL});
    cli_assert_fails(&r, 1, "cannot write: File too large");
    assert_non_null(strstr(r.err, ".packs: "));
    cli_free(&r);
    free(folder);
}

// A folder that cannot be used is one warning, and the model runs.
static void test_useless_cache_folders(void **state) {
    (void)state;
    char *file = strdup(cli_path("plain-file")), *inside = strdup(cli_path("plain-file/a/b")),
         *deep = strdup(cli_path("deep/er"));
    cli_save(file, "", 0);
    const char *const cases[][2] = {
        {file, "plain-file is not used: it is a file, not a folder"},
        {inside, "plain-file/a/b is not used: it is a file, not a folder, or is inside one"},
        {"/proc/quern", "cache folder /proc/quern is not used: "}};
    cli_result plain = CLI_RUN("logits", DRAFT, "--ids", "1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = CLI_RUN("logits", DRAFT, "--ids", "1", "--cache-dir", cases[i][0]);
        assert_int_equal(r.code, 0);
        assert_string_equal(r.out, plain.out);
        if (!strstr(r.err, cases[i][1]) || strchr(r.err, '\n')[1]) fail_msg("'%s'", r.err);
        cli_free(&r);
    }
    cli_result made = CLI_RUN("logits", DRAFT, "--ids", "1", "--cache-dir", deep);
    assert_int_equal(made.code, 0);
    assert_int_equal(access(deep, F_OK), 0);
    assert_null(strstr(made.err, "warning"));
    cli_free(&plain), cli_free(&made);
    free(file), free(inside), free(deep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_only_its_own_kind_is_replaced),
        cmocka_unit_test(test_standard_output_is_no_file),
        cmocka_unit_test(test_the_model_is_left_alone),
        cmocka_unit_test(test_the_place_of_a_tower),
        cmocka_unit_test(test_permissions_of_outputs),
        cmocka_unit_test(test_the_folder_beside_a_model_is_used),
        cmocka_unit_test(test_a_folder_that_came_with_a_model),
        cmocka_unit_test(test_compile_on_a_full_disk),
        cmocka_unit_test(test_useless_cache_folders),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

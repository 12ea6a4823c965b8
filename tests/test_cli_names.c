// Models by name, without a network: our folder, the caches of other programs, and what happens
// where these are not as they should be.
#include "hub_rig.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static int setup(void **state) { return hub_setup(state); }

// Each test has its own, empty folders.
static int begin(void **state) {
    (void)state;
    hub_shell("cd %s && rm -rf models hf llama ollama away && mkdir models away", cli_folder);
    return 0;
}

// A model in our folder.
static void put(const char *below) {
    hub_shell("cd %s && mkdir -p \"$(dirname '%s')\" && cp %s '%s'", hub_models, below, DRAFT,
              below);
}

static void assert_runs(const char *name) {
    cli_result r = CLI_RUN("tokenize", name, "Hello");
    if (r.code != 0 || strcmp(r.out, "1222\n") != 0)
        fail_msg("%s: exit code %d, '%s', stderr '%s'", name, r.code, r.out, r.err);
    cli_free(&r);
}

static void assert_refused(const char *name, const char *part) {
    cli_result r = CLI_RUN("tokenize", name, "Hello");
    cli_assert_fails(&r, 1, part);
    cli_free(&r);
}

static void assert_listed(const char *name, const char *keeper, bool is_listed) {
    cli_result r = CLI_RUN("list", "--json");
    assert_int_equal(r.code, 0);
    json_t *list = cli_json(r.out);
    bool is_there = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *o = json_array_get(list, i);
        is_there |= strcmp(json_string_value(json_object_get(o, "name")), name) == 0 &&
                    strcmp(json_string_value(json_object_get(o, "keeper")), keeper) == 0;
    }
    if (is_there != is_listed) fail_msg("%s of %s: %s", name, keeper, r.out);
    json_decref(list);
    cli_free(&r);
}

// --- names ---------------------------------------------------------------------------------------

static void a_beginning_is_enough(void **state) {
    (void)state;
    static const char *const good[] = {"qwen3-0.6b",
                                       "QWEN3-0.6B-gguf",
                                       "qwen/qwen3-0.6b-gguf",
                                       "Qwen/Qwen3-0.6B-GGUF:Q8_0",
                                       "qwen3-0.6b:q8_0",
                                       "qwen3-0.6b:q",
                                       "qwen3-0.6b-q8_0",
                                       "hf:Qwen/Qwen3-0.6B-GGUF",
                                       "sm",
                                       "small",
                                       "hf.co/qwen/qwen3-0.6b-gguf:q8_0",
                                       "https://huggingface.co/Qwen/Qwen3-0.6B-GGUF"};
    put("Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf");
    put("Qwen/Qwen3-1.7B-GGUF/Qwen3-1.7B-Q8_0.gguf");
    put("small.gguf");
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) assert_runs(good[i]);
    assert_refused("qwen3",
                   "'qwen3' is the beginning of several models: Qwen/Qwen3-0.6B-GGUF:Q8_0, "
                   "Qwen/Qwen3-1.7B-GGUF:Q8_0");
    assert_refused("gemma", "no model 'gemma' on this disk, and no such file; 'quern list' shows "
                            "those that are there, 'quern pull OWNER/REPO' brings one");
    assert_refused("hf:a/b:Q8_0", "'quern pull hf:a/b:Q8_0' brings it");
    assert_refused("small.gguf", "No such file"); // a path
}

// Of one repository it is the type that would have been pulled.
static void types_are_chosen_as_the_hub_does(void **state) {
    (void)state;
    put("o/r-GGUF/r-Q8_0.gguf");
    put("o/r-GGUF/r-Q4_K_S.gguf");
    assert_runs("r");
    assert_refused("r:", "o/r-GGUF:Q4_K_S, o/r-GGUF:Q8_0");
    cli_result r = CLI_RUN("show", "r", "--json");
    hub_assert_says(r.out, "r-Q8_0.gguf");
    cli_free(&r);
    put("o/r-GGUF/other-Q8_0.gguf"); // the type alone is no name now
    assert_listed("o/r-GGUF:r-Q8_0.gguf", "quern", true);
    assert_listed("o/r-GGUF:other-Q8_0.gguf", "quern", true);
    assert_runs("o/r-GGUF:other-Q8_0.gguf");
}

static void a_path_wins(void **state) {
    (void)state;
    put("o/there/there-Q8_0.gguf");
    hub_shell("cd %s/away && echo nonsense > there", cli_folder);
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(cli_path("away")), 0);
    cli_result r = CLI_RUN("inspect", "there");
    assert_int_equal(chdir(here), 0);
    assert_int_equal(r.code, 1);
    cli_free(&r);
    assert_runs("there");
}

static void every_command_takes_names(void **state) {
    (void)state;
    static const char *const commands[][8] = {
        {"run", "draft", "-p", "Hi", "-n", "2"},
        {"run", DRAFT, "-p", "Hi", "-n", "2", "--draft=draft"},
        {"logits", "draft", "--ids", "1,2"},
        {"embed", "draft", "Hello"},
        {"tokenize", "draft", "Hello"},
        {"detokenize", "draft", "1222"},
        {"inspect", "draft"},
        {"graph", "draft"},
        {"quantize", "draft", "OUT", "Q4_0"},
    };
    put("draft.gguf");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        const char *args[9] = {NULL};
        for (size_t k = 0; k < 8 && commands[i][k]; k++)
            args[k] = strcmp(commands[i][k], "OUT") == 0 ? cli_path("out.gguf") : commands[i][k];
        cli_result r = cli_run_with(&(cli_input){0}, args);
        hub_assert_done(&r);
        cli_free(&r);
    }
    cli_result r = CLI_RUN("run", DRAFT, "-p", "Hi", "--draft", "nothing");
    hub_assert_fails(&r, "--draft: no model 'nothing'");
    cli_free(&r);
}

// --- Hugging Face's cache ------------------------------------------------------------------------

static void fill_hf(void) {
    hub_shell("cd %s && mkdir -p hf/hub/models--o--Repo-GGUF/blobs "
              "hf/hub/models--o--Repo-GGUF/refs hf/hub/models--o--Repo-GGUF/snapshots/" COMMIT
              " && cd hf/hub/models--o--Repo-GGUF && printf " COMMIT " > refs/main && "
              "cp %s blobs/b1 && cp blobs/b1 blobs/b2.incomplete && "
              "ln -s ../../blobs/b1 snapshots/" COMMIT "/Repo-Q8_0.gguf",
              cli_folder, DRAFT);
}

static void models_of_the_hubs_programs_are_found(void **state) {
    (void)state;
    fill_hf();
    assert_listed("o/Repo-GGUF:Q8_0", "huggingface", true);
    assert_runs("repo");
    assert_runs("hf:o/Repo-GGUF");
    cli_result r = CLI_RUN("rm", "o/Repo-GGUF:Q8_0");
    cli_assert_fails(&r, 1, "is kept by huggingface");
    cli_free(&r);
    r = CLI_RUN("compile", "repo");
    cli_assert_fails(&r, 1, "is kept by huggingface, where nothing is written; --output names");
    cli_free(&r);
    r = CLI_RUN("compile", "repo", "-o", cli_path("packed"));
    hub_assert_done(&r);
    cli_free(&r);
    put("o/Repo-GGUF/Repo-Q8_0.gguf"); // ours is used
    assert_runs("repo");
    r = CLI_RUN("rm", "o/Repo-GGUF:Q8_0");
    cli_assert_done(&r);
    cli_free(&r);
    assert_runs("repo");
}

static void links_do_not_leave_a_cache(void **state) {
    (void)state;
    fill_hf();
    hub_shell("cd %s && cp %s away/secret.gguf && cd hf/hub/models--o--Repo-GGUF/snapshots/" COMMIT
              " && ln -s ../../../../../away/secret.gguf Out-Q8_0.gguf && "
              "ln -s ../../../../../away folder && mkdir -p %s/hf/hub/models--..--x/snapshots/a && "
              "cp %s %s/hf/hub/models--..--x/snapshots/a/x.gguf && "
              "printf ../../../../away > %s/hf/hub/models--o--Repo-GGUF/refs/other",
              cli_folder, DRAFT, cli_folder, DRAFT, cli_folder, cli_folder);
    cli_result r = CLI_RUN("list", "--json");
    cli_assert_done(&r);
    assert_null(strstr(r.out, "secret"));
    assert_null(strstr(r.out, "Out"));
    assert_null(strstr(r.out, ".."));
    cli_free(&r);
    // A commit that is a path.
    hub_shell("cd %s && printf ../../../../away > hf/hub/models--o--Repo-GGUF/refs/main",
              cli_folder);
    r = CLI_RUN("list", "--json");
    cli_assert_done(&r);
    assert_null(strstr(r.out, "secret"));
    cli_free(&r);
}

// --- llama.cpp's ---------------------------------------------------------------------------------

static void models_of_llama_cpp_are_found(void **state) {
    (void)state;
    hub_shell(
        "cd %s && mkdir llama && cd llama && cp %s o_Repo-GGUF_Repo-Q8_0.gguf && "
        "printf '{\"url\": \"https://huggingface.co/o/Repo-GGUF/resolve/main/Repo-Q8_0.gguf\"}'"
        " > o_Repo-GGUF_Repo-Q8_0.gguf.json && cp %s plain.gguf && "
        "cp %s odd.gguf && head -c 200000 /dev/zero > odd.gguf.json && "
        "cp %s evil.gguf && printf '{\"url\": \"https://huggingface.co/../x/resolve/main/y\"}' "
        "> evil.gguf.json && cp %s x.gguf.downloadInProgress",
        cli_folder, DRAFT, DRAFT, DRAFT, DRAFT, DRAFT);
    assert_listed("o/Repo-GGUF:Q8_0", "llama.cpp", true);
    assert_listed("plain", "llama.cpp", true);
    assert_listed("odd", "llama.cpp", true);
    assert_listed("evil", "llama.cpp", true);
    assert_runs("o/repo-gguf");
    assert_runs("plain");
}

// --- Ollama's ------------------------------------------------------------------------------------

static char digest[65];

static void put_manifest(const char *place, const char *fmt, const char *of, long long size) {
    char text[512];
    qn_buf body = {0};
    qn_buf_text(&body, "{\"schemaVersion\": 2, \"layers\": [");
    snprintf(text, sizeof text, fmt, of, size);
    qn_buf_text(&body, text);
    qn_buf_text(&body, "]}");
    hub_shell("cd %s/ollama/manifests && mkdir -p \"$(dirname '%s')\"", cli_folder, place);
    char file[256];
    snprintf(file, sizeof file, "ollama/manifests/%s", place);
    cli_save(cli_path(file), body.data, body.size);
    qn_buf_deinit(&body);
}

static long long fill_ollama(void) {
    struct stat st;
    hub_shell("cd %s && mkdir -p ollama/blobs ollama/manifests && cp %s ollama/blobs/new && "
              "sha256sum ollama/blobs/new | cut -c 1-64 > digest && "
              "mv ollama/blobs/new ollama/blobs/sha256-$(cat digest)",
              cli_folder, DRAFT);
    char *text = cli_load(cli_path("digest"), NULL);
    memcpy(digest, text, 64);
    free(text);
    assert_int_equal(stat(DRAFT, &st), 0);
    return (long long)st.st_size;
}

#define LAYER                                                                                      \
    "{\"mediaType\": \"application/vnd.ollama.image.model\", \"digest\": \"sha256:%s\", "          \
    "\"size\": %lld}"

static void models_of_ollama_are_found(void **state) {
    (void)state;
    const long long size = fill_ollama();
    put_manifest("registry.ollama.ai/library/draft/8b", LAYER, digest, size);
    put_manifest("registry.ollama.ai/me/mine/latest", LAYER, digest, size);
    put_manifest("hf.co/o/Other-GGUF/Q8_0", LAYER, digest, size);
    put_manifest("example.org/a/b/c", LAYER, digest, size);
    assert_listed("draft:8b", "ollama", true);
    assert_listed("me/mine:latest", "ollama", true);
    assert_listed("o/Other-GGUF:Q8_0", "ollama", true);
    assert_listed("example.org/a/b:c", "ollama", true);
    assert_runs("draft:8b");
    assert_runs("draft");
    assert_runs("mine");
    assert_runs("hf.co/o/Other-GGUF:Q8_0");
}

static void manifests_are_not_trusted(void **state) {
    (void)state;
    const long long size = fill_ollama();
    hub_shell("cd %s && cp %s away/x.gguf && mkdir -p ollama/manifests/registry.ollama.ai/library/"
              "huge ollama/manifests/registry.ollama.ai/library/pipe && "
              "truncate -s 1000000000 ollama/manifests/registry.ollama.ai/library/huge/a && "
              "mkfifo ollama/manifests/registry.ollama.ai/library/pipe/a",
              cli_folder, DRAFT);
    static const char outside[] =
        "0000000000000000000000000000000000000000000000000000000000000000";
    hub_shell("cd %s && ln -s ../../away/x.gguf ollama/blobs/sha256-%s", cli_folder, outside);
    put_manifest("registry.ollama.ai/library/lies/a", LAYER, digest, size + 1);
    put_manifest("registry.ollama.ai/library/up/a", LAYER, "../../../away/x.gguf", size);
    put_manifest("registry.ollama.ai/library/link/a", LAYER, outside, size);
    put_manifest("registry.ollama.ai/library/odd/a", "7, null, \"%.0s%lld\"", "", 1);
    put_manifest("registry.ollama.ai/library/good/a", LAYER, digest, size);
    cli_result r = CLI_RUN("list");
    cli_assert_done(&r);
    hub_assert_says(r.out, "good:a");
    assert_ptr_equal(strchr(strchr(r.out, '\n') + 1, '\n')[1] ? NULL : r.out, r.out); // two lines
    cli_free(&r);
}

// --- list, show, rm ------------------------------------------------------------------------------

static void nothing_there_is_no_error(void **state) {
    (void)state;
    cli_result r = CLI_RUN("list");
    assert_int_equal(r.code, 0);
    assert_string_equal(r.out, "");
    hub_assert_says(r.err, "quern pull");
    cli_free(&r);
    r = CLI_RUN("list", "--json");
    cli_assert_done(&r);
    assert_string_equal(r.out, "[]\n");
    cli_free(&r);
}

static void a_model_is_shown(void **state) {
    (void)state;
    put("o/r-GGUF/r-Q8_0.gguf");
    cli_result r = CLI_RUN("show", "r");
    cli_assert_done(&r);
    hub_assert_says(r.out, "o/r-GGUF:Q8_0\n");
    hub_assert_says(r.out, "/models/o/r-GGUF/r-Q8_0.gguf\n");
    hub_assert_says(r.out, "architecture    qwen3\n");
    cli_free(&r);
    r = CLI_RUN("show", DRAFT);
    cli_assert_fails(&r, 1, "is a path; 'quern inspect");
    cli_free(&r);
}

static void names_do_not_steer_a_terminal(void **state) {
    (void)state;
    put("o/r-GGUF/r\033[31m-Q8_0.gguf");
    put("o/r-GGUF/s-Q8_0.gguf");
    cli_result r = CLI_RUN("list");
    cli_assert_done(&r);
    assert_null(strchr(r.out, '\033'));
    cli_free(&r);
}

// Files with holes have any size that they say, where the file system has such sizes.
static void sizes_do_not_overflow(void **state) {
    (void)state;
    char folder[] = "/dev/shm/quern-test-XXXXXX", command[256];
    if (!mkdtemp(folder)) skip();
    hub_shell("mkdir -p %s/o/r-GGUF", folder);
    snprintf(command, sizeof command,
             "cd %s/o/r-GGUF && for i in 1 2 3; do "
             "truncate -s 4611686018427387904 b-Q8_0-0000$i-of-00003.gguf || exit; done",
             folder);
    const bool is_possible = system(command) == 0;
    setenv("QUERN_MODELS", folder, 1);
    cli_result r = CLI_RUN("list");
    setenv("QUERN_MODELS", hub_models, 1);
    hub_shell("rm -r %s", folder);
    if (is_possible) hub_assert_says(r.out, "8388608.0 TiB");
    cli_free(&r);
    if (!is_possible) skip();
}

static void models_are_removed(void **state) {
    (void)state;
    put("o/r-GGUF/r-Q8_0.gguf");
    put("o/r-GGUF/r-Q4_0.gguf");
    put("o/s-GGUF/s-00001-of-00002.gguf");
    put("o/s-GGUF/s-00002-of-00002.gguf");
    hub_shell("printf GGUF > %s/o/r-GGUF/mmproj-F16.gguf; "
              "printf x > %s/o/r-GGUF/r-Q5_0.gguf.part; "
              "printf x > %s/o/r-GGUF/r-Q5_0.gguf.part.json",
              hub_models, hub_models, hub_models);
    hub_shell("cd %s && touch away/precious && ln -s %s/away %s/o/s-GGUF/.quern-cache", cli_folder,
              cli_folder, hub_models);
    cli_result r = CLI_RUN("rm", "r-q8");
    cli_assert_fails(&r, 1, "no model 'r-q8': want a whole name, such as o/r-GGUF:Q8_0");
    cli_free(&r);
    r = CLI_RUN("rm", "x/y");
    cli_assert_fails(&r, 1, "no model 'x/y' on this disk; 'quern list' shows those that are there");
    cli_free(&r);
    r = CLI_RUN("rm", "o/r-gguf:q8_0");
    cli_assert_done(&r);
    hub_assert_says(r.out, "removed o/r-gguf:q8_0, 2.8 MiB");
    cli_free(&r);
    char path[2 * CLI_MOST_PATH];
    snprintf(path, sizeof path, "%s/o/r-GGUF/mmproj-F16.gguf", hub_models);
    assert_true(hub_is_there(path)); // the other one can use it
    r = CLI_RUN("rm", "r-Q4_0", "r-q5_0.gguf", "s");
    cli_assert_done(&r);
    cli_free(&r);
    assert_true(hub_is_there(hub_models));
    hub_shell("! find %s -mindepth 1 | grep .", hub_models);
    assert_true(hub_is_there(cli_path("away/precious"))); // links are not followed
}

static void put_both(void) {
    put("o/both/both-Q8_0.gguf");
    hub_shell("cd %s/o/both && cp -L %s/qwen3/*.json %s/qwen3/model.safetensors . && "
              "mkdir -p .quern-cache && touch .quern-cache/packed",
              hub_models, MINI, MINI);
    assert_listed("o/both", "quern", true);
    assert_listed("o/both:Q8_0", "quern", true);
}

// In one folder, a checkpoint and GGUF files are models of their own.
static void a_checkpoint_goes_alone(void **state) {
    (void)state;
    put_both();
    cli_result r = CLI_RUN("rm", "o/both"); // and not the usual type of that repository
    cli_assert_done(&r);
    cli_free(&r);
    assert_listed("o/both", "quern", false);
    assert_runs("o/both");
    put_both();
    r = CLI_RUN("rm", "o/both:q8_0");
    cli_assert_done(&r);
    cli_free(&r);
    hub_shell("cd %s/o/both && test -f model.safetensors -a -f .quern-cache/packed", hub_models);
}

// A tower that this program cannot use does not keep the model from reading text.
static void a_tower_of_another_kind_is_left(void **state) {
    (void)state;
    put("o/r-GGUF/r-Q8_0.gguf");
    hub_shell("cp %s/qwen35_vl/mmproj-bf16.gguf %s/o/r-GGUF/mmproj-F16.gguf", MINI, hub_models);
    cli_result r = CLI_RUN("run", "r", "-p", "Hello", "-n", "4"),
               plain = CLI_RUN("run", DRAFT, "-p", "Hello", "-n", "4");
    hub_assert_done(&r);
    hub_assert_says(r.err, "note: images are not read: ");
    assert_string_equal(r.out, plain.out);
    cli_free(&r), cli_free(&plain);
    r = CLI_RUN("run", DRAFT, "-p", "Hello", "--mmproj", MINI "/qwen35_vl/mmproj-bf16.gguf");
    assert_int_equal(r.code, 1); // one that was named is another matter
    cli_free(&r);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup(name, begin)
    const struct CMUnitTest tests[] = {
        CASE(a_beginning_is_enough),
        CASE(types_are_chosen_as_the_hub_does),
        CASE(a_path_wins),
        CASE(every_command_takes_names),
        CASE(models_of_the_hubs_programs_are_found),
        CASE(links_do_not_leave_a_cache),
        CASE(models_of_llama_cpp_are_found),
        CASE(models_of_ollama_are_found),
        CASE(manifests_are_not_trusted),
        CASE(nothing_there_is_no_error),
        CASE(a_model_is_shown),
        CASE(names_do_not_steer_a_terminal),
        CASE(sizes_do_not_overflow),
        CASE(models_are_removed),
        CASE(a_checkpoint_goes_alone),
        CASE(a_tower_of_another_kind_is_left),
    };
    return cmocka_run_group_tests(tests, setup, cli_teardown);
}

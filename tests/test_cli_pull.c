// `quern pull`, with a hub on loopback that does what hubs, mirrors and strangers do.
#include "screen.h"

#include "hub_rig.h"

#define DRAFT_REPO "Draft-GGUF"
#define DRAFT_FILE "Draft-Q8_0.gguf"

static char *draft;
static size_t draft_size;

// --- the hub's repositories ----------------------------------------------------------------------

static void make_repos(void) {
    static const char *const types[] = {"Q4_K_M", "Q4_K_S", "Q8_0", "UD-Q4_K_XL", "BF16"};
    const char *repos = cli_path("repos");
    hub_shell("mkdir -p %s/%s %s/Vl/Q8_0 %s/Types %s/Two %s/Split/Q8_0 %s/Broken %s/Odd %s/None",
              repos, DRAFT_REPO, repos, repos, repos, repos, repos, repos, repos);
    hub_shell("cp %s %s/%s/%s", DRAFT, repos, DRAFT_REPO, DRAFT_FILE);
    hub_shell("cp %s/qwen35_vl/qwen35_vl-bf16.gguf %s/Vl/Vl-BF16.gguf", MINI, repos);
    hub_shell("cp %s/qwen35_vl/mmproj-bf16.gguf %s/Vl/mmproj-BF16.gguf", MINI, repos);
    hub_shell("echo hello > %s/None/README.md", repos);
    hub_shell("mkdir -p %s/Check && cp -L %s/qwen3/*.json %s/qwen3/*.jinja "
              "%s/qwen3/model.safetensors %s/Check",
              repos, MINI, MINI, MINI, repos);
    hub_shell("printf GGUFmmproj > %s/Types/mmproj-F16.gguf", repos);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        hub_shell("printf GGUF%s > %s/Types/Types-%s.gguf", types[i], repos, types[i]);
    hub_shell("printf GGUFa > %s/Two/A-Q4_K_M.gguf; printf GGUFb > %s/Two/B-Q4_K_M.gguf", repos,
              repos);
    for (int i = 1; i <= 3; i++) {
        hub_shell("head -c 100000 %s > %s/Split/Q8_0/Big-Q8_0-0000%d-of-00003.gguf", DRAFT, repos,
                  i);
        hub_shell("echo %d >> %s/Split/Q8_0/Big-Q8_0-0000%d-of-00003.gguf", i, repos, i);
    }
    hub_shell("printf GGUF1 > %s/Broken/Big-Q8_0-00001-of-00002.gguf", repos);
    // An architecture that nobody knows.
    char *odd = cli_load(DRAFT, NULL);
    const char word[] = "qwen3";
    char *at = NULL;
    for (size_t i = 0; i + sizeof word < draft_size && !at; i++)
        if (memcmp(odd + i, word, sizeof word - 1) == 0) at = odd + i;
    assert_non_null(at);
    memcpy(at, "qwen9", sizeof word - 1);
    cli_save(cli_path("repos/Odd/Odd-Q8_0.gguf"), odd, draft_size);
    free(odd);
}

static int setup(void **state) {
    if (hub_setup(state) != 0) return -1;
    draft = cli_load(DRAFT, &draft_size);
    make_repos();
    if (!hub_start()) fail_msg("python3 is not installed (tools/setup.sh)");
    return 0;
}

static int teardown(void **state) {
    hub_stop();
    free(draft);
    return cli_teardown(state);
}

// Each test has its own, empty folder of models.
static int begin(void **state) {
    (void)state;
    hub_shell("rm -rf %s", hub_models);
    free(hub_take_log());
    return 0;
}

// --- what is there afterwards --------------------------------------------------------------------

static const char *model_path(const char *below) {
    static char paths[4][2 * CLI_MOST_PATH];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", hub_models, below);
    return path;
}

static void assert_draft(const char *owner) {
    char below[128];
    size_t size;
    snprintf(below, sizeof below, "%s/%s/%s", owner, DRAFT_REPO, DRAFT_FILE);
    char *got = cli_load(model_path(below), &size);
    assert_int_equal(size, draft_size);
    assert_memory_equal(got, draft, size);
    free(got);
    snprintf(below, sizeof below, "%s/%s/%s.part", owner, DRAFT_REPO, DRAFT_FILE);
    assert_false(hub_is_there(model_path(below)));
}

static cli_result pull_of(const char *owner) {
    char name[128];
    snprintf(name, sizeof name, "hf:%s/%s", owner, DRAFT_REPO);
    return CLI_RUN("pull", name);
}

// --- when all is well ----------------------------------------------------------------------------

static void a_model_is_pulled_and_runs_by_its_name(void **state) {
    (void)state;
    setenv("HF_TOKEN", "secret", 1);
    cli_result r = pull_of("plain");
    unsetenv("HF_TOKEN");
    hub_assert_done(&r);
    hub_assert_says(r.out, "quern run plain/Draft-GGUF:Q8_0");
    cli_free(&r);
    assert_draft("plain");
    // In parts, and the token stays with the hub.
    char *log = hub_take_log();
    hub_assert_says(log, "hub /plain/Draft-GGUF/resolve/main/Draft-Q8_0.gguf range=bytes=0-3 "
                         "token=Bearer secret");
    hub_assert_says(log, "range=bytes=1048576-2097151 token=-");
    for (const char *at = log; (at = strstr(at, "store ")) != NULL; at++)
        assert_memory_equal(strstr(at, "token="), "token=-\n", 8);
    free(log);
    cli_result by_name = CLI_RUN("tokenize", "draft", "Hello"),
               by_path = CLI_RUN("tokenize", DRAFT, "Hello");
    cli_assert_done(&by_name);
    assert_string_equal(by_name.out, by_path.out);
    cli_free(&by_name), cli_free(&by_path);
    r = pull_of("plain");
    hub_assert_done(&r);
    hub_assert_says(r.out, "here already");
    cli_free(&r);
    log = hub_take_log();
    assert_null(strstr(log, "store"));
    free(log);
}

// The file that the hub's own programs write says it, too.
static void a_token_is_read_from_its_file(void **state) {
    (void)state;
    hub_shell("mkdir -p %s/hf && echo secret > %s/hf/token", cli_folder, cli_folder);
    cli_result r = pull_of("token");
    hub_shell("rm -r %s/hf", cli_folder);
    hub_assert_done(&r);
    cli_free(&r);
    assert_draft("token");
}

// A file that was put there by hand is looked at, and left if it is the right one.
static void what_is_there_is_not_pulled_again(void **state) {
    (void)state;
    hub_shell("mkdir -p %s/plain/%s && cp %s %s/plain/%s/%s", hub_models, DRAFT_REPO, DRAFT,
              hub_models, DRAFT_REPO, DRAFT_FILE);
    for (int i = 0; i < 2; i++) {
        cli_result r = pull_of("plain");
        hub_assert_done(&r);
        hub_assert_says(r.out, "here already");
        cli_free(&r);
    }
    // The same size, and another content.
    hub_shell("cd %s/plain/%s && rm .quern-pull.json && printf x | dd of=%s bs=1 seek=100000 "
              "conv=notrunc 2>/dev/null",
              hub_models, DRAFT_REPO, DRAFT_FILE);
    cli_result r = pull_of("plain");
    hub_assert_done(&r);
    assert_null(strstr(r.out, "here already"));
    cli_free(&r);
    assert_draft("plain");
}

static void names_are_taken_as_people_type_them(void **state) {
    (void)state;
    static const char *const names[] = {
        "plain/Draft-GGUF",
        "hf:plain/Draft-GGUF:Q8_0",
        "plain/Draft-GGUF:q8_0",
        "plain/Draft-GGUF:latest",
        "plain/Draft-GGUF:draft-q8_0.gguf",
        "plain/Draft-GGUF/Draft-Q8_0.gguf",
        "http://127.0.0.1:%d/plain/Draft-GGUF",
        "http://127.0.0.1:%d/plain/Draft-GGUF/tree/main",
        "http://127.0.0.1:%d/plain/Draft-GGUF/blob/main/Draft-Q8_0.gguf",
        "http://127.0.0.1:%d/plain/Draft-GGUF/resolve/v1/Draft%2dQ8_0.gguf?download=true",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[256], port[16];
        const char *hole = strstr(names[i], "%d");
        snprintf(port, sizeof port, "%d", hub_port);
        snprintf(name, sizeof name, "%.*s%s%s", hole ? (int)(hole - names[i]) : 255, names[i],
                 hole ? port : "", hole ? hole + 2 : "");
        cli_result r = CLI_RUN("pull", name);
        hub_assert_done(&r);
        hub_assert_says(r.out, "plain/Draft-GGUF/Draft-Q8_0.gguf, 2.8 MiB");
        cli_free(&r);
    }
    assert_draft("plain");
    cli_result r = CLI_RUN("pull", "plain/Draft-GGUF", "--revision", "v2");
    hub_assert_fails(&r, "status 404");
    cli_free(&r);
}

static void an_address_is_pulled_too(void **state) {
    (void)state;
    char url[256];
    snprintf(url, sizeof url, "http://127.0.0.1:%d/plain/%s/%s?signed=1", hub_store_port,
             DRAFT_REPO, DRAFT_FILE);
    cli_result r = CLI_RUN("pull", url);
    hub_assert_done(&r);
    hub_assert_says(r.out, "run it by 'quern run 127.0.0.1/Draft-Q8_0'");
    cli_free(&r);
    r = CLI_RUN("tokenize", "draft-q8", "Hello");
    cli_assert_done(&r);
    cli_free(&r);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/nosize/%s/%s", hub_store_port, DRAFT_REPO,
             DRAFT_FILE);
    r = CLI_RUN("pull", url);
    hub_assert_fails(&r, "does not say how large the file is");
    cli_free(&r);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/changed/%s/%s", hub_store_port, DRAFT_REPO,
             DRAFT_FILE);
    hub_shell("sed -i 's/\"mark\": \"/&old/' %s/127.0.0.1/.quern-pull.json", hub_models);
    r = CLI_RUN("pull", url); // of the same host, and of the same name
    hub_assert_fails(&r, "came from another address");
    cli_free(&r);
    r = CLI_RUN("rm", "127.0.0.1/Draft-Q8_0");
    cli_assert_done(&r);
    cli_free(&r);
    r = CLI_RUN("pull", url);
    hub_assert_fails(&r, "the file has changed since the download began");
    cli_free(&r);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/plain/Split/Q8_0/Big-Q8_0-00002-of-00003.gguf",
             hub_store_port);
    r = CLI_RUN("pull", url);
    hub_assert_done(&r);
    cli_free(&r);
    assert_true(hub_is_there(model_path("127.0.0.1/Big-Q8_0-00001-of-00003.gguf")));
    assert_false(hub_is_there(model_path("127.0.0.1/Draft-Q8_0.gguf.part")));
    assert_true(hub_is_there(model_path("127.0.0.1/Big-Q8_0-00003-of-00003.gguf")));
}

// --- which files ---------------------------------------------------------------------------------

static void types_are_chosen_as_the_hub_does(void **state) {
    (void)state;
    static const struct {
        const char *name, *file;
    } good[] = {{"plain/Types", "Types-Q4_K_M.gguf"},
                {"plain/Types:q8_0", "Types-Q8_0.gguf"},
                {"plain/Types:Q4_K_XL", "Types-UD-Q4_K_XL.gguf"},
                {"plain/Types:Types-BF16.gguf", "Types-BF16.gguf"}};
    static const struct {
        const char *name, *part;
    } bad[] = {{"plain/Types:Q4_K", "no file 'Q4_K'"},
               {"plain/Two", "several files fit: A-Q4_K_M.gguf, B-Q4_K_M.gguf; choose one by "
                             "plain/Two:FILE"},
               {"plain/None", "is a model that can be read"},
               {"plain/Broken", "part 2 of 2 is missing"},
               {"plain/Nothing", "status 404: not found"}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        cli_result r = CLI_RUN("pull", good[i].name, "--force", "--no-mmproj");
        hub_assert_done(&r);
        hub_assert_says(r.out, good[i].file);
        cli_free(&r);
    }
    assert_false(hub_is_there(model_path("plain/Types/mmproj-F16.gguf")));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cli_result r = CLI_RUN("pull", bad[i].name);
        hub_assert_fails(&r, bad[i].part);
        cli_free(&r);
    }
}

static void parts_come_together(void **state) {
    (void)state;
    cli_result r = CLI_RUN("pull", "plain/Split");
    hub_assert_done(&r);
    hub_assert_says(r.err, "(3 of 3)");
    hub_assert_says(r.out, "Q8_0/Big-Q8_0-00001-of-00003.gguf");
    cli_free(&r);
    for (int i = 1; i <= 3; i++) {
        char below[128];
        snprintf(below, sizeof below, "plain/Split/Q8_0/Big-Q8_0-0000%d-of-00003.gguf", i);
        assert_true(hub_is_there(model_path(below)));
    }
    r = CLI_RUN("list");
    hub_assert_says(r.out, "plain/Split:Q8_0");
    hub_assert_says(r.out, "293.0 KiB");
    cli_free(&r);
    r = CLI_RUN("rm", "plain/Split:Q8_0");
    cli_assert_done(&r);
    cli_free(&r);
    assert_false(hub_is_there(model_path("plain")));
}

static void a_tower_comes_along_and_is_used(void **state) {
    (void)state;
    cli_result r = CLI_RUN("pull", "plain/Vl");
    hub_assert_done(&r);
    cli_free(&r);
    assert_true(hub_is_there(model_path("plain/Vl/mmproj-BF16.gguf")));
    const char *image = MINI "/qwen35_vl/image.png";
    cli_result named = CLI_RUN("run", "vl", "--image", image, "-p", "What?", "-n", "6",
                               "--template", TEST_DATA "/templates/Qwen3.5-4B.jinja"),
               typed = CLI_RUN("run", MINI "/qwen35_vl/qwen35_vl-bf16.gguf", "--mmproj",
                               MINI "/qwen35_vl/mmproj-bf16.gguf", "--image", image, "-p", "What?",
                               "-n", "6", "--template", TEST_DATA "/templates/Qwen3.5-4B.jinja");
    hub_assert_done(&typed);
    hub_assert_done(&named);
    assert_string_equal(named.out, typed.out);
    cli_free(&named), cli_free(&typed);
}

// What is no model comes alone when it is named.
static void other_files_come_alone(void **state) {
    (void)state;
    cli_result r = CLI_RUN("pull", "plain/Vl:mmproj-BF16.gguf");
    hub_assert_done(&r);
    hub_assert_says(r.out, "/plain/Vl/mmproj-BF16.gguf, ");
    assert_null(strstr(r.out, "quern run"));
    cli_free(&r);
    assert_false(hub_is_there(model_path("plain/Vl/Vl-BF16.gguf")));
    r = CLI_RUN("pull", "plain/Check:tokenizer.json");
    hub_assert_done(&r);
    hub_assert_says(r.out, "/plain/Check/tokenizer.json, ");
    cli_free(&r);
}

static void a_checkpoint_comes_whole(void **state) {
    (void)state;
    cli_result r = CLI_RUN("pull", "plain/Check");
    hub_assert_done(&r);
    cli_free(&r);
    cli_result named = CLI_RUN("logits", "check", "--ids", "1,2,3"),
               typed = CLI_RUN("logits", MINI "/qwen3", "--ids", "1,2,3");
    cli_assert_done(&named);
    assert_string_equal(named.out, typed.out);
    cli_free(&named), cli_free(&typed);
    r = CLI_RUN("convert", "check", cli_path("check.gguf"));
    hub_assert_done(&r);
    cli_free(&r);
    r = CLI_RUN("rm", "plain/Check");
    cli_assert_done(&r);
    cli_free(&r);
    assert_false(hub_is_there(model_path("plain")));
}

static void what_cannot_run_is_refused_before_it_is_there(void **state) {
    (void)state;
    cli_result r = CLI_RUN("pull", "plain/Odd");
    hub_assert_fails(&r, "--force downloads it all the same");
    cli_free(&r);
    assert_false(hub_is_there(model_path("plain/Odd/Odd-Q8_0.gguf")));
    r = CLI_RUN("pull", "plain/Odd", "--force");
    hub_assert_done(&r);
    cli_free(&r);
    assert_true(hub_is_there(model_path("plain/Odd/Odd-Q8_0.gguf")));
}

// --- servers -------------------------------------------------------------------------------------

// What they do wrong can be borne.
static void odd_servers_are_borne(void **state) {
    (void)state;
    static const char *const owners[] = {"cut",  "noranges", "cutplain", "expire", "flaky",
                                         "busy", "paged",    "escape",   "nosize"};
    for (size_t i = 0; i < sizeof owners / sizeof *owners; i++) {
        cli_result r = pull_of(owners[i]);
        hub_assert_done(&r);
        cli_free(&r);
        assert_draft(owners[i]);
    }
    hub_shell("! find %s/.. /tmp -maxdepth 1 -name 'out-Q8_0*' | grep .", hub_models);
}

// What they do wrong is told, and leaves nothing that could be taken for a model.
static void wrong_servers_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *owner, *part;
        bool is_kept; // what came before it was wrong
    } cases[] = {
        {"wrongrange", " of 2922112, want ", true},
        {"more", "bytes it was asked for", true},
        {"html", "is no GGUF file: it begins with '<!DO' and calls itself text/html", false},
        {"changed", "it is not kept", false},
        {"corrupt", "it is not kept", false},
        {"badsum", "want 5555555555555555555555555555555555555555555555555555555555555555", false},
        {"badsize", "has 2922112 bytes, want 2922119", false},
        {"huge", "GiB are free", false},
        {"most", "GiB are free", false},
        {"private", "status 401: it does not exist, or needs a token that may read it (HF_TOKEN)",
         false},
        {"token", "status 401", false},
        {"gated", "status 403: access is restricted: accept its terms", false},
        {"later", "try again in 100000 s", false},
        {"patience", "try again in 9223372036854775807 s", true},
        {"htmlapi", "not valid JSON", false},
        {"endless", "more than 16777216 bytes", false},
        {"pages", "more than 64 pages", false},
        {"loop", "more than 8 times", false},
        {"passwd", "leads to 'file:///etc/passwd', which is not followed", false},
        {"ftp", "leads to 'ftp://", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char below[128];
        cli_result r = pull_of(cases[i].owner);
        hub_assert_fails(&r, cases[i].part);
        cli_free(&r);
        snprintf(below, sizeof below, "%s/%s/%s", cases[i].owner, DRAFT_REPO, DRAFT_FILE);
        assert_false(hub_is_there(model_path(below)));
        strcat(below, ".part");
        if (hub_is_there(model_path(below)) != cases[i].is_kept)
            fail_msg("%s: .part is %s", cases[i].owner, cases[i].is_kept ? "gone" : "there");
    }
}

static void nobody_there_is_an_error(void **state) {
    (void)state;
    char *before = strdup(getenv("HF_ENDPOINT"));
    setenv("HF_ENDPOINT", "http://127.0.0.1:1", 1);
    cli_result r = pull_of("plain");
    setenv("HF_ENDPOINT", before, 1);
    free(before);
    hub_assert_fails(&r, "http://127.0.0.1:1/api/models/plain/Draft-GGUF/tree/main: ");
    cli_free(&r);
}

// A disk that takes no more, as a limit on the size of files does it.
static void a_full_disk_is_an_error(void **state) {
    (void)state;
    char command[2 * CLI_MOST_PATH];
    snprintf(command, sizeof command, "ulimit -f 1000; exec %s pull plain/Draft-GGUF", QUERN);
    cli_result r =
        cli_run_with(&(cli_input){.program = "sh"}, (const char *[]){"-c", command, NULL});
    hub_assert_fails(&r, "Draft-Q8_0.gguf.part: cannot make room: File too large");
    cli_free(&r);
}

// --- going on ------------------------------------------------------------------------------------

static void assert_not_said(const char *text, const char *part) {
    if (strstr(text, part)) fail_msg("'%s' contains '%s'", text, part);
}

// A user, a password and what follows a '?' are in no message, and in no file.
static void secrets_of_addresses_are_not_told(void **state) {
    (void)state;
    char url[256], *before = strdup(getenv("HF_ENDPOINT"));
    snprintf(url, sizeof url, "http://someone:secret@127.0.0.1:%d", hub_port);
    setenv("HF_ENDPOINT", url, 1);
    cli_result refused = pull_of("private"), done = pull_of("plain");
    setenv("HF_ENDPOINT", before, 1);
    free(before);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/api/models/private/", hub_port);
    hub_assert_fails(&refused, url);
    assert_not_said(refused.err, "secret");
    hub_assert_done(&done);
    char *ledger = cli_load(model_path("plain/Draft-GGUF/.quern-pull.json"), NULL);
    assert_not_said(ledger, "secret");
    free(ledger);
    snprintf(url, sizeof url, "http://127.0.0.1:%d/growing/%s/%s?signed=secret", hub_store_port,
             DRAFT_REPO, DRAFT_FILE);
    cli_result grown = CLI_RUN("pull", url);
    hub_assert_fails(&grown, " bytes, want ");
    assert_not_said(grown.err, "secret");
    cli_free(&refused), cli_free(&done), cli_free(&grown);
}

static pid_t start_pull(const char *name) {
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        cli_redirect(2, cli_path("pull.err"), O_WRONLY | O_CREAT | O_TRUNC);
        execl(QUERN, QUERN, "pull", name, (char *)NULL);
        _exit(99);
    }
    return pid;
}

// The first part is there, the others hang.
static void wait_for_part(const char *path) {
    enum { PART = 1 << 20 };
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    struct stat st = {0};
    while (stat(path, &st) != 0 || (int64_t)st.st_blocks * 512 < PART) nanosleep(&pause, NULL);
}

static void a_download_goes_on_where_it_was(void **state) {
    (void)state;
    int status;
    const char *part = model_path("hang/Draft-GGUF/Draft-Q8_0.gguf.part");
    const pid_t pid = start_pull("hang/Draft-GGUF");
    wait_for_part(part);
    cli_result second = pull_of("hang"); // meanwhile
    hub_assert_fails(&second, "another process is downloading it");
    cli_free(&second);
    kill(pid, SIGINT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
    char *said = cli_load(cli_path("pull.err"), NULL);
    hub_assert_says(said, "'quern pull hang/Draft-GGUF' goes on where it was");
    free(said);
    cli_result list = CLI_RUN("list");
    hub_assert_says(list.out, "unfinished: ");
    cli_free(&list);
    free(hub_take_log());
    cli_result r = pull_of("hang");
    hub_assert_done(&r);
    hub_assert_says(r.err, "of them are here");
    cli_free(&r);
    assert_draft("hang");
    char *log = hub_take_log();
    assert_null(strstr(log, "range=bytes=0-1048575"));
    hub_assert_says(log, "range=bytes=1048576-");
    free(log);
}

// Two pulls into one folder, of which each begins before the other one has ended.
static void both_of_two_downloads_are_remembered(void **state) {
    (void)state;
    char gated[256], opener[256];
    int status;
    const struct timespec pause = {.tv_nsec = 10 * 1000 * 1000};
    snprintf(gated, sizeof gated, "http://127.0.0.1:%d/gated/%s/%s", hub_store_port, DRAFT_REPO,
             DRAFT_FILE);
    snprintf(opener, sizeof opener, "http://127.0.0.1:%d/opener/Two/A-Q4_K_M.gguf", hub_store_port);
    const pid_t pid = start_pull(gated);
    while (!hub_is_there(model_path("127.0.0.1/Draft-Q8_0.gguf.part"))) nanosleep(&pause, NULL);
    cli_result r = CLI_RUN("pull", opener, "--force");
    hub_assert_done(&r);
    cli_free(&r);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    char *ledger = cli_load(model_path("127.0.0.1/.quern-pull.json"), NULL);
    hub_assert_says(ledger, "\"Draft-Q8_0.gguf\"");
    hub_assert_says(ledger, "\"A-Q4_K_M.gguf\"");
    free(ledger);
}

// Notes that somebody else wrote, or that belong to something else, are worth nothing.
static void notes_are_not_trusted(void **state) {
    (void)state;
    static const char *const notes[] = {
        "",
        "{",
        "[]",
        "{\"size\": 2922112, \"mark\": \"%s\", \"missing\": [5, 3]}",
        "{\"size\": 2922112, \"mark\": \"%s\", \"missing\": [-1, 3]}",
        "{\"size\": 2922112, \"mark\": \"%s\", \"missing\": [0, 999999999999]}",
        "{\"size\": 2922112, \"mark\": \"%s\", \"missing\": [0]}",
        "{\"size\": 2922112, \"mark\": \"%s\", \"missing\": 7}",
        "{\"size\": 2922112, \"mark\": \"other\", \"missing\": []}",
        "{\"size\": 7, \"mark\": \"%s\", \"missing\": []}"};
    cli_result first = pull_of("plain"), show = CLI_RUN("show", "draft", "--json");
    hub_assert_done(&first);
    json_t *facts = cli_json(show.out);
    const char *sum = json_string_value(json_object_get(facts, "sha256"));
    assert_non_null(sum);
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
        char text[256];
        const char *hole = strstr(notes[i], "%s");
        snprintf(text, sizeof text, "%.*s%s%s", hole ? (int)(hole - notes[i]) : 200, notes[i],
                 hole ? sum : "", hole ? hole + 2 : "");
        hub_shell("cd %s/plain/%s && rm -f %s && head -c 2922112 /dev/zero > %s.part", hub_models,
                  DRAFT_REPO, DRAFT_FILE, DRAFT_FILE);
        cli_save(model_path("plain/Draft-GGUF/Draft-Q8_0.gguf.part.json"), text, strlen(text));
        cli_result r = pull_of("plain");
        hub_assert_done(&r);
        cli_free(&r);
        assert_draft("plain");
    }
    json_decref(facts);
    cli_free(&first), cli_free(&show);
}

// A terminal shows a bar on one row, of which nothing stays.
static void a_terminal_shows_a_bar(void **state) {
    screen *s = *state;
    screen_open_with(s, &(screen_opts){.width = 60},
                     (const char *[]){"pull", "hf:flaky/Draft-GGUF", NULL});
    screen_expect(s, "pulling Draft-Q8_0.gguf (1 of 1)");
    screen_expect(s, "pulling [");
    screen_expect(s, "checking [");
    screen_expect(s, "quern run");
    assert_int_equal(screen_close(s), 0);
    if (screen_find(s, 0, "pulling [") >= 0 || screen_find(s, 0, "checking [") >= 0)
        fail_msg("a bar was left behind");
}

// --- what is typed wrong -------------------------------------------------------------------------

static void wrong_names_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *part;
    } cases[] = {
        {"qwen3:8b", "'qwen3:8b': want a repository of the hub, OWNER/REPO as in"},
        {"hf:../x", "is not the name of a repository"},
        {"hf:a/..", "is not the name of a repository"},
        {"hf:a/b:../../x", "is neither a type nor a file"},
        {"a/b:/etc/passwd", "is neither a type nor a file"},
        {"a/b%2f..%2f..", "is neither a type nor a file"},
        {"https://huggingface.co/a/b/resolve/../x", "cannot be a revision"},
        {"ftp://example.org/a.gguf", "want an address of https:// or http://"},
        {"file:///etc/passwd", "want an address of https:// or http://"},
        {"http://127.0.0.1:1/a.txt", "want the address of a .gguf file"},
        {"http://user:secret@127.0.0.1:1/a.gguf", "is not an address"},
        {"http://127.0.0.1:1/..%2fa.gguf%2f..", "want the address of a .gguf file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = CLI_RUN("pull", cases[i].name);
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
    cli_result r = CLI_RUN("pull", "a/b", "--revision", "../x");
    cli_assert_fails(&r, 2, "--revision");
    cli_free(&r);
    setenv("HF_TOKEN", "two\r\nHost: evil", 1);
    r = CLI_RUN("pull", "plain/Draft-GGUF");
    unsetenv("HF_TOKEN");
    cli_assert_fails(&r, 1, "HF_TOKEN");
    cli_free(&r);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup(name, begin)
    static screen terminal;
    const struct CMUnitTest tests[] = {
        CASE(a_model_is_pulled_and_runs_by_its_name),
        CASE(a_token_is_read_from_its_file),
        CASE(what_is_there_is_not_pulled_again),
        CASE(names_are_taken_as_people_type_them),
        CASE(an_address_is_pulled_too),
        CASE(types_are_chosen_as_the_hub_does),
        CASE(parts_come_together),
        CASE(a_tower_comes_along_and_is_used),
        CASE(other_files_come_alone),
        CASE(a_checkpoint_comes_whole),
        CASE(what_cannot_run_is_refused_before_it_is_there),
        CASE(odd_servers_are_borne),
        CASE(wrong_servers_are_refused),
        CASE(nobody_there_is_an_error),
        CASE(a_full_disk_is_an_error),
        CASE(secrets_of_addresses_are_not_told),
        CASE(a_download_goes_on_where_it_was),
        CASE(both_of_two_downloads_are_remembered),
        CASE(notes_are_not_trusted),
        SCREEN_TEST(a_terminal_shows_a_bar, &terminal),
        CASE(wrong_names_are_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

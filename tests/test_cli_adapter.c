// --lora of the commands that compute.
#include "cli_run.h"

#include "adapter_rig.h"
#include "model_writer.h"

#define MODEL MINI "/qwen3"

static char first[CLI_MOST_PATH], second[CLI_MOST_PATH]; // folders of adapters

static int setup(void **state) {
    if (cli_setup(state)) return -1;
    model_file *base = model_load(MODEL);
    model_file *a = adapter_make(base, &(adapter_want){.rank = 4, .alpha = 8, .seed = 1});
    model_file *b =
        adapter_make(base, &(adapter_want){.rank = 2, .alpha = 8, .seed = 2, .module = "mlp"});
    snprintf(first, sizeof first, "%s", cli_path("first"));
    snprintf(second, sizeof second, "%s", cli_path("a:2")); // reads like a scale
    adapter_write(a, first);
    adapter_write(b, second);
    model_free(a);
    model_free(b);
    model_free(base);
    return 0;
}

// The file of logits that the command writes.
static char *scores(const char *lora, const char *other, size_t *size) {
    const char *args[16] = {"logits", MODEL, "--ids", "1,2,3,4,5",
                            "-t",     "1",   "-o",    cli_path("logits.safetensors")};
    size_t n = 8;
    if (lora) args[n++] = "--lora", args[n++] = lora;
    if (other) args[n++] = "--lora", args[n++] = other;
    cli_result r = cli_run_with(&(cli_input){0}, args);
    cli_assert_done(&r);
    cli_free(&r);
    return cli_load(args[7], size);
}

static void expect(const char *lora, const char *other, const char *want, size_t n, bool is_same) {
    size_t size;
    char *got = scores(lora, other, &size);
    assert_int_equal(size, n);
    if ((memcmp(got, want, n) == 0) != is_same)
        fail_msg("%s and %s: the logits are %s", lora, other ? other : "none",
                 is_same ? "others" : "the same");
    free(got);
}

static void scales_follow_the_file(void **state) {
    (void)state;
    char typed[CLI_MOST_PATH + 64];
    size_t n;
    char *plain = scores(NULL, NULL, &n), *whole = scores(first, NULL, &n);
    expect(first, NULL, plain, n, false);
    snprintf(typed, sizeof typed, "%s:0", first);
    expect(typed, NULL, plain, n, true);
    snprintf(typed, sizeof typed, "%s:1", first);
    expect(typed, NULL, whole, n, true);
    snprintf(typed, sizeof typed, "%s:0.5", first);
    expect(typed, NULL, whole, n, false);
    snprintf(typed, sizeof typed, "%s/adapter_model.safetensors:1.0", first);
    expect(typed, NULL, whole, n, true);
    expect(first, second, whole, n, false);
    snprintf(typed, sizeof typed, "%s:0", second);
    expect(first, typed, whole, n, true);
    free(plain);
    free(whole);
}

static void what_is_no_adapter_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *lora;
        int code;
        const char *part;
    } cases[] = {{"", 2, "--lora: the name of the adapter is empty"},
                 {"/nowhere/a.gguf", 1, "quern: --lora: /nowhere/a.gguf: cannot open"},
                 {"/nowhere/a.gguf:0.5", 1, "quern: --lora: /nowhere/a.gguf: cannot open"},
                 {MODEL ":x", 2, "qwen3:x': the scale is 'x', want a number, as in FILE:0.5"},
                 {MODEL ":", 2, "qwen3:': the scale is '', want a number, as in FILE:0.5"},
                 {MODEL, 1, "not an adapter: no adapter_model.safetensors"},
                 {MODEL "/qwen3-bf16.gguf", 1, "general.type is 'model', want 'adapter'"}};
    char typed[CLI_MOST_PATH + 16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = CLI_RUN("logits", MODEL, "--ids", "1", "-o", cli_path("out.safetensors"),
                               "--lora", cases[i].lora);
        cli_assert_fails(&r, cases[i].code, cases[i].part);
        cli_free(&r);
    }
    snprintf(typed, sizeof typed, "%s:inf", first);
    cli_result r =
        CLI_RUN("logits", MODEL, "--ids", "1", "-o", cli_path("out.safetensors"), "--lora", typed);
    cli_assert_fails(&r, 1, "a scale of inf");
    cli_free(&r);
    r = CLI_RUN("logits", MINI "/gemma3", "--ids", "1", "-o", cli_path("out.safetensors"), "--lora",
                first);
    cli_assert_fails(&r, 1, "for blk.0.attn_k.weight want (16, 4)");
    cli_free(&r);
    r = CLI_RUN("logits", first, "--ids", "1");
    cli_assert_fails(&r, 1, "first is not a model but an adapter: give it with --lora FILE");
    cli_free(&r);
}

// The other commands.
static void adapters_work_where_models_are_opened(void **state) {
    (void)state;
    char text[] = "a b c d e f g h i j k l m n o p q r s t u v w x y z and so on\n";
    cli_save(cli_path("text"), text, strlen(text));
    cli_result plain = CLI_RUN("run", MODEL, "--raw", "-p", "a b", "-n", "8"),
               other = CLI_RUN("run", MODEL, "--raw", "-p", "a b", "-n", "8", "--lora", first);
    cli_assert_done(&plain);
    cli_assert_done(&other);
    assert_string_not_equal(plain.out, other.out);
    cli_free(&plain);
    cli_free(&other);
    plain = CLI_RUN("eval", MODEL, "--ppl", cli_path("text"));
    other = CLI_RUN("eval", MODEL, "--ppl", cli_path("text"), "--lora", first);
    cli_assert_done(&plain);
    cli_assert_done(&other);
    assert_string_not_equal(plain.out, other.out);
    cli_free(&plain);
    cli_free(&other);
    other = CLI_RUN("bench", MODEL, "-p", "8", "-n", "2", "-r", "1", "--lora", first);
    assert_int_equal(other.code, 0);
    cli_free(&other);
    other = CLI_RUN("bench", MODEL, "--open", "-r", "1", "--lora", first);
    assert_int_equal(other.code, 0);
    cli_free(&other);
}

// A conversation goes on with an adapter and without.
static void sessions_do_not_depend_on_adapters(void **state) {
    (void)state;
    char file[CLI_MOST_PATH];
    snprintf(file, sizeof file, "%s", cli_path("talk.json"));
    for (int i = 0; i < 3; i++) {
        cli_result r = i == 1 ? CLI_RUN("run", MODEL, "-p", "hi", "-n", "3", "--session", file)
                              : CLI_RUN("run", MODEL, "-p", "hi", "-n", "3", "--session", file,
                                        "--lora", first);
        if (r.code != 0) fail_msg("run %d: exit code %d, stderr '%s'", i, r.code, r.err);
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_follow_the_file),
        cmocka_unit_test(what_is_no_adapter_is_refused),
        cmocka_unit_test(adapters_work_where_models_are_opened),
        cmocka_unit_test(sessions_do_not_depend_on_adapters),
    };
    return cmocka_run_group_tests(tests, setup, cli_teardown);
}

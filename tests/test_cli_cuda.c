// The program with a stand-in for GPUs (fake_cuda.c), and without any.
#include "cli_run.h"
#include "testing.h"

#include <stdlib.h>

#define MODEL DRAFT

static cli_result run_with(const char *library, const char *words) {
    char command[2 * CLI_MOST_PATH];
    snprintf(command, sizeof command, "QN_CUDA_LIBRARY='%s' '%s' %s", library, QUERN, words);
    return cli_run_with(&(cli_input){.program = "sh"}, (const char *[]){"-c", command, NULL});
}

static void assert_has(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' does not contain '%s'", text, part);
}

static void devices_are_described(void **state) {
    (void)state;
    cli_result text = run_with(FAKE_CUDA, "devices"), json = run_with(FAKE_CUDA, "devices --json");
    assert_int_equal(text.code, 0);
    assert_has(text.out, "cuda           the first GPU: a fake, 1.0 GiB, 9.0\n");
    assert_has(text.out, "cuda:0         an NVIDIA GPU: a fake, 1.0 GiB, 9.0\n");
    assert_null(strstr(text.out, "cuda:1"));
    assert_string_equal(text.err, "");
    assert_has(json.out, "\"name\": \"cuda:0\"");
    assert_has(json.out, "\"model\": \"a fake\"");
    assert_has(json.out, "\"memory\": 1073741824");
    assert_has(json.out, "\"compute\": \"9.0\"");
    cli_free(&text);
    cli_free(&json);
}

static void a_machine_without_gpus_says_why(void **state) {
    (void)state;
    cli_result list = run_with("/nowhere.so", "devices"),
               run = run_with("/nowhere.so", "run '" MODEL "' -p Hello --device cuda");
    assert_int_equal(list.code, 0);
    assert_null(strstr(list.out, "cuda"));
    assert_has(list.err, "no GPU: device cuda: the library /nowhere.so cannot be used");
    assert_int_not_equal(run.code, 0);
    assert_has(run.err, "the library /nowhere.so cannot be used");
    cli_free(&list);
    cli_free(&run);
}

static void memory_of_the_card_is_in_the_plan(void **state) {
    (void)state;
    cli_result card = run_with(FAKE_CUDA, "inspect '" MODEL "' --memory --device cuda"),
               json = run_with(FAKE_CUDA, "inspect '" MODEL "' --memory --json --device cuda"),
               cpu = run_with(FAKE_CUDA, "inspect '" MODEL "' --memory --json");
    assert_int_equal(card.code, 0);
    assert_has(card.out, "on the GPU");
    assert_has(json.out, "\"device\": ");
    assert_null(strstr(cpu.out, "\"device\": "));
    cli_free(&card);
    cli_free(&json);
    cli_free(&cpu);
}

// The limits are the card's; the stand-in has fixed ones.
static void speeds_are_shares_of_the_card(void **state) {
    (void)state;
    cli_result alone = run_with(FAKE_CUDA, "bench --limits --device cuda"),
               json = run_with(FAKE_CUDA, "bench --limits --device cuda --json"),
               model = run_with(FAKE_CUDA, "bench '" MODEL "' -p 8 -n 4 -r 1 --limits --json "
                                           "--device cuda"),
               two = run_with(FAKE_CUDA, "bench '" MODEL "' -p 8 -n 4 -r 1 --limits "
                                         "--device cuda,cpu");
    assert_int_equal(alone.code, 0);
    assert_string_equal(alone.out, "limits of cuda:0\nread               50 GB/s\n"
                                   "f16                 2 TFLOP/s\n");
    assert_has(json.out, "\"f16_tflops\": 2");
    assert_has(json.out, "\"f32_gflops\": null");
    assert_int_equal(model.code, 0);
    assert_has(model.out, "\"level\": \"cuda:0\"");
    assert_null(strstr(model.out, "\"share\": null"));
    assert_has(two.err, "--limits are those of one device, not of cuda:0,cpu");
    cli_free(&alone);
    cli_free(&json);
    cli_free(&model);
    cli_free(&two);
}

// Where the time of a step goes, by the card's own clock.
static void calls_are_timed(void **state) {
    (void)state;
    cli_result r = run_with(FAKE_CUDA, "run '" MODEL "' -p 'Once' -n 4 --greedy --profile --device "
                                       "cuda");
    assert_int_equal(r.code, 0);
    assert_has(r.err, "project");
    assert_has(r.err, "attention_attend");
    cli_free(&r);
}

static void texts_are_those_of_the_cpu(void **state) {
    (void)state;
    static const char words[] = "run '" MODEL "' -p 'Once upon a time' -n 12 --greedy --device ";
    char card[512], cpu[512];
    snprintf(card, sizeof card, "%scuda", words);
    snprintf(cpu, sizeof cpu, "%scpu", words);
    cli_result a = run_with(FAKE_CUDA, card), b = run_with(FAKE_CUDA, cpu);
    assert_int_equal(a.code, 0);
    assert_string_equal(a.out, b.out);
    cli_free(&a);
    cli_free(&b);
}

static void numerics_of_gpus_are_refused_elsewhere(void **state) {
    (void)state;
    static const char words[] = "run '" MODEL "' -p Once -n 4 --greedy --numerics tensor";
    static const char *const elsewhere[] = {"cpu", "cuda,cpu", "cuda --gpu-layers 1"};
    char command[512];
    snprintf(command, sizeof command, "%s --device cuda", words);
    cli_result r = run_with(FAKE_CUDA, command);
    assert_int_equal(r.code, 0);
    cli_free(&r);
    for (size_t i = 0; i < sizeof elsewhere / sizeof *elsewhere; i++) {
        snprintf(command, sizeof command, "%s --device %s", words, elsewhere[i]);
        r = run_with(FAKE_CUDA, command);
        assert_int_not_equal(r.code, 0);
        assert_has(r.err, " has no numerics tensor, GPUs have (cuda)");
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_described),
        cmocka_unit_test(a_machine_without_gpus_says_why),
        cmocka_unit_test(memory_of_the_card_is_in_the_plan),
        cmocka_unit_test(texts_are_those_of_the_cpu),
        cmocka_unit_test(numerics_of_gpus_are_refused_elsewhere),
        cmocka_unit_test(speeds_are_shares_of_the_card),
        cmocka_unit_test(calls_are_timed),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

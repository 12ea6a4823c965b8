// Numbers that the program prints, where there are none.
#include "cli_run.h"

#include "model_writer.h"

// Scores so large that the perplexity is beyond all numbers: null, as JSON can say it.
static void numbers_that_are_none_are_null(void **state) {
    (void)state;
    static const char story[] = "zx time 7 of the Q blue";
    char text[CLI_MOST_PATH], path[CLI_MOST_PATH];
    snprintf(text, sizeof text, "%s", cli_path("text"));
    snprintf(path, sizeof path, "%s", cli_path("loud.gguf"));
    cli_save(text, story, strlen(story));
    model_file *m = model_load(DRAFT);
    model_edit(m, "type output_norm.weight F32; fill output_norm.weight 1e20");
    model_write_gguf(m, path);
    model_free(m);
    cli_result r = CLI_RUN("eval", path, "--ppl", text, "--json", "--against", DRAFT);
    cli_assert_done(&r);
    json_t *got = cli_json(r.out);
    assert_true(json_is_null(json_object_get(got, "ppl")));
    assert_true(json_is_null(json_object_get(got, "se")));
    assert_true(json_is_real(json_object_get(got, "kl")));
    assert_true(json_integer_value(json_object_get(got, "tokens")) > 1);
    json_decref(got);
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_that_are_none_are_null),
    };
    return cmocka_run_group_tests_name("cli_numbers", tests, cli_setup, cli_teardown);
}

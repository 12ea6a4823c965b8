// quern embed: rows of numbers for texts, from the command line and from files.
#include "cli_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define MODEL MODELS "/quern-draft-Q8_0.gguf"

// The numbers of a line; *at is behind it afterwards.
static size_t read_row(double *to, size_t max, const char **at) {
    size_t n = 0;
    while (**at && **at != '\n') {
        char *end;
        assert_true(n < max);
        to[n++] = strtod(*at, &end);
        assert_ptr_not_equal(end, *at);
        *at = end;
    }
    assert_int_equal(**at, '\n');
    ++*at;
    return n;
}

static void test_each_text_is_a_line(void **state) {
    (void)state;
    double rows[3][1024], sum = 0;
    cli_result both = CLI_RUN("embed", MODEL, "a cat", "two dogs", "--normalize");
    cli_result one = CLI_RUN("embed", MODEL, "two dogs", "--normalize", "-t", "1");
    cli_assert_done(&both);
    cli_assert_done(&one);
    const char *at = both.out, *alone = one.out;
    const size_t n = read_row(rows[0], 1024, &at);
    assert_true(n > 16);
    assert_string_equal(at, alone); // whatever is beside it
    assert_int_equal(read_row(rows[1], 1024, &at), n);
    assert_int_equal(*at, '\0');
    for (size_t i = 0; i < n; i++) sum += rows[0][i] * rows[0][i];
    assert_true(fabs(sum - 1) < 1e-6);
    cli_free(&both);
    cli_free(&one);
}

static void test_lines_of_a_file_are_texts(void **state) {
    (void)state;
    static const char text[] = "a cat\ntwo dogs"; // the last line has no end
    cli_save(cli_path("texts"), text, sizeof text - 1);
    static const char *const kinds[] = {"mean", "last"};
    for (int i = 0; i < 2; i++) {
        cli_result file =
            CLI_RUN("embed", MODEL, "--file", cli_path("texts"), "--pooling", kinds[i]);
        cli_result typed = CLI_RUN("embed", MODEL, "a cat", "two dogs", "--pooling", kinds[i]);
        cli_assert_done(&file);
        assert_string_equal(file.out, typed.out);
        cli_free(&file);
        cli_free(&typed);
    }
}

// Lines may end as those of Windows do.
static void test_standard_input_is_read(void **state) {
    (void)state;
    const char *const ways[][5] = {{"embed", MODEL}, {"embed", MODEL, "--file", "-"}};
    cli_result typed = CLI_RUN("embed", MODEL, "a cat", "two dogs");
    for (int i = 0; i < 2; i++) {
        cli_result piped =
            cli_run_with(&(cli_input){.stdin_text = "a cat\r\ntwo dogs\r\n"}, ways[i]);
        cli_assert_done(&piped);
        assert_string_equal(piped.out, typed.out);
        cli_free(&piped);
    }
    cli_free(&typed);
}

static void test_json_has_the_same_numbers(void **state) {
    (void)state;
    double row[1024];
    cli_result plain = CLI_RUN("embed", MODEL, "a cat"),
               printed = CLI_RUN("embed", MODEL, "a cat", "--json");
    cli_assert_done(&printed);
    const char *at = plain.out;
    const size_t n = read_row(row, 1024, &at);
    json_t *json = cli_json(printed.out);
    const json_t *list = json_object_get(json, "embedding");
    assert_int_equal(json_integer_value(json_object_get(json, "index")), 0);
    assert_int_equal(json_array_size(list), n);
    for (size_t i = 0; i < n; i++)
        assert_true((float)json_number_value(json_array_get(list, i)) == (float)row[i]);
    json_decref(json);
    cli_free(&plain);
    cli_free(&printed);
}

static void test_wrong_usage(void **state) {
    (void)state;
    static const struct {
        const char *name, *text;
        size_t size;
    } files[] = {{"gap", "a\n\nb\n", 5}, {"nul", "a\0b\n", 4}, {"empty", "", 0}};
    char paths[3][CLI_MOST_PATH];
    for (int i = 0; i < 3; i++) {
        snprintf(paths[i], sizeof paths[i], "%s", cli_path(files[i].name));
        cli_save(paths[i], files[i].text, files[i].size);
    }
    const struct {
        const char *args[8];
        int code;
        const char *part;
    } cases[] = {
        {{"embed", MODEL}, 1, "standard input is empty"},
        {{"embed", MODEL, "a", "--file", "b"}, 2, "give either texts or --file"},
        {{"embed", MODEL, "a", ""}, 2, "text 2 is empty"},
        {{"embed", MODEL, "a", "--pooling", "max"}, 2, "--pooling: 'max', want mean or last"},
        {{"embed", MODEL, "--file", paths[0]}, 1, "line 2 is empty"},
        {{"embed", MODEL, "--file", paths[1]}, 1, "line 1 has a NUL byte"},
        {{"embed", MODEL, "--file", paths[2]}, 1, "is empty"},
        {{"embed", MODEL, "--file", "/nowhere/at/all"}, 1, "No such file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, cases[i].code, cases[i].part);
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_text_is_a_line),
        cmocka_unit_test(test_lines_of_a_file_are_texts),
        cmocka_unit_test(test_standard_input_is_read),
        cmocka_unit_test(test_json_has_the_same_numbers),
        cmocka_unit_test(test_wrong_usage),
    };
    return cmocka_run_group_tests_name("cli_embed", tests, cli_setup, cli_teardown);
}

// How the plan of a split is printed.
#include "testing.h"

#include "cli/split_report.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

static void a_plan_is_a_table(void **state) {
    (void)state;
    static const char json[] =
        "{\"split\": \"layers\", \"problem\": null, \"ranks\": 2, \"system\": \"mpi\","
        " \"why\": \"layers: because\","
        " \"network\": {\"latency_us\": 310.04, \"message_us\": 2, \"gbs\": 0.1175},"
        " \"shares\": [{\"rank\": 0, \"layers\": [0, 21], \"weights\": 1073741824,"
        " \"state_per_token\": 86016, \"state_fixed\": 0, \"memory\": 2147483648, \"free\": null,"
        " \"threads\": 16, \"read_gbs\": 131.04, \"int8_tops\": 9.6},"
        " {\"rank\": 1, \"layers\": [21, 28], \"weights\": 536870912, \"state_per_token\": 28672,"
        " \"state_fixed\": 0, \"memory\": 734003200, \"free\": 8589934592, \"threads\": 4,"
        " \"read_gbs\": 40, \"int8_tops\": 2.25}],"
        " \"per_token\": {\"messages\": 4, \"bytes\": 4816, \"message_ms\": 0.6251},"
        " \"predicted\": {\"decode_tps\": 24.46, \"prefill_tps\": 345.12},"
        " \"other\": {\"split\": \"tensors\", \"problem\": \"rank 1 is small\","
        " \"per_token\": {\"messages\": 116, \"bytes\": 1234567, \"message_ms\": 35},"
        " \"predicted\": null}}";
    static const char want[] =
        "split by layers, 2 ranks over mpi: latency 310.0 us, 0.117 GB/s\n"
        "  layers: because\n"
        "\n"
        "  rank   layers      weights  state/token       memory         free  threads     GB/s    "
        "TOP/s\n"
        "     0     0-20      1.0 GiB     84.0 KiB      2.0 GiB            -       16    131.0     "
        " 9.6\n"
        "     1    21-27    512.0 MiB     28.0 KiB    700.0 MiB      8.0 GiB        4     40.0     "
        "2.25\n"
        "\n"
        "  predicted                  layers      tensors\n"
        "  decode, tokens/s             24.5            -\n"
        "  prefill, tokens/s           345.1            -\n"
        "  messages a token                4          116\n"
        "  bytes a token                4816      1234567\n"
        "  messages, ms a token         0.63        35.00\n"
        "  not by tensors: rank 1 is small\n";
    qn_buf text = {0};
    qn_err err;
    ASSERT_OK(qn_split_report(&text, json, &err));
    assert_string_equal(text.data, want);
    qn_buf_deinit(&text);
}

static void one_rank_has_nothing_to_compare(void **state) {
    (void)state;
    qn_buf text = {0};
    qn_err err;
    ASSERT_OK(qn_split_report(&text,
                              "{\"split\": \"tensors\", \"ranks\": 1, \"network\": null, "
                              "\"why\": \"tensors: there is one rank\", \"shares\": []}",
                              &err));
    assert_non_null(strstr(text.data, "split by tensors, 1 rank\n  tensors: there is one rank\n"));
    assert_null(strstr(text.data, "predicted"));
    qn_buf_deinit(&text);
}

// Of three ranks and two key/value heads, one has none; by layers that cannot be.
static void ranks_without_heads_are_named(void **state) {
    (void)state;
    static const char shares[] = "{\"split\": \"%s\", \"ranks\": 3, \"shares\": ["
                                 "{\"rank\": 0, \"state_per_token\": 0, \"state_fixed\": 0},"
                                 "{\"rank\": 1, \"state_per_token\": %d, \"state_fixed\": 0},"
                                 "{\"rank\": 2, \"state_per_token\": 0, \"state_fixed\": %d}]}";
    static const struct {
        const char *split;
        int per_token, fixed;
        const char *want; // NULL: nothing is said
    } cases[] = {{"tensors", 8, 8, "attention is not on rank 0\n"},
                 {"tensors", 8, 0, "attention is not on rank 0, 2\n"},
                 {"tensors", 0, 0, NULL},
                 {"layers", 8, 0, NULL}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char json[sizeof shares + 32];
        qn_buf text = {0};
        qn_err err;
        snprintf(json, sizeof json, shares, cases[i].split, cases[i].per_token, cases[i].fixed);
        ASSERT_OK(qn_split_report(&text, json, &err));
        assert_int_equal(strstr(text.data, "heads are not cut") != NULL, cases[i].want != NULL);
        if (cases[i].want) assert_non_null(strstr(text.data, cases[i].want));
        qn_buf_deinit(&text);
    }
}

// Whatever comes, nothing that is missing is read.
static void other_json_does_no_harm(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{}", "[]", "{\"ranks\": 3, \"shares\": [1, {}, {\"layers\": 5}], \"other\": []}",
        "{\"split\": 1, \"why\": {}, \"network\": {}}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        qn_buf text = {0};
        qn_err err;
        ASSERT_OK(qn_split_report(&text, texts[i], &err));
        qn_buf_deinit(&text);
    }
    qn_buf text = {0};
    qn_err err;
    ASSERT_FAILS(qn_split_report(&text, "{", &err), QN_FORMAT, "the plan of a split");
    qn_buf_deinit(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_is_a_table),
        cmocka_unit_test(one_rank_has_nothing_to_compare),
        cmocka_unit_test(ranks_without_heads_are_named),
        cmocka_unit_test(other_json_does_no_harm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

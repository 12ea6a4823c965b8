// JSON when memory is short: each allocation of reading, making and writing fails once, jansson's
// too; the result is QN_MEMORY, and nothing is lost.
#include "alloc_rig.h"
#include "testing.h"

#include "core/json.h"
#include "core/mem.h"

#include <string.h>

static const char text[] =
    "{\"a name that is longer than what a buffer begins with, with an escape \\u00e9\": [1, 2.5, "
    "\"a text with escapes, \\\"quoted\\\", and longer than a small buffer: \\n\\n\\n\\n\\n\\n\"],"
    "\"b\": {\"c\": [[], {}, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]]},"
    "\"1\": 1, \"2\": 2, \"3\": 3, \"4\": 4, \"5\": 5, \"6\": 6, \"7\": 7, \"8\": 8, \"9\": 9}";

// Reads, adds, writes, and reads again; QN_OK only if all of it is there.
static qn_status attempt(qn_err *err) {
    json_t *json = NULL, *again = NULL;
    char *written = NULL;
    const qn_json_form form = {.indent = 1};
    qn_status status = qn_json_parse(&json, text, sizeof text - 1, false, "text", err);
    if (status) return status;
    json_t *list = json_array();
    for (int i = 0; i < 20; i++) qn_json_push(&list, json_integer(i));
    qn_json_put(&json, "list", list);
    qn_json_put(&json, "text", qn_json_string("\xff of any bytes", 14));
    status = qn_json_print(&written, json, &form, "text", err);
    if (!status) status = qn_json_parse(&again, written, strlen(written), false, "again", err);
    if (!status && !json_equal(json, again))
        status = QN_FAIL(err, STATE, "another value came back");
    json_decref(json);
    json_decref(again);
    qn_free(written);
    return status;
}

static void a_failed_allocation_is_never_lost(void **state) {
    (void)state;
    for (long n = 0;; n++) {
        qn_err err = {0};
        const long before = n_living;
        countdown = n;
        const qn_status status = attempt(&err);
        const bool failed_one = countdown < 0;
        countdown = -1;
        if (n_living != before) fail_msg("%ld blocks leaked at %ld", n_living - before, n);
        if (!failed_one) {
            ASSERT_OK(status);
            assert_true(n > 100);
            return;
        }
        if (status != QN_MEMORY)
            fail_msg("%s when allocation %ld failed: %s", qn_status_name(status), n, err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_allocation_is_never_lost)};
    json_set_alloc_funcs(json_alloc, __wrap_free);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

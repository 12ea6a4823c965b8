// Any text as a plan. What is accepted passes the verifier and prints to text that reads back as
// the same text.
#include "ir/plan_text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_plan(const qn_plan *plan) {
    qn_err err = {0};
    qn_buf first = {0}, second = {0};
    qn_plan back = {0};
    if (qn_plan_verify(plan, &err) != QN_OK) abort();
    qn_plan_print(&first, plan);
    if (qn_plan_parse(&back, first.data, first.size, &err) != QN_OK) {
        fprintf(stderr, "printed, but: %s\n%s", err.message, first.data);
        abort();
    }
    qn_plan_print(&second, &back);
    if (first.failed || second.failed || first.size != second.size ||
        memcmp(first.data, second.data, first.size) != 0)
        abort();
    qn_buf_deinit(&first);
    qn_buf_deinit(&second);
    qn_plan_deinit(&back);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_err err = {0};
    qn_plan plan = {0};
    if (qn_plan_parse(&plan, text, size, &err) == QN_OK) {
        if (plan.arena.bytes > 128 * size + (1 << 20)) abort();
        check_plan(&plan);
    } else if (plan.name || !err.message[0]) {
        abort();
    }
    qn_plan_deinit(&plan);
    free(text);
    return 0;
}

#include "passes/passes.h"

static void print_miss(qn_buf *to, const qn_pass_miss *miss) {
    qn_buf_text(to, "      not");
    if (miss->first_layer >= 0) qn_buf_printf(to, " @%d", miss->first_layer);
    if (miss->last_layer != miss->first_layer) qn_buf_printf(to, " ... @%d", miss->last_layer);
    if (miss->count > 1) qn_buf_printf(to, " (%d times)", miss->count);
    qn_buf_printf(to, ": %s\n", miss->why);
}

void qn_pass_report_fusion(qn_buf *to, const qn_pass_report *report) {
    qn_buf_text(to, "pass            fired\n");
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (!report->ran[i]) {
            qn_buf_printf(to, "%-14s      -  skipped\n", qn_pass_name(i));
            continue;
        }
        qn_buf_printf(to, "%-14s %6d  %s\n", qn_pass_name(i), report->fired[i], qn_pass_meaning(i));
        for (int32_t m = 0; m < report->n_misses; m++) {
            if (report->misses[m].pass == (int)i) print_miss(to, &report->misses[m]);
        }
    }
}

void qn_pass_report_dispatch(qn_buf *to, const qn_pass_report *report) {
    qn_buf_text(to, "op               native  decomposed  rewritten  unsupported\n");
    for (int op = 0; op < QN_OP_COUNT; op++) {
        const qn_op_info *info = qn_op_get((qn_op)op);
        const int32_t native = report->native[op], decomposed = report->decomposed[op];
        const int32_t rewritten = report->rewritten[op], unsupported = report->unsupported[op];
        if (info->class_of == QN_CLASS_LEAF || !(native | decomposed | rewritten | unsupported))
            continue;
        qn_buf_printf(to, "%-15s %7d  %10d  %9d  %11d", info->name, native, decomposed, rewritten,
                      unsupported);
        if (report->refusals[op]) qn_buf_printf(to, "  %s", report->refusals[op]);
        qn_buf_text(to, "\n");
    }
}

void qn_pass_report_text(qn_buf *to, const qn_pass_report *report) {
    qn_pass_report_fusion(to, report);
    qn_buf_text(to, "\n");
    qn_pass_report_dispatch(to, report);
}

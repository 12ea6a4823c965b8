#include "ir/plan_text.h"
#include "ir/text.h"

#include <string.h>

static void print_dim(qn_buf *to, const qn_dim *dim) {
    if (dim->n != 1 || dim->sym == QN_SYM_ONE) qn_buf_printf(to, "%lld", (long long)dim->n);
    if (dim->n != 1 && dim->sym != QN_SYM_ONE) qn_buf_text(to, "*");
    qn_buf_text(to, qn_sym_name(dim->sym));
}

// Kernels are called by words; a name that is not a word is quoted.
static void print_name(qn_buf *to, const char *name) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    const size_t n = strspn(name, letters);
    if (n && !name[n])
        qn_buf_text(to, name);
    else
        qn_string_print(to, name);
}

static void print_arg(qn_buf *to, const qn_plan_arg *arg) {
    if (arg->place == QN_PLACE_NONE) {
        qn_buf_text(to, "_");
        return;
    }
    qn_buf_text(to, arg->place == QN_PLACE_BUFFER ? "b" : qn_place_name(arg->place));
    if (arg->place != QN_PLACE_TABLE) qn_buf_printf(to, "%d", arg->index);
    if (arg->offset) qn_buf_printf(to, "+%lld", (long long)arg->offset);
    if (arg->parts || arg->width)
        qn_buf_printf(to, " (%lld x %lld)", (long long)arg->parts, (long long)arg->width);
    // A leaf is as its own line says, and its form says nothing new.
    const bool is_leaf = arg->place != QN_PLACE_BUFFER;
    if (is_leaf && !arg->form) qn_buf_text(to, " _");
    if (arg->form && !(is_leaf && arg->form == QN_WORD_f32))
        qn_buf_printf(to, " %s", qn_word_get(arg->form)->name);
}

static void print_args(qn_buf *to, const char *before, const qn_plan_arg *args, int n) {
    for (int i = 0; i < n; i++) {
        qn_buf_text(to, i ? ", " : before);
        print_arg(to, &args[i]);
    }
}

static bool is_zero(const void *bytes, size_t n) {
    const unsigned char *b = bytes;
    size_t i = 0;
    while (i < n && !b[i]) i++;
    return i == n;
}

static bool is_printed(const qn_plan_call *c, qn_attr attr) {
    static const size_t sizes[] = {
        [QN_ATTR_INT] = sizeof(int64_t),
        [QN_ATTR_FLOAT] = sizeof(float),
        [QN_ATTR_LIST] = sizeof(qn_list),
        [QN_ATTR_WORD] = sizeof(qn_word),
    };
    const qn_attr_info *info = qn_attr_get(attr);
    return qn_op_get(c->op)->attrs >> attr & 1u ||
           !is_zero((const char *)&c->attrs + info->offset, sizes[info->kind]);
}

static void print_attrs(qn_buf *to, const qn_plan_call *c) {
    const char *before = " {";
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (!is_printed(c, (qn_attr)a)) continue;
        qn_buf_printf(to, "%s%s=", before, qn_attr_get((qn_attr)a)->name);
        qn_attr_print(to, &c->attrs, (qn_attr)a);
        before = ", ";
    }
    if (before[0] == ',') qn_buf_text(to, "}");
}

static void print_call(qn_buf *to, const qn_plan_call *c, size_t i) {
    qn_buf_printf(to, "call %zu ", i);
    print_name(to, c->kernel);
    qn_buf_text(to, " (");
    qn_lower_print(to, qn_op_get(c->op)->name);
    qn_buf_printf(to, ".%d) ", c->stage);
    if (c->layer >= 0) qn_buf_printf(to, "@%d ", c->layer);
    print_dim(to, &c->rows);
    qn_buf_text(to, ":");
    print_args(to, " ", c->out, c->n_out);
    qn_buf_text(to, " <-");
    print_args(to, " ", c->in, c->n_in);
    print_args(to, " using ", c->temp, c->n_temp);
    print_attrs(to, c);
    qn_buf_text(to, "\n");
}

static void print_leaf(qn_buf *to, const qn_plan_leaf *leaf, qn_place place, size_t i) {
    char shape[128]; // four dimensions of at most 22 characters each
    qn_buf_printf(to, "%s %zu ", qn_place_name(place), i);
    qn_string_print(to, leaf->name);
    qn_buf_text(to, " ");
    qn_lower_print(to, qn_type_get(leaf->type)->name);
    qn_buf_printf(to, " %s", qn_shape_text(shape, sizeof shape, &leaf->shape));
    if (leaf->layout != QN_WORD_rows) qn_buf_printf(to, " %s", qn_word_get(leaf->layout)->name);
    qn_share_print(to, leaf->share);
    if (place == QN_PLACE_CONST) {
        qn_buf_text(to, " ");
        qn_data_print(to, &leaf->shape, leaf->data);
    }
    qn_buf_text(to, "\n");
}

static void print_buffer(qn_buf *to, const qn_plan_buffer *b, size_t i) {
    qn_buf_printf(to, "buffer %zu ", i);
    print_dim(to, &b->rows);
    qn_buf_printf(to, " x %lld live %d %d\n", (long long)b->row_bytes, b->first, b->last);
}

void qn_plan_print(qn_buf *to, const qn_plan *plan) {
    qn_buf_text(to, "plan ");
    qn_string_print(to, plan->name);
    qn_buf_text(to, " ");
    qn_string_print(to, plan->backend);
    qn_buf_printf(to, " %zu calls\n", plan->n_calls);
    for (int p = 0; p < QN_PLACE_COUNT; p++) {
        for (size_t i = 0; i < plan->n_leaves[p]; i++)
            print_leaf(to, &plan->leaves[p][i], (qn_place)p, i);
    }
    for (size_t i = 0; i < plan->n_buffers; i++) print_buffer(to, &plan->buffers[i], i);
    for (size_t i = 0; i < plan->n_calls; i++) {
        if (i == 0 || plan->calls[i].layer != plan->calls[i - 1].layer) qn_buf_text(to, "\n");
        print_call(to, &plan->calls[i], i);
    }
    if (plan->n_outputs) qn_buf_text(to, "\n");
    for (size_t i = 0; i < plan->n_outputs; i++) {
        qn_buf_text(to, "output ");
        qn_string_print(to, plan->outputs[i].name);
        qn_buf_text(to, " ");
        print_dim(to, &plan->outputs[i].rows);
        qn_buf_text(to, " ");
        print_arg(to, &plan->outputs[i].arg);
        qn_share_print(to, plan->outputs[i].share);
        qn_buf_text(to, "\n");
    }
}

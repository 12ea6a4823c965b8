#include "ir/text.h"

#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FLOAT_DIGITS = 9, // enough for every float
    MARGIN = 52       // the "=" of longer lines is not aligned
};

// The digits of a positive finite float rounded to n of them, without a radix character, whose form
// a locale may change; *exponent is that of the first digit.
static void round_digits(char digits[FLOAT_DIGITS + 1], int *exponent, float value, int n) {
    char text[40];
    snprintf(text, sizeof text, "%.*e", n - 1, (double)value);
    const char *at = text;
    int count = 0;
    for (; *at && *at != 'e'; at++) {
        if (*at >= '0' && *at <= '9' && count < FLOAT_DIGITS) digits[count++] = *at;
    }
    digits[count] = 0;
    *exponent = *at ? atoi(at + 1) : 0;
}

// The fewest digits that read back as the same float.
static void shortest_digits(char digits[FLOAT_DIGITS + 1], int *exponent, float value) {
    for (int n = 1; n <= FLOAT_DIGITS; n++) {
        round_digits(digits, exponent, value, n);
        char text[40];
        snprintf(text, sizeof text, "%se%d", digits, *exponent - n + 1);
        if (strtof(text, NULL) == value) return;
    }
}

// Digits d1 d2 ... with the point after d1 moved by `exponent`.
static void print_decimal(qn_buf *to, const char *digits, int exponent) {
    const int n = (int)strlen(digits);
    if (exponent < -4 || exponent > 8) {
        qn_buf_printf(to, "%c%s%se%d", digits[0], n > 1 ? "." : "", digits + 1, exponent);
    } else if (exponent < 0) {
        qn_buf_printf(to, "0.%.*s%s", -exponent - 1, "0000", digits);
    } else if (exponent >= n - 1) {
        qn_buf_printf(to, "%s%.*s", digits, exponent - n + 1, "00000000");
    } else {
        qn_buf_printf(to, "%.*s.%s", exponent + 1, digits, digits + exponent + 1);
    }
}

void qn_float_print(qn_buf *to, float value) {
    if (isnan(value)) {
        uint32_t bits;
        memcpy(&bits, &value, sizeof bits);
        qn_buf_printf(to, "0x%08x", bits);
        return;
    }
    if (signbit(value)) qn_buf_text(to, "-");
    value = fabsf(value);
    if (isinf(value) || value == 0) {
        qn_buf_text(to, value == 0 ? "0" : "inf");
        return;
    }
    char digits[FLOAT_DIGITS + 1];
    int exponent;
    shortest_digits(digits, &exponent, value);
    print_decimal(to, digits, exponent);
}

void qn_string_print(qn_buf *to, const char *text) {
    const size_t size = strlen(text);
    qn_buf_text(to, "\"");
    for (size_t i = 0; i < size;) {
        const unsigned char c = (unsigned char)text[i];
        const size_t n = qn_utf8_check(text + i, size - i);
        if (c == '"' || c == '\\')
            qn_buf_printf(to, "\\%c", c);
        else if (c == '\n' || c == '\t')
            qn_buf_text(to, c == '\n' ? "\\n" : "\\t");
        else if (c < 0x20 || c == 0x7f || n == 0)
            qn_buf_printf(to, "\\x%02x", c);
        else
            qn_buf_add(to, text + i, n);
        i += n ? n : 1;
    }
    qn_buf_text(to, "\"");
}

void qn_lower_print(qn_buf *to, const char *name) {
    for (; *name; name++) {
        const char c = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
        qn_buf_add(to, &c, 1);
    }
}

static void print_value(qn_buf *to, const qn_graph *graph, int32_t id) {
    const qn_value *value = &graph->values[id];
    qn_buf_printf(to, "%%%d ", id);
    if (value->name[0]) {
        qn_string_print(to, value->name);
        qn_buf_text(to, " ");
    }
    if (value->kind != QN_TENSOR) qn_buf_text(to, qn_kind_name(value->kind));
    if (value->kind != QN_TENSOR && value->type != QN_TYPE_F32) qn_buf_text(to, ":");
    if (value->kind == QN_TENSOR || value->type != QN_TYPE_F32)
        qn_lower_print(to, qn_type_get(value->type)->name);
    char shape[128]; // four dimensions of at most 22 characters each
    qn_buf_printf(to, " %s", qn_shape_text(shape, sizeof shape, &value->shape));
}

static void print_results(qn_buf *to, const qn_graph *graph, const qn_node *node) {
    for (int i = 0; i < node->n_out; i++) {
        if (i) qn_buf_text(to, ", ");
        print_value(to, graph, node->out[i]);
    }
}

static void print_int(qn_buf *to, const void *at) {
    qn_buf_printf(to, "%lld", (long long)*(const int64_t *)at);
}

static void print_float(qn_buf *to, const void *at) { qn_float_print(to, *(const float *)at); }

static void print_list(qn_buf *to, const void *at) {
    const int64_t *v = ((const qn_list *)at)->v;
    qn_buf_printf(to, "[%lld, %lld, %lld, %lld]", (long long)v[0], (long long)v[1], (long long)v[2],
                  (long long)v[3]);
}

static void print_word(qn_buf *to, const void *at) {
    qn_buf_text(to, qn_word_get(*(const qn_word *)at)->name);
}

void qn_attr_print(qn_buf *to, const qn_attrs *attrs, qn_attr attr) {
    static void (*const printers[])(qn_buf *, const void *) = {
        [QN_ATTR_INT] = print_int,
        [QN_ATTR_FLOAT] = print_float,
        [QN_ATTR_LIST] = print_list,
        [QN_ATTR_WORD] = print_word,
    };
    const qn_attr_info *info = qn_attr_get(attr);
    printers[info->kind](to, (const char *)attrs + info->offset);
}

static void print_attrs(qn_buf *to, const qn_node *node) {
    const char *comma = "";
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (!(qn_op_get(node->op)->attrs >> a & 1u)) continue;
        qn_buf_printf(to, "%s%s=", comma, qn_attr_get((qn_attr)a)->name);
        qn_attr_print(to, &node->attrs, (qn_attr)a);
        comma = ", ";
    }
}

void qn_data_print(qn_buf *to, const qn_shape *shape, const float *data) {
    int64_t n = 1;
    for (int i = 0; i < shape->n_dims; i++) n *= shape->dims[i].n;
    qn_buf_text(to, "[");
    for (int64_t i = 0; i < n; i++) {
        if (i) qn_buf_text(to, ", ");
        qn_float_print(to, data[i]);
    }
    qn_buf_text(to, "]");
}

void qn_share_print(qn_buf *to, const qn_share *share) {
    if (!share) return;
    qn_buf_printf(to, " share %d of %lld [", share->axis, (long long)share->whole);
    for (int i = 0; i < share->n_ranges; i++)
        qn_buf_printf(to, "%s%lld+%lld", i ? ", " : "", (long long)share->ranges[i].first,
                      (long long)share->ranges[i].n);
    qn_buf_text(to, "]");
}

static void print_inputs(qn_buf *to, const qn_node *node) {
    qn_buf_text(to, "(");
    for (int i = 0; i < node->n_in; i++) {
        if (i) qn_buf_text(to, ", ");
        if (node->in[i] == QN_NO_VALUE)
            qn_buf_text(to, "_");
        else
            qn_buf_printf(to, "%%%d", node->in[i]);
    }
    qn_buf_text(to, ")");
}

static void print_node(qn_buf *to, const qn_graph *graph, const qn_node *node, size_t margin) {
    const qn_op_info *info = qn_op_get(node->op);
    const size_t begin = to->size;
    print_results(to, graph, node);
    const size_t width = to->size - begin;
    qn_buf_printf(to, "%*s = ", width < margin ? (int)(margin - width) : 0, "");
    qn_lower_print(to, info->name);
    if (info->class_of != QN_CLASS_LEAF) print_inputs(to, node);
    if (info->class_of == QN_CLASS_LEAF ? node->attrs.layout != QN_WORD_rows : info->attrs != 0) {
        qn_buf_text(to, " {");
        print_attrs(to, node);
        qn_buf_text(to, "}");
    }
    qn_share_print(to, node->share);
    if (node->op == QN_OP_CONST) {
        qn_buf_text(to, " ");
        qn_data_print(to, &graph->values[node->out[0]].shape, node->data);
    }
    if (node->layer >= 0) qn_buf_printf(to, " @%d", node->layer);
    qn_buf_text(to, "\n");
}

// The width of the part before "=", over the lines that are not too long to align.
static size_t find_margin(const qn_graph *graph, bool *failed) {
    qn_buf line = {0};
    size_t margin = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        qn_buf_clear(&line);
        print_results(&line, graph, &graph->nodes[i]);
        if (line.size > margin && line.size <= MARGIN) margin = line.size;
    }
    *failed = line.failed;
    qn_buf_deinit(&line);
    return margin;
}

void qn_graph_print(qn_buf *to, const qn_graph *graph) {
    bool failed;
    const size_t margin = find_margin(graph, &failed);
    if (failed) to->failed = true;
    qn_buf_text(to, "graph ");
    qn_string_print(to, graph->name);
    qn_buf_text(to, "\n");
    for (size_t i = 0; i < graph->n_nodes; i++) {
        if (i && graph->nodes[i].layer != graph->nodes[i - 1].layer) qn_buf_text(to, "\n");
        print_node(to, graph, &graph->nodes[i], margin);
    }
    if (graph->n_outputs) qn_buf_text(to, "\n");
    for (size_t i = 0; i < graph->n_outputs; i++) {
        qn_buf_text(to, "output ");
        qn_string_print(to, graph->outputs[i].name);
        qn_buf_printf(to, " %%%d", graph->outputs[i].value);
        qn_share_print(to, graph->outputs[i].share);
        qn_buf_text(to, "\n");
    }
}

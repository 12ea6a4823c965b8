// Reads the text form of a graph (text.h). One pass over the bytes, one line at a time; nothing is
// allocated from a number in the text, only from what was read.
#include "ir/text.h"

#include "core/mem.h"
#include "core/str.h"
#include "core/utf8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_LIMIT = 1 << 30, DIGITS_LIMIT = 40, EXPONENT_LIMIT = 9999 };

typedef struct reader {
    const char *at, *end;
    const char *line_begin;
    size_t line;    // from 1
    qn_graph graph; // what was read so far
    size_t *lines;  // of each node
    size_t cap_lines;
    qn_err *err;
} reader;

#define FAIL_AT(r, place, ...) fail_at(r, QN_FAIL((r)->err, FORMAT, __VA_ARGS__), place)

// Puts the place in front of the message.
static qn_status fail_at(const reader *r, qn_status status, const char *place) {
    return qn_err_prefix(r->err, status, "line %zu, column %zu", r->line,
                         (size_t)(place - r->line_begin) + 1);
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }
static bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
static bool is_word(char c) { return is_digit(c) || is_letter(c) || c == '_'; }
static char lower(char c) { return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c; }

static void skip_space(reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\r')) r->at++;
}

// Fails with what stands here instead of what was expected.
static qn_status expected(reader *r, const char *what) {
    skip_space(r);
    if (r->at == r->end) return FAIL_AT(r, r->at, "expected %s, found the end of the text", what);
    if (*r->at == '\n') return FAIL_AT(r, r->at, "expected %s, found the end of the line", what);
    size_t n = 0;
    while (n < 24 && r->at + n < r->end && is_word(r->at[n])) n++;
    return FAIL_AT(r, r->at, "expected %s, found '%.*s'", what, n ? (int)n : 1, r->at);
}

// Takes this character if it is next.
static bool take(reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) return false;
    r->at++;
    return true;
}

static qn_status need(reader *r, char c) {
    if (take(r, c)) return QN_OK;
    const char what[] = {'\'', c, '\'', 0};
    return expected(r, what);
}

// The letters, digits and underscores that stand here; may be empty.
static qn_str peek_word(reader *r) {
    skip_space(r);
    size_t n = 0;
    while (r->at + n < r->end && is_word(r->at[n])) n++;
    return (qn_str){r->at, n};
}

static qn_status end_line(reader *r) {
    skip_space(r);
    if (r->at < r->end && (*r->at == ';' || *r->at == '#')) {
        while (r->at < r->end && *r->at != '\n') r->at++;
    }
    if (r->at == r->end) return QN_OK;
    if (*r->at != '\n') return expected(r, "the end of the line");
    r->line_begin = ++r->at;
    r->line++;
    return QN_OK;
}

static qn_status read_int(reader *r, int64_t *out, const char *what) {
    skip_space(r);
    const char *begin = r->at;
    const bool negative = take(r, '-');
    if (r->at == r->end || !is_digit(*r->at)) {
        r->at = begin;
        return expected(r, what);
    }
    const uint64_t most = (uint64_t)INT64_MAX + negative;
    uint64_t value = 0;
    for (; r->at < r->end && is_digit(*r->at); r->at++) {
        const uint64_t digit = (uint64_t)(*r->at - '0');
        if (value > (most - digit) / 10) return FAIL_AT(r, begin, "%s is too large", what);
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)-value : (int64_t)value;
    return QN_OK;
}

static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    c = lower(c);
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// The bits of a float, after "0x".
static qn_status read_bits(reader *r, float *out) {
    uint32_t bits = 0;
    for (int i = 0; i < 8; i++, r->at++) {
        const int digit = r->at < r->end ? hex_digit(*r->at) : -1;
        if (digit < 0) return expected(r, "8 hex digits");
        bits = bits << 4 | (uint32_t)digit;
    }
    memcpy(out, &bits, sizeof bits);
    return QN_OK;
}

typedef struct decimal {
    char digits[DIGITS_LIMIT + 1];
    int n, n_fraction;
    bool is_zero;
} decimal;

// Digits with at most one point among them, at most DIGITS_LIMIT; false if there are none or more.
static bool read_digits(reader *r, decimal *d) {
    bool point = false;
    *d = (decimal){.is_zero = true};
    for (; r->at < r->end; r->at++) {
        if (*r->at == '.' && !point) {
            point = true;
            continue;
        }
        if (!is_digit(*r->at)) break;
        if (d->n == DIGITS_LIMIT) return false;
        d->digits[d->n++] = *r->at;
        d->n_fraction += point;
        if (*r->at != '0') d->is_zero = false;
    }
    return d->n > 0;
}

static qn_status read_exponent(reader *r, int64_t *exponent) {
    *exponent = 0;
    if (r->at == r->end || (*r->at != 'e' && *r->at != 'E')) return QN_OK;
    r->at++;
    if (r->at < r->end && *r->at == '+') r->at++;
    const char *begin = r->at;
    QN_TRY(read_int(r, exponent, "an exponent"));
    if (*exponent >= -EXPONENT_LIMIT && *exponent <= EXPONENT_LIMIT) return QN_OK;
    return FAIL_AT(r, begin, "exponent %lld is out of range", (long long)*exponent);
}

// The point is moved into the exponent before strtof sees the number, because a locale may want
// another radix character.
static qn_status read_decimal(reader *r, float *out) {
    const char *begin = r->at;
    decimal d;
    int64_t exponent;
    if (!read_digits(r, &d)) {
        r->at = begin;
        return expected(r, "a number of at most 40 digits");
    }
    QN_TRY(read_exponent(r, &exponent));
    char text[DIGITS_LIMIT + 16];
    snprintf(text, sizeof text, "%se%d", d.digits, (int)exponent - d.n_fraction);
    const float value = strtof(text, NULL);
    if (isinf(value) || (value == 0 && !d.is_zero))
        return FAIL_AT(r, begin, "%s is out of the range of a float", text);
    *out = value;
    return QN_OK;
}

static qn_status read_float(reader *r, float *out) {
    skip_space(r);
    if (r->end - r->at > 2 && r->at[0] == '0' && r->at[1] == 'x') {
        r->at += 2;
        return read_bits(r, out);
    }
    const bool negative = take(r, '-');
    if (qn_str_is(peek_word(r), "inf")) {
        r->at += 3;
        *out = INFINITY;
    } else {
        QN_TRY(read_decimal(r, out));
    }
    if (negative) *out = -*out;
    return QN_OK;
}

// One character or escape of a string; *n bytes go to `to`.
static qn_status read_char(reader *r, char *to, size_t *n) {
    const size_t left = (size_t)(r->end - r->at);
    const char *begin = r->at;
    if (*r->at != '\\') {
        *n = qn_utf8_check(r->at, left);
        if (*n == 0 || (unsigned char)*r->at < 0x20 || *r->at == 0x7f)
            return FAIL_AT(r, begin, "byte 0x%02x in a string", (unsigned char)*r->at);
        memcpy(to, r->at, *n);
        r->at += *n;
        return QN_OK;
    }
    static const char escapes[][2] = {{'"', '"'}, {'\\', '\\'}, {'n', '\n'}, {'t', '\t'}};
    *n = 1;
    for (size_t i = 0; left > 1 && i < sizeof escapes / sizeof escapes[0]; i++) {
        if (r->at[1] != escapes[i][0]) continue;
        *to = escapes[i][1];
        r->at += 2;
        return QN_OK;
    }
    const int high = left > 3 && r->at[1] == 'x' ? hex_digit(r->at[2]) : -1;
    const int low = high >= 0 ? hex_digit(r->at[3]) : -1;
    if (low < 0 || (high == 0 && low == 0))
        return FAIL_AT(r, begin, "expected an escape: \\\" \\\\ \\n \\t or \\xHH");
    *to = (char)(high << 4 | low);
    r->at += 4;
    return QN_OK;
}

// A quoted string, copied into the graph's arena.
static qn_status read_string(reader *r, const char **out, const char *what) {
    if (!take(r, '"')) return expected(r, what);
    const char *begin = r->at, *close = begin;
    while (close < r->end && *close != '"' && *close != '\n') {
        close += *close == '\\' && close + 1 < r->end && close[1] != '\n' ? 2 : 1;
    }
    if (close >= r->end || *close != '"') return FAIL_AT(r, begin - 1, "a string without its end");
    // Unescaped text is never longer than escaped text.
    char *copy = qn_arena_alloc(&r->graph.arena, (size_t)(close - begin) + 1, 1);
    if (!copy) return QN_NOMEM(r->err, "a string of a graph");
    char *to = copy;
    while (r->at < close) {
        size_t n;
        QN_TRY(read_char(r, to, &n));
        to += n;
    }
    r->at = close + 1;
    *out = copy;
    return QN_OK;
}

static qn_status read_id(reader *r, int32_t *out) {
    int64_t id;
    QN_TRY(need(r, '%'));
    const char *begin = r->at;
    QN_TRY(read_int(r, &id, "the number of a value"));
    if (id < 0 || id > INT32_MAX)
        return FAIL_AT(r, begin, "value %lld is out of range", (long long)id);
    *out = (int32_t)id;
    return QN_OK;
}

// A value that was made on an earlier line.
static qn_status read_use(reader *r, int32_t *out) {
    skip_space(r);
    const char *begin = r->at;
    QN_TRY(read_id(r, out));
    if ((size_t)*out < r->graph.n_values) return QN_OK;
    return FAIL_AT(r, begin, "%%%d is not made before this line", *out);
}

static qn_status read_type(reader *r, qn_type *out) {
    const qn_str word = peek_word(r);
    char name[24];
    if (word.size == 0 || word.size >= sizeof name) return expected(r, "a type");
    memcpy(name, word.data, word.size);
    name[word.size] = 0;
    if (!qn_type_from_name(out, name)) return expected(r, "a type");
    r->at += word.size;
    return QN_OK;
}

// A type alone means a tensor; another kind may be followed by ":" and a type.
static qn_status read_kind(reader *r, qn_value *value) {
    const qn_str word = peek_word(r);
    for (int k = QN_TENSOR + 1; k < QN_KIND_COUNT; k++) {
        if (!qn_str_is(word, qn_kind_name((qn_kind)k))) continue;
        r->at += word.size;
        value->kind = (qn_kind)k;
        value->type = QN_TYPE_F32;
        return take(r, ':') ? read_type(r, &value->type) : QN_OK;
    }
    value->kind = QN_TENSOR;
    return read_type(r, &value->type);
}

static qn_status read_symbol(reader *r, qn_sym *out) {
    const qn_str word = peek_word(r);
    for (int s = QN_SYM_ONE + 1; s < QN_SYM_COUNT; s++) {
        if (!qn_str_is(word, qn_sym_name((qn_sym)s))) continue;
        r->at += word.size;
        *out = (qn_sym)s;
        return QN_OK;
    }
    return expected(r, "a dimension");
}

static qn_status read_dim(reader *r, qn_dim *out) {
    skip_space(r);
    const char *begin = r->at;
    *out = (qn_dim){1, QN_SYM_ONE};
    if (r->at < r->end && is_letter(*r->at)) return read_symbol(r, &out->sym);
    QN_TRY(read_int(r, &out->n, "a dimension"));
    if (out->n < 1) return FAIL_AT(r, begin, "dimension %lld, want 1 or more", (long long)out->n);
    return take(r, '*') ? read_symbol(r, &out->sym) : QN_OK;
}

static qn_status read_shape(reader *r, qn_shape *shape) {
    QN_TRY(need(r, '('));
    *shape = (qn_shape){0};
    if (take(r, ')')) return QN_OK;
    do {
        if (shape->n_dims == QN_GRAPH_DIMS)
            return FAIL_AT(r, r->at, "more than %d dimensions", QN_GRAPH_DIMS);
        QN_TRY(read_dim(r, &shape->dims[shape->n_dims++]));
    } while (take(r, ','));
    return need(r, ')');
}

// A value as a node's line introduces it; `id` is the number that it must have.
static qn_status read_value(reader *r, qn_value *value, size_t id) {
    int32_t got = QN_NO_VALUE;
    skip_space(r);
    const char *begin = r->at;
    QN_TRY(read_id(r, &got));
    if ((size_t)got != id)
        return FAIL_AT(r, begin, "value %%%d, want %%%zu: values are numbered in order", got, id);
    skip_space(r);
    *value = (qn_value){.name = ""};
    if (r->at < r->end && *r->at == '"') QN_TRY(read_string(r, &value->name, "a name"));
    QN_TRY(read_kind(r, value));
    return read_shape(r, &value->shape);
}

static qn_status read_op(reader *r, qn_op *out) {
    const qn_str word = peek_word(r);
    for (int op = 0; op < QN_OP_COUNT; op++) {
        const char *name = qn_op_get((qn_op)op)->name;
        size_t i = 0;
        while (i < word.size && name[i] && lower(name[i]) == word.data[i]) i++;
        if (i < word.size || name[i]) continue;
        r->at += word.size;
        *out = (qn_op)op;
        return QN_OK;
    }
    return expected(r, "an op");
}

static qn_status read_inputs(reader *r, qn_node *node) {
    QN_TRY(need(r, '('));
    if (take(r, ')')) return QN_OK;
    do {
        if (node->n_in == QN_MAX_IN) return FAIL_AT(r, r->at, "more than %d inputs", QN_MAX_IN);
        int32_t *in = &node->in[node->n_in++];
        if (take(r, '_'))
            *in = QN_NO_VALUE;
        else
            QN_TRY(read_use(r, in));
    } while (take(r, ','));
    return need(r, ')');
}

static qn_status read_attr_int(reader *r, void *to, qn_attr attr) {
    return read_int(r, to, qn_attr_get(attr)->name);
}

static qn_status read_attr_float(reader *r, void *to, qn_attr attr) {
    (void)attr;
    return read_float(r, to);
}

static qn_status read_attr_list(reader *r, void *to, qn_attr attr) {
    int64_t *v = ((qn_list *)to)->v;
    for (int i = 0; i < 4; i++) {
        QN_TRY(need(r, i ? ',' : '['));
        QN_TRY(read_int(r, &v[i], qn_attr_get(attr)->name));
    }
    return need(r, ']');
}

static qn_status read_attr_word(reader *r, void *to, qn_attr attr) {
    const qn_str word = peek_word(r);
    for (int w = 0; w < QN_WORD_COUNT; w++) {
        const qn_word_info *info = qn_word_get((qn_word)w);
        if (info->attr != attr || !qn_str_is(word, info->name)) continue;
        r->at += word.size;
        *(qn_word *)to = (qn_word)w;
        return QN_OK;
    }
    char what[64];
    snprintf(what, sizeof what, "a word of '%s'", qn_attr_get(attr)->name);
    return expected(r, what);
}

// The name of an attribute that the op has and that was not given yet (bits of *missing).
static qn_status read_attr_name(reader *r, qn_attr *out, qn_op op, uint32_t missing) {
    const qn_str word = peek_word(r);
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (!qn_str_is(word, qn_attr_get((qn_attr)a)->name)) continue;
        if (!(qn_op_get(op)->attrs >> a & 1u))
            return FAIL_AT(r, r->at, "%s has no attribute '%.*s'", qn_op_get(op)->name,
                           (int)word.size, word.data);
        if (!(missing >> a & 1u))
            return FAIL_AT(r, r->at, "attribute '%.*s' twice", (int)word.size, word.data);
        r->at += word.size;
        *out = (qn_attr)a;
        return QN_OK;
    }
    return expected(r, "an attribute");
}

static qn_status read_attrs(reader *r, qn_node *node) {
    static qn_status (*const readers[])(reader *, void *, qn_attr) = {
        [QN_ATTR_INT] = read_attr_int,
        [QN_ATTR_FLOAT] = read_attr_float,
        [QN_ATTR_LIST] = read_attr_list,
        [QN_ATTR_WORD] = read_attr_word,
    };
    uint32_t missing = qn_op_get(node->op)->attrs;
    skip_space(r);
    const bool is_given = r->at < r->end && *r->at == '{';
    if (!missing || (qn_op_get(node->op)->class_of == QN_CLASS_LEAF && !is_given)) return QN_OK;
    QN_TRY(need(r, '{'));
    do {
        qn_attr attr = QN_ATTR_COUNT;
        QN_TRY(read_attr_name(r, &attr, node->op, missing));
        QN_TRY(need(r, '='));
        const qn_attr_info *info = qn_attr_get(attr);
        QN_TRY(readers[info->kind](r, (char *)&node->attrs + info->offset, attr));
        missing &= ~(1u << attr);
    } while (take(r, ','));
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (missing >> a & 1u)
            return FAIL_AT(r, r->at, "%s without attribute '%s'", qn_op_get(node->op)->name,
                           qn_attr_get((qn_attr)a)->name);
    }
    return need(r, '}');
}

// A list of floats of any length, on the heap; the caller frees *out, on failure too.
static qn_status read_floats(reader *r, float **out, size_t *n) {
    size_t cap = 0;
    QN_TRY(need(r, '['));
    if (take(r, ']')) return QN_OK;
    do {
        void *items = *out;
        const bool grown = qn_grow(&items, &cap, *n + 1, sizeof **out);
        *out = items;
        if (!grown) return QN_NOMEM(r->err, "a constant of a graph");
        QN_TRY(read_float(r, &(*out)[*n]));
        ++*n;
    } while (take(r, ','));
    return need(r, ']');
}

// The numbers of a constant must be as many as its shape says.
static qn_status check_count(reader *r, const char *begin, const qn_value *value, size_t n) {
    int64_t want = 1;
    bool fits = value->kind == QN_TENSOR && value->type == QN_TYPE_F32;
    for (int i = 0; i < value->shape.n_dims; i++) {
        const qn_dim d = value->shape.dims[i];
        fits = fits && d.sym == QN_SYM_ONE && qn_i64_mul(&want, want, d.n);
    }
    char text[128];
    if (fits && (uint64_t)want == n) return QN_OK;
    return FAIL_AT(r, begin, "a constant %s %s with %zu numbers", qn_type_get(value->type)->name,
                   qn_shape_text(text, sizeof text, &value->shape), n);
}

static qn_status read_data(reader *r, qn_node *node, const qn_value *value) {
    float *data = NULL;
    size_t n = 0;
    skip_space(r);
    const char *begin = r->at;
    qn_status status = read_floats(r, &data, &n);
    if (!status) status = check_count(r, begin, value, n);
    if (!status) {
        float *copy = qn_arena_alloc(&r->graph.arena, n, sizeof *copy);
        if (copy && n) memcpy(copy, data, n * sizeof *copy);
        node->data = copy;
        if (!copy) status = QN_NOMEM(r->err, "a constant of a graph");
    }
    qn_free(data);
    return status;
}

static qn_status read_layer(reader *r, int32_t *layer) {
    *layer = -1;
    if (!take(r, '@')) return QN_OK;
    const char *begin = r->at;
    int64_t n;
    QN_TRY(read_int(r, &n, "the number of a layer"));
    if (n < 0 || n > INT32_MAX) return FAIL_AT(r, begin, "layer %lld", (long long)n);
    *layer = (int32_t)n;
    return QN_OK;
}

static qn_status append_node(reader *r, qn_node *node, const qn_value *results) {
    qn_graph *g = &r->graph;
    void *values = g->values, *nodes = g->nodes, *lines = r->lines;
    const bool ok = qn_grow(&values, &g->cap_values, g->n_values + QN_MAX_OUT, sizeof *g->values) &&
                    qn_grow(&nodes, &g->cap_nodes, g->n_nodes + 1, sizeof *g->nodes) &&
                    qn_grow(&lines, &r->cap_lines, g->n_nodes + 1, sizeof *r->lines);
    g->values = values;
    g->nodes = nodes;
    r->lines = lines;
    if (!ok) return QN_NOMEM(r->err, "a graph");
    for (int i = 0; i < node->n_out; i++) {
        node->out[i] = (int32_t)g->n_values;
        g->values[g->n_values] = results[i];
        g->values[g->n_values++].node = (int32_t)g->n_nodes;
    }
    r->lines[g->n_nodes] = r->line;
    g->nodes[g->n_nodes++] = *node;
    return QN_OK;
}

static qn_status read_node(reader *r) {
    qn_value results[QN_MAX_OUT] = {{0}};
    qn_node node = {0};
    const char *begin = r->at;
    do {
        if (node.n_out == QN_MAX_OUT) return FAIL_AT(r, r->at, "more than %d results", QN_MAX_OUT);
        QN_TRY(read_value(r, &results[node.n_out], r->graph.n_values + (size_t)node.n_out));
        node.n_out++;
    } while (take(r, ','));
    QN_TRY(need(r, '='));
    QN_TRY(read_op(r, &node.op));
    const qn_op_info *info = qn_op_get(node.op);
    if (node.n_out != info->n_out)
        return FAIL_AT(r, begin, "%d results of %s, want %d", node.n_out, info->name, info->n_out);
    if (info->class_of != QN_CLASS_LEAF) QN_TRY(read_inputs(r, &node));
    QN_TRY(read_attrs(r, &node));
    if (node.op == QN_OP_CONST) QN_TRY(read_data(r, &node, &results[0]));
    QN_TRY(read_layer(r, &node.layer));
    return append_node(r, &node, results);
}

static qn_status read_output(reader *r) {
    qn_graph *g = &r->graph;
    qn_output output;
    QN_TRY(read_string(r, &output.name, "the output's name"));
    QN_TRY(read_use(r, &output.value));
    void *outputs = g->outputs;
    const bool grown = qn_grow(&outputs, &g->cap_outputs, g->n_outputs + 1, sizeof *g->outputs);
    g->outputs = outputs;
    if (!grown) return QN_NOMEM(r->err, "a graph");
    g->outputs[g->n_outputs++] = output;
    return QN_OK;
}

static qn_status read_statement(reader *r) {
    const qn_str word = peek_word(r);
    if (r->at == r->end || *r->at == '\n' || *r->at == ';' || *r->at == '#') return QN_OK;
    if (!r->graph.name) {
        if (!qn_str_is(word, "graph")) return expected(r, "graph \"name\"");
        r->at += word.size;
        return read_string(r, &r->graph.name, "the graph's name");
    }
    if (*r->at == '%') return read_node(r);
    if (!qn_str_is(word, "output")) return expected(r, "a value or an output");
    r->at += word.size;
    return read_output(r);
}

// The graph of the first n nodes. Its storage stays that of the whole graph.
static qn_graph prefix_of(const qn_graph *graph, size_t n) {
    qn_graph part = *graph;
    part.n_nodes = n;
    part.n_outputs = 0;
    part.n_values = n < graph->n_nodes ? (size_t)graph->nodes[n].out[0] : graph->n_values;
    return part;
}

// Verifies, and names the line of the first node at fault: the end of the shortest prefix that
// fails.
static qn_status verify(const reader *r) {
    const qn_status status = qn_graph_verify(&r->graph, r->err);
    if (!status) return QN_OK;
    size_t good = 0, bad = r->graph.n_nodes;
    while (bad - good > 1) {
        const size_t middle = good + (bad - good) / 2;
        const qn_graph part = prefix_of(&r->graph, middle);
        if (qn_graph_verify(&part, NULL))
            bad = middle;
        else
            good = middle;
    }
    return bad ? qn_err_prefix(r->err, status, "line %zu", r->lines[bad - 1]) : status;
}

qn_status qn_graph_parse(qn_graph *out, const char *text, size_t size, qn_err *err) {
    if (size > TEXT_LIMIT) return QN_FAIL(err, LIMIT, "a graph's text of %zu bytes", size);
    reader r = {.at = text, .end = text + size, .line_begin = text, .line = 1, .err = err};
    qn_status status = QN_OK;
    while (!status && r.at < r.end) {
        status = read_statement(&r);
        if (!status) status = end_line(&r);
    }
    if (!status && !r.graph.name) status = expected(&r, "graph \"name\"");
    if (!status) status = verify(&r);
    qn_free(r.lines);
    if (status)
        qn_graph_deinit(&r.graph);
    else
        *out = r.graph;
    return status;
}

// Reads the text form of a graph (text.h). One pass over the bytes, one line at a time; nothing is
// allocated from a number in the text, only from what was read.
#include "ir/text.h"

#include "core/mem.h"
#include "ir/scan.h"

enum { TEXT_LIMIT = 1 << 30 };

typedef struct reader {
    qn_scan scan;
    qn_graph graph; // what was read so far
    size_t *lines;  // of each node
    size_t cap_lines;
} reader;

static qn_status read_id(reader *r, int32_t *out) {
    int64_t id;
    QN_TRY(qn_scan_need(&r->scan, '%'));
    const char *begin = r->scan.at;
    QN_TRY(qn_scan_int(&r->scan, &id, "the number of a value"));
    if (id < 0 || id > INT32_MAX)
        return QN_SCAN_FAIL(&r->scan, begin, "value %lld is out of range", (long long)id);
    *out = (int32_t)id;
    return QN_OK;
}

// A value that was made on an earlier line.
static qn_status read_use(reader *r, int32_t *out) {
    qn_scan_skip(&r->scan);
    const char *begin = r->scan.at;
    QN_TRY(read_id(r, out));
    if ((size_t)*out < r->graph.n_values) return QN_OK;
    return QN_SCAN_FAIL(&r->scan, begin, "%%%d is not made before this line", *out);
}

// A type alone means a tensor; another kind may be followed by ":" and a type.
static qn_status read_kind(reader *r, qn_value *value) {
    const qn_str word = qn_scan_peek(&r->scan);
    for (int k = QN_TENSOR + 1; k < QN_KIND_COUNT; k++) {
        if (!qn_str_is(word, qn_kind_name((qn_kind)k))) continue;
        r->scan.at += word.size;
        value->kind = (qn_kind)k;
        value->type = QN_TYPE_F32;
        return qn_scan_take(&r->scan, ':') ? qn_scan_type(&r->scan, &value->type) : QN_OK;
    }
    value->kind = QN_TENSOR;
    return qn_scan_type(&r->scan, &value->type);
}

// A value as a node's line introduces it; `id` is the number that it must have.
static qn_status read_value(reader *r, qn_value *value, size_t id) {
    int32_t got = QN_NO_VALUE;
    qn_scan_skip(&r->scan);
    const char *begin = r->scan.at;
    QN_TRY(read_id(r, &got));
    if ((size_t)got != id)
        return QN_SCAN_FAIL(&r->scan, begin, "value %%%d, want %%%zu: values are numbered in order",
                            got, id);
    qn_scan_skip(&r->scan);
    *value = (qn_value){.name = ""};
    if (r->scan.at < r->scan.end && *r->scan.at == '"')
        QN_TRY(qn_scan_string(&r->scan, &value->name, "a name"));
    QN_TRY(read_kind(r, value));
    return qn_scan_shape(&r->scan, &value->shape);
}

static qn_status read_inputs(reader *r, qn_node *node) {
    QN_TRY(qn_scan_need(&r->scan, '('));
    if (qn_scan_take(&r->scan, ')')) return QN_OK;
    do {
        if (node->n_in == QN_MAX_IN)
            return QN_SCAN_FAIL(&r->scan, r->scan.at, "more than %d inputs", QN_MAX_IN);
        int32_t *in = &node->in[node->n_in++];
        if (qn_scan_take(&r->scan, '_'))
            *in = QN_NO_VALUE;
        else
            QN_TRY(read_use(r, in));
    } while (qn_scan_take(&r->scan, ','));
    return qn_scan_need(&r->scan, ')');
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
    if (!ok) return QN_NOMEM(r->scan.err, "a graph");
    for (int i = 0; i < node->n_out; i++) {
        node->out[i] = (int32_t)g->n_values;
        g->values[g->n_values] = results[i];
        g->values[g->n_values++].node = (int32_t)g->n_nodes;
    }
    r->lines[g->n_nodes] = r->scan.line;
    g->nodes[g->n_nodes++] = *node;
    return QN_OK;
}

static qn_status read_node(reader *r) {
    qn_value results[QN_MAX_OUT] = {{0}};
    qn_node node = {0};
    const char *begin = r->scan.at;
    do {
        if (node.n_out == QN_MAX_OUT)
            return QN_SCAN_FAIL(&r->scan, r->scan.at, "more than %d results", QN_MAX_OUT);
        QN_TRY(read_value(r, &results[node.n_out], r->graph.n_values + (size_t)node.n_out));
        node.n_out++;
    } while (qn_scan_take(&r->scan, ','));
    QN_TRY(qn_scan_need(&r->scan, '='));
    QN_TRY(qn_scan_op(&r->scan, &node.op));
    const qn_op_info *info = qn_op_get(node.op);
    if (node.n_out != info->n_out)
        return QN_SCAN_FAIL(&r->scan, begin, "%d results of %s, want %d", node.n_out, info->name,
                            info->n_out);
    if (info->class_of != QN_CLASS_LEAF) QN_TRY(read_inputs(r, &node));
    QN_TRY(qn_scan_attrs(&r->scan, &node.attrs, node.op, info->attrs));
    if (node.op == QN_OP_PARAM) QN_TRY(qn_scan_share(&r->scan, &node.share));
    if (node.op == QN_OP_CONST && results[0].kind != QN_TENSOR)
        return QN_SCAN_FAIL(&r->scan, begin, "a constant %s", qn_kind_name(results[0].kind));
    if (node.op == QN_OP_CONST)
        QN_TRY(qn_scan_data(&r->scan, &node.data, results[0].type, &results[0].shape));
    QN_TRY(qn_scan_layer(&r->scan, &node.layer));
    return append_node(r, &node, results);
}

static qn_status read_output(reader *r) {
    qn_graph *g = &r->graph;
    qn_output output;
    QN_TRY(qn_scan_string(&r->scan, &output.name, "the output's name"));
    QN_TRY(read_use(r, &output.value));
    QN_TRY(qn_scan_share(&r->scan, &output.share));
    void *outputs = g->outputs;
    const bool grown = qn_grow(&outputs, &g->cap_outputs, g->n_outputs + 1, sizeof *g->outputs);
    g->outputs = outputs;
    if (!grown) return QN_NOMEM(r->scan.err, "a graph");
    g->outputs[g->n_outputs++] = output;
    return QN_OK;
}

static qn_status read_statement(reader *r) {
    if (qn_scan_is_blank(&r->scan)) return QN_OK;
    if (!r->graph.name) {
        if (!qn_scan_take_word(&r->scan, "graph"))
            return qn_scan_expected(&r->scan, "graph \"name\"");
        return qn_scan_string(&r->scan, &r->graph.name, "the graph's name");
    }
    if (*r->scan.at == '%') return read_node(r);
    if (!qn_scan_take_word(&r->scan, "output"))
        return qn_scan_expected(&r->scan, "a value or an output");
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
    const qn_status status = qn_graph_verify(&r->graph, r->scan.err);
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
    return bad ? qn_err_prefix(r->scan.err, status, "line %zu", r->lines[bad - 1]) : status;
}

qn_status qn_graph_parse(qn_graph *out, const char *text, size_t size, qn_err *err) {
    if (size > TEXT_LIMIT) return QN_FAIL(err, LIMIT, "a graph's text of %zu bytes", size);
    reader r = {0};
    r.scan = qn_scan_begin(text, size, &r.graph.arena, err);
    qn_status status = QN_OK;
    while (!status && r.scan.at < r.scan.end) {
        status = read_statement(&r);
        if (!status) status = qn_scan_end_line(&r.scan);
    }
    if (!status && !r.graph.name) status = qn_scan_expected(&r.scan, "graph \"name\"");
    if (!status) status = verify(&r);
    qn_free(r.lines);
    if (status)
        qn_graph_deinit(&r.graph);
    else
        *out = r.graph;
    return status;
}

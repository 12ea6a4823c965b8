// What is in a box: an item for each op and for each value that comes or goes, and the edges
// between them. Weights, constants and the step table are lines of text at the ops that read them.
#include "ir/svg_int.h"

#include "core/chars.h"
#include "core/mem.h"

#include <string.h>

enum {
    NAME_LIMIT = 40,   // characters of a name that are shown
    ATTR_WIDTH = 24,   // characters of a line of attributes
    MIX_SECTIONS = 512 // layers looked at for the types of a weight
};

typedef struct filler {
    qn_svg_page *page;
    qn_arena *arena;
    const qn_graph *graph;
    const qn_svg_fold *fold;
    const qn_svg_box *box;
    int32_t *item_of;
    qn_svg_line lines[QN_SVG_LINES]; // of the item at hand
    int n_lines;
    bool failed;
} filler;

bool qn_svg_joins(const qn_svg_line *lines, int i) {
    return i > 0 && lines[i].style == QN_SVG_SHAPE && lines[i - 1].style == QN_SVG_HEAD;
}

double qn_svg_line_height(qn_svg_style style) { return style <= QN_SVG_SHAPE ? 16 : 13; }

double qn_svg_text_width(qn_svg_style style, const char *text) {
    size_t n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80; // characters, not bytes
    return (double)n * (style <= QN_SVG_SHAPE ? 7.3 : 6.1);
}

static void add_line(filler *f, qn_svg_style style, qn_buf *text) {
    const char *copy = text->failed ? NULL : qn_arena_strdup(f->arena, text->data, text->size);
    qn_buf_deinit(text);
    if (!copy)
        f->failed = true;
    else if (f->n_lines < QN_SVG_LINES)
        f->lines[f->n_lines++] = (qn_svg_line){copy, style};
}

static void add_lower(qn_buf *to, const char *name) {
    for (; *name; name++) {
        const char c = *name >= 'A' && *name <= 'Z' ? (char)(*name - 'A' + 'a') : *name;
        qn_buf_add(to, &c, 1);
    }
}

static void add_shape(qn_buf *to, const qn_value *value) {
    char text[128];
    qn_buf_text(to, qn_shape_text(text, sizeof text, &value->shape));
}

// A name cut to what can be shown. In a box for many layers, a number that is the layer's own
// becomes "N"; "blk.3." in front goes in any box.
static void add_name(filler *f, qn_buf *to, const char *name) {
    const int32_t layer = f->fold->sections[f->box->section].layer;
    if (strncmp(name, "blk.", 4) == 0) {
        const char *after = name + 4;
        while (qn_is_digit(*after)) after++;
        if (after > name + 4 && after[0] == '.' && after[1]) name = after + 1;
    }
    size_t n = 0;
    for (const char *at = name; *at;) {
        if (n == NAME_LIMIT) {
            qn_buf_text(to, "...");
            return;
        }
        int64_t number = 0;
        size_t digits = 0;
        while (digits < 9 && qn_is_digit(at[digits])) number = number * 10 + (at[digits++] - '0');
        const bool is_layer =
            digits && number == layer && !qn_is_digit(at[digits]) && f->box->has_many;
        const size_t take = digits ? digits : 1;
        qn_buf_add(to, is_layer ? "N" : at, is_layer ? 1 : take);
        at += take;
        n += ((unsigned char)*at & 0xc0) != 0x80;
    }
}

static bool is_shown(const qn_node *node, qn_attr attr) {
    if (!(qn_op_get(node->op)->attrs >> attr & 1u)) return false;
    const qn_attr_info *info = qn_attr_get(attr);
    static const char zeros[sizeof(qn_list)];
    static const size_t sizes[] = {[QN_ATTR_INT] = sizeof(int64_t),
                                   [QN_ATTR_FLOAT] = sizeof(float),
                                   [QN_ATTR_LIST] = sizeof(qn_list),
                                   [QN_ATTR_WORD] = 0};
    // Nothing is said by "cap=0"; a word always says something.
    return info->kind == QN_ATTR_WORD ||
           memcmp((const char *)&node->attrs + info->offset, zeros, sizes[info->kind]) != 0;
}

static void add_attrs(filler *f, const qn_node *node) {
    qn_buf line = {0};
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (!is_shown(node, (qn_attr)a)) continue;
        qn_buf one = {0};
        qn_buf_printf(&one, "%s=", qn_attr_get((qn_attr)a)->name);
        qn_attr_print(&one, &node->attrs, (qn_attr)a);
        if (line.size && line.size + one.size > ATTR_WIDTH) add_line(f, QN_SVG_ATTR, &line);
        if (line.size) qn_buf_text(&line, " ");
        if (one.failed) f->failed = true;
        qn_buf_add(&line, one.data, one.size);
        qn_buf_deinit(&one);
    }
    if (line.size || line.failed) add_line(f, QN_SVG_ATTR, &line);
    qn_buf_deinit(&line);
}

// The types that a weight has in the layers that the box stands for: "q4_k" or "q4_k/q6_k".
static void add_types(filler *f, qn_buf *to, const qn_node *node, int input) {
    const qn_svg_section *own = &f->fold->sections[f->box->section];
    const size_t place = (size_t)f->fold->place_of[node - f->graph->nodes] - own->begin;
    bool seen[QN_TYPE_COUNT] = {false};
    const char *slash = "";
    size_t left = f->box->has_many ? MIX_SECTIONS : 1;
    for (size_t s = f->box->section; s < f->fold->n_sections && left > 0; s++) {
        const qn_svg_section *section = &f->fold->sections[s];
        if (section->kind != own->kind) continue;
        left--;
        const qn_node *twin = &f->graph->nodes[f->fold->ops[section->begin + place]];
        const qn_type type = f->graph->values[twin->in[input]].type;
        if (seen[type]) continue;
        seen[type] = true;
        qn_buf_text(to, slash);
        add_lower(to, qn_type_get(type)->name);
        slash = "/";
    }
}

static void add_weight(filler *f, const qn_node *node, int input) {
    const qn_value *value = &f->graph->values[node->in[input]];
    qn_buf name = {0}, type = {0};
    add_name(f, &name, value->name[0] ? value->name : "constant");
    add_line(f, QN_SVG_WEIGHT, &name);
    add_types(f, &type, node, input);
    qn_buf_text(&type, " ");
    add_shape(&type, value);
    add_line(f, QN_SVG_TYPE, &type);
}

// Keeps the item with the lines written for it; returns its number.
static int32_t add_item(filler *f, qn_svg_item item) {
    qn_svg_page *page = f->page;
    void *items = page->items;
    qn_svg_line *lines = qn_arena_alloc(f->arena, (size_t)f->n_lines, sizeof *lines);
    if (!lines || !qn_grow(&items, &page->cap_items, page->n_items + 1, sizeof item)) {
        f->failed = true;
        f->n_lines = 0;
        return 0;
    }
    page->items = items;
    item.w = item.kind == QN_SVG_EXIT ? 8 : 40;
    item.h = item.kind == QN_SVG_EXIT ? 8 : 6;
    for (int i = 0; i < f->n_lines; i++) {
        lines[i] = f->lines[i];
        const bool joins = qn_svg_joins(lines, i);
        double w = qn_svg_text_width(lines[i].style, lines[i].text) + 18;
        if (joins) w += qn_svg_text_width(QN_SVG_HEAD, lines[i - 1].text) + 7;
        if (w > item.w) item.w = w;
        if (!joins) item.h += qn_svg_line_height(lines[i].style);
    }
    item.lines = lines;
    item.n_lines = f->n_lines;
    f->n_lines = 0;
    page->items[page->n_items] = item;
    return (int32_t)page->n_items++;
}

static void add_edge(filler *f, qn_svg_edge edge) {
    qn_svg_page *page = f->page;
    void *edges = page->edges;
    if (!qn_grow(&edges, &page->cap_edges, page->n_edges + 1, sizeof edge)) {
        f->failed = true;
        return;
    }
    page->edges = edges;
    page->edges[page->n_edges++] = edge;
}

static bool is_kept(const qn_value *value) {
    return value->kind == QN_CACHE || value->kind == QN_STATE_VALUE;
}

// A value that the graph is given or that another box makes. One that comes from further above than
// the box before, and so along no line, has at least the name of its op.
static int32_t add_source(filler *f, int32_t id) {
    const qn_value *value = &f->graph->values[id];
    const qn_node *maker = &f->graph->nodes[value->node];
    const bool is_input = maker->op == QN_OP_INPUT;
    const bool is_joined = f->fold->section_of[value->node] == (int32_t)f->box->section - 1;
    qn_buf name = {0}, shape = {0};
    if (value->name[0] && (is_input || !f->box->has_many)) { // in other layers it has another name
        add_name(f, &name, value->name);
        add_line(f, QN_SVG_HEAD, &name);
    } else if (!is_joined) {
        add_lower(&name, qn_op_get(maker->op)->name);
        add_line(f, QN_SVG_HEAD, &name);
    }
    if (value->kind == QN_TENSOR && value->type != QN_TYPE_F32) {
        add_lower(&shape, qn_type_get(value->type)->name);
        qn_buf_text(&shape, " ");
    }
    if (is_kept(value)) qn_buf_printf(&shape, "%s ", qn_kind_name(value->kind));
    add_shape(&shape, value);
    add_line(f, QN_SVG_SHAPE, &shape);
    return add_item(f, (qn_svg_item){.kind = is_input ? QN_SVG_INPUT : QN_SVG_ENTRY,
                                     .value = id,
                                     .keeps = is_kept(value)});
}

static void add_op_lines(filler *f, const qn_node *node) {
    const qn_value *result = &f->graph->values[node->out[0]];
    qn_buf head = {0}, shape = {0}, name = {0};
    add_lower(&head, qn_op_get(node->op)->name);
    add_line(f, QN_SVG_HEAD, &head);
    add_shape(&shape, result);
    add_line(f, QN_SVG_SHAPE, &shape);
    // In other layers it has another name, if it is numbered.
    const bool numbered = strcspn(result->name, "0123456789") < strlen(result->name);
    if (result->name[0] && !(f->box->has_many && numbered)) {
        qn_buf_text(&name, "= ");
        add_name(f, &name, result->name);
        add_line(f, QN_SVG_ATTR, &name);
    }
    add_attrs(f, node);
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] == QN_NO_VALUE) continue;
        const qn_op op = f->graph->nodes[f->graph->values[node->in[k]].node].op;
        if (op == QN_OP_PARAM || op == QN_OP_CONST) add_weight(f, node, k);
    }
}

static bool is_drawn_input(const filler *f, int32_t id) {
    if (id == QN_NO_VALUE || f->graph->values[id].kind == QN_TABLE) return false;
    const qn_op op = f->graph->nodes[f->graph->values[id].node].op;
    return op != QN_OP_PARAM && op != QN_OP_CONST;
}

static void add_op(filler *f, const qn_node *node) {
    const qn_graph *g = f->graph;
    bool reads_table = false;
    for (int k = 0; k < node->n_in; k++) { // sources come before the op that reads them
        const int32_t id = node->in[k];
        if (id != QN_NO_VALUE && g->values[id].kind == QN_TABLE) reads_table = true;
        if (is_drawn_input(f, id) && f->item_of[id] < 0) f->item_of[id] = add_source(f, id);
    }
    add_op_lines(f, node);
    const int32_t item = add_item(f, (qn_svg_item){.kind = QN_SVG_OP,
                                                   .value = node->out[0],
                                                   .op = node->op,
                                                   .reads_table = reads_table});
    for (int o = 0; o < node->n_out; o++) f->item_of[node->out[o]] = item;
    for (int k = 0; k < node->n_in; k++) {
        const int32_t id = node->in[k];
        if (!is_drawn_input(f, id)) continue;
        const qn_node *maker = &g->nodes[g->values[id].node];
        add_edge(f, (qn_svg_edge){.from = f->item_of[id],
                                  .to = item,
                                  .result = id - maker->out[0],
                                  .keeps = is_kept(&g->values[id])});
    }
}

static void add_target(filler *f, int32_t id, qn_svg_item_kind kind, const char *title) {
    const qn_value *value = &f->graph->values[id];
    if (title) {
        qn_buf name = {0};
        add_name(f, &name, title);
        add_line(f, QN_SVG_HEAD, &name);
    }
    const int32_t item =
        add_item(f, (qn_svg_item){.kind = kind, .value = id, .keeps = is_kept(value)});
    add_edge(f, (qn_svg_edge){.from = f->item_of[id],
                              .to = item,
                              .result = id - f->graph->nodes[value->node].out[0],
                              .keeps = is_kept(value)});
}

// A value that the next box does not read: no line leads to those that do, which name it too.
static void add_far_target(filler *f, const qn_node *node, int32_t id) {
    qn_buf title = {0};
    const char *name = f->graph->values[id].name;
    if (name[0] && !f->box->has_many)
        qn_buf_text(&title, name);
    else
        add_lower(&title, qn_op_get(node->op)->name);
    qn_buf_text(&title, ", further down");
    if (title.failed)
        f->failed = true;
    else
        add_target(f, id, QN_SVG_OUTPUT, title.data);
    qn_buf_deinit(&title);
}

// Values that leave: to later boxes, or as outputs of the graph.
static void add_targets(filler *f, size_t end) {
    const qn_svg_section *section = &f->fold->sections[f->box->section];
    const qn_graph *g = f->graph;
    for (size_t i = section->begin; i < end; i++) {
        const qn_node *node = &g->nodes[f->fold->ops[i]];
        for (int o = 0; o < node->n_out; o++) {
            const int32_t next = f->fold->next_use[node->out[o]];
            if (next > (int32_t)f->box->section + 1)
                add_far_target(f, node, node->out[o]);
            else if (next >= 0)
                add_target(f, node->out[o], QN_SVG_EXIT, NULL);
        }
    }
    size_t left = QN_SVG_OPS;
    for (size_t i = 0; i < g->n_outputs && left > 0; i++) {
        const int32_t node = g->values[g->outputs[i].value].node;
        const int32_t place = f->fold->place_of[node];
        if (place < (int32_t)section->begin || place >= (int32_t)end) continue;
        add_target(f, g->outputs[i].value, QN_SVG_OUTPUT, g->outputs[i].name);
        left--;
    }
}

bool qn_svg_page_fill(qn_svg_page *page, qn_arena *arena, const qn_graph *graph,
                      const qn_svg_fold *fold, const qn_svg_box *box, int32_t *item_of) {
    filler f = {
        .page = page, .arena = arena, .graph = graph, .fold = fold, .box = box, .item_of = item_of};
    const qn_svg_section *section = &fold->sections[box->section];
    size_t end = section->end;
    if (end - section->begin > QN_SVG_OPS) end = section->begin + QN_SVG_OPS;
    page->n_hidden = section->end - end;
    for (size_t i = section->begin; i < end; i++) add_op(&f, &graph->nodes[fold->ops[i]]);
    add_targets(&f, end);
    for (size_t i = section->begin; i < end; i++) {
        const qn_node *node = &graph->nodes[fold->ops[i]];
        for (int o = 0; o < node->n_out; o++) item_of[node->out[o]] = -1;
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] >= 0) item_of[node->in[k]] = -1;
        }
    }
    return !f.failed;
}

void qn_svg_page_deinit(qn_svg_page *page) {
    qn_free(page->items);
    qn_free(page->edges);
    qn_free(page->links);
    *page = (qn_svg_page){0};
}

// Which layers of a graph have the same structure, and how few boxes show them all.
#include "ir/svg_int.h"

#include "core/map.h"
#include "core/mem.h"

#include <string.h>
#include <xxhash.h>

enum { LONGEST_PERIOD = 16, TITLE_LAYERS = 48 };

static bool is_leaf(const qn_node *node) { return qn_op_get(node->op)->class_of == QN_CLASS_LEAF; }

static bool find_ops(qn_svg_fold *f, qn_arena *arena, const qn_graph *g) {
    f->ops = qn_arena_alloc(arena, g->n_nodes, sizeof *f->ops);
    f->place_of = qn_arena_alloc(arena, g->n_nodes, sizeof *f->place_of);
    if (!f->ops || !f->place_of) return false;
    for (size_t i = 0; i < g->n_nodes; i++) {
        f->place_of[i] = is_leaf(&g->nodes[i]) ? -1 : (int32_t)f->n_ops;
        if (f->place_of[i] >= 0) f->ops[f->n_ops++] = (int32_t)i;
    }
    return true;
}

static bool find_sections(qn_svg_fold *f, qn_arena *arena, const qn_graph *g) {
    size_t n = 0;
    for (size_t i = 0; i < f->n_ops; i++)
        n += i == 0 || g->nodes[f->ops[i]].layer != g->nodes[f->ops[i - 1]].layer;
    f->sections = qn_arena_alloc(arena, n, sizeof *f->sections);
    f->section_of = qn_arena_alloc(arena, g->n_nodes, sizeof *f->section_of);
    if (!f->sections || !f->section_of) return false;
    for (size_t i = 0; i < g->n_nodes; i++) f->section_of[i] = -1;
    for (size_t i = 0; i < f->n_ops; i++) {
        const int32_t layer = g->nodes[f->ops[i]].layer;
        if (i == 0 || f->sections[f->n_sections - 1].layer != layer) {
            f->n_layers += layer >= 0;
            f->sections[f->n_sections++] = (qn_svg_section){.begin = i, .layer = layer};
        }
        f->sections[f->n_sections - 1].end = i + 1;
        f->section_of[f->ops[i]] = (int32_t)f->n_sections - 1;
    }
    return true;
}

static bool find_uses(qn_svg_fold *f, qn_arena *arena, const qn_graph *g) {
    f->last_use = qn_arena_alloc(arena, g->n_values, sizeof *f->last_use);
    f->next_use = qn_arena_alloc(arena, g->n_values, sizeof *f->next_use);
    if (!f->last_use || !f->next_use) return false;
    for (size_t i = 0; i < g->n_values; i++) f->last_use[i] = f->next_use[i] = -1;
    for (size_t i = 0; i < g->n_nodes; i++) {
        for (int k = 0; k < g->nodes[i].n_in; k++) {
            const int32_t id = g->nodes[i].in[k];
            if (id < 0) continue;
            f->last_use[id] = f->section_of[i];
            const bool is_later = f->section_of[i] > f->section_of[g->values[id].node];
            if (is_later && f->next_use[id] < 0) f->next_use[id] = f->section_of[i];
        }
    }
    return true;
}

// What describes the structure of sections while it is written down.
typedef struct describer {
    const qn_graph *graph;
    const qn_svg_fold *fold;
    qn_buf text;         // of the present section
    uint64_t *hashes;    // of the numbers of each constant, by node
    int32_t *first_seen; // of each value from outside: its number in the present section, or -1
    int32_t *seen;       // those values
    int32_t n_seen;
} describer;

static void add_number(qn_buf *to, int64_t n) { qn_buf_add(to, &n, sizeof n); }

static void add_value(qn_buf *to, const qn_value *value) {
    add_number(to, value->kind);
    add_number(to, value->shape.n_dims);
    for (int i = 0; i < value->shape.n_dims; i++) {
        add_number(to, value->shape.dims[i].n);
        add_number(to, value->shape.dims[i].sym);
    }
}

// Where an input comes from: a place in the section, one of the values from outside by order of
// appearance, or a weight or constant by what it is. Types of weights do not count: files mix them.
static void describe_input(describer *d, size_t section, int32_t id) {
    if (id == QN_NO_VALUE) {
        add_number(&d->text, -1);
        return;
    }
    const qn_value *value = &d->graph->values[id];
    const qn_node *maker = &d->graph->nodes[value->node];
    add_number(&d->text, maker->op == QN_OP_PARAM || maker->op == QN_OP_CONST);
    add_value(&d->text, value);
    if (maker->op == QN_OP_CONST) add_number(&d->text, (int64_t)d->hashes[value->node]);
    if (maker->op == QN_OP_PARAM || maker->op == QN_OP_CONST) return;
    if (d->fold->section_of[value->node] == (int32_t)section) {
        const size_t place = (size_t)d->fold->place_of[value->node];
        add_number(&d->text, (int64_t)(place - d->fold->sections[section].begin));
        add_number(&d->text, id - maker->out[0]);
        return;
    }
    if (d->first_seen[id] < 0) {
        d->first_seen[id] = d->n_seen;
        d->seen[d->n_seen++] = id;
    }
    add_number(&d->text, -2 - d->first_seen[id]);
}

static void describe_node(describer *d, size_t section, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    add_number(&d->text, node->op);
    for (int a = 0; a < QN_ATTR_COUNT; a++) {
        if (info->attrs >> a & 1u) qn_attr_print(&d->text, &node->attrs, (qn_attr)a);
    }
    add_number(&d->text, node->n_in);
    for (int k = 0; k < node->n_in; k++) describe_input(d, section, node->in[k]);
    for (int o = 0; o < node->n_out; o++) add_value(&d->text, &d->graph->values[node->out[o]]);
}

static void describe_section(describer *d, size_t section) {
    const qn_svg_section *s = &d->fold->sections[section];
    qn_buf_clear(&d->text);
    add_number(&d->text, s->layer >= 0);
    for (size_t i = s->begin; i < s->end; i++)
        describe_node(d, section, &d->graph->nodes[d->fold->ops[i]]);
    while (d->n_seen > 0) d->first_seen[d->seen[--d->n_seen]] = -1;
}

static void hash_constants(const describer *d) {
    const qn_graph *g = d->graph;
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].op != QN_OP_CONST) continue;
        const qn_shape *shape = &g->values[g->nodes[i].out[0]].shape;
        size_t n = 1;
        for (int k = 0; k < shape->n_dims; k++) n *= (size_t)shape->dims[k].n;
        d->hashes[i] = XXH3_64bits(g->nodes[i].data, n * sizeof(float));
    }
}

static bool name_kinds(qn_svg_fold *f, qn_arena *arena, const qn_graph *g) {
    describer d = {.graph = g, .fold = f};
    qn_map kinds = {0};
    d.hashes = qn_arena_alloc(arena, g->n_nodes, sizeof *d.hashes);
    d.first_seen = qn_arena_alloc(arena, g->n_values, sizeof *d.first_seen);
    d.seen = qn_arena_alloc(arena, g->n_values, sizeof *d.seen);
    bool ok = d.hashes && d.first_seen && d.seen;
    if (ok) {
        for (size_t i = 0; i < g->n_values; i++) d.first_seen[i] = -1;
        hash_constants(&d);
    }
    for (size_t i = 0; ok && i < f->n_sections; i++) {
        describe_section(&d, i);
        const char *key = qn_arena_strdup(arena, d.text.data, d.text.size);
        ok = !d.text.failed && key &&
             qn_map_add(&kinds, key, d.text.size, (uint32_t)i, &f->sections[i].kind);
    }
    qn_buf_deinit(&d.text);
    qn_map_deinit(&kinds);
    return ok;
}

// "0-2, 4-6" for the layers of the sections first, first + step, ... below `end`, `run` each time.
static void list_layers(qn_buf *to, const qn_svg_fold *f, size_t first, size_t end, size_t step,
                        size_t run) {
    const size_t begin = to->size;
    for (size_t at = first; at < end; at += step) {
        const size_t last = at + run < end ? at + run - 1 : end - 1;
        if (at > first) qn_buf_text(to, ", ");
        if (to->size - begin > TITLE_LAYERS) {
            qn_buf_text(to, "...");
            return;
        }
        qn_buf_printf(to, "%d", f->sections[at].layer);
        if (last > at) qn_buf_printf(to, "-%d", f->sections[last].layer);
    }
}

static const char *keep(qn_arena *arena, qn_buf *text) {
    const char *copy = text->failed ? NULL : qn_arena_strdup(arena, text->data, text->size);
    qn_buf_deinit(text);
    return copy;
}

// The layers from `at` on that repeat with some period, at least twice: as many as possible.
static size_t find_repeats(const qn_svg_fold *f, size_t at, size_t *period) {
    size_t best = 1;
    *period = 1;
    for (size_t p = 1; p <= LONGEST_PERIOD; p++) {
        size_t n = p;
        while (at + n < f->n_sections && f->sections[at + n].layer >= 0 &&
               f->sections[at + n].kind == f->sections[at + n - p].kind)
            n++;
        if (n < 2 * p || n <= best) continue;
        bool all_layers = true;
        for (size_t i = 0; i < p; i++) all_layers = all_layers && f->sections[at + i].layer >= 0;
        if (!all_layers) break;
        best = n;
        *period = p;
    }
    return best;
}

static size_t run_length(const qn_svg_fold *f, size_t at, size_t end) {
    size_t n = 1;
    while (at + n < end && f->sections[at + n].kind == f->sections[at].kind) n++;
    return n;
}

typedef struct folder {
    qn_svg_fold *fold;
    qn_arena *arena;
} folder;

static bool add_box(const folder *o, size_t section, bool has_many, bool follows, qn_buf *title) {
    qn_svg_fold *f = o->fold;
    const char *text = keep(o->arena, title);
    f->boxes[f->n_boxes++] = (qn_svg_box){section, has_many, follows, text};
    return text != NULL;
}

// n layers from `at` that repeat every `period`: a box for each run of equal layers in a period.
static bool add_repeats(const folder *o, size_t at, size_t n, size_t period) {
    qn_svg_fold *f = o->fold;
    const size_t first = f->n_boxes;
    size_t run;
    for (size_t i = at; i < at + period; i += run) {
        run = period == 1 ? n : run_length(f, i, at + period);
        if (f->n_boxes == QN_SVG_BOXES) {
            f->n_hidden += run;
            continue;
        }
        qn_buf title = {0};
        if (n == 1)
            qn_buf_printf(&title, "layer %d", f->sections[i].layer);
        else
            qn_buf_printf(&title, "x %zu %s (", run, run > 1 ? "layers" : "layer");
        if (n > 1) list_layers(&title, f, i, at + n, period == 1 ? n : period, run);
        if (n > 1) qn_buf_text(&title, ")");
        if (!add_box(o, i, n > 1, true, &title)) return false;
    }
    if (period < 2) return true;
    qn_buf title = {0};
    qn_buf_printf(&title, "x %zu blocks of %zu layers", n / period, period);
    if (n % period) qn_buf_printf(&title, ", then the first %zu again", n % period);
    const char *text = keep(o->arena, &title);
    f->frames[f->n_frames++] = (qn_svg_frame){first, f->n_boxes, text};
    return text != NULL;
}

static bool choose_boxes(const folder *o) {
    qn_svg_fold *f = o->fold;
    size_t i = 0;
    while (i < f->n_sections && f->n_boxes < QN_SVG_BOXES) {
        if (f->sections[i].layer < 0) {
            qn_buf none = {0};
            qn_buf_text(&none, "");
            if (!add_box(o, i, false, true, &none)) return false;
            i++;
            continue;
        }
        size_t period;
        const size_t n = find_repeats(f, i, &period);
        if (!add_repeats(o, i, n, period)) return false;
        i += n;
    }
    f->n_hidden += f->n_sections - i;
    return true;
}

static void list_kind(qn_buf *to, const qn_svg_fold *f, size_t section) {
    const uint32_t kind = f->sections[section].kind;
    const size_t begin = to->size;
    for (size_t i = section; i < f->n_sections; i++) {
        if (f->sections[i].kind != kind) continue;
        const size_t run = run_length(f, i, f->n_sections);
        if (to->size > begin) qn_buf_text(to, ", ");
        if (to->size - begin > TITLE_LAYERS) {
            qn_buf_text(to, "...");
            return;
        }
        list_layers(to, f, i, i + run, run, run);
        i += run - 1;
    }
}

// For layers in no regular order: each kind once, at its first place.
static bool choose_kinds(const folder *o) {
    qn_svg_fold *f = o->fold;
    f->n_boxes = f->n_frames = f->n_hidden = 0;
    for (size_t i = 0; i < f->n_sections; i++) {
        if (f->sections[i].kind != i) continue; // a kind is named by its first section
        if (f->n_boxes == QN_SVG_BOXES) {
            f->n_hidden++;
            continue;
        }
        qn_buf title = {0};
        qn_buf_text(&title, "");
        if (f->sections[i].layer >= 0) {
            qn_buf_text(&title, "layers ");
            list_kind(&title, f, i);
        }
        if (!add_box(o, i, f->sections[i].layer >= 0, false, &title)) return false;
    }
    return true;
}

bool qn_svg_fold_layers(qn_svg_fold *out, qn_arena *arena, const qn_graph *graph) {
    *out = (qn_svg_fold){0};
    out->boxes = qn_arena_alloc(arena, QN_SVG_BOXES, sizeof *out->boxes);
    out->frames = qn_arena_alloc(arena, QN_SVG_BOXES, sizeof *out->frames);
    if (!out->boxes || !out->frames) return false;
    if (!find_ops(out, arena, graph) || !find_sections(out, arena, graph) ||
        !find_uses(out, arena, graph) || !name_kinds(out, arena, graph))
        return false;
    const folder o = {out, arena};
    if (!choose_boxes(&o)) return false;
    return out->n_hidden ? choose_kinds(&o) : true;
}

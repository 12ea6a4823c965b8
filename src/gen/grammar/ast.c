#include "gen/grammar/ast.h"

#include "core/mem.h"
#include "core/stop_flag.h"

_Static_assert(QN_AST_MAX_NODES == 1048576, "what add_node says");

static int32_t add_node(qn_gr_ast *ast, qn_gr_ast_node node) {
    if (ast->failed) return QN_AST_NEVER;
    if (qn_stop_is_wanted(ast->stop)) {
        qn_gr_ast_fail(ast, QN_STOPPED, NULL);
        return QN_AST_NEVER;
    }
    if (ast->n >= QN_AST_MAX_NODES) {
        qn_gr_ast_fail(ast, QN_LIMIT, "it is too large: more than 1048576 parts");
        return QN_AST_NEVER;
    }
    if (node.depth > QN_AST_MAX_DEPTH) {
        qn_gr_ast_fail(ast, QN_LIMIT, "it is nested too deeply");
        return QN_AST_NEVER;
    }
    if (!qn_grow((void **)&ast->nodes, &ast->cap, ast->n + 1, sizeof *ast->nodes)) {
        qn_gr_ast_fail(ast, QN_MEMORY, NULL);
        return QN_AST_NEVER;
    }
    ast->nodes[ast->n] = node;
    return (int32_t)ast->n++;
}

qn_status qn_gr_ast_init(qn_gr_ast *ast, qn_err *err) {
    *ast = (qn_gr_ast){0};
    add_node(ast, (qn_gr_ast_node){.kind = QN_AST_IS_EMPTY});
    add_node(ast, (qn_gr_ast_node){.kind = QN_AST_IS_NEVER});
    return qn_gr_ast_check(ast, err);
}

void qn_gr_ast_deinit(qn_gr_ast *ast) {
    qn_free(ast->nodes);
    qn_free(ast->sets);
    qn_free(ast->rules);
    for (size_t i = 0; i < ast->n_lengths; i++) qn_gr_lengths_destroy(ast->lengths[i]);
    qn_free(ast->lengths);
    qn_map_deinit(&ast->set_index);
    qn_arena_deinit(&ast->arena);
    *ast = (qn_gr_ast){0};
}

void qn_gr_ast_fail(qn_gr_ast *ast, qn_status status, const char *why) {
    if (ast->failed) return;
    ast->failed = status;
    ast->why = why;
}

qn_status qn_gr_ast_check(const qn_gr_ast *ast, qn_err *err) {
    if (ast->failed == QN_MEMORY) return QN_NOMEM(err, "grammar");
    if (ast->failed == QN_STOPPED) return QN_FAIL(err, STOPPED, "grammar: stopped");
    if (ast->failed) return QN_FAIL(err, LIMIT, "grammar: %s", ast->why);
    return QN_OK;
}

qn_status qn_gr_ast_go_on(const qn_gr_ast *ast, qn_err *err) {
    return qn_stop_is_wanted(ast->stop) ? QN_FAIL(err, STOPPED, "grammar: stopped") : QN_OK;
}

qn_gr_ast_mark qn_gr_ast_get_mark(const qn_gr_ast *ast) {
    return (qn_gr_ast_mark){ast->n, ast->n_rules, ast->n_lengths};
}

void qn_gr_ast_undo(qn_gr_ast *ast, qn_gr_ast_mark mark) {
    while (ast->n_lengths > mark.n_lengths) qn_gr_lengths_destroy(ast->lengths[--ast->n_lengths]);
    ast->n = mark.n;
    ast->n_rules = mark.n_rules;
    if (ast->failed == QN_LIMIT) ast->failed = QN_OK;
}

int32_t qn_gr_set(qn_gr_ast *ast, const qn_gr_byte_set *set) {
    uint32_t at = 0;
    if (ast->failed) return QN_AST_NEVER;
    if (!(set->bits[0] | set->bits[1] | set->bits[2] | set->bits[3])) return QN_AST_NEVER;
    if (!qn_map_find(&ast->set_index, (const char *)set->bits, sizeof set->bits, &at)) {
        const char *key = qn_arena_strdup(&ast->arena, (const char *)set->bits, sizeof set->bits);
        at = (uint32_t)ast->n_sets;
        if (!key || !qn_map_add(&ast->set_index, key, sizeof set->bits, at, NULL) ||
            !qn_grow((void **)&ast->sets, &ast->cap_sets, ast->n_sets + 1, sizeof *ast->sets)) {
            qn_gr_ast_fail(ast, QN_MEMORY, NULL);
            return QN_AST_NEVER;
        }
        ast->sets[ast->n_sets++] = *set;
    }
    return add_node(ast, (qn_gr_ast_node){.kind = QN_AST_IS_SET, .a = (int32_t)at, .depth = 1});
}

int32_t qn_gr_token(qn_gr_ast *ast, int32_t token, bool negated) {
    return add_node(
        ast, (qn_gr_ast_node){.kind = QN_AST_IS_TOKEN, .a = token, .b = negated, .depth = 1});
}

int32_t qn_gr_bytes(qn_gr_ast *ast, const char *bytes) {
    qn_gr_byte_set set = {{0}};
    for (; *bytes; bytes++) qn_gr_byte_set_add(&set, (unsigned char)*bytes);
    return qn_gr_set(ast, &set);
}

int32_t qn_gr_span(qn_gr_ast *ast, unsigned lo, unsigned hi) {
    qn_gr_byte_set set = {{0}};
    for (unsigned byte = lo; byte <= hi; byte++) qn_gr_byte_set_add(&set, byte);
    return qn_gr_set(ast, &set);
}

// Depth below a parent of this kind: a list in a list costs nothing, for it is flattened.
static uint16_t depth_under(const qn_gr_ast *ast, int32_t node, qn_gr_ast_kind kind) {
    const qn_gr_ast_node *n = &ast->nodes[node];
    return (uint16_t)(n->depth + (n->kind != kind));
}

static int32_t add_pair(qn_gr_ast *ast, qn_gr_ast_kind kind, int32_t a, int32_t b) {
    if (ast->failed) return QN_AST_NEVER;
    const uint16_t da = depth_under(ast, a, kind), db = depth_under(ast, b, kind);
    return add_node(
        ast, (qn_gr_ast_node){.kind = (uint8_t)kind, .a = a, .b = b, .depth = da > db ? da : db});
}

int32_t qn_gr_seq(qn_gr_ast *ast, int32_t a, int32_t b) {
    if (a == QN_AST_EMPTY) return b;
    if (b == QN_AST_EMPTY) return a;
    if (a == QN_AST_NEVER || b == QN_AST_NEVER) return QN_AST_NEVER;
    return add_pair(ast, QN_AST_IS_SEQ, a, b);
}

int32_t qn_gr_seq3(qn_gr_ast *ast, int32_t a, int32_t b, int32_t c) {
    return qn_gr_seq(ast, a, qn_gr_seq(ast, b, c));
}

int32_t qn_gr_alt(qn_gr_ast *ast, int32_t a, int32_t b) {
    if (a == QN_AST_NEVER || a == b) return b;
    if (b == QN_AST_NEVER) return a;
    return add_pair(ast, QN_AST_IS_ALT, a, b);
}

int32_t qn_gr_maybe(qn_gr_ast *ast, int32_t a) { return qn_gr_alt(ast, a, QN_AST_EMPTY); }

int32_t qn_gr_rep(qn_gr_ast *ast, int32_t a, uint32_t min, uint32_t max) {
    if (ast->failed || min > max) return QN_AST_NEVER;
    if (max == 0 || a == QN_AST_EMPTY) return QN_AST_EMPTY;
    if (a == QN_AST_NEVER) return min ? QN_AST_NEVER : QN_AST_EMPTY;
    if (min == 1 && max == 1) return a;
    if (min == 0 && max == 1) return qn_gr_maybe(ast, a);
    const uint16_t depth = (uint16_t)(ast->nodes[a].depth + 1);
    return add_node(
        ast,
        (qn_gr_ast_node){.kind = QN_AST_IS_REP, .a = a, .min = min, .max = max, .depth = depth});
}

int32_t qn_gr_text(qn_gr_ast *ast, qn_str text) {
    int32_t node = QN_AST_EMPTY;
    for (size_t i = text.size; i-- > 0;) {
        const unsigned byte = (unsigned char)text.data[i];
        node = qn_gr_seq(ast, qn_gr_span(ast, byte, byte), node);
    }
    return node;
}

// --- rules ---------------------------------------------------------------------------------------

int32_t qn_gr_ast_rule_add(qn_gr_ast *ast, qn_str name) {
    if (ast->failed) return -1;
    if (ast->n_rules >= QN_AST_MAX_RULES) {
        qn_gr_ast_fail(ast, QN_LIMIT, "it has too many rules");
        return -1;
    }
    const char *copy = qn_arena_strdup(&ast->arena, name.data, name.size);
    if (!copy ||
        !qn_grow((void **)&ast->rules, &ast->cap_rules, ast->n_rules + 1, sizeof *ast->rules)) {
        qn_gr_ast_fail(ast, QN_MEMORY, NULL);
        return -1;
    }
    ast->rules[ast->n_rules] = (qn_gr_ast_rule){.body = -1, .non_empty = -1, .name = copy};
    return (int32_t)ast->n_rules++;
}

int32_t qn_gr_ast_rule_named(qn_gr_ast *ast, qn_str name) {
    const int32_t rule = qn_gr_ast_rule_add(ast, name);
    if (rule >= 0) ast->rules[rule].is_named = true;
    return rule;
}

void qn_gr_ast_rule_set(qn_gr_ast *ast, int32_t rule, int32_t body) {
    if (!ast->failed) ast->rules[rule].body = body;
}

int32_t qn_gr_ref(qn_gr_ast *ast, int32_t rule) {
    return add_node(ast, (qn_gr_ast_node){.kind = QN_AST_IS_REF, .a = rule, .depth = 1});
}

int32_t qn_gr_shared(qn_gr_ast *ast, const char *name, int32_t body) {
    const int32_t rule = qn_gr_ast_rule_add(ast, qn_str_of(name));
    qn_gr_ast_rule_set(ast, rule, body);
    return qn_gr_ref(ast, rule);
}

int32_t qn_gr_ast_lengths_add(qn_gr_ast *ast) {
    if (ast->failed) return -1;
    if (!qn_grow((void **)&ast->lengths, &ast->cap_lengths, ast->n_lengths + 1,
                 sizeof(qn_gr_lengths *))) {
        qn_gr_ast_fail(ast, QN_MEMORY, NULL);
        return -1;
    }
    ast->lengths[ast->n_lengths] = NULL;
    return (int32_t)ast->n_lengths++;
}

void qn_gr_ast_lengths_set(qn_gr_ast *ast, int32_t at, qn_gr_lengths *lengths) {
    if (at < 0)
        qn_gr_lengths_destroy(lengths);
    else
        ast->lengths[at] = lengths;
}

int32_t qn_gr_counted(qn_gr_ast *ast, int32_t start, int32_t lengths) {
    if (ast->failed || start == QN_AST_NEVER) return QN_AST_NEVER;
    const uint16_t depth = (uint16_t)(ast->nodes[start].depth + 1);
    return add_node(
        ast, (qn_gr_ast_node){.kind = QN_AST_IS_COUNTED, .a = start, .b = lengths, .depth = depth});
}

int32_t qn_gr_place(qn_gr_ast *ast, int32_t lengths, uint32_t state, bool ends_character) {
    return add_node(ast, (qn_gr_ast_node){.kind = QN_AST_IS_PLACE,
                                          .a = lengths,
                                          .min = state,
                                          .max = ends_character,
                                          .depth = 1});
}

static bool push(qn_gr_node_list *list, int32_t node) {
    if (!qn_grow((void **)&list->items, &list->cap, list->n + 1, sizeof *list->items)) return false;
    list->items[list->n++] = node;
    return true;
}

void qn_gr_ast_flatten(qn_gr_ast *ast, qn_gr_ast_kind kind, int32_t node, qn_gr_node_list *list) {
    // Found nodes stay below, nodes to look at lie on a list of their own.
    qn_gr_node_list open = {0};
    bool ok = push(&open, node);
    while (ok && open.n) {
        const int32_t top = open.items[--open.n];
        const qn_gr_ast_node *n = &ast->nodes[top];
        if (n->kind == kind)
            ok = push(&open, n->b) && push(&open, n->a);
        else
            ok = push(list, top);
    }
    if (!ok) qn_gr_ast_fail(ast, QN_MEMORY, NULL);
    qn_free(open.items);
}

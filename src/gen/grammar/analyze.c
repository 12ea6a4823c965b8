// What must hold before a tree is lowered.
//
// Repetitions get bodies that cannot match the empty text: X{m,n} with such an X is X'{0,n}, where
// X' is X without it. So each round of a loop reads a byte: loops end, and within k bytes a counter
// moves by k at most (which the masks rely on).
#include "gen/grammar/ast.h"

#include "core/mem.h"

typedef bool holds_fn(const qn_gr_ast *ast, const qn_gr_ast_node *node, const bool *value);

// For each node the places where it is a child: lists in arrays. Link 2i is child a of node i.
typedef struct links {
    int32_t *head, *next;
} links;

static int32_t child_of(const qn_gr_ast *ast, const qn_gr_ast_node *node, int side) {
    if (node->kind == QN_AST_IS_REF) return side ? -1 : ast->rules[node->a].body;
    if (node->kind == QN_AST_IS_REP || node->kind == QN_AST_IS_COUNTED) return side ? -1 : node->a;
    if (node->kind == QN_AST_IS_SEQ || node->kind == QN_AST_IS_ALT) return side ? node->b : node->a;
    return -1;
}

static bool links_init(links *out, const qn_gr_ast *ast) {
    out->head = qn_alloc(ast->n, sizeof *out->head);
    out->next = qn_alloc(ast->n * 2, sizeof *out->next);
    if (!out->head || !out->next) return false;
    for (size_t i = 0; i < ast->n; i++) out->head[i] = -1;
    for (size_t i = 0; i < ast->n * 2; i++) {
        const int32_t child = child_of(ast, &ast->nodes[i / 2], (int)(i & 1));
        if (child < 0) continue;
        out->next[i] = out->head[child];
        out->head[child] = (int32_t)i;
    }
    return true;
}

// The least solution of value[i] == holds(node i), each node looked at once per change below it.
static bool solve(bool *value, const qn_gr_ast *ast, const links *up, holds_fn *holds) {
    int32_t *work = qn_alloc(ast->n, sizeof *work);
    if (!work) return false;
    size_t n = 0;
    for (size_t i = 0; i < ast->n; i++)
        if (!value[i] && holds(ast, &ast->nodes[i], value)) {
            value[i] = true;
            work[n++] = (int32_t)i;
        }
    while (n) {
        const int32_t node = work[--n];
        for (int32_t link = up->head[node]; link >= 0; link = up->next[link]) {
            const int32_t parent = link / 2;
            if (value[parent] || !holds(ast, &ast->nodes[parent], value)) continue;
            value[parent] = true;
            work[n++] = parent;
        }
    }
    qn_free(work);
    return true;
}

static bool body_holds(const qn_gr_ast *ast, const qn_gr_ast_node *node, const bool *value) {
    const int32_t body = ast->rules[node->a].body;
    return body >= 0 && value[body];
}

// What follows from the parts of a node; `leaf`: what bytes and other leaves are.
static bool follows(const qn_gr_ast *ast, const qn_gr_ast_node *node, const bool *value,
                    bool leaf) {
    switch ((qn_gr_ast_kind)node->kind) {
    case QN_AST_IS_EMPTY:
    case QN_AST_IS_PLACE:
        return true;
    case QN_AST_IS_NEVER:
        return false;
    case QN_AST_IS_SEQ:
        return value[node->a] && value[node->b];
    case QN_AST_IS_ALT:
        return value[node->a] || value[node->b];
    case QN_AST_IS_REP:
        return node->min == 0 || value[node->a];
    case QN_AST_IS_REF:
        return body_holds(ast, node, value);
    case QN_AST_IS_COUNTED:
        return value[node->a];
    default:
        return leaf;
    }
}

static bool is_nullable(const qn_gr_ast *ast, const qn_gr_ast_node *node, const bool *value) {
    return follows(ast, node, value, false);
}

static bool is_productive(const qn_gr_ast *ast, const qn_gr_ast_node *node, const bool *value) {
    return follows(ast, node, value, true);
}

static qn_status run(qn_gr_ast *ast, holds_fn *holds, bool for_nullable, qn_err *err) {
    qn_status status = QN_OK;
    links up = {0};
    bool *value = qn_alloc(ast->n, sizeof *value);
    if (!value || !links_init(&up, ast) || !solve(value, ast, &up, holds))
        status = QN_NOMEM(err, "grammar");
    for (size_t i = 0; !status && i < ast->n; i++)
        *(for_nullable ? &ast->nodes[i].nullable : &ast->nodes[i].productive) = value[i];
    qn_free(value);
    qn_free(up.head);
    qn_free(up.next);
    return status;
}

// --- the same without the empty text -------------------------------------------------------------

static int32_t non_empty(qn_gr_ast *ast, int32_t node);

static int32_t non_empty_rule(qn_gr_ast *ast, int32_t rule) {
    if (ast->rules[rule].non_empty < 0) {
        const int32_t other = qn_gr_ast_rule_add(ast, qn_str_of(ast->rules[rule].name));
        if (other < 0) return QN_AST_NEVER;
        ast->rules[rule].non_empty = other; // its body is made later: rules may call each other
        ast->rules[other].non_empty = other;
        ast->rules[other].origin = rule;
    }
    return qn_gr_ref(ast, ast->rules[rule].non_empty);
}

// a b c without the empty text: a' b c | b' c | c', up to the first that is never empty.
static int32_t non_empty_seq(qn_gr_ast *ast, int32_t node) {
    qn_gr_node_list items = {0};
    qn_gr_ast_flatten(ast, QN_AST_IS_SEQ, node, &items);
    int32_t found = QN_AST_NEVER, rest = QN_AST_EMPTY;
    bool rest_nullable = true;
    for (size_t i = items.n; i-- > 0 && !ast->failed;) {
        const int32_t item = items.items[i];
        if (ast->nodes[item].nullable) {
            const int32_t here = qn_gr_seq(ast, non_empty(ast, item), rest);
            found = qn_gr_alt(ast, here, found);
        } else {
            found = qn_gr_seq(ast, item, rest);
            rest_nullable = false;
        }
        rest = qn_gr_seq(ast, item, rest);
        if (!ast->failed) ast->nodes[rest].nullable = rest_nullable;
    }
    qn_free(items.items);
    return found;
}

static int32_t non_empty_alt(qn_gr_ast *ast, int32_t node) {
    qn_gr_node_list items = {0};
    qn_gr_ast_flatten(ast, QN_AST_IS_ALT, node, &items);
    int32_t found = QN_AST_NEVER;
    for (size_t i = items.n; i-- > 0 && !ast->failed;)
        found = qn_gr_alt(ast, non_empty(ast, items.items[i]), found);
    qn_free(items.items);
    return found;
}

static int32_t non_empty(qn_gr_ast *ast, int32_t node) {
    if (ast->failed) return QN_AST_NEVER;
    const qn_gr_ast_node n = ast->nodes[node];
    if (!n.nullable) return node;
    switch ((qn_gr_ast_kind)n.kind) {
    case QN_AST_IS_SEQ:
        return non_empty_seq(ast, node);
    case QN_AST_IS_ALT:
        return non_empty_alt(ast, node);
    case QN_AST_IS_REP: {
        const int32_t body = non_empty(ast, n.a);
        return qn_gr_rep(ast, body, ast->nodes[n.a].nullable || !n.min ? 1 : n.min, n.max);
    }
    case QN_AST_IS_REF:
        return non_empty_rule(ast, n.a);
    default:
        return QN_AST_NEVER;
    }
}

// Every repetition gets a body that reads at least a byte.
static void fill_loops(qn_gr_ast *ast) {
    const size_t n_rules = ast->n_rules, n_nodes = ast->n;
    for (size_t i = 0; i < n_nodes && !ast->failed; i++) {
        const qn_gr_ast_node node = ast->nodes[i];
        if (node.kind != QN_AST_IS_REP || !ast->nodes[node.a].nullable) continue;
        const int32_t body = non_empty(ast, node.a);
        ast->nodes[i].a = body;
        ast->nodes[i].min = 0;
    }
    // The bodies of the rules that came up; making them may bring more.
    for (size_t r = n_rules; r < ast->n_rules && !ast->failed; r++) {
        const int32_t body = non_empty(ast, ast->rules[ast->rules[r].origin].body);
        qn_gr_ast_rule_set(ast, (int32_t)r, body);
    }
}

// --- left recursion ------------------------------------------------------------------------------

typedef struct walk {
    int32_t node;
    bool leaving;
} walk;

static bool push_walk(walk **items, size_t *n, size_t *cap, walk one) {
    if (!qn_grow((void **)items, cap, *n + 1, sizeof **items)) return false;
    (*items)[(*n)++] = one;
    return true;
}

// Follows what can be reached before a byte is read. `open` marks rules on the way, `done` nodes.
static qn_status check_left(const qn_gr_ast *ast, int32_t root, bool *open, bool *done,
                            qn_err *err) {
    walk *work = NULL;
    size_t n = 0, cap = 0;
    qn_status status = QN_OK;
    bool ok = push_walk(&work, &n, &cap, (walk){root, false});
    while (ok && n) {
        const walk at = work[--n];
        const qn_gr_ast_node *node = &ast->nodes[at.node];
        const bool is_ref = node->kind == QN_AST_IS_REF;
        if (at.leaving) {
            open[node->a] = false;
            continue;
        }
        if (is_ref && open[node->a]) {
            status = QN_FAIL(err, UNSUPPORTED,
                             "%s: left recursion (it comes back to itself before "
                             "it reads anything)",
                             ast->rules[node->a].name);
            break;
        }
        if (done[at.node]) continue;
        done[at.node] = true;
        if (is_ref) {
            open[node->a] = true;
            ok = push_walk(&work, &n, &cap, (walk){at.node, true});
        }
        const int32_t a = child_of(ast, node, 0), b = child_of(ast, node, 1);
        const bool sees_b = b >= 0 && (node->kind == QN_AST_IS_ALT || ast->nodes[a].nullable);
        if (ok && sees_b) ok = push_walk(&work, &n, &cap, (walk){b, false});
        if (ok && a >= 0) ok = push_walk(&work, &n, &cap, (walk){a, false});
    }
    qn_free(work);
    return ok ? status : QN_NOMEM(err, "grammar");
}

static qn_status check_recursion(const qn_gr_ast *ast, int32_t root, qn_err *err) {
    bool *open = qn_alloc(ast->n_rules + 1, sizeof *open);
    bool *done = qn_alloc(ast->n, sizeof *done);
    qn_status status = open && done ? QN_OK : QN_NOMEM(err, "grammar");
    if (!status) status = check_left(ast, root, open, done, err);
    for (size_t r = 0; !status && r < ast->n_rules; r++) {
        if (ast->rules[r].body < 0) continue;
        open[r] = true;
        status = check_left(ast, ast->rules[r].body, open, done, err);
        open[r] = false;
    }
    qn_free(open);
    qn_free(done);
    return status;
}

// --- why nothing matches -------------------------------------------------------------------------

// The part that is enough to make a node match nothing; -1 where there is no single one.
static int32_t blame(const qn_gr_ast *ast, const qn_gr_ast_node *node) {
    if (node->kind == QN_AST_IS_SEQ) return ast->nodes[node->a].productive ? node->b : node->a;
    return node->kind == QN_AST_IS_ALT ? -1 : child_of(ast, node, 0);
}

// Follows the blame from `root`; `met` marks rules on the way. Rules that a front end made for
// itself have no place in its text, and are passed over.
static int32_t find_culprit(const qn_gr_ast *ast, int32_t root, bool *met) {
    int32_t culprit = -1;
    for (int32_t at = root; at >= 0; at = blame(ast, &ast->nodes[at])) {
        const qn_gr_ast_node *node = &ast->nodes[at];
        if (node->kind != QN_AST_IS_REF) continue;
        if (met[node->a]) break;
        met[node->a] = true;
        if (ast->rules[node->a].is_named) culprit = node->a;
    }
    return culprit;
}

static qn_status fail_empty(qn_gr_ast *ast, int32_t root, qn_err *err) {
    bool *met = qn_alloc(ast->n_rules + 1, sizeof *met);
    if (!met) return QN_NOMEM(err, "grammar");
    ast->culprit = find_culprit(ast, root, met);
    qn_free(met);
    return QN_FAIL(err, ARGUMENT, "no finite text can match");
}

qn_status qn_gr_ast_analyze(qn_gr_ast *ast, int32_t root, qn_err *err) {
    QN_TRY(qn_gr_ast_check(ast, err));
    QN_TRY(run(ast, is_nullable, true, err));
    fill_loops(ast);
    QN_TRY(qn_gr_ast_check(ast, err));
    QN_TRY(run(ast, is_nullable, true, err));
    QN_TRY(run(ast, is_productive, false, err));
    if (!ast->nodes[root].productive) return fail_empty(ast, root, err);
    return check_recursion(ast, root, err);
}

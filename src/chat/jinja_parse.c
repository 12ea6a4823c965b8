#include "chat/jinja_parse.h"

#include <stdio.h>

enum { MAX_DEPTH = 200 };

// --- tokens and nodes ----------------------------------------------------------------------------

qn_status qn_jinja_parse_node(qn_jinja_tree **out, qn_jinja_parser *p, qn_jinja_tree_kind kind,
                              const qn_jinja_token *at, qn_err *err) {
    qn_jinja_tree *node = qn_arena_alloc(p->arena, 1, sizeof *node);
    if (!node) return QN_NOMEM(err, "template");
    node->kind = (unsigned char)kind;
    node->line = at->line;
    node->column = at->column;
    *out = node;
    return QN_OK;
}

qn_status qn_jinja_parse_enter(qn_jinja_parser *p, qn_err *err) {
    if (++p->depth <= MAX_DEPTH) return QN_OK;
    return QN_TEMPLATE_FAIL(err, LIMIT, p->token, "nested more than %d deep", (int)MAX_DEPTH);
}

void qn_jinja_nodes_add(qn_jinja_nodes *nodes, qn_jinja_tree *node) {
    *nodes->last = node;
    nodes->last = &node->next;
}

bool qn_jinja_is_name(const qn_jinja_parser *p, const char *name) {
    return p->token->kind == QN_TOKEN_NAME && qn_str_is(p->token->text, name);
}

bool qn_jinja_is_op(const qn_jinja_parser *p, unsigned op) {
    return p->token->kind == QN_TOKEN_OP && p->token->op == op;
}

bool qn_jinja_skip_name(qn_jinja_parser *p, const char *name) {
    const bool is_it = qn_jinja_is_name(p, name);
    p->token += is_it;
    return is_it;
}

bool qn_jinja_skip_op(qn_jinja_parser *p, unsigned op) {
    const bool is_it = qn_jinja_is_op(p, op);
    p->token += is_it;
    return is_it;
}

qn_status qn_jinja_unexpected(const qn_jinja_parser *p, const char *want, qn_err *err) {
    static const char *const names[] = {[QN_TOKEN_END] = "the end of the template",
                                        [QN_TOKEN_DATA] = "text",
                                        [QN_TOKEN_PRINT] = "'{{'",
                                        [QN_TOKEN_PRINT_END] = "'}}'",
                                        [QN_TOKEN_BLOCK] = "'{%'",
                                        [QN_TOKEN_BLOCK_END] = "'%}'",
                                        [QN_TOKEN_CONST] = "a number or string"};
    const qn_jinja_token *at = p->token;
    const char ops[3] = {(char)(at->op & 0xff), (char)(at->op >> 8), 0};
    if (at->kind == QN_TOKEN_OP)
        return QN_TEMPLATE_FAIL(err, FORMAT, at, "unexpected '%s', want %s", ops, want);
    if (at->kind == QN_TOKEN_NAME)
        return QN_TEMPLATE_FAIL(err, FORMAT, at, "unexpected '%.*s', want %s",
                                (int)(at->text.size < 80 ? at->text.size : 80), at->text.data,
                                want);
    return QN_TEMPLATE_FAIL(err, FORMAT, at, "unexpected %s, want %s", names[at->kind], want);
}

qn_status qn_jinja_want_op(qn_jinja_parser *p, unsigned op, qn_err *err) {
    if (qn_jinja_skip_op(p, op)) return QN_OK;
    const char want[] = {'\'', (char)(op & 0xff), '\'', 0};
    return qn_jinja_unexpected(p, want, err);
}

qn_status qn_jinja_want_name(qn_str *out, qn_jinja_parser *p, qn_err *err) {
    if (p->token->kind != QN_TOKEN_NAME) return qn_jinja_unexpected(p, "a name", err);
    *out = (p->token++)->text;
    return QN_OK;
}

static qn_status want_block_end(qn_jinja_parser *p, qn_err *err) {
    if (p->token->kind != QN_TOKEN_BLOCK_END) return qn_jinja_unexpected(p, "'%}'", err);
    p->token++;
    return QN_OK;
}

// --- bodies --------------------------------------------------------------------------------------

static qn_status parse_statement(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err);

// `words`: names of the tags that end the list; NULL: the end of the template does.
static bool is_end(const qn_jinja_parser *p, const char *const *words) {
    if (p->token->kind != QN_TOKEN_BLOCK || p->token[1].kind != QN_TOKEN_NAME) return false;
    for (; words && *words; words++) {
        if (qn_str_is(p->token[1].text, *words)) return true;
    }
    return false;
}

static qn_status parse_piece(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token++;
    if (at->kind == QN_TOKEN_DATA) {
        QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_DATA, at, err));
        (*out)->value = qn_jinja_val_text(at->text);
        return QN_OK;
    }
    if (at->kind == QN_TOKEN_BLOCK) {
        QN_TRY(parse_statement(out, p, err));
        return want_block_end(p, err);
    }
    QN_TRY(qn_jinja_parse_node(out, p, QN_TREE_PRINT, at, err));
    QN_TRY(qn_jinja_parse_tuple(&(*out)->a, p, QN_TUPLE_FULL, err));
    if (p->token->kind != QN_TOKEN_PRINT_END) return qn_jinja_unexpected(p, "'}}'", err);
    p->token++;
    return QN_OK;
}

// Statements up to one of the words; the current token is that word then.
static qn_status parse_list(qn_jinja_tree **out, qn_jinja_parser *p, const char *const *words,
                            qn_err *err) {
    *out = NULL;
    qn_jinja_nodes list = {.last = out};
    while (!is_end(p, words)) {
        if (p->token->kind == QN_TOKEN_END) {
            if (!words) return QN_OK;
            char want[64];
            snprintf(want, sizeof want, "{%% %s %%}", words[0]);
            return qn_jinja_unexpected(p, want, err);
        }
        qn_jinja_tree *piece;
        QN_TRY(parse_piece(&piece, p, err));
        qn_jinja_nodes_add(&list, piece);
    }
    p->token++;
    return QN_OK;
}

// What follows the end of a statement's tag, up to one of the words.
static qn_status parse_body(qn_jinja_tree **out, qn_jinja_parser *p, const char *const *words,
                            qn_err *err) {
    QN_TRY(want_block_end(p, err));
    QN_TRY(qn_jinja_parse_enter(p, err));
    QN_TRY(parse_list(out, p, words, err));
    p->depth--;
    return QN_OK;
}

// --- statements ----------------------------------------------------------------------------------
// Each is called after its name was read, and leaves the token at the end of its last tag.

static qn_status parse_if(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    static const char *const ends[] = {"endif", "elif", "else", NULL};
    qn_jinja_nodes branches = {.last = &node->list};
    bool is_else = false;
    p->n_maybe++;
    for (;;) {
        qn_jinja_tree *branch;
        QN_TRY(qn_jinja_parse_node(&branch, p, QN_TREE_BRANCH, p->token, err));
        if (!is_else) QN_TRY(qn_jinja_parse_tuple(&branch->a, p, QN_TUPLE_NO_IF, err));
        const char *const last[] = {"endif", NULL};
        QN_TRY(parse_body(&branch->body, p, is_else ? last : ends, err));
        qn_jinja_nodes_add(&branches, branch);
        const qn_jinja_token *word = p->token++;
        if (qn_str_is(word->text, "endif")) break;
        is_else = qn_str_is(word->text, "else");
    }
    p->n_maybe--;
    return QN_OK;
}

static qn_status parse_for(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    static const char *const ends[] = {"endfor", "else", NULL};
    QN_TRY(qn_jinja_parse_target(&node->a, p, false, err));
    if (!qn_jinja_skip_name(p, "in")) return qn_jinja_unexpected(p, "'in'", err);
    QN_TRY(qn_jinja_parse_tuple(&node->b, p, QN_TUPLE_NO_IF, err));
    if (qn_jinja_skip_name(p, "if")) QN_TRY(qn_jinja_parse_expr(&node->c, p, err));
    if (qn_jinja_is_name(p, "recursive"))
        return QN_TEMPLATE_FAIL(err, UNSUPPORTED, p->token, "%s", "recursive loops");
    p->n_loops++;
    QN_TRY(parse_body(&node->body, p, ends, err));
    p->n_loops--;
    if (qn_str_is((p->token++)->text, "endfor")) return QN_OK;
    const char *const last[] = {"endfor", NULL};
    QN_TRY(parse_body(&node->other, p, last, err));
    p->token++;
    return QN_OK;
}

static qn_status parse_set(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    static const char *const ends[] = {"endset", NULL};
    QN_TRY(qn_jinja_parse_target(&node->a, p, true, err));
    if (qn_jinja_skip_op(p, '=')) return qn_jinja_parse_tuple(&node->b, p, QN_TUPLE_FULL, err);
    node->kind = QN_TREE_SET_TEXT;
    QN_TRY(qn_jinja_parse_filters(&node->b, p, NULL, false, err));
    QN_TRY(parse_body(&node->body, p, ends, err));
    p->token++;
    return QN_OK;
}

static qn_status parse_params(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    qn_jinja_nodes params = {.last = &node->list};
    bool has_default = false;
    QN_TRY(qn_jinja_want_op(p, '(', err));
    while (!qn_jinja_is_op(p, ')')) {
        if (node->list) QN_TRY(qn_jinja_want_op(p, ',', err));
        qn_jinja_tree *param;
        QN_TRY(qn_jinja_parse_node(&param, p, QN_TREE_PARAM, p->token, err));
        QN_TRY(qn_jinja_want_name(&param->name, p, err));
        if (qn_jinja_skip_op(p, '=')) {
            QN_TRY(qn_jinja_parse_expr(&param->a, p, err));
            has_default = true;
        } else if (has_default) {
            return QN_TEMPLATE_FAIL(err, FORMAT, param, "%s",
                                    "a parameter without a default after one that has one");
        }
        qn_jinja_nodes_add(&params, param);
    }
    return qn_jinja_want_op(p, ')', err);
}

// The body of a macro or of a call: a function of its own.
static qn_status parse_function(qn_jinja_tree *node, qn_jinja_parser *p, const char *end,
                                qn_err *err) {
    const char *const ends[] = {end, NULL};
    const unsigned uses = p->uses;
    const int n_loops = p->n_loops;
    p->uses = 0;
    p->n_loops = 0;
    QN_TRY(parse_body(&node->body, p, ends, err));
    node->op = (unsigned char)p->uses;
    p->uses |= uses;
    p->n_loops = n_loops;
    p->token++;
    return QN_OK;
}

static qn_status parse_macro(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    QN_TRY(qn_jinja_want_name(&node->name, p, err));
    QN_TRY(parse_params(node, p, err));
    return parse_function(node, p, "endmacro", err);
}

static qn_status parse_call_with(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    if (qn_jinja_is_op(p, '(')) QN_TRY(parse_params(node, p, err));
    const qn_jinja_token *at = p->token;
    QN_TRY(qn_jinja_parse_expr(&node->a, p, err));
    if (node->a->kind != QN_TREE_CALL)
        return QN_TEMPLATE_FAIL(err, FORMAT, at, "%s", "a call is wanted here");
    node->name = qn_str_of("caller");
    return parse_function(node, p, "endcall", err);
}

static qn_status parse_with(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    static const char *const ends[] = {"endwith", NULL};
    qn_jinja_nodes pairs = {.last = &node->list};
    while (p->token->kind != QN_TOKEN_BLOCK_END) {
        if (node->list) QN_TRY(qn_jinja_want_op(p, ',', err));
        qn_jinja_tree *pair;
        QN_TRY(qn_jinja_parse_node(&pair, p, QN_TREE_PAIR, p->token, err));
        QN_TRY(qn_jinja_parse_target(&pair->a, p, false, err));
        QN_TRY(qn_jinja_want_op(p, '=', err));
        QN_TRY(qn_jinja_parse_expr(&pair->b, p, err));
        qn_jinja_nodes_add(&pairs, pair);
    }
    QN_TRY(parse_body(&node->body, p, ends, err));
    p->token++;
    return QN_OK;
}

static qn_status parse_filtered(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    static const char *const ends[] = {"endfilter", NULL};
    QN_TRY(qn_jinja_parse_filters(&node->b, p, NULL, true, err));
    QN_TRY(parse_body(&node->body, p, ends, err));
    p->token++;
    return QN_OK;
}

// Marks what the model wrote, for training; here it only has names of its own.
static qn_status parse_generation(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    return parse_function(node, p, "endgeneration", err);
}

static qn_status parse_jump(qn_jinja_tree *node, qn_jinja_parser *p, qn_err *err) {
    if (p->n_loops) return QN_OK;
    return QN_TEMPLATE_FAIL(err, FORMAT, node, "'%s' outside of a loop",
                            node->kind == QN_TREE_BREAK ? "break" : "continue");
}

static const struct {
    const char *name;
    qn_jinja_tree_kind kind;
    qn_status (*parse)(qn_jinja_tree *node, qn_jinja_parser *p,
                       qn_err *err); // NULL: known, not supported
} statements[] = {
    {"if", QN_TREE_IF, parse_if},
    {"for", QN_TREE_FOR, parse_for},
    {"set", QN_TREE_SET, parse_set},
    {"macro", QN_TREE_MACRO, parse_macro},
    {"call", QN_TREE_CALL_WITH, parse_call_with},
    {"with", QN_TREE_WITH, parse_with},
    {"filter", QN_TREE_FILTERED, parse_filtered},
    {"generation", QN_TREE_SCOPED, parse_generation},
    {"break", QN_TREE_BREAK, parse_jump},
    {"continue", QN_TREE_CONTINUE, parse_jump},
    {"block", QN_TREE_COUNT, NULL},
    {"extends", QN_TREE_COUNT, NULL},
    {"include", QN_TREE_COUNT, NULL},
    {"import", QN_TREE_COUNT, NULL},
    {"from", QN_TREE_COUNT, NULL},
    {"print", QN_TREE_COUNT, NULL},
    {"autoescape", QN_TREE_COUNT, NULL},
};

static qn_status parse_statement(qn_jinja_tree **out, qn_jinja_parser *p, qn_err *err) {
    const qn_jinja_token *at = p->token;
    qn_str name;
    QN_TRY(qn_jinja_want_name(&name, p, err));
    for (size_t i = 0; i < sizeof statements / sizeof *statements; i++) {
        if (!qn_str_is(name, statements[i].name)) continue;
        if (!statements[i].parse)
            return QN_TEMPLATE_FAIL(err, UNSUPPORTED, at, "the tag '%s' is not supported",
                                    statements[i].name);
        QN_TRY(qn_jinja_parse_node(out, p, statements[i].kind, at, err));
        return statements[i].parse(*out, p, err);
    }
    return QN_TEMPLATE_FAIL(err, FORMAT, at, "unknown tag '%.*s'",
                            (int)(name.size < 80 ? name.size : 80), name.data);
}

qn_status qn_jinja_tree_parse(qn_jinja_tree **out, qn_arena *arena, const char *text, size_t size,
                              qn_err *err) {
    qn_jinja_tokens tokens = {0};
    qn_status status = qn_jinja_lex(&tokens, arena, text, size, err);
    if (!status) {
        qn_jinja_parser parser = {.arena = arena, .token = tokens.items};
        status = parse_list(out, &parser, NULL, err);
    }
    qn_jinja_tokens_deinit(&tokens);
    return status;
}

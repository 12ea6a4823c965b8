#include "gen/grammar/calls.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "gen/grammar/call_params.h"
#include "gen/grammar/json_rules.h"

enum { MAX_TOOLS = 4096 };

typedef struct making {
    const qn_gr_calls *calls;
    qn_gr_ast *ast;
    qn_gr_json_parts parts;
} making;

// --- texts of the form ---------------------------------------------------------------------------

static const qn_gr_gate_piece *find_piece(const qn_gr_calls *c, const char *text) {
    for (size_t i = 0; i < c->n_pieces; i++)
        if (strncmp(text, c->pieces[i].text, strlen(c->pieces[i].text)) == 0) return &c->pieces[i];
    return NULL;
}

static int32_t make_id(qn_gr_ast *ast) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    return qn_gr_rep(ast, qn_gr_bytes(ast, letters), QN_CALL_ID_SIZE, QN_CALL_ID_SIZE);
}

// A text with tags that may be special tokens; NULL: nothing.
static int32_t make_text(const making *m, const char *text) {
    qn_gr_ast *ast = m->ast;
    int32_t node = QN_AST_EMPTY;
    while (text && *text) {
        const qn_gr_gate_piece *piece = find_piece(m->calls, text);
        int32_t next;
        if (piece)
            next = qn_gr_token(ast, piece->token, false);
        else if (*text == '~')
            next = m->parts.blank;
        else if (*text == '#')
            next = make_id(ast);
        else
            next = qn_gr_span(ast, (uint8_t)*text, (uint8_t)*text);
        node = qn_gr_seq(ast, node, next);
        text += piece ? strlen(piece->text) : 1;
    }
    return node;
}

// --- a call --------------------------------------------------------------------------------------

// Names that stand between tags must not look like one.
static qn_status check_name(const qn_gr_calls *c, const char *name, qn_err *err) {
    const size_t n = strlen(name);
    if (n == 0) return QN_FAIL(err, ARGUMENT, "a tool has no name");
    if (!c->is_quoted && (strpbrk(name, "<>[]\n\r") || *name == ' ' || name[n - 1] == ' '))
        return QN_FAIL(err, ARGUMENT,
                       "tool '%.80s': calls of this model cannot have a name with brackets, line "
                       "ends or blanks around it",
                       name);
    return QN_OK;
}

static int32_t make_name(const making *m, const char *name) {
    if (!m->calls->is_quoted) return qn_gr_text(m->ast, qn_str_of(name));
    // The inside of the string, and the quote that ends it, which is part of `between`.
    int32_t node = QN_AST_EMPTY;
    for (const char *c = name; *c; c++) {
        const bool needs_escape = (uint8_t)*c < 0x20 || *c == '"' || *c == '\\';
        char room[8];
        if (needs_escape && (uint8_t)*c < 0x20)
            snprintf(room, sizeof room, "\\u%04x", (unsigned)(uint8_t)*c);
        else
            snprintf(room, sizeof room, needs_escape ? "\\%c" : "%c", *c);
        node = qn_gr_seq(m->ast, node, qn_gr_text(m->ast, qn_str_of(room)));
    }
    return node;
}

static qn_status make_arguments(int32_t *out, making *m, const qn_gr_tool *tool, qn_err *err) {
    const json_t *schema = tool->schema;
    const bool is_any = !schema || json_is_null(schema) || json_is_true(schema) ||
                        (json_is_object(schema) && json_object_size(schema) == 0);
    *out = m->parts.object;
    if (is_any && !m->calls->is_xml) return QN_OK;
    if (!is_any && !json_is_object(schema))
        return QN_FAIL(err, ARGUMENT, "its parameters are not a schema");
    const json_t *type = json_object_get(schema, "type");
    if (json_is_string(type) && strcmp(json_string_value(type), "object") != 0)
        return QN_FAIL(err, ARGUMENT, "its parameters are of type '%.40s', want an object",
                       json_string_value(type));
    qn_grammar_opts opts = m->calls->opts;
    opts.lenient &= !tool->is_strict;
    if (m->calls->is_xml) return qn_gr_call_params(out, m->ast, schema, &opts, err);
    // Arguments are objects, whether their schema says so or not.
    json_t *of_object = qn_gr_call_copy(schema);
    qn_json_put(&of_object, "type", json_string("object"));
    if (!of_object) return QN_NOMEM(err, "a grammar of tools");
    const qn_status status = qn_gr_call_schema(out, m->ast, of_object, &opts, err);
    json_decref(of_object);
    return status;
}

// Name and arguments of one tool, up to what follows them.
static qn_status make_tool(int32_t *out, making *m, const qn_gr_tool *tool, int32_t between,
                           qn_err *err) {
    int32_t arguments = QN_AST_NEVER;
    QN_TRY(check_name(m->calls, tool->name, err));
    const qn_status status = make_arguments(&arguments, m, tool, err);
    if (status) return qn_err_prefix(err, status, "tools[%zu] '%.80s'", tool->index, tool->name);
    *out = qn_gr_seq3(m->ast, make_name(m, tool->name), between, arguments);
    return QN_OK;
}

// The second of two tools of one name is not called.
static qn_status make_tools(int32_t *any, making *m, json_t **seen, qn_err *err) {
    const qn_gr_calls *c = m->calls;
    const int32_t between = make_text(m, c->between);
    for (size_t i = 0; i < c->n_tools; i++) {
        int32_t tool = QN_AST_NEVER;
        if (json_object_get(*seen, c->tools[i].name)) continue;
        QN_TRY(make_tool(&tool, m, &c->tools[i], between, err));
        *any = qn_gr_alt(m->ast, tool, *any);
        qn_json_put(seen, c->tools[i].name, json_true());
        if (!*seen) return QN_NOMEM(err, "a grammar of tools");
        QN_TRY(qn_gr_ast_check(m->ast, err));
    }
    return QN_OK;
}

static qn_status make_call(int32_t *out, making *m, qn_err *err) {
    const qn_gr_calls *c = m->calls;
    int32_t any = QN_AST_NEVER;
    json_t *seen = json_object();
    if (!seen) return QN_NOMEM(err, "a grammar of tools");
    const qn_status status = make_tools(&any, m, &seen, err);
    json_decref(seen);
    QN_TRY(status);
    *out = qn_gr_shared(m->ast, "call",
                        qn_gr_seq3(m->ast, make_text(m, c->before), any, make_text(m, c->after)));
    return QN_OK;
}

// --- all of them ---------------------------------------------------------------------------------

static int32_t make_list(const making *m, int32_t call) {
    qn_gr_ast *ast = m->ast;
    const int32_t more = qn_gr_rep(ast, qn_gr_seq(ast, m->parts.comma, call), 0, QN_AST_MANY);
    const int32_t calls = m->calls->one ? call : qn_gr_seq(ast, call, more);
    return qn_gr_seq3(ast, m->parts.open_list, calls, m->parts.close_list);
}

// A qn_gr_make_fn.
static qn_status make_calls(void *arg, int32_t *root, qn_gr_ast *ast, qn_err *err) {
    making m = {.calls = arg, .ast = ast};
    const qn_gr_calls *c = m.calls;
    int32_t call = QN_AST_NEVER;
    ast->stop = c->opts.stop;
    qn_gr_json_parts_init(&m.parts, ast);
    QN_TRY(make_call(&call, &m, err));
    if (c->is_list) call = make_list(&m, call);
    const int32_t body = qn_gr_seq(ast, call, make_text(&m, c->close));
    const int32_t whole = qn_gr_seq(ast, make_text(&m, c->open), body);
    const int32_t more = qn_gr_seq(ast, m.parts.blank, whole);
    const bool has_more = !c->one && !c->is_list && (c->takes_open || !c->close);
    *root = qn_gr_seq(ast, c->takes_open ? whole : body,
                      has_more ? qn_gr_rep(ast, more, 0, QN_AST_MANY) : QN_AST_EMPTY);
    if (c->instead) {
        int32_t instead = QN_AST_NEVER;
        QN_TRY(qn_grammar_read_again(&instead, ast, c->instead, &c->opts, err));
        *root = qn_gr_alt(ast, instead, *root);
    }
    return qn_gr_ast_check(ast, err);
}

qn_status qn_grammar_create_calls(qn_grammar **out, const qn_tokenizer *tokenizer,
                                  const qn_grammar *other, const qn_gr_calls *calls, qn_err *err) {
    if (calls->n_tools == 0) return QN_FAIL(err, ARGUMENT, "there are no tools to call");
    if (calls->n_tools > MAX_TOOLS)
        return QN_FAIL(err, LIMIT, "%zu tools, at most %d", calls->n_tools, MAX_TOOLS);
    const qn_status status = qn_grammar_create_made(out, tokenizer, other, make_calls,
                                                    (void *)(uintptr_t)calls, &calls->opts, err);
    return status == QN_LIMIT ? qn_err_prefix(err, status, "tools") : status;
}

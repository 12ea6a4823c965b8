#include "core/mem.h"
#include "core/structs.h"
#include "gen/grammar/grammar_int.h"

enum { TEXT_MAX = 8 << 20 };

static qn_gr_front_end *const front_ends[] = {
    [QN_GRAMMAR_JSON] = qn_gr_front_json,
    [QN_GRAMMAR_SCHEMA] = qn_gr_front_schema,
    [QN_GRAMMAR_REGEX] = qn_gr_front_regex,
    [QN_GRAMMAR_GBNF] = qn_gr_front_gbnf,
};

// Names the place of what cannot be matched, as the front end names places.
static qn_status fail_empty(qn_grammar_kind kind, const qn_gr_ast *ast, qn_err *err) {
    const char *place = ast->culprit >= 0 ? ast->rules[ast->culprit].name : NULL;
    const qn_status status = QN_ARGUMENT;
    if (kind == QN_GRAMMAR_REGEX && ast->empty_class)
        return QN_FAIL(err, ARGUMENT,
                       "regular expression: no finite text can match; the class at column %u has "
                       "no characters",
                       (unsigned)ast->empty_class);
    if (kind == QN_GRAMMAR_REGEX) return qn_err_prefix(err, status, "regular expression");
    if (kind == QN_GRAMMAR_GBNF)
        return qn_err_prefix(err, status, "GBNF, rule %s", place ? place : "root");
    return qn_err_prefix(err, status, "schema, %s", place ? place : "#");
}

static qn_status compile(qn_gr_program *out, const qn_tokenizer *tokenizer, qn_grammar_kind kind,
                         qn_str text, const qn_grammar_opts *opts, qn_err *err) {
    qn_gr_ast ast;
    int32_t root;
    QN_TRY(qn_gr_ast_init(&ast, err));
    ast.tokenizer = tokenizer;
    ast.stop = opts->stop;
    qn_status status = front_ends[kind](&root, &ast, text, opts, err);
    if (!status) {
        status = qn_gr_ast_analyze(&ast, root, err);
        if (status == QN_ARGUMENT) status = fail_empty(kind, &ast, err);
    }
    if (!status) status = qn_gr_program_init(out, &ast, root, err);
    qn_gr_ast_deinit(&ast);
    return status;
}

// Everything but the vocabulary.
static qn_status create(qn_grammar **out, const qn_tokenizer *tokenizer, qn_grammar_kind kind,
                        const char *text, size_t size, const qn_grammar_opts *opts, qn_err *err) {
    qn_grammar_opts o;
    QN_TRY(QN_OPTS_READ(qn_grammar_opts, &o, opts, err));
    if ((int)kind < 0 || (size_t)kind >= sizeof front_ends / sizeof *front_ends)
        return QN_FAIL(err, ARGUMENT, "grammar: unknown kind %d", (int)kind);
    if (o.max_steps < 0)
        return QN_FAIL(err, ARGUMENT, "grammar: max_steps of %lld", (long long)o.max_steps);
    if (size > TEXT_MAX)
        return QN_FAIL(err, LIMIT, "grammar: %zu bytes, at most %d", size, TEXT_MAX);
    qn_grammar *grammar = qn_alloc(1, sizeof *grammar);
    if (!grammar) return QN_NOMEM(err, "grammar");
    atomic_init(&grammar->n_users, 1);
    const qn_status status =
        compile(&grammar->program, tokenizer, kind, (qn_str){text ? text : "", size}, &o, err);
    if (status)
        qn_grammar_destroy(grammar);
    else
        *out = grammar;
    return status;
}

static void attach(qn_grammar *grammar, qn_gr_shared_bytes *shared) {
    // The caller holds a user of it already, so nothing is ordered by this.
    atomic_fetch_add_explicit(&shared->n_users, 1, memory_order_relaxed);
    grammar->shared = shared;
    grammar->bytes = shared->bytes;
}

static void detach(qn_gr_shared_bytes *shared) {
    // Release: this user's reads come before the last one's free; acquire: the last one sees them.
    if (!shared || atomic_fetch_sub_explicit(&shared->n_users, 1, memory_order_acq_rel) > 1) return;
    qn_gr_token_bytes_deinit(&shared->bytes);
    qn_free(shared);
}

qn_status qn_grammar_create(qn_grammar **out, const qn_tokenizer *tokenizer, qn_grammar_kind kind,
                            const char *text, size_t size, const qn_grammar_opts *opts,
                            qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(tokenizer, err);
    if (size) QN_NEED(text, err);
    qn_grammar *grammar;
    QN_TRY(create(&grammar, tokenizer, kind, text, size, opts, err));
    qn_gr_shared_bytes *shared = qn_alloc(1, sizeof *shared);
    qn_status status = shared ? QN_OK : QN_NOMEM(err, "grammar");
    if (!status) status = qn_gr_token_bytes_init(&shared->bytes, tokenizer, err);
    if (status) {
        qn_free(shared);
        qn_grammar_destroy(grammar);
        return status;
    }
    shared->tokenizer = tokenizer;
    attach(grammar, shared);
    *out = grammar;
    return QN_OK;
}

qn_status qn_grammar_create_like(qn_grammar **out, const qn_grammar *other, qn_grammar_kind kind,
                                 const char *text, size_t size, const qn_grammar_opts *opts,
                                 qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(other, err);
    if (size) QN_NEED(text, err);
    qn_grammar *grammar;
    QN_TRY(create(&grammar, other->shared->tokenizer, kind, text, size, opts, err));
    attach(grammar, other->shared);
    *out = grammar;
    return QN_OK;
}

const qn_grammar *qn_grammar_hold(const qn_grammar *grammar) {
    // Nothing else of it changes.
    atomic_fetch_add_explicit(&((qn_grammar *)grammar)->n_users, 1, memory_order_relaxed);
    return grammar;
}

void qn_grammar_destroy(qn_grammar *grammar) {
    if (!grammar || atomic_fetch_sub_explicit(&grammar->n_users, 1, memory_order_acq_rel) > 1)
        return;
    qn_gr_program_deinit(&grammar->program);
    detach(grammar->shared);
    qn_free(grammar);
}

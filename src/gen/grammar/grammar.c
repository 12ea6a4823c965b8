#include "core/mem.h"
#include "core/structs.h"
#include "gen/grammar/grammar_int.h"

#include <string.h>

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

// A text and its kind, for qn_gr_make_fn.
typedef struct source {
    qn_grammar_kind kind;
    qn_str text;
    qn_grammar_opts opts;
} source;

// A qn_gr_make_fn.
static qn_status read_source(void *arg, int32_t *root, qn_gr_ast *ast, qn_err *err) {
    const source *s = arg;
    ast->stop = s->opts.stop;
    return front_ends[s->kind](root, ast, s->text, &s->opts, err);
}

static qn_status compile(qn_gr_program *out, const qn_tokenizer *tokenizer, qn_gr_make_fn *make,
                         void *arg, qn_grammar_kind kind, qn_err *err) {
    qn_gr_ast ast;
    int32_t root;
    QN_TRY(qn_gr_ast_init(&ast, err));
    ast.tokenizer = tokenizer;
    qn_status status = make(arg, &root, &ast, err);
    if (!status) {
        status = qn_gr_ast_analyze(&ast, root, err);
        if (status == QN_ARGUMENT) status = fail_empty(kind, &ast, err);
    }
    if (!status) status = qn_gr_program_init(out, &ast, root, err);
    qn_gr_ast_deinit(&ast);
    return status;
}

// Everything but the vocabulary. `kind` is what the tree says of places in messages.
static qn_status create(qn_grammar **out, const qn_tokenizer *tokenizer, qn_gr_make_fn *make,
                        void *arg, qn_grammar_kind kind, qn_err *err) {
    qn_grammar *grammar = qn_alloc(1, sizeof *grammar);
    if (!grammar) return QN_NOMEM(err, "grammar");
    atomic_init(&grammar->n_users, 1);
    const qn_status status = compile(&grammar->program, tokenizer, make, arg, kind, err);
    if (status)
        qn_grammar_destroy(grammar);
    else
        *out = grammar;
    return status;
}

static qn_status read_opts(source *out, qn_grammar_kind kind, const char *text, size_t size,
                           const qn_grammar_opts *opts, qn_err *err) {
    *out = (source){.kind = kind, .text = {text ? text : "", size}};
    QN_TRY(QN_OPTS_READ(qn_grammar_opts, &out->opts, opts, err));
    if ((int)kind < 0 || (size_t)kind >= sizeof front_ends / sizeof *front_ends)
        return QN_FAIL(err, ARGUMENT, "grammar: unknown kind %d", (int)kind);
    if (out->opts.max_steps < 0)
        return QN_FAIL(err, ARGUMENT, "grammar: max_steps of %lld", (long long)out->opts.max_steps);
    if (out->opts.max_token_steps < 0)
        return QN_FAIL(err, ARGUMENT, "grammar: max_token_steps of %lld",
                       (long long)out->opts.max_token_steps);
    if (size > TEXT_MAX)
        return QN_FAIL(err, LIMIT, "grammar: %zu bytes, at most %d", size, TEXT_MAX);
    return QN_OK;
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

// The vocabulary of the tokenizer, which nobody else has.
static qn_status attach_new(qn_grammar *grammar, const qn_tokenizer *tokenizer, qn_err *err) {
    qn_gr_shared_bytes *shared = qn_alloc(1, sizeof *shared);
    qn_status status = shared ? QN_OK : QN_NOMEM(err, "grammar");
    if (!status) status = qn_gr_token_bytes_init(&shared->bytes, tokenizer, err);
    if (status) {
        qn_free(shared);
        return status;
    }
    shared->tokenizer = tokenizer;
    attach(grammar, shared);
    return QN_OK;
}

// Takes the grammar, and gives it with its text.
static qn_status keep_text(qn_grammar **out, qn_grammar *grammar, const source *s, qn_err *err) {
    grammar->text = qn_alloc(s->text.size + 1, 1);
    if (!grammar->text) {
        qn_grammar_destroy(grammar);
        return QN_NOMEM(err, "grammar");
    }
    memcpy(grammar->text, s->text.data, s->text.size);
    grammar->text_size = s->text.size;
    grammar->kind = s->kind;
    grammar->is_lenient = s->opts.lenient;
    grammar->is_closed = s->opts.closed;
    *out = grammar;
    return QN_OK;
}

qn_status qn_grammar_read_again(int32_t *root, qn_gr_ast *ast, const qn_grammar *grammar,
                                const qn_grammar_opts *opts, qn_err *err) {
    qn_grammar_opts own = *opts;
    own.lenient = grammar->is_lenient;
    own.closed = grammar->is_closed;
    const qn_str text = {grammar->text, grammar->text_size};
    return front_ends[grammar->kind](root, ast, text, &own, err);
}

static qn_status create_whole(qn_grammar **out, const qn_tokenizer *tokenizer,
                              const qn_grammar *other, qn_gr_make_fn *make, void *arg,
                              qn_grammar_kind kind, const qn_grammar_opts *opts, qn_err *err) {
    qn_grammar *grammar;
    if (other) tokenizer = other->shared->tokenizer;
    QN_TRY(create(&grammar, tokenizer, make, arg, kind, err));
    grammar->token_steps = qn_gr_token_steps(opts);
    qn_status status = QN_OK;
    if (other)
        attach(grammar, other->shared);
    else
        status = attach_new(grammar, tokenizer, err);
    if (status)
        qn_grammar_destroy(grammar);
    else
        *out = grammar;
    return status;
}

qn_status qn_grammar_create(qn_grammar **out, const qn_tokenizer *tokenizer, qn_grammar_kind kind,
                            const char *text, size_t size, const qn_grammar_opts *opts,
                            qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(tokenizer, err);
    if (size) QN_NEED(text, err);
    source s;
    QN_TRY(read_opts(&s, kind, text, size, opts, err));
    qn_grammar *grammar = NULL;
    QN_TRY(create_whole(&grammar, tokenizer, NULL, read_source, &s, kind, &s.opts, err));
    return keep_text(out, grammar, &s, err);
}

qn_status qn_grammar_create_like(qn_grammar **out, const qn_grammar *other, qn_grammar_kind kind,
                                 const char *text, size_t size, const qn_grammar_opts *opts,
                                 qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(other, err);
    if (size) QN_NEED(text, err);
    source s;
    QN_TRY(read_opts(&s, kind, text, size, opts, err));
    qn_grammar *grammar = NULL;
    QN_TRY(create_whole(&grammar, NULL, other, read_source, &s, kind, &s.opts, err));
    return keep_text(out, grammar, &s, err);
}

qn_status qn_grammar_create_made(qn_grammar **out, const qn_tokenizer *tokenizer,
                                 const qn_grammar *other, qn_gr_make_fn *make, void *arg,
                                 const qn_grammar_opts *opts, qn_err *err) {
    return create_whole(out, tokenizer, other, make, arg, QN_GRAMMAR_SCHEMA, opts, err);
}

qn_status qn_grammar_create_gated(qn_grammar **out, const qn_grammar *inner, const qn_gr_gate *gate,
                                  qn_err *err) {
    qn_grammar *grammar = qn_alloc(1, sizeof *grammar);
    qn_gr_gate *copy = qn_alloc(1, sizeof *copy);
    if (!grammar || !copy) {
        qn_free(grammar);
        qn_free(copy);
        return QN_NOMEM(err, "grammar");
    }
    *copy = inner->gate ? *inner->gate : *gate;
    atomic_init(&grammar->n_users, 1);
    grammar->inner = qn_grammar_hold(inner);
    grammar->program = inner->program;
    grammar->gate = copy;
    grammar->token_steps = inner->token_steps;
    attach(grammar, inner->shared);
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
    if (grammar->inner)
        qn_grammar_destroy((qn_grammar *)grammar->inner);
    else
        qn_gr_program_deinit(&grammar->program);
    qn_free(grammar->gate);
    qn_free(grammar->text);
    detach(grammar->shared);
    qn_free(grammar);
}

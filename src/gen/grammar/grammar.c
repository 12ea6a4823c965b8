#include "core/mem.h"
#include "gen/grammar/object.h"

enum { TEXT_MAX = 8 << 20 };

static qn_front_end *const front_ends[] = {
    [QN_GRAMMAR_JSON] = qn_front_json,
    [QN_GRAMMAR_SCHEMA] = qn_front_schema,
    [QN_GRAMMAR_REGEX] = qn_front_regex,
    [QN_GRAMMAR_GBNF] = qn_front_gbnf,
};

static qn_status compile(qn_program *out, qn_grammar_kind kind, qn_str text, qn_err *err) {
    qn_ast ast;
    int32_t root;
    QN_TRY(qn_ast_init(&ast, err));
    qn_status status = front_ends[kind](&root, &ast, text, err);
    if (!status) status = qn_ast_analyze(&ast, root, err);
    if (!status) status = qn_program_init(out, &ast, root, err);
    qn_ast_deinit(&ast);
    return status;
}

qn_status qn_grammar_create(qn_grammar **out, const qn_tokenizer *tokenizer, qn_grammar_kind kind,
                            const char *text, size_t size, qn_err *err) {
    qn_status status = QN_OK;
    if ((int)kind < 0 || (size_t)kind >= sizeof front_ends / sizeof *front_ends)
        return QN_FAIL(err, ARGUMENT, "grammar: unknown kind %d", (int)kind);
    if (size > TEXT_MAX)
        return QN_FAIL(err, LIMIT, "grammar: %zu bytes, at most %d", size, TEXT_MAX);
    if (!tokenizer) return QN_FAIL(err, ARGUMENT, "grammar: no tokenizer");
    qn_grammar *grammar = qn_alloc(1, sizeof *grammar);
    if (!grammar) return QN_NOMEM(err, "grammar");
    QN_TRY_TO(done, compile(&grammar->program, kind, (qn_str){text ? text : "", size}, err));
    QN_TRY_TO(done, qn_token_bytes_init(&grammar->bytes, tokenizer, err));
    *out = grammar;

done:
    if (status) qn_grammar_destroy(grammar);
    return status;
}

void qn_grammar_destroy(qn_grammar *grammar) {
    if (!grammar) return;
    qn_program_deinit(&grammar->program);
    qn_token_bytes_deinit(&grammar->bytes);
    qn_free(grammar);
}

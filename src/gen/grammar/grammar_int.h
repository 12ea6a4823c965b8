// The grammar object, for the front ends that fill it and the matcher that reads it.
#ifndef QN_GEN_GRAMMAR_GRAMMAR_INT_H
#define QN_GEN_GRAMMAR_GRAMMAR_INT_H

#include "gen/grammar/gate.h"
#include "gen/grammar/program.h"
#include "gen/grammar/trie.h"

#include <stdatomic.h>

// A vocabulary that several grammars use; the last one frees it.
typedef struct qn_gr_shared_bytes {
    atomic_size_t n_users;
    const qn_tokenizer *tokenizer; // borrowed
    qn_gr_token_bytes bytes;
} qn_gr_shared_bytes;

struct qn_grammar {
    atomic_size_t n_users;   // its creator, and those who hold it
    qn_gr_program program;   // of `inner`, if there is one
    const qn_grammar *inner; // that is held; NULL: none
    qn_gr_gate *gate;        // owned; NULL: it holds from the first token
    uint64_t token_steps;    // that a matcher may take for one token
    qn_gr_token_bytes bytes; // as in `shared`, which owns what it points to
    qn_gr_shared_bytes *shared;
    // What it was made from, owned; NULL: by a function (qn_grammar_create_made), or gated
    char *text;
    size_t text_size;
    qn_grammar_kind kind;
    bool is_lenient, is_closed;
};

// Adds the tree of a grammar that was made from a text to another one; limits are those of `opts`.
QN_MUST_CHECK qn_status qn_grammar_read_again(int32_t *root, qn_gr_ast *ast,
                                              const qn_grammar *grammar,
                                              const qn_grammar_opts *opts, qn_err *err);

// Adds a holder, which must destroy it, too. Returns it.
const qn_grammar *qn_grammar_hold(const qn_grammar *grammar);

// Steps that a front end may take for what is not linear.
enum { QN_GR_STEPS_MAX = 40 << 20 };
static inline uint64_t qn_gr_steps(const qn_grammar_opts *opts) {
    const bool is_less = opts->max_steps > 0 && opts->max_steps < QN_GR_STEPS_MAX;
    return is_less ? (uint64_t)opts->max_steps : QN_GR_STEPS_MAX;
}
// Steps (about 20 ns each) that one call of a matcher may take. A mask of a JSON schema over 150 K
// tokens takes some ten thousand when nothing is cached yet.
enum { QN_GR_TOKEN_STEPS_MAX = 20 << 20 };
static inline uint64_t qn_gr_token_steps(const qn_grammar_opts *opts) {
    const bool is_less = opts->max_token_steps > 0 && opts->max_token_steps < QN_GR_TOKEN_STEPS_MAX;
    return is_less ? (uint64_t)opts->max_token_steps : QN_GR_TOKEN_STEPS_MAX;
}

// A front end: adds the tree of `text` to `ast`; *root is the node of the whole. `opts` is never
// NULL.
typedef qn_status qn_gr_front_end(int32_t *root, qn_gr_ast *ast, qn_str text,
                                  const qn_grammar_opts *opts, qn_err *err);
qn_gr_front_end qn_gr_front_json, qn_gr_front_schema, qn_gr_front_regex, qn_gr_front_gbnf;
// The same for `properties` of a schema, each by itself: nodes[i] is that of names[i], and is left
// as it is where there is none. The text is read once.
QN_MUST_CHECK qn_status qn_gr_front_properties(int32_t *nodes, qn_gr_ast *ast, qn_str text,
                                               const char *const *names, size_t n,
                                               const qn_grammar_opts *opts, qn_err *err);

// A grammar whose tree a function of the caller makes; `other` (may be NULL) as for
// qn_grammar_create_like, else for the tokenizer. Of `opts`, max_token_steps alone is read here.
typedef qn_status qn_gr_make_fn(void *arg, int32_t *root, qn_gr_ast *ast, qn_err *err);
QN_MUST_CHECK qn_status qn_grammar_create_made(qn_grammar **out, const qn_tokenizer *tokenizer,
                                               const qn_grammar *other, qn_gr_make_fn *make,
                                               void *arg, const qn_grammar_opts *opts, qn_err *err);

#endif

// Grammars: what a text may be, byte for byte, and the tokens that may come next.
//
//   JSON mode, JSON Schema, regular expression, GBNF
//     -> tree of byte sets, sequences, choices, counted repetitions, rules     (ast.h)
//     -> program: the same as states with return addresses and counters        (program.h)
//     -> states: sets of stacks, made on first use, with a transition per byte (states.h)
//     -> masks: a bit for each token of the vocabulary                         (trie.h, matcher.c)
//
// The public calls (qn_grammar_create, qn_grammar_destroy) are in quern.h. A grammar is constant:
// threads may share one. A matcher follows one text and keeps the states and masks it has seen; one
// thread at a time. It allocates nothing after its creation.
#ifndef QN_GEN_GRAMMAR_GRAMMAR_H
#define QN_GEN_GRAMMAR_GRAMMAR_H

#include "core/err.h"

typedef struct qn_matcher qn_matcher;

// `n_vocab` is the number of logits that the masks are for: a model may have more than its
// tokenizer has tokens. 0: as the tokenizer. The grammar and its tokenizer must outlive the
// matcher.
QN_MUST_CHECK qn_status qn_matcher_create(qn_matcher **out, const qn_grammar *grammar,
                                          int64_t n_vocab, qn_err *err);
void qn_matcher_destroy(qn_matcher *matcher);
// Back to the start of the text; what was learned is kept.
void qn_matcher_reset(qn_matcher *matcher);
// Bit (id % 32) of word (id / 32): token `id` may come next. End tokens may come where the text may
// end. Borrowed until the next call on this matcher. At least one bit is set, else it fails. NULL:
// any token may come, which only a gate (gate.h) allows.
QN_MUST_CHECK qn_status qn_matcher_mask(const uint32_t **allowed, qn_matcher *matcher, qn_err *err);
// Goes on by one token. One that the mask does not allow is refused and changes nothing.
QN_MUST_CHECK qn_status qn_matcher_accept(qn_matcher *matcher, int32_t token, qn_err *err);
// True when nothing but an end token can follow (or one has come).
bool qn_matcher_is_done(const qn_matcher *matcher);
bool qn_matcher_may_end(const qn_matcher *matcher);

// For tests and tools: the same by bytes. False when the bytes do not fit; the place is then lost.
QN_MUST_CHECK qn_status qn_matcher_feed(bool *fits, qn_matcher *matcher, const char *bytes,
                                        size_t n, qn_err *err);

typedef struct qn_matcher_stats {
    uint64_t n_masks, n_hits; // asked for, and found ready
    uint64_t n_sweeps;        // times that the memory was full and everything was dropped
    size_t n_states, n_cells;
} qn_matcher_stats;
qn_matcher_stats qn_matcher_get_stats(const qn_matcher *matcher);

#endif

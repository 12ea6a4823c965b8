// Lengths of strings beside an automaton: which numbers of characters lead from a state to an
// accepting one, and whether one of them is within bounds.
//
// The set of states that accept in exactly k characters follows from the set for k - 1 alone, so
// the sequence of these sets comes back to itself: the lengths are known up to `first`, and repeat
// with `period` from there on. That makes every question exact, however large the bounds are.
#ifndef QN_GEN_GRAMMAR_LENGTHS_H
#define QN_GEN_GRAMMAR_LENGTHS_H

#include "core/err.h"

enum { QN_LENGTHS_MAX_BITS = 1 << 27 }; // states times lengths

// The automaton: for each state the states at the ends of the next character, and whether the text
// may end there. Within a character (in the middle of its bytes) states are states as well.
typedef struct qn_gr_length_graph {
    size_t n;
    const uint32_t *first; // (n + 1) into `to`
    const uint32_t *to;
    const bool *accepts; // (n)
} qn_gr_length_graph;

// Constant once it is made.
typedef struct qn_gr_lengths {
    uint32_t min, max; // of the whole string; max QN_AST_MANY: no bound
    uint32_t first;    // lengths below first + period are in `bits`
    uint32_t period;   // 0: `bits` goes as far as `max`
    uint32_t far;      // max over states of the characters to the nearest end
    size_t n_words;    // of a state's bits
    uint64_t *bits;    // (states, n_words): bit k: an end is exactly k characters away
} qn_gr_lengths;

// `steps` is a budget that is used up.
QN_MUST_CHECK qn_status qn_gr_lengths_create(qn_gr_lengths **out, const qn_gr_length_graph *graph,
                                             uint32_t min, uint32_t max, uint64_t *steps,
                                             qn_err *err);
void qn_gr_lengths_destroy(qn_gr_lengths *lengths);
// Whether a text of `chars` characters that has come to `state` can end within the bounds.
bool qn_gr_lengths_fit(const qn_gr_lengths *lengths, uint32_t state, uint32_t chars);
// One character more. Beyond the last number that matters the count stays.
uint32_t qn_gr_lengths_next(const qn_gr_lengths *lengths, uint32_t chars);
// A number of characters from which every text of `longest` more fits exactly as from `chars`; the
// same for all that are far from the bounds.
uint32_t qn_gr_lengths_canon(const qn_gr_lengths *lengths, uint32_t chars, uint32_t longest);

#endif

// Characters that no class of a pattern tells apart, as one letter: automata over a million
// characters become automata over a few letters.
#ifndef QN_GEN_GRAMMAR_LOOK_LETTERS_H
#define QN_GEN_GRAMMAR_LOOK_LETTERS_H

#include "gen/grammar/ast.h"

// Caller storage; {0} is empty.
typedef struct qn_gr_letters {
    const qn_gr_code_range **classes; // borrowed
    size_t *sizes;                    // in ranges
    size_t n_classes, cap_classes, cap_sizes;
    qn_map index; // the ranges -> class
    // From qn_gr_letters_make on:
    size_t n;         // letters
    uint32_t *starts; // of spans, ascending; a span goes to the next start
    uint32_t *letter_of;
    size_t n_spans;
    uint64_t *has; // (class, n_words): bit of a letter
    size_t n_words;
} qn_gr_letters;

void qn_gr_letters_deinit(qn_gr_letters *letters);
// The number of a class (ranges ascending and apart, which stay where they are), new or known.
QN_MUST_CHECK qn_status qn_gr_letters_add(uint32_t *out, qn_gr_letters *letters,
                                          const qn_gr_code_range *ranges, size_t n, qn_err *err);
// Finds the letters. `steps` is a budget that is used up; QN_LIMIT when it is not enough.
QN_MUST_CHECK qn_status qn_gr_letters_make(qn_gr_letters *letters, uint64_t *steps, qn_err *err);
static inline bool qn_gr_letters_has(const qn_gr_letters *l, uint32_t letter_class, size_t letter) {
    return l->has[letter_class * l->n_words + letter / 64] >> (letter % 64) & 1;
}
// The characters of the letters whose bits are set: ranges ascending and apart, to be freed.
QN_MUST_CHECK qn_status qn_gr_letters_ranges(qn_gr_code_range **out, size_t *n,
                                             const qn_gr_letters *letters, const uint64_t *bits,
                                             qn_err *err);

#endif

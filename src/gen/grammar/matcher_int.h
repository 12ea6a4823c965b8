// Inside a matcher: what follows the grammar's own text, and the gate before it.
#ifndef QN_GEN_GRAMMAR_MATCHER_INT_H
#define QN_GEN_GRAMMAR_MATCHER_INT_H

#include "gen/grammar/grammar_int.h"
#include "gen/grammar/states.h"

typedef enum qn_gr_gate_place {
    QN_GATE_START,   // nothing but blanks so far, or the beginning of a tag
    QN_GATE_THINK,   // reasoning
    QN_GATE_TEXT,    // free
    QN_GATE_LEADING, // blanks between reasoning and what the grammar holds for
    QN_GATE_HELD     // the grammar holds
} qn_gr_gate_place;

enum { QN_GATE_LOST = 255 }; // of `opens`: the text is not this tag

// Where a text is. Outside of HELD, and of START where the grammar may hold at once, the matcher's
// state is the start of the grammar.
typedef struct qn_gr_gate_run {
    uint8_t place;
    uint8_t pair; // of THINK
    uint8_t seen; // bytes of the tag that ends the place
    uint8_t opens[QN_GATE_PAIRS];
    uint8_t n_blanks; // of LEADING
    bool has_text;    // other than blanks
} qn_gr_gate_run;

struct qn_matcher {
    const qn_grammar *grammar;
    qn_gr_states *states;
    int32_t now;    // state
    bool has_ended; // an end token came
    qn_gr_gate_run run;
    size_t n_vocab, n_words;
    uint32_t *masks; // reserved: n_masks_max of n_words
    size_t n_masks, n_masks_max, masks_size;
    int32_t *path; // states on the way down the trie
    qn_matcher_stats stats;
};

// --- of the grammar's own text -------------------------------------------------------------------

// The mask of a state; kept.
QN_MUST_CHECK qn_gr_states_result qn_gr_matcher_find_mask(const uint32_t **allowed, qn_matcher *m);
// Goes on by a token if it fits, by its bytes or by itself.
QN_MUST_CHECK qn_gr_states_result qn_gr_matcher_take(bool *fits, qn_matcher *m, int32_t token);
// Sets the bits of a token and of all others with the same text.
void qn_gr_matcher_allow(const qn_matcher *m, uint32_t *mask, int32_t token);
// Room for a mask that is not kept.
uint32_t *qn_gr_matcher_spare(const qn_matcher *m);

// --- gates ---------------------------------------------------------------------------------------

qn_gr_gate_run qn_gr_gate_begin(const qn_gr_gate *gate);
// *allowed is NULL where any token may come.
QN_MUST_CHECK qn_gr_states_result qn_gr_gate_mask(const uint32_t **allowed, qn_matcher *m);
QN_MUST_CHECK qn_gr_states_result qn_gr_gate_take(bool *fits, qn_matcher *m, int32_t token);
bool qn_gr_gate_may_end(const qn_matcher *m);

#endif

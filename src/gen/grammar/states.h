// States of the automaton, made on first use: a state is a set of stacks, a transition leads from a
// state by a byte to a state.
//
// Stacks are lists of cells that share their lower parts; equal cells are one cell, equal sets one
// state, so comparing is comparing numbers. All memory is reserved at the start. When it is full,
// everything but one state is dropped (qn_gr_states_sweep).
#ifndef QN_GEN_GRAMMAR_STATES_H
#define QN_GEN_GRAMMAR_STATES_H

#include "gen/grammar/program.h"

enum {
    QN_STATE_DEAD = 0, // no text goes on from here
    QN_STATES_MAX = 1 << 15,
    QN_CELLS_MAX = 1 << 20,
    QN_STACKS_MAX = 1 << 22,              // in all sets together
    QN_STATE_STACKS_MAX = QN_CHOICES_MAX, // in one set: beyond, a grammar is too ambiguous
    QN_STATE_PLACES_MAX = 1 << 18,        // that are met on the way to one set
    QN_STACK_DEPTH_MAX = 4096,
};

typedef struct qn_gr_cell {
    int32_t node;    // to go on at; ~node of a LOOP: a round of it is under way
    uint32_t count;  // rounds that are over
    uint32_t parent; // 0: the bottom
    uint32_t canon;  // the cell that behaves the same within the longest token
    uint32_t depth;
} qn_gr_cell;

typedef struct qn_gr_state {
    uint32_t first, n; // stacks: tops that read a byte or a token, ascending
    int32_t canon;     // the state that behaves the same within the longest token; -1: not known
    int32_t advance;   // where every plain character leads; see qn_gr_states_advance
    int32_t mask;      // of the matcher; -1: none
    bool may_end;
    bool has_tokens; // a stack waits for a token itself
} qn_gr_state;

typedef struct qn_gr_states qn_gr_states;

typedef enum qn_gr_states_result {
    QN_STATES_OK,
    QN_STATES_FULL,
    QN_STATES_AMBIGUOUS, // a set too large
    QN_STATES_COSTLY     // the steps are used up
} qn_gr_states_result;

QN_MUST_CHECK qn_status qn_gr_states_create(qn_gr_states **out, const qn_gr_program *program,
                                            size_t longest_token, qn_err *err);
void qn_gr_states_destroy(qn_gr_states *states);
// Steps that may be taken from now on, and what is left of them.
void qn_gr_states_allow(qn_gr_states *states, uint64_t steps);
uint64_t qn_gr_states_steps_left(const qn_gr_states *states);
QN_MUST_CHECK qn_gr_states_result qn_gr_states_start(int32_t *out, qn_gr_states *states);
QN_MUST_CHECK qn_gr_states_result qn_gr_states_step(int32_t *out, qn_gr_states *states,
                                                    int32_t from, uint8_t byte);
// Where a token itself leads from a state, together with `by_bytes`, to which its bytes lead
// (perhaps QN_STATE_DEAD). `has_text`: what stands for any other token stands for this one.
QN_MUST_CHECK qn_gr_states_result qn_gr_states_token(int32_t *out, qn_gr_states *states,
                                                     int32_t from, int32_t token, bool has_text,
                                                     int32_t by_bytes);
// For a state with has_tokens: the token or tokens of its stack number i; false if it reads bytes.
bool qn_gr_states_get_token(const qn_gr_states *states, int32_t state, uint32_t i, int32_t *token,
                            bool *negated);
// The state to compute a mask for: counters that are further from their bounds than any token
// reaches are set to one value.
QN_MUST_CHECK qn_gr_states_result qn_gr_states_canon(int32_t *out, qn_gr_states *states,
                                                     int32_t of);
// The one state to which each plain character (any but controls, '"' and '\\') leads; -1 if they
// lead to several.
QN_MUST_CHECK qn_gr_states_result qn_gr_states_advance(int32_t *out, qn_gr_states *states,
                                                       int32_t from);
// Drops everything but `keep`, whose new number is returned. What is kept was there before,
// together with more, so there is room for it.
int32_t qn_gr_states_sweep(qn_gr_states *states, int32_t keep);
qn_gr_state *qn_gr_states_get(qn_gr_states *states, int32_t state);
// Whether a way was ever left out because its stack would be deeper than QN_STACK_DEPTH_MAX.
bool qn_gr_states_was_cut(const qn_gr_states *states);
size_t qn_gr_states_count(const qn_gr_states *states);
size_t qn_gr_states_n_cells(const qn_gr_states *states);
// For loops that step often: row of transitions by class of byte; -1: not known yet.
const int32_t *qn_gr_states_row(const qn_gr_states *states, int32_t state);

#endif

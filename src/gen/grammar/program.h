// A grammar as a program: states that read a byte, call, repeat or return.
//
// A place in a text is a stack: the node that reads the next byte, and below it where to go on when
// the present rule or round of a loop is over. Frames of loops count their rounds.
#ifndef QN_GEN_GRAMMAR_PROGRAM_H
#define QN_GEN_GRAMMAR_PROGRAM_H

#include "gen/grammar/ast.h"

enum { QN_CHOICES_MAX = 1 << 16 }; // of one choice

typedef enum qn_gr_pnode_kind {
    QN_P_RETURN,  // node 0 is the only one
    QN_P_BYTE,    // a byte of set `a`, then `next`
    QN_P_CALL,    // rule entry `a`, then `next`
    QN_P_SPLIT,   // any of `b` nodes from edges[a]
    QN_P_LOOP,    // min to max rounds of `a`, then `next`
    QN_P_COUNTED, // from `a` on characters are counted for lengths[b]; at its end, `next`
    QN_P_TOKEN,   // token `a` (b: any other), then `next`
    // State `min` of the automaton of lengths[a], then `next`; max: a character ends here.
    QN_P_PLACE
} qn_gr_pnode_kind;

typedef struct qn_gr_pnode {
    uint8_t kind;
    int32_t a, b, next;
    uint32_t min, max;
} qn_gr_pnode;

// Caller storage.
typedef struct qn_gr_program {
    qn_gr_pnode *nodes;
    size_t n, cap;
    int32_t *edges;
    size_t n_edges, cap_edges;
    qn_gr_byte_set *sets;
    size_t n_sets;
    int32_t start;
    qn_gr_lengths **lengths; // owned
    size_t n_lengths;
    // Bytes that no set tells apart are one class.
    size_t n_classes;
    uint8_t class_of[256], sample_of[256]; // class of a byte; a byte of a class
} qn_gr_program;

QN_MUST_CHECK qn_status qn_gr_program_init(qn_gr_program *out, qn_gr_ast *ast, int32_t root,
                                           qn_err *err);
void qn_gr_program_deinit(qn_gr_program *program);

#endif

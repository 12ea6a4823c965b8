// What of an answer a grammar holds for. Before it there may be reasoning, which is free; and it
// may hold for nothing but what follows a tag, with free text around it.
#ifndef QN_GEN_GRAMMAR_GATE_H
#define QN_GEN_GRAMMAR_GATE_H

#include "gen/grammar/grammar.h"

enum { QN_GATE_PAIRS = 4, QN_GATE_PIECES = 24, QN_GATE_TAG_MAX = 100 };

// A special token and the text that it stands for in tags.
typedef struct qn_gr_gate_piece {
    const char *text;
    int32_t token;
} qn_gr_gate_piece;

// Texts are borrowed and must outlive the grammar; tags have at most QN_GATE_TAG_MAX bytes.
typedef struct qn_gr_gate {
    // Reasoning that the answer may begin with: the tags around it.
    struct {
        const char *open, *close;
    } pairs[QN_GATE_PAIRS];
    size_t n_pairs;
    bool is_inside; // the answer begins inside the first pair
    // The grammar holds for what follows each of these tags. NULL: for all that follows the
    // reasoning, before which there may be up to QN_GATE_BLANKS blanks.
    const char *call;
    bool is_first; // the tag counts only where the text begins, blanks aside
    bool again;    // after what fits the grammar the text is free; else the answer ends
    qn_gr_gate_piece pieces[QN_GATE_PIECES];
    size_t n_pieces;
} qn_gr_gate;

enum { QN_GATE_BLANKS = 4 };

// The same grammar behind a gate; `inner` is held. One that has a gate already keeps it.
QN_MUST_CHECK qn_status qn_grammar_create_gated(qn_grammar **out, const qn_grammar *inner,
                                                const qn_gr_gate *gate, qn_err *err);

#endif

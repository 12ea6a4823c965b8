// Calls of tools as a grammar: one of some names, and arguments that fit the schema of that name.
//
// How a model writes a call is three texts: before the name, between it and the arguments, after
// them. In these '~' stands for the blanks that JSON may have, and '#' for nine letters or digits.
#ifndef QN_GEN_GRAMMAR_CALLS_H
#define QN_GEN_GRAMMAR_CALLS_H

#include "core/json.h"
#include "gen/grammar/gate.h"

enum { QN_CALL_ID_SIZE = 9 };

typedef struct qn_gr_tool {
    const char *name;
    const json_t *schema; // of the arguments; NULL or null: any object
    size_t index;         // in the list of all, for messages
    bool is_strict;       // opts.lenient is not for it
} qn_gr_tool;

typedef struct qn_gr_calls {
    const char *before, *between, *after;
    bool is_quoted; // the name is the inside of a JSON string; else it is written as it is
    bool is_xml;    // arguments are <parameter=NAME> elements; else a JSON object
    bool is_list;   // calls are the items of one JSON list
    // Tags around a call, or around the list; `close` NULL: none. Where `takes_open`, the text
    // begins with the first of them; else it came before, and the text ends with the second.
    const char *open, *close;
    bool takes_open;
    bool one; // call; else more may follow, in the list or with tags of their own
    // What the text may be in place of calls: a grammar that was made from a text, with takes_open;
    // NULL: nothing
    const qn_grammar *instead;
    const qn_gr_tool *tools;
    size_t n_tools;
    const qn_gr_gate_piece *pieces; // of tags that are special tokens
    size_t n_pieces;
    qn_grammar_opts opts; // all tools together have max_steps
} qn_gr_calls;

// `other` (may be NULL) as for qn_grammar_create_like. A schema that cannot be honoured, or a name
// that cannot be written, is an error that names the tool.
QN_MUST_CHECK qn_status qn_grammar_create_calls(qn_grammar **out, const qn_tokenizer *tokenizer,
                                                const qn_grammar *other, const qn_gr_calls *calls,
                                                qn_err *err);

// What the value of a parameter is in the form of elements.
typedef enum qn_gr_param_kind {
    QN_PARAM_ANY,  // JSON if it is that, else text
    QN_PARAM_TEXT, // as it is written
    QN_PARAM_JSON
} qn_gr_param_kind;
// By the schema of the arguments; references are followed within it.
qn_gr_param_kind qn_gr_param_kind_of(const json_t *schema, const char *name);

#endif

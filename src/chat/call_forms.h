// How models write calls of tools: one table for those who read calls while they come and for the
// grammars that calls are held to.
#ifndef QN_CHAT_CALL_FORMS_H
#define QN_CHAT_CALL_FORMS_H

#include "core/err.h"
#include "core/str.h"

enum { QN_CALL_FORM_ID = 9 }; // letters and digits of '#'

// The text of a call: before the name, between it and the arguments, after them. '~' stands for
// blanks that may be there, '#' for an id.
typedef struct qn_call_form {
    const char *open, *close; // tags around a call; close NULL: the end of the answer
    const char *before, *between, *after;
    bool is_quoted; // the name is the inside of a JSON string
    bool is_xml;    // arguments are <parameter=NAME> elements; else a JSON object
    bool is_list;   // calls are items of a list, which is inside the tags
    bool is_bare;   // no tag: `open` is how a call begins, at the beginning of an answer
    bool is_single; // nothing more is read after one call
} qn_call_form;

// The i-th form; NULL past the last.
const qn_call_form *qn_call_form_at(size_t i);
// The one that models use whose own form is not known: they may have seen it.
const qn_call_form *qn_call_form_usual(void);

// A made-up conversation with one call, as a request of qn_template_render; `generates`: without
// the call, and with the generation prompt instead. Borrowed, constant.
const char *qn_call_form_request(bool generates);
// The form in which a template wrote that call: `text` is what it made of the conversation,
// `prompt` (may be NULL) of the one without the call. NULL: none of the table.
QN_MUST_CHECK qn_status qn_call_form_find(const qn_call_form **out, const char *text,
                                          const char *prompt, qn_err *err);

#endif

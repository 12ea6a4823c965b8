// Parts of an answer, without a tokenizer; and tool calls: the text between a tag and its end ->
// names and arguments.
#ifndef QN_CHAT_PARTS_H
#define QN_CHAT_PARTS_H

#include "chat/call_stream.h"

#include <jansson.h>

// qn_parts_create, with no special tokens; opts->tokenizer is ignored.
QN_MUST_CHECK qn_status qn_parts_make(qn_parts **out, const qn_parts_opts *opts, qn_err *err);
// The i-th token that tags are made of; NULL past the last.
const char *qn_parts_piece(size_t i);
// It is special: decoded text does not have it.
void qn_parts_set_special(qn_parts *parts, size_t i, int32_t id);
// The id of a piece whose token is special; -1: none is. (Of the API, which has tokenizers.)
QN_MUST_CHECK qn_status qn_parts_find_special(int32_t *out, const qn_tokenizer *tokenizer,
                                              const char *piece, qn_err *err);

// The i-th pair of tags around reasoning, *close at its end; NULL past the last. Where `is_alone`,
// nothing but the answer follows the second.
const char *qn_parts_reasoning(size_t i, const char **close, bool *is_alone);
// Whether a prompt ends in a tag that opens reasoning, or closes it; NULL: in none. Blanks aside.
const char *qn_parts_find_open(const char *prompt, size_t size, bool *is_closed);
bool qn_parts_is_reasoning(const qn_parts *parts);
// What looks like a call is text.
void qn_parts_forbid_calls(qn_parts *parts);
// Calls in this form are told while they come, to `fn` instead of as parts; the answer is held to
// the form once a call begins. What there is of a call that is cut comes as text before
// QN_CALL_CUT. `kinds` as for qn_call_stream_create.
QN_MUST_CHECK qn_status qn_parts_set_stream(qn_parts *parts, const qn_call_form *form,
                                            const json_t *kinds, qn_call_fn *fn, void *arg,
                                            qn_err *err);

// The arguments of a call in the form that parts have them; NULL if they are not an object.
QN_MUST_CHECK qn_status qn_calls_print(char **out, qn_str arguments, qn_err *err);
// The value of an element as JSON; NULL if it is neither JSON nor text.
QN_MUST_CHECK qn_status qn_calls_print_value(char **out, qn_str text, qn_err *err);

// Adds to the list `calls` a pair [name, arguments] (arguments: the text of a JSON object) for each
// call in the text. *is_call is false, and the list unfinished, if the text is not of this form;
// only short memory is an error.
typedef qn_status qn_calls_fn(json_t *calls, bool *is_call, qn_str text, qn_err *err);

// {"name": ..., "arguments": {...}}, one or several, also as a list; "parameters" is the same as
// "arguments". Else as below.
qn_calls_fn qn_calls_tagged;
// <function=NAME><parameter=NAME>value</parameter>...</function>. A value is what it says as JSON,
// if it is JSON and no string; else text.
qn_calls_fn qn_calls_xml;
// JSON as above, or NAME[ARGS]{...}, one or several.
qn_calls_fn qn_calls_mistral;
// JSON as above, or a program for the tool `python`.
qn_calls_fn qn_calls_python;
// JSON as above, with arguments.
qn_calls_fn qn_calls_bare;

#endif

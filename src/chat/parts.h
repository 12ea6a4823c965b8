// Parts of an answer, without a tokenizer; and tool calls: the text between a tag and its end ->
// names and arguments.
#ifndef QN_CHAT_PARTS_H
#define QN_CHAT_PARTS_H

#include "core/err.h"
#include "core/str.h"

#include <jansson.h>

// qn_parts_create, with no special tokens; opts->tokenizer is ignored.
QN_MUST_CHECK qn_status qn_parts_make(qn_parts **out, const qn_parts_opts *opts, qn_err *err);
// The i-th token that tags are made of; NULL past the last.
const char *qn_parts_piece(size_t i);
// It is special: decoded text does not have it.
void qn_parts_set_special(qn_parts *parts, size_t i, int32_t id);

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

// The messages of a conversation, as clients send them, brought into the one form that chat
// templates know. Every dialect goes through here.
//
//   role          "developer" becomes "system", the old "function" becomes "tool"
//   content       a text; parts that are all texts are joined by newlines; with images: a list of
//                 {"type": "text"} and {"type": "image_url"} parts. Nothing is "", and null in an
//                 answer that has calls
//   reasoning     "reasoning", "reasoning_content" and "thinking" become "reasoning_content"
//   tool_calls    {"id", "type", "function": {"name", "arguments"}}; arguments that are the text of
//                 a JSON object become that object, other texts stay; none at all are {}
//   name          of a tool's answer: that of the call with its id, if none is given
//
// Leading system messages become one. Images in answers of tools go to the user message after them.
// What else is in a message is kept.
#ifndef QN_SERVER_MESSAGES_H
#define QN_SERVER_MESSAGES_H

#include "core/json.h"
#include "server/problem.h"

typedef struct qn_ask qn_ask;

// *out is owned: a list of messages, none of them shared with `messages`, which stays as it is.
// What cannot be understood is a problem with status 400 that names the message and the field.
QN_MUST_CHECK qn_status qn_messages_normalise(json_t **out, const json_t *messages,
                                              qn_problem *problem);
// The same for a request: ask->messages becomes the normalised `messages`, kept by the ask.
QN_MUST_CHECK qn_status qn_ask_set_messages(qn_ask *ask, const json_t *messages,
                                            qn_problem *problem);
// For templates that reject what others want: makes of normalised messages a list without null, and
// with system messages at the beginning only (later ones are the user's). *out is owned, NULL if
// there is nothing to change.
QN_MUST_CHECK qn_status qn_messages_relax(json_t **out, const json_t *messages, qn_err *err);

// An image's URL as every dialect's parts have it: data:, or http: and https:, which are fetched or
// refused later (fetch.h). `field` names it.
QN_MUST_CHECK qn_status qn_image_url_check(const char *url, const char *field, qn_problem *problem);
// One reference more to a value that is part of another one.
json_t *qn_value_share(const json_t *value);
// The text of a member, borrowed; NULL: it is not there, or no text.
const char *qn_value_text(const json_t *object, const char *name);
// {"role", "content"}; takes `content`. NULL: no memory.
json_t *qn_message_make(const char *role, json_t *content);

#endif

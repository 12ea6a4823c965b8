// A call of a tool while it comes, in a form that it is held to: its name as soon as that is known,
// and the arguments as pieces of a JSON object.
#ifndef QN_CHAT_CALL_STREAM_H
#define QN_CHAT_CALL_STREAM_H

#include "chat/call_forms.h"

#include <jansson.h>

// What is told of a call.
typedef enum qn_call_news {
    QN_CALL_NAME,
    QN_CALL_PIECE, // of its arguments
    QN_CALL_DONE,  // its arguments, all of them, as a JSON text of the usual form
    QN_CALL_CUT    // the call that was told is no call after all: the answer ended in it
} qn_call_news;
// The text is NUL-terminated, too.
typedef void qn_call_fn(void *arg, qn_call_news news, const char *text, size_t size);

// What a parameter in an element is, as integers in {tool: {parameter: what}}; ANY where there is
// none: JSON if it is that, else text.
enum { QN_STREAM_ANY, QN_STREAM_TEXT, QN_STREAM_JSON };

typedef struct qn_call_stream qn_call_stream;

// `kinds` (may be NULL) is borrowed. fn is told with `arg`.
QN_MUST_CHECK qn_status qn_call_stream_create(qn_call_stream **out, const qn_call_form *form,
                                              const json_t *kinds, qn_call_fn *fn, void *arg,
                                              qn_err *err);
void qn_call_stream_destroy(qn_call_stream *stream);
const qn_call_form *qn_call_stream_form(const qn_call_stream *stream);
// A tag that opens calls came.
void qn_call_stream_begin(qn_call_stream *stream);
// The text after it, from where the last call left off; *used: bytes that belong to the calls.
QN_MUST_CHECK qn_status qn_call_stream_feed(size_t *used, qn_call_stream *stream, const char *text,
                                            size_t size, qn_err *err);

typedef enum qn_call_stage {
    QN_STREAM_GOES_ON,
    QN_STREAM_WHOLE, // between calls: there may be another, or the end
    QN_STREAM_OVER,  // no more calls belong to this tag
    QN_STREAM_BROKEN // the text is not of this form
} qn_call_stage;
qn_call_stage qn_call_stream_stage(const qn_call_stream *stream);
// Whether a call was told that is not complete.
bool qn_call_stream_is_open(const qn_call_stream *stream);
// Bytes up to the end of the last call that is complete.
size_t qn_call_stream_n_whole(const qn_call_stream *stream);
// It will not be completed.
void qn_call_stream_cut(qn_call_stream *stream);

#endif

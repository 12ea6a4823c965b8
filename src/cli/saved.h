// Conversations in files: JSON with the messages, the settings, and the model they were made with.
#ifndef QN_CLI_SAVED_H
#define QN_CLI_SAVED_H

#include "cli/talk.h"
#include "core/json.h"

// Whether a conversation could be written there; nothing is.
QN_MUST_CHECK qn_status qn_saved_check(const char *path, qn_err *err);
// Pictures are not kept, only the text of messages; a note says so, once in a talk.
QN_MUST_CHECK qn_status qn_saved_write(qn_talk *talk, const char *path, qn_err *err);
// Writes to the file of --session, if there is one and messages are remembered.
QN_MUST_CHECK qn_status qn_saved_keep(qn_talk *talk, qn_err *err);
// Replaces the messages of the talk; settings are taken where none was typed. Another model than
// the file's, or a file that is none, is an error that changes nothing.
QN_MUST_CHECK qn_status qn_saved_read(qn_talk *talk, const char *path, qn_err *err);

// The two halves of them without the file. `model` says which model it is; NULL: memory was short.
// Printing takes its reference; `path` names the text in errors. Images that were left out are
// added to *n_images.
QN_MUST_CHECK qn_status qn_saved_print(qn_buf *to, size_t *n_images, const qn_talk *talk,
                                       json_t *model, qn_err *err);
QN_MUST_CHECK qn_status qn_saved_take(qn_talk *talk, size_t *n_images, const json_t *model,
                                      const char *text, size_t size, const char *path, qn_err *err);

#endif

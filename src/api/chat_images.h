// The images of a conversation's messages. Messages have a part {"type": "image"} where one is; the
// picture itself is kept beside them.
#ifndef QN_API_CHAT_IMAGES_H
#define QN_API_CHAT_IMAGES_H

#include "core/json.h"

typedef struct qn_chat_image {
    json_t *part;    // of a message; held
    qn_image *image; // held
} qn_chat_image;

// Zeroed is empty.
typedef struct qn_chat_images {
    qn_chat_image *items; // (n)
    size_t n, cap;
} qn_chat_images;

void qn_chat_images_deinit(qn_chat_images *images);
// Puts images before the text of a new message, whose content becomes a list of parts.
QN_MUST_CHECK qn_status qn_chat_images_add(qn_chat_images *images, json_t *message,
                                           const qn_image *const *added, size_t n, qn_err *err);
// Decodes the data URLs of messages from outside. `what` is how errors call them.
QN_MUST_CHECK qn_status qn_chat_images_read(qn_chat_images *images, const json_t *messages,
                                            const char *what, const qn_image_opts *opts,
                                            qn_err *err);
// Drops the images of messages that are gone.
void qn_chat_images_forget(qn_chat_images *images);
// The images of the first n messages in their order, each held for the caller; the list is owned
// (qn_free).
QN_MUST_CHECK qn_status qn_chat_images_list(const qn_image ***out, size_t *n_out,
                                            const qn_chat_images *images, const json_t *messages,
                                            size_t n, qn_err *err);
// The text of a list of parts that has images and one text; NULL: it has others.
const json_t *qn_chat_find_text(const json_t *parts);

#endif

// Images of an engine: its vision tower, and the rows of images that it has encoded.
//
// The tower is the one of an mmproj file, opened with the engine, or that of the model's own
// checkpoint, which is loaded when the first image comes. Encoded rows are kept by the content of
// the image, the least recently used go first. Any thread may call.
#ifndef QN_RUNTIME_IMAGES_H
#define QN_RUNTIME_IMAGES_H

#include "runtime/vision.h"

#include <stdatomic.h>

// Rows of an image, shared by everyone who holds them. Constant.
typedef struct qn_encoded {
    _Atomic int64_t holders;
    uint64_t hash; // of the image's content, different in every engine; 0: unknown
    uint64_t key;  // of its rows, different in every engine
    qn_vision_rows rows;
} qn_encoded;
qn_encoded *qn_encoded_hold(qn_encoded *encoded);
void qn_encoded_drop(qn_encoded *encoded); // NULL is fine

typedef struct qn_images qn_images;

// What a tower that was given is refused for, before any weights are read.
QN_MUST_CHECK qn_status qn_images_check(const qn_engine *engine, qn_err *err);
QN_MUST_CHECK qn_status qn_images_create(qn_images **out, const qn_engine *engine, qn_err *err);
void qn_images_destroy(qn_images *images);

// The tower; a model without one is an error.
QN_MUST_CHECK qn_status qn_images_vision(const qn_vision **out, const qn_engine *engine,
                                         qn_err *err);
// Which token stands in a sequence where an image's rows are.
QN_MUST_CHECK qn_status qn_images_token(int32_t *out, const qn_engine *engine, qn_err *err);
// The rows of an image, held for the caller: encoded now (`until` as for qn_vision_encode), or kept
// from before.
QN_MUST_CHECK qn_status qn_images_encode(qn_encoded **out, const qn_engine *engine,
                                         const qn_image *image, qn_until *until, qn_err *err);

// Rows that come from elsewhere (a saved session), held for the caller; they are moved.
QN_MUST_CHECK qn_status qn_images_adopt(qn_encoded **out, const qn_engine *engine,
                                        qn_vision_rows *rows, qn_err *err);
// A hash of bytes that stand in a sequence, different in every engine.
uint64_t qn_images_hash(const qn_engine *engine, const void *bytes, size_t n, uint64_t seed);

typedef struct qn_images_counts {
    int64_t kept, bytes;   // images whose rows are kept; of them
    int64_t hits, encoded; // images that were found; that were encoded
} qn_images_counts;
qn_images_counts qn_images_get_counts(const qn_engine *engine);

#endif

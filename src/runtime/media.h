// Images in a sequence of tokens: where they are and their rows, and what follows from that for
// steps: given rows, rope positions, keys of the prefix cache.
#ifndef QN_RUNTIME_MEDIA_H
#define QN_RUNTIME_MEDIA_H

#include "runtime/images.h"
#include "vision/positions.h"

// Caller storage; zeroed is a sequence without images. Release with qn_media_deinit.
typedef struct qn_media {
    qn_image_span *spans; // (n) ascending and apart
    qn_encoded **rows;    // (n) held
    size_t n, cap;
} qn_media;

// Fails where the model cannot be given rows.
QN_MUST_CHECK qn_status qn_media_check(const qn_engine *engine, qn_err *err);
// Encodes images and finds their places: the image tokens among the ids, in order, each image as
// many neighbouring ones as it has rows. Another number of them is an error with both numbers.
QN_MUST_CHECK qn_status qn_media_init(qn_media *out, const qn_engine *engine, const int32_t *ids,
                                      size_t n, const qn_image *const *images, size_t n_images,
                                      qn_err *err);
void qn_media_deinit(qn_media *media);
// Room for n images; then the media of another sequence (NULL: none), which cannot fail.
QN_MUST_CHECK qn_status qn_media_reserve(qn_media *media, size_t n, qn_err *err);
void qn_media_copy(qn_media *to, const qn_media *from);
// Only the first n tokens of the sequence are left.
void qn_media_cut(qn_media *media, size_t n);

// Keys of the rows of images among the first n, in place of those of tokens: by what is seen, and
// others for each `root`. No token has such a key.
void qn_media_set_keys(uint64_t *keys, size_t n, uint64_t root, const qn_media *media);

// Of rows first ... first + n - 1, how many are given.
int64_t qn_media_count(const qn_media *media, int64_t first, int64_t n);
// Their rope positions (n, 4), and, unless `extra_row` is NULL, the given rows among them: copied
// to `extra` from its row `at` on, which `extra_row` (n) names; -1: not given. Returns how many.
int64_t qn_media_fill(const qn_media *media, int64_t first, int64_t n, int32_t *pos,
                      int32_t *extra_row, float *extra, int64_t at);

#endif

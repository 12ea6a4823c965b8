// What a sequence is computed from besides its tokens: images (where they are, and their rows), or
// rows and rope positions that the caller gives; and what follows from that for steps and for the
// keys of the prefix cache.
#ifndef QN_RUNTIME_MEDIA_H
#define QN_RUNTIME_MEDIA_H

#include "runtime/images.h"
#include "vision/positions.h"

// Rows and positions of a prompt that were given, shared by everyone who holds them. Constant.
typedef struct qn_given_input {
    _Atomic int64_t holders;
    int64_t n; // tokens of the prompt
    int64_t width;
    float *rows;    // (rows, width)
    int32_t *row;   // (n) the row of a token; -1: its own embedding
    int32_t *pos;   // (n, 4) as a step has them; NULL: they are counted
    int32_t *after; // (n) the position of a token that follows; with `pos`
    uint64_t *keys; // (n) hashes of what is given for a token; 0: nothing
} qn_given_input;

// Caller storage; zeroed is a sequence without any of it. Release with qn_media_deinit.
typedef struct qn_media {
    qn_image_span *spans; // (n) ascending and apart
    qn_encoded **rows;    // (n) held
    size_t n, cap;
    qn_given_input *given; // held; NULL: none
    int64_t n_given;       // tokens of it that are left
} qn_media;

static inline bool qn_media_is_plain(const qn_media *media) {
    return media->n == 0 && !media->given;
}

// Fails where the model cannot be given rows.
QN_MUST_CHECK qn_status qn_media_check(const qn_engine *engine, qn_err *err);

// Encodes images and finds their places: the image tokens among the ids, in order, each image as
// many neighbouring ones as it has rows. Another number of them is an error with both numbers.
// `until` as for qn_vision_encode.
QN_MUST_CHECK qn_status qn_media_init(qn_media *out, const qn_engine *engine, const int32_t *ids,
                                      size_t n, const qn_image *const *images, size_t n_images,
                                      qn_until *until, qn_err *err);
// The same for rows and positions that are given (NULL: none) for n ids; they are copied.
QN_MUST_CHECK qn_status qn_media_init_given(qn_media *out, const qn_engine *engine,
                                            const int32_t *ids, size_t n, const qn_given *given,
                                            qn_err *err);
// Either of both, as the options of a row say; both are an error.
QN_MUST_CHECK qn_status qn_media_init_row(qn_media *out, const qn_engine *engine,
                                          const int32_t *ids, size_t n, const qn_row_opts *opts,
                                          qn_until *until, qn_err *err);
void qn_media_deinit(qn_media *media);
// Room for n images; then the media of another sequence (NULL: none), which cannot fail.
QN_MUST_CHECK qn_status qn_media_reserve(qn_media *media, size_t n, qn_err *err);
void qn_media_copy(qn_media *to, const qn_media *from);
// Only the first n tokens of the sequence are left.
void qn_media_cut(qn_media *media, size_t n);

// Keys of the rows of images, and of what is given, among the first n, in place of those of tokens:
// by what is seen, and others for each `root`. No token has such a key.
void qn_media_set_keys(uint64_t *keys, size_t n, uint64_t root, const qn_media *media);

// Of rows first ... first + n - 1, how many are given.
int64_t qn_media_count(const qn_media *media, int64_t first, int64_t n);
// Their rope positions (n, 4), and, unless `extra_row` is NULL, the given rows among them: copied
// to `extra` from its row `at` on, which `extra_row` (n) names; -1: not given. Returns how many.
int64_t qn_media_fill(const qn_media *media, int64_t first, int64_t n, int32_t *pos,
                      int32_t *extra_row, float *extra, int64_t at);

#endif

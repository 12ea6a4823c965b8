// Pictures: PNG, JPEG and WebP files as rows of red, green and blue.
//
// Files are hostile: the first bytes say which kind a file is, its header how large the picture is,
// and both are checked against the limits before a pixel is decoded. Nothing is printed.
//
// What the reference's processor does with a picture is done here too: alpha is dropped (not
// blended), grey and palettes become colours, CMYK is taken as inverted, EXIF orientation is
// applied, and of an animation the first picture is taken. 16 bits become the upper 8.
#ifndef QN_VISION_IMAGE_H
#define QN_VISION_IMAGE_H

#include "core/err.h"

#include <stdatomic.h>

// Limits where a caller names none.
enum { QN_IMAGE_BYTES = 64 << 20, QN_IMAGE_PIXELS = 1 << 26 };

// Caller storage; zeroed is empty. Release with qn_image_deinit. Those of callers of the library
// (qn_image_open and so on) are counted.
struct qn_image {
    int64_t width, height;
    unsigned char *rgb;      // (height, width, 3)
    _Atomic int64_t holders; // of a counted one
};

typedef struct qn_image_limits {
    int64_t bytes, pixels;                    // 0: QN_IMAGE_BYTES, QN_IMAGE_PIXELS
    bool (*admit)(void *arg, int64_t pixels); // as in qn_image_opts
    void *admit_arg;
} qn_image_limits;

// A file's bytes; `limits` may be NULL.
QN_MUST_CHECK qn_status qn_image_decode(qn_image *out, const void *data, size_t size,
                                        const qn_image_limits *limits, qn_err *err);
// A file by its name.
QN_MUST_CHECK qn_status qn_image_load(qn_image *out, const char *path,
                                      const qn_image_limits *limits, qn_err *err);
void qn_image_deinit(qn_image *image);
// One holder more of a counted image; qn_image_destroy is one fewer.
qn_image *qn_image_hold(const qn_image *image);

// A hash of what is seen: of the sizes and all pixels. Equal pictures have equal hashes, whatever
// files they came from.
uint64_t qn_image_hash(const qn_image *image);
// The same with a seed: who does not know it cannot make two pictures of one hash.
uint64_t qn_image_hash_seeded(const qn_image *image, uint64_t seed);

#endif

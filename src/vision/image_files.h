// The decoders of image files: one file each, all of the same form.
#ifndef QN_VISION_IMAGE_FILES_H
#define QN_VISION_IMAGE_FILES_H

#include "vision/image.h"

typedef struct qn_image_file {
    const unsigned char *data;
    size_t size;
    int64_t max_pixels;
    bool (*admit)(void *arg, int64_t pixels); // asked before they take memory; NULL: none
    void *admit_arg;
} qn_image_file;

// Fills *out, zeroed, as the file has it: not turned yet. *orientation: EXIF's, 1 to 8. The caller
// releases *out in any case.
typedef qn_status qn_decode_fn(qn_image *out, int *orientation, const qn_image_file *file,
                               qn_err *err);
qn_decode_fn qn_decode_png, qn_decode_jpeg, qn_decode_webp;

// Checks the sizes of a header and takes memory for the pixels, zeroed.
QN_MUST_CHECK qn_status qn_image_init(qn_image *out, int64_t width, int64_t height,
                                      const qn_image_file *file, qn_err *err);

// Orientation (1 to 8) of an EXIF block, with or without "Exif\0\0" in front of it; 1 where there
// is none.
int qn_exif_orientation(const unsigned char *data, size_t size);
// Turns a picture as its orientation says. The picture is untouched on failure.
QN_MUST_CHECK qn_status qn_image_turn(qn_image *image, int orientation, qn_err *err);

#endif

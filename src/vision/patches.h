// From a picture to what a vision tower reads: the size that fits its patches, numbers around 0,
// and patches in the order in which the merger takes them together.
#ifndef QN_VISION_PATCHES_H
#define QN_VISION_PATCHES_H

#include "vision/image.h"

enum { QN_VISION_CHANNELS = 3 };

// How a model wants its pictures (preprocessor_config.json, or clip.vision.* in GGUF).
typedef struct qn_patch_rules {
    int64_t patch, merge;           // pixels of a patch's side; patches of a merged one's side
    int64_t min_pixels, max_pixels; // of a resized picture
    float mean[QN_VISION_CHANNELS], deviation[QN_VISION_CHANNELS];
} qn_patch_rules;

// Patches of a picture. Caller storage; release with qn_patches_deinit.
typedef struct qn_patches {
    int64_t rows, columns; // of the grid; whole merged patches
    int64_t width;         // numbers of a patch: channels * patch * patch
    // (rows * columns, channels, patch, patch): merged patches row by row, and inside one its
    // patches row by row.
    float *data;
} qn_patches;

// The sizes that a picture is resized to: multiples of patch * merge near its own, with its aspect
// ratio, and within the limits of the rules. Refused: a ratio over 200.
QN_MUST_CHECK qn_status qn_patch_sizes(int64_t *width, int64_t *height, int64_t image_width,
                                       int64_t image_height, const qn_patch_rules *rules,
                                       qn_err *err);
QN_MUST_CHECK qn_status qn_patches_init(qn_patches *out, const qn_image *image,
                                        const qn_patch_rules *rules, qn_err *err);
void qn_patches_deinit(qn_patches *patches);

#endif

// Any bytes as an image: refused with a message, or pixels and patches within the limits.
#include "vision/patches.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// Small, so that an input takes little time.
static const qn_image_limits limits = {.bytes = 1 << 16, .pixels = 1 << 16};
static const qn_patch_rules rules = {.patch = 4,
                                     .merge = 2,
                                     .min_pixels = 64,
                                     .max_pixels = 4096,
                                     .mean = {0.5f, 0.5f, 0.5f},
                                     .deviation = {0.5f, 0.5f, 0.5f}};

static void cut(const qn_image *image) {
    qn_err err = {0};
    qn_patches p;
    if (qn_patches_init(&p, image, &rules, &err) != QN_OK) {
        if (!err.message[0]) abort();
        return;
    }
    if (p.rows % rules.merge || p.columns % rules.merge || p.width != 48) abort();
    for (int64_t i = 0; i < p.rows * p.columns * p.width; i++) {
        if (!(fabsf(p.data[i]) <= 1)) abort();
    }
    qn_patches_deinit(&p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qn_err err = {0};
    qn_image image = {.width = -1};
    uint8_t *bytes = malloc(size ? size : 1); // of exactly this size: any byte past it is seen
    if (!bytes) abort();
    memcpy(bytes, data, size);
    if (qn_image_decode(&image, bytes, size, &limits, &err) == QN_OK) {
        if (image.width < 1 || image.height < 1 || image.width * image.height > limits.pixels)
            abort();
        cut(&image);
        qn_image_deinit(&image);
    } else if (image.width != -1 || !err.message[0]) {
        abort();
    }
    free(bytes);
    return 0;
}

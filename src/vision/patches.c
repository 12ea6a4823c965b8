#include "vision/patches.h"

#include "core/mem.h"
#include "vision/resize.h"

#include <math.h>

enum { MAX_RATIO = 200, MAX_SIDE = 1 << 24 };

static int64_t times(double n, int64_t factor) { return (int64_t)n * factor; }

// Halves are rounded to even numbers, as Python does.
qn_status qn_patch_sizes(int64_t *width, int64_t *height, int64_t image_width, int64_t image_height,
                         const qn_patch_rules *rules, qn_err *err) {
    const int64_t f = rules->patch * rules->merge;
    const double w = (double)image_width, h = (double)image_height;
    if (image_width < 1 || image_height < 1 || image_width > MAX_SIDE || image_height > MAX_SIDE)
        return QN_FAIL(err, LIMIT, "an image of %lld x %lld pixels, max %d each",
                       (long long)image_width, (long long)image_height, MAX_SIDE);
    if (fmax(w, h) / fmin(w, h) > MAX_RATIO)
        return QN_FAIL(err, LIMIT,
                       "an image of %lld x %lld pixels, the longer side may have at most "
                       "%d times the shorter",
                       (long long)image_width, (long long)image_height, MAX_RATIO);
    int64_t to_w = times(nearbyint(w / (double)f), f), to_h = times(nearbyint(h / (double)f), f);
    if (to_w * to_h > rules->max_pixels) {
        const double shrink = sqrt(h * w / (double)rules->max_pixels);
        to_w = qn_max(f, times(floor(w / shrink / (double)f), f));
        to_h = qn_max(f, times(floor(h / shrink / (double)f), f));
    } else if (to_w * to_h < rules->min_pixels) {
        const double grow = sqrt((double)rules->min_pixels / (h * w));
        to_w = times(ceil(w * grow / (double)f), f);
        to_h = times(ceil(h * grow / (double)f), f);
    }
    *width = qn_max(to_w, f); // min_pixels may be 0
    *height = qn_max(to_h, f);
    return QN_OK;
}

// Values of the 256 levels of each channel: (level - 255 mean) / (255 deviation).
static void fill_levels(float levels[QN_VISION_CHANNELS][256], const qn_patch_rules *rules) {
    for (int c = 0; c < QN_VISION_CHANNELS; c++) {
        const float mean = 255.0f * rules->mean[c], deviation = 255.0f * rules->deviation[c];
        for (int i = 0; i < 256; i++) levels[c][i] = ((float)i - mean) / deviation;
    }
}

// The patch whose upper left pixel is `from`.
static void fill_patch(float *to, const unsigned char *from, int64_t stride, int64_t size,
                       float levels[QN_VISION_CHANNELS][256]) {
    for (int c = 0; c < QN_VISION_CHANNELS; c++) {
        for (int64_t y = 0; y < size; y++) {
            for (int64_t x = 0; x < size; x++)
                *to++ = levels[c][from[y * stride + x * QN_VISION_CHANNELS + c]];
        }
    }
}

static void fill_patches(const qn_patches *p, const qn_image *image, const qn_patch_rules *rules) {
    float levels[QN_VISION_CHANNELS][256];
    const int64_t merge = rules->merge, blocks = p->columns / merge;
    const int64_t stride = image->width * QN_VISION_CHANNELS;
    fill_levels(levels, rules);
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        const int64_t block = i / (merge * merge), inside = i % (merge * merge);
        const int64_t row = block / blocks * merge + inside / merge;
        const int64_t column = block % blocks * merge + inside % merge;
        fill_patch(p->data + i * p->width,
                   image->rgb + (row * stride + column * QN_VISION_CHANNELS) * rules->patch, stride,
                   rules->patch, levels);
    }
}

qn_status qn_patches_init(qn_patches *out, const qn_image *image, const qn_patch_rules *rules,
                          qn_err *err) {
    int64_t width, height;
    qn_image resized = {0};
    QN_TRY(qn_patch_sizes(&width, &height, image->width, image->height, rules, err));
    QN_TRY(qn_image_resize(&resized, image, width, height, err));
    qn_patches p = {.rows = height / rules->patch,
                    .columns = width / rules->patch,
                    .width = QN_VISION_CHANNELS * rules->patch * rules->patch};
    p.data = qn_alloc((size_t)(p.rows * p.columns), (size_t)p.width * sizeof *p.data);
    if (p.data) fill_patches(&p, &resized, rules);
    qn_image_deinit(&resized);
    if (!p.data) return QN_NOMEM(err, "patches");
    *out = p;
    return QN_OK;
}

void qn_patches_deinit(qn_patches *patches) {
    qn_free(patches->data);
    *patches = (qn_patches){0};
}

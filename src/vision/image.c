#include "vision/image.h"

#include "core/file.h"
#include "core/mem.h"
#include "vision/image_files.h"

#include <string.h>
#include <xxhash.h>

enum { CHANNELS = 3 };

// A kind of file: bytes that must be there, from `at` on.
typedef struct image_kind {
    const char *name;
    size_t at, n;
    const char *magic;
    qn_decode_fn *decode;
} image_kind;

static const image_kind kinds[] = {
    {"PNG", 0, 8, "\x89PNG\r\n\x1a\n", qn_decode_png},
    {"JPEG", 0, 3, "\xff\xd8\xff", qn_decode_jpeg},
    {"WebP", 8, 4, "WEBP", qn_decode_webp},
};

static const image_kind *find_kind(const unsigned char *data, size_t size) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        const image_kind *kind = &kinds[i];
        if (size >= kind->at + kind->n && memcmp(data + kind->at, kind->magic, kind->n) == 0)
            return kind;
    }
    return NULL;
}

qn_status qn_image_init(qn_image *out, int64_t width, int64_t height, const qn_image_file *file,
                        qn_err *err) {
    int64_t n = 0;
    if (width < 1 || height < 1)
        return QN_FAIL(err, FORMAT, "%lld x %lld pixels", (long long)width, (long long)height);
    if (!qn_i64_mul(&n, width, height) || n > file->max_pixels || n > INT64_MAX / CHANNELS)
        return QN_FAIL(err, LIMIT, "%lld x %lld pixels, max %lld", (long long)width,
                       (long long)height, (long long)file->max_pixels);
    if (file->admit && !file->admit(file->admit_arg, n))
        return QN_FAIL(err, MEMORY, "no memory for %lld x %lld pixels now", (long long)width,
                       (long long)height);
    unsigned char *rgb = qn_alloc((size_t)n, CHANNELS);
    if (!rgb) return QN_NOMEM(err, "pixels");
    *out = (qn_image){.width = width, .height = height, .rgb = rgb};
    return QN_OK;
}

void qn_image_deinit(qn_image *image) {
    qn_free(image->rgb);
    *image = (qn_image){0};
}

static int64_t limit_of(int64_t asked, int64_t normal) { return asked > 0 ? asked : normal; }

qn_status qn_image_decode(qn_image *out, const void *data, size_t size,
                          const qn_image_limits *limits, qn_err *err) {
    const int64_t max_bytes = limit_of(limits ? limits->bytes : 0, QN_IMAGE_BYTES);
    const qn_image_file file = {.data = data,
                                .size = size,
                                .max_pixels =
                                    limit_of(limits ? limits->pixels : 0, QN_IMAGE_PIXELS),
                                .admit = limits ? limits->admit : NULL,
                                .admit_arg = limits ? limits->admit_arg : NULL};
    qn_image image = {0};
    int orientation = 1;
    if ((uint64_t)size > (uint64_t)max_bytes)
        return QN_FAIL(err, LIMIT, "an image of %zu bytes, max %lld", size, (long long)max_bytes);
    const image_kind *kind = size ? find_kind(data, size) : NULL;
    if (!kind)
        return QN_FAIL(err, FORMAT, "an image of %zu bytes that is not PNG, JPEG or WebP", size);
    qn_status status = kind->decode(&image, &orientation, &file, err);
    if (!status) status = qn_image_turn(&image, orientation, err);
    if (status) {
        qn_image_deinit(&image);
        return qn_err_prefix(err, status, "%s image", kind->name);
    }
    *out = image;
    return QN_OK;
}

qn_status qn_image_load(qn_image *out, const char *path, const qn_image_limits *limits,
                        qn_err *err) {
    char *data = NULL;
    size_t size = 0;
    const int64_t max_bytes = limit_of(limits ? limits->bytes : 0, QN_IMAGE_BYTES);
    QN_TRY(qn_file_load(&data, &size, path, max_bytes, err));
    const qn_status status = qn_image_decode(out, data, size, limits, err);
    qn_free(data);
    return status ? qn_err_prefix(err, status, "%s", path) : QN_OK;
}

uint64_t qn_image_hash_seeded(const qn_image *image, uint64_t seed) {
    const int64_t sizes[] = {image->width, image->height};
    return XXH3_64bits_withSeed(image->rgb, (size_t)(image->width * image->height * CHANNELS),
                                XXH3_64bits_withSeed(sizes, sizeof sizes, seed));
}

uint64_t qn_image_hash(const qn_image *image) { return qn_image_hash_seeded(image, 0); }

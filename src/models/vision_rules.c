// How a model wants its images: preprocessor_config.json of a checkpoint, clip.vision.* of GGUF.
#include "core/file.h"
#include "core/json.h"
#include "core/mem.h"
#include "models/vision_tower.h"

#include <math.h>

enum { TEXT_MAX = 1 << 20, MAX_PIXELS = 1 << 26 };

// Pixels where a checkpoint says nothing: the defaults of the reference's processor.
enum { HF_MIN = 56 * 56, HF_MAX = 28 * 28 * 1280 };
// Where a GGUF file says nothing: llama.cpp's, in rows that an image becomes.
enum { GGUF_MIN_ROWS = 8, GGUF_MAX_ROWS = 4096 };

static qn_status check_rules(const qn_patch_rules *r, qn_err *err) {
    if (r->min_pixels < 0 || r->max_pixels < 1 || r->min_pixels > r->max_pixels ||
        r->max_pixels > MAX_PIXELS)
        return QN_FAIL(err, FORMAT, "images of %lld to %lld pixels, max %d",
                       (long long)r->min_pixels, (long long)r->max_pixels, MAX_PIXELS);
    for (int i = 0; i < QN_VISION_CHANNELS; i++) {
        if (!(r->deviation[i] > 0)) // pixels are divided by it
            return QN_FAIL(err, FORMAT, "image_std[%d] is %g, want more than 0", i,
                           (double)r->deviation[i]);
    }
    return QN_OK;
}

// --- GGUF ----------------------------------------------------------------------------------------

static qn_status gguf_channels(float *to, const qn_config_reader *reader, const char *name,
                               qn_err *err) {
    const qn_key *key = qn_config_find(reader, name, NULL);
    if (!key) return QN_OK;
    const bool is_list = qn_key_is_array_of(key, QN_KEY_FLOAT) && key->n == QN_VISION_CHANNELS;
    for (size_t i = 0; i < QN_VISION_CHANNELS && is_list; i++)
        to[i] = (float)qn_key_float_at(key, i);
    for (int i = 0; i < QN_VISION_CHANNELS; i++) {
        if (!is_list || !isfinite(to[i]))
            return QN_FAIL(err, FORMAT, "%s is not a list of %d numbers", key->name.data,
                           QN_VISION_CHANNELS);
    }
    return QN_OK;
}

static qn_status read_gguf(qn_patch_rules *r, const qn_source *source, qn_err *err) {
    const int64_t row = r->patch * r->patch * r->merge * r->merge;
    const qn_config_reader reader = {.source = source, .arch = "clip"};
    const qn_config_row rows[] = {
        QN_INT_ROW(qn_patch_rules, min_pixels, .gguf = "vision.image_min_pixels", .min = 0,
                   .max = MAX_PIXELS, .is_optional = true,
                   .fallback = (double)(GGUF_MIN_ROWS * row)),
        QN_INT_ROW(qn_patch_rules, max_pixels, .gguf = "vision.image_max_pixels", .min = 1,
                   .max = MAX_PIXELS, .is_optional = true,
                   .fallback = (double)qn_min(GGUF_MAX_ROWS * row, MAX_PIXELS)),
    };
    QN_TRY(qn_config_fill(r, rows, 2, &reader, err));
    QN_TRY(gguf_channels(r->mean, &reader, "vision.image_mean", err));
    return gguf_channels(r->deviation, &reader, "vision.image_std", err);
}

// --- preprocessor_config.json --------------------------------------------------------------------

#define FILE_NAME "preprocessor_config.json"

// The file; NULL if there is none.
static qn_status load_file(json_t **out, const qn_source *source, qn_err *err) {
    const qn_location *folder = qn_source_place(source);
    char *path = qn_path_join(folder->path, FILE_NAME), *text = NULL;
    size_t size = 0;
    qn_status status = QN_OK;
    if (!path) return QN_NOMEM(err, "path");
    if (qn_files_has(folder->files, path)) {
        QN_TRY_TO(done, qn_files_load(&text, &size, folder->files, path, TEXT_MAX, err));
        QN_TRY_TO(done, qn_json_parse(out, text, size, true, path, err));
    }

done:
    qn_free(text);
    qn_free(path);
    return status;
}

static qn_status file_channels(float *to, const json_t *object, const char *key, qn_err *err) {
    const json_t *list = json_object_get(object, key);
    if (list && json_array_size(list) != QN_VISION_CHANNELS)
        return QN_FAIL(err, FORMAT, FILE_NAME ": %s is not a list of %d numbers", key,
                       QN_VISION_CHANNELS);
    for (size_t i = 0; list && i < QN_VISION_CHANNELS; i++) {
        const json_t *value = json_array_get(list, i);
        to[i] = (float)json_number_value(value);
        if (!json_is_number(value) || !isfinite(to[i]))
            return QN_FAIL(err, FORMAT, FILE_NAME ": %s[%zu] is not a number", key, i);
    }
    return QN_OK;
}

// A whole number in an object; absent or null leaves *to as it is.
static qn_status file_number(int64_t *to, const json_t *object, const char *key, qn_err *err) {
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value)) return QN_OK;
    const double number = json_number_value(value); // numbers are read as reals
    if (!json_is_number(value) || number != floor(number) || fabs(number) > INT32_MAX)
        return QN_FAIL(err, FORMAT, FILE_NAME ": %s is not a whole number", key);
    *to = (int64_t)number;
    return QN_OK;
}

// What the file says of the work itself, and what we do.
static qn_status check_steps(const json_t *object, const qn_patch_rules *r, qn_err *err) {
    static const char *const steps[] = {"do_resize", "do_rescale", "do_normalize",
                                        "do_convert_rgb"};
    int64_t resample = 3, patch = r->patch, merge = r->merge, taps = QN_VISION_TAPS;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if (json_is_false(json_object_get(object, steps[i])))
            return QN_FAIL(err, UNSUPPORTED, FILE_NAME ": %s is false, supported: true", steps[i]);
    }
    const json_t *factor = json_object_get(object, "rescale_factor");
    if (json_is_number(factor) && fabs(json_number_value(factor) * 255 - 1) > 1e-6)
        return QN_FAIL(err, UNSUPPORTED, FILE_NAME ": rescale_factor %g, supported: 1/255",
                       json_number_value(factor));
    QN_TRY(file_number(&resample, object, "resample", err));
    QN_TRY(file_number(&patch, object, "patch_size", err));
    QN_TRY(file_number(&merge, object, "merge_size", err));
    QN_TRY(file_number(&taps, object, "temporal_patch_size", err));
    if (resample != 3)
        return QN_FAIL(err, UNSUPPORTED, FILE_NAME ": resample %lld, supported: 3 (bicubic)",
                       (long long)resample);
    if (patch != r->patch || merge != r->merge || taps != QN_VISION_TAPS)
        return QN_FAIL(err, FORMAT,
                       FILE_NAME ": patch_size %lld, merge_size %lld, temporal_patch_size %lld, "
                                 "the tower has %lld, %lld, %d",
                       (long long)patch, (long long)merge, (long long)taps, (long long)r->patch,
                       (long long)r->merge, QN_VISION_TAPS);
    return QN_OK;
}

static qn_status read_file(qn_patch_rules *r, const json_t *object, qn_err *err) {
    const json_t *size = json_object_get(object, "size");
    r->min_pixels = HF_MIN;
    r->max_pixels = HF_MAX;
    QN_TRY(file_channels(r->mean, object, "image_mean", err));
    QN_TRY(file_channels(r->deviation, object, "image_std", err));
    QN_TRY(file_number(&r->min_pixels, size, "shortest_edge", err));
    QN_TRY(file_number(&r->max_pixels, size, "longest_edge", err));
    QN_TRY(file_number(&r->min_pixels, object, "min_pixels", err));
    QN_TRY(file_number(&r->max_pixels, object, "max_pixels", err));
    return check_steps(object, r, err);
}

qn_status qn_vision_rules_read(qn_patch_rules *out, const qn_vision_config *config,
                               const qn_source *source, qn_err *err) {
    qn_patch_rules r = {.patch = config->patch, .merge = config->merge};
    json_t *object = NULL;
    for (int i = 0; i < QN_VISION_CHANNELS; i++) r.mean[i] = r.deviation[i] = 0.5f;
    const bool is_gguf = qn_source_get_kind(source) == QN_SOURCE_GGUF;
    if (!is_gguf) QN_TRY(load_file(&object, source, err));
    qn_status status = is_gguf ? read_gguf(&r, source, err) : read_file(&r, object, err);
    json_decref(object);
    if (!status) status = check_rules(&r, err);
    if (!status) *out = r;
    return status;
}

// qn_image, and images of an engine. See quern.h for the contracts.
#include "core/mem.h"
#include "core/structs.h"
#include "runtime/media.h"

#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static qn_status read_opts(qn_image_limits *out, const qn_image_opts *opts, qn_err *err) {
    qn_image_opts o;
    QN_TRY(QN_OPTS_READ(qn_image_opts, &o, opts, err));
    if (o.max_bytes < 0 || o.max_pixels < 0)
        return QN_FAIL(err, ARGUMENT, "images of at most %lld bytes, %lld pixels",
                       (long long)o.max_bytes, (long long)o.max_pixels);
    *out = (qn_image_limits){
        .bytes = o.max_bytes, .pixels = o.max_pixels, .admit = o.admit, .admit_arg = o.admit_arg};
    return QN_OK;
}

// Makes a decoded picture a counted one.
static qn_status hand_over(qn_image **out, qn_image *from, qn_err *err) {
    qn_image *image = qn_alloc(1, sizeof *image);
    if (!image) {
        qn_image_deinit(from);
        return QN_NOMEM(err, "image");
    }
    image->width = from->width;
    image->height = from->height;
    image->rgb = from->rgb;
    atomic_init(&image->holders, 1);
    *out = image;
    return QN_OK;
}

qn_status qn_image_open(qn_image **out, const char *path, const qn_image_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(path, err);
    qn_image_limits limits;
    qn_image image = {0};
    QN_TRY(read_opts(&limits, opts, err));
    QN_TRY(qn_image_load(&image, path, &limits, err));
    return hand_over(out, &image, err);
}

qn_status qn_image_create(qn_image **out, const void *data, size_t size, const qn_image_opts *opts,
                          qn_err *err) {
    QN_NEED(out, err);
    if (size) QN_NEED(data, err);
    qn_image_limits limits;
    qn_image image = {0};
    QN_TRY(read_opts(&limits, opts, err));
    QN_TRY(qn_image_decode(&image, data, size, &limits, err));
    return hand_over(out, &image, err);
}

qn_image *qn_image_hold(const qn_image *image) {
    qn_image *own = (qn_image *)(uintptr_t)image; // only its count changes
    atomic_fetch_add(&own->holders, 1);
    return own;
}

void qn_image_destroy(qn_image *image) {
    if (!image || atomic_fetch_sub(&image->holders, 1) > 1) return;
    qn_image_deinit(image);
    qn_free(image);
}

qn_status qn_image_get_info(qn_image_info *out, const qn_image *image, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(image, err);
    QN_TRY(QN_RESULT_CHECK(qn_image_info, out, err));
    const qn_image_info info = {
        .width = image->width, .height = image->height, .hash = qn_image_hash(image)};
    QN_RESULT_WRITE(qn_image_info, out, &info);
    return QN_OK;
}

// --- data URLs -----------------------------------------------------------------------------------

static int digit_of(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    if (c == '-') return 62; // as in URLs
    if (c == '_') return 63;
    return at ? (int)(at - digits) : -1;
}

// Bytes of a base64 text, which fit in size * 3 / 4 of them. Padding may be absent.
static qn_status decode_base64(unsigned char *to, size_t *n, const char *text, size_t size,
                               qn_err *err) {
    uint32_t bits = 0;
    int n_bits = 0;
    size_t end = size;
    *n = 0;
    while (end > 0 && size - end < 2 && text[end - 1] == '=') end--;
    for (size_t i = 0; i < end; i++) {
        const int digit = digit_of(text[i]);
        if (digit < 0)
            return QN_FAIL(err, FORMAT, "data URL: byte 0x%02x at %zu of %zu is not base64",
                           (unsigned char)text[i], i, size);
        bits = bits << 6 | (uint32_t)digit;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        to[(*n)++] = (unsigned char)(bits >> n_bits);
    }
    if (end % 4 == 1)
        return QN_FAIL(err, FORMAT, "data URL: %zu digits of base64 are not whole bytes", end);
    return QN_OK;
}

// The part after "data:TYPE;base64,"; NULL: it is not such a URL.
static const char *find_data(const char *url, size_t size) {
    static const char scheme[] = "data:", coding[] = ";base64";
    const char *comma = size ? memchr(url, ',', size) : NULL;
    const size_t n_scheme = sizeof scheme - 1, n_coding = sizeof coding - 1;
    if (!comma || (size_t)(comma - url) < n_scheme + n_coding) return NULL;
    const bool fits =
        memcmp(url, scheme, n_scheme) == 0 && memcmp(comma - n_coding, coding, n_coding) == 0;
    return fits ? comma + 1 : NULL;
}

qn_status qn_image_create_url(qn_image **out, const char *url, size_t size,
                              const qn_image_opts *opts, qn_err *err) {
    enum { SHOWN = 40 };
    QN_NEED(out, err);
    if (size) QN_NEED(url, err);
    qn_image_limits limits;
    QN_TRY(read_opts(&limits, opts, err));
    const char *data = find_data(url, size);
    if (!data)
        return QN_FAIL(err, ARGUMENT,
                       "an image at '%.*s%s': only data URLs (data:image/...;base64,...) are read",
                       (int)(size < SHOWN ? size : SHOWN), size ? url : "",
                       size < SHOWN ? "" : "...");
    const size_t n_text = size - (size_t)(data - url);
    const int64_t max = limits.bytes ? limits.bytes : QN_IMAGE_BYTES;
    if (n_text / 4 > (size_t)max / 3 + 1)
        return QN_FAIL(err, LIMIT, "an image of %zu bytes, the limit is %lld", n_text / 4 * 3,
                       (long long)max);
    unsigned char *bytes = qn_alloc(n_text + 1, 1);
    if (!bytes) return QN_NOMEM(err, "image");
    size_t n;
    qn_status status = decode_base64(bytes, &n, data, n_text, err);
    if (!status) status = qn_image_create(out, bytes, n, opts, err);
    qn_free(bytes);
    return status;
}

// --- images of an engine -------------------------------------------------------------------------

qn_status qn_engine_measure_image(int64_t *rows, int64_t *columns, const qn_engine *engine,
                                  const qn_image *image, qn_err *err) {
    QN_NEED(rows, err);
    QN_NEED(columns, err);
    QN_NEED(engine, err);
    QN_NEED(image, err);
    const qn_vision *vision;
    QN_TRY(qn_images_vision(&vision, engine, err));
    return qn_vision_measure(rows, columns, vision, image->width, image->height, err);
}

// Rows of each image; *sum: of all.
static qn_status measure_all(int64_t *rows, int64_t *sum, const qn_engine *engine,
                             const qn_image *const *images, size_t n_images, qn_err *err) {
    *sum = 0;
    for (size_t i = 0; i < n_images; i++) {
        int64_t high, wide;
        if (!images[i]) return QN_FAIL(err, ARGUMENT, "image %zu is NULL", i);
        QN_TRY(qn_engine_measure_image(&high, &wide, engine, images[i], err));
        if (!qn_i64_mul(&rows[i], high, wide) || !qn_i64_add(sum, *sum, rows[i]))
            return QN_FAIL(err, LIMIT, "image %zu has %lld x %lld rows", i, (long long)high,
                           (long long)wide);
    }
    return QN_OK;
}

// One image token for each image. A chat template wrote the ids, or the caller.
static qn_status check_count(const qn_engine *engine, int32_t token, const int32_t *from, size_t n,
                             size_t n_images, bool is_template, qn_err *err) {
    size_t found = 0, size = 0;
    for (size_t i = 0; i < n; i++) found += from[i] == token;
    if (found == n_images) return QN_OK;
    const char *piece =
        engine->tokenizer ? qn_tokenizer_piece(engine->tokenizer, token, &size) : NULL;
    const int n_piece = piece ? (int)qn_min((int64_t)size, 40) : 0;
    const char *s = n_images == 1 ? "" : "s";
    if (!piece) piece = "";
    if (is_template && found == 0)
        return QN_FAIL(err, ARGUMENT,
                       "the chat template does not support images: it wrote no image token (%.*s, "
                       "id %d) for %zu image%s; --template FILE gives another one",
                       n_piece, piece, token, n_images, s);
    return QN_FAIL(err, ARGUMENT,
                   "%s %zu image token%s (%.*s, id %d) for %zu image%s, want one for each",
                   is_template ? "the chat template wrote" : "the prompt has", found,
                   found == 1 ? "" : "s", n_piece, piece, token, n_images, s);
}

static qn_status expand(int32_t **ids, size_t *n, size_t *mark, int32_t token, const int32_t *from,
                        size_t n_from, const int64_t *rows, int64_t sum, qn_err *err) {
    int32_t *to = qn_alloc(n_from + (size_t)sum, sizeof *to);
    size_t at = 0, image = 0, new_mark = 0;
    if (!to) return QN_NOMEM(err, "ids");
    for (size_t i = 0; i < n_from; i++) {
        const int64_t times = from[i] == token ? rows[image++] : 1;
        if (mark && i == *mark) new_mark = at;
        for (int64_t k = 0; k < times; k++) to[at++] = from[i];
    }
    if (mark) *mark = *mark < n_from ? new_mark : at;
    *ids = to;
    *n = at;
    return QN_OK;
}

static qn_status expand_images(int32_t **ids, size_t *n, size_t *mark, const qn_engine *engine,
                               const int32_t *from, size_t n_from, const qn_image *const *images,
                               size_t n_images, bool is_template, qn_err *err) {
    int32_t token = -1;
    int64_t sum = 0;
    if (n_images) {
        QN_TRY(qn_images_token(&token, engine, err));
        QN_TRY(check_count(engine, token, from, n_from, n_images, is_template, err));
    }
    int64_t *rows = qn_alloc(n_images, sizeof *rows);
    if (!rows) return QN_NOMEM(err, "images");
    qn_status status = measure_all(rows, &sum, engine, images, n_images, err);
    if (!status) status = expand(ids, n, mark, token, from, n_from, rows, sum, err);
    qn_free(rows);
    return status;
}

qn_status qn_chat_prompt_expand(qn_chat_prompt *prompt, const qn_engine *engine, qn_err *err) {
    QN_NEED(prompt, err);
    QN_NEED(engine, err);
    QN_TRY(QN_RESULT_CHECK(qn_chat_prompt, prompt, err));
    if (!QN_HAS_FIELD(qn_chat_prompt, prompt, n_images) || prompt->n_images == 0) return QN_OK;
    int32_t *ids;
    QN_TRY(expand_images(&ids, &prompt->n, &prompt->n_messages, engine, prompt->ids, prompt->n,
                         prompt->images, prompt->n_images, true, err));
    qn_free(prompt->ids);
    prompt->ids = ids;
    return QN_OK;
}

qn_status qn_engine_expand_images(int32_t **ids, size_t *n, size_t *mark, const qn_engine *engine,
                                  const int32_t *from, size_t n_from, const qn_image *const *images,
                                  size_t n_images, qn_err *err) {
    QN_NEED(ids, err);
    QN_NEED(n, err);
    QN_NEED(engine, err);
    if (n_from) QN_NEED(from, err);
    if (n_images) QN_NEED(images, err);
    return expand_images(ids, n, mark, engine, from, n_from, images, n_images, false, err);
}

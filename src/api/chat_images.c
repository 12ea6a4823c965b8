#include "api/chat_images.h"

#include "core/mem.h"
#include "vision/image.h"

#include <string.h>

// Of one conversation, all messages together: pictures are held as pixels, of which a small file
// may have many. 768 MiB in all; more images than that do not fit in usual contexts.
enum { MAX_IMAGES = 64, MAX_PIXELS = 1 << 28 };

static void drop(const qn_chat_image *item) {
    json_decref(item->part);
    qn_image_destroy(item->image);
}

void qn_chat_images_deinit(qn_chat_images *images) {
    for (size_t i = 0; i < images->n; i++) drop(&images->items[i]);
    qn_free(images->items);
    *images = (qn_chat_images){0};
}

// Room for one image more: *left pixels, at least 1.
static qn_status find_room(int64_t *left, const qn_chat_images *images, qn_err *err) {
    int64_t pixels = 0;
    if (images->n >= MAX_IMAGES)
        return QN_FAIL(err, LIMIT, "more than %zu images; a conversation has at most %d", images->n,
                       MAX_IMAGES);
    for (size_t i = 0; i < images->n; i++)
        pixels += images->items[i].image->width * images->items[i].image->height;
    if (pixels >= MAX_PIXELS)
        return QN_FAIL(err, LIMIT,
                       "images of more than %lld pixels; a conversation has at most %d of them",
                       (long long)pixels, MAX_PIXELS);
    *left = MAX_PIXELS - pixels;
    return QN_OK;
}

static qn_status check_room(const qn_chat_images *images, const qn_image *image, qn_err *err) {
    int64_t left;
    QN_TRY(find_room(&left, images, err));
    const int64_t pixels = image->width * image->height;
    if (pixels <= left) return QN_OK;
    return QN_FAIL(err, LIMIT,
                   "an image of %lld pixels in addition to %lld; a conversation has at most %d",
                   (long long)pixels, (long long)(MAX_PIXELS - left), MAX_PIXELS);
}

// Takes over the image, whatever happens.
static qn_status keep(qn_chat_images *images, json_t *part, qn_image *image, qn_err *err) {
    void *items = images->items;
    if (!part || !qn_grow(&items, &images->cap, images->n + 1, sizeof *images->items)) {
        qn_image_destroy(image);
        return QN_NOMEM(err, "an image");
    }
    images->items = items;
    images->items[images->n++] = (qn_chat_image){json_incref(part), image};
    return QN_OK;
}

void qn_chat_images_forget(qn_chat_images *images) {
    size_t n = 0;
    for (size_t i = 0; i < images->n; i++) {
        if (images->items[i].part->refcount > 1) // a message still has it
            images->items[n++] = images->items[i];
        else
            drop(&images->items[i]);
    }
    images->n = n;
}

static bool has_type(const json_t *part, const char *type) {
    const char *own = json_string_value(json_object_get(part, "type"));
    return own && strcmp(own, type) == 0;
}

const json_t *qn_chat_find_text(const json_t *parts) {
    const json_t *text = NULL;
    size_t n_images = 0;
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i);
        const bool is_image = has_type(part, "image");
        n_images += is_image;
        if (is_image) continue;
        if (text || !has_type(part, "text")) return NULL;
        text = json_object_get(part, "text");
    }
    return n_images ? text : NULL;
}

qn_status qn_chat_images_add(qn_chat_images *images, json_t *message, const qn_image *const *added,
                             size_t n, qn_err *err) {
    json_t *parts = json_array();
    qn_status status = QN_OK;
    for (size_t i = 0; i < n && !status; i++) {
        json_t *part = json_pack("{s:s}", "type", "image");
        if (!added[i]) status = QN_FAIL(err, ARGUMENT, "image %zu is NULL", i);
        if (!status) status = check_room(images, added[i], err);
        if (!status) status = keep(images, part, qn_image_hold(added[i]), err);
        qn_json_push(&parts, part);
    }
    json_t *text = json_object_get(message, "content");
    if (json_string_length(text))
        qn_json_push(&parts, json_pack("{s:s, s:O}", "type", "text", "text", text));
    if (!status && (!parts || json_object_set(message, "content", parts) != 0))
        status = QN_NOMEM(err, "a message");
    json_decref(parts);
    if (status) qn_chat_images_forget(images);
    return status;
}

// --- messages from outside -----------------------------------------------------------------------

// The URL of a part that is an image: "image_url" is an object with "url", or the URL itself; parts
// of type "image" have "url" or "image". NULL: it has none.
static const json_t *find_url(const json_t *part) {
    static const char *const types[] = {"image_url", "input_image", "image"};
    static const char *const names[] = {"image_url", "url", "image"};
    bool is_image = false;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) is_image |= has_type(part, types[i]);
    for (size_t i = 0; is_image && i < sizeof names / sizeof *names; i++) {
        const json_t *value = json_object_get(part, names[i]);
        if (json_is_object(value)) value = json_object_get(value, "url");
        if (json_is_string(value)) return value;
    }
    return NULL;
}

static qn_status read_part(qn_chat_images *images, json_t *part, const qn_image_opts *given,
                           qn_err *err) {
    const json_t *url = find_url(part);
    qn_image *image = NULL;
    int64_t left;
    if (!url) return QN_OK;
    QN_TRY(find_room(&left, images, err));
    qn_image_opts opts = *given;
    const int64_t max = opts.max_pixels ? opts.max_pixels : QN_IMAGE_PIXELS;
    opts.max_pixels = qn_min(left, max);
    const qn_status status =
        qn_image_create_url(&image, json_string_value(url), json_string_length(url), &opts, err);
    if (status == QN_LIMIT && left < max)
        return qn_err_prefix(err, status,
                             "%lld of the %d pixels that a conversation may have are left",
                             (long long)left, MAX_PIXELS);
    if (status) return status;
    json_object_clear(part);
    if (json_object_set_new(part, "type", json_string("image")) != 0) {
        qn_image_destroy(image);
        return QN_NOMEM(err, "an image");
    }
    return keep(images, part, image, err);
}

qn_status qn_chat_images_read(qn_chat_images *images, const json_t *messages, const char *what,
                              const qn_image_opts *opts, qn_err *err) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *parts = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; k < json_array_size(parts); k++) {
            const qn_status status = read_part(images, json_array_get(parts, k), opts, err);
            if (status) return qn_err_prefix(err, status, "%s: message %zu, part %zu", what, i, k);
        }
    }
    return QN_OK;
}

// --- prompts -------------------------------------------------------------------------------------

// The images of the first n messages, in the order in which they are kept, too.
static qn_status list_images(const qn_image **list, size_t *n_found, const qn_chat_images *images,
                             const json_t *messages, size_t n, qn_err *err) {
    for (size_t i = 0; i < n; i++) {
        const json_t *parts = json_object_get(json_array_get(messages, i), "content");
        for (size_t k = 0; k < json_array_size(parts); k++) {
            const json_t *part = json_array_get(parts, k);
            if (!has_type(part, "image")) continue;
            if (*n_found == images->n || images->items[*n_found].part != part)
                return QN_FAIL(err, ARGUMENT,
                               "message %zu: the picture of its image is not there; conversations "
                               "are saved without pictures",
                               i);
            list[*n_found] = images->items[*n_found].image;
            ++*n_found;
        }
    }
    return QN_OK;
}

qn_status qn_chat_images_list(const qn_image ***out, size_t *n_out, const qn_chat_images *images,
                              const json_t *messages, size_t n, qn_err *err) {
    const qn_image **list = qn_alloc(images->n, sizeof(qn_image *));
    size_t n_found = 0;
    if (!list) return QN_NOMEM(err, "images of a prompt");
    const qn_status status = list_images(list, &n_found, images, messages, n, err);
    if (status) {
        qn_free(list);
        return status;
    }
    for (size_t i = 0; i < n_found; i++) list[i] = qn_image_hold(list[i]);
    *out = list;
    *n_out = n_found;
    return QN_OK;
}

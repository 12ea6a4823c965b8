#include "runtime/images.h"

#include "core/mem.h"

#include <pthread.h>
#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

// Kept at most: images, and bytes of their rows.
enum { MAX_KEPT = 64, MAX_BYTES = 1 << 28 };

struct qn_images {
    pthread_mutex_t lock;
    uint64_t seed; // of hashes
    qn_vision *vision;
    qn_encoded *kept[MAX_KEPT]; // (n_kept) the least recently used first
    int n_kept;
    int64_t bytes, hits, encoded;
};

// --- life ----------------------------------------------------------------------------------------

static qn_vision_opts given_tower(const qn_engine *engine) {
    return (qn_vision_opts){.path = engine->opts.mmproj, .max_pixels = engine->opts.image_pixels};
}

qn_status qn_images_check(const qn_engine *engine, qn_err *err) {
    const qn_vision_opts opts = given_tower(engine);
    return opts.path ? qn_vision_check(engine, &opts, err) : QN_OK;
}

qn_status qn_images_create(qn_images **out, const qn_engine *engine, qn_err *err) {
    qn_images *images = qn_alloc(1, sizeof *images);
    if (!images) return QN_NOMEM(err, "images");
    if (getrandom(&images->seed, sizeof images->seed, GRND_NONBLOCK) < 0)
        images->seed = (uint64_t)qn_clock();
    if (pthread_mutex_init(&images->lock, NULL) != 0) {
        qn_free(images);
        return QN_NOMEM(err, "a lock");
    }
    const qn_vision_opts opts = given_tower(engine);
    const qn_status status =
        opts.path ? qn_vision_open(&images->vision, engine, &opts, err) : QN_OK;
    if (status)
        qn_images_destroy(images);
    else
        *out = images;
    return status;
}

void qn_images_destroy(qn_images *images) {
    if (!images) return;
    for (int i = 0; i < images->n_kept; i++) qn_encoded_drop(images->kept[i]);
    qn_vision_close(images->vision);
    pthread_mutex_destroy(&images->lock);
    qn_free(images);
}

static qn_status open_own(qn_images *images, const qn_engine *engine, qn_err *err) {
    if (images->vision) return QN_OK;
    const qn_vision_opts opts = {.max_pixels = engine->opts.image_pixels};
    return qn_vision_open(&images->vision, engine, &opts, err);
}

qn_status qn_images_vision(const qn_vision **out, const qn_engine *engine, qn_err *err) {
    qn_images *images = engine->images;
    if (!images)
        return QN_FAIL(err, STATE, "%s was opened without weights", qn_source_path(engine->source));
    pthread_mutex_lock(&images->lock);
    const qn_status status = open_own(images, engine, err);
    if (!status) *out = images->vision;
    pthread_mutex_unlock(&images->lock);
    return status;
}

qn_status qn_images_token(int32_t *out, const qn_engine *engine, qn_err *err) {
    static const char piece[] = "<|image_pad|>";
    struct {
        int64_t id;
    } named;
    const int64_t vocab = engine->model->hparams->vocab;
    const qn_config_row row = {.offset = 0,
                               .kind = QN_CONFIG_INT,
                               .hf = "image_token_id",
                               .min = 0,
                               .max = (double)(vocab - 1),
                               .is_optional = true,
                               .fallback = -1};
    const qn_config_reader reader = qn_config_reader_of(engine->source, "");
    QN_TRY(qn_config_fill(&named, &row, 1, &reader, err));
    if (named.id < 0 && engine->tokenizer)
        named.id = qn_tokenizer_find(engine->tokenizer, piece, sizeof piece - 1);
    if (named.id < 0 || named.id >= vocab)
        return QN_FAIL(err, UNSUPPORTED, "%s has no token %s", qn_source_path(engine->source),
                       piece);
    *out = (int32_t)named.id;
    return QN_OK;
}

// --- rows of images ------------------------------------------------------------------------------

qn_encoded *qn_encoded_hold(qn_encoded *encoded) {
    atomic_fetch_add(&encoded->holders, 1);
    return encoded;
}

void qn_encoded_drop(qn_encoded *encoded) {
    if (!encoded || atomic_fetch_sub(&encoded->holders, 1) > 1) return;
    qn_vision_rows_deinit(&encoded->rows);
    qn_free(encoded);
}

static int64_t bytes_of(const qn_encoded *e) {
    return e->rows.rows * e->rows.columns * e->rows.width * (int64_t)sizeof *e->rows.data;
}

static void remove_kept(qn_images *images, int i) {
    qn_encoded *e = images->kept[i];
    images->bytes -= bytes_of(e);
    images->n_kept--;
    memmove(images->kept + i, images->kept + i + 1,
            (size_t)(images->n_kept - i) * sizeof images->kept[0]);
    qn_encoded_drop(e);
}

static void add_kept(qn_images *images, qn_encoded *e) {
    const int64_t bytes = bytes_of(e);
    if (bytes > MAX_BYTES) return;
    while (images->n_kept == MAX_KEPT || images->bytes > MAX_BYTES - bytes) remove_kept(images, 0);
    images->bytes += bytes;
    images->kept[images->n_kept++] = qn_encoded_hold(e);
}

// Held for the caller, and the most recently used now; NULL: it is not kept.
static qn_encoded *find_kept(qn_images *images, uint64_t hash) {
    for (int i = 0; i < images->n_kept; i++) {
        qn_encoded *e = images->kept[i];
        if (e->hash != hash) continue;
        memmove(images->kept + i, images->kept + i + 1,
                (size_t)(images->n_kept - 1 - i) * sizeof images->kept[0]);
        images->kept[images->n_kept - 1] = e;
        return qn_encoded_hold(e);
    }
    return NULL;
}

// Same rows, same key: what is computed from them is the same, whatever picture they are of.
static uint64_t key_of(const qn_encoded *e, uint64_t seed) {
    const int64_t grid[] = {e->rows.rows, e->rows.columns};
    const uint64_t hash = XXH3_64bits_withSeed(e->rows.data, (size_t)bytes_of(e), seed);
    return XXH3_64bits_withSeed(grid, sizeof grid, hash);
}

qn_status qn_images_adopt(qn_encoded **out, const qn_engine *engine, qn_vision_rows *rows,
                          qn_err *err) {
    qn_encoded *e = qn_alloc(1, sizeof *e);
    if (!e) return QN_NOMEM(err, "rows of an image");
    atomic_init(&e->holders, 1);
    e->rows = *rows;
    e->key = key_of(e, engine->images->seed);
    *rows = (qn_vision_rows){0};
    *out = e;
    return QN_OK;
}

static qn_status encode(qn_encoded **out, const qn_images *images, const qn_vision *vision,
                        const qn_image *image, uint64_t hash, qn_until *until, qn_err *err) {
    qn_encoded *e = qn_alloc(1, sizeof *e);
    if (!e) return QN_NOMEM(err, "rows of an image");
    atomic_init(&e->holders, 1);
    e->hash = hash;
    const qn_status status = qn_vision_encode(&e->rows, vision, image, until, err);
    if (status) {
        qn_encoded_drop(e);
        return status;
    }
    e->key = key_of(e, images->seed);
    *out = e;
    return QN_OK;
}

// Where another thread was faster, its rows serve both.
static qn_encoded *keep(qn_images *images, qn_encoded *e) {
    pthread_mutex_lock(&images->lock);
    qn_encoded *earlier = find_kept(images, e->hash);
    images->encoded++;
    if (!earlier) add_kept(images, e);
    pthread_mutex_unlock(&images->lock);
    if (!earlier) return e;
    qn_encoded_drop(e);
    return earlier;
}

qn_status qn_images_encode(qn_encoded **out, const qn_engine *engine, const qn_image *image,
                           qn_until *until, qn_err *err) {
    const qn_vision *vision;
    QN_TRY(qn_images_vision(&vision, engine, err));
    qn_images *images = engine->images;
    const uint64_t hash = qn_image_hash_seeded(image, images->seed);
    pthread_mutex_lock(&images->lock);
    qn_encoded *found = find_kept(images, hash);
    images->hits += found != NULL;
    pthread_mutex_unlock(&images->lock);
    if (!found) {
        QN_TRY(encode(&found, images, vision, image, hash, until, err));
        found = keep(images, found);
    }
    *out = found;
    return QN_OK;
}

uint64_t qn_images_hash(const qn_engine *engine, const void *bytes, size_t n, uint64_t seed) {
    return XXH3_64bits_withSeed(bytes, n, seed ^ (engine->images ? engine->images->seed : 0));
}

qn_images_counts qn_images_get_counts(const qn_engine *engine) {
    qn_images *images = engine->images;
    qn_images_counts counts = {0};
    if (!images) return counts;
    pthread_mutex_lock(&images->lock);
    counts = (qn_images_counts){images->n_kept, images->bytes, images->hits, images->encoded};
    pthread_mutex_unlock(&images->lock);
    return counts;
}

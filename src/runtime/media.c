#include "runtime/media.h"

#include "core/mem.h"

#include <assert.h>
#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static void drop_from(qn_media *m, size_t i) {
    while (m->n > i) qn_encoded_drop(m->rows[--m->n]);
}

void qn_media_deinit(qn_media *m) {
    drop_from(m, 0);
    qn_free(m->spans);
    qn_free(m->rows);
    *m = (qn_media){0};
}

qn_status qn_media_reserve(qn_media *m, size_t n, qn_err *err) {
    if (n <= m->cap) return QN_OK;
    qn_image_span *spans = qn_realloc(m->spans, n, sizeof *spans);
    if (spans) m->spans = spans;
    qn_encoded **rows = qn_realloc(m->rows, n, sizeof(qn_encoded *));
    if (rows) m->rows = rows;
    if (!spans || !rows) return QN_NOMEM(err, "images of a prompt");
    m->cap = n;
    return QN_OK;
}

void qn_media_copy(qn_media *to, const qn_media *from) {
    if (to == from) return;
    drop_from(to, 0);
    for (size_t i = 0; from && i < from->n; i++) {
        to->spans[i] = from->spans[i];
        to->rows[i] = qn_encoded_hold(from->rows[i]);
    }
    to->n = from ? from->n : 0;
}

static int64_t end_of(const qn_media *m, size_t i) {
    return m->spans[i].first + qn_image_span_rows(&m->spans[i]);
}

void qn_media_cut(qn_media *m, size_t n) {
    size_t i = m->n;
    while (i > 0 && m->spans[i - 1].first >= (int64_t)n) i--;
    drop_from(m, i);
    if (i > 0 && end_of(m, i - 1) > (int64_t)n)
        m->spans[i - 1].left = (int64_t)n - m->spans[i - 1].first;
}

// --- finding the places of images ----------------------------------------------------------------

typedef struct finding {
    const int32_t *ids; // (n)
    size_t n, at;       // `at`: the next to look at
    int32_t token;
} finding;

static qn_status find_place(qn_image_span *span, finding *f, size_t i, qn_err *err) {
    const int64_t want = span->rows * span->columns;
    while (f->at < f->n && f->ids[f->at] != f->token) f->at++;
    span->first = (int64_t)f->at;
    while (f->at < f->n && f->ids[f->at] == f->token && (int64_t)f->at - span->first < want)
        f->at++;
    if ((int64_t)f->at - span->first == want) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "image %zu: %lld image tokens (id %d) side by side in the prompt, it has %lld x "
                   "%lld = %lld rows",
                   i, (long long)f->at - (long long)span->first, f->token, (long long)span->rows,
                   (long long)span->columns, (long long)want);
}

static qn_status check_rest(const finding *f, size_t n_images, qn_err *err) {
    size_t all = 0, left = 0;
    for (size_t i = 0; i < f->n; i++) {
        all += f->ids[i] == f->token;
        left += i >= f->at && f->ids[i] == f->token;
    }
    if (left == 0) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "%zu image tokens (id %d) in the prompt, the rows of its %zu images are %zu",
                   all, f->token, n_images, all - left);
}

static qn_status add_images(qn_media *m, const qn_engine *engine, finding *f,
                            const qn_image *const *images, size_t n_images, qn_err *err) {
    const qn_vision *vision;
    QN_TRY(qn_images_vision(&vision, engine, err));
    QN_TRY(qn_media_reserve(m, n_images, err));
    for (size_t i = 0; i < n_images; i++) { // before anything is computed
        qn_image_span *span = &m->spans[i];
        if (!images[i]) return QN_FAIL(err, ARGUMENT, "image %zu is NULL", i);
        *span = (qn_image_span){0};
        QN_TRY(qn_vision_measure(&span->rows, &span->columns, vision, images[i]->width,
                                 images[i]->height, err));
        QN_TRY(find_place(span, f, i, err));
    }
    QN_TRY(check_rest(f, n_images, err));
    for (size_t i = 0; i < n_images; i++) {
        QN_TRY(qn_images_encode(&m->rows[i], engine, images[i], err));
        m->n++;
    }
    return QN_OK;
}

qn_status qn_media_check(const qn_engine *engine, qn_err *err) {
    if (qn_graph_find_input(engine->graph, "extra") >= 0) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "images: %s cannot be given rows",
                   engine->model->family->arch);
}

qn_status qn_media_init(qn_media *out, const qn_engine *engine, const int32_t *ids, size_t n,
                        const qn_image *const *images, size_t n_images, qn_err *err) {
    qn_media m = {0};
    finding f = {.ids = ids, .n = n};
    *out = m;
    if (n_images == 0) return QN_OK;
    QN_TRY(qn_media_check(engine, err));
    QN_TRY(qn_images_token(&f.token, engine, err));
    const qn_status status = add_images(&m, engine, &f, images, n_images, err);
    if (status)
        qn_media_deinit(&m);
    else
        *out = m;
    return status;
}

// --- what steps read -----------------------------------------------------------------------------

// Two rounds of a bijection of 64-bit numbers that leaves no pattern (splitmix64).
static uint64_t mix(uint64_t x) {
    for (int i = 0; i < 2; i++) {
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
        x = (x ^ x >> 27) * 0x94d049bb133111ebu;
        x ^= x >> 31;
    }
    return x;
}

void qn_media_set_keys(uint64_t *keys, size_t n, uint64_t root, const qn_media *m) {
    const uint64_t is_image = (uint64_t)1 << 63; // roots have fewer bits
    for (size_t i = 0; i < m->n; i++) {
        const int64_t first = m->spans[i].first;
        for (int64_t r = first; r < end_of(m, i) && r < (int64_t)n; r++)
            keys[r] = mix(m->rows[i]->key ^ mix(root | (uint64_t)(r - first))) | is_image;
    }
}

typedef struct overlap {
    int64_t begin, end;
} overlap;

static overlap find_overlap(const qn_media *m, size_t i, int64_t first, int64_t n) {
    return (overlap){qn_max(m->spans[i].first, first), qn_min(end_of(m, i), first + n)};
}

int64_t qn_media_count(const qn_media *m, int64_t first, int64_t n) {
    int64_t count = 0;
    for (size_t i = 0; m && i < m->n; i++) {
        const overlap o = find_overlap(m, i, first, n);
        if (o.end > o.begin) count += o.end - o.begin;
    }
    return count;
}

int64_t qn_media_fill(const qn_media *m, int64_t first, int64_t n, int32_t *pos, int32_t *extra_row,
                      float *extra, int64_t at) {
    const qn_status status =
        qn_image_positions(pos, NULL, first, n, m ? m->spans : NULL, m ? m->n : 0, NULL);
    int64_t count = 0;
    assert(!status); // places of images were checked
    (void)status;
    for (int64_t r = 0; extra_row && r < n; r++) extra_row[r] = -1;
    for (size_t i = 0; extra_row && m && i < m->n; i++) {
        const overlap o = find_overlap(m, i, first, n);
        const qn_vision_rows *rows = &m->rows[i]->rows;
        for (int64_t r = o.begin; r < o.end; r++, count++) {
            extra_row[r - first] = (int32_t)(at + count);
            memcpy(extra + (at + count) * rows->width,
                   rows->data + (r - m->spans[i].first) * rows->width,
                   (size_t)rows->width * sizeof *extra);
        }
    }
    return count;
}

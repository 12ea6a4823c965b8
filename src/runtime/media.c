#include "runtime/media.h"

#include "core/mem.h"
#include "core/structs.h"

#include <assert.h>
#include <math.h>
#include <string.h>

// --- life ----------------------------------------------------------------------------------------

static void drop_from(qn_media *m, size_t i) {
    while (m->n > i) qn_encoded_drop(m->rows[--m->n]);
}

static void drop_given(qn_media *m) {
    qn_given_input *g = m->given;
    m->given = NULL;
    m->n_given = 0;
    if (!g || atomic_fetch_sub(&g->holders, 1) > 1) return;
    qn_free(g->rows);
    qn_free(g->row);
    qn_free(g->pos);
    qn_free(g->after);
    qn_free(g->keys);
    qn_free(g);
}

static void hold_given(qn_media *to, const qn_media *from) {
    if (!from || !from->given) return;
    atomic_fetch_add(&from->given->holders, 1);
    to->given = from->given;
    to->n_given = from->n_given;
}

void qn_media_deinit(qn_media *m) {
    drop_given(m);
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
    drop_given(to);
    hold_given(to, from);
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
    if ((int64_t)n < m->n_given) m->n_given = (int64_t)n;
    if (m->n_given == 0) drop_given(m);
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

static qn_status need_rows(const qn_engine *engine, const char *what, qn_err *err) {
    if (qn_graph_find_input(engine->graph, "extra") >= 0) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "%s: %s cannot be given rows", what,
                   engine->model->family->arch);
}

qn_status qn_media_check(const qn_engine *engine, qn_err *err) {
    return need_rows(engine, "images", err);
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

// --- what is given -------------------------------------------------------------------------------

static qn_status check_rows(const qn_given *given, size_t n, int64_t width, const qn_engine *engine,
                            qn_err *err) {
    QN_TRY(need_rows(engine, "given rows", err));
    if (!given->rows)
        return QN_FAIL(err, ARGUMENT, "%zu given rows, but rows is NULL", given->n_rows);
    if (given->n_rows > n)
        return QN_FAIL(err, ARGUMENT, "%zu given rows for %zu tokens", given->n_rows, n);
    for (size_t i = 0; i < given->n_rows; i++) {
        const int64_t at = given->at ? given->at[i] : (int64_t)i;
        if (at < 0 || at >= (int64_t)n || (i > 0 && given->at && at <= given->at[i - 1]))
            return QN_FAIL(err, ARGUMENT,
                           "given row %zu: for token %lld of %zu, want ascending ones", i,
                           (long long)at, n);
        for (int64_t c = 0; c < width; c++) {
            if (!isfinite(given->rows[(int64_t)i * width + c]))
                return QN_FAIL(err, ARGUMENT, "given row %zu: number %lld of %lld is not finite", i,
                               (long long)c, (long long)width);
        }
    }
    return QN_OK;
}

static qn_status check_positions(const int32_t *positions, size_t n, qn_err *err) {
    for (size_t i = 0; positions && i < 3 * n; i++) {
        if (positions[i] < 0 || positions[i] > QN_MAX_POSITION)
            return QN_FAIL(err, ARGUMENT, "position %d of token %zu, want 0 to %d", positions[i],
                           i / 3, QN_MAX_POSITION);
    }
    return QN_OK;
}

static bool alloc_given(qn_given_input *g, const qn_given *from, size_t n) {
    g->rows = qn_alloc(from->n_rows, (size_t)g->width * sizeof *g->rows);
    g->row = qn_alloc(n, sizeof *g->row);
    g->keys = qn_alloc(n, sizeof *g->keys);
    if (from->positions) {
        g->pos = qn_alloc(n, 4 * sizeof *g->pos);
        g->after = qn_alloc(n, sizeof *g->after);
    }
    return g->rows && g->row && g->keys && (!from->positions || (g->pos && g->after));
}

static void copy_rows(qn_given_input *g, const qn_given *from, const qn_engine *engine) {
    const size_t bytes = (size_t)g->width * sizeof *g->rows;
    for (int64_t i = 0; i < g->n; i++) g->row[i] = -1;
    for (size_t i = 0; i < from->n_rows; i++) {
        const int64_t at = from->at ? from->at[i] : (int64_t)i;
        const float *row = from->rows + (int64_t)i * g->width;
        g->row[at] = (int32_t)i;
        memcpy(g->rows + (int64_t)i * g->width, row, bytes);
        g->keys[at] = qn_images_hash(engine, row, bytes, 1);
    }
}

static void copy_positions(qn_given_input *g, const int32_t *from, const int32_t *ids,
                           const qn_engine *engine) {
    int32_t after = 0;
    for (int64_t i = 0; from && i < g->n; i++) {
        const uint64_t seed = g->row[i] < 0 ? (uint32_t)ids[i] : g->keys[i];
        int32_t *pos = g->pos + 4 * i;
        for (int k = 0; k < 3; k++) {
            pos[k] = from[3 * i + k];
            if (pos[k] >= after) after = pos[k] + 1;
        }
        pos[3] = 0;
        g->after[i] = after;
        g->keys[i] = qn_images_hash(engine, pos, 3 * sizeof *pos, seed);
    }
    const uint64_t is_set = (uint64_t)1 << 63; // 0 means nothing
    for (int64_t i = 0; i < g->n; i++) {
        if (from || g->row[i] >= 0) g->keys[i] |= is_set;
    }
}

qn_status qn_media_init_given(qn_media *out, const qn_engine *engine, const int32_t *ids, size_t n,
                              const qn_given *given, qn_err *err) {
    qn_given from;
    QN_TRY(QN_OPTS_READ(qn_given, &from, given, err));
    const int64_t width = engine->model->hparams->width;
    if (from.n_rows) QN_TRY(check_rows(&from, n, width, engine, err));
    QN_TRY(check_positions(from.positions, n, err));
    *out = (qn_media){0};
    if (!from.n_rows && !from.positions) return QN_OK;
    qn_media m = {.given = qn_alloc(1, sizeof *m.given), .n_given = (int64_t)n};
    if (!m.given) return QN_NOMEM(err, "given rows");
    atomic_init(&m.given->holders, 1);
    m.given->n = (int64_t)n;
    m.given->width = width;
    if (!alloc_given(m.given, &from, n)) {
        qn_media_deinit(&m);
        return QN_NOMEM(err, "given rows");
    }
    copy_rows(m.given, &from, engine);
    copy_positions(m.given, from.positions, ids, engine);
    *out = m;
    return QN_OK;
}

qn_status qn_media_init_row(qn_media *out, const qn_engine *engine, const int32_t *ids, size_t n,
                            const qn_row_opts *opts, qn_err *err) {
    if (opts->n_images && opts->given)
        return QN_FAIL(err, ARGUMENT, "%zu images and given rows: one of both", opts->n_images);
    if (opts->given) return qn_media_init_given(out, engine, ids, n, opts->given, err);
    if (opts->n_images && !opts->images)
        return QN_FAIL(err, ARGUMENT, "%zu images, but the list is NULL", opts->n_images);
    return qn_media_init(out, engine, ids, n, opts->images, opts->n_images, err);
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
    for (int64_t r = 0; r < m->n_given && r < (int64_t)n; r++) {
        if (m->given->keys[r]) keys[r] = mix(m->given->keys[r] ^ mix(root)) | is_image;
    }
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
    for (int64_t r = first; m && r < first + n && r < m->n_given; r++)
        count += m->given->row[r] >= 0;
    for (size_t i = 0; m && i < m->n; i++) {
        const overlap o = find_overlap(m, i, first, n);
        if (o.end > o.begin) count += o.end - o.begin;
    }
    return count;
}

static void fill_positions(const qn_media *m, int64_t first, int64_t n, int32_t *pos) {
    if (!m || !m->given || !m->given->pos) {
        const qn_status status =
            qn_image_positions(pos, NULL, first, n, m ? m->spans : NULL, m ? m->n : 0, NULL);
        assert(!status); // places of images were checked
        (void)status;
        return;
    }
    const int64_t next = m->given->after[m->n_given - 1];
    for (int64_t r = first; r < first + n; r++) {
        int32_t *to = pos + 4 * (r - first);
        const int32_t p = (int32_t)(next + r - m->n_given);
        if (r < m->n_given)
            memcpy(to, m->given->pos + 4 * r, 4 * sizeof *to);
        else
            to[0] = to[1] = to[2] = p, to[3] = 0;
    }
}

// Copies the given rows among them; returns how many.
static int64_t fill_given(const qn_media *m, int64_t first, int64_t n, int32_t *extra_row,
                          float *extra, int64_t at) {
    int64_t count = 0;
    for (int64_t r = first; r < first + n && r < m->n_given; r++) {
        const qn_given_input *g = m->given;
        if (g->row[r] < 0) continue;
        extra_row[r - first] = (int32_t)(at + count);
        memcpy(extra + (at + count++) * g->width, g->rows + g->row[r] * g->width,
               (size_t)g->width * sizeof *extra);
    }
    return count;
}

int64_t qn_media_fill(const qn_media *m, int64_t first, int64_t n, int32_t *pos, int32_t *extra_row,
                      float *extra, int64_t at) {
    fill_positions(m, first, n, pos);
    for (int64_t r = 0; extra_row && r < n; r++) extra_row[r] = -1;
    int64_t count = extra_row && m ? fill_given(m, first, n, extra_row, extra, at) : 0;
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

// qn_session_load: everything is read and checked before the session changes; the rows of the
// state, which are most of it, are then read again, straight to where they belong.
#include "session/session_bytes.h"

#include "core/mem.h"
#include "gen/logits.h"
#include "runtime/state_bytes.h"

#include <math.h>
#include <string.h>
#include <xxhash.h>

enum { PIECE = 1 << 16 };
static const char what[] = "the state of a session";

// --- reading -------------------------------------------------------------------------------------

typedef struct loading {
    qn_read_fn *fn;
    void *arg;
    int64_t size, at;
    XXH3_state_t *hash, *rows; // of all bytes; of the rows of the state
} loading;

// A qn_bytes_fn.
static qn_status get(void *arg, void *bytes, size_t n, qn_err *err) {
    loading *from = arg;
    if (n > (uint64_t)(from->size - from->at))
        return QN_FAIL(err, FORMAT, "%s: want %zu bytes at %lld, it has %lld", what, n,
                       (long long)from->at, (long long)from->size);
    for (size_t done = 0; done < n;) {
        const int64_t got =
            from->fn(from->arg, (char *)bytes + done, n - done, from->at + (int64_t)done);
        if (got < 1 || (uint64_t)got > n - done)
            return QN_FAIL(err, IO, "%s: reading %zu bytes at %lld gave %lld", what, n - done,
                           (long long)from->at + (long long)done, (long long)got);
        done += (size_t)got;
    }
    if (n) (void)XXH3_64bits_update(from->hash, bytes, n);
    from->at += (int64_t)n;
    return QN_OK;
}

// A list of `n` things of `size` bytes, read into memory of its own; n 0: NULL.
static qn_status get_list(void **out, loading *from, int64_t n, size_t size, qn_err *err) {
    int64_t bytes;
    *out = NULL;
    if (n == 0) return QN_OK;
    if (!qn_i64_mul(&bytes, n, (int64_t)size) || bytes > from->size - from->at)
        return QN_FAIL(err, FORMAT, "%s: %lld times %zu bytes at %lld, it has %lld", what,
                       (long long)n, size, (long long)from->at, (long long)from->size);
    void *list = qn_alloc((size_t)n, size);
    if (!list) return QN_NOMEM(err, what);
    const qn_status status = get(from, list, (size_t)bytes, err);
    if (status)
        qn_free(list);
    else
        *out = list;
    return status;
}

// --- what it is of -------------------------------------------------------------------------------

static qn_status check_begin(const qn_state_head *head, int64_t size, qn_err *err) {
    if (memcmp(head->magic, QN_STATE_MAGIC, sizeof head->magic) != 0)
        return QN_FAIL(err, FORMAT, "%s: begins with \"%.8s\", want \"QNSTATE\"", what,
                       head->magic);
    if (head->version != QN_STATE_VERSION)
        return QN_FAIL(err, UNSUPPORTED, "%s: version %lld, this library reads %d", what,
                       (long long)head->version, QN_STATE_VERSION);
    if (head->bytes != size)
        return QN_FAIL(err, FORMAT, "%s: %lld bytes are there, it has %lld", what, (long long)size,
                       (long long)head->bytes);
    return QN_OK;
}

typedef struct limit {
    const char *name;
    int64_t value, min, max;
} limit;

static qn_status check_counts(const qn_state_head *h, const qn_session *s, qn_err *err) {
    const int64_t vocab = s->engine->model->hparams->vocab;
    if (h->n_tokens > s->context)
        return QN_FAIL(err, LIMIT, "%s: %lld tokens, the session has room for %lld", what,
                       (long long)h->n_tokens, (long long)s->context);
    const limit limits[] = {
        {"tokens", h->n_tokens, 0, s->context},
        {"cached tokens", h->n_cached, 0, h->n_tokens},
        {"tokens of the prompt", h->n_prompt, 0, h->n_tokens},
        {"tokens dropped", h->shifted, 0, INT64_MAX / 2},
        {"images", h->n_images, 0, h->n_tokens},
        {"logits", h->n_logits, 0, h->n_cached ? vocab : 0},
        {"top logits", h->n_top, 0, h->n_cached ? QN_HEAD_TOP : 0},
        {"tokens before the top logits", h->top_after, 0, h->n_cached},
        {"tokens before the last row", h->last_after, 0, h->key.mtp ? h->n_cached : 0}};
    for (size_t i = 0; i < sizeof limits / sizeof limits[0]; i++) {
        const limit *l = &limits[i];
        if (l->value < l->min || l->value > l->max)
            return QN_FAIL(err, FORMAT, "%s: %lld %s, want %lld to %lld", what, (long long)l->value,
                           l->name, (long long)l->min, (long long)l->max);
    }
    if ((h->n_top > 0) != (h->top_after > 0))
        return QN_FAIL(err, FORMAT, "%s: %lld top logits after %lld tokens", what,
                       (long long)h->n_top, (long long)h->top_after);
    if (h->n_logits && h->n_logits != vocab)
        return QN_FAIL(err, FORMAT, "%s: %lld logits, want 0 or %lld", what, (long long)h->n_logits,
                       (long long)vocab);
    if (!isfinite(h->tau) || !isfinite(h->eta) || !isfinite(h->surprise))
        return QN_FAIL(err, FORMAT, "%s: mirostat with %g, %g, %g", what, (double)h->tau,
                       (double)h->eta, h->surprise);
    return QN_OK;
}

// --- what comes before the rows ------------------------------------------------------------------

typedef struct staged {
    qn_state_head head;
    int32_t adapter; // index of its set; -1: none
    int32_t *tokens;
    qn_media media;
    float *logits;
    qn_top_logit *top;
    float *last;
    int64_t rows_at; // where the rows of the state begin
    uint64_t rows_hash;
} staged;

static void staged_deinit(staged *st) {
    qn_free(st->tokens);
    qn_media_deinit(&st->media);
    qn_free(st->logits);
    qn_free(st->top);
    qn_free(st->last);
}

static qn_status check_span(const qn_image_span *span, const staged *st, int32_t token,
                            qn_err *err) {
    const size_t i = st->media.n;
    const qn_image_span *before = i ? &st->media.spans[i - 1] : NULL;
    const int64_t min = before ? before->first + qn_image_span_rows(before) : 0;
    int64_t all, end;
    if (span->first < min || span->rows < 1 || span->columns < 1 || span->left < 0 ||
        !qn_i64_mul(&all, span->rows, span->columns) || span->left >= all ||
        !qn_i64_add(&end, span->first, span->left ? span->left : all) || end > st->head.n_tokens ||
        (span->left && end != st->head.n_tokens))
        return QN_FAIL(err, FORMAT,
                       "%s: image %zu of %lld x %lld rows (%lld left) at %lld, of %lld tokens",
                       what, i, (long long)span->rows, (long long)span->columns,
                       (long long)span->left, (long long)span->first, (long long)st->head.n_tokens);
    for (int64_t t = span->first; t < end; t++) {
        if (st->tokens[t] != token)
            return QN_FAIL(err, FORMAT, "%s: image %zu: id %d at %lld, want image tokens (id %d)",
                           what, i, st->tokens[t], (long long)t, token);
    }
    return QN_OK;
}

static qn_status get_image(staged *st, loading *from, const qn_session *s, int32_t token,
                           qn_err *err) {
    qn_state_image image = {0};
    QN_TRY(get(from, &image, sizeof image, err));
    const qn_image_span span = {image.first, image.rows, image.columns, image.left};
    QN_TRY(check_span(&span, st, token, err));
    qn_vision_rows rows = {
        .rows = span.rows, .columns = span.columns, .width = s->engine->model->hparams->width};
    void *data;
    QN_TRY(get_list(&data, from, rows.rows * rows.columns, (size_t)rows.width * sizeof *rows.data,
                    err));
    rows.data = data;
    const qn_status status = qn_images_adopt(&st->media.rows[st->media.n], s->engine, &rows, err);
    qn_vision_rows_deinit(&rows);
    if (!status) st->media.spans[st->media.n++] = span;
    return status;
}

static qn_status get_images(staged *st, loading *from, const qn_session *s, qn_err *err) {
    const int64_t n = st->head.n_images;
    int32_t token, position[4];
    if (n == 0) return QN_OK;
    QN_TRY(qn_media_check(s->engine, err));
    if (n > (from->size - from->at) / (int64_t)sizeof(qn_state_image))
        return QN_FAIL(err, FORMAT, "%s: %lld images at %lld, it has %lld bytes", what,
                       (long long)n, (long long)from->at, (long long)from->size);
    QN_TRY(qn_images_token(&token, s->engine, err));
    QN_TRY(qn_media_reserve(&st->media, (size_t)n, err));
    for (int64_t i = 0; i < n; i++) QN_TRY(get_image(st, from, s, token, err));
    return qn_image_positions(position, NULL, st->head.n_tokens - 1, 1, st->media.spans,
                              st->media.n, err);
}

static qn_status check_top(const staged *st, const qn_engine *engine, qn_err *err) {
    for (int64_t i = 0; i < st->head.n_top; i++) {
        const qn_top_logit *t = &st->top[i];
        const bool is_after =
            i == 0 || t[-1].logit > t->logit || (t[-1].logit == t->logit && t[-1].id < t->id);
        if (!isfinite(t->logit) || t->id < 0 || t->id >= engine->n_tokens || !is_after)
            return QN_FAIL(err, FORMAT, "%s: top logit %lld is %g of token %d", what, (long long)i,
                           (double)t->logit, t->id);
    }
    return QN_OK;
}

// What another function says of bytes that the state has.
static qn_status as_damage(qn_status status, qn_err *err) {
    const bool is_damage = status == QN_ARGUMENT || status == QN_NUMERIC;
    return is_damage ? qn_err_prefix(err, QN_FORMAT, "%s: damaged", what) : status;
}

static qn_status get_parts(staged *st, loading *from, const qn_session *s, qn_err *err) {
    const qn_state_head *head = &st->head;
    const int64_t width = s->engine->model->hparams->width;
    void *list;
    QN_TRY(get_list(&list, from, head->n_tokens, sizeof *st->tokens, err));
    st->tokens = list;
    if (head->n_tokens)
        QN_TRY(as_damage(
            qn_engine_check_ids(s->engine, st->tokens, (size_t)head->n_tokens, s->context, err),
            err));
    QN_TRY(get_images(st, from, s, err));
    QN_TRY(get_list(&list, from, head->n_logits, sizeof *st->logits, err));
    st->logits = list;
    if (st->logits) QN_TRY(as_damage(qn_logits_check(st->logits, head->n_logits, err), err));
    QN_TRY(get_list(&list, from, head->n_top, sizeof *st->top, err));
    st->top = list;
    QN_TRY(check_top(st, s->engine, err));
    QN_TRY(get_list(&list, from, head->last_after ? width : 0, sizeof *st->last, err));
    st->last = list;
    return QN_OK;
}

static qn_status check_head(int32_t *adapter, const qn_state_head *head, const qn_session *s,
                            int64_t size, qn_err *err) {
    QN_TRY(check_begin(head, size, err));
    QN_TRY(qn_state_key_check(adapter, &head->key, s->engine, err));
    return check_counts(head, s, err);
}

// Reads over the rows, up to the checksum.
static qn_status skip_rows(staged *st, loading *from, int64_t bytes, qn_err *err) {
    static const int64_t sum = sizeof(uint64_t);
    if (from->size - from->at - sum != bytes)
        return QN_FAIL(err, FORMAT, "%s: %lld bytes for the rows of %lld tokens, want %lld", what,
                       (long long)(from->size - from->at - sum), (long long)st->head.n_cached,
                       (long long)bytes);
    unsigned char *piece = qn_alloc(PIECE, 1);
    qn_status status = piece ? QN_OK : QN_NOMEM(err, what);
    (void)XXH3_64bits_reset(from->rows);
    st->rows_at = from->at;
    for (int64_t left = bytes; left > 0 && !status;) {
        const size_t n = (size_t)qn_min(left, PIECE);
        status = get(from, piece, n, err);
        if (!status) (void)XXH3_64bits_update(from->rows, piece, n);
        left -= (int64_t)n;
    }
    st->rows_hash = XXH3_64bits_digest(from->rows);
    qn_free(piece);
    return status;
}

static qn_status check_sum(loading *from, qn_err *err) {
    const uint64_t sum = XXH3_64bits_digest(from->hash);
    uint64_t said = 0;
    QN_TRY(get(from, &said, sizeof said, err));
    if (said != sum)
        return QN_FAIL(err, FORMAT, "%s: damaged: its checksum is %016llx, not %016llx", what,
                       (unsigned long long)sum, (unsigned long long)said);
    return QN_OK;
}

static qn_status stage(staged *st, loading *from, const qn_session *s, qn_err *err) {
    int64_t bytes;
    QN_TRY(get(from, &st->head, sizeof st->head, err));
    QN_TRY(check_head(&st->adapter, &st->head, s, from->size, err));
    QN_TRY(get_parts(st, from, s, err));
    if (!qn_seq_measure(&bytes, qn_runner_state(s->shared->runner), st->head.n_cached))
        return QN_FAIL(err, LIMIT, "%s: %lld tokens: too large", what,
                       (long long)st->head.n_cached);
    QN_TRY(skip_rows(st, from, bytes, err));
    return check_sum(from, err);
}

// --- the session ---------------------------------------------------------------------------------

// A file that changes between two readings costs the state, not the history.
static qn_status fill(const staged *st, loading *from, qn_session *s, qn_err *err) {
    from->at = st->rows_at;
    (void)XXH3_64bits_reset(from->hash);
    QN_TRY(qn_seq_fill_rows(s->seq, get, from, err));
    if (XXH3_64bits_digest(from->hash) != st->rows_hash)
        return QN_FAIL(err, IO, "%s: has changed while it was read", what);
    return QN_OK;
}

static qn_status make_room(qn_session *s, const staged *st, qn_err *err) {
    const size_t vocab = (size_t)s->engine->model->hparams->vocab;
    QN_TRY(qn_session_reserve(s, (size_t)st->head.n_tokens, err));
    if (st->logits && !s->logits) s->logits = qn_alloc(vocab, sizeof *s->logits);
    return st->logits && !s->logits ? QN_NOMEM(err, "logits") : QN_OK;
}

// Cannot fail.
static void take(qn_session *s, staged *st) {
    const qn_state_head *h = &st->head;
    const size_t width = (size_t)s->engine->model->hparams->width;
    qn_session_choose_adapter(s, st->adapter);
    qn_session_set_tokens(s, 0, st->tokens, (size_t)h->n_tokens);
    qn_session_set_media(s, &st->media);
    s->memory = (qn_session_memory){.n_prompt = (size_t)h->n_prompt,
                                    .shifted = h->shifted,
                                    .chooser = {h->tau, h->eta, h->surprise}};
    s->mark = 0;
    if (st->logits) memcpy(s->logits, st->logits, (size_t)h->n_logits * sizeof *s->logits);
    s->has_logits = st->logits != NULL;
    s->top_logits.n = h->n_top;
    s->top_logits.after = (size_t)h->top_after;
    if (st->top) memcpy(s->top_logits.entries, st->top, (size_t)h->n_top * sizeof *st->top);
    if (st->last) memcpy(s->last, st->last, width * sizeof *s->last);
    s->last_after = (size_t)h->last_after;
}

// What the session had stays in the prefix cache, as with a new prompt.
static qn_status replace(qn_session *s, staged *st, loading *from, qn_err *err) {
    QN_TRY(make_room(s, st, err));
    qn_session_remember(s);
    QN_TRY(qn_seq_place(s->seq, st->head.n_cached, err));
    qn_runner_flush_copies(s->shared->runner);
    const qn_status status = fill(st, from, s, err);
    if (status) {
        (void)qn_seq_truncate(s->seq, 0);
        qn_session_drop_logits(s);
        s->last_after = 0;
        return status;
    }
    take(s, st);
    return QN_OK;
}

qn_status qn_session_load(qn_session *session, qn_read_fn *fn, void *arg, int64_t size,
                          qn_err *err) {
    QN_NEED(session, err);
    QN_NEED(fn, err);
    QN_TRY(qn_session_need_plans(session, err));
    QN_TRY(qn_team_refuse(session->engine->team, "loading the state of a session", err));
    if (size < 0) return QN_FAIL(err, ARGUMENT, "%s: %lld bytes", what, (long long)size);
    if (qn_runner_is_recorded(session->shared->runner))
        return QN_FAIL(err, STATE, "%s cannot be loaded while steps are recorded (QN_STEPS)", what);
    staged st = {0};
    loading from = {
        .fn = fn, .arg = arg, .size = size, .hash = XXH3_createState(), .rows = XXH3_createState()};
    qn_status status = QN_OK;
    if (!from.hash || !from.rows || XXH3_64bits_reset(from.hash)) {
        status = QN_NOMEM(err, what);
        goto done;
    }
    QN_TRY_TO(done, stage(&st, &from, session, err));
    status = replace(session, &st, &from, err);

done:
    (void)XXH3_freeState(from.hash);
    (void)XXH3_freeState(from.rows);
    staged_deinit(&st);
    return status;
}

typedef struct bytes_in {
    const char *data;
    size_t size;
} bytes_in;

static int64_t read_bytes(void *arg, void *to, size_t n, int64_t at) {
    const bytes_in *in = arg;
    memcpy(to, in->data + at, n); // inside `size`, which the reading checked
    return (int64_t)n;
}

qn_status qn_session_load_bytes(qn_session *session, const void *data, size_t size, qn_err *err) {
    QN_NEED(session, err);
    QN_NEED(data, err);
    if (size > INT64_MAX) return QN_FAIL(err, ARGUMENT, "%s: %zu bytes", what, size);
    return qn_session_load(session, read_bytes, &(bytes_in){data, size}, (int64_t)size, err);
}

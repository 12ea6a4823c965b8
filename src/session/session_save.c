// qn_session_save: header, history, logits, rows of the KV cache and recurrent state, checksum.
#include "session/session_bytes.h"

#include "core/buf.h"
#include "core/mem.h"
#include "runtime/state_bytes.h"

#include <string.h>
#include <xxhash.h>

typedef struct saving {
    qn_write_fn *fn;
    void *arg;
    int64_t at;
    XXH3_state_t *hash;
} saving;

// A qn_bytes_fn.
static qn_status put(void *arg, void *bytes, size_t n, qn_err *err) {
    saving *to = arg;
    if (n == 0) return QN_OK;
    (void)XXH3_64bits_update(to->hash, bytes, n);
    if (!to->fn(to->arg, bytes, n))
        return QN_FAIL(err, IO, "the state of a session: %zu bytes at %lld were not written", n,
                       (long long)to->at);
    to->at += (int64_t)n;
    return QN_OK;
}

static bool add_bytes(int64_t *all, int64_t n, int64_t size) {
    int64_t bytes;
    return qn_i64_mul(&bytes, n, size) && qn_i64_add(all, *all, bytes);
}

static bool measure(int64_t *out, const qn_session *s, const qn_state_head *head) {
    const int64_t width = s->engine->model->hparams->width;
    int64_t all = sizeof *head + sizeof(uint64_t), state;
    bool fits = qn_seq_measure(&state, qn_runner_state(s->shared->runner), head->n_cached) &&
                qn_i64_add(&all, all, state) && add_bytes(&all, head->n_tokens, sizeof(int32_t)) &&
                add_bytes(&all, head->n_logits, sizeof(float)) &&
                add_bytes(&all, head->n_top, sizeof(qn_top_logit)) &&
                add_bytes(&all, head->last_after ? width : 0, sizeof(float));
    for (size_t i = 0; i < s->media.n; i++) {
        const qn_vision_rows *rows = &s->media.rows[i]->rows;
        fits = fits && add_bytes(&all, 1, sizeof(qn_state_image)) &&
               add_bytes(&all, rows->rows * rows->columns * width, sizeof(float));
    }
    *out = all;
    return fits;
}

static qn_status describe(qn_state_head *head, const qn_session *s, qn_err *err) {
    *head = (qn_state_head){.magic = QN_STATE_MAGIC, .version = QN_STATE_VERSION};
    QN_TRY(qn_state_key_of(&head->key, s->engine, s->adapter, err));
    const qn_chooser_memory *chooser = &s->memory.chooser;
    head->n_tokens = (int64_t)s->n_tokens;
    head->n_cached = (int64_t)qn_session_cached(s);
    head->n_prompt = (int64_t)s->memory.n_prompt;
    head->shifted = s->memory.shifted;
    head->n_images = (int64_t)s->media.n;
    head->n_logits = s->has_logits ? s->engine->model->hparams->vocab : 0;
    head->n_top = s->top_logits.n;
    head->top_after = s->top_logits.n ? (int64_t)s->top_logits.after : 0;
    head->last_after = s->last ? (int64_t)s->last_after : 0;
    head->tau = chooser->tau;
    head->eta = chooser->eta;
    head->surprise = chooser->surprise;
    if (!measure(&head->bytes, s, head))
        return QN_FAIL(err, LIMIT, "the state of %zu tokens: too large", s->n_tokens);
    return QN_OK;
}

static qn_status put_images(saving *to, const qn_session *s, qn_err *err) {
    for (size_t i = 0; i < s->media.n; i++) {
        const qn_image_span *span = &s->media.spans[i];
        const qn_vision_rows *rows = &s->media.rows[i]->rows;
        qn_state_image image = {span->first, span->rows, span->columns, span->left};
        QN_TRY(put(to, &image, sizeof image, err));
        QN_TRY(put(to, rows->data,
                   (size_t)(rows->rows * rows->columns * rows->width) * sizeof *rows->data, err));
    }
    return QN_OK;
}

static qn_status put_all(saving *to, qn_session *s, qn_state_head *head, qn_err *err) {
    const size_t width = (size_t)s->engine->model->hparams->width;
    QN_TRY(put(to, head, sizeof *head, err));
    QN_TRY(put(to, s->tokens, s->n_tokens * sizeof *s->tokens, err));
    QN_TRY(put_images(to, s, err));
    QN_TRY(put(to, s->logits, (size_t)head->n_logits * sizeof *s->logits, err));
    QN_TRY(
        put(to, s->top_logits.entries, (size_t)head->n_top * sizeof *s->top_logits.entries, err));
    if (head->last_after) QN_TRY(put(to, s->last, width * sizeof *s->last, err));
    qn_runner_flush_copies(s->shared->runner);
    QN_TRY(qn_seq_save(s->seq, put, to, err));
    uint64_t sum = XXH3_64bits_digest(to->hash);
    return put(to, &sum, sizeof sum, err);
}

qn_status qn_session_save(qn_session *session, qn_write_fn *fn, void *arg, qn_err *err) {
    QN_NEED(session, err);
    QN_NEED(fn, err);
    QN_TRY(qn_session_need_plans(session, err));
    QN_TRY(qn_team_refuse(session->engine->team, "saving the state of a session", err));
    if (session->media.given)
        return QN_FAIL(err, UNSUPPORTED,
                       "the state of a session: %lld of its %zu tokens came with given rows or "
                       "positions, which are not saved",
                       (long long)session->media.n_given, session->n_tokens);
    qn_state_head head;
    QN_TRY(describe(&head, session, err));
    saving to = {.fn = fn, .arg = arg, .hash = XXH3_createState()};
    if (!to.hash) return QN_NOMEM(err, "the state of a session");
    (void)XXH3_64bits_reset(to.hash);
    const qn_status status = put_all(&to, session, &head, err);
    (void)XXH3_freeState(to.hash);
    return status;
}

static bool add_to_buf(void *arg, const void *data, size_t n) {
    qn_buf *buf = arg;
    qn_buf_add(buf, data, n);
    return !buf->failed;
}

qn_status qn_session_save_bytes(void **data, size_t *size, qn_session *session, qn_err *err) {
    QN_NEED(data, err);
    QN_NEED(size, err);
    QN_NEED(session, err);
    qn_buf buf = {0};
    qn_status status = qn_session_save(session, add_to_buf, &buf, err);
    const size_t n = buf.size;
    char *bytes = NULL;
    if (buf.failed) status = QN_NOMEM(err, "the state of a session");
    if (!status) status = qn_buf_take(&bytes, &buf, err);
    qn_buf_deinit(&buf);
    if (status) return status;
    *data = bytes;
    *size = n;
    return QN_OK;
}

// Prefill: which tokens of a prompt are computed next, and what goes to the prefix cache.
#include "session/session_int.h"

#include "core/stop_flag.h"

// State is also kept at multiples of this: an edit far back computes fewer tokens again, and
// recurrent layers keep one state for that many. Not tuned.
enum { KEPT_ROWS = 2048 };

void qn_session_remember(qn_session *s) {
    if (s->keeps && qn_session_cached(s) > 0) qn_state_remember(s->seq, s->keys);
}

void qn_session_begin_prefill(qn_session *s, size_t end, size_t max) {
    if (s->keeps && qn_session_cached(s) == 0 && max > 0)
        s->reused += qn_state_find(s->seq, s->keys, (int64_t)max);
    if (qn_session_cached(s) + 1 < end) s->prefill_end = end; // one token alone is decode
}

int64_t qn_session_next_rows(const qn_session *s, size_t end, int64_t max) {
    const int64_t cached = (int64_t)qn_session_cached(s);
    const int64_t left = (int64_t)end - cached, to_mark = (int64_t)s->mark - cached;
    const int64_t rows = left < max ? left : max;
    return to_mark > 0 && to_mark < rows ? to_mark : rows; // a step ends there
}

qn_status qn_session_prefilled(qn_session *s, int64_t rows, qn_err *err) {
    const int64_t at = (int64_t)qn_session_cached(s), end = (int64_t)s->prefill_end,
                  left = end - at;
    const bool is_mark = at == (int64_t)s->mark || (at - rows) / KEPT_ROWS != at / KEPT_ROWS;
    // The last step but one of a prompt ends close enough to be reused when its end is edited.
    if (is_mark || (end && left >= 0 && left <= s->chunk)) qn_session_remember(s);
    if (end == 0) return QN_OK;
    if (left <= 0) s->prefill_end = 0;
    if (s->progress && !s->progress(s->progress_arg, at, end) && left > 0)
        return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)at,
                       (long long)end);
    return QN_OK;
}

qn_status qn_session_compute(qn_session *s, size_t n, int64_t top, qn_err *err) {
    const bool wants_logits = top != QN_TOP_NONE;
    qn_session_begin_prefill(s, n, n - wants_logits);
    for (size_t at = qn_session_cached(s); at < n; at = qn_session_cached(s)) {
        if (qn_stop_is_wanted(s->stop))
            return QN_FAIL(err, STOPPED, "stopped after %zu of %zu tokens", at, n);
        const int64_t rows = qn_session_next_rows(s, n, s->chunk);
        const qn_segment segment = {.seq = s->seq,
                                    .ids = s->tokens + at,
                                    .rows = rows,
                                    .outs = wants_logits && at + (size_t)rows == n,
                                    .top = wants_logits ? top : 0,
                                    .media = &s->media};
        QN_TRY(qn_session_run(s->shared, &s, &segment, 1, err));
        QN_TRY(qn_session_prefilled(s, rows, err));
    }
    return wants_logits ? qn_session_take(s, 0, top, err) : QN_OK;
}

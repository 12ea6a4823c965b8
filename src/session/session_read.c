// Reading a prompt: which of its tokens are computed next, and what is kept of them.
#include "session/session_int.h"

#include "core/stop_flag.h"

enum { KEPT_ROWS = 2048 }; // state is kept at multiples of this, too

void qn_session_remember(qn_session *s) {
    if (s->keeps && qn_session_cached(s) > 0) qn_state_remember(s->seq, s->keys);
}

void qn_session_begin_reading(qn_session *s, size_t end, size_t most) {
    if (s->keeps && qn_session_cached(s) == 0 && most > 0)
        s->reused += qn_state_find(s->seq, s->keys, (int64_t)most);
    if (qn_session_cached(s) + 1 < end) s->reads_to = end; // one token alone is no prompt
}

int64_t qn_session_next_rows(const qn_session *s, size_t end, int64_t most) {
    const int64_t cached = (int64_t)qn_session_cached(s);
    const int64_t left = (int64_t)end - cached, to_mark = (int64_t)s->mark - cached;
    const int64_t rows = left < most ? left : most;
    return to_mark > 0 && to_mark < rows ? to_mark : rows; // a step ends there
}

qn_status qn_session_has_read(qn_session *s, int64_t rows, qn_err *err) {
    const int64_t at = (int64_t)qn_session_cached(s), end = (int64_t)s->reads_to, left = end - at;
    const bool is_mark = at == (int64_t)s->mark || (at - rows) / KEPT_ROWS != at / KEPT_ROWS;
    // The last step but one of a prompt ends near enough to go back to, if its end is changed.
    if (is_mark || (end && left >= 0 && left <= s->chunk)) qn_session_remember(s);
    if (end == 0) return QN_OK;
    if (left <= 0) s->reads_to = 0;
    if (s->progress && !s->progress(s->progress_arg, at, end) && left > 0)
        return QN_FAIL(err, STOPPED, "stopped after %lld of %lld tokens", (long long)at,
                       (long long)end);
    return QN_OK;
}

qn_status qn_session_compute(qn_session *s, size_t n, int64_t top, qn_err *err) {
    const bool wants_scores = top != QN_TOP_NONE;
    qn_session_begin_reading(s, n, n - wants_scores);
    for (size_t at = qn_session_cached(s); at < n; at = qn_session_cached(s)) {
        if (qn_stop_is_wanted(s->stop))
            return QN_FAIL(err, STOPPED, "stopped after %zu of %zu tokens", at, n);
        const int64_t rows = qn_session_next_rows(s, n, s->chunk);
        const qn_segment segment = {.seq = s->seq,
                                    .ids = s->tokens + at,
                                    .rows = rows,
                                    .outs = wants_scores && at + (size_t)rows == n,
                                    .top = wants_scores ? top : 0};
        QN_TRY(qn_session_run(s->shared, &s, &segment, 1, err));
        QN_TRY(qn_session_has_read(s, rows, err));
    }
    return wants_scores ? qn_session_take(s, 0, top, err) : QN_OK;
}

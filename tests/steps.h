// Single steps of a session, many of them.
#ifndef QN_TESTS_STEPS_H
#define QN_TESTS_STEPS_H

#include "quern.h"

// Up to n steps; *n_new tokens were appended to the history, also where a later step failed.
static inline qn_status take_steps(size_t *n_new, qn_session *session, size_t n,
                                   const qn_sample_opts *opts, qn_err *err) {
    qn_status status = QN_OK;
    *n_new = 0;
    for (size_t i = 0; i < n && !status; i++) {
        int32_t token;
        status = qn_session_step(&token, session, opts, err);
        *n_new += !status;
    }
    return status;
}

#endif

// Errors: how every fallible function of the library reports.
//
// A fallible function returns qn_status and takes `qn_err *err` last (NULL allowed). It fails with
//     return QN_FAIL(err, FORMAT, "tensor %s: %d dims, want %d", name, got, want);
// and forwards with QN_TRY(call). With two or more resources to release, use a local `status`, one
// `done:` label and QN_TRY_TO(done, call).
#ifndef QN_CORE_ERR_H
#define QN_CORE_ERR_H

#include "quern.h"

#if defined(__GNUC__)
#define QN_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
#else
#define QN_PRINTF(fmt, args)
#endif

// The value is the constant itself, so that compilers see that a failed call returns early.
#define QN_FAIL(err, code, ...)                                                                    \
    (qn_err_set(err, QN_##code, __FILE__, __LINE__, __VA_ARGS__), (qn_status)QN_##code)

#define QN_TRY(call)                                                                               \
    do {                                                                                           \
        const qn_status try_status_ = (call);                                                      \
        if (try_status_) return try_status_;                                                       \
    } while (0)

#define QN_TRY_TO(label, call)                                                                     \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status) goto label;                                                                    \
    } while (0)

// For the functions of quern.h: a pointer that the caller must give.
#define QN_NEED(pointer, err)                                                                      \
    do {                                                                                           \
        if (!(pointer)) return QN_FAIL(err, ARGUMENT, "%s: %s is NULL", __func__, #pointer);       \
    } while (0)

// Out of memory, naming what the memory was for.
#define QN_NOMEM(err, what) QN_FAIL(err, MEMORY, "out of memory: %s", what)

// Fills `err` (if any). What must not be shown (core/printable.h) becomes '?', so that names taken
// from hostile files cannot disturb a terminal.
QN_PRINTF(5, 6)
void qn_err_set(qn_err *err, qn_status status, const char *file, int line, const char *fmt, ...);

// Puts "prefix: " in front of the message of a failed call; returns err's status unchanged.
QN_PRINTF(3, 4) qn_status qn_err_prefix(qn_err *err, qn_status status, const char *fmt, ...);

#endif

// What every test program includes: cmocka in its required order, and checks for qn_status.
#ifndef QN_TESTS_TESTING_H
#define QN_TESTS_TESTING_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "core/err.h"

#include <string.h>

// The call must succeed; a failure prints the library's message. Expects a local `qn_err err`.
#define ASSERT_OK(call)                                                                            \
    do {                                                                                           \
        if ((call) != QN_OK) fail_msg("%s: %s", #call, err.message);                               \
    } while (0)

// The call must fail with this status, and its message must contain `part`.
#define ASSERT_FAILS(call, code, part)                                                             \
    do {                                                                                           \
        const qn_status got_ = (call);                                                             \
        if (got_ != (code))                                                                        \
            fail_msg("%s: status %s, want %s (%s)", #call, qn_status_name(got_),                   \
                     qn_status_name(code), got_ ? err.message : "");                               \
        if (!strstr(err.message, (part)))                                                          \
            fail_msg("%s: message '%s' does not contain '%s'", #call, err.message, (part));        \
    } while (0)

#endif

// What every test program includes: cmocka in its required order, and checks for qn_status.
#ifndef QN_TESTS_TESTING_H
#define QN_TESTS_TESTING_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "core/err.h"

#include <stdlib.h>
#include <string.h>

extern char **environ;

// What the user of this machine keeps for Quern is none of the tests' business.
__attribute__((constructor)) static void forget_user(void) {
    static const char prefix[] = "QUERN_";
    for (char **at = environ; at && *at;) {
        char name[128];
        const size_t n = strcspn(*at, "=");
        const bool is_ours = strncmp(*at, prefix, strlen(prefix)) == 0 && n < sizeof name;
        if (!is_ours) at++;
        if (!is_ours) continue;
        memcpy(name, *at, n);
        name[n] = 0;
        (void)unsetenv(name); // the next one takes its place
    }
    (void)unsetenv("XDG_CONFIG_HOME"), (void)unsetenv("XDG_DATA_HOME");
    (void)unsetenv("XDG_CACHE_HOME"), (void)setenv("HOME", "/nonexistent", 1);
}

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

// What the library knows of its objects, by value.
#define FACTS(name, type, call, ...)                                                               \
    static inline type name(__VA_ARGS__) {                                                         \
        type out = QN_INIT(type);                                                                  \
        qn_err err;                                                                                \
        ASSERT_OK(call);                                                                           \
        return out;                                                                                \
    }
FACTS(engine_info, qn_engine_info, qn_engine_get_info(&out, engine, &err), const qn_engine *engine)
FACTS(tokenizer_info, qn_tokenizer_info, qn_tokenizer_get_info(&out, tokenizer, &err),
      const qn_tokenizer *tokenizer)
FACTS(tensor_info, qn_tensor_info, qn_source_tensor_info(&out, source, i, &err),
      const qn_source *source, size_t i)
FACTS(sample_defaults, qn_sample_opts, qn_engine_sample_defaults(&out, engine, &err),
      const qn_engine *engine)
FACTS(session_counts, qn_session_counts, qn_session_get_counts(&out, session, &err),
      const qn_session *session)
FACTS(batch_counts, qn_batch_counts, qn_batch_get_counts(&out, batch, &err), qn_batch *batch)
FACTS(engine_cost, qn_cost, qn_engine_cost(&out, engine, step, &err), const qn_engine *engine,
      const qn_step_size *step)
#undef FACTS

#endif

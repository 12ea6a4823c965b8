// The server's log: one line for each request, as text or JSON, to stderr. Answers are never in it,
// prompts only if that was asked for (--log-prompts).
#ifndef QN_SERVER_LOGGER_H
#define QN_SERVER_LOGGER_H

#include "core/json.h"

#include <pthread.h>

typedef struct qn_exchange qn_exchange;

// Caller storage.
typedef struct qn_logger {
    pthread_mutex_t lock;
    bool is_json, is_quiet, has_prompts;
} qn_logger;

typedef struct qn_server_opts qn_server_opts;
QN_MUST_CHECK qn_status qn_logger_init(qn_logger *logger, const qn_server_opts *opts, qn_err *err);
void qn_logger_deinit(qn_logger *logger);
// What happened apart from requests; `level` is "info", "warning" or "error".
QN_PRINTF(3, 4) void qn_logger_say(qn_logger *logger, const char *level, const char *fmt, ...);
// An exchange that has ended.
void qn_logger_exchange(qn_logger *logger, qn_exchange *ex);
// A field of a request that nothing here knows: told once for each request, at most a few.
void qn_logger_field(qn_logger *logger, const qn_exchange *ex, const char *name);
// What a request asks, of its body: prompts and messages as they came, cut. Nothing unless prompts
// were asked for.
void qn_logger_prompt(qn_logger *logger, const qn_exchange *ex, const json_t *body);

#endif

// What the handlers of Ollama's routes share.
#ifndef QN_SERVER_API_OLLAMA_H
#define QN_SERVER_API_OLLAMA_H

#include "server/api.h"

// {"model", "created_at"}
json_t *qn_ollama_head(const char *model);
// A time as RFC 3339 has it, with nanoseconds, in UTC.
json_t *qn_ollama_time(const struct timespec *at);

#endif

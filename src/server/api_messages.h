// Anthropic's /v1/messages, in two files: what is asked (api_messages_read.c), and how it is
// answered (api_messages.c).
#ifndef QN_SERVER_API_MESSAGES_H
#define QN_SERVER_API_MESSAGES_H

#include "server/job.h"

// Brings the request into the form of chat completions. The first is for answers, which must have
// max_tokens; the second for counting.
QN_MUST_CHECK qn_status qn_anthropic_prepare(qn_ask *ask, qn_problem *problem);
QN_MUST_CHECK qn_status qn_anthropic_prepare_count(qn_ask *ask, qn_problem *problem);
// How answers are written.
extern const qn_dialect qn_anthropic_dialect;

#endif

// OpenAI's /v1/responses, in two files: what is asked (api_responses_read.c), and how it is
// answered (api_responses.c). Stateless: the whole conversation comes in "input" each time.
#ifndef QN_SERVER_API_RESPONSES_H
#define QN_SERVER_API_RESPONSES_H

#include "server/job.h"

// Brings the request into the form of chat completions. ask->origins is {name of a tool: {"name",
// "namespace"}} for the tools that came in namespaces.
QN_MUST_CHECK qn_status qn_responses_prepare(qn_ask *ask, qn_problem *problem);
// How answers are written.
extern const qn_dialect qn_responses_dialect;

#endif

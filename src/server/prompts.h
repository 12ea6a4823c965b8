// Prompts of a request: a text, token ids, a mix of both, or a list of such.
#ifndef QN_SERVER_PROMPTS_H
#define QN_SERVER_PROMPTS_H

#include "server/problem.h"
#include "server/served.h"

typedef struct qn_asked_prompt {
    int32_t *ids; // (n), owned
    size_t n;
    char *text; // owned, `text_size` bytes: as written, or as the ids spell it; NULL: not asked for
    size_t text_size;
} qn_asked_prompt;

// Caller storage; {0} is fine to deinit.
typedef struct qn_prompts {
    qn_asked_prompt *items; // (n), owned
    size_t n;
    bool is_list; // the request had a list of prompts, maybe of one
} qn_prompts;

typedef struct qn_prompts_opts {
    const char *field; // of the request, for errors
    size_t max;        // prompts that are read
    bool special;      // special tokens that are written in texts are recognised
    bool wants_text;
    int64_t context;          // max tokens of a prompt; others are cut or refused
    bool cut;                 // those that have more are cut
    const qn_stop_flag *stop; // NULL: none
} qn_prompts_opts;

// Release *out with qn_prompts_deinit, also after a failure.
QN_MUST_CHECK qn_status qn_prompts_read(qn_prompts *out, const json_t *from, const qn_served *model,
                                        const qn_prompts_opts *opts, qn_problem *problem);
void qn_prompts_deinit(qn_prompts *prompts);

// Tokens after which a prompt is not read on, as it will be refused: so many that the length of one
// that is a little too long can be told.
size_t qn_prompt_bound(int64_t context);
// Refuses prompt `i` (of several if `is_list`) that has n tokens, or that many at least, which do
// not fit.
typedef struct qn_overflow {
    const char *field;
    bool is_list;
    size_t i, n;
    bool is_least;
    int64_t context; // the model's, that of the server (-c), or that of the request (num_ctx)
    const qn_served *model;
} qn_overflow;
QN_MUST_CHECK qn_status qn_refuse_overflow(qn_problem *problem, const qn_overflow *overflow);

#endif

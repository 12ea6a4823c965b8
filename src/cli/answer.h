// One answer: tokens out of a session, printed as they come.
#ifndef QN_CLI_ANSWER_H
#define QN_CLI_ANSWER_H

#include "cli/command.h"
#include "cli/progress.h"
#include "core/buf.h"

typedef struct qn_answer_opts {
    qn_session *session; // with its prompt set
    const qn_tokenizer *tokenizer;
    int64_t context; // of the session
    int64_t most;    // tokens; 0: no limit
    qn_sample_opts sample;
    qn_texts stops; // texts that end the answer and are not part of it
    bool naive;     // recompute the whole text for each token
    bool json;      // events, one JSON object a line, instead of text
    // Of the session's prompt, begun anew by each answer and taken away with its first token; its
    // `from` is -1 until the first call. NULL: none.
    qn_progress *reading;
} qn_answer_opts;

typedef struct qn_answer {
    qn_buf text;
    const char *reason; // "end", "length", "stop", "context", "interrupted"
    int64_t n_prompt, n_tokens;
    int64_t n_reused;               // of the prompt: computed for an earlier one
    double seconds, prompt_seconds; // of all; until the first token was there
} qn_answer;

// Tokens per second of the answer, reading the prompt aside where there is more than one.
double qn_answer_speed(const qn_answer *answer);

// Prints the answer to stdout while it comes. Release *out with qn_answer_deinit. QN_STOPPED: the
// session's progress function stopped the reading of the prompt, and nothing was printed.
QN_MUST_CHECK qn_status qn_answer_run(qn_answer *out, const qn_answer_opts *opts, qn_err *err);
void qn_answer_deinit(qn_answer *answer);

#endif

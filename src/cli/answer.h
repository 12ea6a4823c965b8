// One answer: what a generation gives, in its parts, printed as it comes.
#ifndef QN_CLI_ANSWER_H
#define QN_CLI_ANSWER_H

#include "cli/progress.h"
#include "core/err.h"

typedef struct qn_answer_opts {
    qn_session *session; // with its prompt set
    const qn_tokenizer *tokenizer;
    qn_generate_opts generate;
    const qn_chat_turn *turn; // that the prompt is of; NULL: all is text
    bool json;                // events, one JSON object per line, instead of text
    bool is_plain;            // Markdown is shown as it was written
    bool no_wrap;             // lines are left to the terminal
    // Of the session's prompt, restarted by each answer and removed with its first token; its
    // `from` is -1 until the first call. NULL: none.
    qn_progress *reading;
} qn_answer_opts;

typedef struct qn_answer {
    qn_chat_reply *reply; // what was said
    const char *reason;   // "end", "length", "stop", "interrupted"
    bool is_full;         // length is that of the context
    int64_t n_prompt, n_tokens;
    int64_t n_reused;               // of the prompt: computed for an earlier one
    int64_t n_drafted, n_accepted;  // tokens drafted; of these, accepted
    int64_t n_shifts;               // times that a full context was shifted
    double seconds, prompt_seconds; // of all; until the first token was there
} qn_answer;

// Tokens per second of the answer, reading the prompt aside where there is more than one; and of
// the prompt, cached ones not counted.
double qn_answer_speed(const qn_answer *answer);
double qn_answer_prompt_speed(const qn_answer *answer);

// Prints the answer to stdout while it comes: on a terminal in lines of its width, reasoning
// dimmed and calls labelled; elsewhere the text and the calls as the model wrote them, without
// reasoning. Release *out with qn_answer_deinit. QN_STOPPED: the session's progress function
// stopped the reading of the prompt, and nothing was printed.
QN_MUST_CHECK qn_status qn_answer_run(qn_answer *out, const qn_answer_opts *opts, qn_err *err);
void qn_answer_deinit(qn_answer *answer);

#endif

// Where guesses of the next tokens come from: text that repeats itself, a smaller model, or whoever
// a test puts there.
#ifndef QN_SESSION_GENERATE_DRAFT_H
#define QN_SESSION_GENERATE_DRAFT_H

#include "session/session_int.h"
#include "gen/draft.h"

// Guesses up to `most` tokens behind the n tokens of a history; returns how many. They may be
// anything: what is wrong costs time alone.
typedef int32_t qn_guess_fn(void *arg, int32_t *to, int32_t most, const int32_t *tokens, size_t n);

// A draft model's session, kept in step with a history that guesses may have to be taken back from.
typedef struct qn_draft_model {
    qn_session *session; // borrowed; NULL: none
    qn_sampler *sampler;
    size_t agreed; // first tokens that are known to be those of the history
    // State that cannot be cut short anywhere is kept here before it is guessed on.
    bool is_delicate;
    qn_checkpoint *kept; // NULL: none
} qn_draft_model;

typedef struct qn_guesser {
    bool has_lookup;
    qn_guess_fn *fn;
    void *fn_arg;
    qn_draft_model model;
    qn_draft_record records[QN_GUESS_SOURCES]; // begin as the last answer of the family left them
    // The present guess.
    int32_t tokens[QN_MAX_DRAFT]; // (n)
    int32_t n;
    int source;
    int64_t ns;
} qn_guesser;

// Checks that the draft's vocabulary is that of `session`.
QN_MUST_CHECK qn_status qn_guesser_init(qn_guesser *guesser, const qn_session *session,
                                        const qn_generate_opts *opts, qn_err *err);
void qn_guesser_deinit(qn_guesser *guesser);

// What a guess is for.
typedef struct qn_guess_want {
    const qn_session *session; // whose history it goes on from
    const uint32_t *allowed;   // tokens that may come next, as far as is known; NULL: all
    int32_t least, most;
    int64_t rows; // of the step without it
} qn_guess_want;

// Fills guesser->tokens and n.
QN_MUST_CHECK qn_status qn_guesser_guess(qn_guesser *guesser, const qn_guess_want *want,
                                         qn_err *err);
// Of the present guess for a session, so many were right.
void qn_guesser_judge(qn_guesser *guesser, const qn_session *session, int32_t accepted);
// The history is another one now.
void qn_guesser_reset(qn_guesser *guesser);

#endif

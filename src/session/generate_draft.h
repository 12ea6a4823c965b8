// Where the drafts of speculative decoding come from: n-gram lookup, the model's own prediction
// head, a draft model, or a function of the caller's.
#ifndef QN_SESSION_GENERATE_DRAFT_H
#define QN_SESSION_GENERATE_DRAFT_H

#include "session/session_int.h"
#include "gen/draft.h"

// A draft model's session, which follows a history and is rolled back where drafts were wrong.
typedef struct qn_draft_model {
    qn_session *session; // borrowed; NULL: none
    size_t agreed;       // first tokens, known to equal those of the history
    // State that cannot be truncated anywhere is saved here before drafting.
    bool is_delicate;
    qn_checkpoint *kept; // NULL: none
} qn_draft_model;

typedef struct qn_drafter {
    bool has_lookup;
    qn_draft_fn *fn;
    void *fn_arg;
    qn_draft_model model;
    qn_chooser *model_sampler; // of its vocabulary; NULL: there is no draft model
    bool has_head, is_fast;    // the prediction head; only its first logits
    float *row;                // (width) of the head, for its next token; NULL: there is no head
    qn_chooser *head_sampler;  // of the model's vocabulary; NULL: there is no head
    qn_draft_record records[QN_DRAFT_SOURCES]; // start as the last answer of the family left them
    // The current draft.
    int32_t tokens[QN_MAX_DRAFT]; // (n)
    int32_t n;
    int32_t by_head; // tokens that qn_drafters_run_heads is to draft
    int source;
    int64_t ns;
} qn_drafter;

// Checks that the draft's vocabulary is that of `session`.
QN_MUST_CHECK qn_status qn_drafter_init(qn_drafter *drafter, const qn_session *session,
                                        const qn_generate_opts *opts, qn_err *err);
void qn_drafter_deinit(qn_drafter *drafter);

// What a draft is for.
typedef struct qn_draft_want {
    const qn_session *session; // whose history it continues
    const uint32_t *allowed;   // tokens that may come next, without the grammar; NULL: all
    int32_t min, max;
    int64_t rows; // of the step without the draft
} qn_draft_want;

// Fills drafter->tokens and n; n = 0 where no source has a draft that pays off. What the head is to
// draft is only counted, in by_head: it runs for all rows of a step together.
QN_MUST_CHECK qn_status qn_drafter_propose(qn_drafter *drafter, const qn_draft_want *want,
                                           qn_err *err);
// Drafts with the head for rows of one runner, a token of each at a time; where there is no room,
// or a head fails, a row has fewer drafts or none.
void qn_drafters_run_heads(qn_shared *shared, const qn_head_want *wants, int64_t n);
// Records that the first `accepted` tokens of the current draft were right.
void qn_drafter_judge(qn_drafter *drafter, const qn_session *session, int32_t accepted);
// The history was replaced: nothing of it agrees any more.
void qn_drafter_reset(qn_drafter *drafter);

#endif

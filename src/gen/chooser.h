// Choosing a token from a row of logits, as qn_sample_opts in quern.h says.
//
// bias, bans, allowed -> steps in their order (penalties, filters, temperature) -> one draw. What
// each step computes is in docs/sampling.md. A choice depends on the settings, the logits, the
// tokens before it, its position and a qn_chooser_memory alone, all of which belong to the sequence
// and none to the chooser: so it is the same in a batch, under speculation, in a fork and after a
// restart.
#ifndef QN_GEN_CHOOSER_H
#define QN_GEN_CHOOSER_H

#include "core/err.h"
#include "gen/top_logits.h"

// Settings and scratch. One thread at a time.
typedef struct qn_chooser qn_chooser;

// Greedy at first. The tokenizer (borrowed) may be NULL: then bans are refused, and DRY has no
// breakers. Logits without a token (a row has n_vocab, which may be more than the tokenizer has)
// are never chosen.
QN_MUST_CHECK qn_status qn_chooser_create(qn_chooser **out, const qn_tokenizer *tokenizer,
                                          int64_t n_vocab, qn_err *err);
// The same for the vocabulary of another chooser, whose scratch is shared: nothing of a
// vocabulary's size is allocated, and both are used by one thread at a time. Any thread may do this
// meanwhile.
QN_MUST_CHECK qn_status qn_chooser_create_like(qn_chooser **out, const qn_chooser *other,
                                               qn_err *err);
void qn_chooser_destroy(qn_chooser *chooser);

// Checks every value and prepares the steps; may allocate. Does nothing if the settings equal those
// that are set. After a failure the old ones stay.
QN_MUST_CHECK qn_status qn_chooser_set(qn_chooser *chooser, const qn_sample_opts *opts,
                                       qn_err *err);

// What choices depend on besides the tokens before them; a sequence begins with {0}. Choices
// without mirostat leave it alone.
typedef struct qn_chooser_memory {
    float tau, eta;  // of the mirostat that chose last; others start again. 0: none has
    double surprise; // max that it allows a token, in bits
} qn_chooser_memory;

typedef struct qn_chooser_in {
    const float *logits;     // (n_vocab) as the model gave them; may be NULL where `top` is enough
    bool is_given;           // they are a caller's, who may have excluded tokens by -inf
    const qn_top_logit *top; // (n_top) of a row that was checked, in order; NULL: unknown
    int64_t n_top;
    const int32_t *tokens; // (n_tokens) of prompt and answer so far, all below n_vocab
    size_t n_tokens, n_prompt;
    uint64_t position;         // of the token that is chosen
    const uint32_t *allowed;   // a bit for each token, lowest first; NULL: all
    qn_chooser_memory *memory; // the choice is added to it; NULL: nothing is remembered
    // Sees a copy of all logits before anything else does, and may change them: to numbers, or
    // -inf, which excludes a token. False stops the choice (QN_STOPPED). NULL: none
    bool (*change)(void *arg, float *logits);
    void *change_arg;
} qn_chooser_in;

// Allocates nothing. A failure leaves the memory as it was.
QN_MUST_CHECK qn_status qn_chooser_choose(int32_t *token, qn_chooser *chooser,
                                          const qn_chooser_in *in, qn_err *err);

// Whether the largest of the raw logits is the choice, as long as nothing is disallowed.
bool qn_chooser_is_greedy(const qn_chooser *chooser);
// How many top logits the choice depends on, at most QN_MAX_TOP_LOGITS; 0: on all logits. Where n
// tokens are disallowed, n more are enough.
int64_t qn_chooser_top(const qn_chooser *chooser);

#endif

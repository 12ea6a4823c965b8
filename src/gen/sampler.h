// Choosing a token from a row of scores, as qn_sample_opts in quern.h says.
//
// bias, bans, allowed -> steps in their order (penalties, filters, temperature) -> one draw. What
// each step computes is in docs/sampling.md. A choice depends on the settings, the scores, the
// tokens before it and its position alone (with mirostat also on the choices before it), so it is
// the same in a batch, under speculation and after a restart.
#ifndef QN_GEN_SAMPLER_H
#define QN_GEN_SAMPLER_H

#include "core/err.h"
#include "gen/best.h"

// Settings, scratch and running state (mirostat) of one sequence. One thread at a time.
typedef struct qn_sampler qn_sampler;

// Greedy at first. The tokenizer (borrowed) may be NULL: then bans are refused, and DRY has no
// breakers.
QN_MUST_CHECK qn_status qn_sampler_create(qn_sampler **out, const qn_tokenizer *tokenizer,
                                          int64_t n_vocab, qn_err *err);
void qn_sampler_destroy(qn_sampler *sampler);

// Checks every value, and prepares what follows from them; may allocate. Nothing happens if the
// settings are equal to those that are set. After a failure the old ones stay. Other settings of
// mirostat begin its running state anew.
QN_MUST_CHECK qn_status qn_sampler_set(qn_sampler *sampler, const qn_sample_opts *opts,
                                       qn_err *err);

typedef struct qn_sampler_in {
    const float *logits;  // (n_vocab) as the model gave them; may be NULL where `best` is enough
    const qn_score *best; // (n_best) the best of a sound row, in order; NULL: not known
    int64_t n_best;
    const int32_t *tokens; // (n_tokens) of prompt and answer so far, all below n_vocab
    size_t n_tokens, n_prompt;
    uint64_t position;       // of the token that is chosen
    const uint32_t *allowed; // a bit for each token, lowest first; NULL: all
} qn_sampler_in;

// Allocates nothing. Adds the choice to the running state.
QN_MUST_CHECK qn_status qn_sampler_choose(int32_t *token, qn_sampler *sampler,
                                          const qn_sampler_in *in, qn_err *err);
// Forgets the running state, for another sequence.
void qn_sampler_reset(qn_sampler *sampler);

// Whether the best entry of the raw scores is the choice, as long as nothing is disallowed.
bool qn_sampler_is_greedy(const qn_sampler *sampler);
// How many of the best raw scores the choice depends on, at most QN_BEST_MOST; 0: on all of them. As
// long as nothing is disallowed.
int64_t qn_sampler_top(const qn_sampler *sampler);

#endif

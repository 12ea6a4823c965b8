// A model that is served: its engine, its batch and the thread that steps it.
//
// Everything here is constant while the model is open, but for the batch, which any thread adds to,
// and what is atomic or has a lock.
// A job whose answer has ended is handed to the step thread, which releases it when its rows are
// certainly out of the batch.
#ifndef QN_SERVER_SERVED_H
#define QN_SERVER_SERVED_H

#include "server/workers.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct qn_server qn_server;
typedef struct qn_job qn_job;

typedef struct qn_served {
    qn_server *server; // borrowed
    qn_engine *engine, *draft_engine;
    qn_engine_info info;
    const qn_tokenizer *tokenizer; // of the engine
    qn_template *template;         // NULL: the model has none that is known
    qn_batch *batch;
    qn_session *draft;     // of the draft model; NULL: none
    qn_sample_opts sample; // what requests do not say
    int64_t context;       // max tokens of a request
    bool has_vision;
    bool has_thinking, has_tools; // the template knows about them

    atomic_int_least64_t n_waiting; // requests none of whose rows have begun
    qn_stop_flag *give_up;          // ends all answers
    // Steps failed so often that answers are given up; /health tells it until one succeeds.
    atomic_bool is_failing;

    pthread_mutex_t like_lock; // of its own: steps do not wait while it is made
    qn_grammar *like;          // any grammar of this tokenizer, made when the first is wanted

    pthread_mutex_t lock;  // of what follows
    qn_job *ended, *older; // jobs that wait to be released: since this step, since the one before
    bool is_ending;
    int64_t n_steps;        // ended, well or not
    pthread_cond_t stepped; // that number has changed
    qn_workers embedder;    // one thread, made when the first embeddings are wanted
    bool has_embedder;
    int n_embedding; // of the embedder's thread: requests that it has begun
    pthread_t thread;
    bool is_running;
} qn_served;

// What an error says of a draft model of another vocabulary, between its path and the reason.
#define QN_DRAFT_MISFIT "does not fit the model: "

// Opens the model and starts its thread. state_bytes: max of its KV cache and state; 0: what all
// rows can need, at most half of what is free. QN_STATE: the draft model does not fit.
QN_MUST_CHECK qn_status qn_served_open(qn_served **out, qn_server *server, const char *path,
                                       int64_t state_bytes, qn_err *err);
// No job may be left, and none be added.
void qn_served_close(qn_served *served);

// Steps for one token of an answer: those of hostile grammars must not hold up all others.
enum { QN_SERVED_TOKEN_STEPS = 1 << 20 };
// Calls make(arg, max_steps, err), which makes a grammar, with few steps, and where these are not
// enough (QN_LIMIT) with as many as grammars may have (0). Few of those that take long are made at
// a time; one more is QN_STOPPED, to be tried again.
typedef qn_status qn_served_make_fn(void *arg, int64_t max_steps, qn_err *err);
QN_MUST_CHECK qn_status qn_served_make(qn_served *served, qn_served_make_fn *make, void *arg,
                                       qn_err *err);
// A grammar for its tokenizer, made so, and fast: to be destroyed.
QN_MUST_CHECK qn_status qn_served_grammar(qn_grammar **out, qn_served *served, qn_grammar_kind kind,
                                          const char *text, size_t size,
                                          const qn_grammar_opts *opts, qn_err *err);
// Any grammar for its tokenizer, borrowed; for qn_chat_opts.like.
QN_MUST_CHECK qn_status qn_served_like(const qn_grammar **out, qn_served *served, qn_err *err);
// Calls fn(ex) on the thread that computes this model's embeddings, one after the other. False: too
// many wait already, or no memory.
bool qn_served_embed(qn_served *served, void (*fn)(qn_exchange *ex), qn_exchange *ex);
// Max answers that are computed at a time.
int64_t qn_served_rows(qn_served *served);
// On that thread, between parts of its work: lets answers that are being computed have a step to
// themselves.
void qn_served_let_step(qn_served *served);
// A job that has ended: released after the steps that its rows may still be in.
void qn_served_bury(qn_served *served, qn_job *job);

#endif

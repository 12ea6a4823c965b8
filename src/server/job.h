// An ask that is being answered: rows in a batch, and what has come of them.
//
// A handler reads an ask, takes the model and creates a job for a conversation or for prompts. From
// then on everything happens on the model's step thread: events become parts, parts are collected
// and handed to the dialect, which writes them. When the last row has ended, the dialect writes the
// end, and the job is released after the next step.
#ifndef QN_SERVER_JOB_H
#define QN_SERVER_JOB_H

#include "server/ask.h"
#include "server/prompts.h"
#include "server/registry.h"

typedef struct qn_job qn_job;

enum {
    // Max log-probabilities of an answer that are kept to be told at once: as JSON, each takes
    // about a kilobyte.
    QN_MAX_KEPT = 1 << 19,
    QN_RETRY_AFTER = 5, // seconds, for clients that came at a bad time
};

// A call of a tool in an answer.
typedef struct qn_called {
    char id[40]; // "call_..."
    char *name;  // owned
    qn_buf arguments;
} qn_called;

// A stretch of an answer that is all of one kind. Calls have one each.
typedef struct qn_span {
    qn_chat_event_kind kind;     // REASONING, TEXT, CALL
    size_t from, size;           // bytes of the reasoning or the text
    size_t call;                 // number of the call
    size_t from_entry, to_entry; // of the log-probabilities, those that came with it
} qn_span;

// One answer of several.
typedef struct qn_choice {
    qn_job *job;
    size_t index;
    qn_chat_reply *reply;
    qn_buf text, reasoning; // so far
    qn_called *calls;       // (n_calls)
    size_t n_calls, cap_calls;
    qn_span *spans; // (n_spans): what came in which order
    size_t n_spans, cap_spans;
    // Log-probabilities, if wanted: entries of (1 + n_top), a token and the most likely ones in its
    // place (-1: none). Streams drop those that they have told.
    qn_token_logprob *entries;   // those from the n_dropped-th on
    size_t n_entries, n_dropped; // so far; of them, dropped
    size_t cap_entries;          // items that there is room for
    size_t n_told;               // entries that were told
    bool is_echoed;              // of a stream's writer: the prompt was told
    qn_decoder *decoder; // the same, for the places of tokens in the text; NULL: not needed yet
    int64_t n_chars;     // the same: characters before the next token
    qn_reason reason;    // NONE while it goes on
    qn_status status;    // of one that failed
    char message[256];   // the same in words
    int64_t stop;        // number of the stop string that ended it; -1: none
    int32_t stop_token;  // the same of a token; -1: none
    int64_t n_prompt, n_reused, n_tokens, n_reasoning, n_drafted, n_accepted, n_preemptions;
    int32_t *ids; // (n_ids) token ids that were not told yet, if wanted
    size_t n_ids, cap_ids;
    bool is_cut; // its last call is not whole: the answer ended in the middle of it
    // nanoseconds: when its prompt began to be read, its first token, its last one; 0: not yet
    int64_t begun, first, last;
} qn_choice;

// What comes of an answer, to be written to a stream.
typedef struct qn_job_piece {
    qn_chat_event_kind kind; // REASONING, TEXT, CALL, ARGUMENTS
    const char *text;
    size_t size;
    size_t call; // number of the call
} qn_job_piece;

// How a dialect writes. Functions of streams write with qn_job_send; a false result means that the
// client is gone.
typedef struct qn_dialect {
    const char *stream_type; // content type
    const char *ping;        // what keeps a silent stream alive; NULL: nothing does
    bool shows_end;          // log-probabilities are told of the token that ends the answer, too
    bool keeps_entries;      // streams tell all log-probabilities again at the end
    bool (*begin)(qn_job *job);
    bool (*piece)(qn_job *job, qn_choice *choice, const qn_job_piece *piece);
    bool (*progress)(qn_job *job, qn_choice *choice, int64_t done, int64_t total); // may be NULL
    bool (*finish)(qn_job *job, qn_choice *choice); // a choice has ended
    bool (*end)(qn_job *job);                       // all have
    bool (*fail)(qn_job *job, const qn_problem *problem);
    json_t *(*whole)(qn_job *job); // an answer in one piece; NULL: no memory
} qn_dialect;

// A prompt and its answers: what the batch's callbacks get.
typedef struct qn_job_row {
    qn_job *job;
    size_t first; // choice
    size_t n_ids; // of the prompt
    char *text;   // owned: of the prompt, `text_size` bytes; NULL: of conversations
    size_t text_size;
    // (n_ids, 1 + n_top), owned: tokens of the prompt, each with the most likely ones in its place
    // (-1: none); of the first, no log-probability is known. NULL: not wanted
    qn_token_logprob *logprobs;
} qn_job_row;

// Guarded by its lock, once rows are in the batch.
struct qn_job {
    pthread_mutex_t lock;
    qn_exchange *ex; // one owner
    qn_offer *entry; // one user
    qn_served *model;
    const qn_dialect *dialect;
    qn_ask ask;
    qn_job_opts opts;
    size_t n_pixels; // bytes of its images, which count for the server's limit
    bool is_refused; // an image was, as those of all requests are too many
    // NULL: prompts without a conversation, or its rows are in the batch, which need it no more
    qn_chat_turn *turn;
    qn_choice *choices; // (n_choices)
    size_t n_choices;
    size_t n_left; // choices that have not ended, and one while rows are being added by a worker
    size_t per_prompt;
    qn_job_row *rows; // (n_rows)
    size_t n_rows;
    qn_prompts asked;   // what the rows are made of; empty: the turn
    qn_prompt *prompts; // (n_rows), owned
    qn_row_opts row;    // of all prompts that are not of a turn
    size_t n_added;     // of the rows, those that were or are in the batch
    size_t n_in,
        max_in;      // choices that are in the batch; that may be, if they are not of one prompt
    int64_t added;   // nanoseconds: when the first was
    bool is_waiting; // none has begun; it counts in model->n_waiting
    size_t n_kept, n_kept_prompts; // log-probabilities of answers, of prompts
    qn_problem
        refusal; // why the rest is given up after the first row was added; status 0: it is not
    char id[48];
    const char *id_prefix; // "chatcmpl-"
    int64_t created;       // seconds since 1970
    int64_t started;
    bool is_counted; // its prompt is, and may have any length; there is no answer
    bool is_stream;
    bool has_begun;   // the stream has
    bool is_lost;     // the client is gone, or memory was short: nothing is written any more
    size_t n_opened;  // of a stream's writer: spans that it has begun to tell
    int64_t sequence; // the same: number of the next event
    qn_job *next;
};

// The ask moves into the job, also after a failure; `prefix` begins its id. QN_OK: it will be
// answered. A failure was not answered yet: it is in *problem.
QN_MUST_CHECK qn_status qn_job_chat(qn_exchange *ex, qn_offer *entry, qn_ask *ask,
                                    const qn_dialect *dialect, const char *prefix,
                                    qn_problem *problem);
// The same for prompts: ask->prompt is a text, token ids, or a list of either.
QN_MUST_CHECK qn_status qn_job_prompts(qn_exchange *ex, qn_offer *entry, qn_ask *ask,
                                       const qn_dialect *dialect, const char *prefix,
                                       qn_problem *problem);
// Answers with dialect->whole, of a job that has one choice which knows its n_prompt alone: what
// the conversation would take, without an answer.
QN_MUST_CHECK qn_status qn_job_count(qn_exchange *ex, qn_offer *entry, qn_ask *ask,
                                     const qn_dialect *dialect, const char *prefix,
                                     qn_problem *problem);

// A whole handler: reads an ask of `set`, lets `prepare` (may be NULL) bring it into OpenAI's form,
// takes the model, starts the job, and answers with the problem if anything fails.
typedef struct qn_job_plan {
    uint32_t set;
    const qn_dialect *dialect;
    const char *prefix;
    qn_status (*prepare)(qn_ask *ask, qn_problem *problem);
    qn_status (*start)(qn_exchange *ex, qn_offer *entry, qn_ask *ask, const qn_dialect *dialect,
                       const char *prefix, qn_problem *problem);
} qn_job_plan;
void qn_job_handle(qn_exchange *ex, const qn_job_plan *plan);

// The model of that name, or the problem: see qn_registry_take.
QN_MUST_CHECK qn_status qn_offer_take(qn_offer **out, qn_exchange *ex, const char *name,
                                      qn_problem *problem);
// The HTTP status of a model that could not be had; problem->err says why. Returns `status`.
qn_status qn_offer_refuse(qn_problem *problem, qn_status status);

// --- for dialects --------------------------------------------------------------------------------

// Writes bytes to the stream. False: the client is gone.
bool qn_job_send(qn_job *job, const qn_buf *bytes);
// The same for a value, whose reference it takes, as an event of a stream: "data: ...\n\n", with
// "event: NAME\n" before it if `name` is not NULL.
bool qn_job_send_event(qn_job *job, const char *name, json_t *value);
// The same as a line: "...\n".
bool qn_job_send_line(qn_job *job, json_t *value);
// "stop", "length" or "tool_calls".
const char *qn_choice_finish(const qn_choice *choice);
// The prompt that a choice answers.
const qn_job_row *qn_choice_row(const qn_choice *choice);
// Sums over all choices; a prompt counts once.
typedef struct qn_usage {
    int64_t prompt, cached, generated, reasoning, drafted, accepted;
    double prompt_ms, generated_ms;
} qn_usage;
qn_usage qn_job_usage(const qn_job *job);
// llama-server's "timings".
json_t *qn_job_timings(const qn_job *job);
// The same of one choice.
json_t *qn_choice_timings(const qn_choice *choice);
// llama-server's "prompt_progress", for qn_dialect.progress.
json_t *qn_choice_progress(const qn_choice *choice, int64_t done, int64_t total);
// A log-probability as a JSON number. JSON has no word for minus infinity; the lowest float stands
// for it, as in other servers.
json_t *qn_logprob_json(float logprob);
// The reasoning or the text of a span; NULL: no memory.
json_t *qn_span_text(const qn_choice *choice, const qn_span *span);
// Entry i of the log-probabilities, which was not dropped: (1 + n_top), see qn_choice.
const qn_token_logprob *qn_choice_entry(const qn_choice *choice, size_t i);
// All of them as a list of {"token", "logprob", "bytes", "id", "top_logprobs"}; NULL: no memory.
json_t *qn_choice_entries(const qn_choice *choice);
// Those of a span, as a list, which is empty if none are wanted; NULL: no memory.
json_t *qn_span_entries(const qn_choice *choice, const qn_span *span);
// Those that were not told yet, which are told by this; NULL: no memory.
bool qn_choice_has_untold(const qn_choice *choice);
json_t *qn_choice_untold(qn_choice *choice);
// All are told now.
void qn_choice_tell(qn_choice *choice);
// Ids of tokens that were not told yet, which are told by this; NULL: no memory.
json_t *qn_choice_take_ids(qn_choice *choice);

// --- for the step thread -------------------------------------------------------------------------
qn_job *qn_job_next(const qn_job *job);
void qn_job_set_next(qn_job *job, qn_job *next);
void qn_job_destroy(qn_job *job);

// --- between job.c and job_events.c --------------------------------------------------------------
// Prefix and random digits.
void qn_job_make_id(char *to, size_t size, const char *prefix);
// A qn_event_fn and a qn_progress_fn; `arg` is the qn_job_row.
bool qn_job_take_event(void *arg, const qn_event *event);
bool qn_job_take_progress(void *arg, int64_t done, int64_t total);
// Adds the next rows, as many as may be in the batch at a time. Without the lock; the caller has a
// part of n_left.
void qn_job_add_rows(qn_job *job);
// Gives back n parts of n_left, without the lock; the last one writes the answer.
void qn_job_release(qn_job *job, size_t n);
// It does not wait any more. With the lock, or when nobody else has the job.
void qn_job_leave_queue(qn_job *job);
// A qn_workers function: writes the answer of the job that is ex->task, all of whose rows have
// ended.
void qn_job_write(qn_exchange *ex);

#endif

// A conversation with a model: its messages, and answers to them. `quern run` with a text is a
// short one.
#ifndef QN_CLI_TALK_H
#define QN_CLI_TALK_H

#include "cli/answer.h"
#include "cli/run.h"
#include "core/buf.h"
#include "core/json.h"

// Of all answers so far.
typedef struct qn_talk_figures {
    int64_t answers, prompt, reused, tokens, drafted, accepted;
    double prompt_seconds, seconds;
} qn_talk_figures;

// Caller storage, which must stay where it is; `{0}` can be closed.
typedef struct qn_talk {
    qn_run_args *args; // borrowed
    const char *path;  // of the model; borrowed
    bool is_chat;      // somebody sits before a terminal
    qn_loaded loaded;
    const qn_tokenizer *tokenizer; // borrowed
    qn_session *session;
    qn_template *template; // NULL: text is fed as it is, and not remembered
    qn_grammar *grammar;   // of answers; NULL: any text
    qn_loaded draft_model; // for speculative decoding
    qn_session *draft;     // NULL: none
    qn_chat *chat;         // messages, and the tools offered to the model
    size_t n_mark;         // of the last prompt, which the next one will begin with; 0: unknown
    qn_pictures images;    // for the next question
    qn_buf waiting;        // texts of files, in front of it
    qn_buf typed;          // the beginning of one, when the terminal went away
    uint32_t completion;   // how often the last question was answered before
    bool has_warned;       // of a template that changes texts
    bool has_looked;       // whether the template has a switch for reasoning
    bool has_told_images;  // that saved conversations have no pictures
    char **kept;           // (n_kept) texts of settings, which are borrowed there
    size_t n_kept, cap_kept;
    qn_tracer tracer;
    qn_progress reading;
    qn_talk_figures figures;
} qn_talk;

// Opens model, session and template; args, path and is_chat are set.
QN_MUST_CHECK qn_status qn_talk_open(qn_talk *talk, qn_err *err);
void qn_talk_close(qn_talk *talk);

// A copy of a text that lives as long as the talk; NULL: no memory.
char *qn_talk_keep(qn_talk *talk, const char *text);

// The model's own sampling settings; none with --greedy.
qn_sample_opts qn_talk_defaults(const qn_talk *talk);
// Whether the next answer takes the best token always.
bool qn_talk_is_greedy(const qn_talk *talk);

// Puts the system message in front, or takes it away (text NULL).
QN_MUST_CHECK qn_status qn_talk_set_system(qn_talk *talk, const char *text, qn_err *err);
const char *qn_talk_system(const qn_talk *talk); // borrowed; NULL: none
// Forgets all messages but the system's.
QN_MUST_CHECK qn_status qn_talk_reset(qn_talk *talk, qn_err *err);
// Asks, prints the answer and remembers both. A question that fails is rolled back.
QN_MUST_CHECK qn_status qn_talk_ask(qn_talk *talk, const char *text, size_t size, qn_err *err);
// Takes the last answer back and gives another, or answers a question that has none; QN_STATE if
// there is neither.
QN_MUST_CHECK qn_status qn_talk_again(qn_talk *talk, qn_err *err);
// Takes the last question back, with all that followed, into an empty buffer; QN_STATE if there is
// none.
QN_MUST_CHECK qn_status qn_talk_undo(qn_buf *question, qn_talk *talk, qn_err *err);
// The last question; NULL: none. Borrowed until the conversation changes. *is_open (may be NULL):
// it has no answer.
const char *qn_talk_question(const qn_talk *talk, bool *is_open);

// The calls of the last answer that have no result yet, a list of objects with "function"; owned.
QN_MUST_CHECK qn_status qn_talk_open_calls(json_t **out, const qn_talk *talk, qn_err *err);
// Gives the first of them its result. After the last one the model goes on, as in qn_talk_ask.
QN_MUST_CHECK qn_status qn_talk_add_result(qn_talk *talk, const char *text, qn_err *err);

// A text of a file in front of the next question, with its name.
QN_MUST_CHECK qn_status qn_talk_add_text(qn_talk *talk, const char *name, const char *text,
                                         size_t size, qn_err *err);

#endif

// Measuring a model: how well it predicts a text, and how many tasks it solves.
#ifndef QN_CLI_EVAL_H
#define QN_CLI_EVAL_H

#include "core/json.h"

// --- prediction of a text ---

typedef struct qn_ppl_opts {
    const qn_engine *engine, *against; // against: a reference to compare with; NULL: none
    const char *path;                  // of the text
    int64_t context, stride;           // tokens per window, tokens that a window adds
    int n_threads;                     // that score; 0: all that this process may use
} qn_ppl_opts;

typedef struct qn_ppl {
    int64_t tokens;  // scored
    double ppl, se;  // exp of the mean of -log p, and its standard error
    double kl, same; // mean divergence from the reference; share of equal best tokens
} qn_ppl;

// Scores every token of the text but the first. Windows overlap so that a token has at least
// context - stride tokens before it, those at the beginning aside.
QN_MUST_CHECK qn_status qn_ppl_run(qn_ppl *out, const qn_ppl_opts *opts, qn_err *err);

// --- tasks ---

typedef struct qn_tasks_opts {
    const qn_engine *engine;
    const char *path;  // of a file with one task, a JSON object, per line
    int64_t max;       // tokens of an answer; 0: 100, and 320 for stories
    int64_t per_skill; // first tasks of each skill; 0: all
    bool shows_wrong;  // wrong answers on stderr
} qn_tasks_opts;

typedef struct qn_eval_task {
    const char *skill, *prompt, *checker; // borrowed from `json`
    const json_t *expected;
    json_t *json; // owned: json_decref
} qn_eval_task;

// One line of the file; `path` and `number` name it in errors.
QN_MUST_CHECK qn_status qn_task_parse(qn_eval_task *out, const char *line, size_t size,
                                      const char *path, int64_t number, qn_err *err);

typedef struct qn_skill {
    char *name; // owned
    int64_t n, right;
} qn_skill;

typedef struct qn_skills {
    qn_skill *items; // in the order of the file
    size_t n, cap;
} qn_skills;

QN_MUST_CHECK qn_status qn_tasks_run(qn_skills *out, const qn_tasks_opts *opts, qn_err *err);
void qn_skills_deinit(qn_skills *skills);

// Whether an answer is right. Checkers: exact, contains (all of a list), any (one of a list), json
// (equal values), tool (equal calls between <tool_call> and </tool_call>). A checker that is none
// of these, or an expectation of the wrong form, is an error.
QN_MUST_CHECK qn_status qn_answer_check(bool *out, const char *checker, const json_t *expected,
                                        const char *answer, qn_err *err);

#endif

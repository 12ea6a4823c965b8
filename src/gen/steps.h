// The steps of a sampler: each changes logits, or drops choices, or sets the temperature.
#ifndef QN_GEN_STEPS_H
#define QN_GEN_STEPS_H

#include "gen/choices.h"
#include "gen/dry.h"
#include "gen/chooser.h"

typedef struct qn_step_run {
    qn_choices *choices;
    const qn_sample_opts *opts; // filled
    const qn_chooser_in *in;
    const qn_breakers *breakers; // NULL: none
    uint32_t *counts;            // (n_vocab) zeros, before and after
} qn_step_run;

typedef enum qn_step_kind {
    QN_STEP_LOGITS,      // changes logits
    QN_STEP_FILTER,      // drops choices: without effect before a greedy choice or mirostat
    QN_STEP_TEMPERATURE, // without effect before a greedy choice
} qn_step_kind;

typedef struct qn_sampler_step {
    const char *name, *alias; // alias: another word for it; NULL: none
    qn_step_kind kind;
    bool (*is_on)(const qn_sample_opts *opts);
    void (*run)(const qn_step_run *run);
} qn_sampler_step;

enum { QN_N_STEPS = 9 };
extern const qn_sampler_step qn_steps[QN_N_STEPS]; // in the default order

// Reads an order of steps (NULL: the default one) into `steps`; *n of them. An unknown name, or one
// that is there twice, is an error.
QN_MUST_CHECK qn_status qn_steps_parse(const qn_sampler_step *steps[QN_N_STEPS], size_t *n,
                                       const char *order, qn_err *err);

// Numbers of the random draws of one position.
enum { QN_DRAW_CHOICE, QN_DRAW_XTC };

// The choice that a draw falls on: the first whose running sum of weights, in the order, is above
// draw * sum. A number of an item.
int64_t qn_steps_draw(const qn_step_run *run);
// Drops the choices of a surprise above `max` bits, draws one, and gives its surprise.
int64_t qn_steps_draw_mirostat(double *surprise, const qn_step_run *run, double max);

#endif

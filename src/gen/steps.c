#include "gen/steps.h"

#include "gen/philox.h"
#include "gen/weight.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

// --- changes of logits ---------------------------------------------------------------------------

// Logits stay finite, as sums and differences of them must have a meaning. -inf stays.
static float limit(float logit) { return logit > FLT_MAX ? FLT_MAX : fmaxf(logit, -FLT_MAX); }

static bool has_penalties(const qn_sample_opts *o) {
    return o->repeat_penalty != 0 || o->frequency_penalty != 0 || o->presence_penalty != 0;
}

// Once for each distinct token or, if asked, once for each time that it is there.
static void punish_repeats(const qn_step_run *run, float *logits) {
    const qn_chooser_in *in = run->in;
    const bool each = run->opts->flags & QN_SAMPLE_REPEAT_EACH;
    const int64_t last_n = run->opts->repeat_last_n;
    const float penalty = run->opts->repeat_penalty;
    const size_t window =
        last_n < 0 || (size_t)last_n > in->n_tokens ? in->n_tokens : (size_t)last_n;
    const int32_t *tokens = in->tokens + (in->n_tokens - window);
    for (size_t i = 0; i < window; i++) {
        float *logit = &logits[tokens[i]];
        if ((run->counts[tokens[i]]++ && !each) || *logit < -FLT_MAX) continue;
        *logit = limit(*logit > 0 ? *logit / penalty : *logit * penalty);
    }
    for (size_t i = 0; i < window; i++) run->counts[tokens[i]] = 0;
}

// For tokens of the answer alone, however far back.
static void punish_answer(const qn_step_run *run, float *logits) {
    const qn_chooser_in *in = run->in;
    for (size_t i = in->n_prompt; i < in->n_tokens; i++) run->counts[in->tokens[i]]++;
    for (size_t i = in->n_prompt; i < in->n_tokens; i++) {
        const int32_t token = in->tokens[i];
        const uint32_t count = run->counts[token];
        if (count == 0) continue;
        run->counts[token] = 0;
        if (logits[token] < -FLT_MAX) continue;
        logits[token] = limit(logits[token] - (float)count * run->opts->frequency_penalty -
                              run->opts->presence_penalty);
    }
}

static void run_penalties(const qn_step_run *run) {
    if (run->in->n_tokens == 0) return;
    float *logits = qn_choices_write(run->choices);
    if (run->opts->repeat_penalty != 0) punish_repeats(run, logits);
    if (run->opts->frequency_penalty != 0 || run->opts->presence_penalty != 0)
        punish_answer(run, logits);
}

static bool has_dry(const qn_sample_opts *o) { return o->dry_multiplier != 0; }

static void run_dry(const qn_step_run *run) {
    const qn_sample_opts *o = run->opts;
    const size_t all = run->in->n_tokens, last_n = (size_t)o->dry_last_n;
    const size_t n = last_n == 0 || last_n > all ? all : last_n;
    if (n < 2) return;
    const qn_dry dry = {.multiplier = o->dry_multiplier,
                        .base = o->dry_base,
                        .allowed_length = o->dry_allowed_length,
                        .tokens = run->in->tokens + (all - n),
                        .n_tokens = n,
                        .breakers = run->breakers};
    qn_dry_apply(&dry, qn_choices_write(run->choices), run->counts);
}

// --- filters -------------------------------------------------------------------------------------

static bool has_top_n_sigma(const qn_sample_opts *o) { return o->top_n_sigma != 0; }

static void run_top_n_sigma(const qn_step_run *run) {
    qn_choices *c = run->choices;
    const double deviation = qn_choices_deviation(c);
    qn_choices_keep_above(c, (float)((double)c->best - (double)run->opts->top_n_sigma * deviation));
}

static bool has_top_k(const qn_sample_opts *o) { return o->top_k != 0; }

static void run_top_k(const qn_step_run *run) { qn_choices_keep(run->choices, run->opts->top_k); }

static bool has_typical(const qn_sample_opts *o) { return o->typical_p != 0; }

// The last target whose place in the order is within the share: sums reach the share after it.
static uint64_t find_share(double share, uint64_t sum) {
    const double need = ceil(share * (double)sum);
    return need > 1 ? (uint64_t)need - 1 : 0;
}

// A token is typical whose surprise is near the expected one. The difference of the two is that of
// its logit from the mean, as the sum of all weights is in both.
static void run_typical(const qn_step_run *run) {
    qn_choices *c = run->choices;
    const uint64_t target = find_share((double)run->opts->typical_p, qn_choices_sum(c));
    const double centre = qn_choices_mean(c) * (double)c->temperature + (double)c->best;
    qn_choices_keep_near(c, centre, target);
}

static bool has_top_p(const qn_sample_opts *o) { return o->top_p != 0; }

static void run_top_p(const qn_step_run *run) {
    qn_choices *c = run->choices;
    const uint64_t target = find_share((double)run->opts->top_p, qn_choices_sum(c));
    qn_choices_keep_items(c, qn_choices_find(c, target) + 1);
}

static bool has_min_p(const qn_sample_opts *o) { return o->min_p != 0; }

static void run_min_p(const qn_step_run *run) {
    qn_choices *c = run->choices;
    (void)qn_choices_count(c);
    const double below = (double)c->temperature * log((double)run->opts->min_p);
    qn_choices_keep_above(c, (float)((double)c->best + below));
}

static float draw_uniform(const qn_step_run *run, uint32_t draw) {
    return qn_philox_uniform(run->opts->seed, run->in->position, run->opts->completion, draw);
}

static bool has_xtc(const qn_sample_opts *o) { return o->xtc_probability != 0; }

static void run_xtc(const qn_step_run *run) {
    qn_choices *c = run->choices;
    if (!(draw_uniform(run, QN_DRAW_XTC) < run->opts->xtc_probability)) return;
    const double need = (double)run->opts->xtc_threshold * (double)qn_choices_sum(c);
    int64_t likely = 0, sorted = 0;
    for (; likely < c->n; likely++) {
        if (likely == sorted) sorted = qn_choices_sort(c, 4 * (likely + 1));
        if ((double)qn_choices_weight(c, likely) < need) break;
    }
    if (likely > 1) qn_choices_drop(c, likely - 1);
}

// --- temperature ---------------------------------------------------------------------------------

static bool has_temperature(const qn_sample_opts *o) {
    return o->temperature != 1 || o->dynatemp_range != 0;
}

// Between temperature - range and temperature + range, by how near the entropy is to the largest
// that this many choices can have.
static double find_dynamic(const qn_step_run *run) {
    const qn_sample_opts *o = run->opts;
    qn_choices *c = run->choices;
    const double t = (double)o->temperature, range = (double)o->dynatemp_range;
    const double min = fmax(0, t - range), max = t + range;
    const int64_t n = qn_choices_count(c);
    if (n < 2) return t;
    const double entropy =
        log((double)qn_choices_sum(c) / QN_WEIGHT_ONE) - qn_choices_mean(c); // in nats
    const double share = fmin(1, fmax(0, entropy / log((double)n)));
    return min + (max - min) * pow(share, (double)o->dynatemp_exponent);
}

static void run_temperature(const qn_step_run *run) {
    qn_choices *c = run->choices;
    const float t =
        run->opts->dynatemp_range != 0 ? (float)find_dynamic(run) : run->opts->temperature;
    if (t > 0)
        c->temperature *= t;
    else
        qn_choices_keep(c, 1);
}

// --- the table -----------------------------------------------------------------------------------

const qn_sampler_step qn_steps[QN_N_STEPS] = {
    {"penalties", NULL, QN_STEP_LOGITS, has_penalties, run_penalties},
    {"dry", NULL, QN_STEP_LOGITS, has_dry, run_dry},
    {"top_n_sigma", "top_nsigma", QN_STEP_FILTER, has_top_n_sigma, run_top_n_sigma},
    {"top_k", NULL, QN_STEP_FILTER, has_top_k, run_top_k},
    {"typ_p", "typical_p", QN_STEP_FILTER, has_typical, run_typical},
    {"top_p", NULL, QN_STEP_FILTER, has_top_p, run_top_p},
    {"min_p", NULL, QN_STEP_FILTER, has_min_p, run_min_p},
    {"xtc", NULL, QN_STEP_FILTER, has_xtc, run_xtc},
    {"temperature", "temp", QN_STEP_TEMPERATURE, has_temperature, run_temperature},
};

// '-' and '_' are the same.
static bool is_named(const char *name, const char *word, size_t n) {
    if (!name || strlen(name) != n) return false;
    for (size_t i = 0; i < n; i++) {
        if ((word[i] == '-' ? '_' : word[i]) != name[i]) return false;
    }
    return true;
}

static const qn_sampler_step *find_step(const char *word, size_t n) {
    for (size_t i = 0; i < QN_N_STEPS; i++) {
        if (is_named(qn_steps[i].name, word, n) || is_named(qn_steps[i].alias, word, n))
            return &qn_steps[i];
    }
    return NULL;
}

static qn_status refuse_step(const char *word, size_t n, qn_err *err) {
    char known[256] = "";
    size_t used = 0;
    for (size_t i = 0; i < QN_N_STEPS && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ";" : "",
                                 qn_steps[i].name);
    return QN_FAIL(err, ARGUMENT,
                   "order: no sampler '%.*s'; there are, separated by semicolons, %s",
                   (int)(n < 64 ? n : 64), word, known);
}

qn_status qn_steps_parse(const qn_sampler_step *steps[QN_N_STEPS], size_t *n, const char *order,
                         qn_err *err) {
    *n = 0;
    if (!order) {
        for (size_t i = 0; i < QN_N_STEPS; i++) steps[(*n)++] = &qn_steps[i];
        return QN_OK;
    }
    for (const char *word = order;; word++) {
        const size_t size = strcspn(word, ";");
        const qn_sampler_step *step = find_step(word, size);
        if (!step) return refuse_step(word, size, err);
        for (size_t i = 0; i < *n; i++) {
            if (steps[i] == step)
                return QN_FAIL(err, ARGUMENT, "order: chooser %s is there twice", step->name);
        }
        steps[(*n)++] = step;
        word += size;
        if (!*word) return QN_OK;
    }
}

// --- drawing -------------------------------------------------------------------------------------

// floor(draw * sum), where draw is a multiple of 2^-24.
static uint64_t scale_draw(float draw, uint64_t sum) {
    const uint64_t parts = (uint64_t)(draw * 0x1p24f);
    return (sum >> 24) * parts + ((sum & 0xFFFFFF) * parts >> 24);
}

int64_t qn_steps_draw(const qn_step_run *run) {
    qn_choices *c = run->choices;
    const uint64_t sum = qn_choices_sum(c);
    return qn_choices_find(c, scale_draw(draw_uniform(run, QN_DRAW_CHOICE), sum));
}

int64_t qn_steps_draw_mirostat(double *surprise, const qn_step_run *run, double max) {
    qn_choices *c = run->choices;
    const double sum = (double)qn_choices_sum(c);
    // The surprise of a logit is log2(sum) - (logit - best) / temperature / ln 2.
    const double below = log(sum / QN_WEIGHT_ONE) - max * log(2);
    qn_choices_keep_above(c, (float)((double)c->best + (double)c->temperature * fmin(0, below)));
    const int64_t drawn = qn_steps_draw(run);
    *surprise = log2(sum / (double)qn_choices_weight(c, drawn));
    return drawn;
}

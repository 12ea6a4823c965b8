#include "cli/sampling.h"

#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

// --- texts that are numbers ----------------------------------------------------------------------

// Digits, after a sign if `signed_too`, and nothing else.
static bool is_whole(const char *text, bool signed_too) {
    const char *digits = signed_too && *text == '-' ? text + 1 : text;
    return *digits && strspn(digits, "0123456789") == strlen(digits);
}

// A number of tokens that a step looks back, if it is given. What is typed as 0 is none: the
// library's 0 is its default.
static qn_status read_last_n(int32_t *out, const char *name, const char *text, qn_err *err) {
    if (!text) return QN_OK;
    errno = 0;
    const long long value = is_whole(text, true) ? strtoll(text, NULL, 10) : INT64_MAX;
    if (errno || value < QN_LAST_N_NONE || value > INT32_MAX)
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a whole number from %d to %d", name, text,
                       QN_LAST_N_NONE, INT32_MAX);
    *out = value == 0 ? QN_LAST_N_NONE : (int32_t)value;
    return QN_OK;
}

static uint64_t draw_seed(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    uint64_t mixed = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    mixed = (mixed ^ (uint64_t)getpid() << 40) * 0x9E3779B97F4A7C15;
    return (mixed ^ mixed >> 32) & 0xFFFFFFFF; // short enough to be typed again
}

static qn_status read_seed(qn_sampling *out, const char *text, qn_err *err) {
    if (!text) return QN_OK;
    out->is_random_seed = strcmp(text, "-1") == 0;
    if (out->is_random_seed) {
        out->opts.seed = draw_seed();
        return QN_OK;
    }
    errno = 0;
    const unsigned long long value = is_whole(text, false) ? strtoull(text, NULL, 10) : 0;
    if (errno || !is_whole(text, false))
        return QN_FAIL(err, ARGUMENT, "--seed: '%s', want a whole number from 0 to %llu, or -1",
                       text, (unsigned long long)UINT64_MAX);
    out->opts.seed = value;
    return QN_OK;
}

// "15043+1", "15043-2.5", "15043-inf".
static qn_status read_bias(qn_bias *out, const char *text, qn_err *err) {
    const size_t n_digits = strspn(text, "0123456789");
    const char *bias = text + n_digits;
    const bool is_never = strcmp(bias, "-inf") == 0;
    const bool is_plain =
        (*bias == '+' || *bias == '-') && strspn(bias, "0123456789.+-eE") == strlen(bias);
    char *end = NULL;
    errno = 0;
    const long long id = n_digits ? strtoll(text, NULL, 10) : -1;
    const float value = is_never ? -INFINITY : is_plain ? strtof(bias, &end) : NAN;
    if (id < 0 || id > INT32_MAX || isnan(value) || (end && *end) ||
        (!is_never && !(fabsf(value) <= 1000)))
        return QN_FAIL(err, ARGUMENT,
                       "--logit-bias: '%s', want a token id with its bias from -1000 to 1000, as "
                       "15043+1, 15043-2.5 or 15043-inf",
                       text);
    *out = (qn_bias){(int32_t)id, value};
    return QN_OK;
}

// --- args to opts --------------------------------------------------------------------------------

static void copy_numbers(qn_sample_opts *o, const qn_sampling_args *a) {
    o->temperature = (float)a->temperature;
    o->top_k = (int32_t)a->top_k;
    o->top_p = (float)a->top_p;
    o->min_p = (float)a->min_p;
    o->typical_p = (float)a->typical_p;
    o->top_n_sigma = a->top_n_sigma > 0 ? (float)a->top_n_sigma : 0;
    o->xtc_probability = (float)a->xtc_probability;
    o->xtc_threshold = (float)a->xtc_threshold;
    o->dynatemp_range = (float)a->dynatemp_range;
    o->dynatemp_exponent = (float)a->dynatemp_exponent;
    o->repeat_penalty = (float)a->repeat_penalty;
    o->frequency_penalty = (float)a->frequency_penalty;
    o->presence_penalty = (float)a->presence_penalty;
    o->dry_multiplier = (float)a->dry_multiplier;
    o->dry_base = (float)a->dry_base;
    o->dry_allowed_length = (int32_t)a->dry_allowed_length;
    o->mirostat = (int32_t)a->mirostat;
    o->mirostat_tau = (float)a->mirostat_tau;
    o->mirostat_eta = (float)a->mirostat_eta;
}

static qn_status copy_windows(qn_sample_opts *o, const qn_sampling_args *a, qn_err *err) {
    QN_TRY(read_last_n(&o->repeat_last_n, "--repeat-last-n", a->repeat_last_n, err));
    return read_last_n(&o->dry_last_n, "--dry-penalty-last-n", a->dry_last_n, err);
}

static qn_status check_texts(const qn_texts *texts, const char *name, qn_err *err) {
    for (size_t i = 0; i < texts->n; i++) {
        if (!*texts->items[i]) return QN_FAIL(err, ARGUMENT, "%s: the text is empty", name);
    }
    return QN_OK;
}

static qn_status copy_lists(qn_sampling *s, const qn_sampling_args *a, qn_err *err) {
    static const char *const nothing[] = {NULL};
    qn_sample_opts *o = &s->opts;
    QN_TRY(check_texts(&a->bans, "--ban", err));
    QN_TRY(check_texts(&a->dry_breakers, "--dry-sequence-breaker", err));
    o->bans = a->bans.items;
    o->n_bans = a->bans.n;
    o->dry_breakers = a->dry_breakers.items;
    o->n_dry_breakers = a->dry_breakers.n;
    if (a->dry_breakers.n == 1 && strcmp(a->dry_breakers.items[0], "none") == 0) {
        o->dry_breakers = nothing;
        o->n_dry_breakers = 0;
    }
    s->biases = qn_alloc(a->biases.n, sizeof *s->biases);
    if (!s->biases) return QN_NOMEM(err, "biases");
    for (size_t i = 0; i < a->biases.n; i++)
        QN_TRY(read_bias(&s->biases[i], a->biases.items[i], err));
    o->biases = s->biases;
    o->n_biases = a->biases.n;
    return QN_OK;
}

static qn_status fill(qn_sampling *s, const qn_sampling_args *args, qn_err *err) {
    copy_numbers(&s->opts, args);
    s->opts.order = args->order;
    QN_TRY(copy_windows(&s->opts, args, err));
    QN_TRY(read_seed(s, args->seed, err));
    QN_TRY(copy_lists(s, args, err));
    return qn_sample_check(&s->opts, err);
}

qn_status qn_sampling_args_check(const qn_sampling_args *args, qn_err *err) {
    qn_sampling sampling = {0};
    const qn_status status = fill(&sampling, args, err);
    qn_sampling_deinit(&sampling);
    return status;
}

qn_status qn_sampling_init(qn_sampling *out, const qn_sampling_args *args, qn_err *err) {
    qn_sampling sampling = {0};
    const qn_status status = fill(&sampling, args, err);
    if (status) {
        qn_sampling_deinit(&sampling);
        return status;
    }
    if (sampling.is_random_seed)
        fprintf(stderr, "quern: note: --seed %llu\n", (unsigned long long)sampling.opts.seed);
    *out = sampling;
    return QN_OK;
}

void qn_sampling_deinit(qn_sampling *sampling) {
    qn_free(sampling->biases);
    *sampling = (qn_sampling){0};
}

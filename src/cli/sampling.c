#include "cli/sampling.h"

#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
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

// The numbers, with their places on both sides.
static const struct number {
    const char *option, *field;
    size_t from, to;
    bool is_whole;
} numbers[] = {
#define NUMBER(option, field, is_whole)                                                            \
    { option, #field, offsetof(qn_sampling_args, field), offsetof(qn_sample_opts, field), is_whole }
    NUMBER("--temp", temperature, false),
    NUMBER("--top-k", top_k, true),
    NUMBER("--top-p", top_p, false),
    NUMBER("--min-p", min_p, false),
    NUMBER("--typical", typical_p, false),
    NUMBER("--top-nsigma", top_n_sigma, false),
    NUMBER("--xtc-probability", xtc_probability, false),
    NUMBER("--xtc-threshold", xtc_threshold, false),
    NUMBER("--dynatemp-range", dynatemp_range, false),
    NUMBER("--dynatemp-exp", dynatemp_exponent, false),
    NUMBER("--repeat-penalty", repeat_penalty, false),
    NUMBER("--frequency-penalty", frequency_penalty, false),
    NUMBER("--presence-penalty", presence_penalty, false),
    NUMBER("--dry-multiplier", dry_multiplier, false),
    NUMBER("--dry-base", dry_base, false),
    NUMBER("--dry-allowed-length", dry_allowed_length, true),
    NUMBER("--mirostat", mirostat, true),
    NUMBER("--mirostat-ent", mirostat_tau, false),
    NUMBER("--mirostat-lr", mirostat_eta, false),
#undef NUMBER
};
enum { N_NUMBERS = sizeof numbers / sizeof *numbers };

static void copy_numbers(qn_sample_opts *o, const qn_sampling_args *a) {
    for (size_t i = 0; i < N_NUMBERS; i++) {
        const void *from = (const char *)a + numbers[i].from;
        void *to = (char *)o + numbers[i].to;
        const qn_whole *whole = from;
        const qn_real *real = from;
        if (numbers[i].is_whole && whole->is_given) *(int32_t *)to = (int32_t)whole->value;
        if (!numbers[i].is_whole && real->is_given) *(float *)to = (float)real->value;
    }
    if (o->top_n_sigma < 0) o->top_n_sigma = 0;
    if (a->greedy) o->temperature = 0;
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

// What the library says about a part of the settings, under the name of its option.
static qn_status check_part(const char *option, const qn_sample_opts *part, qn_err *err) {
    static const char order[] = "order: ";
    const qn_status status = qn_sample_check(part, err);
    if (status && err && strncmp(err->message, order, strlen(order)) == 0)
        memmove(err->message, err->message + strlen(order),
                strlen(err->message + strlen(order)) + 1);
    return status ? qn_err_prefix(err, status, "%s", option) : QN_OK;
}

static qn_status check_opts(const qn_sample_opts *o, qn_err *err) {
    if (o->mirostat == 1)
        return QN_FAIL(err, ARGUMENT, "--mirostat: '1', want 0 (off) or 2 (mirostat 2)");
    QN_TRY(check_part("--samplers", &QN_INIT(qn_sample_opts, .order = o->order), err));
    QN_TRY(
        check_part("--ban", &QN_INIT(qn_sample_opts, .bans = o->bans, .n_bans = o->n_bans), err));
    QN_TRY(check_part("--dry-sequence-breaker",
                      &QN_INIT(qn_sample_opts, .dry_breakers = o->dry_breakers,
                               .n_dry_breakers = o->n_dry_breakers),
                      err));
    return qn_sample_check(o, err);
}

static qn_status fill(qn_sampling *s, const qn_sampling_args *args, const qn_sample_opts *defaults,
                      qn_err *err) {
    if (!args->greedy) s->opts = *defaults;
    copy_numbers(&s->opts, args);
    if (args->order) s->opts.order = args->order;
    QN_TRY(copy_windows(&s->opts, args, err));
    QN_TRY(read_seed(s, args->seed, err));
    QN_TRY(copy_lists(s, args, err));
    return check_opts(&s->opts, err);
}

qn_status qn_sampling_args_check(const qn_sampling_args *args, qn_err *err) {
    qn_sampling sampling = {.opts = QN_INIT(qn_sample_opts)};
    const qn_sample_opts none = QN_INIT(qn_sample_opts);
    const qn_status status = fill(&sampling, args, &none, err);
    qn_sampling_deinit(&sampling);
    return status;
}

qn_status qn_sampling_args_check_together(const qn_sampling_args *args, qn_err *err) {
    if (args->greedy && args->temperature.value > 0)
        return QN_FAIL(err, ARGUMENT, "--greedy takes the best token, --temp %g samples: give one",
                       args->temperature.value);
    return QN_OK;
}

qn_status qn_sampling_init(qn_sampling *out, const qn_sampling_args *args,
                           const qn_sample_opts *defaults, qn_err *err) {
    qn_sampling sampling = {.opts = QN_INIT(qn_sample_opts)};
    const qn_status status = fill(&sampling, args, defaults, err);
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

// --- defaults of a model -------------------------------------------------------------------------

static void print_number(char *to, size_t size, const qn_sample_opts *opts,
                         const struct number *n) {
    const void *at = (const char *)opts + n->to;
    if (n->is_whole && *(const int32_t *)at) snprintf(to, size, "%d", *(const int32_t *)at);
    if (!n->is_whole && *(const float *)at != 0)
        snprintf(to, size, "%.6g", (double)*(const float *)at);
}

qn_sampling_default qn_sampling_get_default(const qn_sample_opts *defaults, size_t i) {
    qn_sampling_default d = {0};
    if (i < N_NUMBERS) {
        d.option = numbers[i].option, d.field = numbers[i].field;
        print_number(d.value, sizeof d.value, defaults, &numbers[i]);
    } else if (i == N_NUMBERS) {
        d.option = "--repeat-last-n", d.field = "repeat_last_n";
        if (defaults->repeat_last_n)
            snprintf(d.value, sizeof d.value, "%d", defaults->repeat_last_n);
    } else if (i == N_NUMBERS + 1) {
        d.option = "--samplers", d.field = "order", d.is_text = true;
        if (defaults->order) snprintf(d.value, sizeof d.value, "%s", defaults->order);
    }
    return d;
}

qn_sampling_default qn_sampling_find_default(const qn_sample_opts *defaults, const char *option) {
    for (size_t i = 0;; i++) {
        const qn_sampling_default d = qn_sampling_get_default(defaults, i);
        if (!d.option || strcmp(d.option, option) == 0) return d;
    }
}

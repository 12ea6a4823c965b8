#include "gen/settings.h"

#include <stddef.h>
#include <string.h>

// --- numbers -------------------------------------------------------------------------------------

static const struct real {
    const char *name;
    size_t offset;
    float min, max;
} reals[] = {
#define REAL(name, min, max)                                                                       \
    { #name, offsetof(qn_sample_opts, name), min, max }
    REAL(temperature, 0, 1000),
    REAL(top_p, 0, 1),
    REAL(min_p, 0, 1),
    REAL(typical_p, 0, 1),
    REAL(top_n_sigma, 0, 1000),
    REAL(xtc_probability, 0, 1),
    REAL(xtc_threshold, 0, 1),
    REAL(dynatemp_range, 0, 1000),
    REAL(dynatemp_exponent, 0, 100),
    REAL(repeat_penalty, 0, 100),
    REAL(frequency_penalty, -100, 100),
    REAL(presence_penalty, -100, 100),
    REAL(dry_multiplier, 0, 1000),
    REAL(dry_base, 0, 1000),
    REAL(mirostat_tau, 0, 100),
    REAL(mirostat_eta, 0, 10),
#undef REAL
};

static const struct whole {
    const char *name;
    size_t offset;
    int32_t min, max;
} wholes[] = {
#define WHOLE(name, min, max)                                                                      \
    { #name, offsetof(qn_sample_opts, name), min, max }
    WHOLE(top_k, 0, INT32_MAX),
    WHOLE(repeat_last_n, QN_LAST_N_NONE, INT32_MAX),
    WHOLE(dry_allowed_length, 0, INT32_MAX),
    WHOLE(dry_last_n, QN_LAST_N_NONE, INT32_MAX),
    WHOLE(mirostat, 0, 2),
#undef WHOLE
};

enum { N_REALS = sizeof reals / sizeof *reals, N_WHOLES = sizeof wholes / sizeof *wholes };

qn_status qn_settings_check(const qn_sample_opts *opts, qn_err *err) {
    for (size_t i = 0; i < N_REALS; i++) {
        const struct real *r = &reals[i];
        float value;
        memcpy(&value, (const char *)opts + r->offset, sizeof value);
        if (!(value >= r->min && value <= r->max))
            return QN_FAIL(err, ARGUMENT, "%s %g, want %g to %g", r->name, (double)value,
                           (double)r->min, (double)r->max);
    }
    for (size_t i = 0; i < N_WHOLES; i++) {
        const struct whole *w = &wholes[i];
        int32_t value;
        memcpy(&value, (const char *)opts + w->offset, sizeof value);
        if (value < w->min || value > w->max)
            return QN_FAIL(err, ARGUMENT, "%s %d, want %d to %d", w->name, value, w->min, w->max);
    }
    if (opts->flags & ~(uint64_t)QN_SAMPLE_REPEAT_EACH)
        return QN_FAIL(err, ARGUMENT, "flags %#llx, want %#x at most",
                       (unsigned long long)opts->flags, (unsigned)QN_SAMPLE_REPEAT_EACH);
    if (opts->mirostat == 1)
        return QN_FAIL(err, ARGUMENT, "mirostat 1, want 0 (off) or 2 (mirostat 2)");
    if (opts->dry_base > 0 && opts->dry_base < 1)
        return QN_FAIL(err, ARGUMENT, "dry_base %g, want 1 to 1000, or 0 for 1.75",
                       (double)opts->dry_base);
    return QN_OK;
}

static float unless_zero(float value, float otherwise) { return value != 0 ? value : otherwise; }

qn_sample_opts qn_settings_fill(const qn_sample_opts *opts) {
    static const char *const breakers[] = {"\n", ":", "\"", "*"};
    qn_sample_opts o = *opts;
    if (o.top_p >= 1) o.top_p = 0;
    if (o.typical_p >= 1) o.typical_p = 0;
    if (o.repeat_penalty == 1 || o.repeat_last_n == QN_LAST_N_NONE) o.repeat_penalty = 0;
    if (o.repeat_last_n == 0) o.repeat_last_n = 64;
    o.xtc_threshold = unless_zero(o.xtc_threshold, 0.1f);
    o.dynatemp_exponent = unless_zero(o.dynatemp_exponent, 1);
    o.dry_base = unless_zero(o.dry_base, 1.75f);
    if (o.dry_last_n == QN_LAST_N_NONE) o.dry_multiplier = 0;
    if (o.dry_last_n == QN_LAST_N_ALL) o.dry_last_n = 0;
    if (o.dry_allowed_length == 0) o.dry_allowed_length = 2;
    if (!o.dry_breakers) {
        o.dry_breakers = breakers;
        o.n_dry_breakers = sizeof breakers / sizeof *breakers;
    }
    o.mirostat_tau = unless_zero(o.mirostat_tau, 5);
    o.mirostat_eta = unless_zero(o.mirostat_eta, 0.1f);
    return o;
}

// --- lists ---------------------------------------------------------------------------------------

// Takes n bytes; false: no more are wanted.
typedef bool bytes_fn(void *arg, const void *bytes, size_t n);

static bool pass_string(bytes_fn *fn, void *arg, const char *s) {
    const size_t n = s ? strlen(s) : SIZE_MAX; // NULL is not ""
    return fn(arg, &n, sizeof n) && (!s || fn(arg, s, n));
}

static bool pass_strings(bytes_fn *fn, void *arg, const char *const *list, size_t n) {
    const size_t count = list ? n : SIZE_MAX;
    bool goes_on = fn(arg, &count, sizeof count);
    for (size_t i = 0; list && i < n && goes_on; i++) goes_on = pass_string(fn, arg, list[i]);
    return goes_on;
}

// Nothing where there are none.
static bool pass_lists(bytes_fn *fn, void *arg, const qn_sample_opts *o) {
    const size_t n_biases = o->biases ? o->n_biases : 0;
    if (!n_biases && !o->bans && !o->dry_breakers && !o->order) return true;
    return fn(arg, &n_biases, sizeof n_biases) &&
           fn(arg, o->biases, n_biases * sizeof *o->biases) &&
           pass_strings(fn, arg, o->bans, o->n_bans) &&
           pass_strings(fn, arg, o->dry_breakers, o->n_dry_breakers) &&
           pass_string(fn, arg, o->order);
}

static bool append(void *arg, const void *bytes, size_t n) {
    if (n) qn_buf_add(arg, bytes, n);
    return true;
}

void qn_settings_pack_lists(qn_buf *buf, const qn_sample_opts *opts) {
    (void)pass_lists(append, buf, opts);
}

typedef struct packed {
    const char *bytes;
    size_t left;
} packed;

static bool take_same(void *arg, const void *bytes, size_t n) {
    packed *p = arg;
    if (n > p->left || (n && memcmp(bytes, p->bytes, n) != 0)) return false;
    p->bytes += n;
    p->left -= n;
    return true;
}

bool qn_settings_equal(const qn_sample_opts *a, const qn_sample_opts *b, const char *lists,
                       size_t size) {
    const char *x = (const char *)a, *y = (const char *)b;
    for (size_t i = 0; i < N_REALS; i++) {
        if (memcmp(x + reals[i].offset, y + reals[i].offset, sizeof(float)) != 0) return false;
    }
    for (size_t i = 0; i < N_WHOLES; i++) {
        if (memcmp(x + wholes[i].offset, y + wholes[i].offset, sizeof(int32_t)) != 0) return false;
    }
    packed left = {lists, size};
    return a->seed == b->seed && a->flags == b->flags && a->completion == b->completion &&
           a->n_biases == b->n_biases && a->n_bans == b->n_bans &&
           a->n_dry_breakers == b->n_dry_breakers && pass_lists(take_same, &left, a) &&
           left.left == 0;
}

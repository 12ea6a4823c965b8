#include "runtime/sample_defaults.h"

#include "core/log.h"
#include "gen/steps.h"
#include "gen/settings.h"
#include "tokenizer/load_json.h"

#include <math.h>
#include <string.h>

static const char generation_config[] = "generation_config.json";

typedef enum kind { REAL, WHOLE } kind;

// One number: its names in both formats (NULL: it has none there) and its field.
static const struct row {
    const char *gguf, *json;
    kind kind;
    size_t offset;
    bool is_positive; // zero, which is the default in the struct, means something else in a file
    bool is_filter;   // it has no effect on a greedy choice
} rows[] = {
#define ROW(field, kind, gguf, json, ...)                                                          \
    { "general.sampling." gguf, json, kind, offsetof(qn_sample_opts, field), __VA_ARGS__ }
    // clang-format off
    ROW(temperature,     REAL,  "temp",            "temperature",        false, false),
    ROW(top_k,           WHOLE, "top_k",           "top_k",              false, true),
    ROW(top_p,           REAL,  "top_p",           "top_p",              true,  true),
    ROW(min_p,           REAL,  "min_p",           "min_p",              false, true),
    ROW(xtc_probability, REAL,  "xtc_probability", NULL,                 false, true),
    ROW(xtc_threshold,   REAL,  "xtc_threshold",   NULL,                 false, true),
    ROW(repeat_penalty,  REAL,  "penalty_repeat",  "repetition_penalty", true,  false),
    ROW(repeat_last_n,   WHOLE, "penalty_last_n",  NULL,                 false, false),
    ROW(mirostat,        WHOLE, "mirostat",        NULL,                 false, true),
    ROW(mirostat_tau,    REAL,  "mirostat_tau",    NULL,                 true,  true),
    ROW(mirostat_eta,    REAL,  "mirostat_eta",    NULL,                 true,  true),
// clang-format on
#undef ROW
};
enum { N_ROWS = sizeof rows / sizeof *rows };
static const char sequence[] = "general.sampling.sequence";

typedef struct reader {
    const qn_source *source;
    qn_log_fn *log;
    void *log_arg;
    qn_sample_opts opts;
    bool has_temperature, has_filter;
} reader;

// --- one value -----------------------------------------------------------------------------------

static float *real_at(qn_sample_opts *opts, const struct row *row) {
    return (float *)(void *)((char *)opts + row->offset);
}

static int32_t *whole_at(qn_sample_opts *opts, const struct row *row) {
    return (int32_t *)(void *)((char *)opts + row->offset);
}

// What files say in another way than the struct: no limit is also -1, and 0 means no token at all.
static double translate(const struct row *row, double value) {
    if (row->offset == offsetof(qn_sample_opts, top_k) && value == -1) return 0;
    if (row->offset == offsetof(qn_sample_opts, repeat_last_n) && value == 0) return QN_LAST_N_NONE;
    return value;
}

// Fills the field, unless the value is out of the range that the sampler has for it.
static void take(reader *r, const struct row *row, const char *name, double value) {
    qn_sample_opts alone = {0};
    qn_err why;
    const double own = translate(row, value);
    if (row->kind == WHOLE && !(own >= INT32_MIN && own <= INT32_MAX && own == floor(own))) {
        qn_log(r->log, r->log_arg, QN_LOG_WARNING,
               "%s is %g, want a whole number from %d to %d: it is not used", name, value,
               INT32_MIN, INT32_MAX);
        return;
    }
    if (row->kind == WHOLE)
        *whole_at(&alone, row) = (int32_t)own;
    else
        *real_at(&alone, row) = (float)own;
    qn_status status = qn_settings_check(&alone, &why);
    if (!status && row->is_positive && value == 0)
        status = QN_FAIL(&why, ARGUMENT, "0, want more than 0");
    if (status) { // the message has the value
        qn_log(r->log, r->log_arg, QN_LOG_WARNING, "%s: %s: it is not used", name, why.message);
        return;
    }
    memcpy((char *)&r->opts + row->offset, (char *)&alone + row->offset, sizeof(float));
    r->has_temperature |= row->offset == offsetof(qn_sample_opts, temperature);
    r->has_filter |= row->is_filter;
}

static void refuse(const reader *r, const char *name, const char *want) {
    qn_log(r->log, r->log_arg, QN_LOG_WARNING, "%s is not %s: it is not used", name, want);
}

// --- GGUF ----------------------------------------------------------------------------------------

static void take_sequence(reader *r) {
    const qn_key *key = qn_source_find_key(r->source, sequence);
    const qn_sampler_step *steps[QN_N_STEPS];
    size_t n_steps;
    qn_err why;
    if (!key) return;
    if (key->kind != QN_KEY_STRING || strlen(key->as.s.data) != key->as.s.size)
        refuse(r, sequence, "a string");
    else if (qn_steps_parse(steps, &n_steps, key->as.s.data, &why))
        qn_log(r->log, r->log_arg, QN_LOG_WARNING, "%s: %s: it is not used", sequence, why.message);
    else
        r->opts.order = key->as.s.data;
}

// Filters without a temperature still ask for sampling: with the model's own probabilities,
// as transformers has it, from whose files these keys come.
static void read_gguf(reader *r) {
    for (size_t i = 0; i < N_ROWS; i++) {
        const qn_key *key = qn_source_find_key(r->source, rows[i].gguf);
        if (!key) continue;
        if (key->kind == QN_KEY_INT)
            take(r, &rows[i], rows[i].gguf, (double)key->as.i);
        else if (key->kind == QN_KEY_FLOAT)
            take(r, &rows[i], rows[i].gguf, key->as.f);
        else
            refuse(r, rows[i].gguf, "a number");
    }
    take_sequence(r);
    if (r->has_filter && !r->has_temperature) r->opts.temperature = 1;
}

// --- generation_config.json ----------------------------------------------------------------------

// False where it is missing or not a boolean.
static bool wants_sampling(const reader *r, const json_t *config) {
    const json_t *value = json_object_get(config, "do_sample");
    if (value && !json_is_boolean(value) && !json_is_null(value))
        refuse(r, "generation_config.json: do_sample", "true or false");
    return json_is_true(value);
}

static void take_member(reader *r, const struct row *row, const json_t *value) {
    char name[64];
    snprintf(name, sizeof name, "%s: %s", generation_config, row->json);
    if (json_is_number(value))
        take(r, row, name, json_number_value(value));
    else if (json_is_string(value))
        qn_log(r->log, r->log_arg, QN_LOG_WARNING, "%s is \"%.40s\", want a number: it is not used",
               name, json_string_value(value));
    else if (!json_is_null(value))
        refuse(r, name, "a number");
}

// The penalty counts for a greedy choice too; all else is for sampling, where what is not said is
// as in transformers' GenerationConfig. null turns a filter off there.
static void read_config(reader *r, const json_t *config) {
    const bool samples = wants_sampling(r, config);
    if (samples) {
        r->opts.temperature = 1;
        if (!json_object_get(config, "top_k")) r->opts.top_k = 50;
    }
    for (size_t i = 0; i < N_ROWS; i++) {
        const json_t *value = rows[i].json ? json_object_get(config, rows[i].json) : NULL;
        const bool counts = samples || rows[i].offset == offsetof(qn_sample_opts, repeat_penalty);
        if (value && counts) take_member(r, &rows[i], value);
    }
    if (r->opts.repeat_penalty == 1) r->opts.repeat_penalty = 0;
    if (r->opts.repeat_penalty != 0) r->opts.repeat_last_n = QN_LAST_N_ALL;
}

static qn_status read_folder(reader *r, qn_err *err) {
    json_t *config = NULL;
    qn_err why;
    const qn_status status =
        qn_companion_load(&config, qn_source_place(r->source), generation_config, &why);
    if (status == QN_MEMORY) {
        if (err) *err = why;
        return status;
    }
    if (status)
        qn_log(r->log, r->log_arg, QN_LOG_WARNING, "no sampling defaults: %s", why.message);
    else if (config && !json_is_object(config))
        qn_log(r->log, r->log_arg, QN_LOG_WARNING, "no sampling defaults: %s: not a JSON object",
               generation_config);
    else if (config)
        read_config(r, config);
    json_decref(config);
    return QN_OK;
}

// --- both ----------------------------------------------------------------------------------------

qn_status qn_sample_defaults_read(qn_sample_opts *out, const qn_source *source, qn_log_fn *log,
                                  void *log_arg, qn_err *err) {
    reader r = {.source = source, .log = log, .log_arg = log_arg};
    if (qn_source_get_kind(source) == QN_SOURCE_GGUF)
        read_gguf(&r);
    else
        QN_TRY(read_folder(&r, err));
    *out = r.opts;
    return QN_OK;
}

void qn_sample_defaults_write(qn_gguf_writer *to, const qn_sample_opts *defaults) {
    qn_sample_opts opts = *defaults;
    const struct row *temperature = &rows[0];
    bool has_filter = false;
    for (size_t i = 0; i < N_ROWS; i++) {
        const int32_t whole = rows[i].kind == WHOLE ? *whole_at(&opts, &rows[i]) : 0;
        const float real = rows[i].kind == REAL ? *real_at(&opts, &rows[i]) : 0;
        if (whole != 0) qn_gguf_put_i32(to, rows[i].gguf, whole == QN_LAST_N_NONE ? 0 : whole);
        if (real != 0) qn_gguf_put_f32(to, rows[i].gguf, real);
        has_filter |= rows[i].is_filter && (whole != 0 || real != 0);
    }
    if (has_filter && opts.temperature == 0) qn_gguf_put_f32(to, temperature->gguf, 0);
    if (opts.order) qn_gguf_put_string(to, sequence, opts.order);
}

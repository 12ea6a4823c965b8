#include "runtime/profile.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/toml.h"
#include "passes/passes.h"

#include <stdio.h>
#include <string.h>

enum { FILE_LIMIT = 1 << 20, PREFILL = 1, DECODE = 2, BOTH = 3 };

void qn_profile_deinit(qn_profile *profile) {
    qn_free(profile->path);
    *profile = (qn_profile){0};
}

bool qn_profile_skips(const qn_profile_phase *phase, const char *pass) {
    uint64_t bit = 0;
    return qn_passes_parse_skip(&bit, pass, NULL) == QN_OK && phase->skip & bit;
}

// --- keys ---

#define CHANGES_RESULTS "%s would change results, which a profile may not: it is an option"

typedef struct key_row {
    const char *name;
    qn_toml_kind kind;
    int phases; // PREFILL, DECODE or both
    qn_status (*set)(qn_profile *to, const struct key_row *row, const qn_toml_value *value,
                     qn_err *err);
    int64_t max;        // of an integer; it is at least 1
    size_t offset;      // of a number of the profile
    const char *passes; // a boolean's: those whose name begins so are off ...
    bool off_when;      // ... when it is this
} key_row;

static void turn_off(qn_profile *to, int phases, uint64_t passes) {
    if (phases & PREFILL) to->prefill.skip |= passes;
    if (phases & DECODE) to->decode.skip |= passes;
}

static qn_status set_number(qn_profile *to, const key_row *row, const qn_toml_value *value,
                            qn_err *err) {
    if (value->as.i < 1 || value->as.i > row->max)
        return QN_FAIL(err, FORMAT, "%s: %lld, want 1 to %lld", row->name, (long long)value->as.i,
                       (long long)row->max);
    *(int64_t *)((char *)to + row->offset) = value->as.i;
    return QN_OK;
}

// The bits of the passes in a list. Rounding activations is not only a matter of speed.
static qn_status set_skip(qn_profile *to, const key_row *row, const qn_toml_value *value,
                          qn_err *err) {
    for (size_t i = 0; i < value->as.array.n; i++) {
        const qn_toml_value *item = &value->as.array.items[i];
        uint64_t bit;
        if (item->kind != QN_TOML_STRING)
            return QN_FAIL(err, FORMAT, "%s: item %zu is %s, want the name of a pass", row->name,
                           i + 1, qn_toml_kind_name(item->kind));
        if (strcmp(item->as.s, "quantize") == 0)
            return QN_FAIL(err, UNSUPPORTED, CHANGES_RESULTS, item->as.s);
        const qn_status status = qn_passes_parse_skip(&bit, item->as.s, err);
        if (status) return qn_err_prefix(err, status, "%s", row->name);
        turn_off(to, row->phases, bit);
    }
    return QN_OK;
}

static qn_status set_plans(qn_profile *to, const key_row *row, const qn_toml_value *value,
                           qn_err *err) {
    static const struct {
        const char *name;
        qn_plan_policy policy;
    } policies[] = {
        {"bucketed", QN_PLANS_BUCKETED}, {"exact", QN_PLANS_EXACT}, {"dynamic", QN_PLANS_DYNAMIC}};
    for (size_t i = 0; i < sizeof policies / sizeof policies[0]; i++) {
        if (strcmp(policies[i].name, value->as.s) != 0) continue;
        if (row->phases & PREFILL) to->prefill.plans = policies[i].policy;
        if (row->phases & DECODE) to->decode.plans = policies[i].policy;
        return QN_OK;
    }
    return QN_FAIL(err, FORMAT, "%s: '%s', want exact, bucketed or dynamic", row->name,
                   value->as.s);
}

static qn_status set_passes(qn_profile *to, const key_row *row, const qn_toml_value *value,
                            qn_err *err) {
    (void)err;
    const char *name;
    for (size_t i = 0; value->as.b == row->off_when && (name = qn_pass_name(i)); i++) {
        if (strncmp(name, row->passes, strlen(row->passes)) == 0)
            turn_off(to, row->phases, (uint64_t)1 << i);
    }
    return QN_OK;
}

// Only float32 throughout is supported; mixed precision would change results.
static qn_status check_precision(qn_profile *to, const key_row *row, const qn_toml_value *value,
                                 qn_err *err) {
    (void)to;
    if (value->kind == QN_TOML_STRING && row->passes && strcmp(value->as.s, row->passes) == 0)
        return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, CHANGES_RESULTS, row->name);
}

#define NUMBER(member, limit)                                                                      \
    .kind = QN_TOML_INT, .set = set_number, .offset = offsetof(qn_profile, member), .max = limit
#define OFF(which, when)                                                                           \
    .kind = QN_TOML_BOOL, .phases = BOTH, .set = set_passes, .passes = which, .off_when = when

static const key_row quern_rows[] = {
    {.name = "compile_seq_cap", NUMBER(compile_seq_cap, INT32_MAX)},
    {.name = "prefill.chunk", NUMBER(chunk, INT32_MAX)},
    {.name = "prefill.plan_capacity", NUMBER(prefill.plan_capacity, QN_PLAN_CAPACITY)},
    {.name = "decode.plan_capacity", NUMBER(decode.plan_capacity, QN_PLAN_CAPACITY)},
    {.name = "prefill.plans", .kind = QN_TOML_STRING, .phases = PREFILL, .set = set_plans},
    {.name = "decode.plans", .kind = QN_TOML_STRING, .phases = DECODE, .set = set_plans},
    {.name = "prefill.skip", .kind = QN_TOML_ARRAY, .phases = PREFILL, .set = set_skip},
    {.name = "decode.skip", .kind = QN_TOML_ARRAY, .phases = DECODE, .set = set_skip},
};

static const key_row rlx_rows[] = {
    {.name = "fusion.skip", OFF("fuse_", true)},
    {.name = "backend.cpu.unfuse_regions", OFF("fuse_", true)},
    {.name = "passes.dce", OFF("dce", false)},
    {.name = "passes.constant_folding", OFF("fold", false)},
    {.name = "precision.compute", .kind = QN_TOML_STRING, .set = check_precision, .passes = "f32"},
    {.name = "precision.mixed", .kind = QN_TOML_STRING, .set = check_precision, .passes = "none"},
    {.name = "compile_seq_cap", NUMBER(compile_seq_cap, INT32_MAX)},
};

typedef struct file_kind {
    const char *suffix;
    const key_row *rows;
    size_t n_rows;
    bool is_foreign; // keys that mean nothing here are left alone
} file_kind;

static const file_kind file_kinds[] = {
    {".quern.toml", quern_rows, sizeof quern_rows / sizeof quern_rows[0], false},
    {".rlx.toml", rlx_rows, sizeof rlx_rows / sizeof rlx_rows[0], true},
};
enum { N_KINDS = sizeof file_kinds / sizeof file_kinds[0] };

// Words that would set a precision, anywhere in one of our profiles.
static bool is_precision(const char *name) {
    static const char *const words[] = {"precision", "numerics", "cache_type", "dtype"};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strstr(name, words[i])) return true;
    }
    return false;
}

static qn_status set_entry(qn_profile *to, const file_kind *kind, const qn_toml_entry *entry,
                           qn_buf *ignored, qn_err *err) {
    for (size_t i = 0; i < kind->n_rows; i++) {
        const key_row *row = &kind->rows[i];
        if (strcmp(row->name, entry->name) != 0) continue;
        if (row->kind != entry->value.kind)
            return QN_FAIL(err, FORMAT, "%s is %s, want %s", row->name,
                           qn_toml_kind_name(entry->value.kind), qn_toml_kind_name(row->kind));
        return row->set(to, row, &entry->value, err);
    }
    if (!kind->is_foreign && is_precision(entry->name))
        return check_precision(to, &(key_row){.name = entry->name}, &entry->value, err);
    if (!kind->is_foreign) return QN_FAIL(err, FORMAT, "there is no key '%s'", entry->name);
    qn_buf_printf(ignored, "%s%s", ignored->size ? ", " : "", entry->name);
    return QN_OK;
}

static qn_status set_entries(qn_profile *to, const file_kind *kind, const qn_toml *toml,
                             qn_buf *ignored, qn_err *err) {
    for (size_t i = 0; i < toml->n; i++) {
        const qn_toml_entry *entry = &toml->entries[i];
        const qn_status status = set_entry(to, kind, entry, ignored, err);
        if (status) return qn_err_prefix(err, status, "line %zu", entry->line);
    }
    return QN_OK;
}

// A dynamic phase rebuilds its one binding for every step: there is nothing to keep.
static qn_status check_phase(const qn_profile_phase *phase, const char *name, qn_err *err) {
    if (phase->plans != QN_PLANS_DYNAMIC || !phase->plan_capacity) return QN_OK;
    return QN_FAIL(err, FORMAT,
                   "%s.plan_capacity: %lld, but %s.plans is \"dynamic\", which keeps no bindings",
                   name, (long long)phase->plan_capacity, name);
}

static bool has_suffix(const char *path, const char *suffix) {
    const size_t n = strlen(path), m = strlen(suffix);
    return n >= m && strcmp(path + n - m, suffix) == 0;
}

static qn_status parse(qn_profile *out, const file_kind *kind, const char *text, size_t size,
                       qn_buf *ignored, qn_err *err) {
    qn_toml toml = {0};
    qn_profile profile = {0};
    qn_status status = qn_toml_parse(&toml, text, size, err);
    if (!status) status = set_entries(&profile, kind, &toml, ignored, err);
    if (!status) status = check_phase(&profile.prefill, "prefill", err);
    if (!status) status = check_phase(&profile.decode, "decode", err);
    qn_toml_deinit(&toml);
    if (!status) *out = profile;
    return status;
}

qn_status qn_profile_parse(qn_profile *out, const char *text, size_t size, qn_err *err) {
    if (size > FILE_LIMIT)
        return QN_FAIL(err, LIMIT, "a profile of %zu bytes, the limit is %d", size, FILE_LIMIT);
    return qn_err_prefix(err, parse(out, &file_kinds[0], text, size, NULL, err), "profile");
}

static qn_status load(qn_profile *out, const file_kind *kind, const char *path, qn_buf *ignored,
                      qn_err *err) {
    char *text = NULL;
    size_t size;
    qn_profile profile = {0};
    QN_TRY(qn_file_load(&text, &size, path, FILE_LIMIT, err));
    qn_status status = parse(&profile, kind, text, size, ignored, err);
    qn_free(text);
    if (status) return qn_err_prefix(err, status, "%s", path);
    profile.path = strdup(path);
    if (!profile.path) return QN_NOMEM(err, path);
    *out = profile;
    return QN_OK;
}

qn_status qn_profile_load(qn_profile *out, const char *path, qn_log_fn *log, void *log_arg,
                          qn_err *err) {
    for (size_t i = 0; i < N_KINDS; i++) {
        if (!has_suffix(path, file_kinds[i].suffix)) continue;
        qn_buf ignored = {0};
        const qn_status status = load(out, &file_kinds[i], path, &ignored, err);
        if (!status && ignored.size && !ignored.failed)
            qn_log(log, log_arg, QN_LOG_INFO, "%s: without a meaning here: %s", path, ignored.data);
        qn_buf_deinit(&ignored);
        return status;
    }
    return QN_FAIL(err, ARGUMENT, "%s: the name ends neither in %s nor in %s", path,
                   file_kinds[0].suffix, file_kinds[1].suffix);
}

// The names that profiles of an architecture may have besides its own.
static const struct {
    const char *arch, *family;
} families[] = {{"llama", "llama32"},
                {"qwen3moe", "qwen3"},
                {"gemma2", "gemma"},
                {"gemma3", "gemma"},
                {"qwen35moe", "qwen35"}};

static const char *family_of(const char *arch) {
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
        if (strcmp(families[i].arch, arch) == 0) return families[i].family;
    }
    return NULL;
}

qn_status qn_profile_find(qn_profile *out, const char *folder, const char *arch, qn_log_fn *log,
                          void *log_arg, qn_err *err) {
    const char *const names[] = {arch, family_of(arch)};
    for (size_t k = 0; k < N_KINDS; k++) {
        for (size_t i = 0; i < 2 && names[i]; i++) {
            char name[128];
            snprintf(name, sizeof name, "%.100s%s", names[i], file_kinds[k].suffix);
            char *path = qn_path_join(folder, name);
            if (!path) return QN_NOMEM(err, "a profile");
            const bool is_there = qn_path_is_file(path);
            const qn_status status =
                is_there ? qn_profile_load(out, path, log, log_arg, err) : QN_OK;
            qn_free(path);
            if (is_there) return status;
        }
    }
    *out = (qn_profile){0};
    return QN_OK;
}

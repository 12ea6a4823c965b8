#include "server/fields.h"

#include "server/ask.h"
#include "server/logger.h"
#include "server/server_int.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

// clang-format off
static const qn_field fields[] = {
#define FIELD(name, aliases, kind, sets, member, min, max, type, meaning)                          \
    {name, aliases, QN_FIELD_##kind, sets, offsetof(qn_ask, member), min, max, type, meaning},
#define IGNORE(name, sets, meaning) {name, "", QN_FIELD_IGNORED, sets, 0, 0, 0, "", meaning},
#define REFUSE_BUT(name, sets, min, max, meaning)                                                  \
    {name, "", QN_FIELD_REFUSED, sets, 0, min, max, "", meaning},
#define REFUSE(name, sets, meaning) REFUSE_BUT(name, sets, 1, 0, meaning)
#include "server/fields.def"
#undef FIELD
#undef IGNORE
#undef REFUSE
#undef REFUSE_BUT
};
// clang-format on
enum { N_FIELDS = sizeof fields / sizeof *fields };
_Static_assert(sizeof fields / sizeof *fields <= (size_t)QN_MAX_FIELDS, "bits of qn_ask.given");

const qn_field *qn_field_at(size_t i) { return i < N_FIELDS ? &fields[i] : NULL; }

// --- names ---------------------------------------------------------------------------------------

static bool has_alias(const qn_field *field, const char *name) {
    const size_t n = strlen(name);
    for (const char *at = field->aliases; *at;) {
        const size_t size = strcspn(at, ",");
        if (size == n && memcmp(at, name, n) == 0) return true;
        at += size + (at[size] == ',');
    }
    return false;
}

static const qn_field *find(const char *name, uint32_t set) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (!(fields[i].sets & set)) continue;
        if (strcmp(fields[i].name, name) == 0 || has_alias(&fields[i], name)) return &fields[i];
    }
    return NULL;
}

// --- values --------------------------------------------------------------------------------------

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "object",   [JSON_ARRAY] = "array", [JSON_STRING] = "string",
        [JSON_INTEGER] = "integer", [JSON_REAL] = "number", [JSON_TRUE] = "boolean",
        [JSON_FALSE] = "boolean",   [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

static qn_status refuse_kind(qn_problem *p, const char *name, const json_t *value,
                             const char *want) {
    return QN_REFUSE(p, 400, name, "'%s' is of type %s, want %s", name, kind_of(value), want);
}

// A whole number; 3.0 is one.
static bool read_whole(int64_t *out, const json_t *value) {
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    const double x = json_is_real(value) ? json_real_value(value) : NAN;
    if (!(x == floor(x)) || x < -9e15 || x > 9e15) return false;
    *out = (int64_t)x;
    return true;
}

static qn_status read_int(int64_t *out, const qn_field *f, const char *name, const json_t *value,
                          qn_problem *p) {
    int64_t n;
    if (!read_whole(&n, value)) return refuse_kind(p, name, value, "a whole number");
    if ((double)n < f->min || (double)n > f->max)
        return QN_REFUSE(p, 400, name, "'%s' is %lld, want %.0f to %.0f", name, (long long)n,
                         f->min, f->max);
    *out = n;
    return QN_OK;
}

static qn_status read_real(float *out, const qn_field *f, const char *name, const json_t *value,
                           qn_problem *p) {
    if (!json_is_number(value)) return refuse_kind(p, name, value, "a number");
    const double x = json_number_value(value);
    if (!(x >= f->min && x <= f->max))
        return QN_REFUSE(p, 400, name, "'%s' is %g, want %g to %g", name, x, f->min, f->max);
    *out = (float)x;
    return QN_OK;
}

static bool is_kind(const json_t *value, const char *kinds) {
    const char *kind = kind_of(value);
    const size_t n = strlen(kind);
    for (const char *at = kinds; *at;) {
        const size_t size = strcspn(at, "|");
        if (size == n && memcmp(at, kind, n) == 0) return true;
        at += size + (at[size] == '|');
    }
    return false;
}

static qn_status read_last_n(int32_t *out, const qn_field *f, const char *name, const json_t *value,
                             qn_problem *p) {
    int64_t n;
    QN_TRY(read_int(&n, f, name, value, p));
    *out = n == 0 ? QN_LAST_N_NONE : (int32_t)n;
    return QN_OK;
}

// Negative seeds are drawn, as if none was given. *is_none then.
static qn_status read_seed(uint64_t *out, bool *is_none, const char *name, const json_t *value,
                           qn_problem *p) {
    int64_t n;
    if (!read_whole(&n, value)) return refuse_kind(p, name, value, "a whole number");
    *is_none = n < 0;
    *out = (uint64_t)n;
    return QN_OK;
}

// What clients send for a field that they do not use.
static bool is_nothing(const qn_field *f, const json_t *value) {
    const double x = json_number_value(value);
    if (json_is_number(value)) return x >= f->min && x <= f->max;
    if (json_is_string(value)) return json_string_length(value) == 0;
    if (json_is_array(value)) return json_array_size(value) == 0;
    return json_is_false(value);
}

static qn_status read_value(qn_ask *ask, const qn_field *f, const char *name, const json_t *value,
                            bool *is_none, qn_problem *p) {
    void *to = (char *)ask + f->offset;
    int64_t n = 0;
    switch (f->kind) {
    case QN_FIELD_BOOL:
        if (!json_is_boolean(value)) return refuse_kind(p, name, value, "true or false");
        *(bool *)to = json_is_true(value);
        return QN_OK;
    case QN_FIELD_INT:
        return read_int(to, f, name, value, p);
    case QN_FIELD_INT32:
        QN_TRY(read_int(&n, f, name, value, p));
        *(int32_t *)to = (int32_t)n;
        return QN_OK;
    case QN_FIELD_REAL:
        return read_real(to, f, name, value, p);
    case QN_FIELD_LAST_N:
        return read_last_n(to, f, name, value, p);
    case QN_FIELD_SEED:
        return read_seed(to, is_none, name, value, p);
    case QN_FIELD_TEXT:
        if (!json_is_string(value)) return refuse_kind(p, name, value, "a string");
        *(const char **)to = json_string_value(value);
        return QN_OK;
    case QN_FIELD_JSON:
        if (!is_kind(value, f->type)) return refuse_kind(p, name, value, f->type);
        *(const json_t **)to = value;
        return QN_OK;
    case QN_FIELD_REFUSED:
        if (is_nothing(f, value)) return QN_OK;
        return QN_REFUSE(p, 400, name, "'%s' is not supported: %s", name, f->meaning);
    case QN_FIELD_IGNORED:
        break;
    }
    return QN_OK;
}

qn_status qn_fields_read(qn_ask *ask, const json_t *object, uint32_t set, qn_exchange *ex,
                         qn_problem *problem) {
    enum { MAX_TOLD = 4 };
    int n_told = 0;
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, name, value) {
        if (json_is_null(value)) continue;
        const qn_field *f = find(name, set);
        if (!f) {
            if (ex && n_told++ < MAX_TOLD) qn_logger_field(&ex->server->logger, ex, name);
            continue;
        }
        bool is_none = false;
        QN_TRY(read_value(ask, f, name, value, &is_none, problem));
        const size_t i = (size_t)(f - fields);
        if (!is_none) ask->given[i / 64] |= (uint64_t)1 << i % 64;
    }
    return QN_OK;
}

bool qn_field_is_given(const qn_ask *ask, size_t offset) {
    for (size_t i = 0; i < N_FIELDS; i++) {
        if (fields[i].kind < QN_FIELD_IGNORED && fields[i].offset == offset)
            return ask->given[i / 64] >> i % 64 & 1;
    }
    return false;
}

void qn_fields_merge(qn_sample_opts *to, const qn_ask *ask) {
    static const size_t sizes[] = {
        [QN_FIELD_BOOL] = sizeof(bool),      [QN_FIELD_INT] = sizeof(int64_t),
        [QN_FIELD_REAL] = sizeof(float),     [QN_FIELD_INT32] = sizeof(int32_t),
        [QN_FIELD_LAST_N] = sizeof(int32_t), [QN_FIELD_SEED] = sizeof(uint64_t),
        [QN_FIELD_TEXT] = sizeof(char *),    [QN_FIELD_JSON] = sizeof(json_t *)};
    const size_t from = offsetof(qn_ask, sample), end = from + sizeof(qn_sample_opts);
    for (size_t i = 0; i < N_FIELDS; i++) {
        const qn_field *f = &fields[i];
        const bool is_sampling = f->kind < QN_FIELD_IGNORED && f->offset >= from && f->offset < end;
        if (!is_sampling || !(ask->given[i / 64] >> i % 64 & 1)) continue;
        memcpy((char *)to + (f->offset - from), (const char *)ask + f->offset, sizes[f->kind]);
    }
}

// Strings: lengths, patterns, formats, and words that are excluded.
#include "gen/grammar/schema.h"

typedef struct format {
    const char *name, *pattern; // NULL: any text
} format;

#define BYTE8    "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define IPV4     "(" BYTE8 "\\.){3}" BYTE8
#define HEX16    "[0-9a-fA-F]{1,4}"
#define YEAR     "([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])"
#define LEAP     "([0-9]{2}(0[48]|[2468][048]|[13579][26])|(0[48]|[2468][048]|[13579][26])00)"
#define MONTHS31 "(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
#define MONTHS30 "(0[469]|11)-(0[1-9]|[12][0-9]|30)"
#define DATE     "(" YEAR "-(" MONTHS31 "|" MONTHS30 "|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]" \
    ")"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST  LABEL "(\\." LABEL "){0,3}"
#define ATOM  "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,16}"
#define DURATION_TIME                                                                              \
    "T([0-9]{1,4}H([0-9]{1,4}M([0-9]{1,4}S)?)?|[0-9]{1,4}M([0-9]{1,4}S)?|[0-9]{1,4}S)"
#define DURATION_DAYS                                                                              \
    "([0-9]{1,4}Y([0-9]{1,4}M([0-9]{1,4}D)?)?|[0-9]{1,4}M([0-9]{1,4}D)?|[0-9]{1,4}D)"
#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})"

static const format formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(" DURATION_DAYS "(" DURATION_TIME ")?|" DURATION_TIME "|[0-9]{1,4}W)$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"email", "^" ATOM "(\\." ATOM "){0,3}@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" IPV4 "$"},
    {"ipv6", "^((" HEX16 ":){7}" HEX16 "|(" HEX16 ":){1,7}:|(" HEX16 ":){1,6}:" HEX16 "|(" HEX16
             ":){1,5}(:" HEX16 "){1,2}|(" HEX16 ":){1,4}(:" HEX16 "){1,3}|(" HEX16 ":){1,3}(:" HEX16
             "){1,4}|(" HEX16 ":){1,2}(:" HEX16 "){1,5}|" HEX16 ":(:" HEX16 "){1,6}|:(:" HEX16
             "){1,7}|::|(" HEX16 ":){6}" IPV4 "|::([fF]{4}:)?" IPV4 ")$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,15}:" URI_CHAR "+(\\?(" URI_CHAR "|\\?)*)?(#(" URI_CHAR
            "|\\?)*)?$"},
    {"uri-reference", "^(" URI_CHAR ")*(\\?(" URI_CHAR "|\\?)*)?(#(" URI_CHAR "|\\?)*)?$"},
    {"json-pointer", "^(/([^/~]|~[01])*)*$"},
    {"byte", "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"},
    {"jwt", "^[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]+\\.[A-Za-z0-9_-]*$"},
    {"includes", NULL}, // zod's names for patterns in allOf
    {"starts_with", NULL},
    {"ends_with", NULL},
    {"lowercase", NULL},
    {"uppercase", NULL},
    {"password", NULL},
    {"binary", NULL},
    {"int32", NULL}, // of numbers: schema_number.c
    {"int64", NULL},
    {"float", NULL},
    {"double", NULL},
};

qn_gr_format_kind qn_gr_schema_format_kind(const json_t *name) {
    for (size_t i = 0; json_is_string(name) && i < sizeof formats / sizeof *formats; i++) {
        if (!qn_str_is(qn_gr_json_str(name), formats[i].name)) continue;
        if (formats[i].pattern) return QN_FORMAT_TEXT;
        return !strncmp(formats[i].name, "int", 3) ? QN_FORMAT_NUMBER : QN_FORMAT_FREE;
    }
    return QN_FORMAT_UNKNOWN;
}

static qn_status add_part(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                          const qn_gr_member *member, const char *keyword, qn_gr_lang_part part) {
    if (*n == QN_LANG_MAX_PARTS)
        return QN_SCHEMA_FAIL(s, member->where, keyword, LIMIT,
                              "more than %d conditions on one string", QN_LANG_MAX_PARTS);
    part.keyword = keyword;
    part.where = member->where;
    parts[(*n)++] = part;
    return QN_OK;
}

static qn_status add_pattern(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                             const qn_gr_member *member, const json_t *pattern, bool negated) {
    if (!pattern) return QN_OK;
    if (!json_is_string(pattern))
        return QN_SCHEMA_FAIL(s, member->where, "pattern", FORMAT, "not a string");
    return add_part(parts, n, s, member, negated ? "not/pattern" : "pattern",
                    (qn_gr_lang_part){.kind = QN_LANG_PATTERN,
                                      .pattern = qn_gr_json_str(pattern),
                                      .negated = negated});
}

static qn_status add_format(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                            const qn_gr_member *member, const json_t *name, bool negated) {
    if (!name) return QN_OK;
    for (size_t i = 0; json_is_string(name) && i < sizeof formats / sizeof *formats; i++) {
        if (!qn_str_is(qn_gr_json_str(name), formats[i].name)) continue;
        if (!formats[i].pattern) return QN_OK;
        return add_part(parts, n, s, member, "format",
                        (qn_gr_lang_part){.kind = QN_LANG_PATTERN,
                                          .pattern = qn_str_of(formats[i].pattern),
                                          .negated = negated});
    }
    // Libraries give names of their own to a pattern next to them.
    if (!negated && json_object_get(member->schema, "pattern")) return QN_OK;
    return qn_gr_schema_ignore(s, member->where, "format", "'%.60s' is not supported",
                               json_is_string(name) ? json_string_value(name) : "(not a string)");
}

// not: {enum}, {const}, {pattern}, {format} of type string; all others are rewritten.
static qn_status add_excluded(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                              const qn_gr_member *member) {
    json_t *excluded = json_object_get(member->schema, "not"), *value;
    json_t *list = json_object_get(excluded, "enum"), *one = json_object_get(excluded, "const");
    json_t *pattern = json_object_get(excluded, "pattern"),
           *name = json_object_get(excluded, "format");
    if (!qn_gr_schema_is_plain_not(member->schema)) return QN_OK;
    if (name) return add_format(parts, n, s, member, name, true);
    if (!pattern && !list && !one) return QN_OK; // read elsewhere
    if (pattern) return add_pattern(parts, n, s, member, pattern, true);
    const size_t max = list ? json_array_size(list) : 1;
    qn_str *words = qn_arena_alloc(&s->arena, max + 1, sizeof *words);
    if (!words) return QN_NOMEM(s->err, "schema");
    size_t n_words = 0;
    for (size_t i = 0; i < max; i++) {
        value = list ? json_array_get(list, i) : one;
        if (json_is_string(value)) words[n_words++] = qn_gr_json_str(value);
    }
    return add_part(
        parts, n, s, member, "not",
        (qn_gr_lang_part){
            .kind = QN_LANG_WORDS, .negated = true, .words = words, .n_words = n_words});
}

static qn_status add_length(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                            const qn_gr_member *member) {
    uint32_t min = 0, max = QN_AST_MANY;
    bool has_min, has_max;
    QN_TRY(qn_gr_schema_count(&min, &has_min, s, member, "minLength"));
    QN_TRY(qn_gr_schema_count(&max, &has_max, s, member, "maxLength"));
    if (!has_min && !has_max) return QN_OK;
    return add_part(parts, n, s, member, has_max ? "maxLength" : "minLength",
                    (qn_gr_lang_part){.kind = QN_LANG_LENGTH, .min = min, .max = max});
}

qn_status qn_gr_schema_string_parts(qn_gr_lang_part *parts, size_t *n, qn_gr_schema *s,
                                    const qn_gr_member *member) {
    QN_TRY(add_length(parts, n, s, member));
    QN_TRY(add_pattern(parts, n, s, member, json_object_get(member->schema, "pattern"), false));
    QN_TRY(add_format(parts, n, s, member, json_object_get(member->schema, "format"), false));
    return add_excluded(parts, n, s, member);
}

// All lengths as one part, the last; returns the number of parts.
static size_t join_lengths(qn_gr_lang_part *parts, size_t n) {
    qn_gr_lang_part length = {.kind = QN_LANG_LENGTH, .max = QN_AST_MANY};
    qn_gr_lang_part others[QN_LANG_MAX_PARTS];
    size_t n_others = 0;
    for (size_t i = 0; i < n; i++) {
        if (parts[i].kind == QN_LANG_LENGTH) {
            const uint32_t min = parts[i].min > length.min ? parts[i].min : length.min;
            const uint32_t max = parts[i].max < length.max ? parts[i].max : length.max;
            length = parts[i];
            length.min = min;
            length.max = max;
        } else {
            others[n_others++] = parts[i];
        }
    }
    if (n_others == n) return n;
    memcpy(parts, others, n_others * sizeof *others);
    parts[n_others] = length;
    return n_others + 1;
}

// The strings for which all parts hold. Where the caller wants that, a pattern that cannot be
// honoured is left out.
static qn_status join_parts(int32_t *out, qn_gr_schema *s, qn_gr_lang_part *parts, size_t n) {
    int32_t inner;
    *out = s->parts.string;
    if (n == 0) return QN_OK;
    if (n == 1 && parts[0].kind == QN_LANG_LENGTH) {
        // Without a pattern every spelling of a character will do.
        inner = qn_gr_rep(s->ast, s->parts.letter, parts[0].min, parts[0].max);
    } else {
        size_t at;
        const qn_status status = qn_gr_lang_lower(&inner, s->ast, parts, n, &s->steps, &at, s->err);
        const bool is_left_out = (status == QN_UNSUPPORTED && s->opts->lenient) ||
                                 (status == QN_LIMIT && qn_gr_schema_leaves_limits(s));
        if (is_left_out && parts[at].kind == QN_LANG_PATTERN && !s->ast->failed) {
            const char *why = s->err ? s->err->message : "not supported";
            QN_TRY(qn_gr_schema_ignore(s, parts[at].where, parts[at].keyword, "%.150s", why));
            memmove(parts + at, parts + at + 1, (n - at - 1) * sizeof *parts);
            return join_parts(out, s, parts, n - 1);
        }
        if (status) return qn_gr_schema_fail(s, status, parts[at].where, parts[at].keyword);
    }
    *out = qn_gr_json_quoted(s->ast, inner);
    return QN_OK;
}

qn_status qn_gr_schema_string(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all) {
    qn_gr_lang_part parts[QN_LANG_MAX_PARTS];
    size_t n = 0;
    for (size_t i = 0; i < all->n; i++)
        QN_TRY(qn_gr_schema_string_parts(parts, &n, s, &all->members[i]));
    return join_parts(out, s, parts, join_lengths(parts, n));
}

// The text of a schema: numbers of any size, the wrappers that interfaces put around schemas, and
// the draft that it is written for.
#include "core/real_text.h"
#include "gen/grammar/schema.h"

#include <stdio.h>
#include <stdlib.h>

// Numbers that 64 bits cannot hold are read as strings after this mark. Fractions of up to 17
// digits, which is what programs write for a double, are doubles, and mean their shortest notation.
#define MARK     '\001'
#define MARKED   "\"\\u0001"
#define MARK_KEY "\\u0001"
enum { REAL_DIGITS = 17, WHOLE_DIGITS = 18, EXPONENT_MAX = 250 };
// What it costs to write a number out as digits.
enum { WHOLE_STEPS = 64, LARGE_STEPS = 256, REAL_STEPS = 1024 };

// --- numbers -------------------------------------------------------------------------------------

static bool in_number(char c) { return (c >= '0' && c <= '9') || strchr("+-.eE", c); }

static size_t number_size(qn_str text, size_t at) {
    size_t n = 0;
    while (at + n < text.size && text.data[at + n] && in_number(text.data[at + n])) n++;
    return n;
}

// Whether a double (or 64 bits) holds it, and gives it back in as many digits.
static bool is_small(qn_str number) {
    size_t n = 0;
    for (size_t i = 0; i < number.size; i++) {
        const char c = number.data[i];
        if (c == 'e' || c == 'E') {
            char digits[8] = {0};
            const size_t left = number.size - i - 1;
            if (left >= sizeof digits) return false;
            memcpy(digits, number.data + i + 1, left);
            return n <= REAL_DIGITS && abs(atoi(digits)) <= EXPONENT_MAX;
        }
        n += c >= (n ? '0' : '1') && c <= '9'; // zeros in front do not count
    }
    return n <= (memchr(number.data, '.', number.size) ? REAL_DIGITS : WHOLE_DIGITS);
}

// Copies the text with large numbers marked.
static void mark_numbers(qn_buf *out, bool *found, qn_str text) {
    bool in_string = false;
    size_t from = 0; // not copied yet
    for (size_t at = 0; at < text.size;) {
        const char c = text.data[at];
        if (in_string || c == '"') {
            if (c == '"') in_string = !in_string;
            at += in_string && c == '\\' && at + 1 < text.size ? 2 : 1;
            continue;
        }
        if (c != '-' && (c < '0' || c > '9')) {
            at++;
            continue;
        }
        const size_t n = number_size(text, at);
        const qn_str number = {text.data + at, n};
        if (!is_small(number)) {
            qn_buf_add(out, text.data + from, at - from);
            qn_buf_text(out, MARKED);
            qn_buf_add(out, number.data, n);
            qn_buf_text(out, "\"");
            from = at + n;
            *found = true;
        }
        at += n;
    }
    qn_buf_add(out, text.data + from, text.size - from);
}

// Whether a string of the schema itself may look like a marked number: there is one spelling.
static bool has_mark(qn_str text) {
    const size_t n = sizeof MARK_KEY - 1;
    for (size_t i = 0; i + n <= text.size; i++)
        if (!memcmp(text.data + i, MARK_KEY, n)) return true;
    return false;
}

bool qn_gr_schema_is_number(const qn_gr_schema *s, const json_t *value) {
    return json_is_number(value) ||
           (s->has_marks && json_is_string(value) && json_string_value(value)[0] == MARK);
}

// A number in JSON's notation, which strtod would take too: digits first.
static bool is_number_text(const char *text) {
    if (*text == '-') text++;
    if (*text < '0' || *text > '9') return false;
    if (*text == '0' && text[1] >= '0' && text[1] <= '9') return false;
    const size_t whole = strspn(text, "0123456789");
    text += whole;
    if (*text == '.') {
        const size_t n = strspn(text + 1, "0123456789");
        if (!n) return false;
        text += n + 1;
    }
    if (*text == 'e' || *text == 'E') {
        text += text[1] == '+' || text[1] == '-' ? 2 : 1;
        const size_t n = strspn(text, "0123456789");
        if (!n) return false;
        text += n;
    }
    return !*text;
}

qn_status qn_gr_schema_decimal(qn_gr_decimal *out, qn_gr_schema *s, const json_t *value,
                               const qn_gr_where *where, const char *keyword) {
    char room[QN_REAL_TEXT];
    const char *text = room;
    if (!qn_gr_schema_is_number(s, value))
        return QN_SCHEMA_FAIL(s, where, keyword, FORMAT, "not a number");
    if (json_is_string(value)) {
        text = json_string_value(value) + 1;
        QN_TRY(qn_gr_schema_spend(s, LARGE_STEPS + strlen(text), where));
        if (!is_number_text(text)) return QN_SCHEMA_FAIL(s, where, keyword, FORMAT, "not a number");
    } else if (json_is_integer(value)) {
        QN_TRY(qn_gr_schema_spend(s, WHOLE_STEPS, where));
        snprintf(room, sizeof room, "%lld", (long long)json_integer_value(value));
    } else {
        QN_TRY(qn_gr_schema_spend(s, REAL_STEPS, where));
        if (!qn_double_text(room, json_real_value(value), 0)) return QN_NOMEM(s->err, "schema");
    }
    if (qn_gr_decimal_read(out, qn_str_of(text))) return QN_OK;
    return QN_SCHEMA_FAIL(s, where, keyword, LIMIT, "a number of more than %d digits",
                          QN_DECIMAL_DIGITS);
}

// --- wrappers ------------------------------------------------------------------------------------

static bool has_only(const json_t *object, const char *const *keys, size_t n) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)object, key, value) {
        size_t i = 0;
        while (i < n && strcmp(keys[i], key) != 0) i++;
        if (i == n) return false;
    }
    return true;
}

// {"type": "json_schema", "json_schema": {...}} and {"name", "strict", "schema"}, as requests to
// servers have them, stand for the schema inside. A strict one closes objects.
static qn_status unwrap(qn_gr_schema *s, json_t *schema) {
    static const char *const outer[] = {"type", "json_schema"};
    static const char *const inner[] = {"type", "name", "description", "strict", "schema"};
    const char *type = json_string_value(json_object_get(schema, "type"));
    json_t *wrapped = json_object_get(schema, "json_schema");
    const bool is_typed = type && !strcmp(type, "json_schema");
    if (is_typed && json_is_object(wrapped) && has_only(schema, outer, 2)) schema = wrapped;
    wrapped = json_object_get(schema, "schema");
    type = json_string_value(json_object_get(schema, "type"));
    const bool is_wrapper = wrapped && (!type || !strcmp(type, "json_schema")) &&
                            (json_is_object(wrapped) || json_is_boolean(wrapped));
    s->root = schema;
    s->closed = s->opts->closed;
    if (!is_wrapper || !has_only(schema, inner, 5)) return QN_OK;
    const json_t *strict = json_object_get(schema, "strict");
    if (strict && !json_is_boolean(strict) && !json_is_null(strict))
        return QN_FAIL(s->err, FORMAT, "schema: strict is neither true nor false");
    s->root = wrapped;
    s->closed |= json_is_true(strict);
    return QN_OK;
}

// --- drafts --------------------------------------------------------------------------------------

typedef struct draft_row {
    const char *part; // of the address in $schema
    int draft;
} draft_row;

static const draft_row drafts[] = {
    {"draft-03", 3}, {"draft-04", 4}, {"draft-06", 6}, {"draft-07", 7}, {"2019-09", 2019}};

static qn_status find_draft(qn_gr_schema *s) {
    const char *name = json_string_value(json_object_get(s->root, "$schema"));
    for (size_t i = 0; name && i < sizeof drafts / sizeof *drafts; i++)
        if (strstr(name, drafts[i].part)) s->draft = drafts[i].draft;
    s->ref_alone = s->draft <= 7;
    if (name && !strstr(name, "json-schema.org") && !strstr(name, "openapis.org"))
        QN_TRY(qn_gr_schema_ignore(s, NULL, "$schema", "'%.100s' is an unknown dialect", name));
    if (s->draft == 3)
        return QN_SCHEMA_FAIL(s, NULL, "$schema", UNSUPPORTED, "draft 3 is not supported");
    return QN_OK;
}

qn_status qn_gr_schema_read(json_t **outer, qn_gr_schema *s, qn_str text) {
    const qn_json_opts opts = {.what = "schema", .any = true}; // booleans are schemas too
    qn_buf marked = {0};
    mark_numbers(&marked, &s->has_marks, text);
    qn_status status = marked.failed ? QN_NOMEM(s->err, "schema") : QN_OK;
    if (!status && s->has_marks && has_mark(text))
        status = QN_FAIL(s->err, UNSUPPORTED,
                         "schema: \\u0001 in strings beside numbers of more than %d digits",
                         REAL_DIGITS);
    const char *data = s->has_marks ? marked.data : text.data;
    if (!status)
        status =
            qn_json_parse_as(outer, data, s->has_marks ? marked.size : text.size, &opts, s->err);
    qn_buf_deinit(&marked);
    QN_TRY(status);
    QN_TRY(unwrap(s, *outer));
    return find_draft(s);
}

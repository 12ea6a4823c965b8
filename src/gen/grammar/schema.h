// JSON Schema -> tree, for the files of the front end.
//
// A value is described by a conjunction: schemas that must all hold (a schema with what its allOf and
// $ref name, or the schemas that several parents give for one property). Each conjunction becomes a
// rule, made once; a choice (anyOf) is a choice between conjunctions. Nested values are rules that
// wait in a queue, so nothing here recurses with the depth of a schema.
#ifndef QN_GEN_GRAMMAR_SCHEMA_H
#define QN_GEN_GRAMMAR_SCHEMA_H

#include "core/buf.h"
#include "core/json.h"
#include "gen/grammar/ast.h"
#include "gen/grammar/json.h"
#include "gen/grammar/lang.h"

// Where a schema stands: a JSON pointer, from its end.
typedef struct qn_where {
    const struct qn_where *up;
    const char *key; // borrowed from the schema or static; NULL: `index`
    size_t index;
} qn_where;

// A schema and its place. Flags tell which of its choices are made already.
typedef struct qn_member {
    json_t *schema;
    const qn_where *where;
    int32_t parent; // member that named this one; -1: none
    uint32_t done;  // QN_DONE_*
} qn_member;

enum { QN_DONE_ANY = 1, QN_DONE_ONE = 2, QN_CONJ_MAX = 128, QN_CONJS_MAX = 1 << 15 };

typedef struct qn_conj {
    qn_member *members;
    size_t n, cap;
} qn_conj;

typedef enum qn_type {
    QN_TYPE_NULL = 1,
    QN_TYPE_BOOLEAN = 2,
    QN_TYPE_INTEGER = 4,
    QN_TYPE_FRACTION = 8, // numbers that are not whole
    QN_TYPE_STRING = 16,
    QN_TYPE_ARRAY = 32,
    QN_TYPE_OBJECT = 64,
    QN_TYPE_NUMBER = QN_TYPE_INTEGER | QN_TYPE_FRACTION,
    QN_TYPE_ANY = 127
} qn_type;

typedef struct qn_waiting {
    qn_conj conj;
    int32_t rule;
} qn_waiting;

typedef struct qn_schema {
    qn_ast *ast;
    qn_json_parts parts;
    json_t *root;
    qn_arena arena; // places, keys of the index
    qn_map index;   // conjunction -> number in `queue`
    qn_waiting *queue;
    size_t n_queue, cap_queue;
    uint64_t steps; // budget for what is not linear
    qn_err *err;
} qn_schema;

// Fails with the place and keyword in front of the message of `status`.
qn_status qn_schema_fail(qn_schema *s, qn_status status, const qn_where *where,
                         const char *keyword);
#define QN_SCHEMA_FAIL(s, where, keyword, code, ...)                                               \
    qn_schema_fail(s, QN_FAIL((s)->err, code, __VA_ARGS__), where, keyword)

const qn_where *qn_where_add(qn_schema *s, const qn_where *up, const char *key, size_t index);
QN_MUST_CHECK qn_status qn_schema_spend(qn_schema *s, uint64_t steps, const qn_where *where);

// Adds a schema to a conjunction that is being put together for qn_schema_value; the same one twice
// counts once.
QN_MUST_CHECK qn_status qn_conj_add(qn_schema *s, qn_conj *conj, qn_member member);
void qn_conj_deinit(qn_conj *conj);
// True if one of the schemas is `false`.
bool qn_conj_is_false(const qn_conj *conj);
// The node of a value for which all members hold. The conjunction is copied.
QN_MUST_CHECK qn_status qn_schema_value(int32_t *out, qn_schema *s, const qn_conj *conj);
// What a local reference names.
QN_MUST_CHECK qn_status qn_schema_resolve(json_t **out, qn_schema *s, const json_t *ref,
                                          const qn_where *where);

// A whole number that is not negative, for lengths and counts; *out is untouched if the keyword is
// not there.
QN_MUST_CHECK qn_status qn_schema_count(uint32_t *out, bool *found, qn_schema *s,
                                        const qn_member *member, const char *keyword);
// The types that a schema's `type` allows.
QN_MUST_CHECK qn_status qn_schema_types(uint32_t *out, qn_schema *s, const qn_member *member);

// For each kind of value, from members without choices (schema_string.c and so on).
QN_MUST_CHECK qn_status qn_schema_string(int32_t *out, qn_schema *s, const qn_conj *all);
QN_MUST_CHECK qn_status qn_schema_number(int32_t *out, qn_schema *s, const qn_conj *all,
                                         uint32_t types);
QN_MUST_CHECK qn_status qn_schema_array(int32_t *out, qn_schema *s, const qn_conj *all);
QN_MUST_CHECK qn_status qn_schema_object(int32_t *out, qn_schema *s, const qn_conj *all);
// The tree of one value. Numbers as short as they can be.
int32_t qn_schema_literal(qn_schema *s, const json_t *value);
// Whether a value is valid; what the validator cannot decide is refused.
QN_MUST_CHECK qn_status qn_schema_valid(bool *out, qn_schema *s, const json_t *value,
                                        json_t *schema, const qn_where *where, int depth);
// Fails if two of the choices of `member`'s oneOf may hold at once.
QN_MUST_CHECK qn_status qn_schema_check_one(qn_schema *s, const qn_member *member, uint32_t types);
// The conditions of one schema on strings: pattern, format, length.
QN_MUST_CHECK qn_status qn_schema_string_parts(qn_lang_part *parts, size_t *n, qn_schema *s,
                                               const qn_member *member);

static inline qn_str qn_json_str(const json_t *string) {
    return (qn_str){json_string_value(string), json_string_length(string)};
}

#endif

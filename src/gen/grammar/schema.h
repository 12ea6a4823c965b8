// JSON Schema -> tree, for the files of the front end.
//
// A value is described by a conjunction: schemas that must all hold (a schema with what its allOf
// and $ref name, or the schemas that several parents give for one property). Each conjunction
// becomes a rule, made once; a choice (anyOf) is a choice between conjunctions. Nested values are
// rules that wait in a queue, so nothing here recurses with the depth of a schema.
#ifndef QN_GEN_GRAMMAR_SCHEMA_H
#define QN_GEN_GRAMMAR_SCHEMA_H

#include "core/buf.h"
#include "core/json.h"
#include "gen/grammar/ast.h"
#include "gen/grammar/decimal.h"
#include "gen/grammar/json_rules.h"
#include "gen/grammar/lang.h"

// Where a schema is: a JSON pointer, from its end.
typedef struct qn_gr_where {
    const struct qn_gr_where *up;
    const char *key; // borrowed from the schema or static; NULL: `index`
    size_t index;
    bool is_made; // of a schema that was made here for what is at `up`: no step of its own
} qn_gr_where;

// A schema and its place. Flags say which of its choices are made already.
typedef struct qn_gr_member {
    json_t *schema;
    const qn_gr_where *where;
    int32_t parent; // member that named this one; -1: none
    uint32_t done;  // QN_DONE_*
} qn_gr_member;

enum {
    QN_DONE_ANY = 1,
    QN_DONE_ONE = 2,
    QN_DONE_IF = 4,
    QN_MUTE = 8, // it comes from a `not`: what it describes does not count as described
    QN_CONJ_MAX = 128,
    QN_CONJS_MAX = 1 << 15
};

// Keywords of schemas that are made here; in a text they are unknown keywords.
// Number of items in front of those that `contains` counts.
#define QN_KEYWORD_FROM "\001from"
// There is a property with "value", whose name is in none of "names" and "patterns", matches
// "match", and is not valid for "name", as far as these are there.
#define QN_KEYWORD_SOME "\001some"

// What the value of a keyword holds.
typedef enum qn_gr_inner {
    QN_INNER_NONE,
    QN_INNER_ONE, // a schema, or a list of them
    QN_INNER_LIST,
    QN_INNER_MAP
} qn_gr_inner;

typedef enum qn_gr_format_kind {
    QN_FORMAT_UNKNOWN,
    QN_FORMAT_FREE,
    QN_FORMAT_NUMBER,
    QN_FORMAT_TEXT
} qn_gr_format_kind;

typedef struct qn_gr_conj {
    qn_gr_member *members;
    size_t n, cap;
} qn_gr_conj;

typedef enum qn_gr_schema_type {
    QN_SCHEMA_NULL = 1,
    QN_SCHEMA_BOOLEAN = 2,
    QN_SCHEMA_INTEGER = 4,
    QN_SCHEMA_FRACTION = 8, // numbers that are not whole
    QN_SCHEMA_STRING = 16,
    QN_SCHEMA_ARRAY = 32,
    QN_SCHEMA_OBJECT = 64,
    QN_SCHEMA_NUMBER = QN_SCHEMA_INTEGER | QN_SCHEMA_FRACTION,
    QN_SCHEMA_ANY = 127
} qn_gr_schema_type;

typedef struct qn_gr_waiting {
    qn_gr_conj conj;
    int32_t rule;
} qn_gr_waiting;

typedef struct qn_gr_schema {
    qn_gr_ast *ast;
    qn_gr_json_parts parts;
    json_t *root;
    const qn_grammar_opts *opts; // never NULL
    bool closed;                 // by the caller's wish or by a strict wrapper
    bool has_marks;              // numbers that 64 bits cannot hold are strings after a mark
    bool ref_alone;              // drafts to 7: $ref hides its siblings
    int draft;                   // 4, 6, 7, 2019, 2020
    bool has_unevaluated;        // some schema has unevaluatedProperties or unevaluatedItems
    // References: names -> schemas, schemas -> their addresses.
    json_t **targets;
    size_t n_targets, cap_targets;
    qn_map target_index;
    const char **bases;
    const qn_gr_where **places; // of the same schemas
    size_t n_bases, cap_bases, cap_places;
    qn_map base_index;
    size_t n_recursive_anchors;
    // Schemas that were made, and for what.
    json_t *made;
    qn_map made_index;
    qn_map warned; // places that were warned of
    size_t n_warned;
    qn_arena arena; // places, keys of the maps
    qn_map index;   // conjunction -> number in `queue`
    qn_gr_waiting *queue;
    size_t n_queue, cap_queue, n_built;
    uint64_t steps; // budget for what is not linear
    qn_err *err;
} qn_gr_schema;

// Whether what is too large is left out. Not for the sake of a budget that the caller lowered: with
// more steps it could be honoured.
bool qn_gr_schema_leaves_limits(const qn_gr_schema *s);
// Fails with the place and keyword in front of the message of `status`.
qn_status qn_gr_schema_fail(qn_gr_schema *s, qn_status status, const qn_gr_where *where,
                            const char *keyword);
#define QN_SCHEMA_FAIL(s, where, keyword, code, ...)                                               \
    qn_gr_schema_fail(s, QN_FAIL((s)->err, code, __VA_ARGS__), where, keyword)

// Fails with the place where the tree became too large.
QN_MUST_CHECK qn_status qn_gr_schema_check_ast(qn_gr_schema *s, const qn_gr_where *where,
                                               const char *keyword);

// What cannot be honoured: fails, or where the caller wants that warns once and goes on.
QN_PRINTF(4, 5)
QN_MUST_CHECK qn_status qn_gr_schema_ignore(qn_gr_schema *s, const qn_gr_where *where,
                                            const char *keyword, const char *format, ...);
// The same for what is beyond a limit.
QN_PRINTF(4, 5)
QN_MUST_CHECK qn_status qn_gr_schema_exceeds(qn_gr_schema *s, const qn_gr_where *where,
                                             const char *keyword, const char *format, ...);

const qn_gr_where *qn_gr_where_add(qn_gr_schema *s, const qn_gr_where *up, const char *key,
                                   size_t index);
const qn_gr_where *qn_gr_where_made(qn_gr_schema *s, const qn_gr_where *of);
QN_MUST_CHECK qn_status qn_gr_schema_spend(qn_gr_schema *s, uint64_t steps,
                                           const qn_gr_where *where);

// Reads the text of a schema: *outer owns what s->root and its inner values point to.
QN_MUST_CHECK qn_status qn_gr_schema_read(json_t **outer, qn_gr_schema *s, qn_str text);

// --- keywords (schema_keywords.c) and references (schema_refs.c) ---------------------------------

QN_MUST_CHECK qn_status qn_gr_schema_check_keywords(qn_gr_schema *s, const qn_gr_member *member);
qn_gr_inner qn_gr_schema_inner(const char *keyword);
// A whole number that is not negative, for lengths and counts; *out is untouched if the keyword is
// not there.
QN_MUST_CHECK qn_status qn_gr_schema_count(uint32_t *out, bool *found, qn_gr_schema *s,
                                           const qn_gr_member *member, const char *keyword);
// The types that a schema's `type` allows.
QN_MUST_CHECK qn_status qn_gr_schema_types(uint32_t *out, qn_gr_schema *s,
                                           const qn_gr_member *member);
// Whether a schema is part of the text, and was not made here.
bool qn_gr_schema_is_given(const qn_gr_schema *s, const json_t *schema);
// The place of a schema that is reached at `where`: what was made here stands where it was made
// for, and what it holds of the text where that is in the text.
const qn_gr_where *qn_gr_schema_place(qn_gr_schema *s, const json_t *schema,
                                      const qn_gr_where *where);
// Finds what references can name.
QN_MUST_CHECK qn_status qn_gr_schema_index(qn_gr_schema *s);
// What the reference in this keyword of the member names.
QN_MUST_CHECK qn_status qn_gr_schema_resolve(json_t **out, qn_gr_schema *s,
                                             const qn_gr_member *member, const char *keyword);

// --- conjunctions --------------------------------------------------------------------------------

// Adds a schema to a conjunction that is being put together for qn_gr_schema_value; the same one
// twice counts once.
QN_MUST_CHECK qn_status qn_gr_conj_add(qn_gr_schema *s, qn_gr_conj *conj, qn_gr_member member);
void qn_gr_conj_deinit(qn_gr_conj *conj);
bool qn_gr_conj_is_false(const qn_gr_conj *conj);
// The node of a value for which all members hold. The conjunction is copied.
QN_MUST_CHECK qn_status qn_gr_schema_value(int32_t *out, qn_gr_schema *s, const qn_gr_conj *conj);
// Adds what allOf, $ref, `not` and dependencies name, until there is nothing more to add.
QN_MUST_CHECK qn_status qn_gr_conj_expand(qn_gr_schema *s, qn_gr_conj *conj);
// Whether member `i` of an expanded conjunction describes values on behalf of `of`: it is the same,
// or was named by it.
bool qn_gr_conj_speaks_for(const qn_gr_conj *all, size_t i, size_t of);
// The types that all members allow.
QN_MUST_CHECK qn_status qn_gr_schema_common_types(uint32_t *out, qn_gr_schema *s,
                                                  const qn_gr_conj *all);

// --- schemas that say the same in other words (schema_rewrite.c) ---------------------------------
// What they give belongs to `s`.

// What holds exactly where `schema` does not.
QN_MUST_CHECK qn_status qn_gr_schema_negated(json_t **out, qn_gr_schema *s, json_t *schema,
                                             const qn_gr_where *where);
// Whether the `not` of a schema is one that types, strings or numbers read themselves.
bool qn_gr_schema_is_plain_not(const json_t *schema);
// dependentRequired, dependentSchemas and dependencies as one schema; NULL: there are none.
QN_MUST_CHECK qn_status qn_gr_schema_dependencies(json_t **out, qn_gr_schema *s,
                                                  const qn_gr_member *member);
// The choices of `if`; of `oneOf` where several may hold; and all subsets of a list.
QN_MUST_CHECK qn_status qn_gr_schema_if_options(json_t **out, qn_gr_schema *s,
                                                const qn_gr_member *member);
QN_MUST_CHECK qn_status qn_gr_schema_one_options(json_t **out, qn_gr_schema *s,
                                                 const qn_gr_member *member, uint32_t types);
QN_MUST_CHECK qn_status qn_gr_schema_subsets(json_t **out, qn_gr_schema *s, json_t *options,
                                             const qn_gr_where *where);
// Whether no value can fulfil both choices of `member`'s oneOf.
QN_MUST_CHECK qn_status qn_gr_schema_are_apart(bool *out, qn_gr_schema *s,
                                               const qn_gr_member *member, size_t i, size_t k,
                                               uint32_t types);

// --- values --------------------------------------------------------------------------------------

// For each kind of value, from members without choices (schema_string.c and so on).
QN_MUST_CHECK qn_status qn_gr_schema_string(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all);
QN_MUST_CHECK qn_status qn_gr_schema_number(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all,
                                            uint32_t types);
QN_MUST_CHECK qn_status qn_gr_schema_array(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all);
QN_MUST_CHECK qn_status qn_gr_schema_object(int32_t *out, qn_gr_schema *s, const qn_gr_conj *all);
// The tree of one value of this keyword. Numbers as short as they can be.
QN_MUST_CHECK qn_status qn_gr_schema_literal(int32_t *out, qn_gr_schema *s, const json_t *value,
                                             const qn_gr_where *where, const char *keyword);
// Whether a value is valid; what the validator cannot decide is refused.
QN_MUST_CHECK qn_status qn_gr_schema_valid(bool *out, qn_gr_schema *s, const json_t *value,
                                           json_t *schema, const qn_gr_where *where, int depth);
// Equal as JSON Schema has it: 1 is 1.0. Costs steps by the size of what is compared.
QN_MUST_CHECK qn_status qn_gr_schema_equals(bool *out, qn_gr_schema *s, const json_t *a,
                                            const json_t *b, const qn_gr_where *where);
// The values that an item of these schemas can have, as a list that belongs to `s`, some of them
// perhaps not valid; NULL if they are not seen to be finitely many.
QN_MUST_CHECK qn_status qn_gr_schema_values(json_t **out, qn_gr_schema *s, const qn_gr_conj *conj);
// Numbers of a schema. Writing one out as a decimal costs steps.
bool qn_gr_schema_is_number(const qn_gr_schema *s, const json_t *value);
QN_MUST_CHECK qn_status qn_gr_schema_decimal(qn_gr_decimal *out, qn_gr_schema *s,
                                             const json_t *value, const qn_gr_where *where,
                                             const char *keyword);
qn_gr_format_kind qn_gr_schema_format_kind(const json_t *name);
// The conditions of one schema on strings: pattern, format, length.
QN_MUST_CHECK qn_status qn_gr_schema_string_parts(qn_gr_lang_part *parts, size_t *n,
                                                  qn_gr_schema *s, const qn_gr_member *member);

static inline qn_str qn_gr_json_str(const json_t *string) {
    return (qn_str){json_string_value(string), json_string_length(string)};
}

#endif

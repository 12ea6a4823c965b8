// Values of a template: what Python has, as far as chat templates can see it.
//
// A value is 24 bytes and copied freely; what it points to lies in the arena of the rendering (or
// of the template, for constants) and is never released alone. Lists, tuples, dicts and texts
// never change after they were made; only namespaces do.
#ifndef QN_CHAT_VALUE_H
#define QN_CHAT_VALUE_H

#include "core/err.h"
#include "core/str.h"

typedef enum qn_jinja_val_kind {
    QN_VAL_ABSENT,    // none at all: an argument that was not given
    QN_VAL_UNDEFINED, // as.s: the name that was looked up; `mark`: QN_UNDEFINED_..., `owner`
    QN_VAL_NONE,
    QN_VAL_BOOL,
    QN_VAL_INT, // 64 bits; what does not fit is an error
    QN_VAL_FLOAT,
    QN_VAL_TEXT, // UTF-8; mark 1: "safe", which shows only when it is added to another text
    QN_VAL_LIST,
    QN_VAL_TUPLE, // as.list, as a list
    QN_VAL_DICT,
    QN_VAL_VIEW, // as.dict; `mark`: QN_VIEW_...
    QN_VAL_RANGE,
    QN_VAL_LAZY, // what `map` or `items` give: made when first read, and read once
    QN_VAL_NAMESPACE,
    QN_VAL_LOOP,
    QN_VAL_MACRO,
    QN_VAL_BUILTIN, // a function, or a method with the value it belongs to
    QN_VAL_CYCLER,
    QN_VAL_JOINER,
    QN_VAL_KIND_COUNT
} qn_jinja_val_kind;

enum { QN_UNDEFINED_NAME, QN_UNDEFINED_PART, QN_UNDEFINED_UNSAFE, QN_UNDEFINED_ARGUMENT };
enum { QN_VIEW_KEYS, QN_VIEW_VALUES, QN_VIEW_ITEMS };

typedef struct qn_jinja_val_list qn_jinja_val_list;
typedef struct qn_jinja_dict qn_jinja_dict;
typedef struct qn_jinja_val_range qn_jinja_val_range;
typedef struct qn_jinja_lazy qn_jinja_lazy;
typedef struct qn_jinja_loop qn_jinja_loop;
typedef struct qn_jinja_macro qn_jinja_macro;
typedef struct qn_jinja_bound qn_jinja_bound;
typedef struct qn_jinja_cycler qn_jinja_cycler;

typedef struct qn_jinja_val {
    unsigned char kind;  // qn_jinja_val_kind
    unsigned char mark;  // see the kinds
    unsigned char owner; // of QN_UNDEFINED_PART: the kind of the value that lacks it
    union {
        bool b;
        int64_t i;
        double f;
        qn_str s;
        qn_jinja_val_list *list;
        qn_jinja_dict *dict; // of a namespace too
        qn_jinja_val_range *range;
        qn_jinja_lazy *lazy;
        qn_jinja_loop *loop;
        qn_jinja_macro *macro;
        qn_jinja_bound *bound;
        qn_jinja_cycler *cycler;
    } as;
} qn_jinja_val;

struct qn_jinja_val_list {
    qn_jinja_val *items; // (n)
    size_t n;
};

// In the order of insertion.
struct qn_jinja_dict {
    qn_jinja_val *keys, *values; // (n)
    size_t n, cap;
};

struct qn_jinja_val_range {
    int64_t start, stop, step;
    size_t n;
};

struct qn_jinja_cycler {
    const qn_jinja_val *items;
    size_t n, i;
};

static inline qn_jinja_val qn_jinja_val_none(void) { return (qn_jinja_val){.kind = QN_VAL_NONE}; }
static inline qn_jinja_val qn_jinja_val_bool(bool b) {
    return (qn_jinja_val){.kind = QN_VAL_BOOL, .as.b = b};
}
static inline qn_jinja_val qn_jinja_val_int(int64_t i) {
    return (qn_jinja_val){.kind = QN_VAL_INT, .as.i = i};
}
static inline qn_jinja_val qn_jinja_val_float(double f) {
    return (qn_jinja_val){.kind = QN_VAL_FLOAT, .as.f = f};
}
static inline qn_jinja_val qn_jinja_val_text(qn_str s) {
    return (qn_jinja_val){.kind = QN_VAL_TEXT, .as.s = s};
}
static inline qn_jinja_val qn_jinja_val_undefined(qn_str name) {
    return (qn_jinja_val){.kind = QN_VAL_UNDEFINED, .as.s = name};
}
static inline qn_jinja_val qn_jinja_val_lacking(const qn_jinja_val *owner, qn_str name) {
    return (qn_jinja_val){
        .kind = QN_VAL_UNDEFINED, .mark = QN_UNDEFINED_PART, .owner = owner->kind, .as.s = name};
}

// Python's name of the type: "str", "list", ...
const char *qn_jinja_val_type(const qn_jinja_val *v);
// bool, int or float.
bool qn_jinja_val_is_number(const qn_jinja_val *v);
// bool or int.
bool qn_jinja_val_is_whole(const qn_jinja_val *v);
int64_t qn_jinja_val_whole(const qn_jinja_val *v);
double qn_jinja_val_real(const qn_jinja_val *v);
bool qn_jinja_val_is_true(const qn_jinja_val *v);

#endif

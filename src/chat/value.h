// Values of a template: what Python has, as far as chat templates can see it.
//
// A value is 24 bytes and copied freely; what it points to lies in the arena of the rendering (or
// of the template, for constants) and is never released alone. Lists, tuples, dicts and texts
// never change after they were made; only namespaces do.
#ifndef QN_CHAT_VALUE_H
#define QN_CHAT_VALUE_H

#include "core/err.h"
#include "core/str.h"

typedef enum qn_val_kind {
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
} qn_val_kind;

enum { QN_UNDEFINED_NAME, QN_UNDEFINED_PART, QN_UNDEFINED_UNSAFE, QN_UNDEFINED_ARGUMENT };
enum { QN_VIEW_KEYS, QN_VIEW_VALUES, QN_VIEW_ITEMS };

typedef struct qn_val_list qn_val_list;
typedef struct qn_dict qn_dict;
typedef struct qn_val_range qn_val_range;
typedef struct qn_lazy qn_lazy;
typedef struct qn_loop qn_loop;
typedef struct qn_macro qn_macro;
typedef struct qn_bound qn_bound;
typedef struct qn_cycler qn_cycler;

typedef struct qn_val {
    unsigned char kind;  // qn_val_kind
    unsigned char mark;  // see the kinds
    unsigned char owner; // of QN_UNDEFINED_PART: the kind of the value that lacks it
    union {
        bool b;
        int64_t i;
        double f;
        qn_str s;
        qn_val_list *list;
        qn_dict *dict; // of a namespace too
        qn_val_range *range;
        qn_lazy *lazy;
        qn_loop *loop;
        qn_macro *macro;
        qn_bound *bound;
        qn_cycler *cycler;
    } as;
} qn_val;

struct qn_val_list {
    qn_val *items; // (n)
    size_t n;
};

// In the order of insertion.
struct qn_dict {
    qn_val *keys, *values; // (n)
    size_t n, cap;
};

struct qn_val_range {
    int64_t start, stop, step;
    size_t n;
};

struct qn_cycler {
    const qn_val *items;
    size_t n, i;
};

static inline qn_val qn_val_none(void) { return (qn_val){.kind = QN_VAL_NONE}; }
static inline qn_val qn_val_bool(bool b) { return (qn_val){.kind = QN_VAL_BOOL, .as.b = b}; }
static inline qn_val qn_val_int(int64_t i) { return (qn_val){.kind = QN_VAL_INT, .as.i = i}; }
static inline qn_val qn_val_float(double f) { return (qn_val){.kind = QN_VAL_FLOAT, .as.f = f}; }
static inline qn_val qn_val_text(qn_str s) { return (qn_val){.kind = QN_VAL_TEXT, .as.s = s}; }
static inline qn_val qn_val_undefined(qn_str name) {
    return (qn_val){.kind = QN_VAL_UNDEFINED, .as.s = name};
}
static inline qn_val qn_val_lacking(const qn_val *owner, qn_str name) {
    return (qn_val){
        .kind = QN_VAL_UNDEFINED, .mark = QN_UNDEFINED_PART, .owner = owner->kind, .as.s = name};
}

// Python's name of the type: "str", "list", ...
const char *qn_val_type(const qn_val *v);
// bool, int or float.
bool qn_val_is_number(const qn_val *v);
// bool or int.
bool qn_val_is_whole(const qn_val *v);
int64_t qn_val_whole(const qn_val *v);
double qn_val_real(const qn_val *v);
bool qn_val_is_true(const qn_val *v);

#endif

// Helpers of the files that hold filters, tests, methods and functions.
#ifndef QN_CHAT_BUILTINS_H
#define QN_CHAT_BUILTINS_H

#include "chat/chat_text.h"

#define QN_BUILTIN(name)                                                                           \
    static qn_status name(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in, qn_err *err)

// Argument i of a call, of the kind that the builtin wants; one that is absent or none leaves *out.
QN_MUST_CHECK qn_status qn_jinja_arg_text(qn_str *out, const qn_jinja_in *in, size_t i,
                                          qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_arg_int(int64_t *out, const qn_jinja_in *in, size_t i,
                                         qn_err *err);
bool qn_jinja_arg_bool(const qn_jinja_in *in, size_t i, bool otherwise);
static inline bool qn_jinja_arg_is_given(const qn_jinja_in *in, size_t i) {
    return in->a[i].kind != QN_VAL_ABSENT;
}

// A list that grows; `list` is a valid list at any time.
typedef struct qn_jinja_items {
    qn_jinja_val list;
    size_t cap;
} qn_jinja_items;
QN_MUST_CHECK qn_status qn_jinja_items_begin(qn_jinja_items *items, qn_jinja_run *r, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_items_add(qn_jinja_items *items, qn_jinja_run *r,
                                           const qn_jinja_val *v, qn_err *err);

// A sort that keeps the order of equals: items by keys (n), ascending or descending.
QN_MUST_CHECK qn_status qn_jinja_sort(qn_jinja_val *items, qn_jinja_val *keys, size_t n,
                                      bool is_descending, qn_jinja_run *r, qn_err *err);
// Small letters, if the value is a text and case does not count.
QN_MUST_CHECK qn_status qn_jinja_fold_case(qn_jinja_val *v, qn_jinja_run *r, bool is_case_sensitive,
                                           qn_err *err);

// item.a.b.0 for "a.b.0"; a number is an index.
QN_MUST_CHECK qn_status qn_jinja_val_path(qn_jinja_val *out, qn_jinja_run *r,
                                          const qn_jinja_val *item, const qn_jinja_val *path,
                                          qn_err *err);

// Filters that live in files of their own.
qn_jinja_builtin_fn qn_jinja_filter_map, qn_jinja_filter_select, qn_jinja_filter_sort,
    qn_jinja_filter_dictsort, qn_jinja_filter_unique, qn_jinja_filter_extreme, qn_jinja_filter_sum,
    qn_jinja_filter_join, qn_jinja_filter_items, qn_jinja_filter_tojson;
// The choices of qn_jinja_filter_select.
enum { QN_SELECT = 0, QN_REJECT = 1, QN_SELECT_ATTR = 2, QN_REJECT_ATTR = 3 };

#endif

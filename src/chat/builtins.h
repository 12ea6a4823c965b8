// Helpers of the files that hold filters, tests, methods and functions.
#ifndef QN_CHAT_BUILTINS_H
#define QN_CHAT_BUILTINS_H

#include "chat/chat_text.h"

#define QN_BUILTIN(name)                                                                           \
    static qn_status name(qn_val *out, qn_render *r, const qn_call_in *in, qn_err *err)

// Argument i of a call, of the kind that the builtin wants; one that is absent or none leaves *out.
QN_MUST_CHECK qn_status qn_arg_text(qn_str *out, const qn_call_in *in, size_t i, qn_err *err);
QN_MUST_CHECK qn_status qn_arg_int(int64_t *out, const qn_call_in *in, size_t i, qn_err *err);
bool qn_arg_bool(const qn_call_in *in, size_t i, bool otherwise);
static inline bool qn_arg_is_given(const qn_call_in *in, size_t i) {
    return in->a[i].kind != QN_VAL_ABSENT;
}

// A list that grows; `list` is a valid list at any time.
typedef struct qn_items {
    qn_val list;
    size_t cap;
} qn_items;
QN_MUST_CHECK qn_status qn_items_begin(qn_items *items, qn_render *r, qn_err *err);
QN_MUST_CHECK qn_status qn_items_add(qn_items *items, qn_render *r, const qn_val *v, qn_err *err);

// A sort that keeps the order of equals: items by keys (n), ascending or descending.
QN_MUST_CHECK qn_status qn_sort(qn_val *items, qn_val *keys, size_t n, bool is_descending,
                                qn_render *r, qn_err *err);
// Small letters, if the value is a text and case does not count.
QN_MUST_CHECK qn_status qn_fold_case(qn_val *v, qn_render *r, bool is_case_sensitive, qn_err *err);

// item.a.b.0 for "a.b.0"; a number is an index.
QN_MUST_CHECK qn_status qn_val_path(qn_val *out, qn_render *r, const qn_val *item,
                                    const qn_val *path, qn_err *err);

// Filters that live in files of their own.
qn_builtin_fn qn_filter_map, qn_filter_select, qn_filter_sort, qn_filter_dictsort, qn_filter_unique,
    qn_filter_extreme, qn_filter_sum, qn_filter_join, qn_filter_items, qn_filter_tojson;
// The choices of qn_filter_select.
enum { QN_SELECT = 0, QN_REJECT = 1, QN_SELECT_ATTR = 2, QN_REJECT_ATTR = 3 };

#endif

// A rendering: the state of one run of a template, and what all its parts share.
#ifndef QN_CHAT_RENDER_H
#define QN_CHAT_RENDER_H

#include "chat/template.h"
#include "chat/value.h"
#include "core/arena.h"
#include "core/buf.h"

typedef struct qn_jinja_tree qn_jinja_tree; // a node, see tree.h
typedef struct qn_jinja_run qn_jinja_run;
typedef struct qn_jinja_builtin qn_jinja_builtin;

typedef struct qn_jinja_var {
    struct qn_jinja_var *next;  // set before it, in the same scope
    struct qn_jinja_var *after; // in the same slot of the scope's table
    uint32_t hash;
    qn_str name;
    qn_jinja_val value;
} qn_jinja_var;

// Names that a loop's body, a macro or the template itself has set; then those around it. A few are
// looked through, more are in a table.
typedef struct qn_jinja_scope {
    struct qn_jinja_scope *outer;
    qn_jinja_var *vars; // (n) the last first
    size_t n;
    qn_jinja_var *
        *slots; // (n_slots, a power of two) lists by hash; all NULL while the names are few
    size_t n_slots;
} qn_jinja_scope;

typedef enum qn_jinja_flow { QN_FLOW_ON, QN_FLOW_BREAK, QN_FLOW_CONTINUE } qn_jinja_flow;

// The end of a text that was put together: more can be appended without a copy.
typedef struct qn_jinja_tail {
    char *data;
    size_t used, cap;
} qn_jinja_tail;

enum { QN_N_TAILS = 4 };

struct qn_jinja_run {
    qn_arena arena;
    qn_chat_limits limits;
    int64_t steps;   // left
    int64_t poll_at; // steps left when the caller is asked next whether to go on
    int depth;
    const char *stack; // where the rendering began
    bool is_placed;    // the message of the failure says line and column
    qn_jinja_flow flow;
    qn_buf *out;
    qn_jinja_scope *scope;
    qn_jinja_scope *free_scopes; // for the next ones
    qn_jinja_var *free_vars;
    size_t n_kept; // scopes that something refers to, counted when it does
    qn_jinja_tail tails[QN_N_TAILS];
    unsigned next_tail;
    int64_t now[6]; // year, month, day, hour, minute, second
};

typedef struct qn_jinja_args {
    const qn_jinja_val *items; // (n) by position
    size_t n;
    const qn_str *names; // (n_named) by name
    const qn_jinja_val *named;
    size_t n_named;
} qn_jinja_args;

enum { QN_MAX_PARAMS = 6 };

// What a builtin is called with: the value left of the dot, the bar or `is`; its arguments in the
// order of its parameters (QN_VAL_ABSENT: not given), and as they were written.
typedef struct qn_jinja_in {
    const qn_jinja_builtin *row;
    const qn_jinja_val *self;
    const qn_jinja_val *a; // (QN_MAX_PARAMS)
    const qn_jinja_args *args;
} qn_jinja_in;

typedef qn_status qn_jinja_builtin_fn(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_in *in,
                                      qn_err *err);

// A filter, test, method or function.
struct qn_jinja_builtin {
    const char *name;
    qn_jinja_builtin_fn *fn; // NULL: known, and refused when it is called
    const char *params;      // names separated by blanks; "*": takes what is there
    unsigned char min;       // parameters that must be given
    unsigned char choice;    // for functions that are several builtins
};

struct qn_jinja_bound {
    const qn_jinja_builtin *row;
    qn_jinja_val self;
};

// Rows by name; NULL: there is none.
const qn_jinja_builtin *qn_jinja_filter_find(qn_str name);
const qn_jinja_builtin *qn_jinja_test_find(qn_str name);
const qn_jinja_builtin *qn_jinja_function_find(qn_str name);
// The method of a text, list, dict, ...; *is_unsafe: it would change its value, which is forbidden.
const qn_jinja_builtin *qn_jinja_method_find(const qn_jinja_val *owner, qn_str name,
                                             bool *is_unsafe);
const qn_jinja_builtin *qn_jinja_rows_find(const qn_jinja_builtin *rows, size_t n, qn_str name);

QN_MUST_CHECK qn_status qn_jinja_builtin_call(qn_jinja_val *out, qn_jinja_run *r,
                                              const qn_jinja_builtin *row, const qn_jinja_val *self,
                                              const qn_jinja_args *args, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_call(qn_jinja_val *out, qn_jinja_run *r,
                                          const qn_jinja_val *callee, const qn_jinja_args *args,
                                          qn_err *err);

// Sets what counts down, by the limits.
void qn_jinja_begin(qn_jinja_run *r);
// Takes steps for one operation that copies or compares `bytes` bytes at the speed of memory.
QN_MUST_CHECK qn_status qn_jinja_charge(qn_jinja_run *r, size_t bytes, qn_err *err);
// Takes n / per steps, for `n` bytes or things that are handled one by one. Whatever a template can
// repeat is paid for by the work that it is, so that the limit of steps is one of time.
enum {
    QN_PER_SCAN = 8,    // bytes searched through
    QN_PER_CHAR = 2,    // characters classified, converted or escaped
    QN_PER_ITEM = 4,    // items of a list, names, keys
    QN_COST_MATCH = 2,  // steps for each match of a search
    QN_COST_NUMBER = 8, // steps for a whole number's digits, read or written
    QN_COST_REAL = 400  // steps for a float's
};
QN_MUST_CHECK qn_status qn_jinja_spend(qn_jinja_run *r, size_t n, size_t per, qn_err *err);
// One level deeper; qn_jinja_leave takes it back.
QN_MUST_CHECK qn_status qn_jinja_enter(qn_jinja_run *r, qn_err *err);
static inline void qn_jinja_leave(qn_jinja_run *r) { r->depth--; }
// Zeroed memory for values; *out is a pointer to it.
QN_MUST_CHECK qn_status qn_jinja_alloc(void *out, qn_jinja_run *r, size_t n, size_t size,
                                       qn_err *err);
// An empty buffer for a text under construction; to be given to qn_jinja_text or released.
qn_buf qn_jinja_buf(const qn_jinja_run *r);
// Moves the buffer's text into the arena; releases the buffer in any case.
QN_MUST_CHECK qn_status qn_jinja_text(qn_jinja_val *out, qn_jinja_run *r, qn_buf *buf, qn_err *err);
// Fails if the buffer did.
QN_MUST_CHECK qn_status qn_jinja_buf_check(const qn_buf *buf, qn_err *err);

QN_MUST_CHECK qn_status qn_jinja_val_list_make(qn_jinja_val *out, qn_jinja_run *r,
                                               qn_jinja_val_kind kind, size_t n, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_pair_make(qn_jinja_val *out, qn_jinja_run *r,
                                           const qn_jinja_val *a, const qn_jinja_val *b,
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_dict_make(qn_jinja_dict **out, qn_jinja_run *r, size_t cap,
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_dict_set(qn_jinja_run *r, qn_jinja_dict *dict,
                                          const qn_jinja_val *key, const qn_jinja_val *value,
                                          qn_err *err);
// *out is NULL if the key is not there.
QN_MUST_CHECK qn_status qn_jinja_dict_find(qn_jinja_val **out, qn_jinja_run *r,
                                           const qn_jinja_dict *dict, const qn_jinja_val *key,
                                           qn_err *err);

// What `for` walks over, in one array; borrowed from the value or from the arena.
QN_MUST_CHECK qn_status qn_jinja_val_items(const qn_jinja_val **items, size_t *n, qn_jinja_run *r,
                                           const qn_jinja_val *v, qn_err *err);
// A value as `{{ }}` prints it; a text is itself.
QN_MUST_CHECK qn_status qn_jinja_val_str(qn_str *out, qn_jinja_run *r, const qn_jinja_val *v,
                                         qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_print(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v,
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_repr(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v,
                                          qn_err *err);
// A float as Python writes it.
void qn_jinja_double_print(qn_buf *to, double f);
// Fails for what is undefined, and says why it is.
QN_MUST_CHECK qn_status qn_jinja_val_defined(const qn_jinja_val *v, qn_err *err);

// Parts of values: v.name and v[key].
QN_MUST_CHECK qn_status qn_jinja_val_attr(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                                          qn_str name, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_item(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_val *v,
                                          const qn_jinja_val *key, qn_err *err);
// v[low:high:step]; none and QN_VAL_ABSENT are the ends.
QN_MUST_CHECK qn_status qn_jinja_val_slice(qn_jinja_val *out, qn_jinja_run *r,
                                           const qn_jinja_val *v, const qn_jinja_val bounds[3],
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_length(size_t *out, qn_jinja_run *r, const qn_jinja_val *v,
                                            qn_err *err);

QN_MUST_CHECK qn_status qn_jinja_val_equal(bool *out, qn_jinja_run *r, const qn_jinja_val *a,
                                           const qn_jinja_val *b, qn_err *err);
// *out is -1, 0 or 1; an error for what has no order. NaN compares as 2.
QN_MUST_CHECK qn_status qn_jinja_val_order(int *out, qn_jinja_run *r, const qn_jinja_val *a,
                                           const qn_jinja_val *b, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_val_contains(bool *out, qn_jinja_run *r, const qn_jinja_val *part,
                                              const qn_jinja_val *whole, qn_err *err);
typedef enum qn_jinja_math {
    QN_MATH_ADD,
    QN_MATH_SUB,
    QN_MATH_MUL,
    QN_MATH_DIV,
    QN_MATH_FLOORDIV,
    QN_MATH_MOD,
    QN_MATH_POW
} qn_jinja_math;
QN_MUST_CHECK qn_status qn_jinja_val_math(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_math op,
                                          const qn_jinja_val *a, const qn_jinja_val *b,
                                          qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_text_join(qn_jinja_val *out, qn_jinja_run *r, qn_str a, qn_str b,
                                           qn_err *err);
// text % values, and text.format(...).
QN_MUST_CHECK qn_status qn_jinja_text_percent(qn_jinja_val *out, qn_jinja_run *r, qn_str format,
                                              const qn_jinja_val *v, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_text_format(qn_jinja_val *out, qn_jinja_run *r, qn_str format,
                                             const qn_jinja_args *args, qn_err *err);

typedef struct qn_jinja_json_style {
    bool ascii, sorted, is_indented;
    qn_str indent; // of one level
    qn_str comma, colon;
} qn_jinja_json_style;
QN_MUST_CHECK qn_status qn_jinja_val_json(qn_buf *to, qn_jinja_run *r, const qn_jinja_val *v,
                                          const qn_jinja_json_style *style, qn_err *err);

// A lazy value: `make` gives its items when they are first read.
struct qn_jinja_lazy {
    qn_jinja_builtin_fn *make;
    qn_jinja_in in;
    qn_jinja_val self, a[QN_MAX_PARAMS];
    qn_jinja_args args;
    qn_jinja_val *items; // what is left
    size_t n;
    bool is_made;
};
// The items that were not read yet; `take` of them count as read then.
QN_MUST_CHECK qn_status qn_jinja_lazy_items(const qn_jinja_val **items, size_t *n, qn_jinja_run *r,
                                            qn_jinja_lazy *lazy, qn_err *err);
// A list as a value, in place of the row's own function: the function runs when it is read.
QN_MUST_CHECK qn_status qn_jinja_lazy_make(qn_jinja_val *out, qn_jinja_run *r,
                                           const qn_jinja_in *in, qn_jinja_builtin_fn *make,
                                           qn_err *err);

// Expressions and names, for who has a tree.
QN_MUST_CHECK qn_status qn_jinja_eval(qn_jinja_val *out, qn_jinja_run *r, const qn_jinja_tree *node,
                                      qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_exec(qn_jinja_run *r, const qn_jinja_tree *first, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_scope_set(qn_jinja_run *r, qn_str name, const qn_jinja_val *value,
                                           qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_scope_push(qn_jinja_run *r, qn_jinja_scope *outer, qn_err *err);
// Ends the current scope and goes back to `scope`. Its memory is used again, unless a macro or a
// loop came to refer to it since r->n_kept was `n_kept`.
void qn_jinja_scope_pop(qn_jinja_run *r, qn_jinja_scope *scope, size_t n_kept);
// The value of a name; NULL: it has none.
QN_MUST_CHECK qn_status qn_jinja_scope_find(const qn_jinja_val **out, qn_jinja_run *r, qn_str name,
                                            qn_err *err);

QN_MUST_CHECK qn_status qn_jinja_loop_attr(qn_jinja_val *out, qn_jinja_run *r, qn_jinja_loop *loop,
                                           qn_str name, qn_err *err);
QN_MUST_CHECK qn_status qn_jinja_macro_attr(qn_jinja_val *out, qn_jinja_run *r,
                                            qn_jinja_macro *macro, qn_str name, qn_err *err);

#endif

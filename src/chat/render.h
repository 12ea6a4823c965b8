// A rendering: the state of one run of a template, and what all its parts share.
#ifndef QN_CHAT_RENDER_H
#define QN_CHAT_RENDER_H

#include "chat/template.h"
#include "chat/value.h"
#include "core/arena.h"
#include "core/buf.h"

typedef struct qn_tree qn_tree; // a node, see tree.h
typedef struct qn_render qn_render;
typedef struct qn_builtin qn_builtin;

typedef struct qn_var {
    struct qn_var *next;  // set before it, in the same scope
    struct qn_var *after; // in the same slot of the scope's table
    uint32_t hash;
    qn_str name;
    qn_val value;
} qn_var;

// Names that a loop's body, a macro or the template itself has set; then those around it. A few are
// looked through, more are in a table.
typedef struct qn_scope {
    struct qn_scope *outer;
    qn_var *vars; // (n) the last first
    size_t n;
    qn_var **slots; // (n_slots, a power of two) lists by hash; all NULL while the names are few
    size_t n_slots;
} qn_scope;

typedef enum qn_flow { QN_FLOW_ON, QN_FLOW_BREAK, QN_FLOW_CONTINUE } qn_flow;

// The end of a text that was put together: more can be appended without a copy.
typedef struct qn_tail {
    char *data;
    size_t used, cap;
} qn_tail;

enum { QN_N_TAILS = 4 };

struct qn_render {
    qn_arena arena;
    qn_chat_limits limits;
    int64_t steps;   // left
    int64_t poll_at; // steps left when the caller is asked next whether to go on
    int depth;
    const char *stack; // where the rendering began
    bool is_placed;    // the message of the failure says line and column
    qn_flow flow;
    qn_buf *out;
    qn_scope *scope;
    qn_scope *free_scopes; // for the next ones
    qn_var *free_vars;
    size_t n_kept; // scopes that something refers to, counted when it does
    qn_tail tails[QN_N_TAILS];
    unsigned next_tail;
    int64_t now[6]; // year, month, day, hour, minute, second
};

// Arguments of a call.
typedef struct qn_args {
    const qn_val *items; // (n) by position
    size_t n;
    const qn_str *names; // (n_named) by name
    const qn_val *named;
    size_t n_named;
} qn_args;

enum { QN_MAX_PARAMS = 6 };

// What a builtin is called with: the value left of the dot, the bar or `is`; its arguments in the
// order of its parameters (QN_VAL_ABSENT: not given), and as they were written.
typedef struct qn_call_in {
    const qn_builtin *row;
    const qn_val *self;
    const qn_val *a; // (QN_MAX_PARAMS)
    const qn_args *args;
} qn_call_in;

typedef qn_status qn_builtin_fn(qn_val *out, qn_render *r, const qn_call_in *in, qn_err *err);

// A filter, test, method or function.
struct qn_builtin {
    const char *name;
    qn_builtin_fn *fn;    // NULL: known, and refused when it is called
    const char *params;   // names separated by blanks; "*": takes what is there
    unsigned char min;    // parameters that must be given
    unsigned char choice; // for functions that are several builtins
};

struct qn_bound {
    const qn_builtin *row;
    qn_val self;
};

// Rows by name; NULL: there is none.
const qn_builtin *qn_filter_find(qn_str name);
const qn_builtin *qn_test_find(qn_str name);
const qn_builtin *qn_function_find(qn_str name);
// The method of a text, list, dict, ...; *is_unsafe: it would change its value, which is forbidden.
const qn_builtin *qn_method_find(const qn_val *owner, qn_str name, bool *is_unsafe);
const qn_builtin *qn_rows_find(const qn_builtin *rows, size_t n, qn_str name);

QN_MUST_CHECK qn_status qn_builtin_call(qn_val *out, qn_render *r, const qn_builtin *row,
                                        const qn_val *self, const qn_args *args, qn_err *err);
// Calls whatever can be called.
QN_MUST_CHECK qn_status qn_val_call(qn_val *out, qn_render *r, const qn_val *callee,
                                    const qn_args *args, qn_err *err);
QN_MUST_CHECK qn_status qn_macro_call(qn_val *out, qn_render *r, qn_macro *macro,
                                      const qn_args *args, qn_err *err);

// Sets what counts down, by the limits.
void qn_render_begin(qn_render *r);
// Takes steps for one operation that copies or compares `bytes` bytes at the speed of memory.
QN_MUST_CHECK qn_status qn_render_charge(qn_render *r, size_t bytes, qn_err *err);
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
QN_MUST_CHECK qn_status qn_render_spend(qn_render *r, size_t n, size_t per, qn_err *err);
// One level deeper; qn_render_leave takes it back.
QN_MUST_CHECK qn_status qn_render_enter(qn_render *r, qn_err *err);
static inline void qn_render_leave(qn_render *r) { r->depth--; }
// Zeroed memory for values; *out is a pointer to it.
QN_MUST_CHECK qn_status qn_render_alloc(void *out, qn_render *r, size_t n, size_t size,
                                        qn_err *err);
// An empty buffer for a text under construction; to be given to qn_render_text or released.
qn_buf qn_render_buf(const qn_render *r);
// Moves the buffer's text into the arena; releases the buffer in any case.
QN_MUST_CHECK qn_status qn_render_text(qn_val *out, qn_render *r, qn_buf *buf, qn_err *err);
// Fails if the buffer did.
QN_MUST_CHECK qn_status qn_render_buf_check(const qn_buf *buf, qn_err *err);

QN_MUST_CHECK qn_status qn_val_list_make(qn_val *out, qn_render *r, qn_val_kind kind, size_t n,
                                         qn_err *err);
QN_MUST_CHECK qn_status qn_pair_make(qn_val *out, qn_render *r, const qn_val *a, const qn_val *b,
                                     qn_err *err);
QN_MUST_CHECK qn_status qn_dict_make(qn_dict **out, qn_render *r, size_t cap, qn_err *err);
QN_MUST_CHECK qn_status qn_dict_set(qn_render *r, qn_dict *dict, const qn_val *key,
                                    const qn_val *value, qn_err *err);
// *out is NULL if the key is not there.
QN_MUST_CHECK qn_status qn_dict_find(qn_val **out, qn_render *r, const qn_dict *dict,
                                     const qn_val *key, qn_err *err);

// What `for` walks over, in one array; borrowed from the value or from the arena.
QN_MUST_CHECK qn_status qn_val_items(const qn_val **items, size_t *n, qn_render *r, const qn_val *v,
                                     qn_err *err);
// A value as `{{ }}` prints it; a text is itself.
QN_MUST_CHECK qn_status qn_val_str(qn_str *out, qn_render *r, const qn_val *v, qn_err *err);
QN_MUST_CHECK qn_status qn_val_print(qn_buf *to, qn_render *r, const qn_val *v, qn_err *err);
QN_MUST_CHECK qn_status qn_val_repr(qn_buf *to, qn_render *r, const qn_val *v, qn_err *err);
// A float as Python writes it.
void qn_double_print(qn_buf *to, double f);
// Fails for what is undefined, and says why it is.
QN_MUST_CHECK qn_status qn_val_defined(const qn_val *v, qn_err *err);

// Parts of values: v.name and v[key].
QN_MUST_CHECK qn_status qn_val_attr(qn_val *out, qn_render *r, const qn_val *v, qn_str name,
                                    qn_err *err);
QN_MUST_CHECK qn_status qn_val_item(qn_val *out, qn_render *r, const qn_val *v, const qn_val *key,
                                    qn_err *err);
// v[low:high:step]; none and QN_VAL_ABSENT are the ends.
QN_MUST_CHECK qn_status qn_val_slice(qn_val *out, qn_render *r, const qn_val *v,
                                     const qn_val bounds[3], qn_err *err);
QN_MUST_CHECK qn_status qn_val_length(size_t *out, qn_render *r, const qn_val *v, qn_err *err);

// Operators.
QN_MUST_CHECK qn_status qn_val_equal(bool *out, qn_render *r, const qn_val *a, const qn_val *b,
                                     qn_err *err);
// *out is -1, 0 or 1; an error for what has no order. NaN compares as 2.
QN_MUST_CHECK qn_status qn_val_order(int *out, qn_render *r, const qn_val *a, const qn_val *b,
                                     qn_err *err);
QN_MUST_CHECK qn_status qn_val_contains(bool *out, qn_render *r, const qn_val *part,
                                        const qn_val *whole, qn_err *err);
typedef enum qn_math {
    QN_MATH_ADD,
    QN_MATH_SUB,
    QN_MATH_MUL,
    QN_MATH_DIV,
    QN_MATH_FLOORDIV,
    QN_MATH_MOD,
    QN_MATH_POW
} qn_math;
QN_MUST_CHECK qn_status qn_val_math(qn_val *out, qn_render *r, qn_math op, const qn_val *a,
                                    const qn_val *b, qn_err *err);
QN_MUST_CHECK qn_status qn_text_join(qn_val *out, qn_render *r, qn_str a, qn_str b, qn_err *err);
// text % values, and text.format(...).
QN_MUST_CHECK qn_status qn_text_percent(qn_val *out, qn_render *r, qn_str format, const qn_val *v,
                                        qn_err *err);
QN_MUST_CHECK qn_status qn_text_format(qn_val *out, qn_render *r, qn_str format,
                                       const qn_args *args, qn_err *err);

typedef struct qn_json_style {
    bool ascii, sorted, is_indented;
    qn_str indent; // of one level
    qn_str comma, colon;
} qn_json_style;
QN_MUST_CHECK qn_status qn_val_json(qn_buf *to, qn_render *r, const qn_val *v,
                                    const qn_json_style *style, qn_err *err);

// A lazy value: `make` gives its items when they are first read.
struct qn_lazy {
    qn_builtin_fn *make;
    qn_call_in in;
    qn_val self, a[QN_MAX_PARAMS];
    qn_args args;
    qn_val *items; // what is left
    size_t n;
    bool is_made;
};
// The items that were not read yet; `take` of them count as read then.
QN_MUST_CHECK qn_status qn_lazy_items(const qn_val **items, size_t *n, qn_render *r, qn_lazy *lazy,
                                      qn_err *err);
// A list as a value, in place of the row's own function: the function runs when it is read.
QN_MUST_CHECK qn_status qn_lazy_make(qn_val *out, qn_render *r, const qn_call_in *in,
                                     qn_builtin_fn *make, qn_err *err);

// Expressions and names, for who has a tree.
QN_MUST_CHECK qn_status qn_eval(qn_val *out, qn_render *r, const qn_tree *node, qn_err *err);
QN_MUST_CHECK qn_status qn_exec(qn_render *r, const qn_tree *first, qn_err *err);
QN_MUST_CHECK qn_status qn_scope_set(qn_render *r, qn_str name, const qn_val *value, qn_err *err);
QN_MUST_CHECK qn_status qn_scope_push(qn_render *r, qn_scope *outer, qn_err *err);
// Ends the current scope and goes back to `scope`. Its memory is used again, unless a macro or a
// loop came to refer to it since r->n_kept was `n_kept`.
void qn_scope_pop(qn_render *r, qn_scope *scope, size_t n_kept);
// The value of a name; NULL: it has none.
QN_MUST_CHECK qn_status qn_scope_find(const qn_val **out, qn_render *r, qn_str name, qn_err *err);

// The parts of `loop`.
QN_MUST_CHECK qn_status qn_loop_attr(qn_val *out, qn_render *r, qn_loop *loop, qn_str name,
                                     qn_err *err);
QN_MUST_CHECK qn_status qn_macro_attr(qn_val *out, qn_render *r, qn_macro *macro, qn_str name,
                                      qn_err *err);

#endif

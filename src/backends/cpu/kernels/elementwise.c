// Element by element: activations, sums and products.
#include "backends/cpu/kernels/level.h"
#include "backends/kernel_math.h"

typedef float map_fn(float x, const qn_attrs *attrs);

// Inlined into each kernel, so that `fn` becomes part of the loop.
__attribute__((always_inline)) static inline void map_rows(const qn_task *task, int64_t piece,
                                                           map_fn *fn) {
    const qn_operand *x = &task->in[0];
    const int64_t n = x->parts * x->width;
    const qn_attrs attrs = *task->attrs;
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    for (int64_t r = rows.first; r < rows.end; r++) {
        const float *from = row_of(x, r);
        float *to = row_of(&task->out[0], r);
        for (int64_t i = 0; i < n; i++) to[i] = fn(from[i], &attrs);
    }
}

// MAP(name, expression of x and attrs)
#define MAP(name, value)                                                                           \
    static inline float one_##name(float x, const qn_attrs *attrs) {                               \
        (void)attrs;                                                                               \
        return value;                                                                              \
    }                                                                                              \
    void QN_FN(name)(const qn_task *task, int64_t piece, void *scratch) {                          \
        (void)scratch;                                                                             \
        map_rows(task, piece, one_##name);                                                         \
    }

MAP(scale, x * attrs->scale)
MAP(silu, math_silu(x))
MAP(gelu, math_gelu(x))
MAP(gelu_erf, math_gelu_erf(x))
MAP(sigmoid, math_sigmoid(x))
MAP(softplus, math_softplus(x))
MAP(softcap, attrs->cap *math_tanh(x / attrs->cap))

typedef float pair_fn(float a, float b);

// b has 1 part or as many as a (or as many as divide them: b lacks a dimension between), and width
// 1 or that of a. Rows of a b without rows lie at stride 0.
__attribute__((always_inline)) static inline void spread_rows(const qn_task *task, int64_t piece,
                                                              pair_fn *fn) {
    const qn_operand *a = &task->in[0], *b = &task->in[1];
    const qn_range rows = qn_cpu_cut_rows(task, piece);
    const bool is_same = a->parts == b->parts && a->width == b->width;
    const int64_t parts = is_same ? 1 : a->parts;
    const int64_t width = is_same ? a->parts * a->width : a->width;
    for (int64_t r = rows.first; r < rows.end; r++) {
        for (int64_t p = 0; p < parts; p++) {
            const float *x = part_of(a, r, p), *y = part_of(b, r, p % b->parts);
            float *to = part_of(&task->out[0], r, p);
            if (b->width == 1) {
                const float one = *y;
                for (int64_t i = 0; i < width; i++) to[i] = fn(x[i], one);
            } else {
                for (int64_t i = 0; i < width; i++) to[i] = fn(x[i], y[i]);
            }
        }
    }
}

static inline float sum_of(float a, float b) { return a + b; }
static inline float product_of(float a, float b) { return a * b; }

void QN_FN(add)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    spread_rows(task, piece, sum_of);
}

void QN_FN(mul)(const qn_task *task, int64_t piece, void *scratch) {
    (void)scratch;
    spread_rows(task, piece, product_of);
}

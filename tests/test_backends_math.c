// The kernels' elementary functions against libm in long double: largest error in units in the last
// place over a dense sample of all floats, and the ends of the range. The bounds are those of
// docs/numbers.md.
#include "testing.h"

// The headers of the kernels are compiled for a level.
#define QN_LEVEL portable
#include "backends/cpu/kernels/level.h"
#include "backends/kernel_math.h"
#include "backends/cpu/kernels/norm.h"
#include "core/mem.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// |got - want| in units in the last place of want, of a float.
static double ulps(float got, long double want) {
    if (isnan(got) || isnan((float)want)) return isnan(got) && isnan((float)want) ? 0 : INFINITY;
    const float rounded = (float)want;
    if (isinf(got) || isinf(rounded)) return got == rounded ? 0 : INFINITY;
    int exponent;
    frexpl(want, &exponent);
    if (exponent < -125) exponent = -125;
    return (double)(fabsl((long double)got - want) / ldexpl(1, exponent - 24));
}

static long double silu_exactly(long double x) { return x / (1 + expl(-x)); }
static long double sigmoid_exactly(long double x) { return 1 / (1 + expl(-x)); }
static long double softplus_exactly(long double x) { return x > 20 ? x : log1pl(expl(x)); }
static long double gelu_erf_exactly(long double x) {
    return 0.5L * x * erfcl(-x * 0.70710678118654752440L);
}

static long double gelu_exactly(long double x) {
    const long double u = 0.79788456080286535588L * (x + 0.044715L * x * x * x);
    return x / (1 + expl(-2 * u));
}

typedef struct function {
    const char *name;
    float (*fn)(float x);
    long double (*exactly)(long double x);
    float first, last; // range that is sampled, by bits
    double max;        // error in ulp
} function;

static const function functions[] = {
    {"exp", math_exp, expl, -105, 89.5f, 1},
    {"tanh", math_tanh, tanhl, -200, 200, 1.5},
    {"sigmoid", math_sigmoid, sigmoid_exactly, -110, 110, 2.5},
    {"silu", math_silu, silu_exactly, -120, FLT_MAX, 3},
    {"softplus", math_softplus, softplus_exactly, -105, FLT_MAX, 3},
    {"gelu", math_gelu, gelu_exactly, -12, FLT_MAX, 1.5},
    {"gelu_erf", math_gelu_erf, gelu_erf_exactly, -14.5f, FLT_MAX, 1.5},
};

// Both signs, every `step`th float from 0 to `end`.
static void sample(const function *f, float end, double *worst, float *where) {
    const uint32_t last = qn_float_to_bits(end), step = 8191;
    for (uint32_t bits = 0; bits <= (last & INT32_MAX); bits += step) {
        const float x = qn_float_from_bits(bits | (last & 0x80000000u));
        const double error = ulps(f->fn(x), f->exactly((long double)x));
        if (error <= *worst) continue;
        *worst = error;
        *where = x;
    }
}

static void functions_are_accurate(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        const function *f = &functions[i];
        double worst = 0;
        float where = 0;
        sample(f, f->first, &worst, &where);
        sample(f, f->last, &worst, &where);
        print_message("%s: %.3f ulp at %.9g\n", f->name, worst, (double)where);
        if (!(worst <= f->max)) fail_msg("%s: %.3f ulp, at most %g", f->name, worst, f->max);
    }
}

typedef struct end {
    const char *name;
    float (*fn)(float x);
    float x, want;
} end;

// Bits must be equal, the sign of 0 included; a NaN is any NaN.
static void ends_are_as_stated(void **state) {
    (void)state;
    static const end ends[] = {
        {"exp", math_exp, INFINITY, INFINITY},
        {"exp", math_exp, 89, INFINITY},
        {"exp", math_exp, FLT_MAX, INFINITY},
        {"exp", math_exp, -INFINITY, 0},
        {"exp", math_exp, -104, 0},
        {"exp", math_exp, -FLT_MAX, 0},
        {"exp", math_exp, 0, 1},
        {"exp", math_exp, -0.0f, 1},
        {"exp", math_exp, 0x1p-149f, 1},
        {"exp", math_exp, NAN, NAN},
        {"tanh", math_tanh, INFINITY, 1},
        {"tanh", math_tanh, -INFINITY, -1},
        {"tanh", math_tanh, 10, 1},
        {"tanh", math_tanh, -FLT_MAX, -1},
        {"tanh", math_tanh, -0.0f, -0.0f},
        {"tanh", math_tanh, 0x1p-149f, 0x1p-149f},
        {"tanh", math_tanh, -0x1.8p-130f, -0x1.8p-130f},
        {"tanh", math_tanh, NAN, NAN},
        {"sigmoid", math_sigmoid, INFINITY, 1},
        {"sigmoid", math_sigmoid, -INFINITY, 0},
        {"sigmoid", math_sigmoid, -0.0f, 0.5f},
        {"sigmoid", math_sigmoid, NAN, NAN},
        {"silu", math_silu, INFINITY, INFINITY},
        {"silu", math_silu, -INFINITY, -0.0f},
        {"silu", math_silu, -FLT_MAX, -0.0f},
        {"silu", math_silu, -0.0f, -0.0f},
        {"silu", math_silu, 0x1p-148f, 0x1p-149f},
        {"silu", math_silu, NAN, NAN},
        {"softplus", math_softplus, INFINITY, INFINITY},
        {"softplus", math_softplus, -INFINITY, 0},
        {"softplus", math_softplus, 20.5f, 20.5f},
        {"softplus", math_softplus, NAN, NAN},
        {"gelu", math_gelu, INFINITY, INFINITY},
        {"gelu", math_gelu, -INFINITY, -0.0f},
        {"gelu", math_gelu, -FLT_MAX, -0.0f},
        {"gelu", math_gelu, -0.0f, -0.0f},
        {"gelu", math_gelu, NAN, NAN},
        {"gelu_erf", math_gelu_erf, INFINITY, INFINITY},
        {"gelu_erf", math_gelu_erf, -INFINITY, -0.0f},
        {"gelu_erf", math_gelu_erf, -FLT_MAX, -0.0f},
        {"gelu_erf", math_gelu_erf, -0.0f, -0.0f},
        {"gelu_erf", math_gelu_erf, NAN, NAN},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        const float got = ends[i].fn(ends[i].x), want = ends[i].want;
        const bool is_same =
            isnan(want) ? isnan(got) : qn_float_to_bits(got) == qn_float_to_bits(want);
        if (!is_same)
            fail_msg("%s(%g) = %g, want %g", ends[i].name, (double)ends[i].x, (double)got,
                     (double)want);
    }
}

// Within one ulp or 1e-7.
static void check_turn(double angle, double *worst) {
    const turn got = math_turn(angle);
    const long double want[] = {cosl((long double)angle), sinl((long double)angle)};
    const float parts[] = {got.cosine, got.sine};
    for (int i = 0; i < 2; i++) {
        const double off = (double)fabsl((long double)parts[i] - want[i]);
        if (off > *worst) *worst = off;
        if (off > 1e-7 && ulps(parts[i], want[i]) > 1)
            fail_msg("angle %.17g: part %d is %.9g, want %.9Lg", angle, i, (double)parts[i],
                     want[i]);
    }
}

static void turns_are_accurate(void **state) {
    (void)state;
    double worst = 0;
    for (int32_t position = -3; position < 1000000; position += position < 300 ? 1 : 1237) {
        for (int i = 0; i < 64; i++)
            check_turn((double)position * (double)powf(1e6f, -(float)i / 64), &worst);
    }
    for (int k = 0; k < 20000; k++) { // close to the multiples of pi / 4, where something is small
        const double at = (double)(float)(k * 0.78539816339744830962);
        for (int d = -2; d <= 2; d++) check_turn(at + d * 1e-7, &worst);
    }
    for (uint32_t u = 0; u < 100000; u++) // the largest positions
        check_turn((double)(INT32_MAX - (int32_t)(u * 17123u % 100000000u)) * 0.99, &worst);
    print_message("turn: %.3g\n", worst);
    assert_true(isnan(math_turn(INFINITY).cosine) && isnan(math_turn(NAN).sine));
}

// Lane l of n_lanes sums elements l, l + n_lanes, ...; then lanes l and l + half are added.
static float fold_lanes(float *lanes, int n_lanes) {
    for (int half = n_lanes / 2; half > 0; half /= 2) {
        for (int l = 0; l < half; l++) lanes[l] += lanes[l + half];
    }
    return lanes[0];
}

// The orders of sums that docs/numbers.md writes down, one number at a time.
static void sums_keep_their_order(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 2, 15, 16, 17, 31, 63, 64, 65, 79, 80, 100, 128, 177, 1024};
    float x[1024];
    for (int i = 0; i < 1024; i++) x[i] = sinf((float)i * 1.7f) * ldexpf(1, i * 7 % 30);
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        float few[16] = {0}, many[64] = {0}, squares[64] = {0};
        for (int i = 0; i < sizes[k]; i++) {
            few[i % 16] += x[i];
            many[i % 64] += x[i];
            squares[i % 64] = fmaf(x[i] - 0.5f, x[i] - 0.5f, squares[i % 64]);
        }
        const float want[] = {fold_lanes(few, 16), fold_lanes(many, 64), fold_lanes(squares, 64)};
        const float got[] = {sum_row_16(x, sizes[k]), sum_row_64(x, sizes[k]),
                             sum_squares_64(x, sizes[k], 0.5f)};
        assert_memory_equal(got, want, sizeof want);
    }
}

// Every level does the same operations: bits of a dense sample of all floats, ends included.
static void levels_agree(void **state) {
    (void)state;
    static const struct {
        const char *kernel;
        float (*fn)(float x);
    } maps[] = {
        {"silu", math_silu},       {"gelu", math_gelu},         {"gelu_erf", math_gelu_erf},
        {"sigmoid", math_sigmoid}, {"softplus", math_softplus}, {"softcap", math_tanh},
    };
    enum { N = 40000 };
    float *x = qn_alloc(N, sizeof *x), *y = qn_alloc(N, sizeof *y);
    for (uint32_t i = 0; i < N; i++) x[i] = qn_float_from_bits(i * 107374u);
    for (int i = 0; i < 2000; i++) x[i] = (float)(i - 1000) * 0.13f;
    const qn_attrs attrs = {.cap = 1};
    qn_err err;
    for (size_t level = 0; qn_cpu_level_name(level); level++) {
        const qn_cpu_level *backend;
        ASSERT_OK(qn_cpu_level_find(&backend, qn_cpu_level_name(level), &err));
        for (size_t m = 0; m < sizeof maps / sizeof maps[0]; m++) {
            const qn_operand row = {.data = x, .parts = 1, .width = N, .form = QN_WORD_f32};
            qn_task task = {.attrs = &attrs, .in = {row}, .out = {row}, .rows = 1};
            task.out[0].data = y;
            for (int k = 0; k < backend->backend.n_kernels; k++) {
                if (strcmp(backend->kernels[k].name, maps[m].kernel) == 0)
                    backend->kernels[k].run(&task, 0, NULL);
            }
            for (int i = 0; i < N; i++) {
                const float want = maps[m].fn(x[i]);
                if (isnan(want) ? !isnan(y[i]) : qn_float_to_bits(y[i]) != qn_float_to_bits(want))
                    fail_msg("%s of %a at level %s: %a, want %a", maps[m].kernel, (double)x[i],
                             backend->name, (double)y[i], (double)want);
            }
        }
    }
    qn_free(x);
    qn_free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_accurate), cmocka_unit_test(ends_are_as_stated),
        cmocka_unit_test(turns_are_accurate),     cmocka_unit_test(sums_keep_their_order),
        cmocka_unit_test(levels_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

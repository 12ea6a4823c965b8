// The kernels' elementary functions against libm in long double: largest error in units in the last
// place over a dense sample of all floats, and the ends of the range. The bounds are those of
// docs/numbers.md.
#include "testing.h"

#include "backends/cpu/level/math.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

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
    double most;       // error in ulp
} function;

static const function functions[] = {
    {"exp", math_exp, expl, -105, 89.5f, 1},
    {"tanh", math_tanh, tanhl, -200, 200, 2.5},
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
        if (!(worst <= f->most)) fail_msg("%s: %.3f ulp, at most %g", f->name, worst, f->most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

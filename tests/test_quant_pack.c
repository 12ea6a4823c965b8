// Packing: floats into blocks. Each test runs for every type that can be packed; where the outcome
// is a search, the bounds are those that a plain rounding would keep.
#include "testing.h"

#include "quant/half.h"
#include "quant/type.h"

#include <math.h>
#include <float.h>

enum { N = 4096 };

// What packing must keep. `bound`: root-mean-square error of a block over its largest magnitude,
// for any input. `gauss`: over the root mean square of normally distributed values, as measured and
// rounded up. `hash`: of the bytes of the_same_bytes_everywhere.
static const struct {
    qn_type type;
    double bound, gauss;
    uint64_t hash;
} cases[] = {
    {QN_TYPE_F32, 0, 0, 0x9fb04105dee98985},
    {QN_TYPE_F16, 0x1p-11, 0.00022, 0xc5b1f1b7a6e710c1},
    {QN_TYPE_BF16, 0x1p-8, 0.0018, 0xb97da2ed30d337cd},
    {QN_TYPE_Q4_0, 1.01 / 16, 0.0820, 0x1b383df8f9f28fce},
    {QN_TYPE_Q4_1, 2.02 / 30, 0.0697, 0x34e10a28bc500478},
    {QN_TYPE_Q5_0, 1.01 / 32, 0.0406, 0x8bc85c7de1c3a067},
    {QN_TYPE_Q5_1, 2.02 / 62, 0.0337, 0xc859fa999e673073},
    {QN_TYPE_Q8_0, 1.08 / 254, 0.0055, 0xe80f701622b73951},
    {QN_TYPE_Q2_K, 1.05 / 3, 0.2610, 0xb3d8b53b1b20d681},
    {QN_TYPE_Q3_K, 1.05 / 8, 0.1450, 0x5388ff6459a5bc14},
    {QN_TYPE_Q4_K, 2.10 / 30, 0.0702, 0x63a12e170ab3c2b7},
    {QN_TYPE_Q5_K, 2.10 / 62, 0.0345, 0xe8f37c0ecfe333c7},
    {QN_TYPE_Q6_K, 1.05 / 64, 0.0169, 0xd2e44ce59f067929},
    {QN_TYPE_Q8_K, 1.01 / 254, 0.0071, 0x63597043579cc4b5},
    {QN_TYPE_IQ4_NL, 0.0945, 0.0743, 0x882b97bae5eac314},
    {QN_TYPE_IQ4_XS, 0.0992, 0.0747, 0x0053704ee01b8390},
    {QN_TYPE_MXFP4, 0.25, 0.1130, 0x274a2fec7bea0c09},
};
enum { N_CASES = sizeof cases / sizeof *cases };

// --- input ---------------------------------------------------------------------------------------

typedef struct random {
    uint64_t state;
} random;

static uint32_t next_bits(random *r) {
    r->state = r->state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(r->state >> 32);
}

static float next_uniform(random *r) {
    return (float)(next_bits(r) >> 8) * 0x1p-23f - 1;
} // [-1, 1)

// Sum of 12 uniform numbers: variance 4, made 1.
static float next_gauss(random *r) {
    float sum = 0;
    for (int i = 0; i < 12; i++) sum += next_uniform(r);
    return sum / 2;
}

typedef float maker(random *r, int i);

static float make_uniform(random *r, int i) { return (void)i, next_uniform(r); }
static float make_gauss(random *r, int i) { return (void)i, next_gauss(r); }
static float make_positive(random *r, int i) { return (void)i, fabsf(next_gauss(r)); }
static float make_negative(random *r, int i) { return (void)i, -fabsf(next_gauss(r)); }
static float make_sparse(random *r, int i) {
    return (void)i, next_bits(r) % 16 ? 0 : next_gauss(r);
}
static float make_constant(random *r, int i) { return (void)r, (void)i, 0.7f; }
static float make_constant_negative(random *r, int i) { return (void)r, (void)i, -0.7f; }
static float make_two(random *r, int i) { return (void)i, next_bits(r) % 2 ? 1.0f : -1.0f; }
static float make_outlier(random *r, int i) {
    return next_gauss(r) * (i % 256 == 37 ? 100.0f : 1.0f);
}
static float make_lone(random *r, int i) { return (void)r, i % 256 == 200 ? -3.0f : 0; }
static float make_ramp(random *r, int i) { return (void)r, (float)(i % 256) / 256; }
// Groups of very different sizes in one block.
static float make_steep(random *r, int i) { return next_gauss(r) * ldexpf(1, -(i / 16 % 16)); }

static maker *const makers[] = {
    make_uniform,           make_gauss, make_positive, make_negative, make_sparse, make_constant,
    make_constant_negative, make_two,   make_outlier,  make_lone,     make_ramp,   make_steep};
enum { N_MAKERS = sizeof makers / sizeof *makers };

static void fill(float *x, int n, maker *make, float scale) {
    random r = {12345};
    for (int i = 0; i < n; i++) x[i] = scale * make(&r, i);
}

// exp of a normal number: a few columns count much more than the others.
static void fill_weights(float *w, int n) {
    random r = {777};
    for (int i = 0; i < n; i++) w[i] = expf(1.5f * next_gauss(&r));
}

// --- measures ------------------------------------------------------------------------------------

typedef struct packed {
    uint8_t bytes[N * 4];
    float values[N];
} packed;

static void pack(packed *to, qn_type type, const float *x, int n, const float *weights) {
    const qn_type_info *info = qn_type_get(type);
    info->pack(to->bytes, x, n, weights);
    info->unpack(to->values, to->bytes, n);
}

static double square_error(const float *x, const float *y, int n, const float *w) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const double off = (double)x[i] - (double)y[i];
        sum += off * off * (w ? (double)w[i] : 1);
    }
    return sum;
}

// (A reduction with fmax makes gcc 12 for 64-bit ARM fail.)
static double largest(const float *x, int n) {
    float max = 0;
    for (int i = 0; i < n; i++) max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

// --- tests ---------------------------------------------------------------------------------------

static void every_supported_type_packs(void **state) {
    (void)state;
    for (int t = 0; t < QN_TYPE_COUNT; t++) {
        bool has_case = false;
        for (int c = 0; c < N_CASES; c++) has_case |= cases[c].type == (qn_type)t;
        const qn_type_info *info = qn_type_get((qn_type)t);
        if ((info->pack != NULL) != (info->unpack != NULL) || has_case != (info->pack != NULL))
            fail_msg("%s", info->name);
    }
}

// Any shape of input, at sizes from where f16 scales are coarse to where they end.
static void the_error_of_a_block_is_bounded(void **state) {
    (void)state;
    static const float scales[] = {1e-6f, 1e-4f, 0.02f, 1, 100};
    static float x[N];
    static packed p;
    for (int c = 0; c < N_CASES; c++)
        for (int m = 0; m < N_MAKERS; m++)
            for (size_t s = 0; s < sizeof scales / sizeof *scales; s++) {
                fill(x, N, makers[m], scales[s]);
                pack(&p, cases[c].type, x, N, NULL);
                const int block = qn_type_get(cases[c].type)->block;
                for (int i = 0; i < N; i += block) {
                    const double rms = sqrt(square_error(x + i, p.values + i, block, NULL) / block);
                    // Half a step of the smallest scales, times the levels it is multiplied with.
                    const double max = cases[c].bound * largest(x + i, block) + 32 * 0x1p-25;
                    if (!(rms <= (cases[c].bound > 0 ? max : 0)))
                        fail_msg("%s: input %d times %g, block %d: error %g of %g, want %g",
                                 qn_type_get(cases[c].type)->name, m, (double)scales[s], i / block,
                                 rms, largest(x + i, block), max);
                }
            }
}

static double gauss_error(qn_type type) {
    static float x[N];
    static packed p;
    fill(x, N, make_gauss, 0.02f);
    pack(&p, type, x, N, NULL);
    static const float zero[N];
    return sqrt(square_error(x, p.values, N, NULL) / square_error(x, zero, N, NULL));
}

static void normal_values_lose_no_more_than_measured(void **state) {
    (void)state;
    for (int c = 0; c < N_CASES; c++) {
        const double error = gauss_error(cases[c].type);
        if (!(error <= cases[c].gauss) || error < 0.9 * cases[c].gauss)
            fail_msg("%s: %.6f, want %.6f", qn_type_get(cases[c].type)->name, error,
                     cases[c].gauss);
    }
}

static void more_bits_lose_less(void **state) {
    (void)state;
    static const qn_type order[] = {QN_TYPE_Q2_K, QN_TYPE_Q3_K, QN_TYPE_Q4_K, QN_TYPE_Q5_K,
                                    QN_TYPE_Q6_K, QN_TYPE_Q8_0, QN_TYPE_BF16, QN_TYPE_F16};
    for (size_t i = 1; i < sizeof order / sizeof *order; i++)
        assert_true(gauss_error(order[i]) < 0.6 * gauss_error(order[i - 1]));
    assert_true(gauss_error(QN_TYPE_Q4_1) < gauss_error(QN_TYPE_Q4_0));
    assert_true(gauss_error(QN_TYPE_Q5_1) < gauss_error(QN_TYPE_Q5_0));
    assert_true(gauss_error(QN_TYPE_IQ4_NL) < gauss_error(QN_TYPE_Q4_0));
    assert_true(gauss_error(QN_TYPE_IQ4_XS) < gauss_error(QN_TYPE_MXFP4));
}

// Rounding to the largest value alone, as simple packers do, is the least the search must beat.
static void the_search_beats_plain_rounding(void **state) {
    (void)state;
    static float x[N], plain[N];
    static packed p;
    fill(x, N, make_gauss, 1);
    static const struct {
        qn_type type;
        float low, high;
    } simple[] = {{QN_TYPE_Q4_0, -8, 7}, {QN_TYPE_Q5_0, -16, 15}};
    for (int t = 0; t < 2; t++) {
        for (int i = 0; i < N; i += 32) {
            float max = 0;
            for (int j = i; j < i + 32; j++) max = fabsf(x[j]) > fabsf(max) ? x[j] : max;
            const float d = max / simple[t].low;
            for (int j = i; j < i + 32; j++)
                plain[j] = d * fminf(fmaxf(rintf(x[j] / d), simple[t].low), simple[t].high);
        }
        pack(&p, simple[t].type, x, N, NULL);
        for (int i = 0; i < N; i += 32) // in every block, up to the rounding of the scale
            assert_true(square_error(x + i, p.values + i, 32, NULL) <
                        1.01 * square_error(x + i, plain + i, 32, NULL));
        assert_true(square_error(x, p.values, N, NULL) < 0.9 * square_error(x, plain, N, NULL));
    }
}

static void zeros_stay_zeros(void **state) {
    (void)state;
    static float x[N];
    static packed p;
    for (int c = 0; c < N_CASES; c++) {
        fill(x, N, make_constant, 0);
        pack(&p, cases[c].type, x, N, NULL);
        for (int i = 0; i < N; i++) assert_true(p.values[i] == 0);
        // Numbers too small for any f16 scale; the types of one value and Q8_K can hold some.
        fill(x, N, make_gauss, 0x1p-140f);
        pack(&p, cases[c].type, x, N, NULL);
        for (int i = 0; i < N; i++) assert_true(fabsf(p.values[i] - x[i]) <= fabsf(x[i]));
    }
}

// A block of zeros beside others does not disturb them, nor they it.
static void blocks_are_packed_one_by_one(void **state) {
    (void)state;
    static float x[N], w[N];
    static packed whole, part;
    fill(x, N, make_outlier, 0.1f);
    memset(x + 512, 0, 256 * sizeof *x);
    fill_weights(w, N);
    for (int c = 0; c < N_CASES; c++) {
        const qn_type_info *info = qn_type_get(cases[c].type);
        for (int weighted = 0; weighted < 2; weighted++) {
            pack(&whole, cases[c].type, x, N, weighted ? w : NULL);
            const int n = info->block, n_bytes = info->bytes;
            for (int i = 0; i < N / n; i++) {
                pack(&part, cases[c].type, x + i * n, n, weighted ? w + i * n : NULL);
                assert_memory_equal(part.bytes, whole.bytes + i * n_bytes, (size_t)n_bytes);
            }
        }
    }
}

// All bytes of the blocks are written, none beyond, at any address.
static void bytes_depend_on_the_input_alone(void **state) {
    (void)state;
    static float x[N];
    static uint8_t a[N * 4 + 2], b[N * 4 + 2];
    fill(x, N, make_sparse, 0.3f);
    for (int c = 0; c < N_CASES; c++) {
        const qn_type_info *info = qn_type_get(cases[c].type);
        const size_t n_bytes = (size_t)(N / info->block * info->bytes);
        memset(a, 0x55, sizeof a);
        memset(b, 0xaa, sizeof b);
        info->pack(a, x, N, NULL);
        info->pack(b + 1, x, N, NULL);
        assert_memory_equal(a, b + 1, n_bytes);
        assert_int_equal(a[n_bytes], 0x55);
        assert_int_equal(b[n_bytes + 1], 0xaa);
        assert_int_equal(b[0], 0xaa);
        info->pack(a, x, 0, NULL);
        assert_memory_equal(a, b + 1, n_bytes);
    }
}

// The same bytes from every compiler and machine. A change of the search changes the hashes.
static void the_same_bytes_everywhere(void **state) {
    (void)state;
    static float x[N], w[N];
    static packed p;
    random r = {99};
    for (int i = 0; i < N; i++) {
        x[i] = next_gauss(&r);
        w[i] = 1 + fabsf(next_uniform(&r));
    }
    bool is_same = true;
    for (int c = 0; c < N_CASES; c++) {
        const qn_type_info *info = qn_type_get(cases[c].type);
        uint64_t hash = 14695981039346656037u; // FNV-1a
        for (int weighted = 0; weighted < 2; weighted++) {
            pack(&p, cases[c].type, x, N, weighted ? w : NULL);
            for (int i = 0; i < N / info->block * info->bytes; i++)
                hash = (hash ^ p.bytes[i]) * 1099511628211u;
        }
        if (hash == cases[c].hash) continue;
        is_same = false;
        print_message("%s: 0x%016llx\n", info->name, (unsigned long long)hash);
    }
    assert_true(is_same);
}

// A block whose outermost level is in use packs to its own values.
static void representable_values_come_back(void **state) {
    (void)state;
    static const struct {
        qn_type type;
        int d, m, q; // offsets of the scale, the minimum (-1: none) and the quants
    } simple[] = {{QN_TYPE_Q4_0, 0, -1, 2},  {QN_TYPE_Q4_1, 0, 2, 4},  {QN_TYPE_Q5_0, 0, -1, 6},
                  {QN_TYPE_Q5_1, 0, 2, 8},   {QN_TYPE_Q8_0, 0, -1, 2}, {QN_TYPE_IQ4_NL, 0, -1, 2},
                  {QN_TYPE_MXFP4, -1, -1, 1}};
    random r = {4};
    for (size_t t = 0; t < sizeof simple / sizeof *simple; t++) {
        const qn_type_info *info = qn_type_get(simple[t].type);
        for (int k = 0; k < 500; k++) {
            uint8_t block[34];
            float x[32], y[32];
            for (int i = 0; i < info->bytes; i++) block[i] = (uint8_t)(next_bits(&r) >> 24);
            const float d = ldexpf(1 + fabsf(next_uniform(&r)), -(int)(next_bits(&r) >> 29));
            if (simple[t].d >= 0) qn_store_u16(block + simple[t].d, qn_half_encode(d));
            if (simple[t].m >= 0) // of the size of a few steps, so that sums are exact
                qn_store_u16(block + simple[t].m, qn_half_encode(-d * (3 + next_uniform(&r))));
            if (simple[t].d < 0) block[0] = (uint8_t)(120 + (next_bits(&r) >> 29));
            block[simple[t].q] = 0xf0; // both ends of the levels
            if (simple[t].type == QN_TYPE_Q5_0 || simple[t].type == QN_TYPE_Q5_1) {
                const int qh = simple[t].q - 4;
                block[qh] &= 0xfe;
                block[qh + 2] |= 1;
            }
            if (simple[t].type == QN_TYPE_Q8_0) {
                for (int i = 2; i < 34; i++) block[i] = block[i] == 0x80 ? 0x81 : block[i];
                block[2] = 127;
            }
            info->unpack(x, block, 32);
            info->pack(block, x, 32, NULL);
            info->unpack(y, block, 32);
            for (int i = 0; i < 32; i++)
                if (x[i] != y[i])
                    fail_msg("%s %d: value %d: %a became %a", info->name, k, i, (double)x[i],
                             (double)y[i]);
        }
    }
    static const uint32_t special[] = {0x00000000, 0x80000000, 0x3f800000, 0x7f800000,
                                       0xff800000, 0x7fc00000, 0x00000001, 0xff7fffff};
    uint8_t bytes[sizeof special];
    float x[8];
    memcpy(x, special, sizeof x);
    qn_type_get(QN_TYPE_F32)->pack(bytes, x, 8, NULL);
    for (int i = 0; i < 8; i++) assert_int_equal(qn_load_u32(bytes + 4 * i), special[i]);
}

static void weights_move_the_error(void **state) {
    (void)state;
    static float x[N], w[N];
    static packed with, without;
    fill(x, N, make_gauss, 0.05f);
    fill_weights(w, N);
    for (int c = 0; c < N_CASES; c++) {
        const qn_type type = cases[c].type;
        pack(&without, type, x, N, NULL);
        pack(&with, type, x, N, w);
        const double before = square_error(x, without.values, N, w);
        const double after = square_error(x, with.values, N, w);
        const bool is_plain = type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16 ||
                              type == QN_TYPE_Q8_0 || type == QN_TYPE_Q8_K;
        // A power of two as the scale leaves little to choose.
        const double want = is_plain || type == QN_TYPE_MXFP4 ? before : 0.9 * before;
        if (!(after <= want))
            fail_msg("%s: %g, without weights %g", qn_type_get(type)->name, after, before);
        if (!is_plain) // the others pay
            assert_true(square_error(x, with.values, N, NULL) >
                        square_error(x, without.values, N, NULL));
    }
}

// One column that counts a thousand times as much is nearly exact, and only relations count.
static void a_heavy_column_is_nearly_exact(void **state) {
    (void)state;
    static float x[N], w[N], w4[N];
    static packed with, without, scaled;
    fill(x, N, make_gauss, 1);
    for (int i = 0; i < N; i++) w[i] = i % 32 == 5 ? 1000 : 1, w4[i] = 0x1p-40f * w[i];
    for (int c = 0; c < N_CASES; c++) {
        const qn_type type = cases[c].type;
        pack(&without, type, x, N, NULL);
        pack(&with, type, x, N, w);
        pack(&scaled, type, x, N, w4);
        const qn_type_info *info = qn_type_get(type);
        assert_memory_equal(with.bytes, scaled.bytes, (size_t)(N / info->block * info->bytes));
        if (type != QN_TYPE_Q4_0 && type != QN_TYPE_Q4_1 && type != QN_TYPE_Q5_0 &&
            type != QN_TYPE_Q5_1 && type != QN_TYPE_IQ4_NL && type != QN_TYPE_Q4_K)
            continue;
        double before = 0, after = 0;
        for (int i = 5; i < N; i += 32) {
            before += square_error(x + i, without.values + i, 1, NULL);
            after += square_error(x + i, with.values + i, 1, NULL);
        }
        if (!(after < 0.15 * before)) fail_msg("%s: %g of %g", info->name, after, before);
    }
}

static void useless_weights_are_no_weights(void **state) {
    (void)state;
    static const float useless[] = {0, -1, NAN, INFINITY, -INFINITY, 1e-44f};
    static float x[N], w[N];
    static packed with, without;
    fill(x, N, make_gauss, 1);
    for (int c = 0; c < N_CASES; c++) {
        pack(&without, cases[c].type, x, N, NULL);
        const double before = square_error(x, without.values, N, NULL);
        for (size_t u = 0; u < sizeof useless / sizeof *useless; u++) {
            for (int i = 0; i < N; i++) w[i] = useless[u];
            pack(&with, cases[c].type, x, N, w);
            const double after = square_error(x, with.values, N, NULL);
            if (!(after <= 1.03 * before))
                fail_msg("%s: %g, want %g", qn_type_get(cases[c].type)->name, after, before);
        }
        for (int i = 0; i < N; i++) w[i] = i % 64 < 32 ? 0 : FLT_MAX; // half of the groups
        pack(&with, cases[c].type, x, N, w);
        assert_true(square_error(x, with.values, N, NULL) <= 2 * before);
    }
}

// What is too large becomes the largest of its sign; nothing else in the block becomes infinite.
static void what_does_not_fit_saturates(void **state) {
    (void)state;
    static const float large[] = {1e9f, 3.3e38f, INFINITY};
    static float x[N];
    static packed p;
    for (int c = 0; c < N_CASES; c++) {
        const qn_type type = cases[c].type;
        const bool is_plain = type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16;
        for (size_t k = 0; k < sizeof large / sizeof *large; k++)
            for (int sign = -1; sign <= 1; sign += 2) {
                fill(x, N, make_gauss, 1);
                for (int i = 3; i < N; i += 32) x[i] = (float)sign * large[k];
                pack(&p, type, x, N, NULL);
                for (int i = 0; i < N; i++) {
                    const bool is_large = i % 32 == 3;
                    if (is_large && !((float)sign * p.values[i] >= 65504)) fail_msg("small");
                    if (is_plain && k == 2 && is_large) {
                        assert_true(isinf(p.values[i]));
                        continue;
                    }
                    if (!isfinite(p.values[i]))
                        fail_msg("%s: %g", qn_type_get(type)->name, (double)p.values[i]);
                }
            }
        fill(x, N, make_gauss, 1);
        for (int i = 3; i < N; i += 32) x[i] = NAN;
        pack(&p, type, x, N, NULL);
        for (int i = 0; i < N; i++)
            assert_true(is_plain && i % 32 == 3 ? isnan(p.values[i]) : isfinite(p.values[i]));
    }
}

// Any bits at all as values and as weights.
static void any_bits_can_be_packed(void **state) {
    (void)state;
    static float x[N], w[N];
    static packed p;
    random r = {31};
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) {
            x[i] = qn_float_from_bits(next_bits(&r));
            w[i] = qn_float_from_bits(next_bits(&r));
        }
        for (int c = 3; c < N_CASES; c++) {
            pack(&p, cases[c].type, x, N, round % 2 ? w : NULL);
            for (int i = 0; i < N; i++) assert_true(isfinite(p.values[i]));
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_supported_type_packs),
        cmocka_unit_test(the_error_of_a_block_is_bounded),
        cmocka_unit_test(normal_values_lose_no_more_than_measured),
        cmocka_unit_test(more_bits_lose_less),
        cmocka_unit_test(the_search_beats_plain_rounding),
        cmocka_unit_test(zeros_stay_zeros),
        cmocka_unit_test(blocks_are_packed_one_by_one),
        cmocka_unit_test(bytes_depend_on_the_input_alone),
        cmocka_unit_test(the_same_bytes_everywhere),
        cmocka_unit_test(representable_values_come_back),
        cmocka_unit_test(weights_move_the_error),
        cmocka_unit_test(a_heavy_column_is_nearly_exact),
        cmocka_unit_test(useless_weights_are_no_weights),
        cmocka_unit_test(what_does_not_fit_saturates),
        cmocka_unit_test(any_bits_can_be_packed),
    };
    return cmocka_run_group_tests_name("quant pack", tests, NULL, NULL);
}

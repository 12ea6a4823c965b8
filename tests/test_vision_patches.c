// From pixels to patches, and where patches and rows of an image are.
#include "testing.h"

#include "core/mem.h"
#include "vision/grid.h"
#include "vision/patches.h"
#include "vision/positions.h"
#include "vision/resize.h"

#include <math.h>

static void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.9g, want %.9g", got, want);
}

static qn_image new_image(int64_t width, int64_t height) {
    qn_image image = {.width = width, .height = height};
    image.rgb = qn_alloc((size_t)(width * height), 3);
    assert_non_null(image.rgb);
    return image;
}

// --- sizes ---------------------------------------------------------------------------------------

static qn_patch_rules rules_of(int64_t patch, int64_t min, int64_t max) {
    return (qn_patch_rules){.patch = patch,
                            .merge = 2,
                            .min_pixels = min,
                            .max_pixels = max,
                            .mean = {0.5f, 0.5f, 0.5f},
                            .deviation = {0.5f, 0.5f, 0.5f}};
}

// As the reference's function gives them for patches of 16 and 14 (width, height; the sizes).
static void test_sizes_are_the_references(void **state) {
    (void)state;
    static const int64_t cases[][6] = {
        {150, 100, 160, 96, 140, 112},
        {32, 32, 64, 64, 56, 56},
        {16, 16, 64, 64, 56, 56},
        {48, 48, 64, 64, 56, 56},
        {80, 80, 64, 64, 84, 84},
        {112, 48, 128, 64, 112, 56},
        {1, 1, 64, 64, 56, 56},
        {1, 200, 32, 928, 28, 812},
        {200, 1, 928, 32, 812, 28},
        {10, 2000, 32, 928, 28, 812},
        {640, 480, 576, 416, 644, 476},
        {1920, 1080, 672, 384, 1316, 728},
        {4000, 3000, 576, 416, 1148, 840},
        {8000, 40, 8000, 32, 8008, 28},
        {513, 511, 512, 512, 504, 504},
        {1000, 16, 512, 32, 1008, 28},
        {31, 33, 64, 96, 56, 84},
        {5000, 5000, 512, 512, 980, 980},
    };
    const qn_patch_rules rules[] = {rules_of(16, 4096, 262144), rules_of(14, 3136, 1003520)};
    qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int k = 0; k < 2; k++) {
            int64_t width, height;
            ASSERT_OK(qn_patch_sizes(&width, &height, cases[i][0], cases[i][1], &rules[k], &err));
            assert_int_equal(width, cases[i][2 + 2 * k]);
            assert_int_equal(height, cases[i][3 + 2 * k]);
        }
    }
}

static void test_odd_sizes_are_refused(void **state) {
    (void)state;
    static const int64_t cases[][2] = {{201, 1}, {1, 201},           {0, 5},    {5, 0},
                                       {-1, 5},  {1 << 25, 1 << 25}, {8001, 40}};
    const qn_patch_rules rules = rules_of(16, 4096, 262144);
    qn_err err;
    int64_t width = -1, height = -1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ASSERT_FAILS(qn_patch_sizes(&width, &height, cases[i][0], cases[i][1], &rules, &err),
                     QN_LIMIT, "pixels");
    assert_int_equal(width, -1);
}

// --- resampling ----------------------------------------------------------------------------------

static void test_a_plain_image_stays_plain(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {5, 3}, {40, 30}, {333, 7}};
    qn_err err;
    for (size_t i = 0; i < 4; i++) {
        qn_image image = new_image(40, 30), to;
        for (int64_t k = 0; k < 40 * 30; k++) memcpy(image.rgb + k * 3, "\0\x7f\xff", 3);
        ASSERT_OK(qn_image_resize(&to, &image, sizes[i][0], sizes[i][1], &err));
        assert_int_equal(to.width, sizes[i][0]);
        assert_int_equal(to.height, sizes[i][1]);
        for (int64_t k = 0; k < to.width * to.height; k++)
            assert_memory_equal(to.rgb + k * 3, "\0\x7f\xff", 3);
        qn_image_deinit(&to);
        qn_image_deinit(&image);
    }
}

// The filter itself in double, both ways at once: 8 bits in between and weights of 15 bits are one
// level apart from it at most.
static double cubic(double x) {
    x = fabs(x);
    return x < 1 ? (1.5 * x - 2.5) * x * x + 1 : x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

static double weight(int64_t to, int64_t from, int64_t n, int64_t size) {
    const double scale = (double)size / (double)n, wide = fmax(scale, 1);
    return cubic(((double)from + 0.5 - ((double)to + 0.5) * scale) / wide);
}

static double filtered(const qn_image *image, int64_t x, int64_t y, int64_t width, int64_t height,
                       int c) {
    double sum = 0, total = 0;
    for (int64_t j = 0; j < image->height; j++) {
        for (int64_t i = 0; i < image->width; i++) {
            const double w =
                weight(x, i, width, image->width) * weight(y, j, height, image->height);
            sum += w * image->rgb[(j * image->width + i) * 3 + c];
            total += w;
        }
    }
    return fmin(fmax(sum / total, 0), 255);
}

static void test_resampling_is_cubic(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{37, 29}, {9, 7}, {19, 29}, {64, 7}};
    qn_err err;
    qn_image image = new_image(19, 23), to;
    for (int64_t i = 0; i < 19 * 23 * 3; i++)
        image.rgb[i] = (unsigned char)(128 + 100 * sin((double)i * 0.37)); // no clipping between
    for (size_t s = 0; s < 4; s++) {
        ASSERT_OK(qn_image_resize(&to, &image, sizes[s][0], sizes[s][1], &err));
        for (int64_t y = 0; y < to.height; y++) {
            for (int64_t x = 0; x < to.width; x++) {
                for (int c = 0; c < 3; c++) {
                    const double want = filtered(&image, x, y, to.width, to.height, c);
                    assert_true(fabs(to.rgb[(y * to.width + x) * 3 + c] - want) < 1.8);
                }
            }
        }
        qn_image_deinit(&to);
    }
    qn_image_deinit(&image);
}

// --- patches -------------------------------------------------------------------------------------

// Every pixel holds the number of its patch in plain order: 2 x 4 patches of 2 x 2 pixels.
static void test_patches_come_merged_patch_by_patch(void **state) {
    (void)state;
    static const int order[] = {0, 1, 4, 5, 2, 3, 6, 7};
    const qn_patch_rules rules = {.patch = 2,
                                  .merge = 2,
                                  .min_pixels = 4,
                                  .max_pixels = 1000,
                                  .mean = {0, 0.5f, 1},
                                  .deviation = {1, 0.5f, 0.25f}};
    qn_err err;
    qn_patches p;
    qn_image image = new_image(8, 4);
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 8; x++) {
            unsigned char *pixel = image.rgb + (y * 8 + x) * 3;
            pixel[0] = (unsigned char)(y / 2 * 4 + x / 2);
            pixel[1] = (unsigned char)(y % 2 * 2 + x % 2);
            pixel[2] = 255;
        }
    }
    ASSERT_OK(qn_patches_init(&p, &image, &rules, &err));
    assert_int_equal(p.rows, 2);
    assert_int_equal(p.columns, 4);
    assert_int_equal(p.width, 12);
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 4; k++) {
            assert_close((double)p.data[i * 12 + k], order[i] / 255.0, 1e-6);
            assert_close((double)p.data[i * 12 + 4 + k], (k / 255.0 - 0.5) / 0.5, 1e-6);
            assert_close((double)p.data[i * 12 + 8 + k], 0, 1e-6);
        }
    }
    qn_patches_deinit(&p);
    qn_image_deinit(&image);
}

// --- grids ---------------------------------------------------------------------------------------

static void test_learned_positions_are_resized(void **state) {
    (void)state;
    enum { SIDE = 5 };
    float table[SIDE * SIDE * 2], out[9 * 9 * 2];
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            table[(y * SIDE + x) * 2] = (float)y;
            table[(y * SIDE + x) * 2 + 1] = (float)(x * 10);
        }
    }
    // A plane stays a plane, corner on corner.
    for (int64_t n = 1; n <= 9; n++) {
        const qn_grid grid = {.rows = n, .columns = 9, .merge = 1};
        qn_grid_positions(out, &grid, table, SIDE, 2);
        for (int64_t i = 0; i < n * 9; i++) {
            const double y = n > 1 ? (double)(i / 9) * (SIDE - 1) / (double)(n - 1) : 0;
            assert_close((double)out[i * 2], y, 1e-5);
            assert_close((double)out[i * 2 + 1], (double)(i % 9) * (SIDE - 1) / 8 * 10, 1e-4);
        }
    }
}

static void test_angles_follow_rows_and_columns(void **state) {
    (void)state;
    const qn_grid grid = {.rows = 4, .columns = 6, .merge = 2};
    float angles[24 * 8]; // heads of 8 values: 4 pairs, cosines and sines
    qn_grid_angles(angles, &grid, 8, 10000);
    for (int i = 0; i < 24; i++) {
        const int block = i / 4, row = block / 3 * 2 + i % 4 / 2, column = block % 3 * 2 + i % 2;
        const double want[] = {row, row / 100.0, column, column / 100.0};
        for (int k = 0; k < 4; k++) {
            assert_close((double)angles[i * 8 + k], cos(want[k]), 1e-6);
            assert_close((double)angles[i * 8 + 4 + k], sin(want[k]), 1e-6);
        }
    }
}

// --- positions of rows ---------------------------------------------------------------------------

enum { ROWS = 30 };
// Two images: 2 x 3 rows from 4 on, 4 x 2 rows from 12 on.
static const qn_image_span spans[] = {{4, 2, 3, 0}, {12, 4, 2, 0}};

static void test_positions_go_on_after_images(void **state) {
    (void)state;
    static const int32_t want[ROWS][3] = {
        {0, 0, 0},    {1, 1, 1},    {2, 2, 2},    {3, 3, 3},    {4, 4, 4},    {4, 4, 5},
        {4, 4, 6},    {4, 5, 4},    {4, 5, 5},    {4, 5, 6},    {7, 7, 7},    {8, 8, 8},
        {9, 9, 9},    {9, 9, 10},   {9, 10, 9},   {9, 10, 10},  {9, 11, 9},   {9, 11, 10},
        {9, 12, 9},   {9, 12, 10},  {13, 13, 13}, {14, 14, 14}, {15, 15, 15}, {16, 16, 16},
        {17, 17, 17}, {18, 18, 18}, {19, 19, 19}, {20, 20, 20}, {21, 21, 21}, {22, 22, 22}};
    int32_t got[ROWS * 4], part[ROWS * 4], next = -1;
    qn_err err;
    ASSERT_OK(qn_image_positions(got, &next, 0, ROWS, spans, 2, &err));
    assert_int_equal(next, 23);
    for (int i = 0; i < ROWS; i++) {
        assert_memory_equal(got + i * 4, want[i], sizeof want[i]);
        assert_int_equal(got[i * 4 + 3], 0);
    }
    for (int64_t first = 0; first <= ROWS; first++) { // any part of them alone
        for (int64_t n = 0; first + n <= ROWS; n++) {
            ASSERT_OK(qn_image_positions(part, NULL, first, n, spans, 2, &err));
            assert_memory_equal(part, got + first * 4, (size_t)n * 4 * sizeof *got);
        }
    }
    ASSERT_OK(qn_image_positions(part, &next, 0, 20, spans, 2, &err)); // it ends with an image
    assert_int_equal(next, 13);
    ASSERT_OK(qn_image_positions(part, &next, 0, 5, NULL, 0, &err));
    assert_int_equal(next, 5);
    assert_int_equal(part[4 * 4], 4);
}

// Of an image of 3 x 4 rows, the first ones alone: text goes on after the largest position of them.
static void test_positions_go_on_after_a_cut_image(void **state) {
    (void)state;
    static const int32_t after[] = {0, 3, 4, 5, 6, 6, 6, 6, 6, 6, 6, 6, 6}; // by rows that are left
    qn_err err;
    for (int64_t left = 1; left <= 12; left++) {
        const qn_image_span span = {2, 3, 4, left};
        int32_t got[ROWS * 4], whole[ROWS * 4], next;
        ASSERT_OK(qn_image_positions(got, &next, 0, 2 + left + 2, &span, 1, &err));
        ASSERT_OK(qn_image_positions(whole, NULL, 0, 14, &(qn_image_span){2, 3, 4, 0}, 1, &err));
        assert_memory_equal(got, whole, (size_t)(2 + left) * 4 * sizeof *got);
        assert_int_equal(got[(2 + left) * 4], after[left]);
        assert_int_equal(next, after[left] + 2);
    }
}

static void test_spans_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const qn_image_span cases[][2] = {
        {{4, 2, 3, 0}, {9, 1, 1, 0}},   {{-1, 2, 3, 0}, {12, 1, 1, 0}},
        {{4, 0, 3, 0}, {12, 1, 1, 0}},  {{4, 2, 3, 0}, {3, 1, 1, 0}},
        {{4, 2, -3, 0}, {12, 1, 1, 0}}, {{4, 1 << 30, 1 << 30, 0}, {12, 1, 1, 0}},
        {{4, 2, 3, 0}, {12, 0, 0, 0}},  {{4, 2, 3, 7}, {12, 1, 1, 0}},
        {{4, 2, 3, -1}, {12, 1, 1, 0}},
    };
    int32_t got[ROWS * 4];
    qn_err err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        ASSERT_FAILS(qn_image_positions(got, NULL, 0, ROWS, cases[i], 2, &err), QN_ARGUMENT,
                     "image ");
    ASSERT_FAILS(qn_image_positions(got, NULL, -1, 5, NULL, 0, &err), QN_ARGUMENT, "positions");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_are_the_references),
        cmocka_unit_test(test_odd_sizes_are_refused),
        cmocka_unit_test(test_a_plain_image_stays_plain),
        cmocka_unit_test(test_resampling_is_cubic),
        cmocka_unit_test(test_patches_come_merged_patch_by_patch),
        cmocka_unit_test(test_learned_positions_are_resized),
        cmocka_unit_test(test_angles_follow_rows_and_columns),
        cmocka_unit_test(test_positions_go_on_after_images),
        cmocka_unit_test(test_positions_go_on_after_a_cut_image),
        cmocka_unit_test(test_spans_that_cannot_be_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Images through a vision tower, against the reference's numbers: pixels, rows, positions.
#include "testing.h"
#include "golden.h"

#include "core/mem.h"
#include "vision/patches.h"
#include "vision/positions.h"

#include <math.h>

#define MODEL TEST_DATA "/mini/qwen35_vl"

// As preprocessor_config.json of the model has it.
static const qn_patch_rules rules = {.patch = 16,
                                     .merge = 2,
                                     .min_pixels = 4096,
                                     .max_pixels = 262144,
                                     .mean = {0.5f, 0.5f, 0.5f},
                                     .deviation = {0.5f, 0.5f, 0.5f}};

static double largest_error(const float *a, const float *b, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fmax(most, fabs((double)a[i] - (double)b[i]));
    return most;
}

// The reference's rows hold every patch twice, channel by channel: a still image has two equal
// frames.
static double pixels_error(const qn_patches *p, const float *want) {
    const int64_t plane = p->width / 3;
    double most = 0;
    for (int64_t i = 0; i < p->rows * p->columns; i++) {
        for (int64_t c = 0; c < 6; c++)
            most = fmax(most, largest_error(p->data + i * p->width + c / 2 * plane,
                                            want + (i * 6 + c) * plane, plane));
    }
    return most;
}

static void test_pixels_of_a_png_are_the_references(void **state) {
    (void)state;
    qn_err err;
    qn_image image;
    qn_patches patches;
    int64_t n;
    golden g = golden_open(MODEL, "golden.safetensors");
    float *want = golden_floats(&g, "pixel_values", &n);
    ASSERT_OK(qn_image_load(&image, MODEL "/image.png", NULL, &err));
    assert_int_equal(image.width, 150);
    assert_int_equal(image.height, 100);
    ASSERT_OK(qn_patches_init(&patches, &image, &rules, &err));
    assert_int_equal(patches.rows, 6);
    assert_int_equal(patches.columns, 10);
    assert_int_equal(n, 60 * 1536);
    const double error = pixels_error(&patches, want);
    print_message("pixels: largest error %.2e\n", error);
    assert_true(error < 1e-6);
    qn_patches_deinit(&patches);
    qn_image_deinit(&image);
    qn_free(want);
    golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_of_a_png_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Images through a vision tower, against the reference's numbers: pixels, rows, positions.
#include "testing.h"
#include "golden.h"

#include "core/mem.h"
#include "runtime/vision.h"
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

// --- the tower -----------------------------------------------------------------------------------

// The reference's pixels as patches: the first of the two equal frames.
static qn_patches reference_patches(const golden *g) {
    int64_t n;
    float *pixels = golden_floats(g, "pixel_values", &n);
    qn_patches p = {.rows = 6, .columns = 10, .width = 768};
    assert_int_equal(n, p.rows * p.columns * 2 * p.width);
    p.data = qn_alloc((size_t)n / 2, sizeof *p.data);
    assert_non_null(p.data);
    for (int64_t i = 0; i < n / 512; i++)
        memcpy(p.data + i * 256, pixels + i * 512, 256 * sizeof *p.data);
    qn_free(pixels);
    return p;
}

// A model and its tower.
typedef struct pair {
    qn_engine *engine;
    qn_vision *vision;
} pair;

static pair open_pair(const char *model, const char *tower, const qn_engine_opts *opts) {
    qn_err err;
    pair p = {0};
    ASSERT_OK(qn_engine_open(&p.engine, model, opts, &err));
    ASSERT_OK(qn_vision_open(&p.vision, p.engine, tower, &err));
    return p;
}

static void close_pair(pair *p) {
    qn_vision_close(p->vision);
    qn_engine_close(p->engine);
}

typedef struct tower_case {
    const char *what, *model, *tower;
    qn_engine_opts opts;
} tower_case;

#define GGUF_PAIR MODEL "/qwen35_vl-bf16.gguf", MODEL "/mmproj-bf16.gguf"

static void test_rows_are_the_references(void **state) {
    (void)state;
    const tower_case cases[] = {
        {"mmproj, interpreter", GGUF_PAIR, QN_INIT(qn_engine_opts, .reference = true)},
        {"mmproj, cpu", GGUF_PAIR, QN_INIT(qn_engine_opts, .n_threads = 2)},
        {"mmproj, ref", GGUF_PAIR, QN_INIT(qn_engine_opts, .device = "ref")},
        {"checkpoint, interpreter", MODEL, NULL, QN_INIT(qn_engine_opts, .reference = true)},
        {"checkpoint, cpu", MODEL, NULL, QN_INIT(qn_engine_opts, .n_threads = 2)},
        {"checkpoint beside GGUF", MODEL "/qwen35_vl-bf16.gguf", MODEL, QN_INIT(qn_engine_opts)},
    };
    qn_err err;
    int64_t n;
    golden g = golden_open(MODEL, "golden.safetensors");
    qn_patches patches = reference_patches(&g);
    float *want = golden_floats(&g, "vision_embeds", &n);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p = open_pair(cases[i].model, cases[i].tower, &cases[i].opts);
        qn_vision_rows got;
        ASSERT_OK(qn_vision_encode_patches(&got, p.vision, &patches, &err));
        assert_int_equal(got.rows, 3);
        assert_int_equal(got.columns, 5);
        assert_int_equal(got.rows * got.columns * got.width, n);
        const double error = relative_error(got.data, want, n);
        print_message("%s: relative error %.2e, largest %.2e\n", cases[i].what, error,
                      largest_error(got.data, want, n));
        assert_true(error < 1e-5);
        qn_vision_rows_deinit(&got);
        close_pair(&p);
    }
    qn_free(want);
    qn_patches_deinit(&patches);
    golden_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_of_a_png_are_the_references),
        cmocka_unit_test(test_rows_are_the_references),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Images through a vision tower, against the reference's numbers: pixels, rows, positions.
#include "testing.h"
#include "golden.h"

#include "core/mem.h"
#include "runtime/vision.h"
#include "vision/positions.h"

#include <math.h>
#include <stdlib.h>

// The linker sends the question for free memory here.
static int64_t told_memory; // 0: the truth
bool __real_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out) {
    if (!told_memory) return __real_qn_machine_free_memory(out);
    *out = told_memory;
    return true;
}

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
    for (int64_t i = 0; i < n; i++) {
        const double error = fabs((double)a[i] - (double)b[i]);
        if (error > most) most = error; // (a reduction with fmax makes gcc 12 for 64-bit ARM fail)
    }
    return most;
}

// The reference's rows hold every patch twice, channel by channel: a still image has two equal
// frames, of which the file has the first.
static double pixels_error(const qn_patches *p, const float *want) {
    return largest_error(p->data, want, p->rows * p->columns * p->width);
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
    assert_int_equal(n, 60 * 768);
    const double error = pixels_error(&patches, want);
    print_message("pixels: largest error %.2e\n", error);
    assert_true(error < 1e-6);
    qn_patches_deinit(&patches);
    qn_image_deinit(&image);
    qn_free(want);
    golden_close(&g);
}

// The JPEG file is the same picture. It keeps a quarter of the colours, and blue is noise here: the
// mean of what it says of a channel is right all the same.
static void test_pixels_of_a_jpeg_are_those_of_the_png(void **state) {
    (void)state;
    qn_err err;
    qn_image png, jpeg;
    double sum[3] = {0}, spread[3] = {0};
    ASSERT_OK(qn_image_load(&png, MODEL "/image.png", NULL, &err));
    ASSERT_OK(qn_image_load(&jpeg, MODEL "/image.jpg", NULL, &err));
    assert_int_equal(jpeg.width, png.width);
    assert_int_equal(jpeg.height, png.height);
    for (int64_t i = 0; i < 150 * 100 * 3; i++) {
        sum[i % 3] += jpeg.rgb[i] - png.rgb[i];
        spread[i % 3] += abs(jpeg.rgb[i] - png.rgb[i]);
    }
    for (int c = 0; c < 3; c++) {
        assert_true(fabs(sum[c]) / (150 * 100) < 0.05);
        assert_true(spread[c] / (150 * 100) < (c < 2 ? 4 : 25));
    }
    qn_image_deinit(&png);
    qn_image_deinit(&jpeg);
}

// --- the tower -----------------------------------------------------------------------------------

// The reference's pixels as patches.
static qn_patches reference_patches(const golden *g) {
    int64_t n;
    qn_patches p = {.rows = 6, .columns = 10, .width = 768};
    p.data = golden_floats(g, "pixel_values", &n);
    assert_int_equal(n, p.rows * p.columns * p.width);
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
    ASSERT_OK(qn_vision_open(&p.vision, p.engine, &(qn_vision_opts){.path = tower}, &err));
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
        ASSERT_OK(qn_vision_encode_patches(&got, p.vision, &patches, NULL, &err));
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

// Rows of an image file, resized and cut by us.
static qn_vision_rows encode_file(const pair *p, const char *path) {
    qn_err err;
    qn_image image;
    qn_vision_rows rows;
    ASSERT_OK(qn_image_load(&image, path, NULL, &err));
    ASSERT_OK(qn_vision_encode(&rows, p->vision, &image, NULL, &err));
    qn_image_deinit(&image);
    return rows;
}

static void assert_same_rows(const qn_vision_rows *a, const qn_vision_rows *b) {
    assert_int_equal(a->rows, b->rows);
    assert_int_equal(a->columns, b->columns);
    assert_int_equal(a->width, b->width);
    assert_memory_equal(a->data, b->data,
                        (size_t)(a->rows * a->columns * a->width) * sizeof *a->data);
}

// From the file to the rows; and one more image does not change what the next one gives.
static void test_files_become_rows(void **state) {
    (void)state;
    int64_t n, rows, columns;
    qn_err err;
    golden g = golden_open(MODEL, "golden.safetensors");
    float *want = golden_floats(&g, "vision_embeds", &n);
    pair p = open_pair(GGUF_PAIR, &QN_INIT(qn_engine_opts, .n_threads = 2));
    qn_vision_rows png = encode_file(&p, MODEL "/image.png");
    assert_true(relative_error(png.data, want, n) < 1e-5);
    qn_vision_rows jpeg = encode_file(&p, MODEL "/image.jpg");
    const double error = relative_error(jpeg.data, want, n);
    print_message("the JPEG file: relative difference from the PNG file %.2e\n", error);
    assert_true(error > 0 && error < 0.3); // blue is noise, of which JPEG keeps little
    qn_vision_rows again = encode_file(&p, MODEL "/image.png");
    assert_same_rows(&png, &again);
    ASSERT_OK(qn_vision_measure(&rows, &columns, p.vision, 150, 100, &err));
    assert_int_equal(rows, 3);
    assert_int_equal(columns, 5);
    qn_vision_rows_deinit(&png);
    qn_vision_rows_deinit(&jpeg);
    qn_vision_rows_deinit(&again);
    close_pair(&p);
    qn_free(want);
    golden_close(&g);
}

// A picture of 160 x 224 pixels, that is 140 patches: more than two pages of keys, not whole ones.
static qn_image make_image(void) {
    qn_image image = {.width = 160, .height = 224};
    image.rgb = qn_alloc(160 * 224, 3);
    assert_non_null(image.rgb);
    for (int i = 0; i < 160 * 224 * 3; i++)
        image.rgb[i] = (unsigned char)(128 + 127 * sin((double)i * 0.013));
    return image;
}

// A clock that moves whenever it is asked.
static atomic_int_fast64_t ticks;
static int64_t tick(void) { return atomic_fetch_add(&ticks, 1); }

// Whatever computes asks again and again whether it is to go on, and ends where it is not.
static void test_deadlines_and_flags_end_it(void **state) {
    (void)state;
    const qn_engine_opts cases[] = {
        QN_INIT(qn_engine_opts, .n_threads = 1), QN_INIT(qn_engine_opts, .n_threads = 3),
        QN_INIT(qn_engine_opts, .device = "ref"), QN_INIT(qn_engine_opts, .reference = true)};
    qn_err err;
    qn_image image = make_image();
    qn_stop_flag *flag = NULL;
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p = open_pair(GGUF_PAIR, &cases[i]);
        qn_vision_rows want, got = {.width = -7};
        ASSERT_OK(qn_vision_encode(&want, p.vision, &image, NULL, &err));
        qn_until never = {.stop = flag, .deadline = INT64_MAX, .clock = tick};
        atomic_store(&ticks, 0);
        ASSERT_OK(qn_vision_encode(&got, p.vision, &image, &never, &err));
        assert_same_rows(&got, &want);
        qn_vision_rows_deinit(&got);
        const int64_t n = atomic_load(&ticks), ends[] = {0, 1, n / 3, n - 3};
        print_message("asked %lld times\n", (long long)n);
        assert_true(n > 20);
        for (size_t k = 0; k < 4; k++) {
            qn_until soon = {.deadline = 1 + ends[k], .clock = tick};
            atomic_store(&ticks, 1);
            ASSERT_FAILS(qn_vision_encode(&got, p.vision, &image, &soon, &err), QN_STOPPED, "stop");
            assert_true(atomic_load(&ticks) <= ends[k] + 8); // one more of each thread
        }
        qn_stop_flag_set(flag);
        qn_until stopped = {.also = flag};
        ASSERT_FAILS(qn_vision_encode(&got, p.vision, &image, &stopped, &err), QN_STOPPED, "stop");
        qn_stop_flag_clear(flag);
        qn_vision_rows_deinit(&want);
        close_pair(&p);
    }
    qn_stop_flag_destroy(flag);
    qn_image_deinit(&image);
}

static void test_images_that_do_not_fit_in_memory_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_image image = make_image();
    pair p = open_pair(GGUF_PAIR, NULL);
    qn_vision_rows rows;
    told_memory = 100000;
    const qn_status status = qn_vision_encode(&rows, p.vision, &image, NULL, &err);
    told_memory = 0;
    assert_int_equal(status, QN_MEMORY);
    assert_non_null(strstr(err.message, "an image of 14 x 10 patches needs"));
    assert_non_null(strstr(err.message, " MiB while it is encoded, 0 MiB of memory are free"));
    ASSERT_OK(qn_vision_encode(&rows, p.vision, &image, NULL, &err));
    qn_vision_rows_deinit(&rows);
    close_pair(&p);
    qn_image_deinit(&image);
}

static void test_devices_and_threads_give_equal_bits(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int threads;
    } cases[] = {{NULL, 1}, {NULL, 3}, {"cpu:portable", 2}, {"ref", 1}};
    qn_err err;
    qn_image image = make_image();
    qn_vision_rows first = {0}, exact;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pair p = open_pair(GGUF_PAIR, &QN_INIT(qn_engine_opts, .device = cases[i].device,
                                               .n_threads = cases[i].threads));
        qn_vision_rows rows;
        ASSERT_OK(qn_vision_encode(&rows, p.vision, &image, NULL, &err));
        assert_int_equal(rows.rows * rows.columns, 35);
        if (i == 0) {
            first = rows;
        } else {
            assert_same_rows(&rows, &first);
            qn_vision_rows_deinit(&rows);
        }
        close_pair(&p);
    }
    pair p = open_pair(GGUF_PAIR, &QN_INIT(qn_engine_opts, .reference = true));
    ASSERT_OK(qn_vision_encode(&exact, p.vision, &image, NULL, &err));
    assert_true(relative_error(first.data, exact.data, 35 * exact.width) < 1e-5);
    close_pair(&p);
    qn_vision_rows_deinit(&exact);
    qn_vision_rows_deinit(&first);
    qn_image_deinit(&image);
}

static void test_positions_are_the_references(void **state) {
    (void)state;
    qn_err err;
    golden g = golden_open(MODEL, "golden.safetensors");
    const qn_tensor *t = qn_source_find_tensor(g.source, "position_ids"); // (3, 25), I64
    int64_t want[3 * 25];
    int32_t got[25 * 4], next;
    assert_non_null(t);
    assert_int_equal(t->bytes, sizeof want);
    ASSERT_OK(qn_source_read(g.source, t, 0, want, sizeof want, &err));
    const qn_image_span span = {.first = 4, .rows = 3, .columns = 5}; // ids 4 ... 18 are the image
    ASSERT_OK(qn_image_positions(got, &next, 0, 25, &span, 1, &err));
    for (int i = 0; i < 25; i++) {
        for (int k = 0; k < 3; k++) assert_int_equal(got[i * 4 + k], want[k * 25 + i]);
    }
    assert_int_equal(next, want[24] + 1);
    golden_close(&g);
}

// --- towers that do not fit ----------------------------------------------------------------------

static qn_status open_tower(qn_vision **out, const qn_engine *engine, const char *path,
                            qn_err *err) {
    return qn_vision_open(out, engine, &(qn_vision_opts){.path = path}, err);
}

static void test_towers_that_do_not_fit_are_refused(void **state) {
    (void)state;
    qn_err err;
    qn_engine *engine, *other;
    qn_vision *vision = NULL;
    ASSERT_OK(qn_engine_open(&engine, MODEL "/qwen35_vl-bf16.gguf", NULL, &err));
    ASSERT_FAILS(
        open_tower(&vision, engine, NULL, &err), QN_STATE,
        "qwen35_vl-bf16.gguf has no vision tower: images need its mmproj file (--mmproj FILE)");
    ASSERT_FAILS(open_tower(&vision, engine, MODEL "/qwen35_vl-bf16.gguf", &err), QN_FORMAT,
                 "is not a vision tower: general.architecture is 'qwen35', want 'clip'");
    ASSERT_FAILS(open_tower(&vision, engine, TEST_DATA "/mini/qwen3", &err), QN_FORMAT,
                 "qwen3 has no vision tower");
    ASSERT_FAILS(open_tower(&vision, engine, MODEL "/image.png", &err), QN_FORMAT, "image.png");
    ASSERT_FAILS(open_tower(&vision, engine, MODEL "/no.gguf", &err), QN_IO, "no.gguf");
    qn_engine_close(engine);
    ASSERT_OK(qn_engine_open(&other, MODELS "/quern-hybrid-Q8_0.gguf", NULL, &err));
    ASSERT_FAILS(open_tower(&vision, other, MODEL "/mmproj-bf16.gguf", &err), QN_FORMAT,
                 "is the tower of another model: its rows have width 64");
    qn_engine_close(other);
    const qn_engine_opts none = QN_INIT(qn_engine_opts, .no_weights = true);
    ASSERT_OK(qn_engine_open(&engine, MODEL "/qwen35_vl-bf16.gguf", &none, &err));
    ASSERT_FAILS(open_tower(&vision, engine, MODEL "/mmproj-bf16.gguf", &err), QN_STATE,
                 "without weights");
    qn_engine_close(engine);
    assert_null(vision);
}

// A smaller limit than the model's own makes images smaller, never smaller than one row.
static void test_pixels_can_be_limited(void **state) {
    (void)state;
    static const int64_t cases[][3] = {{0, 3, 5},     {1 << 30, 3, 5}, {15360, 3, 5},
                                       {15359, 3, 4}, {4096, 1, 2},    {1, 1, 1}};
    qn_err err;
    qn_engine *engine;
    ASSERT_OK(qn_engine_open(&engine, MODEL, NULL, &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_vision *vision;
        int64_t rows, columns;
        ASSERT_OK(
            qn_vision_open(&vision, engine, &(qn_vision_opts){.max_pixels = cases[i][0]}, &err));
        ASSERT_OK(qn_vision_measure(&rows, &columns, vision, 150, 100, &err));
        assert_int_equal(rows, cases[i][1]);
        assert_int_equal(columns, cases[i][2]);
        qn_vision_close(vision);
    }
    qn_engine_close(engine);
}

static void test_patches_that_do_not_fit_are_refused(void **state) {
    (void)state;
    static const int64_t cases[][3] = {{6, 10, 767}, {5, 10, 768}, {6, 9, 768},
                                       {0, 10, 768}, {6, -2, 768}, {1 << 20, 1 << 20, 768}};
    qn_err err;
    qn_vision_rows rows = {.width = -7};
    pair p = open_pair(GGUF_PAIR, NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const qn_patches patches = {
            .rows = cases[i][0], .columns = cases[i][1], .width = cases[i][2]};
        ASSERT_FAILS(qn_vision_encode_patches(&rows, p.vision, &patches, NULL, &err), QN_ARGUMENT,
                     "the tower merges 2 x 2 patches of 768");
    }
    assert_int_equal(rows.width, -7);
    close_pair(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pixels_of_a_png_are_the_references),
        cmocka_unit_test(test_pixels_of_a_jpeg_are_those_of_the_png),
        cmocka_unit_test(test_rows_are_the_references),
        cmocka_unit_test(test_files_become_rows),
        cmocka_unit_test(test_deadlines_and_flags_end_it),
        cmocka_unit_test(test_images_that_do_not_fit_in_memory_are_refused),
        cmocka_unit_test(test_devices_and_threads_give_equal_bits),
        cmocka_unit_test(test_positions_are_the_references),
        cmocka_unit_test(test_towers_that_do_not_fit_are_refused),
        cmocka_unit_test(test_pixels_can_be_limited),
        cmocka_unit_test(test_patches_that_do_not_fit_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

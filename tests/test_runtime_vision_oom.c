// Every allocation of opening a tower and encoding an image fails once: short memory is an error,
// and nothing is lost.
#include "alloc_rig.h"
#include "testing.h"

#include "core/mem.h"
#include "runtime/vision.h"

#include <jansson.h>

char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t n);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t n);

char *__wrap_strdup(const char *text) { return must_fail() ? NULL : counted(__real_strdup(text)); }

char *__wrap_strndup(const char *text, size_t n) {
    return must_fail() ? NULL : counted(__real_strndup(text, n));
}

#define MODEL TEST_DATA "/mini/qwen35_vl"

static qn_status open_and_encode(const qn_engine *engine, const char *path, const qn_image *image,
                                 qn_err *err) {
    qn_vision *vision;
    qn_vision_rows rows;
    QN_TRY(qn_vision_open(&vision, engine, &(qn_vision_opts){.path = path}, err));
    const qn_status status = qn_vision_encode(&rows, vision, image, NULL, err);
    if (!status) qn_vision_rows_deinit(&rows);
    qn_vision_close(vision);
    return status;
}

static void assert_short_memory_is_an_error(const char *path, bool is_reference) {
    qn_err err;
    qn_engine *engine;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .reference = is_reference);
    qn_image image = {.width = 64, .height = 64, .rgb = qn_alloc(64 * 64, 3)};
    ASSERT_OK(qn_engine_open(&engine, MODEL, &opts, &err));
    ASSERT_OK(open_and_encode(engine, path, &image, &err));
    const long living = atomic_load(&n_living);
    long n = 0;
    for (bool is_done = false; !is_done; n++) {
        atomic_store(&countdown, n);
        const qn_status status = open_and_encode(engine, path, &image, &err);
        is_done = atomic_load(&countdown) >= 0;
        atomic_store(&countdown, -1);
        if (status != (is_done ? QN_OK : QN_MEMORY))
            fail_msg("allocation %ld: %s", n, status ? err.message : "no error");
        if (atomic_load(&n_living) != living)
            fail_msg("allocation %ld failed: %ld blocks more than before (%s)", n,
                     atomic_load(&n_living) - living, err.message);
    }
    assert_true(n > 50);
    qn_image_deinit(&image);
    qn_engine_close(engine);
}

static void test_short_memory_is_an_error(void **state) {
    (void)state;
    assert_short_memory_is_an_error(MODEL "/mmproj-bf16.gguf", false);
    assert_short_memory_is_an_error(NULL, false);
    assert_short_memory_is_an_error(MODEL "/mmproj-bf16.gguf", true);
}

int main(void) {
    json_set_alloc_funcs(json_alloc, free); // `free` is the wrapped one here
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_memory_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

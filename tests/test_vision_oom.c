// Every allocation of decoding and cutting an image fails once: short memory is an error, and
// nothing is lost. (libjpeg and libwebp take what they need by themselves.)
#include "alloc_rig.h"
#include "image_rig.h"

#include "vision/patches.h"

static qn_status decode_and_cut(const bytes *file, qn_err *err) {
    const qn_patch_rules rules = {
        .patch = 4, .merge = 2, .min_pixels = 256, .max_pixels = 4096, .deviation = {1, 1, 1}};
    qn_image image;
    qn_patches patches;
    QN_TRY(qn_image_decode(&image, file->v, file->n, NULL, err));
    const qn_status status = qn_patches_init(&patches, &image, &rules, err);
    if (!status) qn_patches_deinit(&patches);
    qn_image_deinit(&image);
    return status;
}

static void assert_short_memory_is_an_error(bytes *file) {
    qn_err err;
    long n = 0;
    ASSERT_OK(decode_and_cut(file, &err)); // what libraries keep for ever is kept now
    const long living = atomic_load(&n_living);
    for (bool is_done = false; !is_done; n++) {
        atomic_store(&countdown, n);
        const qn_status status = decode_and_cut(file, &err);
        is_done = atomic_load(&countdown) >= 0; // fewer allocations than that
        atomic_store(&countdown, -1);
        if (is_done)
            assert_int_equal(status, QN_OK);
        else
            assert_int_equal(status, QN_MEMORY);
        assert_int_equal(atomic_load(&n_living), living);
    }
    assert_true(n > 10);
    bytes_free(file);
}

static void test_short_memory_is_an_error(void **state) {
    (void)state;
    unsigned char data[16 * 16 * 4], block[32];
    for (size_t i = 0; i < sizeof data; i++) data[i] = (unsigned char)(i * 7);
    const png_form form = {13, 7, 8, PNG_COLOR_TYPE_RGBA, 1, NULL, 0, NULL};
    bytes file = png_file(&form, data, 13 * 4);
    png_add_chunk(&file, 33, "eXIf", block, (uint32_t)exif_block(block, 6, true, false));
    assert_short_memory_is_an_error(&file);
    const jpeg_form jpeg = {13, 7, 4, true, NULL, 0};
    file = jpeg_file(&jpeg, data);
    assert_short_memory_is_an_error(&file);
    file = webp_file(13, 7, 4, data);
    assert_short_memory_is_an_error(&file);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_short_memory_is_an_error)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

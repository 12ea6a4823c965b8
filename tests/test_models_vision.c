// Files of vision towers: what they must hold, and what is refused.
#include "testing.h"

#include "format_files.h"

#include "core/file.h"
#include "core/mem.h"
#include "ir/text.h"
#include "models/vision_tower.h"

#include <math.h>

#define MODEL TEST_DATA "/mini/qwen35_vl"

typedef struct tower_file {
    char *bytes;
    size_t n;
} tower_file;

static tower_file load(void) {
    qn_err err;
    tower_file f = {0};
    ASSERT_OK(qn_file_load(&f.bytes, &f.n, MODEL "/mmproj-bf16.gguf", 1 << 20, &err));
    return f;
}

// Where a name is for the first time.
static char *find(const tower_file *f, const char *name) {
    const size_t n = strlen(name);
    for (size_t i = 0; i + n <= f->n; i++) {
        if (memcmp(f->bytes + i, name, n) == 0) return f->bytes + i;
    }
    fail_msg("the file has no %s", name);
    return NULL;
}

// Writes the changed file and opens it as a tower.
static qn_status open_tower(void **state, const tower_file *f, qn_err *err) {
    const path_name path = put_file(state, "mmproj.gguf", f->bytes, f->n);
    qn_vision_tower tower = {0};
    qn_source *source = NULL;
    qn_status status = qn_source_open(&source, path.text, err);
    if (!status) status = qn_vision_tower_init(&tower, source, err);
    qn_vision_tower_deinit(&tower);
    qn_source_close(source);
    return status;
}

static void test_both_files_say_the_same(void **state) {
    (void)state;
    static const char *const paths[] = {MODEL "/mmproj-bf16.gguf", MODEL};
    qn_vision_tower towers[2];
    qn_buf texts[2];
    qn_err err;
    memset(towers, 0, sizeof towers);
    memset(texts, 0, sizeof texts);
    for (int i = 0; i < 2; i++) {
        qn_source *source;
        ASSERT_OK(qn_source_open(&source, paths[i], &err));
        ASSERT_OK(qn_vision_tower_init(&towers[i], source, &err));
        qn_graph_print(&texts[i], &towers[i].merger);
        qn_source_close(source);
    }
    const qn_vision_config *a = &towers[0].config, *b = &towers[1].config;
    assert_int_equal(a->layers, b->layers);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->side, b->side);
    assert_int_equal(a->merge, b->merge);
    assert_true(a->eps == b->eps && a->theta == b->theta);
    assert_string_equal(texts[0].data, texts[1].data);
    // Pixels are the checkpoint's own affair; the GGUF file has no keys for them.
    assert_int_equal(towers[1].rules.min_pixels, 4096);
    assert_int_equal(towers[1].rules.max_pixels, 262144);
    assert_int_equal(towers[0].rules.min_pixels, 8 * 32 * 32);
    assert_int_equal(towers[0].rules.max_pixels, 4096 * 32 * 32);
    for (int i = 0; i < 2; i++) {
        qn_vision_tower_deinit(&towers[i]);
        qn_buf_deinit(&texts[i]);
    }
}

static void test_numbers_that_cannot_be_are_refused(void **state) {
    static const struct {
        const char *key;
        uint32_t value;
        qn_status status;
        const char *part;
    } cases[] = {
        {"clip.vision.patch_size", 0, QN_FORMAT, "clip.vision.patch_size: 0, want 1 to 4096"},
        {"clip.vision.patch_size", 5000, QN_FORMAT, "clip.vision.patch_size: 5000"},
        {"clip.vision.patch_size", 15, QN_FORMAT, "image_size: 128 is not whole patches of 15"},
        {"clip.vision.patch_size", 8, QN_FORMAT, "v.patch_embd.weight: shape"},
        {"clip.vision.image_size", 0, QN_FORMAT, "clip.vision.image_size: 0"},
        {"clip.vision.image_size", 0xffffffff, QN_FORMAT, "clip.vision.image_size: 4294967295"},
        {"clip.vision.image_size", 1 << 24, QN_FORMAT, "patches a side, max 4096"},
        {"clip.vision.image_size", 64, QN_FORMAT, "v.position_embd.weight: shape (64, 64)"},
        {"clip.vision.embedding_length", 0, QN_FORMAT, "embedding_length: 0"},
        {"clip.vision.embedding_length", 1 << 19, QN_FORMAT, "shape"},
        {"clip.vision.block_count", 0, QN_FORMAT, "block_count: 0"},
        {"clip.vision.block_count", 1, QN_FORMAT, "has no place in a vision tower of"},
        {"clip.vision.block_count", 3, QN_FORMAT, "v.blk.2.ln1.weight is missing"},
        {"clip.vision.attention.head_count", 0, QN_FORMAT, "head_count: 0"},
        {"clip.vision.attention.head_count", 5, QN_FORMAT, "5 does not divide the width 64"},
        {"clip.vision.attention.head_count", 32, QN_UNSUPPORTED, "heads of 2 values"},
        {"clip.vision.feed_forward_length", 97, QN_FORMAT, "shape"},
        {"clip.vision.projection_dim", 63, QN_FORMAT, "mm.2.weight: shape (64, 256)"},
        {"clip.vision.spatial_merge_size", 0, QN_FORMAT, "spatial_merge_size: 0"},
        {"clip.vision.spatial_merge_size", 3, QN_FORMAT, "mm.0.weight: shape"},
        {"clip.vision.spatial_merge_size", 65, QN_FORMAT, "spatial_merge_size: 65"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_err err = {0};
        tower_file f = load();
        char *value = find(&f, cases[i].key) + strlen(cases[i].key) + 4; // after the type
        memcpy(value, &cases[i].value, 4);
        ASSERT_FAILS(open_tower(state, &f, &err), cases[i].status, cases[i].part);
        qn_free(f.bytes);
    }
}

static void test_other_towers_are_refused(void **state) {
    static const struct {
        const char *from, *to;
        qn_status status;
        const char *part;
    } cases[] = {
        {"qwen3vl_merger", "qwen9vl_merger", QN_UNSUPPORTED,
         "'qwen9vl_merger', supported: qwen3vl"},
        {"clip.projector_type", "clip.projector_typo", QN_FORMAT, "no key clip.projector_type"},
        {"has_vision_encoder", "has_vision_decoder", QN_FORMAT, "has no vision tower"},
        {"v.post_ln.bias", "v.post_lx.bias", QN_FORMAT, "v.post_ln.bias is missing"},
        {"v.patch_embd.weight.1", "v.patch_embd.weight.2", QN_FORMAT, "weight.1 is missing"},
        {"clip.vision.block_count", "clip.vision.block_clown", QN_FORMAT,
         "no key clip.vision.block_count"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_err err = {0};
        tower_file f = load();
        memcpy(find(&f, cases[i].from), cases[i].to, strlen(cases[i].to));
        ASSERT_FAILS(open_tower(state, &f, &err), cases[i].status, cases[i].part);
        qn_free(f.bytes);
    }
    qn_err err = {0};
    tower_file f = load(); // an array of bools: its type, theirs, their number, the bools
    find(&f, "clip.vision.is_deepstack_layers")[strlen("clip.vision.is_deepstack_layers") + 16] = 1;
    ASSERT_FAILS(open_tower(state, &f, &err), QN_UNSUPPORTED, "is_deepstack_layers: 1 layers");
    qn_free(f.bytes);
    f = load();
    const float zero = 0, bad = NAN;
    char *deviation = find(&f, "clip.vision.image_std") + strlen("clip.vision.image_std") + 16;
    memcpy(deviation + 4, &zero, 4);
    ASSERT_FAILS(open_tower(state, &f, &err), QN_FORMAT, "image_std[1] is 0, want more than 0");
    memcpy(deviation + 4, &bad, 4);
    ASSERT_FAILS(open_tower(state, &f, &err), QN_FORMAT, "image_std is not a list of 3 numbers");
    qn_free(f.bytes);
}

// Every byte of the header with one bit changed: a tower or an error, and nothing else.
static void test_any_damage_is_an_answer(void **state) {
    tower_file f = load();
    const size_t end = (size_t)(find(&f, "v.position_embd.weight") - f.bytes) + 60;
    int n_refused = 0;
    assert_true(end < 8192);
    for (size_t i = 0; i < end; i++) {
        qn_err err = {0};
        f.bytes[i] ^= (char)(1 << i % 8);
        const qn_status status = open_tower(state, &f, &err);
        n_refused += status != QN_OK;
        assert_true(status == QN_OK || err.message[0]);
        f.bytes[i] ^= (char)(1 << i % 8);
    }
    assert_true(n_refused > (int)end / 4);
    qn_free(f.bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_files_say_the_same),
        cmocka_unit_test_setup_teardown(test_numbers_that_cannot_be_are_refused, make_folder,
                                        remove_folder),
        cmocka_unit_test_setup_teardown(test_other_towers_are_refused, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(test_any_damage_is_an_answer, make_folder, remove_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Converting checkpoints: what must be refused, and that a file appears whole or not at all.
#include "testing.h"

#include "convert_rig.h"
#include "golden.h"
#include "model_writer.h"

#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

// --- what is refused -----------------------------------------------------------------------------

static void what_gguf_cannot_say_is_refused(void **state) {
    static const struct {
        const char *family, *edits;
        qn_status status;
        const char *part;
    } rows[] = {
        {"gemma2_scalar", "", QN_UNSUPPORTED, "query_pre_attn_scalar: 24"},
        {"gemma3", "set query_pre_attn_scalar 20", QN_UNSUPPORTED, "query_pre_attn_scalar: 20"},
        {"gemma2", "copy model.embed_tokens.weight lm_head.weight; set tie_word_embeddings false",
         QN_UNSUPPORTED, "tie_word_embeddings: false"},
        {"gemma2", "set attn_logit_softcapping null", QN_UNSUPPORTED, "attn_logit_softcapping: 0"},
        {"gemma3", "set attn_logit_softcapping 50.0", QN_UNSUPPORTED, "attn_logit_softcapping: 50"},
        {"gemma2",
         "set layer_types [\"full_attention\", \"full_attention\", \"sliding_attention\", "
         "\"full_attention\"]",
         QN_UNSUPPORTED, "layer_types"},
        {"gemma3",
         "set rope_parameters.sliding_attention.rope_type \"linear\"; set "
         "rope_parameters.sliding_attention.factor 2.0",
         QN_UNSUPPORTED, "rope scaling 'linear'"},
        {"qwen3_moe", "set norm_topk_prob false", QN_UNSUPPORTED, "norm_topk_prob: false"},
        {"qwen3", "set rope_parameters.rope_type \"llama3\"; set rope_parameters.factor 8.0",
         QN_UNSUPPORTED, "rope scaling 'llama3'"},
        {"qwen35_vl", "set vision_config.deepstack_visual_indexes [1]", QN_UNSUPPORTED,
         "deepstack_visual_indexes: 1"},
        {"qwen35_vl", "set vision_config.hidden_act \"silu\"", QN_UNSUPPORTED, "'silu'"},
        {"qwen35_vl", "set vision_config.num_position_embeddings 63", QN_FORMAT,
         "63 is not a square"},
        {"qwen35_vl", "set vision_config.num_heads 5", QN_FORMAT,
         "num_heads: 5 does not divide the width 64"},
        {"qwen35_vl", "set vision_config.depth 1", QN_FORMAT,
         "has no place in a vision tower of vision_config.depth 1"},
        {"qwen35_vl", "copy model.visual.merger.norm.bias model.visual.extra.bias", QN_FORMAT,
         "tensor model.visual.extra.bias has no place"},
        {"llama32", "set rope_parameters.factor 1e-60", QN_FORMAT, "factor 1e-60"},
        {"llama32", "set rope_parameters.factor 1e60", QN_FORMAT, "rope scaling factor 1e+60"},
        {"qwen35_vl", "drop model.visual.merger.norm.bias", QN_FORMAT,
         "model.visual.merger.norm.bias is missing"},
        {"qwen35_vl", "shape model.visual.patch_embed.proj.weight 64 3 1 16 16", QN_FORMAT,
         "(64, 3, 1, 16"},
        {"qwen3", "drop model.layers.1.mlp.up_proj.weight", QN_FORMAT,
         "model.layers.1.mlp.up_proj.weight is missing"},
        {"qwen3", "set model_type \"gpt9\"", QN_UNSUPPORTED, "unknown architecture 'gpt9'"},
        {"qwen3", "set vocab_size 511", QN_FORMAT, "511"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        print_message("%s: %s\n", rows[i].family, rows[i].edits);
        write_checkpoint(state, rows[i].family, rows[i].edits, 1);
        expect_refusal(state, rows[i].status, rows[i].part);
    }
}

static void pixels_are_divided_by_something(void **state) {
    static const struct {
        const char *text, *part;
    } rows[] = {
        {"{\"image_std\": [0.5, 0, 0.5]}", "image_std[1] is 0, want more than 0"},
        {"{\"image_std\": [0.5, 0.5, -1]}", "image_std[2] is -1"},
        {"{\"image_std\": [0.5, 0.5]}", "image_std is not a list of 3 numbers"},
        {"{\"image_mean\": [0.5, \"a\", 1]}", "image_mean[1] is not a number"},
    };
    write_checkpoint(state, "qwen35_vl", "", 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        put_text(state, "preprocessor_config.json", rows[i].text);
        expect_refusal(state, QN_FORMAT, rows[i].part);
    }
}

static void numbers_that_do_not_fit_are_refused(void **state) {
    static const char up[] = "model.layers.0.mlp.up_proj.weight";
    static const struct {
        const char *value, *type;
        qn_status status; // QN_OK: it fits
        const char *part;
    } rows[] = {
        {"1e6", "F16", QN_LIMIT, "row 0 has values up to 1e+06, which do not fit in F16"},
        {"8e4", "F16", QN_LIMIT, "row 0 has values up to 80000, which do not fit in F16"},
        {"65520", "F16", QN_LIMIT, "row 0 has values up to 65520"},
        {"65504", "F16", QN_OK, NULL},
        {"1e9", "Q8_0", QN_LIMIT, "row 0 has values up to 1e+09, which do not fit in Q8_0"},
        {"9e6", "Q8_0", QN_LIMIT, "row 0 has values up to 9e+06"}, // scales end at 8.3e6
        {"8e6", "Q8_0", QN_OK, NULL},
        {"1e9", "BF16", QN_OK, NULL},
        {"3.4e38", "BF16", QN_LIMIT, "which do not fit in BF16"}, // would be rounded to infinity
        {"3.4e38", NULL, QN_OK, NULL},
        {"inf", "Q8_0", QN_FORMAT, "value inf at row 0, column 0"},
        {"nan", "Q8_0", QN_FORMAT, "value nan at row 0, column 0"},
        {"nan", "F16", QN_FORMAT, "value nan at row 0, column 0"},
        {"-inf", NULL, QN_FORMAT, "value -inf at row 0, column 0"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        char edits[256];
        const path_name out = in_folder(state, "out.gguf");
        const qn_convert_opts opts = QN_INIT(qn_convert_opts, .type = rows[i].type);
        snprintf(edits, sizeof edits, "type %s F32; fill %s %s", up, up, rows[i].value);
        print_message("%s: %s\n", rows[i].type ? rows[i].type : "as it is", rows[i].value);
        write_checkpoint(state, "qwen3", edits, 1);
        if (rows[i].status) {
            ASSERT_FAILS(qn_convert(*state, out.text, &opts, &err), rows[i].status, rows[i].part);
            assert_true(starts_with(err.message, "blk.0.ffn_up.weight: "));
        } else {
            ASSERT_OK(qn_convert(*state, out.text, &opts, &err));
        }
    }
}

// The one broken number among good ones, in a matrix and in a vector that are copied as they are.
static void the_broken_number_is_named(void **state) {
    static const struct {
        const char *tensor, *want;
        int64_t at;
    } rows[] = {{"model.layers.1.mlp.up_proj.weight",
                 "blk.1.ffn_up.weight: value nan at row 2, column 3", 2 * 64 + 3},
                {"model.norm.weight", "output_norm.weight: value nan at row 0, column 5", 5}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err = {0};
        model_file *m = model_load(mini("qwen3").text);
        model_edit(m, "type *weight F32");
        const float broken = NAN;
        memcpy(model_find(m, rows[i].tensor)->data + rows[i].at * 4, &broken, sizeof broken);
        model_write_checkpoint(m, *state, 1);
        model_free(m);
        copy_companions(state, "qwen3");
        ASSERT_FAILS(qn_convert(*state, in_folder(state, "out.gguf").text, NULL, &err), QN_FORMAT,
                     rows[i].want);
    }
}

// --- files ---------------------------------------------------------------------------------------

static void the_wrong_places_are_refused(void **state) {
    qn_err err = {0};
    write_checkpoint(state, "qwen3", "", 1);
    const char *folder = *state;
    const int n_files = count_files(state);
    const path_name own = in_folder(state, "model.safetensors");
    struct stat before, after;
    assert_int_equal(stat(own.text, &before), 0);
    ASSERT_FAILS(qn_convert(folder, own.text, NULL, &err), QN_ARGUMENT, "is not a GGUF file");
    ASSERT_FAILS(qn_convert(own.text, own.text, NULL, &err), QN_ARGUMENT, "is not a GGUF file");
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "config.json").text, NULL, &err), QN_ARGUMENT,
                 "is not a GGUF file");
    assert_int_equal(stat(own.text, &after), 0);
    assert_int_equal(before.st_ino, after.st_ino);
    assert_int_equal(before.st_size, after.st_size);
    ASSERT_FAILS(qn_convert(folder, folder, NULL, &err), QN_ARGUMENT, "is a folder");
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "nowhere/out.gguf").text, NULL, &err), QN_IO,
                 "/nowhere/out.gguf");
    ASSERT_FAILS(qn_convert(fixture("qwen3").text, in_folder(state, "a").text, NULL, &err),
                 QN_ARGUMENT, "is GGUF already");
    ASSERT_FAILS(qn_convert(folder, NULL, NULL, &err), QN_ARGUMENT, "NULL");
    const qn_convert_opts q4 = QN_INIT(qn_convert_opts, .type = "Q4_K_M");
    ASSERT_FAILS(qn_convert(folder, in_folder(state, "a").text, &q4, &err), QN_ARGUMENT,
                 "'Q4_K_M'");
    assert_int_equal(count_files(state), n_files);
}

typedef struct stop_at {
    int64_t at, last, total;
} stop_at;

static bool stop(void *arg, int64_t done, int64_t total) {
    stop_at *s = arg;
    assert_true(done >= s->last && done <= total);
    s->last = done;
    s->total = total;
    return done < s->at;
}

static void put_old(void *const *state) {
    put_text(state, "out.gguf", "GGUF, an older one");
    put_text(state, "mmproj-out.gguf", "GGUF, an older one");
}

static void assert_old(void *const *state, const char *name) {
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_file_load(&text, &size, in_folder(state, name).text, 1 << 24, &err));
    assert_string_equal(text, "GGUF, an older one");
    qn_free(text);
}

static void a_stopped_conversion_leaves_the_old_files(void **state) {
    qn_err err = {0};
    const path_name out = in_folder(state, "out.gguf");
    stop_at s = {.at = INT64_MAX};
    const qn_convert_opts opts = QN_INIT(qn_convert_opts, .progress = stop, .progress_arg = &s);
    ASSERT_OK(qn_convert(mini("qwen35_vl").text, out.text, &opts, &err));
    assert_int_equal(s.last, s.total);
    const int64_t total = s.total;
    for (int64_t at = 1; at <= total; at += total / 7) {
        put_old(state);
        s = (stop_at){.at = at};
        ASSERT_FAILS(qn_convert(mini("qwen35_vl").text, out.text, &opts, &err), QN_STOPPED,
                     "stopped at");
        assert_old(state, "out.gguf");
        assert_old(state, "mmproj-out.gguf");
        assert_int_equal(count_files(state), 2);
    }
}

// A disk that is full: the limit on the size of files stands for it.
static void a_failed_write_leaves_the_old_files(void **state) {
    qn_err err = {0};
    struct rlimit old;
    getrlimit(RLIMIT_FSIZE, &old);
    signal(SIGXFSZ, SIG_IGN);
    const path_name out = in_folder(state, "out.gguf");
    struct stat text, tower;
    // A text that is larger than its tower.
    write_checkpoint(state, "qwen35_vl",
                     "set text_config.vocab_size 4096; shape lm_head.weight 4096 64; shape "
                     "model.language_model.embed_tokens.weight 4096 64",
                     1);
    ASSERT_OK(qn_convert(*state, out.text, NULL, &err));
    assert_int_equal(stat(out.text, &text), 0);
    assert_int_equal(stat(in_folder(state, "mmproj-out.gguf").text, &tower), 0);
    assert_true(tower.st_size < text.st_size); // the last limit hits only one of the two
    const int n_files = count_files(state);
    const rlim_t limits[] = {4096, (rlim_t)tower.st_size - 1, (rlim_t)tower.st_size,
                             (rlim_t)text.st_size - 1};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        put_old(state);
        const struct rlimit limit = {limits[i], old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &limit);
        const qn_status status = qn_convert(*state, out.text, NULL, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        assert_int_equal(status, QN_IO);
        assert_old(state, "out.gguf");
        assert_old(state, "mmproj-out.gguf");
        assert_int_equal(count_files(state), n_files);
    }
    signal(SIGXFSZ, SIG_DFL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(what_gguf_cannot_say_is_refused),
        FOLDER_TEST(pixels_are_divided_by_something),
        FOLDER_TEST(the_wrong_places_are_refused),
        FOLDER_TEST(a_stopped_conversion_leaves_the_old_files),
        FOLDER_TEST(a_failed_write_leaves_the_old_files),
        FOLDER_TEST(numbers_that_do_not_fit_are_refused),
        FOLDER_TEST(the_broken_number_is_named),
    };
    return cmocka_run_group_tests_name("refused conversions", tests, NULL, NULL);
}

// Conversions for tests: the small checkpoints and the GGUF files that llama.cpp's converter made
// of them, checkpoints that are changed before they are converted, and the logits of two files.
// Programs that include this include golden.h and model_writer.h as well, whose sources they need.
#ifndef QN_TESTS_CONVERT_RIG_H
#define QN_TESTS_CONVERT_RIG_H

#include "testing.h"

#include "format_files.h"
#include "golden.h"
#include "model_writer.h"

#include "core/file.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>

static const char *const families[] = {"llama32",    "llama_untied", "qwen3",  "qwen3_moe",
                                       "gemma",      "gemma2",       "gemma3", "qwen35",
                                       "qwen35_moe", "qwen35_vl"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static inline path_name mini(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s", TEST_DATA, family);
    return path;
}

static inline path_name fixture(const char *family) {
    path_name path;
    snprintf(path.text, sizeof path.text, "%s/mini/%s/%s-bf16.gguf", TEST_DATA, family, family);
    return path;
}

static inline bool starts_with(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

static inline int count_files(void *const *state) {
    DIR *dir = opendir(*state);
    int n = 0;
    for (struct dirent *e; (e = readdir(dir));) n++;
    closedir(dir);
    return n - 2; // . and .., but hidden files count
}

// A line of the log that must not come.
static inline void refuse_warnings(void *arg, qn_log_level level, const char *message) {
    (void)arg;
    if (level <= QN_LOG_WARNING) fail_msg("%s", message);
}

static inline void convert(const char *from, const char *to, const char *type) {
    qn_err err = {0};
    const qn_convert_opts opts = QN_INIT(qn_convert_opts, .type = type, .log = refuse_warnings);
    if (qn_convert(from, to, &opts, &err)) fail_msg("%s: %s", from, err.message);
}

static inline void *read_tensor(const qn_source *source, const qn_tensor *t) {
    qn_err err;
    void *bytes = malloc((size_t)t->bytes);
    ASSERT_OK(qn_source_read(source, t, 0, bytes, (size_t)t->bytes, &err));
    return bytes;
}

static inline qn_key_info find_info(const qn_source *source, const char *name) {
    qn_err err;
    qn_key_info info = QN_INIT(qn_key_info);
    for (size_t i = 0; i < qn_source_n_keys(source) && !info.name; i++) {
        if (!qn_str_is(qn_source_key(source, i)->name, name)) continue;
        ASSERT_OK(qn_source_key_info(&info, source, i, SIZE_MAX, &err));
    }
    return info;
}

static inline qn_engine *open_engine(const char *path) {
    qn_err err;
    qn_engine *engine = NULL;
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .n_threads = 1, .log = refuse_warnings);
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    return engine;
}

// The relative error of one file's logits against another's; exactly 0 when they are the same.
static inline double logits_differ(const char *got_path, const char *want_path) {
    static const int32_t ids[] = {1, 17, 300, 44, 5, 6, 7, 8, 260, 99, 2, 31};
    const qn_logits_opts opts = QN_INIT(qn_logits_opts, .all_rows = true);
    qn_err err;
    qn_logits got = QN_INIT(qn_logits), want = QN_INIT(qn_logits);
    qn_engine *a = open_engine(got_path), *b = open_engine(want_path);
    ASSERT_OK(qn_engine_logits(&got, a, ids, sizeof ids / sizeof *ids, &opts, &err));
    ASSERT_OK(qn_engine_logits(&want, b, ids, sizeof ids / sizeof *ids, &opts, &err));
    const int64_t n = want.n_rows * want.n_vocab;
    assert_int_equal(got.n_rows * got.n_vocab, n);
    const double error = relative_error(got.logits, want.logits, n);
    qn_logits_deinit(&got);
    qn_logits_deinit(&want);
    qn_engine_close(a);
    qn_engine_close(b);
    return error;
}

// The tokenizer files of a fixture, beside a checkpoint that was written again.
static inline void copy_companions(void *const *state, const char *family) {
    static const char *const names[] = {"tokenizer.json",        "tokenizer.model",
                                        "tokenizer_config.json", "generation_config.json",
                                        "chat_template.jinja",   "preprocessor_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        qn_err err;
        char *bytes, from[1024];
        size_t size;
        snprintf(from, sizeof from, "%s/%s", mini(family).text, names[i]);
        if (!qn_path_is_file(from)) continue;
        ASSERT_OK(qn_file_load(&bytes, &size, from, 1 << 24, &err));
        put_file(state, names[i], bytes, size);
        qn_free(bytes);
    }
}

// The test's folder becomes this checkpoint, changed, in `n` shards.
static inline void write_checkpoint(void *const *state, const char *family, const char *edits,
                                    int n) {
    model_file *m = model_load(mini(family).text);
    model_edit(m, edits);
    model_write_checkpoint(m, *state, n);
    model_free(m);
    copy_companions(state, family);
}

static inline void expect_refusal(void *const *state, qn_status want, const char *part) {
    qn_err err = {0};
    const int n_files = count_files(state);
    ASSERT_FAILS(qn_convert(*state, in_folder(state, "out.gguf").text, NULL, &err), want, part);
    assert_int_equal(count_files(state), n_files);
}

#endif

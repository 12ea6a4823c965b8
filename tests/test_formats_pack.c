// Packing against the files of another quantiser: tensor by tensor, from the same source weights.
#include "testing.h"

#include "formats/source.h"
#include "quern.h"

#include <math.h>
#include <stdlib.h>

#define FOLDER TEST_DATA "/k256/qwen3/qwen3-"

typedef struct errors {
    double ours, theirs;
    int64_t n_blocks, n_same;
} errors;

typedef struct rows {
    float *values; // (n)
    int64_t n;
} rows;

static rows unpack_tensor(const qn_source *source, const qn_tensor *tensor) {
    qn_err err;
    rows to = {.n = 1};
    for (int i = 0; i < tensor->n_dims; i++) to.n *= tensor->dims[i];
    uint8_t *bytes = malloc((size_t)tensor->bytes);
    to.values = malloc((size_t)to.n * sizeof(float));
    assert_true(bytes && to.values);
    ASSERT_OK(qn_source_read(source, tensor, 0, bytes, (size_t)tensor->bytes, &err));
    qn_type_get(tensor->type)->unpack(to.values, bytes, to.n);
    free(bytes);
    return to;
}

static double square_error(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) {
        const double off = (double)x[i] - (double)y[i];
        sum += off * off;
    }
    return sum;
}

static void add_tensor(errors *to, const qn_source *source, const qn_tensor *original,
                       const qn_source *packed, const qn_tensor *tensor) {
    qn_err err;
    const qn_type_info *info = qn_type_get(tensor->type);
    const rows want = unpack_tensor(source, original);
    const rows theirs = unpack_tensor(packed, tensor);
    assert_int_equal(want.n, theirs.n);
    to->theirs += square_error(want.values, theirs.values, want.n);
    uint8_t *ours = malloc((size_t)tensor->bytes), *bytes = malloc((size_t)tensor->bytes);
    assert_true(ours && bytes);
    info->pack(ours, want.values, want.n, NULL);
    info->unpack(theirs.values, ours, want.n);
    to->ours += square_error(want.values, theirs.values, want.n);
    ASSERT_OK(qn_source_read(packed, tensor, 0, bytes, (size_t)tensor->bytes, &err));
    for (int64_t i = 0; i < tensor->bytes; i += info->bytes, to->n_blocks++)
        to->n_same += memcmp(ours + i, bytes + i, (size_t)info->bytes) == 0;
    free(ours);
    free(bytes);
    free(want.values);
    free(theirs.values);
}

// For each type that occurs in a file: our error over all its tensors is no larger than theirs.
static void the_error_is_below_the_usual_one(void **state) {
    (void)state;
    static const struct {
        const char *file;
        qn_type type; // that must occur in it
    } files[] = {
        {FOLDER "Q2_K.gguf", QN_TYPE_Q2_K},     {FOLDER "Q3_K_M.gguf", QN_TYPE_Q3_K},
        {FOLDER "Q4_0.gguf", QN_TYPE_Q4_0},     {FOLDER "Q4_K_M.gguf", QN_TYPE_Q4_K},
        {FOLDER "Q5_K_M.gguf", QN_TYPE_Q5_K},   {FOLDER "Q6_K.gguf", QN_TYPE_Q6_K},
        {FOLDER "IQ4_XS.gguf", QN_TYPE_IQ4_XS},
    };
    qn_err err;
    qn_source *source, *packed;
    ASSERT_OK(qn_source_open(&source, FOLDER "bf16.gguf", &err));
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        static errors by_type[QN_TYPE_COUNT];
        memset(by_type, 0, sizeof by_type);
        ASSERT_OK(qn_source_open(&packed, files[f].file, &err));
        for (size_t i = 0; i < qn_source_n_tensors(packed); i++) {
            const qn_tensor *tensor = qn_source_tensor(packed, i);
            const qn_tensor *original = qn_source_find_tensor(source, tensor->name.data);
            assert_non_null(original);
            if (tensor->type == original->type) continue;
            add_tensor(&by_type[tensor->type], source, original, packed, tensor);
        }
        qn_source_close(packed);
        assert_true(by_type[files[f].type].n_blocks > 1000);
        for (int t = 0; t < QN_TYPE_COUNT; t++) {
            const errors *e = &by_type[t];
            if (!e->n_blocks) continue;
            const double ratio = sqrt(e->ours / e->theirs);
            print_message("%s: %s %.4f, %lld of %lld blocks the same\n",
                          strrchr(files[f].file, '/') + 1, qn_type_get((qn_type)t)->name, ratio,
                          (long long)e->n_same, (long long)e->n_blocks);
            assert_true(e->ours > 0 && ratio <= 1);
        }
    }
    qn_source_close(source);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_error_is_below_the_usual_one),
    };
    return cmocka_run_group_tests_name("formats pack", tests, NULL, NULL);
}

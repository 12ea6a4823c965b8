// Packed weights: every bit comes back, nothing is larger than in the file, nonsense is refused.
#include "testing.h"

#include "backends/cpu/pack.h"
#include "core/mem.h"

#include <stdio.h>

static const qn_type types[] = {
    QN_TYPE_F32,  QN_TYPE_F16,    QN_TYPE_BF16,   QN_TYPE_Q4_0,  QN_TYPE_Q4_1, QN_TYPE_Q5_0,
    QN_TYPE_Q5_1, QN_TYPE_Q8_0,   QN_TYPE_Q2_K,   QN_TYPE_Q3_K,  QN_TYPE_Q4_K, QN_TYPE_Q5_K,
    QN_TYPE_Q6_K, QN_TYPE_IQ4_NL, QN_TYPE_IQ4_XS, QN_TYPE_MXFP4,
};
enum { N_TYPES = sizeof types / sizeof *types };

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

typedef struct shape {
    int64_t n_matrices, n_out, blocks; // n_in = blocks of the type
} shape;

static const shape shapes[] = {{1, 16, 1}, {1, 1, 1},  {1, 17, 3},
                               {2, 5, 9},  {3, 33, 2}, {1, 48, 8}};

typedef struct weight {
    qn_packed packed;
    uint8_t *rows, *bytes; // as in a file; packed
    int64_t n_rows, row_bytes;
} weight;

// Random bytes: every bit pattern of a block is allowed, NaN scales too.
static weight make_weight(qn_type type, const shape *s, uint64_t seed) {
    const qn_type_info *info = qn_type_get(type);
    weight w = {.n_rows = s->n_matrices * s->n_out, .row_bytes = s->blocks * info->bytes};
    qn_err err;
    ASSERT_OK(
        qn_packed_init(&w.packed, type, s->n_matrices, s->n_out, s->blocks * info->block, &err));
    w.rows = qn_alloc((size_t)(w.n_rows * w.row_bytes), 1);
    w.bytes = qn_alloc((size_t)qn_packed_bytes(&w.packed), 1);
    assert_non_null(w.rows);
    assert_non_null(w.bytes);
    for (int64_t i = 0; i < w.n_rows * w.row_bytes; i++) w.rows[i] = (uint8_t)next_random(&seed);
    memset(w.bytes, 0xa5, (size_t)qn_packed_bytes(&w.packed));
    for (int64_t t = qn_packed_tiles(&w.packed) - 1; t >= 0; t--)
        qn_pack_tile(w.bytes, &w.packed, w.rows, t);
    w.packed.data = w.bytes;
    return w;
}

static void free_weight(weight *w) {
    qn_free(w->rows);
    qn_free(w->bytes);
}

static void every_row_comes_back(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_get(types[t]);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            weight w = make_weight(types[t], &shapes[s], 100 * (uint64_t)t + s);
            const int64_t n_in = w.packed.n_in;
            float *want = qn_alloc((size_t)n_in, sizeof *want);
            float *got = qn_alloc((size_t)n_in, sizeof *got);
            for (int64_t r = 0; r < w.n_rows; r++) {
                info->unpack(want, w.rows + r * w.row_bytes, n_in);
                qn_packed_row(got, &w.packed, r);
                if (memcmp(want, got, (size_t)n_in * sizeof *want))
                    fail_msg("%s, shape %zu, row %d differs", info->name, s, (int)r);
            }
            qn_free(want);
            qn_free(got);
            free_weight(&w);
        }
    }
}

// Packing moves bits: a set bit in a file is a set bit in the tile, and zeros fill the rest up.
static void bits_are_only_moved(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) {
        weight w = make_weight(types[t], &(shape){2, 19, 3}, (uint64_t)t);
        int64_t before = 0, after = 0;
        for (int64_t i = 0; i < w.n_rows * w.row_bytes; i++)
            before += __builtin_popcount(w.rows[i]);
        for (int64_t i = 0; i < qn_packed_bytes(&w.packed); i++)
            after += __builtin_popcount(w.bytes[i]);
        assert_int_equal(before, after);
        free_weight(&w);
    }
}

// The order inside a tile that kernels rely on: value k = 4 u + j of output o.
static void lanes_are_where_kernels_look(void **state) {
    (void)state;
    weight w = make_weight(QN_TYPE_Q8_0, &(shape){1, 16, 8}, 1);
    for (int o = 0; o < 16; o++) {
        for (int k = 0; k < 256; k++) {
            const uint8_t *run = w.bytes + k / 32 * 16 * 34;
            const int i = k % 32;
            assert_int_equal(run[32 + 64 * (i / 4) + 4 * o + i % 4],
                             w.rows[o * w.row_bytes + k / 32 * 34 + 2 + i]);
        }
    }
    free_weight(&w);
    w = make_weight(QN_TYPE_F32, &(shape){1, 16, 5}, 3);
    for (int o = 0; o < 16; o++) {
        for (int k = 0; k < 5; k++)
            assert_memory_equal(w.bytes + 4 * (16 * k + o), w.rows + 4 * (5 * o + k), 4);
    }
    free_weight(&w);
}

// As packed_types.h draws it.
static void a_block_of_q4_k_lies_as_drawn(void **state) {
    (void)state;
    enum { BYTES = 144 };
    weight w = make_weight(QN_TYPE_Q4_K, &(shape){1, 16, 1}, 3);
    for (int o = 0; o < 16; o++) {
        const uint8_t *from = w.rows + o * BYTES, *to = w.bytes, *qs = from + 16;
        assert_memory_equal(to + 2 * o, from, 2);
        assert_memory_equal(to + 32 + 2 * o, from + 2, 2);
        for (int j = 0; j < 12; j++) assert_int_equal(to[64 + 16 * j + o], from[4 + j]);
        for (int r = 0; r < 8; r++)
            for (int i = 0; i < 16; i++) {
                const int shift = r % 2 * 4, low = qs[32 * (r / 2) + i] >> shift & 15,
                          high = qs[32 * (r / 2) + i + 16] >> shift & 15;
                assert_int_equal(to[256 * (r + 1) + 64 * (i / 4) + 4 * o + i % 4], low | high << 4);
            }
    }
    free_weight(&w);
}

static void sizes_are_those_of_the_file(void **state) {
    (void)state;
    qn_packed w;
    qn_err err;
    ASSERT_OK(qn_packed_init(&w, QN_TYPE_Q4_K, 3, 33, 512, &err));
    assert_int_equal(w.tile_bytes, 16 * 2 * 144);
    assert_int_equal(w.matrix_bytes, 3 * w.tile_bytes);
    assert_int_equal(qn_packed_tiles(&w), 9);
    assert_int_equal(qn_packed_bytes(&w), 9 * w.tile_bytes);
    assert_null(w.data);
}

static void nonsense_is_refused(void **state) {
    (void)state;
    qn_packed w;
    qn_err err;
    memset(&w, 0x5a, sizeof w);
    const qn_packed before = w;
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_Q8_K, 1, 16, 256, &err), QN_UNSUPPORTED, "Q8_K");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_I32, 1, 16, 256, &err), QN_UNSUPPORTED, "I32");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_COUNT, 1, 16, 256, &err), QN_UNSUPPORTED, "layout");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_Q4_K, 1, 16, 128, &err), QN_ARGUMENT, "128");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_Q8_0, 1, 16, 33, &err), QN_ARGUMENT, "33");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_F32, 0, 16, 33, &err), QN_ARGUMENT, "0 matrices");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_F32, 1, -1, 33, &err), QN_ARGUMENT, "-1");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_F32, 1, 1, 0, &err), QN_ARGUMENT, "x 0");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_F32, 1, INT64_MAX, 1, &err), QN_ARGUMENT, "too large");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_F32, 1, 1, INT64_MAX, &err), QN_ARGUMENT, "too large");
    ASSERT_FAILS(qn_packed_init(&w, QN_TYPE_Q4_K, INT64_MAX / 2000, 16, 256, &err), QN_ARGUMENT,
                 "too large");
    assert_memory_equal(&w, &before, sizeof w);
}

static void float_and_integer_types_are_known(void **state) {
    (void)state;
    for (int t = 0; t < N_TYPES; t++) assert_true(qn_pack_supports(types[t]));
    int n = 0;
    for (int t = 0; t < QN_TYPE_COUNT; t++) n += qn_pack_supports((qn_type)t);
    assert_int_equal(n, N_TYPES);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_comes_back),
        cmocka_unit_test(bits_are_only_moved),
        cmocka_unit_test(lanes_are_where_kernels_look),
        cmocka_unit_test(a_block_of_q4_k_lies_as_drawn),
        cmocka_unit_test(sizes_are_those_of_the_file),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(float_and_integer_types_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

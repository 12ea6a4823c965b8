#include "testing.h"

#include "quant/half.h"
#include "quant/type.h"

#include <math.h>
#include <stdio.h>

// --- the table -----------------------------------------------------------------------------------

// GGUF numbers and sizes, as sums of the parts of a block.
static const struct {
    uint32_t id;
    const char *name;
    int block, bytes;
    bool is_supported;
} known[] = {
    {0, "F32", 1, 4, true},
    {1, "F16", 1, 2, true},
    {2, "Q4_0", 32, 2 + 16, true},
    {3, "Q4_1", 32, 2 + 2 + 16, true},
    {6, "Q5_0", 32, 2 + 4 + 16, true},
    {7, "Q5_1", 32, 2 + 2 + 4 + 16, true},
    {8, "Q8_0", 32, 2 + 32, true},
    {9, "Q8_1", 32, 2 + 2 + 32, false},
    {10, "Q2_K", 256, 16 + 64 + 2 + 2, true},
    {11, "Q3_K", 256, 32 + 64 + 12 + 2, true},
    {12, "Q4_K", 256, 2 + 2 + 12 + 128, true},
    {13, "Q5_K", 256, 2 + 2 + 12 + 32 + 128, true},
    {14, "Q6_K", 256, 128 + 64 + 16 + 2, true},
    {15, "Q8_K", 256, 4 + 256 + 32, true},
    {16, "IQ2_XXS", 256, 2 + 64, false},
    {17, "IQ2_XS", 256, 2 + 64 + 8, false},
    {18, "IQ3_XXS", 256, 2 + 64 + 32, false},
    {19, "IQ1_S", 256, 2 + 32 + 16, false},
    {20, "IQ4_NL", 32, 2 + 16, true},
    {21, "IQ3_S", 256, 2 + 64 + 8 + 32 + 4, false},
    {22, "IQ2_S", 256, 2 + 64 + 8 + 8, false},
    {23, "IQ4_XS", 256, 2 + 2 + 4 + 128, true},
    {24, "I8", 1, 1, false},
    {25, "I16", 1, 2, false},
    {26, "I32", 1, 4, false},
    {27, "I64", 1, 8, false},
    {28, "F64", 1, 8, false},
    {29, "IQ1_M", 256, 32 + 16 + 8, false},
    {30, "BF16", 1, 2, true},
    {34, "TQ1_0", 256, 48 + 4 + 2, false},
    {35, "TQ2_0", 256, 64 + 2, false},
    {39, "MXFP4", 32, 1 + 16, true},
    {40, "NVFP4", 64, 4 + 32, false},
    {41, "Q1_0", 128, 2 + 16, false},
    {42, "Q2_0", 64, 2 + 16, false},
};

static void gguf_numbers_and_sizes(void **state) {
    (void)state;
    size_t at = 0;
    for (uint32_t id = 0; id < 1000; id++) {
        qn_type type = QN_TYPE_COUNT;
        const bool found = qn_type_from_gguf(&type, id);
        if (at == sizeof known / sizeof *known || known[at].id != id) {
            if (found) fail_msg("id %u: %s, want none", id, qn_type_get(type)->name);
            assert_int_equal(type, QN_TYPE_COUNT); // untouched
            continue;
        }
        if (!found) fail_msg("id %u: none, want %s", id, known[at].name);
        const qn_type_info *info = qn_type_get(type);
        assert_string_equal(info->name, known[at].name);
        assert_int_equal(info->gguf_id, id);
        assert_int_equal(info->block, known[at].block);
        assert_int_equal(info->bytes, known[at].bytes);
        assert_int_equal(qn_type_is_supported(type), known[at].is_supported);
        at++;
    }
    assert_int_equal(at, sizeof known / sizeof *known);
    qn_type type;
    assert_false(qn_type_from_gguf(&type, UINT32_MAX)); // -1 marks types without a number
    assert_false(qn_type_from_gguf(&type, 0x80000000u));
    assert_false(qn_type_from_gguf(&type, 0x10000000u));
}

static void safetensors_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *dtype;
        int bits;
    } dtypes[] = {
        {"BOOL", 8},        {"U8", 8},          {"I8", 8},      {"U16", 16},    {"I16", 16},
        {"F16", 16},        {"BF16", 16},       {"U32", 32},    {"I32", 32},    {"F32", 32},
        {"U64", 64},        {"I64", 64},        {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8},
        {"F8_E5M2", 8},     {"F8_E8M0", 8},     {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
        {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
    };
    qn_type type;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (!qn_type_from_safetensors(&type, dtypes[i].dtype)) fail_msg("%s", dtypes[i].dtype);
        assert_string_equal(qn_type_get(type)->name, dtypes[i].dtype);
        int64_t bytes;
        assert_true(qn_type_bytes(&bytes, type, 24));
        assert_int_equal(bytes, 3 * dtypes[i].bits);
        assert_int_equal(qn_type_is_supported(type),
                         type == QN_TYPE_F32 || type == QN_TYPE_F16 || type == QN_TYPE_BF16);
    }
    static const char *const wrong[] = {"", "f32", "F3", "F321", "Q4_0", "Q4_K", "F8"};
    type = QN_TYPE_COUNT;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(qn_type_from_safetensors(&type, wrong[i]));
    assert_int_equal(type, QN_TYPE_COUNT);
}

static void names_are_found_in_any_case(void **state) {
    (void)state;
    qn_type type;
    for (int i = 0; i < QN_TYPE_COUNT; i++) {
        assert_true(qn_type_from_name(&type, qn_type_get((qn_type)i)->name));
        assert_int_equal(type, i);
    }
    assert_true(qn_type_from_name(&type, "q4_k"));
    assert_int_equal(type, QN_TYPE_Q4_K);
    assert_true(qn_type_from_name(&type, "iQ4_nL"));
    assert_int_equal(type, QN_TYPE_IQ4_NL);
    static const char *const wrong[] = {"", "q", "q4_", "q4_k_m", "q4-k", " f32", "f32 ", "q4_2"};
    type = QN_TYPE_COUNT;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_false(qn_type_from_name(&type, wrong[i]));
    assert_int_equal(type, QN_TYPE_COUNT);
}

static void sizes_are_checked(void **state) {
    (void)state;
    int64_t bytes = 7;
    assert_false(qn_type_bytes(&bytes, QN_TYPE_Q4_0, 33));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_Q4_0, -32));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_F32, -1));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_F32, INT64_MAX / 4 + 1));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_Q8_K, INT64_MAX / 256 * 256));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_F4, 3));
    assert_false(qn_type_bytes(&bytes, QN_TYPE_F6_E2M3, 6));
    assert_int_equal(bytes, 7); // untouched
    assert_true(qn_type_bytes(&bytes, QN_TYPE_F32, INT64_MAX / 4));
    assert_int_equal(bytes, INT64_MAX / 4 * 4);
    assert_true(
        qn_type_bytes(&bytes, QN_TYPE_Q4_0, INT64_MAX / 32 * 32)); // smaller than the values
    assert_int_equal(bytes, INT64_MAX / 32 * 18);
    assert_true(qn_type_bytes(&bytes, QN_TYPE_Q4_0, 0));
    assert_int_equal(bytes, 0);
    assert_true(qn_type_bytes(&bytes, QN_TYPE_Q6_K, 512));
    assert_int_equal(bytes, 420);
}

// docs/types.md has one row per type, with its true numbers, and no others.
static void the_page_of_types_is_true(void **state) {
    (void)state;
    FILE *file = fopen(TEST_DATA "/../../docs/types.md", "rb");
    assert_non_null(file);
    bool seen[QN_TYPE_COUNT] = {false};
    char line[1000];
    while (fgets(line, sizeof line, file)) {
        char name[32], want[200], id[16];
        qn_type type;
        if (sscanf(line, "| %31[A-Z0-9_] |", name) != 1) continue;
        if (!qn_type_from_name(&type, name)) fail_msg("no type %s", name);
        const qn_type_info *info = qn_type_get(type);
        snprintf(id, sizeof id, info->gguf_id < 0 ? "-" : "%d", info->gguf_id);
        snprintf(want, sizeof want, "| %s | %s | %d | %d | %g | %s |", info->name, id, info->block,
                 info->bytes, 8.0 * info->bytes / info->block, info->unpack ? "full" : "named");
        if (strncmp(line, want, strlen(want)) != 0) fail_msg("%swant %s", line, want);
        if (seen[type]) fail_msg("%s twice", name);
        seen[type] = true;
    }
    fclose(file);
    for (int i = 0; i < QN_TYPE_COUNT; i++)
        if (!seen[i]) fail_msg("%s is missing", qn_type_get((qn_type)i)->name);
}

// --- 16-bit floats -------------------------------------------------------------------------------

static void every_half_decodes_and_comes_back(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x10000; h++) {
        const int exponent = (int)(h >> 10 & 31), fraction = (int)(h & 1023);
        const float got = qn_half_decode((uint16_t)h);
        if (exponent == 31 && fraction) {
            const uint16_t back = qn_half_encode(got);
            if (got == got || (back & 0x7c00) != 0x7c00 || !(back & 0x3ff) || (back ^ h) & 0x8000)
                fail_msg("NaN %04x became %04x", h, back);
            continue;
        }
        double want = exponent == 31 ? (double)INFINITY
                      : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                     : ldexp(fraction, -24);
        if (h >> 15) want = -want;
        if ((double)got != want || !signbit(got) != !(h >> 15))
            fail_msg("%04x: %a, want %a", h, (double)got, want);
        if (qn_half_encode(got) != h) fail_msg("%04x became %04x", h, qn_half_encode(got));
    }
}

// The point between two neighbours goes to the even one, the floats next to it to their own side.
static void half_rounds_to_nearest_even(void **state) {
    (void)state;
    for (unsigned h = 0; h < 0x7c00; h++) {
        const float low = qn_half_decode((uint16_t)h);
        const float high = h == 0x7bff ? 65536 : qn_half_decode((uint16_t)(h + 1));
        const float tie = (low + high) / 2; // exact: a float has 13 more bits
        const unsigned even = h & 1 ? h + 1 : h;
        for (unsigned sign = 0; sign < 2; sign++) {
            const float s = sign ? -1 : 1;
            const unsigned below = qn_half_encode(s * nextafterf(tie, 0));
            const unsigned at = qn_half_encode(s * tie);
            const unsigned above = qn_half_encode(s * nextafterf(tie, INFINITY));
            if (below != (sign << 15 | h) || at != (sign << 15 | even) ||
                above != (sign << 15 | (h + 1)))
                fail_msg("around %a: %04x %04x %04x", (double)(s * tie), below, at, above);
        }
    }
}

static void half_encodes_what_it_cannot_hold(void **state) {
    (void)state;
    assert_int_equal(qn_half_encode(65519.996f), 0x7bff);
    assert_int_equal(qn_half_encode(65520), 0x7c00); // a tie, and 65504 is odd
    assert_int_equal(qn_half_encode(-1e30f), 0xfc00);
    assert_int_equal(qn_half_encode(INFINITY), 0x7c00);
    assert_int_equal(qn_half_encode(0x1p-25f), 0); // half of the smallest: a tie with zero
    assert_int_equal(qn_half_encode(nextafterf(0x1p-25f, 1)), 1);
    assert_int_equal(qn_half_encode(-0x1p-149f), 0x8000);
    assert_int_equal(qn_half_encode(-0.0f), 0x8000);
    assert_int_equal(qn_half_encode(0x1.ffcp-15f), 0x3ff + 1); // rounds up into the normal numbers
    // A NaN whose payload is only in the lower bits must not become infinite.
    assert_int_equal(qn_half_encode(qn_float_from_bits(0x7f800001)) & 0x7e00, 0x7e00);
    assert_int_equal(qn_half_encode(qn_float_from_bits(0xffc00000)), 0xfe00);
}

static void every_bf16_decodes_and_comes_back(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 0x10000; b++) {
        const float got = qn_bf16_decode((uint16_t)b);
        assert_int_equal(qn_float_to_bits(got), b << 16);
        const uint32_t back = qn_bf16_encode(got);
        if (got != got ? (back & 0xffbf) != (b & 0xffbf) || !(back & 0x40) : back != b)
            fail_msg("%04x became %04x", b, back);
    }
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t b = 0; b < 0x7f80; b++) {
        for (uint32_t sign = 0; sign < 2; sign++) {
            const uint32_t tie = sign << 31 | b << 16 | 0x8000;
            const uint32_t want = sign << 15 | b;
            if (qn_bf16_encode(qn_float_from_bits(tie - 1)) != want ||
                qn_bf16_encode(qn_float_from_bits(tie)) != want + (b & 1) ||
                qn_bf16_encode(qn_float_from_bits(tie + 1)) != want + 1)
                fail_msg("around %08x", tie);
        }
    }
    assert_int_equal(qn_bf16_encode(3.4e38f), 0x7f80); // nearer to 2^128 than to the largest bf16
    assert_int_equal(qn_bf16_encode(qn_float_from_bits(0x7f800001)), 0x7fc0); // a NaN stays one
    assert_int_equal(qn_bf16_encode(qn_float_from_bits(0xffffffff)), 0xffff);
}

static void loads_are_little_endian_at_any_address(void **state) {
    (void)state;
    const uint8_t bytes[] = {0xee, 0x01, 0xc0, 0x49, 0x40};
    assert_int_equal(qn_load_u16(bytes + 1), 0xc001);
    assert_int_equal(qn_load_u32(bytes + 1), 0x4049c001);
    assert_true(qn_load_f32(bytes + 1) == 0x1.938002p+1f);
    assert_true(qn_load_half(bytes + 2) == 11.5f); // 0x49c0
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gguf_numbers_and_sizes),
        cmocka_unit_test(safetensors_dtypes),
        cmocka_unit_test(names_are_found_in_any_case),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(the_page_of_types_is_true),
        cmocka_unit_test(every_half_decodes_and_comes_back),
        cmocka_unit_test(half_rounds_to_nearest_even),
        cmocka_unit_test(half_encodes_what_it_cannot_hold),
        cmocka_unit_test(every_bf16_decodes_and_comes_back),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(loads_are_little_endian_at_any_address),
    };
    return cmocka_run_group_tests_name("quant", tests, NULL, NULL);
}

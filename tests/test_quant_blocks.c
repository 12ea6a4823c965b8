// Blocks of every numeric type, packed here field by field from the definition of the format: each
// field is put at its bit position, while the library walks bytes. Values are computed from the
// fields, never from the bytes.
#include "testing.h"

#include "quant/type.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { MAX_VALUES = 256, MAX_BYTES = 292, N_BLOCKS = 3 };

// Scales that use all 11 bits of precision: positive, negative, subnormal.
typedef struct scale {
    uint16_t half;
    float value;
} scale;

static const scale scales[] = {
    {0x3555, 1365.0f / 4096},   // 0.333251953125
    {0xac01, -1025.0f / 16384}, // -0.06256103515625
    {0x03ff, 1023.0f / 16777216},
};

// Puts `width` bits of `value` at bit `at` of little endian storage that is zero there.
static void put(uint8_t *bytes, int at, int width, unsigned value) {
    for (int i = 0; i < width; i++)
        bytes[(at + i) / 8] |= (uint8_t)((value >> i & 1) << (at + i) % 8);
}

// A number below `limit`; the sequence depends on *seed alone.
static unsigned pick(unsigned *seed, unsigned limit) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % limit;
}

// Each maker fills the zeroed bytes of a block and the values it stands for. `i` numbers the block.
// No field is chosen so that another one has no effect: see every_bit_counts.
typedef void maker(uint8_t *bytes, float *values, unsigned *seed, int i);

static void make_f32(uint8_t *bytes, float *values, unsigned *seed, int i) {
    (void)seed;
    static const struct {
        uint32_t bits;
        float value;
    } known[N_BLOCKS] = {{0x40490fdb, 3.14159274f}, {0x80000001, -0x1p-149f}, {0xc2280000, -42}};
    put(bytes, 0, 32, known[i].bits);
    values[0] = known[i].value;
}

static void make_f16(uint8_t *bytes, float *values, unsigned *seed, int i) {
    (void)seed;
    put(bytes, 0, 16, scales[i].half);
    values[0] = scales[i].value;
}

static void make_bf16(uint8_t *bytes, float *values, unsigned *seed, int i) {
    (void)seed;
    static const struct {
        uint16_t bits;
        float value;
    } known[N_BLOCKS] = {{0x4049, 3.140625f}, {0xbf80, -1}, {0x0001, 0x1p-133f}};
    put(bytes, 0, 16, known[i].bits);
    values[0] = known[i].value;
}

// Quants of 4 bits in pairs: value k and value k + 16 share byte k, from byte `at` on.
static void put_nibble(uint8_t *bytes, int at, int k, unsigned q) {
    put(bytes, 8 * (at + k % 16) + 4 * (k / 16), 4, q);
}

static void make_q4_0(uint8_t *bytes, float *values, unsigned *seed, int i) {
    put(bytes, 0, 16, scales[i].half);
    for (int k = 0; k < 32; k++) {
        const unsigned q = pick(seed, 16);
        put_nibble(bytes, 2, k, q);
        values[k] = scales[i].value * ((float)q - 8);
    }
}

static void make_q4_1(uint8_t *bytes, float *values, unsigned *seed, int i) {
    const scale m = scales[(i + 1) % 3];
    put(bytes, 0, 16, scales[i].half);
    put(bytes, 16, 16, m.half);
    for (int k = 0; k < 32; k++) {
        const unsigned q = pick(seed, 16);
        put_nibble(bytes, 4, k, q);
        values[k] = scales[i].value * (float)q + m.value;
    }
}

static void make_q5_0(uint8_t *bytes, float *values, unsigned *seed, int i) {
    put(bytes, 0, 16, scales[i].half);
    for (int k = 0; k < 32; k++) {
        const unsigned q = pick(seed, 32);
        put(bytes, 16 + k, 1, q >> 4);
        put_nibble(bytes, 6, k, q);
        values[k] = scales[i].value * ((float)q - 16);
    }
}

static void make_q5_1(uint8_t *bytes, float *values, unsigned *seed, int i) {
    const scale m = scales[(i + 1) % 3];
    put(bytes, 0, 16, scales[i].half);
    put(bytes, 16, 16, m.half);
    for (int k = 0; k < 32; k++) {
        const unsigned q = pick(seed, 32);
        put(bytes, 32 + k, 1, q >> 4);
        put_nibble(bytes, 8, k, q);
        values[k] = scales[i].value * (float)q + m.value;
    }
}

static void make_q8_0(uint8_t *bytes, float *values, unsigned *seed, int i) {
    put(bytes, 0, 16, scales[i].half);
    for (int k = 0; k < 32; k++) {
        const int q = k == 0 ? -128 : (int)pick(seed, 256) - 128;
        put(bytes, 16 + 8 * k, 8, (unsigned)q);
        values[k] = scales[i].value * (float)q;
    }
}

static void make_q8_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    static const uint32_t bits[N_BLOCKS] = {0x3eaaaaab, 0xbdcccccd, 0x3a03126f};
    static const float d[N_BLOCKS] = {0.333333343f, -0.100000001f, 0.000500000024f};
    put(bytes, 0, 32, bits[i]);
    for (int k = 0; k < 256; k++) {
        const int q = k == 0 ? -128 : (int)pick(seed, 256) - 128;
        put(bytes, 32 + 8 * k, 8, (unsigned)q);
        values[k] = d[i] * (float)q;
    }
    for (int k = 0; k < 16; k++) put(bytes, 8 * 260 + 16 * k, 16, pick(seed, 65536));
}

static void make_q2_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    const scale d = scales[i], dmin = scales[(i + 1) % 3];
    for (int k = 0; k < 256; k++) {
        const unsigned sc = 1 + (unsigned)(k / 16) * 7 % 15;
        const unsigned min = (unsigned)(k / 16) * 5 % 16;
        const unsigned q = pick(seed, 4);
        if (k % 16 == 0) put(bytes, k / 16 * 8, 8, sc | min << 4);
        put(bytes, 8 * (16 + k / 128 * 32 + k % 32) + k % 128 / 32 * 2, 2, q);
        const float ds = d.value * (float)sc, dm = dmin.value * (float)min;
        values[k] = ds * (float)q - dm;
    }
    put(bytes, 8 * 80, 16, d.half);
    put(bytes, 8 * 82, 16, dmin.half);
}

static void make_q3_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    for (int k = 0; k < 256; k++) {
        const int g = k / 16;
        const unsigned sc = ((unsigned)g * 11 + 5) % 64; // all different, none is 32
        const unsigned q = pick(seed, 8);
        if (k % 16 == 0) {
            put(bytes, 8 * (g < 8 ? 96 + g : 96 + g - 8) + (g < 8 ? 0 : 4), 4, sc);
            put(bytes, 8 * (96 + 8 + g % 4) + g / 4 * 2, 2, sc >> 4);
        }
        put(bytes, 8 * (k % 32) + k / 128 * 4 + k % 128 / 32, 1, q >> 2);
        put(bytes, 8 * (32 + k / 128 * 32 + k % 32) + k % 128 / 32 * 2, 2, q);
        const float ds = scales[i].value * ((float)sc - 32);
        values[k] = ds * ((float)q - 4);
    }
    put(bytes, 8 * 108, 16, scales[i].half);
}

// Scale and minimum number g of Q4_K and Q5_K, at byte 4.
static void put_scale_min(uint8_t *bytes, int g, unsigned sc, unsigned min) {
    uint8_t *b = bytes + 4;
    if (g < 4) {
        put(b, 8 * g, 6, sc);
        put(b, 8 * (4 + g), 6, min);
    } else {
        put(b, 8 * (4 + g), 4, sc);
        put(b, 8 * (4 + g) + 4, 4, min);
        put(b, 8 * (g - 4) + 6, 2, sc >> 4);
        put(b, 8 * g + 6, 2, min >> 4);
    }
}

// Q4_K and Q5_K differ in the fifth bits, which lie before the others.
static void make_k(uint8_t *bytes, float *values, unsigned *seed, int i, bool fifth) {
    const scale d = scales[i], dmin = scales[(i + 1) % 3];
    put(bytes, 0, 16, d.half);
    put(bytes, 16, 16, dmin.half);
    for (int k = 0; k < 256; k++) {
        const int g = k / 32;
        const unsigned sc = ((unsigned)g * 11 + 52) % 64, min = ((unsigned)g * 23 + 63) % 64;
        const unsigned q = pick(seed, fifth ? 32 : 16);
        if (k % 32 == 0) put_scale_min(bytes, g, sc, min);
        if (fifth) put(bytes, 8 * (16 + k % 32) + g, 1, q >> 4);
        put(bytes, 8 * ((fifth ? 48 : 16) + k / 64 * 32 + k % 32) + g % 2 * 4, 4, q);
        const float ds = d.value * (float)sc, dm = dmin.value * (float)min;
        values[k] = ds * (float)q - dm;
    }
}

static void make_q4_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    make_k(bytes, values, seed, i, false);
}

static void make_q5_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    make_k(bytes, values, seed, i, true);
}

static void make_q6_k(uint8_t *bytes, float *values, unsigned *seed, int i) {
    static const int8_t sc[16] = {-128, 97, -64, 33, -17, 5,  -2,   1,
                                  -1,   3,  -9,  20, -42, 77, -111, 127};
    for (int k = 0; k < 256; k++) {
        const int half = k / 128, at = k % 128;
        const unsigned q = pick(seed, 64);
        put(bytes, 8 * (64 * half + at % 64) + at / 64 * 4, 4, q);
        put(bytes, 8 * (128 + 32 * half + at % 32) + at / 32 * 2, 2, q >> 4);
        const float ds = scales[i].value * (float)sc[k / 16];
        values[k] = ds * ((float)q - 32);
    }
    for (int g = 0; g < 16; g++) put(bytes, 8 * (192 + g), 8, (unsigned)sc[g]);
    put(bytes, 8 * 208, 16, scales[i].half);
}

static const float iq4[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                              1,    13,   25,  38,  53,  69,  89,  113};

static void make_iq4_nl(uint8_t *bytes, float *values, unsigned *seed, int i) {
    put(bytes, 0, 16, scales[i].half);
    for (int k = 0; k < 32; k++) {
        const unsigned q = pick(seed, 16);
        put_nibble(bytes, 2, k, q);
        values[k] = scales[i].value * iq4[q];
    }
}

static void make_iq4_xs(uint8_t *bytes, float *values, unsigned *seed, int i) {
    put(bytes, 0, 16, scales[i].half);
    for (int k = 0; k < 256; k++) {
        const int g = k / 32;
        const unsigned sc = ((unsigned)g * 19 + 63) % 64; // all different, none is 32
        const unsigned q = pick(seed, 16);
        if (k % 32 == 0) {
            put(bytes, 16 + 2 * g, 2, sc >> 4);
            put(bytes, 32 + 4 * g, 4, sc);
        }
        put_nibble(bytes, 8 + 16 * g, k % 32, q);
        const float ds = scales[i].value * ((float)sc - 32);
        values[k] = ds * iq4[q];
    }
}

static void make_mxfp4(uint8_t *bytes, float *values, unsigned *seed, int i) {
    static const float levels[8] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
    static const float powers[N_BLOCKS] = {0x1p-10f, 1, 0x1p3f};
    static const unsigned e[N_BLOCKS] = {117, 127, 130};
    put(bytes, 0, 8, e[i]);
    for (int k = 0; k < 32; k++) {
        const unsigned level = 1 + pick(seed, 7), negative = pick(seed, 2);
        put_nibble(bytes, 1, k, level | negative << 3);
        values[k] = powers[i] * (negative ? -levels[level] : levels[level]);
    }
}

typedef struct block_case {
    qn_type type;
    maker *make;
    int live_bytes; // how many of a block matter for the values
} block_case;

static const block_case cases[] = {
    {QN_TYPE_F32, make_f32, 4},        {QN_TYPE_F16, make_f16, 2},
    {QN_TYPE_BF16, make_bf16, 2},      {QN_TYPE_Q4_0, make_q4_0, 18},
    {QN_TYPE_Q4_1, make_q4_1, 20},     {QN_TYPE_Q5_0, make_q5_0, 22},
    {QN_TYPE_Q5_1, make_q5_1, 24},     {QN_TYPE_Q8_0, make_q8_0, 34},
    {QN_TYPE_Q2_K, make_q2_k, 84},     {QN_TYPE_Q3_K, make_q3_k, 110},
    {QN_TYPE_Q4_K, make_q4_k, 144},    {QN_TYPE_Q5_K, make_q5_k, 176},
    {QN_TYPE_Q6_K, make_q6_k, 210},    {QN_TYPE_Q8_K, make_q8_k, 260},
    {QN_TYPE_IQ4_NL, make_iq4_nl, 18}, {QN_TYPE_IQ4_XS, make_iq4_xs, 136},
    {QN_TYPE_MXFP4, make_mxfp4, 17},
};
enum { N_CASES = sizeof cases / sizeof *cases };

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static void assert_values(const qn_type_info *info, const float *got, const float *want, int n) {
    for (int i = 0; i < n; i++)
        if (bits_of(got[i]) != bits_of(want[i]))
            fail_msg("%s value %d: %.9g, want %.9g", info->name, i, (double)got[i],
                     (double)want[i]);
}

// N_BLOCKS blocks at an odd address, followed by no byte that may be read; owned: free(*memory).
static uint8_t *make_blocks(const block_case *c, float *values, uint8_t **memory) {
    const qn_type_info *info = qn_type_get(c->type);
    *memory = calloc(1, (size_t)(1 + N_BLOCKS * info->bytes));
    assert_non_null(*memory);
    unsigned seed = 20 + (unsigned)(c - cases);
    for (int i = 0; i < N_BLOCKS; i++)
        c->make(*memory + 1 + i * info->bytes, values + i * info->block, &seed, i);
    return *memory + 1;
}

static void blocks_unpack_to_their_definition(void **state) {
    const block_case *c = *state;
    const qn_type_info *info = qn_type_get(c->type);
    float want[N_BLOCKS * MAX_VALUES], got[N_BLOCKS * MAX_VALUES];
    uint8_t *memory;
    const uint8_t *blocks = make_blocks(c, want, &memory);
    info->unpack(got, blocks, N_BLOCKS * info->block);
    assert_values(info, got, want, N_BLOCKS * info->block);
    got[0] = -7;
    info->unpack(got, blocks, 0);
    assert_true(got[0] == -7);
    free(memory);
}

static void dot_sums_in_ascending_order(void **state) {
    const block_case *c = *state;
    const qn_type_info *info = qn_type_get(c->type);
    float values[N_BLOCKS * MAX_VALUES], x[N_BLOCKS * MAX_VALUES];
    uint8_t *memory;
    const uint8_t *blocks = make_blocks(c, values, &memory);
    unsigned seed = 5;
    float want = 0;
    for (int i = 0; i < N_BLOCKS * info->block; i++) {
        x[i] = (float)pick(&seed, 100000) / 77777 - 0.5f;
        want += values[i] * x[i];
    }
    const float got = info->dot(blocks, x, N_BLOCKS * info->block);
    assert_values(info, &got, &want, 1);
    const float nothing = info->dot(blocks, x, 0), zero = 0;
    assert_values(info, &nothing, &zero, 1);
    free(memory);
}

// A reader that leaves a bit out, or reads one twice instead of its neighbour, is found here.
static void every_bit_counts(void **state) {
    const block_case *c = *state;
    const qn_type_info *info = qn_type_get(c->type);
    const size_t size = (size_t)info->block * sizeof(float);
    float want[N_BLOCKS * MAX_VALUES], got[MAX_VALUES];
    uint8_t *memory;
    uint8_t *block = make_blocks(c, want, &memory);
    for (int bit = 0; bit < 8 * info->bytes; bit++) {
        block[bit / 8] ^= (uint8_t)(1 << bit % 8);
        info->unpack(got, block, info->block);
        block[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if ((memcmp(got, want, size) != 0) != (bit < 8 * c->live_bytes))
            fail_msg("%s: bit %d of byte %d", info->name, bit % 8, bit / 8);
    }
    free(memory);
}

static void every_supported_type_has_a_case(void **state) {
    (void)state;
    for (int type = 0; type < QN_TYPE_COUNT; type++) {
        bool found = false;
        for (int i = 0; i < N_CASES; i++) found |= (int)cases[i].type == type;
        if (found != qn_type_is_supported((qn_type)type))
            fail_msg("%s", qn_type_get((qn_type)type)->name);
    }
}

// Byte k of the quants holds nibble k below and nibble 15 - k above: values 0 to 15 show the levels
// in order, values 16 to 31 backwards.
#define RISING                                                                                     \
    0xf0, 0xe1, 0xd2, 0xc3, 0xb4, 0xa5, 0x96, 0x87, 0x78, 0x69, 0x5a, 0x4b, 0x3c, 0x2d, 0x1e, 0x0f

// Unpacks one block of 32 whose quants are RISING and compares the first 16 values with `want`, the
// others with `want` backwards.
static void assert_rising(qn_type type, const uint8_t *block, const float *want) {
    float got[32], both[32];
    for (int k = 0; k < 16; k++) both[k] = both[31 - k] = want[k];
    qn_type_get(type)->unpack(got, block, 32);
    assert_values(qn_type_get(type), got, both, 32);
}

static void known_blocks_of_32(void **state) {
    (void)state;
    // d = 0.5
    assert_rising(QN_TYPE_Q4_0, (uint8_t[18]){0x00, 0x38, RISING},
                  (float[16]){-4, -3.5f, -3, -2.5f, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 2.5f,
                              3, 3.5f});
    // d = 2, m = -3
    assert_rising(QN_TYPE_Q4_1, (uint8_t[20]){0x00, 0x40, 0x00, 0xc2, RISING},
                  (float[16]){-3, -1, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27});
    // d = 1; fifth bit of values 0, 2, 15 and of their mirror images 31, 29, 16
    assert_rising(QN_TYPE_Q5_0, (uint8_t[22]){0x00, 0x3c, 0x05, 0x80, 0x01, 0xa0, RISING},
                  (float[16]){0, -15, 2, -13, -12, -11, -10, -9, -8, -7, -6, -5, -4, -3, -2, 15});
    // d = -1, m = 100; the same fifth bits
    assert_rising(QN_TYPE_Q5_1,
                  (uint8_t[24]){0x00, 0xbc, 0x40, 0x56, 0x05, 0x80, 0x01, 0xa0, RISING},
                  (float[16]){84, 99, 82, 97, 96, 95, 94, 93, 92, 91, 90, 89, 88, 87, 86, 69});
    // d = 2
    assert_rising(
        QN_TYPE_IQ4_NL, (uint8_t[18]){0x00, 0x40, RISING},
        (float[16]){-254, -208, -166, -130, -98, -70, -44, -20, 2, 26, 50, 76, 106, 138, 178, 226});
    // e = 128: twice the levels; minus zero reads as zero
    assert_rising(QN_TYPE_MXFP4, (uint8_t[17]){128, RISING},
                  (float[16]){0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12});
}

static void mxfp4_exponents_reach_both_ends(void **state) {
    (void)state;
    const float inf = INFINITY;
    assert_rising(QN_TYPE_MXFP4, (uint8_t[17]){0, RISING},
                  (float[16]){0, 0x1p-128f, 0x1p-127f, 0x3p-128f, 0x1p-126f, 0x3p-127f, 0x1p-125f,
                              0x3p-126f, 0, -0x1p-128f, -0x1p-127f, -0x3p-128f, -0x1p-126f,
                              -0x3p-127f, -0x1p-125f, -0x3p-126f});
    assert_rising(QN_TYPE_MXFP4, (uint8_t[17]){1, RISING},
                  (float[16]){0, 0x1p-127f, 0x1p-126f, 0x3p-127f, 0x1p-125f, 0x3p-126f, 0x1p-124f,
                              0x3p-125f, 0, -0x1p-127f, -0x1p-126f, -0x3p-127f, -0x1p-125f,
                              -0x3p-126f, -0x1p-124f, -0x3p-125f});
    assert_rising(QN_TYPE_MXFP4, (uint8_t[17]){254, RISING},
                  (float[16]){0, 0x1p126f, 0x1p127f, 0x3p126f, inf, inf, inf, inf, 0, -0x1p126f,
                              -0x1p127f, -0x3p126f, -inf, -inf, -inf, -inf});
    assert_rising(QN_TYPE_MXFP4, (uint8_t[17]){255, RISING},
                  (float[16]){0, 0x1p127f, inf, inf, inf, inf, inf, inf, 0, -0x1p127f, -inf, -inf,
                              -inf, -inf, -inf, -inf});
}

// Hostile scales must give NaN and infinity, not a crash; any bytes are a valid block.
static void any_bytes_can_be_unpacked(void **state) {
    (void)state;
    uint8_t bytes[MAX_BYTES];
    float values[MAX_VALUES], ones[MAX_VALUES];
    for (int i = 0; i < MAX_VALUES; i++) ones[i] = 1;
    unsigned seed = 99;
    for (int round = 0; round < 300; round++) {
        for (int i = 0; i < MAX_BYTES; i++)
            bytes[i] = round == 0 ? 0 : round == 1 ? 255 : (uint8_t)pick(&seed, 256);
        for (int i = 0; i < N_CASES; i++) {
            const qn_type_info *info = qn_type_get(cases[i].type);
            info->unpack(values, bytes, info->block);
            float want = 0;
            for (int k = 0; k < info->block; k++) want += values[k];
            const float got = info->dot(bytes, ones, info->block);
            if (got == got || want == want) assert_values(info, &got, &want, 1);
        }
    }
}

int main(void) {
    static void (*const checks[])(void **) = {blocks_unpack_to_their_definition,
                                              dot_sums_in_ascending_order, every_bit_counts};
    static const char *const names[] = {"blocks_unpack_to_their_definition",
                                        "dot_sums_in_ascending_order", "every_bit_counts"};
    enum { N_CHECKS = sizeof checks / sizeof *checks };
    struct CMUnitTest tests[N_CHECKS * N_CASES + 4] = {
        cmocka_unit_test(every_supported_type_has_a_case),
        cmocka_unit_test(known_blocks_of_32),
        cmocka_unit_test(mxfp4_exponents_reach_both_ends),
        cmocka_unit_test(any_bytes_can_be_unpacked),
    };
    char labels[N_CHECKS * N_CASES][64];
    for (int i = 0; i < N_CHECKS * N_CASES; i++) {
        const block_case *c = &cases[i / N_CHECKS];
        snprintf(labels[i], sizeof labels[i], "%s %s", qn_type_get(c->type)->name,
                 names[i % N_CHECKS]);
        tests[4 + i] = (struct CMUnitTest){
            .name = labels[i], .test_func = checks[i % N_CHECKS], .initial_state = (void *)c};
    }
    return cmocka_run_group_tests_name("quant blocks", tests, NULL, NULL);
}

// The matrix unit: when it is offered, and whether the one that other tests use in its place
// (amx_trap.c) does what Intel's description says. Instructions are bytes, results by hand.
#include "amx_trap.h"
#include "testing.h"

#include "backends/cpu/amx.h"
#include "backends/cpu/cpu.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

// --- the instructions ---

enum { RAX, RCX, RSP = 4, R9 = 9, R10 };

// Three bytes of VEX with the prefix in the last, an opcode, ModRM and what follows.
#define CODE(...) ((const uint8_t[16]){0xc4, __VA_ARGS__})

typedef struct rig {
    amx_unit unit;
    uint64_t registers[16];
} rig;

static uint64_t address(const void *p) { return (uint64_t)(uintptr_t)p; }

// The fault, or NULL; the length must be this.
static const char *run(rig *r, const uint8_t *code, int length) {
    int got = 0;
    const char *fault = amx_run(&r->unit, code, r->registers, &got);
    if (!fault) assert_int_equal(got, length);
    return fault;
}

static void assert_runs(rig *r, const uint8_t *code, int length) {
    const char *fault = run(r, code, length);
    if (fault) fail_msg("%s", fault);
}

static void assert_faults(rig *r, const uint8_t *code, const char *part) {
    const char *fault = run(r, code, 0);
    if (!fault || !strstr(fault, part)) fail_msg("'%s', want '%s'", fault ? fault : "", part);
}

// Tiles 0 (2, 3 numbers), 1 (2, 8 bytes), 2 (2, 12 bytes); 3 has other sizes; the rest none.
static void shapes(uint8_t to[64]) {
    static const uint8_t row_bytes[4] = {12, 8, 12, 20}, rows[4] = {2, 2, 2, 5};
    memset(to, 0, 64);
    to[0] = 1;
    for (int t = 0; t < 4; t++) {
        to[16 + 2 * t] = row_bytes[t];
        to[48 + t] = rows[t];
    }
}

// ldtilecfg (%rax)
static const char *configure(rig *r, const uint8_t *from) {
    r->registers[RAX] = address(from);
    return run(r, CODE(0xe2, 0x78, 0x49, 0x00), 5);
}

static rig configured(void) {
    rig r = {0};
    uint8_t bytes[64];
    shapes(bytes);
    assert_null(configure(&r, bytes));
    return r;
}

static void shapes_are_loaded_and_stored(void **state) {
    (void)state;
    rig r = configured();
    uint8_t want[64], got[64];
    shapes(want);
    r.registers[RAX] = address(got);
    assert_runs(&r, CODE(0xe2, 0x79, 0x49, 0x00), 5); // sttilecfg (%rax)
    assert_memory_equal(got, want, 64);
    assert_runs(&r, CODE(0xe2, 0x78, 0x49, 0xc0), 5); // tilerelease
    assert_runs(&r, CODE(0xe2, 0x79, 0x49, 0x00), 5);
    memset(want, 0, 64);
    assert_memory_equal(got, want, 64);
    r = configured();
    assert_null(configure(&r, want)); // palette 0 releases
    assert_false(r.unit.is_configured);
}

static void wrong_shapes_are_faults(void **state) {
    (void)state;
    static const struct {
        int at, value;
        const char *fault;
    } cases[] = {{0, 2, "palette"},       {1, 1, "start row"},     {2, 1, "reserved"},
                 {15, 1, "reserved"},     {32, 1, "reserved"},     {47, 1, "reserved"},
                 {56, 1, "reserved"},     {63, 1, "reserved"},     {16, 65, "64 bytes"},
                 {17, 1, "64 bytes"},     {48, 17, "16 rows"},     {48, 0, "bytes without rows"},
                 {16, 0, "rows without"}, {55, 1, "rows without"}, {30, 4, "bytes without rows"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        rig r = {0};
        uint8_t bytes[64];
        shapes(bytes);
        bytes[cases[i].at] = (uint8_t)cases[i].value;
        const char *fault = configure(&r, bytes);
        if (!fault || !strstr(fault, cases[i].fault)) fail_msg("byte %d", cases[i].at);
        assert_false(r.unit.is_configured);
    }
}

static void operands_are_found(void **state) {
    (void)state;
    rig r = {0};
    uint8_t bytes[128 + 0x1234] = {0}, *end = bytes + 64;
    shapes(end);
    r.registers[RSP] = address(end) - 0x40;
    assert_runs(&r, CODE(0xe2, 0x78, 0x49, 0x44, 0x24, 0x40), 7); // ldtilecfg 0x40(%rsp)
    r = (rig){.registers = {[R9] = address(end) - 40, [RCX] = 10}};
    assert_runs(&r, CODE(0xc2, 0x78, 0x49, 0x04, 0x89), 6); // ldtilecfg (%r9,%rcx,4)
    static const uint8_t near[9] = {0xc4, 0xe2, 0x78, 0x49, 0x05, 0x34, 0x12};
    memcpy(bytes, near, 9); // ldtilecfg 0x1234(%rip)
    shapes(bytes + 9 + 0x1234);
    r = (rig){0};
    assert_runs(&r, bytes, 9);
    assert_true(r.unit.is_configured);
    // tileloadd 0x10(%r9,%r10,2), %tmm1: two rows of 8 bytes, 32 bytes apart
    for (int i = 0; i < 128; i++) bytes[i] = (uint8_t)i;
    r.registers[R9] = address(bytes);
    r.registers[R10] = 16;
    memset(r.unit.tiles[1], 0xff, sizeof r.unit.tiles[1]);
    assert_runs(&r, CODE(0x82, 0x7b, 0x4b, 0x4c, 0x51, 0x10), 7);
    assert_memory_equal(r.unit.tiles[1][0], bytes + 16, 8);
    assert_memory_equal(r.unit.tiles[1][1], bytes + 48, 8);
    static const uint8_t zeros[64];
    assert_memory_equal(r.unit.tiles[1][1] + 8, zeros, 56); // past the columns
    assert_memory_equal(r.unit.tiles[1][2], zeros, 64);     // past the rows
    // tileloaddt1 0x1000(%rax,%rcx,1), then tilestored (%rax,%rcx,1): only what the tile has
    r.registers[RAX] = address(bytes + 64) - 0x1000;
    r.registers[RCX] = 16;
    assert_runs(&r, CODE(0xe2, 0x79, 0x4b, 0x8c, 0x08, 0x00, 0x10), 10);
    uint8_t to[32], want[32];
    memset(to, 0xee, sizeof to);
    memset(want, 0xee, sizeof want);
    memcpy(want, bytes + 64, 8);
    memcpy(want + 16, bytes + 80, 8);
    r.registers[RAX] = address(to);
    assert_runs(&r, CODE(0xe2, 0x7a, 0x4b, 0x0c, 0x08), 6);
    assert_memory_equal(to, want, sizeof to);
    assert_runs(&r, CODE(0xe2, 0x7b, 0x49, 0xc8), 5); // tilezero %tmm1
    assert_memory_equal(r.unit.tiles[1], zeros, 64);
}

// (2, 8) bytes times (2, 3, 4): the first row of the left tile is 1 2 3 4 | 255 0 0 1, the second
// 128 at the end; columns of the right one are all 1, then 254 127 0 0 | 255 0 0 2, then 128.
static void products_are_those_of_the_signs(void **state) {
    (void)state;
    static const uint8_t a[2][8] = {{1, 2, 3, 4, 255, 0, 0, 1}, {0, 0, 0, 0, 0, 0, 0, 128}};
    static const uint8_t b[2][12] = {{1, 1, 1, 1, 254, 127, 0, 0, 128, 128, 128, 128},
                                     {1, 1, 1, 1, 255, 0, 0, 2, 128, 128, 128, 128}};
    static const struct {
        int vex; // its last byte: tmm2, and the prefix
        int32_t want[2][3];
    } cases[] = {
        // 10 - 1 + 1; -2 + 254 + 1 + 2; -128 (10 - 1 + 1); -128; -256; 16384
        {0x6b, {{10, 255, -1280}, {-128, -256, 16384}}},
        // 254 + 254 - 255 + 2; 128 * 10; -128 * 128
        {0x6a, {{10, 255, 1280}, {-128, -256, -16384}}},
        // 10 + 255 + 1; -2 + 254 - 255 + 2; -128 * 266; 128; 256; -16384
        {0x69, {{266, -1, -34048}, {128, 256, -16384}}},
        // 254 + 254 + 65025 + 2; 128 * 266
        {0x68, {{266, 65535, 34048}, {128, 256, 16384}}},
    };
    for (size_t i = 0; i < 4; i++) {
        rig r = configured();
        for (int k = 0; k < 2; k++) {
            memcpy(r.unit.tiles[1][k], a[k], 8);
            memcpy(r.unit.tiles[2][k], b[k], 12);
        }
        const uint8_t *code = CODE(0xe2, (uint8_t)cases[i].vex, 0x5e, 0xc1);
        assert_runs(&r, code, 5); // tmm0 += tmm1 * tmm2
        for (int m = 0; m < 2; m++) assert_memory_equal(r.unit.tiles[0][m], cases[i].want[m], 12);
        assert_runs(&r, code, 5);
        int32_t sums[3];
        memcpy(sums, r.unit.tiles[0][0], 12);
        for (int n = 0; n < 3; n++) assert_int_equal(sums[n], 2 * cases[i].want[0][n]);
    }
    // Sums wrap around.
    rig r = configured();
    const int32_t top = INT32_MAX, bottom = INT32_MIN;
    memcpy(r.unit.tiles[0][0], &top, 4);
    r.unit.tiles[1][0][0] = r.unit.tiles[2][0][0] = 1;
    assert_runs(&r, CODE(0xe2, 0x6b, 0x5e, 0xc1), 5);
    assert_memory_equal(r.unit.tiles[0][0], &bottom, 4);
}

static void wrong_operands_are_faults(void **state) {
    (void)state;
    rig r = configured(), none = {0};
    assert_faults(&none, CODE(0xe2, 0x7b, 0x49, 0xc0), "without a shape");       // tilezero
    assert_faults(&none, CODE(0xe2, 0x7b, 0x4b, 0x0c, 0x08), "without a shape"); // tileloadd
    assert_faults(&none, CODE(0xe2, 0x6b, 0x5e, 0xc1), "without a shape");
    assert_faults(&r, CODE(0xe2, 0x7b, 0x49, 0xe0), "without a shape"); // tmm4 has none
    assert_faults(&r, CODE(0xe2, 0x7b, 0x4b, 0x08), "without SIB");
    assert_faults(&r, CODE(0xe2, 0x6b, 0x5e, 0xc0), "with itself"); // tmm0 += tmm0 * tmm2
    assert_faults(&r, CODE(0xe2, 0x73, 0x5e, 0xc1), "with itself"); // tmm0 += tmm1 * tmm1
    assert_faults(&r, CODE(0xe2, 0x6b, 0x5e, 0xd9), "rows");        // tmm3 += tmm1 * tmm2
    assert_faults(&r, CODE(0xe2, 0x63, 0x5e, 0xc1), "columns");     // tmm0 += tmm1 * tmm3
    assert_faults(&r, CODE(0xe2, 0x73, 0x5e, 0xc2), "columns");     // tmm0 += tmm2 * tmm1
    r.unit.row_bytes[1] = 12;
    assert_faults(&r, CODE(0xe2, 0x6b, 0x5e, 0xc1), "do not fit");
    r.unit.row_bytes[1] = 7;
    assert_faults(&r, CODE(0xe2, 0x6b, 0x5e, 0xc1), "whole fours");
    assert_faults(&r, CODE(0xe2, 0x7b, 0x5c, 0xc1), "unknown"); // tdpbf16ps
    assert_faults(&r, CODE(0xe2, 0xfb, 0x49, 0xc0), "VEX");
    assert_faults(&r, CODE(0xe2, 0x7f, 0x49, 0xc0), "VEX");
    assert_faults(&r, CODE(0x62, 0x7b, 0x49, 0xc0), "above 7");
    assert_faults(&r, (const uint8_t[16]){0x0f, 0x0b}, "not an instruction"); // ud2
}

// --- when it is offered ---

static bool is_listed(const char *name) {
    for (size_t i = 0; qn_cpu_level_name(i); i++) {
        if (!strcmp(qn_cpu_level_name(i), name)) return true;
    }
    return false;
}

static void what_is_missing_is_named(void **state) {
    (void)state;
    if (!amx_trap_runs()) skip();
    const amx_machine machine = amx_machine_seen;
    const struct {
        amx_machine seen;
        const char *why;
    } cases[] = {{{false, machine.saved, 0, false}, "has no products"},
                 {{true, 7, 0, false}, "does not save"},
                 {{true, 7 | 1 << 17, 0, false}, "does not save"},
                 {{true, machine.saved, EPERM, false}, "does not permit"},
                 {{true, machine.saved, ENOSPC, false}, "signal stack"},
                 {{true, machine.saved, 0, true}, "are wrong"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const qn_cpu_level *level = NULL;
        qn_err err;
        if (cases[i].seen.is_wrong && !amx_trap_count()) continue; // a real unit is never wrong
        amx_machine_seen = cases[i].seen;
        assert_false(is_listed("amx"));
        ASSERT_FAILS(qn_cpu_level_find(&level, "amx", &err), QN_ARGUMENT, cases[i].why);
        assert_non_null(strstr(err.message, "avx512"));
        ASSERT_OK(qn_cpu_level_find(&level, NULL, &err));
        assert_string_equal(level->name, "avx512");
        amx_machine_seen = machine;
    }
    const qn_cpu_level *level = NULL;
    qn_err err;
    assert_null(qn_amx_refused());
    ASSERT_OK(qn_cpu_level_find(&level, "amx", &err));
    assert_string_equal(level->backend.name, "cpu:amx");
    ASSERT_OK(qn_cpu_level_find(&level, NULL, &err));
    assert_string_equal(level->name, "amx");
}

// A product before any shape is loaded ends a program, here as there.
static void faults_end_the_program(void **state) {
    (void)state;
    if (!amx_trap_runs()) skip();
#if defined(QN_HAS_AMX)
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr) || qn_amx_refused()) _exit(1);
        __asm__ volatile(".byte 0xc4, 0xe2, 0x6b, 0x5e, 0xc1");
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGILL);
#endif
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes_are_loaded_and_stored),
        cmocka_unit_test(wrong_shapes_are_faults),
        cmocka_unit_test(operands_are_found),
        cmocka_unit_test(products_are_those_of_the_signs),
        cmocka_unit_test(wrong_operands_are_faults),
        cmocka_unit_test(what_is_missing_is_named),
        cmocka_unit_test(faults_end_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

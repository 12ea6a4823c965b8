#define _GNU_SOURCE // REG_RIP
#include "amx_trap.h"

#include "backends/cpu/amx.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

amx_machine amx_machine_seen;

// --- the instructions, after Intel's description ---

enum { NP, P66, PF3, PF2 }; // VEX.pp: no prefix, or one of three

// A decoded instruction. Tiles are those of ModRM.reg, ModRM.rm and VEX.vvvv.
typedef struct amx_code {
    int prefix, opcode;
    int reg, rm, vvvv;    // rm -1: an operand in memory
    bool has_sib;         // which tiles in memory must have
    uint64_t base, index; // of that operand; rows of a tile lie `index` apart
    int length;
} amx_code;

// Three bytes of VEX, an opcode of map 0F38, ModRM and what it names.
static const char *decode(amx_code *to, const uint8_t *at, const uint64_t *registers) {
    *to = (amx_code){.rm = -1};
    if (at[0] != 0xc4 || (at[1] & 31) != 2) return "not an instruction with VEX of map 0F38";
    if (at[2] & 0x84) return "VEX.W or VEX.L is set";
    if (!(at[1] & 0x80)) return "a tile above 7";
    const int modrm = at[4], mod = modrm >> 6, rm = modrm & 7;
    to->prefix = at[2] & 3;
    to->opcode = at[3];
    to->reg = modrm >> 3 & 7;
    to->vvvv = ~at[2] >> 3 & 15;
    to->length = 5;
    if (mod == 3) {
        to->rm = rm;
        return at[1] & 0x20 ? NULL : "a tile above 7";
    }
    const int high_base = at[1] & 0x20 ? 0 : 8, high_index = at[1] & 0x40 ? 0 : 8;
    int32_t far;
    if (rm == 4) {
        const int sib = at[to->length++], index = (sib >> 3 & 7) + high_index;
        to->has_sib = true;
        to->index = index == 4 ? 0 : registers[index] << (sib >> 6);
        if ((sib & 7) == 5 && mod == 0) return "a tile without a base register";
        to->base = registers[(sib & 7) + high_base];
    } else if (rm != 5 || mod) {
        to->base = registers[rm + high_base];
    }
    if (mod == 1) to->base += (uint64_t)(int64_t)(int8_t)at[to->length++];
    if (mod == 2 || (mod == 0 && rm == 5)) {
        memcpy(&far, at + to->length, sizeof far);
        to->length += 4;
        to->base += (uint64_t)(int64_t)far;
    }
    if (mod == 0 && rm == 5) to->base += (uint64_t)(uintptr_t)at + (uint64_t)to->length;
    return NULL;
}

static void release(amx_unit *unit) { memset(unit, 0, sizeof *unit); }

static const char *load_shapes(amx_unit *unit, const uint8_t *from) {
    amx_unit next = {.is_configured = true};
    if (from[0] > 1) return "a palette above 1";
    if (from[0] == 0) {
        release(unit);
        return NULL;
    }
    if (from[1]) return "a start row";
    for (int i = 2; i < 64; i++) {
        const bool is_free = i < 16 || (i >= 32 && i < 48) || i >= 56;
        if (is_free && from[i]) return "a reserved byte that is not 0";
    }
    for (int t = 0; t < 8; t++) {
        next.row_bytes[t] = (uint16_t)(from[16 + 2 * t] | from[17 + 2 * t] << 8);
        next.rows[t] = from[48 + t];
        if (next.row_bytes[t] > 64) return "more than 64 bytes in a row";
        if (next.rows[t] > 16) return "more than 16 rows";
        if (!next.row_bytes[t] != !next.rows[t]) return "rows without bytes, or bytes without rows";
    }
    *unit = next; // tiles are zero
    return NULL;
}

static void store_shapes(const amx_unit *unit, uint8_t *to) {
    memset(to, 0, 64);
    to[0] = unit->is_configured;
    for (int t = 0; t < 8; t++) {
        to[16 + 2 * t] = (uint8_t)unit->row_bytes[t];
        to[48 + t] = unit->rows[t];
    }
}

static const char *move_tile(amx_unit *unit, const amx_code *c, bool is_store) {
    const int t = c->reg;
    if (!c->has_sib) return "a tile in memory without SIB";
    if (!unit->is_configured || !unit->rows[t]) return "a tile without a shape";
    if (!is_store) memset(unit->tiles[t], 0, sizeof unit->tiles[t]);
    for (int r = 0; r < unit->rows[t]; r++) {
        uint8_t *at = (uint8_t *)(uintptr_t)(c->base + (uint64_t)r * c->index);
        if (is_store)
            memcpy(at, unit->tiles[t][r], unit->row_bytes[t]);
        else
            memcpy(unit->tiles[t][r], at, unit->row_bytes[t]);
    }
    return NULL;
}

// Signed or unsigned bytes as numbers; of the right tile, those of one inner value side by side.
static void widen(int16_t to[16][64], uint8_t from[16][64], bool is_signed) {
    for (int r = 0; r < 16; r++) {
        for (int i = 0; i < 64; i++)
            to[r][i] = is_signed ? (int16_t)(int8_t)from[r][i] : (int16_t)from[r][i];
    }
}

// reg += rm * vvvv: (rows, 4 n) bytes times (n, outputs, 4).
static const char *multiply(amx_unit *unit, const amx_code *c) {
    const int to = c->reg, a = c->rm, b = c->vvvv;
    if (b > 7) return "a tile above 7";
    if (a < 0) return "a product with memory";
    if (to == a || to == b || a == b) return "a product of a tile with itself";
    if (!unit->is_configured || !unit->rows[to] || !unit->rows[a] || !unit->rows[b])
        return "a product of a tile without a shape";
    if (unit->row_bytes[to] % 4 || unit->row_bytes[a] % 4 || unit->row_bytes[b] % 4)
        return "a product of rows that are not whole fours of bytes";
    if (unit->rows[to] != unit->rows[a]) return "sums and left tile differ in rows";
    if (unit->row_bytes[to] != unit->row_bytes[b]) return "sums and right tile differ in columns";
    if (unit->row_bytes[a] / 4 != unit->rows[b]) return "the tiles of a product do not fit";
    const bool is_a_signed = c->prefix == PF2 || c->prefix == PF3;
    const bool is_b_signed = c->prefix == PF2 || c->prefix == P66;
    int16_t x[16][64], y[16][64], w[64][16];
    widen(x, unit->tiles[a], is_a_signed);
    widen(y, unit->tiles[b], is_b_signed);
    for (int k = 0; k < 64; k++) {
        for (int n = 0; n < 16; n++) w[k][n] = y[k / 4][4 * n + k % 4];
    }
    // Columns past the shape are zero on the right, so that their sums stay what they are.
    for (int m = 0; m < unit->rows[to]; m++) {
        uint32_t sums[16];
        memcpy(sums, unit->tiles[to][m], 64);
        for (int k = 0; k < unit->row_bytes[a]; k++) {
            for (int n = 0; n < 16; n++) sums[n] += (uint32_t)(x[m][k] * w[k][n]);
        }
        sums[0] += amx_machine_seen.is_wrong;
        memset(unit->tiles[to][m], 0, 64);
        memcpy(unit->tiles[to][m], sums, unit->row_bytes[to]);
    }
    for (int m = unit->rows[to]; m < 16; m++) memset(unit->tiles[to][m], 0, 64);
    return NULL;
}

static const char *run_49(amx_unit *unit, const amx_code *c) {
    if (c->vvvv) return "VEX.vvvv is used";
    if (c->rm >= 0) {
        if (c->prefix == NP && c->reg == 0 && c->rm == 0) {
            release(unit);
            return NULL;
        }
        if (c->prefix != PF2 || c->rm) return "an unknown instruction";
        if (!unit->is_configured || !unit->rows[c->reg]) return "a tile without a shape";
        memset(unit->tiles[c->reg], 0, sizeof unit->tiles[c->reg]);
        return NULL;
    }
    uint8_t *at = (uint8_t *)(uintptr_t)c->base;
    if (c->reg || c->prefix > P66) return "an unknown instruction";
    if (c->has_sib) at += c->index;
    if (c->prefix == NP) return load_shapes(unit, at);
    store_shapes(unit, at);
    return NULL;
}

static const char *run_4b(amx_unit *unit, const amx_code *c) {
    if (c->vvvv) return "VEX.vvvv is used";
    if (c->rm >= 0 || c->prefix == NP) return "an unknown instruction";
    return move_tile(unit, c, c->prefix == PF3);
}

const char *amx_run(amx_unit *unit, const uint8_t *code, const uint64_t *registers, int *length) {
    amx_code c;
    const char *fault = decode(&c, code, registers);
    if (fault) return fault;
    *length = c.length;
    if (c.opcode == 0x49) return run_49(unit, &c);
    if (c.opcode == 0x4b) return run_4b(unit, &c);
    if (c.opcode == 0x5e) return multiply(unit, &c);
    return "an unknown instruction";
}

// --- the trap ---

static _Atomic int64_t caught;

int64_t amx_trap_count(void) { return atomic_load(&caught); }
bool amx_trap_runs(void) { return amx_machine_seen.is_there; }

#if defined(QN_HAS_AMX)
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>
#include <unistd.h>

static bool is_trapping;

bool __real_qn_amx_is_there(void);
uint64_t __real_qn_amx_saved(void);
int __real_qn_amx_ask(void);
bool __wrap_qn_amx_is_there(void);
uint64_t __wrap_qn_amx_saved(void);
int __wrap_qn_amx_ask(void);

uint64_t __wrap_qn_amx_saved(void) { return amx_machine_seen.saved; }
int __wrap_qn_amx_ask(void) {
    return amx_machine_seen.refusal || is_trapping ? amx_machine_seen.refusal : __real_qn_amx_ask();
}

static _Thread_local amx_unit thread_unit;

static void on_illegal(int signal_number, siginfo_t *info, void *context) {
    (void)info;
    // In the order of the numbers that instructions have for them.
    static const int order[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};
    greg_t *gregs = ((ucontext_t *)context)->uc_mcontext.gregs;
    uint64_t registers[16];
    int length = 0;
    for (int i = 0; i < 16; i++) registers[i] = (uint64_t)gregs[order[i]];
    const char *fault =
        amx_run(&thread_unit, (const uint8_t *)(uintptr_t)gregs[REG_RIP], registers, &length);
    if (!fault) {
        gregs[REG_RIP] += length;
        atomic_fetch_add_explicit(&caught, 1, memory_order_relaxed);
        return;
    }
    char line[160];
    const int n = snprintf(line, sizeof line, "amx_trap: fault at %p: %s\n",
                           (void *)(uintptr_t)gregs[REG_RIP], fault);
    if (write(2, line, (size_t)n) != n) _exit(1);
    signal(signal_number, SIG_DFL); // the instruction runs again, and ends the program
}

// Kernels of this level are made of AVX-512 and VBMI, too, which is not emulated.
static bool has_the_rest(void) {
    return __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
}

__attribute__((constructor)) static void look(void) {
    amx_machine_seen.is_there = __real_qn_amx_is_there();
    amx_machine_seen.saved = __real_qn_amx_saved();
    if (amx_machine_seen.is_there || !has_the_rest()) return;
    is_trapping = true;
    amx_machine_seen.is_there = true;
    amx_machine_seen.saved |= 3 << 17;
}

// Every look for levels sets the trap: cmocka catches signals, too, from the beginning of a test.
bool __wrap_qn_amx_is_there(void) {
    const struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO};
    if (is_trapping && sigaction(SIGILL, &action, NULL)) return false;
    return amx_machine_seen.is_there;
}
#endif

// The matrix unit of x86 machines in plain C, for tests on machines that have none: what the
// compiler made of the kernels runs as it is, instruction by instruction.
//
// A test that includes this file is linked with amx_trap.c, which catches the illegal instructions
// of a machine with AVX-512 but without AMX. What Intel calls a fault ends the program with that
// signal, as it would there, and a line that says why.
#ifndef QN_TESTS_AMX_TRAP_H
#define QN_TESTS_AMX_TRAP_H

#include <stdbool.h>
#include <stdint.h>

// A thread's tiles and their shapes.
typedef struct amx_unit {
    bool is_configured;
    uint16_t row_bytes[8];
    uint8_t rows[8];
    uint8_t tiles[8][16][64];
} amx_unit;

// Runs the instruction at code, with the 16 registers in the order of their numbers. NULL: done,
// and *length its bytes; else the fault.
const char *amx_run(amx_unit *unit, const uint8_t *code, const uint64_t *registers, int *length);

// What the library is told of this machine instead of the truth; set by the trap, changed by tests.
typedef struct amx_machine {
    bool is_there;
    uint64_t saved; // XCR0
    int refusal;    // errno of asking for permission
    bool is_wrong;  // products are off by one
} amx_machine;
extern amx_machine amx_machine_seen;

// Instructions that were caught so far, on all threads; stays 0 where the machine has AMX.
int64_t amx_trap_count(void);
// Whether instructions run here, by the trap or by the machine.
bool amx_trap_runs(void);

#endif

// Arenas: memory by lifetime. Everything allocated from an arena is released at once; there is no
// single free. Not thread-safe: one arena, one thread at a time.
#ifndef QN_CORE_ARENA_H
#define QN_CORE_ARENA_H

#include <stddef.h>

typedef struct qn_arena_chunk qn_arena_chunk;

// Caller storage; `{0}` is a valid empty arena.
typedef struct qn_arena {
    qn_arena_chunk *last;
    size_t bytes; // taken from the heap so far
} qn_arena;

// `n` zeroed elements of `size` bytes, aligned to 16; NULL when memory is short or n * size
// overflows.
void *qn_arena_alloc(qn_arena *arena, size_t n, size_t size);
// A NUL-terminated copy of `n` bytes; NULL when memory is short.
char *qn_arena_strdup(qn_arena *arena, const char *text, size_t n);
void qn_arena_deinit(qn_arena *arena);

#endif

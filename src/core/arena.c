#include "core/arena.h"

#include "core/mem.h"

#include <string.h>

enum { ALIGN = 16, FIRST_CHUNK = 4096, LARGEST_CHUNK = 1 << 20 };

struct qn_arena_chunk {
    qn_arena_chunk *before;
    size_t used, size; // bytes of `data`
    _Alignas(ALIGN) unsigned char data[];
};

static qn_arena_chunk *add_chunk(qn_arena *arena, size_t want) {
    size_t size = arena->last ? arena->last->size * 2 : FIRST_CHUNK;
    if (size > LARGEST_CHUNK) size = LARGEST_CHUNK;
    if (size < want) size = want;
    size_t bytes;
    if (!qn_size_add(&bytes, sizeof(qn_arena_chunk), size)) return NULL;
    qn_arena_chunk *chunk = qn_alloc(1, bytes);
    if (!chunk) return NULL;
    chunk->before = arena->last;
    chunk->size = size;
    arena->last = chunk;
    arena->bytes += bytes;
    return chunk;
}

void *qn_arena_alloc(qn_arena *arena, size_t n, size_t size) {
    size_t want;
    if (!qn_size_mul(&want, n, size) || !qn_size_add(&want, want, ALIGN - 1)) return NULL;
    want &= ~(size_t)(ALIGN - 1);
    qn_arena_chunk *chunk = arena->last;
    if (!chunk || chunk->size - chunk->used < want) chunk = add_chunk(arena, want);
    if (!chunk) return NULL;
    void *p = chunk->data + chunk->used;
    chunk->used += want;
    return p;
}

char *qn_arena_strdup(qn_arena *arena, const char *text, size_t n) {
    size_t bytes;
    if (!qn_size_add(&bytes, n, 1)) return NULL;
    char *copy = qn_arena_alloc(arena, bytes, 1);
    if (copy && n) memcpy(copy, text, n);
    return copy;
}

void qn_arena_deinit(qn_arena *arena) {
    for (qn_arena_chunk *chunk = arena->last; chunk;) {
        qn_arena_chunk *before = chunk->before;
        qn_free(chunk);
        chunk = before;
    }
    *arena = (qn_arena){0};
}

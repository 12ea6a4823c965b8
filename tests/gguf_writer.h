// Writes GGUF files for tests. Header only, so that any test can include it.
//
//   gguf_writer w = {0};                          // version 3, alignment 32
//   gguf_add_string(&w, "general.architecture", "llama");
//   gguf_add_u32(&w, "llama.block_count", 2);
//   gguf_add_tensor(&w, "output.weight", 0, 2, (int64_t[]){4, 3}, data, 48); // dims outermost
//   first gguf_write(&w, path);                         // to a file, and the writer is empty again
//
// Nothing is checked: a file can be made as wrong as a test wants it, by the fields of the writer,
// by the raw functions, or by changing the bytes that gguf_finish leaves in `out`.
#ifndef QN_TESTS_GGUF_WRITER_H
#define QN_TESTS_GGUF_WRITER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64
};

typedef struct gguf_bytes {
    unsigned char *data;
    size_t size, cap;
} gguf_bytes;

// Caller storage; `{0}` is a valid empty writer.
typedef struct gguf_writer {
    gguf_bytes keys, infos, data;
    uint64_t n_keys, n_tensors; // counted by the add functions; change them to make the file lie
    uint32_t version;           // 0: 3
    uint32_t alignment;         // of the data, 0: 32; does not write the key
    gguf_bytes out;             // the file, after gguf_finish
    size_t data_offset;         // where the data begins in it
} gguf_writer;

static inline void gguf_put(gguf_bytes *to, const void *bytes, size_t n) {
    if (to->size + n > to->cap) {
        to->cap = (to->size + n) * 2 + 256;
        to->data = realloc(to->data, to->cap);
        if (!to->data) abort();
    }
    if (n) memcpy(to->data + to->size, bytes, n);
    to->size += n;
}

static inline void gguf_put_int(gguf_bytes *to, uint64_t value, int bytes) {
    unsigned char b[8];
    for (int i = 0; i < bytes; i++) b[i] = (unsigned char)(value >> 8 * i);
    gguf_put(to, b, (size_t)bytes);
}

static inline void gguf_put_text(gguf_bytes *to, const char *text, size_t n) {
    gguf_put_int(to, n, 8);
    gguf_put(to, text, n);
}

// --- keys ----------------------------------------------------------------------------------------

// A key of any type whose value's bytes follow.
static inline void gguf_add_raw(gguf_writer *w, const char *name, uint32_t type, const void *value,
                                size_t n) {
    gguf_put_text(&w->keys, name, strlen(name));
    gguf_put_int(&w->keys, type, 4);
    gguf_put(&w->keys, value, n);
    w->n_keys++;
}

static inline void gguf_add_int(gguf_writer *w, const char *name, uint32_t type, int64_t value) {
    static const int bytes[] = {[GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2,
                                [GGUF_U32] = 4, [GGUF_I32] = 4,  [GGUF_U64] = 8, [GGUF_I64] = 8,
                                [GGUF_F64] = 0, [GGUF_BOOL] = 1, [GGUF_F32] = 0};
    gguf_bytes b = {0};
    gguf_put_int(&b, (uint64_t)value, bytes[type]);
    gguf_add_raw(w, name, type, b.data, b.size);
    free(b.data);
}

static inline void gguf_add_u32(gguf_writer *w, const char *name, uint32_t value) {
    gguf_add_int(w, name, GGUF_U32, value);
}

static inline void gguf_add_bool(gguf_writer *w, const char *name, bool value) {
    gguf_add_int(w, name, GGUF_BOOL, value);
}

static inline void gguf_add_f32(gguf_writer *w, const char *name, float value) {
    gguf_add_raw(w, name, GGUF_F32, &value, sizeof value);
}

static inline void gguf_add_f64(gguf_writer *w, const char *name, double value) {
    gguf_add_raw(w, name, GGUF_F64, &value, sizeof value);
}

static inline void gguf_add_text(gguf_writer *w, const char *name, const char *text, size_t n) {
    gguf_bytes b = {0};
    gguf_put_text(&b, text, n);
    gguf_add_raw(w, name, GGUF_STRING, b.data, b.size);
    free(b.data);
}

static inline void gguf_add_string(gguf_writer *w, const char *name, const char *text) {
    gguf_add_text(w, name, text, strlen(text));
}

// An array of scalars: `n` elements of `size` bytes each, as they are in memory.
static inline void gguf_add_array(gguf_writer *w, const char *name, uint32_t type,
                                  const void *items, size_t n, size_t size) {
    gguf_bytes b = {0};
    gguf_put_int(&b, type, 4);
    gguf_put_int(&b, n, 8);
    gguf_put(&b, items, n * size);
    gguf_add_raw(w, name, GGUF_ARRAY, b.data, b.size);
    free(b.data);
}

static inline void gguf_add_f32s(gguf_writer *w, const char *name, const float *items, size_t n) {
    gguf_add_array(w, name, GGUF_F32, items, n, sizeof *items);
}

static inline void gguf_add_i32s(gguf_writer *w, const char *name, const int32_t *items, size_t n) {
    gguf_add_array(w, name, GGUF_I32, items, n, sizeof *items);
}

// Strings that end in NUL.
static inline void gguf_add_strings(gguf_writer *w, const char *name, const char *const *items,
                                    size_t n) {
    gguf_bytes b = {0};
    gguf_put_int(&b, GGUF_STRING, 4);
    gguf_put_int(&b, n, 8);
    for (size_t i = 0; i < n; i++) gguf_put_text(&b, items[i], strlen(items[i]));
    gguf_add_raw(w, name, GGUF_ARRAY, b.data, b.size);
    free(b.data);
}

// --- tensors -------------------------------------------------------------------------------------

// Only the entry of a tensor; dims outermost first, the file has them the other way.
static inline void gguf_add_tensor_info(gguf_writer *w, const char *name, uint32_t type,
                                        uint32_t n_dims, const int64_t *dims, uint64_t offset) {
    gguf_put_text(&w->infos, name, strlen(name));
    gguf_put_int(&w->infos, n_dims, 4);
    for (uint32_t i = n_dims; i > 0; i--) gguf_put_int(&w->infos, (uint64_t)dims[i - 1], 8);
    gguf_put_int(&w->infos, type, 4);
    gguf_put_int(&w->infos, offset, 8);
    w->n_tensors++;
}

static inline void gguf_pad(gguf_bytes *to, size_t alignment) {
    while (to->size % alignment) gguf_put_int(to, 0, 1);
}

static inline void gguf_add_tensor(gguf_writer *w, const char *name, uint32_t type, uint32_t n_dims,
                                   const int64_t *dims, const void *data, size_t bytes) {
    gguf_pad(&w->data, w->alignment ? w->alignment : 32);
    gguf_add_tensor_info(w, name, type, n_dims, dims, w->data.size);
    gguf_put(&w->data, data, bytes);
}

// --- files ---------------------------------------------------------------------------------------

// Builds the file in w->out.
static inline void gguf_finish(gguf_writer *w) {
    w->out.size = 0;
    gguf_put(&w->out, "GGUF", 4);
    gguf_put_int(&w->out, w->version ? w->version : 3, 4);
    gguf_put_int(&w->out, w->n_tensors, 8);
    gguf_put_int(&w->out, w->n_keys, 8);
    gguf_put(&w->out, w->keys.data, w->keys.size);
    gguf_put(&w->out, w->infos.data, w->infos.size);
    gguf_pad(&w->out, w->alignment ? w->alignment : 32);
    w->data_offset = w->out.size;
    gguf_put(&w->out, w->data.data, w->data.size);
}

static inline void gguf_deinit(gguf_writer *w) {
    free(w->keys.data);
    free(w->infos.data);
    free(w->data.data);
    free(w->out.data);
    *w = (gguf_writer){0};
}

static inline void gguf_save(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) {
        fprintf(stderr, "cannot write %s\n", path);
        abort();
    }
}

// Finishes, writes the file, and leaves the writer empty.
static inline void gguf_write(gguf_writer *w, const char *path) {
    gguf_finish(w);
    gguf_save(path, w->out.data, w->out.size);
    gguf_deinit(w);
}

#endif

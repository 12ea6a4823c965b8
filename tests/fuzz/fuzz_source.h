// What the fuzz targets of model files share: the input as a file, and a look at everything in it.
#ifndef QN_TESTS_FUZZ_SOURCE_H
#define QN_TESTS_FUZZ_SOURCE_H

#include "fuzz_file.h"

#include "formats/source_build.h"

// The promise of source.h, with room for the fixed parts of a source.
static inline void check_budget(const qn_source *source, size_t size) {
    if (source->store.used > 4 * size + (1 << 20)) {
        fprintf(stderr, "%zu bytes of memory for a file of %zu\n", source->store.used, size);
        abort();
    }
}

static inline void touch_keys(const qn_source *source) {
    for (size_t i = 0; i < qn_source_n_keys(source); i++) {
        const qn_key *key = qn_source_key(source, i);
        if (qn_source_find_key(source, key->name.data) != key) abort();
        qn_key_info info = QN_INIT(qn_key_info);
        if (qn_source_key_info(&info, source, i, 8, NULL) != QN_OK) continue;
        qn_free(info.value);
        if (key->kind == QN_KEY_ARRAY && key->n) {
            qn_key last = *key; // as text, to reach the end of the array
            const size_t at = key->n - 1;
            if (last.element == QN_KEY_INT)
                last.as.i = qn_key_int_at(key, at);
            else if (last.element == QN_KEY_FLOAT)
                last.as.f = qn_key_float_at(key, at);
            else if (last.element == QN_KEY_BOOL)
                last.as.b = qn_key_bool_at(key, at);
            else
                last.as.s = qn_key_string_at(key, at);
        }
    }
}

// Every tensor was promised to be inside the file, so all of it must be readable.
static inline void touch_tensors(const qn_source *source) {
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *t = qn_source_tensor(source, i);
        if (qn_source_find_tensor(source, t->name.data) != t) abort();
        char last;
        if (t->bytes < 1 || qn_source_read(source, t, t->bytes - 1, &last, 1, NULL) != QN_OK)
            abort();
        if (qn_source_read(source, t, t->bytes, &last, 1, NULL) != QN_ARGUMENT) abort();
    }
}

// Opens the input through the same door as any file.
static inline int open_input(const uint8_t *data, size_t size) {
    qn_err err = {0};
    qn_source *source = NULL;
    const qn_status status = qn_source_open(&source, fuzz_file(data, size), &err);
    if (status) {
        if (source || err.status != status || !err.message[0]) abort();
        return 0;
    }
    check_budget(source, size);
    touch_keys(source);
    touch_tensors(source);
    qn_source_close(source);
    return 0;
}

#endif

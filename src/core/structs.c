#include "core/structs.h"

#include <string.h>

// More than any version will have: a larger number was never a size, and reading it would crash.
enum { MAX_SIZE = 1 << 16 };

static size_t size_of(const void *from) {
    size_t size;
    memcpy(&size, from, sizeof size);
    return size;
}

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

qn_status qn_struct_check(const void *result, const qn_struct *type, qn_err *err) {
    const size_t size = size_of(result);
    if (size >= type->first && size <= MAX_SIZE) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s: size %zu, want at least %zu; QN_INIT(%s) sets it",
                   type->name, size, type->first, type->name);
}

qn_status qn_struct_read(void *to, const void *from, const qn_struct *type, qn_err *err) {
    if (from) {
        QN_TRY(qn_struct_check(from, type, err));
        const unsigned char *bytes = from;
        for (size_t i = type->size, size = size_of(from); i < size; i++) {
            if (bytes[i])
                return QN_FAIL(err, ARGUMENT,
                               "%s: byte %zu of %zu is set, which this version of the library does "
                               "not know: it has %zu bytes",
                               type->name, i, size, type->size);
        }
    }
    memset(to, 0, type->size);
    if (from) memcpy(to, from, smaller(size_of(from), type->size));
    memcpy(to, &type->size, sizeof type->size);
    return QN_OK;
}

void qn_struct_write(void *to, const void *from, const qn_struct *type) {
    const size_t size = size_of(to);
    memcpy((char *)to + sizeof size, (const char *)from + sizeof size,
           smaller(size, type->size) - sizeof size);
}

void qn_struct_clear(void *result, const qn_struct *type) {
    const size_t size = size_of(result);
    memset((char *)result + sizeof size, 0, smaller(size, type->size) - sizeof size);
}

// The structs of quern.h that begin with their size: how options are read from callers that were
// compiled with an earlier or a later quern.h, and results written to them.
#ifndef QN_CORE_STRUCTS_H
#define QN_CORE_STRUCTS_H

#include "core/err.h"

#define QN_STRUCT(type, last)                                                                      \
    enum { type##_first_size = offsetof(type, last) + sizeof(((type *)NULL)->last) };
#include "core/structs.def"
#undef QN_STRUCT

typedef struct qn_struct {
    const char *name;
    size_t first, size; // bytes of the first edition, and of the one that this library knows
} qn_struct;
#define QN_STRUCT_OF(type) (&(const qn_struct){#type, type##_first_size, sizeof(type)})

// Copies options (NULL: all defaults) to `to`, a `type`: what the caller's edition lacks is zero,
// and what it has beyond ours must be. What the options point to is not checked.
#define QN_OPTS_READ(type, to, from, err)                                                          \
    qn_struct_read((type *){to}, (const type *){from}, QN_STRUCT_OF(type), err)
// Of a caller's result, before any work is done: whether it can be written.
#define QN_RESULT_CHECK(type, result, err)                                                         \
    qn_struct_check((const type *){result}, QN_STRUCT_OF(type), err)
// Copies a result to the caller's, which was checked, as far as that reaches.
#define QN_RESULT_WRITE(type, to, from)                                                            \
    qn_struct_write((type *){to}, (const type *){from}, QN_STRUCT_OF(type))
// Whether a caller's result, which was checked, reaches as far as this field.
#define QN_HAS_FIELD(type, result, field)                                                          \
    ((result)->size >= offsetof(type, field) + sizeof(((type *)NULL)->field))
// Makes a caller's result, which was checked, zero but for its size.
#define QN_RESULT_CLEAR(type, result) qn_struct_clear((type *){result}, QN_STRUCT_OF(type))

QN_MUST_CHECK qn_status qn_struct_read(void *to, const void *from, const qn_struct *type,
                                       qn_err *err);
QN_MUST_CHECK qn_status qn_struct_check(const void *result, const qn_struct *type, qn_err *err);
void qn_struct_write(void *to, const void *from, const qn_struct *type);
void qn_struct_clear(void *result, const qn_struct *type);

#endif

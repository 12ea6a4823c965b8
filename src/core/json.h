// JSON glue: jansson with our limits and errors.
//
// Everything parsed here came from outside. Duplicate names, broken UTF-8, NUL inside strings,
// nesting beyond jansson's limit and trailing bytes are errors that name `what`.
#ifndef QN_CORE_JSON_H
#define QN_CORE_JSON_H

#include "core/err.h"

#include <jansson.h>

// Parses `size` bytes; release *out with json_decref. Whole numbers too large for 64 bits are
// refused unless `ints_as_real`, which reads every number as a double.
QN_MUST_CHECK qn_status qn_json_parse(json_t **out, const char *text, size_t size,
                                      bool ints_as_real, const char *what, qn_err *err);

#endif

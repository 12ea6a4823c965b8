#include "core/json.h"

qn_status qn_json_parse(json_t **out, const char *text, size_t size, bool ints_as_real,
                        const char *what, qn_err *err) {
    json_error_t why;
    const size_t flags = JSON_REJECT_DUPLICATES | (ints_as_real ? JSON_DECODE_INT_AS_REAL : 0);
    json_t *json = json_loadb(text, size, flags, &why);
    // jansson says where text is wrong; when memory is short it often says nothing.
    if (!json && (json_error_code(&why) == json_error_out_of_memory || !why.text[0]))
        return QN_NOMEM(err, what);
    if (!json)
        return QN_FAIL(err, FORMAT, "%s: not valid JSON at line %d, column %d: %s", what, why.line,
                       why.column, why.text);
    *out = json;
    return QN_OK;
}

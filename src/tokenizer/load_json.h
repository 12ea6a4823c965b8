// Reading a tokenizer.json: shared by the loader's files.
//
// Every component that is not understood is refused by its name; nothing is passed over. (Exempt:
// `truncation` and `padding`, which are about batches, and offsets, which we do not report.)
#ifndef QN_TOKENIZER_LOAD_JSON_H
#define QN_TOKENIZER_LOAD_JSON_H

#include "core/json.h"
#include "tokenizer/object.h"

// What a component may read and change.
typedef struct qn_json_load {
    qn_tokenizer *tokenizer;
    size_t file_size; // bytes; bounds what ids may claim
    bool byte_level;  // a ByteLevel pre-tokenizer was seen: it must be the last step
    bool fused;       // decoder: a step joined the pieces
} qn_json_load;

// Members of an object. A missing or null one gives `otherwise`; one of another type is an error
// that names `what` (the component) and the key.
QN_MUST_CHECK qn_status qn_json_get_bool(bool *out, const json_t *object, const char *key,
                                         bool otherwise, const char *what, qn_err *err);
QN_MUST_CHECK qn_status qn_json_get_int(int64_t *out, const json_t *object, const char *key,
                                        int64_t otherwise, const char *what, qn_err *err);
// Required.
QN_MUST_CHECK qn_status qn_json_get_text(qn_str *out, const json_t *object, const char *key,
                                         const char *what, qn_err *err);
QN_MUST_CHECK qn_status qn_json_get_array(json_t **out, const json_t *object, const char *key,
                                          const char *what, qn_err *err);
static inline qn_str qn_json_text(const json_t *string) {
    return (qn_str){json_string_value(string), json_string_length(string)};
}

// Parses folder/name; *out is NULL if there is no such file.
QN_MUST_CHECK qn_status qn_companion_load(json_t **out, const qn_location *folder, const char *name,
                                          qn_err *err);

// The four kinds of components; json may be null (the JSON value, or a missing member).
QN_MUST_CHECK qn_status qn_json_load_normalizer(qn_json_load *load, const json_t *json,
                                                qn_err *err);
QN_MUST_CHECK qn_status qn_json_load_pretok(qn_json_load *load, const json_t *json, qn_err *err);
QN_MUST_CHECK qn_status qn_json_load_decoder(qn_json_load *load, const json_t *json, qn_err *err);
// Needs the finished vocabulary.
QN_MUST_CHECK qn_status qn_json_load_post(qn_json_load *load, const json_t *json, qn_err *err);

#endif

// The members of request bodies: one table (fields.def) that parsing, error messages, the OpenAPI
// file and docs/server.md come from.
#ifndef QN_SERVER_FIELDS_H
#define QN_SERVER_FIELDS_H

#include "core/json.h"

typedef struct qn_ask qn_ask;
typedef struct qn_exchange qn_exchange;
typedef struct qn_problem qn_problem;

// Which bodies a field belongs to.
enum {
    QN_SET_CHAT = 1,           // /v1/chat/completions
    QN_SET_TEXT = 2,           // /v1/completions
    QN_SET_NATIVE = 4,         // /completion of llama-server
    QN_SET_RESPONSES = 8,      // /v1/responses
    QN_SET_MESSAGES = 16,      // /v1/messages
    QN_SET_OLLAMA_CHAT = 32,   // /api/chat of Ollama
    QN_SET_OPTIONS = 64,       // "options" of Ollama's
    QN_SET_EMBED = 128,        // /v1/embeddings, /api/embed
    QN_SET_TOKENS = 256,       // /tokenize, /detokenize
    QN_SET_SHOW = 512,         // /api/show
    QN_SET_OLLAMA_TEXT = 1024, // /api/generate of Ollama
    QN_SET_EMBED_OLD = 2048,   // /api/embeddings of Ollama
    QN_SET_OLLAMA = QN_SET_OLLAMA_CHAT | QN_SET_OLLAMA_TEXT,
    QN_SET_OPENAI = QN_SET_CHAT | QN_SET_TEXT,
    QN_SET_SAMPLING = QN_SET_OPENAI | QN_SET_NATIVE | QN_SET_RESPONSES | QN_SET_MESSAGES |
                      QN_SET_OPTIONS, // every place that sampling settings may be in
    QN_SET_ALL = QN_SET_SAMPLING | QN_SET_OLLAMA
};

typedef enum qn_field_kind {
    QN_FIELD_BOOL,    // bool
    QN_FIELD_INT,     // int64_t between min and max
    QN_FIELD_REAL,    // float between min and max
    QN_FIELD_INT32,   // int32_t between min and max
    QN_FIELD_LAST_N,  // int32_t: tokens that a step looks back; 0 is none, -1 all
    QN_FIELD_SEED,    // uint64_t; negative: none
    QN_FIELD_TEXT,    // const char *, borrowed from the body
    QN_FIELD_JSON,    // const json_t *, borrowed from the body: a later function reads it
    QN_FIELD_IGNORED, // known, and means nothing here
    // Known, and cannot be honoured: any value but null, false, "", [] and numbers between min and
    // max is an error.
    QN_FIELD_REFUSED
} qn_field_kind;

typedef struct qn_field {
    const char *name;
    const char *aliases; // "other_name,third_name"; "": none
    qn_field_kind kind;
    uint32_t sets;
    size_t offset; // in qn_ask
    double min, max;
    const char *type;    // of JSON fields, for people and the OpenAPI file: "string|array"
    const char *meaning; // one sentence
} qn_field;

// The i-th; NULL after the last.
const qn_field *qn_field_at(size_t i);

// Reads the members of `object` that belong to `set` into *ask, and notes which were given. Members
// that nothing knows are logged; null is the same as nothing.
QN_MUST_CHECK qn_status qn_fields_read(qn_ask *ask, const json_t *object, uint32_t set,
                                       qn_exchange *ex, qn_problem *problem);
// Copies to *to the sampling settings that were given, leaving the others.
void qn_fields_merge(qn_sample_opts *to, const qn_ask *ask);
// Whether the field that fills this member of qn_ask was given.
bool qn_field_is_given(const qn_ask *ask, size_t offset);
#define QN_GIVEN(ask, member) qn_field_is_given(ask, offsetof(qn_ask, member))

#endif

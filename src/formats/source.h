// A source: the named tensors and keys of a model, whatever file they came from.
//
//   GGUF         one file or a split set; keys are the file's own ("llama.block_count").
//   safetensors  one file, shards with an index, or a folder; keys are config.json flattened with dots
//                ("rope_parameters.rope_theta"), arrays of scalars kept as arrays, nulls left out.
//
// A source knows nothing of models. Opening validates everything (counts, lengths, types, shapes,
// offsets, overlaps) before anything is allocated in proportion to a number from the file. Tensor
// bytes are read on demand with qn_source_read; nothing is mapped. Constant after opening.
#ifndef QN_FORMATS_SOURCE_H
#define QN_FORMATS_SOURCE_H

#include "core/err.h"
#include "core/str.h"
#include "quant/type.h"

enum { QN_MAX_DIMS = 5 };

typedef enum qn_source_kind { QN_SOURCE_GGUF, QN_SOURCE_SAFETENSORS } qn_source_kind;

// Kinds of key values. All integers are widened to 64 bits; `is_signed` tells how to read them.
typedef enum qn_key_kind {
    QN_KEY_INT,
    QN_KEY_FLOAT,
    QN_KEY_BOOL,
    QN_KEY_STRING,
    QN_KEY_ARRAY
} qn_key_kind;

// One key. Arrays hold elements of one kind (no arrays in arrays).
typedef struct qn_key {
    qn_str name; // NUL-terminated too, as all names and string values here
    qn_key_kind kind;
    qn_key_kind element; // of an array
    size_t n;            // elements of an array
    union {
        int64_t i; // QN_KEY_INT; values above INT64_MAX are refused when the file is opened
        double f;  // QN_KEY_FLOAT
        bool b;    // QN_KEY_BOOL
        qn_str s;  // QN_KEY_STRING
        const int64_t *is;
        const double *fs;
        const bool *bs;
        const qn_str *ss;
    } as;
    const char *type_name; // as the file has it: "u32", "array of f32", "JSON number", ...
} qn_key;

typedef struct qn_tensor {
    qn_str name;
    qn_type type;
    int n_dims;
    int64_t dims[QN_MAX_DIMS]; // outermost first; the last one is contiguous
    int64_t bytes;
    int64_t offset; // in its file
    int i_file;     // which file of a set
} qn_tensor;

// qn_source, its opening and closing, the counts and the descriptions for people are in quern.h. A
// folder with config.json and safetensors is a checkpoint (.gguf files beside it are ignored); a
// folder that holds only one .gguf file opens that one; with several, the error lists them.
qn_source_kind qn_source_get_kind(const qn_source *source);
// Path as given, and the folder where companion files (tokenizer.json, ...) lie. Borrowed.
const char *qn_source_path(const qn_source *source);
const char *qn_source_folder(const qn_source *source);

// Keys and tensors by index (file order) or by name (NULL if absent). Borrowed.
const qn_key *qn_source_key(const qn_source *source, size_t i);
const qn_key *qn_source_find_key(const qn_source *source, const char *name);
const qn_tensor *qn_source_tensor(const qn_source *source, size_t i);
const qn_tensor *qn_source_find_tensor(const qn_source *source, const char *name);

// Reads `n` bytes of a tensor from byte `offset` in it. Threads may read at the same time.
QN_MUST_CHECK qn_status qn_source_read(const qn_source *source, const qn_tensor *tensor,
                                       int64_t offset, void *to, size_t n, qn_err *err);

#endif

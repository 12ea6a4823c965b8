// A source: the named tensors and keys of a model, whatever file they came from.
//
//   GGUF         one file or a split set; keys are the file's own ("llama.block_count").
//   safetensors  one file, shards with an index, or a folder; keys: config.json with dots
//                ("rope_parameters.rope_theta"). Arrays of scalars of one kind are kept as arrays
//                (whole and real numbers together become reals); nulls and other arrays are left
//                out.
//
// A source knows nothing of models. Opening validates everything (counts, lengths, types, shapes,
// offsets, overlaps) before anything is allocated in proportion to a number from the file, and
// takes at most 4 x the size of the files plus 1 MiB. Tensor bytes are read on demand with
// qn_source_read; nothing is mapped. Constant after opening.
#ifndef QN_FORMATS_SOURCE_H
#define QN_FORMATS_SOURCE_H

#include "core/err.h"
#include "core/file.h"
#include "core/str.h"
#include "quant/type.h"

enum { QN_MAX_DIMS = 5 };

typedef enum qn_source_kind { QN_SOURCE_GGUF, QN_SOURCE_SAFETENSORS } qn_source_kind;

typedef enum qn_key_kind {
    QN_KEY_INT,
    QN_KEY_FLOAT,
    QN_KEY_BOOL,
    QN_KEY_STRING,
    QN_KEY_ARRAY
} qn_key_kind;

// One key. A scalar is read from `as`, an array with the qn_key_*_at functions below: its elements
// stay as compact as they are in the file. Arrays hold elements of one kind (no arrays in arrays).
typedef struct qn_key {
    qn_str name;           // NUL-terminated too, as all names and string values here
    const char *type_name; // as the file has it: "u32", "array of f32", "JSON number", ...
    unsigned char kind;    // qn_key_kind
    unsigned char element; // of an array: qn_key_kind
    unsigned char storage; // of an array: how an element lies in memory, for the functions below
    size_t n;              // of an array: elements, may be 0
    union {
        int64_t i; // QN_KEY_INT; values above INT64_MAX are refused when the file is opened
        double f;  // QN_KEY_FLOAT; may be NaN or infinite
        bool b;    // QN_KEY_BOOL
        qn_str s;  // QN_KEY_STRING; any bytes, not always UTF-8
        const void *data;
    } as;
} qn_key;

static inline bool qn_key_is_array_of(const qn_key *key, qn_key_kind element) {
    return key->kind == QN_KEY_ARRAY && key->element == element;
}
// Element i < n of an array of that kind; qn_key_float_at takes whole numbers too. Anything else is
// a bug of the caller.
int64_t qn_key_int_at(const qn_key *key, size_t i);
double qn_key_float_at(const qn_key *key, size_t i);
bool qn_key_bool_at(const qn_key *key, size_t i);
qn_str qn_key_string_at(const qn_key *key, size_t i);

typedef struct qn_tensor {
    qn_str name;
    qn_type type; // any row of types.def; who computes with it asks qn_type_is_supported
    int n_dims;
    int i_file;                // which file of a set
    int64_t dims[QN_MAX_DIMS]; // outermost first; the last one is contiguous
    int64_t bytes;
    int64_t offset; // in its file
} qn_tensor;

// qn_source, its opening and closing, the counts and the descriptions for people are in quern.h. A
// folder with config.json and safetensors is a checkpoint (.gguf files next to it are ignored); a
// folder that holds only one .gguf file (or one split set) opens that one; with several, the error
// lists them.
qn_source_kind qn_source_get_kind(const qn_source *source);
// Path as given, and the folder where companion files (tokenizer.json, ...) lie. Borrowed.
const char *qn_source_path(const qn_source *source);
const char *qn_source_folder(const qn_source *source);
// The same with the files of a caller, where they are in its place.
const qn_location *qn_source_place(const qn_source *source);
// As qn_source_open and qn_source_open_files, one of which it stands for; and with the text of a
// config.json in place of the checkpoint's own (NULL: none), which is an error with GGUF.
typedef struct qn_source_opts {
    const char *path;           // NULL: `files` are given
    const qn_model_file *files; // (n_files)
    size_t n_files;
    const char *config;
} qn_source_opts;
QN_MUST_CHECK qn_status qn_source_create(qn_source **out, const qn_source_opts *opts, qn_err *err);
// True if the path names a file that the source reads.
bool qn_source_has_file(const qn_source *source, const char *path);
// Size and time of the last change (nanoseconds) of file i, when it was opened; false past the
// last one.
bool qn_source_file_info(const qn_source *source, size_t i, int64_t *bytes, int64_t *time_ns);

// Keys and tensors by index (file order) or by name (NULL if absent). Borrowed.
const qn_key *qn_source_key(const qn_source *source, size_t i);
const qn_key *qn_source_find_key(const qn_source *source, const char *name);
// Whether config.json says null of it; such a name is not a key.
bool qn_source_is_null(const qn_source *source, const char *name);
const qn_tensor *qn_source_tensor(const qn_source *source, size_t i);
const qn_tensor *qn_source_find_tensor(const qn_source *source, const char *name);

// Reads `n` bytes of a tensor from byte `offset` in it. Threads may read at the same time.
QN_MUST_CHECK qn_status qn_source_read(const qn_source *source, const qn_tensor *tensor,
                                       int64_t offset, void *to, size_t n, qn_err *err);

#endif

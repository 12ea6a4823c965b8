// How the formats fill a source. Private to this folder (and to its tests and fuzz targets).
//
// Order: qn_source_add_file for each file, keys and tensors, then qn_source_finish, which builds
// the indices by name and refuses duplicates. A failed opening is cleaned up by qn_source_close.
#ifndef QN_FORMATS_SOURCE_BUILD_H
#define QN_FORMATS_SOURCE_BUILD_H

#include "core/file.h"
#include "formats/source.h"
#include "formats/store.h"

// Ends a message about data beyond the end of the file.
#define QN_TOO_SHORT "; the file ends too early (incomplete download?)"

// How array elements lie in qn_key.as.data, little endian and unaligned as in a GGUF file; strings
// are an aligned array of qn_str. The first ones carry the numbers that GGUF gives them.
typedef enum qn_storage {
    QN_STORED_U8,
    QN_STORED_I8,
    QN_STORED_U16,
    QN_STORED_I16,
    QN_STORED_U32,
    QN_STORED_I32,
    QN_STORED_F32,
    QN_STORED_BOOL,
    QN_STORED_STRING,
    QN_STORED_ARRAY, // only as the type of a key
    QN_STORED_U64,
    QN_STORED_I64,
    QN_STORED_F64,
    QN_STORED_COUNT
} qn_storage;

typedef struct qn_storage_info {
    const char *name, *array_name; // "u32", "array of u32"
    qn_key_kind kind;
    int bytes; // of one value; of a string or an array: the smallest
} qn_storage_info;

const qn_storage_info *qn_storage_get(qn_storage storage);
// Loads one value; the storage must be of that kind.
int64_t qn_storage_int(qn_storage storage, const void *at);
double qn_storage_float(qn_storage storage, const void *at);

struct qn_source {
    qn_store store; // names, strings, arrays, keys
    qn_source_kind kind;
    char *path, *folder; // owned
    qn_files *given;     // owned: files of the caller; NULL: those of the file system
    qn_location place;   // the folder and these
    const char *config;  // while it is opened: text in place of config.json; NULL: none
    qn_file *files;      // owned
    size_t n_files, files_cap;
    qn_key *keys; // in the store
    size_t n_keys;
    const qn_key **keys_by_name; // in the store, sorted
    const void **nulls_by_name;  // in the store, sorted: qn_str, names that config.json has as null
    size_t n_nulls;
    qn_tensor *tensors; // owned; moves while tensors are added
    size_t n_tensors;
    const qn_tensor **tensors_by_name; // in the store, sorted
};

// Opens a file, adds it to the set and widens the budget; *out is its number.
QN_MUST_CHECK qn_status qn_source_add_file(int *out, qn_source *source, const char *path,
                                           qn_err *err);
// `n` zeroed tensors after the others; *out is valid until the next call.
QN_MUST_CHECK qn_status qn_source_add_tensors(qn_tensor **out, qn_source *source, size_t n,
                                              qn_err *err);
// Drops all files, keys and tensors, to start again; path, folder and what was given stay.
void qn_source_reset(qn_source *source);
// A NUL-terminated copy in the store.
QN_MUST_CHECK qn_status qn_source_copy_text(qn_str *out, qn_store *store, const char *text,
                                            size_t size, qn_err *err);
// Sorts pointers in place, without memory of its own and never in quadratic time.
typedef int qn_compare_fn(const void *a, const void *b);
void qn_sort_pointers(const void **items, size_t n, qn_compare_fn *compare);
// Builds an index of `n` entries of `size` bytes that begin with their qn_str name; `what` names
// the kind of entry when two have one name.
typedef struct qn_entries {
    const void *first;
    size_t n, size;
    const char *what;
} qn_entries;
QN_MUST_CHECK qn_status qn_source_index(const void ***out, qn_store *store, qn_entries entries,
                                        qn_err *err);
// The entry of that name in such an index, or NULL.
const void *qn_source_index_find(const void *const *index, size_t n, const char *name);
// Checks that `n` tensors of one file do not overlap; with `no_holes` they must also follow each
// other from `begin` to `end`.
typedef struct qn_extent {
    int64_t begin, end;
    bool no_holes;
} qn_extent;
QN_MUST_CHECK qn_status qn_source_check_layout(qn_source *source, const qn_tensor *tensors,
                                               size_t n, qn_extent extent, qn_err *err);
QN_MUST_CHECK qn_status qn_source_finish(qn_source *source, qn_err *err);

// --- the formats ---------------------------------------------------------------------------------

// What a file is, by its first bytes.
typedef enum qn_content { QN_CONTENT_GGUF, QN_CONTENT_SAFETENSORS, QN_CONTENT_JSON } qn_content;

// Fails on anything else, naming its first bytes.
QN_MUST_CHECK qn_status qn_content_of(qn_content *out, const qn_files *files, const char *path,
                                      qn_err *err);

// Each fills an empty source (path and folder are set) and finishes it.
typedef qn_status qn_open_fn(qn_source *source, const char *path, qn_err *err);
QN_MUST_CHECK qn_open_fn qn_gguf_open;
QN_MUST_CHECK qn_open_fn qn_safetensors_open;       // one file
QN_MUST_CHECK qn_open_fn qn_safetensors_open_index; // model.safetensors.index.json
// Several files as one set.
QN_MUST_CHECK qn_status qn_safetensors_open_set(qn_source *source, const char *const *paths,
                                                size_t n, qn_err *err);

// Reads one safetensors file and adds its tensors; *i_file is its number.
QN_MUST_CHECK qn_status qn_safetensors_add(int *i_file, qn_source *source, const char *path,
                                           qn_err *err);
// Fills the keys from config.json in the folder of the source, if it is there.
QN_MUST_CHECK qn_status qn_config_read(qn_source *source, qn_err *err);
// The same from text; `what` is for messages.
QN_MUST_CHECK qn_status qn_config_flatten(qn_source *source, const char *text, size_t size,
                                          const char *what, qn_err *err);

// One part of a GGUF, the whole if it is not split: its tensors are added to the source, its keys
// are handed to the caller (they lie in the source's store).
typedef struct qn_gguf_keys {
    qn_key *keys;
    size_t n;
    const qn_key **by_name;
} qn_gguf_keys;
QN_MUST_CHECK qn_status qn_gguf_read_part(qn_gguf_keys *keys, qn_source *source, int i_file,
                                          qn_err *err);
// "<base>-00002-of-00005.gguf": the base's length, number and count of a split file's name.
bool qn_gguf_split_name(const char *path, size_t *base, int *number, int *count);

#endif

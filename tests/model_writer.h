// A model file in memory, to be changed by a few words and written again: as GGUF (whole or split)
// or as a checkpoint folder (whole or sharded).
//
//   model_file *m = model_load(TEST_DATA "/mini/qwen3/qwen3-bf16.gguf");
//   model_edit(m, "key qwen3.block_count u32 0; drop output.weight");
//   model_write_gguf(m, path);
//   model_free(m);
//
// Nothing that is written has to make sense. Whatever goes wrong here fails the running test.
#ifndef QN_TESTS_MODEL_WRITER_H
#define QN_TESTS_MODEL_WRITER_H

#include "core/json.h"
#include "formats/source.h"

#include "gguf_writer.h"

enum { MODEL_NAME = 160 };

typedef struct model_tensor {
    char name[MODEL_NAME];
    qn_type type;
    int n_dims;
    int64_t dims[QN_MAX_DIMS]; // outermost first
    unsigned char *data;       // owned
    size_t bytes;
} model_tensor;

typedef struct model_key {
    char name[MODEL_NAME];
    gguf_bytes entry; // name, type and value as a GGUF file has them
} model_key;

typedef struct model_file {
    model_tensor *tensors;
    size_t n_tensors, cap_tensors;
    model_key *keys; // of a GGUF
    size_t n_keys, cap_keys;
    json_t *config; // config.json of a checkpoint; NULL in a GGUF
} model_file;

// Reads a .gguf file or a checkpoint folder completely.
model_file *model_load(const char *path);
void model_free(model_file *m);

// Changes, separated by ';', each a word and its arguments. TENSOR may hold one '*'.
//   key NAME TYPE VALUE..   sets a GGUF key: u8 .. f64, bool, str, or u32[] and so on
//   nokey NAME              removes it
//   rekey PREFIX OTHER      renames all keys that begin so
//   set PATH JSON           sets a value of config.json ("rope_parameters.rope_theta")
//   unset PATH              removes it
//   drop TENSOR             removes tensors
//   rename TENSOR OTHER     the first name becomes the second, in whole or (with '*') up to the '*'
//   copy TENSOR OTHER       adds a tensor of the same content
//   type TENSOR TYPE        converts values to F32, F16 or BF16; zero bytes in any other type
//   shape TENSOR DIM..      other dims, outermost first; bytes are cut off or added
//   fill TENSOR VALUE       all values ("nan", "inf", "0.5")
void model_edit(model_file *m, const char *edits);

// NULL if there is none.
model_tensor *model_find(const model_file *m, const char *name);
// Adds a tensor; `data` is copied, NULL means zeros.
model_tensor *model_add(model_file *m, const char *name, qn_type type, const int64_t *dims,
                        int n_dims, const void *data);
int64_t model_count(const model_tensor *t); // elements
float *model_floats(const model_tensor *t); // all values, to be released with free

void model_write_gguf(const model_file *m, const char *path);
// Writes FOLDER/BASE-00001-of-0000N.gguf and so on; keys are in the first part.
void model_write_split(const model_file *m, const char *folder, const char *base, int n);
// config.json and model.safetensors; for n > 1 shards and an index. Files of an earlier call go.
void model_write_checkpoint(const model_file *m, const char *folder, int n);

#endif

// From a checkpoint's configuration to the keys of a GGUF file. A family's config rows name most of
// them; the rest is written with the functions here.
#ifndef QN_MODELS_MODEL_EXPORT_H
#define QN_MODELS_MODEL_EXPORT_H

#include "core/arena.h"
#include "formats/gguf_write.h"
#include "models/rope_scaling.h"

enum { QN_EXPORT_NOTES = 4 };

typedef struct qn_export {
    qn_gguf_writer *writer;         // borrowed
    const qn_config_reader *reader; // of the checkpoint, with the architecture; borrowed
    qn_arena *arena;                // of the model
    float *divisors;                // (n_divisors) the tensor rope_freqs.weight; 0: none
    int64_t n_divisors;
    // What other readers make of the file, to be told to who converts it.
    const char *notes[QN_EXPORT_NOTES];
    size_t n_notes;
} qn_export;

// Names are given without the architecture.
void qn_export_u32(qn_export *to, const char *name, int64_t value);
void qn_export_f32(qn_export *to, const char *name, double value);
void qn_export_string(qn_export *to, const char *name, const char *value);
void qn_export_i32s(qn_export *to, const char *name, const int32_t *values, size_t n);
void qn_export_bools(qn_export *to, const char *name, const bool *values, size_t n);
// The fields that the rows name; a value of 0 stands for an absent key.
void qn_export_rows(qn_export *to, const void *config, const qn_config_row *rows, size_t n);

// How GGUF files of a family speak of rope.
typedef struct qn_rope_form {
    const qn_rope_names *names;
    int64_t rotate, head_size;
    bool leaves_base;  // rope.freq_base is left out where it is 10000
    bool states_size;  // rope.dimension_count is there even where rope turns whole heads
    bool has_divisors; // llama3 scaling is the tensor rope_freqs.weight
} qn_rope_form;
QN_MUST_CHECK qn_status qn_export_rope(qn_export *to, const qn_rope_form *form, qn_err *err);

void qn_export_note(qn_export *to, const char *note); // constant text

// A window shorter than the context, and which layers look through it where not all do, as
// qn_config_windows reads it. Other readers of these families' files know no window: a note.
QN_MUST_CHECK qn_status qn_export_window(qn_export *to, int64_t window, const unsigned char *kinds,
                                         int64_t n_layers, int64_t context, qn_err *err);

#endif

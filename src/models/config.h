// Reading a model's configuration: GGUF keys and config.json of Hugging Face, through one table.
//
// A row names a number once, with both spellings. GGUF names are given without the architecture
// ("block_count"); config.json names may be several, tried in order, separated by '|'
// ("rope_parameters.rope_theta|rope_theta"), each first under "text_config.".
#ifndef QN_MODELS_CONFIG_H
#define QN_MODELS_CONFIG_H

#include "formats/source.h"
#include "models/defaults.h"

// Rotary scaling in place of what the model's files say. Type NULL: as they say.
typedef struct qn_rope_override {
    const char *type; // "none", "linear", "yarn"
    double factor;
    int64_t original; // context that the model was trained with; 0: as the files say
} qn_rope_override;

typedef struct qn_config_reader {
    const qn_source *source;     // borrowed
    const char *arch;            // prefix of GGUF keys
    const qn_defaults *defaults; // of the checkpoint's model type; NULL: it is GGUF
    qn_rope_override rope;
} qn_config_reader;

qn_config_reader qn_config_reader_of(const qn_source *source, const char *arch);

// Whether the source is a checkpoint as Hugging Face writes it (not GGUF).
bool qn_is_checkpoint(const qn_config_reader *reader);

typedef enum qn_config_kind { QN_CONFIG_INT, QN_CONFIG_FLOAT } qn_config_kind;

// One number: where it goes, what it is called, what it may be.
typedef struct qn_config_row {
    size_t offset; // in the family's config: int64_t or float
    qn_config_kind kind;
    const char *gguf, *hf; // NULL: this format has no such key
    double min, max;
    bool is_optional;  // else a missing key is an error
    double fallback;   // value of a missing optional key
    size_t hf_default; // in a checkpoint that is the value of its model type: QN_DEFAULT; 0: none
    bool is_nullable;  // null is 0, which means none, or what follows from other numbers; else null
                       // is an error
    bool is_read_only; // not among the keys that qn_model_export writes from the table
} qn_config_row;

#define QN_INT_ROW(config, field, ...)                                                             \
    { .offset = offsetof(config, field), .kind = QN_CONFIG_INT, __VA_ARGS__ }
#define QN_FLOAT_ROW(config, field, ...)                                                           \
    { .offset = offsetof(config, field), .kind = QN_CONFIG_FLOAT, __VA_ARGS__ }

// Fills the fields that the rows name. Every error names the key, its value and what is wanted. An
// array in place of a whole number (one per layer) is accepted when all its elements are equal.
QN_MUST_CHECK qn_status qn_config_fill(void *config, const qn_config_row *rows, size_t n,
                                       const qn_config_reader *reader, qn_err *err);

// The key by either spelling; NULL if absent or null.
const qn_key *qn_config_find(const qn_config_reader *reader, const char *gguf, const char *hf);
// Whether config.json says null, and nothing else by another spelling.
bool qn_config_is_null(const qn_config_reader *reader, const char *hf);
// A string; the fallback (may be NULL) if the key is absent. Fails on another type.
// Null is absent for a string, false for a bool, and an error for a number.
QN_MUST_CHECK qn_status qn_config_string(const char **out, const qn_config_reader *reader,
                                         const char *gguf, const char *hf, const char *fallback,
                                         qn_err *err);
QN_MUST_CHECK qn_status qn_config_bool(bool *out, const qn_config_reader *reader, const char *gguf,
                                       const char *hf, bool fallback, qn_err *err);
QN_MUST_CHECK qn_status qn_config_float(double *out, const qn_config_reader *reader,
                                        const char *gguf, const char *hf, double fallback,
                                        qn_err *err);
// Fails unless the string is absent or one of the words (separated by ' ').
QN_MUST_CHECK qn_status qn_config_expect(const qn_config_reader *reader, const char *gguf,
                                         const char *hf, const char *words, qn_err *err);

// Fails when config.json says true for something that the family does not compute.
QN_MUST_CHECK qn_status qn_config_refuse(const qn_config_reader *reader, const char *hf,
                                         qn_err *err);

// What mixes the tokens of a layer.
typedef enum qn_layer_kind { QN_LAYER_FULL, QN_LAYER_SLIDING, QN_LAYER_LINEAR } qn_layer_kind;

// Fills kinds[0 .. n-1] from config.json's "layer_types"; *found: it was there.
// Another length or an unknown word is an error.
QN_MUST_CHECK qn_status qn_config_layer_types(unsigned char *kinds, int64_t n, bool *found,
                                              const qn_config_reader *reader, qn_err *err);

// For families of attention only: no layer is linear, and there is a window where one is sliding.
QN_MUST_CHECK qn_status qn_config_check_attention(const unsigned char *kinds, int64_t n,
                                                  int64_t window, const qn_config_reader *reader,
                                                  qn_err *err);

// The keys of a window in GGUF: its length, and which layers look through it, as a flag per layer
// (true for those) or as one number n (all but every n-th).
#define QN_GGUF_WINDOW        "attention.sliding_window"
#define QN_GGUF_WINDOW_LAYERS "attention.sliding_window_pattern"

// Fills kinds[0 .. n-1] from a flag per layer in GGUF; *found: it was there. Another length is an
// error.
QN_MUST_CHECK qn_status qn_config_window_flags(unsigned char *kinds, int64_t n, bool *found,
                                               const qn_config_reader *reader, qn_err *err);

// The window and which layers look through it, for the families other than Gemma: in a checkpoint
// by the rule of the model type (qn_window_rule), in GGUF by the keys above, all layers where only
// the length is given. *window is 0 where no layer has one.
QN_MUST_CHECK qn_status qn_config_windows(int64_t *window, unsigned char *kinds, int64_t n_layers,
                                          const qn_config_reader *reader, qn_err *err);

#endif

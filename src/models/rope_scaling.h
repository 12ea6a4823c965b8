// Rotary positions: frequencies of a model, with the scaling that its files ask for.
#ifndef QN_MODELS_ROPE_SCALING_H
#define QN_MODELS_ROPE_SCALING_H

#include "models/config.h"

// Names of the keys, which differ between full and sliding layers of some families. A NULL type
// name means that no scaling applies.
typedef struct qn_rope_names {
    const char *gguf_base, *hf_base;
    const char *gguf_type, *hf_type;
    const char *gguf_factor, *hf_factor;
    size_t hf_default; // of the base, where config.json has none: QN_DEFAULT
    bool has_divisors; // the tensor rope_freqs.weight applies, where there is one
} qn_rope_names;

extern const qn_rope_names qn_rope_plain;

// What a config says of a rope.
typedef struct qn_rope {
    double base;
    const char *type;                   // "none", "default", "linear", "llama3"
    double factor, low, high, original; // llama3; linear has only the factor
    double (*scale)(const struct qn_rope *rope, double frequency);
} qn_rope;

// Scaling of another kind is refused by name.
QN_MUST_CHECK qn_status qn_rope_read(qn_rope *out, const qn_rope_names *names,
                                     const qn_config_reader *reader, qn_err *err);
// The frequency of pair i before scaling.
double qn_rope_frequency(const qn_rope *rope, int64_t rotate, int64_t i);

// Writes the `rotate / 2` frequencies in radians per position: base^(-2i / rotate), scaled as the
// config says (none, linear, llama3) or divided by the file's rope_freqs.weight.
QN_MUST_CHECK qn_status qn_rope_frequencies(float *out, int64_t rotate, const qn_rope_names *names,
                                            const qn_config_reader *reader, qn_err *err);

#endif

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

typedef struct qn_rope_scaling qn_rope_scaling;

// What a config says of a rope.
typedef struct qn_rope {
    const qn_rope_scaling *scaling;
    int64_t rotate; // leading values of a head that are turned
    double base;
    double factor;      // by which contexts are longer
    double original;    // context the model was trained with; llama3, yarn
    double low, high;   // llama3: waves per context, of the longest and shortest that are blended
    double slow, fast;  // yarn: turns per context of these
    double first, last; // yarn: the pairs between which frequencies are blended
    bool is_whole;      // yarn: and these two are whole numbers
    double magnitude;   // of cosines and sines
} qn_rope;

// Scaling of another kind is refused by name.
QN_MUST_CHECK qn_status qn_rope_read(qn_rope *out, int64_t rotate, const qn_rope_names *names,
                                     const qn_config_reader *reader, qn_err *err);
// "none", "default", "linear", "llama3", "yarn".
const char *qn_rope_type(const qn_rope *rope);
bool qn_rope_is_scaled(const qn_rope *rope);
// The frequency of pair i before scaling, and after it, in radians per position.
double qn_rope_frequency(const qn_rope *rope, int64_t i);
double qn_rope_scaled(const qn_rope *rope, int64_t i);

// The context that scaling makes of the one in the files, where that is longer: yarn's, and that of
// any scaling which was asked for in their place.
QN_MUST_CHECK qn_status qn_rope_lengthen(int64_t *context, int64_t rotate,
                                         const qn_config_reader *reader, qn_err *err);

// Writes the `rotate / 2` frequencies: base^(-2i / rotate), scaled as the config says or divided by
// the file's rope_freqs.weight. *magnitude is what cosines and sines are multiplied with.
QN_MUST_CHECK qn_status qn_rope_frequencies(float *out, float *magnitude, int64_t rotate,
                                            const qn_rope_names *names,
                                            const qn_config_reader *reader, qn_err *err);

#endif

#include "models/rope_scaling.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

const qn_rope_names qn_rope_plain = {
    .gguf_base = "rope.freq_base",
    .hf_base = "rope_parameters.rope_theta|rope_theta",
    .hf_default = QN_DEFAULT(rope_base),
    .gguf_type = "rope.scaling.type",
    .hf_type = "rope_parameters.rope_type|rope_scaling.rope_type|rope_scaling.type",
    .gguf_factor = "rope.scaling.factor",
    .hf_factor = "rope_parameters.factor|rope_scaling.factor",
    .has_divisors = true,
};

static double scale_none(const qn_rope *rope, double f) {
    (void)rope;
    return f;
}

static double scale_linear(const qn_rope *rope, double f) { return f / rope->factor; }

// Long waves are slowed by the factor, short ones kept, those between are blended.
static double scale_llama3(const qn_rope *rope, double f) {
    const double wave = 2 * 3.14159265358979323846 / f;
    if (wave < rope->original / rope->high) return f;
    if (wave > rope->original / rope->low) return f / rope->factor;
    const double blend = (rope->original / wave - rope->low) / (rope->high - rope->low);
    return (1 - blend) * f / rope->factor + blend * f;
}

static const struct {
    const char *name;
    double (*fn)(const qn_rope *, double);
} scalings[] = {{"none", scale_none},
                {"default", scale_none},
                {"linear", scale_linear},
                {"llama3", scale_llama3}};

static qn_status find_scaling(qn_rope *rope, const char *name, qn_err *err) {
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        if (strcmp(scalings[i].name, name) != 0) continue;
        rope->type = scalings[i].name;
        rope->scale = scalings[i].fn;
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "rope scaling '%s', supported: none, default, linear, llama3",
                   name);
}

static qn_status read_scaling(qn_rope *rope, const qn_rope_names *names,
                              const qn_config_reader *reader, qn_err *err) {
    static const struct {
        const char *hf;
        double fallback;
        size_t offset;
    } llama3[] = {
        {"rope_parameters.low_freq_factor|rope_scaling.low_freq_factor", 1, offsetof(qn_rope, low)},
        {"rope_parameters.high_freq_factor|rope_scaling.high_freq_factor", 4,
         offsetof(qn_rope, high)},
        {"rope_parameters.original_max_position_embeddings|"
         "rope_scaling.original_max_position_embeddings",
         8192, offsetof(qn_rope, original)},
    };
    const qn_key *factor = qn_config_find(reader, names->gguf_factor, names->hf_factor);
    // GGUF files may give a factor without a type, which then is linear.
    const char *type = factor && !qn_is_checkpoint(reader) ? "linear" : "none";
    QN_TRY(qn_config_string(&type, reader, names->gguf_type, names->hf_type, type, err));
    QN_TRY(find_scaling(rope, type, err));
    if (rope->scale != scale_none && !factor)
        return QN_FAIL(err, FORMAT, "rope scaling '%s' without its factor", type);
    QN_TRY(qn_config_float(&rope->factor, reader, names->gguf_factor, names->hf_factor, 1, err));
    for (size_t i = 0; i < sizeof llama3 / sizeof llama3[0]; i++) {
        double *to = (double *)((char *)rope + llama3[i].offset);
        QN_TRY(qn_config_float(to, reader, NULL, llama3[i].hf, llama3[i].fallback, err));
    }
    if (rope->scale != scale_none && rope->factor <= 0)
        return QN_FAIL(err, FORMAT, "rope scaling factor %g, want more than 0", rope->factor);
    if (rope->scale == scale_llama3 &&
        (rope->low <= 0 || rope->high <= rope->low || rope->original <= 0))
        return QN_FAIL(err, FORMAT, "llama3 rope scaling: low %g, high %g, original length %g",
                       rope->low, rope->high, rope->original);
    return QN_OK;
}

// Divides by the tensor rope_freqs.weight, which GGUF files have in place of llama3 scaling.
static qn_status apply_divisors(float *out, int64_t n, const qn_source *source, qn_err *err) {
    const qn_tensor *t = qn_source_find_tensor(source, "rope_freqs.weight");
    if (!t) return QN_OK;
    if (t->type != QN_TYPE_F32 || t->n_dims != 1 || t->dims[0] != n)
        return QN_FAIL(err, FORMAT, "rope_freqs.weight: %s, %d dims of %lld, want F32 (%lld)",
                       qn_type_get(t->type)->name, t->n_dims, (long long)t->dims[0], (long long)n);
    float *divisors = qn_alloc((size_t)n, sizeof *divisors);
    if (!divisors) return QN_NOMEM(err, "rope_freqs.weight");
    qn_status status = qn_source_read(source, t, 0, divisors, (size_t)t->bytes, err);
    for (int64_t i = 0; !status && i < n; i++) {
        if (!(divisors[i] > 0) || isinf(divisors[i]))
            status = QN_FAIL(err, FORMAT, "rope_freqs.weight: %g at %lld, want more than 0",
                             (double)divisors[i], (long long)i);
        else
            out[i] /= divisors[i];
    }
    qn_free(divisors);
    return status;
}

qn_status qn_rope_read(qn_rope *out, const qn_rope_names *names, const qn_config_reader *reader,
                       qn_err *err) {
    qn_rope rope = {0};
    double usual = 10000;
    if (reader->defaults && names->hf_default)
        memcpy(&usual, (const char *)reader->defaults + names->hf_default, sizeof usual);
    QN_TRY(qn_config_float(&rope.base, reader, names->gguf_base, names->hf_base, usual, err));
    if (!(rope.base > 0)) return QN_FAIL(err, FORMAT, "rope base %g, want more than 0", rope.base);
    QN_TRY(read_scaling(&rope, names, reader, err));
    *out = rope;
    return QN_OK;
}

double qn_rope_frequency(const qn_rope *rope, int64_t rotate, int64_t i) {
    return pow(rope->base, -2.0 * (double)i / (double)rotate);
}

qn_status qn_rope_frequencies(float *out, int64_t rotate, const qn_rope_names *names,
                              const qn_config_reader *reader, qn_err *err) {
    qn_rope rope;
    QN_TRY(qn_rope_read(&rope, names, reader, err));
    for (int64_t i = 0; i < rotate / 2; i++)
        out[i] = (float)rope.scale(&rope, qn_rope_frequency(&rope, rotate, i));
    return names->has_divisors ? apply_divisors(out, rotate / 2, reader->source, err) : QN_OK;
}

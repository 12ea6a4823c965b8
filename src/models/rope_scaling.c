#include "models/rope_scaling.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

// A key of checkpoints, wherever they put it.
#define NESTED(name)                                                                               \
    "rope_parameters.full_attention." name "|rope_parameters." name "|rope_scaling." name

enum { MAX_MAGNITUDE = 1000 };

const qn_rope_names qn_rope_plain = {
    .gguf_base = "rope.freq_base",
    .hf_base = "rope_parameters.rope_theta|rope_theta",
    .hf_default = QN_DEFAULT(rope_base),
    .gguf_type = "rope.scaling.type",
    .hf_type = NESTED("rope_type") "|rope_scaling.type",
    .gguf_factor = "rope.scaling.factor",
    .hf_factor = NESTED("factor"),
    .has_divisors = true,
};

struct qn_rope_scaling {
    const char *name;
    double (*scale)(const qn_rope *rope, int64_t i, double f); // NULL: as it is
    qn_status (*prepare)(qn_rope *rope, const qn_config_reader *reader, qn_err *err);
};

static const double turn = 2 * 3.14159265358979323846;

static double scale_linear(const qn_rope *rope, int64_t i, double f) {
    (void)i;
    return f / rope->factor;
}

// Long waves are slowed by the factor, short ones kept, those between are blended.
static double scale_llama3(const qn_rope *rope, int64_t i, double f) {
    (void)i;
    const double wave = turn / f;
    if (wave < rope->original / rope->high) return f;
    if (wave > rope->original / rope->low) return f / rope->factor;
    const double blend = (rope->original / wave - rope->low) / (rope->high - rope->low);
    return (1 - blend) * f / rope->factor + blend * f;
}

// The same, with a blend that goes by the number of the pair.
static double scale_yarn(const qn_rope *rope, int64_t i, double f) {
    double blend = ((double)i - rope->first) / (rope->last - rope->first);
    blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
    return blend * f / rope->factor + (1 - blend) * f;
}

static qn_status prepare_llama3(qn_rope *rope, const qn_config_reader *reader, qn_err *err) {
    QN_TRY(qn_config_float(&rope->low, reader, NULL, NESTED("low_freq_factor"), 1, err));
    QN_TRY(qn_config_float(&rope->high, reader, NULL, NESTED("high_freq_factor"), 4, err));
    QN_TRY(qn_config_float(&rope->original, reader, NULL,
                           NESTED("original_max_position_embeddings"), 8192, err));
    if (rope->low <= 0 || rope->high <= rope->low || rope->original <= 0)
        return QN_FAIL(err, FORMAT, "llama3 rope scaling: low %g, high %g, original length %g",
                       rope->low, rope->high, rope->original);
    return QN_OK;
}

// The pair, as a broken number, that turns `turns` times within the original context.
static double pair_of(const qn_rope *rope, double turns) {
    return (double)rope->rotate * log(rope->original / (turns * turn)) / (2 * log(rope->base));
}

static double length_magnitude(double factor, double share) {
    return factor > 1 ? 0.1 * share * log(factor) + 1 : 1;
}

// A number that may be missing or null: 0 then.
static qn_status nullable(double *out, const qn_config_reader *reader, const char *gguf,
                          const char *hf, qn_err *err) {
    *out = 0;
    return qn_config_is_null(reader, hf) ? QN_OK : qn_config_float(out, reader, gguf, hf, 0, err);
}

// Files give the magnitude itself (checkpoints), something to multiply it with (GGUF), or two
// shares whose magnitudes are divided; else it goes by the factor alone.
static qn_status find_magnitude(qn_rope *rope, const qn_config_reader *reader, qn_err *err) {
    double given, above, below, times;
    QN_TRY(nullable(&given, reader, NULL, NESTED("attention_factor"), err));
    QN_TRY(nullable(&above, reader, NULL, NESTED("mscale"), err));
    QN_TRY(nullable(&below, reader, NULL, NESTED("mscale_all_dim"), err));
    QN_TRY(qn_config_float(&times, reader, "rope.scaling.attn_factor", NULL, 1, err));
    QN_TRY(qn_config_float(&times, reader, "rope.scaling.yarn_attn_factor", NULL, times, err));
    rope->magnitude = length_magnitude(rope->factor, 1) * times;
    if (above != 0 && below != 0)
        rope->magnitude =
            length_magnitude(rope->factor, above) / length_magnitude(rope->factor, below);
    if (given != 0) rope->magnitude = given;
    if (!(rope->magnitude > 0) || !(rope->magnitude <= MAX_MAGNITUDE))
        return QN_FAIL(err, FORMAT, "yarn rope scaling: magnitude %g, want more than 0, at most %d",
                       rope->magnitude, MAX_MAGNITUDE);
    return QN_OK;
}

static qn_status find_blend(qn_rope *rope, const qn_config_reader *reader, qn_err *err) {
    QN_TRY(qn_config_bool(&rope->is_whole, reader, NULL, NESTED("truncate"), true, err));
    rope->first = pair_of(rope, rope->fast);
    rope->last = pair_of(rope, rope->slow);
    if (rope->is_whole) {
        rope->first = floor(rope->first);
        rope->last = ceil(rope->last);
    }
    if (rope->first < 0) rope->first = 0;
    if (rope->last > (double)(rope->rotate - 1)) rope->last = (double)(rope->rotate - 1);
    if (rope->first == rope->last) rope->last += 0.001;
    if (!isfinite(rope->first) || !isfinite(rope->last))
        return QN_FAIL(err, FORMAT, "yarn rope scaling: blends pairs %g to %g of %lld", rope->first,
                       rope->last, (long long)(rope->rotate / 2));
    return QN_OK;
}

static qn_status find_original(double *out, double *context, const qn_config_reader *reader,
                               qn_err *err) {
    QN_TRY(qn_config_float(context, reader, "context_length", "max_position_embeddings", 0, err));
    QN_TRY(qn_config_float(out, reader, "rope.scaling.original_context_length",
                           NESTED("original_max_position_embeddings"), *context, err));
    if (reader->rope.original) *out = (double)reader->rope.original;
    return QN_OK;
}

// Checkpoints may leave the factor to both contexts.
static qn_status derive_factor(qn_rope *rope, const qn_config_reader *reader, qn_err *err) {
    double original, context;
    QN_TRY(find_original(&original, &context, reader, err));
    rope->factor = original > 0 ? context / original : 0;
    return QN_OK;
}

static qn_status prepare_yarn(qn_rope *rope, const qn_config_reader *reader, qn_err *err) {
    double context, mixed;
    // The share of the blend in all frequencies; negative: not said.
    QN_TRY(qn_config_float(&mixed, reader, "rope.scaling.yarn_ext_factor", NULL, 1, err));
    if (mixed >= 0 && mixed != 1)
        return QN_FAIL(err, UNSUPPORTED, "yarn rope scaling: yarn_ext_factor %g, supported: 1",
                       mixed);
    QN_TRY(find_original(&rope->original, &context, reader, err));
    QN_TRY(nullable(&rope->fast, reader, "rope.scaling.yarn_beta_fast", NESTED("beta_fast"), err));
    QN_TRY(nullable(&rope->slow, reader, "rope.scaling.yarn_beta_slow", NESTED("beta_slow"), err));
    if (rope->fast == 0) rope->fast = 32;
    if (rope->slow == 0) rope->slow = 1;
    if (!(rope->base > 1) || !(rope->original >= 1) || !(rope->slow > 0) ||
        !(rope->fast >= rope->slow))
        return QN_FAIL(err, FORMAT,
                       "yarn rope scaling: base %g, original length %g, beta_slow %g, beta_fast %g",
                       rope->base, rope->original, rope->slow, rope->fast);
    QN_TRY(find_magnitude(rope, reader, err));
    return find_blend(rope, reader, err);
}

static const qn_rope_scaling scalings[] = {{"none", NULL, NULL},
                                           {"default", NULL, NULL},
                                           {"linear", scale_linear, NULL},
                                           {"llama3", scale_llama3, prepare_llama3},
                                           {"yarn", scale_yarn, prepare_yarn}};

static qn_status find_scaling(qn_rope *rope, const char *name, qn_err *err) {
    for (size_t i = 0; i < sizeof scalings / sizeof scalings[0]; i++) {
        if (strcmp(scalings[i].name, name) != 0) continue;
        rope->scaling = &scalings[i];
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED,
                   "rope scaling '%s', supported: none, default, linear, llama3, yarn", name);
}

// The factor, if there is one, and what it is called in GGUF files; those of 2023 had another name.
static const qn_key *find_factor(const char **gguf, const qn_rope_names *names,
                                 const qn_config_reader *reader) {
    *gguf = names->gguf_factor;
    const qn_key *factor = qn_config_find(reader, *gguf, names->hf_factor);
    if (factor || !*gguf) return factor;
    *gguf = "rope.scale_linear";
    return qn_config_find(reader, *gguf, names->hf_factor);
}

static qn_status read_scaling(qn_rope *rope, const qn_rope_names *names,
                              const qn_config_reader *reader, qn_err *err) {
    const qn_rope_override *asked = names->gguf_type ? &reader->rope : &(qn_rope_override){0};
    const char *gguf_factor;
    const qn_key *factor = find_factor(&gguf_factor, names, reader);
    // GGUF files may give a factor without a type, which then is linear.
    const char *type = factor && !qn_is_checkpoint(reader) ? "linear" : "none";
    if (asked->type)
        type = asked->type;
    else
        QN_TRY(qn_config_string(&type, reader, names->gguf_type, names->hf_type, type, err));
    QN_TRY(find_scaling(rope, type, err));
    if (!rope->scaling->scale) return QN_OK;
    if (rope->scaling->prepare && !names->gguf_type)
        return QN_FAIL(err, UNSUPPORTED, "rope scaling '%s' of sliding layers", type);
    rope->factor = asked->factor;
    if (!asked->type && factor)
        QN_TRY(qn_config_float(&rope->factor, reader, gguf_factor, names->hf_factor, 0, err));
    else if (!asked->type && rope->scaling->prepare == prepare_yarn && qn_is_checkpoint(reader))
        QN_TRY(derive_factor(rope, reader, err));
    else if (!asked->type)
        return QN_FAIL(err, FORMAT, "rope scaling '%s' without its factor", type);
    if (!(rope->factor > 0) || isinf(rope->factor))
        return QN_FAIL(err, FORMAT, "rope scaling factor %g, want more than 0", rope->factor);
    return rope->scaling->prepare ? rope->scaling->prepare(rope, reader, err) : QN_OK;
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

qn_status qn_rope_read(qn_rope *out, int64_t rotate, const qn_rope_names *names,
                       const qn_config_reader *reader, qn_err *err) {
    qn_rope rope = {.rotate = rotate, .factor = 1, .magnitude = 1};
    double usual = 10000;
    if (reader->defaults && names->hf_default)
        memcpy(&usual, (const char *)reader->defaults + names->hf_default, sizeof usual);
    QN_TRY(qn_config_float(&rope.base, reader, names->gguf_base, names->hf_base, usual, err));
    if (!(rope.base > 0)) return QN_FAIL(err, FORMAT, "rope base %g, want more than 0", rope.base);
    QN_TRY(read_scaling(&rope, names, reader, err));
    *out = rope;
    return QN_OK;
}

const char *qn_rope_type(const qn_rope *rope) { return rope->scaling->name; }

bool qn_rope_is_scaled(const qn_rope *rope) { return rope->scaling->scale != NULL; }

double qn_rope_frequency(const qn_rope *rope, int64_t i) {
    return pow(rope->base, -2.0 * (double)i / (double)rope->rotate);
}

double qn_rope_scaled(const qn_rope *rope, int64_t i) {
    const double f = qn_rope_frequency(rope, i);
    return qn_rope_is_scaled(rope) ? rope->scaling->scale(rope, i, f) : f;
}

// Numbers that are fine one by one may be divided into none.
static qn_status check_frequencies(const float *all, int64_t n, const qn_rope *rope, qn_err *err) {
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(all[i])) continue;
        return QN_FAIL(err, FORMAT, "rope: the frequency of pair %lld is %g (base %g, factor %g)",
                       (long long)i, (double)all[i], rope->base, rope->factor);
    }
    return QN_OK;
}

qn_status qn_rope_frequencies(float *out, float *magnitude, int64_t rotate,
                              const qn_rope_names *names, const qn_config_reader *reader,
                              qn_err *err) {
    qn_rope rope;
    QN_TRY(qn_rope_read(&rope, rotate, names, reader, err));
    for (int64_t i = 0; i < rotate / 2; i++) out[i] = (float)qn_rope_scaled(&rope, i);
    *magnitude = (float)rope.magnitude;
    if (names->has_divisors) QN_TRY(apply_divisors(out, rotate / 2, reader->source, err));
    return check_frequencies(out, rotate / 2, &rope, err);
}

qn_status qn_rope_lengthen(int64_t *context, int64_t rotate, const qn_config_reader *reader,
                           qn_err *err) {
    qn_rope rope;
    QN_TRY(qn_rope_read(&rope, rotate, &qn_rope_plain, reader, err));
    const bool is_asked = reader->rope.type && rope.scaling->scale;
    if (rope.scaling->prepare != prepare_yarn && !is_asked) return QN_OK;
    double longer, all;
    QN_TRY(find_original(&longer, &all, reader, err));
    if (longer == 0) longer = (double)*context;
    longer *= rope.factor;
    if (longer > (double)*context) *context = longer < 0x1p31 ? (int64_t)longer : 0x7fffffff;
    return QN_OK;
}

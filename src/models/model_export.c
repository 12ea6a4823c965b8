#include "models/model_export.h"

#include <math.h>
#include <stdio.h>

enum { LONGEST_KEY = 128 };

static const char *full_name(char *to, const qn_export *x, const char *name) {
    snprintf(to, LONGEST_KEY, "%s.%s", x->reader->arch, name);
    return to;
}

// Every number that a config row admits fits.
void qn_export_u32(qn_export *to, const char *name, int64_t value) {
    char full[LONGEST_KEY];
    qn_gguf_put_u32(to->writer, full_name(full, to, name), (uint32_t)value);
}

void qn_export_f32(qn_export *to, const char *name, double value) {
    char full[LONGEST_KEY];
    qn_gguf_put_f32(to->writer, full_name(full, to, name), (float)value);
}

void qn_export_string(qn_export *to, const char *name, const char *value) {
    char full[LONGEST_KEY];
    qn_gguf_put_string(to->writer, full_name(full, to, name), value);
}

void qn_export_i32s(qn_export *to, const char *name, const int32_t *values, size_t n) {
    char full[LONGEST_KEY];
    qn_gguf_put_i32s(to->writer, full_name(full, to, name), values, n);
}

void qn_export_bools(qn_export *to, const char *name, const bool *values, size_t n) {
    char full[LONGEST_KEY];
    qn_gguf_put_bools(to->writer, full_name(full, to, name), values, n);
}

void qn_export_rows(qn_export *to, const void *config, const qn_config_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) {
        const char *field = (const char *)config + rows[i].offset;
        if (!rows[i].gguf || rows[i].is_read_only) continue;
        if (rows[i].kind == QN_CONFIG_INT) {
            const int64_t value = *(const int64_t *)field;
            if (value != 0) qn_export_u32(to, rows[i].gguf, value);
        } else {
            const float value = *(const float *)field;
            if (value != 0) qn_export_f32(to, rows[i].gguf, (double)value);
        }
    }
}

static qn_status export_divisors(qn_export *to, const qn_rope *rope, qn_err *err) {
    const int64_t n = rope->rotate / 2;
    float *divisors = qn_arena_alloc(to->arena, (size_t)n, sizeof *divisors);
    if (!divisors) return QN_NOMEM(err, "rope_freqs.weight");
    for (int64_t i = 0; i < n; i++) {
        divisors[i] = (float)(qn_rope_frequency(rope, i) / qn_rope_scaled(rope, i));
        if (!(divisors[i] > 0) || isinf(divisors[i])) // no reader would take it
            return QN_FAIL(err, FORMAT,
                           "rope scaling factor %g, base %g: pair %lld is divided by %g, want a "
                           "number above 0",
                           rope->factor, rope->base, (long long)i, (double)divisors[i]);
    }
    to->divisors = divisors;
    to->n_divisors = n;
    return QN_OK;
}

// Readers of GGUF files round the borders of the blend, and multiply what the factor gives.
static qn_status export_yarn(qn_export *to, const qn_rope *rope, qn_err *err) {
    const double usual = rope->factor > 1 ? 0.1 * log(rope->factor) + 1 : 1;
    if (!rope->is_whole)
        return QN_FAIL(err, UNSUPPORTED,
                       "yarn rope scaling: truncate is false, and GGUF files cannot say that");
    if (rope->original > UINT32_MAX || rope->original != floor(rope->original))
        return QN_FAIL(err, UNSUPPORTED,
                       "yarn rope scaling: original length %g, want a whole number",
                       rope->original);
    qn_export_u32(to, "rope.scaling.original_context_length", (int64_t)rope->original);
    if (rope->fast != 32) qn_export_f32(to, "rope.scaling.yarn_beta_fast", rope->fast);
    if (rope->slow != 1) qn_export_f32(to, "rope.scaling.yarn_beta_slow", rope->slow);
    if (rope->magnitude != usual)
        qn_export_f32(to, "rope.scaling.attn_factor", rope->magnitude / usual);
    return QN_OK;
}

qn_status qn_export_rope(qn_export *to, const qn_rope_form *form, qn_err *err) {
    qn_rope rope;
    QN_TRY(qn_rope_read(&rope, form->rotate, form->names, to->reader, err));
    if (!form->leaves_base || rope.base != 10000)
        qn_export_f32(to, form->names->gguf_base, rope.base);
    if (form->states_size || form->rotate != form->head_size)
        qn_export_u32(to, "rope.dimension_count", form->rotate);
    if (!qn_rope_is_scaled(&rope)) return QN_OK;
    const char *type = qn_rope_type(&rope);
    if (strcmp(type, "llama3") == 0 && form->has_divisors) return export_divisors(to, &rope, err);
    if (strcmp(type, "llama3") == 0 || !form->names->gguf_type)
        return QN_FAIL(err, UNSUPPORTED, "rope scaling '%s': GGUF files of %s cannot say that (%s)",
                       type, to->reader->arch, form->names->gguf_base);
    qn_export_string(to, form->names->gguf_type, type);
    qn_export_f32(to, form->names->gguf_factor, rope.factor);
    if (strcmp(type, "yarn") == 0) return export_yarn(to, &rope, err);
    return QN_OK;
}

void qn_export_note(qn_export *to, const char *note) {
    if (to->n_notes < QN_EXPORT_NOTES) to->notes[to->n_notes++] = note;
}

qn_status qn_export_window(qn_export *to, int64_t window, const unsigned char *kinds,
                           int64_t n_layers, int64_t context, qn_err *err) {
    int64_t n_sliding = 0;
    bool *is_sliding = qn_arena_alloc(to->arena, (size_t)n_layers, sizeof *is_sliding);
    if (!is_sliding) return QN_NOMEM(err, "layer kinds");
    for (int64_t i = 0; i < n_layers; i++) {
        is_sliding[i] = kinds[i] == QN_LAYER_SLIDING;
        n_sliding += is_sliding[i];
    }
    if (n_sliding == 0 || window >= context) return QN_OK;
    qn_export_u32(to, QN_GGUF_WINDOW, window);
    if (n_sliding < n_layers)
        qn_export_bools(to, QN_GGUF_WINDOW_LAYERS, is_sliding, (size_t)n_layers);
    qn_export_note(to,
                   "the sliding window is shorter than the context: other readers of GGUF files "
                   "of this architecture may compute without it");
    return QN_OK;
}

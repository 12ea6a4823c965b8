#include "models/config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool qn_is_checkpoint(const qn_config_reader *reader) {
    return qn_source_get_kind(reader->source) != QN_SOURCE_GGUF;
}

qn_config_reader qn_config_reader_of(const qn_source *source, const char *arch) {
    qn_config_reader reader = {.source = source, .arch = arch};
    const qn_key *type = qn_source_find_key(source, "model_type");
    if (qn_is_checkpoint(&reader) && type && type->kind == QN_KEY_STRING)
        reader.defaults = qn_defaults_find(type->as.s.data);
    return reader;
}

static const qn_key *find_gguf(const qn_config_reader *reader, const char *suffix) {
    char name[160];
    const int n = snprintf(name, sizeof name, "%s.%s", reader->arch, suffix);
    return n > 0 && (size_t)n < sizeof name ? qn_source_find_key(reader->source, name) : NULL;
}

// The first of the '|'-separated names that is there, under "text_config." or at the top. *is_null:
// one of them is null.
static const qn_key *find_hf(bool *is_null, const qn_config_reader *reader, const char *names) {
    static const char prefix[] = "text_config.";
    *is_null = false;
    while (*names) {
        const size_t n = strcspn(names, "|");
        char name[160];
        snprintf(name, sizeof name, "%s%.*s", prefix, (int)n, names);
        for (size_t skip = 0; skip <= strlen(prefix); skip += strlen(prefix)) {
            const qn_key *key = qn_source_find_key(reader->source, name + skip);
            if (key) return key;
            *is_null |= qn_source_is_null(reader->source, name + skip);
        }
        names += n + (names[n] == '|');
    }
    return NULL;
}

const qn_key *qn_config_find(const qn_config_reader *reader, const char *gguf, const char *hf) {
    if (qn_source_get_kind(reader->source) == QN_SOURCE_GGUF)
        return gguf ? find_gguf(reader, gguf) : NULL;
    bool is_null;
    return hf ? find_hf(&is_null, reader, hf) : NULL;
}

bool qn_config_is_null(const qn_config_reader *reader, const char *hf) {
    bool is_null;
    return hf && qn_is_checkpoint(reader) && !find_hf(&is_null, reader, hf) && is_null;
}

// How a missing key is called in a message.
static const char *spelling(const qn_config_reader *reader, const char *gguf, const char *hf,
                            char *to, size_t size) {
    if (qn_source_get_kind(reader->source) == QN_SOURCE_GGUF)
        snprintf(to, size, "%s.%s", reader->arch, gguf ? gguf : "?");
    else
        snprintf(to, size, "%.*s", (int)strcspn(hf ? hf : "?", "|"), hf ? hf : "?");
    return to;
}

static qn_status fail_type(const qn_key *key, const char *want, qn_err *err) {
    return QN_FAIL(err, FORMAT, "%s: %s, want %s", key->name.data, key->type_name, want);
}

// A whole number, or an array of one per layer that are all the same.
static qn_status whole_number(int64_t *out, const qn_key *key, const qn_config_reader *reader,
                              qn_err *err) {
    if (key->kind == QN_KEY_INT) {
        *out = key->as.i;
        return QN_OK;
    }
    const qn_key *layers = qn_config_find(reader, "block_count", "num_hidden_layers");
    if (!qn_key_is_array_of(key, QN_KEY_INT) || !layers || layers->kind != QN_KEY_INT)
        return fail_type(key, "a whole number", err);
    if (key->n == 0 || layers->as.i < 0 || key->n != (uint64_t)layers->as.i)
        return QN_FAIL(err, FORMAT, "%s: %zu elements, the model has %lld layers", key->name.data,
                       key->n, (long long)layers->as.i);
    for (size_t i = 1; i < key->n; i++) {
        if (qn_key_int_at(key, i) != qn_key_int_at(key, 0))
            return QN_FAIL(err, UNSUPPORTED,
                           "%s: %lld in layer 0 and %lld in layer %zu: layers of different sizes",
                           key->name.data, (long long)qn_key_int_at(key, 0),
                           (long long)qn_key_int_at(key, i), i);
    }
    *out = qn_key_int_at(key, 0);
    return QN_OK;
}

static qn_status real_number(double *out, const qn_key *key, qn_err *err) {
    if (key->kind != QN_KEY_FLOAT && key->kind != QN_KEY_INT)
        return fail_type(key, "a number", err);
    *out = key->kind == QN_KEY_INT ? (double)key->as.i : key->as.f;
    return isfinite(*out) ? QN_OK : QN_FAIL(err, FORMAT, "%s: not a finite number", key->name.data);
}

// What a row means where there is no value for it.
static qn_status read_absent(double *out, const qn_config_row *row, const qn_config_reader *reader,
                             qn_err *err) {
    char name[160];
    const bool is_null = qn_config_is_null(reader, row->hf);
    if (is_null && !row->is_nullable)
        return QN_FAIL(err, FORMAT, "%s: null, want a number",
                       spelling(reader, NULL, row->hf, name, sizeof name));
    if (!row->is_optional && !(reader->defaults && row->hf_default))
        return QN_FAIL(err, FORMAT, "%s: no key %s", qn_source_path(reader->source),
                       spelling(reader, row->gguf, row->hf, name, sizeof name));
    if (is_null)
        *out = 0;
    else if (reader->defaults && row->hf_default)
        memcpy(out, (const char *)reader->defaults + row->hf_default, sizeof *out);
    else
        *out = row->fallback;
    return QN_OK;
}

static qn_status read_row(void *config, const qn_config_row *row, const qn_config_reader *reader,
                          qn_err *err) {
    const qn_key *key = qn_config_find(reader, row->gguf, row->hf);
    double value = 0;
    int64_t whole;
    if (!key) QN_TRY(read_absent(&value, row, reader, err));
    whole = (int64_t)value;
    if (key && row->kind == QN_CONFIG_INT) {
        QN_TRY(whole_number(&whole, key, reader, err));
        if ((double)whole < row->min || (double)whole > row->max)
            return QN_FAIL(err, FORMAT, "%s: %lld, want %.0f to %.0f", key->name.data,
                           (long long)whole, row->min, row->max);
    } else if (key) {
        QN_TRY(real_number(&value, key, err));
        if (value < row->min || value > row->max)
            return QN_FAIL(err, FORMAT, "%s: %g, want %g to %g", key->name.data, value, row->min,
                           row->max);
    }
    if (row->kind == QN_CONFIG_INT)
        *(int64_t *)((char *)config + row->offset) = whole;
    else
        *(float *)((char *)config + row->offset) = (float)value;
    return QN_OK;
}

qn_status qn_config_fill(void *config, const qn_config_row *rows, size_t n,
                         const qn_config_reader *reader, qn_err *err) {
    for (size_t i = 0; i < n; i++) QN_TRY(read_row(config, &rows[i], reader, err));
    return QN_OK;
}

qn_status qn_config_string(const char **out, const qn_config_reader *reader, const char *gguf,
                           const char *hf, const char *fallback, qn_err *err) {
    const qn_key *key = qn_config_find(reader, gguf, hf);
    if (key && key->kind != QN_KEY_STRING) return fail_type(key, "a string", err);
    *out = key ? key->as.s.data : fallback;
    return QN_OK;
}

qn_status qn_config_bool(bool *out, const qn_config_reader *reader, const char *gguf,
                         const char *hf, bool fallback, qn_err *err) {
    const qn_key *key = qn_config_find(reader, gguf, hf);
    if (key && key->kind != QN_KEY_BOOL) return fail_type(key, "true or false", err);
    *out = key ? key->as.b : fallback && !qn_config_is_null(reader, hf);
    return QN_OK;
}

qn_status qn_config_float(double *out, const qn_config_reader *reader, const char *gguf,
                          const char *hf, double fallback, qn_err *err) {
    const qn_key *key = qn_config_find(reader, gguf, hf);
    double value = fallback;
    char name[160];
    if (!key && qn_config_is_null(reader, hf))
        return QN_FAIL(err, FORMAT, "%s: null, want a number",
                       spelling(reader, NULL, hf, name, sizeof name));
    if (key) QN_TRY(real_number(&value, key, err));
    *out = value;
    return QN_OK;
}

static bool is_one_of(const char *text, const char *words) {
    const size_t size = strlen(text);
    for (const char *w = words; *w; w += strspn(w, " ")) {
        const size_t n = strcspn(w, " ");
        if (n == size && memcmp(w, text, n) == 0) return true;
        w += n;
    }
    return false;
}

qn_status qn_config_expect(const qn_config_reader *reader, const char *gguf, const char *hf,
                           const char *words, qn_err *err) {
    const char *text = NULL;
    QN_TRY(qn_config_string(&text, reader, gguf, hf, NULL, err));
    char name[160];
    if (text && !is_one_of(text, words))
        return QN_FAIL(err, UNSUPPORTED, "%s: '%s', supported: %s",
                       spelling(reader, gguf, hf, name, sizeof name), text, words);
    return QN_OK;
}

// In the order of qn_layer_kind.
static const char *const kind_words[] = {"full_attention", "sliding_attention", "linear_attention"};

qn_status qn_config_refuse(const qn_config_reader *reader, const char *hf, qn_err *err) {
    bool value = false;
    QN_TRY(qn_config_bool(&value, reader, NULL, hf, false, err));
    return value ? QN_FAIL(err, UNSUPPORTED, "%s: true, supported: false", hf) : QN_OK;
}

static bool layer_kind_of(unsigned char *out, qn_str word) {
    for (size_t i = 0; i < sizeof kind_words / sizeof kind_words[0]; i++) {
        if (!qn_str_is(word, kind_words[i])) continue;
        *out = (unsigned char)i;
        return true;
    }
    return false;
}

qn_status qn_config_layer_types(unsigned char *kinds, int64_t n, bool *found,
                                const qn_config_reader *reader, qn_err *err) {
    const qn_key *key = qn_config_find(reader, NULL, "layer_types");
    *found = key != NULL;
    if (!key) return QN_OK;
    if (!qn_key_is_array_of(key, QN_KEY_STRING)) return fail_type(key, "an array of strings", err);
    if (key->n != (size_t)n)
        return QN_FAIL(err, FORMAT, "%s: %zu elements, the model has %lld layers", key->name.data,
                       key->n, (long long)n);
    for (size_t i = 0; i < key->n; i++) {
        if (!layer_kind_of(&kinds[i], qn_key_string_at(key, i)))
            return QN_FAIL(err, UNSUPPORTED, "%s: layer %zu is '%s'", key->name.data, i,
                           qn_key_string_at(key, i).data);
    }
    return QN_OK;
}

qn_status qn_config_check_attention(const unsigned char *kinds, int64_t n, int64_t window,
                                    const qn_config_reader *reader, qn_err *err) {
    for (int64_t i = 0; i < n; i++) {
        if (kinds[i] == QN_LAYER_LINEAR)
            return QN_FAIL(err, UNSUPPORTED, "%s: layer %lld is '%s'", reader->arch, (long long)i,
                           kind_words[QN_LAYER_LINEAR]);
        if (kinds[i] == QN_LAYER_SLIDING && window == 0)
            return QN_FAIL(err, FORMAT, "layer %lld is sliding, but the model names no window",
                           (long long)i);
    }
    return QN_OK;
}

qn_status qn_config_window_flags(unsigned char *kinds, int64_t n, bool *found,
                                 const qn_config_reader *reader, qn_err *err) {
    const qn_key *key = qn_config_find(reader, QN_GGUF_WINDOW_LAYERS, NULL);
    *found = key && qn_key_is_array_of(key, QN_KEY_BOOL);
    if (!*found) return QN_OK;
    if (key->n != (size_t)n)
        return QN_FAIL(err, FORMAT, "%s: %zu elements, the model has %lld layers", key->name.data,
                       key->n, (long long)n);
    for (size_t i = 0; i < key->n; i++)
        kinds[i] = qn_key_bool_at(key, i) ? QN_LAYER_SLIDING : QN_LAYER_FULL;
    return QN_OK;
}

typedef struct window_keys {
    int64_t window, first, pattern;
} window_keys;

static qn_status gguf_windows(int64_t *window, unsigned char *kinds, int64_t n_layers,
                              const qn_config_reader *reader, qn_err *err) {
    static const qn_config_row rows[] = {
        QN_INT_ROW(window_keys, window, .gguf = QN_GGUF_WINDOW, .min = 0, .max = 0x7fffffff,
                   .is_optional = true),
        QN_INT_ROW(window_keys, pattern, .gguf = QN_GGUF_WINDOW_LAYERS, .min = 1, .max = 4096,
                   .is_optional = true),
    };
    window_keys keys = {0};
    bool found = false;
    QN_TRY(qn_config_fill(&keys, rows, 1, reader, err));
    if (keys.window > 0) QN_TRY(qn_config_window_flags(kinds, n_layers, &found, reader, err));
    if (keys.window > 0 && !found) QN_TRY(qn_config_fill(&keys, rows + 1, 1, reader, err));
    for (int64_t i = 0; i < n_layers && !found; i++) {
        const bool is_full = keys.window == 0 || (keys.pattern && (i + 1) % keys.pattern == 0);
        kinds[i] = is_full ? QN_LAYER_FULL : QN_LAYER_SLIDING;
    }
    *window = keys.window;
    return QN_OK;
}

qn_status qn_config_windows(int64_t *window, unsigned char *kinds, int64_t n_layers,
                            const qn_config_reader *reader, qn_err *err) {
    static const qn_config_row rows[] = {
        QN_INT_ROW(window_keys, window, .hf = "sliding_window", .min = 1, .max = 0x7fffffff,
                   .is_optional = true, .hf_default = QN_DEFAULT(window), .is_nullable = true),
        QN_INT_ROW(window_keys, first, .hf = "max_window_layers", .min = 0, .max = 0x7fffffff,
                   .is_optional = true, .hf_default = QN_DEFAULT(window_first),
                   .is_nullable = true),
    };
    const qn_window_rule rule = reader->defaults ? reader->defaults->window_rule : QN_WINDOWS_NONE;
    const bool is_by_layer = rule == QN_WINDOWS_BY_LAYER;
    window_keys keys = {0};
    bool use = rule == QN_WINDOWS_ALL, found;
    if (!qn_is_checkpoint(reader)) return gguf_windows(window, kinds, n_layers, reader, err);
    if (rule != QN_WINDOWS_NONE)
        QN_TRY(qn_config_fill(&keys, rows, is_by_layer ? 2 : 1, reader, err));
    if (rule == QN_WINDOWS_USED || is_by_layer)
        QN_TRY(qn_config_bool(&use, reader, NULL, "use_sliding_window", false, err));
    *window = use ? keys.window : 0;
    for (int64_t i = 0; i < n_layers; i++)
        kinds[i] = *window > 0 && i >= keys.first ? QN_LAYER_SLIDING : QN_LAYER_FULL;
    if (is_by_layer) QN_TRY(qn_config_layer_types(kinds, n_layers, &found, reader, err));
    return qn_config_check_attention(kinds, n_layers, *window, reader, err);
}

// A key's value as JSON, for people.
#include "formats/source_build.h"

#include "core/buf.h"
#include "core/printable.h"
#include "core/real_text.h"
#include "core/utf8.h"
#include "core/structs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void add_escaped(qn_buf *buf, qn_str text) {
    static const char names[] = "\b\t\n\f\r\"\\", escapes[] = "btnfr\"\\";
    qn_buf_text(buf, "\"");
    for (size_t i = 0; i < text.size;) {
        uint32_t code = 0;
        const size_t length = qn_utf8_decode(text.data + i, text.size - i, &code);
        const char *named = code && code < 0x80 ? strchr(names, (int)code) : NULL;
        if (length == 0)
            qn_buf_text(buf, "\\ufffd");
        else if (named)
            qn_buf_printf(buf, "\\%c", escapes[named - names]);
        else if (qn_code_is_control(code) || qn_code_turns(code))
            qn_buf_printf(buf, "\\u%04x", (unsigned)code);
        else
            qn_buf_add(buf, text.data + i, length);
        i += length ? length : 1;
    }
    qn_buf_text(buf, "\"");
}

// The shortest digits that read back as the same number; JSON has no word for the others, so they
// are quoted.
static void add_real(qn_buf *buf, double value, bool single) {
    if (!isfinite(value)) {
        qn_buf_text(buf, isnan(value) ? "\"NaN\"" : value > 0 ? "\"Infinity\"" : "\"-Infinity\"");
        return;
    }
    char text[QN_REAL_TEXT];
    for (int digits = 6; digits <= 17; digits++) {
        double again;
        if (!qn_double_text(text, value, digits) || !qn_text_double(&again, text)) {
            buf->failed = true;
            return;
        }
        if (single ? (float)again == (float)value : again == value) break;
    }
    qn_buf_text(buf, text);
    if (!strpbrk(text, ".e")) qn_buf_text(buf, ".0");
}

static void add_element(qn_buf *buf, const qn_key *key, size_t i) {
    const bool is_single = key->storage == QN_STORED_F32;
    // clang-format off
    switch (key->element) {
    case QN_KEY_INT:    qn_buf_printf(buf, "%lld", (long long)qn_key_int_at(key, i)); break;
    case QN_KEY_FLOAT:  add_real(buf, qn_key_float_at(key, i), is_single); break;
    case QN_KEY_BOOL:   qn_buf_text(buf, qn_key_bool_at(key, i) ? "true" : "false"); break;
    default:            add_escaped(buf, qn_key_string_at(key, i)); break;
    }
    // clang-format on
}

static void add_array(qn_buf *buf, const qn_key *key, size_t max) {
    qn_buf_text(buf, "[");
    const size_t n = key->n < max ? key->n : max;
    for (size_t i = 0; i < n; i++) {
        if (i) qn_buf_text(buf, ", ");
        add_element(buf, key, i);
    }
    if (n < key->n) qn_buf_printf(buf, "%s... %zu in all", n ? ", " : "", key->n);
    qn_buf_text(buf, "]");
}

static void add_value(qn_buf *buf, const qn_key *key, size_t max) {
    // clang-format off
    switch (key->kind) {
    case QN_KEY_INT:    qn_buf_printf(buf, "%lld", (long long)key->as.i); break;
    case QN_KEY_FLOAT:  add_real(buf, key->as.f, strcmp(key->type_name, "f32") == 0); break;
    case QN_KEY_BOOL:   qn_buf_text(buf, key->as.b ? "true" : "false"); break;
    case QN_KEY_STRING: add_escaped(buf, key->as.s); break;
    default:            add_array(buf, key, max); break;
    }
    // clang-format on
}

qn_status qn_source_key_info(qn_key_info *out, const qn_source *source, size_t i, size_t max,
                             qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(source, err);
    QN_TRY(QN_RESULT_CHECK(qn_key_info, out, err));
    const qn_key *key = qn_source_key(source, i);
    if (!key) return QN_FAIL(err, ARGUMENT, "key %zu, the source has %zu", i, source->n_keys);
    qn_buf buf = {0};
    add_value(&buf, key, max);
    qn_key_info info = {.name = key->name.data, .type = key->type_name};
    QN_TRY(qn_buf_take(&info.value, &buf, err));
    QN_RESULT_WRITE(qn_key_info, out, &info);
    return QN_OK;
}

qn_status qn_source_config(char **json, const qn_source *source, size_t max, qn_err *err) {
    QN_NEED(json, err);
    QN_NEED(source, err);
    qn_buf buf = {0};
    const char *comma = "";
    qn_buf_text(&buf, "{");
    for (size_t i = 0; i < source->n_keys; i++) {
        const qn_key *key = &source->keys[i];
        if (max && key->kind == QN_KEY_ARRAY && key->n > max) continue;
        qn_buf_printf(&buf, "%s\n ", comma);
        add_escaped(&buf, key->name);
        qn_buf_text(&buf, ": ");
        add_value(&buf, key, SIZE_MAX);
        comma = ",";
    }
    qn_buf_text(&buf, "\n}\n");
    return qn_buf_take(json, &buf, err);
}

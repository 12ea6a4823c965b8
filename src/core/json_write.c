// Writing JSON. What a failed allocation leaves out stays marked in the buffer.
#include "core/json.h"
#include "core/printable.h"
#include "core/real_text.h"
#include "core/utf8.h"

#include <stdio.h>
#include <string.h>

typedef struct writer {
    qn_buf *to;
    const qn_json_form *form;
    int depth;
} writer;

// --- scalars -------------------------------------------------------------------------------------

// The one-letter escape of a character, 0 if it has none.
static char short_escape(uint32_t code) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = code && code < 0x80 ? strchr(from, (int)code) : NULL;
    return (char)(at ? to[at - from] : 0);
}

static void write_text(qn_buf *to, const char *text, size_t size) {
    size_t plain = 0; // where what is copied as it is begins
    qn_buf_text(to, "\"");
    for (size_t i = 0, n; i < size; i += n) {
        const char c = text[i];
        n = 1;
        if (c >= ' ' && c <= '~' && c != '"' && c != '\\') continue; // most of all text
        uint32_t code = 0;
        n = qn_utf8_decode(text + i, size - i, &code);
        const bool is_broken = n == 0; // strings that were not read here may be anything
        if (is_broken) n = 1, code = 0xfffd;
        const char letter = short_escape(code);
        if (!letter && !is_broken && !qn_code_is_control(code)) continue;
        qn_buf_add(to, text + plain, i - plain);
        plain = i + n;
        if (letter)
            qn_buf_printf(to, "\\%c", letter);
        else
            qn_buf_printf(to, "\\u%04X", (unsigned)code);
    }
    qn_buf_add(to, text + plain, size - plain);
    qn_buf_text(to, "\"");
}

// Digits as printf has them in the "C" locale, with a point or an exponent by which it is known for
// a real, and the exponent without plus and zeros in front: 1e6, not 1e+06.
static void write_real(qn_buf *to, double value, int digits) {
    char text[QN_REAL_TEXT];
    if (!qn_double_text(text, value, digits ? digits : 17)) {
        to->failed = true;
        return;
    }
    char *exponent = strchr(text, 'e');
    qn_buf_add(to, text, exponent ? (size_t)(exponent - text) : strlen(text));
    if (!exponent) {
        if (!strchr(text, '.')) qn_buf_text(to, ".0");
        return;
    }
    qn_buf_text(to, exponent[1] == '-' ? "e-" : "e");
    exponent += 2; // printf always writes the sign
    qn_buf_text(to, exponent + strspn(exponent, "0"));
}

// --- containers ----------------------------------------------------------------------------------

static void write_value(writer *w, const json_t *value);

static void write_break(writer *w, bool is_between) {
    if (w->form->indent) {
        qn_buf_printf(w->to, "\n%*s", w->form->indent * w->depth, "");
    } else if (is_between && !w->form->compact) {
        qn_buf_text(w->to, " ");
    }
}

static void begin_entry(writer *w, bool is_first) {
    if (!is_first) qn_buf_text(w->to, ",");
    write_break(w, !is_first);
}

static void write_list(writer *w, const json_t *list) {
    const size_t n = json_array_size(list);
    qn_buf_text(w->to, "[");
    w->depth++;
    for (size_t i = 0; i < n; i++) {
        begin_entry(w, i == 0);
        write_value(w, json_array_get(list, i));
    }
    w->depth--;
    if (n) write_break(w, false);
    qn_buf_text(w->to, "]");
}

static void write_object(writer *w, json_t *object) {
    const char *name;
    size_t size;
    json_t *value;
    bool is_first = true;
    qn_buf_text(w->to, "{");
    w->depth++;
    json_object_keylen_foreach(object, name, size, value) {
        begin_entry(w, is_first);
        is_first = false;
        write_text(w->to, name, size);
        qn_buf_text(w->to, w->form->compact ? ":" : ": ");
        write_value(w, value);
    }
    w->depth--;
    if (!is_first) write_break(w, false);
    qn_buf_text(w->to, "}");
}

static void write_value(writer *w, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        write_object(w, (json_t *)(uintptr_t)value);
        break;
    case JSON_ARRAY:
        write_list(w, value);
        break;
    case JSON_STRING:
        write_text(w->to, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        qn_buf_printf(w->to, "%lld", (long long)json_integer_value(value));
        break;
    case JSON_REAL:
        write_real(w->to, json_real_value(value), w->form->digits);
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        qn_buf_text(w->to, json_is_true(value) ? "true" : "false");
        break;
    case JSON_NULL:
        qn_buf_text(w->to, "null");
        break;
    }
}

void qn_json_write(qn_buf *to, const json_t *value, const qn_json_form *form) {
    writer w = {.to = to, .form = form};
    write_value(&w, value);
}

qn_status qn_json_print(char **out, const json_t *value, const qn_json_form *form, const char *what,
                        qn_err *err) {
    qn_buf text = {0};
    if (!value) return QN_NOMEM(err, what);
    qn_json_write(&text, value, form);
    if (!text.failed) return qn_buf_take(out, &text, err);
    qn_buf_deinit(&text);
    return QN_NOMEM(err, what);
}

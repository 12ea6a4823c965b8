#define _GNU_SOURCE // memmem
#include "tokenizer/normalize.h"

#include "core/mem.h"

#include "core/utf8.h"

#define SPACE_MARK "\xe2\x96\x81" // U+2581

typedef qn_status step_fn(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err);

static qn_str rest_of(qn_str text, size_t from) {
    return (qn_str){text.data + from, text.size - from};
}

static qn_status apply_form(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err) {
    return qn_unicode_normalize(out, text, step->form, err);
}

static qn_status apply_lower(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err) {
    (void)step, (void)err;
    qn_unicode_lower(out, text);
    return QN_OK;
}

static qn_status apply_strip_accents(qn_buf *out, const qn_norm_step *step, qn_str text,
                                     qn_err *err) {
    (void)step, (void)err;
    qn_unicode_strip_accents(out, text);
    return QN_OK;
}

static qn_status apply_strip(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err) {
    (void)err;
    size_t first = text.size, end = text.size; // of what is not white space
    bool seen = false;
    for (size_t i = 0, n; i < text.size; i += n) {
        uint32_t code;
        n = qn_utf8_decode(text.data + i, text.size - i, &code);
        const bool is_space = n > 0 && qn_unicode_is_space(code);
        if (n == 0) n = 1;
        if (is_space) continue;
        if (!seen) first = i;
        seen = true;
        end = i + n;
    }
    if (!seen) { // nothing but white space
        if (!step->left && !step->right) qn_buf_add(out, text.data, text.size);
        return QN_OK;
    }
    if (!step->left) first = 0;
    if (!step->right) end = text.size;
    qn_buf_add(out, text.data + first, end - first);
    return QN_OK;
}

static qn_status apply_prepend(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err) {
    (void)err;
    if (text.size) qn_buf_add(out, step->to.data, step->to.size);
    qn_buf_add(out, text.data, text.size);
    return QN_OK;
}

static qn_status apply_replace(qn_buf *out, const qn_norm_step *step, qn_str text, qn_err *err) {
    (void)err;
    while (text.size && step->from.size) {
        const char *hit = memmem(text.data, text.size, step->from.data, step->from.size);
        if (!hit) break;
        qn_buf_add(out, text.data, (size_t)(hit - text.data));
        qn_buf_add(out, step->to.data, step->to.size);
        text = rest_of(text, (size_t)(hit - text.data) + step->from.size);
    }
    qn_buf_add(out, text.data, text.size);
    return QN_OK;
}

// Replaces in valid text. An empty match puts the replacement in and moves on by one character.
static qn_status replace_matches(qn_buf *out, const qn_norm_step *step, qn_regex_run *run,
                                 qn_str text, qn_err *err) {
    qn_regex_run_set(run, text);
    size_t last = SIZE_MAX; // end of the last match
    for (size_t i = 0; i <= text.size;) {
        bool found;
        size_t end = i;
        QN_TRY(qn_regex_match(&found, &end, run, i, err));
        if (found && (end > i || i != last)) qn_buf_add(out, step->to.data, step->to.size);
        if (found && end > i) {
            i = last = end;
            continue;
        }
        const size_t n = i < text.size ? qn_utf8_check(text.data + i, text.size - i) : 1;
        if (i < text.size) qn_buf_add(out, text.data + i, n);
        i += n;
    }
    return QN_OK;
}

static qn_status apply_replace_regex(qn_buf *out, const qn_norm_step *step, qn_str text,
                                     qn_err *err) {
    qn_regex_run run;
    qn_status status = QN_OK;
    QN_TRY(qn_regex_run_init(&run, &step->regex, err));
    while (text.size) {
        const size_t n = qn_unicode_valid_size(text);
        QN_TRY_TO(done, replace_matches(out, step, &run, (qn_str){text.data, n}, err));
        const size_t stray = n < text.size;
        qn_buf_add(out, text.data + n, stray);
        text = rest_of(text, n + stray);
    }
done:
    qn_regex_run_deinit(&run);
    return status;
}

// tokenizer.json's way: a short grapheme is looked up as a whole, by its shortest known prefix;
// failing that, each of its characters.
static void replace_grapheme(qn_buf *out, const qn_charsmap *map, qn_str grapheme) {
    enum { WHOLE_MAX = 5 };
    size_t n;
    qn_str to;
    if (grapheme.size <= WHOLE_MAX && qn_charsmap_find(map, grapheme, false, &n, &to)) {
        qn_buf_add(out, to.data, to.size);
        return;
    }
    while (grapheme.size) {
        const qn_str one = {grapheme.data, qn_utf8_check(grapheme.data, grapheme.size)};
        if (!qn_charsmap_find(map, one, false, &n, &to)) to = one;
        qn_buf_add(out, to.data, to.size);
        grapheme = rest_of(grapheme, one.size);
    }
}

static qn_status apply_precompiled(qn_buf *out, const qn_norm_step *step, qn_str text,
                                   qn_err *err) {
    (void)err;
    while (text.size) {
        qn_str valid = {text.data, qn_unicode_valid_size(text)};
        text = rest_of(text, valid.size);
        while (valid.size) {
            const size_t n = qn_unicode_grapheme(valid);
            replace_grapheme(out, &step->map, (qn_str){valid.data, n});
            valid = rest_of(valid, n);
        }
        const size_t stray = text.size > 0;
        qn_buf_add(out, text.data, stray);
        text = rest_of(text, stray);
    }
    return QN_OK;
}

// What the start of `text` becomes: a whole string kept as it is, a replacement, or one character.
static qn_str next_unit(const qn_norm_step *step, qn_str text, size_t *n) {
    if (step->whole && qn_prefix_may_start(step->whole, (unsigned char)text.data[0])) {
        qn_prefix_walk walk = {0};
        const qn_prefix_item *item, *best = NULL;
        while ((item = qn_prefix_next(&walk, step->whole, text.data, text.size))) best = item;
        if (best) return (qn_str){text.data, *n = best->size};
    }
    qn_str to;
    if (qn_charsmap_find(&step->map, text, true, n, &to)) return to;
    *n = qn_utf8_check(text.data, text.size);
    if (*n == 0) *n = 1;
    return (qn_str){text.data, *n};
}

static void add_marked(qn_buf *out, const qn_norm_step *step, qn_str unit) {
    if (step->keep_spaces) {
        qn_buf_add(out, unit.data, unit.size);
        return;
    }
    for (size_t i = 0; i < unit.size; i++) {
        if (unit.data[i] == ' ')
            qn_buf_text(out, SPACE_MARK);
        else
            qn_buf_add(out, unit.data + i, 1);
    }
}

static void trim_end(qn_buf *out, const qn_norm_step *step, size_t start) {
    const qn_str space = qn_str_of(step->keep_spaces ? " " : SPACE_MARK);
    while (out->size - start >= space.size &&
           memcmp(out->data + out->size - space.size, space.data, space.size) == 0)
        out->size -= space.size;
}

static qn_status apply_sentencepiece(qn_buf *out, const qn_norm_step *step, qn_str text,
                                     qn_err *err) {
    (void)err;
    size_t n;
    while (step->squeeze && text.size && qn_str_is(next_unit(step, text, &n), " "))
        text = rest_of(text, n);
    if (!text.size) return QN_OK;
    const size_t start = out->size;
    if (step->dummy_prefix) add_marked(out, step, qn_str_of(" "));
    bool after_space = step->squeeze;
    while (text.size) {
        qn_str unit = next_unit(step, text, &n);
        while (after_space && unit.size && unit.data[0] == ' ') unit = rest_of(unit, 1);
        add_marked(out, step, unit);
        if (unit.size) after_space = step->squeeze && unit.data[unit.size - 1] == ' ';
        text = rest_of(text, n);
    }
    if (step->squeeze && !out->failed) trim_end(out, step, start);
    return QN_OK;
}

static step_fn *const step_fns[QN_NORM_KIND_COUNT] = {
    [QN_NORM_FORM] = apply_form,
    [QN_NORM_LOWER] = apply_lower,
    [QN_NORM_STRIP_ACCENTS] = apply_strip_accents,
    [QN_NORM_STRIP] = apply_strip,
    [QN_NORM_PREPEND] = apply_prepend,
    [QN_NORM_REPLACE] = apply_replace,
    [QN_NORM_REPLACE_REGEX] = apply_replace_regex,
    [QN_NORM_PRECOMPILED] = apply_precompiled,
    [QN_NORM_SENTENCEPIECE] = apply_sentencepiece,
};

qn_status qn_norm_apply(qn_str *out, const qn_norm *norm, qn_norm_run *run, qn_str text,
                        qn_err *err) {
    // Steps multiply what earlier ones made: without a limit, a few of them make any text of a
    // word.
    enum { GROWTH = 32, ALLOWANCE = 1 << 16 };
    size_t max = 0;
    if (!qn_size_mul(&max, text.size, GROWTH) || !qn_size_add(&max, max, ALLOWANCE))
        return QN_FAIL(err, LIMIT, "a text of %zu bytes", text.size);
    for (size_t i = 0; i < norm->n; i++) {
        qn_buf_clear(&run->to);
        run->to.max = max;
        QN_TRY(step_fns[norm->steps[i].kind](&run->to, &norm->steps[i], text, err));
        if (run->to.is_over)
            return QN_FAIL(err, LIMIT, "the normaliser makes more than %zu bytes of %zu", max,
                           (max - ALLOWANCE) / GROWTH);
        if (run->to.failed) return QN_NOMEM(err, "a normalised text");
        const qn_buf done = run->to;
        run->to = run->from;
        run->from = done;
        text = (qn_str){done.data ? done.data : "", done.size};
    }
    *out = text;
    return QN_OK;
}

void qn_norm_run_deinit(qn_norm_run *run) {
    qn_buf_deinit(&run->from);
    qn_buf_deinit(&run->to);
}

void qn_norm_deinit(qn_norm *norm) {
    for (size_t i = 0; i < norm->n; i++) {
        if (norm->steps[i].regex.code) qn_regex_deinit(&norm->steps[i].regex);
        qn_charsmap_deinit(&norm->steps[i].map);
    }
    *norm = (qn_norm){0};
}

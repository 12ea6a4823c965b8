#include "gen/grammar/look_letters.h"

#include "core/mem.h"

#include <stdlib.h>

enum { MAX_CODE = 0x10FFFF, MAX_SIGNATURE_BITS = 1 << 26 };

void qn_gr_letters_deinit(qn_gr_letters *l) {
    qn_free(l->classes);
    qn_free(l->sizes);
    qn_map_deinit(&l->index);
    qn_free(l->starts);
    qn_free(l->letter_of);
    qn_free(l->has);
    *l = (qn_gr_letters){0};
}

qn_status qn_gr_letters_add(uint32_t *out, qn_gr_letters *l, const qn_gr_code_range *ranges,
                            size_t n, qn_err *err) {
    // A class without ranges is a key of no bytes.
    uint32_t old = 0;
    if (!qn_grow((void **)&l->classes, &l->cap_classes, l->n_classes + 1, sizeof *l->classes) ||
        !qn_grow((void **)&l->sizes, &l->cap_sizes, l->n_classes + 1, sizeof *l->sizes) ||
        !qn_map_add(&l->index, (const char *)ranges, n * sizeof *ranges, (uint32_t)l->n_classes,
                    &old))
        return QN_NOMEM(err, "regular expression");
    if (old == l->n_classes) {
        l->classes[l->n_classes] = ranges;
        l->sizes[l->n_classes++] = n;
    }
    *out = old;
    return QN_OK;
}

static int compare_codes(const void *x, const void *y) {
    const uint32_t a = *(const uint32_t *)x, b = *(const uint32_t *)y;
    return (a > b) - (a < b);
}

static qn_status find_spans(qn_gr_letters *l, qn_err *err) {
    size_t n = 1, kept = 0;
    for (size_t c = 0; c < l->n_classes; c++) n += 2 * l->sizes[c];
    l->starts = qn_alloc(n, sizeof *l->starts);
    if (!l->starts) return QN_NOMEM(err, "regular expression");
    n = 1; // 0 is there
    for (size_t c = 0; c < l->n_classes; c++)
        for (size_t i = 0; i < l->sizes[c]; i++) {
            l->starts[n++] = l->classes[c][i].lo;
            l->starts[n++] = l->classes[c][i].hi + 1;
        }
    qsort(l->starts, n, sizeof *l->starts, compare_codes);
    for (size_t i = 0; i < n; i++)
        if (l->starts[i] <= MAX_CODE && (!kept || l->starts[kept - 1] != l->starts[i]))
            l->starts[kept++] = l->starts[i];
    l->n_spans = kept;
    return QN_OK;
}

static size_t find_span(const qn_gr_letters *l, uint32_t code) {
    size_t lo = 0, hi = l->n_spans;
    while (hi - lo > 1) {
        const size_t mid = (lo + hi) / 2;
        if (l->starts[mid] <= code)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

// For each span, the classes that have it: (span, n_words) bits.
static qn_status sign_spans(uint64_t *signs, size_t n_words, const qn_gr_letters *l,
                            uint64_t *steps, qn_err *err) {
    for (size_t c = 0; c < l->n_classes; c++)
        for (size_t i = 0; i < l->sizes[c]; i++) {
            size_t span = find_span(l, l->classes[c][i].lo);
            for (; span < l->n_spans && l->starts[span] <= l->classes[c][i].hi; span++) {
                if (*steps == 0)
                    return QN_FAIL(err, LIMIT, "regular expression: its classes are too many");
                --*steps;
                signs[span * n_words + c / 64] |= (uint64_t)1 << (c % 64);
            }
        }
    return QN_OK;
}

static qn_status group_spans(qn_gr_letters *l, const uint64_t *signs, size_t n_words, qn_err *err) {
    qn_map index = {0};
    qn_status status = QN_OK;
    for (size_t span = 0; !status && span < l->n_spans; span++) {
        const char *key = (const char *)(signs + span * n_words);
        uint32_t letter = 0;
        if (!qn_map_add(&index, key, n_words * sizeof *signs, (uint32_t)l->n, &letter))
            status = QN_NOMEM(err, "regular expression");
        if (letter == l->n) l->n++;
        l->letter_of[span] = letter;
    }
    qn_map_deinit(&index);
    return status;
}

static void fill_has(qn_gr_letters *l, const uint64_t *signs, size_t n_words) {
    for (size_t span = 0; span < l->n_spans; span++)
        for (size_t c = 0; c < l->n_classes; c++)
            if (signs[span * n_words + c / 64] >> (c % 64) & 1)
                l->has[c * l->n_words + l->letter_of[span] / 64] |= (uint64_t)1
                                                                    << (l->letter_of[span] % 64);
}

qn_status qn_gr_letters_make(qn_gr_letters *l, uint64_t *steps, qn_err *err) {
    QN_TRY(find_spans(l, err));
    const size_t n_words = l->n_classes / 64 + 1;
    if (l->n_spans * n_words * 64 > MAX_SIGNATURE_BITS)
        return QN_FAIL(err, LIMIT, "regular expression: its classes are too many");
    uint64_t *signs = qn_alloc(l->n_spans * n_words, sizeof *signs);
    l->letter_of = qn_alloc(l->n_spans, sizeof *l->letter_of);
    qn_status status = signs && l->letter_of ? QN_OK : QN_NOMEM(err, "regular expression");
    if (!status) status = sign_spans(signs, n_words, l, steps, err);
    if (!status) status = group_spans(l, signs, n_words, err);
    if (!status) {
        l->n_words = (l->n + 63) / 64;
        l->has = qn_alloc(l->n_words * (l->n_classes + 1), sizeof *l->has);
        if (l->has)
            fill_has(l, signs, n_words);
        else
            status = QN_NOMEM(err, "regular expression");
    }
    qn_free(signs);
    return status;
}

qn_status qn_gr_letters_ranges(qn_gr_code_range **out, size_t *n, const qn_gr_letters *l,
                               const uint64_t *bits, qn_err *err) {
    qn_gr_code_range *ranges = qn_alloc(l->n_spans, sizeof *ranges);
    if (!ranges) return QN_NOMEM(err, "regular expression");
    *n = 0;
    for (size_t span = 0; span < l->n_spans; span++) {
        const uint32_t letter = l->letter_of[span];
        const uint32_t end = span + 1 < l->n_spans ? l->starts[span + 1] - 1 : MAX_CODE;
        if (!(bits[letter / 64] >> (letter % 64) & 1)) continue;
        if (*n && ranges[*n - 1].hi + 1 == l->starts[span])
            ranges[*n - 1].hi = end;
        else
            ranges[(*n)++] = (qn_gr_code_range){l->starts[span], end};
    }
    *out = ranges;
    return QN_OK;
}

#include "gen/grammar/code_set.h"

#include "core/mem.h"

#include <stdlib.h>
#include <utf8proc.h>

void qn_gr_code_set_deinit(qn_gr_code_set *set) {
    qn_free(set->items);
    *set = (qn_gr_code_set){0};
}

static int compare_ranges(const void *x, const void *y) {
    const qn_gr_code_range *a = x, *b = y;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

size_t qn_gr_ranges_sort(qn_gr_code_range *ranges, size_t n) {
    size_t kept = 0;
    if (n) qsort(ranges, n, sizeof *ranges, compare_ranges);
    for (size_t i = 0; i < n; i++) {
        if (kept && ranges[i].lo <= ranges[kept - 1].hi + 1) {
            if (ranges[i].hi > ranges[kept - 1].hi) ranges[kept - 1].hi = ranges[i].hi;
        } else {
            ranges[kept++] = ranges[i];
        }
    }
    return kept;
}

qn_status qn_gr_code_set_add(qn_gr_code_set *set, uint32_t lo, uint32_t hi, qn_err *err) {
    if (!qn_grow((void **)&set->items, &set->cap, set->n + 1, sizeof *set->items))
        return QN_NOMEM(err, "regular expression");
    set->items[set->n++] = (qn_gr_code_range){lo, hi};
    return QN_OK;
}

qn_status qn_gr_code_set_add_all(qn_gr_code_set *set, const qn_gr_code_range *ranges, size_t n,
                                 bool negated, qn_err *err) {
    uint32_t from = 0;
    for (size_t i = 0; i < n; i++) {
        if (!negated)
            QN_TRY(qn_gr_code_set_add(set, ranges[i].lo, ranges[i].hi, err));
        else if (from < ranges[i].lo)
            QN_TRY(qn_gr_code_set_add(set, from, ranges[i].lo - 1, err));
        from = ranges[i].hi + 1;
    }
    return negated && from <= QN_MAX_CODE ? qn_gr_code_set_add(set, from, QN_MAX_CODE, err) : QN_OK;
}

static bool has_code(const qn_gr_code_set *set, uint32_t code) { // sorted
    size_t lo = 0, hi = set->n;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (set->items[mid].hi < code)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < set->n && set->items[lo].lo <= code;
}

// --- general categories --------------------------------------------------------------------------

#define BIT(name)     (1u << UTF8PROC_CATEGORY_##name)
#define LETTERS       (BIT(LU) | BIT(LL) | BIT(LT) | BIT(LM) | BIT(LO))
#define CASED_LETTERS (BIT(LU) | BIT(LL) | BIT(LT))
#define MARKS         (BIT(MN) | BIT(MC) | BIT(ME))
#define NUMBERS       (BIT(ND) | BIT(NL) | BIT(NO))
#define PUNCTUATION   (BIT(PC) | BIT(PD) | BIT(PS) | BIT(PE) | BIT(PI) | BIT(PF) | BIT(PO))
#define SYMBOLS       (BIT(SM) | BIT(SC) | BIT(SK) | BIT(SO))
#define SEPARATORS    (BIT(ZS) | BIT(ZL) | BIT(ZP))
#define OTHERS        (BIT(CC) | BIT(CF) | BIT(CS) | BIT(CO) | BIT(CN))

typedef struct category {
    const char *name, *long_name;
    uint32_t bits;
} category;

static const category categories[] = {
    {"L", "Letter", LETTERS},
    {"LC", "Cased_Letter", CASED_LETTERS},
    {"Lu", "Uppercase_Letter", BIT(LU)},
    {"Ll", "Lowercase_Letter", BIT(LL)},
    {"Lt", "Titlecase_Letter", BIT(LT)},
    {"Lm", "Modifier_Letter", BIT(LM)},
    {"Lo", "Other_Letter", BIT(LO)},
    {"M", "Mark", MARKS},
    {"M", "Combining_Mark", MARKS},
    {"Mn", "Nonspacing_Mark", BIT(MN)},
    {"Mc", "Spacing_Mark", BIT(MC)},
    {"Me", "Enclosing_Mark", BIT(ME)},
    {"N", "Number", NUMBERS},
    {"Nd", "Decimal_Number", BIT(ND)},
    {"Nd", "digit", BIT(ND)},
    {"Nl", "Letter_Number", BIT(NL)},
    {"No", "Other_Number", BIT(NO)},
    {"P", "Punctuation", PUNCTUATION},
    {"P", "punct", PUNCTUATION},
    {"Pc", "Connector_Punctuation", BIT(PC)},
    {"Pd", "Dash_Punctuation", BIT(PD)},
    {"Ps", "Open_Punctuation", BIT(PS)},
    {"Pe", "Close_Punctuation", BIT(PE)},
    {"Pi", "Initial_Punctuation", BIT(PI)},
    {"Pf", "Final_Punctuation", BIT(PF)},
    {"Po", "Other_Punctuation", BIT(PO)},
    {"S", "Symbol", SYMBOLS},
    {"Sm", "Math_Symbol", BIT(SM)},
    {"Sc", "Currency_Symbol", BIT(SC)},
    {"Sk", "Modifier_Symbol", BIT(SK)},
    {"So", "Other_Symbol", BIT(SO)},
    {"Z", "Separator", SEPARATORS},
    {"Zs", "Space_Separator", BIT(ZS)},
    {"Zl", "Line_Separator", BIT(ZL)},
    {"Zp", "Paragraph_Separator", BIT(ZP)},
    {"C", "Other", OTHERS},
    {"Cc", "Control", BIT(CC)},
    {"Cc", "cntrl", BIT(CC)},
    {"Cf", "Format", BIT(CF)},
    {"Cs", "Surrogate", BIT(CS)},
    {"Co", "Private_Use", BIT(CO)},
    {"Cn", "Unassigned", BIT(CN)},
    {"Any", "Any", UINT32_MAX},
    {"Assigned", "Assigned", ~BIT(CN)},
};

static qn_status spend(qn_gr_unicode *u, uint64_t steps, qn_err *err) {
    if (!u->steps) return QN_OK;
    if (*u->steps < steps)
        return QN_FAIL(err, LIMIT, "the regular expressions take too many steps");
    *u->steps -= steps;
    return QN_OK;
}

static qn_status add_run(qn_gr_unicode *u, uint32_t code, uint8_t found, qn_err *err) {
    if (u->n_runs && u->categories[u->n_runs - 1] == found) {
        u->runs[u->n_runs - 1].hi = code;
        return QN_OK;
    }
    if (!qn_grow((void **)&u->runs, &u->cap_runs, u->n_runs + 1, sizeof *u->runs) ||
        !qn_grow((void **)&u->categories, &u->cap_categories, u->n_runs + 1, 1))
        return QN_NOMEM(err, "regular expression");
    // What was skipped before it has no characters.
    u->runs[u->n_runs] = (qn_gr_code_range){code, code};
    u->categories[u->n_runs++] = found;
    return QN_OK;
}

// All characters by category. Planes 4 to 13 are empty, and not looked at.
static qn_status find_runs(qn_gr_unicode *u, qn_err *err) {
    enum { EMPTY_FROM = 0x40000, EMPTY_TO = 0xDFFFF };
    if (u->n_runs) return QN_OK;
    QN_TRY(spend(u, 1 << 15, err));
    for (uint32_t code = 0; code <= QN_MAX_CODE; code++) {
        if (code == EMPTY_FROM) {
            QN_TRY(add_run(u, EMPTY_FROM, UTF8PROC_CATEGORY_CN, err));
            code = EMPTY_TO;
        }
        QN_TRY(add_run(u, code, (uint8_t)utf8proc_category((utf8proc_int32_t)code), err));
    }
    return QN_OK;
}

static qn_status fail_property(qn_str name, qn_err *err) {
    const bool is_script =
        name.size > 3 && (!memcmp(name.data, "Scr", 3) || !memcmp(name.data, "sc=", 3) ||
                          !memcmp(name.data, "scx", 3));
    return QN_FAIL(err, UNSUPPORTED,
                   "%s%.*s} is not supported; supported are general categories (L, Lu, Nd, ...), "
                   "Any, Assigned and ASCII",
                   is_script ? "the script \\p{" : "\\p{", (int)name.size, name.data);
}

static bool find_category(uint32_t *bits, qn_str name) {
    static const char *const prefixes[] = {"General_Category=", "gc="};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        const size_t n = strlen(prefixes[i]);
        if (name.size <= n || memcmp(name.data, prefixes[i], n) != 0) continue;
        name.data += n;
        name.size -= n;
        break;
    }
    for (size_t i = 0; i < sizeof categories / sizeof *categories; i++) {
        *bits = categories[i].bits;
        if (qn_str_is(name, categories[i].name) || qn_str_is(name, categories[i].long_name))
            return true;
    }
    return false;
}

qn_status qn_gr_unicode_property(qn_gr_code_set *set, qn_gr_unicode *u, qn_str name, bool negated,
                                 qn_err *err) {
    static const qn_gr_code_range ascii[] = {{0, 0x7F}};
    uint32_t bits;
    if (qn_str_is(name, "ASCII")) return qn_gr_code_set_add_all(set, ascii, 1, negated, err);
    if (!find_category(&bits, name)) return fail_property(name, err);
    QN_TRY(find_runs(u, err));
    QN_TRY(spend(u, 4 * u->n_runs, err)); // the ranges are kept
    for (size_t i = 0; i < u->n_runs; i++)
        if ((bits >> u->categories[i] & 1) != negated)
            QN_TRY(qn_gr_code_set_add(set, u->runs[i].lo, u->runs[i].hi, err));
    return QN_OK;
}

// --- upper and lower case ------------------------------------------------------------------------

typedef struct qn_gr_fold {
    uint32_t to, code;
} qn_gr_fold;

// Simple case folding: one character to one.
static uint32_t fold(uint32_t code) {
    enum { DOTTED_I = 0x130 }; // folds to two characters, or in Turkish to one: not here
    utf8proc_int32_t to[4];
    int state = 0;
    if (code == DOTTED_I) return code;
    const utf8proc_ssize_t n =
        utf8proc_decompose_char((utf8proc_int32_t)code, to, 4, UTF8PROC_CASEFOLD, &state);
    return (uint32_t)(n == 1 ? to[0] : utf8proc_tolower((utf8proc_int32_t)code));
}

static int compare_folds(const void *x, const void *y) {
    const qn_gr_fold *a = x, *b = y;
    if (a->to != b->to) return a->to < b->to ? -1 : 1;
    return (a->code > b->code) - (a->code < b->code);
}

static qn_status add_fold(qn_gr_unicode *u, uint32_t to, uint32_t code, qn_err *err) {
    if (!qn_grow((void **)&u->folds, &u->cap_folds, u->n_folds + 1, sizeof *u->folds))
        return QN_NOMEM(err, "regular expression");
    u->folds[u->n_folds++] = (qn_gr_fold){to, code};
    return QN_OK;
}

// Every character that folds to another, and that one. Beyond plane 1 nothing has a case.
static qn_status find_folds(qn_gr_unicode *u, qn_err *err) {
    if (u->n_folds) return QN_OK;
    QN_TRY(spend(u, 1 << 14, err));
    for (uint32_t code = 0; code < 0x20000; code++) {
        const utf8proc_property_t *known = utf8proc_get_property((utf8proc_int32_t)code);
        if (known->casefold_seqindex == UINT16_MAX) continue;
        const uint32_t to = fold(code);
        if (to == code) continue;
        QN_TRY(add_fold(u, to, code, err));
        QN_TRY(add_fold(u, to, to, err));
    }
    qsort(u->folds, u->n_folds, sizeof *u->folds, compare_folds);
    return QN_OK;
}

qn_status qn_gr_unicode_fold(qn_gr_code_set *set, qn_gr_unicode *u, qn_err *err) {
    QN_TRY(find_folds(u, err));
    QN_TRY(spend(u, u->n_folds / 16, err));
    set->n = qn_gr_ranges_sort(set->items, set->n);
    qn_gr_code_set more = {0};
    qn_status status = QN_OK;
    for (size_t i = 0, end; !status && i < u->n_folds; i = end) {
        bool is_in = false;
        for (end = i; end < u->n_folds && u->folds[end].to == u->folds[i].to; end++)
            is_in = is_in || has_code(set, u->folds[end].code);
        for (size_t k = i; is_in && !status && k < end; k++)
            status = qn_gr_code_set_add(&more, u->folds[k].code, u->folds[k].code, err);
    }
    for (size_t i = 0; !status && i < more.n; i++)
        status = qn_gr_code_set_add(set, more.items[i].lo, more.items[i].hi, err);
    qn_gr_code_set_deinit(&more);
    set->n = qn_gr_ranges_sort(set->items, set->n);
    return status;
}

void qn_gr_unicode_deinit(qn_gr_unicode *u) {
    qn_free(u->runs);
    qn_free(u->categories);
    qn_free(u->folds);
    *u = (qn_gr_unicode){0};
}

// Methods of texts, as Python's str has them.
#include "chat/methods.h"

#include "chat/builtins.h"

#include <utf8proc.h>

// A text made of a part of another, as safe as that was.
static qn_jinja_val part_of(const qn_jinja_in *in, qn_str s) {
    qn_jinja_val v = qn_jinja_val_text(s);
    v.mark = in->self->mark;
    return v;
}

QN_BUILTIN(recase) {
    qn_buf buf = qn_jinja_buf(r);
    QN_TRY(qn_jinja_spend(r, in->self->as.s.size, 1, err));
    qn_jinja_text_recase(&buf, in->self->as.s, (qn_jinja_case)in->row->choice);
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = in->self->mark;
    return QN_OK;
}

enum { LEFT = 1, RIGHT = 2 };

QN_BUILTIN(strip) {
    qn_str set = {0};
    QN_TRY(qn_jinja_arg_text(&set, in, 0, err));
    qn_str s = in->self->as.s;
    QN_TRY(qn_jinja_text_strip_paid(&s, r, set.data ? &set : NULL, in->row->choice & LEFT,
                                    in->row->choice & RIGHT, err));
    *out = part_of(in, s);
    return QN_OK;
}

// The text between the characters `start` and `end` (arguments 1 and 2); false: start is past it.
static qn_status window(qn_jinja_val *out, bool *is_inside, qn_jinja_run *r, const qn_jinja_in *in,
                        int64_t *offset, qn_err *err) {
    const qn_jinja_val bounds[3] = {in->a[1], in->a[2], qn_jinja_val_int(1)};
    *is_inside = true;
    *offset = 0;
    *out = *in->self;
    if (!qn_jinja_arg_is_given(in, 1) && !qn_jinja_arg_is_given(in, 2)) return QN_OK;
    QN_TRY(qn_jinja_arg_int(offset, in, 1, err));
    QN_TRY(qn_jinja_text_pay_length(r, in->self->as.s, err));
    const int64_t n = (int64_t)qn_jinja_text_length(in->self->as.s);
    if (*offset < 0) *offset = *offset + n < 0 ? 0 : *offset + n;
    *is_inside = *offset <= n;
    return qn_jinja_val_slice(out, r, in->self, bounds, err);
}

static bool has_end(qn_str s, qn_str end, bool at_back) {
    if (end.size > s.size) return false;
    const size_t at = at_back ? s.size - end.size : 0;
    return end.size == 0 || memcmp(s.data + at, end.data, end.size) == 0;
}

// One text or a tuple of them; the choice is LEFT or RIGHT.
QN_BUILTIN(begins_or_ends) {
    const qn_jinja_val *ends = &in->a[0];
    size_t n = 1;
    qn_jinja_val within;
    int64_t offset;
    bool is_inside, has = false;
    if (ends->kind == QN_VAL_TUPLE) {
        n = ends->as.list->n;
        ends = ends->as.list->items;
    }
    QN_TRY(window(&within, &is_inside, r, in, &offset, err));
    for (size_t i = 0; i < n && !has; i++) {
        QN_TRY(qn_jinja_val_defined(&ends[i], err));
        QN_TRY(qn_jinja_charge(r, ends[i].kind == QN_VAL_TEXT ? ends[i].as.s.size : 0, err));
        if (ends[i].kind != QN_VAL_TEXT)
            return QN_FAIL(err, FORMAT, "%s wants a text, not a '%s'", in->row->name,
                           qn_jinja_val_type(&ends[i]));
        has = is_inside && has_end(within.as.s, ends[i].as.s, in->row->choice == RIGHT);
    }
    *out = qn_jinja_val_bool(has);
    return QN_OK;
}

QN_BUILTIN(remove_end) {
    qn_str end = {"", 0}, s = in->self->as.s;
    const bool at_back = in->row->choice == RIGHT;
    (void)r;
    QN_TRY(qn_jinja_arg_text(&end, in, 0, err));
    if (has_end(s, end, at_back))
        s = at_back ? qn_jinja_str_part(s, 0, s.size - end.size)
                    : qn_jinja_str_part(s, end.size, s.size);
    *out = part_of(in, s);
    return QN_OK;
}

// --- search --------------------------------------------------------------------------------------

enum { FIND = 0, FIND_LAST = 1, MUST_FIND = 2 };

QN_BUILTIN(find) {
    qn_str part = {"", 0};
    qn_jinja_val within;
    int64_t offset;
    bool is_inside;
    QN_TRY(qn_jinja_arg_text(&part, in, 0, err));
    QN_TRY(window(&within, &is_inside, r, in, &offset, err));
    const qn_str s = within.as.s;
    QN_TRY(qn_jinja_text_pay_search(r, s, err));
    size_t at = in->row->choice & FIND_LAST ? qn_jinja_text_find_last(s, part)
                                            : qn_jinja_text_find(s, part, 0);
    if (!is_inside) at = SIZE_MAX;
    if (at == SIZE_MAX && in->row->choice & MUST_FIND)
        return QN_FAIL(err, FORMAT, "%s: the part is not in the text", in->row->name);
    *out = qn_jinja_val_int(-1);
    if (at != SIZE_MAX)
        *out =
            qn_jinja_val_int(offset + (int64_t)qn_jinja_text_length(qn_jinja_str_part(s, 0, at)));
    return QN_OK;
}

QN_BUILTIN(count) {
    qn_str part = {"", 0};
    qn_jinja_val within;
    int64_t offset, n = 0;
    bool is_inside;
    QN_TRY(qn_jinja_arg_text(&part, in, 0, err));
    QN_TRY(window(&within, &is_inside, r, in, &offset, err));
    const qn_str s = within.as.s;
    QN_TRY(qn_jinja_text_pay_search(r, s, err));
    if (part.size == 0) n = (int64_t)qn_jinja_text_length(s) + 1;
    for (size_t at = 0; part.size && (at = qn_jinja_text_find(s, part, at)) != SIZE_MAX;
         at += part.size) {
        QN_TRY(qn_jinja_spend(r, QN_COST_MATCH, 1, err));
        n++;
    }
    *out = qn_jinja_val_int(is_inside ? n : 0);
    return QN_OK;
}

static qn_status replace_all(qn_buf *to, qn_jinja_run *r, qn_str s, qn_str old, qn_str new,
                             int64_t max, qn_err *err) {
    size_t at = 0;
    QN_TRY(qn_jinja_text_pay_search(r, s, err));
    while (max != 0 && at <= s.size) {
        size_t next = qn_jinja_text_find(s, old, at);
        if (next == SIZE_MAX) break;
        QN_TRY(qn_jinja_spend(r, QN_COST_MATCH, 1, err));
        qn_buf_add(to, s.data + at, next - at);
        qn_buf_add(to, new.data, new.size);
        max--;
        at = next + old.size;
        if (old.size) continue;
        uint32_t code; // between all characters
        const size_t n = at < s.size ? qn_jinja_char_at(s, at, &code) : 0;
        qn_buf_add(to, s.data + at, n);
        at += n;
        if (n == 0) return QN_OK;
    }
    qn_buf_add(to, s.data + at, s.size - at);
    return QN_OK;
}

QN_BUILTIN(replace) {
    qn_str old = {0}, new = {0};
    int64_t max = -1;
    QN_TRY(qn_jinja_arg_text(&old, in, 0, err));
    QN_TRY(qn_jinja_arg_text(&new, in, 1, err));
    QN_TRY(qn_jinja_arg_int(&max, in, 2, err));
    if (!old.data || !new.data) return QN_FAIL(err, FORMAT, "replace wants texts, not none");
    qn_buf buf = qn_jinja_buf(r);
    const qn_status status = replace_all(&buf, r, in->self->as.s, old, new, max, err);
    if (status) {
        qn_buf_deinit(&buf);
        return status;
    }
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = in->self->mark;
    return QN_OK;
}

// --- taking apart --------------------------------------------------------------------------------

static qn_status add_part(qn_jinja_items *to, qn_jinja_run *r, const qn_jinja_in *in, qn_str s,
                          qn_err *err) {
    const qn_jinja_val v = part_of(in, s);
    return qn_jinja_items_add(to, r, &v, err);
}

static size_t word_end(qn_str s, size_t at, bool is_space) {
    uint32_t code;
    while (at < s.size) {
        const size_t n = qn_jinja_char_at(s, at, &code);
        if (qn_jinja_char_is_space(code) != is_space) break;
        at += n;
    }
    return at;
}

static qn_status split_words(qn_jinja_items *to, qn_jinja_run *r, const qn_jinja_in *in,
                             int64_t max, qn_err *err) {
    const qn_str s = in->self->as.s;
    QN_TRY(qn_jinja_spend(r, s.size, QN_PER_CHAR, err));
    for (size_t at = word_end(s, 0, true); at < s.size; at = word_end(s, at, true)) {
        const bool is_rest = max-- == 0;
        const size_t end = is_rest ? s.size : word_end(s, at, false);
        QN_TRY(add_part(to, r, in, qn_jinja_str_part(s, at, end), err));
        at = end;
    }
    return QN_OK;
}

static qn_status split_at(qn_jinja_items *to, qn_jinja_run *r, const qn_jinja_in *in,
                          qn_str separator, int64_t max, qn_err *err) {
    const qn_str s = in->self->as.s;
    size_t at = 0;
    QN_TRY(qn_jinja_text_pay_search(r, s, err));
    for (; max != 0; max--) {
        const size_t next = qn_jinja_text_find(s, separator, at);
        if (next == SIZE_MAX) break;
        QN_TRY(add_part(to, r, in, qn_jinja_str_part(s, at, next), err));
        at = next + separator.size;
    }
    return add_part(to, r, in, qn_jinja_str_part(s, at, s.size), err);
}

QN_BUILTIN(split) {
    qn_str separator = {0};
    int64_t max = -1;
    qn_jinja_items to;
    QN_TRY(qn_jinja_arg_text(&separator, in, 0, err));
    QN_TRY(qn_jinja_arg_int(&max, in, 1, err));
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    if (separator.data && separator.size == 0) return QN_FAIL(err, FORMAT, "an empty separator");
    if (separator.data)
        QN_TRY(split_at(&to, r, in, separator, max, err));
    else
        QN_TRY(split_words(&to, r, in, max, err));
    *out = to.list;
    return QN_OK;
}

static void reverse_items(qn_jinja_val_list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        const qn_jinja_val v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

// From the back; without a limit that is the same as from the front.
QN_BUILTIN(rsplit) {
    qn_str separator = {0}, rest = in->self->as.s;
    int64_t max = -1;
    qn_jinja_items to;
    QN_TRY(qn_jinja_arg_text(&separator, in, 0, err));
    QN_TRY(qn_jinja_arg_int(&max, in, 1, err));
    if (max < 0) return split(out, r, in, err);
    if (!separator.data) return QN_FAIL(err, UNSUPPORTED, "rsplit by blanks with a limit");
    if (separator.size == 0) return QN_FAIL(err, FORMAT, "an empty separator");
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    QN_TRY(qn_jinja_text_pay_search(r, rest, err));
    for (; max > 0; max--) {
        const size_t at = qn_jinja_text_find_last(rest, separator);
        if (at == SIZE_MAX) break;
        QN_TRY(add_part(&to, r, in, qn_jinja_str_part(rest, at + separator.size, rest.size), err));
        rest = qn_jinja_str_part(rest, 0, at);
    }
    QN_TRY(add_part(&to, r, in, rest, err));
    reverse_items(to.list.as.list);
    *out = to.list;
    return QN_OK;
}

static bool is_line_end(uint32_t c) {
    return (c >= 0x0a && c <= 0x0d) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 ||
           c == 0x2029;
}

QN_BUILTIN(splitlines) {
    const qn_str s = in->self->as.s;
    const bool keeps = qn_jinja_arg_bool(in, 0, false);
    qn_jinja_items to;
    QN_TRY(qn_jinja_items_begin(&to, r, err));
    QN_TRY(qn_jinja_spend(r, s.size, QN_PER_CHAR, err));
    for (size_t begin = 0, at = 0; at < s.size;) {
        uint32_t code;
        const size_t n = qn_jinja_char_at(s, at, &code);
        size_t next = at + n;
        const bool is_end = is_line_end(code);
        if (code == '\r' && next < s.size && s.data[next] == '\n') next++;
        if (is_end)
            QN_TRY(add_part(&to, r, in, qn_jinja_str_part(s, begin, keeps ? next : at), err));
        if (!is_end && next == s.size)
            QN_TRY(add_part(&to, r, in, qn_jinja_str_part(s, begin, next), err));
        at = next;
        if (is_end) begin = at;
    }
    *out = to.list;
    return QN_OK;
}

QN_BUILTIN(partition) {
    const qn_str s = in->self->as.s;
    const bool at_back = in->row->choice == RIGHT;
    qn_str separator = {"", 0};
    QN_TRY(qn_jinja_arg_text(&separator, in, 0, err));
    if (separator.size == 0) return QN_FAIL(err, FORMAT, "an empty separator");
    QN_TRY(qn_jinja_text_pay_search(r, s, err));
    const size_t at =
        at_back ? qn_jinja_text_find_last(s, separator) : qn_jinja_text_find(s, separator, 0);
    QN_TRY(qn_jinja_val_list_make(out, r, QN_VAL_TUPLE, 3, err));
    qn_jinja_val *parts = out->as.list->items;
    for (int i = 0; i < 3; i++) parts[i] = part_of(in, (qn_str){"", 0});
    if (at == SIZE_MAX) {
        parts[at_back ? 2 : 0] = *in->self;
        return QN_OK;
    }
    parts[0] = part_of(in, qn_jinja_str_part(s, 0, at));
    parts[1] = part_of(in, separator);
    parts[2] = part_of(in, qn_jinja_str_part(s, at + separator.size, s.size));
    return QN_OK;
}

QN_BUILTIN(join) {
    const qn_jinja_val *items;
    size_t n;
    QN_TRY(qn_jinja_val_items(&items, &n, r, &in->a[0], err));
    QN_TRY(qn_jinja_spend(r, n, QN_PER_CHAR, err));
    qn_buf buf = qn_jinja_buf(r);
    for (size_t i = 0; i < n; i++) {
        if (items[i].kind != QN_VAL_TEXT) {
            qn_buf_deinit(&buf);
            return QN_FAIL(err, FORMAT, "join: item %zu is a '%s', not a text", i,
                           qn_jinja_val_type(&items[i]));
        }
        if (i) qn_buf_add(&buf, in->self->as.s.data, in->self->as.s.size);
        qn_buf_add(&buf, items[i].as.s.data, items[i].as.s.size);
    }
    QN_TRY(qn_jinja_text(out, r, &buf, err));
    out->mark = in->self->mark;
    return qn_jinja_charge(r, out->as.s.size, err);
}

// --- width ---------------------------------------------------------------------------------------

static void add_times(qn_buf *to, qn_str s, int64_t times) {
    for (; times > 0 && !to->failed; times--) qn_buf_add(to, s.data, s.size);
}

// The choice says where the text stays.
QN_BUILTIN(pad) {
    int64_t width = 0;
    qn_str fill = {" ", 1};
    QN_TRY(qn_jinja_arg_int(&width, in, 0, err));
    QN_TRY(qn_jinja_arg_text(&fill, in, 1, err));
    if (qn_jinja_text_length(fill) != 1)
        return QN_FAIL(err, FORMAT, "the filling is not one character");
    const int64_t n = (int64_t)qn_jinja_text_length(in->self->as.s);
    int64_t missing = width > n ? width - n : 0, left = 0;
    if (missing > (int64_t)r->limits.output)
        return QN_FAIL(err, LIMIT, "a width of %lld", (long long)width);
    QN_TRY(qn_jinja_spend(r, (size_t)missing, QN_PER_CHAR, err));
    if (in->row->choice == RIGHT) left = missing;
    if (in->row->choice == (LEFT | RIGHT)) left = missing / 2 + (missing & width & 1);
    qn_buf buf = qn_jinja_buf(r);
    add_times(&buf, fill, left);
    qn_buf_add(&buf, in->self->as.s.data, in->self->as.s.size);
    add_times(&buf, fill, missing - left);
    return qn_jinja_text(out, r, &buf, err);
}

QN_BUILTIN(zfill) {
    int64_t width = 0;
    const qn_str s = in->self->as.s;
    QN_TRY(qn_jinja_arg_int(&width, in, 0, err));
    const int64_t n = (int64_t)qn_jinja_text_length(s), missing = width > n ? width - n : 0;
    const size_t sign = s.size && (s.data[0] == '-' || s.data[0] == '+');
    qn_buf buf = qn_jinja_buf(r);
    if (missing > (int64_t)r->limits.output)
        return QN_FAIL(err, LIMIT, "a width of %lld", (long long)width);
    QN_TRY(qn_jinja_spend(r, (size_t)missing, QN_PER_CHAR, err));
    qn_buf_add(&buf, s.data, sign);
    add_times(&buf, (qn_str){"0", 1}, missing);
    qn_buf_add(&buf, s.data + sign, s.size - sign);
    return qn_jinja_text(out, r, &buf, err);
}

QN_BUILTIN(format) {
    QN_TRY(qn_jinja_text_format(out, r, in->self->as.s, in->args, err));
    out->mark = in->self->mark;
    return QN_OK;
}

// --- properties ----------------------------------------------------------------------------------

enum { IS_ALPHA, IS_DIGIT, IS_ALNUM, IS_SPACE, IS_UPPER, IS_LOWER, IS_ASCII, IS_TITLE };

static bool has_property(uint32_t code, int which) {
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
    const bool is_alpha = c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
    const bool is_digit = c == UTF8PROC_CATEGORY_ND;
    switch (which) {
    case IS_ALPHA:
        return is_alpha;
    case IS_DIGIT:
        return is_digit;
    case IS_ALNUM:
        return qn_jinja_char_is_alnum(code);
    case IS_SPACE:
        return qn_jinja_char_is_space(code);
    default:
        return code < 128;
    }
}

QN_BUILTIN(has_all) {
    const qn_str s = in->self->as.s;
    bool holds = s.size > 0 || in->row->choice == IS_ASCII;
    QN_TRY(qn_jinja_spend(r, s.size, QN_PER_CHAR, err));
    for (size_t at = 0; at < s.size && holds;) {
        uint32_t code;
        at += qn_jinja_char_at(s, at, &code);
        holds = has_property(code, in->row->choice);
    }
    *out = qn_jinja_val_bool(holds);
    return QN_OK;
}

// At least one letter that has a case, and none of the other.
QN_BUILTIN(has_case) {
    const qn_str s = in->self->as.s;
    bool has_one = false, has_other = false;
    QN_TRY(qn_jinja_spend(r, s.size, QN_PER_CHAR, err));
    for (size_t at = 0; at < s.size;) {
        uint32_t code;
        at += qn_jinja_char_at(s, at, &code);
        const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
        const bool is_upper = c == UTF8PROC_CATEGORY_LU, is_lower = c == UTF8PROC_CATEGORY_LL;
        const bool wants_upper = in->row->choice == IS_UPPER;
        has_one |= wants_upper ? is_upper : is_lower;
        has_other |= (wants_upper ? is_lower : is_upper) || c == UTF8PROC_CATEGORY_LT;
    }
    *out = qn_jinja_val_bool(has_one && !has_other);
    return QN_OK;
}

const qn_jinja_builtin qn_jinja_text_methods[] = {
    {"capitalize", recase, "", 0, QN_CASE_CAPITAL},
    {"casefold", recase, "", 0, QN_CASE_LOWER},
    {"center", pad, "width fillchar", 1, LEFT | RIGHT},
    {"count", count, "sub start end", 1, 0},
    {"encode", NULL, "", 0, 0},
    {"endswith", begins_or_ends, "suffix start end", 1, RIGHT},
    {"expandtabs", NULL, "", 0, 0},
    {"find", find, "sub start end", 1, FIND},
    {"format", format, "*", 0, 0},
    {"format_map", NULL, "", 0, 0},
    {"index", find, "sub start end", 1, FIND | MUST_FIND},
    {"isalnum", has_all, "", 0, IS_ALNUM},
    {"isalpha", has_all, "", 0, IS_ALPHA},
    {"isascii", has_all, "", 0, IS_ASCII},
    {"isdecimal", has_all, "", 0, IS_DIGIT},
    {"isdigit", has_all, "", 0, IS_DIGIT},
    {"isidentifier", NULL, "", 0, 0},
    {"islower", has_case, "", 0, IS_LOWER},
    {"isnumeric", has_all, "", 0, IS_DIGIT},
    {"isprintable", NULL, "", 0, 0},
    {"isspace", has_all, "", 0, IS_SPACE},
    {"istitle", NULL, "", 0, 0},
    {"isupper", has_case, "", 0, IS_UPPER},
    {"join", join, "iterable", 1, 0},
    {"ljust", pad, "width fillchar", 1, LEFT},
    {"lower", recase, "", 0, QN_CASE_LOWER},
    {"lstrip", strip, "chars", 0, LEFT},
    {"maketrans", NULL, "", 0, 0},
    {"partition", partition, "sep", 1, LEFT},
    {"removeprefix", remove_end, "prefix", 1, LEFT},
    {"removesuffix", remove_end, "suffix", 1, RIGHT},
    {"replace", replace, "old new count", 2, 0},
    {"rfind", find, "sub start end", 1, FIND_LAST},
    {"rindex", find, "sub start end", 1, FIND_LAST | MUST_FIND},
    {"rjust", pad, "width fillchar", 1, RIGHT},
    {"rpartition", partition, "sep", 1, RIGHT},
    {"rsplit", rsplit, "sep maxsplit", 0, 0},
    {"rstrip", strip, "chars", 0, RIGHT},
    {"split", split, "sep maxsplit", 0, 0},
    {"splitlines", splitlines, "keepends", 0, 0},
    {"startswith", begins_or_ends, "prefix start end", 1, LEFT},
    {"strip", strip, "chars", 0, LEFT | RIGHT},
    {"swapcase", recase, "", 0, QN_CASE_SWAP},
    {"title", recase, "", 0, QN_CASE_TITLE},
    {"translate", NULL, "", 0, 0},
    {"upper", recase, "", 0, QN_CASE_UPPER},
    {"zfill", zfill, "width", 1, 0},
};
const size_t qn_jinja_n_text_methods = sizeof qn_jinja_text_methods / sizeof *qn_jinja_text_methods;

#include "ir/step.h"

#include "core/mem.h"

#include <string.h>

// The header, word by word: then the offset of each field. "QST2" as a little-endian number.
enum {
    MAGIC = 0x32545351,
    HEAD_MAGIC = 0,
    HEAD_WORDS,
    HEAD_ROWS,
    HEAD_SEGS,
    HEAD_OUTS,
    HEAD_GROUPS,
    HEAD_PAGES,
    HEAD_EXTRA,
    HEAD_EXTRA_WIDTH,
    HEAD_COPIES,
    HEAD_TOP,
    HEAD_ENTRIES,
    HEAD_COMPUTED,
    HEAD_FIELDS,
    HEAD_SIZE = HEAD_FIELDS + QN_STEP_FIELDS,
    COPY_WORDS = sizeof(qn_copy) / sizeof(int32_t),
    POSITIONS = 4,
};
_Static_assert(sizeof(float) == sizeof(int32_t), "words");

// --- layout --------------------------------------------------------------------------------------

static bool product(int64_t *out, int64_t a, int64_t b, int64_t c) {
    return qn_i64_mul(out, a, b) && qn_i64_mul(out, *out, c);
}

// Words of each field. False: a size is negative or a product overflows.
static bool count_words(int64_t words[QN_STEP_FIELDS], const qn_step_sizes *s) {
    const int64_t sizes[] = {s->rows,  s->segs,  s->outs,        s->groups,
                             s->pages, s->extra, s->extra_width, s->copies};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (sizes[i] < 0 || sizes[i] > INT32_MAX) return false;
    }
    const int64_t by_segs[] = {QN_STEP_SEG_PAST, QN_STEP_SEG_SLOT, QN_STEP_SEG_ACCEPT,
                               QN_STEP_SEG_COMMIT, QN_STEP_SEG_ADAPTER};
    words[QN_STEP_IDS] = words[QN_STEP_ROW_SEG] = s->rows;
    words[QN_STEP_POS] = POSITIONS * s->rows;
    words[QN_STEP_SEG_ROW] = s->segs + 1;
    for (size_t i = 0; i < sizeof by_segs / sizeof *by_segs; i++) words[by_segs[i]] = s->segs;
    words[QN_STEP_ROW_OUT] = words[QN_STEP_OUT_FULL] = s->outs;
    words[QN_STEP_EXTRA_ROW] = s->extra ? s->rows : 0;
    return product(&words[QN_STEP_SEG_PAGES], s->segs, s->groups, s->pages) &&
           product(&words[QN_STEP_EXTRA], s->extra, s->extra_width, 1) &&
           product(&words[QN_STEP_COPIES], s->copies, COPY_WORDS, 1);
}

// Offsets of the fields, one after the other; the end is that of the message. False: too large.
static bool lay_out(int32_t at[QN_STEP_FIELDS], int32_t *end, const qn_step_sizes *sizes) {
    int64_t words[QN_STEP_FIELDS], sum = HEAD_SIZE;
    if (!count_words(words, sizes)) return false;
    for (int f = 0; f < QN_STEP_FIELDS; f++) {
        at[f] = (int32_t)sum;
        if (words[f] > INT32_MAX - sum) return false;
        sum += words[f];
    }
    *end = (int32_t)sum;
    return true;
}

qn_status qn_step_measure(size_t *words, const qn_step_sizes *s, qn_err *err) {
    int32_t at[QN_STEP_FIELDS], end;
    if (!lay_out(at, &end, s))
        return QN_FAIL(err, LIMIT,
                       "a step of %lld rows, %lld segments of %lld x %lld pages, %lld x %lld given "
                       "numbers: more than %d words",
                       (long long)s->rows, (long long)s->segs, (long long)s->groups,
                       (long long)s->pages, (long long)s->extra, (long long)s->extra_width,
                       INT32_MAX);
    *words = (size_t)end;
    return QN_OK;
}

void qn_step_begin(int32_t *message, const qn_step_sizes *s, int64_t top, int64_t entries) {
    const int32_t head[HEAD_FIELDS] = {
        [HEAD_MAGIC] = MAGIC,
        [HEAD_ROWS] = (int32_t)s->rows,
        [HEAD_SEGS] = (int32_t)s->segs,
        [HEAD_OUTS] = (int32_t)s->outs,
        [HEAD_GROUPS] = (int32_t)s->groups,
        [HEAD_PAGES] = (int32_t)s->pages,
        [HEAD_EXTRA] = (int32_t)s->extra,
        [HEAD_EXTRA_WIDTH] = (int32_t)s->extra_width,
        [HEAD_COPIES] = (int32_t)s->copies,
        [HEAD_TOP] = (int32_t)top,
        [HEAD_ENTRIES] = (int32_t)entries,
    };
    memcpy(message, head, sizeof head);
    (void)lay_out(message + HEAD_FIELDS, &message[HEAD_WORDS], s); // it was measured
}

void qn_step_set_computed(int32_t *message, int64_t computed) {
    message[HEAD_COMPUTED] = (int32_t)computed;
}

size_t qn_step_words(const int32_t *message) { return (size_t)message[HEAD_WORDS]; }

int32_t *qn_step_at(int32_t *message, qn_step_field field) {
    return message + message[HEAD_FIELDS + field];
}

qn_step_field qn_step_find_field(const char *input) {
    static const struct {
        const char *name;
        qn_step_field field;
    } inputs[] = {{"ids", QN_STEP_IDS},
                  {"row_out", QN_STEP_ROW_OUT},
                  {"extra", QN_STEP_EXTRA},
                  {"extra_row", QN_STEP_EXTRA_ROW}};
    for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++) {
        if (strcmp(input, inputs[i].name) == 0) return inputs[i].field;
    }
    return QN_STEP_FIELDS;
}

void *qn_step_input(int32_t *message, qn_step_field field) {
    const bool is_given = field == QN_STEP_EXTRA || field == QN_STEP_EXTRA_ROW;
    return is_given && !message[HEAD_EXTRA] ? NULL : qn_step_at(message, field);
}

void qn_step_view(qn_step *out, const int32_t *m) {
    const int32_t *fields[QN_STEP_FIELDS];
    for (int f = 0; f < QN_STEP_FIELDS; f++) fields[f] = m + m[HEAD_FIELDS + f];
    *out = (qn_step){.n_rows = m[HEAD_ROWS],
                     .n_segs = m[HEAD_SEGS],
                     .n_out = m[HEAD_OUTS],
                     .ids = fields[QN_STEP_IDS],
                     .pos = fields[QN_STEP_POS],
                     .row_seg = fields[QN_STEP_ROW_SEG],
                     .seg_row = fields[QN_STEP_SEG_ROW],
                     .seg_past = fields[QN_STEP_SEG_PAST],
                     .seg_pages = fields[QN_STEP_SEG_PAGES],
                     .pages_per_seg = m[HEAD_PAGES],
                     .n_groups = m[HEAD_GROUPS],
                     .seg_slot = fields[QN_STEP_SEG_SLOT],
                     .seg_accept = fields[QN_STEP_SEG_ACCEPT],
                     .seg_commit = fields[QN_STEP_SEG_COMMIT],
                     .seg_adapter = fields[QN_STEP_SEG_ADAPTER],
                     .row_out = fields[QN_STEP_ROW_OUT],
                     .out_full = fields[QN_STEP_OUT_FULL],
                     .extra_row = m[HEAD_EXTRA] ? fields[QN_STEP_EXTRA_ROW] : NULL,
                     .extra = (const float *)(const void *)fields[QN_STEP_EXTRA],
                     .n_extra = m[HEAD_EXTRA],
                     .extra_width = m[HEAD_EXTRA_WIDTH],
                     .copies = (const qn_copy *)(const void *)fields[QN_STEP_COPIES],
                     .n_copies = m[HEAD_COPIES],
                     .top = m[HEAD_TOP],
                     .entries = m[HEAD_ENTRIES],
                     .computed = m[HEAD_COMPUTED]};
}

// --- messages from outside -----------------------------------------------------------------------

typedef struct checking {
    qn_step step;
    const qn_step_limits *limits;
    unsigned char *written; // a bit for each page of the group at hand
    qn_err *err;
} checking;

static qn_status out_of_range(const checking *c, const char *field, int64_t i, int64_t value,
                              int64_t low, int64_t high) {
    return QN_FAIL(c->err, FORMAT, "step: %s[%lld] is %lld, want %lld to %lld", field, (long long)i,
                   (long long)value, (long long)low, (long long)high);
}

static qn_status check_range(const checking *c, const char *field, const int32_t *values, int64_t n,
                             int64_t low, int64_t high) {
    for (int64_t i = 0; i < n; i++) {
        if (values[i] < low || values[i] > high)
            return out_of_range(c, field, i, values[i], low, high);
    }
    return QN_OK;
}

// Sizes and offsets: what lies between them is private to the message.
static qn_status check_head(const int32_t *m, size_t words, const qn_step_limits *l, qn_err *err) {
    const struct {
        const char *name;
        int at;
        int64_t low, high;
    } sizes[] = {{"rows", HEAD_ROWS, 0, l->rows},
                 {"segments", HEAD_SEGS, 0, l->segs},
                 {"wanted rows", HEAD_OUTS, 0, l->outs},
                 {"groups", HEAD_GROUPS, l->n_groups, l->n_groups},
                 {"pages", HEAD_PAGES, 0, (l->context + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS},
                 {"given rows", HEAD_EXTRA, 0, l->extra_width ? l->rows : 0},
                 {"width of given rows", HEAD_EXTRA_WIDTH, 0, l->extra_width},
                 {"copies", HEAD_COPIES, 0, INT32_MAX},
                 {"top", HEAD_TOP, 0, l->top},
                 {"entries", HEAD_ENTRIES, 0, l->vocab},
                 {"computed entries", HEAD_COMPUTED, 0, l->vocab}};
    if (words < HEAD_SIZE || m[HEAD_MAGIC] != MAGIC)
        return QN_FAIL(err, FORMAT, "step: %zu words that are not a step", words);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (m[sizes[i].at] < sizes[i].low || m[sizes[i].at] > sizes[i].high)
            return QN_FAIL(err, FORMAT, "step: %s: %d, want %lld to %lld", sizes[i].name,
                           m[sizes[i].at], (long long)sizes[i].low, (long long)sizes[i].high);
    }
    const qn_step_sizes s = {.rows = m[HEAD_ROWS],
                             .segs = m[HEAD_SEGS],
                             .outs = m[HEAD_OUTS],
                             .groups = m[HEAD_GROUPS],
                             .pages = m[HEAD_PAGES],
                             .extra = m[HEAD_EXTRA],
                             .extra_width = m[HEAD_EXTRA_WIDTH],
                             .copies = m[HEAD_COPIES]};
    int32_t at[QN_STEP_FIELDS], end = -1;
    if (!lay_out(at, &end, &s) || (size_t)end != words || m[HEAD_WORDS] != end)
        return QN_FAIL(err, FORMAT, "step: %zu words, its header counts %d, its sizes need %d",
                       words, m[HEAD_WORDS], end);
    for (int f = 0; f < QN_STEP_FIELDS; f++) {
        if (m[HEAD_FIELDS + f] != at[f])
            return QN_FAIL(err, FORMAT, "step: field %d begins at word %d, want %d", f,
                           m[HEAD_FIELDS + f], at[f]);
    }
    if (s.extra && s.extra_width != l->extra_width)
        return QN_FAIL(err, FORMAT, "step: given rows of %d numbers, want %lld",
                       m[HEAD_EXTRA_WIDTH], (long long)l->extra_width);
    if ((s.rows == 0) != (s.segs == 0))
        return QN_FAIL(err, FORMAT, "step: %d rows in %d segments", m[HEAD_ROWS], m[HEAD_SEGS]);
    return QN_OK;
}

// Segments cover the rows from the first on, each with its own; what follows them is inert.
static qn_status check_segments(const checking *c) {
    const qn_step *s = &c->step;
    for (int64_t b = 0; b <= s->n_segs; b++) {
        const int64_t low = b ? (int64_t)s->seg_row[b - 1] + 1 : 0, high = b ? s->n_rows : 0;
        if (s->seg_row[b] < low || s->seg_row[b] > high)
            return out_of_range(c, "seg_row", b, s->seg_row[b], low, high);
    }
    int64_t seg = 0;
    for (int64_t t = 0; t < s->n_rows; t++) {
        while (seg < s->n_segs && t >= s->seg_row[seg + 1]) seg++;
        const int64_t want = seg < s->n_segs ? seg : -1;
        if (s->row_seg[t] != want) return out_of_range(c, "row_seg", t, s->row_seg[t], want, want);
    }
    for (int64_t b = 0; b < s->n_segs; b++) {
        const int64_t rows = s->seg_row[b + 1] - s->seg_row[b];
        if (s->seg_past[b] < 0 || s->seg_past[b] > c->limits->context - rows)
            return out_of_range(c, "seg_past", b, s->seg_past[b], 0, c->limits->context - rows);
        if (s->seg_commit[b] < 0 || s->seg_commit[b] > rows)
            return out_of_range(c, "seg_commit", b, s->seg_commit[b], 0, rows);
    }
    return QN_OK;
}

// Whether it was set before.
static bool set_bit(unsigned char *bits, int32_t i) {
    const unsigned char bit = (unsigned char)(1 << i % 8);
    const bool was_set = bits[i / 8] & bit;
    bits[i / 8] |= bit;
    return was_set;
}

static qn_status find_shared_slot(const checking *c, unsigned char *taken) {
    const qn_step *s = &c->step;
    for (int64_t b = 0; b < s->n_segs; b++) {
        if (set_bit(taken, s->seg_slot[b]))
            return QN_FAIL(c->err, FORMAT, "step: segment %lld has slot %d, as one before it has",
                           (long long)b, s->seg_slot[b]);
    }
    return QN_OK;
}

static qn_status check_slots(const checking *c) {
    const qn_step *s = &c->step;
    const int64_t n_slots = c->limits->n_slots, log_rows = n_slots ? c->limits->log_rows : 0;
    QN_TRY(check_range(c, "seg_slot", s->seg_slot, s->n_segs, 0, n_slots ? n_slots - 1 : 0));
    QN_TRY(check_range(c, "seg_accept", s->seg_accept, s->n_segs, 0, log_rows));
    if (!n_slots) return QN_OK;
    for (int64_t b = 0; b < s->n_segs; b++) {
        const int64_t rows = s->seg_row[b + 1] - s->seg_row[b];
        if (rows - s->seg_commit[b] > log_rows)
            return out_of_range(c, "seg_commit", b, s->seg_commit[b], rows - log_rows, rows);
    }
    unsigned char *taken = qn_alloc((size_t)n_slots / 8 + 1, 1);
    if (!taken) return QN_NOMEM(c->err, "a step");
    const qn_status status = find_shared_slot(c, taken);
    qn_free(taken);
    return status;
}

static const int32_t *pages_of(const qn_step *s, int64_t b, int64_t g) {
    return s->seg_pages + (b * s->n_groups + g) * s->pages_per_seg;
}

// Of a segment: [first, end) are pages that its rows see, of which they write those from `own` on.
typedef struct page_range {
    int64_t first, own, end;
} page_range;

static page_range find_pages(const checking *c, int64_t b, int64_t g) {
    const qn_step *s = &c->step;
    const int64_t past = s->seg_past[b], window = c->limits->windows[g];
    const int64_t rows = s->seg_row[b + 1] - s->seg_row[b];
    const int64_t begin = window > 0 && past >= window ? past - window + 1 : 0;
    return (page_range){begin / QN_PAGE_ROWS, past / QN_PAGE_ROWS,
                        (past + rows + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS};
}

static qn_status mark_written(const checking *c, int64_t b, int64_t g) {
    const page_range range = find_pages(c, b, g);
    const int32_t *pages = pages_of(&c->step, b, g);
    const int64_t last = c->limits->n_pages[g] - 1;
    if (range.end > c->step.pages_per_seg)
        return QN_FAIL(c->err, FORMAT, "step: segment %lld needs %lld pages, the table has %lld",
                       (long long)b, (long long)range.end, (long long)c->step.pages_per_seg);
    for (int64_t i = 0; i < c->step.pages_per_seg; i++) {
        const bool is_seen = i >= range.first && i < range.end;
        if (pages[i] < (is_seen ? 0 : -1) || pages[i] > last)
            return out_of_range(c, "seg_pages", i, pages[i], is_seen ? 0 : -1, last);
        if (i < range.own || i >= range.end) continue;
        if (set_bit(c->written, pages[i]))
            return QN_FAIL(c->err, FORMAT, "step: page %d of group %lld is written twice", pages[i],
                           (long long)g);
    }
    return QN_OK;
}

// What one segment writes, no other may read.
static qn_status check_shared(const checking *c, int64_t b, int64_t g) {
    const page_range range = find_pages(c, b, g);
    const int32_t *pages = pages_of(&c->step, b, g);
    for (int64_t i = range.first; i < range.own; i++) {
        if (c->written[pages[i] / 8] >> pages[i] % 8 & 1)
            return QN_FAIL(c->err, FORMAT,
                           "step: segment %lld reads page %d of group %lld, which is written",
                           (long long)b, pages[i], (long long)g);
    }
    return QN_OK;
}

static qn_status check_pages(checking *c) {
    for (int64_t g = 0; g < c->step.n_groups; g++) {
        qn_status status = QN_OK;
        c->written = qn_alloc((size_t)c->limits->n_pages[g] / 8 + 1, 1);
        if (!c->written) return QN_NOMEM(c->err, "a step");
        for (int64_t b = 0; b < c->step.n_segs && !status; b++) status = mark_written(c, b, g);
        for (int64_t b = 0; b < c->step.n_segs && !status; b++) status = check_shared(c, b, g);
        qn_free(c->written);
        if (status) return status;
    }
    return QN_OK;
}

static qn_status check_copies(const checking *c) {
    const qn_step_limits *l = c->limits;
    for (int64_t i = 0; i < c->step.n_copies; i++) {
        const qn_copy *copy = &c->step.copies[i];
        const bool is_page = copy->kind == QN_COPY_PAGE;
        if (copy->kind < 0 || copy->kind >= QN_COPY_KINDS)
            return out_of_range(c, "copies.kind", i, copy->kind, 0, QN_COPY_KINDS - 1);
        if (copy->group < 0 || copy->group >= (is_page ? l->n_groups : 1))
            return out_of_range(c, "copies.group", i, copy->group, 0,
                                (is_page ? l->n_groups : 1) - 1);
        const int64_t last = (is_page ? l->n_pages[copy->group] : l->n_slots) - 1;
        if (copy->from < 0 || copy->from > last)
            return out_of_range(c, "copies.from", i, copy->from, 0, last);
        if (copy->to < 0 || copy->to > last)
            return out_of_range(c, "copies.to", i, copy->to, 0, last);
        if (copy->log_rows < 0 || copy->log_rows > (is_page ? 0 : l->log_rows))
            return out_of_range(c, "copies.log_rows", i, copy->log_rows, 0,
                                is_page ? 0 : l->log_rows);
    }
    return QN_OK;
}

static qn_status check_fields(checking *c) {
    const qn_step *s = &c->step;
    const qn_step_limits *l = c->limits;
    QN_TRY(check_range(c, "ids", s->ids, s->n_rows, 0, l->vocab - 1));
    QN_TRY(check_range(c, "pos", s->pos, POSITIONS * s->n_rows, 0, INT32_MAX));
    QN_TRY(check_segments(c));
    QN_TRY(check_slots(c));
    QN_TRY(check_range(c, "seg_adapter", s->seg_adapter, s->n_segs, -1, l->n_adapters - 1));
    QN_TRY(check_range(c, "row_out", s->row_out, s->n_out, 0, s->n_rows - 1));
    QN_TRY(check_range(c, "out_full", s->out_full, s->n_out, 0, 1));
    if (s->n_extra)
        QN_TRY(check_range(c, "extra_row", s->extra_row, s->n_rows, -1, s->n_extra - 1));
    QN_TRY(check_copies(c));
    return check_pages(c);
}

qn_status qn_step_check(const int32_t *message, size_t words, const qn_step_limits *limits,
                        qn_err *err) {
    checking c = {.limits = limits, .err = err};
    QN_TRY(check_head(message, words, limits, err));
    qn_step_view(&c.step, message);
    return check_fields(&c);
}

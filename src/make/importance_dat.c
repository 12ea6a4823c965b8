#include "make/importance_dat.h"

#include "core/arena.h"
#include "core/map.h"
#include "core/mem.h"
#include "quant/half.h"

#include <math.h>
#include <string.h>

enum { LONGEST_NAME = 255, LONGEST_DATASET = 4095, SMALLEST_ENTRY = 17 };

typedef struct entry {
    const char *name;
    int64_t at, n; // bytes before its values; how many there are
    int32_t calls;
} entry;

struct qn_importance_dat {
    qn_file file;
    entry *entries; // (n)
    size_t n, cap;
    qn_map by_name;
    qn_arena names;
    int64_t n_chunks;
    char dataset[LONGEST_DATASET + 1];
};

// Where reading is.
typedef struct reader {
    const qn_file *file;
    int64_t at;
    qn_err *err;
} reader;

static int64_t bytes_left(const reader *r) { return r->file->size - r->at; }

static qn_status read_number(int32_t *out, reader *r, const char *what, int32_t min, int32_t max) {
    uint8_t bytes[4];
    if (bytes_left(r) < 4)
        return QN_FAIL(r->err, FORMAT, "ends at byte %lld, before the number of %s",
                       (long long)r->file->size, what);
    QN_TRY(qn_file_read(r->file, r->at, bytes, sizeof bytes, r->err));
    const int32_t n = (int32_t)qn_load_u32(bytes);
    if (n < min || n > max)
        return QN_FAIL(r->err, FORMAT, "%ld %s at byte %lld, want %ld to %ld", (long)n, what,
                       (long long)r->at, (long)min, (long)max);
    r->at += 4;
    *out = n;
    return QN_OK;
}

// A text with its length before it; `to` has room for max bytes and a NUL.
static qn_status read_text(char *to, reader *r, const char *what, int32_t min, int32_t max) {
    int32_t n;
    QN_TRY(read_number(&n, r, what, min, max));
    if (n > bytes_left(r))
        return QN_FAIL(r->err, FORMAT, "%ld %s at byte %lld of %lld", (long)n, what,
                       (long long)r->at, (long long)r->file->size);
    QN_TRY(qn_file_read(r->file, r->at, to, (size_t)n, r->err));
    to[n] = 0;
    if (strlen(to) != (size_t)n)
        return QN_FAIL(r->err, FORMAT, "a NUL among the %ld %s at byte %lld", (long)n, what,
                       (long long)r->at);
    r->at += n;
    return QN_OK;
}

static qn_status check_values(const qn_importance_dat *dat, const entry *e, qn_err *err) {
    enum { STEP = 1024 };
    uint8_t bytes[4 * STEP];
    for (int64_t i = 0; i < e->n; i += STEP) {
        const int64_t n = e->n - i < STEP ? e->n - i : STEP;
        QN_TRY(qn_file_read(&dat->file, e->at + 4 * i, bytes, (size_t)(4 * n), err));
        for (int64_t k = 0; k < n; k++) {
            const float x = qn_load_f32(bytes + 4 * k);
            if (!(x >= 0 && isfinite(x)))
                return QN_FAIL(err, FORMAT, "%s: value %g at position %lld, want 0 or more",
                               e->name, (double)x, (long long)(i + k));
        }
    }
    return QN_OK;
}

// Keeps a copy of its name.
static qn_status add_entry(qn_importance_dat *dat, const entry *e, qn_err *err) {
    const size_t size = strlen(e->name);
    void *entries = dat->entries;
    if (!qn_grow(&entries, &dat->cap, dat->n + 1, sizeof *dat->entries))
        return QN_NOMEM(err, "importance file");
    dat->entries = entries;
    char *name = qn_arena_strdup(&dat->names, e->name, size);
    uint32_t at = (uint32_t)dat->n, first;
    if (!name || !qn_map_add(&dat->by_name, name, size, at, &first))
        return QN_NOMEM(err, "importance file");
    if (first != at)
        return QN_FAIL(err, FORMAT, "%s: entries %lu and %lu", name, (unsigned long)first,
                       (unsigned long)at);
    dat->entries[dat->n] = *e;
    dat->entries[dat->n++].name = name;
    return QN_OK;
}

static qn_status read_entry(qn_importance_dat *dat, reader *r) {
    int32_t n;
    char name[LONGEST_NAME + 1];
    entry e = {.name = name};
    QN_TRY(read_text(name, r, "bytes of a name", 1, LONGEST_NAME));
    QN_TRY(read_number(&e.calls, r, "calls", 1, INT32_MAX));
    QN_TRY(read_number(&n, r, "values", 1, INT32_MAX));
    e.n = n;
    e.at = r->at;
    if (e.n > bytes_left(r) / 4)
        return QN_FAIL(r->err, FORMAT, "%s: %lld values in the last %lld bytes", e.name,
                       (long long)e.n, (long long)bytes_left(r));
    QN_TRY(check_values(dat, &e, r->err));
    r->at += 4 * e.n;
    return add_entry(dat, &e, r->err);
}

// How many entries follow, which is all that tells another kind of file.
static qn_status read_count(int32_t *out, reader *r) {
    static const char what[] = "not an importance file, neither GGUF nor the older kind";
    uint8_t bytes[4];
    if (bytes_left(r) < 4)
        return QN_FAIL(r->err, FORMAT, "%s: %lld bytes", what, (long long)r->file->size);
    QN_TRY(qn_file_read(r->file, 0, bytes, sizeof bytes, r->err));
    const int32_t n = (int32_t)qn_load_u32(bytes);
    r->at = 4;
    if (n < 1 || n > bytes_left(r) / SMALLEST_ENTRY)
        return QN_FAIL(r->err, FORMAT, "%s: %ld entries in %lld bytes", what, (long)n,
                       (long long)r->file->size);
    *out = n;
    return QN_OK;
}

static qn_status read_file(qn_importance_dat *dat, qn_err *err) {
    reader r = {.file = &dat->file, .err = err};
    int32_t n, chunks = 0;
    QN_TRY(read_count(&n, &r));
    for (int32_t i = 0; i < n; i++) QN_TRY(read_entry(dat, &r));
    if (bytes_left(&r) == 0) return QN_OK; // of the oldest kind
    QN_TRY(read_number(&chunks, &r, "chunks", 0, INT32_MAX));
    dat->n_chunks = chunks;
    QN_TRY(read_text(dat->dataset, &r, "bytes of the name of the text", 0, LONGEST_DATASET));
    if (bytes_left(&r) == 0) return QN_OK;
    return QN_FAIL(err, FORMAT, "%lld bytes after its end", (long long)bytes_left(&r));
}

qn_status qn_importance_dat_open(qn_importance_dat **out, qn_file *file, qn_err *err) {
    qn_importance_dat *dat = qn_alloc(1, sizeof *dat);
    if (!dat) {
        qn_file_close(file);
        return QN_NOMEM(err, "importance file");
    }
    dat->file = *file;
    const qn_status status = read_file(dat, err);
    if (status)
        qn_importance_dat_close(dat);
    else
        *out = dat;
    return status;
}

void qn_importance_dat_close(qn_importance_dat *dat) {
    if (!dat) return;
    qn_file_close(&dat->file);
    qn_map_deinit(&dat->by_name);
    qn_arena_deinit(&dat->names);
    qn_free(dat->entries);
    qn_free(dat);
}

int64_t qn_importance_dat_n_entries(const qn_importance_dat *dat) { return (int64_t)dat->n; }
int64_t qn_importance_dat_n_chunks(const qn_importance_dat *dat) { return dat->n_chunks; }
const char *qn_importance_dat_dataset(const qn_importance_dat *dat) { return dat->dataset; }

static const entry *find(const qn_importance_dat *dat, const char *weight) {
    uint32_t i;
    return qn_map_find(&dat->by_name, weight, strlen(weight), &i) ? &dat->entries[i] : NULL;
}

bool qn_importance_dat_has(const qn_importance_dat *dat, const char *weight) {
    return find(dat, weight) != NULL;
}

qn_status qn_importance_dat_load(float **values, float *calls, const qn_importance_dat *dat,
                                 const char *weight, int64_t n, qn_err *err) {
    const entry *e = find(dat, weight);
    if (e->n != n)
        return QN_FAIL(err, FORMAT, "%s: importance of %lld columns, the weight has %lld", weight,
                       (long long)e->n, (long long)n);
    float *to = qn_alloc((size_t)n, sizeof *to);
    if (!to) return QN_NOMEM(err, weight);
    const qn_status status = qn_file_read(&dat->file, e->at, to, (size_t)n * sizeof *to, err);
    if (status) {
        qn_free(to);
        return status;
    }
    *calls = (float)e->calls;
    *values = to;
    return QN_OK;
}

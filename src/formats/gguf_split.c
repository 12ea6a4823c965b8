// A GGUF on its own or split into parts, "<base>-00001-of-00003.gguf" and so on in one folder.
//
// Every part is a complete GGUF with keys split.no (from 0), split.count and split.tensors.count
// (of all parts). The model's keys are in the first part. Opening any part opens the set.
#include "formats/source_build.h"

#include "core/mem.h"

#include <stdio.h>

enum { DIGITS = 5, MAX_PARTS = 99999 };

// Five digits at `text`, or -1.
static int number_at(const char *text) {
    int number = 0;
    for (int i = 0; i < DIGITS; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        number = 10 * number + (text[i] - '0');
    }
    return number;
}

bool qn_gguf_split_name(const char *path, size_t *base, int *number, int *count) {
    const char *pattern = "-NNNNN-of-NNNNN.gguf";
    const size_t size = strlen(path), tail = strlen(pattern);
    if (size <= tail) return false;
    const char *at = path + size - tail;
    if (at[0] != '-' || memcmp(at + 6, "-of-", 4) != 0 || strcmp(at + 15, ".gguf") != 0)
        return false;
    const int no = number_at(at + 1), of = number_at(at + 10);
    if (no < 1 || of < 1) return false;
    *base = size - tail;
    *number = no;
    *count = of;
    return true;
}

static void use_keys(qn_source *source, const qn_gguf_keys *keys) {
    source->keys = keys->keys;
    source->n_keys = keys->n;
    source->keys_by_name = keys->by_name;
}

// An integer key; `missing` if it is not there.
static qn_status find_int(int64_t *out, const qn_gguf_keys *keys, const char *name, int64_t missing,
                          qn_err *err) {
    const qn_key *key = qn_source_index_find((const void *const *)keys->by_name, keys->n, name);
    if (key && key->kind != QN_KEY_INT)
        return QN_FAIL(err, FORMAT, "key %s: type %s, want a whole number", name, key->type_name);
    *out = key ? key->as.i : missing;
    return QN_OK;
}

static qn_status want_int(const qn_gguf_keys *keys, const char *name, int64_t want, qn_err *err) {
    int64_t value = -1;
    QN_TRY(find_int(&value, keys, name, -1, err));
    if (value == want) return QN_OK;
    if (value == -1)
        return QN_FAIL(err, FORMAT, "key %s: missing, want %lld", name, (long long)want);
    return QN_FAIL(err, FORMAT, "key %s: %lld, want %lld", name, (long long)value, (long long)want);
}

// One part of a set; only the keys of the first are the model's.
static qn_status read_part(qn_source *source, const char *path, int i, int n, int64_t n_tensors,
                           qn_err *err) {
    int i_file;
    QN_TRY(qn_source_add_file(&i_file, source, path, err));
    qn_gguf_keys keys;
    QN_TRY(qn_gguf_read_part(&keys, source, i_file, err));
    qn_status status = want_int(&keys, "split.no", i, err);
    if (!status) status = want_int(&keys, "split.count", n, err);
    if (!status) status = want_int(&keys, "split.tensors.count", n_tensors, err);
    if (status) return qn_err_prefix(err, status, "%s", path);
    if (i == 0) use_keys(source, &keys);
    return QN_OK;
}

typedef struct split_set {
    const char *path; // of any part
    size_t base;      // bytes of the path before "-00001-of-"
    int count;
    int64_t n_tensors;
} split_set;

static qn_status read_set(qn_source *source, split_set set, qn_err *err) {
    const size_t size = strlen(set.path) + 1;
    char *path = qn_alloc(size, 1);
    if (!path) return QN_NOMEM(err, set.path);
    qn_status status = QN_OK;
    for (int i = 0; i < set.count && !status; i++) {
        snprintf(path, size, "%.*s-%05d-of-%05d.gguf", (int)set.base, set.path, i + 1, set.count);
        status = read_part(source, path, i, set.count, set.n_tensors, err);
    }
    if (!status && (int64_t)source->n_tensors != set.n_tensors)
        status = QN_FAIL(err, FORMAT, "%s: split.tensors.count is %lld, the %d parts have %zu",
                         path, (long long)set.n_tensors, set.count, source->n_tensors);
    qn_free(path);
    return status;
}

// What the keys of one part say about its set, compared with the file's name.
static qn_status describe_set(split_set *out, const qn_gguf_keys *keys, const char *path,
                              qn_err *err) {
    int64_t count = 1;
    split_set set = {.path = path};
    QN_TRY(find_int(&count, keys, "split.count", 1, err));
    QN_TRY(find_int(&set.n_tensors, keys, "split.tensors.count", 0, err));
    if (count < 0 || count > MAX_PARTS)
        return QN_FAIL(err, FORMAT, "%s: key split.count: %lld, want 1 to %d", path,
                       (long long)count, MAX_PARTS);
    set.count = count ? (int)count : 1; // 0: the writer's way to say "not split"
    int number = 0, named = 0;
    const bool is_named = qn_gguf_split_name(path, &set.base, &number, &named);
    if (set.count > 1 && !is_named)
        return QN_FAIL(err, FORMAT,
                       "%s: one of %d parts (split.count), but its name does not end in "
                       "-NNNNN-of-%05d.gguf: the other parts cannot be found",
                       path, set.count, set.count);
    if (count > 0 && is_named && named != set.count &&
        qn_source_index_find((const void *const *)keys->by_name, keys->n, "split.count"))
        return QN_FAIL(err, FORMAT, "%s: the name says %d parts, key split.count says %d", path,
                       named, set.count);
    *out = set;
    return QN_OK;
}

qn_status qn_gguf_open(qn_source *source, const char *path, qn_err *err) {
    source->kind = QN_SOURCE_GGUF;
    int i_file;
    QN_TRY(qn_source_add_file(&i_file, source, path, err));
    qn_gguf_keys keys;
    QN_TRY(qn_gguf_read_part(&keys, source, i_file, err));
    split_set set = {0};
    QN_TRY(describe_set(&set, &keys, path, err));
    if (set.count > 1) { // start again, with the first part
        qn_source_reset(source);
        QN_TRY(read_set(source, set, err));
    } else {
        use_keys(source, &keys);
    }
    return qn_err_prefix(err, qn_source_finish(source, err), "%s", path);
}

#include "make/importance.h"

#include "make/importance_dat.h"

#include "core/file.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>

enum { LONGEST_NAME = 256 };

struct qn_importance {
    qn_source *source;      // NULL: `dat` has all
    qn_importance_dat *dat; // NULL: a GGUF file
    int64_t n_entries, n_chunks;
    const char *dataset; // borrowed from either
};

// The weight's name: what precedes the ending; false if the tensor has another ending.
static bool weight_name(char *to, const qn_tensor *t, const char *ending) {
    const size_t n = strlen(ending);
    if (t->name.size <= n || t->name.size - n >= LONGEST_NAME - 16) return false;
    if (strcmp(t->name.data + t->name.size - n, ending) != 0) return false;
    memcpy(to, t->name.data, t->name.size - n);
    to[t->name.size - n] = 0;
    return true;
}

static const qn_tensor *find(const qn_importance *imp, const char *weight, const char *ending) {
    char name[LONGEST_NAME + 16];
    snprintf(name, sizeof name, "%s%s", weight, ending);
    return qn_source_find_tensor(imp->source, name);
}

static int64_t n_values(const qn_tensor *t) { return t->bytes / (int64_t)sizeof(float); }

// All numbers of a tensor (release with qn_free), each finite and not negative.
static qn_status read_numbers(float **out, const qn_importance *imp, const qn_tensor *t,
                              qn_err *err) {
    float *values = qn_alloc((size_t)t->bytes, 1);
    if (!values) return QN_NOMEM(err, t->name.data);
    qn_status status = qn_source_read(imp->source, t, 0, values, (size_t)t->bytes, err);
    for (int64_t i = 0; !status && i < n_values(t); i++) {
        if (!(values[i] >= 0 && isfinite(values[i])))
            status = QN_FAIL(err, FORMAT, "%s: value %g at position %lld, want 0 or more",
                             t->name.data, (double)values[i], (long long)i);
    }
    if (status)
        qn_free(values);
    else
        *out = values;
    return status;
}

static qn_status check_numbers(const qn_importance *imp, const qn_tensor *t, qn_err *err) {
    if (t->type != QN_TYPE_F32)
        return QN_FAIL(err, FORMAT, "%s: type %s, want F32", t->name.data,
                       qn_type_get(t->type)->name);
    float *values;
    QN_TRY(read_numbers(&values, imp, t, err));
    qn_free(values);
    return QN_OK;
}

static qn_status check_entry(const qn_importance *imp, const char *weight, qn_err *err) {
    const qn_tensor *sums = find(imp, weight, QN_IMPORTANCE_SUMS);
    const qn_tensor *counts = find(imp, weight, QN_IMPORTANCE_COUNTS);
    if (!sums || !counts)
        return QN_FAIL(err, FORMAT, "%s: has %s but no %s", weight,
                       sums ? QN_IMPORTANCE_SUMS : QN_IMPORTANCE_COUNTS,
                       sums ? QN_IMPORTANCE_COUNTS : QN_IMPORTANCE_SUMS);
    QN_TRY(check_numbers(imp, sums, err));
    QN_TRY(check_numbers(imp, counts, err));
    if (n_values(counts) == 0 || n_values(sums) % n_values(counts))
        return QN_FAIL(err, FORMAT, "%s: %lld sums for %lld counts", weight,
                       (long long)n_values(sums), (long long)n_values(counts));
    return QN_OK;
}

static qn_status check_all(qn_importance *imp, qn_err *err) {
    char name[LONGEST_NAME];
    for (size_t i = 0; i < qn_source_n_tensors(imp->source); i++) {
        const qn_tensor *t = qn_source_tensor(imp->source, i);
        const bool is_sum = weight_name(name, t, QN_IMPORTANCE_SUMS);
        if (!is_sum && !weight_name(name, t, QN_IMPORTANCE_COUNTS))
            return QN_FAIL(err, FORMAT, "tensor %s: no part of an importance file", t->name.data);
        if (is_sum || !find(imp, name, QN_IMPORTANCE_SUMS)) QN_TRY(check_entry(imp, name, err));
        imp->n_entries += is_sum;
    }
    return imp->n_entries ? QN_OK : QN_FAIL(err, FORMAT, "it has no entries");
}

// A whole number that fits 32 bits; 0 otherwise.
static int64_t small_number(const qn_source *source, const char *name) {
    const qn_key *key = qn_source_find_key(source, name);
    return key && key->kind == QN_KEY_INT && key->as.i > 0 && key->as.i <= UINT32_MAX ? key->as.i
                                                                                      : 0;
}

static qn_status read_file(qn_importance *imp, qn_err *err) {
    const qn_key *type = qn_source_find_key(imp->source, "general.type");
    const bool is_text = type && type->kind == QN_KEY_STRING;
    if (!is_text || !qn_str_is(type->as.s, "imatrix"))
        return QN_FAIL(err, FORMAT, "general.type is '%s', want 'imatrix'",
                       is_text ? type->as.s.data : "");
    const qn_key *datasets = qn_source_find_key(imp->source, "imatrix.datasets");
    imp->n_chunks = small_number(imp->source, "imatrix.chunk_count");
    imp->dataset = datasets && qn_key_is_array_of(datasets, QN_KEY_STRING) && datasets->n
                       ? qn_key_string_at(datasets, 0).data
                       : "";
    return check_all(imp, err);
}

static qn_status open_gguf(qn_importance *imp, const char *path, qn_err *err) {
    QN_TRY(qn_source_open(&imp->source, path, err));
    const qn_status status = read_file(imp, err);
    if (status) qn_err_prefix(err, status, "%s", path);
    return status;
}

// Takes the file.
static qn_status open_dat(qn_importance *imp, qn_file *file, const char *path, qn_err *err) {
    const qn_status status = qn_importance_dat_open(&imp->dat, file, err);
    if (status) {
        if (status == QN_FORMAT) qn_err_prefix(err, status, "%s", path);
        return status;
    }
    imp->n_entries = qn_importance_dat_n_entries(imp->dat);
    imp->n_chunks = qn_importance_dat_n_chunks(imp->dat);
    imp->dataset = qn_importance_dat_dataset(imp->dat);
    return QN_OK;
}

static qn_status open_file(qn_importance *imp, const char *path, qn_err *err) {
    static const char mark[] = "GGUF";
    enum { SIZE = sizeof mark - 1 };
    char bytes[SIZE] = "";
    qn_file file;
    QN_TRY(qn_file_open(&file, path, err));
    const qn_status status = file.size < SIZE ? QN_OK : qn_file_read(&file, 0, bytes, SIZE, err);
    if (!status && memcmp(bytes, mark, SIZE) != 0) return open_dat(imp, &file, path, err);
    qn_file_close(&file);
    return status ? status : open_gguf(imp, path, err);
}

qn_status qn_importance_open(qn_importance **out, const char *path, qn_err *err) {
    qn_importance *imp = qn_alloc(1, sizeof *imp);
    if (!imp) return QN_NOMEM(err, "importance file");
    const qn_status status = open_file(imp, path, err);
    if (status)
        qn_importance_close(imp);
    else
        *out = imp;
    return status;
}

void qn_importance_close(qn_importance *imp) {
    if (!imp) return;
    qn_source_close(imp->source);
    qn_importance_dat_close(imp->dat);
    qn_free(imp);
}

int64_t qn_importance_n_entries(const qn_importance *imp) { return imp->n_entries; }
int64_t qn_importance_n_chunks(const qn_importance *imp) { return imp->n_chunks; }
const char *qn_importance_dataset(const qn_importance *imp) { return imp->dataset; }

// Means of the squares, in place; an expert without inputs, or without any but zeros, says nothing.
static void divide(float *sums, const float *counts, int64_t n_experts, int64_t width) {
    for (int64_t e = 0; e < n_experts; e++) {
        float *row = sums + e * width, max = 0;
        for (int64_t i = 0; i < width; i++) {
            row[i] = counts[e] > 0 ? row[i] / counts[e] : 0;
            if (row[i] > max) max = row[i];
        }
        for (int64_t i = 0; max == 0 && i < width; i++) row[i] = 1;
    }
}

// Sums never come without counts, which was checked.
bool qn_importance_has(const qn_importance *imp, const qn_tensor *t) {
    if (imp->dat) return qn_importance_dat_has(imp->dat, t->name.data);
    return t->name.size < LONGEST_NAME && find(imp, t->name.data, QN_IMPORTANCE_SUMS);
}

// Sums (n_experts, width) and counts (n_experts) of a weight that is there; both are owned.
static qn_status read_gguf(float **sums, float **counts, const qn_importance *imp,
                           const char *weight, int64_t n_experts, int64_t width, qn_err *err) {
    const qn_tensor *s = find(imp, weight, QN_IMPORTANCE_SUMS);
    const qn_tensor *c = find(imp, weight, QN_IMPORTANCE_COUNTS);
    if (n_values(c) != n_experts || n_values(s) / n_experts != width)
        return QN_FAIL(err, FORMAT,
                       "%s: importance of %lld experts and %lld columns, the weight has %lld and "
                       "%lld",
                       weight, (long long)n_values(c), (long long)(n_values(s) / n_values(c)),
                       (long long)n_experts, (long long)width);
    QN_TRY(read_numbers(sums, imp, s, err));
    return read_numbers(counts, imp, c, err);
}

static qn_status read_dat(float **sums, float **counts, const qn_importance *imp,
                          const char *weight, int64_t n_experts, int64_t width, qn_err *err) {
    float calls;
    QN_TRY(qn_importance_dat_load(sums, &calls, imp->dat, weight, n_experts * width, err));
    *counts = qn_alloc((size_t)n_experts, sizeof **counts);
    if (!*counts) return QN_NOMEM(err, weight);
    for (int64_t e = 0; e < n_experts; e++) (*counts)[e] = calls;
    return QN_OK;
}

qn_status qn_importance_load(float **out, const qn_importance *imp, const qn_tensor *t,
                             qn_err *err) {
    if (!qn_importance_has(imp, t)) {
        *out = NULL;
        return QN_OK;
    }
    const int64_t width = t->dims[t->n_dims - 1];
    int64_t n_experts = 1;
    for (int i = 0; i < t->n_dims - 2; i++) n_experts *= t->dims[i]; // fits: the tensor does
    float *values = NULL, *number = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, (imp->dat ? read_dat : read_gguf)(&values, &number, imp, t->name.data,
                                                      n_experts, width, err));
    divide(values, number, n_experts, width);
    *out = values;
    values = NULL;

done:
    qn_free(values);
    qn_free(number);
    return status;
}

// What all formats share: files, tables, indices by name, the layout check, reading.
#include "formats/source_build.h"

#include "core/mem.h"
#include "core/structs.h"

#include <stdlib.h>

// --- building ------------------------------------------------------------------------------------

qn_status qn_source_add_file(int *out, qn_source *source, const char *path, qn_err *err) {
    void *files = source->files;
    if (!qn_grow(&files, &source->files_cap, source->n_files + 1, sizeof *source->files))
        return QN_NOMEM(err, path);
    source->files = files;
    QN_TRY(qn_files_open(&source->files[source->n_files], source->given, path, err));
    qn_store_allow(&source->store, source->files[source->n_files].size);
    *out = (int)source->n_files++;
    return QN_OK;
}

void qn_source_reset(qn_source *source) {
    for (size_t i = 0; i < source->n_files; i++) qn_file_close(&source->files[i]);
    qn_free(source->files);
    qn_free(source->tensors);
    qn_store_deinit(&source->store);
    *source = (qn_source){.kind = source->kind,
                          .path = source->path,
                          .folder = source->folder,
                          .given = source->given,
                          .place = source->place,
                          .config = source->config};
}

qn_status qn_source_add_tensors(qn_tensor **out, qn_source *source, size_t n, qn_err *err) {
    if (n == 0) {
        *out = source->tensors;
        return QN_OK;
    }
    // Old and new table may both be there for a moment.
    const size_t all = source->n_tensors + n; // each entry was counted in a file
    QN_TRY(qn_store_charge(&source->store, all, sizeof *source->tensors, "tensors", err));
    qn_tensor *moved = qn_realloc(source->tensors, all, sizeof *moved);
    if (!moved) return QN_NOMEM(err, "tensors");
    qn_store_discharge(&source->store, source->n_tensors * sizeof *moved);
    memset(moved + source->n_tensors, 0, n * sizeof *moved);
    *out = moved + source->n_tensors;
    source->tensors = moved;
    source->n_tensors = all;
    return QN_OK;
}

qn_status qn_source_copy_text(qn_str *out, qn_store *store, const char *text, size_t size,
                              qn_err *err) {
    void *copy;
    QN_TRY(qn_store_alloc(&copy, store, size + 1, 1, "text", err));
    if (size) memcpy(copy, text, size);
    *out = (qn_str){copy, size};
    return QN_OK;
}

static void sift_down(const void **items, size_t i, size_t n, qn_compare_fn *compare) {
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && compare(items[child], items[child + 1]) < 0) child++;
        if (compare(items[i], items[child]) >= 0) return;
        const void *item = items[i];
        items[i] = items[child];
        items[child] = item;
    }
}

void qn_sort_pointers(const void **items, size_t n, qn_compare_fn *compare) {
    for (size_t i = n / 2; i > 0; i--) sift_down(items, i - 1, n, compare);
    for (size_t end = n; end > 1; end--) {
        const void *largest = items[0];
        items[0] = items[end - 1];
        items[end - 1] = largest;
        sift_down(items, 0, end - 1, compare);
    }
}

static int compare_text(qn_str a, qn_str b) {
    const size_t shared = a.size < b.size ? a.size : b.size;
    const int order = shared ? memcmp(a.data, b.data, shared) : 0;
    return order ? order : (a.size > b.size) - (a.size < b.size);
}

static int by_name(const void *a, const void *b) {
    return compare_text(*(const qn_str *)a, *(const qn_str *)b);
}

static int by_offset(const void *a, const void *b) {
    const qn_tensor *x = a, *y = b;
    return (x->offset > y->offset) - (x->offset < y->offset);
}

static void point_at(const void **index, qn_entries entries) {
    const char *first = entries.first;
    for (size_t i = 0; i < entries.n; i++) index[i] = first + i * entries.size;
}

// Sorted by name; *twin is the second of two entries of one name, 0 if there are none.
static qn_status sort_by_name(const void ***out, size_t *twin, qn_store *store, qn_entries entries,
                              qn_err *err) {
    void *memory;
    QN_TRY(qn_store_alloc(&memory, store, entries.n, sizeof(void *), entries.what, err));
    const void **index = memory;
    point_at(index, entries);
    qn_sort_pointers(index, entries.n, by_name);
    size_t i = 1;
    while (i < entries.n && by_name(index[i - 1], index[i]) != 0) i++;
    *twin = i < entries.n ? i : 0;
    *out = index;
    return QN_OK;
}

qn_status qn_source_index(const void ***out, qn_store *store, qn_entries entries, qn_err *err) {
    const void **index;
    size_t twin;
    QN_TRY(sort_by_name(&index, &twin, store, entries, err));
    if (twin)
        return QN_FAIL(err, FORMAT, "%s %s: there are two of this name", entries.what,
                       ((const qn_str *)index[twin])->data);
    *out = index;
    return QN_OK;
}

const void *qn_source_index_find(const void *const *index, size_t n, const char *name) {
    const qn_str wanted = qn_str_of(name);
    for (size_t from = 0, to = n; from < to;) {
        const size_t middle = from + (to - from) / 2;
        const int order = compare_text(wanted, *(const qn_str *)index[middle]);
        if (order == 0) return index[middle];
        if (order < 0)
            to = middle;
        else
            from = middle + 1;
    }
    return NULL;
}

static qn_status check_neighbours(const qn_tensor *const *sorted, size_t n, qn_extent extent,
                                  qn_err *err) {
    int64_t end = extent.begin;
    const char *before = "the header";
    for (size_t i = 0; i < n; i++) {
        const qn_tensor *t = sorted[i];
        if (t->offset < end)
            return QN_FAIL(err, FORMAT, "tensor %s: begins at %lld, but %s ends at %lld: overlap",
                           t->name.data, (long long)t->offset, before, (long long)end);
        if (extent.no_holes && t->offset > end)
            return QN_FAIL(err, FORMAT, "tensor %s: begins at %lld, but %s ends at %lld: a hole",
                           t->name.data, (long long)t->offset, before, (long long)end);
        end = t->offset + t->bytes; // inside the file, checked by the format
        before = t->name.data;
    }
    if (extent.no_holes && end != extent.end)
        return QN_FAIL(err, FORMAT, "%s ends at %lld, but the file at %lld", before, (long long)end,
                       (long long)extent.end);
    return QN_OK;
}

qn_status qn_source_check_layout(qn_source *source, const qn_tensor *tensors, size_t n,
                                 qn_extent extent, qn_err *err) {
    QN_TRY(qn_store_charge(&source->store, n, sizeof(void *), "tensors", err));
    const void **sorted = qn_alloc(n, sizeof *sorted);
    qn_status status = sorted ? QN_OK : QN_NOMEM(err, "tensors");
    if (!status) {
        point_at(sorted, (qn_entries){.first = tensors, .n = n, .size = sizeof *tensors});
        qn_sort_pointers(sorted, n, by_offset);
        status = check_neighbours((const qn_tensor *const *)sorted, n, extent, err);
    }
    qn_free(sorted);
    qn_store_discharge(&source->store, n * sizeof *sorted);
    return status;
}

static qn_status index_tensors(qn_source *source, qn_err *err) {
    const qn_entries tensors = {source->tensors, source->n_tensors, sizeof *source->tensors,
                                "tensor"};
    const void **index;
    size_t twin;
    QN_TRY(sort_by_name(&index, &twin, &source->store, tensors, err));
    if (twin) {
        const qn_tensor *a = index[twin - 1], *b = index[twin];
        if (a->i_file == b->i_file)
            return QN_FAIL(err, FORMAT, "tensor %s: there are two of this name", a->name.data);
        return QN_FAIL(err, FORMAT, "tensor %s: there are two of this name, in %s and in %s",
                       a->name.data, source->files[a->i_file].path, source->files[b->i_file].path);
    }
    source->tensors_by_name = (const qn_tensor **)index;
    return QN_OK;
}

qn_status qn_source_finish(qn_source *source, qn_err *err) {
    QN_TRY(index_tensors(source, err));
    if (source->keys_by_name) return QN_OK;
    const qn_entries keys = {source->keys, source->n_keys, sizeof *source->keys, "key"};
    const void **index;
    QN_TRY(qn_source_index(&index, &source->store, keys, err));
    source->keys_by_name = (const qn_key **)index;
    return QN_OK;
}

// --- use -----------------------------------------------------------------------------------------

void qn_source_close(qn_source *source) {
    if (!source) return;
    qn_source_reset(source);
    qn_free(source->path);
    qn_free(source->folder);
    qn_files_destroy(source->given);
    qn_free(source);
}

size_t qn_source_n_keys(const qn_source *source) { return source->n_keys; }
size_t qn_source_n_tensors(const qn_source *source) { return source->n_tensors; }
qn_source_kind qn_source_get_kind(const qn_source *source) { return source->kind; }
const char *qn_source_path(const qn_source *source) { return source->path; }
const char *qn_source_folder(const qn_source *source) { return source->folder; }
const qn_location *qn_source_place(const qn_source *source) { return &source->place; }

bool qn_source_has_file(const qn_source *source, const char *path) {
    for (size_t i = 0; i < source->n_files && !source->given; i++) {
        if (qn_path_is_same(source->files[i].path, path)) return true;
    }
    return false;
}

bool qn_source_file_info(const qn_source *source, size_t i, int64_t *bytes, int64_t *time_ns) {
    if (i >= source->n_files) return false;
    *bytes = source->files[i].size;
    *time_ns = source->files[i].time_ns;
    return true;
}

const char *qn_source_format(const qn_source *source) {
    static const char *const names[] = {
        [QN_SOURCE_GGUF] = "GGUF", [QN_SOURCE_SAFETENSORS] = "safetensors"};
    return names[source->kind];
}

int64_t qn_source_file_bytes(const qn_source *source) {
    int64_t bytes = 0;
    for (size_t i = 0; i < source->n_files; i++) bytes += source->files[i].size;
    return bytes;
}

const qn_key *qn_source_key(const qn_source *source, size_t i) {
    return i < source->n_keys ? &source->keys[i] : NULL;
}

const qn_tensor *qn_source_tensor(const qn_source *source, size_t i) {
    return i < source->n_tensors ? &source->tensors[i] : NULL;
}

const qn_key *qn_source_find_key(const qn_source *source, const char *name) {
    return qn_source_index_find((const void *const *)source->keys_by_name, source->n_keys, name);
}

bool qn_source_is_null(const qn_source *source, const char *name) {
    return qn_source_index_find(source->nulls_by_name, source->n_nulls, name) != NULL;
}

const qn_tensor *qn_source_find_tensor(const qn_source *source, const char *name) {
    return qn_source_index_find((const void *const *)source->tensors_by_name, source->n_tensors,
                                name);
}

qn_status qn_source_tensor_info(qn_tensor_info *out, const qn_source *source, size_t i,
                                qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(source, err);
    QN_TRY(QN_RESULT_CHECK(qn_tensor_info, out, err));
    const qn_tensor *t = qn_source_tensor(source, i);
    if (!t) return QN_FAIL(err, ARGUMENT, "tensor %zu, the source has %zu", i, source->n_tensors);
    qn_tensor_info info = {.name = t->name.data,
                           .type = qn_type_get(t->type)->name,
                           .n_dims = t->n_dims,
                           .bytes = t->bytes};
    memcpy(info.dims, t->dims, sizeof info.dims);
    QN_RESULT_WRITE(qn_tensor_info, out, &info);
    return QN_OK;
}

qn_status qn_source_read(const qn_source *source, const qn_tensor *tensor, int64_t offset, void *to,
                         size_t n, qn_err *err) {
    if (offset < 0 || offset > tensor->bytes || n > (uint64_t)(tensor->bytes - offset))
        return QN_FAIL(err, ARGUMENT, "tensor %s: wants %zu bytes at %lld, it has %lld",
                       tensor->name.data, n, (long long)offset, (long long)tensor->bytes);
    const qn_status status =
        qn_file_read(&source->files[tensor->i_file], tensor->offset + offset, to, n, err);
    return qn_err_prefix(err, status, "tensor %s", tensor->name.data);
}

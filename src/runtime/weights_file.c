#define _XOPEN_SOURCE 700 // realpath
#include "runtime/weights_file.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/newfile.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <xxhash.h>

enum { STEM = 80 };

static int64_t to_page(int64_t n) { return (n + QN_PACK_PAGE - 1) / QN_PACK_PAGE * QN_PACK_PAGE; }

// --- what it looks like ---

// The path of the source, whatever link or relative name it was given by; NULL when memory is
// short.
static char *full_path(const qn_source *source) {
    char *path = realpath(qn_source_path(source), NULL);
    return path ? path : strdup(qn_source_path(source));
}

// "model.gguf-0123456789abcdef.cpu.packs"; NULL when memory is short.
static char *name_file(const qn_source *source, const qn_device_kind *kind) {
    char *path = full_path(source);
    if (!path) return NULL;
    char name[STEM + 48];
    int n = snprintf(name, STEM, "%s", qn_path_name(path));
    if (n > STEM - 1) n = STEM - 1;
    for (char *c = name; *c; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7f || *c == '/') *c = '_';
    }
    snprintf(name + n, sizeof name - (size_t)n, "-%016llx.%.16s.packs",
             (unsigned long long)XXH3_64bits(path, strlen(path)), kind->name);
    qn_free(path);
    return strdup(name);
}

// Where a weight's numbers come from.
static uint64_t hash_recipe(const qn_weight *w) {
    const int64_t facts[] = {w->fix, w->parts[0].tensor->type};
    uint64_t hash = XXH3_64bits(facts, sizeof facts);
    for (size_t i = 0; i < w->n_parts; i++) {
        const qn_weight_part *p = &w->parts[i];
        const int64_t place[] = {p->tensor->i_file, p->tensor->offset + p->offset, p->bytes};
        hash = XXH3_64bits_withSeed(place, sizeof place, hash);
    }
    return hash;
}

static void print_item(qn_buf *to, const qn_pack_item *item) {
    const qn_weight *w = item->weight;
    char shape[128];
    const qn_word layout = item->leaf->layout;
    qn_buf_printf(to, "%s %s %s %s %lld %lld %016llx\n", w->name, qn_word_get(layout)->name,
                  qn_type_get(layout == QN_WORD_rows ? QN_TYPE_F32 : w->type)->name,
                  qn_shape_text(shape, sizeof shape, &w->shape), (long long)item->offset,
                  (long long)item->bytes, (unsigned long long)hash_recipe(w));
}

static void print_head(qn_buf *to, const qn_identity *id, const qn_device *device,
                       const qn_pack_items *items) {
    qn_buf_printf(to, "quern packed weights 1\nprogram %s\nlayout %s %s\n", qn_disk_version(),
                  device->kind->name, device->kind->weight_format);
    qn_buf_printf(to, "source %lld %016llx %016llx %016llx\nweights %zu\n", (long long)id->bytes,
                  (unsigned long long)id->times, (unsigned long long)id->table,
                  (unsigned long long)id->samples, items->n);
    for (size_t i = 0; i < items->n; i++) print_item(to, &items->v[i]);
    static const char zeros[8];
    qn_buf_add(to, zeros, 8 - to->size % 8);
}

// Offsets of all items, and how many sums they need. False where the file would be too large.
static bool set_offsets(const qn_pack_items *items, size_t *n_sums, int64_t *bytes) {
    *bytes = 0;
    *n_sums = 0;
    for (size_t i = 0; i < items->n; i++) {
        qn_pack_item *item = &items->v[i];
        item->offset = *bytes;
        if (!qn_i64_add(bytes, *bytes, item->room)) return false;
        *n_sums += (size_t)((item->room + QN_PACK_CHUNK - 1) / QN_PACK_CHUNK);
    }
    return *bytes <= INT64_MAX / 2;
}

static void set_sums(qn_pack_sum *sums, const qn_pack_items *items) {
    for (size_t i = 0; i < items->n; i++) {
        const int64_t room = items->v[i].room;
        for (int64_t at = 0; at < room; at += QN_PACK_CHUNK)
            *sums++ = (qn_pack_sum){i, at, room - at < QN_PACK_CHUNK ? room - at : QN_PACK_CHUNK};
    }
}

qn_status qn_pack_file_init(qn_pack_file *file, const qn_disk *disk, const qn_source *source,
                            const qn_device *device, const qn_pack_items *items, qn_err *err) {
    qn_pool *pool = device->pool;
    qn_identity id;
    QN_TRY(qn_identity_of(&id, source, pool, err));
    qn_pack_file f = {.pool = pool, .disk = disk, .name = name_file(source, device->kind)};
    f.path = f.name ? qn_path_join(disk->dir, f.name) : NULL;
    int64_t bytes;
    const bool fits = set_offsets(items, &f.n_sums, &bytes);
    print_head(&f.head, &id, device, items);
    f.sums = qn_alloc(f.n_sums, sizeof *f.sums);
    if (!f.path || !f.sums || f.head.failed || !fits) {
        qn_pack_file_deinit(&f);
        return QN_NOMEM(err, "the layout of packed weights");
    }
    set_sums(f.sums, items);
    f.begin = to_page((int64_t)(f.head.size + (f.n_sums + 1) * sizeof(uint64_t)));
    f.size = f.begin + bytes;
    *file = f;
    return QN_OK;
}

void qn_pack_file_deinit(qn_pack_file *file) {
    qn_free(file->name);
    qn_free(file->path);
    qn_free(file->sums);
    qn_buf_deinit(&file->head);
    *file = (qn_pack_file){0};
}

// --- sums ---

// Sums are kept little endian, as all machines that this runs on hold them.
typedef struct summing {
    const qn_pack_file *file;
    const qn_pack_items *items;
    const unsigned char *from; // the weights of a mapped file; NULL: the items' data
    uint64_t *sums;
} summing;

// The place is part of the sum: bytes that moved are not taken for the right ones.
static void sum_piece(void *arg, int64_t i) {
    const summing *s = arg;
    const qn_pack_sum *sum = &s->file->sums[i];
    const qn_pack_item *item = &s->items->v[sum->item];
    const unsigned char *data = s->from ? s->from + item->offset : item->data;
    s->sums[i] = XXH3_64bits_withSeed(data + sum->offset, (size_t)sum->bytes,
                                      (uint64_t)(item->offset + sum->offset));
}

static void sum_all(summing *s) {
    qn_pool_run(s->file->pool, (int64_t)s->file->n_sums, sum_piece, s);
}

// --- reading ---

// Reads all before the weights and compares it; `sums` gets what the file says of them.
static qn_status read_head(uint64_t *sums, const qn_pack_file *file, const qn_file *f,
                           qn_err *err) {
    if (f->size != file->size)
        return QN_FAIL(err, FORMAT, "%lld bytes, want %lld", (long long)f->size,
                       (long long)file->size);
    unsigned char *bytes = qn_alloc((size_t)file->begin, 1);
    if (!bytes) return QN_NOMEM(err, "the head of packed weights");
    const size_t n_head = file->head.size, n_sums = file->n_sums * sizeof *sums;
    qn_status status = qn_file_read(f, 0, bytes, (size_t)file->begin, err);
    if (!status && memcmp(bytes, file->head.data, n_head) != 0)
        status = QN_FAIL(err, FORMAT, "the model file has changed, or the program has");
    if (!status) {
        uint64_t want;
        memcpy(&want, bytes + n_head + n_sums, sizeof want);
        if (n_sums) memcpy(sums, bytes + n_head, n_sums);
        if (XXH3_64bits(bytes, n_head + n_sums) != want)
            status = QN_FAIL(err, FORMAT, "its head is damaged");
    }
    qn_free(bytes);
    return status;
}

static qn_status map_file(qn_pack_map *map, const qn_file *f, qn_err *err) {
    void *base = mmap(NULL, (size_t)f->size, PROT_READ, MAP_PRIVATE, f->fd, 0);
    if (base == MAP_FAILED)
        return QN_FAIL(err, IO, "cannot map %lld bytes: %s", (long long)f->size, strerror(errno));
    *map = (qn_pack_map){base, (size_t)f->size};
    return QN_OK;
}

void qn_pack_unmap(qn_pack_map *map) {
    if (map->base) munmap(map->base, map->size);
    *map = (qn_pack_map){0};
}

qn_status qn_pack_file_map(qn_pack_map *map, const unsigned char **data, const qn_pack_file *file,
                           const qn_pack_items *items, qn_err *err) {
    qn_file f = {.fd = -1};
    QN_TRY(qn_disk_open_file(&f, file->disk, file->name, file->path, err));
    qn_status status = QN_OK;
    qn_pack_map mapped = {0};
    uint64_t *want = qn_alloc(file->n_sums, sizeof *want);
    uint64_t *got = qn_alloc(file->n_sums, sizeof *got);
    if (!want || !got) {
        status = QN_NOMEM(err, "the sums of packed weights");
        goto done;
    }
    QN_TRY_TO(done, read_head(want, file, &f, err));
    QN_TRY_TO(done, map_file(&mapped, &f, err));
    const unsigned char *weights = (const unsigned char *)mapped.base + file->begin;
    sum_all(&(summing){file, items, weights, got});
    for (size_t i = 0; i < items->n; i++) data[i] = weights + items->v[i].offset;
    for (size_t i = 0; i < file->n_sums; i++) {
        if (got[i] != want[i]) data[file->sums[i].item] = NULL;
    }
    *map = mapped;

done:
    qn_free(want);
    qn_free(got);
    qn_file_close(&f);
    return status;
}

// One sum's bytes after the other.
static qn_status read_checked(const qn_file *f, const qn_pack_file *file,
                              const qn_pack_items *items, const uint64_t *want,
                              unsigned char *bytes, qn_pack_take_fn *take, void *arg, qn_err *err) {
    for (size_t i = 0; i < file->n_sums; i++) {
        const qn_pack_sum *sum = &file->sums[i];
        const qn_pack_item *item = &items->v[sum->item];
        const int64_t at = item->offset + sum->offset;
        QN_TRY(qn_file_read(f, file->begin + at, bytes, (size_t)sum->bytes, err));
        if (XXH3_64bits_withSeed(bytes, (size_t)sum->bytes, (uint64_t)at) != want[i])
            return QN_FAIL(err, FORMAT, "%s is damaged (weight %s)", file->path,
                           item->weight->name);
        take(arg, sum->item, sum->offset, bytes, sum->bytes);
    }
    return QN_OK;
}

qn_status qn_pack_file_read(qn_file *opened, const qn_pack_file *file, const qn_pack_items *items,
                            qn_pack_take_fn *take, void *arg, qn_err *err) {
    qn_file f = {.fd = -1};
    QN_TRY(qn_disk_open_file(&f, file->disk, file->name, file->path, err));
    qn_status status = QN_OK;
    uint64_t *want = qn_alloc(file->n_sums, sizeof *want);
    unsigned char *bytes = qn_alloc(QN_PACK_CHUNK, 1);
    if (!want || !bytes) status = QN_NOMEM(err, "the sums of packed weights");
    if (!status) {
        status = read_head(want, file, &f, err);
        if (status) qn_err_prefix(err, status, "%s", file->path);
    }
    if (!status) status = read_checked(&f, file, items, want, bytes, take, arg, err);
    qn_free(want);
    qn_free(bytes);
    if (status)
        qn_file_close(&f);
    else
        *opened = f;
    return status;
}

qn_status qn_pack_file_exists(bool *out, const qn_disk *disk, const qn_source *source,
                              const qn_device_kind *kind, qn_err *err) {
    *out = false;
    if (!disk->dir || disk->is_foreign) return QN_OK;
    char *name = name_file(source, kind);
    if (!name) return QN_NOMEM(err, "packed weights");
    *out = qn_disk_has(disk, name);
    qn_free(name);
    return QN_OK;
}

// --- writing ---

static qn_status make_head(qn_buf *to, const qn_pack_file *file, const uint64_t *sums,
                           qn_err *err) {
    static const unsigned char zeros[QN_PACK_PAGE];
    const size_t n_sums = file->n_sums * sizeof *sums;
    qn_buf_add(to, file->head.data, file->head.size);
    if (n_sums) qn_buf_add(to, sums, n_sums);
    const uint64_t check = to->failed ? 0 : XXH3_64bits(to->data, to->size);
    qn_buf_add(to, &check, sizeof check);
    if (!to->failed) qn_buf_add(to, zeros, (size_t)file->begin - to->size);
    return to->failed ? QN_NOMEM(err, "the head of packed weights") : QN_OK;
}

static qn_status write_head(qn_newfile *to, const qn_pack_file *file, const uint64_t *sums,
                            qn_err *err) {
    qn_buf head = {0};
    qn_status status = make_head(&head, file, sums, err);
    if (!status) status = qn_newfile_write(to, head.data, head.size, err);
    qn_buf_deinit(&head);
    return status;
}

qn_status qn_pack_file_write(const qn_pack_file *file, const qn_pack_items *items, qn_err *err) {
    qn_newfile *to = NULL;
    qn_status status = QN_OK;
    uint64_t *sums = qn_alloc(file->n_sums, sizeof *sums);
    if (!sums) return QN_NOMEM(err, "the sums of packed weights");
    sum_all(&(summing){file, items, NULL, sums});
    QN_TRY_TO(done, qn_newfile_create_in(&to, file->disk->fd, file->name, file->path, err));
    QN_TRY_TO(done, write_head(to, file, sums, err));
    for (size_t i = 0; i < items->n; i++)
        QN_TRY_TO(done, qn_newfile_write(to, items->v[i].data, (size_t)items->v[i].room, err));
    status = qn_newfile_commit(to, err);

done:
    qn_newfile_destroy(to);
    qn_free(sums);
    return status;
}

// Loads an item, notes its sums and writes it. *sums: the next.
static qn_status write_item(qn_newfile *to, uint64_t **sums, const qn_pack_items *items, size_t i,
                            qn_pack_load_fn *load, void *arg, qn_err *err) {
    const qn_pack_item *item = &items->v[i];
    unsigned char *bytes = qn_reserve((size_t)item->room);
    if (!bytes) return QN_FAIL(err, MEMORY, "out of memory: weight %s", item->weight->name);
    qn_status status = load(arg, i, bytes, err);
    for (int64_t at = 0; at < item->room && !status; at += QN_PACK_CHUNK) {
        const int64_t n = qn_min(item->room - at, QN_PACK_CHUNK);
        *(*sums)++ = XXH3_64bits_withSeed(bytes + at, (size_t)n, (uint64_t)(item->offset + at));
    }
    if (!status) status = qn_newfile_write(to, bytes, (size_t)item->room, err);
    qn_unreserve(bytes, (size_t)item->room);
    return status;
}

qn_status qn_pack_file_write_each(const qn_pack_file *file, const qn_pack_items *items,
                                  qn_pack_load_fn *load, void *arg, qn_err *err) {
    qn_newfile *to = NULL;
    qn_buf head = {0};
    qn_status status = QN_OK;
    uint64_t *sums = qn_alloc(file->n_sums, sizeof *sums), *next = sums;
    if (!sums) return QN_NOMEM(err, "the sums of packed weights");
    QN_TRY_TO(done, qn_newfile_create_in(&to, file->disk->fd, file->name, file->path, err));
    QN_TRY_TO(done, write_head(to, file, sums, err)); // the sums are not known yet
    for (size_t i = 0; i < items->n; i++)
        QN_TRY_TO(done, write_item(to, &next, items, i, load, arg, err));
    QN_TRY_TO(done, make_head(&head, file, sums, err));
    QN_TRY_TO(done, qn_newfile_rewrite(to, 0, head.data, head.size, err));
    status = qn_newfile_commit(to, err);

done:
    qn_newfile_destroy(to);
    qn_buf_deinit(&head);
    qn_free(sums);
    return status;
}

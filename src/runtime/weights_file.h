// Packed weights in the cache folder: one file for each source, named after its path.
//
//   1. head      text: program and layout versions, identity of the source, then one line per
//                weight: name, form, type, sizes, offset, bytes, and a hash of what it is made from
//   2. sums      XXH3 of every 2 MiB of every weight, 8 bytes each, little endian
//   3. checksum  XXH3 of 1 and 2; zeros up to a page border (4096)
//   4. weights   each on a page border, zeros up to the next
//
// The head follows from source, model and plan alone. A file is used only if its size and its head
// are, byte for byte, what they would be if it were written now: nothing in it is ever taken as a
// size or an offset. It is never changed in place; a new one takes its name.
#ifndef QN_RUNTIME_WEIGHTS_FILE_H
#define QN_RUNTIME_WEIGHTS_FILE_H

#include "backends/device.h"
#include "core/buf.h"
#include "core/pool.h"
#include "models/model_weights.h"
#include "runtime/cache_folder.h"
#include "runtime/identity.h"

enum { QN_PACK_PAGE = 4096, QN_PACK_CHUNK = 2 << 20 };

typedef struct qn_pack_item {
    const qn_weight *weight;   // borrowed
    const qn_plan_leaf *leaf;  // borrowed
    int64_t bytes, room;       // of the numbers; the same up to a page border
    int64_t offset;            // from the first weight of the file
    const unsigned char *data; // `room` bytes, zeros after the numbers; NULL: not loaded yet
    bool is_paged;             // experts that are not all in memory (residency.h)
} qn_pack_item;

typedef struct qn_pack_items {
    qn_pack_item *v;
    size_t n;
} qn_pack_items;

typedef struct qn_pack_sum {
    size_t item;
    int64_t offset, bytes; // in the item
} qn_pack_sum;

// What the file of these items looks like. Caller storage; zeroed is empty.
typedef struct qn_pack_file {
    const qn_disk *disk; // borrowed
    char *name, *path;   // in the folder; the whole
    qn_buf head;
    qn_pack_sum *sums; // what each one covers
    size_t n_sums;
    int64_t begin, size; // of the weights; of the file
    qn_pool *pool;
} qn_pack_file;

// A file in memory. Zeroed means none.
typedef struct qn_pack_map {
    void *base;
    size_t size;
} qn_pack_map;

// Sets the items' offsets. They stay where they are until the file is done with.
QN_MUST_CHECK qn_status qn_pack_file_init(qn_pack_file *file, const qn_disk *disk,
                                          const qn_source *source, const qn_device *device,
                                          const qn_pack_items *items, qn_err *err);
void qn_pack_file_deinit(qn_pack_file *file);

// Maps the file and checks it. data[i] (n of the items) becomes the place of item i, or NULL where
// its sums are wrong. A file that cannot be used at all is an error that says why; *map and data
// are then untouched.
QN_MUST_CHECK qn_status qn_pack_file_map(qn_pack_map *map, const unsigned char **data,
                                         const qn_pack_file *file, const qn_pack_items *items,
                                         qn_err *err);
void qn_pack_unmap(qn_pack_map *map);

// Reads the file piece by piece and checks it, for models that are not to be mapped. `take` gets
// the bytes of all items in order, room included. *opened stays open on success. A damaged item is
// an error that names it.
typedef void qn_pack_take_fn(void *arg, size_t item, int64_t offset, const unsigned char *bytes,
                             int64_t n);
QN_MUST_CHECK qn_status qn_pack_file_read(qn_file *opened, const qn_pack_file *file,
                                          const qn_pack_items *items, qn_pack_take_fn *take,
                                          void *arg, qn_err *err);

// Writes the file; every item has its data.
QN_MUST_CHECK qn_status qn_pack_file_write(const qn_pack_file *file, const qn_pack_items *items,
                                           qn_err *err);
// The same with one item in memory at a time: `load` leaves it in zeroed memory of its room.
typedef qn_status qn_pack_load_fn(void *arg, size_t item, void *to, qn_err *err);
QN_MUST_CHECK qn_status qn_pack_file_write_each(const qn_pack_file *file,
                                                const qn_pack_items *items, qn_pack_load_fn *load,
                                                void *arg, qn_err *err);

// Whether the folder has a file for this source and device.
QN_MUST_CHECK qn_status qn_pack_file_exists(bool *out, const qn_disk *disk, const qn_source *source,
                                            const qn_device_kind *kind, qn_err *err);

#endif

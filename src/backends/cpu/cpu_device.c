// The CPU as a device: memory of this process, and threads that take pieces of calls.
#include "backends/cpu/executor.h"
#include "backends/cpu/limits.h"

#include "core/machine.h"
#include "core/mem.h"

#include <string.h>

static qn_status open_cpu(qn_device **out, const char *variant, qn_pool *pool, qn_err *err) {
    const qn_cpu_level *level;
    QN_TRY(qn_cpu_level_find(&level, variant, err));
    qn_cpu_device *device = qn_alloc(1, sizeof *device);
    if (!device) return QN_NOMEM(err, "device");
    device->head =
        (qn_device){.kind = &qn_cpu_device_kind, .backend = &level->backend, .pool = pool};
    device->level = level;
    *out = &device->head;
    return QN_OK;
}

static const char *variant(size_t i) {
    const char *name = qn_cpu_level_name(i);
    const qn_cpu_level *level;
    return name && !qn_cpu_level_find(&level, name, NULL) ? level->backend.name : NULL;
}

static void close_cpu(qn_device *device) { qn_free(device); }

// Address space; the system gives memory as it is used. With several nodes, a page lies on that of
// the thread that writes it first, a head's keys and values where they are read (cut_kv): large
// pages would bring many heads together.
static qn_status alloc_bytes(void **out, qn_device *device, size_t bytes, qn_err *err) {
    void *at = qn_reserve(bytes);
    if (!at) return QN_FAIL(err, LIMIT, "%zu bytes of address space", bytes);
    if (qn_pool_numa(device->pool)) qn_want_small_pages(at, bytes);
    *out = at;
    return QN_OK;
}

static void free_bytes(qn_device *device, void *at, size_t bytes) {
    (void)device;
    qn_unreserve(at, bytes);
}

static void move_bytes(qn_device *device, void *to, const void *from, size_t bytes) {
    (void)device;
    if (bytes) memcpy(to, from, bytes);
}

static bool free_memory(const qn_device *device, int64_t *available) {
    (void)device;
    return qn_machine_free_memory(available);
}

static void read_kv(float *keys, float *values, qn_device *device, const qn_cache_view *cache,
                    int32_t page, int64_t row) {
    (void)device;
    qn_cpu_read_kv(keys, values, cache, page, row);
}

static void get_kv(unsigned char *rows, qn_device *device, const qn_cache_view *cache, int32_t page,
                   int64_t first, int64_t n) {
    (void)device;
    qn_cpu_move_kv(rows, cache, page, first, n, false);
}

static void set_kv(const unsigned char *rows, qn_device *device, const qn_cache_view *cache,
                   int32_t page, int64_t first, int64_t n) {
    (void)device;
    qn_cpu_move_kv((unsigned char *)(uintptr_t)rows, cache, page, first, n, true);
}

const qn_device_kind qn_cpu_device_kind = {.name = "cpu",
                                           .about = "the CPU, with its best instruction set",
                                           .about_variant =
                                               "the CPU, limited to this instruction set",
                                           .variant = variant,
                                           .open = open_cpu,
                                           .close = close_cpu,
                                           .has_host_memory = true,
                                           .alloc = alloc_bytes,
                                           .free = free_bytes,
                                           .write = move_bytes,
                                           .read = move_bytes,
                                           .copy = move_bytes,
                                           .memory = free_memory,
                                           .weight_format = QN_PACK_FORMAT,
                                           .weight_bytes = qn_cpu_weight_bytes,
                                           .load_weight = qn_cpu_load_weight,
                                           .place = qn_cpu_place,
                                           .has_pager = true,
                                           .prepare = qn_cpu_program_prepare,
                                           .release = qn_cpu_program_release,
                                           .measure = qn_cpu_program_measure,
                                           .begin = qn_cpu_program_begin,
                                           .give = qn_cpu_program_give,
                                           .run = qn_cpu_program_run,
                                           .wait = qn_cpu_program_wait,
                                           .row = qn_cpu_program_row,
                                           .counts = qn_cpu_program_counts,
                                           .times = qn_cpu_program_times,
                                           .run_call = qn_cpu_program_run_call,
                                           .read_arg = qn_cpu_program_read_arg,
                                           .read_kv = read_kv,
                                           .get_kv = get_kv,
                                           .set_kv = set_kv,
                                           .limits = qn_limits_measure};

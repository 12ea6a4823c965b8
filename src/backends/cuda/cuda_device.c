// GPUs: opening, memory. Every call goes through the table of the plug-in (cuda_api.h).
#include "backends/cuda/cuda_device.h"

#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- cards ---------------------------------------------------------------------------------------

enum { OLDEST = 80 }; // compute capability, times 10

static qn_status check_card(qn_cuda_card *card, const qn_cuda_api *api, int index, qn_err *err) {
    int n = 0;
    int error = api->count(&n);
    if (error)
        return QN_FAIL(err, UNSUPPORTED, "device cuda: no card can be used: %s",
                       api->explain(error));
    if (index >= n || index >= QN_CUDA_CARDS)
        return QN_FAIL(err, ARGUMENT, "device cuda:%d: this machine has %d card%s", index, n,
                       n == 1 ? "" : "s");
    error = api->describe(card, index);
    if (error) return QN_FAIL(err, UNSUPPORTED, "device cuda:%d: %s", index, api->explain(error));
    if (10 * card->major + card->minor < OLDEST)
        return QN_FAIL(err, UNSUPPORTED,
                       "device cuda:%d: %s has compute capability %d.%d, at least %d.%d is wanted",
                       index, card->name, card->major, card->minor, OLDEST / 10, OLDEST % 10);
    return QN_OK;
}

// Card i of those that can be used; false after the last, and where there is no plug-in.
static bool find_card(int *index, size_t i) {
    const qn_cuda_api *api;
    qn_cuda_card card;
    int n = 0;
    if (qn_cuda_api_find(&api, NULL) || api->count(&n)) return false;
    for (*index = 0; *index < n && *index < QN_CUDA_CARDS; ++*index) {
        if (!check_card(&card, api, *index, NULL) && i-- == 0) return true;
    }
    return false;
}

static const char *variant(size_t i) {
    int index;
    return find_card(&index, i) ? qn_cuda_backends[index].name : NULL;
}

static bool is_there(void) { return variant(0) != NULL; }

static qn_status read_index(int *out, const char *name, qn_err *err) {
    char *end;
    errno = 0;
    const long n = name && *name ? strtol(name, &end, 10) : 0;
    if (name && *name && (errno || *end || n < 0 || n > INT32_MAX))
        return QN_FAIL(err, ARGUMENT, "device cuda:%.32s: want the number of a card", name);
    *out = (int)n;
    return QN_OK;
}

static qn_status describe(qn_device_info *out, const char *name, qn_err *err) {
    const qn_cuda_api *api;
    qn_cuda_card card;
    int index;
    QN_TRY(read_index(&index, name, err));
    QN_TRY(qn_cuda_api_find(&api, err));
    QN_TRY(check_card(&card, api, index, err));
    out->memory = card.bytes;
    out->compute_major = card.major;
    out->compute_minor = card.minor;
    snprintf(out->model, sizeof out->model, "%s", card.name);
    return QN_OK;
}

static qn_status open_device(qn_device **out, const char *name, qn_pool *pool, qn_err *err) {
    const qn_cuda_api *api;
    qn_cuda_card card;
    int index;
    QN_TRY(read_index(&index, name, err));
    QN_TRY(qn_cuda_api_find(&api, err));
    QN_TRY(check_card(&card, api, index, err));
    qn_cuda_device *device = qn_alloc(1, sizeof *device);
    if (!device || pthread_mutex_init(&device->lock, NULL) != 0) {
        qn_free(device);
        return QN_NOMEM(err, "device cuda");
    }
    device->head = (qn_device){
        .kind = &qn_cuda_device_kind, .backend = &qn_cuda_backends[index], .pool = pool};
    device->api = api;
    device->card = card;
    device->index = index;
    const int error = api->open(&device->stream, index);
    if (error) {
        pthread_mutex_destroy(&device->lock);
        qn_free(device);
        return QN_FAIL(err, UNSUPPORTED, "device cuda:%d: %s", index, api->explain(error));
    }
    *out = &device->head;
    return QN_OK;
}

static qn_status measure_limits(qn_limits *out, const char *name, int n_threads, qn_err *err) {
    const qn_cuda_api *api;
    qn_cuda_card card;
    qn_cuda_limits found = {0};
    qn_cuda_stream *stream;
    int index;
    (void)n_threads;
    QN_TRY(read_index(&index, name, err));
    QN_TRY(qn_cuda_api_find(&api, err));
    QN_TRY(check_card(&card, api, index, err));
    int error = api->open(&stream, index);
    if (!error) {
        error = api->measure(&found, stream);
        api->close(stream);
    }
    if (error)
        return QN_FAIL(err, IO, "device cuda:%d (%s): measuring its limits: %s", index, card.name,
                       api->explain(error));
    *out = (qn_limits){.level = qn_cuda_backends[index].name,
                       .read_gbs = found.read_gbs,
                       .f16_tflops = found.tensor_tflops};
    return QN_OK;
}

static void close_device(qn_device *device) {
    qn_cuda_device *d = qn_cuda_own(device);
    qn_cuda_load_end(device);
    d->api->close(d->stream);
    pthread_mutex_destroy(&d->lock);
    qn_free(d);
}

// --- failures ------------------------------------------------------------------------------------

bool qn_cuda_check(qn_cuda_device *d, int error, const char *what) {
    if (error && !d->error) {
        d->error = error;
        d->failed = what;
    }
    return d->error == 0;
}

qn_status qn_cuda_failure(const qn_device *device, qn_err *err) {
    qn_cuda_device *d = qn_cuda_own(device);
    pthread_mutex_lock(&d->lock);
    const int error = d->error;
    const char *what = d->failed;
    pthread_mutex_unlock(&d->lock);
    if (!error) return QN_OK;
    return QN_FAIL(err, IO, "device cuda:%d (%s) failed: %s: %s; open the model again", d->index,
                   d->card.name, what, d->api->explain(error));
}

// --- memory --------------------------------------------------------------------------------------

bool qn_cuda_take(void **out, qn_cuda_device *d, qn_cuda_take_fn *take, size_t bytes,
                  size_t *available) {
    void *at = NULL;
    *available = 0;
    if (d->error) return false;
    const int error = take(&at, d->stream, bytes ? bytes : 1);
    // A card that works can say how much is free.
    if (error && d->api->memory(d->stream, available))
        (void)qn_cuda_check(d, error, "taking memory");
    if (error) return false;
    *out = at;
    return true;
}

static qn_status alloc_bytes(void **out, qn_device *device, size_t bytes, qn_err *err) {
    qn_cuda_device *d = qn_cuda_own(device);
    void *at = NULL;
    size_t available;
    pthread_mutex_lock(&d->lock);
    bool is_taken = qn_cuda_take(&at, d, d->api->alloc, bytes, &available);
    if (is_taken &&
        !qn_cuda_check(d, d->api->clear(d->stream, at, bytes ? bytes : 1), "clearing memory")) {
        d->api->free(d->stream, at);
        is_taken = false;
    }
    pthread_mutex_unlock(&d->lock);
    if (!is_taken) {
        QN_TRY(qn_cuda_failure(device, err));
        return QN_FAIL(err, LIMIT, "device cuda:%d (%s): no room for %zu bytes, %zu are free",
                       d->index, d->card.name, bytes, available);
    }
    *out = at;
    return QN_OK;
}

static void free_bytes(qn_device *device, void *at, size_t bytes) {
    qn_cuda_device *d = qn_cuda_own(device);
    (void)bytes;
    pthread_mutex_lock(&d->lock);
    if (at) d->api->free(d->stream, at);
    pthread_mutex_unlock(&d->lock);
}

void qn_cuda_write(qn_device *device, void *to, const void *host, size_t bytes) {
    qn_cuda_device *d = qn_cuda_own(device);
    pthread_mutex_lock(&d->lock);
    if (bytes && !d->error)
        (void)qn_cuda_check(d, d->api->put(d->stream, to, host, bytes), "writing memory");
    pthread_mutex_unlock(&d->lock);
}

void qn_cuda_read(qn_device *device, void *host, const void *from, size_t bytes) {
    qn_cuda_device *d = qn_cuda_own(device);
    pthread_mutex_lock(&d->lock);
    bool is_read = bytes && !d->error &&
                   qn_cuda_check(d, d->api->get(d->stream, host, from, bytes), "reading memory");
    is_read = is_read && qn_cuda_check(d, d->api->wait(d->stream), "reading memory");
    pthread_mutex_unlock(&d->lock);
    if (!is_read) memset(host, 0, bytes);
}

static void copy_bytes(qn_device *device, void *to, const void *from, size_t bytes) {
    qn_cuda_device *d = qn_cuda_own(device);
    pthread_mutex_lock(&d->lock);
    if (bytes && !d->error)
        (void)qn_cuda_check(d, d->api->copy(d->stream, to, from, bytes), "copying memory");
    pthread_mutex_unlock(&d->lock);
}

static bool find_memory(const qn_device *device, int64_t *available) {
    qn_cuda_device *d = qn_cuda_own(device);
    size_t bytes = 0;
    pthread_mutex_lock(&d->lock);
    const int error = d->error ? d->error : d->api->memory(d->stream, &bytes);
    pthread_mutex_unlock(&d->lock);
    if (!error) *available = (int64_t)bytes;
    return !error;
}

const qn_device_kind qn_cuda_device_kind = {
    .name = "cuda",
    .about = "the first GPU",
    .about_variant = "an NVIDIA GPU",
    .variant = variant,
    .is_there = is_there,
    .describe = describe,
    .open = open_device,
    .close = close_device,
    .failure = qn_cuda_failure,
    .alloc = alloc_bytes,
    .free = free_bytes,
    .write = qn_cuda_write,
    .read = qn_cuda_read,
    .copy = copy_bytes,
    .memory = find_memory,
    .weight_format = "cuda tiles 1",
    .weight_bytes = qn_cuda_weight_bytes,
    .load_weight = qn_cuda_load_weight,
    .load_end = qn_cuda_load_end,
    .alloc_host = qn_cuda_alloc_host,
    .free_host = qn_cuda_free_host,
    .pack_weight = qn_cuda_pack_weight,
    .bring = qn_cuda_bring,
    .has_pager = true,
    .chunk = 2048,
    .has_tensor = true,
    .prepare = qn_cuda_prepare,
    .release = qn_cuda_release,
    .measure = qn_cuda_measure,
    .begin = qn_cuda_begin,
    .give = qn_cuda_give,
    .run = qn_cuda_run,
    .wait = qn_cuda_wait,
    .row = qn_cuda_row,
    .counts = qn_cuda_counts,
    .times = qn_cuda_times,
    .run_call = qn_cuda_run_call,
    .read_arg = qn_cuda_read_arg,
    .read_kv = qn_cuda_read_kv,
    .get_kv = qn_cuda_get_kv,
    .set_kv = qn_cuda_set_kv,
    .limits = measure_limits,
};

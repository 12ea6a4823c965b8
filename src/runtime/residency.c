#include "runtime/residency_int.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/thread.h"

#include <string.h>

enum { ALIGN = 64 };

// --- what a plan has -----------------------------------------------------------------------------

static const qn_plan_leaf *leaf_of(const qn_plan *plan, const qn_plan_call *call, int part) {
    return &plan->leaves[QN_PLACE_PARAM][call->in[2 + part].index]; // gate, up, down
}

// The first stage of each EXPERTS op stands for it.
static bool has_experts(const qn_plan_call *call) {
    return call->op == QN_OP_EXPERTS && call->stage == 0 && call->n_in == 5 &&
           call->in[2].place == QN_PLACE_PARAM && call->in[3].place == QN_PLACE_PARAM &&
           call->in[4].place == QN_PLACE_PARAM;
}

// Sizes of a layer's experts. Numbers of the plan are those of the model, which fit together.
static qn_status describe_layer(qn_pool_layer *to, const qn_plan *plan, const qn_plan_call *call,
                                const qn_device *device, qn_err *err) {
    qn_pool_layer layer = {.layer = call->layer, .n_used = (int32_t)call->attrs.top};
    for (int i = 0; i < QN_EXPERT_PARTS; i++) {
        const qn_plan_leaf *leaf = leaf_of(plan, call, i);
        qn_layer_part *part = &layer.parts[i];
        const int64_t n = leaf->shape.dims[0].n;
        if (n < 1 || n > INT32_MAX || (i && n != layer.n_experts))
            return QN_FAIL(err, FORMAT, "weight %s: %lld experts", leaf->name, (long long)n);
        layer.n_experts = (int32_t)n;
        part->name = leaf->name;
        part->at = layer.slot_bytes;
        QN_TRY(device->kind->weight_bytes(&part->bytes, device, leaf, err));
        part->bytes /= n;
        layer.slot_bytes += (part->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    *to = layer;
    return QN_OK;
}

qn_status qn_experts_measure(qn_experts_need *out, const qn_plan *plan, const qn_device *device,
                             qn_err *err) {
    qn_experts_need need = {0};
    for (size_t i = 0; i < plan->n_calls; i++) {
        qn_pool_layer layer;
        int64_t all;
        if (!has_experts(&plan->calls[i])) continue;
        QN_TRY(describe_layer(&layer, plan, &plan->calls[i], device, err));
        need.n_layers++;
        need.n_experts = qn_max(need.n_experts, layer.n_experts);
        need.n_used = qn_max(need.n_used, layer.n_used);
        if (!qn_i64_mul(&all, layer.slot_bytes, layer.n_experts) ||
            !qn_i64_add(&need.all_bytes, need.all_bytes, all))
            return QN_FAIL(err, LIMIT, "experts: sizes overflow");
        need.bytes += layer.slot_bytes; // no more than all_bytes
    }
    *out = need;
    return QN_OK;
}

// --- slots ---------------------------------------------------------------------------------------

static unsigned char *place_in(const qn_pool_layer *layer, int32_t slot, int part) {
    return layer->memory + slot * layer->slot_bytes + layer->parts[part].at;
}

// A slot gets an expert, whose bytes are there or will be.
static void fill_slot(qn_pool_layer *layer, int32_t slot, int32_t expert, qn_slot_state state) {
    qn_slot *s = &layer->slots[slot];
    if (s->expert >= 0 && s->expert != expert) {
        layer->slot_of[s->expert] = -1;
        layer->demotions++;
    }
    *s = (qn_slot){expert, (uint8_t)state};
    layer->slot_of[expert] = slot;
    for (int i = 0; i < QN_EXPERT_PARTS; i++)
        layer->parts[i].places[expert] = place_in(layer, slot, i);
}

static void free_slot(qn_pool_layer *layer, int32_t slot) {
    layer->slot_of[layer->slots[slot].expert] = -1;
    layer->slots[slot] = (qn_slot){-1, QN_SLOT_FREE};
}

// --- the reader ----------------------------------------------------------------------------------

// Brings an expert into its slot. The sums were taken when the file was opened.
static qn_status read_expert(const qn_residency *r, const qn_load *load, qn_err *err) {
    const qn_pool_layer *layer = &r->layers[load->layer];
    for (int i = 0; i < QN_EXPERT_PARTS; i++) {
        const qn_layer_part *part = &layer->parts[i];
        unsigned char *to = place_in(layer, load->slot, i);
        if (part->host) {
            QN_TRY(r->device->kind->bring(r->device, to, part->host + load->expert * part->bytes,
                                          (size_t)part->bytes, err));
            continue;
        }
        QN_TRY(qn_file_read(&r->file, part->offset + load->expert * part->bytes, to,
                            (size_t)part->bytes, err));
        if (XXH3_64bits(to, (size_t)part->bytes) != part->sums[load->expert])
            return QN_FAIL(err, IO, "%s has changed: expert %d of %s is not what it was",
                           r->file.path, (int)load->expert, part->name);
    }
    return QN_OK;
}

// The next load: what a step waits for comes first. False: there is none.
static bool next_load(qn_residency *r, qn_load *load, bool *is_asked) {
    *is_asked = r->first_asked < r->n_asked;
    if (*is_asked) {
        *load = r->asked[r->first_asked++];
        return true;
    }
    while (r->first_planned < r->n_planned) {
        *load = r->planned[r->first_planned++];
        if (!qn_residency_accept(&load->slot, r, load)) continue;
        fill_slot(&r->layers[load->layer], load->slot, load->expert, QN_SLOT_LOADING);
        return true;
    }
    return false;
}

static void finish_load(qn_residency *r, const qn_load *load, bool is_asked, qn_status status,
                        const qn_err *why) {
    qn_pool_layer *layer = &r->layers[load->layer];
    if (status) {
        free_slot(layer, load->slot);
        if (layer->wants[load->expert] == QN_WANT_PENDING) { // else nobody waits for it
            r->failed = status;
            r->why = *why;
        }
    } else {
        layer->slots[load->slot].state = QN_SLOT_READY;
        layer->promotions++;
        layer->prefetched += !is_asked;
        for (int i = 0; i < QN_EXPERT_PARTS; i++) layer->bytes_read += layer->parts[i].bytes;
    }
    pthread_cond_broadcast(&r->done);
}

static void *reader_main(void *arg) {
    qn_residency *r = arg;
    pthread_mutex_lock(&r->lock);
    while (!r->is_ending) {
        qn_load load;
        bool is_asked;
        if (!next_load(r, &load, &is_asked)) {
            pthread_cond_wait(&r->work, &r->lock);
            continue;
        }
        qn_err why;
        pthread_mutex_unlock(&r->lock);
        const qn_status status = read_expert(r, &load, &why);
        pthread_mutex_lock(&r->lock);
        finish_load(r, &load, is_asked, status, &why);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

// --- a call --------------------------------------------------------------------------------------

// Asks the reader for wanted experts that are not there, as long as there are slots for them.
static void ask(qn_residency *r) {
    qn_pool_layer *layer = &r->layers[r->active];
    bool is_new = false;
    if (r->first_asked == r->n_asked) r->first_asked = r->n_asked = 0;
    for (int32_t e = 0; e < layer->n_experts && r->n_asked < r->n_slots; e++) {
        if (layer->wants[e] != QN_WANT_PENDING || layer->slot_of[e] >= 0) continue;
        const int32_t slot = qn_residency_victim(r, layer);
        if (slot < 0) break;
        fill_slot(layer, slot, e, QN_SLOT_LOADING);
        r->asked[r->n_asked++] = (qn_load){r->active, e, slot};
        is_new = true;
    }
    if (is_new) pthread_cond_signal(&r->work);
}

static void begin_call(void *arg, int32_t layer, const int32_t *experts, const int32_t *rows,
                       int32_t n) {
    qn_residency *r = arg;
    qn_pool_layer *l = &r->layers[layer];
    pthread_mutex_lock(&r->lock);
    r->active = layer;
    for (int32_t i = 0; i < n; i++) {
        const int32_t slot = l->slot_of[experts[i]];
        const bool is_there = slot >= 0 && l->slots[slot].state == QN_SLOT_READY;
        l->wants[experts[i]] = QN_WANT_PENDING;
        l->hits += is_there;
        l->misses += !is_there;
    }
    qn_residency_heat(r, l, experts, rows, n);
    ask(r);
    pthread_mutex_unlock(&r->lock);
}

// Gives what is there; *n_pending: wanted experts that are not.
static int32_t give_ready(int32_t *experts, int32_t *n_pending, const qn_pool_layer *layer) {
    int32_t n = 0;
    *n_pending = 0;
    for (int32_t e = 0; e < layer->n_experts; e++) {
        if (layer->wants[e] != QN_WANT_PENDING) continue;
        const int32_t slot = layer->slot_of[e];
        if (slot >= 0 && layer->slots[slot].state == QN_SLOT_READY) {
            layer->wants[e] = QN_WANT_GIVEN;
            experts[n++] = e;
        } else {
            ++*n_pending;
        }
    }
    return n;
}

// What is asked for and not begun is left when a call fails.
static void end_call(qn_residency *r, qn_pool_layer *layer) {
    while (r->first_asked < r->n_asked) free_slot(layer, r->asked[r->first_asked++].slot);
    memset(layer->wants, QN_WANT_NOT, (size_t)layer->n_experts);
    r->active = -1;
    if (r->first_planned < r->n_planned) pthread_cond_signal(&r->work);
}

static int32_t next_group(void *arg, int32_t *experts) {
    qn_residency *r = arg;
    int32_t n, n_pending;
    pthread_mutex_lock(&r->lock);
    qn_pool_layer *layer = &r->layers[r->active];
    for (int32_t e = 0; e < layer->n_experts; e++) { // those of the last group are done
        if (layer->wants[e] == QN_WANT_GIVEN) layer->wants[e] = QN_WANT_NOT;
    }
    while ((n = give_ready(experts, &n_pending, layer)) == 0 && n_pending > 0 && !r->failed) {
        ask(r);
        const int64_t began = qn_clock();
        pthread_cond_wait(&r->done, &r->lock);
        layer->stall_ns += qn_clock() - began;
    }
    if (r->failed) n = -1;
    if (n > 0)
        ask(r); // the slots of the last group are free for others
    else
        end_call(r, layer);
    pthread_mutex_unlock(&r->lock);
    return n;
}

static qn_layer_part *find_part(qn_pool_layer **layer, int *index, const qn_residency *r,
                                const char *weight) {
    for (int64_t l = 0; l < r->n_layers; l++) {
        *layer = &r->layers[l];
        for (*index = 0; *index < QN_EXPERT_PARTS; ++*index) {
            if (strcmp((*layer)->parts[*index].name, weight) == 0) return &(*layer)->parts[*index];
        }
    }
    return NULL;
}

static bool find_weight(void *arg, const char *weight, int32_t *layer,
                        const unsigned char *const **places) {
    const qn_residency *r = arg;
    qn_pool_layer *found;
    int index;
    const qn_layer_part *part = find_part(&found, &index, r, weight);
    if (!part) return false;
    *layer = (int32_t)(found - r->layers);
    *places = part->places;
    return true;
}

// --- steps ---------------------------------------------------------------------------------------

void qn_residency_begin_step(qn_residency *r, int64_t rows, int64_t segs) {
    pthread_mutex_lock(&r->step_lock);
    pthread_mutex_lock(&r->lock);
    r->rows = rows;
    r->segs = segs;
    pthread_mutex_unlock(&r->lock);
}

qn_status qn_residency_end_step(qn_residency *r, qn_err *err) {
    pthread_mutex_lock(&r->lock);
    const qn_status status = r->failed;
    if (status && err) *err = r->why;
    r->failed = QN_OK; // another step may find the file as it should be
    qn_residency_refresh(r);
    if (r->first_planned < r->n_planned) pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    pthread_mutex_unlock(&r->step_lock);
    return status;
}

// --- creation ------------------------------------------------------------------------------------

static qn_status take_host(qn_pool_layer *layer, const qn_residency *r, qn_err *err) {
    for (int i = 0; i < QN_EXPERT_PARTS; i++) {
        qn_layer_part *part = &layer->parts[i];
        void *host;
        const size_t bytes =
            (size_t)(part->bytes * layer->n_experts); // no more than the weight has
        const qn_status status = r->device->kind->alloc_host(&host, r->device, bytes, err);
        if (status) return qn_err_prefix(err, status, "experts");
        part->host = host;
    }
    return QN_OK;
}

static qn_status init_layer(qn_pool_layer *layer, const qn_residency *r, qn_err *err) {
    const size_t x = (size_t)layer->n_experts;
    int64_t bytes;
    layer->slots = qn_alloc((size_t)r->n_slots, sizeof *layer->slots);
    layer->slot_of = qn_alloc(x, sizeof *layer->slot_of);
    layer->wants = qn_alloc(x, 1);
    layer->heat = qn_alloc(x, sizeof *layer->heat);
    layer->history = qn_alloc(x * QN_EXPERT_TIMES, sizeof *layer->history);
    bool is_there = layer->slots && layer->slot_of && layer->wants && layer->heat && layer->history;
    for (int i = 0; i < QN_EXPERT_PARTS; i++) {
        layer->parts[i].places = qn_alloc(x, sizeof *layer->parts[i].places);
        layer->parts[i].sums = qn_alloc(x, sizeof *layer->parts[i].sums);
        is_there = is_there && layer->parts[i].places && layer->parts[i].sums;
    }
    if (!is_there) return QN_NOMEM(err, "experts");
    for (int32_t e = 0; e < layer->n_experts; e++) layer->slot_of[e] = -1;
    for (int64_t s = 0; s < r->n_slots; s++) layer->slots[s] = (qn_slot){-1, QN_SLOT_FREE};
    if (!qn_i64_mul(&bytes, layer->slot_bytes, r->n_slots))
        return QN_FAIL(err, LIMIT, "experts: sizes overflow");
    void *memory;
    qn_err why;
    if (r->device->kind->alloc(&memory, r->device, (size_t)bytes, &why))
        return QN_FAIL(err, MEMORY, "out of memory: experts: %s", why.message);
    layer->memory = memory;
    for (int32_t e = 0; e < r->n_slots && e < layer->n_experts; e++)
        fill_slot(layer, e, e, QN_SLOT_LOADING);
    if (!r->device->kind->has_host_memory) return take_host(layer, r, err);
    qn_want_large_pages(memory, (size_t)bytes);
    return QN_OK;
}

static qn_status init_layers(qn_residency *r, const qn_plan *plan, qn_err *err) {
    int32_t most = 1;
    r->layers = qn_alloc(plan->n_calls, sizeof *r->layers);
    if (!r->layers) return QN_NOMEM(err, "experts");
    for (size_t i = 0; i < plan->n_calls; i++) {
        if (!has_experts(&plan->calls[i])) continue;
        qn_pool_layer *layer = &r->layers[r->n_layers];
        QN_TRY(describe_layer(layer, plan, &plan->calls[i], r->device, err));
        r->n_layers++;
        QN_TRY(init_layer(layer, r, err));
        if (layer->n_experts > most) most = layer->n_experts;
    }
    r->hottest = qn_alloc((size_t)most, sizeof *r->hottest);
    r->asked = qn_alloc((size_t)r->n_slots, sizeof *r->asked);
    r->planned = qn_alloc((size_t)(r->n_layers * r->n_slots), sizeof *r->planned);
    r->hash = XXH3_createState();
    return r->hottest && r->asked && r->planned && r->hash ? QN_OK : QN_NOMEM(err, "experts");
}

qn_status qn_residency_create(qn_residency **out, const qn_plan *plan, qn_device *device,
                              int64_t n_slots, qn_err *err) {
    qn_residency *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "experts");
    r->device = device;
    r->n_slots = n_slots;
    r->file.fd = -1;
    r->active = -1;
    r->columns = r->per_column = 1;
    r->pager = (qn_pager){.arg = r, .find = find_weight, .begin = begin_call, .next = next_group};
    pthread_mutex_init(&r->step_lock, NULL);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, NULL);
    pthread_cond_init(&r->done, NULL);
    const qn_status status = init_layers(r, plan, err);
    if (status)
        qn_residency_destroy(r);
    else
        *out = r;
    return status;
}

static void free_layer(qn_pool_layer *layer, const qn_residency *r) {
    if (layer->memory)
        r->device->kind->free(r->device, layer->memory, (size_t)(layer->slot_bytes * r->n_slots));
    for (int i = 0; i < QN_EXPERT_PARTS; i++) {
        if (layer->parts[i].host) r->device->kind->free_host(r->device, layer->parts[i].host);
        qn_free(layer->parts[i].places);
        qn_free(layer->parts[i].sums);
    }
    qn_free(layer->slots);
    qn_free(layer->slot_of);
    qn_free(layer->wants);
    qn_free(layer->heat);
    qn_free(layer->history);
}

void qn_residency_destroy(qn_residency *r) {
    if (!r) return;
    if (r->has_reader) {
        pthread_mutex_lock(&r->lock);
        r->is_ending = true;
        pthread_cond_broadcast(&r->work);
        pthread_mutex_unlock(&r->lock);
        pthread_join(r->reader, NULL);
    }
    for (int64_t i = 0; i < r->n_layers; i++) free_layer(&r->layers[i], r);
    qn_file_close(&r->file);
    XXH3_freeState(r->hash);
    pthread_cond_destroy(&r->done);
    pthread_cond_destroy(&r->work);
    pthread_mutex_destroy(&r->lock);
    pthread_mutex_destroy(&r->step_lock);
    qn_free(r->layers);
    qn_free(r->asked);
    qn_free(r->planned);
    qn_free(r->hottest);
    qn_free(r);
}

// --- filling it ----------------------------------------------------------------------------------

bool qn_residency_has(const qn_residency *r, const char *weight) {
    qn_pool_layer *layer;
    int index;
    return r && find_part(&layer, &index, r, weight) != NULL;
}

void qn_residency_place(qn_residency *r, const char *weight, int64_t offset) {
    qn_pool_layer *layer;
    int index;
    qn_layer_part *part = find_part(&layer, &index, r, weight);
    if (!part) return;
    part->offset = offset;
    part->taken = 0;
}

// Bytes come in pieces that know nothing of experts; after the last expert, zeros.
void qn_residency_take(qn_residency *r, const char *weight, const unsigned char *bytes, int64_t n) {
    qn_pool_layer *layer = NULL;
    int index = 0;
    qn_layer_part *part = find_part(&layer, &index, r, weight);
    if (!part) return;
    while (n > 0 && part->taken < part->bytes * layer->n_experts) {
        const int64_t expert = part->taken / part->bytes, at = part->taken % part->bytes;
        const int64_t some = qn_min(n, part->bytes - at);
        if (at == 0) XXH3_64bits_reset(r->hash);
        XXH3_64bits_update(r->hash, bytes, (size_t)some);
        if (at + some == part->bytes) part->sums[expert] = XXH3_64bits_digest(r->hash);
        const int32_t slot = layer->slot_of[expert];
        if (slot >= 0)
            r->device->kind->write(r->device, place_in(layer, slot, index) + at, bytes,
                                   (size_t)some);
        part->taken += some;
        bytes += some;
        n -= some;
    }
}

unsigned char *qn_residency_room(const qn_residency *r, const char *weight) {
    qn_pool_layer *layer;
    int index;
    const qn_layer_part *part = find_part(&layer, &index, r, weight);
    return part ? part->host : NULL;
}

void qn_residency_fill(qn_residency *r, const char *weight) {
    qn_pool_layer *layer;
    int index;
    const qn_layer_part *part = find_part(&layer, &index, r, weight);
    for (int32_t s = 0; part && s < r->n_slots; s++) {
        const int32_t expert = layer->slots[s].expert;
        if (expert >= 0)
            r->device->kind->write(r->device, place_in(layer, s, index),
                                   part->host + expert * part->bytes, (size_t)part->bytes);
    }
}

qn_status qn_residency_start(qn_residency *r, qn_file *file, qn_err *err) {
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int64_t s = 0; s < r->n_slots; s++) {
            if (r->layers[l].slots[s].expert >= 0) r->layers[l].slots[s].state = QN_SLOT_READY;
        }
    }
    if (file) {
        r->file = *file;
        *file = (qn_file){.fd = -1};
    }
    r->has_reader = qn_thread_start(&r->reader, reader_main, r);
    if (r->has_reader) return QN_OK;
    return QN_FAIL(err, MEMORY, "cannot start the reader of experts: out of memory or of threads");
}

const qn_pager *qn_residency_pager(const qn_residency *r) { return &r->pager; }

int64_t qn_residency_bytes(const qn_residency *r) {
    int64_t bytes = 0;
    for (int64_t l = 0; l < r->n_layers; l++) bytes += r->layers[l].slot_bytes * r->n_slots;
    return bytes;
}

int64_t qn_residency_host_bytes(const qn_residency *r) {
    int64_t bytes = 0;
    for (int64_t l = 0; l < r->n_layers; l++) {
        for (int i = 0; i < QN_EXPERT_PARTS; i++) {
            const qn_layer_part *part = &r->layers[l].parts[i];
            if (part->host) bytes += part->bytes * r->layers[l].n_experts;
        }
    }
    return bytes;
}

// A graph on any device: its weights, caches and states in the device's memory, steps with random
// inputs, and every number that the steps leave behind.
#ifndef QN_TESTS_DEVICE_RIG_H
#define QN_TESTS_DEVICE_RIG_H

#include "random_blocks.h"

#include "backends/device.h"
#include "backends/lower.h"
#include "core/mem.h"
#include "ir/text.h"

#include <math.h>
#include <stdio.h>

enum { RIG_LEAVES = 4, RIG_SLOTS = 3, RIG_PAGES = 16, RIG_LOG_ROWS = 8, RIG_VOCAB = 50 };
enum { RIG_ROWS = 300, RIG_SEGS = 3, RIG_LENGTH = RIG_PAGES * QN_PAGE_ROWS };

// --- devices -------------------------------------------------------------------------------------

// Every device of the registry in every variant that this machine has, as names for qn_device_open.
typedef struct device_list {
    const char *names[16];
    int n;
} device_list;

static inline device_list list_devices(void) {
    device_list list = {.n = 0};
    const qn_device_kind *how;
    for (size_t i = 0; (how = qn_device_kind_get(i)) != NULL; i++) {
        if (how->is_there && !how->is_there()) continue;
        if (!how->variant(0)) list.names[list.n++] = how->name;
        for (size_t v = 0; how->variant(v); v++) list.names[list.n++] = how->variant(v);
    }
    assert_true(list.n > 0 && list.n <= 16);
    return list;
}

// --- numbers -------------------------------------------------------------------------------------

// All numbers that a rig has seen, in order.
typedef struct trace {
    float *v;
    size_t n, cap;
} trace;

static inline float *trace_add(trace *t, int64_t n) {
    void *v = t->v;
    assert_true(qn_grow(&v, &t->cap, t->n + (size_t)n, sizeof *t->v));
    t->v = v;
    float *at = t->v + t->n;
    t->n += (size_t)n;
    return at;
}

// Equal bits; one NaN is as good as another.
static inline void assert_same_trace(const trace *got, const trace *want, const char *device,
                                     const char *what) {
    if (got->n != want->n)
        fail_msg("%s on %s: %zu numbers, want %zu", what, device, got->n, want->n);
    for (size_t i = 0; i < got->n; i++) {
        if (memcmp(&got->v[i], &want->v[i], sizeof *got->v) == 0) continue;
        if (isnan(got->v[i]) && isnan(want->v[i])) continue;
        fail_msg("%s on %s: number %zu of %zu is %.9g, want %.9g", what, device, i, got->n,
                 (double)got->v[i], (double)want->v[i]);
    }
}

static inline uint64_t hash_name(const char *name, uint64_t salt) {
    uint64_t h = salt * 0x9e3779b97f4a7c15u + 1;
    for (; *name; name++) h = (h ^ (uint64_t)(unsigned char)*name) * 0x100000001b3u;
    return h;
}

// Rows of sizes that differ; one is zero, one very small. Odd ones hold an infinity, a NaN, or
// numbers that are too large for halves.
static inline void fill_input(float *to, int64_t rows, int64_t width, uint64_t seed, bool has_odd) {
    static const float odd[] = {INFINITY, NAN, 1e5f, -INFINITY};
    for (int64_t r = 0; r < rows; r++) {
        const float size = r % 11 == 5   ? 0
                           : r % 11 == 7 ? 0x1p-130f
                                         : ldexpf(1, (int)(next_random(&seed) % 9) - 4);
        for (int64_t i = 0; i < width; i++)
            to[r * width + i] = next_float(&seed) * next_float(&seed) * size;
        if (has_odd && r % 3 == 1) to[r * width + r % width] = odd[r / 3 % 4];
    }
}

// --- a graph on a device -------------------------------------------------------------------------

typedef struct rig_memory {
    void *at;
    size_t bytes;
} rig_memory;

typedef struct device_rig {
    qn_pool *pool;
    qn_device *device;
    qn_graph graph;
    qn_plan plan;
    rig_memory weights[16], pages[RIG_LEAVES], slots[RIG_LEAVES];
    const void *weight_at[16];
    qn_cache_view caches[RIG_LEAVES];
    qn_slots_view states[RIG_LEAVES];
    const qn_cache_view *cache_at[RIG_LEAVES];
    const qn_slots_view *state_at[RIG_LEAVES];
    qn_program *program;
    int32_t *message;
    float *given[16]; // rows of inputs, by leaf
    uint64_t salt;    // of the step
    bool has_odd;     // what is not finite comes among the inputs
} device_rig;

static inline rig_memory rig_take(const device_rig *r, int64_t bytes) {
    qn_err err;
    rig_memory m = {.bytes = (size_t)bytes};
    ASSERT_OK(r->device->kind->alloc(&m.at, r->device, m.bytes, &err));
    return m;
}

static inline int64_t count_numbers(const qn_shape *shape, int first) {
    int64_t n = 1;
    for (int i = first; i < shape->n_dims; i++) n *= shape->dims[i].n;
    return n;
}

// The weight as it would be in a file.
typedef struct rig_source {
    qn_type type;
    unsigned char *bytes;
    int64_t told;
} rig_source;

static inline qn_status rig_read(void *arg, void *to, int64_t first, int64_t n, qn_err *err) {
    const rig_source *s = arg;
    const qn_type_info *info = qn_type_get(s->type);
    (void)err;
    memcpy(to, s->bytes + first / info->block * info->bytes,
           (size_t)(n / info->block * info->bytes));
    return QN_OK;
}

static inline qn_status rig_read_f32(void *arg, float *to, int64_t first, int64_t n, qn_err *err) {
    const rig_source *s = arg;
    const qn_type_info *info = qn_type_get(s->type);
    (void)err;
    info->unpack(to, s->bytes + first / info->block * info->bytes, n);
    return QN_OK;
}

static inline qn_status rig_progress(void *arg, int64_t bytes, qn_err *err) {
    rig_source *s = arg;
    (void)err;
    s->told += bytes;
    return QN_OK;
}

static inline rig_source rig_weight(const qn_plan_leaf *leaf) {
    const qn_type_info *info = qn_type_get(leaf->type);
    const int64_t n = count_numbers(&leaf->shape, 0) / info->block;
    uint64_t seed = hash_name(leaf->name, 0);
    rig_source s = {.type = leaf->type, .bytes = qn_alloc((size_t)n, (size_t)info->bytes)};
    assert_non_null(s.bytes);
    for (int64_t i = 0; i < n; i++)
        fill_block(s.bytes + i * info->bytes, kind_of(leaf->type), &seed);
    return s;
}

static inline void rig_load_weights(device_rig *r) {
    const qn_plan *plan = &r->plan;
    const qn_device_kind *how = r->device->kind;
    qn_err err;
    assert_true(plan->n_leaves[QN_PLACE_PARAM] <= 16);
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_PARAM]; i++) {
        const qn_plan_leaf *leaf = &plan->leaves[QN_PLACE_PARAM][i];
        rig_source source = rig_weight(leaf);
        const qn_weight_reader reader = {&source, rig_read, rig_read_f32, rig_progress};
        int64_t bytes;
        ASSERT_OK(how->weight_bytes(&bytes, r->device, leaf, &err));
        r->weights[i] = rig_take(r, bytes);
        ASSERT_OK(how->load_weight(r->weights[i].at, r->device, leaf, &reader, &err));
        assert_int_equal(source.told, bytes);
        r->weight_at[i] = r->weights[i].at;
        qn_free(source.bytes);
    }
}

// Pages lie apart, as if other layers were between them.
static inline void rig_make_caches(device_rig *r, qn_cache_type type) {
    const qn_kv_type *kv = qn_kv_type_get(type);
    for (size_t i = 0; i < r->plan.n_leaves[QN_PLACE_CACHE]; i++) {
        const qn_dim *dims = r->plan.leaves[QN_PLACE_CACHE][i].shape.dims; // (K, E, F)
        qn_cache_view *c = &r->caches[i];
        *c = (qn_cache_view){.offset = 128,
                             .type = kv->type,
                             .is_rotated = kv->is_rotated,
                             .heads = dims[0].n,
                             .k_size = dims[1].n,
                             .v_size = dims[2].n};
        c->layer_bytes = r->device->backend->cache_bytes(kv->type, c->heads, c->k_size, c->v_size);
        c->page_bytes = (c->layer_bytes + 63) / 64 * 64 + 192;
        r->pages[i] = rig_take(r, RIG_SLOTS * RIG_PAGES * c->page_bytes);
        c->pages = r->pages[i].at;
        r->cache_at[i] = c;
    }
}

// The node that reads a state.
static inline const qn_node *rig_user(const qn_graph *graph, const char *name) {
    const int32_t value = qn_graph_find_input(graph, name);
    for (size_t i = 0; i < graph->n_nodes; i++) {
        for (int k = 0; k < graph->nodes[i].n_in; k++) {
            if (graph->nodes[i].in[k] == value) return &graph->nodes[i];
        }
    }
    fail_msg("nothing reads %s", name);
    return NULL;
}

static inline void rig_make_states(device_rig *r) {
    for (size_t i = 0; i < r->plan.n_leaves[QN_PLACE_STATE]; i++) {
        const qn_plan_leaf *leaf = &r->plan.leaves[QN_PLACE_STATE][i];
        qn_slots_view *s = &r->states[i];
        *s = (qn_slots_view){.offset = 64, .log_rows = RIG_LOG_ROWS};
        s->state_size = count_numbers(&leaf->shape, 0);
        s->log_size = qn_log_size(&r->graph, rig_user(&r->graph, leaf->name));
        s->log_offset = (64 + s->state_size * 4 + 63) / 64 * 64;
        s->slot_bytes = s->log_offset + (s->log_rows * s->log_size * 4 + 63) / 64 * 64 + 64;
        r->slots[i] = rig_take(r, RIG_SLOTS * s->slot_bytes);
        s->slots = r->slots[i].at;
        r->state_at[i] = s;
    }
}

// Weights lie as their reader wants them.
static inline void rig_set_layouts(device_rig *r) {
    for (size_t i = 0; i < r->graph.n_nodes; i++) {
        const qn_node *node = &r->graph.nodes[i];
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] < 0) continue;
            qn_node *leaf = &r->graph.nodes[r->graph.values[node->in[k]].node];
            if (leaf->op == QN_OP_PARAM)
                leaf->attrs.layout = r->device->backend->layout(node->op, k);
        }
    }
}

static inline qn_program_opts rig_opts(const device_rig *r) {
    return (qn_program_opts){
        .plans = {{.plan = &r->plan,
                   .weights = r->weight_at,
                   .caches = r->cache_at,
                   .slots = r->state_at,
                   .policy = QN_PLANS_BUCKETED,
                   .capacity = 4}},
        .max = {.rows = RIG_ROWS, .segs = RIG_SEGS, .outs = RIG_ROWS, .cached = RIG_LENGTH}};
}

// A rank's share of a graph; `gather` stays as long as the rig.
static inline void rig_open_rank(device_rig *r, const char *device, const char *text,
                                 qn_cache_type cache, const qn_gather *gather) {
    qn_err err;
    memset(r, 0, sizeof *r);
    ASSERT_OK(qn_pool_create(&r->pool, 2, &err));
    ASSERT_OK(qn_device_open(&r->device, device, NULL, r->pool, &err));
    ASSERT_OK(qn_graph_parse(&r->graph, text, strlen(text), &err));
    rig_set_layouts(r);
    ASSERT_OK(qn_lower(&r->plan, &r->graph, r->device->backend, &err));
    ASSERT_OK(qn_plan_verify(&r->plan, &err));
    rig_load_weights(r);
    rig_make_caches(r, cache);
    rig_make_states(r);
    qn_program_opts opts = rig_opts(r);
    opts.gather = gather;
    ASSERT_OK(r->device->kind->prepare(&r->program, r->device, &opts, &err));
}

static inline void rig_open(device_rig *r, const char *device, const char *text,
                            qn_cache_type cache) {
    rig_open_rank(r, device, text, cache, NULL);
}

static inline void rig_close(device_rig *r) {
    const qn_device_kind *how = r->device->kind;
    how->release(r->program);
    for (int i = 0; i < 16; i++) {
        if (r->weights[i].at) how->free(r->device, r->weights[i].at, r->weights[i].bytes);
        qn_free(r->given[i]);
    }
    for (int i = 0; i < RIG_LEAVES; i++) {
        if (r->pages[i].at) how->free(r->device, r->pages[i].at, r->pages[i].bytes);
        if (r->slots[i].at) how->free(r->device, r->slots[i].at, r->slots[i].bytes);
    }
    qn_device_close(r->device);
    qn_pool_destroy(r->pool);
    qn_plan_deinit(&r->plan);
    qn_graph_deinit(&r->graph);
    qn_free(r->message);
}

// --- steps ---------------------------------------------------------------------------------------

// A segment: `rows` rows after `past`, of the sequence in `slot`; adapters count from 1, 0: none.
typedef struct rig_seg {
    int32_t past, rows, slot, accept, commit, adapter;
} rig_seg;

typedef struct rig_step {
    rig_seg segs[RIG_SEGS];
    int n_segs, n_inert;
    int32_t first_page;   // those before were given back
    int32_t top, entries; // of heads; 0: all
} rig_step;

static inline void rig_fill_segs(device_rig *r, const rig_step *s, int32_t n_real) {
    int32_t *m = r->message, row = 0;
    for (int b = 0; b < s->n_segs; b++) {
        const rig_seg *seg = &s->segs[b];
        qn_step_at(m, QN_STEP_SEG_ROW)[b] = row;
        qn_step_at(m, QN_STEP_SEG_PAST)[b] = seg->past;
        qn_step_at(m, QN_STEP_SEG_SLOT)[b] = seg->slot;
        qn_step_at(m, QN_STEP_SEG_ACCEPT)[b] = seg->accept;
        qn_step_at(m, QN_STEP_SEG_COMMIT)[b] = seg->commit;
        qn_step_at(m, QN_STEP_SEG_ADAPTER)[b] = seg->adapter - 1;
        for (int32_t i = 0; i < RIG_PAGES; i++) // out of order
            qn_step_at(m, QN_STEP_SEG_PAGES)[b * RIG_PAGES + i] =
                i < s->first_page ? -1 : seg->slot * RIG_PAGES + (i * 5 + 3) % RIG_PAGES;
        for (int32_t i = 0; i < seg->rows; i++, row++) {
            const int32_t p = seg->past + i;
            qn_step_at(m, QN_STEP_ROW_SEG)[row] = b;
            memcpy(qn_step_at(m, QN_STEP_POS) + 4 * row, (int32_t[]){p, p / 3, p % 5, 0}, 16);
        }
    }
    qn_step_at(m, QN_STEP_SEG_ROW)[s->n_segs] = n_real;
}

// Wanted rows are every other one, from the last; of every third only the best entries.
static inline qn_sizes rig_make_message(device_rig *r, const rig_step *s) {
    qn_err err;
    size_t words;
    int32_t n_real = 0, longest = 0;
    for (int b = 0; b < s->n_segs; b++) {
        const int32_t length = s->segs[b].past + s->segs[b].rows;
        n_real += s->segs[b].rows;
        if (length > longest) longest = length;
    }
    const int32_t rows = n_real + s->n_inert, outs = (n_real + 1) / 2;
    const qn_step_sizes sizes = {
        .rows = rows, .segs = s->n_segs, .outs = outs, .groups = 1, .pages = RIG_PAGES};
    ASSERT_OK(qn_step_measure(&words, &sizes, &err));
    qn_free(r->message);
    r->message = qn_alloc(words, sizeof *r->message);
    assert_non_null(r->message);
    qn_step_begin(r->message, &sizes, s->top, s->entries);
    rig_fill_segs(r, s, n_real);
    for (int32_t i = 0; i < rows; i++) {
        qn_step_at(r->message, QN_STEP_IDS)[i] = (int32_t)((i * 37 + (int32_t)r->salt) % RIG_VOCAB);
        if (i >= n_real) qn_step_at(r->message, QN_STEP_ROW_SEG)[i] = -1;
    }
    for (int32_t i = 0; i < outs; i++) {
        qn_step_at(r->message, QN_STEP_ROW_OUT)[i] = n_real - 1 - 2 * i;
        qn_step_at(r->message, QN_STEP_OUT_FULL)[i] = i % 3 != 1;
    }
    return (qn_sizes){.rows = rows, .segs = s->n_segs, .outs = outs, .cached = longest};
}

static inline int64_t rig_rows(const qn_sizes *sizes, qn_dim rows) {
    const int64_t symbols[QN_SYM_COUNT] = {1, sizes->rows, sizes->segs, sizes->outs};
    return rows.n * symbols[rows.sym];
}

static inline void rig_give(device_rig *r, const qn_sizes *sizes) {
    for (size_t i = 0; i < r->plan.n_leaves[QN_PLACE_INPUT]; i++) {
        const qn_plan_leaf *leaf = &r->plan.leaves[QN_PLACE_INPUT][i];
        if (leaf->type != QN_TYPE_F32) continue;
        const int64_t n = rig_rows(sizes, leaf->shape.dims[0]);
        const int64_t width = count_numbers(&leaf->shape, 1);
        qn_free(r->given[i]);
        r->given[i] = qn_alloc((size_t)(n * width), sizeof(float));
        assert_non_null(r->given[i]);
        fill_input(r->given[i], n, width, hash_name(leaf->name, r->salt), r->has_odd);
        assert_true(r->device->kind->give(r->program, leaf->name, r->given[i]));
    }
}

// Logits that nobody wants are not computed.
static inline bool is_row_wanted(device_rig *r, const char *kernel, int out, int64_t row) {
    return strncmp(kernel, "head", 4) != 0 || out != 0 ||
           qn_step_at(r->message, QN_STEP_OUT_FULL)[row];
}

// The results of a call, in whatever form.
static inline void rig_trace_call(device_rig *r, trace *t, size_t call, const qn_sizes *sizes) {
    const qn_plan_call *c = &r->plan.calls[call];
    for (int o = 0; o < c->n_out; o++) {
        if (c->out[o].place != QN_PLACE_BUFFER) continue;
        const int64_t n = c->out[o].parts * c->out[o].width;
        for (int64_t row = 0; row < rig_rows(sizes, c->rows); row++) {
            if (is_row_wanted(r, c->kernel, o, row))
                r->device->kind->read_arg(trace_add(t, n), r->program, call, QN_ARG_OUT, o, row);
        }
    }
}

static inline void rig_trace_outputs(device_rig *r, trace *t, const qn_sizes *sizes) {
    for (size_t i = 0; i < r->plan.n_outputs; i++) {
        const qn_plan_output *o = &r->plan.outputs[i];
        const int64_t n = o->arg.parts * o->arg.width;
        for (int64_t row = 0; row < rig_rows(sizes, o->rows); row++) {
            if (!is_row_wanted(r, o->name, 0, row)) continue;
            const float *from = r->device->kind->row(r->program, o, row);
            memcpy(trace_add(t, n), from, (size_t)n * sizeof *from);
        }
    }
}

// One step. By calls: the results of every op, as floats. Else all at once: the outputs.
static inline void rig_run(device_rig *r, trace *t, const rig_step *s, bool by_calls) {
    const qn_device_kind *how = r->device->kind;
    r->salt++;
    const qn_sizes sizes = rig_make_message(r, s);
    assert_true(how->begin(r->program, 0, r->message, &sizes));
    rig_give(r, &sizes);
    if (!by_calls) {
        how->run(r->program);
        how->wait(r->program);
        rig_trace_outputs(r, t, &sizes);
        return;
    }
    for (size_t i = 0; i < r->plan.n_calls; i++) {
        const bool is_last = i + 1 == r->plan.n_calls || r->plan.calls[i + 1].stage == 0;
        how->run_call(r->program, i);
        if (is_last) rig_trace_call(r, t, i, &sizes);
    }
}

// Keys and values of the positions that were written, and states and logs after the last step.
static inline void rig_trace_kept(device_rig *r, trace *t, const rig_step *last) {
    const qn_device_kind *how = r->device->kind;
    for (int b = 0; b < last->n_segs; b++) {
        const rig_seg *seg = &last->segs[b];
        for (size_t i = 0; i < r->plan.n_leaves[QN_PLACE_CACHE]; i++) {
            const qn_cache_view *c = &r->caches[i];
            for (int32_t p = last->first_page * QN_PAGE_ROWS; p < seg->past + seg->rows; p++) {
                const int32_t page = seg->slot * RIG_PAGES + (p / QN_PAGE_ROWS * 5 + 3) % RIG_PAGES;
                float *keys = trace_add(t, c->heads * (c->k_size + c->v_size));
                how->read_kv(keys, keys + c->heads * c->k_size, r->device, c, page,
                             p % QN_PAGE_ROWS);
            }
        }
        for (size_t i = 0; i < r->plan.n_leaves[QN_PLACE_STATE]; i++) {
            const qn_slots_view *s = &r->states[i];
            const unsigned char *slot = s->slots + seg->slot * s->slot_bytes;
            const int64_t logged = qn_min(seg->rows - seg->commit, s->log_rows) * s->log_size;
            how->read(r->device, trace_add(t, s->state_size), slot + s->offset,
                      (size_t)s->state_size * sizeof(float));
            how->read(r->device, trace_add(t, logged), slot + s->log_offset,
                      (size_t)logged * sizeof(float));
        }
    }
}

// Whether a device has such caches; one that lacks them must say so, not give other numbers.
static inline bool rig_has_cache(const char *name, qn_cache_type cache) {
    qn_err err;
    qn_device *device;
    ASSERT_OK(qn_device_open(&device, name, NULL, NULL, &err));
    const bool has = device->backend->caches >> cache & 1u;
    qn_device_close(device);
    return has;
}

// GPUs do not look at what matmuls read: the one op that a device may lack.
static inline bool rig_has_ops(const char *device, const char *text) {
    qn_device *d;
    qn_err err;
    if (!strstr(text, "= sum_squares(")) return true;
    ASSERT_OK(qn_device_open(&d, device, NULL, NULL, &err));
    const bool has = d->backend->recipes[QN_OP_SUM_SQUARES].n_stages > 0;
    assert_true(has || strncmp(device, "cuda", 4) == 0);
    qn_device_close(d);
    return has;
}

// TEST_DEVICE leaves that device's variants, and the first of all, which they are compared with.
static inline bool rig_is_asked(const char *device) {
    const char *asked = getenv("TEST_DEVICE");
    return !asked || strncmp(device, asked, strlen(asked)) == 0;
}

// The steps on every device that has the caches, from nothing; all leave the numbers of the first.
static inline void assert_devices_agree(const char *text, qn_cache_type cache,
                                        const rig_step *steps, int n_steps, bool has_odd,
                                        const char *what) {
    const device_list devices = list_devices();
    trace want[2] = {{0}};
    for (int d = 0; d < devices.n; d++) {
        if (d > 0 && !rig_is_asked(devices.names[d])) continue;
        if (!rig_has_cache(devices.names[d], cache)) continue;
        if (!rig_has_ops(devices.names[d], text)) continue;
        for (int by_calls = 0; by_calls < 2; by_calls++) {
            device_rig r;
            trace got = {0};
            rig_open(&r, devices.names[d], text, cache);
            r.has_odd = has_odd;
            for (int i = 0; i < n_steps; i++) rig_run(&r, &got, &steps[i], by_calls);
            rig_trace_kept(&r, &got, &steps[n_steps - 1]);
            if (d == 0) {
                want[by_calls] = got;
            } else {
                assert_same_trace(&got, &want[by_calls], devices.names[d], what);
                qn_free(got.v);
            }
            rig_close(&r);
        }
    }
    assert_true(want[0].n > 0 && want[1].n > 0);
    qn_free(want[0].v);
    qn_free(want[1].v);
}

#endif

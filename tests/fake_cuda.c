// A stand-in for the library that drives GPUs: memory of this process, and kernels that compute
// with the plain loops of the device `ref`. It counts its calls, and fails when it is told to, so
// that everything but the kernels of a GPU is tested without one.
#include "fake_cuda.h"

#include "backends/cuda/cuda_api.h"
#include "backends/cuda/cuda_tiles.h"
#include "backends/ref/plain.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { FAILED = 700, CARDS = 2 };

static atomic_long n_calls, fail_at; // fail_at 0: never
static atomic_long n_allocs, refuse_at;
static atomic_long n_objects;               // graphs and streams
static atomic_size_t n_bytes, n_host_bytes; // that are taken, of the card and of the host
static atomic_size_t max_bytes;             // 0: no limit

__attribute__((visibility("default"))) void fake_cuda_set(long fail, size_t most) {
    atomic_store(&n_calls, 0);
    atomic_store(&fail_at, fail);
    atomic_store(&max_bytes, most);
}

__attribute__((visibility("default"))) long fake_cuda_calls(void) { return atomic_load(&n_calls); }
__attribute__((visibility("default"))) size_t fake_cuda_bytes(void) {
    return atomic_load(&n_bytes) + atomic_load(&n_host_bytes);
}

__attribute__((visibility("default"))) void fake_cuda_refuse(long alloc) {
    atomic_store(&n_allocs, 0);
    atomic_store(&refuse_at, alloc);
}

__attribute__((visibility("default"))) long fake_cuda_allocs(void) {
    return atomic_load(&n_allocs);
}
__attribute__((visibility("default"))) long fake_cuda_objects(void) {
    return atomic_load(&n_objects);
}

// Once a call has failed all others do.
static bool fails(void) {
    const long n = atomic_fetch_add(&n_calls, 1) + 1, at = atomic_load(&fail_at);
    return at > 0 && n >= at;
}

static const char *explain(int error) {
    return error == FAILED ? "the card is gone" : "there is no room";
}

// --- cards and memory ----------------------------------------------------------------------------

typedef struct recorded {
    qn_cuda_kernel kernel;
    qn_cuda_task task;
} recorded;

struct qn_cuda_graph {
    recorded *launches;
    size_t n;
};

// A copy that was begun; it is done when somebody waits for it.
typedef struct begun {
    void *to;
    const void *host;
    size_t bytes;
} begun;

enum { MATRICES = 3, FIRST_MATRIX = 2 }; // of experts: gate, up, down

struct qn_cuda_stream {
    int64_t marks[QN_CUDA_MARKS];
    begun lanes[QN_CUDA_LANES];
    unsigned char *experts[MATRICES]; // those that were brought for an op, as in a file
    qn_cuda_graph *graph;             // that is being recorded
};

static int count(int *n) {
    if (fails()) return FAILED;
    *n = CARDS;
    return 0;
}

static int describe(qn_cuda_card *out, int card) {
    if (fails()) return FAILED;
    *out = (qn_cuda_card){.major = card ? 7 : 9, .n_units = 1, .bytes = INT64_C(1) << 30};
    snprintf(out->name, sizeof out->name, "%s", card ? "an old fake" : "a fake");
    return 0;
}

static int open_stream(qn_cuda_stream **out, int card) {
    (void)card;
    qn_cuda_stream *s = fails() ? NULL : calloc(1, sizeof *s);
    if (!s) return FAILED;
    atomic_fetch_add(&n_objects, 1);
    *out = s;
    return 0;
}

static void drop_experts(qn_cuda_stream *s) {
    for (int k = 0; k < MATRICES; k++) {
        free(s->experts[k]);
        s->experts[k] = NULL;
    }
}

static void close_stream(qn_cuda_stream *s) {
    atomic_fetch_sub(&n_objects, 1);
    drop_experts(s);
    free(s);
}

static int memory(qn_cuda_stream *s, size_t *available) {
    (void)s;
    if (fails()) return FAILED;
    const size_t most = atomic_load(&max_bytes), all = most ? most : (size_t)1 << 30;
    const size_t taken = atomic_load(&n_bytes);
    *available = all > taken ? all - taken : 0;
    return 0;
}

// The size lies before the bytes. They are not zero.
static int take(void **out, atomic_size_t *taken, size_t most, size_t bytes) {
    if (fails()) return FAILED;
    if (atomic_fetch_add(&n_allocs, 1) + 1 == atomic_load(&refuse_at)) return 2;
    if (bytes > (size_t)1 << 40 || (most && atomic_load(taken) + bytes > most)) return 2;
    unsigned char *at = aligned_alloc(64, (bytes + 127) / 64 * 64);
    if (!at) return 2;
    memcpy(at, &bytes, sizeof bytes);
    memset(at + 64, 0xa5, bytes);
    atomic_fetch_add(taken, bytes);
    *out = at + 64;
    return 0;
}

static void give_back(atomic_size_t *taken, void *at) {
    size_t bytes;
    if (!at) return;
    memcpy(&bytes, (unsigned char *)at - 64, sizeof bytes);
    atomic_fetch_sub(taken, bytes);
    free((unsigned char *)at - 64);
}

static int alloc(void **out, qn_cuda_stream *s, size_t bytes) {
    (void)s;
    return take(out, &n_bytes, atomic_load(&max_bytes), bytes);
}

static int alloc_host(void **out, qn_cuda_stream *s, size_t bytes) {
    (void)s;
    return take(out, &n_host_bytes, 0, bytes);
}

static void free_bytes(qn_cuda_stream *s, void *at) {
    (void)s;
    give_back(&n_bytes, at);
}

static void free_host(qn_cuda_stream *s, void *at) {
    (void)s;
    give_back(&n_host_bytes, at);
}

static int clear(qn_cuda_stream *s, void *at, size_t bytes) {
    (void)s;
    if (fails()) return FAILED;
    memset(at, 0, bytes);
    return 0;
}

static int put(qn_cuda_stream *s, void *to, const void *host, size_t bytes) {
    (void)s;
    if (fails()) return FAILED;
    memcpy(to, host, bytes);
    return 0;
}

static int copy(qn_cuda_stream *s, void *to, const void *from, size_t bytes) {
    (void)s;
    if (fails()) return FAILED;
    memmove(to, from, bytes);
    return 0;
}

static void finish(begun *copying) {
    if (copying->bytes) memcpy(copying->to, copying->host, copying->bytes);
    copying->bytes = 0;
}

static int send(qn_cuda_stream *s, int lane, void *to, const void *host, size_t bytes) {
    if (fails()) return FAILED;
    finish(&s->lanes[lane]);
    s->lanes[lane] = (begun){to, host, bytes};
    return 0;
}

static int sent(qn_cuda_stream *s, int lane) {
    if (fails()) return FAILED;
    finish(&s->lanes[lane]);
    return 0;
}

// --- packed activations --------------------------------------------------------------------------

static int form_bytes(int form) {
    return form == QN_WORD_i12_256   ? (int)sizeof(qn_cuda_i12)
           : form == QN_WORD_i16_256 ? (int)sizeof(qn_cuda_i16)
                                     : (int)sizeof(qn_cuda_i8);
}

// A group of 32 in a block, from the plain form and to it.
static void pack_group(unsigned char *block, int form, int j, const qn_plain_group *g) {
    int8_t *hi = (int8_t *)block, *lo = hi + QN_CUDA_BLOCK;
    for (int k = 0; k < 32; k++) {
        const int q = g->q[k], i = 32 * j + k, sum = i / 16;
        const int high = form == QN_WORD_i12_256 ? (q + 128) >> 8 : q >> 8;
        if (form == QN_WORD_i8_32) {
            qn_cuda_i8 *b = (qn_cuda_i8 *)(void *)block;
            b->q[i] = (int8_t)q;
            b->scales[j] = g->scale;
            b->sums[sum] = (int16_t)(b->sums[sum] + q);
            continue;
        }
        const int at = form == QN_WORD_i12_256 ? qn_cuda_i12_at(i) : i;
        hi[at] = (int8_t)high;
        lo[at] = (int8_t)(q - 256 * high - (form == QN_WORD_i16_256 ? 128 : 0));
        if (form == QN_WORD_i12_256) {
            qn_cuda_i12 *b = (qn_cuda_i12 *)(void *)block;
            b->scale = g->scale;
            b->sums[sum] = (int16_t)(b->sums[sum] + q);
        } else {
            qn_cuda_i16 *b = (qn_cuda_i16 *)(void *)block;
            b->scale = g->scale;
            b->sums[sum] += q;
        }
    }
}

static void unpack_group(qn_plain_group *g, const unsigned char *block, int form, int j) {
    const int8_t *hi = (const int8_t *)block, *lo = hi + QN_CUDA_BLOCK;
    for (int k = 0; k < 32; k++) {
        const int i = 32 * j + k;
        if (form == QN_WORD_i8_32) {
            const qn_cuda_i8 *b = (const qn_cuda_i8 *)(const void *)block;
            g->q[k] = b->q[i];
            g->scale = b->scales[j];
        } else {
            const int at = form == QN_WORD_i12_256 ? qn_cuda_i12_at(i) : i;
            g->q[k] = (int16_t)(256 * hi[at] + lo[at] + (form == QN_WORD_i16_256 ? 128 : 0));
            g->scale = form == QN_WORD_i12_256 ? ((const qn_cuda_i12 *)(const void *)block)->scale
                                               : ((const qn_cuda_i16 *)(const void *)block)->scale;
        }
    }
}

// All rows of an operand, in the plain form or back.
static void convert(unsigned char *plain, const qn_cuda_operand *o, int64_t rows, bool is_packing) {
    const int64_t blocks = (o->width + QN_CUDA_BLOCK - 1) / QN_CUDA_BLOCK;
    const int64_t bytes = form_bytes(o->form);
    const int64_t part = qn_plain_part_bytes((qn_word)o->form, o->width);
    for (int64_t i = 0; i < rows * o->parts; i++) {
        unsigned char *to = o->data + i / o->parts * o->stride + i % o->parts * blocks * bytes;
        qn_plain_group *groups = (qn_plain_group *)(void *)(plain + i * part);
        if (is_packing) memset(to, 0, (size_t)(blocks * bytes));
        for (int64_t g = 0; g * 32 < o->width; g++) {
            unsigned char *block = to + g / 8 * bytes;
            if (is_packing)
                pack_group(block, o->form, (int)(g % 8), &groups[g]);
            else
                unpack_group(&groups[g], block, o->form, (int)(g % 8));
        }
    }
}

// --- kernels -------------------------------------------------------------------------------------

// The op whose last stage a kernel is; it computes all of it. QN_OP_INPUT: an earlier stage.
static const qn_op ops[QN_CUDA_KERNELS] = {
    [QN_CUDA_quantize] = QN_OP_QUANTIZE,
    [QN_CUDA_embed] = QN_OP_EMBED,
    [QN_CUDA_project] = QN_OP_PROJECT,
    [QN_CUDA_gated] = QN_OP_GATED,
    [QN_CUDA_head_merge] = QN_OP_HEAD,
    [QN_CUDA_grouped] = QN_OP_GROUPED_MATMUL,
    [QN_CUDA_experts_combine] = QN_OP_EXPERTS,
    [QN_CUDA_lora_up] = QN_OP_LORA,
    [QN_CUDA_add] = QN_OP_ADD,
    [QN_CUDA_mul] = QN_OP_MUL,
    [QN_CUDA_scale] = QN_OP_SCALE,
    [QN_CUDA_silu] = QN_OP_SILU,
    [QN_CUDA_gelu] = QN_OP_GELU,
    [QN_CUDA_gelu_erf] = QN_OP_GELU_ERF,
    [QN_CUDA_sigmoid] = QN_OP_SIGMOID,
    [QN_CUDA_softplus] = QN_OP_SOFTPLUS,
    [QN_CUDA_softcap] = QN_OP_SOFTCAP,
    [QN_CUDA_rms_norm] = QN_OP_RMS_NORM,
    [QN_CUDA_layer_norm] = QN_OP_LAYER_NORM,
    [QN_CUDA_l2_norm] = QN_OP_L2_NORM,
    [QN_CUDA_norm_quantize] = QN_OP_NORM_QUANTIZE,
    [QN_CUDA_add_norm] = QN_OP_ADD_NORM,
    [QN_CUDA_route] = QN_OP_ROUTE,
    [QN_CUDA_combine] = QN_OP_COMBINE,
    [QN_CUDA_angles] = QN_OP_ANGLES,
    [QN_CUDA_rotate] = QN_OP_ROTATE,
    [QN_CUDA_rope] = QN_OP_ROPE,
    [QN_CUDA_narrow] = QN_OP_NARROW,
    [QN_CUDA_concat] = QN_OP_CONCAT,
    [QN_CUDA_copy] = QN_OP_SPLIT,
    [QN_CUDA_gather_rows] = QN_OP_GATHER_ROWS,
    [QN_CUDA_kv_write] = QN_OP_KV_WRITE,
    [QN_CUDA_rotate_write] = QN_OP_ROTATE_WRITE,
    [QN_CUDA_attend] = QN_OP_ATTEND,
    [QN_CUDA_attention_attend] = QN_OP_ATTENTION,
    [QN_CUDA_conv] = QN_OP_CONV,
    [QN_CUDA_delta] = QN_OP_DELTA,
};

static unsigned char *data_of(const qn_cuda_operand *o, const qn_step *s) {
    const void *at = o->data;
    if (o->field == QN_STEP_IDS) at = s->ids;
    if (o->field == QN_STEP_ROW_OUT) at = s->row_out;
    if (o->field == QN_STEP_EXTRA) at = s->n_extra ? s->extra : NULL;
    if (o->field == QN_STEP_EXTRA_ROW) at = s->extra_row;
    return (unsigned char *)(uintptr_t)at;
}

// A tiled weight as it lies in a file.
static unsigned char *gather_weight(const qn_cuda_operand *o) {
    const qn_type_info *info = qn_type_get((qn_type)o->type);
    const int64_t blocks = o->width / QN_CUDA_BLOCK, unit = qn_cuda_unit_bytes(o->type);
    const int64_t bytes = QN_CUDA_BLOCK / info->block * info->bytes;
    unsigned char *all = malloc((size_t)(o->parts * blocks * bytes) + 1);
    for (int64_t i = 0; all && i < o->parts; i++) {
        for (int64_t b = 0; b < blocks; b++) {
            const int64_t at =
                qn_cuda_unit_of(i / QN_CUDA_TILE, b, o->parts / QN_CUDA_TILE, blocks).at;
            qn_cuda_tile_row(all + (i * blocks + b) * bytes, o->data + at * unit,
                             (int)(i % QN_CUDA_TILE), o->type);
        }
    }
    return all;
}

static qn_plain_operand plain_of(const qn_cuda_operand *o, const qn_cuda_task *t, bool is_in) {
    qn_plain_operand to = {.data = data_of(o, t->step),
                           .stride = o->stride,
                           .parts = o->parts,
                           .width = o->width,
                           .form = (qn_word)o->form,
                           .is_typed = o->is_weight,
                           .type = (qn_type)o->type};
    if (to.data && o->is_tiled) to.data = gather_weight(o);
    if (!to.data || o->is_weight || o->form == QN_WORD_f32 || o->width == 0) return to;
    to.stride = o->parts * qn_plain_part_bytes(to.form, o->width);
    const int64_t rows = is_in ? (o->stride ? t->rows : 1) : t->rows;
    to.data = calloc((size_t)qn_max(rows * to.stride, 1), 1);
    if (is_in && to.data) convert(to.data, o, rows, false);
    return to;
}

// --- experts that are brought --------------------------------------------------------------------

static void choose_experts(const qn_cuda_task *t) {
    const qn_plain_op *op = qn_plain_op_get(QN_OP_ROUTE);
    qn_plain_task plain = {.attrs = &t->attrs, .step = t->step, .rows = t->rows};
    plain.in[0] = plain_of(&t->in[1], t, true);
    plain.out[0] = plain_of(&t->temp[0], t, false);
    plain.out[1] = plain_of(&t->temp[1], t, false);
    plain.room = calloc((size_t)op->room(&plain) + 1, sizeof *plain.room);
    op->run(&plain);
    free(plain.room);
}

// Those that are there now; the sum of them comes later, when they may be gone.
static void keep_experts(qn_cuda_stream *s, const qn_cuda_task *t) {
    for (int k = 0; k < MATRICES; k++) {
        const qn_cuda_operand *w = &t->in[FIRST_MATRIX + k];
        const qn_type_info *info = qn_type_get((qn_type)w->type);
        const int64_t n_experts = t->in[1].width;
        const int64_t bytes = w->parts * w->width / info->block * info->bytes;
        if (!s->experts[k]) s->experts[k] = calloc((size_t)n_experts, (size_t)bytes + 1);
        for (int64_t e = 0; s->experts[k] && e < n_experts; e++) {
            qn_cuda_operand one = *w;
            if (!w->places[e]) continue;
            one.data = (unsigned char *)(uintptr_t)w->places[e];
            unsigned char *from = w->is_tiled ? gather_weight(&one) : one.data;
            memcpy(s->experts[k] + e * bytes, from, (size_t)bytes);
            if (w->is_tiled) free(from);
        }
    }
}

static qn_plain_operand kept_of(const qn_cuda_stream *s, const qn_cuda_task *t, int i) {
    const qn_cuda_operand *w = &t->in[i];
    return (qn_plain_operand){.data = s->experts[i - FIRST_MATRIX],
                              .parts = t->in[1].width * w->parts,
                              .width = w->width,
                              .is_typed = w->is_weight,
                              .type = (qn_type)w->type};
}

// ---

static int compute(qn_cuda_stream *s, qn_cuda_kernel kernel, const qn_cuda_task *t) {
    const qn_plain_op *op = qn_plain_op_get(ops[kernel]);
    const bool is_brought = t->in[FIRST_MATRIX].places != NULL;
    if (is_brought && kernel == QN_CUDA_experts_route) {
        drop_experts(s);
        choose_experts(t);
    }
    if (is_brought && kernel == QN_CUDA_experts_up) keep_experts(s, t);
    qn_plain_task plain = {.attrs = &t->attrs,
                           .cache = t->cache.pages ? &t->cache : NULL,
                           .slots = t->slots.slots ? &t->slots : NULL,
                           .step = t->step,
                           .rows = t->rows};
    if (!op->run) return 0;
    for (int i = 0; i < QN_MAX_IN; i++)
        plain.in[i] = t->in[i].places ? kept_of(s, t, i) : plain_of(&t->in[i], t, true);
    for (int i = 0; i < QN_MAX_OUT; i++) plain.out[i] = plain_of(&t->out[i], t, false);
    plain.room = calloc((size_t)op->room(&plain) + 1, sizeof *plain.room);
    op->run(&plain);
    for (int i = 0; i < QN_MAX_OUT; i++) {
        if (plain.out[i].data == t->out[i].data) continue;
        convert(plain.out[i].data, &t->out[i], t->rows, true);
        free(plain.out[i].data);
    }
    for (int i = 0; i < QN_MAX_IN; i++) {
        if (!t->in[i].places && plain.in[i].data != data_of(&t->in[i], t->step))
            free(plain.in[i].data);
    }
    free(plain.room);
    return 0;
}

static int launch(qn_cuda_stream *s, qn_cuda_kernel kernel, const qn_cuda_task *task) {
    if (fails()) return FAILED;
    if (!s->graph) return compute(s, kernel, task);
    recorded *all = realloc(s->graph->launches, (s->graph->n + 1) * sizeof *all);
    if (!all) return 2;
    s->graph->launches = all;
    all[s->graph->n++] = (recorded){kernel, *task};
    return 0;
}

static int wait(qn_cuda_stream *s) {
    (void)s;
    return fails() ? FAILED : 0;
}

// --- graphs and times ----------------------------------------------------------------------------

static int record(qn_cuda_stream *s) {
    if (fails()) return FAILED;
    s->graph = calloc(1, sizeof *s->graph);
    if (!s->graph) return 2;
    atomic_fetch_add(&n_objects, 1);
    return 0;
}

static void forget(qn_cuda_stream *s, qn_cuda_graph *graph) {
    (void)s;
    atomic_fetch_sub(&n_objects, 1);
    free(graph->launches);
    free(graph);
}

static int record_end(qn_cuda_graph **out, qn_cuda_stream *s) {
    qn_cuda_graph *graph = s->graph;
    s->graph = NULL;
    if (fails()) {
        forget(s, graph);
        return FAILED;
    }
    *out = graph;
    return 0;
}

static int replay(qn_cuda_stream *s, const qn_cuda_graph *graph) {
    if (fails()) return FAILED;
    for (size_t i = 0; i < graph->n; i++)
        (void)compute(s, graph->launches[i].kernel, &graph->launches[i].task);
    return 0;
}

static int mark(qn_cuda_stream *s, int index) {
    struct timespec now;
    if (fails()) return FAILED;
    clock_gettime(CLOCK_MONOTONIC, &now);
    s->marks[index] = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    return 0;
}

static int between(int64_t *ns, qn_cuda_stream *s, int from, int to) {
    if (fails()) return FAILED;
    *ns = s->marks[to] - s->marks[from];
    return 0;
}

static int measure(qn_cuda_limits *out, qn_cuda_stream *s) {
    (void)s;
    if (fails()) return FAILED;
    *out = (qn_cuda_limits){.read_gbs = 50, .tensor_tflops = 2};
    return 0;
}

const qn_cuda_api *qn_cuda_api_get(void);
__attribute__((visibility("default"))) const qn_cuda_api *qn_cuda_api_get(void) {
    static const qn_cuda_api api = {.version = QN_CUDA_API_VERSION,
                                    .task_bytes = sizeof(qn_cuda_task),
                                    .explain = explain,
                                    .count = count,
                                    .describe = describe,
                                    .open = open_stream,
                                    .close = close_stream,
                                    .memory = memory,
                                    .alloc = alloc,
                                    .free = free_bytes,
                                    .alloc_host = alloc_host,
                                    .free_host = free_host,
                                    .clear = clear,
                                    .put = put,
                                    .get = put,
                                    .copy = copy,
                                    .launch = launch,
                                    .wait = wait,
                                    .record = record,
                                    .record_end = record_end,
                                    .replay = replay,
                                    .forget = forget,
                                    .mark = mark,
                                    .between = between,
                                    .send = send,
                                    .sent = sent,
                                    .measure = measure};
    return &api;
}

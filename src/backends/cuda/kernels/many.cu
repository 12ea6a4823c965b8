// Matmuls of many rows on tensor cores; see many.cuh. An image of the rows is made first, in the
// room of the program; where it does not hold all rows, they are done in pieces.
#include "many_launch.cuh"
#include "digits_make.cuh"
#include "many_mma.cuh"
#include "many_wgmma.cuh"

// --- kinds of kernels ----------------------------------------------------------------------------

struct Kind {
    bool is_wgmma;
    int type, products, rows, outs, ways;
    int columns, block_bytes; // of an image
    int shared_bytes;
    bool (*launch)(const Many &m, const Flat &x, int n_units, cudaStream_t stream);
};

template <class S>
static bool launch_wgmma(const Many &m, const Flat &x, int n_units, cudaStream_t stream) {
    const int tiles = ceil_div(m.rows, S::ROWS);
    const int jobs = tiles * ceil_div(m.groups, CLUSTER * S::OUTS);
    const int clusters = jobs < n_units / CLUSTER ? jobs : n_units / CLUSTER;
    static_assert(S::BLOCK <= S::ROWS * QN_CUDA_IMAGE_ROW && S::ROWS <= QN_CUDA_IMAGE_TILE, "room");
    if (!allow_shared(many_wgmma<S>, S::BYTES)) return false;
    start(make_image<S>, dim3((unsigned)m.blocks, (unsigned)tiles), IMAGE_THREADS, 0, stream,
          (unsigned char *)m.image, x, m.rows, m.blocks);
    start(many_wgmma<S>, dim3((unsigned)(CLUSTER * clusters)), S::THREADS, S::BYTES, stream, m);
    return true;
}

template <class S>
static bool launch_mma(const Many &m, const Flat &x, int n_units, cudaStream_t stream) {
    const int tiles = ceil_div(m.rows, S::ROWS), jobs = tiles * ceil_div(m.groups, S::OUTS);
    if (!allow_shared(many_mma<S>, S::BYTES)) return false;
    start(make_image<S>, dim3((unsigned)m.blocks, (unsigned)tiles), IMAGE_THREADS, 0, stream,
          (unsigned char *)m.image, x, m.rows, m.blocks);
    start(many_mma<S>, dim3((unsigned)(jobs < 2 * n_units ? jobs : 2 * n_units)), S::THREADS,
          S::BYTES, stream, m);
    return true;
}

template <class S>
static constexpr Kind kind_of(bool is_wgmma, int ways, decltype(Kind::launch) f) {
    return {is_wgmma, S::TYPE,    S::PRODUCTS, S::ROWS,  S::OUTS,
            ways,     S::COLUMNS, S::BLOCK,    S::BYTES, f};
}

#define IMAGE(type, products, rows) Image<QN_TYPE_##type, products, rows>
static const Kind kinds[] = {
#define WGMMA(type, products, rows, outs, ways)                                                    \
    kind_of<Shape<IMAGE(type, products, rows), outs, ways>>(                                       \
        true, ways, launch_wgmma<Shape<IMAGE(type, products, rows), outs, ways>>),
#define MMA(type, products, rows, outs)                                                            \
    kind_of<WarpShape<IMAGE(type, products, rows), outs>>(                                         \
        false, 1, launch_mma<WarpShape<IMAGE(type, products, rows), outs>>),
#include "backends/cuda/kernels/many_kinds.def"
#undef WGMMA
#undef MMA
};
#undef IMAGE

// --- choosing ------------------------------------------------------------------------------------

#ifdef QN_CUDA_HAS_90A
constexpr bool HAS_HOPPER = true;
#else
constexpr bool HAS_HOPPER = false; // kernels for it are empty in this build
#endif

struct Card {
    bool is_hopper;
    int n_units, shared_bytes;
};
static Card card_now() {
    int device = 0, major = 0;
    Card card = {};
    if (cudaGetDevice(&device) ||
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) ||
        cudaDeviceGetAttribute(&card.n_units, cudaDevAttrMultiProcessorCount, device) ||
        cudaDeviceGetAttribute(&card.shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device))
        return {};
    card.is_hopper = HAS_HOPPER && major == 9;
    return card;
}

// The time of all jobs: as many at a time as there are multiprocessors, each its products and
// something for waiting. The order that this gives is the measured one, but for a few per cent.
static double cost_of(const Kind &k, int64_t rows, int groups, const Card &card) {
    const int cluster = k.is_wgmma ? CLUSTER : 1;
    const int64_t jobs = ceil_div(rows, (int64_t)k.rows) * ceil_div(groups, cluster * k.outs);
    const int64_t turns = ceil_div(jobs, (int64_t)(card.n_units / cluster));
    return (double)turns * (k.outs * k.columns + 40);
}

// Numbers that are not exact must not depend on the kind: all kinds of a card, type and number of
// products use the same instruction in the same order.
static const Kind *best_kind(const Card &card, int type, int products, int64_t rows, int groups) {
    const Kind *best = nullptr;
    for (const Kind &k : kinds) {
        if (k.is_wgmma != card.is_hopper || k.type != type || k.products != products ||
            k.shared_bytes > card.shared_bytes)
            continue;
        if (!best || cost_of(k, rows, groups, card) < cost_of(*best, rows, groups, card)) best = &k;
    }
    return best;
}

// --- launches ------------------------------------------------------------------------------------

constexpr int64_t MANY_AT_ONCE = 128 * 1024; // rows; whole tiles, no more than a grid has

// Rows at equal distances; false: they are not.
static bool flat_of(Flat *to, const Operand &x) {
    const int64_t part = x.form == QN_WORD_f32
                             ? x.width * (int64_t)sizeof(float)
                             : ceil_div(x.width, (int64_t)QN_CUDA_BLOCK) * block_bytes(x.form);
    *to = {x.data, x.parts == 1 ? x.stride : part};
    return x.parts == 1 || x.stride == x.parts * part;
}

static bool many_takes(const Operand &w) {
    return w.is_tiled && (w.type == QN_TYPE_Q4_K || w.type == QN_TYPE_Q6_K) &&
           w.parts <= INT32_MAX - 64;
}

static void add_part(Many &m, const Operand &w, const Operand &second, int64_t out) {
    m.parts[m.n_parts++] = {{w.data, second.data}, (int)(w.parts / QN_CUDA_TILE), (int)out};
    m.groups += ceil_div((int)(w.parts / QN_CUDA_TILE), 4);
}

// Which numbers a call asks for: two products are exact.
static int products_of(const Task *task) { return task->is_tensor ? 1 : 2; }

// All rows of m, as many at a time as the room has place for.
static bool run_all(const Kind &kind, Many m, Flat x, int64_t n, const Task *task, int n_units,
                    cudaStream_t stream) {
    const int64_t tile = (int64_t)m.blocks * kind.block_bytes;
    int64_t fit = task->room_floats * (int64_t)sizeof(float) / tile * kind.rows;
    if (fit < kind.rows) return false;
    fit = fit < MANY_AT_ONCE ? fit : MANY_AT_ONCE;
    m.image = (const unsigned char *)task->room;
    for (int64_t first = 0; first < n; first += fit) {
        m.rows = (int)(n - first < fit ? n - first : fit);
        if (!kind.launch(m, x, n_units, stream)) return false;
        x.data += fit * x.stride;
        m.out.data += fit * m.out.stride;
    }
    return true;
}

// What the launches of a call share.
struct Call {
    const Task *task;
    Many m;
    Flat x;
    int64_t n; // rows
    Card card;
};

static bool prepare(Call *c, const Task *task, ManyEnd end) {
    const Operand &x = task->in[0];
    *c = {};
    c->task = task;
    c->n = task->rows * x.parts;
    c->m.passes = end == MANY_SILU || end == MANY_GATE ? 2 : 1;
    c->m.end = end;
    c->m.blocks = (int)(x.width / QN_CUDA_BLOCK);
    c->m.act = task->attrs.act;
    c->m.cap = task->attrs.cap;
    if (x.form != QN_WORD_i12_256 || !flat_of(&c->x, x) || !flat_of(&c->m.out, task->out[0]))
        return false;
    c->card = card_now();
    return c->card.n_units >= CLUSTER;
}

// Whether n weights are worth an image. Kernels for a few rows read them once for every eight, at
// about 1 TB/s; these take 9 us at least, want groups for most multiprocessors, and are slower with
// Q6_K. Measured on an H200 with 5 to 128 rows.
static bool is_worth(const Call &c, const Operand *weights, int n) {
    int64_t bytes = 0, groups = 0;
    bool is_q4 = true;
    if (products_of(c.task) != 2) return true; // there is no other kernel
    for (int i = 0; i < n; i++) {
        const int64_t tiles = weights[i].parts / QN_CUDA_TILE;
        bytes += tiles * c.m.blocks * qn_cuda_unit_bytes(weights[i].type);
        groups += ceil_div(tiles, (int64_t)QN_CUDA_TILES);
        is_q4 = is_q4 && weights[i].type == QN_TYPE_Q4_K;
    }
    if (c.n <= 8) return c.n > 4 && is_q4 && 3 * groups >= 2 * c.card.n_units && bytes >= 12000000;
    return bytes * ceil_div(c.n, (int64_t)8) >= 5000000;
}

static bool takes_all(const Call &c, const Operand *weights, int n) {
    for (int i = 0; i < n; i++)
        if (!many_takes(weights[i])) return false;
    return is_worth(c, weights, n);
}

static bool run(const Call &c, int type, cudaStream_t stream) {
    const Kind *kind = best_kind(c.card, type, products_of(c.task), c.n, c.m.groups);
    return kind && run_all(*kind, c.m, c.x, c.n, c.task, c.card.n_units, stream);
}

// One launch for the weights of each type.
bool many_project_launch(const Task *task, cudaStream_t stream) {
    Call c;
    const int n = count_weights(task);
    if (!prepare(&c, task, MANY_STORE) || !takes_all(c, task->in + 1, n)) return false;
    for (const int type : {QN_TYPE_Q4_K, QN_TYPE_Q6_K}) {
        int64_t out = 0;
        c.m.n_parts = c.m.groups = 0;
        for (int i = 1; i <= n; out += task->in[i++].parts)
            if (task->in[i].type == type) add_part(c.m, task->in[i], task->in[i], out);
        if (c.m.n_parts && !run(c, type, stream)) return false;
    }
    return true;
}

bool many_gated_launch(const Task *task, cudaStream_t stream) {
    Call c;
    const Operand &gate = task->in[1], &up = task->in[2];
    const bool is_silu = task->attrs.act != QN_WORD_gelu; // as `activate` has it
    if (!prepare(&c, task, is_silu ? MANY_SILU : MANY_GATE) || !takes_all(c, task->in + 1, 2) ||
        gate.type != up.type)
        return false;
    add_part(c.m, is_silu ? up : gate, is_silu ? gate : up, 0);
    return run(c, gate.type, stream);
}

bool many_head_launch(const Task *task, cudaStream_t stream) {
    Call c;
    if (!prepare(&c, task, MANY_HEAD) || !takes_all(c, task->in + 1, 1)) return false;
    c.m.step = task->step;
    add_part(c.m, task->in[1], task->in[1], 0);
    return run(c, task->in[1].type, stream);
}

// Ranks as threads, each with its own plans, weights and caches of a share of a model: together
// they give the bits that one gives, on every device that gathers.
#include "families.h"
#include "format_files.h"
#include "model_writer.h"
#include "adapter_rig.h"
#include "ranks_rig.h"

#include "core/mem.h"
#include "ir/share.h"
#include "models/model.h"
#include "runtime/compile.h"
#include "runtime/kv_memory.h"
#include "runtime/state_int.h"
#include "runtime/weights.h"

#include <math.h>
#include <stdio.h>

enum { SEQS = 2, PAGES = 3, MAX_ROWS = 64, MAX_OUTS = 8, CONTEXT = PAGES * QN_PAGE_ROWS };

// --- what is run ---------------------------------------------------------------------------------

typedef struct setting {
    const char *model;
    const char *devices[RANKS_MAX]; // by rank; NULL: as rank 0
    int n_ranks, n_threads;
    qn_numerics numerics;
    qn_cache_type cache;
    uint64_t skip;      // passes
    bool is_hidden;     // with the residual stream as outputs
    bool has_mtp;       // with the prediction head
    qn_adapter adapter; // path NULL: none
} setting;

// A segment of a step: of sequence `seq`, `accept` rows of its log, then `rows` more, of which
// `commit` are certain.
typedef struct script_seg {
    int seq;
    int32_t accept, rows, commit;
} script_seg;
typedef struct script_step {
    script_seg segs[SEQS];
    int n_segs, outs; // wanted rows of each segment, from the end
    int32_t n_extra;  // rows that are given
    int32_t top, entries, computed;
} script_step;

// Prompts in chunks, a sequence that joins, rows that are given; decoding together; a draft of
// which some is accepted; a page that fills up.
static const script_step script[] = {
    {{{0, 0, 37, 37}}, 1, 3, 0, 0, 0, 0},
    {{{0, 0, 30, 30}, {1, 0, 19, 19}}, 2, 2, 2, 0, 0, 0},
    {{{0, 0, 1, 1}, {1, 0, 1, 1}}, 2, 1, 0, 3, 0, 0},
    {{{1, 0, 1, 1}, {0, 0, 4, 1}}, 2, 4, 0, 0, 300, 0},
    {{{0, 2, 1, 1}}, 1, 1, 0, 64, 40, 0},
    {{{1, 0, 60, 60}, {0, 0, 1, 1}}, 2, 1, 0, 0, 0, 0},
    {{{0, 0, 1, 1}}, 1, 1, 0, 5, 0, 200},
};
enum { N_STEPS = sizeof script / sizeof *script };

// --- a rank --------------------------------------------------------------------------------------

// A plan, and where its leaves lie.
typedef struct ready {
    qn_plan plan;
    qn_packs *packs;
    const void **weights;
    const qn_cache_view **caches;
    const qn_slots_view **slots;
    qn_program *program;
} ready;

typedef struct shard {
    qn_pool *pool;
    qn_device *device;
    ready main, head; // the head is empty where it is not wanted
    qn_state_layout *layout;
    qn_kv_memory *memory;
    int32_t *message;
    float before[MAX_ROWS * 1024];
    rank_place place; // that its gather is called with
    qn_gather gather;
    const ready *now;
} shard;

typedef struct rig {
    setting s;
    qn_source *source;
    qn_model *model;
    const qn_graph *graph; // all of it
    shard ranks[RANKS_MAX];
    rank_group group;
    float *trace;
    size_t n, cap;
    int32_t lengths[SEQS];
} rig;

static void compile_share(qn_plan *out, const rig *g, const shard *r, int rank,
                          const qn_graph *graph) {
    qn_err err;
    const qn_switches switches = {.verify = true};
    const qn_compile_opts opts = {.backend = r->device->backend,
                                  .numerics = g->s.numerics,
                                  .fine_layers = qn_passes_fine_layers(g->graph),
                                  .rank = rank,
                                  .n_ranks = g->s.n_ranks,
                                  .skip = g->s.skip,
                                  .switches = &switches};
    ASSERT_OK(qn_compile(out, graph, &opts, &err));
    ASSERT_OK(qn_plan_verify(out, &err));
}

static size_t index_of(const qn_graph *graph, qn_kind kind, const char *name) {
    size_t n = 0;
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_value *value = &graph->values[graph->nodes[i].out[0]];
        if (graph->nodes[i].op != QN_OP_INPUT || value->kind != kind) continue;
        if (strcmp(value->name, name) == 0) return n;
        n++;
    }
    fail_msg("no state %s", name);
    return 0;
}

static void load(const rig *g, shard *r, ready *p) {
    qn_err err;
    const bool is_head = p == &r->head;
    const qn_packs_opts opts = {.weights = &g->model->weights,
                                .source = g->source,
                                .plan = &p->plan,
                                .besides = is_head ? r->main.packs : NULL,
                                .is_head = is_head,
                                .device = r->device};
    ASSERT_OK(qn_packs_create(&p->packs, &opts, &err));
}

static void find_leaves(const rig *g, const shard *r, ready *p) {
    const qn_plan *plan = &p->plan;
    p->weights = qn_alloc(plan->n_leaves[QN_PLACE_PARAM], sizeof *p->weights);
    p->caches = qn_alloc(plan->n_leaves[QN_PLACE_CACHE], sizeof *p->caches);
    p->slots = qn_alloc(plan->n_leaves[QN_PLACE_STATE], sizeof *p->slots);
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_PARAM]; i++) {
        const char *name = plan->leaves[QN_PLACE_PARAM][i].name;
        p->weights[i] = qn_packs_find(r->main.packs, name);
        if (!p->weights[i] && r->head.packs) p->weights[i] = qn_packs_find(r->head.packs, name);
        assert_non_null(p->weights[i]);
    }
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_CACHE]; i++)
        p->caches[i] = qn_kv_cache(
            r->memory, index_of(g->graph, QN_CACHE, plan->leaves[QN_PLACE_CACHE][i].name));
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_STATE]; i++)
        p->slots[i] = qn_kv_slots(
            r->memory, index_of(g->graph, QN_STATE_VALUE, plan->leaves[QN_PLACE_STATE][i].name));
}

static void prepare(const rig *g, shard *r, ready *p) {
    qn_err err;
    find_leaves(g, r, p);
    const qn_program_opts opts = {
        .plans = {{.plan = &p->plan,
                   .weights = p->weights,
                   .caches = p->caches,
                   .slots = p->slots,
                   .policy = QN_PLANS_BUCKETED,
                   .capacity = 3}},
        .max = {.rows = MAX_ROWS, .segs = SEQS, .outs = MAX_ROWS, .cached = CONTEXT},
        .gather = g->s.n_ranks > 1 ? &r->gather : NULL};
    ASSERT_OK(r->device->kind->prepare(&p->program, r->device, &opts, &err));
}

static void make_state(const rig *g, shard *r) {
    qn_err err;
    int64_t n_pages[8];
    const qn_state_part part = {r->device, &r->main.plan};
    ASSERT_OK(qn_state_layout_create(&r->layout, g->graph, &part, 1, g->s.cache, &err));
    assert_true(r->layout->n_groups <= 8);
    for (int64_t i = 0; i < r->layout->n_groups; i++) n_pages[i] = SEQS * PAGES;
    ASSERT_OK(qn_kv_memory_create(&r->memory, r->layout, n_pages, SEQS, &err));
}

static void open_shard(rig *g, int rank) {
    qn_err err;
    shard *r = &g->ranks[rank];
    const char *device = g->s.devices[rank] ? g->s.devices[rank] : g->s.devices[0];
    ASSERT_OK(qn_pool_create(&r->pool, g->s.n_threads, &err));
    ASSERT_OK(qn_device_open(&r->device, device, NULL, r->pool, &err));
    r->place = (rank_place){.group = &g->group, .rank = rank};
    r->gather = gather_of(&r->place);
    compile_share(&r->main.plan, g, r, rank, g->graph);
    load(g, r, &r->main);
    make_state(g, r);
    if (g->s.has_mtp) {
        compile_share(&r->head.plan, g, r, rank, &g->model->graph_predict);
        load(g, r, &r->head);
        prepare(g, r, &r->head);
    }
    prepare(g, r, &r->main);
}

static void free_ready(const shard *r, ready *p) {
    if (p->program) r->device->kind->release(p->program);
    qn_packs_destroy(p->packs);
    qn_plan_deinit(&p->plan);
    qn_free(p->weights);
    qn_free(p->caches);
    qn_free(p->slots);
}

static void close_shard(shard *r) {
    free_ready(r, &r->head);
    free_ready(r, &r->main);
    qn_kv_memory_destroy(r->memory);
    qn_state_layout_destroy(r->layout);
    qn_device_close(r->device);
    qn_pool_destroy(r->pool);
    qn_free(r->message);
}

static void open_model(rig *g) {
    char path[512];
    qn_err err;
    qn_adapters *adapters = NULL;
    ASSERT_OK(qn_source_open(&g->source, family_path(path, sizeof path, g->s.model), &err));
    if (g->s.adapter.path) ASSERT_OK(qn_adapters_open(&adapters, &g->s.adapter, 1, &err));
    ASSERT_OK(qn_model_create_adapted(&g->model, g->source, adapters, NULL, &err));
    qn_adapters_close(adapters);
    g->graph = g->s.has_mtp     ? &g->model->graph_mtp
               : g->s.is_hidden ? &g->model->graph_hidden
                                : &g->model->graph;
}

static rig *open_rig(const setting *s) {
    rig *g = qn_alloc(1, sizeof *g);
    assert_non_null(g);
    g->s = *s;
    group_init(&g->group, s->n_ranks);
    open_model(g);
    for (int r = 0; r < s->n_ranks; r++) open_shard(g, r);
    return g;
}

static void close_rig(rig *g) {
    for (int r = 0; r < g->s.n_ranks; r++) close_shard(&g->ranks[r]);
    qn_model_destroy(g->model);
    qn_source_close(g->source);
    group_deinit(&g->group);
    qn_free(g->trace);
    qn_free(g);
}

// --- steps ---------------------------------------------------------------------------------------

static void fill_rows(int32_t *m, int32_t seg, int32_t first, int32_t past, int32_t n,
                      int64_t vocab) {
    int32_t ids[MAX_ROWS];
    random_ids(ids, (size_t)n, vocab, (uint64_t)(7 * past + seg + 1));
    for (int32_t i = 0; i < n; i++) {
        const int32_t p = past + i;
        qn_step_at(m, QN_STEP_IDS)[first + i] = ids[i];
        qn_step_at(m, QN_STEP_ROW_SEG)[first + i] = seg;
        memcpy(qn_step_at(m, QN_STEP_POS) + 4 * (first + i), (int32_t[]){p, p / 2, p / 3, 0}, 16);
    }
}

static void fill_seg(const rig *g, int32_t *m, int b, const script_seg *s, int32_t row) {
    const int64_t groups = g->ranks[0].layout->n_groups;
    const int32_t past = g->lengths[s->seq] + s->accept;
    qn_step_at(m, QN_STEP_SEG_ROW)[b] = row;
    qn_step_at(m, QN_STEP_SEG_ROW)[b + 1] = row + s->rows;
    qn_step_at(m, QN_STEP_SEG_PAST)[b] = past;
    qn_step_at(m, QN_STEP_SEG_SLOT)[b] = s->seq;
    qn_step_at(m, QN_STEP_SEG_ACCEPT)[b] = s->accept;
    qn_step_at(m, QN_STEP_SEG_COMMIT)[b] = s->commit;
    qn_step_at(m, QN_STEP_SEG_ADAPTER)[b] = g->s.adapter.path && s->seq == 0 ? 0 : -1;
    for (int32_t i = 0; i < groups * PAGES; i++)
        qn_step_at(m, QN_STEP_SEG_PAGES)[b * groups * PAGES + i] = s->seq * PAGES + i % PAGES;
    fill_rows(m, b, row, past, s->rows, g->model->hparams->vocab);
}

static bool has_input(const qn_plan *plan, const char *name) {
    for (size_t i = 0; i < plan->n_leaves[QN_PLACE_INPUT]; i++) {
        if (strcmp(plan->leaves[QN_PLACE_INPUT][i].name, name) == 0) return true;
    }
    return false;
}

static void fill_extra(int32_t *m, int32_t rows, int32_t n, int64_t width) {
    uint64_t seed = 5;
    for (int32_t i = 0; i < rows && n; i++)
        qn_step_at(m, QN_STEP_EXTRA_ROW)[i] = i >= 3 && i < 3 + n ? n - 1 - (i - 3) : -1;
    float *to = (float *)(void *)qn_step_at(m, QN_STEP_EXTRA);
    for (int64_t i = 0; i < n * width; i++) to[i] = (float)(next_random(&seed) % 1000) / 500 - 1;
}

static qn_sizes make_message(const rig *g, shard *r, const script_step *step) {
    qn_err err;
    size_t words;
    int32_t rows = 0, outs = 0, cached = 0, at = 0;
    for (int b = 0; b < step->n_segs; b++) rows += step->segs[b].rows;
    for (int b = 0; b < step->n_segs; b++) outs += (int32_t)qn_min(step->outs, step->segs[b].rows);
    const int32_t n_extra = has_input(&r->main.plan, "extra") ? step->n_extra : 0;
    const int64_t width = g->model->hparams->width;
    const qn_step_sizes sizes = {.rows = rows,
                                 .segs = step->n_segs,
                                 .outs = outs,
                                 .groups = r->layout->n_groups,
                                 .pages = PAGES,
                                 .extra = n_extra,
                                 .extra_width = n_extra ? width : 0};
    ASSERT_OK(qn_step_measure(&words, &sizes, &err));
    qn_free(r->message);
    r->message = qn_alloc(words, sizeof *r->message);
    assert_non_null(r->message);
    qn_step_begin(r->message, &sizes, step->top, step->entries);
    qn_step_set_computed(r->message, step->computed);
    outs = 0;
    for (int b = 0; b < step->n_segs; b++) {
        const script_seg *s = &step->segs[b];
        fill_seg(g, r->message, b, s, at);
        at += s->rows;
        for (int32_t i = (int32_t)qn_min(step->outs, s->rows); i > 0; i--)
            qn_step_at(r->message, QN_STEP_ROW_OUT)[outs++] = at - i;
        cached = (int32_t)qn_max(cached, g->lengths[s->seq] + s->accept + s->rows);
    }
    for (int32_t i = 0; i < outs; i++) qn_step_at(r->message, QN_STEP_OUT_FULL)[i] = 1;
    if (n_extra) fill_extra(r->message, rows, n_extra, width);
    return (qn_sizes){.rows = rows, .segs = step->n_segs, .outs = outs, .cached = cached};
}

// Runs on the thread of a rank: nothing is asserted here.
static void run_shard(rank_place *place, void *arg) {
    const shard *r = arg;
    (void)place;
    r->device->kind->run(r->now->program);
    r->device->kind->wait(r->now->program);
}

// What ranks give each other is what their plans say.
static void run_all(rig *g, int step, const qn_sizes *sizes) {
    const int64_t rows[QN_SYM_COUNT] = {1, sizes->rows, sizes->segs, sizes->outs};
    const int64_t n_gathers = g->group.n_gathers, n_bytes = g->group.n_bytes;
    if (!run_ranks(&g->group, run_shard, g->ranks, sizeof g->ranks[0]))
        fail_msg("%s: %d ranks do not agree in step %d", g->s.model, g->s.n_ranks, step);
    for (int r = 0; r < g->s.n_ranks; r++) {
        const shard *s = &g->ranks[r];
        const qn_gather_cost cost = qn_plan_gather_cost(&s->now->plan, s->device->backend, rows);
        assert_int_equal(cost.calls, g->group.n_gathers - n_gathers);
        assert_int_equal(cost.bytes, g->group.n_bytes - n_bytes);
    }
}

// --- what comes out ------------------------------------------------------------------------------

static float *trace_room(rig *g, int64_t n) {
    void *trace = g->trace;
    assert_true(qn_grow(&trace, &g->cap, g->n + (size_t)n, sizeof *g->trace));
    g->trace = trace;
    g->n += (size_t)n;
    return g->trace + g->n - n;
}

static const float *row_of(const shard *r, const char *name, int64_t row, int64_t *width,
                           const qn_share **share) {
    const qn_plan_output *o = qn_plan_find_output(&r->now->plan, name);
    assert_non_null(o);
    *width = o->arg.parts * o->arg.width;
    *share = o->share;
    return r->device->kind->row(r->now->program, o, row);
}

// The best of all ranks, whose ids count from the first of each; `top` of them, 0: all.
static void merge_best(rig *g, int64_t row, int32_t top) {
    enum { MAX = QN_HEAD_TOP };
    const qn_share *none, *share;
    int64_t width, logits;
    float *to = trace_room(g, 2 + 2 * MAX);
    to[0] = INFINITY;
    to[1] = -1;
    for (int k = 0; k < MAX; k++) {
        to[2 + k] = -INFINITY;
        to[2 + MAX + k] = -1;
    }
    for (int r = 0; r < g->s.n_ranks; r++) {
        const float *best = row_of(&g->ranks[r], "best", row, &width, &none);
        assert_int_equal(width, 2 + 2 * MAX);
        (void)row_of(&g->ranks[r], "logits", row, &logits, &share);
        const float start = share ? (float)share->ranges[0].first : 0;
        if (to[1] < 0 && (best[1] >= 0 || best[0] < to[0])) {
            to[0] = best[0];
            to[1] = best[1] < 0 ? -1 : best[1] + start;
        }
        for (int k = 0; k < MAX && best[2 + MAX + k] >= 0; k++) { // ids ascend with the ranks
            int at = MAX;
            while (at > 0 && best[2 + k] > to[1 + at]) at--;
            if (at == MAX) continue;
            memmove(to + 3 + at, to + 2 + at, (size_t)(MAX - 1 - at) * sizeof *to);
            memmove(to + 3 + MAX + at, to + 2 + MAX + at, (size_t)(MAX - 1 - at) * sizeof *to);
            to[2 + at] = best[2 + k];
            to[2 + MAX + at] = best[2 + MAX + k] + start;
        }
    }
    for (int k = top; top && k < MAX; k++) {
        to[2 + k] = -INFINITY;
        to[2 + MAX + k] = -1;
    }
}

// A row of an output: put together of its parts, or the same on every rank.
static void trace_row(rig *g, const char *name, int64_t row) {
    const qn_share *share;
    int64_t width;
    const float *first = row_of(&g->ranks[0], name, row, &width, &share);
    float *to = trace_room(g, share ? share->whole : width);
    for (int r = 0; r < g->s.n_ranks; r++) {
        const float *from = row_of(&g->ranks[r], name, row, &width, &share);
        if (share)
            memcpy(to + share->ranges[0].first, from, (size_t)width * sizeof *to);
        else if (r == 0)
            memcpy(to, from, (size_t)width * sizeof *to);
        else
            assert_memory_equal(first, from, (size_t)width * sizeof *to);
    }
}

static void trace_outputs(rig *g, const qn_sizes *sizes, const script_step *step) {
    const qn_plan *plan = &g->ranks[0].now->plan;
    const int64_t symbols[QN_SYM_COUNT] = {1, sizes->rows, sizes->segs, sizes->outs};
    for (size_t o = 0; o < plan->n_outputs; o++) {
        const char *name = plan->outputs[o].name;
        const int64_t rows = plan->outputs[o].rows.n * symbols[plan->outputs[o].rows.sym];
        if (step->computed && strcmp(name, "logits") == 0) continue; // not all are there
        for (int64_t i = 0; i < rows; i++) {
            if (strcmp(name, "best") == 0)
                merge_best(g, i, step->top);
            else
                trace_row(g, name, i);
        }
    }
}

static void run_script(rig *g) {
    for (int i = 0; i < N_STEPS; i++) {
        const script_step *step = &script[i];
        qn_sizes sizes = {0};
        for (int r = 0; r < g->s.n_ranks; r++) {
            shard *s = &g->ranks[r];
            s->now = &s->main;
            sizes = make_message(g, s, step);
            assert_true(s->device->kind->begin(s->main.program, 0, s->message, &sizes));
        }
        run_all(g, i, &sizes);
        trace_outputs(g, &sizes, step);
        for (int b = 0; b < step->n_segs; b++)
            g->lengths[step->segs[b].seq] += step->segs[b].accept + step->segs[b].commit;
    }
}

// The prediction head on some rows of the first sequence.
static void run_head(rig *g) {
    const script_step step = {{{0, 0, 6, 6}}, 1, 6, 0, 0, 0, 0};
    const int64_t width = g->model->hparams->width;
    qn_sizes sizes = {0};
    g->lengths[0] = 0;
    for (int r = 0; r < g->s.n_ranks; r++) {
        shard *s = &g->ranks[r];
        uint64_t seed = 11;
        s->now = &s->head;
        sizes = make_message(g, s, &step);
        for (int64_t i = 0; i < 6 * width; i++)
            s->before[i] = (float)(next_random(&seed) % 1000) / 500 - 1;
        assert_true(s->device->kind->begin(s->head.program, 0, s->message, &sizes));
        assert_true(s->device->kind->give(s->head.program, QN_ROWS_BEFORE, s->before));
    }
    run_all(g, -1, &sizes);
    trace_outputs(g, &sizes, &step);
}

static void run_everything(rig *g) {
    run_script(g);
    if (g->s.has_mtp) run_head(g);
}

// --- comparing -----------------------------------------------------------------------------------

static void assert_same_trace(const rig *want, const rig *got) {
    size_t n_finite = 0;
    if (want->n != got->n) fail_msg("%s: %zu numbers, want %zu", got->s.model, got->n, want->n);
    for (size_t i = 0; i < want->n; i++) {
        n_finite += want->trace[i] - want->trace[i] == 0;
        if (memcmp(&want->trace[i], &got->trace[i], sizeof *want->trace) != 0)
            fail_msg("%s: %d ranks on %s: number %zu of %zu is %.9g, want %.9g", got->s.model,
                     got->s.n_ranks, got->s.devices[0], i, want->n, (double)got->trace[i],
                     (double)want->trace[i]);
    }
    assert_true(n_finite > want->n / 2); // the rest: lists of the best that are not full
}

static rig *run_setting(const setting *s) {
    rig *g = open_rig(s);
    run_everything(g);
    return g;
}

// One rank, then several.
static void compare(setting s, const int *counts, int n_counts) {
    s.n_ranks = 1;
    if (!s.n_threads) s.n_threads = 2;
    rig *alone = run_setting(&s);
    for (int i = 0; i < n_counts; i++) {
        s.n_ranks = counts[i];
        rig *several = run_setting(&s);
        assert_true(several->group.n_gathers > 0);
        assert_same_trace(alone, several);
        close_rig(several);
    }
    close_rig(alone);
}

static const int few[] = {2, 3, 4}, odd[] = {3}, many[] = {5, 8};
static const qn_cache_type cache_types[] = {QN_CACHE_F32,  QN_CACHE_F16,   QN_CACHE_Q8_0,
                                            QN_CACHE_Q4_0, QN_CACHE_Q8_0R, QN_CACHE_Q4_0R};
static const qn_numerics numerics[] = {QN_NUMERICS_EXACT, QN_NUMERICS_BALANCED, QN_NUMERICS_FAST};

static void every_family_has_the_bits_of_one_rank(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const setting s = {.model = families[f],
                           .devices = {"cpu"},
                           .numerics = numerics[f % 2 * 2],
                           .cache = cache_types[f % 6]};
        compare(s, few, 3);
        compare(s, many, f % 4 == 0 ? 2 : 0);
    }
}

// Weights of blocks, which packed activations go with.
static const char *const quantised[] = {TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
                                        TEST_DATA "/k256/qwen3/qwen3-Q6_K.gguf",
                                        TEST_DATA "/k256/qwen3/qwen3-IQ4_XS.gguf",
                                        TEST_DATA "/k256/qwen3/qwen3-Q4_0.gguf",
                                        TEST_DATA "/k256/qwen35/qwen35-Q4_K_M.gguf",
                                        MODELS "/quern-mini-Q8_0.gguf",
                                        MODELS "/quern-draft-Q8_0.gguf",
                                        MODELS "/quern-hybrid-Q8_0.gguf"};

static void quantised_models_have_the_bits_of_one_rank(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof quantised / sizeof *quantised; f++) {
        for (size_t k = 0; k < 3; k++) {
            const setting s = {.model = quantised[f],
                               .devices = {"cpu"},
                               .numerics = numerics[k],
                               .cache = cache_types[(k + f) % 6]};
            compare(s, k ? odd : few, k ? 1 : 3);
        }
    }
}

// Plain loops are slow: some models.
static void the_device_ref_agrees(void **state) {
    (void)state;
    static const char *const names[] = {"llama32", "qwen3_moe", "gemma3", "qwen35",
                                        TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        const setting s = {.model = names[f],
                           .devices = {"ref"},
                           .numerics = numerics[f % 3],
                           .cache = cache_types[f % 6]};
        compare(s, few, f == 4 ? 1 : 2);
    }
}

// Ranks need not have the same instructions.
static void levels_of_the_cpu_work_together(void **state) {
    (void)state;
    for (size_t f = 0; f < sizeof quantised / sizeof *quantised; f += 3) {
        setting s = {.model = quantised[f],
                     .devices = {"cpu", "cpu:portable"},
                     .numerics = QN_NUMERICS_EXACT,
                     .n_threads = 1,
                     .cache = QN_CACHE_F16};
        compare(s, few, 1);
    }
}

static void rows_of_the_stream_are_on_every_rank(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        const setting s = {
            .model = families[f], .devices = {"cpu"}, .is_hidden = true, .cache = QN_CACHE_F16};
        compare(s, odd, 1);
    }
}

static void prediction_heads_have_the_bits_of_one_rank(void **state) {
    (void)state;
    static const char *const names[] = {"qwen35", "qwen35_moe", MODELS "/quern-hybrid-Q8_0.gguf"};
    int n = 0;
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        setting s = {.model = names[f], .devices = {"cpu"}, .has_mtp = true, .cache = QN_CACHE_F16};
        rig *g = qn_alloc(1, sizeof *g);
        g->s = s;
        open_model(g);
        const bool has_head = g->model->graph_predict.n_nodes > 0;
        qn_model_destroy(g->model);
        qn_source_close(g->source);
        qn_free(g);
        if (!has_head) continue;
        n++;
        compare(s, few, 3);
        compare(s, many, 2);
    }
    assert_true(n > 0);
}

// Without fusing, one op at a time, every pass left out but those that a plan needs.
static void plain_plans_have_the_bits_of_one_rank(void **state) {
    (void)state;
    uint64_t skip;
    qn_err err;
    ASSERT_OK(qn_passes_parse_skip(
        &skip,
        "fuse_norm,fuse_residual,fuse_gate,fuse_head,fuse_project,fuse_rope,fuse_write,"
        "fuse_attention,fuse_experts,schedule",
        &err));
    static const char *const names[] = {"qwen3", "qwen35_moe", "gemma2"};
    for (size_t f = 0; f < sizeof names / sizeof *names; f++) {
        const setting s = {
            .model = names[f], .devices = {"cpu"}, .skip = skip, .cache = QN_CACHE_F32};
        compare(s, odd, 1);
    }
}

// Bytes that ranks give each other, packed and as floats; what they compute is the same.
static void packed_rows_are_fewer_bytes(void **state) {
    (void)state;
    qn_err err;
    setting s = {.model = TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
                 .devices = {"cpu"},
                 .cache = QN_CACHE_F16,
                 .n_threads = 1,
                 .n_ranks = 2};
    rig *packed = run_setting(&s);
    ASSERT_OK(qn_passes_parse_skip(&s.skip, "gather_packed", &err));
    rig *floats = run_setting(&s);
    assert_same_trace(floats, packed);
    assert_int_equal(packed->group.n_gathers, floats->group.n_gathers);
    assert_true(packed->group.n_bytes < floats->group.n_bytes);
    close_rig(packed);
    close_rig(floats);
}

static void adapters_have_the_bits_of_one_rank(void **state) {
    const path_name folder = in_folder(state, "adapter");
    model_file *base = model_load(TEST_DATA "/mini/llama32");
    model_file *peft = adapter_make(base, &(adapter_want){.rank = 3, .alpha = 6, .seed = 4});
    adapter_write(peft, folder.text);
    const setting s = {.model = "llama32",
                       .devices = {"cpu"},
                       .adapter = {.path = folder.text, .scale = 1},
                       .cache = QN_CACHE_F16};
    compare(s, few, 3);
    model_free(peft);
    model_free(base);
    adapter_remove(folder.text);
}

// --- what a rank keeps ---------------------------------------------------------------------------

// Weights and caches are divided; what is on every rank is little.
static void a_rank_keeps_its_share(void **state) {
    (void)state;
    setting s = {
        .model = MODELS "/quern-mini-Q8_0.gguf", .devices = {"cpu"}, .cache = QN_CACHE_F16};
    s.n_threads = s.n_ranks = 1;
    rig *alone = open_rig(&s);
    for (int n = 2; n <= 4; n += 2) {
        s.n_ranks = n;
        rig *g = open_rig(&s);
        for (int r = 0; r < n; r++) {
            const int64_t whole = qn_packs_bytes(alone->ranks[0].main.packs);
            const int64_t own = qn_packs_bytes(g->ranks[r].main.packs);
            assert_true(own < whole / n + whole / 10);
            if (n > 2) continue; // two kv heads
            assert_int_equal(2 * g->ranks[r].layout->parts[0].page_bytes[0],
                             alone->ranks[0].layout->parts[0].page_bytes[0]);
        }
        close_rig(g);
    }
    close_rig(alone);
}

// A rank without heads keeps no bytes of a page, but counts those that others keep.
static void a_rank_without_heads_keeps_no_cache(void **state) {
    (void)state;
    setting s = {
        .model = "gemma3", .devices = {"cpu"}, .cache = QN_CACHE_F16, .n_threads = 1, .n_ranks = 3};
    rig *g = open_rig(&s);
    for (int r = 0; r < 3; r++) {
        const qn_state_layout *layout = g->ranks[r].layout;
        for (int64_t i = 0; i < layout->n_groups; i++) {
            assert_true((layout->parts[0].page_bytes[i] > 0) == (r == 2));
            assert_true(layout->groups[i].page_bytes > 0);
            assert_int_equal(layout->groups[i].page_bytes,
                             g->ranks[0].layout->groups[i].page_bytes);
        }
        for (size_t i = 0; i < layout->n_caches; i++)
            assert_int_equal(layout->caches[i].heads, r == 2);
    }
    close_rig(g);
}

// Channels and heads of recurrent layers, and what is logged of their rows.
static void recurrent_state_is_divided(void **state) {
    (void)state;
    setting s = {.model = MODELS "/quern-hybrid-Q8_0.gguf",
                 .devices = {"cpu"},
                 .cache = QN_CACHE_F16,
                 .n_threads = 1,
                 .n_ranks = 1};
    rig *alone = open_rig(&s);
    s.n_ranks = 3;
    rig *g = open_rig(&s);
    const qn_state_layout *whole = alone->ranks[0].layout;
    for (size_t i = 0; i < whole->n_slots; i++) {
        int64_t size = 0, log = 0, heads = 0, channels = 0;
        for (int r = 0; r < 3; r++) {
            const qn_state_layout *layout = g->ranks[r].layout;
            assert_string_equal(layout->slot_names[i], whole->slot_names[i]);
            size += layout->slots[i].state_size;
            log += layout->slots[i].log_size;
            heads += layout->rules[i].key_heads;
            channels += layout->rules[i].channels;
            assert_int_equal(layout->rules[i].log_size, layout->slots[i].log_size);
        }
        assert_int_equal(size, whole->slots[i].state_size);
        assert_int_equal(log, whole->slots[i].log_size);
        assert_int_equal(heads, whole->rules[i].key_heads);
        assert_int_equal(channels, whole->rules[i].channels);
    }
    close_rig(g);
    close_rig(alone);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_has_the_bits_of_one_rank),
        cmocka_unit_test(quantised_models_have_the_bits_of_one_rank),
        cmocka_unit_test(the_device_ref_agrees),
        cmocka_unit_test(levels_of_the_cpu_work_together),
        cmocka_unit_test(rows_of_the_stream_are_on_every_rank),
        cmocka_unit_test(prediction_heads_have_the_bits_of_one_rank),
        cmocka_unit_test(plain_plans_have_the_bits_of_one_rank),
        cmocka_unit_test(packed_rows_are_fewer_bytes),
        FOLDER_TEST(adapters_have_the_bits_of_one_rank),
        cmocka_unit_test(a_rank_keeps_its_share),
        cmocka_unit_test(a_rank_without_heads_keeps_no_cache),
        cmocka_unit_test(recurrent_state_is_divided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

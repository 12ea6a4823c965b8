// A model without numbers: graphs with caches and states, and a "kernel" that writes into pages,
// slots and logs what the step table says. Every cell is a hash of the keys up to its row, so that
// content can be compared with what a fresh computation would give.
#ifndef QN_TESTS_STATE_RIG_H
#define QN_TESTS_STATE_RIG_H

#include "testing.h"

#include "ir/build.h"
#include "runtime/state_int.h"

#include <stdio.h>

enum { RIG_STEP = 200, RIG_KEPT = 1 << 18 }; // of rig_plenty
enum { RIG_CONTEXT = 1000, RIG_PAGES = (RIG_CONTEXT + 63) / 64, RIG_GROUPS = 3, RIG_SEGS = 4 };

typedef enum rig_kind { RIG_FULL, RIG_WINDOW, RIG_RECURRENT, RIG_ALL, RIG_STATES } rig_kind;

typedef struct rig {
    rig_kind kind;
    qn_graph graph;
    qn_state_layout *layout;
    qn_state *state;
} rig;

// A sequence and the keys of its rows; `hash[i]` stands for the first i keys.
typedef struct rig_seq {
    qn_seq *seq;
    uint64_t keys[RIG_CONTEXT], hash[RIG_CONTEXT + 1];
    int64_t uncertain; // rows at the end that can be taken back
} rig_seq;

static inline uint64_t rig_mix(uint64_t a, uint64_t b) {
    uint64_t x = (a ^ (b + 0x9e3779b97f4a7c15u)) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 29;
    return (x * 0x94d049bb133111ebu) ^ (x >> 32);
}

// --- graphs ---

static inline int32_t rig_rows(qn_build *b, const char *name, int64_t n, int64_t m) {
    return qn_build_input(b, name, QN_TENSOR, QN_TYPE_F32,
                          (qn_shape){m ? 3 : 2, {{1, QN_SYM_T}, {n, QN_SYM_ONE}, {m, QN_SYM_ONE}}});
}

static inline void rig_attention(qn_build *b, int32_t table, const char *name, int64_t window) {
    const qn_shape shape = {3, {{1, QN_SYM_ONE}, {1, QN_SYM_ONE}, {1, QN_SYM_ONE}}};
    const int32_t x = rig_rows(b, "x", 1, 1);
    const int32_t cache = qn_build_input(b, name, QN_CACHE, QN_TYPE_F32, shape);
    const int32_t next = qn_build_op(b, QN_OP_KV_WRITE, (int32_t[]){cache, x, x, table}, 4, NULL);
    qn_build3(b, QN_OP_ATTEND, x, next, table,
              &(qn_attrs){.scale = 1, .window = window, .rule = QN_WORD_causal});
}

static inline void rig_recurrence(qn_build *b, int32_t table) {
    const qn_shape tail = {2, {{1, QN_SYM_ONE}, {2, QN_SYM_ONE}}};
    const qn_shape taps = {2, {{2, QN_SYM_ONE}, {2, QN_SYM_ONE}}};
    const qn_shape memory = {3, {{1, QN_SYM_ONE}, {1, QN_SYM_ONE}, {2, QN_SYM_ONE}}};
    const int32_t conv = qn_build_input(b, "conv", QN_STATE_VALUE, QN_TYPE_F32, tail);
    const int32_t w = qn_build_param(b, "w", QN_TYPE_F32, taps);
    qn_build_op(b, QN_OP_CONV, (int32_t[]){rig_rows(b, "c", 2, 0), w, conv, table}, 4, NULL);
    const int32_t delta = qn_build_input(b, "delta", QN_STATE_VALUE, QN_TYPE_F32, memory);
    const int32_t k = rig_rows(b, "k", 1, 1), v = rig_rows(b, "v", 1, 2),
                  g = rig_rows(b, "g", 1, 0);
    qn_build_op(b, QN_OP_DELTA, (int32_t[]){k, k, v, g, g, delta, table}, 7,
                &(qn_attrs){.scale = 1, .heads = QN_WORD_grouped});
}

static inline void rig_graph(qn_graph *graph, rig_kind kind) {
    qn_build b;
    qn_err err;
    qn_build_init(&b, graph, "rig");
    const int32_t table = qn_build_input(&b, "table", QN_TABLE, QN_TYPE_F32, (qn_shape){0});
    if (kind != RIG_STATES) rig_attention(&b, table, "full.0", 0);
    if (kind >= RIG_RECURRENT) rig_recurrence(&b, table);
    if (kind == RIG_WINDOW || kind == RIG_ALL) rig_attention(&b, table, "window.0", 100);
    if (kind == RIG_ALL) rig_attention(&b, table, "window.1", 1);
    if (kind != RIG_STATES) rig_attention(&b, table, "full.1", 0);
    ASSERT_OK(qn_build_finish(&b, &err));
}

static inline int64_t rig_cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size) {
    (void)type;
    return QN_PAGE_ROWS * heads * (k_size + v_size) * (int64_t)sizeof(float);
}

static const qn_backend rig_backend = {.name = "rig", .cache_bytes = rig_cache_bytes};

// The layout of a graph on one device with the memory of the CPU.
static inline qn_status rig_layout(qn_state_layout **out, const qn_graph *graph,
                                   const qn_backend *backend, qn_cache_type type, qn_err *err) {
    static qn_device device;
    device = (qn_device){.kind = &qn_cpu_device_kind, .backend = backend};
    return qn_state_layout_create(out, graph, &(qn_state_part){.device = &device}, 1, type, err);
}

static inline void rig_flush(void *arg, const qn_copy *copies, int64_t n) {
    const rig *r = arg;
    qn_kv_copy(qn_state_memory(r->state), copies, n);
}

static inline void rig_open(rig *r, rig_kind kind, qn_state_opts opts) {
    qn_err err;
    *r = (rig){.kind = kind};
    rig_graph(&r->graph, kind);
    ASSERT_OK(rig_layout(&r->layout, &r->graph, &rig_backend, QN_CACHE_F32, &err));
    opts.layout = r->layout;
    opts.flush = rig_flush;
    opts.flush_arg = r;
    ASSERT_OK(qn_state_create(&r->state, &opts, &err));
}

static inline void rig_close(rig *r) {
    qn_state_destroy(r->state);
    qn_state_layout_destroy(r->layout);
    qn_graph_deinit(&r->graph);
}

// --- the kernel ---

static inline unsigned char *rig_cell(const qn_cache_view *view, int32_t page, int64_t position) {
    return view->pages + page * view->page_bytes + view->offset + position % QN_PAGE_ROWS * 8;
}

static inline uint64_t rig_load(const void *from) {
    uint64_t x;
    memcpy(&x, from, sizeof x);
    return x;
}

static inline uint64_t rig_value(size_t layer, uint64_t hash) { return rig_mix(hash, layer); }

// The recurrent state behind a row.
static inline uint64_t rig_fold(size_t layer, uint64_t state, uint64_t key) {
    return rig_mix(state + layer, key);
}

static inline uint64_t rig_state(size_t layer, const uint64_t *keys, int64_t n) {
    uint64_t state = 0;
    for (int64_t i = 0; i < n; i++) state = rig_fold(layer, state, keys[i]);
    return state;
}

static inline void rig_add_key(rig_seq *s, int64_t at, uint64_t key) {
    s->keys[at] = key;
    s->hash[at + 1] = rig_mix(s->hash[at], key);
}

static inline void rig_recur(const qn_slots_view *view, size_t layer, const qn_seg_tables *t,
                             int64_t b, const uint64_t *keys, int64_t rows) {
    unsigned char *slot = view->slots + t->seg_slot[b] * view->slot_bytes;
    unsigned char *log = slot + view->log_offset;
    const int64_t row_bytes = view->log_size * 4;
    uint64_t state = t->seg_past[b] ? rig_load(slot + view->offset) : 0;
    for (int32_t i = 0; i < t->seg_accept[b]; i++)
        state = rig_fold(layer, state, rig_load(log + i * row_bytes));
    for (int64_t i = 0; i < t->seg_commit[b]; i++) state = rig_fold(layer, state, keys[i]);
    memcpy(slot + view->offset, &state, sizeof state);
    for (int64_t i = t->seg_commit[b]; i < rows; i++)
        memcpy(log + (i - t->seg_commit[b]) * row_bytes, &keys[i], sizeof *keys);
}

// Does the copies that wait, as a step would before its rows.
static inline void rig_copy(const rig *r) {
    const qn_copy *copies;
    const int64_t n = qn_state_copies(&copies, r->state);
    qn_kv_copy(qn_state_memory(r->state), copies, n);
    qn_state_clear_copies(r->state);
}

// Runs the prepared step of a sequence as segment b; false: the step table is wrong.
static inline bool rig_run(const rig *r, const rig_seq *s, int64_t b, int64_t rows) {
    int32_t past[RIG_SEGS], slot[RIG_SEGS], accept[RIG_SEGS], commit[RIG_SEGS];
    int32_t pages[RIG_SEGS * RIG_GROUPS * RIG_PAGES];
    const int64_t n_groups = qn_state_groups(r->state);
    const int64_t per_seg = qn_state_pages_per_seg(r->state);
    const qn_seg_tables t = {past, slot, accept, commit, pages, per_seg};
    rig_copy(r);
    qn_seq_fill(s->seq, &t, b);
    if (past[b] != qn_seq_length(s->seq) || accept[b] < 0 || accept[b] > QN_LOG_ROWS) return false;
    for (size_t i = 0; i < r->layout->n_caches; i++) {
        const qn_cache_view *view = qn_kv_cache(qn_state_memory(r->state), i);
        const int32_t *own = pages + (b * n_groups + view->group) * per_seg;
        for (int64_t p = past[b]; p < past[b] + rows; p++) {
            const int32_t page = own[p / QN_PAGE_ROWS];
            const uint64_t value = rig_value(i, s->hash[p + 1]);
            if (page < 0) return false;
            memcpy(rig_cell(view, page, p), &value, sizeof value);
        }
    }
    for (size_t i = 0; i < r->layout->n_slots; i++)
        rig_recur(qn_kv_slots(qn_state_memory(r->state), i), i, &t, b, s->keys + past[b], rows);
    return true;
}

// --- checks; NULL: all is well ---

static inline const char *rig_check_cache(const rig *r, const rig_seq *s, size_t i) {
    static char text[128];
    const qn_cache_view *view = qn_kv_cache(qn_state_memory(r->state), i);
    const seq_group *own = &s->seq->groups[view->group];
    const int64_t window = r->layout->groups[view->group].window;
    const int64_t n = qn_seq_length(s->seq);
    if (own->end != qn_pages_for(n)) return "a page table ends elsewhere";
    for (int64_t p = window && n >= window ? n - window + 1 : 0; p < n; p++) {
        const int32_t page = (int32_t)(p / QN_PAGE_ROWS);
        if (page < own->first || page >= own->end) return "a visible page was given back";
        const uint64_t got = rig_load(rig_cell(view, own->pages[page], p));
        if (got == rig_value(i, s->hash[p + 1])) continue;
        snprintf(text, sizeof text, "cache %zu is wrong at %lld of %lld", i, (long long)p,
                 (long long)n);
        return text;
    }
    return NULL;
}

// All that the sequence shows is what a fresh computation of its keys would give.
static inline const char *rig_check_seq(const rig *r, const rig_seq *s) {
    const int64_t n = qn_seq_length(s->seq);
    rig_copy(r);
    if (s->seq->certain > n) return "more rows are certain than there are";
    for (size_t i = 0; i < r->layout->n_caches; i++) {
        const char *fault = rig_check_cache(r, s, i);
        if (fault) return fault;
    }
    for (size_t i = 0; n && i < r->layout->n_slots; i++) {
        const qn_slots_view *view = qn_kv_slots(qn_state_memory(r->state), i);
        const unsigned char *slot = view->slots + s->seq->slot * view->slot_bytes;
        uint64_t state = rig_load(slot + view->offset);
        for (int64_t k = 0; k < n - s->seq->certain; k++)
            state = rig_fold(i, state, rig_load(slot + view->log_offset + k * view->log_size * 4));
        if (n - s->seq->certain > QN_LOG_ROWS) return "a log is too long";
        if (state != rig_state(i, s->keys, n)) return "a recurrent state is wrong";
    }
    return NULL;
}

// All nodes, from the root (0) on; -1: that was the last.
static inline int32_t rig_next_node(const state_tree *tree, int32_t node) {
    int32_t next = tree->nodes[node].child;
    for (int32_t up = node; next < 0 && up > 0; up = tree->nodes[up].parent)
        next = tree->nodes[up].next;
    return next;
}

static inline const char *rig_check_group(const rig *r, int64_t g) {
    enum { MAX = 1024 };
    static int32_t refs[MAX], tree_refs[MAX];
    const qn_state *state = r->state;
    const state_pages *pages = &state->groups[g];
    int32_t n_free = 0, n_kept = 0;
    if (pages->n > MAX) return "more pages than this test can count";
    memset(refs, 0, sizeof refs);
    memset(tree_refs, 0, sizeof tree_refs);
    for (int64_t i = 0; i < state->opts.n_seqs; i++) {
        const qn_seq *seq = &state->seqs[i].seq;
        const seq_group *own = &seq->groups[g];
        if (!seq->is_open && own->end != own->first) return "a closed sequence holds pages";
        for (int32_t k = own->first; k < own->end; k++) refs[own->pages[k]]++;
        if (seq->rows && own->tail_before >= 0) refs[own->tail_before]++;
    }
    for (int32_t node = 0; node >= 0; node = rig_next_node(&state->tree, node)) {
        const int32_t page = node ? state->tree.pages[node * state->n_groups + g].page : -1;
        if (page >= 0) tree_refs[page]++;
    }
    for (int32_t i = 0; i < pages->n; i++) {
        if (pages->refs[i] != refs[i] + tree_refs[i] || pages->tree_refs[i] != tree_refs[i])
            return "a page is counted wrong";
        n_free += pages->refs[i] == 0;
        n_kept += pages->refs[i] > 0 && refs[i] == 0;
    }
    if (pages->n_free != n_free || pages->n_kept != n_kept)
        return "free or kept pages are miscounted";
    return NULL;
}

// What a window keeps behind it is needed: by the rows that may come, or by a mark.
static inline const char *rig_check_windows(const rig *r, int64_t g) {
    const qn_state *state = r->state;
    const state_tree *tree = &state->tree;
    const int64_t window = state->groups[g].window;
    for (int64_t i = 0; window && i < state->opts.n_seqs; i++) {
        const qn_seq *seq = &state->seqs[i].seq;
        const int64_t oldest = seq->length - QN_LOG_ROWS - window - QN_PAGE_ROWS;
        if (seq->groups[g].end > seq->groups[g].first &&
            seq->groups[g].first * QN_PAGE_ROWS < oldest)
            return "a window keeps pages that nobody can see";
    }
    for (int32_t node = 0; window && node >= 0; node = rig_next_node(tree, node)) {
        if (node == 0) continue;
        const node_page *held = &tree->pages[node * state->n_groups + g];
        int32_t n_needs = 0;
        for (int32_t i = tree->used.oldest; i >= 0; i = tree->used.newer[i]) {
            const tree_mark *mark = &tree->marks[i];
            const int64_t n = tree->nodes[mark->node].block * QN_PAGE_ROWS + mark->rows;
            int32_t at = mark->node;
            while (at > 0 && at != node) at = tree->nodes[at].parent;
            if (at == node &&
                (n < window || tree->nodes[node].block >= (n - window + 1) / QN_PAGE_ROWS))
                n_needs++;
        }
        if (n_needs != held->n_needs || (n_needs > 0) != (held->page >= 0))
            return "a node's needs are counted wrong";
    }
    return NULL;
}

static inline const char *rig_check_counts(const rig *r) {
    for (int64_t g = 0; g < r->state->n_groups; g++) {
        const char *fault = rig_check_group(r, g);
        if (!fault) fault = rig_check_windows(r, g);
        if (fault) return fault;
    }
    const qn_state_counts counts = qn_state_get_counts(r->state);
    if (counts.kept_bytes > r->state->opts.kept_bytes) return "the tree keeps more than it may";
    if (counts.slots_used > counts.slots_all) return "more slots are used than there are";
    return NULL;
}

// --- what unit tests do with it ---

static const qn_state_opts rig_plenty = {
    .context = RIG_CONTEXT, .step_rows = RIG_STEP, .n_seqs = 4, .kept_bytes = RIG_KEPT};

static inline void rig_open_seq(rig *r, rig_seq *s) {
    qn_err err;
    *s = (rig_seq){0};
    ASSERT_OK(qn_seq_open(&s->seq, r->state, &err));
}

// Rows with keys `first`, first + 1, ...; the last `uncertain` are not certain.
static inline void rig_step(rig *r, rig_seq *s, int64_t rows, int64_t uncertain, uint64_t first) {
    qn_err err;
    const int64_t past = qn_seq_length(s->seq);
    ASSERT_OK(qn_seq_prepare(s->seq, rows, rows - uncertain, &err));
    for (int64_t i = 0; i < rows; i++) rig_add_key(s, past + i, first + (uint64_t)i);
    assert_true(rig_run(r, s, 0, rows));
    qn_seq_finish(s->seq);
    assert_int_equal(qn_seq_length(s->seq), past + rows);
}

static inline void rig_grow_to(rig *r, rig_seq *s, int64_t length, uint64_t first) {
    while (qn_seq_length(s->seq) < length) {
        const int64_t left = length - qn_seq_length(s->seq),
                      rows = left < RIG_STEP ? left : RIG_STEP;
        rig_step(r, s, rows, 0, first + (uint64_t)qn_seq_length(s->seq));
    }
}

static inline void rig_check(const rig *r, const rig_seq *s) {
    const char *fault = rig_check_seq(r, s);
    if (!fault) fault = rig_check_counts(r);
    if (fault) fail_msg("%s", fault);
}

static inline void rig_copy_keys(rig_seq *to, const rig_seq *from) {
    memcpy(to->keys, from->keys, sizeof to->keys);
    memcpy(to->hash, from->hash, sizeof to->hash);
}

// A new sequence that finds what is remembered of n keys.
static inline int64_t rig_find(rig *r, rig_seq *s, const rig_seq *keys, int64_t n) {
    rig_open_seq(r, s);
    rig_copy_keys(s, keys);
    const int64_t got = qn_state_find(s->seq, s->keys, n);
    assert_int_equal(got, qn_seq_length(s->seq));
    rig_check(r, s);
    return got;
}

static inline int64_t rig_try_find(rig *r, const rig_seq *keys, int64_t n) {
    static rig_seq s;
    const int64_t got = rig_find(r, &s, keys, n);
    qn_seq_close(s.seq);
    return got;
}

static inline int64_t rig_pages_used(const rig *r) {
    return qn_state_get_counts(r->state).pages_used;
}

static inline void rig_must_be_empty(rig *r) {
    qn_state_evict(r->state, 0);
    const qn_state_counts counts = qn_state_get_counts(r->state);
    assert_int_equal(counts.pages_used, 0);
    assert_int_equal(counts.slots_used, 0);
    assert_int_equal(counts.kept_bytes, 0);
    rig_close(r);
}

#endif

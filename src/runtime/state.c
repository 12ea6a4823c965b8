// How many pages, slots and nodes there are, and taking all of them at once.
#include "runtime/state_int.h"

#include "core/mem.h"

#include <assert.h>

// --- sizes ---

// Numbers that follow from the options alone.
typedef struct sizes {
    int64_t pages_per_seg;
    int64_t step_rows; // at most the context
    // What the tree may add to what sequences need, as `kept_bytes` allows: checkpoints (a slot and
    // the pages of every window), and pages of full attention.
    int64_t kept_marks, kept_pages;
    int64_t n_nodes, n_marks;
    bool has_marks;
} sizes;

typedef struct group_size {
    int64_t window; // 0: every position is kept, as for a window that the context never leaves
    int64_t per_seq, per_mark; // max pages of one sequence, of one checkpoint
} group_size;

// Max pages that `rows` neighbouring positions can touch.
static int64_t pages_touched(int64_t rows) { return (rows + QN_PAGE_ROWS - 2) / QN_PAGE_ROWS + 1; }

static group_size measure_group(const qn_state_opts *opts, const sizes *s, int64_t g) {
    const int64_t window = opts->layout->groups[g].window;
    if (window == 0 || window >= opts->context)
        return (group_size){.per_seq = s->pages_per_seg, .per_mark = s->pages_per_seg};
    const int64_t seen = window > 1 ? window - 1 : 1; // by the next row, of the rows before it
    return (group_size){
        .window = window,
        .per_seq = qn_min(s->pages_per_seg, pages_touched(seen + QN_LOG_ROWS + s->step_rows)),
        .per_mark = qn_min(s->pages_per_seg, pages_touched(seen))};
}

// Shares kept_bytes among checkpoints and pages of full attention, half and half where there are
// both.
static qn_status share_kept(sizes *s, const qn_state_opts *opts, qn_err *err) {
    const qn_state_layout *layout = opts->layout;
    int64_t mark_bytes = layout->slot_bytes, page_bytes = 0, bytes;
    s->has_marks = layout->n_slots > 0;
    for (int64_t g = 0; g < layout->n_groups; g++) {
        const group_size group = measure_group(opts, s, g);
        const bool is_window = group.window > 0;
        int64_t *sum = is_window ? &mark_bytes : &page_bytes;
        s->has_marks = s->has_marks || is_window;
        if (!qn_i64_mul(&bytes, layout->groups[g].page_bytes, is_window ? group.per_mark : 1) ||
            !qn_i64_add(sum, *sum, bytes))
            return QN_FAIL(err, LIMIT, "a checkpoint of %lld pages of %lld bytes: too large",
                           (long long)group.per_mark, (long long)layout->groups[g].page_bytes);
    }
    int64_t left = opts->kept_bytes;
    if (s->has_marks) {
        s->kept_marks = (page_bytes ? left / 2 : left) / mark_bytes;
        if (s->kept_marks == 0 && left >= mark_bytes) s->kept_marks = 1;
        left -= s->kept_marks * mark_bytes;
    }
    if (page_bytes) s->kept_pages = left / page_bytes;
    return QN_OK;
}

static qn_status check_opts(const qn_state_opts *opts, qn_err *err) {
    if (opts->context < 1 || opts->context > INT32_MAX - QN_PAGE_ROWS)
        return QN_FAIL(err, ARGUMENT, "context of %lld positions, want 1 to %d",
                       (long long)opts->context, INT32_MAX - QN_PAGE_ROWS);
    if (opts->n_seqs < 1 || opts->n_seqs > INT32_MAX / 2)
        return QN_FAIL(err, ARGUMENT, "%lld sequences, want 1 to %d", (long long)opts->n_seqs,
                       INT32_MAX / 2);
    if (opts->step_rows < 1 || opts->kept_bytes < 0)
        return QN_FAIL(err, ARGUMENT, "%lld rows in a step, %lld bytes kept: want at least 1 and 0",
                       (long long)opts->step_rows, (long long)opts->kept_bytes);
    if (opts->positions && opts->positions < opts->context)
        return QN_FAIL(err, ARGUMENT, "%lld positions of all sequences, but %lld of one",
                       (long long)opts->positions, (long long)opts->context);
    return QN_OK;
}

// Sequences together: whole pages of `positions`, and a last page of each that is not full.
static qn_status count_pages(int64_t *out, const qn_state_opts *opts, const sizes *s, int64_t g,
                             qn_err *err) {
    const group_size group = measure_group(opts, s, g);
    int64_t n, kept = s->kept_pages;
    if (opts->n_pages) {
        *out = opts->n_pages[g];
        return QN_OK;
    }
    bool fits = qn_i64_mul(&n, opts->n_seqs, group.per_seq);
    if (group.window) {
        fits = fits && qn_i64_mul(&kept, s->kept_marks, group.per_mark);
    } else if (fits && opts->positions) {
        n = qn_min(n, opts->positions / QN_PAGE_ROWS + opts->n_seqs);
    }
    fits = fits && qn_i64_add(&n, n, kept);
    if (!fits || n > INT32_MAX)
        return QN_FAIL(err, LIMIT,
                       "%lld sequences of %lld positions and %lld kept bytes: more than %d pages",
                       (long long)opts->n_seqs, (long long)opts->context,
                       (long long)opts->kept_bytes, INT32_MAX);
    *out = n;
    return QN_OK;
}

// Every node holds a page of full attention; without any, there are nodes for all sequences and
// as many again.
static qn_status count_nodes(sizes *s, const qn_state_opts *opts, qn_err *err) {
    int64_t n_windows = 0;
    bool fits = qn_i64_mul(&s->n_nodes, 2 * opts->n_seqs, s->pages_per_seg);
    for (int64_t g = 0; g < opts->layout->n_groups; g++) {
        int64_t n;
        QN_TRY(count_pages(&n, opts, s, g, err));
        const bool is_window = measure_group(opts, s, g).window > 0;
        if (!is_window) s->n_nodes = n;
        if (is_window && n > n_windows) n_windows = n;
    }
    s->n_marks = opts->layout->n_slots ? s->kept_marks : n_windows;
    if (!s->has_marks) s->n_marks = 0;
    fits = fits && qn_i64_add(&s->n_nodes, s->n_nodes, 1); // the root
    if (!fits || s->n_nodes > INT32_MAX || s->n_marks > INT32_MAX / 2)
        return QN_FAIL(err, LIMIT, "%lld sequences of %lld positions: more than %d nodes",
                       (long long)opts->n_seqs, (long long)opts->context, INT32_MAX);
    return QN_OK;
}

static qn_status measure(sizes *s, const qn_state_opts *opts, qn_err *err) {
    *s = (sizes){0};
    QN_TRY(check_opts(opts, err));
    s->pages_per_seg = qn_pages_for(opts->context);
    s->step_rows = qn_min(opts->step_rows, opts->context);
    QN_TRY(share_kept(s, opts, err));
    return count_nodes(s, opts, err);
}

static int64_t count_slots(const qn_state_opts *opts, const sizes *s) {
    if (opts->n_pages) return opts->n_slots;
    return opts->layout->n_slots ? opts->n_seqs + s->n_marks : 0;
}

static qn_status add_bytes(int64_t *sum, int64_t n, int64_t bytes, qn_err *err) {
    int64_t more;
    if (!qn_i64_mul(&more, n, bytes) || !qn_i64_add(sum, *sum, more))
        return QN_FAIL(err, LIMIT, "%lld times %lld bytes of sequence state: too large",
                       (long long)n, (long long)bytes);
    return QN_OK;
}

// Bytes of a page of group g, or (g < 0) of a slot, as far as they are where they are asked for.
static int64_t bytes_there(const qn_state_opts *opts, int64_t g) {
    const qn_state_layout *layout = opts->layout;
    int64_t all = 0;
    if (!opts->where || layout->is_level)
        return g < 0 ? layout->slot_bytes : layout->groups[g].page_bytes;
    for (size_t p = 0; p < layout->n_parts; p++) {
        const state_part *part = &layout->parts[p];
        if (qn_device_shares_memory(part->device, opts->where))
            all += g < 0 ? part->slot_bytes : part->page_bytes[g];
    }
    return all;
}

qn_status qn_state_measure(qn_state_size *out, const qn_state_opts *opts, qn_err *err) {
    const qn_state_layout *layout = opts->layout;
    const int64_t slot_bytes = bytes_there(opts, -1);
    qn_state_size size = {.slots_used = slot_bytes};
    sizes s;
    QN_TRY(measure(&s, opts, err));
    for (int64_t g = 0; g < layout->n_groups; g++) {
        int64_t n;
        QN_TRY(count_pages(&n, opts, &s, g, err));
        const int64_t bytes = bytes_there(opts, g);
        QN_TRY(add_bytes(&size.all, n, bytes, err));
        QN_TRY(add_bytes(&size.cache_used, measure_group(opts, &s, g).per_seq, bytes, err));
    }
    QN_TRY(add_bytes(&size.all, count_slots(opts, &s), slot_bytes, err));
    *out = size;
    if (opts->where && !opts->where->kind->has_host_memory) return QN_OK;
    // For each page of a sequence: its place in two page tables, its counts, and a node of the
    // tree.
    const int64_t per_group = 5 * (int64_t)sizeof(int32_t) + (int64_t)sizeof(node_page);
    const int64_t per_page = layout->n_groups * per_group + (int64_t)sizeof(tree_node) +
                             QN_PAGE_ROWS * (int64_t)sizeof(uint64_t) +
                             2 * (int64_t)sizeof(int32_t);
    QN_TRY(add_bytes(&size.tables_used, s.pages_per_seg, per_page, err));
    *out = size;
    return QN_OK;
}

// --- creation ---

// Page tables, three tables for each group, and six of the tree.
static size_t max_ranges(const qn_state_layout *layout) { return 7 + 3 * (size_t)layout->n_groups; }

void *qn_state_reserve(qn_state *state, size_t n, size_t size) {
    size_t bytes;
    assert(state->n_ranges < max_ranges(state->layout));
    if (!qn_size_mul(&bytes, n ? n : 1, size)) return NULL;
    void *data = qn_reserve(bytes);
    if (data) state->ranges[state->n_ranges++] = (state_range){data, bytes};
    return data;
}

static qn_status set_pages(qn_state *state, const sizes *s, qn_err *err) {
    state->n_slots = count_slots(&state->opts, s);
    for (int64_t g = 0; g < state->n_groups; g++) {
        QN_TRY(count_pages(&state->n_pages[g], &state->opts, s, g, err));
        state->windows[g] = measure_group(&state->opts, s, g).window;
        state->groups[g] = (state_pages){.page_bytes = state->layout->groups[g].page_bytes,
                                         .window = state->windows[g],
                                         .n = (int32_t)state->n_pages[g]};
    }
    return QN_OK;
}

// All pages and slots. Where the system refuses that much (ulimit -v), for fewer positions of all
// sequences together, at least for those of one.
static qn_status create_memory(qn_state *state, sizes *s, qn_err *err) {
    qn_state_opts *opts = &state->opts;
    for (;;) {
        QN_TRY(set_pages(state, s, err));
        const qn_status status =
            qn_kv_memory_create(&state->memory, state->layout, state->n_pages, state->n_slots, err);
        if (status != QN_LIMIT) return status;
        if (opts->positions == opts->context || opts->n_seqs == 1 || opts->n_pages)
            return qn_err_prefix(err, QN_MEMORY,
                                 "out of memory for a context of %lld tokens; a shorter one needs "
                                 "less",
                                 (long long)opts->context);
        const int64_t positions = opts->positions ? opts->positions : opts->n_seqs * opts->context;
        opts->positions = positions / 2 > opts->context ? positions / 2 : opts->context;
        QN_TRY(measure(s, opts, err));
    }
}

static qn_status create_pages(qn_state *state, sizes *s, qn_err *err) {
    QN_TRY(create_memory(state, s, err));
    for (int64_t g = 0; g < state->n_groups; g++) {
        if (!qn_pages_init(&state->groups[g], state)) return QN_NOMEM(err, "pages");
    }
    return QN_OK;
}

static qn_status create_seqs(qn_state *state, qn_err *err) {
    qn_arena *arena = &state->arena;
    const size_t n_groups = (size_t)state->n_groups;
    size_t n_pages;
    int32_t *pages = NULL;
    if (qn_size_mul(&n_pages, (size_t)state->opts.n_seqs, (size_t)state->pages_per_seg) &&
        qn_size_mul(&n_pages, n_pages, n_groups))
        pages = qn_state_reserve(state, n_pages, sizeof *pages);
    if (!pages) return QN_NOMEM(err, "page tables");
    state->free_seq = -1;
    for (int64_t i = state->opts.n_seqs - 1; i >= 0; i--) {
        qn_seq *seq = &state->seqs[i].seq;
        seq->groups = qn_arena_alloc(arena, n_groups, sizeof *seq->groups);
        if (!seq->groups) return QN_NOMEM(err, "sequences");
        for (size_t g = 0; g < n_groups; g++) {
            seq->groups[g].pages = pages;
            pages += state->pages_per_seg;
        }
        seq->state = state;
        seq->slot = (int32_t)i;
        seq->next_free = state->free_seq;
        state->free_seq = (int32_t)i;
    }
    return QN_OK;
}

static qn_status create(qn_state *state, sizes *s, qn_err *err) {
    const qn_state_layout *layout = state->layout;
    qn_arena *arena = &state->arena;
    state->pages_per_seg = s->pages_per_seg;
    state->n_groups = layout->n_groups;
    state->opts.step_rows = s->step_rows;
    state->groups = qn_arena_alloc(arena, (size_t)layout->n_groups, sizeof *state->groups);
    state->copies = qn_arena_alloc(arena, QN_COPIES_MAX, sizeof *state->copies);
    state->seqs = qn_arena_alloc(arena, (size_t)state->opts.n_seqs, sizeof *state->seqs);
    state->ranges = qn_arena_alloc(arena, max_ranges(layout), sizeof *state->ranges);
    state->n_pages = qn_arena_alloc(arena, (size_t)layout->n_groups, sizeof *state->n_pages);
    state->windows = qn_arena_alloc(arena, (size_t)layout->n_groups, sizeof *state->windows);
    if (!state->groups || !state->n_pages || !state->windows || !state->copies || !state->seqs ||
        !state->ranges)
        return QN_NOMEM(err, "sequence state");
    QN_TRY(create_pages(state, s, err));
    QN_TRY(create_seqs(state, err));
    state->tree = (state_tree){
        .has_marks = s->has_marks, .n_nodes = (int32_t)s->n_nodes, .n_marks = (int32_t)s->n_marks};
    return qn_tree_init(state) ? QN_OK : QN_NOMEM(err, "radix tree");
}

qn_status qn_state_create(qn_state **out, const qn_state_opts *opts, qn_err *err) {
    sizes s;
    QN_TRY(measure(&s, opts, err));
    qn_state *state = qn_alloc(1, sizeof *state);
    if (!state) return QN_NOMEM(err, "sequence state");
    state->opts = *opts;
    state->layout = opts->layout;
    const qn_status status = create(state, &s, err);
    if (status)
        qn_state_destroy(state);
    else
        *out = state;
    return status;
}

void qn_state_destroy(qn_state *state) {
    if (!state) return;
    for (size_t i = 0; i < state->n_ranges; i++)
        qn_unreserve(state->ranges[i].data, state->ranges[i].size);
    qn_kv_memory_destroy(state->memory);
    qn_arena_deinit(&state->arena);
    qn_free(state);
}

// --- looking at it ---

qn_kv_memory *qn_state_memory(const qn_state *state) { return state->memory; }
int64_t qn_state_groups(const qn_state *state) { return state->n_groups; }
const int64_t *qn_state_page_counts(const qn_state *state) { return state->n_pages; }
int64_t qn_state_slot_count(const qn_state *state) { return state->n_slots; }
int64_t qn_state_pages_per_seg(const qn_state *state) { return state->pages_per_seg; }

qn_state_counts qn_state_get_counts(const qn_state *state) {
    const state_tree *tree = &state->tree;
    qn_state_counts counts = {
        .kept_bytes = qn_tree_kept_bytes(state), .hits = tree->hits, .evictions = tree->evictions};
    for (int64_t g = 0; g < state->n_groups; g++) {
        counts.pages_all += state->groups[g].n;
        counts.pages_used += state->groups[g].n - state->groups[g].n_free;
        counts.pages_kept += state->groups[g].n_kept;
    }
    if (state->layout->n_slots) {
        counts.slots_all = state->opts.n_seqs + tree->n_marks;
        counts.slots_used = state->n_open + tree->n_marks_used;
        counts.slots_kept = tree->n_marks_used;
    }
    return counts;
}

int64_t qn_state_free_pages(const qn_state *state) {
    int64_t min = INT64_MAX;
    for (int64_t g = 0; g < state->n_groups; g++) {
        const state_pages *pages = &state->groups[g];
        const int64_t n = (int64_t)pages->n_free + pages->n_kept;
        if (pages->window == 0 && n < min) min = n;
    }
    return min;
}

void qn_state_limits(qn_step_limits *to, const qn_state *state) {
    to->context = state->opts.context;
    to->n_groups = state->n_groups;
    to->n_pages = state->n_pages;
    to->windows = state->windows;
    to->n_slots = state->n_slots;
    to->log_rows = QN_LOG_ROWS;
}

int64_t qn_state_page_bytes(const qn_state *state, int64_t group) {
    return state->groups[group].page_bytes;
}

int64_t qn_state_slot_bytes(const qn_state *state) { return state->layout->slot_bytes; }

// --- copies ---

static void add_copy(qn_state *state, qn_copy copy) {
    if (state->n_copies == QN_COPIES_MAX) { // nothing runs in between: they may be done now
        state->opts.flush(state->opts.flush_arg, state->copies, state->n_copies);
        state->n_copies = 0;
    }
    state->copies[state->n_copies++] = copy;
}

void qn_state_copy_page(qn_state *state, int64_t group, int32_t to, int32_t from) {
    add_copy(state,
             (qn_copy){.kind = QN_COPY_PAGE, .group = (int32_t)group, .from = from, .to = to});
}

void qn_state_copy_slot(qn_state *state, int32_t to, int32_t from, int64_t accept) {
    if (state->layout->n_slots == 0) return;
    add_copy(state,
             (qn_copy){.kind = QN_COPY_SLOT, .from = from, .to = to, .log_rows = (int32_t)accept});
}

int64_t qn_state_copies(const qn_copy **copies, const qn_state *state) {
    *copies = state->copies;
    return state->n_copies;
}

void qn_state_clear_copies(qn_state *state) { state->n_copies = 0; }

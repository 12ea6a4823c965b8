// Sequences: page tables that grow by prepared steps, are cut, shared and copied.
#include "runtime/state_int.h"

#include <assert.h>

// --- opening and closing ---

qn_status qn_seq_open(qn_seq **out, qn_state *state, qn_err *err) {
    if (state->free_seq < 0)
        return QN_FAIL(err, LIMIT, "%lld sessions and snapshots share a state made for %lld",
                       (long long)state->n_open, (long long)state->opts.n_seqs);
    qn_seq *seq = &state->seqs[state->free_seq].seq;
    state->free_seq = seq->next_free;
    state->n_open++;
    seq->is_open = true;
    seq->adapter = -1;
    *out = seq;
    return QN_OK;
}

void qn_seq_set_adapter(qn_seq *seq, int32_t adapter) { seq->adapter = adapter; }
int32_t qn_seq_adapter(const qn_seq *seq) { return seq->adapter; }

// Keeps the first `length` rows, of which every page is there.
static void cut(qn_seq *seq, int64_t length) {
    for (int64_t g = 0; g < seq->state->n_groups; g++) {
        seq_group *own = &seq->groups[g];
        const int32_t end = qn_pages_for(length);
        while (own->end > end && own->end > own->first)
            qn_pages_drop(&seq->state->groups[g], own->pages[--own->end]);
        if (length == 0) own->first = own->end = 0;
    }
    seq->length = length;
    if (seq->certain > length) seq->certain = length;
}

void qn_seq_close(qn_seq *seq) {
    if (!seq) return;
    assert(seq->is_open);
    qn_state *state = seq->state;
    qn_seq_cancel(seq);
    cut(seq, 0);
    seq->is_open = false;
    seq->next_free = state->free_seq;
    state->free_seq = seq->slot;
    state->n_open--;
    qn_tree_trim(state);
}

int64_t qn_seq_length(const qn_seq *seq) { return seq->length; }
int64_t qn_seq_end(const qn_seq *seq) { return seq->length + seq->rows; }

// --- steps ---

static qn_status check_step(const qn_seq *seq, int64_t rows, int64_t commit, qn_err *err) {
    const qn_state_opts *opts = &seq->state->opts;
    if (seq->rows)
        return QN_FAIL(err, ARGUMENT, "a step of %lld rows, while one of %lld is prepared",
                       (long long)rows, (long long)seq->rows);
    if (rows < 1 || rows > opts->step_rows)
        return QN_FAIL(err, LIMIT, "a step of %lld rows, want 1 to %lld", (long long)rows,
                       (long long)opts->step_rows);
    if (commit < 0 || commit > rows)
        return QN_FAIL(err, ARGUMENT, "%lld certain rows in a step of %lld", (long long)commit,
                       (long long)rows);
    if (seq->state->layout->n_slots && rows - commit > QN_LOG_ROWS)
        return QN_FAIL(err, LIMIT, "%lld uncertain rows, a log holds %d",
                       (long long)(rows - commit), QN_LOG_ROWS);
    if (seq->length + rows > opts->context)
        return QN_FAIL(err, LIMIT, "%lld rows after %lld, the context holds %lld", (long long)rows,
                       (long long)seq->length, (long long)opts->context);
    return QN_OK;
}

// The last page, if the next row goes into it; -1: the next row begins a page.
static int32_t tail_of(const qn_seq *seq, const seq_group *own) {
    return seq->length % QN_PAGE_ROWS ? own->pages[own->end - 1] : -1;
}

// Makes sure that a group has the free pages that the step will take. A last page that is shared
// with the tree alone need not be copied if the tree drops it.
static qn_status reserve(qn_seq *seq, int64_t g, int64_t rows, qn_err *err) {
    const state_pages *pages = &seq->state->groups[g];
    const seq_group *own = &seq->groups[g];
    const int32_t tail = tail_of(seq, own);
    const int64_t fresh = qn_pages_for(seq->length + rows) - own->end;
    const bool is_shared = tail >= 0 && pages->refs[tail] > 1;
    const bool must_copy = is_shared && pages->refs[tail] - pages->tree_refs[tail] > 1;
    const int64_t room = (int64_t)pages->n_free + pages->n_kept;
    if (fresh + must_copy > room)
        return QN_FAIL(err, LIMIT, "a step of %lld rows needs %lld pages, %lld of %d are free",
                       (long long)rows, (long long)(fresh + must_copy), (long long)room, pages->n);
    qn_tree_make_room(
        seq->state,
        &(tree_goal){.kept_bytes = INT64_MAX, .pages = pages, .free_pages = fresh + is_shared});
    return QN_OK;
}

static void grow(qn_seq *seq, int64_t g, int64_t rows) {
    state_pages *pages = &seq->state->groups[g];
    seq_group *own = &seq->groups[g];
    const int32_t tail = tail_of(seq, own), end = qn_pages_for(seq->length + rows);
    own->end_before = own->end;
    own->tail_before = -1;
    if (tail >= 0 && pages->refs[tail] > 1) {
        const int32_t copy = qn_pages_take(pages);
        qn_state_copy_page(seq->state, g, copy, tail);
        own->tail_before = tail;
        own->pages[own->end - 1] = copy;
    }
    while (own->end < end) own->pages[own->end++] = qn_pages_take(pages);
}

qn_status qn_seq_prepare(qn_seq *seq, int64_t rows, int64_t commit, qn_err *err) {
    QN_TRY(check_step(seq, rows, commit, err));
    for (int64_t g = 0; g < seq->state->n_groups; g++) QN_TRY(reserve(seq, g, rows, err));
    for (int64_t g = 0; g < seq->state->n_groups; g++) grow(seq, g, rows);
    seq->rows = rows;
    seq->commit = commit;
    return QN_OK;
}

static void fill_pages(const qn_seq *seq, const qn_seg_tables *to, int64_t b) {
    const qn_state *state = seq->state;
    for (int64_t g = 0; g < state->n_groups; g++) {
        int32_t *pages = to->seg_pages + (b * state->n_groups + g) * to->pages;
        const seq_group *own = &seq->groups[g];
        assert(own->end <= to->pages);
        for (int32_t i = 0; i < own->first; i++) pages[i] = -1;
        for (int32_t i = own->first; i < own->end; i++) pages[i] = own->pages[i];
        for (int64_t i = own->end; i < to->pages; i++) pages[i] = -1;
    }
}

void qn_seq_fill(const qn_seq *seq, const qn_seg_tables *to, int64_t b) {
    const bool has_slots = seq->state->layout->n_slots > 0;
    assert(seq->rows);
    to->seg_past[b] = (int32_t)seq->length;
    to->seg_slot[b] = has_slots ? seq->slot : 0;
    to->seg_accept[b] = has_slots ? (int32_t)(seq->length - seq->certain) : 0;
    to->seg_commit[b] = (int32_t)seq->commit;
    fill_pages(seq, to, b);
}

void qn_seq_fill_head(const qn_seq *seq, const qn_seg_tables *to, int64_t b, int64_t past) {
    to->seg_past[b] = (int32_t)past;
    to->seg_slot[b] = to->seg_accept[b] = to->seg_commit[b] = 0;
    fill_pages(seq, to, b);
}

// Gives back what is older than any window that a rollback can still reach: uncertain
// rows may be rolled back, up to the length of a log.
static void release_passed(qn_seq *seq) {
    const int64_t logged = seq->length - QN_LOG_ROWS;
    const int64_t shortest = seq->certain > logged ? seq->certain : logged;
    for (int64_t g = 0; g < seq->state->n_groups; g++) {
        state_pages *pages = &seq->state->groups[g];
        seq_group *own = &seq->groups[g];
        const int64_t first = qn_window_begin(pages->window, shortest) / QN_PAGE_ROWS;
        while (own->first < first && own->first < own->end)
            qn_pages_drop(pages, own->pages[own->first++]);
    }
}

void qn_seq_finish(qn_seq *seq) {
    assert(seq->rows);
    for (int64_t g = 0; g < seq->state->n_groups; g++) {
        const int32_t tail = seq->groups[g].tail_before;
        if (tail >= 0) qn_pages_drop(&seq->state->groups[g], tail);
    }
    seq->certain = seq->length + seq->commit;
    seq->length += seq->rows;
    seq->rows = 0;
    release_passed(seq);
    qn_tree_trim(seq->state);
}

void qn_seq_cancel(qn_seq *seq) {
    if (!seq->rows) return;
    for (int64_t g = 0; g < seq->state->n_groups; g++) {
        state_pages *pages = &seq->state->groups[g];
        seq_group *own = &seq->groups[g];
        while (own->end > own->end_before) qn_pages_drop(pages, own->pages[--own->end]);
        if (own->tail_before < 0) continue;
        qn_pages_drop(pages, own->pages[own->end - 1]);
        own->pages[own->end - 1] = own->tail_before;
    }
    seq->rows = 0;
    qn_tree_trim(seq->state);
}

// --- cutting and copying ---

// Whether the state at an earlier length is still there.
static bool has_state_at(const qn_seq *seq, int64_t length) {
    if (seq->state->layout->n_slots && length < seq->certain) return false;
    for (int64_t g = 0; g < seq->state->n_groups; g++) {
        const int64_t begin = qn_window_begin(seq->state->groups[g].window, length);
        if (seq->groups[g].first > begin / QN_PAGE_ROWS) return false;
    }
    return true;
}

int64_t qn_seq_truncate(qn_seq *seq, int64_t length) {
    assert(!seq->rows);
    if (length >= seq->length) return seq->length;
    cut(seq, length > 0 && has_state_at(seq, length) ? length : 0);
    qn_tree_trim(seq->state);
    return seq->length;
}

// Pages of a group that a sequence of `length` rows holds: [first, end).
static int32_t first_page(const state_pages *pages, int64_t length) {
    return (int32_t)(qn_window_begin(pages->window, length) / QN_PAGE_ROWS);
}

// Whether there will be room for a sequence of `length` rows in place of this one.
static qn_status check_room(const qn_seq *seq, int64_t g, int64_t length, qn_err *err) {
    const state_pages *pages = &seq->state->groups[g];
    const seq_group *own = &seq->groups[g];
    const int64_t wanted = qn_pages_for(length) - first_page(pages, length);
    int64_t room = (int64_t)pages->n_free + pages->n_kept;
    for (int32_t i = own->first; i < own->end; i++)
        room += pages->refs[own->pages[i]] - pages->tree_refs[own->pages[i]] == 1;
    return wanted <= room
               ? QN_OK
               : QN_FAIL(err, LIMIT, "%lld rows need %lld pages, %lld of %d are free",
                         (long long)length, (long long)wanted, (long long)room, pages->n);
}

qn_status qn_seq_place(qn_seq *seq, int64_t length, qn_err *err) {
    qn_state *state = seq->state;
    assert(!seq->rows);
    if (length > state->opts.context)
        return QN_FAIL(err, LIMIT, "%lld rows, the context holds %lld", (long long)length,
                       (long long)state->opts.context);
    for (int64_t g = 0; g < state->n_groups; g++) QN_TRY(check_room(seq, g, length, err));
    cut(seq, 0);
    for (int64_t g = 0; g < state->n_groups; g++) {
        state_pages *pages = &state->groups[g];
        seq_group *own = &seq->groups[g];
        own->first = own->end = first_page(pages, length);
        const int32_t end = qn_pages_for(length);
        qn_tree_make_room(
            state,
            &(tree_goal){.kept_bytes = INT64_MAX, .pages = pages, .free_pages = end - own->first});
        while (own->end < end) own->pages[own->end++] = qn_pages_take(pages);
    }
    seq->length = seq->certain = length;
    qn_tree_trim(state);
    return QN_OK;
}

// `to` is empty.
static void copy(qn_seq *to, const qn_seq *from) {
    assert(!from->rows);
    for (int64_t g = 0; g < to->state->n_groups; g++) {
        const seq_group *theirs = &from->groups[g];
        seq_group *own = &to->groups[g];
        own->first = theirs->first;
        own->end = theirs->end;
        for (int32_t i = own->first; i < own->end; i++) {
            own->pages[i] = theirs->pages[i];
            qn_pages_hold(&to->state->groups[g], own->pages[i]);
        }
    }
    to->length = from->length;
    to->certain = from->certain;
    to->adapter = from->adapter;
    if (from->length)
        qn_state_copy_slot(to->state, to->slot, from->slot, from->length - from->certain);
}

qn_status qn_seq_fork(qn_seq **out, qn_seq *seq, qn_err *err) {
    QN_TRY(qn_seq_open(out, seq->state, err));
    copy(*out, seq);
    return QN_OK;
}

qn_status qn_checkpoint_create(qn_checkpoint **out, qn_seq *seq, qn_err *err) {
    qn_seq *held;
    QN_TRY(qn_seq_fork(&held, seq, err));
    *out = (qn_checkpoint *)held; // its first member
    return QN_OK;
}

void qn_checkpoint_destroy(qn_checkpoint *checkpoint) {
    if (checkpoint) qn_seq_close(&checkpoint->seq);
}

int64_t qn_checkpoint_length(const qn_checkpoint *checkpoint) { return checkpoint->seq.length; }

qn_status qn_seq_restore(qn_seq *seq, const qn_checkpoint *checkpoint, qn_err *err) {
    if (checkpoint->seq.state != seq->state || seq->rows)
        return QN_FAIL(err, ARGUMENT, "restoring %lld rows: %s", (long long)checkpoint->seq.length,
                       seq->rows ? "a step is prepared" : "the checkpoint is of another state");
    cut(seq, 0);
    copy(seq, &checkpoint->seq);
    qn_tree_trim(seq->state);
    return QN_OK;
}

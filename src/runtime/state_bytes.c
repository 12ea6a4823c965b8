#include "runtime/state_bytes.h"

#include "core/mem.h"
#include "runtime/state_int.h"

#include <string.h>

// The first row that is held of a group by a sequence of `length` rows: that of a page.
static int64_t first_row(const qn_state *state, int64_t group, int64_t length) {
    const int64_t begin = qn_window_begin(state->groups[group].window, length);
    return begin / QN_PAGE_ROWS * QN_PAGE_ROWS;
}

bool qn_seq_measure(int64_t *out, const qn_state *state, int64_t length) {
    const qn_state_layout *layout = state->layout;
    int64_t all = 0, bytes = 0;
    for (size_t i = 0; i < layout->n_caches; i++) {
        const int64_t rows = length - first_row(state, layout->caches[i].group, length);
        if (!qn_i64_mul(&bytes, rows, qn_kv_row_bytes(&layout->caches[i])) ||
            !qn_i64_add(&all, all, bytes))
            return false;
    }
    for (size_t i = 0; i < layout->n_slots && length > 0; i++) {
        if (!qn_i64_mul(&bytes, layout->slots[i].state_size, sizeof(float)) ||
            !qn_i64_add(&all, all, bytes))
            return false;
    }
    *out = all;
    return true;
}

// --- caches --------------------------------------------------------------------------------------

// The rows of one page that a sequence has.
typedef struct page_rows {
    int32_t page;
    int64_t n;
} page_rows;

// `at` is the first row of a page that is held.
static page_rows find_page(const qn_seq *seq, int64_t group, int64_t at) {
    const int64_t left = seq->length - at;
    return (page_rows){seq->groups[group].pages[at / QN_PAGE_ROWS], qn_min(left, QN_PAGE_ROWS)};
}

static qn_status check_held(const qn_seq *seq, size_t cache, int64_t first, qn_err *err) {
    const int64_t group = seq->state->layout->caches[cache].group;
    const int64_t held = (int64_t)seq->groups[group].first * QN_PAGE_ROWS;
    if (first >= held) return QN_OK;
    return QN_FAIL(err, STATE, "%s: rows from %lld on are held, want those from %lld on",
                   seq->state->layout->cache_names[cache], (long long)held, (long long)first);
}

static qn_status save_cache(const qn_seq *seq, size_t i, void *room, qn_bytes_fn *write, void *arg,
                            qn_err *err) {
    const qn_cache_view *view = &seq->state->layout->caches[i];
    const int64_t begin = first_row(seq->state, view->group, seq->length);
    QN_TRY(check_held(seq, i, begin, err));
    for (int64_t at = begin; at < seq->length; at += QN_PAGE_ROWS) {
        const page_rows p = find_page(seq, view->group, at);
        QN_TRY(qn_kv_get_rows(room, seq->state->memory, i, p.page, 0, p.n, err));
        QN_TRY(write(arg, room, (size_t)(p.n * qn_kv_row_bytes(view)), err));
    }
    return QN_OK;
}

static qn_status fill_cache(const qn_seq *seq, size_t i, void *room, qn_bytes_fn *read, void *arg,
                            qn_err *err) {
    const qn_cache_view *view = &seq->state->layout->caches[i];
    const int64_t begin = first_row(seq->state, view->group, seq->length);
    for (int64_t at = begin; at < seq->length; at += QN_PAGE_ROWS) {
        const page_rows p = find_page(seq, view->group, at);
        QN_TRY(read(arg, room, (size_t)(p.n * qn_kv_row_bytes(view)), err));
        QN_TRY(qn_kv_set_rows(room, seq->state->memory, i, p.page, 0, p.n, err));
    }
    return QN_OK;
}

// --- all of it -----------------------------------------------------------------------------------

// Room for a page of any cache, or for a state and its log.
static qn_status take_room(void **out, const qn_state_layout *layout, qn_err *err) {
    size_t max = 1;
    for (size_t i = 0; i < layout->n_caches; i++) { // checked with the layout, as bytes of a page
        const size_t bytes = (size_t)(QN_PAGE_ROWS * qn_kv_row_bytes(&layout->caches[i]));
        if (bytes > max) max = bytes;
    }
    for (size_t i = 0; i < layout->n_slots; i++) {
        const qn_slots_view *v = &layout->slots[i];
        const size_t bytes = (size_t)(v->state_size + v->log_rows * v->log_size) * sizeof(float);
        if (bytes > max) max = bytes;
    }
    *out = qn_alloc(max, 1);
    return *out ? QN_OK : QN_NOMEM(err, "state of a sequence");
}

static qn_status get_state(float *room, const qn_seq *seq, size_t i, qn_err *err) {
    return qn_kv_get_state(room, seq->state->memory, i, seq->slot, seq->length - seq->certain,
                           room + seq->state->layout->slots[i].state_size, err);
}

static qn_status save_slot(const qn_seq *seq, size_t i, void *room, qn_bytes_fn *write, void *arg,
                           qn_err *err) {
    QN_TRY(get_state(room, seq, i, err));
    return write(arg, room, (size_t)seq->state->layout->slots[i].state_size * sizeof(float), err);
}

static qn_status fill_slot(const qn_seq *seq, size_t i, void *room, qn_bytes_fn *read, void *arg,
                           qn_err *err) {
    QN_TRY(read(arg, room, (size_t)seq->state->layout->slots[i].state_size * sizeof(float), err));
    return qn_kv_set_state(room, seq->state->memory, i, seq->slot, err);
}

// Moves one cache or slot, through `room`.
typedef qn_status move_fn(const qn_seq *seq, size_t i, void *room, qn_bytes_fn *fn, void *arg,
                          qn_err *err);

static qn_status move_all(const qn_seq *seq, move_fn *cache, move_fn *slot, qn_bytes_fn *fn,
                          void *arg, qn_err *err) {
    const qn_state_layout *layout = seq->state->layout;
    qn_status status = QN_OK;
    void *room;
    if (seq->length == 0) return QN_OK;
    QN_TRY(take_room(&room, layout, err));
    for (size_t i = 0; i < layout->n_caches && !status; i++)
        status = cache(seq, i, room, fn, arg, err);
    for (size_t i = 0; i < layout->n_slots && !status; i++)
        status = slot(seq, i, room, fn, arg, err);
    qn_free(room);
    return status;
}

qn_status qn_seq_save(const qn_seq *seq, qn_bytes_fn *write, void *arg, qn_err *err) {
    return move_all(seq, save_cache, save_slot, write, arg, err);
}

qn_status qn_seq_fill_rows(qn_seq *seq, qn_bytes_fn *read, void *arg, qn_err *err) {
    return move_all(seq, fill_cache, fill_slot, read, arg, err);
}

// --- looking at it -------------------------------------------------------------------------------

size_t qn_seq_n_caches(const qn_seq *seq) { return seq->state->layout->n_caches; }
size_t qn_seq_n_states(const qn_seq *seq) { return seq->state->layout->n_slots; }

static int64_t layer_of(const char *name) {
    const char *dot = strrchr(name, '.');
    int64_t layer = dot && dot[1] ? 0 : -1;
    for (const char *at = dot; at && *++at && layer >= 0;)
        layer = *at >= '0' && *at <= '9' && layer < INT32_MAX ? 10 * layer + (*at - '0') : -1;
    return layer;
}

qn_kept_info qn_seq_cache_info(const qn_seq *seq, size_t i) {
    const qn_state_layout *layout = seq->state->layout;
    const qn_cache_view *view = &layout->caches[i];
    return (qn_kept_info){.name = layout->cache_names[i],
                          .layer = layer_of(layout->cache_names[i]),
                          .heads = view->heads,
                          .k_size = view->k_size,
                          .v_size = view->v_size,
                          .first = first_row(seq->state, view->group, seq->length)};
}

qn_kept_info qn_seq_state_info(const qn_seq *seq, size_t i) {
    const qn_log_rule *rule = &seq->state->layout->rules[i];
    const bool is_delta = rule->heads > 0;
    return (qn_kept_info){.name = seq->state->layout->slot_names[i],
                          .layer = layer_of(seq->state->layout->slot_names[i]),
                          .state_heads = is_delta ? rule->heads : 1,
                          .state_k = is_delta ? rule->k_size : rule->kept,
                          .state_v = is_delta ? rule->v_size : rule->channels};
}

qn_status qn_seq_read_kv(float *to, const qn_seq *seq, size_t cache, const qn_kv_range *range,
                         qn_err *err) {
    const qn_cache_view *view = &seq->state->layout->caches[cache];
    const int64_t bytes = qn_kv_row_bytes(view);
    const int64_t width = range->is_values ? view->v_size : view->k_size;
    unsigned char *row = qn_alloc((size_t)bytes, 1);
    if (!row) return QN_NOMEM(err, "keys and values");
    qn_status status = check_held(seq, cache, range->first, err);
    for (int64_t i = 0; i < range->n && !status; i++) {
        const int64_t at = range->first + i;
        const int32_t page = seq->groups[view->group].pages[at / QN_PAGE_ROWS];
        status = qn_kv_get_rows(row, seq->state->memory, cache, page, at % QN_PAGE_ROWS, 1, err);
        if (status) break;
        if (range->is_values)
            qn_kv_row_values(to + i * width, row, view, range->head);
        else
            qn_kv_row_keys(to + i * width, row, view, range->head);
    }
    qn_free(row);
    return status;
}

qn_status qn_seq_read_state(float *to, const qn_seq *seq, size_t i, qn_err *err) {
    const qn_slots_view *view = &seq->state->layout->slots[i];
    void *room;
    QN_TRY(take_room(&room, seq->state->layout, err));
    const qn_status status = get_state(room, seq, i, err);
    if (!status) memcpy(to, room, (size_t)view->state_size * sizeof *to);
    qn_free(room);
    return status;
}

// What every part of a rendering uses: steps, depth, memory, texts.
#include "chat/render.h"

#include "chat/chat_text.h"
#include "core/mem.h"
#include "core/stop_flag.h"

const qn_chat_limits qn_chat_default_limits = {.steps = 50 * 1000 * 1000,
                                               .memory = 256 << 20,
                                               .output = 64 << 20,
                                               .depth = 1000,
                                               .stack = QN_CHAT_STACK};

enum { BYTES_OF_STEP = 64, STEPS_OF_POLL = 100 * 1000, MIN_TAIL = 256 };

void qn_jinja_begin(qn_jinja_run *r) {
    r->steps = r->limits.steps;
    r->poll_at = r->limits.progress || r->limits.stop ? r->steps : 0;
    r->stack = __builtin_frame_address(0);
}

// Steps are short, or the caller is to be asked.
static qn_status spend_slowly(qn_jinja_run *r, size_t cost, qn_err *err) {
    if (r->steps < 0 || cost > (size_t)r->steps) {
        r->steps = 0;
        return QN_FAIL(err, LIMIT, "the template takes more than %lld steps",
                       (long long)r->limits.steps);
    }
    r->steps -= (int64_t)cost;
    const qn_chat_limits *l = &r->limits;
    if (!l->progress && !l->stop) return QN_OK;
    r->poll_at = r->steps > STEPS_OF_POLL ? r->steps - STEPS_OF_POLL : 0;
    const bool goes_on =
        !l->progress || l->progress(l->progress_arg, l->steps - r->steps, l->steps);
    if (goes_on && !qn_stop_is_wanted(l->stop)) return QN_OK;
    r->is_placed = true; // where it was does not matter
    return QN_FAIL(err, STOPPED, "stopped by the caller");
}

static inline qn_status spend(qn_jinja_run *r, size_t cost, qn_err *err) {
    // Neither number is negative, so that as unsigned ones they compare as they should.
    if (r->steps < r->poll_at || cost > (uint64_t)(r->steps - r->poll_at))
        return spend_slowly(r, cost, err);
    r->steps -= (int64_t)cost;
    return QN_OK;
}

qn_status qn_jinja_charge(qn_jinja_run *r, size_t bytes, qn_err *err) {
    return spend(r, 1 + bytes / BYTES_OF_STEP, err);
}

qn_status qn_jinja_spend(qn_jinja_run *r, size_t n, size_t per, qn_err *err) {
    return spend(r, n / per, err);
}

// Of the thread's stack, in either direction.
static size_t stack_taken(const qn_jinja_run *r) {
    const uintptr_t from = (uintptr_t)r->stack, to = (uintptr_t)__builtin_frame_address(0);
    return from > to ? from - to : to - from;
}

qn_status qn_jinja_enter(qn_jinja_run *r, qn_err *err) {
    if (++r->depth > r->limits.depth)
        return QN_FAIL(err, LIMIT, "nested more than %d deep", r->limits.depth);
    if (r->limits.stack && stack_taken(r) > r->limits.stack)
        return QN_FAIL(err, LIMIT, "nested more than %zu bytes of stack allow", r->limits.stack);
    return QN_OK;
}

qn_status qn_jinja_alloc(void *out, qn_jinja_run *r, size_t n, size_t size, qn_err *err) {
    size_t bytes;
    if (!qn_size_mul(&bytes, n, size) || bytes > r->limits.memory ||
        r->arena.bytes > r->limits.memory - bytes)
        return QN_FAIL(err, LIMIT, "the template takes more than %zu bytes of memory",
                       r->limits.memory);
    void *memory = qn_arena_alloc(&r->arena, n ? n : 1, size);
    if (!memory) return QN_NOMEM(err, "values of a template");
    memcpy(out, &memory, sizeof memory);
    return QN_OK;
}

qn_buf qn_jinja_buf(const qn_jinja_run *r) { return (qn_buf){.max = r->limits.output}; }

qn_status qn_jinja_buf_check(const qn_buf *buf, qn_err *err) {
    if (!buf->failed) return QN_OK;
    if (!buf->is_over) return QN_NOMEM(err, "text of a template");
    return QN_FAIL(err, LIMIT, "the template writes more than %zu bytes", buf->max);
}

qn_status qn_jinja_text(qn_jinja_val *out, qn_jinja_run *r, qn_buf *buf, qn_err *err) {
    char *copy = NULL;
    qn_status status = qn_jinja_buf_check(buf, err);
    if (!status) status = qn_jinja_alloc(&copy, r, buf->size + 1, 1, err);
    if (!status && buf->size) memcpy(copy, buf->data, buf->size);
    *out = qn_jinja_val_text((qn_str){copy, buf->size});
    qn_buf_deinit(buf);
    return status;
}

// Templates put texts together piece by piece. A text that ends where a tail was last written to
// grows there; texts that share its beginning keep it.
qn_status qn_jinja_text_join(qn_jinja_val *out, qn_jinja_run *r, qn_str a, qn_str b, qn_err *err) {
    const size_t size = a.size + b.size;
    QN_TRY(qn_jinja_charge(r, b.size, err));
    for (size_t i = 0; i < QN_N_TAILS; i++) {
        qn_jinja_tail *tail = &r->tails[i];
        if (!tail->data || a.data + a.size != tail->data + tail->used || a.data < tail->data ||
            tail->cap - tail->used < b.size)
            continue;
        if (b.size) memcpy(tail->data + tail->used, b.data, b.size);
        tail->used += b.size;
        *out = qn_jinja_val_text((qn_str){a.data, size});
        return QN_OK;
    }
    const bool is_long = size >= MIN_TAIL;
    const size_t cap = is_long ? size * 2 : size;
    char *data;
    QN_TRY(qn_jinja_charge(r, a.size, err));
    QN_TRY(qn_jinja_alloc(&data, r, cap + 1, 1, err));
    if (a.size) memcpy(data, a.data, a.size);
    if (b.size) memcpy(data + a.size, b.data, b.size);
    if (is_long)
        r->tails[r->next_tail++ % QN_N_TAILS] =
            (qn_jinja_tail){.data = data, .used = size, .cap = cap};
    *out = qn_jinja_val_text((qn_str){data, size});
    return QN_OK;
}

#include "faulty_ranks.h"

#include <sched.h>
#include <string.h>
#include <time.h>

enum { TOLD = -1000, TOO_MANY = -1001 }; // errors of this table

// The group of this table is the table.
static faulty_ranks *of(qn_ranks_group *group) { return (faulty_ranks *)(void *)group; }

// xorshift64*: one in n.
static bool happens(faulty_ranks *f, uint64_t n) {
    f->state ^= f->state >> 12;
    f->state ^= f->state << 25;
    f->state ^= f->state >> 27;
    return f->seed && (f->state * 2685821657736338717u >> 33) % n == 0;
}

static void delay(faulty_ranks *f) {
    if (!happens(f, 8)) return;
    if (happens(f, 2)) {
        sched_yield();
        return;
    }
    const int64_t us = f->max_delay_us ? (int64_t)(f->state >> 20) % f->max_delay_us : 0;
    nanosleep(&(struct timespec){.tv_nsec = (long)(us % 1000000 * 1000)}, NULL);
}

// A call that counts. Not 0: it fails.
static int count(faulty_ranks *f) {
    f->calls++;
    if (f->calls == f->end_at) f->die(f->group);
    return f->calls == f->fail_at ? TOLD : 0;
}

// --- operations that are held back ---------------------------------------------------------------

static bool is_alike(const faulty_operation *a, const faulty_operation *b) {
    return a->is_send == b->is_send && a->peer == b->peer && a->tag == b->tag;
}

// Messages of one kind keep their order; others may pass each other.
static bool may_begin(const faulty_ranks *f, const faulty_operation *o) {
    for (int i = 0; i < FAULTY_HELD; i++) {
        const faulty_operation *other = &f->held[i];
        if (other->is_used && !other->is_begun && other->number < o->number && is_alike(other, o))
            return false;
    }
    return true;
}

static int begin_inner(faulty_ranks *f, faulty_operation *o) {
    o->is_begun = true;
    return o->is_send ? f->inner->send(&o->inner, f->group, o->data, o->bytes, o->peer, o->tag)
                      : f->inner->receive(&o->inner, f->group, o->data, o->bytes, o->peer, o->tag);
}

// Any call may begin what was held back.
static int begin_some(faulty_ranks *f) {
    for (faulty_operation *o = f->held; o < f->held + FAULTY_HELD; o++) {
        if (!o->is_used || o->is_begun || !may_begin(f, o) || happens(f, 2)) continue;
        const int error = begin_inner(f, o);
        if (error) return error;
    }
    return 0;
}

static int hold(faulty_operation **out, faulty_ranks *f) {
    int n = 0;
    while (n < FAULTY_HELD && f->held[n].is_used) n++;
    if (n == FAULTY_HELD) return TOO_MANY;
    f->held[n] = (faulty_operation){.is_used = true, .number = f->n_begun++};
    *out = &f->held[n];
    return 0;
}

static int begin_message(void **handle, faulty_ranks *f, const faulty_operation *like) {
    faulty_operation *o;
    delay(f);
    int error = count(f);
    if (!error) error = begin_some(f);
    if (!error) error = hold(&o, f);
    if (error) return error;
    const int64_t number = o->number;
    *o = *like;
    o->is_used = true;
    o->number = number;
    if (may_begin(f, o) && !happens(f, 2)) error = begin_inner(f, o);
    if (error)
        o->is_used = false;
    else
        *handle = o;
    return error;
}

// --- the table -----------------------------------------------------------------------------------

static int begin_send(void **handle, qn_ranks_group *group, const void *data, size_t bytes, int to,
                      int tag) {
    const faulty_operation like = {.is_send = true,
                                   .peer = to,
                                   .tag = tag,
                                   .data = (void *)(uintptr_t)data, // it is only read
                                   .bytes = bytes};
    return begin_message(handle, of(group), &like);
}

static int begin_receive(void **handle, qn_ranks_group *group, void *data, size_t bytes, int from,
                         int tag) {
    const faulty_operation like = {.peer = from, .tag = tag, .data = data, .bytes = bytes};
    return begin_message(handle, of(group), &like);
}

static int begin_all(faulty_operation **out, faulty_ranks *f) {
    delay(f);
    int error = count(f);
    if (!error) error = begin_some(f);
    if (!error) error = hold(out, f);
    if (!error) (*out)->is_all = (*out)->is_begun = true;
    return error;
}

static int begin_broadcast(void **handle, qn_ranks_group *group, void *data, size_t bytes,
                           int root) {
    faulty_ranks *f = of(group);
    faulty_operation *o;
    int error = begin_all(&o, f);
    if (error) return error;
    error = f->inner->broadcast(&o->inner, f->group, data, bytes, root);
    o->is_used = !error;
    *handle = o;
    return error;
}

static int begin_all_gather(void **handle, qn_ranks_group *group, void *to, const void *from,
                            const size_t *bytes) {
    faulty_ranks *f = of(group);
    faulty_operation *o;
    int error = begin_all(&o, f);
    if (error) return error;
    error = f->inner->all_gather(&o->inner, f->group, to, from, bytes);
    o->is_used = !error;
    *handle = o;
    return error;
}

// What is done may be said to be done later: then others are done before it.
static int test(bool *is_done, void **handle, qn_ranks_group *group) {
    faulty_ranks *f = of(group);
    faulty_operation *o = *handle;
    delay(f);
    int error = begin_some(f);
    if (!error && o->is_begun && !o->is_done)
        error = f->inner->test(&o->is_done, &o->inner, f->group);
    if (!error && o->is_done && !happens(f, 2)) {
        error = count(f);
        *is_done = !error;
    }
    if (error || *is_done) o->is_used = false;
    return error;
}

static int open_inner(qn_ranks_group **out, qn_ranks_place *place,
                      const qn_ranks_opening *opening) {
    faulty_ranks *f = opening->arg;
    const qn_ranks_opening inner = {.arg = f->inner_arg, .limit_ms = opening->limit_ms};
    const int error = f->inner->open(&f->group, place, &inner);
    if (!error) *out = (qn_ranks_group *)opening->arg;
    return error;
}

static void close_inner(qn_ranks_group *group, bool is_failed) {
    of(group)->inner->close(of(group)->group, is_failed);
}

static bool has_ended(qn_ranks_group *group, int rank) {
    return of(group)->inner->has_ended(of(group)->group, rank);
}

const qn_ranks_api *faulty_ranks_api(faulty_ranks *f) {
    f->state = f->seed * 0x9e3779b97f4a7c15u + 1;
    f->api = (qn_ranks_api){.version = QN_RANKS_API_VERSION,
                            .name = f->inner->name,
                            .max_bytes = f->inner->max_bytes,
                            .explain = f->inner->explain,
                            .open = open_inner,
                            .close = close_inner,
                            .broadcast = begin_broadcast,
                            .all_gather = begin_all_gather,
                            .send = begin_send,
                            .receive = begin_receive,
                            .test = test,
                            .has_ended = has_ended};
    return &f->api;
}

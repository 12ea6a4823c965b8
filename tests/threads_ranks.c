#include "threads_ranks.h"

#include "testing.h"

#include "core/mem.h"
#include "core/thread.h"

#include <stdlib.h>

enum { DISAGREE = 1, ENDED, NO_MEMORY };
enum { MAX_RANKS = 16 };
typedef enum kind { SEND, RECEIVE, BROADCAST, ALL_GATHER } kind;

// From one rank to another, copied, so that nobody reads the memory of a rank that has left.
typedef struct message {
    struct message *next;
    size_t bytes;
    int tag, n_holders;
    bool is_claimed;
    char data[];
} message;

// The k-th operation of all ranks at once.
typedef struct meeting {
    struct meeting *next;
    int64_t number;
    kind kind;
    int root, n_here, n_gone;
    bool is_here[MAX_RANKS];
    message *parts[MAX_RANKS]; // broadcast: the root's alone
} meeting;

typedef struct operation {
    struct operation *next; // of this rank, in the order in which they were begun
    kind kind;
    message *message; // NULL: a receive that found none yet
    meeting *meeting;
    int peer, tag; // peer: or the root
    char *to;
    size_t bytes[MAX_RANKS]; // of one only: the first
} operation;

struct qn_ranks_group {
    threads_world *world;
    int rank;
    int64_t n_meetings;
    operation *open;
};

struct threads_world {
    pthread_mutex_t lock; // of all below
    qn_ranks_api api;
    int n;
    bool is_synchronous;
    qn_ranks_group seats[MAX_RANKS];
    bool has_ended[MAX_RANKS];
    message *messages[MAX_RANKS][MAX_RANKS]; // from, to: not received yet, in order
    meeting *meetings;
};

static const char *explain(int error) {
    static const char *const texts[] = {"", "sizes disagree", "this rank has ended",
                                        "out of memory"};
    return error > 0 && error < (int)(sizeof texts / sizeof *texts) ? texts[error] : "unknown";
}

// --- messages ------------------------------------------------------------------------------------

static message *make_message(const void *data, size_t bytes, int tag) {
    message *m = malloc(sizeof *m + bytes);
    if (!m) return NULL;
    *m = (message){.bytes = bytes, .tag = tag, .n_holders = 1};
    if (bytes) memcpy(m->data, data, bytes);
    return m;
}

static void drop(message *m) {
    if (m && --m->n_holders == 0) free(m);
}

static void append(message **list, message *m) {
    while (*list) list = &(*list)->next;
    m->n_holders++;
    *list = m;
}

static message *claim(message *list, int tag) {
    while (list && (list->is_claimed || list->tag != tag)) list = list->next;
    if (list) list->is_claimed = true;
    return list;
}

static void take_out(message **list, message *m) {
    while (*list && *list != m) list = &(*list)->next;
    if (!*list) return;
    *list = m->next;
    drop(m);
}

// Receives get messages in the order in which both were begun.
static void claim_all(qn_ranks_group *group) {
    for (operation *o = group->open; o; o = o->next) {
        if (o->kind != RECEIVE || o->message) continue;
        o->message = claim(group->world->messages[o->peer][group->rank], o->tag);
        if (o->message) o->message->n_holders++;
    }
}

// --- meetings ------------------------------------------------------------------------------------

static meeting *meet(qn_ranks_group *group) {
    threads_world *world = group->world;
    meeting **at = &world->meetings;
    while (*at && (*at)->number != group->n_meetings) at = &(*at)->next;
    if (!*at) {
        *at = calloc(1, sizeof **at);
        if (*at) (*at)->number = group->n_meetings;
    }
    group->n_meetings++;
    return *at;
}

static void leave_meeting(threads_world *world, meeting *m) {
    meeting **at = &world->meetings;
    if (++m->n_gone < world->n) return;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    for (int i = 0; i < world->n; i++) drop(m->parts[i]);
    free(m);
}

static int come(qn_ranks_group *group, operation *o, const void *data, size_t bytes) {
    meeting *m = o->meeting = meet(group);
    if (!m) return NO_MEMORY;
    if (m->n_here && (m->kind != o->kind || m->root != o->peer)) return DISAGREE;
    m->kind = o->kind;
    m->root = o->peer;
    m->is_here[group->rank] = true;
    m->n_here++;
    if (o->kind == BROADCAST && o->peer != group->rank) return 0;
    m->parts[group->rank] = make_message(data, bytes, 0);
    return m->parts[group->rank] ? 0 : NO_MEMORY;
}

// --- operations ----------------------------------------------------------------------------------

static bool is_ready(const qn_ranks_group *group, const operation *o) {
    const threads_world *world = group->world;
    if (o->kind == SEND) return !world->is_synchronous || o->message->is_claimed;
    if (o->kind == RECEIVE) return o->message;
    if (o->kind == BROADCAST && !world->is_synchronous) return o->meeting->is_here[o->peer];
    return o->meeting->n_here == world->n;
}

static int take_part(char *to, const message *part, size_t bytes) {
    if (part->bytes != bytes) return DISAGREE;
    if (bytes) memmove(to, part->data, bytes);
    return 0;
}

static int take_parts(const qn_ranks_group *group, const operation *o) {
    char *to = o->to;
    for (int i = 0; i < group->world->n; i++) {
        const int error = take_part(to, o->meeting->parts[i], o->bytes[i]);
        if (error) return error;
        to += o->bytes[i];
    }
    return 0;
}

static int complete(qn_ranks_group *group, operation *o) {
    if (o->kind == RECEIVE) {
        const int error = take_part(o->to, o->message, o->bytes[0]);
        take_out(&group->world->messages[o->peer][group->rank], o->message);
        return error;
    }
    if (o->kind == BROADCAST && o->peer != group->rank)
        return take_part(o->to, o->meeting->parts[o->peer], o->bytes[0]);
    return o->kind == ALL_GATHER ? take_parts(group, o) : 0;
}

static void end_operation(qn_ranks_group *group, operation *o) {
    operation **at = &group->open;
    while (*at != o) at = &(*at)->next;
    *at = o->next;
    drop(o->message);
    if (o->meeting) leave_meeting(group->world, o->meeting);
    free(o);
}

static operation *begin_operation(qn_ranks_group *group, const operation *like) {
    operation *o = malloc(sizeof *o), **at = &group->open;
    if (!o) return NULL;
    *o = *like;
    while (*at) at = &(*at)->next;
    return *at = o;
}

static int begin(void **handle, qn_ranks_group *group, const operation *like, const void *data,
                 size_t bytes) {
    threads_world *world = group->world;
    int error = 0;
    pthread_mutex_lock(&world->lock);
    operation *o = world->has_ended[group->rank] ? NULL : begin_operation(group, like);
    if (!o) {
        error = world->has_ended[group->rank] ? ENDED : NO_MEMORY;
    } else if (like->kind == BROADCAST || like->kind == ALL_GATHER) {
        error = come(group, o, data, bytes);
    } else if (like->kind == SEND) {
        o->message = make_message(data, bytes, like->tag);
        if (o->message)
            append(&world->messages[group->rank][like->peer], o->message);
        else
            error = NO_MEMORY;
    }
    if (error && o) end_operation(group, o);
    pthread_mutex_unlock(&world->lock);
    *handle = error ? NULL : o;
    return error;
}

static int begin_broadcast(void **handle, qn_ranks_group *group, void *data, size_t bytes,
                           int root) {
    const operation like = {.kind = BROADCAST, .peer = root, .to = data, .bytes = {bytes}};
    return begin(handle, group, &like, data, bytes);
}

static int begin_all_gather(void **handle, qn_ranks_group *group, void *to, const void *from,
                            const size_t *bytes) {
    operation like = {.kind = ALL_GATHER, .to = to};
    memcpy(like.bytes, bytes, (size_t)group->world->n * sizeof *bytes);
    return begin(handle, group, &like, from, bytes[group->rank]);
}

static int begin_send(void **handle, qn_ranks_group *group, const void *data, size_t bytes, int to,
                      int tag) {
    const operation like = {.kind = SEND, .peer = to, .tag = tag};
    return begin(handle, group, &like, data, bytes);
}

static int begin_receive(void **handle, qn_ranks_group *group, void *data, size_t bytes, int from,
                         int tag) {
    const operation like = {
        .kind = RECEIVE, .peer = from, .tag = tag, .to = data, .bytes = {bytes}};
    return begin(handle, group, &like, data, 0);
}

static int test(bool *is_done, void **handle, qn_ranks_group *group) {
    threads_world *world = group->world;
    operation *o = *handle;
    int error = 0;
    pthread_mutex_lock(&world->lock);
    claim_all(group);
    if (world->has_ended[group->rank])
        error = ENDED;
    else if ((*is_done = is_ready(group, o)))
        error = complete(group, o);
    if (*is_done || error) end_operation(group, o);
    pthread_mutex_unlock(&world->lock);
    return error;
}

// --- joining and leaving -------------------------------------------------------------------------

static int open_seat(qn_ranks_group **out, qn_ranks_place *place, const qn_ranks_opening *opening) {
    qn_ranks_group *group = opening->arg;
    const int n = group->world->n;
    *place = (qn_ranks_place){.rank = group->rank, .n_ranks = n, .n_sharing = n};
    *out = group;
    return 0;
}

static void close_seat(qn_ranks_group *group, bool is_failed) {
    threads_world *world = group->world;
    pthread_mutex_lock(&world->lock);
    world->has_ended[group->rank] |= is_failed;
    while (group->open) end_operation(group, group->open);
    pthread_mutex_unlock(&world->lock);
}

static bool has_ended(qn_ranks_group *group, int rank) {
    pthread_mutex_lock(&group->world->lock);
    const bool is_so = group->world->has_ended[rank];
    pthread_mutex_unlock(&group->world->lock);
    return is_so;
}

void threads_rank_end(qn_ranks_group *group) {
    pthread_mutex_lock(&group->world->lock);
    group->world->has_ended[group->rank] = true;
    pthread_mutex_unlock(&group->world->lock);
}

threads_world *threads_world_create(const threads_world_opts *opts) {
    threads_world *world = calloc(1, sizeof *world);
    assert_non_null(world);
    assert_in_range(opts->n, 1, MAX_RANKS);
    pthread_mutex_init(&world->lock, NULL);
    world->n = opts->n;
    world->is_synchronous = opts->is_synchronous;
    world->api = (qn_ranks_api){.version = QN_RANKS_API_VERSION,
                                .name = "threads",
                                .max_bytes = opts->max_bytes ? opts->max_bytes : SIZE_MAX,
                                .explain = explain,
                                .open = open_seat,
                                .close = close_seat,
                                .broadcast = begin_broadcast,
                                .all_gather = begin_all_gather,
                                .send = begin_send,
                                .receive = begin_receive,
                                .test = test,
                                .has_ended = has_ended};
    for (int i = 0; i < opts->n; i++) {
        world->seats[i].world = world;
        world->seats[i].rank = i;
    }
    return world;
}

void threads_world_destroy(threads_world *world) {
    for (int i = 0; i < world->n * world->n; i++) {
        message **list = &world->messages[i / world->n][i % world->n];
        while (*list) take_out(list, *list);
    }
    while (world->meetings) {
        meeting *m = world->meetings;
        world->meetings = m->next;
        for (int i = 0; i < world->n; i++) drop(m->parts[i]);
        free(m);
    }
    pthread_mutex_destroy(&world->lock);
    free(world);
}

const qn_ranks_api *threads_world_api(const threads_world *world) { return &world->api; }

void *threads_world_seat(threads_world *world, int rank) { return &world->seats[rank]; }

// --- running -------------------------------------------------------------------------------------

typedef struct runner {
    pthread_t thread;
    const qn_ranks_opts *opts;
    threads_fn *fn;
    void *arg;
    threads_end *end;
} runner;

static void *run_rank(void *arg) {
    const runner *r = arg;
    qn_ranks *ranks = NULL;
    r->end->status = qn_ranks_join(&ranks, r->opts, &r->end->err);
    if (r->end->status) return NULL;
    r->end->status = r->fn(ranks, r->arg, &r->end->err);
    r->end->tells = qn_ranks_tells(ranks);
    qn_ranks_leave(ranks);
    return NULL;
}

void threads_run(threads_end *ends, int n, const qn_ranks_opts *opts, threads_fn *fn, void *arg) {
    runner runners[MAX_RANKS];
    memset(ends, 0, (size_t)n * sizeof *ends);
    for (int i = 0; i < n; i++) {
        runners[i] = (runner){.opts = &opts[i], .fn = fn, .arg = arg, .end = &ends[i]};
        assert_true(qn_thread_start(&runners[i].thread, run_rank, &runners[i]));
    }
    for (int i = 0; i < n; i++) assert_int_equal(pthread_join(runners[i].thread, NULL), 0);
}

void threads_run_plain(threads_end *ends, const threads_world_opts *world, threads_fn *fn,
                       void *arg) {
    threads_world *w = threads_world_create(world);
    qn_ranks_opts opts[MAX_RANKS];
    for (int i = 0; i < world->n; i++)
        opts[i] = (qn_ranks_opts){.api = threads_world_api(w), .api_arg = threads_world_seat(w, i)};
    threads_run(ends, world->n, opts, fn, arg);
    threads_world_destroy(w);
}

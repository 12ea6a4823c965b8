// The table of ranks_api.h in MPI's words.
#include "ranks/mpi/mpi_group.h"

#include <stdlib.h>
#include <string.h>

// Than two for each rank, one that listens and one that tells: for each row that a batch has under
// way, whose logits may go in a message of their own.
enum { MORE_SLOTS = 4096 };

static const struct {
    int class;
    const char *text;
} classes[] = {
    {MPI_ERR_TRUNCATE, "a message is longer than what it is received in"},
    {MPI_ERR_NO_MEM, "MPI is out of memory"},
    {MPI_ERR_INTERN, "an error inside MPI"},
    {MPI_ERR_OTHER, "an error that MPI does not name"},
    {MPI_ERR_COMM, "MPI does not know the communicator"},
    {MPI_ERR_REQUEST, "MPI does not know the request"},
};

static const char *explain(int error) {
    static const char *const own[] = {
#define TEXT(name, text) text,
        QN_MPI_OWN_ERRORS(TEXT)
#undef TEXT
    };
    int class = MPI_ERR_UNKNOWN;
    if (error > QN_MPI_LOWEST && error < QN_MPI_HIGHEST) return own[error - QN_MPI_LOWEST - 1];
    MPI_Error_class(error, &class);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++) {
        if (classes[i].class == class) return classes[i].text;
    }
    return "a call of MPI failed";
}

// --- operations ----------------------------------------------------------------------------------

static qn_mpi_operation *take_slot(qn_ranks_group *group) {
    qn_mpi_operation *o = group->free;
    if (!o) return NULL;
    group->free = o->next;
    o->request = MPI_REQUEST_NULL;
    o->bytes = -1;
    o->is_open = true;
    return o;
}

static void give_slot(qn_ranks_group *group, qn_mpi_operation *o) {
    o->is_open = false;
    o->next = group->free;
    group->free = o;
}

// `error` is that of the call that began it.
static int begun(void **handle, qn_ranks_group *group, qn_mpi_operation *o, int error) {
    if (error)
        give_slot(group, o);
    else
        *handle = o;
    return error;
}

static int begin_broadcast(void **handle, qn_ranks_group *group, void *data, size_t bytes,
                           int root) {
    qn_mpi_operation *o = take_slot(group);
    if (!o) return QN_MPI_NO_SLOT;
    const int error = MPI_Ibcast(data, (int)bytes, MPI_BYTE, root, group->comm, &o->request);
    return begun(handle, group, o, error);
}

// In place on all ranks, as MPI wants it of all or of none.
static int begin_all_gather(void **handle, qn_ranks_group *group, void *to, const void *from,
                            const size_t *bytes) {
    qn_mpi_operation *o = take_slot(group);
    int at = 0;
    if (!o) return QN_MPI_NO_SLOT;
    for (int i = 0; i < group->place.n_ranks; i++) {
        group->counts[i] = (int)bytes[i];
        group->starts[i] = at;
        at += group->counts[i];
    }
    char *own = (char *)to + group->starts[group->place.rank];
    if (own != from && bytes[group->place.rank]) memcpy(own, from, bytes[group->place.rank]);
    const int error = MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_BYTE, to, group->counts, group->starts,
                                      MPI_BYTE, group->comm, &o->request);
    return begun(handle, group, o, error);
}

static int begin_send(void **handle, qn_ranks_group *group, const void *data, size_t bytes, int to,
                      int tag) {
    qn_mpi_operation *o = take_slot(group);
    if (!o) return QN_MPI_NO_SLOT;
    const int error = MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, group->comm, &o->request);
    return begun(handle, group, o, error);
}

static int begin_receive(void **handle, qn_ranks_group *group, void *data, size_t bytes, int from,
                         int tag) {
    qn_mpi_operation *o = take_slot(group);
    if (!o) return QN_MPI_NO_SLOT;
    o->bytes = (int)bytes;
    const int error = MPI_Irecv(data, (int)bytes, MPI_BYTE, from, tag, group->comm, &o->request);
    return begun(handle, group, o, error);
}

static int test(bool *is_done, void **handle, qn_ranks_group *group) {
    qn_mpi_operation *o = *handle;
    MPI_Status status;
    int is_over = 0, bytes = 0;
    int error = MPI_Test(&o->request, &is_over, &status);
    if (!error && !is_over) return 0;
    if (!error && o->bytes >= 0) {
        error = MPI_Get_count(&status, MPI_BYTE, &bytes);
        if (!error && bytes != o->bytes) error = QN_MPI_SHORT;
    }
    give_slot(group, o);
    *is_done = !error;
    return error;
}

// --- joining and leaving -------------------------------------------------------------------------

static void release(qn_ranks_group *group) {
    qn_mpi_stop_watching(group);
    free(group->pids);
    free(group->watches);
    free(group->counts);
    free(group->starts);
    free(group->slots);
    free(group);
}

static int give_room(qn_ranks_group *group) {
    const size_t n = (size_t)group->place.n_ranks;
    group->n_slots = 2 * group->place.n_ranks + MORE_SLOTS;
    group->pids = calloc(n, sizeof *group->pids);
    group->watches = calloc(n, sizeof *group->watches);
    group->counts = calloc(n, sizeof *group->counts);
    group->starts = calloc(n, sizeof *group->starts);
    group->slots = calloc((size_t)group->n_slots, sizeof *group->slots);
    for (size_t i = 0; group->watches && i < n; i++) group->watches[i] = -1;
    if (!group->pids || !group->watches || !group->counts || !group->starts || !group->slots)
        return QN_MPI_NO_MEMORY;
    for (int i = 0; i < group->n_slots; i++) give_slot(group, &group->slots[i]);
    return 0;
}

static int check_tags(const qn_ranks_group *group) {
    int is_known = 0;
    const int *max = NULL;
    const int error = MPI_Comm_get_attr(group->comm, MPI_TAG_UB, &max, &is_known);
    if (error) return error;
    return is_known && *max > QN_RANKS_MAX_TAG ? 0 : QN_MPI_NO_TAGS;
}

// A communicator of our own, so that no message of others is taken for ours.
static int join(qn_ranks_group *group) {
    int error = qn_mpi_start();
    if (!error) error = MPI_Comm_dup(MPI_COMM_WORLD, &group->comm);
    if (!error) error = MPI_Comm_set_errhandler(group->comm, MPI_ERRORS_RETURN);
    if (!error) error = MPI_Comm_rank(group->comm, &group->place.rank);
    if (!error) error = MPI_Comm_size(group->comm, &group->place.n_ranks);
    if (!error) error = check_tags(group);
    if (!error) error = give_room(group);
    return error ? error : qn_mpi_meet(group);
}

static int open_group(qn_ranks_group **out, qn_ranks_place *place,
                      const qn_ranks_opening *opening) {
    qn_ranks_group *group = calloc(1, sizeof *group);
    if (!group) return QN_MPI_NO_MEMORY;
    qn_mpi_note_open();
    const int error = qn_mpi_try(join, group, opening->limit_ms);
    if (error) {
        qn_mpi_note_closed(true);
        if (error != QN_RANKS_LATE) release(group); // or it is in use
        return error;
    }
    *place = group->place;
    *out = group;
    return 0;
}

static void give_up_receives(qn_ranks_group *group) {
    for (int i = 0; i < group->n_slots; i++) {
        qn_mpi_operation *o = &group->slots[i];
        if (!o->is_open || o->bytes < 0) continue;
        MPI_Cancel(&o->request);
        MPI_Wait(&o->request, MPI_STATUS_IGNORE);
    }
}

// After a failure operations are under way that will not end, with memory of the group; it stays.
static void close_group(qn_ranks_group *group, bool is_failed) {
    qn_mpi_note_closed(is_failed);
    if (is_failed) return;
    give_up_receives(group);
    MPI_Comm_free(&group->comm);
    release(group);
}

qn_ranks_api_fn qn_ranks_api_get;
__attribute__((visibility("default"))) const qn_ranks_api *qn_ranks_api_get(void) {
    static const qn_ranks_api api = {
        .version = QN_RANKS_API_VERSION,
        .name = "mpi",
        .max_bytes = 1 << 30, // MPI counts in int
        .explain = explain,
        .open = open_group,
        .close = close_group,
        .broadcast = begin_broadcast,
        .all_gather = begin_all_gather,
        .send = begin_send,
        .receive = begin_receive,
        .test = test,
        .has_ended = qn_mpi_has_ended,
    };
    return &api;
}

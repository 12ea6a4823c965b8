// Models by name: which there are, which are open, and who uses them.
//
// A model is opened when a request names it, on that request's thread, while others go on. When
// memory would not hold it beside those that are open, the least recently used one without a user is
// closed first.
#ifndef QN_SERVER_REGISTRY_H
#define QN_SERVER_REGISTRY_H

#include "server/served.h"

#include <time.h>

typedef enum qn_entry_state { QN_ENTRY_CLOSED, QN_ENTRY_OPENING, QN_ENTRY_OPEN } qn_entry_state;

typedef struct qn_entry {
    char *name, *path; // owned
    int64_t file_bytes;
    time_t modified;
    qn_entry_state state;
    qn_served *served; // of one that is open
    int64_t n_users, last_used;
    struct qn_registry *registry;
} qn_entry;

// Caller storage.
typedef struct qn_registry {
    qn_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    qn_entry **entries; // (n), owned; in the order of names
    size_t n;
    bool is_open;
} qn_registry;

QN_MUST_CHECK qn_status qn_registry_init(qn_registry *registry, qn_server *server, qn_err *err);
// No model may have a user.
void qn_registry_deinit(qn_registry *registry);

// The model of that name, open; NULL or "": the only one, or the one that was named to the server.
// One user more, until qn_entry_leave. QN_ARGUMENT: there is none of this name.
QN_MUST_CHECK qn_status qn_registry_take(qn_entry **out, qn_registry *registry, const char *name,
                                         qn_err *err);
void qn_entry_leave(qn_entry *entry);

// What can be said of an entry without opening it.
typedef struct qn_entry_info {
    char name[256], path[1024];
    int64_t file_bytes;
    time_t modified;
    bool is_open;
    int64_t context, n_users; // of one that is open
    int64_t n_parameters, n_vocab, width, trained_context;
    bool has_vision, has_thinking, has_tools;
    char architecture[64];
} qn_entry_info;
// False after the last.
bool qn_registry_info(qn_entry_info *out, qn_registry *registry, size_t i);

// Sums over the batches of all models that are open; returns how many these are.
int64_t qn_registry_counts(qn_registry *registry, qn_batch_counts *out);

#endif

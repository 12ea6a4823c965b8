// Models by name: which there are, which are open, and who uses them.
//
// A model is opened when a request names it, on that request's thread, while others go on. What it
// will take of memory is known before: when that does not fit beside those that are open, the least
// recently used ones without a user are closed first. A folder of models is looked at again when a
// name is not found, and when models are listed.
#ifndef QN_SERVER_REGISTRY_H
#define QN_SERVER_REGISTRY_H

#include "server/metrics.h"
#include "server/model_facts.h"
#include "server/served.h"

#include <time.h>

typedef enum qn_offer_state {
    QN_OFFER_CLOSED,
    QN_OFFER_WAITING, // for room: nothing of the memory is its own yet
    QN_OFFER_OPENING, // room was granted
    QN_OFFER_OPEN,
    QN_OFFER_CLOSING
} qn_offer_state;

typedef struct qn_offer {
    char *name, *path; // owned
    int64_t file_bytes;
    time_t modified;

    // Guarded by the registry's lock.
    qn_offer_state state;
    qn_served *served; // of one that is open
    // Requests that use it or wait for it; whoever reads its files; one with none may be closed
    int64_t n_users;
    int64_t last_used;
    int64_t state_bytes; // of one that is open or being opened: its KV cache and state may grow to
                         // that
    bool is_known;       // there are facts, or an error
    bool is_read;        // somebody reads them
    qn_facts facts;
    char problem[256];  // why it cannot be opened; "": nothing is known against it
    qn_status fault;    // the same as a status
    char no_draft[256]; // why drafts cannot be for it; "": the same
    bool was_open;
    bool is_seen; // while the folder is looked at: it is still there
    struct qn_registry *registry;
    qn_metrics metrics; // of its answers, by anybody
} qn_offer;

// Caller storage.
typedef struct qn_registry {
    qn_server *server;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    qn_offer **entries; // (n), owned; in the order of names
    size_t n;
    qn_offer *own;       // the model that was named to the server; NULL: those of the folder alone
    qn_metrics gone;     // of models that are no longer there
    int64_t draft_bytes; // that a draft model takes beside each model
    bool is_open;
    bool is_public; // clients ask: set before the first can
} qn_registry;

QN_MUST_CHECK qn_status qn_registry_init(qn_registry *registry, qn_server *server, qn_err *err);
// No model may have a user.
void qn_registry_deinit(qn_registry *registry);

// The model of that name, open; NULL or "": the only one, or the one that was named to the server.
// A tag ":latest" at the end of the name is left off. One user more, until qn_offer_leave.
// QN_ARGUMENT: there is none of this name. QN_MEMORY: it does not fit. QN_LIMIT: not now, as others
// are in use. QN_STATE: the draft model does not fit it. All others: it cannot be opened, whatever
// is wrong with it.
QN_MUST_CHECK qn_status qn_registry_take(qn_offer **out, qn_registry *registry, const char *name,
                                         qn_err *err);
// The same without opening it: served is NULL unless it is open.
QN_MUST_CHECK qn_status qn_registry_hold(qn_offer **out, qn_registry *registry, const char *name,
                                         qn_err *err);
void qn_offer_leave(qn_offer *entry);
// It is in use now, for whoever looks for the least recently used one.
void qn_offer_touch(qn_offer *entry);

// What can be said of an entry without opening it.
typedef struct qn_offer_info {
    char name[256], path[1024];
    int64_t file_bytes;
    time_t modified;
    bool is_open;
    // Of one that is open: answers at a time, memory of their KV cache and state, and of all
    // together
    int64_t rows, state_bytes;
    int64_t n_users, bytes;
    int64_t last_used; // nanoseconds on qn_clock_ns; 0: never
    bool is_known;     // what follows is
    int64_t context;   // max tokens of a request
    int64_t n_parameters, n_vocab, width, trained_context;
    bool has_vision, has_thinking, has_tools;
    char architecture[64];
    qn_facts facts;
    // Why it cannot be opened, for whoever runs the server; "": nothing is known against it.
    // Clients get `fault`, a constant, which says the same without the file's path and content.
    char problem[256];
    const char *fault;
} qn_offer_info;
// What is wrong with a file, in words that are for everybody.
const char *qn_fault_words(qn_status status);
// False after the last. Only what is known already: see qn_registry_refresh.
bool qn_registry_info(qn_offer_info *out, qn_registry *registry, size_t i);
void qn_offer_get_info(qn_offer_info *out, qn_offer *entry);
// Looks at the folder again, and reads what is not known yet of any model, which takes a while: on
// a worker, whose place another one takes meanwhile. When too many wait already, what is known
// stays.
void qn_registry_refresh(qn_registry *registry);
// The same for one, that the caller is a user of.
void qn_offer_refresh(qn_offer *entry);

// Sums over the batches of all models that are open; returns how many these are.
int64_t qn_registry_counts(qn_registry *registry, qn_batch_counts *out);
// (n) what was counted of each model that was open once, owned (qn_free); in *all the sum, with
// models that are gone.
QN_MUST_CHECK qn_status qn_registry_metrics(qn_model_metrics **out, size_t *n,
                                            qn_model_metrics *all, qn_registry *registry,
                                            qn_err *err);
// False: steps of a model that is open fail again and again.
bool qn_registry_is_well(qn_registry *registry);

#endif

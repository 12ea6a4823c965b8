#include "server/registry.h"

#include "core/machine.h"
#include "core/mem.h"
#include "core/printable.h"
#include "server/shelf.h"
#include "server/server_int.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

// --- entries -------------------------------------------------------------------------------------

static void destroy_entry(qn_offer *e) {
    if (!e) return;
    qn_served_close(e->served);
    qn_free(e->name);
    qn_free(e->path);
    qn_free(e);
}

static int by_name(const void *a, const void *b) {
    const qn_offer *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

// With the lock, or before there are others. Takes over the name, whatever happens.
static qn_status add_entry(qn_registry *r, char *name, const char *path, qn_err *err) {
    qn_offer *e = qn_alloc(1, sizeof *e);
    qn_offer **grown = qn_realloc(r->entries, r->n + 1, sizeof *grown);
    if (grown) r->entries = grown;
    if (e) {
        e->registry = r;
        e->path = strdup(path);
        e->name = name;
    }
    if (!grown || !e || !e->path || !name) {
        if (!e) qn_free(name);
        destroy_entry(e);
        return QN_NOMEM(err, "a model");
    }
    r->entries[r->n++] = e;
    return QN_OK;
}

static qn_status add_own(qn_registry *r, const char *path, const char *alias, qn_err *err) {
    struct stat info;
    QN_TRY(add_entry(r, alias ? strdup(alias) : qn_model_name(path), path, err));
    r->own = r->entries[r->n - 1];
    if (stat(path, &info) == 0) {
        r->own->file_bytes = S_ISREG(info.st_mode) ? info.st_size : 0;
        r->own->modified = info.st_mtime;
    }
    return QN_OK;
}

// --- the folder ----------------------------------------------------------------------------------

static qn_offer *find_path(const qn_registry *r, const char *path) {
    for (size_t i = 0; i < r->n; i++) {
        if (strcmp(r->entries[i]->path, path) == 0) return r->entries[i];
    }
    return NULL;
}

// With the lock: one that is there now.
static qn_status merge_one(qn_registry *r, const qn_found *f, qn_err *err) {
    qn_offer *e = find_path(r, f->path);
    if (!e) {
        char *name = strdup(f->name);
        QN_TRY(add_entry(r, name, f->path, err));
        e = r->entries[r->n - 1];
    }
    e->is_seen = true;
    const bool is_same = e->modified == f->modified && e->file_bytes == f->file_bytes;
    if (is_same || e->state != QN_OFFER_CLOSED) return QN_OK;
    e->modified = f->modified;
    e->file_bytes = f->file_bytes;
    e->is_known = false;
    *e->no_draft = 0;
    return QN_OK;
}

// With the lock: forgets those that are gone, unless somebody uses them.
static void drop_unseen(qn_registry *r) {
    size_t n = 0;
    for (size_t i = 0; i < r->n; i++) {
        qn_offer *e = r->entries[i];
        const bool is_idle = e->state == QN_OFFER_CLOSED && e->n_users == 0;
        const bool is_gone = e != r->own && !e->is_seen && is_idle;
        if (!is_gone) r->entries[n++] = e;
        if (!is_gone) continue;
        qn_metrics_merge(&r->gone, &e->metrics);
        destroy_entry(e);
    }
    r->n = n;
}

// Looks at the folder, without the lock.
static qn_status scan(qn_registry *r, qn_err *err) {
    qn_found *found = NULL;
    size_t n = 0;
    if (!r->server->opts.folder) return QN_OK;
    QN_TRY(qn_shelf_list(&found, &n, r->server->opts.folder, err));
    qn_status status = QN_OK;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) r->entries[i]->is_seen = false;
    for (size_t i = 0; i < n && !status; i++) status = merge_one(r, &found[i], err);
    if (!status) drop_unseen(r);
    if (r->n) qsort(r->entries, r->n, sizeof(qn_offer *), by_name);
    pthread_mutex_unlock(&r->lock);
    qn_found_destroy(found, n);
    return status;
}

// --- faults --------------------------------------------------------------------------------------

const char *qn_fault_words(qn_status status) {
    static const char *const words[QN_STATUS_COUNT] = {
        [QN_IO] = "its file cannot be read",
        [QN_FORMAT] = "its file is damaged, or no model",
        [QN_UNSUPPORTED] = "its file needs something that this server does not have",
        [QN_MEMORY] = "memory is short"};
    return words[status] ? words[status] : "its file cannot be used";
}

static void say_fault(const char *name, qn_status status, qn_status fault, qn_err *err) {
    qn_err_set(err, status, __FILE__, __LINE__,
               "the model '%.80s' cannot be opened: %s; the server's log says more", name,
               qn_fault_words(fault));
}

// Errors of files tell their paths and what they begin with, which clients must not know: they get
// the kind of fault, the log gets the rest. Before the server listens, whoever starts it gets all.
static qn_status hide(qn_registry *r, const char *name, qn_status status, qn_err *err) {
    if (!status || !r->is_public) return status;
    qn_logger_say(&r->server->logger, "error", "%s: %s", name, err->message);
    const char *draft = status == QN_STATE ? strstr(err->message, QN_DRAFT_MISFIT) : NULL;
    if (draft) { // without the path of the draft model
        char why[sizeof err->message];
        qn_text_cut(why, sizeof why, draft);
        return QN_FAIL(err, STATE, "the model '%.80s' cannot be opened: the draft model %s", name,
                       why);
    }
    say_fault(name, status, status, err);
    return status;
}

// --- facts ---------------------------------------------------------------------------------------

// With the lock, which is given up meanwhile: reads what is not known, unless somebody does.
static void learn(qn_registry *r, qn_offer *e) {
    qn_facts facts;
    qn_err err;
    while (e->is_read) pthread_cond_wait(&r->changed, &r->lock);
    if (e->is_known) return;
    e->is_read = true;
    pthread_mutex_unlock(&r->lock);
    const qn_status status = qn_facts_read(&facts, r->server, e->path, &err);
    if (status && status != QN_MEMORY && r->server->opts.folder)
        qn_logger_say(&r->server->logger, "warning", "the model '%.80s' cannot be opened: %s",
                      e->name, err.message);
    pthread_mutex_lock(&r->lock);
    if (!status) e->facts = facts;
    qn_text_cut(e->problem, sizeof e->problem, status ? err.message : "");
    e->fault = status;
    e->is_known = status != QN_MEMORY; // which may be there the next time
    e->is_read = false;
    pthread_cond_broadcast(&r->changed);
}

// With the lock, which is given up meanwhile.
static void learn_aside(qn_registry *r, qn_offer *e) {
    if (e->is_known || !qn_workers_pause(&r->server->workers)) return;
    learn(r, e);
    qn_workers_resume(&r->server->workers);
}

// With the lock: one user less. Who waits for room may have it now.
static void let_go(qn_registry *r, qn_offer *e) {
    e->n_users--;
    pthread_cond_broadcast(&r->changed);
}

void qn_offer_refresh(qn_offer *e) {
    qn_registry *r = e->registry;
    pthread_mutex_lock(&r->lock);
    learn_aside(r, e);
    pthread_mutex_unlock(&r->lock);
}

void qn_registry_refresh(qn_registry *r) {
    qn_err err;
    if (scan(r, &err)) qn_logger_say(&r->server->logger, "error", "%s", err.message);
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        qn_offer *e = r->entries[i];
        e->n_users++; // it stays meanwhile
        learn_aside(r, e);
        let_go(r, e);
    }
    pthread_mutex_unlock(&r->lock);
}

// --- life ----------------------------------------------------------------------------------------

qn_status qn_registry_init(qn_registry *r, qn_server *server, qn_err *err) {
    const qn_server_opts *o = &server->opts;
    *r = (qn_registry){.server = server};
    if (pthread_mutex_init(&r->lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    if (pthread_cond_init(&r->changed, NULL) != 0) {
        pthread_mutex_destroy(&r->lock);
        return QN_NOMEM(err, "a lock");
    }
    r->is_open = true;
    qn_facts draft = {0};
    qn_status status = scan(r, err);
    if (!status && o->folder && r->n == 0)
        status = QN_FAIL(err, IO, "--models: there is no model in '%s'", o->folder);
    if (!status && o->model) status = add_own(r, o->model, o->alias, err);
    if (!status && o->folder && o->draft) status = qn_facts_read(&draft, server, o->draft, err);
    r->draft_bytes = draft.weights + draft.activations + draft.row_state;
    if (status) qn_registry_deinit(r);
    return status;
}

void qn_registry_deinit(qn_registry *r) {
    if (!r->is_open) return;
    for (size_t i = 0; i < r->n; i++) destroy_entry(r->entries[i]);
    qn_free(r->entries);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    *r = (qn_registry){0};
}

// --- memory --------------------------------------------------------------------------------------

// What a model takes once it is open, without what its requests keep.
static int64_t fixed_bytes(const qn_offer *e) {
    return e->facts.weights + e->facts.activations + e->registry->draft_bytes;
}

// With the lock: what other models will still take of the memory that is free now. State counts as
// a whole, as it is taken while requests come. Those that wait for room themselves take nothing, or
// two that are asked for at once would refuse each other.
static int64_t promised_bytes(const qn_registry *r, const qn_offer *without) {
    int64_t sum = 0;
    for (size_t i = 0; i < r->n; i++) {
        const qn_offer *e = r->entries[i];
        if (e == without) continue;
        if (e->state == QN_OFFER_OPENING || e->state == QN_OFFER_OPEN) sum += e->state_bytes;
        if (e->state == QN_OFFER_OPENING) sum += fixed_bytes(e);
    }
    return sum;
}

// With the lock: sets e->state_bytes. *left are the bytes that the model may take; false: it needs
// more.
static bool fits(int64_t *left, qn_registry *r, qn_offer *e) {
    enum { MAX_ROWS = 64, SHARE = 4 }; // of what its weights leave; not tuned
    int64_t available;
    e->state_bytes = r->server->opts.memory;
    // For one model alone the library knows what to do, and to say.
    if (!r->server->opts.folder || !qn_machine_free_memory(&available)) return true;
    *left = available - promised_bytes(r, e);
    if (!e->state_bytes) {
        const int64_t row = e->facts.row_state, share = (*left - fixed_bytes(e)) / SHARE;
        const int64_t most = row > INT64_MAX / MAX_ROWS ? INT64_MAX : row * MAX_ROWS;
        e->state_bytes = share < row ? row : share > most ? most : share;
    }
    return fixed_bytes(e) <= *left && e->state_bytes <= *left - fixed_bytes(e);
}

static qn_status refuse_size(const qn_offer *e, int64_t left, bool is_busy, qn_err *err) {
    static const double mib = 1 << 20;
    const int64_t need = fixed_bytes(e) + e->state_bytes;
    qn_err_set(err, is_busy ? QN_LIMIT : QN_MEMORY, __FILE__, __LINE__,
               "the model '%.80s' needs %.1f MiB of memory (%.1f for its weights, %.1f for state), "
               "%.1f MiB are free%s",
               e->name, (double)need / mib, (double)e->facts.weights / mib,
               (double)e->state_bytes / mib, (double)(left < 0 ? 0 : left) / mib,
               is_busy ? " beside models that are in use; try again later" : "");
    return is_busy ? QN_LIMIT : QN_MEMORY;
}

// With the lock: closes the least recently used model without a user. False: there is none.
static bool close_one(qn_registry *r) {
    qn_offer *oldest = NULL;
    for (size_t i = 0; i < r->n; i++) {
        qn_offer *e = r->entries[i];
        if (e->state != QN_OFFER_OPEN || e->n_users) continue;
        if (!oldest || e->last_used < oldest->last_used) oldest = e;
    }
    if (!oldest) return false;
    qn_served *served = oldest->served;
    oldest->served = NULL;
    oldest->state = QN_OFFER_CLOSING; // nobody takes it meanwhile
    pthread_mutex_unlock(&r->lock);
    qn_logger_say(&r->server->logger, "info", "closing %s to make room", oldest->name);
    qn_served_close(served);
    qn_server_trim_soon(r->server);
    pthread_mutex_lock(&r->lock);
    oldest->state = QN_OFFER_CLOSED;
    oldest->state_bytes = 0;
    pthread_cond_broadcast(&r->changed);
    return true;
}

// With the lock: others that are in one of these states.
static bool has_others(const qn_registry *r, const qn_offer *without, unsigned states) {
    for (size_t i = 0; i < r->n; i++) {
        if (r->entries[i] != without && states >> r->entries[i]->state & 1) return true;
    }
    return false;
}

static struct timespec seconds_from_now(time_t seconds) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += seconds;
    return until;
}

// With the lock, which is given up meanwhile. Models that are being opened or closed come to their
// end, and are waited for. Answers that are ending let go of their models soon: these are waited
// for, for a moment.
static qn_status make_room(qn_registry *r, qn_offer *e, qn_err *err) {
    enum {
        SECONDS = 2,
        CHANGING = 1 << QN_OFFER_OPENING | 1 << QN_OFFER_CLOSING,
        OPEN = 1 << QN_OFFER_OPEN
    };
    int64_t left = 0;
    struct timespec until = seconds_from_now(SECONDS);
    while (!fits(&left, r, e)) {
        if (close_one(r)) continue;
        if (has_others(r, e, CHANGING)) {
            pthread_cond_wait(&r->changed, &r->lock);
            until = seconds_from_now(SECONDS);
            continue;
        }
        if (!has_others(r, e, OPEN)) return refuse_size(e, left, false, err);
        if (pthread_cond_timedwait(&r->changed, &r->lock, &until) == ETIMEDOUT)
            return refuse_size(e, left, true, err);
    }
    return QN_OK;
}

// --- taking --------------------------------------------------------------------------------------

static qn_offer *find_exactly(const qn_registry *r, const char *name, size_t n) {
    for (size_t i = 0; i < r->n; i++) {
        const char *own = r->entries[i]->name;
        if (strlen(own) == n && memcmp(own, name, n) == 0) return r->entries[i];
    }
    return NULL;
}

// With the lock. The model that was named to the server answers to any name if it is alone, as
// clients have names of other models built in.
static qn_offer *find(const qn_registry *r, const char *name) {
    static const char tag[] = ":latest";
    const size_t n = name ? strlen(name) : 0, n_tag = sizeof tag - 1;
    if (n == 0 && r->own) return r->own;
    if (n == 0) return r->n == 1 ? r->entries[0] : NULL;
    qn_offer *e = find_exactly(r, name, n);
    if (!e && n > n_tag && memcmp(name + n - n_tag, tag, n_tag) == 0)
        e = find_exactly(r, name, n - n_tag);
    return e || r->n > 1 ? e : r->own;
}

static qn_status refuse_name(const qn_registry *r, const char *name, qn_err *err) {
    char known[300] = "";
    size_t used = 0;
    for (size_t i = 0; i < r->n && used < sizeof known - 1; i++) {
        if (*r->entries[i]->problem) continue;
        const int n = snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "",
                               r->entries[i]->name);
        used += n > 0 ? (size_t)n : 0;
    }
    if (!name || !*name)
        return QN_FAIL(err, ARGUMENT, "the request names no model; there are %s", known);
    return QN_FAIL(err, ARGUMENT, "there is no model '%.80s'; there are %s", name, known);
}

// What the opening of a model says of its file must not be taken for a wrong name, or for a lack of
// room.
static qn_status open_served(qn_served **out, qn_registry *r, const qn_offer *e, qn_err *err) {
    qn_status status = qn_served_open(out, r->server, e->path, e->state_bytes, err);
    if (status == QN_ARGUMENT || status == QN_LIMIT) status = err->status = QN_UNSUPPORTED;
    return hide(r, e->name, status, err);
}

// With the lock: what is known against a file; the log has it since it is known.
static qn_status refuse_fault(const qn_registry *r, const qn_offer *e, qn_err *err) {
    if (!r->is_public) return QN_FAIL(err, FORMAT, "%s", e->problem);
    say_fault(e->name, QN_FORMAT, e->fault, err);
    return QN_FORMAT;
}

// With the lock, which is given up meanwhile.
static qn_status open_entry(qn_registry *r, qn_offer *e, qn_err *err) {
    qn_served *served = NULL;
    if (*e->no_draft) return QN_FAIL(err, STATE, "%s", e->no_draft);
    e->state = QN_OFFER_WAITING;
    if (r->server->opts.folder) learn(r, e); // one model alone is opened as it is
    qn_status status = *e->problem ? refuse_fault(r, e, err) : make_room(r, e, err);
    if (!status) e->state = QN_OFFER_OPENING;
    while (!status) {
        pthread_mutex_unlock(&r->lock);
        status = open_served(&served, r, e, err);
        pthread_mutex_lock(&r->lock);
        if (status == QN_STATE && err) qn_text_cut(e->no_draft, sizeof e->no_draft, err->message);
        if (status != QN_MEMORY || !close_one(r)) break;
        status = QN_OK; // once more, with the room of that one
    }
    if (!status) learn(r, e);
    e->served = served;
    e->state = status ? QN_OFFER_CLOSED : QN_OFFER_OPEN;
    e->was_open |= !status;
    if (status) e->state_bytes = 0;
    pthread_cond_broadcast(&r->changed);
    return status;
}

// With the lock, which is given up meanwhile: opens what is not open.
static qn_status wait_for(qn_registry *r, qn_offer *e, qn_err *err) {
    if (e->state == QN_OFFER_OPEN) return QN_OK;
    if (!qn_workers_pause(&r->server->workers))
        return QN_FAIL(err, LIMIT, "%d requests wait for models already", QN_MAX_WORKERS);
    while (e->state != QN_OFFER_CLOSED && e->state != QN_OFFER_OPEN)
        pthread_cond_wait(&r->changed, &r->lock);
    const qn_status status = e->state == QN_OFFER_CLOSED ? open_entry(r, e, err) : QN_OK;
    qn_workers_resume(&r->server->workers);
    return status;
}

static qn_status take(qn_offer **out, qn_registry *r, const char *name, bool opens, qn_err *err) {
    pthread_mutex_lock(&r->lock);
    qn_offer *e = find(r, name);
    if (!e && r->server->opts.folder) { // it may be new
        pthread_mutex_unlock(&r->lock);
        const qn_status scanned = scan(r, err);
        if (scanned) return hide(r, name ? name : "", scanned, err);
        pthread_mutex_lock(&r->lock);
        e = find(r, name);
    }
    qn_status status = e ? QN_OK : refuse_name(r, name, err);
    if (e) e->n_users++; // from now on it stays
    if (e && opens) status = wait_for(r, e, err);
    if (e && opens) e->last_used = qn_clock_ns();
    if (e && status) let_go(r, e);
    if (!status) *out = e;
    pthread_mutex_unlock(&r->lock);
    return status;
}

qn_status qn_registry_take(qn_offer **out, qn_registry *r, const char *name, qn_err *err) {
    return take(out, r, name, true, err);
}

qn_status qn_registry_hold(qn_offer **out, qn_registry *r, const char *name, qn_err *err) {
    return take(out, r, name, false, err);
}

void qn_offer_leave(qn_offer *e) {
    qn_registry *r = e->registry;
    pthread_mutex_lock(&r->lock);
    let_go(r, e);
    pthread_mutex_unlock(&r->lock);
}

void qn_offer_touch(qn_offer *e) {
    pthread_mutex_lock(&e->registry->lock);
    e->last_used = qn_clock_ns();
    pthread_mutex_unlock(&e->registry->lock);
}

// --- looking -------------------------------------------------------------------------------------

// With the lock.
static void fill_info(qn_offer_info *out, const qn_offer *e) {
    const qn_facts *f = &e->facts;
    const qn_served *m = e->state == QN_OFFER_OPEN ? e->served : NULL;
    *out = (qn_offer_info){.file_bytes = f->file_bytes ? f->file_bytes : e->file_bytes,
                           .modified = e->modified,
                           .is_open = m != NULL,
                           .n_users = e->n_users,
                           .last_used = e->last_used,
                           .is_known = e->is_known && !*e->problem,
                           .context = m ? m->context : f->context,
                           .n_parameters = f->n_parameters,
                           .n_vocab = f->n_vocab,
                           .width = f->width,
                           .trained_context = f->trained_context,
                           .has_vision = m ? m->has_vision : f->has_vision,
                           .has_thinking = m ? m->has_thinking : f->has_thinking,
                           .has_tools = m ? m->has_tools : f->has_tools,
                           .facts = *f};
    qn_batch_counts counts = QN_INIT(qn_batch_counts);
    if (m && !qn_batch_get_counts(&counts, m->batch, NULL)) {
        out->rows = counts.rows_all;
        out->state_bytes = counts.bytes_all;
        out->bytes = fixed_bytes(e) + counts.bytes_all;
    }
    snprintf(out->name, sizeof out->name, "%s", e->name);
    snprintf(out->path, sizeof out->path, "%s", e->path);
    snprintf(out->architecture, sizeof out->architecture, "%s", f->architecture);
    snprintf(out->problem, sizeof out->problem, "%s", e->problem);
    out->fault = *e->problem ? qn_fault_words(e->fault) : "";
}

bool qn_registry_info(qn_offer_info *out, qn_registry *r, size_t i) {
    pthread_mutex_lock(&r->lock);
    const bool is_there = i < r->n;
    if (is_there) fill_info(out, r->entries[i]);
    pthread_mutex_unlock(&r->lock);
    return is_there;
}

void qn_offer_get_info(qn_offer_info *out, qn_offer *e) {
    pthread_mutex_lock(&e->registry->lock);
    fill_info(out, e);
    pthread_mutex_unlock(&e->registry->lock);
}

static void add_counts(qn_batch_counts *to, const qn_batch_counts *from) {
    to->rows += from->rows, to->queued += from->queued;
    to->pages += from->pages, to->pages_all += from->pages_all;
    to->kept_bytes += from->kept_bytes;
    to->steps += from->steps, to->tokens += from->tokens;
    to->hits += from->hits, to->preemptions += from->preemptions;
}

int64_t qn_registry_counts(qn_registry *r, qn_batch_counts *out) {
    int64_t n = 0;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        const qn_offer *e = r->entries[i];
        qn_batch_counts c = QN_INIT(qn_batch_counts);
        if (e->state != QN_OFFER_OPEN || qn_batch_get_counts(&c, e->served->batch, NULL)) continue;
        n++;
        add_counts(out, &c);
    }
    pthread_mutex_unlock(&r->lock);
    return n;
}

// With the lock.
static void fill_metrics(qn_model_metrics *to, qn_offer *e) {
    *to = (qn_model_metrics){.counts = QN_INIT(qn_batch_counts)};
    snprintf(to->name, sizeof to->name, "%s", e->name);
    qn_metrics_merge(&to->metrics, &e->metrics);
    to->is_open =
        e->state == QN_OFFER_OPEN && !qn_batch_get_counts(&to->counts, e->served->batch, NULL);
}

qn_status qn_registry_metrics(qn_model_metrics **out, size_t *n_out, qn_model_metrics *all,
                              qn_registry *r, qn_err *err) {
    size_t n = 0;
    *all = (qn_model_metrics){.is_open = true};
    pthread_mutex_lock(&r->lock);
    qn_model_metrics *list = qn_alloc(r->n + 1, sizeof *list);
    for (size_t i = 0; list && i < r->n; i++) {
        if (!r->entries[i]->was_open) continue;
        qn_model_metrics *m = &list[n++];
        fill_metrics(m, r->entries[i]);
        qn_metrics_merge(&all->metrics, &m->metrics);
        if (m->is_open) add_counts(&all->counts, &m->counts);
    }
    qn_metrics_merge(&all->metrics, &r->gone);
    pthread_mutex_unlock(&r->lock);
    if (!list) return QN_NOMEM(err, "metrics");
    *out = list;
    *n_out = n;
    return QN_OK;
}

bool qn_registry_is_well(qn_registry *r) {
    bool is_well = true;
    pthread_mutex_lock(&r->lock);
    for (size_t i = 0; i < r->n; i++) {
        const qn_offer *e = r->entries[i];
        is_well &= e->state != QN_OFFER_OPEN || !atomic_load(&e->served->is_failing);
    }
    pthread_mutex_unlock(&r->lock);
    return is_well;
}

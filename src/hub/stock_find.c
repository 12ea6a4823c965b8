// Finding a model by what was typed.
#include "hub/stock.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/mem.h"
#include "hub/filename.h"
#include "hub/spec.h"

#include <string.h>
#include <strings.h>

typedef enum match { NONE, BEGINS, WHOLE, NAMED } match; // the last: as the list has it

// --- one model -----------------------------------------------------------------------------------

// How `typed` goes with a name in two pieces.
static match compare(const char *typed, const char *a, size_t n_a, const char *b) {
    const size_t n = strlen(typed), n_b = strlen(b), in_a = n < n_a ? n : n_a;
    if (n > n_a + n_b || strncasecmp(typed, a, in_a) != 0) return NONE;
    if (n > n_a && strncasecmp(typed + n_a, b, n - n_a) != 0) return NONE;
    return n == n_a + n_b ? WHOLE : BEGINS;
}

// Bytes of a repository's name without an end that says what everybody knows.
static size_t cut_format(const char *repo) {
    static const char end[] = "-gguf";
    const size_t n = strlen(repo);
    return qn_name_ends(repo, end) ? n - (sizeof end - 1) : n;
}

static match better(match a, match b) { return a > b ? a : b; }

// A repository's name with the type or without, with its owner or without, with "-GGUF" or without;
// that of the file; the whole name.
static match judge(const qn_stocked *m, const char *typed) {
    match best = compare(typed, m->name, strlen(m->name), "");
    if (best == WHOLE) return NAMED;
    if (m->stem) best = better(best, compare(typed, m->stem, strlen(m->stem), ""));
    if (!m->repo) return best;
    const char *colon = strchr(m->name, ':'), *type = colon ? colon : "";
    const char *const names[] = {m->repo, qn_path_name(m->repo)};
    for (size_t i = 0; i < 2; i++) {
        const size_t all = strlen(names[i]), cut = cut_format(names[i]);
        best = better(best, compare(typed, names[i], all, ""));
        best = better(best, compare(typed, names[i], cut, ""));
        best = better(best, compare(typed, names[i], all, type));
        best = better(best, compare(typed, names[i], cut, type));
    }
    return best;
}

// --- several -------------------------------------------------------------------------------------

typedef struct matches {
    const qn_stocked **items; // (n) owned, names differ
    size_t n, cap;
} matches;

static bool has_name(const matches *list, const char *name) {
    for (size_t i = 0; i < list->n; i++) {
        if (strcasecmp(list->items[i]->name, name) == 0) return true;
    }
    return false;
}

static qn_status add(matches *to, const qn_stocked *m, qn_err *err) {
    void *items = (void *)(uintptr_t)to->items;
    if (has_name(to, m->name)) return QN_OK; // another program keeps the same
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof *to->items)) return QN_NOMEM(err, "models");
    to->items = items;
    to->items[to->n++] = m;
    return QN_OK;
}

static qn_status collect(matches *to, const qn_stock *stock, const char *typed, match least,
                         qn_err *err) {
    for (size_t i = 0; i < stock->n; i++) {
        if (judge(&stock->items[i], typed) >= least) QN_TRY(add(to, &stock->items[i], err));
    }
    return QN_OK;
}

// Of one repository, what the hub would give without a type. NULL: there is no such thing.
static const qn_stocked *usual(const matches *list) {
    for (size_t i = 0; i < list->n; i++) {
        const char *repo = list->items[i]->repo;
        if (!repo || strcasecmp(repo, list->items[0]->repo) != 0) return NULL;
    }
    for (int k = 0; k < QN_MODEL_TYPES && qn_model_types[k]; k++) {
        for (size_t i = 0; i < list->n; i++) {
            const char *type = strchr(list->items[i]->name, ':');
            if (type && strcasecmp(type + 1, qn_model_types[k]) == 0) return list->items[i];
        }
    }
    return NULL;
}

static void list_names(char *to, size_t size, const matches *list) {
    enum { MOST = 6 };
    const char *names[MOST];
    size_t n = 0;
    for (; n < list->n && n < MOST; n++) names[n] = list->items[n]->name;
    qn_names_join(to, size, names, n, list->n);
}

static qn_status refuse_many(const matches *list, const char *typed, qn_err *err) {
    char names[600];
    list_names(names, sizeof names, list);
    return QN_FAIL(err, ARGUMENT, "'%s' is the beginning of several models: %s", typed, names);
}

static qn_status refuse_none(const char *typed, const qn_spec *spec, qn_err *err) {
    if (spec->url)
        return QN_FAIL(err, ARGUMENT, "'%s' is not on this disk; 'quern pull %s' brings it", typed,
                       typed);
    if (spec->repo)
        return QN_FAIL(err, ARGUMENT,
                       "no model '%s' on this disk, and no such file; 'quern pull %s' brings it",
                       typed, typed);
    return QN_FAIL(
        err, ARGUMENT,
        "no model '%s' on this disk, and no such file; 'quern list' shows those that are "
        "there, 'quern pull OWNER/REPO' brings one",
        typed);
}

// Where only whole names are taken.
static qn_status refuse_part(matches *list, const qn_stock *stock, const char *name,
                             const char *typed, qn_err *err) {
    char names[600];
    QN_TRY(collect(list, stock, name, BEGINS, err));
    list_names(names, sizeof names, list);
    if (list->n)
        return QN_FAIL(err, ARGUMENT, "no model '%s': want a whole name, such as %s", typed, names);
    return QN_FAIL(err, ARGUMENT,
                   "no model '%s' on this disk; 'quern list' shows those that are there", typed);
}

// --- what was typed ------------------------------------------------------------------------------

// The name as we write it, of what has hf: or an address before it; what is no repository's name
// stays as it is.
static qn_status canonical(char **out, qn_spec *spec, const char *typed, const char *endpoint,
                           qn_err *err) {
    qn_buf text = {0};
    const qn_status status = qn_spec_parse(spec, typed, endpoint, NULL);
    if (status == QN_MEMORY) return QN_NOMEM(err, "a name");
    if (spec->repo) {
        qn_buf_printf(&text, "%s/%s", spec->owner, spec->repo);
        if (spec->which) qn_buf_printf(&text, ":%s", spec->which);
    } else {
        qn_buf_text(&text, typed);
    }
    return qn_buf_take(out, &text, err);
}

typedef struct request {
    const qn_stock *stock;
    const char *typed;
    char *name; // owned: the same as we write it
    qn_spec spec;
    bool whole;
} request;

static qn_status find(const qn_stocked **out, matches *list, const request *r, qn_err *err) {
    QN_TRY(collect(list, r->stock, r->name, NAMED, err));
    if (list->n == 0) QN_TRY(collect(list, r->stock, r->name, WHOLE, err));
    *out = list->n > 1 ? usual(list) : NULL;
    if (*out) return QN_OK;
    if (list->n == 0 && !r->whole) QN_TRY(collect(list, r->stock, r->name, BEGINS, err));
    if (list->n == 0 && r->whole) return refuse_part(list, r->stock, r->name, r->typed, err);
    if (list->n == 0) return refuse_none(r->typed, &r->spec, err);
    if (list->n > 1) return refuse_many(list, r->typed, err);
    *out = list->items[0];
    return QN_OK;
}

qn_status qn_stock_find(const qn_stocked **out, const qn_stock *stock, const char *typed,
                        const char *endpoint, bool whole, qn_err *err) {
    matches list = {0};
    request r = {.stock = stock, .typed = typed, .whole = whole};
    qn_status status = canonical(&r.name, &r.spec, typed, endpoint, err);
    if (!status) status = find(out, &list, &r, err);
    qn_free((void *)(uintptr_t)list.items);
    qn_free(r.name);
    qn_spec_deinit(&r.spec);
    return status;
}

const qn_unfinished *qn_stock_find_unfinished(const qn_stock *stock, const char *typed) {
    for (size_t i = 0; i < stock->n_unfinished; i++) {
        const char *name = qn_path_name(stock->unfinished[i].path);
        const size_t stem = qn_split_name_read(name).stem;
        const bool is_stem = strlen(typed) == stem && strncasecmp(typed, name, stem) == 0;
        if (is_stem || strcasecmp(typed, name) == 0) return &stock->unfinished[i];
    }
    return NULL;
}

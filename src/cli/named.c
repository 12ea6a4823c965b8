#include "cli/named.h"

#include "core/file.h"
#include "core/mem.h"
#include "hub/stock.h"

#include <string.h>
#include <strings.h>

// --- what was typed ------------------------------------------------------------------------------

bool qn_named_is_path(const char *typed) {
    static const char *const ends[] = {".gguf", ".safetensors", ".json", ".jinja", ".model"};
    const size_t n = strlen(typed);
    if (strchr("/.~", *typed) || strpbrk(typed, " \t\n")) return true;
    if (strchr(typed, ':')) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
        const size_t n_end = strlen(ends[i]);
        if (n > n_end && strcasecmp(typed + n - n_end, ends[i]) == 0) return true;
    }
    return false;
}

static bool is_name(const char *typed) {
    return typed && *typed && !qn_path_is_file(typed) && !qn_path_is_folder(typed) &&
           !qn_named_is_path(typed);
}

static bool begins_with_model(const char *args) {
    static const char *const words[] = {"MODEL", "[MODEL", "IN ", "FOLDER "};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (strncmp(args, words[i], strlen(words[i])) == 0) return true;
    }
    return false;
}

// --- putting paths in their place ----------------------------------------------------------------

typedef struct resolver {
    qn_resolved *named;
    const qn_command *command;
    void *options;
    qn_places places;
    qn_stock stock;
    bool is_read;
} resolver;

// A copy that lives as long as the list; NULL: no memory.
static const char *keep(qn_resolved *to, const char *text) {
    void *items = to->items;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof *to->items)) return NULL;
    to->items = items;
    to->items[to->n] = strdup(text);
    return to->items[to->n] ? to->items[to->n++] : NULL;
}

static qn_status find(const qn_stocked **out, resolver *r, const char *typed, qn_err *err) {
    if (!r->is_read) {
        QN_TRY(qn_places_read(&r->places, err));
        QN_TRY(qn_stock_read(&r->stock, &r->places, err));
        r->is_read = true;
    }
    return qn_stock_find(out, &r->stock, typed, r->places.endpoint, false, err);
}

// The text of an option of the command; NULL: it has no such option.
static const char **text_of(const resolver *r, const char *name) {
    for (size_t i = 0; i < r->command->n_options; i++) {
        const qn_option *o = &r->command->options[i];
        if (o->kind == QN_OPTION_TEXT && strcmp(o->name, name) == 0)
            return (const char **)(void *)((char *)r->options + o->offset);
    }
    return NULL;
}

// What comes with a model: its tower, and for a file whose name is a number a name.
static qn_status bring_along(resolver *r, const qn_stocked *model, qn_err *err) {
    const char **mmproj = text_of(r, "--mmproj"), **alias = text_of(r, "--alias");
    if (mmproj && !*mmproj && model->tower) {
        qn_engine_args *args = (void *)((char *)mmproj - offsetof(qn_engine_args, mmproj));
        args->mmproj = keep(r->named, model->tower);
        args->mmproj_is_found = true;
        if (!args->mmproj) return QN_NOMEM(err, "a path");
    }
    if (alias && !*alias && !model->stem) {
        *alias = keep(r->named, model->name);
        if (!*alias) return QN_NOMEM(err, "a name");
    }
    return QN_OK;
}

// Folders of other programs are only read.
static qn_status check_place(const resolver *r, const qn_stocked *model, qn_err *err) {
    const char **place = r->command->beside ? text_of(r, r->command->beside) : NULL;
    if (!place || *place || model->keeper == QN_KEEPER_OWN) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "%s is kept by %s, where nothing is written; %s names another place",
                   model->name, qn_keeper_names[model->keeper], r->command->beside);
}

static qn_status replace(const char **word, resolver *r, bool is_main, qn_err *err) {
    const qn_stocked *model = NULL;
    if (!is_name(*word)) return QN_OK;
    QN_TRY(find(&model, r, *word, err));
    if (is_main) QN_TRY(check_place(r, model, err));
    const char *path = keep(r->named, model->path);
    if (!path) return QN_NOMEM(err, "a path");
    *word = path;
    return is_main ? bring_along(r, model, err) : QN_OK;
}

static qn_status resolve(resolver *r, qn_call *call, qn_err *err) {
    if (call->n_args > 0 && begins_with_model(r->command->args))
        QN_TRY(replace((const char **)(uintptr_t)&call->args[0], r, true, err));
    for (size_t i = 0; i < r->command->n_options; i++) {
        const qn_option *o = &r->command->options[i];
        if (o->kind != QN_OPTION_TEXT || strcmp(o->arg, "MODEL") != 0) continue;
        const qn_status status =
            replace((const char **)(void *)((char *)r->options + o->offset), r, false, err);
        if (status) return qn_err_prefix(err, status, "%s", o->name);
    }
    return QN_OK;
}

qn_status qn_named_resolve(qn_resolved *out, const qn_command *command, qn_call *call,
                           qn_err *err) {
    resolver r = {.named = out, .command = command, .options = call->options};
    const qn_status status = resolve(&r, call, err);
    qn_stock_deinit(&r.stock);
    qn_places_deinit(&r.places);
    return status;
}

void qn_resolved_deinit(qn_resolved *named) {
    for (size_t i = 0; i < named->n; i++) qn_free(named->items[i]);
    qn_free(named->items);
    *named = (qn_resolved){0};
}

// quern list and quern rm: models that are on the disk.
#include "cli/command.h"
#include "cli/out.h"
#include "core/mem.h"
#include "hub/remove.h"
#include "hub/stock.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

typedef struct list_options {
    bool json;
} list_options;

// --- list ----------------------------------------------------------------------------------------

static json_t *to_json(const qn_stocked *m) {
    json_t *o = json_object();
    qn_json_put(&o, "name", qn_json_string(m->name, strlen(m->name)));
    qn_json_put(&o, "keeper", json_string(qn_keeper_names[m->keeper]));
    qn_json_put(&o, "path", qn_json_string(m->path, strlen(m->path)));
    qn_json_put(&o, "mmproj", m->tower ? qn_json_string(m->tower, strlen(m->tower)) : json_null());
    qn_json_put(&o, "files", json_integer(m->n_files));
    qn_json_put(&o, "bytes", json_integer(m->bytes));
    qn_json_put(&o, "modified", json_integer(m->modified));
    return o;
}

static qn_status print_json(const qn_stock *stock, qn_err *err) {
    json_t *list = json_array();
    for (size_t i = 0; i < stock->n; i++) qn_json_push(&list, to_json(&stock->items[i]));
    return qn_stdout_json(list, 1, err);
}

// "2026-05-31"; borrowed from `to`.
static const char *day_text(char to[16], int64_t seconds) {
    struct tm day;
    const time_t time = (time_t)seconds;
    if (!localtime_r(&time, &day) || !strftime(to, 16, "%Y-%m-%d", &day)) *to = 0;
    return to;
}

static int name_width(const qn_stock *stock) {
    enum { LEAST = 24, MOST = 64 };
    size_t width = LEAST;
    for (size_t i = 0; i < stock->n; i++) {
        const size_t n = strlen(stock->items[i].name);
        if (n > width && n <= MOST) width = n;
    }
    return (int)width;
}

static void print_table(const qn_stock *stock) {
    const int width = name_width(stock);
    qn_shown storage;
    char bytes[24], there[24], day[16];
    if (stock->n) printf("%-*s  %10s  %-12s %s\n", width, "NAME", "SIZE", "KEPT BY", "MODIFIED");
    for (size_t i = 0; i < stock->n; i++) {
        const qn_stocked *m = &stock->items[i];
        printf("%-*s  %10s  %-12s %s\n", width, qn_clean(&storage, m->name),
               qn_bytes_text(bytes, m->bytes), qn_keeper_names[m->keeper],
               day_text(day, m->modified));
    }
    for (size_t i = 0; i < stock->n_unfinished; i++) {
        const qn_unfinished *u = &stock->unfinished[i];
        printf("unfinished: %s, about %s of %s\n", qn_clean(&storage, u->path),
               qn_bytes_text(there, u->there), qn_bytes_text(bytes, u->bytes));
    }
}

static qn_status run_list(const qn_call *call, qn_err *err) {
    const list_options *options = call->options;
    qn_places places;
    qn_stock stock = {0};
    QN_TRY(qn_places_read(&places, err));
    qn_status status = qn_stock_read(&stock, &places, err);
    if (!status && options->json) status = print_json(&stock, err);
    if (!status && !options->json) {
        print_table(&stock);
        if (stock.n + stock.n_unfinished == 0)
            fprintf(stderr, "no models here yet; 'quern pull hf:OWNER/REPO' brings one\n");
    }
    qn_stock_deinit(&stock);
    qn_places_deinit(&places);
    return status;
}

static const qn_option list_table[] = {
    {.name = "--json",
     .help = "print one JSON array",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(list_options, json)},
};

const qn_command qn_cmd_list = {
    .name = "list",
    .args = "",
    .summary = "Lists the models on this disk by name.",
    .notes =
        "Those of the folder of models (QUERN_MODELS, else ~/.local/share/quern/models), and those "
        "that Hugging Face's programs, llama.cpp and Ollama keep in their own folders, which are "
        "read and never changed. What several keep is used in that order. "
        "JSON: [{\"name\", \"keeper\", \"path\", \"mmproj\", \"files\", \"bytes\", \"modified\"}].",
    .options = list_table,
    .n_options = sizeof list_table / sizeof *list_table,
    .options_size = sizeof(list_options),
    .run = run_list,
};

// --- rm ------------------------------------------------------------------------------------------

static qn_status remove_named(int64_t *bytes, const char *typed, const qn_places *places,
                              qn_err *err) {
    qn_stock stock;
    const qn_stocked *model;
    QN_TRY(qn_stock_read(&stock, places, err));
    qn_status status = qn_stock_find(&model, &stock, typed, places->endpoint, true, err);
    const qn_unfinished *download = status ? qn_stock_find_unfinished(&stock, typed) : NULL;
    if (!status)
        status = qn_stock_remove(bytes, &stock, model, places, err);
    else if (download)
        status = qn_unfinished_remove(bytes, download, places, err);
    qn_stock_deinit(&stock);
    return status;
}

static qn_status run_rm(const qn_call *call, qn_err *err) {
    qn_places places;
    qn_status status = QN_OK;
    QN_TRY(qn_places_read(&places, err));
    for (size_t i = 0; i < call->n_args && !status; i++) {
        int64_t bytes;
        char text[24];
        qn_shown name;
        status = remove_named(&bytes, call->args[i], &places, err);
        if (!status)
            printf("removed %s, %s\n", qn_clean(&name, call->args[i]), qn_bytes_text(text, bytes));
    }
    qn_places_deinit(&places);
    return status;
}

const qn_command qn_cmd_rm = {
    .name = "rm",
    .args = "NAME...",
    .summary = "Removes models from the folder of models.",
    .notes = "NAME is a whole name, as 'quern list' shows it, or the file name of a download that "
             "did not end. All parts go, and the vision tower that no other model uses. Models of "
             "other programs are left to them.",
    .min_args = 1,
    .max_args = 64,
    .run = run_rm,
};

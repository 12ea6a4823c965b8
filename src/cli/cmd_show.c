// quern show: one model: where it is, where it came from, what it is.
#include "cli/command.h"
#include "cli/inspect.h"
#include "cli/out.h"
#include "core/file.h"
#include "core/mem.h"
#include "hub/provenance.h"
#include "hub/stock.h"

#include <stdio.h>
#include <string.h>

typedef struct show_options {
    bool json;
} show_options;

static void print_text(const char *name, const char *text) {
    qn_shown storage;
    if (text && *text) printf("  %-15s %s\n", name, qn_clean(&storage, text));
}

static void print_model(const qn_stocked *m, const qn_provenance *origin) {
    qn_shown storage;
    char bytes[24];
    printf("%s\n", qn_clean(&storage, m->name));
    print_text(m->is_folder ? "folder" : "file", m->path);
    if (m->n_files > 1)
        printf("  %-15s %d, %s\n", "files", m->n_files, qn_bytes_text(bytes, m->bytes));
    print_text("vision tower", m->tower);
    print_text("kept by", qn_keeper_names[m->keeper]);
    print_text("from", origin->from);
    print_text("SHA-256", origin->sha256);
}

// What the file says, as 'quern inspect' has it.
static qn_status print_content(const char *path, qn_err *err) {
    qn_inspection in;
    const qn_engine_args args = {0};
    QN_TRY(qn_inspection_init(&in, path, &(qn_inspect_opts){.args = &args}, err));
    qn_inspection_print(&in);
    qn_status status = qn_stdout_check(err);
    if (!status && !in.engine) { // shown, but it cannot run
        if (err) *err = in.why;
        status = in.why.status;
    }
    qn_inspection_deinit(&in);
    return status;
}

static json_t *text_or_null(const char *text) {
    return text && *text ? qn_json_string(text, strlen(text)) : json_null();
}

static qn_status print_json(const qn_stocked *m, const qn_provenance *origin, qn_err *err) {
    json_t *o = json_object();
    qn_json_put(&o, "name", text_or_null(m->name));
    qn_json_put(&o, "keeper", json_string(qn_keeper_names[m->keeper]));
    qn_json_put(&o, "path", text_or_null(m->path));
    qn_json_put(&o, "mmproj", text_or_null(m->tower));
    qn_json_put(&o, "files", json_integer(m->n_files));
    qn_json_put(&o, "bytes", json_integer(m->bytes));
    qn_json_put(&o, "from", text_or_null(origin->from));
    qn_json_put(&o, "sha256", text_or_null(origin->sha256));
    return qn_stdout_json(o, 1, err);
}

static qn_status show(const qn_stocked *m, const qn_places *places, bool as_json, qn_err *err) {
    qn_provenance origin = {0};
    QN_TRY(qn_provenance_read(&origin, m, places, err));
    qn_status status = QN_OK;
    if (as_json)
        status = print_json(m, &origin, err);
    else
        print_model(m, &origin);
    qn_provenance_deinit(&origin);
    return status || as_json ? status : print_content(m->path, err);
}

static qn_status run_show(const qn_call *call, qn_err *err) {
    const show_options *options = call->options;
    const char *typed = call->args[0];
    const qn_stocked *model = NULL;
    qn_places places;
    qn_stock stock = {0};
    if (qn_path_is_file(typed) || qn_path_is_folder(typed))
        return QN_FAIL(err, ARGUMENT, "%s: is a path; 'quern inspect %s' shows it", typed, typed);
    QN_TRY(qn_places_read(&places, err));
    qn_status status = qn_stock_read(&stock, &places, err);
    if (!status) status = qn_stock_find(&model, &stock, typed, places.endpoint, false, err);
    if (!status) status = show(model, &places, options->json, err);
    qn_stock_deinit(&stock);
    qn_places_deinit(&places);
    return status;
}

static const qn_option show_table[] = {
    {.name = "--json",
     .help = "print one JSON object: where it is and where it came from",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(show_options, json)},
};

const qn_command qn_cmd_show = {
    .name = "show",
    .args = "NAME",
    .summary = "Shows one model: where it is, where it came from, what it is.",
    .notes =
        "NAME is one of 'quern list', or the beginning of one alone. 'quern inspect' says more "
        "about the file. JSON: {\"name\", \"keeper\", \"path\", \"mmproj\", \"files\", "
        "\"bytes\", \"from\", \"sha256\"}.",
    .options = show_table,
    .n_options = sizeof show_table / sizeof *show_table,
    .options_size = sizeof(show_options),
    .min_args = 1,
    .max_args = 1,
    .run = run_show,
};

// quern pull: a model from the hub, or from an address, into the folder of models.
#include "cli/command.h"
#include "cli/facts.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/machine.h"
#include "core/mem.h"
#include "hub/filename.h"
#include "hub/pull.h"
#include "hub/spec.h"
#include "hub/stock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef struct pull_options {
    const char *revision;
    bool no_mmproj, force;
} pull_options;

typedef struct puller {
    const pull_options *options;
    const char *typed;
    qn_progress bar;
} puller;

// --- what is shown -------------------------------------------------------------------------------

static void start_bar(puller *p, const char *what) {
    qn_progress_end(&p->bar);
    p->bar = (qn_progress){.what = what, .unit = ""};
}

static bool show(void *arg, int64_t done, int64_t total) {
    puller *p = arg;
    if (total == 0) return !qn_interrupt_take();
    if (p->bar.start == 0) p->bar.from = done;
    return qn_progress_show(&p->bar, done, total);
}

static void begin(void *arg, const qn_pull_file *file) {
    char size[24], there[24], already[64] = "";
    qn_shown name;
    start_bar(arg, "pulling");
    if (file->there > 0)
        snprintf(already, sizeof already, ", about %s of them are here",
                 qn_bytes_text(there, file->there));
    qn_print_line("quern: pulling %s (%zu of %zu), %s%s", qn_clean(&name, file->name), file->i + 1,
                  file->n, qn_bytes_text(size, file->size), already);
}

static void stage(void *arg, const char *what) { start_bar(arg, what); }

// --- whether it will run -------------------------------------------------------------------------

// The beginning of a file.
typedef struct beginning {
    int fd;
    int64_t there;
    bool is_passed; // more was asked for
} beginning;

static int64_t read_beginning(void *arg, void *to, size_t n, int64_t at) {
    beginning *b = arg;
    const int64_t room = b->there - at;
    if (room <= 0) b->is_passed = true;
    if (room <= 0) return -1;
    return pread(b->fd, to, (int64_t)n < room ? n : (size_t)room, at);
}

static qn_status plan(int64_t *need, qn_engine *engine, qn_err *err) {
    enum { USUAL = 4096 };
    qn_memory memory = QN_INIT(qn_memory);
    const int64_t max = qn_engine_facts(engine).context;
    QN_TRY(qn_engine_memory(&memory, engine, max < USUAL ? max : USUAL, 0, err));
    *need = memory.total;
    return QN_OK;
}

// Opens the model without its weights; *need stays 0 where its header goes on behind what is there.
static qn_status try_model(int64_t *need, const char *name, beginning *b, int64_t size,
                           qn_err *err) {
    const qn_model_file file = {.name = name, .size = size, .read = read_beginning, .arg = b};
    const qn_engine_opts opts = QN_INIT(qn_engine_opts, .no_weights = true);
    qn_engine *engine = NULL;
    qn_status status = qn_engine_open_files(&engine, &file, 1, &opts, err);
    if (!status) status = plan(need, engine, err);
    qn_engine_close(engine);
    return b->is_passed && status != QN_MEMORY ? QN_OK : status;
}

static void compare_memory(int64_t need, const char *why) {
    int64_t there;
    char a[24], b[24];
    if (qn_machine_free_memory(&there) && need > there)
        qn_print_line("quern: warning: it needs %s of memory%s, and %s are free on this machine",
                      qn_bytes_text(a, need), why, qn_bytes_text(b, there));
}

// All bytes of a split set say how much memory it takes, at least; one file says it exactly.
static qn_status look(void *arg, const char *name, int fd, int64_t there, int64_t size,
                      int64_t bytes, qn_err *err) {
    puller *p = arg;
    beginning b = {.fd = fd, .there = there};
    int64_t need = 0;
    qn_err why;
    qn_progress_end(&p->bar);
    if (p->options->force) return QN_OK;
    const bool is_split = qn_split_name_read(name).of > 1;
    const qn_status status = is_split ? QN_OK : try_model(&need, name, &b, size, &why);
    if (status == QN_UNSUPPORTED || status == QN_FORMAT)
        return QN_FAIL(err, UNSUPPORTED, "%s cannot be run: %s; --force downloads it all the same",
                       name, why.message);
    if (need > 0)
        compare_memory(need, " with a context of 4096 tokens");
    else
        compare_memory(bytes, " for its weights alone");
    return QN_OK;
}

// --- the command ---------------------------------------------------------------------------------

static const qn_stocked *find_path(const qn_stock *stock, const char *path) {
    for (size_t i = 0; i < stock->n; i++) {
        if (strcmp(stock->items[i].path, path) == 0) return &stock->items[i];
    }
    return NULL;
}

// A vision tower alone, or another file, has no name.
static qn_status print_result(const qn_pulled *pulled, const qn_places *places, qn_err *err) {
    qn_stock stock;
    qn_shown path, name;
    char bytes[24];
    QN_TRY(qn_stock_read(&stock, places, err));
    const qn_stocked *model = find_path(&stock, pulled->path);
    printf("%s%s, %s", pulled->n_new ? "" : "here already: ", qn_clean(&path, pulled->path),
           qn_bytes_text(bytes, pulled->bytes));
    if (model) printf("; run it by 'quern run %s'", qn_clean(&name, model->name));
    printf("\n");
    qn_stock_deinit(&stock);
    return QN_OK;
}

static qn_status check_pull(const qn_call *call, qn_err *err) {
    const pull_options *options = call->options;
    const char *revision = options->revision;
    if (revision && !qn_hub_revision_is_plain(revision))
        return QN_FAIL(err, ARGUMENT, "--revision: '%s' cannot be a branch, a tag or a commit",
                       revision);
    return QN_OK;
}

static qn_status run_pull(const qn_call *call, qn_err *err) {
    puller p = {.options = call->options, .typed = call->args[0]};
    qn_places places = {0};
    qn_pulled pulled = {0};
    QN_TRY(qn_places_read(&places, err));
    const qn_pull_opts opts = {.places = &places,
                               .typed = p.typed,
                               .revision = p.options->revision,
                               .no_tower = p.options->no_mmproj,
                               .progress = show,
                               .begin = begin,
                               .stage = stage,
                               .look = look,
                               .arg = &p};
    qn_interrupt_hold();
    start_bar(&p, "pulling");
    qn_status status = qn_pull(&pulled, &opts, err);
    qn_progress_end(&p.bar);
    if (!status) status = print_result(&pulled, &places, err);
    if (status == QN_STOPPED)
        (void)QN_FAIL(err, STOPPED, "stopped; 'quern pull %s' goes on where it was", p.typed);
    qn_pulled_deinit(&pulled);
    qn_places_deinit(&places);
    return status;
}

static const qn_option pull_table[] = {
    {.name = "--revision",
     .arg = "REV",
     .help = "branch, tag or commit of the repository (default: main)",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(pull_options, revision)},
    {.name = "--no-mmproj",
     .help = "leave out the vision tower, for text alone",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(pull_options, no_mmproj)},
    {.name = "--force",
     .help = "download a model that this program cannot run, too",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(pull_options, force)},
};

const qn_command qn_cmd_pull = {
    .name = "pull",
    .args = "NAME",
    .summary = "Downloads a model, so that it can be used by its name.",
    .notes =
        "NAME is hf:OWNER/REPO[:TYPE], a repository of Hugging Face and a type such as Q4_K_M, or "
        "hf:OWNER/REPO:FILE; hf: may be left out. Without a type it is Q4_K_M, else Q8_0, else the "
        "only one there is; a repository without GGUF files is pulled as a checkpoint. An address "
        "of a .gguf file does, too. All parts of a split set and the vision tower come along.\n"
        "A download that ends early goes on where it was. Files get their name when they are whole "
        "and have the SHA-256 that the hub says. They go to QUERN_MODELS, else to "
        "$XDG_DATA_HOME/quern/models (~/.local/share/quern/models). HF_TOKEN (or the file "
        "~/.cache/huggingface/token) says who asks, HF_ENDPOINT names another hub.",
    .options = pull_table,
    .n_options = sizeof pull_table / sizeof *pull_table,
    .options_size = sizeof(pull_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_pull,
    .run = run_pull,
};

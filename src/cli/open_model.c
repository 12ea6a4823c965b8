#include "cli/open_model.h"

#include "cli/folder.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/split.h"
#include "cli/terminal.h"
#include "core/file.h"
#include "core/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- options -------------------------------------------------------------------------------------

const char *const qn_rope_words[] = {"none", "linear", "yarn", NULL};
const char *const qn_numerics_words[] = {"exact", "balanced", "fast", "tensor", NULL};
const char *const qn_cache_words[] = {"f32", "f16", "q8_0", "q4_0", "q8_0r", "q4_0r", NULL};
const char *const qn_plans_words[] = {"bucketed", "exact", "dynamic", NULL};
const char *const qn_numa_words[] = {"auto", "off", NULL};
const char *const qn_split_words[] = {"tensors", "layers", "auto", NULL};

static bool is_device(const char *name, size_t size) {
    const char *known;
    for (size_t i = 0; (known = qn_device_name(i)) != NULL; i++) {
        if (strlen(known) == size && memcmp(known, name, size) == 0) return true;
    }
    return false;
}

static qn_status refuse_device(const char *name, size_t size, qn_err *err) {
    char known[256] = "", asked[64];
    qn_err why;
    snprintf(asked, sizeof asked, "%.*s", size > 40 ? 40 : (int)size, name);
    if (qn_device_check(asked, &why) == QN_UNSUPPORTED) // of a kind that there is elsewhere
        return QN_FAIL(err, UNSUPPORTED, "--device: %s", why.message);
    for (size_t i = 0, used = 0; qn_device_name(i) && used < sizeof known; i++)
        used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "",
                                 qn_device_name(i));
    return QN_FAIL(err, ARGUMENT, "--device: there is no '%s' on this machine; there are %s", asked,
                   known);
}

static qn_status check_devices(const char *list, qn_err *err) {
    for (const char *at = list; at;) {
        const size_t size = strcspn(at, ",");
        if (size == 0) return QN_FAIL(err, ARGUMENT, "--device: '%s' has an empty name", list);
        if (!is_device(at, size)) return refuse_device(at, size, err);
        at = at[size] ? at + size + 1 : NULL;
    }
    return QN_OK;
}

// N: experts of each layer; with K, M or G: bytes. Both 0 where nothing was typed. False: it is
// neither.
static bool read_budget(int64_t *experts, int64_t *bytes, const char *typed) {
    static const char units[] = "KMGkmg";
    *experts = *bytes = 0;
    if (!typed) return true;
    char *end;
    errno = 0;
    const long long n = strtoll(typed, &end, 10);
    if (*typed < '0' || *typed > '9' || errno || n < 1) return false;
    if (!*end) {
        *experts = n;
        return true;
    }
    const char *unit = strchr(units, *end);
    const int shift = unit ? 10 * (int)((unit - units) % 3 + 1) : 0;
    if (!unit || end[1] || n > INT64_MAX >> shift) return false;
    *bytes = (int64_t)n << shift;
    return true;
}

// N, "auto" or "all", as qn_engine_opts has it. False: it is none of them.
static bool read_layers(int64_t *out, const char *typed) {
    *out = 0;
    if (!typed || strcmp(typed, "all") == 0) return true;
    if (strcmp(typed, "auto") == 0) {
        *out = QN_GPU_LAYERS_AUTO;
        return true;
    }
    char *end;
    errno = 0;
    const long long n = strtoll(typed, &end, 10);
    if (*typed < '0' || *typed > '9' || errno || *end) return false;
    *out = n ? n : QN_GPU_LAYERS_NONE;
    return true;
}

// A number is meant for MODEL; a second one is small, and goes where there is room.
static int64_t choose_layers(const qn_open_opts *opts, const qn_engine_args *args) {
    int64_t n;
    (void)read_layers(&n, args->layers); // was checked
    return opts->is_second && n > 0 ? QN_GPU_LAYERS_AUTO : n;
}

static bool is_there(const char *path) { return qn_path_is_file(path) || qn_path_is_folder(path); }

// FILE[:SCALE]: a file is there, but what follows its name is not a number.
static qn_status check_lora(const char *typed, qn_err *err) {
    const char *colon = strrchr(typed, ':');
    char *end = NULL;
    if (!*typed) return QN_FAIL(err, ARGUMENT, "--lora: the name of the adapter is empty");
    if (!colon || is_there(typed)) return QN_OK;
    (void)strtof(colon + 1, &end);
    if (colon[1] && !*end) return QN_OK;
    char *path = strndup(typed, (size_t)(colon - typed));
    if (!path) return QN_NOMEM(err, "--lora");
    const bool is_file = is_there(path);
    qn_free(path);
    if (!is_file) return QN_OK; // opening it says what is wrong
    return QN_FAIL(err, ARGUMENT, "--lora: '%s': the scale is '%s', want a number, as in FILE:0.5",
                   typed, colon + 1);
}

// Options of --split without it. What is in --shares shows when the number of ranks is known.
static qn_status check_split(const qn_engine_args *args, qn_err *err) {
    const char *option = args->shares         ? "--shares"
                         : args->rank_timeout ? "--rank-timeout"
                         : args->dry_run      ? "--dry-run"
                                              : NULL;
    if (option && !args->split)
        return QN_FAIL(err, ARGUMENT, "%s: is for --split, which was not given", option);
    if (args->shares && args->split != QN_SPLIT_LAYERS)
        return QN_FAIL(err, ARGUMENT, "--shares %s: is for --split layers, not --split %s",
                       args->shares, qn_split_words[args->split - 1]);
    return QN_OK;
}

static qn_status check_rope(const qn_engine_args *args, qn_err *err) {
    const char *word = args->rope_scaling ? qn_rope_words[args->rope_scaling - 1] : NULL;
    const bool is_scaled = word && strcmp(word, "none") != 0;
    if (is_scaled && !args->rope_scale.is_given)
        return QN_FAIL(err, ARGUMENT,
                       "--rope-scaling %s: how many times longer? --rope-scale says it", word);
    if (!is_scaled && (args->rope_scale.is_given || args->rope_original))
        return QN_FAIL(err, ARGUMENT, "%s: is for --rope-scaling yarn or linear, %s",
                       args->rope_scale.is_given ? "--rope-scale" : "--yarn-orig-ctx",
                       word ? "not none" : "which was not given");
    return QN_OK;
}

qn_status qn_engine_args_check(const qn_engine_args *args, qn_err *err) {
    int64_t experts, bytes, layers;
    QN_TRY(check_devices(args->device, err));
    if (!read_budget(&experts, &bytes, args->experts))
        return QN_FAIL(
            err, ARGUMENT,
            "--expert-budget: '%s', want a whole number of experts, or of bytes with K, M "
            "or G, such as 8G",
            args->experts);
    if (!read_layers(&layers, args->layers))
        return QN_FAIL(err, ARGUMENT,
                       "--gpu-layers: '%s', want a whole number of layers, auto or "
                       "all",
                       args->layers);
    if (!args->device && layers != 0 && layers != QN_GPU_LAYERS_NONE)
        return QN_FAIL(err, ARGUMENT, "--gpu-layers %s: name a GPU, as in --device cuda",
                       args->layers);
    QN_TRY(check_split(args, err));
    QN_TRY(check_rope(args, err));
    if (args->cache_dir && !*args->cache_dir)
        return QN_FAIL(err, ARGUMENT, "--cache-dir: the name of the folder is empty");
    for (size_t i = 0; i < args->loras.n; i++) QN_TRY(check_lora(args->loras.items[i], err));
    return QN_OK;
}

// --- adapters ------------------------------------------------------------------------------------

// Bytes of the path in FILE[:SCALE]. What is a path as it stands has no scale.
static size_t split_lora(float *scale, const char *typed) {
    const char *colon = strrchr(typed, ':');
    char *end = NULL;
    *scale = 1;
    if (!colon || colon == typed || !colon[1] || is_there(typed)) return strlen(typed);
    const float value = strtof(colon + 1, &end);
    if (*end) return strlen(typed);
    *scale = value;
    return (size_t)(colon - typed);
}

qn_status qn_loras_parse(qn_lora_list *out, const qn_texts *typed, qn_err *err) {
    size_t bytes = typed->n * sizeof(qn_adapter);
    for (size_t i = 0; i < typed->n; i++) bytes += strlen(typed->items[i]) + 1;
    if (typed->n == 0) {
        *out = (qn_lora_list){0};
        return QN_OK;
    }
    qn_adapter *items = qn_alloc(bytes, 1); // the list, then the paths
    if (!items) return QN_NOMEM(err, "--lora");
    char *to = (char *)(items + typed->n);
    for (size_t i = 0; i < typed->n; i++) {
        const size_t size = split_lora(&items[i].scale, typed->items[i]);
        memcpy(to, typed->items[i], size);
        items[i].path = to;
        to += size + 1;
    }
    *out = (qn_lora_list){items, typed->n};
    return QN_OK;
}

static bool is_none(const char *cache_dir) { return cache_dir && strcmp(cache_dir, "none") == 0; }

// Words count from 1, and 0 is none: the enums with an automatic value 0 are counted like this,
// the other begins with its default.
qn_engine_opts qn_open_engine_opts(const qn_open_opts *opts) {
    const qn_engine_args none = {0}, *args = opts->args ? opts->args : &none;
    const bool is_split = !opts->is_second && !opts->is_alone;
    const bool has_rope = args->rope_scaling && !opts->is_second;
    int64_t experts, bytes;
    (void)read_budget(&experts, &bytes, opts->is_second ? NULL : args->experts); // was checked
    return QN_INIT(
        qn_engine_opts, .n_threads = (int)args->threads, .no_weights = opts->no_weights,
        .reference = opts->reference, .mtp = opts->mtp,
        .numerics = args->numerics ? (qn_numerics)(args->numerics - 1) : QN_NUMERICS_EXACT,
        .cache_type = (qn_cache_type)args->cache_type, .plans = (qn_plan_policy)args->plans,
        .cache_dir = is_none(args->cache_dir) ? NULL : args->cache_dir, .device = args->device,
        .mmproj = opts->is_second ? NULL : args->mmproj, .image_pixels = args->image_pixels,
        .expert_budget = experts, .expert_budget_bytes = bytes,
        .gpu_layers = choose_layers(opts, args), .gpu_context = opts->context,
        .split = is_split ? (qn_split)args->split : QN_SPLIT_NONE,
        .shares = is_split ? args->shares : NULL, .rank_timeout_ms = args->rank_timeout * 1000,
        .stop = is_split ? qn_ranks_stop() : NULL,
        .rope_scaling = has_rope ? qn_rope_words[args->rope_scaling - 1] : NULL,
        .rope_factor = has_rope ? args->rope_scale.value : 0,
        .rope_original = has_rope ? args->rope_original : 0,
        .numa = args->numa ? args->numa - 1 : QN_NUMA_AUTO);
}

// --- the cache folder ----------------------------------------------------------------------------

char *qn_cache_beside(const char *model) {
    char *folder = qn_path_is_folder(model) ? strdup(model) : qn_path_folder(model);
    char *path = folder ? qn_path_join(folder, ".quern-cache") : NULL;
    qn_free(folder);
    return path;
}

// Leaves in *out the folder to use: the one that was named, or the one beside the model, which is
// there if 'quern compile' made it.
static qn_status choose_cache(qn_loaded *out, const char *model, const qn_open_opts *opts,
                              qn_err *err) {
    const char *typed = opts->args ? opts->args->cache_dir : NULL;
    if (is_none(typed) || opts->no_weights || opts->reference) return QN_OK;
    out->cache_dir = typed ? strdup(typed) : qn_cache_beside(model);
    return out->cache_dir ? QN_OK : QN_NOMEM(err, "a path");
}

// --- engine --------------------------------------------------------------------------------------

static void keep_log(void *arg, qn_log_level level, const char *message) {
    static const char *const names[] = {[QN_LOG_ERROR] = "error",
                                        [QN_LOG_WARNING] = "warning",
                                        [QN_LOG_INFO] = "note",
                                        [QN_LOG_DEBUG] = "debug"};
    qn_loaded *loaded = arg;
    if (level == QN_LOG_INFO && loaded->no_notes) return;
    qn_shown clean; // the message may quote a hostile file
    qn_clean(&clean, message);
    static const char no_tokenizer[] = "no tokenizer";
    if (strncmp(clean.text, no_tokenizer, sizeof no_tokenizer - 1) == 0)
        snprintf(loaded->no_tokenizer, sizeof loaded->no_tokenizer, "%.255s", clean.text);
    if (loaded->engine)
        qn_print_line("quern: %s: %s", names[level], clean.text);
    else
        qn_buf_printf(&loaded->lines, "quern: %s: %s\n", names[level], clean.text);
}

void qn_err_name(qn_err *err, qn_status status, const char *path) {
    const bool is_switch = err && strncmp(err->message, "QN_", 3) == 0; // not the model's fault
    const bool is_told = err && !err->message[0];                       // by another rank
    const bool is_ranks = err && strncmp(err->message, "rank", 4) == 0; // "rank 1 of 2 was lost"
    if (err && !is_switch && !is_told && !is_ranks && !strstr(err->message, path))
        qn_err_prefix(err, status, "%s", path);
}

static bool begins_with(const char *message, const char *path) {
    const size_t n = strlen(path);
    return strncmp(message, path, n) == 0 && strchr(": /", message[n]);
}

// The option of the file that an error is about, or the model.
static void name_file(qn_err *err, qn_status status, const char *model, const qn_engine_opts *o) {
    const char *option = NULL;
    if (!err || !err->message[0]) return;
    if (o->mmproj && begins_with(err->message, o->mmproj)) option = "--mmproj";
    for (size_t i = 0; i < o->n_adapters; i++) {
        if (begins_with(err->message, o->adapters[i].path)) option = "--lora";
    }
    if (option && !begins_with(err->message, model))
        qn_err_prefix(err, status, "%s", option);
    else
        qn_err_name(err, status, model);
}

static qn_status open_once(qn_loaded *out, const char *path, const qn_open_opts *opts,
                           qn_err *err) {
    qn_progress progress = {.what = "loading", .unit = ""};
    qn_lora_list loras = {0};
    *out = (qn_loaded){.no_notes = opts->no_notes};
    if (opts->args && !opts->is_second) QN_TRY(qn_loras_parse(&loras, &opts->args->loras, err));
    const qn_status chosen = choose_cache(out, path, opts, err);
    if (chosen) qn_free(loras.items);
    if (chosen) return chosen;
    qn_engine_opts engine_opts = qn_open_engine_opts(opts);
    engine_opts.adapters = loras.items;
    engine_opts.n_adapters = loras.n;
    engine_opts.cache_dir = out->cache_dir;
    engine_opts.cache_use = opts->fills_cache                     ? QN_CACHE_DIR_FILL
                            : opts->args && opts->args->cache_dir ? QN_CACHE_DIR_KEEP
                                                                  : QN_CACHE_DIR_FOUND;
    engine_opts.log = keep_log;
    engine_opts.log_arg = out;
    engine_opts.progress = qn_progress_show;
    engine_opts.progress_arg = &progress;
    qn_engine *engine = NULL;
    qn_status status = qn_engine_open(&engine, path, &engine_opts, err);
    qn_progress_end(&progress);
    if (status) name_file(err, status, path, &engine_opts);
    qn_free(loras.items);
    if (!status && opts->needs_tokenizer && !qn_engine_tokenizer(engine)) {
        status = QN_FAIL(err, UNSUPPORTED, "%s",
                         *out->no_tokenizer ? out->no_tokenizer : "no tokenizer");
        qn_err_name(err, status, path);
        qn_engine_close(engine);
    }
    // Where it was not opened, too: a warning often says why.
    const bool says_lines = !status || !engine;
    for (char *line = out->lines.data, *end; says_lines && line && *line; line = end + 1) {
        end = strchr(line, '\n');
        qn_print_line("%.*s", (int)(end - line), line);
    }
    if (!status) out->engine = engine;
    qn_buf_deinit(&out->lines);
    if (status) {
        qn_free(out->cache_dir);
        out->cache_dir = NULL;
    }
    return status;
}

// A vision tower that came with the model's name and cannot be used leaves a model of text.
qn_status qn_cli_open(qn_loaded *out, const char *path, const qn_open_opts *opts, qn_err *err) {
    const bool has_found = opts->args && opts->args->mmproj && opts->args->mmproj_is_found;
    if (!has_found || opts->is_second) return open_once(out, path, opts, err);
    qn_err why;
    const qn_status status = open_once(out, path, opts, &why);
    if (status == QN_OK) return QN_OK;
    qn_engine_args args = *opts->args;
    qn_open_opts without = *opts;
    args.mmproj = NULL;
    without.args = &args;
    if (status == QN_STOPPED || open_once(out, path, &without, NULL)) {
        if (err) *err = why;
        return status;
    }
    if (!opts->no_notes) qn_print_line("quern: note: images are not read: %s", why.message);
    return QN_OK;
}

void qn_cli_close(qn_loaded *loaded) {
    qn_engine_close(loaded->engine);
    qn_free(loaded->cache_dir);
    *loaded = (qn_loaded){0};
}

// --- the bundled model ---------------------------------------------------------------------------

static const char bundled_name[] = "quern-mini-Q8_0.gguf";
// From the program's folder: in a build, and installed.
static const char *const bundled_folders[] = {"../models", "../share/quern"};

// The folder that the program was started from (owned: qn_free).
static qn_status program_folder(char **out, qn_err *err) {
    enum { LONGEST = 4096 };
    char path[LONGEST];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    if (n <= 0)
        return QN_FAIL(err, IO, "no MODEL was named, and the bundled one cannot be found: %s",
                       n < 0 ? strerror(errno) : "empty program path");
    path[n] = 0;
    *out = qn_path_folder(path);
    return *out ? QN_OK : QN_NOMEM(err, "a path");
}

qn_status qn_bundled_find(char **out, qn_err *err) {
    char *folder;
    QN_TRY(program_folder(&folder, err));
    qn_status status =
        QN_FAIL(err, IO, "no MODEL was named, and %s is not in %s/%s or %s/%s", bundled_name,
                folder, bundled_folders[0], folder, bundled_folders[1]);
    for (size_t i = 0; i < sizeof bundled_folders / sizeof *bundled_folders && status; i++) {
        qn_buf path = {0};
        qn_buf_printf(&path, "%s/%s/%s", folder, bundled_folders[i], bundled_name);
        char *text;
        if (qn_buf_take(&text, &path, err)) {
            status = QN_MEMORY;
            break;
        }
        if (qn_path_is_file(text)) {
            *out = text;
            status = QN_OK;
        } else {
            qn_free(text);
        }
    }
    qn_free(folder);
    return status;
}

// quern inspect: what is in a model file, without loading its weights.
#include "cli/command.h"
#include "cli/inspect.h"
#include "cli/out.h"
#include "cli/sampling.h"
#include "cli/facts.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

typedef struct inspect_options {
    bool json, tensors, keys, memory, coverage, fusions;
    int64_t context;
    const char *svg;
    qn_engine_args engine;
} inspect_options;

// What the compiler reports, in the order in which it is shown.
static const struct {
    const char *name, *title;
    qn_report report;
    size_t offset; // of the flag
} reports[] = {
    {"coverage", "kernels", QN_REPORT_DISPATCH, offsetof(inspect_options, coverage)},
    {"fusions", "fusions", QN_REPORT_FUSION, offsetof(inspect_options, fusions)},
};
enum { N_REPORTS = sizeof reports / sizeof *reports };

static bool wants_report(const inspect_options *options, size_t i) {
    return *(const bool *)((const char *)options + reports[i].offset);
}

// --- as text -------------------------------------------------------------------------------------

enum { MAX_ELEMENTS = 8, MAX_VALUE_BYTES = 80 };

// "10.5 M"; borrowed from `to`.
static const char *count_text(char to[24], int64_t n) {
    static const char *const units[] = {"", " K", " M", " G", " T"};
    double value = (double)n;
    size_t unit = 0;
    for (; value >= 1000 && unit + 1 < sizeof units / sizeof *units; unit++) value /= 1000;
    snprintf(to, 24, unit ? "%.1f%s" : "%.0f%s", value, units[unit]);
    return to;
}

QN_PRINTF(2, 3) static void print_row(const char *name, const char *fmt, ...) {
    printf("  %-15s ", name);
    va_list args;
    va_start(args, fmt);
    vprintf(fmt, args);
    va_end(args);
    putchar('\n');
}

static void print_number(const char *name, int64_t value) {
    if (value > 0) print_row(name, "%lld", (long long)value);
}

static void print_special_tokens(const qn_tokenizer *tokenizer, const qn_tokenizer_info *info) {
    const struct {
        const char *name;
        int32_t id;
    } tokens[] = {{"beginning", info->bos},
                  {"end", info->eos},
                  {"end of turn", info->eot},
                  {"unknown", info->unk},
                  {"padding", info->pad}};
    printf("  %-15s ", "special tokens");
    bool any = false;
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        size_t size = 0;
        const char *piece = qn_tokenizer_piece(tokenizer, tokens[i].id, &size);
        if (!piece) continue;
        char text[64];
        qn_shown storage;
        snprintf(text, sizeof text, "%.*s", size < sizeof text ? (int)size : 60, piece);
        printf("%s%s %d %s", any ? ", " : "", tokens[i].name, (int)tokens[i].id,
               qn_clean(&storage, text));
        any = true;
    }
    puts(any ? "" : "none");
}

static void print_tokenizer(const qn_inspection *in) {
    if (!in->tokenizer) {
        print_row("tokenizer", "none");
        return;
    }
    const qn_tokenizer_info info = qn_tokenizer_facts(in->tokenizer);
    qn_shown storage;
    print_row("tokenizer", "%s%s%s, %d tokens%s%s", info.model, *info.pre ? ", pattern " : "",
              qn_clean(&storage, info.pre), (int)info.n_tokens,
              info.add_bos ? ", beginning added" : "", info.add_eos ? ", end added" : "");
    print_special_tokens(in->tokenizer, &info);
}

static void print_model(const qn_inspection *in) {
    const qn_engine_info info = qn_engine_facts(in->engine);
    char count[24], bytes[24];
    print_row("parameters", "%s, weights %s as loaded", count_text(count, info.n_parameters),
              qn_bytes_text(bytes, info.weight_bytes));
    print_number("layers", info.n_layers);
    print_number("width", info.width);
    print_row("heads", "%lld of %lld, %lld for the KV cache", (long long)info.n_heads,
              (long long)info.head_size, (long long)info.n_kv_heads);
    print_number("feed-forward", info.ffn_width);
    print_number("experts", info.n_experts);
    print_number("vocabulary", info.n_vocab);
    print_number("context", info.context);
    qn_shown storage;
    if (*info.profile) print_row("profile", "%s", qn_clean(&storage, info.profile));
}

// "temp 0.6, top-k 20", by the names of the options; nothing if the model has none.
static void print_sampling(const qn_inspection *in) {
    const qn_sample_opts defaults = qn_sample_facts(in->engine);
    bool any = false;
    qn_sampling_default d;
    for (size_t i = 0; (d = qn_sampling_get_default(&defaults, i)).option; i++) {
        if (!*d.value) continue;
        qn_shown storage;
        if (!any) printf("  %-15s ", "sampling");
        printf("%s%s %s", any ? ", " : "", d.option + 2, qn_clean(&storage, d.value));
        any = true;
    }
    if (any) putchar('\n');
}

void qn_inspection_print(const qn_inspection *in) {
    char bytes[24];
    print_row("format", "%s, %s", qn_source_format(in->source),
              qn_bytes_text(bytes, qn_source_file_bytes(in->source)));
    if (in->engine)
        print_row("architecture", "%s", qn_engine_facts(in->engine).architecture);
    else
        print_row("architecture", "%s", in->architecture ? in->architecture : "not named");
    if (in->name) print_row("name", "%s", in->name);
    if (in->engine) print_model(in);
    print_tokenizer(in);
    print_row("chat template", "%s", in->has_chat_template ? "yes" : "no");
    if (in->engine) print_sampling(in);
}

static void print_summary(const qn_inspection *in) {
    qn_shown storage;
    printf("%s\n", qn_clean(&storage, in->path));
    qn_inspection_print(in);
}

static void print_tally(const qn_tally *tally, int64_t all) {
    char count[24], bytes[24];
    printf("  %-15s %-10s %7lld %12s %12s %6.1f %%\n", tally->group, tally->type,
           (long long)tally->n, count_text(count, tally->parameters),
           qn_bytes_text(bytes, tally->bytes), qn_share_of(tally->bytes, all));
}

static void print_tallies(const qn_inspection *in) {
    printf("\n  %-15s %-10s %7s %12s %12s %8s\n", "tensors", "type", "count", "parameters", "bytes",
           "share");
    for (size_t i = 0; i < in->n_tallies; i++) print_tally(&in->tallies[i], in->all.bytes);
    qn_tally all = in->all;
    all.group = "all", all.type = "";
    print_tally(&all, in->all.bytes);
}

// Where memory was asked for: bytes, and what the whole process will hold.
static void print_memory_bytes(const qn_inspection *in) {
    for (size_t i = 0; i < in->n_memory; i++) {
        const qn_memory *m = &in->memory[i].memory;
        print_row(i ? "" : "in bytes",
                  "%lld tokens: weights %lld, state %lld, activations %lld, total %lld",
                  (long long)in->memory[i].context, (long long)m->weights, (long long)m->state,
                  (long long)m->activations, (long long)m->total);
    }
    const qn_memory *last = &in->memory[in->n_memory - 1].memory;
    char program[24], resident[24];
    print_row("resident", "%s with the program's own %s%s",
              qn_bytes_text(resident, last->total - last->device + last->program),
              qn_bytes_text(program, last->program), in->n_memory > 1 ? ", in the last row" : "");
}

static void print_memory(const qn_inspection *in, bool with_bytes) {
    printf("\n  %-15s %12s %12s %12s %12s\n", "memory for", "weights", "state", "activations",
           "total");
    for (size_t i = 0; i < in->n_memory; i++) {
        const qn_memory *m = &in->memory[i].memory;
        char context[24], text[4][24];
        snprintf(context, sizeof context, "%lld tokens", (long long)in->memory[i].context);
        printf("  %-15s %12s %12s %12s %12s\n", context, qn_bytes_text(text[0], m->weights),
               qn_bytes_text(text[1], m->state), qn_bytes_text(text[2], m->activations),
               qn_bytes_text(text[3], m->total));
    }
    const qn_memory *last = &in->memory[in->n_memory - 1].memory;
    char cache[24], device[24];
    if (last->device)
        print_row("on the GPU", "%s of the total%s", qn_bytes_text(device, last->device),
                  in->n_memory > 1 ? " in the last row" : "");
    print_row("keys and values", "%s of the state%s, as %s", qn_bytes_text(cache, last->cache),
              in->n_memory > 1 ? " in the last row" : "", qn_engine_facts(in->engine).cache_type);
    if (with_bytes) print_memory_bytes(in);
}

static void print_tensors(const qn_inspection *in) {
    const size_t n = qn_source_n_tensors(in->source);
    printf("\n  %zu tensors\n", n);
    for (size_t i = 0; i < n; i++) {
        const qn_tensor_info tensor = qn_tensor_facts(in->source, i);
        char shape[128] = "(", bytes[24];
        qn_shown storage;
        for (int d = 0; d < tensor.n_dims; d++) {
            const size_t used = strlen(shape);
            snprintf(shape + used, sizeof shape - used, "%s%lld", d ? ", " : "",
                     (long long)tensor.dims[d]);
        }
        printf("  %-10s %10s  %s %s)\n", tensor.type, qn_bytes_text(bytes, tensor.bytes),
               qn_clean(&storage, tensor.name), shape);
    }
}

static qn_status print_keys(const qn_inspection *in, qn_err *err) {
    const size_t n = qn_source_n_keys(in->source);
    printf("\n  %zu keys\n", n);
    for (size_t i = 0; i < n; i++) {
        qn_key_info key = QN_INIT(qn_key_info);
        qn_shown storage;
        QN_TRY(qn_source_key_info(&key, in->source, i, MAX_ELEMENTS, err));
        size_t size = strlen(key.value);
        const bool is_cut = size > MAX_VALUE_BYTES;
        if (is_cut) {
            size = MAX_VALUE_BYTES;
            while (size > 0 && ((unsigned char)key.value[size] & 0xc0) == 0x80) size--;
        }
        printf("  %s (%s) = %.*s%s\n", qn_clean(&storage, key.name), key.type, (int)size, key.value,
               is_cut ? "..." : "");
        qn_free(key.value);
    }
    return QN_OK;
}

static qn_status print_reports(const qn_inspection *in, const inspect_options *options,
                               qn_err *err) {
    for (size_t i = 0; i < N_REPORTS; i++) {
        char *text = NULL;
        if (!wants_report(options, i)) continue;
        QN_TRY(qn_engine_report(&text, in->engine, reports[i].report, err));
        printf("\n  %s\n", reports[i].title);
        for (const char *line = text; *line;) {
            const size_t n = strcspn(line, "\n");
            if (n) fputs("  ", stdout);
            qn_print_text(stdout, line, n);
            putchar('\n');
            line += n + (line[n] != 0);
        }
        qn_free(text);
    }
    return QN_OK;
}

static qn_status print_as_text(const qn_inspection *in, const inspect_options *options,
                               qn_err *err) {
    print_summary(in);
    print_tallies(in);
    if (in->n_memory) print_memory(in, options->memory);
    if (options->tensors) print_tensors(in);
    if (options->keys) QN_TRY(print_keys(in, err));
    return in->engine ? print_reports(in, options, err) : QN_OK;
}

// --- as JSON -------------------------------------------------------------------------------------
// Values are NULL once memory was short (qn_json_put).

static void set_text(json_t **to, const char *name, const char *text) {
    qn_json_put(to, name, qn_json_string(text, strlen(text)));
}

static void set_int(json_t **to, const char *name, int64_t value) {
    qn_json_put(to, name, json_integer(value));
}

// `text` is JSON that the library wrote, or NULL.
static void set_parsed(json_t **to, const char *name, const char *text) {
    const qn_json_opts opts = {.what = name, .any = true, .takes_nul = true};
    json_t *value = NULL;
    if (!text)
        value = json_null();
    else if (qn_json_parse_as(&value, text, strlen(text), &opts, NULL))
        value = NULL; // what the library wrote fails for memory alone
    qn_json_put(to, name, value);
}

// Makes an array of n elements with `element`.
typedef json_t *element_fn(const qn_inspection *in, size_t i);

static void set_list(json_t **to, const char *name, const qn_inspection *in, size_t n,
                     element_fn *element) {
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) qn_json_push(&list, element(in, i));
    qn_json_put(to, name, list);
}

static json_t *tally_json(const qn_inspection *in, size_t i) {
    const qn_tally *tally = &in->tallies[i];
    json_t *o = json_object();
    set_text(&o, "group", tally->group);
    set_text(&o, "type", tally->type);
    set_int(&o, "tensors", tally->n);
    set_int(&o, "parameters", tally->parameters);
    set_int(&o, "bytes", tally->bytes);
    qn_json_put(&o, "share", json_real(qn_share_of(tally->bytes, in->all.bytes) / 100));
    return o;
}

static json_t *memory_json(const qn_inspection *in, size_t i) {
    const qn_memory_row *row = &in->memory[i];
    json_t *o = json_object();
    set_int(&o, "context", row->context);
    set_int(&o, "weights", row->memory.weights);
    set_int(&o, "state", row->memory.state);
    set_int(&o, "cache", row->memory.cache);
    set_text(&o, "cache_type", qn_engine_facts(in->engine).cache_type);
    set_int(&o, "activations", row->memory.activations);
    set_int(&o, "total", row->memory.total);
    if (row->memory.device) set_int(&o, "device", row->memory.device);
    if (in->with_resident)
        set_int(&o, "resident", row->memory.total - row->memory.device + row->memory.program);
    return o;
}

// The model's own sampling settings, by their names in qn_sample_opts; those that it has.
static json_t *sampling_json(const qn_engine *engine) {
    const qn_sample_opts defaults = qn_sample_facts(engine);
    json_t *o = json_object();
    qn_sampling_default d;
    for (size_t i = 0; (d = qn_sampling_get_default(&defaults, i)).option; i++) {
        const bool is_whole = !strpbrk(d.value, ".e");
        if (*d.value && d.is_text)
            set_text(&o, d.field, d.value);
        else if (*d.value && is_whole)
            set_int(&o, d.field, atoll(d.value));
        else if (*d.value)
            qn_json_put(&o, d.field, json_real(strtod(d.value, NULL)));
    }
    return o;
}

static json_t *tensor_json(const qn_inspection *in, size_t i) {
    const qn_tensor_info tensor = qn_tensor_facts(in->source, i);
    json_t *o = json_object();
    json_t *shape = json_array();
    for (int d = 0; d < tensor.n_dims; d++) qn_json_push(&shape, json_integer(tensor.dims[d]));
    set_text(&o, "name", tensor.name);
    set_text(&o, "type", tensor.type);
    qn_json_put(&o, "shape", shape);
    set_int(&o, "bytes", tensor.bytes);
    return o;
}

static json_t *key_json(const qn_inspection *in, size_t i) {
    qn_key_info key = QN_INIT(qn_key_info);
    if (qn_source_key_info(&key, in->source, i, SIZE_MAX, NULL)) return NULL;
    json_t *o = json_object();
    set_text(&o, "name", key.name);
    set_text(&o, "type", key.type);
    set_parsed(&o, "value", key.value);
    qn_free(key.value);
    return o;
}

static void set_id(json_t **to, const char *name, int32_t id) {
    qn_json_put(to, name, id < 0 ? json_null() : json_integer(id));
}

static json_t *tokenizer_json(const qn_tokenizer *tokenizer) {
    const qn_tokenizer_info info = qn_tokenizer_facts(tokenizer);
    json_t *o = json_object();
    set_text(&o, "model", info.model);
    set_text(&o, "pre", info.pre);
    set_int(&o, "tokens", info.n_tokens);
    set_id(&o, "bos", info.bos);
    set_id(&o, "eos", info.eos);
    set_id(&o, "eot", info.eot);
    set_id(&o, "unk", info.unk);
    set_id(&o, "pad", info.pad);
    qn_json_put(&o, "add_bos", json_boolean(info.add_bos));
    qn_json_put(&o, "add_eos", json_boolean(info.add_eos));
    return o;
}

static void set_model(json_t **to, const qn_engine *engine) {
    const qn_engine_info info = qn_engine_facts(engine);
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = {
        {"parameters", info.n_parameters}, {"weight_bytes", info.weight_bytes},
        {"layers", info.n_layers},         {"width", info.width},
        {"heads", info.n_heads},           {"kv_heads", info.n_kv_heads},
        {"head_size", info.head_size},     {"ffn_width", info.ffn_width},
        {"experts", info.n_experts},       {"vocabulary", info.n_vocab},
        {"context", info.context},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        set_int(to, numbers[i].name, numbers[i].value);
    if (*info.profile)
        set_text(to, "profile", info.profile);
    else
        qn_json_put(to, "profile", json_null());
}

// The lines of a report as a list of strings.
static qn_status set_reports(json_t **to, const qn_inspection *in, const inspect_options *options,
                             qn_err *err) {
    for (size_t i = 0; i < N_REPORTS; i++) {
        char *text = NULL;
        if (!wants_report(options, i)) continue;
        QN_TRY(qn_engine_report(&text, in->engine, reports[i].report, err));
        json_t *lines = json_array();
        for (const char *line = text; *line;) {
            const size_t n = strcspn(line, "\n");
            qn_json_push(&lines, qn_json_string(line, n));
            line += n + (line[n] != 0);
        }
        qn_json_put(to, reports[i].name, lines);
        qn_free(text);
    }
    return QN_OK;
}

static qn_status print_as_json(const qn_inspection *in, const inspect_options *options,
                               qn_err *err) {
    json_t *o = json_object();
    set_text(&o, "path", in->path);
    set_text(&o, "format", qn_source_format(in->source));
    set_int(&o, "file_bytes", qn_source_file_bytes(in->source));
    if (in->engine)
        set_text(&o, "architecture", qn_engine_facts(in->engine).architecture);
    else
        set_parsed(&o, "architecture", in->architecture);
    set_parsed(&o, "name", in->name);
    if (!in->engine) set_text(&o, "error", in->why.message);
    if (in->engine) set_model(&o, in->engine);
    qn_json_put(&o, "tokenizer", in->tokenizer ? tokenizer_json(in->tokenizer) : json_null());
    qn_json_put(&o, "chat_template", json_boolean(in->has_chat_template));
    if (in->engine) qn_json_put(&o, "sampling", sampling_json(in->engine));
    set_list(&o, "groups", in, in->n_tallies, tally_json);
    if (in->engine) set_list(&o, "memory", in, in->n_memory, memory_json);
    if (options->tensors) set_list(&o, "tensors", in, qn_source_n_tensors(in->source), tensor_json);
    if (options->keys) set_list(&o, "keys", in, qn_source_n_keys(in->source), key_json);
    const qn_status status = in->engine ? set_reports(&o, in, options, err) : QN_OK;
    if (!status) return qn_stdout_json(o, 2, err);
    json_decref(o);
    return status;
}

// --- the command ---------------------------------------------------------------------------------

static qn_status check_inspect(const qn_call *call, qn_err *err) {
    const inspect_options *options = call->options;
    QN_TRY(qn_engine_args_check(&options->engine, err));
    return qn_outfile_check("--svg", options->svg, err);
}

static qn_status write_picture(const qn_inspection *in, const char *path, qn_err *err) {
    char *picture = NULL;
    QN_TRY(qn_inspection_draw(&picture, in, err));
    const qn_bytes part = {picture, strlen(picture)};
    const qn_status status = qn_outfile_save(path, &qn_kind_svg, &part, 1, err);
    qn_free(picture);
    return status;
}

static qn_status run_inspect(const qn_call *call, qn_err *err) {
    const inspect_options *options = call->options;
    const qn_inspect_opts opts = {
        .args = &options->engine, .context = options->context, .all_memory = options->memory};
    qn_inspection in;
    QN_TRY(qn_inspection_init(&in, call->args[0], &opts, err));
    qn_status status = options->svg ? write_picture(&in, options->svg, err) : QN_OK;
    if (!status)
        status =
            options->json ? print_as_json(&in, options, err) : print_as_text(&in, options, err);
    if (!status) status = qn_stdout_check(err);
    if (!status && !in.engine) { // shown, but it cannot run
        if (err) *err = in.why;
        status = in.why.status;
    }
    qn_inspection_deinit(&in);
    return status;
}

static const qn_option inspect_table[] = {
    {.name = "--json",
     .help = "print one JSON object",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, json)},
    {.name = "--tensors",
     .help = "list every tensor: type, bytes, name, shape with the outermost dimension first",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, tensors)},
    {.name = "--keys",
     .help = "list the metadata keys of the file (of config.json for a checkpoint); long values "
             "are cut, except in JSON",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, keys)},
    {.name = "--memory",
     .help = "memory needed to run, for several context lengths",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, memory)},
    {.name = "--context",
     .alias = "-c",
     .arg = "N",
     .help = "memory for a context of N tokens (default: 4096, or the model's limit if lower)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(inspect_options, context),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--coverage",
     .help = "which kernel runs each operation: native, decomposed or rewritten",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, coverage)},
    {.name = "--fusions",
     .help = "which passes of the compiler changed the graph, and how often",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(inspect_options, fusions)},
    {.name = "--svg",
     .arg = "FILE",
     .help = "also write a chart of the sizes by tensor group and type",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(inspect_options, svg)},
    QN_OPTION_DEVICE_SHOWN(inspect_options),
    QN_OPTION_GPU_LAYERS(inspect_options),
    QN_OPTIONS_ROPE(inspect_options),
    QN_OPTION_NUMERICS(inspect_options),
    QN_OPTION_CACHE_TYPE(inspect_options),
};

const qn_command qn_cmd_inspect = {
    .name = "inspect",
    .args = "MODEL",
    .summary = "Shows what is in a model file: architecture, sizes, types, tokenizer, memory.",
    .notes =
        "No weights are loaded. A file that can be read but not run, such as one of an unknown "
        "architecture, is shown too; the exit code is then 1 and stderr says why.",
    .options = inspect_table,
    .n_options = sizeof inspect_table / sizeof *inspect_table,
    .options_size = sizeof(inspect_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_inspect,
    .run = run_inspect,
};

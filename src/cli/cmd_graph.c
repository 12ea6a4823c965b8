// quern graph: what a model computes, as text or as a picture.
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/facts.h"

#include <string.h>

typedef struct graph_options {
    int stage; // a word
    int64_t rows, cached;
    const char *svg;
    qn_engine_args engine;
} graph_options;

// As in the enum of quern.h.
static const char *const stages[] = {"high", "mid", "low", NULL};

static qn_graph_stage stage_of(const graph_options *options) {
    return options->stage ? (qn_graph_stage)(options->stage - 1) : QN_STAGE_HIGH;
}

static qn_status check_graph(const qn_call *call, qn_err *err) {
    const graph_options *options = call->options;
    if ((options->rows || options->cached) && stage_of(options) != QN_STAGE_LOW)
        return QN_FAIL(err, ARGUMENT, "--rows and --cached need --stage low, got '%s'",
                       stages[stage_of(options)]);
    if (options->cached && !options->rows)
        return QN_FAIL(err, ARGUMENT, "--cached %lld needs --rows", (long long)options->cached);
    QN_TRY(qn_engine_args_check(&options->engine, err));
    return qn_outfile_check("--svg", options->svg, err);
}

static qn_status check_rows(const graph_options *options, int64_t context, qn_err *err) {
    if (options->rows <= context && options->cached <= context - options->rows) return QN_OK;
    return QN_FAIL(err, LIMIT, "--rows %lld, --cached %lld: the model has a context of %lld tokens",
                   (long long)options->rows, (long long)options->cached, (long long)context);
}

static qn_status run_graph(const qn_call *call, qn_err *err) {
    const graph_options *options = call->options;
    const qn_open_opts open_opts = {.args = &options->engine, .no_weights = true};
    const qn_graph_opts graph_opts = QN_INIT(qn_graph_opts, .stage = stage_of(options),
                                             .form = options->svg ? QN_GRAPH_SVG : QN_GRAPH_TEXT,
                                             .rows = options->rows, .cached = options->cached);
    qn_loaded loaded;
    char *text = NULL;
    qn_status status = QN_OK;
    QN_TRY(qn_cli_open(&loaded, call->args[0], &open_opts, err));
    QN_TRY_TO(done, check_rows(options, qn_engine_facts(loaded.engine).context, err));
    QN_TRY_TO(done, qn_engine_graph(&text, loaded.engine, &graph_opts, err));
    if (options->svg)
        status =
            qn_outfile_save(options->svg, &qn_kind_svg, &(qn_bytes){text, strlen(text)}, 1, err);
    else
        fputs(text, stdout);

done:
    qn_free(text);
    qn_cli_close(&loaded);
    return status;
}

static const qn_option graph_table[] = {
    {.name = "--stage",
     .arg = "STAGE",
     .help = "form of the graph: high, as the model family builds it (the default); mid, after the "
             "passes; low, the plan: kernel calls in order with their buffers",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(graph_options, stage),
     .words = stages},
    {.name = "--rows",
     .alias = "-T",
     .arg = "N",
     .help = "with --stage low: a step of N tokens; also lists the address and size of each buffer",
     .kind = QN_OPTION_INT,
     .offset = offsetof(graph_options, rows),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--cached",
     .alias = "-S",
     .arg = "N",
     .help = "with --rows: tokens in the KV cache before the step (default 0)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(graph_options, cached),
     .min = 0,
     .max = INT32_MAX},
    {.name = "--svg",
     .arg = "OUT.svg",
     .help = "draw to OUT.svg instead: for high and mid the operations, identical layers once; for "
             "low the buffers, calls from left to right, addresses from bottom to top",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(graph_options, svg)},
    QN_OPTION_DEVICE_SHOWN(graph_options),
    QN_OPTION_NUMERICS(graph_options),
    QN_OPTION_CACHE_TYPE(graph_options),
};

const qn_command qn_cmd_graph = {
    .name = "graph",
    .args = "MODEL",
    .summary = "Prints the graph of tensor operations of a model.",
    .notes = "One line per operation, in the order of execution: values, type, shape, operation, "
             "inputs, attributes, layer. T is the number of tokens in a step, R the number of rows "
             "whose logits are wanted. No weights are loaded.",
    .options = graph_table,
    .n_options = sizeof graph_table / sizeof *graph_table,
    .options_size = sizeof(graph_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_graph,
    .run = run_graph,
};

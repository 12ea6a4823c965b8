// quern graph: what a model computes, as text or as a picture.
#include "cli/open.h"
#include "cli/out.h"

#include "cli/command.h"

#include <string.h>

typedef struct graph_options {
    const char *stage, *svg;
} graph_options;

static qn_status check_graph(const qn_call *call, qn_err *err) {
    const graph_options *options = call->options;
    if (options->stage && strcmp(options->stage, "high") != 0)
        return QN_FAIL(err, ARGUMENT, "--stage: '%s', but only 'high' exists so far",
                       options->stage);
    return qn_outfile_check("--svg", options->svg, err);
}

static qn_status run_graph(const qn_call *call, qn_err *err) {
    const graph_options *options = call->options;
    qn_loaded loaded;
    char *text = NULL;
    qn_status status = QN_OK;
    QN_TRY(qn_cli_open(&loaded, call->args[0], &(qn_open_opts){.no_weights = true}, err));
    const qn_graph_form form = options->svg ? QN_GRAPH_SVG : QN_GRAPH_TEXT;
    QN_TRY_TO(done, qn_engine_graph(&text, loaded.engine, form, err));
    if (options->svg)
        status =
            qn_outfile_save(options->svg, &qn_kind_svg, &(qn_part){text, strlen(text)}, 1, err);
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
     .help = "which form of the graph: 'high', what the model's family wrote (the only one so far)",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(graph_options, stage)},
    {.name = "--svg",
     .arg = "OUT.svg",
     .help = "write a picture into this file instead; equal layers are drawn once",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(graph_options, svg)},
};

const qn_command qn_cmd_graph = {
    .name = "graph",
    .args = "MODEL",
    .summary = "Prints the graph of tensor operations that a model stands for.",
    .notes = "One line per operation, in the order of execution: values, type, shape, operation, "
             "inputs, attributes, layer. T is the number of tokens in a step, R the number of "
             "rows whose scores are wanted. No weights are loaded.",
    .options = graph_table,
    .n_options = sizeof graph_table / sizeof *graph_table,
    .options_size = sizeof(graph_options),
    .least_args = 1,
    .most_args = 1,
    .check = check_graph,
    .run = run_graph,
};

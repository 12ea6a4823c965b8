// quern template: messages -> the text of a prompt, by the model's own chat template.
#include "cli/args.h"
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/terminal.h"

#include "core/mem.h"

#include <string.h>
#include <unistd.h>

typedef struct template_options {
    const char *name;
} template_options;

static qn_status print_prompt(const qn_template *template, const char *path, qn_err *err) {
    qn_buf request = {0};
    char *text = NULL;
    size_t size;
    qn_print_input_wanted("a JSON object with \"messages\"");
    qn_status status = qn_stdin_read(&request, QN_MAX_PROMPT, err);
    if (!status) {
        status = qn_template_render(&text, &size, template, request.data ? request.data : "",
                                    request.size, NULL, err);
        const bool is_template = status && strncmp(err->message, "request", 7) != 0;
        if (is_template) qn_err_name(err, status, path);
    }
    qn_buf_deinit(&request);
    if (status) return status;
    qn_print_text(stdout, text, size);
    if (isatty(STDOUT_FILENO) && (size == 0 || text[size - 1] != '\n')) putchar('\n');
    qn_free(text);
    return QN_OK;
}

static qn_status run_template(const qn_call *call, qn_err *err) {
    const template_options *options = call->options;
    qn_template *template = NULL;
    QN_TRY(qn_template_open(&template, call->args[0], options->name, err));
    const qn_status status = print_prompt(template, call->args[0], err);
    qn_template_destroy(template);
    return status;
}

static const qn_option template_table[] = {
    {.name = "--name",
     .arg = "NAME",
     .help = "the template of this name where a model has several, such as tool_use",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(template_options, name)},
};

const qn_command qn_cmd_template = {
    .name = "template",
    .args = "MODEL",
    .summary = "Renders messages with a chat template.",
    .notes = "MODEL may also be a .jinja file. Standard input is a JSON object: \"messages\", and "
             "optionally \"tools\", \"kwargs\" (names and values for the template), "
             "\"add_generation_prompt\" (default true), \"bos_token\" and \"eos_token\" (default: "
             "the model's), \"now\" (default: the local time; \"2026-01-02T03:04:05\"). The text "
             "is printed as it is; a newline follows on a terminal only.",
    .options = template_table,
    .n_options = sizeof template_table / sizeof *template_table,
    .options_size = sizeof(template_options),
    .min_args = 1,
    .max_args = 1,
    .run = run_template,
};

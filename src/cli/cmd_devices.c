// quern devices: where models can run on this machine.
#include "cli/command.h"
#include "cli/out.h"
#include "core/json.h"
#include "quern.h"

#include <stdio.h>

typedef struct devices_options {
    bool json;
} devices_options;

static qn_status print_json(qn_err *err) {
    json_t *list = json_array();
    for (size_t i = 0; qn_device_name(i); i++)
        qn_json_push(&list, json_pack("{s:s, s:s, s:b}", "name", qn_device_name(i), "about",
                                      qn_device_about(i), "default", i == 0));
    return qn_stdout_json(list, 0, err);
}

static qn_status run_devices(const qn_call *call, qn_err *err) {
    const devices_options *options = call->options;
    if (options->json) return print_json(err);
    for (size_t i = 0; qn_device_name(i); i++)
        printf("%-14s %s%s\n", qn_device_name(i), qn_device_about(i), i ? "" : " (the default)");
    return QN_OK;
}

static const qn_option devices_table[] = {
    {.name = "--json",
     .help = "print one JSON array",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(devices_options, json)},
};

const qn_command qn_cmd_devices = {
    .name = "devices",
    .args = "",
    .summary = "Lists the devices of this machine that can run a model.",
    .notes =
        "The names are those of --device. Every device computes the same results, bit for bit. "
        "JSON: [{\"name\", \"about\", \"default\"}].",
    .options = devices_table,
    .n_options = sizeof devices_table / sizeof *devices_table,
    .options_size = sizeof(devices_options),
    .run = run_devices,
};

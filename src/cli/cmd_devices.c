// quern devices: where models can run on this machine.
#include "cli/command.h"
#include "cli/inspect.h"
#include "cli/out.h"
#include "core/json.h"
#include "quern.h"

#include <stdio.h>

typedef struct devices_options {
    bool json;
} devices_options;

static json_t *to_json(const qn_device_info *d, bool is_default) {
    char compute[32];
    json_t *o = json_pack("{s:s, s:s, s:b}", "name", d->name, "about", d->about, "default",
                          (int)is_default);
    if (!d->model[0]) return o;
    snprintf(compute, sizeof compute, "%d.%d", d->compute_major, d->compute_minor);
    qn_json_put(&o, "model", json_string(d->model));
    qn_json_put(&o, "memory", json_integer(d->memory));
    qn_json_put(&o, "compute", json_string(compute));
    return o;
}

static qn_status print_json(qn_err *err) {
    json_t *list = json_array();
    for (size_t i = 0; qn_device_name(i); i++) {
        qn_device_info d = QN_INIT(qn_device_info);
        const qn_status status = qn_device_get_info(&d, i, err);
        if (status) {
            json_decref(list);
            return status;
        }
        qn_json_push(&list, to_json(&d, i == 0));
    }
    return qn_stdout_json(list, 0, err);
}

static qn_status print_line(size_t i, qn_err *err) {
    char bytes[24];
    qn_device_info d = QN_INIT(qn_device_info);
    QN_TRY(qn_device_get_info(&d, i, err));
    printf("%-14s %s%s", d.name, d.about, i ? "" : " (the default)");
    if (d.model[0])
        printf(": %s, %s, %d.%d", d.model, qn_bytes_text(bytes, d.memory), d.compute_major,
               d.compute_minor);
    printf("\n");
    return QN_OK;
}

static qn_status run_devices(const qn_call *call, qn_err *err) {
    const devices_options *options = call->options;
    qn_err why;
    if (options->json) return print_json(err);
    for (size_t i = 0; qn_device_name(i); i++) QN_TRY(print_line(i, err));
    if (qn_device_check("cuda", &why)) fprintf(stderr, "no GPU: %s\n", why.message);
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
        "Of a GPU: its model, memory and compute capability. "
        "JSON: [{\"name\", \"about\", \"default\"}], of a GPU also \"model\", \"memory\" (bytes) "
        "and \"compute\".",
    .options = devices_table,
    .n_options = sizeof devices_table / sizeof *devices_table,
    .options_size = sizeof(devices_options),
    .run = run_devices,
};

// The devices of this machine, by name. See quern.h.
#include "backends/device.h"

const char *qn_device_name(size_t i) {
    const char *name;
    const qn_device_kind *kind;
    return qn_device_list(&name, &kind, i) ? name : NULL;
}

const char *qn_device_about(size_t i) {
    const char *name;
    const qn_device_kind *kind;
    if (!qn_device_list(&name, &kind, i)) return NULL;
    return name == kind->name ? kind->about : kind->about_variant;
}

// The devices of this machine, by name. See quern.h.
#include "backends/device.h"
#include "core/structs.h"

#include <string.h>

const char *qn_device_name(size_t i) {
    const char *name;
    const qn_device_kind *kind;
    return qn_device_list(&name, &kind, i) ? name : NULL;
}

static const char *about(const char *name, const qn_device_kind *kind) {
    return name == kind->name ? kind->about : kind->about_variant;
}

const char *qn_device_about(size_t i) {
    const char *name;
    const qn_device_kind *kind;
    return qn_device_list(&name, &kind, i) ? about(name, kind) : NULL;
}

qn_status qn_device_get_info(qn_device_info *out, size_t i, qn_err *err) {
    QN_NEED(out, err);
    QN_TRY(QN_RESULT_CHECK(qn_device_info, out, err));
    const qn_device_kind *kind;
    qn_device_info info = {0};
    if (!qn_device_list(&info.name, &kind, i))
        return QN_FAIL(err, ARGUMENT, "there is no device %zu", i);
    info.about = about(info.name, kind);
    const char *variant = strchr(info.name, ':');
    if (kind->describe) QN_TRY(kind->describe(&info, variant ? variant + 1 : NULL, err));
    QN_RESULT_WRITE(qn_device_info, out, &info);
    return QN_OK;
}

qn_status qn_device_check(const char *name, qn_err *err) {
    QN_NEED(name, err);
    qn_device *device;
    QN_TRY(qn_device_open(&device, name, NULL, NULL, err));
    qn_device_close(device);
    return QN_OK;
}

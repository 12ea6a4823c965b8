#include "core/err.h"

#include "core/printable.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void qn_err_set(qn_err *err, qn_status status, const char *file, int line, const char *fmt, ...) {
    if (!err) return;
    char text[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    qn_text_clean(text);
    err->status = status;
    err->file = file;
    err->line = line;
    memcpy(err->message, text, sizeof text);
}

qn_status qn_err_prefix(qn_err *err, qn_status status, const char *fmt, ...) {
    if (!err || status == QN_OK) return status;
    char text[sizeof err->message];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    const size_t used = strlen(text);
    const size_t room = sizeof text - used; // at least 1
    if (room > 3) snprintf(text + used, room, ": %.*s", (int)room - 3, err->message);
    qn_text_clean(text);
    memcpy(err->message, text, sizeof text);
    return status;
}

const char *qn_status_name(qn_status status) {
    static const char *const names[] = {
#define NAME(name, text) #name,
        QN_STATUS_MAP(NAME)
#undef NAME
    };
    return (size_t)status < sizeof names / sizeof names[0] ? names[status] : "UNKNOWN";
}

#define TEXT_OF(x)                        #x
#define VERSION_TEXT(major, minor, patch) TEXT_OF(major) "." TEXT_OF(minor) "." TEXT_OF(patch)

const char *qn_version(void) {
    return VERSION_TEXT(QN_VERSION_MAJOR, QN_VERSION_MINOR, QN_VERSION_PATCH);
}

#include "core/debug.h"

#include <errno.h>
#include <stdlib.h>

static qn_status read_int(int *out, const char *name, const char *text, qn_err *err) {
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (end == text || *end || errno || value < 0 || value > 1000000)
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a number from 0 to 1000000", name, text);
    *out = (int)value;
    return QN_OK;
}

static qn_status read_text(const char **out, const char *name, const char *text, qn_err *err) {
    if (!*text) return QN_FAIL(err, ARGUMENT, "%s: empty", name);
    *out = text;
    return QN_OK;
}

#define READER(field) _Generic((field), int * : read_int, const char ** : read_text)

qn_status qn_switches_read(qn_switches *out, qn_err *err) {
    qn_switches got = {
#define SWITCH(env, type, field, value, meaning) .field = value,
#include "core/switch.def"
#undef SWITCH
    };
    const char *text;
#define SWITCH(env, type, field, value, meaning)                                                   \
    text = getenv(env);                                                                            \
    if (text) QN_TRY(READER (&got.field)(&got.field, env, text, err));
#include "core/switch.def"
#undef SWITCH
    *out = got;
    return QN_OK;
}

#include "core/debug.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

extern char **environ;

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
    (void)name, (void)err;
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
    if (text && *text) QN_TRY(READER (&got.field)(&got.field, env, text, err));
#include "core/switch.def"
#undef SWITCH
    *out = got;
    return QN_OK;
}

static const char *const names[] = {
#define SWITCH(env, type, field, value, meaning) env,
#include "core/switch.def"
#undef SWITCH
};

const char *const *qn_switch_names(size_t *n) {
    *n = sizeof names / sizeof *names;
    return names;
}

// Variables have the form NAME=value.
static bool is_switch(const char *variable, size_t size) {
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strlen(names[i]) == size && memcmp(names[i], variable, size) == 0) return true;
    }
    return false;
}

const char *qn_switch_stray(size_t *at, size_t *size) {
    static const char prefix[] = "QN_";
    for (; environ && environ[*at]; ++*at) {
        const char *variable = environ[*at];
        const size_t n = strcspn(variable, "=");
        if (strncmp(variable, prefix, strlen(prefix)) != 0 || is_switch(variable, n)) continue;
        ++*at;
        *size = n;
        return variable;
    }
    return NULL;
}

static const char *read_variable(const char *name) {
    const char *text = getenv(name);
    return text && *text ? text : NULL;
}

qn_surroundings qn_surroundings_read(void) {
    return (qn_surroundings){.term = read_variable("TERM"),
                             .no_color = read_variable("NO_COLOR"),
                             .home = read_variable("HOME")};
}

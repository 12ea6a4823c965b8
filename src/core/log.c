#include "core/log.h"

#include <stdarg.h>
#include <stdio.h>

void qn_log(qn_log_fn *log, void *arg, qn_log_level level, const char *fmt, ...) {
    if (!log) return;
    char text[512];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    log(arg, level, text);
}

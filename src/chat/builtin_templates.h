// Templates for models that come without one.
#ifndef QN_CHAT_BUILTIN_TEMPLATES_H
#define QN_CHAT_BUILTIN_TEMPLATES_H

#include "core/err.h"

typedef struct qn_builtin_template {
    const char *name, *title;
    const char *open, *close; // the tokens around a message, by which a vocabulary is recognised
    const char *text;
} qn_builtin_template;

// The i-th; NULL after the last.
const qn_builtin_template *qn_builtin_template_at(size_t i);

#endif

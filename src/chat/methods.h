// The methods of texts.
#ifndef QN_CHAT_METHODS_H
#define QN_CHAT_METHODS_H

#include "chat/render.h"

extern const qn_jinja_builtin qn_jinja_text_methods[];
extern const size_t qn_jinja_n_text_methods;

#endif

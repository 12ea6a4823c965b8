// A chat template: messages -> the text of a prompt. The language is that of Jinja2 as transformers
// runs it; docs/templates.md says what of it is there.
//
// A template is constant after it was made and may be rendered by many threads at a time. It sees
// nothing but the request: no files, no names of the program, no state between renderings.
#ifndef QN_CHAT_TEMPLATE_H
#define QN_CHAT_TEMPLATE_H

#include "core/err.h"
#include "core/str.h"

// What a template may use up. A template that wants more fails with QN_LIMIT.
typedef struct qn_chat_limits {
    int64_t steps;            // see qn_jinja_charge and qn_jinja_spend: some 20 ns of work each
    size_t memory;            // bytes of values
    size_t output;            // bytes of text: of the result, and of each captured part
    int depth;                // nodes inside nodes, and values inside values
    size_t stack;             // bytes of the calling thread's stack below the call; 0: no limit
    qn_progress_fn *progress; // called with the steps taken and `steps`; false stops. NULL: none
    void *progress_arg;
    const qn_stop_flag *stop; // asked as often; NULL: none
    int64_t *taken; // becomes the steps taken, also if the template fails. NULL: not wanted
} qn_chat_limits;

// What a rendering may take of the thread's stack by default. Frames of sanitizers are larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QN_CHAT_STACK ((size_t)1 << 20)
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(memory_sanitizer) ||                         \
    __has_feature(thread_sanitizer)
#define QN_CHAT_STACK ((size_t)1 << 20)
#endif
#endif
#ifndef QN_CHAT_STACK
#define QN_CHAT_STACK ((size_t)160 << 10)
#endif

extern const qn_chat_limits qn_chat_default_limits;

// Sets what `bos_token` and `eos_token` are where a request has none; NULL: nothing.
QN_MUST_CHECK qn_status qn_template_set_ends(qn_template *template, const qn_str *bos,
                                             const qn_str *eos, qn_err *err);
// They are those of the model that the template is used with, whatever its tokenizer says.
void qn_template_own_ends(qn_template *template);
bool qn_template_has_own_ends(const qn_template *template);
// Whether the text of the template has this word somewhere.
bool qn_template_mentions(const qn_template *template, const char *word);
// qn_template_render with other limits than the default ones.
QN_MUST_CHECK qn_status qn_template_render_within(char **text, size_t *size,
                                                  const qn_template *template, const char *request,
                                                  size_t request_size, const qn_chat_limits *limits,
                                                  qn_err *err);

#endif

#include "chat/builtin_templates.h"

#include <stdio.h>
#include <string.h>

static const qn_builtin_template templates[] = {
    {"chatml", "ChatML", "<|im_start|>", "<|im_end|>",
     "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
     "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"gemma", "Gemma's format", "<start_of_turn>", "<end_of_turn>",
     "{{ bos_token }}{% set ns = namespace(first='') %}{% for message in messages %}"
     "{% if message.role == 'system' %}{% set ns.first = message.content ~ '\n\n' %}{% else %}"
     "<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}\n{{ ns.first }}"
     "{{ message.content }}<end_of_turn>\n{% set ns.first = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
};
enum { N_TEMPLATES = sizeof templates / sizeof *templates };

const qn_builtin_template *qn_builtin_template_at(size_t i) {
    return i < N_TEMPLATES ? &templates[i] : NULL;
}

const char *qn_template_builtin_name(size_t i) {
    return i < N_TEMPLATES ? templates[i].name : NULL;
}

static const qn_builtin_template *find(const char *name) {
    for (size_t i = 0; i < N_TEMPLATES; i++) {
        if (strcmp(templates[i].name, name) == 0) return &templates[i];
    }
    return NULL;
}

const char *qn_template_builtin_title(const char *name) {
    const qn_builtin_template *found = find(name);
    return found ? found->title : NULL;
}

qn_status qn_template_create_builtin(qn_template **out, const char *name, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(name, err);
    const qn_builtin_template *found = find(name);
    if (found) return qn_template_create(out, found->text, strlen(found->text), err);
    char all[80] = "";
    for (size_t i = 0; i < N_TEMPLATES; i++) {
        const size_t used = strlen(all);
        snprintf(all + used, sizeof all - used, "%s%s", i ? ", " : "", templates[i].name);
    }
    return QN_FAIL(err, ARGUMENT, "no built-in template '%.40s', want one of: %s", name, all);
}

// Any text as a chat template: refused with a message, or rendered within small limits. One size of
// text in 64 gets the real limits, with a fifth of the steps because a sanitizer makes them five
// times as long: what it does then must end within libFuzzer's -timeout.
#include "chat/template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char request[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be brief.\"}, {\"role\": \"user\", "
    "\"content\": \"Gr\\u00fc\\u00dfe \\n x\"}, {\"role\": \"assistant\", \"content\": \"\", "
    "\"tool_calls\": [{\"function\": {\"name\": \"f\", \"arguments\": {\"a\": [1, 2.5, null, "
    "true]}}}]}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
    "\"parameters\": {\"properties\": {\"a\": {\"type\": \"string\"}}}}}], \"bos_token\": \"<s>\", "
    "\"eos_token\": \"</s>\", \"now\": \"2026-01-02\", \"kwargs\": {\"s\": \"text\", \"i\": 3, "
    "\"l\": [3, 1, 2], \"d\": {\"b\": 1, \"a\": 2}}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const qn_chat_limits small = {
        .steps = 100000, .memory = 4 << 20, .output = 1 << 20, .depth = 200};
    qn_chat_limits limits = size % 64 == 63 ? qn_chat_default_limits : small;
    if (limits.steps > small.steps) limits.steps /= 5;
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_err err = {0};
    qn_template *template = NULL;
    char *out = NULL;
    size_t n = 0;
    qn_status status = qn_template_create(&template, text, size, &err);
    free(text); // the template keeps nothing of it
    if (!status)
        status = qn_template_render_within(&out, &n, template, request, sizeof request - 1, &limits,
                                           &err);
    if (status ? out || !err.message[0] : n > limits.output || out[n]) abort();
    qn_free(out);
    qn_template_destroy(template);
    return 0;
}

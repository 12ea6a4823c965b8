#include "chat/call_forms.h"

#include "core/buf.h"
#include "core/chars.h"
#include "core/mem.h"

#define NAME      "quern_tool"
#define PARAMETER "quern_parameter"
#define VALUE     "quernvalue"
#define ID        "quern0123"

// The first that fits is taken, so that what is more special comes first.
static const qn_call_form forms[] = {
    // Qwen, Hermes
    {.open = "<tool_call>",
     .close = "</tool_call>",
     .before = "~{~\"name\":~\"",
     .between = "\",~\"arguments\":~",
     .after = "~}~",
     .is_quoted = true},
    // Qwen3-Coder, Qwen3.5
    {.open = "<tool_call>",
     .close = "</tool_call>",
     .before = "\n<function=",
     .between = ">\n",
     .after = "</function>\n",
     .is_xml = true},
    // Mistral: lists, with and without ids; and names before tags
    {.open = "[TOOL_CALLS]",
     .before = "{~\"name\":~\"",
     .between = "\",~\"arguments\":~",
     .after = ",~\"id\":~\"#\"~}",
     .is_quoted = true,
     .is_list = true},
    {.open = "[TOOL_CALLS]",
     .before = "{~\"name\":~\"",
     .between = "\",~\"arguments\":~",
     .after = "~}",
     .is_quoted = true,
     .is_list = true},
    {.open = "[TOOL_CALLS]", .before = "", .between = "[CALL_ID]#[ARGS]", .after = ""},
    {.open = "[TOOL_CALLS]", .before = "", .between = "[ARGS]", .after = ""},
    // Llama 3
    {.open = "<|python_tag|>",
     .before = "{~\"name\":~\"",
     .between = "\",~\"parameters\":~",
     .after = "~}",
     .is_quoted = true,
     .is_single = true},
    {.open = "{\"name\": \"",
     .before = "",
     .between = "\",~\"parameters\":~",
     .after = "~}",
     .is_quoted = true,
     .is_bare = true,
     .is_single = true},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

const qn_call_form *qn_call_form_at(size_t i) { return i < N_FORMS ? &forms[i] : NULL; }

const qn_call_form *qn_call_form_usual(void) { return &forms[0]; }

// --- what a template writes ----------------------------------------------------------------------

const char *qn_call_form_request(bool generates) {
#define BEGIN                                                                                      \
    "{\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" NAME                       \
    "\", \"description\": \"\", \"parameters\": {\"type\": \"object\", \"properties\": "           \
    "{\"" PARAMETER "\": {\"type\": \"string\", \"description\": \"\"}}}}}], "                     \
    "\"now\": \"2026-01-02T03:04:05\", \"bos_token\": \"\", \"eos_token\": \"\", \"messages\": "   \
    "[{\"role\": \"user\", \"content\": \"Go.\"}"
    static const char with_call[] =
        BEGIN ", {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [{\"id\": \"" ID
              "\", \"type\": \"function\", \"function\": {\"name\": \"" NAME
              "\", \"arguments\": {\"" PARAMETER "\": \"" VALUE "\"}}}]}], "
              "\"add_generation_prompt\": false}";
    static const char without[] = BEGIN "], \"add_generation_prompt\": true}";
#undef BEGIN
    return generates ? without : with_call;
}

// Adds a text without its blanks, and the id for '#'.
static void add_bare(qn_buf *to, const char *text) {
    for (; text && *text; text++) {
        if (*text == '#')
            qn_buf_text(to, ID);
        else if (*text != '~' && !qn_is_blank(*text))
            qn_buf_add(to, text, 1);
    }
}

// The call of the made-up conversation in a form, without blanks.
static void write_call(qn_buf *to, const qn_call_form *form) {
    qn_buf_clear(to);
    add_bare(to, form->open);
    if (form->is_list) qn_buf_text(to, "[");
    add_bare(to, form->before);
    qn_buf_text(to, NAME);
    add_bare(to, form->between);
    qn_buf_text(to, form->is_xml ? "<parameter=" PARAMETER ">" VALUE "</parameter>"
                                 : "{\"" PARAMETER "\":\"" VALUE "\"}");
    add_bare(to, form->after);
    if (form->is_list) qn_buf_text(to, "]");
    add_bare(to, form->close);
}

// A call without tags is one only where the answer begins with it.
static bool is_written(const qn_call_form *form, const char *call, const char *text,
                       const char *prompt) {
    const char *at = strstr(text, call);
    if (!at || !form->is_bare) return at != NULL;
    const size_t n = prompt ? strlen(prompt) : 0;
    return n && (size_t)(at - text) == n && memcmp(text, prompt, n) == 0;
}

qn_status qn_call_form_find(const qn_call_form **out, const char *text, const char *prompt,
                            qn_err *err) {
    qn_buf bare = {0}, start = {0}, call = {0};
    const qn_call_form *found = NULL;
    add_bare(&bare, text);
    add_bare(&start, prompt);
    for (size_t i = 0; i < N_FORMS && !found; i++) {
        write_call(&call, &forms[i]);
        if (bare.failed || start.failed || call.failed || !bare.data) break;
        if (is_written(&forms[i], call.data, bare.data, start.data)) found = &forms[i];
    }
    const bool failed = bare.failed || start.failed || call.failed;
    qn_buf_deinit(&bare);
    qn_buf_deinit(&start);
    qn_buf_deinit(&call);
    if (failed) return QN_NOMEM(err, "a form of tool calls");
    *out = found;
    return QN_OK;
}

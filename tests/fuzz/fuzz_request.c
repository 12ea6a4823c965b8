// Any text as a request: the bundled model's template and a tokenizer make a prompt of it, or it is
// refused with a message.
#include "chat/template.h"
#include "formats/source.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static qn_template *chat_template; // both opened once
static qn_tokenizer *tokenizer;

static void open_model(void) {
    qn_source *source;
    if (qn_source_open(&source, MODELS "/quern-mini-Q8_0.gguf", NULL)) abort();
    const qn_key *text = qn_source_find_key(source, "tokenizer.chat_template");
    if (!text || qn_template_create(&chat_template, text->as.s.data, text->as.s.size, NULL) ||
        qn_tokenizer_from_source(&tokenizer, source, NULL))
        abort();
    qn_source_close(source);
}

static void check_prompt(const qn_chat_prompt *p) {
    if (!p->text || strlen(p->text) > p->text_size || p->n_messages > p->n) abort();
    for (size_t i = 0; i < p->n; i++) {
        if (p->ids[i] < 0) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!chat_template) open_model();
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read after it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_err err = {0};
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    char *rendered = NULL;
    size_t n = 0;
    const qn_status status =
        qn_chat_prompt_create(&prompt, chat_template, tokenizer, text, size, NULL, &err);
    if (status ? prompt.ids || prompt.text || !err.message[0] : false) abort();
    // What is made a prompt can be rendered, to the same text.
    if (!status) {
        check_prompt(&prompt);
        if (qn_template_render(&rendered, &n, chat_template, text, size, NULL, &err)) abort();
        if (n != prompt.text_size || memcmp(rendered, prompt.text, n) != 0)
            abort(); // it tells no time
    }
    qn_free(rendered);
    qn_chat_prompt_deinit(&prompt);
    free(text);
    return 0;
}

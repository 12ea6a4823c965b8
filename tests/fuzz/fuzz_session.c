// Any text as a session file: refused with a message, or taken; what is written of a session that
// was taken is taken again, with the same messages.
#include "cli/args.h"
#include "cli/saved.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static json_t *model_json(void) {
    json_t *model = json_pack("{s:s, s:s, s:i, s:i}", "name", "M", "architecture", "qwen3",
                              "parameters", 1, "vocabulary", 2);
    if (!model) abort();
    return model;
}

static qn_talk make_talk(qn_run_args *args) {
    *args = (qn_run_args){0};
    qn_talk t = {.args = args};
    if (qn_chat_create(&t.chat, NULL)) abort();
    return t;
}

static void drop_talk(qn_talk *t) {
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) qn_option_clear(t->args, option);
    qn_talk_close(t);
}

static bool is_same(const qn_talk *a, const qn_talk *b) {
    char *x = NULL, *y = NULL;
    if (qn_chat_print_messages(&x, a->chat, NULL) || qn_chat_print_messages(&y, b->chat, NULL))
        abort();
    const bool is_same = strcmp(x, y) == 0;
    qn_free(x);
    qn_free(y);
    return is_same;
}

static void take_again(const qn_talk *t, const json_t *model) {
    qn_run_args args;
    qn_talk again = make_talk(&args);
    qn_buf text = {0};
    size_t n_images = 0;
    qn_err err = {0};
    const qn_status status = qn_saved_print(&text, &n_images, t, model_json(), &err);
    // A message that fits a file alone may be too deep inside a session; nothing is written then.
    if (status && status != QN_LIMIT) abort();
    if (!status && (qn_saved_take(&again, &n_images, model, text.data, text.size, "again", &err) ||
                    !is_same(t, &again)))
        abort();
    if (n_images) abort(); // a session that was taken has none
    qn_buf_deinit(&text);
    drop_talk(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read after it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_run_args args;
    qn_talk t = make_talk(&args);
    json_t *model = model_json();
    qn_err err = {0};
    size_t n_images = 0;
    const qn_status status = qn_saved_take(&t, &n_images, model, text, size, "session", &err);
    free(text);
    if (status ? !err.message[0] || qn_chat_n_messages(t.chat) : false) abort();
    if (!status) take_again(&t, model);
    json_decref(model);
    drop_talk(&t);
    return 0;
}

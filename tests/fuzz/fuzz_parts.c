// Any text as an answer: its parts are the same whatever the pieces that it comes in. The first
// byte says where it is cut.
#include "chat/parts.h"
#include "core/buf.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// What came, as one text in which parts of a kind are run together.
typedef struct seen {
    qn_buf text;
    int kind;
} seen;

static void note(void *arg, const qn_part *part) {
    seen *s = arg;
    if (part->text_size == 0 || !part->text) abort();
    if (part->kind == QN_PART_CALL) {
        qn_buf_printf(&s->text, "\n[%s %s]\n", part->name, part->arguments);
        s->kind = -1;
        return;
    }
    if (s->kind != (int)part->kind) qn_buf_printf(&s->text, "\n%d:", (int)part->kind);
    s->kind = (int)part->kind;
    qn_buf_add(&s->text, part->text, part->text_size);
}

static void run(seen *s, const char *text, size_t size, size_t step) {
    static const char prompt[] = "<think>";
    const qn_parts_opts opts =
        QN_INIT(qn_parts_opts, .bare_calls = true, .prompt = size % 3 ? "" : prompt,
                .prompt_size = size % 3 ? 0 : sizeof prompt - 1);
    qn_parts *parts = NULL;
    if (qn_parts_make(&parts, &opts, NULL)) abort();
    for (size_t at = 0; at < size; at += step) {
        const size_t n = size - at < step ? size - at : step;
        if (qn_parts_feed(parts, -1, text + at, n, note, s, NULL)) abort();
    }
    if (qn_parts_finish(parts, note, s, NULL)) abort();
    qn_parts_destroy(parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2) return 0;
    const size_t step = (size_t)data[0] % 16 + 1, n = size - 1;
    char *text = malloc(n); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data + 1, n);
    seen whole = {.kind = -1}, pieces = {.kind = -1};
    run(&whole, text, n, n);
    run(&pieces, text, n, step);
    const bool is_same =
        whole.text.size == pieces.text.size &&
        (whole.text.size == 0 || memcmp(whole.text.data, pieces.text.data, whole.text.size) == 0);
    if (!is_same) abort();
    qn_buf_deinit(&whole.text);
    qn_buf_deinit(&pieces.text);
    free(text);
    return 0;
}

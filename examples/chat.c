// chat.c: a chat program. Every line of standard input is a question; the model sees the whole
// conversation, and what it has computed for earlier turns is not computed again.
//
//   cc chat.c $(pkg-config --cflags --libs quern) -o chat
//   ./chat model.gguf
#include <quern.h>

#include <stdio.h>
#include <string.h>

enum { LONGEST_LINE = 4096, MOST_TOKENS = 200 };

#define CHECK(call)                                                                                \
    do {                                                                                           \
        if ((status = (call)) != QN_OK) goto done;                                                 \
    } while (0)

// Called with every chunk of an answer: reasoning is left out, calls of tools are shown.
static bool print(void *arg, const qn_chat_event *event) {
    if (event->kind == QN_CHAT_TEXT) fwrite(event->text, 1, event->text_size, arg);
    if (event->kind == QN_CHAT_CALL) fprintf(arg, "[calls %s]", event->name);
    fflush(arg);
    return true;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_template *chat_template = NULL; // ours, while the tokenizer is the engine's
    qn_chat *chat = NULL;
    // The model's own sampling settings; turns that do not fit in the context are left out.
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = MOST_TOKENS);
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate, .leave_out = true);
    qn_status status;
    char line[LONGEST_LINE];
    if (argc != 2) {
        fprintf(stderr, "usage: %s MODEL\n", argv[0]);
        return 2;
    }
    CHECK(qn_engine_open(&engine, argv[1], NULL, &err));
    CHECK(qn_engine_template(&chat_template, engine, NULL, &err));
    CHECK(qn_session_create(&session, engine, NULL, &err));
    CHECK(qn_chat_create(&chat, &err));
    while (fgets(line, sizeof line, stdin)) {
        qn_message question = QN_INIT(qn_message, .role = "user", .text = line);
        question.text_size = strcspn(line, "\n");
        if (question.text_size == 0) continue;
        CHECK(qn_chat_add(chat, &question, &err));
        CHECK(qn_chat_answer(NULL, chat, session, chat_template, &opts, print, stdout, &err));
        putchar('\n');
    }
done:
    if (status != QN_OK) fprintf(stderr, "%s: %s\n", argv[0], err.message);
    qn_chat_destroy(chat);
    qn_session_destroy(session);
    qn_template_destroy(chat_template);
    qn_engine_close(engine);
    return status != QN_OK;
}

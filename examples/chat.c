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

// Called with every piece of text of an answer.
static bool print(void *arg, const qn_event *event) {
    fwrite(event->text, 1, event->text_size, arg);
    fflush(arg);
    return true;
}

static qn_status add(qn_chat *chat, const char *role, const char *text, size_t size, qn_err *err) {
    const qn_message message = QN_INIT(qn_message, .role = role, .text = text, .text_size = size);
    return qn_chat_add(chat, &message, err);
}

// Answers the last message, and adds the answer to the conversation.
static qn_status answer(qn_chat *chat, const qn_template *chat_template, qn_session *session,
                        const qn_tokenizer *tokenizer, qn_err *err) {
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_result result = QN_INIT(qn_result);
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = MOST_TOKENS);
    qn_status status;
    CHECK(qn_chat_make_prompt(&prompt, chat, chat_template, tokenizer, NULL, err));
    CHECK(qn_session_set_prompt(session, prompt.ids, prompt.n, err));
    CHECK(qn_generate(&result, session, &opts, print, stdout, err));
    putchar('\n');
    CHECK(add(chat, "assistant", result.text, result.text_size, err));
done:
    qn_result_deinit(&result);
    qn_chat_prompt_deinit(&prompt);
    return status;
}

int main(int argc, char **argv) {
    qn_err err = {0};
    qn_engine *engine = NULL;
    qn_session *session = NULL;
    qn_template *chat_template = NULL; // ours, while the tokenizer is the engine's
    qn_chat *chat = NULL;
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
        const size_t size = strcspn(line, "\n");
        if (size == 0) continue;
        CHECK(add(chat, "user", line, size, &err));
        CHECK(answer(chat, chat_template, session, qn_engine_tokenizer(engine), &err));
    }
done:
    if (status != QN_OK) fprintf(stderr, "%s: %s\n", argv[0], err.message);
    qn_chat_destroy(chat);
    qn_session_destroy(session);
    qn_template_destroy(chat_template);
    qn_engine_close(engine);
    return status != QN_OK;
}

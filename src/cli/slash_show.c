// Commands of a conversation that show something.
#include "cli/conversation.h"

#include "cli/facts.h"
#include "cli/out.h"
#include "cli/terminal.h"

#include <stdio.h>
#include <string.h>

qn_status qn_slash_figures(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    const qn_talk_figures *f = &c->talk->figures;
    const qn_session_counts counts = qn_session_facts(c->talk->session);
    size_t n_tokens;
    qn_session_tokens(c->talk->session, &n_tokens);
    const double writing = f->seconds - f->prompt_seconds;
    fprintf(stderr, "  answers   %lld\n", (long long)f->answers);
    fprintf(stderr, "  prompt    %lld tokens, %lld of them cached, %.1f tokens/s\n",
            (long long)f->prompt, (long long)f->reused,
            f->prompt_seconds > 0 ? (double)(f->prompt - f->reused) / f->prompt_seconds : 0);
    fprintf(stderr, "  generated %lld tokens, %.1f tokens/s\n", (long long)f->tokens,
            writing > 0 ? (double)(f->tokens - f->answers) / writing : 0);
    if (f->drafted)
        fprintf(stderr, "  drafted   %lld tokens, %lld of them accepted\n", (long long)f->drafted,
                (long long)f->accepted);
    fprintf(stderr, "  context   %zu of %lld tokens\n", n_tokens,
            (long long)qn_session_context(c->talk->session));
    fprintf(stderr, "  steps     %lld, of %lld tokens in all\n", (long long)counts.steps,
            (long long)counts.rows);
    return QN_OK;
}

// --- /show ---------------------------------------------------------------------------------------

static void print_block(const char *text, size_t size) {
    qn_print_text(stderr, text, size);
    if (size == 0 || text[size - 1] != '\n') fputc('\n', stderr);
}

// A line of a name and a value from outside.
static void print_fact(const char *name, const char *value) {
    enum { COLUMN = 18 };
    qn_shown clean;
    char line[sizeof clean.text + COLUMN + 1];
    snprintf(line, sizeof line, "  %-15s %s", name, qn_clean(&clean, value));
    qn_print_entry(line, COLUMN, false);
}

static qn_status print_calls(const json_t *message, qn_err *err) {
    const json_t *calls = json_object_get(message, "tool_calls");
    qn_status status = QN_OK;
    for (size_t i = 0; i < json_array_size(calls) && !status; i++) {
        char *text = NULL;
        qn_shown clean;
        const json_t *call = json_object_get(json_array_get(calls, i), "function");
        if (!call) continue;
        status = qn_json_print(&text, call, &(qn_json_form){0}, "a tool call", err);
        if (!status) qn_print_dim("[tool call %s]", qn_clean(&clean, text));
        qn_free(text);
    }
    return status;
}

static qn_status show_message(const qn_talk *t, size_t i, const json_t *json, qn_err *err) {
    qn_message message = QN_INIT(qn_message);
    qn_shown role;
    QN_TRY(qn_chat_get(&message, t->chat, i, err));
    qn_print_dim("%s:", qn_clean(&role, message.role));
    if (message.text_size) print_block(message.text, message.text_size);
    return print_calls(json, err);
}

static qn_status show_messages(const qn_talk *t, qn_err *err) {
    char *text = NULL;
    json_t *messages = NULL;
    QN_TRY(qn_chat_print_messages(&text, t->chat, err));
    qn_status status = qn_json_parse(&messages, text, strlen(text), false, "the messages", err);
    qn_free(text);
    const size_t n = json_array_size(messages);
    if (!status && n == 0) qn_print_dim("no messages");
    for (size_t i = 0; i < n && !status; i++)
        status = show_message(t, i, json_array_get(messages, i), err);
    json_decref(messages);
    return status;
}

static qn_status show_prompt(const qn_talk *t, qn_err *err) {
    const qn_chat_prompt_opts opts =
        QN_INIT(qn_chat_prompt_opts, .reasoning = (qn_reasoning)t->args->live.reasoning,
                .progress = qn_interrupt_progress);
    char *text = NULL;
    size_t size;
    if (!t->template) return QN_FAIL(err, STATE, "the text is fed as it is, without a prompt");
    QN_TRY(qn_chat_render(&text, &size, t->chat, t->template, t->tokenizer, &opts, err));
    print_block(text, size);
    qn_free(text);
    return QN_OK;
}

static qn_status show_template(const qn_talk *t, qn_err *err) {
    if (!t->template) return QN_FAIL(err, STATE, "there is no chat template");
    const char *text = qn_template_text(t->template);
    print_block(text, strlen(text));
    return QN_OK;
}

static qn_status show_facts(const qn_talk *t, qn_err *err) {
    const qn_engine_info info = qn_engine_facts(t->loaded.engine);
    const qn_run_args *args = t->args;
    size_t n_tokens;
    char numbers[96];
    (void)err;
    qn_session_tokens(t->session, &n_tokens);
    print_fact("model", *info.name ? info.name : "(without a name)");
    print_fact("file", t->path);
    print_fact("architecture", info.architecture);
    snprintf(numbers, sizeof numbers, "%lld", (long long)info.n_parameters);
    print_fact("parameters", numbers);
    snprintf(numbers, sizeof numbers, "%zu of %lld tokens, the model's own limit %lld", n_tokens,
             (long long)qn_session_context(t->session), (long long)info.context);
    print_fact("context", numbers);
    snprintf(numbers, sizeof numbers, "%zu", qn_chat_n_messages(t->chat));
    print_fact("messages", numbers);
    print_fact("template", !t->template     ? "none"
                           : args->template ? args->template
                                            : "the model's own");
    if (args->tools) print_fact("tools", args->tools);
    if (args->session) print_fact("session", args->session);
    return QN_OK;
}

static qn_status show_system(const qn_talk *t, qn_err *err) {
    const char *now = qn_talk_system(t);
    (void)err;
    if (now)
        print_block(now, strlen(now));
    else
        qn_print_dim("no system message");
    return QN_OK;
}

static const struct {
    const char *word;
    qn_status (*show)(const qn_talk *t, qn_err *err);
} sights[] = {
    {"info", show_facts},    {"messages", show_messages}, {"prompt", show_prompt},
    {"system", show_system}, {"template", show_template},
};
enum { N_SIGHTS = sizeof sights / sizeof *sights };

static qn_status refuse_sight(const char *word, qn_err *err) {
    qn_buf words = {0};
    for (size_t i = 0; i < N_SIGHTS; i++)
        qn_buf_printf(&words, "%s%s", i ? ", " : "", sights[i].word);
    const qn_status status =
        words.failed
            ? QN_NOMEM(err, "/show")
            : QN_FAIL(err, ARGUMENT, "/show: '%.40s', want %s or settings", word, words.data);
    qn_buf_deinit(&words);
    return status;
}

qn_status qn_slash_show(qn_conversation *c, const char *rest, qn_err *err) {
    const char *word = *rest ? rest : sights[0].word;
    if (strcmp(word, "settings") == 0 || strcmp(word, "parameters") == 0) // as Ollama has it
        return qn_slash_set(c, "", err);
    for (size_t i = 0; i < N_SIGHTS; i++)
        if (strcmp(sights[i].word, word) == 0) return sights[i].show(c->talk, err);
    return refuse_sight(word, err);
}

void qn_slash_complete_show(qn_completion *to, const char *typed) {
    to->n_typed = strlen(typed);
    for (size_t i = 0; i < N_SIGHTS; i++) qn_completion_add(to, sights[i].word, typed, to->n_typed);
    qn_completion_add(to, "settings", typed, to->n_typed);
}

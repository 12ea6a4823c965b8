// quern run: one answer, or a conversation.
#include "cli/answer.h"
#include "cli/chat.h"
#include "cli/open.h"
#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/trace.h"

#include "core/file.h"
#include "core/mem.h"

#include <string.h>
#include <unistd.h>

typedef struct run_options {
    const char *prompt, *file, *system;
    qn_texts stops;
    int64_t tokens, context;
    double temperature;
    uint64_t seed;
    bool raw, json, naive;
    qn_trace_args trace;
    qn_engine_args engine;
} run_options;

// A word behind the model is the text to answer, as -p is.
static qn_status check_text(const qn_call *call, qn_err *err) {
    const run_options *options = call->options;
    if (options->prompt && options->file)
        return QN_FAIL(err, ARGUMENT, "run: give either --prompt or --file");
    if (call->n_args > 1 && (options->prompt || options->file))
        return QN_FAIL(err, ARGUMENT, "run: '%s' is one word too many: the text is given by %s",
                       call->args[1], options->prompt ? "--prompt" : "--file");
    return QN_OK;
}

static qn_status check_run(const qn_call *call, qn_err *err) {
    const run_options *options = call->options;
    QN_TRY(check_text(call, err));
    if (options->raw && options->system)
        return QN_FAIL(err, ARGUMENT, "run: --system is for chat, which --raw turns off");
    for (size_t i = 0; i < options->stops.n; i++) {
        if (!*options->stops.items[i]) return QN_FAIL(err, ARGUMENT, "--stop: the text is empty");
    }
    if (options->naive && (options->trace.file || options->trace.profile))
        return QN_FAIL(err, ARGUMENT, "run: --trace and --profile need a cache, give no --naive");
    QN_TRY(qn_trace_args_check(&options->trace, err));
    return qn_engine_args_check(&options->engine, err);
}

static void cut_newlines(qn_buf *text) {
    while (text->size > 0) {
        const char last = text->data[text->size - 1];
        if (last != '\n' && last != '\r') return;
        text->data[--text->size] = 0;
    }
}

// --- one turn ------------------------------------------------------------------------------------

typedef struct talk {
    const run_options *options;
    qn_loaded loaded;
    qn_session *session;
    const qn_tokenizer *tokenizer;
    const qn_chat_format *format; // NULL: text is fed as it is
    qn_chat chat;
    int64_t context;
    bool is_chat; // several turns
    qn_tracer tracer;
    qn_progress reading;
} talk;

// Rows of a step while somebody waits: short, so that Ctrl-C is heard.
enum { WATCHED_CHUNK = 128 };

// A qn_progress_fn. Behind the last chunk Ctrl-C is left for the answer to take.
static bool show_reading(void *arg, int64_t done, int64_t total) {
    qn_progress *reading = &((talk *)arg)->reading;
    if (reading->from < 0) reading->from = done > WATCHED_CHUNK ? done - WATCHED_CHUNK : 0;
    return done >= total || qn_progress_show(reading, done, total);
}

static qn_status set_prompt(talk *t, const char *text, size_t size, qn_err *err) {
    int32_t *ids = NULL;
    size_t n;
    if (size == 0) return QN_FAIL(err, ARGUMENT, "the prompt is empty");
    if (t->format) {
        QN_TRY(qn_chat_add(&t->chat, QN_ROLE_USER, text, size, err));
        QN_TRY(qn_chat_render(&ids, &n, &t->chat, t->format, t->tokenizer, err));
    } else {
        const qn_tokenize_opts opts = {.special = true, .add_ends = true};
        QN_TRY(qn_tokenize(&ids, &n, t->tokenizer, text, size, &opts, err));
    }
    const qn_status status =
        (int64_t)n > t->context ? QN_FAIL(err, LIMIT, "the prompt has %zu tokens, the context %lld",
                                          n, (long long)t->context)
                                : qn_session_set_prompt(t->session, ids, n, err);
    qn_free(ids);
    return status;
}

static void print_figures(const qn_answer *answer) {
    qn_print_dim("[prompt %lld tokens, %lld known, %.2f s; answer %lld token%s, %.1f tokens/s]",
                 (long long)answer->n_prompt, (long long)answer->n_reused, answer->prompt_seconds,
                 (long long)answer->n_tokens, answer->n_tokens == 1 ? "" : "s",
                 qn_answer_speed(answer));
}

static qn_status answer_text(talk *t, const char *text, size_t size, qn_err *err) {
    const run_options *options = t->options;
    const qn_answer_opts opts = {
        .session = t->session,
        .tokenizer = t->tokenizer,
        .context = t->context,
        .most = options->tokens,
        .sample = {.temperature = (float)options->temperature, .seed = options->seed},
        .stops = options->stops,
        .naive = options->naive,
        .json = options->json,
        .reading = &t->reading,
    };
    qn_answer answer = {0};
    QN_TRY(set_prompt(t, text, size, err));
    QN_TRY(qn_answer_run(&answer, &opts, err));
    print_figures(&answer);
    if (strcmp(answer.reason, "context") == 0)
        fprintf(stderr, "quern: note: stopped because the context of %lld tokens is full\n",
                (long long)t->context);
    qn_status status = QN_OK;
    if (t->format)
        status = qn_chat_add(&t->chat, QN_ROLE_ASSISTANT, answer.text.data ? answer.text.data : "",
                             answer.text.size, err);
    qn_answer_deinit(&answer);
    return status;
}

// --- conversation --------------------------------------------------------------------------------

static bool forget(talk *t) {
    qn_chat_cut(&t->chat, t->options->system ? 1 : 0);
    qn_print_dim("forgotten");
    return true;
}

static bool stop(talk *t) {
    (void)t;
    return false;
}

static bool explain(talk *t);

// What a line that begins with a slash does; false ends the conversation.
static const struct {
    const char *name, *help; // help NULL: another word for one above
    bool (*run)(talk *t);
} chat_commands[] = {
    {"/exit", "end (so do /quit, /bye and Ctrl-D)", stop},
    {"/quit", NULL, stop},
    {"/bye", NULL, stop},
    {"/reset", "forget what was said", forget},
    {"/help", "this list; Ctrl-C stops reading or answering, or clears a line", explain},
};
enum { N_CHAT_COMMANDS = sizeof chat_commands / sizeof *chat_commands };

static bool explain(talk *t) {
    (void)t;
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        if (chat_commands[i].help)
            fprintf(stderr, "  %-8s %s\n", chat_commands[i].name, chat_commands[i].help);
    }
    return true;
}

// `line` begins with the slash; what follows the word is not looked at.
static bool run_chat_command(talk *t, const char *line) {
    const size_t n = strcspn(line, " \t");
    for (size_t i = 0; i < N_CHAT_COMMANDS; i++) {
        const char *name = chat_commands[i].name;
        if (strlen(name) == n && memcmp(line, name, n) == 0) return chat_commands[i].run(t);
    }
    fprintf(stderr, "no command ");
    qn_print_text(stderr, line, n);
    fprintf(stderr, "; there are\n");
    return explain(t);
}

// A terminal that edits lines keeps this many bytes of one, its newline among them, and drops the
// rest without a word.
enum { TERMINAL_LINE = 4096 };

// A line without its newline. False at the end of the input. Ctrl-C begins a new one: the terminal
// has then forgotten what was typed.
static bool read_line(qn_buf *line) {
    char part[TERMINAL_LINE];
    line->size = 0;
    fputs("> ", stderr);
    for (;;) {
        fflush(stderr);
        if (!qn_input_wait()) {
            line->size = 0;
            fputs("\n> ", stderr);
            continue;
        }
        const ssize_t n = read(STDIN_FILENO, part, sizeof part);
        if (n <= 0) { // Ctrl-D
            fputs("\n", stderr);
            return n == 0 && line->size > 0;
        }
        qn_buf_add(line, part, (size_t)n);
        if (line->failed) return false;
        if (part[n - 1] == '\n') break;
    }
    cut_newlines(line);
    return true;
}

// A turn that does not fit, or whose reading was stopped, is taken back; anything else that fails
// ends the conversation.
static qn_status take_turn(talk *t, const char *line, size_t size, qn_err *err) {
    const size_t n_before = t->chat.n;
    const qn_status status = answer_text(t, line, size, err);
    if (status != QN_LIMIT && status != QN_STOPPED) return status;
    if (status == QN_LIMIT)
        fprintf(stderr, "quern: %s; /reset forgets what was said\n", err->message);
    else
        qn_print_dim("[%s, and taken back]", err->message);
    qn_chat_cut(&t->chat, n_before);
    return QN_OK;
}

// What the conversation is with: the model's own name, or that of its file where it has none.
static const char *model_name(const qn_engine_info *info, const char *path) {
    enum { SHORTEST = 3 };
    if (strlen(info->name) >= SHORTEST) return info->name;
    return qn_path_name(path);
}

static qn_status take_line(talk *t, const qn_buf *line, bool *goes_on, qn_err *err) {
    const char *word = line->data + strspn(line->data, " \t\r\n"); // blanks alone are no question
    if (line->size + 1 >= TERMINAL_LINE) {
        fprintf(stderr,
                "quern: the terminal cut this line at %d bytes, so it is not answered; 'quern run "
                "-f FILE' reads a text of any length\n",
                TERMINAL_LINE - 1);
        return QN_OK;
    }
    if (*word == '/')
        *goes_on = run_chat_command(t, word);
    else if (*word)
        return take_turn(t, line->data, line->size, err);
    return QN_OK;
}

static qn_status converse(talk *t, const char *path, qn_err *err) {
    const qn_engine_info info = qn_engine_get_info(t->loaded.engine);
    qn_err name; // of a file: cleaned as messages are
    (void)QN_FAIL(&name, OK, "%s", model_name(&info, path));
    qn_print_dim("Quern %s, %s. /help lists commands, Ctrl-D ends.", qn_version(), name.message);
    qn_buf line = {0};
    qn_status status = QN_OK;
    bool goes_on = true;
    while (goes_on && !status && read_line(&line)) status = take_line(t, &line, &goes_on, err);
    if (line.failed) status = QN_NOMEM(err, "a line");
    qn_buf_deinit(&line);
    return status;
}

// --- the command ---------------------------------------------------------------------------------

static qn_status read_prompt(qn_buf *out, const run_options *options, qn_err *err) {
    if (options->prompt) {
        qn_buf_text(out, options->prompt);
        return out->failed ? QN_NOMEM(err, "the prompt") : QN_OK;
    }
    QN_TRY(options->file ? qn_text_read(out, options->file, err) : qn_stdin_read(out, err));
    if (!options->raw) cut_newlines(out);
    return QN_OK;
}

// A context that was asked for must fit; the model's own may be made shorter to fit in memory.
static qn_status open_session(talk *t, qn_err *err) {
    qn_session_opts opts = {.context = t->options->context,
                            .shrink = !t->options->context,
                            .kept = t->is_chat ? 0 : -1};
    if (t->is_chat || isatty(STDERR_FILENO)) {
        opts.chunk = WATCHED_CHUNK;
        opts.progress = show_reading;
        opts.progress_arg = t;
    }
    qn_tracer_attach(&t->tracer, &opts);
    const qn_status status = qn_session_create(&t->session, t->loaded.engine, &opts, err);
    if (status == QN_LIMIT) qn_err_prefix(err, status, "--context");
    if (status) return status;
    t->context = qn_session_context(t->session);
    const int64_t most = qn_engine_get_info(t->loaded.engine).context;
    if (opts.shrink && t->context < most)
        fprintf(stderr,
                "quern: note: a context of %lld tokens, the model's own %lld need more memory\n",
                (long long)t->context, (long long)most);
    return QN_OK;
}

static qn_status open_talk(talk *t, const char *path, qn_err *err) {
    const run_options *options = t->options;
    const qn_open_opts open_opts = {.args = &options->engine, .needs_tokenizer = true};
    QN_TRY(qn_tracer_init(&t->tracer, &options->trace, err));
    QN_TRY(qn_cli_open(&t->loaded, path, &open_opts, err));
    t->tokenizer = qn_engine_tokenizer(t->loaded.engine);
    QN_TRY(open_session(t, err));
    if (options->raw) return QN_OK;
    t->format = qn_chat_format_find(t->tokenizer);
    if (!t->format)
        fprintf(stderr, "quern: note: no chat format that Quern knows fits this model; the text is "
                        "fed as it is\n");
    if (!options->system || !t->format) return QN_OK;
    return qn_chat_add(&t->chat, QN_ROLE_SYSTEM, options->system, strlen(options->system), err);
}

static void close_talk(talk *t) {
    qn_chat_deinit(&t->chat);
    qn_session_destroy(t->session);
    qn_cli_close(&t->loaded);
    qn_tracer_deinit(&t->tracer);
}

// A text where the name of the model belongs.
static qn_status refuse_text(const char *path, qn_err *err) {
    if (!strchr(path, ' ') || qn_path_is_file(path) || qn_path_is_folder(path)) return QN_OK;
    return QN_FAIL(err, IO, "%s: no such file; for a text use -p", path);
}

static qn_status run_run(const qn_call *call, qn_err *err) {
    run_options options = *(const run_options *)call->options;
    talk t = {.options = &options};
    if (call->n_args > 1) options.prompt = call->args[1];
    t.is_chat = !t.options->prompt && !t.options->file && isatty(STDIN_FILENO);
    char *bundled = NULL;
    qn_buf prompt = {0};
    qn_status status = QN_OK;
    if (call->n_args == 0)
        QN_TRY(qn_bundled_find(&bundled, err));
    else
        QN_TRY(refuse_text(call->args[0], err));
    if (t.is_chat) qn_interrupt_hold(); // before the engine starts its threads
    if (!t.is_chat) QN_TRY_TO(done, read_prompt(&prompt, t.options, err));
    const char *path = bundled ? bundled : call->args[0];
    QN_TRY_TO(done, open_talk(&t, path, err));
    status = t.is_chat ? converse(&t, path, err) : answer_text(&t, prompt.data, prompt.size, err);
    if (!status) status = qn_tracer_finish(&t.tracer, err);

done:
    qn_buf_deinit(&prompt);
    close_talk(&t);
    qn_free(bundled);
    return status;
}

static const qn_option run_table[] = {
    {.name = "--prompt",
     .alias = "-p",
     .arg = "TEXT",
     .help = "answer this text and end",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(run_options, prompt)},
    {.name = "--file",
     .alias = "-f",
     .arg = "FILE",
     .help = "answer the text in this file and end",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(run_options, file)},
    {.name = "--system",
     .arg = "TEXT",
     .help = "the system message, in front of everything",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(run_options, system)},
    {.name = "--tokens",
     .alias = "-n",
     .arg = "N",
     .help = "the most tokens of an answer (default, and -1: until the model ends it)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(run_options, tokens),
     .least = 1,
     .most = INT32_MAX,
     .none = "-1"},
    {.name = "--temp",
     .arg = "T",
     .help = "temperature: 0 always takes the best token (default), 1 samples as the model scores",
     .kind = QN_OPTION_REAL,
     .offset = offsetof(run_options, temperature),
     .least = 0,
     .most = 100},
    {.name = "--seed",
     .arg = "S",
     .help = "of the sampling (default 0): the same seed gives the same text",
     .kind = QN_OPTION_SEED,
     .offset = offsetof(run_options, seed)},
    {.name = "--stop",
     .arg = "S",
     .help = "a text that ends the answer and is not printed; may be given several times",
     .kind = QN_OPTION_TEXTS,
     .offset = offsetof(run_options, stops)},
    {.name = "--context",
     .alias = "-c",
     .arg = "CTX",
     .help =
         "the most tokens of prompt and answer together (default, and 0: the model's own limit)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(run_options, context),
     .least = 1,
     .most = INT32_MAX,
     .none = "0"},
    {.name = "--raw",
     .help = "feed the text as it is, without a chat format; special tokens in it are recognised",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(run_options, raw)},
    {.name = "--json",
     .help = "print one JSON object a line: {\"token\", \"id\", \"text\"} for each token, then "
             "{\"done\": true, \"reason\", ...}",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(run_options, json)},
    {.name = "--naive",
     .help = "recompute the whole text for each token, without a cache: slow; changes no result",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(run_options, naive)},
    QN_OPTIONS_TRACE(run_options),
    QN_OPTIONS_ENGINE(run_options),
};

const qn_command qn_cmd_run = {
    .name = "run",
    .args = "[MODEL [TEXT]]",
    .summary = "Answers a text, or chats on a terminal.",
    .notes =
        "TEXT behind the model is the same as -p TEXT. Without it, -p and -f, a terminal becomes a "
        "conversation (/help lists its commands) and piped "
        "input is the text to answer. Without MODEL the bundled quern-mini-Q8_0.gguf is used, from "
        "../models or ../share/quern beside the folder of the program.\n"
        "The chat format is ChatML or Gemma's, whichever the vocabulary has tokens for; other "
        "models get the text as it is. What a conversation has computed is kept, and only what is "
        "new is read.",
    .options = run_table,
    .n_options = sizeof run_table / sizeof *run_table,
    .options_size = sizeof(run_options),
    .least_args = 0,
    .most_args = 2,
    .check = check_run,
    .run = run_run,
};

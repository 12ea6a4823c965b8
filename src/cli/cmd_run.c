// quern run: one answer, or a conversation.
#include "cli/args.h"
#include "cli/converse.h"
#include "cli/out.h"
#include "cli/saved.h"
#include "cli/saved_state.h"
#include "cli/terminal.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// --- what was typed ------------------------------------------------------------------------------

// A word after the model is the text to answer, as -p is.
static qn_status check_text(const qn_call *call, qn_err *err) {
    const qn_run_args *args = call->options;
    if (args->prompt && args->file)
        return QN_FAIL(err, ARGUMENT, "run: give either --prompt or --file, not both");
    if (call->n_args > 1 && (args->prompt || args->file))
        return QN_FAIL(err, ARGUMENT,
                       "run: unexpected argument '%s': the prompt was already given with %s",
                       call->args[1], args->prompt ? "--prompt" : "--file");
    return QN_OK;
}

// What needs a chat template, with --raw.
static qn_status check_raw(const qn_run_args *args, qn_err *err) {
    const struct {
        const char *name;
        bool is_given;
    } options[] = {{"--system", args->system},
                   {"--template", args->template},
                   {"--tools", args->tools},
                   {"--session", args->session},
                   {"--reasoning", args->live.reasoning}};
    for (size_t i = 0; i < sizeof options / sizeof *options && args->raw; i++) {
        if (options[i].is_given)
            return QN_FAIL(err, ARGUMENT, "run: %s is for chat, which --raw turns off",
                           options[i].name);
    }
    return QN_OK;
}

// One form of an answer is enough.
static qn_status check_grammar(const qn_run_args *args, qn_err *err) {
    const int n = !!args->grammar + !!args->grammar_file + !!args->schema + !!args->schema_file +
                  !!args->regex + args->json_mode;
    if ((args->schema_lenient || args->schema_closed) && !args->schema && !args->schema_file)
        return QN_FAIL(err, ARGUMENT, "run: %s needs --json-schema or --json-schema-file",
                       args->schema_lenient ? "--schema-lenient" : "--schema-closed");
    if (n <= 1) return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "run: give one of --grammar, --grammar-file, --json-schema, "
                   "--json-schema-file, --regex and --json-mode");
}

qn_status qn_run_args_check(const qn_run_args *args, qn_err *err) {
    const qn_live_args *live = &args->live;
    for (size_t i = 0; i < live->stops.n; i++) {
        if (!*live->stops.items[i]) return QN_FAIL(err, ARGUMENT, "--stop: the text is empty");
    }
    if (live->tokens && live->min_tokens > live->tokens)
        return QN_FAIL(err, ARGUMENT, "--min-tokens %lld is more than --tokens %lld",
                       (long long)live->min_tokens, (long long)live->tokens);
    if (live->mtp_fast && !args->mtp) return QN_FAIL(err, ARGUMENT, "--mtp-fast needs --mtp");
    return qn_sampling_args_check(&args->sampling, err);
}

// Options that do nothing without another one. A conversation may set that later.
static qn_status check_needs(const qn_run_args *args, qn_err *err) {
    const struct {
        const char *name, *needs;
        bool is_given, is_met;
    } rows[] = {
        {"--logprobs", "--json", args->live.logprobs, args->json},
        {"--keep", "--context-shift", args->live.keep, args->live.shift},
        {"--session-state", "--session", args->session_state, args->session != NULL},
        {"--draft-max", "--draft, --mtp or --lookup", args->live.draft_max,
         args->draft || args->mtp || args->live.lookup},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (rows[i].is_given && !rows[i].is_met)
            return QN_FAIL(err, ARGUMENT, "run: %s needs %s", rows[i].name, rows[i].needs);
    }
    if (args->session_state && args->engine.split)
        return QN_FAIL(err, ARGUMENT,
                       "run: --session-state does not work with --split; --session alone does");
    const char *draft = args->draft;
    if (draft && *draft && !draft[strspn(draft, "0123456789")] && !qn_path_is_file(draft))
        return QN_FAIL(err, ARGUMENT, "--draft takes a model, got '%s'; the number is --draft-max",
                       draft);
    return QN_OK;
}

static qn_status check_run(const qn_call *call, qn_err *err) {
    const qn_run_args *args = call->options;
    QN_TRY(check_text(call, err));
    QN_TRY(check_raw(args, err));
    QN_TRY(qn_outfile_check("--session", args->session, err));
    if (args->naive && (args->trace.file || args->trace.profile))
        return QN_FAIL(err, ARGUMENT, "run: --trace and --profile do not work with --naive");
    if (args->naive && args->mtp)
        return QN_FAIL(err, ARGUMENT, "run: --mtp does not work with --naive");
    QN_TRY(check_needs(args, err));
    QN_TRY(check_grammar(args, err));
    QN_TRY(qn_run_args_check(args, err));
    QN_TRY(qn_sampling_args_check_together(&args->sampling, err));
    QN_TRY(qn_trace_args_check(&args->trace, err));
    QN_TRY(qn_expert_args_check(&args->experts, &args->engine, err));
    return qn_engine_args_check(&args->engine, err);
}

// A text where the path of the model belongs.
static qn_status refuse_name(const char *path, qn_err *err) {
    if (access(path, F_OK) == 0 || errno != ENOENT) return QN_OK;
    return QN_FAIL(err, IO,
                   "%s: no such file; 'quern list' shows models by name, for a text use -p", path);
}

// --- the command ---------------------------------------------------------------------------------

static void cut_newlines(qn_buf *text) {
    while (text->size > 0) {
        const char last = text->data[text->size - 1];
        if (last != '\n' && last != '\r') return;
        text->data[--text->size] = 0;
    }
}

// Something may come by standard input: it is a pipe, a file or the like, and not the terminal.
static bool has_input(void) {
    struct stat info;
    return fstat(STDIN_FILENO, &info) == 0 && !isatty(STDIN_FILENO);
}

// What comes by standard input stands before a text that was typed, as in `git diff | quern run -p
// "Review this"`; with --raw nothing is added or removed.
static qn_status read_typed(qn_buf *out, const qn_run_args *args, qn_err *err) {
    if (has_input()) {
        qn_print_slow_input("standard input, which goes before the prompt");
        QN_TRY(qn_stdin_read(out, QN_MAX_PROMPT, err));
        out->max = 0; // what was typed is bounded already
        QN_TRY(qn_text_check("standard input", out->data, out->size, err));
    }
    if (!args->raw) cut_newlines(out);
    if (out->size && !args->raw) qn_buf_text(out, "\n\n");
    qn_buf_text(out, args->prompt);
    return out->failed ? QN_NOMEM(err, "the prompt") : QN_OK;
}

static qn_status read_prompt(qn_buf *out, const qn_run_args *args, qn_err *err) {
    if (args->prompt) return read_typed(out, args, err);
    const bool is_file = args->file && strcmp(args->file, "-") != 0;
    QN_TRY(is_file ? qn_text_read(out, args->file, QN_MAX_PROMPT, err)
                   : qn_stdin_read(out, QN_MAX_PROMPT, err));
    if (!args->raw) cut_newlines(out);
    return is_file ? qn_text_check(args->file, out->data, out->size, err) : QN_OK;
}

// A file with nothing in it, as mktemp makes it, is a new session. False if it cannot be examined.
static bool is_empty(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size == 0;
}

static void drop_default(const qn_call *call, const qn_option *option) {
    if (!call->is_given[option - qn_cmd_run.options]) qn_option_clear(call->options, option);
}

// A session has its own settings and its own system message: what was typed replaces them, the
// user's defaults do not.
static void drop_defaults(const qn_call *call) {
    static const char system[] = "--system";
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) drop_default(call, option);
    drop_default(call, qn_option_find(&qn_cmd_run, system, strlen(system)).option);
}

// An existing session is continued; a system message that was typed replaces its own.
// A session that could not be saved is refused before anything is generated.
static qn_status resume(qn_talk *t, const qn_call *call, qn_err *err) {
    const qn_run_args *args = t->args;
    if (!args->session) return QN_OK;
    if (!t->template)
        return QN_FAIL(err, USAGE, "--session: the text is fed as it is, and not remembered");
    if (qn_path_is_folder(args->session))
        return QN_FAIL(err, USAGE, "--session: %s is a folder, want a file", args->session);
    const bool is_new = !qn_path_is_file(args->session) || is_empty(args->session);
    if (!is_new) drop_defaults(call);
    if (!is_new) QN_TRY(qn_saved_read(t, args->session, err));
    if (!is_new && args->session_state) QN_TRY(qn_saved_state_read(t, args->session, err));
    QN_TRY(qn_saved_check(args->session, err));
    if (args->session_state) QN_TRY(qn_saved_state_check(args->session, err));
    return args->system ? qn_talk_set_system(t, args->system, err) : QN_OK;
}

static qn_status answer_once(qn_talk *t, const qn_buf *prompt, qn_err *err) {
    QN_TRY(qn_talk_ask(t, prompt->data, prompt->size, err));
    return qn_saved_keep(t, err);
}

static qn_status run_run(const qn_call *call, qn_err *err) {
    qn_run_args *args = call->options;
    if (call->n_args > 1) args->prompt = call->args[1];
    qn_talk t = {.args = args, .is_chat = !args->prompt && !args->file && isatty(STDIN_FILENO)};
    char *bundled = NULL;
    qn_buf prompt = {0};
    qn_status status = QN_OK;
    if (call->n_args == 0)
        QN_TRY(qn_bundled_find(&bundled, err));
    else
        QN_TRY(refuse_name(call->args[0], err));
    if (t.is_chat) qn_interrupt_hold(), qn_hangup_hold(); // before the engine starts its threads
    if (!t.is_chat) QN_TRY_TO(done, read_prompt(&prompt, args, err));
    t.path = bundled ? bundled : call->args[0];
    QN_TRY_TO(done, qn_talk_open(&t, err));
    QN_TRY_TO(done, resume(&t, call, err));
    QN_TRY_TO(done, t.is_chat ? qn_converse(&t, err) : answer_once(&t, &prompt, err));
    if (args->session_state) QN_TRY_TO(done, qn_saved_state_write(&t, args->session, err));
    QN_TRY_TO(done, qn_expert_report(&args->experts, t.loaded.engine, err));
    status = qn_tracer_finish(&t.tracer, err);

done:
    qn_buf_deinit(&prompt);
    qn_talk_close(&t);
    qn_free(bundled);
    qn_hangup_die(); // whoever started the program shall see it
    return status;
}

static const char *const reasoning_words[] = {"on", "off", NULL};

static const qn_option run_table[] = {
    {.name = "--prompt",
     .alias = "-p",
     .arg = "TEXT",
     .help = "answer TEXT and exit",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, prompt)},
    {.name = "--file",
     .alias = "-f",
     .arg = "FILE",
     .help = "answer the text in FILE and exit; -: standard input",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, file)},
    {.name = "--system",
     .arg = "TEXT",
     .help = "system message, before everything else",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, system)},
    {.name = "--template",
     .arg = "FILE",
     .help = "chat template instead of the model's own: a .jinja file, or another model",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, template)},
    {.name = "--tools",
     .arg = "FILE",
     .help = "JSON list of tools to offer; calls are printed, not executed",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, tools)},
    QN_OPTIONS_IMAGES(qn_run_args),
    {.name = "--reasoning",
     .arg = "on|off",
     .help = "request or suppress reasoning (default: the template decides)",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(qn_run_args, live.reasoning),
     .initial = "as the template decides",
     .words = reasoning_words},
    {.name = "--session",
     .arg = "FILE",
     .help = "continue the conversation in FILE if it exists, and save it there",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, session)},
    {.name = "--session-state",
     .help = "keep the state of the session in FILE.state, too: the conversation goes on without "
             "prefill (as large as the KV cache)",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, session_state)},
    {.name = "--tokens",
     .alias = "-n",
     .arg = "N",
     .help = "maximum tokens to generate (default -1: until the model stops)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, live.tokens),
     .initial = "-1",
     .min = 1,
     .max = INT32_MAX,
     .none = "-1"},
    {.name = "--stop",
     .arg = "S",
     .help = "stop text: ends the answer and is not printed; may be repeated",
     .kind = QN_OPTION_TEXTS,
     .offset = offsetof(qn_run_args, live.stops)},
    {.name = "--min-tokens",
     .arg = "N",
     .help = "minimum tokens before the answer may end",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, live.min_tokens),
     .initial = "0",
     .min = 1,
     .max = INT32_MAX},
    {.name = "--ignore-eos",
     .help = "never choose a token that ends the answer",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.ignore_eos)},
    {.name = "--grammar",
     .arg = "GBNF",
     .help = "grammar that the answer must follow, in GBNF",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, grammar)},
    {.name = "--grammar-file",
     .arg = "FILE",
     .help = "the same from a file",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, grammar_file)},
    {.name = "--json-schema",
     .alias = "-j",
     .arg = "SCHEMA",
     .help = "JSON Schema of the answer, bare, or wrapped as in an OpenAI-style request",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, schema)},
    {.name = "--json-schema-file",
     .alias = "-jf",
     .arg = "FILE",
     .help = "the same from a file",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, schema_file)},
    {.name = "--schema-lenient",
     .help = "drop unsupported parts of a schema with a warning instead of refusing it",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, schema_lenient)},
    {.name = "--schema-closed",
     .help = "treat additionalProperties as false where an object lists properties",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, schema_closed)},
    {.name = "--regex",
     .arg = "PATTERN",
     .help = "regular expression that the whole answer must match",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, regex)},
    {.name = "--json-mode",
     .help = "the answer is a JSON object",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, json_mode)},
    {.name = "--draft",
     .alias = "-md",
     .arg = "MODEL",
     .help = "draft model for speculative decoding, with the same vocabulary; output unchanged",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(qn_run_args, draft)},
    {.name = "--draft-max",
     .arg = "N",
     .help = "maximum tokens drafted at a time (default 8)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, live.draft_max),
     .initial = "8",
     .min = 1,
     .max = QN_MAX_DRAFT},
    {.name = "--mtp",
     .help = "speculate with the model's own prediction head (multi-token prediction); output "
             "unchanged",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, mtp)},
    {.name = "--mtp-fast",
     .help = "with --mtp: draft only among the first 32768 tokens of the vocabulary, which is "
             "faster; output unchanged",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.mtp_fast)},
    {.name = "--lookup",
     .help = "speculate by n-gram lookup; output unchanged",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.lookup)},
    {.name = "--context",
     .alias = "-c",
     .arg = "N",
     .help = "context size: tokens of prompt and answer together (default 0: the model's limit)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, context),
     .min = 1,
     .max = INT32_MAX,
     .none = "0"},
    {.name = "--context-shift",
     .help = "when the context is full, drop half of it (of a conversation: its oldest turns) and "
             "continue instead of stopping",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.shift)},
    {.name = "--keep",
     .arg = "N",
     .help = "tokens at the start that --context-shift does not drop (default 0)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, live.keep),
     .initial = "0",
     .min = 1,
     .max = INT32_MAX,
     .none = "0"},
    {.name = "--logprobs",
     .arg = "N",
     .help = "with --json: log-probability of each token and of the N most likely ones",
     .kind = QN_OPTION_INT,
     .offset = offsetof(qn_run_args, live.logprobs),
     .initial = "0",
     .min = 1,
     .max = QN_MAX_TOP},
    {.name = "--raw",
     .help = "pass the text to the model without a chat template; special tokens in it are parsed",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, raw)},
    {.name = "--json",
     .help = "print one JSON object per line: {\"token\", \"id\", \"text\"} for each token, then "
             "{\"done\": true, \"reason\", ...}",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, json)},
    {.name = "--plain",
     .help =
         "show Markdown as it was written; by default a terminal shows bold text, code and lists",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.plain)},
    {.name = "--no-wrap",
     .help = "leave the lines of answers to the terminal, which breaks them anywhere",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, live.no_wrap)},
    {.name = "--no-history",
     .help = "keep no history of what is typed (by default in $XDG_STATE_HOME/quern/history)",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, no_history)},
    {.name = "--naive",
     .help = "recompute the whole text for each token, without a KV cache: slow; output unchanged",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(qn_run_args, naive)},
    QN_OPTIONS_SAMPLING(qn_run_args),
    QN_OPTIONS_TRACE(qn_run_args),
    QN_OPTIONS_EXPERT_REPORT(qn_run_args),
    QN_OPTIONS_ENGINE(qn_run_args),
};

const qn_option *qn_live_option(size_t i) {
    const size_t from = offsetof(qn_run_args, live);
    const size_t to = offsetof(qn_run_args, sampling) + sizeof(qn_sampling_args);
    for (size_t at = 0; at < sizeof run_table / sizeof *run_table; at++) {
        const bool is_live = run_table[at].offset >= from && run_table[at].offset < to;
        if (is_live && i-- == 0) return &run_table[at];
    }
    return NULL;
}

const qn_command qn_cmd_run = {
    .name = "run",
    .args = "[MODEL [TEXT]]",
    .summary = "Answers a text, or chats on a terminal.",
    .notes = "TEXT after MODEL is the same as -p TEXT. Without TEXT, -p or -f, a terminal starts a "
             "chat (/help lists its commands) and piped input is the prompt; with TEXT or -p it "
             "goes before that text. Without MODEL the bundled quern-mini-Q8_0.gguf is used, from "
             "../models or ../share/quern beside the folder of the program.\nPrompts are rendered "
             "with the model's own chat template; special tokens typed in a message are never "
             "parsed as such. Images come before the text of the first message; with --raw, the "
             "text has one image token for each. A model without a template gets ChatML if it has "
             "the tokens for it, otherwise the text as it is. The KV cache is kept across turns, "
             "so only new tokens are computed.",
    .options = run_table,
    .n_options = sizeof run_table / sizeof *run_table,
    .options_size = sizeof(qn_run_args),
    .min_args = 0,
    .max_args = 2,
    .check = check_run,
    .run = run_run,
};

#include "cli/talk.h"

#include "cli/out.h"
#include "cli/saved.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/file.h"
#include "core/mem.h"
#include "core/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- messages ------------------------------------------------------------------------------------

static bool is_of(const qn_chat *chat, size_t i, const char *role) {
    qn_message message = QN_INIT(qn_message);
    return i < qn_chat_n_messages(chat) && !qn_chat_get(&message, chat, i, NULL) &&
           strcmp(message.role, role) == 0;
}

const char *qn_talk_system(const qn_talk *t) {
    qn_message first = QN_INIT(qn_message);
    if (!is_of(t->chat, 0, "system") || qn_chat_get(&first, t->chat, 0, NULL)) return NULL;
    return first.text;
}

qn_status qn_talk_set_system(qn_talk *t, const char *text, qn_err *err) {
    return qn_chat_set_system(t->chat, text, err);
}

qn_status qn_talk_reset(qn_talk *t, qn_err *err) {
    t->completion = 0;
    qn_pictures_clear(&t->images);
    qn_buf_deinit(&t->waiting);
    return qn_chat_truncate(t->chat, is_of(t->chat, 0, "system") ? 1 : 0, err);
}

// In place of all messages after the first n.
static qn_status add_answer(qn_talk *t, size_t n, const qn_answer *answer, qn_err *err) {
    qn_message message = QN_INIT(qn_message);
    QN_TRY(qn_chat_reply_get_message(&message, answer->reply, err));
    QN_TRY(qn_chat_truncate(t->chat, n, err));
    return qn_chat_add(t->chat, &message, err);
}

// --- prompts -------------------------------------------------------------------------------------

// A prompt, whose ids have as many image tokens as its images have rows.
typedef struct asked {
    const int32_t *ids;
    size_t n, n_mark;
    const qn_image *const *images;
    size_t n_images;
} asked;

static qn_status set_prompt(qn_talk *t, const asked *p, qn_err *err) {
    const size_t n_mark = p->n_mark;
    const int64_t context = qn_session_context(t->session);
    if ((int64_t)p->n >= context)
        return QN_FAIL(err, LIMIT, "the prompt has %zu token%s, the context %lld", p->n,
                       p->n == 1 ? "" : "s", (long long)context);
    QN_TRY(qn_session_set_prompt_images(t->session, p->ids, p->n, p->images, p->n_images, err));
    // One answer keeps nothing for a next one, and its prompt is read in one step.
    const bool is_kept = (t->is_chat || t->args->session_state) && !t->args->naive;
    t->n_mark = is_kept ? n_mark : 0;
    return t->n_mark ? qn_session_mark(t->session, n_mark, err) : QN_OK;
}

// Once: whether the template has a switch for reasoning, where one is wanted.
static qn_status look_for_switch(qn_talk *t, const qn_chat_prompt_opts *opts, qn_err *err) {
    static const char *const words[] = {[QN_REASONING_ON] = "on", [QN_REASONING_OFF] = "off"};
    qn_reasoning_switch found;
    if (!opts->reasoning || t->has_looked) return QN_OK;
    QN_TRY(qn_chat_find_switch(&found, t->chat, t->template, t->tokenizer, opts, err));
    t->has_looked = found != QN_SWITCH_UNKNOWN;
    if (found == QN_SWITCH_NONE)
        qn_print_line(
            "quern: note: --reasoning %s changes nothing: the chat template has no switch for "
            "reasoning",
            words[opts->reasoning]);
    return QN_OK;
}

static qn_status set_raw(qn_talk *t, const char *text, size_t size, qn_err *err) {
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    int32_t *short_ids = NULL, *ids = NULL;
    asked p = {.images = qn_pictures_list(&t->images), .n_images = t->images.n};
    size_t n;
    QN_TRY(qn_tokenize(&short_ids, &n, t->tokenizer, text, size, &opts, err));
    qn_status status = qn_engine_expand_images(&ids, &p.n, NULL, t->loaded.engine, short_ids, n,
                                               p.images, p.n_images, err);
    p.ids = ids;
    if (!status) status = set_prompt(t, &p, err);
    qn_free(short_ids);
    qn_free(ids);
    return status;
}

// Images that a question failed with wait for the next one.
static qn_status hint_images(const qn_talk *t, qn_status status, qn_err *err) {
    const qn_err refusal = *err;
    if (!t->is_chat || t->images.n == 0 || status == QN_STOPPED) return status;
    qn_err_set(err, status, refusal.file, refusal.line, "%s; %s: /image none drops %s",
               refusal.message,
               t->images.n == 1 ? "the image still waits" : "the images still wait",
               t->images.n == 1 ? "it" : "them");
    return status;
}

// --- turns ---------------------------------------------------------------------------------------

static void tell_skipped(const qn_talk *t, size_t n_skipped, size_t n_turns) {
    if (t->is_chat)
        qn_print_dim("[%zu of %zu turns left out: the context is full]", n_skipped, n_turns);
    else
        qn_print_line("quern: note: %zu of %zu turns left out: the context is full", n_skipped,
                      n_turns);
}

// A prompt that would fit if turns were left out: says how they are.
static qn_status hint_shift(const qn_talk *t, const qn_chat_opts *opts, qn_status status,
                            qn_err *err) {
    static const char *const ways_out[] = {
        "; --context-shift leaves out the oldest turns",
        "; '/set context-shift on', or --context-shift, leaves out the oldest turns, /reset clears "
        "the conversation"};
    const qn_err refusal = *err;
    qn_chat_opts shorter = *opts;
    qn_chat_turn *turn = NULL;
    if (status != QN_LIMIT || opts->leave_out) return status;
    shorter.leave_out = true;
    QN_TRY(qn_chat_turn_create(&turn, t->chat, t->template, t->loaded.engine,
                               qn_session_context(t->session), &shorter, err));
    qn_chat_turn_destroy(turn);
    qn_err_set(err, status, refusal.file, refusal.line, "%s%s", refusal.message,
               ways_out[t->is_chat]);
    return status;
}

// The prompt of the first n messages; with --context-shift as few of the oldest turns are left out
// as it takes. They stay in the conversation, and in its file.
static qn_status make_turn(qn_chat_turn **out, qn_chat_turn_info *info, qn_talk *t, size_t n,
                           qn_err *err) {
    const qn_chat_prompt_opts prompt =
        QN_INIT(qn_chat_prompt_opts, .reasoning = (qn_reasoning)t->args->live.reasoning,
                .n_messages = n, .progress = qn_interrupt_progress);
    const qn_chat_opts opts =
        QN_INIT(qn_chat_opts, .prompt = &prompt, .leave_out = t->args->live.shift);
    qn_chat_turn *turn = NULL;
    QN_TRY(look_for_switch(t, &prompt, err));
    qn_status status = qn_chat_turn_create(&turn, t->chat, t->template, t->loaded.engine,
                                           qn_session_context(t->session), &opts, err);
    if (status) return hint_shift(t, &opts, status, err);
    status = qn_chat_turn_get_info(info, turn, err);
    if (status) {
        qn_chat_turn_destroy(turn);
        return status;
    }
    if (!info->is_guarded && !t->has_warned) {
        qn_print_line("quern: note: the chat template changes the texts of messages; special "
                      "tokens written in them are recognised");
        t->has_warned = true;
    }
    if (info->n_left_out) tell_skipped(t, info->n_left_out, info->n_turns);
    *out = turn;
    return QN_OK;
}

// --- answers -------------------------------------------------------------------------------------

static void note_figures(qn_talk *t, const qn_answer *a) {
    qn_talk_figures *f = &t->figures;
    f->answers++;
    f->prompt += a->n_prompt, f->reused += a->n_reused, f->tokens += a->n_tokens;
    f->drafted += a->n_drafted, f->accepted += a->n_accepted;
    f->prompt_seconds += a->prompt_seconds, f->seconds += a->seconds;
}

static int n_decimals(double speed) { return speed < 100 ? 1 : 0; }

// Not where the answer goes elsewhere, or they would appear in the middle of it.
static void print_figures(const qn_answer *a) {
    if (!isatty(STDOUT_FILENO)) return;
    char drafts[64] = "";
    const double read = qn_answer_prompt_speed(a), written = qn_answer_speed(a);
    if (a->n_drafted)
        snprintf(drafts, sizeof drafts, " (%lld of %lld drafts)", (long long)a->n_accepted,
                 (long long)a->n_drafted);
    // In 80 columns.
    qn_print_dim("[prompt %lld (%lld cached), %.*f/s; answer %lld%s, %.*f tokens/s]",
                 (long long)a->n_prompt, (long long)a->n_reused, n_decimals(read), read,
                 (long long)a->n_tokens, drafts, n_decimals(written), written);
}

static qn_generate_opts generate_opts(const qn_talk *t, const qn_sample_opts *sample) {
    const qn_live_args *live = &t->args->live;
    return QN_INIT(qn_generate_opts, .sample = sample, .min_tokens = live->min_tokens,
                   .max_tokens = live->tokens, .ignore_end = live->ignore_eos,
                   .stops = live->stops.items, .n_stops = live->stops.n, .grammar = t->grammar,
                   .logprobs = live->logprobs > 0, .n_top = (int32_t)live->logprobs,
                   .draft = t->draft, .lookup = live->lookup, .mtp = t->args->mtp,
                   .mtp_fast = live->mtp_fast, .draft_max = (int32_t)live->draft_max,
                   .shift = live->shift, .keep = live->keep, .naive = t->args->naive);
}

static void tell_context(const qn_talk *t, const qn_answer *answer) {
    const long long context = (long long)qn_session_context(t->session);
    if (answer->is_full)
        qn_print_line("quern: note: stopped because the context of %lld tokens is full", context);
    if (t->grammar && strcmp(answer->reason, "length") == 0)
        qn_print_line("quern: note: the answer was cut off, and may not be what was asked for");
    if (answer->n_shifts)
        qn_print_line(
            "quern: note: the context of %lld tokens was full %lld time%s, and half of it "
            "forgotten",
            context, (long long)answer->n_shifts, answer->n_shifts == 1 ? "" : "s");
}

qn_sample_opts qn_talk_defaults(const qn_talk *t) {
    if (t->args->sampling.greedy) return QN_INIT(qn_sample_opts);
    return qn_sample_facts(t->loaded.engine);
}

bool qn_talk_is_greedy(const qn_talk *t) {
    const qn_sampling_args *args = &t->args->sampling;
    if (args->greedy || !args->temperature.is_given) return qn_talk_defaults(t).temperature == 0;
    return args->temperature.value == 0;
}

// What only the model can tell about the settings.
static qn_status check_settings(const qn_talk *t, const qn_sample_opts *sample, qn_err *err) {
    const qn_live_args *live = &t->args->live;
    const long long n_vocab = (long long)qn_engine_facts(t->loaded.engine).n_vocab;
    const long long max = (long long)qn_session_context(t->session) - 2;
    for (size_t i = 0; i < sample->n_biases; i++) {
        if (sample->biases[i].token >= n_vocab)
            return QN_FAIL(err, USAGE, "--logit-bias: token %d, this model has 0 to %lld",
                           sample->biases[i].token, n_vocab - 1);
    }
    if (live->shift && live->keep > max)
        return QN_FAIL(err, USAGE, "--keep: %lld, want at most %lld in a context of %lld tokens",
                       (long long)live->keep, max, max + 2);
    return QN_OK;
}

// The session has its prompt. `turn` NULL: all is text.
static qn_status run_answer(qn_answer *out, qn_talk *t, const qn_chat_turn *turn, qn_err *err) {
    qn_sampling sampling = {0};
    const qn_sample_opts defaults = qn_talk_defaults(t);
    QN_TRY(qn_sampling_init(&sampling, &t->args->sampling, &defaults, err));
    sampling.opts.completion = t->completion;
    const qn_answer_opts opts = {
        .session = t->session,
        .tokenizer = t->tokenizer,
        .generate = generate_opts(t, &sampling.opts),
        .turn = turn,
        .json = t->args->json,
        .is_plain = t->args->live.plain,
        .no_wrap = t->args->live.no_wrap,
        .reading = &t->reading,
    };
    qn_status status = check_settings(t, &sampling.opts, err);
    if (!status) status = qn_answer_run(out, &opts, err);
    qn_sampling_deinit(&sampling);
    if (status) return status;
    note_figures(t, out);
    if (t->is_chat && strcmp(out->reason, "interrupted") == 0) qn_print_dim("[stopped]");
    print_figures(out);
    tell_context(t, out);
    return QN_OK;
}

// Answers the first n messages; others are dropped if that succeeds.
static qn_status answer_messages(qn_talk *t, size_t n, qn_err *err) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    qn_chat_turn *turn = NULL;
    qn_answer answer = {0};
    QN_TRY(make_turn(&turn, &info, t, n, err));
    const asked p = {.ids = info.ids,
                     .n = info.n,
                     .n_mark = info.row->mark,
                     .images = info.row->images,
                     .n_images = info.row->n_images};
    qn_status status = set_prompt(t, &p, err);
    if (!status) status = qn_saved_keep(t, err); // what was typed outlives what may happen now
    if (!status) status = run_answer(&answer, t, turn, err);
    if (!status) status = add_answer(t, n, &answer, err);
    qn_answer_deinit(&answer);
    qn_chat_turn_destroy(turn);
    return status;
}

static qn_status answer_raw(qn_talk *t, const char *text, size_t size, qn_err *err) {
    qn_answer answer = {0};
    QN_TRY(set_raw(t, text, size, err));
    QN_TRY(run_answer(&answer, t, NULL, err));
    qn_answer_deinit(&answer);
    return QN_OK;
}

// A message, and the answer to it; if that fails, neither. One that has no answer goes.
static qn_status answer_message(qn_talk *t, const qn_message *message, qn_err *err) {
    size_t n = qn_chat_n_messages(t->chat);
    bool is_open = false;
    (void)qn_talk_question(t, &is_open);
    if (is_open) QN_TRY(qn_chat_truncate(t->chat, --n, err));
    QN_TRY(qn_chat_add(t->chat, message, err));
    t->completion = 0;
    const qn_status status = answer_messages(t, n + 1, err);
    const qn_status cut = status ? qn_chat_truncate(t->chat, n, NULL) : QN_OK;
    return cut ? cut : status;
}

static qn_status ask_text(qn_talk *t, const char *text, size_t size, qn_err *err) {
    QN_TRY(qn_text_check("the prompt", text, size, err));
    const qn_message message =
        QN_INIT(qn_message, .role = "user", .text = text, .text_size = size,
                .images = qn_pictures_list(&t->images), .n_images = t->images.n);
    t->completion = 0;
    const qn_status status =
        t->template ? answer_message(t, &message, err) : answer_raw(t, text, size, err);
    if (status) return hint_images(t, status, err);
    qn_pictures_clear(&t->images);
    return QN_OK;
}

qn_status qn_talk_ask(qn_talk *t, const char *text, size_t size, qn_err *err) {
    if (size == 0) return QN_FAIL(err, ARGUMENT, "the prompt is empty");
    if (t->waiting.size == 0) return ask_text(t, text, size, err);
    qn_buf whole = {0}, waiting = t->waiting;
    t->waiting = (qn_buf){0}; // it is part of the question now, unless that fails
    qn_buf_add(&whole, waiting.data, waiting.size);
    qn_buf_add(&whole, text, size);
    const qn_status status =
        whole.failed ? QN_NOMEM(err, "the prompt") : ask_text(t, whole.data, whole.size, err);
    qn_buf_deinit(&whole);
    if (status)
        t->waiting = waiting;
    else
        qn_buf_deinit(&waiting);
    return status;
}

qn_status qn_talk_again(qn_talk *t, qn_err *err) {
    const size_t n = qn_chat_n_messages(t->chat);
    const bool is_answered = n > 0 && is_of(t->chat, n - 1, "assistant");
    if (n == 0 || is_of(t->chat, n - 1, "system"))
        return QN_FAIL(err, STATE, "there is no answer yet");
    t->completion = is_answered ? t->completion + 1 : 0;
    return answer_messages(t, n - is_answered, err);
}

// --- questions -----------------------------------------------------------------------------------

// The number of messages up to the last question, with it; 0: there is none.
static size_t find_question(const qn_talk *t) {
    size_t n = qn_chat_n_messages(t->chat);
    while (n > 0 && !is_of(t->chat, n - 1, "user")) n--;
    return n;
}

const char *qn_talk_question(const qn_talk *t, bool *is_open) {
    const size_t n = find_question(t);
    qn_message message = QN_INIT(qn_message);
    if (is_open) *is_open = n > 0 && n == qn_chat_n_messages(t->chat);
    if (n == 0 || qn_chat_get(&message, t->chat, n - 1, NULL)) return NULL;
    return message.text ? message.text : "";
}

qn_status qn_talk_undo(qn_buf *question, qn_talk *t, qn_err *err) {
    const size_t n = find_question(t);
    if (n == 0) return QN_FAIL(err, STATE, "there is no question to take back");
    qn_buf_text(question, qn_talk_question(t, NULL));
    if (question->failed) return QN_NOMEM(err, "a question");
    t->completion = 0;
    return qn_chat_truncate(t->chat, n - 1, err);
}

qn_status qn_talk_add_text(qn_talk *t, const char *name, const char *text, size_t size,
                           qn_err *err) {
    QN_TRY(qn_text_check(name, text, size, err));
    qn_buf_printf(&t->waiting, "--- %s ---\n", name);
    qn_buf_add(&t->waiting, text, size);
    if (size && text[size - 1] != '\n') qn_buf_text(&t->waiting, "\n");
    qn_buf_printf(&t->waiting, "--- end of %s ---\n\n", name);
    return t->waiting.failed ? QN_NOMEM(err, name) : QN_OK;
}

// --- results of tools ----------------------------------------------------------------------------

// The calls of the last message that is no result, without as many as there are results behind it.
static json_t *open_calls(const json_t *messages) {
    size_t i = json_array_size(messages), n_results = 0;
    const char *role = NULL;
    for (; i > 0; i--) {
        role = json_string_value(json_object_get(json_array_get(messages, i - 1), "role"));
        if (!role || strcmp(role, "tool") != 0) break;
        n_results++;
    }
    json_t *calls = i ? json_object_get(json_array_get(messages, i - 1), "tool_calls") : NULL;
    json_t *open = json_array();
    for (size_t k = n_results; k < json_array_size(calls); k++) {
        json_t *call = json_array_get(calls, k);
        if (json_is_object(json_object_get(call, "function")))
            qn_json_push(&open, json_incref(call));
    }
    return open;
}

qn_status qn_talk_open_calls(json_t **out, const qn_talk *t, qn_err *err) {
    char *text = NULL;
    json_t *messages = NULL;
    QN_TRY(qn_chat_print_messages(&text, t->chat, err));
    const qn_status status =
        qn_json_parse(&messages, text, strlen(text), false, "the messages", err);
    qn_free(text);
    if (status) return status;
    *out = open_calls(messages);
    json_decref(messages);
    return *out ? QN_OK : QN_NOMEM(err, "tool calls");
}

qn_status qn_talk_add_result(qn_talk *t, const char *text, qn_err *err) {
    const qn_message message =
        QN_INIT(qn_message, .role = "tool", .text = text, .text_size = strlen(text));
    json_t *calls = NULL;
    QN_TRY(qn_talk_open_calls(&calls, t, err));
    const size_t n_open = json_array_size(calls);
    json_decref(calls);
    if (n_open == 0) return QN_FAIL(err, STATE, "no tool call waits for a result");
    return n_open > 1 ? qn_chat_add(t->chat, &message, err) : answer_message(t, &message, err);
}

// --- opening -------------------------------------------------------------------------------------

// Rows of a step while somebody waits: short, so that Ctrl-C is heard.
enum { WATCHED_CHUNK = 128 };

// A qn_progress_fn. After the last chunk Ctrl-C is left for the answer to take.
static bool show_reading(void *arg, int64_t done, int64_t total) {
    qn_progress *reading = &((qn_talk *)arg)->reading;
    if (reading->from < 0) reading->from = done > WATCHED_CHUNK ? done - WATCHED_CHUNK : 0;
    return done >= total || qn_progress_show(reading, done, total);
}

// A context that was asked for must fit; the model's own may be made shorter to fit in memory.
static qn_status open_session(qn_talk *t, qn_err *err) {
    qn_session_opts opts =
        QN_INIT(qn_session_opts, .context = t->args->context, .shrink = !t->args->context,
                .kept = t->is_chat || t->args->session_state ? 0 : -1, .sessions = 1);
    if (t->is_chat || isatty(STDERR_FILENO)) {
        opts.chunk = WATCHED_CHUNK;
        opts.progress = show_reading;
        opts.progress_arg = t;
    }
    qn_tracer_attach(&t->tracer, &opts);
    const qn_status status = qn_session_create(&t->session, t->loaded.engine, &opts, err);
    const bool is_size = status == QN_LIMIT || status == QN_MEMORY;
    if (is_size && t->args->context) qn_err_prefix(err, status, "--context");
    if (status) return status;
    const int64_t context = qn_session_context(t->session);
    const int64_t max = qn_engine_facts(t->loaded.engine).context;
    if (opts.shrink && context < max)
        qn_print_line(
            "quern: note: a context of %lld tokens, the model's own %lld need more memory",
            (long long)context, (long long)max);
    return QN_OK;
}

// A model without a template that can be used: `why` says what is the matter with it.
static qn_status choose_template(qn_talk *t, const qn_err *why, qn_err *err) {
    const char *name = qn_template_find_builtin(t->tokenizer);
    if (!name) {
        qn_print_line("quern: note: %s; the text is fed as it is", why->message);
        return QN_OK;
    }
    qn_print_line("quern: note: %s; %s is used, which it has the tokens for", why->message,
                  qn_template_builtin_title(name));
    return qn_template_create_builtin(&t->template, name, err);
}

static qn_status open_template(qn_talk *t, qn_err *err) {
    if (t->args->raw) return QN_OK;
    if (t->args->template) {
        const qn_status opened = qn_template_open(&t->template, t->args->template, NULL, err);
        if (opened == QN_IO)
            qn_err_prefix(err, opened, "--template wants a .jinja file or a model");
        return opened;
    }
    qn_err why;
    const qn_status status = qn_engine_template(&t->template, t->loaded.engine, NULL, &why);
    if (status == QN_MEMORY || status == QN_IO) { // it may well have one
        *err = why;
        return status;
    }
    return status ? choose_template(t, &why, err) : QN_OK;
}

static qn_status open_tools(qn_talk *t, qn_err *err) {
    const char *path = t->args->tools;
    if (!path) return QN_OK;
    if (!qn_path_is_file(path) && access(path, F_OK) != 0)
        return QN_FAIL(err, USAGE, "--tools: cannot open '%s': %s; it takes a file", path,
                       strerror(errno));
    qn_buf text = {0};
    qn_status status = qn_text_read(&text, path, QN_MAX_TOOLS, err);
    if (!status)
        status = qn_chat_set_tools(t->chat, text.data ? text.data : "", text.size, path, err);
    qn_buf_deinit(&text);
    return status;
}

// The draft model, with as much context as both have.
static qn_status open_draft(qn_talk *t, qn_err *err) {
    const char *path = t->args->draft;
    if (!path) return QN_OK;
    qn_engine_args args = t->args->engine;
    args.mmproj = NULL; // it sees no images
    const qn_open_opts open_opts = {.args = &args, .is_second = true, .needs_tokenizer = true};
    QN_TRY(qn_cli_open(&t->draft_model, path, &open_opts, err));
    const int64_t own = qn_engine_facts(t->draft_model.engine).context;
    const int64_t context = qn_session_context(t->session);
    // The state before the drafts is held beside the session's own.
    const qn_session_opts opts =
        QN_INIT(qn_session_opts, .context = own < context ? own : context, .sessions = 2);
    return qn_session_create(&t->draft, t->draft_model.engine, &opts, err);
}

static void warn_of_schema(void *arg, qn_log_level level, const char *message) {
    qn_shown clean; // the message quotes the schema
    (void)arg;
    (void)level;
    qn_print_line("quern: warning: %s", qn_clean(&clean, message));
}

// A schema that is refused, and would not be if what has no grammar were left out: says so.
static qn_status hint_lenient(const qn_talk *t, const qn_buf *text, qn_status status, qn_err *err) {
    const qn_grammar_opts opts =
        QN_INIT(qn_grammar_opts, .lenient = true, .closed = t->args->schema_closed);
    const qn_err refusal = *err;
    qn_grammar *grammar = NULL;
    if (status == QN_MEMORY || qn_grammar_create(&grammar, t->tokenizer, QN_GRAMMAR_SCHEMA,
                                                 text->data, text->size, &opts, NULL))
        return status;
    qn_grammar_destroy(grammar);
    qn_err_set(err, status, refusal.file, refusal.line, "%s; --schema-lenient goes on without it",
               refusal.message);
    return status;
}

static qn_status make_grammar(qn_talk *t, qn_grammar_kind kind, const qn_buf *text, qn_err *err) {
    const qn_run_args *a = t->args;
    const qn_grammar_opts opts = QN_INIT(qn_grammar_opts, .lenient = a->schema_lenient,
                                         .closed = a->schema_closed, .log = warn_of_schema);
    const qn_status status =
        qn_grammar_create(&t->grammar, t->tokenizer, kind, text->data, text->size, &opts, err);
    if (!status || kind != QN_GRAMMAR_SCHEMA || opts.lenient) return status;
    return hint_lenient(t, text, status, err);
}

// At most one of them is given.
static qn_status open_grammar(qn_talk *t, qn_err *err) {
    const qn_run_args *a = t->args;
    const struct {
        const char *option, *text, *file;
        qn_grammar_kind kind;
    } forms[] = {
        {"--grammar", a->grammar, NULL, QN_GRAMMAR_GBNF},
        {"--grammar-file", NULL, a->grammar_file, QN_GRAMMAR_GBNF},
        {"--json-schema", a->schema, NULL, QN_GRAMMAR_SCHEMA},
        {"--json-schema-file", NULL, a->schema_file, QN_GRAMMAR_SCHEMA},
        {"--regex", a->regex, NULL, QN_GRAMMAR_REGEX},
        {"--json-mode", a->json_mode ? "" : NULL, NULL, QN_GRAMMAR_JSON},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        if (!forms[i].text && !forms[i].file) continue;
        qn_buf text = {0};
        if (forms[i].text) qn_buf_text(&text, forms[i].text);
        qn_status status = text.failed ? QN_NOMEM(err, "a grammar") : QN_OK;
        if (forms[i].file) status = qn_text_read(&text, forms[i].file, QN_MAX_GRAMMAR, err);
        if (!status) status = make_grammar(t, forms[i].kind, &text, err);
        qn_buf_deinit(&text);
        if (status) return qn_err_prefix(err, status, "%s", forms[i].option);
    }
    return QN_OK;
}

qn_status qn_talk_open(qn_talk *t, qn_err *err) {
    const qn_open_opts open_opts = {.args = &t->args->engine,
                                    .needs_tokenizer = true,
                                    .mtp = t->args->mtp,
                                    .context = t->args->context};
    QN_TRY(qn_chat_create(&t->chat, err));
    QN_TRY(open_tools(t, err));
    QN_TRY(qn_tracer_init(&t->tracer, &t->args->trace, err));
    QN_TRY(qn_pictures_open(&t->images, &t->args->images, err));
    QN_TRY(qn_cli_open(&t->loaded, t->path, &open_opts, err));
    const qn_status fits = qn_pictures_check(NULL, &t->images, t->loaded.engine, err);
    if (fits) return qn_err_prefix(err, fits, "--image");
    t->tokenizer = qn_engine_tokenizer(t->loaded.engine);
    QN_TRY(open_grammar(t, err));
    QN_TRY(open_session(t, err));
    QN_TRY(open_draft(t, err));
    QN_TRY(open_template(t, err));
    return t->args->system ? qn_talk_set_system(t, t->args->system, err) : QN_OK;
}

char *qn_talk_keep(qn_talk *t, const char *text) {
    void *kept = t->kept;
    if (!qn_grow(&kept, &t->cap_kept, t->n_kept + 1, sizeof *t->kept)) return NULL;
    t->kept = kept;
    char *copy = strdup(text);
    if (copy) t->kept[t->n_kept++] = copy;
    return copy;
}

void qn_talk_close(qn_talk *t) {
    for (size_t i = 0; i < t->n_kept; i++) qn_free(t->kept[i]);
    qn_free(t->kept);
    qn_session_destroy(t->session);
    qn_session_destroy(t->draft);
    qn_grammar_destroy(t->grammar);
    qn_cli_close(&t->draft_model);
    qn_cli_close(&t->loaded);
    qn_template_destroy(t->template);
    qn_chat_destroy(t->chat);
    qn_pictures_clear(&t->images);
    qn_buf_deinit(&t->waiting);
    qn_buf_deinit(&t->typed);
    qn_tracer_deinit(&t->tracer);
}

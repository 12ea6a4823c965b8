#include "cli/talk.h"

#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// --- messages ------------------------------------------------------------------------------------

qn_status qn_text_check(const char *what, const char *text, size_t size, qn_err *err) {
    for (size_t i = 0, n; i < size; i += n) {
        n = qn_utf8_check(text + i, size - i);
        if (n == 0)
            return QN_FAIL(err, ARGUMENT, "%s: no UTF-8 at byte %zu (0x%02x)", what, i,
                           (unsigned)(unsigned char)text[i]);
        if (!text[i]) return QN_FAIL(err, ARGUMENT, "%s: a NUL at byte %zu", what, i);
    }
    return QN_OK;
}

static json_t *new_message(const char *role, const char *text, size_t size) {
    return json_pack("{s:s, s:s%}", "role", role, "content", text, size);
}

static bool is_of(const json_t *message, const char *role) {
    const char *own = json_string_value(json_object_get(message, "role"));
    return own && strcmp(own, role) == 0;
}

const char *qn_talk_system(const qn_talk *t) {
    const json_t *first = json_array_get(t->messages, 0);
    return is_of(first, "system") ? json_string_value(json_object_get(first, "content")) : NULL;
}

qn_status qn_talk_set_system(qn_talk *t, const char *text, qn_err *err) {
    if (text) QN_TRY(qn_text_check("the system message", text, strlen(text), err));
    if (is_of(json_array_get(t->messages, 0), "system")) json_array_remove(t->messages, 0);
    if (!text) return QN_OK;
    json_t *message = new_message("system", text, strlen(text));
    return json_array_insert_new(t->messages, 0, message) == 0 ? QN_OK : QN_NOMEM(err, "a message");
}

static void cut_messages(qn_talk *t, size_t n) {
    while (json_array_size(t->messages) > n)
        json_array_remove(t->messages, json_array_size(t->messages) - 1);
}

void qn_talk_reset(qn_talk *t) {
    cut_messages(t, is_of(json_array_get(t->messages, 0), "system") ? 1 : 0);
    t->completion = 0;
}

// Templates want calls as {"type": "function", "function": {...}}.
static json_t *calls_of(const qn_answer *answer) {
    json_t *calls = json_array();
    for (size_t i = 0; i < json_array_size(answer->calls); i++)
        qn_json_push(&calls, json_pack("{s:s, s:O}", "type", "function", "function",
                                       json_array_get(answer->calls, i)));
    return calls;
}

static qn_status add_answer(qn_talk *t, const qn_answer *answer, qn_err *err) {
    json_t *message =
        new_message("assistant", answer->text.data ? answer->text.data : "", answer->text.size);
    if (answer->reasoning.size)
        qn_json_put(&message, "reasoning_content",
                    qn_json_string(answer->reasoning.data, answer->reasoning.size));
    if (answer->calls) qn_json_put(&message, "tool_calls", calls_of(answer));
    return json_array_append_new(t->messages, message) == 0 ? QN_OK : QN_NOMEM(err, "a message");
}

// --- prompts -------------------------------------------------------------------------------------

static void add_token(json_t **request, const char *name, const qn_tokenizer *tokenizer,
                      int32_t id) {
    size_t size = 0;
    const char *piece = id >= 0 ? qn_tokenizer_piece(tokenizer, id, &size) : NULL;
    if (piece) qn_json_put(request, name, qn_json_string(piece, size));
}

// Names that templates know the same thing by.
static json_t *kwargs_of(int reasoning) {
    if (!reasoning) return json_object();
    const int is_on = reasoning == QN_REASONING_ON;
    return json_pack("{s:b, s:b}", "enable_thinking", is_on, "thinking", is_on);
}

// Owned (qn_free). `reasoning` is a word of --reasoning.
static qn_status make_request(char **out, const qn_talk *t, int reasoning, qn_err *err) {
    const qn_tokenizer_info info = qn_tokenizer_facts(t->tokenizer);
    json_t *request =
        json_pack("{s:O, s:o}", "messages", t->messages, "kwargs", kwargs_of(reasoning));
    if (t->tools) qn_json_put(&request, "tools", json_incref(t->tools));
    if (!t->has_own_ends) {
        add_token(&request, "bos_token", t->tokenizer, info.bos);
        add_token(&request, "eos_token", t->tokenizer, info.eos);
    }
    const qn_status status = qn_json_print(out, request, &(qn_json_form){0}, "a prompt", err);
    json_decref(request);
    return status;
}

static qn_status set_ids(qn_talk *t, const int32_t *ids, size_t n, size_t n_mark, qn_err *err) {
    const long long context = (long long)qn_session_context(t->session);
    if ((long long)n >= context)
        return QN_FAIL(err, LIMIT, "the prompt has %zu tokens, the context %lld", n, context);
    QN_TRY(qn_session_set_prompt(t->session, ids, n, err));
    // One answer keeps nothing for a next one, and its prompt is read in one step.
    const bool is_kept = t->is_chat && !t->args->naive;
    return is_kept && n_mark ? qn_session_mark(t->session, n_mark, err) : QN_OK;
}

// The text of the prompt (owned: qn_free).
static qn_status render(char **out, const qn_talk *t, int reasoning, qn_err *err) {
    char *request = NULL;
    QN_TRY(make_request(&request, t, reasoning, err));
    const qn_template_opts opts = QN_INIT(qn_template_opts, .progress = qn_interrupt_progress);
    const qn_status status =
        qn_template_render(out, NULL, t->template, request, strlen(request), &opts, err);
    qn_free(request);
    return status;
}

// NULL where the template refuses.
static qn_status try_render(char **out, const qn_talk *t, int reasoning, qn_err *err) {
    qn_err why;
    const qn_status status = render(out, t, reasoning, &why);
    if (status != QN_MEMORY && status != QN_STOPPED) return QN_OK;
    *err = why;
    return status;
}

// Once: whether the template makes another prompt with reasoning than without; one that refuses
// either does.
static qn_status look_for_switch(qn_talk *t, qn_err *err) {
    static const char *const words[] = {[QN_REASONING_ON] = "on", [QN_REASONING_OFF] = "off"};
    if (!t->args->live.reasoning || t->has_looked) return QN_OK;
    char *on = NULL, *off = NULL;
    qn_status status = try_render(&on, t, QN_REASONING_ON, err);
    if (!status) status = try_render(&off, t, QN_REASONING_OFF, err);
    if (!status) t->has_looked = on || off; // of neither nothing can be told
    if (!status && on && off && strcmp(on, off) == 0)
        qn_print_line(
            "quern: note: --reasoning %s changes nothing: the chat template has no switch for "
            "reasoning",
            words[t->args->live.reasoning]);
    qn_free(on);
    qn_free(off);
    return status;
}

static qn_status make_prompt(qn_chat_prompt *out, qn_talk *t, qn_err *err) {
    QN_TRY(look_for_switch(t, err));
    char *request = NULL;
    QN_TRY(make_request(&request, t, t->args->live.reasoning, err));
    const qn_template_opts opts = QN_INIT(qn_template_opts, .progress = qn_interrupt_progress);
    const qn_status status =
        qn_chat_prompt_create(out, t->template, t->tokenizer, request, strlen(request), &opts, err);
    qn_free(request);
    if (!status && !out->is_guarded && !t->has_warned) {
        qn_print_line("quern: note: the chat template changes the texts of messages; special "
                      "tokens written in them are recognised");
        t->has_warned = true;
    }
    return status;
}

static qn_status set_raw(qn_talk *t, const char *text, size_t size, qn_err *err) {
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    int32_t *ids = NULL;
    size_t n;
    QN_TRY(qn_tokenize(&ids, &n, t->tokenizer, text, size, &opts, err));
    const qn_status status = set_ids(t, ids, n, 0, err);
    qn_free(ids);
    return status;
}

// --- answers -------------------------------------------------------------------------------------

static void note_figures(qn_talk *t, const qn_answer *a) {
    qn_talk_figures *f = &t->figures;
    f->answers++;
    f->prompt += a->n_prompt, f->reused += a->n_reused, f->tokens += a->n_tokens;
    f->guessed += a->n_drafted, f->accepted += a->n_accepted;
    f->prompt_seconds += a->prompt_seconds, f->seconds += a->seconds;
}

// Not where the answer goes elsewhere, or they would stand in the middle of what shows it.
static void print_figures(const qn_answer *a) {
    if (!isatty(STDOUT_FILENO)) return;
    char guesses[64] = "";
    if (a->n_drafted)
        snprintf(guesses, sizeof guesses, " %lld of %lld guesses right,", (long long)a->n_accepted,
                 (long long)a->n_drafted);
    qn_print_dim("[prompt %lld tokens, %lld known, %.1f tokens/s; answer %lld token%s,%s %.1f "
                 "tokens/s]",
                 (long long)a->n_prompt, (long long)a->n_reused, qn_answer_prompt_speed(a),
                 (long long)a->n_tokens, a->n_tokens == 1 ? "" : "s", guesses, qn_answer_speed(a));
}

static qn_generate_opts generate_opts(const qn_talk *t, const qn_sample_opts *sample) {
    const qn_live_args *live = &t->args->live;
    return QN_INIT(qn_generate_opts, .sample = sample, .min_tokens = live->min_tokens,
                   .max_tokens = live->tokens, .ignore_end = live->ignore_eos,
                   .stops = live->stops.items, .n_stops = live->stops.n, .grammar = t->grammar,
                   .logprobs = live->logprobs > 0, .n_top = (int32_t)live->logprobs,
                   .draft = t->draft, .lookup = live->lookup, .draft_max = (int32_t)live->draft_max,
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
    const long long most = (long long)qn_session_context(t->session) - 2;
    for (size_t i = 0; i < sample->n_biases; i++) {
        if (sample->biases[i].token >= n_vocab)
            return QN_FAIL(err, USAGE, "--logit-bias: token %d, this model has 0 to %lld",
                           sample->biases[i].token, n_vocab - 1);
    }
    if (live->shift && live->keep > most)
        return QN_FAIL(err, USAGE, "--keep: %lld, want at most %lld in a context of %lld tokens",
                       (long long)live->keep, most, most + 2);
    return QN_OK;
}

// The session has its prompt. `parts` NULL: all is text.
static qn_status run_answer(qn_answer *out, qn_talk *t, const qn_parts_opts *parts, qn_err *err) {
    qn_sampling sampling = {0};
    const qn_sample_opts defaults = qn_talk_defaults(t);
    QN_TRY(qn_sampling_init(&sampling, &t->args->sampling, &defaults, err));
    sampling.opts.completion = t->completion;
    const qn_answer_opts opts = {
        .session = t->session,
        .tokenizer = t->tokenizer,
        .generate = generate_opts(t, &sampling.opts),
        .parts = parts,
        .json = t->args->json,
        .reading = &t->reading,
    };
    qn_status status = check_settings(t, &sampling.opts, err);
    if (!status) status = qn_answer_run(out, &opts, err);
    qn_sampling_deinit(&sampling);
    if (status) return status;
    note_figures(t, out);
    print_figures(out);
    tell_context(t, out);
    return QN_OK;
}

// Answers the messages as they are.
static qn_status answer_messages(qn_talk *t, qn_err *err) {
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    QN_TRY(make_prompt(&prompt, t, err));
    const qn_parts_opts parts =
        QN_INIT(qn_parts_opts, .tokenizer = t->tokenizer, .prompt = prompt.text,
                .prompt_size = prompt.text_size, .bare_calls = t->tools != NULL);
    qn_answer answer = {0};
    qn_status status = set_ids(t, prompt.ids, prompt.n, prompt.n_messages, err);
    if (!status) status = run_answer(&answer, t, &parts, err);
    if (!status) status = add_answer(t, &answer, err);
    qn_answer_deinit(&answer);
    qn_chat_prompt_deinit(&prompt);
    return status;
}

static qn_status answer_raw(qn_talk *t, const char *text, size_t size, qn_err *err) {
    qn_answer answer = {0};
    QN_TRY(set_raw(t, text, size, err));
    QN_TRY(run_answer(&answer, t, NULL, err));
    qn_answer_deinit(&answer);
    return QN_OK;
}

qn_status qn_talk_ask(qn_talk *t, const char *text, size_t size, qn_err *err) {
    if (size == 0) return QN_FAIL(err, ARGUMENT, "the prompt is empty");
    QN_TRY(qn_text_check("the prompt", text, size, err));
    t->completion = 0;
    if (!t->template) return answer_raw(t, text, size, err);
    const size_t n_before = json_array_size(t->messages);
    if (json_array_append_new(t->messages, new_message("user", text, size)) != 0)
        return QN_NOMEM(err, "a message");
    const qn_status status = answer_messages(t, err);
    if (status) cut_messages(t, n_before);
    return status;
}

qn_status qn_talk_again(qn_talk *t, qn_err *err) {
    const size_t n = json_array_size(t->messages);
    json_t *last = n ? json_array_get(t->messages, n - 1) : NULL;
    if (!is_of(last, "assistant")) return QN_FAIL(err, STATE, "there is no answer yet");
    json_incref(last);
    cut_messages(t, n - 1);
    t->completion++;
    const qn_status status = answer_messages(t, err);
    if (status && json_array_append(t->messages, last) != 0) cut_messages(t, n - 1);
    json_decref(last);
    return status;
}

// --- opening -------------------------------------------------------------------------------------

// Rows of a step while somebody waits: short, so that Ctrl-C is heard.
enum { WATCHED_CHUNK = 128 };

// A qn_progress_fn. Behind the last chunk Ctrl-C is left for the answer to take.
static bool show_reading(void *arg, int64_t done, int64_t total) {
    qn_progress *reading = &((qn_talk *)arg)->reading;
    if (reading->from < 0) reading->from = done > WATCHED_CHUNK ? done - WATCHED_CHUNK : 0;
    return done >= total || qn_progress_show(reading, done, total);
}

// A context that was asked for must fit; the model's own may be made shorter to fit in memory.
static qn_status open_session(qn_talk *t, qn_err *err) {
    qn_session_opts opts =
        QN_INIT(qn_session_opts, .context = t->args->context, .shrink = !t->args->context,
                .kept = t->is_chat ? 0 : -1, .sessions = 1);
    if (t->is_chat || isatty(STDERR_FILENO)) {
        opts.chunk = WATCHED_CHUNK;
        opts.progress = show_reading;
        opts.progress_arg = t;
    }
    qn_tracer_attach(&t->tracer, &opts);
    const qn_status status = qn_session_create(&t->session, t->loaded.engine, &opts, err);
    if (status == QN_LIMIT || status == QN_MEMORY) qn_err_prefix(err, status, "--context");
    if (status) return status;
    const int64_t context = qn_session_context(t->session);
    const int64_t most = qn_engine_facts(t->loaded.engine).context;
    if (opts.shrink && context < most)
        qn_print_line(
            "quern: note: a context of %lld tokens, the model's own %lld need more memory",
            (long long)context, (long long)most);
    return QN_OK;
}

// Templates for models that come without one, by the tokens around a message.
static const struct {
    const char *name, *open, *close, *text;
} built_in[] = {
    {"ChatML", "<|im_start|>", "<|im_end|>",
     "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>"
     "\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"},
    {"Gemma's format", "<start_of_turn>", "<end_of_turn>",
     "{{ bos_token }}{% set ns = namespace(first='') %}{% for message in messages %}"
     "{% if message.role == 'system' %}{% set ns.first = message.content ~ '\n\n' %}{% else %}"
     "<start_of_turn>{{ 'model' if message.role == 'assistant' else 'user' }}\n{{ ns.first }}"
     "{{ message.content }}<end_of_turn>\n{% set ns.first = '' %}{% endif %}{% endfor %}"
     "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"},
};

static bool has_token(const qn_tokenizer *tokenizer, const char *piece) {
    return qn_tokenizer_find(tokenizer, piece, strlen(piece)) >= 0;
}

// A model without a template that can be used: `why` says what is the matter with it.
static qn_status choose_template(qn_talk *t, const qn_err *why, qn_err *err) {
    for (size_t i = 0; i < sizeof built_in / sizeof *built_in; i++) {
        if (!has_token(t->tokenizer, built_in[i].open) ||
            !has_token(t->tokenizer, built_in[i].close))
            continue;
        const char *text = built_in[i].text;
        qn_print_line("quern: note: %s; %s is used, which it has the tokens for", why->message,
                      built_in[i].name);
        return qn_template_create(&t->template, text, strlen(text), err);
    }
    qn_print_line("quern: note: %s; the text is fed as it is", why->message);
    return QN_OK;
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
    t->has_own_ends = !status;
    if (status == QN_MEMORY || status == QN_IO) { // it may well have one
        *err = why;
        return status;
    }
    return status ? choose_template(t, &why, err) : QN_OK;
}

static const char *kind_of(const json_t *value) {
    static const char *const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "a list",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

// Templates look into tools by name; what else is in them is the template's to say.
static qn_status check_tools(const json_t *tools, const char *path, qn_err *err) {
    if (!json_is_array(tools))
        return QN_FAIL(err, FORMAT, "%s: %s, want a list of tools", path, kind_of(tools));
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        if (!json_is_object(tool))
            return QN_FAIL(err, FORMAT, "%s: tool %zu is %s, want an object", path, i,
                           kind_of(tool));
    }
    return QN_OK;
}

static qn_status open_tools(qn_talk *t, qn_err *err) {
    qn_buf text = {0};
    const char *path = t->args->tools;
    if (!path) return QN_OK;
    qn_status status = qn_text_read(&text, path, QN_MOST_TOOLS, err);
    if (!status) status = qn_json_parse(&t->tools, text.data, text.size, false, path, err);
    if (!status) status = check_tools(t->tools, path, err);
    qn_buf_deinit(&text);
    return status;
}

// A model that guesses, with as much context as both have.
static qn_status open_draft(qn_talk *t, qn_err *err) {
    const char *path = t->args->draft;
    if (!path) return QN_OK;
    const qn_open_opts open_opts = {.args = &t->args->engine, .needs_tokenizer = true};
    QN_TRY(qn_cli_open(&t->draft_model, path, &open_opts, err));
    const int64_t own = qn_engine_facts(t->draft_model.engine).context;
    const int64_t context = qn_session_context(t->session);
    // The state before guesses is held beside the session's own.
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
        if (forms[i].file) status = qn_text_read(&text, forms[i].file, QN_MOST_GRAMMAR, err);
        if (!status) status = make_grammar(t, forms[i].kind, &text, err);
        qn_buf_deinit(&text);
        if (status) return qn_err_prefix(err, status, "%s", forms[i].option);
    }
    return QN_OK;
}

qn_status qn_talk_open(qn_talk *t, qn_err *err) {
    const qn_open_opts open_opts = {.args = &t->args->engine, .needs_tokenizer = true};
    t->messages = json_array();
    if (!t->messages) return QN_NOMEM(err, "messages");
    QN_TRY(open_tools(t, err));
    QN_TRY(qn_tracer_init(&t->tracer, &t->args->trace, err));
    QN_TRY(qn_cli_open(&t->loaded, t->path, &open_opts, err));
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
    json_decref(t->messages);
    json_decref(t->tools);
    qn_tracer_deinit(&t->tracer);
}

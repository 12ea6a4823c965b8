// qn_chat_turn: the prompt of the next answer in a conversation, cut to the context, and the
// options of the row that computes it.
#include "api/chat_turn.h"

#include "core/mem.h"
#include "core/structs.h"

#include <string.h>

// --- turns ---------------------------------------------------------------------------------------

// What a prompt is made from.
typedef struct source {
    const qn_chat *chat;
    const qn_template *template;
    const qn_engine *engine;
    int64_t context;
    size_t n; // messages
    bool has_tools;
    qn_chat_prompt_opts opts;
    qn_prompt_limit limit; // of the next prompt
    bool is_refused;       // one was, for its length
} source;

static bool is_of(const source *s, size_t i, const char *role) {
    qn_message message = QN_INIT(qn_message);
    return i < s->n && !qn_chat_get(&message, s->chat, i, NULL) && message.role &&
           strcmp(message.role, role) == 0;
}

// Messages before the i-th turn, counted after the system message.
static size_t find_turn(const source *s, size_t i) {
    const size_t from = is_of(s, 0, "system") ? 1 : 0;
    for (size_t at = from; at < s->n; at++) {
        if (is_of(s, at, "user") && i-- == 0) return at - from;
    }
    return s->n - from;
}

static size_t count_turns(const source *s) {
    size_t n = 0;
    for (size_t at = 0; at < s->n; at++) n += is_of(s, at, "user");
    return n;
}

// --- prompts -------------------------------------------------------------------------------------

static bool fits(const source *s, const qn_chat_prompt *prompt) {
    return prompt->n < (uint64_t)s->context;
}

static qn_status refuse(source *s, const char *what, const qn_chat_prompt *prompt, qn_err *err) {
    s->is_refused = true;
    return QN_FAIL(err, LIMIT, "%s has %zu token%s, the context %lld", what, prompt->n,
                   prompt->n == 1 ? "" : "s", (long long)s->context);
}

// The prompt without the first n_left_out turns, in place of the one that is there.
static qn_status make_prompt(qn_chat_turn *t, source *s, size_t n_left_out, qn_err *err) {
    qn_chat_prompt_deinit(&t->prompt);
    s->limit.is_met = false;
    s->opts.n_skipped = n_left_out ? find_turn(s, n_left_out) : 0;
    t->n_left_out = n_left_out;
    t->n_skipped = s->opts.n_skipped;
    QN_TRY(qn_chat_make_prompt_as(&t->prompt, s->chat, s->template, qn_engine_tokenizer(s->engine),
                                  &s->opts, s->has_tools, &s->limit, err));
    return qn_chat_prompt_expand(&t->prompt, s->engine, err);
}

// The same; *is_fine: it fits.
static qn_status try_prompt(bool *is_fine, qn_chat_turn *t, source *s, size_t n_left_out,
                            qn_err *err) {
    const qn_status status = make_prompt(t, s, n_left_out, err);
    *is_fine = !status && fits(s, &t->prompt);
    return s->limit.is_met ? QN_OK : status;
}

// The last turn alone does not fit: with its length, unless it has more than the caller's limit.
static qn_status refuse_question(qn_chat_turn *t, source *s, qn_err *err) {
    s->limit.max_tokens = s->opts.max_tokens;
    QN_TRY(make_prompt(t, s, t->n_turns - 1, err));
    return refuse(s, "the question alone", &t->prompt, err);
}

// The prompt of all messages does not fit: leaves out as few of the oldest turns as it takes. The
// search begins with the last turns, so that it takes no longer for a conversation of a million.
static qn_status shorten(qn_chat_turn *t, source *s, qn_err *err) {
    const size_t n_turns = t->n_turns;
    bool is_fine = false;
    if (n_turns > 1) QN_TRY(try_prompt(&is_fine, t, s, n_turns - 1, err));
    if (!is_fine) return refuse_question(t, s, err);
    size_t low = 1, high = n_turns - 1;
    for (size_t n_kept = 2; is_fine && low < high && n_kept < n_turns; n_kept *= 2) {
        QN_TRY(try_prompt(&is_fine, t, s, n_turns - n_kept, err));
        if (is_fine)
            high = n_turns - n_kept;
        else
            low = n_turns - n_kept + 1;
    }
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        QN_TRY(try_prompt(&is_fine, t, s, middle, err));
        if (is_fine)
            high = middle;
        else
            low = middle + 1;
    }
    return t->n_left_out == high ? QN_OK : make_prompt(t, s, high, err);
}

// The prompt, and where it does not fit what the options say about that.
static qn_status fit_prompt(qn_chat_turn *t, source *s, bool leaves_out, qn_err *err) {
    const uint64_t context = (uint64_t)s->context;
    s->limit.max_tokens = s->opts.max_tokens;
    leaves_out = leaves_out && t->n_turns > 0;
    // One token more than fits is enough to know that turns must go.
    if (leaves_out && (!s->limit.max_tokens || context < s->limit.max_tokens))
        s->limit.max_tokens = (size_t)context;
    const qn_status status = make_prompt(t, s, 0, err);
    if (status && !(s->limit.is_met && leaves_out)) return status;
    if (!status && fits(s, &t->prompt)) return QN_OK;
    if (leaves_out) return shorten(t, s, err);
    return refuse(s, t->n_turns == 1 ? "the question alone" : "the prompt", &t->prompt, err);
}

// --- the options of the row ----------------------------------------------------------------------

static qn_status set_row(qn_chat_turn *t, const qn_engine *engine, const qn_chat_opts *o,
                         qn_err *err) {
    QN_TRY(QN_OPTS_READ(qn_generate_opts, &t->generate, o->generate, err));
    if (t->generate.flags & QN_GENERATE_SHOW_END)
        return QN_FAIL(err, UNSUPPORTED,
                       "a conversation: QN_GENERATE_SHOW_END would put end tokens into messages");
    t->sample = QN_INIT(qn_sample_opts);
    if (t->generate.sample)
        QN_TRY(QN_OPTS_READ(qn_sample_opts, &t->sample, t->generate.sample, err));
    else
        QN_TRY(qn_engine_sample_defaults(&t->sample, engine, err));
    t->generate.sample = &t->sample;
    if (o->stop) t->generate.stop = o->stop;
    t->row = QN_INIT(qn_row_opts, .generate = &t->generate,
                     .mark = o->keeps_nothing ? 0 : t->prompt.n_messages,
                     .images = t->prompt.images, .n_images = t->prompt.n_images);
    return QN_OK;
}

static qn_status set_hold(qn_chat_turn *t, const source *s, const qn_chat_opts *o, qn_err *err) {
    qn_chat_culprit culprit = QN_CULPRIT_OTHER;
    const qn_chat_holding holding = {.template = s->template,
                                     .tokenizer = qn_engine_tokenizer(s->engine),
                                     .tools = qn_chat_get_tools(s->chat),
                                     .prompt = &t->prompt,
                                     .reasoning = s->opts.reasoning,
                                     .grammar = t->generate.grammar,
                                     .stop = s->opts.stop,
                                     .opts = o,
                                     .culprit = &culprit};
    const qn_status status = qn_chat_hold_init(&t->hold, &holding, err);
    if (status && o->culprit) *o->culprit = culprit;
    QN_TRY(status);
    if (t->hold.grammar) t->generate.grammar = t->hold.grammar;
    return QN_OK;
}

// --- the object ----------------------------------------------------------------------------------

static qn_status init_source(source *s, const qn_chat_opts *o, qn_err *err) {
    const size_t n = qn_chat_n_messages(s->chat);
    QN_TRY(QN_OPTS_READ(qn_chat_prompt_opts, &s->opts, o->prompt, err));
    if (!qn_engine_tokenizer(s->engine))
        return QN_FAIL(err, UNSUPPORTED, "a conversation: the model has no tokenizer");
    if (s->context < 1)
        return QN_FAIL(err, ARGUMENT, "a context of %lld tokens", (long long)s->context);
    if (s->opts.n_skipped)
        return QN_FAIL(err, ARGUMENT, "%zu messages to skip: leave_out finds how many",
                       s->opts.n_skipped);
    if (s->opts.n_messages > n)
        return QN_FAIL(err, ARGUMENT, "a prompt of %zu messages, there are %zu", s->opts.n_messages,
                       n);
    if (o->stop) s->opts.stop = o->stop;
    s->has_tools = o->tool_choice != QN_TOOLS_NONE;
    s->n = s->opts.n_messages ? s->opts.n_messages : n;
    return QN_OK;
}

qn_status qn_chat_turn_create(qn_chat_turn **out, const qn_chat *chat,
                              const qn_template *chat_template, const qn_engine *engine,
                              int64_t context, const qn_chat_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat, err);
    QN_NEED(chat_template, err);
    QN_NEED(engine, err);
    qn_chat_opts o;
    source s = {.chat = chat, .template = chat_template, .engine = engine, .context = context};
    QN_TRY(QN_OPTS_READ(qn_chat_opts, &o, opts, err));
    if (o.culprit) *o.culprit = QN_CULPRIT_OTHER;
    if (o.max_grammar_steps < 0 || o.max_token_steps < 0)
        return QN_FAIL(err, ARGUMENT, "max_grammar_steps of %lld and max_token_steps of %lld",
                       (long long)o.max_grammar_steps, (long long)o.max_token_steps);
    QN_TRY(init_source(&s, &o, err));
    qn_chat_turn *t = qn_alloc(1, sizeof *t);
    if (!t) return QN_NOMEM(err, "a turn");
    t->prompt = QN_INIT(qn_chat_prompt);
    t->parts = QN_INIT(qn_parts_opts);
    t->n_turns = count_turns(&s);
    qn_status status = fit_prompt(t, &s, o.leave_out, err);
    if (status && o.culprit && (s.is_refused || s.limit.is_met)) *o.culprit = QN_CULPRIT_LENGTH;
    if (!status) status = set_row(t, engine, &o, err);
    const bool has_form = !status && t->generate.grammar;
    if (!status) status = set_hold(t, &s, &o, err);
    if (!status)
        status =
            qn_chat_get_parts_opts(&t->parts, chat, qn_engine_tokenizer(engine), &t->prompt, err);
    // What follows a grammar is text, even if it reads as a call without a tag would.
    if (t->hold.form && has_form) t->parts.bare_calls = false;
    if (status)
        qn_chat_turn_destroy(t);
    else
        *out = t;
    return status;
}

void qn_chat_turn_destroy(qn_chat_turn *turn) {
    if (!turn) return;
    qn_chat_prompt_deinit(&turn->prompt);
    qn_chat_hold_deinit(&turn->hold);
    qn_free(turn);
}

qn_status qn_chat_turn_get_info(qn_chat_turn_info *out, const qn_chat_turn *turn, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(turn, err);
    QN_TRY(QN_RESULT_CHECK(qn_chat_turn_info, out, err));
    const qn_chat_turn_info info = {.size = sizeof info,
                                    .ids = turn->prompt.ids,
                                    .n = turn->prompt.n,
                                    .row = &turn->row,
                                    .n_turns = turn->n_turns,
                                    .n_left_out = turn->n_left_out,
                                    .text = turn->prompt.text,
                                    .text_size = turn->prompt.text_size,
                                    .is_guarded = turn->prompt.is_guarded,
                                    .n_skipped = (int64_t)turn->n_skipped};
    QN_RESULT_WRITE(qn_chat_turn_info, out, &info);
    return QN_OK;
}

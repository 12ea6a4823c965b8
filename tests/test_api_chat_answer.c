// Answers in a conversation: prompts, options and parts in one call, and the parts that a server
// uses for the rows of a batch.
#include "testing.h"

#include <stdio.h>

#define DRAFT MODELS "/quern-draft-Q8_0.gguf"

enum { CONTEXT = 512, MAX_TEXT = 8192 };

typedef struct things {
    qn_engine *engine;
    qn_session *session;
    qn_template *template;
    qn_chat *chat;
} things;

static qn_session *open_session(const qn_engine *engine, int64_t context) {
    qn_err err;
    qn_session *session = NULL;
    ASSERT_OK(
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = context), &err));
    return session;
}

static things open_model(const char *model, int64_t context) {
    qn_err err;
    things t = {0};
    ASSERT_OK(qn_engine_open(&t.engine, model, NULL, &err));
    ASSERT_OK(qn_engine_template(&t.template, t.engine, NULL, &err));
    ASSERT_OK(qn_chat_create(&t.chat, &err));
    t.session = open_session(t.engine, context);
    return t;
}

static things open_things(int64_t context) { return open_model(DRAFT, context); }

static void close_things(things *t) {
    qn_chat_destroy(t->chat);
    qn_session_destroy(t->session);
    qn_template_destroy(t->template);
    qn_engine_close(t->engine);
}

static void say(qn_chat *chat, const char *text) {
    qn_err err;
    const qn_message m =
        QN_INIT(qn_message, .role = "user", .text = text, .text_size = strlen(text));
    ASSERT_OK(qn_chat_add(chat, &m, &err));
}

static qn_message get(const qn_chat *chat, size_t i) {
    qn_err err;
    qn_message m = QN_INIT(qn_message);
    ASSERT_OK(qn_chat_get(&m, chat, i, &err));
    return m;
}

// --- what is told --------------------------------------------------------------------------------

typedef struct told {
    char log[MAX_TEXT]; // "kind:text|"
    size_t n_begin, n_tokens, n_left_out, n_turns;
    size_t stop_after; // events; 0: none
    size_t n;
} told;

static bool tell(void *arg, const qn_chat_event *e) {
    static const char *const names[] = {"begin", "reasoning", "text", "call", "arguments"};
    told *t = arg;
    assert_int_equal(e->size, sizeof *e);
    t->n++;
    if (e->kind == QN_CHAT_BEGIN) {
        assert_non_null(e->turn);
        assert_null(e->token);
        t->n_begin++;
        t->n_left_out = e->turn->n_left_out;
        t->n_turns = e->turn->n_turns;
    } else {
        const size_t used = strlen(t->log);
        snprintf(t->log + used, sizeof t->log - used, "%s%s%s:%.*s|", names[e->kind],
                 e->name ? " " : "", e->name ? e->name : "", (int)e->text_size, e->text);
    }
    return !t->stop_after || t->n < t->stop_after;
}

static bool count(void *arg, const qn_event *e) {
    ((told *)arg)->n_tokens += e->token >= 0;
    return true;
}

// The texts of one kind, put together.
static void join(char *to, const char *log, const char *kind) {
    char mark[32];
    snprintf(mark, sizeof mark, "%s:", kind);
    *to = '\0';
    for (const char *at = log; *at; at = strchr(at, '|') + 1) {
        if (strncmp(at, mark, strlen(mark)) != 0) continue;
        const char *from = at + strlen(mark);
        strncat(to, from, (size_t)(strchr(from, '|') - from));
    }
}

// --- one call ------------------------------------------------------------------------------------

static void an_answer_is_what_its_parts_give(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = 40);
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_result want = QN_INIT(qn_result), got = QN_INIT(qn_result);
    told seen = {0};
    const qn_chat_opts opts =
        QN_INIT(qn_chat_opts, .generate = &generate, .token_fn = count, .token_arg = &seen);
    char text[MAX_TEXT];
    say(t.chat, "Name the capital of France.");
    ASSERT_OK(qn_chat_make_prompt(&prompt, t.chat, t.template, qn_engine_tokenizer(t.engine), NULL,
                                  &err));
    ASSERT_OK(qn_session_set_prompt(t.session, prompt.ids, prompt.n, &err));
    ASSERT_OK(qn_generate(&want, t.session, &generate, NULL, NULL, &err));
    assert_true(want.n_tokens > 0);
    ASSERT_OK(qn_chat_answer(&got, t.chat, t.session, t.template, &opts, tell, &seen, &err));
    assert_int_equal(got.n_tokens, want.n_tokens);
    assert_memory_equal(got.tokens, want.tokens, want.n_tokens * sizeof *want.tokens);
    assert_int_equal(got.n_prompt, prompt.n);
    assert_int_equal(seen.n_begin, 1);
    assert_int_equal(seen.n_tokens, want.n_tokens);
    join(text, seen.log, "text");
    assert_int_equal(qn_chat_n_messages(t.chat), 2);
    const qn_message last = get(t.chat, 1);
    assert_string_equal(last.role, "assistant");
    assert_string_equal(last.text, text);
    assert_non_null(strstr(want.text, text));
    // The next turn computes what is new, and is answered by default options too.
    say(t.chat, "And of Italy?");
    qn_result second = QN_INIT(qn_result);
    ASSERT_OK(qn_chat_answer(&second, t.chat, t.session, t.template, &opts, NULL, NULL, &err));
    assert_true(second.n_reused > (int64_t)prompt.n / 2);
    assert_int_equal(qn_chat_n_messages(t.chat), 4);
    // Again, of the first message alone: those after it are dropped.
    const qn_chat_prompt_opts first = QN_INIT(qn_chat_prompt_opts, .n_messages = 1);
    const qn_chat_opts again = QN_INIT(qn_chat_opts, .prompt = &first, .generate = &generate);
    ASSERT_OK(qn_chat_answer(NULL, t.chat, t.session, t.template, &again, NULL, NULL, &err));
    assert_int_equal(qn_chat_n_messages(t.chat), 2);
    assert_string_equal(get(t.chat, 1).text, text);
    qn_result_deinit(&want);
    qn_result_deinit(&got);
    qn_result_deinit(&second);
    qn_chat_prompt_deinit(&prompt);
    close_things(&t);
}

static void what_is_stopped_is_kept(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    qn_stop_flag *flag;
    qn_result got = QN_INIT(qn_result);
    told seen = {.stop_after = 4};
    say(t.chat, "Tell me a story.");
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = 60);
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate);
    ASSERT_OK(qn_chat_answer(&got, t.chat, t.session, t.template, &opts, tell, &seen, &err));
    assert_int_equal(got.reason, QN_REASON_CALLER);
    assert_true(got.n_tokens < 20);
    assert_int_equal(qn_chat_n_messages(t.chat), 2);
    assert_true(get(t.chat, 1).text_size > 0);
    qn_result_deinit(&got);
    // A callback that wants nothing at all, and a flag that is set: the chat is as it was.
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    qn_stop_flag_set(flag);
    say(t.chat, "Go on.");
    seen = (told){.stop_after = 1};
    ASSERT_FAILS(qn_chat_answer(NULL, t.chat, t.session, t.template, &opts, tell, &seen, &err),
                 QN_STOPPED, "before the answer");
    const qn_chat_opts stopped = QN_INIT(qn_chat_opts, .generate = &generate, .stop = flag);
    ASSERT_FAILS(qn_chat_answer(NULL, t.chat, t.session, t.template, &stopped, NULL, NULL, &err),
                 QN_STOPPED, "");
    assert_int_equal(qn_chat_n_messages(t.chat), 3);
    qn_stop_flag_destroy(flag);
    close_things(&t);
}

// --- full contexts -------------------------------------------------------------------------------

static void old_turns_are_left_out_if_asked(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    char text[600];
    size_t n = 0;
    memset(text, 'a', sizeof text - 1);
    for (size_t i = 3; i < sizeof text; i += 4) text[i] = ' ';
    text[sizeof text - 1] = '\0';
    ASSERT_OK(qn_chat_set_system(t.chat, "Be brief.", &err));
    for (; n < 6; n++) {
        say(t.chat, text);
        if (n < 5)
            ASSERT_OK(qn_chat_add(
                t.chat, &QN_INIT(qn_message, .role = "assistant", .text = "ok", .text_size = 2),
                &err));
    }
    const size_t n_messages = qn_chat_n_messages(t.chat);
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = 3);
    qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate);
    ASSERT_FAILS(qn_chat_answer(NULL, t.chat, t.session, t.template, &opts, NULL, NULL, &err),
                 QN_LIMIT, "the context 512");
    assert_int_equal(qn_chat_n_messages(t.chat), n_messages);
    told seen = {0};
    opts.leave_out = true;
    ASSERT_OK(qn_chat_answer(NULL, t.chat, t.session, t.template, &opts, tell, &seen, &err));
    assert_int_equal(seen.n_turns, 6);
    assert_in_range(seen.n_left_out, 1, 5);
    assert_int_equal(qn_chat_n_messages(t.chat), n_messages + 1);
    // One turn fewer left out would not fit.
    qn_chat_turn *turn;
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    const qn_chat_prompt_opts all = QN_INIT(qn_chat_prompt_opts, .n_messages = n_messages);
    opts.prompt = &all;
    ASSERT_OK(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_int_equal(info.n_left_out, seen.n_left_out);
    assert_int_equal(info.n_skipped, 2 * info.n_left_out);
    assert_true(info.n < CONTEXT && strstr(info.text, "Be brief."));
    const qn_chat_prompt_opts one_more = QN_INIT(qn_chat_prompt_opts, .n_messages = n_messages,
                                                 .n_skipped = (size_t)info.n_skipped - 2);
    qn_chat_prompt longer = QN_INIT(qn_chat_prompt);
    ASSERT_OK(qn_chat_make_prompt(&longer, t.chat, t.template, qn_engine_tokenizer(t.engine),
                                  &one_more, &err));
    assert_true(longer.n >= CONTEXT);
    qn_chat_prompt_deinit(&longer);
    qn_chat_turn_destroy(turn);
    // The last question alone does not fit.
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, 100, &opts, &err),
                 QN_LIMIT, "the question alone has ");
    close_things(&t);
}

static bool count_steps(void *arg, int64_t done, int64_t total) {
    (void)total;
    *(int64_t *)arg += done > 1000; // each rendering begins with one that counts for nothing
    return true;
}

// The search for the turns that fit looks at the last ones, not at half of all again and again.
static void many_turns_are_left_out_at_little_cost(void **state) {
    enum { N_TURNS = 16384 };
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    char *text = NULL;
    int64_t n_whole = 0, n_all = 0;
    for (int i = 0; i < N_TURNS; i++) {
        say(t.chat, "One, two, three?");
        if (i == N_TURNS - 1) break;
        ASSERT_OK(qn_chat_add(
            t.chat, &QN_INIT(qn_message, .role = "assistant", .text = "four", .text_size = 4),
            &err));
    }
    qn_chat_prompt_opts how =
        QN_INIT(qn_chat_prompt_opts, .progress = count_steps, .progress_arg = &n_whole);
    ASSERT_OK(qn_chat_render(&text, NULL, t.chat, t.template, NULL, &how, &err));
    qn_free(text);
    how.progress_arg = &n_all;
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .prompt = &how, .leave_out = true);
    qn_chat_turn *turn = NULL;
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    ASSERT_OK(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_true(info.n < CONTEXT && info.n_left_out < N_TURNS);
    const size_t n_left_out = info.n_left_out;
    qn_chat_turn_destroy(turn);
    // All messages are rendered for their text, and for what of it is the messages'.
    if (n_whole < 10 || n_all > 4 * n_whole)
        fail_msg("%lld polls for the turn, %lld for one rendering", (long long)n_all,
                 (long long)n_whole);
    // One turn fewer left out does not fit.
    qn_chat_prompt longer = QN_INIT(qn_chat_prompt);
    how.n_skipped = 2 * (n_left_out - 1);
    ASSERT_OK(qn_chat_make_prompt(&longer, t.chat, t.template, qn_engine_tokenizer(t.engine), &how,
                                  &err));
    assert_true(longer.n >= CONTEXT);
    qn_chat_prompt_deinit(&longer);
    close_things(&t);
}

// A prompt that is too long is not read to its end, and the error says what it is about.
static void a_prompt_has_a_limit(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    qn_chat_turn *turn = NULL;
    qn_chat_culprit culprit = QN_CULPRIT_OTHER;
    say(t.chat, "One, two, three, four, five, six?");
    ASSERT_OK(qn_chat_make_prompt(&prompt, t.chat, t.template, qn_engine_tokenizer(t.engine), NULL,
                                  &err));
    const size_t n = prompt.n;
    qn_chat_prompt_deinit(&prompt);
    qn_chat_prompt_opts how = QN_INIT(qn_chat_prompt_opts, .max_tokens = n);
    ASSERT_OK(qn_chat_make_prompt(&prompt, t.chat, t.template, qn_engine_tokenizer(t.engine), &how,
                                  &err));
    assert_int_equal(prompt.n, n);
    qn_chat_prompt_deinit(&prompt);
    how.max_tokens = n / 2;
    ASSERT_FAILS(
        qn_chat_make_prompt(&prompt, t.chat, t.template, qn_engine_tokenizer(t.engine), &how, &err),
        QN_LIMIT, "tokens");
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .prompt = &how, .culprit = &culprit);
    for (int leaves_out = 0; leaves_out < 2; leaves_out++) {
        qn_chat_opts o = opts;
        o.leave_out = leaves_out;
        culprit = QN_CULPRIT_OTHER;
        ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT, &o, &err),
                     QN_LIMIT, "tokens");
        assert_int_equal(culprit, QN_CULPRIT_LENGTH);
    }
    culprit = QN_CULPRIT_OTHER;
    how.max_tokens = 0;
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, 4, &opts, &err), QN_LIMIT,
                 "the context 4");
    assert_int_equal(culprit, QN_CULPRIT_LENGTH);
    close_things(&t);
}

// --- parts ---------------------------------------------------------------------------------------

static const char written[] =
    "<think>\nI should look.\n</think>\n\nOne moment.\n"
    "<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>\n"
    "<tool_call>\n{\"name\": \"time\", \"arguments\": {}}\n</tool_call>";

static void a_reply_tells_reasoning_text_and_calls(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    qn_template *chatml;
    qn_chat_turn *turn;
    say(t.chat, "What is the weather?");
    ASSERT_OK(qn_template_create_builtin(&chatml, "chatml", &err));
    ASSERT_OK(qn_chat_turn_create(&turn, t.chat, chatml, t.engine, CONTEXT, NULL, &err));
    for (size_t chunk = 1; chunk < 64; chunk += 9) {
        qn_chat_reply *reply;
        qn_message m = QN_INIT(qn_message);
        told seen = {0};
        char text[MAX_TEXT];
        bool goes_on = false;
        ASSERT_OK(qn_chat_reply_create(&reply, turn, &err));
        for (size_t at = 0; at < sizeof written - 1; at += chunk) {
            const size_t left = sizeof written - 1 - at;
            const qn_event e = QN_INIT(qn_event, .token = 5, .text = written + at,
                                       .text_size = left < chunk ? left : chunk);
            ASSERT_OK(qn_chat_reply_feed(&goes_on, reply, &e, tell, &seen, &err));
            assert_true(goes_on);
        }
        const qn_event end = QN_INIT(qn_event, .token = -1, .text = "", .reason = QN_REASON_END);
        ASSERT_OK(qn_chat_reply_feed(NULL, reply, &end, tell, &seen, &err));
        ASSERT_FAILS(qn_chat_reply_feed(NULL, reply, &end, tell, &seen, &err), QN_STATE,
                     "after the end");
        ASSERT_OK(qn_chat_reply_get_message(&m, reply, &err));
        join(text, seen.log, "reasoning");
        assert_string_equal(text, "I should look.");
        assert_string_equal(m.reasoning, text);
        join(text, seen.log, "text");
        assert_string_equal(text, "One moment.");
        assert_string_equal(m.text, text);
        assert_int_equal(m.n_calls, 2);
        assert_string_equal(m.calls[0].name, "weather");
        assert_string_equal(m.calls[1].arguments, "{}");
        assert_non_null(strstr(seen.log, "call weather:<tool_call>"));
        join(text, seen.log, "arguments weather");
        assert_string_equal(text, m.calls[0].arguments);
        assert_non_null(strstr(text, "\"Rome\""));
        ASSERT_OK(qn_chat_add(t.chat, &m, &err));
        qn_chat_reply_destroy(reply);
    }
    // Without a turn all is text; an unfinished call is text, too.
    qn_chat_reply *plain;
    qn_message m = QN_INIT(qn_message);
    const qn_event e = QN_INIT(qn_event, .token = 5, .text = "<think>a", .text_size = 8);
    ASSERT_OK(qn_chat_reply_create(&plain, NULL, &err));
    ASSERT_OK(qn_chat_reply_feed(NULL, plain, &e, NULL, NULL, &err));
    ASSERT_OK(qn_chat_reply_finish(plain, NULL, NULL, &err));
    ASSERT_OK(qn_chat_reply_get_message(&m, plain, &err));
    assert_string_equal(m.text, "<think>a");
    qn_chat_reply_destroy(plain);
    qn_chat_turn_destroy(turn);
    qn_template_destroy(chatml);
    close_things(&t);
}

typedef struct row {
    qn_chat_reply *reply;
    told seen;
    bool has_ended;
} row;

static bool feed_row(void *arg, const qn_event *event) {
    row *r = arg;
    qn_err err;
    bool goes_on = true;
    ASSERT_OK(qn_chat_reply_feed(&goes_on, r->reply, event, tell, &r->seen, &err));
    r->has_ended |= event->token < 0;
    return goes_on;
}

// What a server does: turns become rows of a batch, and their events messages.
static void rows_of_a_batch_are_answers_too(void **state) {
    (void)state;
    enum { ROWS = 3 };
    static const char *const questions[ROWS] = {"What is 12 + 30?", "Name the capital of France.",
                                                "Count to three."};
    things t = open_things(CONTEXT);
    qn_err err;
    qn_batch *batch;
    row rows[ROWS] = {{0}};
    size_t left = 1;
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = 24);
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate);
    ASSERT_OK(qn_batch_create(&batch, t.engine, &QN_INIT(qn_batch_opts, .context = CONTEXT), &err));
    for (size_t i = 0; i < ROWS; i++) {
        qn_chat *chat;
        qn_chat_turn *turn;
        qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
        ASSERT_OK(qn_chat_create(&chat, &err));
        say(chat, questions[i]);
        ASSERT_OK(qn_chat_turn_create(&turn, chat, t.template, t.engine, CONTEXT, &opts, &err));
        ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
        assert_true(info.row->mark > 0 && info.row->mark < info.n);
        ASSERT_OK(qn_chat_reply_create(&rows[i].reply, turn, &err));
        ASSERT_OK(qn_batch_add(NULL, batch, info.ids, info.n, info.row, feed_row, &rows[i], &err));
        qn_chat_turn_destroy(turn); // everything was copied
        qn_chat_destroy(chat);
    }
    while (left) ASSERT_OK(qn_batch_step(&left, batch, &err));
    for (size_t i = 0; i < ROWS; i++) {
        qn_message got = QN_INIT(qn_message);
        assert_true(rows[i].has_ended);
        ASSERT_OK(qn_chat_truncate(t.chat, 0, &err));
        say(t.chat, questions[i]);
        ASSERT_OK(qn_chat_answer(NULL, t.chat, t.session, t.template, &opts, NULL, NULL, &err));
        ASSERT_OK(qn_chat_reply_get_message(&got, rows[i].reply, &err));
        assert_string_equal(got.text, get(t.chat, 1).text);
        assert_true(got.text_size > 0);
        qn_chat_reply_destroy(rows[i].reply);
    }
    qn_batch_destroy(batch);
    close_things(&t);
}

// The second turn computes what is new alone, in a model with recurrent state too.
static void later_turns_compute_what_is_new(void **state) {
    (void)state;
    static const char *const models[] = {DRAFT, MODELS "/quern-hybrid-Q8_0.gguf"};
    for (size_t i = 0; i < 2; i++) {
        things t = open_model(models[i], CONTEXT);
        qn_err err;
        const qn_generate_opts generate = QN_INIT(qn_generate_opts, .max_tokens = 24);
        const qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate);
        qn_result first = QN_INIT(qn_result), second = QN_INIT(qn_result);
        say(t.chat, "My name is Kevin.");
        ASSERT_OK(qn_chat_answer(&first, t.chat, t.session, t.template, &opts, NULL, NULL, &err));
        const qn_session_counts before = session_counts(t.session);
        say(t.chat, "What is my name?");
        ASSERT_OK(qn_chat_answer(&second, t.chat, t.session, t.template, &opts, NULL, NULL, &err));
        const qn_session_counts after = session_counts(t.session);
        const int64_t known = first.n_prompt + (int64_t)first.n_tokens;
        assert_int_equal(after.reused - before.reused, known);
        assert_int_equal(after.rows - before.rows,
                         second.n_prompt + (int64_t)second.n_tokens - known);
        qn_result_deinit(&first);
        qn_result_deinit(&second);
        close_things(&t);
    }
}

// --- options -------------------------------------------------------------------------------------

static void settings_are_the_models_unless_given(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    qn_chat_turn *turn;
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    say(t.chat, "Hello");
    const qn_sample_opts own = sample_defaults(t.engine);
    ASSERT_OK(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT, NULL, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_memory_equal(info.row->generate->sample, &own, sizeof own);
    qn_chat_turn_destroy(turn);
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 0.5f);
    const qn_generate_opts generate = QN_INIT(qn_generate_opts, .sample = &sample);
    const qn_chat_opts opts = QN_INIT(qn_chat_opts, .generate = &generate, .keeps_nothing = true);
    ASSERT_OK(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT, &opts, &err));
    ASSERT_OK(qn_chat_turn_get_info(&info, turn, &err));
    assert_true(info.row->generate->sample->temperature == 0.5f);
    assert_int_equal(info.row->mark, 0);
    qn_chat_turn_destroy(turn);
    close_things(&t);
}

static void wrong_options_are_refused(void **state) {
    (void)state;
    things t = open_things(CONTEXT);
    qn_err err;
    qn_chat_turn *turn = NULL;
    say(t.chat, "Hello");
    const qn_chat_prompt_opts skipped = QN_INIT(qn_chat_prompt_opts, .n_skipped = 1);
    const qn_chat_prompt_opts many = QN_INIT(qn_chat_prompt_opts, .n_messages = 9);
    const qn_generate_opts bad_size = {.size = 1};
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT,
                                     &QN_INIT(qn_chat_opts, .prompt = &skipped), &err),
                 QN_ARGUMENT, "1 messages to skip");
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT,
                                     &QN_INIT(qn_chat_opts, .prompt = &many), &err),
                 QN_ARGUMENT, "a prompt of 9 messages, there are 1");
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, 0, NULL, &err),
                 QN_ARGUMENT, "a context of 0 tokens");
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT,
                                     &QN_INIT(qn_chat_opts, .generate = &bad_size), &err),
                 QN_ARGUMENT, "qn_generate_opts: size 1");
    const qn_generate_opts shown = QN_INIT(qn_generate_opts, .flags = QN_GENERATE_SHOW_END);
    ASSERT_FAILS(qn_chat_turn_create(&turn, t.chat, t.template, t.engine, CONTEXT,
                                     &QN_INIT(qn_chat_opts, .generate = &shown), &err),
                 QN_UNSUPPORTED, "QN_GENERATE_SHOW_END");
    assert_null(turn);
    const qn_generate_opts wrong = QN_INIT(qn_generate_opts, .max_tokens = -5);
    ASSERT_FAILS(qn_chat_answer(NULL, t.chat, t.session, t.template,
                                &QN_INIT(qn_chat_opts, .generate = &wrong), NULL, NULL, &err),
                 QN_ARGUMENT, "max_tokens -5");
    assert_int_equal(qn_chat_n_messages(t.chat), 1);
    close_things(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_is_what_its_parts_give),
        cmocka_unit_test(what_is_stopped_is_kept),
        cmocka_unit_test(old_turns_are_left_out_if_asked),
        cmocka_unit_test(a_reply_tells_reasoning_text_and_calls),
        cmocka_unit_test(rows_of_a_batch_are_answers_too),
        cmocka_unit_test(later_turns_compute_what_is_new),
        cmocka_unit_test(settings_are_the_models_unless_given),
        cmocka_unit_test(many_turns_are_left_out_at_little_cost),
        cmocka_unit_test(a_prompt_has_a_limit),
        cmocka_unit_test(wrong_options_are_refused),
    };
    return cmocka_run_group_tests_name("api_chat_answer", tests, NULL, NULL);
}

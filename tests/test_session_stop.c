// Stop flags: set by another thread, they end answers, prefill and templates, and nothing is lost.
// Threads wait for each other, never for a time.
#include "generate_rig.h"

#include "core/mem.h"

#include <pthread.h>
#include <semaphore.h>

enum { CONTEXT = 512, N_IDS = 40, N_NEW = 200 };

// A thread that sets the flag when it is told to.
typedef struct stopper {
    qn_stop_flag *flag;
    sem_t go, is_set;
    pthread_t thread;
    size_t after, n; // the go comes with this event
    bool waits;      // until the flag is set, in that event
    size_t n_ends;
    qn_reason reason;
} stopper;

static void *set_flag(void *arg) {
    stopper *s = arg;
    sem_wait(&s->go);
    qn_stop_flag_set(s->flag);
    sem_post(&s->is_set);
    return NULL;
}

static stopper *begin(size_t after) {
    qn_err err;
    stopper *s = qn_alloc(1, sizeof *s);
    assert_non_null(s);
    s->after = after;
    ASSERT_OK(qn_stop_flag_create(&s->flag, &err));
    assert_false(qn_stop_flag_is_set(s->flag));
    assert_int_equal(sem_init(&s->go, 0, 0), 0);
    assert_int_equal(sem_init(&s->is_set, 0, 0), 0);
    assert_int_equal(pthread_create(&s->thread, NULL, set_flag, s), 0);
    return s;
}

static void end(stopper *s) {
    sem_post(&s->go); // if nobody did
    assert_int_equal(pthread_join(s->thread, NULL), 0);
    sem_destroy(&s->go);
    sem_destroy(&s->is_set);
    qn_stop_flag_destroy(s->flag);
    qn_free(s);
}

// A qn_event_fn.
static bool count(void *arg, const qn_event *event) {
    stopper *s = arg;
    if (event->token < 0) {
        s->n_ends++;
        s->reason = event->reason;
        assert_non_null(event->result);
    } else if (++s->n == s->after) {
        sem_post(&s->go);
        if (s->waits) sem_wait(&s->is_set);
    }
    return true;
}

// A qn_progress_fn: the first call goes on when the flag is set.
static bool hand_over(void *arg, int64_t done, int64_t total) {
    stopper *s = arg;
    (void)done, (void)total;
    if (s->n++) return true;
    sem_post(&s->go);
    sem_wait(&s->is_set);
    return true;
}

// --- answers -------------------------------------------------------------------------------------

// The part that there is, is the beginning of the whole, and the rest can follow. The flag is the
// answer's, or the session's.
static void an_answer_ends_and_goes_on(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * N_FAMILIES; i++) {
        qn_err err;
        const char *family = families[i / 2];
        talk t = open_talk(family, CONTEXT);
        int32_t ids[N_IDS];
        random_ids(ids, N_IDS, t.vocab, 3);
        qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 12, .ignore_end = true);
        qn_result whole = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
        stopper *s = begin(5);
        s->waits = true;
        opts.stop = i % 2 ? s->flag : NULL;
        qn_session *session;
        const qn_session_opts session_opts =
            QN_INIT(qn_session_opts, .context = CONTEXT, .stop = i % 2 ? NULL : s->flag);
        ASSERT_OK(qn_session_create(&session, t.engine, &session_opts, &err));
        qn_result part = answer(session, ids, N_IDS, &opts, count, s), rest = QN_INIT(qn_result);
        assert_int_equal(part.reason, QN_REASON_STOPPED);
        assert_int_equal(s->n_ends, 1); // it is told
        assert_int_equal(s->reason, QN_REASON_STOPPED);
        assert_int_equal(part.n_tokens, 5);
        qn_stop_flag_clear(s->flag);
        opts.max_tokens = 7;
        ASSERT_OK(qn_generate(&rest, session, &opts, NULL, NULL, &err));
        assert_int_equal(rest.n_tokens, 7);
        if (memcmp(part.tokens, whole.tokens, 5 * sizeof *whole.tokens) != 0 ||
            memcmp(rest.tokens, whole.tokens + 5, 7 * sizeof *whole.tokens) != 0)
            fail_msg("%s: other tokens than without a stop", family);
        qn_result_deinit(&part);
        qn_result_deinit(&rest);
        qn_result_deinit(&whole);
        qn_session_destroy(session);
        end(s);
        close_talk(&t);
    }
}

// Nobody waits for the thread: the flag comes at any moment, or after the end.
static void the_moment_does_not_matter(void **state) {
    (void)state;
    talk t = open_talk("qwen3", CONTEXT);
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, t.vocab, 4);
    qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .ignore_end = true);
    qn_result whole = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
    for (size_t after = 1; after <= N_NEW; after += 49) {
        stopper *s = begin(after);
        opts.stop = s->flag;
        qn_result got = answer(t.session, ids, N_IDS, &opts, count, s);
        assert_int_equal(got.reason, got.n_tokens < N_NEW ? QN_REASON_STOPPED : QN_REASON_LENGTH);
        assert_true(got.n_tokens >= after);
        assert_memory_equal(got.tokens, whole.tokens, got.n_tokens * sizeof *got.tokens);
        qn_result_deinit(&got);
        end(s);
    }
    qn_result_deinit(&whole);
    close_talk(&t);
}

// A flag that was set before is seen, again and again, until it is cleared.
static void a_flag_stays_set(void **state) {
    (void)state;
    qn_err err;
    talk t = open_talk("qwen3", CONTEXT);
    qn_stop_flag *flag;
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, t.vocab, 3);
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .max_tokens = 3, .ignore_end = true, .stop = flag);
    qn_stop_flag_set(flag);
    for (int i = 0; i < 2; i++) {
        qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
        assert_int_equal(got.reason, QN_REASON_STOPPED);
        assert_int_equal(got.n_tokens, 0);
        qn_result_deinit(&got);
    }
    qn_stop_flag_clear(flag);
    qn_result got = answer(t.session, ids, N_IDS, &opts, NULL, NULL);
    assert_int_equal(got.reason, QN_REASON_LENGTH);
    assert_string_equal(qn_reason_name(QN_REASON_STOPPED), "stopped");
    qn_result_deinit(&got);
    close_talk(&t);
    qn_stop_flag_destroy(flag);
}

// Rows that are computed and rows that wait end by their own flag; others are what they are alone.
static void rows_end_by_their_own_flag(void **state) {
    (void)state;
    enum { ROWS = 4 };
    qn_err err;
    qn_engine *engine = family_open("qwen3", NULL);
    qn_session *alone = open_session(engine, CONTEXT);
    qn_batch *batch;
    int32_t ids[N_IDS];
    random_ids(ids, N_IDS, engine_info(engine).n_vocab, 5);
    ASSERT_OK(qn_batch_create(&batch, engine,
                              &QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = 2), &err));
    stopper *s = begin(3);
    heard *h = qn_alloc(ROWS, sizeof *h);
    qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = 30, .ignore_end = true);
    for (size_t i = 0; i < ROWS; i++) { // of each kind one is computed, one waits
        opts.stop = i % 2 ? s->flag : NULL;
        const qn_row_opts row = QN_INIT(qn_row_opts, .generate = &opts);
        ASSERT_OK(qn_batch_add(NULL, batch, ids, N_IDS - i, &row, hear, &h[i], &err));
    }
    size_t n = ROWS;
    while (h[1].n < 3) ASSERT_OK(qn_batch_step(&n, batch, &err));
    sem_post(&s->go);
    sem_wait(&s->is_set);
    while (n) ASSERT_OK(qn_batch_step(&n, batch, &err));
    for (size_t i = 0; i < ROWS; i++) {
        assert_int_equal(h[i].n_ends, 1);
        assert_int_equal(h[i].reason, i % 2 ? QN_REASON_STOPPED : QN_REASON_LENGTH);
        opts.stop = NULL;
        qn_result want = answer(alone, ids, N_IDS - i, &opts, NULL, NULL);
        assert_true(i % 2 ? h[i].n < 30 : h[i].n == 30);
        assert_memory_equal(h[i].tokens, want.tokens, h[i].n * sizeof *want.tokens);
        qn_result_deinit(&want);
    }
    assert_int_equal(h[3].n, 0);
    qn_free(h);
    end(s);
    qn_batch_destroy(batch);
    qn_session_destroy(alone);
    qn_engine_close(engine);
}

// --- sessions ------------------------------------------------------------------------------------

static void prefill_stops_between_chunks(void **state) {
    (void)state;
    enum { N = 100, CHUNK = 16 };
    qn_err err;
    qn_engine *engine = family_open("qwen3", NULL);
    const int64_t vocab = engine_info(engine).n_vocab;
    qn_session *session, *plain = open_session(engine, CONTEXT);
    const float *got, *want;
    int32_t ids[N], token;
    random_ids(ids, N, vocab, 6);
    stopper *s = begin(0);
    ASSERT_OK(qn_session_create(&session, engine,
                                &QN_INIT(qn_session_opts, .context = CONTEXT, .chunk = CHUNK,
                                         .progress = hand_over, .progress_arg = s, .stop = s->flag),
                                &err));
    ASSERT_FAILS(qn_session_prefill(&got, session, ids, N, &err), QN_STOPPED,
                 "stopped after 16 of 100 tokens");
    assert_int_equal(qn_session_cached(session), CHUNK);
    ASSERT_FAILS(qn_session_step(&token, session, NULL, &err), QN_STOPPED, "after 16 of 100");
    ASSERT_FAILS(qn_session_step_naive(&token, session, NULL, &err), QN_STOPPED, "stopped before");
    qn_stop_flag_clear(s->flag);
    int32_t other;
    ASSERT_OK(qn_session_prefill(&want, plain, ids, N, &err));
    ASSERT_OK(qn_session_step(&other, plain, NULL, &err));
    ASSERT_OK(qn_session_step(&token, session, NULL, &err));
    assert_int_equal(token, other);
    end(s);
    qn_session_destroy(session);
    qn_session_destroy(plain);
    qn_engine_close(engine);
}

// --- templates -----------------------------------------------------------------------------------

static void a_template_stops(void **state) {
    (void)state;
    static const char text[] =
        "{% for i in range(1000) %}{% for k in range(1000) %}{% endfor %}{% endfor %}x";
    qn_err err;
    qn_template *template;
    qn_chat *chat;
    char *got = NULL;
    ASSERT_OK(qn_template_create(&template, text, strlen(text), &err));
    ASSERT_OK(qn_chat_create(&chat, &err));
    stopper *s = begin(0);
    const qn_chat_prompt_opts watched = QN_INIT(qn_chat_prompt_opts, .progress = hand_over,
                                                .progress_arg = s, .stop = s->flag),
                              alone = QN_INIT(qn_chat_prompt_opts, .stop = s->flag);
    ASSERT_FAILS(qn_chat_render(&got, NULL, chat, template, NULL, &watched, &err), QN_STOPPED,
                 "stopped by the caller");
    ASSERT_FAILS(qn_chat_render(&got, NULL, chat, template, NULL, &alone, &err), QN_STOPPED,
                 "stopped by the caller");
    assert_null(got);
    qn_stop_flag_clear(s->flag);
    ASSERT_OK(qn_chat_render(&got, NULL, chat, template, NULL, &alone, &err));
    assert_string_equal(got, "x");
    qn_free(got);
    end(s);
    qn_chat_destroy(chat);
    qn_template_destroy(template);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_ends_and_goes_on),
        cmocka_unit_test(the_moment_does_not_matter),
        cmocka_unit_test(a_flag_stays_set),
        cmocka_unit_test(rows_end_by_their_own_flag),
        cmocka_unit_test(prefill_stops_between_chunks),
        cmocka_unit_test(a_template_stops),
    };
    return cmocka_run_group_tests_name("session_stop", tests, NULL, NULL);
}

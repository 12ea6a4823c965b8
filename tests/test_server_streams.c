// Many answers at once: each is, byte for byte, what the same request gets alone.
#include "serve_rig.h"

#include <stdatomic.h>

enum { N_STREAMS = 32, N_CANCELLED = 8, CONTEXT = 704 };

// --- requests ------------------------------------------------------------------------------------

// The i-th request: prompts, lengths, sampling, forms and routes that differ; some begin alike.
static void make_body(qn_buf *to, size_t i, bool streams) {
    static const char *const questions[] = {
        "Tell me a short story.", "What color is a lemon?", "Tell me a story about a dog.",
        "Write a poem.",          "Who are you?",           "Count to ten.",
    };
    static const char *const settings[] = {
        "\"temperature\": 0",
        "\"temperature\": 0.8, \"seed\": 7",
        "\"temperature\": 1.2, \"top_k\": 20, \"seed\": 11",
        "\"temperature\": 1, \"top_p\": 0.9, \"repeat_penalty\": 1.2, \"seed\": 3",
        "\"temperature\": 0.7, \"mirostat\": 2, \"seed\": 5",
        "\"temperature\": 0.9, \"response_format\": {\"type\": \"json_object\"}, \"seed\": 13",
        "\"temperature\": 1, \"logprobs\": true, \"top_logprobs\": 2, \"seed\": 17",
    };
    qn_buf_text(to, "{\"messages\": [");
    if (i % 3 == 0)
        qn_buf_text(to, "{\"role\": \"system\", \"content\": \"You are a friendly assistant who "
                        "answers in short sentences and never tells lies.\"}, ");
    qn_buf_printf(to, "{\"role\": \"user\", \"content\": \"");
    for (size_t k = 0; k < (i % 8 == 3 ? 60 : i % 5); k++)
        qn_buf_printf(to, "This is line %zu. ", k);
    // Some go on far enough to need room that others have.
    const bool is_long = i % 4 != 1;
    qn_buf_printf(to, "%s\"}], %s, \"max_tokens\": %zu, \"ignore_eos\": %s, \"stream\": %s}",
                  questions[i % (sizeof questions / sizeof *questions)],
                  settings[i % (sizeof settings / sizeof *settings)],
                  is_long ? 150 : 8 + i * 7 % 90, is_long ? "true" : "false",
                  streams ? "true" : "false");
}

static void append(qn_buf *to, const json_t *piece) {
    if (json_is_string(piece)) qn_buf_text(to, json_string_value(piece));
}

// All that an answer says: texts, why it ended, and log-probabilities.
static void read_text(qn_buf *to, const http_answer *a) {
    json_t *events = sse_events(a);
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *choice = json_at(json_array_get(events, i), "data.choices.0");
        append(to, json_at(choice, "delta.content"));
        append(to, json_at(choice, "finish_reason"));
        const json_t *entries = json_at(choice, "logprobs.content");
        for (size_t k = 0; k < json_array_size(entries); k++)
            qn_buf_printf(to, "%.17g ",
                          json_real_value(json_at(json_array_get(entries, k), "logprob")));
    }
    json_decref(events);
}

// --- streams -------------------------------------------------------------------------------------

typedef struct stream {
    const serve_rig *rig;
    size_t i;
    bool is_cancelled;
    qn_buf text;
    pthread_t thread;
} stream;

// Reads a little, and goes away.
static void cancel(const stream *s, const qn_buf *body) {
    char block[300];
    qn_buf request = {0};
    const int fd = serve_connect(s->rig);
    qn_buf_printf(&request,
                  "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: "
                  "%zu\r\n\r\n",
                  body->size);
    qn_buf_add(&request, body->data, body->size);
    serve_send(fd, request.data, request.size);
    for (size_t k = 0; k < s->i % 4; k++) (void)!recv(fd, block, sizeof block, 0);
    close(fd);
    qn_buf_deinit(&request);
}

static void *run_stream(void *arg) {
    stream *s = arg;
    qn_buf body = {0};
    make_body(&body, s->i, true);
    if (s->is_cancelled) {
        cancel(s, &body);
    } else {
        http_answer a = http_post(s->rig, "/v1/chat/completions", body.data);
        assert_int_equal(a.status, 200);
        assert_true(a.is_whole);
        read_text(&s->text, &a);
        http_deinit(&a);
    }
    qn_buf_deinit(&body);
    return NULL;
}

static void run_alone(qn_buf *texts, const char *model) {
    serve_rig rig;
    serve_start(&rig, &(qn_server_opts){.model = model, .no_prefix_cache = true});
    for (size_t i = 0; i < N_STREAMS; i++) {
        stream s = {.rig = &rig, .i = i};
        run_stream(&s);
        texts[i] = s.text;
        assert_true(texts[i].size > 4);
    }
    serve_stop(&rig);
}

static qn_batch_counts run_together(const qn_buf *texts, const qn_server_opts *opts) {
    serve_rig rig;
    stream streams[N_STREAMS + N_CANCELLED] = {0};
    serve_start(&rig, opts);
    for (size_t k = 0; k < N_STREAMS + N_CANCELLED; k++) {
        const bool is_cancelled = k % 5 == 2 && k / 5 < N_CANCELLED;
        streams[k] = (stream){.rig = &rig, .is_cancelled = is_cancelled};
        streams[k].i = is_cancelled ? k : k - (k / 5 + (k % 5 > 2));
        assert_true(qn_thread_start(&streams[k].thread, run_stream, &streams[k]));
    }
    for (size_t k = 0; k < N_STREAMS + N_CANCELLED; k++) {
        pthread_join(streams[k].thread, NULL);
        const stream *s = &streams[k];
        if (s->is_cancelled) continue;
        if (s->text.size != texts[s->i].size ||
            memcmp(s->text.data, texts[s->i].data, s->text.size) != 0)
            fail_msg("request %zu: '%s', alone '%s'", s->i, s->text.data, texts[s->i].data);
        qn_buf_deinit(&streams[k].text);
    }
    // Those who went away are out of the batch, too.
    qn_batch_counts counts;
    do {
        counts = QN_INIT(qn_batch_counts);
        (void)qn_registry_counts(&rig.server->registry, &counts);
    } while (counts.rows + counts.queued > 0);
    serve_stop(&rig);
    return counts;
}

// The smallest budget, in small steps, for that many pages and rows at a time.
static int64_t bytes_for(const char *model, int64_t rows, int64_t pages) {
    qn_err err;
    qn_engine *engine;
    ASSERT_OK(rig_open(NULL, &engine, NULL, model, &err));
    int64_t bytes = 1 << 20;
    for (int64_t got = 0; got < pages; bytes += bytes / 32) {
        qn_batch *batch;
        const qn_batch_opts opts =
            QN_INIT(qn_batch_opts, .context = CONTEXT, .rows = rows, .bytes = bytes);
        if (qn_batch_create(&batch, engine, &opts, &err)) continue;
        const qn_batch_counts counts = batch_counts(batch);
        const bool has_places = counts.slots_all == 0 || counts.slots_all > rows;
        got = has_places ? counts.pages_all : 0;
        qn_batch_destroy(batch);
    }
    qn_engine_close(engine);
    return bytes;
}

// Memory is small for that many rows at a time: some of them give way to others. On a busy machine
// requests may come one after the other, so that none has to: then they are sent again.
static void assert_equal_in_little_memory(const qn_buf *texts, const char *model, int64_t rows,
                                          int64_t pages) {
    const qn_server_opts opts = {.model = model,
                                 .context = CONTEXT,
                                 .parallel = rows,
                                 .memory = bytes_for(model, rows, pages)};
    int64_t preemptions = 0;
    for (int i = 0; i < 10 && preemptions == 0; i++)
        preemptions = run_together(texts, &opts).preemptions;
    assert_true(preemptions > 0);
}

static void assert_equal_together(const char *model, int64_t rows, int64_t pages) {
    qn_buf texts[N_STREAMS] = {0};
    run_alone(texts, model);
    const qn_batch_counts without =
        run_together(texts, &(qn_server_opts){.model = model, .no_prefix_cache = true});
    assert_true(without.hits == 0);
    const qn_batch_counts with = run_together(texts, &(qn_server_opts){.model = model});
    assert_true(with.hits > 0);
    assert_equal_in_little_memory(texts, model, rows, pages);
    for (size_t i = 0; i < N_STREAMS; i++) qn_buf_deinit(&texts[i]);
}

static void answers_do_not_depend_on_company(void **state) {
    (void)state;
    assert_equal_together(MODELS "/quern-mini-Q8_0.gguf", 12, 28);
}

static void answers_of_hybrids_do_not_depend_on_company(void **state) {
    (void)state;
    assert_equal_together(MODELS "/quern-hybrid-Q8_0.gguf", 12, 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_do_not_depend_on_company),
        cmocka_unit_test(answers_of_hybrids_do_not_depend_on_company),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

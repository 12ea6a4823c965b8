// What requests leave to each other: embeddings are computed in turns, and pictures do not stay in
// memory while their answer is computed.
#include "serve_rig.h"

#include "session/generate_int.h"
#include "vision/image.h"

qn_status __real_qn_engine_embed(qn_embeddings *out, const qn_engine *engine,
                                 const qn_prompt *prompts, size_t n, const qn_embed_opts *opts,
                                 qn_err *err);
qn_status __wrap_qn_engine_embed(qn_embeddings *out, const qn_engine *engine,
                                 const qn_prompt *prompts, size_t n, const qn_embed_opts *opts,
                                 qn_err *err);
qn_status __real_qn_image_decode(qn_image *out, const void *data, size_t size,
                                 const qn_image_limits *limits, qn_err *err);
qn_status __wrap_qn_image_decode(qn_image *out, const void *data, size_t size,
                                 const qn_image_limits *limits, qn_err *err);
qn_status __real_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);
qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err);
void __real_qn_image_deinit(qn_image *image);
void __wrap_qn_image_deinit(qn_image *image);

// The first call waits until the test lets it go on.
static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
static atomic_int n_calls, short_call; // of the one with a text of one token: which it was
static atomic_int pause_ms;
static atomic_int n_decoded;          // images
static _Atomic(const void *) picture; // pixels of the last one, while they are held
static atomic_int is_in_step;         // they were held in the last step; -1: there was none

qn_status __wrap_qn_engine_embed(qn_embeddings *out, const qn_engine *engine,
                                 const qn_prompt *prompts, size_t n, const qn_embed_opts *opts,
                                 qn_err *err) {
    const int call = atomic_fetch_add(&n_calls, 1) + 1;
    const struct timespec pause = {.tv_nsec = atomic_load(&pause_ms) * 1000000};
    if (call == 1) {
        pthread_mutex_lock(&gate);
        pthread_mutex_unlock(&gate);
    }
    if (n == 1 && prompts[0].n == 1) atomic_store(&short_call, call);
    nanosleep(&pause, NULL);
    return __real_qn_engine_embed(out, engine, prompts, n, opts, err);
}

qn_status __wrap_qn_image_decode(qn_image *out, const void *data, size_t size,
                                 const qn_image_limits *limits, qn_err *err) {
    const qn_status status = __real_qn_image_decode(out, data, size, limits, err);
    atomic_fetch_add(&n_decoded, 1);
    if (!status) atomic_store(&picture, out->rgb);
    return status;
}

qn_status __wrap_qn_generations_begin(qn_flight **out, qn_generation *const *gens, size_t n,
                                      int64_t prompt_rows, qn_err *err) {
    atomic_store(&is_in_step, atomic_load(&picture) != NULL);
    return __real_qn_generations_begin(out, gens, n, prompt_rows, err);
}

void __wrap_qn_image_deinit(qn_image *image) {
    if (image->rgb == atomic_load(&picture)) atomic_store(&picture, NULL);
    __real_qn_image_deinit(image);
}

static int reset(void **state) {
    (void)state;
    atomic_store(&n_calls, 0);
    atomic_store(&short_call, 0);
    atomic_store(&pause_ms, 0);
    atomic_store(&picture, NULL);
    atomic_store(&is_in_step, -1);
    return 0;
}

// --- embeddings ----------------------------------------------------------------------------------

enum { N_INPUTS = 2048 };

// A request of as many inputs as there may be, of three tokens each.
static void add_inputs(qn_buf *body) {
    qn_buf_text(body, "{\"encoding_format\":\"base64\",\"dimensions\":1,\"input\":[[1222,281,93]");
    for (int i = 1; i < N_INPUTS; i++) qn_buf_text(body, ",[1222,281,93]");
    qn_buf_text(body, "]}");
}

typedef struct asker {
    const serve_rig *rig;
    const char *body;
    int status;
    size_t n; // embeddings of the answer
    pthread_t thread;
} asker;

static void *ask(void *arg) {
    asker *a = arg;
    http_answer answer = http_post(a->rig, "/v1/embeddings", a->body);
    json_t *value = http_json(&answer);
    a->status = answer.status;
    a->n = json_array_size(json_object_get(value, "data"));
    json_decref(value);
    http_deinit(&answer);
    return NULL;
}

static int64_t waiting(const serve_rig *rig) {
    qn_offer *entry = NULL;
    qn_err err;
    ASSERT_OK(qn_registry_take(&entry, &rig->server->registry, "", &err));
    qn_workers *w = &entry->served->embedder;
    int64_t n = 0;
    if (entry->served->has_embedder) {
        pthread_mutex_lock(&w->lock);
        n = (int64_t)w->n_waiting;
        pthread_mutex_unlock(&w->lock);
    }
    qn_offer_leave(entry);
    return n;
}

static int64_t calls(const serve_rig *rig) {
    (void)rig;
    return atomic_load(&n_calls);
}

static void a_small_request_is_not_stuck_behind_a_large_one(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    add_inputs(&body);
    serve_start(&rig, NULL);
    asker large = {.rig = &rig, .body = body.data};
    asker small = {.rig = &rig, .body = "{\"input\": [1222]}"};
    pthread_mutex_lock(&gate);
    assert_true(qn_thread_start(&large.thread, ask, &large));
    serve_wait(&rig, calls, 1);
    assert_true(qn_thread_start(&small.thread, ask, &small));
    serve_wait(&rig, waiting, 1);
    pthread_mutex_unlock(&gate);
    pthread_join(small.thread, NULL);
    pthread_join(large.thread, NULL);
    assert_int_equal(small.status, 200);
    assert_int_equal(small.n, 1);
    assert_int_equal(large.status, 200);
    assert_int_equal(large.n, N_INPUTS);
    assert_int_equal(atomic_load(&short_call), 2); // right after the part that was computed
    assert_true(atomic_load(&n_calls) > 4);        // the large one has many
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// Each part takes longer than the whole request may.
static void embeddings_have_a_time_limit(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    add_inputs(&body);
    atomic_store(&pause_ms, 20);
    serve_start(&rig, &(qn_server_opts){.timeout_ms = 10});
    json_t *a = post_json(&rig, "/v1/embeddings", body.data, 503);
    assert_non_null(strstr(text_at(a, "error.message"), "embeddings are done after 10 ms"));
    assert_true(atomic_load(&n_calls) <= 1);
    json_decref(a);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

// --- pictures ------------------------------------------------------------------------------------

// Events wait until all rows are added, so that the last steps come after that.
static void pictures_are_released_once_they_are_read(void **state) {
    static const char body[] =
        "{\"max_tokens\": 8, \"ignore_eos\": true, \"messages\": [{\"role\": \"user\", "
        "\"content\": "
        "[{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,"
        "iVBORw0KGgoAAAANSUhEUgAAACAAAAAgAQAAAABbAUdZAAAADElEQVR42mNgGNwAAACgAAGO+7G0AAAAAElFTkSu"
        "QmCC\"}}]}]}";
    serve_rig rig;
    (void)state;
    serve_start(&rig, &(qn_server_opts){.model = TEST_DATA "/mini/qwen35_vl",
                                        .template = TEST_DATA "/templates/Qwen3.5-4B.jinja"});
    atomic_store(&n_decoded, 0);
    json_decref(post_json(&rig, "/v1/chat/completions", body, 200));
    assert_int_equal(atomic_load(&n_decoded), 1);
    assert_int_equal(atomic_load(&is_in_step), 0);
    serve_stop(&rig);
}

int main(void) {
#define TEST(fn) cmocka_unit_test_setup(fn, reset)
    const struct CMUnitTest tests[] = {
        TEST(a_small_request_is_not_stuck_behind_a_large_one),
        TEST(embeddings_have_a_time_limit),
        TEST(pictures_are_released_once_they_are_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// Images in prompts: logits and answers, however they are computed.
#include "generate_rig.h"
#include "golden.h"

#include "api/chat_images.h"
#include "core/mem.h"
#include "runtime/media.h"

#include <stdlib.h>
#include <unistd.h>

#define MODEL TEST_DATA "/mini/qwen35_vl"
#define GGUF  MODEL "/qwen35_vl-bf16.gguf"
#define TOWER MODEL "/mmproj-bf16.gguf"

enum { CONTEXT = 256, N_IDS = 25, FIRST = 4, N_ROWS = 15, VOCAB = 512, IMAGE = 500, N_NEW = 24 };

static const qn_engine_opts with_tower = QN_INITIALIZER(qn_engine_opts, .mmproj = TOWER);

// The reference's ids: text, an image of 3 x 5 rows at FIRST, text.
static void reference_ids(int32_t ids[N_IDS]) {
    golden g = golden_open(MODEL, "golden.safetensors");
    const json_t *list = json_object_get(g.meta, "ids");
    assert_int_equal(json_array_size(list), N_IDS);
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    golden_close(&g);
}

static qn_engine *open_model(const char *path, const qn_engine_opts *opts) {
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, path, opts, &err));
    return engine;
}

static qn_image *open_image(const char *path) {
    qn_err err;
    qn_image *image = NULL;
    ASSERT_OK(qn_image_open(&image, path, NULL, &err));
    return image;
}

// Logits of all rows; release with qn_logits_deinit.
static qn_logits run(const qn_engine *engine, const int32_t *ids, size_t n, const qn_image *image,
                     int64_t chunk) {
    qn_err err;
    qn_logits got = QN_INIT(qn_logits);
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .chunk = chunk, .images = &image, .n_images = 1);
    ASSERT_OK(qn_engine_logits(&got, engine, ids, n, &opts, &err));
    return got;
}

// --- logits --------------------------------------------------------------------------------------

static void logits_are_the_references(void **state) {
    (void)state;
    static const struct {
        const char *what, *path;
        qn_engine_opts opts;
    } cases[] = {
        {"mmproj, cpu", GGUF, QN_INITIALIZER(qn_engine_opts, .mmproj = TOWER)},
        {"mmproj, ref", GGUF, QN_INITIALIZER(qn_engine_opts, .mmproj = TOWER, .device = "ref")},
        {"mmproj, interpreter", GGUF,
         QN_INITIALIZER(qn_engine_opts, .mmproj = TOWER, .reference = true)},
        {"checkpoint, cpu", MODEL, QN_INITIALIZER(qn_engine_opts)},
        {"checkpoint, interpreter", MODEL, QN_INITIALIZER(qn_engine_opts, .reference = true)},
        {"checkpoint beside GGUF", GGUF, QN_INITIALIZER(qn_engine_opts, .mmproj = MODEL)},
    };
    int32_t ids[N_IDS];
    int64_t n;
    reference_ids(ids);
    golden g = golden_open(MODEL, "golden.safetensors");
    float *want = golden_floats(&g, "logits", &n);
    assert_int_equal(n, N_IDS * VOCAB);
    qn_image *image = open_image(MODEL "/image.png"), *other = open_image(MODEL "/image.jpg");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_engine *engine = open_model(cases[i].path, &cases[i].opts);
        qn_logits got = run(engine, ids, N_IDS, image, 0), seen = run(engine, ids, N_IDS, other, 0);
        const double error = relative_error(got.logits, want, n);
        const double seen_error = relative_error(seen.logits, want, n);
        print_message("%-24s error %.1e, of the JPEG file %.1e\n", cases[i].what, error,
                      seen_error);
        assert_true(error <= 1e-4);
        assert_true(seen_error > 1e-3); // another picture, which nothing before it sees
        assert_memory_equal(seen.logits, got.logits, sizeof(float) * FIRST * VOCAB);
        qn_logits_deinit(&got);
        qn_logits_deinit(&seen);
        qn_engine_close(engine);
    }
    qn_image_destroy(image);
    qn_image_destroy(other);
    qn_free(want);
    golden_close(&g);
}

// The reference's pixels as patches.
static qn_patches reference_patches(const golden *g) {
    int64_t n;
    qn_patches p = {.rows = 6, .columns = 10, .width = 768};
    p.data = golden_floats(g, "pixel_values", &n);
    assert_int_equal(n, p.rows * p.columns * p.width);
    return p;
}

static void logits_from_the_references_pixels(void **state) {
    (void)state;
    qn_err err;
    int32_t ids[N_IDS], pos[N_IDS * 4];
    int64_t n, positions[3 * N_IDS];
    reference_ids(ids);
    golden g = golden_open(MODEL, "golden.safetensors");
    float *want = golden_floats(&g, "logits", &n);
    qn_patches patches = reference_patches(&g);
    qn_engine *engine = open_model(GGUF, &with_tower);
    const qn_vision *vision;
    ASSERT_OK(qn_images_vision(&vision, engine, &err));
    qn_encoded *rows = qn_alloc(1, sizeof *rows);
    qn_media media = {0};
    atomic_init(&rows->holders, 1);
    ASSERT_OK(qn_vision_encode_patches(&rows->rows, vision, &patches, NULL, &err));
    ASSERT_OK(qn_media_reserve(&media, 1, &err));
    media.spans[0] = (qn_image_span){.first = FIRST, .rows = 3, .columns = 5};
    media.rows[0] = rows;
    media.n = 1;
    qn_logits got;
    const qn_run_input input = {.ids = ids, .n = N_IDS, .media = &media};
    ASSERT_OK(
        qn_engine_run(&got, engine, &input, &QN_INIT(qn_logits_opts, .all_rows = true), &err));
    const double error = relative_error(got.logits, want, n);
    print_message("error %.1e\n", error);
    assert_true(error <= 1e-4);
    const qn_tensor *t = qn_source_find_tensor(g.source, "position_ids"); // (3, 25)
    ASSERT_OK(qn_source_read(g.source, t, 0, positions, sizeof positions, &err));
    qn_media_fill(&media, 0, N_IDS, pos, NULL, NULL, 0);
    for (int i = 0; i < N_IDS; i++) {
        for (int k = 0; k < 3; k++) assert_int_equal(pos[i * 4 + k], positions[k * N_IDS + i]);
    }
    qn_logits_deinit(&got);
    qn_media_deinit(&media);
    qn_patches_deinit(&patches);
    qn_engine_close(engine);
    qn_free(want);
    golden_close(&g);
}

static void chunks_threads_and_devices_change_no_bit(void **state) {
    (void)state;
    static const struct {
        const char *device;
        int n_threads;
        int64_t chunk;
    } ways[] = {{NULL, 1, 0}, {NULL, 2, 1},  {NULL, 1, 5},           {NULL, 2, 11},
                {NULL, 1, 4}, {"ref", 1, 7}, {"cpu:portable", 2, 0}, {"cpu,ref", 2, 6}};
    qn_logits want = QN_INIT(qn_logits);
    int32_t ids[N_IDS];
    reference_ids(ids);
    qn_image *image = open_image(MODEL "/image.png");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        qn_engine_opts opts = with_tower;
        opts.device = ways[i].device;
        opts.n_threads = ways[i].n_threads;
        qn_engine *engine = open_model(GGUF, &opts);
        qn_logits got = run(engine, ids, N_IDS, image, ways[i].chunk);
        qn_engine_close(engine);
        if (i == 0) {
            want = got;
            continue;
        }
        assert_memory_equal(got.logits, want.logits, sizeof(float) * N_IDS * VOCAB);
        qn_logits_deinit(&got);
    }
    qn_logits_deinit(&want);
    qn_image_destroy(image);
}

// --- sessions ------------------------------------------------------------------------------------

typedef struct rig {
    qn_engine *engine;
    qn_session *session;
    qn_image *image, *other; // of equal sizes
    int32_t ids[N_IDS];
} rig;

static rig open_rig(const char *path, const qn_engine_opts *opts) {
    rig r = {.engine = open_model(path, opts)};
    r.session = open_session(r.engine, CONTEXT);
    r.image = open_image(MODEL "/image.png");
    r.other = open_image(MODEL "/image.jpg");
    reference_ids(r.ids);
    return r;
}

static void close_rig(rig *r) {
    qn_session_destroy(r->session);
    qn_engine_close(r->engine);
    qn_image_destroy(r->image);
    qn_image_destroy(r->other);
}

static void set_prompt(qn_session *s, const int32_t *ids, size_t n, const qn_image *image) {
    qn_err err;
    ASSERT_OK(qn_session_set_prompt_images(s, ids, n, &image, 1, &err));
}

// Release with qn_result_deinit.
static qn_result answer_image(qn_session *s, const int32_t *ids, size_t n, const qn_image *image,
                              const qn_generate_opts *opts) {
    qn_err err;
    qn_result result = QN_INIT(qn_result);
    set_prompt(s, ids, n, image);
    ASSERT_OK(qn_generate(&result, s, opts, NULL, NULL, &err));
    return result;
}

static const qn_generate_opts plain =
    QN_INITIALIZER(qn_generate_opts, .max_tokens = N_NEW, .ignore_end = true);

// Greedy tokens of the reference: none are in the fixture, but its last logits are.
static void answers_are_those_without_a_cache(void **state) {
    (void)state;
    rig r = open_rig(GGUF, &with_tower);
    golden g = golden_open(MODEL, "golden.safetensors");
    int64_t n;
    float *logits = golden_floats(&g, "logits", &n);
    qn_generate_opts opts = plain;
    qn_result got = answer_image(r.session, r.ids, N_IDS, r.image, &opts);
    opts.naive = true;
    qn_result naive = answer_image(r.session, r.ids, N_IDS, r.image, &opts);
    qn_result other = answer_image(r.session, r.ids, N_IDS, r.other, &plain);
    assert_same_answer(&got, &naive, "with a cache");
    const float *last = logits + n - VOCAB;
    for (int i = 0; i < VOCAB; i++) assert_true(last[i] <= last[got.tokens[0]]);
    qn_engine *exact =
        open_model(GGUF, &QN_INIT(qn_engine_opts, .mmproj = TOWER, .reference = true));
    qn_session *slow = open_session(exact, CONTEXT);
    qn_result want = answer_image(slow, r.ids, N_IDS, r.image, &opts);
    assert_same_answer(&got, &want, "the interpreter");
    qn_result_deinit(&want);
    qn_session_destroy(slow);
    qn_engine_close(exact);
    qn_result_deinit(&got);
    qn_result_deinit(&naive);
    qn_result_deinit(&other);
    qn_free(logits);
    golden_close(&g);
    close_rig(&r);
}

// Steps of a session leave the logits of the whole text, also after forks, snapshots and cuts,
// inside the image, too.
static void sessions_have_the_logits_of_the_whole_text(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    qn_session *s = NULL, *fork = NULL;
    qn_snapshot *snapshot = NULL;
    const qn_session_opts with_logits =
        QN_INIT(qn_session_opts, .context = CONTEXT, .logits = true, .chunk = 6);
    int32_t token, ids[N_IDS + 2];
    ASSERT_OK(qn_session_create(&s, r.engine, &with_logits, &err));
    set_prompt(s, r.ids, N_IDS, r.image);
    ASSERT_OK(qn_session_step(&token, s, NULL, &err));
    memcpy(ids, r.ids, sizeof r.ids);
    ids[N_IDS] = token;
    ASSERT_OK(qn_session_fork(&fork, s, &err));
    ASSERT_OK(qn_session_checkpoint(&snapshot, s, &err));
    qn_logits want = run(r.engine, ids, N_IDS + 1, r.image, 0);
    const size_t row = VOCAB * sizeof(float);
    assert_memory_equal(qn_session_logits(s), want.logits + (N_IDS - 1) * VOCAB, row);
    qn_session *const both[] = {s, fork, s};
    for (int i = 0; i < 3; i++) {
        if (i == 2) ASSERT_OK(qn_session_restore(s, snapshot, &err));
        ASSERT_OK(qn_session_step(&token, both[i], NULL, &err));
        assert_memory_equal(qn_session_logits(both[i]), want.logits + N_IDS * VOCAB, row);
    }
    qn_logits_deinit(&want);
    // Cut inside the image, then text: the same as a shorter image would give, and not the same as
    // the whole one.
    ASSERT_OK(qn_session_truncate(s, FIRST + 7, &err));
    ASSERT_OK(qn_session_commit(s, r.ids + N_IDS - 3, 3, &err));
    ASSERT_OK(qn_session_step(&token, s, NULL, &err));
    qn_media media = {0};
    ASSERT_OK(qn_media_init(&media, r.engine, r.ids, N_IDS, (const qn_image *[]){r.image}, 1, NULL,
                            &err));
    qn_media_cut(&media, FIRST + 7);
    memcpy(ids + FIRST + 7, r.ids + N_IDS - 3, 3 * sizeof *ids);
    const qn_run_input input = {.ids = ids, .n = FIRST + 10, .media = &media};
    ASSERT_OK(qn_engine_run(&want, r.engine, &input, &QN_INIT(qn_logits_opts), &err));
    assert_memory_equal(qn_session_logits(s), want.logits, row);
    qn_logits_deinit(&want);
    qn_media_deinit(&media);
    qn_snapshot_destroy(snapshot);
    qn_session_destroy(fork);
    qn_session_destroy(s);
    close_rig(&r);
}

static int64_t rows_run(const qn_session *s) {
    qn_err err;
    qn_session_counts counts = QN_INIT(qn_session_counts);
    ASSERT_OK(qn_session_get_counts(&counts, s, &err));
    return counts.rows;
}

// A second turn computes the new tokens alone, and encodes no image twice; another image of the
// same sizes is another prompt.
static void a_second_turn_computes_only_what_is_new(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    int32_t ids[CONTEXT], token;
    set_prompt(r.session, r.ids, N_IDS, r.image);
    ASSERT_OK(qn_session_mark(r.session, N_IDS, &err));
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    assert_int_equal(rows_run(r.session), N_IDS);
    memcpy(ids, r.ids, sizeof r.ids);
    for (int i = 0; i < 5; i++) ids[N_IDS + i] = 30 + i;
    qn_image *again = open_image(MODEL "/image.png"); // the same picture from another file
    set_prompt(r.session, ids, N_IDS + 5, again);
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    assert_int_equal(rows_run(r.session), N_IDS + 5);
    qn_images_counts counts = qn_images_get_counts(r.engine);
    assert_int_equal(counts.encoded, 1);
    assert_int_equal(counts.hits, 1);
    set_prompt(r.session, ids, N_IDS + 5, r.other);
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    assert_int_equal(rows_run(r.session), 2 * (N_IDS + 5));
    counts = qn_images_get_counts(r.engine);
    assert_int_equal(counts.encoded, 2);
    assert_int_equal(counts.kept, 2);
    assert_int_equal(counts.bytes, 2 * N_ROWS * 64 * (int64_t)sizeof(float));
    // The same ids without images are text like any other.
    ASSERT_OK(qn_session_set_prompt(r.session, ids, N_IDS + 5, &err));
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    assert_int_equal(rows_run(r.session), 3 * (N_IDS + 5));
    qn_image_destroy(again);
    close_rig(&r);
}

// A state with an image goes on on another device, without the tower; it is found by prompts with
// the same picture, and what it does not hold is computed from the rows that it has.
static void states_have_their_images(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    int32_t ids[CONTEXT], want[6], got[6], token;
    void *data, *again;
    size_t size, n;
    set_prompt(r.session, r.ids, N_IDS, r.image);
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    ASSERT_OK(qn_session_save_bytes(&data, &size, r.session, &err));
    for (int i = 0; i < 6; i++) ASSERT_OK(qn_session_step(&want[i], r.session, NULL, &err));
    rig other = open_rig(GGUF, &QN_INIT(qn_engine_opts, .device = "ref"));
    ASSERT_OK(qn_session_load_bytes(other.session, data, size, &err));
    ASSERT_OK(qn_session_save_bytes(&again, &n, other.session, &err));
    assert_int_equal(n, size);
    assert_memory_equal(again, data, size);
    qn_free(again);
    for (int i = 0; i < 6; i++) ASSERT_OK(qn_session_step(&got[i], other.session, NULL, &err));
    assert_memory_equal(got, want, sizeof want);
    assert_int_equal(rows_run(other.session), 6);
    ASSERT_OK(qn_session_truncate(other.session, N_IDS + 1, &err)); // recurrent: all is computed
    for (int i = 0; i < 6; i++) ASSERT_OK(qn_session_step(&got[i], other.session, NULL, &err));
    assert_memory_equal(got, want, sizeof want);
    close_rig(&other);
    other = open_rig(GGUF, &with_tower);
    ASSERT_OK(qn_session_load_bytes(other.session, data, size, &err));
    memcpy(ids, r.ids, sizeof r.ids);
    ids[N_IDS] = token;
    ids[N_IDS + 1] = 30;
    set_prompt(other.session, ids, N_IDS + 2, other.image);
    ASSERT_OK(qn_session_step(&token, other.session, NULL, &err));
    assert_int_equal(rows_run(other.session), 2);
    close_rig(&other);
    // Every word of an image's place changed: refused, as the whole is.
    unsigned char *bytes = data;
    other = open_rig(GGUF, &with_tower);
    for (size_t i = 0; i < size; i += i < 1024 ? 8 : size / 200 + 1) {
        bytes[i] ^= 0x40;
        if (qn_session_load_bytes(other.session, data, size, &err) == QN_OK)
            fail_msg("byte %zu was changed, and it was loaded", i);
        bytes[i] ^= 0x40;
    }
    close_rig(&other);
    qn_free(data);
    close_rig(&r);
}

static void speculation_changes_no_token(void **state) {
    (void)state;
    rig r = open_rig(GGUF, &with_tower);
    qn_session *draft = open_session(r.engine, CONTEXT);
    // The model chooses between two tokens, so that it repeats itself soon.
    static const qn_bias two[] = {{20, 1000}, {21, 1000}};
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .biases = two, .n_biases = 2);
    qn_generate_opts opts = plain;
    opts.sample = &sample;
    qn_result want = answer_image(r.session, r.ids, N_IDS, r.image, &opts);
    opts.draft_min = 3;
    opts.lookup = true;
    qn_result got = answer_image(r.session, r.ids, N_IDS, r.image, &opts);
    assert_same_answer(&got, &want, "lookup");
    assert_true(got.n_drafted > 0);
    qn_result_deinit(&got);
    opts.lookup = false;
    opts.draft = draft; // sees no image
    got = answer_image(r.session, r.ids, N_IDS, r.image, &opts);
    assert_same_answer(&got, &want, "draft");
    assert_true(got.n_drafted > 0);
    qn_result_deinit(&got);
    qn_result_deinit(&want);
    qn_session_destroy(draft);
    close_rig(&r);
}

// A model with a prediction head takes a tower of its width.
static void the_prediction_head_sees_images(void **state) {
    (void)state;
    qn_err err;
    const qn_engine_opts with_both = QN_INIT(qn_engine_opts, .mmproj = TOWER, .mtp = true);
    rig r = open_rig(TEST_DATA "/mini/qwen35", &with_both);
    const qn_image *image = r.image;
    qn_logits want = QN_INIT(qn_logits), got = QN_INIT(qn_logits);
    qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .mtp = true, .images = &image, .n_images = 1);
    ASSERT_OK(qn_engine_logits(&want, r.engine, r.ids, N_IDS, &opts, &err));
    opts.chunk = 6;
    ASSERT_OK(qn_engine_logits(&got, r.engine, r.ids, N_IDS, &opts, &err));
    assert_memory_equal(got.mtp, want.mtp, sizeof(float) * (N_IDS - 1) * VOCAB);
    qn_engine *exact =
        open_model(TEST_DATA "/mini/qwen35",
                   &QN_INIT(qn_engine_opts, .mmproj = TOWER, .mtp = true, .reference = true));
    qn_logits_deinit(&got);
    got = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&got, exact, r.ids, N_IDS, &opts, &err));
    assert_true(relative_error(want.mtp, got.mtp, (N_IDS - 1) * VOCAB) < 1e-4);
    qn_logits_deinit(&got);
    qn_engine_close(exact);
    qn_generate_opts generate = plain;
    qn_result tokens = answer_image(r.session, r.ids, N_IDS, r.image, &generate);
    generate.mtp = true;
    generate.draft_min = 2;
    qn_result drafted = answer_image(r.session, r.ids, N_IDS, r.image, &generate);
    assert_same_answer(&drafted, &tokens, "mtp");
    assert_true(drafted.n_drafted > 0);
    qn_result_deinit(&tokens);
    qn_result_deinit(&drafted);
    // The head's own choice after the prompt, by a session and from the whole text.
    const float *logits;
    set_prompt(r.session, r.ids, N_IDS - 1, r.image);
    int32_t token;
    ASSERT_OK(qn_session_step(&token, r.session, NULL, &err));
    ASSERT_OK(qn_session_truncate(r.session, N_IDS - 1, &err));
    ASSERT_OK(qn_session_predict(&logits, r.session, r.ids[N_IDS - 1], &err));
    assert_memory_equal(logits, want.mtp + (N_IDS - 2) * VOCAB, sizeof(float) * VOCAB);
    qn_logits_deinit(&want);
    close_rig(&r);
}

// --- batches -------------------------------------------------------------------------------------

static void rows_of_a_batch_are_the_answers_alone(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    const qn_image *images[] = {r.image, r.other};
    const qn_row_opts opts[] = {
        QN_INIT(qn_row_opts, .generate = &plain, .images = &images[0], .n_images = 1),
        QN_INIT(qn_row_opts, .generate = &plain),
        QN_INIT(qn_row_opts, .generate = &plain, .images = &images[1], .n_images = 1,
                .completions = 2)};
    const qn_prompt prompts[] = {
        {r.ids, N_IDS, &opts[0]}, {r.ids, N_IDS, &opts[1]}, {r.ids, N_IDS, &opts[2]}};
    qn_result got[4], want[3];
    for (int i = 0; i < 4; i++) got[i] = QN_INIT(qn_result);
    ASSERT_OK(qn_generate_batch(got, 4, r.session, prompts, 3, NULL, NULL, &err));
    want[0] = answer_image(r.session, r.ids, N_IDS, r.image, &plain);
    want[1] = answer(r.session, r.ids, N_IDS, &plain, NULL, NULL);
    want[2] = answer_image(r.session, r.ids, N_IDS, r.other, &plain);
    assert_same_answer(&got[0], &want[0], "an image");
    assert_same_answer(&got[1], &want[1], "none");
    assert_same_answer(&got[2], &want[2], "another");
    assert_same_answer(&got[3], &want[2], "another's second");
    for (int i = 0; i < 4; i++) qn_result_deinit(&got[i]);
    for (int i = 0; i < 3; i++) qn_result_deinit(&want[i]);
    close_rig(&r);
}

// A flag or a deadline ends the encoding: the session keeps its history, the batch has no such row.
static void stop_flags_end_the_encoding(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    const qn_image *image = r.image;
    qn_stop_flag *flag = NULL;
    qn_session *session = NULL;
    qn_batch *batch = NULL;
    size_t n;
    uint64_t id;
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = CONTEXT, .stop = flag);
    ASSERT_OK(qn_session_create(&session, r.engine, &opts, &err));
    ASSERT_OK(qn_session_set_prompt(session, r.ids, FIRST, &err));
    qn_stop_flag_set(flag);
    ASSERT_FAILS(qn_session_set_prompt_images(session, r.ids, N_IDS, &image, 1, &err), QN_STOPPED,
                 "image 1 of 1: stopped while it was encoded");
    (void)qn_session_tokens(session, &n);
    assert_int_equal(n, FIRST);
    const qn_generate_opts with_flag =
        QN_INIT(qn_generate_opts, .max_tokens = N_NEW, .ignore_end = true, .stop = flag);
    const qn_row_opts row =
        QN_INIT(qn_row_opts, .images = &image, .n_images = 1, .generate = &with_flag);
    ASSERT_OK(qn_batch_create(&batch, r.engine, NULL, &err));
    ASSERT_FAILS(qn_batch_add(&id, batch, r.ids, N_IDS, &row, NULL, NULL, &err), QN_STOPPED,
                 "image 1 of 1");
    qn_stop_flag_clear(flag);
    ASSERT_OK(qn_session_set_prompt_images(session, r.ids, N_IDS, &image, 1, &err));
    ASSERT_OK(qn_batch_add(&id, batch, r.ids, N_IDS, &row, NULL, NULL, &err));
    qn_batch_destroy(batch);
    qn_session_destroy(session);
    qn_stop_flag_destroy(flag);
    close_rig(&r);
}

static void steps_with_images_are_recorded_and_replayed(void **state) {
    (void)state;
    qn_err err;
    char path[] = "/tmp/images_steps_XXXXXX";
    int32_t ids[N_IDS];
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    unlink(path); // a record never replaces a file
    reference_ids(ids);
    qn_image *image = open_image(MODEL "/image.png");
    setenv("QN_STEPS", path, 1);
    qn_engine *engine = open_model(GGUF, &with_tower);
    unsetenv("QN_STEPS");
    qn_logits want = run(engine, ids, N_IDS, image, 9);
    qn_engine_close(engine);
    qn_engine *plain_engine = open_model(GGUF, NULL); // needs no tower
    qn_logits got = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_replay(&got, plain_engine, path, &QN_INIT(qn_logits_opts, .all_rows = true),
                               &err));
    assert_int_equal(got.n_rows, N_IDS);
    assert_memory_equal(got.logits, want.logits, sizeof(float) * N_IDS * VOCAB);
    qn_logits_deinit(&got);
    qn_logits_deinit(&want);
    qn_engine_close(plain_engine);
    qn_image_destroy(image);
    unlink(path);
}

// --- several images ------------------------------------------------------------------------------

// Text, an image, text, an image: expanded from one token each.
static void several_images_are_expanded_and_read(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    const qn_image *images[] = {r.image, r.other};
    const int32_t from[] = {10, 502, IMAGE, 503, 11, 502, IMAGE, 503, 12, 13};
    int32_t *ids = NULL;
    size_t n = 0, mark = 8;
    ASSERT_OK(qn_engine_expand_images(&ids, &n, &mark, r.engine, from, 10, images, 2, &err));
    assert_int_equal(n, 8 + 2 * N_ROWS);
    assert_int_equal(mark, 6 + 2 * N_ROWS);
    assert_int_equal(ids[1 + N_ROWS], IMAGE);
    assert_int_equal(ids[2 + N_ROWS], 503);
    qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .images = images, .n_images = 2);
    qn_logits want = QN_INIT(qn_logits), got = QN_INIT(qn_logits);
    ASSERT_OK(qn_engine_logits(&want, r.engine, ids, n, &opts, &err));
    opts.chunk = 13; // two parts of images in a step
    ASSERT_OK(qn_engine_logits(&got, r.engine, ids, n, &opts, &err));
    assert_memory_equal(got.logits, want.logits, sizeof(float) * n * VOCAB);
    // The first image is read as it is alone; the second changes what follows it only.
    qn_logits alone = run(r.engine, ids, 3 + N_ROWS, r.image, 0);
    assert_memory_equal(alone.logits, want.logits, sizeof(float) * (3 + N_ROWS) * VOCAB);
    qn_logits_deinit(&alone);
    qn_logits_deinit(&got);
    qn_logits_deinit(&want);
    qn_free(ids);
    close_rig(&r);
}

// --- what does not fit ---------------------------------------------------------------------------

static void wrong_numbers_of_image_tokens_are_errors(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    const qn_image *images[] = {r.image, r.other};
    int32_t ids[N_IDS + 1], *more = NULL;
    size_t n = 0;
    qn_session *s = r.session;
    set_prompt(s, r.ids, N_IDS, r.image);
    ASSERT_FAILS(qn_session_set_prompt_images(s, r.ids, N_IDS, images, 2, &err), QN_ARGUMENT,
                 "image 1: 0 image tokens (id 500) side by side in the prompt, it has 3 x 5 = 15");
    memcpy(ids, r.ids, sizeof r.ids);
    ids[FIRST + 14] = 20;
    ASSERT_FAILS(qn_session_set_prompt_images(s, ids, N_IDS, images, 1, &err), QN_ARGUMENT,
                 "image 0: 14 image tokens (id 500) side by side in the prompt, it has 3 x 5 = 15");
    ids[FIRST + 14] = ids[FIRST + 15] = IMAGE;
    ASSERT_FAILS(qn_session_set_prompt_images(s, ids, N_IDS, images, 1, &err), QN_ARGUMENT,
                 "16 image tokens (id 500) in the prompt, the rows of its 1 images are 15");
    ASSERT_FAILS(qn_session_set_prompt_images(s, r.ids, N_IDS, (const qn_image *[]){NULL}, 1, &err),
                 QN_ARGUMENT, "image 0 is NULL");
    ASSERT_FAILS(
        qn_engine_expand_images(&more, &n, NULL, r.engine, r.ids, N_IDS, images, 2, &err),
        QN_ARGUMENT,
        "the prompt has 15 image tokens (<|image_pad|>, id 500) for 2 images, want one for each");
    assert_null(more);
    qn_generate_opts shift = plain;
    shift.shift = true;
    ASSERT_FAILS(qn_generate(NULL, s, &shift, NULL, NULL, &err), QN_UNSUPPORTED, "context shift");
    qn_result after = QN_INIT(qn_result); // the session is as it was
    ASSERT_OK(qn_generate(&after, s, &plain, NULL, NULL, &err));
    qn_result want = answer_image(s, r.ids, N_IDS, r.image, &plain);
    assert_same_answer(&after, &want, "after errors");
    qn_result_deinit(&after);
    qn_result_deinit(&want);
    close_rig(&r);
}

static void images_need_a_tower_that_fits(void **state) {
    (void)state;
    qn_err err;
    int32_t ids[N_IDS];
    int64_t rows, columns;
    qn_engine *engine = NULL;
    reference_ids(ids);
    qn_image *image = open_image(MODEL "/image.png");
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .images = (const qn_image *[]){image}, .n_images = 1);
    qn_logits got = QN_INIT(qn_logits);
    engine = open_model(GGUF, NULL);
    ASSERT_FAILS(
        qn_engine_logits(&got, engine, ids, N_IDS, &opts, &err), QN_STATE,
        "qwen35_vl-bf16.gguf has no vision tower: images need its mmproj file (--mmproj FILE)");
    ASSERT_FAILS(qn_engine_measure_image(&rows, &columns, engine, image, &err), QN_STATE,
                 "has no vision tower");
    qn_engine_close(engine);
    engine = NULL;
    ASSERT_FAILS(qn_engine_open(&engine, MODELS "/quern-hybrid-Q8_0.gguf", &with_tower, &err),
                 QN_FORMAT, "is the tower of another model: its rows have width 64");
    static const char *const blind[] = {"llama32", "qwen3", "qwen3_moe", "gemma3"};
    for (size_t i = 0; i < sizeof blind / sizeof *blind; i++) {
        static const char *const arch[] = {"llama", "qwen3", "qwen3moe", "gemma3"};
        char path[512], want[128];
        snprintf(path, sizeof path, "%s/mini/%s", TEST_DATA, blind[i]);
        snprintf(want, sizeof want, "%s: models of the architecture %s do not read images",
                 blind[i], arch[i]);
        ASSERT_FAILS(qn_engine_open(&engine, path, &with_tower, &err), QN_UNSUPPORTED, want);
    }
    ASSERT_FAILS(qn_engine_open(&engine, GGUF, &QN_INIT(qn_engine_opts, .mmproj = GGUF), &err),
                 QN_FORMAT, "is not a vision tower");
    ASSERT_FAILS(
        qn_engine_open(&engine, GGUF, &QN_INIT(qn_engine_opts, .mmproj = "/no.gguf"), &err), QN_IO,
        "/no.gguf");
    assert_null(engine);
    engine = open_model(TEST_DATA "/mini/gemma3", NULL);
    ASSERT_FAILS(qn_engine_logits(&got, engine, ids, N_IDS, &opts, &err), QN_UNSUPPORTED,
                 "images: gemma3 cannot be given rows");
    qn_engine_close(engine);
    qn_image_destroy(image);
}

// --- qn_image ------------------------------------------------------------------------------------

static void images_come_from_files_bytes_and_urls(void **state) {
    (void)state;
    // A PNG file of one red pixel.
    static const char url[] =
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8Dw"
        "HwAFBQIAX8jx0gAAAABJRU5ErkJggg==";
    qn_err err;
    qn_image *image = NULL;
    qn_image_info info = QN_INIT(qn_image_info), again = QN_INIT(qn_image_info);
    ASSERT_OK(qn_image_create_url(&image, url, sizeof url - 1, NULL, &err));
    ASSERT_OK(qn_image_get_info(&info, image, &err));
    assert_int_equal(info.width, 1);
    assert_int_equal(info.height, 1);
    qn_image_destroy(image);
    ASSERT_OK(qn_image_create_url(&image, url, sizeof url - 3, NULL, &err)); // without padding
    ASSERT_OK(qn_image_get_info(&again, image, &err));
    assert_int_equal(again.hash, info.hash);
    qn_image_destroy(image);
    image = NULL;
    static const struct {
        const char *url, *part;
        qn_status status;
    } cases[] = {
        {"", "an image at ''", QN_ARGUMENT},
        {"https://example.com/cat.png", "only data URLs", QN_ARGUMENT},
        {"data:image/png,abc", "only data URLs", QN_ARGUMENT},
        {"data:;base64", "only data URLs", QN_ARGUMENT},
        {"data:image/png;base64,iVB!", "byte 0x21 at 3 of 4 is not base64", QN_FORMAT},
        {"data:image/png;base64,iVBOR", "5 digits of base64 are not whole bytes", QN_FORMAT},
        {"data:image/png;base64,", "", QN_FORMAT},
        {"data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ", "", QN_FORMAT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        ASSERT_FAILS(qn_image_create_url(&image, cases[i].url, strlen(cases[i].url), NULL, &err),
                     cases[i].status, cases[i].part);
    ASSERT_FAILS(qn_image_open(&image, "/no.png", NULL, &err), QN_IO, "/no.png");
    ASSERT_FAILS(
        qn_image_open(&image, MODEL "/image.png", &QN_INIT(qn_image_opts, .max_bytes = 1000), &err),
        QN_LIMIT, "1000");
    ASSERT_FAILS(qn_image_open(&image, MODEL "/image.png",
                               &QN_INIT(qn_image_opts, .max_pixels = 14999), &err),
                 QN_LIMIT, "14999");
    ASSERT_FAILS(qn_image_create(&image, "GIF89a", 6, NULL, &err), QN_FORMAT, "");
    assert_null(image);
}

// --- conversations -------------------------------------------------------------------------------

// As the templates of Qwen's vision models write parts.
static const char parts_template[] =
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' or 'image' in p or 'image_url' in p "
    "%}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

static size_t count_tokens(const qn_chat_prompt *p, int32_t token) {
    size_t n = 0;
    for (size_t i = 0; i < p->n; i++) n += p->ids[i] == token;
    return n;
}

static qn_chat_prompt make_prompt(const qn_chat *chat, const qn_template *template,
                                  const qn_engine *engine) {
    qn_err err;
    qn_chat_prompt p = QN_INIT(qn_chat_prompt);
    ASSERT_OK(qn_chat_make_prompt(&p, chat, template, qn_engine_tokenizer(engine), NULL, &err));
    assert_true(p.is_guarded);
    return p;
}

static void messages_have_images(void **state) {
    (void)state;
    qn_err err;
    rig r = open_rig(GGUF, &with_tower);
    const qn_image *image = r.image;
    qn_template *template = NULL;
    qn_chat *chat = NULL;
    ASSERT_OK(qn_template_create(&template, parts_template, sizeof parts_template - 1, &err));
    ASSERT_OK(qn_chat_create(&chat, &err));
    // Who writes the mark of an image writes text.
    const qn_message question = QN_INIT(qn_message, .role = "user", .text = "A <|image_pad|>?",
                                        .text_size = 16, .images = &image, .n_images = 1);
    const qn_message reply = QN_INIT(qn_message, .role = "assistant", .text = "B", .text_size = 1);
    ASSERT_OK(qn_chat_add(chat, &question, &err));
    qn_image_destroy(r.image); // the chat keeps it
    qn_chat_prompt p = make_prompt(chat, template, r.engine);
    assert_int_equal(p.n_images, 1);
    assert_int_equal(count_tokens(&p, IMAGE), 1);
    const size_t n = p.n, n_messages = p.n_messages;
    ASSERT_OK(qn_chat_prompt_expand(&p, r.engine, &err));
    assert_int_equal(count_tokens(&p, IMAGE), N_ROWS);
    assert_int_equal(p.n, n + N_ROWS - 1);
    assert_int_equal(p.n_messages, n_messages + N_ROWS - 1);
    ASSERT_OK(qn_session_set_prompt_images(r.session, p.ids, p.n, p.images, p.n_images, &err));
    ASSERT_OK(qn_session_mark(r.session, p.n_messages, &err));
    qn_result first = QN_INIT(qn_result);
    ASSERT_OK(qn_generate(&first, r.session, &plain, NULL, NULL, &err));
    const size_t n_first = p.n_messages;
    qn_chat_prompt_deinit(&p);
    // The second turn computes nothing of the messages of the first.
    ASSERT_OK(qn_chat_add(chat, &reply, &err));
    const qn_message next = QN_INIT(qn_message, .role = "user", .text = "C", .text_size = 1);
    ASSERT_OK(qn_chat_add(chat, &next, &err));
    p = make_prompt(chat, template, r.engine);
    ASSERT_OK(qn_chat_prompt_expand(&p, r.engine, &err));
    ASSERT_OK(qn_session_set_prompt_images(r.session, p.ids, p.n, p.images, p.n_images, &err));
    qn_result second = QN_INIT(qn_result);
    ASSERT_OK(qn_generate(&second, r.session, &plain, NULL, NULL, &err));
    assert_true(second.n_reused >= (int64_t)n_first);
    qn_chat_prompt_deinit(&p);
    qn_result_deinit(&first);
    qn_result_deinit(&second);
    // Its picture goes with its message.
    ASSERT_OK(qn_chat_truncate(chat, 0, &err));
    p = make_prompt(chat, template, r.engine);
    assert_int_equal(p.n_images, 0);
    qn_chat_prompt_deinit(&p);
    qn_chat_destroy(chat);
    qn_template_destroy(template);
    r.image = NULL;
    close_rig(&r);
}

// An image that nobody looks at.
static const qn_image *wide_image(qn_image *image, int64_t width, int64_t height) {
    image->width = width;
    image->height = height;
    image->rgb = NULL;
    atomic_init(&image->holders, 1);
    return image;
}

static void conversations_hold_so_many_images(void **state) {
    (void)state;
    enum { MAX = 64 };
    static const char url[] = "{\"type\": \"image\", \"url\": \"data:image/png;base64,"
                              "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8Dw"
                              "HwAFBQIAX8jx0gAAAABJRU5ErkJggg==\"}";
    qn_err err;
    qn_chat *chat = NULL;
    qn_image wide = {0};
    char *text = malloc((MAX + 1) * sizeof url + 64);
    assert_non_null(text);
    ASSERT_OK(qn_chat_create(&chat, &err));
    for (int n = MAX; n <= MAX + 1; n++) {
        size_t size = (size_t)sprintf(text, "[{\"role\": \"user\", \"content\": [");
        for (int i = 0; i < n; i++) size += (size_t)sprintf(text + size, "%s%s", i ? "," : "", url);
        size += (size_t)sprintf(text + size, "]}]");
        if (n == MAX)
            ASSERT_OK(qn_chat_set_messages(chat, text, size, NULL, &err));
        else
            ASSERT_FAILS(qn_chat_set_messages(chat, text, size, NULL, &err), QN_LIMIT,
                         "part 64: more than 64 images; a conversation has at most 64");
    }
    const qn_image *list[5];
    for (int i = 0; i < 5; i++) list[i] = wide_image(&wide, 1 << 13, 1 << 13);
    qn_message message = QN_INIT(qn_message, .role = "user", .images = list, .n_images = 1);
    ASSERT_FAILS(qn_chat_add(chat, &message, &err), QN_LIMIT, "at most 64");
    ASSERT_OK(qn_chat_truncate(chat, 0, &err));
    message.n_images = 5;
    ASSERT_FAILS(qn_chat_add(chat, &message, &err), QN_LIMIT,
                 "more than 268435456 pixels; a conversation has at most 268435456");
    message.n_images = 4;
    ASSERT_OK(qn_chat_add(chat, &message, &err));
    ASSERT_FAILS(qn_chat_add(chat, &message, &err), QN_LIMIT, "268435456");
    qn_chat_destroy(chat);
    assert_int_equal(atomic_load(&wide.holders), 1);
    free(text);
}

// What is left is told to the decoder: nothing larger is unpacked.
static void images_of_a_request_share_their_pixels(void **state) {
    (void)state;
    static const char many[] = "[{\"role\": \"user\", \"content\": [%s]}]";
    static const char png[] = // 64 x 64
        "{\"type\": \"image\", \"url\": \"data:image/png;base64,"
        "iVBORw0KGgoAAAANSUhEUgAAAEAAAABAAQAAAACCEkxzAAAA"
        "D0lEQVR42mNgGAWjgHwAAAJAAAHgTR1EAAAAAElFTkSuQmCC\"}";
    qn_err err;
    json_error_t why;
    char text[512];
    qn_image wide = {0};
    const qn_image *list[4];
    const qn_image_opts usual = QN_INIT(qn_image_opts);
    qn_chat_images images = {0};
    json_t *message = json_pack("{s:s}", "content", "");
    for (int i = 0; i < 4; i++) list[i] = wide_image(&wide, 1 << 13, (1 << 13) - 1);
    ASSERT_OK(qn_chat_images_add(&images, message, list, 4, &err)); // 4 * 8192 pixels are left
    for (int i = 0; i < 9; i++) {
        snprintf(text, sizeof text, many, png);
        json_t *messages = json_loads(text, 0, &why);
        if (i < 8)
            ASSERT_OK(qn_chat_images_read(&images, messages, "messages", &usual, &err));
        else
            ASSERT_FAILS(qn_chat_images_read(&images, messages, "messages", &usual, &err), QN_LIMIT,
                         "images of more than 268435456 pixels");
        json_decref(messages);
    }
    qn_chat_images_deinit(&images);
    json_decref(message);
    message = json_pack("{s:s}", "content", "");
    wide_image(&wide, 1 << 13, (1 << 13) - 1);
    qn_image odd = {0};
    list[3] = wide_image(&odd, (1 << 13) * ((1 << 13) + 3) - 1000, 1); // 1000 are left
    ASSERT_OK(qn_chat_images_add(&images, message, list, 4, &err));
    snprintf(text, sizeof text, many, png);
    json_t *messages = json_loads(text, 0, &why);
    ASSERT_FAILS(qn_chat_images_read(&images, messages, "messages", &usual, &err), QN_LIMIT,
                 "part 0: 1000 of the 268435456 pixels");
    json_decref(messages);
    json_decref(message);
    qn_chat_images_deinit(&images);
}

static void messages_in_json_have_data_urls(void **state) {
    (void)state;
    static const char red[] = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAF"
                              "BQIAX8jx0gAAAABJRU5ErkJggg==";
    qn_err err;
    qn_chat *chat = NULL;
    char text[1024], *printed = NULL;
    qn_engine *engine = open_model(GGUF, &with_tower);
    qn_template *template = NULL;
    ASSERT_OK(qn_template_create(&template, parts_template, sizeof parts_template - 1, &err));
    ASSERT_OK(qn_chat_create(&chat, &err));
    snprintf(text, sizeof text,
             "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"A\"}, "
             "{\"type\": \"image_url\", \"image_url\": {\"url\": \"data:image/png;base64,%s\"}}, "
             "{\"type\": \"image\", \"url\": \"data:image/png;base64,%s\"}]}]",
             red, red);
    ASSERT_OK(qn_chat_set_messages(chat, text, strlen(text), NULL, &err));
    qn_chat_prompt p = make_prompt(chat, template, engine);
    assert_int_equal(p.n_images, 2);
    assert_int_equal(count_tokens(&p, IMAGE), 2);
    qn_chat_prompt_deinit(&p);
    // Printed without pictures, and therefore not to be answered again.
    ASSERT_OK(qn_chat_print_messages(&printed, chat, &err));
    assert_null(strstr(printed, "base64"));
    ASSERT_OK(qn_chat_set_messages(chat, printed, strlen(printed), NULL, &err));
    qn_chat_prompt none = QN_INIT(qn_chat_prompt);
    ASSERT_FAILS(
        qn_chat_make_prompt(&none, chat, template, qn_engine_tokenizer(engine), NULL, &err),
        QN_ARGUMENT, "message 0: the picture of its image is not there");
    static const char far[] = "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\", "
                              "\"image_url\": {\"url\": \"https://example.com/a.png\"}}]}]";
    ASSERT_FAILS(qn_chat_set_messages(chat, far, sizeof far - 1, NULL, &err), QN_ARGUMENT,
                 "messages: message 0, part 0: an image at 'https://example.com/a.png'");
    qn_free(printed);
    qn_chat_destroy(chat);
    qn_template_destroy(template);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_the_references),
        cmocka_unit_test(logits_from_the_references_pixels),
        cmocka_unit_test(chunks_threads_and_devices_change_no_bit),
        cmocka_unit_test(answers_are_those_without_a_cache),
        cmocka_unit_test(sessions_have_the_logits_of_the_whole_text),
        cmocka_unit_test(a_second_turn_computes_only_what_is_new),
        cmocka_unit_test(states_have_their_images),
        cmocka_unit_test(speculation_changes_no_token),
        cmocka_unit_test(the_prediction_head_sees_images),
        cmocka_unit_test(rows_of_a_batch_are_the_answers_alone),
        cmocka_unit_test(stop_flags_end_the_encoding),
        cmocka_unit_test(steps_with_images_are_recorded_and_replayed),
        cmocka_unit_test(several_images_are_expanded_and_read),
        cmocka_unit_test(wrong_numbers_of_image_tokens_are_errors),
        cmocka_unit_test(images_need_a_tower_that_fits),
        cmocka_unit_test(images_come_from_files_bytes_and_urls),
        cmocka_unit_test(messages_have_images),
        cmocka_unit_test(conversations_hold_so_many_images),
        cmocka_unit_test(images_of_a_request_share_their_pixels),
        cmocka_unit_test(messages_in_json_have_data_urls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

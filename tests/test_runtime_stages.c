// Layers divided among devices: every result is what one device computes, to the bit.
#include "families.h"
#include "format_files.h"
#include "model_writer.h"

#include "core/mem.h"
#include "ir/cut.h"
#include "runtime/engine.h"

enum { N_IDS = 90 };

// Logits and hidden rows of a prompt, then a few decode steps.
typedef struct outcome {
    qn_logits whole;
    float *steps;
    size_t n_steps;
} outcome;

static outcome live(const char *family, const char *device) {
    qn_err err;
    outcome o = {.whole = QN_INITIALIZER(qn_logits)};
    int32_t ids[N_IDS];
    qn_session *s;
    const float *logits;
    qn_engine *engine = family_open(family, &QN_INIT(qn_engine_opts, .device = device));
    const size_t vocab = (size_t)engine_info(engine).n_vocab;
    random_ids(ids, N_IDS, (int64_t)vocab, 11);
    const qn_logits_opts opts =
        QN_INIT(qn_logits_opts, .all_rows = true, .hidden = true, .chunk = 32);
    ASSERT_OK(qn_engine_logits(&o.whole, engine, ids, N_IDS, &opts, &err));
    ASSERT_OK(qn_session_create(&s, engine, &QN_INIT(qn_session_opts, .context = 256, .chunk = 40),
                                &err));
    ASSERT_OK(qn_session_prefill(&logits, s, ids, 70, &err));
    for (size_t i = 0; i < 6; i++) {
        ASSERT_OK(qn_session_feed(&logits, s, ids[70 + i], &err));
        o.steps = qn_realloc(o.steps, (i + 1) * vocab, sizeof *o.steps);
        memcpy(o.steps + i * vocab, logits, vocab * sizeof *logits);
    }
    o.n_steps = 6 * vocab;
    qn_session_destroy(s);
    qn_engine_close(engine);
    return o;
}

static void free_outcome(outcome *o) {
    qn_logits_deinit(&o->whole);
    qn_free(o->steps);
}

static void assert_same(const outcome *want, const outcome *got) {
    assert_int_equal(want->whole.n_rows, got->whole.n_rows);
    assert_memory_equal(want->whole.logits, got->whole.logits,
                        (size_t)(want->whole.n_rows * want->whole.n_vocab) * sizeof(float));
    assert_int_equal(want->whole.n_hidden, got->whole.n_hidden);
    assert_memory_equal(want->whole.hidden, got->whole.hidden,
                        (size_t)(want->whole.n_hidden * want->whole.n_tokens * want->whole.width) *
                            sizeof(float));
    assert_int_equal(want->n_steps, got->n_steps);
    assert_memory_equal(want->steps, got->steps, want->n_steps * sizeof(float));
}

static void layers_on_several_devices_give_the_same_bits(void **state) {
    (void)state;
    static const char *const lists[] = {"cpu,cpu", "ref,cpu", "cpu:portable,ref"};
    for (size_t f = 0; f < N_FAMILIES; f++) {
        outcome want = live(families[f], NULL);
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            outcome got = live(families[f], lists[i]);
            assert_same(&want, &got);
            free_outcome(&got);
        }
        free_outcome(&want);
    }
}

static void bad_lists_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *list, *word;
    } bad[] = {{"abacus", "no device 'abacus'; there are cpu, ref, cuda"},
               {"cpu,", "the name is empty"},
               {"cpu:avx1024", "portable"},
               {"ref:fast", "ref"},
               {"cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu,cpu", "layers"},
               {"0123456789012345678901234567890123456789012345678901234567890123456789", "name"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char path[256];
        qn_err err = {0};
        qn_engine *engine = NULL;
        const qn_engine_opts opts = QN_INIT(qn_engine_opts, .device = bad[i].list);
        ASSERT_FAILS(qn_engine_open(&engine, family_path(path, sizeof path, "qwen3"), &opts, &err),
                     QN_ARGUMENT, bad[i].word);
        assert_null(engine);
    }
}

// Every node of a model is in one stage; what goes from one to the next are rows of the stream.
static void a_cut_loses_nothing(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_err err;
        qn_engine *engine = family_open(families[f], &QN_INIT(qn_engine_opts, .no_weights = true));
        const qn_graph *graph = &engine->model->graph;
        const int64_t n_layers = engine->model->hparams->layers;
        size_t n_nodes = 0, n_computed = 0, n_outputs = 0;
        for (size_t i = 0; i < graph->n_nodes; i++)
            n_nodes += qn_op_get(graph->nodes[i].op)->class_of != QN_CLASS_LEAF;
        for (int64_t l = 0; l < n_layers; l++) {
            qn_graph stage = {0};
            ASSERT_OK(qn_graph_cut(&stage, graph, l, l + 1, n_layers, &err));
            ASSERT_OK(qn_graph_verify(&stage, &err));
            for (size_t i = 0; i < stage.n_nodes; i++)
                n_computed += qn_op_get(stage.nodes[i].op)->class_of != QN_CLASS_LEAF;
            for (size_t i = 0; i < stage.n_outputs; i++)
                n_outputs += strncmp(stage.outputs[i].name, QN_CUT_NAME, 4) != 0;
            qn_graph_deinit(&stage);
        }
        assert_int_equal(n_computed, n_nodes);
        assert_int_equal(n_outputs, graph->n_outputs);
        qn_engine_close(engine);
    }
}

// Each device has a plan, and all of them are shown.
static void every_plan_is_shown(void **state) {
    (void)state;
    qn_err err;
    char *text = NULL;
    qn_engine *engine = family_open(
        "qwen3", &QN_INIT(qn_engine_opts, .no_weights = true, .device = "cpu:portable,ref"));
    ASSERT_OK(qn_engine_graph(&text, engine, &QN_INIT(qn_graph_opts, .stage = QN_STAGE_LOW), &err));
    assert_non_null(strstr(text, "cpu:portable"));
    assert_non_null(strstr(text, "ref"));
    assert_non_null(strstr(text, "logits"));
    qn_free(text);
    text = NULL;
    const qn_graph_opts drawn = QN_INIT(qn_graph_opts, .stage = QN_STAGE_LOW, .form = QN_GRAPH_SVG);
    ASSERT_FAILS(qn_engine_graph(&text, engine, &drawn, &err), QN_UNSUPPORTED, "not of 2");
    // Passes are those of one device.
    ASSERT_FAILS(
        qn_engine_graph(&text, engine, &QN_INIT(qn_graph_opts, .stage = QN_STAGE_MID), &err),
        QN_UNSUPPORTED, "needs one device, got cpu:portable,ref");
    ASSERT_FAILS(qn_engine_report(&text, engine, QN_REPORT_DISPATCH, &err), QN_UNSUPPORTED,
                 "one device");
    qn_engine_close(engine);
}

// A model of 16 equal layers, each on a device of its own.
static void a_long_list_is_told_whole(void **state) {
    enum { LAYERS = 16 };
    qn_err err;
    qn_engine *engine = NULL;
    char edit[2 * MODEL_NAME + 32], list[LAYERS * 16] = "cpu:portable";
    model_file *m = model_load(TEST_DATA "/mini/qwen3/qwen3-bf16.gguf");
    const size_t n = m->n_tensors;
    for (size_t i = 0; i < n; i++) {
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "%s", m->tensors[i].name);
        for (int l = 2; l < LAYERS && strncmp(name, "blk.0.", 6) == 0; l++) {
            snprintf(edit, sizeof edit, "copy %s blk.%d.%s", name, l, name + 6);
            model_edit(m, edit);
        }
    }
    model_edit(m, "key qwen3.block_count u32 16");
    for (int l = 1; l < LAYERS; l++) strcat(list, ",cpu:portable");
    const path_name path = in_folder(state, "deep.gguf");
    model_write_gguf(m, path.text);
    model_free(m);
    ASSERT_OK(qn_engine_open(&engine, path.text,
                             &QN_INIT(qn_engine_opts, .no_weights = true, .device = list), &err));
    assert_string_equal(engine_info(engine).device, list);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_on_several_devices_give_the_same_bits),
        cmocka_unit_test(bad_lists_are_refused),
        cmocka_unit_test(a_cut_loses_nothing),
        cmocka_unit_test(every_plan_is_shown),
        FOLDER_TEST(a_long_list_is_told_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

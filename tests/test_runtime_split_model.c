// What the cost model says of a model is what the compiler makes of it and what ranks send:
// exchanges and weights of the pass `shard`, calls and bytes of steps that are run.
#include "families.h"
#include "threads_ranks.h"

#include "core/mem.h"
#include "make/synth.h"
#include "passes/passes.h"
#include "runtime/engine.h"
#include "runtime/split_model.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

static qn_split_model read_model(const qn_engine *engine) {
    qn_split_model model;
    qn_err err;
    const qn_split_basis basis = {.backend = engine->stages[0].device->backend,
                                  .n_layers = engine->model->hparams->layers,
                                  .cache_type = engine->cache_type,
                                  .numerics = engine->opts.numerics};
    ASSERT_OK(qn_split_model_read(&model, engine->graph, &basis, &err));
    return model;
}

// --- the pass ------------------------------------------------------------------------------------

// Large shapes are opened from the header of their file; a few weights are looked at: 1.0.
static int64_t read_header(void *arg, void *to, size_t n, int64_t at) {
    static const unsigned char one[] = {0x00, 0x00, 0x80, 0x3f};
    const qn_buf *header = arg;
    for (size_t i = 0; i < n; i++) {
        const size_t place = (size_t)at + i;
        ((unsigned char *)to)[i] =
            place < header->size ? (unsigned char)header->data[place] : one[place % sizeof one];
    }
    return (int64_t)n;
}

static const char *const shapes[] = {"qwen3-0.6b",    "gemma3-1b",    "qwen3-30b-a3b",
                                     "llama3.1-405b", "qwen3.5-0.8b", "qwen3.5-4b"};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static qn_engine *open_any(size_t i, qn_buf *header, qn_numerics numerics) {
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true, .numerics = numerics);
    qn_model_file file = {.name = "model.gguf", .read = read_header, .arg = header};
    qn_engine *engine = NULL;
    qn_err err;
    if (i < N_FAMILIES) return family_open(families[i], &opts);
    ASSERT_OK(qn_synth_header(header, &file.size, shapes[i - N_FAMILIES], "Q4_K_M", &err));
    ASSERT_OK(qn_engine_open_files(&engine, &file, 1, &opts, &err));
    return engine;
}

typedef struct tally {
    int64_t gathers, bytes, weights;
} tally;

static int64_t elements(const qn_shape *shape) {
    int64_t n = 1;
    for (int d = 0; d < shape->n_dims; d++) n *= shape->dims[d].n;
    return n;
}

// Exchanges that the embedding does not make, bytes of one row of each; weights of this rank.
static tally count_graph(const qn_graph *graph, const qn_backend *backend) {
    tally t = {0};
    for (size_t i = 0; i < graph->n_nodes; i++) {
        const qn_node *node = &graph->nodes[i];
        const qn_value *v = &graph->values[node->out[0]];
        const qn_type_info *type = qn_type_get(v->type);
        if (node->op == QN_OP_PARAM) t.weights += elements(&v->shape) / type->block * type->bytes;
        if (!qn_node_gathers(node) || (node->n_in > 1 && node->in[1] >= 0)) continue;
        const qn_attrs *a = &node->attrs;
        const int64_t copies = elements(&v->shape) / v->shape.dims[0].n / a->length;
        t.gathers++;
        t.bytes += copies * (a->form == QN_WORD_f32 ? (int64_t)sizeof(float) * a->length
                                                    : backend->row_bytes(a->form, a->length));
    }
    return t;
}

static tally count_model(const qn_split_model *model, int n, int r) {
    qn_split_share share;
    tally t = {0};
    qn_split_tensor_share(&share, model, n, r);
    t.weights = share.weights;
    for (int64_t i = 0; i <= model->n_layers; i++) {
        const qn_split_layer *l = i < model->n_layers ? &model->layers[i] : &model->head;
        t.gathers += l->n_gathers;
        for (int g = 0; g < l->n_gathers; g++) t.bytes += qn_split_row_bytes(&l->gathers[g], n);
    }
    return t;
}

static void compare(const char *name, const qn_engine *engine, int n) {
    qn_split_model model = read_model(engine);
    for (int r = 0; r < n; r += n - 1) { // the first and the last
        qn_graph graph = {0};
        qn_err err;
        const qn_pass_opts opts = {.numerics = engine->opts.numerics,
                                   .fine_layers = qn_passes_fine_layers(engine->graph),
                                   .rank = r,
                                   .n_ranks = n};
        ASSERT_OK(qn_passes_run(&graph, engine->graph, &opts, NULL, &err));
        const tally want = count_graph(&graph, engine->stages[0].device->backend);
        const tally got = count_model(&model, n, r);
        if (got.gathers != want.gathers || got.bytes != want.bytes)
            fail_msg("%s, rank %d of %d: %lld exchanges of %lld bytes, the pass has %lld of %lld",
                     name, r, n, (long long)got.gathers, (long long)got.bytes,
                     (long long)want.gathers, (long long)want.bytes);
        // Vectors are counted whole, also by the first ranks of many, which have no heads to norm.
        if (r > 0 && llabs(got.weights - want.weights) > want.weights / 200 + (4 << 10))
            fail_msg("%s, rank %d of %d: %lld bytes of weights, the pass has %lld", name, r, n,
                     (long long)got.weights, (long long)want.weights);
        qn_graph_deinit(&graph);
    }
    qn_split_model_deinit(&model);
}

static void exchanges_are_those_of_the_pass(void **state) {
    (void)state;
    static const qn_numerics numerics[] = {QN_NUMERICS_EXACT, QN_NUMERICS_BALANCED,
                                           QN_NUMERICS_FAST};
    static const int counts[] = {2, 3, 4, 5, 8, 32};
    for (size_t i = 0; i < N_FAMILIES + N_SHAPES; i++) {
        const char *name = i < N_FAMILIES ? families[i] : shapes[i - N_FAMILIES];
        for (size_t k = 0; k < 3; k++) {
            qn_buf header = {0};
            qn_engine *engine = open_any(i, &header, numerics[k]);
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                compare(name, engine, counts[c]);
            qn_engine_close(engine);
            qn_buf_deinit(&header);
        }
    }
}

// --- what ranks send -----------------------------------------------------------------------------

// A table before that of the threads, which counts the bytes that all of them give away. What rank
// 0 has the result of was begun by the others before.
static const qn_ranks_api *inner;
static atomic_llong n_bytes;
static _Thread_local int own; // the rank that this thread is

static int count_broadcast(void **handle, qn_ranks_group *group, void *data, size_t bytes,
                           int root) {
    if (root == own) atomic_fetch_add(&n_bytes, (long long)bytes);
    return inner->broadcast(handle, group, data, bytes, root);
}

static int count_gather(void **handle, qn_ranks_group *group, void *to, const void *from,
                        const size_t *bytes) {
    atomic_fetch_add(&n_bytes, (long long)bytes[own]);
    return inner->all_gather(handle, group, to, from, bytes);
}

static int count_send(void **handle, qn_ranks_group *group, const void *data, size_t bytes, int to,
                      int tag) {
    atomic_fetch_add(&n_bytes, (long long)bytes);
    return inner->send(handle, group, data, bytes, to, tag);
}

typedef struct seat {
    qn_ranks_opts ranks;
    qn_engine_opts engine;
    char path[256];
    int rank;
    qn_status status;
    qn_err err;
    pthread_t thread;
} seat;

static void *follow(void *arg) {
    seat *s = arg;
    qn_engine *engine = NULL;
    own = s->rank;
    s->status = qn_engine_open_ranked(&engine, s->path, &s->engine, &s->ranks, &s->err);
    if (!s->status) s->status = qn_engine_follow(engine, &s->err);
    qn_engine_close(engine);
    return NULL;
}

enum { MAX_RANKS = 4, TOKENS = 6 };

static const char *equal_shares(int n) {
    static const char ones[] = "1,1,1,1";
    return &ones[2 * (MAX_RANKS - n)];
}

// Tokens one by one, each of them the best.
static void count_tokens(const qn_engine *engine, const char *name, qn_split split, int n) {
    qn_split_model model = read_model(engine);
    const qn_split_rank rank = {.read_gbs = 1, .f32_gflops = 1};
    const qn_split_rank all[MAX_RANKS] = {rank, rank, rank, rank};
    const qn_split_system system = {.ranks = all, .n = n, .link = {.gbs = 1}};
    const qn_step_size step = {.rows = 1, .seqs = 1, .outs = 1};
    qn_split_share shares[MAX_RANKS];
    qn_session *session = NULL;
    qn_err err;
    qn_split_cost want;
    if (split == QN_SPLIT_TENSORS) {
        want = qn_split_tensors(&model, &system, &step);
    } else {
        ASSERT_OK(qn_split_parse_shares(shares, equal_shares(n), n, model.n_layers, &err));
        want = qn_split_layers(&model, &system, shares, &step, 1);
    }
    ASSERT_OK(qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 64), &err));
    ASSERT_OK(qn_session_set_prompt(session, (int32_t[]){5, 6, 7}, 3, &err));
    int32_t token;
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts);
    ASSERT_OK(qn_session_step(&token, session, &greedy, &err));
    const long long bytes = atomic_load(&n_bytes);
    const int64_t messages = qn_ranks_get_counts(engine->team->ranks).messages;
    for (int i = 0; i < TOKENS; i++) ASSERT_OK(qn_session_step(&token, session, &greedy, &err));
    const double got_bytes = (double)(atomic_load(&n_bytes) - bytes) / TOKENS;
    const double got_messages =
        (double)(qn_ranks_get_counts(engine->team->ranks).messages - messages) / TOKENS;
    if (got_bytes != want.bytes || got_messages != want.messages)
        fail_msg("%s, %s on %d: %g messages and %g bytes a token, predicted are %g and %g", name,
                 split == QN_SPLIT_TENSORS ? "tensors" : "layers", n, got_messages, got_bytes,
                 want.messages, want.bytes);
    qn_session_destroy(session);
    qn_split_model_deinit(&model);
}

static void count_split(const char *family, qn_split split, int n) {
    threads_world *world = threads_world_create(&(threads_world_opts){.n = n});
    assert_non_null(world);
    inner = threads_world_api(world);
    qn_ranks_api counting = *inner;
    counting.broadcast = count_broadcast;
    counting.all_gather = count_gather;
    counting.send = count_send;
    seat seats[MAX_RANKS];
    for (int r = 0; r < n; r++) {
        seats[r] =
            (seat){.ranks = {.api = &counting, .api_arg = threads_world_seat(world, r)},
                   .engine = QN_INIT(qn_engine_opts, .n_threads = 1, .split = split,
                                     .shares = split == QN_SPLIT_LAYERS ? equal_shares(n) : NULL),
                   .rank = r};
        family_path(seats[r].path, sizeof seats[r].path, family);
        if (r) assert_int_equal(pthread_create(&seats[r].thread, NULL, follow, &seats[r]), 0);
    }
    qn_engine *engine = NULL;
    qn_err err;
    own = 0;
    ASSERT_OK(
        qn_engine_open_ranked(&engine, seats[0].path, &seats[0].engine, &seats[0].ranks, &err));
    count_tokens(engine, family, split, n);
    qn_engine_close(engine);
    for (int r = 1; r < n; r++) {
        pthread_join(seats[r].thread, NULL);
        if (seats[r].status) fail_msg("rank %d: %s", r, seats[r].err.message);
    }
    threads_world_destroy(world);
}

static void bytes_are_those_that_are_sent(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        for (int n = 2; n <= MAX_RANKS; n++) {
            qn_engine *engine =
                family_open(families[f], &QN_INIT(qn_engine_opts, .no_weights = true));
            const bool has_layers = engine_info(engine).n_layers >= n;
            qn_engine_close(engine);
            count_split(families[f], QN_SPLIT_TENSORS, n);
            if (has_layers) count_split(families[f], QN_SPLIT_LAYERS, n);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exchanges_are_those_of_the_pass),
        cmocka_unit_test(bytes_are_those_that_are_sent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

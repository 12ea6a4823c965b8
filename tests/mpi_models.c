// A program that mpirun starts several times (split_test.sh): every model on these ranks, by both
// splits or one, computes what rank 0 computes alone.
//
//   mpi_models both|layers|tensors [MODEL...]     besides those of families.h
#include "split_life.h"

#include <stdlib.h>

static qn_engine_opts options(qn_split split) {
    static const char ones[] = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";
    static char shares[sizeof ones];
    const char *size = getenv("OMPI_COMM_WORLD_SIZE");
    snprintf(shares, sizeof shares, "%.*s", size ? 2 * atoi(size) - 1 : 1, ones);
    return QN_INIT(qn_engine_opts, .split = split, .n_threads = 1,
                   .shares = split == QN_SPLIT_LAYERS ? shares : NULL);
}

// False on ranks that follow: they have no results.
static bool live_on_ranks(split_life *out, const char *path, qn_split split) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    const qn_engine_opts opts = options(split);
    const bool follows = rank && atoi(rank) > 0;
    qn_err err = {0};
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    if (follows)
        ASSERT_OK(qn_engine_follow(engine, &err));
    else
        *out = life_of(engine);
    qn_engine_close(engine);
    return !follows;
}

enum { N_SPLITS = 2 };
static const struct {
    qn_split split;
    const char *name;
} splits[N_SPLITS] = {{QN_SPLIT_LAYERS, "layers"}, {QN_SPLIT_TENSORS, "tensors"}};
static const char *wanted;

static bool is_wanted(int i) {
    return strcmp(wanted, "both") == 0 || strcmp(wanted, splits[i].name) == 0;
}

static void check(const char *model) {
    split_life got[N_SPLITS];
    char path[256];
    qn_err err = {0};
    qn_engine *engine = NULL;
    bool leads = true;
    family_path(path, sizeof path, model);
    for (int i = 0; i < N_SPLITS; i++) {
        if (is_wanted(i)) leads = live_on_ranks(&got[i], path, splits[i].split);
    }
    if (!leads) return;
    ASSERT_OK(qn_engine_open(&engine, path, NULL, &err));
    split_life want = life_of(engine);
    qn_engine_close(engine);
    print_message("%s\n", model);
    for (int i = 0; i < N_SPLITS; i++) {
        if (!is_wanted(i)) continue;
        assert_same_life(&want, &got[i], splits[i].name);
        life_deinit(&got[i]);
    }
    life_deinit(&want);
}

static char **models;
static int n_models;

static void models_on_ranks_give_the_same_bits(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) check(families[f]);
    for (int i = 0; i < n_models; i++) check(models[i]);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_on_ranks_give_the_same_bits)};
    if (argc < 2) return 2;
    wanted = argv[1];
    models = argv + 2;
    n_models = argc - 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

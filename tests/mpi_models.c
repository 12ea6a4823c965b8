// A program that mpirun starts several times (split_test.sh): every model on these ranks, by one
// split, computes what rank 0 computes alone.
//
//   mpi_models tensors|layers [MODEL...]     without models: those of families.h
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

static void check(const char *model, qn_split split) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    const qn_engine_opts opts = options(split);
    char path[256];
    qn_err err = {0};
    qn_engine *engine = NULL;
    family_path(path, sizeof path, model);
    ASSERT_OK(qn_engine_open(&engine, path, &opts, &err));
    if (rank && atoi(rank) > 0) {
        ASSERT_OK(qn_engine_follow(engine, &err));
        qn_engine_close(engine);
        return;
    }
    split_life got = life_of(engine);
    qn_engine_close(engine);
    ASSERT_OK(qn_engine_open(&engine, path, NULL, &err));
    split_life want = life_of(engine);
    qn_engine_close(engine);
    assert_same_life(&want, &got, model);
    life_deinit(&want);
    life_deinit(&got);
}

static qn_split split;
static char **models;
static int n_models;

static void models_on_ranks_give_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; i < n_models; i++) check(models[i], split);
    for (size_t f = 0; f < N_FAMILIES && n_models == 0; f++) check(families[f], split);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(models_on_ranks_give_the_same_bits)};
    if (argc < 2) return 2;
    split = argv[1][0] == 'l' ? QN_SPLIT_LAYERS : QN_SPLIT_TENSORS;
    models = argv + 2;
    n_models = argc - 2;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

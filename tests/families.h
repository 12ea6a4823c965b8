// The small models of tests/data/mini that every promise is tested on, and ids to feed them.
#ifndef QN_TESTS_FAMILIES_H
#define QN_TESTS_FAMILIES_H

#include "testing.h"

#include <stdio.h>

// The float families, then files whose weights are integers.
static const char *const families[] = {"llama32",
                                       "llama_untied",
                                       "qwen3",
                                       "qwen3_moe",
                                       "gemma",
                                       "gemma2",
                                       "gemma2_scalar",
                                       "gemma3",
                                       "qwen35",
                                       "qwen35_moe",
                                       TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
                                       MODELS "/quern-hybrid-Q8_0.gguf"};
enum { N_FAMILIES = sizeof families / sizeof families[0] };

static inline const char *family_path(char *to, size_t size, const char *family) {
    snprintf(to, size, "%s%s", family[0] == '/' ? "" : TEST_DATA "/mini/", family);
    return to;
}

#ifdef TEST_TEAM // as TEST_SPLIT says, on several ranks
#include "team_rig.h"

static inline qn_engine *family_open(const char *family, const qn_engine_opts *opts) {
    char path[256];
    qn_err err;
    qn_engine *engine = NULL;
    const team_opts team = team_from_environment();
    // What ranks do not have: several devices each, packed weights in a cache folder.
    const bool is_alone = opts && (opts->no_weights || opts->reference || opts->cache_dir ||
                                   (opts->device && strchr(opts->device, ',')));
    const bool is_shared = team.n_ranks && !is_alone;
    family_path(path, sizeof path, family);
    if (is_shared)
        ASSERT_OK(team_open(&engine, path, opts, &team, &err));
    else
        ASSERT_OK(qn_engine_open(&engine, path, opts, &err));
    return engine;
}
#else
static inline qn_engine *family_open(const char *family, const qn_engine_opts *opts) {
    char path[256];
    qn_err err;
    qn_engine *engine = NULL;
    ASSERT_OK(qn_engine_open(&engine, family_path(path, sizeof path, family), opts, &err));
    return engine;
}
#endif

// The next number of a small generator of its own; every test is seeded.
static inline uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

// n ids of a vocabulary, by seed.
static inline void random_ids(int32_t *to, size_t n, int64_t n_vocab, uint64_t seed) {
    uint64_t state = seed * 2654435761u + 1;
    for (size_t i = 0; i < n; i++) to[i] = (int32_t)(next_random(&state) % (uint64_t)n_vocab);
}

#endif

#include "team_rig.h"

#include "faulty_ranks.h"
#include "threads_ranks.h"

#include "core/mem.h"
#include "runtime/engine.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 16, MAX_PATH = 512 };

typedef struct rank {
    struct team *team;
    int number;
    faulty_ranks faulty;
    pthread_t thread;
    qn_status status;
    qn_err err;
} rank;

typedef struct team {
    team_opts opts;
    qn_engine_opts engine, odd;
    char path[MAX_PATH], shares[2 * MAX_RANKS];
    threads_world *world;
    rank ranks[MAX_RANKS];
    struct team *next;
} team;

// Tests open and close engines wherever they like; their threads are joined at the end.
static team *teams;

static const qn_engine_opts *engine_opts(const rank *r) {
    const team *t = r->team;
    return t->opts.odd_opts && r->number == t->opts.n_ranks - 1 ? &t->odd : &t->engine;
}

static qn_ranks_opts ranks_opts(rank *r) {
    const team_opts *o = &r->team->opts;
    const bool is_faulty = r->number == o->fail_rank;
    r->faulty = (faulty_ranks){.inner = threads_world_api(r->team->world),
                               .inner_arg = threads_world_seat(r->team->world, r->number),
                               .seed = o->seed ? o->seed * 31 + (uint64_t)r->number : 0,
                               // By tensors there are hundreds of messages for each by layers.
                               .max_delay_us = o->split == QN_SPLIT_TENSORS ? 20 : 200,
                               .fail_at = is_faulty ? o->fail_at : 0,
                               .end_at = is_faulty ? o->end_at : 0,
                               .die = threads_rank_end};
    return (qn_ranks_opts){.api = faulty_ranks_api(&r->faulty),
                           .api_arg = &r->faulty,
                           .timeout_ms = engine_opts(r)->rank_timeout_ms};
}

static void *follow(void *arg) {
    rank *r = arg;
    qn_engine *engine = NULL;
    const team *t = r->team;
    const qn_ranks_opts opts = ranks_opts(r);
    const bool is_odd = t->opts.odd_path && r->number == t->opts.n_ranks - 1;
    r->status = qn_engine_open_ranked(&engine, is_odd ? t->opts.odd_path : t->path, engine_opts(r),
                                      &opts, &r->err);
    if (!r->status) r->status = qn_engine_follow(engine, &r->err);
    qn_engine_close(engine);
    return NULL;
}

qn_status team_open(qn_engine **out, const char *path, const qn_engine_opts *opts,
                    const team_opts *want, qn_err *err) {
    static const qn_engine_opts none = QN_INITIALIZER(qn_engine_opts);
    team *t = calloc(1, sizeof *t);
    if (!t) abort();
    t->opts = *want;
    t->engine = opts ? *opts : none;
    t->engine.split = want->split;
    // Equal ones: to measure speeds takes its time.
    static const char ones[] = "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1";
    snprintf(t->shares, sizeof t->shares, "%.*s", 2 * want->n_ranks - 1, ones);
    const bool has_shares = want->split == QN_SPLIT_LAYERS && !want->is_measured;
    t->engine.shares = want->shares ? want->shares : has_shares ? t->shares : NULL;
    if (!t->engine.n_threads) t->engine.n_threads = 1;
    t->odd = want->odd_opts ? *want->odd_opts : t->engine;
    if (!t->odd.split) t->odd.split = t->engine.split;
    if (!t->odd.shares) t->odd.shares = t->engine.shares;
    if (!t->odd.n_threads) t->odd.n_threads = 1;
    snprintf(t->path, sizeof t->path, "%s", path);
    t->world = threads_world_create(
        &(threads_world_opts){.n = want->n_ranks, .is_synchronous = want->is_synchronous});
    t->next = teams;
    teams = t;
    for (int i = 0; i < want->n_ranks; i++) {
        t->ranks[i] = (rank){.team = t, .number = i};
        if (i && pthread_create(&t->ranks[i].thread, NULL, follow, &t->ranks[i])) abort();
    }
    const qn_ranks_opts lead = ranks_opts(&t->ranks[0]);
    return qn_engine_open_ranked(out, path, &t->engine, &lead, err);
}

int team_wait(void) {
    int n_failed = 0;
    while (teams) {
        team *t = teams;
        teams = t->next;
        for (int i = 1; i < t->opts.n_ranks; i++) {
            pthread_join(t->ranks[i].thread, NULL);
            n_failed += t->ranks[i].status != QN_OK;
        }
        threads_world_destroy(t->world);
        free(t);
    }
    return n_failed;
}

static void wait_at_exit(void) {
    if (team_wait() == 0) return;
    fprintf(stderr, "a rank failed\n");
    _Exit(1);
}

team_opts team_from_environment(void) {
    static bool is_registered;
    const char *text = getenv("TEST_SPLIT"), *colon = text ? strchr(text, ':') : NULL;
    if (!colon) return (team_opts){0};
    if (!is_registered) (void)atexit(wait_at_exit);
    is_registered = true;
    return (team_opts){.split = text[0] == 'l' ? QN_SPLIT_LAYERS : QN_SPLIT_TENSORS,
                       .n_ranks = atoi(colon + 1),
                       .seed = 5};
}

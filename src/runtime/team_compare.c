// Whether ranks have the same model and want the same. What they must agree in is a table; each
// writes its values as people read them, so that a difference can be told.
#include "runtime/engine.h"
#include "runtime/identity.h"

#include "core/mem.h"
#include "passes/passes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LONGEST = 128, SHOWN = 64 };

typedef struct subject {
    const qn_engine *engine;
    uint64_t model; // its hash
} subject;

static uint64_t hash_text(const char *text) {
    uint64_t hash = 0;
    for (const char *at = text; *at; at++) hash = qn_identity_mix(hash, (unsigned char)*at, 1);
    return hash;
}

// What is too long is cut, and told apart by a hash.
static void say(char *to, const char *text) {
    if (strlen(text) < LONGEST)
        memcpy(to, text, strlen(text) + 1);
    else
        snprintf(to, LONGEST, "%.*s... (%016" PRIx64 ")", SHOWN, text, hash_text(text));
}

static void say_model(char *to, const subject *s) {
    const qn_model *model = s->engine->model;
    snprintf(to, LONGEST, "%.*s of %lld layers (%016" PRIx64 ")", SHOWN, model->family->arch,
             (long long)model->hparams->layers, s->model);
}

static void say_adapters(char *to, const subject *s) {
    const int64_t n = s->engine->model->n_sets;
    uint64_t hash = 0;
    for (int64_t i = 0; i < n; i++) hash = qn_identity_mix(hash, s->engine->adapter_hashes[i], 1);
    if (n)
        snprintf(to, LONGEST, "%lld (%016" PRIx64 ")", (long long)n, hash);
    else
        say(to, "none");
}

static void say_rope(char *to, const subject *s) {
    const qn_engine_opts *o = &s->engine->opts;
    if (s->engine->rope_hash)
        snprintf(to, LONGEST, "factor %g of context %lld (%016" PRIx64 ")", o->rope_factor,
                 (long long)o->rope_original, s->engine->rope_hash);
    else
        say(to, "that of the model's files");
}

static void say_split(char *to, const subject *s) {
    static const char *const words[] = {[QN_SPLIT_NONE] = "none",
                                        [QN_SPLIT_TENSORS] = "tensors",
                                        [QN_SPLIT_LAYERS] = "layers",
                                        [QN_SPLIT_AUTO] = "auto"};
    say(to, words[s->engine->opts.split]);
}

static void say_shares(char *to, const subject *s) {
    say(to, s->engine->opts.shares ? s->engine->opts.shares : "none");
}

static void say_numerics(char *to, const subject *s) {
    static const char *const words[] = {[QN_NUMERICS_EXACT] = "exact",
                                        [QN_NUMERICS_BALANCED] = "balanced",
                                        [QN_NUMERICS_FAST] = "fast",
                                        [QN_NUMERICS_TENSOR] = "tensor"};
    say(to, words[s->engine->opts.numerics]);
}

static void say_cache_type(char *to, const subject *s) {
    say(to, qn_kv_type_get(s->engine->cache_type)->name);
}

// Rounded rows look different on others, and by tensors ranks exchange them.
static void say_device(char *to, const subject *s) {
    const bool is_free = s->engine->opts.split == QN_SPLIT_LAYERS;
    say(to, is_free ? "any" : s->engine->stages[0].device->kind->name);
}

static void say_mtp(char *to, const subject *s) { say(to, s->engine->opts.mtp ? "yes" : "no"); }

static void say_dry_run(char *to, const subject *s) {
    say(to, s->engine->opts.no_weights ? "yes" : "no");
}

static void say_timeout(char *to, const subject *s) {
    snprintf(to, LONGEST, "%lld ms", (long long)qn_ranks_timeout(s->engine->team->ranks));
}

// They change what is gathered, and come from QN_SKIP or from a profile beside the weights, which
// may be another one on another machine.
static void say_passes(char *to, const subject *s) {
    const uint64_t skip = s->engine->skip | s->engine->profile.prefill.skip;
    char text[QN_PASSES_MAX * 32] = "";
    size_t used = 0;
    for (size_t i = 0; qn_pass_name(i) && used < sizeof text; i++) {
        if (skip & UINT64_C(1) << i)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? "," : "",
                                     qn_pass_name(i));
    }
    say(to, skip ? text : "none");
}

static void say_plans(char *to, const subject *s) {
    static const char *const words[] = {[QN_PLANS_AUTO] = "auto",
                                        [QN_PLANS_BUCKETED] = "bucketed",
                                        [QN_PLANS_EXACT] = "exact",
                                        [QN_PLANS_DYNAMIC] = "dynamic"};
    snprintf(to, LONGEST, "%s and %s", words[qn_engine_policy(s->engine, false)],
             words[qn_engine_policy(s->engine, true)]);
}

static const struct {
    const char *name;
    void (*say)(char *to, const subject *s);
} traits[] = {
    {"model", say_model},
    {"adapters", say_adapters},
    {"rope scaling", say_rope},
    {"split", say_split},
    {"shares of layers", say_shares},
    {"numerics", say_numerics},
    {"type of the KV cache", say_cache_type},
    {"kind of device", say_device},
    {"use of the prediction head", say_mtp},
    {"dry run", say_dry_run},
    {"rank timeout", say_timeout},
    {"passes that are left out", say_passes},
    {"plans for prefill and decode", say_plans},
};
enum { N_TRAITS = sizeof traits / sizeof *traits };

typedef struct likeness {
    char values[N_TRAITS][LONGEST];
} likeness;

static qn_status differ(const char *what, int rank, const char *own, const char *first,
                        qn_err *err) {
    return QN_FAIL(err, ARGUMENT, "ranks differ in the %s: rank %d has %.*s, rank 0 %.*s", what,
                   rank, LONGEST, own, LONGEST, first);
}

// Before anything whose size may be another one in another version.
qn_status qn_team_compare_versions(qn_team *team, qn_err *err) {
    enum { ROOM = 32 };
    char own[ROOM] = "", *all = qn_alloc((size_t)team->n_ranks, ROOM);
    if (!all) return QN_NOMEM(err, "ranks");
    snprintf(own, sizeof own, "%s", qn_version());
    qn_status status = qn_team_gather_equal(team, all, own, sizeof own, err);
    for (int r = 1; r < team->n_ranks && !status; r++) {
        char *other = all + r * ROOM;
        other[ROOM - 1] = '\0';
        if (strcmp(other, all) != 0) status = differ("version of Quern", r, other, all, err);
    }
    qn_free(all);
    return status;
}

static qn_status describe(likeness *out, const qn_engine *engine, qn_err *err) {
    subject s = {.engine = engine};
    QN_TRY(qn_identity_hash(&s.model, engine->source, engine->pool, err));
    for (size_t i = 0; i < N_TRAITS; i++) traits[i].say(out->values[i], &s);
    return QN_OK;
}

static qn_status compare(const likeness *all, int n, qn_err *err) {
    for (int r = 1; r < n; r++) {
        for (size_t i = 0; i < N_TRAITS; i++) {
            const char *own = all[r].values[i], *first = all[0].values[i];
            if (strncmp(own, first, LONGEST) == 0) continue;
            return differ(traits[i].name, r, own, first, err);
        }
    }
    return QN_OK;
}

qn_status qn_team_compare(qn_team *team, const qn_engine *engine, qn_status own, qn_err *err) {
    likeness *mine = qn_alloc(1, sizeof *mine), *all = qn_alloc((size_t)team->n_ranks, sizeof *all);
    qn_status status = own;
    if (!status) status = mine && all ? describe(mine, engine, err) : QN_NOMEM(err, "ranks");
    status = qn_ranks_agree_late(team->ranks, status, err);
    if (!status) status = qn_team_gather_equal(team, all, mine, sizeof *mine, err);
    if (!status) status = compare(all, team->n_ranks, err);
    qn_free(mine);
    qn_free(all);
    return status;
}

// What a token costs behind many others, as CSV: microseconds for one at each depth, as a whole, and
// of it the layer with the least and the one with the most attention, all recurrent ops, and all the
// rest. Attention over everything grows with the depth, over a window up to the window, recurrent
// layers and the rest not at all.
//
//   bench_depth [MODEL | SHAPE]...   files, or shapes as for `quern synth`; default: three tiny ones
#include "core/file.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { N_TOKENS = 32, N_RUNS = 5 };
static const int64_t depths[] = {64, 512, 4096};
enum { N_DEPTHS = sizeof depths / sizeof *depths };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

// Ends the program if the call failed; a temporary model is removed by then.
static void check(qn_status status, const qn_err *err) {
    if (!status) return;
    fprintf(stderr, "bench_depth: %s\n", err->message);
    exit(1);
}

enum { MAX_LAYERS = 256 };

// Nanoseconds that calls took since they were last cleared.
typedef struct sums {
    double attention[MAX_LAYERS], recurrent, rest;
    bool has_attention[MAX_LAYERS];
} sums;

static void add_call(void *arg, const qn_trace_event *e) {
    sums *s = arg;
    const double ns = (double)(e->end - e->begin);
    const bool is_attention = strncmp(e->op, "ATTEN", 5) == 0 || strcmp(e->op, "ATTEND") == 0;
    if (is_attention && e->layer >= 0 && e->layer < MAX_LAYERS) {
        s->attention[e->layer] += ns;
        s->has_attention[e->layer] = true;
    } else if (strcmp(e->op, "DELTA") == 0 || strcmp(e->op, "CONV") == 0) {
        s->recurrent += ns;
    } else {
        s->rest += ns;
    }
}

// The fastest of several runs, in seconds for one token; *parts are its sums.
static double time_token(qn_session *session, const int32_t *ids, int64_t depth, sums *traced,
                         sums *parts) {
    qn_err err = {0};
    const float *logits;
    qn_snapshot *snapshot;
    double best = 1e9;
    check(qn_session_prefill(&logits, session, ids, (size_t)depth, &err), &err);
    check(qn_session_checkpoint(&snapshot, session, &err), &err);
    for (int i = 0; i < N_RUNS; i++) {
        int32_t token;
        check(qn_session_restore(session, snapshot, &err), &err);
        check(qn_session_step(&token, session, NULL, &err), &err); // from scores that are there
        *traced = (sums){0};
        const double start = now();
        for (int k = 0; k < N_TOKENS; k++)
            check(qn_session_step(&token, session, NULL, &err), &err);
        const double seconds = (now() - start) / N_TOKENS;
        if (seconds < best) {
            best = seconds;
            *parts = *traced;
        }
    }
    qn_snapshot_destroy(snapshot);
    return best;
}

static void print_row(const char *name, const char *architecture, int64_t depth, double seconds,
                      const sums *parts) {
    double min = 0, max = 0;
    for (int l = 0; l < MAX_LAYERS; l++) {
        if (!parts->has_attention[l]) continue;
        if (min == 0 || parts->attention[l] < min) min = parts->attention[l];
        if (parts->attention[l] > max) max = parts->attention[l];
    }
    const double micro = 1e-3 / N_TOKENS;
    printf("%s,%s,%lld,%.1f,%.2f,%.2f,%.2f,%.1f\n", name, architecture, (long long)depth,
           seconds * 1e6, min * micro, max * micro, parts->recurrent * micro, parts->rest * micro);
}

static void measure(const char *name, qn_engine *engine) {
    qn_err err = {0};
    qn_engine_info info = QN_INIT(qn_engine_info);
    check(qn_engine_get_info(&info, engine, &err), &err);
    const int64_t room = info.context - N_TOKENS - 1;
    const int64_t max = room < depths[N_DEPTHS - 1] ? room : depths[N_DEPTHS - 1];
    sums traced = {0}, parts = {0};
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = max + N_TOKENS + 1, .kept = -1,
                                         .trace = add_call, .trace_arg = &traced);
    qn_session *session;
    int32_t *ids = calloc((size_t)opts.context, sizeof *ids);
    if (!ids) exit(1);
    for (int64_t i = 0; i < opts.context; i++)
        ids[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)info.n_vocab);
    check(qn_session_create(&session, engine, &opts, &err), &err);
    for (int i = 0; i < N_DEPTHS; i++) {
        const int64_t depth = depths[i] < max ? depths[i] : max;
        const double seconds = time_token(session, ids, depth, &traced, &parts);
        print_row(name, info.architecture, depth, seconds, &parts);
    }
    qn_session_destroy(session);
    free(ids);
}

static void run(const char *name) {
    char path[] = "/tmp/quern-depth-XXXXXX";
    qn_err err = {0};
    qn_engine *engine = NULL;
    const bool is_file = qn_path_is_file(name) || qn_path_is_folder(name);
    qn_status status = QN_OK;
    if (!is_file) {
        const int fd = mkstemp(path);
        if (fd < 0) exit(1);
        close(fd);
        status = qn_synth(name, "Q4_K_M", path, NULL, &err);
    }
    if (!status) status = qn_engine_open(&engine, is_file ? name : path, NULL, &err);
    if (!is_file) unlink(path); // the weights are in memory
    check(status, &err);
    measure(qn_path_name(name), engine);
    qn_engine_close(engine);
}

int main(int argc, char **argv) {
    static const char *const usual[] = {"tiny-qwen3", "tiny-gemma3", "tiny-qwen35"};
    printf("model,architecture,depth,us_per_token,attention_least,attention_most,recurrent,rest\n");
    for (int i = 1; i < argc; i++) run(argv[i]);
    for (size_t i = 0; argc < 2 && i < sizeof usual / sizeof *usual; i++) run(usual[i]);
    return 0;
}

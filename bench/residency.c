// Decoding with some of the experts in memory, for bench/experts-memory, which limits the memory of
// this program once the model is open: prints "open", waits for a line, reads a prompt, decodes
// sampled tokens, and prints one line of CSV.
//
//   bench_residency MODEL CACHE_DIR EXPERTS TOKENS [PROMPT]     EXPERTS 0: all, mapped
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static void stop(const char *why) {
    fprintf(stderr, "bench_residency: %s\n", why);
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void decode(qn_session *session, int n, uint64_t *hash, qn_err *err) {
    const qn_sample_opts sample = QN_INIT(qn_sample_opts, .temperature = 1, .seed = 1);
    for (int i = 0; i < n; i++) {
        int32_t token;
        if (qn_session_step(&token, session, &sample, err)) stop(err->message);
        *hash = (*hash ^ (uint64_t)token) * 1099511628211u;
    }
}

static void print(const qn_engine *engine, double prefill, double seconds, int n, uint64_t hash) {
    qn_err err;
    struct rusage used;
    qn_expert_stats s = QN_INIT(qn_expert_stats);
    if (qn_engine_expert_stats(&s, engine, -1, &err)) stop(err.message);
    getrusage(RUSAGE_SELF, &used);
    const int64_t all = s.hits + s.misses;
    printf("%lld,%lld,%.3f,%.2f,%.4f,%.1f,%.1f,%ld,%016llx\n", (long long)s.n_resident,
           (long long)s.n_experts, prefill, n / seconds, all ? (double)s.hits / (double)all : 1.0,
           (double)s.bytes_read / (1 << 20), (double)s.stall_ns * 1e-6, used.ru_majflt,
           (unsigned long long)hash);
}

int main(int argc, char **argv) {
    enum { MAX_PROMPT = 2048 };
    static int32_t ids[MAX_PROMPT];
    qn_err err;
    qn_engine *engine;
    qn_session *session;
    int32_t token;
    uint64_t hash = 14695981039346656037u;
    if (argc < 5) stop("MODEL CACHE_DIR EXPERTS TOKENS [PROMPT]");
    const int n = atoi(argv[4]), n_prompt = argc > 5 ? atoi(argv[5]) : 64;
    if (n < 1 || n_prompt < 1 || n_prompt > MAX_PROMPT) stop("TOKENS or PROMPT");
    for (int i = 0; i < n_prompt; i++) ids[i] = i * 7919 % 1000;
    const qn_engine_opts opts =
        QN_INIT(qn_engine_opts, .cache_dir = argv[2], .expert_budget = atoll(argv[3]));
    if (qn_engine_open(&engine, argv[1], &opts, &err)) stop(err.message);
    const qn_session_opts session_opts = QN_INIT(qn_session_opts, .context = n + n_prompt + 8);
    if (qn_session_create(&session, engine, &session_opts, &err)) stop(err.message);
    puts("open");
    fflush(stdout);
    if (getchar() == EOF) stop("no line came");
    const double start = now();
    if (qn_session_set_prompt(session, ids, (size_t)n_prompt, &err) ||
        qn_session_step(&token, session, NULL, &err))
        stop(err.message);
    const double middle = now();
    decode(session, n, &hash, &err);
    print(engine, middle - start, now() - middle, n, hash);
    qn_session_destroy(session);
    qn_engine_close(engine);
    return 0;
}

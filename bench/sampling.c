// Time to choose one token from a row of 151 936 scores, as CSV: the median over many rows, in
// microseconds, by the processor time of the thread. Rows are made here: a few likely tokens above a
// broad bell, as models give them.
#include "gen/logprobs.h"
#include "gen/chooser.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { N_VOCAB = 151936, N_ROWS = 16, N_RUNS = 201, N_TOKENS = 4096, N_TOP = 20 };

typedef struct setting {
    const char *name;
    qn_sample_opts opts;
    bool is_masked;
} setting;

static const setting settings[] = {
    {"greedy", {.temperature = 0}, false},
    {"greedy, one of two tokens allowed", {.temperature = 0}, true},
    {"temperature 0.8", {.temperature = 0.8f}, false},
    {"top_k 40, top_p 0.95, temperature 0.8",
     {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f},
     false},
    {"top_k 40, top_p 0.95, min_p 0.05, repeat_penalty 1.1",
     {.temperature = 0.8f, .top_k = 40, .top_p = 0.95f, .min_p = 0.05f, .repeat_penalty = 1.1f},
     false},
    {"top_p 0.95, temperature 0.8", {.temperature = 0.8f, .top_p = 0.95f}, false},
    {"min_p 0.05, temperature 1.2", {.temperature = 1.2f, .min_p = 0.05f}, false},
    {"top_n_sigma 1, temperature 1", {.temperature = 1, .top_n_sigma = 1}, false},
    {"typical_p 0.9, temperature 1", {.temperature = 1, .typical_p = 0.9f}, false},
    {"min_p 0.02, xtc 0.5, dry 0.8",
     {.temperature = 1, .min_p = 0.02f, .xtc_probability = 0.5f, .dry_multiplier = 0.8f},
     false},
    {"mirostat 2, temperature 1", {.temperature = 1, .mirostat = 2}, false},
    {"temperature 100 (nearly flat)", {.temperature = 100}, false},
};

static float rows[N_ROWS][N_VOCAB];
static int32_t tokens[N_TOKENS];
static uint32_t allowed[(N_VOCAB + 31) / 32];
static double times[N_RUNS];

static double next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(*state >> 11) * 0x1p-53;
}

static void make_data(void) {
    uint64_t state = 1;
    for (int r = 0; r < N_ROWS; r++) {
        for (int i = 0; i < N_VOCAB; i++) {
            double sum = 0;
            for (int k = 0; k < 4; k++) sum += next_random(&state);
            rows[r][i] = (float)((sum - 2) * 4);
        }
        for (int k = 0; k < 200; k++)
            rows[r][(int)(next_random(&state) * N_VOCAB)] = (float)(18 - 2 * log(1 + k));
    }
    for (int i = 0; i < N_TOKENS; i++) tokens[i] = (int32_t)(next_random(&state) * N_VOCAB);
    for (size_t i = 0; i < sizeof allowed / sizeof *allowed; i++) allowed[i] = 0x5A5A5A5A;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_times(const char *name) {
    qsort(times, N_RUNS, sizeof *times, compare);
    printf("\"%s\",%.1f,%.1f\n", name, times[N_RUNS / 2], times[N_RUNS * 9 / 10]);
}

static void stop(const qn_err *err) {
    fprintf(stderr, "bench_sampling: %s\n", err->message);
    exit(1);
}

static void measure(qn_chooser *chooser, const setting *s) {
    qn_err err;
    if (qn_chooser_set(chooser, &s->opts, &err)) stop(&err);
    for (int i = 0; i < N_RUNS; i++) {
        const qn_chooser_in in = {.logits = rows[i % N_ROWS],
                                  .tokens = tokens,
                                  .n_tokens = N_TOKENS,
                                  .n_prompt = N_TOKENS / 2,
                                  .position = (uint64_t)i,
                                  .allowed = s->is_masked ? allowed : NULL};
        int32_t token;
        const double start = now();
        if (qn_chooser_choose(&token, chooser, &in, &err)) stop(&err);
        times[i] = now() - start;
    }
    print_times(s->name);
}

static void measure_logprobs(void) {
    qn_token_logprob top[N_TOP];
    int64_t n_got;
    for (int i = 0; i < N_RUNS; i++) {
        const double start = now();
        (void)qn_logprobs_get(&n_got, top, N_TOP, rows[i % N_ROWS], N_VOCAB, tokens[i]);
        times[i] = now() - start;
    }
    print_times("log-probabilities, top 20");
}

int main(void) {
    qn_err err;
    qn_chooser *chooser;
    make_data();
    if (qn_chooser_create(&chooser, NULL, N_VOCAB, &err)) stop(&err);
    printf("setting,median_us,p90_us\n");
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) measure(chooser, &settings[i]);
    measure_logprobs();
    qn_chooser_destroy(chooser);
    return 0;
}

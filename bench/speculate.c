// What guessing ahead brings, as CSV: the bundled models over the tasks of models/tasks.jsonl, by
// skill and way of guessing. All ways must give the same tokens, else the program fails.
//
//   bench_speculate [TASKS]   tasks of each skill; default: 3
//
// The ways with a prediction head (mtp) are for the model that has one.
//
// tps: tokens a second after the prompt was read, the fastest of several rounds of each answer;
// accepted: share of the guessed tokens that were right; per_step: tokens of a step.
#include "core/json.h"
#include "core/mem.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS = 3, MAX_TASKS = 600, MAX_SKILLS = 16, CONTEXT = 2048 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void check(qn_status status, const qn_err *err) {
    if (!status) return;
    fprintf(stderr, "bench_speculate: %s\n", err->message);
    exit(1);
}

// --- tasks ---------------------------------------------------------------------------------------

typedef struct task {
    char skill[32];
    int32_t *ids; // (n)
    size_t n;
} task;

// The next `most` tasks of each skill.
static size_t read_tasks(task *to, const qn_tokenizer *tokenizer, int max) {
    qn_err err = {0};
    FILE *file = fopen(MODELS "/tasks.jsonl", "r");
    char *line = NULL;
    size_t room = 0, n = 0;
    ssize_t size;
    while (file && n < MAX_TASKS && (size = getline(&line, &room, file)) > 0) {
        json_t *json;
        check(qn_json_parse(&json, line, (size_t)size, false, "task", &err), &err);
        task *t = &to[n];
        snprintf(t->skill, sizeof t->skill, "%s",
                 json_string_value(json_object_get(json, "skill")));
        int before = 0;
        for (size_t i = 0; i < n; i++) before += strcmp(to[i].skill, t->skill) == 0;
        const char *prompt = json_string_value(json_object_get(json, "prompt"));
        if (before < max && prompt) {
            check(qn_tokenize(&t->ids, &t->n, tokenizer, prompt, strlen(prompt),
                              &QN_INIT(qn_tokenize_opts, .special = true), &err),
                  &err);
            n++;
        }
        json_decref(json);
    }
    free(line);
    if (file) fclose(file);
    return n;
}

// --- answers -------------------------------------------------------------------------------------

typedef struct way {
    const char *name;
    bool has_draft, has_lookup, has_head;
    int32_t fixed; // guesses; 0: as many as pay
} way;
static const way ways[] = {
    {"plain", false, false, false, 0},   {"draft", true, false, false, 0},
    {"lookup", false, true, false, 0},   {"both", true, true, false, 0},
    {"draft, 2", true, false, false, 2}, {"draft, 4", true, false, false, 4},
    {"draft, 8", true, false, false, 8}, {"lookup, 8", false, true, false, 8},
    {"mtp", false, false, true, 0},      {"mtp, lookup", false, true, true, 0},
    {"mtp, 1", false, false, true, 1},   {"mtp, 2", false, false, true, 2},
    {"mtp, 4", false, false, true, 4},
};
enum { N_WAYS = sizeof ways / sizeof *ways, N_WITHOUT_HEAD = 8 };

typedef struct figures {
    double seconds;
    qn_result result; // owned
} figures;

// A qn_event_fn: the clock runs from the first token on.
static bool begin_clock(void *arg, const qn_event *event) {
    double *began = arg;
    (void)event;
    if (*began == 0) *began = now();
    return true;
}

static figures run(qn_session *session, qn_session *draft, const task *t, const way *w,
                   const qn_sample_opts *sample) {
    qn_err err = {0};
    const qn_generate_opts opts =
        QN_INIT(qn_generate_opts, .sample = sample,
                .max_tokens = strcmp(t->skill, "stories") == 0 ? 320 : 100,
                .draft = w->has_draft ? draft : NULL, .lookup = w->has_lookup, .mtp = w->has_head,
                .draft_max = w->fixed, .draft_min = w->fixed);
    check(qn_session_set_prompt(session, t->ids, t->n, &err), &err);
    if (w->has_draft) { // its prompt is read with the other's, before the clock runs
        const float *scores;
        check(qn_session_prefill(&scores, draft, t->ids, t->n, &err), &err);
    }
    double began = 0;
    figures f = {.result = QN_INIT(qn_result)};
    check(qn_generate(&f.result, session, &opts, begin_clock, &began, &err), &err);
    f.seconds = now() - began;
    return f;
}

// --- the table -----------------------------------------------------------------------------------

typedef struct sums {
    double seconds, tokens, steps, guessed, accepted;
} sums;

static void add(sums *to, double seconds, const qn_result *r) {
    to->seconds += seconds;
    to->tokens += (double)r->n_tokens - 1;
    to->steps += (double)r->n_steps;
    to->guessed += (double)r->n_drafted;
    to->accepted += (double)r->n_accepted;
}

static void print_sums(const char *model, float temperature, const char *skill, const way *w,
                       const sums *s, const sums *plain) {
    if (s->tokens < 1) return;
    printf("%s,%g,%s,\"%s\",%.0f,%.0f,%.2f,%.2f,%.2f\n", model, (double)temperature, skill, w->name,
           s->tokens, s->tokens / s->seconds, s->seconds > 0 ? plain->seconds / s->seconds : 0,
           s->guessed > 0 ? s->accepted / s->guessed : 0, s->tokens / s->steps);
}

// All ways over all tasks; sums by skill and way, the last skill being all.
static void measure(const char *model, qn_session *session, qn_session *draft, size_t n_ways,
                    const task *tasks, size_t n, const qn_sample_opts *sample) {
    static sums table[MAX_SKILLS + 1][N_WAYS];
    const char *skills[MAX_SKILLS] = {0};
    memset(table, 0, sizeof table);
    for (size_t i = 0; i < n; i++) {
        size_t s = 0;
        while (skills[s] && strcmp(skills[s], tasks[i].skill) != 0) s++;
        skills[s] = tasks[i].skill;
        double best[N_WAYS];
        figures first[N_WAYS];
        for (int round = 0; round < ROUNDS; round++) {
            for (size_t w = 0; w < n_ways; w++) {
                const figures f = run(session, draft, &tasks[i], &ways[w], sample);
                if (round == 0) first[w] = f;
                if (round == 0 || f.seconds < best[w]) best[w] = f.seconds;
                if (f.result.n_tokens != first[0].result.n_tokens ||
                    memcmp(f.result.tokens, first[0].result.tokens,
                           f.result.n_tokens * sizeof(int32_t)) != 0) {
                    fprintf(stderr, "bench_speculate: task %zu: '%s' changes the answer\n", i,
                            ways[w].name);
                    exit(1);
                }
                if (round) free(f.result.tokens);
            }
        }
        for (size_t w = 0; w < n_ways; w++) {
            if (first[w].result.n_tokens < 2) continue;
            add(&table[s][w], best[w], &first[w].result);
            add(&table[MAX_SKILLS][w], best[w], &first[w].result);
        }
        for (size_t w = 0; w < n_ways; w++) free(first[w].result.tokens);
    }
    for (size_t s = 0; s <= MAX_SKILLS; s++) {
        for (size_t w = 0; w < n_ways; w++)
            print_sums(model, sample->temperature, s < MAX_SKILLS ? skills[s] : "all", &ways[w],
                       &table[s][w], &table[s][0]);
    }
}

int main(int argc, char **argv) {
    qn_err err = {0};
    static task tasks[MAX_TASKS];
    static const char *const models[] = {"quern-mini", "quern-hybrid"};
    const qn_sample_opts samples[] = {QN_INIT(qn_sample_opts),
                                      QN_INIT(qn_sample_opts, .temperature = 0.8f, .seed = 1)};
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = CONTEXT);
    qn_engine *engines[2], *draft_engine;
    qn_session *draft;
    check(qn_engine_open(&draft_engine, MODELS "/quern-draft-Q8_0.gguf", NULL, &err), &err);
    check(qn_session_create(&draft, draft_engine, &opts, &err), &err);
    const size_t n =
        read_tasks(tasks, qn_engine_tokenizer(draft_engine), argc > 1 ? atoi(argv[1]) : 3);
    printf("model,temperature,skill,way,tokens,tps,speedup,accepted,per_step\n");
    for (int m = 0; m < 2; m++) {
        char path[256];
        qn_session *session;
        snprintf(path, sizeof path, "%s/%s-Q8_0.gguf", MODELS, models[m]);
        const bool has_head = m == 1;
        check(qn_engine_open(&engines[m], path, &QN_INIT(qn_engine_opts, .mtp = has_head), &err),
              &err);
        check(qn_session_create(&session, engines[m], &opts, &err), &err);
        for (int i = 0; i < 2; i++)
            measure(models[m], session, draft, has_head ? N_WAYS : N_WITHOUT_HEAD, tasks, n,
                    &samples[i]);
        qn_session_destroy(session);
        qn_engine_close(engines[m]);
    }
    for (size_t i = 0; i < n; i++) qn_free(tasks[i].ids);
    qn_session_destroy(draft);
    qn_engine_close(draft_engine);
    return 0;
}

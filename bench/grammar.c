// Cost of grammars per token, as CSV, by the processor time of the thread: texts that fit a grammar
// are followed token by token, asking for the mask before each. `cold` is the first text of a new
// matcher, `warm` the texts after N_WARM others. Microseconds. The vocabulary is that of Qwen 3 (152 K
// tokens) if tools/fetch_tokenizers.sh brought it, and the bundled model's.
#define _GNU_SOURCE
#include "core/buf.h"
#include "core/file.h"
#include "core/str.h"
#include "gen/grammar/grammar.h"
#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { N_WARM = 20, N_TEXTS = 100, MAX_TIMES = 1 << 20 };

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

// --- texts ---------------------------------------------------------------------------------------

static void add_words(qn_buf *out, uint64_t *seed, size_t n) {
    static const char *const words[] = {
        "the",   "mill",  "stone", "grain", "f\xc3\xbcr", "water", "\xe6\x97\xa5\xe6\x9c\xac",
        "turns", "flour", "and",   "bread", "every",      "day",   "\\n",
        "again", "42",    "wheel"};
    for (size_t i = 0; i < n; i++)
        qn_buf_printf(out, "%s%s", i ? " " : "",
                      words[next_random(seed) % (sizeof words / sizeof *words)]);
}

static void add_record(qn_buf *out, uint64_t *seed) {
    static const char *const kinds[] = {"alpha", "beta", "gamma", "delta"};
    qn_buf_printf(out, "{\"id\": %u, \"name\": \"", next_random(seed) % 100000);
    add_words(out, seed, 1 + next_random(seed) % 4);
    qn_buf_printf(out, "\", \"kind\": \"%s\", \"score\": 0.%u, \"tags\": [",
                  kinds[next_random(seed) % 4], next_random(seed) % 1000);
    const size_t n = next_random(seed) % 4;
    for (size_t i = 0; i < n; i++) {
        qn_buf_printf(out, "%s\"", i ? ", " : "");
        add_words(out, seed, 1);
        qn_buf_text(out, "\"");
    }
    qn_buf_text(out, "], \"note\": \"");
    add_words(out, seed, 5 + next_random(seed) % 25);
    qn_buf_printf(out, "\", \"date\": \"20%02u-0%u-1%u\"}", next_random(seed) % 100,
                  1 + next_random(seed) % 9, next_random(seed) % 10);
}

static void add_records(qn_buf *out, uint64_t *seed) {
    const size_t n = 1 + next_random(seed) % 5;
    qn_buf_text(out, "{\"records\": [");
    for (size_t i = 0; i < n; i++) {
        if (i) qn_buf_text(out, ", ");
        add_record(out, seed);
    }
    qn_buf_text(out, "]}");
}

static void add_tree(qn_buf *out, uint64_t *seed, int depth) {
    qn_buf_printf(out, "{\"v\": %u, \"kids\": [", next_random(seed) % 1000);
    const size_t n = depth ? next_random(seed) % 3 : 0;
    for (size_t i = 0; i < n; i++) {
        if (i) qn_buf_text(out, ", ");
        add_tree(out, seed, depth - 1);
    }
    qn_buf_text(out, "]}");
}

static void add_deep(qn_buf *out, uint64_t *seed) { add_tree(out, seed, 6); }

static void add_log_line(qn_buf *out, uint64_t *seed) {
    for (int i = 0; i < 20; i++) {
        qn_buf_printf(out, "2026-11-1%u %02u:%02u [INFO] ", next_random(seed) % 6,
                      next_random(seed) % 24, next_random(seed) % 60);
        qn_buf_printf(out, "worker-%u took %u ms\n", next_random(seed) % 32,
                      next_random(seed) % 5000);
    }
}

// --- grammars ------------------------------------------------------------------------------------

static const char record_schema[] =
    "{\"type\": \"object\", \"properties\": {\"records\": {\"type\": \"array\", \"maxItems\": 100, "
    "\"items\": {\"type\": \"object\", \"properties\": {\"id\": {\"type\": \"integer\", "
    "\"minimum\": 0, \"maximum\": 99999}, \"name\": {\"type\": \"string\", \"minLength\": 1, "
    "\"maxLength\": 60}, \"kind\": {\"enum\": [\"alpha\", \"beta\", \"gamma\", \"delta\"]}, "
    "\"score\": {\"type\": \"number\", \"minimum\": 0, \"maximum\": 1}, \"tags\": {\"type\": "
    "\"array\", \"items\": {\"type\": \"string\"}, \"maxItems\": 8}, \"note\": {\"type\": "
    "\"string\", \"maxLength\": 100000}, \"date\": {\"type\": \"string\", \"format\": \"date\"}}, "
    "\"required\": [\"id\", \"name\", \"kind\", \"score\", \"tags\", \"note\", \"date\"], "
    "\"additionalProperties\": false}}}, \"required\": [\"records\"]}";
static const char tree_schema[] =
    "{\"$defs\": {\"node\": {\"type\": \"object\", \"properties\": {\"v\": {\"type\": "
    "\"integer\"}, \"kids\": {\"type\": \"array\", \"items\": {\"$ref\": \"#/$defs/node\"}}}, "
    "\"required\": [\"v\", \"kids\"], \"additionalProperties\": false}}, \"$ref\": "
    "\"#/$defs/node\"}";
static const char log_regex[] = "(\\d{4}-\\d{2}-\\d{2} \\d{2}:\\d{2} \\[(INFO|WARN)\\] worker-\\d+ "
                                "took \\d{1,6} ms\\n){1,1000}";
static const char log_gbnf[] =
    "root ::= line+\nline ::= date \" \" time \" [\" (\"INFO\" | \"WARN\") \"] worker-\" num \" "
    "took \" "
    "num \" ms\\n\"\ndate ::= num \"-\" num \"-\" num\ntime ::= num \":\" num\nnum ::= [0-9]+\n";

static const char lengths_schema[] =
    "{\"type\": \"string\", \"pattern\": \"^[a-z]+( [a-z]+)*\\\\.$\", \"minLength\": 20, "
    "\"maxLength\": 5000}";

static void add_sentence(qn_buf *out, uint64_t *seed) {
    static const char *const words[] = {"mill", "stone", "grain", "water", "turns", "flour"};
    qn_buf_text(out, "\"the quern and the miller");
    for (size_t n = 5 + next_random(seed) % 300; n > 0; n--)
        qn_buf_printf(out, " %s", words[next_random(seed) % (sizeof words / sizeof *words)]);
    qn_buf_text(out, ".\"");
}

typedef struct bench_scene {
    const char *name;
    qn_grammar_kind kind;
    const char *grammar;
    void (*add_text)(qn_buf *out, uint64_t *seed);
} bench_scene;

static const bench_scene scenes[] = {
    {"json", QN_GRAMMAR_JSON, "", add_records},
    {"schema", QN_GRAMMAR_SCHEMA, record_schema, add_records},
    {"recursive", QN_GRAMMAR_SCHEMA, tree_schema, add_deep},
    {"lengths", QN_GRAMMAR_SCHEMA, lengths_schema, add_sentence},
    {"regex", QN_GRAMMAR_REGEX, log_regex, add_log_line},
    {"gbnf", QN_GRAMMAR_GBNF, log_gbnf, add_log_line},
};

// --- measuring -----------------------------------------------------------------------------------

static void check(qn_status status, const qn_err *err) {
    if (!status) return;
    fprintf(stderr, "bench: %s\n", err->message);
    exit(1);
}

typedef struct times {
    double *us;
    size_t n;
} times;

static void follow(times *out, qn_matcher *matcher, const qn_tokenizer *tokenizer, qn_str text) {
    qn_err err;
    int32_t *ids;
    size_t n;
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts);
    check(qn_tokenize(&ids, &n, tokenizer, text.data, text.size, &opts, &err), &err);
    qn_matcher_reset(matcher);
    for (size_t i = 0; i < n; i++) {
        const uint32_t *mask;
        const double start = now_us();
        check(qn_matcher_mask(&mask, matcher, &err), &err);
        if (!(mask[ids[i] / 32] >> (ids[i] % 32) & 1)) {
            fprintf(stderr, "bench: token %d is not allowed\n", ids[i]);
            exit(1);
        }
        check(qn_matcher_accept(matcher, ids[i], &err), &err);
        if (out->n < MAX_TIMES) out->us[out->n++] = now_us() - start;
    }
    qn_free(ids);
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double at_share(times *t, double share) {
    if (!t->n) return 0;
    qsort(t->us, t->n, sizeof *t->us, compare);
    return t->us[(size_t)((double)(t->n - 1) * share)];
}

static void measure(const bench_scene *scene, const qn_tokenizer *tokenizer,
                    const char *vocabulary) {
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    uint64_t seed = 1;
    times cold = {calloc(MAX_TIMES, sizeof(double)), 0},
          warm = {calloc(MAX_TIMES, sizeof(double)), 0},
          none = {calloc(MAX_TIMES, sizeof(double)), 0};
    const double start = now_us();
    check(qn_grammar_create(&grammar, tokenizer, scene->kind, scene->grammar,
                            strlen(scene->grammar), NULL, &err),
          &err);
    const double created = now_us() - start;
    check(qn_matcher_create(&matcher, grammar, 0, &err), &err);
    for (int i = 0; i < N_TEXTS; i++) {
        qn_buf text = {0};
        scene->add_text(&text, &seed);
        times *into = i == 0 ? &cold : i <= N_WARM ? &none : &warm;
        none.n = 0;
        follow(into, matcher, tokenizer, (qn_str){text.data, text.size});
        qn_buf_deinit(&text);
    }
    const qn_matcher_stats stats = qn_matcher_get_stats(matcher);
    printf("%s,%s,%d,%.0f,%zu,%.2f,%.1f,%zu,%.2f,%.2f,%.1f,%zu,%llu\n", scene->name, vocabulary,
           qn_tokenizer_own_info(tokenizer)->n_tokens, created, cold.n, at_share(&cold, 0.5),
           at_share(&cold, 1), warm.n, at_share(&warm, 0.5), at_share(&warm, 0.99),
           at_share(&warm, 1), stats.n_states, (unsigned long long)stats.n_sweeps);
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
    free(cold.us);
    free(warm.us);
    free(none.us);
}

int main(void) {
    static const char *const paths[][2] = {
        {"qwen3", TEST_DATA "/npm/qwen3/tokenizer.json"},
        {"bundled", MODELS "/quern-mini-Q8_0.gguf"},
    };
    printf("grammar,vocabulary,tokens,create_us,cold_n,cold_median,cold_max,warm_n,warm_median,"
           "warm_p99,warm_max,states,sweeps\n");
    for (size_t v = 0; v < sizeof paths / sizeof *paths; v++) {
        qn_err err;
        qn_tokenizer *tokenizer;
        if (!qn_path_is_file(paths[v][1])) {
            printf("# skipped: %s is not there\n", paths[v][1]);
            continue;
        }
        check(qn_tokenizer_open(&tokenizer, paths[v][1], &err), &err);
        for (size_t i = 0; i < sizeof scenes / sizeof *scenes; i++)
            measure(&scenes[i], tokenizer, paths[v][0]);
        qn_tokenizer_close(tokenizer);
    }
    return 0;
}

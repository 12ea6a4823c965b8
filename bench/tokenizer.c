// Speed of encoding and decoding on one thread, as CSV, by the processor time of that thread. Texts
// are made here, from word lists, in a fixed random order. Tokenizers: the published ones that
// tools/fetch_tokenizers.sh brought, and the bundled model's.
#include "core/buf.h"
#include "core/file.h"
#include "quern.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TEXT_BYTES = 4 << 20, N_RUNS = 3 };

// --- texts ---------------------------------------------------------------------------------------

static uint32_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*state >> 33);
}

typedef struct word_list {
    const char *name;
    const char *const *words; // ends with NULL
    const char *const *gaps;  // what stands between words
} word_list;

static const char *const english[] = {
    "the",        "of",         "and",       "to",        "in",         "a",         "is",
    "that",       "for",        "it",        "was",       "with",       "as",        "on",
    "be",         "at",         "by",        "this",      "had",        "not",       "are",
    "but",        "from",       "they",      "miller",    "grain",      "stone",     "between",
    "village",    "morning",    "whispered", "remember",  "children",   "question",  "through",
    "everyone",   "window",     "suddenly",  "beautiful", "government", "language",  "computer",
    "science",    "theory",     "because",   "although",  "different",  "important", "I'm",
    "don't",      "we'll",      "they've",   "it's",      "1984",       "3.14",      "42",
    "river",      "mountain",   "thought",   "nothing",   "evening",    "together",  "understand",
    "experience", "quern",      "Europe",    "London",    "January",    "Mr.",       "Alice",
    "American",   "University", NULL};
static const char *const english_gaps[] = {" ", " ", " ", " ",  " ",  " ",     " ",
                                           " ", " ", " ", ", ", ". ", ".\n\n", NULL};

static const char *const code[] = {
    "if",     "(x",       "<",    "n)",      "return", "{",      "}",       "for",
    "size_t", "i",        "=",    "0;",      "i++)",   "static", "const",   "char",
    "*name;", "->next",   "!=",   "NULL)",   "self.",  "import", "def",     "__init__(self):",
    "0x1f;",  "\"text\"", "//",   "printf(", "&&",     "[i]",    "<<",      "buffer_size",
    "while",  "struct",   "node", "*left,",  "lambda", "std::",  "vector<", "uint32_t>",
    NULL};
static const char *const code_gaps[] = {" ",          " ",  " ",  "",  "\n    ",
                                        "\n        ", "\n", "\t", NULL};

// Chinese, Japanese, Korean and Russian words, and an emoji.
static const char *const other[] = {
    "\xe4\xbd\xa0\xe5\xa5\xbd",
    "\xe4\xb8\x96\xe7\x95\x8c",
    "\xe6\x88\x91\xe4\xbb\xac",
    "\xe8\xaf\xad\xe8\xa8\x80\xe6\xa8\xa1\xe5\x9e\x8b",
    "\xe4\xbb\x8a\xe5\xa4\xa9",
    "\xe3\x81\x93\xe3\x82\x93\xe3\x81\xab\xe3\x81\xa1\xe3\x81\xaf",
    "\xe6\x9d\xb1\xe4\xba\xac",
    "\xe3\x82\xb3\xe3\x83\xb3\xe3\x83\x94\xe3\x83\xa5\xe3\x83\xbc\xe3\x82\xbf",
    "\xed\x95\x9c\xea\xb5\xad\xec\x96\xb4",
    "\xec\x95\x88\xeb\x85\x95",
    "\xd0\xbf\xd1\x80\xd0\xb8\xd0\xb2\xd0\xb5\xd1\x82",
    "\xd0\xbc\xd0\xb8\xd1\x80",
    "\xd0\xbc\xd0\xb5\xd0\xbb\xd1\x8c\xd0\xbd\xd0\xb8\xd1\x86\xd0\xb0",
    "\xf0\x9f\x99\x82",
    NULL};
static const char *const other_gaps[] = {"", "", "", " ", "\xef\xbc\x8c", "\xe3\x80\x82\n", NULL};

static const word_list lists[] = {
    {"english", english, english_gaps},
    {"code", code, code_gaps},
    {"cjk", other, other_gaps},
};

static size_t count(const char *const *words) {
    size_t n = 0;
    while (words[n]) n++;
    return n;
}

static void make_text(qn_buf *out, const word_list *list) {
    uint64_t state = 7;
    const size_t n_words = count(list->words), n_gaps = count(list->gaps);
    qn_buf_clear(out);
    while (out->size < TEXT_BYTES) {
        qn_buf_text(out, list->words[next_random(&state) % n_words]);
        qn_buf_text(out, list->gaps[next_random(&state) % n_gaps]);
    }
}

// --- measuring -----------------------------------------------------------------------------------

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void stop(const qn_err *err) {
    fprintf(stderr, "bench_tokenizer: %s\n", err->message);
    exit(1);
}

static void measure(const char *name, const qn_tokenizer *tokenizer, const word_list *list,
                    const qn_buf *text) {
    qn_err err;
    double encode_s = 1e9, decode_s = 1e9;
    size_t n = 0;
    for (int i = 0; i < N_RUNS; i++) {
        int32_t *ids;
        char *back;
        size_t size;
        const double start = now();
        if (qn_tokenize(&ids, &n, tokenizer, text->data, text->size, NULL, &err)) stop(&err);
        const double middle = now();
        if (qn_detokenize(&back, &size, tokenizer, ids, n, true, &err)) stop(&err);
        const double end = now();
        if (middle - start < encode_s) encode_s = middle - start;
        if (end - middle < decode_s) decode_s = end - middle;
        qn_free(ids);
        qn_free(back);
    }
    const double megabytes = (double)text->size / 1e6;
    printf("%s,%s,%.1f,%zu,%.2f,%.1f,%.1f\n", name, list->name, megabytes, n,
           (double)text->size / (double)n, megabytes / encode_s, megabytes / decode_s);
}

int main(void) {
    static const char *const files[][2] = {
        {"qwen3", TEST_DATA "/npm/qwen3/tokenizer.json"},
        {"llama3_2", TEST_DATA "/npm/llama3_2/tokenizer.json"},
        {"gemma3", TEST_DATA "/npm/gemma3/tokenizer.json"},
        {"bundled", MODELS "/quern-mini-Q8_0.gguf"},
    };
    qn_buf text = {0};
    printf("tokenizer,text,MB,tokens,bytes_per_token,encode_MB_per_s,decode_MB_per_s\n");
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        qn_err err;
        qn_tokenizer *tokenizer;
        if (!qn_path_is_file(files[i][1])) {
            printf("# %s: not installed\n", files[i][0]);
            continue;
        }
        const double start = now();
        if (qn_tokenizer_open(&tokenizer, files[i][1], &err)) stop(&err);
        printf("# %s: opened in %.0f ms\n", files[i][0], (now() - start) * 1e3);
        for (size_t j = 0; j < sizeof lists / sizeof *lists; j++) {
            make_text(&text, &lists[j]);
            measure(files[i][0], tokenizer, &lists[j], &text);
        }
        qn_tokenizer_close(tokenizer);
    }
    qn_buf_deinit(&text);
    return 0;
}

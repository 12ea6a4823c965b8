// The published test suite of JSON Schema against our grammars: schema_suite FOLDER [-v].
//
// FOLDER has a folder for each draft. Every schema is compiled strictly. A value that the suite
// calls valid must be accepted in some order of its properties (grammars have one order), a value
// that it calls invalid must be rejected in every order. What a grammar restricts by design is
// counted by itself; schemas that are refused are counted by keyword.
#include "gen/grammar/grammar.h"

#include <dirent.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ORDERS_MAX = 5040, NAMES_MAX = 64, REASONS_MAX = 200 };

typedef struct reason {
    char name[120];
    size_t n;
} reason;

typedef struct tally {
    size_t accepted, rejected; // rightly
    size_t wrongly_accepted, wrongly_rejected;
    size_t by_design;
    size_t refused, refused_tests, groups; // schemas, and their tests
} tally;

typedef struct suite {
    qn_grammar *vocabulary; // any grammar: its vocabulary is shared
    const char *draft, *file;
    bool verbose;
    tally total, draft_total;
    reason refusals[REASONS_MAX], designs[REASONS_MAX];
} suite;

static const struct {
    const char *folder, *uri;
} drafts[] = {
    {"draft4", "http://json-schema.org/draft-04/schema#"},
    {"draft6", "http://json-schema.org/draft-06/schema#"},
    {"draft7", "http://json-schema.org/draft-07/schema#"},
    {"draft2019-09", "https://json-schema.org/draft/2019-09/schema"},
    {"draft2020-12", "https://json-schema.org/draft/2020-12/schema"},
};

static void count_reason(reason *list, const char *name, size_t n) {
    size_t i = 0;
    while (i < REASONS_MAX - 1 && list[i].n && strcmp(list[i].name, name) != 0) i++;
    snprintf(list[i].name, sizeof list[i].name, "%s", name);
    list[i].n += n;
}

// --- texts of a value ----------------------------------------------------------------------------

// Which order of properties: each object takes a digit of it.
typedef struct writer {
    char *text;
    size_t size, cap;
    size_t order;         // what is left of the number
    bool spaced, pointed; // pointed: whole numbers keep the point that they had
    size_t n_orders;      // of all objects so far
} writer;

static void add(writer *w, const char *text, size_t n) {
    if (w->size + n + 1 > w->cap) {
        w->cap = (w->size + n + 1) * 2;
        w->text = realloc(w->text, w->cap);
        if (!w->text) abort();
    }
    memcpy(w->text + w->size, text, n);
    w->size += n;
    w->text[w->size] = 0;
}

static void add_string(writer *w, const char *text, size_t n) {
    add(w, "\"", 1);
    for (size_t i = 0; i < n; i++) {
        static const char codes[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
        const char *hit = text[i] ? strchr(codes, text[i]) : NULL;
        char room[8] = {'\\', hit ? names[hit - codes] : 0, 0};
        if (!hit && (unsigned char)text[i] < 0x20)
            snprintf(room, sizeof room, "\\u%04x", (unsigned)(unsigned char)text[i]);
        if (room[1])
            add(w, room, strlen(room));
        else
            add(w, text + i, 1);
    }
    add(w, "\"", 1);
}

static void add_number(writer *w, const json_t *value) {
    char room[400];
    const double real = json_number_value(value);
    if (json_is_integer(value))
        snprintf(room, sizeof room, "%lld", (long long)json_integer_value(value));
    else if (real == floor(real) && fabs(real) < 1e20)
        snprintf(room, sizeof room, "%.*f", w->pointed, real);
    else
        for (int n = 1; n <= 17; n++) {
            // Without an exponent where that is short, for bounds allow none.
            if (fabs(real) < 1e15 && fabs(real) > 1e-10)
                snprintf(room, sizeof room, "%.*f", n, real);
            else
                snprintf(room, sizeof room, "%.*g", n, real);
            if (strtod(room, NULL) == real) break;
        }
    add(w, room, strlen(room));
}

static void add_value(writer *w, const json_t *value);

static void add_object(writer *w, const json_t *value) {
    const char *keys[NAMES_MAX], *key;
    json_t *one;
    size_t n = 0;
    json_object_foreach((json_t *)(uintptr_t)value, key, one) if (n < NAMES_MAX) keys[n++] = key;
    add(w, "{", 1);
    for (size_t left = n; left > 0; left--) {
        const size_t at = w->order % left;
        w->order /= left;
        if (w->n_orders < ORDERS_MAX) w->n_orders *= left;
        if (left < n) add(w, ", ", w->spaced ? 2 : 1);
        add_string(w, keys[at], strlen(keys[at]));
        add(w, ": ", w->spaced ? 2 : 1);
        add_value(w, json_object_get(value, keys[at]));
        memmove(keys + at, keys + at + 1, (left - at - 1) * sizeof *keys);
    }
    add(w, "}", 1);
}

static void add_value(writer *w, const json_t *value) {
    if (json_is_object(value)) {
        add_object(w, value);
    } else if (json_is_array(value)) {
        add(w, "[", 1);
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i) add(w, ", ", w->spaced ? 2 : 1);
            add_value(w, json_array_get(value, i));
        }
        add(w, "]", 1);
    } else if (json_is_string(value)) {
        add_string(w, json_string_value(value), json_string_length(value));
    } else if (json_is_number(value)) {
        add_number(w, value);
    } else {
        const char *word = json_is_true(value) ? "true" : json_is_false(value) ? "false" : "null";
        add(w, word, strlen(word));
    }
}

// --- one value -----------------------------------------------------------------------------------

static bool fits(const qn_grammar *grammar, const char *text, size_t size) {
    qn_err err;
    qn_matcher *matcher;
    bool is_fit = false;
    if (qn_matcher_create(&matcher, grammar, 0, &err) ||
        qn_matcher_feed(&is_fit, matcher, text, size, &err)) {
        fprintf(stderr, "schema_suite: %s\n", err.message);
        exit(1);
    }
    const bool result = is_fit && qn_matcher_may_end(matcher);
    qn_matcher_destroy(matcher);
    return result;
}

// Whether some order of properties is accepted, compact or with spaces.
static bool is_accepted(const suite *s, const qn_grammar *grammar, const json_t *value) {
    // In draft 4 the number 1.0 is not an integer.
    const bool pointed = !strcmp(s->draft, "draft4") && !strncmp(s->file, "zero", 4);
    bool found = false;
    size_t n_orders = 1;
    for (size_t order = 0; !found && order < n_orders && order < ORDERS_MAX; order++)
        for (int spaced = 0; !found && spaced < 2; spaced++) {
            writer w = {.order = order, .spaced = spaced, .pointed = pointed, .n_orders = 1};
            add_value(&w, value);
            n_orders = w.n_orders;
            found = fits(grammar, w.text, w.size);
            free(w.text);
        }
    return found;
}

static bool has_large_number(const json_t *value) {
    const char *key;
    json_t *one;
    size_t i;
    if (json_is_real(value)) {
        const double real = fabs(json_real_value(value));
        return real >= 1e20 || (real != 0 && real < 1e-10);
    }
    json_array_foreach(value, i, one) if (has_large_number(one)) return true;
    json_object_foreach((json_t *)(uintptr_t)value, key,
                        one) if (has_large_number(one)) return true;
    return false;
}

static bool has_key(const json_t *value, const char *wanted) {
    const char *key;
    json_t *one;
    size_t i;
    json_array_foreach(value, i, one) if (has_key(one, wanted)) return true;
    json_object_foreach((json_t *)(uintptr_t)value, key,
                        one) if (!strcmp(key, wanted) || has_key(one, wanted)) return true;
    return false;
}

// Why a grammar rejects a valid value by design; NULL: it does not.
static const char *design_of(const json_t *schema, const json_t *value) {
    if (has_large_number(value)) return "numbers of more than 20 digits, or very small ones";
    if (has_key(schema, "format")) return "format is always demanded, and may be narrower";
    return NULL;
}

static void run_test(suite *s, const qn_grammar *grammar, const json_t *schema, const json_t *group,
                     const json_t *test) {
    const json_t *data = json_object_get(test, "data");
    const bool valid = json_is_true(json_object_get(test, "valid"));
    const bool accepted = grammar && is_accepted(s, grammar, data);
    tally *t = &s->draft_total;
    if (accepted == valid) {
        t->accepted += valid;
        t->rejected += !valid;
        return;
    }
    const char *design = valid ? design_of(schema, data) : NULL;
    if (design) {
        t->by_design++;
        count_reason(s->designs, design, 1);
        return;
    }
    t->wrongly_accepted += !valid;
    t->wrongly_rejected += valid;
    char *text = json_dumps(schema, JSON_ENCODE_ANY), *shown = json_dumps(data, JSON_ENCODE_ANY);
    printf("WRONG %s/%s: %s: %s: %s\n  schema %s\n  value %s\n", s->draft, s->file,
           json_string_value(json_object_get(group, "description")),
           json_string_value(json_object_get(test, "description")),
           valid ? "valid, but rejected" : "invalid, but accepted", text, shown);
    free(text);
    free(shown);
}

// --- files ---------------------------------------------------------------------------------------

// The keyword that a message names: "schema, #/a/b: ..." -> b.
static void keyword_of(char *out, size_t size, const char *message) {
    const char *end = strchr(message, ':');
    const char *from = end ? end : message;
    while (from > message && from[-1] != '/') from--;
    snprintf(out, size, "%.*s", end ? (int)(end - from) : 40, from);
}

static void run_group(suite *s, const json_t *group, const char *uri) {
    json_t *schema = json_deep_copy(json_object_get(group, "schema")), *test;
    json_t *tests = json_object_get(group, "tests");
    qn_err err;
    qn_grammar *grammar = NULL;
    size_t i;
    if (json_is_object(schema) && !json_object_get(schema, "$schema"))
        json_object_set_new(schema, "$schema", json_string(uri));
    char *text = json_dumps(schema, JSON_ENCODE_ANY);
    const qn_status status = qn_grammar_create_like(&grammar, s->vocabulary, QN_GRAMMAR_SCHEMA,
                                                    text, strlen(text), NULL, &err);
    s->draft_total.groups++;
    const bool is_empty = status && strstr(err.message, "no finite text");
    if (status && !is_empty) {
        char keyword[100];
        keyword_of(keyword, sizeof keyword, err.message);
        count_reason(s->refusals, keyword, 1);
        s->draft_total.refused++;
        s->draft_total.refused_tests += json_array_size(tests);
        if (s->verbose)
            printf("refused %s/%s: %s: %s\n", s->draft, s->file,
                   json_string_value(json_object_get(group, "description")), err.message);
    } else {
        json_array_foreach(tests, i, test) run_test(s, grammar, schema, group, test);
    }
    qn_grammar_destroy(grammar);
    free(text);
    json_decref(schema);
}

// Optional behaviour of a draft that we leave out, as later drafts do.
static bool is_left_out(const suite *s) {
    return !strcmp(s->draft, "draft7") && !strcmp(s->file, "content.json");
}

static void run_file(suite *s, const char *path, const char *uri) {
    json_error_t why;
    json_t *groups = json_load_file(path, JSON_ALLOW_NUL, &why), *group;
    size_t i;
    if (!groups) {
        printf("not read: %s, line %d: %s\n", path, why.line, why.text);
        return;
    }
    if (is_left_out(s))
        printf("left out: %s/%s\n", s->draft, s->file);
    else
        json_array_foreach(groups, i, group) run_group(s, group, uri);
    json_decref(groups);
}

static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void run_folder(suite *s, const char *folder, const char *uri) {
    struct dirent **names;
    const int n = scandir(folder, &names, NULL, by_name);
    for (int i = 0; i < n; i++) {
        char path[1024];
        const char *name = names[i]->d_name, *dot = strrchr(name, '.');
        snprintf(path, sizeof path, "%s/%s", folder, name);
        s->file = name;
        if (dot && !strcmp(dot, ".json")) run_file(s, path, uri);
        if (!dot) run_folder(s, path, uri);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

static void print_tally(const char *name, const tally *t) {
    printf("| %s | %zu | %zu | %zu | %zu | %zu | %zu | %zu | %zu |\n", name, t->groups,
           t->groups - t->refused, t->accepted, t->rejected, t->by_design, t->refused_tests,
           t->wrongly_accepted, t->wrongly_rejected);
}

static void add_tally(tally *to, const tally *from) {
    to->accepted += from->accepted;
    to->rejected += from->rejected;
    to->wrongly_accepted += from->wrongly_accepted;
    to->wrongly_rejected += from->wrongly_rejected;
    to->by_design += from->by_design;
    to->refused += from->refused;
    to->refused_tests += from->refused_tests;
    to->groups += from->groups;
}

int main(int argc, char **argv) {
    qn_err err;
    qn_tokenizer *tokenizer;
    static suite s;
    tally drafts_of[sizeof drafts / sizeof *drafts];
    if (argc < 2) return fprintf(stderr, "schema_suite FOLDER [-v]\n"), 2;
    s.verbose = argc > 2;
    if (qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err) ||
        qn_grammar_create(&s.vocabulary, tokenizer, QN_GRAMMAR_JSON, "", 0, NULL, &err))
        return fprintf(stderr, "schema_suite: %s\n", err.message), 1;
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++) {
        char folder[1024];
        s.draft = drafts[i].folder;
        s.draft_total = (tally){0};
        snprintf(folder, sizeof folder, "%s/%s", argv[1], s.draft);
        run_folder(&s, folder, drafts[i].uri);
        drafts_of[i] = s.draft_total;
        add_tally(&s.total, &s.draft_total);
    }
    printf(
        "\n| draft | schemas | compiled | accepted rightly | rejected rightly | rejected by design "
        "| tests of refused schemas | accepted wrongly | rejected wrongly |\n"
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|\n");
    for (size_t i = 0; i < sizeof drafts / sizeof *drafts; i++)
        print_tally(drafts[i].folder, &drafts_of[i]);
    print_tally("all", &s.total);
    printf("\nrefused schemas by keyword:");
    for (size_t i = 0; s.refusals[i].n; i++) printf(" %s %zu", s.refusals[i].name, s.refusals[i].n);
    printf("\nrejected by design:");
    for (size_t i = 0; s.designs[i].n; i++) printf(" %s %zu;", s.designs[i].name, s.designs[i].n);
    printf("\n");
    qn_grammar_destroy(s.vocabulary);
    qn_tokenizer_close(tokenizer);
    const bool is_good = s.total.groups && !s.total.wrongly_accepted && !s.total.wrongly_rejected;
    return is_good ? 0 : 1;
}

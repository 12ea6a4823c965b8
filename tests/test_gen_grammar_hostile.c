// Grammars that are made to hurt: refused, or served within bounds. Nothing hangs, nothing takes
// memory out of proportion.
#include "testing.h"

#include "core/buf.h"
#include "gen/grammar/grammar.h"

#include <locale.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static qn_tokenizer *tokenizer; // read once for the group

static int open_tokenizer(void **state) {
    (void)state;
    qn_err err;
    return (int)qn_tokenizer_open(&tokenizer, MODELS "/quern-mini-Q8_0.gguf", &err);
}

static int close_tokenizer(void **state) {
    (void)state;
    qn_tokenizer_close(tokenizer);
    return 0;
}

static qn_status create(qn_grammar **out, qn_grammar_kind kind, qn_buf *text, qn_err *err) {
    const qn_status status =
        qn_grammar_create(out, tokenizer, kind, text->data, text->size, NULL, err);
    qn_buf_deinit(text);
    return status;
}

static void repeat(qn_buf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) qn_buf_text(out, text);
}

// Follows a grammar for some tokens. What the mask allows is accepted, unless a limit is met.
static void follow(const qn_grammar *grammar, int n_tokens) {
    qn_err err;
    qn_matcher *matcher;
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    uint32_t at = 1;
    for (int i = 0; i < n_tokens && !qn_matcher_is_done(matcher); i++) {
        const uint32_t *mask;
        const qn_status masked = qn_matcher_mask(&mask, matcher, &err);
        if (masked == QN_LIMIT) break;
        assert_int_equal(masked, QN_OK);
        const uint32_t n = (uint32_t)tokenizer_info(tokenizer).n_tokens;
        at = (at * 1664525u + 1013904223u) % n;
        while (!(mask[at / 32] >> (at % 32) & 1)) at = (at + 1) % n;
        const qn_status status = qn_matcher_accept(matcher, (int32_t)at, &err);
        if (status == QN_LIMIT) break;
        assert_int_equal(status, QN_OK);
    }
    qn_matcher_destroy(matcher);
}

static void deep_schema(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    repeat(&text, "{\"type\":\"array\",\"items\":", 128);
    qn_buf_text(&text, "true");
    repeat(&text, "}", 128);
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 200);
    qn_grammar_destroy(grammar);
    repeat(&text, "[", 100000);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "nested more than");
    repeat(&text, "{\"type\":\"array\",\"items\":", 129);
    qn_buf_text(&text, "true");
    repeat(&text, "}", 129);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "nested more than");
    repeat(&text, "{\"not\":", 127);
    qn_buf_text(&text, "{}");
    repeat(&text, "}", 127); // an odd number of them: nothing is left
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_ARGUMENT, "no finite text");
}

static void many_references(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    // A chain, each naming the next.
    qn_buf_text(&text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < 20000; i++)
        qn_buf_printf(&text, "\"%d\":{\"$ref\":\"#/$defs/%d\"},", i, i + 1);
    qn_buf_text(&text, "\"20000\":{\"type\":\"null\"}}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "schemas for one");
    // A list of the same, and of as many others.
    qn_buf_text(&text,
                "{\"$defs\":{\"a\":{\"type\":\"null\"}},\"anyOf\":[{\"$ref\":\"#/$defs/a\"}");
    repeat(&text, ",{\"$ref\":\"#/$defs/a\"}", 200000);
    qn_buf_text(&text, "]}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "{\"anyOf\":[{\"const\":0}");
    for (int i = 1; i < 200000; i++) qn_buf_printf(&text, ",{\"const\":%d}", i);
    qn_buf_text(&text, "]}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "different schemas");
    // Every property names every other.
    qn_buf_text(&text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < 60; i++) {
        qn_buf_printf(&text, "%s\"%d\":{\"type\":\"object\",\"properties\":{", i ? "," : "", i);
        for (int k = 0; k < 60; k++)
            qn_buf_printf(&text, "%s\"p%d\":{\"$ref\":\"#/$defs/%d\"}", k ? "," : "", k, k);
        qn_buf_text(&text, "}}");
    }
    qn_buf_text(&text, "}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 100);
    qn_grammar_destroy(grammar);
}

static void exponential_schema(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"allOf\":[{}");
    for (int i = 0; i < 40; i++)
        qn_buf_printf(&text, ",{\"anyOf\":[{\"minimum\":%d},{\"maximum\":%d}]}", i, 1000 - i);
    qn_buf_text(&text, "]}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "schema");
    // Each level holds the next twice.
    qn_buf_text(&text, "{\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < 40; i++)
        qn_buf_printf(&text,
                      "\"%d\":{\"allOf\":[{\"$ref\":\"#/$defs/%d\"},{\"$ref\":\"#/$defs/%d\"}]},",
                      i, i + 1, i + 1);
    qn_buf_text(&text, "\"40\":{\"type\":\"null\"}}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    qn_grammar_destroy(grammar);
    // The same for values of an enum, which are validated one by one.
    qn_buf_text(&text, "{\"enum\":[1,2,3],\"$ref\":\"#/$defs/0\",\"$defs\":{");
    for (int i = 0; i < 40; i++)
        qn_buf_printf(&text,
                      "\"%d\":{\"allOf\":[{\"$ref\":\"#/$defs/%d\"},{\"$ref\":\"#/$defs/%d\"}]},",
                      i, i + 1, i + 1);
    qn_buf_text(&text, "\"40\":{}}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "schema");
}

// Each keyword that is rewritten or counted, asked for more than is reasonable: refused by name, or
// served.
static void large_conditions(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"oneOf\":[{\"required\":[\"x\"]}");
    for (int i = 0; i < 60; i++) qn_buf_printf(&text, ",{\"required\":[\"a%d\",\"b%d\"]}", i, i);
    qn_buf_text(&text, "]}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "schema");
    qn_buf_text(&text, "{\"type\":\"object\",\"dependentRequired\":{\"x\":[\"y\"]");
    for (int i = 0; i < 100; i++) qn_buf_printf(&text, ",\"a%d\":[\"b%d\"]", i, i);
    qn_buf_text(&text, "}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "schema");
    qn_buf_text(&text,
                "{\"type\":\"array\",\"contains\":{\"type\":\"null\"},\"minContains\":100000,"
                "\"maxItems\":1000000}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "contains");
    qn_buf_text(&text, "{\"type\":\"number\",\"multipleOf\":0.0000000000123456789}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "multipleOf");
    qn_buf_text(&text, "{\"type\":\"number\",\"multipleOf\":30011}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "multipleOf");
    qn_buf_text(&text, "{\"type\":\"integer\",\"minimum\":1");
    repeat(&text, "0", 5000);
    qn_buf_text(&text, "}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "digits");
    // `not` in `not`, and one that comes back to itself.
    repeat(&text, "{\"not\":", 100);
    qn_buf_text(&text, "{\"type\":\"null\"}");
    repeat(&text, "}", 100);
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    qn_grammar_destroy(grammar);
    qn_buf_text(&text,
                "{\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{\"not\":{\"$ref\":\"#/$defs/b\"}},"
                "\"b\":{\"not\":{\"$ref\":\"#/$defs/a\"}}}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_UNSUPPORTED, "itself");
    // A recursive schema under `not`, and in choices that overlap.
    qn_buf_text(&text, "{\"not\":{\"$ref\":\"#/$defs/a\"},\"$defs\":{\"a\":{\"type\":\"array\","
                       "\"items\":{\"$ref\":\"#/$defs/a\"}}}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 100);
    qn_grammar_destroy(grammar);
}

typedef struct on_thread {
    qn_grammar_kind kind;
    qn_buf *text;
    qn_status status;
    qn_err err;
} on_thread;

static void *create_one(void *arg) {
    on_thread *one = arg;
    qn_grammar *grammar = NULL;
    one->status = create(&grammar, one->kind, one->text, &one->err);
    qn_grammar_destroy(grammar);
    return NULL;
}

static qn_status create_on_thread(qn_grammar_kind kind, qn_buf *text, size_t stack, qn_err *err) {
    pthread_attr_t attr;
    pthread_t thread;
    on_thread one = {.kind = kind, .text = text};
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    assert_int_equal(pthread_create(&thread, &attr, create_one, &one), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(pthread_attr_destroy(&attr), 0);
    *err = one.err;
    return one.status;
}

static qn_status count_on_thread(uint32_t max, size_t stack, qn_err *err) {
    qn_buf text = {0};
    qn_buf_printf(&text, "{\"type\":\"object\",\"minProperties\":2,\"maxProperties\":%u}", max);
    return create_on_thread(QN_GRAMMAR_SCHEMA, &text, stack, err);
}

// What is counted must not lie on the stack: a thread of a server may have little of it.
static void counts_on_a_small_stack(void **state) {
    (void)state;
    qn_err err;
    ASSERT_OK(count_on_thread(100, 128 << 10, &err));
    ASSERT_FAILS(count_on_thread(16000, 128 << 10, &err), QN_LIMIT,
                 "#/minProperties: 2 beside a maxProperties of 16000 is too large to be counted");
}

// Texts that are nested as deeply as is allowed, in the stack that the header promises to be
// enough.
static void nested_on_a_small_stack(void **state) {
    (void)state;
    static const struct {
        qn_grammar_kind kind;
        const char *before, *open, *middle, *close, *after;
        size_t n;
    } cases[] = {
        {QN_GRAMMAR_SCHEMA, "", "{\"type\":\"array\",\"items\":", "true", "}", "", 128},
        {QN_GRAMMAR_SCHEMA, "", "{\"not\":", "{}", "}", "", 126},
        {QN_GRAMMAR_SCHEMA, "{\"const\":", "[", "1", "]", "}", 127},
        {QN_GRAMMAR_SCHEMA, "{\"not\":{\"const\":", "[", "1", "]", "}}", 126},
        {QN_GRAMMAR_SCHEMA, "", "{\"anyOf\":[{\"type\":\"null\"},", "true", "]}", "", 63},
        {QN_GRAMMAR_SCHEMA, "{\"type\":\"string\",\"pattern\":\"", "(", "a", ")",
         "\",\"maxLength\":9,\"not\":{\"pattern\":\"(?=x)y\"}}", 199},
        {QN_GRAMMAR_REGEX, "", "(", "a?", "){1,3}", "", 199},
        {QN_GRAMMAR_REGEX, "", "(?=", "a", ")", "a*", 150},
        {QN_GRAMMAR_GBNF, "root ::= ", "(", "\"a\"", ")*", "", 190},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err;
        qn_buf text = {0};
        qn_buf_text(&text, cases[i].before);
        repeat(&text, cases[i].open, cases[i].n);
        qn_buf_text(&text, cases[i].middle);
        repeat(&text, cases[i].close, cases[i].n);
        qn_buf_text(&text, cases[i].after);
        ASSERT_OK(create_on_thread(cases[i].kind, &text, 256 << 10, &err));
    }
}

// A list that must not be, by one option for each place: quadratic, so only short ones.
static void long_lists_under_not(void **state) {
    (void)state;
    static const char *const forms[][3] = {
        {"{\"not\":{\"const\":[0", ",0", "]}}"},
        {"{\"not\":{\"enum\":[1,[0", ",0", "]]}}"},
        {"{\"not\":{\"prefixItems\":[{\"const\":1}", ",{\"const\":1}", "]}}"},
        {"{\"not\":{\"items\":[{\"const\":1}", ",{\"const\":1}", "]}}"}};
    static const char *const keywords[] = {
        "#/not/const:", "#/not/enum:", "#/not/prefixItems:", "#/not/items:"};
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        qn_buf_text(&text, forms[i][0]);
        repeat(&text, forms[i][1], 20000);
        qn_buf_text(&text, forms[i][2]);
        ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "20001 items");
        assert_non_null(strstr(err.message, keywords[i]));
    }
    // Many of them, each short enough.
    qn_buf_text(&text, "{\"not\":{\"enum\":[1");
    for (int i = 0; i < 400; i++) {
        qn_buf_printf(&text, ",[%d", i);
        repeat(&text, ",0", 400);
        qn_buf_text(&text, "]");
    }
    qn_buf_text(&text, "]}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "too many steps");
    qn_buf_text(&text, "{\"not\":{\"const\":[0");
    repeat(&text, ",0", 99);
    qn_buf_text(&text, "]}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 20);
    qn_grammar_destroy(grammar);
}

static void add_fractions(qn_buf *out, int n) {
    for (int i = 0; i < n; i++) qn_buf_printf(out, "%s%d.%d", i ? "," : "", i, 12345 + i);
}

static void add_lists(qn_buf *out, int n) {
    for (int i = 0; i < n; i++) {
        qn_buf_text(out, i ? ",[" : "[");
        repeat(out, "0,", (size_t)n);
        qn_buf_printf(out, "%d]", i);
    }
}

// Values are compared by what they are: what that costs is paid for, however they are nested.
static void many_values(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"enum\":[");
    add_fractions(&text, 3000);
    qn_buf_text(&text, "]}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "{\"enum\":[");
    add_fractions(&text, 1000);
    qn_buf_text(&text, "],\"allOf\":[{\"enum\":[");
    add_fractions(&text, 900);
    qn_buf_text(&text, "]}]}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 10);
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "{\"enum\":[");
    add_lists(&text, 500);
    qn_buf_text(&text, "],\"allOf\":[{\"enum\":[");
    add_lists(&text, 500);
    qn_buf_text(&text, "]}]}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "too many steps");
    qn_buf_text(&text, "{\"enum\":[0.5],\"minimum\":1e400,\"not\":{\"enum\":[");
    for (int i = 0; i < 60000; i++) qn_buf_printf(&text, "%s1e%d", i ? "," : "", 300 + i % 90);
    qn_buf_text(&text, "]}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "under not");
}

// A limit is not an answer: such a value is refused by name, not left out.
static void numbers_without_room(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"{\"const\":1e500}", "#/const: a number of more than 400 digits"},
        {"{\"enum\":[1,1e-500]}", "#/enum: a number of more than 400 digits"},
        {"{\"const\":{\"a\":[1e500]}}", "#/const: a number of more than 400 digits"},
        {"{\"type\":\"integer\",\"enum\":[1,1e500]}", "#/type: a number of more than 400 digits"},
        {"{\"enum\":[1],\"allOf\":[{\"const\":1e500}]}", "a number of more than 400 digits"},
        {"{\"enum\":[1e500],\"maximum\":3}", "#/maximum: a number of more than 400 digits"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_err err;
        qn_grammar *grammar;
        ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, cases[i][0],
                                       strlen(cases[i][0]), NULL, &err),
                     QN_LIMIT, cases[i][1]);
    }
}

// A program's locale may write a comma for the point.
static void fractions_in_any_locale(void **state) {
    (void)state;
    static const char schema[] = "{\"enum\":[1.5,2.25]}";
    static const char *const commas[] = {"de_DE.UTF-8", "fr_FR.UTF-8", "de_DE", "fr_FR"};
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    bool fits = false;
    size_t i = 0;
    while (i < 4 && !setlocale(LC_NUMERIC, commas[i])) i++;
    if (i == 4) skip(); // no such locale here
    const qn_status status = qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, schema,
                                               sizeof schema - 1, NULL, &err);
    setlocale(LC_NUMERIC, "C");
    ASSERT_OK(status);
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    ASSERT_OK(qn_matcher_feed(&fits, matcher, "2.25", 4, &err));
    assert_true(fits && qn_matcher_may_end(matcher));
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

static void catastrophic_patterns(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "(a*)*b",
        "((a+)+)+$",
        "(a|a)*(a|a)*(a|a)*b",
        "(a{0,1000}){0,1000}b",
        "((a{0,100}){0,100}){0,100}",
        "(.*a){20}",
        "(x?){1000000}",
        "((((((((((a?){10}){10}){10}){10}){10}){10}){10}){10}){10}){10}",
        "(a|aa|aaa|aaaa){1,100000}b",
        ".{0,100000}.{0,100000}.{0,100000}x",
        "[^a].*[^b].*[^c].*[^d].*[^e].*",
    };
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        qn_err err;
        qn_grammar *grammar;
        ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_REGEX, patterns[i],
                                    strlen(patterns[i]), NULL, &err));
        follow(grammar, 30);
        qn_grammar_destroy(grammar);
    }
}

static void patterns_together(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    // Each is small; together they have very many states.
    qn_buf_text(&text, "{\"type\":\"string\",\"allOf\":[{}");
    for (int i = 0; i < 12; i++) qn_buf_printf(&text, ",{\"pattern\":\"^(.{%d})*$\"}", 11 + 2 * i);
    qn_buf_text(&text, "]}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "too complex");
    qn_buf_text(&text,
                "{\"type\":\"string\",\"pattern\":\"(a|b)*a(a|b){14}\",\"maxLength\":99999}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT,
                 "#/maxLength: the conditions on strings take too many steps");
}

static void large_texts(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    qn_buf_text(&text, "root ::= \"a\"\n");
    for (int i = 0; i < 30000; i++) qn_buf_printf(&text, "r%d ::= r%d? \"x\"*\n", i, i + 1);
    qn_buf_text(&text, "r30000 ::= \"b\"");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_GBNF, &text, &err));
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "root ::= r0*\n");
    for (int i = 0; i < 30000; i++) qn_buf_printf(&text, "r%d ::= r%d?\n", i, i + 1);
    qn_buf_text(&text, "r30000 ::= \"b\"?");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_GBNF, &text, &err));
    follow(grammar, 10);
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "root ::= \"");
    repeat(&text, "abcdefgh", 1 << 18);
    qn_buf_text(&text, "\"");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_GBNF, &text, &err), QN_LIMIT, "too large");
    qn_buf_text(&text, "root ::= \"a\"");
    repeat(&text, "?*", 100000);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_GBNF, &text, &err), QN_LIMIT, "nested too deeply");
    repeat(&text, "x", 9 << 20);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_GBNF, &text, &err), QN_LIMIT, "bytes, at most");
    qn_buf_text(&text, "{\"type\":\"object\",\"properties\":{\"a0\":{}");
    for (int i = 1; i < 100000; i++) qn_buf_printf(&text, ",\"a%d\":{}", i);
    qn_buf_text(&text, "}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "#/properties");
}

// Whether the whole text fits, token masks being made on the way.
static void assert_takes(const qn_grammar *grammar, const char *text) {
    qn_err err;
    qn_matcher *matcher;
    bool fits = true;
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    for (size_t i = 0; text[i]; i++) {
        const uint32_t *mask;
        ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
        ASSERT_OK(qn_matcher_feed(&fits, matcher, text + i, 1, &err));
        if (!fits) fail_msg("'%s' does not fit from byte %zu on", text, i);
    }
    assert_true(qn_matcher_may_end(matcher));
    qn_matcher_destroy(matcher);
}

static void add_choices(qn_buf *out, const char *before, int n, const char *after) {
    qn_buf_text(out, before);
    for (int i = 0; i < n; i++)
        qn_buf_printf(out,
                      "%s{\"type\":\"object\",\"properties\":{\"kind\":{\"const\":\"k%d\"}},"
                      "\"required\":[\"kind\"],\"additionalProperties\":false}",
                      i ? "," : "", i);
    qn_buf_text(out, after);
}

static void add_words(qn_buf *out, const char *before, int n, const char *after) {
    qn_buf_text(out, before);
    for (int i = 0; i < n; i++) qn_buf_printf(out, "%s\"w%d\"", i ? "," : "", i);
    qn_buf_text(out, after);
}

// Thousands of alternatives that begin alike are all kept.
static void many_choices(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    add_choices(&text, "{\"anyOf\":[", 1000, "]}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    assert_takes(grammar, "{\"kind\":\"k0\"}");
    assert_takes(grammar, "{\n    \"kind\": \"k999\"\n}");
    qn_grammar_destroy(grammar);
    add_choices(&text, "{\"type\":\"array\",\"items\":{\"anyOf\":[", 4000, "]}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    assert_takes(grammar, "[{\"kind\":\"k0\"},{\"kind\":\"k3999\"}]");
    qn_grammar_destroy(grammar);
    add_words(&text, "{\"enum\":[", 5000, "]}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    assert_takes(grammar, "\"w0\"");
    assert_takes(grammar, "\"w4999\"");
    qn_grammar_destroy(grammar);
    qn_buf_text(&text, "{\"anyOf\":[{\"$ref\":\"#/$defs/a\"}");
    repeat(&text, ",{\"$ref\":\"#/$defs/a\"}", 200000);
    qn_buf_text(&text, "],\"$defs\":{\"a\":{\"type\":\"null\"}}}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    assert_takes(grammar, "null");
    qn_grammar_destroy(grammar);
}

// More alternatives than can be followed: an error, at the creation where that shows already, and
// never a mask without some of them.
static void too_many_choices(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    const uint32_t *mask;
    qn_buf text = {0};
    qn_buf_text(&text, "root ::= \"0\"");
    for (int i = 1; i < 70000; i++) qn_buf_printf(&text, " | \"%d\"", i);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_GBNF, &text, &err), QN_LIMIT,
                 "a choice of 70000, at most 65536");
    // Thirty thousand at the start, three times as many behind the first letter, and another way.
    qn_buf_text(&text, "root ::= \"r\"");
    for (int i = 0; i < 30000; i++) qn_buf_printf(&text, " | \"q\" \"a\"? \"b\"? \"%d\"", i);
    ASSERT_OK(create(&grammar, QN_GRAMMAR_GBNF, &text, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    ASSERT_FAILS(qn_matcher_mask(&mask, matcher, &err), QN_LIMIT,
                 "more than 65536 ways to read the text at once");
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
    // A text that must nest more deeply than is followed.
    qn_buf_text(&text, "root ::= r0\n");
    for (int i = 0; i < 5000; i++) qn_buf_printf(&text, "r%d ::= \"(\" r%d \")\"\n", i, i + 1);
    qn_buf_text(&text, "r5000 ::= \"x\"");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_GBNF, &text, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    qn_status status = QN_OK;
    for (int i = 0; i < 5000 && !status; i++) {
        bool fits = false;
        status = qn_matcher_mask(&mask, matcher, &err);
        if (!status) ASSERT_OK(qn_matcher_feed(&fits, matcher, "(", 1, &err));
        assert_true(status || fits);
    }
    ASSERT_FAILS(status, QN_LIMIT, "without more than 4096 frames");
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

static void deep_texts(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    bool fits;
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, "true", 4, NULL, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    // A thousand levels are fine; a hundred thousand are where the grammar ends.
    for (int i = 0; i < 1000; i++) {
        ASSERT_OK(qn_matcher_feed(&fits, matcher, "[", 1, &err));
        assert_true(fits);
    }
    for (int i = 0; fits && i < 100000; i++)
        ASSERT_OK(qn_matcher_feed(&fits, matcher, "[", 1, &err));
    assert_false(fits);
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

// Enough different states that the matcher's memory fills and is swept, in the middle of a text.
static void sweeps(void **state) {
    (void)state;
    static const char pattern[] = "([ab]{3}c){90000}d";
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    bool fits = true;
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_REGEX, pattern, strlen(pattern),
                                NULL, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    for (int i = 0; i < 90000; i++) {
        const uint32_t *mask;
        ASSERT_OK(qn_matcher_feed(&fits, matcher, i % 3 ? "abac" : "babc", 4, &err));
        assert_true(fits);
        if (i % 5000 == 0) ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
    }
    assert_true(qn_matcher_get_stats(matcher).n_sweeps > 0);
    ASSERT_OK(qn_matcher_feed(&fits, matcher, "d", 1, &err));
    assert_true(fits && qn_matcher_is_done(matcher));
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
}

// The mask is what accept says, token by token, for a vocabulary larger and smaller than the
// tokenizer's.
static void mask_and_accept(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":5},"
        "\"minItems\":1,\"maxItems\":3}";
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher, *other;
    const int32_t n = tokenizer_info(tokenizer).n_tokens;
    bool fits;
    static const char *const starts[] = {"",         "[\"",     "[\"ab",
                                         "[\"abcde", "[\"\xc3", "[\"a\", \"b\""};
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, schema, strlen(schema),
                                NULL, &err));
    for (size_t s = 0; s < sizeof starts / sizeof *starts; s++) {
        const uint32_t *mask;
        ASSERT_OK(qn_matcher_create(&matcher, grammar, n + 100, &err));
        ASSERT_OK(qn_matcher_feed(&fits, matcher, starts[s], strlen(starts[s]), &err));
        assert_true(fits);
        ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
        ASSERT_OK(qn_matcher_create(&other, grammar, 0, &err));
        for (int32_t id = 0; id < n + 100; id++) {
            qn_matcher_reset(other);
            ASSERT_OK(qn_matcher_feed(&fits, other, starts[s], strlen(starts[s]), &err));
            const bool accepted = qn_matcher_accept(other, id, &err) == QN_OK;
            assert_int_equal(accepted, mask[id / 32] >> (id % 32) & 1);
        }
        qn_matcher_destroy(other);
        qn_matcher_destroy(matcher);
    }
    qn_grammar_destroy(grammar);
}

// Grammars that share a vocabulary outlive each other.
static void sharing(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *first, *second, *third;
    ASSERT_OK(qn_grammar_create(&first, tokenizer, QN_GRAMMAR_JSON, "", 0, NULL, &err));
    ASSERT_OK(qn_grammar_create_like(&second, first, QN_GRAMMAR_REGEX, "[a-z]+x", 7, NULL, &err));
    qn_grammar_destroy(first);
    ASSERT_OK(qn_grammar_create_like(&third, second, QN_GRAMMAR_SCHEMA, "true", 4, NULL, &err));
    qn_grammar_destroy(second);
    follow(third, 50);
    ASSERT_FAILS(qn_grammar_create_like(&first, third, QN_GRAMMAR_REGEX, "(", 1, NULL, &err),
                 QN_FORMAT, "without its )");
    qn_grammar_destroy(third);
}

static void ends(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_matcher *matcher;
    const int32_t n = tokenizer_info(tokenizer).n_tokens;
    const uint32_t *mask;
    bool fits;
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_REGEX, "ab?", 3, NULL, &err));
    ASSERT_OK(qn_matcher_create(&matcher, grammar, 0, &err));
    int32_t end = 0;
    while (end < n && !qn_tokenizer_is_end(tokenizer, end)) end++;
    assert_true(end < n);
    ASSERT_FAILS(qn_matcher_accept(matcher, end, &err), QN_ARGUMENT, "may not end here");
    ASSERT_OK(qn_matcher_feed(&fits, matcher, "a", 1, &err));
    assert_true(qn_matcher_may_end(matcher) && !qn_matcher_is_done(matcher));
    ASSERT_OK(qn_matcher_feed(&fits, matcher, "b", 1, &err));
    assert_true(qn_matcher_is_done(matcher));
    ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
    for (int32_t id = 0; id < n; id++)
        assert_int_equal(mask[id / 32] >> (id % 32) & 1, qn_tokenizer_is_end(tokenizer, id));
    ASSERT_OK(qn_matcher_accept(matcher, end, &err));
    assert_true(qn_matcher_is_done(matcher));
    ASSERT_OK(qn_matcher_mask(&mask, matcher, &err));
    assert_true(mask[end / 32] >> (end % 32) & 1);
    ASSERT_FAILS(qn_matcher_accept(matcher, -1, &err), QN_ARGUMENT, "token -1");
    ASSERT_FAILS(qn_matcher_accept(matcher, n, &err), QN_ARGUMENT, "the vocabulary has");
    qn_matcher_reset(matcher);
    assert_false(qn_matcher_is_done(matcher));
    qn_matcher_destroy(matcher);
    qn_grammar_destroy(grammar);
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, (qn_grammar_kind)9, "", 0, NULL, &err),
                 QN_ARGUMENT, "unknown kind 9");
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_JSON, "x", 1, NULL, &err),
                 QN_ARGUMENT, "takes no text");
}

// Lengths beside patterns: served for any bounds, or refused by name when the lengths that a
// pattern has do not repeat soon.
static void lengths_beside_patterns(void **state) {
    (void)state;
    qn_err err;
    qn_grammar *grammar;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"type\":\"string\",\"pattern\":\"^([a-z]+[.]){2,50}(com|org)$\","
                       "\"minLength\":999999999,\"maxLength\":1000000000}");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err));
    follow(grammar, 200);
    qn_grammar_destroy(grammar);
    // The lengths are all multiples of five primes; together they repeat after 13 thousand million.
    qn_buf_text(&text,
                "{\"type\":\"string\",\"pattern\":\"^((a{101})*|(b{103})*|(c{107})*|(d{109})*|"
                "(e{113})*)$\",\"maxLength\":1000000000}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT,
                 "#/maxLength: lengths are too complex");
    // Each string costs steps, and all of them together have one budget.
    qn_buf_text(&text,
                "{\"type\":\"object\",\"additionalProperties\":false,\"properties\":{\"x\":true");
    for (int i = 0; i < 3000; i++)
        qn_buf_printf(&text,
                      ",\"p%d\":{\"type\":\"string\",\"pattern\":\"(?i)^\\\\p{L}+%d(?!x)\","
                      "\"maxLength\":%d}",
                      i, i, 700 + i);
    qn_buf_text(&text, "}}");
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_SCHEMA, &text, &err), QN_LIMIT, "steps");
}

static void complex_look_around(void **state) {
    (void)state;
    static const char *const patterns[] = {
        "(?=.*a.{20}$)(?=.*b.{25}$).*",       // which of 2^20 characters were an a
        "(?!x)(?:(?:(?:a?){100}){100}){100}", // a million characters, written out
        "(?!x)((){16000000}){16000000}a{99999}",
        "(?<!(?:.{0,300}a){1,300})b",
    };
    qn_err err;
    qn_grammar *grammar;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        qn_buf text = {0};
        qn_buf_text(&text, patterns[i]);
        ASSERT_FAILS(create(&grammar, QN_GRAMMAR_REGEX, &text, &err), QN_LIMIT,
                     "look-around and inner anchors make it too complex");
    }
    qn_buf text = {0};
    repeat(&text, "(?=", 150);
    qn_buf_text(&text, "a");
    repeat(&text, ")", 150);
    qn_buf_text(&text, "a*");
    ASSERT_OK(create(&grammar, QN_GRAMMAR_REGEX, &text, &err));
    follow(grammar, 20);
    qn_grammar_destroy(grammar);
    repeat(&text, "\\p{L}", 9000);
    ASSERT_FAILS(create(&grammar, QN_GRAMMAR_REGEX, &text, &err), QN_LIMIT, "too many steps");
}

// --- giving up -----------------------------------------------------------------------------------

static void stop_at(void *arg, qn_log_level level, const char *text) {
    (void)level, (void)text;
    qn_stop_flag_set(arg);
}

// A flag stops what takes long, whenever it is set; fewer steps may be allowed than by default.
static void stops(void **state) {
    (void)state;
    qn_err err;
    qn_stop_flag *flag;
    qn_grammar *grammar = NULL;
    qn_buf text = {0};
    ASSERT_OK(qn_stop_flag_create(&flag, &err));
    qn_buf_text(&text, "{\"properties\":{\"a\":{\"format\":\"unheard-of\"}");
    for (int i = 0; i < 100; i++) qn_buf_printf(&text, ",\"p%d\":{\"enum\":[%d]}", i, i);
    qn_buf_text(&text, "}}");
    qn_grammar_opts opts = QN_INIT(qn_grammar_opts, .lenient = true, .stop = flag);
    ASSERT_OK(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, text.data, text.size, &opts,
                                &err));
    qn_grammar_destroy(grammar);
    opts.log = stop_at; // while it is made
    opts.log_arg = flag;
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, text.data, text.size,
                                   &opts, &err),
                 QN_STOPPED, "stopped");
    ASSERT_FAILS(
        qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_GBNF, "root ::= \"a\"", 12, &opts, &err),
        QN_STOPPED, "stopped");
    static const char values[] = "{\"enum\":[1,2,3,4,5,6,7,8,9,10,11,12]}";
    opts = QN_INIT(qn_grammar_opts, .max_steps = 10);
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_SCHEMA, values,
                                   sizeof values - 1, &opts, &err),
                 QN_LIMIT, "too many steps, more than 10");
    opts.max_steps = -1;
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_JSON, "", 0, &opts, &err),
                 QN_ARGUMENT, "-1");
    opts = QN_INIT(qn_grammar_opts, .max_token_steps = -1);
    ASSERT_FAILS(qn_grammar_create(&grammar, tokenizer, QN_GRAMMAR_JSON, "", 0, &opts, &err),
                 QN_ARGUMENT, "max_token_steps of -1");
    qn_buf_deinit(&text);
    qn_stop_flag_destroy(flag);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lengths_beside_patterns),
        cmocka_unit_test(complex_look_around),
        cmocka_unit_test(deep_schema),
        cmocka_unit_test(many_references),
        cmocka_unit_test(exponential_schema),
        cmocka_unit_test(large_conditions),
        cmocka_unit_test(counts_on_a_small_stack),
        cmocka_unit_test(nested_on_a_small_stack),
        cmocka_unit_test(long_lists_under_not),
        cmocka_unit_test(many_values),
        cmocka_unit_test(numbers_without_room),
        cmocka_unit_test(fractions_in_any_locale),
        cmocka_unit_test(catastrophic_patterns),
        cmocka_unit_test(patterns_together),
        cmocka_unit_test(large_texts),
        cmocka_unit_test(many_choices),
        cmocka_unit_test(too_many_choices),
        cmocka_unit_test(deep_texts),
        cmocka_unit_test(sweeps),
        cmocka_unit_test(sharing),
        cmocka_unit_test(mask_and_accept),
        cmocka_unit_test(ends),
        cmocka_unit_test(stops),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}

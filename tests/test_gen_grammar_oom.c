// Memory that runs out while a grammar is made and followed, at every place where it can. The
// linker sends the library's allocations through this file (--wrap, tests/CMakeLists.txt), and
// jansson's are sent here at run time. Every failure must be QN_MEMORY with a message, nothing
// leaked, the result untouched.
#include "alloc_rig.h"
#include "testing.h"

#include "core/json.h"
#include "gen/grammar/grammar.h"
#include "tokenizer/tokenizer.h"

#include <stdlib.h>

// --- the cases -----------------------------------------------------------------------------------

typedef struct one_case {
    qn_grammar_kind kind;
    const char *text;
} one_case;

static const one_case cases[] = {
    {QN_GRAMMAR_JSON, ""},
    {QN_GRAMMAR_REGEX, "^(a|[b-d]{2,5}|\\w+(x?y*){3})*$"},
    {QN_GRAMMAR_GBNF,
     "root ::= a* [^x-z\\n] \"text\"{2,3} | b\na ::= b? \"c\"\nb ::= \"(\" root \")\""},
    {QN_GRAMMAR_SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"a\": {\"$ref\": \"#/$defs/n\"}, \"b\": {\"type\": "
     "\"string\", \"pattern\": \"^[a-z]+$\", \"maxLength\": 3}, \"c\": {\"type\": \"array\", "
     "\"prefixItems\": [{\"type\": \"number\", \"minimum\": 0.5, \"maximum\": 2}], \"items\": "
     "{\"enum\": [1, \"x\", {\"y\": [null]}]}}, \"d\": {\"oneOf\": [{\"type\": \"null\"}, "
     "{\"type\": "
     "\"string\", \"format\": \"uuid\"}]}}, \"required\": [\"a\"], \"patternProperties\": {\"^x\": "
     "{\"type\": \"integer\", \"minimum\": -7}}, \"additionalProperties\": {\"type\": "
     "\"boolean\"}, "
     "\"$defs\": {\"n\": {\"allOf\": [{\"type\": \"integer\"}, {\"multipleOf\": 3, \"minimum\": 0, "
     "\"maximum\": 9}]}}}"},
    {QN_GRAMMAR_REGEX, "(?i)(?<!a)b\\b(?=[\\p{Lu}x]+$).*(?P<n>x{2,3})?|^(?!a$)(a|(?m)^$)|a+"},
    {QN_GRAMMAR_GBNF, "root ::= <[3]> !<[4]>* \"a\""},
    {QN_GRAMMAR_SCHEMA, "{\"type\": \"string\", \"pattern\": \"^(a\\\\b|\\\\d b)+\", "
                        "\"minLength\": 2, \"maxLength\": 900, "
                        "\"not\": {\"const\": \"b\"}}"},
    {QN_GRAMMAR_SCHEMA,
     "{\"$id\": \"http://x/y\", \"$defs\": {\"n\": {\"$anchor\": \"n\", \"type\": \"number\", "
     "\"multipleOf\": 0.5, \"minimum\": 0, \"maximum\": 9}}, \"type\": \"array\", "
     "\"prefixItems\": [{\"$ref\": \"#n\"}, {\"type\": \"string\", \"not\": {\"const\": \"x\"}}], "
     "\"items\": {\"enum\": [1, 2]}, \"contains\": {\"maximum\": 18446744073709551615}, "
     "\"maxItems\": 3}"},
    {QN_GRAMMAR_SCHEMA,
     "{\"type\": \"object\", \"properties\": {\"a\": {}, \"b\": {\"type\": \"array\", \"items\": "
     "{\"enum\": [1, 2]}, \"uniqueItems\": true}}, \"if\": {\"required\": [\"a\"]}, \"then\": "
     "{\"required\": [\"b\"]}, \"dependentRequired\": {\"b\": [\"c\"]}, \"anyOf\": "
     "[{\"properties\": "
     "{\"c\": {}}}], \"unevaluatedProperties\": false}"},
};

static qn_tokenizer *tokenizer;

static qn_status attempt(const one_case *one, qn_err *err) {
    qn_grammar *const untouched = (qn_grammar *)(void *)&countdown;
    qn_grammar *grammar = untouched;
    qn_matcher *matcher;
    const qn_status created =
        qn_grammar_create(&grammar, tokenizer, one->kind, one->text, strlen(one->text), NULL, err);
    if (created) {
        assert_ptr_equal(grammar, untouched);
        return created;
    }
    qn_status status = qn_matcher_create(&matcher, grammar, 0, err);
    if (!status) {
        // Nothing is allocated from here on.
        const long before = n_living;
        const uint32_t *mask;
        status = qn_matcher_mask(&mask, matcher, err);
        assert_int_equal(n_living, before);
        qn_matcher_destroy(matcher);
    }
    qn_grammar_destroy(grammar);
    return status;
}

static void starve(void **state) {
    const one_case *one = *state;
    for (long n = 0;; n++) {
        qn_err err = {0};
        const long before = n_living;
        countdown = n;
        const qn_status status = attempt(one, &err);
        const bool failed_one = countdown < 0;
        countdown = -1;
        if (n_living != before)
            fail_msg("%ld blocks leaked when allocation %ld failed", n_living - before, n);
        if (!failed_one) {
            if (status) fail_msg("%s, though no allocation failed", err.message);
            assert_true(n > 20);
            return;
        }
        if (status != QN_MEMORY)
            fail_msg("status %s when allocation %ld failed: %s", qn_status_name(status), n,
                     err.message);
        assert_true(!status || err.message[0]);
    }
}

static int set_up(void **state) {
    (void)state;
    static const char vocabulary[] =
        "{\"added_tokens\": [{\"id\": 0, \"content\": \"<end>\", \"special\": true}], \"decoder\": "
        "{\"type\": \"ByteLevel\"}, \"model\": "
        "{\"type\": \"BPE\", \"vocab\": {\"<end>\": 0, \"{\": 1, \"\\\"\": 2, \"a\": 3, \"(\": 4, "
        "\"text\": 5, \"aa\": 6, \":\": 7, \"[\": 8}, \"merges\": []}}";
    qn_err err;
    json_set_alloc_funcs(json_alloc, __wrap_free);
    const qn_status status =
        qn_tokenizer_from_json(&tokenizer, vocabulary, sizeof vocabulary - 1, "small", &err);
    if (status) print_error("%s\n", err.message);
    return (int)status;
}

static int tear_down(void **state) {
    (void)state;
    qn_tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    static one_case copies[sizeof cases / sizeof *cases];
    memcpy(copies, cases, sizeof cases);
    struct CMUnitTest tests[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        tests[i] = (struct CMUnitTest)cmocka_unit_test_prestate(starve, &copies[i]);
    return cmocka_run_group_tests_name("grammar oom", tests, set_up, tear_down);
}

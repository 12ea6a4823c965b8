// Parts of an answer: the same whatever pieces the text comes in.
#include "testing.h"

#include "core/buf.h"

#include <stdlib.h>

// What came, as one text: "R(...)" reasoning, "T(...)" text, "C(name arguments)".
typedef struct seen {
    qn_buf text;
    int kind; // of the part that is open; -1: none
} seen;

static void close_part(seen *s) {
    if (s->kind >= 0) qn_buf_text(&s->text, ")");
    s->kind = -1;
}

static void note(void *arg, const qn_part *part) {
    seen *s = arg;
    if (part->kind == QN_PART_CALL) {
        close_part(s);
        qn_buf_printf(&s->text, "C(%s %s)", part->name, part->arguments);
        assert_true(part->text_size > 0);
        return;
    }
    assert_true(part->text_size > 0);
    if (s->kind != (int)part->kind) {
        close_part(s);
        qn_buf_text(&s->text, part->kind == QN_PART_REASONING ? "R(" : "T(");
    }
    s->kind = (int)part->kind;
    qn_buf_add(&s->text, part->text, part->text_size);
}

static void feed(qn_parts *parts, const char *text, size_t size, seen *s) {
    qn_err err = {0};
    ASSERT_OK(qn_parts_feed(parts, -1, text, size, note, s, &err));
}

// Cut at two places, and at every byte where they are 0.
static void check(const char *text, size_t size, const qn_parts_opts *opts, size_t a, size_t b,
                  const char *want) {
    qn_err err = {0};
    qn_parts *parts = NULL;
    seen s = {.kind = -1};
    ASSERT_OK(qn_parts_create(&parts, opts, &err));
    if (b == 0) {
        for (size_t i = 0; i < size; i++) feed(parts, text + i, 1, &s);
    } else {
        feed(parts, text, a, &s);
        feed(parts, text + a, b - a, &s);
        feed(parts, text + b, size - b, &s);
    }
    ASSERT_OK(qn_parts_finish(parts, note, &s, &err));
    close_part(&s);
    assert_false(s.text.failed);
    if (strcmp(s.text.data ? s.text.data : "", want) != 0)
        fail_msg("'%s' cut at %zu and %zu:\n got '%s'\nwant '%s'", text, a, b, s.text.data, want);
    qn_buf_deinit(&s.text);
    qn_parts_destroy(parts);
}

static const struct {
    const char *text, *want;
    const char *prompt;
    bool bare;
} cases[] = {
    {"", "", NULL, false},
    {"Hello.\n", "T(Hello.\n)", NULL, false},
    {" a < b <thin [TOOL x<", "T( a < b <thin [TOOL x<)", NULL, false},
    // Reasoning, and the blanks around its marks.
    {"<think>\nSo, 2.\n</think>\n\nTwo.", "R(So, 2.)T(Two.)", NULL, false},
    {"\n<think></think>\n\nTwo.", "T(Two.)", NULL, false},
    {"So, 2.\n</think>\n\nTwo.", "R(So, 2.)T(Two.)", "user\nHi<|im_end|>\n<think>\n", false},
    {"Two. </think>", "T(Two. </think>)", "<think>\n\n</think>\n\n", false},
    {"<think>never closed, </thin ", "R(never closed, </thin )", NULL, false},
    {"[THINK]a[/THINK]b", "R(a)T(b)", NULL, false},
    {"<|channel>thought\na<channel|>b", "R(a)T(b)", NULL, false},
    {"<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b",
     "R(a)T(b)", NULL, false},
    {"It writes <think> first.", "T(It writes <think> first.)", NULL, false},
    {"                    <think>a</think>b", "T(    )R(a)T(b)", NULL, false},
    // Qwen and Hermes.
    {"<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1, \"b\": 0.1}}\n</tool_call>",
     "C(add {\"a\":1,\"b\":0.1})", NULL, false},
    {"Let me see.\n<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n"
     "<tool_call>{\"name\": \"g\", \"arguments\": \"{\\\"x\\\": \\\"</x>\\\"}\"}</tool_call>\nDone",
     "T(Let me see.)C(f {})C(g {\"x\":\"</x>\"})T(Done)", NULL, false},
    {"<think>I call.</think><tool_call>{\"name\": \"f\"}</tool_call>", "R(I call.)C(f {})", NULL,
     false},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "C(f {})", NULL, false},
    {"a\n<tool_call>{\"name\": \"f\", \"argum", "T(a\n<tool_call>{\"name\": \"f\", \"argum)", NULL,
     false},
    {"a\n<tool_call>nonsense</tool_call>\nb", "T(a\n<tool_call>nonsense</tool_call>\nb)", NULL,
     false},
    {"<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>",
     "T(<tool_call>{\"name\": 1, \"arguments\": {}}</tool_call>)", NULL, false},
    {"<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "T(<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>)", NULL, false},
    {"<tool_call>\xff</tool_call>", "T(<tool_call>\xff</tool_call>)", NULL, false},
    // Qwen3-Coder and Qwen3.5.
    {"<tool_call>\n<function=get_weather>\n<parameter=city>\nNew York\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "C(get_weather {\"city\":\"New York\",\"days\":3})", NULL, false},
    {"<tool_call><function=now></function><function=later>\n<parameter=text>\na\n\"b\"\n"
     "</parameter>\n</function></tool_call>",
     "C(now {})C(later {\"text\":\"a\\n\\\"b\\\"\"})", NULL, false},
    {"<tool_call><function=f><parameter=a>[1, {\"x\": null}]</tool_call>",
     "C(f {\"a\":[1,{\"x\":null}]})", NULL, false},
    {"<tool_call><function=f><parameter=>1</parameter></function></tool_call>",
     "T(<tool_call><function=f><parameter=>1</parameter></function></tool_call>)", NULL, false},
    // Mistral.
    {"[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": \"b\"}, \"id\": \"123456789\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "C(f {\"a\":\"b\"})C(g {})", NULL, false},
    {"Well.[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g[CALL_ID]9[ARGS]{}",
     "T(Well.)C(f {\"a\":1})C(g {})", NULL, false},
    {"[TOOL_CALLS] are made.", "T([TOOL_CALLS] are made.)", NULL, false},
    // Llama 3.
    {"{\"name\": \"f\", \"parameters\": {\"a\": \"}\\\"{\"}}", "C(f {\"a\":\"}\\\"{\"})", NULL,
     true},
    {"\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {}} ", "C(f {})", NULL, true},
    {"{\"name\": \"f\", \"parameters\": {}}", "T({\"name\": \"f\", \"parameters\": {}})", NULL,
     false},
    {"{\"name\": \"Eve\", \"age\": 9}, yes", "T({\"name\": \"Eve\", \"age\": 9}, yes)", NULL, true},
    {"{\"nam\": <tool_call>{\"name\": \"f\"}</tool_call>", "T({\"nam\":)C(f {})", NULL, true},
    {" { \"name\": \"f\", ", "T( { \"name\": \"f\", )", NULL, true},
    {"<|python_tag|>{\"name\": \"f\", \"parameters\": {\"a\": 1}}; {\"name\": \"g\", "
     "\"parameters\": {}}",
     "C(f {\"a\":1})C(g {})", NULL, false},
    {"<|python_tag|>print(1)", "C(python {\"code\":\"print(1)\"})", NULL, false},
};

static void test_cases(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *text = cases[i].text;
        const size_t size = strlen(text);
        const qn_parts_opts opts =
            QN_INIT(qn_parts_opts, .prompt = cases[i].prompt,
                    .prompt_size = cases[i].prompt ? strlen(cases[i].prompt) : 0,
                    .bare_calls = cases[i].bare);
        check(text, size, &opts, 0, 0, cases[i].want);
        for (size_t a = 0; a <= size; a++) {
            for (size_t b = a ? a : 1; b <= size; b++)
                check(text, size, &opts, a, b, cases[i].want);
        }
    }
}

// --- special tokens ------------------------------------------------------------------------------

// The text of a special token is empty; its id says what it was.
static void test_special_tokens(void **state) {
    (void)state;
    qn_err err = {0};
    qn_tokenizer *tokenizer = NULL;
    qn_parts *parts = NULL;
    seen s = {.kind = -1};
    const char *path = TEST_DATA "/parts/tokenizer.json";
    ASSERT_OK(qn_tokenizer_open(&tokenizer, path, &err));
    const int32_t open = qn_tokenizer_find(tokenizer, "[THINK]", 7),
                  close = qn_tokenizer_find(tokenizer, "[/THINK]", 8),
                  call = qn_tokenizer_find(tokenizer, "[TOOL_CALLS]", 12),
                  other = qn_tokenizer_find(tokenizer, "<think>", 7);
    assert_true(open >= 0 && close >= 0 && call >= 0 && other >= 0);
    ASSERT_OK(qn_parts_create(&parts, &QN_INIT(qn_parts_opts, .tokenizer = tokenizer), &err));
    ASSERT_OK(qn_parts_feed(parts, open, "", 0, note, &s, &err));
    ASSERT_OK(qn_parts_feed(parts, 0, "a", 1, note, &s, &err));
    ASSERT_OK(qn_parts_feed(parts, close, "", 0, note, &s, &err));
    // This one is not special, so that it comes as text.
    ASSERT_OK(qn_parts_feed(parts, other, "<think>", 7, note, &s, &err));
    ASSERT_OK(qn_parts_feed(parts, -1, "</think>b ", 10, note, &s, &err));
    ASSERT_OK(qn_parts_feed(parts, call, "", 0, note, &s, &err));
    ASSERT_OK(qn_parts_feed(parts, 0, "[{\"name\": \"f\"}]", 15, note, &s, &err));
    ASSERT_OK(qn_parts_finish(parts, note, &s, &err));
    close_part(&s);
    assert_string_equal(s.text.data, "R(a)T(b)C(f {})");
    qn_buf_deinit(&s.text);
    qn_parts_destroy(parts);
    qn_tokenizer_close(tokenizer);
}

// --- hostile text --------------------------------------------------------------------------------

static void count(void *arg, const qn_part *part) { *(size_t *)arg += part->text_size; }

// Much text of one kind, in pieces of some size: all of it comes out, and soon.
static void flood(const char *unit, size_t times, size_t piece) {
    qn_err err = {0};
    qn_parts *parts = NULL;
    const size_t n = strlen(unit), size = n * times;
    char *text = malloc(size);
    for (size_t i = 0; i < times; i++) memcpy(text + i * n, unit, n);
    size_t out = 0, in = 0;
    ASSERT_OK(qn_parts_create(&parts, &QN_INIT(qn_parts_opts, .bare_calls = true), &err));
    for (; in < size; in += piece) {
        const size_t more = size - in < piece ? size - in : piece;
        ASSERT_OK(qn_parts_feed(parts, -1, text + in, more, count, &out, &err));
        if (in + more > out + (1 << 20) + 64)
            fail_msg("%zu bytes of '%s' are held", in - out, unit);
    }
    ASSERT_OK(qn_parts_finish(parts, count, &out, &err));
    assert_int_equal(out, size);
    free(text);
    qn_parts_destroy(parts);
}

static void test_hostile(void **state) {
    (void)state;
    static const char *const units[] = {"<tool_call>",
                                        "<",
                                        "[TOOL_CALLS]",
                                        "<|python_tag|",
                                        "{\"name\": ",
                                        "{",
                                        "[",
                                        " \n",
                                        "{\"name\"\"",
                                        "<|channel|>",
                                        "a<tool_call><function=f>"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        flood(units[i], 300000, 4096);
        flood(units[i], 100000, 1);
    }
}

// A call of a mebibyte is text, whatever it says.
static void test_long_call(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const char head[] = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"",
                      tail[] = "\"}}</tool_call>";
    for (int is_long = 0; is_long < 2; is_long++) {
        qn_buf text = {0};
        const size_t fill = N - strlen(head) - strlen(tail) + (size_t)is_long;
        qn_buf_text(&text, head);
        for (size_t i = 0; i < fill; i++) qn_buf_add(&text, "x", 1);
        qn_buf_text(&text, tail);
        qn_err err = {0};
        qn_parts *parts = NULL;
        seen s = {.kind = -1};
        ASSERT_OK(qn_parts_create(&parts, NULL, &err));
        feed(parts, text.data, text.size, &s);
        ASSERT_OK(qn_parts_finish(parts, note, &s, &err));
        assert_int_equal(s.text.data[0], is_long ? 'T' : 'C');
        qn_buf_deinit(&s.text);
        qn_buf_deinit(&text);
        qn_parts_destroy(parts);
    }
}

// Many parameters without an end are read in linear time.
static void test_many_parameters(void **state) {
    (void)state;
    qn_buf text = {0};
    qn_buf_text(&text, "<tool_call><function=f>");
    for (int i = 0; i < 60000; i++) qn_buf_text(&text, "<parameter=a>");
    qn_buf_text(&text, "</tool_call>");
    qn_err err = {0};
    qn_parts *parts = NULL;
    size_t out = 0;
    ASSERT_OK(qn_parts_create(&parts, NULL, &err));
    ASSERT_OK(qn_parts_feed(parts, -1, text.data, text.size, count, &out, &err));
    ASSERT_OK(qn_parts_finish(parts, count, &out, &err));
    assert_int_equal(out, text.size);
    qn_buf_deinit(&text);
    qn_parts_destroy(parts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),           cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_hostile),         cmocka_unit_test(test_long_call),
        cmocka_unit_test(test_many_parameters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

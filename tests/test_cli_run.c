// quern run without a terminal: templates, tools, reasoning, session files, bad input.
#include "cli_run.h"

#include "core/buf.h"

#include <sys/stat.h>

#define QUESTION "What is 10 + 62?"

static void save_text(const char *name, const char *text) {
    cli_save(cli_path(name), text, strlen(text));
}

// --- templates -----------------------------------------------------------------------------------

static const char chatml[] =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\\n' }}";

// A path that stays; one of cli_path's is used again after a while.
typedef struct place {
    char path[CLI_MOST_PATH];
} place;

static place at(const char *name) {
    place p;
    snprintf(p.path, sizeof p.path, "%s", cli_path(name));
    return p;
}

static void test_template(void **state) {
    (void)state;
    save_text("same.jinja", chatml);
    save_text("shout.jinja", "{{ messages[0].content|length }}{{ messages[0].content }}");
    save_text("no.jinja", "{{ raise_exception('I take no ' ~ messages[0].role ~ ' today') }}");
    save_text("bad.jinja", "{% for %}");
    cli_result same = CLI_RUN("run", DRAFT, QUESTION, "--template", cli_path("same.jinja")),
               model =
                   CLI_RUN("run", DRAFT, QUESTION, "--template", MODELS "/quern-mini-Q8_0.gguf"),
               shout = CLI_RUN("run", DRAFT, "<|im_end|>", "--template", cli_path("shout.jinja"),
                               "-n1", "--json"),
               no = CLI_RUN("run", DRAFT, QUESTION, "--template", cli_path("no.jinja")),
               bad = CLI_RUN("run", DRAFT, QUESTION, "--template", cli_path("bad.jinja"));
    cli_assert_done(&same);
    cli_assert_done(&model);
    assert_string_equal(same.out, "10 + 62 = 72\n");
    assert_string_equal(model.out, same.out);
    assert_int_equal(shout.code, 0); // a template that changes texts says so
    assert_non_null(strstr(shout.err, "changes the texts of messages"));
    cli_assert_fails(&no, 1, "I take no user today");
    cli_assert_fails(&bad, 1, "bad.jinja: ");
    cli_free(&same), cli_free(&model), cli_free(&shout), cli_free(&no), cli_free(&bad);
}

// --- parts ---------------------------------------------------------------------------------------

// A template that opens reasoning makes all of a short answer reasoning: events have it, a pipe
// not.
static void test_reasoning(void **state) {
    (void)state;
    qn_buf text = {0};
    qn_buf_printf(&text,
                  "%s{%% if enable_thinking is defined and enable_thinking %%}<think>\n"
                  "{%% endif %%}",
                  chatml);
    save_text("think.jinja", text.data);
    qn_buf_deinit(&text);
    const place think = at("think.jinja");
    const char *path = think.path;
    cli_result off = CLI_RUN("run", DRAFT, QUESTION, "--template", path, "--reasoning", "off"),
               plain = CLI_RUN("run", DRAFT, QUESTION, "--template", path),
               on = CLI_RUN("run", DRAFT, QUESTION, "--template", path, "--reasoning", "on"),
               json = CLI_RUN("run", DRAFT, QUESTION, "--template", path, "--reasoning", "on",
                              "--json");
    assert_string_equal(off.out, "10 + 62 = 72\n");
    assert_string_equal(off.out, plain.out);
    assert_string_equal(on.out, "\n");
    assert_non_null(strstr(json.out, "\"text\": \"\", \"reasoning\": "));
    assert_string_equal(off.err, "");
    assert_string_equal(on.err, "");
    cli_free(&off), cli_free(&plain), cli_free(&on), cli_free(&json);
}

static void reasoning_without_a_switch_is_told(void **state) {
    (void)state;
    save_text("plain.jinja", chatml);
    const place plain = at("plain.jinja");
    cli_result off =
        CLI_RUN("run", DRAFT, QUESTION, "--template", plain.path, "--reasoning", "off");
    assert_int_equal(off.code, 0);
    assert_string_equal(off.out, "10 + 62 = 72\n");
    assert_string_equal(off.err, "quern: note: --reasoning off changes nothing: the chat template "
                                 "has no switch for reasoning\n");
    cli_free(&off);
}

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"add\", \"description\": \"Add two "
    "numbers.\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
    "\"number\"}, \"b\": {\"type\": \"number\"}}, \"required\": [\"a\", \"b\"]}}}]";

// What the model writes as a call is told as one.
static void test_calls(void **state) {
    (void)state;
    // An answer that must be a call: the prompt has its beginning.
    save_text("tools.json", tools);
    save_text("none.json", "{\"a\": 1}");
    cli_result text = CLI_RUN("run", MODELS "/quern-mini-Q8_0.gguf", "Add 3 and 4.", "--tools",
                              cli_path("tools.json")),
               json = CLI_RUN("run", MODELS "/quern-mini-Q8_0.gguf", "Add 3 and 4.", "--tools",
                              cli_path("tools.json"), "--json"),
               none = CLI_RUN("run", DRAFT, "Hi", "--tools", cli_path("none.json"));
    cli_assert_done(&text);
    cli_assert_done(&json);
    const bool is_call = strstr(text.out, "<tool_call>") != NULL;
    if (is_call != (strstr(json.out, "{\"tool_call\": {\"name\": ") != NULL))
        fail_msg("'%s', and '%s'", text.out, json.out);
    assert_true(is_call);
    cli_assert_fails(&none, 1, "none.json: an object, want a list of tools");
    cli_free(&text), cli_free(&json), cli_free(&none);
}

// --- sessions ------------------------------------------------------------------------------------

static void test_session(void **state) {
    (void)state;
    const place talk = at("talk.json");
    const char *path = talk.path;
    cli_result a = CLI_RUN("run", DRAFT, "My name is Kevin.", "--session", path, "--temp", "0",
                           "--stop", "z\n\nz", "--stop", "yyy"),
               b = CLI_RUN("run", DRAFT, "What is my name?", "--session", path),
               raw = CLI_RUN("run", DRAFT, "a", "--raw", "--session", path),
               folder = CLI_RUN("run", DRAFT, "a", "--session", MODELS),
               other = CLI_RUN("run", MODELS "/quern-mini-Q8_0.gguf", "a", "--session", path);
    cli_assert_done(&a);
    cli_assert_done(&b);
    assert_non_null(strstr(b.out, "Kevin"));
    char *text = cli_load(path, NULL);
    json_t *root = cli_json(text);
    assert_int_equal(json_array_size(json_object_get(root, "messages")), 4);
    const json_t *settings = json_object_get(root, "settings");
    const json_t *stops = json_object_get(settings, "stop");
    assert_int_equal(json_array_size(stops), 2);
    assert_string_equal(json_string_value(json_array_get(stops, 0)), "z\n\nz");
    assert_string_equal(json_string_value(json_array_get(stops, 1)), "yyy");
    cli_assert_fails(&raw, 2, "--session is for chat");
    cli_assert_fails(&folder, 2, "is a folder, want a file");
    assert_string_equal(folder.out, "");
    cli_assert_fails(&other, 1, "a conversation with quern-draft (qwen3, 2622976 parameters");
    assert_non_null(strstr(other.err, "the model here is quern-mini (qwen3, 10493696 parameters"));
    json_decref(root);
    free(text);
    cli_free(&a), cli_free(&b), cli_free(&raw), cli_free(&folder), cli_free(&other);
}

// An empty file is a new session; a place that nothing can be kept in is told before the answer.
static void test_new_sessions(void **state) {
    (void)state;
    const place empty = at("empty.json"), nowhere = at("no/such/folder/talk.json"),
                closed = at("closed"), locked = at("closed/talk.json");
    save_text("empty.json", "");
    assert_int_equal(mkdir(closed.path, 0500), 0);
    cli_result a = CLI_RUN("run", DRAFT, "My name is Kevin.", "--session", empty.path),
               b = CLI_RUN("run", DRAFT, "What is my name?", "--session", empty.path),
               c = CLI_RUN("run", DRAFT, "Hi", "--session", nowhere.path),
               d = CLI_RUN("run", DRAFT, "Hi", "--session", locked.path);
    cli_assert_done(&a);
    cli_assert_done(&b);
    assert_non_null(strstr(b.out, "Kevin"));
    cli_assert_fails(&c, 1, "no/such/folder/talk.json: cannot create");
    if (geteuid() != 0) cli_assert_fails(&d, 1, "closed/talk.json: cannot create");
    cli_free(&a), cli_free(&b), cli_free(&c), cli_free(&d);
}

// A file that is no session is neither read nor replaced.
static void test_bad_sessions(void **state) {
    (void)state;
#define MODEL                                                                                      \
    "\"model\": {\"name\": \"quern-draft\", \"architecture\": \"qwen3\", \"parameters\": "         \
    "2622976, "                                                                                    \
    "\"vocabulary\": 4096}"
    static const struct {
        const char *text, *part;
    } cases[] = {
        {" ", "not valid JSON"},
        {"hello", "bad.json: not a session file of quern: not valid JSON"},
        {"{}", "not a session file of quern"},
        {"[]", "not a session file of quern"},
        {"{\"quern_session\": 2}", "a session of version 2, this program knows 1"},
        {"{\"quern_session\": 1}", "a conversation with a model without a name"},
        {"{\"quern_session\": 1, \"model\": [], \"messages\": []}", "a conversation with"},
        {"{\"quern_session\": 1, " MODEL "}", "no list \"messages\""},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [1]}", "message 0: want the strings"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [{\"role\": \"user\", \"content\": 1}]}",
         "message 0: want the strings"},
        {"{\"quern_session\": 1, " MODEL
         ", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"sound\"}]}]}",
         "bad.json: message 0: part 0: type 'sound', want 'text' or 'image'"},
        {"{\"quern_session\": 1, " MODEL
         ", \"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}",
         "bad.json: message 0: part 0: want the string \"text\""},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": 1}",
         "\"settings\" is not an object"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"frob\": \"1\"}}",
         "no setting 'frob'"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"temp\": \"-1\"}}",
         "--temp: '-1', want"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"temp\": 1}}",
         "bad.json: --temp: want a string"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"temp\": [\"1\"]}}",
         "bad.json: --temp: want a string"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"stop\": [1]}}",
         "bad.json: --stop: text 0, want a string"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"stop\": \"\"}}",
         "bad.json: --stop: the text is empty"},
        {"{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": {\"mirostat\": \"1\"}}",
         "bad.json: --mirostat: '1', want"},
        {"{\"quern_session\": 1, \"a\": \"\xff\"}", "not valid JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        save_text("bad.json", cases[i].text);
        cli_result r = CLI_RUN("run", DRAFT, "Hi", "--session", cli_path("bad.json"));
        cli_assert_fails(&r, 1, cases[i].part);
        char *after = cli_load(cli_path("bad.json"), NULL);
        assert_string_equal(after, cases[i].text);
        free(after);
        cli_free(&r);
    }
}

// Deep nesting, and a file that is too large.
static void test_hostile_sessions(void **state) {
    (void)state;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"quern_session\": 1, \"model\": ");
    for (int i = 0; i < 100000; i++) qn_buf_text(&text, "[");
    cli_save(cli_path("deep.json"), text.data, text.size);
    qn_buf_deinit(&text);
    cli_result deep = CLI_RUN("run", DRAFT, "Hi", "--session", cli_path("deep.json"));
    cli_assert_fails(&deep, 1,
                     "deep.json: not a session file of quern: JSON nested more than 128 deep at "
                     "line 1, column 158");
    cli_free(&deep);
    save_text("large.json", "{");
    assert_int_equal(truncate(cli_path("large.json"), 1 << 30), 0);
    cli_result large = CLI_RUN("run", DRAFT, "Hi", "--session", cli_path("large.json"));
    cli_assert_fails(&large, 1, "large.json");
    cli_free(&large);
}

// --- bad input -----------------------------------------------------------------------------------

static void test_bad_text(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"a\xff"
         "b",
         "the prompt: no UTF-8 at byte 1 (0xff)"},
        {"\xc3", "the prompt: no UTF-8 at byte 0 (0xc3)"},
        {"abc\xed\xa0\x80", "the prompt: no UTF-8 at byte 3 (0xed)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result text = CLI_RUN("run", DRAFT, "-p", cases[i].text),
                   piped = CLI_RUN_IN(cases[i].text, "run", DRAFT),
                   raw = CLI_RUN("run", DRAFT, "--raw", "-p", cases[i].text),
                   system = CLI_RUN("run", DRAFT, "Hi", "--system", cases[i].text);
        cli_assert_fails(&text, 1, cases[i].part);
        cli_assert_fails(&piped, 1, cases[i].part);
        cli_assert_fails(&raw, 1, cases[i].part);
        cli_assert_fails(&system, 1, "the system message: no UTF-8 at byte");
        cli_free(&text), cli_free(&piped), cli_free(&raw), cli_free(&system);
    }
    cli_save(cli_path("nul"), "a\0b", 3);
    cli_result nul = CLI_RUN("run", DRAFT, "-f", cli_path("nul"));
    cli_assert_fails(&nul, 1, "/nul: a NUL at byte 1");
    cli_free(&nul);
    cli_save(cli_path("latin"), "caf\xe9", 4);
    cli_result latin = CLI_RUN("run", DRAFT, "-f", cli_path("latin"));
    cli_assert_fails(&latin, 1, "/latin: no UTF-8 at byte 3 (0xe9)");
    cli_free(&latin);
}

// Devices without end, and what is too long: read to the limit and no further.
static void endless_input_is_refused_at_its_limit(void **state) {
    (void)state;
    static const struct {
        const char *args[8], *part;
    } cases[] = {
        {{"run", DRAFT, "-f", "/dev/zero"}, "/dev/zero: more than 67108864 bytes"},
        {{"run", DRAFT, "a", "--tools", "/dev/zero"}, "/dev/zero: more than 16777216 bytes"},
        {{"run", DRAFT, "a", "--grammar-file", "/dev/zero"}, "/dev/zero: more than 8388608 bytes"},
        {{"run", DRAFT, "a", "-jf", "/dev/zero"}, "/dev/zero: more than 8388608 bytes"},
        {{"eval", DRAFT, "--tasks", "/dev/zero"}, "/dev/zero: more than 268435456 bytes"},
        {{"eval", DRAFT, "--ppl", "/dev/zero"}, "/dev/zero: more than 268435456 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
    static const char *const piped[] = {"sh",  "-c",  "\"$0\" template \"$1\" < /dev/zero",
                                        QUERN, DRAFT, NULL};
    cli_result r = cli_run_with(&(cli_input){.program = piped[0]}, piped + 1);
    cli_assert_fails(&r, 1, "standard input: more than 67108864 bytes");
    cli_free(&r);
}

// The deepest tools and the deepest constant of a schema, on a stack of 256 KiB.
static void deep_json_fits_a_small_stack(void **state) {
    (void)state;
#if defined(__SANITIZE_ADDRESS__)
    skip(); // its frames are several times as large
#endif
    enum { DEPTH = 127 };
    qn_buf text = {0};
    qn_buf_text(&text, "[{\"a\":");
    for (int i = 0; i < DEPTH - 2; i++) qn_buf_text(&text, "[");
    for (int i = 0; i < DEPTH - 2; i++) qn_buf_text(&text, "]");
    qn_buf_text(&text, "}]");
    cli_save(cli_path("tools.json"), text.data, text.size);
    qn_buf_clear(&text);
    qn_buf_text(&text, "{\"const\":");
    for (int i = 0; i < DEPTH; i++) qn_buf_text(&text, "[");
    for (int i = 0; i < DEPTH; i++) qn_buf_text(&text, "]");
    qn_buf_text(&text, "}");
    cli_save(cli_path("schema.json"), text.data, text.size);
    qn_buf_deinit(&text);
    const char *const args[] = {"-c",      "ulimit -s 256; exec \"$0\" \"$@\"",
                                QUERN,     "run",
                                DRAFT,     "Hi",
                                "-n",      "2",
                                "--tools", cli_path("tools.json"),
                                "-jf",     cli_path("schema.json"),
                                NULL};
    cli_result r = cli_run_with(&(cli_input){.program = "sh"}, args);
    if (r.code != 0) fail_msg("exit code %d, stderr '%s'", r.code, r.err);
    cli_free(&r);
}

static void tools_that_are_not_objects_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[1,2]", "tools.json: tool 0 is a number, want an object"},
        {"[{}, \"f\"]", "tools.json: tool 1 is a string, want an object"},
        {"{\"name\": \"f\"}", "tools.json: an object, want a list of tools"},
        {"[\n{\"name\": \"f\"},\n]",
         "tools.json: not valid JSON at line 3, column 1: found ']', want a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        save_text("tools.json", cases[i].text);
        cli_result r = CLI_RUN("run", DRAFT, "Hi", "--tools", cli_path("tools.json"));
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
}

static void test_bad_settings(void **state) {
    (void)state;
    char missing[CLI_MOST_PATH];
    snprintf(missing, sizeof missing, "%s", cli_path("missing"));
    const struct {
        const char *args[10], *part;
        int code;
    } cases[] = {
        {{"run", DRAFT, "a", "--samplers", "top_k;frob"}, "no sampler 'frob'; there are", 2},
        {{"run", DRAFT, "a", "--top-p", "2"}, "--top-p: '2', want a number from 0 to 1", 2},
        {{"run", DRAFT, "a", "--temp", "nan"}, "--temp: 'nan', want a number", 2},
        {{"run", DRAFT, "a", "--top-k", "-1"}, "--top-k: '-1', want", 2},
        {{"run", DRAFT, "a", "--logit-bias", "x+1"}, "x+1", 2},
        {{"run", DRAFT, "a", "-j", "{\"type\": \"frob\"}"}, "--json-schema: schema, #/type", 1},
        {{"run", DRAFT, "a", "-j", "{\"type\": \"object\""},
         "--json-schema: schema: not valid JSON at line 1, column 18: the text ends where a comma "
         "or '}' should be",
         1},
        {{"run", DRAFT, "a", "-j", "{\"a\": 1},\n{\"b\": 2}"},
         "schema: not valid JSON at line 1, column 9: found ',', want nothing after the value",
         1},
        {{"run", DRAFT, "a", "-j", "{"}, "--json-schema: ", 1},
        {{"run", DRAFT, "a", "-j", "{\"format\": \"iban\"}"},
         "schema, #/format: 'iban' is not supported",
         1},
        {{"run", DRAFT, "a", "--schema-lenient"}, "--schema-lenient needs --json-schema", 2},
        {{"run", DRAFT, "a", "--schema-closed"}, "--schema-closed needs --json-schema", 2},
        {{"run", DRAFT, "a", "-jf", missing}, "/missing: cannot open", 1},
        {{"run", DRAFT, "a", "--grammar", "root ::= frob"}, "--grammar: ", 1},
        {{"run", DRAFT, "a", "--regex", "(a"}, "--regex: ", 1},
        {{"run", DRAFT, "a", "--regex", "a", "--json-mode"}, "give one of --grammar,", 2},
        {{"run", DRAFT, "a", "--draft", MINI "/qwen3"}, "the draft model has 512 tokens", 1},
        {{"run", DRAFT, "a", "--draft", missing}, "/missing: cannot open", 1},
        {{"run", DRAFT, "a", "--draft-max", "17"}, "--draft-max: '17', want a whole number", 2},
        {{"run", DRAFT, "a", "--stop", ""}, "--stop: the text is empty", 2},
        {{"run", DRAFT, "a", "--logprobs", "3"}, "--logprobs needs --json", 2},
        {{"run", DRAFT, "a", "--min-tokens", "9", "-n", "3"},
         "--min-tokens 9 is more than --tokens 3",
         2},
        {{"run", DRAFT, "a", "--template", "chatml"},
         "--template wants a .jinja file or a model: chatml: cannot open",
         1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, cases[i].code, cases[i].part);
        cli_free(&r);
    }
}

// More stop texts than the library takes; so many come from a file only.
static void test_many_stops(void **state) {
    (void)state;
    qn_buf text = {0};
    qn_buf_text(&text, "{\"quern_session\": 1, " MODEL ", \"messages\": [], \"settings\": "
                       "{\"stop\": [\"x\"");
    for (int i = 0; i < 100000; i++) qn_buf_printf(&text, ", \"stop%d\"", i);
    qn_buf_text(&text, "]}}");
    cli_save(cli_path("stops.json"), text.data, text.size);
    qn_buf_deinit(&text);
    cli_result r = CLI_RUN("run", DRAFT, "a", "--session", cli_path("stops.json"));
    cli_assert_fails(&r, 1, "100001");
    cli_free(&r);
}

// --- structure and guesses -----------------------------------------------------------------------

static void test_structure(void **state) {
    (void)state;
    static const char schema[] =
        "{\"type\": \"object\", \"properties\": {\"a\": {\"type\": \"integer\", \"maximum\": 9, "
        "\"minimum\": 0}}, \"required\": [\"a\"], \"additionalProperties\": false}";
    save_text("yes.gbnf", "root ::= \"yes\" | \"no\"\n");
    cli_result object = CLI_RUN("run", DRAFT, "Hi", "-j", schema),
               regex = CLI_RUN("run", DRAFT, "Hi", "--regex", "(red|blue), [0-9]{3}"),
               rules = CLI_RUN("run", DRAFT, "Hi", "--grammar-file", cli_path("yes.gbnf"));
    cli_assert_done(&object);
    json_t *value = cli_json(object.out);
    assert_int_equal(json_object_size(value), 1);
    assert_true(json_is_integer(json_object_get(value, "a")));
    json_decref(value);
    assert_true(strncmp(regex.out, "red, ", 5) == 0 || strncmp(regex.out, "blue, ", 6) == 0);
    assert_true(strcmp(rules.out, "yes\n") == 0 || strcmp(rules.out, "no\n") == 0);
    cli_free(&object), cli_free(&regex), cli_free(&rules);
}

// Guessing changes the figures and nothing else.
static void test_draft(void **state) {
    (void)state;
    const char *model = MODELS "/quern-mini-Q8_0.gguf";
    cli_result plain = CLI_RUN("run", model, "Tell me a story.", "-n60"),
               draft = CLI_RUN("run", model, "Tell me a story.", "-n60", "-md", DRAFT),
               both = CLI_RUN("run", model, "Tell me a story.", "-n60", "-md", DRAFT, "--lookup",
                              "--draft-max=3"),
               json = CLI_RUN("run", model, QUESTION, "--draft", DRAFT, "--json", "--logprobs=2");
    cli_assert_done(&plain);
    cli_assert_done(&draft);
    assert_string_equal(plain.out, draft.out);
    assert_string_equal(plain.out, both.out);
    assert_non_null(strstr(json.out, "\"logprob\": "));
    assert_non_null(strstr(json.out, "\"top\": [{\"token\": "));
    assert_non_null(strstr(json.out, "\"drafted_tokens\": "));
    cli_free(&plain), cli_free(&draft), cli_free(&both), cli_free(&json);
}

// A full context ends the answer, or is shifted on request.
static void test_shift(void **state) {
    (void)state;
    cli_result ends = CLI_RUN("run", DRAFT, "--raw", "-p", "Once upon", "-c", "32", "-n60"),
               goes = CLI_RUN("run", DRAFT, "--raw", "-p", "Once upon", "-c", "32", "-n60",
                              "--context-shift", "--keep", "2", "--ignore-eos"),
               read = CLI_RUN_IN("Once upon", "run", DRAFT, "--raw", "-f", "-", "-c", "32", "-n60",
                                 "--json");
    assert_int_equal(ends.code, 0);
    assert_non_null(strstr(read.out, "\"reason\": \"length\", \"context_full\": true"));
    assert_non_null(strstr(ends.err, "stopped because the context of 32 tokens is full"));
    assert_int_equal(goes.code, 0);
    assert_non_null(strstr(goes.err, "the context of 32 tokens was full"));
    assert_true(strlen(goes.out) > strlen(ends.out));
    cli_free(&ends), cli_free(&goes), cli_free(&read);
}

// --- pipes ---------------------------------------------------------------------------------------

// A pipe gets the answer and nothing else, and stderr stays empty.
static void test_pipe(void **state) {
    (void)state;
    cli_result r = CLI_RUN_IN(QUESTION "\n", "run", DRAFT);
    assert_int_equal(r.code, 0);
    assert_string_equal(r.out, "10 + 62 = 72\n");
    assert_string_equal(r.err, "");
    cli_free(&r);
}

static void assert_session_has(const char *path, const char *part) {
    char *text = cli_load(path, NULL);
    if (!strstr(text, part)) fail_msg("no %s in %s", part, text);
    free(text);
}

// What is piped goes before a text on the command line.
static void test_input_before_prompt(void **state) {
    (void)state;
    const char *path = cli_path("both.json");
    cli_result r = CLI_RUN_IN("My name is Kevin.\n\n", "run", DRAFT, "-n", "4", "--session", path,
                              "-p", "What is my name?");
    assert_int_equal(r.code, 0);
    cli_free(&r);
    assert_session_has(path, "\"My name is Kevin.\\n\\nWhat is my name?\"");
    // With --raw the two are one text.
    cli_result parts = CLI_RUN_IN("What is 10 ", "run", DRAFT, "--raw", "-n", "8", "+ 62?");
    cli_result whole = CLI_RUN("run", DRAFT, "--raw", "-n", "8", "-p", "What is 10 + 62?");
    cli_assert_done(&parts);
    cli_assert_done(&whole);
    assert_string_equal(parts.out, whole.out);
    cli_free(&parts), cli_free(&whole);
    r = CLI_RUN_IN("\xff", "run", DRAFT, "-p", "a");
    cli_assert_fails(&r, 1, "standard input: ");
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_input_before_prompt),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_reasoning),
        cmocka_unit_test(reasoning_without_a_switch_is_told),
        cmocka_unit_test(test_calls),
        cmocka_unit_test(test_session),
        cmocka_unit_test(test_new_sessions),
        cmocka_unit_test(test_bad_sessions),
        cmocka_unit_test(test_hostile_sessions),
        cmocka_unit_test(test_bad_text),
        cmocka_unit_test(test_pipe),
        cmocka_unit_test(test_bad_settings),
        cmocka_unit_test(test_many_stops),
        cmocka_unit_test(test_structure),
        cmocka_unit_test(test_draft),
        cmocka_unit_test(test_shift),
        cmocka_unit_test(endless_input_is_refused_at_its_limit),
        cmocka_unit_test(tools_that_are_not_objects_are_refused),
        cmocka_unit_test(deep_json_fits_a_small_stack),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

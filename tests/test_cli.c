// The command line: bad input, and what each command prints.
#include "cli_run.h"

#include "core/buf.h"
#include "gguf_writer.h"

#include <math.h>
#include <sys/stat.h>

// --- bad input -----------------------------------------------------------------------------------

static void make_folder(const char *name) { assert_int_equal(mkdir(cli_path(name), 0700), 0); }

static void assert_logits_fail(const char *model, const char *part) {
    cli_result r = CLI_RUN("logits", model, "--ids", "1");
    cli_assert_fails(&r, 1, part);
    if (!strstr(r.err, model)) fail_msg("'%s' does not name %s", r.err, model);
    cli_free(&r);
}

static void test_bad_models(void **state) {
    (void)state;
    assert_logits_fail(cli_path("nothing.gguf"), "No such file");
    assert_logits_fail("/dev/null", "a device, want a regular file");
    make_folder("empty");
    assert_logits_fail(cli_path("empty"), "no model in this folder");
    make_folder("bare");
    cli_save(cli_path("bare/config.json"), "{}", 2);
    assert_logits_fail(cli_path("bare"), "has config.json but no .safetensors");
    make_folder("lost");
    size_t size;
    char *tensors = cli_load(MINI "/qwen3/model.safetensors", &size);
    cli_save(cli_path("lost/model.safetensors"), tensors, size);
    free(tensors);
    assert_logits_fail(cli_path("lost"), "has safetensors but no config.json");
    cli_save(cli_path("zero.gguf"), "", 0);
    assert_logits_fail(cli_path("zero.gguf"), "the file is empty");
    cli_save(cli_path("magic.gguf"), "\xff\xfenot a model at all", 20);
    assert_logits_fail(cli_path("magic.gguf"), "not a model file: begins with");
}

static void test_truncated(void **state) {
    (void)state;
    static const char *const files[] = {MINI "/qwen3/qwen3-bf16.gguf",
                                        MINI "/llama32/model.safetensors"};
    static const char *const names[] = {"cut.gguf", "cut.safetensors"};
    for (int f = 0; f < 2; f++) {
        size_t size;
        char *data = cli_load(files[f], &size);
        const size_t ends[] = {3,        7,        23,          24,          100,     size / 16,
                               size / 4, size / 2, size - 5000, size - 1000, size - 1};
        for (size_t i = 0; i < sizeof ends / sizeof *ends; i++) {
            cli_save(cli_path(names[f]), data, ends[i]);
            assert_logits_fail(cli_path(names[f]), i < 4 ? names[f] : "ends too early");
        }
        free(data);
    }
}

static void test_unknown_architecture(void **state) {
    (void)state;
    const float zeros[4] = {0};
    gguf_writer w = {0};
    gguf_add_string(&w, "general.architecture", "frobnicator");
    gguf_add_string(&w, "general.name", "a\x1b[31mred");
    gguf_add_tensor(&w, "token_embd.weight", 0, 2, (int64_t[]){2, 2}, zeros, sizeof zeros);
    const char *path = cli_path("unknown.gguf");
    gguf_write(&w, path);
    assert_logits_fail(path, "unknown architecture 'frobnicator'; known: llama qwen2 qwen3");
    // Looking at it shows what can be seen, and says what is wrong.
    cli_result text = CLI_RUN("inspect", path, "--tensors", "--keys");
    assert_int_equal(text.code, 1);
    assert_non_null(strstr(text.out, "token_embd.weight (2, 2)"));
    assert_non_null(strstr(text.out, "general.architecture (string) = \"frobnicator\""));
    assert_null(strchr(text.out, '\x1b'));
    assert_non_null(strstr(text.err, "unknown architecture 'frobnicator'"));
    cli_result json = CLI_RUN("inspect", path, "--json");
    json_t *root = cli_json(json.out);
    assert_int_equal(json.code, 1);
    assert_non_null(strstr(json_string_value(json_object_get(root, "error")), "frobnicator"));
    json_decref(root);
    cli_free(&text), cli_free(&json);
}

// The key matrix of layer 0 with its dimensions swapped: as many bytes, another shape.
static void test_wrong_shape(void **state) {
    (void)state;
    static const char name[] = "blk.0.attn_k.weight";
    size_t size;
    char *data = cli_load(MINI "/qwen3/qwen3-bf16.gguf", &size);
    char *dims = NULL;
    for (size_t i = 0; i + sizeof name < size && !dims; i++) {
        if (memcmp(data + i, name, sizeof name - 1) == 0) dims = data + i + sizeof name - 1 + 4;
    }
    assert_non_null(dims);
    char first[8];
    memcpy(first, dims, 8);
    memmove(dims, dims + 8, 8);
    memcpy(dims + 8, first, 8);
    cli_save(cli_path("shape.gguf"), data, size);
    free(data);
    cli_result r = CLI_RUN("logits", cli_path("shape.gguf"), "--ids", "1");
    cli_assert_fails(&r, 1, name);
    assert_non_null(strstr(r.err, "(64, 32)"));
    assert_non_null(strstr(r.err, "(32, 64)"));
    cli_free(&r);
}

static void test_bad_prompts(void **state) {
    (void)state;
    static char many[2 * 2049 + 1];
    for (int i = 0; i < 2049; i++) memcpy(many + 2 * i, "1,", 2);
    char missing[CLI_MOST_PATH], inside[CLI_MOST_PATH];
    snprintf(missing, sizeof missing, "%s", cli_path("missing"));
    snprintf(inside, sizeof inside, "%s", cli_path("missing/a.svg"));
    const struct {
        const char *args[8], *part;
    } cases[] = {
        {{"logits", DRAFT, "--ids", "4096"}, "--ids: id 4096 (number 1), this model has 0 to 4095"},
        {{"logits", DRAFT, "--ids", "1,-1"}, "--ids: id -1 (number 2), this model has 0 to 4095"},
        {{"logits", DRAFT, "--ids", "99999999999"}, "id 99999999999"},
        {{"logits", DRAFT, "--ids", ""}, "no token ids were given"},
        {{"logits", DRAFT, "--ids", many}, "2049 tokens, the context has 2048"},
        {{"run", DRAFT, "-p", ""}, "the prompt is empty"},
        {{"run", DRAFT}, "the prompt is empty"}, // stdin is empty
        {{"run", DRAFT, "-p", "a", "-c", "999999"},
         "--context: context of 999999 tokens, the model has 2048"},
        {{"run", DRAFT, "-p", "one two three four", "-c", "4"}, " tokens, the context 4"},
        {{"run", DRAFT, "--raw", "-p", "one", "-c", "1"}, "the prompt has 1 token, the context 1"},
        {{"run", "Tell me a story"},
         "Tell me a story: no such file; 'quern list' shows models by name, for a "
         "text "
         "use -p"},
        {{"run", DRAFT, "-f", missing}, "/missing: cannot open"},
        {{"inspect", DRAFT, "-c", "4096"}, "--context: context of 4096 tokens, the model has 2048"},
        {{"detokenize", DRAFT, "4096"}, "IDS: id 4096 (number 1), this model has 0 to 4095"},
        {{"detokenize", DRAFT, "99999999999"}, "id 99999999999"},
        {{"tokenize", missing, "a"}, "/missing: cannot open"},
        {{"graph", DRAFT, "--stage", "low", "-T", "2049"},
         "--rows 2049, --cached 0: the model has a context of 2048 tokens"},
        {{"graph", DRAFT, "--stage", "low", "-T1", "-S2048"},
         "--rows 1, --cached 2048: the model has a context of 2048 tokens"},
        {{"graph", DRAFT, "--svg", inside}, "/missing/a.svg: cannot create"},
        {{"logits", DRAFT, "--ids", "1", "-o", "/"}, "is a folder"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
    cli_result r = CLI_RUN_IN("1 2 three", "detokenize", DRAFT);
    cli_assert_fails(&r, 1, "standard input: 'three' is not a token id");
    cli_free(&r);
}

static void test_broken_output(void **state) {
    (void)state;
    static const struct {
        const char *to, *part;
    } cases[] = {{"/dev/full", "No space left"}, {"-", "cannot write to standard output"}};
    for (int i = 0; i < 2; i++) {
        cli_result r = cli_run_with(&(cli_input){.stdout_to = cases[i].to},
                                    (const char *[]){"inspect", DRAFT, NULL});
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
    // A reader that leaves early is no failure to talk about.
    char command[CLI_MOST_PATH];
    snprintf(command, sizeof command, "'%s' graph '%s' | head -c 10", QUERN, DRAFT);
    cli_result r =
        cli_run_with(&(cli_input){.program = "sh"}, (const char *[]){"-c", command, NULL});
    cli_assert_done(&r);
    assert_string_equal(r.out, "graph \"qwe");
    cli_free(&r);
}

// --- logits --------------------------------------------------------------------------------------

static void test_logits_json(void **state) {
    (void)state;
    cli_result r = CLI_RUN("logits", DRAFT, "-p", "Once upon a"),
               same = CLI_RUN("logits", DRAFT, "-p", "Once upon a", "-t1", "--chunk=1", "--naive");
    cli_assert_done(&r);
    assert_string_equal(r.out, same.out);
    json_t *list = cli_json(r.out);
    assert_int_equal(json_array_size(list), 10);
    double before = INFINITY, sum = 0;
    for (size_t i = 0; i < 10; i++) {
        const json_t *row = json_array_get(list, i);
        const double logit = json_real_value(json_object_get(row, "logit"));
        const double logprob = json_real_value(json_object_get(row, "logprob"));
        assert_int_equal(json_object_size(row), 4);
        assert_true(json_is_integer(json_object_get(row, "id")));
        assert_true(logit <= before);
        before = logit;
        sum += exp(logprob);
    }
    assert_true(sum > 0.5 && sum < 1.0001);
    const json_t *best = json_array_get(list, 0);
    assert_string_equal(json_string_value(json_object_get(best, "token")), "\xc4\xa0time");
    // More or fewer of them, in the same order.
    cli_result two = CLI_RUN("logits", DRAFT, "-p", "Once upon a", "--top", "2"),
               every = CLI_RUN("logits", DRAFT, "-p", "Once upon a", "--top", "99999");
    json_t *short_list = cli_json(two.out), *long_list = cli_json(every.out);
    assert_int_equal(json_array_size(short_list), 2);
    assert_int_equal(json_array_size(long_list), 4096);
    for (size_t i = 0; i < 10; i++) {
        assert_true(json_equal(json_array_get(list, i), json_array_get(long_list, i)));
        if (i < 2) assert_true(json_equal(json_array_get(list, i), json_array_get(short_list, i)));
    }
    json_decref(list), json_decref(short_list), json_decref(long_list);
    cli_free(&r), cli_free(&same), cli_free(&two), cli_free(&every);
}

// The tensor of a safetensors file, by name: its shape and the place of its bytes.
static const char *find_tensor(const char *file, size_t size, const char *name, int64_t shape[2],
                               size_t *bytes) {
    uint64_t header;
    memcpy(&header, file, sizeof header);
    assert_true(header % 8 == 0 && header + 8 <= size);
    json_t *root = json_loadb(file + 8, (size_t)header, 0, NULL);
    const json_t *tensor = json_object_get(root, name);
    const json_t *offsets = json_object_get(tensor, "data_offsets");
    if (!tensor) fail_msg("no tensor %s", name);
    assert_string_equal(json_string_value(json_object_get(tensor, "dtype")), "F32");
    for (size_t i = 0; i < 2; i++)
        shape[i] = json_integer_value(json_array_get(json_object_get(tensor, "shape"), i));
    const size_t start = (size_t)json_integer_value(json_array_get(offsets, 0));
    const size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    assert_true(start <= end && 8 + header + end <= size);
    assert_int_equal(end - start, shape[0] * shape[1] * 4);
    *bytes = end - start;
    json_decref(root);
    return file + 8 + header + start;
}

// |a - b| / |b|, of n floats each.
static double relative_error(const char *a, const char *b, size_t n) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        float x, y;
        memcpy(&x, a + i * sizeof x, sizeof x);
        memcpy(&y, b + i * sizeof y, sizeof y);
        difference += ((double)x - (double)y) * ((double)x - (double)y);
        size += (double)y * (double)y;
    }
    return sqrt(difference / size);
}

static void test_logits_file(void **state) {
    (void)state;
    const char *all = cli_path("all.safetensors");
    char *last = strdup(cli_path("last.safetensors")), *ref = strdup(cli_path("ref.safetensors"));
    cli_result r = CLI_RUN("logits", DRAFT, "--ids", "5,6,7", "--all", "--hidden", "-o", all),
               r2 = CLI_RUN("logits", DRAFT, "--ids=5, 6 7", "-o", last);
    cli_assert_done(&r);
    cli_assert_done(&r2);
    assert_string_equal(r.out, "");
    size_t all_size, last_size, n, n_last;
    int64_t shape[2];
    char *all_data = cli_load(all, &all_size), *last_data = cli_load(last, &last_size);
    const char *rows = find_tensor(all_data, all_size, "logits", shape, &n);
    assert_true(shape[0] == 3 && shape[1] == 4096);
    const char *row = find_tensor(last_data, last_size, "logits", shape, &n_last);
    assert_true(shape[0] == 1 && shape[1] == 4096);
    assert_memory_equal(rows + n - n_last, row, n_last);
    // The reference is near, and another computation.
    cli_result r3 = CLI_RUN("logits", DRAFT, "--ids=5,6,7", "--ref", "-o", ref);
    size_t ref_size;
    cli_assert_done(&r3);
    char *ref_data = cli_load(ref, &ref_size);
    const char *want = find_tensor(ref_data, ref_size, "logits", shape, &n_last);
    const double error = relative_error(row, want, n_last / sizeof(float));
    if (!(error > 0 && error < 1e-2)) fail_msg("%g away from the reference", error);
    free(ref_data);
    cli_free(&r3);
    for (int k = 0; k <= 2; k++) {
        char name[16];
        snprintf(name, sizeof name, "hidden.%d", k);
        find_tensor(all_data, all_size, name, shape, &n);
        assert_true(shape[0] == 3 && shape[1] == 256);
    }
    free(all_data), free(last_data);
    cli_free(&r), cli_free(&r2);
    // A link stays a link, and nothing temporary is left behind.
    const char *link = cli_path("link.safetensors");
    assert_int_equal(symlink(last, link), 0);
    cli_result linked = CLI_RUN("logits", DRAFT, "--ids", "5", "-o", link);
    struct stat st;
    cli_assert_done(&linked);
    assert_true(lstat(link, &st) == 0 && S_ISLNK(st.st_mode));
    cli_free(&linked);
    cli_result look =
        cli_run_with(&(cli_input){.program = "sh"},
                     (const char *[]){"-c", "ls \"$0\" | grep -c tmp", cli_folder, NULL});
    assert_string_equal(look.out, "0\n");
    cli_free(&look);
    free(last), free(ref);
}

// --- tokens --------------------------------------------------------------------------------------

static void test_tokens(void **state) {
    (void)state;
    static const char text[] =
        "The fox said: \"Good morning!\"\n\n  12345 caf\xc3\xa9 \xe2\x82\xac";
    static const char *const models[] = {DRAFT, MINI "/qwen3", MINI "/qwen3/tokenizer.json",
                                         MINI "/gemma/tokenizer.model",
                                         MINI "/gemma3/gemma3-bf16.gguf"};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        cli_result ids = CLI_RUN("tokenize", models[i], text);
        cli_result piped = CLI_RUN_IN(text, "tokenize", models[i]);
        cli_assert_done(&ids);
        assert_string_equal(ids.out, piped.out);
        cli_result back = CLI_RUN("detokenize", models[i], ids.out);
        cli_result piped_back = CLI_RUN_IN(ids.out, "detokenize", models[i]);
        cli_assert_done(&back);
        assert_string_equal(back.out, text);
        assert_string_equal(piped_back.out, text);
        cli_free(&ids), cli_free(&piped), cli_free(&back), cli_free(&piped_back);
    }
}

static void test_tokens_json(void **state) {
    (void)state;
    static const char text[] = "<|im_start|>user";
    cli_result plain = CLI_RUN("tokenize", DRAFT, "--json", text),
               special = CLI_RUN("tokenize", DRAFT, "--json", "--special", text),
               bos = CLI_RUN("tokenize", MINI "/gemma", "--json", "--bos", "a"),
               empty = CLI_RUN("tokenize", DRAFT, "");
    json_t *a = cli_json(plain.out), *b = cli_json(special.out), *c = cli_json(bos.out);
    const size_t n = json_array_size(json_object_get(a, "ids"));
    assert_int_equal(n, json_array_size(json_object_get(a, "tokens")));
    assert_true(n > 2);
    assert_int_equal(json_array_size(json_object_get(b, "ids")), 2);
    assert_string_equal(json_string_value(json_array_get(json_object_get(b, "tokens"), 0)),
                        "<|im_start|>");
    assert_string_equal(json_string_value(json_array_get(json_object_get(c, "tokens"), 0)), "<s>");
    assert_string_equal(empty.out, "\n");
    json_decref(a), json_decref(b), json_decref(c);
    cli_result without = CLI_RUN("detokenize", DRAFT, "1,1222"),
               with = CLI_RUN("detokenize", "--special", DRAFT, "1", "1222");
    assert_string_equal(without.out, "Hello");
    assert_string_equal(with.out, "<|im_start|>Hello");
    cli_free(&plain), cli_free(&special), cli_free(&bos), cli_free(&empty);
    cli_free(&without), cli_free(&with);
}

// --- template ------------------------------------------------------------------------------------

#define TEMPLATES TEST_DATA "/templates"
#define HI        "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]"

static void assert_prompt(const char *model, const char *request, const char *want) {
    cli_result r = CLI_RUN_IN(request, "template", model);
    cli_assert_done(&r);
    assert_string_equal(r.out, want);
    cli_free(&r);
}

static void test_template(void **state) {
    (void)state;
    static const char chatml[] = "<|im_start|>user\nHi<|im_end|>\n";
    static const char prompt[] = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_prompt(DRAFT, HI "}", prompt);
    assert_prompt(DRAFT, HI ", \"add_generation_prompt\": false}", chatml);
    static const char bare[] = "<|im_start|>user\nHi<|im_end|><|im_start|>assistant";
    assert_prompt(MINI "/qwen3", HI "}", bare);
    assert_prompt(MINI "/qwen3/qwen3-bf16.gguf", HI "}", bare);
    assert_prompt(TEMPLATES "/Qwen-Qwen3-0.6B.jinja",
                  HI ", \"kwargs\": {\"enable_thinking\": false}}",
                  "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n");
    cli_save(cli_path("t.jinja"), "{{ bos_token }}{{ strftime_now('%d %b %Y') }}\n", 45);
    assert_prompt(cli_path("t.jinja"), HI ", \"bos_token\": \"<s>\", \"now\": \"2026-01-02\"}",
                  "<s>02 Jan 2026");
}

// The templates of a folder by name, and the tokens that its configuration names.
static void test_template_folder(void **state) {
    (void)state;
    static const char config[] =
        "{\"bos_token\": {\"content\": \"<b>\"}, \"eos_token\": \"<e>\", \"chat_template\": "
        "[{\"name\": \"default\", \"template\": \"{{ bos_token }}main\"}, "
        "{\"name\": \"tool_use\", \"template\": \"tools{{ eos_token }}\"}]}";
    make_folder("named");
    cli_save(cli_path("named/tokenizer_config.json"), config, sizeof config - 1);
    assert_prompt(cli_path("named"), HI "}", "<b>main");
    cli_result named = CLI_RUN_IN(HI "}", "template", cli_path("named"), "--name", "tool_use"),
               none = CLI_RUN_IN(HI "}", "template", cli_path("named"), "--name", "rag");
    assert_string_equal(named.out, "tools<e>");
    cli_assert_fails(&none, 1, "no chat template named 'rag'");
    cli_free(&named), cli_free(&none);
    cli_save(cli_path("named/chat_template.jinja"), "{{ eos_token }}file", 19);
    assert_prompt(cli_path("named"), HI "}", "<e>file");
}

static void test_template_bad(void **state) {
    (void)state;
    static const struct {
        const char *text, *request, *part;
    } cases[] = {
        {"a\n{{ 1 + }}", HI "}", "t.jinja: template: line 2, column 8: unexpected '}}'"},
        {"{{ messages.x.y }}", HI "}", "template: line 1, column 14: 'list' has no 'x'"},
        {"{{ raise_exception('No ' + messages[0].role) }}", HI "}", "No user"},
        {"x", "", "not valid JSON"},
        {"x", "{}", "\"messages\" is missing"},
        {"x", HI ", \"tool\": []}", "unknown name 'tool'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_save(cli_path("t.jinja"), cases[i].text, strlen(cases[i].text));
        cli_result r = CLI_RUN_IN(cases[i].request, "template", cli_path("t.jinja"));
        cli_assert_fails(&r, 1, cases[i].part);
        cli_free(&r);
    }
    cli_result r = CLI_RUN_IN(HI "}", "template", MINI "/gemma/tokenizer.model");
    cli_assert_fails(&r, 1, "tokenizer.model");
    cli_free(&r);
}

// --- run -----------------------------------------------------------------------------------------

#define QUESTION "What is 10 + 62?"

static void test_run_text(void **state) {
    (void)state;
    cli_result a = CLI_RUN("run", DRAFT, "-p", QUESTION), b = CLI_RUN("run", DRAFT, "-p", QUESTION),
               piped = CLI_RUN_IN(QUESTION "\n", "run", DRAFT, "-t", "1"),
               raw = CLI_RUN("run", DRAFT, "--raw", "-p",
                             "<|im_start|>user\n" QUESTION "<|im_end|>\n<|im_start|>assistant\n");
    cli_assert_done(&a);
    assert_string_equal(a.out, "10 + 62 = 72\n"); // as the task file wants it
    assert_string_equal(a.out, b.out);
    assert_string_equal(a.out, piped.out);
    assert_string_equal(a.out, raw.out);
    cli_save(cli_path("question"), QUESTION "\r\n", strlen(QUESTION) + 2);
    cli_result file = CLI_RUN("run", DRAFT, "--file", cli_path("question"));
    assert_string_equal(a.out, file.out);
    // The text may stand after the model; -1 and 0 are the limits of the model itself.
    cli_result word = CLI_RUN("run", DRAFT, QUESTION, "-n", "-1", "-c", "0");
    cli_assert_done(&word);
    assert_string_equal(a.out, word.out);
    cli_free(&a), cli_free(&b), cli_free(&piped), cli_free(&raw), cli_free(&file), cli_free(&word);
}

static void test_run_limits(void **state) {
    (void)state;
    cli_result two = CLI_RUN("run", DRAFT, "-p", QUESTION, "-n", "2"),
               cut = CLI_RUN("run", DRAFT, "-p", QUESTION, "--stop", "zzz", "--stop", "62 ="),
               part = CLI_RUN("run", DRAFT, "-p", QUESTION, "--stop", "72 apples"),
               full = CLI_RUN("run", DRAFT, "--raw", "-p", "Once upon a", "-c", "6");
    assert_int_equal(strncmp(two.out, "10", 2), 0);
    assert_true(strlen(two.out) < 6);
    assert_string_equal(cut.out, "10 + \n");
    assert_string_equal(part.out, "10 + 62 = 72\n"); // held back, then shown
    assert_int_equal(full.code, 0);
    assert_non_null(strstr(full.err, "the context of 6 tokens is full"));
    cli_free(&two), cli_free(&cut), cli_free(&part), cli_free(&full);
}

static void test_run_sampling(void **state) {
    (void)state;
    static const char prompt[] = "Once upon a time, there was";
    cli_result a = CLI_RUN("run", DRAFT, "--raw", "-p", prompt, "-n12", "--temp", "2", "--seed=7"),
               b = CLI_RUN("run", DRAFT, "--raw", "-p", prompt, "-n12", "--temp", "2", "--seed=7"),
               c = CLI_RUN("run", DRAFT, "--raw", "-p", prompt, "-n12", "--temp", "2", "--seed=8");
    cli_assert_done(&a);
    assert_string_equal(a.out, b.out);
    assert_string_not_equal(a.out, c.out);
    cli_free(&a), cli_free(&b), cli_free(&c);
}

static void test_run_json(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", DRAFT, "-p", QUESTION, "--json", "--stop", "= 73");
    cli_assert_done(&r);
    qn_buf text = {0};
    int n = 0;
    bool is_done = false;
    for (char *at = r.out; *at;) {
        char *end = strchr(at, '\n');
        assert_non_null(end);
        *end = 0;
        assert_false(is_done);
        json_t *event = cli_json(at);
        qn_buf_text(&text, json_string_value(json_object_get(event, "text")));
        is_done = json_is_true(json_object_get(event, "done"));
        if (is_done) {
            assert_string_equal(json_string_value(json_object_get(event, "reason")), "end");
            assert_int_equal(json_integer_value(json_object_get(event, "tokens")), n + 1);
            assert_true(json_integer_value(json_object_get(event, "prompt_tokens")) > 10);
        } else {
            assert_true(json_is_integer(json_object_get(event, "id")));
            assert_true(json_is_string(json_object_get(event, "token")));
            n++;
        }
        json_decref(event);
        at = end + 1;
    }
    assert_true(is_done);
    assert_string_equal(text.data, "10 + 62 = 72");
    qn_buf_deinit(&text);
    cli_free(&r);
}

// The ids and the number of prompt tokens in the events of a run.
static void assert_same_events(const cli_result *a, const cli_result *b) {
    const char *x = a->out, *y = b->out;
    assert_int_equal(a->code, 0);
    while (strncmp(x, "{\"token\"", 8) == 0) {
        const size_t n = strcspn(x, "\n") + 1;
        if (strncmp(x, y, n) != 0) fail_msg("'%s' is not '%s'", a->out, b->out);
        x += n, y += n;
    }
    json_t *p = cli_json(x), *q = cli_json(y);
    assert_true(
        json_equal(json_object_get(p, "prompt_tokens"), json_object_get(q, "prompt_tokens")));
    json_decref(p), json_decref(q);
}

// The chat formats are what they would be if typed by hand; text cannot break out of a message.
static void test_run_formats(void **state) {
    (void)state;
    static const char gemma_text[] =
        "<start_of_turn>user\nb\n\na<end_of_turn>\n<start_of_turn>model\n";
    static const char chatml_text[] =
        "<|im_start|>system\nb<|im_end|>\n<|im_start|>user\na<|im_end|>"
        "\n<|im_start|>assistant\n";
    cli_result gemma = CLI_RUN("run", MINI "/gemma", "-p", "a", "--system", "b", "-n3", "--json"),
               gemma_raw =
                   CLI_RUN("run", MINI "/gemma", "--raw", "-p", gemma_text, "-n3", "--json"),
               chatml = CLI_RUN("run", DRAFT, "-p", "a", "--system=b", "-n3", "--json"),
               chatml_raw = CLI_RUN("run", DRAFT, "--raw", "-p", chatml_text, "-n3", "--json");
    assert_same_events(&gemma, &gemma_raw);
    assert_same_events(&chatml, &chatml_raw);
    cli_result inside = CLI_RUN("run", DRAFT, "-p", "<|im_end|>", "-n1", "--json"),
               plain = CLI_RUN("run", DRAFT, "-p", "a", "-n1", "--json");
    json_t *a = cli_json(strchr(inside.out, '\n') + 1), *b = cli_json(strchr(plain.out, '\n') + 1);
    assert_true(json_integer_value(json_object_get(a, "prompt_tokens")) >
                json_integer_value(json_object_get(b, "prompt_tokens")));
    json_decref(a), json_decref(b);
    cli_free(&gemma), cli_free(&gemma_raw), cli_free(&chatml), cli_free(&chatml_raw);
    cli_free(&inside), cli_free(&plain);
}

static void copy_file(const char *from, const char *to) {
    size_t size;
    char *data = cli_load(from, &size);
    cli_save(to, data, size);
    free(data);
}

// Without a tokenizer scores can be computed, but no text; with one that has no tokens of a known
// chat format, the text is fed as it is.
static void test_run_without_format(void **state) {
    (void)state;
    make_folder("mute");
    copy_file(MINI "/qwen3/config.json", cli_path("mute/config.json"));
    copy_file(MINI "/qwen3/model.safetensors", cli_path("mute/model.safetensors"));
    cli_result scores = CLI_RUN("logits", cli_path("mute"), "--ids", "1"),
               answer = CLI_RUN("run", cli_path("mute"), "-p", "a");
    assert_int_equal(scores.code, 0);
    assert_non_null(strstr(scores.err, "quern: warning: no tokenizer"));
    cli_assert_fails(&answer, 1, "no tokenizer");
    char *tokenizer = cli_load(MINI "/qwen3/tokenizer.json", NULL);
    for (char *at = tokenizer; (at = strstr(at, "<|im_start|>"));) memcpy(at, "<|xx", 4);
    cli_save(cli_path("mute/tokenizer.json"), tokenizer, strlen(tokenizer));
    free(tokenizer);
    cli_result plain = CLI_RUN("run", cli_path("mute"), "-p", "a", "-n3"),
               raw = CLI_RUN("run", cli_path("mute"), "-p", "a", "-n3", "--raw");
    assert_non_null(strstr(plain.err, "it has no chat template; the text is fed as it is"));
    assert_string_equal(plain.out, raw.out);
    cli_assert_done(&raw);
    cli_free(&scores), cli_free(&answer), cli_free(&plain), cli_free(&raw);
}

// The bundled model is found beside the program's folder.
static void test_run_bundled(void **state) {
    (void)state;
    cli_result r = CLI_RUN("run", "--raw", "-p", "Once upon a", "-n", "1");
    cli_assert_done(&r);
    assert_string_equal(r.out, " time\n");
    cli_free(&r);
}

// --- convert -------------------------------------------------------------------------------------

static void test_convert(void **state) {
    (void)state;
    const char *out = cli_path("converted.gguf");
    cli_result r = CLI_RUN("convert", MINI "/qwen35_vl", out, "--type", "q8_0");
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.out, " bits per weight, in "));
    assert_non_null(strstr(r.err, "mmproj-converted.gguf"));
    cli_free(&r);
    r = CLI_RUN("run", out, "--raw", "-p", "Hello", "-n", "2");
    assert_int_equal(r.code, 0);
    cli_free(&r);
    r = CLI_RUN("convert", MINI "/gemma2_scalar", out);
    cli_assert_fails(&r, 1, MINI "/gemma2_scalar: query_pre_attn_scalar: 24");
    cli_free(&r);
    r = CLI_RUN("convert", MINI "/qwen3", MINI "/qwen3/config.json");
    cli_assert_fails(&r, 1, "is not a GGUF file");
    cli_free(&r);
    r = CLI_RUN("convert", MINI "/qwen3", out, "--type", "Q4_K_M");
    cli_assert_fails(&r, 2, "'Q4_K_M', want one of F32 F16 BF16 Q8_0");
    cli_free(&r);
    r = CLI_RUN("convert", MINI "/qwen3");
    assert_int_equal(r.code, 2);
    cli_free(&r);
}

// --- the README ----------------------------------------------------------------------------------

// The C example compiles as it stands.
static void test_readme_example(void **state) {
    (void)state;
    char *readme = cli_load(MODELS "/../README.md", NULL);
    char *code = strstr(readme, "```c\n");
    assert_non_null(code);
    code += strlen("```c\n");
    cli_save(cli_path("readme.c"), code, (size_t)(strstr(code, "```") - code));
    free(readme);
    cli_result r =
        cli_run_with(&(cli_input){.program = CC},
                     (const char *[]){"-std=c17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                      "-I" MODELS "/../include", cli_path("readme.c"), NULL});
    cli_assert_done(&r);
    cli_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_models),
        cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_unknown_architecture),
        cmocka_unit_test(test_wrong_shape),
        cmocka_unit_test(test_bad_prompts),
        cmocka_unit_test(test_broken_output),
        cmocka_unit_test(test_logits_json),
        cmocka_unit_test(test_logits_file),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_tokens_json),
        cmocka_unit_test(test_template),
        cmocka_unit_test(test_template_folder),
        cmocka_unit_test(test_template_bad),
        cmocka_unit_test(test_run_text),
        cmocka_unit_test(test_run_limits),
        cmocka_unit_test(test_run_sampling),
        cmocka_unit_test(test_run_json),
        cmocka_unit_test(test_run_formats),
        cmocka_unit_test(test_run_without_format),
        cmocka_unit_test(test_run_bundled),
        cmocka_unit_test(test_convert),
        cmocka_unit_test(test_readme_example),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

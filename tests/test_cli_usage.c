// The command line: help, wrong usage, switches.
#include "cli_run.h"

#include "core/buf.h"

static const char *const commands[] = {"run",      "logits",  "embed",    "tokenize", "detokenize",
                                       "template", "inspect", "graph",    "bench",    "eval",
                                       "compile",  "convert", "quantize", "imatrix",  "synth",
                                       "serve",    "pull",    "list",     "show",     "rm"};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

// --- help ----------------------------------------------------------------------------------------

static void test_help(void **state) {
    (void)state;
    cli_result all = CLI_RUN("help"), none = cli_run_with(&(cli_input){0}, (const char *[]){NULL});
    cli_assert_done(&all);
    cli_assert_done(&none);
    assert_string_equal(all.out, none.out);
    cli_result of_help = CLI_RUN("help", "help");
    cli_assert_done(&of_help);
    assert_string_equal(of_help.out, all.out);
    cli_free(&of_help);
    for (int i = 0; i < N_COMMANDS; i++) {
        cli_result a = CLI_RUN("help", commands[i]), b = CLI_RUN(commands[i], "--help"),
                   c = CLI_RUN(commands[i], "-h");
        cli_assert_done(&a);
        assert_non_null(strstr(all.out, commands[i]));
        assert_non_null(strstr(a.out, "usage: quern "));
        assert_string_equal(a.out, b.out);
        assert_string_equal(a.out, c.out);
        cli_free(&a), cli_free(&b), cli_free(&c);
    }
    cli_result switches = CLI_RUN("help", "switches");
    cli_assert_done(&switches);
    assert_non_null(strstr(switches.out, "QN_DEBUG"));
    for (const char *at = switches.out; (at = strstr(at, "\n  QN_"));
         at++) { // name, space, meaning
        const size_t n = strspn(at + 3, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_");
        assert_true(at[3 + n] == ' ');
    }
    cli_free(&all), cli_free(&none), cli_free(&switches);
}

// What follows this name on a line of its own.
static const char *after(const char *text, const char *name) {
    const char *at = strstr(text, name);
    assert_non_null(at);
    assert_true(at == text || at[-1] == '\n');
    return at + strlen(name) + strspn(at + strlen(name), " ");
}

static void version_tells_what_was_built(void **state) {
    (void)state;
    cli_result version = CLI_RUN("--version"), devices = CLI_RUN("devices");
    cli_assert_done(&version);
    assert_memory_equal(after(version.out, "quern "), "0.1.0\ncommit ", 13);
    const char *commit = after(version.out, "commit "); // as `git archive` or git names it
    assert_true(strspn(commit, "0123456789abcdef") >= 12 || strncmp(commit, "unknown\n", 8) == 0);
    const char *compiler = after(version.out, "compiler ");
    assert_true(strncmp(compiler, "gcc ", 4) == 0 || strstr(compiler, "lang ")); // Clang, clang
    const char *level = after(version.out, "CPU level ");
    char device[64]; // and none after it, as the last is the best
    snprintf(device, sizeof device, "\ncpu:%.*s ", (int)strcspn(level, "\n"), level);
    const char *listed = strstr(devices.out, device);
    assert_non_null(listed);
    assert_null(strstr(listed + 1, "\ncpu:"));
    const char *libraries = after(version.out, "libraries ");
    assert_non_null(strstr(libraries, "jansson 2."));
    assert_non_null(strstr(libraries, ", zlib 1."));
    cli_result word = CLI_RUN("version");
    assert_string_equal(word.out, version.out);
    cli_free(&version), cli_free(&devices), cli_free(&word);
}

// The options ("-p", "--prompt") that stand in a text, each followed by a newline.
static void collect_options(qn_buf *to, const char *text) {
    for (const char *at = text; (at = strchr(at, '-')); at++) {
        const bool begins = at == text || strchr(" `\n[(|", at[-1]);
        const size_t dashes = strspn(at, "-");
        const size_t letters = strspn(at + dashes, "abcdefghijklmnopqrstuvwxyz");
        const bool is_option = dashes == 2 ? letters > 1 : dashes == 1 && letters == 1;
        if (begins && is_option) {
            qn_buf_text(to, "\n");
            qn_buf_add(to, at, dashes + letters);
            qn_buf_text(to, "\n");
        }
        at += dashes + letters - 1;
    }
}

static void assert_all_in(const qn_buf *options, const qn_buf *where, const char *what) {
    for (const char *at = options->data; at && *at;) {
        const size_t n = strcspn(at + 1, "\n") + 2;
        char *option = strndup(at, n);
        if (!strstr(where->data, option)) fail_msg("%s: %s", what, option);
        free(option);
        at += n;
    }
}

// Every section of docs/commands.md names the options of its command, no more and no fewer.
static void test_docs_and_help_agree(void **state) {
    (void)state;
    char *docs = cli_load(MODELS "/../docs/commands.md", NULL);
    for (int i = 0; i < N_COMMANDS; i++) {
        char title[64];
        snprintf(title, sizeof title, "\n## quern %s\n", commands[i]);
        const char *begin = strstr(docs, title);
        if (!begin) fail_msg("docs/commands.md has no section '%s'", commands[i]);
        const char *end = strstr(begin + strlen(title), "\n## ");
        char *section = end ? strndup(begin, (size_t)(end - begin)) : strdup(begin);
        cli_result help = CLI_RUN("help", commands[i]);
        qn_buf in_docs = {0}, in_help = {0};
        collect_options(&in_docs, section);
        collect_options(&in_help, strstr(help.out, "\noptions\n"));
        qn_buf_text(&in_docs, "\n-h\n\n--help\n"); // said once for all commands
        assert_all_in(&in_docs, &in_help, "in the docs, not in the help");
        assert_all_in(&in_help, &in_docs, "in the help, not in the docs");
        qn_buf_deinit(&in_docs), qn_buf_deinit(&in_help);
        cli_free(&help);
        free(section);
    }
    free(docs);
}

static void assert_switches(const char *assignments, int code, const char *part) {
    char command[CLI_MOST_PATH];
    snprintf(command, sizeof command, "%s '%s' tokenize '%s' Hello", assignments, QUERN, DRAFT);
    cli_result r =
        cli_run_with(&(cli_input){.program = "sh"}, (const char *[]){"-c", command, NULL});
    assert_int_equal(r.code, code);
    assert_string_equal(r.out, "1222\n");
    if (strcmp(r.err, part) != 0) fail_msg("'%s' is not '%s'", r.err, part);
    cli_free(&r);
}

// A variable that looks like a switch and is none is told, in one line for all of them.
static void test_stray_switches(void **state) {
    (void)state;
    assert_switches("QN_DEBUG=0 QNX=1", 0, "");
    assert_switches("QN_DEBG=1", 0,
                    "quern: warning: no such switch: QN_DEBG (did you mean QN_DEBUG?); 'quern help "
                    "switches' lists them\n");
    assert_switches("QN_FROBNICATE=", 0,
                    "quern: warning: no such switch: QN_FROBNICATE; 'quern help switches' lists "
                    "them\n");
    cli_result two = cli_run_with(
        &(cli_input){.program = "env"},
        (const char *[]){"QN_AAAAAAAA=1", "QN_BBBBBBBB=1", QUERN, "tokenize", DRAFT, "a", NULL});
    assert_int_equal(two.code, 0);
    assert_ptr_equal(strchr(two.err, '\n'), two.err + strlen(two.err) - 1); // one line
    assert_non_null(strstr(two.err, "QN_AAAAAAAA"));
    assert_non_null(strstr(two.err, "QN_BBBBBBBB"));
    cli_free(&two);
}

// Set to nothing, a switch is not set.
static void test_empty_switches(void **state) {
    (void)state;
    char command[CLI_MOST_PATH];
    snprintf(command, sizeof command,
             "QN_SKIP= QN_LEVEL= QN_DEBUG= QN_DUMP= '%s' logits '%s' --ids 1", QUERN, DRAFT);
    cli_result r = cli_run_with(&(cli_input){.program = "sh"},
                                (const char *[]){"-c", command, NULL}),
               plain = CLI_RUN("logits", DRAFT, "--ids", "1");
    cli_assert_done(&r);
    assert_string_equal(r.out, plain.out);
    cli_free(&r), cli_free(&plain);
}

// --- wrong usage ---------------------------------------------------------------------------------

typedef struct usage_case {
    const char *args[8], *part;
} usage_case;

static void assert_refused(const usage_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, 2, cases[i].part);
        cli_free(&r);
    }
}

// Habits of other programs: their options are named, and ours where there is one.
static void test_foreign_options(void **state) {
    (void)state;
    static const usage_case cases[] = {
        {{"run", DRAFT, "-ngl", "99"}, "--gpu-layers 99: name a GPU, as in --device cuda"},
        {{"run", DRAFT, "--n-gpu-layers", "few"}, "'few', want a whole number of layers, auto or"},
        {{"run", DRAFT, "--gpu-layers", "-1"}, "--gpu-layers: '-1', want a whole number"},
        {{"graph", DRAFT, "-sm", "row"}, "no option '-sm'; '--device cuda' computes on a GPU"},
        {{"run", DRAFT, "-r", "x"}, "no option '-r'; did you mean '--stop'?"},
        {{"run", DRAFT, "-fa"}, "no option '-fa'; attention is always fused"},
        {{"bench", DRAFT, "-pg", "512,128"}, "no option '-pg'; -p and -n are measured separately"},
        {{"bench", DRAFT, "-fa", "1"}, "no option '-fa'; attention is always fused"},
        {{"run", DRAFT, "-nx"}, "no option '-nx'; 'quern help run' lists the options"},
        {{"run", DRAFT, "-pHello"}, "no option '-pHello'"},
        {{"run", DRAFT, "--conversation"}, "'--conversation'; 'quern run MODEL' chats"},
        {{"run", DRAFT, "--ngl", "auto"}, "--gpu-layers auto: name a GPU"},
        {{"run", DRAFT, "--no_mmap"}, "'--no_mmap'; weights stay in memory"},
        {{"run", DRAFT, "--n-predict", "many"}, "--tokens: 'many', want a whole number"},
        {{"logits", DRAFT, "--temperature", "1"}, "no option '--temperature'"},
        {{"run", DRAFT, "-ctk", "f16"}, "no option '-ctk'; did you mean '--cache-type'?"},
        {{"run", DRAFT, "--cache-type-k", "f16"}, "did you mean '--cache-type'?"},
        {{"run", DRAFT, "-ub", "9"}, "no option '-ub'; the chunk size of prefill is chosen"},
        {{"logits", DRAFT, "-ub", "9"}, "no option '-ub'; did you mean '--chunk'?"},
        {{"logits", DRAFT, "--batch-size", "9"}, "did you mean '--chunk'?"},
        {{"run", DRAFT, "--sampling-seq", "kt"}, "did you mean '--samplers'?"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

// Where another program's option takes the same values and means the same, it is taken.
static void options_of_other_programs_are_taken(void **state) {
    (void)state;
    cli_result ours = CLI_RUN("run", DRAFT, "-p", "Tell me a story.", "--tokens", "12", "--temp",
                              "0.9", "--seed", "3", "--context", "99", "--typical", "0.9",
                              "--repeat-penalty", "1.1", "--system", "Be brief."),
               theirs = CLI_RUN("run", DRAFT, "-p", "Tell me a story.", "--n-predict", "12",
                                "--temperature=0.9", "-s", "3", "--ctx_size", "99", "--typical-p",
                                "0.9", "--repetition-penalty", "1.1", "-sys", "Be brief."),
               plain = CLI_RUN("run", DRAFT, "-p", "Once", "-n", "5", "--raw"),
               raw = CLI_RUN("run", DRAFT, "-p", "Once", "--num_predict=5", "-no-cnv");
    cli_assert_done(&theirs);
    assert_string_equal(theirs.out, ours.out);
    cli_assert_done(&raw);
    assert_string_equal(raw.out, plain.out);
    cli_free(&ours), cli_free(&theirs), cli_free(&plain), cli_free(&raw);
}

// Every name that is taken, with a value that its option takes, up to --help.
static void names_of_other_programs_are_known(void **state) {
    (void)state;
    static const struct {
        const char *command, *name, *value;
    } cases[] = {
        {"run", "--n-predict", "8"},
        {"run", "--predict", "8"},
        {"run", "--max-tokens", "8"},
        {"run", "--max-new-tokens", "8"},
        {"run", "num_predict", "8"},
        {"run", "--temperature", "0.5"},
        {"run", "--ctx-size", "64"},
        {"run", "num_ctx", "64"},
        {"run", "--context-length", "64"},
        {"run", "num_thread", "2"},
        {"run", "num_keep", "4"},
        {"run", "top_k", "4"},
        {"run", "repeat_last_n", "4"},
        {"run", "typical_p", "0.5"},
        {"run", "--top-n-sigma", "1"},
        {"run", "mirostat_tau", "5"},
        {"run", "mirostat_eta", "0.1"},
        {"run", "--repetition-penalty", "1.1"},
        {"run", "--system-prompt", "a"},
        {"run", "--ngl", "9"},
        {"run", "--n-gpu-layers", "9"},
        {"run", "--model-draft", "a"},
        {"run", "--draft-n", "4"},
        {"run", "--chat-template-file", "a"},
        {"serve", "-to", "60"},
        {"serve", "--max-model-len", "64"},
        {"serve", "--max-num-seqs", "4"},
        {"serve", "--max-num-batched-tokens", "64"},
        {"serve", "--served-model-name", "a"},
        {"serve", "--models-dir", "a"},
        {"serve", "--ssl-keyfile", "a"},
        {"serve", "--ssl-cert-file", "a"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[64]; // Ollama's have no dashes
        snprintf(name, sizeof name, "%s%s", *cases[i].name == '-' ? "" : "--", cases[i].name);
        cli_result r = CLI_RUN(cases[i].command, name, cases[i].value, "--help");
        if (r.code != 0) fail_msg("%s", r.err);
        cli_free(&r);
    }
}

static void test_wrong_topics(void **state) {
    (void)state;
    static const usage_case cases[] = {
        {{"help", "run", "foo"}, "help: unexpected argument 'foo'"},
        {{"help", "switches", "foo"}, "help: unexpected argument 'foo'"},
        {{"config"}, "no command 'config'; 'quern help config' says how defaults are kept"},
        {{"help", "completion"}, "bash|zsh|fish is missing; usage: quern help completion"},
        {{"help", "completion", "ksh"}, "no shell 'ksh', want bash, zsh or fish"},
        {{"help", "completion", "bash", "foo"}, "help: unexpected argument 'foo'"},
        {{"help", "manual", "rnu"}, "help manual: no command 'rnu'; 'quern help' lists them"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

static void test_commands_of_others(void **state) {
    (void)state;
    static const usage_case cases[] = {
        {{"chat"}, "no command 'chat'; 'quern run' chats"},
        {{"ps"}, "no command 'ps'; a server ('quern serve') lists its models at /api/ps"},
        {{"server"}, "no command 'server'; 'quern serve' is it"},
        {{"perplexity"}, "'quern eval MODEL --ppl FILE' does it"},
        {{"stop"}, "no command 'stop'; a server ends by Ctrl-C or TERM"},
        {{"delete", "x"}, "no command 'delete'; 'quern rm' does it"},
        {{"info", "x"}, "no command 'info'; 'quern show NAME' and"},
        {{"run", "--hf", "a/b"}, "no option '--hf'; 'quern pull hf:USER/REPO' downloads it"},
        {{"run", DRAFT, "--keepalive", "5m"}, "the model is open while this program runs"},
        {{"run", DRAFT, "--hidethinking"}, "reasoning is dimmed on a terminal"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

static void test_wrong_usage(void **state) {
    (void)state;
    static const usage_case cases[] = {
        {{"rnu"}, "did you mean 'run'?"},
        {{"serv"}, "did you mean 'serve'?"},
        {{"serve", "a", "--models", "b"}, "serve: give either MODEL or --models, not both"},
        {{"serve", "--slots"}, "there are no slots; --parallel N limits the answers at a time"},
        {{"serve", "--allowed-origins", "*"}, "did you mean '--cors-origin'?"},
        {{"serve", "--max-num-seqs", "0"}, "want a whole number from 1 to 1024"},
        {{"serve", "--allow-host", "a:80"}, "--allow-host: 'a:80', want a name"},
        {{"serve", "--cors-origin", "https://a/"}, "--cors-origin: 'https://a/', want SCHEME://"},
        {{"serve", "--memory", "much"}, "--memory: 'much', want bytes, such as 8G"},
        {{"run", "-m", DRAFT}, "the model is named without an option: quern run [MODEL [TEXT]]"},
        {{"frobnicate"}, "no command 'frobnicate'; 'quern help' lists them"},
        {{"-m", "x.gguf", "-p", "hi"}, "the command comes first: quern run MODEL -p TEXT"},
        {{"tokenize", DRAFT, "-p", "hi"}, "the text comes after the model"},
        {{"imatrix", DRAFT, "-f", "x"}, "the file comes after the model"},
        {{"convert", "x", "--outfile", "y"}, "the new file comes after the folder"},
        {{"bench", DRAFT, "-o", "json"}, "did you mean '--json'?"},
        {{"quantize", "a", "b", "--type", "Q8_0"}, "the type comes last"},
        {{"run", DRAFT, "--version"}, "'quern --version' prints it"},
        {{"run", DRAFT, "--list-devices"}, "'quern devices' lists them"},
        {{"run", DRAFT, "-e"}, "-f FILE has texts of several lines"},
        {{"run", DRAFT, "a", "--keep", "4"}, "run: --keep needs --context-shift"},
        {{"run", DRAFT, "a", "--draft-max", "4"},
         "run: --draft-max needs --draft, --mtp or --lookup"},
        {{"run", DRAFT, "a", "--draft", "4"}, "--draft takes a model, got '4'; the number is"},
        {{"run", DRAFT, "a", "--tools", "[]"}, "--tools: cannot open '[]'"},
        {{"run", DRAFT, "a", "--device", "cpu,"}, "--device: 'cpu,' has an empty name"},
        {{"run", DRAFT, "a", "--device", "gpu"},
         "there is no 'gpu' on this machine; there are cpu,"},
        {{"logits", DRAFT, "--replay", "x", "--chunk", "4"}, "--replay runs the recorded steps"},
        {{"help", "inspct"}, "did you mean 'inspect'?"},
        {{DRAFT}, "did you mean 'quern run "},
        {{""}, "no command ''"},
        {{"logits"}, "logits: MODEL is missing; usage: quern logits MODEL"},
        {{"logits", ""}, "the name of the model is empty"},
        {{"logits", DRAFT}, "give one of --ids, --prompt and --replay"},
        {{"logits", DRAFT, "--ids", "1", "-p", "x"}, "give one of --ids, --prompt and --replay"},
        {{"logits", DRAFT, "--ids", "1", "--naive", "--ref"}, "give either --naive or --ref"},
        {{"logits", DRAFT, "-p", ""}, "--prompt: the prompt is empty"},
        {{"logits", DRAFT, "--ids", "1", "--hidden"}, "--hidden needs -o"},
        {{"logits", DRAFT, "--ids", "1", "--all"}, "--all needs -o"},
        {{"logits", DRAFT, "--ids"}, "--ids needs a value"},
        {{"logits", DRAFT, "--ids", "1,x"}, "'x' is not a token id"},
        {{"logits", DRAFT, "--ids", "1 2.5"}, "'2.5' is not a token id"},
        {{"logits", DRAFT, "--ids", "1,,2"}, "--ids: no token id between two commas"},
        {{"logits", DRAFT, "--ids", "1, ,2"}, "--ids: no token id between two commas"},
        {{"logits", DRAFT, "--ids", ",1"}, "--ids: no token id before the first comma"},
        {{"logits", DRAFT, "--ids", "1", "--top", "0"}, "--top: '0'"},
        {{"logits", DRAFT, "--ids", "1", "--top=2", "-o", "x"}, "--top is for printing"},
        {{"logits", DRAFT, "--idd", "1"}, "no option '--idd'; did you mean '--ids'?"},
        {{"logits", DRAFT, "--frobnicate"}, "'quern help logits' lists the options"},
        {{"logits", DRAFT, "--ids", "1", "--all=yes"}, "--all takes no value, got 'yes'"},
        {{"logits", DRAFT, "--ids", "1", "--chunk", "0"}, "--chunk: '0', want a whole number from"},
        {{"logits", DRAFT, "--ids", "1", "-t", "257"},
         "--threads: '257', want a whole number from"},
        {{"logits", DRAFT, "--ids", "1", "-t", "two"}, "--threads: 'two'"},
        {{"logits", DRAFT, "--ids", "1", "-t2x"}, "--threads: '2x'"},
        {{"logits", DRAFT, "extra", "--ids", "1"},
         "unexpected argument 'extra'; usage: quern logits MODEL"},
        {{"run", "-p", "a", "-f", "b"}, "give either --prompt or --file"},
        {{"run", "-p", "a", "--raw", "--system", "b"}, "--system is for chat"},
        {{"run", "-p", "a", "--stop="}, "--stop: the text is empty"},
        {{"run", "-p", "a", "-n", "-2"},
         "--tokens: '-2', want a whole number from 1 to 2147483647, or -1"},
        {{"run", "-p", "a", "-n", "0"}, "--tokens: '0'"},
        {{"run", "-p", "a", "-n", "99999999999999999999"}, "--tokens: '99999999999999999999'"},
        {{"run", "-p", "a", "-c", "-1"}, "--context: '-1'"},
        {{"run", "-p", "a", "--temp", "hot"}, "--temp: 'hot', want a number from 0 to 100"},
        {{"run", "-p", "a", "--temp", "nan"}, "--temp: 'nan'"},
        {{"run", "-p", "a", "--temp", "-0.1"}, "--temp: '-0.1'"},
        {{"run", "-p", "a", "--temp", "1e"}, "--temp: '1e'"},
        {{"run", "-p", "a", "--seed", "-2"}, "--seed: '-2'"},
        {{"run", "-p", "a", "--seed", "18446744073709551616"}, "--seed: '18446744073709551616'"},
        {{"run", "-p", "a", "--min-tokens", "10", "-n", "5"},
         "quern: --min-tokens 10 is more than --tokens 5"},
        {{"run", "-p", "a", "--mirostat", "1"}, "quern: --mirostat: '1', want 0 (off) or 2"},
        {{"run", "-p", "a", "--samplers", "top_k;foo"}, "quern: --samplers: no sampler 'foo'"},
        {{"run", "-p", "a", "--ban", "\xff"}, "quern: --ban: banned string 0 is not UTF-8"},
        {{"run", "-p", "a", "--greedy", "--temp", "0.8"}, "--greedy takes the best token, --temp"},
        {{"run", DRAFT, "a", "--logit-bias", "99999+1"},
         "quern: --logit-bias: token 99999, this model has 0 to 4095"},
        {{"run", DRAFT, "a", "--context-shift", "--keep", "5000"},
         "quern: --keep: 5000, want at most "},
        {{"run", "a", "b", "c"}, "unexpected argument 'c'"},
        {{"run", "a", "b", "-p", "c"},
         "unexpected argument 'b': the prompt was already given with --prompt"},
        {{"run", "a", "b", "-f", "c"},
         "unexpected argument 'b': the prompt was already given with --file"},
        {{"compile", DRAFT, "--device", "cpu,ref"}, "--device: 'cpu,ref', want one device"},
        {{"inspect", DRAFT, "--device", "abacus"}, "--device: there is no 'abacus'"},
        {{"tokenize"}, "tokenize: MODEL is missing; usage: quern tokenize MODEL [TEXT]"},
        {{"tokenize", DRAFT, "a", "b"}, "unexpected argument 'b' (quote a text that has spaces)"},
        {{"tokenize", DRAFT, "-x"}, "no option '-x'"},
        {{"detokenize", DRAFT, "1", "two"}, "'two' is not a token id"},
        {{"imatrix", DRAFT}, "imatrix: TEXTFILE is missing; usage: quern imatrix MODEL TEXTFILE"},
        {{"quantize", DRAFT, "b.gguf"}, "quantize: TYPE is missing; usage: quern quantize IN"},
        {{"run", "-p", "a", "--top_k", "-1"}, "--top-k: '-1'"},
        {{"run", "-p", "a", "--repeat_last_n=x"}, "--repeat-last-n: 'x'"},
        {{"run", "-p", "a", "--tep_k", "1"}, "no option '--tep_k'; did you mean '--top-k'?"},
        {{"inspect", DRAFT, "-c", "many"}, "--context: 'many'"},
        {{"inspect", DRAFT, "--cache-type", "q4"},
         "--cache-type: 'q4', want f32, f16, q8_0, q4_0, q8_0r or q4_0r"},
        {{"inspect", DRAFT, "--svg"}, "--svg needs a value"},
        {{"synth", "tiny-llama", "Q4_0"}, "usage: quern synth SHAPE TYPE OUT.gguf"},
        {{"synth", "llama4", "Q4_0", "x.gguf"}, "no shape 'llama4', want one of qwen3-0.6b"},
        {{"synth", "tiny-llama", "Q4", "x.gguf"}, "no type 'Q4', want one of F32"},
        {{"graph", DRAFT, "--stage", "top"}, "--stage: 'top', want high, mid or low"},
        {{"graph", DRAFT, "--svg"}, "--svg needs a value"},
    };
    assert_refused(cases, sizeof cases / sizeof *cases);
}

// 2 where the options are wrong, 1 where what they name is: also where the library calls a grammar
// an argument, and where the name of a file looks like an option.
static void wrong_options_and_wrong_content(void **state) {
    (void)state;
    char missing[CLI_MOST_PATH];
    snprintf(missing, sizeof missing, "%s", cli_path("missing"));
    const struct {
        const char *args[10], *part;
        int code;
    } cases[] = {
        {{"run", DRAFT, "a", "--schema-lenient"}, "--schema-lenient needs --json-schema", 2},
        {{"run", DRAFT, "a", "--schema-closed", "--regex", "a"}, "--schema-closed needs", 2},
        {{"run", DRAFT, "a", "--json-mode", "-j", "{}"}, "give one of --grammar", 2},
        {{"run", DRAFT, "a", "--json-schema"}, "--json-schema needs a value", 2},
        {{"run", DRAFT, "a", "--logit-bias", "99999+1"}, "--logit-bias: token 99999", 2},
        {{"run", DRAFT, "a", "--session", cli_folder}, "is a folder, want a file", 2},
        {{"logits", DRAFT, "-p", ""}, "--prompt: the prompt is empty", 2},
        {{"run", DRAFT, "a", "-jf", missing}, "/missing: cannot open", 1},
        {{"run", DRAFT, "a", "-j", "{"}, "--json-schema: schema: not valid JSON", 1},
        {{"run", DRAFT, "a", "-j", "{\"type\": 3}"}, "--json-schema: schema, #/type", 1},
        {{"run", DRAFT, "a", "-j", "false"}, "--json-schema: schema, #: no finite text", 1},
        {{"run", DRAFT, "a", "--regex", "(a"}, "--regex: ", 1},
        {{"run", DRAFT, "a", "--regex", "a[]"}, "--regex: ", 1},
        {{"run", DRAFT, "a", "--grammar", "root ::= frob"}, "--grammar: GBNF", 1},
        {{"run", DRAFT, "a", "--grammar", "root ::= \"a\" root"}, "no finite text", 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = cli_run_with(&(cli_input){0}, cases[i].args);
        cli_assert_fails(&r, cases[i].code, cases[i].part);
        cli_free(&r);
    }
    char command[CLI_MOST_PATH * 2];
    snprintf(command, sizeof command,
             "cd '%s' && mkdir -- --dir && '%s' graph '%s' --svg=--dir >/dev/null", cli_folder,
             QUERN, DRAFT);
    cli_result named =
        cli_run_with(&(cli_input){.program = "sh"}, (const char *[]){"-c", command, NULL});
    cli_assert_fails(&named, 1, "--dir: is a folder");
    cli_free(&named);
}

// A refusal names --schema-lenient exactly where that would go on.
static void refusals_that_lenience_lifts(void **state) {
    (void)state;
    static const struct {
        const char *schema, *part;
        bool helps;
    } cases[] = {
        {"{\"format\": \"iban\"}", "'iban' is not supported", true},
        {"{\"type\": \"string\", \"enumNames\": []}", "unknown keyword", true},
        {"{\"type\": \"string\", \"pattern\": \"(a)\\\\1\"}", "#/pattern: ", true},
        {"{\"$ref\": \"other.json\"}", "#/$ref: ", true},
        {"{\"multipleOf\": 0.123456789}", "#/multipleOf: its automaton would have more than", true},
        {"{\"type\": \"object\", \"minProperties\": 9}", "#/minProperties: ", true},
        {"{\"type\": \"frob\"}", "#/type: ", false},
        {"{\"$ref\": \"#/frob\"}", "#/$ref: ", false},
        {"{\"type\": \"frob\", \"format\": \"iban\"}", "schema, #/", false},
        {"{", "not valid JSON", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        cli_result r = CLI_RUN("run", DRAFT, "a", "-j", cases[i].schema);
        cli_assert_fails(&r, 1, cases[i].part);
        if (!strstr(r.err, "; --schema-lenient goes on without it\n") == cases[i].helps)
            fail_msg("%s", r.err);
        cli_free(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_help),
        cmocka_unit_test(version_tells_what_was_built),
        cmocka_unit_test(test_docs_and_help_agree),
        cmocka_unit_test(test_stray_switches),
        cmocka_unit_test(test_empty_switches),
        cmocka_unit_test(test_foreign_options),
        cmocka_unit_test(test_commands_of_others),
        cmocka_unit_test(options_of_other_programs_are_taken),
        cmocka_unit_test(names_of_other_programs_are_known),
        cmocka_unit_test(test_wrong_topics),
        cmocka_unit_test(test_wrong_usage),
        cmocka_unit_test(wrong_options_and_wrong_content),
        cmocka_unit_test(refusals_that_lenience_lifts),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

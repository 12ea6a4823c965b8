#include "cli/foreign.h"

#include <stdbool.h>
#include <string.h>

static const char gpu[] =
    "'--device cuda' computes on a GPU, --gpu-layers says how much; several devices share layers";
static const char by_name[] = "'quern pull hf:USER/REPO' downloads it, and its name is MODEL then";
static const char pulls[] = "'quern pull ADDRESS' downloads it, and its name is MODEL then";
static const char chats[] = "'quern run MODEL' chats on a terminal, and -p answers once";
static const char needs_nothing[] = "attention is always fused, there is nothing to turn on";
static const char no_log[] =
    "serve logs requests anyway (--log-format json says more); for run, --profile "
    "tells where the time goes";
static const char own_template[] = "the model's own template is always used, or --template FILE";
static const char weights_stay[] = "weights stay in memory; 'quern compile' makes opening faster";
static const char quiet[] = "answers go to stdout, and nothing else does";
static const char after_model[] = "the text comes after the model: quern tokenize MODEL TEXT";
static const char piped_text[] = "standard input is read: quern tokenize MODEL < FILE";
static const char text_file[] =
    "the file comes after the model: quern imatrix MODEL TEXTFILE -o OUT";
static const char new_file[] = "the new file comes after the folder: quern convert FOLDER OUT.gguf";
static const char type_last[] = "the type comes last: quern quantize IN OUT.gguf TYPE";
static const char no_escapes[] = "\\n in a text is two letters; -f FILE has texts of several lines";
static const char batches[] = "requests are always computed together";
static const char embeds[] = "every model has embeddings, at /v1/embeddings and /api/embed";
static const char no_slots[] = "there are no slots; --parallel N limits the answers at a time";
static const char prefixes[] = "prefixes of earlier prompts are always reused";
static const char tools_work[] = "reasoning and calls are always told apart from text";
static const char models_stay[] = "models stay open while memory lasts";
static const char system_text[] = "--system takes a text: --system \"$(cat FILE)\"";
static const char colours[] = "terminals get colour, unless NO_COLOR is set";

// What means one thing in one command alone.
static const struct {
    const char *command;
    qn_foreign row;
} local_rows[] = {
    {"eval", {"-f", "--ppl", NULL, true}},
    {"eval", {"--file", "--ppl", NULL, true}},
    {"imatrix", {"-f", NULL, text_file, false}},
    {"imatrix", {"--file", NULL, text_file, false}},
    {"tokenize", {"-p", NULL, after_model, false}},
    {"tokenize", {"--prompt", NULL, after_model, false}},
    {"tokenize", {"-f", NULL, piped_text, false}},
    {"tokenize", {"--file", NULL, piped_text, false}},
    {"convert", {"--outfile", NULL, new_file, false}},
    {"convert", {"-o", NULL, new_file, false}},
    {"convert", {"--outtype", "--type", NULL, true}},
    {"bench", {"-o", "--json", NULL, false}},
    {"bench", {"--output", "--json", NULL, false}},
    {"quantize", {"--type", NULL, type_last, false}},
    {"run", {"--keepalive", NULL, "the model is open while this program runs", false}},
    {"serve", {"-to", "--timeout", NULL, true}},
    {"serve", {"--keep-alive", NULL, models_stay, false}},
    {"serve", {"-a", "--alias", NULL, true}},
    {"serve", {"--served-model-name", "--alias", NULL, true}},
    {"serve", {"--models-dir", "--models", NULL, true}},
    {"serve", {"--max-model-len", "--context", NULL, true}},
    {"serve", {"--max-num-seqs", "--parallel", NULL, true}},
    {"serve", {"--max-num-batched-tokens", "--chunk", NULL, true}},
    {"serve", {"--ssl-cert-file", "--tls-cert", NULL, true}},
    {"serve", {"--ssl-certfile", "--tls-cert", NULL, true}},
    {"serve", {"--ssl-key-file", "--tls-key", NULL, true}},
    {"serve", {"--ssl-keyfile", "--tls-key", NULL, true}},
    {"serve", {"--no-webui", "--no-page", NULL, true}},
    {"serve", {"--no-ui", "--no-page", NULL, true}},
    {"serve", {"--allowed-origins", "--cors-origin", NULL, false}},
    {"serve", {"--disable-log-requests", "--quiet", NULL, false}},
    {"serve", {"--log-disable", "--quiet", NULL, false}},
    {"serve", {"-cb", NULL, batches, false}},
    {"serve", {"--cont-batching", NULL, batches, false}},
    {"serve", {"--embedding", NULL, embeds, false}},
    {"serve", {"--embeddings", NULL, embeds, false}},
    {"serve", {"--slots", NULL, no_slots, false}},
    {"serve", {"--enable-prefix-caching", NULL, prefixes, false}},
    {"serve", {"--cache-reuse", NULL, prefixes, false}},
    {"serve", {"--enable-auto-tool-choice", NULL, tools_work, false}},
    {"serve", {"--tool-call-parser", NULL, tools_work, false}},
    {"serve", {"--reasoning-parser", NULL, tools_work, false}},
    {"serve", {"--reasoning-format", NULL, tools_work, false}},
    {"serve", {"--gpu-memory-utilization", NULL, gpu, false}},
    {"serve", {"--tensor-parallel-size", NULL, gpu, false}},
};

static const qn_foreign rows[] = {
    {"--n-predict", "--tokens", NULL, true},
    {"--predict", "--tokens", NULL, true},
    {"--max-tokens", "--tokens", NULL, true},
    {"--max-new-tokens", "--tokens", NULL, true},
    {"--num-predict", "--tokens", NULL, true},
    {"--temperature", "--temp", NULL, true},
    {"--ctx-size", "--context", NULL, true},
    {"--num-ctx", "--context", NULL, true},
    {"--context-length", "--context", NULL, true},
    {"--ctk", "--cache-type", NULL, false},
    {"--ctv", "--cache-type", NULL, false},
    {"-ctk", "--cache-type", NULL, false},
    {"-ctv", "--cache-type", NULL, false},
    {"--cache-type-k", "--cache-type", NULL, false},
    {"--cache-type-v", "--cache-type", NULL, false},
    {"-b", "--chunk", "the chunk size of prefill is chosen automatically", false},
    {"-ub", "--chunk", "the chunk size of prefill is chosen automatically", false},
    {"--batch-size", "--chunk", "the chunk size of prefill is chosen automatically", false},
    {"--ubatch-size", "--chunk", "the chunk size of prefill is chosen automatically", false},
    {"--num-batch", "--chunk", "the chunk size of prefill is chosen automatically", false},
    {"-tb", "--threads", NULL, false},
    {"--threads-batch", "--threads", NULL, false},
    {"--num-thread", "--threads", NULL, true},
    {"--num-keep", "--keep", NULL, true},
    {"-s", "--seed", NULL, true},
    {"-sys", "--system", NULL, true},
    {"--system-prompt", "--system", NULL, true},
    {"-sysf", NULL, system_text, false},
    {"--system-prompt-file", NULL, system_text, false},
    {"--prompt-cache", "--session", NULL, false},
    {"-r", "--stop", NULL, false},
    {"--reverse-prompt", "--stop", NULL, false},
    {"-no-cnv", "--raw", NULL, true},
    {"--no-conversation", "--raw", NULL, true},
    {"-cnv", NULL, chats, false},
    {"--conversation", NULL, chats, false},
    {"-i", NULL, chats, false},
    {"--interactive", NULL, chats, false},
    {"-st", NULL, chats, false},
    {"--single-turn", NULL, chats, false},
    {"-ngl", "--gpu-layers", NULL, true},
    {"--ngl", "--gpu-layers", NULL, true},
    {"--num-gpu", "--gpu-layers", NULL, true},
    {"--n-gpu-layers", "--gpu-layers", NULL, true},
    {"--gpu", "--gpu-layers", NULL, false},
    {"--cpu-moe", "--gpu-layers", NULL, false},
    {"--n-cpu-moe", "--gpu-layers", NULL, false},
    {"--rope-freq-scale", NULL,
     "'--rope-scaling linear --rope-scale X' makes the context X times longer, "
     "which is 1 / that number",
     false},
    {"-sm", NULL, gpu, false},
    {"-mg", NULL, gpu, false},
    {"-fa", NULL, needs_nothing, false},
    {"--flash-attn", NULL, needs_nothing, false},
    {"-pg", NULL, "-p and -n are measured separately, and -d DEPTH at a depth", false},
    {"-hf", NULL, by_name, false},
    {"-hfr", NULL, by_name, false},
    {"--hf", NULL, by_name, false},
    {"--hf-repo", NULL, by_name, false},
    {"-hff", NULL, by_name, false},
    {"--hf-file", NULL, by_name, false},
    {"-mu", NULL, pulls, false},
    {"--model-url", NULL, pulls, false},
    {"--model-draft", "--draft", NULL, true},
    {"--draft-n", "--draft-max", NULL, true},
    {"--typical-p", "--typical", NULL, true},
    {"--top-n-sigma", "--top-nsigma", NULL, true},
    {"--mirostat-eta", "--mirostat-lr", NULL, true},
    {"--mirostat-tau", "--mirostat-ent", NULL, true},
    {"--repetition-penalty", "--repeat-penalty", NULL, true},
    {"--sampling-seq", "--samplers", NULL, false},
    {"--sampler-seq", "--samplers", NULL, false},
    {"-dev", "--device", NULL, true},
    {"--list-devices", NULL, "'quern devices' lists them", false},
    {"--version", NULL, "'quern --version' prints it", false},
    {"--color", NULL, colours, false},
    {"-co", NULL, colours, false},
    {"-e", NULL, no_escapes, false},
    {"--escape", NULL, no_escapes, false},
    {"--chat-template", "--template", NULL, false},
    {"--chat-template-file", "--template", NULL, true},
    {"--jinja", NULL, own_template, false},
    {"--reasoning-budget", "--reasoning", NULL, false},
    {"--think", "--reasoning", NULL, false},
    {"--hidethinking", NULL, "reasoning is dimmed on a terminal, and a pipe gets none", false},
    {"--format", "--json-mode", NULL, false},
    {"-v", NULL, no_log, false},
    {"--verbose", NULL, no_log, false},
    {"--log-disable", NULL, quiet, false},
    {"--no-display-prompt", NULL, quiet, false},
    {"--nowordwrap", "--no-wrap", NULL, true},
    {"--simple-io", "--plain", NULL, false},
    {"--no-mmap", NULL, weights_stay, false},
    {"--mlock", NULL, weights_stay, false},
    {"--lora-scaled", "--lora", "the scale follows the file: --lora FILE:SCALE", false},
};

// Ollama writes "num_ctx".
static bool is_spelled(const char *row, const char *name, size_t n) {
    if (strlen(row) != n) return false;
    size_t i = 0;
    while (i < n && (name[i] == row[i] || (name[i] == '_' && row[i] == '-'))) i++;
    return i == n;
}

const qn_foreign *qn_foreign_find(const char *command, const char *name, size_t n) {
    for (size_t i = 0; i < sizeof local_rows / sizeof *local_rows; i++) {
        const qn_foreign *row = &local_rows[i].row;
        const bool is_here = strcmp(local_rows[i].command, command) == 0;
        if (is_here && is_spelled(row->name, name, n)) return row;
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (is_spelled(rows[i].name, name, n)) return &rows[i];
    }
    return NULL;
}

// --- words that are not options ------------------------------------------------------------------

static const char command_first[] = "the command comes first: quern run MODEL -p TEXT";
static const char history_fixed[] = "--no-history when quern starts keeps no history";
static const char live_figures[] = "a line of figures follows each answer, /stats sums them up";

static const struct {
    qn_foreign_place place;
    const char *word, *hint;
} hints[] = {
    {QN_PLACE_COMMAND, "chat", "'quern run' chats"},
    {QN_PLACE_COMMAND, "cli", "'quern run' chats"},
    {QN_PLACE_COMMAND, "completion", "'quern help completion bash' prints it"},
    {QN_PLACE_COMMAND, "config", "'quern help config' says how defaults are kept"},
    {QN_PLACE_COMMAND, "man", "'quern help manual' prints a page"},
    {QN_PLACE_COMMAND, "generate", "'quern run -p TEXT' does it"},
    {QN_PLACE_COMMAND, "perplexity", "'quern eval MODEL --ppl FILE' does it"},
    {QN_PLACE_COMMAND, "server", "'quern serve' is it"},
    {QN_PLACE_COMMAND, "ps", "a server ('quern serve') lists its models at /api/ps"},
    {QN_PLACE_COMMAND, "ls", "'quern list' does it"},
    {QN_PLACE_COMMAND, "cp", "a copy of the file in the folder of models is a model, too"},
    {QN_PLACE_COMMAND, "download", "'quern pull' does it"},
    {QN_PLACE_COMMAND, "get", "'quern pull' does it"},
    {QN_PLACE_COMMAND, "update", "'quern pull NAME' again downloads what has changed"},
    {QN_PLACE_COMMAND, "remove", "'quern rm' does it"},
    {QN_PLACE_COMMAND, "delete", "'quern rm' does it"},
    {QN_PLACE_COMMAND, "models", "'quern list' lists them"},
    {QN_PLACE_COMMAND, "info", "'quern show NAME' and 'quern inspect MODEL' say what a model is"},
    {QN_PLACE_COMMAND, "search", "'quern list' has the models on this disk; the hub has pages"},
    {QN_PLACE_COMMAND, "login", "HF_TOKEN is the token that 'quern pull' shows to the hub"},
    {QN_PLACE_COMMAND, "stop", "a server ends by Ctrl-C or TERM, and closes models by itself"},
    {QN_PLACE_COMMAND, "create", "'quern convert' and 'quern quantize' make model files"},
    {QN_PLACE_COMMAND, "-m", command_first},
    {QN_PLACE_COMMAND, "--model", command_first},
    {QN_PLACE_COMMAND, "-p", command_first},
    {QN_PLACE_COMMAND, "--prompt", command_first},
    {QN_PLACE_CHAT, "/glob", "/read FILE takes one file, and may be repeated"},
    {QN_PLACE_CHAT, "/retry", "/regen gives another answer"},
    {QN_PLACE_SETTING, "system", "use /system TEXT"},
    {QN_PLACE_SETTING, "think", "use /set reasoning on"},
    {QN_PLACE_SETTING, "nothink", "use /set reasoning off"},
    {QN_PLACE_SETTING, "wordwrap", "use /set no-wrap off"},
    {QN_PLACE_SETTING, "nowordwrap", "use /set no-wrap on"},
    {QN_PLACE_SETTING, "history", history_fixed},
    {QN_PLACE_SETTING, "nohistory", history_fixed},
    {QN_PLACE_SETTING, "verbose", live_figures},
    {QN_PLACE_SETTING, "quiet", live_figures},
};

const char *qn_foreign_hint(qn_foreign_place place, const char *word, size_t n) {
    for (size_t i = 0; i < sizeof hints / sizeof *hints; i++) {
        if (hints[i].place == place && is_spelled(hints[i].word, word, n)) return hints[i].hint;
    }
    return NULL;
}

#include "cli/foreign.h"

#include <stdbool.h>
#include <string.h>

static const char no_gpu[] = "there is no GPU support yet, the CPU computes";
static const char no_download[] = "models are files, downloaded by other programs";
static const char no_such_thing[] = "this is not there yet";
static const char chats[] = "'quern run MODEL' chats on a terminal, and -p answers once";
static const char needs_nothing[] = "attention is always fused, there is nothing to turn on";
static const char no_log[] = "there is no log; --profile tells where the time goes";
static const char own_template[] = "the model's own template is always used, or --template FILE";
static const char weights_stay[] = "weights stay in memory; 'quern compile' makes opening faster";
static const char quiet[] = "answers go to stdout, and nothing else does";

static const qn_foreign rows[] = {
    {"--n-predict", "--tokens", NULL},
    {"--predict", "--tokens", NULL},
    {"--max-tokens", "--tokens", NULL},
    {"--num-predict", "--tokens", NULL},
    {"--temperature", "--temp", NULL},
    {"--ctx-size", "--context", NULL},
    {"--num-ctx", "--context", NULL},
    {"--ctk", "--cache-type", NULL},
    {"--ctv", "--cache-type", NULL},
    {"-ctk", "--cache-type", NULL},
    {"-ctv", "--cache-type", NULL},
    {"--cache-type-k", "--cache-type", NULL},
    {"--cache-type-v", "--cache-type", NULL},
    {"-b", "--chunk", "prompts are read in steps of a size that needs no choice"},
    {"-ub", "--chunk", "prompts are read in steps of a size that needs no choice"},
    {"--batch-size", "--chunk", "prompts are read in steps of a size that needs no choice"},
    {"--ubatch-size", "--chunk", "prompts are read in steps of a size that needs no choice"},
    {"-tb", "--threads", NULL},
    {"--threads-batch", "--threads", NULL},
    {"--num-thread", "--threads", NULL},
    {"--num-keep", "--keep", NULL},
    {"-s", "--seed", NULL},
    {"-sys", "--system", NULL},
    {"--system-prompt", "--system", NULL},
    {"-r", "--stop", NULL},
    {"--reverse-prompt", "--stop", NULL},
    {"-no-cnv", "--raw", NULL},
    {"--no-conversation", "--raw", NULL},
    {"-cnv", NULL, chats},
    {"--conversation", NULL, chats},
    {"-i", NULL, chats},
    {"--interactive", NULL, chats},
    {"-st", NULL, chats},
    {"--single-turn", NULL, chats},
    {"-ngl", NULL, no_gpu},
    {"--ngl", NULL, no_gpu},
    {"--num-gpu", NULL, no_gpu},
    {"--gpu-layers", NULL, no_gpu},
    {"--n-gpu-layers", NULL, no_gpu},
    {"-sm", NULL, no_gpu},
    {"-mg", NULL, no_gpu},
    {"-fa", NULL, needs_nothing},
    {"--flash-attn", NULL, needs_nothing},
    {"-pg", NULL, "-p and -n are measured apart, and -d DEPTH behind other tokens"},
    {"-hf", NULL, no_download},
    {"--hf-repo", NULL, no_download},
    {"-mu", NULL, no_download},
    {"--model-url", NULL, no_download},
    {"--model-draft", "--draft", NULL},
    {"--draft-n", "--draft-max", NULL},
    {"--typical-p", "--typical", NULL},
    {"--mirostat-eta", "--mirostat-lr", NULL},
    {"--mirostat-tau", "--mirostat-ent", NULL},
    {"--repetition-penalty", "--repeat-penalty", NULL},
    {"--sampling-seq", "--samplers", NULL},
    {"--chat-template", "--template", NULL},
    {"--chat-template-file", "--template", NULL},
    {"--jinja", NULL, own_template},
    {"--reasoning-budget", "--reasoning", NULL},
    {"--think", "--reasoning", NULL},
    {"--format", "--json-mode", NULL},
    {"-v", NULL, no_log},
    {"--verbose", NULL, no_log},
    {"--log-disable", NULL, quiet},
    {"--no-display-prompt", NULL, quiet},
    {"--no-mmap", NULL, weights_stay},
    {"--mlock", NULL, weights_stay},
    {"--lora", NULL, no_such_thing},
    {"--mmproj", NULL, "images are not there yet"},
    {"--image", NULL, "images are not there yet"},
};

// Ollama writes "num_ctx".
static bool is_same(const char *row, const char *name, size_t n) {
    size_t i = 0;
    while (i < n && (name[i] == row[i] || (name[i] == '_' && row[i] == '-'))) i++;
    return i == n;
}

const qn_foreign *qn_foreign_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].name) == n && is_same(rows[i].name, name, n)) return &rows[i];
    }
    return NULL;
}

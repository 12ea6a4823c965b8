#include "cli/foreign.h"

#include <stdbool.h>
#include <string.h>

static const char no_gpu[] = "there is no GPU support yet, the CPU computes";
static const char no_download[] = "models are files, downloaded by other programs";
static const char chats[] = "'quern run MODEL' chats on a terminal, and -p answers once";
static const char needs_nothing[] = "attention is always fused, there is nothing to turn on";
static const char no_log[] = "there is no log; --profile tells where the time goes";
static const char own_template[] = "the model's own template is always used, or --template FILE";
static const char weights_stay[] = "weights stay in memory; 'quern compile' makes opening faster";
static const char quiet[] = "answers go to stdout, and nothing else does";

static const qn_foreign rows[] = {
    {"--n-predict", "--tokens", NULL, true},
    {"--predict", "--tokens", NULL, true},
    {"--max-tokens", "--tokens", NULL, true},
    {"--num-predict", "--tokens", NULL, true},
    {"--temperature", "--temp", NULL, true},
    {"--ctx-size", "--context", NULL, true},
    {"--num-ctx", "--context", NULL, true},
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
    {"-tb", "--threads", NULL, false},
    {"--threads-batch", "--threads", NULL, false},
    {"--num-thread", "--threads", NULL, true},
    {"--num-keep", "--keep", NULL, true},
    {"-s", "--seed", NULL, true},
    {"-sys", "--system", NULL, true},
    {"--system-prompt", "--system", NULL, true},
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
    {"-ngl", NULL, no_gpu, false},
    {"--ngl", NULL, no_gpu, false},
    {"--num-gpu", NULL, no_gpu, false},
    {"--gpu-layers", NULL, no_gpu, false},
    {"--n-gpu-layers", NULL, no_gpu, false},
    {"-sm", NULL, no_gpu, false},
    {"-mg", NULL, no_gpu, false},
    {"-fa", NULL, needs_nothing, false},
    {"--flash-attn", NULL, needs_nothing, false},
    {"-pg", NULL, "-p and -n are measured separately, and -d DEPTH at a depth", false},
    {"-hf", NULL, no_download, false},
    {"--hf-repo", NULL, no_download, false},
    {"-mu", NULL, no_download, false},
    {"--model-url", NULL, no_download, false},
    {"--model-draft", "--draft", NULL, true},
    {"--draft-n", "--draft-max", NULL, true},
    {"--typical-p", "--typical", NULL, true},
    {"--mirostat-eta", "--mirostat-lr", NULL, true},
    {"--mirostat-tau", "--mirostat-ent", NULL, true},
    {"--repetition-penalty", "--repeat-penalty", NULL, true},
    {"--sampling-seq", "--samplers", NULL, false},
    {"--chat-template", "--template", NULL, false},
    {"--chat-template-file", "--template", NULL, true},
    {"--jinja", NULL, own_template, false},
    {"--reasoning-budget", "--reasoning", NULL, false},
    {"--think", "--reasoning", NULL, false},
    {"--format", "--json-mode", NULL, false},
    {"-v", NULL, no_log, false},
    {"--verbose", NULL, no_log, false},
    {"--log-disable", NULL, quiet, false},
    {"--no-display-prompt", NULL, quiet, false},
    {"--no-mmap", NULL, weights_stay, false},
    {"--mlock", NULL, weights_stay, false},
    {"--lora-scaled", "--lora", "the scale follows the file: --lora FILE:SCALE", false},
    {"--mmproj", NULL, "images are not supported yet", false},
    {"--image", NULL, "images are not supported yet", false},
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

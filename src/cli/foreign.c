#include "cli/foreign.h"

#include <string.h>

static const char no_gpu[] = "there is no GPU support yet, the CPU computes";
static const char no_download[] = "models are files, downloaded by other programs";
static const char no_such_thing[] = "this is not there yet";
static const char chats[] = "'quern run MODEL' chats on a terminal, and -p answers once";
static const char needs_nothing[] = "attention is always fused, there is nothing to turn on";

static const qn_foreign rows[] = {
    {"--n-predict", "--tokens", NULL},
    {"--predict", "--tokens", NULL},
    {"--max-tokens", "--tokens", NULL},
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
    {"--repetition-penalty", "--repeat-penalty", NULL},
    {"--sampling-seq", "--samplers", NULL},
    {"--chat-template", "--template", NULL},
    {"--chat-template-file", "--template", NULL},
    {"--lora", NULL, no_such_thing},
    {"--mmproj", NULL, "images are not there yet"},
    {"--image", NULL, "images are not there yet"},
};

const qn_foreign *qn_foreign_find(const char *name, size_t n) {
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if (strlen(rows[i].name) == n && memcmp(rows[i].name, name, n) == 0) return &rows[i];
    }
    return NULL;
}

#include "models/defaults.h"

#include "core/chars.h"

#include <string.h>

// As in transformers 5.0; the same in 4.57 but for what docs/models.md names.
#define COMMON .eps = 1e-6, .rope_base = 10000, .rotary = 1
#define QWEN                                                                                       \
    COMMON, .context = 32768, .window = 4096, .window_first = 28, .window_rule = QN_WINDOWS_BY_LAYER
#define QWEN35                                                                                     \
    .eps = 1e-6, .rope_base = 10000, .rotary = 0.25, .context = 32768, .head_size = 256,           \
    .heads = 16, .interval = 4, .key_heads = 16, .val_heads = 32, .key_dim = 128, .val_dim = 128,  \
    .taps = 4

static const qn_defaults table[] = {
    {.types = "llama", COMMON, .heads = 32, .context = 2048},
    {.types = "mistral",
     COMMON,
     .heads = 32,
     .kv_heads = 8,
     .context = 131072,
     .window = 4096,
     .window_rule = QN_WINDOWS_ALL},
    {.types = "qwen2", QWEN, .heads = 32, .kv_heads = 32},
    {.types = "qwen3", QWEN, .heads = 32, .kv_heads = 32, .head_size = 128},
    {.types = "qwen3_moe",
     COMMON,
     .context = 32768,
     .window = 4096,
     .window_rule = QN_WINDOWS_USED,
     .heads = 32,
     .kv_heads = 4,
     .experts = 128,
     .experts_used = 8,
     .expert_ffn = 768},
    {.types = "gemma",
     COMMON,
     .heads = 16,
     .kv_heads = 16,
     .head_size = 256,
     .context = 8192,
     .is_tied = true},
    {.types = "gemma2",
     COMMON,
     .heads = 8,
     .kv_heads = 4,
     .head_size = 256,
     .context = 8192,
     .window = 4096,
     .window_rule = QN_WINDOWS_BY_LAYER,
     .pattern = 2,
     .attn_cap = 50,
     .final_cap = 30,
     .query_scalar = 256,
     .is_tied = true},
    {.types = "gemma3 gemma3_text",
     .eps = 1e-6,
     .rope_base = 1000000,
     .rope_local_base = 10000,
     .rotary = 1,
     .head_size = 256,
     .heads = 8,
     .kv_heads = 4,
     .context = 131072,
     .window = 4096,
     .window_rule = QN_WINDOWS_BY_LAYER,
     .pattern = 6,
     .query_scalar = 256,
     .is_tied = true},
    {.types = "qwen3_5 qwen3_5_text", QWEN35, .kv_heads = 4},
    {.types = "qwen3_5_moe qwen3_5_moe_text",
     QWEN35,
     .kv_heads = 2,
     .experts = 256,
     .experts_used = 8,
     .expert_ffn = 512,
     .shared_ffn = 512},
};

const qn_defaults *qn_defaults_at(size_t i) {
    return i < sizeof table / sizeof table[0] ? &table[i] : NULL;
}

const qn_defaults *qn_defaults_find(const char *model_type) {
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (qn_has_word(table[i].types, model_type, ' ')) return &table[i];
    }
    return NULL;
}

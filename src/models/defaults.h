// What the keys of config.json mean where they are absent: the defaults of the reference's
// configuration classes, by model type. GGUF files have rules of their own.
#ifndef QN_MODELS_DEFAULTS_H
#define QN_MODELS_DEFAULTS_H

#include <stdbool.h>
#include <stddef.h>

// Which layers look through a window.
typedef enum qn_window_rule {
    QN_WINDOWS_NONE,    // there are none, whatever the keys say
    QN_WINDOWS_ALL,     // all, if there is a sliding_window
    QN_WINDOWS_USED,    // all, if use_sliding_window is true as well
    QN_WINDOWS_BY_LAYER // the same, from max_window_layers on or as layer_types says
} qn_window_rule;

// Numbers; 0: none, or what follows from other numbers.
typedef struct qn_defaults {
    const char *types;                         // values of model_type, separated by ' '
    double heads, kv_heads, head_size;         // num_attention_heads, num_key_value_heads, head_dim
    double context, eps;                       // max_position_embeddings, rms_norm_eps
    double rope_base, rope_local_base, rotary; // rope_theta, rope_local_base_freq and
                                               // partial_rotary_factor
    qn_window_rule window_rule;
    double window, window_first, pattern;     // sliding_window, max_window_layers and
                                              // sliding_window_pattern
    double attn_cap, final_cap, query_scalar; // attn_logit_softcapping, final_logit_softcapping and
                                              // query_pre_attn_scalar
    double experts, experts_used, expert_ffn, shared_ffn; // num_experts, num_experts_per_tok,
                                                          // moe_intermediate_size and
                                                          // shared_expert_intermediate_size
    double interval, key_heads, val_heads, key_dim, val_dim, taps; // full_attention_interval and
                                                                   // linear_*
    bool is_tied;                                                  // tie_word_embeddings
} qn_defaults;

// The place of a member, for config rows; never 0.
#define QN_DEFAULT(member) offsetof(qn_defaults, member)

// Row i of the table; NULL after the last.
const qn_defaults *qn_defaults_at(size_t i);
// NULL: not a known model type.
const qn_defaults *qn_defaults_find(const char *model_type);

#endif

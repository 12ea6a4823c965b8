// What can be said of a model without its weights: sizes, what its template knows, and the memory
// that it will take.
#ifndef QN_SERVER_MODEL_FACTS_H
#define QN_SERVER_MODEL_FACTS_H

#include "core/err.h"

typedef struct qn_server qn_server;

typedef struct qn_facts {
    char architecture[64];   // "qwen3", ...
    char format[16];         // "gguf" or "safetensors"
    char quantization[16];   // type of most of its weights: "Q8_0", ...
    int64_t file_bytes;      // of all its files
    int64_t context;         // max tokens of a request here
    int64_t trained_context; // that the model was made for
    int64_t n_parameters, n_vocab, n_layers, width, ffn_width, n_heads, n_kv_heads, head_size;
    int64_t n_experts;
    int64_t weights, activations; // bytes, once it is open
    int64_t row_state;            // bytes of KV cache and state of one request of `context` tokens
    bool has_vision, has_thinking, has_tools;
} qn_facts;

// Opens the model without weights.
QN_MUST_CHECK qn_status qn_facts_read(qn_facts *out, const qn_server *server, const char *path,
                                      qn_err *err);

// The chat template of a model: the server's own, the model's, or a built-in one that fits. *out is
// NULL if there is none that is known; `why` (size n) says why then.
QN_MUST_CHECK qn_status qn_template_choose(qn_template **out, char *why, size_t n,
                                           const qn_server *server, const qn_engine *engine,
                                           qn_err *err);
// Whether what the template knows shows in a small conversation. A template NULL knows nothing.
QN_MUST_CHECK qn_status qn_template_look(bool *has_thinking, bool *has_tools,
                                         const qn_template *chat_template,
                                         const qn_tokenizer *tokenizer, qn_err *err);

#endif

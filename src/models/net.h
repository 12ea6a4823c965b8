// Blocks that families are written with: each appends a few nodes and returns the result.
//
// A family's build() reads like the paper: begin, embed, per layer attention and feed-forward,
// head. Errors stay in the builder until the end.
#ifndef QN_MODELS_NET_H
#define QN_MODELS_NET_H

#include "models/adapter.h"
#include "models/rope_scaling.h"

// The numbers that every family has; families put this first in their own config.
typedef struct qn_hparams {
    int64_t layers, width, heads, kv_heads, head_size, value_size, ffn, context, vocab;
    int64_t experts, experts_used, expert_ffn; // 0 in dense models
    int64_t predict_layers;                    // layers after the last that predict further tokens
    int64_t rotate;                            // leading values of a head that rope turns
    float eps;
} qn_hparams;

typedef struct qn_net {
    qn_build b;
    qn_binder binder;
    const qn_hparams *hp;
    bool with_hidden;      // the residual stream is an output too
    bool with_predict;     // the prediction head's cache is filled, and its inputs are outputs too
    qn_adapters *adapters; // NULL: none
    int32_t ids, table, row_out;
} qn_net;

// Rows after the final norm, as outputs and inputs of graphs: of each wanted row, and of the token
// before it.
#define QN_ROWS_LAST   "rows.last"
#define QN_ROWS_BEFORE "rows.before"

// Declares the inputs of a step.
void qn_net_begin(qn_net *net);

// Binds the embedding, the final norm and the output matrix, which is the embedding itself where
// the checkpoint ties them (GGUF: where it has no output.weight).
typedef struct qn_ends {
    int32_t *embedding, *norm, *output;
    bool is_tied;        // as config.json says
    unsigned norm_flags; // QN_PLUS_ONE or 0
} qn_ends;
void qn_net_bind_ends(qn_net *net, const qn_ends *ends);

// Rows of the token embedding (V, D), or given ones (images).                          -> (T, D)
int32_t qn_net_rows(qn_net *net, int32_t embedding);
// The same, scaled unless scale is 1; also the first hidden output. Rows cannot be given to a model
// that scales them: they are what the first layer reads.                                -> (T, D)
int32_t qn_net_embed(qn_net *net, int32_t embedding, float scale);
// Ends layer `layer`: names the residual stream, and shows it where wanted.
void qn_net_end_layer(qn_net *net, int32_t h, int64_t layer);
// Final norm, wanted rows, output matrix, soft cap (0: none); the output "logits" (R, V). Returns
// all rows after the norm (T, D) where they are shown or predicted from, else QN_NO_VALUE.
int32_t qn_net_head(qn_net *net, int32_t h, int32_t norm, int32_t output, float cap);
// The wanted rows of x (T, D) as an output (R, D).
void qn_net_show_rows(qn_net *net, const char *name, int32_t x);

int32_t qn_net_norm(qn_net *net, int32_t x, int32_t w);
// x w' + bias, and what adapters add to w; bias may be QN_NO_VALUE.
int32_t qn_net_linear(qn_net *net, int32_t x, int32_t w, int32_t bias);
// (T, P*E) -> (T, P, E)
int32_t qn_net_split(qn_net *net, int32_t x, int64_t parts);
int32_t qn_net_narrow(qn_net *net, int32_t x, int64_t axis, int64_t start, int64_t length);

// What turns queries and keys: frequencies as a constant of the graph, (rotate / 2), and what
// cosines and sines are multiplied with.
typedef struct qn_turn {
    int32_t frequencies;
    float magnitude;
} qn_turn;
qn_turn qn_net_turn(qn_net *net, const char *name, const qn_rope_names *names,
                    const qn_config_reader *reader);

// Rope on q and k, cache write, attention.
typedef struct qn_attention {
    int32_t q, k, v; // (T, H, E), (T, K, E), (T, K, F)
    qn_turn turn;
    qn_word pairs; // half or adjacent
    qn_list sections;
    float scale, cap;
    int64_t window;   // 0: none
    bool skips_first; // the first position is not seen
} qn_attention;
int32_t qn_net_attention(qn_net *net, const qn_attention *a, int64_t layer); // -> (T, H*F)

// down(act(gate(x)) * up(x)); biases may be QN_NO_VALUE.
typedef struct qn_ffn {
    int32_t gate, up, down, gate_bias, up_bias, down_bias;
    qn_op act;
} qn_ffn;
#define QN_NO_BIASES .gate_bias = QN_NO_VALUE, .up_bias = QN_NO_VALUE, .down_bias = QN_NO_VALUE
int32_t qn_net_ffn(qn_net *net, int32_t x, const qn_ffn *ffn);

// The best experts by the router's scores, weighted.
typedef struct qn_moe {
    int32_t router; // (X, D)
    qn_expert_stacks experts;
    bool normalize;
    float scale;
} qn_moe;
int32_t qn_net_moe(qn_net *net, int32_t x, const qn_moe *moe);

#endif

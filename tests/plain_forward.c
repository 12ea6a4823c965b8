#include "testing.h"

#include "plain_forward.h"

#include <math.h>

// Sizes: D width, H heads, K kv heads, E head size, F feed-forward, V vocabulary, L layers.
typedef struct plain {
    const model_file *m;
    int64_t D, H, K, E, F, V, L, n;
    int64_t experts_used, expert_ffn; // of layers that have a router
    bool normalize;                   // the weights of the chosen experts sum to 1
    double eps, base, slow_down;
} plain;

static double number(const model_file *m, const char *name) {
    const json_t *value = json_object_get(m->config, name);
    if (!json_is_number(value)) fail_msg("config.json: no number %s", name);
    return json_number_value(value);
}

static plain read_sizes(const model_file *m, int64_t n, const plain_opts *opts) {
    const json_t *rope = json_object_get(m->config, "rope_parameters");
    plain p = {.m = m, .n = n, .slow_down = opts->slow_down > 0 ? opts->slow_down : 1};
    p.D = (int64_t)number(m, "hidden_size");
    p.H = (int64_t)number(m, "num_attention_heads");
    p.K = (int64_t)number(m, "num_key_value_heads");
    p.E = (int64_t)number(m, "head_dim");
    p.F = (int64_t)number(m, "intermediate_size");
    p.V = (int64_t)number(m, "vocab_size");
    p.L = (int64_t)number(m, "num_hidden_layers");
    p.eps = number(m, "rms_norm_eps");
    p.base = json_number_value(json_object_get(rope, "rope_theta"));
    assert_true(p.base > 0);
    if (json_object_get(m->config, "num_experts_per_tok")) {
        p.experts_used = (int64_t)number(m, "num_experts_per_tok");
        p.expert_ffn = (int64_t)number(m, "moe_intermediate_size");
        p.normalize = json_is_true(json_object_get(m->config, "norm_topk_prob"));
    }
    return p;
}

static double *zeros(int64_t n) {
    double *to = calloc((size_t)n, sizeof *to);
    assert_non_null(to);
    return to;
}

// A tensor of a layer ("self_attn.q_proj.weight") or of the model (layer -1) as floats; NULL if it
// is absent.
static float *tensor(const plain *p, int64_t layer, const char *name) {
    char full[MODEL_NAME];
    if (layer < 0)
        snprintf(full, sizeof full, "%.100s", name);
    else
        snprintf(full, sizeof full, "model.layers.%lld.%.100s", (long long)layer, name);
    const model_tensor *t = model_find(p->m, full);
    return t ? model_floats(t) : NULL;
}

// y = W x + b for every row; name is without ".weight".
static double *linear(const plain *p, const double *x, int64_t in, int64_t out, int64_t layer,
                      const char *name) {
    char full[MODEL_NAME];
    snprintf(full, sizeof full, "%s.weight", name);
    float *w = tensor(p, layer, full);
    assert_non_null(w);
    snprintf(full, sizeof full, "%s.bias", name);
    float *bias = tensor(p, layer, full);
    double *y = zeros(p->n * out);
    for (int64_t t = 0; t < p->n; t++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? (double)bias[o] : 0;
            for (int64_t i = 0; i < in; i++) sum += (double)w[o * in + i] * x[t * in + i];
            y[t * out + o] = sum;
        }
    }
    free(w);
    free(bias);
    return y;
}

// Every run of `size` values divided by its root mean square, times w.
static void norm_runs(double *y, const double *x, int64_t runs, int64_t size, const float *w,
                      double eps) {
    for (int64_t r = 0; r < runs; r++) {
        double square = 0;
        for (int64_t i = 0; i < size; i++) square += x[r * size + i] * x[r * size + i];
        const double root = sqrt(square / (double)size + eps);
        for (int64_t i = 0; i < size; i++) y[r * size + i] = (double)w[i] * x[r * size + i] / root;
    }
}

static double *norm(const plain *p, const double *x, int64_t layer, const char *name) {
    float *w = tensor(p, layer, name);
    assert_non_null(w);
    double *y = zeros(p->n * p->D);
    norm_runs(y, x, p->n, p->D, w, p->eps);
    free(w);
    return y;
}

// The norm of every head of queries or keys, where the model has one.
static void norm_heads(const plain *p, double *x, int64_t heads, int64_t layer, const char *name) {
    float *w = tensor(p, layer, name);
    if (w) norm_runs(x, x, p->n * heads, p->E, w, p->eps);
    free(w);
}

// Turns the pairs (i, i + E/2) of every head.
static void rope(const plain *p, double *x, int64_t heads) {
    const int64_t half = p->E / 2;
    for (int64_t r = 0; r < p->n * heads; r++) {
        for (int64_t i = 0; i < half; i++) {
            const double position = (double)(r / heads) / p->slow_down;
            const double angle = position / pow(p->base, 2.0 * (double)i / (double)p->E);
            double *a = &x[r * p->E + i], *b = &x[r * p->E + i + half];
            const double turned = *a * cos(angle) - *b * sin(angle);
            *b = *a * sin(angle) + *b * cos(angle);
            *a = turned;
        }
    }
}

// Row t sees position j when j <= t and, with a window W, t - j < W.
static double *attend(const plain *p, const double *q, const double *k, const double *v,
                      int64_t window) {
    double *out = zeros(p->n * p->H * p->E), *weight = zeros(p->n);
    for (int64_t t = 0; t < p->n; t++) {
        for (int64_t h = 0; h < p->H; h++) {
            const int64_t kv = h / (p->H / p->K);
            double total = 0;
            for (int64_t j = 0; j <= t; j++) {
                double score = 0;
                for (int64_t i = 0; i < p->E; i++)
                    score += q[(t * p->H + h) * p->E + i] * k[(j * p->K + kv) * p->E + i];
                weight[j] = window && t - j >= window ? 0 : exp(score / sqrt((double)p->E));
                total += weight[j];
            }
            for (int64_t j = 0; j <= t; j++) {
                for (int64_t i = 0; i < p->E; i++)
                    out[(t * p->H + h) * p->E + i] +=
                        weight[j] / total * v[(j * p->K + kv) * p->E + i];
            }
        }
    }
    free(weight);
    return out;
}

static void add_to(double *h, double *x, int64_t n) {
    for (int64_t i = 0; i < n; i++) h[i] += x[i];
    free(x);
}

static void attention_block(const plain *p, double *h, int64_t layer, int64_t window) {
    const int64_t Q = p->H * p->E, KV = p->K * p->E;
    double *x = norm(p, h, layer, "input_layernorm.weight");
    double *q = linear(p, x, p->D, Q, layer, "self_attn.q_proj");
    double *k = linear(p, x, p->D, KV, layer, "self_attn.k_proj");
    double *v = linear(p, x, p->D, KV, layer, "self_attn.v_proj");
    norm_heads(p, q, p->H, layer, "self_attn.q_norm.weight");
    norm_heads(p, k, p->K, layer, "self_attn.k_norm.weight");
    rope(p, q, p->H);
    rope(p, k, p->K);
    double *a = attend(p, q, k, v, window);
    add_to(h, linear(p, a, Q, p->D, layer, "self_attn.o_proj"), p->n * p->D);
    free(x);
    free(q);
    free(k);
    free(v);
    free(a);
}

// down(silu(gate x) * up x), of the tensors whose names begin with `name`.
static double *feed_forward(const plain *p, const double *x, int64_t size, int64_t layer,
                            const char *name) {
    char full[MODEL_NAME];
    snprintf(full, sizeof full, "%s.gate_proj", name);
    double *gate = linear(p, x, p->D, size, layer, full);
    snprintf(full, sizeof full, "%s.up_proj", name);
    double *up = linear(p, x, p->D, size, layer, full);
    for (int64_t i = 0; i < p->n * size; i++) up[i] *= gate[i] / (1 + exp(-gate[i]));
    snprintf(full, sizeof full, "%s.down_proj", name);
    double *y = linear(p, up, size, p->D, layer, full);
    free(gate);
    free(up);
    return y;
}

// How much each expert counts for a row: the softmax of the scores where it is among the best, else
// 0. In place.
static void weigh_experts(const plain *p, double *scores, int64_t experts) {
    double total = 0, chosen = 0;
    for (int64_t e = 0; e < experts; e++) total += exp(scores[e]);
    double *weight = zeros(experts);
    for (int64_t k = 0; k < p->experts_used; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++) {
            if (weight[e] == 0 && (best < 0 || scores[e] > scores[best])) best = e;
        }
        assert_true(best >= 0);
        weight[best] = exp(scores[best]) / total;
        chosen += weight[best];
    }
    for (int64_t e = 0; e < experts; e++) scores[e] = weight[e] / (p->normalize ? chosen : 1);
    free(weight);
}

static double *experts_block(const plain *p, const double *x, int64_t experts, int64_t layer) {
    double *weights = linear(p, x, p->D, experts, layer, "mlp.gate"), *sum = zeros(p->n * p->D);
    for (int64_t t = 0; t < p->n; t++) weigh_experts(p, weights + t * experts, experts);
    for (int64_t e = 0; e < experts; e++) {
        char name[MODEL_NAME];
        snprintf(name, sizeof name, "mlp.experts.%lld", (long long)e);
        double *y = feed_forward(p, x, p->expert_ffn, layer, name);
        for (int64_t i = 0; i < p->n * p->D; i++) sum[i] += weights[i / p->D * experts + e] * y[i];
        free(y);
    }
    free(weights);
    return sum;
}

// A layer with a router has experts, any other one feed-forward.
static void ffn_block(const plain *p, double *h, int64_t layer) {
    char name[MODEL_NAME];
    snprintf(name, sizeof name, "model.layers.%lld.mlp.gate.weight", (long long)layer);
    const model_tensor *router = model_find(p->m, name);
    double *x = norm(p, h, layer, "post_attention_layernorm.weight");
    add_to(h,
           router ? experts_block(p, x, router->dims[0], layer)
                  : feed_forward(p, x, p->F, layer, "mlp"),
           p->n * p->D);
    free(x);
}

double *plain_forward(const model_file *m, const int32_t *ids, int64_t n, const plain_opts *opts) {
    const plain p = read_sizes(m, n, opts);
    float *embedding = tensor(&p, -1, "model.embed_tokens.weight");
    assert_non_null(embedding);
    double *h = zeros(n * p.D);
    for (int64_t t = 0; t < n; t++) {
        for (int64_t i = 0; i < p.D; i++) h[t * p.D + i] = (double)embedding[ids[t] * p.D + i];
    }
    free(embedding);
    for (int64_t layer = 0; layer < p.L; layer++) {
        attention_block(&p, h, layer, opts->windows ? opts->windows[layer] : 0);
        ffn_block(&p, h, layer);
    }
    double *x = norm(&p, h, -1, "model.norm.weight");
    double *logits = linear(&p, x, p.D, p.V, -1, "lm_head");
    free(h);
    free(x);
    return logits;
}

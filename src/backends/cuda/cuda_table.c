// The tables of GPUs: kernels, recipes, sizes.
#include "backends/cuda/cuda_device.h"
#include "backends/refuse_shapes.h"

#include <string.h>

static const char *const kernels[QN_CUDA_KERNELS] = {
#define KERNEL(name) #name,
#include "backends/cuda/cuda_kernels.def"
#undef KERNEL
};

// --- temporary values ----------------------------------------------------------------------------

static qn_plan_arg floats(int64_t parts, int64_t width) {
    return (qn_plan_arg){.parts = parts, .width = width, .form = QN_WORD_f32};
}

static int temps_none(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    (void)temp, (void)graph, (void)node;
    return 0;
}

// Lists of the best ids, as int32; of each list, its min logit and its first broken id.
static int temps_head(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const int64_t n = graph->values[node->in[1]].shape.dims[0].n;
    const int64_t lists = (n + QN_CUDA_LIST - 1) / QN_CUDA_LIST;
    temp[0] = floats(1, lists * QN_CUDA_BEST);
    temp[1] = floats(1, 2 * lists);
    return 2;
}

// Ids as int32, weights, gated values, the same packed, the result of each expert.
static int temps_experts(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const qn_dim *gate = graph->values[node->in[2]].shape.dims; // X, F, D
    const int64_t top = node->attrs.top;
    temp[0] = floats(1, top);
    temp[1] = floats(1, top);
    temp[2] = floats(top, gate[1].n);
    temp[3] = (qn_plan_arg){.parts = top, .width = gate[1].n, .form = node->attrs.form};
    temp[4] = floats(top, gate[2].n);
    return 5;
}

static int temps_lora(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    temp[0] = floats(1, graph->values[node->in[2]].shape.dims[1].n);
    return 1;
}

// Queries, turned.
static int temps_attention(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node) {
    const qn_shape *q = &graph->values[node->in[0]].shape; // T, H, E
    temp[0] = floats(q->dims[1].n, q->dims[2].n);
    return 1;
}

#define KERNEL(name) name = QN_CUDA_##name,
enum {
#include "backends/cuda/cuda_kernels.def"
};
#undef KERNEL

#define IN(i)     (1u << (i))
#define LIST(...) __VA_ARGS__
static const qn_recipe recipes[QN_OP_COUNT] = {
#define RECIPE(op, temps_rule, reads_of, ...)                                                      \
    [QN_OP_##op] = {.n_stages = (int)(sizeof((int[]){__VA_ARGS__}) / sizeof(int)),                 \
                    .stages = {__VA_ARGS__},                                                       \
                    .reads = {LIST reads_of},                                                      \
                    .temps = temps_##temps_rule},
#include "backends/cuda/cuda_recipes.def"
#undef RECIPE
};

// --- what it cannot run --------------------------------------------------------------------------

enum { MAX_TAPS = 16, MAX_HEAD = 4096, MAX_EXPERTS = 8192 }; // registers and memory of a block

static bool is_weight(char kind) { return kind == 'w' || kind == 'r'; }

static int64_t last_of(const qn_graph *graph, const qn_node *node, int input) {
    const qn_shape *shape = &graph->values[node->in[input]].shape;
    return shape->dims[shape->n_dims - 1].n;
}

// Numbers that kernels keep in registers, or in the memory that a block of threads shares.
static const char *refuse_size(const qn_graph *graph, const qn_node *node) {
    if (node->op == QN_OP_CONV && last_of(graph, node, 1) > MAX_TAPS)
        return "a convolution of more than 16 taps";
    if (node->op == QN_OP_DELTA && last_of(graph, node, 1) > 256)
        return "keys of more than 256 numbers";
    if ((node->op == QN_OP_ATTEND || node->op == QN_OP_ATTENTION) &&
        last_of(graph, node, 0) > MAX_HEAD)
        return "heads of more than 4096 numbers";
    if ((node->op == QN_OP_ROUTE && last_of(graph, node, 0) > MAX_EXPERTS) ||
        (node->op == QN_OP_EXPERTS && last_of(graph, node, 1) > MAX_EXPERTS))
        return "more than 8192 experts";
    return NULL;
}

// What one of several ranks computes of every matrix: the calls of a step would wait for them.
static const char *refuse_share(const qn_graph *graph, const qn_node *node) {
    const bool has_ids = node->op == QN_OP_EMBED || node->op == QN_OP_HEAD;
    bool is_share = qn_node_gathers(node) || (has_ids && node->attrs.start > 0);
    for (int i = 0; i < node->n_in; i++)
        is_share |= node->in[i] >= 0 && graph->nodes[graph->values[node->in[i]].node].share;
    return is_share ? "shares of matrices on several ranks; --split layers has none" : NULL;
}

static const char *refuse(const qn_graph *graph, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    const char *share = refuse_share(graph, node);
    if (share) return share;
    for (int i = 0; i < node->n_in; i++) {
        if (!is_weight(info->kinds[i]) || node->in[i] == QN_NO_VALUE) continue;
        const char *why = qn_refuse_weight(graph, node, i);
        if (why) return why;
        const qn_type type = graph->values[node->in[i]].type;
        if (!qn_type_is_supported(type) || type == QN_TYPE_Q8_K)
            return "numbers of the weight's type are not multiplied";
    }
    const char *why = refuse_size(graph, node);
    return why ? why : qn_refuse_shapes(graph, node);
}

// --- sizes ---------------------------------------------------------------------------------------

static qn_word layout(qn_op op, int input) {
    return is_weight(qn_op_get(op)->kinds[input]) ? QN_WORD_typed : QN_WORD_rows;
}

static int64_t row_bytes(qn_word form, int64_t width) {
    const int64_t blocks = (width + QN_CUDA_BLOCK - 1) / QN_CUDA_BLOCK;
    if (form == QN_WORD_i12_256) return blocks * (int64_t)sizeof(qn_cuda_i12);
    if (form == QN_WORD_i16_256) return blocks * (int64_t)sizeof(qn_cuda_i16);
    if (form == QN_WORD_i8_32) return blocks * (int64_t)sizeof(qn_cuda_i8);
    return (width * (int64_t)sizeof(float) + 15) / 16 * 16;
}

#define CARD(index)                                                                                \
    {                                                                                              \
        .name = "cuda:" #index, .kernels = kernels, .n_kernels = QN_CUDA_KERNELS,                  \
        .recipes = recipes,                                                                        \
        .forms = 1u << QN_WORD_f32 | 1u << QN_WORD_i12_256 | 1u << QN_WORD_i16_256 |               \
                 1u << QN_WORD_i8_32,                                                              \
        .caches = 1u << QN_CACHE_F32 | 1u << QN_CACHE_F16 | 1u << QN_CACHE_Q8_0, .refuse = refuse, \
        .layout = layout, .row_bytes = row_bytes, .cache_bytes = qn_cuda_cache_bytes               \
    }
const qn_backend qn_cuda_backends[QN_CUDA_CARDS] = {CARD(0), CARD(1), CARD(2), CARD(3),
                                                    CARD(4), CARD(5), CARD(6), CARD(7)};

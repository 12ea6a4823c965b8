// The tables of the device `ref`.
#include "backends/ref/plain.h"
#include "backends/refuse_shapes.h"

// Every op is one kernel.
enum {
#define PLAIN(op, run, room) KERNEL_##op,
#include "backends/ref/plain_ops.def"
#undef PLAIN
    N_KERNELS
};

static const char *const kernels[N_KERNELS] = {
#define PLAIN(op, run, room) #run,
#include "backends/ref/plain_ops.def"
#undef PLAIN
};

static const qn_recipe recipes[QN_OP_COUNT] = {
#define PLAIN(op, run, room) [QN_OP_##op] = {.n_stages = 1, .stages = {KERNEL_##op}},
#include "backends/ref/plain_ops.def"
#undef PLAIN
};

static const qn_plain_op ops[QN_OP_COUNT] = {
#define PLAIN(op, run, room) [QN_OP_##op] = {qn_plain_##run, qn_plain_room_##room},
#include "backends/ref/plain_ops.def"
#undef PLAIN
};

const qn_plain_op *qn_plain_op_get(qn_op op) { return &ops[op]; }

static bool is_weight(char kind) { return kind == 'w' || kind == 'r'; }

static const char *refuse(const qn_graph *graph, const qn_node *node) {
    const qn_op_info *info = qn_op_get(node->op);
    for (int i = 0; i < node->n_in; i++) {
        if (!is_weight(info->kinds[i]) || node->in[i] == QN_NO_VALUE) continue;
        const char *why = qn_refuse_weight(graph, node, i);
        if (why) return why;
        if (!qn_plain_reads(graph->values[node->in[i]].type))
            return "numbers of the weight's type are not multiplied";
    }
    return qn_refuse_shapes(graph, node);
}

static qn_word layout(qn_op op, int input) {
    return is_weight(qn_op_get(op)->kinds[input]) ? QN_WORD_typed : QN_WORD_rows;
}

static int64_t cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size) {
    return heads * QN_PAGE_ROWS *
           (qn_plain_kv_bytes(type, k_size) + qn_plain_kv_bytes(type, v_size));
}

const qn_backend qn_plain_backend = {
    .name = "ref",
    .kernels = kernels,
    .n_kernels = N_KERNELS,
    .recipes = recipes,
    .forms =
        1u << QN_WORD_f32 | 1u << QN_WORD_i12_256 | 1u << QN_WORD_i16_256 | 1u << QN_WORD_i8_32,
    .caches = QN_KV_ALL,
    .refuse = refuse,
    .layout = layout,
    .row_bytes = qn_plain_part_bytes,
    .cache_bytes = cache_bytes,
};

#include "runtime/split_model.h"

#include "core/mem.h"
#include "passes/passes.h"

enum {
    BLOCK = 256,
    TILE = 16,
};

// What an op does with a value of which a rank has a part.
typedef enum role {
    NEEDS_ALL,  // gathers it
    PASSES,     // gives the same part of its result
    NORM,       // passes parts that are whole heads
    MULTIPLIES, // gathers it, and gives a part of its own
    HEADS,      // its result is made head by head
    LOOKS_UP,   // takes rows of a table
} role;

static const unsigned char roles[QN_OP_COUNT] = {
    [QN_OP_ADD] = PASSES,
    [QN_OP_MUL] = PASSES,
    [QN_OP_SCALE] = PASSES,
    [QN_OP_SILU] = PASSES,
    [QN_OP_GELU] = PASSES,
    [QN_OP_GELU_ERF] = PASSES,
    [QN_OP_SIGMOID] = PASSES,
    [QN_OP_SOFTPLUS] = PASSES,
    [QN_OP_SOFTCAP] = PASSES,
    [QN_OP_NARROW] = PASSES,
    [QN_OP_SPLIT] = PASSES,
    [QN_OP_MERGE] = PASSES,
    [QN_OP_LORA] = PASSES,
    [QN_OP_COMBINE] = PASSES,
    [QN_OP_RMS_NORM] = NORM,
    [QN_OP_L2_NORM] = NORM,
    [QN_OP_ROPE] = NORM,
    [QN_OP_MATMUL] = MULTIPLIES,
    [QN_OP_GROUPED_MATMUL] = MULTIPLIES,
    [QN_OP_KV_WRITE] = HEADS,
    [QN_OP_ATTEND] = HEADS,
    [QN_OP_CONV] = HEADS,
    [QN_OP_DELTA] = HEADS,
    [QN_OP_EMBED] = LOOKS_UP,
};

// What a value is read for, which decides how the matmul that makes it is cut.
typedef enum want { FOR_NORMS, FOR_MATMULS, FOR_HEADS } want;

// What is known of a value.
typedef struct known {
    bool is_of_heads; // made from what is made head by head
    bool is_routed;   // chooses experts
    bool is_part, is_gathered;
    bool is_counted, is_table; // of weights: a matmul reads them; embeddings are looked up in them
    unsigned char want;
    qn_split_cut cut; // of a part
    int64_t copies;
} known;

typedef struct reader {
    qn_split_model *to;
    const qn_graph *graph;
    const qn_split_basis *basis;
    known *values;       // (n_values)
    int64_t *heads;      // (n_layers + 1) that a layer is cut by; the last: outside the layers
    int64_t fine_layers; // see passes.h
} reader;

static const qn_value *value_of(const reader *r, int32_t id) { return &r->graph->values[id]; }

static int64_t last_dim(const qn_value *v) { return v->shape.dims[v->shape.n_dims - 1].n; }

static int64_t elements(const qn_value *v) {
    int64_t n = 1;
    for (int i = 0; i < v->shape.n_dims; i++) n *= v->shape.dims[i].n; // the verifier checked it
    return n;
}

// Of a row of the step.
static int64_t row_values(const qn_value *v) {
    int64_t n = 1;
    for (int i = 1; i < v->shape.n_dims; i++) n *= v->shape.dims[i].n;
    return n;
}

static int64_t bytes_of(const qn_value *v) {
    const qn_type_info *type = qn_type_get(v->type);
    return elements(v) / type->block * type->bytes;
}

static size_t layer_index(const reader *r, const qn_node *node) {
    return (size_t)(node->layer >= 0 && node->layer < r->to->n_layers ? node->layer
                                                                      : r->to->n_layers);
}

// Where the weights of a node are counted.
static qn_split_layer *layer_of(const reader *r, const qn_node *node) {
    const size_t i = layer_index(r, node);
    return i < (size_t)r->to->n_layers ? &r->to->layers[i] : &r->to->head;
}

// --- what is cut how -----------------------------------------------------------------------------

static bool passes(const reader *r, const qn_node *node) {
    const unsigned char own = roles[node->op];
    return own == PASSES || (own == NORM && value_of(r, node->out[0])->shape.n_dims == 3);
}

static void find_heads(const reader *r) {
    for (size_t i = 0; i < r->graph->n_nodes; i++) {
        const qn_node *node = &r->graph->nodes[i];
        int64_t *heads = &r->heads[layer_index(r, node)];
        if (node->op == QN_OP_ATTEND) *heads = value_of(r, node->in[1])->shape.dims[0].n;
        if (node->op == QN_OP_DELTA) *heads = value_of(r, node->in[0])->shape.dims[1].n;
    }
}

static void find_made_of_heads(const reader *r) {
    for (size_t i = 0; i < r->graph->n_nodes; i++) {
        const qn_node *node = &r->graph->nodes[i];
        bool is_of_heads = roles[node->op] == HEADS;
        for (int k = 0; k < node->n_in && passes(r, node); k++)
            is_of_heads = is_of_heads || (node->in[k] >= 0 && r->values[node->in[k]].is_of_heads);
        for (int o = 0; o < node->n_out; o++) r->values[node->out[o]].is_of_heads = is_of_heads;
    }
}

// What the readers of a node's results want of its inputs.
static unsigned char want_of(const reader *r, const qn_node *node) {
    if (roles[node->op] == HEADS) return FOR_HEADS;
    if (roles[node->op] == MULTIPLIES) return FOR_MATMULS;
    if (!passes(r, node)) return FOR_NORMS;
    const known *out = &r->values[node->out[0]];
    return out->is_of_heads ? FOR_HEADS : out->want;
}

static void find_wants(const reader *r) {
    for (size_t i = r->graph->n_nodes; i-- > 0;) {
        const qn_node *node = &r->graph->nodes[i];
        const unsigned char wanted = want_of(r, node);
        if (node->op == QN_OP_ROUTE) r->values[node->in[0]].is_routed = true;
        for (int k = 0; k < node->n_in; k++) {
            if (node->in[k] < 0) continue;
            known *in = &r->values[node->in[k]];
            if (wanted > in->want) in->want = wanted;
        }
    }
}

// --- matmuls -------------------------------------------------------------------------------------

// Scores that choose experts, and gates of less than a tile: every rank computes them.
static bool is_small(const reader *r, int32_t y, int64_t n_out) {
    return r->values[y].is_routed || n_out < TILE;
}

// How the result of a matmul is cut, by what reads it.
static qn_split_cut cut_of(const reader *r, const qn_node *node) {
    const qn_value *w = value_of(r, node->in[1]);
    const unsigned char wanted = r->values[node->out[0]].want;
    const int64_t n_out = w->shape.dims[w->shape.n_dims - 2].n;
    const int64_t heads = r->heads[layer_index(r, node)];
    if (wanted == FOR_HEADS) return (qn_split_cut){.values = n_out, .units = heads};
    if (is_small(r, node->out[0], n_out)) return (qn_split_cut){0};
    return (qn_split_cut){.values = n_out, .by_blocks = wanted == FOR_MATMULS};
}

// Bytes of a block of what multiplies these weights; 0: they are floats.
static int64_t block_bytes(const reader *r, const qn_node *node) {
    const qn_numerics numerics = r->basis->numerics;
    const bool is_fine = node->layer >= 0 && node->layer < r->fine_layers;
    qn_word form = QN_WORD_i12_256;
    if (qn_type_get(value_of(r, node->in[1])->type)->block == 1) return 0;
    if (numerics == QN_NUMERICS_FAST) form = QN_WORD_i8_32;
    if (numerics == QN_NUMERICS_EXACT && is_fine) form = QN_WORD_i16_256;
    return r->basis->backend->row_bytes(form, BLOCK);
}

static qn_status gather(const reader *r, const qn_node *node, int32_t id, int64_t packed,
                        qn_err *err) {
    known *v = &r->values[id];
    if (!v->is_part || v->is_gathered) return QN_OK;
    v->is_gathered = true;
    return qn_split_add_gather(
        layer_of(r, node),
        &(qn_split_gather){.cut = v->cut, .copies = v->copies, .block_bytes = packed}, err);
}

static void set_part(known *v, const qn_value *value, qn_split_cut cut, int64_t copies) {
    v->is_part = true;
    v->cut = cut;
    v->cut.values = row_values(value) / copies;
    v->copies = copies;
}

static qn_status read_matmul(const reader *r, const qn_node *node, qn_err *err) {
    const qn_value *w = value_of(r, node->in[1]), *out = value_of(r, node->out[0]);
    const qn_split_cut cut = cut_of(r, node);
    double used = 1;
    int64_t copies = 1;
    QN_TRY(gather(r, node, node->in[0], block_bytes(r, node), err));
    if (node->op == QN_OP_GROUPED_MATMUL) {
        copies = last_dim(value_of(r, node->in[2]));
        used = (double)copies / (double)w->shape.dims[0].n;
    }
    if (cut.values > 0) set_part(&r->values[node->out[0]], out, cut, copies);
    r->values[node->in[1]].is_counted = true;
    return qn_split_add_part(layer_of(r, node),
                             &(qn_split_part){.cut = cut,
                                              .bytes = bytes_of(w),
                                              .ops = 2 * (double)elements(w) * used,
                                              .used = used,
                                              .is_float = qn_type_get(w->type)->block == 1},
                             err);
}

// --- heads and state -----------------------------------------------------------------------------

static qn_status add_state(const reader *r, const qn_node *node, int k, qn_err *err) {
    qn_split_layer *to = layer_of(r, node);
    const qn_value *v = value_of(r, node->in[k]);
    const qn_dim *d = v->shape.dims; // of a cache: (K, E, F)
    const bool is_cache = v->kind == QN_CACHE;
    const qn_backend *backend = r->basis->backend;
    const int64_t more = is_cache ? backend->cache_bytes(qn_kv_type_get(r->basis->cache_type)->type,
                                                         d[0].n, d[1].n, d[2].n) /
                                        QN_PAGE_ROWS
                                  : elements(v) * (int64_t)sizeof(float);
    int64_t *sum = is_cache ? &to->state_row : &to->state_fixed;
    if (is_cache) to->window = node->attrs.window;
    if (qn_i64_add(sum, *sum, more)) return QN_OK;
    return QN_FAIL(err, LIMIT, "%s: state of more than 2^63 bytes", v->name);
}

// The weights of a convolution, which are cut with its channels.
static qn_status count_taps(const reader *r, const qn_node *node, qn_err *err) {
    const int64_t heads = r->heads[layer_index(r, node)];
    r->values[node->in[1]].is_counted = true;
    const qn_split_part part = {.cut = {.values = heads, .units = heads},
                                .bytes = bytes_of(value_of(r, node->in[1])),
                                .used = 1,
                                .is_float = true};
    return qn_split_add_part(layer_of(r, node), &part, err);
}

// Attention, convolutions and delta rules: what comes of them is in parts by the heads of the
// layer. Where value heads go round the key heads, a rank has one piece of each round.
static qn_status read_heads(const reader *r, const qn_node *node, qn_err *err) {
    const qn_op_info *info = qn_op_get(node->op);
    const qn_value *out = value_of(r, node->out[0]);
    const int64_t heads = r->heads[layer_index(r, node)];
    const bool is_tiled = node->op == QN_OP_DELTA && node->attrs.heads == QN_WORD_tiled;
    layer_of(r, node)->state = (qn_split_cut){.values = heads, .units = heads};
    if (out->kind == QN_TENSOR && heads > 0)
        set_part(&r->values[node->out[0]], out, (qn_split_cut){.units = heads},
                 is_tiled ? out->shape.dims[1].n / heads : 1);
    if (node->op == QN_OP_CONV) QN_TRY(count_taps(r, node, err));
    for (int k = 0; k < node->n_in; k++) {
        const bool is_read =
            info->kinds[k] == 's' || (info->kinds[k] == 'c' && out->kind == QN_TENSOR);
        if (is_read) QN_TRY(add_state(r, node, k, err));
    }
    return QN_OK;
}

// --- all nodes -----------------------------------------------------------------------------------

static qn_status read_embed(const reader *r, const qn_node *node, qn_err *err) {
    const qn_value *table = value_of(r, node->in[1]);
    (void)err;
    r->values[node->in[1]].is_table = true;
    r->to->width = table->shape.dims[1].n;
    r->to->vocab = (qn_split_cut){.values = table->shape.dims[0].n};
    r->to->embed_bytes = bytes_of(table);
    return QN_OK;
}

static qn_status read_whole(const reader *r, const qn_node *node, qn_err *err) {
    for (int k = 0; k < node->n_in; k++) {
        if (node->in[k] >= 0) QN_TRY(gather(r, node, node->in[k], 0, err));
    }
    return QN_OK;
}

// Whether another operand is a whole row: the part must be whole, too, then.
static bool meets_row(const reader *r, const qn_node *node) {
    if (node->op != QN_OP_ADD && node->op != QN_OP_MUL) return false;
    for (int k = 0; k < 2; k++) {
        const qn_value *v = value_of(r, node->in[k]);
        const bool is_leaf = qn_op_get(r->graph->nodes[v->node].op)->class_of == QN_CLASS_LEAF;
        if (!r->values[node->in[k]].is_part && !is_leaf && last_dim(v) > 1) return true;
    }
    return false;
}

static qn_status read_passing(const reader *r, const qn_node *node, qn_err *err) {
    if (!passes(r, node) || meets_row(r, node)) return read_whole(r, node, err);
    for (int k = 0; k < node->n_in; k++) {
        const known *in = node->in[k] >= 0 ? &r->values[node->in[k]] : NULL;
        if (!in || !in->is_part) continue;
        set_part(&r->values[node->out[0]], value_of(r, node->out[0]), in->cut,
                 node->op == QN_OP_COMBINE ? 1 : in->copies);
        break;
    }
    return QN_OK;
}

typedef qn_status read_fn(const reader *r, const qn_node *node, qn_err *err);
static read_fn *const readers[] = {
    [NEEDS_ALL] = read_whole, [PASSES] = read_passing,    [NORM] = read_passing,
    [HEADS] = read_heads,     [MULTIPLIES] = read_matmul, [LOOKS_UP] = read_embed};

// Norms, biases and all else that no matmul reads is on every rank.
static qn_status count_rest(const reader *r, qn_err *err) {
    for (size_t i = 0; i < r->graph->n_nodes; i++) {
        const qn_node *node = &r->graph->nodes[i];
        const qn_value *v = value_of(r, node->out[0]);
        const known *k = &r->values[node->out[0]];
        if (node->op != QN_OP_PARAM || k->is_counted || k->is_table) continue;
        const qn_split_part part = {.bytes = bytes_of(v), .used = 1, .is_float = true};
        QN_TRY(qn_split_add_part(layer_of(r, node), &part, err));
    }
    return QN_OK;
}

// A table that is the output matrix, too, was counted as that.
static void count_table(const reader *r) {
    for (size_t i = 0; i < r->graph->n_values; i++) {
        if (!r->values[i].is_table || !r->values[i].is_counted) continue;
        r->to->tied_bytes = r->to->embed_bytes;
        r->to->embed_bytes = 0;
    }
}

static qn_status read_all(const reader *r, qn_err *err) {
    find_heads(r);
    find_made_of_heads(r);
    find_wants(r);
    for (size_t i = 0; i < r->graph->n_nodes; i++) {
        const qn_node *node = &r->graph->nodes[i];
        QN_TRY(readers[roles[node->op]](r, node, err));
    }
    QN_TRY(count_rest(r, err));
    count_table(r);
    return QN_OK;
}

qn_status qn_split_model_read(qn_split_model *out, const qn_graph *graph,
                              const qn_split_basis *basis, qn_err *err) {
    qn_split_model model;
    QN_TRY(qn_split_model_init(&model, basis->n_layers, err));
    reader r = {.to = &model,
                .graph = graph,
                .basis = basis,
                .values = qn_alloc(graph->n_values, sizeof *r.values),
                .heads = qn_alloc((size_t)basis->n_layers + 1, sizeof *r.heads),
                .fine_layers = qn_passes_fine_layers(graph)};
    model.product_share = qn_split_product_share(basis->numerics);
    const qn_status status =
        r.values && r.heads ? read_all(&r, err) : QN_NOMEM(err, "costs of layers");
    qn_free(r.values);
    qn_free(r.heads);
    if (status)
        qn_split_model_deinit(&model);
    else
        *out = model;
    return status;
}

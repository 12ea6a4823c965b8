#include "models/net.h"

#include "core/mem.h"

#include <stdio.h>

static qn_shape rows_of(qn_sym sym) { return (qn_shape){1, {{1, sym}}}; }

void qn_net_begin(qn_net *net) {
    qn_build *b = &net->b;
    net->ids = qn_build_input(b, "ids", QN_TENSOR, QN_TYPE_I32, rows_of(QN_SYM_T));
    net->row_out = qn_build_input(b, "row_out", QN_TENSOR, QN_TYPE_I32, rows_of(QN_SYM_R));
    net->table = qn_build_input(b, "table", QN_TABLE, QN_TYPE_I32, (qn_shape){0});
}

void qn_net_bind_ends(qn_net *net, const qn_ends *ends) {
    const int64_t D = net->hp->width, V = net->hp->vocab;
    const bool is_gguf = qn_source_get_kind(net->binder.source) == QN_SOURCE_GGUF;
    const qn_config_reader reader = qn_config_reader_of(net->binder.source, "");
    const bool is_said = !is_gguf && qn_config_find(&reader, NULL, "tie_word_embeddings");
    const qn_bind_row rows[] = {
        {ends->embedding, "token_embd.weight", "model.embed_tokens.weight", {V, D}, 0},
        {ends->norm, "output_norm.weight", "model.norm.weight", {D}, QN_VECTOR | ends->norm_flags},
        {ends->output, "output.weight", "lm_head.weight", {V, D}, is_said ? 0 : QN_OPTIONAL},
    };
    const bool is_tied = !is_gguf && ends->is_tied;
    qn_bind(&net->binder, rows, is_tied ? 2 : 3, 0);
    if (!net->b.status && (is_tied || *ends->output == QN_NO_VALUE))
        *ends->output = *ends->embedding;
}

static void show_hidden(qn_net *net, int32_t h, int64_t index) {
    char name[32];
    snprintf(name, sizeof name, "hidden.%lld", (long long)index);
    qn_build_name(&net->b, h, name);
    if (net->with_hidden) qn_build_output(&net->b, name, h);
}

int32_t qn_net_rows(qn_net *net, int32_t embedding) {
    qn_build *b = &net->b;
    const qn_dim T = {1, QN_SYM_T};
    const qn_shape rows = {2, {T, {net->hp->width, QN_SYM_ONE}}}; // at most T of them
    const int32_t extra = qn_build_input(b, "extra", QN_TENSOR, QN_TYPE_F32, rows);
    const int32_t row = qn_build_input(b, "extra_row", QN_TENSOR, QN_TYPE_I32, (qn_shape){1, {T}});
    return qn_build_op(b, QN_OP_EMBED, (int32_t[]){net->ids, embedding, extra, row}, 4, NULL);
}

int32_t qn_net_embed(qn_net *net, int32_t embedding, float scale) {
    int32_t h;
    if (scale == 1.0f) {
        h = qn_net_rows(net, embedding); // (T, D)
    } else {
        h = qn_build2(&net->b, QN_OP_EMBED, net->ids, embedding, NULL);
        h = qn_build1(&net->b, QN_OP_SCALE, h, &(qn_attrs){.scale = scale});
    }
    show_hidden(net, h, 0);
    return h;
}

void qn_net_end_layer(qn_net *net, int32_t h, int64_t layer) {
    net->b.layer = -1;
    if (layer + 1 < net->hp->layers) show_hidden(net, h, layer + 1);
}

void qn_net_show_rows(qn_net *net, const char *name, int32_t x) {
    qn_build_output(&net->b, name,
                    qn_build2(&net->b, QN_OP_GATHER_ROWS, x, net->row_out, NULL)); // (R, D)
}

int32_t qn_net_head(qn_net *net, int32_t h, int32_t norm, int32_t output, float cap) {
    qn_build *b = &net->b;
    int32_t x, all = QN_NO_VALUE;
    if (net->with_hidden || net->with_predict) { // every row is normed, because every row is read
        all = qn_net_norm(net, h, norm);         // (T, D)
        if (net->with_hidden) show_hidden(net, all, net->hp->layers);
        x = qn_build2(b, QN_OP_GATHER_ROWS, all, net->row_out, NULL); // (R, D)
    } else {
        x = qn_build2(b, QN_OP_GATHER_ROWS, h, net->row_out, NULL); // (R, D)
        x = qn_net_norm(net, x, norm);
    }
    int32_t logits = qn_net_linear(net, x, output, QN_NO_VALUE); // (R, V)
    if (cap > 0) logits = qn_build1(b, QN_OP_SOFTCAP, logits, &(qn_attrs){.cap = cap});
    qn_build_name(b, logits, "logits");
    qn_build_output(b, "logits", logits);
    return all;
}

int32_t qn_net_norm(qn_net *net, int32_t x, int32_t w) {
    return qn_build2(&net->b, QN_OP_RMS_NORM, x, w, &(qn_attrs){.eps = net->hp->eps});
}

// y = x w', changed by the adapters of w.
static int32_t adapt(qn_net *net, int32_t y, int32_t x, int32_t w) {
    qn_build *b = &net->b;
    qn_adapted stacks;
    if (b->status) return y;
    const char *name = b->graph->values[w].name;
    b->status = qn_adapters_bind(&stacks, net->adapters, &net->binder, name, &b->err);
    if (b->status || stacks.a == QN_NO_VALUE) return y;
    if (b->graph->values[x].shape.dims[0].sym != QN_SYM_T) { // wanted rows, without a segment
        b->status = QN_FAIL(&b->err, UNSUPPORTED,
                            "adapters of the output matrix (%s) are not supported", name);
        return y;
    }
    return qn_build_op(b, QN_OP_LORA, (int32_t[]){y, x, stacks.a, stacks.b, net->table}, 5,
                       &(qn_attrs){.scale = 1});
}

int32_t qn_net_linear(qn_net *net, int32_t x, int32_t w, int32_t bias) {
    int32_t y = qn_build2(&net->b, QN_OP_MATMUL, x, w, NULL);
    if (net->adapters) y = adapt(net, y, x, w);
    return bias == QN_NO_VALUE ? y : qn_build2(&net->b, QN_OP_ADD, y, bias, NULL);
}

int32_t qn_net_split(qn_net *net, int32_t x, int64_t parts) {
    return qn_build1(&net->b, QN_OP_SPLIT, x, &(qn_attrs){.parts = parts});
}

int32_t qn_net_narrow(qn_net *net, int32_t x, int64_t axis, int64_t start, int64_t length) {
    return qn_build1(&net->b, QN_OP_NARROW, x,
                     &(qn_attrs){.axis = axis, .start = start, .length = length});
}

qn_turn qn_net_turn(qn_net *net, const char *name, const qn_rope_names *names,
                    const qn_config_reader *reader) {
    qn_build *b = &net->b;
    const int64_t rotate = net->hp->rotate;
    qn_turn out = {.frequencies = QN_NO_VALUE};
    if (b->status) return out;
    float *data = qn_alloc((size_t)rotate / 2, sizeof *data);
    b->status = data ? qn_rope_frequencies(data, &out.magnitude, rotate, names, reader, &b->err)
                     : QN_NOMEM(&b->err, "rope frequencies");
    out.frequencies = qn_build_const(b, name, data, rotate / 2);
    qn_free(data);
    return out;
}

int32_t qn_net_attention(qn_net *net, const qn_attention *a, int64_t layer) {
    qn_build *b = &net->b;
    const qn_hparams *hp = net->hp;
    char name[32];
    snprintf(name, sizeof name, "cache.%lld", (long long)layer);
    const qn_shape shape = {
        3, {{hp->kv_heads, QN_SYM_ONE}, {hp->head_size, QN_SYM_ONE}, {hp->value_size, QN_SYM_ONE}}};
    const int32_t cache = qn_build_input(b, name, QN_CACHE, QN_TYPE_F32, shape);
    const qn_attrs turn = {.scale = a->turn.magnitude,
                           .rotate = hp->rotate,
                           .pairs = a->pairs,
                           .sections = a->sections};
    const int32_t q = qn_build3(b, QN_OP_ROPE, a->q, a->turn.frequencies, net->table, &turn);
    const int32_t k = qn_build3(b, QN_OP_ROPE, a->k, a->turn.frequencies, net->table, &turn);
    const int32_t filled =
        qn_build_op(b, QN_OP_KV_WRITE, (int32_t[]){cache, k, a->v, net->table}, 4, NULL);
    const qn_attrs look = {.scale = a->scale,
                           .cap = a->cap,
                           .window = a->window,
                           .rule = a->skips_first ? QN_WORD_after_first : QN_WORD_causal};
    const int32_t o = qn_build3(b, QN_OP_ATTEND, q, filled, net->table, &look); // (T, H, F)
    return qn_build1(b, QN_OP_MERGE, o, NULL);
}

int32_t qn_net_ffn(qn_net *net, int32_t x, const qn_ffn *ffn) {
    qn_build *b = &net->b;
    int32_t gate = qn_net_linear(net, x, ffn->gate, ffn->gate_bias); // (T, F)
    gate = qn_build1(b, ffn->act, gate, NULL);
    const int32_t up = qn_net_linear(net, x, ffn->up, ffn->up_bias); // (T, F)
    return qn_net_linear(net, qn_build2(b, QN_OP_MUL, gate, up, NULL), ffn->down, ffn->down_bias);
}

int32_t qn_net_moe(qn_net *net, int32_t x, const qn_moe *moe) {
    qn_build *b = &net->b;
    const qn_attrs choose = {
        .top = net->hp->experts_used, .normalize = moe->normalize, .scale = moe->scale};
    const int32_t scores = qn_net_linear(net, x, moe->router, QN_NO_VALUE); // (T, X)
    const int32_t ids = qn_build1(b, QN_OP_ROUTE, scores, &choose);         // (T, N)
    const int32_t weights = ids == QN_NO_VALUE ? QN_NO_VALUE : ids + 1;     // (T, N)
    int32_t gate = qn_build3(b, QN_OP_GROUPED_MATMUL, x, moe->experts.gate, ids, NULL);
    gate = qn_build1(b, QN_OP_SILU, gate, NULL); // (T, N, F)
    const int32_t up = qn_build3(b, QN_OP_GROUPED_MATMUL, x, moe->experts.up, ids, NULL);
    const int32_t inner = qn_build2(b, QN_OP_MUL, gate, up, NULL);
    const int32_t y = qn_build3(b, QN_OP_GROUPED_MATMUL, inner, moe->experts.down, ids, NULL);
    return qn_build2(b, QN_OP_COMBINE, y, weights, NULL); // (T, D)
}

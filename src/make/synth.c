// qn_synth: a model of random weights with the shape of a known one.
//
// Tensor by tensor, in waves of pieces that the threads share. A piece is made from nothing but the
// seed and its place, so the number of threads changes no byte. Memory: a few MiB.
#include "make/synth.h"

#include "core/mem.h"
#include "core/pool.h"
#include "core/structs.h"
#include "make/mix.h"
#include "make/stream.h"
#include "quant/half.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PIECE_VALUES = 1 << 16, // a whole number of blocks of every type
    PIECES_PER_THREAD = 16, // of a wave: threads wait about 1/16 of the time for the last one
};

typedef struct synth {
    const qn_synth_shape *shape;
    const qn_mix *mix;
    const qn_synth_opts *opts;
    qn_arena arena;
    qn_synth_tensor *tensors; // (n) in the order of the file
    size_t n;
    qn_synth_size size;
    qn_pool *pool;
    qn_gguf_writer *writer;
    uint8_t *wave; // PIECES_PER_THREAD pieces for each thread
    qn_making making;
} synth;

// --- the plan ------------------------------------------------------------------------------------

static int64_t n_values(const qn_tensor *t) {
    int64_t n = 1;
    for (int d = 0; d < t->n_dims; d++) n *= t->dims[d];
    return n;
}

static int64_t packed_bytes(qn_type type, int64_t n) {
    const qn_type_info *info = qn_type_get(type);
    return n / info->block * info->bytes;
}

static void choose_types(synth *s) {
    const qn_synth_shape *shape = s->shape;
    qn_mixer mixer = {.mix = s->mix,
                      .n_layers = shape->layers + shape->predict,
                      .n_experts = shape->experts,
                      .heads_per_kv = shape->heads / shape->kv_heads};
    qn_type wanted;
    qsort(s->tensors, s->n, sizeof *s->tensors, qn_mix_compare);
    for (size_t i = 0; i < s->n; i++) qn_mixer_add(&mixer, &s->tensors[i].tensor);
    for (size_t i = 0; i < s->n; i++) {
        qn_tensor *t = &s->tensors[i].tensor;
        if (qn_mix_converts(t)) t->type = qn_mixer_choose(&mixer, t, &wanted);
        t->bytes = packed_bytes(t->type, n_values(t));
        s->size.n_tensors++;
        s->size.n_parameters += n_values(t);
        s->size.tensor_bytes += t->bytes;
    }
}

static qn_status make_plan(synth *s, const char *shape, const char *type, qn_err *err) {
    QN_TRY(qn_synth_shape_find(&s->shape, shape, err));
    QN_TRY(qn_mix_find(&s->mix, type, err));
    QN_TRY(qn_synth_list(&s->tensors, &s->n, s->shape, &s->arena, err));
    choose_types(s);
    return QN_OK;
}

// --- the file ------------------------------------------------------------------------------------

static qn_status declare(synth *s, qn_err *err) {
    char name[64];
    snprintf(name, sizeof name, "%s, random weights", s->shape->name);
    qn_gguf_put_string(s->writer, "general.architecture", s->shape->arch);
    qn_gguf_put_string(s->writer, "general.type", "model");
    qn_gguf_put_string(s->writer, "general.name", name);
    qn_gguf_put_u32(s->writer, "general.file_type", s->mix->file_type);
    qn_gguf_put_u32(s->writer, "general.quantization_version", 2);
    qn_synth_put_keys(s->writer, s->shape);
    QN_TRY(qn_synth_put_vocab(s->writer, s->shape, &s->arena, err));
    for (size_t i = 0; i < s->n; i++) {
        const qn_tensor *t = &s->tensors[i].tensor;
        qn_gguf_tensor to = {.name = t->name.data, .type = t->type, .n_dims = t->n_dims};
        memcpy(to.dims, t->dims, sizeof to.dims);
        qn_gguf_add_tensor(s->writer, &to);
    }
    return QN_OK;
}

typedef struct wave_job {
    const synth *s;
    size_t tensor;
    int64_t n_values, first_piece;
} wave_job;

static bool is_router(const qn_tensor *t) {
    static const char end[] = ".ffn_gate_inp.weight";
    const size_t n = strlen(t->name.data), m = sizeof end - 1;
    return t->type == QN_TYPE_F32 && n > m && strcmp(t->name.data + n - m, end) == 0;
}

// Embeddings so large that a token is routed by what it is, as in trained models. Otherwise the
// rows of all tokens become alike from layer to layer, and with them the experts.
static bool is_embedding(const qn_tensor *t) {
    return strcmp(t->name.data, "token_embd.weight") == 0;
}

static void make_piece(void *arg, int64_t i) {
    const wave_job *job = arg;
    const qn_synth_tensor *t = &job->s->tensors[job->tensor];
    const int64_t piece = job->first_piece + i, left = job->n_values - piece * PIECE_VALUES;
    uint8_t *to = job->s->wave + i * packed_bytes(t->tensor.type, PIECE_VALUES);
    const qn_noise_place place = {job->s->opts->seed, (uint32_t)job->tensor, (uint32_t)piece};
    const int64_t n = left < PIECE_VALUES ? left : PIECE_VALUES;
    qn_noise_fill(to, t->tensor.type, n, t->noise, place);
    const bool is_skewed = job->s->opts->routing_skew > 0;
    if (is_skewed && is_embedding(&t->tensor)) qn_noise_scale(to, t->tensor.type, n, 50);
    if (is_skewed && is_router(&t->tensor))
        qn_noise_skew(to, piece * PIECE_VALUES, n, t->tensor.dims[t->tensor.n_dims - 1],
                      t->tensor.dims[0], (uint32_t)job->tensor, (float)job->s->opts->routing_skew);
}

static qn_status write_wave(synth *s, int64_t bytes, qn_err *err) {
    QN_TRY(qn_gguf_write(s->writer, s->wave, (size_t)bytes, err));
    return qn_making_add(&s->making, bytes, err);
}

static qn_status write_divisors(synth *s, int64_t n, qn_err *err) {
    float values[512]; // half of the longest head
    if (n > 512) return QN_FAIL(err, LIMIT, "rope_freqs.weight: %lld values", (long long)n);
    qn_synth_divisors(values, n, s->shape);
    for (int64_t i = 0; i < n; i++) qn_store_u32(s->wave + 4 * i, qn_float_to_bits(values[i]));
    return write_wave(s, 4 * n, err);
}

static qn_status write_tensor(synth *s, size_t i, qn_err *err) {
    const qn_tensor *t = &s->tensors[i].tensor;
    wave_job job = {.s = s, .tensor = i, .n_values = n_values(t)};
    if (s->tensors[i].noise == QN_NOISE_DIVISORS) return write_divisors(s, job.n_values, err);
    const int64_t max = PIECES_PER_THREAD * (int64_t)qn_pool_threads(s->pool);
    const int64_t all = (job.n_values + PIECE_VALUES - 1) / PIECE_VALUES;
    for (; job.first_piece < all; job.first_piece += max) {
        const int64_t left = job.n_values - job.first_piece * PIECE_VALUES;
        const int64_t n = left < max * PIECE_VALUES ? left : max * PIECE_VALUES;
        qn_pool_run(s->pool, (n + PIECE_VALUES - 1) / PIECE_VALUES, make_piece, &job);
        QN_TRY(write_wave(s, packed_bytes(t->type, n), err));
    }
    return QN_OK;
}

qn_status qn_synth_header(qn_buf *out, int64_t *file_bytes, const char *shape, const char *type,
                          qn_err *err) {
    synth s = {0};
    qn_status status = make_plan(&s, shape, type, err);
    if (!status) status = qn_gguf_writer_create(&s.writer, err);
    if (!status) status = declare(&s, err);
    if (!status) status = qn_gguf_get_header(out, file_bytes, s.writer, err);
    qn_gguf_writer_destroy(s.writer);
    qn_arena_deinit(&s.arena);
    return status;
}

static qn_status write_file(synth *s, const char *path, qn_err *err) {
    QN_TRY(qn_pool_create(&s->pool, s->opts->n_threads, err));
    // No type takes more bytes than float32.
    s->wave = qn_alloc((size_t)qn_pool_threads(s->pool) * PIECES_PER_THREAD, 4 * PIECE_VALUES);
    if (!s->wave) return QN_NOMEM(err, "buffer");
    QN_TRY(qn_gguf_writer_create(&s->writer, err));
    QN_TRY(declare(s, err));
    QN_TRY(qn_gguf_begin(s->writer, path, err));
    for (size_t i = 0; i < s->n; i++) QN_TRY(write_tensor(s, i, err));
    return qn_gguf_finish(s->writer, err);
}

// --- the calls -----------------------------------------------------------------------------------

qn_status qn_synth(const char *shape, const char *type, const char *out_path,
                   const qn_synth_opts *opts, qn_err *err) {
    qn_synth_opts o;
    if (!shape || !type || !out_path) return QN_FAIL(err, ARGUMENT, "qn_synth: NULL");
    QN_TRY(QN_OPTS_READ(qn_synth_opts, &o, opts, err));
    if (!(o.routing_skew >= 0 && o.routing_skew <= 8))
        return QN_FAIL(err, ARGUMENT, "a routing skew of %g, want 0 to 8", o.routing_skew);
    synth s = {.opts = &o};
    qn_status status = make_plan(&s, shape, type, err);
    if (!status && o.routing_skew > 0 && s.shape->experts == 0)
        status = QN_FAIL(err, ARGUMENT, "a routing skew of %g: %s has no experts", o.routing_skew,
                         shape);
    s.making = (qn_making){.progress = s.opts->progress,
                           .progress_arg = s.opts->progress_arg,
                           .total = s.size.tensor_bytes};
    if (!status) status = write_file(&s, out_path, err);
    qn_gguf_writer_destroy(s.writer);
    qn_pool_destroy(s.pool);
    qn_free(s.wave);
    qn_arena_deinit(&s.arena);
    return status;
}

qn_status qn_synth_measure(qn_synth_size *out, const char *shape, const char *type, qn_err *err) {
    if (!out || !shape || !type) return QN_FAIL(err, ARGUMENT, "qn_synth_measure: NULL");
    QN_TRY(QN_RESULT_CHECK(qn_synth_size, out, err));
    synth s = {0};
    const qn_status status = make_plan(&s, shape, type, err);
    if (!status) QN_RESULT_WRITE(qn_synth_size, out, &s.size);
    qn_arena_deinit(&s.arena);
    return status;
}

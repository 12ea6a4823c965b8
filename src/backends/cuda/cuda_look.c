// Looking at a step: arguments of its calls as floats.
#include "backends/cuda/cuda_program.h"
#include "backends/cuda/cuda_tiles.h"

#include "core/mem.h"

#include <string.h>

static void unpack_block(float *to, const unsigned char *block, int form, int64_t n) {
    const int8_t *hi = (const int8_t *)block, *lo = hi + QN_CUDA_BLOCK;
    for (int64_t k = 0; k < n; k++) {
        if (form == QN_WORD_i8_32) {
            const qn_cuda_i8 *b = (const qn_cuda_i8 *)(const void *)block;
            to[k] = (float)b->q[k] * b->scales[k / 32];
        } else if (form == QN_WORD_i12_256) {
            const int at = qn_cuda_i12_at((int)k);
            to[k] =
                (float)(256 * hi[at] + lo[at]) * ((const qn_cuda_i12 *)(const void *)block)->scale;
        } else {
            to[k] = (float)(256 * hi[k] + lo[k] + 128) *
                    ((const qn_cuda_i16 *)(const void *)block)->scale;
        }
    }
}

// A part of an operand as floats, from where it begins on the card.
static void read_part(float *to, const qn_cuda_program *x, const qn_cuda_operand *o,
                      const unsigned char *from) {
    _Alignas(16) unsigned char block[sizeof(qn_cuda_i16)];
    if (o->form == QN_WORD_f32) {
        qn_cuda_read(x->head.device, to, from, (size_t)o->width * sizeof(float));
        return;
    }
    const int64_t bytes = qn_cuda_backends[0].row_bytes((qn_word)o->form, 1);
    for (int64_t at = 0; at < o->width; at += QN_CUDA_BLOCK, from += bytes) {
        qn_cuda_read(x->head.device, block, from, (size_t)bytes);
        unpack_block(to + at, block, o->form, qn_min(o->width - at, QN_CUDA_BLOCK));
    }
}

// Row i of a tiled weight.
static void read_tiled(float *to, const qn_cuda_program *x, const qn_cuda_operand *o, int64_t i) {
    unsigned char unit[QN_CUDA_TILE * 512], row[512];
    const qn_type_info *info = qn_type_get((qn_type)o->type);
    const int64_t bytes = qn_cuda_unit_bytes(o->type), blocks = o->width / QN_CUDA_BLOCK;
    for (int64_t b = 0; b < blocks; b++) {
        const int64_t at = qn_cuda_unit_of(i / QN_CUDA_TILE, b, o->parts / QN_CUDA_TILE, blocks).at;
        qn_cuda_read(x->head.device, unit, o->data + at * bytes, (size_t)bytes);
        qn_cuda_tile_row(row, unit, (int)(i % QN_CUDA_TILE), o->type);
        info->unpack(to + b * QN_CUDA_BLOCK, row, QN_CUDA_BLOCK);
    }
}

// A row of a weight in its own type, block by block.
static void read_weight(float *to, const qn_cuda_program *x, const qn_cuda_operand *o, int64_t i) {
    unsigned char block[512];
    const qn_type_info *info = qn_type_get((qn_type)o->type);
    const int64_t row = o->width / info->block * info->bytes;
    if (o->is_tiled) {
        read_tiled(to, x, o, i);
        return;
    }
    for (int64_t b = 0; b * info->block < o->width; b++) {
        qn_cuda_read(x->head.device, block, o->data + i * row + b * info->bytes,
                     (size_t)info->bytes);
        info->unpack(to + b * info->block, block, info->block);
    }
}

// Where an operand begins on the card; the addresses of the step are those of the card.
static const unsigned char *find_base(const qn_cuda_operand *o, const qn_step *s) {
    if (o->field == QN_STEP_IDS) return (const unsigned char *)s->ids;
    if (o->field == QN_STEP_ROW_OUT) return (const unsigned char *)s->row_out;
    if (o->field == QN_STEP_EXTRA) return s->n_extra ? (const unsigned char *)s->extra : NULL;
    if (o->field == QN_STEP_EXTRA_ROW) return (const unsigned char *)s->extra_row;
    return o->data;
}

void qn_cuda_read_arg(float *to, const qn_program *program, size_t call, qn_arg_kind kind,
                      int index, int64_t row) {
    const qn_cuda_program *x = qn_cuda_program_own(program);
    const qn_cuda_task *task = &x->now->calls[call].task;
    const qn_cuda_operand *o = kind == QN_ARG_IN ? &task->in[index] : &task->out[index];
    const unsigned char *base = x->message ? find_base(o, (const qn_step *)(const void *)x->message)
                                           : NULL; // the card has failed
    const int64_t bytes = o->form == QN_WORD_f32
                              ? o->width * (int64_t)sizeof(float)
                              : qn_cuda_backends[0].row_bytes((qn_word)o->form, o->width);
    for (int64_t p = 0; base && p < o->parts; p++, to += o->width) {
        if (o->is_weight)
            read_weight(to, x, o, p);
        else
            read_part(to, x, o, base + row * o->stride + p * bytes);
    }
}

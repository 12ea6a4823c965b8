// Made-up models: the shapes of known ones, their tensors and keys, random weights, a vocabulary.
#ifndef QN_MAKE_SYNTH_H
#define QN_MAKE_SYNTH_H

#include "core/arena.h"
#include "formats/gguf_write.h"
#include "formats/source.h"

// --- shapes --------------------------------------------------------------------------------------

typedef enum qn_synth_vocab { QN_VOCAB_LLAMA3, QN_VOCAB_QWEN, QN_VOCAB_GEMMA } qn_synth_vocab;

// Numbers of a model, as its publisher states them; 0: has none. A row of synth_shapes.c.
typedef struct qn_synth_shape {
    const char *name, *arch;
    int64_t layers, width, ffn, heads, kv_heads, head_size, vocab, context;
    bool is_tied;                  // the embedding is the output matrix too
    float eps, base, base_sliding; // of norms; of rope
    int64_t rotate, window;        // values of a head that rope turns
    float attn_cap, final_cap;     // soft caps
    float rope_factor;             // of llama3 scaling
    int64_t experts, experts_used, expert_ffn, shared_ffn;
    int64_t interval, taps, key_heads, val_heads, state; // of the delta rule
    int64_t predict;                                     // layers that predict further tokens
    const char *pre; // pattern of the tokenizer; NULL: SentencePiece
    qn_synth_vocab kind;
    int64_t first_special; // id of the first special token; 0: they are at the end
} qn_synth_shape;

// An unknown name is an error that lists all.
QN_MUST_CHECK qn_status qn_synth_shape_find(const qn_synth_shape **out, const char *name,
                                            qn_err *err);
// The keys "architecture.*".
void qn_synth_put_keys(qn_gguf_writer *to, const qn_synth_shape *shape);

// --- tensors -------------------------------------------------------------------------------------

// What a tensor is filled with.
typedef enum qn_noise {
    QN_NOISE_MATRIX,   // about N(0, 0.02) in any type; the others are float32:
    QN_NOISE_NORM,     // near 1
    QN_NOISE_BIAS,     // near 0
    QN_NOISE_TAPS,     // of a convolution
    QN_NOISE_DECAY,    // negative
    QN_NOISE_STEP,     // negative, before softplus
    QN_NOISE_DIVISORS, // not random: how llama3 scaling divides the frequencies
} qn_noise;

// Begins with the tensor, so that qn_mix_compare sorts these.
typedef struct qn_synth_tensor {
    qn_tensor tensor;
    qn_noise noise;
} qn_synth_tensor;

// All tensors of a shape, float32; names and array live in the arena.
QN_MUST_CHECK qn_status qn_synth_list(qn_synth_tensor **out, size_t *n, const qn_synth_shape *shape,
                                      qn_arena *arena, qn_err *err);
// The values of rope_freqs.weight.
void qn_synth_divisors(float *to, int64_t n, const qn_synth_shape *shape);

// What the file that qn_synth writes begins with, appended to `out`, and its size: enough to open
// it without weights, whatever its size.
QN_MUST_CHECK qn_status qn_synth_header(qn_buf *out, int64_t *file_bytes, const char *shape,
                                        const char *type, qn_err *err);

// --- weights -------------------------------------------------------------------------------------

// A part of a tensor: its bytes depend on nothing but these.
typedef struct qn_noise_place {
    uint64_t seed;
    uint32_t tensor, piece;
} qn_noise_place;

// Fills `n` values of a type that a mix can ask for, a whole number of blocks.
void qn_noise_fill(uint8_t *to, qn_type type, int64_t n, qn_noise noise, qn_noise_place place);

// Multiplies n values of any such type.
void qn_noise_scale(uint8_t *to, qn_type type, int64_t n, float factor);
// Divides the rows of a layer's router (F32, `width` values each) by their rank to the power of
// `skew`; `first` is the number of the first value. Which expert has which rank depends on
// `tensor`.
void qn_noise_skew(uint8_t *to, int64_t first, int64_t n, int64_t width, int64_t n_experts,
                   uint32_t tensor, float skew);

// --- tokenizer -----------------------------------------------------------------------------------

// The keys "tokenizer.*": a vocabulary of exactly the shape's size, in which every text has ids.
// `arena` is for scratch.
QN_MUST_CHECK qn_status qn_synth_put_vocab(qn_gguf_writer *to, const qn_synth_shape *shape,
                                           qn_arena *arena, qn_err *err);

#endif

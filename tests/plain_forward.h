// A second opinion: the forward pass of Llama, Mistral, Qwen2 and Qwen3 checkpoints, written down
// straight from the formulas in double precision, sharing nothing with the library but the file
// reader.
#ifndef QN_TESTS_PLAIN_FORWARD_H
#define QN_TESTS_PLAIN_FORWARD_H

#include "model_writer.h"

typedef struct plain_opts {
    double slow_down;       // positions are divided by this; 0: 1
    const int64_t *windows; // per layer, 0: none; NULL: no layer has one
} plain_opts;

// Logits after every one of the n ids, (n, vocabulary); release with free. Sizes are read from the
// model's config.json; biases, norms of heads and experts are used where there are such tensors.
double *plain_forward(const model_file *m, const int32_t *ids, int64_t n, const plain_opts *opts);

#endif

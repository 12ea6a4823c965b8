// Reference results of the small models in tests/data: ids, logits, hidden states.
#ifndef QN_TESTS_GOLDEN_H
#define QN_TESTS_GOLDEN_H

#include "core/json.h"
#include "formats/source.h"

typedef struct golden {
    json_t *meta;      // golden.json
    qn_source *source; // golden.safetensors
} golden;

// The logits of the last prompt, the long one, are there for its last rows alone.
enum { GOLDEN_PROMPTS = 3, GOLDEN_IDS = 256, GOLDEN_LONG_ROWS = 18 };

// Opens `folder`/golden.json and `folder`/`tensors`; fails the test when something is missing.
golden golden_open(const char *folder, const char *tensors);
void golden_close(golden *g);
// Prompt i, or what follows it greedily, as ids; returns how many.
size_t golden_ids(int32_t *to, const golden *g, const char *list, size_t i);
// How clear choice k after prompt i was.
double golden_margin(const golden *g, size_t i, size_t k);
// A tensor's floats (release with qn_free); NULL if there is none.
float *golden_floats(const golden *g, const char *name, int64_t *n);
// sqrt(sum (a - b)^2 / sum b^2)
double relative_error(const float *a, const float *b, int64_t n);

#endif

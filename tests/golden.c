#include "testing.h"

#include "golden.h"

#include "core/file.h"
#include "core/mem.h"

#include <math.h>
#include <stdio.h>

golden golden_open(const char *folder, const char *tensors) {
    golden g = {0};
    qn_err err;
    char *text = NULL;
    size_t size;
    char *path = qn_path_join(folder, "golden.json");
    ASSERT_OK(qn_file_load(&text, &size, path, 1 << 20, &err));
    ASSERT_OK(qn_json_parse(&g.meta, text, size, false, path, &err));
    qn_free(text);
    qn_free(path);
    path = qn_path_join(folder, tensors);
    ASSERT_OK(qn_source_open(&g.source, path, &err));
    qn_free(path);
    return g;
}

void golden_close(golden *g) {
    json_decref(g->meta);
    qn_source_close(g->source);
}

size_t golden_ids(int32_t *to, const golden *g, const char *list, size_t i) {
    const json_t *ids = json_array_get(json_object_get(g->meta, list), i);
    const size_t n = json_array_size(ids);
    assert_in_range(n, 1, GOLDEN_IDS);
    for (size_t k = 0; k < n; k++) to[k] = (int32_t)json_integer_value(json_array_get(ids, k));
    return n;
}

double golden_margin(const golden *g, size_t i, size_t k) {
    const json_t *rows = json_object_get(g->meta, "greedy_margin");
    return json_number_value(json_array_get(json_array_get(rows, i), k));
}

float *golden_floats(const golden *g, const char *name, int64_t *n) {
    const qn_tensor *t = qn_source_find_tensor(g->source, name);
    if (!t) return NULL;
    qn_err err;
    float *to = qn_alloc((size_t)t->bytes, 1);
    assert_non_null(to);
    ASSERT_OK(qn_source_read(g->source, t, 0, to, (size_t)t->bytes, &err));
    *n = t->bytes / (int64_t)sizeof *to;
    return to;
}

double relative_error(const float *a, const float *b, int64_t n) {
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / fmax(size, 1e-30));
}

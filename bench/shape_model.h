// What the cost model knows of a model that need not be there: of a shape that `quern synth` knows,
// opened from the header of its file alone.
#ifndef QN_BENCH_SHAPE_MODEL_H
#define QN_BENCH_SHAPE_MODEL_H

#include "core/buf.h"
#include "make/synth.h"
#include "runtime/engine.h"
#include "runtime/split_model.h"

// The header, and 1.0 wherever a weight would be: a few of them are looked at.
static int64_t read_header(void *arg, void *to, size_t n, int64_t at) {
    static const unsigned char one[] = {0x00, 0x00, 0x80, 0x3f};
    const qn_buf *header = arg;
    for (size_t i = 0; i < n; i++) {
        const size_t place = (size_t)at + i;
        ((unsigned char *)to)[i] =
            place < header->size ? (unsigned char)header->data[place] : one[place % sizeof one];
    }
    return (int64_t)n;
}

static qn_status read_shape(qn_split_model *out, const char *shape, const char *type, qn_err *err) {
    qn_buf header = {0};
    qn_engine *engine = NULL;
    qn_model_file file = {.name = "model.gguf", .read = read_header, .arg = &header};
    qn_status status = qn_synth_header(&header, &file.size, shape, type, err);
    if (!status)
        status = qn_engine_open_files(
            &engine, &file, 1, &QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true), err);
    if (!status) {
        const qn_split_basis basis = {.backend = engine->stages[0].device->backend,
                                      .n_layers = engine->model->hparams->layers,
                                      .cache_type = engine->cache_type};
        status = qn_split_model_read(out, engine->graph, &basis, err);
    }
    qn_engine_close(engine);
    qn_buf_deinit(&header);
    return status;
}

#endif

// A vision tower beside an engine: from an image to the rows that take the places of its tokens.
//
// A tower shares the engine's device, threads and numerics; a reference engine runs it by the
// interpreter. It is constant after opening. Several threads may encode at the same time; each call
// takes the memory it needs and gives it back.
#ifndef QN_RUNTIME_VISION_H
#define QN_RUNTIME_VISION_H

#include "core/stop_flag.h"
#include "runtime/engine.h"
#include "vision/patches.h"

typedef struct qn_vision qn_vision;

// Rows of an image, as the text model's embedding would give them for tokens: row by row over a
// grid of merged patches. Caller storage; release with qn_vision_rows_deinit.
typedef struct qn_vision_rows {
    int64_t rows, columns; // of the grid; their product is the number of tokens
    int64_t width;         // of the text model
    float *data;           // (rows * columns, width)
} qn_vision_rows;

typedef struct qn_vision_opts {
    const char *path; // an mmproj GGUF file or a checkpoint; NULL: the engine's own model
    int64_t
        max_pixels; // larger images are made smaller, as by the model's own limit; 0: that alone
} qn_vision_opts;

// Opens a tower; `opts` may be NULL. A model without one, a file of another kind and a tower of
// another width are errors. The engine must outlive it.
QN_MUST_CHECK qn_status qn_vision_open(qn_vision **out, const qn_engine *engine,
                                       const qn_vision_opts *opts, qn_err *err);
void qn_vision_close(qn_vision *vision);
// Whether it would be opened, as far as that shows without weights: before those of the engine are
// read.
QN_MUST_CHECK qn_status qn_vision_check(const qn_engine *engine, const qn_vision_opts *opts,
                                        qn_err *err);

// How images are resized and cut.
const qn_patch_rules *qn_vision_get_rules(const qn_vision *vision);
// The grid of an image of these sizes, before anything is computed: rows * columns tokens.
QN_MUST_CHECK qn_status qn_vision_measure(int64_t *rows, int64_t *columns, const qn_vision *vision,
                                          int64_t width, int64_t height, qn_err *err);

// An image whose step needs more memory than is free is refused with both numbers (QN_MEMORY).
// `until` (NULL: as long as it takes) is asked between pieces of the work; QN_STOPPED.
QN_MUST_CHECK qn_status qn_vision_encode(qn_vision_rows *out, const qn_vision *vision,
                                         const qn_image *image, qn_until *until, qn_err *err);
// The same from patches that are cut already.
QN_MUST_CHECK qn_status qn_vision_encode_patches(qn_vision_rows *out, const qn_vision *vision,
                                                 const qn_patches *patches, qn_until *until,
                                                 qn_err *err);
void qn_vision_rows_deinit(qn_vision_rows *rows);

#endif

// A step: what the model computes at once, as one message. Rows are the tokens of all sequences
// laid end to end; a segment is the run of rows that belongs to one sequence. Per-sequence facts
// are data, so that one graph serves prefill, decode, verification and any mixture of them.
//
// A message is one block of 32-bit words: a header with sizes and offsets, then the arrays. It
// holds no address, so it goes to a device in one copy, to other processes in one broadcast, and to
// a file. Before the rows come the copies: the manager of the state decides them, and never sees
// the bytes.
#ifndef QN_IR_STEP_H
#define QN_IR_STEP_H

#include "core/err.h"

enum { QN_PAGE_ROWS = 64 }; // positions per page of a KV cache

// Moves a page to another one of its group, or a slot of recurrent state to another: the state and
// the first `log_rows` rows of its log.
typedef enum qn_copy_kind { QN_COPY_PAGE, QN_COPY_SLOT, QN_COPY_KINDS } qn_copy_kind;

typedef struct qn_copy { // five words of a message
    int32_t kind;        // qn_copy_kind
    int32_t group;       // of a page; of a slot 0
    int32_t from, to;
    int32_t log_rows; // of a slot; of a page 0
} qn_copy;

// A message as arrays. Borrowed, constant during the step. T rows, B segments, R wanted rows.
typedef struct qn_step {
    int64_t n_rows, n_segs, n_out; // T, B, R; R may be 0
    const int32_t *ids;            // (T) token ids
    const int32_t *pos;            // (T, 4) rope positions t, h, w, extra: not the cache index
    const int32_t *row_seg;        // (T) segment of the row; -1: inert padding, writes nothing
    const int32_t *seg_row;        // (B + 1) first row of each segment
    const int32_t *seg_past;       // (B) rows already in state
    // (B, n_groups, pages_per_seg) page of positions 64 i ... 64 i + 63; -1: outside every window,
    // or after the last row. Layers that keep the same positions form a group; n_groups 0 counts as
    // 1.
    const int32_t *seg_pages;
    int64_t pages_per_seg, n_groups;
    const int32_t *seg_slot;   // (B) slot of recurrent state
    const int32_t *seg_accept; // (B) rows of the slot's log that are applied before this step
    // (B) rows at the beginning of the segment that are accepted already: they change the slot's
    // state at once, the rest goes into its log. NULL: none
    const int32_t *seg_commit;
    const int32_t *seg_adapter; // (B) low-rank adapter; -1: none
    const int32_t *row_out;     // (R) rows whose logits are wanted
    // (R) whether all logits of a wanted row are wanted, or only the best; NULL: all of every row
    const int32_t *out_full;
    // Rows that are given as numbers instead of a token's embedding (images).
    const int32_t *extra_row; // (T) row of `extra`; -1: the token's. NULL where n_extra is 0
    const float *extra;       // (n_extra, extra_width)
    int64_t n_extra, extra_width;
    const qn_copy *copies; // (n_copies) done in this order before any row
    int64_t n_copies;
    int64_t top;      // best entries that are wanted of each row; 0: as many as the graph has
    int64_t entries;  // only the first that many logits of a row can be among the best; 0: all
    int64_t computed; // only the first that many are computed at all; 0: all
} qn_step;

// --- messages ------------------------------------------------------------------------------------

typedef struct qn_step_sizes {
    int64_t rows, segs, outs; // T, B, R
    int64_t groups, pages;    // of seg_pages
    int64_t extra, extra_width;
    int64_t copies;
} qn_step_sizes;

typedef enum qn_step_field {
    QN_STEP_IDS,
    QN_STEP_POS,
    QN_STEP_ROW_SEG,
    QN_STEP_SEG_ROW,
    QN_STEP_SEG_PAST,
    QN_STEP_SEG_PAGES,
    QN_STEP_SEG_SLOT,
    QN_STEP_SEG_ACCEPT,
    QN_STEP_SEG_COMMIT,
    QN_STEP_SEG_ADAPTER,
    QN_STEP_ROW_OUT,
    QN_STEP_OUT_FULL,
    QN_STEP_EXTRA_ROW,
    QN_STEP_EXTRA, // floats
    QN_STEP_COPIES,
    QN_STEP_FIELDS
} qn_step_field;

// Words of a message of these sizes; sizes that a message cannot have are an error.
QN_MUST_CHECK qn_status qn_step_measure(size_t *words, const qn_step_sizes *sizes, qn_err *err);
// Begins a message: writes its header. `message` holds as many words as measured. `top` and
// `entries` as in qn_step.
void qn_step_begin(int32_t *message, const qn_step_sizes *sizes, int64_t top, int64_t entries);
// Sets `computed`, which qn_step_begin leaves at 0.
void qn_step_set_computed(int32_t *message, int64_t computed);
size_t qn_step_words(const int32_t *message);
// Where a field of a message begins.
int32_t *qn_step_at(int32_t *message, qn_step_field field);
// The field that an input of a graph names ("ids", "extra"); QN_STEP_FIELDS: none.
qn_step_field qn_step_find_field(const char *input);
// What the input of a graph that names a field is in a step; NULL: rows that are not given.
void *qn_step_input(int32_t *message, qn_step_field field);
// The arrays of a message that qn_step_begin began, or that was checked.
void qn_step_view(qn_step *out, const int32_t *message);

// What the indices of a message must fit.
typedef struct qn_step_limits {
    int64_t vocab, context;
    int64_t rows, segs, outs; // max of one step
    int64_t n_groups;
    const int64_t *n_pages; // (n_groups)
    const int64_t *windows; // (n_groups) positions that a row sees, itself included; 0: all
    int64_t n_slots;        // 0: the model keeps no recurrent state
    int64_t log_rows;
    int64_t n_adapters;
    int64_t extra_width; // 0: rows cannot be given
    int64_t top;         // that the graph has
} qn_step_limits;

// Whether a message from outside can run: its header, and every index in it, segments that write to
// one page or slot included. The error names the field and both values.
QN_MUST_CHECK qn_status qn_step_check(const int32_t *message, size_t words,
                                      const qn_step_limits *limits, qn_err *err);

#endif

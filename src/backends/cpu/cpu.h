// Inside the CPU backend: packed activations, the rules that cut calls into pieces, and the tables.
//
// Packed activations ("panels") hold x (rows, parts, width) as integers and scales. Each part
// of a row is a run of whole blocks of 256 values; part p of a row begins p *
// qn_cpu_row_bytes(form, width) after the row. Past `width` the last block holds zeros.
//
//   i12_256   qn_i12_block: x ~ scale * q,          |q| <= 2047
//   i16_256   qn_i16_block: x ~ scale * q,          |q| <= 32767
//   i8_32     qn_i8_block:  x ~ scales[i / 32] * q, |q| <= 127
//
// All carry the sums of each 16 integers, which types with offsets need. A block whose values are
// not all finite has NaN scales and zero integers.
#ifndef QN_BACKENDS_CPU_CPU_H
#define QN_BACKENDS_CPU_CPU_H

#include "backends/cpu/kernel.h"

enum { QN_I12_MAX = 2047, QN_I16_MAX = 32767, QN_I8_MAX = 127, QN_SUM = 16 };

typedef struct qn_i12_block {
    int16_t q[QN_BLOCK];
    int16_t sums[QN_BLOCK / QN_SUM]; // at most 16 * 2047 < 2^15
    float scale;
    float fill[7];
} qn_i12_block;

typedef struct qn_i16_block {
    int16_t q[QN_BLOCK];
    int32_t sums[QN_BLOCK / QN_SUM];
    float run_sums[QN_BLOCK / 32]; // of 32 integers; exact
    float scale;
    float fill[7];
} qn_i16_block;

typedef struct qn_i8_block {
    int8_t q[QN_BLOCK];
    int16_t sums[QN_BLOCK / QN_SUM];
    float scales[QN_BLOCK / 32];
    float offsets[QN_BLOCK / 32]; // scale times the sum of 32
    float fill[8];
} qn_i8_block;

// The scale of run j times the sum of its group h of 16 or 32 values.
static inline float qn_i8_offset(const qn_i8_block *x, int j, int h, int group) {
    return group == 32 ? x->offsets[j] : x->scales[j] * (float)x->sums[2 * j + h];
}

// Where value k of an i12 or i16 block is: of each 4 values, the first and third come before the
// others, so that kernels find them as they find those of a row of packed weights.
static inline int qn_i12_index(int k) { return (k & ~3) | (k & 1) << 1 | (k >> 1 & 1); }

_Static_assert(sizeof(qn_i12_block) == 576 && sizeof(qn_i16_block) == 640 &&
                   sizeof(qn_i8_block) == 384,
               "blocks fill cache lines");

static inline int64_t qn_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static inline int64_t qn_round_up(int64_t a, int64_t b) { return qn_ceil_div(a, b) * b; }

// See qn_backend and qn_device_kind.
int64_t qn_cpu_row_bytes(qn_word form, int64_t width);
void qn_cpu_read_row(float *to, const void *row, qn_word form, int64_t parts, int64_t width);
void qn_cpu_read_kv(float *keys, float *values, const qn_cache_view *cache, int32_t page,
                    int64_t row);
// Rows of a page to `rows`, or (is_set) from there.
void qn_cpu_move_kv(unsigned char *rows, const qn_cache_view *cache, int32_t page, int64_t first,
                    int64_t n, bool is_set);
int64_t qn_cpu_cache_bytes(qn_type type, int64_t heads, int64_t k_size, int64_t v_size);
const char *qn_cpu_refuse(const qn_graph *graph, const qn_node *node);
// Keys of this many positions lie together (qn_cache_view).
enum { QN_KEY_GROUP = 16 };
// Bytes of one row of keys or values in a cache.
int64_t qn_cpu_cache_row_bytes(qn_type type, int64_t size);

// --- rules of kernels.def and recipes.def (pieces.c) ---

// A run of rows, tiles, ...; empty for a piece past the end.
typedef struct qn_range {
    int64_t first, end;
} qn_range;

// rows: a few rows each, so that a piece is some thousand numbers. The kernel asks for its rows
// with qn_cpu_cut_rows.
int64_t qn_cpu_pieces_rows(const qn_task *task, int64_t rows, int64_t cached);
qn_range qn_cpu_cut_rows(const qn_task *task, int64_t piece);

// lora: some rows, and for these some of the ranks (down) or of the outputs (up).
typedef struct qn_lora_cut {
    qn_range rows, outs;
} qn_lora_cut;
int64_t qn_cpu_pieces_lora_down(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_pieces_lora_up(const qn_task *task, int64_t rows, int64_t cached);
qn_lora_cut qn_cpu_cut_lora_down(const qn_task *task, int64_t piece);
qn_lora_cut qn_cpu_cut_lora_up(const qn_task *task, int64_t piece);
int qn_cpu_temps_lora(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node); // (T, r)

// columns: some of in[0], for all rows. Sums of these, by expert.
int64_t qn_cpu_pieces_columns(const qn_task *task, int64_t rows, int64_t cached);
qn_range qn_cpu_cut_columns(const qn_task *task, int64_t piece);
int64_t qn_cpu_scratch_columns(const qn_task *task, int64_t rows);

// What ranks give each other, all of them and this one.
int qn_cpu_temps_all_gather(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);
int64_t qn_cpu_scratch_all_gather(const qn_task *task, int64_t rows); // sizes by rank

int64_t qn_cpu_pieces_one(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_scratch_none(const qn_task *task, int64_t rows);
int64_t qn_cpu_shared_none(const qn_task *task, int64_t rows, int64_t cached);

int qn_cpu_temps_none(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);

// --- rules of matmuls (pieces_tiles.c) ---

// Rows of x (each part counts as one), and tiles of 16 outputs. For calls with several weights side
// by side tiles are counted over all of them.
typedef struct qn_tile_cut {
    qn_range rows, tiles;
} qn_tile_cut;

// Rows that share an unpacked tile, so that unpacking (70 ns for a block of a tile with Q4_K on Zen
// 5) is little beside their products (8 ns a row); larger groups make fewer pieces, which many
// threads need, and rows that do not stay in the second-level cache.
enum { QN_ROW_GROUP = 128 };
// Rows for which tiles are unpacked in registers, not into memory: their sums must fit there, too.
// Q4_K 4096 x 4096, 8 rows, AVX-512, one thread: 174 GFLOP/s instead of 111 (i12_256), 222 instead
// of 91 (i8_32). Other limits were not measured.
enum { QN_FEW_ROWS = 8 };

// tiles: in[1 ...] are weights side by side. gated: in[1] and in[2] tile by tile.
int64_t qn_cpu_pieces_tiles(const qn_task *task, int64_t rows, int64_t cached);
qn_tile_cut qn_cpu_cut_tiles(const qn_task *task, int64_t piece);
int64_t qn_cpu_pieces_gated(const qn_task *task, int64_t rows, int64_t cached);
qn_tile_cut qn_cpu_cut_gated(const qn_task *task, int64_t piece);
int64_t qn_cpu_scratch_tiles(const qn_task *task, int64_t rows);
// Rows of a group of these and of head, and panels of tiles that are multiplied at once.
int64_t qn_cpu_row_group(const qn_task *task);
int64_t qn_cpu_panels(const qn_task *task);

// head: a run of whole panels of in[1], for a group of rows. The runs are the same for any number
// of rows, as each leaves the best entries that it finds.
typedef struct qn_head_cut {
    qn_range rows, tiles;
    int64_t run;
} qn_head_cut;
int64_t qn_cpu_pieces_head(const qn_task *task, int64_t rows, int64_t cached);
qn_head_cut qn_cpu_cut_head(const qn_task *task, int64_t piece);
int64_t qn_cpu_head_runs(const qn_task *task);
// What each run found in a row: (runs * (2 + 2 top)).
int qn_cpu_temps_head(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);

// grouped: in[1] by ids in[2]. Rows here are those of the step, each with its choices.
int64_t qn_cpu_pieces_grouped(const qn_task *task, int64_t rows, int64_t cached);
qn_tile_cut qn_cpu_cut_grouped(const qn_task *task, int64_t piece);
int64_t qn_cpu_scratch_grouped(const qn_task *task, int64_t rows);
// Rows that share an unpacked tile: enough that an expert finds some.
int64_t qn_cpu_expert_rows(int64_t n_experts, int64_t choices);

// --- rules of experts (pieces_experts.c) ---

// Its temporary values: ids (T, N), weights (T, N), gated values (T, N, F), the same packed, what
// each expert says (T, N, D), and lists.
enum {
    QN_EXPERTS_IDS,
    QN_EXPERTS_WEIGHTS,
    QN_EXPERTS_GATED,
    QN_EXPERTS_PACKED,
    QN_EXPERTS_EACH,
    QN_EXPERTS_LISTS
};
int qn_cpu_temps_experts(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);

// The lists are in the first row; the sorted entries after them, N in each row.
typedef struct qn_expert_lists {
    int32_t *n_used, *used; // experts to run: those with entries, or some of these
    int32_t *first;         // (X + 1) where an expert's entries begin
} qn_expert_lists;
qn_expert_lists qn_cpu_expert_lists(const qn_task *task);
int32_t *qn_cpu_expert_entry(const qn_task *task, int64_t i); // of the sorted list

enum { QN_EXPERT_ROWS = 256 }; // at a time; their sums stay in the second-level cache

// Some tiles of one expert; expert -1: nothing to do. experts_up: in[2] and in[3]; experts_down:
// in[4].
typedef struct qn_expert_cut {
    int32_t expert;
    qn_range tiles;
} qn_expert_cut;
int64_t qn_cpu_pieces_experts_up(const qn_task *task, int64_t rows, int64_t cached);
qn_expert_cut qn_cpu_cut_experts_up(const qn_task *task, int64_t piece);
int64_t qn_cpu_pieces_experts_down(const qn_task *task, int64_t rows, int64_t cached);
qn_expert_cut qn_cpu_cut_experts_down(const qn_task *task, int64_t piece);
int64_t qn_cpu_scratch_experts(const qn_task *task, int64_t rows);
int64_t qn_cpu_scratch_scores(const qn_task *task, int64_t rows); // room for a row of in[1]
// Some entries of one expert, in the sorted list.
int64_t qn_cpu_pieces_experts_entries(const qn_task *task, int64_t rows, int64_t cached);
qn_range qn_cpu_cut_experts_entries(const qn_task *task, int64_t piece);

// --- rules of ops that know the sequence, and of those along rows (pieces_seq.c) ---

// Turns in which segments are dealt out: work for 8 threads with heads uncut. Not measured.
enum { QN_SEG_TURNS = 8 };

// width, rope: room for one row of floats, for the angles of a row.
int64_t qn_cpu_scratch_width(const qn_task *task, int64_t rows);
int64_t qn_cpu_scratch_rope(const qn_task *task, int64_t rows);
// kv: some rows of one head of keys and values.
int64_t qn_cpu_pieces_kv(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_scratch_kv(const qn_task *task, int64_t rows);
typedef struct qn_kv_cut {
    qn_range rows;
    int64_t head; // of keys and values
} qn_kv_cut;
qn_kv_cut qn_cpu_cut_kv(const qn_task *task, int64_t piece);
// attend: some rows and heads of one kv head (attend_cut.h).
int64_t qn_cpu_pieces_attend(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_scratch_attend(const qn_task *task, int64_t rows);
int64_t qn_cpu_shared_attend(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_pieces_merge(const qn_task *task, int64_t rows, int64_t cached);
int qn_cpu_temps_attention(qn_plan_arg *temp, const qn_graph *graph, const qn_node *node);
// conv: a run of channels of segments turn, turn + QN_SEG_TURNS, ...
int64_t qn_cpu_pieces_conv(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_scratch_conv(const qn_task *task, int64_t rows);
qn_range qn_cpu_cut_conv(const qn_task *task, int64_t piece);
int64_t qn_cpu_turn_conv(const qn_task *task, int64_t piece);
// delta: key head `piece % key heads` of segments dealt out as for conv.
int64_t qn_cpu_pieces_delta(const qn_task *task, int64_t rows, int64_t cached);
int64_t qn_cpu_scratch_delta(const qn_task *task, int64_t rows);

// --- levels (table.c, detect.c) ---

// The kernels of one instruction set.
typedef struct qn_cpu_level {
    const char *name;         // "portable", "avx2", ..., or "neon", ...
    const qn_kernel *kernels; // by the indices of the backend's recipes
    bool has_unit;            // of its tasks
    qn_backend backend;
} qn_cpu_level;

// One row per level that this build has, worst first; NULL after the last.
const qn_cpu_level *qn_cpu_level_get(size_t i);
// Names of those that this machine can run, worst first; NULL after the last.
const char *qn_cpu_level_name(size_t i);
// A level by name; NULL or "" is the best that this machine has. One that is unknown or that the
// machine lacks is an error that lists those it has.
QN_MUST_CHECK qn_status qn_cpu_level_find(const qn_cpu_level **out, const char *name, qn_err *err);

#endif

// qn_quantize: a model file with other numeric types.
//
// Tensor by tensor, in waves of pieces that the threads share: a piece reads its rows, unpacks,
// checks and packs them; the wave is then written in order. What a piece computes depends on
// nothing but its rows, so the number of threads changes no byte. Memory: 16 pieces of about 64
// thousand values for each thread, as they are in both files.
#include "formats/gguf_write.h"
#include "make/importance.h"
#include "make/mix.h"
#include "make/tower.h"
#include "models/vision_tower.h"
#include "make/values.h"

#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/pool.h"
#include "core/structs.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum {
    PIECE_VALUES = 1 << 16,   // a whole number of blocks of every type
    PIECES_PER_THREAD = 16,   // of a wave, as in synth.c
    MAX_COLUMNS = 1 << 24,    // of a row that is converted: it is unpacked whole
    QUANTIZATION_VERSION = 2, // of the block formats, as GGUF counts them
};

typedef struct plan_row {
    const qn_tensor *from;
    qn_type type;
} plan_row;

typedef struct quantizer {
    const qn_quantize_opts *opts;
    const qn_mix *mix;
    qn_source *source;
    qn_importance *importance; // NULL: none
    size_t n_plain;            // matrices without an entry in it, and the first of them
    const qn_tensor *plain;
    plan_row *rows; // (n) in the order of the new file
    size_t n;
    qn_pool *pool;
    qn_gguf_writer *writer;
    int64_t done, total; // bytes of the input; a checkpoint counts twice
    char *folder;        // owned; of a converted checkpoint until the end. NULL: none
} quantizer;

// --- one tensor ----------------------------------------------------------------------------------

// Values lie in units that are unpacked together: rows where the type changes, pieces where not.
typedef struct tensor_job {
    const quantizer *q;
    const qn_tensor *from;
    const qn_type_info *in, *out;
    const float *weights; // (n_experts, width); NULL: none
    int64_t width, rows_per_expert;
    int64_t n_values, unit, units_per_piece;
    int64_t n_pieces, first_piece;         // of a wave
    unsigned char *packed_in, *packed_out; // (n_pieces, units_per_piece * unit)
    float *values;                         // (n_pieces, unit)
    qn_err *errs;                          // (n_pieces)
} tensor_job;

static int64_t packed_bytes(const qn_type_info *type, int64_t n) {
    return n / type->block * type->bytes;
}

// Values that are converted together.
typedef struct part {
    int64_t first, n; // position in the tensor of the first, how many
    const unsigned char *from;
    unsigned char *to;
    float *x; // (n) scratch
} part;

static qn_status convert_part(const tensor_job *job, const part *p, qn_err *err) {
    const qn_values v = {.tensor = job->from->name.data,
                         .width = job->width,
                         .first = p->first,
                         .n = p->n,
                         .x = p->x};
    if (job->in->unpack) {
        job->in->unpack(p->x, p->from, p->n);
        QN_TRY(qn_values_check_finite(&v, err));
    }
    if (job->in == job->out) {
        memcpy(p->to, p->from, (size_t)packed_bytes(job->in, p->n));
        return QN_OK;
    }
    const int64_t expert = p->first / job->width / job->rows_per_expert;
    const float *weights = job->weights ? job->weights + expert * job->width : NULL;
    return qn_values_pack(p->to, job->out, &v, weights, err);
}

static void convert_piece(void *arg, int64_t i) {
    const tensor_job *job = arg;
    qn_err *err = &job->errs[i];
    const int64_t per_piece = job->unit * job->units_per_piece;
    const int64_t first = (job->first_piece + i) * per_piece;
    const int64_t n = job->n_values - first < per_piece ? job->n_values - first : per_piece;
    unsigned char *in = job->packed_in + i * packed_bytes(job->in, per_piece);
    unsigned char *out = job->packed_out + i * packed_bytes(job->out, per_piece);
    qn_status status = qn_source_read(job->q->source, job->from, packed_bytes(job->in, first), in,
                                      (size_t)packed_bytes(job->in, n), err);
    for (int64_t at = 0; !status && at < n; at += job->unit) {
        const part p = {.first = first + at,
                        .n = n - at < job->unit ? n - at : job->unit,
                        .from = in + packed_bytes(job->in, at),
                        .to = out + packed_bytes(job->out, at),
                        .x = job->values + i * job->unit};
        status = convert_part(job, &p, err);
    }
    err->status = status;
}

// The first piece of a wave that failed decides, so that the message is always the same.
static qn_status run_waves(quantizer *q, tensor_job *job, qn_err *err) {
    const int64_t per_piece = job->unit * job->units_per_piece;
    const int64_t all = (job->n_values + per_piece - 1) / per_piece;
    for (; job->first_piece < all; job->first_piece += job->n_pieces) {
        const int64_t left = all - job->first_piece;
        const int64_t n = left < job->n_pieces ? left : job->n_pieces;
        const int64_t first = job->first_piece * per_piece, end = first + n * per_piece;
        const int64_t n_values = (end < job->n_values ? end : job->n_values) - first;
        qn_pool_run(q->pool, n, convert_piece, job);
        for (int64_t i = 0; i < n; i++) {
            if (!job->errs[i].status) continue;
            if (err) *err = job->errs[i];
            return job->errs[i].status;
        }
        QN_TRY(qn_gguf_write(q->writer, job->packed_out, (size_t)packed_bytes(job->out, n_values),
                             err));
        q->done += packed_bytes(job->in, n_values);
        if (q->opts->progress && !q->opts->progress(q->opts->progress_arg, q->done, q->total))
            return QN_FAIL(err, STOPPED, "stopped at %lld of %lld bytes", (long long)q->done,
                           (long long)q->total);
    }
    return QN_OK;
}

static void size_job(tensor_job *job, int n_threads) {
    const bool is_copy = job->in == job->out;
    job->unit = is_copy ? PIECE_VALUES : job->width; // every block size divides both
    if (job->unit > job->n_values) job->unit = job->n_values;
    job->units_per_piece = job->unit < PIECE_VALUES ? PIECE_VALUES / job->unit : 1;
    const int64_t per_piece = job->unit * job->units_per_piece;
    const int64_t all = (job->n_values + per_piece - 1) / per_piece;
    int64_t n =
        per_piece > PIECE_VALUES ? PIECES_PER_THREAD * PIECE_VALUES / per_piece : PIECES_PER_THREAD;
    n = n > 1 ? n * n_threads : n_threads;
    job->n_pieces = n < all ? n : all;
}

static qn_status load_weights(float **out, quantizer *q, const plan_row *row, qn_err *err) {
    const bool is_packed = qn_type_get(row->type)->block > 1;
    *out = NULL;
    if (!q->importance || row->from->type == row->type || !is_packed) return QN_OK;
    QN_TRY(qn_importance_load(out, q->importance, row->from, err));
    if (!*out && q->n_plain++ == 0) q->plain = row->from;
    return QN_OK;
}

static qn_status write_tensor(quantizer *q, const plan_row *row, qn_err *err) {
    const qn_tensor *t = row->from;
    tensor_job job = {.q = q,
                      .from = t,
                      .in = qn_type_get(t->type),
                      .out = qn_type_get(row->type),
                      .width = t->dims[t->n_dims - 1],
                      .rows_per_expert = t->n_dims > 1 ? t->dims[t->n_dims - 2] : 1};
    if (t->bytes == 0) return QN_OK;
    job.n_values = t->bytes / job.in->bytes * job.in->block;
    size_job(&job, qn_pool_threads(q->pool));
    const int64_t per_piece = job.unit * job.units_per_piece;
    float *weights = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, load_weights(&weights, q, row, err));
    job.weights = weights;
    job.packed_in = qn_alloc((size_t)job.n_pieces, (size_t)packed_bytes(job.in, per_piece));
    job.packed_out = qn_alloc((size_t)job.n_pieces, (size_t)packed_bytes(job.out, per_piece));
    job.values = qn_alloc((size_t)job.n_pieces, (size_t)job.unit * sizeof(float));
    job.errs = qn_alloc((size_t)job.n_pieces, sizeof *job.errs);
    if (job.packed_in && job.packed_out && job.values && job.errs)
        status = run_waves(q, &job, err);
    else
        status = QN_NOMEM(err, t->name.data);

done:
    qn_free(weights);
    qn_free(job.packed_in);
    qn_free(job.packed_out);
    qn_free(job.values);
    qn_free(job.errs);
    return status;
}

// --- the plan ------------------------------------------------------------------------------------

static int compare_rows(const void *a, const void *b) {
    return qn_mix_compare(((const plan_row *)a)->from, ((const plan_row *)b)->from);
}

static qn_status check_row(const plan_row *row, qn_err *err) {
    const qn_tensor *t = row->from;
    const qn_type_info *in = qn_type_get(t->type);
    if (t->n_dims > 4)
        return QN_FAIL(err, UNSUPPORTED, "%s: %d dims, GGUF has 4", t->name.data, t->n_dims);
    if (row->type == t->type) return QN_OK;
    if (!qn_type_is_supported(t->type))
        return QN_FAIL(err, UNSUPPORTED, "%s: cannot convert from %s", t->name.data, in->name);
    if (t->dims[t->n_dims - 1] > MAX_COLUMNS)
        return QN_FAIL(err, LIMIT, "%s: rows of %lld values, at most %d can be converted",
                       t->name.data, (long long)t->dims[t->n_dims - 1], MAX_COLUMNS);
    return QN_OK;
}

// What the plan does that the user may not expect: logged once, with an example.
typedef struct surprises {
    size_t n_again, n_larger;
    const plan_row *again, *larger;
    qn_type wanted; // in place of larger->type
} surprises;

static void tell(const quantizer *q, const surprises *s) {
    if (s->n_again)
        qn_log(q->opts->log, q->opts->log_arg, QN_LOG_WARNING,
               "%zu tensors are quantised already, such as %s (%s): their error stays, and more is "
               "added",
               s->n_again, s->again->from->name.data, qn_type_get(s->again->from->type)->name);
    if (s->n_larger)
        qn_log(
            q->opts->log, q->opts->log_arg, QN_LOG_INFO,
            "%zu tensors get another type because their rows do not fit, such as %s: rows of %lld "
            "are %s in place of %s",
            s->n_larger, s->larger->from->name.data,
            (long long)s->larger->from->dims[s->larger->from->n_dims - 1],
            qn_type_get(s->larger->type)->name, qn_type_get(s->wanted)->name);
}

static qn_status make_plan(quantizer *q, qn_err *err) {
    qn_mixer mixer;
    surprises s = {0};
    qn_mixer_init(&mixer, q->mix, q->source);
    mixer.is_pure = q->opts->pure;
    mixer.has_importance = q->importance != NULL;
    q->n = qn_source_n_tensors(q->source);
    q->rows = qn_alloc(q->n, sizeof *q->rows);
    if (!q->rows) return QN_NOMEM(err, "tensors");
    for (size_t i = 0; i < q->n; i++) q->rows[i].from = qn_source_tensor(q->source, i);
    qsort(q->rows, q->n, sizeof *q->rows, compare_rows);
    for (size_t i = 0; i < q->n; i++) {
        plan_row *row = &q->rows[i];
        qn_type wanted = row->type = row->from->type;
        if (qn_mix_converts(row->from)) row->type = qn_mixer_choose(&mixer, row->from, &wanted);
        QN_TRY(check_row(row, err));
        q->total += row->from->bytes;
        if (row->type != row->from->type && qn_type_get(row->from->type)->block > 1) {
            if (!s.n_again++) s.again = row;
        }
        if (row->type != wanted && !s.n_larger++) {
            s.larger = row;
            s.wanted = wanted;
        }
    }
    tell(q, &s);
    return QN_OK;
}

// --- the file ------------------------------------------------------------------------------------

// Keys that are about the file that is read, not about the model.
static bool is_about_file(const char *name) {
    static const char *const prefixes[] = {"split.", "quantize.imatrix.", "general.alignment",
                                           "general.file_type", "general.quantization_version"};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (strncmp(name, prefixes[i], strlen(prefixes[i])) == 0) return true;
    }
    return false;
}

static void declare(const quantizer *q) {
    for (size_t i = 0; i < qn_source_n_keys(q->source); i++) {
        const qn_key *key = qn_source_key(q->source, i);
        if (!is_about_file(key->name.data)) qn_gguf_put_key(q->writer, key);
    }
    qn_gguf_put_u32(q->writer, "general.quantization_version", QUANTIZATION_VERSION);
    qn_gguf_put_u32(q->writer, "general.file_type", q->mix->file_type);
    if (q->importance) {
        const qn_importance *imp = q->importance;
        qn_gguf_put_string(q->writer, "quantize.imatrix.file", qn_path_name(q->opts->imatrix));
        qn_gguf_put_string(q->writer, "quantize.imatrix.dataset", qn_importance_dataset(imp));
        qn_gguf_put_u32(q->writer, "quantize.imatrix.entries_count",
                        (uint32_t)qn_importance_n_entries(imp));
        qn_gguf_put_u32(q->writer, "quantize.imatrix.chunks_count",
                        (uint32_t)qn_importance_n_chunks(imp));
    }
    for (size_t i = 0; i < q->n; i++) {
        const qn_tensor *t = q->rows[i].from;
        qn_gguf_tensor to = {.name = t->name.data, .type = q->rows[i].type, .n_dims = t->n_dims};
        memcpy(to.dims, t->dims, sizeof to.dims);
        qn_gguf_add_tensor(q->writer, &to);
    }
}

// --- checkpoints ---------------------------------------------------------------------------------
//
// A checkpoint is converted first, into a folder next to the output. Its file is opened and loses
// its name at once, so that a kill leaves no more than the folder.

// The names there are short, whatever the output is called.
#define TOWER_PREFIX "mmproj-"
static const char text_name[] = "model.gguf", tower_name[] = TOWER_PREFIX "model.gguf";

static bool show_first_half(void *arg, int64_t done, int64_t total) {
    quantizer *q = arg;
    q->done = done;
    q->total = total;
    return !q->opts->progress || q->opts->progress(q->opts->progress_arg, done, 2 * total);
}

// Notes of the conversion speak of files that do not stay.
static void pass_warnings(void *arg, qn_log_level level, const char *message) {
    const quantizer *q = arg;
    if (level <= QN_LOG_WARNING) qn_log(q->opts->log, q->opts->log_arg, level, "%s", message);
}

// Where the vision tower goes, next to the output; NULL when memory is short.
static char *tower_path(const char *out) {
    qn_buf path = {0};
    char *folder = qn_path_folder(out), *text = NULL;
    if (folder) qn_buf_printf(&path, "%s/" TOWER_PREFIX "%s", folder, qn_path_name(out));
    if (folder && qn_buf_take(&text, &path, NULL)) text = NULL;
    qn_free(folder);
    return text;
}

static qn_status make_folder(quantizer *q, const char *out, qn_err *err) {
    char *beside = qn_path_folder(out);
    char *folder = beside ? qn_path_join(beside, ".quern-XXXXXX") : NULL;
    qn_status status = QN_OK;
    if (!folder)
        status = QN_NOMEM(err, "a path");
    else if (!mkdtemp(folder))
        status = QN_FAIL(err, IO, "%s: cannot make a folder: %s", beside, strerror(errno));
    qn_free(beside);
    if (status)
        qn_free(folder);
    else
        q->folder = folder;
    return status;
}

// The place of a vision tower must be free too.
static qn_status check_tower_place(const quantizer *q, const char *out, qn_err *err) {
    if (!qn_vision_is_inside(q->source)) return QN_OK;
    char *path = tower_path(out);
    const qn_status status = path ? qn_gguf_check_place(path, err) : QN_NOMEM(err, "a path");
    qn_free(path);
    return status;
}

static qn_status convert_first(quantizer *q, const char *in, const char *out, qn_err *err) {
    const qn_convert_opts opts = QN_INIT(qn_convert_opts, .log = pass_warnings, .log_arg = q,
                                         .progress = show_first_half, .progress_arg = q);
    QN_TRY(check_tower_place(q, out, err));
    qn_source_close(q->source);
    q->source = NULL;
    QN_TRY(make_folder(q, out, err));
    char *path = qn_path_join(q->folder, text_name);
    if (!path) return QN_NOMEM(err, "a path");
    qn_status status = qn_convert(in, path, &opts, err);
    if (!status) status = qn_source_open(&q->source, path, err);
    unlink(path);
    qn_free(path);
    return status;
}

// Puts the prepared output in its place, and the vision tower of a checkpoint with it.
static qn_status put_in_place(const quantizer *q, const char *out, qn_err *err) {
    if (!q->folder) return qn_gguf_place(q->writer, err);
    char *from = qn_path_join(q->folder, tower_name), *to = tower_path(out);
    const bool has_tower = from && qn_path_is_file(from);
    qn_status status = QN_OK;
    if (!from || !to)
        status = QN_NOMEM(err, "a path");
    else if (has_tower && rename(from, to) != 0)
        status = QN_FAIL(err, IO, "%s: cannot put in place: %s", to, strerror(errno));
    if (!status) status = qn_gguf_place(q->writer, err);
    if (!status && has_tower)
        qn_log(q->opts->log, q->opts->log_arg, QN_LOG_INFO, "the vision tower is in %s", to);
    qn_free(from);
    qn_free(to);
    return status;
}

static void leave_folder(const quantizer *q) {
    char *tower = qn_path_join(q->folder, tower_name);
    if (tower) unlink(tower); // there after a failure
    rmdir(q->folder);
    qn_free(tower);
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status check_source(const quantizer *q, const char *in, const char *out, qn_err *err) {
    if (qn_source_has_file(q->source, out))
        return QN_FAIL(err, ARGUMENT, "%s: is the input itself, want another name", out);
    const qn_key *type = qn_source_find_key(q->source, "general.type");
    if (type && type->kind == QN_KEY_STRING && qn_str_is(type->as.s, "imatrix"))
        return QN_FAIL(err, ARGUMENT, "%s: an importance file, want a model", in);
    return qn_source_n_tensors(q->source) ? QN_OK : QN_FAIL(err, FORMAT, "%s: has no tensors", in);
}

// An importance file that says nothing of this model was named by mistake.
static qn_status check_importance(const quantizer *q, const char *in, qn_err *err) {
    if (!q->importance) return QN_OK;
    for (size_t i = 0; i < qn_source_n_tensors(q->source); i++) {
        if (qn_importance_has(q->importance, qn_source_tensor(q->source, i))) return QN_OK;
    }
    return QN_FAIL(err, ARGUMENT, "%s: no tensor of %s is in it; was it made from this model?",
                   q->opts->imatrix, in);
}

static qn_status quantize(quantizer *q, const char *in, const char *out, qn_err *err) {
    QN_TRY(qn_mix_find(&q->mix, q->opts->type, err));
    QN_TRY(qn_source_open(&q->source, in, err));
    QN_TRY(check_source(q, in, out, err));
    QN_TRY(qn_gguf_check_place(out, err));
    if (q->opts->imatrix) {
        QN_TRY(qn_importance_open(&q->importance, q->opts->imatrix, err));
        if (qn_path_is_same(q->opts->imatrix, out))
            return QN_FAIL(err, ARGUMENT, "%s: is the importance file, want another name", out);
    }
    if (qn_source_get_kind(q->source) != QN_SOURCE_GGUF) QN_TRY(convert_first(q, in, out, err));
    QN_TRY(check_importance(q, in, err));
    QN_TRY(make_plan(q, err));
    QN_TRY(qn_pool_create(&q->pool, q->opts->n_threads, err));
    QN_TRY(qn_gguf_writer_create(&q->writer, err));
    declare(q);
    QN_TRY(qn_gguf_begin(q->writer, out, err));
    for (size_t i = 0; i < q->n; i++) QN_TRY(write_tensor(q, &q->rows[i], err));
    if (q->n_plain)
        qn_log(q->opts->log, q->opts->log_arg, QN_LOG_INFO,
               "%zu matri%s no entry in the importance file, such as %s: all columns count alike "
               "there",
               q->n_plain, q->n_plain == 1 ? "x has" : "ces have", q->plain->name.data);
    QN_TRY(qn_gguf_prepare(q->writer, err));
    return put_in_place(q, out, err);
}

qn_status qn_quantize(const char *in, const char *out, const qn_quantize_opts *opts, qn_err *err) {
    qn_quantize_opts o;
    QN_TRY(QN_OPTS_READ(qn_quantize_opts, &o, opts, err));
    if (!in || !out || !o.type)
        return QN_FAIL(err, ARGUMENT, "quantize needs an input, an output and a type");
    quantizer q = {.opts = &o};
    const qn_status status = quantize(&q, in, out, err);
    if (q.folder) leave_folder(&q);
    qn_gguf_writer_destroy(q.writer);
    qn_pool_destroy(q.pool);
    qn_free(q.rows);
    qn_importance_close(q.importance);
    qn_source_close(q.source);
    qn_free(q.folder);
    return status;
}

qn_status qn_quantize_check_type(const char *type, qn_err *err) {
    const qn_mix *unused;
    return qn_mix_find(&unused, type ? type : "", err);
}

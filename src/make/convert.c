#define _XOPEN_SOURCE 700 // realpath
// A Hugging Face checkpoint as GGUF: keys, tokenizer and weights as llama.cpp's converter writes
// them. The model is built as for running it, which checks everything; then its weights are
// streamed from the one file to the other. A vision tower becomes a second file, and both take
// their places at the end.
#include "core/buf.h"
#include "core/file.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/structs.h"
#include "make/stream.h"
#include "make/tower.h"
#include "models/vision_tower.h"
#include "models/model.h"
#include "runtime/sample_defaults.h"
#include "tokenizer/tokenizer.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct output {
    char *path; // owned
    qn_gguf_writer *writer;
    const qn_weights *weights;
    const qn_type *wanted; // NULL: as the checkpoint has it
} output;

typedef struct convert_call {
    const qn_convert_opts *opts;
    qn_source *source;
    qn_model *model;
    qn_export keys;
    qn_tower tower;
    char *name;         // owned: of the model
    qn_type type;       // asked for
    output text, image; // image.path NULL: no tower
    qn_making making;
} convert_call;

// --- what was asked for --------------------------------------------------------------------------

// The types that a whole file may have, with their number in general.file_type.
static const struct {
    const char *name;
    uint32_t file_type;
} file_types[] = {{"F32", 0}, {"F16", 1}, {"BF16", 32}, {"Q8_0", 7}};
enum { N_FILE_TYPES = sizeof file_types / sizeof file_types[0] };

static int find_file_type(const char *name) {
    for (int i = 0; i < N_FILE_TYPES; i++) {
        if (strcmp(file_types[i].name, name) == 0) return i;
    }
    return -1;
}

static qn_status choose_type(convert_call *call, qn_err *err) {
    const char *name = call->opts->type;
    if (!name) return QN_OK;
    if (!qn_type_from_name(&call->type, name) || find_file_type(qn_type_get(call->type)->name) < 0)
        return QN_FAIL(err, ARGUMENT,
                       "type '%s': a checkpoint is converted to F32, F16, BF16 or Q8_0; other "
                       "types are made from the GGUF file",
                       name);
    call->text.wanted = call->image.wanted = &call->type;
    return QN_OK;
}

// folder/mmproj-name next to the text model.
static qn_status image_path(char **out, const char *path, qn_err *err) {
    const char *name = qn_path_name(path);
    qn_buf text = {0};
    qn_buf_add(&text, path, (size_t)(name - path));
    qn_buf_printf(&text, "mmproj-%s", name);
    return qn_buf_take(out, &text, err);
}

// The folder's name is the model's.
static qn_status model_name(char **out, const qn_source *source, qn_err *err) {
    char folder[PATH_MAX];
    if (!realpath(qn_source_folder(source), folder))
        return QN_FAIL(err, IO, "%s: %s", qn_source_folder(source), strerror(errno));
    const char *slash = strrchr(folder, '/');
    *out = strdup(slash && slash[1] ? slash + 1 : "model");
    return *out ? QN_OK : QN_NOMEM(err, "name");
}

// --- keys ----------------------------------------------------------------------------------------

// Parameters as people count them: "1.4M", "596M", "30B"; with experts "128x2.1B", the number of
// experts and the size of a model that has only one of them.
static void size_label(char *to, size_t size, const qn_weights *weights) {
    static const struct {
        double unit;
        char letter;
    } units[] = {{1e12, 'T'}, {1e9, 'B'}, {1e6, 'M'}, {1e3, 'K'}};
    double n = 0;
    int64_t experts = 0;
    for (size_t i = 0; i < weights->n; i++) {
        const qn_weight *w = &weights->items[i];
        const bool is_stack = strstr(w->name, "_exps.") != NULL;
        if (is_stack) experts = w->shape.dims[0].n;
        n += (double)w->n / (double)(is_stack ? w->shape.dims[0].n : 1);
    }
    int i = 0;
    while (i < 3 && n <= units[i].unit) i++;
    const double scaled = n / units[i].unit;
    char text[32];
    snprintf(text, sizeof text, scaled < 9.5 ? "%.1f%c" : "%.0f%c", scaled, units[i].letter);
    if (experts)
        snprintf(to, size, "%lldx%s", (long long)experts, text);
    else
        snprintf(to, size, "%s", text);
}

// The type that most of the numbers in matrices have.
static uint32_t main_file_type(const output *o) {
    int64_t counts[N_FILE_TYPES] = {0};
    int best = 0;
    for (size_t i = 0; i < o->weights->n; i++) {
        const qn_weight *w = &o->weights->items[i];
        const int at = find_file_type(qn_type_get(qn_stream_type(w, o->wanted))->name);
        if (at >= 0) counts[at] += w->n;
    }
    for (int i = 0; i < N_FILE_TYPES; i++) {
        if (counts[i] > counts[best]) best = i;
    }
    return file_types[best].file_type;
}

static void put_general(const convert_call *call, const output *o, const char *arch,
                        const char *type) {
    char label[64];
    size_label(label, sizeof label, o->weights);
    qn_gguf_put_string(o->writer, "general.architecture", arch);
    qn_gguf_put_string(o->writer, "general.type", type);
    qn_gguf_put_string(o->writer, "general.name", call->name);
    qn_gguf_put_string(o->writer, "general.size_label", label);
    qn_gguf_put_u32(o->writer, "general.file_type", main_file_type(o));
    qn_gguf_put_u32(o->writer, "general.quantization_version", 2);
}

static qn_status declare_text(convert_call *call, qn_err *err) {
    qn_gguf_writer *to = call->text.writer;
    call->text.weights = &call->model->weights;
    put_general(call, &call->text, call->model->family->arch, "model");
    QN_TRY(qn_model_export(&call->keys, call->model, call->source, to, err));
    for (size_t i = 0; i < call->keys.n_notes; i++)
        qn_log(call->opts->log, call->opts->log_arg, QN_LOG_WARNING, "%s", call->keys.notes[i]);
    qn_sample_opts defaults;
    QN_TRY(qn_sample_defaults_read(&defaults, call->source, call->opts->log, call->opts->log_arg,
                                   err));
    qn_sample_defaults_write(to, &defaults);
    const qn_tokenizer_export tokenizer = {.to = to,
                                           .source = call->source,
                                           .n_vocab = call->model->hparams->vocab,
                                           .log = call->opts->log,
                                           .log_arg = call->opts->log_arg};
    return qn_tokenizer_export_keys(&tokenizer, err);
}

static qn_status declare_image(convert_call *call, const char *out_path, qn_err *err) {
    QN_TRY(image_path(&call->image.path, out_path, err));
    QN_TRY(qn_gguf_check_place(call->image.path, err));
    QN_TRY(qn_gguf_writer_create(&call->image.writer, err));
    QN_TRY(qn_tower_init(&call->tower, call->source, call->model->hparams->width,
                         call->image.writer, err));
    call->image.weights = &call->tower.weights;
    put_general(call, &call->image, "clip", "mmproj");
    return QN_OK;
}

// --- tensors -------------------------------------------------------------------------------------

static qn_status declare_tensors(convert_call *call, const output *o, qn_err *err) {
    for (size_t i = 0; i < o->weights->n; i++) {
        const qn_weight *w = &o->weights->items[i];
        const qn_type type = qn_stream_type(w, o->wanted);
        int64_t bytes;
        if (!qn_type_bytes(&bytes, type, w->n) ||
            !qn_i64_add(&call->making.total, call->making.total, bytes))
            return QN_FAIL(err, LIMIT, "tensor %s: too large", w->name);
        qn_stream_declare(o->writer, w, type);
    }
    return QN_OK;
}

static qn_status write_tensors(convert_call *call, const output *o, qn_err *err) {
    for (size_t i = 0; i < o->weights->n; i++) {
        const qn_weight *w = &o->weights->items[i];
        QN_TRY(qn_stream_write(o->writer, w, qn_stream_type(w, o->wanted), call->source,
                               &call->making, err));
    }
    return QN_OK;
}

static void declare_divisors(convert_call *call) {
    if (call->keys.n_divisors == 0) return;
    qn_gguf_add_tensor(call->text.writer, &(qn_gguf_tensor){.name = "rope_freqs.weight",
                                                            .type = QN_TYPE_F32,
                                                            .n_dims = 1,
                                                            .dims = {call->keys.n_divisors}});
    call->making.total += call->keys.n_divisors * (int64_t)sizeof(float);
}

static qn_status write_divisors(convert_call *call, qn_err *err) {
    const qn_type_info *f32 = qn_type_get(QN_TYPE_F32);
    const int64_t n = call->keys.n_divisors;
    if (n == 0) return QN_OK;
    const size_t bytes = (size_t)n * (size_t)f32->bytes;
    void *packed = qn_alloc(bytes, 1);
    if (!packed) return QN_NOMEM(err, "rope_freqs.weight");
    f32->pack(packed, call->keys.divisors, n, NULL);
    const qn_status status = qn_gguf_write(call->text.writer, packed, bytes, err);
    qn_free(packed);
    return status ? status : qn_making_add(&call->making, (int64_t)bytes, err);
}

// --- all of it -----------------------------------------------------------------------------------

static qn_status open_model(convert_call *call, const char *folder, qn_err *err) {
    char names[256];
    QN_TRY(qn_source_open(&call->source, folder, err));
    if (qn_source_get_kind(call->source) == QN_SOURCE_GGUF)
        return QN_FAIL(err, ARGUMENT,
                       "%s: is GGUF already; a checkpoint has config.json and "
                       "safetensors files",
                       folder);
    QN_TRY(qn_model_create(&call->model, call->source, err));
    const size_t n = qn_model_unused(call->model, call->source, names, sizeof names);
    if (n > 0)
        qn_log(call->opts->log, call->opts->log_arg, QN_LOG_WARNING,
               "%zu tensors have no place in %s and are left out: %s%s", n,
               call->model->family->arch, names, n > 4 ? ", ..." : "");
    if (!qn_vision_is_inside(call->source) &&
        qn_source_find_key(call->source, "vision_config.model_type"))
        qn_log(call->opts->log, call->opts->log_arg, QN_LOG_WARNING,
               "a vision tower of this kind is not supported: only the "
               "text model is converted");
    return model_name(&call->name, call->source, err);
}

// Both files or none.
static qn_status put_in_place(convert_call *call, bool has_image, qn_err *err) {
    QN_TRY(qn_gguf_prepare(call->text.writer, err));
    if (!has_image) return qn_gguf_place(call->text.writer, err);
    QN_TRY(qn_gguf_prepare(call->image.writer, err));
    QN_TRY(qn_gguf_place(call->image.writer, err));
    QN_TRY(qn_gguf_place(call->text.writer, err));
    qn_log(call->opts->log, call->opts->log_arg, QN_LOG_INFO, "the vision tower is in %s",
           call->image.path);
    return QN_OK;
}

static qn_status convert(convert_call *call, const char *folder, const char *out_path,
                         qn_err *err) {
    QN_TRY(choose_type(call, err));
    QN_TRY(qn_gguf_check_place(out_path, err));
    QN_TRY(open_model(call, folder, err));
    QN_TRY(qn_gguf_writer_create(&call->text.writer, err));
    QN_TRY(declare_text(call, err));
    declare_divisors(call);
    QN_TRY(declare_tensors(call, &call->text, err));
    const bool has_image = qn_vision_is_inside(call->source);
    if (has_image) {
        QN_TRY(declare_image(call, out_path, err));
        QN_TRY(declare_tensors(call, &call->image, err));
        QN_TRY(qn_gguf_begin(call->image.writer, call->image.path, err));
    }
    QN_TRY(qn_gguf_begin(call->text.writer, out_path, err));
    QN_TRY(write_divisors(call, err));
    QN_TRY(write_tensors(call, &call->text, err));
    if (has_image) QN_TRY(write_tensors(call, &call->image, err));
    return put_in_place(call, has_image, err);
}

const char *qn_convert_type(size_t i) { return i < N_FILE_TYPES ? file_types[i].name : NULL; }

qn_status qn_convert(const char *folder, const char *out_path, const qn_convert_opts *opts,
                     qn_err *err) {
    qn_convert_opts o;
    if (!folder || !out_path) return QN_FAIL(err, ARGUMENT, "qn_convert: NULL");
    QN_TRY(QN_OPTS_READ(qn_convert_opts, &o, opts, err));
    convert_call call = {.opts = &o};
    call.making =
        (qn_making){.progress = call.opts->progress, .progress_arg = call.opts->progress_arg};
    const qn_status status = convert(&call, folder, out_path, err);
    qn_gguf_writer_destroy(call.text.writer);
    qn_gguf_writer_destroy(call.image.writer);
    qn_tower_deinit(&call.tower);
    qn_model_destroy(call.model);
    qn_source_close(call.source);
    qn_free(call.image.path);
    qn_free(call.name);
    return status;
}

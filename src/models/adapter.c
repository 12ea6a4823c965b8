#include "models/adapter.h"

#include "core/mem.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct qn_adapters {
    qn_adapter_file *files; // (n)
    size_t n;
    int64_t n_sets;
};

// --- opening -------------------------------------------------------------------------------------

// Sets are 0, 1, ... without gaps.
static qn_status check_sets(qn_adapters *adapters, qn_err *err) {
    for (size_t i = 0; i < adapters->n; i++) {
        const int64_t set = adapters->files[i].set;
        if (set < 0 || set >= QN_ADAPTER_SETS)
            return QN_FAIL(err, ARGUMENT, "%s: set %lld, want 1 to %d", adapters->files[i].path,
                           (long long)set + 1, QN_ADAPTER_SETS);
        if (set >= adapters->n_sets) adapters->n_sets = set + 1;
    }
    for (int64_t set = 0; set < adapters->n_sets; set++) {
        bool is_there = false;
        for (size_t i = 0; i < adapters->n; i++) is_there |= adapters->files[i].set == set;
        if (!is_there)
            return QN_FAIL(err, ARGUMENT, "no adapter is in set %lld of %lld", (long long)set + 1,
                           (long long)adapters->n_sets);
    }
    return QN_OK;
}

qn_status qn_adapters_open(qn_adapters **out, const qn_adapter *list, size_t n, qn_err *err) {
    qn_adapters *adapters = qn_alloc(1, sizeof *adapters);
    if (!adapters) return QN_NOMEM(err, "adapters");
    adapters->files = qn_alloc(n, sizeof *adapters->files);
    qn_status status = adapters->files ? QN_OK : QN_NOMEM(err, "adapters");
    for (size_t i = 0; i < n && !status; i++, adapters->n++) {
        status = qn_adapter_file_open(&adapters->files[i], &list[i], err);
        if (status) qn_adapter_file_deinit(&adapters->files[i]);
        if (status) break;
    }
    if (!status) status = check_sets(adapters, err);
    if (status)
        qn_adapters_close(adapters);
    else
        *out = adapters;
    return status;
}

void qn_adapters_close(qn_adapters *adapters) {
    if (!adapters) return;
    for (size_t i = 0; i < adapters->n; i++) qn_adapter_file_deinit(&adapters->files[i]);
    qn_free(adapters->files);
    qn_free(adapters);
}

int64_t qn_adapters_sets(const qn_adapters *adapters) { return adapters ? adapters->n_sets : 0; }

const qn_adapter_file *qn_adapters_file(const qn_adapters *adapters, size_t i) {
    return i < adapters->n ? &adapters->files[i] : NULL;
}

qn_status qn_adapters_check_arch(const qn_adapters *adapters, const char *arch, qn_err *err) {
    for (size_t i = 0; i < adapters->n; i++) {
        const qn_adapter_file *file = &adapters->files[i];
        if (!file->is_gguf) continue; // a PEFT folder does not say
        const qn_key *key = qn_source_find_key(file->source, "general.architecture");
        if (!key || key->kind != QN_KEY_STRING)
            return QN_FAIL(err, FORMAT, "%s: no key general.architecture", file->path);
        if (!qn_str_is(key->as.s, arch))
            return QN_FAIL(err, FORMAT, "%s: an adapter of %.64s, the model is %s", file->path,
                           key->as.s.data, arch);
    }
    return QN_OK;
}

// --- the stacks of a matrix ----------------------------------------------------------------------

typedef struct stacks {
    qn_weight weight; // a copy: the list of weights grows
    bool is_gguf;     // the model
    int64_t n_in, n_out, n_sets, rank;
    float *a, *b; // (sets, rank, I), (sets, O, rank)
} stacks;

// Ranks of the files in a set come one after the other.
static qn_status measure(stacks *s, const qn_adapters *adapters, qn_err *err) {
    for (int64_t set = 0; set < adapters->n_sets; set++) {
        int64_t rank = 0;
        for (size_t i = 0; i < adapters->n; i++) {
            qn_adapter_pair pair;
            if (adapters->files[i].set != set) continue;
            QN_TRY(qn_adapter_file_find(&pair, &adapters->files[i], &s->weight, err));
            rank += pair.rank;
        }
        if (rank > QN_ADAPTER_RANK)
            return QN_FAIL(err, LIMIT,
                           "%s: the adapters of set %lld have ranks of %lld together, "
                           "at most %d",
                           s->weight.name, (long long)set + 1, (long long)rank, QN_ADAPTER_RANK);
        if (rank > s->rank) s->rank = rank;
    }
    return QN_OK;
}

static qn_status read_floats(float **out, const qn_adapter_file *file, const qn_tensor *t,
                             qn_err *err) {
    const int64_t n = t->dims[0] * t->dims[1]; // the source checked it
    qn_weight_part part = {.tensor = t, .bytes = t->bytes};
    const qn_weight whole = {
        .name = t->name.data, .type = QN_TYPE_F32, .n = n, .parts = &part, .n_parts = 1};
    float *values = qn_alloc((size_t)n, sizeof *values);
    if (!values) return QN_NOMEM(err, t->name.data);
    qn_status status = qn_weight_read_f32(values, &whole, file->source, 0, n, err);
    for (int64_t i = 0; i < n && !status; i++) {
        if (!isfinite(values[i]))
            status = QN_FAIL(err, FORMAT, "%s: tensor %s: value %lld is %g", file->path,
                             t->name.data, (long long)i, (double)values[i]);
    }
    if (status)
        qn_free(values);
    else
        *out = values;
    return status;
}

// Where row or column i of the adapter goes in the model: files of the other kind may have another
// order.
static int64_t place_of(const stacks *s, const qn_adapter_file *file, bool is_columns, int64_t i) {
    const qn_order *order = &s->weight.across;
    if (order->outer == 0 || order->is_columns != is_columns || file->is_gguf == s->is_gguf)
        return i;
    return qn_order_source(order, i);
}

// In a model of GGUF, row i is the checkpoint's row place_of(i); in a checkpoint it is the other
// way round.
static void put_pair(stacks *s, const qn_adapter_file *file, const qn_adapter_pair *pair,
                     int64_t at, const float *a, const float *b) {
    const double scale = qn_adapter_scale(file, pair->rank);
    float *to_a = s->a + (file->set * s->rank + at) * s->n_in;
    float *to_b = s->b + file->set * s->n_out * s->rank + at;
    for (int64_t i = 0; i < s->n_in; i++) {
        const int64_t other = place_of(s, file, true, i);
        const int64_t to = s->is_gguf ? i : other, from = s->is_gguf ? other : i;
        for (int64_t j = 0; j < pair->rank; j++) to_a[j * s->n_in + to] = a[j * s->n_in + from];
    }
    for (int64_t o = 0; o < s->n_out; o++) {
        const int64_t other = place_of(s, file, false, o);
        const int64_t to = s->is_gguf ? o : other, from = s->is_gguf ? other : o;
        for (int64_t j = 0; j < pair->rank; j++)
            to_b[to * s->rank + j] = (float)((double)b[from * pair->rank + j] * scale);
    }
}

static qn_status add_pair(stacks *s, qn_adapter_file *file, int64_t *at, qn_err *err) {
    qn_adapter_pair pair;
    float *a = NULL, *b = NULL;
    QN_TRY(qn_adapter_file_find(&pair, file, &s->weight, err));
    if (!pair.a) return QN_OK;
    const double scale = qn_adapter_scale(file, pair.rank);
    if (!isfinite(scale) || fabs(scale) > 1e9)
        return QN_FAIL(err, FORMAT, "%s: tensor %s: scale %g", file->path, pair.b->name.data,
                       scale);
    qn_status status = read_floats(&a, file, pair.a, err);
    if (!status) status = read_floats(&b, file, pair.b, err);
    if (!status) put_pair(s, file, &pair, *at, a, b);
    *at += pair.rank;
    file->is_used[pair.a - qn_source_tensor(file->source, 0)] = true;
    file->is_used[pair.b - qn_source_tensor(file->source, 0)] = true;
    qn_free(a);
    qn_free(b);
    return status;
}

static qn_status fill(stacks *s, const qn_adapters *adapters, qn_err *err) {
    for (int64_t set = 0; set < adapters->n_sets; set++) {
        int64_t at = 0;
        for (size_t i = 0; i < adapters->n; i++) {
            if (adapters->files[i].set == set) QN_TRY(add_pair(s, &adapters->files[i], &at, err));
        }
    }
    return QN_OK;
}

qn_status qn_adapters_bind(qn_adapted *out, qn_adapters *adapters, qn_binder *binder,
                           const char *weight, qn_err *err) {
    uint32_t index;
    char name[320];
    qn_adapted bound = {QN_NO_VALUE, QN_NO_VALUE};
    if (!qn_map_find(&binder->weights->by_name, weight, strlen(weight), &index))
        return QN_FAIL(err, ARGUMENT, "the model has no weight %s", weight);
    stacks s = {.weight = binder->weights->items[index],
                .is_gguf = qn_source_get_kind(binder->source) == QN_SOURCE_GGUF,
                .n_sets = adapters->n_sets};
    QN_TRY(measure(&s, adapters, err));
    if (s.rank > 0) {
        s.n_out = s.weight.shape.dims[0].n;
        s.n_in = s.weight.shape.dims[1].n;
        snprintf(name, sizeof name, "%s.lora_a", weight);
        QN_TRY(qn_bind_own(&bound.a, &s.a, binder, name,
                           (const int64_t[]){s.n_sets, s.rank, s.n_in}, err));
        snprintf(name, sizeof name, "%s.lora_b", weight);
        QN_TRY(qn_bind_own(&bound.b, &s.b, binder, name,
                           (const int64_t[]){s.n_sets, s.n_out, s.rank}, err));
        if (s.a && s.b) QN_TRY(fill(&s, adapters, err)); // else an earlier graph did
    }
    *out = bound;
    return QN_OK;
}

// --- what is left over ---------------------------------------------------------------------------

// Why a tensor changes nothing, by a part of its name.
static const struct {
    const char *part, *why;
} reasons[] = {
    {"_exps.", "adapters of experts are not supported"},
    {".experts", "adapters of experts are not supported"},
    {"embed", "adapters of the embedding are not supported"},
    {"token_embd", "adapters of the embedding are not supported"},
    {"lm_head", "adapters of the output matrix are not supported"},
    {"output.weight", "adapters of the output matrix are not supported"},
};

static qn_status refuse_tensor(const qn_adapter_file *file, const char *name, const char *arch,
                               qn_err *err) {
    if (!strstr(name, "lora_"))
        return QN_FAIL(err, UNSUPPORTED, "%s: tensor %s: not a pair of low rank", file->path, name);
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
        const bool is_attention = strstr(name, "attn_output.weight") != NULL;
        if (strstr(name, reasons[i].part) && !is_attention)
            return QN_FAIL(err, UNSUPPORTED, "%s: tensor %s: %s", file->path, name, reasons[i].why);
    }
    return QN_FAIL(err, FORMAT, "%s: tensor %s: the model (%s) has no such matrix", file->path,
                   name, arch);
}

qn_status qn_adapters_check_used(const qn_adapters *adapters, const char *arch, qn_err *err) {
    for (size_t i = 0; i < adapters->n; i++) {
        const qn_adapter_file *file = &adapters->files[i];
        for (size_t k = 0; k < qn_source_n_tensors(file->source); k++) {
            if (!file->is_used[k])
                return refuse_tensor(file, qn_source_tensor(file->source, k)->name.data, arch, err);
        }
    }
    return QN_OK;
}

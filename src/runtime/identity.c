#include "runtime/identity.h"

#include "core/mem.h"

#include <string.h>
#include <xxhash.h>

enum { SAMPLE = 64, N_SAMPLES = 2 };

static uint64_t mix(uint64_t hash, const void *bytes, size_t n) {
    return XXH3_64bits_withSeed(bytes, n, hash);
}

static uint64_t hash_times(const qn_source *source) {
    int64_t file[2];
    uint64_t hash = 0;
    for (size_t i = 0; qn_source_file_info(source, i, &file[0], &file[1]); i++)
        hash = mix(hash, file, sizeof file);
    return hash;
}

static uint64_t hash_table(const qn_source *source) {
    uint64_t hash = 0;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor *t = qn_source_tensor(source, i);
        const int64_t facts[] = {t->type, t->n_dims, t->i_file, t->bytes, t->offset};
        hash = mix(hash, t->name.data, t->name.size);
        hash = mix(hash, facts, sizeof facts);
        hash = mix(hash, t->dims, (size_t)t->n_dims * sizeof t->dims[0]);
    }
    return hash;
}

typedef struct sampling {
    const qn_source *source;
    uint64_t *hashes;    // (n_tensors)
    qn_status *statuses; // (n_tensors)
} sampling;

// The first bytes of a tensor and those in its middle.
static qn_status sample_tensor(uint64_t *hash, const qn_source *source, size_t i, qn_err *err) {
    const qn_tensor *t = qn_source_tensor(source, i);
    unsigned char bytes[SAMPLE];
    *hash = i;
    for (int k = 0; k < N_SAMPLES; k++) {
        const int64_t at = t->bytes / N_SAMPLES * k, left = t->bytes - at;
        const size_t n = (size_t)(left < SAMPLE ? left : SAMPLE);
        QN_TRY(qn_source_read(source, t, at, bytes, n, err));
        *hash = mix(*hash, bytes, n);
    }
    return QN_OK;
}

static void sample_piece(void *arg, int64_t i) {
    sampling *s = arg;
    s->statuses[i] = sample_tensor(&s->hashes[i], s->source, (size_t)i, NULL);
}

static qn_status hash_samples(uint64_t *out, const qn_source *source, qn_pool *pool, qn_err *err) {
    const size_t n = qn_source_n_tensors(source);
    sampling s = {source, qn_alloc(n, sizeof *s.hashes), qn_alloc(n, sizeof *s.statuses)};
    qn_status status = s.hashes && s.statuses ? QN_OK : QN_NOMEM(err, "the identity of a source");
    if (!status) qn_pool_run(pool, (int64_t)n, sample_piece, &s);
    for (size_t i = 0; i < n && !status; i++) { // what failed is read again, for its message
        if (s.statuses[i]) status = sample_tensor(&s.hashes[i], source, i, err);
    }
    if (!status) *out = mix(0, s.hashes, n * sizeof *s.hashes);
    qn_free(s.hashes);
    qn_free(s.statuses);
    return status;
}

qn_status qn_identity_of(qn_identity *out, const qn_source *source, qn_pool *pool, qn_err *err) {
    qn_identity id = {.bytes = qn_source_file_bytes(source),
                      .times = hash_times(source),
                      .table = hash_table(source)};
    QN_TRY(hash_samples(&id.samples, source, pool, err));
    *out = id;
    return QN_OK;
}

static uint64_t mix_string(uint64_t hash, qn_str s) {
    hash = mix(hash, &s.size, sizeof s.size);
    return mix(hash, s.data, s.size);
}

static uint64_t mix_element(uint64_t hash, const qn_key *key, size_t i) {
    const bool b = key->element == QN_KEY_BOOL && qn_key_bool_at(key, i);
    const double f = key->element == QN_KEY_FLOAT ? qn_key_float_at(key, i) : b;
    const int64_t n = key->element == QN_KEY_INT ? qn_key_int_at(key, i) : 0;
    if (key->element == QN_KEY_STRING) return mix_string(hash, qn_key_string_at(key, i));
    hash = mix(hash, &f, sizeof f);
    return mix(hash, &n, sizeof n);
}

static uint64_t mix_key(uint64_t hash, const qn_key *key) {
    const double f = key->kind == QN_KEY_FLOAT  ? key->as.f
                     : key->kind == QN_KEY_BOOL ? (double)key->as.b
                                                : 0;
    const int64_t n = key->kind == QN_KEY_INT ? key->as.i : key->kind;
    hash = mix_string(hash, key->name);
    if (key->kind == QN_KEY_STRING) return mix_string(hash, key->as.s);
    hash = mix(hash, &f, sizeof f);
    hash = mix(hash, &n, sizeof n);
    for (size_t i = 0; key->kind == QN_KEY_ARRAY && i < key->n; i++)
        hash = mix_element(hash, key, i);
    return hash;
}

qn_status qn_identity_hash(uint64_t *out, const qn_source *source, qn_pool *pool, qn_err *err) {
    uint64_t hash = hash_table(source), samples;
    QN_TRY(hash_samples(&samples, source, pool, err));
    hash = mix(hash, &samples, sizeof samples);
    for (size_t i = 0; i < qn_source_n_keys(source); i++)
        hash = mix_key(hash, qn_source_key(source, i));
    *out = hash;
    return QN_OK;
}

uint64_t qn_identity_mix(uint64_t before, uint64_t hash, double scale) {
    hash = mix(before, &hash, sizeof hash);
    return mix(hash, &scale, sizeof scale);
}

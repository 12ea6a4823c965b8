// Values of keys: how they lie in memory, and the access to elements of arrays.
#include "formats/source_build.h"

#include <assert.h>

static const qn_storage_info infos[QN_STORED_COUNT] = {
    [QN_STORED_U8] = {"u8", "array of u8", QN_KEY_INT, 1},
    [QN_STORED_I8] = {"i8", "array of i8", QN_KEY_INT, 1},
    [QN_STORED_U16] = {"u16", "array of u16", QN_KEY_INT, 2},
    [QN_STORED_I16] = {"i16", "array of i16", QN_KEY_INT, 2},
    [QN_STORED_U32] = {"u32", "array of u32", QN_KEY_INT, 4},
    [QN_STORED_I32] = {"i32", "array of i32", QN_KEY_INT, 4},
    [QN_STORED_F32] = {"f32", "array of f32", QN_KEY_FLOAT, 4},
    [QN_STORED_BOOL] = {"bool", "array of bool", QN_KEY_BOOL, 1},
    [QN_STORED_STRING] = {"string", "array of string", QN_KEY_STRING, 8},
    [QN_STORED_ARRAY] = {"array", "array of array", QN_KEY_ARRAY, 12},
    [QN_STORED_U64] = {"u64", "array of u64", QN_KEY_INT, 8},
    [QN_STORED_I64] = {"i64", "array of i64", QN_KEY_INT, 8},
    [QN_STORED_F64] = {"f64", "array of f64", QN_KEY_FLOAT, 8},
};

const qn_storage_info *qn_storage_get(qn_storage storage) { return &infos[storage]; }

static uint64_t load(const void *at, int bytes) {
    const unsigned char *p = at;
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--) value = value << 8 | p[i];
    return value;
}

int64_t qn_storage_int(qn_storage storage, const void *at) {
    const uint64_t value = load(at, infos[storage].bytes);
    // clang-format off
    switch (storage) {
    case QN_STORED_I8:  return (int8_t)value;
    case QN_STORED_I16: return (int16_t)value;
    case QN_STORED_I32: return (int32_t)value;
    default:            return (int64_t)value;
    }
    // clang-format on
}

double qn_storage_float(qn_storage storage, const void *at) {
    const uint64_t bits = load(at, infos[storage].bytes);
    if (storage == QN_STORED_F32) {
        const uint32_t half = (uint32_t)bits;
        float value;
        memcpy(&value, &half, sizeof value);
        return (double)value;
    }
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const char *element(const qn_key *key, qn_key_kind kind, size_t i) {
    assert(qn_key_is_array_of(key, kind) && i < key->n);
    (void)kind;
    return (const char *)key->as.data + i * (size_t)infos[key->storage].bytes;
}

int64_t qn_key_int_at(const qn_key *key, size_t i) {
    return qn_storage_int(key->storage, element(key, QN_KEY_INT, i));
}

double qn_key_float_at(const qn_key *key, size_t i) {
    if (key->element == QN_KEY_INT) return (double)qn_key_int_at(key, i);
    return qn_storage_float(key->storage, element(key, QN_KEY_FLOAT, i));
}

bool qn_key_bool_at(const qn_key *key, size_t i) { return *element(key, QN_KEY_BOOL, i) != 0; }

qn_str qn_key_string_at(const qn_key *key, size_t i) {
    assert(qn_key_is_array_of(key, QN_KEY_STRING) && i < key->n);
    return ((const qn_str *)key->as.data)[i];
}

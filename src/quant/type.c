#include "quant/type.h"

#include "core/mem.h"
#include "quant/blocks.h"

#include <assert.h>
#include <string.h>

static const qn_type_info infos[QN_TYPE_COUNT] = {
#define FULL(file) .unpack = qn_##file##_unpack, .dot = qn_##file##_dot, .pack = qn_##file##_pack
#define NAMED      .unpack = NULL, .dot = NULL, .pack = NULL
#define TYPE(id, gguf, values, size, dtype, support)                                               \
    [QN_TYPE_##id] = {.name = #id,                                                                 \
                      .gguf_id = gguf,                                                             \
                      .block = values,                                                             \
                      .bytes = size,                                                               \
                      .safetensors = dtype,                                                        \
                      support},
#include "quant/types.def"
#undef TYPE
#undef NAMED
#undef FULL
};

#define TYPE(name, gguf, block, bytes, safetensors, support)                                       \
    static_assert((block) > 0 && (block) <= QN_VALUES_MAX && (bytes) > 0, #name);
#include "quant/types.def"
#undef TYPE

const qn_type_info *qn_type_get(qn_type type) {
    assert((unsigned)type < QN_TYPE_COUNT);
    return &infos[type];
}

bool qn_type_from_gguf(qn_type *out, uint32_t id) {
    for (int i = 0; i < QN_TYPE_COUNT; i++) {
        if (infos[i].gguf_id < 0 || (uint32_t)infos[i].gguf_id != id) continue;
        *out = (qn_type)i;
        return true;
    }
    return false;
}

bool qn_type_from_safetensors(qn_type *out, const char *dtype) {
    for (int i = 0; i < QN_TYPE_COUNT; i++) {
        if (!infos[i].safetensors || strcmp(infos[i].safetensors, dtype) != 0) continue;
        *out = (qn_type)i;
        return true;
    }
    return false;
}

static char upper(char c) { return c >= 'a' && c <= 'z' ? (char)(c - 'a' + 'A') : c; }

static bool is_name(const char *name, const char *text) {
    while (*name && *name == upper(*text)) name++, text++;
    return !*name && !*text;
}

bool qn_type_from_name(qn_type *out, const char *name) {
    for (int i = 0; i < QN_TYPE_COUNT; i++) {
        if (!is_name(infos[i].name, name)) continue;
        *out = (qn_type)i;
        return true;
    }
    return false;
}

bool qn_type_bytes(int64_t *out, qn_type type, int64_t n) {
    const qn_type_info *info = qn_type_get(type);
    return n >= 0 && n % info->block == 0 && qn_i64_mul(out, n / info->block, info->bytes);
}

bool qn_type_is_supported(qn_type type) { return qn_type_get(type)->unpack != NULL; }

#include "tokenizer/charsmap.h"

#include "core/mem.h"

static uint32_t read_u32(const unsigned char *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

qn_status qn_charsmap_init(qn_charsmap *out, const void *blob, size_t size, qn_err *err) {
    const unsigned char *bytes = blob;
    if (size == 0) {
        *out = (qn_charsmap){0};
        return QN_OK;
    }
    if (size < 4)
        return QN_FAIL(err, FORMAT, "precompiled charsmap: %zu bytes, want 4 or more", size);
    const size_t trie_bytes = read_u32(bytes);
    if (trie_bytes > size - 4 || trie_bytes % 4 != 0 || trie_bytes == 0)
        return QN_FAIL(err, FORMAT, "precompiled charsmap: a trie of %zu bytes in a table of %zu",
                       trie_bytes, size);
    qn_charsmap map = {.n_units = trie_bytes / 4, .texts_size = size - 4 - trie_bytes};
    map.units = qn_alloc(map.n_units, sizeof *map.units);
    map.texts = qn_alloc(map.texts_size + 1, 1);
    if (!map.units || !map.texts) {
        qn_charsmap_deinit(&map);
        return QN_NOMEM(err, "precompiled charsmap");
    }
    for (size_t i = 0; i < map.n_units; i++) map.units[i] = read_u32(bytes + 4 + 4 * i);
    memcpy(map.texts, bytes + 4 + trie_bytes, map.texts_size);
    *out = map;
    return QN_OK;
}

void qn_charsmap_deinit(qn_charsmap *map) {
    qn_free(map->units);
    qn_free(map->texts);
    *map = (qn_charsmap){0};
}

static size_t offset_of(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 0x200) >> 6); }

bool qn_charsmap_find(const qn_charsmap *map, qn_str text, bool longest, size_t *n, qn_str *to) {
    if (map->n_units == 0) return false;
    bool found = false;
    size_t at = offset_of(map->units[0]);
    for (size_t i = 0; i < text.size; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        at ^= c;
        if (at >= map->n_units) break;
        const uint32_t unit = map->units[at];
        if ((unit & 0x800000ffu) != c) break;
        at ^= offset_of(unit);
        if (!(unit & 0x100)) continue;
        if (at >= map->n_units) break;
        const size_t place = map->units[at] & 0x7fffffffu;
        if (place >= map->texts_size) break;
        *to = qn_str_of(map->texts + place);
        *n = i + 1;
        found = true;
        if (!longest) break;
    }
    return found;
}

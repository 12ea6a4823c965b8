#include "core/map.h"

#include "core/mem.h"

#include <string.h>
#include <sys/random.h>
#include <xxhash.h>

static uint32_t hash_of(const qn_map *map, const char *key, size_t size) {
    return (uint32_t)(XXH3_64bits_withSeed(key, size, map->seed) >> 32);
}

// The slot that holds the key, or the free slot where it belongs. cap > n always, so it ends.
static qn_map_slot *slot_of(const qn_map *map, const char *key, size_t size, uint32_t hash) {
    for (size_t i = hash & (map->cap - 1);; i = (i + 1) & (map->cap - 1)) {
        qn_map_slot *slot = &map->slots[i];
        if (!slot->key) return slot;
        if (slot->hash == hash && slot->size == size && memcmp(slot->key, key, size) == 0)
            return slot;
    }
}

// Room for `n` entries. False when memory is short.
static bool reserve(qn_map *map, size_t n) {
    size_t want;
    if (!qn_size_mul(&want, n, 2)) return false; // at most half full
    if (want < map->cap) return true;
    qn_map bigger = {.n = map->n, .cap = 16, .seed = map->seed};
    if (!map->slots && getrandom(&bigger.seed, sizeof bigger.seed, GRND_NONBLOCK) < 0)
        bigger.seed = 0x51e7ca5e; // no entropy yet: a fixed seed still works
    while (bigger.cap <= want) {
        if (!qn_size_mul(&bigger.cap, bigger.cap, 2)) return false;
    }
    bigger.slots = qn_alloc(bigger.cap, sizeof *bigger.slots);
    if (!bigger.slots) return false;
    for (size_t i = 0; i < map->cap; i++) {
        const qn_map_slot *old = &map->slots[i];
        if (old->key) *slot_of(&bigger, old->key, old->size, old->hash) = *old;
    }
    qn_free(map->slots);
    *map = bigger;
    return true;
}

bool qn_map_add(qn_map *map, const char *key, size_t size, uint32_t value, uint32_t *old) {
    if (!reserve(map, map->n + 1)) return false;
    const uint32_t hash = hash_of(map, key, size);
    qn_map_slot *slot = slot_of(map, key, size, hash);
    if (!slot->key) {
        *slot = (qn_map_slot){.key = key, .size = size, .value = value, .hash = hash};
        map->n++;
    }
    if (old) *old = slot->value;
    return true;
}

bool qn_map_find(const qn_map *map, const char *key, size_t size, uint32_t *value) {
    if (map->n == 0) return false;
    const qn_map_slot *slot = slot_of(map, key, size, hash_of(map, key, size));
    if (!slot->key) return false;
    *value = slot->value;
    return true;
}

void qn_map_deinit(qn_map *map) {
    qn_free(map->slots);
    *map = (qn_map){0};
}

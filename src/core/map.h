// A hash map from byte strings to uint32 values (indices into the caller's arrays).
//
// The map keeps pointers to the keys, it does not copy them: they must stay where they are. The
// hash is seeded at random per map, so that a hostile file cannot choose keys that collide; nothing
// iterates over a map, so the seed never shows in a result.
#ifndef QN_CORE_MAP_H
#define QN_CORE_MAP_H

#include "quern.h"

typedef struct qn_map_slot {
    const char *key; // borrowed; NULL: free slot
    size_t size;
    uint32_t value;
    uint32_t hash;
} qn_map_slot;

// Caller storage; `{0}` is a valid empty map.
typedef struct qn_map {
    qn_map_slot *slots;
    size_t n, cap; // cap is a power of two
    uint64_t seed;
} qn_map;

// Adds the key, or leaves an existing entry as it is; *old (may be NULL) is the value now
// stored. False when memory is short. Compare *old with `value` to detect a duplicate.
QN_MUST_CHECK bool qn_map_add(qn_map *map, const char *key, size_t size, uint32_t value,
                              uint32_t *old);
// True and *value if the key is there.
bool qn_map_find(const qn_map *map, const char *key, size_t size, uint32_t *value);
void qn_map_deinit(qn_map *map);

#endif

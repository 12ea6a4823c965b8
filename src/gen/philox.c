#include "gen/philox.h"

#include <string.h>

static inline qn_philox make_block(qn_philox counter, uint64_t key) {
    const uint64_t m0 = 0xD2511F53, m1 = 0xCD9E8D57;
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    qn_philox s = counter;
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = m0 * s.v[0], p1 = m1 * s.v[2];
        s = (qn_philox){{(uint32_t)(p1 >> 32) ^ s.v[1] ^ k0, (uint32_t)p1,
                         (uint32_t)(p0 >> 32) ^ s.v[3] ^ k1, (uint32_t)p0}};
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    return s;
}

qn_philox qn_philox_block(qn_philox counter, uint64_t key) { return make_block(counter, key); }

void qn_philox_fill(uint8_t *to, size_t n, qn_philox counter, uint64_t key) {
    for (size_t at = 0; at < n; counter.v[0]++) {
        const qn_philox block = make_block(counter, key);
        uint8_t bytes[16];
        for (int i = 0; i < 16; i++) bytes[i] = (uint8_t)(block.v[i / 4] >> i % 4 * 8);
        const size_t part = n - at < 16 ? n - at : 16;
        memcpy(to + at, bytes, part);
        at += part;
    }
}

float qn_philox_uniform(uint64_t seed, uint64_t position, uint32_t completion, uint32_t draw) {
    const qn_philox counter = {{(uint32_t)position, (uint32_t)(position >> 32), completion, draw}};
    return (float)(qn_philox_block(counter, seed).v[0] >> 8) * 0x1p-24f;
}

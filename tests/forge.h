// Files of a cache folder with anything in them and the right checksums all the same.
#ifndef QN_TESTS_FORGE_H
#define QN_TESTS_FORGE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// The text of a plan's file with its checksum; `key` has 32 digits. free() it.
static inline char *forge_plan(size_t *size, const char *key, const char *text, size_t n) {
    char *file = malloc(n + 128);
    if (!file) abort();
    const int head = snprintf(file, 128, "quern plan 1 %.32s %016llx\n", key,
                              (unsigned long long)XXH3_64bits(text, n));
    memcpy(file + head, text, n);
    *size = (size_t)head + n;
    return file;
}

// Puts the right sums into a file of packed weights whose head (packs_file.h) is a good one. False
// if it is not.
static inline int forge_packs(unsigned char *file, size_t size) {
    enum { PAGE = 4096, CHUNK = 2 << 20 };
    const size_t n_head = strnlen((const char *)file, size);
    const size_t head = n_head + (8 - n_head % 8);
    const char *line = strstr((const char *)file, "\nweights ");
    if (n_head == size || !line || size < PAGE) return 0;
    size_t n_sums = 0, bytes = 0, at = head;
    for (int round = 0; round < 2; round++) { // the first counts
        const size_t begin = (head + (n_sums + 1) * 8 + PAGE - 1) / PAGE * PAGE;
        if (round && begin + bytes != size) return 0;
        for (const char *l = strchr(line + 1, '\n'); l && l[1]; l = strchr(l + 1, '\n')) {
            long long offset, n;
            const char *close = strchr(l, ')'); // of the shape
            if (!close || sscanf(close + 1, "%lld %lld", &offset, &n) != 2) return 0;
            // Only sums of what is in the file can be made.
            if (offset < 0 || n < 0 || (size_t)offset > size || (size_t)n > size) return 0;
            const size_t room = ((size_t)n + PAGE - 1) / PAGE * PAGE;
            if (!round) bytes += room;
            for (size_t k = 0; k < room; k += CHUNK) {
                const size_t here = (size_t)offset + k, part = room - k < CHUNK ? room - k : CHUNK;
                if (!round) n_sums++;
                if (!round) continue;
                if (here > bytes || part > bytes - here) return 0;
                const uint64_t sum = XXH3_64bits_withSeed(file + begin + here, part, here);
                memcpy(file + at, &sum, 8);
                at += 8;
            }
        }
    }
    const uint64_t check = XXH3_64bits(file, at);
    memcpy(file + at, &check, 8);
    return 1;
}

#endif

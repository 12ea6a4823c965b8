#include "hub/digest.h"

#include "core/mem.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 1 << 20, BYTES = 32 };

bool qn_digest_is(const char *text) {
    return text && strlen(text) == 2 * BYTES && strspn(text, "0123456789abcdef") == 2 * BYTES;
}

static qn_status add_blocks(gnutls_hash_hd_t hash, void *block, int fd, int64_t size,
                            const char *shown, qn_progress_fn *progress, void *arg, qn_err *err) {
    for (int64_t at = 0; at < size;) {
        if (progress && !progress(arg, at, size))
            return QN_FAIL(err, STOPPED, "%s: stopped", shown);
        const ssize_t n = pread(fd, block, (size_t)qn_min(BLOCK, size - at), at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return QN_FAIL(err, IO, "%s: cannot read byte %lld of %lld: %s", shown, (long long)at,
                           (long long)size, n ? strerror(errno) : "the file ends there");
        if (gnutls_hash(hash, block, (size_t)n) < 0) return QN_NOMEM(err, "a SHA-256");
        at += n;
    }
    return QN_OK;
}

qn_status qn_digest_file(char out[65], int fd, int64_t size, const char *shown,
                         qn_progress_fn *progress, void *arg, qn_err *err) {
    unsigned char digest[BYTES];
    gnutls_hash_hd_t hash;
    void *block = qn_alloc(BLOCK, 1);
    if (!block || gnutls_hash_init(&hash, GNUTLS_DIG_SHA256) < 0) {
        qn_free(block);
        return QN_NOMEM(err, "a SHA-256");
    }
    const qn_status status = add_blocks(hash, block, fd, size, shown, progress, arg, err);
    gnutls_hash_deinit(hash, digest);
    qn_free(block);
    if (status) return status;
    for (size_t i = 0; i < BYTES; i++) snprintf(out + 2 * i, 3, "%02x", digest[i]);
    return QN_OK;
}

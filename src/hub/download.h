// One file of the network into one file of the disk: by several connections where the server can
// do that, going on where an earlier download ended, checked, and with its name only when it is
// whole.
#ifndef QN_HUB_DOWNLOAD_H
#define QN_HUB_DOWNLOAD_H

#include "hub/web.h"

// What an address has, before it is downloaded.
typedef struct qn_offered {
    char *url; // owned: the last of the redirections
    int64_t size;
    char etag[QN_ETAG], sha256[QN_SHA256_TEXT];
    bool has_ranges; // parts of it can be asked for
} qn_offered;

// Asks. A server that does not say the size, where nobody else said it (`size` 0), or that answers
// with something else than a GGUF file where the name of `path` is one, is an error.
QN_MUST_CHECK qn_status qn_offered_init(qn_offered *out, const qn_web *web, const char *url,
                                        const char *path, int64_t size, qn_err *err);
void qn_offered_deinit(qn_offered *offered);

typedef struct qn_download {
    const qn_web *web;
    const char *url, *path;
    const char *sha256; // that it must have; "": nobody says
    int64_t size;       // the same
    // Bytes of this file that are there, of `size`; false stops. `stage` is told once the sum is
    // computed. NULL: nothing is called.
    qn_progress_fn *progress;
    void (*stage)(void *arg, const char *what);
    // When the first bytes are there, many enough for the header of most models, and before the
    // rest: a failure ends the download. NULL: nothing is called.
    qn_status (*look)(void *arg, int fd, int64_t there, int64_t size, qn_err *err);
    void *arg;
} qn_download;

// Folders of the path must be there. QN_STOPPED: what is there stays for the next time. So it does
// after most failures; what turned out to be wrong does not.
QN_MUST_CHECK qn_status qn_download_run(const qn_download *download, qn_err *err);

#endif

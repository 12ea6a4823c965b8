// A session as bytes: what the two halves share. docs/state.md describes the format.
#ifndef QN_SESSION_SESSION_BYTES_H
#define QN_SESSION_SESSION_BYTES_H

#include "runtime/state_key.h"
#include "session/session_int.h"

#define QN_STATE_MAGIC "QNSTATE\n"
enum { QN_STATE_VERSION = 1 };

// The beginning, in 8-byte words, little endian as all machines that this runs on hold them.
typedef struct qn_state_head {
    char magic[8];
    int64_t version;
    int64_t bytes; // of everything, checksum included
    qn_state_key key;
    int64_t n_tokens, n_cached, n_prompt, shifted;
    int64_t n_images, n_logits, n_top, top_after, last_after;
    float tau, eta; // of mirostat
    double surprise;
} qn_state_head;
_Static_assert(sizeof(qn_state_head) == 20 * 8 + QN_STATE_NAME, "no padding");

// An image of the history; its rows (rows * columns, width) follow as floats.
typedef struct qn_state_image {
    int64_t first, rows, columns, left;
} qn_state_image;

#endif

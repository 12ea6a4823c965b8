// Any bytes as the state of a session, from the bytes to the next tokens: loaded or refused; what
// was refused leaves the session as it was, and what was loaded is saved as the same bytes.
//
// The input is changes to a state that was saved: each is a place (16 bits, in 4-byte words from
// the beginning, or with the highest bit set from the end) and the new word. The checksum is made
// right again, so that the changes are seen. An input that begins with 0xff is a state by itself,
// checksum included.
#include "fuzz_cache.h"

#include <xxhash.h>

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CHANGE = 6, CONTEXT = 64, N_PROMPT = 12 };

static struct {
    qn_engine *engine;
    qn_session *session;
    unsigned char *saved;
    size_t size;
    int32_t next; // token after it
} states;

static void close_all(void) {
    qn_session_destroy(states.session);
    qn_engine_close(states.engine);
    qn_free(states.saved);
}

static void load_saved(void) {
    CHECK(qn_session_load_bytes(states.session, states.saved, states.size, NULL) == QN_OK);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc, (void)argv;
    const qn_session_opts opts = QN_INIT(qn_session_opts, .context = CONTEXT, .sessions = 1);
    qn_err err = {0};
    int32_t ids[N_PROMPT], token;
    void *bytes = NULL;
    fuzz_make();
    states.engine = fuzz_open(NULL, QN_CACHE_DIR_KEEP);
    CHECK(qn_session_create(&states.session, states.engine, &opts, &err) == QN_OK);
    for (int i = 0; i < N_PROMPT; i++) ids[i] = 1 + i % 5;
    CHECK(qn_session_set_prompt(states.session, ids, N_PROMPT, &err) == QN_OK);
    CHECK(qn_session_step(&token, states.session, NULL, &err) == QN_OK);
    CHECK(qn_session_save_bytes(&bytes, &states.size, states.session, &err) == QN_OK);
    states.saved = bytes;
    CHECK(qn_session_step(&states.next, states.session, NULL, &err) == QN_OK);
    atexit(close_all);
    return 0;
}

// A copy of exactly its size: any byte read after it is seen.
static unsigned char *make_state(size_t *size, const uint8_t *data, size_t n) {
    const bool is_state = n && data[0] == 0xff;
    *size = is_state ? n - 1 : states.size;
    unsigned char *bytes = malloc(*size ? *size : 1);
    CHECK(bytes);
    if (is_state) {
        if (*size) memcpy(bytes, data + 1, *size);
        return bytes;
    }
    memcpy(bytes, states.saved, *size);
    const size_t n_words = *size / 4;
    for (size_t i = 0; i + CHANGE <= n; i += CHANGE) {
        const size_t place = (size_t)data[i] | (size_t)(data[i + 1] & 0x7f) << 8;
        const size_t word = data[i + 1] & 0x80 ? n_words - 1 - place % n_words : place % n_words;
        memcpy(bytes + 4 * word, data + i + 2, 4);
    }
    const uint64_t sum = XXH3_64bits(bytes, *size - sizeof sum);
    memcpy(bytes + *size - sizeof sum, &sum, sizeof sum);
    return bytes;
}

static void check_loaded(const unsigned char *bytes, size_t size) {
    qn_err err = {0};
    void *again = NULL;
    size_t n, n_tokens;
    int32_t token;
    CHECK(qn_session_save_bytes(&again, &n, states.session, &err) == QN_OK);
    CHECK(n == size && memcmp(again, bytes, size) == 0);
    qn_free(again);
    (void)qn_session_tokens(states.session, &n_tokens);
    for (int i = 0; i < 3; i++) {
        const qn_status status = qn_session_step(&token, states.session, NULL, &err);
        if (status && !err.message[0]) abort();
        if (status) return; // full, empty, or numbers that make no sense
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qn_err err = {0};
    size_t n;
    int32_t token;
    unsigned char *bytes = make_state(&n, data, size);
    load_saved();
    const qn_status status = qn_session_load_bytes(states.session, bytes, n, &err);
    if (status) {
        CHECK(err.message[0]);
        CHECK(qn_session_cached(states.session) == N_PROMPT);
        CHECK(qn_session_step(&token, states.session, NULL, &err) == QN_OK && token == states.next);
    } else {
        check_loaded(bytes, n);
    }
    free(bytes);
    return 0;
}

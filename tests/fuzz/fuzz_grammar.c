// Any text as a grammar: refused with a message, or followed for some tokens and for some bytes.
// The first byte chooses the kind and the options; the texts that are followed come from the masks
// themselves. A place where no byte fits and the text may not end is a dead end, which no grammar
// may have.
#include "gen/grammar/grammar.h"

#include "tokenizer/tokenizer.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_STEPS = 40, N_BYTES = 24 };

// Pieces in byte-level letters, and an end.
static const char vocabulary[] =
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<end>\", \"special\": true}], \"decoder\": "
    "{\"type\": \"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {\"<end>\": 0, "
    "\"{\\\"\": 1, \"\\\":\": 2, \"\\\",\": 3, \"abc\": 4, \"}}\": 5, \"]\": 6, \"[\": 7, \"12\": "
    "8, \"\\\"\": 9, \"{\": 10, \"}\": 11, \",\": 12, \"true\": 13, \"a\": 14, \"1\": 15, \"-\": "
    "16, \":\": 17, \"n\": 18, \"null\": 19, \"\\\\\": 20, \"u00\": 21, \"\\u00c3\": 22, "
    "\"\\u00a9\": 23, \"\\u010a\": 24, \"aaaaaaaa\": 25, \"b\": 26, \"0\": 27, \".\": 28, \"x\": "
    "29, \"c\": 30, \"\\u0120\": 31}, \"merges\": []}}";

static uint32_t step(uint32_t *state) { return *state = *state * 1664525u + 1013904223u; }

// A token of the mask, not always the same.
static int32_t pick(const uint32_t *mask, uint32_t *state) {
    for (uint32_t i = 0, at = step(state) >> 20; i < 32; i++)
        if (mask[0] >> ((at + i) % 32) & 1) return (int32_t)((at + i) % 32);
    return -1;
}

static void follow(const qn_grammar *grammar) {
    qn_err err = {0};
    qn_matcher *matcher;
    uint32_t state = 1;
    if (qn_matcher_create(&matcher, grammar, 0, &err)) return;
    for (int i = 0; i < N_STEPS && !qn_matcher_is_done(matcher); i++) {
        const uint32_t *mask;
        if (qn_matcher_mask(&mask, matcher, &err)) break;
        const int32_t token = pick(mask, &state);
        if (token < 0) abort();
        // What the mask allows is accepted, unless a limit is met.
        const qn_status status = qn_matcher_accept(matcher, token, &err);
        if (status == QN_LIMIT) break;
        if (status) abort();
    }
    qn_matcher_destroy(matcher);
}

// Goes on by a byte; false at the end of the text, or at a limit.
static bool follow_byte(qn_matcher *matcher, uint32_t *state) {
    qn_err err = {0};
    const uint32_t at = step(state) >> 20;
    for (uint32_t i = 0; i < 256; i++) {
        const char byte = (char)((at + i) % 256);
        bool fits = false;
        if (qn_matcher_feed(&fits, matcher, &byte, 1, &err)) return false;
        if (fits) return true;
    }
    if (!qn_matcher_may_end(matcher)) abort();
    return false;
}

static void follow_bytes(const qn_grammar *grammar) {
    qn_err err = {0};
    qn_matcher *matcher;
    uint32_t state = 7;
    if (qn_matcher_create(&matcher, grammar, 0, &err)) return;
    for (int i = 0; i < N_BYTES && follow_byte(matcher, &state); i++) {
    }
    qn_matcher_destroy(matcher);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static qn_tokenizer *tokenizer; // made once; the targets are programs, not the library
    qn_err err = {0};
    qn_grammar *grammar = NULL;
    if (!tokenizer &&
        qn_tokenizer_from_json(&tokenizer, vocabulary, sizeof vocabulary - 1, "fuzz", &err))
        abort();
    if (!size) return 0;
    char *text =
        malloc(size - 1 ? size - 1 : 1); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data + 1, size - 1);
    const qn_grammar_opts opts =
        QN_INIT(qn_grammar_opts, .lenient = data[0] & 8, .closed = data[0] & 16);
    const qn_status status = qn_grammar_create(&grammar, tokenizer, (qn_grammar_kind)(data[0] % 4),
                                               text, size - 1, &opts, &err);
    free(text);
    if (status ? grammar || !err.message[0] : !grammar) abort();
    if (!status) follow(grammar);
    // A rule may also wait for a token that bytes do not spell.
    if (!status && !memchr(data, '<', size)) follow_bytes(grammar);
    qn_grammar_destroy(grammar);
    return 0;
}

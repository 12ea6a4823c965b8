// Any text as a config.json.
#include "fuzz_source.h"

#include "core/json.h"

#include <string.h>

static bool contains(const char *text, size_t size, const char *word) {
    const size_t n = strlen(word);
    for (size_t i = 0; i + n <= size; i++) {
        if (memcmp(text + i, word, n) == 0) return true;
    }
    return false;
}

// Ours and another reader must agree on what is JSON, but for what ours reads or refuses beyond it.
static void compare_readers(const char *text, size_t size, bool ours, const char *why) {
    if (contains(text, size, "NaN") || contains(text, size, "Infinity")) return;
    json_error_t err;
    json_t *json = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &err);
    const bool theirs = json != NULL;
    json_decref(json);
    // Duplicates among what is left out here (nulls, mixed arrays), reals beyond a double.
    if (ours && !theirs && !strstr(err.text, "duplicate") &&
        !strstr(err.text, "real number overflow")) {
        fprintf(stderr, "flattened, but: %s\n", err.text);
        abort();
    }
    // jansson takes a NUL byte behind a number for space.
    if (theirs && !ours && !memchr(text, 0, size) && strstr(why, "not valid JSON") &&
        !strstr(why, "400 characters")) {
        fprintf(stderr, "valid, but: %s\n", why);
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    qn_source *source = calloc(1, sizeof *source);
    char *text =
        malloc(size ? size : 1); // a block of exactly this size: any byte read behind it is seen
    if (!source || !text) abort();
    memcpy(text, data, size);
    qn_store_allow(&source->store, (int64_t)size);
    qn_err err = {0};
    if (qn_config_flatten(source, text, size, "config.json", &err) == QN_OK) {
        check_budget(source, size);
        touch_keys(source);
        compare_readers(text, size, true, "");
    } else {
        if (!err.message[0]) abort();
        compare_readers(text, size, false, err.message);
    }
    free(text);
    qn_source_close(source);
    return 0;
}

// Any text as TOML: refused with a line, or read into memory that follows the text.
#include "core/toml.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size ? size : 1); // of exactly this size: any byte read behind it is seen
    if (!text) abort();
    memcpy(text, data, size);
    qn_err err = {0};
    qn_toml toml = {0};
    if (qn_toml_parse(&toml, text, size, &err) == QN_OK) {
        // A table's name of 255 bytes may stand in front of a key of one.
        if (toml.arena.bytes > 300 * size + (1 << 20)) abort();
        for (size_t i = 0; i < toml.n; i++) {
            if (qn_toml_find(&toml, toml.entries[i].name) != &toml.entries[i]) abort();
        }
    } else if (toml.entries || !err.message[0]) {
        abort();
    }
    qn_toml_deinit(&toml);
    free(text);
    return 0;
}

// Any text as JSON: our reader takes what jansson's takes and gives the same values, and what our
// writer makes of them is read again as the same. The first byte chooses how.
//
// Known differences: jansson reads a NUL byte after a number as space and nests 2048 deep; ours
// takes numbers of 400 characters at most.
#include "core/json.h"
#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const qn_json_form forms[] = {{0}, {.compact = true}, {.indent = 1}, {.indent = 3}};

static void check_written(const json_t *value, const qn_json_form *form, const qn_json_opts *opts) {
    char *text = NULL;
    json_t *again = NULL;
    qn_err err = {0};
    if (qn_json_print(&text, value, form, "fuzz", NULL)) abort();
    for (const char *c = text; *c; c++) {
        if (*c == 0x7f || ((unsigned char)*c < 0x20 && *c != '\n')) abort();
    }
    if (qn_json_parse_as(&again, text, strlen(text), opts, &err) || !json_equal(value, again)) {
        fprintf(stderr, "written as %s: %s\n", text, err.message);
        abort();
    }
    json_decref(again);
    qn_free(text);
}

static void compare(const char *text, size_t size, const json_t *ours, const qn_json_opts *opts,
                    const qn_err *err) {
    json_error_t why;
    const size_t flags = JSON_REJECT_DUPLICATES | (opts->any ? JSON_DECODE_ANY : 0) |
                         (opts->ints_as_real ? JSON_DECODE_INT_AS_REAL : 0) |
                         (opts->takes_nul ? JSON_ALLOW_NUL : 0);
    json_t *theirs = json_loadb(text, size, flags, &why);
    const bool is_known = memchr(text, 0, size) || strstr(err->message, "nested more than") ||
                          strstr(err->message, "more than 400");
    if (ours ? !theirs || !json_equal(ours, theirs) : theirs && !is_known) {
        fprintf(stderr, "ours: %s; jansson: %s\n", ours ? "taken" : err->message,
                theirs ? "taken" : why.text);
        abort();
    }
    json_decref(theirs);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1) return 0;
    const unsigned how = data[0];
    const qn_json_opts opts = {
        .what = "fuzz", .ints_as_real = how & 1, .any = how & 2, .takes_nul = how & 4};
    const size_t n = size - 1;
    char *text = malloc(n ? n : 1); // of exactly this size: any byte read after it is seen
    if (!text) abort();
    memcpy(text, data + 1, n);
    json_t *ours = NULL;
    qn_err err = {0};
    const qn_status status = qn_json_parse_as(&ours, text, n, &opts, &err);
    if (status ? ours || !err.message[0] : !ours) abort();
    compare(text, n, ours, &opts, &err);
    const qn_json_opts again = {
        .what = "again", .ints_as_real = opts.ints_as_real, .any = true, .takes_nul = true};
    if (ours) check_written(ours, &forms[how / 8 % 4], &again);
    json_decref(ours);
    free(text);
    return 0;
}

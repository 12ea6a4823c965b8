#include "tokenizer/regex.h"

#include "core/buf.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

// Work is steps (what PCRE2 counts) times bytes (what one step may scan). A first try is free and
// small; published patterns need at most 16 steps on a word of any length.
enum {
    PATTERN_MAX = 1 << 16, // bytes of a pattern; published ones have a few hundred
    FIRST_WINDOW = 256,    // bytes; words are shorter
    FIRST_STEPS = 64,
    MORE_WINDOW = 4, // factors of the next try
    MORE_STEPS = 8,
    WORK_PER_BYTE = 4096, // of later tries, per byte of the text
    HEAP_KIB = 64 << 10,  // max memory of an interpreted match
};
static const uint64_t WORK_BASE = (uint64_t)1 << 32;

// --- the dialect ---------------------------------------------------------------------------------

// Escapes that mean something else in PCRE2; `inside` is the form within a character class. NULL:
// cannot be said there.
typedef struct escape_row {
    char letter;
    const char *outside, *inside;
} escape_row;

#define WORD "\\p{L}\\p{M}\\p{Nd}\\p{Pc}"
static const escape_row escapes[] = {
    {'s', "\\p{White_Space}", "\\p{White_Space}"},
    {'S', "\\P{White_Space}", "\\P{White_Space}"},
    {'w', "[" WORD "]", WORD},
    {'W', "[^" WORD "]", NULL},
    {'h', "[0-9a-fA-F]", "0-9a-fA-F"},
    {'H', "[^0-9a-fA-F]", NULL},
};

static const escape_row *find_escape(char letter) {
    for (size_t i = 0; i < sizeof escapes / sizeof *escapes; i++) {
        if (escapes[i].letter == letter) return &escapes[i];
    }
    return NULL;
}

static qn_status rewrite_escape(qn_buf *out, char letter, bool in_class, qn_err *err) {
    const escape_row *row = find_escape(letter);
    if (!row) {
        const char same[] = {'\\', letter};
        qn_buf_add(out, same, 2);
        return QN_OK;
    }
    const char *form = in_class ? row->inside : row->outside;
    if (!form)
        return QN_FAIL(err, UNSUPPORTED, "pattern: '\\%c' inside [...] is not supported", letter);
    qn_buf_text(out, form);
    return QN_OK;
}

static qn_status rewrite(qn_buf *out, qn_str pattern, qn_err *err) {
    bool in_class = false;
    size_t class_start = 0;
    for (size_t i = 0; i < pattern.size; i++) {
        const char c = pattern.data[i];
        const char next = i + 1 < pattern.size ? pattern.data[i + 1] : 0;
        if (c == '\\' && i + 1 < pattern.size) {
            QN_TRY(rewrite_escape(out, next, in_class, err));
            i++;
            continue;
        }
        if (!in_class && c == '[') {
            in_class = true;
            class_start = i + (next == '^');
        } else if (in_class && c == ']' && i > class_start + 1) {
            in_class = false;
        } else if (in_class && ((c == '[' && next != ':') || (c == '&' && next == '&'))) {
            return QN_FAIL(err, UNSUPPORTED, "pattern: sets within [...] are not supported");
        }
        qn_buf_add(out, &c, 1);
    }
    return out->failed ? QN_NOMEM(err, "a pattern") : QN_OK;
}

// --- compiling -----------------------------------------------------------------------------------

static qn_status compile(qn_regex *out, qn_str pattern, qn_str source, qn_err *err) {
    int why = PCRE2_ERROR_HEAP_FAILED;
    size_t where;
    const uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_MULTILINE |
                             PCRE2_NEVER_BACKSLASH_C | PCRE2_DOLLAR_ENDONLY;
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern.data, pattern.size, options, &why, &where, NULL);
    if (!code && why == PCRE2_ERROR_HEAP_FAILED) return QN_NOMEM(err, "a pattern");
    if (!code) {
        PCRE2_UCHAR message[120] = {0};
        pcre2_get_error_message(why, message, sizeof message);
        return QN_FAIL(err, UNSUPPORTED, "pattern '%.*s': %s",
                       (int)(source.size < 160 ? source.size : 160), source.data,
                       (const char *)message);
    }
    // Without executable memory (hardened systems) the pattern is interpreted: slower, same result.
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE | PCRE2_JIT_PARTIAL_HARD);
    *out = (qn_regex){.code = code, .window = FIRST_WINDOW};
    return QN_OK;
}

qn_status qn_regex_init(qn_regex *out, qn_str pattern, qn_err *err) {
    if (pattern.size > PATTERN_MAX)
        return QN_FAIL(err, LIMIT, "pattern of %zu bytes, at most %d", pattern.size, PATTERN_MAX);
    qn_buf buf = {0};
    qn_status status;
    QN_TRY_TO(done, rewrite(&buf, pattern, err));
    QN_TRY_TO(done, compile(out, (qn_str){buf.data ? buf.data : "", buf.size}, pattern, err));
done:
    qn_buf_deinit(&buf);
    return status;
}

void qn_regex_deinit(qn_regex *regex) {
    pcre2_code_free(regex->code);
    *regex = (qn_regex){0};
}

// --- matching ------------------------------------------------------------------------------------

qn_status qn_regex_run_init(qn_regex_run *out, const qn_regex *regex, qn_err *err) {
    qn_regex_run run = {.regex = regex};
    run.match = pcre2_match_data_create(1, NULL);
    run.context = pcre2_match_context_create(NULL);
    if (!run.match || !run.context) {
        qn_regex_run_deinit(&run);
        return QN_NOMEM(err, "a pattern match");
    }
    pcre2_set_heap_limit(run.context, HEAP_KIB);
    *out = run;
    return QN_OK;
}

void qn_regex_run_deinit(qn_regex_run *run) {
    pcre2_match_data_free(run->match);
    pcre2_match_context_free(run->context);
    *run = (qn_regex_run){0};
}

void qn_regex_run_set(qn_regex_run *run, qn_str text) {
    run->text = text;
    run->work_left = WORK_BASE + (uint64_t)text.size * WORK_PER_BYTE;
}

// One try on a window of the text that ends at byte `end`. Returns PCRE2's code.
static int try_window(qn_regex_run *run, size_t at, size_t end, uint32_t steps) {
    pcre2_set_match_limit(run->context, steps);
    uint32_t options = PCRE2_NO_UTF_CHECK;
    if (end < run->text.size) options |= PCRE2_PARTIAL_HARD;
    const PCRE2_SPTR text = (PCRE2_SPTR)run->text.data;
    int rc = pcre2_match(run->regex->code, text, end, at, options, run->match, run->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) // the interpreter keeps its stack on the heap
        rc = pcre2_match(run->regex->code, text, end, at, options | PCRE2_NO_JIT, run->match,
                         run->context);
    return rc;
}

// A window of `size` bytes from `at`, rounded up to a whole character.
static size_t window_end(const qn_regex_run *run, size_t at, size_t size) {
    const size_t left = run->text.size - at;
    if (size >= left) return run->text.size;
    size_t end = at + size;
    while (end < run->text.size && ((unsigned char)run->text.data[end] & 0xc0) == 0x80) end++;
    return end;
}

qn_status qn_regex_match(bool *found, size_t *end, qn_regex_run *run, size_t at, qn_err *err) {
    size_t size = run->regex->window;
    uint32_t steps = FIRST_STEPS;
    size_t to = window_end(run, at, size);
    int rc = try_window(run, at, to, steps);
    while (rc == PCRE2_ERROR_PARTIAL || rc == PCRE2_ERROR_MATCHLIMIT) {
        if (rc == PCRE2_ERROR_PARTIAL) to = window_end(run, at, size *= MORE_WINDOW);
        if (rc == PCRE2_ERROR_MATCHLIMIT) steps *= MORE_STEPS;
        const uint64_t work = (uint64_t)steps * (to - at + 1); // both below 2^32 while affordable
        if (size > UINT32_MAX || steps > UINT32_MAX / MORE_STEPS || work > run->work_left)
            return QN_FAIL(err, LIMIT, "the pattern takes too long at byte %zu", at);
        run->work_left -= work;
        rc = try_window(run, at, to, steps);
    }
    if (rc == PCRE2_ERROR_NOMEMORY) return QN_NOMEM(err, "a pattern match");
    if (rc < 0 && rc != PCRE2_ERROR_NOMATCH)
        return QN_FAIL(err, LIMIT, "the pattern fails at byte %zu (PCRE2 error %d)", at, rc);
    *found = rc >= 0;
    if (rc >= 0) *end = pcre2_get_ovector_pointer(run->match)[1];
    return QN_OK;
}

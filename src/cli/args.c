#include "cli/args.h"

#include "cli/foreign.h"

#include "core/mem.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

// --- suggestions ---------------------------------------------------------------------------------

enum { LONGEST_NAME = 32, FARTHEST = 3 };

static size_t min_of(size_t a, size_t b, size_t c) {
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

// Letters to change, add, remove or swap with their neighbour; large for what is too long to be a
// typo.
static size_t distance(const char *a, const char *b) {
    const size_t n = strlen(a), m = strlen(b);
    if (n > LONGEST_NAME || m > LONGEST_NAME) return LONGEST_NAME;
    size_t rows[3][LONGEST_NAME + 1]; // the last two rows and this one
    for (size_t i = 0; i <= n; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= m; j++) {
            if (i == 0) {
                row[j] = j;
                continue;
            }
            row[j] = min_of(above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1]));
            const bool is_swap = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (is_swap && before[j - 2] + 1 < row[j]) row[j] = before[j - 2] + 1;
        }
    }
    return rows[n % 3][m];
}

const char *qn_nearest(const char *typed, const char *const *names, size_t n) {
    const char *best = NULL;
    size_t best_distance = FARTHEST;
    for (size_t i = 0; i < n; i++) {
        const size_t d = distance(typed, names[i]);
        const bool is_start = strlen(typed) > 2 && strncmp(names[i], typed, strlen(typed)) == 0;
        // Half of a short word changed is another word.
        if (!is_start && (d >= best_distance || 2 * d > strlen(names[i]))) continue;
        best = names[i];
        best_distance = is_start ? 0 : d;
    }
    return best;
}

// --- values --------------------------------------------------------------------------------------

static qn_status take_flag(void *field, const qn_option *option, const char *text, qn_err *err) {
    if (text) return QN_FAIL(err, ARGUMENT, "%s takes no value, got '%s'", option->name, text);
    *(bool *)field = true;
    return QN_OK;
}

static qn_status take_text(void *field, const qn_option *option, const char *text, qn_err *err) {
    (void)option, (void)err;
    *(const char **)field = text;
    return QN_OK;
}

static qn_status take_texts(void *field, const qn_option *option, const char *text, qn_err *err) {
    qn_texts *texts = field;
    const char **items = qn_realloc(texts->items, texts->n + 1, sizeof *items);
    if (!items) return QN_NOMEM(err, option->name);
    texts->items = items;
    texts->items[texts->n++] = text;
    return QN_OK;
}

// Digits with an optional sign, nothing else.
static bool read_int(int64_t *out, const char *text) {
    const char *digits = *text == '-' ? text + 1 : text;
    if (!*digits || strspn(digits, "0123456789") != strlen(digits)) return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

static qn_status take_int(void *field, const qn_option *option, const char *text, qn_err *err) {
    int64_t value = 0;
    const bool is_none = option->none && strcmp(text, option->none) == 0;
    if (!is_none && (!read_int(&value, text) || value < option->min || value > option->max))
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a whole number from %lld to %lld%s%s",
                       option->name, text, (long long)option->min, (long long)option->max,
                       option->none ? ", or " : "", option->none ? option->none : "");
    *(int64_t *)field = value;
    return QN_OK;
}

static qn_status take_whole(void *field, const qn_option *option, const char *text, qn_err *err) {
    qn_whole whole = {.is_given = true};
    QN_TRY(take_int(&whole.value, option, text, err));
    *(qn_whole *)field = whole;
    return QN_OK;
}

static qn_status take_real(void *field, const qn_option *option, const char *text, qn_err *err) {
    char *end = NULL;
    const bool is_plain = *text && strspn(text, "0123456789.+-eE") == strlen(text);
    const double value = is_plain ? strtod(text, &end) : NAN;
    if (!is_plain || *end || !(value >= (double)option->min && value <= (double)option->max))
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a number from %lld to %lld", option->name,
                       text, (long long)option->min, (long long)option->max);
    *(qn_real *)field = (qn_real){value, true};
    return QN_OK;
}

static qn_status take_seed(void *field, const qn_option *option, const char *text, qn_err *err) {
    errno = 0;
    const bool is_plain = *text && strspn(text, "0123456789") == strlen(text);
    const unsigned long long value = is_plain ? strtoull(text, NULL, 10) : 0;
    if (!is_plain || errno)
        return QN_FAIL(err, ARGUMENT, "%s: '%s', want a whole number from 0 to %llu", option->name,
                       text, (unsigned long long)UINT64_MAX);
    *(uint64_t *)field = value;
    return QN_OK;
}

// "a, b or c".
static void list_words(char *to, size_t size, const char *const *words) {
    *to = 0;
    for (size_t i = 0; words[i]; i++) {
        const size_t used = strlen(to);
        snprintf(to + used, size - used, "%s%s",
                 i == 0         ? ""
                 : words[i + 1] ? ", "
                                : " or ",
                 words[i]);
    }
}

static qn_status take_word(void *field, const qn_option *option, const char *text, qn_err *err) {
    char known[128];
    for (int i = 0; option->words[i]; i++) {
        if (strcasecmp(option->words[i], text) != 0) continue;
        *(int *)field = i + 1;
        return QN_OK;
    }
    list_words(known, sizeof known, option->words);
    return QN_FAIL(err, ARGUMENT, "%s: '%s', want %s", option->name, text, known);
}

// The last of several lists counts, as with all options that are given twice.
static qn_status take_ints(void *field, const qn_option *option, const char *text, qn_err *err) {
    enum { LONGEST = 24 };
    qn_ints *ints = field;
    for (ints->n = 0;; text++) {
        char word[LONGEST + 1] = "";
        const size_t size = strcspn(text, ",");
        memcpy(word, text, size < LONGEST ? size : LONGEST);
        int64_t value;
        QN_TRY(take_int(&value, option, word, err));
        int64_t *items = qn_realloc(ints->items, ints->n + 1, sizeof *items);
        if (!items) return QN_NOMEM(err, option->name);
        ints->items = items;
        ints->items[ints->n++] = value;
        text += size;
        if (!*text) return QN_OK;
    }
}

typedef qn_status take_fn(void *field, const qn_option *option, const char *text, qn_err *err);
static take_fn *const takers[] = {
    [QN_OPTION_FLAG] = take_flag, [QN_OPTION_TEXT] = take_text, [QN_OPTION_TEXTS] = take_texts,
    [QN_OPTION_INT] = take_int,   [QN_OPTION_REAL] = take_real, [QN_OPTION_SEED] = take_seed,
    [QN_OPTION_WORD] = take_word, [QN_OPTION_INTS] = take_ints, [QN_OPTION_WHOLE] = take_whole,
};

// By turns on and off.
static const char *const flag_words[] = {"on", "off", "true", "false", "yes", "no", "1", "0", NULL};

qn_status qn_option_set(void *options, const qn_option *option, const char *text, qn_err *err) {
    void *field = (char *)options + option->offset;
    if (option->kind != QN_OPTION_FLAG) return takers[option->kind](field, option, text, err);
    const qn_option as_word = {.name = option->name, .words = flag_words};
    int word;
    QN_TRY(take_word(&word, &as_word, text, err));
    *(bool *)field = word % 2 == 1;
    return QN_OK;
}

// --- values as text ------------------------------------------------------------------------------

static void print_flag(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    if (*(const bool *)field) qn_buf_text(to, "on");
}

static void print_text(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const char *text = *(const char *const *)field;
    if (text) qn_buf_text(to, text);
}

static void print_quoted(qn_buf *to, const char *text) {
    qn_buf_text(to, "\"");
    for (; *text; text++) {
        const bool is_break = *text == '\n' || *text == '\t';
        if (is_break || *text == '"' || *text == '\\') qn_buf_text(to, "\\");
        qn_buf_add(to, *text == '\n' ? "n" : *text == '\t' ? "t" : text, 1);
    }
    qn_buf_text(to, "\"");
}

static void print_texts(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const qn_texts *texts = field;
    for (size_t i = 0; i < texts->n; i++) {
        if (i) qn_buf_text(to, " ");
        print_quoted(to, texts->items[i]);
    }
}

static void print_int(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const int64_t value = *(const int64_t *)field;
    if (value) qn_buf_printf(to, "%lld", (long long)value);
}

static void print_real(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const qn_real *real = field;
    if (real->is_given) qn_buf_printf(to, "%.15g", real->value);
}

static void print_whole(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const qn_whole *whole = field;
    if (whole->is_given) qn_buf_printf(to, "%lld", (long long)whole->value);
}

static void print_seed(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const uint64_t value = *(const uint64_t *)field;
    if (value) qn_buf_printf(to, "%llu", (unsigned long long)value);
}

static void print_word(qn_buf *to, const void *field, const qn_option *option) {
    const int word = *(const int *)field;
    if (word) qn_buf_text(to, option->words[word - 1]);
}

static void print_ints(qn_buf *to, const void *field, const qn_option *option) {
    (void)option;
    const qn_ints *ints = field;
    for (size_t i = 0; i < ints->n; i++)
        qn_buf_printf(to, "%s%lld", i ? "," : "", (long long)ints->items[i]);
}

typedef void print_fn(qn_buf *to, const void *field, const qn_option *option);
static const struct {
    print_fn *print;
    size_t size; // of the field
} kinds[] = {
    [QN_OPTION_FLAG] = {print_flag, sizeof(bool)},
    [QN_OPTION_TEXT] = {print_text, sizeof(const char *)},
    [QN_OPTION_TEXTS] = {print_texts, sizeof(qn_texts)},
    [QN_OPTION_INT] = {print_int, sizeof(int64_t)},
    [QN_OPTION_REAL] = {print_real, sizeof(qn_real)},
    [QN_OPTION_WHOLE] = {print_whole, sizeof(qn_whole)},
    [QN_OPTION_SEED] = {print_seed, sizeof(uint64_t)},
    [QN_OPTION_WORD] = {print_word, sizeof(int)},
    [QN_OPTION_INTS] = {print_ints, sizeof(qn_ints)},
};

void qn_option_print(qn_buf *to, const void *options, const qn_option *option) {
    kinds[option->kind].print(to, (const char *)options + option->offset, option);
}

void qn_option_clear(void *options, const qn_option *option) {
    void *field = (char *)options + option->offset;
    if (option->kind == QN_OPTION_TEXTS) qn_free(((qn_texts *)field)->items);
    if (option->kind == QN_OPTION_INTS) qn_free(((qn_ints *)field)->items);
    memset(field, 0, kinds[option->kind].size);
}

bool qn_option_is_set(const void *options, const qn_option *option) {
    const char *field = (const char *)options + option->offset;
    for (size_t i = 0; i < kinds[option->kind].size; i++) {
        if (field[i]) return true;
    }
    return false;
}

const qn_command *qn_command_find(const qn_commands *commands, const char *name) {
    for (size_t i = 0; i < commands->n; i++) {
        if (strcmp(commands->items[i]->name, name) == 0) return commands->items[i];
    }
    return NULL;
}

// --- placeholders --------------------------------------------------------------------------------

qn_path_kind qn_path_kind_of(const char *placeholder) {
    static const struct {
        const char *name;
        qn_path_kind kind;
    } known[] = {{"MODEL", QN_PATH_MODEL}, {"IN", QN_PATH_MODEL},  {"FOLDER", QN_PATH_FOLDER},
                 {"DIR", QN_PATH_FOLDER},  {"FILE", QN_PATH_FILE}, {"TEXTFILE", QN_PATH_FILE},
                 {"OUT", QN_PATH_FILE}};
    const size_t n = placeholder ? strcspn(placeholder, ".") : 0; // FILE.jsonl
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strlen(known[i].name) == n && memcmp(known[i].name, placeholder, n) == 0)
            return known[i].kind;
    }
    return QN_PATH_NONE;
}

// --- words ---------------------------------------------------------------------------------------

typedef struct reader {
    const qn_command *command;
    char *const *words;
    size_t n, at;
    qn_call *call;
    const char **args; // (n) room for every word
    bool wants_help;
} reader;

// Other programs write "--top_k" for "--top-k".
static bool is_named(const char *name, const char *word, size_t n) {
    if (!name || strlen(name) != n) return false;
    for (size_t i = 0; i < n; i++)
        if (word[i] != name[i] && !(word[i] == '_' && name[i] == '-' && i > 1)) return false;
    return true;
}

static const qn_option *find_option(const qn_command *command, const char *word, size_t n) {
    for (size_t i = 0; i < command->n_options; i++) {
        const qn_option *option = &command->options[i];
        if (is_named(option->name, word, n) || is_named(option->alias, word, n)) return option;
    }
    return NULL;
}

// An option of ours by its own name, or by another program's that means the same.
static const qn_option *find_named(const qn_command *command, const char *word, size_t n) {
    const qn_option *option = find_option(command, word, n);
    const qn_foreign *foreign = option ? NULL : qn_foreign_find(command->name, word, n);
    if (!foreign || !foreign->is_same) return option;
    return find_option(command, foreign->ours, strlen(foreign->ours));
}

qn_named qn_option_find(const qn_command *command, const char *typed, size_t n) {
    enum { LONGEST = 64 };
    static const char no[] = "--no-";
    const size_t size = strlen(no);
    const bool is_long = n > 2 && n < LONGEST && typed[1] == '-';
    const bool is_no = is_long && n > size && is_named(no, typed, size);
    char other[LONGEST + sizeof no];
    qn_named named = {find_named(command, typed, n), false};
    if (named.option || !is_long) return named;
    const char *name = is_no ? typed + size : typed + 2;
    snprintf(other, sizeof other, "%s%.*s", is_no ? "--" : no, (int)(typed + n - name), name);
    // Of flags called --no-NAME only ours: other programs' --NAME may be more than its absence.
    named.option = (is_no ? find_named : find_option)(command, other, strlen(other));
    named.is_off = named.option != NULL;
    return named;
}

// What was probably meant by an option of another program; false: nothing to say.
static bool refuse_foreign(const qn_command *command, const char *word, size_t n, qn_err *err) {
    const qn_foreign *foreign = qn_foreign_find(command->name, word, n);
    if (!foreign) return false;
    const char *ours = foreign->ours;
    const bool has_it = ours && find_option(command, ours, strlen(ours));
    if (has_it)
        (void)QN_FAIL(err, ARGUMENT, "%s: no option '%.*s'; did you mean '%s'?", command->name,
                      (int)n, word, ours);
    else if (foreign->hint)
        (void)QN_FAIL(err, ARGUMENT, "%s: no option '%.*s'; %s", command->name, (int)n, word,
                      foreign->hint);
    return has_it || foreign->hint;
}

// `word` begins with the name, of `n` bytes.
static qn_status refuse_option(const qn_command *command, const char *word, size_t n, qn_err *err) {
    enum { MAX_NAMES = 96, LONGEST = 64 };
    const char *names[MAX_NAMES] = {"--help"};
    char name[LONGEST + 1];
    size_t n_names = 1;
    snprintf(name, sizeof name, "%.*s", (int)(n < LONGEST ? n : LONGEST), word);
    for (size_t i = 0; i < command->n_options && n_names < MAX_NAMES; i++)
        names[n_names++] = command->options[i].name;
    if (strcmp(name, "-m") == 0 || strcmp(name, "--model") == 0)
        return QN_FAIL(err, ARGUMENT,
                       "%s: no option '%s'; the model is named without an option: quern %s %s",
                       command->name, name, command->name, command->args);
    if (refuse_foreign(command, word, n, err)) return QN_ARGUMENT;
    const char *near = qn_nearest(name, names, n_names);
    if (near)
        return QN_FAIL(err, ARGUMENT, "%s: no option '%s'; did you mean '%s'?", command->name, name,
                       near);
    return QN_FAIL(err, ARGUMENT, "%s: no option '%s'; 'quern help %s' lists the options",
                   command->name, name, command->name);
}

static bool is_number_kind(qn_option_kind kind) {
    return kind == QN_OPTION_INT || kind == QN_OPTION_WHOLE || kind == QN_OPTION_REAL ||
           kind == QN_OPTION_SEED || kind == QN_OPTION_INTS;
}

// A number may come right after the letter, as in "-n20". Anything else there would make an
// option of another program ("-ngl") a value of one of ours.
static size_t short_name_size(const qn_command *command, const char *word) {
    const qn_option *option = find_option(command, word, 2);
    const char first = word[2] == '-' ? word[3] : word[2];
    const bool is_glued = option && is_number_kind(option->kind) && first >= '0' && first <= '9';
    return is_glued ? 2 : strlen(word);
}

static qn_status switch_off(qn_call *call, const qn_option *option, const char *word,
                            size_t name_size, qn_err *err) {
    if (word[name_size])
        return QN_FAIL(err, ARGUMENT, "%.*s takes no value, got '%s'", (int)name_size, word,
                       word + name_size + 1);
    qn_option_clear(call->options, option);
    return QN_OK;
}

// The word at r->at is an option; its value comes after '=', after the letter, or is the next word.
static qn_status read_option(reader *r, qn_err *err) {
    const char *word = r->words[r->at++];
    const char *equals = strchr(word, '=');
    const size_t name_size = equals           ? (size_t)(equals - word)
                             : word[1] != '-' ? short_name_size(r->command, word)
                                              : strlen(word);
    const qn_named named = qn_option_find(r->command, word, name_size);
    const qn_option *option = named.option;
    if (!option) return refuse_option(r->command, word, name_size, err);
    const char *value = NULL;
    r->call->is_given[option - r->command->options] = true;
    if (word[name_size]) value = word + name_size + (word[name_size] == '=');
    if (named.is_off) return switch_off(r->call, option, word, name_size, err);
    if (!value && option->kind != QN_OPTION_FLAG) {
        if (r->at == r->n)
            return QN_FAIL(err, ARGUMENT, "%s needs a value: %s %s", option->name, option->name,
                           option->arg);
        value = r->words[r->at++];
    }
    return takers[option->kind]((char *)r->call->options + option->offset, option, value, err);
}

static qn_status read_words(reader *r, qn_err *err) {
    bool only_args = false;
    while (r->at < r->n && !r->wants_help) {
        const char *word = r->words[r->at];
        if (!only_args && strcmp(word, "--") == 0) {
            only_args = true;
            r->at++;
        } else if (!only_args && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            r->wants_help = true;
        } else if (!only_args && word[0] == '-' && word[1]) {
            QN_TRY(read_option(r, err));
        } else {
            r->args[r->call->n_args++] = word;
            r->at++;
        }
    }
    return QN_OK;
}

static qn_status check_args(const qn_call *call, const qn_command *command, qn_err *err) {
    if (call->n_args < command->min_args) {
        const char *missing = command->args; // its names are in the order of the words
        for (size_t i = 0; i < call->n_args; i++) missing += strcspn(missing, " ") + 1;
        return QN_FAIL(err, ARGUMENT, "%s: %.*s is missing; usage: quern %s %s", command->name,
                       (int)strcspn(missing, " "), missing, command->name, command->args);
    }
    if (call->n_args > command->max_args)
        return QN_FAIL(err, ARGUMENT, "%s: unexpected argument '%s'%s; usage: quern %s%s%s",
                       command->name, call->args[command->max_args],
                       strstr(command->args, "TEXT]") ? " (quote a text that has spaces)" : "",
                       command->name, *command->args ? " " : "", command->args);
    if (call->n_args > 0 && !*call->args[0])
        return QN_FAIL(err, ARGUMENT, "%s: the name of the model is empty", command->name);
    return QN_OK;
}

qn_status qn_call_parse(qn_call *out, bool *wants_help, const qn_command *command,
                        char *const *words, size_t n, qn_err *err) {
    qn_call call = {.options = qn_alloc(1, command->options_size),
                    .is_given = qn_alloc(command->n_options, sizeof *call.is_given)};
    reader r = {.command = command,
                .words = words,
                .n = n,
                .call = &call,
                .args = qn_alloc(n + 1, sizeof *r.args)};
    call.args = r.args;
    const bool has_room = call.options && call.is_given && r.args;
    const qn_status status = has_room ? read_words(&r, err) : QN_NOMEM(err, "options");
    if (status) {
        qn_call_deinit(&call, command);
        return status;
    }
    *out = call;
    *wants_help = r.wants_help;
    return QN_OK;
}

qn_status qn_call_check(const qn_call *call, const qn_command *command, qn_err *err) {
    QN_TRY(check_args(call, command, err));
    return command->check ? command->check(call, err) : QN_OK;
}

void qn_call_deinit(qn_call *call, const qn_command *command) {
    for (size_t i = 0; call->options && i < command->n_options; i++)
        qn_option_clear(call->options, &command->options[i]);
    qn_free(call->options);
    qn_free(call->is_given);
    qn_free((void *)(uintptr_t)call->args);
    *call = (qn_call){0};
}

// --- ids -----------------------------------------------------------------------------------------

static qn_status read_id(int32_t *out, const char *text, size_t size, const char *what,
                         qn_err *err) {
    enum { LONGEST = 24 };
    char word[LONGEST + 1] = "";
    memcpy(word, text, size < LONGEST ? size : LONGEST);
    const size_t sign = word[0] == '-';
    if (size == sign || strspn(text + sign, "0123456789") < size - sign)
        return QN_FAIL(err, ARGUMENT, "%s: '%s' is not a token id, want whole numbers like 1,2,3",
                       what, word);
    int64_t value;
    if (size >= LONGEST || !read_int(&value, word) || value < INT32_MIN || value > INT32_MAX)
        return QN_FAIL(err, LIMIT, "%s: id %s, no vocabulary is larger than %d", what, word,
                       INT32_MAX);
    *out = (int32_t)value;
    return QN_OK;
}

// Between two ids there may be blanks and a comma; two commas are an id that was forgotten.
static qn_status check_gap(const char *gap, size_t size, size_t max, const char *what,
                           qn_err *err) {
    size_t commas = 0;
    for (size_t i = 0; i < size; i++) commas += gap[i] == ',';
    if (commas <= max) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%s: no token id %s, want whole numbers like 1,2,3", what,
                   max ? "between two commas" : "before the first comma");
}

qn_status qn_ids_parse(int32_t **ids, size_t *n, const char *text, const char *what, qn_err *err) {
    static const char between[] = ", \t\r\n";
    int32_t *items = qn_alloc(strlen(text) / 2 + 1, sizeof *items); // an id and what ends it
    if (!items) return QN_NOMEM(err, what);
    size_t count = 0;
    qn_status status = check_gap(text, strspn(text, between), 0, what, err);
    for (const char *at = text + strspn(text, between); *at && !status;) {
        const size_t size = strcspn(at, between), gap = strspn(at + size, between);
        status = read_id(&items[count++], at, size, what, err);
        if (!status) status = check_gap(at + size, gap, 1, what, err);
        at += size + gap;
    }
    if (status) {
        qn_free(items);
        return status;
    }
    *ids = items;
    *n = count;
    return QN_OK;
}

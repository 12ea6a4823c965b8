// The patterns that a GGUF file names without containing them.
#include "tokenizer/pretok.h"

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define SPACES       "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define REST         " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|"
#define WORDS        "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
#define UPPER        "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER        "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"

// Aliases are names of models whose files use exactly this pattern with these settings.
static const qn_pattern_row rows[] = {
    {.name = "gpt-2",
     .aliases = " gpt2 phi-2 ",
     .rule = {.gpt2 = true},
     .has_rule = true,
     .patterns = {CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
    {.name = "llama-bpe",
     .aliases = " llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 ",
     .rule = {.n_numbers = 3},
     .has_rule = true,
     .patterns = {WORDS "\\p{N}{1,3}|" REST SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {.name = "dbrx",
     .aliases = " smaug-bpe ",
     .rule = {.n_numbers = 3},
     .has_rule = true,
     .patterns = {WORDS "\\p{N}{1,3}|" REST SPACES}},
    {.name = "qwen2",
     .aliases = " deepseek-r1-qwen megrez stablelm2 ",
     .rule = {.n_numbers = 1},
     .has_rule = true,
     .patterns = {WORDS "\\p{N}|" REST SPACES}},
    {.name = "qwen35",
     .aliases = " ",
     .rule = {.n_numbers = 1, .with_marks = true},
     .has_rule = true,
     .patterns = {"(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
                  " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|" SPACES}},
    {.name = "tekken",
     .aliases = " ",
     .patterns = {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+|[^\\r\\n\\p{L}\\p{N}]?" UPPER
                  "+" LOWER "*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|" SPACES},
     .ignore_merges = true},
    {.name = "default",
     .aliases = " ",
     .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+",
                  CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)", "\\p{N}+",
                  "[0-9][0-9][0-9]"}},
};
enum { N_ROWS = sizeof rows / sizeof *rows };

static bool has_alias(const qn_pattern_row *row, qn_str name) {
    if (memchr(name.data, ' ', name.size)) return false;
    for (const char *at = row->aliases; *at;) {
        const size_t n = strcspn(at + 1, " ");
        if (n == name.size && n > 0 && memcmp(at + 1, name.data, n) == 0) return true;
        at += n + 1;
    }
    return false;
}

const qn_pattern_row *qn_pattern_find(qn_str name) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (qn_str_is(name, rows[i].name) || has_alias(&rows[i], name)) return &rows[i];
    }
    return NULL;
}

const qn_pattern_row *qn_pattern_match(qn_str pattern) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!rows[i].patterns[1] && qn_str_is(pattern, rows[i].patterns[0])) return &rows[i];
    }
    return NULL;
}

const qn_pattern_row *qn_pattern_variant(const char *name, bool ignore_merges) {
    const qn_pattern_row *named = qn_pattern_find(qn_str_of(name));
    for (size_t i = 0; named && i < N_ROWS; i++) {
        if (!rows[i].patterns[1] && !named->patterns[1] && rows[i].ignore_merges == ignore_merges &&
            strcmp(rows[i].patterns[0], named->patterns[0]) == 0)
            return &rows[i];
    }
    return NULL;
}

void qn_pattern_list(qn_buf *out) {
    for (size_t i = 0; i < N_ROWS; i++) {
        qn_buf_text(out, i ? " " : "");
        qn_buf_text(out, rows[i].name);
        const size_t n = strlen(rows[i].aliases);
        if (n > 1) qn_buf_add(out, rows[i].aliases, n - 1);
    }
}

static qn_status add_step(qn_pretok *pretok, const qn_pattern_row *row, size_t i, qn_err *err) {
    if (pretok->n == QN_PRETOK_MAX) return QN_FAIL(err, LIMIT, "too many pre-tokenizers");
    qn_pretok_step step = {.kind = row->has_rule ? QN_PRETOK_WORDS : QN_PRETOK_REGEX,
                           .behavior = QN_SPLIT_ISOLATED,
                           .rule = row->rule};
    if (!row->has_rule) QN_TRY(qn_regex_init(&step.regex, qn_str_of(row->patterns[i]), err));
    pretok->steps[pretok->n++] = step;
    return QN_OK;
}

qn_status qn_pretok_add_row(qn_pretok *pretok, const qn_pattern_row *row, qn_err *err) {
    for (size_t i = 0; i < sizeof row->patterns / sizeof *row->patterns && row->patterns[i]; i++)
        QN_TRY(add_step(pretok, row, i, err));
    return QN_OK;
}

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
     .patterns = {CONTRACTIONS "| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"}},
    {.name = "llama-bpe",
     .aliases = " llama3 llama-v3 falcon3 falcon-h1 pixtral lfm2 ",
     .patterns = {WORDS "\\p{N}{1,3}|" REST SPACES},
     .ignore_merges = true,
     .add_bos = true},
    {.name = "dbrx", .aliases = " smaug-bpe ", .patterns = {WORDS "\\p{N}{1,3}|" REST SPACES}},
    {.name = "qwen2",
     .aliases = " deepseek-r1-qwen megrez stablelm2 ",
     .patterns = {WORDS "\\p{N}|" REST SPACES}},
    {.name = "qwen35",
     .aliases = " ",
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

const char *qn_pattern_name(qn_str pattern) {
    for (size_t i = 0; i < N_ROWS; i++) {
        if (!rows[i].patterns[1] && qn_str_is(pattern, rows[i].patterns[0])) return rows[i].name;
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

qn_status qn_pretok_add_row(qn_pretok *pretok, const qn_pattern_row *row, qn_err *err) {
    for (size_t i = 0; i < sizeof row->patterns / sizeof *row->patterns && row->patterns[i]; i++) {
        if (pretok->n == QN_PRETOK_MAX) return QN_FAIL(err, LIMIT, "too many pre-tokenizers");
        qn_pretok_step *step = &pretok->steps[pretok->n];
        *step = (qn_pretok_step){.kind = QN_PRETOK_REGEX, .behavior = QN_SPLIT_ISOLATED};
        QN_TRY(qn_regex_init(&step->regex, qn_str_of(row->patterns[i]), err));
        pretok->n++;
    }
    return QN_OK;
}

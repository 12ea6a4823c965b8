// Made-up vocabularies: every byte, then pieces of one to four letters with or without a space in
// front, then the special tokens that people expect. Nobody's words, but of the right number, and
// every text has ids that give it back.
#include "make/synth.h"

#include "tokenizer/letters.h"

#include <stdio.h>
#include <string.h>

// The numbers that GGUF gives to kinds of tokens.
enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, USER = 4, UNUSED = 5, BYTE = 6 };

typedef struct special {
    const char *text;
    int32_t type;
} special;

// In the order of their ids from the first one.
static const special llama3_specials[] = {
    {"<|begin_of_text|>", CONTROL},
    {"<|end_of_text|>", CONTROL},
    {"<|reserved_special_token_0|>", CONTROL},
    {"<|reserved_special_token_1|>", CONTROL},
    {"<|finetune_right_pad_id|>", CONTROL},
    {"<|reserved_special_token_2|>", CONTROL},
    {"<|start_header_id|>", CONTROL},
    {"<|end_header_id|>", CONTROL},
    {"<|eom_id|>", CONTROL},
    {"<|eot_id|>", CONTROL},
    {"<|python_tag|>", CONTROL},
};
static const special qwen_specials[] = {
    {"<|endoftext|>", CONTROL},
    {"<|im_start|>", CONTROL},
    {"<|im_end|>", CONTROL},
    {"<|object_ref_start|>", CONTROL},
    {"<|object_ref_end|>", CONTROL},
    {"<|box_start|>", CONTROL},
    {"<|box_end|>", CONTROL},
    {"<|quad_start|>", CONTROL},
    {"<|quad_end|>", CONTROL},
    {"<|vision_start|>", CONTROL},
    {"<|vision_end|>", CONTROL},
    {"<|vision_pad|>", CONTROL},
    {"<|image_pad|>", CONTROL},
    {"<|video_pad|>", CONTROL},
    {"<tool_call>", USER},
    {"</tool_call>", USER},
    {"<|fim_prefix|>", CONTROL},
    {"<|fim_middle|>", CONTROL},
    {"<|fim_suffix|>", CONTROL},
    {"<|fim_pad|>", CONTROL},
    {"<|repo_name|>", CONTROL},
    {"<|file_sep|>", CONTROL},
    {"<tool_response>", USER},
    {"</tool_response>", USER},
    {"<think>", USER},
    {"</think>", USER},
};
// Gemma's are at the beginning.
static const special gemma_specials[] = {
    {"<pad>", CONTROL}, {"<eos>", CONTROL},           {"<bos>", CONTROL},
    {"<unk>", UNKNOWN}, {"<start_of_turn>", CONTROL}, {"<end_of_turn>", CONTROL},
};

#define CHATML                                                                                     \
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"           \
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
#define LLAMA3                                                                                     \
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>"    \
    "\n\n{{ m['content'] }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"                   \
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
#define GEMMA                                                                                      \
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ 'model' if m['role'] == "             \
    "'assistant' else m['role'] }}\n{{ m['content'] }}<end_of_turn>\n{% endfor %}"                 \
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"

typedef struct vocab_form {
    const special *specials;
    size_t n_specials;
    size_t bos, eos, eot, pad; // by their place among the specials; eot == eos: no key
    const char *reserved;      // names of the tokens after the specials, with a number
    int32_t reserved_type;
    const char *template;
} vocab_form;

#define SPECIALS(list) .specials = (list), .n_specials = sizeof(list) / sizeof *(list)
static const vocab_form vocab_forms[] = {
    [QN_VOCAB_LLAMA3] = {SPECIALS(llama3_specials), .bos = 0, .eos = 9, .eot = 9, .pad = 4,
                         .reserved = "<|reserved_special_token_%zu|>", .reserved_type = CONTROL,
                         .template = LLAMA3},
    [QN_VOCAB_QWEN] = {SPECIALS(qwen_specials), .bos = 0, .eos = 2, .eot = 2, .pad = 0,
                       .reserved = "[PAD%zu]", .reserved_type = UNUSED, .template = CHATML},
    [QN_VOCAB_GEMMA] = {SPECIALS(gemma_specials), .bos = 2, .eos = 1, .eot = 5, .pad = 0,
                        .template = GEMMA},
};

// --- building ------------------------------------------------------------------------------------

typedef struct vocab {
    qn_arena *arena;
    qn_str *tokens, *merges; // (n) at most
    int32_t *types;          // (n)
    float *scores;           // (n)
    size_t n, n_tokens, n_merges;
    bool failed; // memory was short
} vocab;

static qn_str keep(vocab *v, const char *text, size_t size) {
    const char *copy = qn_arena_strdup(v->arena, text, size);
    if (!copy) v->failed = true;
    return (qn_str){copy, size};
}

static void add_token(vocab *v, const char *text, size_t size, int32_t type) {
    if (v->n_tokens == v->n) return;
    v->types[v->n_tokens] = type;
    v->tokens[v->n_tokens++] = keep(v, text, size);
}

static void add_text(vocab *v, const char *text, int32_t type) {
    add_token(v, text, strlen(text), type);
}

// The token of two earlier ones, and the rule that joins them.
static void add_joined(vocab *v, const char *left, const char *right) {
    char text[32];
    if (v->n_tokens == v->n) return;
    const int n = snprintf(text, sizeof text, "%s%s", left, right);
    add_token(v, text, (size_t)n, NORMAL);
    const int m = snprintf(text, sizeof text, "%s %s", left, right);
    v->merges[v->n_merges++] = keep(v, text, (size_t)m);
}

enum { LETTERS = 26 };

// A head is a letter with or without a space in front: 0 .. 2 * LETTERS - 1.
static void spell_head(char to[8], size_t i, const char *space) {
    snprintf(to, 8, "%s%c", i < LETTERS ? "" : space, (int)('a' + i % LETTERS));
}

// The i-th pair of letters, without a space.
static void spell_pair(char to[8], size_t i) {
    snprintf(to, 8, "%c%c", (int)('a' + i / LETTERS), (int)('a' + i % LETTERS));
}

// Pieces until the vocabulary has `end` tokens: heads with a space; heads and a letter; those and a
// letter; those and a pair. Each is spelled in one way only, so none comes twice; all together are
// 950 thousand.
static void add_pieces(vocab *v, const char *space, size_t end) {
    enum { HEADS = 2 * LETTERS, STEMS = HEADS * LETTERS, PAIRS = LETTERS * LETTERS };
    char head[8], stem[16], tail[8];
    const size_t saved = v->n;
    v->n = end;
    for (size_t i = 0; i < LETTERS; i++) add_joined(v, space, (char[]){(char)('a' + i), 0});
    for (int level = 0; level < 3 && v->n_tokens < end; level++) {
        const size_t n_tails = level == 0 ? 1 : level == 1 ? LETTERS : PAIRS;
        for (size_t i = 0; i < STEMS * n_tails && v->n_tokens < end && !v->failed; i++) {
            // The stem changes fastest, so that all beginnings are there.
            spell_head(head, i % STEMS / LETTERS, space);
            spell_head(tail, i % LETTERS, space);
            snprintf(stem, sizeof stem, "%s%s", head, tail);
            if (level == 1)
                spell_head(tail, i / STEMS, space);
            else
                spell_pair(tail, i / STEMS);
            if (level == 0)
                add_joined(v, head, stem + strlen(head));
            else
                add_joined(v, stem, tail);
        }
    }
    v->n = saved;
}

static void build_byte_level(vocab *v, const qn_synth_shape *shape) {
    const vocab_form *form = &vocab_forms[shape->kind];
    const size_t first =
        shape->first_special ? (size_t)shape->first_special : v->n - form->n_specials;
    qn_letters letters;
    qn_letters_init(&letters);
    for (int i = 0; i < 256; i++) add_token(v, letters.text[i], letters.size[i], NORMAL);
    char space[4] = {0};
    memcpy(space, letters.text[' '], letters.size[' ']);
    add_pieces(v, space, first);
    for (size_t i = 0; i < form->n_specials; i++)
        add_text(v, form->specials[i].text, form->specials[i].type);
    for (size_t i = v->n_tokens; i < v->n; i++) {
        char text[64];
        // Llama's reserved tokens count on from the three among its specials.
        snprintf(text, sizeof text, form->reserved,
                 shape->kind == QN_VOCAB_LLAMA3 ? i - first - form->n_specials + 3 : i);
        add_text(v, text, form->reserved_type);
    }
}

// Pieces that come earlier join first; single characters join never, so their scores count nothing.
static void build_sentencepiece(vocab *v, const qn_synth_shape *shape) {
    static const char space[] = "\xe2\x96\x81";
    const vocab_form *form = &vocab_forms[shape->kind];
    for (size_t i = 0; i < form->n_specials; i++)
        add_text(v, form->specials[i].text, form->specials[i].type);
    for (unsigned i = 0; i < 256; i++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", i);
        add_text(v, text, BYTE);
    }
    for (int code = '!'; code <= '~'; code++) {
        const char c = (char)code;
        add_token(v, &c, 1, NORMAL);
    }
    add_text(v, "\n", NORMAL);
    add_text(v, space, NORMAL);
    add_pieces(v, space, v->n);
    for (size_t i = 0; i < v->n_tokens; i++) v->scores[i] = v->types[i] == NORMAL ? -(float)i : 0;
}

// --- keys ----------------------------------------------------------------------------------------

static void put_id(qn_gguf_writer *to, const char *name, size_t first, size_t place) {
    char key[64];
    snprintf(key, sizeof key, "tokenizer.ggml.%s_token_id", name);
    qn_gguf_put_u32(to, key, (uint32_t)(first + place));
}

static void put_ids(qn_gguf_writer *to, const vocab *v, const vocab_form *form) {
    size_t first = 0;
    while (!qn_str_is(v->tokens[first], form->specials[0].text)) first++;
    put_id(to, "bos", first, form->bos);
    put_id(to, "eos", first, form->eos);
    put_id(to, "padding", first, form->pad);
    if (form->eot != form->eos) put_id(to, "eot", first, form->eot);
}

qn_status qn_synth_put_vocab(qn_gguf_writer *to, const qn_synth_shape *shape, qn_arena *arena,
                             qn_err *err) {
    const size_t n = (size_t)shape->vocab;
    vocab v = {.arena = arena,
               .tokens = qn_arena_alloc(arena, n, sizeof *v.tokens),
               .merges = qn_arena_alloc(arena, n, sizeof *v.merges),
               .types = qn_arena_alloc(arena, n, sizeof *v.types),
               .scores = qn_arena_alloc(arena, n, sizeof *v.scores),
               .n = n};
    if (!v.tokens || !v.merges || !v.types || !v.scores) return QN_NOMEM(err, "vocabulary");
    if (shape->pre)
        build_byte_level(&v, shape);
    else
        build_sentencepiece(&v, shape);
    if (v.failed) return QN_NOMEM(err, "vocabulary");
    qn_gguf_put_string(to, "tokenizer.ggml.model", shape->pre ? "gpt2" : "llama");
    qn_gguf_put_string(to, "tokenizer.ggml.pre", shape->pre ? shape->pre : "default");
    qn_gguf_put_strings(to, "tokenizer.ggml.tokens", v.tokens, n);
    qn_gguf_put_i32s(to, "tokenizer.ggml.token_type", v.types, n);
    if (shape->pre)
        qn_gguf_put_strings(to, "tokenizer.ggml.merges", v.merges, v.n_merges);
    else
        qn_gguf_put_f32s(to, "tokenizer.ggml.scores", v.scores, n);
    put_ids(to, &v, &vocab_forms[shape->kind]);
    qn_gguf_put_bool(to, "tokenizer.ggml.add_bos_token", shape->kind != QN_VOCAB_QWEN);
    if (!shape->pre) qn_gguf_put_bool(to, "tokenizer.ggml.add_space_prefix", false);
    qn_gguf_put_string(to, "tokenizer.chat_template", vocab_forms[shape->kind].template);
    return QN_OK;
}

// The patterns of GPT-2, Llama 3 and Qwen as code: the same words as their regular expressions, in
// one pass, for any text. (The expressions need a step per character of a run of white space, which
// the limits of regex.h do not allow for long ones.)
//
//   GPT-2     's|'t|'re|'ve|'m|'ll|'d | ?LETTERS | ?NUMBERS | ?OTHERS | SPACES(?!\S) | SPACES
//   Llama 3   (?i:'s|...) | [^\r\n LETTER NUMBER]?LETTERS | NUMBER{1,n} | ?OTHERS[\r\n]* |
//             \s*[\r\n]+ | SPACES(?!\S) | SPACES
#ifndef QN_TOKENIZER_WORDS_H
#define QN_TOKENIZER_WORDS_H

#include "core/str.h"

typedef struct qn_word_rule {
    bool gpt2;        // the first form
    bool with_marks;  // marks count as letters (Qwen 3.5)
    size_t n_numbers; // max digits of a word, in the second form
} qn_word_rule;

// The size of the word that starts the text, which is valid UTF-8 and not empty. Every text is a
// sequence of words without gaps.
size_t qn_word_size(const qn_word_rule *rule, qn_str text);

#endif

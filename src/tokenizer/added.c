#include "tokenizer/added.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "tokenizer/unicode.h"

qn_status qn_added_add(qn_added *added, const qn_added_token *token, qn_err *err) {
    if (token->text.size == 0) return QN_OK;
    void *tokens = added->tokens;
    if (added->n >= INT32_MAX ||
        !qn_grow(&tokens, &added->cap, added->n + 1, sizeof *added->tokens))
        return QN_NOMEM(err, "added tokens");
    added->tokens = tokens;
    added->tokens[added->n++] = *token;
    return QN_OK;
}

static qn_status build(qn_prefix_set *out, const qn_added *added, bool normalized, qn_err *err) {
    size_t n = 0;
    for (size_t i = 0; i < added->n; i++) n += added->tokens[i].normalized == normalized;
    qn_prefix_item *items = qn_alloc(n, sizeof *items);
    if (!items) return QN_NOMEM(err, "added tokens");
    n = 0;
    for (size_t i = 0; i < added->n; i++) {
        const qn_added_token *token = &added->tokens[i];
        if (token->normalized != normalized) continue;
        items[n++] = (qn_prefix_item){token->text.data, (uint32_t)token->text.size, (int32_t)i};
    }
    return qn_prefix_init(out, items, n, err);
}

qn_status qn_added_finish(qn_added *added, qn_err *err) {
    QN_TRY(build(&added->raw, added, false, err));
    return build(&added->normalized, added, true, err);
}

void qn_added_deinit(qn_added *added) {
    qn_free(added->tokens);
    qn_prefix_deinit(&added->raw);
    qn_prefix_deinit(&added->normalized);
    *added = (qn_added){0};
}

// Start of the character that ends before byte `at` > 0, and its code (0 for a stray byte).
static size_t character_before(qn_str text, size_t at, uint32_t *code) {
    size_t start = at - 1;
    while (start > 0 && at - start < 4 && ((unsigned char)text.data[start] & 0xc0) == 0x80) start--;
    if (qn_utf8_decode(text.data + start, at - start, code) == at - start) return start;
    *code = 0;
    return at - 1;
}

static bool stands_alone(qn_str text, size_t start, size_t end) {
    uint32_t code;
    if (start > 0) {
        character_before(text, start, &code);
        if (qn_unicode_is_word(code)) return false;
    }
    return end == text.size || !qn_utf8_decode(text.data + end, text.size - end, &code) ||
           !qn_unicode_is_word(code);
}

bool qn_added_is_plain(const qn_added_rule *rule, size_t from, size_t to) {
    size_t low = 0, high = rule->n_plain; // the first range that ends after `from`
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (rule->plain[mid].to <= from)
            low = mid + 1;
        else
            high = mid;
    }
    return low < rule->n_plain && rule->plain[low].from < to;
}

static const qn_added_token *match_at(const qn_added *added, const qn_prefix_set *set, qn_str text,
                                      size_t at, const qn_added_rule *rule) {
    const qn_added_token *best = NULL;
    qn_prefix_walk walk = {0};
    const qn_prefix_item *item;
    while ((item = qn_prefix_next(&walk, set, text.data + at, text.size - at))) {
        const qn_added_token *token = &added->tokens[item->value];
        if (token->special &&
            (!rule->special || qn_added_is_plain(rule, at, at + token->text.size)))
            continue;
        if (token->single_word && !stands_alone(text, at, at + token->text.size)) continue;
        best = token;
    }
    return best;
}

static size_t space_before(qn_str text, size_t at, size_t min) {
    uint32_t code;
    while (at > min) {
        const size_t start = character_before(text, at, &code);
        if (start < min || !qn_unicode_is_space(code)) break;
        at = start;
    }
    return at;
}

static size_t space_after(qn_str text, size_t at) {
    uint32_t code;
    size_t n;
    while (at < text.size && (n = qn_utf8_decode(text.data + at, text.size - at, &code)) &&
           qn_unicode_is_space(code))
        at += n;
    return at;
}

bool qn_added_find(qn_added_match *out, const qn_added *added, const qn_prefix_set *set,
                   qn_str text, size_t from, const qn_added_rule *rule) {
    if (set->n == 0) return false;
    for (size_t i = from; i < text.size; i++) {
        if (!qn_prefix_may_start(set, (unsigned char)text.data[i])) continue;
        const qn_added_token *token = match_at(added, set, text, i, rule);
        if (!token) continue;
        const size_t end = i + token->text.size;
        *out = (qn_added_match){
            .start = token->takes_left ? space_before(text, i, from) : i,
            .end = token->takes_right ? space_after(text, end) : end,
            .id = token->id,
        };
        return true;
    }
    return false;
}

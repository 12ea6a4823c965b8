#include "gen/grammar/trie.h"

#include "core/mem.h"
#include "core/utf8.h"
#include "tokenizer/object.h"

#include <stdlib.h>

// A token's place in the order of texts, with what is compared first next to it.
typedef struct item {
    uint64_t head; // first eight bytes, big end first
    const char *text;
    uint32_t size;
    int32_t token;
} item;

static int compare_items(const void *x, const void *y) {
    const item *a = x, *b = y;
    if (a->head != b->head) return a->head < b->head ? -1 : 1;
    const size_t n = a->size < b->size ? a->size : b->size;
    const int order = memcmp(a->text, b->text, n);
    if (order) return order;
    if (a->size != b->size) return a->size < b->size ? -1 : 1;
    return a->token < b->token ? -1 : 1;
}

static uint64_t head_of(const char *text, size_t size) {
    uint64_t head = 0;
    for (size_t i = 0; i < 8; i++) head = head << 8 | (i < size ? (unsigned char)text[i] : 0);
    return head;
}

// The bytes of every token in the middle of a text.
static qn_status read_texts(qn_gr_token_bytes *out, const qn_tokenizer *tokenizer, qn_err *err) {
    const qn_decode decode = {&tokenizer->vocab, &tokenizer->letters, &tokenizer->decode};
    qn_decode_state state = {.started = true, .past_start = true};
    qn_status status = QN_OK;
    qn_buf text = {0};
    for (int32_t id = 0; id < out->n_tokens; id++) {
        out->offsets[id] = (uint32_t)text.size;
        if (qn_tokenizer_is_end(tokenizer, id)) continue;
        qn_buf_clear(&state.raw);
        qn_decode_add(&state, &decode, id, false);
        qn_buf_add(&text, state.raw.data, state.raw.size);
        if (state.raw.size > out->longest) out->longest = state.raw.size;
        if (text.size > UINT32_MAX) break;
    }
    out->offsets[out->n_tokens] = (uint32_t)text.size;
    const bool failed = state.raw.failed || state.piece.failed || state.spare.failed || text.failed;
    qn_decode_state_deinit(&state);
    if (text.size > UINT32_MAX || out->longest > UINT16_MAX)
        status = QN_FAIL(err, LIMIT, "vocabulary: %zu bytes of text, longest token %zu", text.size,
                         out->longest);
    else if (failed)
        status = QN_NOMEM(err, "vocabulary of a grammar");
    if (status)
        qn_buf_deinit(&text);
    else
        out->text = text.data; // moved
    return status;
}

// Number of characters of a plain token; 0 if it is not.
static size_t plain_length(const char *text, size_t size) {
    size_t n = 0;
    for (size_t i = 0; i < size; n++) {
        const unsigned char byte = (unsigned char)text[i];
        const size_t step = qn_utf8_check(text + i, size - i);
        if (!step || byte < 0x20 || byte == '"' || byte == '\\') return 0;
        i += step;
    }
    return n <= QN_PLAIN_MAX ? n : 0;
}

static size_t shared_prefix(const item *a, const item *b) {
    const size_t max = a->size < b->size ? a->size : b->size;
    size_t n = 0;
    while (n < max && a->text[n] == b->text[n]) n++;
    return n;
}

// From sorted items. `open` has room for the nodes on the way down.
static void fill_trie(qn_gr_trie *trie, const item *items, size_t n_items, int32_t *same,
                      uint32_t *open) {
    size_t depth = 0; // of the last item
    for (size_t i = 0; i < n_items; i++) {
        const size_t keep = i ? shared_prefix(&items[i - 1], &items[i]) : 0;
        for (; depth > keep; depth--) trie->nodes[open[depth - 1]].end = (uint32_t)trie->n;
        if (i && keep == items[i].size) { // the same text as the one before
            same[items[i - 1].token] = items[i].token;
            continue;
        }
        for (; depth < items[i].size; depth++) {
            open[depth] = (uint32_t)trie->n;
            trie->nodes[trie->n++] = (qn_gr_trie_node){
                .token = -1, .depth = (uint16_t)depth, .byte = (uint8_t)items[i].text[depth]};
        }
        trie->nodes[trie->n - 1].token = items[i].token;
    }
    for (; depth > 0; depth--) trie->nodes[open[depth - 1]].end = (uint32_t)trie->n;
}

static qn_status make_trie(qn_gr_trie *trie, const item *items, size_t n_items,
                           const qn_gr_token_bytes *bytes, qn_err *err) {
    size_t n_nodes = 0;
    for (size_t i = 0; i < n_items; i++)
        n_nodes += items[i].size - (i ? shared_prefix(&items[i - 1], &items[i]) : 0);
    uint32_t *open = qn_alloc(bytes->longest + 1, sizeof *open);
    trie->nodes = qn_alloc(n_nodes + 1, sizeof *trie->nodes);
    const qn_status status = open && trie->nodes ? QN_OK : QN_NOMEM(err, "vocabulary of a grammar");
    if (!status) fill_trie(trie, items, n_items, bytes->same, open);
    qn_free(open);
    return status;
}

// Sorts the tokens; those that are plain go into their mask, the others to the front of `items` in
// the end, in order.
static qn_status make_tries(qn_gr_token_bytes *out, item *items, qn_err *err) {
    size_t n = 0, n_special = 0;
    for (int32_t id = 0; id < out->n_tokens; id++) {
        const char *text = out->text + out->offsets[id];
        const uint32_t size = out->offsets[id + 1] - out->offsets[id];
        out->same[id] = -1;
        if (size) items[n++] = (item){head_of(text, size), text, size, id};
    }
    qsort(items, n, sizeof *items, compare_items);
    QN_TRY(make_trie(&out->all, items, n, out, err));
    for (size_t i = 0; i < n; i++) {
        const size_t length = plain_length(items[i].text, items[i].size);
        const size_t id = (size_t)items[i].token;
        if (length)
            for (size_t k = length; k <= QN_PLAIN_MAX; k++)
                out->plain[k * out->n_words + id / 32] |= 1u << (id % 32);
        else
            items[n_special++] = items[i];
    }
    return make_trie(&out->special, items, n_special, out, err);
}

qn_status qn_gr_token_bytes_init(qn_gr_token_bytes *out, const qn_tokenizer *tokenizer,
                                 qn_err *err) {
    qn_status status = QN_OK;
    *out = (qn_gr_token_bytes){.n_tokens = qn_tokenizer_own_info(tokenizer)->n_tokens};
    const size_t n = (size_t)out->n_tokens;
    item *items = qn_alloc(n, sizeof *items);
    out->n_words = (n + 31) / 32;
    out->offsets = qn_alloc(n + 1, sizeof *out->offsets);
    out->same = qn_alloc(n, sizeof *out->same);
    out->plain = qn_alloc(out->n_words * (QN_PLAIN_MAX + 1), sizeof *out->plain);
    out->ends = qn_alloc(out->n_words, sizeof *out->ends);
    if (!items || !out->offsets || !out->same || !out->plain || !out->ends) {
        status = QN_NOMEM(err, "vocabulary of a grammar");
        goto done;
    }
    QN_TRY_TO(done, read_texts(out, tokenizer, err));
    for (int32_t id = 0; id < out->n_tokens; id++)
        if (qn_tokenizer_is_end(tokenizer, id)) out->ends[id / 32] |= 1u << (id % 32);
    QN_TRY_TO(done, make_tries(out, items, err));

done:
    qn_free(items);
    if (status) qn_gr_token_bytes_deinit(out);
    return status;
}

void qn_gr_token_bytes_deinit(qn_gr_token_bytes *bytes) {
    qn_free(bytes->offsets);
    qn_free(bytes->text);
    qn_free(bytes->same);
    qn_free(bytes->all.nodes);
    qn_free(bytes->special.nodes);
    qn_free(bytes->plain);
    qn_free(bytes->ends);
    *bytes = (qn_gr_token_bytes){0};
}

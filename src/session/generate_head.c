// Drafts of the prediction head: a token of every row at a time, each from the head's row of the
// token before it; the first from the model's.
#include "session/generate_draft.h"

#include "core/mem.h"

#include <string.h>

// Room in the state for the rows to draft; the rows that the model will compute itself are
// forgotten again. A row without room has no draft.
static void prepare(const qn_head_want *wants, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        qn_drafter *g = wants[i].drafter;
        if (g->by_head && qn_seq_prepare(wants[i].session->seq, g->by_head, 0, NULL))
            g->by_head = 0;
    }
}

static void finish(const qn_head_want *wants, int64_t n) {
    for (int64_t i = 0; i < n; i++) qn_seq_cancel(wants[i].session->seq);
}

// How many of the best logits a choice needs; 0: all.
static int64_t wanted_top(const qn_head_want *want) {
    const int64_t top = qn_chooser_top(want->drafter->head_sampler);
    return top == QN_TOP_ALL || top + want->n_excluded > QN_HEAD_TOP ? QN_TOP_ALL
                                                                     : top + want->n_excluded;
}

// The rows that have `k` tokens and want more.
static int64_t collect(qn_predict *predicts, const qn_head_want *wants, int64_t n, int32_t k) {
    int64_t n_rows = 0;
    for (int64_t i = 0; i < n; i++) {
        const qn_drafter *g = wants[i].drafter;
        const qn_session *s = wants[i].session;
        if (g->n != k || g->by_head <= k) continue;
        predicts[n_rows++] = (qn_predict){.seq = s->seq,
                                          .position = (int64_t)s->n_tokens - 1 + k,
                                          .ids = s->tokens + s->n_tokens - 1 + k,
                                          .before = k ? g->row : s->last,
                                          .rows = 1,
                                          .outs = 1,
                                          .top = wanted_top(&wants[i]),
                                          .media = &s->media};
    }
    return n_rows;
}

// Chooses as the model will, with the same random number.
static qn_status choose(int32_t *token, const qn_head_want *want, int64_t row, int64_t top) {
    qn_session *s = want->session;
    const qn_runner *runner = s->shared->runner;
    qn_session_memory memory = s->memory;
    qn_top_logit entries[QN_HEAD_TOP];
    qn_runner_top found = {0};
    qn_chooser_in in = qn_session_chooser_in(s);
    in.n_tokens = s->n_tokens + (size_t)want->drafter->n;
    in.position = (uint64_t)memory.shifted + in.n_tokens;
    in.allowed = want->allowed;
    in.memory = &memory.chooser;
    if (top != QN_TOP_ALL && qn_runner_head_top(&found, runner, row)) {
        for (int64_t i = 0; i < found.n; i++)
            entries[i] = (qn_top_logit){found.logits[i], (int32_t)found.ids[i]};
        in.top = entries;
        in.n_top = found.n;
        in.logits = NULL;
    } else {
        in.logits = qn_runner_head_row(runner, "logits", row);
    }
    return qn_chooser_choose(token, want->drafter->head_sampler, &in, NULL);
}

// Takes the tokens of the rows that were predicted. A row that cannot choose ends its draft.
static void take(const qn_predict *predicts, const qn_head_want *wants, int64_t n, int32_t k) {
    int64_t row = 0;
    for (int64_t i = 0; i < n; i++) {
        qn_drafter *g = wants[i].drafter;
        qn_session *s = wants[i].session;
        int32_t token;
        if (g->n != k || g->by_head <= k) continue;
        const size_t width = (size_t)s->engine->model->hparams->width;
        memcpy(g->row, qn_runner_head_row(s->shared->runner, QN_ROWS_LAST, row),
               width * sizeof *g->row);
        const bool is_chosen = choose(&token, &wants[i], row, predicts[row].top) == QN_OK;
        row++;
        if (!is_chosen) {
            g->by_head = k;
            continue;
        }
        g->tokens[g->n++] = s->tokens[s->n_tokens + (size_t)k] = token;
    }
}

// All rows of a step have one setting: the fast one only if nobody wants the other, and nobody
// needs all logits, most of which it does not write.
static int64_t find_entries(const qn_head_want *wants, int64_t n) {
    bool is_fast = true;
    for (int64_t i = 0; i < n; i++) {
        if (!wants[i].drafter->is_fast || wanted_top(&wants[i]) == QN_TOP_ALL) is_fast = false;
    }
    const int64_t vocab = wants[0].session->engine->model->hparams->vocab;
    return is_fast && vocab > QN_MTP_FAST ? QN_MTP_FAST : 0;
}

// Shares out the time that the rows took together. A row without a draft had its share too: where
// that goes on, its record ends the tries.
static void record_time(const qn_head_want *wants, int64_t n, int64_t ns) {
    int64_t n_drafted = 0;
    for (int64_t i = 0; i < n; i++) n_drafted += qn_max(wants[i].drafter->n, 1);
    for (int64_t i = 0; i < n; i++) {
        qn_drafter *g = wants[i].drafter;
        g->by_head = 0;
        g->ns = ns * qn_max(g->n, 1) / n_drafted;
        if (g->n) continue;
        qn_draft_record_add(&g->records[QN_DRAFT_HEAD], 1, 0, g->ns);
        wants[i].session->shared->records[QN_DRAFT_HEAD] = g->records[QN_DRAFT_HEAD];
    }
}

void qn_drafters_run_heads(qn_shared *shared, const qn_head_want *wants, int64_t n) {
    const int64_t began = qn_clock(), entries = find_entries(wants, n);
    prepare(wants, n);
    for (int32_t k = 0; k < QN_MAX_DRAFT; k++) {
        const int64_t n_rows = collect(shared->predicts, wants, n, k);
        if (n_rows == 0 ||
            qn_runner_predict(shared->runner, shared->predicts, n_rows, entries, NULL))
            break;
        take(shared->predicts, wants, n, k);
    }
    finish(wants, n);
    record_time(wants, n, qn_clock() - began);
}

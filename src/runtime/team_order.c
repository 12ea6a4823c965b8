// Orders: how rank 0 reaches all others at once. The first broadcast has a fixed size and holds
// most orders whole; what does not fit comes in a second one, and so does `more`.
#include "runtime/team.h"

#include "core/mem.h"
#include "runtime/runner.h"

#include <string.h>

enum { BLOCK_WORDS = QN_ORDER_WORDS, HEAD_WORDS = sizeof(qn_team_order) / sizeof(int32_t) };
enum { BODY_WORDS = BLOCK_WORDS - HEAD_WORDS }; // of the first broadcast

// Words from `first` on, of n; there may be none.
static qn_status spread(qn_ranks_request *request, qn_team *team, const int32_t *words,
                        int64_t first, int64_t n, qn_err *err) {
    if (n <= first) return QN_OK;
    return qn_ranks_spread(request, team->ranks, words + first, (size_t)(n - first) * sizeof *words,
                           err);
}

qn_status qn_team_post(qn_team_letter *letter, qn_team *team, const qn_team_order *order,
                       const int32_t *body, const int32_t *more, qn_err *err) {
    const int64_t n = qn_min(order->words, BODY_WORDS);
    int32_t *block = letter->block;
    memset(block, 0, sizeof letter->block);
    memset(letter->sent, 0, sizeof letter->sent);
    memcpy(block, order, sizeof *order);
    if (n) memcpy(block + HEAD_WORDS, body, (size_t)n * sizeof *body);
    QN_TRY(spread(&letter->sent[0], team, block, 0, BLOCK_WORDS, err));
    QN_TRY(spread(&letter->sent[1], team, body, n, order->words, err));
    return spread(&letter->sent[2], team, more, 0, order->rest, err);
}

qn_status qn_team_arrive(qn_team_letter *letter, qn_team *team, qn_err *err) {
    for (int i = 0; i < QN_ORDER_PARTS; i++)
        QN_TRY(qn_ranks_wait(team->ranks, &letter->sent[i], err));
    return QN_OK;
}

qn_status qn_team_give(qn_team *team, const qn_team_order *order, const int32_t *body,
                       const int32_t *more, qn_err *err) {
    qn_team_letter letter;
    QN_TRY(qn_team_post(&letter, team, order, body, more, err));
    return qn_team_arrive(&letter, team, err);
}

void qn_team_tell(qn_team *team, const qn_team_order *order) {
    qn_err ignored; // who is not there cannot be told
    if (!qn_ranks_failure(team->ranks, NULL) && qn_team_give(team, order, NULL, NULL, &ignored))
        return;
}

static qn_status check_order(const qn_team_order *order, qn_err *err) {
    if ((unsigned)order->kind < QN_ORDER_KINDS && (unsigned)order->runner < QN_TEAM_RUNNERS &&
        (unsigned)order->lane < QN_MAX_LANES && order->words >= 0 && order->rest >= 0 &&
        order->parts >= 0)
        return QN_OK;
    return QN_FAIL(
        err, FORMAT,
        "rank 0 ordered %d (of %d) of runner %d (of %d), lane %d (of %d), with %lld + %lld words "
        "in %d parts",
        order->kind, QN_ORDER_KINDS, order->runner, QN_TEAM_RUNNERS, order->lane, QN_MAX_LANES,
        (long long)order->words, (long long)order->rest, order->parts);
}

static qn_status receive(qn_team *team, int32_t *words, int64_t first, int64_t n, qn_err *err) {
    if (n <= first) return QN_OK;
    return qn_ranks_broadcast(team->ranks, words + first, (size_t)(n - first) * sizeof *words, 0,
                              err);
}

qn_status qn_team_await(qn_team_order *order, qn_team *team, qn_team_room_fn *room, void *arg,
                        qn_err *err) {
    int32_t block[BLOCK_WORDS], *body = NULL, *more = NULL;
    QN_TRY(qn_ranks_await(team->ranks, block, sizeof block, 0, err));
    memcpy(order, block, sizeof *order);
    QN_TRY(check_order(order, err));
    if (!order->words && !order->rest) return QN_OK;
    QN_TRY(room(&body, &more, arg, order, err));
    const int64_t n = qn_min(order->words, BODY_WORDS);
    if (n) memcpy(body, block + HEAD_WORDS, (size_t)n * sizeof *body);
    QN_TRY(receive(team, body, n, order->words, err));
    return receive(team, more, 0, order->rest, err);
}

// Orders: how rank 0 reaches all others at once. The first broadcast has a fixed size and holds
// most orders whole; what does not fit comes in a second one, and so does `more`.
#include "runtime/team.h"

#include "core/mem.h"

#include <string.h>

enum { BLOCK_WORDS = 1024, HEAD_WORDS = sizeof(qn_team_order) / sizeof(int32_t) };
enum { BODY_WORDS = BLOCK_WORDS - HEAD_WORDS }; // of the first broadcast

// Words from `first` on, of n; there may be none.
static qn_status spread(qn_team *team, const int32_t *words, int64_t first, int64_t n,
                        qn_err *err) {
    if (n <= first) return QN_OK;
    return qn_ranks_broadcast(team->ranks, (void *)(uintptr_t)(words + first),
                              (size_t)(n - first) * sizeof *words, 0, err);
}

qn_status qn_team_give(qn_team *team, const qn_team_order *order, const int32_t *body,
                       const int32_t *more, qn_err *err) {
    int32_t block[BLOCK_WORDS] = {0};
    const int64_t n = qn_min(order->words, BODY_WORDS);
    memcpy(block, order, sizeof *order);
    if (n) memcpy(block + HEAD_WORDS, body, (size_t)n * sizeof *body);
    QN_TRY(spread(team, block, 0, BLOCK_WORDS, err));
    QN_TRY(spread(team, body, n, order->words, err));
    return spread(team, more, 0, order->rest, err);
}

void qn_team_tell(qn_team *team, const qn_team_order *order) {
    qn_err ignored; // who is not there cannot be told
    if (!qn_ranks_failure(team->ranks, NULL) && qn_team_give(team, order, NULL, NULL, &ignored))
        return;
}

static qn_status check_order(const qn_team_order *order, qn_err *err) {
    if ((unsigned)order->kind < QN_ORDER_KINDS && (unsigned)order->runner < QN_TEAM_RUNNERS &&
        order->words >= 0 && order->rest >= 0 && order->parts >= 0)
        return QN_OK;
    return QN_FAIL(
        err, FORMAT,
        "rank 0 ordered %d (of %d) of runner %d (of %d) with %lld + %d words in %d parts",
        order->kind, QN_ORDER_KINDS, order->runner, QN_TEAM_RUNNERS, (long long)order->words,
        order->rest, order->parts);
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
    QN_TRY(spread(team, body, n, order->words, err));
    return spread(team, more, 0, order->rest, err);
}

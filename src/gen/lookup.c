#include "gen/lookup.h"

// One token repeats by chance; a match of 8 is as good as a longer one, and ends the search. Not
// tuned: qn_draft_choose stops drafts that are not accepted.
enum { SHORTEST = 2, LONGEST = 8 };

// How many tokens before `end` are equal to the last ones, at most LONGEST.
static size_t count_equal(const int32_t *tokens, size_t n, size_t end) {
    size_t equal = 0;
    while (equal < LONGEST && equal < end && tokens[end - 1 - equal] == tokens[n - 1 - equal])
        equal++;
    return equal;
}

int32_t qn_lookup(int32_t *to, int32_t max, const int32_t *tokens, size_t n) {
    size_t best = 0, at = 0;
    if (n <= SHORTEST) return 0;
    for (size_t end = n - 1; end > 0 && best < LONGEST; end--) {
        if (tokens[end - 1] != tokens[n - 1]) continue;
        const size_t equal = count_equal(tokens, n, end);
        if (equal <= best) continue;
        best = equal;
        at = end;
    }
    if (best < SHORTEST) return 0;
    for (int32_t i = 0; i < max; i++) {
        const size_t from = at + (size_t)i;
        to[i] = from < n ? tokens[from] : to[from - n];
    }
    return max;
}

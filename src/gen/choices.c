#include "gen/choices.h"

#include "core/mem.h"
#include "gen/logits.h"
#include "gen/weight.h"

#include <float.h>
#include <math.h>

enum {
    BLOCK = QN_LOGITS_BLOCK,
    FIRST = 64, // listed at first, when it is unknown how many are needed: top_k 40 fits
    MORE = 8,   // then that many times as many: 150 000 are listed after 4 rounds; not tuned
};

// --- choices as numbers --------------------------------------------------------------------------

// Maps the order of logits to that of unsigned numbers. Both zeros are one logit.
static inline qn_choice make_choice(float logit, int64_t id) {
    uint32_t bits;
    logit += 0.0f;
    memcpy(&bits, &logit, sizeof bits);
    bits ^= bits >> 31 ? 0xFFFFFFFF : 0x80000000;
    return (uint64_t)bits << 32 | (0xFFFFFFFF - (uint32_t)id);
}

static inline float logit_of(qn_choice choice) {
    uint32_t bits = (uint32_t)(choice >> 32);
    float logit;
    bits ^= bits >> 31 ? 0x80000000 : 0xFFFFFFFF;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

static inline int32_t id_of(qn_choice choice) { return (int32_t)(0xFFFFFFFF - (uint32_t)choice); }

// Moves the choice at `at` down its heap, whose root is the last in the order.
static void sift(qn_choice *heap, int64_t at, int64_t n) {
    const qn_choice moved = heap[at];
    for (int64_t child; (child = 2 * at + 1) < n; at = child) {
        if (child + 1 < n && heap[child + 1] < heap[child]) child++;
        if (heap[child] >= moved) break;
        heap[at] = heap[child];
    }
    heap[at] = moved;
}

static void sort_heap(qn_choice *items, int64_t n) {
    for (int64_t i = n / 2; i-- > 0;) sift(items, i, n);
    for (int64_t end = n - 1; end > 0; end--) {
        const qn_choice last = items[0];
        items[0] = items[end];
        items[end] = last;
        sift(items, 0, end);
    }
}

static void sort_few(qn_choice *items, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const qn_choice moved = items[i];
        int64_t at = i;
        for (; at > 0 && items[at - 1] < moved; at--) items[at] = items[at - 1];
        items[at] = moved;
    }
}

static inline void swap(qn_choice *a, qn_choice *b) {
    const qn_choice kept = *a;
    *a = *b;
    *b = kept;
}

// Cuts n > 2 items in two, the first part before the second in the order; returns the size of the
// first, at least 1 and at most n - 1.
static int64_t split(qn_choice *items, int64_t n) {
    if (items[n / 2] > items[0]) swap(&items[n / 2], &items[0]);
    if (items[n - 1] > items[0]) swap(&items[n - 1], &items[0]);
    if (items[n - 1] > items[n / 2]) swap(&items[n - 1], &items[n / 2]);
    const qn_choice pivot = items[n / 2]; // the middle one of three
    int64_t low = -1, high = n;
    for (;;) {
        do low++;
        while (items[low] > pivot);
        do high--;
        while (items[high] < pivot);
        if (low >= high) return high + 1 < n ? high + 1 : n - 1;
        swap(&items[low], &items[high]);
    }
}

enum { FEW = 16, MAX_SPLITS = 64 }; // rows made to be split badly are sorted by the heap

// Puts the first k of n items first, in any order.
static void select_first(qn_choice *items, int64_t n, int64_t k) {
    for (int splits = 0; n > FEW && k > 0 && k < n; splits++) {
        if (splits == MAX_SPLITS) {
            sort_heap(items, n);
            return;
        }
        const int64_t size = split(items, n);
        if (k < size) {
            n = size;
        } else {
            items += size;
            n -= size;
            k -= size;
        }
    }
    if (k > 0 && k < n) sort_few(items, n);
}

static void sort_items(qn_choice *items, int64_t n) {
    if (n <= FEW)
        sort_few(items, n);
    else
        sort_heap(items, n);
}

// --- life ----------------------------------------------------------------------------------------

qn_status qn_choices_init(qn_choices *c, int64_t n_row, int64_t n_vocab, qn_err *err) {
    const int64_t n_blocks = (n_vocab + BLOCK - 1) / BLOCK;
    *c = (qn_choices){.n_row = n_row, .n_vocab = n_vocab, .n_blocks = n_blocks};
    c->own = qn_alloc((size_t)n_row, sizeof *c->own);
    c->items = qn_alloc((size_t)n_vocab, sizeof *c->items);
    c->maxima = qn_alloc((size_t)n_blocks, sizeof *c->maxima);
    c->blocks = qn_alloc((size_t)n_blocks, sizeof *c->blocks);
    if (!c->own || !c->items || !c->maxima || !c->blocks) return QN_NOMEM(err, "sampling");
    return QN_OK;
}

void qn_choices_deinit(qn_choices *c) {
    qn_free(c->own);
    qn_free(c->items);
    qn_free(c->maxima);
    qn_free(c->blocks);
    *c = (qn_choices){0};
}

static inline int64_t block_size(const qn_choices *c, int64_t block) {
    const int64_t left = c->n_vocab - block * BLOCK;
    return left < BLOCK ? left : BLOCK;
}

// The whole row; nothing is listed.
static void take_row(qn_choices *c) {
    c->best = -INFINITY;
    for (int64_t b = 0; b < c->n_blocks; b++) c->best = fmaxf(c->best, c->maxima[b]);
    c->n = c->n_vocab;
    c->n_listed = c->n_sorted = 0;
}

qn_status qn_choices_begin(qn_choices *c, const float *logits, qn_err *err) {
    QN_TRY(qn_logits_check_maxima(c->maxima, logits, c->n_vocab, err));
    c->row = logits;
    c->temperature = 1;
    c->is_changed = false;
    take_row(c);
    return QN_OK;
}

void qn_choices_begin_given(qn_choices *c, const float *logits) {
    memcpy(c->own, logits, (size_t)c->n_row * sizeof *c->own);
    c->row = c->own;
    c->temperature = 1;
    c->n = c->n_vocab;
    c->n_listed = c->n_sorted = 0;
    c->is_changed = true;
}

// Their logits are written into a row, whose other entries are not read: all that is left is
// listed.
void qn_choices_begin_top(qn_choices *c, const qn_top_logit *top, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        c->own[top[i].id] = top[i].logit;
        c->items[i] = make_choice(top[i].logit, top[i].id);
    }
    c->row = c->own;
    c->temperature = 1;
    c->is_changed = false;
    c->best = top[0].logit;
    c->n = c->n_listed = c->n_sorted = n;
}

// --- changing logits -----------------------------------------------------------------------------

static void find_best(qn_choices *c) {
    c->best = -INFINITY;
    for (int64_t i = 0; i < c->n; i++) {
        const float logit = logit_of(c->items[i]);
        c->best = logit > c->best ? logit : c->best;
    }
}

static void count_row(qn_choices *c) {
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_vocab; i++) n += c->row[i] >= -FLT_MAX;
    c->n = n;
}

// The lists follow the row again. Choices that were dropped stay so, as all others are listed.
static void settle(qn_choices *c) {
    if (!c->is_changed) return;
    c->is_changed = false;
    if (c->n_listed < c->n) {
        qn_logits_maxima(c->maxima, c->row, c->n_vocab);
        take_row(c);
        count_row(c);
        return;
    }
    int64_t n = 0;
    for (int64_t i = 0; i < c->n; i++) {
        const int32_t id = id_of(c->items[i]);
        if (c->row[id] >= -FLT_MAX) c->items[n++] = make_choice(c->row[id], id);
    }
    c->n = c->n_listed = n;
    c->n_sorted = 0;
    find_best(c);
}

float *qn_choices_write(qn_choices *c) {
    if (c->row != c->own) memcpy(c->own, c->row, (size_t)c->n_row * sizeof *c->own);
    c->row = c->own;
    c->is_changed = true;
    if (c->temperature != 1) {
        for (int64_t i = 0; i < c->n_vocab; i++) c->own[i] /= c->temperature;
        c->temperature = 1;
    }
    return c->own;
}

void qn_choices_allow(qn_choices *c, const uint32_t *allowed) {
    enum { BITS = 32 };
    float *own = qn_choices_write(c);
    for (int64_t i = 0; i < c->n_vocab; i += BITS) {
        const uint32_t word = allowed[i / BITS];
        const int64_t n = c->n_vocab - i < BITS ? c->n_vocab - i : BITS;
        if (word == 0xFFFFFFFF) continue;
        for (int64_t j = 0; j < n; j++) own[i + j] = word >> j & 1 ? own[i + j] : -INFINITY;
    }
}

int64_t qn_choices_count(qn_choices *c) {
    settle(c);
    return c->n;
}

// --- listing -------------------------------------------------------------------------------------

static void list_block(qn_choices *c, int64_t block, float min) {
    const int64_t from = block * BLOCK, to = from + block_size(c, block);
    int64_t n = c->n_listed;
    for (int64_t id = from; id < to; id++) { // no branch: the place is written again
        c->items[n] = make_choice(c->row[id], id);
        n += c->row[id] >= min;
    }
    c->n_listed = n;
}

static void list_above(qn_choices *c, float min) {
    c->n_listed = c->n_sorted = 0;
    for (int64_t b = 0; b < c->n_blocks; b++) {
        if (c->maxima[b] >= min) list_block(c, b, min);
    }
}

static void list_all(qn_choices *c) {
    if (c->n_listed == c->n) return;
    list_above(c, -FLT_MAX);
    c->n = c->n_listed;
}

// Lists at least the first m. At least m logits reach the m-th largest of the blocks' maxima.
static void list_first(qn_choices *c, int64_t m) {
    if (m <= c->n_listed) return;
    if (m > c->n_blocks / 2) {
        list_all(c);
        return;
    }
    for (int64_t b = 0; b < c->n_blocks; b++) c->blocks[b] = make_choice(c->maxima[b], b);
    select_first(c->blocks, c->n_blocks, m);
    float min = INFINITY;
    for (int64_t b = 0; b < m; b++) {
        const float logit = logit_of(c->blocks[b]);
        min = logit < min ? logit : min;
    }
    if (min >= -FLT_MAX)
        list_above(c, min);
    else
        list_all(c);
}

int64_t qn_choices_sort(qn_choices *c, int64_t m) {
    settle(c);
    list_first(c, m < c->n ? m : c->n);
    const int64_t want = m < c->n ? m : c->n;
    const int64_t done = c->n_sorted;
    if (want <= done) return want;
    select_first(c->items + done, c->n_listed - done, want - done);
    sort_items(c->items + done, want - done);
    c->n_sorted = want;
    return want;
}

static uint64_t weigh(const qn_choices *c, int64_t i) {
    return qn_weight(c->row[id_of(c->items[i])], c->best, c->temperature);
}

static uint64_t weigh_range(const qn_choices *c, int64_t from, int64_t to) {
    uint64_t sum = 0;
    for (int64_t i = from; i < to; i++) sum += weigh(c, i);
    return sum;
}

// Items [*from, to) are cut in two, and the part that has the target cut again; *target loses what
// the parts before weigh. Few are left at the end.
static void narrow(qn_choices *c, int64_t *from, int64_t to, uint64_t *target) {
    for (int splits = 0; to - *from > FEW; splits++) {
        if (splits == MAX_SPLITS) {
            sort_heap(c->items + *from, to - *from);
            return;
        }
        const int64_t middle = *from + split(c->items + *from, to - *from);
        const uint64_t sum = weigh_range(c, *from, middle);
        if (sum > *target) {
            to = middle;
        } else {
            *target -= sum;
            *from = middle;
        }
    }
    sort_few(c->items + *from, to - *from);
}

int64_t qn_choices_find(qn_choices *c, uint64_t target) {
    settle(c);
    list_first(c, FIRST < c->n ? FIRST : c->n);
    while (c->n_listed < c->n && weigh_range(c, 0, c->n_listed) <= target)
        list_first(c, MORE * c->n_listed);
    int64_t i = 0;
    if (c->n_sorted < c->n_listed) {
        c->n_sorted = 0;
        narrow(c, &i, c->n_listed, &target);
    }
    for (; i + 1 < c->n_listed; i++) {
        const uint64_t weight = weigh(c, i);
        if (weight > target) break;
        target -= weight;
    }
    return i;
}

// --- keeping -------------------------------------------------------------------------------------

void qn_choices_keep_items(qn_choices *c, int64_t n) {
    c->n = c->n_listed = n;
    if (c->n_sorted > n) c->n_sorted = n;
}

void qn_choices_keep(qn_choices *c, int64_t m) {
    settle(c);
    list_first(c, m < c->n ? m : c->n);
    if (m >= c->n) return;
    if (m > c->n_sorted) {
        select_first(c->items + c->n_sorted, c->n_listed - c->n_sorted, m - c->n_sorted);
    }
    qn_choices_keep_items(c, m);
}

void qn_choices_drop(qn_choices *c, int64_t m) {
    settle(c);
    list_all(c); // the row would bring them back
    qn_choices_sort(c, m);
    memmove(c->items, c->items + m, (size_t)(c->n - m) * sizeof *c->items);
    c->n -= m;
    c->n_listed -= m;
    c->n_sorted -= m;
    find_best(c);
}

void qn_choices_keep_above(qn_choices *c, float min) {
    settle(c);
    if (c->n_listed < c->n) {
        list_above(c, min >= -FLT_MAX ? min : -FLT_MAX);
        c->n = c->n_listed;
        return;
    }
    int64_t n = 0, sorted = 0;
    for (int64_t i = 0; i < c->n; i++) {
        c->items[n] = c->items[i];
        n += logit_of(c->items[i]) >= min;
        if (i < c->n_sorted) sorted = n;
    }
    c->n = c->n_listed = n;
    c->n_sorted = sorted;
}

// The items are ordered by distance for a while; their logits are in the row.
void qn_choices_keep_near(qn_choices *c, double centre, uint64_t target) {
    settle(c);
    list_all(c);
    for (int64_t i = 0; i < c->n; i++) {
        const int32_t id = id_of(c->items[i]);
        c->items[i] = make_choice((float)-fabs((double)c->row[id] - centre), id);
    }
    c->n_sorted = 0;
    qn_choices_keep_items(c, qn_choices_find(c, target) + 1);
    for (int64_t i = 0; i < c->n; i++) {
        const int32_t id = id_of(c->items[i]);
        c->items[i] = make_choice(c->row[id], id);
    }
    c->n_sorted = 0;
    find_best(c);
}

int32_t qn_choices_first(qn_choices *c) {
    settle(c);
    if (c->n_listed > 0) {
        qn_choices_sort(c, 1);
        return id_of(c->items[0]);
    }
    int64_t block = 0;
    while (c->maxima[block] != c->best) block++;
    int64_t id = block * BLOCK;
    while (c->row[id] != c->best) id++;
    return (int32_t)id;
}

int32_t qn_choices_id(const qn_choices *c, int64_t i) { return id_of(c->items[i]); }

float qn_choices_logit(const qn_choices *c, int64_t i) { return logit_of(c->items[i]); }

// --- sums ----------------------------------------------------------------------------------------

enum { LANES = 16 }; // summed side by side, so that compilers use vectors

uint64_t qn_choices_weight(const qn_choices *c, int64_t i) { return weigh(c, i); }

// The logits of a block, of the row or of the list; returns how many, 0 at the end.
static int64_t get_block(float logits[BLOCK], const qn_choices *c, int64_t block) {
    const bool is_listed = c->n_listed == c->n;
    const int64_t left = (is_listed ? c->n : c->n_vocab) - block * BLOCK;
    const int64_t n = left < BLOCK ? left : BLOCK;
    if (left <= 0) return 0;
    if (is_listed) {
        for (int64_t i = 0; i < n; i++) logits[i] = logit_of(c->items[block * BLOCK + i]);
    } else {
        memcpy(logits, c->row + block * BLOCK, (size_t)n * sizeof *logits);
    }
    for (int64_t i = n; i < BLOCK; i++) logits[i] = -INFINITY;
    return n;
}

uint64_t qn_choices_sum(qn_choices *c) {
    settle(c);
    uint64_t sum = 0;
    float e[BLOCK];
    for (int64_t b = 0; get_block(e, c, b); b++) {
        for (int i = 0; i < BLOCK; i++) e[i] = qn_exp_negative((e[i] - c->best) / c->temperature);
        for (int i = 0; i < BLOCK; i++) sum += qn_weight_round(e[i]);
    }
    return sum;
}

double qn_choices_mean(qn_choices *c) {
    settle(c);
    double lanes[LANES] = {0}, weights[LANES] = {0};
    float x[BLOCK];
    for (int64_t b = 0; get_block(x, c, b); b++) {
        for (int i = 0; i < BLOCK; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                const float v = (x[i + j] - c->best) / c->temperature;
                const double weight = (double)qn_exp_negative(v);
                const float bounded = v > -80.0f ? v : -80.0f;
                const bool is_in = x[i + j] >= -FLT_MAX;
                weights[j] += is_in ? weight : 0;
                lanes[j] += is_in ? weight * (double)bounded : 0;
            }
        }
    }
    for (int j = 1; j < LANES; j++) {
        lanes[0] += lanes[j];
        weights[0] += weights[j];
    }
    return lanes[0] / weights[0];
}

double qn_choices_deviation(qn_choices *c) {
    settle(c);
    double sums[LANES] = {0}, squares[LANES] = {0};
    float x[BLOCK];
    int64_t n = 0;
    for (int64_t b = 0; get_block(x, c, b); b++) {
        for (int i = 0; i < BLOCK; i += LANES) {
            for (int j = 0; j < LANES; j++) {
                const bool is_in = x[i + j] >= -FLT_MAX;
                const double d = is_in ? (double)x[i + j] - (double)c->best : 0;
                sums[j] += d;
                squares[j] += d * d;
                n += is_in;
            }
        }
    }
    for (int j = 1; j < LANES; j++) {
        sums[0] += sums[j];
        squares[0] += squares[j];
    }
    const double mean = sums[0] / (double)n;
    return sqrt(fmax(0, squares[0] / (double)n - mean * mean));
}

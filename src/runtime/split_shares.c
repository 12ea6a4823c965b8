// Which layers each rank computes: by speed and memory, or as people say.
#include "runtime/split_cost.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

static double mib(int64_t bytes) { return (double)bytes / (1 << 20); }

static qn_status check_counts(int n, int64_t n_layers, qn_err *err) {
    if (n >= 1 && n <= QN_SPLIT_RANKS && n <= n_layers) return QN_OK;
    return QN_FAIL(err, ARGUMENT, "%d ranks for a model of %lld layers, want 1 to %lld", n,
                   (long long)n_layers, (long long)qn_min(n_layers, QN_SPLIT_RANKS));
}

// --- as people say -------------------------------------------------------------------------------

enum { MAX_NUMBER = 1000000, SHOWN = 80 };

// The next number of the text, and how many bytes it takes.
static qn_status read_number(int64_t *out, size_t *size, const char *at, const char *text,
                             qn_err *err) {
    int64_t number = 0;
    size_t n = 0;
    for (; at[n] >= '0' && at[n] <= '9' && number <= MAX_NUMBER; n++)
        number = 10 * number + (at[n] - '0');
    if (at[n] && at[n] != ',' && (at[n] < '0' || at[n] > '9'))
        return QN_FAIL(err, ARGUMENT, "shares '%.*s': '%c' at byte %zu, want digits and commas",
                       SHOWN, text, at[n], (size_t)(at - text) + n);
    if (n == 0)
        return QN_FAIL(err, ARGUMENT, "shares '%.*s': no number at byte %zu", SHOWN, text,
                       (size_t)(at - text));
    if (number < 1 || number > MAX_NUMBER)
        return QN_FAIL(err, ARGUMENT, "shares '%.*s': '%.*s' at byte %zu, want 1 to %d", SHOWN,
                       text, SHOWN, at, (size_t)(at - text), MAX_NUMBER);
    *out = number;
    *size = n;
    return QN_OK;
}

static int64_t count_numbers(const char *text) {
    int64_t n = 1;
    for (; *text; text++) n += *text == ',';
    return n;
}

// Layers up to the sum of the shares so far, rounded; at least one layer for every rank.
static void place_ends(qn_split_share *out, int n, int64_t n_layers, int64_t all) {
    int64_t sum = 0, end = 0;
    for (int r = 0; r < n; r++) {
        sum += out[r].end;
        const int64_t asked = llround((double)n_layers * (double)sum / (double)all);
        out[r].first = end;
        end = qn_min(qn_max(asked, end + 1), n_layers - (n - 1 - r));
        out[r].end = end;
    }
}

qn_status qn_split_parse_shares(qn_split_share *out, const char *text, int n, int64_t n_layers,
                                qn_err *err) {
    QN_TRY(check_counts(n, n_layers, err));
    const char *at = text;
    const int64_t n_numbers = count_numbers(text);
    int64_t all = 0;
    for (int r = 0; r < n && r < n_numbers; r++) {
        size_t size;
        int64_t number;
        QN_TRY(read_number(&number, &size, at, text, err));
        all += number;
        at += size + (at[size] == ',');
        out[r] = (qn_split_share){.end = number};
    }
    if (n_numbers != n)
        return QN_FAIL(err, ARGUMENT, "shares '%.*s': %lld numbers for %d ranks", SHOWN, text,
                       (long long)n_numbers, n);
    place_ends(out, n, n_layers, all);
    return QN_OK;
}

// --- by speed ------------------------------------------------------------------------------------

typedef struct division {
    const qn_split_model *model;
    const qn_split_system *system;
    int64_t context;
    bool has_limits; // memory counts
    double limit;    // that a rank may take; infinite while the least is looked for
    // (n_layers + 1) of all layers before each one, with what comes before and after the layers: of
    // one rank; the same for all ranks.
    double *seconds, *bytes;
    double *before, *best; // (n_layers + 1) for so many layers on the ranks before, and on these
    int32_t *chosen;       // (n, n_layers + 1) where the layers of a rank begin
} division;

static int64_t width_of(const division *d) { return d->model->n_layers + 1; }

// What a choice goes by, of layers [first, end) on one rank alone.
static double judge(const division *d, int r, int64_t first, int64_t end) {
    const qn_split_system one = {.ranks = &d->system->ranks[r], .n = 1};
    const qn_split_share share = {.first = first, .end = end};
    const qn_step_size write = {.rows = 1, .seqs = 1, .outs = 1};
    const qn_step_size read = {.rows = QN_SPLIT_PREFILL, .seqs = 1};
    return qn_split_layers(d->model, &one, &share, &write, 1).seconds +
           qn_split_layers(d->model, &one, &share, &read, 1).seconds * QN_SPLIT_READ_TOKENS /
               QN_SPLIT_PREFILL;
}

static void fill_seconds(const division *d, int r) {
    for (int64_t i = 0; i < d->model->n_layers; i++)
        d->seconds[i + 1] = d->seconds[i] + judge(d, r, i, i + 1);
}

static int64_t memory_of(const division *d, int64_t first, int64_t end) {
    qn_split_share share = {.first = first, .end = end};
    qn_split_layer_share(&share, d->model);
    return qn_split_memory(&share, d->context);
}

static void fill_bytes(const division *d) {
    for (int64_t i = 0; i < d->model->n_layers; i++)
        d->bytes[i + 1] = d->bytes[i] + (double)(memory_of(d, i, i + 1) - QN_SPLIT_RESERVE);
}

static bool fits(const division *d, int r, int64_t first, int64_t end) {
    const double memory = (double)d->system->ranks[r].memory;
    if (!d->has_limits || memory <= 0) return true;
    const bool is_all = d->system->n == 1;
    const double need = is_all ? (double)memory_of(d, first, end)
                               : d->bytes[end] - d->bytes[first] + QN_SPLIT_RESERVE;
    return need <= memory;
}

// While the least time of the slowest is looked for: that. Then, below this time, the sum of
// squares, which is least where the ranks have about the same.
static double join(const division *d, double before, double own) {
    return isinf(d->limit) ? fmax(before, own) : before + own * own;
}

// The best beginning of rank r's layers, which end before `end`. Each layer more takes more time
// and memory, so the first that is too much ends the search.
static void choose_first(const division *d, int r, int64_t end) {
    double best = INFINITY;
    int32_t chosen = -1;
    for (int64_t first = end - 1; first >= r; first--) {
        const double own = d->seconds[end] - d->seconds[first];
        if (own > d->limit || (isinf(d->limit) && own >= best) || !fits(d, r, first, end)) break;
        const double all = join(d, d->before[first], own);
        if (all >= best) continue;
        best = all;
        chosen = (int32_t)first;
    }
    d->best[end] = best;
    d->chosen[r * width_of(d) + end] = chosen;
}

// Returns what is best for all ranks together; infinite: nothing fits.
static double solve(division *d) {
    const int n = d->system->n;
    const int64_t n_layers = d->model->n_layers;
    for (int64_t i = 0; i <= n_layers; i++) d->before[i] = i == 0 ? 0 : INFINITY;
    for (int r = 0; r < n; r++) {
        fill_seconds(d, r);
        for (int64_t end = 0; end <= n_layers; end++) {
            if (end <= r || end > n_layers - (n - 1 - r))
                d->best[end] = INFINITY;
            else
                choose_first(d, r, end);
        }
        double *const other = d->before;
        d->before = d->best;
        d->best = other;
    }
    return d->before[n_layers];
}

static void read_choice(qn_split_share *out, const division *d) {
    int64_t end = d->model->n_layers;
    for (int r = d->system->n - 1; r >= 0; r--) {
        const int32_t first = d->chosen[r * width_of(d) + end];
        out[r] = (qn_split_share){.first = first, .end = end};
        end = first;
    }
}

// The division by speed alone says who lacks memory.
static qn_status report(division *d, qn_split_share *out, qn_err *err) {
    d->has_limits = false;
    (void)solve(d);
    read_choice(out, d);
    for (int r = 0; r < d->system->n; r++) {
        qn_split_layer_share(&out[r], d->model);
        const int64_t need = qn_split_memory(&out[r], d->context);
        const int64_t has = d->system->ranks[r].memory;
        if (has > 0 && need > has)
            return QN_FAIL(err, LIMIT,
                           "layers %lld to %lld need %.0f MiB on rank %d, %.0f MiB of memory are "
                           "free, and no other division of the layers fits",
                           (long long)out[r].first, (long long)out[r].end - 1, mib(need), r,
                           mib(has));
    }
    return QN_FAIL(err, LIMIT, "no division of %lld layers fits %d ranks",
                   (long long)d->model->n_layers, d->system->n);
}

static qn_status divide(division *d, qn_split_share *out, qn_err *err) {
    static const double close = 1 + 1e-9; // differences of sums are not exact to the last digit
    fill_bytes(d);
    d->limit = INFINITY;
    const double slowest = solve(d);
    if (isinf(slowest)) return report(d, out, err);
    d->limit = slowest * close;
    (void)solve(d);
    read_choice(out, d);
    return QN_OK;
}

qn_status qn_split_divide(qn_split_share *out, const qn_split_model *model,
                          const qn_split_system *system, int64_t context, qn_err *err) {
    QN_TRY(check_counts(system->n, model->n_layers, err));
    QN_TRY(qn_split_check_system(system, err));
    const size_t width = (size_t)model->n_layers + 1;
    division d = {.model = model, .system = system, .context = context, .has_limits = true};
    size_t n_chosen;
    qn_status status = QN_OK;
    d.seconds = qn_alloc(width, sizeof *d.seconds);
    d.bytes = qn_alloc(width, sizeof *d.bytes);
    d.before = qn_alloc(width, sizeof *d.before);
    d.best = qn_alloc(width, sizeof *d.best);
    d.chosen = qn_size_mul(&n_chosen, (size_t)system->n, width)
                   ? qn_alloc(n_chosen, sizeof *d.chosen)
                   : NULL;
    if (!d.seconds || !d.bytes || !d.before || !d.best || !d.chosen)
        status = QN_NOMEM(err, "shares of layers");
    else
        status = divide(&d, out, err);
    qn_free(d.seconds);
    qn_free(d.bytes);
    qn_free(d.before);
    qn_free(d.best);
    qn_free(d.chosen);
    return status;
}

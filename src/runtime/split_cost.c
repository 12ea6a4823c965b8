// What steps cost on several ranks. docs/scale.md says in words what is here in code.
#include "runtime/split_cost.h"

#include "core/mem.h"
#include "ir/graph.h"
#include "ir/step.h"

#include <math.h>

enum {
    BLOCK = 256,        // values of a packed row that have one scale
    TILE = 16,          // outputs of a matmul that lie together
    FAIR = 8,           // blocks for each rank, at least, where they do not divide evenly
    PART_ROWS = 64,     // of a long step,
    FEW_PART_ROWS = 16, // of a shorter one,
    PARTS_PER_RANK = 4, // at most,
    MAX_PARTS = 16,     // and in all
    ORDER_WORDS = 960,  // of a broadcast that holds most orders whole (team_order.c),
    ORDER_HEAD = 8,     // with so many before the message of the step
    EAGER = 64 << 10,   // bytes that Open MPI sends over TCP without asking (btl_tcp_eager_limit)
};
_Static_assert(BLOCK % TILE == 0, "blocks are whole tiles");

// Of the measured limits; docs/speed.md. Decode reads with 88 to 96 % of the bandwidth.
static const double read_share = 0.9;

double qn_split_product_share(qn_numerics numerics) {
    // Prefill of 512 tokens: exact 28 to 31 %, fast 35 to 47 %. Balanced is between them.
    static const double shares[] = {
        [QN_NUMERICS_EXACT] = 0.28, [QN_NUMERICS_BALANCED] = 0.31, [QN_NUMERICS_FAST] = 0.35};
    return (size_t)numerics < sizeof shares / sizeof *shares ? shares[numerics] : shares[0];
}

// --- models --------------------------------------------------------------------------------------

qn_status qn_split_model_init(qn_split_model *out, int64_t n_layers, qn_err *err) {
    if (n_layers < 1 || n_layers > INT32_MAX)
        return QN_FAIL(err, ARGUMENT, "a model of %lld layers", (long long)n_layers);
    qn_split_layer *layers = qn_alloc((size_t)n_layers, sizeof *layers);
    if (!layers) return QN_NOMEM(err, "costs of layers");
    *out = (qn_split_model){.layers = layers,
                            .n_layers = n_layers,
                            .product_share = qn_split_product_share(QN_NUMERICS_EXACT)};
    return QN_OK;
}

void qn_split_model_deinit(qn_split_model *model) {
    qn_free(model->layers);
    *model = (qn_split_model){0};
}

static bool is_cut_alike(const qn_split_part *a, const qn_split_part *b) {
    // Heads are divided by their number, however many values each has.
    const bool is_same = a->cut.units > 0 ? a->cut.units == b->cut.units
                                          : a->cut.values == b->cut.values && b->cut.units == 0 &&
                                                a->cut.by_blocks == b->cut.by_blocks;
    return is_same && a->used == b->used && a->is_float == b->is_float;
}

qn_status qn_split_add_part(qn_split_layer *to, const qn_split_part *part, qn_err *err) {
    int i = 0;
    while (i < to->n_parts && !is_cut_alike(&to->parts[i], part)) i++;
    if (i == QN_SPLIT_PARTS)
        return QN_FAIL(err, LIMIT, "a layer has weights that are cut in more than %d ways",
                       QN_SPLIT_PARTS);
    if (i == to->n_parts) {
        to->parts[to->n_parts++] = *part;
        return QN_OK;
    }
    to->parts[i].ops += part->ops;
    if (!qn_i64_add(&to->parts[i].bytes, to->parts[i].bytes, part->bytes))
        return QN_FAIL(err, LIMIT, "a layer has more than 2^63 bytes of weights");
    return QN_OK;
}

qn_status qn_split_add_gather(qn_split_layer *to, const qn_split_gather *gather, qn_err *err) {
    if (to->n_gathers == QN_SPLIT_GATHERS)
        return QN_FAIL(err, LIMIT, "a layer has more than %d exchanges", QN_SPLIT_GATHERS);
    to->gathers[to->n_gathers++] = *gather;
    return QN_OK;
}

// --- systems -------------------------------------------------------------------------------------

static bool is_positive(double x) { return x > 0 && isfinite(x); }
static bool is_not_negative(double x) { return x >= 0 && isfinite(x); }

qn_status qn_split_check_system(const qn_split_system *s, qn_err *err) {
    for (int r = 0; r < s->n; r++) {
        const qn_split_rank *rank = &s->ranks[r];
        if (!is_positive(rank->read_gbs) || !is_positive(rank->f32_gflops) ||
            !is_not_negative(rank->int8_tops))
            return QN_FAIL(err, ARGUMENT,
                           "rank %d: reads %g GB/s, computes %g GFLOP/s and %g TOP/s of bytes", r,
                           rank->read_gbs, rank->f32_gflops, rank->int8_tops);
    }
    const qn_split_link *link = &s->link;
    if (s->n > 1 && (!is_positive(link->gbs) || !is_not_negative(link->latency_us) ||
                     !is_not_negative(link->message_us)))
        return QN_FAIL(err, ARGUMENT, "between ranks: %g GB/s, latency %g us, %g us a message",
                       link->gbs, link->latency_us, link->message_us);
    return QN_OK;
}

// --- units ---------------------------------------------------------------------------------------

// Blocks for as many ranks, if that leaves none of them with much more than others.
static bool divides_fairly(int64_t blocks, int n) { return blocks % n == 0 || blocks / n >= FAIR; }

int64_t qn_split_units(const qn_split_cut *cut, int n) {
    if (cut->units > 0) return cut->units;
    if (cut->by_blocks && cut->values % BLOCK == 0 && divides_fairly(cut->values / BLOCK, n))
        return cut->values / BLOCK;
    int64_t tile = TILE;
    while (tile > 1 && (cut->values % tile != 0 || cut->values / tile < n)) tile /= 2;
    return cut->values / tile;
}

int64_t qn_split_own(int64_t units, int n, int r) { return units * (r + 1) / n - units * r / n; }

// What rank r has of a part; 1: all of it.
static double share_of(const qn_split_cut *cut, int n, int r) {
    if (cut->values == 0) return 1;
    const int64_t units = qn_split_units(cut, n);
    return (double)qn_split_own(units, n, r) / (double)units;
}

static double largest_share(const qn_split_cut *cut, int n) {
    if (cut->values == 0) return 1;
    const int64_t units = qn_split_units(cut, n), most = (units + n - 1) / n;
    return (double)most / (double)units;
}

// Units that are whole blocks are rounded before they are sent (passes/gather_packed.c).
static bool is_packed(const qn_split_gather *gather, int n) {
    const int64_t units = qn_split_units(&gather->cut, n);
    return gather->block_bytes > 0 && gather->cut.values % units == 0 &&
           gather->cut.values / units % BLOCK == 0;
}

int64_t qn_split_row_bytes(const qn_split_gather *gather, int n) {
    const int64_t values = gather->cut.values * gather->copies;
    return is_packed(gather, n) ? values / BLOCK * gather->block_bytes
                                : values * (int64_t)sizeof(float);
}

// --- shares --------------------------------------------------------------------------------------

// Whole bytes of rank r, rounded up: units have the same number of bytes, or nearly.
static int64_t own_bytes(int64_t bytes, const qn_split_cut *cut, int n, int r) {
    if (cut->values == 0) return bytes;
    const int64_t units = qn_split_units(cut, n), own = qn_split_own(units, n, r);
    return bytes / units * own + (bytes % units * own + units - 1) / units;
}

static void add_layer(qn_split_share *to, const qn_split_layer *layer, int n, int r) {
    const int64_t row = own_bytes(layer->state_row, &layer->state, n, r);
    for (int i = 0; i < layer->n_parts; i++)
        to->weights += own_bytes(layer->parts[i].bytes, &layer->parts[i].cut, n, r);
    to->state_fixed += own_bytes(layer->state_fixed, &layer->state, n, r);
    if (layer->window > 0)
        to->state_fixed += row * (layer->window + QN_PAGE_ROWS);
    else
        to->state_row += row;
}

void qn_split_tensor_share(qn_split_share *out, const qn_split_model *model, int n, int r) {
    *out = (qn_split_share){.end = model->n_layers};
    for (int64_t i = 0; i < model->n_layers; i++) add_layer(out, &model->layers[i], n, r);
    add_layer(out, &model->head, n, r);
    out->weights += own_bytes(model->embed_bytes, &model->vocab, n, r);
}

void qn_split_layer_share(qn_split_share *out, const qn_split_model *model) {
    const bool is_first = out->first == 0, is_last = out->end == model->n_layers;
    *out = (qn_split_share){.first = out->first, .end = out->end};
    for (int64_t i = out->first; i < out->end; i++) add_layer(out, &model->layers[i], 1, 0);
    if (is_last) add_layer(out, &model->head, 1, 0);
    if (is_first) out->weights += model->embed_bytes;
    if (is_first && !is_last) out->weights += model->tied_bytes; // on both
}

int64_t qn_split_memory(const qn_split_share *share, int64_t context) {
    int64_t state, all;
    if (!qn_i64_mul(&state, share->state_row, context) ||
        !qn_i64_add(&all, state, share->state_fixed) || !qn_i64_add(&all, all, share->weights) ||
        !qn_i64_add(&all, all, QN_SPLIT_RESERVE))
        return INT64_MAX;
    return all;
}

// --- computing -----------------------------------------------------------------------------------

// Seconds of a rank for its share of some weights: reading them, or multiplying, whichever takes
// longer.
static double multiply_seconds(const qn_split_part *part, const qn_split_model *model,
                               const qn_split_rank *rank, double rows, double share) {
    const double peak =
        part->is_float || rank->int8_tops <= 0 ? rank->f32_gflops * 1e9 : rank->int8_tops * 1e12;
    // Rows that choose their experts at random: the share of these that at least one row needs.
    const double touched = part->used >= 1 ? 1 : 1 - pow(1 - part->used, rows);
    const double read = (double)part->bytes * touched / (rank->read_gbs * 1e9 * read_share);
    return rows > 0 ? share * fmax(read, part->ops * rows / (peak * model->product_share)) : 0;
}

// Seconds for reading what is kept of the sequences of a step.
static double state_seconds(const qn_split_layer *layer, const qn_split_rank *rank,
                            const qn_step_size *step, double share) {
    const int64_t seen =
        layer->window > 0 && layer->window < step->depth ? layer->window : step->depth;
    const double bytes =
        (double)layer->state_row * (double)seen + 2 * (double)layer->state_fixed; // and written
    return share * bytes * (double)step->seqs / (rank->read_gbs * 1e9 * read_share);
}

// Of a whole layer on one rank.
static double layer_seconds(const qn_split_layer *layer, const qn_split_model *model,
                            const qn_split_rank *rank, const qn_step_size *step, double rows) {
    double seconds = state_seconds(layer, rank, step, 1);
    for (int i = 0; i < layer->n_parts; i++)
        seconds += multiply_seconds(&layer->parts[i], model, rank, rows, 1);
    return seconds;
}

// Of a layer that all ranks share: they meet after each part, so the slowest counts.
static double shared_seconds(const qn_split_layer *layer, const qn_split_model *model,
                             const qn_split_system *s, const qn_step_size *step, double rows) {
    double seconds = 0, slowest = 0;
    for (int r = 0; r < s->n; r++)
        slowest = fmax(slowest,
                       state_seconds(layer, &s->ranks[r], step, share_of(&layer->state, s->n, r)));
    for (int i = 0; i < layer->n_parts; i++) {
        double last = 0;
        for (int r = 0; r < s->n; r++)
            last = fmax(last, multiply_seconds(&layer->parts[i], model, &s->ranks[r], rows,
                                               share_of(&layer->parts[i].cut, s->n, r)));
        seconds += last;
    }
    return seconds + slowest;
}

// --- messages ------------------------------------------------------------------------------------

// Bytes of the best logits of a row (HEAD in ops.def).
static const double best_bytes = (2 + 2 * QN_HEAD_TOP) * (double)sizeof(float);

// Messages of one rank with the best logits of a step.
static int64_t count_lists(const qn_step_size *step) {
    return (step->outs + QN_SPLIT_LISTS - 1) / QN_SPLIT_LISTS;
}

// An order for a step: one broadcast, or two where its message is long.
typedef struct order {
    double bytes;
    int calls;
} order;

static order order_of(const qn_step_size *step) {
    const int64_t pages = step->depth / QN_PAGE_ROWS + 1;
    const qn_step_sizes sizes = {
        .rows = step->rows, .segs = step->seqs, .outs = step->outs, .groups = 1, .pages = pages};
    size_t words = 0;
    if (qn_step_measure(&words, &sizes, NULL)) words = 0; // no step that could be run
    const int64_t more = (int64_t)words + ORDER_HEAD - ORDER_WORDS;
    return (order){.bytes = (double)(ORDER_WORDS + qn_max(more, 0)) * sizeof(int32_t),
                   .calls = more > 0 ? 2 : 1};
}

double qn_split_message_seconds(const qn_split_link *link, double bytes) {
    // What is longer is announced first, and sent when the other side has asked for it.
    const int trips = bytes > EAGER ? 3 : 1;
    return trips * link->latency_us * 1e-6 + bytes / (link->gbs * 1e9);
}

double qn_split_exchange_seconds(const qn_split_link *link, int n, double largest_part) {
    return qn_split_message_seconds(link, largest_part) + (n - 2) * link->message_us * 1e-6 +
           (n - 2) * largest_part / (link->gbs * 1e9);
}

// One to all, by way of others.
static double broadcast_seconds(const qn_split_link *link, int n, double bytes) {
    return ceil(log2(n)) * qn_split_message_seconds(link, bytes);
}

static void add_gathers(qn_split_cost *to, const qn_split_layer *layer, const qn_split_system *s,
                        double rows) {
    for (int i = 0; i < layer->n_gathers; i++) {
        const qn_split_gather *g = &layer->gathers[i];
        const double bytes = rows * (double)qn_split_row_bytes(g, s->n);
        to->network +=
            qn_split_exchange_seconds(&s->link, s->n, bytes * largest_share(&g->cut, s->n));
        to->bytes += bytes;
        to->messages++;
    }
}

// --- steps ---------------------------------------------------------------------------------------

qn_split_cost qn_split_tensors(const qn_split_model *model, const qn_split_system *s,
                               const qn_step_size *step) {
    qn_split_cost cost = {.parts = 1};
    const double rows = (double)step->rows, outs = (double)step->outs;
    double compute = shared_seconds(&model->head, model, s, step, outs);
    for (int64_t i = 0; i < model->n_layers; i++)
        compute += shared_seconds(&model->layers[i], model, s, step, rows);
    if (s->n > 1) {
        add_gathers(&cost, &model->head, s, rows);
        for (int64_t i = 0; i < model->n_layers; i++)
            add_gathers(&cost, &model->layers[i], s, rows);
        // Embeddings come from the owner of each token.
        const double row = (double)model->width * sizeof(float);
        const order told = order_of(step);
        cost.network += qn_split_exchange_seconds(&s->link, s->n, ceil(rows / s->n) * row);
        cost.network += qn_split_exchange_seconds(&s->link, s->n, outs * best_bytes);
        cost.network += broadcast_seconds(&s->link, s->n, told.bytes);
        cost.bytes += rows * row + outs * best_bytes * (s->n - 1) + told.bytes;
        cost.messages += 1 + told.calls + (double)count_lists(step) * (s->n - 1);
    }
    cost.seconds = compute + cost.network;
    return cost;
}

static double stage_seconds(const qn_split_model *model, const qn_split_rank *rank,
                            const qn_split_share *share, const qn_step_size *part) {
    double seconds = 0;
    for (int64_t i = share->first; i < share->end; i++)
        seconds += layer_seconds(&model->layers[i], model, rank, part, (double)part->rows);
    if (share->end == model->n_layers)
        seconds += layer_seconds(&model->head, model, rank, part, (double)part->outs);
    return seconds;
}

// Of the rank that takes longest.
static double longest_stage(const qn_split_model *model, const qn_split_system *s,
                            const qn_split_share *shares, const qn_step_size *part) {
    double longest = 0;
    for (int r = 0; r < s->n; r++)
        longest = fmax(longest, stage_seconds(model, &s->ranks[r], &shares[r], part));
    return longest;
}

qn_split_cost qn_split_layers(const qn_split_model *model, const qn_split_system *s,
                              const qn_split_share *shares, const qn_step_size *step,
                              int64_t parts) {
    qn_split_cost cost = {.parts = parts};
    qn_step_size part = *step;
    part.rows = (step->rows + parts - 1) / parts;
    part.seqs = (step->seqs + parts - 1) / parts;
    part.outs = (step->outs + parts - 1) / parts;
    double longest = longest_stage(model, s, shares, &part);
    for (int r = 0; r < s->n; r++) // of the first part
        cost.seconds += stage_seconds(model, &s->ranks[r], &shares[r], &part);
    if (s->n > 1) {
        const double row = (double)model->width * sizeof(float);
        const double bytes = (double)part.rows * row;
        const double hop = qn_split_message_seconds(&s->link, bytes);
        const double back = qn_split_message_seconds(&s->link, (double)step->outs * best_bytes);
        longest = fmax(longest, bytes / (s->link.gbs * 1e9)); // a link is a stage, too
        cost.network = (s->n - 1) * hop + back;
        const order told = order_of(step);
        cost.bytes =
            (s->n - 1) * (double)step->rows * row + (double)step->outs * best_bytes + told.bytes;
        // What rank 0 hands on and gets back.
        cost.messages = (double)(parts + told.calls + count_lists(step));
    }
    cost.seconds += (double)(parts - 1) * longest + cost.network;
    return cost;
}

int qn_split_lanes(int n, int64_t seqs) { return (int)qn_min(qn_min(n, seqs), QN_SPLIT_LANES); }

// A group comes round when it has been through all ranks, and when the slowest rank, or the link,
// has had all groups.
qn_split_cost qn_split_groups(const qn_split_model *model, const qn_split_system *s,
                              const qn_split_share *shares, const qn_step_size *step) {
    const int lanes = qn_split_lanes(s->n, step->seqs);
    qn_step_size group = *step;
    group.rows = (step->rows + lanes - 1) / lanes;
    group.seqs = (step->seqs + lanes - 1) / lanes;
    group.outs = (step->outs + lanes - 1) / lanes;
    const qn_split_cost one = qn_split_layers(model, s, shares, &group, 1);
    const double stage = longest_stage(model, s, shares, &group);
    const double row = (double)model->width * sizeof(float);
    const double link = s->n > 1 ? (double)group.rows * row / (s->link.gbs * 1e9) : 0;
    qn_split_cost cost = {.parts = 1, .messages = lanes * one.messages, .bytes = lanes * one.bytes};
    cost.seconds = fmax(one.seconds, lanes * fmax(stage, link));
    cost.network = cost.seconds - fmax(one.seconds - one.network, lanes * stage);
    return cost;
}

// With m parts the last of n ranks is done after n + m - 1 of them. Each part reads the weights
// anew: with rows so few that reading takes as long as computing, a part takes as long as the whole
// step, and m - 1 of them are lost. Not tuned.
int64_t qn_split_parts(int64_t rows, int n) {
    const int64_t per = rows >= 4 * PART_ROWS ? PART_ROWS : FEW_PART_ROWS;
    const int64_t most = qn_min(PARTS_PER_RANK * n, MAX_PARTS);
    return n > 1 ? qn_max(1, qn_min(rows / per, most)) : 1;
}

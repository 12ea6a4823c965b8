// The cost of one model over several ranks: cases worked out by hand, shares of layers against all
// that there are, what people type, and the choice.
#include "families.h"

#include "core/json.h"
#include "core/mem.h"
#include "runtime/engine.h"
#include "runtime/split_model.h"
#include "runtime/split_plan.h"

#include <math.h>

// Relative: the order of sums differs from that of the arithmetic in the comments.
static void assert_near(double got, double want, const char *what) {
    if (fabs(got - want) > 1e-9 * fabs(want)) fail_msg("%s: %.12g, want %.12g", what, got, want);
}

// --- units ---------------------------------------------------------------------------------------

static void units_are_divided_as_the_pass_does(void **state) {
    (void)state;
    static const struct {
        qn_split_cut cut;
        int n;
        int64_t units;
    } cases[] = {
        {{.values = 4096, .units = 8}, 3, 8},            // heads stay whole
        {{.values = 4096, .units = 8}, 64, 8},           // also where there are fewer than ranks
        {{.values = 12288, .by_blocks = true}, 4, 48},   // 48 blocks of 256: 12 each
        {{.values = 12288, .by_blocks = true}, 5, 48},   // 9 or 10 each
        {{.values = 12288, .by_blocks = true}, 7, 768},  // 6 or 7 each: too uneven, so tiles of 16
        {{.values = 12288, .by_blocks = true}, 16, 48},  // 3 each
        {{.values = 12288, .by_blocks = true}, 64, 768}, // 12 tiles each
        {{.values = 12200, .by_blocks = true}, 4, 1525}, // no whole blocks, nor tiles of 16: of 8
        {{.values = 4096}, 64, 256},
        {{.values = 48}, 2, 3},
        {{.values = 48}, 4, 6},   // of 8
        {{.values = 48}, 13, 24}, // of 2
        {{.values = 3}, 4, 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t units = qn_split_units(&cases[i].cut, cases[i].n);
        if (units != cases[i].units)
            fail_msg("case %zu: %lld units, want %lld", i, (long long)units,
                     (long long)cases[i].units);
        int64_t sum = 0;
        for (int r = 0; r < cases[i].n; r++) sum += qn_split_own(units, cases[i].n, r);
        assert_int_equal(sum, units);
    }
    assert_int_equal(qn_split_own(8, 3, 0), 2);
    assert_int_equal(qn_split_own(8, 3, 1), 3);
    assert_int_equal(qn_split_own(8, 3, 2), 3);
}

static void rows_are_packed_in_whole_blocks(void **state) {
    (void)state;
    static const struct {
        qn_split_gather gather;
        int n;
        int64_t bytes;
    } cases[] = {
        // 8 heads of 512 values: 16 blocks of 576 bytes.
        {{.cut = {4096, 8, false}, .copies = 1, .block_bytes = 576}, 8, 9216},
        // Heads of 128 values are no whole blocks.
        {{.cut = {1024, 8, false}, .copies = 1, .block_bytes = 576}, 4, 4096},
        // 3 blocks of each of 8 experts' inner values.
        {{.cut = {768, 0, true}, .copies = 8, .block_bytes = 576}, 3, 13824},
        {{.cut = {768, 0, true}, .copies = 8, .block_bytes = 576}, 2, 24576},
        {{.cut = {4096, 0, false}, .copies = 1, .block_bytes = 0}, 2, 16384}, // floats anyway
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int64_t bytes = qn_split_row_bytes(&cases[i].gather, cases[i].n);
        if (bytes != cases[i].bytes)
            fail_msg("case %zu: %lld bytes, want %lld", i, (long long)bytes,
                     (long long)cases[i].bytes);
    }
}

// --- a model and a system ------------------------------------------------------------------------

enum { LAYERS = 2, MAX_N = 8, MB = 1000000 };

// Two equal layers: 8 MB cut by 4 heads, 16 MB cut by 64 tiles; a head of 32 MB for 1600 tokens.
// Reads 10 GB/s, of which 90 % are counted: 9 MB a millisecond. Multiplies 1 TOP/s, of which
// 28 % are counted: 280 million operations a millisecond.
static qn_split_model make_model(void) {
    qn_split_model model;
    qn_err err;
    ASSERT_OK(qn_split_model_init(&model, LAYERS, &err));
    model.width = 1024;
    model.vocab = (qn_split_cut){.values = 1600};
    model.embed_bytes = 20 * MB;
    for (int i = 0; i < LAYERS; i++) {
        qn_split_layer *l = &model.layers[i];
        const qn_split_part heads = {.cut = {1024, 4, false},
                                     .bytes = 8 * MB,
                                     .ops = 16e6,
                                     .used = 1},
                            tiles = {
                                .cut = {1024, 0, false}, .bytes = 16 * MB, .ops = 32e6, .used = 1};
        ASSERT_OK(qn_split_add_part(l, &heads, &err));
        ASSERT_OK(qn_split_add_part(l, &tiles, &err));
        ASSERT_OK(qn_split_add_gather(
            l, &(qn_split_gather){.cut = heads.cut, .copies = 1, .block_bytes = 576}, &err));
        ASSERT_OK(qn_split_add_gather(l, &(qn_split_gather){.cut = tiles.cut, .copies = 1}, &err));
        l->state = heads.cut;
        l->state_row = 9000;
    }
    ASSERT_OK(qn_split_add_part(
        &model.head,
        &(qn_split_part){.cut = {1600, 0, false}, .bytes = 32 * MB, .ops = 64e6, .used = 1}, &err));
    return model;
}

static qn_split_rank ranks[MAX_N];

static qn_split_system make_system(int n) {
    for (int r = 0; r < MAX_N; r++)
        ranks[r] = (qn_split_rank){.read_gbs = 10, .int8_tops = 1, .f32_gflops = 250};
    return (qn_split_system){
        .ranks = ranks, .n = n, .link = {.latency_us = 50, .message_us = 5, .gbs = 0.125}};
}

static const qn_step_size token = {.rows = 1, .seqs = 1, .outs = 1};

static void one_rank_reads_everything(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system one = make_system(1);
    // (2 (8 + 16) + 32) MB / 9 MB a ms
    const qn_split_cost cost = qn_split_tensors(&model, &one, &token);
    assert_near(cost.seconds, 80e-3 / 9, "a token");
    assert_true(cost.network == 0 && cost.bytes == 0 && cost.messages == 0);
    const qn_split_share all = {.end = LAYERS};
    assert_near(qn_split_layers(&model, &one, &all, &token, 1).seconds, cost.seconds, "layers");
    // 100 rows: 100 x 2 x (16 + 32) million operations, 34.3 ms, and reading is hidden behind them;
    // the head has one row.
    const qn_step_size many = {.rows = 100, .seqs = 1, .outs = 1};
    assert_near(qn_split_tensors(&model, &one, &many).seconds, 9600e6 / 0.28e12 + 32e-3 / 9,
                "100 rows");
    // 1000 positions before: 2 x 9000 bytes each.
    const qn_step_size deep = {.rows = 1, .seqs = 1, .outs = 1, .depth = 1000};
    assert_near(qn_split_tensors(&model, &one, &deep).seconds, (80e-3 + 18e-3) / 9, "depth 1000");
    model.layers[0].window = 100;
    assert_near(qn_split_tensors(&model, &one, &deep).seconds, (80e-3 + 9e-3 + 0.9e-3) / 9,
                "a window of 100");
    qn_split_model_deinit(&model);
}

static void tensors_are_shared_and_gathered(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system two = make_system(2), three = make_system(3);
    qn_split_cost cost = qn_split_tensors(&model, &two, &token);
    assert_near(cost.seconds - cost.network, 40e-3 / 9, "two ranks read half of it each");
    // Each layer: heads 4 x 576 = 2304 bytes packed, tiles 4096 bytes; the embedding 4096, the best
    // of the other rank 520, and an order of 3840. Calls: 4 exchanges, embedding, best, order.
    assert_near(cost.bytes, 2 * (2304 + 4096) + 4096 + 520 + 3840, "bytes");
    assert_true(cost.messages == 7);
    // 50 us each, and half of each row at 0.125 GB/s; one of two ranks has the row of the
    // embedding.
    const double gathers = 2 * (50 + 1152 / 125.0 + 50 + 2048 / 125.0);
    const double rest = 50 + 4096 / 125.0 + 50 + 520 / 125.0 + 50 + 3840 / 125.0;
    assert_near(cost.network, (gathers + rest) * 1e-6, "messages");

    // Three: of 4 heads one has 2 and the others 1 (0.5 x 8 MB); of 64 tiles 22 (22/64 x 16 MB), of
    // 100 tiles of the head 34.
    cost = qn_split_tensors(&model, &three, &token);
    assert_near(cost.seconds - cost.network, (2 * (4 + 5.5) + 0.34 * 32) * 1e-3 / 9, "three");
    // The largest part goes out twice, the second message costs 5 us more.
    const double heads = 55 + 2 * 2 * 576 / 125.0, tiles = 55 + 2 * 22 * 64 / 125.0;
    const double ends = 55 + 2 * 4096 / 125.0 + 55 + 2 * 520 / 125.0 + 2 * (50 + 3840 / 125.0);
    assert_near(cost.network, (2 * (heads + tiles) + ends) * 1e-6, "messages of three");
    qn_split_model_deinit(&model);
}

// What is longer than 64 KiB is announced and asked for.
static void long_messages_take_three_trips(void **state) {
    (void)state;
    const qn_split_link link = {.latency_us = 100, .message_us = 10, .gbs = 1};
    assert_near(qn_split_message_seconds(&link, 65536), 100e-6 + 65.536e-6, "64 KiB");
    assert_near(qn_split_message_seconds(&link, 65537), 300e-6 + 65.537e-6, "a byte more");
    assert_near(qn_split_exchange_seconds(&link, 5, 1000), 130e-6 + 4e-6, "five ranks");
    assert_near(qn_split_exchange_seconds(&link, 5, 100000), 330e-6 + 400e-6, "much");
}

static void the_slowest_rank_counts(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system two = make_system(2);
    ranks[1].read_gbs = 5;
    const qn_split_cost cost = qn_split_tensors(&model, &two, &token);
    assert_near(cost.seconds - cost.network, 80e-3 / 9, "half as fast on half of it");
    qn_split_model_deinit(&model);
}

// Of 8 experts each row takes 2: one row reads a quarter, two rows 1 - (3/4)^2 = 7/16.
static void experts_are_read_as_they_are_chosen(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system one = make_system(1);
    qn_err err;
    const double plain = qn_split_tensors(&model, &one, &token).seconds;
    ASSERT_OK(qn_split_add_part(
        &model.layers[0],
        &(qn_split_part){.cut = {1024, 0, true}, .bytes = 16 * MB, .ops = 8e6, .used = 0.25},
        &err));
    assert_near(qn_split_tensors(&model, &one, &token).seconds - plain, 4e-3 / 9, "one row");
    const qn_step_size two = {.rows = 2, .seqs = 2, .outs = 1};
    assert_near(qn_split_tensors(&model, &one, &two).seconds - plain, 7e-3 / 9, "two rows");
    qn_split_model_deinit(&model);
}

static void layers_run_one_after_the_other(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system two = make_system(2);
    const qn_split_share shares[] = {{.first = 0, .end = 1}, {.first = 1, .end = 2}};
    // One token: all of it, a row of 4096 bytes to the next rank and 520 bytes back.
    qn_split_cost cost = qn_split_layers(&model, &two, shares, &token, 1);
    const double hop = (50 + 4096 / 125.0) * 1e-6, back = (50 + 520 / 125.0) * 1e-6;
    assert_near(cost.network, hop + back, "messages");
    assert_near(cost.seconds, 80e-3 / 9 + hop + back, "one part");
    assert_near(cost.bytes, 4096 + 520 + 3840, "bytes");
    assert_true(cost.messages == 3);
    // 512 rows in 4 parts of 128: layers of 128 x 48 million operations, 21.94 ms; the head is with
    // the second. Three more of the longest, which is the second rank's.
    const qn_step_size many = {.rows = 512, .seqs = 1, .outs = 1};
    cost = qn_split_layers(&model, &two, shares, &many, 4);
    const double layer = 128 * 48e6 / 0.28e12, head = 32e-3 / 9;
    const double sent = (150 + 128 * 4096 / 125.0) * 1e-6; // announced, asked for, sent
    assert_near(cost.seconds, 2 * layer + head + 3 * (layer + head) + sent + back, "four parts");
    // Over a slow network handing on is the longest stage.
    qn_split_system slow = two;
    slow.link.gbs = 0.001;
    const double bytes = 128 * 4096 / 1e6;
    assert_near(qn_split_layers(&model, &slow, shares, &many, 4).seconds,
                2 * layer + head + 4 * bytes + 150e-6 + 50e-6 + 520 / 1e6, "a slow network");
    qn_split_model_deinit(&model);
}

// Sequences that decode together go in as many groups as there are ranks.
static void groups_of_sequences_keep_ranks_at_work(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system one = make_system(1), two = make_system(2);
    const qn_split_share whole = {.end = 2};
    const qn_split_share shares[] = {{.first = 0, .end = 1}, {.first = 1, .end = 2}};
    const qn_step_size ten = {.rows = 10, .seqs = 10, .outs = 10};
    // Alone: weights are read once for all.
    const qn_split_cost alone = qn_split_groups(&model, &one, &whole, &ten);
    assert_near(alone.seconds, 80e-3 / 9, "one rank");
    assert_near(alone.network, 0, "no messages");
    // Two groups of 5: the second rank reads a layer of 24 MB and the head of 32 MB for each.
    qn_split_cost cost = qn_split_groups(&model, &two, shares, &ten);
    assert_near(cost.seconds, 2 * (24e-3 + 32e-3) / 9, "the slower rank, twice");
    assert_near(cost.network, 0, "messages while others compute");
    assert_near(cost.bytes, 10 * (4096 + 520) + 2 * 3840, "bytes");
    assert_true(cost.messages == 6); // an order, rows, and best logits, of each group
    // With more than 7 rows in a group, best logits go in two messages.
    const qn_step_size many = {.rows = 16, .seqs = 16, .outs = 16};
    assert_true(qn_split_groups(&model, &two, shares, &many).messages == 8);
    // One sequence waits for every rank and message.
    cost = qn_split_groups(&model, &two, shares, &token);
    assert_near(cost.seconds, qn_split_layers(&model, &two, shares, &token, 1).seconds, "one");
    // So do groups where messages take longer than the slower rank's other work.
    qn_split_system far = two;
    far.link.latency_us = 20000;
    cost = qn_split_groups(&model, &far, shares, &ten);
    const double sent = 40e-3 + 5 * (4096 + 520) / 125e6;
    assert_near(cost.seconds, 80e-3 / 9 + sent, "a far rank");
    assert_near(cost.network, 80e-3 / 9 + sent - 2 * 56e-3 / 9, "what is not computed meanwhile");
    assert_int_equal(qn_split_lanes(3, 8), 3);
    assert_int_equal(qn_split_lanes(3, 2), 2);
    assert_int_equal(qn_split_lanes(64, 100), 16);
    qn_split_model_deinit(&model);
}

static void steps_go_in_parts(void **state) {
    (void)state;
    static const struct {
        int64_t rows;
        int n;
        int64_t parts;
    } cases[] = {{1, 2, 1},   {15, 2, 1},   {32, 2, 2},   {255, 2, 8},    {256, 2, 4},
                 {512, 2, 8}, {512, 64, 8}, {4096, 2, 8}, {4096, 64, 16}, {4096, 1, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(qn_split_parts(cases[i].rows, cases[i].n), cases[i].parts);
}

static void shares_of_memory(void **state) {
    (void)state;
    qn_split_model model = make_model();
    qn_split_share share;
    // Of three ranks the last has 2 of 4 heads, 22 of 64 tiles, 34 of 100 tiles of the head and of
    // the embedding.
    qn_split_tensor_share(&share, &model, 3, 2);
    assert_int_equal(share.weights, 2 * (4 * MB + 5500000) + 10880000 + 6800000);
    assert_int_equal(share.state_row, 2 * 4500);
    assert_int_equal(qn_split_memory(&share, 100), share.weights + 900000 + QN_SPLIT_RESERVE);
    share = (qn_split_share){.first = 0, .end = 1};
    qn_split_layer_share(&share, &model);
    assert_int_equal(share.weights, 44 * MB); // a layer and the embedding
    share = (qn_split_share){.first = 1, .end = 2};
    qn_split_layer_share(&share, &model);
    assert_int_equal(share.weights, 56 * MB); // a layer and the output matrix
    assert_int_equal(share.state_row, 9000);
    // A table that is the output matrix is on both ranks, and once on a rank that has all layers.
    model.tied_bytes = 32 * MB;
    model.embed_bytes = 0;
    share = (qn_split_share){.first = 0, .end = 1};
    qn_split_layer_share(&share, &model);
    assert_int_equal(share.weights, 56 * MB);
    share = (qn_split_share){.first = 0, .end = 2};
    qn_split_layer_share(&share, &model);
    assert_int_equal(share.weights, 80 * MB);
    model.layers[0].window = 100; // kept with a page more, whatever the context
    share = (qn_split_share){.first = 0, .end = 2};
    qn_split_layer_share(&share, &model);
    assert_int_equal(share.state_row, 9000);
    assert_int_equal(share.state_fixed, 9000 * 164);
    share.state_row = INT64_MAX / 2;
    assert_int_equal(qn_split_memory(&share, 1000), INT64_MAX);
    qn_split_model_deinit(&model);
}

// --- more is never worse -------------------------------------------------------------------------

static double random_between(uint64_t *seed, double from, double to) {
    return from + (to - from) * next_random(seed) / 2147483648.0;
}

static qn_split_model random_model(uint64_t *seed, int64_t n_layers) {
    qn_split_model model;
    qn_err err;
    ASSERT_OK(qn_split_model_init(&model, n_layers, &err));
    model.width = 16 * (1 + next_random(seed) % 512);
    model.embed_bytes = next_random(seed) % (64 * MB);
    model.vocab = (qn_split_cut){.values = 32000};
    for (int64_t i = 0; i < n_layers; i++) {
        const double bytes = random_between(seed, 1e6, 2e8);
        const qn_split_part part = {
            .cut = {model.width, 0, true}, .bytes = (int64_t)bytes, .ops = 3 * bytes, .used = 1};
        ASSERT_OK(qn_split_add_part(&model.layers[i], &part, &err));
        ASSERT_OK(qn_split_add_gather(
            &model.layers[i], &(qn_split_gather){.cut = part.cut, .copies = 1, .block_bytes = 576},
            &err));
        model.layers[i].state = part.cut;
        model.layers[i].state_row = next_random(seed) % 10000;
    }
    const qn_split_part head = {
        .cut = model.vocab, .bytes = next_random(seed) % (64 * MB), .ops = 1e8, .used = 1};
    ASSERT_OK(qn_split_add_part(&model.head, &head, &err));
    return model;
}

static void assert_no_slower(const qn_split_model *model, const qn_split_system *worse,
                             const qn_split_system *better, const qn_split_share *shares) {
    static const qn_step_size steps[] = {{.rows = 1, .seqs = 1, .outs = 1},
                                         {.rows = 32, .seqs = 32, .outs = 32, .depth = 1000},
                                         {.rows = 512, .seqs = 1, .outs = 1}};
    const double slack = 1 + 1e-12;
    for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
        assert_true(qn_split_tensors(model, better, &steps[i]).seconds <=
                    qn_split_tensors(model, worse, &steps[i]).seconds * slack);
        assert_true(qn_split_layers(model, better, shares, &steps[i], 1).seconds <=
                    qn_split_layers(model, worse, shares, &steps[i], 1).seconds * slack);
        assert_true(qn_split_layers(model, better, shares, &steps[i], 4).seconds <=
                    qn_split_layers(model, worse, shares, &steps[i], 4).seconds * slack);
    }
}

static void what_is_faster_is_never_slower(void **state) {
    (void)state;
    uint64_t seed = 3;
    for (int round = 0; round < 200; round++) {
        const int n = 1 + (int)(next_random(&seed) % MAX_N);
        qn_split_model model = random_model(&seed, 12);
        const qn_split_system worse = make_system(n);
        qn_split_rank fast[MAX_N];
        qn_split_share shares[MAX_N];
        qn_err err;
        ASSERT_OK(qn_split_divide(shares, &model, &worse, 0, &err));
        memcpy(fast, ranks, sizeof fast);
        qn_split_system better = {.ranks = fast, .n = n, .link = worse.link};
        switch (round % 5) {
        case 0:
            better.link.gbs *= random_between(&seed, 1, 100);
            break;
        case 1:
            better.link.latency_us *= random_between(&seed, 0, 1);
            break;
        case 2:
            better.link.message_us *= random_between(&seed, 0, 1);
            break;
        case 3:
            fast[next_random(&seed) % (uint32_t)n].read_gbs *= random_between(&seed, 1, 9);
            break;
        default:
            fast[next_random(&seed) % (uint32_t)n].int8_tops *= random_between(&seed, 1, 9);
        }
        assert_no_slower(&model, &worse, &better, shares);
        qn_split_model_deinit(&model);
    }
}

// --- shares of layers ----------------------------------------------------------------------------

// What qn_split_divide goes by, computed once more: of layers [first, end) on rank r.
static double judge(const qn_split_model *model, const qn_split_system *s, int r, int64_t first,
                    int64_t end) {
    const qn_split_system one = {.ranks = &s->ranks[r], .n = 1};
    const qn_split_share share = {.first = first, .end = end};
    const qn_step_size prompt = {.rows = 512, .seqs = 1};
    return qn_split_layers(model, &one, &share, &token, 1).seconds +
           qn_split_layers(model, &one, &share, &prompt, 1).seconds / 64;
}

static bool has_room(const qn_split_model *model, const qn_split_system *s, int r, int64_t first,
                     int64_t end, int64_t context) {
    qn_split_share share = {.first = first, .end = end};
    qn_split_layer_share(&share, model);
    return s->ranks[r].memory <= 0 || qn_split_memory(&share, context) <= s->ranks[r].memory;
}

// The least time of the slowest rank, of all divisions of the layers from `first` on among the
// ranks from r on; infinite: none fits.
static double try_all(const qn_split_model *model, const qn_split_system *s, int r, int64_t first,
                      int64_t context) {
    double best = INFINITY;
    if (r == s->n) return first == model->n_layers ? 0 : INFINITY;
    for (int64_t end = first + 1; end <= model->n_layers; end++) {
        if (!has_room(model, s, r, first, end, context)) continue;
        const double own = judge(model, s, r, first, end);
        best = fmin(best, fmax(own, try_all(model, s, r + 1, end, context)));
    }
    return best;
}

static double slowest_of(const qn_split_model *model, const qn_split_system *s,
                         const qn_split_share *shares) {
    double slowest = 0;
    for (int r = 0; r < s->n; r++)
        slowest = fmax(slowest, judge(model, s, r, shares[r].first, shares[r].end));
    return slowest;
}

static void assert_is_division(const qn_split_share *shares, int n, int64_t n_layers) {
    int64_t at = 0;
    for (int r = 0; r < n; r++) {
        assert_int_equal(shares[r].first, at);
        assert_true(shares[r].end > at);
        at = shares[r].end;
    }
    assert_int_equal(at, n_layers);
}

static void no_division_is_better(void **state) {
    (void)state;
    uint64_t seed = 11;
    int n_fitting = 0, n_too_large = 0;
    for (int round = 0; round < 400; round++) {
        const int n = 1 + (int)(next_random(&seed) % 5);
        const int64_t n_layers = n + (int64_t)(next_random(&seed) % 7);
        const int64_t context = next_random(&seed) % 4096;
        qn_split_model model = random_model(&seed, n_layers);
        const qn_split_system s = make_system(n);
        qn_split_share shares[MAX_N];
        qn_err err;
        for (int r = 0; r < n; r++) {
            ranks[r].read_gbs = random_between(&seed, 2, 40);
            ranks[r].int8_tops = random_between(&seed, 0.1, 4);
            if (next_random(&seed) % 2)
                ranks[r].memory = QN_SPLIT_RESERVE + (int64_t)random_between(&seed, 1e8, 8e8);
        }
        const double best = try_all(&model, &s, 0, 0, context);
        if (isinf(best)) {
            ASSERT_FAILS(qn_split_divide(shares, &model, &s, context, &err), QN_LIMIT,
                         "MiB of memory are free");
            n_too_large++;
        } else {
            ASSERT_OK(qn_split_divide(shares, &model, &s, context, &err));
            assert_is_division(shares, n, n_layers);
            for (int r = 0; r < n; r++)
                assert_true(has_room(&model, &s, r, shares[r].first, shares[r].end, context));
            if (slowest_of(&model, &s, shares) > best * (1 + 1e-8))
                fail_msg("round %d: %g, want %g", round, slowest_of(&model, &s, shares), best);
            n_fitting++;
        }
        qn_split_model_deinit(&model);
    }
    assert_true(n_fitting > 100 && n_too_large > 20);
}

// Equal ranks and layers, and nothing after the layers: of all that are as fast, the most even.
static void equal_ranks_get_about_the_same(void **state) {
    (void)state;
    qn_split_model model;
    qn_err err;
    qn_split_share shares[MAX_N];
    ASSERT_OK(qn_split_model_init(&model, 36, &err));
    for (int i = 0; i < 36; i++)
        ASSERT_OK(qn_split_add_part(
            &model.layers[i],
            &(qn_split_part){.cut = {64, 0, false}, .bytes = MB, .ops = 2e6, .used = 1}, &err));
    for (int n = 1; n <= MAX_N; n++) {
        const qn_split_system s = make_system(n);
        ASSERT_OK(qn_split_divide(shares, &model, &s, 0, &err));
        assert_is_division(shares, n, 36);
        for (int r = 0; r < n; r++) {
            const int64_t own = shares[r].end - shares[r].first;
            assert_true(own == 36 / n || own == (36 + n - 1) / n);
        }
    }
    qn_split_model_deinit(&model);
}

static void more_ranks_than_layers(void **state) {
    (void)state;
    qn_split_model model = make_model();
    qn_split_share shares[MAX_N];
    qn_err err;
    const qn_split_system s = make_system(3);
    ASSERT_FAILS(qn_split_divide(shares, &model, &s, 0, &err), QN_ARGUMENT,
                 "3 ranks for a model of 2 layers");
    qn_split_model_deinit(&model);
}

// --- what people type ----------------------------------------------------------------------------

static void shares_are_numbers(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n;
        int64_t layers, ends[4];
    } cases[] = {
        {"1", 1, 28, {28}},
        {"3,1", 2, 28, {21, 28}},
        {"1,1,1", 3, 28, {9, 19, 28}}, // 9.33 and 18.67, rounded
        {"14,7,4,3", 4, 28, {14, 21, 25, 28}},
        {"1,1000000", 2, 28, {1, 28}}, // everybody has a layer
        {"1000000,1,1", 3, 4, {2, 3, 4}},
        {"1,1,1,1000000", 4, 4, {1, 2, 3, 4}},
        {"0003,01", 2, 4, {3, 4}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_split_share shares[4];
        qn_err err;
        ASSERT_OK(qn_split_parse_shares(shares, cases[i].text, cases[i].n, cases[i].layers, &err));
        assert_is_division(shares, cases[i].n, cases[i].layers);
        for (int r = 0; r < cases[i].n; r++) {
            if (shares[r].end != cases[i].ends[r])
                fail_msg("%s: rank %d ends at %lld, want %lld", cases[i].text, r,
                         (long long)shares[r].end, (long long)cases[i].ends[r]);
        }
    }
}

static void wrong_shares_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text;
        int n;
        int64_t layers;
        const char *part;
    } bad[] = {
        {"3,1", 3, 28, "shares '3,1': 2 numbers for 3 ranks"},
        {"3,1,1", 2, 28, "shares '3,1,1': 3 numbers for 2 ranks"},
        {"3", 2, 28, "1 numbers for 2 ranks"},
        {"0,1", 2, 28, "shares '0,1': '0,1' at byte 0, want 1 to 1000000"},
        {"1,0", 2, 28, "'0' at byte 2, want 1 to 1000000"},
        {"1,1000001", 2, 28, "want 1 to 1000000"},
        {"99999999999999999999999999,1", 2, 28, "want 1 to 1000000"},
        {"", 1, 28, "shares '': no number at byte 0"},
        {"", 2, 28, "no number at byte 0"},
        {",", 2, 28, "no number at byte 0"},
        {"1,", 2, 28, "no number at byte 2"},
        {",1", 2, 28, "no number at byte 0"},
        {"1,,1", 3, 28, "no number at byte 2"},
        {"-1,2", 2, 28, "'-' at byte 0, want digits and commas"},
        {"1,2x", 2, 28, "'x' at byte 3, want digits and commas"},
        {"1.5,2", 2, 28, "'.' at byte 1"},
        {" 1,2", 2, 28, "' ' at byte 0"},
        {"1;2", 2, 28, "';' at byte 1"},
        {"0x10,1", 2, 28, "'x' at byte 1"},
        {"1,1,1", 3, 2, "3 ranks for a model of 2 layers"},
        {"1", 0, 2, "0 ranks for a model of 2 layers"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        qn_split_share shares[4];
        qn_err err = {0};
        ASSERT_FAILS(qn_split_parse_shares(shares, bad[i].text, bad[i].n, bad[i].layers, &err),
                     QN_ARGUMENT, bad[i].part);
    }
    // A long text is refused with its beginning; bytes of any value do no harm.
    static char text[100001];
    qn_split_share shares[4];
    qn_err err;
    memset(text, '1', sizeof text - 1);
    ASSERT_FAILS(qn_split_parse_shares(shares, text, 4, 28, &err), QN_ARGUMENT, "1111");
    memset(text, ',', sizeof text - 1);
    ASSERT_FAILS(qn_split_parse_shares(shares, text, 4, 28, &err), QN_ARGUMENT, "no number");
    uint64_t seed = 5;
    for (int round = 0; round < 20000; round++) {
        static const char alphabet[] = "0123456789,,,,,,\x01\xff-";
        char junk[12] = {0};
        for (int k = 0; k < 10; k++)
            junk[k] = alphabet[next_random(&seed) % (uint32_t)sizeof alphabet];
        if (!qn_split_parse_shares(shares, junk, 3, 28, &err)) assert_is_division(shares, 3, 28);
    }
}

// --- the plan ------------------------------------------------------------------------------------

static qn_split_plan *make_plan(const qn_split_model *model, const qn_split_system *s,
                                qn_split asked) {
    qn_split_plan *plan = NULL;
    qn_err err;
    ASSERT_OK(qn_split_plan_create(
        &plan, model, s, &(qn_split_plan_opts){.split = asked, .system_name = "threads"}, &err));
    return plan;
}

static void the_network_decides(void **state) {
    (void)state;
    qn_split_model model = make_model();
    qn_split_system s = make_system(2);
    // Half of 8.9 ms, and 0.6 ms of messages: less than 9 ms through layers.
    qn_split_plan *plan = make_plan(&model, &s, QN_SPLIT_AUTO);
    assert_int_equal(plan->split, QN_SPLIT_TENSORS);
    assert_non_null(strstr(plan->why, "tensors: a token takes"));
    assert_ptr_equal(qn_split_plan_chosen(plan), &plan->tensors);
    assert_ptr_equal(qn_split_plan_other(plan), &plan->layers);
    qn_split_plan_destroy(plan);
    // 7 messages that take 2 ms each are more than the half that two ranks save.
    s.link.latency_us = 2000;
    plan = make_plan(&model, &s, QN_SPLIT_AUTO);
    assert_int_equal(plan->split, QN_SPLIT_LAYERS);
    assert_non_null(strstr(plan->why, "layers: by tensors, 7 messages of 20"));
    assert_non_null(strstr(plan->why, "handing rows on takes 4.04 ms"));
    qn_split_plan_destroy(plan);
    // What is asked for is done.
    plan = make_plan(&model, &s, QN_SPLIT_TENSORS);
    assert_int_equal(plan->split, QN_SPLIT_TENSORS);
    assert_string_equal(plan->why, "tensors: asked for");
    qn_split_plan_destroy(plan);
    s.n = 1;
    plan = make_plan(&model, &s, QN_SPLIT_AUTO);
    assert_string_equal(plan->why, "tensors: there is one rank");
    assert_near(plan->layers.decode.seconds, plan->tensors.decode.seconds, "one rank");
    qn_split_plan_destroy(plan);
    qn_split_model_deinit(&model);
}

static void what_does_not_fit_loses(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system s = make_system(2);
    const qn_split_plan_opts any = {.split = QN_SPLIT_AUTO, .context = 1000},
                             by_tensors = {.split = QN_SPLIT_TENSORS, .context = 1000},
                             by_layers = {.split = QN_SPLIT_LAYERS, .context = 1000};
    qn_split_plan *plan = NULL;
    qn_err err;
    // By tensors both need 50 MB of weights and 9 MB of state; by layers 44 and 56 MB, and 9 MB.
    ranks[0].memory = QN_SPLIT_RESERVE + 54 * MB;
    ranks[1].memory = QN_SPLIT_RESERVE + 66 * MB;
    ASSERT_OK(qn_split_plan_create(&plan, &model, &s, &any, &err));
    assert_int_equal(plan->split, QN_SPLIT_LAYERS);
    assert_non_null(strstr(plan->why, "layers: by tensors, rank 0 needs 0.12 GiB"));
    qn_split_plan_destroy(plan);
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &by_tensors, &err), QN_MEMORY,
                 "a split by tensors over 2 ranks: rank 0 needs 0.12 GiB for its share and 1000 "
                 "positions, 0.11 GiB of memory are free");
    // And the other way round.
    ranks[0].memory = ranks[1].memory = QN_SPLIT_RESERVE + 60 * MB;
    ASSERT_OK(qn_split_plan_create(&plan, &model, &s, &any, &err));
    assert_int_equal(plan->split, QN_SPLIT_TENSORS);
    assert_non_null(strstr(plan->why, "tensors: by layers, layers 1 to 1 need"));
    qn_split_plan_destroy(plan);
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &by_layers, &err), QN_MEMORY,
                 "a split by layers over 2 ranks: layers 1 to 1 need 126 MiB on rank 1, 121 MiB");
    ranks[1].memory = 1;
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &any, &err), QN_MEMORY,
                 "by tensors, rank 1 needs 0.12 GiB for its share and 1000 positions, 0.00 GiB");
    qn_split_model_deinit(&model);
}

static void wrong_plans_are_refused(void **state) {
    (void)state;
    qn_split_model model = make_model();
    qn_split_system s = make_system(3);
    qn_split_plan *plan = NULL;
    qn_err err;
    static const struct {
        qn_split_plan_opts opts;
        const char *part;
    } bad[] = {
        {{.split = QN_SPLIT_NONE}, "split 0 of 4"},
        {{.split = (qn_split)9}, "split 9 of 4"},
        {{.split = QN_SPLIT_TENSORS, .shares = "1,1,1"}, "shares '1,1,1' are of layers"},
        {{.split = QN_SPLIT_LAYERS}, "3 ranks for a model of 2 layers"},
        {{.split = QN_SPLIT_AUTO, .context = -1}, "a context of -1 positions"},
        {{.split = QN_SPLIT_AUTO, .shares = "1,1"}, "3 ranks for a model of 2 layers"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &bad[i].opts, &err), QN_ARGUMENT,
                     bad[i].part);
    // More ranks than layers leave the other way.
    plan = make_plan(&model, &s, QN_SPLIT_AUTO);
    assert_int_equal(plan->split, QN_SPLIT_TENSORS);
    assert_string_equal(plan->layers.problem, "3 ranks for a model of 2 layers, want 1 to 2");
    qn_split_plan_destroy(plan);
    plan = NULL;
    const qn_split_plan_opts any = {.split = QN_SPLIT_AUTO};
    s.link.gbs = 0;
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &any, &err), QN_ARGUMENT,
                 "between ranks: 0 GB/s");
    s.link.gbs = NAN;
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &any, &err), QN_ARGUMENT, "nan GB/s");
    s.link.gbs = 1;
    ranks[2].read_gbs = INFINITY;
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &any, &err), QN_ARGUMENT,
                 "rank 2: reads inf GB/s");
    s.n = 0;
    ASSERT_FAILS(qn_split_plan_create(&plan, &model, &s, &any, &err), QN_ARGUMENT, "0 ranks");
    assert_null(plan);
    qn_split_model_deinit(&model);
}

static json_int_t int_of(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

static void a_plan_is_json(void **state) {
    (void)state;
    qn_split_model model = make_model();
    const qn_split_system s = make_system(2);
    qn_err err;
    char *text = NULL;
    json_t *json = NULL;
    ranks[1].memory = 123456789;
    qn_split_plan *plan = make_plan(&model, &s, QN_SPLIT_AUTO);
    ASSERT_OK(qn_split_plan_json(&text, plan, &err));
    ASSERT_OK(qn_json_parse(&json, text, strlen(text), false, "plan", &err));
    assert_string_equal(json_string_value(json_object_get(json, "split")), "tensors");
    assert_string_equal(json_string_value(json_object_get(json, "system")), "threads");
    assert_string_equal(json_string_value(json_object_get(json, "why")), plan->why);
    assert_int_equal(int_of(json, "ranks"), 2);
    assert_true(json_is_null(json_object_get(json, "problem")));
    const json_t *network = json_object_get(json, "network");
    assert_true(json_number_value(json_object_get(network, "latency_us")) == 50);
    assert_true(json_number_value(json_object_get(network, "gbs")) == 0.125);
    const json_t *shares = json_object_get(json, "shares"), *second = json_array_get(shares, 1);
    assert_int_equal(json_array_size(shares), 2);
    assert_int_equal(int_of(second, "rank"), 1);
    assert_int_equal(int_of(second, "weights"), 50 * MB);
    assert_int_equal(int_of(second, "state_per_token"), 9000);
    assert_int_equal(int_of(second, "memory"), 50 * MB + QN_SPLIT_RESERVE);
    assert_int_equal(int_of(second, "free"), 123456789);
    assert_true(json_is_null(json_object_get(json_array_get(shares, 0), "free")));
    const json_t *token_json = json_object_get(json, "per_token");
    assert_int_equal(int_of(token_json, "messages"), 7);
    assert_int_equal(int_of(token_json, "bytes"), 2 * (2304 + 4096) + 4096 + 520 + 3840);
    const json_t *predicted = json_object_get(json, "predicted");
    assert_near(json_number_value(json_object_get(predicted, "decode_tps")) / 1e6,
                round(1 / plan->tensors.decode.seconds * 1e3) / 1e9, "decode"); // 6 digits
    const json_t *other = json_object_get(json, "other");
    assert_string_equal(json_string_value(json_object_get(other, "split")), "layers");
    const json_t *range =
        json_object_get(json_array_get(json_object_get(other, "shares"), 1), "layers");
    assert_int_equal(json_integer_value(json_array_get(range, 0)), 1);
    assert_int_equal(json_integer_value(json_array_get(range, 1)), 2);
    json_decref(json);
    qn_free(text);
    qn_split_plan_destroy(plan);

    // A way that there is not has no numbers.
    const qn_split_system three = make_system(3);
    plan = make_plan(&model, &three, QN_SPLIT_AUTO);
    ASSERT_OK(qn_split_plan_json(&text, plan, &err));
    ASSERT_OK(qn_json_parse(&json, text, strlen(text), false, "plan", &err));
    other = json_object_get(json, "other");
    assert_true(json_is_null(json_object_get(other, "predicted")));
    assert_int_equal(json_array_size(json_object_get(other, "shares")), 0);
    assert_non_null(json_string_value(json_object_get(other, "problem")));
    json_decref(json);
    qn_free(text);
    qn_split_plan_destroy(plan);
    qn_split_model_deinit(&model);
}

// --- models --------------------------------------------------------------------------------------

static qn_split_model read_model(const qn_engine *engine) {
    qn_split_model model;
    qn_err err;
    const qn_split_basis basis = {.backend = engine->stages[0].device->backend,
                                  .n_layers = engine->model->hparams->layers,
                                  .cache_type = engine->cache_type,
                                  .numerics = engine->opts.numerics};
    ASSERT_OK(qn_split_model_read(&model, engine->graph, &basis, &err));
    return model;
}

static int64_t all_weights(const qn_split_model *model) {
    qn_split_share share;
    qn_split_tensor_share(&share, model, 1, 0);
    return share.weights;
}

// Every weight is counted once, and the shares of all ranks are the whole and what all have.
static void every_weight_is_counted(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FAMILIES; f++) {
        qn_engine *engine =
            family_open(families[f], &QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true));
        qn_split_model model = read_model(engine);
        const qn_engine_info info = engine_info(engine);
        if (all_weights(&model) != info.weight_bytes)
            fail_msg("%s: %lld bytes, want %lld", families[f], (long long)all_weights(&model),
                     (long long)info.weight_bytes);
        assert_int_equal(model.width, info.width);
        assert_int_equal(model.vocab.values, info.n_vocab);
        for (int n = 2; n <= 4; n++) {
            int64_t sum = 0;
            for (int r = 0; r < n; r++) {
                qn_split_share share;
                qn_split_tensor_share(&share, &model, n, r);
                assert_true(share.weights < info.weight_bytes);
                sum += share.weights;
            }
            assert_true(sum >= info.weight_bytes && sum < n * info.weight_bytes);
        }
        qn_split_model_deinit(&model);
        qn_engine_close(engine);
    }
}

// qwen3 with 2 layers, width 256, 4 heads of 64 and 2 for keys and values, 512 inner values, 512
// tokens; all matrices Q4_K (144 bytes for 256 values), but value and down matrices of some layers
// and the output Q6_K (210).
static void a_model_by_hand(void **state) {
    (void)state;
    qn_engine *engine = family_open(TEST_DATA "/k256/qwen3/qwen3-Q4_K_M.gguf",
                                    &QN_INIT(qn_engine_opts, .n_threads = 1, .no_weights = true));
    qn_split_model model = read_model(engine);
    const qn_split_layer *l = &model.layers[0];
    const qn_split_cut heads = {.values = 256, .units = 2};
    // Keys and values of 2 heads of 64 in 16 bits.
    assert_int_equal(l->state_row, 2 * 2 * 64 * 2);
    assert_int_equal(l->state_fixed, 0);
    assert_int_equal(l->state.units, 2);
    // Attention, and the inner values of the feed-forward.
    assert_true(l->n_gathers >= 2);
    assert_int_equal(l->gathers[0].cut.units, heads.units);
    assert_int_equal(l->gathers[0].cut.values, heads.values);
    assert_int_equal(l->gathers[0].block_bytes, 576);
    // A rank has half a block of attention, so floats; 1 of 2 blocks of inner values.
    assert_int_equal(qn_split_row_bytes(&l->gathers[0], 2), 1024);
    const qn_split_gather *inner = &l->gathers[l->n_gathers - 1];
    for (int i = 0; i < l->n_gathers; i++) {
        if (l->gathers[i].cut.by_blocks) inner = &l->gathers[i];
    }
    assert_int_equal(inner->cut.values, 512);
    assert_int_equal(qn_split_row_bytes(inner, 2), 1152);
    // Operations of a layer, two for each of its matrices' values.
    double ops = 0;
    for (int i = 0; i < l->n_parts; i++) ops += l->parts[i].ops;
    assert_near(ops, 2.0 * 256 * (256 + 128 + 128 + 256 + 3 * 512), "operations");
    assert_near(model.head.parts[0].ops, 2.0 * 512 * 256, "operations of the output");
    assert_int_equal(model.head.parts[0].bytes, 512 * 210);
    assert_int_equal(model.embed_bytes, 512 * 144);
    qn_split_model_deinit(&model);
    qn_engine_close(engine);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(units_are_divided_as_the_pass_does),
        cmocka_unit_test(rows_are_packed_in_whole_blocks),
        cmocka_unit_test(one_rank_reads_everything),
        cmocka_unit_test(tensors_are_shared_and_gathered),
        cmocka_unit_test(long_messages_take_three_trips),
        cmocka_unit_test(the_slowest_rank_counts),
        cmocka_unit_test(experts_are_read_as_they_are_chosen),
        cmocka_unit_test(layers_run_one_after_the_other),
        cmocka_unit_test(groups_of_sequences_keep_ranks_at_work),
        cmocka_unit_test(steps_go_in_parts),
        cmocka_unit_test(shares_of_memory),
        cmocka_unit_test(what_is_faster_is_never_slower),
        cmocka_unit_test(no_division_is_better),
        cmocka_unit_test(equal_ranks_get_about_the_same),
        cmocka_unit_test(more_ranks_than_layers),
        cmocka_unit_test(shares_are_numbers),
        cmocka_unit_test(wrong_shares_are_refused),
        cmocka_unit_test(the_network_decides),
        cmocka_unit_test(what_does_not_fit_loses),
        cmocka_unit_test(wrong_plans_are_refused),
        cmocka_unit_test(a_plan_is_json),
        cmocka_unit_test(every_weight_is_counted),
        cmocka_unit_test(a_model_by_hand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

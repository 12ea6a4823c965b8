// What several machines would make of large models, by the cost model (src/runtime/split_cost.h):
// predictions, not measurements. Prints CSV, one line for each model, number of machines, network
// and split; sequences have 1024 tokens before the decoded one, prompts 512.
//
//   bench_scale [--json] [--svg FILE] [--read GB/s] [--int8 TOP/s] [--f32 GFLOP/s] [--memory GIB]
//               [--type TYPE] [--link LATENCY_US,MESSAGE_US,GB/s]
//
// Without options, machines are 16 cores that read 131 GB/s and compute 9.6 TOP/s with bytes (8
// times what two cores of a Xeon with VNNI do, docs/speed.md), with 64 GiB each.
#include "shape_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const shapes[] = {"qwen3-8b", "llama3.1-70b", "qwen3-235b-a22b",
                                     "llama3.1-405b"};
static const int counts[] = {1, 2, 4, 8, 16, 32, 64};
enum {
    N_SHAPES = sizeof shapes / sizeof *shapes,
    N_COUNTS = sizeof counts / sizeof *counts,
    MAX_MACHINES = 64,
    MAX_NETWORKS = 3,
    N_SPLITS = 2,
    DEPTH = 1024,
    CONTEXT = 8192, // positions that must fit, of one sequence
    MANY = 32,      // sequences that decode together
};

// Messages through the kernel (TCP), which reaches 94 % of a network's rate with frames of 1500
// bytes. Latencies are assumed: of switches and network cards as they are common, not of the best.
typedef struct network {
    const char *name, *colour;
    qn_split_link link;
} network;
static const network usual[MAX_NETWORKS] = {
    {"1 Gbit/s", "#b03a48", {.latency_us = 60, .message_us = 4, .gbs = 0.1175}},
    {"10 Gbit/s", "#c2571a", {.latency_us = 30, .message_us = 3, .gbs = 1.175}},
    {"100 Gbit/s", "#2f6db5", {.latency_us = 15, .message_us = 2, .gbs = 11.75}},
};

typedef struct words {
    bool json;
    const char *svg, *type;
    qn_split_rank machine;
    network networks[MAX_NETWORKS];
    size_t n_networks;
} words;

// A line of the table.
typedef struct point {
    const char *model;
    const network *network;
    qn_split split;
    int machines;
    bool is_possible, fits;
    qn_split_cost token, many, prompt;
    int64_t memory; // of the machine that needs most
} point;

typedef struct table {
    point points[N_SHAPES * N_COUNTS * MAX_NETWORKS * N_SPLITS];
    size_t n;
} table;

static const char *const split_names[] = {
    [QN_SPLIT_TENSORS] = "tensors", [QN_SPLIT_LAYERS] = "layers"};

// --- points --------------------------------------------------------------------------------------

static const qn_step_size one_step = {.rows = 1, .seqs = 1, .outs = 1, .depth = DEPTH};
static const qn_step_size many_step = {.rows = MANY, .seqs = MANY, .outs = MANY, .depth = DEPTH};
static const qn_step_size prompt_step = {.rows = QN_SPLIT_PREFILL, .seqs = 1, .outs = 1};

static qn_split_cost cost_of(const point *p, const qn_split_model *model, const qn_split_system *s,
                             const qn_split_share *shares, const qn_step_size *step) {
    if (p->split == QN_SPLIT_TENSORS) return qn_split_tensors(model, s, step);
    if (step->rows == step->seqs) return qn_split_groups(model, s, shares, step);
    return qn_split_layers(model, s, shares, step, qn_split_parts(step->rows, s->n));
}

// Layers are divided as if memory were unlimited: whether that fits is a column.
static bool find_shares(qn_split_share *shares, const point *p, const qn_split_model *model,
                        const qn_split_system *s) {
    qn_err err;
    if (p->split == QN_SPLIT_TENSORS) {
        for (int r = 0; r < s->n; r++) qn_split_tensor_share(&shares[r], model, s->n, r);
        return true;
    }
    if (qn_split_divide(shares, model, s, CONTEXT, &err)) return false;
    for (int r = 0; r < s->n; r++) qn_split_layer_share(&shares[r], model);
    return true;
}

static void predict(point *p, const qn_split_model *model, const words *w) {
    qn_split_rank machines[MAX_MACHINES];
    qn_split_share shares[MAX_MACHINES];
    const int64_t room = w->machine.memory;
    for (int r = 0; r < p->machines; r++) {
        machines[r] = w->machine;
        machines[r].memory = 0;
    }
    const qn_split_system s = {.ranks = machines, .n = p->machines, .link = p->network->link};
    p->is_possible = find_shares(shares, p, model, &s);
    if (!p->is_possible) return;
    for (int r = 0; r < p->machines; r++) {
        const int64_t need = qn_split_memory(&shares[r], CONTEXT);
        if (need > p->memory) p->memory = need;
    }
    p->fits = p->memory <= room;
    p->token = cost_of(p, model, &s, shares, &one_step);
    p->many = cost_of(p, model, &s, shares, &many_step);
    p->prompt = cost_of(p, model, &s, shares, &prompt_step);
}

static qn_status fill(table *t, const words *w, qn_err *err) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        qn_split_model model;
        QN_TRY(read_shape(&model, shapes[i], w->type, err));
        for (size_t c = 0; c < N_COUNTS; c++) {
            for (size_t k = 0; k < w->n_networks * N_SPLITS; k++) {
                point *p = &t->points[t->n++];
                *p = (point){.model = shapes[i],
                             .machines = counts[c],
                             .network = &w->networks[k / N_SPLITS],
                             .split = k % N_SPLITS ? QN_SPLIT_LAYERS : QN_SPLIT_TENSORS};
                predict(p, &model, w);
            }
        }
        qn_split_model_deinit(&model);
    }
    return QN_OK;
}

// --- as text -------------------------------------------------------------------------------------

static double speed(const qn_split_cost *cost, int64_t tokens) {
    return (double)tokens / cost->seconds;
}

static void print_csv(const table *t) {
    printf("model,machines,network,split,decode_tps,decode_%d_tps,prefill_tps,message_ms,messages,"
           "bytes,memory_gib,fits\n",
           MANY);
    for (size_t i = 0; i < t->n; i++) {
        const point *p = &t->points[i];
        printf("%s,%d,%s,%s,", p->model, p->machines, p->network->name, split_names[p->split]);
        if (p->is_possible)
            printf("%.2f,%.1f,%.1f,%.2f,%.0f,%.0f,%.1f,%s\n", speed(&p->token, 1),
                   speed(&p->many, MANY), speed(&p->prompt, QN_SPLIT_PREFILL),
                   p->token.network * 1e3, p->token.messages, p->token.bytes,
                   (double)p->memory / (1 << 30), p->fits ? "yes" : "no");
        else
            printf(",,,,,,,fewer layers than machines\n");
    }
}

static void print_json(const table *t) {
    printf("[");
    for (size_t i = 0; i < t->n; i++) {
        const point *p = &t->points[i];
        printf("%s\n {\"model\": \"%s\", \"machines\": %d, \"network\": \"%s\", \"split\": \"%s\"",
               i ? "," : "", p->model, p->machines, p->network->name, split_names[p->split]);
        if (p->is_possible)
            printf(", \"decode_tps\": %.2f, \"decode_%d_tps\": %.1f, \"prefill_tps\": %.1f, "
                   "\"message_ms\": %.3f, \"messages\": %.0f, \"bytes\": %.0f, \"memory\": %lld, "
                   "\"fits\": %s",
                   speed(&p->token, 1), MANY, speed(&p->many, MANY),
                   speed(&p->prompt, QN_SPLIT_PREFILL), p->token.network * 1e3, p->token.messages,
                   p->token.bytes, (long long)p->memory, p->fits ? "true" : "false");
        printf("}");
    }
    printf("\n]\n");
}

// --- as a picture --------------------------------------------------------------------------------

enum {
    WIDTH = 860,
    MARGIN = 24,
    TOP = 116, // of the first panel
    PANEL_W = 372,
    PANEL_H = 220,
    GAP_X = 52,
    GAP_Y = 70,
    LEFT = MARGIN + 34,
    HEIGHT = TOP + 2 * PANEL_H + GAP_Y + 52,
};

// A model: tokens a second over machines, both by powers.
typedef struct panel {
    double x, y;     // of its lower left corner
    double from, to; // exponents of 10 of its speeds
} panel;

static double x_of(const panel *at, int machines) {
    return at->x + 12 + log2(machines) / log2(MAX_MACHINES) * (PANEL_W - 24);
}

static double y_of(const panel *at, double tps) {
    return at->y - (log10(tps) - at->from) / (at->to - at->from) * PANEL_H;
}

static bool is_of(const point *p, const char *model, const network *net, qn_split split) {
    return p->is_possible && strcmp(p->model, model) == 0 && p->network == net && p->split == split;
}

// Layers are shown for one network: they hardly depend on it.
static void draw_curve(qn_buf *to, const table *t, const panel *at, const char *model,
                       const network *net, qn_split split) {
    const char *colour = split == QN_SPLIT_LAYERS ? "#5a6675" : net->colour;
    bool is_first = true;
    qn_buf_text(to, "<path d=\"");
    for (size_t i = 0; i < t->n; i++) {
        const point *p = &t->points[i];
        if (!is_of(p, model, net, split)) continue;
        qn_buf_printf(to, "%s%.1f %.1f", is_first ? "M" : "L", x_of(at, p->machines),
                      y_of(at, speed(&p->token, 1)));
        is_first = false;
    }
    qn_buf_printf(to, "\" stroke=\"%s\" stroke-width=\"2\" fill=\"none\"%s/>\n", colour,
                  split == QN_SPLIT_LAYERS ? " stroke-dasharray=\"6 4\"" : "");
    for (size_t i = 0; i < t->n; i++) {
        const point *p = &t->points[i];
        if (!is_of(p, model, net, split)) continue;
        qn_buf_printf(to,
                      "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\" stroke=\"%s\" "
                      "stroke-width=\"1.5\"/>",
                      x_of(at, p->machines), y_of(at, speed(&p->token, 1)),
                      p->fits ? colour : "#fff", colour);
    }
    qn_buf_text(to, "\n");
}

// Marks at 1, 2 and 5 times the powers of ten.
static void draw_scale(qn_buf *to, const panel *at) {
    static const double steps[] = {1, 2, 5};
    for (int e = -2; e < 4; e++) {
        for (int i = 0; i < 3; i++) {
            const double tps = steps[i] * pow(10, e);
            if (log10(tps) < at->from || log10(tps) > at->to) continue;
            qn_buf_printf(to,
                          "<path d=\"M%.1f %.1fh%d\" stroke=\"#dde3ea\"/><text x=\"%.1f\" "
                          "y=\"%.1f\" text-anchor=\"end\" fill=\"#5a6675\">%g</text>\n",
                          at->x, y_of(at, tps), PANEL_W, at->x - 6, y_of(at, tps) + 4, tps);
        }
    }
    for (size_t c = 0; c < N_COUNTS; c++)
        qn_buf_printf(to,
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" fill=\"#5a6675\">%d"
                      "</text>\n",
                      x_of(at, counts[c]), at->y + 18, counts[c]);
}

static void choose_scale(panel *at, const table *t, const char *model) {
    at->from = INFINITY;
    at->to = -INFINITY;
    for (size_t i = 0; i < t->n; i++) {
        if (!t->points[i].is_possible || strcmp(t->points[i].model, model) != 0) continue;
        const double e = log10(speed(&t->points[i].token, 1));
        at->from = fmin(at->from, e - 0.1);
        at->to = fmax(at->to, e + 0.1);
    }
}

static void draw_panel(qn_buf *to, const table *t, const words *w, size_t i) {
    const char *model = shapes[i];
    panel at = {.x = LEFT + (double)(i % 2) * (PANEL_W + GAP_X),
                .y = TOP + PANEL_H + (double)(i / 2) * (PANEL_H + GAP_Y)};
    choose_scale(&at, t, model);
    qn_buf_printf(to, "<text x=\"%.1f\" y=\"%.1f\" font-weight=\"600\">%s, %s</text>\n", at.x,
                  at.y - PANEL_H - 8, model, w->type);
    draw_scale(to, &at);
    draw_curve(to, t, &at, model, &w->networks[w->n_networks / 2], QN_SPLIT_LAYERS);
    for (size_t k = 0; k < w->n_networks; k++)
        draw_curve(to, t, &at, model, &w->networks[k], QN_SPLIT_TENSORS);
}

static int draw_key(qn_buf *to, int x, const char *colour, bool is_dashed, const char *text) {
    qn_buf_printf(to,
                  "<path d=\"M%d 78h26\" stroke=\"%s\" stroke-width=\"2\"%s/><text x=\"%d\" "
                  "y=\"82\">%s</text>\n",
                  x, colour, is_dashed ? " stroke-dasharray=\"6 4\"" : "", x + 32, text);
    return x + 46 + 7 * (int)strlen(text);
}

static qn_status save_picture(const table *t, const words *w, qn_err *err) {
    qn_buf page = {0};
    char text[80];
    int x = MARGIN;
    qn_buf_printf(&page,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"system-ui, sans-serif\" font-size=\"13\" "
                  "fill=\"#1d2733\">\n<title>Predicted tokens per second</title>\n<rect "
                  "width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n<text x=\"%d\" y=\"34\" "
                  "font-size=\"17\" font-weight=\"600\">Predicted tokens per second of one "
                  "sequence, by machines</text>\n<text x=\"%d\" y=\"55\" fill=\"#5a6675\">",
                  WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT, MARGIN, MARGIN);
    qn_buf_printf(&page,
                  "each machine reads %g GB/s and computes %g TOP/s with bytes; hollow: needs more "
                  "than %.0f GiB</text>\n",
                  w->machine.read_gbs, w->machine.int8_tops, (double)w->machine.memory / (1 << 30));
    for (size_t k = 0; k < w->n_networks; k++) {
        snprintf(text, sizeof text, "tensors, %s", w->networks[k].name);
        x = draw_key(&page, x, w->networks[k].colour, false, text);
    }
    snprintf(text, sizeof text, "layers, %s", w->networks[w->n_networks / 2].name);
    (void)draw_key(&page, x, "#5a6675", true, text);
    for (size_t i = 0; i < N_SHAPES; i++) draw_panel(&page, t, w, i);
    qn_buf_printf(&page, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">machines</text>\n</svg>\n",
                  WIDTH / 2, HEIGHT - 14);
    if (page.failed) return QN_NOMEM(err, "a picture");
    FILE *f = fopen(w->svg, "we");
    const bool is_written = f && fwrite(page.data, 1, page.size, f) == page.size;
    const bool is_closed = f && fclose(f) == 0;
    qn_buf_deinit(&page);
    return is_written && is_closed ? QN_OK : QN_FAIL(err, IO, "cannot write %s", w->svg);
}

// --- options -------------------------------------------------------------------------------------

static bool read_number(double *to, const char *text) {
    char *end;
    *to = strtod(text, &end);
    return end != text && *end == '\0' && *to > 0;
}

static bool read_link(words *w, const char *text) {
    qn_split_link *link = &w->networks[0].link;
    w->networks[0] = (network){.name = "as given", .colour = "#2f6db5"};
    w->n_networks = 1;
    return sscanf(text, "%lf,%lf,%lf", &link->latency_us, &link->message_us, &link->gbs) == 3;
}

static bool read_words(words *w, int argc, char **argv) {
    double gib = 64;
    const struct {
        const char *name;
        double *to;
    } numbers[] = {{"--read", &w->machine.read_gbs},
                   {"--int8", &w->machine.int8_tops},
                   {"--f32", &w->machine.f32_gflops},
                   {"--memory", &gib}};
    for (int i = 1; i < argc; i++) {
        const bool has_value = i + 1 < argc;
        bool is_known = false;
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers && has_value; k++) {
            if (strcmp(argv[i], numbers[k].name) != 0) continue;
            if (!read_number(numbers[k].to, argv[i + 1])) return false;
            is_known = true;
        }
        if (strcmp(argv[i], "--json") == 0) {
            w->json = true;
            continue;
        }
        if (has_value && strcmp(argv[i], "--svg") == 0) {
            w->svg = argv[i + 1];
            is_known = true;
        }
        if (has_value && strcmp(argv[i], "--type") == 0) {
            w->type = argv[i + 1];
            is_known = true;
        }
        if (has_value && strcmp(argv[i], "--link") == 0) is_known = read_link(w, argv[i + 1]);
        if (!is_known) return false;
        i++;
    }
    w->machine.memory = (int64_t)(gib * (1 << 30));
    return true;
}

int main(int argc, char **argv) {
    static table t;
    qn_err err;
    words w = {.type = "Q4_K_M",
               .machine = {.read_gbs = 131, .int8_tops = 9.6, .f32_gflops = 2400, .n_threads = 16},
               .n_networks = MAX_NETWORKS};
    memcpy(w.networks, usual, sizeof usual);
    if (!read_words(&w, argc, argv)) {
        fprintf(stderr, "bench_scale [--json] [--svg FILE] [--read GB/s] [--int8 TOP/s] "
                        "[--f32 GFLOP/s] [--memory GIB] [--type TYPE] [--link US,US,GB/s]\n");
        return 2;
    }
    qn_status status = fill(&t, &w, &err);
    if (!status) (w.json ? print_json : print_csv)(&t);
    if (!status && w.svg) status = save_picture(&t, &w, &err);
    if (status) fprintf(stderr, "bench_scale: %s\n", err.message);
    return status ? 1 : 0;
}

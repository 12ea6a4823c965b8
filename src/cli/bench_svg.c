// The roofline: how near the measured speeds are to what the machine can do.
#include "cli/bench.h"
#include "cli/svg_file.h"

#include "core/file.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    WIDTH = 860,
    LEFT = 84, // of the plot
    TOP = 76,
    PLOT_W = WIDTH - LEFT - QN_SVG_MARGIN,
    PLOT_H = 400,
    TABLE = TOP + PLOT_H + 76, // line of the table's head
    LINE = 21,
    DOT = 5,
    LABEL_H = 15,
};

static const struct {
    const char *test, *colour;
} colours[] = {{"prefill", "#c2571a"}, {"decode", "#2f6db5"}};

static const char *colour_of(const char *test) {
    for (size_t i = 0; i < sizeof colours / sizeof *colours; i++) {
        if (strcmp(test, colours[i].test) == 0) return colours[i].colour;
    }
    return "#1d2733";
}

// Both axes go by powers of ten.
typedef struct page {
    qn_buf *to;
    const qn_roofline *roofline;
    double x_from, x_to, y_from, y_to; // exponents
} page;

typedef struct point {
    double x, y;
} point;

static double x_of(const page *p, double intensity) {
    return LEFT + (log10(intensity) - p->x_from) / (p->x_to - p->x_from) * PLOT_W;
}

static double y_of(const page *p, double gops) {
    return TOP + PLOT_H - (log10(gops) - p->y_from) / (p->y_to - p->y_from) * PLOT_H;
}

// Operations for each byte, and 10^9 operations a second.
static point point_of(const qn_bench_row *row) {
    const double ops = row->cost.int_ops + row->cost.float_ops;
    const double bytes = row->cost.weight_bytes + row->cost.state_bytes;
    const double gops = ops / row->step_rows * row->tps.median * 1e-9;
    return (point){.x = fmax(ops / bytes, 1e-3), .y = fmax(gops, 1e-3)}; // no logarithm of 0
}

// --- axes ----------------------------------------------------------------------------------------

static double highest(const qn_limits *l) {
    return fmax(fmax(l->int8_tops, l->f16_tflops) * 1e3, l->f32_gflops);
}

static void widen(double *from, double *to, double value) {
    *from = fmin(*from, log10(value));
    *to = fmax(*to, log10(value));
}

// Room around the points and the corners of the roofs; the lower ends are whole powers of ten.
static void choose_axes(page *p) {
    const qn_limits *l = p->roofline->limits;
    p->x_from = p->y_from = INFINITY;
    p->x_to = p->y_to = -INFINITY;
    if (l->f32_gflops > 0) widen(&p->x_from, &p->x_to, l->f32_gflops / l->read_gbs);
    widen(&p->x_from, &p->x_to, highest(l) / l->read_gbs);
    widen(&p->y_from, &p->y_to, highest(l));
    for (size_t i = 0; i < p->roofline->n; i++) {
        const point at = point_of(&p->roofline->rows[i]);
        widen(&p->x_from, &p->x_to, at.x);
        widen(&p->y_from, &p->y_to, at.y);
    }
    p->x_from = floor(p->x_from), p->x_to += 0.3;
    p->y_from = floor(p->y_from), p->y_to += 0.3;
}

// Where a mark is, which way its line goes, and its text.
static void draw_mark(const page *p, bool is_x, int exponent) {
    const double value = pow(10, exponent);
    const double x = is_x ? x_of(p, value) : LEFT, y = is_x ? TOP + PLOT_H : y_of(p, value);
    qn_buf_printf(p->to,
                  "<path d=\"M%.1f %.1f%s%d\" stroke=\"#dde3ea\"/><text x=\"%.1f\" y=\"%.1f\" "
                  "text-anchor=\"%s\" fill=\"#5a6675\">%.*f</text>\n",
                  x, y, is_x ? "v-" : "h", is_x ? PLOT_H : PLOT_W, is_x ? x : x - 8,
                  is_x ? y + 18 : y + 4, is_x ? "middle" : "end", exponent < 0 ? (int)-exponent : 0,
                  value);
}

static void draw_axes(const page *p) {
    for (int e = (int)p->x_from; e <= p->x_to; e++) draw_mark(p, true, e);
    for (int e = (int)p->y_from; e <= p->y_to; e++) draw_mark(p, false, e);
    qn_buf_printf(p->to,
                  "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">operations for each byte of "
                  "weights and state</text>\n<text transform=\"translate(26 %d) rotate(-90)\" "
                  "text-anchor=\"middle\">10^9 operations a second</text>\n",
                  LEFT + PLOT_W / 2, TOP + PLOT_H + 42, TOP + PLOT_H / 2);
}

// --- roofs ---------------------------------------------------------------------------------------

// The flat part of a roof, from where reading no longer holds it down.
static void draw_flat(const page *p, double gops, const char *name) {
    const double x = x_of(p, gops / p->roofline->limits->read_gbs), y = y_of(p, gops);
    qn_buf_printf(p->to,
                  "<path d=\"M%.1f %.1fH%d\" stroke=\"#1d2733\" stroke-width=\"2\" fill=\"none\"/>"
                  "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s: %.0f</text>\n",
                  x, y, LEFT + PLOT_W, LEFT + PLOT_W - 4, y - 7, name, gops);
}

static void draw_roofs(const page *p) {
    const qn_limits *l = p->roofline->limits;
    // The slope begins at the left border, or at the lower one.
    const double min = fmax(pow(10, p->x_from), pow(10, p->y_from) / l->read_gbs);
    const double corner = highest(l) / l->read_gbs;
    const double x0 = x_of(p, min), y0 = y_of(p, min * l->read_gbs);
    const double x1 = x_of(p, corner), y1 = y_of(p, highest(l));
    const double angle = -atan2(y0 - y1, x1 - x0) * 57.29577951308232;
    qn_buf_printf(p->to,
                  "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"#1d2733\" stroke-width=\"2\"/>"
                  "<text transform=\"translate(%.1f %.1f) rotate(%.1f)\" "
                  "text-anchor=\"middle\">reading: %.1f GB/s</text>\n",
                  x0, y0, x1, y1, (x0 + x1) / 2 - 6, (y0 + y1) / 2 - 8, angle, l->read_gbs);
    if (l->f32_gflops > 0) draw_flat(p, l->f32_gflops, "floats");
    if (l->f16_tflops > 0) draw_flat(p, l->f16_tflops * 1e3, "matrix units");
    if (l->int8_tops > 0) draw_flat(p, l->int8_tops * 1e3, "bytes");
}

// --- points --------------------------------------------------------------------------------------

enum { MAX_LABELS = 256 };

// A free place for a number, to the right of its point or above those that are there.
static point place_label(point at, const point *taken, size_t n) {
    point label = {.x = at.x + 16, .y = at.y};
    for (size_t i = 0; i < n; i++) {
        if (fabs(taken[i].x - label.x) >= 2 * LABEL_H || fabs(taken[i].y - label.y) >= LABEL_H)
            continue;
        label.y = taken[i].y - LABEL_H;
        i = (size_t)-1; // look at all of them again; each time higher, so it ends
    }
    return label;
}

static void draw_points(const page *p) {
    point labels[MAX_LABELS];
    for (size_t i = 0; i < p->roofline->n && i < MAX_LABELS; i++) {
        const qn_bench_row *row = &p->roofline->rows[i];
        const char *colour = colour_of(row->test);
        const point value = point_of(row), at = {x_of(p, value.x), y_of(p, value.y)};
        labels[i] = place_label(at, labels, i);
        qn_buf_printf(p->to,
                      "<path d=\"M%.1f %.1fL%.1f %.1f\" stroke=\"%s\"/><circle cx=\"%.1f\" "
                      "cy=\"%.1f\" r=\"%d\" fill=\"%s\"/><text x=\"%.1f\" y=\"%.1f\" "
                      "fill=\"%s\" font-weight=\"600\">%zu</text>\n",
                      at.x, at.y, labels[i].x - 2, labels[i].y, colour, at.x, at.y, DOT, colour,
                      labels[i].x, labels[i].y + 5, colour, i + 1);
    }
}

// --- the table -----------------------------------------------------------------------------------

static void draw_cells(qn_buf *to, int y, const char *colour, char cells[][24]) {
    static const int columns[] = {56, 140, 240, 340, 440, 560, 680, 780}; // right borders
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++)
        qn_buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\" fill=\"%s\">%s</text>",
                      columns[i], y, colour, cells[i]);
    qn_buf_text(to, "\n");
}

static void draw_table(const page *p) {
    char head[][24] = {"", "test", "tokens", "depth", "sequences", "tokens/s", "limit", "share"};
    draw_cells(p->to, TABLE, "#5a6675", head);
    for (size_t i = 0; i < p->roofline->n; i++) {
        const qn_bench_row *row = &p->roofline->rows[i];
        char cells[8][24];
        snprintf(cells[0], 24, "%zu", i + 1);
        snprintf(cells[1], 24, "%s", row->test);
        snprintf(cells[2], 24, "%lld", (long long)row->n);
        snprintf(cells[3], 24, "%lld", (long long)row->depth);
        snprintf(cells[4], 24, "%lld", (long long)row->batch);
        snprintf(cells[5], 24, "%.1f", row->tps.median);
        snprintf(cells[6], 24, "%.1f", row->limit_tps);
        snprintf(cells[7], 24, "%.0f %%", row->tps.median / row->limit_tps * 100);
        if (row->limit_tps <= 0) cells[6][0] = cells[7][0] = '\0'; // its roof is unknown
        draw_cells(p->to, TABLE + LINE * ((int)i + 1), colour_of(row->test), cells);
    }
}

static void draw_head(const page *p, int height) {
    char owner[QN_LIMITS_OWNER];
    const qn_limits *l = p->roofline->limits;
    qn_svg_begin(p->to, qn_path_name(p->roofline->path), WIDTH, height);
    qn_buf_printf(p->to,
                  "<text x=\"%d\" y=\"55\" fill=\"#5a6675\">measured speeds and the limits of "
                  "%s</text>\n",
                  QN_SVG_MARGIN, qn_limits_owner(owner, l));
}

qn_status qn_roofline_draw(char **out, const qn_roofline *roofline, qn_err *err) {
    qn_buf text = {0};
    page p = {.to = &text, .roofline = roofline};
    choose_axes(&p);
    draw_head(&p, TABLE + LINE * (int)roofline->n + QN_SVG_MARGIN);
    draw_axes(&p);
    draw_roofs(&p);
    draw_points(&p);
    draw_table(&p);
    qn_svg_end(&text);
    return qn_buf_take(out, &text, err);
}

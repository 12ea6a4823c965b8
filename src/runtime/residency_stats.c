// What residency has done, in numbers and as a picture.
#include "runtime/residency_int.h"

#include "core/buf.h"
#include "core/mem.h"

// --- numbers ---

static void add_layer(qn_expert_stats *to, const qn_pool_layer *layer, int64_t n_slots) {
    to->n_experts = qn_max(to->n_experts, layer->n_experts);
    to->n_used = qn_max(to->n_used, layer->n_used);
    to->pool_bytes += layer->slot_bytes * n_slots;
    to->hits += layer->hits;
    to->misses += layer->misses;
    to->promotions += layer->promotions;
    to->demotions += layer->demotions;
    to->prefetched += layer->prefetched;
    to->bytes_read += layer->bytes_read;
    to->stall_ns += layer->stall_ns;
}

void qn_residency_stats(qn_expert_stats *out, qn_residency *r, int64_t index) {
    pthread_mutex_lock(&r->lock);
    *out = (qn_expert_stats){.size = out->size,
                             .n_layers = r->n_layers,
                             .n_resident = r->n_slots,
                             .steps = r->steps,
                             .layer = index < 0 ? -1 : r->layers[index].layer};
    for (int64_t l = 0; l < r->n_layers; l++) {
        if (index < 0 || index == l) add_layer(out, &r->layers[l], r->n_slots);
    }
    pthread_mutex_unlock(&r->lock);
}

// --- the picture ---
//
// A band for each layer: time goes to the right, experts down. Cells of one shade are one path.

enum { MARGIN = 24, HEAD = 72, LABEL = 48, CELL = 10, BAND = 64, GAP = 14, SHADES = 6 };

// Experts that share a line, so that a band has no more than BAND lines.
static int64_t per_line(const qn_pool_layer *layer) { return (layer->n_experts + BAND - 1) / BAND; }

static int64_t lines_of(const qn_pool_layer *layer) {
    const int64_t per = per_line(layer);
    return (layer->n_experts + per - 1) / per;
}

static int64_t tokens_of(const qn_pool_layer *layer, int64_t column, int64_t line) {
    const int64_t per = per_line(layer), first = line * per;
    int64_t sum = 0;
    for (int64_t e = first; e < first + per && e < layer->n_experts; e++)
        sum += layer->history[column * layer->n_experts + e];
    return sum;
}

// 0: none; each shade is half of the next, the last one the column's largest.
static int shade_of(int64_t tokens, int64_t most) {
    int shade = SHADES - 1;
    if (tokens == 0) return 0;
    for (int64_t bound = most; shade > 1 && tokens * 2 <= bound; bound /= 2) shade--;
    return shade;
}

static int64_t most_of(const qn_pool_layer *layer, int64_t column) {
    int64_t most = 1;
    for (int64_t i = 0; i < lines_of(layer); i++) most = qn_max(most, tokens_of(layer, column, i));
    return most;
}

static void draw_shade(qn_buf *to, const qn_residency *r, const qn_pool_layer *layer, int64_t y,
                       int shade) {
    static const char *const colors[SHADES] = {"",        "#dbe9f6", "#a8cee4",
                                               "#5fa6d1", "#2474b7", "#08306b"};
    qn_buf_printf(to, "<path stroke=\"%s\" d=\"", colors[shade]);
    for (int64_t c = 0; c < r->columns; c++) {
        const int64_t most = most_of(layer, c);
        for (int64_t i = 0; i < lines_of(layer); i++) {
            if (shade_of(tokens_of(layer, c, i), most) == shade)
                qn_buf_printf(to, "M%lld %lld.5h%d", (long long)(MARGIN + LABEL + c * CELL),
                              (long long)(y + i), CELL);
        }
    }
    qn_buf_text(to, "\"/>\n");
}

static void draw(qn_buf *to, const qn_residency *r) {
    int64_t height = HEAD + MARGIN;
    for (int64_t l = 0; l < r->n_layers; l++) height += lines_of(&r->layers[l]) + GAP;
    const int64_t width = 2 * MARGIN + LABEL + QN_EXPERT_TIMES * CELL;
    qn_buf_printf(to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%lld\" height=\"%lld\" "
                  "viewBox=\"0 0 %lld %lld\" font-family=\"system-ui, sans-serif\" "
                  "font-size=\"11\" fill=\"#1d2733\">\n<title>Experts by layer over time</title>\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n"
                  "<text x=\"%d\" y=\"34\" font-size=\"17\" font-weight=\"600\">Experts by layer "
                  "over time</text>\n<text x=\"%d\" y=\"55\" fill=\"#5b6875\">%lld steps, %lld a "
                  "column; experts go down, darker ones got more tokens; %lld of each layer are in "
                  "memory</text>\n",
                  (long long)width, (long long)height, (long long)width, (long long)height, MARGIN,
                  MARGIN, (long long)r->steps, (long long)r->per_column, (long long)r->n_slots);
    int64_t y = HEAD;
    for (int64_t l = 0; l < r->n_layers; l++) {
        const qn_pool_layer *layer = &r->layers[l];
        const int64_t lines = lines_of(layer);
        qn_buf_printf(to, "<text x=\"%d\" y=\"%lld\">%d</text>\n", MARGIN,
                      (long long)(y + lines / 2 + 4), (int)layer->layer);
        for (int shade = 1; shade < SHADES; shade++) draw_shade(to, r, layer, y, shade);
        y += lines + GAP;
    }
    qn_buf_text(to, "</svg>\n");
}

qn_status qn_residency_svg(char **out, qn_residency *r, qn_err *err) {
    qn_buf text = {0};
    pthread_mutex_lock(&r->lock);
    draw(&text, r);
    pthread_mutex_unlock(&r->lock);
    return qn_buf_take(out, &text, err);
}

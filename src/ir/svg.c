// The document: pages one below the other, joined by the values that go from one to the next.
// Numbers are whole pixels, so that no locale can spoil them.
#include "ir/svg_int.h"

#include "core/mem.h"
#include "core/utf8.h"

#include <math.h>
#include <string.h>

enum { MARGIN = 28, PAD = 22, FRAME_PAD = 20, TITLE = 26, BOX_GAP = 34, HEADER = 132, WIDTH = 860 };

typedef struct colour {
    const char *name, *fill, *line;
} colour;

static const colour colours[] = {
    [QN_CLASS_GEMM] = {"weights", "#dbe8fb", "#3b6fb6"},
    [QN_CLASS_ROW] = {"along rows", "#fdf1c9", "#b08a1e"},
    [QN_CLASS_MAP] = {"element by element", "#dcf0d8", "#4d8f42"},
    [QN_CLASS_STATE] = {"sequence state", "#fde0cf", "#c4622d"},
    [QN_CLASS_MOVE] = {"copies only", "#ececec", "#8a8a8a"},
    [QN_CLASS_LEAF] = {"input, output", "#ffffff", "#777777"},
};

static const char style_sheet[] =
    "<style>"
    "text{font-family:'DejaVu Sans Mono','Menlo','Consolas',monospace;fill:#222}"
    ".s0{font-size:12px;font-weight:bold}.s1{font-size:12px}"
    ".s2{font-size:10px;fill:#555}.s3{font-size:10px}.s4{font-size:10px;fill:#666}"
    ".title{font-size:22px;font-weight:bold}.sub{font-size:12px;fill:#444}"
    ".box{fill:#fbfbfc;stroke:#9aa3b2;stroke-width:1.2}"
    ".frame{fill:#f2f4f8;stroke:#6b7890;stroke-width:1.4;stroke-dasharray:7 4}"
    ".name{font-size:13px;font-weight:bold;fill:#33415c;paint-order:stroke;stroke:#f6f7fa;"
    "stroke-width:5px}"
    ".e{fill:none;stroke:#5b6270;stroke-width:1.2}"
    ".k{fill:none;stroke:#c4622d;stroke-width:1.3;stroke-dasharray:5 3}"
    ".r{fill:none;stroke:#2f62b5;stroke-width:2.2}"
    "</style>\n"
    "<defs>"
    "<marker id=\"a\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
    "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
    "<path d=\"M0 0L8 4L0 8z\" fill=\"#5b6270\"/></marker>"
    "<marker id=\"b\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
    "markerHeight=\"7\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
    "<path d=\"M0 0L8 4L0 8z\" fill=\"#c4622d\"/></marker>"
    "<marker id=\"c\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"9\" "
    "markerHeight=\"9\" markerUnits=\"userSpaceOnUse\" orient=\"auto\">"
    "<path d=\"M0 0L8 4L0 8z\" fill=\"#2f62b5\"/></marker>"
    "</defs>\n";

typedef struct page_place {
    qn_svg_page page;
    int x, y; // of the page's own corner
} page_place;

typedef struct writer {
    qn_buf *to;
    const qn_graph *graph;
    qn_svg_fold fold;
    page_place *pages; // one per box
    int w, h;
} writer;

static int pixel(double x) { return (int)lround(x); }

// Text as XML wants it: markup escaped, and no character that XML 1.0 does not allow.
static void add_escaped(qn_buf *to, const char *text) {
    static const struct {
        char c;
        const char *name;
    } names[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    const size_t size = strlen(text);
    for (size_t i = 0; i < size;) {
        uint32_t code;
        const size_t n = qn_utf8_decode(text + i, size - i, &code);
        const char *name = NULL;
        for (size_t k = 0; k < sizeof names / sizeof names[0]; k++) {
            if (names[k].c == text[i]) name = names[k].name;
        }
        if (n == 0 || code < 0x20 || (code >= 0x7f && code < 0xa0) || (code & 0xfffe) == 0xfffe)
            qn_buf_text(to, "?");
        else if (name)
            qn_buf_text(to, name);
        else
            qn_buf_add(to, text + i, n);
        i += n ? n : 1;
    }
}

static void add_text(qn_buf *to, int x, int y, const char *class_of, const char *text) {
    qn_buf_printf(to, "<text x=\"%d\" y=\"%d\" class=\"%s\">", x, y, class_of);
    add_escaped(to, text);
    qn_buf_text(to, "</text>\n");
}

static void add_rect(qn_buf *to, int x, int y, int w, int h, const char *rest) {
    qn_buf_printf(to, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" %s/>\n", x, y, w, h,
                  rest);
}

// A curve that leaves and arrives upright.
static void add_curve(qn_buf *to, const int from[2], const int end[2], bool keeps, bool arrow) {
    const int middle = (from[1] + end[1]) / 2;
    qn_buf_printf(to, "<path class=\"%s\" d=\"M%d %d", keeps ? "k" : "e", from[0], from[1]);
    if (from[0] == end[0])
        qn_buf_printf(to, "V%d\"", end[1]);
    else
        qn_buf_printf(to, "C%d %d %d %d %d %d\"", from[0], middle, end[0], middle, end[0], end[1]);
    if (arrow) qn_buf_printf(to, " marker-end=\"url(#%s)\"", keeps ? "b" : "a");
    qn_buf_text(to, "/>\n");
}

static void draw_links(const writer *w, const page_place *p) {
    const qn_svg_page *page = &p->page;
    for (size_t i = 0; i < page->n_links; i++) {
        const qn_svg_link *link = &page->links[i];
        const qn_svg_item *from = &page->items[link->from], *end = &page->items[link->to];
        const int a[2] = {p->x + pixel(link->x0), p->y + pixel(from->y + from->h)};
        const int b[2] = {p->x + pixel(link->x1), p->y + pixel(end->y)};
        const bool bends = end->kind == QN_SVG_BEND;
        add_curve(w->to, a, b, link->keeps, !bends && end->kind != QN_SVG_EXIT);
        if (!bends) continue;
        const int c[2] = {b[0], b[1] + pixel(end->h)};
        add_curve(w->to, b, c, link->keeps, false);
    }
}

static int sign(int x) { return x < 0 ? -1 : x > 0; }

// A residual: out to the lane, down past the ranks, and back. It leaves and arrives at the left
// of items that are first in their rank, otherwise through the gap below or above them.
static void draw_side(const writer *w, const page_place *p, const qn_svg_edge *e) {
    const qn_svg_item *from = &p->page.items[e->from], *end = &p->page.items[e->to];
    const int r = 8, lane = p->x + pixel(e->side);
    const int from_left = p->x + pixel(from->x - from->w / 2);
    const int end_left = p->x + pixel(end->x - end->w / 2);
    int y0 = p->y + pixel(from->y + from->h * 0.7), y1 = p->y + pixel(end->y + end->h * 0.3);
    qn_buf_text(w->to, "<path class=\"r\" d=\"");
    if (from->place == 0) {
        qn_buf_printf(w->to, "M%d %d", from_left, y0);
    } else {
        y0 = p->y + pixel(from->y + from->h) + 8;
        qn_buf_printf(w->to, "M%d %dV%d", p->x + pixel(from->x), y0 - 8, y0);
    }
    if (end->place != 0) y1 = p->y + pixel(end->y) - 12;
    const int down = sign(y1 - y0);
    qn_buf_printf(w->to, "H%dQ%d %d %d %dV%dQ%d %d %d %d", lane + r, lane, y0, lane, y0 + r * down,
                  y1 - r * down, lane, y1, lane + r, y1);
    if (end->place == 0)
        qn_buf_printf(w->to, "H%d", end_left);
    else
        qn_buf_printf(w->to, "H%dV%d", end_left + 8, p->y + pixel(end->y));
    qn_buf_text(w->to, "\" marker-end=\"url(#c)\"/>\n");
}

static void draw_lines(const writer *w, const qn_svg_item *item, int x, int y) {
    static const char *const classes[QN_SVG_STYLES] = {"s0", "s1", "s2", "s3", "s4"};
    int base = y + 4;
    for (int i = 0; i < item->n_lines; i++) {
        const qn_svg_line *line = &item->lines[i];
        int at = x + 9;
        if (qn_svg_joins(item->lines, i))
            at += pixel(qn_svg_text_width(QN_SVG_HEAD, line[-1].text) + 7);
        else
            base += pixel(qn_svg_line_height(line->style));
        add_text(w->to, at, base - 4, classes[line->style], line->text);
    }
}

// The part of an op's box where its weights are listed.
static void draw_weights(const writer *w, const qn_svg_item *item, int x, int y) {
    double top = 3, all = 0;
    for (int i = 0; i < item->n_lines; i++) {
        if (item->lines[i].style >= QN_SVG_WEIGHT)
            all += qn_svg_line_height(item->lines[i].style);
        else if (!qn_svg_joins(item->lines, i))
            top += qn_svg_line_height(item->lines[i].style);
    }
    if (all == 0) return;
    add_rect(w->to, x + 4, y + pixel(top) + 1, pixel(item->w) - 8, pixel(all) + 1,
             "rx=\"3\" fill=\"#ffffff\" fill-opacity=\"0.8\"");
}

static void draw_op(const writer *w, const qn_svg_item *item, int x, int y) {
    const colour *c = &colours[qn_op_get(item->op)->class_of];
    qn_buf_printf(w->to,
                  "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"5\" fill=\"%s\" "
                  "stroke=\"%s\"/>\n",
                  x, y, pixel(item->w), pixel(item->h), c->fill, c->line);
    draw_weights(w, item, x, y);
    draw_lines(w, item, x, y);
    if (!item->reads_table) return;
    const int right = x + pixel(item->w);
    qn_buf_printf(w->to, "<circle cx=\"%d\" cy=\"%d\" r=\"7\" fill=\"#ffffff\" stroke=\"%s\"/>\n",
                  right, y, c->line);
    add_text(w->to, right - 3, y + 3, "s4", "t");
}

static void draw_port(const writer *w, const qn_svg_item *item, int x, int y) {
    if (item->kind == QN_SVG_EXIT) {
        qn_buf_printf(w->to, "<circle cx=\"%d\" cy=\"%d\" r=\"4\" fill=\"#5b6270\"/>\n", x + 4,
                      y + 4);
        return;
    }
    qn_buf_printf(w->to,
                  "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"11\" fill=\"#ffffff\" "
                  "stroke=\"%s\"%s/>\n",
                  x, y, pixel(item->w), pixel(item->h), item->keeps ? "#c4622d" : "#777777",
                  item->keeps ? " stroke-dasharray=\"5 3\"" : "");
    draw_lines(w, item, x, y);
}

static void draw_page(const writer *w, const page_place *p) {
    draw_links(w, p);
    for (size_t i = 0; i < p->page.n_edges; i++) {
        if (p->page.edges[i].is_side) draw_side(w, p, &p->page.edges[i]);
    }
    for (size_t i = 0; i < p->page.n_items; i++) {
        const qn_svg_item *item = &p->page.items[i];
        const int x = p->x + pixel(item->x - item->w / 2), y = p->y + pixel(item->y);
        if (item->kind == QN_SVG_OP)
            draw_op(w, item, x, y);
        else if (item->kind != QN_SVG_BEND)
            draw_port(w, item, x, y);
    }
    if (!p->page.n_hidden) return;
    qn_buf text = {0};
    qn_buf_printf(&text, "and %zu more ops", p->page.n_hidden);
    if (!text.failed) add_text(w->to, p->x, p->y + pixel(p->page.h) + 14, "sub", text.data);
    qn_buf_deinit(&text);
}

// The value of the box above that enters the box below as `id`. It is made by the section just
// before; the box above shows that section or one of the same kind. Where blocks of layers end in
// the middle, it shows another kind, and a value of the same shape stands for it: -1.
static int32_t twin_above(const writer *w, size_t section, const qn_svg_section *shown,
                          int32_t id) {
    const qn_svg_fold *f = &w->fold;
    if (f->sections[section - 1].kind != shown->kind) return -1;
    const int32_t maker = w->graph->values[id].node;
    const size_t place = (size_t)f->place_of[maker] - f->sections[section - 1].begin;
    const qn_node *twin = &w->graph->nodes[f->ops[shown->begin + place]];
    return twin->out[id - w->graph->nodes[maker].out[0]];
}

// The entries of the box before this one, of the same shape and from the same section: each stands
// for another value.
static size_t same_before(const writer *w, size_t i, const qn_svg_item *entry) {
    const qn_value *values = w->graph->values, *value = &values[entry->value];
    const qn_svg_page *page = &w->pages[i].page;
    size_t n = 0;
    for (const qn_svg_item *item = page->items; item < entry; item++) {
        const qn_value *other = &values[item->value];
        n += item->kind == QN_SVG_ENTRY && qn_shape_equal(&other->shape, &value->shape) &&
             w->fold.section_of[other->node] == w->fold.section_of[value->node];
    }
    return n;
}

static void join_entry(const writer *w, size_t i, const qn_svg_item *entry) {
    const qn_svg_fold *f = &w->fold;
    const size_t section = f->boxes[i].section;
    const qn_value *values = w->graph->values;
    if (f->section_of[values[entry->value].node] != (int32_t)section - 1) return;
    const qn_svg_section *shown = &f->sections[f->boxes[i - 1].section];
    const int32_t twin = twin_above(w, section, shown, entry->value);
    const page_place *above = &w->pages[i - 1], *below = &w->pages[i];
    size_t others = twin < 0 ? same_before(w, i, entry) : 0;
    for (size_t j = 0; j < above->page.n_items; j++) {
        const qn_svg_item *leaving = &above->page.items[j];
        if (leaving->kind != QN_SVG_EXIT) continue;
        const qn_value *value = &values[leaving->value];
        const bool same = twin < 0 ? qn_shape_equal(&value->shape, &values[entry->value].shape)
                                   : leaving->value == twin;
        if (!same || others-- > 0) continue;
        const int a[2] = {above->x + pixel(leaving->x), above->y + pixel(leaving->y) + 8};
        const int b[2] = {below->x + pixel(entry->x), below->y + pixel(entry->y)};
        add_curve(w->to, a, b, entry->keeps, true);
        return;
    }
}

// Joins what enters a box to what leaves the one before.
static void join_boxes(const writer *w, size_t i) {
    if (!w->fold.boxes[i].follows || w->fold.boxes[i].section == 0) return;
    const qn_svg_page *page = &w->pages[i].page;
    for (size_t k = 0; k < page->n_items; k++) {
        if (page->items[k].kind == QN_SVG_ENTRY) join_entry(w, i, &page->items[k]);
    }
}

static const qn_svg_frame *frame_of(const qn_svg_fold *f, size_t box) {
    for (size_t i = 0; i < f->n_frames; i++) {
        if (box >= f->frames[i].first && box < f->frames[i].end) return &f->frames[i];
    }
    return NULL;
}

static bool has_title(const writer *w, size_t i) { return w->fold.boxes[i].title[0] != 0; }

static void place_pages(writer *w) {
    const qn_svg_fold *f = &w->fold;
    w->w = WIDTH;
    for (size_t i = 0; i < f->n_boxes; i++) {
        const int side = MARGIN + PAD + (frame_of(f, i) ? FRAME_PAD : 0);
        const int all = pixel(w->pages[i].page.w) + 2 * side;
        if (all > w->w) w->w = all;
    }
    int y = HEADER;
    for (size_t i = 0; i < f->n_boxes; i++) {
        page_place *p = &w->pages[i];
        const qn_svg_frame *frame = frame_of(f, i);
        const bool titled = has_title(w, i);
        if (frame && frame->first == i) y += TITLE + FRAME_PAD / 2;
        if (titled) y += TITLE + PAD / 2;
        p->x = (w->w - pixel(p->page.w)) / 2;
        p->y = y;
        y += pixel(p->page.h) + (p->page.n_hidden ? 18 : 0) + (titled ? PAD / 2 : 0);
        if (frame && frame->end == i + 1) y += FRAME_PAD;
        y += BOX_GAP;
    }
    w->h = y + (f->n_hidden ? 20 : 0) + MARGIN - BOX_GAP;
}

// Titles go to a text of their own: they stand above the lines that run through the frames.
static void draw_frames(const writer *w, qn_buf *titles) {
    const qn_svg_fold *f = &w->fold;
    for (size_t i = 0; i < f->n_frames; i++) {
        const qn_svg_frame *frame = &f->frames[i];
        double widest = 0;
        for (size_t k = frame->first; k < frame->end; k++) {
            if (w->pages[k].page.w > widest) widest = w->pages[k].page.w;
        }
        const page_place *first = &w->pages[frame->first], *last = &w->pages[frame->end - 1];
        const int width = pixel(widest) + 2 * (PAD + FRAME_PAD), x = (w->w - width) / 2;
        const int y = first->y - 2 * TITLE - PAD / 2 - FRAME_PAD / 2;
        const int h = last->y + pixel(last->page.h) + PAD / 2 + FRAME_PAD - y;
        add_rect(w->to, x, y, width, h, "rx=\"12\" class=\"frame\"");
        add_text(titles, x + 14, y + 21, "name", frame->title);
    }
    for (size_t i = 0; i < f->n_boxes; i++) {
        if (!has_title(w, i)) continue;
        const page_place *p = &w->pages[i];
        const int width = pixel(p->page.w) + 2 * PAD, y = p->y - TITLE - PAD / 2 + 8;
        const int h = pixel(p->page.h) + (p->page.n_hidden ? 18 : 0) + PAD / 2 + p->y - y;
        add_rect(w->to, p->x - PAD, y, width, h, "rx=\"9\" class=\"box\"");
        add_text(titles, p->x - PAD + 12, y + 19, "name", f->boxes[i].title);
    }
}

// "1.24 G": three digits or more, without a float.
static void add_amount(qn_buf *to, double amount, double step, const char *const units[5]) {
    int unit = 0;
    while (unit < 4 && amount >= step) {
        amount /= step;
        unit++;
    }
    const long hundredths = lround(amount * 100);
    if (unit == 0)
        qn_buf_printf(to, "%ld%s", lround(amount), units[0]);
    else
        qn_buf_printf(to, "%ld.%02ld%s", hundredths / 100, hundredths % 100, units[unit]);
}

static void add_sizes(const writer *w, qn_buf *to) {
    double values = 0, bytes = 0;
    size_t n = 0;
    for (size_t i = 0; i < w->graph->n_nodes; i++) {
        if (w->graph->nodes[i].op != QN_OP_PARAM) continue;
        const qn_value *value = &w->graph->values[w->graph->nodes[i].out[0]];
        double count = 1;
        for (int d = 0; d < value->shape.n_dims; d++) count *= (double)value->shape.dims[d].n;
        const qn_type_info *type = qn_type_get(value->type);
        values += count;
        bytes += count / type->block * type->bytes;
        n++;
    }
    static const char *const counts[] = {"", " K", " M", " G", " T"};
    static const char *const sizes[] = {" bytes", " KiB", " MiB", " GiB", " TiB"};
    qn_buf_printf(to, "%zu layers, %zu ops, %zu weights with ", w->fold.n_layers, w->fold.n_ops, n);
    add_amount(to, values, 1000, counts);
    qn_buf_text(to, " parameters in ");
    add_amount(to, bytes, 1024, sizes);
}

static void draw_legend(const writer *w) {
    static const qn_op_class order[] = {QN_CLASS_GEMM,  QN_CLASS_ROW,  QN_CLASS_MAP,
                                        QN_CLASS_STATE, QN_CLASS_MOVE, QN_CLASS_LEAF};
    int x = MARGIN;
    for (size_t i = 0; i < sizeof order / sizeof order[0]; i++) {
        const colour *c = &colours[order[i]];
        qn_buf_printf(w->to,
                      "<rect x=\"%d\" y=\"74\" width=\"16\" height=\"12\" rx=\"%d\" fill=\"%s\" "
                      "stroke=\"%s\"/>\n",
                      x, order[i] == QN_CLASS_LEAF ? 6 : 3, c->fill, c->line);
        add_text(w->to, x + 22, 84, "s3", c->name);
        x += 40 + pixel(qn_svg_text_width(QN_SVG_ATTR, c->name));
    }
    static const struct {
        const char *class_of, *end, *name;
    } lines[] = {{"e", "a", "data"}, {"r", "c", "residual"}, {"k", "b", "cache or state"}};
    x = MARGIN;
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        qn_buf_printf(w->to, "<path class=\"%s\" d=\"M%d 103H%d\" marker-end=\"url(#%s)\"/>\n",
                      lines[i].class_of, x, x + 26, lines[i].end);
        add_text(w->to, x + 32, 106, "s3", lines[i].name);
        x += 50 + pixel(qn_svg_text_width(QN_SVG_ATTR, lines[i].name));
    }
    qn_buf_printf(w->to,
                  "<circle cx=\"%d\" cy=\"103\" r=\"7\" fill=\"#ffffff\" stroke=\"#777777\"/>\n",
                  x + 6);
    add_text(w->to, x + 3, 106, "s4", "t");
    add_text(w->to, x + 18, 106, "s3", "reads the step table");
    add_text(w->to, x + 160, 106, "s3", "T rows of the step, B segments, R rows with logits");
}

static void draw_header(const writer *w) {
    qn_buf_printf(w->to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\">\n<title>",
                  w->w, w->h, w->w, w->h);
    add_escaped(w->to, w->graph->name);
    qn_buf_printf(w->to, "</title>\n%s", style_sheet);
    add_rect(w->to, 0, 0, w->w, w->h, "fill=\"#ffffff\"");
    add_text(w->to, MARGIN, 40, "title", w->graph->name);
    qn_buf sizes = {0};
    add_sizes(w, &sizes);
    if (!sizes.failed) add_text(w->to, MARGIN, 60, "sub", sizes.data);
    if (sizes.failed) w->to->failed = true;
    qn_buf_deinit(&sizes);
    draw_legend(w);
}

static void draw_all(writer *w) {
    place_pages(w);
    draw_header(w);
    qn_buf titles = {0};
    draw_frames(w, &titles);
    for (size_t i = 1; i < w->fold.n_boxes; i++) join_boxes(w, i);
    if (titles.failed) w->to->failed = true;
    qn_buf_add(w->to, titles.data, titles.size);
    qn_buf_deinit(&titles);
    for (size_t i = 0; i < w->fold.n_boxes; i++) draw_page(w, &w->pages[i]);
    if (w->fold.n_hidden) {
        qn_buf_printf(w->to, "<text x=\"%d\" y=\"%d\" class=\"sub\">and %zu more parts</text>\n",
                      MARGIN, w->h - MARGIN, w->fold.n_hidden);
    }
    qn_buf_text(w->to, "</svg>\n");
}

static bool fill_pages(writer *w, qn_arena *arena) {
    int32_t *item_of = qn_arena_alloc(arena, w->graph->n_values, sizeof *item_of);
    w->pages = qn_arena_alloc(arena, QN_SVG_BOXES, sizeof *w->pages);
    if (!item_of || !w->pages) return false;
    for (size_t i = 0; i < w->graph->n_values; i++) item_of[i] = -1;
    for (size_t i = 0; i < w->fold.n_boxes; i++) {
        qn_svg_page *page = &w->pages[i].page;
        if (!qn_svg_page_fill(page, arena, w->graph, &w->fold, &w->fold.boxes[i], item_of) ||
            !qn_svg_page_lay_out(page, arena))
            return false;
    }
    return true;
}

void qn_graph_svg(qn_buf *to, const qn_graph *graph) {
    qn_arena arena = {0};
    writer w = {.to = to, .graph = graph};
    if (qn_svg_fold_layers(&w.fold, &arena, graph) && fill_pages(&w, &arena))
        draw_all(&w);
    else
        to->failed = true;
    for (size_t i = 0; w.pages && i < QN_SVG_BOXES; i++) qn_svg_page_deinit(&w.pages[i].page);
    qn_arena_deinit(&arena);
}

// The size of a model by tensor group, as a picture: a bar for each group, its types by colour.
#include "cli/inspect.h"
#include "cli/out.h"
#include "cli/svg_file.h"

#include "core/file.h"

#include <string.h>

enum {
    WIDTH = 860,
    MARGIN = QN_SVG_MARGIN,
    TOP = 76,     // of the first bar
    ROW = 36,     // from bar to bar
    BAR = 24,     // height of a bar
    LEFT = 132,   // of the bars
    LENGTH = 540, // of the longest bar
    KEY = 92,     // width of an entry of the legend
    KEYS = (WIDTH - 2 * MARGIN) / KEY,
};

// Dark enough for white letters.
static const char *const colours[] = {"#2f6db5", "#c2571a", "#2e8b57", "#8e4fa8",
                                      "#b03a48", "#3f7f8c", "#8a6d1f", "#5b5f97",
                                      "#6b7a2a", "#a0487f", "#4d6a80", "#7a5240"};
enum { N_COLOURS = sizeof colours / sizeof *colours };

// The types in the order in which they appear; those past the last count as the last.
typedef struct type_list {
    const char *names[64];
    size_t n;
} type_list;

static size_t place_of(type_list *list, const char *type) {
    enum { MAX = sizeof list->names / sizeof *list->names };
    for (size_t i = 0; i < list->n; i++) {
        if (strcmp(list->names[i], type) == 0) return i;
    }
    if (list->n < MAX) list->names[list->n++] = type;
    return list->n - 1;
}

static void draw_head(qn_buf *to, const qn_inspection *in, int height) {
    char bytes[24];
    qn_svg_begin(to, qn_path_name(in->path), WIDTH, height);
    qn_buf_printf(to,
                  "<text x=\"%d\" y=\"55\" fill=\"#5a6675\">%s in %lld tensors, by group "
                  "and type</text>\n",
                  MARGIN, qn_bytes_text(bytes, in->all.bytes), (long long)in->all.n);
}

// A piece of a bar from `from` to `end`; its type is written where there is room.
static void draw_piece(qn_buf *to, const qn_tally *tally, double from, double end, int y,
                       const char *colour) {
    char bytes[24];
    qn_buf_printf(to,
                  "<g><title>%s %s: %s in %lld tensors</title>"
                  "<rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" height=\"%d\" fill=\"%s\" "
                  "stroke=\"#fff\" stroke-width=\"0.5\"/>",
                  tally->group, tally->type, qn_bytes_text(bytes, tally->bytes),
                  (long long)tally->n, from, y, end - from, BAR, colour);
    if (end - from > 10 + 9 * (double)strlen(tally->type))
        qn_buf_printf(to,
                      "<text x=\"%.1f\" y=\"%d\" fill=\"#fff\" text-anchor=\"middle\" "
                      "font-size=\"12\">%s</text>",
                      (from + end) / 2, y + 16, tally->type);
    qn_buf_text(to, "</g>\n");
}

// The tallies of one group are adjacent.
static size_t group_end(const qn_inspection *in, size_t first) {
    size_t end = first;
    while (end < in->n_tallies && strcmp(in->tallies[end].group, in->tallies[first].group) == 0)
        end++;
    return end;
}

static int64_t sum_of(const qn_inspection *in, size_t first, size_t end) {
    int64_t sum = 0;
    for (size_t i = first; i < end; i++) sum += in->tallies[i].bytes;
    return sum;
}

static void draw_bar(qn_buf *to, const qn_inspection *in, size_t first, size_t end, int y,
                     double scale, type_list *types) {
    char bytes[24];
    double x = LEFT;
    const int64_t sum = sum_of(in, first, end);
    qn_buf_printf(to, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 10, y + 17,
                  in->tallies[first].group);
    for (size_t i = first; i < end; i++) {
        const double next = x + (double)in->tallies[i].bytes * scale;
        const size_t colour = place_of(types, in->tallies[i].type) % N_COLOURS;
        draw_piece(to, &in->tallies[i], x, next, y, colours[colour]);
        x = next;
    }
    qn_buf_printf(to, "<text x=\"%.1f\" y=\"%d\">%s, %.1f %%</text>\n", x + 8, y + 17,
                  qn_bytes_text(bytes, sum), qn_share_of(sum, in->all.bytes));
}

static void draw_legend(qn_buf *to, const type_list *types, int y) {
    for (size_t i = 0; i < types->n; i++) {
        const int x = MARGIN + (int)(i % KEYS) * KEY, row = y + (int)(i / KEYS) * 22;
        qn_buf_printf(to,
                      "<rect x=\"%d\" y=\"%d\" width=\"14\" height=\"14\" rx=\"2\" fill=\"%s\"/>"
                      "<text x=\"%d\" y=\"%d\">%s</text>\n",
                      x, row, colours[i % N_COLOURS], x + 20, row + 12, types->names[i]);
    }
}

qn_status qn_inspection_draw(char **out, const qn_inspection *in, qn_err *err) {
    type_list types = {0};
    int64_t longest = 1;
    int n_groups = 0;
    for (size_t i = 0, end; i < in->n_tallies; i = end, n_groups++) {
        end = group_end(in, i);
        if (sum_of(in, i, end) > longest) longest = sum_of(in, i, end);
        for (size_t k = i; k < end; k++) (void)place_of(&types, in->tallies[k].type);
    }
    const int legend = TOP + n_groups * ROW + 8;
    const int height = legend + (int)((types.n + KEYS - 1) / KEYS) * 22 + MARGIN;
    qn_buf page = {0};
    int y = TOP;
    draw_head(&page, in, height);
    for (size_t i = 0, end; i < in->n_tallies; i = end, y += ROW) {
        end = group_end(in, i);
        draw_bar(&page, in, i, end, y, (double)LENGTH / (double)longest, &types);
    }
    draw_legend(&page, &types, legend);
    qn_svg_end(&page);
    return qn_buf_take(out, &page, err);
}

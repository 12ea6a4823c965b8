// The steps of drawing a graph, each in its own file. All memory is the arena's; a false result
// means that it is short.
//
//   svg_fold.c    which layers have the same structure, and which boxes to draw
//   svg_page.c    what is in a box: items with their lines of text, and edges
//   svg_layout.c  where it is: ranks from top to bottom, order and place in each rank
//   svg.c         the document
#ifndef QN_IR_SVG_INT_H
#define QN_IR_SVG_INT_H

#include "ir/text.h"

enum {
    QN_SVG_BOXES = 24, // drawn at most
    QN_SVG_OPS = 256,  // drawn at most in a box
    QN_SVG_LINES = 24  // of text in an item
};

// Consecutive ops of the same layer; leaves are not ops here.
typedef struct qn_svg_section {
    size_t begin, end; // in `ops`
    int32_t layer;
    uint32_t kind; // the same for sections of the same structure
} qn_svg_section;

typedef struct qn_svg_box {
    size_t section;    // that stands for all
    bool has_many;     // it stands for several layers
    bool follows;      // the section before it is drawn in the box before it
    const char *title; // "" if it has none
} qn_svg_box;

// Boxes that repeat together.
typedef struct qn_svg_frame {
    size_t first, end; // boxes
    const char *title;
} qn_svg_frame;

typedef struct qn_svg_fold {
    qn_svg_section *sections;
    qn_svg_box *boxes;
    qn_svg_frame *frames;
    size_t n_ops, n_sections, n_boxes, n_frames;
    size_t n_hidden;     // sections that no box shows
    size_t n_layers;     // sections that are layers
    int32_t *ops;        // the nodes that are not leaves
    int32_t *place_of;   // of each node in `ops`; -1: a leaf
    int32_t *section_of; // of each node; -1: a leaf
    int32_t *last_use;   // of each value: the last section that reads it; -1: none
    int32_t *next_use;   // of each value: the first section after its own that does; -1: none
} qn_svg_fold;

QN_MUST_CHECK bool qn_svg_fold_layers(qn_svg_fold *out, qn_arena *arena, const qn_graph *graph);

// ENTRY and EXIT join a box to the others, INPUT and OUTPUT are the graph's own, a BEND carries an
// edge past a rank.
typedef enum qn_svg_item_kind {
    QN_SVG_OP,
    QN_SVG_ENTRY,
    QN_SVG_INPUT,
    QN_SVG_EXIT,
    QN_SVG_OUTPUT,
    QN_SVG_BEND
} qn_svg_item_kind;

typedef enum qn_svg_style {
    QN_SVG_HEAD,  // op or name
    QN_SVG_SHAPE, // of a result
    QN_SVG_ATTR,
    QN_SVG_WEIGHT, // name of a weight
    QN_SVG_TYPE,   // type and shape of a weight
    QN_SVG_STYLES
} qn_svg_style;

typedef struct qn_svg_line {
    const char *text; // not escaped
    qn_svg_style style;
} qn_svg_line;

typedef struct qn_svg_item {
    qn_svg_item_kind kind;
    int32_t value; // the first result of an op; what a port carries
    qn_op op;
    bool keeps;       // carries a cache or a state
    bool reads_table; // an op that reads the step table
    int n_lines;
    const qn_svg_line *lines;
    int rank;    // 0 at the top
    int place;   // in its rank, from the left
    double x, y; // the middle of its top
    double w, h;
} qn_svg_item;

typedef struct qn_svg_edge {
    int32_t from, to; // items, from < to
    int result;       // of the op it comes from
    bool keeps;
    bool is_side; // runs beside the ranks: a residual
    double side;  // x of that part; it ends at the item's left, or on its top if others are there
} qn_svg_edge;

// Part of an edge between neighbouring ranks.
typedef struct qn_svg_link {
    int32_t from, to;
    int result;
    bool keeps;
    double x0, x1; // where it leaves and where it arrives
} qn_svg_link;

typedef struct qn_svg_page {
    qn_svg_item *items;
    qn_svg_edge *edges;
    qn_svg_link *links;
    size_t n_items, n_edges, n_links;
    size_t cap_items, cap_edges, cap_links;
    size_t n_hidden; // ops that are not drawn
    int n_ranks;
    double w, h;
} qn_svg_page;

// Sizes of text, in pixels; the font has a fixed width. A shape after a head is on its line.
bool qn_svg_joins(const qn_svg_line *lines, int i);
double qn_svg_line_height(qn_svg_style style);
double qn_svg_text_width(qn_svg_style style, const char *text);

// Items and edges of a box. `item_of` has an entry per value, all -1, and has them again
// afterwards.
QN_MUST_CHECK bool qn_svg_page_fill(qn_svg_page *page, qn_arena *arena, const qn_graph *graph,
                                    const qn_svg_fold *fold, const qn_svg_box *box,
                                    int32_t *item_of);
QN_MUST_CHECK bool qn_svg_page_lay_out(qn_svg_page *page, qn_arena *arena);
void qn_svg_page_deinit(qn_svg_page *page);

#endif

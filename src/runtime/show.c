#include "runtime/show.h"

#include "core/mem.h"
#include "ir/plan_text.h"
#include "ir/memplan.h"

enum {
    DEFAULT_ROWS = 1,
    CALL_WIDTH = 14,
    HEIGHT = 420,
    LEFT = 70,
    TOP = 40,
    BOTTOM = 50,
    MIN_WIDTH = 720
};

// The buffers of a plan for given sizes.
typedef struct placed {
    const qn_plan *plan;
    int64_t symbols[QN_SYM_COUNT];
    int64_t *offsets;
    int32_t *living;
    qn_memplan_report report;
} placed;

static void placed_deinit(placed *p) {
    qn_free(p->offsets);
    qn_free(p->living);
}

static qn_status placed_init(placed *p, qn_err *err) {
    p->offsets = qn_alloc(p->plan->n_buffers + 1, sizeof *p->offsets);
    p->living = qn_alloc(p->plan->n_buffers + 1, sizeof *p->living);
    if (!p->offsets || !p->living) return QN_NOMEM(err, "memory plan");
    if (!qn_memplan(&p->report, p->offsets, p->living, p->plan, p->symbols))
        return QN_FAIL(err, LIMIT, "a step of %lld rows: sizes overflow",
                       (long long)p->symbols[QN_SYM_T]);
    return QN_OK;
}

static int64_t buffer_bytes(const placed *p, size_t i) {
    int64_t bytes = 0;
    return qn_buffer_bytes(&bytes, &p->plan->buffers[i], p->symbols) ? bytes : 0;
}

// As comments after the plan: it still parses.
static void show_memory(qn_buf *to, const placed *p, int64_t cached) {
    qn_buf_printf(to,
                  "\n# bound for %lld rows, %lld cached: arena %lld bytes, %lld without reuse\n",
                  (long long)p->symbols[QN_SYM_T], (long long)cached, (long long)p->report.peak,
                  (long long)p->report.total);
    for (size_t i = 0; i < p->plan->n_buffers; i++)
        qn_buf_printf(to, "# buffer %zu at %lld, %lld bytes, calls %d to %d\n", i,
                      (long long)p->offsets[i], (long long)buffer_bytes(p, i),
                      p->plan->buffers[i].first, p->plan->buffers[i].last);
}

static void draw_buffer(qn_buf *to, const placed *p, size_t i, double scale) {
    const qn_plan_buffer *b = &p->plan->buffers[i];
    const double bytes = (double)buffer_bytes(p, i);
    const double height = bytes * scale, bottom = HEIGHT + TOP - (double)p->offsets[i] * scale;
    qn_buf_printf(
        to,
        "<rect x=\"%d\" y=\"%.1f\" width=\"%d\" height=\"%.1f\" fill=\"hsl(%zu,55%%,72%%)\" "
        "stroke=\"#555\" stroke-width=\"0.5\"><title>buffer %zu: %.0f bytes, written by "
        "call %d (%s), last read by call %d (%s)</title></rect>\n",
        LEFT + b->first * CALL_WIDTH, bottom - height, (b->last - b->first + 1) * CALL_WIDTH,
        height, i * 47 % 360, i, bytes, b->first, p->plan->calls[b->first].kernel, b->last,
        p->plan->calls[b->last].kernel);
}

static void draw_memory(qn_buf *to, const placed *p, int64_t cached) {
    const int needed = LEFT + (int)p->plan->n_calls * CALL_WIDTH + 20;
    const int width = needed < MIN_WIDTH ? MIN_WIDTH : needed;
    const double peak = p->report.peak > 0 ? (double)p->report.peak : 1.0;
    const double scale = HEIGHT / peak;
    qn_buf_printf(
        to,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
        "font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%%\" "
        "height=\"100%%\" fill=\"white\"/>\n<text x=\"%d\" y=\"18\" font-size=\"14\">%zu "
        "calls, %lld rows, %lld cached: arena of %.1f KiB, %.1f KiB without reuse</text>\n",
        width, HEIGHT + TOP + BOTTOM, LEFT, p->plan->n_calls, (long long)p->symbols[QN_SYM_T],
        (long long)cached, peak / 1024, (double)p->report.total / 1024);
    for (size_t i = 0; i < p->plan->n_buffers; i++) draw_buffer(to, p, i, scale);
    int32_t layer = -1;
    for (size_t i = 0; i < p->plan->n_calls; i++) {
        if (p->plan->calls[i].layer == layer) continue;
        layer = p->plan->calls[i].layer;
        const int x = LEFT + (int)i * CALL_WIDTH;
        qn_buf_printf(to,
                      "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#bbb\"/><text "
                      "x=\"%d\" y=\"%d\">",
                      x, TOP, x, HEIGHT + TOP, x + 2, HEIGHT + TOP + 16);
        if (layer >= 0)
            qn_buf_printf(to, "layer %d", layer);
        else
            qn_buf_text(to, i ? "head" : "embed");
        qn_buf_text(to, "</text>\n");
    }
    qn_buf_printf(to, "<text x=\"4\" y=\"%d\">%.1f KiB</text>\n<text x=\"4\" y=\"%d\">0</text>\n",
                  TOP + 10, peak / 1024, TOP + HEIGHT);
    qn_buf_text(to, "</svg>\n");
}

static qn_status show_stage(qn_buf *to, const qn_stage *stage, const qn_graph_opts *opts,
                            qn_err *err) {
    const bool is_decode = stage->decode.n_calls && opts->rows == 1;
    const bool is_svg = opts->form == QN_GRAPH_SVG;
    placed p = {.plan = is_decode ? &stage->decode : &stage->prefill,
                .symbols = {1, opts->rows ? opts->rows : DEFAULT_ROWS, 1, 1}};
    if (!is_svg) qn_plan_print(to, p.plan);
    if (!is_svg && opts->rows == 0) return QN_OK;
    const qn_status status = placed_init(&p, err);
    if (!status) (is_svg ? draw_memory : show_memory)(to, &p, opts->cached);
    placed_deinit(&p);
    return status;
}

qn_status qn_show_plan(qn_buf *to, const qn_engine *engine, const qn_graph_opts *opts,
                       qn_err *err) {
    if (opts->rows < 0 || opts->cached < 0)
        return QN_FAIL(err, ARGUMENT, "%lld rows, %lld cached", (long long)opts->rows,
                       (long long)opts->cached);
    if (opts->form == QN_GRAPH_SVG && engine->n_stages > 1)
        return QN_FAIL(err, UNSUPPORTED, "a drawing shows the plan of one device, not of %zu",
                       engine->n_stages);
    for (size_t i = 0; i < engine->n_stages; i++)
        QN_TRY(show_stage(to, &engine->stages[i], opts, err));
    return QN_OK;
}

#include "runtime/vision.h"

#include "core/mem.h"
#include "models/vision_tower.h"
#include "vision/grid.h"

#include <string.h>

// A graph of the tower, ready to run: as a plan, or for the interpreter.
typedef struct part {
    const qn_graph *graph;
    qn_plan plan;
    qn_packs *packs;
    const void **weights; // (PARAM leaves of the plan)
    const void **params;  // (values of the graph); NULL: there is a plan
} part;

struct qn_vision {
    const qn_engine *engine; // borrowed
    qn_source *own;          // NULL: the engine's source
    qn_device *device;       // the engine's first
    qn_vision_tower tower;
    float *positions; // (side, side, D)
    part features, merger;
};

// --- opening -------------------------------------------------------------------------------------

static void part_deinit(part *p) {
    qn_plan_deinit(&p->plan);
    qn_packs_destroy(p->packs);
    qn_free(p->weights);
    qn_free(p->params);
}

static qn_status find_weights(part *p, qn_err *err) {
    const size_t n = p->plan.n_leaves[QN_PLACE_PARAM];
    p->weights = qn_alloc(n, sizeof *p->weights);
    if (!p->weights) return QN_NOMEM(err, "vision tower");
    for (size_t i = 0; i < n; i++)
        p->weights[i] = qn_packs_find(p->packs, p->plan.leaves[QN_PLACE_PARAM][i].name);
    return QN_OK;
}

static qn_status part_init(part *p, const qn_vision *v, const qn_graph *graph,
                           const qn_source *source, qn_err *err) {
    const qn_engine *engine = v->engine;
    p->graph = graph;
    if (engine->opts.reference) return qn_weights_params(&p->params, &v->tower.weights, graph, err);
    qn_compile_opts compile = qn_engine_compile_opts(engine, &engine->stages[0]);
    compile.disk = NULL;
    compile.fine_layers = 0; // those of the tower are others
    QN_TRY(qn_compile(&p->plan, graph, &compile, err));
    const qn_packs_opts packs = {
        .weights = &v->tower.weights, .source = source, .plan = &p->plan, .device = v->device};
    QN_TRY(qn_packs_create(&p->packs, &packs, err));
    return find_weights(p, err);
}

static qn_status load_positions(qn_vision *v, const qn_source *source, qn_err *err) {
    static const char name[] = "v.position_embd.weight";
    uint32_t i;
    if (!qn_map_find(&v->tower.weights.by_name, name, sizeof name - 1, &i))
        return QN_FAIL(err, FORMAT, "weight %s is missing", name);
    const qn_weight *w = &v->tower.weights.items[i];
    v->positions = qn_alloc((size_t)w->n, sizeof *v->positions);
    if (!v->positions) return QN_NOMEM(err, name);
    return qn_weight_read_f32(v->positions, w, source, 0, w->n, err);
}

static qn_status open_source(const qn_source **source, qn_vision *v, const char *path,
                             qn_err *err) {
    *source = v->engine->source;
    if (path) {
        const qn_files *given = qn_source_place(*source)->files;
        const qn_model_file *file = given ? qn_files_find(given, path) : NULL;
        QN_TRY(file ? qn_source_open_files(&v->own, file, 1, err)
                    : qn_source_open(&v->own, path, err));
        *source = v->own;
        return QN_OK;
    }
    if (qn_vision_is_inside(*source)) return QN_OK;
    return QN_FAIL(err, STATE,
                   "%s has no vision tower: images need its mmproj file (--mmproj FILE)",
                   qn_source_path(*source));
}

// A limit of the caller's besides the model's; at least one merged patch is left.
static void limit_pixels(qn_patch_rules *r, int64_t max_pixels) {
    const int64_t least = r->patch * r->patch * r->merge * r->merge;
    if (max_pixels <= 0) return;
    r->max_pixels = qn_min(r->max_pixels, qn_max(max_pixels, least));
    r->min_pixels = qn_min(r->min_pixels, r->max_pixels);
}

// Everything but its weights.
static qn_status open_tower(const qn_source **out, qn_vision *v, const qn_vision_opts *opts,
                            qn_err *err) {
    const qn_source *source;
    const qn_model *model = v->engine->model;
    const int64_t width = model->hparams->width;
    if (!model->family->reads_images)
        return QN_FAIL(err, UNSUPPORTED, "%s: models of the architecture %s do not read images",
                       qn_source_path(v->engine->source), model->family->arch);
    QN_TRY(open_source(&source, v, opts->path, err));
    QN_TRY(qn_vision_tower_init(&v->tower, source, err));
    limit_pixels(&v->tower.rules, opts->max_pixels);
    if (v->tower.config.out_width != width)
        return QN_FAIL(err, FORMAT,
                       "%s is the tower of another model: its rows have width %lld, %s has %lld",
                       qn_source_path(source), (long long)v->tower.config.out_width,
                       qn_source_path(v->engine->source), (long long)width);
    *out = source;
    return QN_OK;
}

qn_status qn_vision_check(const qn_engine *engine, const qn_vision_opts *opts, qn_err *err) {
    const qn_source *source;
    qn_vision v = {.engine = engine};
    const qn_status status = open_tower(&source, &v, opts, err);
    qn_vision_tower_deinit(&v.tower);
    qn_source_close(v.own);
    return status;
}

static qn_status open_parts(qn_vision *v, const qn_vision_opts *opts, qn_err *err) {
    const qn_source *source;
    const qn_load_opts load = {0};
    QN_TRY(open_tower(&source, v, opts, err));
    if (v->engine->opts.reference) QN_TRY(qn_weights_load(&v->tower.weights, source, &load, err));
    QN_TRY(load_positions(v, source, err));
    QN_TRY(part_init(&v->features, v, &v->tower.graph, source, err));
    return part_init(&v->merger, v, &v->tower.merger, source, err);
}

qn_status qn_vision_open(qn_vision **out, const qn_engine *engine, const qn_vision_opts *opts,
                         qn_err *err) {
    if (!engine->is_loaded && !engine->params)
        return QN_FAIL(err, STATE, "%s was opened without weights", qn_source_path(engine->source));
    qn_vision *v = qn_alloc(1, sizeof *v);
    if (!v) return QN_NOMEM(err, "vision tower");
    v->engine = engine;
    v->device = engine->stages[0].device;
    const qn_status status = open_parts(v, opts ? opts : &(qn_vision_opts){0}, err);
    if (status)
        qn_vision_close(v);
    else
        *out = v;
    return status;
}

void qn_vision_close(qn_vision *v) {
    if (!v) return;
    part_deinit(&v->features);
    part_deinit(&v->merger);
    qn_free(v->positions);
    qn_vision_tower_deinit(&v->tower);
    qn_source_close(v->own);
    qn_free(v);
}

const qn_patch_rules *qn_vision_get_rules(const qn_vision *vision) { return &vision->tower.rules; }

qn_status qn_vision_measure(int64_t *rows, int64_t *columns, const qn_vision *v, int64_t width,
                            int64_t height, qn_err *err) {
    const int64_t unit = v->tower.rules.patch * v->tower.rules.merge;
    int64_t to_width, to_height;
    QN_TRY(qn_patch_sizes(&to_width, &to_height, width, height, &v->tower.rules, err));
    *rows = to_height / unit;
    *columns = to_width / unit;
    return QN_OK;
}

// --- one step of n rows --------------------------------------------------------------------------

// Rows given to an input of a part's graph.
typedef struct given {
    const char *name;
    const float *rows;
} given;

// One segment of n rows, on pages 0, 1, ...
typedef struct step_message {
    int32_t *words;
    int64_t n, pages;
    qn_until *until; // NULL: as long as it takes
} step_message;

static qn_status message_init(step_message *m, int64_t n, qn_err *err) {
    size_t words;
    m->n = n;
    m->pages = (n + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS;
    const qn_step_sizes sizes = {.rows = n, .segs = 1, .groups = 1, .pages = m->pages};
    QN_TRY(qn_step_measure(&words, &sizes, err));
    m->words = qn_alloc(words, sizeof *m->words);
    if (!m->words) return QN_NOMEM(err, "step of a vision tower");
    qn_step_begin(m->words, &sizes, 0, 0);
    int32_t *pages = qn_step_at(m->words, QN_STEP_SEG_PAGES);
    for (int64_t i = 0; i < m->pages; i++) pages[i] = (int32_t)i;
    qn_step_at(m->words, QN_STEP_SEG_ROW)[1] = (int32_t)n;
    qn_step_at(m->words, QN_STEP_SEG_ADAPTER)[0] = -1;
    return QN_OK;
}

// --- by the interpreter --------------------------------------------------------------------------

// A qn_progress_fn.
static bool go_on(void *arg, int64_t done, int64_t total) {
    (void)done, (void)total;
    return qn_until_goes_on(arg);
}

static qn_status interpret(float *to, const qn_vision *v, const part *p, const step_message *m,
                           const given *inputs, size_t n_inputs, qn_err *err) {
    qn_ref *ref = NULL;
    qn_step step;
    int64_t n = 0;
    const qn_ref_opts opts = {.graph = p->graph,
                              .params = p->params,
                              .pool = v->engine->pool,
                              .n_pages = m->pages,
                              .n_slots = 1,
                              .progress = m->until ? go_on : NULL,
                              .progress_arg = m->until};
    QN_TRY(qn_ref_create(&ref, &opts, err));
    for (size_t i = 0; i < n_inputs; i++)
        qn_ref_set_input(ref, qn_graph_find_input(p->graph, inputs[i].name), inputs[i].rows);
    qn_step_view(&step, m->words);
    const qn_status status = qn_ref_run(ref, &step, err);
    if (!status) {
        const float *rows = qn_ref_output(ref, p->graph->outputs[0].name, &n);
        memcpy(to, rows, (size_t)n * sizeof *to);
    }
    qn_ref_destroy(ref);
    return status;
}

// --- by a plan -----------------------------------------------------------------------------------

// Keys and values of a plan's layers, which take turns in one cache.
typedef struct kv_memory {
    qn_cache_view view;
    void *pages;
    size_t bytes;
} kv_memory;

// What they look like, without memory; none: .bytes stays 0.
static qn_status kv_measure(kv_memory *kv, const qn_vision *v, const part *p, int64_t pages,
                            qn_err *err) {
    if (p->plan.n_leaves[QN_PLACE_CACHE] == 0) return QN_OK;
    const qn_dim *d = p->plan.leaves[QN_PLACE_CACHE][0].shape.dims; // (H, E, E)
    qn_cache_view view = {.type = QN_TYPE_F32, .heads = d[0].n, .k_size = d[1].n, .v_size = d[2].n};
    view.layer_bytes =
        v->device->backend->cache_bytes(view.type, view.heads, view.k_size, view.v_size);
    view.page_bytes = (view.layer_bytes + 63) / 64 * 64;
    if (!qn_size_mul(&kv->bytes, (size_t)pages, (size_t)view.page_bytes))
        return QN_FAIL(err, LIMIT, "keys and values of %lld pages overflow", (long long)pages);
    kv->view = view;
    return QN_OK;
}

static qn_status kv_init(kv_memory *kv, const qn_vision *v, const part *p, int64_t pages,
                         qn_err *err) {
    QN_TRY(kv_measure(kv, v, p, pages, err));
    if (kv->bytes == 0) return QN_OK;
    QN_TRY(v->device->kind->alloc(&kv->pages, v->device, kv->bytes, err));
    kv->view.pages = kv->pages;
    return QN_OK;
}

// A program for n rows, to be run or (is_measured) to be asked how much it needs.
static qn_status prepare(qn_program **out, const qn_vision *v, const part *p,
                         const qn_cache_view *const *caches, const step_message *m,
                         bool is_measured, qn_err *err) {
    const qn_program_opts opts = {.plans = {{.plan = &p->plan,
                                             .weights = p->weights,
                                             .caches = caches,
                                             .policy = QN_PLANS_EXACT,
                                             .capacity = 1}},
                                  .max = {.rows = m->n, .segs = 1, .outs = 0, .cached = m->n},
                                  .is_measured = is_measured,
                                  .go_on = m->until ? qn_until_goes_on : NULL,
                                  .go_on_arg = m->until};
    return v->device->kind->prepare(out, v->device, &opts, err);
}

static qn_status run_program(float *to, qn_program *program, const qn_vision *v, const part *p,
                             const step_message *m, const given *inputs, size_t n_inputs,
                             qn_err *err) {
    const qn_device_kind *how = v->device->kind;
    const qn_sizes sizes = {.rows = m->n, .segs = 1, .outs = 0, .cached = m->n};
    const qn_plan_output *output = &p->plan.outputs[0];
    const int64_t width = output->arg.parts * output->arg.width;
    bool ok = how->begin(program, 0, m->words, &sizes);
    for (size_t i = 0; ok && i < n_inputs; i++)
        ok = how->give(program, inputs[i].name, inputs[i].rows);
    if (!ok) return QN_FAIL(err, STATE, "%s: a step of %lld rows", p->plan.name, (long long)m->n);
    how->run(program);
    how->wait(program);
    for (int64_t r = 0; r < m->n; r++)
        memcpy(to + r * width, how->row(program, output, r), (size_t)width * sizeof *to);
    return qn_device_failure(v->device, err);
}

static qn_status execute(float *to, const qn_vision *v, const part *p, const step_message *m,
                         const given *inputs, size_t n_inputs, qn_err *err) {
    kv_memory kv = {0};
    const qn_cache_view *caches[] = {&kv.view};
    qn_program *program = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, kv_init(&kv, v, p, m->pages, err));
    QN_TRY_TO(done, prepare(&program, v, p, caches, m, false, err));
    status = run_program(to, program, v, p, m, inputs, n_inputs, err);

done:
    if (program) v->device->kind->release(program);
    if (kv.pages) v->device->kind->free(v->device, kv.pages, kv.bytes);
    return status;
}

// n rows through a part of the tower.
static qn_status run_part(float *to, const qn_vision *v, const part *p, int64_t n,
                          const given *inputs, size_t n_inputs, qn_until *until, qn_err *err) {
    step_message m = {.until = until};
    qn_status status = message_init(&m, n, err);
    if (!status)
        status = p->params ? interpret(to, v, p, &m, inputs, n_inputs, err)
                           : execute(to, v, p, &m, inputs, n_inputs, err);
    qn_free(m.words);
    if (status || qn_until_goes_on(until)) return status;
    return QN_FAIL(err, STOPPED, "stopped while it was encoded (%s)", p->graph->name);
}

// Bytes that n rows through a part take while they run; 0: unknown (the interpreter).
static qn_status measure_part(int64_t *bytes, const qn_vision *v, const part *p, int64_t n,
                              qn_err *err) {
    const step_message m = {.n = n, .pages = (n + QN_PAGE_ROWS - 1) / QN_PAGE_ROWS};
    kv_memory kv = {0};
    const qn_cache_view *caches[] = {&kv.view};
    qn_program *program = NULL;
    *bytes = 0;
    if (p->params) return QN_OK;
    QN_TRY(kv_measure(&kv, v, p, m.pages, err));
    QN_TRY(prepare(&program, v, p, caches, &m, true, err));
    const qn_program_size size = v->device->kind->measure(program);
    v->device->kind->release(program);
    *bytes = size.arena + size.scratch + size.tables + (int64_t)kv.bytes;
    return QN_OK;
}

// --- encoding ------------------------------------------------------------------------------------

// What a tower computes an image from and into; patches count n, merged ones n / merge^2.
typedef struct encoding {
    float *angles;    // (n, 2, head / 2)
    float *positions; // (n, D)
    float *features;  // (n, D), which is (n / merge^2, D * merge^2) too
    float *rows;      // (n / merge^2, width of the text model)
} encoding;

static void encoding_deinit(encoding *e) {
    qn_free(e->angles);
    qn_free(e->positions);
    qn_free(e->features);
    qn_free(e->rows);
}

static qn_status encoding_init(encoding *e, const qn_vision *v, int64_t n, qn_err *err) {
    const qn_vision_config *c = &v->tower.config;
    const size_t rows = (size_t)n, width = (size_t)c->width * sizeof(float);
    e->angles = qn_alloc(rows, (size_t)(c->width / c->heads) * sizeof(float));
    e->positions = qn_alloc(rows, width);
    e->features = qn_alloc(rows, width);
    e->rows = qn_alloc((size_t)(n / (c->merge * c->merge)), (size_t)c->out_width * sizeof(float));
    return e->angles && e->positions && e->features && e->rows ? QN_OK
                                                               : QN_NOMEM(err, "rows of an image");
}

// Before anything is taken: patches (n) are there.
static qn_status check_memory(const qn_vision *v, const qn_patches *p, qn_err *err) {
    const qn_vision_config *c = &v->tower.config;
    const int64_t n = p->rows * p->columns, own = c->width / c->heads + 2 * c->width + c->out_width;
    int64_t features, merger, available;
    if (!v->device->kind->memory(v->device, &available)) return QN_OK;
    QN_TRY(measure_part(&features, v, &v->features, n, err));
    QN_TRY(measure_part(&merger, v, &v->merger, n / (c->merge * c->merge), err));
    const int64_t need = n * own * (int64_t)sizeof(float) + qn_max(features, merger);
    if (need <= available) return QN_OK;
    return QN_FAIL(err, MEMORY,
                   "an image of %lld x %lld patches needs %.0f MiB while it is encoded, %.0f MiB "
                   "of memory are free (image_pixels makes images smaller)",
                   (long long)p->rows, (long long)p->columns, (double)need / (1 << 20),
                   (double)available / (1 << 20));
}

static qn_status check_patches(const qn_vision *v, const qn_patches *p, qn_err *err) {
    const qn_patch_rules *r = &v->tower.rules;
    const int64_t width = QN_VISION_CHANNELS * r->patch * r->patch;
    int64_t n;
    if (p->width == width && p->rows > 0 && p->columns > 0 && p->rows % r->merge == 0 &&
        p->columns % r->merge == 0 && qn_i64_mul(&n, p->rows, p->columns) && n <= INT32_MAX)
        return QN_OK;
    return QN_FAIL(err, ARGUMENT,
                   "%lld x %lld patches of %lld numbers, the tower merges %lld x "
                   "%lld patches of %lld",
                   (long long)p->rows, (long long)p->columns, (long long)p->width,
                   (long long)r->merge, (long long)r->merge, (long long)width);
}

qn_status qn_vision_encode_patches(qn_vision_rows *out, const qn_vision *v,
                                   const qn_patches *patches, qn_until *until, qn_err *err) {
    const qn_vision_config *c = &v->tower.config;
    const qn_grid grid = {.rows = patches->rows, .columns = patches->columns, .merge = c->merge};
    encoding e = {0};
    QN_TRY(check_patches(v, patches, err));
    QN_TRY(check_memory(v, patches, err));
    const int64_t n = patches->rows * patches->columns;
    qn_status status = encoding_init(&e, v, n, err);
    if (!status) {
        qn_grid_angles(e.angles, &grid, c->width / c->heads, (double)c->theta);
        qn_grid_positions(e.positions, &grid, v->positions, c->side, c->width);
        const given inputs[] = {{"patches.0", patches->data},
                                {"patches.1", patches->data}, // a still image
                                {"positions", e.positions},
                                {"angles", e.angles}};
        status = run_part(e.features, v, &v->features, n, inputs, 4, until, err);
    }
    const int64_t merged = n / (c->merge * c->merge);
    const given groups = {"groups", e.features};
    if (!status) status = run_part(e.rows, v, &v->merger, merged, &groups, 1, until, err);
    if (!status) {
        *out = (qn_vision_rows){.rows = patches->rows / c->merge,
                                .columns = patches->columns / c->merge,
                                .width = c->out_width,
                                .data = e.rows};
        e.rows = NULL;
    }
    encoding_deinit(&e);
    return status;
}

qn_status qn_vision_encode(qn_vision_rows *out, const qn_vision *vision, const qn_image *image,
                           qn_until *until, qn_err *err) {
    qn_patches patches;
    QN_TRY(qn_patches_init(&patches, image, &vision->tower.rules, err));
    const qn_status status = qn_vision_encode_patches(out, vision, &patches, until, err);
    qn_patches_deinit(&patches);
    return status;
}

void qn_vision_rows_deinit(qn_vision_rows *rows) {
    qn_free(rows->data);
    *rows = (qn_vision_rows){0};
}

// Which activations must not be rounded coarsely, as CSV: the error of the logits, relative to
// those of the same weights in float32, when the inputs of one kind of matrix are rounded, and when
// those of all kinds but this one are.
//
//   bench_rounding MODEL IDS [COARSE [FINE]]   ids with commas; forms of docs/numbers.md, default
//                                              i12_256 and f32
//
// On the reference interpreter, so that nothing else is rounded. Rows are compared from the first
// id on, all together (docs/numbers.md).
#include "core/mem.h"
#include "ir/ref.h"
#include "models/model.h"
#include "passes/passes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_IDS = 4096, MAX_KINDS = 64, NAME = 64 };

static void check(qn_status status, const qn_err *err) {
    if (!status) return;
    fprintf(stderr, "bench_rounding: %s\n", err->message);
    exit(1);
}

// --- the model -----------------------------------------------------------------------------------

typedef struct rig {
    qn_source *source;
    qn_model *model;
    qn_graph graph; // with activations rounded before every matrix of integers
    int32_t ids[MAX_IDS], pos[4 * MAX_IDS], rows[MAX_IDS], zeros[MAX_IDS], pages[MAX_IDS];
    int32_t n;
    float *exact; // (n, vocabulary)
    char kinds[MAX_KINDS][NAME];
    int n_kinds;
} rig;

static void rig_open(rig *r, const char *path) {
    qn_err err = {0};
    uint64_t skip = 0;
    for (size_t i = 0; qn_pass_name(i); i++) {
        if (strcmp(qn_pass_name(i), "quantize") != 0) skip |= UINT64_C(1) << i;
    }
    check(qn_source_open(&r->source, path, &err), &err);
    check(qn_model_create(&r->model, r->source, &err), &err);
    check(qn_weights_load(&r->model->weights, r->source, &(qn_load_opts){0}, &err), &err);
    check(qn_passes_run(&r->graph, &r->model->graph, &(qn_pass_opts){.skip = skip}, NULL, &err),
          &err);
}

static void read_ids(rig *r, const char *text) {
    for (char *end; *text && r->n < MAX_IDS; text = *end ? end + 1 : end) {
        r->ids[r->n] = (int32_t)strtol(text, &end, 10);
        if (end == text) break;
        for (int k = 0; k < 3; k++) r->pos[4 * r->n + k] = r->n;
        r->rows[r->n] = r->pages[r->n] = r->n;
        r->n++;
    }
}

// The logits of all rows, (n, vocabulary); release with qn_free.
static float *run(const rig *r) {
    qn_err err = {0};
    const void **params = NULL;
    qn_ref *ref = NULL;
    const int32_t seg_row[2] = {0, r->n}, none = -1;
    const int64_t n_pages = r->n / QN_PAGE_ROWS + 1;
    const qn_step step = {.n_rows = r->n,
                          .n_segs = 1,
                          .n_out = r->n,
                          .ids = r->ids,
                          .pos = r->pos,
                          .row_seg = r->zeros,
                          .seg_row = seg_row,
                          .seg_past = r->zeros,
                          .seg_pages = r->pages,
                          .pages_per_seg = n_pages,
                          .seg_slot = r->zeros,
                          .seg_accept = r->zeros,
                          .seg_commit = &r->n,
                          .seg_adapter = &none,
                          .row_out = r->rows};
    check(qn_model_params(&params, r->model, &r->graph, &err), &err);
    const qn_ref_opts opts = {
        .graph = &r->graph, .params = params, .n_pages = n_pages, .n_slots = 1};
    check(qn_ref_create(&ref, &opts, &err), &err);
    check(qn_ref_run(ref, &step, &err), &err);
    int64_t n = 0;
    const float *logits = qn_ref_output(ref, "logits", &n);
    float *copy = qn_alloc((size_t)n, sizeof *copy);
    if (!copy) exit(1);
    memcpy(copy, logits, (size_t)n * sizeof *copy);
    qn_ref_destroy(ref);
    qn_free(params);
    return copy;
}

// --- kinds of matrices ---------------------------------------------------------------------------

// The name of the matrix without the number of its layer.
static void name_kind(char *to, const char *name) {
    int at = 0;
    for (; *name && at < NAME - 1; name++) {
        if (*name >= '0' && *name <= '9' && at && to[at - 1] == '.') {
            to[at++] = '*';
            while (name[1] >= '0' && name[1] <= '9') name++;
        } else {
            to[at++] = *name;
        }
    }
    to[at] = '\0';
}

// The node that rounds what node i multiplies; NULL: none does.
static qn_node *rounding_of(const rig *r, size_t i) {
    const qn_node *node = &r->graph.nodes[i];
    if (node->op != QN_OP_MATMUL && node->op != QN_OP_GROUPED_MATMUL) return NULL;
    qn_node *made = &r->graph.nodes[r->graph.values[node->in[0]].node];
    return made->op == QN_OP_QUANTIZE ? made : NULL;
}

static int kind_of(const rig *r, size_t i) {
    char name[NAME];
    int k = 0;
    name_kind(name, r->graph.values[r->graph.nodes[i].in[1]].name);
    while (k < r->n_kinds && strcmp(r->kinds[k], name) != 0) k++;
    return k;
}

static void find_kinds(rig *r) {
    for (size_t i = 0; i < r->graph.n_nodes; i++) {
        if (!rounding_of(r, i) || kind_of(r, i) < r->n_kinds || r->n_kinds == MAX_KINDS) continue;
        name_kind(r->kinds[r->n_kinds++], r->graph.values[r->graph.nodes[i].in[1]].name);
    }
}

// The relative error of the logits with a form for the inputs of each kind.
static double error_of(const rig *r, const qn_word *forms) {
    double difference = 0, size = 0;
    for (size_t i = 0; i < r->graph.n_nodes; i++) {
        qn_node *rounding = rounding_of(r, i);
        if (rounding) rounding->attrs.form = forms[kind_of(r, i)];
    }
    float *got = run(r);
    for (int64_t i = 0; i < r->n * r->model->hparams->vocab; i++) {
        const double d = (double)got[i] - (double)r->exact[i];
        difference += d * d;
        size += (double)r->exact[i] * (double)r->exact[i];
    }
    qn_free(got);
    return sqrt(difference / size);
}

static void set_all(qn_word *forms, qn_word form) {
    for (int k = 0; k <= MAX_KINDS; k++) forms[k] = form;
}

// One kind coarse, one kind fine.
static void print_kinds(const rig *r, qn_word coarse, qn_word fine) {
    qn_word forms[MAX_KINDS + 1];
    for (int k = 0; k < r->n_kinds; k++) {
        set_all(forms, QN_WORD_f32);
        forms[k] = coarse;
        const double alone = error_of(r, forms);
        set_all(forms, coarse);
        forms[k] = fine;
        printf("%s,%.1e,%.1e\n", r->kinds[k], alone, error_of(r, forms));
    }
}

// Kinds made fine one after the other, each time the one that helps most.
static void print_greedy(const rig *r, qn_word coarse, qn_word fine) {
    qn_word forms[MAX_KINDS + 1];
    set_all(forms, coarse);
    for (int n = 0; n < r->n_kinds; n++) {
        double best = INFINITY;
        int chosen = 0;
        for (int k = 0; k < r->n_kinds; k++) {
            if (forms[k] == fine) continue;
            forms[k] = fine;
            const double error = error_of(r, forms);
            forms[k] = coarse;
            if (error < best) {
                best = error;
                chosen = k;
            }
        }
        forms[chosen] = fine;
        printf("%s,%.1e\n", r->kinds[chosen], best);
        fflush(stdout);
    }
}

static qn_word find_form(const char *name) {
    for (int i = 0; i < QN_WORD_COUNT; i++) {
        const qn_word_info *word = qn_word_get((qn_word)i);
        if (word->attr == QN_ATTR_form && strcmp(word->name, name) == 0) return (qn_word)i;
    }
    fprintf(stderr, "bench_rounding: no form '%s'\n", name);
    exit(1);
}

int main(int argc, char **argv) {
    static rig r;
    qn_word forms[MAX_KINDS + 1];
    if (argc < 3) {
        fprintf(stderr, "usage: bench_rounding MODEL IDS [COARSE [FINE]]\n");
        return 1;
    }
    const qn_word coarse = find_form(argc > 3 ? argv[3] : "i12_256");
    const qn_word fine = find_form(argc > 4 ? argv[4] : "f32");
    rig_open(&r, argv[1]);
    read_ids(&r, argv[2]);
    find_kinds(&r);
    set_all(forms, QN_WORD_f32);
    r.exact = qn_alloc((size_t)(r.n * r.model->hparams->vocab), sizeof *r.exact);
    if (!r.exact) return 1;
    (void)error_of(&r, forms); // nothing is rounded
    qn_free(r.exact);
    r.exact = run(&r);
    set_all(forms, coarse);
    printf("matrix,only this coarse,only this fine\nall,%.1e,", error_of(&r, forms));
    set_all(forms, fine);
    printf("%.1e\n", error_of(&r, forms));
    print_kinds(&r, coarse, fine);
    printf("matrix,this and those above fine\n");
    print_greedy(&r, coarse, fine);
    qn_free(r.exact);
    qn_graph_deinit(&r.graph);
    qn_model_destroy(r.model);
    qn_source_close(r.source);
    return 0;
}

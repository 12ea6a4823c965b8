// Ops that are several matmuls in one: the same bits as their parts, at every CPU level; and rows
// of the embedding table.
#include "amx_trap.h"
#include "matmul_rig.h"

static void project_is_matmuls(void **state) {
    (void)state;
    const int64_t n_in = 512, rows = 9, n_out[] = {40, 16, 7, 300};
    const qn_type types[] = {QN_TYPE_Q4_K, QN_TYPE_Q6_K, QN_TYPE_F16, QN_TYPE_Q8_0};
    weight w[4];
    for (int i = 0; i < 4; i++)
        w[i] = make_weight(kind_of(types[i]), 1, n_out[i], n_in, (uint64_t)i);
    qn_operand x = make_rows(rows, 1, n_in, QN_WORD_f32);
    fill_rows(&x, rows, 1);
    for (size_t l = 0; level(l); l++) {
        qn_operand panels = packed_rows(level(l), &x, rows, QN_WORD_i12_256);
        qn_operand out = make_rows(rows, 1, 363, QN_WORD_f32);
        const qn_task task = {.in = {panels, weight_operand(&w[0]), weight_operand(&w[1]),
                                     weight_operand(&w[2]), weight_operand(&w[3])},
                              .out = {out},
                              .rows = rows};
        run_op(level(l), QN_OP_PROJECT, &task, true);
        for (int64_t i = 0, column = 0; i < 4; column += n_out[i++]) {
            qn_operand part = matmul(level(l), &panels, &w[i], rows);
            for (int64_t r = 0; r < rows; r++)
                assert_memory_equal((float *)at(&out, r) + column, at(&part, r),
                                    (size_t)n_out[i] * sizeof(float));
            free(part.data);
        }
        free(panels.data);
        free(out.data);
    }
    free(x.data);
    for (int i = 0; i < 4; i++) free_weight(&w[i]);
}

// act(gate) * up over dense rows.
static qn_operand gate(const qn_cpu_level *backend, const qn_operand *a, const qn_operand *b,
                       int64_t rows, qn_word act) {
    qn_operand acted = make_rows(rows, a->parts, a->width, QN_WORD_f32);
    qn_operand out = make_rows(rows, a->parts, a->width, QN_WORD_f32);
    const qn_attrs attrs = {.act = act};
    const qn_task first = {.attrs = &attrs, .in = {*a}, .out = {acted}, .rows = rows};
    run_op(backend, act == QN_WORD_gelu ? QN_OP_GELU : QN_OP_SILU, &first, false);
    const qn_task second = {.attrs = &attrs, .in = {acted, *b}, .out = {out}, .rows = rows};
    run_op(backend, QN_OP_MUL, &second, false);
    free(acted.data);
    return out;
}

static void gated_is_its_parts(void **state) {
    (void)state;
    const int64_t n_in = 256, n_out = 75;
    weight w[2] = {make_weight(kind_of(QN_TYPE_Q4_K), 1, n_out, n_in, 1),
                   make_weight(kind_of(QN_TYPE_Q6_K), 1, n_out, n_in, 2)};
    for (int64_t rows = 1; rows <= MAX_ROWS; rows += 23) {
        qn_operand x = make_rows(rows, 1, n_in, QN_WORD_f32);
        fill_rows(&x, rows, 1);
        for (size_t i = 0; level(i / 2); i++) {
            const qn_cpu_level *backend = level(i / 2);
            const qn_attrs attrs = {.act = i % 2 ? QN_WORD_gelu : QN_WORD_silu};
            qn_operand panels = packed_rows(backend, &x, rows, QN_WORD_i8_32);
            qn_operand out = make_rows(rows, 1, n_out, QN_WORD_f32);
            const qn_task task = {.attrs = &attrs,
                                  .in = {panels, weight_operand(&w[0]), weight_operand(&w[1])},
                                  .out = {out},
                                  .rows = rows};
            run_op(backend, QN_OP_GATED, &task, true);
            qn_operand a = matmul(backend, &panels, &w[0], rows);
            qn_operand b = matmul(backend, &panels, &w[1], rows);
            qn_operand want = gate(backend, &a, &b, rows, attrs.act);
            same_rows(&want, &out, rows, backend->name);
            free(panels.data);
            free(out.data);
            free(a.data);
            free(b.data);
            free(want.data);
        }
        free(x.data);
    }
    free_weight(&w[0]);
    free_weight(&w[1]);
}

// Grouped matmul by plain ones: expert e alone, as a weight of its own.
static qn_operand slow_grouped(const qn_cpu_level *backend, const qn_operand *x, const weight *w,
                               const qn_operand *ids, int64_t rows) {
    qn_operand out = make_rows(rows, ids->width, w->packed.n_out, QN_WORD_f32);
    const int64_t part_bytes = x->form == QN_WORD_f32 ? x->width * (int64_t)sizeof(float)
                                                      : qn_cpu_row_bytes(x->form, x->width);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t k = 0; k < ids->width; k++) {
            weight one = *w;
            qn_operand row = *x;
            one.packed.n_matrices = 1;
            one.packed.data += ((int32_t *)at(ids, r))[k] * one.packed.matrix_bytes;
            row.data = (uint8_t *)at(x, r) + (x->parts > 1 ? k * part_bytes : 0);
            row.parts = 1;
            qn_operand y = matmul(backend, &row, &one, 1);
            memcpy(part_at(&out, r, k), y.data, (size_t)out.width * sizeof(float));
            free(y.data);
        }
    }
    return out;
}

enum { EXPERTS = 6, TOP = 3 };

static qn_operand choose(int64_t rows) {
    qn_operand ids = make_rows(rows, 1, TOP, QN_WORD_f32);
    for (int64_t r = 0; r < rows; r++) {
        for (int k = 0; k < TOP; k++)
            ((int32_t *)at(&ids, r))[k] = (int32_t)(r * r + 5 * k) % EXPERTS;
    }
    return ids;
}

static void grouped_is_matmuls(void **state) {
    (void)state;
    weight w = make_weight(kind_of(QN_TYPE_Q5_0), EXPERTS, 35, 96, 1);
    for (int64_t rows = 1; rows <= MAX_ROWS; rows += MAX_ROWS - 1) {
        qn_operand ids = choose(rows);
        for (size_t i = 0; level(i / 2); i++) {
            const qn_cpu_level *backend = level(i / 2);
            qn_operand x = make_rows(rows, i % 2 ? TOP : 1, 96, QN_WORD_f32);
            fill_rows(&x, rows, 3);
            qn_operand panels = packed_rows(backend, &x, rows, QN_WORD_i12_256);
            qn_operand out = make_rows(rows, TOP, 35, QN_WORD_f32);
            const qn_task task = {
                .in = {panels, weight_operand(&w), ids}, .out = {out}, .rows = rows};
            run_op(backend, QN_OP_GROUPED_MATMUL, &task, true);
            qn_operand want = slow_grouped(backend, &panels, &w, &ids, rows);
            same_rows(&want, &out, rows, backend->name);
            free(x.data);
            free(panels.data);
            free(out.data);
            free(want.data);
        }
        free(ids.data);
    }
    free_weight(&w);
}

// w: gate, up, down.
static qn_operand slow_experts(const qn_cpu_level *b, const qn_attrs *attrs, const qn_operand *x,
                               const qn_operand *scores, const weight *w, int64_t rows) {
    qn_operand out = make_rows(rows, 1, w[2].packed.n_out, QN_WORD_f32);
    qn_operand ids = make_rows(rows, 1, TOP, QN_WORD_f32);
    qn_operand weights = make_rows(rows, 1, TOP, QN_WORD_f32);
    const qn_task route = {.attrs = attrs, .in = {*scores}, .out = {ids, weights}, .rows = rows};
    run_op(b, QN_OP_ROUTE, &route, false);
    qn_operand a = slow_grouped(b, x, &w[0], &ids, rows), u = slow_grouped(b, x, &w[1], &ids, rows);
    qn_operand g = gate(b, &a, &u, rows, attrs->act),
               packed = packed_rows(b, &g, rows, attrs->form);
    qn_operand y = slow_grouped(b, &packed, &w[2], &ids, rows);
    run_op(b, QN_OP_COMBINE,
           &(qn_task){.attrs = attrs, .in = {y, weights}, .out = {out}, .rows = rows}, false);
    void *const all[] = {ids.data, weights.data, a.data, u.data, g.data, packed.data, y.data};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return out;
}

static void experts_are_their_parts(void **state) {
    (void)state;
    enum { D = 64, F = 96, ROWS = 68 };
    const qn_attrs attrs = {
        .top = TOP, .normalize = 1, .scale = 2.5f, .act = QN_WORD_silu, .form = QN_WORD_i12_256};
    weight w[3] = {make_weight(kind_of(QN_TYPE_Q4_0), EXPERTS, F, D, 1),
                   make_weight(kind_of(QN_TYPE_Q8_0), EXPERTS, F, D, 2),
                   make_weight(kind_of(QN_TYPE_MXFP4), EXPERTS, D, F, 3)};
    qn_operand x = make_rows(ROWS, 1, D, QN_WORD_f32), first = {0};
    qn_operand scores = make_rows(ROWS, 1, EXPERTS, QN_WORD_f32);
    fill_rows(&x, ROWS, 1);
    fill_rows(&scores, ROWS, 2);
    for (size_t l = 0; level(l); l++) {
        const qn_cpu_level *b = level(l);
        qn_operand panels = packed_rows(b, &x, ROWS, QN_WORD_i8_32);
        qn_operand out = make_rows(ROWS, 1, D, QN_WORD_f32);
        qn_task task = {
            .attrs = &attrs,
            .in = {panels, scores, weight_operand(&w[0]), weight_operand(&w[1]),
                   weight_operand(&w[2])},
            .out = {out},
            .temp = {make_rows(ROWS, 1, TOP, QN_WORD_f32), make_rows(ROWS, 1, TOP, QN_WORD_f32),
                     make_rows(ROWS, TOP, F, QN_WORD_f32), make_rows(ROWS, TOP, F, QN_WORD_i12_256),
                     make_rows(ROWS, TOP, D, QN_WORD_f32),
                     make_rows(ROWS, 1, 2 + 2 * EXPERTS + TOP, QN_WORD_f32)},
            .rows = ROWS};
        run_op(b, QN_OP_EXPERTS, &task, true);
        qn_operand want = slow_experts(b, &attrs, &panels, &scores, w, ROWS);
        same_rows(&want, &out, ROWS, b->name);
        if (l == 0) first = out;
        same_rows(&first, &out, ROWS, "levels");
        for (int i = 0; i <= QN_EXPERTS_LISTS; i++) free(task.temp[i].data);
        free(panels.data);
        free(want.data);
        if (l) free(out.data);
    }
    free(first.data);
    free(x.data);
    free(scores.data);
    for (int i = 0; i < 3; i++) free_weight(&w[i]);
}

static void embed_reads_rows(void **state) {
    (void)state;
    enum { ROWS = 7 };
    weight w = make_weight(kind_of(QN_TYPE_Q6_K), 1, 21, 256, 1);
    int32_t ids[ROWS] = {0, 20, 3, 3, 16, 15, 2}, extra_row[ROWS] = {-1, -1, 1, -1, 0, -1, -1};
    const int32_t row_seg[ROWS] = {0, 0, 0, 0, 0, -1, 0};
    const qn_attrs attrs = {0};
    const qn_step step = {.n_rows = ROWS, .row_seg = row_seg};
    qn_operand extra = make_rows(2, 1, 256, QN_WORD_f32);
    fill_rows(&extra, 2, 9);
    for (size_t i = 0; level(i / 2); i++) {
        qn_operand out = make_rows(ROWS, 1, 256, QN_WORD_f32);
        qn_task task = {
            .attrs = &attrs,
            .in = {{.data = ids, .stride = 4, .parts = 1, .width = 1}, weight_operand(&w)},
            .out = {out},
            .step = &step,
            .rows = ROWS};
        if (i % 2) {
            task.in[2] = extra;
            task.in[3] = (qn_operand){.data = extra_row, .stride = 4, .parts = 1, .width = 1};
        }
        run_op(level(i / 2), QN_OP_EMBED, &task, true);
        for (int r = 0; r < ROWS; r++) {
            float want[256] = {0};
            if (row_seg[r] < 0)
                ;
            else if (i % 2 && extra_row[r] >= 0)
                memcpy(want, at(&extra, extra_row[r]), sizeof want);
            else
                qn_packed_row(want, &w.packed, ids[r]);
            assert_memory_equal(want, at(&out, r), sizeof want);
        }
        free(out.data);
    }
    free(extra.data);
    free_weight(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(project_is_matmuls), cmocka_unit_test(gated_is_its_parts),
        cmocka_unit_test(grouped_is_matmuls), cmocka_unit_test(experts_are_their_parts),
        cmocka_unit_test(embed_reads_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

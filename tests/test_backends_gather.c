// Gathering on every device that can: ranks are threads, each with a program of its own.
#include "device_rig.h"
#include "ranks_rig.h"

#include "ir/share.h"

enum { ROWS = 5, TEXT = 1024, MAX_VALUES = 8192 };

// Devices that gather; GPUs refuse to.
static const char *const devices[] = {"cpu:portable", "cpu", "ref"};
enum { N_DEVICES = sizeof devices / sizeof *devices };

// An axis of `length` values in rows of `inner` parts; form f32: floats, else they are packed.
typedef struct axis {
    int n_ranks;
    int64_t inner, length, unit, parts;
    const char *form;
} axis;

static qn_attrs attrs_of(const axis *a) {
    return (qn_attrs){.length = a->length, .unit = a->unit, .parts = a->parts};
}

static int64_t own_of(const axis *a, int rank) {
    const qn_attrs attrs = attrs_of(a);
    return a->parts * (qn_gather_first(&attrs, rank + 1, a->n_ranks) -
                       qn_gather_first(&attrs, rank, a->n_ranks));
}

// Value i of part p of row r, of all ranks.
static float value_at(int64_t r, int64_t p, int64_t i) {
    uint64_t seed = (uint64_t)(r * 1000003 + p * 10007 + i) * 2654435761u + 7;
    (void)next_float(&seed);
    return next_float(&seed) * (float)(1 + r % 3);
}

// What rank `rank` of n has of rows of the axis: own values of each piece of each part.
static int64_t fill_own(float *to, const axis *a, int rank, int64_t rows) {
    const qn_attrs attrs = attrs_of(a);
    const int64_t first = qn_gather_first(&attrs, rank, a->n_ranks);
    const int64_t end = qn_gather_first(&attrs, rank + 1, a->n_ranks);
    int64_t n = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t p = 0; p < a->inner; p++) {
            for (int64_t k = 0; k < a->parts; k++) {
                for (int64_t i = first; i < end; i++)
                    to[n++] = value_at(r, p, k * (a->length / a->parts) + i);
            }
        }
    }
    return n;
}

static void write_text(char *to, const axis *a, int64_t own, bool is_gathered) {
    char shape[64] = "", whole[64];
    const bool is_packed = strcmp(a->form, "f32") != 0;
    int n = 0, at = 0;
    snprintf(whole, sizeof whole, a->inner > 1 ? "(T, %lld, %lld)" : "(T, %.0lld%lld)",
             (long long)(a->inner > 1 ? a->inner : 0), (long long)a->length);
    snprintf(shape, sizeof shape, a->inner > 1 ? "(T, %lld, %lld)" : "(T, %.0lld%lld)",
             (long long)(a->inner > 1 ? a->inner : 0), (long long)own);
    at += snprintf(to, TEXT, "graph \"gather\"\n");
    if (own) at += snprintf(to + at, TEXT, "%%%d \"x\" f32 %s = input\n", n++, shape);
    if (own && is_packed) {
        at += snprintf(to + at, TEXT, "%%1 f32 %s = quantize(%%0) {form=%s}\n", shape, a->form);
        n++;
    }
    char x[8] = "_";
    if (own) snprintf(x, sizeof x, "%%%d", n - 1);
    if (is_gathered)
        snprintf(
            to + at, TEXT,
            "%%%d f32 %s = all_gather(%s) {length=%lld, unit=%lld, parts=%lld, alike=0, form=%s}\n",
            n, whole, x, (long long)a->length, (long long)a->unit, (long long)a->parts, a->form);
}

// A rank's program, and what came out of it.
typedef struct member {
    device_rig rig;
    rank_place place; // that its gather is called with
    qn_gather gather;
    float own[MAX_VALUES];
    float *got; // rows of the last call
    int64_t rows, width;
} member;

static void begin_member(member *m, const axis *a, int rank, int64_t rows) {
    const rig_step step = {.segs = {{.rows = (int32_t)rows}}, .n_segs = 1};
    const qn_sizes sizes = rig_make_message(&m->rig, &step);
    const qn_device_kind *how = m->rig.device->kind;
    assert_true(how->begin(m->rig.program, 0, m->rig.message, &sizes));
    if (fill_own(m->own, a, rank, rows)) assert_true(how->give(m->rig.program, "x", m->own));
    m->rows = rows;
}

// Runs on its own thread: nothing is asserted here.
static void run_member(rank_place *place, void *arg) {
    const member *m = arg;
    (void)place;
    m->rig.device->kind->run(m->rig.program);
    m->rig.device->kind->wait(m->rig.program);
}

static void read_member(member *m, const axis *a) {
    const size_t last = m->rig.plan.n_calls - 1;
    m->width = a->inner * a->length;
    m->got = qn_realloc(m->got, (size_t)(m->rows * m->width) + 1, sizeof *m->got);
    for (int64_t r = 0; r < m->rows; r++)
        m->rig.device->kind->read_arg(m->got + r * m->width, m->rig.program, last, QN_ARG_OUT, 0,
                                      r);
}

static void close_member(member *m) {
    rig_close(&m->rig);
    qn_free(m->got);
}

// What one rank alone computes of the whole axis.
static void run_alone(member *m, const axis *a, const char *device, int64_t rows) {
    char text[2 * TEXT];
    axis one = *a;
    one.n_ranks = 1;
    write_text(text, &one, a->length, false);
    memset(m, 0, sizeof *m);
    rig_open(&m->rig, device, text, QN_CACHE_F32);
    begin_member(m, &one, 0, rows);
    m->rig.device->kind->run(m->rig.program);
    read_member(m, a);
}

static void check_axis(const axis *a, const char *device) {
    static member members[RANKS_MAX], alone;
    rank_group group;
    group_init(&group, a->n_ranks);
    memset(members, 0, sizeof members);
    for (int r = 0; r < a->n_ranks; r++) {
        char text[2 * TEXT];
        write_text(text, a, own_of(a, r), true);
        members[r].place = (rank_place){.group = &group, .rank = r};
        members[r].gather = gather_of(&members[r].place);
        rig_open_rank(&members[r].rig, device, text, QN_CACHE_F32, &members[r].gather);
    }
    for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
        for (int r = 0; r < a->n_ranks; r++) begin_member(&members[r], a, r, rows);
        assert_true(run_ranks(&group, run_member, members, sizeof members[0]));
        const bool is_packed = strcmp(a->form, "f32") != 0;
        if (is_packed) run_alone(&alone, a, device, rows);
        for (int r = 0; r < a->n_ranks; r++) {
            member *m = &members[r];
            read_member(m, a);
            for (int64_t i = 0; i < rows * m->width; i++) {
                const int64_t in_row = i % m->width;
                const float want =
                    is_packed ? alone.got[i]
                              : value_at(i / m->width, in_row / a->length, in_row % a->length);
                if (m->got[i] != want)
                    fail_msg("%s: rank %d of %d, %lld of (%lld, %lld, %lld): %g, want %g", device,
                             r, a->n_ranks, (long long)i, (long long)rows, (long long)a->inner,
                             (long long)a->length, (double)m->got[i], (double)want);
            }
        }
        if (is_packed) close_member(&alone);
    }
    for (int r = 0; r < a->n_ranks; r++) close_member(&members[r]);
    group_deinit(&group);
}

// Shares that are uneven, empty on some ranks, of one piece and of several, of rows in parts.
static void parts_come_together(void **state) {
    (void)state;
    static const axis axes[] = {
        {1, 1, 64, 16, 1, "f32"},       {2, 1, 64, 16, 1, "f32"},
        {3, 1, 80, 16, 1, "f32"},       {4, 1, 48, 16, 1, "f32"},
        {5, 1, 40, 8, 1, "f32"},        {3, 1, 96, 4, 3, "f32"},
        {8, 1, 12, 4, 1, "f32"},        {4, 1, 6, 1, 2, "f32"},
        {2, 3, 48, 16, 1, "f32"},       {3, 2, 60, 5, 2, "f32"},
        {2, 1, 512, 256, 1, "i12_256"}, {3, 1, 1024, 256, 1, "i8_32"},
        {4, 1, 512, 256, 1, "i16_256"}, {2, 2, 768, 256, 1, "i12_256"},
        {2, 1, 1024, 256, 2, "i8_32"},
    };
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        for (int d = 0; d < N_DEVICES; d++) check_axis(&axes[i], devices[d]);
    }
}

// --- rows by ids ---------------------------------------------------------------------------------

enum { WIDTH = 20, IDS = 50 };

static void check_ids(int n, const char *device, int64_t rows) {
    static member members[RANKS_MAX];
    char text[TEXT];
    rank_group group;
    const qn_attrs attrs = {.length = IDS, .unit = 2, .parts = 1};
    group_init(&group, n);
    memset(members, 0, sizeof members);
    snprintf(
        text, sizeof text,
        "graph \"rows\"\n%%0 \"ids\" i32 (T) = input\n%%1 \"x\" f32 (T, %d) = input\n"
        "%%2 f32 (T, %d) = all_gather(%%1, %%0) {length=%d, unit=2, parts=1, alike=0, form=f32}\n",
        WIDTH, WIDTH, IDS);
    const axis whole = {1, 1, WIDTH, 1, 1, "f32"};
    const rig_step step = {.segs = {{.rows = (int32_t)rows}}, .n_segs = 1};
    for (int r = 0; r < n; r++) {
        member *m = &members[r];
        m->place = (rank_place){.group = &group, .rank = r};
        m->gather = gather_of(&m->place);
        rig_open_rank(&m->rig, device, text, QN_CACHE_F32, &m->gather);
        const qn_sizes sizes = rig_make_message(&m->rig, &step);
        qn_step_at(m->rig.message, QN_STEP_IDS)[0] = -5; // nobody's: any rank's will do
        assert_true(m->rig.device->kind->begin(m->rig.program, 0, m->rig.message, &sizes));
        for (int64_t i = 0; i < rows * WIDTH; i++) // rows of other ranks are something else
            m->own[i] = value_at(i / WIDTH, r, i % WIDTH);
        assert_true(m->rig.device->kind->give(m->rig.program, "x", m->own));
        m->rows = rows;
    }
    assert_true(run_ranks(&group, run_member, members, sizeof members[0]));
    for (int r = 0; r < n; r++) {
        member *m = &members[r];
        read_member(m, &whole);
        for (int64_t i = 0; i < rows * WIDTH; i++) {
            const int32_t id = qn_step_at(m->rig.message, QN_STEP_IDS)[i / WIDTH];
            const int owner = qn_gather_owner(&attrs, id, n);
            assert_true(m->got[i] == value_at(i / WIDTH, owner, i % WIDTH));
        }
        close_member(m);
    }
    group_deinit(&group);
}

static void rows_come_from_the_owner_of_their_id(void **state) {
    (void)state;
    for (int n = 1; n <= RANKS_MAX; n++) {
        for (int d = 0; d < N_DEVICES; d++) {
            check_ids(n, devices[d], 1);
            check_ids(n, devices[d], 40);
        }
    }
}

// --- the rule ------------------------------------------------------------------------------------

// Every unit has one owner, whose range it is in; ranges are as even as units allow.
static void every_unit_has_one_owner(void **state) {
    (void)state;
    for (int n = 1; n <= 9; n++) {
        for (int64_t units = 1; units <= 40; units++) {
            const qn_attrs attrs = {.length = 3 * units, .unit = 3, .parts = 1};
            int64_t end = 0;
            for (int r = 0; r < n; r++) {
                const int64_t first = qn_gather_first(&attrs, r, n);
                const int64_t next = qn_gather_first(&attrs, r + 1, n);
                assert_int_equal(first, end);
                assert_true((next - first) / 3 == units / n || (next - first) / 3 == units / n + 1);
                for (int64_t id = first; id < next; id++)
                    assert_int_equal(qn_gather_owner(&attrs, id, n), r);
                end = next;
            }
            assert_int_equal(end, attrs.length);
        }
    }
}

// --- failure -------------------------------------------------------------------------------------

static bool fail_to_gather(void *arg, void *to, const void *from, const size_t *bytes) {
    int *n = arg;
    (void)to, (void)from, (void)bytes;
    ++*n;
    return false;
}

static bool never_goes_on(void *arg) {
    (void)arg;
    return false;
}

// A rank that cannot reach the others computes on, with zeros; one that is stopped meets them.
static void a_failed_gather_crashes_nothing(void **state) {
    (void)state;
    static member m;
    const axis a = {2, 1, 64, 16, 1, "f32"};
    for (int d = 0; d < N_DEVICES; d++) {
        for (int64_t rows = 1; rows <= ROWS; rows += ROWS - 1) {
            char text[2 * TEXT];
            int n_calls = 0;
            memset(&m, 0, sizeof m);
            m.gather = (qn_gather){.arg = &n_calls, .n_ranks = 2, .gather = fail_to_gather};
            write_text(text, &a, 32, true);
            rig_open_rank(&m.rig, devices[d], text, QN_CACHE_F32, &m.gather);
            begin_member(&m, &a, 0, rows);
            m.rig.device->kind->run(m.rig.program);
            read_member(&m, &a);
            for (int64_t i = 0; i < rows * m.width; i++) assert_true(m.got[i] == 0);
            assert_int_equal(n_calls, 1);
            close_member(&m);
        }
    }
}

static void a_stopped_rank_still_meets_the_others(void **state) {
    (void)state;
    static member m;
    const axis a = {2, 1, 64, 16, 1, "f32"};
    for (int d = 0; d < N_DEVICES; d++) {
        char text[2 * TEXT];
        int n_calls = 0;
        memset(&m, 0, sizeof m);
        m.gather = (qn_gather){.arg = &n_calls, .n_ranks = 2, .gather = fail_to_gather};
        write_text(text, &a, 32, true);
        rig_open_rank(&m.rig, devices[d], text, QN_CACHE_F32, &m.gather);
        const qn_device_kind *how = m.rig.device->kind;
        how->release(m.rig.program);
        qn_err err;
        qn_program_opts opts = rig_opts(&m.rig);
        opts.gather = &m.gather;
        opts.go_on = never_goes_on;
        ASSERT_OK(how->prepare(&m.rig.program, m.rig.device, &opts, &err));
        begin_member(&m, &a, 0, ROWS);
        how->run(m.rig.program);
        assert_int_equal(n_calls, 1);
        close_member(&m);
    }
}

static void programs_that_cannot_gather_are_refused(void **state) {
    (void)state;
    static member m;
    const axis a = {2, 1, 80, 16, 1, "f32"}; // ranks have 2 and 3 units
    for (int d = 0; d < N_DEVICES; d++) {
        char text[2 * TEXT];
        qn_err err;
        qn_program *program = NULL;
        memset(&m, 0, sizeof m);
        m.gather = (qn_gather){.arg = &m.place, .n_ranks = 2, .gather = group_gather};
        write_text(text, &a, 32, true);
        rig_open_rank(&m.rig, devices[d], text, QN_CACHE_F32, &m.gather);
        const qn_device_kind *how = m.rig.device->kind;
        qn_program_opts opts = rig_opts(&m.rig);
        ASSERT_FAILS(how->prepare(&program, m.rig.device, &opts, &err), QN_ARGUMENT,
                     "plan gather, call 0: it gathers from several ranks, and none can be reached");
        opts.is_measured = true; // only to be asked how much it needs
        ASSERT_OK(how->prepare(&program, m.rig.device, &opts, &err));
        how->release(program);
        opts.is_measured = false;
        opts.gather = &m.gather;
        m.gather.rank = 1;
        ASSERT_FAILS(how->prepare(&program, m.rig.device, &opts, &err), QN_ARGUMENT,
                     "it gathers 32 of 80 values, rank 1 of 2 has 48");
        m.gather.rank = 2;
        ASSERT_FAILS(how->prepare(&program, m.rig.device, &opts, &err), QN_ARGUMENT, "rank 2 of 2");
        close_member(&m);
    }
}

// --- the interpreter -----------------------------------------------------------------------------

// A rank's interpreter. Statuses are looked at by the thread of the test.
typedef struct ref_member {
    qn_graph graph;
    qn_ref *ref;
    qn_ref_opts opts;
    float own[MAX_VALUES];
    qn_step step;
    rank_place place;
    qn_status status;
    qn_err err;
} ref_member;

static void run_ref(rank_place *place, void *arg) {
    ref_member *m = arg;
    (void)place;
    m->status = qn_ref_run(m->ref, &m->step, &m->err);
}

static void the_interpreter_gathers(void **state) {
    (void)state;
    static ref_member members[RANKS_MAX];
    static const int32_t seg_row[] = {0, ROWS}, row_seg[ROWS], zero[1];
    static const int32_t pages[1];
    const axis axes[] = {{3, 1, 96, 4, 3, "f32"}, {4, 2, 48, 12, 1, "f32"}, {4, 1, 6, 3, 1, "f32"}};
    for (size_t k = 0; k < sizeof axes / sizeof *axes; k++) {
        const axis *a = &axes[k];
        rank_group group;
        qn_err err;
        group_init(&group, a->n_ranks);
        memset(members, 0, sizeof members);
        for (int r = 0; r < a->n_ranks; r++) {
            ref_member *m = &members[r];
            char text[2 * TEXT];
            write_text(text, a, own_of(a, r), true);
            strcat(text, own_of(a, r) ? "output \"y\" %1\n" : "output \"y\" %0\n");
            ASSERT_OK(qn_graph_parse(&m->graph, text, strlen(text), &err));
            m->place = (rank_place){.group = &group, .rank = r};
            m->opts = (qn_ref_opts){.graph = &m->graph,
                                    .n_pages = 1,
                                    .n_slots = 1,
                                    .rank = r,
                                    .n_ranks = a->n_ranks,
                                    .gather = group_gather_floats,
                                    .gather_arg = &m->place};
            ASSERT_OK(qn_ref_create(&m->ref, &m->opts, &err));
            if (fill_own(m->own, a, r, ROWS)) qn_ref_set_input(m->ref, 0, m->own);
            m->step = (qn_step){.n_rows = ROWS,
                                .n_segs = 1,
                                .row_seg = row_seg,
                                .seg_row = seg_row,
                                .seg_past = zero,
                                .seg_pages = pages,
                                .pages_per_seg = 1,
                                .seg_slot = zero};
        }
        assert_true(run_ranks(&group, run_ref, members, sizeof members[0]));
        for (int r = 0; r < a->n_ranks; r++) {
            ref_member *m = &members[r];
            int64_t n;
            err = m->err;
            ASSERT_OK(m->status);
            const float *y = qn_ref_output(m->ref, "y", &n);
            assert_int_equal(n, ROWS * a->inner * a->length);
            for (int64_t i = 0; i < n; i++)
                assert_true(y[i] == value_at(i / (a->inner * a->length), i / a->length % a->inner,
                                             i % a->length));
        }
        for (int r = 0; r < a->n_ranks; r++) {
            qn_ref_destroy(members[r].ref);
            members[r].opts.gather = NULL; // alone, it cannot
            members[r].ref = NULL;
            ASSERT_OK(qn_ref_create(&members[r].ref, &members[r].opts, &err));
            if (own_of(a, r)) qn_ref_set_input(members[r].ref, 0, members[r].own);
            ASSERT_FAILS(qn_ref_run(members[r].ref, &members[r].step, &err), QN_STATE,
                         "ALL_GATHER: 0 ranks");
            qn_ref_destroy(members[r].ref);
            qn_graph_deinit(&members[r].graph);
        }
        group_deinit(&group);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_unit_has_one_owner),
        cmocka_unit_test(parts_come_together),
        cmocka_unit_test(rows_come_from_the_owner_of_their_id),
        cmocka_unit_test(a_failed_gather_crashes_nothing),
        cmocka_unit_test(a_stopped_rank_still_meets_the_others),
        cmocka_unit_test(programs_that_cannot_gather_are_refused),
        cmocka_unit_test(the_interpreter_gathers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

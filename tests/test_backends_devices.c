// One list of tests for every device of the registry, each in every variant that this machine has:
// memory, weights, and every op, whose results have the same bits everywhere.
#include "amx_trap.h"
#include "device_rig.h"

// --- the registry and memory ---------------------------------------------------------------------

static void devices_are_opened_by_name(void **state) {
    (void)state;
    const device_list devices = list_devices();
    qn_device *device = NULL;
    qn_err err;
    bool has_cpu = false, has_ref = false;
    for (int i = 0; i < devices.n; i++) {
        ASSERT_OK(qn_device_open(&device, devices.names[i], NULL, NULL, &err));
        assert_string_equal(device->backend->name, devices.names[i]);
        has_cpu |= strncmp(devices.names[i], "cpu", 3) == 0;
        has_ref |= strcmp(devices.names[i], "ref") == 0;
        qn_device_close(device);
    }
    assert_true(has_cpu && has_ref);
    device = NULL;
    ASSERT_FAILS(qn_device_open(&device, "abacus", NULL, NULL, &err), QN_ARGUMENT, "ref");
    ASSERT_FAILS(qn_device_open(&device, "ref:fast", NULL, NULL, &err), QN_ARGUMENT, "fast");
    ASSERT_FAILS(qn_device_open(&device, "cpu:avx1024", NULL, NULL, &err), QN_ARGUMENT, "portable");
    assert_null(device);
}

static void check_memory(qn_device *device) {
    enum { SIZE = 100000 };
    const qn_device_kind *how = device->kind;
    static unsigned char in[SIZE], out[SIZE], zeros[SIZE];
    void *a = NULL, *b = NULL;
    qn_err err;
    for (int i = 0; i < SIZE; i++) in[i] = (unsigned char)(i * 7 + i / 251);
    ASSERT_OK(how->alloc(&a, device, SIZE, &err));
    ASSERT_OK(how->alloc(&b, device, SIZE, &err));
    assert_true((uintptr_t)a % 64 == 0 && (uintptr_t)b % 64 == 0);
    how->read(device, out, b, SIZE);
    assert_memory_equal(out, zeros, SIZE);
    how->write(device, a, in, SIZE);
    how->copy(device, (unsigned char *)b + 64, a, SIZE - 64);
    how->write(device, a, zeros, SIZE); // after the copy
    how->read(device, out, b, SIZE);
    assert_memory_equal(out, zeros, 64);
    assert_memory_equal(out + 64, in, SIZE - 64);
    how->free(device, a, SIZE);
    how->free(device, b, SIZE);
    a = in;
    ASSERT_FAILS(how->alloc(&a, device, SIZE_MAX / 2, &err), QN_LIMIT, "");
    assert_ptr_equal(a, in);
}

static void memory_is_zeroed_written_copied_and_read(void **state) {
    (void)state;
    const device_list devices = list_devices();
    for (int i = 0; i < devices.n; i++) {
        qn_device *device;
        qn_err err;
        ASSERT_OK(qn_device_open(&device, devices.names[i], NULL, NULL, &err));
        check_memory(device);
        qn_device_close(device);
    }
}

// --- weights -------------------------------------------------------------------------------------

static qn_status fail_to_read(void *arg, void *to, int64_t first, int64_t n, qn_err *err) {
    (void)arg, (void)to, (void)first, (void)n;
    return QN_FAIL(err, IO, "the disk is gone");
}

static qn_status stop_loading(void *arg, int64_t bytes, qn_err *err) {
    (void)arg, (void)bytes;
    return QN_FAIL(err, STOPPED, "enough");
}

// A weight that is broken in one way or another, on one device.
static void check_refused_weights(qn_device *device) {
    const qn_device_kind *how = device->kind;
    qn_plan_leaf leaf = {.name = "w",
                         .type = QN_TYPE_Q8_0,
                         .layout = device->backend->layout(QN_OP_MATMUL, 1),
                         .shape = {2, {{20, QN_SYM_ONE}, {64, QN_SYM_ONE}}}};
    rig_source source = rig_weight(&leaf);
    qn_weight_reader reader = {&source, rig_read, rig_read_f32, stop_loading};
    int64_t bytes, other = -7;
    void *at = NULL;
    qn_err err;
    ASSERT_OK(how->weight_bytes(&bytes, device, &leaf, &err));
    ASSERT_OK(how->alloc(&at, device, (size_t)bytes, &err));
    ASSERT_FAILS(how->load_weight(at, device, &leaf, &reader, &err), QN_STOPPED, "enough");
    reader.read = fail_to_read;
    ASSERT_FAILS(how->load_weight(at, device, &leaf, &reader, &err), QN_IO, "the disk is gone");
    how->free(device, at, (size_t)bytes);
    leaf.shape.dims[1].n = 40; // blocks have 32
    assert_int_not_equal(how->weight_bytes(&other, device, &leaf, &err), QN_OK);
    leaf.shape.dims[1].n = INT64_C(1) << 60;
    assert_int_not_equal(how->weight_bytes(&other, device, &leaf, &err), QN_OK);
    assert_int_equal(other, -7);
    qn_free(source.bytes);
}

static void weights_that_cannot_be_loaded_are_refused(void **state) {
    (void)state;
    const device_list devices = list_devices();
    for (int i = 0; i < devices.n; i++) {
        qn_device *device;
        qn_err err;
        ASSERT_OK(qn_device_open(&device, devices.names[i], NULL, NULL, &err));
        check_refused_weights(device);
        qn_device_close(device);
    }
}

// --- ops -----------------------------------------------------------------------------------------

static const char *const forms[] = {"i12_256", "i16_256", "i8_32", "f32"};
enum { N_FORMS = sizeof forms / sizeof *forms };
// Three types for every case of attention, and one of three more: all of them would take minutes.
enum { N_CACHES = 4 };
static qn_cache_type cache_type(size_t i, int k) {
    static const qn_cache_type always[] = {QN_CACHE_F32, QN_CACHE_F16, QN_CACHE_Q8_0};
    static const qn_cache_type more[] = {QN_CACHE_Q4_0R, QN_CACHE_Q8_0R, QN_CACHE_Q4_0};
    return k < 3 ? always[k] : more[i % 3];
}
// Prefill with padding, one row, and two sequences.
static const rig_step mixed_steps[] = {
    {.segs = {{.rows = 37}}, .n_segs = 1, .n_inert = 3},
    {.segs = {{.past = 37, .rows = 1}}, .n_segs = 1, .top = 2, .entries = 20},
    {.segs = {{.past = 38, .rows = 9}, {.rows = 5, .slot = 1}}, .n_segs = 2, .entries = 300},
};
enum { N_MIXED = sizeof mixed_steps / sizeof *mixed_steps };

static void agree(const char *text, const char *what) {
    assert_devices_agree(text, QN_CACHE_F32, mixed_steps, N_MIXED, false, what);
}

static void elements_agree(void **state) {
    (void)state;
    agree(
        "graph \"t\"\n%0 \"x\" f32 (T, 3, 20) = input\n%1 \"y\" f32 (T, 3, 20) = input\n"
        "%2 \"b\" f32 (20) = param\n%3 \"c\" f32 (3, 20) = param\n%4 \"d\" f32 (T, 3, 1) = input\n"
        "%5 \"e\" f32 (3, 1) = param\n%6 f32 (T, 3, 20) = scale(%0) {scale=17.5}\n"
        "%7 f32 (T, 3, 20) = silu(%6)\n%8 f32 (T, 3, 20) = gelu(%6)\n"
        "%9 f32 (T, 3, 20) = gelu_erf(%6)\n%10 f32 (T, 3, 20) = sigmoid(%6)\n"
        "%11 f32 (T, 3, 20) = softplus(%6)\n%12 f32 (T, 3, 20) = softcap(%6) {cap=3}\n"
        "%13 f32 (T, 3, 20) = add(%0, %1)\n%14 f32 (T, 3, 20) = add(%13, %2)\n"
        "%15 f32 (T, 3, 20) = mul(%14, %3)\n%16 f32 (T, 3, 20) = mul(%15, %4)\n"
        "%17 f32 (T, 3, 20) = add(%16, %5)\n%18 f32 (T, 3, 20) = mul(%7, %12)\n"
        "output \"a\" %17\noutput \"b\" %18\noutput \"c\" %11\n",
        "element by element");
}

static void build_norms(char *text, size_t size, const char *form, int n) {
    snprintf(text, size,
             "graph \"t\"\n%%0 \"x\" f32 (T, 2, %d) = input\n%%1 \"y\" f32 (T, 2, %d) = input\n"
             "%%2 \"w\" f32 (%d) = param\n%%3 \"b\" f32 (%d) = param\n"
             "%%4 f32 (T, 2, %d) = rms_norm(%%0, %%2) {eps=1e-6}\n"
             "%%5 f32 (T, 2, %d) = layer_norm(%%0, %%2, %%3) {eps=1e-5}\n"
             "%%6 f32 (T, 2, %d) = l2_norm(%%0) {eps=1e-6}\n"
             "%%7 f32 (T, 2, %d) = quantize(%%0) {form=%s}\n"
             "%%8 f32 (T, 2, %d) = norm_quantize(%%0, %%2) {eps=1e-6, form=%s}\n"
             "%%9 f32 (T, 2, %d), %%10 f32 (T, 2, %d) = add_norm(%%0, %%1, %%2) "
             "{eps=1e-6, form=%s}\noutput \"a\" %%4\noutput \"b\" %%5\noutput \"c\" %%6\n"
             "output \"d\" %%9\n",
             n, n, n, n, n, n, n, n, form, n, form, n, n, form);
}

// Sizes around the lanes of the sums, and whole blocks.
static void norms_agree(void **state) {
    (void)state;
    static const int widths[] = {1, 15, 64, 200, 256, 512, 600, 4096};
    enum { N_WIDTHS = sizeof widths / sizeof *widths };
    for (int i = 0; i < N_FORMS * N_WIDTHS; i++) {
        char text[2048];
        build_norms(text, sizeof text, forms[i / N_WIDTHS], widths[i % N_WIDTHS]);
        agree(text, "norms and rounding");
    }
}

static void positions_and_moves_agree(void **state) {
    (void)state;
    agree("graph \"t\"\n%0 \"x\" f32 (T, 3, 20) = input\n%1 \"y\" f32 (T, 3, 12) = input\n"
          "%2 \"table\" table () = input\n%3 f32 (8) = const [1, 0.5, 0.3, 0.1, 0.01, 1e-3, 7, 2]\n"
          "%4 f32 (T, 2, 8) = angles(%3, %2) {scale=1, sections=[0, 0, 0, 0]}\n"
          "%5 f32 (T, 2, 8) = angles(%3, %2) {scale=1, sections=[3, 3, 2, 0]}\n%6 \"n\" f32 (20) = "
          "param\n"
          "%7 f32 (T, 3, 20) = rotate(%0, %4, %6) {eps=1e-6, rotate=16, pairs=half}\n"
          "%8 f32 (T, 3, 20) = rotate(%0, %5) {eps=0, rotate=16, pairs=adjacent}\n"
          "%9 f32 (T, 3, 20) = rope(%0, %3, %2) {scale=1, rotate=16, pairs=half, sections=[3, 3, "
          "2, 0]}\n"
          "%10 f32 (T, 3, 7) = narrow(%0) {axis=2, start=5, length=7}\n"
          "%11 f32 (T, 2, 20) = narrow(%0) {axis=1, start=1, length=2}\n"
          "%12 f32 (T, 3, 32) = concat(%0, %1) {axis=2}\n"
          "%13 f32 (T, 5, 20) = concat(%0, %11) {axis=1}\n%14 f32 (T, 60) = merge(%0)\n"
          "%15 f32 (T, 4, 15) = split(%14) {parts=4}\n%16 f32 (T, 4, 15) = silu(%15)\n"
          "%17 \"row_out\" i32 (R) = input\n%18 f32 (R, 60) = gather_rows(%14, %17)\n"
          "output \"a\" %7\noutput \"b\" %8\noutput \"c\" %9\noutput \"d\" %10\noutput \"e\" %12\n"
          "output \"f\" %13\noutput \"g\" %16\noutput \"h\" %18\n",
          "positions and moves");
}

// --- ops with weights ----------------------------------------------------------------------------

static const char *lower_name(qn_type type) {
    static char name[16];
    const char *from = qn_type_get(type)->name;
    for (size_t i = 0; i <= strlen(from); i++)
        name[i] = from[i] >= 'A' && from[i] <= 'Z' ? (char)(from[i] + 32) : from[i];
    return name;
}

// An inner size of more than one block of 256; of simple types the last is shorter.
static int inner_size(qn_type type) {
    const int block = qn_type_get(type)->block;
    return block == 256 ? 512 : block == 32 ? 352 : 301;
}

typedef void build_fn(char *text, size_t size, const char *type, const char *form, int n);

static void every_type_and_form(build_fn *build, const char *what) {
    for (int i = 0; i < N_KINDS * N_FORMS; i++) {
        const qn_type type = kinds[i / N_FORMS].type;
        char text[4096], name[64];
        build(text, sizeof text, lower_name(type), forms[i % N_FORMS], inner_size(type));
        snprintf(name, sizeof name, "%s, %s x %s", what, lower_name(type), forms[i % N_FORMS]);
        agree(text, name);
    }
}

static void build_matmuls(char *text, size_t size, const char *type, const char *form, int n) {
    snprintf(
        text, size,
        "graph \"t\"\n%%0 \"ids\" i32 (T) = input\n%%1 \"embd\" %s (50, %d) = param\n"
        "%%2 f32 (T, %d) = embed(%%0, %%1) {start=0}\n%%3 \"x\" f32 (T, 2, %d) = input\n"
        "%%4 f32 (T, 2, %d) = quantize(%%3) {form=%s}\n%%5 f32 (T, %d) = quantize(%%2) {form=%s}\n"
        "%%6 \"a\" %s (19, %d) = param\n%%7 \"b\" %s (40, %d) = param\n"
        "%%8 \"c\" %s (19, %d) = param\n%%9 f32 (T, 2, 19) = matmul(%%4, %%6)\n"
        "%%10 f32 (T, 78) = project(%%5, %%6, %%7, %%8)\n"
        "%%11 f32 (T, 2, 19) = gated(%%4, %%6, %%8) {act=silu}\n"
        "%%12 f32 (T, 19) = gated(%%5, %%8, %%6) {act=gelu}\noutput \"e\" %%2\n"
        "output \"m\" %%9\noutput \"p\" %%10\noutput \"g\" %%11\noutput \"h\" %%12\n",
        type, n, n, n, n, form, n, form, type, n, type, n, type, n);
}

static void matmuls_agree(void **state) {
    (void)state;
    every_type_and_form(build_matmuls, "matmuls");
}

// Rows of several adapters and of none, in one step and alone.
static void adapters_agree(void **state) {
    (void)state;
    static const rig_step steps[] = {
        {.segs = {{.rows = 37, .adapter = 2}}, .n_segs = 1, .n_inert = 3},
        {.segs = {{.past = 37, .rows = 1}}, .n_segs = 1},
        {.segs = {{.past = 38, .rows = 9, .adapter = 3},
                  {.rows = 5, .slot = 1},
                  {.rows = 4, .slot = 2, .adapter = 1}},
         .n_segs = 3},
    };
    static const char *const types[] = {"f32", "f16", "bf16"};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        char text[1024];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"y\" f32 (T, 530) = input\n%%1 \"x\" f32 (T, 301) = input\n"
                 "%%2 \"a\" %s (3, 20, 301) = param\n%%3 \"b\" %s (3, 530, 20) = param\n"
                 "%%4 \"table\" table () = input\n"
                 "%%5 f32 (T, 530) = lora(%%0, %%1, %%2, %%3, %%4) {scale=1.5}\noutput \"z\" %%5\n",
                 types[i], types[i]);
        assert_devices_agree(text, QN_CACHE_F32, steps, 3, false, "adapters");
    }
}

static void build_experts(char *text, size_t size, const char *type, const char *form, int n) {
    snprintf(text, size,
             "graph \"t\"\n%%0 \"x\" f32 (T, %d) = input\n%%1 \"scores\" f32 (T, 21) = input\n"
             "%%2 \"gate\" %s (21, %d, %d) = param\n%%3 \"up\" %s (21, %d, %d) = param\n"
             "%%4 \"down\" %s (21, %d, %d) = param\n%%5 f32 (T, %d) = quantize(%%0) {form=%s}\n"
             "%%6 i32 (T, 3), %%7 f32 (T, 3) = route(%%1) {scale=1.5, top=3, normalize=0}\n"
             "%%8 f32 (T, 3, %d) = grouped_matmul(%%5, %%2, %%6)\n"
             "%%9 f32 (T, 3, %d) = quantize(%%8) {form=%s}\n"
             "%%10 f32 (T, 3, %d) = grouped_matmul(%%9, %%4, %%6)\n"
             "%%11 f32 (T, %d) = combine(%%10, %%7)\n%%12 f32 (T, %d) = "
             "experts(%%5, %%1, %%2, %%3, %%4) {scale=1, top=4, normalize=1, form=%s, act=silu}\n"
             "output \"c\" %%11\noutput \"e\" %%12\n",
             n, type, n, n, type, n, n, type, n, n, n, form, n, n, form, n, n, n, form);
}

// Some types are enough: the products are those of matmuls.
static void experts_agree(void **state) {
    (void)state;
    static const struct {
        const char *type, *form;
        int n;
    } cases[] = {{"q4_k", "i12_256", 256}, {"q5_k", "i16_256", 256}, {"q8_0", "i8_32", 96},
                 {"f16", "f32", 33},       {"q6_k", "i8_32", 256},   {"mxfp4", "i12_256", 64}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[4096];
        build_experts(text, sizeof text, cases[i].type, cases[i].form, cases[i].n);
        agree(text, cases[i].type);
    }
}

// Columns around those of a piece; rows, parts of rows, and those that wanted rows have.
static void sums_of_squares_agree(void **state) {
    (void)state;
    static const int widths[] = {1, 20, 127, 128, 129, 300};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        const int n = widths[i];
        char text[1024];
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, %d) = input\n%%1 \"y\" f32 (T, 3, %d) = input\n"
                 "%%2 \"scores\" f32 (T, 21) = input\n%%3 \"row_out\" i32 (R) = input\n"
                 "%%4 i32 (T, 3), %%5 f32 (T, 3) = route(%%2) {scale=1, top=3, normalize=0}\n"
                 "%%6 f32 (R, %d) = gather_rows(%%0, %%3)\n"
                 "%%7 f32 (1, %d) = sum_squares(%%0) {length=1}\n"
                 "%%8 f32 (1, %d) = sum_squares(%%1) {length=1}\n"
                 "%%9 f32 (1, %d) = sum_squares(%%6) {length=1}\n"
                 "%%10 f32 (21, %d) = sum_squares(%%0, %%4) {length=21}\n"
                 "%%11 f32 (21, %d) = sum_squares(%%1, %%4) {length=21}\n"
                 "output \"a\" %%7\noutput \"b\" %%8\noutput \"c\" %%9\n"
                 "output \"d\" %%10\noutput \"e\" %%11\n",
                 n, n, n, n + 1, n + 1, n + 1, n + 1, n + 1);
        agree(text, "sums of squares");
    }
}

static void build_heads(char *text, size_t size, const char *type, const char *form, int n) {
    snprintf(text, size,
             "graph \"t\"\n%%0 \"x\" f32 (T, %d) = input\n%%1 \"row_out\" i32 (R) = input\n"
             "%%2 f32 (R, %d) = gather_rows(%%0, %%1)\n%%3 f32 (R, %d) = quantize(%%2) {form=%s}\n"
             "%%4 \"w\" %s (333, %d) = param\n"
             "%%5 f32 (R, 333), %%6 f32 (R, 10) = head(%%3, %%4) {start=0, cap=0, top=4}\n"
             "%%7 f32 (R, 333), %%8 f32 (R, 130) = head(%%3, %%4) {start=0, cap=0.5, top=64}\n"
             "output \"head a\" %%5\noutput \"best a\" %%6\noutput \"head b\" %%7\n"
             "output \"best b\" %%8\n",
             n, n, n, form, type, n);
}

static void heads_agree(void **state) {
    (void)state;
    every_type_and_form(build_heads, "heads");
}

// Enough rows and weights that a device may compute them in tiles: weights of two types side by
// side, a number of outputs that fills no whole tile, gates, heads.
static void many_rows_agree(void **state) {
    (void)state;
    static const rig_step steps[] = {
        {.segs = {{.rows = 290}}, .n_segs = 1, .n_inert = 2},
        {.segs = {{.past = 290, .rows = 30}, {.rows = 70, .slot = 2}}, .n_segs = 2, .n_inert = 1},
        {.segs = {{.past = 320, .rows = 9}}, .n_segs = 1},
    };
    assert_devices_agree(
        "graph \"t\"\n%0 \"x\" f32 (T, 512) = input\n"
        "%1 f32 (T, 512) = quantize(%0) {form=i12_256}\n"
        "%2 \"a\" q4_k (1040, 512) = param\n%3 \"b\" q6_k (720, 512) = param\n"
        "%4 \"c\" q4_k (64, 512) = param\n%5 f32 (T, 1824) = project(%1, %2, %3, %4)\n"
        "%6 \"d\" q4_k (1040, 512) = param\n%7 f32 (T, 1040) = gated(%1, %2, %6) {act=silu}\n"
        "%8 \"e\" q6_k (720, 512) = param\n%9 f32 (T, 720) = gated(%1, %3, %8) {act=gelu}\n"
        "%10 \"row_out\" i32 (R) = input\n%11 f32 (R, 512) = gather_rows(%0, %10)\n"
        "%12 f32 (R, 512) = quantize(%11) {form=i12_256}\n"
        "%13 f32 (R, 1040), %14 f32 (R, 10) = head(%12, %2) {start=0, cap=0, top=4}\n"
        "%15 f32 (R, 720), %16 f32 (R, 10) = head(%12, %3) {start=0, cap=0.5, top=4}\n"
        "%17 \"y\" f32 (T, 2, 512) = input\n"
        "%18 f32 (T, 2, 512) = quantize(%17) {form=i12_256}\n"
        "%19 f32 (T, 2, 1040) = matmul(%18, %2)\n"
        "output \"project\" %5\noutput \"silu\" %7\noutput \"gelu\" %9\n"
        "output \"head\" %13\noutput \"best\" %14\noutput \"head capped\" %15\n"
        "output \"best capped\" %16\noutput \"parts\" %19\n",
        QN_CACHE_F32, steps, 3, false, "many rows");
}

// --- attention -----------------------------------------------------------------------------------

// Longer than a chunk of 256; then a few rows, and two sequences; pages that were given back.
static const rig_step long_steps[] = {
    {.segs = {{.rows = 290}}, .n_segs = 1, .n_inert = 2},
    {.segs = {{.past = 290, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 291, .rows = 30}, {.rows = 70, .slot = 2}}, .n_segs = 2, .n_inert = 1},
    {.segs = {{.past = 321, .rows = 3}}, .n_segs = 1},
};
// The first two pages are never read again with a window of 100.
static const rig_step window_steps[] = {
    {.segs = {{.rows = 280}}, .n_segs = 1},
    {.segs = {{.past = 280, .rows = 5}}, .n_segs = 1, .first_page = 2},
};

typedef struct attention_case {
    int heads, kv_heads, k_size, v_size, rotate;
    int window;
    double cap;
    const char *rule, *pairs;
    bool has_norms, has_sinks;
} attention_case;

static const attention_case attention_cases[] = {
    {4, 2, 32, 32, 32, 0, 0, "causal", "half", false, false},
    {6, 2, 18, 10, 12, 0, 3, "causal", "adjacent", true, true},
    {3, 3, 40, 33, 40, 100, 0, "causal", "half", true, false},
    {8, 1, 64, 64, 64, 7, 0, "spans", "half", false, true},
    {2, 1, 5, 70, 4, 0, 0, "full", "half", false, false},
};

// As plain ops on one cache, and fused on another.
static void build_attention(char *text, size_t size, const attention_case *c) {
    const int h = c->heads, g = c->kv_heads, e = c->k_size, f = c->v_size, n = c->rotate;
    snprintf(text, size,
             "graph \"t\"\n%%0 \"q\" f32 (T, %d, %d) = input\n%%1 \"k\" f32 (T, %d, %d) = input\n"
             "%%2 \"v\" f32 (T, %d, %d) = input\n%%3 \"one\" cache (%d, %d, %d) = input\n"
             "%%4 \"two\" cache (%d, %d, %d) = input\n%%5 \"three\" cache (%d, %d, %d) = input\n"
             "%%6 \"table\" table () = input\n%%7 \"qn\" f32 (%d) = param\n"
             "%%8 \"kn\" f32 (%d) = param\n%%9 \"sinks\" f32 (%d) = param\n"
             "%%10 \"f\" f32 (%d) = param\n%%11 f32 (T, 2, %d) = angles(%%10, %%6) "
             "{scale=1, sections=[0, 0, 0, 0]}\n",
             h, e, g, e, g, f, g, e, f, g, e, f, g, e, f, e, e, h, n / 2, n / 2);
    const size_t used = strlen(text);
    const char *qn = c->has_norms ? "%7" : "_", *kn = c->has_norms ? "%8" : "_";
    const char *sinks = c->has_sinks ? "%9" : "_";
    char turn[64], see[96];
    snprintf(turn, sizeof turn, "rotate=%d, pairs=%s", n, c->pairs);
    snprintf(see, sizeof see, "scale=0.3, cap=%g, window=%d, rule=%s", c->cap, c->window, c->rule);
    snprintf(text + used, size - used,
             "%%12 cache (%d, %d, %d) = kv_write(%%3, %%1, %%2, %%6)\n"
             "%%13 f32 (T, %d, %d) = attend(%%0, %%12, %%6, %s, _) {%s}\n"
             "%%14 cache (%d, %d, %d) = rotate_write(%%4, %%1, %%2, %%6, %%11, %s) {eps=1e-6, %s}\n"
             "%%15 f32 (T, %d, %d) = attend(%%0, %%14, %%6, %s, _) {%s}\n"
             "%%16 f32 (T, %d, %d), %%17 cache (%d, %d, %d) = attention(%%0, %%1, %%2, %%5, %%11, "
             "%%6, %s, %s, %s) {eps=1e-6, %s, %s}\noutput \"a\" %%13\noutput \"b\" %%15\n"
             "output \"c\" %%16\n",
             g, e, f, h, f, sinks, see, g, e, f, kn, turn, h, f, sinks, see, h, f, g, e, f, qn, kn,
             sinks, see, turn);
}

// Sizes that GPUs have kernels of their own for, with groups of 1 to 10 heads.
static const attention_case usual_cases[] = {
    {4, 2, 64, 64, 64, 0, 0, "causal", "half", true, false},
    {4, 1, 128, 128, 128, 0, 0, "causal", "half", true, true},
    {8, 1, 128, 128, 64, 100, 3, "causal", "adjacent", false, true},
    {2, 2, 256, 256, 256, 0, 0, "causal", "half", false, false},
    {3, 1, 64, 64, 64, 0, 0, "full", "half", false, false},
    {10, 1, 64, 64, 32, 300, 0, "after_first", "half", false, true},
};
// Up to four chunks, of which some positions were never written; single rows, whose sizes come
// again while the sequence grows; then few rows of one sequence beside many of another, and
// padding.
static const rig_step deep_steps[] = {
    {.segs = {{.rows = 100}}, .n_segs = 1, .n_inert = 2},
    {.segs = {{.past = 100, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 101, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 450, .rows = 70}}, .n_segs = 1},
    {.segs = {{.past = 900, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 901, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 902, .rows = 1}}, .n_segs = 1},
    {.segs = {{.past = 903, .rows = 5}, {.rows = 70, .slot = 1}, {.rows = 1, .slot = 2}},
     .n_segs = 3,
     .n_inert = 4},
    {.segs = {{.past = 908, .rows = 2}, {.past = 70, .rows = 1, .slot = 1}},
     .n_segs = 2,
     .n_inert = 1},
};
enum { N_DEEP = sizeof deep_steps / sizeof *deep_steps };

static void usual_attention_agrees(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof usual_cases / sizeof *usual_cases; i++) {
        char text[4096], what[64];
        build_attention(text, sizeof text, &usual_cases[i]);
        for (int k = 0; k < N_CACHES; k++) {
            const qn_cache_type type = cache_type(i, k);
            snprintf(what, sizeof what, "usual attention %zu, %s", i, qn_kv_type_get(type)->name);
            assert_devices_agree(text, type, deep_steps, N_DEEP, false, what);
        }
    }
}

static void attention_agrees(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof attention_cases / sizeof *attention_cases; i++) {
        char text[4096], what[64];
        build_attention(text, sizeof text, &attention_cases[i]);
        for (int k = 0; k < N_CACHES; k++) {
            const qn_cache_type type = cache_type(i, k);
            snprintf(what, sizeof what, "attention %zu, %s", i, qn_kv_type_get(type)->name);
            assert_devices_agree(text, type, long_steps, 4, false, what);
            if (attention_cases[i].window)
                assert_devices_agree(text, type, window_steps, 2, false, what);
        }
    }
}

// --- recurrent state -----------------------------------------------------------------------------

// Rows that are certain at once, rows that are accepted later or taken back, and a sequence that
// begins again.
static const rig_step rollback_steps[] = {
    {.segs = {{.rows = 20, .commit = 20}, {.rows = 6, .slot = 1, .commit = 2}},
     .n_segs = 2,
     .n_inert = 2},
    {.segs = {{.past = 20, .rows = 5}, {.past = 5, .rows = 3, .slot = 1, .accept = 3}},
     .n_segs = 2},
    {.segs = {{.past = 22, .rows = 4, .accept = 2, .commit = 1}}, .n_segs = 1},
    {.segs = {{.past = 23, .rows = 12}, {.past = 5, .rows = 2, .slot = 1}}, .n_segs = 2},
    {.segs = {{.past = 25, .rows = 1, .accept = 2, .commit = 1}, {.rows = 3, .slot = 1}},
     .n_segs = 2},
};

static void recurrent_state_agrees(void **state) {
    (void)state;
    static const struct {
        int channels, taps, key_heads, heads, k_size, v_size;
        const char *rule;
    } cases[] = {{40, 4, 2, 4, 16, 32, "grouped"},
                 {7, 3, 2, 6, 5, 45, "tiled"},
                 {600, 2, 1, 1, 64, 64, "grouped"},
                 {3, 1, 3, 3, 1, 1, "tiled"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int c = cases[i].channels, n = cases[i].taps, g = cases[i].key_heads;
        const int h = cases[i].heads, e = cases[i].k_size, f = cases[i].v_size;
        char text[2048], what[64];
        // A state of no rows cannot be written: a convolution of one tap is left out.
        snprintf(
            text, sizeof text,
            "graph \"t\"\n%%0 \"q\" f32 (T, %d, %d) = input\n%%1 \"k\" f32 (T, %d, %d) = input\n"
            "%%2 \"v\" f32 (T, %d, %d) = input\n%%3 \"g\" f32 (T, %d) = input\n"
            "%%4 \"beta\" f32 (T, %d) = input\n%%5 \"table\" table () = input\n"
            "%%6 \"delta\" state (%d, %d, %d) = input\n"
            "%%7 f32 (T, %d, %d), %%8 state (%d, %d, %d) = delta(%%0, %%1, %%2, %%3, %%4, %%6, "
            "%%5) {scale=0.5, heads=%s}\noutput \"delta\" %%7\n",
            g, e, g, e, h, f, h, h, h, e, f, h, f, h, e, f, cases[i].rule);
        snprintf(what, sizeof what, "delta %zu", i);
        assert_devices_agree(text, QN_CACHE_F32, rollback_steps, 5, false, what);
        if (n == 1) continue;
        snprintf(text, sizeof text,
                 "graph \"t\"\n%%0 \"x\" f32 (T, %d) = input\n%%1 \"w\" f32 (%d, %d) = param\n"
                 "%%2 \"conv\" state (%d, %d) = input\n%%3 \"table\" table () = input\n"
                 "%%4 f32 (T, %d), %%5 state (%d, %d) = conv(%%0, %%1, %%2, %%3)\n"
                 "output \"conv\" %%4\n",
                 c, c, n, n - 1, c, c, n - 1, c);
        snprintf(what, sizeof what, "conv %zu", i);
        assert_devices_agree(text, QN_CACHE_F32, rollback_steps, 5, false, what);
    }
}

// --- what is not finite --------------------------------------------------------------------------

// Infinities and NaN end where they began: other rows have their bits, and which results are NaN is
// the same everywhere.
static void what_is_not_finite_agrees(void **state) {
    (void)state;
    static const qn_type types[] = {QN_TYPE_F16, QN_TYPE_Q8_0, QN_TYPE_Q5_1, QN_TYPE_Q4_K};
    for (int i = 0; i < 4 * N_FORMS; i++) {
        const char *name = lower_name(types[i / N_FORMS]);
        const int n = inner_size(types[i / N_FORMS]);
        char text[4096];
        build_matmuls(text, sizeof text, name, forms[i % N_FORMS], n);
        assert_devices_agree(text, QN_CACHE_F32, mixed_steps, N_MIXED, true, name);
        build_heads(text, sizeof text, name, forms[i % N_FORMS], n);
        assert_devices_agree(text, QN_CACHE_F32, mixed_steps, N_MIXED, true, name);
        build_norms(text, sizeof text, forms[i % N_FORMS], 100);
        assert_devices_agree(text, QN_CACHE_F32, mixed_steps, N_MIXED, true, "norms");
    }
    for (int k = 0; k < N_CACHES; k++) {
        char text[4096];
        build_attention(text, sizeof text, &attention_cases[1]);
        assert_devices_agree(text, cache_type(0, k), mixed_steps, N_MIXED, true, "attention");
        build_attention(text, sizeof text, &usual_cases[k]);
        assert_devices_agree(text, cache_type(0, k), deep_steps, N_DEEP, true, "usual attention");
    }
}

// --- programs ------------------------------------------------------------------------------------

static const char one_op[] = "graph \"t\"\n%0 \"x\" f32 (T, 4) = input\n%1 f32 (T, 4) = silu(%0)\n"
                             "output \"y\" %1\n";

// Larger steps than a program was made for are refused; inputs that are not there cannot be given.
static void programs_know_their_limits(void **state) {
    (void)state;
    const device_list devices = list_devices();
    for (int d = 0; d < devices.n; d++) {
        device_rig r;
        trace t = {0};
        int64_t hits, misses;
        rig_open(&r, devices.names[d], one_op, QN_CACHE_F32);
        const qn_device_kind *how = r.device->kind;
        const rig_step large = {.segs = {{.rows = RIG_ROWS + 1}}, .n_segs = 1};
        const rig_step small = {.segs = {{.rows = 3}}, .n_segs = 1};
        qn_sizes sizes = rig_make_message(&r, &large);
        assert_false(how->begin(r.program, 0, r.message, &sizes));
        rig_run(&r, &t, &small, false);
        assert_int_equal(t.n, 12);
        assert_false(how->give(r.program, "z", t.v));
        how->counts(r.program, &hits, &misses);
        assert_true(hits + misses >= 1);
        assert_true(how->measure(r.program).arena > 0);
        int64_t begin, end;
        assert_false(how->times(r.program, 0, &begin, &end)); // not asked for
        rig_close(&r);
        qn_free(t.v);
    }
}

// A program that is measured takes as much as one that runs; one that is timed says when it ran.
static void programs_are_measured_and_timed(void **state) {
    (void)state;
    const device_list devices = list_devices();
    for (int d = 0; d < devices.n; d++) {
        const rig_step step = {.segs = {{.rows = 3}}, .n_segs = 1};
        device_rig r;
        trace t = {0};
        qn_err err;
        qn_program *measured, *timed;
        rig_open(&r, devices.names[d], one_op, QN_CACHE_F32);
        const qn_device_kind *how = r.device->kind;
        qn_program_opts opts = rig_opts(&r);
        opts.is_measured = true;
        ASSERT_OK(how->prepare(&measured, r.device, &opts, &err));
        const qn_program_size size = how->measure(measured), want = how->measure(r.program);
        assert_memory_equal(&size, &want, sizeof size);
        how->release(measured);
        opts.is_measured = false;
        opts.is_timed = true;
        ASSERT_OK(how->prepare(&timed, r.device, &opts, &err));
        how->release(r.program);
        r.program = timed;
        rig_run(&r, &t, &step, false);
        int64_t begin = 0, end = 0;
        assert_true(how->times(r.program, 0, &begin, &end));
        assert_true(begin > 0 && begin <= end);
        float row[4];
        how->read_arg(row, r.program, 0, QN_ARG_IN, 0, 2);
        assert_memory_equal(row, r.given[0] + 8, sizeof row);
        rig_close(&r);
        qn_free(t.v);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_are_opened_by_name),
        cmocka_unit_test(memory_is_zeroed_written_copied_and_read),
        cmocka_unit_test(weights_that_cannot_be_loaded_are_refused),
        cmocka_unit_test(programs_know_their_limits),
        cmocka_unit_test(programs_are_measured_and_timed),
        cmocka_unit_test(elements_agree),
        cmocka_unit_test(norms_agree),
        cmocka_unit_test(positions_and_moves_agree),
        cmocka_unit_test(matmuls_agree),
        cmocka_unit_test(adapters_agree),
        cmocka_unit_test(experts_agree),
        cmocka_unit_test(sums_of_squares_agree),
        cmocka_unit_test(heads_agree),
        cmocka_unit_test(many_rows_agree),
        cmocka_unit_test(attention_agrees),
        cmocka_unit_test(usual_attention_agrees),
        cmocka_unit_test(recurrent_state_agrees),
        cmocka_unit_test(what_is_not_finite_agrees),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// GGUF: what a good file gives, and what each kind of damage is refused with.
#include "format_files.h"

#include "core/pool.h"

#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

static const float floats[64] = {1, 2, 3, 4, 5, 6};

// --- a good file ---------------------------------------------------------------------------------

static void add_all_keys(gguf_writer *w) {
    gguf_add_string(w, "general.architecture", "llama");
    gguf_add_int(w, "u8", GGUF_U8, 200);
    gguf_add_int(w, "i8", GGUF_I8, -100);
    gguf_add_int(w, "u16", GGUF_U16, 60000);
    gguf_add_int(w, "i16", GGUF_I16, -30000);
    gguf_add_int(w, "u32", GGUF_U32, 4000000000);
    gguf_add_int(w, "i32", GGUF_I32, -2000000000);
    gguf_add_int(w, "u64", GGUF_U64, INT64_MAX);
    gguf_add_int(w, "i64", GGUF_I64, INT64_MIN);
    gguf_add_f32(w, "f32", 0.1F);
    gguf_add_f64(w, "f64", 0.1);
    gguf_add_bool(w, "bool", true);
    gguf_add_text(w, "bytes", "a\0b\xff", 4);
    gguf_add_string(w, "empty", "");
    gguf_add_array(w, "u8s", GGUF_U8, (uint8_t[]){1, 255}, 2, 1);
    gguf_add_array(w, "i16s", GGUF_I16, (int16_t[]){-1, 2}, 2, 2);
    gguf_add_i32s(w, "i32s", (int32_t[]){-5, 6, 7}, 3);
    gguf_add_array(w, "u64s", GGUF_U64, (uint64_t[]){INT64_MAX}, 1, 8);
    gguf_add_f32s(w, "f32s", (float[]){0.5F, (float)-INFINITY}, 2);
    gguf_add_array(w, "f64s", GGUF_F64, (double[]){0.25}, 1, 8);
    gguf_add_array(w, "bools", GGUF_BOOL, (uint8_t[]){0, 1, 1}, 3, 1);
    gguf_add_strings(w, "strings", (const char *const[]){"one", "", "\xc3\xa9\"\n"}, 3);
    gguf_add_strings(w, "none", NULL, 0);
}

static void add_some_tensors(gguf_writer *w) {
    gguf_add_tensor(w, "token_embd.weight", 0, 2, (int64_t[]){3, 2}, floats, 24);
    gguf_add_tensor(w, "blk.0.q4", 2, 2, (int64_t[]){2, 32}, floats, 36);
    gguf_add_tensor(w, "four", 1, 4, (int64_t[]){1, 2, 3, 4}, floats, 48);
    gguf_add_tensor(w, "last", 30, 1, (int64_t[]){5}, floats, 10);
}

static int64_t int_of(const qn_source *source, const char *name) {
    const qn_key *key = qn_source_find_key(source, name);
    assert_non_null(key);
    assert_int_equal(key->kind, QN_KEY_INT);
    return key->as.i;
}

static void keys_of_every_type_are_read(void **state) {
    gguf_writer w = {0};
    add_all_keys(&w);
    const size_t n = w.n_keys;
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    assert_int_equal(qn_source_n_keys(s), n);
    assert_int_equal(int_of(s, "u8"), 200);
    assert_int_equal(int_of(s, "i8"), -100);
    assert_int_equal(int_of(s, "u16"), 60000);
    assert_int_equal(int_of(s, "i16"), -30000);
    assert_int_equal(int_of(s, "u32"), 4000000000);
    assert_int_equal(int_of(s, "i32"), -2000000000);
    assert_true(int_of(s, "u64") == INT64_MAX);
    assert_true(int_of(s, "i64") == INT64_MIN);
    assert_true(qn_source_find_key(s, "f32")->as.f == (double)0.1F);
    assert_true(qn_source_find_key(s, "f64")->as.f == 0.1);
    assert_true(qn_source_find_key(s, "bool")->as.b);
    const qn_key *bytes = qn_source_find_key(s, "bytes");
    assert_int_equal(bytes->as.s.size, 4);
    assert_memory_equal(bytes->as.s.data, "a\0b\xff", 5); // and a NUL behind
    assert_true(qn_str_is(qn_source_find_key(s, "empty")->as.s, ""));
    assert_null(qn_source_find_key(s, "u"));
    assert_null(qn_source_find_key(s, "zzz"));
    assert_string_equal(qn_source_key(s, 0)->name.data, "general.architecture"); // file order
    assert_string_equal(qn_source_key(s, 1)->type_name, "u8");
    assert_null(qn_source_key(s, n));
    qn_source_close(s);
}

static void arrays_stay_compact_and_are_read_by_element(void **state) {
    gguf_writer w = {0};
    add_all_keys(&w);
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    const qn_key *key = qn_source_find_key(s, "u8s");
    assert_true(qn_key_is_array_of(key, QN_KEY_INT));
    assert_int_equal(key->n, 2);
    assert_int_equal(qn_key_int_at(key, 1), 255);
    assert_true(qn_key_float_at(key, 1) == 255.0);
    assert_string_equal(key->type_name, "array of u8");
    assert_int_equal(qn_key_int_at(qn_source_find_key(s, "i16s"), 0), -1);
    assert_int_equal(qn_key_int_at(qn_source_find_key(s, "i32s"), 0), -5);
    assert_true(qn_key_int_at(qn_source_find_key(s, "u64s"), 0) == INT64_MAX);
    assert_true(qn_key_float_at(qn_source_find_key(s, "f32s"), 0) == 0.5);
    assert_true(isinf(qn_key_float_at(qn_source_find_key(s, "f32s"), 1)));
    assert_true(qn_key_float_at(qn_source_find_key(s, "f64s"), 0) == 0.25);
    key = qn_source_find_key(s, "bools");
    assert_true(qn_key_is_array_of(key, QN_KEY_BOOL));
    assert_false(qn_key_bool_at(key, 0));
    assert_true(qn_key_bool_at(key, 2));
    key = qn_source_find_key(s, "strings");
    assert_true(qn_str_is(qn_key_string_at(key, 0), "one"));
    assert_true(qn_str_is(qn_key_string_at(key, 1), ""));
    assert_true(qn_str_is(qn_key_string_at(key, 2), "\xc3\xa9\"\n"));
    assert_int_equal(qn_source_find_key(s, "none")->n, 0);
    qn_source_close(s);
}

static void check_text(const qn_source *s, const char *name, size_t max, const char *want) {
    qn_err err = {0};
    qn_key_info info = QN_INIT(qn_key_info);
    const size_t i = (size_t)(qn_source_find_key(s, name) - qn_source_key(s, 0));
    ASSERT_OK(qn_source_key_info(&info, s, i, max, &err));
    assert_string_equal(info.name, name);
    assert_string_equal(info.value, want);
    qn_free(info.value);
}

static void a_key_is_shown_as_json(void **state) {
    gguf_writer w = {0};
    add_all_keys(&w);
    gguf_add_f32(&w, "nan", NAN);
    gguf_add_f32(&w, "whole", 500000);
    gguf_add_f32(&w, "eps", 1e-6F);
    gguf_add_string(&w, "controls", "\x1b\x7f\xc2\x9b\xe2\x80\xae\xc2\xa0");
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    check_text(s, "controls", 8, "\"\\u001b\\u007f\\u009b\\u202e\xc2\xa0\"");
    check_text(s, "general.architecture", 8, "\"llama\"");
    check_text(s, "i8", 8, "-100");
    check_text(s, "f32", 8, "0.1");
    check_text(s, "f64", 8, "0.1");
    check_text(s, "whole", 8, "500000.0");
    check_text(s, "eps", 8, "1e-06");
    check_text(s, "nan", 8, "\"NaN\"");
    check_text(s, "bool", 8, "true");
    check_text(s, "bytes", 8, "\"a\\u0000b\\ufffd\"");
    check_text(s, "i32s", 8, "[-5, 6, 7]");
    check_text(s, "i32s", 3, "[-5, 6, 7]");
    check_text(s, "i32s", 2, "[-5, 6, ... 3 in all]");
    check_text(s, "i32s", 0, "[... 3 in all]");
    check_text(s, "f32s", 8, "[0.5, \"-Infinity\"]");
    check_text(s, "bools", 1, "[false, ... 3 in all]");
    check_text(s, "strings", 8, "[\"one\", \"\", \"\xc3\xa9\\\"\\n\"]");
    check_text(s, "none", 8, "[]");
    qn_err err = {0};
    qn_key_info info = QN_INIT(qn_key_info);
    ASSERT_FAILS(qn_source_key_info(&info, s, 1000, 8, &err), QN_ARGUMENT, "1000");
    qn_source_close(s);
}

static void tensors_are_listed_and_read(void **state) {
    gguf_writer w = {0};
    add_some_tensors(&w);
    gguf_put(&w.data, "trailing garbage is no harm", 27);
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    assert_int_equal(qn_source_n_tensors(s), 4);
    assert_int_equal(qn_source_n_keys(s), 0);
    assert_string_equal(qn_source_format(s), "GGUF");
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_GGUF);
    assert_string_equal(qn_source_path(s), path.text);
    assert_string_equal(qn_source_folder(s), *state);
    struct stat st;
    assert_int_equal(stat(path.text, &st), 0);
    assert_int_equal(qn_source_file_bytes(s), st.st_size);
    const qn_tensor_info info = tensor_info(s, 2);
    assert_string_equal(info.name, "four");
    assert_string_equal(info.type, "F16");
    assert_int_equal(info.n_dims, 4);
    assert_int_equal(info.bytes, 48);
    for (int i = 0; i < 4; i++) assert_int_equal(info.dims[i], i + 1); // outermost first
    const qn_tensor *t = qn_source_find_tensor(s, "token_embd.weight");
    assert_ptr_equal(t, qn_source_tensor(s, 0));
    assert_null(qn_source_find_tensor(s, "token_embd"));
    assert_null(qn_source_tensor(s, 4));
    qn_err err = {0};
    float read[6] = {0};
    ASSERT_OK(qn_source_read(s, t, 0, read, 24, &err));
    assert_memory_equal(read, floats, 24);
    ASSERT_OK(qn_source_read(s, t, 20, read, 4, &err));
    assert_true(read[0] == 6);
    ASSERT_FAILS(qn_source_read(s, t, 20, read, 5, &err), QN_ARGUMENT, "token_embd.weight");
    ASSERT_FAILS(qn_source_read(s, t, -1, read, 1, &err), QN_ARGUMENT, "at -1");
    ASSERT_FAILS(qn_source_read(s, t, 25, read, 0, &err), QN_ARGUMENT, "24");
    qn_source_close(s);
}

static void version_2_other_alignments_and_other_endings_are_fine(void **state) {
    static const uint32_t alignments[] = {1, 8, 64, 4096, 1 << 20};
    for (size_t i = 0; i < sizeof alignments / sizeof alignments[0]; i++) {
        gguf_writer w = {.version = 2, .alignment = alignments[i]};
        gguf_add_u32(&w, "general.alignment", alignments[i]);
        add_some_tensors(&w);
        const path_name path = in_folder(state, "model.safetensors"); // told by content
        gguf_write(&w, path.text);
        qn_source *s = open_well(path.text);
        assert_string_equal(qn_source_format(s), "GGUF");
        qn_err err = {0};
        float read[6];
        ASSERT_OK(qn_source_read(s, qn_source_tensor(s, 0), 0, read, 24, &err));
        assert_memory_equal(read, floats, 24);
        qn_source_close(s);
    }
}

static void types_that_are_only_named_are_listed(void **state) {
    gguf_writer w = {0};
    static const char zeros[292];
    gguf_add_tensor(&w, "a", 16, 1, (int64_t[]){256}, zeros, 66);
    gguf_add_tensor(&w, "b", 27, 1, (int64_t[]){2}, zeros, 16);
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    assert_string_equal(tensor_info(s, 0).type, "IQ2_XXS");
    assert_string_equal(tensor_info(s, 1).type, "I64");
    assert_false(qn_type_is_supported(qn_source_tensor(s, 0)->type));
    qn_source_close(s);
}

// --- no GGUF at all ------------------------------------------------------------------------------

static void what_is_no_model_is_refused_by_what_it_is(void **state) {
    expect_failure("missing", in_folder(state, "nothing").text, QN_IO, "nothing");
    expect_failure("empty", put_text(state, "x", "").text, QN_FORMAT, "empty");
    expect_failure("magic", put_text(state, "x", "GGUX and so on, and so on").text, QN_FORMAT,
                   "47 47 55 58");
    expect_failure("text", put_text(state, "x", "hello").text, QN_FORMAT, "accepted are GGUF");
    expect_failure("one byte", put_text(state, "x", "G").text, QN_FORMAT, "47 (\"G\")");
    expect_failure("swapped", put_file(state, "x", "FUGG\0\0\0\3", 8).text, QN_UNSUPPORTED,
                   "big endian");
    expect_failure("ggjt", put_text(state, "x", "tjgg3......").text, QN_UNSUPPORTED, "GGJT");
    expect_failure("zip", put_text(state, "x", "PK\x03\x04......").text, QN_UNSUPPORTED, "zip");
    expect_failure("lfs", put_text(state, "x", "version https://git-lfs").text, QN_UNSUPPORTED,
                   "LFS");
    expect_failure("magic only", put_text(state, "x", "GGUF").text, QN_FORMAT, "GGUF version");
    const path_name fifo = in_folder(state, "fifo");
    assert_int_equal(mkfifo(fifo.text, 0600), 0);
    expect_failure("fifo", fifo.text, QN_FORMAT, "a pipe");
    expect_failure("device", "/dev/null", QN_FORMAT, "a device");
    qn_err err = {0};
    qn_source *s = NULL;
    ASSERT_FAILS(qn_source_open(&s, NULL, &err), QN_ARGUMENT, "path");
    assert_int_equal(qn_source_open(&s, TEST_DATA "/nothing-here", NULL), QN_IO); // err may be NULL
}

static void a_link_to_a_file_is_the_file(void **state) {
    gguf_writer w = {0};
    add_some_tensors(&w);
    const path_name path = in_folder(state, "a.gguf"), link = in_folder(state, "link");
    gguf_write(&w, path.text);
    assert_int_equal(symlink(path.text, link.text), 0);
    qn_source *s = open_well(link.text);
    assert_int_equal(qn_source_n_tensors(s), 4);
    qn_source_close(s);
}

// --- damage --------------------------------------------------------------------------------------

typedef struct damage {
    const char *what;
    void (*build)(gguf_writer *w, uint64_t argument);
    uint64_t argument;
    qn_status status;
    const char *part;
} damage;

static void run_damages(void *const *state, const damage *damages, size_t n) {
    const path_name path = in_folder(state, "bad.gguf");
    for (size_t i = 0; i < n; i++) {
        gguf_writer w = {0};
        damages[i].build(&w, damages[i].argument);
        gguf_write(&w, path.text);
        expect_failure(damages[i].what, path.text, damages[i].status, damages[i].part);
    }
}

#define RUN_DAMAGES(state, list) run_damages(state, list, sizeof(list) / sizeof((list)[0]))

static void with_version(gguf_writer *w, uint64_t version) {
    add_some_tensors(w);
    w->version = (uint32_t)version;
}

static void with_n_keys(gguf_writer *w, uint64_t n) {
    add_all_keys(w);
    w->n_keys = n;
}

static void with_n_tensors(gguf_writer *w, uint64_t n) {
    add_some_tensors(w);
    w->n_tensors = n;
}

static void a_damaged_container_is_refused(void **state) {
    static const damage list[] = {
        {"version 1", with_version, 1, QN_UNSUPPORTED, "GGUF version 1, want 2 or 3"},
        {"version 4", with_version, 4, QN_UNSUPPORTED, "GGUF version 4, want 2 or 3"},
        {"version -1", with_version, UINT32_MAX, QN_UNSUPPORTED, "GGUF version 4294967295"},
        {"big endian", with_version, 0x03000000, QN_UNSUPPORTED, "big-endian"},
        {"many keys", with_n_keys, 1000, QN_FORMAT, "1000 keys"},
        {"very many keys", with_n_keys, UINT64_MAX / 14, QN_FORMAT, "keys"},
        {"-1 keys", with_n_keys, UINT64_MAX, QN_FORMAT, "18446744073709551615 keys"},
        {"one key too many", with_n_keys, 24, QN_FORMAT, "bad.gguf"},
        {"no keys, but there are", with_n_keys, 0, QN_OK, ""},
        {"many tensors", with_n_tensors, 1000, QN_FORMAT, "1000 tensors"},
        {"very many tensors", with_n_tensors, UINT64_MAX / 33, QN_FORMAT, "tensors"},
        {"2^63 tensors", with_n_tensors, 1ULL << 63, QN_FORMAT, "9223372036854775808 tensors"},
        {"one tensor too many", with_n_tensors, 5, QN_FORMAT, "tensor"},
    };
    const path_name path = in_folder(state, "bad.gguf");
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        gguf_writer w = {0};
        list[i].build(&w, list[i].argument);
        gguf_write(&w, path.text);
        if (list[i].status) {
            expect_failure(list[i].what, path.text, list[i].status, list[i].part);
        } else {
            qn_source_close(open_well(path.text));
        }
    }
    gguf_writer w = {0};
    add_some_tensors(&w);
    gguf_finish(&w);
    memset(w.out.data + 4, 0, 4); // the writer takes version 0 for "the usual one"
    gguf_save(path.text, w.out.data, w.out.size);
    gguf_deinit(&w);
    expect_failure("version 0", path.text, QN_UNSUPPORTED, "GGUF version 0");
}

static void with_key_name(gguf_writer *w, uint64_t n) {
    char *name = malloc(n + 1);
    assert_non_null(name);
    memset(name, 'k', n);
    name[n] = 0;
    gguf_add_u32(w, name, 1);
    free(name);
}

static void with_key_name_length(gguf_writer *w, uint64_t n) {
    gguf_add_u32(w, "a.key", 1);
    memcpy(w->keys.data, &n, 8);
}

static void with_raw_key_name(gguf_writer *w, uint64_t which) {
    static const char *const names[] = {"a\xff", "\xc0\x80", "\xed\xa0\x80", "ok"};
    gguf_add_u32(w, names[which], 1);
    if (which == 3) w->keys.data[9] = 0; // "o\0"
}

static void with_two_keys(gguf_writer *w, uint64_t unused) {
    (void)unused;
    gguf_add_u32(w, "twice", 1);
    gguf_add_u32(w, "other", 1);
    gguf_add_string(w, "twice", "x");
}

static void with_key_type(gguf_writer *w, uint64_t type) {
    gguf_add_raw(w, "a.key", (uint32_t)type, "12345678", 8);
}

static void with_bool(gguf_writer *w, uint64_t value) {
    gguf_add_int(w, "a.key", GGUF_BOOL, (int64_t)value);
}

static void with_bools(gguf_writer *w, uint64_t value) {
    gguf_add_array(w, "a.key", GGUF_BOOL, (uint8_t[]){0, 1, (uint8_t)value}, 3, 1);
}

static void with_u64(gguf_writer *w, uint64_t value) {
    gguf_add_int(w, "a.key", GGUF_U64, (int64_t)value);
}

static void with_u64s(gguf_writer *w, uint64_t value) {
    gguf_add_array(w, "a.key", GGUF_U64, (uint64_t[]){1, value}, 2, 8);
}

static void with_array_of(gguf_writer *w, uint64_t type) {
    gguf_add_array(w, "a.key", (uint32_t)type, "1234567812345678", 1, 16);
}

// An array of `type` that says it has n elements.
static void with_array_n(gguf_writer *w, uint64_t type, uint64_t n) {
    gguf_add_array(w, "a.key", (uint32_t)type, "12345678", 1, 8);
    memcpy(w->keys.data + 8 + 5 + 4 + 4, &n, 8);
}

static void with_u8s_n(gguf_writer *w, uint64_t n) { with_array_n(w, GGUF_U8, n); }
static void with_f64s_n(gguf_writer *w, uint64_t n) { with_array_n(w, GGUF_F64, n); }
static void with_strings_n(gguf_writer *w, uint64_t n) { with_array_n(w, GGUF_STRING, n); }

static void with_string_length(gguf_writer *w, uint64_t n) {
    gguf_add_string(w, "a.key", "text");
    memcpy(w->keys.data + 8 + 5 + 4, &n, 8);
}

static void with_inner_string_length(gguf_writer *w, uint64_t n) {
    gguf_add_strings(w, "a.key", (const char *const[]){"text"}, 1);
    memcpy(w->keys.data + 8 + 5 + 4 + 4 + 8, &n, 8);
}

static void with_alignment(gguf_writer *w, uint64_t alignment) {
    gguf_add_u32(w, "general.alignment", (uint32_t)alignment);
    add_some_tensors(w);
}

static void with_alignment_type(gguf_writer *w, uint64_t type) {
    gguf_add_int(w, "general.alignment", (uint32_t)type, 32);
    add_some_tensors(w);
}

static void with_alignment_text(gguf_writer *w, uint64_t unused) {
    (void)unused;
    gguf_add_string(w, "general.alignment", "32");
}

static void damaged_keys_are_refused_by_name(void **state) {
    static const damage list[] = {
        {"empty name", with_key_name, 0, QN_FORMAT, "key 0: a name of 0 bytes"},
        {"long name", with_key_name, 65536, QN_FORMAT, "key 0: a name of 65536 bytes"},
        {"name beyond the file", with_key_name_length, 60000, QN_FORMAT, "60000 bytes"},
        {"huge name", with_key_name_length, UINT64_MAX, QN_FORMAT, "18446744073709551615"},
        {"no UTF-8", with_raw_key_name, 0, QN_FORMAT, "not UTF-8"},
        {"overlong UTF-8", with_raw_key_name, 1, QN_FORMAT, "not UTF-8"},
        {"surrogate", with_raw_key_name, 2, QN_FORMAT, "not UTF-8"},
        {"NUL in name", with_raw_key_name, 3, QN_FORMAT, "name o: holds a NUL"},
        {"duplicate", with_two_keys, 0, QN_FORMAT, "key twice: there are two"},
        {"type 13", with_key_type, 13, QN_FORMAT, "key a.key: value type 13"},
        {"type -1", with_key_type, UINT32_MAX, QN_FORMAT, "key a.key: value type 4294967295"},
        {"bool 2", with_bool, 2, QN_FORMAT, "key a.key: a bool of value 2"},
        {"bool 255 in an array", with_bools, 255, QN_FORMAT, "key a.key: a bool of value 255"},
        {"2^63", with_u64, 1ULL << 63, QN_UNSUPPORTED, "key a.key: 9223372036854775808"},
        {"2^64-1 in an array", with_u64s, UINT64_MAX, QN_UNSUPPORTED, "key a.key: 1844674407370"},
        {"array of arrays", with_array_of, GGUF_ARRAY, QN_UNSUPPORTED,
         "key a.key: an array of arr"},
        {"array of type 13", with_array_of, 13, QN_FORMAT, "key a.key: an array of type 13"},
        {"too many u8", with_u8s_n, 1000, QN_FORMAT, "key a.key: 1000 elements of type u8"},
        {"2^63 u8", with_u8s_n, 1ULL << 63, QN_FORMAT, "key a.key: 9223372036854775808"},
        {"n x 8 wraps to 8", with_f64s_n, (1ULL << 61) + 1, QN_FORMAT, "2305843009213693953"},
        {"too many strings", with_strings_n, 100, QN_FORMAT, "key a.key: 100 elements of type str"},
        {"2^60 strings", with_strings_n, 1ULL << 60, QN_FORMAT, "key a.key: 1152921504606846976"},
        {"string beyond the file", with_string_length, 1000, QN_FORMAT, "a string of 1000 bytes"},
        {"huge string", with_string_length, UINT64_MAX, QN_FORMAT, "a.key: a string of 18446744"},
        {"huge string inside", with_inner_string_length, UINT64_MAX - 8, QN_FORMAT, "a.key"},
        {"alignment 0", with_alignment, 0, QN_FORMAT, "general.alignment: 0, want a power"},
        {"alignment 48", with_alignment, 48, QN_FORMAT, "general.alignment: 48, want a power"},
        {"alignment 2^30", with_alignment, 1 << 30, QN_FORMAT, "general.alignment: 1073741824"},
        {"alignment i32", with_alignment_type, GGUF_I32, QN_FORMAT, "type i32, want u32"},
        {"alignment u64", with_alignment_type, GGUF_U64, QN_FORMAT, "type u64, want u32"},
        {"alignment text", with_alignment_text, 0, QN_FORMAT, "type string, want u32"},
    };
    RUN_DAMAGES(state, list);
}

static void with_rank(gguf_writer *w, uint64_t rank) {
    gguf_add_tensor(w, "a.tensor", 0, 1, (int64_t[]){2}, floats, 8);
    memcpy(w->infos.data + 8 + 8, &(uint32_t){(uint32_t)rank}, 4);
}

static void with_dim(gguf_writer *w, uint64_t dim) {
    gguf_add_tensor(w, "a.tensor", 0, 2, (int64_t[]){(int64_t)dim, 2}, floats, 64);
}

// (2^42 + 1) x 2^22 = 2^64 + 2^22: four mebibytes if the product wraps.
static void with_wrapping_product(gguf_writer *w, uint64_t unused) {
    (void)unused;
    gguf_add_tensor(w, "a.tensor", 0, 2, (int64_t[]){(1LL << 42) + 1, 1LL << 22}, floats, 64);
}

// 2^62 values fit, 2^64 bytes do not.
static void with_wrapping_bytes(gguf_writer *w, uint64_t dim) {
    gguf_add_tensor(w, "a.tensor", 0, 1, (int64_t[]){(int64_t)dim}, floats, 64);
}

static void with_row(gguf_writer *w, uint64_t row) {
    gguf_add_tensor(w, "a.tensor", 12, 2, (int64_t[]){256, (int64_t)row}, floats, 144);
}

static void with_type(gguf_writer *w, uint64_t type) {
    gguf_add_tensor(w, "a.tensor", (uint32_t)type, 1, (int64_t[]){256}, floats, 64);
}

static void with_offset(gguf_writer *w, uint64_t offset) {
    gguf_put(&w->data, floats, 64);
    gguf_add_tensor_info(w, "a.tensor", 0, 1, (int64_t[]){8}, offset);
}

static void with_overlap(gguf_writer *w, uint64_t offset) {
    gguf_put(&w->data, floats, 192);
    gguf_add_tensor_info(w, "second", 0, 1, (int64_t[]){16}, 64);
    gguf_add_tensor_info(w, "a.tensor", 0, 1, (int64_t[]){16}, offset);
}

static void with_tensor_name(gguf_writer *w, uint64_t n) {
    char name[300];
    memset(name, 't', n);
    name[n] = 0;
    gguf_add_tensor(w, name, 0, 1, (int64_t[]){2}, floats, 8);
}

static void with_raw_tensor_name(gguf_writer *w, uint64_t byte) {
    gguf_add_tensor(w, "abc", 0, 1, (int64_t[]){2}, floats, 8);
    w->infos.data[9] = (unsigned char)byte;
}

static void with_two_tensors(gguf_writer *w, uint64_t unused) {
    (void)unused;
    gguf_add_tensor(w, "twice", 0, 1, (int64_t[]){2}, floats, 8);
    gguf_add_tensor(w, "other", 0, 1, (int64_t[]){2}, floats, 8);
    gguf_add_tensor(w, "twice", 0, 1, (int64_t[]){2}, floats, 8);
}

static void damaged_tensors_are_refused_by_name(void **state) {
    static const damage list[] = {
        {"rank 0", with_rank, 0, QN_FORMAT, "tensor a.tensor: 0 dims, want 1 to 4"},
        {"rank 5", with_rank, 5, QN_FORMAT, "tensor a.tensor: 5 dims, want 1 to 4"},
        {"rank -1", with_rank, UINT32_MAX, QN_FORMAT, "tensor a.tensor: 4294967295 dims"},
        {"dim 0", with_dim, 0, QN_FORMAT, "tensor a.tensor: dim 0 is 0"},
        {"dim -1", with_dim, UINT64_MAX, QN_FORMAT,
         "tensor a.tensor: dim 0 is 18446744073709551615"},
        {"dim 2^62", with_dim, 1ULL << 62, QN_FORMAT, "tensor a.tensor: (4611686018427387904, 2"},
        {"product wraps", with_wrapping_product, 0, QN_FORMAT, "(4398046511105, 4194304"},
        {"bytes wrap", with_wrapping_bytes, 1ULL << 62, QN_FORMAT, "of F32 is too large"},
        {"bytes beyond the file", with_wrapping_bytes, 1ULL << 60, QN_FORMAT,
         "4611686018427387904"},
        {"padding would wrap", with_wrapping_bytes, (1ULL << 61) - 1, QN_FORMAT, "a.tensor"},
        {"half a block", with_row, 128, QN_FORMAT, "rows of 128 values, Q4_K has blocks of 256"},
        {"row 1", with_row, 1, QN_FORMAT, "rows of 1 values"},
        {"type 4", with_type, 4, QN_UNSUPPORTED, "tensor a.tensor: type 4 (Q4_2) was removed"},
        {"type 5", with_type, 5, QN_UNSUPPORTED, "type 5 (Q4_3) was removed"},
        {"type 31", with_type, 31, QN_UNSUPPORTED, "type 31 (Q4_0_4_4) was removed"},
        {"type 32", with_type, 32, QN_UNSUPPORTED, "type 32 (Q4_0_4_8) was removed"},
        {"type 33", with_type, 33, QN_UNSUPPORTED, "type 33 (Q4_0_8_8) was removed"},
        {"type 36", with_type, 36, QN_UNSUPPORTED, "type 36 (IQ4_NL_4_4) was removed"},
        {"type 37", with_type, 37, QN_UNSUPPORTED, "type 37 (IQ4_NL_4_8) was removed"},
        {"type 38", with_type, 38, QN_UNSUPPORTED, "type 38 (IQ4_NL_8_8) was removed"},
        {"type 99", with_type, 99, QN_UNSUPPORTED, "tensor a.tensor: unknown type 99"},
        {"type -1", with_type, UINT32_MAX, QN_UNSUPPORTED, "unknown type 4294967295"},
        {"unaligned", with_offset, 8, QN_FORMAT,
         "tensor a.tensor: offset 8, want a multiple of 32"},
        {"half outside", with_offset, 64, QN_FORMAT, "tensor a.tensor: 32 bytes at 64"},
        {"outside", with_offset, 1 << 20, QN_FORMAT, "tensor a.tensor: 32 bytes at 1048576"},
        {"offset 2^63", with_offset, 1ULL << 63, QN_FORMAT, "offset 9223372036854775808"},
        {"offset 2^63 - 32", with_offset, (1ULL << 63) - 32, QN_FORMAT, "9223372036854775776"},
        {"same place", with_overlap, 64, QN_FORMAT, "overlap"},
        {"overlap before", with_overlap, 32, QN_FORMAT, "tensor second: begins at"},
        {"overlap behind", with_overlap, 96, QN_FORMAT, "tensor a.tensor: begins at"},
        {"no name", with_tensor_name, 0, QN_FORMAT, "tensor 0: a name of 0 bytes"},
        {"long name", with_tensor_name, 256, QN_FORMAT, "tensor 0: a name of 256 bytes"},
        {"name not UTF-8", with_raw_tensor_name, 0xff, QN_FORMAT, "tensor 0: name a?c: not UTF-8"},
        {"NUL in name", with_raw_tensor_name, 0, QN_FORMAT, "tensor 0: name a: holds a NUL"},
        {"duplicate", with_two_tensors, 0, QN_FORMAT, "tensor twice: there are two"},
    };
    RUN_DAMAGES(state, list);
}

// --- every offset --------------------------------------------------------------------------------

static void a_file_cut_at_any_byte_is_refused(void **state) {
    gguf_writer w = {0};
    add_all_keys(&w);
    add_some_tensors(&w);
    gguf_finish(&w);
    const path_name path = put_file(state, "a.gguf", w.out.data, w.out.size);
    qn_source_close(open_well(path.text));
    for (size_t n = w.out.size; n-- > 0;) {
        assert_int_equal(truncate(path.text, (off_t)n), 0);
        qn_err err = {0};
        qn_source *s = NULL;
        const qn_status status = qn_source_open(&s, path.text, &err);
        if (status != QN_FORMAT) fail_msg("cut at %zu: %s", n, qn_status_name(status));
        assert_non_null(strstr(err.message, path.text));
    }
    gguf_deinit(&w);
}

static void a_wrong_byte_anywhere_does_no_harm(void **state) {
    gguf_writer w = {0};
    add_all_keys(&w);
    add_some_tensors(&w);
    gguf_finish(&w);
    const path_name path = put_file(state, "a.gguf", w.out.data, w.out.size);
    const int fd = open(path.text, O_WRONLY);
    assert_true(fd >= 0);
    size_t opened = 0, refused = 0;
    for (size_t at = 0; at < w.data_offset; at++) {
        static const unsigned char masks[] = {0x01, 0x02, 0x08, 0x20, 0x80, 0xff};
        for (size_t i = 0; i < sizeof masks; i++) {
            const unsigned char byte = w.out.data[at] ^ masks[i];
            assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
            qn_err err = {0};
            qn_source *s = NULL;
            if (qn_source_open(&s, path.text, &err) == QN_OK) {
                check_budget(s, w.out.size);
                opened++;
            } else {
                assert_true(err.message[0] != 0);
                refused++;
            }
            qn_source_close(s);
        }
        assert_int_equal(pwrite(fd, w.out.data + at, 1, (off_t)at), 1);
    }
    close(fd);
    assert_true(opened > 100 && refused > 100); // both happen, so both are exercised
    gguf_deinit(&w);
}

static void a_file_that_shrinks_is_an_error_not_a_crash(void **state) {
    gguf_writer w = {0};
    add_some_tensors(&w);
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    qn_source *s = open_well(path.text);
    assert_int_equal(truncate(path.text, 100), 0);
    qn_err err = {0};
    char byte;
    ASSERT_FAILS(qn_source_read(s, qn_source_tensor(s, 3), 0, &byte, 1, &err), QN_IO,
                 "tensor last");
    qn_source_close(s);
}

typedef struct shared_reads {
    const qn_source *source;
    bool wrong[1000]; // each piece writes its own
} shared_reads;

static void read_piece(void *arg, int64_t piece) {
    shared_reads *reads = arg;
    float value = 0;
    const qn_tensor *t = qn_source_find_tensor(reads->source, "token_embd.weight");
    const int64_t i = piece % 6;
    const qn_status status = qn_source_read(reads->source, t, 4 * i, &value, 4, NULL);
    reads->wrong[piece] = status != QN_OK || value != floats[i];
}

static void threads_may_read_together(void **state) {
    gguf_writer w = {0};
    add_some_tensors(&w);
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    shared_reads reads = {.source = open_well(path.text)};
    qn_err err = {0};
    qn_pool *pool;
    ASSERT_OK(qn_pool_create(&pool, 4, &err));
    qn_pool_run(pool, 1000, read_piece, &reads);
    qn_pool_destroy(pool);
    for (int i = 0; i < 1000; i++) assert_false(reads.wrong[i]);
    qn_source_close((qn_source *)(uintptr_t)reads.source);
}

// --- memory --------------------------------------------------------------------------------------

static void dense_arrays_stay_within_the_budget(void **state) {
    enum { N = 300000 };
    gguf_writer w = {0};
    char *bytes = calloc(N, 8);
    assert_non_null(bytes);
    gguf_add_array(&w, "strings", GGUF_STRING, bytes, N, 8); // N empty strings
    gguf_add_array(&w, "u8s", GGUF_U8, bytes, 8 * N, 1);
    gguf_finish(&w);
    const path_name path = put_file(state, "a.gguf", w.out.data, w.out.size);
    qn_source *s = open_well(path.text);
    const qn_key *key = qn_source_find_key(s, "strings");
    assert_int_equal(key->n, N);
    assert_int_equal(qn_key_string_at(key, N - 1).size, 0);
    assert_int_equal(qn_source_find_key(s, "u8s")->n, 8 * N);
    check_budget(s, w.out.size);
    qn_source_close(s);
    free(bytes);
    gguf_deinit(&w);
}

static void very_many_tiny_keys_open_or_meet_the_limit(void **state) {
    gguf_writer w = {0};
    for (int i = 0; i < 400000; i++) {
        char name[8];
        snprintf(name, sizeof name, "%c%c%c", 33 + i % 90, 33 + i / 90 % 90, 33 + i / 8100 % 90);
        gguf_add_int(&w, name, GGUF_U8, 1);
    }
    const path_name path = in_folder(state, "a.gguf");
    gguf_write(&w, path.text);
    // 56 bytes for a key that takes 16 in the file: over 4 x from some number on.
    expect_failure("dense keys", path.text, QN_LIMIT, "the limit is");
    for (int i = 0; i < 50000; i++) {
        char name[8];
        snprintf(name, sizeof name, "%05d", i);
        gguf_add_int(&w, name, GGUF_U8, i % 256);
    }
    gguf_finish(&w);
    gguf_save(path.text, w.out.data, w.out.size);
    qn_source *s = open_well(path.text);
    assert_int_equal(qn_source_n_keys(s), 50000);
    assert_int_equal(int_of(s, "04321"), 4321 % 256);
    check_budget(s, w.out.size);
    qn_source_close(s);
    gguf_deinit(&w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(keys_of_every_type_are_read),
        FOLDER_TEST(arrays_stay_compact_and_are_read_by_element),
        FOLDER_TEST(a_key_is_shown_as_json),
        FOLDER_TEST(tensors_are_listed_and_read),
        FOLDER_TEST(version_2_other_alignments_and_other_endings_are_fine),
        FOLDER_TEST(types_that_are_only_named_are_listed),
        FOLDER_TEST(what_is_no_model_is_refused_by_what_it_is),
        FOLDER_TEST(a_link_to_a_file_is_the_file),
        FOLDER_TEST(a_damaged_container_is_refused),
        FOLDER_TEST(damaged_keys_are_refused_by_name),
        FOLDER_TEST(damaged_tensors_are_refused_by_name),
        FOLDER_TEST(a_file_cut_at_any_byte_is_refused),
        FOLDER_TEST(a_wrong_byte_anywhere_does_no_harm),
        FOLDER_TEST(a_file_that_shrinks_is_an_error_not_a_crash),
        FOLDER_TEST(threads_may_read_together),
        FOLDER_TEST(dense_arrays_stay_within_the_budget),
        FOLDER_TEST(very_many_tiny_keys_open_or_meet_the_limit),
    };
    return cmocka_run_group_tests_name("formats: GGUF", tests, NULL, NULL);
}

// safetensors: what a good file gives, and what each kind of damage is refused with.
#include "format_files.h"

#include <fcntl.h>

// A file of this header (without its length) and `n` bytes of data.
static path_name put_header(void *const *state, const char *header, size_t n) {
    gguf_bytes b = {0};
    gguf_put_int(&b, strlen(header), 8);
    gguf_put(&b, header, strlen(header));
    for (size_t i = 0; i < n; i++) gguf_put_int(&b, i, 1);
    const path_name path = put_file(state, "a.safetensors", b.data, b.size);
    free(b.data);
    return path;
}

#define GOOD                                                                                       \
    "{\"__metadata__\":{\"format\":\"pt\"},"                                                       \
    "\"b.weight\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[8,32]},"                    \
    "\"a\":{\"data_offsets\":[0,8],\"shape\":[4],\"dtype\":\"BF16\"}}"

static void tensors_are_listed_and_read(void **state) {
    const path_name path = put_header(state, GOOD "   ", 32);
    qn_source *s = open_well(path.text);
    assert_string_equal(qn_source_format(s), "safetensors");
    assert_int_equal(qn_source_get_kind(s), QN_SOURCE_SAFETENSORS);
    assert_int_equal(qn_source_n_tensors(s), 2);
    assert_int_equal(qn_source_n_keys(s), 0); // no config.json beside it
    assert_null(qn_source_find_key(s, "format"));
    const qn_tensor *t = qn_source_find_tensor(s, "b.weight");
    assert_ptr_equal(t, qn_source_tensor(s, 0));
    assert_int_equal(t->type, QN_TYPE_F32);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 2);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->bytes, 24);
    assert_string_equal(tensor_info(s, 1).type, "BF16");
    qn_err err = {0};
    unsigned char bytes[24];
    ASSERT_OK(qn_source_read(s, t, 0, bytes, 24, &err));
    assert_int_equal(bytes[0], 8);
    assert_int_equal(bytes[23], 31);
    ASSERT_FAILS(qn_source_read(s, t, 1, bytes, 24, &err), QN_ARGUMENT, "b.weight");
    qn_source_close(s);
    put_text(state, "config.json", "{\"n\": 3}");
    s = open_well(path.text); // with it
    assert_int_equal(qn_source_find_key(s, "n")->as.i, 3);
    qn_source_close(s);
    put_text(state, "config.json", "{\"n\": 3");
    expect_failure("broken config", path.text, QN_FORMAT, "config.json: not valid JSON");
}

static void the_ending_of_the_name_does_not_matter(void **state) {
    const path_name from = put_header(state, GOOD, 32), to = in_folder(state, "model.gguf");
    assert_int_equal(rename(from.text, to.text), 0);
    qn_source *s = open_well(to.text);
    assert_string_equal(qn_source_format(s), "safetensors");
    qn_source_close(s);
}

static void scalars_escapes_and_foreign_fields_are_fine(void **state) {
    const path_name path =
        put_header(state,
                   "{\"\\u00e9\\ud83d\\ude00\":{\"dtype\":\"F64\",\"shape\":[],\"data_offsets\":"
                   "[0,8],\"more\":[{\"x\":[1,null]}]},\"five\":{\"dtype\":\"I8\",\"shape\":"
                   "[1,1,2,1,1],\"data_offsets\":[8,10]}}",
                   10);
    qn_source *s = open_well(path.text);
    const qn_tensor *t = qn_source_find_tensor(s, "\xc3\xa9\xf0\x9f\x98\x80");
    assert_non_null(t);
    assert_int_equal(t->n_dims, 1);
    assert_int_equal(t->dims[0], 1);
    assert_int_equal(qn_source_find_tensor(s, "five")->n_dims, 5);
    qn_source_close(s);
    qn_source_close(open_well(put_header(state, "{}", 0).text));
}

static void types_without_arithmetic_are_listed_by_name(void **state) {
    const path_name path =
        put_header(state,
                   "{\"a\":{\"dtype\":\"F8_E4M3\",\"shape\":[3],\"data_offsets\":[0,3]},"
                   "\"b\":{\"dtype\":\"F8_E5M2\",\"shape\":[1],\"data_offsets\":[3,4]},"
                   "\"c\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},"
                   "\"d\":{\"dtype\":\"F4\",\"shape\":[2,2],\"data_offsets\":[6,8]}}",
                   8);
    qn_source *s = open_well(path.text);
    static const char *const names[] = {"F8_E4M3", "F8_E5M2", "U8", "F4"};
    for (size_t i = 0; i < 4; i++) {
        assert_string_equal(tensor_info(s, i).type, names[i]);
        assert_false(qn_type_is_supported(qn_source_tensor(s, i)->type));
    }
    qn_source_close(s);
}

// --- damage --------------------------------------------------------------------------------------

#define ONE(fields) "{\"w\":{" fields "}}"
#define SHAPED(shape, offsets)                                                                     \
    ONE("\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets)
#define TWO(offsets, others)                                                                       \
    "{\"w\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" offsets "},"                        \
    "\"v\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" others "}}"

static void damaged_headers_are_refused_by_name(void **state) {
    static const struct {
        const char *what, *header;
        size_t n;
        qn_status status;
        const char *part;
    } cases[] = {
        {"not JSON", "hello, world", 0, QN_FORMAT, "header: not valid JSON"},
        {"array", "[1, 2, 3]", 0, QN_FORMAT, "not a JSON object"},
        {"number", "12345678", 0, QN_FORMAT, "not a JSON object"},
        {"spaces", "         ", 0, QN_FORMAT, "the text ends"},
        {"unfinished", "{\"w\":", 0, QN_FORMAT, "the text ends"},
        {"more behind", "{} {}", 0, QN_FORMAT, "nothing after the value"},
        {"deep", "{\"w\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", 0, QN_LIMIT,
         "nested"},
        {"entry is a number", "{\"w\": 7}", 0, QN_FORMAT, "tensor w: not a JSON object"},
        {"metadata is a number", "{\"__metadata__\": 7}", 0, QN_FORMAT, "__metadata__"},
        {"metadata holds a number", "{\"__metadata__\":{\"a\":1}}", 0, QN_FORMAT, "of a is not"},
        {"two metadata", "{\"__metadata__\":{},\"__metadata__\":{}}", 0, QN_FORMAT, "twice"},
        {"no name", "{\"\":{}}", 0, QN_FORMAT, "without a name"},
        {"duplicate", TWO("[0,4]", "[4,8]") "", 8, QN_OK, ""},
        {"duplicate name",
         "{\"w\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"\\u0077\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, QN_FORMAT, "tensor w: there are two"},
        {"field twice", ONE("\"dtype\":\"U8\",\"dtype\":\"U8\""), 0, QN_FORMAT,
         "dtype is there tw"},
        {"no dtype", ONE("\"shape\":[1],\"data_offsets\":[0,1]"), 1, QN_FORMAT, "dtype is missing"},
        {"no shape", ONE("\"dtype\":\"U8\",\"data_offsets\":[0,1]"), 1, QN_FORMAT, "shape is miss"},
        {"no offsets", ONE("\"dtype\":\"U8\",\"shape\":[1]"), 1, QN_FORMAT, "data_offsets is miss"},
        {"dtype number", ONE("\"dtype\":8"), 1, QN_FORMAT, "tensor w: dtype is not a string"},
        {"unknown dtype", ONE("\"dtype\":\"I4\""), 1, QN_UNSUPPORTED, "tensor w: unknown dtype I4"},
        {"lower case", ONE("\"dtype\":\"f32\""), 1, QN_UNSUPPORTED, "tensor w: unknown dtype f32"},
        {"GGUF's type", ONE("\"dtype\":\"Q4_0\""), 1, QN_UNSUPPORTED, "unknown dtype Q4_0"},
        {"long dtype", ONE("\"dtype\":\"F32F32F32F32F32F32F32F32\""), 1, QN_UNSUPPORTED, "dtype"},
        {"shape number", SHAPED("4", "[0,4]"), 4, QN_FORMAT, "tensor w: shape is not an array"},
        {"dim text", SHAPED("[\"4\"]", "[0,4]"), 4, QN_FORMAT, "shape: number 0"},
        {"dim real", SHAPED("[1.0]", "[0,4]"), 4, QN_FORMAT, "shape: number 0"},
        {"dim negative", SHAPED("[1,-1]", "[0,4]"), 4, QN_FORMAT, "shape: number 1"},
        {"dim 0", SHAPED("[2,0]", "[0,0]"), 0, QN_FORMAT, "tensor w: dim 1 is 0"},
        {"dim 2^63", SHAPED("[9223372036854775808]", "[0,4]"), 4, QN_FORMAT, "shape: number 0"},
        {"rank 6", SHAPED("[1,1,1,1,1,1]", "[0,4]"), 4, QN_UNSUPPORTED, "shape has more than 5"},
        {"product wraps", SHAPED("[4398046511105,4194304]", "[0,16777216]"), 4, QN_FORMAT,
         "tensor w: (4398046511105, 4194304"},
        {"bytes wrap", SHAPED("[4611686018427387904]", "[0,0]"), 0, QN_FORMAT, "tensor w: (46116"},
        {"half a byte", ONE("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"), 2, QN_FORMAT,
         "is not a valid size"},
        {"reversed", SHAPED("[1]", "[4,0]"), 4, QN_FORMAT, "data_offsets are reversed: 4, 0"},
        {"one offset", SHAPED("[1]", "[4]"), 4, QN_FORMAT, "data_offsets has 1 numbers"},
        {"three offsets", SHAPED("[1]", "[0,4,8]"), 4, QN_UNSUPPORTED, "data_offsets has more"},
        {"negative offset", SHAPED("[1]", "[-4,0]"), 4, QN_FORMAT, "data_offsets: number 0"},
        {"wrong size", SHAPED("[2]", "[0,4]"), 4, QN_FORMAT, "span 4 bytes, its 2 values of F32"},
        {"beyond the file", SHAPED("[2]", "[0,8]"), 4, QN_FORMAT, "tensor w: 8 bytes at"},
        {"far beyond", SHAPED("[1]", "[9223372036854775803,9223372036854775807]"), 4, QN_FORMAT,
         "tensor w: 4 bytes at"},
        {"overlap", TWO("[0,4]", "[2,6]"), 6, QN_FORMAT, "overlap"},
        {"same place", TWO("[0,4]", "[0,4]"), 4, QN_FORMAT, "overlap"},
        {"hole", TWO("[0,4]", "[5,9]"), 9, QN_FORMAT, "tensor v: begins at"},
        {"hole in front", TWO("[1,5]", "[5,9]"), 9, QN_FORMAT, "tensor w: begins at"},
        {"hole at the end", TWO("[0,4]", "[4,8]"), 9, QN_FORMAT, "v ends at"},
        {"data without tensors", "{}", 4, QN_FORMAT, "the header ends at"},
        {"NUL in a name", "{\"a\\u0000b\":{}}", 0, QN_FORMAT, "NUL"},
        {"half a pair", "{\"\\ud800\":{}}", 0, QN_FORMAT, "escape"},
        {"no UTF-8", "{\"\xff\":{}}", 0, QN_FORMAT, "UTF-8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const path_name path = put_header(state, cases[i].header, cases[i].n);
        if (cases[i].status)
            expect_failure(cases[i].what, path.text, cases[i].status, cases[i].part);
        else
            qn_source_close(open_well(path.text));
    }
}

static void a_wrong_length_of_the_header_is_refused(void **state) {
    static const uint64_t lengths[] = {1000, 1ULL << 32, 1ULL << 63, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        gguf_bytes b = {0};
        gguf_put_int(&b, lengths[i], 8);
        gguf_put(&b, "{\"a\":{}}", 8);
        const path_name path = put_file(state, "a.safetensors", b.data, b.size);
        free(b.data);
        char part[64];
        snprintf(part, sizeof part, "a header of %llu bytes, the file has 8",
                 (unsigned long long)lengths[i]);
        expect_failure("length", path.text, QN_FORMAT, part);
    }
    // A header of 101 MiB, all of it there: a file with a hole.
    gguf_bytes b = {0};
    gguf_put_int(&b, 101 << 20, 8);
    gguf_put(&b, "{", 1);
    const path_name path = put_file(state, "a.safetensors", b.data, b.size);
    free(b.data);
    assert_int_equal(truncate(path.text, 200 << 20), 0);
    expect_failure("101 MiB", path.text, QN_LIMIT, "the limit is 104857600");
}

// --- every offset --------------------------------------------------------------------------------

static void a_file_cut_at_any_byte_is_refused(void **state) {
    const path_name path = put_header(state, GOOD, 32);
    qn_source_close(open_well(path.text));
    for (size_t n = 8 + strlen(GOOD) + 32; n-- > 0;) {
        assert_int_equal(truncate(path.text, (off_t)n), 0);
        qn_err err = {0};
        qn_source *s = NULL;
        const qn_status status = qn_source_open(&s, path.text, &err);
        if (status != QN_FORMAT) fail_msg("cut at %zu: %s", n, qn_status_name(status));
    }
}

static void a_wrong_byte_anywhere_does_no_harm(void **state) {
    const path_name path = put_header(state, GOOD, 32);
    const size_t size = 8 + strlen(GOOD) + 32;
    const int fd = open(path.text, O_RDWR);
    assert_true(fd >= 0);
    size_t opened = 0, refused = 0;
    for (size_t at = 0; at < size - 32; at++) {
        unsigned char right;
        assert_int_equal(pread(fd, &right, 1, (off_t)at), 1);
        for (int byte = 0; byte < 256; byte += 3) {
            const unsigned char wrong = (unsigned char)byte;
            assert_int_equal(pwrite(fd, &wrong, 1, (off_t)at), 1);
            qn_err err = {0};
            qn_source *s = NULL;
            if (qn_source_open(&s, path.text, &err) == QN_OK) {
                check_budget(s, size);
                opened++;
            } else {
                assert_true(err.message[0] != 0);
                refused++;
            }
            qn_source_close(s);
        }
        assert_int_equal(pwrite(fd, &right, 1, (off_t)at), 1);
    }
    close(fd);
    assert_true(opened > 100 && refused > 100);
}

static void a_file_that_shrinks_is_an_error_not_a_crash(void **state) {
    const path_name path = put_header(state, GOOD, 32);
    qn_source *s = open_well(path.text);
    assert_int_equal(truncate(path.text, 20), 0);
    qn_err err = {0};
    char byte;
    ASSERT_FAILS(qn_source_read(s, qn_source_tensor(s, 0), 0, &byte, 1, &err), QN_IO,
                 "tensor b.weight");
    qn_source_close(s);
}

static void many_tensors_stay_within_the_budget(void **state) {
    enum { N = 100000 };
    gguf_bytes b = {0};
    gguf_put(&b, "{", 1);
    for (int i = 0; i < N; i++) {
        char entry[128];
        const int n = snprintf(entry, sizeof entry,
                               "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                               i ? "," : "", i, i, i + 1);
        gguf_put(&b, entry, (size_t)n);
    }
    gguf_put_int(&b, '}', 2); // and a NUL
    const path_name path = put_header(state, (const char *)b.data, N);
    qn_source *s = open_well(path.text);
    assert_int_equal(qn_source_n_tensors(s), N);
    assert_int_equal(qn_source_find_tensor(s, "77777")->offset,
                     qn_source_tensor(s, 0)->offset + 77777);
    check_budget(s, b.size + N);
    qn_source_close(s);
    free(b.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(tensors_are_listed_and_read),
        FOLDER_TEST(the_ending_of_the_name_does_not_matter),
        FOLDER_TEST(scalars_escapes_and_foreign_fields_are_fine),
        FOLDER_TEST(types_without_arithmetic_are_listed_by_name),
        FOLDER_TEST(damaged_headers_are_refused_by_name),
        FOLDER_TEST(a_wrong_length_of_the_header_is_refused),
        FOLDER_TEST(a_file_cut_at_any_byte_is_refused),
        FOLDER_TEST(a_wrong_byte_anywhere_does_no_harm),
        FOLDER_TEST(a_file_that_shrinks_is_an_error_not_a_crash),
        FOLDER_TEST(many_tensors_stay_within_the_budget),
    };
    return cmocka_run_group_tests_name("formats: safetensors", tests, NULL, NULL);
}

// Sets of files: split GGUF, and what a folder is opened as.
#include "format_files.h"

#include <sys/stat.h>

static const float floats[8] = {1, 2, 3, 4, 5, 6, 7, 8};

// --- split GGUF ----------------------------------------------------------------------------------

typedef struct part {
    int no, count, n_tensors; // the keys of the part; -1: no key
    const char *tensor;       // its only tensor; NULL: none
} part;

static void put_part(void *const *state, const char *name, part p) {
    gguf_writer w = {0};
    if (p.no == 0) gguf_add_string(&w, "general.architecture", "llama");
    if (p.no >= 0) gguf_add_int(&w, "split.no", GGUF_U16, p.no);
    if (p.count >= 0) gguf_add_int(&w, "split.count", GGUF_U16, p.count);
    if (p.n_tensors >= 0) gguf_add_int(&w, "split.tensors.count", GGUF_I32, p.n_tensors);
    const float value = (float)(p.no + 10);
    if (p.tensor) gguf_add_tensor(&w, p.tensor, 0, 1, (int64_t[]){1}, &value, 4);
    gguf_write(&w, in_folder(state, name).text);
}

// m-00001-of-00003.gguf and so on, with the tensors a, b, c.
static void put_set(void *const *state) {
    put_part(state, "m-00001-of-00003.gguf", (part){0, 3, 3, "c"});
    put_part(state, "m-00002-of-00003.gguf", (part){1, 3, 3, "b"});
    put_part(state, "m-00003-of-00003.gguf", (part){2, 3, 3, "a"});
}

static void check_set(const char *path) {
    qn_source *s = open_well(path);
    assert_int_equal(qn_source_n_tensors(s), 3);
    assert_int_equal(qn_source_n_keys(s), 4); // those of the first part
    assert_true(qn_str_is(qn_source_find_key(s, "general.architecture")->as.s, "llama"));
    assert_int_equal(qn_source_find_key(s, "split.no")->as.i, 0);
    assert_string_equal(qn_source_tensor(s, 0)->name.data, "c"); // order of the parts
    static const char *const names[] = {"c", "b", "a"};
    for (int i = 0; i < 3; i++) {
        qn_err err = {0};
        float value = 0;
        const qn_tensor *t = qn_source_find_tensor(s, names[i]);
        assert_int_equal(t->i_file, i);
        ASSERT_OK(qn_source_read(s, t, 0, &value, 4, &err));
        assert_true(value == (float)(i + 10));
    }
    assert_true(qn_source_file_bytes(s) > 3 * 64);
    qn_source_close(s);
}

static void any_part_opens_the_set(void **state) {
    put_set(state);
    check_set(in_folder(state, "m-00001-of-00003.gguf").text);
    check_set(in_folder(state, "m-00002-of-00003.gguf").text);
    check_set(in_folder(state, "m-00003-of-00003.gguf").text);
    check_set(*state); // the folder holds nothing else
}

static void parts_that_do_not_fit_are_named(void **state) {
    const path_name first = in_folder(state, "m-00001-of-00003.gguf");
    static const struct {
        const char *what, *name;
        part part;
        qn_status status;
        const char *message;
    } cases[] = {
        {"duplicate part",
         "m-00002-of-00003.gguf",
         {0, 3, 3, "x"},
         QN_FORMAT,
         "m-00002-of-00003.gguf: key split.no: 0, want 1"},
        {"parts in wrong order",
         "m-00002-of-00003.gguf",
         {2, 3, 3, "b"},
         QN_FORMAT,
         "m-00002-of-00003.gguf: key split.no: 2, want 1"},
        {"no number",
         "m-00002-of-00003.gguf",
         {-1, 3, 3, "b"},
         QN_FORMAT,
         "m-00002-of-00003.gguf: key split.no: missing, want 1"},
        {"another count",
         "m-00003-of-00003.gguf",
         {2, 4, 3, "a"},
         QN_FORMAT,
         "m-00003-of-00003.gguf: key split.count: 4, want 3"},
        {"another number of tensors",
         "m-00002-of-00003.gguf",
         {1, 3, 7, "b"},
         QN_FORMAT,
         "m-00002-of-00003.gguf: key split.tensors.count: 7, want 3"},
        {"tensor in two parts",
         "m-00002-of-00003.gguf",
         {1, 3, 3, "a"},
         QN_FORMAT,
         "tensor a: there are two"},
        {"too few tensors",
         "m-00002-of-00003.gguf",
         {1, 3, 3, NULL},
         QN_FORMAT,
         "split.tensors.count is 3, the 3 parts have 2"},
        {"the first lies",
         "m-00001-of-00003.gguf",
         {0, 2, 3, "c"},
         QN_FORMAT,
         "m-00001-of-00003.gguf: the name says 3 parts, key split.count says 2"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_set(state);
        put_part(state, cases[i].name, cases[i].part);
        expect_failure(cases[i].what, first.text, cases[i].status, cases[i].message);
    }
}

static void missing_and_empty_parts_are_named(void **state) {
    put_set(state);
    const path_name first = in_folder(state, "m-00001-of-00003.gguf");
    const path_name second = put_text(state, "m-00002-of-00003.gguf", "");
    expect_failure("empty part", first.text, QN_FORMAT, "m-00002-of-00003.gguf");
    put_text(state, "m-00002-of-00003.gguf", "something else");
    expect_failure("no GGUF", first.text, QN_FORMAT, "m-00002-of-00003.gguf: magic");
    remove(second.text);
    expect_failure("missing part", first.text, QN_IO, "m-00002-of-00003.gguf");
    expect_failure("missing part, by folder", *state, QN_IO, "m-00002-of-00003.gguf");
    put_part(state, "other.gguf", (part){0, 3, 3, "c"});
    expect_failure("no name of a part", in_folder(state, "other.gguf").text, QN_FORMAT,
                   "other.gguf: one of 3 parts");
    put_part(state, "many.gguf", (part){0, 65535, 3, "c"});
    expect_failure("65535 parts", in_folder(state, "many.gguf").text, QN_FORMAT, "65535 parts");
}

static void a_single_part_is_a_whole(void **state) {
    put_part(state, "one.gguf", (part){0, 1, 1, "a"});
    qn_source_close(open_well(in_folder(state, "one.gguf").text));
    put_part(state, "x-00001-of-00001.gguf", (part){0, 1, 1, "a"});
    qn_source_close(open_well(in_folder(state, "x-00001-of-00001.gguf").text));
    put_part(state, "renamed-00007-of-00009.gguf", (part){-1, -1, -1, "a"});
    qn_source_close(open_well(in_folder(state, "renamed-00007-of-00009.gguf").text));
}

static void names_of_parts_are_recognised(void **state) {
    (void)state;
    size_t base;
    int number, count;
    assert_true(qn_gguf_split_name("/x/m-00002-of-00010.gguf", &base, &number, &count));
    assert_int_equal(base, 4);
    assert_int_equal(number, 2);
    assert_int_equal(count, 10);
    static const char *const others[] = {
        "m.gguf",
        "-00002-of-00010.gguf",
        "m-00000-of-00010.gguf",
        "m-00001-of-00000.gguf",
        "m-0000a-of-00010.gguf",
        "m-00001-or-00010.gguf",
        "m-00001-of-00010.ggux",
        "",
    };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        assert_false(qn_gguf_split_name(others[i], &base, &number, &count));
}

// --- folders -------------------------------------------------------------------------------------

static void put_gguf(void *const *state, const char *name) {
    gguf_writer w = {0};
    gguf_add_tensor(&w, name, 0, 1, (int64_t[]){8}, floats, 32);
    gguf_write(&w, in_folder(state, name).text);
}

static void put_safetensors(void *const *state, const char *name, const char *tensor) {
    char bytes[256] = {0};
    const int n =
        snprintf(bytes + 8, sizeof bytes - 8,
                 "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}x", tensor);
    bytes[0] = (char)(n - 1);
    put_file(state, name, bytes, (size_t)n + 8);
}

static void a_folder_with_one_gguf_opens_it(void **state) {
    expect_failure("nothing in it", *state, QN_FORMAT, "no model in this folder");
    put_gguf(state, "a.gguf");
    put_text(state, "README.md", "hello");
    put_gguf(state, ".hidden.gguf");
    qn_source *s = open_well(*state);
    assert_string_equal(qn_source_format(s), "GGUF");
    assert_string_equal(qn_source_path(s), *state);
    assert_string_equal(qn_source_folder(s), *state);
    assert_non_null(qn_source_find_tensor(s, "a.gguf"));
    qn_source_close(s);
    put_gguf(state, "b.gguf");
    expect_failure("two", *state, QN_ARGUMENT,
                   "holds 2 .gguf files; give the path of one of them: a.gguf, b.gguf");
    for (char name[] = "c.gguf"; name[0] <= 'j'; name[0]++) put_gguf(state, name);
    expect_failure("ten", *state, QN_ARGUMENT, "g.gguf, h.gguf, ...");
    remove(in_folder(state, ".hidden.gguf").text);
}

static void a_checkpoint_needs_its_config(void **state) {
    put_safetensors(state, "model.safetensors", "a");
    expect_failure("no config", *state, QN_FORMAT, "no config.json");
    put_text(state, "config.json", "{\"model_type\": \"llama\"}");
    put_gguf(state, "beside.gguf");                        // ignored
    put_safetensors(state, "golden.safetensors", "other"); // not the model
    qn_source *s = open_well(*state);
    assert_string_equal(qn_source_format(s), "safetensors");
    assert_int_equal(qn_source_n_tensors(s), 1);
    assert_non_null(qn_source_find_tensor(s, "a"));
    assert_true(qn_str_is(qn_source_find_key(s, "model_type")->as.s, "llama"));
    qn_source_close(s);
    remove(in_folder(state, "model.safetensors").text);
    remove(in_folder(state, "golden.safetensors").text);
    s = open_well(*state); // now the GGUF is all there is
    assert_string_equal(qn_source_format(s), "GGUF");
    qn_source_close(s);
    remove(in_folder(state, "beside.gguf").text);
    expect_failure("no weights", *state, QN_FORMAT, "config.json but no");
}

static void files_of_any_name_are_merged(void **state) {
    put_text(state, "config.json", "{}");
    put_safetensors(state, "model-2.safetensors", "b");
    put_safetensors(state, "model-1.safetensors", "a");
    qn_source *s = open_well(*state);
    assert_int_equal(qn_source_n_tensors(s), 2);
    assert_string_equal(qn_source_tensor(s, 0)->name.data, "a"); // by name of the file
    qn_source_close(s);
    put_safetensors(state, "model-3.safetensors", "a");
    expect_failure("in two files", *state, QN_FORMAT, "model-3.safetensors");
}

static void the_index_says_where_tensors_are(void **state) {
    put_text(state, "config.json", "{\"hidden_size\": 8}");
    put_safetensors(state, "x-1.safetensors", "a");
    put_safetensors(state, "x-2.safetensors", "b");
    put_safetensors(state, "unrelated.safetensors", "a"); // not in the index: never opened
    const char *name = "model.safetensors.index.json";
    const path_name index =
        put_text(state, name,
                 " {\"metadata\": {\"total_size\": 2}, \"weight_map\":"
                 " {\"a\": \"x-1.safetensors\", \"b\": \"x\\u002d2.safetensors\"}}");
    const char *const paths[] = {*state, index.text};
    for (int i = 0; i < 2; i++) {
        qn_source *s = open_well(paths[i]);
        assert_int_equal(qn_source_n_tensors(s), 2);
        assert_int_equal(qn_source_find_tensor(s, "b")->i_file, 1);
        assert_int_equal(qn_source_find_key(s, "hidden_size")->as.i, 8);
        qn_err err = {0};
        char byte;
        ASSERT_OK(qn_source_read(s, qn_source_find_tensor(s, "b"), 0, &byte, 1, &err));
        assert_int_equal(byte, 'x');
        qn_source_close(s);
    }
    static const struct {
        const char *what, *text;
        qn_status status;
        const char *part;
    } cases[] = {
        {"wrong shard", "{\"weight_map\":{\"a\":\"x-1.safetensors\",\"b\":\"x-1.safetensors\"}}",
         QN_FORMAT, "tensor b: not in x-1.safetensors"},
        {"other shard", "{\"weight_map\":{\"a\":\"x-2.safetensors\",\"b\":\"x-1.safetensors\"}}",
         QN_FORMAT, "tensor a: not in x-2.safetensors, where the index has it, but in"},
        {"unknown tensor", "{\"weight_map\":{\"a\":\"x-1.safetensors\",\"c\":\"x-1.safetensors\"}}",
         QN_FORMAT, "tensor c: not in x-1.safetensors"},
        {"missing shard", "{\"weight_map\":{\"a\":\"x-9.safetensors\"}}", QN_IO, "x-9.safetensors"},
        {"two shards",
         "{\"weight_map\":{\"a\":\"x-1.safetensors\",\"z\":\"unrelated.safetensors\"}}", QN_FORMAT,
         "tensor a: there are two"},
        {"upwards", "{\"weight_map\":{\"a\":\"../x-1.safetensors\"}}", QN_FORMAT,
         "../x-1.safetensors: want the name of a file"},
        {"dots", "{\"weight_map\":{\"a\":\"..\"}}", QN_FORMAT, "..: want the name"},
        {"elsewhere", "{\"weight_map\":{\"a\":\"/etc/passwd\"}}", QN_FORMAT, "/etc/passwd: want"},
        {"escaped slash", "{\"weight_map\":{\"a\":\"..\\u002fx\"}}", QN_FORMAT, "../x: want"},
        {"no name", "{\"weight_map\":{\"a\":\"\"}}", QN_FORMAT, "want the name"},
        {"config as shard", "{\"weight_map\":{\"a\":\"config.json\"}}", QN_FORMAT, "config.json"},
        {"itself", "{\"weight_map\":{\"a\":\"model.safetensors.index.json\"}}", QN_FORMAT,
         "header"},
        {"no string", "{\"weight_map\":{\"a\":1}}", QN_FORMAT, "the file of a is not a string"},
        {"no object", "{\"weight_map\":[\"a\"]}", QN_FORMAT, "weight_map is not"},
        {"twice", "{\"weight_map\":{},\"weight_map\":{}}", QN_FORMAT, "weight_map is there twice"},
        {"no map", "{\"metadata\":{}}", QN_FORMAT, "without weight_map"},
        {"no JSON", "{\"weight_map\":{", QN_FORMAT, "not valid JSON"},
        {"more after it", "{\"weight_map\":{}} {}", QN_FORMAT, "nothing after the value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put_text(state, name, cases[i].text);
        expect_failure(cases[i].what, index.text, cases[i].status, cases[i].part);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(any_part_opens_the_set),
        FOLDER_TEST(parts_that_do_not_fit_are_named),
        FOLDER_TEST(missing_and_empty_parts_are_named),
        FOLDER_TEST(a_single_part_is_a_whole),
        FOLDER_TEST(names_of_parts_are_recognised),
        FOLDER_TEST(a_folder_with_one_gguf_opens_it),
        FOLDER_TEST(a_checkpoint_needs_its_config),
        FOLDER_TEST(files_of_any_name_are_merged),
        FOLDER_TEST(the_index_says_where_tensors_are),
    };
    return cmocka_run_group_tests_name("formats: sets and folders", tests, NULL, NULL);
}

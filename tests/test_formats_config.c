// config.json as keys, and the JSON reader below it.
#include "format_files.h"

#include "core/json.h"

#include <locale.h>
#include <math.h>

static qn_source *flatten(const char *text, qn_status *status, qn_err *err) {
    qn_source *source = calloc(1, sizeof *source);
    assert_non_null(source);
    qn_store_allow(&source->store, (int64_t)strlen(text));
    *status = qn_config_flatten(source, text, strlen(text), "config.json", err);
    return source;
}

static qn_source *flatten_well(const char *text) {
    qn_err err = {0};
    qn_status status;
    qn_source *source = flatten(text, &status, &err);
    if (status) fail_msg("%s", err.message);
    return source;
}

static const qn_key *key_of(const qn_source *source, const char *name) {
    const qn_key *key = qn_source_find_key(source, name);
    if (!key) fail_msg("no key %s", name);
    return key;
}

static void nested_objects_become_dotted_names(void **state) {
    (void)state;
    qn_source *s = flatten_well("{\"z\": 1, \"a\": {\"b\": {\"c\": true}, \"d\": \"t\\u00e9xt\"}, "
                                "\"n\": null, \"r\": -2.5e-1,"
                                " \"e\": {}}");
    assert_int_equal(qn_source_n_keys(s), 4);
    assert_string_equal(qn_source_key(s, 0)->name.data, "z"); // order of the text
    assert_string_equal(qn_source_key(s, 1)->name.data, "a.b.c");
    assert_int_equal(key_of(s, "z")->as.i, 1);
    assert_true(key_of(s, "a.b.c")->as.b);
    assert_true(qn_str_is(key_of(s, "a.d")->as.s, "t\xc3\xa9xt"));
    assert_true(key_of(s, "r")->as.f == -0.25);
    assert_string_equal(key_of(s, "z")->type_name, "JSON integer");
    assert_null(qn_source_find_key(s, "n"));
    qn_source_close(s);
}

static void arrays_of_one_kind_are_kept(void **state) {
    (void)state;
    qn_source *s = flatten_well(
        "{\"i\": [1, -2, 9007199254740993], \"f\": [1, 2.5, 3], \"b\": [true, false],"
        " \"s\": [\"full\", \"\\n\"], \"none\": [], \"mixed\": [1, \"a\"], \"null\": [1, null],"
        " \"objects\": [{\"a\": 1}], \"arrays\": [[1], [2]], \"after\": 5}");
    const qn_key *key = key_of(s, "i");
    assert_true(qn_key_is_array_of(key, QN_KEY_INT));
    assert_int_equal(key->n, 3);
    assert_int_equal(qn_key_int_at(key, 1), -2);
    assert_true(qn_key_int_at(key, 2) == 9007199254740993);
    key = key_of(s, "f");
    assert_true(qn_key_is_array_of(key, QN_KEY_FLOAT));
    assert_true(qn_key_float_at(key, 0) == 1 && qn_key_float_at(key, 1) == 2.5);
    key = key_of(s, "b");
    assert_true(qn_key_is_array_of(key, QN_KEY_BOOL));
    assert_true(qn_key_bool_at(key, 0) && !qn_key_bool_at(key, 1));
    key = key_of(s, "s");
    assert_true(qn_str_is(qn_key_string_at(key, 0), "full"));
    assert_true(qn_str_is(qn_key_string_at(key, 1), "\n"));
    assert_int_equal(key_of(s, "none")->n, 0);
    assert_null(qn_source_find_key(s, "mixed"));
    assert_null(qn_source_find_key(s, "null"));
    assert_null(qn_source_find_key(s, "objects"));
    assert_null(qn_source_find_key(s, "arrays"));
    assert_int_equal(key_of(s, "after")->as.i, 5);
    assert_int_equal(qn_source_n_keys(s), 6);
    qn_source_close(s);
}

static void numbers_keep_their_value(void **state) {
    (void)state;
    setlocale(LC_ALL, "de_DE.UTF-8"); // a comma for the point, where that locale is installed
    qn_source *s = flatten_well(
        "{\"max\": 9223372036854775807, \"min\": -9223372036854775808, \"over\":"
        " 9223372036854775808, \"under\": -9223372036854775809, \"huge\": 1e999, \"zero\": -0,"
        " \"tenth\": 0.1, \"inf\": Infinity, \"ninf\": -Infinity, \"nan\": NaN, \"exp\": 1E+2}");
    assert_true(key_of(s, "max")->as.i == INT64_MAX);
    assert_true(key_of(s, "min")->as.i == INT64_MIN);
    assert_int_equal(key_of(s, "over")->kind, QN_KEY_FLOAT);
    assert_true(key_of(s, "over")->as.f == 9223372036854775808.0);
    assert_int_equal(key_of(s, "under")->kind, QN_KEY_FLOAT);
    assert_true(isinf(key_of(s, "huge")->as.f));
    assert_int_equal(key_of(s, "zero")->as.i, 0);
    assert_true(key_of(s, "tenth")->as.f == 0.1);
    assert_true(isinf(key_of(s, "inf")->as.f) && key_of(s, "ninf")->as.f < 0);
    assert_true(isnan(key_of(s, "nan")->as.f));
    assert_true(key_of(s, "exp")->as.f == 100.0);
    qn_key_info info = QN_INIT(qn_key_info);
    qn_err err = {0};
    ASSERT_OK(qn_source_key_info(&info, s, 6, 4, &err));
    assert_string_equal(info.value, "0.1");
    qn_free(info.value);
    setlocale(LC_ALL, "C");
    qn_source_close(s);
}

static void configs_of_transformers_4_and_5_are_read(void **state) {
    (void)state;
    qn_source *s = flatten_well(
        "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"head_dim\": null,"
        " \"rope_theta\": 500000.0, \"rope_scaling\": {\"factor\": 32.0, \"rope_type\": "
        "\"llama3\"},"
        " \"eos_token_id\": [128001, 128008], \"torch_dtype\": \"bfloat16\"}");
    assert_true(key_of(s, "rope_theta")->as.f == 500000.0);
    assert_true(key_of(s, "rope_scaling.factor")->as.f == 32.0);
    assert_true(qn_str_is(key_of(s, "rope_scaling.rope_type")->as.s, "llama3"));
    assert_int_equal(qn_key_int_at(key_of(s, "eos_token_id"), 1), 128008);
    qn_source_close(s);
    s = flatten_well(
        "{\"model_type\": \"gemma3\", \"text_config\": {\"layer_types\": [\"sliding_attention\","
        " \"full_attention\"], \"rope_parameters\": {\"full_attention\": {\"rope_theta\": "
        "1000000.0},"
        " \"sliding_attention\": {\"rope_theta\": 10000}}}, \"dtype\": \"float32\"}");
    assert_true(
        qn_str_is(qn_key_string_at(key_of(s, "text_config.layer_types"), 1), "full_attention"));
    assert_true(key_of(s, "text_config.rope_parameters.full_attention.rope_theta")->as.f == 1e6);
    assert_int_equal(key_of(s, "text_config.rope_parameters.sliding_attention.rope_theta")->as.i,
                     10000);
    qn_source_close(s);
}

static void what_is_no_config_is_refused(void **state) {
    (void)state;
    char deep[200] = "", wide[3000], number[600];
    for (int i = 0; i < 20; i++) strcat(deep, "{\"a\":");
    memset(wide, 'k', sizeof wide);
    memcpy(wide, "{\"", 2);
    strcpy(wide + 1500, "\":1}");
    memset(number, '1', sizeof number);
    memcpy(number, "{\"a\":", 5);
    strcpy(number + 500, "}");
    const struct {
        const char *text;
        qn_status status;
        const char *part;
    } cases[] = {
        {"", QN_FORMAT, "the text ends"},
        {"[]", QN_FORMAT, "not a JSON object"},
        {"null", QN_FORMAT, "not a JSON object"},
        {"{", QN_FORMAT, "the text ends"},
        {"{}x", QN_FORMAT, "nothing after the value"},
        {"{\"a\"}", QN_FORMAT, "want a colon"},
        {"{\"a\":}", QN_FORMAT, "want a value"},
        {"{\"a\":1,}", QN_FORMAT, "want a name"},
        {"{a:1}", QN_FORMAT, "want a name"},
        {"{\"a\":1 \"b\":2}", QN_FORMAT, "comma"},
        {"{\"a\":[1,]}", QN_FORMAT, "want a value"},
        {"{\"a\":[1 2]}", QN_FORMAT, "comma"},
        {"{\"a\":[1}", QN_FORMAT, "comma"},
        {"{\"a\":01}", QN_FORMAT, "begins with 0"},
        {"{\"a\":-}", QN_FORMAT, "want a digit"},
        {"{\"a\":1.}", QN_FORMAT, "point"},
        {"{\"a\":.5}", QN_FORMAT, "want a value"},
        {"{\"a\":+1}", QN_FORMAT, "want a value"},
        {"{\"a\":1e}", QN_FORMAT, "exponent"},
        {"{\"a\":0x10}", QN_FORMAT, "comma"},
        {"{\"a\":tru}", QN_FORMAT, "want a value"},
        {"{\"a\":truex}", QN_FORMAT, "comma"},
        {"{\"a\":\"\\x\"}", QN_FORMAT, "escape"},
        {"{\"a\":\"\\u12\"}", QN_FORMAT, "escape"},
        {"{\"a\":\"\\ud800x\"}", QN_FORMAT, "escape"},
        {"{\"a\":\"\\udc00\"}", QN_FORMAT, "escape"},
        {"{\"a\":\"\\u0000\"}", QN_FORMAT, "NUL"},
        {"{\"a\":\"\n\"}", QN_FORMAT, "control"},
        {"{\"a\":\"\xc3\"}", QN_FORMAT, "UTF-8"},
        {"{\"a\":\"", QN_FORMAT, "without end"},
        {"{\"a\":1,\"b\":2,\"a\":3}", QN_FORMAT, "key a: there are two"},
        {"{\"a.b\":1,\"a\":{\"b\":2}}", QN_FORMAT, "key a.b: there are two"},
        {deep, QN_LIMIT, "nested more than 16 deep"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1", QN_LIMIT, "nested more than 32"},
        {wide, QN_LIMIT, "a key name of 1498 bytes"},
        {number, QN_FORMAT, "a number of more than 400"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        qn_err err = {0};
        qn_status status;
        qn_source *s = flatten(cases[i].text, &status, &err);
        if (status != cases[i].status || !strstr(err.message, cases[i].part))
            fail_msg("%s: %s (%s), want %s (%s)", cases[i].text, qn_status_name(status),
                     err.message, qn_status_name(cases[i].status), cases[i].part);
        assert_int_equal(qn_source_n_keys(s), 0);
        qn_source_close(s);
    }
}

// Long names above many short ones: the names alone would be a thousand times the text.
static void flattening_cannot_blow_up(void **state) {
    (void)state;
    gguf_bytes b = {0};
    char prefix[1001];
    memset(prefix, 'p', sizeof prefix - 1);
    prefix[1000] = 0;
    char text[1100];
    gguf_put(&b, text, (size_t)snprintf(text, sizeof text, "{\"%s\":{", prefix));
    for (int i = 0; i < 20000; i++)
        gguf_put(&b, text, (size_t)snprintf(text, sizeof text, "%s\"%d\":1", i ? "," : "", i));
    gguf_put(&b, "}}", 3);
    qn_err err = {0};
    qn_status status;
    qn_source *s = flatten((const char *)b.data, &status, &err);
    assert_int_equal(status, QN_LIMIT);
    assert_non_null(strstr(err.message, "the limit is"));
    qn_source_close(s);
    b.size = 0;
    gguf_put(&b, "{\"a\":[1", 7);
    for (int i = 0; i < 1000000; i++) gguf_put(&b, ",1", 2);
    gguf_put(&b, "]}", 3);
    s = flatten((const char *)b.data, &status, &err); // 8 bytes for 2 of text: just the 4 x
    assert_int_equal(status, QN_OK);
    assert_int_equal(key_of(s, "a")->n, 1000001);
    check_budget(s, b.size - 1);
    qn_source_close(s);
    free(b.data);
}

static void a_config_of_the_wrong_size_or_kind_is_refused(void **state) {
    const char header[] = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    gguf_bytes b = {0};
    gguf_put_text(&b, header, strlen(header)); // a u64 length and the text, as in GGUF
    gguf_put(&b, "x", 1);
    put_file(state, "model.safetensors", b.data, b.size);
    free(b.data);
    const path_name config = put_text(state, "config.json", "{}");
    qn_source_close(open_well(*state));
    assert_int_equal(truncate(config.text, 17 << 20), 0);
    expect_failure("17 MiB", *state, QN_LIMIT,
                   "config.json: 17825792 bytes, the limit is 16777216");
    put_text(state, "config.json", "[1]");
    expect_failure("array", *state, QN_FORMAT, "config.json: not a JSON object");
    put_text(state, "config.json", "");
    expect_failure("empty", *state, QN_FORMAT, "config.json: not valid JSON");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nested_objects_become_dotted_names),
        cmocka_unit_test(arrays_of_one_kind_are_kept),
        cmocka_unit_test(numbers_keep_their_value),
        cmocka_unit_test(configs_of_transformers_4_and_5_are_read),
        cmocka_unit_test(what_is_no_config_is_refused),
        cmocka_unit_test(flattening_cannot_blow_up),
        FOLDER_TEST(a_config_of_the_wrong_size_or_kind_is_refused),
    };
    return cmocka_run_group_tests_name("formats: config.json", tests, NULL, NULL);
}

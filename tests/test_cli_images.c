// Images on the command line: quern run --image, quern logits --image.
#include "cli_run.h"
#include "golden.h"

#include "core/mem.h"

#define MODEL MINI "/qwen35_vl"
#define GGUF  MODEL "/qwen35_vl-bf16.gguf"
#define TOWER MODEL "/mmproj-bf16.gguf"
#define PNG   MODEL "/image.png"

// As the templates of Qwen's vision models write parts.
static const char parts_template[] =
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' %}<|vision_start|><|image_pad|>"
    "<|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

// A black PNG of 900 x 3 pixels.
static const unsigned char wide_png[] = {
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48,
    0x44, 0x52, 0x00, 0x00, 0x03, 0x84, 0x00, 0x00, 0x00, 0x03, 0x01, 0x00, 0x00, 0x00,
    0x00, 0xe3, 0x68, 0xfc, 0x6b, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x44, 0x41, 0x54, 0x78,
    0xda, 0x63, 0x60, 0x18, 0x05, 0xd4, 0x07, 0x00, 0x01, 0x56, 0x00, 0x01, 0xb6, 0xa1,
    0x34, 0xc5, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82};

static const char reference_ids[] = "10,11,12,502,500,500,500,500,500,500,500,500,500,500,500,500,"
                                    "500,500,500,503,20,21,22,23,24";

static void test_logits_with_an_image_are_the_references(void **state) {
    (void)state;
    qn_err err;
    int64_t n, n_got;
    char file[CLI_MOST_PATH];
    snprintf(file, sizeof file, "%s", cli_path("logits.safetensors"));
    cli_result r = CLI_RUN("logits", GGUF, "--mmproj", TOWER, "--image", PNG, "--ids",
                           reference_ids, "--all", "-o", file);
    cli_assert_done(&r);
    cli_free(&r);
    golden want = golden_open(MODEL, "golden.safetensors");
    golden got = {0};
    ASSERT_OK(qn_source_open(&got.source, file, &err));
    float *a = golden_floats(&want, "logits", &n), *b = golden_floats(&got, "logits", &n_got);
    assert_int_equal(n, n_got);
    assert_true(relative_error(b, a, n) <= 1e-4);
    qn_free(a);
    qn_free(b);
    golden_close(&want);
    golden_close(&got);
}

// A text has one token for an image, and gives the same.
static void test_a_text_has_one_token_for_an_image(void **state) {
    (void)state;
    cli_result text = CLI_RUN("logits", MODEL, "--image", PNG, "-p",
                              "<|vision_start|><|image_pad|><|vision_end|>");
    cli_assert_done(&text);
    cli_result ids = CLI_RUN("logits", MODEL, "--image", PNG, "--ids",
                             "502,500,500,500,500,500,500,500,500,500,500,500,500,500,500,500,503");
    cli_assert_done(&ids);
    assert_string_equal(text.out, ids.out);
    cli_free(&text);
    cli_free(&ids);
}

static void test_run_answers_about_images(void **state) {
    (void)state;
    char template[CLI_MOST_PATH];
    snprintf(template, sizeof template, "%s", cli_path("parts.jinja"));
    cli_save(template, parts_template, sizeof parts_template - 1);
    cli_result one = CLI_RUN("run", GGUF, "-mm", TOWER, "--image", PNG, "--template", template,
                             "-n", "12", "--greedy", "--json", "-p", "Hi");
    cli_assert_done(&one);
    cli_result naive = CLI_RUN("run", GGUF, "-mm", TOWER, "--image", PNG, "--template", template,
                               "-n", "12", "--greedy", "--naive", "-p", "Hi");
    cli_result plain = CLI_RUN("run", GGUF, "-mm", TOWER, "--image", PNG, "--template", template,
                               "-n", "12", "--greedy", "-p", "Hi");
    cli_assert_done(&naive);
    cli_assert_done(&plain);
    assert_string_equal(naive.out, plain.out);
    // Three rows fewer with fewer pixels.
    cli_result small = CLI_RUN("run", GGUF, "-mm", TOWER, "--image", PNG, "--template", template,
                               "-n", "1", "--json", "-p", "Hi", "--image-pixels", "15359");
    cli_assert_done(&small);
    const char *all = strstr(one.out, "\"prompt_tokens\": "),
               *fewer = strstr(small.out, "\"prompt_tokens\": ");
    assert_non_null(all);
    assert_non_null(fewer);
    assert_int_equal(atoi(all + 17) - atoi(fewer + 17), 3);
    cli_free(&one);
    cli_free(&naive);
    cli_free(&plain);
    cli_free(&small);
}

static void test_what_does_not_fit_is_said(void **state) {
    (void)state;
    char wide[CLI_MOST_PATH];
    snprintf(wide, sizeof wide, "%s", cli_path("wide.png"));
    cli_save(wide, wide_png, sizeof wide_png);
    cli_result runs[] = {
        CLI_RUN("run", GGUF, "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", MINI "/qwen35", "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", DRAFT, "--mmproj", TOWER, "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", DRAFT, "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", MINI "/llama32", "--mmproj", TOWER, "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", MODELS "/quern-hybrid-Q8_0.gguf", "--mmproj", TOWER, "-p", "Hi"),
        CLI_RUN("run", GGUF, "--mmproj", "no.gguf", "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", GGUF, "--mmproj", GGUF, "--image", PNG, "-p", "Hi"),
        CLI_RUN("run", TOWER, "-p", "Hi"),
        CLI_RUN("run", GGUF, "--mmproj", TOWER, "--image", "/no.png", "-p", "Hi"),
        CLI_RUN("run", GGUF, "--mmproj", TOWER, "--image", TOWER, "-p", "Hi"),
        CLI_RUN("run", GGUF, "--mmproj", TOWER, "--image", PNG, "--raw", "-p", "Hi"),
        CLI_RUN("logits", GGUF, "--mmproj", TOWER, "--image", PNG, "-p", "Hi"),
        CLI_RUN("logits", GGUF, "--mmproj", TOWER, "--image", PNG, "--ids", "1,500,500"),
        CLI_RUN("logits", GGUF, "--mmproj", TOWER, "--image", PNG, "--image", wide, "--ids", "1"),
        CLI_RUN("run", GGUF, "--mmproj", TOWER, "--image", PNG, "--image", wide, "-p", "Hi"),
    };
    const struct {
        int code;
        const char *part;
    } want[] = {
        {1, "qwen35_vl-bf16.gguf has no vision tower: images need its mmproj file (--mmproj FILE)"},
        {1, "mini/qwen35 has no vision tower: images need its mmproj file (--mmproj FILE)"},
        {1, "quern-draft-Q8_0.gguf: models of the architecture qwen3 do not read images"},
        {1, "quern-draft-Q8_0.gguf: models of the architecture qwen3 do not read images"},
        {1, "mini/llama32: models of the architecture llama do not read images"},
        {1, "quern: --mmproj: " TOWER " is the tower of another model: its rows have width 64"},
        {1, "quern: --mmproj: no.gguf: cannot open"},
        {1, "is not a vision tower"},
        {1, "mmproj-bf16.gguf is not a model but a vision tower: give it with --mmproj FILE"},
        {1, "--image: /no.png"},
        {1, "--image: "},
        {1, "the prompt has 0 image tokens (<|image_pad|>, id 500) for 1 image, want one for each"},
        {1, "the prompt has 0 image tokens (<|image_pad|>, id 500) for 1 image, want one for each"},
        {1, "image 0: 2 image tokens (id 500) side by side in the prompt, it has 3 x 5 = 15 rows"},
        {1, "wide.png: an image of 900 x 3 pixels, the longer side may have at most 200 times"},
        {1, "wide.png: an image of 900 x 3 pixels, the longer side may have at most 200 times"},
    };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        cli_assert_fails(&runs[i], want[i].code, want[i].part);
        cli_free(&runs[i]);
    }
    // A template that knows nothing of images: a note comes first.
    cli_result r = CLI_RUN("run", GGUF, "--mmproj", TOWER, "--image", PNG, "-p", "Hi");
    assert_int_equal(r.code, 1);
    assert_non_null(strstr(r.err, "the chat template does not support images: it wrote no image "
                                  "token (<|image_pad|>, id 500) for 1 image; --template FILE"));
    assert_null(strstr(r.err, "/image none")); // is for chats
    cli_free(&r);
}

// Saved conversations keep the text of messages; a note says once that pictures are gone.
static void test_sessions_with_images_go_on_without_them(void **state) {
    (void)state;
    static const char note[] = "quern: note: pictures are not kept in saved conversations";
    char template[CLI_MOST_PATH], file[CLI_MOST_PATH];
    snprintf(template, sizeof template, "%s", cli_path("parts.jinja"));
    snprintf(file, sizeof file, "%s", cli_path("talk.json"));
    cli_save(template, parts_template, sizeof parts_template - 1);
    // Text, an image in a later run, text again; the state of the session has the image.
    for (int i = 0; i < 3; i++) {
        const char *args[] = {"run",
                              MODEL,
                              "--template",
                              template,
                              "-n",
                              "4",
                              "-p",
                              "Look",
                              "--session",
                              file,
                              "--session-state",
                              i == 1 ? "--image" : NULL,
                              PNG,
                              NULL};
        cli_result r = cli_run_with(&(cli_input){0}, args);
        if (r.code != 0) fail_msg("run %d: exit code %d, stderr '%s'", i, r.code, r.err);
        const char *told = strstr(r.err, note);
        assert_true((told != NULL) == (i == 1));
        if (told) assert_null(strstr(told + 1, note));
        cli_free(&r);
    }
    char *text = cli_load(file, NULL);
    json_t *root = cli_json(text);
    const json_t *messages = json_object_get(root, "messages");
    assert_int_equal(json_array_size(messages), 6);
    for (size_t i = 0; i < 6; i += 2)
        assert_string_equal(
            json_string_value(json_object_get(json_array_get(messages, i), "content")), "Look");
    // A list of parts, as an earlier version wrote it.
    json_t *parts = json_pack("[{s:s}, {s:s, s:s}, {s:s, s:s}]", "type", "image", "type", "text",
                              "text", "Lo", "type", "text", "text", "ok");
    json_object_set_new(json_array_get(messages, 2), "content", parts);
    assert_int_equal(json_dump_file(root, file, JSON_COMPACT), 0);
    cli_result r =
        CLI_RUN("run", MODEL, "--template", template, "-n", "4", "-p", "More", "--session", file);
    assert_int_equal(r.code, 0);
    assert_non_null(strstr(r.err, "the pictures of this conversation were not kept"));
    cli_free(&r);
    json_decref(root);
    free(text);
    text = cli_load(file, NULL);
    root = cli_json(text);
    messages = json_object_get(root, "messages");
    assert_int_equal(json_array_size(messages), 8);
    assert_string_equal(json_string_value(json_object_get(json_array_get(messages, 2), "content")),
                        "Look");
    json_decref(root);
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_logits_with_an_image_are_the_references),
        cmocka_unit_test(test_a_text_has_one_token_for_an_image),
        cmocka_unit_test(test_run_answers_about_images),
        cmocka_unit_test(test_what_does_not_fit_is_said),
        cmocka_unit_test(test_sessions_with_images_go_on_without_them),
    };
    return cmocka_run_group_tests(tests, cli_setup, cli_teardown);
}

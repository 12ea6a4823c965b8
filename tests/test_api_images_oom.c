// Memory that runs out while a message with an image is added: the conversation is what it was, and
// goes on.
#include "alloc_rig.h"
#include "testing.h"

#include "api/chat_images.h"
#include "core/mem.h"
#include "vision/image.h"

#include <jansson.h>

static const char parts_template[] =
    "{%- for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for p in m.content %}{% if p.type == 'image' or 'image' in p or 'image_url' in p "
    "%}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}{% endfor %}"
    "{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% endif %}";

enum { TEXTS = 24 }; // so that the list of messages grows by the message with the image

// Adds texts, then the image by an allocation that fails, then the image; true: none failed.
static bool add_image(size_t n_texts, long n, const qn_image *image) {
    qn_err err;
    qn_chat *chat = NULL;
    qn_template *template = NULL;
    qn_tokenizer *tokenizer = NULL;
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    const qn_message text = QN_INIT(qn_message, .role = "user", .text = "a", .text_size = 1),
                     picture = QN_INIT(qn_message, .role = "user", .images = &image, .n_images = 1);
    ASSERT_OK(qn_chat_create(&chat, &err));
    for (size_t i = 0; i < n_texts; i++) ASSERT_OK(qn_chat_add(chat, &text, &err));
    atomic_store(&countdown, n);
    const qn_status status = qn_chat_add(chat, &picture, &err);
    const bool is_done = atomic_load(&countdown) >= 0;
    atomic_store(&countdown, -1);
    assert_int_equal(status, is_done ? QN_OK : QN_MEMORY);
    assert_int_equal(qn_chat_n_messages(chat), n_texts + is_done);
    if (!is_done) ASSERT_OK(qn_chat_add(chat, &picture, &err));
    assert_int_equal(atomic_load(&image->holders), 2);
    ASSERT_OK(qn_template_create(&template, parts_template, sizeof parts_template - 1, &err));
    ASSERT_OK(qn_tokenizer_open(&tokenizer, TEST_DATA "/mini/qwen35_vl", &err));
    ASSERT_OK(qn_chat_make_prompt(&prompt, chat, template, tokenizer, NULL, &err));
    assert_int_equal(prompt.n_images, 1);
    qn_chat_prompt_deinit(&prompt);
    qn_template_destroy(template);
    qn_tokenizer_close(tokenizer);
    qn_chat_destroy(chat);
    return is_done;
}

static void a_message_that_was_not_added_leaves_no_image(void **state) {
    (void)state;
    for (size_t n_texts = 0; n_texts < TEXTS; n_texts++) {
        qn_image image = {.width = 1, .height = 1};
        atomic_init(&image.holders, 1);
        long n = 0;
        while (!add_image(n_texts, n, &image)) n++;
        assert_true(n > 5);
        assert_int_equal(atomic_load(&image.holders), 1);
    }
}

int main(void) {
    json_set_alloc_funcs(json_alloc, free); // `free` is the wrapped one here
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_message_that_was_not_added_leaves_no_image),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

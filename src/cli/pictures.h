// Images that were named on the command line or in a chat.
#ifndef QN_CLI_PICTURES_H
#define QN_CLI_PICTURES_H

#include "cli/open_model.h"

// Zeroed is empty.
typedef struct qn_pictures {
    qn_image **items; // (n) owned
    char **paths;     // (n) owned; as they were named
    size_t n, cap, cap_paths;
} qn_pictures;

// clang-format off
// The field `images` of the options is a qn_texts.
#define QN_OPTIONS_IMAGES(options)                                                                 \
    {.name = "--image", .arg = "FILE",                                                             \
     .help = "image (PNG, JPEG or WebP) for a model with a vision tower; may be repeated",         \
     .kind = QN_OPTION_TEXTS, .offset = offsetof(options, images)},                                \
    QN_OPTIONS_MMPROJ(options)
#define QN_OPTIONS_MMPROJ(options)                                                                 \
    {.name = "--mmproj", .alias = "-mm", .arg = "FILE",                                            \
     .help = "vision tower: a GGUF file or a checkpoint (default: that of the model's own "        \
             "checkpoint)",                                                                        \
     .kind = QN_OPTION_TEXT, .offset = offsetof(options, engine.mmproj)},                          \
    {.name = "--image-pixels", .arg = "N",                                                         \
     .help = "maximum pixels of an image; larger ones are scaled down (default: the model's "      \
             "limit)",                                                                             \
     .kind = QN_OPTION_INT, .offset = offsetof(options, engine.image_pixels), .min = 1,            \
     .max = INT32_MAX}
// clang-format on

QN_MUST_CHECK qn_status qn_pictures_add(qn_pictures *to, const char *path, qn_err *err);
// All of a list of paths; errors name the option.
QN_MUST_CHECK qn_status qn_pictures_open(qn_pictures *to, const qn_texts *paths, qn_err *err);
// Whether the model can read them; *n_tokens (may be NULL): how many tokens they are.
QN_MUST_CHECK qn_status qn_pictures_check(int64_t *n_tokens, const qn_pictures *pictures,
                                          const qn_engine *engine, qn_err *err);
// Without the last one.
void qn_pictures_pop(qn_pictures *pictures);
void qn_pictures_clear(qn_pictures *pictures);
// As the library wants them.
const qn_image *const *qn_pictures_list(const qn_pictures *pictures);

#endif

// EXIF orientation: reading it, and turning a picture by it.
#include "core/mem.h"
#include "vision/image_files.h"

#include <string.h>

enum { TAG_ORIENTATION = 0x0112, TYPE_SHORT = 3, TYPE_LONG = 4, ENTRY = 12 };

// A TIFF block: "II" is little-endian, "MM" big-endian.
typedef struct tiff {
    const unsigned char *data;
    size_t size;
    bool is_little;
} tiff;

// An unsigned number of n bytes; 0 outside the block.
static uint32_t number(const tiff *t, size_t at, size_t n) {
    uint32_t value = 0;
    if (at > t->size || n > t->size - at) return 0;
    for (size_t i = 0; i < n; i++)
        value = value << 8 | t->data[t->is_little ? at + n - 1 - i : at + i];
    return value;
}

int qn_exif_orientation(const unsigned char *data, size_t size) {
    if (size >= 6 && memcmp(data, "Exif\0\0", 6) == 0) {
        data += 6;
        size -= 6;
    }
    if (size < 8 || (memcmp(data, "II", 2) != 0 && memcmp(data, "MM", 2) != 0)) return 1;
    const tiff t = {.data = data, .size = size, .is_little = data[0] == 'I'};
    if (number(&t, 2, 2) != 42) return 1;
    const size_t first = number(&t, 4, 4), n = number(&t, first, 2);
    for (size_t i = 0; i < n; i++) {
        const size_t at = first + 2 + i * ENTRY;
        if (at > size) break;
        if (number(&t, at, 2) != TAG_ORIENTATION) continue;
        const uint32_t type = number(&t, at + 2, 2);
        const uint32_t value = type == TYPE_SHORT  ? number(&t, at + 8, 2)
                               : type == TYPE_LONG ? number(&t, at + 8, 4)
                                                   : 1;
        return value >= 1 && value <= 8 ? (int)value : 1;
    }
    return 1;
}

// Where pixel (x, y) of the turned picture comes from: the axes are swapped first, then mirrored.
typedef struct turn {
    bool is_swapped, mirrors_x, mirrors_y; // of the picture as it was
} turn;

static const turn turns[9] = {
    [2] = {false, true, false}, [3] = {false, true, true}, [4] = {false, false, true},
    [5] = {true, false, false}, [6] = {true, false, true}, [7] = {true, true, true},
    [8] = {true, true, false},
};

qn_status qn_image_turn(qn_image *image, int orientation, qn_err *err) {
    if (orientation <= 1) return QN_OK;
    const turn t = turns[orientation];
    const int64_t w = image->width, h = image->height;
    qn_image to = {.width = t.is_swapped ? h : w, .height = t.is_swapped ? w : h};
    to.rgb = qn_alloc((size_t)(w * h), 3);
    if (!to.rgb) return QN_NOMEM(err, "pixels");
    for (int64_t y = 0; y < to.height; y++) {
        for (int64_t x = 0; x < to.width; x++) {
            const int64_t at_x = t.is_swapped ? y : x, at_y = t.is_swapped ? x : y;
            const int64_t from_x = t.mirrors_x ? w - 1 - at_x : at_x;
            const int64_t from_y = t.mirrors_y ? h - 1 - at_y : at_y;
            memcpy(to.rgb + (y * to.width + x) * 3, image->rgb + (from_y * w + from_x) * 3, 3);
        }
    }
    qn_image_deinit(image);
    *image = to;
    return QN_OK;
}

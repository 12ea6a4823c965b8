// Image files as pixels: every form of PNG, JPEG and WebP, and files that nobody should trust.
#include "image_rig.h"

#include "vision/image.h"

#include <math.h>

enum { W = 13, H = 7 }; // not whole blocks of anything

// A picture in which every pixel differs: red, green, blue, alpha.
static void paint(unsigned char *to, int channels) {
    for (int y = 0; y < H; y++) {
        for (int x = 0; x < W; x++) {
            unsigned char *p = to + (y * W + x) * channels;
            const unsigned char v[] = {(unsigned char)(x * 19), (unsigned char)(y * 36),
                                       (unsigned char)(x * y * 3), (unsigned char)(x % 3 * 127)};
            memcpy(p, v, (size_t)channels);
        }
    }
}

static qn_image decode(const bytes *file) {
    qn_err err;
    qn_image image;
    ASSERT_OK(qn_image_decode(&image, file->v, file->n, NULL, &err));
    return image;
}

static void assert_pixels(bytes *file, const unsigned char *want, int64_t width, int64_t height) {
    qn_image image = decode(file);
    assert_int_equal(image.width, width);
    assert_int_equal(image.height, height);
    assert_memory_equal(image.rgb, want, (size_t)(width * height * 3));
    qn_image_deinit(&image);
    bytes_free(file);
}

// --- PNG -----------------------------------------------------------------------------------------

static void test_colours_lose_their_alpha(void **state) {
    (void)state;
    unsigned char want[H * W * 3], rgba[H * W * 4];
    paint(want, 3);
    paint(rgba, 4);
    for (int interlace = 0; interlace < 2; interlace++) {
        png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, interlace, NULL, 0, NULL};
        bytes file = png_file(&form, want, W * 3);
        assert_pixels(&file, want, W, H);
        form.color = PNG_COLOR_TYPE_RGBA;
        file = png_file(&form, rgba, W * 4);
        assert_pixels(&file, want, W, H);
    }
    bytes file = webp_file(W, H, 3, want);
    assert_pixels(&file, want, W, H);
    file = webp_file(W, H, 4, rgba);
    assert_pixels(&file, want, W, H);
}

static void test_greys_become_colours(void **state) {
    (void)state;
    unsigned char want[H * W * 3], grey[H * W], pair[H * W * 2];
    for (int i = 0; i < H * W; i++) {
        grey[i] = pair[2 * i] = (unsigned char)(i * 2);
        pair[2 * i + 1] = (unsigned char)(i % 2 * 255);
        memset(want + i * 3, i * 2, 3);
    }
    png_form form = {W, H, 8, PNG_COLOR_TYPE_GRAY, 0, NULL, 0, NULL};
    bytes file = png_file(&form, grey, W);
    assert_pixels(&file, want, W, H);
    form.color = PNG_COLOR_TYPE_GRAY_ALPHA;
    file = png_file(&form, pair, W * 2);
    assert_pixels(&file, want, W, H);
}

static void test_few_bits_fill_the_range(void **state) {
    (void)state;
    const unsigned char rows[] = {0xb1, 0x80}; // 1011 0001, 1
    unsigned char want[9 * 3];
    for (int i = 0; i < 9; i++) memset(want + i * 3, rows[i / 8] >> (7 - i % 8) & 1 ? 255 : 0, 3);
    const png_form one = {9, 1, 1, PNG_COLOR_TYPE_GRAY, 0, NULL, 0, NULL};
    bytes file = png_file(&one, rows, 2);
    assert_pixels(&file, want, 9, 1);
    const png_form four = {2, 1, 4, PNG_COLOR_TYPE_GRAY, 0, NULL, 0, NULL};
    file = png_file(&four, rows, 1);
    assert_pixels(&file, (const unsigned char[]){187, 187, 187, 17, 17, 17}, 2, 1);
}

static void test_palettes_become_colours(void **state) {
    (void)state;
    const png_color palette[] = {{1, 2, 3}, {250, 251, 252}, {9, 99, 199}};
    const unsigned char alpha[] = {0, 128, 255}, rows[] = {0, 1, 2, 1};
    const unsigned char want[] = {1, 2, 3, 250, 251, 252, 9, 99, 199, 250, 251, 252};
    png_form form = {4, 1, 8, PNG_COLOR_TYPE_PALETTE, 0, palette, 3, NULL};
    bytes file = png_file(&form, rows, 4);
    assert_pixels(&file, want, 4, 1);
    form.alpha = alpha;
    file = png_file(&form, rows, 4);
    assert_pixels(&file, want, 4, 1);
    form.depth = 2;
    const unsigned char packed = 0 << 6 | 1 << 4 | 2 << 2 | 1;
    file = png_file(&form, &packed, 1);
    assert_pixels(&file, want, 4, 1);
}

static void test_16_bits_become_the_upper_8(void **state) {
    (void)state;
    const unsigned char rgb[] = {1, 255, 2, 0, 3, 127, 254, 200, 255, 255, 0, 255};
    const unsigned char grey[] = {7, 250, 200, 1};
    const png_form colours = {2, 1, 16, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes file = png_file(&colours, rgb, 12);
    assert_pixels(&file, (const unsigned char[]){1, 2, 3, 254, 255, 0}, 2, 1);
    const png_form greys = {2, 1, 16, PNG_COLOR_TYPE_GRAY, 0, NULL, 0, NULL};
    file = png_file(&greys, grey, 4);
    assert_pixels(&file, (const unsigned char[]){7, 7, 7, 200, 200, 200}, 2, 1);
}

// Frames of an animation are chunks that are passed over: the picture itself is the first.
static void test_animations_show_their_first_picture(void **state) {
    (void)state;
    unsigned char want[H * W * 3], canvas[16 * 16 * 3] = {0};
    paint(want, 3);
    const png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes file = png_file(&form, want, W * 3);
    png_add_chunk(&file, 33, "acTL", "\0\0\0\2\0\0\0\0", 8);
    assert_pixels(&file, want, W, H);

    bytes plain = webp_file(W, H, 3, want), body = {0};
    riff_chunk(&body, "ANIM", "\xff\xff\xff\xff\0\0", 6);
    webp_add_frame(&body, &plain, 2, 4, W, H);
    webp_add_frame(&body, &plain, 0, 0, W, H);
    file = webp_container(16, 16, WEBP_ANIMATION, &body);
    for (int y = 0; y < H; y++) memcpy(canvas + ((y + 4) * 16 + 2) * 3, want + y * W * 3, W * 3);
    assert_pixels(&file, canvas, 16, 16);
    bytes_free(&plain);
    bytes_free(&body);
}

// --- JPEG ----------------------------------------------------------------------------------------

// Smooth, so that little is lost.
static void paint_smooth(unsigned char *to, int channels) {
    for (int y = 0; y < 32; y++) {
        for (int x = 0; x < 48; x++) {
            for (int c = 0; c < channels; c++)
                to[(y * 48 + x) * channels + c] = (unsigned char)(40 + x * 2 + y + c * 20);
        }
    }
}

static double mean_error(const unsigned char *a, const unsigned char *b, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += abs(a[i] - b[i]);
    return sum / n;
}

static void test_jpeg_forms(void **state) {
    (void)state;
    static unsigned char from[48 * 32 * 4], want[48 * 32 * 3];
    for (int components = 1; components <= 4; components++) {
        if (components == 2) continue;
        paint_smooth(from, components);
        for (int i = 0; i < 48 * 32; i++) {
            const unsigned char *p = from + i * components;
            for (int c = 0; c < 3; c++) // inks are inverted: light of a colour, light of black
                want[i * 3 + c] = components == 1   ? p[0]
                                  : components == 3 ? p[c]
                                                    : (unsigned char)((p[c] * p[3] + 127) / 255);
        }
        for (int is_progressive = 0; is_progressive < 2; is_progressive++) {
            const jpeg_form form = {48, 32, components, is_progressive, NULL, 0};
            bytes file = jpeg_file(&form, from);
            qn_image image = decode(&file);
            assert_int_equal(image.width, 48);
            assert_int_equal(image.height, 32);
            assert_true(mean_error(image.rgb, want, 48 * 32 * 3) < 1);
            qn_image_deinit(&image);
            bytes_free(&file);
        }
    }
}

// --- orientation ---------------------------------------------------------------------------------

// a b c      turned as each orientation says
// d e f
static void test_orientation_is_applied(void **state) {
    (void)state;
    static const struct {
        int width;
        const char *want;
    } turned[] = {{3, "abcdef"}, {3, "abcdef"}, {3, "cbafed"}, {3, "fedcba"}, {3, "defabc"},
                  {2, "adbecf"}, {2, "daebfc"}, {2, "fcebda"}, {2, "cfbead"}, {3, "abcdef"}};
    unsigned char rgb[18], want[18], block[32];
    for (int i = 0; i < 6; i++) memset(rgb + i * 3, 'a' + i, 3);
    const png_form form = {3, 2, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    for (int orientation = 0; orientation < 10; orientation++) {
        for (int i = 0; i < 6; i++) memset(want + i * 3, turned[orientation].want[i], 3);
        const int width = turned[orientation].width;
        bytes png = png_file(&form, rgb, 9), plain = webp_file(3, 2, 3, rgb), body = {0};
        size_t n = exif_block(block, orientation, orientation % 2, false);
        png_add_chunk(&png, 33, "eXIf", block, (uint32_t)n);
        assert_pixels(&png, want, width, 6 / width);
        n = exif_block(block, orientation, true, orientation % 2);
        bytes_add(&body, plain.v + 12, plain.n - 12);
        riff_chunk(&body, "EXIF", block, n);
        bytes webp = webp_container(3, 2, WEBP_EXIF, &body);
        assert_pixels(&webp, want, width, 6 / width);
        bytes_free(&plain);
        bytes_free(&body);
    }
}

static void test_orientation_of_a_jpeg(void **state) {
    (void)state;
    static unsigned char from[48 * 32 * 3];
    unsigned char block[32];
    paint_smooth(from, 3);
    jpeg_form form = {48, 32, 3, false, NULL, 0};
    bytes file = jpeg_file(&form, from);
    qn_image straight = decode(&file);
    bytes_free(&file);
    form.exif = block;
    form.n_exif = (unsigned)exif_block(block, 6, false, true);
    file = jpeg_file(&form, from);
    qn_image turned = decode(&file);
    assert_int_equal(turned.width, 32);
    assert_int_equal(turned.height, 48);
    for (int64_t y = 0; y < 48; y++) { // a quarter to the right: rows from below become columns
        for (int64_t x = 0; x < 32; x++)
            assert_memory_equal(turned.rgb + (y * 32 + x) * 3,
                                straight.rgb + ((31 - x) * 48 + y) * 3, 3);
    }
    qn_image_deinit(&turned);
    qn_image_deinit(&straight);
    bytes_free(&file);
}

// An orientation is not worth an error: what cannot be read is 1.
static void test_broken_exif_turns_nothing(void **state) {
    (void)state;
    unsigned char rgb[18] = {1, 2, 3}, block[32];
    const png_form form = {3, 2, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    for (size_t at = 0; at < 26; at++) {
        for (int value = 0; value < 256; value += 51) {
            exif_block(block, 1, true, false);
            block[at] = (unsigned char)value;
            bytes file = png_file(&form, rgb, 9);
            png_add_chunk(&file, 33, "eXIf", block, (uint32_t)(26 - at % 3));
            qn_image image = decode(&file);
            assert_int_equal(image.width * image.height, 6);
            qn_image_deinit(&image);
            bytes_free(&file);
        }
    }
}

// --- limits and hostile files --------------------------------------------------------------------

static void test_limits_are_checked_before_decoding(void **state) {
    (void)state;
    unsigned char rgb[H * W * 3];
    qn_image image = {.width = -7};
    qn_err err;
    paint(rgb, 3);
    const png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes file = png_file(&form, rgb, W * 3);
    qn_image_limits limits = {.pixels = W * H - 1};
    ASSERT_FAILS(qn_image_decode(&image, file.v, file.n, &limits, &err), QN_LIMIT,
                 "PNG image: 13 x 7 pixels, max 90");
    limits = (qn_image_limits){.bytes = (int64_t)file.n - 1};
    ASSERT_FAILS(qn_image_decode(&image, file.v, file.n, &limits, &err), QN_LIMIT, "bytes, max");
    assert_int_equal(image.width, -7); // untouched
    limits = (qn_image_limits){.bytes = (int64_t)file.n, .pixels = W * H};
    ASSERT_OK(qn_image_decode(&image, file.v, file.n, &limits, &err));
    qn_image_deinit(&image);
    bytes_free(&file);
}

static void assert_refused(bytes *file, qn_status code, const char *part) {
    qn_image image = {.width = -7};
    qn_err err = {0};
    // A block of exactly this size, so that a sanitizer sees any byte read past its end.
    unsigned char *exact = malloc(file->n ? file->n : 1);
    assert_non_null(exact);
    if (file->n) memcpy(exact, file->v, file->n);
    ASSERT_FAILS(qn_image_decode(&image, exact, file->n, NULL, &err), code, part);
    assert_int_equal(image.width, -7);
    free(exact);
    bytes_free(file);
}

static bytes text_file(const char *text, size_t n) {
    bytes b = {0};
    bytes_add(&b, text, n);
    return b;
}

static void test_other_files_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *data;
        size_t n;
    } files[] = {{"", 0},
                 {"\x89", 1},
                 {"hello", 5},
                 {"GIF89a\1\0\1\0", 10},
                 {"BM\0\0", 4},
                 {"\xff\xd8", 2},
                 {"\x89PNG\r\n\x1a", 7},
                 {"<svg/>", 6},
                 {"RIFF", 4},
                 {"RIFF\4\0\0\0WAVE", 12}};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        bytes file = text_file(files[i].data, files[i].n);
        assert_refused(&file, QN_FORMAT, "not PNG, JPEG or WebP");
    }
}

static void test_hostile_png(void **state) {
    (void)state;
    static const struct {
        uint32_t width, height;
        int depth, color;
        qn_status code;
        const char *part;
    } headers[] = {
        {0, 0, 8, 2, QN_FORMAT, "PNG image"},
        {0, 5, 8, 2, QN_FORMAT, "PNG image"},
        {5, 0, 8, 2, QN_FORMAT, "PNG image"},
        {0x7fffffff, 0x7fffffff, 8, 2, QN_LIMIT, "pixels, a side may have 131072"},
        {1, 0x7fffffff, 8, 0, QN_LIMIT, "1 x 2147483647 pixels, a side may have 131072"},
        {1, 131073, 8, 0, QN_LIMIT, "1 x 131073 pixels, a side may have 131072"},
        {131072, 513, 8, 0, QN_LIMIT, "131072 x 513 pixels, max 67108864"},
        {0xffffffff, 1, 8, 0, QN_FORMAT, "PNG image"},
        {60000, 60000, 1, 0, QN_LIMIT, "60000 x 60000 pixels"},
        {8000, 8000, 8, 2, QN_FORMAT, "PNG image"}, // allowed, but the data is not there
        {8, 8, 3, 2, QN_FORMAT, "PNG image"},       // no such depth
        {8, 8, 8, 5, QN_FORMAT, "PNG image"},       // no such kind of colours
        {8, 8, 8, 3, QN_FORMAT, "PNG image"},       // a palette is missing
    };
    for (size_t i = 0; i < sizeof headers / sizeof headers[0]; i++) {
        bytes file =
            png_header(headers[i].width, headers[i].height, headers[i].depth, headers[i].color);
        assert_refused(&file, headers[i].code, headers[i].part);
    }
    bytes file = png_header(8, 8, 8, 2);
    file.v[20] ^= 1; // a wrong checksum
    assert_refused(&file, QN_FORMAT, "PNG image: ");
}

// Text that unpacks to gigabytes, and profiles that nobody can read: they are not even looked at.
static void test_png_extras_are_passed_over(void **state) {
    (void)state;
    unsigned char rgb[H * W * 3];
    paint(rgb, 3);
    const png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes file = png_file(&form, rgb, W * 3);
    png_add_chunk(&file, 33, "zTXt", "k\0\0\x78\x9c\xff\xff\xff\xff", 9);
    png_add_chunk(&file, 33, "iCCP", "k\0\0\x78\x9c\xff\xff", 7);
    png_add_chunk(&file, 33, "gAMA", "\0\0\0\1", 4);
    assert_pixels(&file, rgb, W, H);
}

// A file that ends anywhere before its end is refused, and so is a frame header without data.
static void assert_truncations(const bytes *whole, size_t needed) {
    for (size_t n = 12; n < needed; n++) {
        bytes file = text_file((const char *)whole->v, n);
        assert_refused(&file, QN_FORMAT, "image: ");
    }
}

static void test_truncated_files(void **state) {
    (void)state;
    unsigned char rgb[H * W * 3];
    static unsigned char smooth[48 * 32 * 3];
    paint(rgb, 3);
    paint_smooth(smooth, 3);
    const png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes png = png_file(&form, rgb, W * 3), webp = webp_file(W, H, 3, rgb);
    assert_truncations(&png, png.n - 12 - 8); // the checksums after the pixels are not needed
    assert_truncations(&webp, webp.n);
    for (int is_progressive = 0; is_progressive < 2; is_progressive++) {
        const jpeg_form jpeg = {48, 32, 3, is_progressive, NULL, 0};
        bytes file = jpeg_file(&jpeg, smooth);
        assert_truncations(&file, file.n - 2);
        bytes_free(&file);
    }
    bytes_free(&png);
    bytes_free(&webp);
}

// Where the sizes of a JPEG file are: after 0xff 0xc0, a length, and the bits.
static bytes patched_jpeg(size_t at, unsigned char a, unsigned char b) {
    static unsigned char smooth[48 * 32 * 3];
    paint_smooth(smooth, 3);
    const jpeg_form form = {48, 32, 3, false, NULL, 0};
    bytes file = jpeg_file(&form, smooth);
    const size_t frame = jpeg_find(&file, 0xc0, 0);
    file.v[frame + at] = a;
    if (at != 4 && at != 9) file.v[frame + at + 1] = b;
    return file;
}

static void test_hostile_jpeg(void **state) {
    (void)state;
    bytes file = patched_jpeg(5, 0, 0); // height 0: it would come after the pixels
    assert_refused(&file, QN_FORMAT, "JPEG image: ");
    file = patched_jpeg(7, 0, 0); // width 0
    assert_refused(&file, QN_FORMAT, "JPEG image: ");
    file = patched_jpeg(4, 12, 0); // 12 bits
    assert_refused(&file, QN_FORMAT, "precision 12");
    file = patched_jpeg(9, 2, 0); // 2 components, described as 3
    assert_refused(&file, QN_FORMAT, "JPEG image: ");
    file = patched_jpeg(5, 0xff, 0xff); // more than libjpeg allows
    assert_refused(&file, QN_FORMAT, "dimension is 65500");
    file = patched_jpeg(5, 0xf0, 0); // 48 x 61440: allowed, but the data is not there
    file.n -= 2;                     // nor an end marker, which would leave the rest grey
    assert_refused(&file, QN_FORMAT, "truncated");
    file = patched_jpeg(5, 0xff, 0xdc); // and 65500 columns
    const size_t frame = jpeg_find(&file, 0xc0, 0);
    file.v[frame + 7] = 0xff;
    file.v[frame + 8] = 0xdc;
    assert_refused(&file, QN_LIMIT, "65500 x 65500 pixels, max");

    unsigned char pairs[48 * 32 * 2] = {0};
    const jpeg_form two = {48, 32, 2, false, NULL, 0}; // colours that nobody knows
    file = jpeg_file(&two, pairs);
    assert_refused(&file, QN_FORMAT, "JPEG image: ");
}

// A scan of a progressive file again and again: each goes over all the picture.
static void test_jpeg_of_many_scans(void **state) {
    (void)state;
    static unsigned char smooth[48 * 32 * 3];
    paint_smooth(smooth, 3);
    const jpeg_form form = {48, 32, 3, true, NULL, 0};
    bytes file = jpeg_file(&form, smooth), scan = {0};
    size_t at = 0, last = 0;
    for (at = jpeg_find(&file, 0xda, 0); at + 2 < file.n; at++) {
        if (file.v[at] == 0xff && file.v[at + 1] == 0xda) last = at;
    }
    bytes_add(&scan, file.v + last, file.n - 2 - last);
    for (int i = 0; i < 200; i++) bytes_insert(&file, last, scan.v, scan.n);
    assert_refused(&file, QN_FORMAT, "JPEG image: too many scans");
    bytes_free(&scan);
}

// A large picture may have fewer of them: what counts is the pixels of all.
static void test_jpeg_of_many_scans_of_many_pixels(void **state) {
    (void)state;
    enum { SIDE = 4096, SCANS = 70 };
    unsigned char *grey = calloc(SIDE, SIDE);
    assert_non_null(grey);
    const jpeg_form form = {SIDE, SIDE, 1, true, NULL, 0};
    bytes file = jpeg_file(&form, grey), scan = {0};
    qn_image image;
    qn_err err;
    ASSERT_OK(qn_image_decode(&image, file.v, file.n, NULL, &err));
    qn_image_deinit(&image);
    size_t at = 0, last = 0;
    for (at = jpeg_find(&file, 0xda, 0); at + 2 < file.n; at++) {
        if (file.v[at] == 0xff && file.v[at + 1] == 0xda) last = at;
    }
    bytes_add(&scan, file.v + last, file.n - 2 - last);
    for (int i = 0; i < SCANS; i++) bytes_insert(&file, last, scan.v, scan.n);
    assert_refused(&file, QN_FORMAT, "JPEG image: too many scans");
    bytes_free(&scan);
    free(grey);
}

static void test_hostile_webp(void **state) {
    (void)state;
    unsigned char rgb[H * W * 3];
    paint(rgb, 3);
    bytes plain = webp_file(W, H, 3, rgb), body = {0};
    bytes file = webp_container(1 << 24, 1 << 8, 0, NULL);
    assert_refused(&file, QN_FORMAT, "WebP image: ");          // more pixels than the format allows
    file = webp_container(16000, 16000, WEBP_ANIMATION, NULL); // an animation without pictures
    assert_refused(&file, QN_FORMAT, "WebP image: ");
    riff_chunk(&body, "ANIM", "\xff\xff\xff\xff\0\0", 6);
    webp_add_frame(&body, &plain, 0, 0, W, H);
    file = webp_container(16000, 16000, WEBP_ANIMATION, &body);
    assert_refused(&file, QN_LIMIT, "16000 x 16000 pixels, max");
    file = webp_container(8, 4, WEBP_ANIMATION, &body); // a frame larger than its canvas
    assert_refused(&file, QN_FORMAT, "WebP image: ");
    bytes_free(&body);
    bytes_add(&body, plain.v + 12, plain.n - 12);
    file = webp_container(W + 1, H, 0, &body); // a picture that is not as large as its canvas
    assert_refused(&file, QN_FORMAT, "WebP image: ");
    for (size_t i = 12; i < plain.n; i++) { // any byte may be another one: no crash, some answer
        bytes_add(&file, plain.v, plain.n);
        file.v[i] ^= 0x55;
        qn_image image;
        if (qn_image_decode(&image, file.v, file.n, NULL, NULL) == QN_OK) qn_image_deinit(&image);
        bytes_free(&file);
    }
    bytes_free(&body);
    bytes_free(&plain);
}

static void test_files_are_named_in_errors(void **state) {
    (void)state;
    qn_err err;
    qn_image image;
    ASSERT_FAILS(qn_image_load(&image, "/no/such.png", NULL, &err), QN_IO, "/no/such.png");
    ASSERT_FAILS(qn_image_load(&image, TEST_DATA, NULL, &err), QN_FORMAT, TEST_DATA);
    ASSERT_FAILS(qn_image_load(&image, TEST_DATA "/mini/README.md", NULL, &err), QN_FORMAT,
                 "README.md: ");
    const qn_image_limits few = {.bytes = 100};
    ASSERT_FAILS(qn_image_load(&image, TEST_DATA "/mini/qwen35_vl/image.png", &few, &err), QN_LIMIT,
                 "image.png");
}

// Equal pictures have one hash, in whatever file; another picture or other sizes have another.
static void test_hash_is_of_what_is_seen(void **state) {
    (void)state;
    unsigned char rgb[H * W * 3];
    paint(rgb, 3);
    const png_form form = {W, H, 8, PNG_COLOR_TYPE_RGB, 0, NULL, 0, NULL};
    bytes png = png_file(&form, rgb, W * 3), webp = webp_file(W, H, 3, rgb);
    qn_image a = decode(&png), b = decode(&webp);
    assert_true(qn_image_hash(&a) == qn_image_hash(&b));
    b.rgb[5] ^= 1;
    assert_true(qn_image_hash(&a) != qn_image_hash(&b));
    b.rgb[5] ^= 1;
    b.width = H;
    b.height = W;
    assert_true(qn_image_hash(&a) != qn_image_hash(&b));
    qn_image_deinit(&a);
    qn_image_deinit(&b);
    bytes_free(&png);
    bytes_free(&webp);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_colours_lose_their_alpha),
        cmocka_unit_test(test_greys_become_colours),
        cmocka_unit_test(test_few_bits_fill_the_range),
        cmocka_unit_test(test_palettes_become_colours),
        cmocka_unit_test(test_16_bits_become_the_upper_8),
        cmocka_unit_test(test_animations_show_their_first_picture),
        cmocka_unit_test(test_jpeg_forms),
        cmocka_unit_test(test_orientation_is_applied),
        cmocka_unit_test(test_orientation_of_a_jpeg),
        cmocka_unit_test(test_broken_exif_turns_nothing),
        cmocka_unit_test(test_limits_are_checked_before_decoding),
        cmocka_unit_test(test_other_files_are_refused),
        cmocka_unit_test(test_hostile_png),
        cmocka_unit_test(test_png_extras_are_passed_over),
        cmocka_unit_test(test_truncated_files),
        cmocka_unit_test(test_hostile_jpeg),
        cmocka_unit_test(test_jpeg_of_many_scans),
        cmocka_unit_test(test_jpeg_of_many_scans_of_many_pixels),
        cmocka_unit_test(test_hostile_webp),
        cmocka_unit_test(test_files_are_named_in_errors),
        cmocka_unit_test(test_hash_is_of_what_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

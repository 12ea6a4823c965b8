// Image files made in memory: all forms of PNG, JPEG and WebP, whole and broken.
#ifndef QN_TESTS_IMAGE_RIG_H
#define QN_TESTS_IMAGE_RIG_H

#include "testing.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>
#include <webp/encode.h>

typedef struct bytes {
    unsigned char *v;
    size_t n, cap;
} bytes;

static inline void bytes_add(bytes *b, const void *data, size_t n) {
    assert_true(n < 1 << 30 && b->n < 1 << 30);
    if (b->n + n > b->cap) {
        b->cap = 2 * (b->n + n);
        b->v = realloc(b->v, b->cap);
        assert_non_null(b->v);
    }
    if (n) memcpy(b->v + b->n, data, n);
    b->n += n;
}

static inline void bytes_insert(bytes *b, size_t at, const void *data, size_t n) {
    bytes_add(b, data, n);
    memmove(b->v + at + n, b->v + at, b->n - n - at);
    memcpy(b->v + at, data, n);
}

static inline void bytes_free(bytes *b) {
    free(b->v);
    *b = (bytes){0};
}

static inline void put_be32(unsigned char *to, uint32_t value) {
    for (int i = 0; i < 4; i++) to[i] = (unsigned char)(value >> (24 - 8 * i));
}

static inline void put_le(unsigned char *to, uint64_t value, int n) {
    for (int i = 0; i < n; i++) to[i] = (unsigned char)(value >> 8 * i);
}

// --- PNG -----------------------------------------------------------------------------------------

static inline void png_put(png_structp png, png_bytep data, size_t n) {
    bytes_add(png_get_io_ptr(png), data, n);
}
static inline void png_flushed(png_structp png) { (void)png; }

typedef struct png_form {
    uint32_t width, height;
    int depth, color, interlace;
    const png_color *palette; // (n_palette)
    int n_palette;
    const unsigned char *alpha; // (n_palette) of a palette
} png_form;

// `data` holds rows as the form has them, end to end.
static inline bytes png_file(const png_form *form, const unsigned char *data, size_t row_bytes) {
    bytes b = {0};
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop info = png_create_info_struct(png);
    png_bytep rows[256];
    assert_true(form->height <= 256);
    if (setjmp(png_jmpbuf(png))) fail_msg("libpng cannot write this");
    png_set_write_fn(png, &b, png_put, png_flushed);
    png_set_IHDR(png, info, form->width, form->height, form->depth, form->color, form->interlace,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    if (form->palette) png_set_PLTE(png, info, form->palette, form->n_palette);
    if (form->alpha) png_set_tRNS(png, info, form->alpha, form->n_palette, NULL);
    png_write_info(png, info);
    for (uint32_t y = 0; y < form->height; y++)
        rows[y] = (png_bytep)(uintptr_t)(data + y * row_bytes);
    png_write_image(png, rows);
    png_write_end(png, info);
    png_destroy_write_struct(&png, &info);
    return b;
}

static inline uint32_t png_crc(const unsigned char *data, size_t n) {
    uint32_t crc = 0xffffffff;
    for (size_t i = 0; i < n; i++) {
        crc ^= data[i];
        for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320 : 0);
    }
    return ~crc;
}

// A chunk at an offset of the file; 33 is after IHDR.
static inline void png_add_chunk(bytes *b, size_t at, const char *name, const void *data,
                                 uint32_t n) {
    unsigned char *chunk = malloc(n + 12);
    assert_non_null(chunk);
    put_be32(chunk, n);
    memcpy(chunk + 4, name, 4);
    if (n) memcpy(chunk + 8, data, n);
    put_be32(chunk + 8 + n, png_crc(chunk + 4, n + 4));
    bytes_insert(b, at, chunk, n + 12);
    free(chunk);
}

// Signature, a header that says anything, some data that is not compressed, and the end.
static inline bytes png_header(uint32_t width, uint32_t height, int depth, int color) {
    bytes b = {0};
    unsigned char header[13] = {[8] = (unsigned char)depth, [9] = (unsigned char)color};
    put_be32(header, width);
    put_be32(header + 4, height);
    bytes_add(&b, "\x89PNG\r\n\x1a\n", 8);
    png_add_chunk(&b, b.n, "IHDR", header, sizeof header);
    png_add_chunk(&b, b.n, "IDAT", "\x78\x9c\x03\x00\x00\x00\x00\x01", 8); // zlib: nothing
    png_add_chunk(&b, b.n, "IEND", NULL, 0);
    return b;
}

// --- JPEG ----------------------------------------------------------------------------------------

typedef struct jpeg_form {
    uint32_t width, height;
    int components; // 1, 3 or 4
    bool is_progressive;
    const unsigned char *exif;
    unsigned n_exif;
} jpeg_form;

static inline bytes jpeg_file(const jpeg_form *form, const unsigned char *data) {
    static const J_COLOR_SPACE spaces[] = {
        [1] = JCS_GRAYSCALE, [2] = JCS_UNKNOWN, [3] = JCS_RGB, [4] = JCS_CMYK};
    struct jpeg_compress_struct jpeg;
    struct jpeg_error_mgr errors;
    unsigned char *to = NULL;
    unsigned long n = 0;
    bytes b = {0};
    jpeg.err = jpeg_std_error(&errors);
    jpeg_create_compress(&jpeg);
    jpeg_mem_dest(&jpeg, &to, &n);
    jpeg.image_width = form->width;
    jpeg.image_height = form->height;
    jpeg.input_components = form->components;
    jpeg.in_color_space = spaces[form->components];
    jpeg_set_defaults(&jpeg);
    jpeg_set_quality(&jpeg, 100, TRUE);
    if (form->is_progressive) jpeg_simple_progression(&jpeg);
    jpeg_start_compress(&jpeg, TRUE);
    if (form->exif) jpeg_write_marker(&jpeg, JPEG_APP0 + 1, form->exif, form->n_exif);
    while (jpeg.next_scanline < jpeg.image_height) {
        JSAMPROW row = (JSAMPROW)(uintptr_t)(data + (size_t)jpeg.next_scanline * form->width *
                                                        (size_t)form->components);
        jpeg_write_scanlines(&jpeg, &row, 1);
    }
    jpeg_finish_compress(&jpeg);
    bytes_add(&b, to, n);
    jpeg_destroy_compress(&jpeg);
    free(to);
    return b;
}

// Offset of the first marker 0xff `kind`, from `at` on.
static inline size_t jpeg_find(const bytes *b, unsigned char kind, size_t at) {
    for (; at + 1 < b->n; at++) {
        if (b->v[at] == 0xff && b->v[at + 1] == kind) return at;
    }
    fail_msg("no marker %02x", kind);
    return 0;
}

// --- WebP ----------------------------------------------------------------------------------------

// Lossless; channels 3 or 4, and colours under alpha 0 are kept.
static inline bytes webp_file(int width, int height, int channels, const unsigned char *data) {
    WebPConfig config;
    WebPPicture picture;
    WebPMemoryWriter writer;
    bytes b = {0};
    assert_true(WebPConfigInit(&config) && WebPPictureInit(&picture));
    WebPMemoryWriterInit(&writer);
    config.lossless = 1;
    config.exact = 1;
    picture.use_argb = 1;
    picture.width = width;
    picture.height = height;
    picture.writer = WebPMemoryWrite;
    picture.custom_ptr = &writer;
    assert_true(channels == 4 ? WebPPictureImportRGBA(&picture, data, width * 4)
                              : WebPPictureImportRGB(&picture, data, width * 3));
    assert_true(WebPEncode(&config, &picture));
    bytes_add(&b, writer.mem, writer.size);
    WebPMemoryWriterClear(&writer);
    WebPPictureFree(&picture);
    return b;
}

static inline void riff_chunk(bytes *b, const char *name, const void *data, size_t n) {
    unsigned char size[4];
    put_le(size, n, 4);
    bytes_add(b, name, 4);
    bytes_add(b, size, 4);
    bytes_add(b, data, n);
    if (n % 2) bytes_add(b, "", 1);
}

enum { WEBP_EXIF = 8, WEBP_ANIMATION = 2 };

// A container with chunks: `body` is what follows the header of a plain file, or NULL.
static inline bytes webp_container(uint32_t width, uint32_t height, int flags, const bytes *body) {
    bytes b = {0}, rest = {0};
    unsigned char header[10] = {(unsigned char)flags}, size[4];
    put_le(header + 4, width - 1, 3);
    put_le(header + 7, height - 1, 3);
    riff_chunk(&rest, "VP8X", header, sizeof header);
    if (body) bytes_add(&rest, body->v, body->n);
    put_le(size, rest.n + 4, 4);
    bytes_add(&b, "RIFF", 4);
    bytes_add(&b, size, 4);
    bytes_add(&b, "WEBP", 4);
    bytes_add(&b, rest.v, rest.n);
    bytes_free(&rest);
    return b;
}

// Chunk ANMF: a plain file as a frame at x, y (even).
static inline void webp_add_frame(bytes *body, const bytes *plain, uint32_t x, uint32_t y,
                                  uint32_t width, uint32_t height) {
    bytes frame = {0};
    unsigned char header[16] = {[12] = 100};
    put_le(header, x / 2, 3);
    put_le(header + 3, y / 2, 3);
    put_le(header + 6, width - 1, 3);
    put_le(header + 9, height - 1, 3);
    bytes_add(&frame, header, sizeof header);
    bytes_add(&frame, plain->v + 12, plain->n - 12);
    riff_chunk(body, "ANMF", frame.v, frame.n);
    bytes_free(&frame);
}

// --- EXIF ----------------------------------------------------------------------------------------

// A block with one entry, the orientation; with "Exif\0\0" in front of it 32 bytes, else 26.
static inline size_t exif_block(unsigned char to[32], int orientation, bool is_little,
                                bool has_name) {
    unsigned char *at = to;
    if (has_name) {
        memcpy(at, "Exif\0\0", 6);
        at += 6;
    }
    const unsigned char little[] = {
        'I', 'I', 42, 0, 8, 0, 0, 0, 1, 0, 0x12, 0x01, 3, 0, 1, 0, 0, 0, (unsigned char)orientation,
        0,   0,   0,  0, 0, 0, 0};
    const unsigned char big[] = {'M',  'M',  0, 42, 0, 0, 0, 8, 0, 1,
                                 0x01, 0x12, 0, 3,  0, 0, 0, 1, 0, (unsigned char)orientation,
                                 0,    0,    0, 0,  0, 0};
    memcpy(at, is_little ? little : big, sizeof big);
    return (size_t)(at - to) + sizeof big;
}

#endif

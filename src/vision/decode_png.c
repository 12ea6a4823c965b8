#include "core/mem.h"
#include "vision/image_files.h"

#include <png.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>

// Everything that outlives a jump out of libpng.
typedef struct png_job {
    png_structp png;
    png_infop info;
    const qn_image_file *file;
    size_t at;
    qn_image *image;
    png_bytep *rows; // (height)
    bool is_out_of_memory;
    char why[96];
} png_job;

static void on_error(png_structp png, png_const_charp message) {
    png_job *job = png_get_error_ptr(png);
    snprintf(job->why, sizeof job->why, "%s", message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) { (void)png, (void)message; }

static png_voidp take(png_structp png, png_alloc_size_t size) {
    void *memory = qn_alloc(size, 1);
    if (!memory) ((png_job *)png_get_mem_ptr(png))->is_out_of_memory = true;
    return memory;
}

static void release(png_structp png, png_voidp memory) {
    (void)png;
    qn_free(memory);
}

static void read_bytes(png_structp png, png_bytep to, size_t n) {
    png_job *job = png_get_io_ptr(png);
    if (n > job->file->size - job->at) png_error(png, "the file is truncated");
    memcpy(to, job->file->data + job->at, n);
    job->at += n;
}

static qn_status fail(const png_job *job, qn_err *err) {
    if (job->is_out_of_memory) return QN_NOMEM(err, "PNG image");
    return QN_FAIL(err, FORMAT, "%s", job->why);
}

// Whatever the file holds becomes 8 bits of red, green and blue; gamma and profiles are ignored.
static void want_rgb(png_structp png) {
    png_set_expand(png);
    png_set_strip_16(png);
    png_set_strip_alpha(png);
    png_set_gray_to_rgb(png);
    (void)png_set_interlace_handling(png);
}

// No reference takes pictures of more than 200 times as many pixels one way as the other, so that
// this is the longest side of any with 2^26 pixels. Rows cost time and memory by their number.
enum { MAX_SIDE = 1 << 17 };

static qn_status check_sides(int64_t width, int64_t height, qn_err *err) {
    if (width <= MAX_SIDE && height <= MAX_SIDE) return QN_OK;
    return QN_FAIL(err, LIMIT, "%lld x %lld pixels, a side may have %d", (long long)width,
                   (long long)height, MAX_SIDE);
}

static qn_status read_header(png_job *job, qn_err *err) {
    if (setjmp(png_jmpbuf(job->png))) return fail(job, err);
    png_set_read_fn(job->png, job, read_bytes);
    png_set_user_limits(job->png, 0x7fffffff, 0x7fffffff); // our own limit says more
    png_set_keep_unknown_chunks(job->png, PNG_HANDLE_CHUNK_NEVER, NULL, -1);
    png_read_info(job->png, job->info);
    const int64_t width = png_get_image_width(job->png, job->info),
                  height = png_get_image_height(job->png, job->info);
    QN_TRY(check_sides(width, height, err));
    QN_TRY(qn_image_init(job->image, width, height, job->file, err));
    want_rgb(job->png);
    png_read_update_info(job->png, job->info);
    if (png_get_rowbytes(job->png, job->info) != (size_t)job->image->width * 3)
        return QN_FAIL(err, UNSUPPORTED, "rows of %zu bytes for %lld pixels",
                       png_get_rowbytes(job->png, job->info), (long long)job->image->width);
    return QN_OK;
}

static qn_status read_rows(png_job *job, qn_err *err) {
    const qn_image *image = job->image;
    job->rows = qn_alloc((size_t)image->height, sizeof *job->rows);
    if (!job->rows) return QN_NOMEM(err, "PNG image");
    for (int64_t y = 0; y < image->height; y++) job->rows[y] = image->rgb + y * image->width * 3;
    if (setjmp(png_jmpbuf(job->png))) return fail(job, err);
    png_read_image(job->png, job->rows);
    return QN_OK;
}

// The orientation in chunk eXIf, wherever it is.
static int find_orientation(const qn_image_file *file) {
    size_t at = 8; // after the signature: length, name, data, checksum
    while (file->size - at >= 12) {
        const unsigned char *chunk = file->data + at;
        const size_t n =
            (size_t)chunk[0] << 24 | (size_t)chunk[1] << 16 | (size_t)chunk[2] << 8 | chunk[3];
        if (n > file->size - at - 12) break;
        if (memcmp(chunk + 4, "eXIf", 4) == 0) return qn_exif_orientation(chunk + 8, n);
        at += n + 12;
    }
    return 1;
}

qn_status qn_decode_png(qn_image *out, int *orientation, const qn_image_file *file, qn_err *err) {
    png_job job = {.file = file, .image = out};
    qn_status status = QN_OK;
    job.png = png_create_read_struct_2(PNG_LIBPNG_VER_STRING, &job, on_error, on_warning, &job,
                                       take, release);
    if (!job.png) return QN_NOMEM(err, "PNG image");
    job.info = png_create_info_struct(job.png);
    status = job.info ? read_header(&job, err) : QN_NOMEM(err, "PNG image");
    if (!status) status = read_rows(&job, err);
    if (!status) *orientation = find_orientation(file);
    png_destroy_read_struct(&job.png, job.info ? &job.info : NULL, NULL);
    qn_free(job.rows);
    return status;
}

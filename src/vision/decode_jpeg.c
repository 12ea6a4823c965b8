#include "core/mem.h"
#include "vision/image_files.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>

#include <jpeglib.h>
#include <jerror.h>

// A progressive file may go over the whole picture again and again, for a few bytes each time.
// Encoders need about 10 scans; the largest picture may have 16.
enum { MAX_SCANS = 100, MAX_SCANNED = 1 << 30 }; // of any picture; pixels of all scans
enum { APP1 = JPEG_APP0 + 1, CMYK = 4 };

// Everything that outlives a jump out of libjpeg; `errors`, `source` and `progress` come back to us
// by address.
typedef struct jpeg_job {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_error_mgr errors;
    struct jpeg_source_mgr source;
    struct jpeg_progress_mgr progress;
    jmp_buf jump;
    const char *why; // ours; NULL: libjpeg's own message
    const qn_image_file *file;
    qn_image *image;
    unsigned char *row; // (width, 4) of a CMYK file
} jpeg_job;

static jpeg_job *job_of(j_common_ptr jpeg) { return jpeg->client_data; }

static void on_error(j_common_ptr jpeg) { longjmp(job_of(jpeg)->jump, 1); }

static void on_message(j_common_ptr jpeg, int level) { (void)jpeg, (void)level; }
static void on_output(j_common_ptr jpeg) { (void)jpeg; }

static void stop(j_common_ptr jpeg, const char *why) {
    job_of(jpeg)->why = why;
    on_error(jpeg);
}

static void on_progress(j_common_ptr jpeg) {
    const struct jpeg_decompress_struct *own = (const struct jpeg_decompress_struct *)jpeg;
    const int64_t pixels = (int64_t)own->image_width * own->image_height;
    if (own->input_scan_number > MAX_SCANS || own->input_scan_number * pixels > MAX_SCANNED)
        stop(jpeg, "too many scans");
}

// The file is in memory as a whole: where libjpeg wants more, it is truncated.
static void source_begin(j_decompress_ptr jpeg) { (void)jpeg; }
static boolean source_fill(j_decompress_ptr jpeg) {
    stop((j_common_ptr)jpeg, "the file is truncated");
    return FALSE;
}
static void source_skip(j_decompress_ptr jpeg, long n) {
    if (n <= 0) return;
    if ((size_t)n > jpeg->src->bytes_in_buffer) stop((j_common_ptr)jpeg, "the file is truncated");
    jpeg->src->next_input_byte += n;
    jpeg->src->bytes_in_buffer -= (size_t)n;
}

static qn_status fail(jpeg_job *job, qn_err *err) {
    char text[JMSG_LENGTH_MAX];
    if (job->why) return QN_FAIL(err, FORMAT, "%s", job->why);
    if (job->errors.msg_code == JERR_OUT_OF_MEMORY) return QN_NOMEM(err, "JPEG image");
    job->errors.format_message((j_common_ptr)&job->jpeg, text);
    return QN_FAIL(err, FORMAT, "%s", text);
}

static void connect(jpeg_job *job) {
    job->jpeg.err = jpeg_std_error(&job->errors);
    job->errors.error_exit = on_error;
    job->errors.emit_message = on_message;
    job->errors.output_message = on_output;
    job->jpeg.client_data = job;
    job->source = (struct jpeg_source_mgr){.next_input_byte = job->file->data,
                                           .bytes_in_buffer = job->file->size,
                                           .init_source = source_begin,
                                           .fill_input_buffer = source_fill,
                                           .skip_input_data = source_skip,
                                           .resync_to_restart = jpeg_resync_to_restart,
                                           .term_source = source_begin};
    job->progress.progress_monitor = on_progress;
}

static qn_status read_header(jpeg_job *job, qn_err *err) {
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    if (setjmp(job->jump)) return fail(job, err);
    jpeg_create_decompress(jpeg); // keeps err and client_data
    jpeg->src = &job->source;
    jpeg->progress = &job->progress;
    jpeg_save_markers(jpeg, APP1, 0xffff);
    (void)jpeg_read_header(jpeg, TRUE);
    const bool is_cmyk = jpeg->num_components == CMYK;
    jpeg->out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
    QN_TRY(qn_image_init(job->image, jpeg->image_width, jpeg->image_height, job->file, err));
    if (!is_cmyk) return QN_OK;
    job->row = qn_alloc(jpeg->image_width, CMYK);
    return job->row ? QN_OK : QN_NOMEM(err, "JPEG image");
}

// a b / 255, rounded.
static int part_of(int a, int b) {
    const int n = a * b + 128;
    return (n + (n >> 8)) >> 8;
}

// Files hold the inks inverted, by Adobe's convention: c is 255 - cyan.
static void mix_inks(unsigned char *to, const unsigned char *from, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const int light = from[i * CMYK + 3];
        for (int c = 0; c < 3; c++)
            to[i * 3 + c] = (unsigned char)(light - part_of(255 - from[i * CMYK + c], light));
    }
}

static qn_status read_rows(jpeg_job *job, qn_err *err) {
    struct jpeg_decompress_struct *jpeg = &job->jpeg;
    if (setjmp(job->jump)) return fail(job, err);
    (void)jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        unsigned char *to = job->image->rgb + jpeg->output_scanline * job->image->width * 3;
        JSAMPROW row = job->row ? job->row : to;
        (void)jpeg_read_scanlines(jpeg, &row, 1);
        if (job->row) mix_inks(to, job->row, job->image->width);
    }
    return QN_OK;
}

static int find_orientation(const struct jpeg_decompress_struct *jpeg) {
    for (jpeg_saved_marker_ptr m = jpeg->marker_list; m; m = m->next) {
        if (m->marker == APP1 && m->data_length >= 6 && memcmp(m->data, "Exif\0\0", 6) == 0)
            return qn_exif_orientation(m->data, m->data_length);
    }
    return 1;
}

qn_status qn_decode_jpeg(qn_image *out, int *orientation, const qn_image_file *file, qn_err *err) {
    jpeg_job *job = qn_alloc(1, sizeof *job);
    if (!job) return QN_NOMEM(err, "JPEG image");
    job->file = file;
    job->image = out;
    connect(job);
    qn_status status = read_header(job, err);
    if (!status) status = read_rows(job, err);
    if (!status) *orientation = find_orientation(&job->jpeg);
    jpeg_destroy_decompress(&job->jpeg);
    qn_free(job->row);
    qn_free(job);
    return status;
}

#include "core/mem.h"
#include "vision/image_files.h"

#include <webp/decode.h>
#include <webp/demux.h>

static int find_orientation(const WebPDemuxer *demuxer) {
    WebPChunkIterator chunk;
    int orientation = 1;
    if (WebPDemuxGetChunk(demuxer, "EXIF", 1, &chunk))
        orientation = qn_exif_orientation(chunk.chunk.bytes, chunk.chunk.size);
    WebPDemuxReleaseChunkIterator(&chunk);
    return orientation;
}

// A frame onto the canvas, which is black where the frame is not.
static qn_status draw(const qn_image *to, const WebPIterator *frame, qn_err *err) {
    WebPBitstreamFeatures features;
    const uint8_t *data = frame->fragment.bytes;
    const size_t size = frame->fragment.size;
    const int64_t stride = to->width * 3;
    const int64_t first = frame->y_offset * stride + (int64_t)frame->x_offset * 3;
    if (!frame->complete || WebPGetFeatures(data, size, &features) != VP8_STATUS_OK)
        return QN_FAIL(err, FORMAT, "the file is truncated");
    if (frame->x_offset < 0 || frame->y_offset < 0 ||
        frame->x_offset + (int64_t)features.width > to->width ||
        frame->y_offset + (int64_t)features.height > to->height || stride > INT32_MAX)
        return QN_FAIL(err, FORMAT, "a frame of %d x %d pixels at %d, %d of %lld x %lld",
                       features.width, features.height, frame->x_offset, frame->y_offset,
                       (long long)to->width, (long long)to->height);
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config)) return QN_FAIL(err, UNSUPPORTED, "another libwebp");
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA = (WebPRGBABuffer){.rgba = to->rgb + first,
                                            .stride = (int)stride,
                                            .size = (size_t)(to->height * stride - first)};
    const VP8StatusCode status = WebPDecode(data, size, &config);
    WebPFreeDecBuffer(&config.output);
    if (status == VP8_STATUS_OUT_OF_MEMORY) return QN_NOMEM(err, "WebP image");
    if (status != VP8_STATUS_OK)
        return QN_FAIL(err, FORMAT, "the file is damaged (libwebp's status %d)", (int)status);
    return QN_OK;
}

static qn_status decode(qn_image *out, const WebPDemuxer *demuxer, const qn_image_file *file,
                        qn_err *err) {
    WebPIterator frame;
    QN_TRY(qn_image_init(out, WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_WIDTH),
                         WebPDemuxGetI(demuxer, WEBP_FF_CANVAS_HEIGHT), file, err));
    qn_status status = QN_OK;
    if (WebPDemuxGetFrame(demuxer, 1, &frame))
        status = draw(out, &frame, err);
    else
        status = QN_FAIL(err, FORMAT, "no picture in the file");
    WebPDemuxReleaseIterator(&frame);
    return status;
}

qn_status qn_decode_webp(qn_image *out, int *orientation, const qn_image_file *file, qn_err *err) {
    WebPBitstreamFeatures features;
    const WebPData data = {.bytes = file->data, .size = file->size};
    // The header alone, before anything is taken from the file.
    const VP8StatusCode seen = WebPGetFeatures(file->data, file->size, &features);
    if (seen != VP8_STATUS_OK)
        return QN_FAIL(err, FORMAT, "the file is damaged (libwebp's status %d)", (int)seen);
    WebPDemuxer *demuxer = WebPDemux(&data);
    if (!demuxer) // libwebp does not tell these apart; it takes a few hundred bytes here
        return QN_FAIL(err, FORMAT, "the file is truncated or damaged (or memory ran out)");
    const qn_status status = decode(out, demuxer, file, err);
    if (!status) *orientation = find_orientation(demuxer);
    WebPDemuxDelete(demuxer);
    return status;
}

// Bicubic resampling of pictures, to the last bit as torchvision does it for 8-bit pixels.
#ifndef QN_VISION_RESIZE_H
#define QN_VISION_RESIZE_H

#include "vision/image.h"

// The picture with other sizes, at least 1 each. Shrinking widens the filter, so that every pixel
// counts (antialiasing).
QN_MUST_CHECK qn_status qn_image_resize(qn_image *out, const qn_image *image, int64_t width,
                                        int64_t height, qn_err *err);

#endif

// First along rows, then along columns, with 8 bits in between. A pixel is
//
//   (sum of w_i * x_i + 2^(p-1)) >> p, held within 0 ... 255
//
// where w_i is the cubic filter (a = -1/2) at the distance from the pixel's centre, in units of the
// new pixels where the picture shrinks, divided by the sum of all, times 2^p and rounded. p is as
// large as it can be with the largest weight of the pass in 16 bits.
#include "vision/resize.h"

#include "core/mem.h"

#include <math.h>
#include <string.h>

enum { CHANNELS = 3, MAX_PRECISION = 22, SUPPORT = 2 };

// What each new pixel of a line is made of.
typedef struct taps {
    int64_t n, most;  // new pixels; most old ones that one is made of
    int64_t *first;   // (n) first old pixel
    int64_t *count;   // (n)
    double *shares;   // (n, most) weights that sum up to 1
    int32_t *weights; // (n, most) the same times 2^precision
    int precision;
} taps;

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
    if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
    return 0;
}

static void taps_deinit(taps *t) {
    qn_free(t->first);
    qn_free(t->count);
    qn_free(t->shares);
    qn_free(t->weights);
}

static void weigh(taps *t, int64_t i, int64_t size, double scale) {
    const double wide = scale > 1 ? scale : 1, reach = SUPPORT * wide;
    const double centre = ((double)i + 0.5) * scale;
    const int64_t first = qn_max((int64_t)(centre - reach + 0.5), 0);
    const int64_t end = qn_min((int64_t)(centre + reach + 0.5), size);
    double sum = 0, *share = t->shares + i * t->most;
    for (int64_t k = 0; k < end - first; k++)
        sum += share[k] = cubic(((double)(k + first) - centre + 0.5) * (1.0 / wide));
    for (int64_t k = 0; k < end - first && sum != 0; k++) share[k] /= sum;
    t->first[i] = first;
    t->count[i] = end - first;
}

// Shares as whole numbers.
static void round_weights(taps *t) {
    double max = 0;
    for (int64_t i = 0; i < t->n * t->most; i++) max = fmax(max, t->shares[i]);
    while (t->precision < MAX_PRECISION && 0.5 + max * (2 << t->precision) < 1 << 15)
        t->precision++;
    for (int64_t i = 0; i < t->n * t->most; i++) {
        const double w = t->shares[i] * (1 << t->precision);
        t->weights[i] = (int32_t)(w < 0 ? w - 0.5 : w + 0.5);
    }
}

static qn_status taps_init(taps *t, int64_t size, int64_t n, qn_err *err) {
    const double scale = (double)size / (double)n;
    *t = (taps){.n = n, .most = (int64_t)ceil(SUPPORT * (scale > 1 ? scale : 1)) * 2 + 1};
    size_t all = 0;
    if (!qn_size_mul(&all, (size_t)n, (size_t)t->most))
        return QN_FAIL(err, LIMIT, "%lld pixels made of %lld", (long long)n, (long long)size);
    t->first = qn_alloc((size_t)n, sizeof *t->first);
    t->count = qn_alloc((size_t)n, sizeof *t->count);
    t->shares = qn_alloc(all, sizeof *t->shares);
    t->weights = qn_alloc(all, sizeof *t->weights);
    if (!t->first || !t->count || !t->shares || !t->weights)
        return QN_NOMEM(err, "weights of a resized image");
    for (int64_t i = 0; i < n; i++) weigh(t, i, size, scale);
    round_weights(t);
    return QN_OK;
}

static unsigned char clip(int32_t sum, int precision) {
    const int32_t value = sum >> precision;
    return (unsigned char)(value < 0 ? 0 : value > 255 ? 255 : value);
}

// One line of new pixels from one of old ones; neighbours are `step` bytes apart.
static void filter_line(unsigned char *to, const unsigned char *from, int64_t step, const taps *t) {
    for (int64_t i = 0; i < t->n; i++) {
        const unsigned char *x = from + t->first[i] * step;
        const int32_t *w = t->weights + i * t->most;
        int32_t sum[CHANNELS];
        for (int c = 0; c < CHANNELS; c++) sum[c] = 1 << t->precision >> 1;
        for (int64_t k = 0; k < t->count[i]; k++, x += step) {
            for (int c = 0; c < CHANNELS; c++) sum[c] += x[c] * w[k];
        }
        for (int c = 0; c < CHANNELS; c++) to[i * step + c] = clip(sum[c], t->precision);
    }
}

// Lines side by side, `apart` bytes from each other in both pictures: all rows or all columns.
typedef struct pass {
    int64_t size, n; // old and new pixels of a line
    int64_t lines;
    bool is_down; // lines are columns
} pass;

static qn_status resample(qn_image *image, const pass *p, qn_err *err) {
    const int64_t width = p->is_down ? p->lines : p->n, height = p->is_down ? p->n : p->lines;
    qn_image to = {.width = width, .height = height};
    taps t = {0};
    int64_t n;
    if (p->size == p->n) return QN_OK;
    if (!qn_i64_mul(&n, width, height))
        return QN_FAIL(err, LIMIT, "%lld x %lld pixels", (long long)width, (long long)height);
    qn_status status = taps_init(&t, p->size, p->n, err);
    if (!status) to.rgb = qn_alloc((size_t)n, CHANNELS);
    if (!status && !to.rgb) status = QN_NOMEM(err, "a resized image");
    const int64_t step = p->is_down ? width * CHANNELS : CHANNELS;
    for (int64_t i = 0; !status && i < p->lines; i++)
        filter_line(to.rgb + i * (p->is_down ? CHANNELS : width * CHANNELS),
                    image->rgb + i * (p->is_down ? CHANNELS : image->width * CHANNELS), step, &t);
    taps_deinit(&t);
    if (status) return status;
    qn_image_deinit(image);
    *image = to;
    return QN_OK;
}

qn_status qn_image_resize(qn_image *out, const qn_image *image, int64_t width, int64_t height,
                          qn_err *err) {
    const size_t bytes = (size_t)(image->width * image->height * CHANNELS);
    if (width < 1 || height < 1)
        return QN_FAIL(err, ARGUMENT, "%lld x %lld pixels are wanted", (long long)width,
                       (long long)height);
    qn_image work = {.width = image->width, .height = image->height, .rgb = qn_alloc(bytes, 1)};
    if (!work.rgb) return QN_NOMEM(err, "a resized image");
    memcpy(work.rgb, image->rgb, bytes);
    const pass across = {.size = work.width, .n = width, .lines = work.height};
    const pass down = {.size = work.height, .n = height, .lines = width, .is_down = true};
    qn_status status = resample(&work, &across, err);
    if (!status) status = resample(&work, &down, err);
    if (status)
        qn_image_deinit(&work);
    else
        *out = work;
    return status;
}

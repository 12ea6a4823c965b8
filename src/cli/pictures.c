#include "cli/pictures.h"

#include "core/mem.h"

qn_status qn_pictures_add(qn_pictures *to, const char *path, qn_err *err) {
    void *items = to->items;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof(qn_image *))) return QN_NOMEM(err, "images");
    to->items = items;
    QN_TRY(qn_image_open(&to->items[to->n], path, NULL, err));
    to->n++;
    return QN_OK;
}

qn_status qn_pictures_open(qn_pictures *to, const qn_texts *paths, qn_err *err) {
    for (size_t i = 0; i < paths->n; i++) {
        const qn_status status = qn_pictures_add(to, paths->items[i], err);
        if (status) return qn_err_prefix(err, status, "--image");
    }
    return QN_OK;
}

qn_status qn_pictures_check(int64_t *n_tokens, const qn_pictures *pictures, const qn_engine *engine,
                            qn_err *err) {
    int64_t sum = 0;
    for (size_t i = 0; i < pictures->n; i++) {
        int64_t rows, columns;
        QN_TRY(qn_engine_measure_image(&rows, &columns, engine, pictures->items[i], err));
        sum += rows * columns;
    }
    if (n_tokens) *n_tokens = sum;
    return QN_OK;
}

void qn_pictures_clear(qn_pictures *pictures) {
    for (size_t i = 0; i < pictures->n; i++) qn_image_destroy(pictures->items[i]);
    qn_free(pictures->items);
    *pictures = (qn_pictures){0};
}

const qn_image *const *qn_pictures_list(const qn_pictures *pictures) {
    return (const qn_image *const *)pictures->items;
}

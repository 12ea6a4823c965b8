#include "cli/pictures.h"

#include "core/mem.h"

#include <string.h>

qn_status qn_pictures_add(qn_pictures *to, const char *path, qn_err *err) {
    void *items = to->items, *paths = to->paths;
    if (!qn_grow(&items, &to->cap, to->n + 1, sizeof(qn_image *))) return QN_NOMEM(err, "images");
    to->items = items;
    if (!qn_grow(&paths, &to->cap_paths, to->n + 1, sizeof(char *))) return QN_NOMEM(err, "images");
    to->paths = paths;
    char *name = strdup(path);
    if (!name) return QN_NOMEM(err, "images");
    const qn_status status = qn_image_open(&to->items[to->n], path, NULL, err);
    if (status)
        qn_free(name);
    else
        to->paths[to->n++] = name;
    return status;
}

void qn_pictures_pop(qn_pictures *pictures) {
    pictures->n--;
    qn_image_destroy(pictures->items[pictures->n]);
    qn_free(pictures->paths[pictures->n]);
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
        const qn_status status =
            qn_engine_measure_image(&rows, &columns, engine, pictures->items[i], err);
        if (status == QN_LIMIT) qn_err_prefix(err, status, "%s", pictures->paths[i]);
        if (status) return status;
        sum += rows * columns;
    }
    if (n_tokens) *n_tokens = sum;
    return QN_OK;
}

void qn_pictures_clear(qn_pictures *pictures) {
    while (pictures->n > 0) qn_pictures_pop(pictures);
    qn_free(pictures->items);
    qn_free(pictures->paths);
    *pictures = (qn_pictures){0};
}

const qn_image *const *qn_pictures_list(const qn_pictures *pictures) {
    return (const qn_image *const *)pictures->items;
}

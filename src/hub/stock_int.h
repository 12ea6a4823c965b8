// Parts of reading the stock.
#ifndef QN_HUB_STOCK_INT_H
#define QN_HUB_STOCK_INT_H

#include "hub/stock.h"

enum {
    QN_STOCK_MOST = 5000,     // models, and names in a folder
    QN_STOCK_FOLDERS = 20000, // of all programs
    QN_STOCK_DEPTH = 5        // of folders in a folder of models
};

// Names in a folder, without hidden ones, sorted; none if it cannot be read, or too many were.
typedef struct qn_names {
    char **items;
    size_t n, cap;
} qn_names;
QN_MUST_CHECK qn_status qn_names_read(qn_names *out, qn_stock *stock, const char *folder,
                                      qn_err *err);
void qn_names_deinit(qn_names *names);

// A folder with models of one origin, and the folders in it.
typedef struct qn_stock_folder {
    qn_keeper keeper;
    const char *path;
    const char *repo; // what they are called by; NULL: their place below `path` says it
    const char
        *root; // real path of the folder that no link may leave; NULL: links may lead anywhere
} qn_stock_folder;
QN_MUST_CHECK qn_status qn_stock_walk(qn_stock *stock, const qn_stock_folder *folder, qn_err *err);

// Takes what the members point to.
QN_MUST_CHECK qn_status qn_stock_add(qn_stock *stock, qn_stocked *model, qn_err *err);
void qn_stocked_deinit(qn_stocked *model);
// Whether it is a regular file, and inside `root` with all links followed (NULL: anywhere).
bool qn_stock_is_inside(const char *path, const char *root, int64_t *bytes, int64_t *modified);

QN_MUST_CHECK qn_status qn_stock_add_hf(qn_stock *stock, const char *folder, qn_err *err);
QN_MUST_CHECK qn_status qn_stock_add_llama(qn_stock *stock, const char *folder, qn_err *err);
QN_MUST_CHECK qn_status qn_stock_add_ollama(qn_stock *stock, const char *folder, qn_err *err);

#endif

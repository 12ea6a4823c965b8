// Models that are on the disk, by name: our own, and those in the caches of other programs, which
// are only read.
//
//   OWNER/REPO:TYPE   of a repository of the hub, or :FILE where the name of the file has no type,
//                     or one that others have, too; OWNER/REPO is a checkpoint
//   HOST/NAME         from another address
//   NAME              a file or a checkpoint that somebody put into our folder
//   NAME:TAG          of Ollama
#ifndef QN_HUB_STOCK_H
#define QN_HUB_STOCK_H

#include "hub/places.h"

// Who keeps it. What several keep is named once, in this order.
typedef enum qn_keeper {
    QN_KEEPER_OWN,
    QN_KEEPER_HF,
    QN_KEEPER_LLAMA,
    QN_KEEPER_OLLAMA,
    QN_KEEPERS
} qn_keeper;
extern const char *const qn_keeper_names[QN_KEEPERS]; // "quern", "huggingface", ...

typedef struct qn_stocked {
    qn_keeper keeper;
    char *name;              // to be typed
    char *repo;              // "OWNER/REPO" or what else is common to several types; NULL: nothing
    char *stem;              // of the file's name; NULL: it is a number
    char *path;              // of the file, the first part or the folder
    char *tower;             // for images, beside it; NULL: none
    int64_t bytes, modified; // of all parts, without the tower; seconds since 1970
    int n_files;             // parts, or files of a checkpoint
    bool is_folder;          // a checkpoint
} qn_stocked;

// A download that did not end.
typedef struct qn_unfinished {
    char *path; // without ".part"
    int64_t there, bytes;
} qn_unfinished;

// Caller storage.
typedef struct qn_stock {
    qn_stocked *items; // (n) by keeper and name
    size_t n, cap;
    qn_unfinished *unfinished; // (n_unfinished) of ours
    size_t n_unfinished, cap_unfinished;
    size_t n_folders; // that were looked into, of which there is a limit
} qn_stock;

// Folders that are not there, or cannot be read, have nothing.
QN_MUST_CHECK qn_status qn_stock_read(qn_stock *out, const qn_places *places, qn_err *err);
void qn_stock_deinit(qn_stock *stock);

// The model of that name, letters of any case: a whole name, or the beginning of one alone.
// QN_ARGUMENT: there is none, or several; the message says what to type. `whole`: no beginnings.
QN_MUST_CHECK qn_status qn_stock_find(const qn_stocked **out, const qn_stock *stock,
                                      const char *typed, const char *endpoint, bool whole,
                                      qn_err *err);
// The download of that file name, with ".gguf" or without; NULL: there is none.
const qn_unfinished *qn_stock_find_unfinished(const qn_stock *stock, const char *typed);

#endif

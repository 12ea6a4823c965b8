// A repository of the hub: its files, and which of them are one model.
#ifndef QN_HUB_REPO_H
#define QN_HUB_REPO_H

#include "hub/spec.h"
#include "hub/web.h"

typedef struct qn_repo_file {
    char *path; // owned, plain (spec.h)
    int64_t size;
    char sha256[QN_SHA256_TEXT]; // ""; the hub does not say it, as of small files
} qn_repo_file;

// Caller storage; `{0}` is an empty one. By path.
typedef struct qn_repo {
    qn_repo_file *files;
    size_t n, cap;
} qn_repo;

// Asks the hub. Files whose paths are not plain are left out.
QN_MUST_CHECK qn_status qn_repo_list(qn_repo *out, const qn_web *web, const qn_spec *spec,
                                     qn_err *err);
void qn_repo_deinit(qn_repo *repo);
// The file of this path; NULL: there is none.
const qn_repo_file *qn_repo_find(const qn_repo *repo, const char *path, size_t n);

// Files of one model, in the order in which they are wanted. Caller storage, `items` owned.
typedef struct qn_picked {
    const qn_repo_file **items;
    size_t n, cap;
} qn_picked;

// The model that spec->which names, or the usual one; all parts of a split set; with_tower: and the
// vision tower beside it. QN_ARGUMENT: none, or several.
QN_MUST_CHECK qn_status qn_repo_choose(qn_picked *out, const qn_repo *repo, const qn_spec *spec,
                                       bool with_tower, qn_err *err);
void qn_picked_deinit(qn_picked *choice);

// The address of a file (owned: qn_free). NULL: no memory.
char *qn_repo_address(const char *endpoint, const qn_spec *spec, const char *path);

#endif

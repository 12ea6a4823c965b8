// What people type for a model that is somewhere else: a repository of the hub, or an address.
//
//   hf:OWNER/REPO[:QUANT|:FILE]   also without hf:, with hf.co/ or huggingface.co/ in its place
//   https://huggingface.co/OWNER/REPO[/resolve|blob|tree/REVISION[/PATH]]
//   https://example.org/model.gguf
#ifndef QN_HUB_SPEC_H
#define QN_HUB_SPEC_H

#include "core/err.h"

#include <stdbool.h>
#include <stddef.h>

// Caller storage; owned. Of a repository `url` is NULL, of an address all others are.
typedef struct qn_spec {
    char *owner, *repo;
    char *revision; // "main", a tag or a commit; NULL: not said
    char *which;    // a type ("Q4_K_M") or a path in the repository; NULL: not said
    char *url;
} qn_spec;

// `endpoint`: the hub's address, which people may have typed, too. QN_ARGUMENT: it is neither.
QN_MUST_CHECK qn_status qn_spec_parse(qn_spec *out, const char *typed, const char *endpoint,
                                      qn_err *err);
void qn_spec_deinit(qn_spec *spec);

// Whether a path from outside may name a file below a folder: parts that are names, and none that
// is hidden or leads elsewhere.
bool qn_hub_path_is_plain(const char *path, size_t n);
// The name of an owner or a repository.
bool qn_hub_name_is_plain(const char *name, size_t n);
// "main", a tag, a commit.
bool qn_hub_revision_is_plain(const char *text);

#endif

// The cache folder: who may use it, and the plans in it. Packed weights: weights_file.h.
//
// Nothing in the folder is needed or trusted: what is missing, damaged or of
// another program version counts as absent, and plans are never read to be run. Files appear whole,
// under their name, or not at all, so that processes may share a folder. Everything happens
// relative to the folder that was opened and checked, whatever has its name later, and through no
// link.
#ifndef QN_RUNTIME_CACHE_FOLDER_H
#define QN_RUNTIME_CACHE_FOLDER_H

#include "core/file.h"
#include "ir/plan.h"

typedef struct qn_disk_opts {
    const char *dir; // NULL: none
    qn_cache_use use;
    qn_log_fn *log; // NULL: silent
    void *log_arg;
} qn_disk_opts;

// A cache folder, and where warnings go. Caller storage; zeroed means none.
typedef struct qn_disk {
    const char *dir;            // as it was named, borrowed; NULL: none
    int fd;                     // the folder
    bool may_write, must_write; // failing to is an error
    bool is_foreign;            // to be filled, and not made here: what it brought is not read
    qn_log_fn *log;
    void *log_arg;
} qn_disk;

// Opens the folder, made if it is not there unless it was to be found, and removes what killed
// writers left in it. A folder that must not be used (see qn_cache_use) is a warning and leaves
// none, or an error where it was to be filled.
QN_MUST_CHECK qn_status qn_disk_open(qn_disk *out, const qn_disk_opts *opts, qn_err *err);
void qn_disk_close(qn_disk *disk);

// Makes a foreign folder one that was made here, once it is filled. What it brought for other
// models than that of the file `kept` goes before that: afterwards it would be trusted.
QN_MUST_CHECK qn_status qn_disk_claim(const qn_disk *disk, const char *kept, qn_err *err);

// True if there is anything of this name.
bool qn_disk_has(const qn_disk *disk, const char *name);
// Opens a file of the folder that only this user or root can have written. `shown`: its path.
QN_MUST_CHECK qn_status qn_disk_open_file(qn_file *out, const qn_disk *disk, const char *name,
                                          const char *shown, qn_err *err);

// What a plan depends on. The program's version and the layout of packed weights count as well.
typedef struct qn_plan_key {
    const char *graph;   // the text of the graph that is compiled
    const char *options; // anything that changes what compiling makes of it
    const char *device;  // and its variant
} qn_plan_key;

// Writes the plan's text, unless it is there.
QN_MUST_CHECK qn_status qn_disk_keep_plan(const qn_disk *disk, const qn_plan_key *key,
                                          const qn_plan *plan, qn_err *err);

// "0.1.0", and what else must be equal for files of another run to be of use.
const char *qn_disk_version(void);

#endif

// The cache folder: plans, and what files there have in common. Packed weights: packs_file.h.
//
// Nothing in the folder is needed and nothing in it is trusted: what is missing, damaged or of
// another program version counts as absent. Files appear whole, under their name, or not at all, so
// that processes may share a folder. What cannot be written is a warning, never a failure.
#ifndef QN_RUNTIME_DISK_H
#define QN_RUNTIME_DISK_H

#include "core/file.h"
#include "ir/plan.h"

// A cache folder and who hears of its troubles.
typedef struct qn_disk {
    const char *dir;
    qn_log_fn *log; // NULL: silent
    void *log_arg;
} qn_disk;

// Makes the folder if it is not there, and removes what writers that were killed left in it: files
// with our temporary names, unchanged for a day. False, with one warning, if there is no such folder
// afterwards.
bool qn_disk_prepare(const qn_disk *disk);

// What a plan depends on. The program's version and the layout of packed weights count as well.
typedef struct qn_plan_key {
    const char *graph;   // the text of the graph that is compiled
    const char *options; // anything that changes what compiling makes of it
    const char *level;   // of the CPU
} qn_plan_key;

// True if the plan was there; *out is then the caller's (qn_plan_deinit), else untouched.
bool qn_disk_load_plan(qn_plan *out, const qn_disk *disk, const qn_plan_key *key);
void qn_disk_store_plan(const qn_disk *disk, const qn_plan_key *key, const qn_plan *plan);

// "0.1.0", and what else must be equal for files of another run to be of use.
const char *qn_disk_version(void);

#endif

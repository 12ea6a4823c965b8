// Checks and defaults of qn_sample_opts.
#ifndef QN_GEN_SETTINGS_H
#define QN_GEN_SETTINGS_H

#include "core/buf.h"
#include "core/err.h"

// Every number against its range; lists and strings are not checked.
QN_MUST_CHECK qn_status qn_settings_check(const qn_sample_opts *opts, qn_err *err);
// Fills in defaults where zero means one. Settings that are off become zero.
qn_sample_opts qn_settings_fill(const qn_sample_opts *opts);
// Appends what the lists and strings hold: equal bytes are equal lists.
void qn_settings_pack_lists(qn_buf *buf, const qn_sample_opts *opts);
// Whether all settings are equal: numbers by their bits, lists and strings by what they hold, those
// of `b` as packed before (size bytes). Allocates nothing.
bool qn_settings_equal(const qn_sample_opts *a, const qn_sample_opts *b, const char *lists,
                       size_t size);

#endif

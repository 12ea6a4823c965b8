// Checks and defaults of qn_sample_opts.
#ifndef QN_GEN_SETTINGS_H
#define QN_GEN_SETTINGS_H

#include "core/err.h"

// Every number against its range; lists and strings are not checked.
QN_MUST_CHECK qn_status qn_settings_check(const qn_sample_opts *opts, qn_err *err);
// Fills in defaults where zero means one. Settings that are off become zero.
qn_sample_opts qn_settings_fill(const qn_sample_opts *opts);
// Whether all fields are equal: numbers by their bits, lists and strings by address.
bool qn_settings_equal(const qn_sample_opts *a, const qn_sample_opts *b);

#endif

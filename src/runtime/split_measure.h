// What ranks can do, and what lies between them: the numbers that the cost model goes by.
#ifndef QN_RUNTIME_SPLIT_MEASURE_H
#define QN_RUNTIME_SPLIT_MEASURE_H

#include "backends/device.h"
#include "core/pool.h"
#include "ranks/ranks.h"
#include "runtime/split_cost.h"

// What this rank can do: a third of a second for a CPU, and 256 MiB for that time. A GPU takes as
// long as qn_device_limits does.
QN_MUST_CHECK qn_status qn_split_measure_rank(qn_split_rank *out, const qn_device *device,
                                              qn_pool *pool, qn_err *err);

// All ranks call this together, each with what it can do; all[0 ... n - 1] and the link are then
// the same on every rank. Ranks that run on one machine share the memory that is free there, and
// are equally fast where they have as many threads. Some hundreds of short messages, and a few that
// are 1 MiB together.
QN_MUST_CHECK qn_status qn_split_measure_link(qn_split_link *link, qn_split_rank *all,
                                              const qn_split_rank *own, qn_ranks *ranks,
                                              qn_err *err);

#endif

// How a model's makers want tokens to be chosen: "general.sampling.*" of a GGUF file, or
// generation_config.json next to a checkpoint, as settings of the sampler.
#ifndef QN_RUNTIME_SAMPLE_DEFAULTS_H
#define QN_RUNTIME_SAMPLE_DEFAULTS_H

#include "formats/gguf_write.h"

// {0}, which is greedy, where the model says nothing. A value that is not a number or out of range
// is left out with a warning. What *out points to belongs to the source.
QN_MUST_CHECK qn_status qn_sample_defaults_read(qn_sample_opts *out, const qn_source *source,
                                                qn_log_fn *log, void *log_arg, qn_err *err);
// As keys of a GGUF file that is read back as the same settings.
void qn_sample_defaults_write(qn_gguf_writer *to, const qn_sample_opts *defaults);

#endif

#include "cli/making.h"

#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include <stdio.h>

void qn_making_log(void *progress, qn_log_level level, const char *message) {
    static const char *const names[] = {[QN_LOG_ERROR] = "error",
                                        [QN_LOG_WARNING] = "warning",
                                        [QN_LOG_INFO] = "note",
                                        [QN_LOG_DEBUG] = "debug"};
    qn_shown clean; // the message may quote a hostile file
    qn_progress_end(progress);
    qn_print_line("quern: %s: %s", names[level], qn_clean(&clean, message));
}

qn_status qn_file_size_read(qn_file_size *out, const char *path, qn_err *err) {
    qn_source *source;
    QN_TRY(qn_source_open(&source, path, err));
    double n_weights = 0, bytes = 0;
    for (size_t i = 0; i < qn_source_n_tensors(source); i++) {
        const qn_tensor_info t = qn_tensor_facts(source, i);
        double n = 1;
        for (int d = 0; d < t.n_dims; d++) n *= (double)t.dims[d];
        n_weights += n;
        bytes += (double)t.bytes;
    }
    *out = (qn_file_size){qn_source_file_bytes(source), n_weights > 0 ? bytes * 8 / n_weights : 0};
    qn_source_close(source);
    return QN_OK;
}

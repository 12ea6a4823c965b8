#include "gen/stop.h"

#include "core/mem.h"
#include "gen/strings.h"

struct qn_stops {
    qn_strings *strings;
};

qn_status qn_stops_create(qn_stops **out, const char *const *texts, size_t n, qn_err *err) {
    const qn_strings_opts opts = {
        .what = "stop string", .max = QN_MAX_STOPS, .max_bytes = QN_MAX_STOP_BYTES};
    qn_stops *stops = qn_alloc(1, sizeof *stops);
    if (!stops) return QN_NOMEM(err, "stop strings");
    const qn_status status = qn_strings_create(&stops->strings, texts, n, &opts, err);
    if (status)
        qn_free(stops);
    else
        *out = stops;
    return status;
}

void qn_stops_destroy(qn_stops *stops) {
    if (!stops) return;
    qn_strings_destroy(stops->strings);
    qn_free(stops);
}

void qn_stop_feed(qn_stop_state *state, const qn_stops *stops, const char *text, size_t size) {
    if (state->is_met) return;
    const qn_strings *strings = stops->strings;
    size_t n_read;
    state->node = qn_strings_scan(&n_read, strings, state->node, (qn_str){text, size});
    state->size += n_read;
    const int64_t hit = qn_strings_hit(strings, state->node);
    if (hit < 0) {
        state->safe = state->size - qn_strings_depth(strings, state->node);
        return;
    }
    state->is_met = true;
    state->which = (size_t)hit;
    state->safe = state->size - qn_strings_get(strings, (size_t)hit).size;
}

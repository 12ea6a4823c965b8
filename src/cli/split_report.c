#include "cli/split_report.h"

#include "cli/out.h"

#include "core/json.h"

#include <string.h>

// --- reading -------------------------------------------------------------------------------------
// The JSON is our own, but what is missing must not be read.

static const json_t *item(const json_t *object, const char *name) {
    return json_object_get(object, name);
}

static const char *text_of(const json_t *object, const char *name) {
    const char *text = json_string_value(item(object, name));
    return text ? text : "";
}

static double number_of(const json_t *object, const char *name) {
    return json_number_value(item(object, name));
}

static const char *bytes_of(char to[24], const json_t *object, const char *name) {
    const json_t *value = item(object, name);
    return json_is_integer(value) ? qn_bytes_text(to, json_integer_value(value)) : "-";
}

// --- ranks ---------------------------------------------------------------------------------------

static void add_head(qn_buf *to, const json_t *plan) {
    const json_t *network = item(plan, "network");
    const int64_t n = json_integer_value(item(plan, "ranks"));
    qn_buf_printf(to, "split by %s, %lld rank%s", text_of(plan, "split"), (long long)n,
                  n == 1 ? "" : "s");
    if (json_is_object(network))
        qn_buf_printf(to, " over %s: latency %.1f us, %.3g GB/s", text_of(plan, "system"),
                      number_of(network, "latency_us"), number_of(network, "gbs"));
    qn_buf_printf(to, "\n  %s\n", text_of(plan, "why"));
}

static void add_share(qn_buf *to, const json_t *share) {
    const json_t *layers = item(share, "layers");
    char range[48], weights[24], state[24], memory[24], available[24];
    snprintf(range, sizeof range, "%lld-%lld",
             (long long)json_integer_value(json_array_get(layers, 0)),
             (long long)json_integer_value(json_array_get(layers, 1)) - 1);
    qn_buf_printf(to, "  %4lld %8s %12s %12s %12s %12s %8lld %8.1f %8.3g\n",
                  (long long)json_integer_value(item(share, "rank")), range,
                  bytes_of(weights, share, "weights"), bytes_of(state, share, "state_per_token"),
                  bytes_of(memory, share, "memory"), bytes_of(available, share, "free"),
                  (long long)json_integer_value(item(share, "threads")),
                  number_of(share, "read_gbs"), number_of(share, "int8_tops"));
}

static bool has_heads(const json_t *share) {
    return json_integer_value(item(share, "state_per_token")) > 0 ||
           json_integer_value(item(share, "state_fixed")) > 0;
}

// Heads are whole: with fewer of them than ranks, some ranks have none.
static void add_headless(qn_buf *to, const json_t *plan) {
    size_t i, n = 0, n_none = 0;
    json_t *share;
    json_array_foreach(item(plan, "shares"), i, share) n += has_heads(share);
    if (n == 0 || n == json_array_size(item(plan, "shares"))) return;
    qn_buf_text(to, "  heads are not cut further, attention is not on rank");
    json_array_foreach(item(plan, "shares"), i, share) {
        if (!has_heads(share)) qn_buf_printf(to, "%s %zu", n_none++ ? "," : "", i);
    }
    qn_buf_text(to, "\n");
}

static void add_shares(qn_buf *to, const json_t *plan) {
    size_t i;
    json_t *share;
    qn_buf_printf(to, "\n  %4s %8s %12s %12s %12s %12s %8s %8s %8s\n", "rank", "layers", "weights",
                  "state/token", "memory", "free", "threads", "GB/s", "TOP/s");
    json_array_foreach(item(plan, "shares"), i, share) add_share(to, share);
    if (strcmp(text_of(plan, "split"), "tensors") == 0) add_headless(to, plan);
}

// --- both ways -----------------------------------------------------------------------------------

static const struct {
    const char *title, *group, *name;
    int digits;
} rows[] = {
    {"decode, tokens/s", "predicted", "decode_tps", 1},
    {"prefill, tokens/s", "predicted", "prefill_tps", 1},
    {"messages a token", "per_token", "messages", 0},
    {"bytes a token", "per_token", "bytes", 0},
    {"messages, ms a token", "per_token", "message_ms", 2},
};

static void add_number(qn_buf *to, const json_t *way, size_t row) {
    const json_t *value = item(item(way, rows[row].group), rows[row].name);
    if (json_is_number(value))
        qn_buf_printf(to, " %12.*f", rows[row].digits, json_number_value(value));
    else
        qn_buf_printf(to, " %12s", "-");
}

static void add_ways(qn_buf *to, const json_t *plan) {
    const json_t *other = item(plan, "other");
    qn_buf_printf(to, "\n  %-20s %12s %12s\n", "predicted", text_of(plan, "split"),
                  text_of(other, "split"));
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_buf_printf(to, "  %-20s", rows[i].title);
        add_number(to, plan, i);
        add_number(to, other, i);
        qn_buf_text(to, "\n");
    }
    if (*text_of(other, "problem"))
        qn_buf_printf(to, "  not by %s: %s\n", text_of(other, "split"), text_of(other, "problem"));
}

qn_status qn_split_report(qn_buf *to, const char *json, qn_err *err) {
    json_t *plan;
    QN_TRY(qn_json_parse(&plan, json, strlen(json), false, "the plan of a split", err));
    add_head(to, plan);
    add_shares(to, plan);
    if (json_integer_value(item(plan, "ranks")) > 1) add_ways(to, plan);
    json_decref(plan);
    return to->failed ? QN_NOMEM(err, "the plan of a split") : QN_OK;
}

qn_status qn_split_print(const qn_engine *engine, bool as_json, qn_err *err) {
    char *json = NULL;
    qn_buf text = {0};
    QN_TRY(qn_engine_split(&json, engine, err));
    const qn_status status = as_json ? QN_OK : qn_split_report(&text, json, err);
    if (!status) puts(as_json ? json : text.data);
    qn_buf_deinit(&text);
    qn_free(json);
    return status;
}

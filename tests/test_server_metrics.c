// /metrics: the rules of Prometheus' text format, and what the numbers say.
#include "serve_rig.h"

#include <math.h>

enum { MOST_FAMILIES = 128 };

typedef struct family {
    char name[96], type[16];
    bool has_help;
    int n_samples;
    double last_bucket, inf, count; // of a histogram
    bool has_sum;
} family;

typedef struct families {
    family items[MOST_FAMILIES];
    size_t n;
} families;

static bool is_name(const char *text, size_t n) {
    if (n == 0 || (*text >= '0' && *text <= '9')) return false;
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        const bool is_fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                             (c >= '0' && c <= '9') || c == '_' || c == ':';
        if (!is_fine) return false;
    }
    return true;
}

static bool ends_with(const char *text, const char *end) {
    const size_t n = strlen(text), n_end = strlen(end);
    return n > n_end && strcmp(text + n - n_end, end) == 0;
}

// "# HELP name text" and "# TYPE name type": once for each family, before its samples.
static void read_comment(families *all, const char *line) {
    char name[96], word[96];
    family *last = all->n ? &all->items[all->n - 1] : NULL;
    if (sscanf(line, "# HELP %95s %95s", name, word) == 2) {
        for (size_t i = 0; i < all->n; i++) assert_string_not_equal(all->items[i].name, name);
        assert_true(all->n < MOST_FAMILIES);
        family *f = &all->items[all->n++];
        *f = (family){.has_help = true, .last_bucket = -1, .inf = -1, .count = -2};
        assert_true(is_name(name, strlen(name)));
        snprintf(f->name, sizeof f->name, "%s", name);
        return;
    }
    assert_int_equal(sscanf(line, "# TYPE %95s %15s", name, word), 2);
    assert_true(last && *last->type == 0 && strcmp(last->name, name) == 0);
    snprintf(last->type, sizeof last->type, "%.15s", word);
}

static void read_bucket(family *f, const char *labels, double value) {
    static double border;
    char text[32];
    const char *at = strstr(labels, "le=\"");
    assert_non_null(at);
    assert_int_equal(sscanf(at, "le=\"%31[^\"]\"}", text), 1);
    if (f->last_bucket < 0) border = -1;
    const double le = strcmp(text, "+Inf") == 0 ? HUGE_VAL : strtod(text, NULL);
    assert_true(le > border && value >= f->last_bucket);
    border = le;
    f->last_bucket = value;
    if (le == HUGE_VAL) f->inf = value;
}

static void read_sample(families *all, const char *line) {
    const size_t n = strcspn(line, "{ ");
    char name[96], *end;
    assert_true(is_name(line, n) && n < sizeof name && all->n > 0);
    snprintf(name, n + 1, "%s", line);
    const char *space = strrchr(line, ' ');
    assert_non_null(space);
    const double value = strtod(space + 1, &end);
    assert_true(end > space + 1 && *end == 0);
    family *f = &all->items[all->n - 1]; // samples of a family stand together
    f->n_samples++;
    if (strcmp(f->type, "histogram") != 0) {
        assert_string_equal(name, f->name);
        if (strcmp(f->type, "counter") == 0) assert_true(ends_with(name, "_total") && value >= 0);
        if (strcmp(f->type, "gauge") == 0) assert_false(ends_with(name, "_total"));
        return;
    }
    assert_memory_equal(name, f->name, strlen(f->name));
    const char *rest = name + strlen(f->name);
    if (strcmp(rest, "_bucket") == 0)
        read_bucket(f, line + n, value);
    else if (strcmp(rest, "_sum") == 0)
        f->has_sum = true;
    else if (strcmp(rest, "_count") == 0)
        f->count = value;
    else
        fail_msg("%s in the histogram %s", name, f->name);
}

static void read_all(families *all, char *text) {
    *all = (families){0};
    assert_true(ends_with(text, "\n"));
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        if (*line == '#')
            read_comment(all, line);
        else
            read_sample(all, line);
    }
    for (size_t i = 0; i < all->n; i++) {
        const family *f = &all->items[i];
        assert_true(f->n_samples > 0 && *f->type);
        if (strcmp(f->type, "histogram") != 0) continue;
        assert_true(f->inf == f->count && f->has_sum);
    }
}

static double count_of(const families *all, const char *name) {
    for (size_t i = 0; i < all->n; i++) {
        if (strcmp(all->items[i].name, name) == 0) return all->items[i].count;
    }
    fail_msg("there is no %s", name);
    return 0;
}

static bool has_line(const http_answer *a, const char *line) {
    const char *found = strstr(a->body.data, line);
    return found && (found == a->body.data || found[-1] == '\n') && found[strlen(line)] == '\n';
}

static void the_text_follows_the_format(void **state) {
    static const char *const names[] = {"quern_time_to_first_token_seconds",
                                        "quern_inter_token_seconds",
                                        "quern_queue_seconds",
                                        "quern_request_seconds",
                                        "vllm:time_to_first_token_seconds",
                                        "vllm:e2e_request_latency_seconds"};
    const qn_server_opts opts = {.metrics = true};
    families all;
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    for (int i = 0; i < 2; i++) {
        json_decref(post_json(&rig, "/v1/chat/completions",
                              "{\"messages\": [{\"role\": \"user\", \"content\": \"What color is a "
                              "lemon?\"}]}",
                              200));
        serve_wait(&rig, serve_rows, 0);
    }
    json_decref(post_json(&rig, "/v1/chat/completions",
                          "{\"messages\": [{\"role\": \"user\", \"content\": 5}]}", 400));
    http_answer a = http_get(&rig, "/metrics");
    assert_int_equal(a.status, 200);
    assert_non_null(strstr(http_header(&a, "Content-Type"), "version=0.0.4"));
    assert_true(has_line(&a, "quern_requests_total{model=\"quern-mini-Q8_0\"} 2"));
    assert_true(has_line(&a, "quern_requests_answered_total{model=\"quern-mini-Q8_0\"} 2"));
    assert_true(has_line(&a, "quern_requests_refused_total 1"));
    assert_true(has_line(&a, "quern_generated_tokens_total{model=\"quern-mini-Q8_0\"} 10"));
    assert_true(has_line(&a, "llamacpp:tokens_predicted_total 10"));
    assert_true(has_line(&a, "vllm:generation_tokens_total{model_name=\"quern-mini-Q8_0\"} 10"));
    assert_true(has_line(&a, "llamacpp:requests_processing 0"));
    assert_true(has_line(&a, "# TYPE quern_steps_total counter"));
    assert_true(has_line(&a, "# TYPE quern_rows gauge"));
    read_all(&all, a.body.data);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        assert_true(count_of(&all, names[i]) == (i == 1 ? 8 : 2));
    http_deinit(&a);
    serve_stop(&rig);
}

static void they_are_off_by_default(void **state) {
    serve_rig rig;
    (void)state;
    serve_start(&rig, NULL);
    http_answer a = http_get(&rig, "/metrics");
    assert_int_equal(a.status, 501);
    json_t *value = http_json(&a);
    assert_string_equal(text_at(value, "error.type"), "not_supported_error");
    json_decref(value);
    http_deinit(&a);
    serve_stop(&rig);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_follows_the_format),
        cmocka_unit_test(they_are_off_by_default),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

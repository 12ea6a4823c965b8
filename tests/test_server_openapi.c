// /openapi.json is a valid OpenAPI 3.1 file that has every route and every field; docs/server.md
// has the same tables. With --write, the tables of that file are written again.
#include "serve_rig.h"

#include "server/routes.h"

#define PAGE TEST_DATA "/../../docs/server.md"

// --- the file ------------------------------------------------------------------------------------

static json_t *fetch(const qn_server_opts *opts) {
    serve_rig rig;
    serve_start(&rig, opts);
    http_answer a = http_with(&rig, "GET", "/openapi.json", "Authorization: Bearer k\r\n", NULL);
    assert_int_equal(a.status, 200);
    json_t *value = http_json(&a);
    http_deinit(&a);
    serve_stop(&rig);
    return value;
}

// The value that a "#/components/schemas/Error" points to.
static json_t *follow(const json_t *file, const char *ref) {
    char path[128];
    assert_memory_equal(ref, "#/", 2);
    snprintf(path, sizeof path, "%s", ref + 2);
    for (char *c = path; *c; c++) *c = *c == '/' ? '.' : *c;
    return json_at(file, path);
}

// Every reference inside a value leads somewhere.
static void check_refs(const json_t *file, json_t *value) {
    const char *name;
    json_t *item;
    const char *ref = json_string_value(json_object_get(value, "$ref"));
    if (ref) {
        assert_int_equal(json_object_size(value), 1);
        if (!follow(file, ref)) fail_msg("%s leads nowhere", ref);
    }
    json_object_foreach(value, name, item) check_refs(file, item);
    for (size_t i = 0; i < json_array_size(value); i++) check_refs(file, json_array_get(value, i));
}

// A schema as the OpenAPI file may have it: known words, of the right types.
static void check_schema(json_t *schema) {
    static const char *const types[] = {"boolean", "integer", "number", "string",
                                        "array",   "object",  "null"};
    const char *name;
    json_t *value;
    assert_true(json_is_object(schema));
    if (json_object_get(schema, "$ref")) return;
    json_object_foreach(schema, name, value) {
        if (strcmp(name, "type") == 0) {
            const size_t n = json_is_string(value) ? 1 : json_array_size(value);
            assert_true(n > 0);
            for (size_t i = 0; i < n; i++) {
                const char *type =
                    json_string_value(json_is_string(value) ? value : json_array_get(value, i));
                bool is_known = false;
                for (size_t k = 0; type && k < sizeof types / sizeof *types; k++)
                    is_known |= strcmp(type, types[k]) == 0;
                assert_true(is_known);
            }
        } else if (strcmp(name, "minimum") == 0 || strcmp(name, "maximum") == 0) {
            assert_true(json_is_number(value));
        } else if (strcmp(name, "description") == 0) {
            assert_true(json_string_length(value) > 0);
        } else if (strcmp(name, "properties") == 0) {
            const char *property;
            json_t *inner;
            json_object_foreach(value, property, inner) check_schema(inner);
        } else if (strcmp(name, "required") == 0 || strcmp(name, "enum") == 0) {
            assert_true(json_array_size(value) > 0);
        } else {
            fail_msg("'%s' is not known in a schema", name);
        }
    }
    const json_t *low = json_object_get(schema, "minimum"),
                 *high = json_object_get(schema, "maximum");
    assert_true(!low == !high);
    if (low) assert_true(json_number_value(low) < json_number_value(high));
}

static void check_operation(json_t *operation, json_t *ids) {
    const char *name;
    json_t *value;
    json_object_foreach(operation, name, value) {
        if (strcmp(name, "operationId") == 0) {
            assert_null(json_object_get(ids, json_string_value(value))); // no two are equal
            json_object_set_new(ids, json_string_value(value), json_true());
        } else if (strcmp(name, "summary") == 0) {
            assert_true(json_string_length(value) > 0);
        } else if (strcmp(name, "requestBody") == 0) {
            const json_t *content = json_object_get(value, "content");
            check_schema(json_object_get(json_object_get(content, "application/json"), "schema"));
        } else if (strcmp(name, "responses") == 0) {
            assert_non_null(json_string_value(json_at(value, "200.description")));
            assert_non_null(json_object_get(value, "default"));
        } else if (strcmp(name, "parameters") == 0) {
            assert_string_equal(text_at(value, "0.in"), "path");
            assert_true(json_is_true(json_at(value, "0.required")));
            check_schema(json_at(value, "0.schema"));
        } else {
            assert_string_equal(name, "security");
            assert_true(json_is_array(value));
        }
    }
    assert_non_null(json_object_get(operation, "operationId"));
    assert_non_null(json_object_get(operation, "responses"));
}

static void the_file_is_openapi(void **state) {
    static const char *const members[] = {"openapi",  "info",  "servers",
                                          "security", "paths", "components"};
    const char *path, *method;
    json_t *item, *operation, *ids = json_object(), *schema;
    (void)state;
    json_t *file = fetch(NULL);
    assert_string_equal(text_at(file, "openapi"), "3.1.0");
    assert_non_null(text_at(file, "info.title"));
    assert_non_null(text_at(file, "info.version"));
    assert_string_equal(text_at(file, "servers.0.url"), "/");
    assert_int_equal(json_object_size(file), 6);
    for (size_t i = 0; i < 6; i++) assert_non_null(json_object_get(file, members[i]));
    json_object_foreach(json_object_get(file, "paths"), path, item) {
        assert_true(path[0] == '/' && !strchr(path, '*'));
        json_object_foreach(item, method, operation) {
            assert_non_null(strstr("get post delete", method));
            check_operation(operation, ids);
            assert_int_equal(strstr(path, "{rest}") != NULL,
                             json_object_get(operation, "parameters") != NULL);
        }
    }
    json_object_foreach(json_at(file, "components.schemas"), path, schema) check_schema(schema);
    check_refs(file, file);
    json_decref(ids);
    json_decref(file);
}

// --- what is in it -------------------------------------------------------------------------------

static json_t *operation_of(const json_t *file, const qn_route *route) {
    char path[96];
    const size_t n = strcspn(route->path, "*");
    snprintf(path, sizeof path, "%.*s%s", (int)n, route->path, route->path[n] ? "{rest}" : "");
    const json_t *item = json_object_get(json_object_get(file, "paths"), path);
    return json_object_get(item, strcmp(route->method, "GET") == 0    ? "get"
                                 : strcmp(route->method, "POST") == 0 ? "post"
                                                                      : "delete");
}

static void every_route_has_its_fields(void **state) {
    const qn_route *route;
    const qn_field *f;
    (void)state;
    json_t *file = fetch(NULL);
    size_t n = 0;
    for (size_t i = 0; (route = qn_route_at(i)) != NULL; i++) {
        if (route->flags & QN_ROUTE_ALIAS) continue;
        const json_t *operation = operation_of(file, route);
        if (!operation) fail_msg("%s %s is not in the file", route->method, route->path);
        assert_string_equal(text_at(operation, "summary"), route->summary);
        n++;
        const json_t *content = json_at(operation, "requestBody.content");
        assert_int_equal(content != NULL, route->set != 0);
        const json_t *properties = json_object_get(
            json_object_get(json_object_get(content, "application/json"), "schema"), "properties");
        for (size_t k = 0; (f = qn_field_at(k)) != NULL; k++) {
            const bool is_there = json_object_get(properties, f->name) != NULL;
            if (f->sets & route->set) assert_true(is_there);
        }
    }
    assert_true(n > 10);
    json_decref(file);
}

static void bounds_and_words_are_those_of_the_table(void **state) {
    (void)state;
    json_t *file = fetch(NULL);
    const json_t *chat = json_object_get(json_object_get(file, "paths"), "/v1/chat/completions");
    const json_t *content = json_at(chat, "post.requestBody.content");
    const json_t *schema = json_object_get(json_object_get(content, "application/json"), "schema");
    const json_t *p = json_object_get(schema, "properties");
    assert_string_equal(text_at(p, "temperature.type.0"), "number");
    assert_true(json_number_value(json_at(p, "temperature.maximum")) == 100);
    assert_true(json_integer_value(json_at(p, "n.minimum")) == 1);
    assert_true(json_integer_value(json_at(p, "n.maximum")) == 128);
    assert_string_equal(text_at(p, "max_completion_tokens.description"),
                        "Another name of max_tokens.");
    assert_non_null(strstr(text_at(p, "audio.description"), "Not supported"));
    assert_non_null(strstr(text_at(p, "user.description"), "Ignored"));
    const json_t *options = json_at(file, "components.schemas.OllamaOptions.properties");
    assert_non_null(json_object_get(options, "num_ctx"));
    assert_null(json_object_get(options, "messages"));
    json_decref(file);
}

// The error of a request without a field that must be there says its name; requests that need no
// field are taken without any.
static void required_fields_are_those_that_are_missed(void **state) {
    static const char question[] = "[{\"role\": \"user\", \"content\": \"a\"}]";
    serve_rig rig;
    const char *path;
    json_t *item;
    size_t n_checked = 0;
    json_t *file = fetch(NULL);
    (void)state;
    serve_start(&rig, NULL);
    json_object_foreach(json_object_get(file, "paths"), path, item) {
        const json_t *schema = json_at(item, "post.requestBody.content.application/json.schema");
        const json_t *names = json_object_get(schema, "required");
        if (!schema) continue;
        if (!names) json_decref(post_json(&rig, path, "{\"stream\": false}", 200));
        for (size_t i = 0; i < json_array_size(names); i++) {
            const char *missing = json_string_value(json_array_get(names, i));
            char body[128] = "{}", quoted[64];
            const bool has_messages = json_array_size(names) > 1 && strcmp(missing, "messages");
            if (has_messages) snprintf(body, sizeof body, "{\"messages\": %s}", question);
            if (json_array_size(names) > 1 && !has_messages)
                snprintf(body, sizeof body, "{\"max_tokens\": 1}");
            http_answer a = http_post(&rig, path, body);
            snprintf(quoted, sizeof quoted, "'%s'", missing);
            if (a.status != 400 || !strstr(a.body.data, quoted))
                fail_msg("%s %s: %d %s", path, body, a.status, a.body.data);
            http_deinit(&a);
            n_checked++;
        }
    }
    assert_int_equal(n_checked, 15);
    serve_stop(&rig);
    json_decref(file);
}

static void keys_are_asked_for_where_there_are_any(void **state) {
    const char *const keys[] = {"k"};
    const qn_server_opts opts = {.keys = keys, .n_keys = 1};
    (void)state;
    json_t *file = fetch(&opts);
    assert_int_equal(json_array_size(json_object_get(file, "security")), 2);
    assert_non_null(json_at(file, "security.0.bearer"));
    assert_string_equal(text_at(file, "components.securitySchemes.bearer.scheme"), "bearer");
    const json_t *health = json_object_get(json_object_get(file, "paths"), "/health");
    assert_int_equal(json_array_size(json_at(health, "get.security")), 0);
    assert_true(json_is_array(json_at(health, "get.security")));
    json_decref(file);
    file = fetch(NULL);
    assert_int_equal(json_array_size(json_object_get(file, "security")), 0);
    json_decref(file);
}

// --- the page ------------------------------------------------------------------------------------

static void write_routes(qn_buf *out) {
    const qn_route *route;
    qn_buf_text(out, "| route | what it does |\n|---|---|\n");
    for (size_t i = 0; (route = qn_route_at(i)) != NULL; i++) {
        if (route->flags & QN_ROUTE_ALIAS) continue;
        qn_buf_printf(out, "| `%s %s`", route->method, route->path);
        const qn_route *other;
        for (size_t k = i + 1; (other = qn_route_at(k)) && other->flags & QN_ROUTE_ALIAS; k++) {
            if (other->handle == route->handle) qn_buf_printf(out, ", `%s`", other->path);
        }
        qn_buf_printf(out, " | %s |\n", route->summary);
    }
}

static void write_bounds(qn_buf *out, const qn_field *f) {
    static const char *const types[] = {
        [QN_FIELD_BOOL] = "boolean",  [QN_FIELD_INT] = "integer",    [QN_FIELD_REAL] = "number",
        [QN_FIELD_INT32] = "integer", [QN_FIELD_LAST_N] = "integer", [QN_FIELD_SEED] = "integer",
        [QN_FIELD_TEXT] = "string",   [QN_FIELD_JSON] = ""};
    const bool has_bounds = f->kind == QN_FIELD_INT || f->kind == QN_FIELD_REAL ||
                            f->kind == QN_FIELD_INT32 || f->kind == QN_FIELD_LAST_N;
    qn_buf_text(out, types[f->kind]);
    for (const char *c = f->kind == QN_FIELD_JSON ? f->type : ""; *c; c++)
        qn_buf_printf(out, *c == '|' ? " or " : "%c", *c);
    if (has_bounds && f->max < INT32_MAX) qn_buf_printf(out, ", %g to %g", f->min, f->max);
    if (has_bounds && f->max >= INT32_MAX) qn_buf_printf(out, " from %g", f->min);
}

static void write_places(qn_buf *out, uint32_t sets) {
    static const struct {
        uint32_t set;
        const char *name;
    } places[] = {{QN_SET_CHAT, "chat"},
                  {QN_SET_TEXT, "completions"},
                  {QN_SET_RESPONSES, "responses"},
                  {QN_SET_MESSAGES, "messages"},
                  {QN_SET_NATIVE, "/completion"},
                  {QN_SET_OLLAMA_CHAT, "/api/chat"},
                  {QN_SET_OLLAMA_TEXT, "/api/generate"},
                  {QN_SET_OPTIONS, "options"},
                  {QN_SET_EMBED, "embeddings"},
                  {QN_SET_EMBED_OLD, "/api/embeddings"},
                  {QN_SET_TOKENS, "tokens"},
                  {QN_SET_SHOW, "/api/show"}};
    if ((sets & QN_SET_ALL) == QN_SET_ALL) {
        qn_buf_text(out, "all");
        return;
    }
    if ((sets & QN_SET_SAMPLING) == QN_SET_SAMPLING) {
        qn_buf_text(out, "all answers");
        sets &= ~(uint32_t)QN_SET_SAMPLING;
        if (sets) qn_buf_text(out, ", ");
    }
    const char *comma = "";
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!(sets & places[i].set)) continue;
        qn_buf_printf(out, "%s%s", comma, places[i].name);
        comma = ", ";
    }
}

static void write_name(qn_buf *out, const qn_field *f) {
    qn_buf_printf(out, "| `%s`", f->name);
    for (const char *at = f->aliases; *at;) {
        const size_t n = strcspn(at, ",");
        qn_buf_printf(out, ", `%.*s`", (int)n, at);
        at += n + (at[n] == ',');
    }
}

static void write_fields(qn_buf *out) {
    const qn_field *f;
    qn_buf_text(out, "| field | value | where | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; (f = qn_field_at(i)) != NULL; i++) {
        if (f->kind >= QN_FIELD_IGNORED) continue;
        write_name(out, f);
        qn_buf_text(out, " | ");
        write_bounds(out, f);
        qn_buf_text(out, " | ");
        write_places(out, f->sets);
        qn_buf_printf(out, " | %s |\n", f->meaning);
    }
}

static void write_others(qn_buf *out, qn_field_kind kind, const char *title) {
    const qn_field *f;
    qn_buf_printf(out, "| field | where | %s |\n|---|---|---|\n", title);
    for (size_t i = 0; (f = qn_field_at(i)) != NULL; i++) {
        if (f->kind != kind) continue;
        write_name(out, f);
        qn_buf_text(out, " | ");
        write_places(out, f->sets);
        qn_buf_printf(out, " | %s |\n", f->meaning);
    }
}

static void write_ignored(qn_buf *out) { write_others(out, QN_FIELD_IGNORED, "why"); }
static void write_refused(qn_buf *out) { write_others(out, QN_FIELD_REFUSED, "what it is"); }

static const struct {
    const char *name;
    void (*write)(qn_buf *out);
} tables[] = {{"routes", write_routes},
              {"fields", write_fields},
              {"ignored", write_ignored},
              {"refused", write_refused}};

static void read_page(qn_buf *out) {
    char block[4096];
    FILE *file = fopen(PAGE, "rb");
    assert_non_null(file);
    for (size_t n; (n = fread(block, 1, sizeof block, file)) > 0;) qn_buf_add(out, block, n);
    fclose(file);
}

// The page with tables as they must be.
static void make_page(qn_buf *out, const char *page) {
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char begin[64], end[64];
        snprintf(begin, sizeof begin, "<!-- begin %s -->\n", tables[i].name);
        snprintf(end, sizeof end, "<!-- end %s -->\n", tables[i].name);
        const char *from = strstr(page, begin), *to = from ? strstr(from, end) : NULL;
        if (!to) fail_msg("docs/server.md has no place for the table of %s", tables[i].name);
        from += strlen(begin);
        qn_buf_add(out, page, (size_t)(from - page));
        qn_buf_text(out, "\n");
        tables[i].write(out);
        qn_buf_text(out, "\n");
        page = to;
    }
    qn_buf_text(out, page);
}

static void the_page_has_the_same_tables(void **state) {
    qn_buf page = {0}, want = {0};
    (void)state;
    read_page(&page);
    make_page(&want, page.data);
    if (strcmp(page.data, want.data) != 0)
        fail_msg("the tables in docs/server.md are not those of routes.def and fields.def; "
                 "tools/server_tables.sh writes them");
    qn_buf_deinit(&page);
    qn_buf_deinit(&want);
}

static void write_page(void **state) {
    qn_buf page = {0}, want = {0};
    (void)state;
    read_page(&page);
    make_page(&want, page.data);
    FILE *file = fopen(PAGE, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(want.data, 1, want.size, file), want.size);
    assert_int_equal(fclose(file), 0);
    qn_buf_deinit(&page);
    qn_buf_deinit(&want);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_file_is_openapi),
        cmocka_unit_test(every_route_has_its_fields),
        cmocka_unit_test(bounds_and_words_are_those_of_the_table),
        cmocka_unit_test(required_fields_are_those_that_are_missed),
        cmocka_unit_test(keys_are_asked_for_where_there_are_any),
        cmocka_unit_test(the_page_has_the_same_tables),
    };
    const struct CMUnitTest writing[] = {cmocka_unit_test(write_page)};
    if (argc > 1 && strcmp(argv[1], "--write") == 0)
        return cmocka_run_group_tests(writing, NULL, NULL);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

// /openapi.json: the tables of routes and fields, as OpenAPI 3.1 has them.
#include "server/api.h"
#include "server/routes.h"
#include "server/server_int.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

// --- fields --------------------------------------------------------------------------------------

// ["string", "array"] of "string|array".
static json_t *names_json(const char *names) {
    json_t *list = json_array();
    for (const char *at = names; *at;) {
        const size_t n = strcspn(at, "|");
        qn_json_push(&list, json_stringn(at, n));
        at += n + (at[n] == '|');
    }
    return list;
}

// The same with "null", which is nothing, everywhere.
static json_t *types_json(const char *names) {
    json_t *list = names_json(names);
    qn_json_push(&list, json_string("null"));
    return list;
}

static const char *type_of(const qn_field *f) {
    static const char *const types[] = {
        [QN_FIELD_BOOL] = "boolean",  [QN_FIELD_INT] = "integer",    [QN_FIELD_REAL] = "number",
        [QN_FIELD_INT32] = "integer", [QN_FIELD_LAST_N] = "integer", [QN_FIELD_SEED] = "integer",
        [QN_FIELD_TEXT] = "string",   [QN_FIELD_JSON] = NULL,        [QN_FIELD_IGNORED] = NULL,
        [QN_FIELD_REFUSED] = NULL};
    return types[f->kind] ? types[f->kind] : f->type;
}

static bool has_bounds(const qn_field *f) {
    return f->kind == QN_FIELD_INT || f->kind == QN_FIELD_INT32 || f->kind == QN_FIELD_LAST_N ||
           f->kind == QN_FIELD_REAL;
}

static json_t *bound_json(const qn_field *f, double x) {
    return f->kind == QN_FIELD_REAL ? qn_json_real(x) : json_integer((json_int_t)x);
}

static json_t *field_json(const qn_field *f) {
    json_t *o = json_object();
    if (f->kind == QN_FIELD_REFUSED) {
        json_t *values = json_array();
        qn_json_push(&values, json_null());
        qn_json_push(&values, json_false());
        qn_json_push(&values, json_string(""));
        qn_json_push(&values, json_array());
        qn_json_put(&o, "enum", values);
        qn_json_put(&o, "description", json_sprintf("Not supported: %s.", f->meaning));
        return o;
    }
    if (f->kind == QN_FIELD_IGNORED) {
        qn_json_put(&o, "description", json_sprintf("Ignored: %s.", f->meaning));
        return o;
    }
    qn_json_put(&o, "type", types_json(type_of(f)));
    if (has_bounds(f)) {
        qn_json_put(&o, "minimum", bound_json(f, f->min));
        qn_json_put(&o, "maximum", bound_json(f, f->max));
    }
    qn_json_put(&o, "description", json_string(f->meaning));
    return o;
}

static void put_aliases(json_t **properties, const qn_field *f) {
    for (const char *at = f->aliases; *at;) {
        char name[64];
        const size_t n = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)n, at);
        json_t *o = field_json(f);
        qn_json_put(&o, "description", json_sprintf("Another name of %s.", f->name));
        qn_json_put(properties, name, o);
        at += n + (at[n] == ',');
    }
}

static json_t *ref_json(const char *kind, const char *name) {
    json_t *o = json_object();
    qn_json_put(&o, "$ref", json_sprintf("#/components/%s/%s", kind, name));
    return o;
}

static json_t *set_json(uint32_t set) {
    json_t *o = json_object(), *properties = json_object();
    const qn_field *f;
    for (size_t i = 0; (f = qn_field_at(i)) != NULL; i++) {
        if (!(f->sets & set)) continue;
        const bool has_own = set & QN_SET_OLLAMA && strcmp(f->name, "options") == 0;
        qn_json_put(&properties, f->name,
                    has_own ? ref_json("schemas", "OllamaOptions") : field_json(f));
        put_aliases(&properties, f);
    }
    qn_json_put(&o, "type", json_string("object"));
    qn_json_put(&o, "properties", properties);
    return o;
}

// What a request must have, beside the name of the model where there are several. The other routes
// take an empty object.
static const struct {
    const char *path, *fields; // separated by '|'
} needs[] = {{"/v1/chat/completions", "messages"},
             {"/v1/chat/completions/input_tokens", "messages"},
             {"/v1/responses", "input"},
             {"/v1/responses/input_tokens", "input"},
             {"/v1/messages", "messages|max_tokens"},
             {"/v1/messages/count_tokens", "messages"},
             {"/v1/completions", "prompt"},
             {"/v1/embeddings", "input"},
             {"/completion", "prompt"},
             {"/tokenize", "content"},
             {"/detokenize", "tokens"},
             {"/apply-template", "messages"},
             {"/api/embed", "input"},
             {"/api/embeddings", "prompt"}};

static json_t *body_json(const qn_route *route) {
    json_t *o = set_json(route->set);
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        if (strcmp(needs[i].path, route->path) == 0)
            qn_json_put(&o, "required", names_json(needs[i].fields));
    }
    return o;
}

// --- routes --------------------------------------------------------------------------------------

// "post_v1_chat_completions"
static json_t *operation_id(const qn_route *route) {
    char id[96];
    snprintf(id, sizeof id, "%s%s", route->method,
             strcmp(route->path, "/") ? route->path : "_page");
    for (char *c = id; *c; c++) *c = isalnum((unsigned char)*c) ? (char)tolower(*c) : '_';
    return json_string(id);
}

static const char *const error_names[] = {[QN_FORM_OPENAI] = "Error",
                                          [QN_FORM_ANTHROPIC] = "AnthropicError",
                                          [QN_FORM_OLLAMA] = "OllamaError"};

// {"application/json": {"schema": ...}}
static json_t *content_json(json_t *schema) {
    json_t *content = json_object(), *media = json_object();
    qn_json_put(&media, "schema", schema);
    qn_json_put(&content, "application/json", media);
    return content;
}

static bool has_rest(const qn_route *route) { return route->path[strlen(route->path) - 1] == '*'; }

// The part of a path that '*' stands for.
static json_t *rest_json(void) {
    json_t *list = json_array(), *o = json_object(), *schema = json_object();
    qn_json_put(&schema, "type", json_string("string"));
    qn_json_put(&o, "name", json_string("rest"));
    qn_json_put(&o, "in", json_string("path"));
    qn_json_put(&o, "required", json_true());
    qn_json_put(&o, "schema", schema);
    qn_json_push(&list, o);
    return list;
}

static json_t *route_json(const qn_route *route) {
    json_t *o = json_object(), *responses = json_object(), *fine = json_object();
    qn_json_put(&o, "operationId", operation_id(route));
    qn_json_put(&o, "summary", json_string(route->summary));
    if (route->set) {
        json_t *body = json_object();
        qn_json_put(&body, "required", json_true());
        qn_json_put(&body, "content", content_json(body_json(route)));
        qn_json_put(&o, "requestBody", body);
    }
    if (has_rest(route)) qn_json_put(&o, "parameters", rest_json());
    if (route->flags & QN_ROUTE_PUBLIC) qn_json_put(&o, "security", json_array());
    qn_json_put(&fine, "description", json_string("The answer."));
    qn_json_put(&responses, "200", fine);
    qn_json_put(&responses, "default", ref_json("responses", error_names[route->form]));
    qn_json_put(&o, "responses", responses);
    return o;
}

static json_t *paths_json(void) {
    json_t *paths = json_object();
    const qn_route *route;
    for (size_t i = 0; (route = qn_route_at(i)) != NULL; i++) {
        if (route->flags & QN_ROUTE_ALIAS) continue;
        char method[8], path[96];
        snprintf(method, sizeof method, "%.7s", route->method);
        snprintf(path, sizeof path, "%.*s%s", (int)strlen(route->path) - has_rest(route),
                 route->path, has_rest(route) ? "{rest}" : "");
        for (char *c = method; *c; c++) *c = (char)tolower(*c);
        json_t *item = json_incref(json_object_get(paths, path));
        if (!item) item = json_object();
        qn_json_put(&item, method, route_json(route));
        qn_json_put(&paths, path, item);
    }
    return paths;
}

// --- errors and keys -----------------------------------------------------------------------------

static json_t *text_schema(void) {
    json_t *o = json_object();
    qn_json_put(&o, "type", json_string("string"));
    return o;
}

// An object with these members, all required; takes the values.
static json_t *object_schema(const char *const *names, json_t **values, size_t n) {
    json_t *o = json_object(), *properties = json_object(), *required = json_array();
    for (size_t i = 0; i < n; i++) {
        qn_json_put(&properties, names[i], values[i]);
        qn_json_push(&required, json_string(names[i]));
    }
    qn_json_put(&o, "type", json_string("object"));
    qn_json_put(&o, "properties", properties);
    qn_json_put(&o, "required", required);
    return o;
}

static json_t *error_schema(qn_error_form form) {
    if (form == QN_FORM_OLLAMA)
        return object_schema((const char *const[]){"error"}, (json_t *[]){text_schema()}, 1);
    json_t *code = json_object(), *param = json_object();
    qn_json_put(&code, "type", types_json("integer|string"));
    qn_json_put(&param, "type", types_json("string"));
    json_t *inner = NULL;
    if (form == QN_FORM_OPENAI) {
        inner = object_schema((const char *const[]){"message", "type", "param", "code"},
                              (json_t *[]){text_schema(), text_schema(), param, code}, 4);
        return object_schema((const char *const[]){"error"}, (json_t *[]){inner}, 1);
    }
    json_decref(code);
    json_decref(param);
    inner = object_schema((const char *const[]){"type", "message"},
                          (json_t *[]){text_schema(), text_schema()}, 2);
    return object_schema((const char *const[]){"type", "error"}, (json_t *[]){text_schema(), inner},
                         2);
}

static json_t *responses_json(void) {
    json_t *o = json_object();
    for (int form = QN_FORM_OPENAI; form <= QN_FORM_OLLAMA; form++) {
        json_t *response = json_object();
        qn_json_put(&response, "description", json_string("What went wrong."));
        qn_json_put(&response, "content", content_json(ref_json("schemas", error_names[form])));
        qn_json_put(&o, error_names[form], response);
    }
    return o;
}

static json_t *schemas_json(void) {
    json_t *o = json_object();
    for (int form = QN_FORM_OPENAI; form <= QN_FORM_OLLAMA; form++)
        qn_json_put(&o, error_names[form], error_schema((qn_error_form)form));
    qn_json_put(&o, "OllamaOptions", set_json(QN_SET_OPTIONS));
    return o;
}

static json_t *keys_json(void) {
    json_t *o = json_object(), *bearer = json_object(), *header = json_object();
    qn_json_put(&bearer, "type", json_string("http"));
    qn_json_put(&bearer, "scheme", json_string("bearer"));
    qn_json_put(&header, "type", json_string("apiKey"));
    qn_json_put(&header, "in", json_string("header"));
    qn_json_put(&header, "name", json_string("x-api-key"));
    qn_json_put(&o, "bearer", bearer);
    qn_json_put(&o, "header", header);
    return o;
}

// Either of the two ways, or none where the server has no keys.
static json_t *security_json(bool has_keys) {
    json_t *list = json_array();
    static const char *const ways[] = {"bearer", "header"};
    for (size_t i = 0; has_keys && i < sizeof ways / sizeof *ways; i++) {
        json_t *way = json_object();
        qn_json_put(&way, ways[i], json_array());
        qn_json_push(&list, way);
    }
    return list;
}

// --- the file ------------------------------------------------------------------------------------

static json_t *info_json(void) {
    json_t *o = json_object();
    qn_json_put(&o, "title", json_string("Quern"));
    qn_json_put(&o, "version", json_string(qn_version()));
    qn_json_put(&o, "description",
                json_string("Language models behind the addresses of OpenAI, Anthropic, Ollama and "
                            "llama-server. Fields that are not named here are ignored."));
    return o;
}

static json_t *components_json(void) {
    json_t *o = json_object();
    qn_json_put(&o, "schemas", schemas_json());
    qn_json_put(&o, "responses", responses_json());
    qn_json_put(&o, "securitySchemes", keys_json());
    return o;
}

void qn_api_openapi(qn_exchange *ex) {
    json_t *o = json_object(), *servers = json_array(), *here = json_object();
    qn_json_put(&here, "url", json_string("/"));
    qn_json_push(&servers, here);
    qn_json_put(&o, "openapi", json_string("3.1.0"));
    qn_json_put(&o, "info", info_json());
    qn_json_put(&o, "servers", servers);
    qn_json_put(&o, "security", security_json(qn_guard_has_keys(&ex->server->guard)));
    qn_json_put(&o, "paths", paths_json());
    qn_json_put(&o, "components", components_json());
    qn_reply_json(ex, 200, o);
    qn_exchange_leave(ex);
}

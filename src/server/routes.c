#include "server/routes.h"

#include "server/api.h"
#include "server/page.h"

#include <string.h>

// clang-format off
static const qn_route routes[] = {
#define ROUTE(method, path, form, set, flags, handle, summary)                                     \
    {method, path, QN_FORM_##form, set, flags, handle, summary},
#define ALIAS(method, path, form, set, flags, handle)                                              \
    {method, path, QN_FORM_##form, set, (flags) | QN_ROUTE_ALIAS, handle, ""},
#include "server/routes.def"
#undef ROUTE
#undef ALIAS
};
// clang-format on
enum { N_ROUTES = sizeof routes / sizeof *routes };

const qn_route *qn_route_at(size_t i) { return i < N_ROUTES ? &routes[i] : NULL; }

const char *qn_route_summary(const qn_route *route) {
    while (route->flags & QN_ROUTE_ALIAS) route--;
    return route->summary;
}

// A path that ends in '*' stands for all that begin so.
static bool is_path(const char *path, const char *shown) {
    const size_t n = strlen(path);
    if (n > 1 && path[n - 1] == '*') return strncmp(path, shown, n - 1) == 0;
    return strcmp(path, shown) == 0;
}

const qn_route *qn_route_find(const char *method, const char *path, bool *is_there) {
    if (strcmp(method, "HEAD") == 0) method = "GET";
    *is_there = false;
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (!is_path(routes[i].path, path)) continue;
        *is_there = true;
        if (strcmp(routes[i].method, method) == 0) return &routes[i];
    }
    return NULL;
}

const char *qn_route_allowed(const char *path) {
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (is_path(routes[i].path, path)) return routes[i].method;
    }
    return "";
}

qn_error_form qn_route_form(const char *path) {
    for (size_t i = 0; i < N_ROUTES; i++) {
        if (is_path(routes[i].path, path)) return routes[i].form;
    }
    if (is_path("/api/*", path)) return QN_FORM_OLLAMA;
    return is_path("/v1/messages/*", path) ? QN_FORM_ANTHROPIC : QN_FORM_OPENAI;
}

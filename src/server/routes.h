// Which path is answered by what: one table.
#ifndef QN_SERVER_ROUTES_H
#define QN_SERVER_ROUTES_H

#include "server/fields.h"
#include "server/problem.h"

enum {
    QN_ROUTE_QUICK = 1,  // answers at once, on the HTTP library's thread
    QN_ROUTE_PUBLIC = 2, // needs no key
    QN_ROUTE_ALIAS = 4   // another spelling of the route above it: not in the OpenAPI file
};

typedef struct qn_route {
    const char *method, *path; // "GET" stands for HEAD too
    qn_error_form form;
    uint32_t set; // of the fields that its body may have (fields.h); 0: no body
    int flags;
    void (*handle)(qn_exchange *ex); // answers, or starts a job that will
    const char *summary;             // one sentence, for the OpenAPI file and the docs
} qn_route;

// *is_there: the path is known, with another method.
const qn_route *qn_route_find(const char *method, const char *path, bool *is_there);
// What a route does: of an alias, what the one above it does.
const char *qn_route_summary(const qn_route *route);
// The method of a path that is there.
const char *qn_route_allowed(const char *path);
// How errors look there, also where no route is: as in the dialect that such paths belong to.
qn_error_form qn_route_form(const char *path);
// The i-th; NULL after the last.
const qn_route *qn_route_at(size_t i);

#endif

// What Jinja2 renders with published chat templates: tests/data/templates/expected.json.gz, made once with Jinja2. It is
// packed because its 572 texts repeat each other (474 KB, 24 packed).
#ifndef QN_TESTS_TEMPLATE_CASES_H
#define QN_TESTS_TEMPLATE_CASES_H

#include "core/json.h"

// {"cases": case -> request, "expected": template -> case -> {"text"} or {"error"}}; fails the test where it is damaged.
// Release with json_decref.
json_t *template_cases_open(void);

#endif

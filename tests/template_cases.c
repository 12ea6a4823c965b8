#include "template_cases.h"
#include "testing.h"

#include <stdlib.h>
#include <zlib.h>

enum { MAX_BYTES = 1 << 24 };

json_t *template_cases_open(void) {
    char *text = malloc(MAX_BYTES);
    gzFile file = gzopen(TEST_DATA "/templates/expected.json.gz", "rb");
    qn_err err = {0};
    json_t *all;
    assert_non_null(text);
    assert_non_null(file);
    const int size = gzread(file, text, MAX_BYTES);
    assert_true(size > 0 && size < MAX_BYTES);
    assert_int_equal(gzclose(file), Z_OK); // a sum that is wrong would show here
    ASSERT_OK(qn_json_parse(&all, text, (size_t)size, false, "expected.json", &err));
    free(text);
    return all;
}

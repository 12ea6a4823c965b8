#include "core/real_text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Decimals of up to DBL_DIG digits survive a double, so that many show any that has fewer; below
// the normal doubles that is not so.
static int first_digits(double value) { return fabs(value) < DBL_MIN ? 1 : DBL_DIG; }

bool qn_double_text(char out[QN_REAL_TEXT], double value, int digits) {
    char text[QN_REAL_TEXT];
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    const locale_t before = uselocale(c);
    int n = digits ? digits : first_digits(value);
    do {
        snprintf(text, sizeof text, "%.*g", n, value);
    } while (!digits && ++n <= DBL_DECIMAL_DIG && strtod(text, NULL) != value);
    uselocale(before);
    freelocale(c);
    memcpy(out, text, sizeof text);
    return true;
}

bool qn_text_double(double *out, const char *text) {
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    const locale_t before = uselocale(c);
    *out = strtod(text, NULL);
    uselocale(before);
    freelocale(c);
    return true;
}

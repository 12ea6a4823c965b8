#include "core/real_text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Decimals of up to DBL_DIG digits survive a double, so that many show any that has fewer; below the
// normal doubles that is not so.
static void write_shortest(char out[QN_REAL_TEXT], double value) {
    int digits = fabs(value) < DBL_MIN ? 1 : DBL_DIG;
    do {
        snprintf(out, QN_REAL_TEXT, "%.*g", digits, value);
    } while (++digits <= DBL_DECIMAL_DIG && strtod(out, NULL) != value);
}

bool qn_double_text(char out[QN_REAL_TEXT], double value, int digits) {
    const locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (!c) return false;
    const locale_t before = uselocale(c);
    if (digits)
        snprintf(out, QN_REAL_TEXT, "%.*g", digits, value);
    else
        write_shortest(out, value);
    uselocale(before);
    freelocale(c);
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

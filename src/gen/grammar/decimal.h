// Decimal numbers as a schema writes them: exact, of any size that a grammar can use.
#ifndef QN_GEN_GRAMMAR_DECIMAL_H
#define QN_GEN_GRAMMAR_DECIMAL_H

#include "core/str.h"

#include <stdint.h>

enum { QN_DECIMAL_DIGITS = 400 }; // before the point, and after it: every double has fewer

typedef struct qn_gr_decimal {
    bool is_negative;                     // never of zero
    char whole[QN_DECIMAL_DIGITS + 2];    // no zeros in front; "" is 0. One more for a carry
    char fraction[QN_DECIMAL_DIGITS + 1]; // no zeros at the end
} qn_gr_decimal;

// A number in JSON's notation; false if it has more digits than fit.
bool qn_gr_decimal_read(qn_gr_decimal *out, qn_str text);
qn_gr_decimal qn_gr_decimal_of(int64_t value);
// < 0, 0, > 0, as a is less than, equal to or greater than b; the second without their signs.
int qn_gr_decimal_compare(const qn_gr_decimal *a, const qn_gr_decimal *b);
int qn_gr_decimal_compare_size(const qn_gr_decimal *a, const qn_gr_decimal *b);
static inline bool qn_gr_decimal_is_whole(const qn_gr_decimal *x) { return !x->fraction[0]; }
// The nearest whole number above (or equal), or with `sign` -1 below; `is_strict`: not equal.
qn_gr_decimal qn_gr_decimal_round(const qn_gr_decimal *x, int sign, bool is_strict);
// x * 10^*scale is the whole number *out; false if that does not fit into 64 bits. x > 0.
bool qn_gr_decimal_scaled(uint64_t *out, unsigned *scale, const qn_gr_decimal *x);

#endif

// Doubles as text and back, with a point whatever the program's locale has for it.
#ifndef QN_CORE_REAL_TEXT_H
#define QN_CORE_REAL_TEXT_H

#include <stdbool.h>

enum { QN_REAL_TEXT = 40 }; // bytes for any double

// As many digits as given, as %g of printf has them; 0: the fewest that read back as the same
// double. False: no memory.
bool qn_double_text(char out[QN_REAL_TEXT], double value, int digits);
// What strtod reads at the front of the text. False: no memory.
bool qn_text_double(double *out, const char *text);

#endif

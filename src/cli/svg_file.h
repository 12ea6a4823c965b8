// Pages of SVG that need nothing else: the head that all pictures share.
#ifndef QN_CLI_SVG_FILE_H
#define QN_CLI_SVG_FILE_H

#include "core/buf.h"

enum { QN_SVG_MARGIN = 24 };

// Begins a page: white, with a title, which may come from anywhere; a grey line belongs at y 55.
void qn_svg_begin(qn_buf *to, const char *title, int width, int height);
void qn_svg_end(qn_buf *to);

#endif

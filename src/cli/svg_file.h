// Pages of SVG that need nothing else: the head that all pictures share.
#ifndef QN_CLI_SVG_H
#define QN_CLI_SVG_H

#include "core/buf.h"

enum { QN_SVG_MARGIN = 24 };

// Text between tags. It may come from anywhere, such as names of files.
void qn_svg_text(qn_buf *to, const char *text);
// Begins a page: white, with a title; a grey line belongs at y 55.
void qn_svg_begin(qn_buf *to, const char *title, int width, int height);
void qn_svg_end(qn_buf *to);

#endif

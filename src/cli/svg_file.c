#include "cli/svg_file.h"

#include "cli/out.h"

// Text between tags. It may come from anywhere, such as names of files.
static void add_text(qn_buf *to, const char *text) {
    qn_shown clean;
    for (const char *c = qn_clean(&clean, text); *c; c++) {
        if (*c == '<')
            qn_buf_text(to, "&lt;");
        else if (*c == '>')
            qn_buf_text(to, "&gt;");
        else if (*c == '&')
            qn_buf_text(to, "&amp;");
        else
            qn_buf_add(to, c, 1);
    }
}

void qn_svg_begin(qn_buf *to, const char *title, int width, int height) {
    qn_buf_printf(to,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                  "viewBox=\"0 0 %d %d\" font-family=\"system-ui, sans-serif\" "
                  "font-size=\"13\" fill=\"#1d2733\">\n<title>",
                  width, height, width, height);
    add_text(to, title);
    qn_buf_printf(to,
                  "</title>\n<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n"
                  "<text x=\"%d\" y=\"34\" font-size=\"17\" font-weight=\"600\">",
                  width, height, QN_SVG_MARGIN);
    add_text(to, title);
    qn_buf_text(to, "</text>\n");
}

void qn_svg_end(qn_buf *to) { qn_buf_text(to, "</svg>\n"); }

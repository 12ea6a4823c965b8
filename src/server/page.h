// The page for chatting: files of web/, compressed into the program when it is built.
#ifndef QN_SERVER_PAGE_H
#define QN_SERVER_PAGE_H

#include "server/exchange.h"

// A file of the page; written by the build (tools/embed.c).
typedef struct qn_page_file {
    const char *name; // "index.html"
    const char *type; // content type
    const char *hash; // of its content
    const unsigned char *data;
    size_t size;  // compressed
    size_t plain; // its size without that
} qn_page_file;
extern const qn_page_file qn_page_files[];
extern const size_t qn_page_n_files;

// Answers "/" and "/page/NAME".
void qn_page_handle(qn_exchange *ex);

#endif

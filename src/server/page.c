#include "server/page.h"

#include "core/mem.h"
#include "server/problem.h"
#include "server/server_int.h"

#include <stdio.h>
#include <string.h>
#include <zlib.h>

// Nothing from elsewhere, no scripts or styles but the page's own files.
static const char policy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'";

static const qn_page_file *find(const char *path) {
    static const char folder[] = "/page/";
    const char *name = strcmp(path, "/") == 0                          ? "index.html"
                       : strncmp(path, folder, sizeof folder - 1) == 0 ? path + sizeof folder - 1
                                                                       : path + 1;
    for (size_t i = 0; i < qn_page_n_files; i++) {
        if (strcmp(qn_page_files[i].name, name) == 0) return &qn_page_files[i];
    }
    return NULL;
}

// The content as it was before it was compressed. False: no memory.
static bool add_plain(qn_buf *body, const qn_page_file *file) {
    enum { GZIP_WINDOW = 15 + 16 };
    z_stream z = {.next_in = (unsigned char *)(uintptr_t)file->data, .avail_in = (uInt)file->size};
    unsigned char *plain = qn_alloc(file->plain + 1, 1);
    z.next_out = plain;
    z.avail_out = (uInt)file->plain + 1;
    const bool is_open = plain && inflateInit2(&z, GZIP_WINDOW) == Z_OK;
    const bool is_done = is_open && inflate(&z, Z_FINISH) == Z_STREAM_END;
    if (is_done) qn_buf_add(body, plain, z.total_out);
    if (is_open) inflateEnd(&z);
    qn_free(plain);
    return is_done && !body->failed;
}

static void send_file(qn_exchange *ex, const qn_page_file *file) {
    qn_buf body = {0};
    char tag[64];
    snprintf(tag, sizeof tag, "\"%s%s\"", file->hash, ex->takes_gzip ? "" : "-plain");
    const bool is_known = ex->tag && strcmp(ex->tag, tag) == 0;
    if (!is_known && ex->takes_gzip) qn_buf_add(&body, file->data, file->size);
    if (!is_known && !ex->takes_gzip && !add_plain(&body, file)) {
        qn_buf_deinit(&body);
        qn_reply_json(ex, 503, NULL);
        return;
    }
    qn_exchange_header(ex, "ETag", tag);
    qn_exchange_header(ex, "Cache-Control",
                       "no-cache"); // asks each time, and gets it if it changed
    if (ex->takes_gzip) qn_exchange_header(ex, "Content-Encoding", "gzip");
    qn_exchange_header(ex, "Vary", "Accept-Encoding");
    qn_exchange_header(ex, "Content-Security-Policy", policy);
    qn_exchange_header(ex, "Referrer-Policy", "no-referrer");
    qn_exchange_reply(ex, is_known ? 304 : 200, file->type, &body);
}

// Programs look at "/" for whether there is a server, with the page or without.
static void send_sign(qn_exchange *ex) {
    qn_buf body = {0};
    qn_buf_text(&body, "Quern is running");
    qn_exchange_reply(ex, 200, "text/plain; charset=utf-8", &body);
}

void qn_page_handle(qn_exchange *ex) {
    const qn_page_file *file = ex->server->opts.page ? find(ex->path) : NULL;
    qn_problem problem;
    if (file) {
        send_file(ex, file);
    } else if (strcmp(ex->path, "/") == 0) {
        send_sign(ex);
    } else {
        (void)QN_REFUSE(&problem, 404, "", "there is no %.200s here%s", ex->path,
                        ex->server->opts.page ? "" : ": the page is turned off");
        qn_problem_reply(ex, &problem);
    }
    qn_exchange_leave(ex);
}

// Clients that mean harm, or do not know better: thousands of wrong requests, and the server is as
// it was before. `test_server_hostile N` sends N requests (the default is for every day).
#include "serve_rig.h"
#include "server/ask.h"
#include "server/routes.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>

enum { USUAL = 400, N_IDLE = 1000 };
static int n_wanted = USUAL;

// --- chance --------------------------------------------------------------------------------------

static uint64_t chance = 88172645463325252u;

static unsigned any(unsigned below) {
    chance ^= chance << 13;
    chance ^= chance >> 7;
    chance ^= chance << 17;
    return (unsigned)(chance >> 33) % below;
}

// --- requests ------------------------------------------------------------------------------------

static const qn_route *any_post(void) {
    size_t n = 0;
    while (qn_route_at(n)) n++;
    for (;;) {
        const qn_route *route = qn_route_at(any((unsigned)n));
        if (strcmp(route->method, "POST") == 0) return route;
    }
}

#define MESSAGES "\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}]"

// What every dialect takes for a small request, but for the member `but`; others follow.
static void put_usual(qn_buf *to, const char *but) {
    static const struct {
        const char *name, *text;
    } members[] = {{"messages", MESSAGES ","},
                   {"prompt", "\"prompt\":\"Hello!\","},
                   {"input", "\"input\":\"Hello!\","},
                   {"content", "\"content\":\"Hello!\","},
                   {"max_tokens", "\"max_tokens\":4,"}};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) {
        if (strcmp(members[i].name, but) != 0) qn_buf_text(to, members[i].text);
    }
    qn_buf_text(to, "\"user\":\"x\"");
}

static void repeat(qn_buf *to, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) qn_buf_text(to, text);
}

// Values that no field, or few fields, take.
static const char *const values[] = {
    "null",
    "true",
    "false",
    "0",
    "-1",
    "1e999",
    "-1e308",
    "1e-320",
    "-0",
    "2.5",
    "1e15",
    "\"\"",
    "\"x\"",
    "[]",
    "{}",
    "[null]",
    "[[]]",
    "[{}]",
    "{\"a\":{}}",
    "[1,2,3]",
    "[\"\"]",
    "NaN",
    "Infinity",
    "+1",
    "01",
    ".5",
    "0x10",
    "'x'",
    "\"\\u0000\"",
    "\"\\ud800\"",
    "\"\\udc00\\ud800\"",
    "\"\xff\xfe\"",
    "\"\xc0\x80\"",
    "9223372036854775807",
    "-9223372036854775808",
    "99999999999999999999999999",
    "[-1]",
    "[999999999]",
    "[1.5]",
    "{\"99999999\":1}",
    "{\"-5\":1}",
    "{\"1\":\"x\"}",
    "[[1,1e30]]",
    "{\"type\":\"json_schema\"}",
    "{\"type\":[]}",
    "{\"type\":\"function\"}",
    "[{\"type\":\"function\",\"function\":{\"name\":\"a\\\"b\",\"parameters\":[]}}]",
    "[{\"type\":\"function\",\"function\":{}}]",
    "[{\"role\":\"tool\"}]",
    "[{\"role\":5}]",
    ("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
     "\"file:///etc/passwd\"}}]}]"),
    ("[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":"
     "\"http://127.0.0.1:1/\"}}]}]"),
};

static void put_value(qn_buf *to) {
    const unsigned i = any(sizeof values / sizeof *values + 4);
    if (i < sizeof values / sizeof *values) {
        qn_buf_text(to, values[i]);
    } else if (i % 4 == 0) { // deep
        const size_t depth = 1 + any(100000);
        repeat(to, "[", depth);
        repeat(to, "]", depth);
    } else if (i % 4 == 1) { // many
        qn_buf_text(to, "[\"a\"");
        repeat(to, ",\"ab\"", any(100000));
        qn_buf_text(to, "]");
    } else if (i % 4 == 2) { // long
        qn_buf_text(to, "\"");
        repeat(to, "ab c", any(20000));
        qn_buf_text(to, "\"");
    } else { // many members
        qn_buf_text(to, "{\"a\":1");
        for (unsigned k = any(5000); k > 0; k--) qn_buf_printf(to, ",\"%u\":1", k);
        qn_buf_text(to, "}");
    }
}

// A wrong value for a field of the route, by its name or another one.
static void put_wrong_field(qn_buf *to, const qn_route *route) {
    size_t n = 0;
    while (qn_field_at(n)) n++;
    const qn_field *f;
    do {
        f = qn_field_at(any((unsigned)n));
    } while (!(f->sets & route->set) && any(50));
    qn_buf_text(to, "{");
    put_usual(to, f->name);
    qn_buf_printf(to, ",\"%s%s\":", f->name, any(30) ? "" : "\\u0000");
    put_value(to);
    if (!any(3)) qn_buf_text(to, ",\"stream\":true");
    qn_buf_text(to, "}");
}

// Members that cost more than they look.
static const char *const bombs[] = {
    "\"grammar\":\"root ::= root\"",
    "\"grammar\":\"root ::= (((((((((((((((\"",
    "\"grammar\":\"root ::= \\\"a\\\"{0,99999999}\"",
    "\"grammar\":\"root ::= a\\na ::= a | a a | \\\"x\\\"\"",
    "\"regex\":\"(a*)*(a*)*(a*)*b\"",
    "\"regex\":\"((a{1,1000}){1,1000}){1,1000}\"",
    "\"regex\":\"(?=a)(?!b)(?<=c)\\\\p{L}{1000}\"",
    "\"regex\":\"[\"",
    "\"json_schema\":{\"$ref\":\"#\"}",
    "\"json_schema\":{\"allOf\":[{\"$ref\":\"#/allOf/0\"}]}",
    "\"json_schema\":{\"type\":\"string\",\"maxLength\":1000000000}",
    "\"json_schema\":{\"type\":\"array\",\"items\":{\"$ref\":\"#\"},\"minItems\":1000000000}",
    "\"json_schema\":{\"type\":\"string\",\"pattern\":\"^(a|aa)+$\",\"minLength\":50}",
    "\"json_schema\":{\"type\":\"integer\",\"multipleOf\":1e-300}",
    "\"json_schema\":{\"patternProperties\":{\"^(a|b)*a(a|b){30}$\":{}},\"minProperties\":9}",
    "\"json_schema\":{\"$ref\":\"http://127.0.0.1:1/schema\"}",
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"not\":{}}}}",
    "\"guided_choice\":[]",
    "\"guided_choice\":[\"a\",5]",
    "\"structured_outputs\":{\"regex\":\"a\",\"grammar\":\"b\"}",
    "\"logit_bias\":{\"999999999\":5}",
    "\"logit_bias\":{\"5\":1e300}",
    "\"logit_bias\":[[-1,5]]",
    "\"n\":128,\"stream\":true",
    "\"logprobs\":true,\"top_logprobs\":1000000",
    ("\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":"
     "\"object\",\"properties\":{\"a\":{\"$ref\":\"#/properties/a\"}}}}}]"),
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\",\"parameters\":5}}]",
    "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"none of them\"}}",
    "\"chat_template_kwargs\":{\"messages\":5,\"tools\":{},\"eos_token\":[]}",
};

static void put_bomb(qn_buf *to) {
    const unsigned i = any(sizeof bombs / sizeof *bombs + 3);
    qn_buf_text(to, "{");
    put_usual(to, "");
    qn_buf_text(to, ",");
    if (i < sizeof bombs / sizeof *bombs) {
        qn_buf_text(to, bombs[i]);
    } else if (i % 3 == 0) {
        qn_buf_text(to, "\"json_schema\":{\"oneOf\":[{}");
        for (unsigned k = 0; k < 60; k++)
            qn_buf_printf(to, ",{\"properties\":{\"a%u\":{\"const\":%u}}}", k, k);
        qn_buf_text(to, "]}");
    } else if (i % 3 == 1) {
        qn_buf_text(to, "\"tools\":[{}");
        for (unsigned k = any(500); k > 0; k--)
            qn_buf_printf(to, ",{\"type\":\"function\",\"function\":{\"name\":\"f%u\"}}", k);
        qn_buf_text(to, "]");
    } else {
        qn_buf_text(to, "\"stop\":[\"x\"");
        repeat(to, ",\"yz\"", 100000);
        qn_buf_text(to, "]");
    }
    qn_buf_text(to, "}");
}

static void put_head(qn_buf *to, const qn_route *route, size_t size, bool stays) {
    qn_buf_printf(to, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %zu\r\n\r\n",
                  route->path, stays ? "" : "Connection: close\r\n", size);
}

// --- answers -------------------------------------------------------------------------------------

static bool is_type(const char *type) {
    static const char *const known[] = {"invalid_request_error", "authentication_error",
                                        "permission_error",      "not_found_error",
                                        "rate_limit_error",      "server_error",
                                        "unavailable_error",     "not_supported_error",
                                        "request_too_large",     "api_error",
                                        "overloaded_error",      "exceed_context_size_error"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (strcmp(known[i], type) == 0) return true;
    }
    return false;
}

// What our handlers say is JSON, and an error has a type that is documented. What a request says is
// never an error of the server's.
static void check_answer(const http_answer *a, const qn_route *route, const char *request) {
    const char *type = http_header(a, "Content-Type");
    if (a->status == 0 || !http_header(a, "X-Request-Id") || !a->is_whole) return; // cut, or MHD's
    const bool is_refused = a->status == 501 && route->set == 0; // the whole route is
    if (a->status == 500 || (a->status == 501 && !is_refused) || a->status > 503)
        fail_msg("%s: status %d: %.300s for %.600s", route->path, a->status, a->body.data, request);
    if (!type || strncmp(type, "application/json", 16) != 0) return; // a stream
    json_t *value = http_json(a);
    if (a->status >= 400) {
        const json_t *error = json_object_get(value, "error");
        const char *kind = json_string_value(json_object_get(error, "type"));
        const bool is_fine =
            route->form == QN_FORM_OLLAMA ? json_is_string(error) : kind && is_type(kind);
        if (!is_fine) fail_msg("%s: %.300s", route->path, a->body.data);
    }
    json_decref(value);
}

static void set_timeout(int fd, int ms) {
    const struct timeval time = {.tv_sec = ms / 1000, .tv_usec = ms % 1000 * 1000};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time), 0);
}

static void ask_and_check(const serve_rig *rig, const qn_route *route, const qn_buf *body) {
    qn_buf request = {0};
    put_head(&request, route, body->size, false);
    qn_buf_add(&request, body->data, body->size);
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size);
    http_answer a = http_read(fd);
    check_answer(&a, route, request.data);
    http_deinit(&a);
    close(fd);
    qn_buf_deinit(&request);
}

// --- kinds of harm -------------------------------------------------------------------------------

static void wrong_field(const serve_rig *rig) {
    const qn_route *route = any_post();
    qn_buf body = {0};
    put_wrong_field(&body, route);
    ask_and_check(rig, route, &body);
    qn_buf_deinit(&body);
}

static void bomb(const serve_rig *rig) {
    const qn_route *route = any_post();
    qn_buf body = {0};
    put_bomb(&body);
    ask_and_check(rig, route, &body);
    qn_buf_deinit(&body);
}

// A right request with a few bytes changed, left out or doubled.
static void broken_json(const serve_rig *rig) {
    const qn_route *route = any_post();
    qn_buf body = {0};
    qn_buf_text(&body, "{");
    put_usual(&body, "");
    qn_buf_text(&body, ",\"stop\":[\"\\u00e9\\ud83d\\ude00\"],\"temperature\":0.5}");
    for (unsigned i = 1 + any(4); i > 0; i--) body.data[any((unsigned)body.size)] = (char)any(256);
    if (!any(4)) body.size -= any((unsigned)body.size);
    ask_and_check(rig, route, &body);
    qn_buf_deinit(&body);
}

// A stream or an answer that is left at any moment, sometimes after some of it was read.
static void leave(const serve_rig *rig) {
    const qn_route *route = any_post();
    qn_buf body = {0}, request = {0};
    char block[512];
    qn_buf_text(&body, "{");
    qn_buf_printf(&body,
                  MESSAGES
                  ",\"prompt\":\"Tell me a story.\",\"input\":\"Tell me a story.\",\"max_tokens\":"
                  "%u,\"ignore_eos\":true,\"n\":%u,\"stream\":%s}",
                  1 + any(300), 1 + any(3), any(2) ? "true" : "false");
    put_head(&request, route, body.size, false);
    qn_buf_add(&request, body.data, body.size);
    const int fd = serve_connect(rig);
    serve_send(fd, request.data, request.size - (any(4) ? 0 : any(40)));
    set_timeout(fd, 20);
    for (unsigned i = any(4); i > 0; i--) (void)!recv(fd, block, 1 + any(sizeof block), 0);
    if (any(2)) { // a reset in place of a proper end
        const struct linger now = {.l_onoff = 1};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    }
    close(fd);
    qn_buf_deinit(&body);
    qn_buf_deinit(&request);
}

// Bytes that are no HTTP.
static void garbage(const serve_rig *rig) {
    static const char *const starts[] = {
        "",
        "GET ",
        "GET / HTTP/1.1\r\nHost: localhost\r\n",
        "GET / HTTP/9.9\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
        ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
         "Content-Length: 6\r\n\r\n12345"),
        ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "FFFFFFFFFFFFFFFFF\r\n"),
        ("POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: "
         "chunked\r\n\r\n"
         "5;ext=1\r\nhello\r\nzz\r\n"),
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: gzip\r\n\r\n",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /%00%ff%2e%2e/../../etc/passwd?model=%00 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET http://localhost/v1/models HTTP/1.1\r\nHost: \xff\r\n\r\n",
    };
    qn_buf bytes = {0};
    qn_buf_text(&bytes, starts[any(sizeof starts / sizeof *starts)]);
    for (unsigned i = any(300); i > 0; i--) qn_buf_add(&bytes, &(char){(char)any(256)}, 1);
    if (!any(5)) {
        qn_buf_text(&bytes, "\r\nHost: localhost\r\n");
        for (unsigned i = any(3000); i > 0; i--) qn_buf_printf(&bytes, "X-%u: y\r\n", i);
    }
    if (!any(5)) repeat(&bytes, "A", any(100000));
    const int fd = serve_connect(rig);
    serve_send(fd, bytes.data, bytes.size);
    shutdown(fd, SHUT_WR);
    set_timeout(fd, 50);
    http_answer a = http_read(fd);
    http_deinit(&a);
    close(fd);
    qn_buf_deinit(&bytes);
}

// Several requests at once, of which the last is not whole.
static void pipeline(const serve_rig *rig) {
    qn_buf bytes = {0};
    const unsigned n = 1 + any(6);
    for (unsigned i = 0; i < n; i++) {
        const qn_route *route = any_post();
        qn_buf body = {0};
        put_wrong_field(&body, route);
        put_head(&bytes, route, body.size, true);
        qn_buf_add(&bytes, body.data, body.size);
        qn_buf_deinit(&body);
    }
    const int fd = serve_connect(rig);
    serve_send(fd, bytes.data, bytes.size - any(50));
    set_timeout(fd, 30);
    for (unsigned i = any(n + 1); i > 0; i--) {
        http_answer a = http_read_one(fd, true);
        http_deinit(&a);
    }
    close(fd);
    qn_buf_deinit(&bytes);
}

// A body in chunks, a byte at a time or in odd sizes, whole or not.
static void chunks(const serve_rig *rig) {
    const qn_route *route = any_post();
    qn_buf body = {0}, bytes = {0};
    put_wrong_field(&body, route);
    qn_buf_printf(&bytes,
                  "POST %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                  "Transfer-Encoding: chunked\r\n\r\n",
                  route->path);
    const size_t most = 1 + any(200), size = body.size < 20000 ? body.size : 20000;
    for (size_t at = 0; at < size;) {
        const size_t n = size - at < most ? size - at : most;
        qn_buf_printf(&bytes, any(2) ? "%zx\r\n" : "%zX\r\n", n);
        qn_buf_add(&bytes, body.data + at, n);
        qn_buf_text(&bytes, "\r\n");
        at += n;
    }
    const bool is_whole = any(4) > 0;
    if (is_whole) qn_buf_text(&bytes, "0\r\n\r\n");
    const int fd = serve_connect(rig);
    serve_send(fd, bytes.data, bytes.size);
    if (!is_whole) set_timeout(fd, 10);
    http_answer a = http_read(fd);
    check_answer(&a, route, bytes.data);
    http_deinit(&a);
    close(fd);
    qn_buf_deinit(&body);
    qn_buf_deinit(&bytes);
}

// A length that promises more than comes, or more than is taken.
static void wrong_length(const serve_rig *rig) {
    static const char *const lengths[] = {"99999999999", "67108865", "1000", "18446744073709551615",
                                          "0"};
    qn_buf bytes = {0};
    qn_buf_printf(
        &bytes, "POST %s HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: %s\r\n\r\n{\"messages\"",
        any_post()->path, any(2) ? "Expect: 100-continue\r\n" : "",
        lengths[any(sizeof lengths / sizeof *lengths)]);
    const int fd = serve_connect(rig);
    serve_send(fd, bytes.data, bytes.size);
    set_timeout(fd, 10);
    http_answer a = http_read(fd);
    http_deinit(&a);
    close(fd);
    qn_buf_deinit(&bytes);
}

static void (*const kinds[])(const serve_rig *rig) = {
    wrong_field, wrong_field, wrong_field, bomb,   broken_json, leave,
    leave,       garbage,     pipeline,    chunks, wrong_length};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

// --- the server afterwards -----------------------------------------------------------------------

static int64_t count_held(const serve_rig *rig) {
    return (int64_t)atomic_load(&rig->server->n_held);
}

static void check_calm(const serve_rig *rig) {
    serve_wait(rig, serve_jobs, 0);
    serve_wait(rig, serve_rows, 0);
    serve_wait(rig, serve_links, 0);
    serve_wait(rig, count_held, 0);
    json_t *a = post_json(rig, "/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"What color is a "
                          "lemon?\"}],\"max_tokens\":20}",
                          200);
    assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
    json_decref(a);
    serve_wait(rig, serve_jobs, 0);
    serve_wait(rig, serve_links, 0);
}

// Bytes in use; 0 where the allocator does not tell (sanitizers have their own).
static size_t used_bytes(void) {
    malloc_trim(0);
    const struct mallinfo2 info = mallinfo2();
    return info.uordblks + info.hblkhd;
}

static const qn_server_opts opts = {.limits = {.body = 1 << 20, .idle_ms = 5000}};

static void wrong_requests_leave_nothing_behind(void **state) {
    enum { ROUNDS = 4 };
    size_t used[ROUNDS];
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < n_wanted / ROUNDS; i++) kinds[any(N_KINDS)](&rig);
        check_calm(&rig);
        used[round] = used_bytes();
    }
    // The first rounds fill what is kept on purpose: prefixes of prompts, tables that grew.
    if (used[ROUNDS - 1] > used[1] + used[1] / 10 + (4 << 20))
        fail_msg("%zu bytes in use after the second round, %zu after the last", used[1],
                 used[ROUNDS - 1]);
    serve_stop(&rig);
}

// Connections that do nothing keep nobody else from being answered.
static void idle_connections_cost_nobody_anything(void **state) {
    static int fds[N_IDLE];
    static const char half[] = "POST /v1/chat/completions HTTP/1.1\r\nHost: loc";
    struct rlimit files;
    serve_rig rig;
    (void)state;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &files), 0);
    if (files.rlim_cur < 2 * N_IDLE + 500 && files.rlim_max >= 2 * N_IDLE + 500) {
        files.rlim_cur = 2 * N_IDLE + 500; // both ends are in this process
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &files), 0);
    }
    const int n = files.rlim_cur >= 2 * N_IDLE + 500 ? N_IDLE : (int)(files.rlim_cur / 4);
    if (n < N_IDLE) print_message("only %d connections: descriptors are few\n", n);
    serve_start(&rig, &opts);
    for (int i = 0; i < n; i++) {
        fds[i] = serve_connect(&rig);
        if (i % 3 == 0) serve_send(fds[i], half, any(sizeof half));
    }
    serve_wait(&rig, serve_links, n);
    json_decref(post_json(&rig, "/v1/chat/completions",
                          "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],"
                          "\"max_tokens\":4}",
                          200));
    for (int i = 0; i < n; i++) close(fds[i]);
    check_calm(&rig);
    serve_stop(&rig);
}

// Grammars that take long are made two at a time: other workers are there for others.
static void long_grammars_do_not_take_all_workers(void **state) {
    serve_rig rig;
    qn_buf body = {0};
    (void)state;
    serve_start(&rig, &opts);
    qn_buf_text(&body, "{" MESSAGES ",\"max_tokens\":4,\"json_schema\":{\"oneOf\":[{}");
    for (int i = 2; i < 12; i++)
        qn_buf_printf(&body, ",{\"type\":\"string\",\"pattern\":\"^(a|b)*a(a|b){%d}$\"}", i);
    qn_buf_text(&body, "]}}");
    atomic_store(&rig.server->n_heavy, 2); // as if two were being made
    http_answer a = http_post(&rig, "/v1/chat/completions", body.data);
    assert_int_equal(a.status, 503);
    assert_non_null(http_header(&a, "Retry-After"));
    assert_non_null(strstr(a.body.data, "2 large grammars"));
    http_deinit(&a);
    json_decref(post_json(&rig, "/v1/chat/completions",
                          "{" MESSAGES ",\"max_tokens\":4,\"json_schema\":{\"type\":\"object\"}}",
                          200));
    assert_int_equal(atomic_load(&rig.server->n_heavy), 2);
    atomic_store(&rig.server->n_heavy, 0);
    json_decref(post_json(&rig, "/v1/chat/completions", body.data, 200)); // with room for it
    assert_int_equal(atomic_load(&rig.server->n_heavy), 0);
    qn_buf_deinit(&body);
    serve_stop(&rig);
}

typedef struct attacker {
    const serve_rig *rig;
    pthread_t thread;
    int kind, n;
} attacker;

static void *attack(void *arg) {
    attacker *a = arg;
    for (int i = 0; i < a->n; i++) {
        const serve_rig *rig = a->rig;
        qn_buf request = {0};
        const char *body = i % 2 ? "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],"
                                   "\"stream\":true,\"ignore_eos\":true,\"max_tokens\":100}"
                                 : "{\"messages\":[{\"role\":\"user\",\"content\":\"Hello!\"}],"
                                   "\"ignore_eos\":true,\"max_tokens\":50,\"n\":2}";
        put_head(&request, qn_route_at(0), strlen(body), false);
        qn_buf_text(&request, body);
        const int fd = serve_connect(rig);
        serve_send(fd, request.data, request.size - (size_t)(i % 5 == 4) * 7);
        char block[256];
        set_timeout(fd, 1 + i % 40);
        for (int k = 0; k < (a->kind + i) % 6; k++) (void)!recv(fd, block, sizeof block, 0);
        close(fd);
        qn_buf_deinit(&request);
    }
    return NULL;
}

// All at once: clients that leave at any moment, and one that waits and is answered as if alone.
static void many_leave_at_once(void **state) {
    enum { N = 12 };
    attacker attackers[N];
    serve_rig rig;
    (void)state;
    serve_start(&rig, &opts);
    for (int i = 0; i < N; i++) {
        attackers[i] = (attacker){.rig = &rig, .kind = i, .n = n_wanted / N / 4};
        assert_true(qn_thread_start(&attackers[i].thread, attack, &attackers[i]));
    }
    for (int i = 0; i < 5; i++) {
        json_t *a = post_json(&rig, "/v1/chat/completions",
                              "{\"messages\":[{\"role\":\"user\",\"content\":\"What color is a "
                              "lemon?\"}],\"max_tokens\":20}",
                              200);
        assert_string_equal(text_at(a, "choices.0.message.content"), "A lemon is yellow.");
        json_decref(a);
    }
    for (int i = 0; i < N; i++) pthread_join(attackers[i].thread, NULL);
    check_calm(&rig);
    serve_stop(&rig);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_requests_leave_nothing_behind),
        cmocka_unit_test(idle_connections_cost_nobody_anything),
        cmocka_unit_test(long_grammars_do_not_take_all_workers),
        cmocka_unit_test(many_leave_at_once),
    };
    if (argc > 1 && atoi(argv[1]) > 0) n_wanted = atoi(argv[1]);
    return cmocka_run_group_tests(tests, NULL, NULL);
}

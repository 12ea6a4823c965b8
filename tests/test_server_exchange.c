// The hand-off of an answer: what may be written to a stream, and when it is at its end.
#include "serve_rig.h"

// A stream of a server that is made up: nobody reads it.
static qn_exchange *make_stream(qn_server *server, const char *ping) {
    qn_exchange *ex = NULL;
    qn_err err;
    server->limits.unsent = 64;
    ASSERT_OK(qn_exchange_create(&ex, server, &err));
    qn_exchange_begin(ex, 200, "text/event-stream", ping);
    return ex;
}

static void assert_out(const qn_exchange *ex, const char *want) {
    assert_int_equal(ex->out.size - ex->sent, strlen(want));
    if (*want) assert_memory_equal(ex->out.data + ex->sent, want, strlen(want));
}

enum { AT_ONCE = -1 }; // a silence that has always been long enough

static void a_ping_keeps_a_stream_alive(void **state) {
    qn_server server = {0};
    qn_exchange *ex = make_stream(&server, ": ping\n\n");
    (void)state;
    assert_true(qn_exchange_write(ex, "one;", 4));
    qn_exchange_ping(ex, INT64_MAX); // it was not silent for that long
    assert_out(ex, "one;");
    qn_exchange_ping(ex, AT_ONCE);
    assert_true(qn_exchange_write(ex, "two;", 4));
    assert_out(ex, "one;: ping\n\ntwo;");
    assert_int_equal(ex->n_written, 16);
    qn_exchange_leave(ex);
    ex = make_stream(&server, NULL); // a dialect that has none
    qn_exchange_ping(ex, AT_ONCE);
    assert_out(ex, "");
    qn_exchange_leave(ex);
}

static void nothing_follows_the_end(void **state) {
    qn_server server = {0};
    qn_exchange *ex = make_stream(&server, ": ping\n\n");
    (void)state;
    assert_true(qn_exchange_write(ex, "data: [DONE]\n\n", 14));
    qn_exchange_end(ex, true);
    qn_exchange_ping(ex, AT_ONCE);
    assert_false(qn_exchange_write(ex, "more", 4));
    assert_out(ex, "data: [DONE]\n\n");
    assert_int_equal(ex->n_written, 14);
    assert_false(ex->is_cut);
    qn_exchange_leave(ex);
}

static void a_slow_reader_is_cut(void **state) {
    qn_server server = {0};
    qn_exchange *ex = make_stream(&server, ": ping\n\n");
    char many[60] = {0};
    (void)state;
    assert_true(qn_exchange_write(ex, many, sizeof many));
    qn_exchange_ping(ex, AT_ONCE); // over the limit
    assert_true(ex->is_cut && ex->is_whole && ex->is_gone);
    assert_out(ex, "");
    assert_non_null(strstr(ex->note, "too slowly"));
    assert_false(qn_exchange_write(ex, "more", 4));
    assert_out(ex, "");
    qn_exchange_leave(ex);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_ping_keeps_a_stream_alive),
        cmocka_unit_test(nothing_follows_the_end),
        cmocka_unit_test(a_slow_reader_is_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

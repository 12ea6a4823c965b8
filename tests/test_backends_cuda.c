// GPUs that are not there, too old, full or failing: what is said, and that nothing is left behind.
#include "cuda_rig.h"

#include "backends/cuda/cuda_device.h"

#include <stdio.h>

static qn_status try_open(const char *library, const char *device, qn_err *err) {
    qn_device *d = NULL;
    assert_int_equal(setenv("QN_CUDA_LIBRARY", library, 1), 0);
    const qn_status status = qn_device_open(&d, device, NULL, NULL, err);
    qn_device_close(d);
    return status;
}

static bool is_listed(const char *name) {
    const char *known;
    const qn_device_kind *kind;
    for (size_t i = 0; qn_device_list(&known, &kind, i); i++) {
        if (strcmp(known, name) == 0) return true;
    }
    return false;
}

static void libraries_that_cannot_be_used(void **state) {
    (void)state;
    char versions[64];
    snprintf(versions, sizeof versions, "has version %d, this program wants %d",
             QN_CUDA_API_VERSION + 1, QN_CUDA_API_VERSION);
    const struct {
        const char *path, *part;
    } rows[] = {{"/nowhere/libquern-cuda.so", "/nowhere/libquern-cuda.so cannot be used"},
                {ODD_CUDA "1.so", versions},
                {ODD_CUDA "2.so", "was built for other sources"},
                {ODD_CUDA "3.so", "has no qn_cuda_api_get"},
                {ODD_CUDA "4.so", "has version 0"},
                {ODD_CUDA "6.so", "no card can be used: the driver is missing"},
                {ODD_CUDA "7.so", "no card can be used: the driver is too old"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        qn_err err;
        ASSERT_FAILS(try_open(rows[i].path, "cuda", &err), QN_UNSUPPORTED, rows[i].part);
        assert_false(is_listed("cuda"));
        ASSERT_OK(try_open(rows[i].path, "cpu", &err));
    }
}

static void a_machine_without_cards(void **state) {
    (void)state;
    qn_err err;
    ASSERT_FAILS(try_open(ODD_CUDA "5.so", "cuda", &err), QN_ARGUMENT, "this machine has 0 cards");
    assert_false(is_listed("cuda"));
    assert_true(is_listed("cpu"));
}

static void cards_by_number(void **state) {
    (void)state;
    qn_err err;
    ASSERT_OK(try_open(FAKE_CUDA, "cuda", &err));
    ASSERT_OK(try_open(FAKE_CUDA, "cuda:0", &err));
    ASSERT_FAILS(try_open(FAKE_CUDA, "cuda:1", &err), QN_UNSUPPORTED,
                 "an old fake has compute capability 7.0, at least 8.0 is wanted");
    ASSERT_FAILS(try_open(FAKE_CUDA, "cuda:2", &err), QN_ARGUMENT, "this machine has 2 cards");
    ASSERT_FAILS(try_open(FAKE_CUDA, "cuda:-1", &err), QN_ARGUMENT, "cuda:-1: want the number");
    ASSERT_FAILS(try_open(FAKE_CUDA, "cuda:99999999999999999999", &err), QN_ARGUMENT, "want the");
    ASSERT_FAILS(try_open(FAKE_CUDA, "cuda:x", &err), QN_ARGUMENT, "cuda:x: want the number");
    assert_true(is_listed("cuda:0"));
    assert_false(is_listed("cuda:1"));
    assert_int_equal(use_fake().objects(), 0);
}

// Every call that opening needs: which cards there are, what they are, and opening one.
static void opening_fails_call_by_call(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_err err;
    ASSERT_OK(try_open(FAKE_CUDA, "cuda", &err));
    const long calls = fake.calls();
    assert_true(calls >= 3);
    for (long n = 1; n <= calls; n++) {
        fake.set(n, 0);
        ASSERT_FAILS(try_open(FAKE_CUDA, "cuda", &err), QN_UNSUPPORTED, "the card is gone");
        assert_int_equal(fake.objects(), 0);
    }
    fake.set(calls + 1, 0);
    ASSERT_OK(try_open(FAKE_CUDA, "cuda", &err));
    fake.set(0, 0);
}

static void a_full_card_says_so_and_goes_on(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    qn_device *d;
    qn_err err;
    void *at, *more;
    int64_t available;
    fake.set(0, 1000);
    ASSERT_OK(qn_device_open(&d, "cuda", NULL, NULL, &err));
    assert_true(d->kind->memory(d, &available));
    assert_int_equal(available, 1000);
    ASSERT_OK(d->kind->alloc(&at, d, 600, &err));
    ASSERT_FAILS(d->kind->alloc(&more, d, 401, &err), QN_LIMIT,
                 "(a fake): no room for 401 bytes, 400 are free");
    ASSERT_OK(qn_device_failure(d, &err));
    ASSERT_OK(d->kind->alloc(&more, d, 400, &err));
    assert_true(d->kind->memory(d, &available));
    assert_int_equal(available, 0);
    d->kind->free(d, more, 400);
    d->kind->free(d, at, 600);
    qn_device_close(d);
    assert_int_equal(fake.bytes(), 0);
}

// What is read of a card that failed is zeros, and every later call says the same.
static void a_card_that_fails_stays_failed(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    static const char *const what[] = {"writing memory", "reading memory", "reading memory",
                                       "copying memory"};
    for (long n = 1; n <= 4; n++) {
        qn_device *d;
        qn_err err;
        void *at, *more;
        int64_t available;
        char bytes[64];
        fake.set(0, 0);
        ASSERT_OK(qn_device_open(&d, "cuda", NULL, NULL, &err));
        ASSERT_OK(d->kind->alloc(&at, d, sizeof bytes, &err));
        fake.set(n, 0);
        memset(bytes, 'x', sizeof bytes);
        d->kind->write(d, at, bytes, sizeof bytes);
        d->kind->read(d, bytes, at, sizeof bytes); // two calls
        assert_int_equal(bytes[0], n <= 3 ? 0 : 'x');
        d->kind->copy(d, (char *)at + 32, at, 32);
        ASSERT_FAILS(qn_device_failure(d, &err), QN_IO, what[n - 1]);
        fake.set(0, 0); // it works again, but what it holds is unknown
        ASSERT_FAILS(qn_device_failure(d, &err), QN_IO, "(a fake) failed");
        ASSERT_FAILS(d->kind->alloc(&more, d, 64, &err), QN_IO, "the card is gone");
        assert_false(d->kind->memory(d, &available));
        memset(bytes, 'x', sizeof bytes);
        d->kind->read(d, bytes, at, sizeof bytes);
        assert_int_equal(bytes[63], 0);
        d->kind->free(d, at, sizeof bytes);
        qn_device_close(d);
        assert_int_equal(fake.bytes(), 0);
        assert_int_equal(fake.objects(), 0);
    }
}

static void taking_memory_fails(void **state) {
    (void)state;
    const fake_card fake = use_fake();
    for (long n = 1; n <= 2; n++) { // the allocation; its zeros
        qn_device *d;
        qn_err err;
        void *at;
        fake.set(0, 0);
        ASSERT_OK(qn_device_open(&d, "cuda", NULL, NULL, &err));
        fake.set(n, 0);
        ASSERT_FAILS(d->kind->alloc(&at, d, 64, &err), QN_IO,
                     n == 1 ? "taking memory: the card is gone" : "clearing memory");
        qn_device_close(d);
        assert_int_equal(fake.bytes(), 0);
    }
}

// On a real card where QN_CUDA_LIBRARY names the library for it: more memory than any has.
static void no_card_has_that_much(void **state) {
    const char *library = *state;
    qn_device *d = NULL;
    qn_err err;
    void *at;
    const size_t much = (size_t)1 << 46;
    char bytes[3] = {1, 2, 3};
    (void)use_fake(); // which fails no more
    assert_int_equal(setenv("QN_CUDA_LIBRARY", library ? library : FAKE_CUDA, 1), 0);
    ASSERT_OK(qn_device_open(&d, "cuda", NULL, NULL, &err));
    ASSERT_FAILS(d->kind->alloc(&at, d, much, &err), QN_LIMIT, "no room for 70368744177664 bytes");
    ASSERT_OK(d->kind->alloc(&at, d, 3, &err));
    d->kind->read(d, bytes, at, 3);
    assert_int_equal(bytes[0] | bytes[1] | bytes[2], 0);
    d->kind->write(d, at, "abc", 3);
    d->kind->copy(d, (char *)at + 1, at, 1);
    d->kind->read(d, bytes, at, 3);
    assert_memory_equal(bytes, "aac", 3);
    ASSERT_OK(qn_device_failure(d, &err));
    d->kind->free(d, at, 3);
    qn_device_close(d);
}

int main(void) {
    const char *given = getenv("QN_CUDA_LIBRARY");
    char library[4096];
    snprintf(library, sizeof library, "%s", given ? given : "");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(libraries_that_cannot_be_used),
        cmocka_unit_test(a_machine_without_cards),
        cmocka_unit_test(cards_by_number),
        cmocka_unit_test(opening_fails_call_by_call),
        cmocka_unit_test(a_full_card_says_so_and_goes_on),
        cmocka_unit_test(a_card_that_fails_stays_failed),
        cmocka_unit_test(taking_memory_fails),
        cmocka_unit_test_prestate(no_card_has_that_much, given ? library : NULL),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

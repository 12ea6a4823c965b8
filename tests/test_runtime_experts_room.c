// Experts where memory is short and nobody gave a budget: how many are kept, and when all of them
// are loaded although a part would do. The linker sends the question for free memory here.
#include "families.h"
#include "format_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

enum { N = 40, EXPERTS = 4, KEPT = 3 };
static const char family[] = "qwen3_moe";
static const int64_t reserve = INT64_C(1500) << 20; // as in runtime/expert_budget.c

static int64_t free_bytes;
bool __wrap_qn_machine_free_memory(int64_t *out);
bool __wrap_qn_machine_free_memory(int64_t *out) {
    *out = free_bytes;
    return true;
}

static qn_engine *open_in(void **state, qn_cache_use use, const char *profile) {
    return family_open(family, &QN_INIT(qn_engine_opts, .cache_dir = *state, .cache_use = use,
                                        .profile_text = profile));
}

static qn_expert_stats stats_of(const qn_engine *engine) {
    qn_err err;
    qn_expert_stats stats = QN_INIT(qn_expert_stats);
    ASSERT_OK(qn_engine_expert_stats(&stats, engine, -1, &err));
    return stats;
}

// Packs the weights, with plenty of memory; from then on KEPT of the experts fit beside the
// reserve, and all of them without it.
static void leave_room_for_some(void **state) {
    qn_err err;
    qn_memory plan = QN_INIT(qn_memory);
    free_bytes = INT64_C(1) << 40;
    qn_engine *engine =
        family_open(family, &QN_INIT(qn_engine_opts, .cache_dir = *state, .expert_budget = KEPT,
                                     .cache_use = QN_CACHE_DIR_FILL));
    ASSERT_OK(qn_engine_memory(&plan, engine, 64, 16, &err));
    qn_engine_close(engine);
    free_bytes = plan.weights + reserve;
}

static void take(int32_t *to, const qn_engine *engine) {
    qn_err err;
    int32_t ids[N];
    qn_session *session = NULL;
    ASSERT_OK(
        qn_session_create(&session, engine, &QN_INIT(qn_session_opts, .context = 2 * N), &err));
    random_ids(ids, N, engine_info(engine).n_vocab, 3);
    ASSERT_OK(qn_session_set_prompt(session, ids, N, &err));
    for (int i = 0; i < N - 1; i++) ASSERT_OK(qn_session_step(&to[i], session, NULL, &err));
    qn_session_destroy(session);
}

static void assert_same_tokens(const qn_engine *engine) {
    int32_t got[N], want[N];
    const int64_t bytes = free_bytes;
    take(got, engine);
    free_bytes = INT64_C(1) << 40;
    qn_engine *all = family_open(family, NULL);
    take(want, all);
    qn_engine_close(all);
    free_bytes = bytes;
    assert_memory_equal(got, want, (N - 1) * sizeof *got);
}

static int open_packed(const char *folder) {
    int fd = -1;
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        const size_t n = strlen(e->d_name);
        if (n > 6 && strcmp(e->d_name + n - 6, ".packs") == 0)
            fd = openat(dirfd(dir), e->d_name, O_RDWR | O_CLOEXEC);
    }
    closedir(dir);
    assert_true(fd >= 0);
    return fd;
}

// One byte becomes another.
static void damage(int fd, off_t at) {
    unsigned char byte;
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 1;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
}

static void as_many_are_kept_as_fit(void **state) {
    leave_room_for_some(state);
    qn_engine *engine = open_in(state, QN_CACHE_DIR_FOUND, NULL);
    assert_int_equal(stats_of(engine).n_resident, KEPT);
    assert_same_tokens(engine);
    qn_engine_close(engine);
}

// Packed weights of an older model, or damaged ones, in a folder where nothing may be written.
static void a_file_that_cannot_be_used_does_not_refuse_a_model_that_fits(void **state) {
    leave_room_for_some(state);
    const int fd = open_packed(*state);
    const off_t size = lseek(fd, 0, SEEK_END), places[] = {40, size - 5000};
    for (int i = 0; i < 2; i++) {
        damage(fd, places[i]);
        qn_engine *engine = open_in(state, QN_CACHE_DIR_FOUND, NULL);
        assert_int_equal(stats_of(engine).n_resident, EXPERTS);
        assert_same_tokens(engine);
        qn_engine_close(engine);
        damage(fd, places[i]);
    }
    qn_engine *engine = open_in(state, QN_CACHE_DIR_FOUND, NULL); // as it was
    assert_int_equal(stats_of(engine).n_resident, KEPT);
    qn_engine_close(engine);
    close(fd);
}

// A profile whose decode has the experts in several operations, which need all of them.
static void a_profile_whose_decode_needs_all_experts_gets_them(void **state) {
    static const char profile[] = "[decode]\nskip = [\"fuse_experts\"]\n";
    qn_err err;
    qn_engine *none = NULL;
    char path[256];
    leave_room_for_some(state);
    qn_engine *engine = open_in(state, QN_CACHE_DIR_FOUND, profile);
    assert_int_equal(stats_of(engine).n_resident, EXPERTS);
    assert_same_tokens(engine);
    qn_engine_close(engine);
    const qn_engine_opts asked = QN_INIT(qn_engine_opts, .cache_dir = *state, .expert_budget = KEPT,
                                         .profile_text = profile);
    ASSERT_FAILS(qn_engine_open(&none, family_path(path, sizeof path, family), &asked, &err),
                 QN_UNSUPPORTED, "3 of 4 experts: decode has operations");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        FOLDER_TEST(as_many_are_kept_as_fit),
        FOLDER_TEST(a_file_that_cannot_be_used_does_not_refuse_a_model_that_fits),
        FOLDER_TEST(a_profile_whose_decode_needs_all_experts_gets_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

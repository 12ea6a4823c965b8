// Preloaded into the program (LD_PRELOAD), this lets its memory run out: the allocation numbered
// FAIL_AT, counted from the beginning of main(), fails, and with FAIL_ON so do all after it.
// Without FAIL_AT nothing fails. FAIL_COUNT names a file that gets the number of allocations.
//
// It stands in front of the C library for everybody in the process, so that the allocations of
// other libraries fail too. Mappings count as well.
#define _GNU_SOURCE // RTLD_NEXT
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

// glibc's own names of what is replaced here: finding them by dlsym() would allocate.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);

typedef int main_fn(int argc, char **argv, char **envp);
int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end);

static atomic_bool is_counting; // main() has begun
static atomic_long n_requests;
static long fail_at; // 0: nothing fails
static bool fails_on;
static const char *count_path;
static main_fn *program_main;

static bool must_fail(void) {
    if (!atomic_load_explicit(&is_counting, memory_order_relaxed)) return false;
    const long n = atomic_fetch_add_explicit(&n_requests, 1, memory_order_relaxed) + 1;
    if (fail_at == 0 || n < fail_at || (n > fail_at && !fails_on)) return false;
    errno = ENOMEM;
    return true;
}

void *malloc(size_t size) { return must_fail() ? NULL : __libc_malloc(size); }
void *calloc(size_t n, size_t size) { return must_fail() ? NULL : __libc_calloc(n, size); }
void *realloc(void *p, size_t size) { return must_fail() ? NULL : __libc_realloc(p, size); }
void *aligned_alloc(size_t alignment, size_t size) {
    return must_fail() ? NULL : __libc_memalign(alignment, size);
}

int posix_memalign(void **out, size_t alignment, size_t size) {
    void *p = must_fail() ? NULL : __libc_memalign(alignment, size);
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}

void *mmap(void *address, size_t size, int protection, int flags, int fd, off_t offset) {
    static void *(*next)(void *, size_t, int, int, int, off_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "mmap");
    return must_fail() ? MAP_FAILED : next(address, size, protection, flags, fd, offset);
}

static int counted_main(int argc, char **argv, char **envp) {
    const char *at = getenv("FAIL_AT");
    fail_at = at ? atol(at) : 0;
    fails_on = getenv("FAIL_ON") != NULL;
    count_path = getenv("FAIL_COUNT");
    atomic_store(&is_counting, true);
    return program_main(argc, argv, envp);
}

int __libc_start_main(main_fn *program, int argc, char **argv, void (*init)(void),
                      void (*fini)(void), void (*rtld_fini)(void), void *stack_end) {
    int (*next)(main_fn *, int, char **, void (*)(void), void (*)(void), void (*)(void), void *);
    *(void **)&next = dlsym(RTLD_NEXT, "__libc_start_main");
    program_main = program;
    return next(counted_main, argc, argv, init, fini, rtld_fini, stack_end);
}

__attribute__((destructor)) static void tell_count(void) {
    char text[32];
    atomic_store(&is_counting, false);
    const int fd = count_path ? open(count_path, O_WRONLY | O_CREAT | O_TRUNC, 0600) : -1;
    if (fd < 0) return;
    const int n = snprintf(text, sizeof text, "%ld\n", atomic_load(&n_requests));
    if (write(fd, text, (size_t)n) != n) _exit(99);
    close(fd);
}

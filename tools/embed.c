// Writes files as a C source: embed OUT.c FILE... For the build: the web page becomes part of the program.
//
// Each file is compressed (gzip) and named by a hash of its content, so that browsers may keep it.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <zlib.h>

static const struct {
    const char *suffix, *type;
} types[] = {{".html", "text/html; charset=utf-8"},
             {".css", "text/css; charset=utf-8"},
             {".js", "text/javascript; charset=utf-8"},
             {".svg", "image/svg+xml"}};

static int fail(const char *what, const char *path) {
    fprintf(stderr, "embed: %s: %s\n", path, what);
    return 1;
}

static const char *type_of(const char *path) {
    const char *dot = strrchr(path, '.');
    for (size_t i = 0; dot && i < sizeof types / sizeof *types; i++) {
        if (strcmp(dot, types[i].suffix) == 0) return types[i].type;
    }
    return NULL;
}

enum { MAX_FILE = 1 << 20 };

// NULL: it cannot be read. A file that is longer than MAX_FILE has that size and one more.
static unsigned char *load(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    unsigned char *data = file ? malloc(MAX_FILE + 1) : NULL;
    *size = data ? fread(data, 1, MAX_FILE + 1, file) : 0;
    const int failed = data && ferror(file);
    if (file) fclose(file);
    if (!failed) return data;
    free(data);
    return NULL;
}

// gzip without a time, so that the same files make the same program. NULL: no memory.
static unsigned char *compress_gzip(const unsigned char *data, size_t n, size_t *size) {
    enum { WINDOW = 15 + 16, MEMORY = 9 };
    z_stream z = {0};
    const uLong bound = compressBound((uLong)n) + 64;
    unsigned char *out = malloc(bound);
    if (!out || deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, WINDOW, MEMORY,
                             Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    z.next_in = (unsigned char *)(uintptr_t)data;
    z.avail_in = (uInt)n;
    z.next_out = out;
    z.avail_out = (uInt)bound;
    const int done = deflate(&z, Z_FINISH);
    *size = z.total_out;
    deflateEnd(&z);
    return done == Z_STREAM_END ? out : NULL;
}

static int write_file(FILE *out, const char *path, int i) {
    size_t n, size;
    unsigned char *data = load(path, &n);
    if (!data) return fail("cannot be read", path);
    if (n > MAX_FILE) return fail("larger than 1 MiB", path);
    unsigned char *packed = compress_gzip(data, n, &size);
    if (!packed) return fail("cannot be compressed", path);
    fprintf(out, "static const char hash_%d[] = \"%016llx\";\n", i,
            (unsigned long long)XXH3_64bits(data, n));
    fprintf(out, "enum { PLAIN_%d = %zu };\n", i, n);
    fprintf(out, "static const unsigned char data_%d[%zu] = {", i, size);
    for (size_t at = 0; at < size; at++)
        fprintf(out, "%s%u,", at % 24 ? "" : "\n    ", (unsigned)packed[at]);
    fprintf(out, "};\n");
    free(data);
    free(packed);
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return fail("no files", "embed");
    FILE *out = fopen(argv[1], "w");
    if (!out) return fail("cannot be written", argv[1]);
    fprintf(out, "#include \"server/page.h\"\n\n");
    for (int i = 2; i < argc; i++) {
        if (!type_of(argv[i])) return fail("of no known type", argv[i]);
        if (write_file(out, argv[i], i)) return 1;
    }
    fprintf(out, "const size_t qn_page_n_files = %d;\nconst qn_page_file qn_page_files[] = {\n",
            argc - 2);
    for (int i = 2; i < argc; i++) {
        const char *slash = strrchr(argv[i], '/');
        fprintf(out, "    {\"%s\", \"%s\", hash_%d, data_%d, sizeof data_%d, PLAIN_%d},\n",
                slash ? slash + 1 : argv[i], type_of(argv[i]), i, i, i, i);
    }
    fprintf(out, "};\n");
    return fclose(out) == 0 ? 0 : fail("cannot be written", argv[1]);
}

#include "runtime/disk.h"

#include "backends/pack.h"
#include "core/buf.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/newfile.h"
#include "ir/plan_text.h"
#include "passes/passes.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { PLAN_LIMIT = 1 << 26, DAY = 24 * 60 * 60, HEX = 16, HEAD_LIMIT = 128 };

#define TEXT_OF(number)  #number
#define VERSION(a, b, c) TEXT_OF(a) "." TEXT_OF(b) "." TEXT_OF(c)

const char *qn_disk_version(void) {
    return VERSION(QN_VERSION_MAJOR, QN_VERSION_MINOR, QN_VERSION_PATCH);
}

// --- the folder ---

// ".quern-0123456789abcdef.tmp", as newfile.c names what it writes.
static bool is_temporary(const char *name) {
    static const char before[] = ".quern-", behind[] = ".tmp";
    if (strncmp(name, before, sizeof before - 1) != 0) return false;
    name += sizeof before - 1;
    return strspn(name, "0123456789abcdef") == HEX && strcmp(name + HEX, behind) == 0;
}

static void remove_leftovers(const qn_disk *disk) {
    DIR *dir = opendir(disk->dir);
    const time_t now = time(NULL);
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        struct stat st;
        if (!is_temporary(entry->d_name)) continue;
        char *path = qn_path_join(disk->dir, entry->d_name);
        if (path && lstat(path, &st) == 0 && S_ISREG(st.st_mode) && now - st.st_mtime > DAY)
            unlink(path);
        qn_free(path);
    }
    if (dir) closedir(dir);
}

bool qn_disk_prepare(const qn_disk *disk) {
    if (qn_path_is_folder(disk->dir)) {
        remove_leftovers(disk);
        return true;
    }
    if (qn_path_make_folders(disk->dir)) return true;
    qn_log(disk->log, disk->log_arg, QN_LOG_WARNING,
           "cache folder %s cannot be made, nothing is kept: %s", disk->dir,
           qn_path_is_file(disk->dir) ? "it is a file" : strerror(errno));
    return false;
}

// --- plans ---
//
// A plan's file is text: "quern plan 1 KEY CHECKSUM\n", then the plan (plan_text.h).

static void mix(XXH128_hash_t *hash, const char *text) {
    const XXH128_hash_t part = XXH3_128bits_withSeed(text, strlen(text), hash->low64);
    hash->low64 = part.low64 ^ (hash->high64 << 1 | hash->high64 >> 63);
    hash->high64 = part.high64 + hash->low64;
}

// The key as 32 hex digits.
static void key_text(char to[2 * HEX + 1], const qn_plan_key *key) {
    char layout[32];
    snprintf(layout, sizeof layout, "%d", QN_PACK_VERSION);
    const char *const parts[] = {qn_disk_version(), layout, key->level, key->options, key->graph};
    XXH128_hash_t hash = {0};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) mix(&hash, parts[i]);
    for (size_t i = 0; qn_pass_name(i); i++) mix(&hash, qn_pass_name(i)); // what made the plan
    snprintf(to, 2 * HEX + 1, "%016llx%016llx", (unsigned long long)hash.high64,
             (unsigned long long)hash.low64);
}

static char *plan_path(const qn_disk *disk, const char *key) {
    char name[64];
    snprintf(name, sizeof name, "%s.plan", key);
    return qn_path_join(disk->dir, name);
}

static int print_head(char to[HEAD_LIMIT], const char *key, const char *text, size_t size) {
    return snprintf(to, HEAD_LIMIT, "quern plan 1 %s %016llx\n", key,
                    (unsigned long long)XXH3_64bits(text, size));
}

// Reads a file's text as a plan of that key.
static bool read_plan(qn_plan *out, const char *key, const char *text, size_t size) {
    char head[HEAD_LIMIT];
    const char *end = memchr(text, '\n', size < HEAD_LIMIT ? size : HEAD_LIMIT);
    if (!end) return false;
    const size_t n = (size_t)(end + 1 - text);
    const int want = print_head(head, key, text + n, size - n);
    return n == (size_t)want && memcmp(head, text, n) == 0 &&
           qn_plan_parse(out, text + n, size - n, NULL) == QN_OK;
}

bool qn_disk_load_plan(qn_plan *out, const qn_disk *disk, const qn_plan_key *key) {
    char name[2 * HEX + 1];
    key_text(name, key);
    char *path = plan_path(disk, name), *text = NULL;
    size_t size = 0;
    bool is_read = false;
    if (path && qn_path_is_file(path) &&
        qn_file_load(&text, &size, path, PLAN_LIMIT, NULL) == QN_OK) {
        is_read = read_plan(out, name, text, size);
        if (!is_read)
            qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "%s: damaged, and made anew", path);
    }
    qn_free(text);
    qn_free(path);
    return is_read;
}

static qn_status write_plan(const char *path, const char *key, const qn_buf *text, qn_err *err) {
    char head[HEAD_LIMIT];
    const int n = print_head(head, key, text->data, text->size);
    qn_newfile *file = NULL;
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_newfile_create(&file, path, QN_NEWFILE_PRIVATE, err));
    QN_TRY_TO(done, qn_newfile_write(file, head, (size_t)n, err));
    QN_TRY_TO(done, qn_newfile_write(file, text->data, text->size, err));
    status = qn_newfile_commit(file, err);

done:
    qn_newfile_destroy(file);
    return status;
}

void qn_disk_store_plan(const qn_disk *disk, const qn_plan_key *key, const qn_plan *plan) {
    char name[2 * HEX + 1];
    qn_err err = {0};
    qn_buf text = {0};
    key_text(name, key);
    char *path = plan_path(disk, name);
    qn_plan_print(&text, plan);
    if (path && !text.failed && write_plan(path, name, &text, &err) != QN_OK)
        qn_log(disk->log, disk->log_arg, QN_LOG_WARNING, "the plan is not kept: %s", err.message);
    qn_buf_deinit(&text);
    qn_free(path);
}

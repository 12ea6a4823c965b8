#include "hub/filename.h"

#include "core/buf.h"
#include "core/file.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char gguf[] = ".gguf";

bool qn_name_ends(const char *name, const char *end) {
    const size_t n = strlen(name), n_end = strlen(end);
    return n > n_end && strcasecmp(name + n - n_end, end) == 0;
}

bool qn_name_is_gguf(const char *name) { return qn_name_ends(name, gguf); }

bool qn_name_is_tower(const char *name) {
    return strncasecmp(qn_path_name(name), "mmproj", strlen("mmproj")) == 0;
}

qn_split_name qn_split_name_read(const char *path) {
    enum { SUFFIX = QN_SPLIT_SUFFIX - 1 };
    const size_t n = strlen(path);
    qn_split_name s = {.stem = qn_name_is_gguf(path) ? n - strlen(gguf) : n};
    int part, of, used = 0;
    if (n <= SUFFIX || !qn_name_is_gguf(path)) return s;
    if (sscanf(path + n - SUFFIX, "-%5d-of-%5d%n", &part, &of, &used) != 2) return s;
    if (used != SUFFIX - (int)strlen(gguf) || part < 1 || of < part || of > QN_SPLIT_MOST) return s;
    return (qn_split_name){.part = part, .of = of, .stem = n - SUFFIX};
}

char *qn_split_name_part(const char *path, const qn_split_name *split, int part) {
    qn_buf text = {0};
    char *out = NULL;
    qn_buf_add(&text, path, split->stem);
    qn_buf_printf(&text, "-%05d-of-%05d%s", part, split->of, gguf);
    return qn_buf_take(&out, &text, NULL) ? NULL : out;
}

// --- types ---------------------------------------------------------------------------------------

const char *const qn_model_types[QN_MODEL_TYPES] = {"Q4_K_M", "Q8_0", NULL};
const char *const qn_tower_types[QN_TOWER_TYPES] = {"F16", "BF16", "Q8_0", NULL};

static bool is_word(char c) { return isalnum((unsigned char)c) || c == '_'; }

// "Q4_K_M", "IQ2_XS", "BF16": as the names of types are made, whatever types there are.
static bool is_type(const char *word, size_t n) {
    static const char *const floats[] = {"BF16", "F16", "F32", "FP16", "FP32", "FP8", "MXFP4"};
    for (size_t i = 0; i < sizeof floats / sizeof *floats; i++) {
        const size_t size = strlen(floats[i]);
        if (n >= size && strncasecmp(word, floats[i], size) == 0 &&
            (n == size || word[size] == '_'))
            return true;
    }
    if (n > 2 && strchr("IiTt", *word)) word++, n--;
    return n > 1 && (*word == 'Q' || *word == 'q') && isdigit((unsigned char)word[1]);
}

qn_str qn_name_type(const char *name) {
    static const char dynamic[] = "UD-"; // a mix that has the name of a plain one
    const char *own = qn_path_name(name);
    const size_t stem = qn_split_name_read(own).stem;
    for (size_t end = stem; end > 0;) {
        size_t at = end;
        while (at > 0 && is_word(own[at - 1])) at--;
        if (is_type(own + at, end - at)) {
            const size_t n = sizeof dynamic - 1;
            if (at >= n && strncasecmp(own + at - n, dynamic, n) == 0) at -= n;
            return (qn_str){own + at, end - at};
        }
        end = at > 0 ? at - 1 : 0;
    }
    return (qn_str){own, 0};
}

bool qn_name_has_type(const char *path, const char *type) {
    const size_t n = strlen(type);
    for (const char *at = path; strlen(at) >= n; at++) {
        const bool begins = at == path || !is_word(at[-1]);
        if (begins && strncasecmp(at, type, n) == 0 && !is_word(at[n])) return true;
    }
    return false;
}

void qn_names_join(char *to, size_t size, const char *const *names, size_t n_listed, size_t n) {
    size_t used = 0;
    *to = 0;
    for (size_t i = 0; i < n_listed && used < size; i++)
        used += (size_t)snprintf(to + used, size - used, "%s%s", i ? ", " : "", names[i]);
    if (n > n_listed && used < size)
        snprintf(to + used, size - used, " and %zu more", n - n_listed);
}

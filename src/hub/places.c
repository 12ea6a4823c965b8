#include "hub/places.h"

#include "core/debug.h"
#include "core/file.h"
#include "core/mem.h"

#include <string.h>

static const char hub[] = "https://huggingface.co";
static const char service[] = "/usr/share/ollama/.ollama/models";

// base + "/" + rest; NULL where there is no base. False: no memory.
static bool join(char **out, const char *base, const char *rest) {
    *out = base ? qn_path_join(base, rest) : NULL;
    return *out || !base;
}

// `own` where it was said, else a place below the first of two folders that is known.
static bool choose(char **out, const char *own, const char *base, const char *rest) {
    if (!own) return join(out, base, rest);
    *out = strdup(own);
    return *out != NULL;
}

// The standard for these two says that relative ones do not count. False: no memory.
static bool find_base(char **out, const char *own, const char *home, const char *rest) {
    return choose(out, own && *own == '/' ? own : NULL, home, rest);
}

static bool copy_endpoint(char **out, const char *address) {
    size_t n = strlen(address);
    while (n > 0 && address[n - 1] == '/') n--;
    *out = strndup(address, n);
    return *out != NULL;
}

qn_status qn_places_read(qn_places *out, qn_err *err) {
    const qn_model_places said = qn_model_places_read();
    char *data = NULL, *cache = NULL, *hf = NULL;
    qn_places p = {0};
    const bool is_fine = find_base(&data, said.data_home, said.home, ".local/share") &&
                         find_base(&cache, said.cache_home, said.home, ".cache") &&
                         choose(&hf, said.hf_home, cache, "huggingface") &&
                         choose(&p.models, said.models, data, "quern/models") &&
                         choose(&p.hf, said.hf_hub_cache, hf, "hub") &&
                         join(&p.token, hf, "token") &&
                         choose(&p.llama, said.llama_cache, cache, "llama.cpp") &&
                         choose(&p.ollama, said.ollama_models, said.home, ".ollama/models") &&
                         (said.ollama_models || (p.service = strdup(service)) != NULL) &&
                         copy_endpoint(&p.endpoint, said.hf_endpoint ? said.hf_endpoint : hub);
    qn_free(data);
    qn_free(cache);
    qn_free(hf);
    if (!is_fine) {
        qn_places_deinit(&p);
        return QN_NOMEM(err, "names of folders");
    }
    *out = p;
    return QN_OK;
}

void qn_places_deinit(qn_places *p) {
    char *const all[] = {p->models, p->hf, p->llama, p->ollama, p->service, p->token, p->endpoint};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) qn_free(all[i]);
    *p = (qn_places){0};
}

// Blanks around it are not part of it; anything but plain characters inside would be more than one
// header.
static qn_status take_token(char **out, const char *text, const char *from, qn_err *err) {
    static const char blanks[] = " \t\r\n";
    text += strspn(text, blanks);
    const size_t n = strcspn(text, blanks);
    for (size_t i = 0; i < n; i++) {
        if (text[i] <= ' ' || text[i] > '~')
            return QN_FAIL(err, ARGUMENT, "%s: byte %zu of the token is not a plain character",
                           from, i + 1);
    }
    if (text[n + strspn(text + n, blanks)])
        return QN_FAIL(err, ARGUMENT, "%s: the token has a blank inside", from);
    if (n == 0) return QN_OK;
    *out = strndup(text, n);
    return *out ? QN_OK : QN_NOMEM(err, "the token");
}

qn_status qn_places_token(char **out, const qn_places *places, qn_err *err) {
    enum { LONGEST = 4096 };
    const qn_model_places said = qn_model_places_read();
    *out = NULL;
    if (said.hf_token) return take_token(out, said.hf_token, "HF_TOKEN", err);
    if (!places->token || !qn_path_is_file(places->token)) return QN_OK;
    char *text;
    size_t size;
    QN_TRY(qn_file_load(&text, &size, places->token, LONGEST, err));
    const qn_status status = take_token(out, text, places->token, err);
    qn_free(text);
    return status;
}

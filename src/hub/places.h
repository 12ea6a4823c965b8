// Where models are: our own folder, and the folders of other programs, which are read and never
// written.
#ifndef QN_HUB_PLACES_H
#define QN_HUB_PLACES_H

#include "core/err.h"

// Caller storage. Paths of folders that may not exist; NULL: not known, as there is no home.
typedef struct qn_places {
    char *models;   // our own
    char *hf;       // the cache of the hub's programs
    char *llama;    // that of llama.cpp
    char *ollama;   // models of Ollama
    char *service;  // the same where Ollama is a service of the machine; NULL: `ollama` was named
    char *token;    // the file with the token
    char *endpoint; // the hub's address, without a slash at its end
} qn_places;

// As the environment says it.
QN_MUST_CHECK qn_status qn_places_read(qn_places *out, qn_err *err);
void qn_places_deinit(qn_places *places);

// The token that shows the hub who asks (owned: qn_free); NULL: none. One that cannot be part of a
// header is an error.
QN_MUST_CHECK qn_status qn_places_token(char **out, const qn_places *places, qn_err *err);

#endif

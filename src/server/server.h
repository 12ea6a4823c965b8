// The HTTP server: models behind the addresses that clients of other servers know.
//
// A server is created with its models and its address, runs until it is told to stop, and is
// destroyed. It sees the library by quern.h alone. docs/server.md describes it from outside.
#ifndef QN_SERVER_SERVER_H
#define QN_SERVER_SERVER_H

#include "core/err.h"

typedef struct qn_server qn_server;

// Opens a model, and sets how its tokens are chosen where requests do not say it (what that points
// to outlives the server). Several threads may call it at a time. `sample` is NULL for draft
// models.
typedef qn_status qn_open_fn(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                             qn_err *err);
// The same without weights (qn_engine_opts.no_weights), with all other settings as they would be
// used: for the memory plan, and for looking at a model. The server closes it.
typedef qn_status qn_peek_fn(void *arg, qn_engine **out, const char *path, qn_err *err);

// Each 0: as usual.
typedef struct qn_server_limits {
    size_t body;     // bytes of a request's body
    size_t held;     // the same of all requests at a time
    size_t untaken;  // bytes of answers in one piece that their clients have not taken
    size_t pixels;   // bytes of the images of all requests at a time, decoded
    size_t unsent;   // bytes of a stream that wait for a slow client
    size_t waiting;  // requests that wait for a worker
    int connections; // at a time
    int64_t idle_ms; // that a connection may be without a whole request, or an answer untaken
} qn_server_limits;

typedef struct qn_server_opts {
    const char *host; // an address or a name; NULL: 127.0.0.1
    int port;         // 0: any free one (qn_server_port)
    const char *const *keys;
    size_t n_keys;
    const char *key_file;       // one key a line, read again on HUP; NULL: none
    const char *const *origins; // (n_origins) that pages of other servers may come from (CORS)
    size_t n_origins;
    const char *const *hosts; // (n_hosts) further names that this server is called by
    size_t n_hosts;
    const char *const *image_hosts; // (n_image_hosts) that images may be fetched from; "*": all
    size_t n_image_hosts;
    bool insecure; // a public address without a key is fine
    const char *tls_cert, *tls_key;

    const char *model;    // path; NULL: models of `folder` alone
    const char *alias;    // its name; NULL: the file's
    const char *folder;   // every model in it is served by name; NULL: none
    const char *template; // chat template in place of the models' own; NULL: none
    qn_open_fn *open;
    qn_peek_fn *peek;
    void (*close)(void *arg, qn_engine *engine); // of what `open` opened; NULL: qn_engine_close
    void *open_arg;
    const char *draft;         // path of a draft model; NULL: none
    qn_generate_opts generate; // what requests do not say: speculation, context shift, limits
    int64_t context;           // max tokens of a request; 0: the model's limit
    int64_t parallel;          // max rows computed at a time; 0: the library's default
    int64_t chunk;             // max tokens of a step; 0: the library's default
    int64_t memory;            // bytes for the KV cache and state of a model; 0: by the machine
    bool no_prefix_cache;      // nothing is kept of earlier prompts
    int64_t queue;             // max requests that wait; 0: 256
    int64_t timeout_ms;        // max time of a request; 0: none
    int64_t grace_ms;          // max time that a stop waits for answers; 0: 30 s
    qn_server_limits limits;

    bool metrics, page, log_json, quiet;
    bool log_prompts;     // what requests ask is in the log
    bool reasoning_field; // the field of reasoning is "reasoning", not "reasoning_content"
} qn_server_opts;

// Opens the model (if there is one) and the address. What the options point to must outlive the
// server.
QN_MUST_CHECK qn_status qn_server_create(qn_server **out, const qn_server_opts *opts, qn_err *err);
// Serves until qn_server_stop; then answers that have begun may end, for a while.
QN_MUST_CHECK qn_status qn_server_run(qn_server *server, qn_err *err);
// From any thread, and from a signal handler. The second call ends answers at once.
void qn_server_stop(qn_server *server);
// The same: reads keys and certificates again.
void qn_server_reload(qn_server *server);
void qn_server_destroy(qn_server *server);

// The port that it listens on.
int qn_server_port(const qn_server *server);
// One screen for people: address, page, model, memory, an example. *text is owned (qn_free).
QN_MUST_CHECK qn_status qn_server_describe(char **text, qn_server *server, qn_err *err);

#endif

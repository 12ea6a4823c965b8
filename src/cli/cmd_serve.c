// quern serve: models behind an HTTP address.
#include "cli/open_model.h"
#include "cli/split.h"
#include "cli/out.h"
#include "cli/pictures.h"
#include "cli/sampling.h"
#include "cli/terminal.h"

#include "core/mem.h"
#include "core/thread.h"
#include "server/guard.h"
#include "server/sandbox.h"
#include "server/server.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

typedef struct serve_options {
    const char *host, *key_file, *tls_cert, *tls_key, *alias, *models, *memory, *draft, *template;
    qn_texts keys, origins, hosts, image_hosts;
    qn_whole port; // 0 and -1: any free one
    int64_t context, parallel, chunk, queue, timeout, grace, tokens, draft_max, keep;
    bool insecure, no_prefix_cache, metrics, no_page, lookup, mtp, mtp_fast, shift, quiet;
    bool no_sandbox, log_prompts;
    int log_format, reasoning_field; // words
    qn_sampling_args sampling;
    qn_engine_args engine;
} serve_options;

enum { DEFAULT_PORT = 8080 };

// --- what was typed ------------------------------------------------------------------------------

// Bytes, with K, M or G after the number. False: it is not.
static bool read_bytes(int64_t *out, const char *typed) {
    static const char units[] = "KMGkmg";
    char *end;
    *out = 0;
    if (!typed) return true;
    errno = 0;
    const long long n = strtoll(typed, &end, 10);
    if (*typed < '0' || *typed > '9' || errno || n < 1) return false;
    const char *unit = *end ? strchr(units, *end) : NULL;
    const int shift = unit ? 10 * (int)((unit - units) % 3 + 1) : 0;
    if ((*end && !unit) || (*end && end[1]) || n > INT64_MAX >> shift) return false;
    *out = (int64_t)n << shift;
    return true;
}

static qn_status check_serve(const qn_call *call, qn_err *err) {
    const serve_options *o = call->options;
    int64_t bytes;
    if (call->n_args && o->models)
        return QN_FAIL(err, ARGUMENT, "serve: give either MODEL or --models, not both");
    if (o->alias && o->models)
        return QN_FAIL(err, ARGUMENT, "serve: --alias names one model, not those of --models");
    if (o->engine.split && o->models)
        return QN_FAIL(err, ARGUMENT, "serve: --split shares one MODEL, not those of --models");
    if (!o->tls_cert != !o->tls_key)
        return QN_FAIL(err, ARGUMENT, "serve: --tls-cert and --tls-key go together");
    if (!read_bytes(&bytes, o->memory))
        return QN_FAIL(err, ARGUMENT, "--memory: '%s', want bytes, such as 8G", o->memory);
    if (o->mtp_fast && !o->mtp) return QN_FAIL(err, ARGUMENT, "--mtp-fast needs --mtp");
    for (size_t i = 0; i < o->hosts.n; i++) QN_TRY(qn_host_check(o->hosts.items[i], err));
    for (size_t i = 0; i < o->origins.n; i++) QN_TRY(qn_origin_check(o->origins.items[i], err));
    QN_TRY(qn_sampling_args_check(&o->sampling, err));
    QN_TRY(qn_sampling_args_check_together(&o->sampling, err));
    return qn_engine_args_check(&o->engine, err);
}

// --- opening models ------------------------------------------------------------------------------

// A model that is open.
typedef struct opened {
    qn_loaded loaded;
    qn_sampling sampling;
    struct opened *next;
} opened;

typedef struct opener {
    const serve_options *options;
    pthread_mutex_t lock; // of the list
    opened *all;
} opener;

// A qn_open_fn.
static qn_status open_model(void *arg, qn_engine **out, qn_sample_opts *sample, const char *path,
                            qn_err *err) {
    opener *o = arg;
    opened *one = qn_alloc(1, sizeof *one);
    if (!one) return QN_NOMEM(err, "a model");
    const qn_open_opts opts = {.args = &o->options->engine,
                               .is_second = sample == NULL,
                               .needs_tokenizer = true,
                               .mtp = o->options->mtp && sample,
                               .context = o->options->context};
    qn_sample_opts own = QN_INIT(qn_sample_opts);
    qn_status status = qn_cli_open(&one->loaded, path, &opts, err);
    if (!status && sample) status = qn_engine_sample_defaults(&own, one->loaded.engine, err);
    if (!status && sample)
        status = qn_sampling_init(&one->sampling, &o->options->sampling, &own, err);
    if (status) {
        qn_cli_close(&one->loaded);
        qn_free(one);
        return status;
    }
    if (sample) *sample = one->sampling.opts;
    *out = one->loaded.engine;
    pthread_mutex_lock(&o->lock);
    one->next = o->all;
    o->all = one;
    pthread_mutex_unlock(&o->lock);
    return QN_OK;
}

// A qn_peek_fn: silent, and without the folder of packed weights, which none are read from.
static qn_status peek_model(void *arg, qn_engine **out, const char *path, qn_err *err) {
    const opener *o = arg;
    const qn_open_opts opts = {.args = &o->options->engine,
                               .no_weights = true,
                               .is_alone = true,
                               .mtp = o->options->mtp,
                               .context = o->options->context};
    qn_engine_opts engine = qn_open_engine_opts(&opts);
    qn_lora_list loras = {0};
    QN_TRY(qn_loras_parse(&loras, &o->options->engine.loras, err));
    engine.adapters = loras.items;
    engine.n_adapters = loras.n;
    const qn_status status = qn_engine_open(out, path, &engine, err);
    qn_free(loras.items);
    return status;
}

// The same for qn_server_opts.close.
static void close_model(void *arg, qn_engine *engine) {
    opener *o = arg;
    pthread_mutex_lock(&o->lock);
    opened **at = &o->all;
    while (*at && (*at)->loaded.engine != engine) at = &(*at)->next;
    opened *one = *at;
    if (one) *at = one->next;
    pthread_mutex_unlock(&o->lock);
    if (!one) return;
    qn_cli_close(&one->loaded);
    qn_sampling_deinit(&one->sampling);
    qn_free(one);
}

// --- signals -------------------------------------------------------------------------------------

// Signals are taken by one thread; all others have them blocked.
typedef struct listener {
    sigset_t set;
    qn_server *server;
    atomic_bool has_ended; // the server
} listener;

// Answers that have begun may end, unless a rank that they wait for was lost.
static void stop_server(qn_server *server) {
    qn_ranks_stop_waiting();
    qn_server_stop(server);
}

static void *listen_to_signals(void *arg) {
    listener *l = arg;
    for (int number; !atomic_load(&l->has_ended) && sigwait(&l->set, &number) == 0;) {
        if (atomic_load(&l->has_ended)) break;
        if (number == SIGHUP)
            qn_server_reload(l->server);
        else if (number != SIGUSR1) // which only wakes this thread; from others it means nothing
            stop_server(l->server);
    }
    return NULL;
}

static void hold_signals(sigset_t *set) {
    sigemptyset(set);
    sigaddset(set, SIGINT);
    sigaddset(set, SIGTERM);
    sigaddset(set, SIGHUP);
    sigaddset(set, SIGUSR1);
    (void)pthread_sigmask(SIG_BLOCK, set, NULL);
    (void)sigaction(SIGPIPE, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
}

// --- the command ---------------------------------------------------------------------------------

static qn_server_opts server_opts(const qn_call *call, opener *open) {
    const serve_options *o = call->options;
    int64_t memory;
    (void)read_bytes(&memory, o->memory); // was checked
    return (qn_server_opts){
        .host = o->host,
        .port = !o->port.is_given   ? DEFAULT_PORT
                : o->port.value < 0 ? 0
                                    : (int)o->port.value,
        .keys = o->keys.items,
        .n_keys = o->keys.n,
        .key_file = o->key_file,
        .origins = o->origins.items,
        .n_origins = o->origins.n,
        .hosts = o->hosts.items,
        .n_hosts = o->hosts.n,
        .image_hosts = o->image_hosts.items,
        .n_image_hosts = o->image_hosts.n,
        .insecure = o->insecure,
        .tls_cert = o->tls_cert,
        .tls_key = o->tls_key,
        .alias = o->alias,
        .folder = o->models,
        .template = o->template,
        .open = open_model,
        .peek = peek_model,
        .close = close_model,
        .open_arg = open,
        .draft = o->draft,
        .generate = QN_INIT(qn_generate_opts, .max_tokens = o->tokens, .lookup = o->lookup,
                            .mtp = o->mtp, .mtp_fast = o->mtp_fast, .shift = o->shift,
                            .keep = o->keep, .draft_max = (int32_t)o->draft_max),
        .context = o->context,
        .parallel = o->parallel,
        .chunk = o->chunk,
        .memory = memory,
        .no_prefix_cache = o->no_prefix_cache,
        .queue = o->queue,
        .timeout_ms = o->timeout * 1000,
        .grace_ms = o->grace * 1000,
        .metrics = o->metrics,
        .page = !o->no_page,
        .log_json = o->log_format == 2,
        .log_prompts = o->log_prompts,
        .quiet = o->quiet,
        .reasoning_field = o->reasoning_field == 2};
}

// Everything is open that is needed. A kernel that cannot do it is served by all the same.
static void give_up_privileges(const serve_options *o) {
    const qn_sandbox_opts sandbox = {.calls_out = o->image_hosts.n > 0,
                                     .has_ranks = o->engine.split != 0};
    qn_err err;
    if (!o->no_sandbox && qn_sandbox_enter(&sandbox, &err))
        fprintf(stderr, "quern: warning: %s; serving without that\n", err.message);
}

static qn_status serve(qn_server *server, const sigset_t *set, qn_err *err) {
    listener l = {.set = *set, .server = server};
    pthread_t thread;
    char *text = NULL;
    QN_TRY(qn_server_describe(&text, server, err));
    fputs(text, stdout);
    fflush(stdout);
    qn_free(text);
    if (!qn_thread_start(&thread, listen_to_signals, &l)) return QN_NOMEM(err, "a thread");
    const qn_status status = qn_server_run(server, err);
    atomic_store(&l.has_ended, true);
    pthread_kill(thread, SIGUSR1);
    pthread_join(thread, NULL);
    return status;
}

static qn_status run_serve(const qn_call *call, qn_err *err) {
    const serve_options *o = call->options;
    opener open = {.options = o};
    char *bundled = NULL;
    sigset_t set;
    qn_server *server = NULL;
    if (pthread_mutex_init(&open.lock, NULL) != 0) return QN_NOMEM(err, "a lock");
    qn_server_opts opts = server_opts(call, &open);
    qn_status status = QN_OK;
    if (!o->models && call->n_args == 0) QN_TRY_TO(done, qn_bundled_find(&bundled, err));
    opts.model = bundled ? bundled : call->n_args ? call->args[0] : NULL;
    hold_signals(&set);
    QN_TRY_TO(done, qn_server_create(&server, &opts, err));
    give_up_privileges(o);
    status = serve(server, &set, err);

done:
    qn_server_destroy(server);
    pthread_mutex_destroy(&open.lock);
    qn_free(bundled);
    return status;
}

static const char *const log_words[] = {"text", "json", NULL};
static const char *const reasoning_words[] = {"reasoning_content", "reasoning", NULL};

// clang-format off
#define TEXT(typed, value, field, text)                                                            \
    {.name = typed, .arg = value, .help = text, .kind = QN_OPTION_TEXT,                            \
     .offset = offsetof(serve_options, field)}
#define TEXTS(typed, value, field, text)                                                           \
    {.name = typed, .arg = value, .help = text, .kind = QN_OPTION_TEXTS,                           \
     .offset = offsetof(serve_options, field)}
#define FLAG(typed, field, text)                                                                   \
    {.name = typed, .help = text, .kind = QN_OPTION_FLAG, .offset = offsetof(serve_options, field)}
#define NUMBER(typed, field, low, high, nothing, text)                                             \
    {.name = typed, .arg = "N", .help = text, .kind = QN_OPTION_INT,                               \
     .offset = offsetof(serve_options, field), .min = low, .max = high, .none = nothing}
// clang-format on

static const qn_option serve_table[] = {
    TEXT("--host", "ADDRESS", host, "address to listen on (default 127.0.0.1: this machine alone)"),
    {.name = "--port",
     .arg = "N",
     .help = "port to listen on (default 8080; 0: any free one, which the start screen tells)",
     .kind = QN_OPTION_WHOLE,
     .offset = offsetof(serve_options, port),
     .min = -1,
     .max = 65535},
    {.name = "--api-key",
     .arg = "KEY",
     .help = "key that requests must show; may be repeated",
     .kind = QN_OPTION_TEXTS,
     .offset = offsetof(serve_options, keys),
     .is_secret = true},
    TEXT("--api-key-file", "FILE", key_file, "the same, one key in each line; read again on HUP"),
    FLAG("--insecure", insecure, "serve a public address without a key"),
    TEXTS("--allow-host", "NAME", hosts,
          "a further name that this server is called by; may be repeated"),
    TEXTS("--cors-origin", "ORIGIN", origins,
          "pages of this origin may use the server (https://example.org; *: all); may be repeated"),
    TEXTS(
        "--image-urls", "HOST", image_hosts,
        "images of requests may be fetched from this host (*: all; default: none, only data: URLs "
        "are read); may be repeated"),
    TEXT("--tls-cert", "FILE", tls_cert, "certificate chain (PEM) for HTTPS"),
    TEXT("--tls-key", "FILE", tls_key, "its private key (PEM)"),
    {.name = "--context",
     .alias = "-c",
     .arg = "N",
     .help = "context size: max tokens of a request's prompt and answer (default 0: the model's "
             "limit)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(serve_options, context),
     .min = 1,
     .max = INT32_MAX,
     .none = "0"},
    {.name = "--parallel",
     .alias = "-np",
     .arg = "N",
     .help = "max answers computed at a time; others wait (default 64)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(serve_options, parallel),
     .min = 1,
     .max = 1024},
    TEXT("--memory", "BYTES", memory,
         "max memory for the KV cache and state of a model's answers, such as 8G (default: what "
         "they can need, at most half of what is free; of --models a quarter)"),
    FLAG("--no-prefix-cache", no_prefix_cache,
         "compute every prompt from its beginning; output unchanged"),
    NUMBER("--queue", queue, 1, 65536, NULL, "max requests that wait (default 256)"),
    NUMBER("--timeout", timeout, 1, 1000000, NULL,
           "max seconds of a request, then its answer is cut (default: none)"),
    NUMBER("--grace", grace, 1, 1000000, NULL,
           "max seconds that answers may still take when the server stops (default 30)"),
    NUMBER("--chunk", chunk, 1, 1 << 20, NULL, "max tokens of a step; output unchanged"),
    TEXT("--alias", "NAME", alias, "name of the model (default: its file's, without .gguf)"),
    TEXT("--models", "DIR", models,
         "serve every model in DIR by name, opened when it is asked for"),
    TEXT("--template", "FILE", template,
         "chat template instead of the model's own: a .jinja file, or another model"),
    {.name = "--draft",
     .alias = "-md",
     .arg = "MODEL",
     .help = "draft model for speculative decoding, with the same vocabulary; output unchanged",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(serve_options, draft)},
    NUMBER("--draft-max", draft_max, 1, QN_MAX_DRAFT, NULL,
           "maximum tokens drafted at a time (default 8)"),
    FLAG("--mtp", mtp,
         "speculate with the model's own prediction head (multi-token prediction); output "
         "unchanged"),
    FLAG("--mtp-fast", mtp_fast,
         "with --mtp: draft only among the first 32768 tokens of the vocabulary; output unchanged"),
    FLAG("--lookup", lookup, "speculate by n-gram lookup; output unchanged"),
    {.name = "--tokens",
     .alias = "-n",
     .arg = "N",
     .help = "max tokens of answers, where requests do not say it (default -1: until the model "
             "stops)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(serve_options, tokens),
     .min = 1,
     .max = INT32_MAX,
     .none = "-1"},
    FLAG("--context-shift", shift,
         "when the context is full, drop half of it and continue instead of stopping"),
    NUMBER("--keep", keep, 1, INT32_MAX, "0",
           "tokens at the start that --context-shift does not drop (default 0)"),
    FLAG("--metrics", metrics, "tell counters and histograms at /metrics, for Prometheus"),
    FLAG("--no-page", no_page, "no web page"),
    {.name = "--reasoning-field",
     .arg = "NAME",
     .help = "field of reasoning in chat completions: reasoning_content (the default) or reasoning",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(serve_options, reasoning_field),
     .words = reasoning_words},
    {.name = "--log-format",
     .arg = "FORMAT",
     .help = "log of requests on stderr: text (the default) or json; never with answers",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(serve_options, log_format),
     .words = log_words},
    FLAG("--log-prompts", log_prompts,
         "log what requests ask, too, up to 16 KiB of each: for debugging, as it is private"),
    FLAG("--no-sandbox", no_sandbox,
         "keep all system calls, for tools that work inside the process, such as leak checkers"),
    FLAG("--quiet", quiet, "log warnings and errors only, and no request but those that failed"),
    QN_OPTIONS_MMPROJ(serve_options),
    QN_OPTIONS_SAMPLING(serve_options),
    QN_OPTIONS_ENGINE(serve_options),
};

const qn_command qn_cmd_serve = {
    .name = "serve",
    .args = "[MODEL]",
    .summary = "Serves models over HTTP: OpenAI's, Anthropic's and Ollama's API, and a web page.",
    .notes =
        "Without MODEL and --models the bundled quern-mini-Q8_0.gguf is served. Sampling "
        "options are defaults for requests that do not say them; without a seed, each request "
        "draws one and tells it. TERM and Ctrl-C let answers that have begun end, a second one "
        "does not; HUP reads the keys and the certificate again. docs/server.md has the routes, "
        "and settings for "
        "clients.",
    .options = serve_table,
    .n_options = sizeof serve_table / sizeof *serve_table,
    .options_size = sizeof(serve_options),
    .min_args = 0,
    .max_args = 1,
    .check = check_serve,
    .run = run_serve,
};

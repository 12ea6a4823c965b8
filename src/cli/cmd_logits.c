// quern logits: the logits of the next token.
#include "cli/args.h"
#include "cli/log_sum_exp.h"
#include "cli/pictures.h"
#include "cli/out.h"

#include "core/mem.h"

#include <stdlib.h>
#include <string.h>

typedef struct logits_options {
    const char *ids, *prompt, *replay, *output;
    bool all, hidden, mtp, naive, ref;
    int64_t chunk, top;
    qn_texts images;
    qn_engine_args engine;
} logits_options;

static qn_status check_logits(const qn_call *call, qn_err *err) {
    const logits_options *options = call->options;
    if (!!options->ids + !!options->prompt + !!options->replay != 1)
        return QN_FAIL(err, ARGUMENT, "logits: give one of --ids, --prompt and --replay");
    if (options->replay &&
        (options->ref || options->hidden || options->mtp || options->chunk || options->naive))
        return QN_FAIL(err, ARGUMENT,
                       "--replay runs the recorded steps: without --ref, --hidden, --mtp, --chunk "
                       "and --naive");
    if (options->replay && options->images.n)
        return QN_FAIL(err, ARGUMENT, "--replay has the images of its steps: without --image");
    if (options->hidden && options->mtp)
        return QN_FAIL(err, ARGUMENT, "logits: give either --hidden or --mtp");
    if (options->prompt && !*options->prompt)
        return QN_FAIL(err, ARGUMENT, "--prompt: the prompt is empty");
    if (options->naive && options->ref)
        return QN_FAIL(err, ARGUMENT, "logits: give either --naive or --ref");
    if (options->top && options->output)
        return QN_FAIL(err, ARGUMENT, "--top is for printing, which -o turns off");
    if (options->hidden && !options->output)
        return QN_FAIL(err, ARGUMENT, "--hidden needs -o: hidden states are written to a file");
    if (options->mtp && !options->output)
        return QN_FAIL(err, ARGUMENT, "--mtp needs -o: its logits are written to a file");
    if (options->all && !options->output)
        return QN_FAIL(err, ARGUMENT, "--all needs -o: all rows are written to a file");
    QN_TRY(qn_outfile_check("-o", options->output, err));
    QN_TRY(qn_engine_args_check(&options->engine, err));
    if (!options->ids) return QN_OK;
    int32_t *ids = NULL;
    size_t n;
    const qn_status status = qn_ids_parse(&ids, &n, options->ids, "--ids", err);
    qn_free(ids);
    return status == QN_LIMIT ? QN_OK : status; // not an id of any model: reported when it runs
}

// Ids have as many image tokens as an image has rows; a text has one for each image.
static qn_status read_ids(int32_t **ids, size_t *n, const qn_engine *engine,
                          const logits_options *options, const qn_pictures *images, qn_err *err) {
    if (options->ids) return qn_ids_parse(ids, n, options->ids, "--ids", err);
    const qn_tokenize_opts opts = QN_INIT(qn_tokenize_opts, .special = true, .add_ends = true);
    int32_t *short_ids;
    size_t n_short;
    QN_TRY(qn_tokenize(&short_ids, &n_short, qn_engine_tokenizer(engine), options->prompt,
                       strlen(options->prompt), &opts, err));
    const qn_status status = qn_engine_expand_images(ids, n, NULL, engine, short_ids, n_short,
                                                     qn_pictures_list(images), images->n, err);
    qn_free(short_ids);
    return status;
}

enum { BEST = 10 }; // that are printed, unless --top says otherwise

// --- the best, as JSON ---------------------------------------------------------------------------

typedef struct candidate {
    int32_t id;
    float logit;
} candidate;

// Best first, ties to the lower id.
static int by_logit(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

// Every token of the vocabulary, best first (owned: qn_free); NULL: no memory.
static candidate *sort_tokens(const float *logits, int64_t n) {
    candidate *tokens = qn_alloc((size_t)n, sizeof *tokens);
    for (int64_t id = 0; tokens && id < n; id++) tokens[id] = (candidate){(int32_t)id, logits[id]};
    if (tokens) qsort(tokens, (size_t)n, sizeof *tokens, by_logit);
    return tokens;
}

static qn_status print_best(const qn_logits *logits, const qn_tokenizer *tokenizer, int64_t top,
                            qn_err *err) {
    const float *row = logits->logits + (logits->n_rows - 1) * logits->n_vocab; // (V)
    const size_t n = (size_t)(top < logits->n_vocab ? top : logits->n_vocab);
    const double sum = qn_log_sum_exp(row, logits->n_vocab);
    candidate *best = sort_tokens(row, logits->n_vocab);
    if (!best) return QN_NOMEM(err, "the vocabulary");
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *piece = tokenizer ? qn_tokenizer_piece(tokenizer, best[i].id, &size) : NULL;
        const double logit = best[i].logit;
        json_t *entry = json_pack("{s:i, s:o, s:f, s:f}", "id", (int)best[i].id, "token",
                                  qn_json_string(piece ? piece : "", size), "logit", logit,
                                  "logprob", logit - sum);
        qn_json_push(&list, entry);
    }
    qn_free(best);
    return qn_stdout_json(list, 0, err);
}

// --- all of them, as safetensors -----------------------------------------------------------------

static void add_tensor(qn_buf *to, int64_t *at, const char *name, int64_t rows, int64_t columns) {
    const int64_t end = *at + rows * columns * (int64_t)sizeof(float);
    qn_buf_printf(to,
                  "%c\"%s\":{\"dtype\":\"F32\",\"shape\":[%lld,%lld],"
                  "\"data_offsets\":[%lld,%lld]}",
                  *at ? ',' : '{', name, (long long)rows, (long long)columns, (long long)*at,
                  (long long)end);
    *at = end;
}

// The header: length in 8 bytes, then JSON with the place of each tensor, padded with blanks so
// that the data begins at a multiple of 8.
static void add_header(qn_buf *to, const qn_logits *l) {
    enum { LENGTH = 8 };
    int64_t at = 0;
    qn_buf_add(to, "\0\0\0\0\0\0\0\0", LENGTH);
    add_tensor(to, &at, "logits", l->n_rows, l->n_vocab);
    for (int64_t k = 0; k < l->n_hidden; k++) {
        char name[32];
        snprintf(name, sizeof name, "hidden.%lld", (long long)k);
        add_tensor(to, &at, name, l->n_tokens, l->width);
    }
    if (l->mtp) add_tensor(to, &at, "mtp_logits", l->n_mtp, l->n_vocab);
    qn_buf_text(to, "}");
    while (to->size % LENGTH && !to->failed) qn_buf_text(to, " ");
    for (int i = 0; i < LENGTH && !to->failed; i++)
        to->data[i] = (char)((to->size - LENGTH) >> 8 * i & 255);
}

// Only a file that this command wrote may be replaced: another safetensors file is a model.
static const qn_newfile_kind logits_kind = {.name = "a file that 'quern logits' wrote",
                                            .at = 8,
                                            .marks = {"{\"logits\":{\"dtype\":\"F32\""}};

// Both formats and every machine that Quern runs on are little endian.
static qn_status write_tensors(const char *path, const qn_logits *l, qn_err *err) {
    qn_buf header = {0};
    add_header(&header, l);
    if (header.failed) return QN_NOMEM(err, "header of the output");
    const qn_bytes parts[] = {
        {header.data, header.size},
        {l->logits, (size_t)(l->n_rows * l->n_vocab) * sizeof(float)},
        {l->hidden, (size_t)(l->n_hidden * l->n_tokens * l->width) * sizeof(float)},
        {l->mtp, (size_t)(l->n_mtp * l->n_vocab) * sizeof(float)},
    };
    const size_t n = sizeof parts / sizeof *parts;
    const qn_status status = qn_outfile_save(path, &logits_kind, parts, n, err);
    qn_buf_deinit(&header);
    return status;
}

// --- the command ---------------------------------------------------------------------------------

static qn_status run_logits(const qn_call *call, qn_err *err) {
    const logits_options *options = call->options;
    const qn_open_opts open_opts = {.args = &options->engine,
                                    .reference = options->ref,
                                    .mtp = options->mtp,
                                    .needs_tokenizer = options->prompt != NULL};
    qn_logits_opts logits_opts =
        QN_INIT(qn_logits_opts, .all_rows = options->all, .hidden = options->hidden,
                .naive = options->naive, .chunk = options->chunk, .mtp = options->mtp);
    qn_loaded loaded = {0};
    qn_pictures images = {0};
    qn_logits logits = QN_INIT(qn_logits);
    int32_t *ids = NULL;
    size_t n = 0;
    qn_status status = QN_OK;
    if (options->output) QN_TRY(qn_newfile_check(options->output, &logits_kind, err));
    QN_TRY_TO(done, qn_pictures_open(&images, &options->images, err));
    logits_opts.images = qn_pictures_list(&images);
    logits_opts.n_images = images.n;
    QN_TRY_TO(done, qn_cli_open(&loaded, call->args[0], &open_opts, err));
    status = qn_pictures_check(NULL, &images, loaded.engine, err);
    if (status) qn_err_prefix(err, status, "--image");
    if (status) goto done;
    if (options->replay) {
        QN_TRY_TO(done,
                  qn_engine_replay(&logits, loaded.engine, options->replay, &logits_opts, err));
    } else {
        QN_TRY_TO(done, read_ids(&ids, &n, loaded.engine, options, &images, err));
        status = qn_engine_logits(&logits, loaded.engine, ids, n, &logits_opts, err);
        if (status == QN_ARGUMENT && options->ids) qn_err_prefix(err, status, "--ids");
        if (status) goto done;
    }
    if (options->output)
        status = write_tensors(options->output, &logits, err);
    else
        status = print_best(&logits, qn_engine_tokenizer(loaded.engine),
                            options->top ? options->top : BEST, err);

done:
    qn_logits_deinit(&logits);
    qn_free(ids);
    qn_cli_close(&loaded);
    qn_pictures_clear(&images);
    return status;
}

static const qn_option logits_table[] = {
    {.name = "--ids",
     .arg = "1,2,3",
     .help = "input token ids, separated by commas",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(logits_options, ids)},
    {.name = "--prompt",
     .alias = "-p",
     .arg = "TEXT",
     .help = "a text instead of ids; special tokens in it are parsed, and a BOS token is added if "
             "the model wants one",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(logits_options, prompt)},
    {.name = "--replay",
     .arg = "FILE",
     .help = "instead of ids, the steps that an earlier run recorded with QN_STEPS=FILE: prints "
             "the last row of logits they asked for; all rows with -o and --all",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(logits_options, replay)},
    {.name = "--top",
     .arg = "N",
     .help = "number of top tokens to print (default: 10)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(logits_options, top),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--all",
     .help = "with -o: logits after every token, not only after the last",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(logits_options, all)},
    {.name = "--hidden",
     .help =
         "with -o: also the tensors hidden.0 ... hidden.L, each (tokens, width): the embedding, "
         "the residual stream after each layer, the last one after the final norm",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(logits_options, hidden)},
    {.name = "--mtp",
     .help = "with -o: also the tensor mtp_logits of the prediction head: row t, from the hidden "
             "state of token t and from token t + 1, is about token t + 2",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(logits_options, mtp)},
    {.name = "--naive",
     .help = "all tokens in one step, without a KV cache; output unchanged",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(logits_options, naive)},
    {.name = "--ref",
     .help = "use the reference interpreter: slow, float32 throughout, the baseline for every "
             "other result (not --device ref, which gives the bits of cpu); --numerics, "
             "--cache-type and --plans have no effect",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(logits_options, ref)},
    {.name = "--chunk",
     .arg = "N",
     .help = "tokens per step (default: 512); output unchanged",
     .kind = QN_OPTION_INT,
     .offset = offsetof(logits_options, chunk),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--output",
     .alias = "-o",
     .arg = "OUT.safetensors",
     .help = "write the tensor \"logits\", (rows, vocabulary) in F32, to this file",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(logits_options, output)},
    QN_OPTIONS_IMAGES(logits_options),
    QN_OPTIONS_ENGINE(logits_options),
};

const qn_command qn_cmd_logits = {
    .name = "logits",
    .args = "MODEL (--ids 1,2,3 | -p TEXT | --replay FILE)",
    .summary = "Computes the logits of the next token.",
    .notes =
        "Without -o, the top candidates for the next token are printed as JSON: [{\"id\", "
        "\"token\", \"logit\", \"logprob\"}, ...]. With --image, --ids has image tokens as the "
        "model's own processor writes them, as many as the image has rows; TEXT has one "
        "(<|image_pad|>) for each image.",
    .options = logits_table,
    .n_options = sizeof logits_table / sizeof *logits_table,
    .options_size = sizeof(logits_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_logits,
    .run = run_logits,
};

// quern embed: texts as rows of numbers.
#include "cli/args.h"
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/progress.h"
#include "cli/terminal.h"

#include "core/mem.h"
#include "core/real_text.h"

#include <string.h>
#include <unistd.h>

typedef struct embed_options {
    const char *file;
    int pooling; // a word
    bool normalize, json;
    qn_engine_args engine;
} embed_options;

static const char *const pooling_words[] = {"mean", "last", NULL}; // as in qn_pooling, after AUTO

static qn_status check_embed(const qn_call *call, qn_err *err) {
    const embed_options *options = call->options;
    if (call->n_args > 1 && options->file)
        return QN_FAIL(err, ARGUMENT, "embed: give either texts or --file");
    if (call->n_args == 1 && !options->file && isatty(STDIN_FILENO))
        return QN_FAIL(err, ARGUMENT, "embed: no texts; give some, or --file");
    for (size_t i = 1; i < call->n_args; i++) {
        if (!*call->args[i]) return QN_FAIL(err, ARGUMENT, "embed: text %zu is empty", i);
    }
    return qn_engine_args_check(&options->engine, err);
}

// --- texts ---------------------------------------------------------------------------------------

typedef struct text_list {
    qn_buf all;         // of a file; its lines end in NUL
    const char **items; // (n), owned array
    size_t n;
} text_list;

static void deinit_texts(text_list *texts) {
    qn_buf_deinit(&texts->all);
    qn_free(texts->items);
}

// Each line is a text; it may end as lines of Windows do.
static qn_status cut_lines(text_list *to, const char *path, qn_err *err) {
    size_t n = 0, cap = 0;
    void *items = NULL;
    qn_buf_add(&to->all, "", 1); // the last line may lack its end
    if (to->all.failed) return QN_NOMEM(err, "texts");
    for (char *line = to->all.data, *end = line + to->all.size - 1; line < end; n++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        if (memchr(line, '\0', (size_t)(stop - line)))
            return QN_FAIL(err, FORMAT, "%s: line %zu has a NUL byte", path, n + 1);
        if (stop > line && stop[-1] == '\r') stop[-1] = '\0';
        if (stop == line || !*line)
            return QN_FAIL(err, FORMAT, "%s: line %zu is empty", path, n + 1);
        if (!qn_grow(&items, &cap, n + 1, sizeof *to->items)) return QN_NOMEM(err, "texts");
        to->items = items;
        to->items[n] = line;
        *stop = '\0';
        line = stop + 1;
    }
    to->n = n;
    return n ? QN_OK : QN_FAIL(err, FORMAT, "%s is empty", path);
}

static qn_status read_texts(text_list *to, const qn_call *call, qn_err *err) {
    const embed_options *options = call->options;
    const bool is_stdin = options->file ? strcmp(options->file, "-") == 0 : call->n_args == 1;
    if (is_stdin) {
        QN_TRY(qn_stdin_read(&to->all, QN_MAX_TEXT, err));
        return cut_lines(to, "standard input", err);
    }
    if (options->file) {
        QN_TRY(qn_text_read(&to->all, options->file, QN_MAX_TEXT, err));
        return cut_lines(to, options->file, err);
    }
    to->n = call->n_args - 1;
    to->items = qn_alloc(to->n, sizeof *to->items);
    if (!to->items) return QN_NOMEM(err, "texts");
    memcpy(to->items, call->args + 1, to->n * sizeof *to->items);
    return QN_OK;
}

// --- printing ------------------------------------------------------------------------------------

// `index` counts all texts, `i` those of `e`.
static qn_status print_json(const qn_embeddings *e, int64_t i, size_t index, qn_err *err) {
    json_t *row = json_array();
    for (int64_t k = 0; k < e->width; k++)
        qn_json_push(&row, qn_json_real((double)e->rows[i * e->width + k]));
    return qn_stdout_json(json_pack("{s:I, s:o}", "index", (json_int_t)index, "embedding", row), 0,
                          err);
}

static qn_status print_row(const qn_embeddings *e, int64_t i, size_t index, qn_err *err) {
    (void)index;
    enum { DIGITS = 9 }; // that tell every float from the next
    for (int64_t k = 0; k < e->width; k++) {
        char text[QN_REAL_TEXT];
        if (!qn_double_text(text, (double)e->rows[i * e->width + k], DIGITS))
            return QN_NOMEM(err, "a number");
        printf("%s%s", k ? " " : "", text);
    }
    putchar('\n');
    return qn_stdout_check(err);
}

// --- the command ---------------------------------------------------------------------------------

enum { BLOCK = 256 }; // texts that are computed together, and printed

static qn_status embed_block(const text_list *texts, size_t first, const qn_engine *engine,
                             const embed_options *options, qn_err *err) {
    const size_t n = texts->n - first < BLOCK ? texts->n - first : BLOCK;
    qn_progress bar = {.what = "embedding", .unit = "tokens"};
    const qn_embed_opts opts = QN_INIT(qn_embed_opts, .pooling = (qn_pooling)options->pooling,
                                       .normalize = options->normalize,
                                       .progress = qn_progress_show, .progress_arg = &bar);
    qn_embeddings got = QN_INIT(qn_embeddings);
    qn_status status = qn_engine_embed_texts(&got, engine, texts->items + first, n, &opts, err);
    qn_progress_end(&bar);
    if (status && texts->n > BLOCK)
        (void)qn_err_prefix(err, status, "texts %zu to %zu", first + 1, first + n);
    for (int64_t i = 0; !status && i < got.n; i++)
        status = (options->json ? print_json : print_row)(&got, i, first + (size_t)i, err);
    qn_embeddings_deinit(&got);
    return status;
}

static qn_status run_embed(const qn_call *call, qn_err *err) {
    const embed_options *options = call->options;
    const qn_open_opts open_opts = {.args = &options->engine, .needs_tokenizer = true};
    qn_loaded loaded = {0};
    text_list texts = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, read_texts(&texts, call, err));
    QN_TRY_TO(done, qn_cli_open(&loaded, call->args[0], &open_opts, err));
    for (size_t first = 0; first < texts.n && !status; first += BLOCK)
        status = embed_block(&texts, first, loaded.engine, options, err);

done:
    qn_cli_close(&loaded);
    deinit_texts(&texts);
    return status;
}

static const qn_option embed_table[] = {
    {.name = "--file",
     .alias = "-f",
     .arg = "FILE",
     .help = "texts from a file, one in each line (-: standard input, as without any text)",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(embed_options, file)},
    {.name = "--pooling",
     .arg = "KIND",
     .help =
         "what becomes of the hidden states of a text's tokens: mean, or last, that of the last "
         "token (default: as the model's file says, else mean)",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(embed_options, pooling),
     .words = pooling_words},
    {.name = "--normalize",
     .help = "scale each embedding to a length of 1",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(embed_options, normalize)},
    {.name = "--json",
     .help = "print {\"index\": N, \"embedding\": [...]}, one object per line",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(embed_options, json)},
    QN_OPTIONS_ENGINE(embed_options),
};

const qn_command qn_cmd_embed = {
    .name = "embed",
    .args = "MODEL (TEXT... | --file FILE)",
    .summary = "Prints the embedding of each text: one row of numbers per line.",
    .notes = "The texts are computed together; each row is what it would be alone. Special tokens "
             "in a text are text like any other, and the tokens that the model expects around a "
             "text are added. Put -- before a TEXT that begins with a dash.",
    .options = embed_table,
    .n_options = sizeof embed_table / sizeof *embed_table,
    .options_size = sizeof(embed_options),
    .min_args = 1,
    .max_args = SIZE_MAX,
    .check = check_embed,
    .run = run_embed,
};

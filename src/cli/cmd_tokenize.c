// quern tokenize, quern detokenize: text <-> token ids.
#include "cli/args.h"
#include "cli/out.h"
#include "cli/terminal.h"

#include "core/mem.h"

#include <string.h>
#include <unistd.h>

// --- text to ids ---------------------------------------------------------------------------------

typedef struct tokenize_options {
    bool json, special, bos;
} tokenize_options;

static json_t *tokens_json(const qn_tokenizer *tokenizer, const int32_t *ids, size_t n) {
    json_t *id_list = json_array(), *pieces = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t size = 0;
        const char *piece = qn_tokenizer_piece(tokenizer, ids[i], &size);
        qn_json_push(&id_list, json_integer(ids[i]));
        qn_json_push(&pieces, qn_json_string(piece ? piece : "", size));
    }
    return json_pack("{s:o, s:o}", "ids", id_list, "tokens", pieces);
}

static qn_status print_tokens(const qn_tokenizer *tokenizer, const char *text, size_t size,
                              const tokenize_options *options, qn_err *err) {
    const qn_tokenize_opts opts =
        QN_INIT(qn_tokenize_opts, .special = options->special, .add_ends = options->bos);
    int32_t *ids;
    size_t n;
    QN_TRY(qn_tokenize(&ids, &n, tokenizer, text, size, &opts, err));
    qn_status status = QN_OK;
    if (options->json) {
        status = qn_stdout_json(tokens_json(tokenizer, ids, n), 0, err);
    } else {
        for (size_t i = 0; i < n; i++) printf("%s%d", i ? " " : "", (int)ids[i]);
        putchar('\n');
    }
    qn_free(ids);
    return status;
}

static qn_status run_tokenize(const qn_call *call, qn_err *err) {
    qn_tokenizer *tokenizer = NULL;
    QN_TRY(qn_tokenizer_open(&tokenizer, call->args[0], err));
    qn_buf text = {0};
    qn_status status = QN_OK;
    if (call->n_args > 1) {
        qn_buf_text(&text, call->args[1]);
        if (text.failed) status = QN_NOMEM(err, "the text");
    } else {
        qn_print_input_wanted("text");
        status = qn_stdin_read(&text, QN_MAX_TEXT, err);
    }
    if (!status) status = print_tokens(tokenizer, text.data, text.size, call->options, err);
    qn_buf_deinit(&text);
    qn_tokenizer_close(tokenizer);
    return status;
}

static const qn_option tokenize_table[] = {
    {.name = "--json",
     .help = "print {\"ids\": [...], \"tokens\": [...]}, the tokens as the vocabulary spells them",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(tokenize_options, json)},
    {.name = "--special",
     .help = "parse special tokens in the text",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(tokenize_options, special)},
    {.name = "--bos",
     .help = "add the tokens that the model expects around a text, such as BOS",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(tokenize_options, bos)},
};

const qn_command qn_cmd_tokenize = {
    .name = "tokenize",
    .args = "MODEL [TEXT]",
    .summary = "Prints the token ids of a text.",
    .notes =
        "MODEL may also be a tokenizer.json or a tokenizer.model. Without TEXT, standard input "
        "is read, to its last byte. Put -- before a TEXT that begins with a dash.",
    .options = tokenize_table,
    .n_options = sizeof tokenize_table / sizeof *tokenize_table,
    .options_size = sizeof(tokenize_options),
    .min_args = 1,
    .max_args = 2,
    .run = run_tokenize,
};

// --- ids to text ---------------------------------------------------------------------------------

typedef struct detokenize_options {
    bool special;
} detokenize_options;

static qn_status check_detokenize(const qn_call *call, qn_err *err) {
    for (size_t i = 1; i < call->n_args; i++) {
        int32_t *ids = NULL;
        size_t n;
        const qn_status status = qn_ids_parse(&ids, &n, call->args[i], "IDS", err);
        qn_free(ids);
        if (status && status != QN_LIMIT)
            return status; // not an id of any model: reported when it runs
    }
    return QN_OK;
}

static qn_status print_text(const qn_tokenizer *tokenizer, const char *id_text, const char *what,
                            bool special, qn_err *err) {
    int32_t *ids = NULL;
    size_t n, size;
    char *text;
    QN_TRY(qn_ids_parse(&ids, &n, id_text, what, err));
    const qn_status status = qn_detokenize(&text, &size, tokenizer, ids, n, special, err);
    qn_free(ids);
    if (status) return status == QN_ARGUMENT ? qn_err_prefix(err, status, "%s", what) : status;
    qn_print_text(stdout, text, size);
    if (isatty(STDOUT_FILENO) && (size == 0 || text[size - 1] != '\n')) putchar('\n');
    qn_free(text);
    return QN_OK;
}

static qn_status run_detokenize(const qn_call *call, qn_err *err) {
    const detokenize_options *options = call->options;
    const bool is_typed = call->n_args > 1;
    qn_tokenizer *tokenizer = NULL;
    QN_TRY(qn_tokenizer_open(&tokenizer, call->args[0], err));
    qn_buf text = {0};
    qn_status status = QN_OK;
    for (size_t i = 1; i < call->n_args; i++) qn_buf_printf(&text, "%s ", call->args[i]);
    if (text.failed) status = QN_NOMEM(err, "token ids");
    if (!is_typed) {
        qn_print_input_wanted("token ids");
        status = qn_stdin_read(&text, QN_MAX_PROMPT, err);
    }
    if (!status)
        status = print_text(tokenizer, text.data, is_typed ? "IDS" : "standard input",
                            options->special, err);
    qn_buf_deinit(&text);
    qn_tokenizer_close(tokenizer);
    return status;
}

static const qn_option detokenize_table[] = {
    {.name = "--special",
     .help = "print special tokens too",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(detokenize_options, special)},
};

const qn_command qn_cmd_detokenize = {
    .name = "detokenize",
    .args = "MODEL [IDS]...",
    .summary = "Prints the text of token ids.",
    .notes = "MODEL may also be a tokenizer.json or a tokenizer.model. Ids are separated by spaces "
             "or commas; without any, standard input is read. The text is printed as it is; a "
             "newline follows on a terminal only.",
    .options = detokenize_table,
    .n_options = sizeof detokenize_table / sizeof *detokenize_table,
    .options_size = sizeof(detokenize_options),
    .min_args = 1,
    .max_args = SIZE_MAX,
    .check = check_detokenize,
    .run = run_detokenize,
};

// The components of a tokenizer.json: normalizer, pre_tokenizer, decoder, post_processor. Each kind
// is a table from type names to functions; a Sequence runs its members through the same table.
#include "tokenizer/load_json.h"

enum { DEPTH_MAX = 8 }; // sequences within sequences

// --- members -------------------------------------------------------------------------------------

qn_status qn_json_get_bool(bool *out, const json_t *object, const char *key, bool otherwise,
                           const char *what, qn_err *err) {
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_boolean(value))
        return QN_FAIL(err, FORMAT, "%s: '%s' is not true or false", what, key);
    *out = json_is_boolean(value) ? json_is_true(value) : otherwise;
    return QN_OK;
}

qn_status qn_json_get_int(int64_t *out, const json_t *object, const char *key, int64_t otherwise,
                          const char *what, qn_err *err) {
    const json_t *value = json_object_get(object, key);
    if (value && !json_is_null(value) && !json_is_integer(value))
        return QN_FAIL(err, FORMAT, "%s: '%s' is not a whole number", what, key);
    *out = json_is_integer(value) ? json_integer_value(value) : otherwise;
    return QN_OK;
}

qn_status qn_json_get_text(qn_str *out, const json_t *object, const char *key, const char *what,
                           qn_err *err) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) return QN_FAIL(err, FORMAT, "%s: '%s' is not a string", what, key);
    *out = qn_json_text(value);
    return QN_OK;
}

qn_status qn_json_get_array(json_t **out, const json_t *object, const char *key, const char *what,
                            qn_err *err) {
    json_t *value = json_object_get(object, key);
    if (!json_is_array(value)) return QN_FAIL(err, FORMAT, "%s: '%s' is not a list", what, key);
    *out = value;
    return QN_OK;
}

// --- tables of components ------------------------------------------------------------------------

typedef qn_status component_fn(qn_json_load *load, const json_t *json, qn_err *err);

typedef struct component_row {
    const char *type;
    component_fn *load;
} component_row;

typedef struct component_kind {
    const char *name;    // in messages
    const char *members; // of a Sequence
    const component_row *rows;
    size_t n;
} component_kind;

static qn_status load_component(const component_kind *kind, qn_json_load *load, const json_t *json,
                                int depth, qn_err *err) {
    qn_str type = {0};
    QN_TRY(qn_json_get_text(&type, json, "type", kind->name, err));
    if (qn_str_is(type, "Sequence")) {
        json_t *members = NULL;
        if (depth == DEPTH_MAX)
            return QN_FAIL(err, LIMIT, "%s: more than %d nested sequences", kind->name, DEPTH_MAX);
        QN_TRY(qn_json_get_array(&members, json, kind->members, kind->name, err));
        for (size_t i = 0; i < json_array_size(members); i++)
            QN_TRY(load_component(kind, load, json_array_get(members, i), depth + 1, err));
        return QN_OK;
    }
    for (size_t i = 0; i < kind->n; i++) {
        if (qn_str_is(type, kind->rows[i].type)) return kind->rows[i].load(load, json, err);
    }
    return QN_FAIL(err, UNSUPPORTED, "%s type '%.80s' is not supported", kind->name, type.data);
}

// A pattern is {"String": "..."} or {"Regex": "..."}.
static qn_status get_pattern(qn_str *out, bool *is_regex, const json_t *json, const char *what,
                             qn_err *err) {
    const json_t *pattern = json_object_get(json, "pattern");
    const json_t *regex = json_object_get(pattern, "Regex");
    const json_t *string = json_object_get(pattern, "String");
    if (!json_is_string(regex) && !json_is_string(string))
        return QN_FAIL(err, FORMAT, "%s: its pattern is neither String nor Regex", what);
    *is_regex = json_is_string(regex);
    *out = qn_json_text(*is_regex ? regex : string);
    return QN_OK;
}

// --- normalizers ---------------------------------------------------------------------------------

static qn_status add_norm(qn_norm_step **out, qn_json_load *load, qn_norm_kind kind, qn_err *err) {
    qn_norm *norm = &load->tokenizer->norm;
    if (norm->n == QN_NORM_MAX) return QN_FAIL(err, LIMIT, "more than %d normalizers", QN_NORM_MAX);
    *out = &norm->steps[norm->n++];
    **out = (qn_norm_step){.kind = kind};
    return QN_OK;
}

static qn_status add_form(qn_json_load *load, qn_normal_form form, qn_err *err) {
    qn_norm_step *step = NULL;
    QN_TRY(add_norm(&step, load, QN_NORM_FORM, err));
    step->form = form;
    return QN_OK;
}

static qn_status norm_nfc(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_form(load, QN_NFC, err);
}

static qn_status norm_nfd(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_form(load, QN_NFD, err);
}

static qn_status norm_nfkc(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_form(load, QN_NFKC, err);
}

static qn_status norm_nfkd(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_form(load, QN_NFKD, err);
}

static qn_status norm_lowercase(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    qn_norm_step *step = NULL;
    return add_norm(&step, load, QN_NORM_LOWER, err);
}

static qn_status norm_strip_accents(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    qn_norm_step *step = NULL;
    return add_norm(&step, load, QN_NORM_STRIP_ACCENTS, err);
}

static qn_status norm_strip(qn_json_load *load, const json_t *json, qn_err *err) {
    qn_norm_step *step = NULL;
    QN_TRY(add_norm(&step, load, QN_NORM_STRIP, err));
    QN_TRY(qn_json_get_bool(&step->left, json, "strip_left", true, "normalizer Strip", err));
    return qn_json_get_bool(&step->right, json, "strip_right", true, "normalizer Strip", err);
}

static qn_status norm_prepend(qn_json_load *load, const json_t *json, qn_err *err) {
    qn_norm_step *step = NULL;
    qn_str text = {0};
    QN_TRY(add_norm(&step, load, QN_NORM_PREPEND, err));
    QN_TRY(qn_json_get_text(&text, json, "prepend", "normalizer Prepend", err));
    return qn_tokenizer_keep(&step->to, load->tokenizer, text, err);
}

static qn_status norm_replace(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "normalizer Replace";
    qn_norm_step *step = NULL;
    qn_str pattern = {0}, content = {0};
    bool is_regex = false;
    QN_TRY(add_norm(&step, load, QN_NORM_REPLACE, err));
    QN_TRY(get_pattern(&pattern, &is_regex, json, what, err));
    QN_TRY(qn_json_get_text(&content, json, "content", what, err));
    QN_TRY(qn_tokenizer_keep(&step->to, load->tokenizer, content, err));
    if (!is_regex) return qn_tokenizer_keep(&step->from, load->tokenizer, pattern, err);
    step->kind = QN_NORM_REPLACE_REGEX;
    return qn_regex_init(&step->regex, pattern, err);
}

static int base64_digit(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    return at ? (int)(at - digits) : -1;
}

static qn_status read_base64(qn_buf *out, qn_str text, qn_err *err) {
    uint32_t bits = 0;
    int n_bits = 0;
    while (text.size && text.data[text.size - 1] == '=') text.size--;
    for (size_t i = 0; i < text.size; i++) {
        const int digit = base64_digit(text.data[i]);
        if (digit < 0) return QN_FAIL(err, FORMAT, "precompiled charsmap: not base64 at %zu", i);
        bits = (bits << 6 | (uint32_t)digit) & 0xffffff;
        n_bits += 6;
        if (n_bits < 8) continue;
        n_bits -= 8;
        const char byte = (char)(bits >> n_bits & 0xff);
        qn_buf_add(out, &byte, 1);
    }
    return out->failed ? QN_NOMEM(err, "precompiled charsmap") : QN_OK;
}

static qn_status norm_precompiled(qn_json_load *load, const json_t *json, qn_err *err) {
    qn_norm_step *step = NULL;
    qn_str text = {0};
    qn_buf blob = {0};
    qn_status status;
    QN_TRY(add_norm(&step, load, QN_NORM_PRECOMPILED, err));
    QN_TRY(qn_json_get_text(&text, json, "precompiled_charsmap", "normalizer Precompiled", err));
    QN_TRY_TO(done, read_base64(&blob, text, err));
    QN_TRY_TO(done, qn_charsmap_init(&step->map, blob.data, blob.size, err));
done:
    qn_buf_deinit(&blob);
    return status;
}

static const component_row norm_rows[] = {
    {"NFC", norm_nfc},
    {"NFD", norm_nfd},
    {"NFKC", norm_nfkc},
    {"NFKD", norm_nfkd},
    {"Lowercase", norm_lowercase},
    {"StripAccents", norm_strip_accents},
    {"Strip", norm_strip},
    {"Prepend", norm_prepend},
    {"Replace", norm_replace},
    {"Precompiled", norm_precompiled},
};
static const component_kind norm_kind = {"normalizer", "normalizers", norm_rows,
                                         sizeof norm_rows / sizeof *norm_rows};

qn_status qn_json_load_normalizer(qn_json_load *load, const json_t *json, qn_err *err) {
    if (!json || json_is_null(json)) return QN_OK;
    return load_component(&norm_kind, load, json, 0, err);
}

// --- pre-tokenizers ------------------------------------------------------------------------------

static qn_status add_pretok(qn_pretok_step **out, qn_json_load *load, qn_pretok_kind kind,
                            qn_err *err) {
    qn_pretok *pretok = &load->tokenizer->pretok;
    if (load->byte_level)
        return QN_FAIL(err, UNSUPPORTED, "a pre_tokenizer after ByteLevel is not supported");
    if (pretok->n == QN_PRETOK_MAX)
        return QN_FAIL(err, LIMIT, "more than %d pre_tokenizers", QN_PRETOK_MAX);
    *out = &pretok->steps[pretok->n++];
    **out = (qn_pretok_step){.kind = kind, .behavior = QN_SPLIT_ISOLATED};
    return QN_OK;
}

static qn_status add_regex(qn_json_load *load, const char *pattern, qn_split_behavior behavior,
                           bool invert, qn_err *err) {
    qn_pretok_step *step = NULL;
    QN_TRY(add_pretok(&step, load, QN_PRETOK_REGEX, err));
    step->behavior = behavior;
    step->invert = invert;
    return qn_regex_init(&step->regex, qn_str_of(pattern), err);
}

static qn_status get_behavior(qn_split_behavior *out, const json_t *json, const char *what,
                              qn_err *err) {
    static const char *const names[QN_SPLIT_COUNT] = {
        [QN_SPLIT_REMOVED] = "Removed",
        [QN_SPLIT_ISOLATED] = "Isolated",
        [QN_SPLIT_MERGE_PREVIOUS] = "MergedWithPrevious",
        [QN_SPLIT_MERGE_NEXT] = "MergedWithNext",
        [QN_SPLIT_CONTIGUOUS] = "Contiguous",
    };
    qn_str name = {0};
    QN_TRY(qn_json_get_text(&name, json, "behavior", what, err));
    for (int i = 0; i < QN_SPLIT_COUNT; i++) {
        if (!qn_str_is(name, names[i])) continue;
        *out = (qn_split_behavior)i;
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "%s: behavior '%.80s' is not supported", what, name.data);
}

static qn_status pretok_byte_level(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "pre_tokenizer ByteLevel";
    bool prefix = false, use_regex = false;
    QN_TRY(qn_json_get_bool(&prefix, json, "add_prefix_space", true, what, err));
    QN_TRY(qn_json_get_bool(&use_regex, json, "use_regex", true, what, err));
    qn_pretok_step *step = NULL;
    if (prefix) QN_TRY(add_pretok(&step, load, QN_PRETOK_PREFIX, err));
    if (load->byte_level) return QN_FAIL(err, UNSUPPORTED, "ByteLevel after ByteLevel");
    if (use_regex) {
        QN_TRY(
            qn_pretok_add_row(&load->tokenizer->pretok, qn_pattern_find(qn_str_of("gpt-2")), err));
        load->tokenizer->info.pre = "gpt-2";
    }
    load->byte_level = true;
    return QN_OK;
}

static qn_status pretok_split(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "pre_tokenizer Split";
    qn_pretok_step *step = NULL;
    qn_str pattern = {0};
    bool is_regex = false;
    QN_TRY(get_pattern(&pattern, &is_regex, json, what, err));
    QN_TRY(add_pretok(&step, load, is_regex ? QN_PRETOK_REGEX : QN_PRETOK_STRING, err));
    QN_TRY(get_behavior(&step->behavior, json, what, err));
    QN_TRY(qn_json_get_bool(&step->invert, json, "invert", false, what, err));
    if (!is_regex) return qn_tokenizer_keep(&step->from, load->tokenizer, pattern, err);
    const qn_pattern_row *row = qn_pattern_match(pattern);
    load->tokenizer->info.pre = row ? row->name : "custom";
    if (row && row->has_rule && step->behavior == QN_SPLIT_ISOLATED) {
        step->kind = QN_PRETOK_WORDS;
        step->rule = row->rule;
        return QN_OK;
    }
    return qn_regex_init(&step->regex, pattern, err);
}

static qn_status get_scheme(qn_prefix_scheme *out, const json_t *json, const char *what,
                            qn_err *err) {
    const json_t *scheme = json_object_get(json, "prepend_scheme");
    if (!scheme || json_is_null(scheme)) { // the older form
        bool prefix = false;
        QN_TRY(qn_json_get_bool(&prefix, json, "add_prefix_space", true, what, err));
        *out = prefix ? QN_PREFIX_ALWAYS : QN_PREFIX_NEVER;
        return QN_OK;
    }
    static const char *const names[] = {"never", "first", "always"};
    for (int i = 0; json_is_string(scheme) && i < 3; i++) {
        if (!qn_str_is(qn_json_text(scheme), names[i])) continue;
        *out = (qn_prefix_scheme)i;
        return QN_OK;
    }
    return QN_FAIL(err, UNSUPPORTED, "%s: prepend_scheme is not first, always or never", what);
}

static qn_status pretok_metaspace(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "pre_tokenizer Metaspace";
    qn_pretok_step *step = NULL;
    qn_str mark = {0};
    bool split = false;
    QN_TRY(qn_json_get_text(&mark, json, "replacement", what, err));
    QN_TRY(qn_tokenizer_keep(&mark, load->tokenizer, mark, err));
    QN_TRY(qn_json_get_bool(&split, json, "split", true, what, err));
    QN_TRY(add_pretok(&step, load, QN_PRETOK_METASPACE, err));
    step->from = mark;
    QN_TRY(get_scheme(&step->scheme, json, what, err));
    if (!split) return QN_OK;
    QN_TRY(add_pretok(&step, load, QN_PRETOK_STRING, err));
    step->from = mark;
    step->behavior = QN_SPLIT_MERGE_NEXT;
    return QN_OK;
}

static qn_status pretok_digits(qn_json_load *load, const json_t *json, qn_err *err) {
    bool single = false;
    QN_TRY(
        qn_json_get_bool(&single, json, "individual_digits", false, "pre_tokenizer Digits", err));
    return add_regex(load, "\\p{N}", single ? QN_SPLIT_ISOLATED : QN_SPLIT_CONTIGUOUS, false, err);
}

static qn_status pretok_punctuation(qn_json_load *load, const json_t *json, qn_err *err) {
    qn_split_behavior behavior = QN_SPLIT_ISOLATED;
    if (json_object_get(json, "behavior"))
        QN_TRY(get_behavior(&behavior, json, "pre_tokenizer Punctuation", err));
    return add_regex(load, "[!-\\/:-@\\[-`{-~\\p{P}]", behavior, false, err);
}

static qn_status pretok_whitespace(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_regex(load, "\\w+|[^\\w\\s]+", QN_SPLIT_REMOVED, true, err);
}

static qn_status pretok_whitespace_split(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    return add_regex(load, "\\s", QN_SPLIT_REMOVED, false, err);
}

static const component_row pretok_rows[] = {
    {"ByteLevel", pretok_byte_level},
    {"Split", pretok_split},
    {"Metaspace", pretok_metaspace},
    {"Digits", pretok_digits},
    {"Punctuation", pretok_punctuation},
    {"Whitespace", pretok_whitespace},
    {"WhitespaceSplit", pretok_whitespace_split},
};
static const component_kind pretok_kind = {"pre_tokenizer", "pretokenizers", pretok_rows,
                                           sizeof pretok_rows / sizeof *pretok_rows};

qn_status qn_json_load_pretok(qn_json_load *load, const json_t *json, qn_err *err) {
    if (!json || json_is_null(json)) return QN_OK;
    return load_component(&pretok_kind, load, json, 0, err);
}

// --- decoders ------------------------------------------------------------------------------------

static qn_status check_not_fused(const qn_json_load *load, const char *what, qn_err *err) {
    if (!load->fused) return QN_OK;
    return QN_FAIL(err, UNSUPPORTED, "decoder %s after a step that joins the pieces", what);
}

static qn_status decoder_byte_level(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    QN_TRY(check_not_fused(load, "ByteLevel", err));
    load->tokenizer->decode.byte_level = true;
    load->fused = true;
    return QN_OK;
}

static qn_status decoder_byte_fallback(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json;
    QN_TRY(check_not_fused(load, "ByteFallback", err));
    load->tokenizer->decode.byte_fallback = true;
    return QN_OK;
}

static qn_status decoder_fuse(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)json, (void)err;
    load->fused = true;
    return QN_OK;
}

static qn_status add_replace(qn_json_load *load, qn_str from, qn_str to, qn_err *err) {
    qn_decode_rule *rule = &load->tokenizer->decode;
    if (rule->byte_fallback || rule->byte_level)
        return QN_FAIL(err, UNSUPPORTED, "decoder: a replacement after the bytes");
    if (rule->n_replace == QN_REPLACE_MAX)
        return QN_FAIL(err, LIMIT, "decoder: more than %d replacements", QN_REPLACE_MAX);
    QN_TRY(qn_tokenizer_keep(&rule->from[rule->n_replace], load->tokenizer, from, err));
    QN_TRY(qn_tokenizer_keep(&rule->to[rule->n_replace], load->tokenizer, to, err));
    rule->n_replace++;
    return QN_OK;
}

static qn_status decoder_replace(qn_json_load *load, const json_t *json, qn_err *err) {
    qn_str pattern = {0}, content = {0};
    bool is_regex = false;
    QN_TRY(check_not_fused(load, "Replace", err));
    QN_TRY(get_pattern(&pattern, &is_regex, json, "decoder Replace", err));
    QN_TRY(qn_json_get_text(&content, json, "content", "decoder Replace", err));
    if (is_regex) return QN_FAIL(err, UNSUPPORTED, "decoder Replace by Regex is not supported");
    return add_replace(load, pattern, content, err);
}

static qn_status decoder_metaspace(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "decoder Metaspace";
    qn_str mark = {0};
    qn_prefix_scheme scheme = QN_PREFIX_NEVER;
    QN_TRY(check_not_fused(load, "Metaspace", err));
    QN_TRY(qn_json_get_text(&mark, json, "replacement", what, err));
    QN_TRY(get_scheme(&scheme, json, what, err));
    QN_TRY(add_replace(load, mark, qn_str_of(" "), err));
    if (scheme == QN_PREFIX_NEVER) return QN_OK;
    return qn_tokenizer_keep(&load->tokenizer->decode.drop_in_first, load->tokenizer, mark, err);
}

static qn_status decoder_strip(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "decoder Strip";
    qn_decode_rule *rule = &load->tokenizer->decode;
    qn_str content = {0};
    int64_t start = 0, stop = 0;
    QN_TRY(qn_json_get_text(&content, json, "content", what, err));
    QN_TRY(qn_json_get_int(&start, json, "start", 0, what, err));
    QN_TRY(qn_json_get_int(&stop, json, "stop", 0, what, err));
    if (!load->fused || rule->strip || stop != 0 || start < 0 || content.size != 1 ||
        (content.data[0] & 0x80))
        return QN_FAIL(err, UNSUPPORTED,
                       "%s: only one ASCII character at the start of the joined text is supported",
                       what);
    rule->strip = (size_t)start;
    rule->strip_char = content.data[0];
    return QN_OK;
}

static const component_row decoder_rows[] = {
    {"ByteLevel", decoder_byte_level},
    {"ByteFallback", decoder_byte_fallback},
    {"Fuse", decoder_fuse},
    {"Replace", decoder_replace},
    {"Metaspace", decoder_metaspace},
    {"Strip", decoder_strip},
};
static const component_kind decoder_kind = {"decoder", "decoders", decoder_rows,
                                            sizeof decoder_rows / sizeof *decoder_rows};

qn_status qn_json_load_decoder(qn_json_load *load, const json_t *json, qn_err *err) {
    if (json && !json_is_null(json)) return load_component(&decoder_kind, load, json, 0, err);
    load->tokenizer->decode.join_by_space = true;
    return QN_OK;
}

// --- post-processors -----------------------------------------------------------------------------

static qn_status post_byte_level(qn_json_load *load, const json_t *json, qn_err *err) {
    (void)load, (void)json, (void)err; // about offsets only
    return QN_OK;
}

// special_tokens[name].ids, appended to the wrap.
static qn_status add_template_token(qn_json_load *load, qn_wrap *wrap, const json_t *json,
                                    const json_t *item, qn_err *err) {
    static const char what[] = "post_processor TemplateProcessing";
    qn_str name = {0};
    json_t *ids = NULL;
    QN_TRY(qn_json_get_text(&name, item, "id", what, err));
    const json_t *token = json_object_get(json_object_get(json, "special_tokens"), name.data);
    QN_TRY(qn_json_get_array(&ids, token, "ids", what, err));
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || !qn_vocab_has(&load->tokenizer->vocab, id))
            return QN_FAIL(err, FORMAT, "%s: '%.80s' has an id that is not a token", what,
                           name.data);
        if (wrap->n == QN_WRAP_MAX)
            return QN_FAIL(err, LIMIT, "%s: more than %d tokens on one side", what, QN_WRAP_MAX);
        wrap->ids[wrap->n++] = (int32_t)id;
    }
    return QN_OK;
}

static qn_status post_template(qn_json_load *load, const json_t *json, qn_err *err) {
    static const char what[] = "post_processor TemplateProcessing";
    qn_tokenizer *tokenizer = load->tokenizer;
    qn_wrap *wrap = &tokenizer->before;
    json_t *single = NULL;
    QN_TRY(qn_json_get_array(&single, json, "single", what, err));
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i);
        const json_t *special = json_object_get(item, "SpecialToken");
        if (special)
            QN_TRY(add_template_token(load, wrap, json, special, err));
        else if (json_object_get(item, "Sequence") && wrap == &tokenizer->before)
            wrap = &tokenizer->after;
        else
            return QN_FAIL(err, UNSUPPORTED, "%s: item %zu is neither a token nor a text", what, i);
    }
    if (wrap == &tokenizer->before) return QN_FAIL(err, FORMAT, "%s: without the text", what);
    return QN_OK;
}

static const component_row post_rows[] = {
    {"ByteLevel", post_byte_level},
    {"TemplateProcessing", post_template},
};
static const component_kind post_kind = {"post_processor", "processors", post_rows,
                                         sizeof post_rows / sizeof *post_rows};

qn_status qn_json_load_post(qn_json_load *load, const json_t *json, qn_err *err) {
    if (!json || json_is_null(json)) return QN_OK;
    return load_component(&post_kind, load, json, 0, err);
}

#include "cli/saved.h"

#include "cli/args.h"
#include "cli/out.h"
#include "cli/facts.h"
#include "cli/terminal.h"

#include "core/file.h"
#include "core/mem.h"

#include <string.h>

enum { VERSION = 1, MAX_BYTES = 64 << 20 };
static const char mark[] = "quern_session";
static const qn_newfile_kind kind = {
    .name = "a session of quern", .marks = {"{\"quern_session\""}, .is_private = true};

// --- the model -----------------------------------------------------------------------------------

// What tells one model from another; its file may lie elsewhere, and in other numeric types.
static json_t *model_json(const qn_talk *t) {
    const qn_engine_info info = qn_engine_facts(t->loaded.engine);
    return json_pack("{s:o, s:s, s:I, s:I}", "name", qn_json_string(info.name, strlen(info.name)),
                     "architecture", info.architecture, "parameters", (json_int_t)info.n_parameters,
                     "vocabulary", (json_int_t)info.n_vocab);
}

static void describe(char *to, size_t size, const json_t *model) {
    const char *name = json_string_value(json_object_get(model, "name"));
    const char *architecture = json_string_value(json_object_get(model, "architecture"));
    snprintf(to, size, "%.60s (%.30s, %lld parameters, %lld tokens)",
             name && *name ? name : "a model without a name", architecture ? architecture : "?",
             (long long)json_integer_value(json_object_get(model, "parameters")),
             (long long)json_integer_value(json_object_get(model, "vocabulary")));
}

static qn_status check_model(const json_t *ours, const json_t *theirs, const char *path,
                             qn_err *err) {
    char a[192], b[192];
    if (json_equal(ours, theirs)) return QN_OK;
    describe(a, sizeof a, theirs);
    describe(b, sizeof b, ours);
    return QN_FAIL(err, ARGUMENT, "%s: a conversation with %s, the model here is %s", path, a, b);
}

// --- settings ------------------------------------------------------------------------------------

static const qn_texts *texts_of(const qn_talk *t, const qn_option *option) {
    return (const qn_texts *)(const void *)((const char *)t->args + option->offset);
}

// As it is typed: a string, or a list of them where it may be typed several times. NULL: no memory.
static json_t *setting_json(const qn_talk *t, const qn_option *option) {
    if (option->kind != QN_OPTION_TEXTS) {
        qn_buf value = {0};
        qn_option_print(&value, t->args, option);
        json_t *text = value.failed ? NULL : qn_json_string(value.data, value.size);
        qn_buf_deinit(&value);
        return text;
    }
    const qn_texts *texts = texts_of(t, option);
    json_t *list = json_array();
    for (size_t i = 0; i < texts->n; i++)
        qn_json_push(&list, qn_json_string(texts->items[i], strlen(texts->items[i])));
    return list;
}

static bool is_given(const qn_talk *t, const qn_option *option) {
    qn_buf value = {0};
    qn_option_print(&value, t->args, option);
    const bool is_given = value.size > 0 || value.failed;
    qn_buf_deinit(&value);
    return is_given;
}

// Those that are given; NULL: no memory.
static json_t *settings_json(const qn_talk *t) {
    json_t *settings = json_object();
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) {
        if (is_given(t, option)) qn_json_put(&settings, option->name + 2, setting_json(t, option));
    }
    return settings;
}

static const qn_option *find_option(const char *name) {
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) {
        if (strcmp(option->name + 2, name) == 0) return option;
    }
    return NULL;
}

static qn_status take_text(qn_talk *t, const qn_option *option, const char *text, qn_err *err) {
    if (!*text) return QN_FAIL(err, FORMAT, "%s: the text is empty", option->name);
    char *kept = qn_talk_keep(t, text);
    return kept ? qn_option_set(t->args, option, kept, err) : QN_NOMEM(err, "settings");
}

static qn_status take_setting(qn_talk *t, const char *name, const json_t *value, qn_err *err) {
    const qn_option *option = find_option(name);
    if (!option) return QN_FAIL(err, FORMAT, "no setting '%.40s'", name);
    if (json_is_string(value)) return take_text(t, option, json_string_value(value), err);
    if (!json_is_array(value) || option->kind != QN_OPTION_TEXTS)
        return QN_FAIL(err, FORMAT, "%s: want a string", option->name);
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *text = json_array_get(value, i);
        if (!json_is_string(text))
            return QN_FAIL(err, FORMAT, "%s: text %zu, want a string", option->name, i);
        QN_TRY(take_text(t, option, json_string_value(text), err));
    }
    return QN_OK;
}

// What was not given before is not given again.
static void drop_settings(qn_talk *t, const json_t *given) {
    const qn_option *option;
    for (size_t i = 0; (option = qn_live_option(i)); i++) {
        if (!json_object_get(given, option->name + 2)) qn_option_clear(t->args, option);
    }
}

// All of them, or none.
static qn_status take_settings(qn_talk *t, const json_t *settings, const char *path, qn_err *err) {
    const char *name;
    json_t *value, *given = settings_json(t);
    if (!given) return QN_NOMEM(err, "settings");
    qn_status status = QN_OK;
    json_object_foreach((json_t *)(uintptr_t)settings, name, value) {
        if (!status && !json_object_get(given, name)) status = take_setting(t, name, value, err);
    }
    if (!status) status = qn_run_args_check(t->args, err);
    if (status) drop_settings(t, given);
    json_decref(given);
    return status ? qn_err_prefix(err, status, "%s", path) : QN_OK;
}

// --- messages ------------------------------------------------------------------------------------

static qn_status join_parts(qn_buf *to, size_t *n_images, const json_t *parts, qn_err *err) {
    qn_buf_add(to, "", 0);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *text = json_object_get(part, "text");
        const char *type = json_string_value(json_object_get(part, "type"));
        const bool is_text = type && strcmp(type, "text") == 0;
        if (!is_text && (!type || strcmp(type, "image") != 0))
            return QN_FAIL(err, FORMAT, "part %zu: type '%.40s', want 'text' or 'image'", i,
                           type ? type : "");
        if (is_text && !json_is_string(text))
            return QN_FAIL(err, FORMAT, "part %zu: want the string \"text\"", i);
        if (is_text)
            qn_buf_add(to, json_string_value(text), json_string_length(text));
        else
            ++*n_images;
    }
    return to->failed ? QN_NOMEM(err, "a message") : QN_OK;
}

static qn_status keep_text(size_t *n_images, json_t *message, qn_err *err) {
    const json_t *content = json_object_get(message, "content");
    const bool is_list = json_is_array(content);
    if (!json_is_string(json_object_get(message, "role")) || (!is_list && !json_is_string(content)))
        return QN_FAIL(err, FORMAT, "want the strings \"role\" and \"content\"");
    if (!is_list) return QN_OK;
    qn_buf text = {0};
    qn_status status = join_parts(&text, n_images, content, err);
    if (!status &&
        json_object_set_new(message, "content", qn_json_string(text.data, text.size)) != 0)
        status = QN_NOMEM(err, "a message");
    qn_buf_deinit(&text);
    return status;
}

// Pictures are not kept: a content of several parts becomes its text. Adds the number of images.
static qn_status keep_texts(size_t *n_images, json_t *messages, const char *what, qn_err *err) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const qn_status status = keep_text(n_images, json_array_get(messages, i), err);
        if (status) return qn_err_prefix(err, status, "%s: message %zu", what, i);
    }
    return QN_OK;
}

// --- what has not been asked yet -----------------------------------------------------------------

static void put_text(json_t **root, const char *name, const qn_buf *text) {
    if (text->size) qn_json_put(root, name, qn_json_string(text->data, text->size));
}

static qn_status check_text(const json_t *root, const char *name, const char *path, qn_err *err) {
    const json_t *text = json_object_get(root, name);
    if (!text || json_is_string(text)) return QN_OK;
    return QN_FAIL(err, FORMAT, "%s: \"%s\" is not a string", path, name);
}

static void take_kept(qn_buf *to, const json_t *root, const char *name) {
    const json_t *text = json_object_get(root, name);
    qn_buf_deinit(to);
    qn_buf_add(to, json_string_value(text), json_string_length(text));
}

// --- files ---------------------------------------------------------------------------------------

// The text of a session; the mark that identifies the file is at its very beginning.
static void write_session(qn_buf *to, const json_t *root) {
    qn_buf text = {0};
    qn_json_write(&text, root, &(qn_json_form){.indent = 1});
    const char *begin = text.failed ? NULL : strchr(text.data, '"');
    if (begin)
        qn_buf_printf(to, "{%s\n", begin);
    else
        to->failed = true;
    qn_buf_deinit(&text);
}

// No file is replaced by a text that does not give back the session.
static qn_status check_session(const qn_buf *text, const json_t *root, qn_err *err) {
    json_t *again = NULL;
    QN_TRY(qn_json_parse(&again, text->data, text->size, false, "a session", err));
    const bool is_same = json_equal(root, again);
    json_decref(again);
    return is_same ? QN_OK : QN_FAIL(err, STATE, "a session: what was written reads differently");
}

// The messages as values.
static qn_status messages_json(json_t **out, size_t *n_images, const qn_talk *t, qn_err *err) {
    static const char what[] = "the messages of a session";
    char *text = NULL;
    json_t *messages = NULL;
    QN_TRY(qn_chat_print_messages(&text, t->chat, err));
    qn_status status = qn_json_parse(&messages, text, strlen(text), false, what, err);
    qn_free(text);
    if (!status) status = keep_texts(n_images, messages, what, err);
    if (status)
        json_decref(messages);
    else
        *out = messages;
    return status;
}

qn_status qn_saved_print(qn_buf *to, size_t *n_images, const qn_talk *t, json_t *model,
                         qn_err *err) {
    json_t *messages = NULL;
    const qn_status printed = messages_json(&messages, n_images, t, err);
    if (printed) {
        json_decref(model);
        return printed;
    }
    json_t *root = json_pack("{s:i, s:o, s:o, s:o}", mark, VERSION, "model", model, "settings",
                             settings_json(t), "messages", messages);
    put_text(&root, "waiting", &t->waiting);
    put_text(&root, "typed", &t->typed);
    if (!root) return QN_NOMEM(err, "a session");
    write_session(to, root);
    const qn_status status = to->failed ? QN_NOMEM(err, "a session") : check_session(to, root, err);
    json_decref(root);
    return status;
}

// Once in a conversation.
static void tell_images(qn_talk *t, const char *text) {
    if (!t->has_told_images) qn_print_line("quern: note: %s", text);
    t->has_told_images = true;
}

qn_status qn_saved_write(qn_talk *t, const char *path, qn_err *err) {
    qn_buf text = {0};
    size_t n_images = 0;
    qn_status status = qn_saved_print(&text, &n_images, t, model_json(t), err);
    const qn_bytes part = {text.data, text.size};
    if (!status) status = qn_outfile_save(path, &kind, &part, 1, err);
    if (!status && n_images)
        tell_images(t, "pictures are not kept in saved conversations, only the text of messages");
    qn_buf_deinit(&text);
    return status;
}

qn_status qn_saved_keep(qn_talk *t, qn_err *err) {
    const char *path = t->args->session;
    return path && t->template ? qn_saved_write(t, path, err) : QN_OK;
}

qn_status qn_saved_check(const char *path, qn_err *err) {
    qn_newfile *file = NULL;
    QN_TRY(qn_newfile_check(path, &kind, err));
    QN_TRY(qn_newfile_create(&file, path, QN_NEWFILE_PRIVATE, err));
    qn_newfile_destroy(file);
    return QN_OK;
}

static qn_status take_session(qn_talk *t, size_t *n_images, const json_t *model, const json_t *root,
                              const char *path, qn_err *err) {
    const json_t *version = json_object_get(root, mark),
                 *settings = json_object_get(root, "settings");
    json_t *messages = json_object_get(root, "messages");
    if (!json_is_integer(version))
        return QN_FAIL(err, FORMAT, "%s: not a session file of quern", path);
    if (json_integer_value(version) != VERSION)
        return QN_FAIL(err, UNSUPPORTED, "%s: a session of version %lld, this program knows %d",
                       path, (long long)json_integer_value(version), VERSION);
    QN_TRY(check_model(model, json_object_get(root, "model"), path, err));
    if (!json_is_array(messages)) return QN_FAIL(err, FORMAT, "%s: no list \"messages\"", path);
    QN_TRY(keep_texts(n_images, messages, path, err));
    if (settings && !json_is_object(settings))
        return QN_FAIL(err, FORMAT, "%s: \"settings\" is not an object", path);
    QN_TRY(check_text(root, "waiting", path, err));
    QN_TRY(check_text(root, "typed", path, err));
    QN_TRY(take_settings(t, settings, path, err));
    char *text = NULL;
    QN_TRY(qn_json_print(&text, messages, &(qn_json_form){0}, "a session", err));
    const qn_status status = qn_chat_set_messages(t->chat, text, strlen(text), path, err);
    qn_free(text);
    if (status) return status;
    t->completion = 0;
    take_kept(&t->waiting, root, "waiting");
    take_kept(&t->typed, root, "typed");
    return t->waiting.failed || t->typed.failed ? QN_NOMEM(err, "a session") : QN_OK;
}

qn_status qn_saved_take(qn_talk *t, size_t *n_images, const json_t *model, const char *text,
                        size_t size, const char *path, qn_err *err) {
    json_t *root = NULL;
    if (!model) return QN_NOMEM(err, "a session");
    qn_status status = qn_json_parse(&root, text, size, false, "not a session file of quern", err);
    if (status) qn_err_prefix(err, status, "%s", path);
    if (!status) status = take_session(t, n_images, model, root, path, err);
    json_decref(root);
    return status;
}

qn_status qn_saved_read(qn_talk *t, const char *path, qn_err *err) {
    char *text = NULL;
    size_t size, n_images = 0;
    QN_TRY(qn_file_load(&text, &size, path, MAX_BYTES, err));
    json_t *model = model_json(t);
    const qn_status status = qn_saved_take(t, &n_images, model, text, size, path, err);
    if (!status && n_images)
        tell_images(t, "the pictures of this conversation were not kept, only its text");
    qn_free(text);
    json_decref(model);
    return status;
}

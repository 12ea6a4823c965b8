// Messages -> token ids. The template is rendered twice: with the messages as they are, and with
// each text of a message between two characters that occur nowhere else. Where both give the same
// text, those characters aside, they say which bytes of the prompt came from messages; in these no
// special token is recognised. So nobody can end a turn, or begin one, by writing its mark.
#include "api/chat_turn.h"
#include "core/buf.h"
#include "core/chars.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/utf8.h"
#include "core/structs.h"
#include "tokenizer/tokenizer.h"

#include <string.h>

// --- fences --------------------------------------------------------------------------------------

// Two characters of a private plane.
typedef struct fence {
    char open[5], close[5];
} fence;

static fence fence_of(uint32_t i) {
    fence f = {0};
    qn_utf8_encode(0xf0000 + 2 * i, f.open);
    qn_utf8_encode(0xf0001 + 2 * i, f.close);
    return f;
}

// The first fence that does not occur in the texts; false if they have a great many of them.
static bool find_fence(fence *out, const char *a, const char *b) {
    enum { TRIES = 64 };
    for (uint32_t i = 0; i < TRIES; i++) {
        *out = fence_of(i);
        if (!strstr(a, out->open) && !strstr(a, out->close) && !strstr(b, out->open) &&
            !strstr(b, out->close))
            return true;
    }
    return false;
}

// Templates strip blanks at the ends, so that these stay outside.
static json_t *fence_text(const json_t *value, const fence *f) {
    const char *text = json_string_value(value);
    size_t from = 0, to = json_string_length(value);
    while (from < to && qn_is_space(text[from])) from++;
    while (to > from && qn_is_space(text[to - 1])) to--;
    if (from == to) return json_incref((json_t *)(uintptr_t)value);
    qn_buf buf = {0};
    qn_buf_add(&buf, text, from);
    qn_buf_text(&buf, f->open);
    qn_buf_add(&buf, text + from, to - from);
    qn_buf_text(&buf, f->close);
    qn_buf_add(&buf, text + to, json_string_length(value) - to);
    json_t *out = buf.failed ? NULL : json_stringn_nocheck(buf.data, buf.size);
    qn_buf_deinit(&buf);
    return out;
}

static bool fence_field(json_t *object, const char *name, const fence *f) {
    const json_t *value = json_object_get(object, name);
    return !json_is_string(value) || json_object_set_new(object, name, fence_text(value, f)) == 0;
}

// Content is a text, or a list of parts with texts.
static bool fence_message(json_t *message, const fence *f) {
    bool is_done =
        fence_field(message, "content", f) && fence_field(message, "reasoning_content", f);
    json_t *content = json_object_get(message, "content");
    for (size_t i = 0; i < json_array_size(content); i++)
        is_done = is_done && fence_field(json_array_get(content, i), "text", f);
    return is_done;
}

// The request with fences; *out is owned (qn_free).
static qn_status fence_request(char **out, const char *request, const fence *f, bool only_others,
                               qn_err *err) {
    json_t *copy = NULL;
    QN_TRY(qn_json_parse(&copy, request, strlen(request), false, "request", err));
    const json_t *messages = json_object_get(copy, "messages");
    bool is_done = true;
    for (size_t i = 0; i < json_array_size(messages) && is_done; i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (only_others && role && strcmp(role, "assistant") == 0) continue;
        is_done = fence_message(message, f);
    }
    const qn_status status =
        qn_json_print(out, is_done ? copy : NULL, &(qn_json_form){0}, "a request", err);
    json_decref(copy);
    return status;
}

// --- ranges --------------------------------------------------------------------------------------

typedef struct ranges {
    qn_text_range *items;
    size_t n, cap;
} ranges;

static qn_status add_range(ranges *r, size_t from, size_t to, qn_err *err) {
    if (from == to) return QN_OK;
    if (r->n && r->items[r->n - 1].to == from) { // they may not touch
        r->items[r->n - 1].to = to;
        return QN_OK;
    }
    void *items = r->items;
    if (!qn_grow(&items, &r->cap, r->n + 1, sizeof *r->items)) return QN_NOMEM(err, "ranges");
    r->items = items;
    r->items[r->n++] = (qn_text_range){from, to};
    return QN_OK;
}

// Reads the fences in `fenced`; *is_same: without them it is `text`, and they are in pairs.
static qn_status find_ranges(ranges *out, bool *is_same, const char *text, const char *fenced,
                             const fence *f, qn_err *err) {
    const size_t n = strlen(f->open), m = strlen(f->close);
    size_t at = 0, from = 0;
    bool is_open = false;
    *is_same = false;
    while (*fenced) {
        const bool may = *fenced == *f->open; // both begin with the same byte
        const bool opens = may && strncmp(fenced, f->open, n) == 0;
        const bool closes = may && !opens && strncmp(fenced, f->close, m) == 0;
        if ((opens && is_open) || (closes && !is_open)) return QN_OK;
        if (opens) from = at;
        if (closes) QN_TRY(add_range(out, from, at, err));
        if (opens || closes) {
            is_open = opens;
            fenced += opens ? n : m;
        } else if (*fenced++ != text[at++]) {
            return QN_OK;
        }
    }
    *is_same = !is_open && !text[at];
    return QN_OK;
}

typedef struct rendering {
    const qn_template *template;
    const qn_template_opts *opts;
    const char *request, *text; // the request, and what the template made of it
} rendering;

// A failure that says nothing of the template.
static bool is_final(qn_status status) { return status == QN_MEMORY || status == QN_STOPPED; }

static qn_status find_texts(ranges *out, bool *is_same, const rendering *r, const fence *f,
                            bool only_others, qn_err *err) {
    char *request = NULL, *fenced = NULL;
    out->n = 0;
    *is_same = false;
    QN_TRY(fence_request(&request, r->request, f, only_others, err));
    const qn_status status =
        qn_template_render(&fenced, NULL, r->template, request, strlen(request), r->opts, err);
    qn_free(request);
    if (status) return is_final(status) ? status : QN_OK; // it minds the fences
    const qn_status found = find_ranges(out, is_same, r->text, fenced, f, err);
    qn_free(fenced);
    return found;
}

// Templates that take reasoning out of the assistant's texts cut a fence in two; those of all
// others are what matters then.
static qn_status guard(ranges *out, bool *is_guarded, const rendering *r, qn_err *err) {
    fence f;
    *is_guarded = false;
    if (!find_fence(&f, r->request, r->text)) return QN_OK;
    QN_TRY(find_texts(out, is_guarded, r, &f, false, err));
    return *is_guarded ? QN_OK : find_texts(out, is_guarded, r, &f, true, err);
}

// --- ids -----------------------------------------------------------------------------------------

static qn_status add_beginning(qn_chat_prompt *prompt, const qn_tokenizer *tokenizer, qn_err *err) {
    const qn_tokenizer_info *info = qn_tokenizer_own_info(tokenizer);
    if (!info->add_bos || info->bos < 0 || (prompt->n && prompt->ids[0] == info->bos)) return QN_OK;
    int32_t *ids = qn_alloc(prompt->n + 1, sizeof *ids);
    if (!ids) return QN_NOMEM(err, "a prompt");
    ids[0] = info->bos;
    if (prompt->n) memcpy(ids + 1, prompt->ids, prompt->n * sizeof *ids);
    qn_free(prompt->ids);
    prompt->ids = ids;
    prompt->n++;
    return QN_OK;
}

// One rendering of the request, and its ids.
static qn_status make_prompt(qn_chat_prompt *out, const qn_template *template,
                             const qn_tokenizer *tokenizer, const json_t *request,
                             const qn_template_opts *opts, qn_prompt_limit *limit, qn_err *err) {
    ranges plain = {0};
    qn_status status = QN_OK;
    char *text = NULL;
    QN_TRY(qn_json_print(&text, request, &(qn_json_form){0}, "a request", err));
    QN_TRY_TO(done, qn_template_render(&out->text, &out->text_size, template, text, strlen(text),
                                       opts, err));
    const rendering r = {template, opts, text, out->text};
    QN_TRY_TO(done, guard(&plain, &out->is_guarded, &r, err));
    const qn_tokenize_opts how = QN_INIT(qn_tokenize_opts, .special = true, .plain = plain.items,
                                         .n_plain = out->is_guarded ? plain.n : 0,
                                         .max_tokens = limit->max_tokens, .stop = opts->stop);
    status = qn_tokenize(&out->ids, &out->n, tokenizer, out->text, out->text_size, &how, err);
    limit->is_met = status == QN_LIMIT && limit->max_tokens > 0;
    if (status) goto done;
    status = add_beginning(out, tokenizer, err);

done:
    qn_free(plain.items);
    qn_free(text);
    return status;
}

static size_t common(const qn_chat_prompt *a, const qn_chat_prompt *b) {
    size_t n = 0;
    while (n < a->n && n < b->n && a->ids[n] == b->ids[n]) n++;
    return n;
}

// The ids that are also those of the messages alone.
static qn_status count_messages(qn_chat_prompt *prompt, const qn_template *template,
                                const qn_tokenizer *tokenizer, json_t *request,
                                const qn_template_opts *opts, qn_err *err) {
    qn_chat_prompt messages = QN_INIT(qn_chat_prompt);
    qn_prompt_limit none = {0};
    if (json_object_set_new(request, "add_generation_prompt", json_false()) != 0)
        return QN_NOMEM(err, "a request");
    const qn_status status = make_prompt(&messages, template, tokenizer, request, opts, &none, err);
    if (!status) prompt->n_messages = common(prompt, &messages);
    qn_chat_prompt_deinit(&messages);
    return is_final(status) ? status : QN_OK; // else they are not known
}

qn_status qn_chat_prompt_create(qn_chat_prompt *out, const qn_template *chat_template,
                                const qn_tokenizer *tokenizer, const char *request,
                                size_t request_size, const qn_template_opts *opts, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(chat_template, err);
    QN_NEED(tokenizer, err);
    QN_NEED(request, err);
    qn_prompt_limit none = {0};
    return qn_chat_prompt_create_within(out, chat_template, tokenizer, request, request_size, opts,
                                        &none, err);
}

qn_status qn_chat_prompt_create_within(qn_chat_prompt *out, const qn_template *chat_template,
                                       const qn_tokenizer *tokenizer, const char *request,
                                       size_t request_size, const qn_template_opts *given,
                                       qn_prompt_limit *limit, qn_err *err) {
    QN_TRY(QN_RESULT_CHECK(qn_chat_prompt, out, err));
    qn_chat_prompt prompt = QN_INIT(qn_chat_prompt);
    json_t *json = NULL;
    qn_template_opts opts;
    QN_TRY(QN_OPTS_READ(qn_template_opts, &opts, given, err));
    QN_TRY(qn_json_parse(&json, request, request_size, false, "request", err));
    qn_status status = make_prompt(&prompt, chat_template, tokenizer, json, &opts, limit, err);
    if (!status) status = count_messages(&prompt, chat_template, tokenizer, json, &opts, err);
    json_decref(json);
    if (status)
        qn_chat_prompt_deinit(&prompt);
    else
        QN_RESULT_WRITE(qn_chat_prompt, out, &prompt);
    return status;
}

void qn_chat_prompt_deinit(qn_chat_prompt *prompt) {
    if (!prompt || QN_RESULT_CHECK(qn_chat_prompt, prompt, NULL)) return;
    qn_free(prompt->ids);
    qn_free(prompt->text);
    if (QN_HAS_FIELD(qn_chat_prompt, prompt, n_images)) {
        for (size_t i = 0; i < prompt->n_images; i++)
            qn_image_destroy((qn_image *)(uintptr_t)prompt->images[i]);
        qn_free(prompt->images);
    }
    QN_RESULT_CLEAR(qn_chat_prompt, prompt);
}

// Parts of an answer while it comes. Text is looked at as soon as it is there; what may turn out to
// be a tag, and blanks in front of one, wait. A call waits for its end. What is kept is bounded by
// MAX_CALL, and each byte is looked at a bounded number of times.
#include "chat/parts.h"

#include "core/buf.h"
#include "core/chars.h"
#include "core/mem.h"

enum { MAX_CALL = 1 << 20, MAX_BLANKS = 16 };

// What the text is part of.
typedef enum place { IN_TEXT, IN_REASONING, IN_CALL, IN_JSON, N_PLACES } place;

typedef struct mark {
    place leads_to;
    const char *open;
    const char *close; // NULL: the end of the answer
    qn_calls_fn *read; // of IN_CALL
} mark;

static const mark marks[] = {
    {IN_REASONING, "<think>", "</think>", NULL},
    {IN_REASONING, "[THINK]", "[/THINK]", NULL},                       // Mistral
    {IN_REASONING, "<|channel>thought", "<channel|>", NULL},           // Gemma 4
    {IN_REASONING, "<|channel|>analysis<|message|>", "<|end|>", NULL}, // gpt-oss
    {IN_TEXT, "<|start|>assistant", NULL, NULL},
    {IN_TEXT, "<|channel|>final<|message|>", NULL, NULL},
    {IN_CALL, "<tool_call>", "</tool_call>", qn_calls_tagged}, // Qwen, Hermes
    {IN_CALL, "[TOOL_CALLS]", NULL, qn_calls_mistral},
    {IN_CALL, "<|python_tag|>", NULL, qn_calls_python}, // Llama 3
};
enum { N_MARKS = sizeof marks / sizeof *marks };

// Tokens that tags are made of. Where they are special, decoded text does not have them.
static const char *const pieces[] = {
    "<think>",      "</think>",    "[THINK]",   "[/THINK]",       "<|channel>",  "<channel|>",
    "<|channel|>",  "<|message|>", "<|start|>", "<|end|>",        "<tool_call>", "</tool_call>",
    "[TOOL_CALLS]", "[CALL_ID]",   "[ARGS]",    "<|python_tag|>",
};
enum { N_PIECES = sizeof pieces / sizeof *pieces };

struct qn_parts {
    int32_t special[N_PIECES]; // ids of pieces that text does not have; -1: none
    bool takes_bare;           // JSON at the beginning may be a call
    bool has_no_calls;         // what looks like one is text
    place place;
    const mark *mark; // that led to the place; NULL: none
    qn_buf text;      // what came and is not dealt with, from `at` on
    size_t at;
    size_t seen;             // of a call: bytes after `at` in which its end was looked for
    char blanks[MAX_BLANKS]; // that end the part so far
    size_t n_blanks;
    bool skips;    // blanks after a tag
    bool is_start; // no text came so far
    bool is_quoted, is_escaped;
    int64_t depth;          // of brackets, with the two above: of IN_JSON
    qn_call_stream *stream; // of calls that are told while they come; NULL: none
    bool streams;           // the call that has begun does
    bool is_refused;        // by the stream: the JSON that has begun is not of its form
    size_t n_fed;           // bytes of it that the stream has
    qn_part_fn *fn;
    void *arg;
};

static size_t min(size_t a, size_t b) { return a < b ? a : b; }

static qn_str rest(const qn_parts *p) {
    return (qn_str){p->text.data ? p->text.data + p->at : "", p->text.size - p->at};
}

// --- giving --------------------------------------------------------------------------------------

static void give(qn_parts *p, const char *text, size_t size) {
    if (size == 0) return;
    const qn_part part =
        QN_INIT(qn_part, .kind = p->place == IN_REASONING ? QN_PART_REASONING : QN_PART_TEXT,
                .text = text, .text_size = size);
    p->fn(p->arg, &part);
}

static void give_blanks(qn_parts *p, size_t n) {
    give(p, p->blanks, n);
    memmove(p->blanks, p->blanks + n, p->n_blanks - n);
    p->n_blanks -= n;
}

// Blanks at the end are kept, as many as there is room for.
static void give_held(qn_parts *p, const char *text, size_t size) {
    while (p->skips && size && qn_is_blank(*text)) text++, size--;
    if (size == 0) return;
    p->skips = false;
    size_t solid = size;
    while (solid && qn_is_blank(text[solid - 1])) solid--;
    if (solid) {
        give_blanks(p, p->n_blanks);
        give(p, text, solid);
        if (p->place != IN_REASONING) p->is_start = false;
    }
    const size_t n = size - solid, kept = min(n, MAX_BLANKS);
    if (p->n_blanks + kept > MAX_BLANKS) give_blanks(p, p->n_blanks + kept - MAX_BLANKS);
    give(p, text + solid, n - kept);
    memcpy(p->blanks + p->n_blanks, text + size - kept, kept);
    p->n_blanks += kept;
}

static void give_calls(qn_parts *p, const json_t *calls, qn_str written) {
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *call = json_array_get(calls, i);
        const qn_part part =
            QN_INIT(qn_part, .kind = QN_PART_CALL, .text = written.data, .text_size = written.size,
                    .name = json_string_value(json_array_get(call, 0)),
                    .arguments = json_string_value(json_array_get(call, 1)));
        p->fn(p->arg, &part);
    }
}

// --- places --------------------------------------------------------------------------------------

static void enter(qn_parts *p, const mark *m) {
    p->place = m ? m->leads_to : IN_TEXT;
    p->mark = m;
    p->seen = 0;
}

// The tag that ends a place, or opens another; reasoning comes before any text. NULL: none.
static const char *spelling(const qn_parts *p, const mark *m, bool is_start) {
    if (p->has_no_calls && m->leads_to == IN_CALL) return NULL;
    if (p->place == IN_TEXT) return is_start || m->leads_to == IN_CALL ? m->open : NULL;
    return m == p->mark ? m->close : NULL;
}

// Whether `text` begins with a tag or, with *may_come, could once more text comes.
static bool stands(const char *word, qn_str text, bool *may_come) {
    const size_t size = word ? strlen(word) : 0, n = min(size, text.size);
    if (n == 0 || memcmp(word, text.data, n) != 0) return false;
    if (n < size) *may_come = true;
    return n == size;
}

// The first tag in `text`; its position is *at. NULL: none, and *at is what can be given now.
static const mark *find_mark(const qn_parts *p, qn_str text, bool is_end, size_t *at) {
    bool is_start = p->is_start;
    for (*at = 0; *at < text.size; ++*at) {
        const char c = text.data[*at];
        const qn_str from = {text.data + *at, text.size - *at};
        bool may_come = false;
        for (size_t i = 0; i < N_MARKS && (c == '<' || c == '['); i++) {
            if (stands(spelling(p, &marks[i], is_start), from, &may_come)) return &marks[i];
        }
        if (may_come && !is_end) return NULL;
        if (!qn_is_blank(c)) is_start = false;
    }
    return NULL;
}

static void begin_stream(qn_parts *p) {
    p->streams = true;
    p->n_fed = 0;
    qn_call_stream_begin(p->stream);
}

// An answer that begins with JSON waits for its end.
static bool begins_json(qn_parts *p) {
    if (!p->takes_bare || !p->is_start) return false;
    const qn_str text = rest(p);
    size_t n = 0;
    while (n < text.size && qn_is_blank(text.data[n])) n++;
    give_held(p, text.data, n);
    p->at += n;
    if (n == text.size || text.data[n] != '{') return false;
    p->place = IN_JSON;
    p->mark = NULL;
    p->seen = 0, p->depth = 0;
    p->is_quoted = p->is_escaped = p->is_refused = false;
    return true;
}

// Text and reasoning. *goes_on: there is more to do in another place.
static qn_status pass_text(qn_parts *p, bool is_end, bool *goes_on, qn_err *err) {
    (void)err;
    *goes_on = p->place == IN_TEXT && begins_json(p);
    if (*goes_on) return QN_OK;
    const qn_str text = rest(p);
    size_t at;
    const mark *m = find_mark(p, text, is_end, &at);
    give_held(p, text.data, at);
    p->at += at;
    if (!m) return QN_OK;
    *goes_on = true;
    if (p->place == IN_TEXT && m->leads_to == IN_CALL) { // its blanks are decided with it
        enter(p, m);
        if (p->stream && strcmp(m->open, qn_call_stream_form(p->stream)->open) == 0)
            begin_stream(p);
        return QN_OK;
    }
    p->at += strlen(p->place == IN_TEXT ? m->open : m->close);
    p->n_blanks = 0;
    p->skips = true;
    enter(p, p->place == IN_REASONING || m->leads_to == IN_TEXT ? NULL : m);
    return QN_OK;
}

// The `size` bytes at the beginning are a call, or are text after all.
static qn_status end_call(qn_parts *p, qn_calls_fn *read, size_t from, size_t to, size_t size,
                          qn_err *err) {
    const qn_str text = rest(p);
    bool is_call = false;
    json_t *calls = json_array();
    qn_status status = calls ? QN_OK : QN_NOMEM(err, "tool calls");
    if (!status && read) status = read(calls, &is_call, (qn_str){text.data + from, to - from}, err);
    enter(p, NULL);
    if (!status && is_call) {
        p->n_blanks = 0;
        p->skips = true;
        give_calls(p, calls, (qn_str){text.data, size});
    } else if (!status) {
        give_held(p, text.data, size);
    }
    p->at += size;
    json_decref(calls);
    return status;
}

// Where the tag that ends the call begins; the end of the text if it is not there.
static size_t find_close(qn_parts *p, qn_str text) {
    const char *close = p->mark->close;
    const size_t n = close ? strlen(close) : 0, end = min(text.size, MAX_CALL);
    if (!close) return text.size;
    for (size_t i = p->seen; i + n <= end; i++) {
        if (text.data[i] == *close && memcmp(text.data + i, close, n) == 0) return i;
    }
    p->seen = end >= n ? end - n + 1 : 0;
    return text.size;
}

// The first `size` bytes are calls, which were told, and perhaps one that is not complete.
static void end_stream(qn_parts *p, size_t size) {
    const qn_str text = rest(p);
    const size_t n_whole = qn_call_stream_n_whole(p->stream);
    const size_t from = n_whole ? strlen(qn_call_stream_form(p->stream)->open) + n_whole : 0;
    const qn_call_stage stage = qn_call_stream_stage(p->stream);
    const bool is_cut = stage == QN_STREAM_GOES_ON || stage == QN_STREAM_BROKEN || from == 0;
    enter(p, NULL);
    p->streams = false;
    if (n_whole) {
        p->n_blanks = 0;
        p->skips = true;
    }
    if (is_cut) give_held(p, text.data + from, size - from);
    if (is_cut) qn_call_stream_cut(p->stream);
    p->at += size;
}

// Gives a stream what came. A text that is not of its form is read as any other call, if nothing
// was told of it.
static qn_status pass_stream(qn_parts *p, bool is_end, bool *goes_on, qn_err *err) {
    const qn_str text = rest(p);
    const qn_call_form *form = qn_call_stream_form(p->stream);
    const size_t from = strlen(form->open), n_close = form->close ? strlen(form->close) : 0;
    size_t used;
    QN_TRY(qn_call_stream_feed(&used, p->stream, text.data + from + p->n_fed,
                               text.size - from - p->n_fed, err));
    p->n_fed += used;
    const size_t end = from + p->n_fed, left = text.size - end;
    const qn_call_stage stage = qn_call_stream_stage(p->stream);
    const bool may_close = n_close && memcmp(text.data + end, form->close, min(left, n_close)) == 0;
    const bool is_over = stage == QN_STREAM_OVER && (!n_close || (may_close && left >= n_close));
    const bool is_wrong =
        stage == QN_STREAM_BROKEN || (stage == QN_STREAM_OVER && n_close && !may_close);
    *goes_on = true;
    if (is_wrong && !qn_call_stream_is_open(p->stream) && !qn_call_stream_n_whole(p->stream)) {
        p->streams = false;
        p->is_refused = true;
        return QN_OK;
    }
    if (is_over || is_wrong) {
        end_stream(p, is_over ? end + n_close : end);
        return QN_OK;
    }
    *goes_on = text.size >= MAX_CALL;
    if (is_end || *goes_on) end_stream(p, text.size);
    return QN_OK;
}

static qn_status pass_call(qn_parts *p, bool is_end, bool *goes_on, qn_err *err) {
    if (p->streams) return pass_stream(p, is_end, goes_on, err);
    const qn_str text = rest(p);
    const size_t from = strlen(p->mark->open), close = find_close(p, text);
    *goes_on = true;
    if (close < text.size) {
        const size_t size = close + strlen(p->mark->close);
        return end_call(p, p->mark->read, from, close, size, err);
    }
    if (text.size >= MAX_CALL) return end_call(p, NULL, 0, 0, MAX_CALL, err);
    *goes_on = false;
    return is_end ? end_call(p, p->mark->read, from, text.size, text.size, err) : QN_OK;
}

// False once the object cannot be a call, by its first name.
static bool may_be_call(qn_str text) {
    static const char *const names[] = {"\"name\"", "\"type\"", "\"function\"", "\"parameters\"",
                                        "\"arguments\""};
    size_t at = 1; // after the bracket
    while (at < text.size && qn_is_blank(text.data[at])) at++;
    if (at > MAX_BLANKS) return false;
    if (at == text.size) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (memcmp(text.data + at, names[i], min(text.size - at, strlen(names[i]))) == 0)
            return true;
    }
    return false;
}

// Goes on through the JSON; true when its brackets are closed, at p->seen.
static bool scan_json(qn_parts *p, qn_str text) {
    const size_t end = min(text.size, MAX_CALL);
    while (p->seen < end) {
        const char c = text.data[p->seen++];
        if (p->is_escaped) {
            p->is_escaped = false;
        } else if (p->is_quoted) {
            p->is_escaped = c == '\\';
            p->is_quoted = c != '"';
        } else if (c == '"') {
            p->is_quoted = true;
        } else if (c == '{' || c == '[') {
            p->depth++;
        } else if ((c == '}' || c == ']') && --p->depth == 0) {
            return true;
        }
    }
    return false;
}

// Whether the text begins as calls of the stream do that have no tag. *may_come: it could, once
// more text comes.
static bool begins_bare(const qn_parts *p, qn_str text, bool *may_come) {
    const qn_call_form *form = p->stream ? qn_call_stream_form(p->stream) : NULL;
    *may_come = false;
    return form && form->is_bare && stands(form->open, text, may_come);
}

static qn_status pass_json(qn_parts *p, bool is_end, bool *goes_on, qn_err *err) {
    if (p->streams) return pass_stream(p, is_end, goes_on, err);
    const qn_str text = rest(p);
    bool may_come = false;
    if (!p->is_refused && p->seen == 0 && begins_bare(p, text, &may_come)) {
        begin_stream(p);
        return pass_stream(p, is_end, goes_on, err);
    }
    if (may_come && !is_end) {
        *goes_on = false;
        return QN_OK;
    }
    *goes_on = true;
    if (!may_be_call(text)) {
        p->is_start = false;
        enter(p, NULL);
        return QN_OK;
    }
    if (scan_json(p, text)) return end_call(p, qn_calls_bare, 0, p->seen, p->seen, err);
    if (text.size >= MAX_CALL) return end_call(p, NULL, 0, 0, MAX_CALL, err);
    *goes_on = false;
    return is_end ? end_call(p, NULL, 0, 0, text.size, err) : QN_OK;
}

typedef qn_status pass_fn(qn_parts *p, bool is_end, bool *goes_on, qn_err *err);
static pass_fn *const passes[N_PLACES] = {
    [IN_TEXT] = pass_text,
    [IN_REASONING] = pass_text,
    [IN_CALL] = pass_call,
    [IN_JSON] = pass_json,
};

static qn_status pass_all(qn_parts *p, bool is_end, qn_err *err) {
    bool goes_on = true;
    while (goes_on) QN_TRY(passes[p->place](p, is_end, &goes_on, err));
    const qn_str left = rest(p);
    if (p->at && left.size) memmove(p->text.data, left.data, left.size);
    p->text.size = left.size;
    p->at = 0;
    return QN_OK;
}

// --- the object ----------------------------------------------------------------------------------

static bool ends_in(const char *text, size_t size, const char *word) {
    const size_t n = strlen(word);
    return n <= size && memcmp(text + size - n, word, n) == 0;
}

// A prompt that ends in a tag of reasoning, blanks aside.
static const mark *find_tag(const char *prompt, size_t size, bool *is_closed) {
    while (size && qn_is_blank(prompt[size - 1])) size--;
    for (size_t i = 0; i < N_MARKS; i++) {
        if (marks[i].leads_to != IN_REASONING) continue;
        *is_closed = ends_in(prompt, size, marks[i].close);
        if (*is_closed || ends_in(prompt, size, marks[i].open)) return &marks[i];
    }
    return NULL;
}

const char *qn_parts_find_open(const char *prompt, size_t size, bool *is_closed) {
    const mark *m = prompt ? find_tag(prompt, size, is_closed) : NULL;
    return m ? m->open : NULL;
}

const char *qn_parts_reasoning(size_t i, const char **close, bool *is_alone) {
    for (size_t k = 0; k < N_MARKS; k++) {
        if (marks[k].leads_to != IN_REASONING || i-- > 0) continue;
        *close = marks[k].close;
        *is_alone = strcmp(marks[k].close, "<|end|>") != 0; // another tag begins the answer
        return marks[k].open;
    }
    return NULL;
}

void qn_parts_forbid_calls(qn_parts *parts) {
    parts->has_no_calls = true;
    parts->takes_bare = false;
}

bool qn_parts_is_reasoning(const qn_parts *parts) { return parts->place == IN_REASONING; }

qn_status qn_parts_set_stream(qn_parts *parts, const qn_call_form *form, const json_t *kinds,
                              qn_call_fn *fn, void *arg, qn_err *err) {
    return qn_call_stream_create(&parts->stream, form, kinds, fn, arg, err);
}

qn_status qn_parts_make(qn_parts **out, const qn_parts_opts *opts, qn_err *err) {
    qn_parts *p = qn_alloc(1, sizeof *p);
    if (!p) return QN_NOMEM(err, "parts");
    p->takes_bare = opts->bare_calls;
    p->is_start = true;
    bool is_closed = false;
    const mark *open = opts->prompt ? find_tag(opts->prompt, opts->prompt_size, &is_closed) : NULL;
    if (is_closed) open = NULL;
    p->skips = open != NULL;
    enter(p, open);
    for (size_t i = 0; i < N_PIECES; i++) p->special[i] = -1;
    *out = p;
    return QN_OK;
}

const char *qn_parts_piece(size_t i) { return i < N_PIECES ? pieces[i] : NULL; }

void qn_parts_set_special(qn_parts *parts, size_t i, int32_t id) { parts->special[i] = id; }

void qn_parts_destroy(qn_parts *parts) {
    if (!parts) return;
    qn_buf_deinit(&parts->text);
    qn_call_stream_destroy(parts->stream);
    qn_free(parts);
}

qn_status qn_parts_feed(qn_parts *parts, int32_t token, const char *text, size_t size,
                        qn_part_fn *fn, void *arg, qn_err *err) {
    QN_NEED(parts, err);
    QN_NEED(fn, err);
    if (size) QN_NEED(text, err);
    parts->fn = fn;
    parts->arg = arg;
    qn_buf_add(&parts->text, text, size);
    for (size_t i = 0; i < N_PIECES && token >= 0; i++) {
        if (parts->special[i] == token) qn_buf_text(&parts->text, pieces[i]);
    }
    if (parts->text.failed) return QN_NOMEM(err, "an answer");
    return pass_all(parts, false, err);
}

qn_status qn_parts_finish(qn_parts *parts, qn_part_fn *fn, void *arg, qn_err *err) {
    QN_NEED(parts, err);
    QN_NEED(fn, err);
    parts->fn = fn;
    parts->arg = arg;
    QN_TRY(pass_all(parts, true, err));
    give_blanks(parts, parts->n_blanks);
    return QN_OK;
}

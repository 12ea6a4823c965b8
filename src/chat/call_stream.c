#include "chat/call_stream.h"

#include "chat/parts.h"
#include "core/buf.h"
#include "core/chars.h"
#include "core/json.h"
#include "core/mem.h"
#include "core/utf8.h"

typedef enum stage {
    IN_LIST, // before the first item
    BEFORE,
    IN_NAME,
    BETWEEN,
    IN_JSON,    // arguments that are an object
    IN_TAG,     // <parameter=NAME> or </function>
    VALUE_LINE, // the line end after the first of them
    IN_VALUE,
    TAG_LINE, // the line end after a value
    AFTER,
    NEXT_ITEM,
    NEXT_TAG,
    OVER,
    BROKEN,
    N_STAGES
} stage;

static const char open_tag[] = "<parameter=", end_tag[] = "</function>",
                  close_tag[] = "\n</parameter>";

struct qn_call_stream {
    const qn_call_form *form;
    const json_t *kinds;
    qn_call_fn *fn;
    void *arg;
    stage stage;
    const char *at; // of the text that is to come, in BEFORE, BETWEEN and AFTER
    int n_id;       // letters of '#' that came
    size_t n, n_whole;
    bool is_open; // a name was told, the end not yet
    bool is_escaped, is_quoted;
    int64_t depth;
    qn_buf name, tag, value;
    qn_buf all, piece; // of the arguments: what was told, and what is to be told next
    int kind;          // of the parameter
    size_t n_seen;     // bytes of close_tag that came
    size_t n_params;
    qn_status status; // of what failed inside
    qn_err *err;
};

qn_status qn_call_stream_create(qn_call_stream **out, const qn_call_form *form, const json_t *kinds,
                                qn_call_fn *fn, void *arg, qn_err *err) {
    qn_call_stream *s = qn_alloc(1, sizeof *s);
    if (!s) return QN_NOMEM(err, "a tool call");
    s->form = form;
    s->kinds = kinds;
    s->fn = fn;
    s->arg = arg;
    *out = s;
    return QN_OK;
}

void qn_call_stream_destroy(qn_call_stream *s) {
    if (!s) return;
    qn_buf_deinit(&s->name);
    qn_buf_deinit(&s->tag);
    qn_buf_deinit(&s->value);
    qn_buf_deinit(&s->all);
    qn_buf_deinit(&s->piece);
    qn_free(s);
}

const qn_call_form *qn_call_stream_form(const qn_call_stream *s) { return s->form; }

static void enter(qn_call_stream *s, stage to, const char *text) {
    s->stage = to;
    s->at = text;
    s->n_id = 0;
}

static void begin_call(qn_call_stream *s) {
    qn_buf_clear(&s->name);
    qn_buf_clear(&s->all);
    qn_buf_clear(&s->piece);
    s->depth = 0;
    s->is_escaped = s->is_quoted = false;
    s->n_params = 0;
    enter(s, BEFORE, s->form->before);
}

void qn_call_stream_begin(qn_call_stream *s) {
    s->n = s->n_whole = 0;
    s->is_open = false;
    begin_call(s);
    if (s->form->is_list) enter(s, IN_LIST, "~[~");
}

// --- texts of the form ---------------------------------------------------------------------------

// The text that is to come goes on with this byte, which it may leave to what follows.
typedef enum matched { TAKEN, LEFT, WRONG } matched;

static matched match(qn_call_stream *s, char c) {
    while (*s->at == '~') {
        if (qn_is_blank(c)) return TAKEN;
        s->at++;
    }
    if (!*s->at) return LEFT;
    if (*s->at == '#') {
        if (++s->n_id == QN_CALL_FORM_ID) s->at++;
        return qn_is_blank(c) || c == '"' || c == '[' ? WRONG : TAKEN;
    }
    if (*s->at != c) return WRONG;
    s->at++;
    return TAKEN;
}

// Whether nothing but blanks that may be missing is left.
static bool is_matched(const qn_call_stream *s) { return !*s->at; }

// --- arguments -----------------------------------------------------------------------------------

static void add(qn_call_stream *s, const char *text, size_t size) {
    qn_buf_add(&s->piece, text, size);
}

static void add_escaped(qn_call_stream *s, const char *text, size_t size) {
    static const char codes[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    for (size_t i = 0; i < size; i++) {
        const char *hit = text[i] ? strchr(codes, text[i]) : NULL;
        if (hit)
            qn_buf_printf(&s->piece, "\\%c", names[hit - codes]);
        else if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
            qn_buf_printf(&s->piece, "\\u%04x", (unsigned)(unsigned char)text[i]);
        else
            add(s, text + i, 1);
    }
}

static void tell_piece(qn_call_stream *s) {
    if (!s->piece.size || !s->is_open) return;
    qn_buf_add(&s->all, s->piece.data, s->piece.size);
    if (!s->piece.failed && !s->all.failed)
        s->fn(s->arg, QN_CALL_PIECE, s->piece.data, s->piece.size);
    qn_buf_clear(&s->piece);
}

static void check_memory(qn_call_stream *s) {
    const qn_buf *const bufs[] = {&s->name, &s->tag, &s->value, &s->all, &s->piece};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        if (bufs[i]->failed && !s->status) s->status = QN_NOMEM(s->err, "a tool call");
}

// The arguments are complete.
static void end_arguments(qn_call_stream *s) {
    char *text = NULL;
    tell_piece(s);
    check_memory(s);
    if (!s->status) s->status = qn_calls_print(&text, (qn_str){s->all.data, s->all.size}, s->err);
    if (!s->status && text) {
        s->is_open = false;
        s->n_whole = s->n + 1;
        s->fn(s->arg, QN_CALL_DONE, text, strlen(text));
        enter(s, AFTER, s->form->after);
    } else {
        enter(s, BROKEN, "");
    }
    qn_free(text);
}

// Blanks outside of strings are left out.
static void scan_json(qn_call_stream *s, char c) {
    if (s->is_quoted || !qn_is_blank(c)) add(s, &c, 1);
    if (s->is_escaped) {
        s->is_escaped = false;
    } else if (s->is_quoted) {
        s->is_escaped = c == '\\';
        s->is_quoted = c != '"';
    } else if (c == '"') {
        s->is_quoted = true;
    } else if (c == '{' || c == '[') {
        s->depth++;
    } else if (c == '}' || c == ']') {
        s->depth--;
    }
}

static bool take_json(qn_call_stream *s, char c) {
    if (s->depth == 0 && c != '{' && !qn_is_blank(c)) {
        enter(s, BROKEN, "");
        return true;
    }
    scan_json(s, c);
    if (c == '}' && s->depth == 0) end_arguments(s);
    return true;
}

// --- elements ------------------------------------------------------------------------------------

static int find_kind(const qn_call_stream *s, const char *parameter) {
    const json_t *tool = json_object_get(s->kinds, s->name.data);
    return (int)json_integer_value(json_object_get(tool, parameter));
}

static void begin_value(qn_call_stream *s) {
    const char *name = s->tag.data + strlen(open_tag);
    add(s, s->n_params++ ? "," : "{", 1);
    add(s, "\"", 1);
    s->tag.data[s->tag.size - 1] = '\0'; // of its bracket
    add_escaped(s, name, strlen(name));
    add(s, "\":", 2);
    s->kind = find_kind(s, name);
    s->n_seen = 0;
    s->is_quoted = s->is_escaped = false;
    qn_buf_clear(&s->value);
    if (s->kind == QN_STREAM_TEXT) add(s, "\"", 1);
    enter(s, VALUE_LINE, "\n");
}

static bool take_tag(qn_call_stream *s, char c) {
    enum { MAX_TAG = 4096 };
    qn_buf_add(&s->tag, &c, 1);
    check_memory(s);
    if (s->status || c != '>') {
        if (s->tag.size > MAX_TAG) enter(s, BROKEN, "");
        return true;
    }
    if (strcmp(s->tag.data, end_tag) == 0) {
        if (!s->n_params) add(s, "{", 1);
        add(s, "}", 1);
        end_arguments(s);
        if (s->stage == AFTER) s->at += strlen(end_tag);
    } else if (strncmp(s->tag.data, open_tag, strlen(open_tag)) == 0) {
        begin_value(s);
    } else {
        enter(s, BROKEN, "");
    }
    return true;
}

static void add_value(qn_call_stream *s, const char *text, size_t size) {
    if (s->kind == QN_STREAM_TEXT) add_escaped(s, text, size);
    for (size_t i = 0; s->kind == QN_STREAM_JSON && i < size; i++) scan_json(s, text[i]);
    if (s->kind == QN_STREAM_ANY) qn_buf_add(&s->value, text, size);
}

static void end_value(qn_call_stream *s) {
    if (s->kind == QN_STREAM_TEXT) add(s, "\"", 1);
    if (s->kind == QN_STREAM_ANY && !s->status) {
        char *text = NULL;
        const qn_str value = {s->value.data ? s->value.data : "", s->value.size};
        s->status = qn_calls_print_value(&text, value, s->err);
        if (text) qn_buf_text(&s->piece, text);
        if (!s->status && !text) enter(s, BROKEN, "");
        qn_free(text);
        if (s->stage == BROKEN) return;
    }
    enter(s, TAG_LINE, "\n");
}

// What may be the tag that ends the value waits. Its first character is nowhere else in it.
static bool take_value(qn_call_stream *s, char c) {
    if (c == close_tag[s->n_seen]) {
        if (!close_tag[++s->n_seen]) end_value(s);
        return true;
    }
    add_value(s, close_tag, s->n_seen);
    s->n_seen = 0;
    if (c == *close_tag)
        s->n_seen = 1;
    else
        add_value(s, &c, 1);
    return true;
}

// --- names ---------------------------------------------------------------------------------------

// The inside of a JSON string is what it says.
static void read_name(qn_call_stream *s) {
    qn_buf quoted = {0};
    json_t *value = NULL;
    qn_buf_printf(&quoted, "\"%s\"", s->name.data ? s->name.data : "");
    const qn_json_opts opts = {.what = "a name", .any = true};
    qn_status status = quoted.failed ? QN_NOMEM(s->err, "a tool call") : QN_OK;
    if (!status) status = qn_json_parse_as(&value, quoted.data, quoted.size, &opts, s->err);
    qn_buf_clear(&s->name);
    if (json_is_string(value)) qn_buf_text(&s->name, json_string_value(value));
    if (status == QN_MEMORY) s->status = status;
    json_decref(value);
    qn_buf_deinit(&quoted);
}

static bool take_name(qn_call_stream *s, char c) {
    const bool is_end = !s->is_escaped && c == *s->form->between;
    if (!is_end) {
        s->is_escaped = s->form->is_quoted && !s->is_escaped && c == '\\';
        qn_buf_add(&s->name, &c, 1);
        return true;
    }
    if (s->form->is_quoted) read_name(s);
    check_memory(s);
    const bool is_text = s->name.size && qn_utf8_valid(s->name.data, s->name.size) &&
                         !memchr(s->name.data, 0, s->name.size);
    if (s->status || !is_text) {
        enter(s, BROKEN, "");
        return true;
    }
    s->is_open = true;
    s->is_escaped = false;
    s->fn(s->arg, QN_CALL_NAME, s->name.data, s->name.size);
    enter(s, BETWEEN, s->form->between);
    return false;
}

// --- all -----------------------------------------------------------------------------------------

// Texts, and what comes after them.
static stage after_text(const qn_call_stream *s) {
    if (s->stage == IN_LIST) return BEFORE;
    if (s->stage == BEFORE) return IN_NAME;
    if (s->stage == BETWEEN) return s->form->is_xml ? IN_TAG : IN_JSON;
    if (s->stage == VALUE_LINE) return IN_VALUE;
    if (s->stage == TAG_LINE) return IN_TAG;
    if (s->form->is_list) return NEXT_ITEM;
    return s->form->close || s->form->is_single ? OVER : NEXT_TAG;
}

static void leave_text(qn_call_stream *s) {
    const stage next = after_text(s);
    if (next == IN_TAG) qn_buf_clear(&s->tag);
    if (next == BEFORE || next == NEXT_TAG) begin_call(s);
    enter(s, next, next == BEFORE ? s->form->before : next == NEXT_TAG ? s->form->open : "");
}

static bool take_text(qn_call_stream *s, char c) {
    const matched got = match(s, c);
    if (got == WRONG)
        enter(s, BROKEN, "");
    else if (got == LEFT || is_matched(s))
        leave_text(s);
    return got != LEFT;
}

static bool take_item(qn_call_stream *s, char c) {
    if (c == ',') {
        begin_call(s);
        enter(s, IN_LIST, "~");
    } else if (!qn_is_blank(c)) {
        enter(s, c == ']' ? OVER : BROKEN, "");
    }
    return true;
}

// The tag of a further call, after blanks.
static bool take_next(qn_call_stream *s, char c) {
    if (s->at == s->form->open && qn_is_blank(c)) return true;
    if (*s->at != c) {
        enter(s, BROKEN, "");
        return true;
    }
    if (!*++s->at) enter(s, BEFORE, s->form->before);
    return true;
}

// False: the byte belongs to the next stage.
typedef bool take_fn(qn_call_stream *s, char c);
static take_fn *const takes[N_STAGES] = {
    [IN_LIST] = take_text,  [BEFORE] = take_text, [IN_NAME] = take_name,    [BETWEEN] = take_text,
    [IN_JSON] = take_json,  [IN_TAG] = take_tag,  [VALUE_LINE] = take_text, [IN_VALUE] = take_value,
    [TAG_LINE] = take_text, [AFTER] = take_text,  [NEXT_ITEM] = take_item,  [NEXT_TAG] = take_next,
};

// A text of nothing, or of blanks that are not there, is over at once where no byte is wanted.
static void skip_empty(qn_call_stream *s) {
    while (takes[s->stage] == take_text && !*s->at) leave_text(s);
}

qn_status qn_call_stream_feed(size_t *used, qn_call_stream *s, const char *text, size_t size,
                              qn_err *err) {
    s->err = err;
    s->status = QN_OK;
    size_t i = 0;
    skip_empty(s);
    while (i < size && takes[s->stage] && !s->status) {
        if (!takes[s->stage](s, text[i])) continue;
        i++;
        s->n++;
        skip_empty(s);
    }
    if (s->stage != BROKEN) tell_piece(s);
    check_memory(s);
    *used = i;
    return s->status;
}

qn_call_stage qn_call_stream_stage(const qn_call_stream *s) {
    if (s->stage == BROKEN) return QN_STREAM_BROKEN;
    if (s->stage == OVER) return QN_STREAM_OVER;
    const bool is_between = s->stage == NEXT_ITEM || s->stage == AFTER ||
                            (s->stage == NEXT_TAG && s->at == s->form->open);
    return is_between ? QN_STREAM_WHOLE : QN_STREAM_GOES_ON;
}

bool qn_call_stream_is_open(const qn_call_stream *s) { return s->is_open; }
size_t qn_call_stream_n_whole(const qn_call_stream *s) { return s->n_whole; }

void qn_call_stream_cut(qn_call_stream *s) {
    if (s->is_open) s->fn(s->arg, QN_CALL_CUT, "", 0);
    s->is_open = false;
}

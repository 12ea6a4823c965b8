// qn_chat_reply: the parts of an answer while it comes, kept for the message that it becomes; and
// qn_chat_answer, which makes one in a session.
#include "api/chat_turn.h"

#include "chat/parts.h"
#include "core/buf.h"
#include "core/mem.h"
#include "core/structs.h"
#include "session/session_int.h"

#include <string.h>

struct qn_chat_reply {
    qn_parts *parts; // NULL: all is text
    qn_call_kinds *kinds;
    size_t n_reasoning; // tokens
    bool is_finished;
    qn_buf text, reasoning;
    qn_tool_call *calls; // (n_calls), owned texts
    size_t n_calls, cap_calls;
    // Of calls that are told as they come: how many began, the name of the last one, and whether it
    // goes on.
    size_t n_begun;
    qn_buf name;
    bool is_calling;
    // While an event is fed.
    qn_chat_fn *fn;
    void *arg;
    const qn_event *event;
    bool goes_on;
    qn_status status; // of what failed inside
};

void qn_chat_reply_destroy(qn_chat_reply *r) {
    if (!r) return;
    for (size_t i = 0; i < r->n_calls; i++) {
        qn_free((void *)(uintptr_t)r->calls[i].name);
        qn_free((void *)(uintptr_t)r->calls[i].arguments);
    }
    qn_free(r->calls);
    qn_buf_deinit(&r->text);
    qn_buf_deinit(&r->reasoning);
    qn_buf_deinit(&r->name);
    qn_parts_destroy(r->parts);
    qn_call_kinds_release(r->kinds);
    qn_free(r);
}

// --- parts ---------------------------------------------------------------------------------------

// Nothing more is told once the caller has had enough; what comes is still kept.
static void tell(qn_chat_reply *r, qn_chat_event *event) {
    event->token = r->event;
    if (r->fn && r->goes_on) r->goes_on = r->fn(r->arg, event);
}

static char *copy_text(const char *text) {
    const size_t size = strlen(text) + 1;
    char *copy = qn_alloc(size, 1);
    return copy ? memcpy(copy, text, size) : NULL;
}

static bool keep_call(qn_chat_reply *r, const char *name, const char *arguments) {
    void *calls = r->calls;
    if (!qn_grow(&calls, &r->cap_calls, r->n_calls + 1, sizeof *r->calls)) return false;
    r->calls = calls;
    const qn_tool_call call = {copy_text(name), copy_text(arguments)};
    r->calls[r->n_calls++] = call; // what there is of it is released with the others
    return call.name && call.arguments;
}

static void take_call(qn_chat_reply *r, const qn_part *part) {
    if (!keep_call(r, part->name, part->arguments)) {
        r->status = QN_MEMORY;
        return;
    }
    qn_chat_event event =
        QN_INIT(qn_chat_event, .kind = QN_CHAT_CALL, .call = (int32_t)r->n_begun++,
                .text = part->text, .text_size = part->text_size, .name = part->name);
    tell(r, &event);
    event.kind = QN_CHAT_ARGUMENTS;
    event.text = part->arguments;
    event.text_size = strlen(part->arguments);
    tell(r, &event);
}

static void begin_call(qn_chat_reply *r, const char *name) {
    qn_buf_clear(&r->name);
    qn_buf_text(&r->name, name);
    r->is_calling = true;
    if (r->name.failed) {
        r->status = QN_MEMORY;
        return;
    }
    tell(r, &QN_INIT(qn_chat_event, .kind = QN_CHAT_CALL, .call = (int32_t)r->n_begun++, .text = "",
                     .name = r->name.data));
}

// A qn_call_fn: of calls that are told as they come.
static void take_news(void *arg, qn_call_news news, const char *text, size_t size) {
    qn_chat_reply *r = arg;
    if (r->status) return;
    if (news == QN_CALL_NAME) begin_call(r, text);
    if (news == QN_CALL_PIECE)
        tell(r, &QN_INIT(qn_chat_event, .kind = QN_CHAT_ARGUMENTS, .call = (int32_t)r->n_begun - 1,
                         .text = text, .text_size = size, .name = r->name.data));
    if (news == QN_CALL_DONE && !keep_call(r, r->name.data, text)) r->status = QN_MEMORY;
    if (news == QN_CALL_DONE || news == QN_CALL_CUT) r->is_calling = false;
}

// A qn_part_fn.
static void take_part(void *arg, const qn_part *part) {
    qn_chat_reply *r = arg;
    const bool is_text = part->kind == QN_PART_TEXT;
    if (part->kind == QN_PART_CALL) {
        take_call(r, part);
        return;
    }
    if (part->text_size == 0) return;
    qn_buf_add(is_text ? &r->text : &r->reasoning, part->text, part->text_size);
    if (r->text.failed || r->reasoning.failed) r->status = QN_MEMORY;
    if (r->is_calling) return; // it was told as a call
    tell(r, &QN_INIT(qn_chat_event, .kind = is_text ? QN_CHAT_TEXT : QN_CHAT_REASONING,
                     .text = part->text, .text_size = part->text_size));
}

static qn_status take_text(qn_chat_reply *r, const qn_event *e, qn_err *err) {
    if (r->parts) {
        const bool was_reasoning = qn_parts_is_reasoning(r->parts);
        QN_TRY(qn_parts_feed(r->parts, e->token, e->text, e->text_size, take_part, r, err));
        r->n_reasoning += e->token >= 0 && (was_reasoning || qn_parts_is_reasoning(r->parts));
        return QN_OK;
    }
    take_part(r,
              &QN_INIT(qn_part, .kind = QN_PART_TEXT, .text = e->text, .text_size = e->text_size));
    return QN_OK;
}

static qn_status finish(qn_chat_reply *r, qn_err *err) {
    r->is_finished = true;
    return r->parts ? qn_parts_finish(r->parts, take_part, r, err) : QN_OK;
}

qn_status qn_chat_reply_feed(bool *goes_on, qn_chat_reply *reply, const qn_event *event,
                             qn_chat_fn *fn, void *arg, qn_err *err) {
    QN_NEED(reply, err);
    QN_NEED(event, err);
    QN_TRY(QN_RESULT_CHECK(qn_event, event, err));
    if (event->text_size) QN_NEED(event->text, err);
    if (reply->is_finished) return QN_FAIL(err, STATE, "an event after the end of the answer");
    reply->fn = fn;
    reply->arg = arg;
    reply->event = event;
    reply->goes_on = true;
    qn_status status = event->is_prompt ? QN_OK : take_text(reply, event, err);
    if (!status && event->token < 0) status = finish(reply, err);
    reply->event = NULL;
    if (!status && reply->status) status = QN_NOMEM(err, "an answer");
    if (!status && goes_on) *goes_on = reply->goes_on;
    return status;
}

qn_status qn_chat_reply_finish(qn_chat_reply *reply, qn_chat_fn *fn, void *arg, qn_err *err) {
    QN_NEED(reply, err);
    if (reply->is_finished) return QN_OK;
    reply->fn = fn;
    reply->arg = arg;
    reply->goes_on = true;
    QN_TRY(finish(reply, err));
    return reply->status ? QN_NOMEM(err, "an answer") : QN_OK;
}

qn_status qn_chat_reply_get_message(qn_message *out, const qn_chat_reply *reply, qn_err *err) {
    QN_NEED(out, err);
    QN_NEED(reply, err);
    QN_TRY(QN_RESULT_CHECK(qn_message, out, err));
    const qn_message message = {.role = "assistant",
                                .text = reply->text.data ? reply->text.data : "",
                                .text_size = reply->text.size,
                                .reasoning = reply->reasoning.data ? reply->reasoning.data : "",
                                .reasoning_size = reply->reasoning.size,
                                .calls = reply->calls,
                                .n_calls = reply->n_calls};
    QN_RESULT_WRITE(qn_message, out, &message);
    return QN_OK;
}

size_t qn_chat_reply_n_reasoning(const qn_chat_reply *reply) {
    return reply ? reply->n_reasoning : 0;
}

// --- the object ----------------------------------------------------------------------------------

static qn_status init_parts(qn_chat_reply *r, const qn_chat_turn *turn, qn_err *err) {
    const qn_chat_hold *hold = &turn->hold;
    QN_TRY(qn_parts_create(&r->parts, &turn->parts, err));
    if (hold->has_no_calls) qn_parts_forbid_calls(r->parts);
    if (!hold->form) return QN_OK;
    r->kinds = qn_call_kinds_hold(hold->kinds);
    return qn_parts_set_stream(r->parts, hold->form, r->kinds ? r->kinds->tools : NULL, take_news,
                               r, err);
}

qn_status qn_chat_reply_create(qn_chat_reply **out, const qn_chat_turn *turn, qn_err *err) {
    QN_NEED(out, err);
    qn_chat_reply *r = qn_alloc(1, sizeof *r);
    if (!r) return QN_NOMEM(err, "an answer");
    const qn_status status = turn ? init_parts(r, turn, err) : QN_OK;
    if (status)
        qn_chat_reply_destroy(r);
    else
        *out = r;
    return status;
}

// --- all of it -----------------------------------------------------------------------------------

typedef struct answering {
    const qn_chat_opts *opts;
    qn_chat_reply *reply;
    qn_chat_fn *fn;
    void *arg;
    qn_status status; // of what failed in the callback
    qn_err *err;
} answering;

// A qn_event_fn.
static bool take_event(void *arg, const qn_event *event) {
    answering *a = arg;
    bool goes_on = !a->opts->token_fn || a->opts->token_fn(a->opts->token_arg, event);
    bool wants_more = true;
    a->status = qn_chat_reply_feed(&wants_more, a->reply, event, a->fn, a->arg, a->err);
    return goes_on && wants_more && !a->status;
}

static qn_status begin(bool *goes_on, qn_session *session, const qn_chat_turn *turn,
                       const answering *a, qn_err *err) {
    qn_chat_turn_info info = QN_INIT(qn_chat_turn_info);
    QN_TRY(qn_session_set_images(session, turn->prompt.ids, turn->prompt.n, turn->row.images,
                                 turn->row.n_images, turn->generate.stop, err));
    if (turn->row.mark) QN_TRY(qn_session_mark(session, turn->row.mark, err));
    QN_TRY(qn_chat_turn_get_info(&info, turn, err));
    const qn_chat_event event = QN_INIT(qn_chat_event, .kind = QN_CHAT_BEGIN, .turn = &info);
    *goes_on = !a->fn || a->fn(a->arg, &event);
    return QN_OK;
}

static qn_status run(qn_result *result, qn_session *session, const qn_chat_turn *turn, answering *a,
                     qn_err *err) {
    bool goes_on;
    QN_TRY(qn_chat_reply_create(&a->reply, turn, err));
    QN_TRY(begin(&goes_on, session, turn, a, err));
    if (!goes_on) return QN_FAIL(err, STOPPED, "stopped before the answer");
    const qn_status status = qn_generate(result, session, &turn->generate, take_event, a, err);
    if (a->status) return a->status; // it is in *err, which a call that ends by it leaves alone
    if (status) return status;
    return qn_chat_reply_finish(a->reply, a->fn, a->arg, err);
}

qn_status qn_chat_answer(qn_result *result, qn_chat *chat, qn_session *session,
                         const qn_template *chat_template, const qn_chat_opts *opts, qn_chat_fn *fn,
                         void *arg, qn_err *err) {
    QN_NEED(chat, err);
    QN_NEED(session, err);
    QN_NEED(chat_template, err);
    if (result) QN_TRY(QN_RESULT_CHECK(qn_result, result, err));
    qn_chat_opts o;
    qn_chat_prompt_opts prompt;
    QN_TRY(QN_OPTS_READ(qn_chat_opts, &o, opts, err));
    QN_TRY(QN_OPTS_READ(qn_chat_prompt_opts, &prompt, o.prompt, err));
    qn_err own;
    qn_chat_turn *turn = NULL;
    qn_result got = QN_INIT(qn_result);
    answering a = {.opts = &o, .fn = fn, .arg = arg, .err = err ? err : &own};
    qn_status status = qn_chat_turn_create(&turn, chat, chat_template, session->engine,
                                           qn_session_context(session), &o, err);
    if (!status) status = run(&got, session, turn, &a, a.err);
    const size_t n = prompt.n_messages ? prompt.n_messages : qn_chat_n_messages(chat);
    qn_message message = QN_INIT(qn_message);
    if (!status) status = qn_chat_reply_get_message(&message, a.reply, err);
    if (!status) status = qn_chat_put(chat, n, &message, err);
    if (!status && result) {
        QN_RESULT_WRITE(qn_result, result, &got);
        got = QN_INIT(qn_result);
    }
    qn_result_deinit(&got);
    qn_chat_reply_destroy(a.reply);
    qn_chat_turn_destroy(turn);
    return status;
}

// The grammar that an answer in a conversation is held to: which form the model's calls have, by
// what its template makes of a made-up one; the tools of the chat in that form; and the gate that
// leaves reasoning and text free.
#include "api/chat_tools.h"

#include "chat/parts.h"
#include "chat/template.h"
#include "core/mem.h"
#include "gen/grammar/calls.h"
#include "gen/grammar/grammar_int.h"

_Static_assert((int)QN_STREAM_TEXT == (int)QN_PARAM_TEXT &&
                   (int)QN_STREAM_JSON == (int)QN_PARAM_JSON,
               "one meaning of kinds");

// --- kinds of parameters -------------------------------------------------------------------------

qn_call_kinds *qn_call_kinds_hold(qn_call_kinds *kinds) {
    // The caller holds it already, so nothing is ordered by this.
    if (kinds) atomic_fetch_add_explicit(&kinds->n_users, 1, memory_order_relaxed);
    return kinds;
}

void qn_call_kinds_release(qn_call_kinds *kinds) {
    // Release: this user's reads come before the last one's free; acquire: the last one sees them.
    if (!kinds || atomic_fetch_sub_explicit(&kinds->n_users, 1, memory_order_acq_rel) > 1) return;
    json_decref(kinds->tools);
    qn_free(kinds);
}

static json_t *kinds_of(const json_t *schema) {
    json_t *kinds = json_object(), *param;
    const char *name;
    json_object_foreach(json_object_get(schema, "properties"), name, param)
        qn_json_put(&kinds, name, json_integer(qn_gr_param_kind_of(schema, name)));
    return kinds;
}

static qn_status make_kinds(qn_call_kinds **out, const qn_gr_tool *tools, size_t n, qn_err *err) {
    qn_call_kinds *kinds = qn_alloc(1, sizeof *kinds);
    if (!kinds) return QN_NOMEM(err, "tools");
    atomic_init(&kinds->n_users, 1);
    kinds->tools = json_object();
    for (size_t i = 0; i < n; i++) {
        if (!json_object_get(kinds->tools, tools[i].name))
            qn_json_put(&kinds->tools, tools[i].name, kinds_of(tools[i].schema));
    }
    if (!kinds->tools) {
        qn_call_kinds_release(kinds);
        return QN_NOMEM(err, "tools");
    }
    *out = kinds;
    return QN_OK;
}

// --- tools ---------------------------------------------------------------------------------------

static qn_status read_tool(qn_gr_tool *out, const json_t *tool, size_t i, qn_err *err) {
    const json_t *function = json_object_get(tool, "function");
    out->index = i;
    out->is_strict = json_is_true(json_object_get(tool, "strict"));
    if (json_is_object(function)) tool = function;
    out->is_strict |= json_is_true(json_object_get(tool, "strict"));
    out->name = json_string_value(json_object_get(tool, "name"));
    out->schema = json_object_get(tool, "parameters");
    return out->name && *out->name ? QN_OK : QN_FAIL(err, ARGUMENT, "tool %zu has no name", i);
}

static qn_status fail_unknown(const char *name, const qn_gr_tool *tools, size_t n, qn_err *err) {
    char list[300];
    size_t used = 0;
    list[0] = '\0';
    for (size_t i = 0; i < n && used + 1 < sizeof list; i++) {
        const int more =
            snprintf(list + used, sizeof list - used, "%s%.60s", i ? ", " : "", tools[i].name);
        used += more > 0 ? (size_t)more : 0;
    }
    return QN_FAIL(err, ARGUMENT, "no tool '%.80s'; there %s %s", name, n == 1 ? "is" : "are",
                   n ? list : "none");
}

// The tools that may be called; *out is owned (qn_free).
static qn_status read_tools(qn_gr_tool **out, size_t *n, const qn_chat_holding *h, qn_err *err) {
    const char *only = h->opts->tool_choice == QN_TOOLS_REQUIRED ? h->opts->tool_name : NULL;
    const size_t n_all = json_array_size(h->tools);
    qn_gr_tool *tools = qn_alloc(n_all + 1, sizeof *tools);
    if (!tools) return QN_NOMEM(err, "tools");
    qn_status status = QN_OK;
    for (size_t i = 0; i < n_all && !status; i++)
        status = read_tool(&tools[i], json_array_get(h->tools, i), i, err);
    size_t found = 0;
    while (!status && only && found < n_all && strcmp(tools[found].name, only) != 0) found++;
    if (!status && only && found == n_all) {
        *h->culprit = QN_CULPRIT_TOOL_CHOICE;
        status = fail_unknown(only, tools, n_all, err);
    }
    if (status) {
        qn_free(tools);
        return status;
    }
    if (only) tools[0] = tools[found];
    *out = tools;
    *n = only ? 1 : n_all;
    return QN_OK;
}

// --- forms ---------------------------------------------------------------------------------------

// NULL where the template refuses.
static qn_status try_render(char **out, const qn_chat_holding *h, bool generates, qn_err *err) {
    const char *request = qn_call_form_request(generates);
    const qn_template_opts opts = QN_INIT(qn_template_opts, .stop = h->stop);
    qn_err why;
    const qn_status status =
        qn_template_render(out, NULL, h->template, request, strlen(request), &opts, &why);
    if (status != QN_MEMORY && status != QN_STOPPED) return QN_OK;
    if (err) *err = why;
    return status;
}

static qn_status find_form(const qn_call_form **out, const qn_chat_holding *h, qn_err *err) {
    char *text = NULL, *prompt = NULL;
    *out = NULL;
    qn_status status = try_render(&text, h, false, err);
    if (!status && text) status = try_render(&prompt, h, true, err);
    if (!status && text) status = qn_call_form_find(out, text, prompt, err);
    qn_free(text);
    qn_free(prompt);
    return status;
}

// --- gates ---------------------------------------------------------------------------------------

static qn_status find_pieces(qn_gr_gate *gate, const qn_tokenizer *tokenizer, qn_err *err) {
    const char *piece;
    for (size_t i = 0; (piece = qn_parts_piece(i)) && gate->n_pieces < QN_GATE_PIECES; i++) {
        int32_t id;
        QN_TRY(qn_parts_find_special(&id, tokenizer, piece, err));
        if (id >= 0) gate->pieces[gate->n_pieces++] = (qn_gr_gate_piece){piece, id};
    }
    return QN_OK;
}

static void add_pair(qn_gr_gate *gate, const char *open, const char *close) {
    gate->pairs[gate->n_pairs].open = open;
    gate->pairs[gate->n_pairs++].close = close;
}

// Whether a model may begin its answers with this tag, by what it is made of.
static bool may_reason(const qn_chat_holding *h, const char *open, const char *close) {
    const char *piece;
    for (size_t i = 0; (piece = qn_parts_piece(i)); i++) {
        const size_t n = strlen(piece);
        if (strncmp(open, piece, n) == 0 && qn_tokenizer_find(h->tokenizer, piece, n) >= 0)
            return true;
    }
    return qn_template_mentions(h->template, open) || qn_template_mentions(h->template, close);
}

// Reasoning before the grammar. All tags count where what follows is free text anyway, else those
// that this model may write.
static void find_pairs(qn_gr_gate *gate, const qn_chat_holding *h) {
    bool is_closed = false, is_alone;
    const char *close;
    const char *inside = qn_parts_find_open(h->prompt->text, h->prompt->text_size, &is_closed),
               *open;
    gate->is_inside = inside && !is_closed;
    for (size_t i = 0; gate->is_inside && (open = qn_parts_reasoning(i, &close, &is_alone)); i++)
        if (open == inside) add_pair(gate, open, close);
    if (!gate->call && (inside || h->reasoning == QN_REASONING_OFF)) return;
    for (size_t i = 0; (open = qn_parts_reasoning(i, &close, &is_alone)); i++) {
        const bool is_there = gate->is_inside && open == inside;
        if (is_there || gate->n_pairs == QN_GATE_PAIRS) continue;
        if (gate->call || (is_alone && may_reason(h, open, close))) add_pair(gate, open, close);
    }
}

// --- what it is held to --------------------------------------------------------------------------

static qn_status make_calls(qn_grammar **out, const qn_chat_holding *h, const qn_call_form *form,
                            const qn_gr_gate *gate, const qn_gr_tool *tools, size_t n,
                            qn_err *err) {
    const qn_gr_calls calls = {
        .before = form->before,
        .between = form->between,
        .after = form->after,
        .is_quoted = form->is_quoted,
        .is_xml = form->is_xml,
        .is_list = form->is_list,
        .open = form->open,
        .close = form->close,
        .takes_open = h->opts->tool_choice == QN_TOOLS_REQUIRED || h->grammar,
        .instead = h->grammar,
        .one = h->opts->one_call || form->is_single,
        .tools = tools,
        .n_tools = n,
        .pieces = gate->pieces,
        .n_pieces = gate->n_pieces,
        .opts = QN_INIT(qn_grammar_opts, .stop = h->opts->stop, .lenient = h->opts->lenient_schemas,
                        .max_steps = h->opts->max_grammar_steps,
                        .max_token_steps = h->opts->max_token_steps)};
    return qn_grammar_create_calls(out, h->tokenizer, h->opts->like, &calls, err);
}

// The grammar behind its gate, in place of the grammar.
static qn_status put_gate(qn_chat_hold *hold, const qn_grammar *inner, const qn_gr_gate *gate,
                          qn_err *err) {
    return qn_grammar_create_gated(&hold->grammar, inner, gate, err);
}

static qn_status hold_calls(qn_chat_hold *hold, const qn_chat_holding *h, const qn_call_form *form,
                            qn_err *err) {
    // Nothing but calls, or a text that has a form, too, follows the reasoning.
    const bool is_required = h->opts->tool_choice == QN_TOOLS_REQUIRED || h->grammar;
    qn_gr_gate gate = {0};
    qn_gr_tool *tools = NULL;
    qn_grammar *inner = NULL;
    size_t n = 0;
    QN_TRY(find_pieces(&gate, h->tokenizer, err));
    if (!is_required) gate.call = form->open;
    gate.is_first = form->is_bare;
    // What follows a call without a closing tag is read as part of it.
    gate.again = !is_required && !h->opts->one_call && (form->close || form->is_bare);
    find_pairs(&gate, h);
    *h->culprit = QN_CULPRIT_TOOLS;
    QN_TRY(read_tools(&tools, &n, h, err));
    qn_status status = make_calls(&inner, h, form, &gate, tools, n, err);
    if (!status) status = put_gate(hold, inner, &gate, err);
    if (!status && form->is_xml) status = make_kinds(&hold->kinds, tools, n, err);
    hold->form = form;
    qn_grammar_destroy(inner);
    qn_free(tools);
    return status;
}

static qn_status hold_grammar(qn_chat_hold *hold, const qn_chat_holding *h, qn_err *err) {
    qn_gr_gate gate = {0};
    find_pairs(&gate, h);
    if (gate.n_pairs == 0) return QN_OK; // it holds at once
    QN_TRY(find_pieces(&gate, h->tokenizer, err));
    return put_gate(hold, h->grammar, &gate, err);
}

// An answer that is a call or follows a grammar: whether its beginning can tell which of the two.
static qn_status check_both(const qn_chat_holding *h, const qn_call_form *form, qn_err *err) {
    if (!form || form->is_bare || !form->open)
        return QN_FAIL(err, UNSUPPORTED,
                       "a grammar for an answer that may call tools: the model's calls begin "
                       "%s, so that text cannot be told from them",
                       form ? "without a tag" : "in no form that is known");
    if (!h->grammar->text)
        return QN_FAIL(err, UNSUPPORTED,
                       "a grammar for an answer that may call tools must be made "
                       "from a text");
    return QN_OK;
}

static qn_status hold_init(qn_chat_hold *hold, const qn_chat_holding *h, qn_err *err) {
    const qn_tool_choice choice = h->opts->tool_choice;
    const bool is_required = choice == QN_TOOLS_REQUIRED;
    const bool has_tools = json_array_size(h->tools) > 0;
    *h->culprit = QN_CULPRIT_TOOL_CHOICE;
    if ((unsigned)choice > QN_TOOLS_REQUIRED)
        return QN_FAIL(err, ARGUMENT, "tool choice %d of %d", (int)choice, QN_TOOLS_REQUIRED + 1);
    if (is_required && !has_tools)
        return QN_FAIL(err, ARGUMENT, "a call of a tool is required, and there are no tools");
    hold->has_no_calls = choice == QN_TOOLS_NONE;
    const bool may_call = is_required || (choice == QN_TOOLS_AUTO && has_tools);
    *h->culprit = h->grammar ? QN_CULPRIT_GRAMMAR : QN_CULPRIT_OTHER;
    if (is_required && h->grammar)
        return QN_FAIL(err, UNSUPPORTED,
                       "a grammar for the text of an answer that must be a call of a tool");
    if (h->grammar && !may_call) return hold_grammar(hold, h, err);
    if (!may_call) return QN_OK;
    const qn_call_form *form;
    QN_TRY(find_form(&form, h, err));
    if (h->grammar) QN_TRY(check_both(h, form, err));
    if (!form && is_required) form = qn_call_form_usual();
    return form ? hold_calls(hold, h, form, err) : QN_OK;
}

qn_status qn_chat_hold_init(qn_chat_hold *out, const qn_chat_holding *h, qn_err *err) {
    qn_chat_hold hold = {0};
    const qn_status status = hold_init(&hold, h, err);
    if (status)
        qn_chat_hold_deinit(&hold);
    else
        *out = hold;
    return status;
}

void qn_chat_hold_deinit(qn_chat_hold *hold) {
    qn_grammar_destroy(hold->grammar);
    qn_call_kinds_release(hold->kinds);
    *hold = (qn_chat_hold){0};
}

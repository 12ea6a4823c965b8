// What tests of answers that are held to something share: the small bundled model, and what it
// wants to write. The logits of one token are raised, and where the answer is held to something
// else, those of another.
#ifndef QN_TESTS_CHAT_RIG_H
#define QN_TESTS_CHAT_RIG_H

#include "testing.h"

#include "api/chat_turn.h"
#include "chat/parts.h"
#include "core/buf.h"

#include <stdio.h>

#define DRAFT     MODELS "/quern-draft-Q8_0.gguf"
#define TEMPLATES TEST_DATA "/templates/"

enum { CONTEXT = 2048, MAX_TEXT = 16384 };

typedef struct things {
    qn_engine *engine;
    qn_session *session;
    qn_template *own;
    const qn_tokenizer *tokenizer;
} things;

static things t;

static inline int set_up(void **state) {
    (void)state;
    qn_err err;
    ASSERT_OK(qn_engine_open(&t.engine, DRAFT, NULL, &err));
    ASSERT_OK(qn_engine_template(&t.own, t.engine, NULL, &err));
    ASSERT_OK(qn_session_create(&t.session, t.engine, &QN_INIT(qn_session_opts, .context = CONTEXT),
                                &err));
    t.tokenizer = qn_engine_tokenizer(t.engine);
    return 0;
}

static inline int tear_down(void **state) {
    (void)state;
    qn_session_destroy(t.session);
    qn_template_destroy(t.own);
    qn_engine_close(t.engine);
    return 0;
}

// --- what the model wants ------------------------------------------------------------------------

// Texts by how much the model wants to write them: the first that the answer so far is a beginning
// of. At its end it wants to end.
typedef struct wish {
    const char *texts[4];
} wish;

static inline int32_t first_token(const char *text) {
    qn_err err;
    int32_t *ids;
    size_t n;
    const qn_tokenize_opts how = QN_INIT(qn_tokenize_opts, .special = true);
    ASSERT_OK(qn_tokenize(&ids, &n, t.tokenizer, text, strlen(text), &how, &err));
    const int32_t id = n ? ids[0] : tokenizer_info(t.tokenizer).eos;
    qn_free(ids);
    return id;
}

static inline bool want(void *arg, const qn_next_logits *next) {
    const wish *w = arg;
    qn_err err;
    char *text;
    size_t size;
    ASSERT_OK(qn_detokenize(&text, &size, t.tokenizer, next->tokens + next->n_prompt,
                            next->n_tokens - next->n_prompt, true, &err));
    for (size_t i = 4; i-- > 0;) {
        if (!w->texts[i] || strncmp(w->texts[i], text, size) != 0) continue;
        next->logits[first_token(w->texts[i] + size)] = 1000.0f - 100.0f * (float)i;
    }
    qn_free(text);
    return true;
}

// --- what is told --------------------------------------------------------------------------------

typedef struct told {
    char text[MAX_TEXT], reasoning[MAX_TEXT], arguments[4][MAX_TEXT], names[4][64];
    size_t n_calls, n_pieces;
} told;

static inline bool tell(void *arg, const qn_chat_event *e) {
    told *to = arg;
    char *out = NULL;
    if (e->kind == QN_CHAT_BEGIN) return true;
    if (e->kind == QN_CHAT_CALL) {
        assert_int_equal(e->call, to->n_calls);
        assert_true(to->n_calls < 4);
        snprintf(to->names[to->n_calls++], 64, "%s", e->name);
        return true;
    }
    if (e->kind == QN_CHAT_TEXT) out = to->text;
    if (e->kind == QN_CHAT_REASONING) out = to->reasoning;
    if (e->kind == QN_CHAT_ARGUMENTS) {
        assert_int_equal(e->call, to->n_calls - 1);
        assert_string_equal(e->name, to->names[e->call]);
        assert_true(e->text_size > 0);
        to->n_pieces++;
        out = to->arguments[e->call];
    }
    assert_non_null(out);
    assert_true(strlen(out) + e->text_size < MAX_TEXT);
    strncat(out, e->text, e->text_size);
    return true;
}

// --- answers -------------------------------------------------------------------------------------

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"weather\", \"description\": \"w\", "
    "\"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", "
    "\"description\": \"c\"}, \"days\": {\"type\": \"integer\", \"description\": \"d\"}, \"unit\": "
    "{\"type\": \"string\", \"description\": \"u\", \"enum\": [\"C\", \"F\"]}}, \"required\": "
    "[\"city\"], \"additionalProperties\": false}}}, {\"type\": \"function\", \"function\": "
    "{\"name\": \"time\", \"description\": \"t\", \"parameters\": {\"type\": \"object\", "
    "\"properties\": {}}}}]";

static inline qn_chat *make_chat(const char *list) {
    qn_err err;
    qn_chat *chat;
    ASSERT_OK(qn_chat_create(&chat, &err));
    ASSERT_OK(qn_chat_add(chat, &QN_INIT(qn_message, .role = "user", .text = "Go.", .text_size = 3),
                          &err));
    if (list) ASSERT_OK(qn_chat_set_tools(chat, list, strlen(list), NULL, &err));
    return chat;
}

static inline qn_template *open_template(const char *name) {
    qn_err err;
    char path[512];
    qn_template *template;
    snprintf(path, sizeof path, TEMPLATES "%s.jinja", name);
    ASSERT_OK(qn_template_open(&template, path, NULL, &err));
    return template;
}

// The answer to a chat of the tools, and what is told of it. `result` (may be NULL) is released by
// the caller.
static inline void answer(told *seen, qn_result *result, qn_message *last,
                          const qn_template *template, const char *list, wish w, qn_chat_opts opts,
                          int64_t max_tokens) {
    qn_err err;
    const qn_sample_opts greedy = QN_INIT(qn_sample_opts);
    qn_generate_opts generate = QN_INIT(qn_generate_opts);
    if (opts.generate) generate = *opts.generate;
    generate.sample = &greedy;
    generate.max_tokens = max_tokens;
    if (w.texts[0]) {
        generate.logits_fn = want;
        generate.logits_arg = &w;
    }
    opts.generate = &generate;
    qn_chat *chat = make_chat(list);
    *seen = (told){0};
    ASSERT_OK(qn_chat_answer(result, chat, t.session, template, &opts, tell, seen, &err));
    if (last) {
        static char text[MAX_TEXT];
        *last = QN_INIT(qn_message);
        ASSERT_OK(qn_chat_get(last, chat, 1, &err));
        snprintf(text, sizeof text, "%.*s", (int)last->text_size, last->text);
        last->text = text;
    }
    qn_chat_destroy(chat);
}

#define CHOICE(...) QN_INIT(qn_chat_opts, .tool_choice = __VA_ARGS__)

#endif

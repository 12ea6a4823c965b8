// Tasks with answers that a program can check.
#include "cli/eval.h"
#include "cli/out.h"
#include "cli/progress.h"

#include "core/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static qn_status find_skill(qn_skill **out, qn_skills *skills, const char *name, qn_err *err) {
    for (size_t i = 0; i < skills->n; i++) {
        *out = &skills->items[i];
        if (strcmp(skills->items[i].name, name) == 0) return QN_OK;
    }
    void *items = skills->items;
    if (!qn_grow(&items, &skills->cap, skills->n + 1, sizeof *skills->items))
        return QN_NOMEM(err, "skills");
    skills->items = items;
    char *copy = strdup(name);
    if (!copy) return QN_NOMEM(err, "skills");
    skills->items[skills->n] = (qn_skill){.name = copy};
    *out = &skills->items[skills->n++];
    return QN_OK;
}

// The answer's text (owned), greedily, until the model ends it, it has `max` tokens, or fills the
// context.
static qn_status answer(char **out, qn_session *session, const qn_tokenizer *tokenizer,
                        const char *prompt, int64_t max, qn_err *err) {
    int32_t *ids = NULL;
    size_t n;
    qn_result result = QN_INIT(qn_result);
    qn_status status = QN_OK;
    QN_TRY(qn_tokenize(&ids, &n, tokenizer, prompt, strlen(prompt),
                       &QN_INIT(qn_tokenize_opts, .special = true), err));
    QN_TRY_TO(done, qn_session_set_prompt(session, ids, n, err));
    const qn_generate_opts opts = QN_INIT(qn_generate_opts, .max_tokens = max);
    QN_TRY_TO(done, qn_generate(&result, session, &opts, NULL, NULL, err));
    *out = strdup(result.text ? result.text : "");
    if (!*out) status = QN_NOMEM(err, "an answer");

done:
    qn_result_deinit(&result);
    qn_free(ids);
    return status;
}

static int64_t longest_answer(const qn_eval_task *t, const qn_tasks_opts *opts) {
    enum { USUAL = 100, STORY = 320 };
    if (opts->max) return opts->max;
    return strcmp(t->skill, "stories") == 0 ? STORY : USUAL;
}

static qn_status show_wrong(const qn_eval_task *t, const char *text, qn_err *err) {
    char *expected = NULL;
    QN_TRY(qn_json_print(&expected, t->expected, &(qn_json_form){0}, "a task", err));
    fputs("wrong (", stderr);
    qn_print_text(stderr, t->skill, strlen(t->skill));
    fprintf(stderr, "): want %s, got ", expected);
    qn_print_text(stderr, text, strlen(text));
    fputc('\n', stderr);
    qn_free(expected);
    return QN_OK;
}

static qn_status run_task(qn_skills *skills, const qn_eval_task *t, qn_session *session,
                          const qn_tasks_opts *opts, qn_progress *progress, qn_err *err) {
    qn_skill *skill = NULL;
    QN_TRY(find_skill(&skill, skills, t->skill, err));
    if (opts->per_skill && skill->n >= opts->per_skill) return QN_OK;
    char *text = NULL;
    bool is_right = false;
    QN_TRY(answer(&text, session, qn_engine_tokenizer(opts->engine), t->prompt,
                  longest_answer(t, opts), err));
    qn_status status = qn_answer_check(&is_right, t->checker, t->expected, text, err);
    if (!status) {
        skill->n++;
        skill->right += is_right;
    }
    if (!status && !is_right && opts->shows_wrong) {
        qn_progress_end(progress);
        status = show_wrong(t, text, err);
    }
    qn_free(text);
    return status;
}

// Lines that are not blank.
static int64_t count_tasks(const qn_buf *text) {
    int64_t n = 0;
    bool is_blank = true;
    for (size_t i = 0; i < text->size; i++) {
        const char c = text->data[i];
        if (is_blank && !strchr(" \t\r\n", c)) n++, is_blank = false;
        if (c == '\n') is_blank = true;
    }
    return n;
}

// Lines of the file one after the other; blank ones are skipped.
static qn_status run_lines(qn_skills *skills, const qn_buf *text, qn_session *session,
                           const qn_tasks_opts *opts, qn_err *err) {
    qn_progress progress = {.what = "tasks", .unit = "tasks"};
    const int64_t total = count_tasks(text);
    qn_status status = QN_OK;
    int64_t number = 0;
    for (size_t at = 0; at < text->size && !status;) {
        const char *line = text->data + at;
        const char *newline = memchr(line, '\n', text->size - at);
        const size_t size = newline ? (size_t)(newline - line) : text->size - at;
        at += size + 1;
        if (strspn(line, " \t\r") >= size) continue;
        qn_eval_task t = {0};
        QN_TRY_TO(done, qn_task_parse(&t, line, size, opts->path, ++number, err));
        status = run_task(skills, &t, session, opts, &progress, err);
        json_decref(t.json);
        if (status)
            qn_err_prefix(err, status, "%s: task %lld", opts->path, (long long)number);
        else if (!qn_progress_show(&progress, number, total))
            status = QN_FAIL(err, STOPPED, "stopped after %lld of %lld tasks", (long long)number,
                             (long long)total);
    }

done:
    qn_progress_end(&progress);
    return status;
}

qn_status qn_tasks_run(qn_skills *out, const qn_tasks_opts *opts, qn_err *err) {
    qn_buf text = {0};
    qn_session *session = NULL;
    qn_skills skills = {0};
    qn_status status = QN_OK;
    QN_TRY_TO(done, qn_text_read(&text, opts->path, QN_MAX_TASKS, err));
    QN_TRY_TO(done, qn_session_create(&session, opts->engine,
                                      &QN_INIT(qn_session_opts, .shrink = true), err));
    QN_TRY_TO(done, run_lines(&skills, &text, session, opts, err));
    if (skills.n == 0) {
        status = QN_FAIL(err, FORMAT, "%s: no tasks", opts->path);
        goto done;
    }
    *out = skills;
    skills = (qn_skills){0};

done:
    qn_skills_deinit(&skills);
    qn_session_destroy(session);
    qn_buf_deinit(&text);
    return status;
}

void qn_skills_deinit(qn_skills *skills) {
    for (size_t i = 0; i < skills->n; i++) qn_free(skills->items[i].name);
    qn_free(skills->items);
    *skills = (qn_skills){0};
}

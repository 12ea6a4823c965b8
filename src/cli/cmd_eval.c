// quern eval: how well a model predicts a text, or how many tasks it solves.
#include "cli/command.h"
#include "cli/eval.h"
#include "cli/open_model.h"
#include "cli/out.h"
#include "cli/terminal.h"
#include "cli/facts.h"

#include <stdio.h>
#include <string.h>

typedef struct eval_options {
    const char *ppl, *tasks, *against;
    int against_cache; // word, see QN_OPTION_WORD
    int64_t context, stride, limit, max;
    bool json, wrong;
    qn_engine_args engine;
} eval_options;

static qn_status check_eval(const qn_call *call, qn_err *err) {
    const eval_options *o = call->options;
    if (!o->ppl == !o->tasks) return QN_FAIL(err, ARGUMENT, "eval: give either --ppl or --tasks");
    if (o->against && !o->ppl) return QN_FAIL(err, ARGUMENT, "--against needs --ppl");
    if (o->against_cache && !o->against)
        return QN_FAIL(err, ARGUMENT, "--against-cache-type needs --against");
    if (o->stride && o->context && o->stride >= o->context)
        return QN_FAIL(err, ARGUMENT, "--stride %lld, want less than --context %lld",
                       (long long)o->stride, (long long)o->context);
    if (o->tasks && (o->stride || o->context))
        return QN_FAIL(err, ARGUMENT, "--context and --stride need --ppl");
    if (o->ppl && (o->limit || o->max || o->wrong))
        return QN_FAIL(err, ARGUMENT, "--limit, --tokens and --wrong need --tasks");
    return qn_engine_args_check(&o->engine, err);
}

// --- perplexity ---

static qn_status print_ppl(const qn_ppl *p, const eval_options *o, qn_err *err) {
    qn_shown clean;
    if (!o->json) {
        printf("perplexity  %.4f +- %.4f over %lld tokens\n", p->ppl, p->se, (long long)p->tokens);
        if (o->against)
            printf("against %s: mean KL divergence %.6f, same best token %.2f %%\n",
                   qn_clean(&clean, o->against), p->kl, p->same * 100);
        return QN_OK;
    }
    json_t *json = json_pack("{s:o, s:o, s:I}", "ppl", qn_json_real(p->ppl), "se",
                             qn_json_real(p->se), "tokens", (json_int_t)p->tokens);
    if (o->against) {
        qn_json_put(&json, "kl", qn_json_real(p->kl));
        qn_json_put(&json, "top1", qn_json_real(p->same));
    }
    return qn_stdout_json(json, 0, err);
}

static qn_status check_window(const qn_engine *engine, const char *path, int64_t context,
                              qn_err *err) {
    const int64_t max = qn_engine_facts(engine).context;
    if (context <= max) return QN_OK;
    return QN_FAIL(err, LIMIT, "--context: windows of %lld tokens, but %s has a context of %lld",
                   (long long)context, path, (long long)max);
}

static qn_status run_ppl(const qn_engine *engine, const char *path, const eval_options *o,
                         qn_err *err) {
    enum { CONTEXT = 512 };
    const int64_t max = qn_engine_facts(engine).context;
    const int64_t context = o->context ? o->context : max < CONTEXT ? max : CONTEXT;
    const int64_t stride = o->stride ? o->stride : context - context / 2;
    qn_engine_args second = o->engine;
    if (o->against_cache) second.cache_type = o->against_cache;
    const qn_open_opts open_opts = {.args = &second, .is_second = true};
    qn_loaded against = {0};
    qn_ppl result = {0};
    qn_status status = QN_OK;
    QN_TRY(check_window(engine, path, context, err));
    if (o->against) QN_TRY(qn_cli_open(&against, o->against, &open_opts, err));
    const qn_ppl_opts opts = {.engine = engine,
                              .against = against.engine,
                              .path = o->ppl,
                              .context = context,
                              .stride = stride,
                              .n_threads = (int)o->engine.threads};
    if (against.engine) QN_TRY_TO(done, check_window(against.engine, o->against, context, err));
    QN_TRY_TO(done, qn_ppl_run(&result, &opts, err));
    status = print_ppl(&result, o, err);

done:
    qn_cli_close(&against);
    return status;
}

// --- tasks ---

static double accuracy(const qn_skill *s) { return s->n ? (double)s->right / (double)s->n : 0; }

static void print_skill(const qn_skill *s) {
    enum { WIDTH = 16 };
    const int size = (int)strlen(s->name);
    qn_print_text(stdout, s->name, (size_t)size);
    printf("%*s %6lld %6lld %7.1f %%\n", size < WIDTH ? WIDTH - size : 0, "", (long long)s->n,
           (long long)s->right, accuracy(s) * 100);
}

static qn_status print_skills(const qn_skills *skills, bool as_json, qn_err *err) {
    char name[] = "all";
    qn_skill all = {.name = name};
    json_t *rows = as_json ? json_object() : NULL;
    if (!as_json) printf("%-16s %6s %6s %9s\n", "skill", "tasks", "right", "accuracy");
    for (size_t i = 0; i < skills->n; i++) {
        const qn_skill *s = &skills->items[i];
        all.n += s->n;
        all.right += s->right;
        if (as_json)
            qn_json_put(&rows, s->name,
                        json_pack("{s:I, s:I, s:f}", "n", (json_int_t)s->n, "right",
                                  (json_int_t)s->right, "accuracy", accuracy(s)));
        else
            print_skill(s);
    }
    if (as_json) return qn_stdout_json(json_pack("{s:o}", "skills", rows), 0, err);
    print_skill(&all);
    return QN_OK;
}

static qn_status run_tasks(const qn_engine *engine, const eval_options *o, qn_err *err) {
    const qn_tasks_opts opts = {.engine = engine,
                                .path = o->tasks,
                                .max = o->max,
                                .per_skill = o->limit,
                                .shows_wrong = o->wrong};
    qn_skills skills = {0};
    QN_TRY(qn_tasks_run(&skills, &opts, err));
    const qn_status status = print_skills(&skills, o->json, err);
    qn_skills_deinit(&skills);
    return status;
}

// --- the command ---

static qn_status run_eval(const qn_call *call, qn_err *err) {
    const eval_options *o = call->options;
    const qn_open_opts open_opts = {.args = &o->engine, .needs_tokenizer = true};
    qn_loaded model = {0};
    qn_interrupt_hold(); // Ctrl-C stops it and says how far it came
    QN_TRY(qn_cli_open(&model, call->args[0], &open_opts, err));
    const qn_status status =
        o->ppl ? run_ppl(model.engine, call->args[0], o, err) : run_tasks(model.engine, o, err);
    qn_cli_close(&model);
    return status;
}

static const qn_option eval_table[] = {
    {.name = "--ppl",
     .arg = "FILE",
     .help = "perplexity on a text, with its standard error",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(eval_options, ppl)},
    {.name = "--tasks",
     .arg = "FILE.jsonl",
     .help = "share of tasks solved, by skill; each line is a JSON object with \"skill\", "
             "\"prompt\", \"expected\" and \"checker\"",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(eval_options, tasks)},
    {.name = "--context",
     .alias = "-c",
     .arg = "N",
     .help = "with --ppl: tokens per window (default: 512, or the model's context if shorter)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(eval_options, context),
     .min = 2,
     .max = INT32_MAX},
    {.name = "--stride",
     .arg = "N",
     .help = "with --ppl: tokens between the starts of windows (default: half a window)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(eval_options, stride),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--against",
     .arg = "MODEL",
     .help = "with --ppl: also the mean KL divergence from this model, and top-1 agreement",
     .kind = QN_OPTION_TEXT,
     .offset = offsetof(eval_options, against)},
    {.name = "--against-cache-type",
     .arg = "TYPE",
     .help = "type of the KV cache of --against (default: that of --cache-type)",
     .kind = QN_OPTION_WORD,
     .offset = offsetof(eval_options, against_cache),
     .words = qn_cache_words},
    {.name = "--limit",
     .arg = "N",
     .help = "with --tasks: only the first N tasks of each skill",
     .kind = QN_OPTION_INT,
     .offset = offsetof(eval_options, limit),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--tokens",
     .alias = "-n",
     .arg = "N",
     .help = "with --tasks: maximum tokens per answer (default: 100, and 320 for stories)",
     .kind = QN_OPTION_INT,
     .offset = offsetof(eval_options, max),
     .min = 1,
     .max = INT32_MAX},
    {.name = "--wrong",
     .help = "with --tasks: print wrong answers to stderr",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(eval_options, wrong)},
    {.name = "--json",
     .help = "print JSON",
     .kind = QN_OPTION_FLAG,
     .offset = offsetof(eval_options, json)},
    QN_OPTIONS_ENGINE(eval_options),
};

const qn_command qn_cmd_eval = {
    .name = "eval",
    .args = "MODEL (--ppl FILE | --tasks FILE.jsonl)",
    .summary = "Evaluates a model: perplexity on a text, or tasks solved.",
    .notes =
        "JSON of --ppl: {\"ppl\", \"se\", \"tokens\"}, with --against also \"kl\" and \"top1\". "
        "JSON of --tasks: {\"skills\": {NAME: {\"n\", \"right\", \"accuracy\"}}}. Answers are "
        "greedy; checkers are exact, contains, any, json and tool.",
    .options = eval_table,
    .n_options = sizeof eval_table / sizeof *eval_table,
    .options_size = sizeof(eval_options),
    .min_args = 1,
    .max_args = 1,
    .check = check_eval,
    .run = run_eval,
};

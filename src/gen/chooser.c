#include "gen/chooser.h"

#include "core/mem.h"
#include "core/structs.h"
#include "gen/bans.h"
#include "gen/settings.h"
#include "gen/steps.h"
#include "gen/weight.h"
#include "tokenizer/tokenizer.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>

// Prepared from the settings.
typedef struct chain {
    qn_sample_opts given;                     // as it was set, without lists; for comparing
    qn_buf lists;                             // what its lists hold; for comparing
    qn_sample_opts opts;                      // filled; without lists
    const qn_sampler_step *steps[QN_N_STEPS]; // those that have an effect, in order
    size_t n_steps;
    bool is_greedy;  // after the steps, the best is chosen
    qn_bias *biases; // (opts.n_biases)
    qn_bans *bans;   // NULL: none
    qn_breakers *breakers;
} chain;

// What samplers of one vocabulary share; the last one frees it.
typedef struct desk {
    atomic_size_t n_users;
    int64_t n_vocab;    // logits of a row
    int64_t n_tokens;   // the first n_tokens may belong to tokens
    uint32_t *is_token; // a bit for each of these; NULL: all are
    // Scratch of a choice.
    qn_choices choices;
    uint32_t *counts;                    // (n_vocab) zeros
    qn_top_logit top[QN_MAX_TOP_LOGITS]; // those that are allowed
} desk;

struct qn_chooser {
    const qn_tokenizer *tokenizer; // borrowed; NULL: none
    desk *desk;
    qn_token_texts texts; // once they are needed
    chain chain;
};

static void deinit_chain(chain *c) {
    qn_buf_deinit(&c->lists);
    qn_free(c->biases);
    qn_bans_destroy(c->bans);
    qn_breakers_destroy(c->breakers);
    *c = (chain){0};
}

// Finds which logits belong to tokens.
static qn_status find_tokens(desk *s, const qn_tokenizer *tokenizer, qn_err *err) {
    bool has_holes = false;
    int32_t end = 0;
    if (tokenizer) end = qn_tokenizer_end(tokenizer, &has_holes);
    s->n_tokens = end > 0 && end < s->n_vocab ? end : s->n_vocab;
    if (!has_holes) return QN_OK;
    s->is_token = qn_alloc(((size_t)s->n_vocab + 31) / 32, sizeof *s->is_token);
    if (!s->is_token) return QN_NOMEM(err, "sampling");
    for (int32_t id = 0; id < s->n_tokens; id++) {
        if (qn_tokenizer_has(tokenizer, id)) s->is_token[id / 32] |= 1u << id % 32;
    }
    return QN_OK;
}

static void leave_desk(desk *d) {
    if (!d || atomic_fetch_sub_explicit(&d->n_users, 1, memory_order_acq_rel) > 1) return;
    qn_choices_deinit(&d->choices);
    qn_free(d->is_token);
    qn_free(d->counts);
    qn_free(d);
}

static qn_status create_desk(desk **out, const qn_tokenizer *tokenizer, int64_t n_vocab,
                             qn_err *err) {
    desk *d = qn_alloc(1, sizeof *d);
    if (!d) return QN_NOMEM(err, "sampling");
    atomic_init(&d->n_users, 1);
    d->n_vocab = n_vocab;
    d->counts = qn_alloc((size_t)n_vocab, sizeof *d->counts);
    qn_status status = d->counts ? find_tokens(d, tokenizer, err) : QN_NOMEM(err, "sampling");
    if (!status) status = qn_choices_init(&d->choices, n_vocab, d->n_tokens, err);
    if (status)
        leave_desk(d);
    else
        *out = d;
    return status;
}

// Takes over a user of the desk.
static qn_status create(qn_chooser **out, const qn_tokenizer *tokenizer, desk *d, qn_err *err) {
    qn_chooser *s = qn_alloc(1, sizeof *s);
    if (!s) {
        leave_desk(d);
        return QN_NOMEM(err, "sampling");
    }
    s->tokenizer = tokenizer;
    s->desk = d;
    s->chain.opts = qn_settings_fill(&s->chain.given);
    s->chain.is_greedy = true;
    *out = s;
    return QN_OK;
}

qn_status qn_chooser_create(qn_chooser **out, const qn_tokenizer *tokenizer, int64_t n_vocab,
                            qn_err *err) {
    desk *d = NULL;
    if (n_vocab < 1 || n_vocab > QN_WEIGHT_MAX_ENTRIES)
        return QN_FAIL(err, LIMIT, "a vocabulary of %lld tokens, want 1 to %d", (long long)n_vocab,
                       QN_WEIGHT_MAX_ENTRIES);
    QN_TRY(create_desk(&d, tokenizer, n_vocab, err));
    return create(out, tokenizer, d, err);
}

qn_status qn_chooser_create_like(qn_chooser **out, const qn_chooser *other, qn_err *err) {
    atomic_fetch_add_explicit(&other->desk->n_users, 1, memory_order_relaxed);
    return create(out, other->tokenizer, other->desk, err);
}

void qn_chooser_destroy(qn_chooser *s) {
    if (!s) return;
    deinit_chain(&s->chain);
    qn_token_texts_deinit(&s->texts);
    leave_desk(s->desk);
    qn_free(s);
}

// --- settings ------------------------------------------------------------------------------------

static qn_status check_biases(const qn_sample_opts *opts, int64_t n_vocab, qn_err *err) {
    const float max = 1000;
    if (opts->n_biases && !opts->biases)
        return QN_FAIL(err, ARGUMENT, "%zu biases, but the list is NULL", opts->n_biases);
    for (size_t i = 0; i < opts->n_biases; i++) {
        const qn_bias b = opts->biases[i];
        if (b.token < 0 || b.token >= n_vocab)
            return QN_FAIL(err, ARGUMENT, "bias %zu: token %d, want 0 to %lld", i, b.token,
                           (long long)n_vocab - 1);
        if (!(b.bias >= -max && b.bias <= max) && b.bias != -INFINITY)
            return QN_FAIL(err, ARGUMENT, "bias %zu, of token %d: %g, want -%g to %g, or -inf", i,
                           b.token, (double)b.bias, (double)max, (double)max);
    }
    return QN_OK;
}

qn_status qn_sample_check(const qn_sample_opts *opts, qn_err *err) {
    qn_sample_opts o;
    QN_TRY(QN_OPTS_READ(qn_sample_opts, &o, opts, err));
    const qn_sampler_step *steps[QN_N_STEPS];
    size_t n_steps;
    QN_TRY(qn_settings_check(&o, err));
    QN_TRY(qn_steps_parse(steps, &n_steps, o.order, err));
    QN_TRY(check_biases(&o, (int64_t)INT32_MAX + 1, err));
    QN_TRY(qn_bans_check(o.bans, o.n_bans, err));
    return o.dry_breakers ? qn_breakers_check(o.dry_breakers, o.n_dry_breakers, err) : QN_OK;
}

static qn_status copy_biases(chain *c, const qn_sample_opts *opts, int64_t n_vocab, qn_err *err) {
    QN_TRY(check_biases(opts, n_vocab, err));
    if (opts->n_biases == 0) return QN_OK;
    c->biases = qn_alloc(opts->n_biases, sizeof *c->biases);
    if (!c->biases) return QN_NOMEM(err, "biases");
    memcpy(c->biases, opts->biases, opts->n_biases * sizeof *c->biases);
    return QN_OK;
}

static qn_status need_texts(qn_chooser *s, qn_err *err) {
    if (s->texts.ends) return QN_OK;
    return qn_token_texts_init(&s->texts, s->tokenizer, s->desk->n_vocab, err);
}

static qn_status build_strings(chain *c, qn_chooser *s, qn_err *err) {
    const qn_sample_opts *o = &c->opts;
    if (o->n_bans > 0) {
        if (!s->tokenizer)
            return QN_FAIL(err, ARGUMENT, "%zu banned strings, but there is no tokenizer",
                           o->n_bans);
        QN_TRY(need_texts(s, err));
        QN_TRY(qn_bans_create(&c->bans, &s->texts, o->bans, o->n_bans, err));
    }
    if (o->dry_multiplier != 0 && o->n_dry_breakers > 0 && s->tokenizer) {
        QN_TRY(need_texts(s, err));
        QN_TRY(
            qn_breakers_create(&c->breakers, &s->texts, o->dry_breakers, o->n_dry_breakers, err));
    }
    return QN_OK;
}

// Keeps the steps that have an effect. A greedy choice draws nothing.
static void choose_steps(chain *c) {
    const qn_sample_opts *o = &c->opts;
    c->is_greedy = o->temperature == 0 || (o->top_k == 1 && !o->mirostat);
    size_t n = 0;
    for (size_t i = 0; i < c->n_steps; i++) {
        const qn_sampler_step *step = c->steps[i];
        const bool is_idle = (c->is_greedy && step->kind != QN_STEP_LOGITS) ||
                             (o->mirostat && step->kind == QN_STEP_FILTER);
        if (!is_idle && step->is_on(o)) c->steps[n++] = step;
    }
    c->n_steps = n;
}

// The caller's, who may free them.
static void drop_lists(qn_sample_opts *o) {
    o->biases = NULL;
    o->bans = o->dry_breakers = NULL;
    o->order = NULL;
}

static qn_status build_chain(chain *c, qn_chooser *s, const qn_sample_opts *opts, qn_err *err) {
    QN_TRY(qn_settings_check(opts, err));
    c->given = *opts;
    c->opts = qn_settings_fill(opts);
    QN_TRY(qn_steps_parse(c->steps, &c->n_steps, opts->order, err));
    QN_TRY(copy_biases(c, opts, s->desk->n_vocab, err));
    QN_TRY(build_strings(c, s, err));
    choose_steps(c);
    drop_lists(&c->given);
    drop_lists(&c->opts);
    qn_settings_pack_lists(&c->lists, opts);
    return c->lists.failed ? QN_NOMEM(err, "settings of sampling") : QN_OK;
}

qn_status qn_chooser_set(qn_chooser *s, const qn_sample_opts *opts, qn_err *err) {
    const chain *c = &s->chain;
    if (qn_settings_equal(opts, &c->given, c->lists.data, c->lists.size)) return QN_OK;
    chain new = {0};
    const qn_status status = build_chain(&new, s, opts, err);
    if (status) {
        deinit_chain(&new);
        return status;
    }
    deinit_chain(&s->chain);
    s->chain = new;
    return QN_OK;
}

bool qn_chooser_is_greedy(const qn_chooser *s) {
    const chain *c = &s->chain;
    return c->is_greedy && c->n_steps == 0 && c->opts.n_biases == 0 && !c->bans &&
           !s->desk->is_token;
}

int64_t qn_chooser_top(const qn_chooser *s) {
    const chain *c = &s->chain;
    if (qn_chooser_is_greedy(s)) return 1;
    if (c->is_greedy || c->opts.mirostat || c->opts.n_biases || c->bans || s->desk->is_token)
        return 0;
    if (c->n_steps == 0 || strcmp(c->steps[0]->name, "top_k") != 0) return 0;
    for (size_t i = 0; i < c->n_steps; i++) {
        if (c->steps[i]->kind == QN_STEP_LOGITS) return 0; // needs all logits
    }
    return c->opts.top_k <= QN_MAX_TOP_LOGITS ? c->opts.top_k : 0;
}

// --- choosing ------------------------------------------------------------------------------------

// What a caller wrote: numbers, and -inf.
static qn_status check_given(const float *logits, int64_t n, const char *who, qn_err *err) {
    for (int64_t i = 0; i < n; i++) {
        if (logits[i] <= FLT_MAX) continue;
        return QN_FAIL(err, ARGUMENT, "%s: logit %lld of %lld is %s, want a number or -inf", who,
                       (long long)i, (long long)n, isnan(logits[i]) ? "nan" : "inf");
    }
    return QN_OK;
}

static qn_status change(qn_chooser *s, const qn_chooser_in *in, qn_err *err) {
    float *logits = qn_choices_write(&s->desk->choices);
    if (!in->change(in->change_arg, logits))
        return QN_FAIL(err, STOPPED, "stopped by the callback that sees the logits");
    return check_given(logits, s->desk->n_vocab, "the callback that sees the logits", err);
}

// Applied before all steps, whatever their order.
static qn_status exclude(qn_chooser *s, const qn_chooser_in *in, qn_err *err) {
    const chain *c = &s->chain;
    if (!in->allowed && c->opts.n_biases == 0 && !c->bans && !s->desk->is_token && !in->change &&
        !in->is_given)
        return QN_OK;
    if (in->change) QN_TRY(change(s, in, err));
    if (in->allowed) qn_choices_allow(&s->desk->choices, in->allowed);
    if (s->desk->is_token) qn_choices_allow(&s->desk->choices, s->desk->is_token);
    float *logits = qn_choices_write(&s->desk->choices);
    for (size_t i = 0; i < c->opts.n_biases; i++) logits[c->biases[i].token] += c->biases[i].bias;
    const size_t n_answer = in->n_tokens - in->n_prompt;
    const int32_t *answer = n_answer ? in->tokens + in->n_prompt : NULL;
    if (c->bans) qn_bans_apply(c->bans, logits, answer, n_answer);
    if (qn_choices_count(&s->desk->choices) == 0)
        return QN_FAIL(err, ARGUMENT,
                       "no token is left to choose: all %lld are excluded by the grammar, bans, "
                       "biases or -inf",
                       (long long)s->desk->n_tokens);
    return QN_OK;
}

// Logits past the tokens are never chosen, but must be finite too: they come from the same pass.
static qn_status check_rest(const qn_chooser *s, const float *logits, qn_err *err) {
    for (int64_t i = s->desk->n_tokens; i < s->desk->n_vocab; i++) {
        const qn_logits_range range = {.n = s->desk->n_vocab, .min = logits[i], .broken = i};
        if (!isfinite(logits[i])) return qn_logits_range_check(&range, err);
    }
    return QN_OK;
}

static bool is_allowed(const uint32_t *allowed, int32_t id) {
    return !allowed || allowed[id / 32] >> id % 32 & 1;
}

// From the top logits where the allowed ones among them are enough (*has_top); else from all.
static qn_status begin(bool *has_top, qn_chooser *s, const qn_chooser_in *in, qn_err *err) {
    desk *d = s->desk;
    const int64_t top = in->change ? 0 : qn_chooser_top(s),
                  need = top < d->n_tokens ? top : d->n_tokens;
    int64_t n = 0;
    for (int64_t i = 0; top > 0 && in->top && i < in->n_top && n < need; i++) {
        if (is_allowed(in->allowed, in->top[i].id)) d->top[n++] = in->top[i];
    }
    *has_top = n > 0 && (n == need || in->n_top >= d->n_tokens);
    if (*has_top) {
        qn_choices_begin_top(&d->choices, d->top, n);
        return QN_OK;
    }
    if (in->logits && in->is_given) {
        QN_TRY(check_given(in->logits, d->n_vocab, "the given row", err));
        qn_choices_begin_given(&d->choices, in->logits);
        return QN_OK;
    }
    if (in->logits) {
        QN_TRY(qn_choices_begin(&d->choices, in->logits, err));
        return check_rest(s, in->logits, err);
    }
    return QN_FAIL(err, STATE, "a choice from %lld logits, %lld are there", (long long)d->n_vocab,
                   (long long)in->n_top);
}

// Draws by mirostat, and moves the surprise that it allows by how far the choice was off.
static int64_t draw_mirostat(const qn_step_run *run, qn_chooser_memory *memory) {
    const float tau = run->opts->mirostat_tau, eta = run->opts->mirostat_eta;
    qn_chooser_memory new = {tau, eta, 2 * (double)tau};
    if (memory && memory->tau == tau && memory->eta == eta) new = *memory;
    double surprise = 0;
    const int64_t drawn = qn_steps_draw_mirostat(&surprise, run, new.surprise);
    new.surprise -= (double)eta *(surprise - (double)tau);
    if (memory) *memory = new;
    return drawn;
}

qn_status qn_chooser_choose(int32_t *token, qn_chooser *s, const qn_chooser_in *in, qn_err *err) {
    const chain *c = &s->chain;
    const qn_step_run run = {.choices = &s->desk->choices,
                             .opts = &c->opts,
                             .in = in,
                             .breakers = c->breakers,
                             .counts = s->desk->counts};
    bool has_top;
    QN_TRY(begin(&has_top, s, in, err));
    if (!has_top) QN_TRY(exclude(s, in, err));
    for (size_t i = 0; i < c->n_steps; i++) c->steps[i]->run(&run);
    if (c->is_greedy) {
        *token = qn_choices_first(&s->desk->choices);
        return QN_OK;
    }
    const int64_t drawn = c->opts.mirostat ? draw_mirostat(&run, in->memory) : qn_steps_draw(&run);
    *token = qn_choices_id(&s->desk->choices, drawn);
    return QN_OK;
}

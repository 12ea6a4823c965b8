// Commands of a conversation that show something.
#include "cli/conversation.h"

#include "cli/facts.h"

#include <stdio.h>

qn_status qn_slash_figures(qn_conversation *c, const char *rest, qn_err *err) {
    (void)rest, (void)err;
    const qn_talk_figures *f = &c->talk->figures;
    const qn_session_counts counts = qn_session_facts(c->talk->session);
    size_t n_tokens;
    qn_session_tokens(c->talk->session, &n_tokens);
    const double writing = f->seconds - f->prompt_seconds;
    fprintf(stderr, "  answers   %lld\n", (long long)f->answers);
    fprintf(stderr, "  prompt    %lld tokens, %lld of them cached, %.1f tokens/s\n",
            (long long)f->prompt, (long long)f->reused,
            f->prompt_seconds > 0 ? (double)(f->prompt - f->reused) / f->prompt_seconds : 0);
    fprintf(stderr, "  generated %lld tokens, %.1f tokens/s\n", (long long)f->tokens,
            writing > 0 ? (double)(f->tokens - f->answers) / writing : 0);
    if (f->drafted)
        fprintf(stderr, "  drafted   %lld tokens, %lld of them accepted\n", (long long)f->drafted,
                (long long)f->accepted);
    fprintf(stderr, "  context   %zu of %lld tokens\n", n_tokens,
            (long long)qn_session_context(c->talk->session));
    fprintf(stderr, "  steps     %lld, of %lld tokens in all\n", (long long)counts.steps,
            (long long)counts.rows);
    return QN_OK;
}

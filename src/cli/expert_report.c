#include "cli/expert_report.h"

#include "cli/out.h"

#include <stdio.h>
#include <string.h>

static const qn_newfile_kind svg_kind = {.name = "an SVG file", .marks = {"<svg", "<?xml"}};

qn_status qn_expert_args_check(const qn_expert_args *args, const qn_engine_args *engine,
                               qn_err *err) {
    if (!args->svg) return QN_OK;
    if (!engine->experts) return QN_FAIL(err, ARGUMENT, "--expert-svg needs --expert-budget");
    QN_TRY(qn_outfile_check("--expert-svg", args->svg, err));
    return qn_newfile_check(args->svg, &svg_kind, err);
}

static void print_row(const char *name, const qn_expert_stats *s) {
    const int64_t all = s->hits + s->misses;
    char rate[16] = "-";
    if (all) snprintf(rate, sizeof rate, "%.1f%%", 100.0 * (double)s->hits / (double)all);
    fprintf(stderr, "  %5s %10lld %10lld %8s %10lld %10lld %10lld %10.1f %10.1f\n", name,
            (long long)s->hits, (long long)s->misses, rate, (long long)s->promotions,
            (long long)s->prefetched, (long long)s->demotions, (double)s->bytes_read / (1 << 20),
            (double)s->stall_ns * 1e-6);
}

static qn_status print_stats(const qn_engine *engine, qn_err *err) {
    qn_expert_stats all = QN_INIT(qn_expert_stats);
    QN_TRY(qn_engine_expert_stats(&all, engine, -1, err));
    if (all.n_layers == 0) {
        fprintf(stderr, "experts: the model has none\n");
        return QN_OK;
    }
    fprintf(stderr,
            "experts: %lld of %lld in memory in each of %lld layers (%.1f MiB), %lld used by a "
            "token",
            (long long)all.n_resident, (long long)all.n_experts, (long long)all.n_layers,
            (double)all.pool_bytes / (1 << 20), (long long)all.n_used);
    if (all.n_resident == all.n_experts) {
        fprintf(stderr, "; nothing is read, so nothing is counted\n");
        return QN_OK;
    }
    fprintf(stderr, "; %lld steps\n", (long long)all.steps);
    fprintf(stderr, "  %5s %10s %10s %8s %10s %10s %10s %10s %10s\n", "layer", "hits", "misses",
            "rate", "read", "ahead", "dropped", "MiB read", "stall ms");
    for (int64_t i = 0; i < all.n_layers; i++) {
        qn_expert_stats layer = QN_INIT(qn_expert_stats);
        char name[24];
        QN_TRY(qn_engine_expert_stats(&layer, engine, i, err));
        snprintf(name, sizeof name, "%lld", (long long)layer.layer);
        print_row(name, &layer);
    }
    print_row("all", &all);
    return QN_OK;
}

static qn_status save_svg(const char *path, const qn_engine *engine, qn_err *err) {
    char *svg;
    QN_TRY(qn_engine_expert_svg(&svg, engine, err));
    const qn_bytes all = {svg, strlen(svg)};
    const qn_status status = qn_outfile_save(path, &svg_kind, &all, 1, err);
    qn_free(svg);
    return status;
}

qn_status qn_expert_report(const qn_expert_args *args, const qn_engine *engine, qn_err *err) {
    if (args->stats) QN_TRY(print_stats(engine, err));
    return args->svg ? save_svg(args->svg, engine, err) : QN_OK;
}

#include "cli/progress.h"

#include "cli/terminal.h"

#include <stdio.h>
#include <unistd.h>

enum { WIDTH = 30 };

static void print_rate(const qn_progress *p, double rate) {
    if (*p->unit)
        fprintf(stderr, ", %.*f %s/s", rate < 10 ? 1 : 0, rate, p->unit);
    else
        fprintf(stderr, "  %.0f MiB/s", rate / (1 << 20));
}

static void print_left(double seconds) {
    const long whole = (long)seconds;
    if (whole >= 3600)
        fprintf(stderr, "  %ld h %ld min left", whole / 3600, whole / 60 % 60);
    else if (whole >= 60)
        fprintf(stderr, "  %ld min %ld s left", whole / 60, whole % 60);
    else
        fprintf(stderr, "  %ld s left", whole);
}

static void draw(qn_progress *p, int64_t done, int64_t total, double seconds) {
    const double share = total > 0 ? (double)done / (double)total : 1;
    char bar[WIDTH + 1];
    for (int i = 0; i < WIDTH; i++) bar[i] = i < (int)(share * WIDTH) ? '#' : '.';
    bar[WIDTH] = 0;
    fprintf(stderr, "\r\033[K%s [%s] %3d %%", p->what, bar, (int)(share * 100));
    if (*p->unit) fprintf(stderr, "  %lld of %lld", (long long)done, (long long)total);
    if (seconds > 0.5 && done > p->from) { // before that a rate is noise
        const double rate = (double)(done - p->from) / seconds;
        print_rate(p, rate);
        print_left((double)(total - done) / rate);
    }
    fflush(stderr);
    p->is_drawn = true;
}

bool qn_progress_show(void *progress, int64_t done, int64_t total) {
    qn_progress *p = progress;
    const double now = qn_now();
    if (p->start == 0) p->start = now;
    if (isatty(STDERR_FILENO) && (now - p->shown > 0.1 || done >= total)) {
        p->shown = now;
        draw(p, done, total, now - p->start);
    }
    return !qn_interrupt_take();
}

void qn_progress_end(qn_progress *progress) {
    if (progress->is_drawn) fprintf(stderr, "\r\033[K");
    progress->is_drawn = false;
}
